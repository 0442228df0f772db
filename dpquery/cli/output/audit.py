"""What the audit found, as tables and as JSON, and how far it goes."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill

from dpquery.audit.findings import TO_ITS_END, Finding
from dpquery.audit.statistics import ALPHA
from dpquery.cli.output.text_table import Grid
from dpquery.measurement.noise.library_versions import versions

WHAT_PASSING_SHOWS = {
    "supply": "The installed libraries are of versions that are accepted; the evidence names those "
    "that are not the locked ones, and those whose files could not be checked.",
    "sampler": "No difference from the exact laws was seen in what all sources of noise "
    "draw at these scales, small and uneven ones too.",
    "charges": "Noise is charged no less than its law costs, at these moves, scales, orders and "
    "events, and a ledger accepts what its two sums allow, which no adversary of so few steps gets "
    "past.",
    "lattice": "Records are counted and answered exactly, in whole numbers. What is published lies "
    "on the grid and, where it was worked out apart, follows to six digits from noisy whole "
    "numbers alone. The ledger is charged in full before the records are read, and once.",
    "residuals": "What is released differs from the exact answers by noise of the law and the "
    "scale that plan, unit and epsilon demand, worked out apart from the product.",
    "independence": "No rows and no releases share their noise, nor does any foretell another's, "
    "as far as sums of pairs show.",
    "neighbours": "No event was found that tells neighbouring data sets apart better than the "
    "claim allows; a mistake must be larger than the gap between bound and claim to be seen here.",
    "rap": "Relaxed adaptive projection chooses and measures with the chances and the noise that "
    "it is charged for, as far as the runs show.",
    "adaptive": "Adaptive measurement draws its tables and measures them with the chances and the "
    "noise that it is charged for, as far as the runs show.",
}
_RELEASING = ("lattice", "residuals", "independence", "neighbours", "rap", "adaptive")
_POWER = (
    "An error of a scale below {}, or events rarer than about 1 in 10,000: no number of draws "
    "that fits the time shows them. The stated scale itself is held exactly against the plan."
)
_UNSEEN = (
    (("supply",), "Compiled copies in __pycache__ and .pth files: wheels do not list them."),
    (_RELEASING, "How long a run takes and how much memory it needs: both depend on the data."),
    (
        _RELEASING,
        "An operator who reads the disk or the memory, lets the data out, or restores an old "
        "ledger.",
    ),
    (
        _RELEASING,
        "Whether your spec is true: that the id column names persons, that nobody is in two "
        "datasets of different names, and that the domain was written without looking at the data.",
    ),
)
_OTHERS = "Specs and strategies other than {}; the same code makes all of them."
_SHARED = (
    "Mistakes that this program and its audit share: how the spec is read, for one. The proofs and "
    "the code are open to read."
)


def cannot_show(findings: Sequence[Finding], *, quick: bool, own_plan: bool) -> list[str]:
    """Return what the parts that were run cannot show.

    Args:
        findings: of these parts.
        quick: whether less was drawn.
        own_plan: whether a user's own plan was looked at.
    """
    parts = {finding.part for finding in findings}
    power = _POWER.format("4 to 7 % end to end" if quick else "2 to 4 % end to end")
    notes = [power] if parts & {"residuals", "rap", "adaptive"} else []
    notes += [text for about, text in _UNSEEN if parts & set(about)]
    if parts & set(_RELEASING):
        notes.append(_OTHERS.format("those of this plan" if own_plan else "those made up here"))
    return [*notes, _SHARED]


def audit_grids(findings: Sequence[Finding]) -> list[Grid]:
    """Return a table for each claim of each part."""
    claims = dict.fromkeys((finding.part, finding.claim) for finding in findings)
    grids = []
    for part, claim in claims:
        checks = [one for one in findings if (one.part, one.claim) == (part, claim)]
        rows = [("ok" if one.passed else "FAILED", one.subject, one.evidence) for one in checks]
        grids.append(Grid(f"{part}: {claim}", ("", "subject", "evidence"), tuple(rows)))
    return grids


def audit_closing(findings: Sequence[Finding], *, quick: bool, own_plan: bool) -> str:
    """Return what the findings show, and what they cannot show."""
    parts = dict.fromkeys(finding.part for finding in findings)
    text = [f"{_totals(findings)}\n{', '.join(f'{name} {number}' for name, number in versions())}"]
    if all(finding.passed for finding in findings):
        shown = [_point(WHAT_PASSING_SHOWS[part]) for part in parts if part in WHAT_PASSING_SHOWS]
        text.append("\n".join(["What this shows, of these versions on this machine:", *shown]))
    else:
        text += _failed(findings)
    unseen = cannot_show(findings, quick=quick, own_plan=own_plan)
    text.append("\n".join(["What it cannot show:", *map(_point, unseen)]))
    return "\n\n".join(text)


def _failed(findings: Sequence[Finding]) -> list[str]:
    """Say what to do about checks that failed, and about parts that ended in an error."""
    failed = [finding for finding in findings if not finding.passed]
    broken = [finding.part for finding in failed if finding.claim == TO_ITS_END]
    text = []
    if len(failed) > len(broken):
        text.append(_wrapped(
            f"{len(failed) - len(broken)} of {len(findings)} checks FAILED: make no release with "
            "this installation. Run the audit again in a fresh environment with the locked "
            "versions; if it fails there too, report it with this output: it holds made-up data "
            "alone."
        ))  # fmt: skip
    if broken:
        text.append(_wrapped(
            f"Ended in an error before all was checked: {', '.join(broken)}. What was left shows "
            "nothing, good or bad. Where the disk or the memory was full, make room and run the "
            "audit again; else, or if it ends so again, report it with this output."
        ))  # fmt: skip
    return text


def audit_json(findings: Sequence[Finding], *, quick: bool, own_plan: bool) -> dict[str, object]:
    """Return the findings and their totals as JSON values."""
    tests = sum(finding.tests for finding in findings)
    return {
        "passed": all(finding.passed for finding in findings),
        "checks": len(findings),
        "failed": sum(not finding.passed for finding in findings),
        "tests": tests,
        "alpha": ALPHA,
        "false_alarm_about": tests * ALPHA,
        "draws": sum(finding.draws for finding in findings),
        "neighbours": sum(finding.neighbours for finding in findings),
        "replicates": sum(finding.replicates for finding in findings),
        "versions": dict(versions()),
        "findings": [asdict(finding) for finding in findings],
        "cannot_show": cannot_show(findings, quick=quick, own_plan=own_plan),
    }


def _totals(findings: Sequence[Finding]) -> str:
    """Count what was done, and say how likely a false alarm was if anything was left to chance."""
    tests, draws, pairs, measured = (
        sum(getattr(finding, name) for finding in findings)
        for name in ("tests", "draws", "neighbours", "replicates")
    )
    done = [_number(len(findings), "check")]
    done += [f"{_number(draws, 'draw')} of noise"] if draws else []
    done += (
        [f"{_number(pairs, 'pair')} of neighbouring data, measured {measured:,} times in all"]
        if pairs
        else []
    )
    text = f"{'; '.join(done)}."
    if tests:
        text += (
            f" {_number(tests, 'check')} rest on chance, at level {ALPHA:.0e} each: a sound "
            f"installation fails any of them with probability about {tests * ALPHA:.1e}."
        )
    return _wrapped(text)


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _wrapped(text: str) -> str:
    return fill(text, 96)


def _point(text: str) -> str:
    return fill(text, 96, initial_indent="  - ", subsequent_indent="    ")
