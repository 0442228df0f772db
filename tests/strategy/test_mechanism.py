"""The mechanism: its sensitivity on the grid bounds what any record can do."""

import json
from fractions import Fraction
from itertools import product as pairs

import numpy as np
import pytest

from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.noise.calibration import _on_grid, calibrated_noise
from dpquery.measurement.noise.exact_noise import draw
from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Dense, PIdentity
from dpquery.operators.ranges import Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.spec.spec import Privacy
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy

EPSILON = guarantee("laplace", epsilon=Fraction(1), delta=Fraction(0))
RHO = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6))


def wide_product(noise):
    """A product whose entries need 50 bits, so that the grid has a shift."""
    rng = np.random.default_rng(3)
    factors = []
    for n in (3, 2, 4):
        rows = rng.integers(0, 2**15, (1, n))
        dense = rng.integers(-(2**16), 2**16, (n + 1, n))
        is_laplace = noise == "laplace"
        factors.append(PIdentity(2**16 - rows.sum(axis=0), rows) if is_laplace else Dense(dense))
    return ProductStrategy("wide", noise, tuple(factors))


def moves(strategy, mechanism, before, after):
    """How far the answers on the grid move, in the norm of the noise."""
    total = 0
    for measurement in strategy.measurements:
        attributes = measurement.block.attributes
        beyond = tuple(i for i in range(before.ndim) if i not in attributes)
        a, b = (
            exact_answers(measurement, x.sum(axis=beyond), shift=mechanism.shift)
            for x in (before, after)
        )
        steps = [abs(int(u) - int(v)) for u, v in zip(a, b, strict=True)]
        total += sum(steps) if strategy.noise == "laplace" else sum(s * s for s in steps)
    return total


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@pytest.mark.parametrize("rows", [1, 3])
def test_no_neighbour_moves_the_answers_further_than_the_sensitivity(noise, neighbours, rows):
    strategies = [
        wide_product(noise),
        MarginalsStrategy("m", noise, (3, 2, 4), {(0,): 70_000, (1, 2): 3, (): 5}),
    ]
    budget = EPSILON if noise == "laplace" else RHO
    rng = np.random.default_rng(1)
    for strategy in strategies:
        privacy = Privacy(person="id", max_rows=rows, neighbours=neighbours)
        mechanism = calibrated_noise(strategy, privacy=privacy, guarantee=budget)
        cells = list(np.ndindex(strategy.shape))
        for cell, other in list(pairs(cells, cells))[:: 1 if rows == 1 else 7]:
            before = rng.integers(0, 9, strategy.shape) + rows
            after = before.copy()
            after[cell] += rows
            if neighbours == "replace":
                after[other] -= rows
            assert moves(strategy, mechanism, before, after) <= mechanism.sensitivity


@pytest.mark.parametrize("shift", [1, 2, 5])
def test_a_column_on_the_grid_is_paid_for_wherever_its_answers_stand(shift):
    """Small columns of many lengths: a root that is rounded down is not paid for."""
    rng, step = np.random.default_rng(shift), 1 << shift
    for _ in range(4_000):
        size = int(rng.integers(1, 12))
        alike = int(rng.integers(0, 9)) * step + 1  # moves by a whole step more than its length
        column = np.full(size, alike) if rng.random() < 0.5 else rng.integers(1, 4 * step, size)
        moves = [-(-int(entry) // step) for entry in column]
        total, squared = int(column.sum()), int((column**2).sum())
        assert sum(moves) <= _on_grid(total, size, shift, True) <= total / step + size + 1
        length = squared**0.5 / step + size**0.5 + 3
        assert sum(m * m for m in moves) <= _on_grid(squared, size, shift, False) <= length**2


def test_a_grid_of_two_steps_is_in_the_sensitivity_too():
    strategy = MarginalsStrategy("m", "laplace", (3,), {(0,): 2**25})
    mechanism = calibrated_noise(strategy, privacy=Privacy(), guarantee=EPSILON)
    assert (mechanism.shift, mechanism.sensitivity) == (1, 2**24 + 1)


def test_the_grid_costs_next_to_nothing():
    for noise, budget in (("laplace", EPSILON), ("gaussian", RHO)):
        strategy = wide_product(noise)
        mechanism = calibrated_noise(strategy, privacy=Privacy(), guarantee=budget)
        power = 1 if noise == "laplace" else 2
        column = max(
            sum(abs(int(v)) ** power for v in strategy.measurements[0].block.matvec(unit))
            for unit in np.eye(24, dtype=np.int64)
        )
        assert mechanism.shift > 0
        assert mechanism.sensitivity / (column / 2 ** (mechanism.shift * power)) < 1.0001


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_standard_deviation_that_is_stated_is_that_of_what_is_drawn(noise):
    budget, size = EPSILON if noise == "laplace" else RHO, 20_000
    calibrated = calibrated_noise(wide_product(noise), privacy=Privacy(), guarantee=budget)
    drawn = draw(
        np.zeros(size, np.int64),
        budget=budget,
        sensitivity=calibrated.sensitivity,
        scale=calibrated.scale,
    )
    # Eight standard deviations of what is found: sqrt((kurtosis - 1) / (4 n)), 6 for Laplace.
    slack = 8 * np.sqrt((5 if noise == "laplace" else 2) / (4 * size))
    assert calibrated.shift > 0
    assert drawn.std() * 2.0**calibrated.shift == pytest.approx(calibrated.noise_std, rel=slack)


@pytest.mark.parametrize(("epsilon", "word"), [(10**6, "smaller"), (Fraction(1, 10**20), "larger")])
def test_noise_that_cannot_be_drawn_is_refused_before_anything_is_charged(epsilon, word):
    budget = guarantee("laplace", epsilon=Fraction(epsilon), delta=Fraction(0))
    strategy = MarginalsStrategy("m", "laplace", (3,), {(0,): 2**16})
    with pytest.raises(SpecError, match=f"ask for a {word} epsilon"):
        calibrated_noise(strategy, privacy=Privacy(), guarantee=budget)


@pytest.mark.nightly
def test_a_union_of_narrow_and_wide_parts_can_be_stored_and_measured():
    shape = (6, 4, 5, 3)
    blocks = (
        product(shape, {0: Prefix(6)}),
        product(shape, {1: Prefix(4), 2: Prefix(5), 3: Prefix(3)}),
    )
    workload = Workload(shape, blocks, (1.0, 1.0))
    for noise, budget in (("laplace", EPSILON), ("gaussian", RHO)):
        (union,) = (
            candidate.proposal
            for candidate in select(workload, noises=(noise,))[noise].candidates
            if candidate.name == "OPT_+"
        )
        encoded = json.loads(json.dumps(union.strategy.encode()))
        strategy = decode_strategy(encoded, noise=noise, workload=workload)
        mechanism = calibrated_noise(strategy, privacy=Privacy(), guarantee=budget)
        before = np.ones(shape, dtype=np.int64)
        for cell in np.ndindex(shape):
            after = before.copy()
            after[cell] += 1
            assert moves(strategy, mechanism, before, after) <= mechanism.sensitivity
