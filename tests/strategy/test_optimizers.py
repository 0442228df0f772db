"""The optimisers: gradients, dense losses, certificates, and never worse than Identity."""

import math

import numpy as np
import pytest
from dense import MIXED, dense_gram, dense_workload, kron, random_workload, rng, sensitivity_of
from scipy.optimize import check_grad

from dpquery.exceptions import OutOfTimeError, UnsupportedWorkloadError
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Identity, Ones, Stacked, total
from dpquery.operators.gram import gram
from dpquery.operators.inverses import inverse_array
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix, WidthRanges
from dpquery.operators.trees import Tree
from dpquery.progress import reporting
from dpquery.strategy.algebra.subsets import Lattice
from dpquery.strategy.optimize.fixed_point import OPTIMALITY_GAP
from dpquery.strategy.optimize.opt_0 import opt_0, opt_product
from dpquery.strategy.optimize.opt_0_laplace import halving_of, p_identity, p_identity_loss
from dpquery.strategy.optimize.opt_factors import FactorsProblem, check_optimisable, opt_factors
from dpquery.strategy.optimize.opt_marginals import MarginalsProblem, opt_marginals
from dpquery.strategy.search.candidates import Problem, factors_candidate

noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])
GRAMS = {
    "prefix": Prefix(12).gram(),
    "all ranges": AllRanges(9).gram(),
    "width": WidthRanges(10, 4).gram(),
    "identity": np.eye(7),
    "total": np.ones((6, 6)),
    "one code": np.array([[3.0]]),
    "rank one": ListedRanges(8, [(2, 5)]).gram(),
    "zero columns": ListedRanges(8, [(0, 3), (2, 5), (3, 3)]).gram(),
    "tiny": 1e-9 * Prefix(6).gram(),
    "huge": 1e12 * Prefix(6).gram(),
}
grams = pytest.mark.parametrize("V", GRAMS.values(), ids=GRAMS)


def dense_loss(A, V, noise):
    """sensitivity^2 tr((A'A)^+ V)."""
    return sensitivity_of(A, noise) ** 2 * np.trace(np.linalg.pinv(A.T @ A, rcond=1e-13) @ V)


@pytest.mark.parametrize("p", [1, 3])
@grams
def test_p_identity_gradient_agrees_with_finite_differences(V, p):
    Theta, V = rng(p).random((p, len(V))) + 0.1, V / np.trace(V)
    loss = lambda flat: p_identity_loss(flat.reshape(Theta.shape), V)[0]  # noqa: E731
    slope = lambda flat: p_identity_loss(flat.reshape(Theta.shape), V)[1].ravel()  # noqa: E731
    scale = np.linalg.norm(slope(Theta.ravel()))
    assert check_grad(loss, slope, Theta.ravel(), epsilon=1e-6) <= 1e-4 * (scale + 1e-3)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_p_identity_loss_equals_the_dense_one(p):
    Theta, V = rng(p).random((p, 12)), GRAMS["prefix"]
    A = p_identity(Theta).dense()
    assert p_identity_loss(Theta, V)[0] == pytest.approx(dense_loss(A, V, "laplace"), rel=1e-9)


@noises
@grams
def test_opt_0_returns_a_strategy_of_sensitivity_one_with_its_own_loss(V, noise):
    selection = opt_0(V, noise=noise, rng=rng())
    A = selection.factor.dense()
    norms = np.abs(A).sum(axis=0) if noise == "laplace" else np.linalg.norm(A, axis=0)
    if noise == "laplace":
        assert norms == pytest.approx(np.ones(len(V)))
    assert norms.max() <= 1 + 1e-9
    assert selection.loss == pytest.approx(np.trace(np.linalg.solve(A.T @ A, V)), rel=1e-5)
    assert inverse_array(selection.inverse) @ A.T @ A == pytest.approx(np.eye(len(V)), abs=1e-4)


@grams
def test_the_gaussian_bound_is_below_the_loss_and_above_the_svd_bound(V):
    selection = opt_0(V, noise="gaussian", rng=rng())
    roots = np.sqrt(np.maximum(np.linalg.eigvalsh(V), 0))
    assert selection.bound <= selection.loss * (1 + 1e-9)
    assert selection.bound >= roots.sum() ** 2 / len(V) * (1 - 1e-6)
    if selection.converged:
        assert selection.loss <= selection.bound * (1 + OPTIMALITY_GAP)


@pytest.mark.parametrize("name", ["prefix", "all ranges", "width", "identity", "tiny", "huge"])
def test_gaussian_opt_0_proves_itself_optimal_on_full_rank_grams(name):
    assert opt_0(GRAMS[name], noise="gaussian", rng=rng()).converged


@noises
def test_opt_0_continues_from_a_state(noise):
    V = GRAMS["all ranges"]
    first = opt_0(V, noise=noise, rng=rng(), max_iterations=3)
    second = opt_0(V, noise=noise, rng=rng(), start=first.state)
    assert second.loss <= first.loss * (1 + 1e-9)
    assert opt_0(V, noise=noise, rng=rng(), max_iterations=1).converged is False


PRODUCTS = [
    Workload((4, 1, 5), (product((4, 1, 5), {0: Prefix(4), 2: AllRanges(5)}),), (2.0,)),
    Workload((4, 3), (product((4, 3), {0: Prefix(4)}), product((4, 3), {1: Identity(3)})), (1, 9)),
    Workload((1, 3), (product((1, 3), {0: Ones(2, 1), 1: Identity(3)}),), (1.0,)),
    Workload((5, 2), (marginal((5, 2), []),), (4.0,)),
    *(random_workload(rng(seed), attributes=3, size=4) for seed in range(12)),
]


def test_a_certified_product_is_certified_by_the_duals_of_its_factors():
    selection = opt_product(gram(PRODUCTS[0]), noise="gaussian", rng=rng())
    assert selection.bound >= selection.loss / (1 + OPTIMALITY_GAP) ** 2
    V = dense_gram(PRODUCTS[0])
    for seed in range(20):
        A = rng(seed).normal(size=(20, 20)) + 4 * np.eye(20)
        assert dense_loss(A, V, "gaussian") >= selection.bound


MARGINALS = [
    Workload((3, 2, 4), tuple(marginal((3, 2, 4), a) for a in ([0, 1], [2], [])), (1.0, 5.0, 0.1)),
    Workload((3, 1, 4), (product((3, 1, 4), {0: Prefix(3), 2: Identity(4)}),), (2.0,)),
    Workload((2, 3), (marginal((2, 3), [0]), marginal((2, 3), [1])), (1.0, 1e6)),
    Workload((5, 2), (marginal((5, 2), []),), (4.0,)),
    *(random_workload(rng(seed), attributes=3, size=3) for seed in range(8)),
]


def marginal_matrix(shape, weights):
    rows = [
        theta * kron([np.eye(n) if i in b else np.ones((1, n)) for i, n in enumerate(shape)])
        for b, theta in weights.items()
    ]
    return np.vstack(rows)


@noises
@pytest.mark.parametrize("workload", MARGINALS)
def test_opt_marginals_loss_equals_the_dense_one(workload, noise):
    selection = opt_marginals(gram(workload), noise=noise, rng=rng(), restarts=4)
    A = marginal_matrix(workload.shape_of_domain, selection.weights)
    assert sensitivity_of(A, noise) == pytest.approx(1.0)
    _, s, Vt = np.linalg.svd(A, full_matrices=False)
    kept = s > 1e-9 * s.max()
    V = dense_gram(workload)
    loss = np.trace((Vt[kept].T / s[kept] ** 2) @ Vt[kept] @ V)
    assert loss == pytest.approx(selection.loss, rel=1e-5)
    assert selection.loss <= np.trace(V) * (1 + 1e-3) or noise == "laplace"


@noises
@pytest.mark.parametrize("workload", MARGINALS)
def test_marginals_gradient_agrees_with_finite_differences(workload, noise):
    problem = MarginalsProblem(gram(workload), noise=noise, max_cells=1e8)
    theta = rng(1).random(len(problem.lattice)) + 0.2
    error = check_grad(
        lambda t: problem.loss(t)[0], lambda t: problem.loss(t)[1], theta, epsilon=1e-7
    )
    assert error <= 1e-5 * np.linalg.norm(problem.loss(theta)[1]) + 1e-5 * problem.loss(theta)[0]


def test_marginals_without_support_have_infinite_loss():
    problem = MarginalsProblem(gram(MARGINALS[0]), noise="laplace", max_cells=1e8)
    loss, slope = problem.loss(np.zeros(len(problem.lattice)))
    assert loss == math.inf
    assert not slope.any()


def test_marginals_beyond_the_limit_of_cells_are_not_measured():
    workload = MARGINALS[0]
    selection = opt_marginals(gram(workload), noise="laplace", rng=rng(), max_cells=6)
    assert all(math.prod((3, 2, 4)[i] for i in b) <= 6 for b in selection.weights)
    with pytest.raises(UnsupportedWorkloadError, match="cells"):
        opt_marginals(gram(workload), noise="laplace", rng=rng(), max_cells=5)


def test_a_table_over_too_many_attributes_is_refused_not_listed():
    shape = (2,) * 25
    wide = Workload(shape, (marginal(shape, range(25)), marginal(shape, [0])), (1.0, 1.0))
    with pytest.raises(UnsupportedWorkloadError, match="25 attributes"):
        MarginalsProblem(gram(wide), noise="laplace", max_cells=1e30)


def test_a_family_that_is_not_closed_sums_over_its_members_alone():
    family = [(0, 1), (1, 2), (1,)]
    lattice = Lattice(3, family)
    assert lattice.superset_sums(np.array([1.0, 10.0, 100.0])).tolist() == [1.0, 10.0, 111.0]
    assert lattice.subset_sums(np.array([1.0, 10.0, 100.0])).tolist() == [101.0, 110.0, 100.0]


@noises
def test_the_listed_closure_gives_the_loss_of_the_full_lattice(noise, monkeypatch):
    workload = MARGINALS[0]
    full = MarginalsProblem(gram(workload), noise=noise, max_cells=1e8)
    monkeypatch.setattr("dpquery.strategy.optimize.opt_marginals.FULL_LIMIT", 0)
    monkeypatch.setattr("dpquery.strategy.optimize.opt_marginals.LARGEST_FULL", 0)
    listed = MarginalsProblem(gram(workload), noise=noise, max_cells=1e8)
    below, union = {(), (0,), (1,), (2,), (0, 1)}, {(0, 1, 2)}
    assert set(listed.lattice.subsets) == below | union
    theta = dict(zip(listed.lattice.subsets, rng(2).random(6), strict=True))
    spread = np.array([theta.get(a, 0.0) for a in full.lattice.subsets])
    dense = np.array(list(theta.values()))
    assert listed.loss(dense)[0] == pytest.approx(full.loss(spread)[0], rel=1e-12)


@pytest.mark.parametrize(
    ("factor", "expected"), [(Prefix(12), range(0, 12, 2)), (AllRanges(12), range(3, 9))]
)
def test_prefixes_are_halved_as_prefixes_and_ranges_by_their_middle(factor, expected):
    assert list(halving_of(factor.gram())(12)) == list(expected)


# OPT_F: its gradients, its closed forms against dense twins, and that it contains the others.


SHAPE = MIXED.shape_of_domain


def problem_of(workload):
    return Problem(workload, gram(workload), "laplace", seed=0)


def optimised(workload, *, max_cells=1e8):
    problem = problem_of(workload)
    return problem, opt_factors(
        problem.gram,
        rng=np.random.default_rng(0),
        max_cells=max_cells,
        marginals=problem.marginals,
        product=problem.product,
    )


def a_point(seed=1):
    """A problem, weights of all subsets and a root for two of the three attributes."""
    problem, rng = FactorsProblem(gram(MIXED), max_cells=1e8), np.random.default_rng(seed)
    theta = rng.random(len(problem.lattice)) + 0.1
    return problem, theta, {0: rng.random((2, 5)), 1: rng.random((1, 4))}


def dense_loss_of_factors(A, workload):
    """sensitivity^2 tr((A'A)^+ V), everything written out."""
    A = A / np.abs(A).sum(axis=0).max()
    W, w = dense_workload(workload)
    return float(np.trace(np.linalg.pinv(A.T @ A, rcond=1e-12) @ W.T @ (w[:, None] * W)))


def test_the_gradient_is_that_of_the_loss():
    problem, theta, roots = a_point()
    ends = np.cumsum([len(theta), *(root.size for root in roots.values())])

    def unpacked(flat):
        first, *pieces = np.split(flat, ends[:-1])
        return first, {i: p.reshape(roots[i].shape) for i, p in zip(roots, pieces, strict=True)}

    def slope(flat):
        _, by_theta, by_roots = problem.loss(*unpacked(flat))
        return np.concatenate([by_theta, *(root.ravel() for root in by_roots.values())])

    flat = np.concatenate([theta, *(root.ravel() for root in roots.values())])
    difference = check_grad(lambda x: problem.loss(*unpacked(x))[0], slope, flat, seed=0)
    assert difference < 1e-5 * np.linalg.norm(slope(flat))


def test_the_loss_is_the_dense_one():
    problem, theta, roots = a_point()
    factors = [np.eye(n) for n in SHAPE]
    for i, root in roots.items():
        factors[i] = np.vstack([np.eye(SHAPE[i]), root]) / (1 + root.sum(axis=0))
    rows = []
    for b, row in problem.place.items():
        matrix = np.ones((1, 1))
        for i, n in enumerate(SHAPE):
            matrix = np.kron(matrix, factors[i] if i in b else np.ones((1, n)))
        rows.append(theta[row] * matrix)
    expected = dense_loss_of_factors(np.vstack(rows), MIXED)
    assert math.exp(problem.loss(theta, roots)[0]) == pytest.approx(expected, rel=1e-4)


def test_weights_that_leave_a_table_unmeasured_have_infinite_loss():
    problem, theta, roots = a_point()
    value, by_theta, by_roots = problem.loss(0 * theta, roots)
    assert value == math.inf
    assert not by_theta.any()
    assert not any(root.any() for root in by_roots.values())


@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_worse_than_products_and_marginals(seed):
    workload = random_workload(np.random.default_rng(200 + seed), attributes=3, size=5)
    problem, selection = optimised(workload)
    assert selection.loss <= problem.marginals.loss * (1 + 1e-5)
    # Its factors are p-Identities: products of trees are OPT_x alone.
    trees = any(isinstance(factor, Tree) for factor in problem.product.factors)
    assert selection.loss <= problem.product.loss * (1 + (5e-3 if trees else 1e-5))


def test_a_table_of_too_many_cells_is_not_measured():
    _, selection = optimised(MIXED, max_cells=20)
    assert all(math.prod(SHAPE[i] for i in b) <= 20 for b in selection.weights)
    with pytest.raises(UnsupportedWorkloadError, match="cells"):
        optimised(MIXED, max_cells=19)


@pytest.mark.parametrize(
    ("workload", "other"),
    [
        (Workload((9, 1), (product((9, 1), {0: Prefix(9)}),), (1.0,)), "OPT_0"),
        (Workload((3, 4), (marginal((3, 4), [0, 1]), marginal((3, 4), [1])), (1.0, 2.0)), "OPT_M"),
        (Workload((9, 4), (product((9, 4), {0: Prefix(9)}),), (1.0,)), "OPT_M or OPT_x"),
        (
            Workload((3, 4), (product((3, 4), {0: Stacked((Identity(3), total(3)))}),), (1.0,)),
            "OPT_M",
        ),
    ],
)
def test_where_it_is_another_candidate_no_time_is_spent(workload, other):
    with pytest.raises(UnsupportedWorkloadError, match=f"the same as {other}"):
        check_optimisable(gram(workload))


def test_stopped_while_it_descends_it_hands_over_what_it_has_reached():
    messages = []

    def stop(text):
        messages.append(text)
        if sum("OPT_F" in message for message in messages) >= 30:
            raise OutOfTimeError

    with reporting(stop):
        proposal = factors_candidate(problem_of(MIXED))
    assert sum("OPT_F" in message for message in messages) < 60
    assert proposal.strategy.serves(MIXED)
