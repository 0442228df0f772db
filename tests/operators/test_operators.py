"""Factors, blocks and workloads against matrices made by hand: a new operator is one line."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from dense import (
    dense_block,
    dense_orbit_rows,
    dense_workload,
    indicator_rows,
    interval_rows,
    random_workload,
)
from scipy.sparse.linalg import aslinearoperator, lsmr

from dpquery.operators.blocks import (
    Block,
    Workload,
    broadcast_sum,
    kron_apply,
    marginal,
    sum_along,
    threshold_terms,
)
from dpquery.operators.blocks import product as product_block
from dpquery.operators.cells import BETWEEN, OrbitAxis, OrbitRows
from dpquery.operators.factors import (
    Centered,
    Dense,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    Stacked,
    Valued,
    Weighted,
    total,
    weighted,
)
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, Ranges, WidthRanges
from dpquery.operators.trees import Hierarchy


def prefix_bounds(n):
    return [(0, j) for j in range(n)]


def all_bounds(n):
    return [(i, j) for i in range(n) for j in range(i, n)]


def hierarchy_rows(n, levels):
    return np.vstack(
        [
            weight * interval_rows(n, [(k, min(k + size, n) - 1) for k in range(0, n, size)])
            for size, weight in levels.items()
        ]
    )


SIGNED = np.random.default_rng(1).integers(-9, 10, (4, 5))
REAL = np.random.default_rng(2).normal(size=(3, 5))
LISTED = [(1, 3), (0, 0), (2, 2), (0, 4), (1, 3)]
GROUPS = ((0, 3), (1,), (0, 1, 2, 3, 4))
PREFIX = interval_rows(5, prefix_bounds(5))
WEIGHTED = np.vstack([PREFIX, [[1] * 5]]) * np.sqrt(np.arange(6.0))[:, None]
VALUES = np.array([7, -3, 0, 40, 12])
D, B = np.array([3, 1, 4, 1, 5]), np.arange(10).reshape(2, 5)

ORBITS = OrbitRows(
    (OrbitAxis(np.array([0, 0, 1])), OrbitAxis(np.array([0, 1, 0, 0]))),
    {
        (BETWEEN, BETWEEN): np.arange(1, 17).reshape(4, 4),
        (0, BETWEEN): np.array([[3, -1], [0, 2]]),
        (BETWEEN, 0): np.array([[1, 4]]),
        (0, 0): np.array([[5]]),
    },
)


# One line an operator: the factor, and its matrix made in another way.
def block_rows(diagonal, inner, outer, size):
    n = len(diagonal)
    blocks = [(np.arange(n) // size == b).astype(int) for b in range(outer.shape[1])]
    return np.vstack(
        [np.diag(diagonal), *(row * u for row in inner for u in blocks), outer @ blocks]
    )


FACTORS = [
    (Identity(5), np.eye(5, dtype=int)),
    (Identity(1), np.array([[1]])),
    (IdentityRows(5, np.arange(4)), np.eye(5, dtype=int)[:4]),
    (IdentityRows(5, np.array([3, 0])), np.eye(5, dtype=int)[[3, 0]]),
    (IdentityRows(2, np.array([1])), np.array([[0, 1]])),
    (Columns(IdentityRows(5, np.array([3, 0])), np.array([4, 3])), np.array([[0, 1], [0, 0]])),
    (
        Stacked((IdentityRows(5, np.arange(4)), total(5))),
        np.vstack([np.eye(5, dtype=int)[:4], [[1] * 5]]),
    ),
    (total(5), np.array([[1] * 5])),
    (Ones(3, 5), np.array([[1] * 5] * 3)),
    (Centered(5), 5 * np.eye(5, dtype=int) - 1),
    (Centered(2), np.array([[1, -1], [-1, 1]])),
    (Dense(SIGNED), SIGNED),
    (ORBITS, dense_orbit_rows(ORBITS)),
    (Dense(REAL), REAL),
    (PIdentity(D, B), np.vstack([np.diag(D), B])),
    (PIdentity(D / 7, B / 7), np.vstack([np.diag(D), B]) / 7),
    (PIdentity(D, B[:0]), np.diag(D)),
    (BlockPIdentity(D, B[:1], B[1:, :3], 2), block_rows(D, B[:1], B[1:, :3], 2)),
    (BlockPIdentity(D / 7, B, B[:1, :2], 3), block_rows(D / 7, B, B[:1, :2], 3)),
    (BlockPIdentity(D, B[:0], B[:, :1], 9), np.vstack([np.diag(D), np.repeat(B[:, :1], 5, 1)])),
    (Stacked((Identity(5), total(5))), np.vstack([np.eye(5, dtype=int), [[1] * 5]])),
    (Stacked((Prefix(5), Dense(REAL))), np.vstack([interval_rows(5, prefix_bounds(5)), REAL])),
    (Weighted(Prefix(5), np.arange(5.0)), PREFIX * np.sqrt(np.arange(5.0))[:, None]),
    (weighted(Stacked((Prefix(5), total(5))), np.arange(6.0)), WEIGHTED),
    (Weighted(Identity(5), D / 7), np.diag(np.sqrt(D / 7))),
    (Groups.of(GROUPS, 5), indicator_rows(5, GROUPS)),
    (ListedRanges(5, LISTED), interval_rows(5, LISTED)),
    (Prefix(5), interval_rows(5, prefix_bounds(5))),
    (Prefix(6, 5), interval_rows(6, prefix_bounds(5))),
    (Prefix(1), np.array([[1]])),
    (AllRanges(5), interval_rows(5, all_bounds(5))),
    (AllRanges(7, 5), interval_rows(7, all_bounds(5))),
    (AllRanges(1), np.array([[1]])),
    (WidthRanges(5, 3), interval_rows(5, [(0, 2), (1, 3), (2, 4)])),
    (WidthRanges(5, 5), np.array([[1] * 5])),
    (WidthRanges(5, 1), np.eye(5, dtype=int)),
    (Hierarchy(5, (1, 2, 4), (3, 1, 2)), hierarchy_rows(5, {1: 3, 2: 1, 4: 2})),
    (Hierarchy(6, (1, 3, 6), (1, 1, 1)), hierarchy_rows(6, {1: 1, 3: 1, 6: 1})),
    (Hierarchy(4, (1,), (7,)), 7 * np.eye(4, dtype=int)),
    (
        Columns(AllRanges(5), np.array([3, 0, 4, 1, 2])),
        interval_rows(5, all_bounds(5))[:, [3, 0, 4, 1, 2]],
    ),
    (Columns(Prefix(5), np.array([4, 1])), interval_rows(5, prefix_bounds(5))[:, [4, 1]]),
    (Columns(Dense(REAL), np.array([1, 0])), REAL[:, [1, 0]]),
    (Valued(total(5), VALUES), VALUES[None, :]),
    (Valued(Identity(5), VALUES), np.diag(VALUES)),
    (Valued(Prefix(5), VALUES), PREFIX * VALUES),
    (Valued(Groups.of(GROUPS, 5), VALUES), indicator_rows(5, GROUPS) * VALUES),
    (Valued(AllRanges(5), VALUES), interval_rows(5, all_bounds(5)) * VALUES),
    (
        Valued(Stacked((IdentityRows(5, np.arange(4)), total(5))), VALUES),
        np.vstack([np.eye(5, dtype=int)[:4], [[1] * 5]]) * VALUES,
    ),
    (Valued(total(2), np.array([0, 0])), np.array([[0, 0]])),
    (Columns(Valued(Prefix(5), VALUES), np.array([4, 1])), (PREFIX * VALUES)[:, [4, 1]]),
    (Weighted(Valued(total(5), VALUES), np.array([2.5])), VALUES[None, :] * np.sqrt(2.5)),
]
every_factor = pytest.mark.parametrize(
    ("factor", "F"), FACTORS, ids=lambda v: type(v).__name__ if hasattr(v, "key") else ""
)


@every_factor
def test_products_equal_the_matrix(factor, F):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(F.shape[1], 3)), rng.normal(size=(F.shape[0], 3))
    assert factor.shape == F.shape
    assert np.allclose(factor.dense(), F, rtol=0, atol=0)
    assert np.allclose(factor.matmat(X), F @ X)
    assert np.allclose(factor.rmatmat(Y), F.T @ Y)
    assert np.allclose(factor.matvec(X[:, 0]), F @ X[:, 0])
    assert np.allclose(factor.rmatvec(Y[:, 0]), F.T @ Y[:, 0])


@every_factor
def test_a_row_is_that_of_the_matrix(factor, F):
    for number in {0, len(F) // 2, len(F) - 1}:
        np.testing.assert_array_equal(factor.row(number), F[number])


@every_factor
def test_summaries_equal_the_matrix(factor, F):
    A = np.random.default_rng(4).normal(size=(F.shape[1], F.shape[1]))
    assert np.allclose(factor.gram(), F.T @ F)
    for power in (1, 2):
        assert np.allclose(factor.column_norms(power), (np.abs(F) ** power).sum(axis=0))
    assert np.array_equal(factor.column_counts(), (F != 0).sum(axis=0))
    for codes in ([0], range(F.shape[1]), range(F.shape[1])[::-2]):
        codes = np.array(codes)
        assert np.allclose(factor.gram_at(codes), (F.T @ F)[np.ix_(codes, codes)])
    if isinstance(factor, Ranges):
        for size in (1, 2, 3, F.shape[1]):
            held = np.add.reduceat(F, np.arange(0, F.shape[1], size), axis=1)
            assert np.allclose(factor.gram_of_spans(size), held.T @ held)
    assert np.abs(F).max() <= factor.max_abs < np.abs(F).max() + 1
    assert np.abs(F).sum(axis=1).max() <= factor.growth()
    for power in (2, 4):
        assert np.allclose(factor.row_power_sums(A, power), (np.abs(F @ A) ** power).sum(axis=1))
    assert np.allclose(factor.quadratic(A + A.T), np.diag(F @ (A + A.T) @ F.T))
    assert np.allclose(factor.row_sums, F.sum(axis=1))
    assert np.allclose(factor.row_squares, (F**2).sum(axis=1))
    for power in range(4):
        assert np.allclose(factor.row_powers(power), (F.astype(float) ** power).sum(axis=1))


MANY = 1 << 20  # codes; squared, an array of 8 TB


@pytest.mark.parametrize(
    ("factor", "entries", "square"),
    [
        (PIdentity(np.full(MANY, 3), np.full((1, MANY), 2)), 2, 4 * MANY),
        (Groups.of(((0, 1), (MANY - 1,)), MANY), 1, 1),
    ],
    ids=["p-Identity", "groups"],
)
def test_a_million_codes_are_summarised_without_a_square_array(factor, entries, square):
    assert factor.column_counts()[[0, -1]].tolist() == [entries, entries]
    assert factor.row_squares[-1] == factor.row_powers(2)[-1] == square


@every_factor
def test_integers_stay_exact_beyond_float_precision(factor, F):
    if not np.issubdtype(F.dtype, np.integer):
        assert np.issubdtype(factor.dtype, np.floating)
        return
    x = 2**53 + np.random.default_rng(5).integers(0, 99, F.shape[1])
    y = 2**53 + np.random.default_rng(6).integers(0, 99, F.shape[0])
    assert factor.matvec(x).tolist() == (F.astype(object) @ x.astype(object)).tolist()
    assert factor.rmatvec(y).tolist() == (F.T.astype(object) @ y.astype(object)).tolist()
    assert np.issubdtype(factor.column_norms(2).dtype, np.integer)


@every_factor
def test_keys_are_equal_for_equal_matrices_alone(factor, F):
    for other, G in FACTORS:
        if factor.key == other.key:
            assert F.shape == G.shape
            assert np.array_equal(F, G)
        assert (factor.key == other.key) or factor is not other


@every_factor
def test_scipy_takes_factors_as_they_are(factor, F):
    x = np.arange(F.shape[1], dtype=float)
    operator = aslinearoperator(factor)
    assert np.allclose(operator @ x, F @ x)
    assert np.allclose(operator.H @ (F @ x), F.T @ F @ x)


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: WidthRanges(4, 5), "width 5 outside 1..4"),
        (lambda: WidthRanges(4, 0), "width 0 outside 1..4"),
        (lambda: PIdentity(np.ones(3), np.ones((1, 4))), "4 columns below a diagonal of 3"),
        (lambda: BlockPIdentity(np.ones(3), np.ones((1, 3)), np.ones((1, 3)), 2), "3 blocks of 2"),
        (lambda: Workload((2,), (), ()), "without blocks"),
        (lambda: Workload((2,), (marginal((2,), [0]),), (0.0,)), "positive and finite"),
        (lambda: Workload((2,), (marginal((2,), [0]),), (np.inf,)), "positive and finite"),
        (lambda: Block((2,), (0,), (), (), 0), "one factor and one mark for each attribute"),
        (lambda: Block((2,), (0,), (Identity(2),), (True,), 2), "2 of 1 predicates"),
        (lambda: Block((2,), (0,), (Identity(2),), (True,), 0), "0 of 1 predicates"),
        (lambda: Block((2,), (0,), (Identity(2),), (False,), 1), "1 of 0 predicates"),
    ],
)
def test_impossible_operators_are_refused(build, complaint):
    with pytest.raises(ValueError, match=complaint):
        build()


@pytest.mark.parametrize(
    ("counted", "r"),
    [
        (counted, r)
        for k in range(5)
        for counted in product([True, False], repeat=k)
        for r in range(min(1, sum(counted)), sum(counted) + 1)
    ],
)
def test_threshold_terms_count_predicates(counted, r):
    for hits in product([0, 1], repeat=len(counted)):
        value = sum(
            coef * all(h for h, inside in zip(hits, mask, strict=True) if inside)
            for coef, mask in threshold_terms(counted, r)
        )
        enough = sum(h for h, is_counted in zip(hits, counted, strict=True) if is_counted) >= r
        fixed = all(h for h, is_counted in zip(hits, counted, strict=True) if not is_counted)
        assert value == (enough and fixed)


def blocks():
    """Products and every r-of-k with fixed conditions, over one domain with a class of one."""
    shape = (3, 2, 1, 4)
    kinds = [
        Prefix(3),
        Groups.of(((0,), (0, 1)), 2),
        Identity(1),
        ListedRanges(4, [(1, 2), (3, 3)]),
    ]
    for k in range(5):
        for attributes in combinations(range(4), k):
            factors = tuple(kinds[i] for i in attributes)
            for counted in product([True, False], repeat=k):
                for r in range(min(1, sum(counted)), sum(counted) + 1):
                    yield Block(shape, attributes, factors, counted, r)


def test_blocks_equal_counting_predicates_cell_by_cell():
    rng = np.random.default_rng(7)
    for block in blocks():
        W, x = dense_block(block), rng.integers(0, 2**50, 24)
        y = rng.integers(-(2**40), 2**40, block.shape[0])
        assert block.shape == W.shape
        assert block.matvec(x).tolist() == (W @ x).tolist()
        assert block.rmatvec(y).tolist() == (W.T @ y).tolist()


def test_a_block_without_attributes_is_the_total():
    block = marginal((3, 4), [])
    assert block.shape == (1, 12)
    assert block.matvec(np.arange(12)).tolist() == [66]
    assert block.rmatvec(np.array([5])).tolist() == [5] * 12
    assert block.dtype == np.int64


@pytest.mark.parametrize("seed", range(12))
def test_scipy_takes_workloads_and_blocks_as_they_are(seed):
    rng = np.random.default_rng(seed)
    workload = random_workload(rng)
    for operator in (workload, *workload.blocks):
        W = dense_block(operator) if isinstance(operator, Block) else dense_workload(operator)[0]
        x, y = rng.normal(size=W.shape[1]), rng.normal(size=W.shape[0])
        linear = aslinearoperator(operator)
        assert linear.shape == W.shape
        assert np.allclose(linear @ x, W @ x)
        assert np.allclose(linear.H @ y, W.T @ y)
        solution = lsmr(operator, y, atol=1e-13, btol=1e-13, conlim=0, maxiter=1000)[0]
        assert np.allclose(W @ solution, W @ np.linalg.lstsq(W, y, rcond=1e-12)[0], atol=1e-6)


def test_select_keeps_blocks_with_their_weights():
    workload = random_workload(np.random.default_rng(3), blocks=6)
    order = list(range(len(workload.blocks)))[::-1]
    chosen = workload.select(order)
    assert chosen.blocks == workload.blocks[::-1]
    assert chosen.weights == workload.weights[::-1]
    assert chosen.attributes == workload.attributes


def test_shapes_of_huge_domains_are_exact():
    block = marginal((1000,) * 40, [0, 39])
    assert block.shape == (10**6, 10**120)
    assert Workload((1000,) * 40, (block,), (1.0,)).shape == (10**6, 10**120)


def test_kron_apply_is_one_product_along_each_axis():
    rng = np.random.default_rng(8)
    A, B, C = rng.normal(size=(2, 3)), rng.normal(size=(5, 4)), rng.normal(size=(1, 2))
    X = rng.normal(size=(3, 4, 2))
    expected = np.kron(np.kron(A, B), C) @ X.ravel()
    computed = kron_apply([A.__matmul__, B.__matmul__, C.__matmul__], X)
    assert computed.shape == (2, 5, 1)
    assert np.allclose(computed.ravel(), expected)
    assert kron_apply([], np.array(7)) == 7


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_kron_apply_in_pieces_is_the_same_to_the_last_integer(monkeypatch, piece):
    monkeypatch.setattr("dpquery.operators.blocks.PIECE", piece)
    X = np.random.default_rng(9).integers(-99, 99, (3, 5, 1, 4))
    factors = [Prefix(3), Centered(5), None, AllRanges(4)]
    matrices = [np.eye(1, dtype=int) if factor is None else factor.dense() for factor in factors]
    computed = kron_apply([None if factor is None else factor.matmat for factor in factors], X)
    assert computed.dtype == np.int64
    assert np.array_equal(computed, np.einsum("ai,bj,ck,dl,ijkl->abcd", *matrices, X))


@pytest.mark.parametrize("short", [0, 99])
def test_a_broadcast_sum_spreads_every_part_over_the_axes_that_it_lacks(monkeypatch, short):
    monkeypatch.setattr("dpquery.operators.blocks.SHORT", short)
    rng = np.random.default_rng(10)
    shape, spreads = (3, 2, 4), [rng.normal(size=(3, 1, 1)), 1, np.array(0.25)]
    sets = [b for size in range(4) for b in combinations(range(3), size)]
    for first in (0, 4):  # all sets; and those from some two-element ones upwards
        parts = {
            b: rng.normal(size=[n if i in b else 1 for i, n in enumerate(shape)])
            for b in sets[first:]
        }
        expected = sum(
            part * math.prod(spreads[i] for i in range(3) if i not in b)
            for b, part in parts.items()
        )
        assert np.allclose(broadcast_sum(parts, spreads), expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sums_along_short_and_long_axes_are_the_same(monkeypatch, axis):
    X = np.random.default_rng(11).integers(0, 99, (3, 4, 5))
    for short in (0, 99):
        monkeypatch.setattr("dpquery.operators.blocks.SHORT", short)
        assert np.array_equal(sum_along(X, axis), X.sum(axis=axis, keepdims=True))


@pytest.mark.parametrize("counted", list(product([False, True], repeat=3)))
def test_blocks_of_every_mixture_answer_as_their_matrix(counted):
    shape, rng = (3, 2, 4), np.random.default_rng(12)
    factors = (Prefix(3), Identity(2), Groups.of(((0, 1), (2,), (1, 3)), 4))
    table = rng.integers(0, 99, shape)
    for r in range(min(1, sum(counted)), sum(counted) + 1):
        block = Block(shape, (0, 1, 2), factors, counted, r)
        W = dense_block(block)
        assert np.array_equal(block.apply(table).ravel(), W @ table.ravel())
        rows = rng.integers(-9, 9, block.row_shape)
        assert np.array_equal(block.adjoint(rows).ravel(), W.T @ rows.ravel())


def test_product_sorts_attributes_and_sums_the_others():
    block = product_block((2, 3, 4), {2: Prefix(4), 0: Identity(2)})
    assert block.attributes == (0, 2)
    x = np.arange(24)
    assert np.array_equal(
        block.matvec(x), np.cumsum(x.reshape(2, 3, 4).sum(axis=1), axis=1).ravel()
    )


def test_few_columns_of_a_wide_factor_are_never_spread_over_all_of_its_codes():
    n, codes = 100_000, np.array([7, 50_000, 99_999])
    few = Columns(ListedRanges(n, np.array([[0, 50_000], [50_001, n - 1]])), codes)
    M = np.array([[2.0, 1.0, 0.5], [1.0, 3.0, 0.0], [0.5, 0.0, 1.0]])
    # All codes squared are 75 GB, which no test machine has.
    assert few.quadratic(M).tolist() == [2 + 3 + 2 * 1.0, 1.0]
