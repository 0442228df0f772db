"""OPT_R with cores for single blocks: dense twins, the optimum, gains, noise, hostile plans."""

import math

import numpy as np
import pytest
from dense import core_beside, dense_strategy, dense_workload

from dpquery.audit.dense_strategy import _strategy_rows
from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Identity, total
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.bounds import lower_bound
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.optimize import opt_residual as opt_block_cores
from dpquery.strategy.optimize.opt_residual import block_cores, opt_residual
from dpquery.strategy.search.candidates import Problem, residual_candidate
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import DenseCore

SHAPE = (9, 4, 3)
WORKLOAD = Workload(
    SHAPE,
    (
        product(SHAPE, {0: AllRanges(9)}),
        product(SHAPE, {0: Identity(9), 1: Identity(4)}),
        product(SHAPE, {1: Prefix(4), 2: Identity(3)}),
        product(SHAPE, {0: Prefix(9), 2: Identity(3)}),
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


def test_the_sensitivity_is_that_of_the_longest_column(strategy):
    squares = (dense_strategy(strategy.measurements).astype(object) ** 2).sum(axis=0)
    assert sensitivity(strategy.measurements, "gaussian") == max(squares)


@pytest.mark.nightly
def test_a_core_beside_a_null_vector_is_the_best_there_is():
    rng = np.random.default_rng(5)
    spread = np.array([3, 1, 2, 5, 4])
    core = core_beside(rng, spread).factor.dense().astype(float)
    V = np.asarray(AllRanges(5).gram(), dtype=float)
    axis = opt_block_cores._Axis.of(core, [V])
    best = axis.traces(axis.best(np.ones(1), np.ones(5), 0.0)[0])[0]
    for scale in (0.3, 0.03, 0.003):
        for _ in range(300):
            C = axis.best(np.ones(1), np.ones(5), 0.0)[0]
            root = np.linalg.cholesky(C) + scale * rng.normal(size=C.shape) * np.sqrt(C.diagonal())
            other = root @ root.T
            other /= opt_block_cores._largest(axis.reader, other)
            assert axis.traces(other)[0] >= best * (1 - 2 * opt_block_cores.CORE_GAP)


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


def test_simulated_errors_are_those_predicted(strategy):
    rng, trials = np.random.default_rng(7), 400
    counts = rng.integers(0, 50, SHAPE)
    noise = math.sqrt(sensitivity(strategy.measurements, "gaussian"))
    exact = []
    for rows in strategy.measurements:
        beyond = tuple(i for i in range(3) if i not in rows.block.attributes)
        exact.append(rows.weight * rows.block.apply(counts.sum(axis=beyond).astype(float)).ravel())
    truth = [
        block.apply(counts.sum(axis=tuple(i for i in range(3) if i not in block.attributes)))
        for block in WORKLOAD.blocks
    ]
    squares = 0.0
    for _ in range(trials):
        estimates = reconstruct(strategy, [y + noise * rng.normal(size=y.shape) for y in exact])
        for k, block in enumerate(WORKLOAD.blocks):
            error = estimates.answer(block, k) - truth[k]
            squares += WORKLOAD.weights[k] * float((error**2).sum())
    rmse = math.sqrt(squares / trials / weighted_queries(WORKLOAD))
    assert rmse == pytest.approx(expected_error(strategy, WORKLOAD).weighted_rmse, rel=0.05)


def test_a_plan_holds_it_and_the_audit_reads_the_same_rows(strategy):
    encoded = strategy.encode()
    again = decode_strategy(encoded, noise="gaussian", workload=WORKLOAD)
    assert again.encode() == encoded
    written = {rows.block.attributes: dense_strategy([rows]) for rows in strategy.measurements}
    audited = _strategy_rows(encoded, SHAPE, [])
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
    marginals = Workload(SHAPE, (product(SHAPE, {0: Identity(9), 1: total(4)}),), (1.0,))
    cores = opt_residual(gram(marginals)).cores
    assert block_cores(gram(marginals), cores) is None
