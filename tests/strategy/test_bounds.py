"""Lower bounds are below every strategy; goals are found to a certificate."""

import math
from itertools import combinations

import numpy as np
import pytest
from dense import dense_strategy, dense_workload, random_workload
from scipy.optimize import check_grad, minimize

import dpquery.strategy.bounds as lower_bounds
import dpquery.strategy.root_trace as root_trace
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Groups, Identity, Stacked, total
from dpquery.operators.gram import array_of, gram
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.strategy.algebra.orbits import orbits_of
from dpquery.strategy.algebra.query_powers import expand
from dpquery.strategy.algebra.roots import root_nodes
from dpquery.strategy.bounds import _evaluate, dual_bound, lower_bound, moved_bound, svd_bound
from dpquery.strategy.expected_error import expected_error, squared_sensitivity, weighted_queries
from dpquery.strategy.minimax import (
    BudgetProblem,
    Limit,
    bounding_workload,
    even_shares,
    largest_standard_error,
    mixed,
    raised,
    row_classes,
    score,
)
from dpquery.strategy.optimize.fixed_point import move_budgets, moves_optimum
from dpquery.strategy.optimize.opt_0 import opt_0
from dpquery.strategy.search.candidates import (
    Problem,
    goal_bound,
    marginals_candidate,
    residual_minimax,
)
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.splits import CenteredCore


def dense_svd_bound(workload):
    W, w = dense_workload(workload)
    values = np.linalg.svd(np.sqrt(w)[:, None] * W, compute_uv=False)
    return values.sum() ** 2 / W.shape[1]


@pytest.mark.parametrize("seed", range(12))
def test_bound_equals_the_dense_one(seed):
    workload = random_workload(np.random.default_rng(seed))
    assert svd_bound(gram(workload)).loss == pytest.approx(dense_svd_bound(workload), rel=1e-6)


@pytest.mark.parametrize(
    "workload",
    [
        Workload((3, 1, 4), (product((3, 1, 4), {0: Prefix(3), 2: AllRanges(4)}),), (2.0,)),
        Workload((3, 4), (marginal((3, 4), []),), (1.0,)),
        Workload(
            (3, 2, 4),
            tuple(marginal((3, 2, 4), attributes) for attributes in ([0, 1], [2], [], [0, 2])),
            (1.0, 5.0, 0.1, 1.0),
        ),
        Workload(
            (3, 2, 4),
            (Block((3, 2, 4), (0, 1, 2), (Identity(3), Identity(2), Identity(4)), (True,) * 3, 2),),
            (1.0,),
        ),
    ],
)
def test_closed_forms_never_look_at_the_dense_gram(workload, monkeypatch):
    monkeypatch.setattr(lower_bounds, "MAX_DECOMPOSED_CELLS", 0)
    assert svd_bound(gram(workload)).loss == pytest.approx(dense_svd_bound(workload), rel=1e-9)


def test_no_bound_is_claimed_where_none_can_be_computed():
    shape = (400, 400)
    blocks = (product(shape, {0: Prefix(400)}), product(shape, {1: Prefix(400)}))
    assert svd_bound(gram(Workload(shape, blocks, (1.0, 1.0)))) is None


# The dual bound is what it claims at every v, and no strategy is below it.


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
    for seed in range(10):
        yield random_workload(np.random.default_rng(seed))
    yield pairs((3, 4, 2, 3), Prefix)
    yield pairs((4, 3, 3), AllRanges)
    yield pairs((6, 5, 2), grouped)
    yield pairs((3, 2, 3, 2), Prefix, width=3)


CASES = list(some_workloads())


@pytest.mark.nightly(daily=r"[1679]\]")
@pytest.mark.parametrize("workload", CASES)
@pytest.mark.parametrize("dense", [10_000, 0])
def test_the_bound_and_its_masses_at_any_v_are_those_of_the_dense_root(
    workload, dense, monkeypatch
):
    monkeypatch.setattr(root_trace, "DENSE", dense)  # at 0 every block that can be is eliminated
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


@pytest.mark.nightly(daily=r"[0-5]\]")
@pytest.mark.parametrize("workload", CASES)
def test_no_strategy_is_below_the_bound_and_it_is_no_worse_than_the_svd_bound(workload):
    V = gram(workload)
    best = opt_0(V.dense(), noise="gaussian", rng=np.random.default_rng(0), max_iterations=40)
    assert dual_bound(V) <= best.loss * (1 + 1e-9)
    assert svd_bound(V).loss <= lower_bound(V).loss <= best.loss * (1 + 1e-9)


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
    monkeypatch.setattr(root_trace, "MAX_ASSEMBLED", -1)
    shape = (4, 3, 2)
    factors = (Prefix(4), Prefix(3), Prefix(2))
    blocks = (Block(shape, (0, 1, 2), factors, (True,) * 3, 2), product(shape, {0: AllRanges(4)}))
    assert dual_bound(gram(Workload(shape, blocks, (1.0, 1.0)))) is None


# Strategies and bounds for records that are replaced, beside a search over all strategies.


noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])
changes = pytest.mark.parametrize("change", ["moves", "moves within"])


def optimum_by_search(V, change, seed):
    """The least loss of any strategy of a few cells, by a smooth search from random starts."""
    n = len(V)
    E = np.eye(n) if change == "moves" else np.linalg.svd(np.ones((1, n)))[2][1:].T
    m = E.shape[1]
    U = E.T @ V @ E
    pairs = [(i, j) for i in range(n) for j in range(i)]
    moves = [E[i] - E[j] for i, j in pairs] + ([*E] if change == "moves" else [])
    M = np.array(moves)
    rng = np.random.default_rng(seed)
    best = np.inf

    def loss(flat, t):
        C = flat.reshape(m, m)
        X = C.T @ C + 1e-9 * np.eye(m)
        long = np.einsum("ki,ij,kj->k", M, X, M)
        top = long.max()
        error = np.trace(np.linalg.solve(X, U))
        return math.log(top) + math.log(((long / top) ** t).sum()) / t + math.log(error)

    for _ in range(2):
        point = (np.eye(m) + 0.3 * rng.normal(size=(m, m))).ravel()
        for t in (4, 16, 64, 256, 1024):
            point = minimize(loss, point, args=(t,), method="BFGS").x
        C = point.reshape(m, m)
        X = C.T @ C
        best = min(best, np.einsum("ki,ij,kj->k", M, X, M).max() * np.trace(np.linalg.solve(X, U)))
    return best


CELLS = Workload((3, 2), (product((3, 2), {0: Identity(3), 1: Identity(2)}),), (1.0,))
SIDES = Workload(
    (3, 2),
    (product((3, 2), {0: Identity(3)}), product((3, 2), {1: Identity(2)}), product((3, 2), {})),
    (1.0, 3.0, 1.0),
)
LINE = Workload((5,), (product((5,), {0: Prefix(5)}),), (1.0,))


@pytest.mark.nightly
@changes
@pytest.mark.parametrize("workload", [CELLS, SIDES, LINE], ids=["cells", "sides", "line"])
def test_no_strategy_is_better_than_the_bound_and_the_chosen_one_reaches_it(workload, change):
    W, weights = dense_workload(workload)
    V = (W.T * weights) @ W
    bound = lower_bound(gram(workload), change)
    searched = optimum_by_search(V + 1e-9 * np.eye(len(V)), change, 0)
    assert bound.loss <= searched * (1 + 1e-6)
    selection = select(workload, noises=["gaussian"], change=change)["gaussian"]
    reached = selection.best.score**2 * weighted_queries(workload)
    assert bound.loss * (1 - 1e-9) <= reached <= bound.loss * 1.002
    assert reached >= searched * 0.997


def test_records_that_never_leave_are_bound_apart_from_those_that_enter():
    """The bound for records that enter is above the best strategy for records that stay."""
    workload = Workload((4,), (product((4,), {}), product((4,), {0: Identity(4)})), (100.0, 1.0))
    V = gram(workload)
    within = select(workload, noises=["gaussian"], change="moves within")["gaussian"]
    reached = within.best.score**2 * weighted_queries(workload)
    assert reached < lower_bound(V).loss
    assert lower_bound(V, "moves within").loss <= reached * (1 + 1e-9)
    assert lower_bound(V, "moves").loss >= lower_bound(V).loss


@changes
@pytest.mark.parametrize("seed", range(6))
def test_a_bound_for_records_that_enter_gives_one_for_those_that_move(seed, change):
    """Never above the optimum, and near it where a record is a small part of the workload."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 9))
    factor = Prefix(n) if seed % 2 else Identity(n)
    G = gram(Workload((n,), (product((n,), {0: factor}),), (float(rng.uniform(0.1, 9)),)))
    optimum = moves_optimum(G.dense(), change).loss
    moved = moved_bound(lower_bound(G), G)
    assert moved is None or moved.loss <= optimum * (1 + 1e-6)
    wide = gram(Workload((64,), (product((64,), {0: Identity(64)}),), (1.0,)))
    moved, entering = moved_bound(lower_bound(wide), wide), lower_bound(wide)
    assert moved.loss > 0.9 * entering.loss


def test_a_wide_domain_is_bound_by_what_holds_for_records_that_enter():
    shape = (40, 40)
    V = gram(Workload(shape, (product(shape, {0: Identity(40), 1: Prefix(40)}),), (1.0,)))
    entering = lower_bound(V).loss
    for change in ("moves", "moves within"):
        assert 1.3 * entering < lower_bound(V, change).loss < 2 * entering


def test_budgets_over_moves_are_proven_optimal():
    rng = np.random.default_rng(4)
    for _ in range(20):
        S, Q = rng.random(5) + 0.01, rng.random((9, 5)) * (rng.random((9, 5)) < 0.6)
        Q[0] += 0.01
        budgets = move_budgets(S, Q)
        assert (Q @ budgets.weights).max() <= 1 + 1e-9
        assert budgets.loss == pytest.approx((S / budgets.weights).sum())
        assert budgets.bound <= budgets.loss <= budgets.bound * 1.001


# Goals: the least score is found to a certificate, and is never worse than without them.

SHAPE = (4, 3, 2)
GOAL_WORKLOAD = Workload(
    SHAPE,
    (
        product(SHAPE, {0: Prefix(4), 1: Identity(3)}),
        product(SHAPE, {1: Stacked((Identity(3), total(3))), 2: Identity(2)}),
        product(SHAPE, {0: AllRanges(4)}),
        marginal(SHAPE, ()),
    ),
    (1.0, 2.0, 0.5, 1.0),
)
GOAL = (Limit("sd", (0, 3), 2.0), Limit("rmse", (1, 2), 0.5), Limit("sd", (2,), 1.0))
CORES = tuple(CenteredCore(n) for n in SHAPE)


def problem_of(workload, noise="gaussian"):
    return Problem(workload, gram(workload), noise, seed=0)


def dense_figures(strategy, workload, goal):
    """Every figure of a goal over its target, all variances by a dense pseudo-inverse."""
    A = dense_strategy(strategy.measurements).astype(float)
    W, _ = dense_workload(workload)
    peak = np.abs(A).max()
    C = W @ np.linalg.pinv(A / peak, rcond=1e-10) / peak  # of A'A the condition would be squared
    variances = (C**2).sum(axis=1) * squared_sensitivity(strategy)
    ends = np.cumsum([0, *(block.shape[0] for block in workload.blocks)])
    figures = []
    for limit in goal:
        chosen = np.concatenate([variances[ends[k] : ends[k + 1]] for k in limit.blocks])
        figure = chosen.max() if limit.figure == "sd" else chosen.mean()
        figures.append(math.sqrt(figure) / limit.target)
    return figures


def least_by_slsqp(problem):
    """The least squared score over budgets, by a general solver on the epigraph."""
    A = problem.matrix.toarray()
    start = np.append(np.zeros(A.shape[1]), math.log(A.sum(axis=1).max()))
    minimum = minimize(
        lambda z: z[-1] + math.log(np.exp(-z[:-1]).sum()),
        start,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda z: z[-1] - np.log(A @ np.exp(z[:-1]))},
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    return math.exp(minimum.fun)


@pytest.mark.parametrize(
    "goal", [largest_standard_error(GOAL_WORKLOAD), GOAL], ids=["max", "targets"]
)
def test_the_best_budgets_are_those_of_a_general_solver_and_certified(goal):
    problem = BudgetProblem(GOAL_WORKLOAD, goal, CORES)
    solution = problem.solve()
    least = math.sqrt(least_by_slsqp(problem))
    assert solution.bound <= least * (1 + 1e-6)
    assert solution.score >= least * (1 - 1e-6)
    assert solution.score <= solution.bound * 1.001


def test_the_smoothed_score_has_the_gradient_it_says():
    problem = BudgetProblem(GOAL_WORKLOAD, GOAL, CORES)
    x = np.random.default_rng(0).normal(size=len(problem.subsets))
    for t in (1.0, 4.0, 64.0):
        difference = check_grad(
            lambda x, t=t: problem.smoothed(x, t)[0], lambda x, t=t: problem.smoothed(x, t)[1], x
        )
        assert difference < 1e-5 * np.linalg.norm(problem.smoothed(x, t)[1])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_the_score_promised_is_that_of_the_integer_strategy_written_out(seed):
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, attributes=3)
    places = tuple(range(len(workload.blocks)))
    goals = [largest_standard_error(workload), tuple(Limit("rmse", (k,), 1.0 + k) for k in places)]
    for goal in goals:
        proposal = residual_minimax(goal, problem_of(workload))
        error = expected_error(proposal.strategy, workload)
        reached = score(goal, error, workload)
        assert reached == pytest.approx(
            max(dense_figures(proposal.strategy, workload, goal)), rel=1e-6
        )
        bound = goal_bound(problem_of(workload), goal)
        assert reached >= math.sqrt(bound.loss) * (1 - 1e-9)
        read = decode_strategy(proposal.strategy.encode(), noise="gaussian", workload=workload)
        assert expected_error(read, workload) == error


@pytest.mark.nightly(daily=r"\[0\]")
@pytest.mark.parametrize("seed", range(2))
def test_for_marginals_the_largest_error_is_proven_optimal(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 9, 4).tolist())
    blocks = tuple(
        marginal(shape, b) for b in [(), (0,), (1, 2), (0, 3), (1, 2, 3)] if rng.random() < 0.8
    )
    stacked = {i: Stacked((Identity(shape[i]), total(shape[i]))) for i in (0, 2)}
    for workload in (
        Workload(shape, (*blocks, marginal(shape, (2,))), (1.0,) * (len(blocks) + 1)),
        Workload(shape, (product(shape, stacked),), (1.0,)),
    ):
        goal = largest_standard_error(workload)
        selection = select(workload, noises=["gaussian"], objective="max")["gaussian"]
        ratio = selection.best.error.max_std_error / math.sqrt(selection.score_bound.loss)
        assert 1 - 1e-9 <= ratio < 1.001
        assert selection.best.score == score(goal, selection.best.error, workload)


@pytest.mark.nightly(daily=r"\[1-")
@pytest.mark.parametrize(
    ("seed", "noise"), [*((k, "gaussian") for k in range(6)), (1, "laplace"), (4, "laplace")]
)
def test_a_goal_is_served_no_worse_than_by_strategies_for_the_rmse(seed, noise):
    workload = random_workload(np.random.default_rng(50 + seed), attributes=3, size=4)
    plain = select(workload, noises=[noise])[noise]
    for objective, targets in (("max", ()), ("rmse", (Limit("sd", (0,), 3.0),))):
        goal = targets or largest_standard_error(workload)
        selection = select(workload, noises=[noise], objective=objective, targets=targets)[noise]
        others = [candidate.error for candidate in plain.candidates if candidate.error is not None]
        assert selection.best.score <= min(score(goal, error, workload) for error in others)
        if selection.score_bound is not None:
            assert selection.best.score**2 >= selection.score_bound.loss * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_weighted_workload_is_at_most_the_score_of_any_strategy(seed):
    rng = np.random.default_rng(seed)
    even = even_shares(GOAL, GOAL_WORKLOAD)
    assert sum(part.mass for part in even) == pytest.approx(1)
    strategy = marginals_candidate(problem_of(GOAL_WORKLOAD)).strategy
    shares, mean = raised(even, GOAL, GOAL_WORKLOAD, strategy, power=float(rng.random()))
    reached = score(GOAL, expected_error(strategy, GOAL_WORKLOAD), GOAL_WORKLOAD)
    assert sum(part.mass for part in shares) == pytest.approx(1)
    assert all(vector.sum() == pytest.approx(1) for part in shares for vector in part.rows)
    for weights, figure in ((even, mean), (shares, None), (mixed(even, shares, 0.3), None)):
        bounding = bounding_workload(GOAL_WORKLOAD, GOAL, weights)
        error = expected_error(strategy, bounding)
        total = sum(
            w * block.total_squared for w, block in zip(bounding.weights, error.blocks, strict=True)
        )
        assert total <= reached**2 * (1 + 1e-9)
        assert svd_bound(gram(bounding)).loss <= total * (1 + 1e-9)
        if figure is not None:
            assert total == pytest.approx(figure)


@pytest.mark.parametrize("seed", range(6))
def test_classes_of_queries_expand_to_every_query(seed):
    workload = random_workload(np.random.default_rng(seed), attributes=3)
    strategy = marginals_candidate(problem_of(workload)).strategy
    for k, block in enumerate(workload.blocks):
        terms = strategy.power_sums(block, position=k, order=2)
        classes = row_classes(block, terms)
        short = np.broadcast_to(expand(classes.terms), classes.shape)
        assert sum(len(count) for count in classes.counts) == sum(classes.shape)
        index = np.ix_(*classes.members) if classes.members else ()
        assert short[index] == pytest.approx(expand(terms, block.row_shape))
