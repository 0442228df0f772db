"""OPT_0: roots without eigenvectors, honest certificates, warm starts, p-Identities of blocks."""

import math
from itertools import pairwise

import numpy as np
import pytest
from dense import random_block_p_identity, rng
from scipy.linalg import qr
from scipy.optimize import check_grad

import dpquery.strategy.optimize.fixed_point as opt_0_gaussian
import dpquery.strategy.optimize.opt_0 as searches
import dpquery.strategy.optimize.opt_0_laplace as opt_0_laplace
from dpquery.exceptions import OutOfTimeError, UnsupportedWorkloadError
from dpquery.limits import LARGEST_INTEGER
from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Dense, Groups, Identity, IdentityRows, Ones, Stacked, total
from dpquery.operators.gram import Mixture, Structured, array_of, gram
from dpquery.operators.inverses import (
    inverse_array,
    inverse_gram,
    inverse_trace,
    least_squares,
    quadratic,
)
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges
from dpquery.operators.trees import Hierarchy
from dpquery.progress import reporting
from dpquery.public_chance import public_generator
from dpquery.reconstruction.checks import flaw_of
from dpquery.strategy.algebra.joint_system import axis_basis
from dpquery.strategy.algebra.orbits import MergedGram, few_orbits, orbits_of
from dpquery.strategy.algebra.roots import QUADRATURE_TOLERANCE, TridiagonalInverse, quadrature
from dpquery.strategy.bounds import solved_dual_bound, svd_bound
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.factor_json import decode_factor, encode_factor, pack
from dpquery.strategy.optimize.fixed_point import (
    FINE_GAP,
    OPTIMALITY_GAP,
    cells_optimum,
    moves_optimum,
    optimum,
)
from dpquery.strategy.optimize.opt_0 import block_size, is_long_and_ordered, opt_0, two_scale_rows
from dpquery.strategy.optimize.opt_0_laplace import p_identity, p_identity_loss
from dpquery.strategy.optimize.opt_hierarchy import opt_hierarchy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.strategy import BITS, integer_factor

SOLVED = [
    Prefix(2),
    Prefix(13),
    Prefix(9, 5),
    AllRanges(2),
    AllRanges(12),
    AllRanges(9, 6),
    Prefix(150),
]
solved = pytest.mark.parametrize("factor", SOLVED, ids=lambda factor: str(factor.key))


def workload_of(*factors):
    shape = tuple(factor.shape[1] for factor in factors)
    return Workload(shape, (product(shape, dict(enumerate(factors))),), (1.0,))


def gram_of(factor):
    return gram(workload_of(factor)).matrices[0][1]


def dense_root(A):
    w, U = np.linalg.eigh(A)
    return (U * np.sqrt(np.maximum(w, 0))) @ U.T


@pytest.mark.nightly(daily="13|78|9")
@solved
def test_square_roots_by_poles_equal_those_by_eigenvalues(factor):
    V = gram_of(factor)
    inverse = TridiagonalInverse.of(V)
    m = len(inverse.diagonal)
    v = rng().random(m) + 0.05
    V_used = array_of(V)[:m, :m]
    assert array_of(V)[m:].any() == False  # noqa: E712
    expected = dense_root(V_used * np.sqrt(v)[:, None] * np.sqrt(v))
    root = inverse.root(v)
    assert root.error < QUADRATURE_TOLERANCE
    assert root.array() == pytest.approx(expected, rel=1e-7, abs=1e-9 * expected.max())
    assert root.diagonal() == pytest.approx(np.diag(expected), rel=2 * QUADRATURE_TOLERANCE)
    back = root.times(expected) @ expected
    assert back == pytest.approx(np.eye(m), abs=1e-7)


def test_other_grams_have_no_tridiagonal_inverse():
    for factor in (WidthRanges(9, 3), Stacked((Prefix(6), Identity(6))), Prefix(1)):
        assert TridiagonalInverse.of(gram_of(factor)) is None
    assert TridiagonalInverse.of(Mixture(5, 1.0, 1.0)) is None


@pytest.mark.parametrize("condition", [1.5, 1e3, 1e7, 1e12])
def test_the_quadrature_knows_its_error(condition):
    weights, shifts, error = quadrature(0.3, 0.3 * condition)
    x = np.geomspace(0.3, 0.3 * condition, 7919)
    seen = np.abs(np.sqrt(x) * (weights / (x[:, None] + shifts)).sum(axis=1) - 1).max()
    assert seen <= error < QUADRATURE_TOLERANCE
    assert (weights > 0).all()
    assert (shifts > 0).all()


@solved
def test_the_certificate_is_never_above_the_dense_optimum(factor):
    V, inverse = gram_of(factor), TridiagonalInverse.of(gram_of(factor))
    m = len(inverse.diagonal)
    point = optimum(inverse, np.ones(m), 300)
    dense = opt_0(array_of(V)[:m, :m], noise="gaussian", rng=rng())
    assert point.bound <= dense.loss * (1 + 1e-9)
    assert dense.bound <= point.best.loss * (1 + 1e-9)
    assert point.bound <= point.best.loss <= point.bound * (1 + FINE_GAP)
    stopped = optimum(inverse, np.ones(m), 2)
    assert stopped.bound <= dense.loss * (1 + 1e-9)


@solved
def test_the_loss_is_that_of_the_strategy_written_out(factor):
    V = gram_of(factor)
    selection = opt_0(V, noise="gaussian", rng=rng())
    A = selection.factor.dense()
    assert np.linalg.norm(A, axis=0).max() <= 1 + 1e-9
    assert selection.loss == pytest.approx(
        np.trace(np.linalg.solve(A.T @ A, array_of(V))), rel=1e-7
    )
    assert selection.inverse @ (A.T @ A) == pytest.approx(np.eye(V.n), abs=1e-6)
    again = opt_0(V, noise="gaussian", rng=rng(), start=selection.state, max_iterations=1)
    assert again.loss <= selection.loss * (1 + 1e-9)


def test_a_gaussian_strategy_that_cannot_be_held_is_refused_and_its_bound_kept():
    V = gram(workload_of(Prefix(9000)))
    with pytest.raises(UnsupportedWorkloadError, match="9,000 classes"):
        opt_0(V.matrices[0][1], noise="gaussian", rng=rng())
    assert solved_dual_bound(V) >= svd_bound(V).loss * 1.01


@pytest.mark.parametrize(
    "factors",
    [
        (Prefix(12),),
        (Prefix(5), AllRanges(4)),
        (Columns(AllRanges(5), np.array([2, 0, 1, 4, 3])), Stacked((Identity(3), total(3)))),
    ],
)
def test_dual_bounds_multiply_and_lie_between_svd_bound_and_optimum(factors):
    V = gram(workload_of(*factors))
    best = math.prod([opt_0(matrix[-1], noise="gaussian", rng=rng()).loss for matrix in V.matrices])
    bound = solved_dual_bound(V)
    assert svd_bound(V).loss * (1 - 1e-9) <= bound <= best * (1 + 1e-9)
    assert best <= bound * (1 + OPTIMALITY_GAP) ** len(factors) * (1 + 1e-9)
    assert solved_dual_bound(gram(workload_of(WidthRanges(6, 2)))) is None


@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_the_optimum_over_orbits_is_that_over_codes(monkeypatch, scale):
    n = 40
    groups = Groups.of(tuple(tuple(range(10 * k, 10 * k + 10)) for k in range(4)), n)
    V = scale * (np.eye(n) + groups.gram() + 0.3 * total(n).gram())
    dense = opt_0_gaussian.fixed_point(V, None, 100)
    monkeypatch.setattr(opt_0_gaussian, "LEAST_IN_ORBITS", 1)
    assert len(orbits_of([V]).sizes) == 4
    orbits = opt_0_gaussian.fixed_point(V, None, 100)
    A = orbits.factor.dense()
    assert orbits.loss == pytest.approx(dense.loss, rel=1e-6)
    assert orbits.bound == pytest.approx(dense.bound, rel=1e-6)
    assert (A**2).sum(axis=0).max() == pytest.approx(1, rel=1e-9)
    assert orbits.inverse == pytest.approx(np.linalg.inv(A.T @ A), rel=1e-6, abs=1e-9)
    assert np.trace(np.linalg.inv(A.T @ A) @ V) == pytest.approx(orbits.loss, rel=1e-6)


def groups_with_codes(sizes, left_out=0):
    """Single codes, all but the last ones, groups of them and the total, as a Gram."""
    ends = np.cumsum([0, *sizes]).tolist()
    n = ends[-1]
    groups = Groups.of(tuple(tuple(range(*pair)) for pair in pairwise(ends)), n)
    return gram_of(Stacked((IdentityRows(n, np.arange(n - left_out)), groups, total(n))))


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_orbits_of_a_structured_gram_are_those_of_its_entries(left_out):
    V = groups_with_codes([5, 3, 6], left_out)
    orbits, dense = few_orbits(V, 14), orbits_of([array_of(V)])
    assert orbits.place.tolist() == dense.place.tolist()
    assert orbits.sizes.tolist() == dense.sizes.tolist()
    assert orbits.levels == pytest.approx(dense.levels)
    assert orbits.inside == pytest.approx(dense.inside)
    assert few_orbits(V, 2) is None


def test_the_loss_over_orbits_is_that_over_codes_and_so_is_its_gradient():
    V = groups_with_codes([5, 3, 6], 1)
    orbits = few_orbits(V, 14)
    merged, Theta = MergedGram.of(orbits), rng().random((2, len(orbits.sizes)))
    loss, gradient = opt_0_laplace.p_identity_loss(Theta, merged)
    whole, by_code = opt_0_laplace.p_identity_loss(Theta[:, orbits.place], V)
    summed = np.stack([np.bincount(orbits.place, row) for row in by_code])
    assert loss == pytest.approx(whole, rel=1e-12)
    assert gradient == pytest.approx(summed, rel=1e-9)
    A = opt_0_laplace.p_identity(Theta[:, orbits.place]).dense()
    assert loss == pytest.approx(np.trace(np.linalg.inv(A.T @ A) @ array_of(V)), rel=1e-9)


@pytest.mark.parametrize(
    ("solve", "V"),
    [
        (lambda V: opt_0_gaussian.fixed_point(V, None, 100), Prefix(40)),
        (lambda V: opt_0_gaussian.fixed_point(array_of(V), None, 100), WidthRanges(40, 5)),
        (lambda V: cells_optimum(array_of(V)), WidthRanges(40, 5)),
        (lambda V: moves_optimum(array_of(V), "moves"), Prefix(12)),
    ],
    ids=["tridiagonal", "codes", "cells", "moves"],
)
def test_a_climb_hands_over_the_best_it_has_when_no_time_is_left(solve, V):
    said = []

    def no_time(line):
        said.append(line)
        raise OutOfTimeError("no")

    V = gram_of(V)
    whole = solve(V)
    with reporting(no_time):
        stopped = solve(V)
    assert len(said) == 1
    assert stopped.bound < whole.bound <= whole.loss < stopped.loss < 2 * whole.loss


# One attribute's factor solved by itself: least squares, and counts that fit come back exactly.


def factors(rng):
    n = int(rng.integers(1, 30))
    sizes = [1]
    while sizes[-1] < n and rng.random() < 0.85:
        sizes.append(sizes[-1] * int(rng.integers(2, 5)))
    yield Hierarchy(n, sizes, rng.integers(1, 50, len(sizes)).tolist())
    yield PIdentity(rng.integers(1, 50, n), rng.integers(0, 50, (2, n)))
    yield random_block_p_identity(rng, n)
    yield Dense(rng.integers(-5, 50, (n + 2, n)) + 50 * np.eye(n + 2, n, dtype=int))
    yield Dense(np.triu(rng.integers(-5, 50, (n, n)), 1) + 50 * np.eye(n, dtype=int))


@pytest.mark.parametrize("seed", range(30))
def test_every_factor_is_solved_by_least_squares(seed):
    rng = np.random.default_rng(seed)
    for factor in factors(rng):
        A = factor.dense().astype(float)
        y = rng.normal(size=(len(A), 3))
        expected = np.linalg.lstsq(A, y, rcond=None)[0]
        assert least_squares(factor)(y) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("diagonal", [640, 65, 1])
def test_counts_behind_a_diagonal_that_all_but_vanishes_come_back(diagonal):
    """Normal equations lose them: 1e-2 of a million records at a diagonal of 1/1000."""
    n = 24
    factor = PIdentity(np.full(n, diagonal), np.full((1, n), 65536 - diagonal))
    x = np.full((n, 1), 1e6)
    assert least_squares(factor)(factor.matmat(x)) == pytest.approx(x, rel=1e-12)


@pytest.mark.parametrize("diagonal", [640, 65, 1])
def test_marginals_of_such_a_factor_are_sound(diagonal):
    shape = (6, 4)
    slim = PIdentity(np.full(6, diagonal), np.full((1, 6), 65536 - diagonal))
    weights = {(0,): 3, (0, 1): 1, (1,): 70_000, (): 9}
    strategy = MarginalsStrategy("f", "laplace", shape, weights, {0: slim})
    blocks = (product(shape, {0: Prefix(6), 1: Identity(4)}), product(shape, {1: Identity(4)}))
    workload = Workload(shape, blocks, (1.0, 1.0))
    assert flaw_of(strategy, workload, items=(range(1), range(1, 2)), noise_std=2e5) == ""


def test_counts_below_a_total_of_huge_weight_come_back():
    tree = Hierarchy(8, (1, 2, 4, 8), (1, 1, 1, 10**5))
    x = np.random.default_rng(0).integers(0, 10**7, (8, 1)).astype(float)
    assert least_squares(tree)(tree.matmat(x)) == pytest.approx(x, rel=1e-12)


def test_a_common_basis_stays_orthogonal_where_one_part_hardly_sees_some_codes():
    diagonal = np.array([1, 2, 3, 5, 7, 11, 1000, 30000])
    slim = PIdentity(diagonal, 65536 - diagonal[None])
    for pair in ([slim, Dense(np.eye(8, dtype=int))], [Dense(np.eye(8, dtype=int)), slim]):
        basis = axis_basis(8, pair)
        for factor, F, lengths in zip(pair, basis.rows, basis.scales, strict=True):
            assert pytest.approx(np.eye(8), abs=1e-9) == F.T @ F
            moved = factor.dense() @ basis.basis
            assert moved == pytest.approx(F * lengths, abs=1e-9 * np.abs(moved).max())


@pytest.mark.parametrize("parts", [(0, 1), (1, None), (0, 1, 0), (0,), (0, 2), (2, None)])
def test_a_basis_over_orbits_is_one_over_the_codes(parts, monkeypatch):
    monkeypatch.setattr("dpquery.strategy.algebra.joint_system.LEAST_IN_ORBITS", 8)
    monkeypatch.setattr("dpquery.strategy.algebra.joint_system.qr", small_qr)
    rng = np.random.default_rng(6)
    place = rng.permutation(np.repeat(np.arange(4), [3, 1, 5, 7]))
    pair = []
    for _ in range(2):
        root, inside = rng.normal(size=(4, 4)), np.diag(rng.normal(size=4)[place])
        pair.append(Dense(np.rint(1000 * ((root + root.T)[place][:, place] + inside)).astype(int)))
    sums = np.array([[5, 1, 0, 2], [0, 3, 7, 1]])[:, place]
    pair.append(Dense(np.vstack([sums, np.diag(np.array([2, 9, 3, 1])[place])])))
    factors = [None if k is None else pair[k] for k in parts]
    basis = axis_basis(16, factors)
    assert basis.total == pytest.approx(basis.basis.sum(axis=0), abs=1e-12)
    for factor, F, lengths in zip(factors, basis.rows, basis.scales, strict=True):
        if factor is None:
            assert lengths == pytest.approx(basis.total)
            assert np.count_nonzero(lengths) == 1
            continue
        assert pytest.approx(np.eye(16), abs=1e-9) == F.T @ F
        moved = factor.dense() @ basis.basis
        assert moved == pytest.approx(F * lengths, abs=1e-9 * np.abs(moved).max())


def small_qr(matrix, **named):
    assert matrix.shape[1] == 4
    return qr(matrix, **named)


def test_rows_that_treat_one_code_of_an_orbit_otherwise_are_not_merged(monkeypatch):
    monkeypatch.setattr("dpquery.strategy.algebra.joint_system.LEAST_IN_ORBITS", 8)
    matrix = 5 * np.eye(16, dtype=int) + 1
    matrix[3, 7] += 1
    basis = axis_basis(16, [Dense(matrix), None])
    assert pytest.approx(np.eye(16), abs=1e-9) == basis.rows[0].T @ basis.rows[0]
    assert matrix @ basis.basis == pytest.approx(basis.rows[0] * basis.scales[0], abs=1e-9)


seeds = pytest.mark.parametrize("seed", range(12))


def dense_inverse(factor):
    A = factor.dense().astype(float)
    return np.linalg.inv(A.T @ A)


def structured(factor):
    return Structured(Mixture(factor.shape[1], 0.0, 0.0), ((1.0, factor),))


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
    V = structured(query(n))
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
    n = searches.LEAST_CODES
    backwards = np.arange(n)[::-1]
    assert is_long_and_ordered(structured(Prefix(n)))
    assert is_long_and_ordered(structured(Columns(Prefix(n + 3), np.arange(n) + 2)))
    assert not is_long_and_ordered(structured(Prefix(n - 1)))
    assert not is_long_and_ordered(structured(Columns(Prefix(n), backwards)))
    assert not is_long_and_ordered(structured(Groups.of(((0, 5), (1, 3)), n)))
    assert not is_long_and_ordered(Prefix(n).gram())


@pytest.mark.parametrize("n", [1, 2, 1000, 1024, 65536])
def test_there_are_about_as_many_blocks_as_codes_in_each(n):
    size = block_size(n)
    assert size**2 <= n < 4 * size**2


def test_long_prefixes_are_measured_by_blocks_in_integers(monkeypatch):
    """Where rows written out are too many the blocks are the strategy: columns of one norm."""
    monkeypatch.setattr(searches, "MAX_P_IDENTITY_ENTRIES", 1 << 10)
    n = searches.LEAST_CODES + 5  # the last block is cut off
    workload = workload_of(Prefix(n))
    V = structured(Prefix(n))
    chosen = opt_0(V, noise="laplace", rng=public_generator(0))
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
    monkeypatch.setattr(searches, "MAX_P_IDENTITY_ENTRIES", 1 << 11)
    n = searches.LEAST_CODES
    V = structured(Columns(Prefix(n), np.arange(n)[::-1]))
    chosen = opt_0(V, noise="laplace", rng=public_generator(0), max_iterations=2)
    assert isinstance(chosen.factor, PIdentity)


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
