"""The parts of the audit, and how they are run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from tempfile import gettempdir

from dpquery.audit.both_sums import charges
from dpquery.audit.cases import FULL, QUICK, Case, Size
from dpquery.audit.discoveries import discoveries
from dpquery.audit.end_to_end import independence, lattice, neighbours, residuals
from dpquery.audit.installation import sampler, supply
from dpquery.audit.planned_cases import private_folder
from dpquery.audit.rounds_checks import adaptive, rap
from dpquery.audit.statistics import MOST_TESTS, TO_ITS_END, Finding
from dpquery.exceptions import DpqueryError, LedgerError, SpecError
from dpquery.measurement.ledger.store import check_local
from dpquery.progress import current_reporter, reporting

Part = Callable[[Size], Iterator[Finding]]

PARTS: dict[str, Part] = {
    "supply": supply,
    "sampler": sampler,
    "charges": charges,
    "lattice": lattice,
    "residuals": residuals,
    "independence": independence,
    "neighbours": neighbours,
    "discoveries": discoveries,
    "rap": rap,
    "adaptive": adaptive,
}
_ERRORS = (DpqueryError, ArithmeticError, LookupError, MemoryError, OSError, TypeError, ValueError)
OF_PLANS = ("lattice", "residuals", "independence", "neighbours")


def audit(
    parts: Sequence[str] = (), *, quick: bool = False, cases: tuple[Case, ...] = ()
) -> tuple[Finding, ...]:
    """Run some parts of the audit, or all, and return their findings.

    Without names of parts, of PARTS, all are run. A quick audit draws less: mistakes then must be
    larger to be seen. On cases of a user's own plan only the parts that look at plans are run.

    Raises:
        SpecError: there is no such part, or no place where its made-up data can lie.
    """
    unknown = [name for name in parts if name not in PARTS]
    if unknown:
        raise SpecError(f"no part is called {unknown[0]!r}; choose from {', '.join(PARTS)}")
    # refuse a place for made-up data and ledgers in which no ledger may lie
    try:
        with private_folder() as folder:
            (folder / "data.csv").write_bytes(b"made up")
            check_local(folder / "ledger.db")
    except (OSError, LedgerError) as error:
        raise SpecError(
            f"nothing can be kept in {gettempdir()}, where the audit puts its made-up data: "
            f"{type(error).__name__}; set TMPDIR to a local disk"
        ) from None
    size = replace(QUICK if quick else FULL, user_cases=cases)
    names = OF_PLANS if cases else tuple(PARTS)
    findings: list[Finding] = []
    reporter = current_reporter()
    with reporting(None):  # of the releases that are made to be looked at
        for name in dict.fromkeys(parts or names):
            reporter(f"{name}: starting")
            for finding in _to_its_end(name, size):
                findings.append(replace(finding, part=name))
                reporter(f"{name}: {finding.subject}")
    if sum(finding.tests for finding in findings) > MOST_TESTS:
        raise ValueError(f"more than {MOST_TESTS} tests: false alarms pass one in a million")
    return tuple(findings)


def _to_its_end(name: str, size: Size) -> Iterator[Finding]:
    """Yield the findings of a part; an error is one too, and may be shown: all data is made up."""
    try:
        yield from PARTS[name](size)
    except _ERRORS as error:
        yield Finding("the whole part", TO_ITS_END, False, f"{type(error).__name__}: {error}")
