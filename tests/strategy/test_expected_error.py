"""Expected errors against the dense pseudo-inverse and against simulation."""

import math
import tracemalloc
from fractions import Fraction
from functools import cache, partial
from itertools import product as pairs

import numpy as np
import pytest
from dense import coefficients, dense_block, dense_strategy, random_strategies
from test_shapes import every_shape, strategies

import dpquery.strategy.search.select as module
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_EXPANDED_ROWS
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.noise.calibration import _on_grid, calibrated_noise
from dpquery.measurement.noise.exact_noise import draw
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Dense, Identity, Ones
from dpquery.operators.p_identity import PIdentity
from dpquery.operators.ranges import Prefix
from dpquery.progress import reporting
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.spec import Privacy
from dpquery.strategy.algebra import query_powers
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows, total_of
from dpquery.strategy.expected_error import block_errors, expected_error, largest_of
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy

seeds = pytest.mark.parametrize("seed", range(25))


def cases(seed, noise="laplace"):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, int(rng.integers(1, 4))).tolist())
    return random_strategies(rng, shape, noise)


def block_coefficients(strategy, block, position):
    if isinstance(strategy, DirectStrategy):
        return np.eye(block.shape[0]) / strategy.weights[position]
    return coefficients(strategy, dense_block(block), position)


@pytest.mark.nightly(daily=r"[a-z]-[01]\]")
@seeds
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_expected_error_equals_the_dense_one(seed, noise):
    for strategy, workload in cases(seed, noise):
        A = np.abs(dense_strategy(strategy.measurements)).astype(float)
        scale = A.sum(axis=0).max() ** 2 if noise == "laplace" else (A**2).sum(axis=0).max()
        variances, weights = [], []
        for position, (weight, block) in enumerate(
            zip(workload.weights, workload.blocks, strict=True)
        ):
            of_block = (block_coefficients(strategy, block, position) ** 2).sum(axis=1)
            variances += list(of_block)
            weights += [weight] * len(of_block)
            error = block_errors(strategy, workload)[position]
            assert error.total_squared == pytest.approx(scale * of_block.sum(), rel=1e-6)
            assert error.max_std_error == pytest.approx(math.sqrt(scale * of_block.max()), rel=1e-6)
        computed = expected_error(strategy, workload)
        assert computed.rmse == pytest.approx(math.sqrt(scale * np.mean(variances)), rel=1e-6)
        weighted = math.sqrt(scale * np.average(variances, weights=weights))
        assert computed.weighted_rmse == pytest.approx(weighted, rel=1e-6)
        assert computed.max_std_error == pytest.approx(math.sqrt(scale * max(variances)), rel=1e-6)


def test_an_unmeasured_attribute_is_refused_by_name_of_the_reason():
    shape = (3, 2)
    block = marginal(shape, [1])
    summed = ProductStrategy("p", "laplace", (Identity(3), Ones(1, 2)))
    with pytest.raises(UnsupportedWorkloadError, match="sums over"):
        summed.power_sums(block, position=0, order=2)
    marginals = MarginalsStrategy("m", "laplace", shape, {(0,): 1})
    with pytest.raises(UnsupportedWorkloadError, match="no measured marginal"):
        marginals.power_sums(block, position=0, order=2)


def test_a_table_too_large_to_list_gets_a_bound_on_its_largest_error():
    n = math.isqrt(MAX_EXPANDED_ROWS) + 2
    terms = [
        (2.0, [np.linspace(0, 1, n), np.linspace(1, 0, n)]),
        (-1.0, [np.ones(1), np.ones(1)]),
        (1.0, [np.linspace(1, 0, n), np.ones(1)]),
    ]
    assert largest_of(terms) == 3.0


def test_a_hundred_attributes_have_finite_errors_of_every_order():
    shape = (900,) * 100
    strategy = MarginalsStrategy("m", "laplace", shape, {(3, 70): 5, (99,): 2, (): 1})
    block = product(shape, {3: Prefix(900), 70: Identity(900)})
    for order in (2, 4):
        terms = strategy.power_sums(block, position=0, order=order)
        assert 0 < total_of(terms, block) < np.inf
    signed = Block(shape, (3, 70), block.factors, (True, True), 1)
    workload = Workload(shape, (block, signed), (1.0, 1.0))
    assert 0 < expected_error(strategy, workload).rmse < np.inf


# Covariances of any two answers, of every shape, held against those of dense coefficients.


SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3)))


def answers_to_unit_noise(strategy, block, position):
    """Coefficients of every answer on every measured row: estimates of one unit at a time."""
    sizes = [rows.block.queries for rows in strategy.measurements]
    ends = np.cumsum(sizes)[:-1]
    columns = [
        reconstruct(strategy, np.split(unit, ends)).answer(block, position).ravel()
        for unit in np.eye(sum(sizes))
    ]
    return np.array(columns).T


def all_rows(block, position=None):
    return QueryRows(block, np.arange(block.queries), position)


def close(given, expected):
    scale = max(np.abs(expected).max(initial=0.0), 1e-30)
    return np.abs(given - expected).max(initial=0.0) <= 1e-8 * scale


@pytest.mark.nightly(daily="product|residual|orbits")
@every_shape
@pytest.mark.parametrize("seed", SEEDS)
def test_covariances_are_those_of_the_estimates(kind, seed, monkeypatch):
    if seed % 2:  # distinct pairs are worked out one by one
        monkeypatch.setattr(query_powers, "MAX_CROSSED", 2)
    for strategy, workload in strategies(kind, seed):
        C = [answers_to_unit_noise(strategy, *pair[::-1]) for pair in enumerate(workload.blocks)]
        for i, left in enumerate(workload.blocks):
            own = strategy.covariances(QueryPairs(first := all_rows(left, i), first))
            assert close(own, (C[i] ** 2).sum(axis=1))
            across = QueryRows(left, first.places[:, None], i)
            for j, right in enumerate(workload.blocks):
                pairs = QueryPairs(across, all_rows(right, j))
                assert close(strategy.covariances(pairs), C[i] @ C[j].T), (i, j)


@every_shape
@pytest.mark.parametrize("seed", SEEDS)
def test_so_are_those_with_later_questions(kind, seed):
    """Of the margins of a block, which the workload does not hold."""
    compared = 0
    for strategy, workload in strategies(kind, seed):
        for position, block in enumerate(workload.blocks):
            factors = dict(zip(block.attributes, block.factors, strict=True))
            for i in block.attributes:
                margin = product(block.shape_of_domain, {k: factors[k] for k in factors if k != i})
                if not (block.is_product and strategy.supports(margin)):
                    continue
                C = answers_to_unit_noise(strategy, block, position)
                M = answers_to_unit_noise(strategy, margin, None)
                across = QueryRows(block, np.arange(block.queries)[:, None], position)
                pairs = QueryPairs(across, all_rows(margin))
                assert close(strategy.covariances(pairs), C @ M.T)
                compared += 1
    assert compared or kind in ("workload", "cell-classes", "orbits", "coarser", "union")


def test_of_many_pairs_no_square_array_is_made():
    """Cells of 5,000 codes with their total, and each prefix with the next."""
    n = 5_000
    strategy = MarginalsStrategy("m", "gaussian", (n, 4), {(0, 1): 3, (0,): 2, (): 5})
    cells = product((n, 4), {0: Identity(n), 1: Identity(4)})
    margin = product((n, 4), {0: Identity(n)})
    codes, others = np.divmod(np.arange(4 * n), 4)
    tracemalloc.start()
    pairs = QueryPairs(QueryRows(cells, codes * 4 + others), QueryRows(margin, codes))
    with_margin = strategy.covariances(pairs)
    prefixes = product((n, 4), {0: Prefix(n)})
    few = np.arange(0, n - 1, 50)
    steps = QueryPairs(QueryRows(prefixes, few), QueryRows(prefixes, few + 1))
    with_next = strategy.covariances(steps)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * n * n / 4
    assert np.ptp(with_margin) < 1e-12
    each = [QueryRows(prefixes, few + step) for step in (0, 1)]
    first, second = (strategy.covariances(QueryPairs(rows, rows)) for rows in each)
    assert np.all(with_next**2 <= first * second)
    assert np.all(with_next > 0)


# The time limit of plan: what stands, what is said, and that two processes change nothing.


SHAPE = (24, 3)
WORKLOAD = Workload(
    SHAPE, (product(SHAPE, {0: Prefix(SHAPE[0])}), marginal(SHAPE, [1])), (1.0, 1.0)
)
NOISES = ("laplace", "gaussian")


def comparable(selection):
    return [
        (
            candidate.name,
            candidate.error,
            candidate.reason,
            candidate.proposal and candidate.proposal.strategy.encode(),
        )
        for candidate in selection.candidates
    ]


def selected(noise, limit):
    return select(WORKLOAD, noises=[noise], time_limit=limit)[noise]


@cache
def searched(noise):
    """Return what a search to its end comes to, and all that it reports."""
    messages = []
    with reporting(messages.append):
        return selected(noise, math.inf), messages


def test_candidates_that_run_out_of_time_are_named_and_the_others_stand():
    selection = select(WORKLOAD, noises=["laplace"], time_limit=0)["laplace"]
    stopped = {candidate.name for candidate in selection.candidates if candidate.stopped}
    assert "OPT_M" in stopped
    assert all(
        candidate.proposal or "0 CPU seconds" in candidate.reason
        for candidate in selection.candidates
        if candidate.stopped
    )
    assert {"Identity", "Workload"} <= {
        candidate.name for candidate in selection.candidates if candidate.error
    }
    assert selection.best.error.rmse > 0


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", NOISES)
def test_a_search_that_is_stopped_hands_over_the_best_it_has(noise, monkeypatch):
    whole = {candidate.name: candidate for candidate in searched(noise)[0].candidates}
    cut = []
    for limit in (20, 80):
        clock = iter(range(10_000))  # time goes on by one with every line that is reported
        monkeypatch.setattr(module.time, "process_time", partial(next, clock))
        cut += [c for c in selected(noise, limit).candidates if c.stopped and c.proposal]
    assert cut
    for candidate in cut:
        assert whole[candidate.name].score * 0.99 < candidate.score < math.inf


def test_two_processes_find_what_one_finds_in_the_order_asked_for(monkeypatch):
    monkeypatch.setattr(module, "LONG_ATTRIBUTE", SHAPE[0] - 1)
    terms = {"noises": NOISES, "time_limit": 0, "reach": lambda *_: 0.5}
    alone, both = (select(WORKLOAD, jobs=jobs, **terms) for jobs in (1, 2))
    assert tuple(alone) == tuple(both) == NOISES
    for noise in NOISES:
        assert comparable(alone[noise]) == comparable(both[noise])
        assert alone[noise].best.name == both[noise].best.name
        assert alone[noise].bound == both[noise].bound


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", NOISES)
def test_progress_names_the_noise_and_every_candidate(noise):
    selection, messages = searched(noise)
    before = f"looking for the best strategy with {noise.capitalize()} noise"
    assert all(text.startswith(before) for text in messages)
    shares = [text.done for text in messages]
    assert shares == sorted(shares)
    assert 0.85 <= shares[-1] <= 1
    tried = {text.words.removeprefix(f"{before}: ") for text in messages}
    assert {candidate.name for candidate in selection.candidates if candidate.proposal} - {
        "OPT_0"
    } <= tried


TABLES = Workload(SHAPE, (marginal(SHAPE, [0]), marginal(SHAPE, [1])), (1.0, 1.0))
PROVEN = "another one is as good as proven optimal"


def reasons(selection):
    return {candidate.name: candidate.reason for candidate in selection.candidates}


def test_nothing_is_searched_once_a_strategy_is_proven_optimal():
    """The closed forms reach the bound for tables of cells."""
    selection = select(TABLES, noises=["gaussian"])["gaussian"]
    named = reasons(selection)
    assert {name for name in named if named[name] == PROVEN} >= {"OPT_M", "OPT_R", "OPT_+", "OPT_C"}
    reached = selection.best.error.weighted_rmse**2 * 27
    assert reached <= selection.bound.loss * 1.001


def test_a_goal_is_searched_for_whatever_the_mean_reaches():
    selection = select(TABLES, noises=["gaussian"], objective="max")["gaussian"]
    assert PROVEN not in reasons(selection).values()


def test_a_strategy_whose_answers_have_a_flaw_ends_no_search():
    flawed = []

    def flaw_of(strategy):
        flawed.append(strategy.name)
        return "a flaw" if len(flawed) == 1 else ""

    selection = select(TABLES, noises=["gaussian"], flaw_of=flaw_of)["gaussian"]
    assert reasons(selection)[flawed[0]] == "left out: a flaw"
    assert selection.best.name != flawed[0]
    assert selection.best.error.weighted_rmse**2 * 27 <= selection.bound.loss * 1.001


# The mechanism: its sensitivity on the grid bounds what any record can do.


EPSILON = guarantee("laplace", epsilon=Fraction(1), delta=Fraction(0))
RHO = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6))


def wide_product(noise):
    """A product whose entries need 50 bits, so that the grid has a shift."""
    rng = np.random.default_rng(3)
    factors = []
    for n in (3, 2, 4):
        rows = rng.integers(0, 2**15, (1, n))
        dense = rng.integers(-(2**16), 2**16, (n + 1, n))
        is_laplace = noise == "laplace"
        factors.append(PIdentity(2**16 - rows.sum(axis=0), rows) if is_laplace else Dense(dense))
    return ProductStrategy("wide", noise, tuple(factors))


def moves(strategy, mechanism, before, after):
    """How far the answers on the grid move, in the norm of the noise."""
    total = 0
    for measurement in strategy.measurements:
        attributes = measurement.block.attributes
        beyond = tuple(i for i in range(before.ndim) if i not in attributes)
        a, b = (
            exact_answers(measurement, x.sum(axis=beyond), shift=mechanism.shift)
            for x in (before, after)
        )
        steps = [abs(int(u) - int(v)) for u, v in zip(a, b, strict=True)]
        total += sum(steps) if strategy.noise == "laplace" else sum(s * s for s in steps)
    return total


@pytest.mark.nightly(daily=r"\[3")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@pytest.mark.parametrize("rows", [1, 3])
def test_no_neighbour_moves_the_answers_further_than_the_sensitivity(noise, neighbours, rows):
    strategies = [
        wide_product(noise),
        MarginalsStrategy("m", noise, (3, 2, 4), {(0,): 70_000, (1, 2): 3, (): 5}),
    ]
    budget = EPSILON if noise == "laplace" else RHO
    rng = np.random.default_rng(1)
    for strategy in strategies:
        privacy = Privacy(person="id", max_rows=rows, neighbours=neighbours)
        mechanism = calibrated_noise(strategy, privacy=privacy, guarantee=budget)
        cells = list(np.ndindex(strategy.shape))
        for cell, other in list(pairs(cells, cells))[:: 1 if rows == 1 else 7]:
            before = rng.integers(0, 9, strategy.shape) + rows
            after = before.copy()
            after[cell] += rows
            if neighbours == "replace":
                after[other] -= rows
            assert moves(strategy, mechanism, before, after) <= mechanism.sensitivity


@pytest.mark.parametrize("shift", [1, 2, 5])
def test_a_column_on_the_grid_is_paid_for_wherever_its_answers_stand(shift):
    """Small columns of many lengths: a root that is rounded down is not paid for."""
    rng, step = np.random.default_rng(shift), 1 << shift
    for _ in range(4_000):
        size = int(rng.integers(1, 12))
        alike = int(rng.integers(0, 9)) * step + 1  # moves by a whole step more than its length
        column = np.full(size, alike) if rng.random() < 0.5 else rng.integers(1, 4 * step, size)
        moves = [-(-int(entry) // step) for entry in column]
        total, squared = int(column.sum()), int((column**2).sum())
        assert sum(moves) <= _on_grid(total, size, shift, True) <= total / step + size + 1
        length = squared**0.5 / step + size**0.5 + 3
        assert sum(m * m for m in moves) <= _on_grid(squared, size, shift, False) <= length**2


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_standard_deviation_that_is_stated_is_that_of_what_is_drawn(noise):
    budget, size = EPSILON if noise == "laplace" else RHO, 20_000
    calibrated = calibrated_noise(wide_product(noise), privacy=Privacy(), guarantee=budget)
    drawn = draw(
        np.zeros(size, np.int64),
        budget=budget,
        sensitivity=calibrated.sensitivity,
        scale=calibrated.scale,
    )
    # Eight standard deviations of what is found: sqrt((kurtosis - 1) / (4 n)), 6 for Laplace.
    slack = 8 * np.sqrt((5 if noise == "laplace" else 2) / (4 * size))
    assert calibrated.shift > 0
    assert drawn.std() * 2.0**calibrated.shift == pytest.approx(calibrated.noise_std, rel=slack)


@pytest.mark.parametrize(("epsilon", "word"), [(10**6, "smaller"), (Fraction(1, 10**20), "larger")])
def test_noise_that_cannot_be_drawn_is_refused_before_anything_is_charged(epsilon, word):
    budget = guarantee("laplace", epsilon=Fraction(epsilon), delta=Fraction(0))
    strategy = MarginalsStrategy("m", "laplace", (3,), {(0,): 2**16})
    with pytest.raises(SpecError, match=f"ask for a {word} epsilon"):
        calibrated_noise(strategy, privacy=Privacy(), guarantee=budget)
