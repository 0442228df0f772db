"""Two products solved together: their loss and its gradient, against dense twins."""

import math

import numpy as np
import pytest
from scipy.optimize import check_grad
from strategies_support import dense_workload

from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Dense, Identity, total
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.progress import reporting
from dpquery.strategy.optimize.opt_pair import PairProblem, opt_pair

SHAPE = (3, 4, 2, 3, 1)
BOTH = Workload(
    SHAPE,
    (
        product(SHAPE, {0: Prefix(3), 1: Identity(4), 3: Prefix(3)}),
        product(SHAPE, {1: AllRanges(4), 2: Identity(2), 3: Prefix(3), 4: Identity(1)}),
        product(SHAPE, {0: Identity(3), 3: Prefix(3)}),
    ),
    (1.0, 2.0, 0.5),
)
APART = Workload((4, 3), (product((4, 3), {0: Prefix(4)}), marginal((4, 3), [1])), (1.0, 3.0))


def factor(rng, n):
    A = rng.normal(size=(n, n))
    return Dense(A / np.linalg.norm(A, axis=0))


def cases():
    rng = np.random.default_rng(0)
    one = Identity(1)
    third = factor(rng, 3)
    first = (factor(rng, 3), factor(rng, 4), factor(rng, 2), third, one)
    second = (total(3), factor(rng, 4), factor(rng, 2), third, one)
    return [
        (BOTH, (first, second)),
        (BOTH, ((first[0], first[1], total(2), third, one), first)),
        (APART, ((Identity(4), total(3)), (total(4), factor(rng, 3)))),
    ]


pairs = pytest.mark.parametrize(("workload", "factors"), cases(), ids=["left", "right", "apart"])


def dense_loss(workload, factors, shares):
    parts = []
    for factor, share in zip(factors, shares, strict=True):
        A = np.eye(1) * share
        for one in factor:
            A = np.kron(A, one.dense())
        parts.append(A)
    A = np.vstack(parts)
    W, w = dense_workload(workload)
    V = (W.T @ (w[:, None] * W)).astype(float)
    sensitivity = (A**2).sum(axis=0).max()
    return sensitivity * np.trace(np.linalg.pinv(A.T @ A, rcond=1e-12) @ V)


@pairs
def test_the_loss_equals_the_dense_one(workload, factors):
    problem = PairProblem(gram(workload), factors)
    flat = problem.start((0.8, 0.6))
    loss = math.exp(problem.loss(flat)[0]) * problem.aside
    assert dense_loss(workload, problem.factors_at(flat), (0.8, 0.6)) == pytest.approx(loss)
    assert dense_loss(workload, factors, (0.8, 0.6)) == pytest.approx(loss, rel=1e-3)


@pairs
def test_the_gradient_agrees_with_finite_differences(workload, factors):
    problem = PairProblem(gram(workload), factors)
    flat = problem.start((0.6, 0.8))
    slope = problem.loss(flat)[1]
    error = check_grad(
        lambda at: problem.loss(at)[0], lambda at: problem.loss(at)[1], flat, epsilon=1e-7
    )
    assert error <= 1e-5 * np.linalg.norm(slope) + 1e-6
    assert np.linalg.norm(slope) > 1e-2


@pairs
def test_what_is_found_is_better_than_the_start_and_as_good_as_it_says(workload, factors):
    messages = []
    with reporting(messages.append):
        selection = opt_pair(gram(workload), factors, (0.8, 0.6))
    assert selection.loss < dense_loss(workload, factors, (0.8, 0.6)) * (1 - 1e-3)
    assert dense_loss(workload, selection.factors, selection.shares) == pytest.approx(
        selection.loss, rel=1e-6
    )
    assert math.hypot(*selection.shares) == pytest.approx(1)
    for factor in (factor for part in selection.factors for factor in part if factor.shape[1] > 1):
        assert np.linalg.norm(factor.dense(), axis=0) == pytest.approx(1)
    assert messages


def test_what_is_too_large_to_evaluate_is_left_alone(monkeypatch):
    monkeypatch.setattr("dpquery.strategy.optimize.opt_pair.MAX_WORK", 10)
    workload, factors = cases()[0]
    assert opt_pair(gram(workload), factors, (0.8, 0.6)) is None


PLACE = np.repeat([0, 1, 2], [5, 1, 6])[np.random.default_rng(3).permutation(12)]
STATES = Dense((np.arange(3)[:, None] == PLACE).astype(int))
AREAS = Workload(
    (12, 4),
    (
        product((12, 4), {0: Identity(12), 1: Identity(4)}),
        product((12, 4), {0: STATES, 1: Prefix(4)}),
        product((12, 4), {1: Identity(4)}),
    ),
    (1.0, 2.0, 0.5),
)


def area_factors():
    rng = np.random.default_rng(4)
    wide = [(factor(rng, 12), factor(rng, 4)), (factor(rng, 12), factor(rng, 4))]
    return [tuple(wide), (wide[0], (total(12), wide[1][1])), ((total(12), wide[1][1]), wide[0])]


@pytest.mark.parametrize("factors", area_factors(), ids=["both", "first", "second"])
def test_codes_merged_into_orbits_have_the_loss_and_gradient_of_the_codes(factors, monkeypatch):
    monkeypatch.setattr("dpquery.strategy.optimize.opt_pair.LEAST_IN_ORBITS", 8)
    problem = PairProblem(gram(AREAS), factors)
    assert len(problem.axes[0].orbit) == 5
    flat = problem.start((0.6, 0.8))
    flat[1:] += 0.1 * np.random.default_rng(5).normal(size=len(flat) - 1)
    value, slope = problem.loss(flat)
    pair = problem.factors_at(flat)
    for one in (one for part in pair for one in part):
        assert np.linalg.norm(one.dense(), axis=0) == pytest.approx(
            np.linalg.norm(one.dense()[:, 0])
        )
    assert dense_loss(AREAS, pair, (math.cos(flat[0]), math.sin(flat[0]))) == pytest.approx(
        math.exp(value) * problem.aside
    )
    error = check_grad(lambda at: problem.loss(at)[0], lambda at: problem.loss(at)[1], flat)
    assert error <= 1e-5 * np.linalg.norm(slope) + 1e-6


def test_merged_codes_lose_nothing_of_what_the_codes_could_have(monkeypatch):
    factors = area_factors()[0]
    apart = opt_pair(gram(AREAS), factors, (0.8, 0.6))
    monkeypatch.setattr("dpquery.strategy.optimize.opt_pair.LEAST_IN_ORBITS", 8)
    merged = opt_pair(gram(AREAS), factors, (0.8, 0.6))
    assert merged.loss <= apart.loss * (1 + 1e-4)
    assert dense_loss(AREAS, merged.factors, merged.shares) == pytest.approx(merged.loss, rel=1e-6)
