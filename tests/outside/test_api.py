"""The commands as Python functions: light to import, and the same as the command line."""

import inspect
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from town import run

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
from dpquery.commands import defaults
from dpquery.exceptions import (
    BudgetExceededError,
    DataError,
    DpqueryError,
    PlanConflictError,
    SpecError,
)

SPEC = """
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
RELEASE_ROOMS = {
    *("commands", "mechanisms", "releases", "reconstruction", "measurement", "plan_file"),
    *("strategy", "operators", "spec", "untrusted", "progress", "limits"),
    "public_chance",
    *("exceptions", "arrays", "version", "planning"),
}
NOT_FOR_A_RELEASE = (
    *("dpquery.strategy.optimize", "dpquery.strategy.search", "dpquery.strategy.bounds"),
    *(
        "dpquery.strategy.goals",
        "dpquery.planning.rehearsal",
        "dpquery.planning.compare_mechanisms",
    ),
    *("dpquery.measurement.rounds.query", "dpquery.mechanisms.fitted"),
    *("dpquery.audit", "dpquery.cli", "dpquery.spec.documents", "dpquery.releases.report.page"),
    *("scipy.optimize", "scipy.stats", "typer", "rich", "pandas"),
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a spec, data and later questions, where the default names are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("workload.yaml").write_text(SPEC)
    Path("later.yaml").write_text(LATER)
    Path("data.csv").write_text("age,sex\n" + "0,F\n1,<b>M\n3,F\n" * 50)
    return tmp_path


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


@pytest.mark.nightly
def test_a_release_loads_neither_optimisers_nor_what_other_commands_need():
    modules = loaded_by("import dpquery.commands.release")
    assert {name.split(".")[1] for name in dpquery_modules(modules) - {"dpquery"}} == RELEASE_ROOMS
    assert {name for name in modules if name.startswith("dpquery.planning.")} == {
        "dpquery.planning.figures"
    }
    assert [name for name in NOT_FOR_A_RELEASE if name in modules] == []


def test_every_exported_name_is_a_function_even_where_its_room_is_loaded():
    for name in set(dpquery.__all__) - {"__version__"}:
        assert callable(getattr(dpquery, name))
        assert name in dir(dpquery)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dpquery.nothing
    commands = {command.name for command in app.registered_commands}
    assert {"plan", "release", "answer", "synthetic", "error-report", "package"} <= commands


def test_default_places_are_those_of_the_command_line(here):
    planned = plan("workload.yaml", epsilon=1)
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
    defaults = {}
    for name, parameter in inspect.signature(function).parameters.items():
        other = renamed.get(f"{function.__name__}.{name}", renamed.get(name, name))
        given = parameter.default
        defaults[other] = str(given) if isinstance(given, Path) else given or None
    return defaults


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
    plan("workload.yaml")
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
    plan("workload.yaml")
    first = release("data.csv", epsilon=0.1)
    assert not first.free
    for epsilon in ("0.1", Fraction(1, 10), np.float64(0.1), "1e-1"):
        assert release("data.csv", epsilon=epsilon).free


def test_a_page_for_a_notebook_is_escaped_and_holds_errors_alone(here):
    planned = plan("workload.yaml")
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


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": 0}, "epsilon '0' is not a decimal number"),
        ({"epsilon": "much"}, "epsilon 'much' is not a decimal number"),
        ({"epsilon": Fraction(1, 10**9)}, "epsilon '1e-09' is not a decimal number"),
        ({"delta": 1}, "delta '1' is not from 1e-100 to below 1"),
        ({"mechanism": "best"}, "mechanism 'best' is not known; choose one of auto, linear, rap"),
        ({"noise": "uniform"}, "noise 'uniform' is not known; choose one of auto, laplace"),
        ({"confidence": "high"}, "confidence is a str; expected a number"),
        ({"release_number": "2"}, "release_number is a str; expected a number"),
        ({"plan_path": {"dataset": 1}}, "a dict was given where a path is expected"),
        ({"also": "pretty"}, "'pretty' is not known"),
        ({"also": 5}, "also is of the type int; expected a text or a list of texts"),
        ({"confidence": 1.5}, r"confidence 1.5 is not from 0.5 to 0.9999"),
        ({"release_number": 0}, "release_number 0 is not a whole number from 1 to"),
        ({"plan_path": "nowhere.plan"}, "nowhere.plan cannot be read"),
        ({"also": ["pretty"]}, "pretty"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_charged(here, wrong, said):
    plan("workload.yaml")
    with pytest.raises(SpecError, match=said):
        release("data.csv", **{"epsilon": 1, **wrong})
    assert not Path("release").exists()


def test_records_in_memory_are_refused_by_their_type_alone(here):
    plan("workload.yaml", targets="ages: sd <= 30")
    frame = pd.DataFrame({"sex": ["SECRET"], "data.csv": [1]})
    with pytest.raises(DataError, match=r"^a DataFrame was given where the path of the data is"):
        release(frame, epsilon=1)
    with pytest.raises(DataError, match=r"^an int was given"):
        release(5, epsilon=1)


def test_failures_are_those_of_the_command_line(here):
    plan("workload.yaml")
    with pytest.raises(SpecError, match="objective 'least' is not known"):
        plan("workload.yaml", objective="least")
    with pytest.raises(SpecError, match="seed -1 is not a whole number"):
        plan("workload.yaml", seed=-1)
    with pytest.raises(SpecError, match="time_limit -1 is not a number of seconds"):
        plan("workload.yaml", time_limit=-1)
    with pytest.raises(PlanConflictError):
        plan("workload.yaml", plan_path="data.csv")
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
    (tmp_path / "spec.yaml").write_text(SPEC)

    def threads():
        return {library["num_threads"] for library in threadpool_info()}

    seen = []
    with threadpool_limits(2), dpquery.reporting(lambda line: seen.append(threads())):
        outside = threads()
        places = {"plan_path": tmp_path / "a.plan", "ledger_path": tmp_path / "a.db"}
        plan(tmp_path / "spec.yaml", **places)
        assert threads() == outside
    assert seen
    assert set().union(*seen) == {1}
