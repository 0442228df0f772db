"""The parts of the audit that look at whole releases: lattice, residuals, independence."""

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.audit.cases.dense_strategy import Cell, DenseRows, DenseStrategy
from dpquery.audit.cases.planned_cases import PlannedCase, cases
from dpquery.audit.cases.query_classes import predicate_matrices
from dpquery.audit.cases.specs_and_records import Size
from dpquery.audit.checks.dependence import dependence, repeats
from dpquery.audit.checks.processes import two_processes
from dpquery.audit.checks.repeated_measurements import query_of, repeated_measurements, tables_of
from dpquery.audit.checks.repeated_releases import RepeatedReleases, repeated_releases, units
from dpquery.audit.findings import Finding
from dpquery.audit.statistics import ALPHA, combined, goodness_of_fit
from dpquery.measurement.accounting import UNIT, units_text
from dpquery.strategy.algebra.subsets import Subset
from dpquery.untrusted.json_values import mapping

_SCALE_SLACK = 1e-6  # of the scale, above what is needed: it is rounded up to a float
_FIGURES_SLACK = 1e-6
ON_GRID = "values are whole steps of the grid"
_SMALL = 4_000_000  # entries of the matrices by which estimates are worked out apart
_HUGE = (1 << 33) + 12_345  # records in a cell, of three: fewer than the 2^36 that may be
_GROUP = 2_000  # values that are tested against the law together


def lattice(size: Size) -> Iterator[Finding]:
    """Compare answers before and after the noise with those computed in Python integers."""
    for case in cases(size):
        releases = repeated_releases(case, size)
        yield _exactness(releases.planned)
        yield _grid(releases)
        yield _charge(releases)


def residuals(size: Size) -> Iterator[Finding]:
    """Test released minus exact answers against the noise distribution at the recomputed scale."""
    for case in cases(size):
        releases = repeated_releases(case, size)
        yield _scale(releases)
        yield _law(releases.planned, releases.residuals, "released")
        if case.repeated:
            measurements = repeated_measurements(case, size)
            yield _law(measurements.planned, measurements.residuals, "measured")


def independence(size: Size) -> Iterator[Finding]:
    """Test that noise is independent between rows and releases, and never used twice."""
    for case in cases(size):
        releases = repeated_releases(case, size)
        yield _independent(releases.planned, releases.residuals, "releases")
        p = repeats(releases.residuals, releases.planned.noise.law)
        yield Finding(
            "independence",
            releases.planned.subject,
            "no noise is used twice",
            p > ALPHA,
            f"p = {p:.2g}, {releases.values.shape[0]} releases",
            tests=1,
        )
        if case.repeated:
            measurements = repeated_measurements(case, size)
            yield _independent(measurements.planned, measurements.residuals, "replicates")
        if case.apart and not size.quick:
            yield two_processes(releases.planned)


def _exactness(planned: PlannedCase) -> Finding:
    """Compare the curator's counts and exact answers with those of the audit."""
    query = query_of(planned)
    records = planned.records
    tables = tables_of(query, records)
    cells = planned.cells(records)
    counts = all(np.array_equal(tables[b], _table(cells, planned.strategy, b)) for b in tables)
    huge = Counter(dict.fromkeys(planned.strategy.cells[::7][:3], _HUGE)) + cells
    huge_tables = {b: _table(huge, planned.strategy, b) for b in tables}
    pairs = ((dict(tables), cells), (huge_tables, huge))
    answers = all(
        np.array_equal(query._exact(given), planned.strategy.answers(counted))
        for given, counted in pairs
    )
    return Finding(
        "lattice",
        planned.subject,
        "records are counted, and answered before the noise, exactly",
        counts and answers,
        f"{'the same' if counts and answers else 'NOT the same'} in Python integers, for "
        f"{len(records)} records and for {3 * _HUGE:,} more",
    )


def _table(cells: Counter[Cell], strategy: DenseStrategy, b: Subset) -> Ints:
    table = np.zeros([strategy.shape[i] for i in b], dtype=np.int64)
    for cell, count in cells.items():
        table[tuple(cell[i] for i in b)] += count
    return table


def _grid(releases: RepeatedReleases) -> Finding:
    """Compare published estimates and errors with least squares on the measured integers."""
    shift = int(str(mapping(releases.manifest["noise"])["shift"]))
    same_grid = shift == releases.planned.strategy.shift
    strategy, spec = releases.planned.strategy, releases.planned.spec
    small = (strategy.length + spec.queries) * len(strategy.cells) <= _SMALL
    worst, claim, compared = 0.0, ON_GRID, "too many estimates to work out apart"
    if small:
        claim = f"{ON_GRID}, estimates and errors follow from them"
        expected = _estimates(releases)
        summary = _summary(releases.planned, expected[:, 1])
        pairs = ((releases.answers, expected), (releases.errors, summary))
        worst = max(float((np.abs(a - b) / np.abs(b).max(axis=0)).max()) for a, b in pairs)
        compared = f"estimates and errors within {worst:.1g} of least squares"
    return Finding(
        "lattice",
        releases.planned.subject,
        claim,
        same_grid and worst < _FIGURES_SLACK,
        f"steps of 2^{shift}; {compared}",
    )


def _estimates(releases: RepeatedReleases) -> Floats:
    """Return (estimate, standard error) of all queries by dense least squares: (queries, 2)."""
    strategy, noise = releases.planned.strategy, releases.planned.noise
    step = 2.0**strategy.shift
    W = np.concatenate([_matrix(rows, strategy) for rows in _queries(releases.planned)])
    A = np.concatenate([_matrix(rows, strategy) for rows in strategy.rows])
    peak = np.abs(A).max()
    C = W @ np.linalg.pinv(A / peak, rcond=1e-10) * (step / peak)
    errors = noise.noise_std * np.sqrt((C**2).sum(axis=1))
    return np.stack([C @ releases.values[0].astype(np.float64), errors], axis=1)


def _summary(planned: PlannedCase, errors: Floats) -> Floats:
    """Return (rmse, largest standard error) of every item: (items, 2)."""
    parts = np.split(errors, np.cumsum([item.size for item in planned.spec.items])[:-1])
    return np.array([[math.sqrt((part**2).mean()), part.max()] for part in parts])


def _queries(planned: PlannedCase) -> list[DenseRows]:
    """Return the queries of the spec, table by table."""
    queries = []
    for table in (table for item in planned.spec.items for table in item.tables):
        parts = predicate_matrices(table, planned.strategy.classes)
        attributes, counted, matrices = zip(*parts, strict=True) if parts else ((), (), ())
        at_least = None if table.threshold == len(table.axes) else table.threshold
        queries.append(DenseRows(1, tuple(attributes), tuple(matrices), tuple(counted), at_least))
    return queries


def _matrix(rows: DenseRows, strategy: DenseStrategy) -> Floats:
    return np.stack([rows.column(cell) for cell in strategy.cells], axis=1).astype(np.float64)


def _charge(releases: RepeatedReleases) -> Finding:
    """Compare the charge on record when the data was opened with what the noise costs."""
    charge, (least, most) = releases.charge, units(releases.planned, releases.manifest)
    paid = charge.after - charge.before
    in_time = len(charge.seen) > 1 and all(seen == charge.after for seen in charge.seen[1:])
    free = charge.again == charge.after and charge.opened_again == 0
    return Finding(
        "lattice",
        releases.planned.subject,
        "the noise is paid for before the records are read, once",
        in_time and free and _states_charge(releases, paid) and least <= paid <= most,
        f"charged {units_text(paid)}, due {units_text(least)}, "
        f"{'before' if in_time else 'NOT before'} reading; "
        f"{'free' if free else 'NOT free'} the second time",
    )


def _states_charge(releases: RepeatedReleases, paid: int) -> bool:
    """Return whether the manifest states the guarantee that was charged, exactly."""
    charged = Fraction(str(mapping(releases.manifest["guarantee"])["charged"]))
    if releases.planned.case.noise == "gaussian":
        return charged == Fraction(paid, UNIT)
    return charged == math.ceil(releases.planned.case.epsilon * UNIT) / Fraction(UNIT)


def _scale(releases: RepeatedReleases) -> Finding:
    """Compare the scale and sensitivity in the manifest with the recomputed ones."""
    noise = mapping(releases.manifest["noise"])
    given, needed = Fraction(float(str(noise["scale"]))), releases.planned.noise.law.scale
    ratio = given / needed
    same = int(str(noise["sensitivity"])) == releases.planned.noise.sensitivity
    enough = -1e-12 <= ratio - 1 <= _SCALE_SLACK
    return Finding(
        "residuals",
        releases.planned.subject,
        "scale and sensitivity are what plan, unit and epsilon demand",
        same and enough,
        f"scale {float(given):.10g}, by brute force over all columns {float(needed):.10g}",
    )


def _law(planned: PlannedCase, values: Ints, what: str) -> Finding:
    """Test residuals against the noise distribution: all together, and in groups of rows."""
    law, groups = planned.noise.law, _groups(planned, values)
    p = combined([goodness_of_fit(group, law) for group in groups])
    spread = float(np.sqrt((values.astype(np.float64) ** 2).mean())) / planned.noise.noise_std
    return Finding(
        "residuals",
        planned.subject,
        f"{what} less exact follows the law, in every row"
        if what == "measured"
        else f"{what} less exact follows the law, in every block",
        p > ALPHA,
        f"p = {p:.2g}, {values.size:,} draws, all together and in parts: {len(groups) - 1}, "
        f"spread {spread:.4f} of what is due",
        draws=values.size,
        tests=1,
    )


def _groups(planned: PlannedCase, values: Ints) -> list[Ints]:
    """Return all values, and those of each row; of blocks and their pieces if rows have few."""
    if len(values) >= 100:
        return [values, *values.T]
    groups, start = [values], 0
    for block in planned.strategy.rows:
        part = values[:, start : start + block.length]
        start += block.length
        pieces = max(1, part.size // _GROUP)
        groups += [piece for piece in np.array_split(part, pieces, axis=1) if piece.size >= 100]
    return groups


def _independent(planned: PlannedCase, values: Ints, what: str) -> Finding:
    """Test the residuals of rows and of releases or replicates for dependence."""
    p = dependence(values, planned.noise.law)
    return Finding(
        "independence",
        planned.subject,
        f"the noise of no two rows, and of no two {what}, depends on each other",
        p > ALPHA,
        f"p = {p:.2g}, {values.size:,} draws",
        tests=1,
    )
