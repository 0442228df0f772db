"""The checks of adaptive measurement: its charge and its figures, and the law of all it draws."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from scipy.special import gammainc, gammaincc, ndtri

from dpquery.arrays import Floats, Ints
from dpquery.audit.adaptive.table_runs import (
    ReleasedTables,
    TableBench,
    TableDraws,
    TableLaw,
    draws_of_tables,
    released_tables,
    start_of,
    true_tables,
)
from dpquery.audit.cases.specs_and_records import Size
from dpquery.audit.findings import Finding
from dpquery.audit.rap.cases import TOWNS, Town
from dpquery.audit.rap.checks import likely_strength
from dpquery.audit.statistics import ALPHA, chi_square, combined, pooled

TABLES_SPENT = (
    "the parts of an adaptive run are what was charged for it, once, before the data was read"
)
TABLES_PUBLISHED = (
    "the noise that a release by adaptive measurement names is what its charge pays for"
)
LAW_OF_TABLES = "adaptive runs draw tables, levels and noise by the laws worked out apart"

_SHARE = 20
_CELLS = 16
_ROUNDING = 1e-9
_EXACT = Fraction(1, 10**12)  # published figures are floats


def adaptive(size: Size) -> Iterator[Finding]:
    """Test adaptive runs on made-up towns against their law, for every kind of neighbour."""
    draws = []
    with tempfile.TemporaryDirectory() as folder:
        for number, town in enumerate(TOWNS):
            bench = TableBench.of(town, Path(folder) / str(number))
            released = released_tables(bench)
            law = TableLaw(released.charged, town)
            yield tables_charge(town, released, law)
            yield tables_figures(town, released, law)
            draws += drawn_by(bench, law, size.replicates // _SHARE)
    yield law_of_draws(draws)


def drawn_by(bench: TableBench, law: TableLaw, runs: int) -> list[TableDraws]:
    """Return what runs on the two neighbours drew, each against its own true tables."""
    town = bench.town
    return [
        draws_of_tables(bench.runs(file, runs), start_of(town), true_tables(town, rows), law)
        for file, rows in (("data.csv", town.rows), ("neighbour.csv", town.neighbour))
    ]


def tables_charge(town: Town, released: ReleasedTables, law: TableLaw) -> Finding:
    """Compare the rho of a run's parts with what was charged, and when."""
    costs, facts = law.costs(released.run.levels), released.facts
    whole = 2 * Fraction(9, 10) * law.unit + sum(costs) == law.rho
    measured = [law.move / (2 * Fraction(std) ** 2) for std in facts.noise_std]
    first = 2 * law.move / (2 * Fraction(facts.one_way_std) ** 2)
    total = first + sum(measured) / Fraction(9, 10)
    fair = whole and min(costs) >= law.unit and total <= law.rho * (1 + _EXACT)
    early = released.before == released.charged and released.whole
    return Finding(
        "adaptive",
        town.name,
        TABLES_SPENT,
        fair and early,
        f"{len(costs)} rounds cost {float(total):.9g} of {float(law.rho):.9g} charged; "
        f"{'on record' if early else 'NOT on record'} at the first read",
    )


def tables_figures(town: Town, released: ReleasedTables, law: TableLaw) -> Finding:
    """Compare published figures with those that follow from the rho charged."""
    facts, costs = released.facts, law.costs(released.run.levels)
    pairs = [(facts.one_way_std, law.first_std)]
    stds = [law.std(cost * Fraction(9, 10)) for cost in costs]
    pairs += list(zip(facts.noise_std, stds, strict=True))
    worst = max(abs(given / worked_out - 1) for given, worked_out in pairs)
    return Finding(
        "adaptive",
        town.name,
        TABLES_PUBLISHED,
        worst <= _ROUNDING and facts.candidates == 3,
        f"{len(pairs)} figures, the largest difference {worst:.1g} of one",
    )


def law_of_draws(draws: Sequence[TableDraws]) -> Finding:
    """Test all noise and all draws of tables, of every town, as one."""
    z = np.concatenate([each.residuals for each in draws])
    squares = float((z**2).sum()) / 2
    width = 2 * min(gammainc(z.size / 2, squares), gammaincc(z.size / 2, squares))
    edges = ndtri(np.arange(1, _CELLS) / _CELLS)  # the grid is far finer than a cell
    counted = np.bincount(np.searchsorted(edges, z), minlength=_CELLS)
    tests: list[float] = [float(width), *_held_against(counted, np.full(_CELLS, z.size / _CELLS))]
    for each in draws:
        outcomes = np.bincount(each.drawn.outcome, minlength=3)
        tests += _held_against(outcomes, each.drawn.chances.sum(axis=0))
    strength, sharp = likely_strength([each.drawn for each in draws], 1.0)
    tests.append(sharp)
    possible = all(each.levels for each in draws)
    p = combined(tests) if possible else 0.0
    drawn = sum(len(each.drawn.outcome) for each in draws)
    return Finding(
        "adaptive",
        "all towns",
        LAW_OF_TABLES,
        p > ALPHA,
        f"{z.size:,} values, {math.sqrt(2 * squares / z.size):.4f} of the scale; {drawn:,} tables "
        f"drawn, {strength:.3f} times as sharply; levels "
        f"{'follow' if possible else 'do NOT follow'}; p = {p:.2g}",
        draws=z.size,
        tests=1,
    )


def _held_against(counted: Ints, expected: Floats) -> list[float]:
    """Return the p-value of counts against a law; none where there are too few of them."""
    counted, expected = pooled(counted, expected)
    return [chi_square(counted, expected)] if expected.size > 1 else []
