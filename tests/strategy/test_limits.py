"""What the search chooses can be read back from a plan: one set of limits holds for both."""

from itertools import chain, combinations

import pytest

from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.factors import Dense, Identity, total
from dpquery.operators.ranges import Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.strategy import expected_error
from dpquery.strategy import strategy as size_limits
from dpquery.strategy.search import select
from dpquery.strategy.search.candidates import Proposal
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy

SHAPE = (2,) * 14
WORKLOAD = Workload(SHAPE, tuple(marginal(SHAPE, [i]) for i in range(14)), (1.0,) * 14)
EVERY = chain.from_iterable(combinations(range(14), k) for k in range(15))


def wide(problem):
    """Every marginal of fourteen attributes: 3^14 subsets of subsets, past 2^22."""
    return Proposal(MarginalsStrategy("wide", problem.noise, SHAPE, dict.fromkeys(EVERY, 1)))


def plain(problem):
    ways = {(i,): 1 for i in range(14)}
    return Proposal(MarginalsStrategy("plain", problem.noise, SHAPE, ways))


def test_a_candidate_that_could_not_be_read_back_never_wins(monkeypatch):
    monkeypatch.setattr(select, "CLOSED_FORMS", (("wide", wide), ("plain", plain)))
    monkeypatch.setattr(select, "SEARCH_ROUNDS", ((), (), ()))
    chosen = select.select(WORKLOAD, noises=["laplace"])["laplace"]
    refused, *_ = chosen.candidates
    assert "more than the 4,194,304 that a plan holds" in refused.reason
    assert chosen.best.name == "plain"
    decode_strategy(chosen.best.proposal.strategy.encode(), noise="laplace", workload=WORKLOAD)


@pytest.mark.parametrize("limit", ["MAX_MATRIX_BYTES", "MAX_MATRICES_BYTES"])
def test_matrices_are_counted_as_a_plan_writes_them(monkeypatch, limit):
    factors = (Dense(Identity(2).dense()), *(total(2) for _ in SHAPE[1:]))
    strategy = ProductStrategy("dense", "laplace", factors)
    monkeypatch.setattr(size_limits, limit, 32)
    size_limits.check_strategy_size(strategy)
    monkeypatch.setattr(size_limits, limit, 31)
    with pytest.raises(SpecError, match="more than the 31 that a plan holds"):
        size_limits.check_strategy_size(strategy)


@pytest.mark.parametrize("other", [1, 1 << 30])
def test_a_largest_error_that_is_exact_on_one_machine_only_is_no_damage(monkeypatch, other):
    """Which it is hangs on rows that are told apart in floats."""
    shape = (5, 4)
    workload = Workload(shape, (product(shape, {0: Prefix(5), 1: Prefix(4)}),), (1.0,))
    strategy = MarginalsStrategy("m", "laplace", shape, {(0, 1): 3, (0,): 2, (): 1})
    monkeypatch.setattr(expected_error, "MAX_EXPANDED_ROWS", 12)
    monkeypatch.setattr(expected_error, "_is_exact", lambda _: other > 1)
    error = expected_error.expected_error(strategy, workload)
    low, high = error.max_between
    assert low <= error.max_std_error <= high
    assert low < high
    monkeypatch.setattr(expected_error, "_is_exact", lambda _: other == 1)
    assert low <= expected_error.expected_error(strategy, workload).max_std_error <= high
