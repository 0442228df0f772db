"""Which rows of a person count: any, each as likely as the others; one of them has their number."""

import numpy as np
import pyarrow as pa

from dpquery.arrays import Ints
from dpquery.audit.cases.data_sources import writers
from dpquery.audit.cases.planned_cases import private_folder
from dpquery.audit.findings import Finding
from dpquery.audit.statistics import ALPHA, chi_square, combined
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.spec.parsing.spec import parse

_PERSONS, _YEARS = 6_000, 5
_SPEC = f"""\
dataset: {{id: made-up}}
privacy: {{unit: {{person: id, max_rows: 2}}}}
budget: {{epsilon: 1}}
domain: {{year: {{range: [1, {_YEARS}]}}}}
workload:
  - {{name: years, product: {{year: identity}}}}
  - {{name: rows, rows_per_person: {{up_to: {_YEARS + 1}}}}}
"""


def rows_of_persons() -> Finding:
    """Count a panel that is sorted by year, and compare the years of the rows that count.

    Every kind of source has the panel, and the p-values of all of them are taken as one test.
    Of the two rows of each person one has the number of that person's rows, of any year, and the
    other the last code: so many persons, and as many rows more, have one number each. The rows of a
    person are two different years of five, so the counts of the years spread 3/4 as much as those
    of as many independent rows: they are blown up by that, about their mean.
    """
    spec = parse(_SPEC, name="made-up", files={})
    years = np.repeat(np.arange(1, _YEARS + 1), _PERSONS)
    panel = pa.table({"year": years, "id": np.tile(np.arange(_PERSONS), _YEARS)})
    of_years, of_numbers, kinds = [], [], writers()
    for write in kinds.values():
        with private_folder() as folder:
            location = write(panel, folder)
            table = tabulate(location, spec=spec, subsets=[(0, 1)])[0, 1][:_YEARS]
        p_value, p_numbered = _even(table)
        of_years.append(p_value)
        of_numbers.append(p_numbered)
    p_value, p_numbered = combined(of_years), combined(of_numbers)
    return Finding(
        "neighbours",
        f"{_PERSONS:,} persons of {_YEARS} rows, sorted by year, at most 2 of each: "
        + ", ".join(kinds),
        "of a person max_rows rows count, each as likely as the others, and one has their number",
        min(p_value, p_numbered) >= ALPHA,
        f"the years of the rows that count are even with a p-value of {p_value:.2g}, and of those "
        f"that have the number {_YEARS} with {p_numbered:.2g}",
        tests=2,
    )


def _even(table: Ints) -> tuple[float, float]:
    """Return p-values of all years being as likely: of the rows that count, of those numbered.

    Both are 0 where not every person has max_rows rows and one number. table: (years, numbers).
    """
    years, numbers = table.sum(axis=1), table.sum(axis=0)
    expected = np.zeros_like(numbers)
    expected[[_YEARS - 1, -1]] = _PERSONS
    if not (numbers == expected).all():
        return 0.0, 0.0
    mean = 2 * _PERSONS / _YEARS
    spread = np.rint(mean + (years - mean) * np.sqrt((_YEARS - 1) / (_YEARS - 2))).astype(np.int64)
    of_numbered = table[:, _YEARS - 1]
    return (
        chi_square(spread, np.full(_YEARS, mean)),
        chi_square(of_numbered, np.full(_YEARS, _PERSONS / _YEARS)),
    )
