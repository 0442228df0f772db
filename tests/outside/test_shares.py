"""The noise of a release is the one that errs less at an equal share of the budget."""

import json
import math
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from specs import unhashed
from town import ok, refused, run

from dpquery import plan as planned
from dpquery import release
from dpquery.cli import show_comparison
from dpquery.cli.show_why import why_grids
from dpquery.exceptions import SpecError
from dpquery.measurement import accounting, curator
from dpquery.measurement.ledger.caps import declared_funds
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import CandidateFigures, PlannedSelection, plan_and_spec, read_plan
from dpquery.planning import compare_mechanisms
from dpquery.planning.figures import BudgetShares, prices
from dpquery.planning.report import Trade, trade_of
from dpquery.planning.search import PlanSearch, share_groups
from dpquery.releases.words import figure
from dpquery.spec.parsing.read import parse
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.search.select import select, unchecked
from dpquery.strategy.sensitivity import sensitivity

SPEC = """\
dataset: {id: town, version: 1}
privacy: {unit: row, delta: 1e-6}
budget: {epsilon: 100, delta: 1e-6, accounting: zcdp}
domain:
  age: {range: [0, 9]}
  sex: {values: [F, M]}
workload:
  - name: ages
    product: {age: identity}
"""
WHOLE = "{epsilon: 100, delta: 1e-6, accounting: zcdp}"
LONG = SPEC.replace("age: identity", "age: prefix").replace("[0, 9]", "[0, 39]")
DELTA = Fraction("1e-6")


@pytest.fixture
def folder(own_folder):
    """A folder of one's own with a spec and data; the working directory."""
    Path("workload.yaml").write_text(SPEC)
    Path("data.csv").write_text("age,sex\n1,F\n2,M\n")
    return own_folder


def plan(*arguments, text=None):
    if text is not None:
        Path("workload.yaml").write_text(text)
    shown = ok("plan", "workload.yaml", "--time-limit", "0", "--json", *arguments)
    return json.loads(shown.out)


def released(epsilon, out, *arguments):
    return json.loads(
        ok("release", "data.csv", "--epsilon", epsilon, "--out", out, "--json", *arguments).out
    )


def cost(epsilon):
    """The rho of Laplace noise on one answer, in floats."""
    return epsilon + math.expm1(-epsilon)


def rho(epsilon):
    return float(accounting.guarantee("gaussian", epsilon=Fraction(epsilon), delta=DELTA).amount)


def noise_of_one_table(epsilon, most=100):
    """A slow twin, in closed forms: one record moves one answer by one.

    Laplace noise takes of the budget what it does of the epsilon, or of the rho if that is less.
    """
    share = min(epsilon / most, cost(float(epsilon)) / rho(most))
    equal = min(rho(epsilon) / rho(most), share)
    low, high = 0.0, float(epsilon)
    for _ in range(60):
        middle = (low + high) / 2
        within = min(middle / most, cost(middle) / rho(most)) <= equal
        low, high = (middle, high) if within else (low, middle)
    return "laplace" if math.sqrt(2) / low < 1 / math.sqrt(2 * equal * rho(most)) else "gaussian"


def test_the_choice_is_that_of_a_slow_twin_and_goes_both_ways(folder):
    epsilons = ("0.1", "1", "4", "8", "10", "12", "20", "40")
    sweep = plan("--sweep", ",".join(epsilons))["sweep"]
    chosen = [point["noises"][0]["noise"] for point in sweep]
    assert chosen == [noise_of_one_table(Fraction(epsilon)) for epsilon in epsilons]
    assert (chosen[0], chosen[-1]) == ("gaussian", "laplace")


def test_a_release_takes_the_cheaper_noise_where_the_other_errs_less_for_far_more(folder):
    """At an equal epsilon Laplace noise would have been chosen, and still is by older plans."""
    plan("--epsilon", "2", text=LONG.replace("epsilon: 100", "epsilon: 20"))
    done = released("2", "a")
    assert done["noise"] == "gaussian"
    laplace = released("2", "b", "--noise", "laplace")
    assert laplace["rmse"] < done["rmse"]
    assert laplace["budget"]["share"] > 4 * done["budget"]["share"]
    content = json.dumps(unhashed(Path("dpquery.plan").read_bytes())).encode()
    for older in (b"dpquery.plan/1", b"dpquery.plan/2"):
        Path("dpquery.plan").write_bytes(content.replace(b"dpquery.plan/3", older))
        assert not read_plan(Path("dpquery.plan").read_bytes()).equal_shares
    assert released("2", "c", "--release-number", "2")["noise"] == "laplace"


SMALL = SPEC.replace(WHOLE, "{epsilon: 3, delta: 1e-6}")


@pytest.mark.nightly(daily="True")
@pytest.mark.parametrize("parent", [False, True])
def test_once_a_release_was_not_pure_laplace_noise_is_compared_by_what_it_then_costs(
    folder, parent
):
    """Its epsilon no longer counts by itself: 2.5 of 3 is most of a budget, or many budgets."""
    text = SMALL
    if parent:
        whole = "{epsilon: 3, delta: 1e-6}"
        text = text.replace(
            "version: 1}", f"version: 1, parent: {{id: register, budget: {whole}}}}}"
        )
    report = plan("--epsilon", "2.5", text=text)
    assert report["chosen"]["noise"] == "laplace"
    assert report["selections"][0]["budget_share"] == pytest.approx(2.5 / 3)
    if parent:  # what was charged to it for another dataset counts as well
        plan("--new-dataset", text=text.replace("id: town", "id: city"))
    released("0.8", "a", "--noise", "gaussian")
    report = plan("--epsilon", "2.5", text=text)
    gaussian, laplace = report["selections"]
    assert (gaussian["noise"], laplace["noise"]) == ("gaussian", "laplace")
    assert laplace["budget_share"] > 5
    done = released("2.5", "b")
    assert (done["noise"], done["budget"]["share"]) == ("gaussian", gaussian["budget_share"])


def test_a_release_made_again_keeps_its_noise_whatever_was_charged_since(folder):
    plan()
    first = released("9", "a")
    assert (first["noise"], first["free"]) == ("laplace", False)
    released("9", "b", "--noise", "gaussian")
    again = released("9", "c")
    assert (again["noise"], again["free"]) == ("laplace", True)
    for file in ("release.json", "ages.parquet"):
        assert Path("a", file).read_bytes() == Path("c", file).read_bytes()
    assert released("9", "d", "--release-number", "2")["noise"] == "gaussian"


def test_a_release_that_was_charged_and_not_finished_is_finished_with_its_noise(
    folder, monkeypatch
):
    plan()
    with monkeypatch.context() as broken:
        broken.setattr(curator, "tabulate", lambda *args, **more: 1 / 0)
        run("release", "data.csv", "--epsilon", "9", "--out", "a")
    spent = share_spent()
    released("9", "b", "--noise", "gaussian")
    before = share_spent()
    assert spent > 0
    done = released("9", "a")
    assert (done["noise"], done["free"]) == ("laplace", False)
    assert share_spent() == before


@pytest.mark.nightly(daily="delta 0|auto|rho")
@pytest.mark.parametrize(
    ("text", "arguments", "noise"),
    [
        (SPEC, ("--delta", "0"), "laplace"),
        (SPEC, ("--noise", "laplace"), "laplace"),
        (SPEC, ("--noise", "gaussian"), "gaussian"),
        (SPEC, (), "gaussian"),
        (SPEC.replace(WHOLE, "{epsilon: 100}"), (), "laplace"),
        (SPEC.replace(WHOLE, "{rho: 2}"), (), "gaussian"),
    ],
    ids=["delta 0", "named laplace", "named gaussian", "auto", "a pure budget", "a budget in rho"],
)
def test_where_there_is_nothing_to_compare_the_noise_that_is_left_is_taken(
    folder, text, arguments, noise
):
    plan(text=text)
    assert released("1", "a", *arguments)["noise"] == noise


def test_what_the_budget_cannot_pay_for_comes_last(folder):
    assert math.sqrt(2) / 11.5 < 1 / math.sqrt(2 * rho("11.5")) < 1  # at an equal epsilon
    report = plan("--epsilon", "11.5", text=SPEC.replace(WHOLE, "{rho: 2}"))
    assert report["chosen"]["noise"] == "gaussian"
    assert report["selections"][1]["budget_share"] > 1 > report["selections"][0]["budget_share"]


def test_the_price_of_a_plan_is_what_the_ledger_charges(folder):
    report = plan("--epsilon", "1", text=LONG.replace(WHOLE, "{rho: 2}"))
    for out, selection in enumerate(report["selections"]):
        before = share_spent()
        released("1", str(out), "--noise", selection["noise"])
        assert share_spent() - before == pytest.approx(selection["budget_share"], rel=1e-12)


def share_spent():
    return json.loads(ok("ledger", "status", "--json").out)[0]["share_spent"]


@pytest.mark.nightly(daily=r"\[(gaussian|a cap in rho|pure)")
@pytest.mark.parametrize(
    ("text", "noise"),
    [
        (LONG, "gaussian"),
        (LONG.replace(", accounting: zcdp", ""), "gaussian"),
        (LONG, "laplace"),
        (LONG.replace(WHOLE, "{rho: 2}"), "laplace"),
        (LONG.replace(WHOLE, "{epsilon: 100}"), "laplace"),
    ],
    ids=["gaussian", "mu^2", "laplace in rho", "a cap in rho", "pure"],
)
def test_the_largest_epsilon_of_a_refusal_is_accepted_and_the_next_one_is_not(folder, text, noise):
    plan(text=text)
    released("1.5", "first", "--noise", noise)
    told = refused(
        "release", "data.csv", "--epsilon", "200", "--out", "x", "--noise", noise, code=3
    )
    words = told.partition("the largest that still fits is --epsilon ")[2].split(";")[0].split()
    assert words[1:] == ["--noise", noise]
    epsilon = Fraction(words[0])
    more = epsilon + Fraction(10) ** (math.floor(math.log10(epsilon)) - 2)
    fails = refused(
        "release", "data.csv", "--epsilon", str(float(more)), "--out", "y", *words[1:], code=3
    )
    assert f"the largest that still fits is --epsilon {words[0]}" in fails
    done = released(words[0], "second", *words[1:])
    assert done["budget"]["more_like_it"] == 0
    assert not {"x", "y"} & {path.name for path in folder.iterdir()}


def test_a_whole_budget_is_taken_by_the_noise_that_errs_less(folder):
    """Either kind takes all of it: the epsilon of a pure release is that of the budget."""
    report = plan("--epsilon", "1", text=SPEC.replace(WHOLE, "{epsilon: 1, delta: 1e-6}"))
    best, other = report["selections"]
    assert (best["noise"], best["budget_share"]) == ("laplace", 1)
    assert other["budget_share"] > 0.9
    assert best["candidates"][0]["rmse"] < other["candidates"][0]["rmse"] / 2
    assert released("1", "a")["noise"] == "laplace"
    assert share_spent() == 1


def test_a_plan_tells_the_risk_in_the_words_of_the_statement(folder):
    plan()
    printed = ok("plan", "workload.yaml", "--time-limit", "0", "--why").out
    ok("release", "data.csv", "--epsilon", "1")
    statement = Path("release/statement.md").read_text()
    words = "could become 73.1 % sure at the very most"
    assert f"{words}, an extra probability of 1e-6 aside" in " ".join(printed.split())
    assert words in statement


def test_long_numbers_are_shown_where_they_are_asked_for_alone(folder):
    printed = [ok("plan", "workload.yaml", "--time-limit", "0", "--why").out]
    ok("release", "data.csv", "--epsilon", "1")
    again = ("release", "data.csv", "--epsilon", "1")
    printed += [ok(*again).out, ok("ledger", "status").out, ok("ledger", "history").out]
    printed.append(refused("release", "data.csv", "--epsilon", "200", "--out", "x", code=3))
    printed.append(Path("release/statement.md").read_text())
    assert not any("0.028006" in text for text in printed)
    for command in (again, ("ledger", "status"), ("ledger", "history")):
        exact = ok(*command, "--exact").out
        assert any(len(word.partition(".")[2]) == 18 for word in exact.split()), command


def test_a_release_made_again_says_what_fits_now(folder):
    plan()
    first = released("20", "a", "--noise", "gaussian")
    released("30", "b", "--noise", "gaussian")
    again = released("20", "a", "--noise", "gaussian")
    assert (first["free"], again["free"]) == (False, True)
    assert first["spent"] == again["spent"]
    assert again["budget"]["more_like_it"] < first["budget"]["more_like_it"]
    command = ("release", "data.csv", "--epsilon", "20", "--out", "a", "--noise", "gaussian")
    assert f"now: {again['budget']['more_like_it']} more like it" in ok(*command).out


def selection_of(figures, best="chosen"):
    """A selection with candidates of these RMSEs, largest errors and scores."""
    candidates = tuple(
        CandidateFigures(name, rmse, rmse, largest, score, True, "", False)
        for name, (rmse, largest, score) in figures.items()
    )
    return PlannedSelection("gaussian", best, None, "", None, "", candidates, (), {})


@pytest.mark.parametrize(
    ("objective", "figures", "expected"),
    [
        ("rmse", {"chosen": (10, 116, 10), "flat": (13, 31, 13)}, ("flat", 31, 116, 0.3)),
        ("rmse", {"chosen": (10, 116, 10), "flat": (16, 31, 16)}, None),
        ("rmse", {"chosen": (10, 116, 10), "flat": (13, 82, 13)}, None),
        ("rmse", {"chosen": (10, 116, 10), "none": (None, None, None)}, None),
        ("max", {"chosen": (10, 20, 20), "mean": (6, 25, 25)}, ("mean", 6, 10, 0.25)),
        ("max", {"chosen": (10, 20, 20), "mean": (6, 31, 31)}, None),
    ],
)
def test_a_strategy_is_pointed_to_that_gains_far_more_than_it_costs(objective, figures, expected):
    """Its figures were computed for this plan: nothing is promised of another one."""
    trade = trade_of(selection_of(figures), objective)
    found = trade and (trade.name, trade.figure, trade.in_place_of, pytest.approx(trade.costs))
    assert found == expected


def test_the_screen_names_the_strategy_with_its_own_figures(folder, monkeypatch):
    trade = Trade("Haar", figure=31.0, in_place_of=116.0, costs=0.3)
    monkeypatch.setattr(show_comparison, "trade_of", lambda selection, objective: trade)
    std = plan("--epsilon", "1")["selections"][0]["candidates"][0]
    report = read_plan(Path("dpquery.plan").read_bytes()).selections[0]
    unit = std["rmse"] / report.candidates[0].rmse
    told = ok("plan", "workload.yaml", "--time-limit", "0", "--epsilon", "1", "--why").out
    assert (
        f"Haar has a largest standard error of {figure(31 * unit)} in place of "
        f"{figure(116 * unit)}, for 30 % more RMSE: --objective max looks for the least" in told
    )
    told = ok("plan", "workload.yaml", "--time-limit", "0", "--target", "*: sd <= 9", "--why").out
    assert "Haar has" not in told


def test_relaxed_rows_are_compared_with_a_linear_strategy_that_takes_no_more(folder):
    """At epsilon 40 Laplace noise is the better one, and takes far more than RAP would."""
    plan()
    planned, spec = plan_and_spec(Path("dpquery.plan").read_bytes(), Path("dpquery.plan"))
    workload, epsilon = compile_spec(spec).workload, Fraction(40)
    shares = BudgetShares(spec, workload, DELTA, declared_funds(spec))
    best, gaussian = prices(planned, shares, epsilon=epsilon)
    assert best.selection.noise == "laplace"
    assert best.equal.std > 1.4 * best.std
    report = partial(SimpleNamespace, plan=SimpleNamespace(closest=None))
    compared = compare_mechanisms._linear_errors(report(priced=[best]), workload).rmse
    assert compared == pytest.approx(best.weighted_rmse * best.equal.std / best.std)
    assert compared > 1.4 * best.weighted_rmse
    alone = compare_mechanisms._linear_errors(report(priced=[gaussian]), workload).rmse
    assert alone == gaussian.weighted_rmse


# Fixed shares of the budget: what items have for themselves is what the spec says.


FIXED = """\
dataset: {id: town}
privacy: {unit: row}
budget: {epsilon: 400}
other: drop
domain:
  age: {range: [0, 9]}
  sex: {values: [F, M]}
  region: {values: [N, S, W]}
workload:
  - {name: ages, product: {age: prefix}, share: 0.5}
  - {name: by_region, product: {region: identity, sex: identity}, share: 0.2}
  - {name: bands, product: {age: {groups: {a: [[0, 4]], b: [[5, 9]]}}, sex: identity}}
  - {name: sexes, product: {sex: identity+total}}
"""
both_noises = pytest.mark.parametrize(
    "noise", ["gaussian", pytest.param("laplace", marks=pytest.mark.slow)]
)
SHARES = (Fraction(1, 2), Fraction(1, 5), Fraction(3, 10))


def chosen(noise):
    spec = parse(FIXED, name="w", files={})
    compiled = compile_spec(spec)
    groups = share_groups(spec, compiled)
    search = PlanSearch(spec, compiled, [noise], "rmse", 0, 0.6, 1, unchecked)
    selection = search.of_groups(groups)[noise]
    return compiled, groups, selection.best.proposal.strategy


def test_groups_are_the_items_with_shares_and_all_others():
    _, groups, strategy = chosen("gaussian")
    assert [places for places, _ in groups] == [(0,), (1,), (2, 3)]
    assert tuple(share for _, share in groups) == SHARES
    assert strategy.groups == ((0,), (1,), (2, 3))
    without = parse(
        FIXED.replace(", share: 0.5", "").replace(", share: 0.2", ""), name="w", files={}
    )
    assert share_groups(without, compile_spec(without)) == ()


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_every_part_has_its_share_of_what_is_charged(noise):
    """Of the L1 sensitivity, or of the square of the L2 sensitivity, to five digits."""
    _, _, strategy = chosen(noise)
    taken = [
        weight ** (1 if noise == "laplace" else 2) * sensitivity(part.measurements, noise, "enters")
        for weight, part in zip(strategy.weights, strategy.parts, strict=True)
    ]
    for part, share in zip(taken, SHARES, strict=True):
        assert float(Fraction(part) / Fraction(sum(taken))) == pytest.approx(share, rel=1e-4)
    # What is charged for is the sensitivity of all together, which is no more than their sum.
    assert sensitivity(strategy.measurements, noise, "enters") <= sum(taken)


@both_noises
def test_no_item_errs_more_than_alone_with_its_share(noise):
    compiled, groups, strategy = chosen(noise)
    error = expected_error(strategy, compiled.workload)
    for places, share in groups:
        alone = select(compiled.workload.select(places), noises=[noise], time_limit=0.3)[noise]
        scale = float(share) if noise == "laplace" else math.sqrt(share)
        together = sum(error.blocks[place].total_squared for place in places)
        least = sum(block.total_squared for block in alone.best.error.blocks) / scale**2
        assert together <= least * 1.02


def test_plan_prints_the_shares_and_release_carries_them_out(tmp_path):
    (tmp_path / "w.yaml").write_text(FIXED)
    (tmp_path / "data.csv").write_text("age,sex,region\n3,F,N\n4,M,S\n")
    paths = {"plan_path": tmp_path / "p", "ledger_path": tmp_path / "ledger.db"}
    report = planned(tmp_path / "w.yaml", time_limit=0.3, **paths)
    assert report.priced[0].selection.best == "Shares"
    assert report.priced[0].bound_rmse is None
    (grid, *_) = why_grids(report)
    words = "shares of the budget, as the spec has them: ages 50 %, by_region 20 %, all others 30 %"
    assert words in grid.notes
    done = release(tmp_path / "data.csv", epsilon=2, out=tmp_path / "out", **paths)
    assert done.account.spent == 2 * 10**18


def test_targets_and_rap_split_the_budget_otherwise(tmp_path):
    (tmp_path / "w.yaml").write_text(FIXED.replace("{id: town}", "{id: town, rows: about 90}"))
    paths = {"plan_path": tmp_path / "p", "ledger_path": tmp_path / "ledger.db"}
    with pytest.raises(SpecError, match="targets decide how the budget is split"):
        planned(tmp_path / "w.yaml", targets=["ages: sd <= 5"], **paths)
    with pytest.raises(SpecError, match="RAP splits its budget by itself"):
        planned(tmp_path / "w.yaml", mechanism="rap", **paths)
