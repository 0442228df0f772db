"""The time limit of plan: what stands, what is said, and that two processes change nothing."""

import math
from functools import partial

import pytest
from dense import MIXED

import dpquery.strategy.search.select as module
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.ranges import Prefix
from dpquery.progress import reporting
from dpquery.strategy.search.select import select

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


def selected(noise, limit=math.inf):
    return select(WORKLOAD, noises=[noise], time_limit=limit)[noise]


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


@pytest.mark.parametrize("noise", NOISES)
def test_a_search_that_is_stopped_hands_over_the_best_it_has(noise, monkeypatch):
    whole = {candidate.name: candidate for candidate in selected(noise).candidates}
    cut = []
    for limit in (20, 40, 80, 120, 240, 600):
        clock = iter(range(10_000))  # time goes on by one with every line that is reported
        monkeypatch.setattr(module.time, "process_time", partial(next, clock))
        cut += [c for c in selected(noise, limit).candidates if c.stopped and c.proposal]
    assert cut
    for candidate in cut:
        assert whole[candidate.name].score * 0.99 < candidate.score < math.inf


def test_nothing_is_stopped_where_there_is_time():
    selection = select(WORKLOAD, noises=["gaussian"])["gaussian"]
    assert not any(candidate.stopped for candidate in selection.candidates)


def test_two_processes_find_what_one_finds_in_the_order_asked_for(monkeypatch):
    monkeypatch.setattr(module, "LONG_ATTRIBUTE", SHAPE[0] - 1)
    alone, both = (select(WORKLOAD, noises=NOISES, jobs=jobs) for jobs in (1, 2))
    assert tuple(alone) == tuple(both) == NOISES
    for noise in NOISES:
        assert comparable(alone[noise]) == comparable(both[noise])
        assert alone[noise].best.name == both[noise].best.name
        assert alone[noise].bound == both[noise].bound


@pytest.mark.parametrize("noise", NOISES)
def test_progress_names_the_noise_and_every_candidate(noise):
    messages = []
    with reporting(messages.append):
        selection = select(WORKLOAD, noises=[noise])[noise]
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


@pytest.mark.nightly
def test_what_another_search_contains_is_not_searched():
    """Where its answers have a flaw it is."""

    def of(noise, flawed=""):
        def flaw_of(strategy):
            return "a flaw" if strategy.name == flawed else ""

        return reasons(select(MIXED, noises=[noise], flaw_of=flaw_of)[noise])

    assert of("gaussian")["OPT_M"] == "contained in what OPT_R searches"
    assert not of("laplace")["OPT_M"]
    with_a_flaw = of("gaussian", flawed="OPT_R")
    assert with_a_flaw["OPT_R"] == "left out: a flaw"
    assert not with_a_flaw["OPT_M"]
