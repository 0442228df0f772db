"""The parts of the audit that look at whole releases: lattice, residuals, independence."""

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from dpquery.audit.cases.cases import Size
from dpquery.audit.cases.dense_strategy import Cell, DenseRows, WrittenOut
from dpquery.audit.cases.planned_cases import Prepared, cases
from dpquery.audit.cases.query_classes import predicate_matrices
from dpquery.audit.checks.dependence import dependence, repeats
from dpquery.audit.checks.processes import two_processes
from dpquery.audit.checks.repeated_measurements import query_of, repeated, tables_of
from dpquery.audit.checks.repeated_releases import RepeatedReleases, repeated_releases, units
from dpquery.audit.findings import Finding
from dpquery.audit.statistics import ALPHA, Floats, Integers, combined, goodness_of_fit
from dpquery.measurement.accounting import UNIT, units_text
from dpquery.operators.factors import Array
from dpquery.strategy.algebra.subsets import Subset
from dpquery.untrusted.json_values import mapping

_SCALE_SLACK = 1e-6  # of the scale, above what is needed: it is rounded up to a float
_FIGURES_SLACK = 1e-6
ON_GRID = "values are whole steps of the grid"
_SMALL = 4_000_000  # entries of the matrices by which estimates are worked out apart
_HUGE = (1 << 33) + 12_345  # records in a cell, of three: fewer than the 2^36 that may be
_GROUP = 2_000  # values that are held against the law together


def lattice(size: Size) -> Iterator[Finding]:
    """Hold answers before and after the noise against what is worked out in Python integers."""
    for case in cases(size):
        own = repeated_releases(case, size)
        yield _exactness(own.prepared)
        yield _grid(own)
        yield _charge(own)


def residuals(size: Size) -> Iterator[Finding]:
    """Hold released less exact answers against the law at the scale worked out apart."""
    for case in cases(size):
        own = repeated_releases(case, size)
        yield _scale(own)
        yield _law(own.prepared, own.residuals, "released")
        if case.repeated:
            again = repeated(case, size)
            yield _law(again.prepared, again.residuals, "measured")


def independence(size: Size) -> Iterator[Finding]:
    """Look for noise that is shared by rows or releases, or depends on other noise."""
    for case in cases(size):
        own = repeated_releases(case, size)
        yield _independent(own.prepared, own.residuals, "releases")
        p = repeats(own.residuals, own.prepared.noise.law)
        yield Finding(
            "independence",
            own.prepared.subject,
            "no noise is used twice",
            p > ALPHA,
            f"p = {p:.2g}, {own.values.shape[0]} releases",
            tests=1,
        )
        if case.repeated:
            again = repeated(case, size)
            yield _independent(again.prepared, again.residuals, "replicates")
        if case.apart and not size.quick:
            yield two_processes(own.prepared)


def _exactness(own: Prepared) -> Finding:
    """Hold the curator's counts and exact answers against those of the audit."""
    query = query_of(own)
    records = own.records
    tables = tables_of(query, records)
    cells = own.cells(records)
    counts = all(np.array_equal(tables[b], _table(cells, own.strategy, b)) for b in tables)
    huge = Counter(dict.fromkeys(own.strategy.cells[::7][:3], _HUGE)) + cells
    held = {b: _table(huge, own.strategy, b) for b in tables}
    pairs = ((dict(tables), cells), (held, huge))
    answers = all(
        np.array_equal(query._exact(given), own.strategy.answers(counted))
        for given, counted in pairs
    )
    return Finding(
        "lattice",
        own.subject,
        "records are counted, and answered before the noise, exactly",
        counts and answers,
        f"{'the same' if counts and answers else 'NOT the same'} in Python integers, for "
        f"{len(records)} records and for {3 * _HUGE:,} more",
    )


def _table(cells: Counter[Cell], strategy: WrittenOut, b: Subset) -> Integers:
    table = np.zeros([strategy.shape[i] for i in b], dtype=np.int64)
    for cell, count in cells.items():
        table[tuple(cell[i] for i in b)] += count
    return table


def _grid(own: RepeatedReleases) -> Finding:
    """Hold what is published against the whole numbers that were measured."""
    shift = int(str(mapping(own.manifest["noise"])["shift"]))
    same_grid = shift == own.prepared.strategy.shift
    strategy, spec = own.prepared.strategy, own.prepared.spec
    small = (strategy.length + spec.queries) * len(strategy.cells) <= _SMALL
    worst, claim, told = 0.0, ON_GRID, "too many estimates to work out apart"
    if small:
        claim = f"{ON_GRID}, estimates and errors follow from them"
        expected = _estimates(own)
        summary = _summary(own.prepared, expected[:, 1])
        pairs = ((own.answers, expected), (own.errors, summary))
        worst = max(float((np.abs(a - b) / np.abs(b).max(axis=0)).max()) for a, b in pairs)
        told = f"estimates and errors within {worst:.1g} of least squares"
    return Finding(
        "lattice",
        own.prepared.subject,
        claim,
        same_grid and worst < _FIGURES_SLACK,
        f"steps of 2^{shift}; {told}",
    )


def _estimates(own: RepeatedReleases) -> Floats:
    """Return (estimate, standard error) of all queries by dense least squares: (queries, 2)."""
    strategy, noise = own.prepared.strategy, own.prepared.noise
    step = 2.0**strategy.shift
    W = np.concatenate([_matrix(rows, strategy) for rows in _queries(own.prepared)])
    A = np.concatenate([_matrix(rows, strategy) for rows in strategy.rows])
    peak = np.abs(A).max()
    C = W @ np.linalg.pinv(A / peak, rcond=1e-10) * (step / peak)
    errors = noise.noise_std * np.sqrt((C**2).sum(axis=1))
    return np.stack([C @ own.values[0].astype(np.float64), errors], axis=1)


def _summary(own: Prepared, errors: Floats) -> Floats:
    """Return (rmse, largest standard error) of every item: (items, 2)."""
    parts = np.split(errors, np.cumsum([item.size for item in own.spec.items])[:-1])
    return np.array([[math.sqrt((part**2).mean()), part.max()] for part in parts])


def _queries(own: Prepared) -> list[DenseRows]:
    """Return the queries of the spec, table by table."""
    found = []
    for table in (table for item in own.spec.items for table in item.tables):
        parts = predicate_matrices(table, own.strategy.classes)
        attributes, counted, matrices = zip(*parts, strict=True) if parts else ((), (), ())
        at_least = None if table.threshold == len(table.axes) else table.threshold
        found.append(DenseRows(1, tuple(attributes), tuple(matrices), tuple(counted), at_least))
    return found


def _matrix(rows: DenseRows, strategy: WrittenOut) -> Floats:
    return np.stack([rows.column(cell) for cell in strategy.cells], axis=1).astype(np.float64)


def _charge(own: RepeatedReleases) -> Finding:
    """Hold what the ledger said, when the data was opened, against what the noise costs."""
    charge, (least, most) = own.charge, units(own.prepared, own.manifest)
    paid = charge.after - charge.before
    in_time = len(charge.seen) > 1 and all(seen == charge.after for seen in charge.seen[1:])
    free = charge.again == charge.after and charge.opened_again == 0
    return Finding(
        "lattice",
        own.prepared.subject,
        "the noise is paid for before the records are read, once",
        in_time and free and _told(own, paid) and least <= paid <= most,
        f"charged {units_text(paid)}, due {units_text(least)}, "
        f"{'before' if in_time else 'NOT before'} reading; "
        f"{'free' if free else 'NOT free'} the second time",
    )


def _told(own: RepeatedReleases, paid: int) -> bool:
    """Return whether the manifest says what the release promises, as exactly as it was charged."""
    told = Fraction(str(mapping(own.manifest["guarantee"])["charged"]))
    if own.prepared.case.noise == "gaussian":
        return told == Fraction(paid, UNIT)
    return told == math.ceil(own.prepared.case.epsilon * UNIT) / Fraction(UNIT)


def _scale(own: RepeatedReleases) -> Finding:
    noise = mapping(own.manifest["noise"])
    given, needed = Fraction(float(str(noise["scale"]))), own.prepared.noise.law.scale
    ratio = given / needed
    same = int(str(noise["sensitivity"])) == own.prepared.noise.sensitivity
    enough = -1e-12 <= ratio - 1 <= _SCALE_SLACK
    return Finding(
        "residuals",
        own.prepared.subject,
        "scale and sensitivity are what plan, unit and epsilon demand",
        same and enough,
        f"scale {float(given):.10g}, by brute force over all columns {float(needed):.10g}",
    )


def _law(own: Prepared, values: Integers, what: str) -> Finding:
    """Hold residuals against the law: all together, and group by group of rows."""
    law, groups = own.noise.law, _groups(own, values)
    p = combined([goodness_of_fit(group, law) for group in groups])
    spread = float(np.sqrt((values.astype(np.float64) ** 2).mean())) / own.noise.noise_std
    return Finding(
        "residuals",
        own.subject,
        f"{what} less exact follows the law, in every row"
        if what == "measured"
        else f"{what} less exact follows the law, in every block",
        p > ALPHA,
        f"p = {p:.2g}, {values.size:,} draws, all together and in parts: {len(groups) - 1}, "
        f"spread {spread:.4f} of what is due",
        draws=values.size,
        tests=1,
    )


def _groups(own: Prepared, values: Integers) -> list[Array]:
    """Split by row where there are enough values of each, else by block and by place in it."""
    if len(values) >= 100:
        return [values, *values.T]
    found, start = [values], 0
    for block in own.strategy.rows:
        part = values[:, start : start + block.length]
        start += block.length
        pieces = max(1, part.size // _GROUP)
        found += [own for own in np.array_split(part, pieces, axis=1) if own.size >= 100]
    return found


def _independent(own: Prepared, values: Integers, what: str) -> Finding:
    p = dependence(values, own.noise.law)
    return Finding(
        "independence",
        own.subject,
        f"the noise of no two rows, and of no two {what}, depends on each other",
        p > ALPHA,
        f"p = {p:.2g}, {values.size:,} draws",
        tests=1,
    )
