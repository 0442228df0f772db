"""What plan prints, and the commands as Python functions: the same as the command line."""

import inspect
import json
import math
import re
import subprocess
import sys
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from town import SEARCHED, SPEC, contents, ok, refused, run

import dpquery
from dpquery import answer, compare, error_report, plan, release, synthesize
from dpquery.cli.app import app
from dpquery.cli.commands import (
    answer_command,
    compare_command,
    error_report_command,
    plan_command,
    release_command,
    synthetic_command,
)
from dpquery.cli.show_plan import remedy_words
from dpquery.commands import defaults
from dpquery.exceptions import (
    BudgetExceededError,
    DataError,
    DpqueryError,
    PlanConflictError,
    SpecError,
)
from dpquery.operators.compile import compile_spec
from dpquery.planning.figures import selection_std
from dpquery.releases.words import rounded
from dpquery.spec.parsing.read import load_spec

ONE = SPEC.split("  - name: pairs")[0]
ROWS = SPEC.replace("version: 1", "version: 1, rows: about 3000")
SAMPLE = Path(__file__).parents[2] / "workloads" / "sample_persons.yaml"


def lines_of(*arguments):
    return ok("plan", "workload.yaml", *arguments).out.splitlines()


def figures(line):
    return [float(word.replace(",", "")) for word in line.split() if word[0].isdigit()]


def planned(*arguments):
    return json.loads(ok("plan", "workload.yaml", "--json", *arguments).out)


def test_the_first_screen_says_what_each_table_is_worth_and_what_is_next(town):
    Path("workload.yaml").write_text(ROWS)
    lines, seen = lines_of("--epsilon", "0.5"), planned("--epsilon", "0.5")
    assert lines[0] == "town: 51 answers in 3 tables at epsilon 0.5, about 3,000 records"
    heads = ["table", "answers", "95 % within", "flagged below", "average cell", "expect"]
    assert re.split(r" {2,}", lines[1]) == heads
    width = -math.log(0.05) / math.sqrt(2)  # a Laplace value is further off in 5 % of all draws
    pairs = zip(lines[2:5], seen["worth"]["items"], seen["selections"][0]["items"], strict=True)
    for line, worth, item in pairs:
        cells = re.split(r" {2,}", line)
        assert cells[:2] == [item["name"], f"{item['queries']:,}"]
        assert worth["within_95"] == pytest.approx(width * item["rmse"], rel=1e-4)
        assert worth["flagged_below"] == pytest.approx(item["rmse"] / 0.3)
        assert float(cells[2].removeprefix("±")) == pytest.approx(worth["within_95"], rel=0.06)
        assert float(cells[3]) == pytest.approx(worth["flagged_below"], rel=0.06)
        assert cells[5].split(",")[0] == worth["grade"]
    assert seen["worth"]["items"][0]["average"] == pytest.approx(3000 * 2 / 3 / 5)
    words = [line.partition(" ")[0] for line in lines[5:] if line]
    assert words == ["price", "risk", "counts", "note", "wrote", "next"]
    assert lines[-4].endswith("not finished: 8 searches; give --time-limit more seconds")
    assert lines[-2].endswith("dpquery release data.csv --epsilon 0.5")


def test_the_average_answer_is_over_declared_values_whether_others_count_or_not(town):
    averages = []
    for other in ("drop", "count"):
        Path("workload.yaml").write_text(ROWS.replace("other: drop", f"other: {other}", 1))
        seen = planned("--epsilon", "0.5", "--ledger", f"{other}.db")
        averages.append([item["average"] for item in seen["worth"]["items"]])
    assert averages[0] == pytest.approx(averages[1])


def test_what_a_condition_needs_is_said_in_records_that_meet_it(town):
    """Of one count: ten of its errors for a good one, above 3 1/3 for one without a flag.

    Of two parts the rarer one counts; public records say themselves how many meet it.
    """
    half = "  - {name: half, product: {}, where: {sex: M}}\n"
    few = "  - {name: few, product: {region: identity}, where: {sex: M, age: {is: 3}}}\n"
    both = "  - {name: both, union: [{product: {}}, {product: {}, where: {sex: M}}]}\n"
    Path("workload.yaml").write_text(ROWS + half + few + both)
    seen = planned("--rows", "9000", "--dry-run")
    worths, errors = seen["worth"]["items"][3:], seen["selections"][0]["items"][3:]
    assert [one["meet_where"] for one in worths] == pytest.approx([0.5, 0.1, 0.5])
    needs = worths[0]["records_to_meet"]
    for grade, times in (("good", 10), ("fair", 1 / 0.3)):
        exact = times * errors[0]["rmse"]
        assert exact <= needs[grade] <= 1.1 * exact + 1
    assert worths[1]["records_to_meet"]["fair"] > needs["fair"]
    assert worths[2]["records_to_meet"] is None
    screen = "\n".join(lines_of("--rows", "9000", "--dry-run"))
    words = f"good if {needs['good']:,} meet `where`, weak below {needs['fair']:,}"
    assert words in screen
    few = "\n".join(lines_of("--rows", "9", "--dry-run"))
    assert "weak, even if all records meet `where`" in few
    sharp = "\n".join(lines_of("--rows", "9000", "--dry-run", "--epsilon", "100"))
    assert "good if 1 meet `where`" in sharp
    Path("public.csv").write_text("age,sex,region,income\n" + "3,M,1,15\n" * 9)
    known = planned("--proxy", "public.csv", "--dry-run")["worth"]["items"][3:]
    assert [one["records_to_meet"] for one in known] == [None] * 3
    regions = worths[0]["average"] / worths[1]["average"] / 5
    assert [one["average"] for one in known] == pytest.approx([3000, 3000 / regions, 3000])


@pytest.mark.parametrize("delta", ["", ", delta: 1e-6"])
def test_the_epsilon_of_a_target_that_is_offered_is_what_this_plan_would_need(town, delta):
    text = ROWS.replace("epsilon: 4", f"epsilon: 4{delta}")
    Path("workload.yaml").write_text(text.replace("add-remove}", f"add-remove{delta}}}"))
    report = plan("workload.yaml", epsilon="0.1", rows=30, dry_run=True, change_cap=True)
    best, worth, at = report.priced[0], report.worth, Fraction(report.target_epsilon)
    assert (best.selection.noise == "gaussian") is bool(delta)
    std = selection_std(best.selection, report.spec, epsilon=at, delta=report.delta)
    assert worth.weakest.rmse * std / best.std == pytest.approx(worth.target, rel=1e-6)
    offered = f'--target "{worth.weakest.name}: rmse <= {worth.target:g}" (met from about epsilon '
    assert offered + rounded(report.target_epsilon) in remedy_words(report)[0]


def test_the_sample_takes_sixteen_lines_at_most(own_folder):
    told = ("--ledger", "l.db", "--rows", "50000", "--dry-run")
    shown = ok("plan", SAMPLE, *told).out.splitlines()
    unfinished = [line for line in shown if line.startswith("note")]
    assert len([line for line in shown if line]) - len(unfinished) <= 16
    assert "4 others (--why)" in "\n".join(shown)
    assert list(own_folder.iterdir()) == []


@pytest.mark.nightly(daily=r"\[400")
@pytest.mark.parametrize(
    ("rows", "grades"),
    [
        (30, ["weak", "weak", "weak"]),
        (400, ["fair", "fair", "good"]),
        (10**6, ["good", "fair", "good"]),
    ],
)
def test_the_verdict_follows_from_how_many_records_there_are(town, rows, grades):
    said = planned("--rows", rows, "--dry-run")["worth"]
    assert [item["grade"] for item in said["items"]] == grades  # the pairs have a row `other`
    assert all(item["grade"] in item["grades"] for item in said["items"])
    assert "made-up records" in said["judged_on"]
    unknown = planned("--dry-run")["worth"]
    assert [item["grade"] for item in unknown["items"]] == [None] * 3
    good_from = [item["good_from"] for item in said["items"]]
    assert [item["good_from"] for item in unknown["items"]] == good_from
    lines = lines_of("--dry-run")
    assert "--rows, about how many records there are, tells what to expect and whether" in lines[0]
    assert f"good from {good_from[0]:,} records" in "\n".join(lines)


@pytest.mark.parametrize("epsilon", ["0.02", "0.1", "2"])
def test_the_verdict_on_public_records_is_that_of_their_counts(town, epsilon):
    """Of 3,000 records so many shares have ages 0 to 4, half of them of either sex."""
    Path("workload.yaml").write_text(ROWS)
    people = [f"{age},{sex},1,15" for sex in "FM" for age in "0122233334"]
    Path("public.csv").write_text("age,sex,region,income\n" + "\n".join(people) + "\n")
    seen = planned("--epsilon", epsilon, "--proxy", "public.csv", "--dry-run")
    (judged, *_), (errors, *_) = seen["worth"]["items"], seen["selections"][0]["items"]
    shares = np.outer((0.1, 0.1, 0.3, 0.4, 0.1), (0.5, 0.5, 1.0)).ravel()
    relative = errors["rmse"] / (3000 * shares)
    assert seen["worth"]["judged_on"] == "the public file public.csv"
    assert judged["relative"] == pytest.approx(np.median(relative))
    flagged = (relative > 0.3).mean()
    good = flagged <= 0.1 and np.median(relative) <= 0.1
    assert judged["grade"] == ("weak" if flagged >= 0.5 else "good" if good else "fair")


@pytest.mark.nightly
def test_derived_items_are_as_wide_as_plan_says_and_say_what_no_interval_includes(town):
    """The plan is judged on the records that are released; both widths are of the median row."""
    derived = """\
  - {name: incomes, sum: {of: income, value: [5, 15, 35], by: {sex: identity}}}
derived:
  - {name: mean_income, mean: {sum: incomes}}
  - {name: of_age, share: {of: age_by_sex, within: [age]}}
  - {name: none, ratio: {of: rare, to: rare}}
"""
    rare = "  - {name: rare, where: {age: 4}, product: {sex: identity}}\n"
    Path("workload.yaml").write_text(ROWS + rare + derived)
    chance = np.random.default_rng(1)
    ages, sexes, incomes = (chance.integers(n, size=3000) for n in (4, 2, 50))
    rows = [f"{a},{'FM'[s]},1,{i}" for a, s, i in zip(ages, sexes, incomes, strict=True)]
    Path("data.csv").write_text("age,sex,region,income\n" + "\n".join([*rows, "4,F,1,5"]) + "\n")
    asked = ("--epsilon", "1", "--proxy", "data.csv")
    worths = planned(*asked)["worth"]["derived"]
    mean, share, lost = worths
    assert [worth["kind"] for worth in worths] == ["mean", "share", "ratio"]
    assert (lost["within_95"], lost["lost"]) == (None, 2)  # of one record, and of none
    lines = "\n".join(lines_of(*asked))
    assert f"mean, at worst ±{rounded(mean['at_worst'])}" in lines
    assert "ratio, 2 of 2 rows likely to have no estimate" in lines
    assert (
        "incomes, mean_income: a record adds one number for its bin, up to 15 from its own" in lines
    )
    ok("release", "data.csv", "--epsilon", "1")
    shown = json.loads(ok("error-report", "--json").out)["derived"]
    assert mean["within_95"] == pytest.approx(shown[0]["typical"], rel=0.2)
    assert mean["at_worst"] == pytest.approx(shown[0]["widest"], rel=0.3)
    assert 100 * share["within_95"] == pytest.approx(shown[1]["typical"], rel=0.2)


def test_rows_that_are_named_come_before_those_of_the_spec(town):
    Path("workload.yaml").write_text(ROWS)
    lines = lines_of("--rows", "500", "--dry-run")
    assert lines[0].endswith("about 500 records (the spec says 3,000)")


@pytest.mark.nightly
def test_a_weight_that_is_offered_does_what_is_said_of_it(town, monkeypatch):
    """It is pasted and planned: the item comes near to what was promised, and so do the others."""
    alone = SPEC.replace("    weight: 2\n", "")
    light = alone + "    weight: 0.01\n"
    Path("workload.yaml").write_text(light)
    with monkeypatch.context() as trying:
        trying.setattr("town.quickly", nullcontext)
        seen, lines = planned("--rows", "10"), lines_of("--rows", "10")
    offered = seen["worth"]["weighed"][0]
    item = offered["item"]
    assert item == "age_by_sex"
    assert f"`weight: {offered['weight']:g}`" in "\n".join(lines)
    before = {one["name"]: one["rmse"] for one in seen["selections"][0]["items"]}
    heavier = f"identity+total}}\n    weight: {offered['weight']:g}\n"
    Path("workload.yaml").write_text(light.replace("identity+total}\n", heavier))
    after = {one["name"]: one["rmse"] for one in planned()["selections"][0]["items"]}
    assert after[item] == pytest.approx(offered["rmse"], rel=0.1)
    others = max(after[name] / before[name] - 1 for name in before if name != item)
    assert others == pytest.approx(offered["others"], abs=0.1)


def test_a_delta_of_the_budget_alone_is_said_to_leave_gaussian_noise_out(town):
    given = SPEC.replace("budget: {epsilon: 4}", "budget: {epsilon: 4, delta: 1e-6}")
    Path("workload.yaml").write_text(given)
    assert any("with `delta: 1e-6` there" in line for line in lines_of("--change-cap"))
    Path("workload.yaml").write_text(given.replace("add-remove}", "add-remove, delta: 1e-6}"))
    assert not any("Gaussian noise is left out" in line for line in lines_of())


def test_a_single_release_errs_as_much_as_is_said_at_the_largest_epsilon(town):
    (price,) = (line for line in lines_of("--epsilon", "1") if line.startswith("price"))
    assert price.startswith(
        "price    25 % of the budget; 4 such releases fit. If it is the only one"
    )
    assert "--epsilon 4 has 0.25 times the error" in price


def test_why_says_how_far_answers_are_off_and_what_would_change_it(town):
    """The worst item alone errs no more than the plain mechanism on its own queries."""
    lines = lines_of("--epsilon", "1", "--why")
    items = planned("--epsilon", "1")["selections"][0]["items"]
    assert lines[0] == "town: 51 queries in 3 items, epsilon = 1: expected error"
    for line, item in zip(lines[2:5], items, strict=True):
        queries, rmse, largest = figures(line.removeprefix(item["name"]))
        assert queries == item["queries"]
        assert rmse == pytest.approx(item["rmse"], rel=1e-3)
        assert largest == pytest.approx(item["max_std_error"], rel=1e-3)
    worst = max(items, key=lambda item: item["rmse"])
    words = next(
        line for line in lines if line.startswith(f"{worst['name']} has the largest error: ")
    )
    assert figures(words)[0] == pytest.approx(worst["rmse"], rel=1e-3)
    alone = next(line for line in lines if line.startswith("asked alone it would have"))
    compiled = compile_spec(load_spec(Path("workload.yaml")))
    workload = compiled.workload.select(compiled.items[items.index(worst)])
    every_row = workload.rmatvec(np.ones(workload.shape[0]))  # of zeros and ones
    said = float(alone.split()[5].rstrip(":"))
    assert said <= math.sqrt(2) * every_row.max() * 1.001
    assert said < 0.9 * worst["rmse"]
    double = planned("--epsilon", "2")["selections"][0]["items"][0]["rmse"] / items[0]["rmse"]
    assert f"at epsilon = 2 all errors are {double:.2f} times as large" in lines
    Path("workload.yaml").write_text(ONE)
    text = "\n".join(lines_of("--why"))
    assert "has the largest error" not in text
    assert "asked alone" not in text
    assert "a typical estimate is off by" in text


# Two plans side by side: the errors are those that each plan promises, and nothing is written.


OTHER = SPEC.replace("    weight: 2\n", "    weight: 50\n").replace(
    "  - name: ages\n    ranges: {age: all}\n", "  - name: sexes\n    product: {sex: identity}\n"
)


@pytest.fixture
def two(town):
    """A town with its plan, and another spec with its own."""
    Path("other.yaml").write_text(OTHER)
    ok("plan", "other.yaml", "--out", "other.plan", *SEARCHED)  # as they are planned in anew
    return town


def promised(spec, epsilon):
    """What `plan` says of a spec's items at an epsilon."""
    arguments = ("--out", "again.plan", "--epsilon", epsilon, "--json", *SEARCHED)
    done = json.loads(ok("plan", spec, *arguments).out)
    return {item["name"]: item for item in done["selections"][0]["items"]}


@pytest.mark.nightly
def test_the_errors_are_those_that_each_plan_promises(two):
    first, second = promised("workload.yaml", "0.5"), promised("other.yaml", "0.5")
    before = contents(".")
    frame = compare("dpquery.plan", "other.plan", epsilon="0.5").errors.set_index("item")
    assert contents(".") == before
    assert list(frame.index) == ["age_by_sex", "pairs", "ages", "sexes"]
    for items, place in ((first, "first"), (second, "second")):
        for name, item in items.items():
            assert frame.loc[name, f"rmse_{place}"] == pytest.approx(item["rmse"])
            assert frame.loc[name, f"max_std_error_{place}"] == pytest.approx(item["max_std_error"])
            assert frame.loc[name, f"queries_{place}"] == item["queries"]
    assert frame.loc["pairs", "ratio"] == pytest.approx(
        second["pairs"]["rmse"] / first["pairs"]["rmse"]
    )
    assert frame.loc["age_by_sex", "ratio"] < 1  # it weighs more
    assert pd.isna(frame.loc["ages", "rmse_second"])
    assert pd.isna(frame.loc["sexes", "ratio"])


@pytest.mark.nightly
def test_a_spec_is_planned_for_it_and_nothing_is_put_on_record(two):
    before = contents(".")
    by_plans = compare("dpquery.plan", "other.plan")
    by_specs = compare("workload.yaml", "other.yaml")
    assert contents(".") == before
    pd.testing.assert_frame_equal(by_plans.errors, by_specs.errors)


def test_what_is_printed_says_which_plan_is_which(two):
    done = ok("compare", "dpquery.plan", "other.plan", "--epsilon", "2")
    lines = done.out.splitlines()
    assert lines[0] == "expected errors in counts at epsilon = 2"
    assert [line.split()[0] for line in lines[2:6]] == ["age_by_sex", "pairs", "ages", "sexes"]
    assert len(lines[2].split()) == 7
    assert len(lines[5].split()) == 4  # the first plan has no such item
    assert "first: dpquery.plan, " in lines[6]
    assert "second: other.plan, " in lines[7]
    assert "50 % of the budget" in lines[7]
    as_json = json.loads(ok("compare", "dpquery.plan", "other.plan", "--json").out)
    assert [one["name"] for one in as_json["first"]["items"]] == ["age_by_sex", "pairs", "ages"]
    assert as_json["second"]["name"] == "other.plan"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.plan", None, "cannot be read: No such file or directory; name a plan or a spec"),
        ("text.yaml", "no: spec\n", "text.yaml:1:1: this is no spec"),
        ("cut.plan", '{\n  "format": "dpquery.plan/3",\n', "damaged"),
    ],
)
def test_what_is_neither_plan_nor_spec_is_refused(town, name, content, message):
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(SpecError) as caught:
        compare("dpquery.plan", name)
    assert message in str(caught.value)
    assert message in refused("compare", "dpquery.plan", name, code=2)


# The commands as Python functions: light to import, and the same as the command line.

VISITS = """
dataset: {id: visits, version: 1}
privacy: {unit: row, neighbours: add-remove}
budget: {epsilon: 4}
other: drop
domain:
  age: {range: [0, 3]}
  sex: {values: ["F", "<b>M"]}
workload:
  - {name: ages, product: {age: identity, sex: identity}, description: "<script>x</script>"}
  - {name: total, product: {}}
"""
LATER = "workload: [{name: by_sex, product: {sex: identity}}]"


@pytest.fixture
def here(own_folder):
    """A folder with a spec, data and later questions, where the default names are."""
    Path("workload.yaml").write_text(VISITS)
    Path("later.yaml").write_text(LATER)
    Path("data.csv").write_text("age,sex\n" + "0,F\n1,<b>M\n3,F\n" * 50)
    return own_folder


def loaded_by(statement):
    """The modules that a new process has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return set(done.stdout.split())


def dpquery_modules(modules):
    return {name for name in modules if name.split(".")[0] == "dpquery"}


def test_importing_the_package_loads_nothing_else():
    modules = loaded_by("import dpquery")
    assert dpquery_modules(modules) == {"dpquery", "dpquery.version"}
    assert modules.isdisjoint({"numpy", "pandas", "pyarrow", "scipy", "typer"})


def test_every_exported_name_is_a_function_even_where_its_room_is_loaded():
    for name in set(dpquery.__all__) - {"__version__"}:
        assert callable(getattr(dpquery, name))
        assert name in dir(dpquery)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dpquery.nothing
    commands = {command.name for command in app.registered_commands}
    assert {"plan", "release", "answer", "synthetic", "error-report", "package"} <= commands


def test_default_places_are_those_of_the_command_line(here):
    planned = plan("workload.yaml", time_limit=0, epsilon=1)
    released = release("data.csv", epsilon=1)
    answered = answer("release", "later.yaml")
    report = error_report()
    expected = {"dpquery.plan", "release", "answers", "report.html", "state"}
    assert {path.name for path in here.iterdir()} >= expected
    assert (released.directory, answered.directory) == (Path("release"), Path("answers"))
    assert planned.errors["rmse"].tolist() == pytest.approx(released.errors["rmse"].tolist())
    assert report.errors["rmse"].tolist() == released.errors["rmse"].tolist()


RENAMED = {
    "spec": "spec_path",
    "plan_command.out": "plan_path",
    "release_command.plan": "plan_path",
    "ledger": "ledger_path",
    "target": "targets",
    "synthetic_command.rows": "records",
}
OF_THE_SCREEN = {"as_json", "candidates", "exact", "why"}
PAIRS = [
    (plan_command, plan),
    (compare_command, compare),
    (release_command, release),
    (answer_command, answer),
    (synthetic_command, synthesize),
    (error_report_command, error_report),
]


def defaults_of(function, renamed=None):
    """The default of every argument, by the name that the function in Python has for it."""
    renamed = renamed or {}
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        other = renamed.get(f"{function.__name__}.{name}", renamed.get(name, name))
        given = parameter.default
        found[other] = str(given) if isinstance(given, Path) else given or None
    return found


@pytest.mark.parametrize(("command", "function"), PAIRS)
def test_arguments_and_their_defaults_are_those_of_the_command_line(command, function):
    said, meant = defaults_of(command, RENAMED), defaults_of(function)
    assert said.keys() - OF_THE_SCREEN == meant.keys()
    differing = {name: (said[name], meant[name]) for name in meant if said[name] != meant[name]}
    jobs = {"jobs": (defaults.SHELL_JOBS, defaults.FUNCTION_JOBS)}
    assert differing == (jobs if "jobs" in meant else {})


def test_help_names_the_defaults_and_limits_there_are():
    shown = run("release", "--help").out
    assert f"default: {defaults.LEVEL}" in shown
    low, high = defaults.LEVELS
    assert f"{low} to {high}; default" in " ".join(shown.split())
    assert f"{defaults.MOST_JOBS} searches both kinds" in run("plan", "--help").out


def test_tables_are_those_of_the_files(here):
    plan("workload.yaml", time_limit=0)
    released = release("data.csv", epsilon="0.5")
    frame = released.table("ages")
    assert released.items == ("ages", "total")
    assert frame["sex"].tolist() == ["F", "<b>M"] * 4
    np.testing.assert_array_equal(frame["estimate"], released.arrow("ages")["estimate"])
    frame["estimate"] = 0.0
    assert released.table("ages")["estimate"].any()
    with pytest.raises(SpecError, match="release has no item 'agess'; did you mean 'ages'"):
        released.table("agess")
    Path("release/ages.parquet").write_bytes(b"PAR1")
    with pytest.raises(SpecError, match=r"damaged: ages.parquet is missing or not"):
        released.arrow("ages")


def test_an_epsilon_means_the_same_however_it_is_written(here):
    plan("workload.yaml", time_limit=0)
    first = release("data.csv", epsilon=0.1)
    assert not first.free
    for epsilon in ("0.1", Fraction(1, 10), np.float64(0.1), "1e-1"):
        assert release("data.csv", epsilon=epsilon).free


def test_a_page_for_a_notebook_is_escaped_and_holds_errors_alone(here):
    planned = plan("workload.yaml", time_limit=0)
    released = release("data.csv", epsilon=1)
    for result in (planned, released, error_report(html=None)):
        page = result._repr_html_()
        assert "ages" in page
        assert page.startswith("<p><b>visits")
        assert "<script" not in page
        assert len(page) < 2_000
    assert not Path("report.html").exists()
    assert repr(released) == "<ReleaseReport: release>"
    assert repr(planned).startswith("<PlanReport: visits: 9 queries in 2 items, epsilon = 1; ")


def test_records_in_memory_are_refused_by_their_type_alone(here):
    plan("workload.yaml", time_limit=0, targets="ages: sd <= 30")
    frame = pd.DataFrame({"sex": ["SECRET"], "data.csv": [1]})
    with pytest.raises(DataError, match=r"^a DataFrame was given where the path of the data is"):
        release(frame, epsilon=1)
    with pytest.raises(DataError, match=r"^an int was given"):
        release(5, epsilon=1)


def test_failures_are_those_of_the_command_line(here):
    plan("workload.yaml", time_limit=0)
    with pytest.raises(SpecError, match="objective 'least' is not known"):
        plan("workload.yaml", time_limit=0, objective="least")
    with pytest.raises(SpecError, match="seed -1 is not a whole number"):
        plan("workload.yaml", time_limit=0, seed=-1)
    with pytest.raises(SpecError, match="time_limit -1 is not a number of seconds"):
        plan("workload.yaml", time_limit=-1)
    with pytest.raises(PlanConflictError):
        plan("workload.yaml", time_limit=0, plan_path="data.csv")
    with pytest.raises(BudgetExceededError):
        release("data.csv", epsilon=5)
    release("data.csv", epsilon=1)
    with pytest.raises(SpecError, match="has no relaxed rows to make records of"):
        synthesize()
    with pytest.raises(SpecError, match="records 0 is not a whole number"):
        synthesize(records=0)
    with pytest.raises(DpqueryError):
        answer("nowhere", "later.yaml")


def test_a_plan_from_python_has_linear_algebra_in_one_thread_and_leaves_others_theirs(tmp_path):
    """Threads that wait for each other take the time that the search is limited in."""
    (tmp_path / "spec.yaml").write_text(VISITS)

    def threads():
        return {library["num_threads"] for library in threadpool_info()}

    seen = []
    with threadpool_limits(2), dpquery.reporting(lambda line: seen.append(threads())):
        outside = threads()
        places = {"plan_path": tmp_path / "a.plan", "ledger_path": tmp_path / "a.db"}
        plan(tmp_path / "spec.yaml", time_limit=0, **places)
        assert threads() == outside
    assert seen
    assert set().union(*seen) == {1}
