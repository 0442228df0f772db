"""What the audit found, as tables and as JSON, and how far it goes."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill

from dpquery.audit.findings import Finding
from dpquery.audit.statistics import ALPHA
from dpquery.cli.grid import Grid
from dpquery.measurement.libraries import versions

SHOWN = {
    "supply": "The installed libraries are versions that the privacy argument was tested with, and "
    "their files are those that their wheels listed.",
    "sampler": "Both sources of noise draw from the exact discrete laws, at small and uneven "
    "scales too.",
    "lattice": "Records are counted and answered exactly, in whole numbers, and what is published "
    "follows from noisy whole numbers alone. The ledger is charged in full before the records "
    "are read, and once.",
    "residuals": "What is released differs from the exact answers by noise of the law and the "
    "scale that plan, unit and epsilon demand, worked out apart from the product.",
    "independence": "No rows and no releases share their noise, nor does any foretell another's.",
    "neighbours": "Nobody can tell neighbouring data sets apart better than the claim allows, as "
    "far as the draws reach: a mistake must be larger than the gap between bound and claim to be "
    "seen here, and the parts above see smaller ones.",
    "rap": "Relaxed adaptive projection chooses and measures with the chances and the noise that "
    "it is charged for.",
}
NOT_SHOWN = (
    "An error of a scale below 1 to 2 %, or events rarer than about 1 in 10,000: no number of "
    "draws that fits two minutes shows them.",
    "How long a run takes and how much memory it needs: both depend on the data.",
    "An operator who reads the disk or the memory, lets the data out, or restores an old ledger.",
    "Whether your spec is true: that the id column names persons, that nobody is in two datasets "
    "of different names, and that the domain was written without looking at the data.",
    "Specs and strategies other than those made up here; the same code makes all of them.",
    "Mistakes that this program and its audit share. The proofs and the code are open to read.",
)


def audit_grids(findings: Sequence[Finding]) -> list[Grid]:
    """Return a table for each claim of each part."""
    claims = dict.fromkeys((own.part, own.claim) for own in findings)
    grids = []
    for part, claim in claims:
        own = [one for one in findings if (one.part, one.claim) == (part, claim)]
        rows = [("ok" if one.passed else "FAILED", one.subject, one.evidence) for one in own]
        grids.append(Grid(f"{part}: {claim}", ("", "subject", "evidence"), tuple(rows)))
    return grids


def audit_closing(findings: Sequence[Finding]) -> str:
    """Return what it all shows, and what it cannot."""
    failed = [own for own in findings if not own.passed]
    parts = dict.fromkeys(own.part for own in findings)
    text = [f"{_totals(findings)}\n{', '.join(f'{name} {own}' for name, own in versions())}"]
    if failed:
        text.append(_wrapped(
            f"{len(failed)} of {len(findings)} checks FAILED: make no release with this "
            "installation. Run the audit again in a fresh environment with the locked versions; if "
            "it fails there too, report it with this output: it holds made-up data alone."
        ))  # fmt: skip
    else:
        shown = [_point(SHOWN[part]) for part in parts if part in SHOWN]
        text.append("\n".join(["What this shows, of these versions on this machine:", *shown]))
    text.append("\n".join(["What it cannot show:", *map(_point, NOT_SHOWN)]))
    return "\n\n".join(text)


def audit_json(findings: Sequence[Finding]) -> dict[str, object]:
    """Return everything, for programs."""
    tests = sum(own.tests for own in findings)
    return {
        "passed": all(own.passed for own in findings),
        "checks": len(findings),
        "failed": sum(not own.passed for own in findings),
        "tests": tests,
        "alpha": ALPHA,
        "false_alarm_at_most": tests * ALPHA,
        "draws": sum(own.draws for own in findings),
        "neighbours": sum(own.neighbours for own in findings),
        "versions": dict(versions()),
        "findings": [asdict(own) for own in findings],
        "cannot_show": list(NOT_SHOWN),
    }


def _totals(findings: Sequence[Finding]) -> str:
    tests = sum(own.tests for own in findings)
    draws, pairs = sum(own.draws for own in findings), sum(own.neighbours for own in findings)
    return _wrapped(
        f"{len(findings)} checks; {draws:,} draws of noise, {pairs:,} pairs of neighbouring data "
        f"measured. {tests} of the checks are statistical, each at level {ALPHA:.0e}: a sound "
        f"installation fails any of them with probability {tests * ALPHA:.1e} at most."
    )


def _wrapped(text: str) -> str:
    return fill(text, 96)


def _point(text: str) -> str:
    return fill(text, 96, initial_indent="  - ", subsequent_indent="    ")
