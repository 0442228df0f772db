"""One attribute's factor solved by itself: least squares, and counts that fit come back exactly."""

import numpy as np
import pytest
from dense import random_block_p_identity
from scipy.linalg import qr

from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Dense, Identity, PIdentity
from dpquery.operators.inverses import inverse_gram, least_squares
from dpquery.operators.ranges import Prefix
from dpquery.operators.trees import Hierarchy
from dpquery.reconstruction.checks import flaw_of
from dpquery.strategy.algebra.joint_system import axis_basis
from dpquery.strategy.shapes.marginals import MarginalsStrategy


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


@pytest.mark.parametrize(("matrix", "taken"), [(np.triu(np.ones((3, 3))), 0), (np.eye(4, 3), 1)])
def test_a_dense_factor_is_made_orthogonal_once_and_a_triangle_never(matrix, taken, monkeypatch):
    calls, qr = [], np.linalg.qr
    monkeypatch.setattr(np.linalg, "qr", lambda *given: calls.append(given) or qr(*given))
    factor = Dense(matrix.astype(np.int64))
    inverse_gram(factor)
    inverse_gram(factor)
    least_squares(factor)
    assert len(calls) == taken


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
