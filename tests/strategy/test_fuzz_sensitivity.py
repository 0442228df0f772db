"""Hostile strategies of every shape: no neighbour moves the answers further than is paid for."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from dense import dense_strategy, random_strategies

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.operators.cells import CellClassBlock, OrbitRows
from dpquery.operators.factors import Dense, PIdentity
from dpquery.operators.p_identity import BlockPIdentity
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.spec.spec import Privacy
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.strategy import Strategy, WeightedBlock

PAIRS = 12
DELTA = Fraction(1, 10**6)


@dataclass(frozen=True, eq=False)
class Hostile:
    """The measurements of a strategy, with integers that no search would choose."""

    shape: tuple[int, ...]
    noise: str
    measurements: tuple[WeightedBlock, ...]

    def once(self, name, work):
        return work()


def wide_integer(rng):
    """Of any width up to 40 bits, most often at the end of one, or next to it."""
    power = 1 << int(rng.integers(0, 41))
    return max(1, power + int(rng.integers(-1, 2)))


def hostile_factor(rng, factor):
    """A factor of the same shape and kind, with wide, signed, vanishing and repeated entries."""
    rows, columns = factor.shape
    match factor:
        case Dense():
            widths = rng.integers(0, 31, (rows, 1))
            entries = rng.integers(-1, 2, (rows, columns)) << widths
            return Dense(entries - rng.integers(0, 2, (rows, columns)))
        case PIdentity():
            below = rng.integers(0, 2, (rows - columns, columns)) << int(rng.integers(0, 31))
            return PIdentity(rng.integers(1, 1 << int(rng.integers(1, 31)), columns), below)
        case BlockPIdentity(inner=inner, outer=outer, size=size):
            diagonal = rng.integers(1, 1 << int(rng.integers(1, 31)), columns)
            parts = [
                rng.integers(-1, 2, part.shape) << int(rng.integers(0, 31))
                for part in (inner, outer)
            ]
            return BlockPIdentity(diagonal, *parts, size)
        case Hierarchy(sizes=sizes):
            weights = [wide_integer(rng) for _ in sizes]
            return Hierarchy(columns, sizes, weights)
        case Tree(parents=parents, weights=weights):
            wide = [[wide_integer(rng) for _ in level] for level in weights]
            return Tree(parents, list(map(np.array, wide)))
        case OrbitRows(axes=axes, cores=cores):
            signs = {b: rng.integers(-1, 2, core.shape) for b, core in cores.items()}
            wide = {b: (s | 1) << rng.integers(0, 31, s.shape) for b, s in signs.items()}
            return OrbitRows(axes, wide)
        case _:
            return factor


def hostile(rng, strategy: Strategy):
    measurements = []
    for measurement in strategy.measurements:
        block, weight = measurement.block, measurement.weight
        if isinstance(block, CellClassBlock):
            factors = tuple(hostile_factor(rng, factor) for factor in block.inner.factors)
            block = replace(block, inner=replace(block.inner, factors=factors))
        elif block.is_product and rng.random() < 0.8:
            factors = tuple(hostile_factor(rng, factor) for factor in block.factors)
            block = replace(block, factors=factors)
        weight = wide_integer(rng) if rng.random() < 0.5 else weight
        measurements.append(WeightedBlock(weight, block))
    return Hostile(strategy.shape, strategy.noise, tuple(measurements))


def strategies_of(rng, noise):
    """One of every shape, as random and as hostile."""
    shape = tuple(rng.integers(1, 4, int(rng.integers(1, 4))).tolist())
    drawn = [strategy for strategy, _ in random_strategies(rng, shape, noise)]
    for strategy in drawn:
        yield Hostile(strategy.shape, noise, tuple(strategy.measurements))
        yield hostile(rng, strategy)


def on_the_grid(A, x, shift):
    """Floored answers of Python ints."""
    return [int(value) >> shift for value in A @ x.ravel().astype(object)]


def measured(strategy, x, shift):
    """The answers that the product would add noise to."""
    answers = []
    for measurement in strategy.measurements:
        beyond = tuple(i for i in range(x.ndim) if i not in measurement.block.attributes)
        answers += exact_answers(measurement, x.sum(axis=beyond), shift=shift).tolist()
    return answers


def norm(differences, power):
    return sum(abs(value) ** power for value in differences)


def faults(seed, noise, *, measured_ones):
    """Yield what is wrong with strategies of a seed; those that can be measured are listed."""
    rng = np.random.default_rng(seed)
    power = 1 if noise == "laplace" else 2
    budget = guarantee(noise, epsilon=Fraction(1), delta=DELTA)
    for strategy in strategies_of(rng, noise):
        A = dense_strategy(strategy.measurements)
        exact = max(norm(column, power) for column in A.T)
        if sensitivity(strategy.measurements, noise) != exact:
            yield strategy, "not the largest column"
        rows, neighbours = int(rng.integers(1, 4)), str(rng.choice(["add-remove", "replace"]))
        privacy = Privacy(person="id", max_rows=rows, neighbours=neighbours)
        try:
            mechanism = calibrated_noise(strategy, privacy=privacy, guarantee=budget)
        except UnsupportedWorkloadError:
            continue
        shift, cells = mechanism.shift, A.shape[1]
        for _ in range(PAIRS):
            before = rng.integers(0, 1 << int(rng.integers(1, 25)), strategy.shape) + rows
            after = before.copy().ravel()
            put, taken = rng.integers(0, cells, 2)
            after[put] += rows
            if neighbours == "replace":
                after[taken] -= int(rng.integers(0, rows + 1))  # another person may have fewer
            pair = (before, after.reshape(strategy.shape))
            answers = [on_the_grid(A, x, shift) for x in pair]
            if [measured(strategy, x, shift) for x in pair] != answers:
                yield strategy, "not the exact answers"
            moved = [int(b) - int(a) for a, b in zip(*answers, strict=True)]
            if norm(moved, power) > mechanism.sensitivity:
                yield strategy, "a move that is not paid for"
        measured_ones.append(strategy)


seeds = [*range(25), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(25, 150))]


@pytest.mark.nightly(daily="11-gaussian")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("seed", seeds)
def test_no_neighbour_moves_a_hostile_strategy_further_than_its_sensitivity(
    seed, noise, record_property
):
    strategies = []
    assert list(faults(seed, noise, measured_ones=strategies)) == []
    assert len(strategies) >= 8
    record_property("hostile strategies", len(strategies))
    record_property("pairs of tables", PAIRS * len(strategies))
