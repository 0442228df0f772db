"""The time limit of plan: what stands, what is said, and that two processes change nothing."""

import pytest

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


def test_candidates_that_run_out_of_time_are_named_and_the_others_stand():
    selection = select(WORKLOAD, noises=["laplace"], time_limit=0)["laplace"]
    stopped = {candidate.name for candidate in selection.candidates if candidate.stopped}
    assert "OPT_M" in stopped
    assert all(
        "0 CPU seconds" in candidate.reason
        for candidate in selection.candidates
        if candidate.stopped
    )
    assert {"Identity", "Workload"} <= {
        candidate.name for candidate in selection.candidates if candidate.error
    }
    assert selection.best.error.rmse > 0


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
    assert all(text.startswith(f"{noise}: ") for text in messages)
    tried = {text.removeprefix(f"{noise}: ") for text in messages}
    assert {candidate.name for candidate in selection.candidates if candidate.proposal} - {
        "OPT_0"
    } <= tried
