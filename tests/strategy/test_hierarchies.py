"""Hierarchies: exact inverses, level weights, and the published figures."""

import json
import math
from pathlib import Path

import baselines
import numpy as np
import pytest
from dense import random_factor
from scipy.optimize import check_grad

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.measurement.accounting import analytic_gaussian_sigma
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Dense, Groups
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, Columns, Prefix, WidthRanges
from dpquery.operators.trees import Hierarchy
from dpquery.plan_file.plan import decode_strategy
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.optimize.opt_hierarchy import (
    best_level_weights,
    branchings,
    level_loss,
    level_traces,
    opt_hierarchy,
    tree_sizes,
)
from dpquery.strategy.search import closed_forms
from dpquery.strategy.search.candidates import Problem

PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "reference" / "published.json").read_text(encoding="utf-8")
)
noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])
KINDS = {
    "all-range": AllRanges,
    "prefix": Prefix,
    "width32": lambda n: WidthRanges(n, 32),
    "wide": lambda n: WidthRanges(n, min(300, n // 2)),
    "groups": lambda n: Groups.of(tuple(tuple(range(k, n, 7)) for k in range(7)), n),
}
TREES = [
    Hierarchy(1, (1,), (5,)),
    Hierarchy(8, (1, 2, 4, 8), (3, 1, 2, 7)),
    Hierarchy(7, (1, 2, 4, 8), (3, 1, 2, 7)),
    Hierarchy(11, (1, 3, 6, 12), (1, 1, 1, 1)),
    Hierarchy(5, (1,), (2,)),
]


def problem_of(factor, noise):
    n = factor.shape[1]
    workload = Workload((n,), (product((n,), {0: factor}),), (1.0,))
    return Problem(workload, gram(workload), noise, seed=0)


def rmse(build, factor, noise):
    """RMSE at epsilon 1 and, for Gaussian noise, delta 1e-6, as published."""
    problem = problem_of(factor, noise)
    std = math.sqrt(2) if noise == "laplace" else analytic_gaussian_sigma(1.0, 1e-6)
    return std * expected_error(build(problem).strategy, problem.workload).rmse


@pytest.mark.parametrize("factor", TREES)
def test_the_tree_inverts_the_gram(factor):
    inverse, n = np.linalg.inv(factor.gram()), factor.shape[1]
    assert factor.tree.array() == pytest.approx(inverse, abs=1e-12)
    X = np.random.default_rng(0).normal(size=(n, 3))
    assert factor.tree.matmat(X) == pytest.approx(inverse @ X, abs=1e-12)
    rng = np.random.default_rng(1)
    V = rng.normal(size=(n, n))
    assert factor.tree.trace_with(V) == pytest.approx(np.trace(inverse @ V))
    queries = [random_factor(rng, n) for _ in range(20)]
    queries += [Dense(rng.normal(size=(3, n))), Columns(AllRanges(n), rng.permutation(n))]
    for Q in queries:
        F = Q.dense()
        assert factor.tree.quadratic(Q) == pytest.approx(np.diag(F @ inverse @ F.T), abs=1e-10)


@pytest.mark.parametrize(
    ("sizes", "weights", "complaint"),
    [
        ((2, 4), (1, 1), "single codes"),
        ((), (), "single codes"),
        ((1, 8, 16), (1, 1, 1), "all codes at most"),
        ((1, 2, 3), (1, 1, 1), "blocks of 3 codes"),
        ((1, 1), (1, 1), "blocks of 1 codes"),
        ((1, 2), (1, 0), "at least 1"),
        ((1, 2), (1,), "at least 1"),
    ],
)
def test_impossible_hierarchies_are_refused(sizes, weights, complaint):
    with pytest.raises(ValueError, match=complaint):
        Hierarchy(6, sizes, weights)


@noises
@pytest.mark.parametrize("n", ["64", "256"])
@pytest.mark.parametrize("kind", ["all-range", "prefix"])
def test_the_published_figures_of_fixed_strategies_are_met(kind, n, noise):
    rows = PUBLISHED["hdmm_table4_competitors"][kind][n]
    factor = KINDS[kind](int(n))
    names = {"H2": baselines.h2, "HB": baselines.hb}
    if noise == "laplace":
        for name, build in names.items():
            assert rmse(build, factor, noise) == pytest.approx(rows[name], abs=0.006)
        assert rmse(closed_forms.opt_h, factor, noise) <= rows["GreedyH"]


@pytest.mark.nightly
@noises
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [64, 100])
def test_best_levels_are_no_worse_than_the_fixed_ones(kind, n, noise):
    factor = KINDS[kind](n)
    best = rmse(closed_forms.opt_h, factor, noise)
    others = (baselines.h2, baselines.hb)
    assert best <= min(rmse(rival, factor, noise) for rival in others) * 1.001


@noises
def test_the_gradient_of_the_level_loss_is_that_of_finite_differences(noise):
    rng = np.random.default_rng(2)
    D, sizes, x = rng.random(5), np.array([1.0, 2.0, 4.0, 8.0, 16.0]), rng.normal(size=5)
    error = check_grad(
        lambda x: level_loss(x, D, sizes, noise)[0], lambda x: level_loss(x, D, sizes, noise)[1], x
    )
    assert error < 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [512, 1000])
def test_levels_of_a_large_attribute_are_estimated_from_products(kind, n, monkeypatch):
    V = problem_of(KINDS[kind](n), "laplace").gram.matrices[0][1]
    sizes = tree_sizes(n, 2)
    exact = level_traces(V, sizes)
    monkeypatch.setattr("dpquery.strategy.optimize.opt_hierarchy.MAX_DENSE_TREE_CLASSES", 1)
    assert level_traces(V, sizes) == pytest.approx(exact, rel=0.02)
    assert level_traces(V, sizes)[7:] == pytest.approx(exact[7:])  # from the spans of 128 codes on


@pytest.mark.nightly
@noises
def test_an_attribute_of_many_classes_needs_no_matrix_of_all_of_them(noise):
    factor = Prefix(20_000)  # of whose square 3.2 GB would be needed
    best = rmse(closed_forms.opt_h, factor, noise)
    assert best < rmse(baselines.hb, factor, noise)
    assert best < rmse(baselines.h2, factor, noise)


@noises
@pytest.mark.parametrize("kind", [Prefix, AllRanges])
def test_the_level_loss_is_that_of_the_matrix_where_blocks_are_whole(kind, noise):
    sizes, V = tree_sizes(16, 2), kind(16).gram()
    T = level_traces(V, sizes)
    weights, loss = best_level_weights(T, np.array(sizes, dtype=float), noise)
    A = np.vstack(
        [
            w * np.kron(np.eye(16 // size), np.ones((1, size)))
            for size, w in zip(sizes, weights, strict=True)
        ]
    )
    norm = np.abs(A).sum(axis=0).max() if noise == "laplace" else np.linalg.norm(A, axis=0).max()
    assert norm**2 * np.trace(np.linalg.inv(A.T @ A) @ V) == pytest.approx(loss, rel=1e-6)


def test_descent_over_two_attributes_predicts_its_own_loss():
    shape = (8, 16)
    blocks = (product(shape, {0: Prefix(8), 1: AllRanges(16)}), product(shape, {1: Prefix(16)}))
    workload = Workload(shape, blocks, (1.0, 20.0))
    problem = Problem(workload, gram(workload), "laplace", seed=0)
    promised = opt_hierarchy(problem.gram, noise="laplace").loss
    error = expected_error(closed_forms.opt_h(problem).strategy, workload)
    total = sum(
        weight * error_of_block.total_squared
        for weight, error_of_block in zip(workload.weights, error.blocks, strict=True)
    )
    assert total == pytest.approx(promised, rel=1e-3)


def test_branchings_are_few_and_possible():
    assert [baselines.best_branching(n) for n in (64, 256, 1024, 4096)] == [64, 16, 32, 16]
    assert tree_sizes(1, 2) == (1,)
    for n in (2, 3, 10, 1000, 65536):
        branching = branchings(n)
        assert 2 in branching
        assert len(branching) < 40
        assert all(2 <= b <= n for b in branching)


def test_cells_alone_need_no_hierarchy():
    workload = Workload((4, 3), (marginal((4, 3), [0, 1]),), (1.0,))
    problem = Problem(workload, gram(workload), "laplace", seed=0)
    with pytest.raises(UnsupportedWorkloadError, match="no attribute is asked for ranges"):
        baselines.h2(problem)


@pytest.mark.parametrize(
    "damage",
    [
        {"n": 9},
        {"n": 1 << 40},
        {"levels": []},
        {"levels": [[1, 0]]},
        {"levels": [[1, 1], [3, 1, 5]]},
        {"levels": [[1, 1], [2, -1]]},
        {"levels": [[2, 1], [4, 1]]},
    ],
)
def test_a_damaged_hierarchy_is_refused_when_it_is_read(damage):
    problem = problem_of(Prefix(8), "laplace")
    encoded = baselines.h2(problem).strategy.encode()
    decode_strategy(encoded, noise="laplace", workload=problem.workload)
    encoded["factors"][0] |= damage
    with pytest.raises(SpecError, match="plan"):
        decode_strategy(encoded, noise="laplace", workload=problem.workload)
