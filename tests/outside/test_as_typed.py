"""Commands as people type them: short options, stdin, lists with commas, quiet, errors as JSON."""

import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import jsonschema
import pytest
import typer
import yaml
from town import ANY_PLAN, CSV, SPEC, contents, ok, refused, run, start

from dpquery.cli.app import COMMANDS, LEDGER_COMMANDS, app
from dpquery.cli.options import Mechanism, NoiseOption, ObjectiveOption
from dpquery.plan_file.rehearsals import MechanismChoice
from dpquery.spec.documents import SHORT_STARTER, STARTER, schema
from dpquery.spec.parsing.read import parse
from dpquery.strategy.strategy import CHOICES, Objective

QUICK = ("--dry-run", "--time-limit", "0")


def stdin_of(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_help_is_short_to_ask_for_and_ends_with_an_example(name):
    lines = ok(name, "-h").out.rstrip().splitlines()
    assert any("-q, --quiet" in line for line in lines)
    example = next(line for line in lines if line.startswith("  Example: "))
    assert example.startswith(f"  Example: dpquery {name}")


def test_examples_name_options_that_there_are():
    group = typer.main.get_command(app)
    for _, _, example in (*COMMANDS, *LEDGER_COMMANDS):
        words, command = example.split(), group
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, example


def test_the_list_of_commands_cuts_no_sentence():
    listed = ok("-h").out.partition("Commands:")[2]
    assert "..." not in listed
    assert ok("-V").out == ok("--version").out


def test_options_with_fixed_values_list_them():
    shown = " ".join(ok("release", "-h").out.split())
    for option, words in ((NoiseOption, CHOICES), (ObjectiveOption, Objective.__args__)):
        assert set(option.__origin__.__args__) == set(words)
    assert set(Mechanism.__args__) == set(MechanismChoice.__args__)
    assert "laplace|gaussian|auto" in shown
    assert "'laplace', 'gaussian', 'auto'" in refused_by_typer("--noise", "fair")


def refused_by_typer(*options):
    done = run("release", "data.csv", "--epsilon", "1", *options)
    assert done.code == 2
    return " ".join(done.err.split())


def test_quiet_leaves_the_result_and_errors(town):
    assert ok("plan", "workload.yaml", *QUICK, "-q").err == ""
    assert ok("release", "data.csv", "--epsilon", "1", "--quiet").err == ""
    assert ok("release", "data.csv", "--epsilon", "1").err != ""
    assert "no_such.yaml" in run("plan", "no_such.yaml", "-q").err


def test_an_error_is_json_where_json_is_asked_for(town):
    done = run("plan", "no_such.yaml", "--json")
    error = json.loads(done.err)
    assert (done.code, error["exit_code"], done.out) == (2, 2, "")
    assert error["error"].startswith("no_such.yaml cannot be read")


def test_columns_are_named_one_by_one_or_with_commas(town):
    ok("release", "data.csv", "--epsilon", "1", "--also", "nonnegative,integer")
    apart = ("--also", "nonnegative", "--also", "integer")
    ok("release", "data.csv", "--epsilon", "1", *apart, "--out", "b")
    first, second = contents("release"), contents("b")
    assert first == second
    assert "given twice" in refused(
        "release", "data.csv", "--epsilon", "1", "--also", "integer,integer", code=2
    )


def test_a_dry_run_and_lint_leave_no_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("workload.yaml").write_text(SPEC)
    ok("plan", "workload.yaml", *QUICK, "--ledger", "l.db")
    assert ok("lint", "workload.yaml").out == "workload.yaml: 51 answers in 3 tables, no mistakes\n"
    both = json.loads(ok("lint", "workload.yaml", "--json").out)
    assert both == {"workload.yaml": {"items": 3, "queries": 51}}
    Path("bad.yaml").write_text(SPEC.replace("unit: row", "unit: rwo"))
    Path("worse.yaml").write_text(SPEC.replace("weight: 2", "weight: x"))
    said = refused("lint", "bad.yaml", "workload.yaml", "worse.yaml", code=2)
    assert "bad.yaml:2:" in said
    assert "worse.yaml:16:" in said
    assert sorted(contents(".")) == ["bad.yaml", "workload.yaml", "worse.yaml"]


def test_a_dry_run_is_refused_as_the_plan_would_be(town):
    Path("workload.yaml").write_text(SPEC.replace("{epsilon: 4}", "{epsilon: 5}"))
    refused("plan", "workload.yaml", "--dry-run", code=5)


def test_spec_and_data_come_on_stdin(town, monkeypatch):
    stdin_of(monkeypatch, SPEC.encode())
    assert "51 answers" in ok("plan", "-", "--out", "piped.plan", *QUICK[1:]).out
    expected = ok("release", "data.csv", "--epsilon", "1").out
    said = []
    for _ in range(2):  # the second one is free
        stdin_of(monkeypatch, CSV)
        said.append(ok("release", "-", "--epsilon", "1", "--out", "piped", "--release-number", "2"))
    assert said[0].out.splitlines()[1] == expected.splitlines()[1]
    assert "nothing was charged" in said[1].err
    stdin_of(monkeypatch, CSV)
    done = run("check", "-", "workload.yaml", "--to-pipe")
    assert "of 6 records" in done.out


def test_no_control_codes_where_no_colour_is_wanted(town, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = run("plan", "workload.yaml", "--candidates", *QUICK, terminal=True)
    assert "\x1b" not in shown.out + shown.err


def test_a_terminal_without_a_sign_for_all_writes_its_name_or_its_code(town):
    ok("release", "data.csv", "--epsilon", "1")
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    command = [sys.executable, "-m", "dpquery", "error-report"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0
    assert b"epsilon = 1 " in done.stdout
    plan = [sys.executable, "-m", "dpquery", "lint", "\u03bc\u0142.yaml", "--json"]
    done = subprocess.run(plan, env=environment, capture_output=True, check=False)
    assert b"mu\\u0142.yaml cannot be read" in done.stderr
    Path("\u03bc.yaml").write_text(SPEC)
    plan[-2] = "\u03bc.yaml"
    done = subprocess.run(plan, env=environment, capture_output=True, check=False)
    assert "\u03bc.yaml" in json.loads(done.stdout)  # JSON keeps the text itself


def test_an_interrupted_search_in_two_processes_says_one_line(town):
    rows = SPEC.replace("{range: [0, 4]}", "{range: [0, 200]}")
    gaussian = rows.replace("add-remove}", "add-remove, delta: 1e-6}")
    Path("workload.yaml").write_text(gaussian.replace("{epsilon: 4}", "{epsilon: 4, delta: 1e-6}"))
    # A shell lets what runs behind it, as CI may, ignore Ctrl-C: this program heeds it again.
    code = (
        "import threading, os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "threading.Timer(2, os.killpg, (0, signal.SIGINT)).start()"
    )
    own = ("--jobs", "2", "--ledger", "new.db")  # the town's has another budget on record
    process = start("plan", "workload.yaml", *own, code=f"import os; os.setpgid(0, 0); {code}")
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode in (0, 130)


# What a run leads on to, and lines that were false or unclear.


def test_a_release_says_what_to_run_next(town):
    said = ok("release", "data.csv", "--epsilon", "1").out.splitlines()[-1]
    assert said.startswith("next: dpquery error-report (")
    elsewhere = ok("release", "data.csv", "--epsilon", "1", "--out", "a b").out.splitlines()[-1]
    assert "dpquery error-report 'a b'" in elsewhere


@pytest.mark.parametrize(
    ("spent", "sentence"),
    [
        ((), "town: nothing spent; one release at epsilon 4 fits"),
        (("1",), "town: 25 % spent; one release at epsilon 3, or 3 like the last, fit"),
        (("1", "3"), "town: 100 % spent; no further release fits"),
    ],
)
def test_a_status_begins_with_a_sentence(town, spent, sentence):
    for number, epsilon in enumerate(spent, start=1):
        ok("release", "data.csv", "--epsilon", epsilon, "--release-number", number, "--replace")
    assert ok("ledger", "status").out.splitlines()[0] == sentence


def test_a_budget_is_never_said_to_be_spent_beyond_its_cap(town):
    odd = SPEC.replace("{epsilon: 4}", "{epsilon: 17.14}").replace("id: town", "id: odd")
    Path("workload.yaml").write_text(odd)
    ok("plan", "workload.yaml", "--out", "odd.plan", *QUICK[1:])
    said = ok("release", "data.csv", "--plan", "odd.plan", "--out", "odd", "--epsilon", "17.14").out
    assert "epsilon 17.14 of 17.14 (100 %) has been spent" in said


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (["--delta", "0.1"], "0.1 is large"),
        (["--delta", "0.0005", "--rows", "3000"], "0.0005 is above one in the 3,000 records"),
        (["--delta", "0.0001", "--rows", "3000"], ""),
    ],
)
def test_a_delta_at_which_records_may_be_published_is_warned_of(town, options, warned):
    spec = SPEC.replace("add-remove}", "add-remove, delta: 1e-6}").replace("id: town", "id: other")
    Path("workload.yaml").write_text(spec.replace("{epsilon: 4}", "{epsilon: 4, delta: 1e-6}"))
    if "--rows" in options:  # of which a spec that says no rows knows nothing
        for form in ([], ["--why"]):
            said = ok("plan", "workload.yaml", *QUICK, "--new-dataset", *options, *form).out
            assert ("warning: " in said) == bool(warned)
            assert warned in said
    else:
        ok(*ANY_PLAN, "workload.yaml", "--out", "other.plan", "--new-dataset")
        wanted = ("release", "data.csv", "--epsilon", "1", "--plan", "other.plan")
        for command in (wanted, ("plan", "workload.yaml", *QUICK)):
            said = refused(*command, *options, code=2)
            assert "--delta 0.1 is above the delta 1e-6 that the spec declares" in said
        Path("workload.yaml").write_text(Path("workload.yaml").read_text().replace("1e-6", "0.1"))
        said = ok(*ANY_PLAN, "workload.yaml", "--out", "other.plan", "--change-cap").out
        assert f"warning: delta {warned}" in said
        assert warned in refused(*wanted, "--epsilon", "9", code=3)
        told = ok(*wanted, "--noise", "laplace").err
        assert f"warning: delta {warned}" in told
        assert "Laplace noise, which does not use it" in told


def test_a_large_delta_of_the_budget_alone_is_warned_of_too(town):
    spec = SPEC.replace("add-remove}", "add-remove, delta: 1e-6}").replace("id: town", "id: other")
    Path("workload.yaml").write_text(spec.replace("{epsilon: 4}", "{epsilon: 4, delta: 0.1}"))
    for form in ([], ["--why"]):
        said = ok("plan", "workload.yaml", *QUICK, "--new-dataset", *form).out
        assert "warning: delta 0.1 is large" in said
    ok(*ANY_PLAN, "workload.yaml", "--out", "other.plan", "--new-dataset")
    wanted = ("release", "data.csv", "--epsilon", "1", "--plan", "other.plan")
    assert "warning: delta 0.1 is large" in ok(*wanted).err


def test_plan_ends_in_a_release_that_the_budget_can_pay_for(town):
    spec = SPEC.replace("add-remove}", "add-remove, delta: 1e-6}").replace("id: town", "id: other")
    Path("workload.yaml").write_text(spec.replace("{epsilon: 4}", "{epsilon: 2, delta: 1e-6}"))

    def ends(*options):
        words = ok("plan", "workload.yaml", "--new-dataset", "--time-limit", "0", *options).out
        return next(line for line in words.splitlines() if line.startswith("next "))

    beyond = ends("--epsilon", "5", "--dry-run")
    assert "--epsilon 5 does not fit; --epsilon " in beyond
    ends()
    other = ("release", "data.csv", "--out", "other")
    ok("release", "data.csv", "--epsilon", "1", "--noise", "laplace")
    told = refused(*other, "--epsilon", "0.2", "--noise", "gaussian", code=3)
    assert "--epsilon 0.2 --noise laplace fits; the largest that still fits is --epsilon 1 " in told
    after = ends("--epsilon", "1.5")
    assert "release data.csv --epsilon 1 --noise laplace (--epsilon 1.5 does not fit" in after
    ok("release", "data.csv", "--epsilon", "0.2", "--noise", "laplace", "--out", "b")
    ok("release", "data.csv", "--epsilon", "0.8", "--noise", "laplace", "--out", "c")
    assert "no release fits: declare a larger `budget:`" in ends()
    assert "`dpquery answer`" in ends()
    assert "`dpquery answer`" in refused(*other, "--epsilon", "0.1", code=3)


def test_four_values_are_all_shown(town):
    Path("workload.yaml").write_text(SPEC.replace("[F, M]", "[N, E, S, W]"))
    assert "N, E, S, W " in ok("plan", "workload.yaml", *QUICK, "--why").out


# Specs to start from.


@pytest.mark.parametrize("text", [SHORT_STARTER, STARTER])
def test_what_init_writes_is_valid_by_the_schema_it_writes(text):
    jsonschema.validate(yaml.safe_load(text), schema())
    parse(text, name="workload.yaml", files={})


def test_init_writes_few_lines_or_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ok("init")
    assert 15 <= len(Path("workload.yaml").read_text().splitlines()) <= 25
    ok("init", "full.yaml", "--full")
    assert Path("full.yaml").read_text() == STARTER


FRICTIONLESS = {
    "fields": [
        {"name": "sex", "type": "string", "constraints": {"enum": ["F", "M"]}},
        {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 110}},
        {"name": "wage", "type": "number", "constraints": {"minimum": 0, "maximum": 1e6}},
        {"name": "yes", "type": "boolean"},
        {
            "name": "day",
            "type": "date",
            "constraints": {"minimum": "2020-01", "maximum": "2020-12"},
        },
        {
            "name": "region",
            "categories": [{"value": 1, "label": "North"}, {"value": 2, "label": "no"}],
        },
        {"name": "note\nx: 1", "type": "string"},
    ]
}
CSVW = {
    "tableSchema": {
        "columns": [
            {"titles": ["age"], "datatype": {"base": "integer", "minimum": "0", "maximum": "9"}},
            {"name": "n", "virtual": True},
        ]
    }
}


@pytest.mark.parametrize(
    ("book", "columns"),
    [
        (FRICTIONLESS, ["sex", "age", "wage", "yes", "day", "region"]),
        ({"resources": [{"schema": FRICTIONLESS}]}, ["sex", "age", "wage", "yes", "day", "region"]),
        (CSVW, ["age"]),
        ({"fields": [{"name": "x"}]}, ["first_column"]),
    ],
)
def test_a_code_book_becomes_a_domain(tmp_path, monkeypatch, book, columns):
    monkeypatch.chdir(tmp_path)
    Path("book.json").write_text(json.dumps(book))
    ok("init", "--from", "book.json")
    spec = parse(Path("workload.yaml").read_text(), name="workload.yaml", files={})
    assert [attribute.name for attribute in spec.domain.attributes] == columns


def test_labels_are_read_and_no_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("survey.sav").write_bytes(b"$FL2")
    asked = []

    def read_sav(path, **options):
        asked.append((path, options))
        labels = {"sex": {1.0: "male", 2.0: "female"}}
        return None, types.SimpleNamespace(column_names=["sex"], variable_value_labels=labels)

    module = types.SimpleNamespace(
        read_sav=read_sav, ReadstatError=OSError, PyreadstatError=OSError
    )
    monkeypatch.setitem(sys.modules, "pyreadstat", module)
    ok("init", "--from", "survey.sav")
    assert asked == [("survey.sav", {"metadataonly": True})]
    assert "sex: {values: {1: male, 2: female}}" in Path("workload.yaml").read_text()
    monkeypatch.setitem(sys.modules, "pyreadstat", None)
    assert "dpquery[labels]" in refused("init", "b.yaml", "--from", "survey.sav", code=2)


@pytest.mark.parametrize(
    ("content", "said"), [("sex,age\n", "is no JSON"), ("[]", "describes no column")]
)
def test_what_is_no_code_book_is_refused(tmp_path, monkeypatch, content, said):
    monkeypatch.chdir(tmp_path)
    Path("book.json").write_text(content)
    assert said in refused("init", "--from", "book.json", code=2)
