"""The facts on derived items: for release.json, for statement.md and for the screen."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpquery.spec.model import Spec

READING_DERIVED = """\
Derived items are made from the noisy answers alone and take no budget. Their intervals hold with \
the noise of all answers together: adding up squares of `std_error` of answers would not, since \
answers share noise. A row that is lost in noise has no estimate, and `reason` says why."""

QUANTILES_IN_BINS = (
    "A quantile of values in bins is interpolated within its bin, as if values were spread evenly "
    "there: its interval is of that figure, and says nothing of how the values lie in the bin."
)


@dataclass(frozen=True)
class DerivedFacts:
    """A statistic derived from items, and its file.

    Attributes:
        name: the derived item's.
        file: of its rows.
        rows: how many there are.
        kind: share, ratio, mean, difference, rate or quantiles.
        definition: how it is worked out, in words.
        description: what it shows, for its readers.
    """

    name: str
    file: str
    rows: int
    kind: str
    definition: str
    description: str


def derived_facts(spec: Spec) -> tuple[DerivedFacts, ...]:
    """Return the derived items with their files."""
    return tuple(
        DerivedFacts(
            item.name,
            f"{item.name}.parquet",
            item.size,
            item.statistic.kind,
            item.definition,
            item.description,
        )
        for item in spec.derived
    )


def derived_lines(items: Sequence[DerivedFacts]) -> list[str]:
    """Return the lines of the statement on derived items; none where there are none."""
    if not items:
        return []
    return [*(f"- `{item.file}`: {item.definition}." for item in items), "", READING_DERIVED]


def derived_note(items: Sequence[DerivedFacts]) -> str:
    """Return one line for the error report: which items are derived."""
    named = ", ".join(f"{item.name} ({item.kind})" for item in items)
    return f"derived from the answers, in files of their own: {named}"
