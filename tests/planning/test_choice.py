"""Between linear strategies and RAP: a plan rehearses on public data only, and says what it saw."""

import dataclasses
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
import rounds
from rounds import REHEARSAL_SPEC, plan
from specs import unhashed
from town import SEARCHED, ok, refused

from dpquery.exceptions import SpecError
from dpquery.plan_file.plan import read_plan, write_plan
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.planning.accounting_choice import settled_accounting
from dpquery.planning.compare_mechanisms import ColumnRehearsal, MechanismRequest
from dpquery.planning.rehearsal import runs
from dpquery.reconstruction.relaxed.fits import RapProjection
from dpquery.releases.manifest_facts import RapFacts, SimulatedFacts
from dpquery.releases.statement import error_words
from dpquery.spec.parsing.read import parse

REHEARSED = dataclasses.replace(
    rounds.REHEARSED,
    settings=RapSettings(rounds=2, selected=3, relaxed_rows=50, seed=0),
    epsilon=Fraction(1, 10),
    delta=Fraction(1, 10**9),
)


@pytest.fixture(autouse=True)
def estimates_alone(monkeypatch):
    """RAP is set beside the estimates: the columns beside them are in test_closest."""
    monkeypatch.setattr(
        ColumnRehearsal, "compared", lambda self, plan, selections, reported: reported(plan)
    )
    monkeypatch.setattr(MechanismRequest, "compared", ("rap",))


@pytest.mark.slow
def test_the_choice_goes_both_ways_with_relaxed_rows(small, monkeypatch):
    monkeypatch.setattr(runs, "RapProjection", RapProjection)
    for epsilon, preferred in (("0.01", True), ("10", False)):
        arguments = ("--epsilon", epsilon, "--proxy", "public.csv")
        assert plan(*arguments)["rap"]["preferred"] is preferred


@pytest.mark.nightly
@pytest.mark.parametrize(("epsilon", "preferred"), [("0.01", True), ("10", False)])
@pytest.mark.parametrize(
    ("objective", "proxy"),
    [
        ("rmse", ()),
        ("rmse", ("--proxy", "public.csv")),
        pytest.param("max", (), marks=pytest.mark.slow),
    ],
)
def test_low_signal_picks_rap_and_high_signal_the_linear_strategy(
    small, epsilon, preferred, objective, proxy
):
    # The number of rows is public here: a noisy one would swamp all errors at low signal.
    text = REHEARSAL_SPEC.replace("about 2000", "2000").replace("add-remove", "replace")
    Path("workload.yaml").write_text(text)
    rap = plan("--epsilon", epsilon, "--objective", objective, *proxy)["rap"]
    assert rap["preferred"] is preferred
    name = "rmse" if objective == "rmse" else "max_error"
    assert rap["margin"] == (0.9 if proxy else 0.7)
    assert (rap[name] < rap["margin"] * rap[f"linear_{name}"]) is preferred


@pytest.mark.nightly
def test_the_same_plan_has_the_same_bytes(small):
    seen = []
    for _ in range(2):
        ok("plan", "workload.yaml", *SEARCHED, "--epsilon", "0.1")
        seen.append(Path("dpquery.plan").read_bytes())
    assert seen[0] == seen[1]
    assert read_plan(seen[0]).relaxed.epsilon == Fraction(1, 10)


def test_more_time_is_asked_for_where_the_rehearsal_was_cut_short(small, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(runs, "process_time", lambda: next(clock) / 10)
    monkeypatch.setattr("dpquery.planning.compare_mechanisms.process_time", lambda: 0.0)
    shown = plan("--epsilon", "1", "--time-limit", "1")
    assert shown["rap"]["repetitions"] < 3
    assert "of 3 rehearsals of RAP were finished; give --time-limit more" in shown["remark"]
    shown = plan("--epsilon", "1", "--time-limit", "0.01")
    assert "rap" not in shown
    assert shown["remark"].startswith("RAP was not compared: not finished within")
    arguments = ("workload.yaml", "--mechanism", "rap", "--time-limit", "0.01")
    assert "--time-limit" in refused("plan", *arguments, code=2)


def test_what_rap_cannot_do_does_not_keep_the_linear_plan_from_being_made(small, monkeypatch):
    def refuse(*_, **__):
        raise SpecError("the noise cannot be drawn")

    monkeypatch.setattr(runs, "rap_rounds", refuse)
    shown = plan()
    assert "rap" not in shown
    assert shown["remark"] == "RAP was not compared: the noise cannot be drawn"
    message = refused("plan", "workload.yaml", "--mechanism", "rap", code=2)
    assert "RAP cannot be rehearsed: the noise cannot be drawn" in message


def test_losses_are_added_up_as_they_are_on_record():
    """A dataset's record comes before its parent's, which comes before the mechanism."""
    inside = "dataset: {id: town, parent: {id: panel, budget: {epsilon: 20, delta: 1e-9}}, "
    spec = parse(
        rounds.REHEARSAL_SPEC.replace("dataset: {id: town, ", inside), name="w.yaml", files={}
    )

    def settled(mechanism="auto", **currencies):
        counted = settled_accounting(spec, currencies, mechanism)
        return counted and counted.accounting

    assert (settled(town="rho"), settled(town="mu^2")) == ("zcdp", "gdp")
    assert (settled(town="mu^2", panel="rho"), settled(panel="mu^2")) == ("gdp", "gdp")
    assert settled("rap", town="mu^2") == "gdp"
    assert (settled("rap"), settled("adaptive"), settled("linear")) == ("zcdp", "zcdp", None)
    assert settled(town="epsilon", others="rho") is None


def test_one_rehearsal_says_nothing_of_the_spread(small, monkeypatch):
    assert "spread " in ok("plan", "workload.yaml", *SEARCHED, "--epsilon", "0.01", "--why").out
    monkeypatch.setattr("dpquery.planning.compare_mechanisms.REPETITIONS", 1)
    printed = ok("plan", "workload.yaml", *SEARCHED, "--epsilon", "0.01", "--why").out
    assert "RAP rehearsed once" in printed
    assert "  spread " not in printed
    assert "takes 0.00%" not in printed  # of the budget: something is spent
    facts = dict.fromkeys(("rmse", "rmse_spread", "max_error", "max_error_spread"), 1.0)
    rap = RapFacts(1, 1, 1, 1.0, 1.0, 1.0, (1.0,), SimulatedFacts("it", 1, **facts))
    assert error_words(rap).endswith("RMSE 1 and largest error 1 in 1 run on it")


UNBIASED = REHEARSAL_SPEC.replace("prefer: closest\n", "")


def test_targets_bound_what_the_closest_answers_and_rap_have_not(small):
    target = ("--target", "pairs: sd <= 9")
    assert "closest answers have none" in refused("plan", "workload.yaml", *target, code=2)
    Path("workload.yaml").write_text(UNBIASED)
    assert "remark" not in plan(*target, "--time-limit", "0")
    message = refused("plan", "workload.yaml", *target, "--mechanism", "rap", code=2)
    assert "leave --target out" in message


def test_a_proxy_without_a_number_of_records_to_scale_it_to_is_a_mistake(small):
    Path("workload.yaml").write_text(re.sub(r", rows: [^}]*", "", UNBIASED))
    message = refused("plan", "workload.yaml", "--proxy", "public.csv", code=2)
    assert "declare `dataset: {rows: about 50000}`" in message
    message = refused("plan", "workload.yaml", "--rap-search", code=2)
    assert "write `prefer: closest` in the spec" in message
    assert "not one of 'linear'" in refused("plan", "workload.yaml", "--mechanism", "best", code=2)


def test_unbiased_answers_are_never_traded_for_rap(small):
    Path("workload.yaml").write_text(UNBIASED)
    assert "rap" not in plan("--epsilon", "0.01")
    shown = ok("plan", "workload.yaml", *SEARCHED, "--epsilon", "0.01", "--mechanism", "rap").out
    assert read_plan(Path("dpquery.plan").read_bytes()).relaxed.preferred
    assert re.search(r"\ntable +answers +average cell\n", shown)
    assert re.search(r"\nerrors +RAP: no error bars; simulated on [^:]+: RMSE [0-9,.]+, l", shown)
    assert "±" not in shown, "its answers have no intervals"


def test_a_plan_with_a_rehearsal_is_read_as_it_was_written(town):
    plain = read_plan(Path("dpquery.plan").read_bytes())
    assert plain.relaxed is None
    assert b"relaxed" not in write_plan(plain)
    written = write_plan(dataclasses.replace(plain, relaxed=REHEARSED))
    assert read_plan(written).relaxed == REHEARSED
    assert write_plan(read_plan(written)) == written
    raw = unhashed(written)
    del raw["relaxed"]["margin"]  # as plans were once written
    assert read_plan(json.dumps(raw).encode()).relaxed.margin == 1
