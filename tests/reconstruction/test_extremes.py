"""The expected largest error of a linear release: against simulation, for both kinds of noise."""

import math
from collections import Counter

import numpy as np
import pytest

from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Identity
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges
from dpquery.reconstruction import intervals as extremes
from dpquery.reconstruction.intervals import expected_largest
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.search import candidates
from dpquery.strategy.search.candidates import Problem

SHAPE = (6, 5, 4)
TABLES = Workload(SHAPE, (marginal(SHAPE, (0, 1)), marginal(SHAPE, (1, 2))), (1.0, 1.0))
RANGES = Workload((24,), (product((24,), {0: AllRanges(24)}),), (1.0,))
ANY_OF = Workload(
    SHAPE, (Block(SHAPE, (0, 1, 2), tuple(Identity(n) for n in SHAPE), (True,) * 3, 1),), (1.0,)
)


def simulated_largest(strategy, workload, noise, runs=400):
    """The mean over runs of the largest error that pure noise of unit scale leaves behind."""
    rng = np.random.default_rng(7)
    draw = rng.normal if noise == "gaussian" else rng.laplace
    sizes = [measurement.block.shape[0] for measurement in strategy.measurements]
    largest = []
    for _ in range(runs):
        estimates = reconstruct(strategy, [draw(size=size) for size in sizes])
        errors = [estimates.answer(block, k) for k, block in enumerate(workload.blocks)]
        largest.append(max(float(np.abs(differences).max()) for differences in errors))
    return float(np.mean(largest))


def strategy_for(build, workload, noise):
    return build(Problem(workload, gram(workload), noise, 0)).strategy


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("build", "workload", "noise", "slack"),
    [
        (candidates.residual_candidate, TABLES, "gaussian", 1.06),
        (candidates.marginals_candidate, TABLES, "laplace", 1.12),
        (candidates.product_candidate, RANGES, "gaussian", 1.35),
        (candidates.product_candidate, RANGES, "laplace", 1.65),
        (candidates.residual_candidate, ANY_OF, "gaussian", 1.35),
    ],
)
def test_the_expectation_holds_and_is_not_too_small(build, workload, noise, slack):
    strategy = strategy_for(build, workload, noise)
    unit = 1.0 if noise == "gaussian" else math.sqrt(2)
    expected = expected_largest(strategy, workload, noise_std=unit)
    ratio = expected / simulated_largest(strategy, workload, noise)
    assert 0.97 < ratio < slack


def test_it_goes_with_the_noise():
    strategy = strategy_for(candidates.residual_candidate, TABLES, "gaussian")
    one = expected_largest(strategy, TABLES, noise_std=1.0)
    assert expected_largest(strategy, TABLES, noise_std=250.0) == pytest.approx(250 * one)


@pytest.mark.statistical
@pytest.mark.parametrize("law", [0, extremes.LAWS // 2, extremes.LAWS - 1])
@pytest.mark.parametrize("queries", [1, 30, 1000])
def test_independent_errors_are_met(law, queries):
    rng = np.random.default_rng(queries)
    if law == 0:
        errors = rng.normal(size=(4000, queries))
    else:
        terms = round(((extremes.LAWS - 1) / law) ** 2)
        errors = rng.laplace(size=(terms, 4000, queries)).sum(axis=0) / math.sqrt(2 * terms)
    expected = extremes._largest(Counter({(0, law): queries}))
    assert expected == pytest.approx(np.abs(errors).max(axis=1).mean(), rel=0.03)


def test_small_errors_beside_a_large_one_do_not_matter():
    alone = extremes._largest(Counter({(0, 0): 1}))
    beside = extremes._largest(Counter({(0, 0): 1, (990, 0): 1000}))
    assert alone == pytest.approx(math.sqrt(2 / math.pi), rel=1e-3)
    assert beside == pytest.approx(alone, rel=1e-2)
