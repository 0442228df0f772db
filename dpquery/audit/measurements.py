"""Measurements and releases made many times over.

The curator's counting and query are used as they are; only ledger and files, which see nothing but
the noisy values, are left out.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path, PosixPath
from typing import IO

import numpy as np
import pyarrow.parquet as pq

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.audit.both_sums import laplace_limit
from dpquery.audit.cases import OUTSIDE, Case, Codes, Record, Size, write_csv
from dpquery.audit.planned_cases import PlannedPart, planned_case, private_folder, pure_squared_mu
from dpquery.commands import release as release_command
from dpquery.commands.defaults import MECHANISM_CHOICE, NOISE_CHOICE
from dpquery.measurement.accounting import UNIT, budget_cap
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.curator import LinearQuery, Query
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
_WIDE = 10_000  # rows; of measurements that are wider, fewer releases say as much
_WIDE_RELEASES = 4
_AMPLE = 10**9  # epsilon or rho


@dataclass(frozen=True, eq=False)
class MeasuredPart:
    """Noisy values of one part of a case, measured many times over."""

    planned: PlannedPart
    values: Ints  # (replicates, rows)
    exact: Numbers  # recomputed: (rows,) Python integers

    @property
    def residuals(self) -> Ints:
        """Noisy minus exact, in steps of the grid: (replicates, rows)."""
        return (self.values.astype(object) - self.exact).astype(np.int64)


def of_parts(
    parts: Sequence[PlannedPart], values: Ints, records: list[Record]
) -> tuple[MeasuredPart, ...]:
    """Return the values of each part of all values, (n, rows), of some records."""
    split = np.split(values, [parts[0].strategy.length], axis=1)[: len(parts)]
    return tuple(
        MeasuredPart(part, own, part.answers(records))
        for part, own in zip(parts, split, strict=True)
    )


@lru_cache(maxsize=32)
def neighbouring_measurements(case: Case, size: Size) -> tuple[tuple[MeasuredPart, ...], ...]:
    """Measure a case and its neighbour as often as the audit asks, once for every run of it.

    Of every part there are the values of both.
    """
    parts = planned_case(case, size)
    query = query_of(parts[0])
    replicates = min(size.replicates, max(_FEWEST, _MOST_VALUES // parts[0].strategy.length))
    both = []
    for records in neighbouring_records(parts[0]):
        tables = dict(tables_of(query, records))
        noisy = [query.noisy(dict(tables), draft=UnstoredParts()) for _ in range(replicates)]
        both.append(of_parts(parts, np.stack(noisy), records))
    return tuple(zip(*both, strict=True))


def query_of(planned: PlannedPart) -> LinearQuery:
    """Return the linear query that a release of a case measures."""
    plan, spec = plan_and_spec(planned.plan, Path("dpquery.plan"))
    request = ReleaseRequest(planned.case.epsilon, spec.privacy.delta, planned.case.noise, (), 1)
    return linear_mechanism(plan, spec, request).query


def tables_of(query: LinearQuery, records: list[Record]) -> Mapping[Subset, Ints]:
    """Return the tables that the curator counts in a file of records."""
    with private_folder() as folder:
        write_csv(folder / "data.csv", records, query.spec)
        return tables_in(folder / "data.csv", query)


def tables_in(data: Path, query: Query) -> Mapping[Subset, Ints]:
    """Return the tables that the curator counts in some data."""
    classes = query.compiled.classes
    return tabulate(data, spec=query.spec, subsets=query.subsets, classes=classes)


def neighbouring_records(planned: PlannedPart) -> tuple[list[Record], list[Record]]:
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


class Watched(PosixPath):
    """A path that notes what a ledger says is spent whenever the file is opened."""

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
class WatchedRelease:
    """A release, and what the ledger said while it was made, in units of 1e-18."""

    folder: Path  # it lies there
    values: Ints  # what was committed
    paid: int  # what was charged
    missing: tuple[int, ...]  # what of that was not yet on record whenever the data was opened
    whole: bool  # whether the ledger verifies, and the release is in it

    @classmethod
    def made(
        cls,
        folder: Path,
        number: int,
        *,
        epsilon: Fraction,
        noise: str = NOISE_CHOICE,
        mechanism: str = MECHANISM_CHOICE,
        again: bool = False,
    ) -> "WatchedRelease":
        """Make the release of a number as the command does, of the data and plan in a folder."""
        ledger = folder / "state" / "ledger.db"
        data, before = Watched.of(folder / "data.csv", ledger), spent(ledger)
        report = release_command.release(
            data,
            plan_path=folder / "dpquery.plan",
            ledger_path=ledger,
            out=folder / f"release{number}",
            epsilon=epsilon,
            noise=noise,
            mechanism=mechanism,
            release_number=number,
            replace=again,
        )
        after = spent(ledger)
        with Ledger.open(ledger, create=False) as opened:
            whole = opened.verify([report.directory]) == opened.history()[-1].head
        missing = tuple(after - seen for seen in data.seen)
        return cls(report.directory, report.measured.values, after - before, missing, whole)

    @property
    def rho(self) -> Fraction:
        """What was charged, as the rho of zCDP."""
        return Fraction(self.paid, UNIT)

    @property
    def early(self) -> bool:
        """Whether all was on record whenever the records were read, and stays there.

        The data is opened for its header first, which must be sound before anything is charged.
        """
        return len(self.missing) > 1 and not any(self.missing[1:]) and self.whole

    @property
    def free(self) -> bool:
        """Whether nothing was charged, and no data opened."""
        return not self.paid and not self.missing


@dataclass(frozen=True, eq=False)
class RepeatedReleases:
    """The releases of one case."""

    parts: tuple[MeasuredPart, ...]  # the values of every release, as its file has them
    made: tuple[WatchedRelease, ...]
    again: WatchedRelease  # the first one, made once more
    manifest: Json  # release.json of the first one
    answers: Floats  # (estimate, std_error) of all queries in the first one: (queries, 2)
    errors: Floats  # (rmse, max_std_error) of every item in its errors.parquet: (items, 2)

    @property
    def planned(self) -> PlannedPart:
        """The case and its plan."""
        return self.parts[0].planned


@lru_cache(maxsize=32)
def repeated_releases(case: Case, size: Size) -> RepeatedReleases:
    """Release a case as often as the audit asks, once for every run of it."""
    parts = planned_case(case, size)
    planned = parts[0]
    wide = planned.strategy.length > _WIDE
    number = min(size.releases, _WIDE_RELEASES) if wide else size.releases
    with private_folder() as folder:
        write_csv(folder / "data.csv", planned.records, planned.spec)
        (folder / "dpquery.plan").write_bytes(planned.plan)
        register(planned, folder / "state" / "ledger.db")
        release = partial(WatchedRelease.made, folder, epsilon=case.epsilon, noise=case.noise)
        made = tuple(release(k) for k in range(1, 1 + number))
        again, first = release(1, again=True), made[0].folder
        values = np.stack([values_of(each.folder) for each in made])
        files = (first / f"{item.name}.parquet" for item in planned.spec.items)
        return RepeatedReleases(
            of_parts(parts, values, planned.records),
            made,
            again,
            mapping(json.loads((first / "release.json").read_text(encoding="utf-8"))),
            np.concatenate([_columns(file, "estimate", "std_error") for file in files]),
            _columns(first / "errors.parquet", "rmse", "max_std_error"),
        )


def register(planned: PlannedPart, ledger: Path) -> None:
    """Put a case's dataset on record in a new ledger, with caps that no audit reaches."""
    dataset, privacy = planned.spec.dataset, planned.spec.privacy
    cap = replace(budget_cap(planned.spec.budget, privacy), units=_AMPLE * UNIT)
    parent = parent_cap(dataset, privacy)
    if parent is not None:
        parent = replace(parent, cap=replace(parent.cap, units=_AMPLE * UNIT))
    with Ledger.open(ledger, create=True) as opened:
        opened.register(dataset.id, cap, parent=parent)


def spent(ledger: Path) -> int:
    """Return what a ledger says is spent, as any other process would see it.

    It knows one dataset, and perhaps a parent, which is to be charged the same: the lesser counts.
    """
    if not ledger.exists():
        return 0
    with Ledger.open(ledger, create=False) as opened:
        return min(status.account.spent for status in opened.status())


def noise_in(manifest: Json, planned: PlannedPart) -> Json:
    """Return what a manifest says of the noise of a part."""
    noise = mapping(manifest["noise"])
    return noise if not planned.first else mapping(noise[planned.beside])


def units(planned: PlannedPart, manifest: Json) -> tuple[int, int]:
    """Return the least and the most that a part of a release may charge, in units of 1e-18.

    The least is what its noise costs, from the scale in the manifest and the recomputed
    sensitivity; the most is the epsilon, rho or squared mu of the case. Where rho or squared mu
    adds up, Laplace noise costs at least what records of the worst cells do, and at most what
    epsilon alone implies.
    """
    scale = Fraction(float(str(noise_in(manifest, planned)["scale"])))
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


def _columns(file: Path, *names: str) -> Floats:
    table = pq.read_table(file, columns=list(names))
    return np.stack([table[name].to_numpy() for name in names], axis=1)
