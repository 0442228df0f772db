"""The search for supports finds the best where all can be tried, and never loses ground."""

import math
from itertools import combinations

import numpy as np
import pytest
from dense import MIXED, dense_strategy, dense_workload, random_workload, rng
from scipy.optimize import check_grad

from dpquery.audit.dense_strategy import _strategy_rows
from dpquery.exceptions import OutOfTimeError, SpecError
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Identity, Stacked, total
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.progress import reporting
from dpquery.strategy.algebra.subsets import Lattice
from dpquery.strategy.bounds import lower_bound, svd_bound
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.optimize import opt_residual as opt_block_cores
from dpquery.strategy.optimize.opt_marginals import MarginalSearch, MarginalsProblem, opt_marginals
from dpquery.strategy.optimize.opt_residual import (
    ResidualProblem,
    block_cores,
    opt_residual,
    real_core,
)
from dpquery.strategy.search import select as select_module
from dpquery.strategy.search.candidates import Problem, residual_candidate
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore

seeds = pytest.mark.parametrize("seed", range(8))


def marginals(shape, subsets, weights=None):
    blocks = tuple(marginal(shape, subset) for subset in subsets)
    return Workload(shape, blocks, tuple(weights or (1.0,) * len(blocks)))


def random_marginals(seed, d=3):
    shape = tuple(rng(seed).integers(2, 30, d).tolist())
    every = [b for k in range(min(d, 4)) for b in combinations(range(d), k)]
    chosen = [b for b in every if rng(seed).random() < 0.7] or every
    return marginals(shape, chosen, rng(seed).choice([0.1, 1.0, 10.0], len(chosen)).tolist())


def problem_of(workload, max_cells=1e8):
    return MarginalsProblem(gram(workload), noise="laplace", max_cells=max_cells)


def search_of(problem):
    return MarginalSearch(problem.lattice, problem.cells, problem.target, problem.allowed)


def slow_loss(workload, weights):
    """(sum theta)^2 sum_a target_a / kappa_a, by loops over subsets."""
    problem = problem_of(workload)
    error = 0.0
    for a, target in zip(problem.lattice.subsets, problem.target, strict=True):
        names = {problem.attributes[i] for i in a}
        kappa = sum(
            theta**2 / math.prod(workload.shape_of_domain[i] for i in b)
            for b, theta in weights.items()
            if names <= set(b)
        )
        error += target / kappa if target > 0 else 0.0
    return sum(weights.values()) ** 2 * error


@seeds
def test_a_step_never_raises_the_loss(seed):
    problem = problem_of(random_workload(rng(seed)))
    theta = rng(seed).random(len(problem.lattice)) + 0.01
    for _ in range(5):
        moved = problem.step(theta)
        assert problem.loss(moved)[0] <= problem.loss(theta)[0] * (1 + 1e-12)
        theta = moved


@seeds
def test_the_loss_is_that_of_the_weights_and_no_hop_raises_it(seed):
    workload = random_marginals(seed, d=5)
    losses = []
    for hops in (0, 20, 60):
        selection = opt_marginals(gram(workload), noise="laplace", rng=rng(), restarts=2, hops=hops)
        assert sum(selection.weights.values()) == pytest.approx(1)
        assert slow_loss(workload, selection.weights) == pytest.approx(selection.loss, rel=1e-7)
        losses.append(selection.loss)
    assert losses == sorted(losses, reverse=True)


@seeds
def test_a_hop_is_better_or_nothing(seed):
    workload = random_marginals(seed, d=5)
    most = max(math.prod(block.table_shape) for block in workload.blocks)
    problem = problem_of(workload, max_cells=most)
    search, generator = search_of(problem), rng(seed)
    first = search.finish(search.measurable, np.ones(len(search.measurable)))
    for _ in range(30):
        better = search.hop(first, generator)
        assert better is None or better.loss < first.loss
        assert better is None or problem.allowed[better.subsets].all()


def test_weights_of_very_different_sizes_lose_no_table():
    shape = (2, 3, 900)
    workload = marginals(shape, [(0,), (1,), (2,)], [1e-9, 1.0, 1e9])
    selection = opt_marginals(gram(workload), noise="laplace", rng=rng())
    assert slow_loss(workload, selection.weights) == pytest.approx(selection.loss, rel=1e-6)


@pytest.mark.parametrize("d", [1, 4])
def test_inclusion_and_toggling_agree_with_sets(d):
    full = Lattice(d)
    family = [a for a in full.subsets if len(a) != 1]
    for lattice in (full, Lattice(d, family)):
        low, high = rng(1).integers(len(lattice), size=6), rng(2).integers(len(lattice), size=9)
        included = [
            [set(lattice.subset(a)) <= set(lattice.subset(b)) for b in high.tolist()]
            for a in low.tolist()
        ]
        assert lattice.inclusions(low, high).tolist() == np.array(included, dtype=float).tolist()
        numbers, attributes = rng(3).integers(len(lattice), size=20), rng(4).integers(d, size=20)
        expected = [
            tuple(sorted(set(lattice.subset(k)) ^ {i}))
            for k, i in zip(numbers.tolist(), attributes.tolist(), strict=True)
        ]
        toggled = [lattice.subset(k) for k in lattice.toggled(numbers, attributes).tolist()]
        assert toggled == [a for a in expected if a in lattice.subsets]


def test_beyond_the_full_lattice_unions_of_tables_are_measured_where_they_pay():
    shape = (2,) * 18
    pairs = list(combinations(range(0, 18, 3), 2))
    workload = marginals(shape, [*pairs, *((i,) for i in range(18))])
    selection = opt_marginals(gram(workload), noise="laplace", rng=rng(), hops=40)
    assert any(len(b) > 2 for b in selection.weights)
    alone = opt_marginals(gram(workload), noise="laplace", rng=rng(), restarts=1, hops=0)
    assert selection.loss < alone.loss


def test_most_of_many_subsets_are_kept_as_a_full_lattice():
    shape = (2,) * 17
    wide = marginals(shape, [range(17)])
    assert problem_of(wide).lattice.full
    assert not problem_of(marginals(shape, [range(8), range(8, 17)])).lattice.full


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_a_time_limit_stops_the_search(noise):
    lines = []

    def stop(line):
        lines.append(line)
        raise OutOfTimeError("enough")

    with reporting(stop):
        stopped = opt_marginals(gram(random_marginals(0, d=5)), noise=noise, rng=rng())
    assert len(lines) < 10
    whole = opt_marginals(gram(random_marginals(0, d=5)), noise=noise, rng=rng())
    assert whole.loss * 0.999 < stopped.loss < math.inf


# OPT_R: its gradient, its closed forms against dense twins, and that it contains the others.


SHAPE = MIXED.shape_of_domain


def proposal_for(workload):
    problem = Problem(workload, gram(workload), "gaussian", seed=0)
    return residual_candidate(problem)


def dense_loss(strategy, workload):
    """sensitivity^2 tr((A'A)^+ V), everything written out."""
    A = dense_strategy(strategy.measurements).astype(float)
    A = A / np.sqrt((A**2).sum(axis=0).max())
    W, w = dense_workload(workload)
    return float(np.trace(np.linalg.pinv(A.T @ A, rcond=1e-12) @ W.T @ (w[:, None] * W)))


def test_the_gradient_is_that_of_the_loss():
    problem = ResidualProblem(gram(MIXED))
    rng = np.random.default_rng(1)
    roots = {i: 3 * np.eye(SHAPE[i]) + rng.normal(size=(SHAPE[i],) * 2) for i in problem.active}
    flat = problem.start(roots)
    difference = check_grad(
        lambda x: problem.loss(x)[0], lambda x: problem.loss(x)[1], flat, seed=0
    )
    assert difference < 1e-5 * np.linalg.norm(problem.loss(flat)[1])


@pytest.mark.nightly(daily=r"\[[0-3]\]")
@pytest.mark.parametrize("seed", range(12))
def test_the_integer_strategy_has_the_dense_loss_and_what_the_optimiser_promised(seed):
    workload = random_workload(np.random.default_rng(seed), attributes=3)
    proposal = proposal_for(workload)
    selection = opt_residual(gram(workload))
    of_blocks = block_cores(gram(workload), selection.cores)
    promised = of_blocks.loss if proposal.strategy.block_cores else selection.loss
    error = expected_error(proposal.strategy, workload)
    loss = error.weighted_rmse**2 * weighted_queries(workload)
    assert loss == pytest.approx(dense_loss(proposal.strategy, workload), rel=1e-3)
    # The largest columns of blocks with cores of their own need not be of the same codes.
    assert loss >= promised * (1 - (2e-2 if proposal.strategy.block_cores else 2e-3))
    assert loss <= promised * (1 + 2e-3)
    assert loss >= svd_bound(gram(workload)).loss * (1 - 1e-6)


@pytest.mark.nightly(daily=r"\[[0-3]\]")
@pytest.mark.parametrize("seed", range(12))
def test_it_is_never_worse_than_what_it_contains(seed, monkeypatch):
    monkeypatch.setattr(select_module, "SETTLED", -1.0)  # all are searched, whatever is reached
    monkeypatch.setattr(select_module, "CONTAINED_IN", {})
    workload = random_workload(np.random.default_rng(100 + seed), attributes=3, size=5)
    candidates = select(workload, noises=["gaussian"])["gaussian"].candidates
    scores = {
        candidate.name: candidate.error.weighted_rmse
        for candidate in candidates
        if candidate.error is not None
    }
    contained = ("OPT_x", "OPT_0", "OPT_M")
    others = [score for name, score in scores.items() if name in contained]
    assert scores["OPT_R"] <= min(others) * 1.002


@pytest.mark.parametrize("seed", range(6))
def test_it_attains_the_svd_bound_on_marginals(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 9, 4).tolist())
    subsets = [b for k in range(4) for b in combinations(range(4), k) if rng.random() < 0.5]
    blocks = [marginal(shape, b) for b in subsets]
    blocks.append(product(shape, {0: Stacked((Identity(shape[0]), total(shape[0])))}))
    workload = Workload(shape, tuple(blocks), tuple(rng.random(len(blocks)) + 0.1))
    error = expected_error(proposal_for(workload).strategy, workload)
    loss = error.weighted_rmse**2 * weighted_queries(workload)
    assert loss == pytest.approx(svd_bound(gram(workload)).loss, rel=1e-4)


def test_a_real_core_has_the_gram_and_the_null_vector_it_should():
    C = np.random.default_rng(3).normal(size=(6, 6)) + 3 * np.eye(6)
    B = C / np.linalg.norm(C, axis=0)
    G = B.T @ B
    g = np.linalg.solve(G, np.ones(6))
    F = real_core(C)
    assert F.shape == (5, 6)
    assert pytest.approx(G - 1 / g.sum(), abs=1e-5) == F.T @ F
    assert F @ (g / g.sum()) == pytest.approx(np.zeros(5), abs=1e-5)


def test_one_range_among_many_codes_needs_little_more_than_itself():
    workload = Workload((40,), (product((40,), {0: ListedRanges(40, [(3, 9)])}),), (1.0,))
    error = expected_error(proposal_for(workload).strategy, workload)
    assert error.rmse < 1.05


@pytest.mark.parametrize("core", [CenteredCore(5), DenseCore(np.diag([3, 1, 4, 1, 5])[:4] - 2)])
def test_a_core_splits_counts_into_level_and_residual(core):
    F, x = core.factor.dense(), np.arange(5.0) ** 2
    z = np.broadcast_to(core.spread(np.ones((1, 1)))[:, 0], 5)
    R = core.recover(np.eye(len(F)))
    queries = Prefix(5)
    Q = queries.dense()
    V = Q.T @ Q
    assert z.sum() == pytest.approx(1)
    assert F @ z == pytest.approx(np.zeros(len(F)), abs=1e-12)
    assert R @ (F @ x) + z * x.sum() == pytest.approx(x)
    assert core.levels(queries) == pytest.approx(Q @ z)
    assert core.variances(queries) == pytest.approx(((Q @ R) ** 2).sum(axis=1))
    assert core.traces(V) == pytest.approx((z @ V @ z, np.trace(R.T @ V @ R)))


@pytest.mark.parametrize(
    "rows", [[[1, 2, 3], [2, 4, 6]], [[1, 1, 1], [1, 0, 0]]], ids=["dependent", "total"]
)
def test_a_core_that_cannot_answer_is_refused_when_it_is_read(rows):
    workload = Workload((3,), (product((3,), {0: Prefix(3)}),), (1.0,))
    encoded = proposal_for(workload).strategy.encode()
    good = decode_strategy(encoded, noise="gaussian", workload=workload)
    assert expected_error(good, workload).rmse > 0
    bad = type(good)("r", "gaussian", (DenseCore(np.array(rows)),), good.weights).encode()
    with pytest.raises(SpecError, match="plan"):
        decode_strategy(bad, noise="gaussian", workload=workload)
    del encoded["weights"][0]
    with pytest.raises(SpecError, match="plan"):
        decode_strategy(encoded, noise="gaussian", workload=workload)


# OPT_R with cores for single blocks: dense twins, the optimum, gains, noise, hostile plans.


CORED = (9, 4, 3)
WORKLOAD = Workload(
    CORED,
    (
        product(CORED, {0: AllRanges(9)}),
        product(CORED, {0: Identity(9), 1: Identity(4)}),
        product(CORED, {1: Prefix(4), 2: Identity(3)}),
        product(CORED, {0: Prefix(9), 2: Identity(3)}),
    ),
    (1.0, 3.0, 1.0, 2.0),
)


@pytest.fixture(scope="module")
def strategy():
    return residual_candidate(Problem(WORKLOAD, gram(WORKLOAD), "gaussian", seed=0)).strategy


def test_blocks_with_cores_of_their_own_err_as_is_said_and_less_than_common_ones(strategy):
    assert {0} <= {i for cores in strategy.block_cores.values() for i in cores}
    A = dense_strategy(strategy.measurements).astype(float)
    A = A / np.sqrt((A**2).sum(axis=0).max())
    W, w = dense_workload(WORKLOAD)
    dense = float(np.trace(np.linalg.pinv(A.T @ A, rcond=1e-12) @ W.T @ (w[:, None] * W)))
    queries = weighted_queries(WORKLOAD)
    loss = expected_error(strategy, WORKLOAD).weighted_rmse ** 2 * queries
    assert loss == pytest.approx(dense, rel=1e-6)
    common = opt_residual(gram(WORKLOAD))
    assert loss == pytest.approx(block_cores(gram(WORKLOAD), common.cores).loss, rel=2e-3)
    assert loss < common.loss / 1.03
    assert loss >= lower_bound(gram(WORKLOAD)).loss


def test_whole_cores_have_the_null_vector_exactly_and_the_traces_nearly():
    rng = np.random.default_rng(6)
    for n in (2, 5, 40):
        z = rng.integers(1, 200, n) * np.where(rng.random(n) < 0.2, -1, 1)
        core = np.linalg.svd(z[None, :].astype(float))[2][1:]
        axis = opt_block_cores._Axis.of(core, [np.asarray(AllRanges(n).gram(), dtype=float)])
        C = axis.best(np.ones(1), np.ones(n), 0.0)[0]
        whole = axis.whole(C)
        assert not (whole.astype(object) @ axis.spread).any()
        B = np.linalg.svd(np.ones((1, n)))[2][1:].T
        again = B.T @ whole.T.astype(float) @ whole @ B
        again /= opt_block_cores._largest(axis.reader, again)
        assert axis.traces(again) == pytest.approx(axis.traces(C), rel=2e-3)


def test_a_plan_holds_it_and_the_audit_reads_the_same_rows(strategy):
    encoded = strategy.encode()
    again = decode_strategy(encoded, noise="gaussian", workload=WORKLOAD)
    assert again.encode() == encoded
    written = {rows.block.attributes: dense_strategy([rows]) for rows in strategy.measurements}
    audited = _strategy_rows(encoded, CORED, [])
    assert len(again.measurements) == len(audited) == len(written)
    for rows, theirs in zip(again.measurements, audited, strict=True):
        assert np.array_equal(dense_strategy([rows]), written[rows.block.attributes])
        assert theirs.attributes == rows.block.attributes
        assert theirs.weight == rows.weight
        for mine, other in zip(rows.block.factors, theirs.matrices, strict=True):
            assert np.array_equal(mine.dense(), other)


def other_null_vector(encoded):
    encoded["block_cores"][0][2] = {**encoded["spreads"][0][1]}


def spreads_of_each_other(encoded):
    (i, of_i), (j, of_j) = encoded["spreads"]
    encoded["spreads"] = [[i, of_j], [j, of_i]]


DAMAGES = [
    other_null_vector,
    spreads_of_each_other,
    lambda encoded: encoded.pop("spreads"),
    lambda encoded: encoded["spreads"].pop(),
    lambda encoded: encoded["spreads"].append(encoded["spreads"][0]),
    lambda encoded: encoded["block_cores"].append(encoded["block_cores"][0]),
    lambda encoded: encoded["block_cores"][0].__setitem__(0, [0, 1, 2]),
    lambda encoded: encoded["block_cores"][0].__setitem__(1, 7),
    lambda encoded: encoded["block_cores"][0].__setitem__(1, -1),
    lambda encoded: encoded["block_cores"][0].pop(),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_hostile_plan_of_block_cores_is_refused(strategy, damage):
    encoded = strategy.encode()
    decode_strategy(encoded, noise="gaussian", workload=WORKLOAD)
    damage(encoded)
    with pytest.raises(SpecError):
        decode_strategy(encoded, noise="gaussian", workload=WORKLOAD)


def test_a_core_with_another_null_vector_is_refused(strategy):
    b, cores = next(iter(strategy.block_cores.items()))
    i = next(iter(cores))
    spread = strategy.spreads[i].copy()
    spread[0] += 1
    spreads = {**strategy.spreads, i: spread}
    with pytest.raises(ValueError, match="null vectors"):
        ResidualStrategy(
            "x", "gaussian", strategy.cores, strategy.weights, spreads, {b: {i: cores[i]}}
        )


def test_a_null_vector_is_one_in_whole_numbers_and_not_in_64_bits():
    core = DenseCore(np.array([[1 << 62, 1 << 62]]))
    assert core.is_null(np.array([3, -3]))
    assert not core.is_null(np.array([2, 2]))  # 2^64, which int64 takes for 0


def test_nothing_is_chosen_where_all_blocks_ask_the_same_of_an_attribute():
    marginals = Workload(CORED, (product(CORED, {0: Identity(9), 1: total(4)}),), (1.0,))
    cores = opt_residual(gram(marginals)).cores
    assert block_cores(gram(marginals), cores) is None
