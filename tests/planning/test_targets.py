"""Targets and sweeps: the least epsilon that meets all, of tables and of derived statistics."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from release_parts import DERIVED_ITEMS, HEAD, SHAPE, Simulated, strategies, town, truth
from town import SEARCHED, SPEC, ok, run

from dpquery.exceptions import SpecError
from dpquery.operators.compile import compile_spec
from dpquery.planning.rehearsal import runs
from dpquery.planning.rehearsal.populations import Proxy
from dpquery.planning.rehearsal.runs import DerivedTrials
from dpquery.planning.targets import DerivedTargets, parse_targets
from dpquery.public_chance import public_generator
from dpquery.spec.parsing.read import parse

TARGETS = ("age_by_sex: sd <= 12", "ages: rmse <= 9.5")


QUICK = ("--time-limit", "0")  # where any strategy will do


def planned(*arguments):
    return json.loads(ok("plan", "workload.yaml", "--json", *arguments).out)


def with_targets(*texts):
    return [argument for text in texts for argument in ("--target", text)]


def named(report):
    return [target | {"target": target["at_most"]} for target in report["targets"]]


def test_a_release_at_the_least_epsilon_has_the_errors_that_were_promised(town):
    report = planned(*with_targets(*TARGETS), *QUICK)
    ok("release", "data.csv", "--epsilon", report["epsilon"])
    for target in named(report):
        errors = pq.read_table(f"release/{target['item']}.parquet").column("std_error").to_numpy()
        figure = errors.max() if target["figure"] == "sd" else math.sqrt((errors**2).mean())
        assert figure == pytest.approx(target["reached"], rel=1e-3)
        assert figure <= target["target"] * 1.001


@pytest.mark.nightly
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
    report = planned("--objective", "max", *SEARCHED)
    (selection,) = report["selections"]
    (best,) = [one for one in selection["candidates"] if one["name"] == selection["best"]]
    assert best["score"] == best["max_std_error"]
    assert selection["bound_rmse"] < selection["bound_score"] <= best["max_std_error"]
    printed = ok("plan", "workload.yaml", "--objective", "max", "--why", *SEARCHED).out
    assert f"{best['score'] / selection['bound_score']:.3f} times the least" in printed


def test_a_target_that_hardly_any_noise_misses_takes_the_least_epsilon_there_is(town):
    done = run("plan", "workload.yaml", "--target", "*: sd <= 1e18", *QUICK)
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


DERIVED_SPEC = HEAD.replace("{id: town}", "{id: town, rows: about 3000}") + DERIVED_ITEMS


def population(counts):
    def table(subset):
        beyond = tuple(i for i in range(len(SHAPE)) if i not in subset)
        return counts.sum(axis=beyond).astype(np.int64)

    return Proxy("made-up counts", int(counts.sum()), int(counts.sum()), table)


def planned_for(*targets, options=(), text=DERIVED_SPEC):
    Path("workload.yaml").write_text(text)
    named = [argument for target in targets for argument in ("--target", target)]
    return json.loads(ok("plan", "workload.yaml", "--json", *QUICK, *options, *named).out)


def refused(*targets, options=(), text=DERIVED_SPEC):
    Path("workload.yaml").write_text(text)
    named = [argument for target in targets for argument in ("--target", target)]
    done = run("plan", "workload.yaml", *QUICK, *options, *named)
    assert done.code != 0
    assert not Path("dpquery.plan").exists()
    return done.err


@pytest.fixture(autouse=True)
def _place(own_folder, monkeypatch):
    monkeypatch.setattr(runs, "MOST_TRIALS", 100)


@pytest.mark.nightly
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(
    "shape", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["marginals", "product"]
)
@pytest.mark.parametrize("std", [pytest.param(3.0, marks=pytest.mark.slow), 60.0])
def test_errors_of_trials_are_those_of_whole_releases_of_the_same_counts(
    noise, shape, std, monkeypatch
):
    monkeypatch.setattr(runs, "MOST_TRIALS", 400)
    counts, releases = town(3000), 150
    simulated = Simulated(strategies(noise)[shape])
    expected, chance = truth(counts), public_generator(11)
    drawn = [simulated.rows(counts, chance, std) for _ in range(releases)]
    trials = DerivedTrials(
        [item.statistic for item in simulated.spec.derived],
        simulated.tables,
        simulated.strategy,
        population(counts),
        simulated.spec.domain,
    )
    for item in simulated.spec.derived:
        errors = trials.errors(item.statistic, std)
        estimates = np.array([figures[item.name].estimate for figures in drawn])
        estimates[:, errors.lost] = np.nan
        lost = np.isnan(estimates).mean(axis=0)
        assert errors.lost.tolist() == (lost > 0.05).tolist()
        kept = ~errors.lost
        squared = (estimates - expected[item.name])[:, kept] ** 2
        with_all = np.sqrt(np.nanmean(squared, axis=0))
        of_values = 0.25 if item.statistic.kind == "quantiles" else 0.0
        assert errors.std[kept] == pytest.approx(with_all, rel=0.35, abs=of_values)
        together = np.sqrt(np.nanmean(squared)), np.sqrt((errors.std[kept] ** 2).mean())
        assert together[0] == pytest.approx(together[1], rel=0.2, abs=of_values / 10)


def test_the_error_of_a_difference_is_exact_and_needs_no_population():
    simulated = Simulated(strategies("gaussian")[0])
    counts = town(3000)
    rows = simulated.rows(counts, public_generator(3), 7.0)["gap"]
    (gap,) = [item for item in simulated.spec.derived if item.name == "gap"]
    nobody = population(np.zeros(SHAPE))
    trials = DerivedTrials(
        [gap.statistic], simulated.tables, simulated.strategy, nobody, simulated.spec.domain
    )
    assert trials.errors(gap.statistic, 7.0).std == pytest.approx(rows.std_error, rel=1e-9)
    report = planned_for("gap: sd <= 9")
    assert report["derived_targets"] == ["gap: errors are exact, and the same for all data"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "target", ["shares: sd <= 0.01", pytest.param("medians: sd <= 4", marks=pytest.mark.slow)]
)
def test_the_least_epsilon_meets_the_target_and_a_twentieth_less_does_not(target):
    report = planned_for(target)
    (reached,) = report["targets"]
    assert reached["met"]
    assert reached["reached"] <= reached["at_most"]
    costs_least, *others = report["least_epsilons"]
    assert (costs_least["noise"], costs_least["epsilon"]) == (
        report["chosen"]["noise"],
        report["epsilon"],
    )
    assert all(costs_least["budget_share"] <= other["budget_share"] for other in others)
    less = planned_for(target, options=("--epsilon", str(round(report["epsilon"] * 0.95, 6))))
    met = less["targets"][0]["met"]
    assert not met or less["chosen"]["noise"] == others[0]["noise"]  # at a higher price


ONE_TABLE = """
dataset: {id: visits, rows: about 20000}
privacy: {unit: row, delta: 1e-7}
budget: {epsilon: 4, delta: 1e-6}
domain: {age: {range: [0, 29]}, region: {values: [N, E, S, W, C]}, visits: {range: [0, 50]}}
workload:
  - {name: ages, product: {age: identity}}
  - {name: visits_of, sum: {of: visits, by: {region: identity}}}
  - {name: people, product: {region: identity}}
derived:
  - {name: mean_visits, mean: {sum: visits_of, count: people}}
"""


@pytest.mark.nightly
def test_a_target_on_a_derived_item_costs_no_more_with_lax_targets_beside_it():
    """What it needs is little: the sums of a region to some 150 visits among 4,000 records."""
    alone = planned_for("mean_visits: sd <= 0.3", text=ONE_TABLE)
    beside = planned_for("mean_visits: sd <= 0.3", "*: rmse <= 5000", text=ONE_TABLE)
    share, with_others = (each["least_epsilons"][0]["budget_share"] for each in (alone, beside))
    assert share == pytest.approx(with_others, rel=0.35)
    assert share < 0.2
    for report in (alone, beside):
        reached = report["targets"][-1]
        assert 0.29 <= reached["reached"] <= 0.3  # no epsilon is asked for that is not needed


def test_targets_of_both_kinds_are_met_together_by_the_noise_that_a_release_takes():
    report = planned_for("medians: sd <= 4", "people: sd <= 30", "shares: rmse <= 0.02")
    assert [target["met"] for target in report["targets"]] == [True] * 3
    assert report["objective"] == "targets"


def test_at_a_named_epsilon_the_figure_reached_is_said_to_be_of_a_made_up_population():
    Path("workload.yaml").write_text(DERIVED_SPEC)
    target = ("--target", "medians: sd <= 0.001", "--target", "mean: sd <= 1", "--epsilon", "0.01")
    done = run("plan", "workload.yaml", *QUICK, *target)
    words = done.out
    assert done.code == 1
    assert "not met" in words
    assert "medians: 6 of 6 rows are lost in noise, so that no target is met" in words
    assert "on a made-up population (not like your records), scaled to 3,000" in words


@pytest.mark.nightly
def test_rows_that_are_lost_in_noise_meet_no_target_and_are_counted():
    report = planned_for("medians: sd <= 1e9", options=("--epsilon", "0.001"))
    (reached,) = report["targets"]
    assert (reached["met"], reached["reached"], reached["lost"]) == (False, None, reached["rows"])


def test_what_cannot_be_tried_is_refused_with_the_remedy():
    without = refused("medians: sd <= 4", text=HEAD + DERIVED_ITEMS)
    assert "declare `dataset: {rows: about 50000}`, from public knowledge" in without
    assert "there is no item 'median'; did you mean 'medians'" in refused("median: sd <= 4")
    Path("public.csv").write_text("sex,region,hours,income\n" + "F,N,2,15\n" * 30)
    of_women = DERIVED_SPEC.replace("rows: about 3000", "rows: about 30")
    options = ("--proxy", "public.csv")
    words = refused("part: sd <= 1e-9", text=of_women, options=options)
    assert "no epsilon meets the target on 'part', tried on the public file public.csv" in words


def test_what_derived_targets_ask_of_items_is_how_much_noise_of_each_answer_they_bear():
    spec = parse(DERIVED_SPEC, name="w.yaml", files={})
    compiled = compile_spec(spec)

    def on_items(target, spec=spec, compiled=compiled):
        tried = DerivedTargets(parse_targets([target], spec), spec, compiled, None)
        return {limit.item: limit.at_most for limit in tried.on_items((), lambda _: {})}

    assert on_items("gap: sd <= 9") == {"people": pytest.approx(9 / np.sqrt(2), rel=5e-3)}
    assert on_items("mean: sd <= 0.5").keys() == {"hours"}
    # As far as one record reaches: a sum of hours bears five times the noise of a count.
    mean = next(item for item in spec.derived if item.name == "mean").statistic
    assert (mean.rows.unit, mean.denominator.unit) == (5, 1)
    assert on_items("mean: sd <= 0.5")["hours"] > 5
    times = 1_000_000  # in a smaller unit all is the same
    value = f"value: [{', '.join(str(times * k) for k in range(6))}]"
    fine = parse(
        DERIVED_SPEC.replace("{of: hours, by", f"{{of: hours, {value}, by"), name="w", files={}
    )
    asked = on_items(f"mean: sd <= {0.5 * times:g}", fine, compile_spec(fine))["hours"]
    assert asked == pytest.approx(times * on_items("mean: sd <= 0.5")["hours"], rel=0.02)
