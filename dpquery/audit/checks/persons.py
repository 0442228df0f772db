"""Which rows of a person count: any, each as likely as the others; one of them has their number."""

import numpy as np

from dpquery.audit.cases.planned_cases import private_folder
from dpquery.audit.cases.specs_and_records import Record, write_csv
from dpquery.audit.findings import Finding
from dpquery.audit.statistics import ALPHA, chi_square
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

    Of the two rows of each person one has the number of that person's rows, of any year, and the
    other the last code: so many persons, and as many rows more, have one number each. The rows of a
    person are two different years of five, so the counts of the years spread 3/4 as much as those
    of as many independent rows: they are blown up by that, about their mean.
    """
    spec = parse(_SPEC, name="made-up", files={})
    records = [Record(f"p{k}", (year,)) for year in range(_YEARS) for k in range(_PERSONS)]
    with private_folder() as folder:
        write_csv(folder / "data.csv", records, spec)
        table = tabulate(folder / "data.csv", spec=spec, subsets=[(0, 1)])[0, 1][:_YEARS]
    years, numbers = table.sum(axis=1), table.sum(axis=0)
    expected = np.zeros_like(numbers)
    expected[[_YEARS - 1, -1]] = _PERSONS
    mean = 2 * _PERSONS / _YEARS
    spread = np.rint(mean + (years - mean) * np.sqrt((_YEARS - 1) / (_YEARS - 2))).astype(np.int64)
    p_value = chi_square(spread, np.full(_YEARS, mean))
    whole, of_numbered = bool((numbers == expected).all()), table[:, _YEARS - 1]
    p_numbered = chi_square(of_numbered, np.full(_YEARS, _PERSONS / _YEARS)) if whole else 0.0
    return Finding(
        "neighbours",
        f"{_PERSONS:,} persons of {_YEARS} rows, sorted by year, at most 2 of each",
        "of a person max_rows rows count, each as likely as the others, and one has their number",
        whole and min(p_value, p_numbered) >= ALPHA,
        f"{years.sum():,} rows count, and their years are even with a p-value of {p_value:.2g}; "
        f"{numbers[_YEARS - 1]:,} have the number {_YEARS}, evenly with {p_numbered:.2g}",
        tests=2,
    )
