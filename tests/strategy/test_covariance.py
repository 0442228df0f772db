"""Covariances of any two answers, of every shape, held against those of dense coefficients."""

import tracemalloc

import numpy as np
import pytest
from test_shapes import every_shape, strategies

from dpquery.operators.blocks import product
from dpquery.operators.factors import Identity
from dpquery.operators.ranges import Prefix
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.algebra import query_powers
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows
from dpquery.strategy.shapes.marginals import MarginalsStrategy

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3)))


def answers_to_unit_noise(strategy, block, position):
    """Coefficients of every answer on every measured row: estimates of one unit at a time."""
    sizes = [rows.block.queries for rows in strategy.measurements]
    ends = np.cumsum(sizes)[:-1]
    columns = [
        reconstruct(strategy, np.split(unit, ends)).answer(block, position).ravel()
        for unit in np.eye(sum(sizes))
    ]
    return np.array(columns).T


def all_rows(block, position=None):
    return QueryRows(block, np.arange(block.queries), position)


def close(given, expected):
    scale = max(np.abs(expected).max(initial=0.0), 1e-30)
    return np.abs(given - expected).max(initial=0.0) <= 1e-8 * scale


@every_shape
@pytest.mark.parametrize("seed", SEEDS)
def test_covariances_are_those_of_the_estimates(kind, seed, monkeypatch):
    if seed % 2:  # distinct pairs are worked out one by one
        monkeypatch.setattr(query_powers, "MAX_CROSSED", 2)
    for strategy, workload in strategies(kind, seed):
        C = [answers_to_unit_noise(strategy, *pair[::-1]) for pair in enumerate(workload.blocks)]
        for i, left in enumerate(workload.blocks):
            own = strategy.covariances(QueryPairs(first := all_rows(left, i), first))
            assert close(own, (C[i] ** 2).sum(axis=1))
            across = QueryRows(left, first.places[:, None], i)
            for j, right in enumerate(workload.blocks):
                pairs = QueryPairs(across, all_rows(right, j))
                assert close(strategy.covariances(pairs), C[i] @ C[j].T), (i, j)


@every_shape
@pytest.mark.parametrize("seed", SEEDS)
def test_so_are_those_with_later_questions(kind, seed):
    """Of the margins of a block, which the workload does not hold."""
    compared = 0
    for strategy, workload in strategies(kind, seed):
        for position, block in enumerate(workload.blocks):
            factors = dict(zip(block.attributes, block.factors, strict=True))
            for i in block.attributes:
                margin = product(block.shape_of_domain, {k: factors[k] for k in factors if k != i})
                if not (block.is_product and strategy.supports(margin)):
                    continue
                C = answers_to_unit_noise(strategy, block, position)
                M = answers_to_unit_noise(strategy, margin, None)
                across = QueryRows(block, np.arange(block.queries)[:, None], position)
                pairs = QueryPairs(across, all_rows(margin))
                assert close(strategy.covariances(pairs), C @ M.T)
                compared += 1
    assert compared or kind in ("workload", "cell-classes", "orbits", "coarser", "union")


def test_of_many_pairs_no_square_array_is_made():
    """Cells of 5,000 codes with their total, and each prefix with the next."""
    n = 5_000
    strategy = MarginalsStrategy("m", "gaussian", (n, 4), {(0, 1): 3, (0,): 2, (): 5})
    cells = product((n, 4), {0: Identity(n), 1: Identity(4)})
    margin = product((n, 4), {0: Identity(n)})
    codes, others = np.divmod(np.arange(4 * n), 4)
    tracemalloc.start()
    pairs = QueryPairs(QueryRows(cells, codes * 4 + others), QueryRows(margin, codes))
    with_margin = strategy.covariances(pairs)
    prefixes = product((n, 4), {0: Prefix(n)})
    few = np.arange(0, n - 1, 50)
    steps = QueryPairs(QueryRows(prefixes, few), QueryRows(prefixes, few + 1))
    with_next = strategy.covariances(steps)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * n * n / 4
    assert np.ptp(with_margin) < 1e-12
    each = [QueryRows(prefixes, few + step) for step in (0, 1)]
    first, second = (strategy.covariances(QueryPairs(rows, rows)) for rows in each)
    assert np.all(with_next**2 <= first * second)
    assert np.all(with_next > 0)
