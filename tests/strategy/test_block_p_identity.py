"""p-Identities of blocks: their inverse, and the search of both scales, against dense matrices."""

import numpy as np
import pytest
from dense import random_block_p_identity
from scipy.optimize import check_grad

from dpquery.limits import LARGEST_INTEGER
from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import (
    Dense,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    PIdentity,
    Stacked,
)
from dpquery.operators.gram import Mixture, Structured, array_of, gram
from dpquery.operators.inverses import inverse_array, inverse_gram, inverse_trace, quadratic
from dpquery.operators.p_identity import BlockPIdentity
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges
from dpquery.public_chance import public_generator
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.factor_json import decode_factor, encode_factor, pack
from dpquery.strategy.optimize import opt_0
from dpquery.strategy.optimize.opt_0 import block_size, is_long_and_ordered, two_scale_rows
from dpquery.strategy.optimize.opt_0_laplace import p_identity, p_identity_loss
from dpquery.strategy.optimize.opt_hierarchy import opt_hierarchy
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.strategy import BITS, integer_factor

seeds = pytest.mark.parametrize("seed", range(12))


def dense_inverse(factor):
    A = factor.dense().astype(float)
    return np.linalg.inv(A.T @ A)


def gram_of(factor):
    return Structured(Mixture(factor.shape[1], 0.0, 0.0), ((1.0, factor),))


def workload_of(factor):
    n = factor.shape[1]
    return Workload((n,), (product((n,), {0: factor}),), (1.0,))


@seeds
def test_the_inverse_of_blocks_equals_the_dense_one(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 20))
    factor = random_block_p_identity(rng, n)
    M, dense = inverse_gram(factor), dense_inverse(factor)
    scale = np.abs(dense).max()
    assert inverse_array(M) == pytest.approx(dense, abs=1e-10 * scale)
    queries = [
        Prefix(n),
        AllRanges(n),
        WidthRanges(n, 2),
        ListedRanges(n, [(0, n - 1), (n // 2, n - 1)]),
        Identity(n),
        IdentityRows(n, np.array([n - 1, 0])),
        Ones(2, n),
        Groups.of(((0, n - 1), (1,)), n),
        Columns(Prefix(n), rng.permutation(n)),
        Dense(rng.normal(size=(4, n))),
        Stacked((Prefix(n), Ones(1, n))),
    ]
    for F in queries:
        W = F.dense().astype(float)
        expected = np.einsum("ij,jk,ik->i", W, dense, W)
        assert quadratic(F, M) == pytest.approx(expected, rel=1e-8, abs=1e-10 * scale)
        V = Structured(Mixture(n, 0.3, 0.2), ((1.5, F),))
        assert inverse_trace(M, V) == pytest.approx(float(np.sum(dense * V.array())), rel=1e-8)


def test_a_rank_that_floats_lose_is_refused():
    with pytest.raises(np.linalg.LinAlgError):
        inverse_gram(BlockPIdentity(np.full(6, 1), np.full((2, 6), 1 << 40), np.ones((1, 2)), 3))


@pytest.mark.parametrize("n", [13, 16])
@pytest.mark.parametrize("query", [Prefix, AllRanges, lambda n: WidthRanges(n, 5)])
def test_the_loss_of_both_scales_is_that_of_the_strategy(query, n):
    V = gram_of(query(n))
    rows = two_scale_rows(V, public_generator(0), 4)
    factor = rows.factor()
    assert factor.column_norms(1) == pytest.approx(np.ones(n), rel=1e-12)
    assert rows.loss == pytest.approx(float(np.sum(dense_inverse(factor) * array_of(V))), rel=1e-9)
    assert rows.selection(V).loss == pytest.approx(rows.loss, rel=1e-9)
    Theta = rows.written_out()
    assert Theta.shape == (rows.entries // n, n)
    assert p_identity_loss(Theta, V)[0] == pytest.approx(rows.loss, rel=1e-9)
    written, blocks = p_identity(Theta).dense(), factor.dense()
    assert written.T @ written == pytest.approx(blocks.T @ blocks, rel=1e-9)


def test_the_gradient_with_costs_and_what_is_beside_agrees_with_finite_differences():
    rng = np.random.default_rng(1)
    Theta, V = rng.random((2, 9)) + 0.1, Prefix(9).gram() / 45
    given = V, rng.random(9) + 0.5, rng.random(9)
    loss = lambda flat: p_identity_loss(flat.reshape(Theta.shape), *given)[0]  # noqa: E731
    slope = lambda flat: p_identity_loss(flat.reshape(Theta.shape), *given)[1].ravel()  # noqa: E731
    scale = np.linalg.norm(slope(Theta.ravel()))
    assert check_grad(loss, slope, Theta.ravel(), epsilon=1e-6) <= 1e-5 * scale


def test_only_ranges_of_many_codes_in_their_order_are_taken_by_blocks():
    n = opt_0.LEAST_CODES
    backwards = np.arange(n)[::-1]
    assert is_long_and_ordered(gram_of(Prefix(n)))
    assert is_long_and_ordered(gram_of(Columns(Prefix(n + 3), np.arange(n) + 2)))
    assert not is_long_and_ordered(gram_of(Prefix(n - 1)))
    assert not is_long_and_ordered(gram_of(Columns(Prefix(n), backwards)))
    assert not is_long_and_ordered(gram_of(Groups.of(((0, 5), (1, 3)), n)))
    assert not is_long_and_ordered(Prefix(n).gram())


@pytest.mark.parametrize("n", [1, 2, 1000, 1024, 65536])
def test_there_are_about_as_many_blocks_as_codes_in_each(n):
    size = block_size(n)
    assert size**2 <= n < 4 * size**2


def test_long_prefixes_are_measured_by_blocks_in_integers(monkeypatch):
    """Where rows written out are too many the blocks are the strategy: columns of one norm."""
    monkeypatch.setattr(opt_0, "MAX_P_IDENTITY_ENTRIES", 1 << 10)
    n = opt_0.LEAST_CODES + 5  # the last block is cut off
    workload = workload_of(Prefix(n))
    V = gram_of(Prefix(n))
    chosen = opt_0.opt_0(V, noise="laplace", rng=public_generator(0))
    assert isinstance(chosen.factor, BlockPIdentity)
    rounded = integer_factor(chosen.factor, noise="laplace")
    assert set(rounded.column_norms(1).tolist()) == {1 << BITS}
    error = expected_error(ProductStrategy("b", "laplace", (rounded,)), workload)
    dense = float(np.sum(dense_inverse(rounded) * array_of(V))) * (1 << BITS) ** 2
    assert error.rmse**2 * n == pytest.approx(dense, rel=1e-9)
    assert dense == pytest.approx(chosen.loss, rel=1e-3)
    levels = opt_hierarchy(gram(workload), noise="laplace")
    assert chosen.loss < 0.85 * levels.loss


def test_codes_in_another_order_are_not_measured_by_blocks(monkeypatch):
    monkeypatch.setattr(opt_0, "MAX_P_IDENTITY_ENTRIES", 1 << 11)
    n = opt_0.LEAST_CODES
    V = gram_of(Columns(Prefix(n), np.arange(n)[::-1]))
    chosen = opt_0.opt_0(V, noise="laplace", rng=public_generator(0), max_iterations=2)
    assert isinstance(chosen.factor, PIdentity)


def test_a_p_identity_of_many_codes_starts_from_blocks():
    n = opt_0.LEAST_CODES
    V = gram_of(Prefix(n))
    first = two_scale_rows(V, public_generator(0))
    chosen = opt_0.opt_0(V, noise="laplace", rng=public_generator(0), max_iterations=5)
    assert isinstance(chosen.factor, PIdentity)
    assert chosen.loss < first.loss


def test_a_plan_of_blocks_is_read_back_or_refused():
    factor = random_block_p_identity(np.random.default_rng(3), 7)
    raw = encode_factor(factor)
    assert decode_factor(raw, 7).key == factor.key
    size, d, inner, outer = factor.size, factor.diagonal, factor.inner, factor.outer
    blocks = outer.shape[1]
    changed = (
        {"size": 0},
        {"size": True},
        {"size": 8 if blocks > 1 else 1},
        {"diagonal": pack(np.where(np.arange(7) == 2, 0, d)[None])},
        {"diagonal": pack(-d[None])},
        {"diagonal": pack(np.stack([d, d]))},
        {"diagonal": pack(d[None, :6])},
        {"inner": pack(np.ones((size + 1, 7)))},
        {"inner": pack(inner[:, :6])},
        {"outer": pack(np.ones((blocks + 1, blocks)))},
        {"outer": pack(np.ones((1, blocks + 1)))},
        {"outer": pack(outer + (LARGEST_INTEGER + 1))},
        {"inner": {"shape": [1, 7], "data": "no"}},
    )
    for change in changed:
        with pytest.raises((LookupError, TypeError, ValueError, ArithmeticError)):
            decode_factor(raw | change, 7)
    for name in raw:
        with pytest.raises(LookupError):
            decode_factor({key: value for key, value in raw.items() if key != name}, 7)
