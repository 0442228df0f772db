"""The identities of dpquery/docs/MATH.md hold: small domains, dense matrices, none of our code.

The functions here are those of the page, in its letters; tests of the modules hold the code
against the same facts.
"""

import math
from functools import reduce
from itertools import combinations, product

import numpy as np
import pytest

SHAPE = (3, 4)
SETS = list(product((False, True), repeat=2))
J = [np.ones((n, n)) for n in SHAPE]


def kron(*matrices):
    return reduce(np.kron, matrices, np.ones((1, 1)))


def mixed(inside, outside, b):
    """kron_{i in b} inside_i kron_{i not in b} outside_i."""
    return kron(*(x if is_in else y for x, y, is_in in zip(inside, outside, b, strict=True)))


def pick(values, b):
    return math.prod(value for value, is_in in zip(values, b, strict=True) if is_in)


def unit_gram(rng, n):
    C = rng.normal(size=(n, n))
    C /= np.linalg.norm(C, axis=0)
    return C.T @ C


def numerical(f, X):
    """The gradient of f by central differences."""
    gradient = np.zeros_like(X)
    for place in np.ndindex(X.shape):
        step = np.zeros_like(X)
        step[place] = 1e-6
        gradient[place] = (f(X + step) - f(X - step)) / 2e-6
    return gradient


@pytest.fixture
def rng():
    return np.random.default_rng(1)


@pytest.fixture
def factors(rng):
    """Grams of unit diagonal, and mu, z, E1 = G^-1 - g g' / mu of sections 6 and 7."""
    G = [unit_gram(rng, n) for n in SHAPE]
    inverses = [np.linalg.inv(V) for V in G]
    mu = [inverse.sum() for inverse in inverses]
    z = [inverse.sum(axis=0) / m for inverse, m in zip(inverses, mu, strict=True)]
    E1 = [inverse - m * np.outer(y, y) for inverse, m, y in zip(inverses, mu, z, strict=True)]
    return G, mu, [np.outer(y, y) for y in z], E1


def test_section_1_the_dual_is_below_any_strategy_and_met_at_the_fixed_point(rng):
    V = unit_gram(rng, 5) * 3

    def root(v):
        w, U = np.linalg.eigh(V * np.sqrt(np.outer(v, v)))
        return (U * np.sqrt(np.maximum(w, 0))) @ U.T

    v = rng.uniform(0.5, 2, 5)
    X = unit_gram(rng, 5)
    assert np.trace(np.linalg.inv(X) @ V) >= np.trace(root(v)) ** 2 / v.sum()
    for _ in range(2000):
        v = np.diag(root(v)) / np.diag(root(v)).mean()
    S = root(v)
    peak = (np.diag(S) / v).max()
    assert peak * np.trace(S) == pytest.approx(np.trace(S) ** 2 / v.sum(), rel=1e-6)
    X = S / np.sqrt(np.outer(v, v)) / peak
    assert np.trace(np.linalg.inv(X) @ V) == pytest.approx(peak * np.trace(S))


def test_section_2_loss_and_gradient_of_a_p_identity(rng):
    Theta, V = rng.random((2, 5)), unit_gram(rng, 5)

    def dense(Theta):
        A = np.vstack([np.eye(5), Theta]) / (1 + Theta.sum(axis=0))
        return np.trace(np.linalg.inv(A.T @ A) @ V)

    s, R = 1 + Theta.sum(axis=0), np.linalg.inv(np.eye(2) + Theta @ Theta.T)
    B = Theta * s
    assert dense(Theta) == pytest.approx((s**2 * np.diag(V)).sum() - np.trace(R @ B @ V @ B.T))
    h = 2 * s * np.diag(V) - 2 * ((R @ Theta) * (B @ V)).sum(axis=0)
    gradient = 2 * R @ (B @ V @ B.T @ R @ Theta - B @ V * s) + h
    assert gradient == pytest.approx(numerical(dense, Theta), rel=1e-5)


def test_section_2_the_quartic_is_where_an_even_row_is_stationary(rng):
    n, t, S = 6, 6 * 2.3, 6 * (2.3 + 5 * 1.7)

    def loss(theta):
        return (1 + theta) ** 2 * (t - theta**2 * S / (1 + n * theta**2))

    roots = np.roots([n * (t * n - S), 0, 2 * (t * n - S), -S, t])
    real = roots[np.abs(roots.imag) < 1e-12].real
    assert len(real)
    assert numerical(lambda x: loss(x[0]), real[:1]) == pytest.approx(0, abs=1e-4)


def test_section_4_the_loss_of_the_optimal_blocks_is_the_svd_bound():
    shape = (3, 4, 2)
    W = np.vstack(
        [
            kron(*(np.eye(n) if i in S else np.ones((1, n)) for i, n in enumerate(shape)))
            for S in combinations(range(3), 2)
        ]
    )
    J = [np.ones((n, n)) for n in shape]
    centred = [np.eye(n) - J_i / n for n, J_i in zip(shape, J, strict=True)]
    roots = 0.0
    for b in product((False, True), repeat=3):
        t = np.trace(mixed(centred, [J_i / len(J_i) for J_i in J], b) @ W.T @ W)
        rest = [not is_in for is_in in b]
        v = t / (pick(shape, b) ** 2 * pick(shape, rest))
        roots += math.sqrt(max(pick([n * (n - 1) for n in shape], b) * v, 0))
    svd = np.linalg.svd(W, compute_uv=False).sum() ** 2 / W.shape[1]
    assert roots**2 == pytest.approx(svd)


@pytest.mark.parametrize("r", [1, 2, 3])
def test_section_5_thresholds_are_signed_products_and_diagonal_in_sets(r):
    shape = (2, 3, 4)
    cells = list(product(*map(range, shape)))
    D = np.array([[sum(map(int.__eq__, x, y)) >= r for y in cells] for x in cells]).astype(float)
    eyes, ones = [np.eye(n) for n in shape], [np.ones((n, n)) for n in shape]
    sets = list(product((False, True), repeat=3))
    coef = {
        u: (-1) ** (sum(u) - r) * math.comb(sum(u) - 1, sum(u) - r) if sum(u) >= r else 0
        for u in sets
    }
    assert sum(coef[u] * mixed(eyes, ones, u) for u in sets) == pytest.approx(D)
    gram = 0.0
    for a in sets:
        others = [
            np.array([1 - 1 / n, 1 / n]) for n, is_in in zip(shape, a, strict=True) if not is_in
        ]
        P, w = reduce(np.convolve, others, np.ones(1)), sum(a)
        steps = [
            math.comb(w - 1, r - 1 - x) * (-1) ** (w - r + x) if w and 0 <= r - 1 - x < w else 0
            for x in range(len(P))
        ]
        level = P @ (steps if w else [x >= r for x in range(len(P))])
        rows = pick(shape, [not is_in for is_in in a])
        gram = gram + rows * level**2 * mixed([eye - 1 / len(eye) for eye in eyes], ones, a)
    assert gram == pytest.approx(D.T @ D)


def test_section_6_cores_and_totals_are_inverted_in_closed_form_and_hold_every_product(
    factors, rng
):
    G, mu, zz, H = factors
    FF = [V - one / m for V, one, m in zip(G, J, mu, strict=True)]
    s = {b: rng.uniform(0.5, 2) for b in SETS}
    X = sum(mixed(FF, J, b) / s[b] for b in SETS)
    assert sum(s[b] * mixed(H, zz, b) for b in SETS) == pytest.approx(np.linalg.inv(X))
    shares = {b: pick(mu, [not is_in for is_in in b]) for b in SETS}
    assert sum(mixed(FF, J, b) / shares[b] for b in SETS) == pytest.approx(kron(*G))


def test_section_6_the_gradient_by_the_free_columns(rng):
    T, C, ridge = unit_gram(rng, 4), rng.normal(size=(4, 4)), 1e-6

    def inverse(C):
        B = C / np.linalg.norm(C, axis=0)
        return np.linalg.inv((1 - ridge) * B.T @ B + ridge * np.eye(4))

    lengths, M = np.linalg.norm(C, axis=0), inverse(C)
    B = C / lengths
    by_B = -2 * (1 - ridge) * B @ M @ T @ M
    by_C = (by_B - B * (B * by_B).sum(axis=0)) / lengths
    expected = numerical(lambda X: np.sum(inverse(X) * T), C)
    assert by_C == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_section_7_marginals_of_factors_are_inverted_in_closed_form(factors, rng):
    G, mu, zz, E1 = factors
    theta = {b: rng.uniform(0.5, 2) for b in SETS}
    X = sum(theta[b] ** 2 * mixed(G, J, b) for b in SETS)
    H = [E / m for E, m in zip(E1, mu, strict=True)]
    kappa = {
        b: sum(theta[a] ** 2 / pick(mu, a) for a in SETS if all(np.array(a) >= b)) for b in SETS
    }
    computed = sum(mixed(H, zz, b) / kappa[b] for b in SETS)
    assert computed == pytest.approx(np.linalg.inv(X))


def test_section_8_any_generalised_inverse_gives_supported_queries_one_variance(rng):
    A = rng.integers(-2, 3, (6, 3)) @ rng.integers(-2, 3, (3, 8)) * 1.0
    X = A.T @ A
    plus, noise = np.linalg.pinv(X), rng.normal(size=(8, 8))
    other = plus + noise - plus @ X @ noise @ X @ plus  # X other X = X
    q = rng.normal(size=6) @ A
    assert X @ other @ X == pytest.approx(X)
    assert q @ other @ q == pytest.approx(q @ plus @ q)


def test_section_8_two_factors_have_a_basis_in_which_both_have_orthogonal_columns(rng):
    A, B = rng.normal(size=(6, 4)), rng.normal(size=(5, 4))
    Q, R = np.linalg.qr(np.vstack([A, B]))
    U = np.linalg.inv(R) @ np.linalg.svd(Q[:6])[2].T
    c2, s2 = (A @ U).T @ (A @ U), (B @ U).T @ (B @ U)
    assert c2 + s2 == pytest.approx(np.eye(4))
    assert c2 == pytest.approx(np.diag(np.diag(c2)))
    q = rng.normal(size=11) @ np.vstack([A, B])
    t = np.linalg.solve(R.T, q)
    assert t @ t == pytest.approx(q @ np.linalg.inv(A.T @ A + B.T @ B) @ q)


def test_section_8_one_factor_has_a_basis_that_puts_the_total_first(rng):
    A = rng.normal(size=(6, 4))
    _, R = np.linalg.qr(A)
    u = np.linalg.solve(R.T, np.ones(4))
    mirror = u - np.linalg.norm(u) * np.eye(4)[0]
    H = np.eye(4) - 2 * np.outer(mirror, mirror) / (mirror @ mirror)
    U = np.linalg.inv(R) @ H
    assert pytest.approx(np.eye(4)) == (A @ U).T @ (A @ U)
    assert (np.ones(4) @ U)[1:] == pytest.approx(0, abs=1e-12)


def test_section_10_the_tail_is_the_sum_over_which_one_is_the_r_th(rng):
    p, r = rng.random(5), 3
    states, tail = np.eye(6)[0], 0.0
    for probability in p:
        tail += states[r - 1] * probability
        states = states * (1 - probability) + np.append(0, states[:-1]) * probability
    assert tail == pytest.approx(states[r:].sum())


def test_section_12_the_inverse_of_a_hierarchy_adds_up_contrasts(rng):
    n, sizes, squares = 7, (1, 2, 4), (0.7, 3.0, 0.2)
    blocks = [np.equal.outer(np.arange(n) // size, np.arange(n) // size) for size in sizes]
    G = sum(square * block for square, block in zip(squares, blocks, strict=True))
    q = rng.normal(size=n)
    mean, mass, total = q, np.full(n, 1 / squares[0]), 0.0
    for square in squares[1:]:
        starts = np.arange(0, len(mean), 2)
        M = np.add.reduceat(mass, starts)
        above = np.add.reduceat(mass * mean, starts) / M
        total += mass @ (mean - np.repeat(above, 2)[: len(mean)]) ** 2
        mean, mass = above, M / (1 + square * M)
    assert total + mass @ mean**2 == pytest.approx(q @ np.linalg.inv(G) @ q)


def test_section_13_the_sum_over_poles_is_never_above_the_root():
    h, whole = 1.0, 7.0
    u = np.exp(0.5 * math.log(1e-11 * whole) + h * np.arange(80))
    excess = 1 + 2 * sum(1 / math.cosh(math.pi**2 * m / h) for m in range(1, 9))
    c = 2 / math.pi * h * u / excess
    c[0] /= 1 - math.exp(-h)  # the nodes below it are counted there
    x = np.geomspace(1e-9, whole, 300)[:, None]
    sums = (c * x / (x + u**2)).sum(axis=1)
    assert np.all(sums <= np.sqrt(x[:, 0]))
    assert sums[100:] == pytest.approx(np.sqrt(x[100:, 0]), rel=1e-3)


def test_section_25_answers_given_facts_are_least_squares_under_them(rng):
    A, F, W = rng.normal(size=(9, 6)), rng.normal(size=(2, 6)), rng.normal(size=(5, 6))
    x = rng.normal(size=6)
    z, v = A @ x + rng.normal(size=9), F @ x
    inverse = np.linalg.inv(A.T @ A)
    gain = inverse @ F.T @ np.linalg.inv(F @ inverse @ F.T)
    given = inverse @ A.T @ z - gain @ (F @ inverse @ A.T @ z - v)
    free = np.linalg.svd(F)[2][2:].T  # what the facts leave open
    start = np.linalg.pinv(F) @ v
    best = start + free @ np.linalg.lstsq(A @ free, z - A @ start, rcond=None)[0]
    np.testing.assert_allclose(given, best)
    after = W @ (inverse - gain @ F @ inverse) @ W.T
    coefficients = W @ free @ np.linalg.pinv(A @ free)
    np.testing.assert_allclose(after, coefficients @ coefficients.T, atol=1e-12)
    B = np.linalg.qr(rng.normal(size=(8, 3)))[0].T  # orthonormal rows
    leverage = (B**2).sum(axis=0)
    draws = rng.laplace(scale=2**-0.5, size=(200_000, 8)) @ B.T
    variance = (draws**2).sum(axis=1).var()
    assert variance == pytest.approx(2 * 3 + 3 * (leverage**2).sum(), rel=0.05)
    assert leverage.sum() == pytest.approx(3)
