"""The dual bound is what it claims at every v, and no strategy is below it."""

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from dense import dense_workload, random_workload

import dpquery.strategy.root_trace as module
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Groups, Identity, Stacked
from dpquery.operators.gram import array_of, gram
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.spec.parsing.read import load_spec
from dpquery.strategy.algebra.orbits import orbits_of
from dpquery.strategy.algebra.roots import root_nodes
from dpquery.strategy.bounds import lower_bound, svd_bound
from dpquery.strategy.dual_bound import _evaluate, dual_bound
from dpquery.strategy.optimize.opt_0 import opt_0

ROOT = Path(__file__).parents[2]


def pairs(shape, factor, *, width=2):
    """A product of every few attributes."""
    chosen = list(combinations(range(len(shape)), width))
    blocks = tuple(product(shape, {i: factor(shape[i]) for i in S}) for S in chosen)
    return Workload(shape, blocks, tuple(1.0 + k for k in range(len(blocks))))


def grouped(n):
    """Values, and groups of codes that make some of them interchangeable."""
    halves = (tuple(range(n // 2)), tuple(range(n // 2, n - 1)))
    return Stacked((Identity(n), Groups.of(halves, n)))


def interchangeable(matrices):
    """Classes of codes by the definition: every swap leaves every matrix as it is."""
    arrays = [array_of(V) for V in matrices]
    n, place = len(arrays[0]), []
    for code in range(n):
        for first in range(code + 1):
            swap = np.arange(n)
            swap[[first, code]] = code, first
            if all(np.array_equal(V[np.ix_(swap, swap)], V) for V in arrays):
                place.append(first)
                break
    return np.unique(place, return_inverse=True)[1]


def random_duals(rng, orbits):
    return [rng.uniform(0.05, 1.0, len(orbit.sizes)) for orbit in orbits]


def spread_over_codes(by_orbit, place):
    """kron_i v_i over the cells, v_i given by orbit."""
    v = np.ones(1)
    for values, at in zip(by_orbit, place, strict=True):
        v = np.kron(v, values[at])
    return v / v.sum()


def dense_root(workload, v):
    """(D V D)^(1/2) of the workload's own rows."""
    W, w = dense_workload(workload)
    half = np.sqrt(w)[:, None] * W * np.sqrt(v)
    _, values, rows = np.linalg.svd(half.astype(float), full_matrices=False)
    return (rows.T * values) @ rows


def some_workloads():
    for seed in range(20):
        yield random_workload(np.random.default_rng(seed))
    yield pairs((3, 4, 2, 3), Prefix)
    yield pairs((4, 3, 3), AllRanges)
    yield pairs((6, 5, 2), grouped)
    yield pairs((3, 2, 3, 2), Prefix, width=3)


CASES = list(some_workloads())


@pytest.mark.parametrize("workload", CASES)
@pytest.mark.parametrize("dense", [10_000, 0])
def test_the_bound_and_its_masses_at_any_v_are_those_of_the_dense_root(
    workload, dense, monkeypatch
):
    monkeypatch.setattr(module, "DENSE", dense)  # at 0 every block that can be is eliminated
    V = gram(workload)
    orbits = [orbits_of(matrix) for matrix in V.matrices]
    place = [interchangeable(matrix) for matrix in V.matrices]
    vs = random_duals(np.random.default_rng(1), orbits)
    v = spread_over_codes(vs, place)
    root = dense_root(workload, v)
    exact, bound = float(np.trace(root)) ** 2, _evaluate(V, orbits, vs)
    assert bound.loss <= exact * (1 + 1e-9)
    assert bound.loss >= exact * (1 - (1e-6 if dense else 3e-3))
    alone = _evaluate(V, orbits, vs, 0.0)  # without masses where blocks are eliminated
    assert alone.loss == pytest.approx(bound.loss, rel=1e-9)
    assert dense == 0 or alone.masses is not None
    diagonal = np.diagonal(root).reshape(workload.shape_of_domain) / np.trace(root)
    for i, (mass, at) in enumerate(zip(bound.masses, place, strict=True)):
        others = tuple(j for j in range(diagonal.ndim) if j != i)
        np.testing.assert_allclose(
            mass[at], diagonal.sum(axis=others), rtol=0, atol=1e-6 if dense else 2e-2
        )


@pytest.mark.parametrize("workload", CASES)
def test_no_strategy_is_below_the_bound_and_it_is_no_worse_than_the_svd_bound(workload):
    V = gram(workload)
    best = opt_0(V.dense(), noise="gaussian", rng=np.random.default_rng(0), max_iterations=40)
    assert dual_bound(V) <= best.loss * (1 + 1e-9)
    assert svd_bound(V).loss <= lower_bound(V).loss <= best.loss * (1 + 1e-9)


@pytest.mark.parametrize("workload", [pairs((3, 4, 2, 3), Prefix), pairs((6, 5, 2), grouped)])
def test_the_climb_ends_near_the_best_strategy(workload):
    V = gram(workload)
    best = opt_0(V.dense(), noise="gaussian", rng=np.random.default_rng(0))
    assert dual_bound(V) > 0.99 * best.loss
    assert dual_bound(V) > 1.02 * svd_bound(V).loss


@pytest.mark.parametrize("seed", range(20))
def test_orbits_are_the_classes_of_interchangeable_codes(seed):
    V = gram(random_workload(np.random.default_rng(seed), size=6))
    for V_i in V.matrices:
        place, orbits = interchangeable(V_i), orbits_of(V_i)
        sizes = np.bincount(place)
        assert orbits.sizes.tolist() == sizes.tolist()
        indicator = np.eye(len(sizes))[place] / np.sqrt(sizes)
        for u, matrix in enumerate(V_i):
            dense = array_of(matrix)
            np.testing.assert_allclose(orbits.levels[u], indicator.T @ dense @ indicator, atol=1e-9)
            within = np.diag(orbits.inside[u][place]) @ (
                np.eye(len(place)) - indicator @ indicator.T
            )
            np.testing.assert_allclose(
                within + indicator @ orbits.levels[u] @ indicator.T, dense, atol=1e-9
            )


def test_orbits_of_a_sum_with_real_weights_are_found():
    groups = Groups.of(((0, 1, 2), (3, 4, 5, 6), (7, 8)), 9)
    for first, second in ((4.0, 4.0), (0.1, 0.7), (1 / 3, 1e-7)):
        V = first * np.eye(9) + second * groups.gram()
        assert orbits_of([V]).sizes.tolist() == [3, 4, 2]


def test_the_sum_over_poles_is_below_the_root_and_close_to_it():
    whole = 7e5
    c, tau, slope = root_nodes(whole)
    x = np.concatenate([[0.0], whole * np.logspace(-20, 0, 4001)])
    r = (c * x[:, None] / (x[:, None] + tau)).sum(axis=1) + slope * x
    assert np.all(r <= np.sqrt(x))
    wide = x > 1e-9 * whole
    assert np.all(r[wide] >= 0.98 * np.sqrt(x[wide]))
    middle = wide & (x < 1e-2 * whole) & (x > 1e-7 * whole)
    assert np.all(r[middle] >= 0.998 * np.sqrt(x[middle]))


def test_a_bound_that_takes_too_long_is_not_claimed(monkeypatch):
    monkeypatch.setattr(module, "MAX_ASSEMBLED", -1)
    shape = (4, 3, 2)
    factors = (Prefix(4), Prefix(3), Prefix(2))
    blocks = (Block(shape, (0, 1, 2), factors, (True,) * 3, 2), product(shape, {0: AllRanges(4)}))
    assert dual_bound(gram(Workload(shape, blocks, (1.0, 1.0)))) is None


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("sf1", 1.903),
        ("sf1plus", 2.114),
        ("thresholds", 4.616),
        pytest.param("starter", 3.98, marks=pytest.mark.slow),
        pytest.param("sample_persons", 4.97, marks=pytest.mark.slow),
        pytest.param("adult_prefix", 16.6, marks=pytest.mark.slow),
        pytest.param("loans_small_prefix", 12.65, marks=pytest.mark.slow),
    ],
)
def test_examples_that_are_neither_products_nor_marginals_have_a_bound(name, least):
    workload = compile_spec(load_spec(ROOT / "workloads" / f"{name}.yaml")).workload
    V = gram(workload)
    assert svd_bound(V) is None
    assert math.sqrt(lower_bound(V).loss / workload.shape[0]) > least
