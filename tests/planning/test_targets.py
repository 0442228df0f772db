"""plan --target and --sweep: the least epsilon that meets every target, and errors by epsilon."""

import json
import math
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from town import GAUSSIAN_SPEC, SPEC, ok, run

from dpquery.exceptions import SpecError
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import decode_strategy, read_plan
from dpquery.planning.figures import unit_std
from dpquery.planning.targets import goal_of, parse_targets
from dpquery.spec.parsing.read import parse
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.goals import score

TARGETS = ("age_by_sex: sd <= 12", "ages: rmse <= 9.5")


QUICK = ("--time-limit", "0")  # where any strategy will do


def planned(*arguments):
    return json.loads(ok("plan", "workload.yaml", "--json", *arguments).out)


def with_targets(*texts):
    return [argument for text in texts for argument in ("--target", text)]


@pytest.mark.nightly
@pytest.mark.parametrize("text", [SPEC, GAUSSIAN_SPEC], ids=["laplace", "both"])
@pytest.mark.parametrize("targets", [TARGETS, ("*: rmse <= 20",)], ids=["two", "every item"])
def test_the_least_epsilon_meets_every_target_and_one_per_cent_less_does_not(
    tmp_path, monkeypatch, text, targets
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("workload.yaml").write_text(text)
    report = planned(*with_targets(*targets))
    assert all(target["met"] and target["reached"] <= target["target"] for target in named(report))
    plan = read_plan(Path("dpquery.plan").read_bytes())
    spec = parse(plan.spec_text, name="spec", files={})
    spec = spec if plan.accounting is None else spec.counted_in(plan.accounting)
    compiled = compile_spec(spec)
    goal = goal_of(parse_targets(targets, spec), spec, compiled)
    delta = spec.privacy.delta
    assert [least["noise"] for least in report["least_epsilons"]] == [
        selection["noise"] for selection in report["selections"]
    ]
    for least in report["least_epsilons"]:
        (selection,) = [one for one in plan.selections if one.noise == least["noise"]]
        strategy = decode_strategy(
            selection.strategy, noise=least["noise"], workload=compiled.workload
        )
        figure = score(
            goal,
            expected_error(strategy, compiled.workload, selection.record_change),
            compiled.workload,
        )
        epsilon = Fraction(str(least["epsilon"]))
        assert (
            figure
            * unit_std(
                least["noise"], spec, epsilon=epsilon, delta=delta, change=selection.record_change
            )
            <= 1
        )
        less = epsilon * 99 / 100
        assert (
            figure
            * unit_std(
                least["noise"], spec, epsilon=less, delta=delta, change=selection.record_change
            )
            > 1
        )
    shares = [least["budget_share"] for least in report["least_epsilons"]]
    assert shares == sorted(shares)
    assert report["epsilon"] == report["least_epsilons"][0]["epsilon"]


def named(report):
    return [target | {"target": target["at_most"]} for target in report["targets"]]


def test_a_release_at_the_least_epsilon_has_the_errors_that_were_promised(town):
    report = planned(*with_targets(*TARGETS))
    ok("release", "data.csv", "--epsilon", report["epsilon"])
    for target in named(report):
        errors = pq.read_table(f"release/{target['item']}.parquet").column("std_error").to_numpy()
        figure = errors.max() if target["figure"] == "sd" else math.sqrt((errors**2).mean())
        assert figure == pytest.approx(target["reached"], rel=1e-3)
        assert figure <= target["target"] * 1.001


@pytest.mark.nightly
def test_targets_are_met_with_less_than_the_strategy_for_the_rmse_would_take(town):
    tuned = planned(*with_targets("pairs: sd <= 10"))
    plain = {item["name"]: item["max_std_error"] for item in planned()["selections"][0]["items"]}
    assert tuned["epsilon"] < 0.9 * plain["pairs"] / 10


def test_targets_beyond_the_budget_are_priced_and_said_to_be_so(town):
    done = run("plan", "workload.yaml", "--target", "*: sd <= 0.5", "--out", "dear.plan", *QUICK)
    assert done.code == 1
    assert Path("dear.plan").is_file()
    assert "\nbeyond   the targets cost more than the whole budget" in done.out
    assert done.err.splitlines()[-1].startswith("dpquery: the targets cost more than the whole")
    assert "which cannot pay for it" in done.out
    assert "met" in done.out
    as_json = run("plan", "workload.yaml", "--json", *with_targets("*: sd <= 0.5"), *QUICK)
    assert as_json.code == 1
    epsilon = json.loads(as_json.out)["least_epsilons"][0]["epsilon"]
    assert epsilon > 4
    assert f"epsilon = {epsilon:g}" in done.out
    shown = run("plan", "workload.yaml", "--target", "*: sd <= 0.5", "--epsilon", "4", *QUICK)
    assert shown.code == 1
    assert "not met" in shown.out


def test_a_sweep_prices_one_plan_at_every_epsilon(town):
    report = planned("--sweep", "0.1,2,0.5", *QUICK)
    assert [point["epsilon"] for point in report["sweep"]] == [0.1, 2, 0.5]
    for point in report["sweep"]:
        (noise,) = point["noises"]
        expected = planned("--epsilon", point["epsilon"], *QUICK)["selections"][0]
        (best,) = [one for one in expected["candidates"] if one["name"] == noise["strategy"]]
        assert noise["rmse"] == best["rmse"]
        assert noise["max_std_error"] == best["max_std_error"]
        assert noise["budget_share"] == expected["budget_share"]
    assert "error by epsilon" in ok("plan", "workload.yaml", "--sweep", "0.1,1", *QUICK).out


def test_weights_that_differ_show_the_weighted_rmse_and_equal_ones_do_not(town):
    assert "weighted RMSE" in ok("plan", "workload.yaml", "--candidates", *QUICK).out
    Path("workload.yaml").write_text(SPEC.replace("    weight: 2\n", ""))
    assert "weighted RMSE" not in ok("plan", "workload.yaml", "--candidates", *QUICK).out


@pytest.mark.nightly
def test_the_ratio_for_the_largest_error_is_to_a_bound_on_the_largest_error(town):
    report = planned("--objective", "max")
    (selection,) = report["selections"]
    (best,) = [one for one in selection["candidates"] if one["name"] == selection["best"]]
    assert best["score"] == best["max_std_error"]
    assert selection["bound_rmse"] < selection["bound_score"] <= best["max_std_error"]
    printed = ok("plan", "workload.yaml", "--objective", "max", "--why").out
    assert f"{best['score'] / selection['bound_score']:.3f} times the least" in printed


def test_a_target_that_hardly_any_noise_misses_takes_the_least_epsilon_there_is(town):
    done = run("plan", "workload.yaml", "--target", "*: sd <= 1e18", "--out", "loose.plan")
    assert done.code == 0, done.err
    assert "all targets are met from epsilon" in done.out


def test_all_mistakes_in_targets_are_said_at_once():
    spec = parse(SPEC, name="w", files={})
    with pytest.raises(SpecError) as raised:
        parse_targets(["agse: sd <= 5", "ages: sd <= 5", "ages <= 5", "ages: rmse <= 0"], spec)
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    assert "there is no item 'agse'" in lines[0]
    assert all("is not of the form" in line for line in lines[1:])
