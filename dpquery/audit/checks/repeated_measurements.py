"""One measurement repeated many times, of made-up data and of a neighbour of it.

The curator's counting and query are used as they are; only ledger and files, which see nothing but
the noisy values, are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from dpquery.arrays import Ints, Numbers
from dpquery.audit.cases.dense_strategy import Cell
from dpquery.audit.cases.planned_cases import PlannedCase, planned_case, private_folder
from dpquery.audit.cases.specs_and_records import OUTSIDE, Case, Codes, Record, Size, write_csv
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.curator import LinearQuery
from dpquery.measurement.ledger.files import MeasurementFile
from dpquery.measurement.ledger.partial_measurement import PartialMeasurement
from dpquery.mechanisms.linear import linear_mechanism
from dpquery.mechanisms.release_content import ReleaseRequest
from dpquery.plan_file.plan import plan_and_spec
from dpquery.strategy.algebra.subsets import Subset

_FEWEST, _MOST_VALUES = 200, 400_000  # replicates, values
_MANY_ROWS = 50  # of the one person more


@dataclass(frozen=True, eq=False)
class RepeatedMeasurements:
    """Noisy values of two neighbouring data sets.

    Attributes:
        planned: the case and its plan.
        values: of the made-up data: (replicates, rows).
        exact: its answers, recomputed: (rows,) Python integers.
        other_values: of its neighbour.
        other_exact: likewise.
    """

    planned: PlannedCase
    values: Ints
    exact: Numbers
    other_values: Ints
    other_exact: Numbers

    @property
    def residuals(self) -> Ints:
        """Noisy minus exact of both, in steps of the grid: (2 replicates, rows)."""
        residuals = self.values.astype(object) - self.exact
        other_residuals = self.other_values.astype(object) - self.other_exact
        return np.concatenate([residuals, other_residuals]).astype(np.int64)


@lru_cache(maxsize=32)
def repeated_measurements(case: Case, size: Size) -> RepeatedMeasurements:
    """Measure a case and its neighbour as often as the audit asks, once for every run of it."""
    planned = planned_case(case, size)
    query = query_of(planned)
    records, other_records = neighbouring_records(planned)
    replicates = min(size.replicates, max(_FEWEST, _MOST_VALUES // planned.strategy.length))
    values = _noisy(query, tables_of(query, records), replicates)
    other_values = _noisy(query, tables_of(query, other_records), replicates)
    return RepeatedMeasurements(
        planned, values, planned.answers(records), other_values, planned.answers(other_records)
    )


def query_of(planned: PlannedCase) -> LinearQuery:
    """Return the linear query that a release of a case measures."""
    plan, spec = plan_and_spec(planned.plan, Path("dpquery.plan"))
    request = ReleaseRequest(planned.case.epsilon, spec.privacy.delta, planned.case.noise, (), 1)
    return linear_mechanism(plan, spec, request).query


def tables_of(query: LinearQuery, records: list[Record]) -> Mapping[Subset, Ints]:
    """Return the tables that the curator counts in a file of records."""
    with private_folder() as folder:
        write_csv(folder / "data.csv", records, query.spec)
        return tabulate(
            folder / "data.csv",
            spec=query.spec,
            subsets=query.subsets,
            classes=query.compiled.classes,
        )


def neighbouring_records(planned: PlannedCase) -> tuple[list[Record], list[Record]]:
    """Return two neighbouring data sets whose answers are as far apart as any.

    The one person more has many rows, the first of them outside if it can be; all others are in
    the cell whose records move the answers furthest. How many rows persons have is no code of a
    record.
    """
    records, spec = planned.records, planned.spec
    in_data = len(spec.domain.in_data)
    cells = [_codes_in(planned, cell)[:in_data] for cell in planned.noise.worst]
    many = 1 if spec.privacy.person is None else _MANY_ROWS

    def with_rows_in(codes: Codes) -> list[Record]:
        more = [Record("newcomer", codes)] * many
        dropped = many > 1 and any(column.drops for column in spec.domain.columns)
        outside = [Record("newcomer", tuple(OUTSIDE for _ in codes))] * dropped
        return [*records[:50], *outside, *more, *records[50:]]

    if spec.privacy.neighbours == "replace" and len(cells) > 1:
        return with_rows_in(cells[0]), with_rows_in(cells[1])
    return records, with_rows_in(cells[0])


def _codes_in(planned: PlannedCase, cell: Cell) -> Codes:
    """Return the first code of every class of a cell."""
    pairs = zip(planned.strategy.classes, cell, strict=True)
    return tuple(classes.index(number) for classes, number in pairs)


def _noisy(query: LinearQuery, tables: Mapping[Subset, Ints], replicates: int) -> Ints:
    draft = PartialMeasurement(Path("no ledger"), _no_file)
    return np.stack([query.noisy(dict(tables), draft=draft) for _ in range(replicates)])


def _no_file(number: int) -> MeasurementFile:
    """Refuse to store parts: a linear measurement has one."""
    raise ValueError(f"part {number} of a measurement that has none")
