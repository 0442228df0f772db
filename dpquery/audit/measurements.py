"""Measurements and releases made many times over.

The curator's counting and query are used as they are; only ledger and files, which see nothing but
the noisy values, are left out.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path, PosixPath
from typing import IO

import numpy as np
import pyarrow.parquet as pq

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.audit.both_sums import laplace_limit
from dpquery.audit.cases import OUTSIDE, Case, Codes, Record, Size, write_csv
from dpquery.audit.planned_cases import PlannedCase, planned_case, private_folder, pure_squared_mu
from dpquery.commands import release as release_command
from dpquery.measurement.accounting import UNIT, budget_cap
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.curator import LinearQuery
from dpquery.measurement.ledger.caps import parent_cap
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import PartialMeasurement
from dpquery.mechanisms.content import ReleaseRequest
from dpquery.mechanisms.linear import linear_mechanism
from dpquery.plan_file.plan import plan_and_spec
from dpquery.strategy.algebra.subsets import Subset
from dpquery.untrusted.json_values import Json, mapping

_FEWEST, _MOST_VALUES = 200, 400_000  # replicates, values
_MANY_ROWS = 50  # of the one person more


@dataclass(frozen=True, eq=False)
class RepeatedMeasurements:
    """Noisy values of two neighbouring data sets."""

    planned: PlannedCase  # the case and its plan
    values: Ints  # of the made-up data: (replicates, rows)
    exact: Numbers  # its answers, recomputed: (rows,) Python integers
    other_values: Ints  # of its neighbour
    other_exact: Numbers  # likewise

    @property
    def residuals(self) -> Ints:
        """Noisy minus exact of both, in steps of the grid: (2 replicates, rows)."""
        residuals = self.values.astype(object) - self.exact
        other_residuals = self.other_values.astype(object) - self.other_exact
        return np.concatenate([residuals, other_residuals]).astype(np.int64)


def repeated_measurements(case: Case, size: Size) -> RepeatedMeasurements:
    """Return the measurements of a case and its neighbour, but for those of squared weights."""
    return measured_parts(case, size)[0]


@lru_cache(maxsize=32)
def measured_parts(case: Case, size: Size) -> tuple[RepeatedMeasurements, ...]:
    """Measure a case and its neighbour as often as the audit asks, once for every run of it."""
    planned = planned_case(case, size)
    query = query_of(planned)
    replicates = min(size.replicates, max(_FEWEST, _MOST_VALUES // planned.strategy.length))
    measured: list[list[Numbers]] = [[] for _ in planned.parts]
    for rows in neighbouring_records(planned):
        tables = dict(tables_of(query, rows))
        noisy = [query.noisy(dict(tables), draft=UnstoredParts()) for _ in range(replicates)]
        values = planned.of_parts(np.stack(noisy))
        for part, of_part, values_of_part in zip(planned.parts, measured, values, strict=True):
            of_part += [values_of_part, part.answers(rows)]
    pairs = zip(planned.parts, measured, strict=True)
    return tuple(RepeatedMeasurements(part, *of_part) for part, of_part in pairs)


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
    every = [zip(planned.strategy.classes, cell, strict=True) for cell in planned.noise.worst]
    cells = [tuple(classes.index(number) for classes, number in pairs)[:in_data] for pairs in every]
    many = 1 if spec.privacy.person is None else _MANY_ROWS

    def with_rows_in(codes: Codes) -> list[Record]:
        more = [Record("newcomer", codes, weight="1e12")] * many
        dropped = many > 1 and any(column.drops for column in spec.domain.columns)
        outside = [Record("newcomer", tuple(OUTSIDE for _ in codes))] * dropped
        return [*records[:50], *outside, *more, *records[50:]]

    if spec.privacy.neighbours == "replace" and len(cells) > 1:
        return with_rows_in(cells[0]), with_rows_in(cells[1])
    return records, with_rows_in(cells[0])


class UnstoredParts(PartialMeasurement):
    """A draft that stores nothing: runs of the audit are never continued."""

    def __init__(self) -> None:
        """Take no folder: there are no files."""

    def parts(self) -> list[Ints]:
        """Return none."""
        return []

    def append(self, values: Ints) -> None:
        """Store nothing."""


_WIDE = 10_000  # rows; of measurements that are wider, fewer releases say as much
_WIDE_RELEASES = 4
_ERRORS = ("rmse", "max_std_error")
_AMPLE = 10**9  # epsilon or rho


class Watched(PosixPath):
    """A path that notes what a ledger says is spent whenever the file is opened.

    It is opened for its header first, which must be sound before anything is charged.
    """

    ledger: Path
    seen: list[int]

    @classmethod
    def of(cls, path: Path, ledger: Path) -> "Watched":
        """Watch a path, and a ledger which need not be there yet."""
        watched = cls(path)
        watched.ledger, watched.seen = ledger, []
        return watched

    def open(self, mode: str = "r", *args: object, **kwargs: object) -> IO[bytes]:  # type: ignore[override]
        """Note what is spent, and open the file."""
        self.seen.append(spent(self.ledger))
        return Path(self).open("rb")


@dataclass(frozen=True, eq=False)
class Charge:
    """What the ledger recorded during one release, in units of 1e-18."""

    before: int  # what was spent before it
    seen: tuple[int, ...]  # what was spent each time that the data was opened
    after: int  # what was spent after it
    again: int  # what was spent after it was made again
    opened_again: int  # how often the data was opened then


@dataclass(frozen=True, eq=False)
class RepeatedReleases:
    """The releases of one case."""

    planned: PlannedCase  # the case and its plan
    values: Ints  # the noisy values of every release, as its file has them: (releases, rows)
    exact: Numbers  # the exact answers, recomputed: (rows,) Python integers
    manifest: Json  # release.json of the first one
    charge: Charge  # what the ledger recorded then
    answers: Floats  # (estimate, std_error) of all queries in the first one: (queries, 2)
    errors: Floats  # (rmse, max_std_error) of every item in its errors.parquet: (items, 2)
    beside: "RepeatedReleases | None" = None  # the same with the values of what is beside

    @property
    def parts(self) -> "tuple[RepeatedReleases, ...]":
        """It, and that of what is beside."""
        return (self,) if self.beside is None else (self, self.beside)

    @property
    def noise(self) -> Json:
        """What the manifest says of the noise on the values."""
        noise = mapping(self.manifest["noise"])
        return noise if self.planned.first == 0 else _beside(noise)

    @property
    def residuals(self) -> Ints:
        """Noisy minus exact, in steps of the grid: (releases, rows)."""
        return (self.values.astype(object) - self.exact).astype(np.int64)


@lru_cache(maxsize=32)
def repeated_releases(case: Case, size: Size) -> RepeatedReleases:
    """Release a case as often as the audit asks, once for every run of it."""
    planned = planned_case(case, size)
    wide = planned.strategy.length > _WIDE
    with private_folder() as folder:
        data, ledger = folder / "data.csv", folder / "state" / "ledger.db"
        write_csv(data, planned.records, planned.spec)
        (folder / "dpquery.plan").write_bytes(planned.plan)
        register(planned, ledger)
        charge = _first(planned, folder)
        for number in range(2, 1 + (min(size.releases, _WIDE_RELEASES) if wide else size.releases)):
            release_once(planned, folder, data, number)
        folders = sorted(folder.glob("release*/"), key=lambda folder: int(folder.name[7:]))
        values = np.stack([values_of(folder) for folder in folders])
        manifest = mapping(json.loads((folders[0] / "release.json").read_text(encoding="utf-8")))
        answers, errors = (
            _answers(planned, folders[0]),
            _columns(folders[0] / "errors.parquet", *_ERRORS),
        )
    halves = planned.of_parts(values)
    first, *others = (
        RepeatedReleases(
            part, of_part, part.answers(planned.records), manifest, charge, answers, errors
        )
        for part, of_part in zip(planned.parts, halves, strict=True)
    )
    return replace(first, beside=others[0]) if others else first


def _beside(noise: Json) -> Json:
    """Return what a manifest says of the noise on what is measured beside weights."""
    return mapping(noise["squares" if "squares" in noise else "replicates"])


def register(planned: PlannedCase, ledger: Path) -> None:
    """Put a case's dataset on record in a new ledger, with caps that no audit reaches."""
    dataset, privacy = planned.spec.dataset, planned.spec.privacy
    cap = replace(budget_cap(planned.spec.budget, privacy), units=_AMPLE * UNIT)
    parent = parent_cap(dataset, privacy)
    if parent is not None:
        parent = replace(parent, cap=replace(parent.cap, units=_AMPLE * UNIT))
    with Ledger.open(ledger, create=True) as opened:
        opened.register(dataset.id, cap, parent=parent)


def release_once(
    planned: PlannedCase, folder: Path, data: Path, number: int, *, again: bool = False
) -> Path:
    """Make one release as the command does, and return its folder."""
    out = folder / f"release{number}"
    release_command.release(
        data,
        plan_path=folder / "dpquery.plan",
        ledger_path=folder / "state" / "ledger.db",
        out=out,
        epsilon=planned.case.epsilon,
        noise=planned.case.noise,
        release_number=number,
        replace=again,
    )
    return out


def _first(planned: PlannedCase, folder: Path) -> Charge:
    """Make the first release, watching the ledger, and make it again."""
    ledger = folder / "state" / "ledger.db"
    data = Watched.of(folder / "data.csv", ledger)
    before = spent(ledger)
    release_once(planned, folder, data, 1)
    seen, after = tuple(data.seen), spent(ledger)
    data.seen = []
    release_once(planned, folder, data, 1, again=True)
    return Charge(before, seen, after, spent(ledger), len(data.seen))


def spent(ledger: Path) -> int:
    """Return what a ledger says is spent, as any other process would see it.

    It knows one dataset, and perhaps a parent, which is to be charged the same: the lesser counts.
    """
    if not ledger.exists():
        return 0
    with Ledger.open(ledger, create=False) as opened:
        return min(status.account.spent for status in opened.status())


def units(planned: PlannedCase, manifest: Json) -> tuple[int, int]:
    """Return the least and the most that a release of a case may charge, in units of 1e-18.

    The least is what its noise costs, from the scale in the manifest and the recomputed
    sensitivity; the most is the epsilon, rho or squared mu of the case. Where rho or squared mu
    adds up, Laplace noise costs at least what records of the worst cells do, and at most what
    epsilon alone implies.
    """
    noise = mapping(manifest["noise"])
    if planned.beside is not None:
        alone, beside = replace(planned, beside=None), planned.beside
        pairs = [units(alone, manifest), units(beside, {"noise": dict(_beside(noise))})]
        least, most = (sum(ends) for ends in zip(*pairs, strict=True))
        return least - 1, most  # each of both is rounded up
    scale = Fraction(float(str(noise["scale"])))
    exact, amount = Fraction(planned.noise.sensitivity), planned.noise.amount
    if planned.case.noise == "gaussian":
        most = amount * (1 + Fraction(1, 10**9))  # worked out in floats, to some twelve digits
        halves = 1 if planned.noise.law.noise == "rounded" else 2
        return math.ceil(exact / (halves * scale**2) * UNIT), math.ceil(most * UNIT)
    least, most = exact / scale, amount
    counted = planned.spec.budget.counted
    if counted != "pure":
        put, *taken = (planned.strategy.column(cell) for cell in planned.noise.worst)
        privacy = planned.spec.privacy
        steps = privacy.steps ** (1 + planned.first)
        exact_moves = (privacy.max_rows * steps * (put - sum(taken))).tolist()
        moves = [abs(move) >> planned.strategy.shift for move in exact_moves]  # answers are floored
        hair = Fraction(1, 10**6)  # costs are worked out in floats
        cost, most = laplace_limit(moves, float(scale)), most**2 / 2
        if counted == "gdp":
            whole = pure_squared_mu(float(amount))
            # each row has at most the privacy loss of the mu with (pi / 2) (move / scale)^2
            squared = math.pi / 2 * math.fsum((move / float(scale)) ** 2 for move in moves)
            cost, most = min(whole, squared), Fraction(whole) * (1 + hair)
        least = Fraction(cost) * (1 - hair)
    return math.ceil(least * UNIT), math.ceil(most * UNIT)


def values_of(out: Path) -> Ints:
    """Return the noisy values that lie in a release folder, in order."""
    column = pq.read_table(out / "measurements.parquet", columns=["value"])["value"]
    if str(column.type) != "int64" or column.null_count:
        raise ValueError(f"measurements.parquet holds {column.type}, and not whole numbers alone")
    return np.asarray(column.to_numpy())


def _answers(planned: PlannedCase, out: Path) -> Floats:
    files = (out / f"{item.name}.parquet" for item in planned.spec.items)
    return np.concatenate([_columns(file, "estimate", "std_error") for file in files])


def _columns(file: Path, *names: str) -> Floats:
    table = pq.read_table(file, columns=list(names))
    return np.stack([table[name].to_numpy() for name in names], axis=1)
