"""The Gram as a sum of Kronecker products equals W'W, signed blocks included."""

import numpy as np
import pytest
from dense import dense_workload, random_workload

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Identity, Stacked, total
from dpquery.operators.gram import array_of, gram, is_mixture, trace, trace_with
from dpquery.operators.ranges import Prefix
from dpquery.strategy.search.select import select

seeds = pytest.mark.parametrize("seed", range(40))


def dense_gram(workload):
    W, w = dense_workload(workload)
    return W.T @ (w[:, None] * W)


@seeds
def test_gram_equals_the_dense_product(seed):
    workload = random_workload(np.random.default_rng(seed))
    V, expected = gram(workload), dense_gram(workload)
    x = np.random.default_rng(seed).normal(size=len(expected))
    assert np.allclose(V.dense(), expected)
    assert np.allclose(V.matvec(x), expected @ x)
    assert V.trace == pytest.approx(np.trace(expected))


@seeds
def test_term_traces_add_up_to_the_trace_against_a_product(seed):
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, attributes=3)
    V, inverses = gram(workload), [rng.normal(size=(n, n)) for n in workload.shape_of_domain]
    inverses = [M + M.T for M in inverses]
    big = np.eye(1)
    for M in inverses:
        big = np.kron(big, M)
    pairs = zip(inverses, V.matrices, strict=True)
    traces = [np.array([trace_with(M, each) for each in matrices]) for M, matrices in pairs]
    computed = V.weights @ V.term_traces(traces).prod(axis=1)
    expected = np.sum(big * dense_gram(workload))
    assert computed == pytest.approx(expected, abs=1e-9 * np.abs(big).sum() * V.trace)


def test_every_threshold_of_four_attributes_has_its_gram():
    shape = (2, 3, 1, 2)
    factors = (Identity(2), Prefix(3), Identity(1), Identity(2))
    for r in range(1, 5):
        block = Block(shape, (0, 1, 2, 3), factors, (True,) * 4, r)
        workload = Workload(shape, (block,), (1.0,))
        assert np.allclose(gram(workload).dense(), dense_gram(workload))


def test_equal_terms_are_merged():
    shape = (3, 4)
    blocks = (marginal(shape, [0]), marginal(shape, [0]), product(shape, {1: total(4)}))
    V = gram(Workload(shape, blocks, (1.0, 2.0, 5.0)))
    assert sorted(V.weights) == [3.0, 5.0]


def test_mixtures_are_recognised_at_any_scale():
    for scale in (1e-12, 1.0, 1e12):
        assert is_mixture(scale * (3 * np.eye(4) + 2))
        assert not is_mixture(scale * Prefix(4).gram())
    assert is_mixture(np.ones((1, 1)))
    assert is_mixture(2 * np.eye(3))
    assert not is_mixture(np.diag([1.0, 2.0, 1.0]))


@pytest.mark.slow
def test_an_attribute_of_a_million_values_costs_no_dense_matrix():
    n = 1_000_000
    both = Stacked((Identity(n), total(n)))
    blocks = (product((n, 3), {0: both, 1: Prefix(3)}), marginal((n, 3), [0]))
    workload = Workload((n, 3), blocks, (1.0, 1.0))
    V = gram(workload)
    assert V.trace == pytest.approx(2 * n * 6 + 3 * n)
    selection = select(workload, noises=("laplace",))["laplace"]
    names = {candidate.name for candidate in selection.candidates if candidate.proposal is not None}
    assert names >= {"Identity", "Workload", "OPT_M"}


def test_an_array_over_too_many_values_is_refused_before_memory_is():
    n = 20_000
    workload = Workload((n,), (product((n,), {0: Prefix(n)}),), (1.0,))
    V = gram(workload).matrices[0][1]
    assert trace(V) == n * (n + 1) / 2
    with pytest.raises(UnsupportedWorkloadError, match="20,000 distinct values"):
        array_of(V)
