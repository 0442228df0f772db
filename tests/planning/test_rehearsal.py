"""A rehearsal is the curator's own loop on public data; what a search finds is judged by others."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from rounds import COMPILED, SPEC_READ, Learner, plan

from dpquery.exceptions import OutOfTimeError
from dpquery.measurement.rounds.queries import rap_rounds
from dpquery.measurement.rounds.run import STEPS
from dpquery.plan_file.rehearsals import RapSettings, default_settings
from dpquery.planning.compare_mechanisms import MechanismRequest, stages_for
from dpquery.planning.rehearsal import runs as simulated_runs
from dpquery.planning.rehearsal.runs import SeededChance


@pytest.fixture
def stage():
    delta = Fraction(1, 10**9)
    return stages_for(
        SPEC_READ, COMPILED, MechanismRequest(), epsilon=Fraction(1), delta=delta, targets=((), ())
    ).rap


# Time.


def test_of_a_mechanism_that_was_asked_for_the_first_run_is_finished_once(stage, monkeypatch):
    limited, ends = dataclasses.replace(stage, end=-1.0), []

    def run(stage, settings, seed):
        ends.append(stage.end)
        simulated_runs.check_time(stage.end)
        return simulated_runs.Errors(1.0, 1.0)

    monkeypatch.setattr(simulated_runs, "_run", run)
    with pytest.raises(OutOfTimeError):
        simulated_runs.rehearse(limited, None, seeds=range(3))
    done = simulated_runs.rehearse(limited, None, seeds=range(3), first_always=True)
    assert ends == [-1.0, math.inf, -1.0]
    assert len(done.runs) == 1
    assert done.stopped


# The search.


@pytest.mark.parametrize("start", [(16, 1), (1, 1), (8, 8), (4, 20)])
@pytest.mark.parametrize("objective", ["rmse", "max"])
def test_the_search_goes_down_the_valley_and_along_it(stage, monkeypatch, start, objective):
    tried = []

    def valley(stage, settings, *, seeds):
        tried.append(settings)
        T, K = settings.rounds, settings.selected
        error = 1 + math.log2(T * K / 16) ** 2 + 0.1 * math.log2(T / 8) ** 2
        return simulated_runs.Rehearsed(
            settings, (simulated_runs.Errors(error, error),), stopped=False
        )

    monkeypatch.setattr(simulated_runs, "rehearse", valley)
    best, finished = simulated_runs.search(stage, RapSettings(*start, 10, 0), objective=objective)
    assert finished
    assert best.rounds * best.selected in (16, 20)
    assert len(tried) <= 12


def test_a_search_that_is_out_of_time_keeps_the_best_found(stage, monkeypatch):
    def slow(stage, settings, *, seeds):
        if settings.selected > 4:
            raise OutOfTimeError("no")
        return simulated_runs.Rehearsed(settings, (simulated_runs.Errors(1.0, 1.0),), stopped=False)

    monkeypatch.setattr(simulated_runs, "rehearse", slow)
    start = RapSettings(2, 4, 10, 0)
    assert simulated_runs.search(stage, start, objective="rmse") == (start, False)


@pytest.fixture
def searched(small, monkeypatch):
    """What plan makes of a search that found settings of some error by the seeds of their runs."""

    monkeypatch.setattr(MechanismRequest, "compared", ("rap",))

    def planned(errors, *arguments):
        """The plan, and the seeds of every rehearsal; `errors` are of the rule's and the found."""
        chosen, used = RapSettings(3, 7, 10, 0), []

        def rehearse(stage, settings, *, seeds):
            used.append((settings == chosen, list(seeds)))
            simulated = errors[settings == chosen]
            if simulated is None:
                raise OutOfTimeError("not finished")
            runs = tuple(simulated_runs.Errors(simulated, 10 * simulated) for _ in seeds)
            return simulated_runs.Rehearsed(settings, runs, stopped=False)

        monkeypatch.setattr("dpquery.planning.compare_mechanisms.rehearse", rehearse)
        monkeypatch.setattr(
            "dpquery.planning.compare_mechanisms.search", lambda *_, **__: (chosen, True)
        )
        return plan("--epsilon", "1", "--rap-search", *arguments), chosen, used

    return planned


@pytest.mark.nightly
@pytest.mark.parametrize("objective", ["rmse", "max"])
def test_what_a_search_found_is_kept_only_where_it_beats_the_rule_in_other_runs(
    searched, objective
):
    for errors, is_kept in (((2.0, 1.0), True), ((1.0, 2.0), False)):
        seen, chosen, used = searched(errors, "--objective", objective)
        assert (seen["rap"]["settings"] == vars(chosen)) is is_kept
        assert seen["rap"]["rmse"] == 1.0
        assert used == [(False, [0, 1, 2]), (True, [0, 1, 2])]
        assert "remark" not in seen


@pytest.mark.nightly
def test_what_a_search_found_too_late_to_be_rehearsed_is_not_kept(searched):
    seen, chosen, _ = searched((1.0, None))
    assert seen["rap"]["settings"] != vars(chosen)
    words = "what the search for RAP's settings found was not rehearsed; give --time-limit more"
    assert words in seen["remark"]


@pytest.mark.nightly
def test_a_search_and_what_judges_it_never_share_a_run(small, monkeypatch):
    real, used = simulated_runs._run, {}

    def run(stage, settings, seed):
        if settings is not None:  # of RAP
            used.setdefault(seed, set()).add(settings)
        return real(stage, settings, seed)

    monkeypatch.setattr(simulated_runs, "_run", run)
    seen = plan("--epsilon", "1", "--rap-search")["rap"]
    assert set(used) == {0, 1, 2, simulated_runs.SEARCH_SEED}
    assert len(used[0]) <= 2 < len(used[simulated_runs.SEARCH_SEED])
    assert RapSettings(**seen["settings"]) in used[0]


@pytest.mark.nightly
def test_a_search_that_was_not_finished_is_told(small, monkeypatch):
    chosen = RapSettings(3, 7, 10, 0)
    monkeypatch.setattr(
        "dpquery.planning.compare_mechanisms.search", lambda *_, objective: (chosen, False)
    )
    seen = plan("--epsilon", "1", "--rap-search")
    assert "the search for RAP's settings was not finished" in seen["remark"]


# One run.


def test_the_errors_are_weighted_as_the_workload_weighs_them(small):
    blocks = COMPILED.workload.blocks
    weights = tuple(float(k + 1) for k in range(len(blocks)))
    workload = dataclasses.replace(COMPILED.workload, weights=weights)
    compiled = dataclasses.replace(COMPILED, workload=workload)
    stage = stages_for(
        SPEC_READ,
        compiled,
        MechanismRequest(),
        epsilon=Fraction(1),
        delta=Fraction(1, 10**9),
        targets=((), ()),
    ).rap
    seen = []

    class Seen(Learner):
        def __init__(self, *given):
            super().__init__(*given)
            seen.append(self)

    simulated_runs.RapProjection = Seen  # the fixture puts it back
    run = simulated_runs.rehearse(stage, RapSettings(2, 5, 10, 0), seeds=[0]).runs[0]
    errors = [
        seen[0].answers(k) - stage.proxies[0].answers(block) for k, block in enumerate(blocks)
    ]
    total = sum(w * np.square(e).sum() for w, e in zip(weights, errors, strict=True))
    count = sum(w * e.size for w, e in zip(weights, errors, strict=True))
    assert run.rmse == pytest.approx(math.sqrt(total / count))
    assert run.largest == pytest.approx(max(np.abs(e).max() for e in errors))


def test_a_rehearsal_scales_its_answers_to_the_total_that_a_release_would(small):
    stage = stages_for(
        SPEC_READ,
        COMPILED,
        MechanismRequest(),
        epsilon=Fraction(1, 10_000),
        delta=Fraction(1, 10**9),
        targets=((), ()),
    ).rap
    totals, settings = [], RapSettings(2, 5, 10, 0)

    def seen(workload, settings, total):
        totals.append(total)
        return Learner(workload, settings, total)

    simulated_runs.RapProjection = seen  # the fixture puts it back
    simulated_runs.rehearse(stage, settings, seeds=[0])
    rounds = rap_rounds(
        COMPILED.workload,
        settings,
        privacy=SPEC_READ.privacy,
        guarantee=stage.guarantee,
        rows=stage.rows,
    )
    first = rounds.first(lambda _: np.array([2000]), SeededChance(0))
    assert abs(first[0] / STEPS - 2000) > 2000
    assert totals == [rounds.decoded([first]).total]
    assert totals[0] == pytest.approx(2000, rel=0.05)


def test_the_rule_measures_more_where_there_is_more_signal():
    def measured(epsilon):
        settings = default_settings(rho=epsilon**2 / 90, rows=50_000, queries=10**7)
        return settings.rounds * settings.selected

    counts = [measured(epsilon) for epsilon in (0.001, 0.01, 0.1, 1, 10)]
    assert counts == sorted(counts)
    assert counts[0] >= 8
    few = default_settings(rho=1.0, rows=50_000, queries=20)
    assert not few.adaptive
