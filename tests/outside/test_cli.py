"""The commands, as typed."""

import io
import json
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path

import jsonschema
import pytest
import typer
import yaml
from town import CSV, SEARCHED, SPEC, Terminal, contents, ended, ok, refused, run, spent, start

from dpquery.cli.app import COMMANDS, LEDGER_COMMANDS, app
from dpquery.cli.options import Mechanism, NoiseOption, ObjectiveOption
from dpquery.cli.screen import Grid, print_grids
from dpquery.plan_file.rehearsals import MechanismChoice
from dpquery.spec.documents import SHORT_STARTER, STARTER, schema
from dpquery.spec.parsing.read import parse
from dpquery.strategy.strategy import CHOICES, Objective

ESCAPE = "\x1b"
OUTPUTS = ("dpquery.plan", "release", "report.html")


def outputs(folder):
    files = contents(folder)
    return {name: files[name] for name in files if name.startswith(OUTPUTS)}


@pytest.mark.nightly
def test_the_three_commands_work_as_typed_in_one_folder_and_twice_give_the_same_bytes(
    own_folder, planned_town
):
    for name in ("workload.yaml", "data.csv"):
        (own_folder / name).write_bytes((planned_town / name).read_bytes())
    commands = ("plan workload.yaml", "release data.csv --epsilon 1", "error-report")
    first = [ended(start(*command.split())) for command in commands]
    assert [done.code for done in first] == [0, 0, 0], first
    written = outputs(own_folder)
    assert {"dpquery.plan", "release/release.json", "report.html"} <= set(written)
    searched = [*SEARCHED], [], []
    again = [ok(*command.split(), *more) for command, more in zip(commands, searched, strict=True)]
    assert outputs(own_folder) == written
    assert [without_room(done.out) for done in again] == [without_room(done.out) for done in first]
    assert ["nothing was charged" in done.err for done in (first[1], again[1])] == [False, True]
    assert spent() == "1"
    for done in first:
        assert done.out
        assert ESCAPE not in done.out + done.err
    assert first[0].err.splitlines()[-1].startswith("ledger: ")
    assert "\nwrote    dpquery.plan; " in first[0].out


def without_room(text):
    """What a command prints, but for what fits the budget by now."""
    lines = text.splitlines()
    return [line for line in lines if "what is left" not in line and not line.startswith("price ")]


def test_a_second_run_makes_every_output_newer_so_that_make_settles(town):
    made, old = ("dpquery.plan", "release/release.json", "report.html"), time.time() - 1000
    for _ in range(2):
        ok("plan", "workload.yaml")
        ok("release", "data.csv", "--epsilon", "1")
        ok("error-report")
        assert all(os.stat(name).st_mtime > old + 500 for name in made)
        for name in made:
            os.utime(name, (old, old))


@pytest.mark.parametrize(
    "command",
    [
        "plan workload.yaml --json --time-limit 0",
        "release data.csv --epsilon 1 --json",
        "error-report --json",
        "ledger status --json",
        "ledger history --json",
        "schema",
    ],
)
def test_json_output_is_json_and_nothing_else(released_town, command):
    assert json.loads(ok(*command.split()).out)


def test_docs_prints_where_the_pages_are_and_each_of_them(own_folder):
    place, names = ok("docs").out.splitlines()
    assert names.split(", ") == sorted(page.stem for page in Path(place).glob("*.md"))
    assert ok("docs", "epsilon").out == Path(place, "epsilon.md").read_text()
    refused("docs", "tutoriel", code=2)


def test_the_export_is_one_json_object_a_line_and_verify_names_its_head(released_town):
    events = [json.loads(line) for line in ok("ledger", "export").out.splitlines()]
    assert [event["kind"] for event in events] == ["register", "reserve", "commit"]
    said = ok("ledger", "verify", "--releases", "release").out
    assert said.startswith(f"ok: 3 events, head {events[-1]['hash']}")


def test_tables_are_not_cut_and_have_no_colours_where_they_are_piped(released_town):
    planned = "plan workload.yaml --time-limit 0"
    for command in (planned, "error-report", "ledger status", "ledger history"):
        out = ok(*command.split()).out
        assert "town" in out or "age_by_sex" in out
        assert ESCAPE not in out
        assert "…" not in out


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [("> /dev/full", 70, "no space is left where something was to be written"), (">&-", 0, "")],
)
def test_an_output_that_takes_nothing_leaves_a_release_whole(released_town, shell, code, said):
    command = [sys.executable, "-m", "dpquery", "release", "data.csv", "--epsilon", "1"]
    piped = ["sh", "-c", f'"$@" --release-number 7 --out other {shell}', "sh", *command]
    done = subprocess.run(piped, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, said in done.stderr) == (code, True), done
    assert "internal error" not in done.stderr
    assert Path("other/release.json").exists()


def test_help_is_quick_because_no_heavy_module_is_imported_for_it():
    code = (
        "import sys, dpquery.cli.app; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    heavy = {"numpy", "scipy", "pandas", "pyarrow", "opendp", "yaml"}
    assert not heavy & set(done.stdout.split())


def test_every_command_and_every_option_has_help():
    def walk(command, name):
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"
        for subcommand in getattr(command, "commands", {}).values():
            yield f"{name} {subcommand.name}".strip()
            yield from walk(subcommand, f"{name} {subcommand.name}".strip())

    names = set(walk(typer.main.get_command(app), ""))
    assert names >= {"init", "schema", "plan", "release", "error-report", "ledger export"}
    for name in names:
        assert "--help" in ok(*name.split(), "--help").out


def test_a_plan_out_of_time_says_what_it_did_not_finish_and_how_to_go_on(town):
    hasty = ("plan", "workload.yaml", "--time-limit", "0", "--out", "hasty.plan")
    assert re.search(r"not finished: \d+ searches; give --time-limit more", ok(*hasty).out)
    done = ok(*hasty, "--why")
    assert re.search(r"not finished: .*OPT_M \(laplace\), .*; may be better", done.out)
    assert "give --time-limit more seconds" in done.out
    full = ok(*hasty, "--candidates")
    assert re.search(r"laplace +OPT_M +not finished within 0 CPU seconds", full.out)
    Path("workload.yaml").write_text(SPEC.split("  - name: pairs")[0])
    assert "not finished" not in ok("plan", "workload.yaml", *SEARCHED).out


def test_no_progress_goes_to_a_pipe(town):
    released = ok("release", "data.csv", "--epsilon", "1").err.splitlines()
    assert [line.partition(" ")[0] for line in released] == ["ledger:"]
    for options, begins in ([], "ledger:"), (["--json"], "wrote"), (["--dry-run"], ""):
        planned = ok("plan", "workload.yaml", *options).err
        assert [line.partition(" ")[0] for line in planned.splitlines()] == [begins] * bool(begins)
    assert "%" not in ok("answer", "release", "workload.yaml").err
    assert "%" not in ok("package", "release", "--also", "csv").err


def test_init_writes_a_spec_that_plans_and_never_overwrites(own_folder):
    ok("init")
    assert {"workload.yaml", "workload.schema.json"} == set(contents(own_folder))
    again = run("init")
    assert again.code == 5
    assert "workload.yaml exists" in again.err
    ok("init", "second.yaml")
    nowhere = run("init", "nowhere/third.yaml")
    assert nowhere.code == 2
    assert "nowhere/third.yaml cannot be written" in nowhere.err
    assert json.loads((own_folder / "workload.schema.json").read_text()) == json.loads(
        ok("schema").out
    )


def test_a_pipe_that_closes_early_is_no_crash(released_town):
    process = start("ledger", "export")
    process.stdout.close()
    process.stdout = None
    assert "Traceback" not in ended(process).err


def test_a_release_says_that_its_spec_has_changed_since_it_was_planned(town):
    release = ("release", "data.csv", "--epsilon", "1")
    assert "has changed" not in ok(*release).err
    Path("workload.yaml").write_text(Path("workload.yaml").read_text() + "# one more comment\n")
    before = contents("release")
    assert (
        "workload.yaml has changed since it was planned: this is the release of the plan"
        in ok(*release).err
    )
    assert contents("release") == before
    Path("workload.yaml").unlink()
    assert "has changed" not in ok(*release).err


def test_what_says_something_else_than_was_planned_is_not_charged_for(town):
    text, release = Path("workload.yaml").read_text(), ("release", "data.csv", "--epsilon", "1")
    Path("workload.yaml").write_text(text.replace("{", "{ ", 1) + "# a comment, and layout\n")
    ok(*release)
    changed = text.replace("version: 1", "version: 2") if "version: 1" in text else text + "x: 1\n"
    assert changed != text
    Path("workload.yaml").write_text(changed)
    second = (*release, "--release-number", "2", "--out", "second")
    before = ok("ledger", "history").out
    message = refused(*second, code=5)
    assert "workload.yaml says something else now than when it was planned" in message
    assert "nothing was charged" in message
    ok(*release, "--out", "again")  # what is paid for is made again
    assert "has changed since" in ok(*second, "--as-planned").err
    assert ok("ledger", "history").out != before


# Commands as people type them: short options, stdin, lists with commas, quiet, errors as JSON.


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


def test_a_name_stands_whole_where_a_terminal_is_narrow(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    cells = ("income_by_region", "fair or weak, ±49 % to ±280 %", "good from 2,000 records at best")
    print_grids([Grid("three", ("table", "expect", "from"), (cells,))])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue()).splitlines()
    assert max(map(len, lines)) <= 40
    assert sum("income_by_region" in line for line in lines) == 1


def test_columns_are_named_one_by_one_or_with_commas(town):
    ok("release", "data.csv", "--epsilon", "1", "--also", "nonnegative,integer")
    apart = ("--also", "nonnegative", "--also", "integer")
    ok("release", "data.csv", "--epsilon", "1", *apart, "--out", "b")
    first, second = contents("release"), contents("b")
    assert first == second
    assert "given twice" in refused(
        "release", "data.csv", "--epsilon", "1", "--also", "integer,integer", code=2
    )


def test_a_dry_run_and_lint_leave_no_trace(own_folder):
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


def test_a_terminal_without_a_sign_for_all_writes_its_name_or_its_code(released_town, forks):
    known = "import sys\nfor each in (sys.stdout, sys.stderr):\n    each.reconfigure(encoding={!r})"
    windows = known.format("cp1252")
    done = forks.ended("error-report", code=windows)
    assert done.code == 0
    assert "epsilon = 1 " in done.out
    done = forks.ended("lint", "\u03bc\u0142.yaml", "--json", code=windows)
    assert "mu\\u0142.yaml cannot be read" in done.err
    Path("\u03bc.yaml").write_text(SPEC)
    done = forks.ended("lint", "\u03bc.yaml", "--json", code=windows)
    assert "\u03bc.yaml" in json.loads(done.out)  # JSON keeps the text itself
    done = forks.ended("plan", "workload.yaml", *QUICK, code=known.format("ascii"))
    assert done.out.isascii()
    assert " +-" in done.out


@pytest.mark.nightly
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


def test_an_interrupt_while_work_is_sent_to_the_other_process_ends_both():
    """Python up to 3.11.4 waited for ever for the rest of it to be read."""
    code = """\
import time
from dpquery.strategy.search.select import other_process
with other_process() as beside:
    beside.submit(len, bytes(1 << 24))
    time.sleep(0.1)
    raise KeyboardInterrupt
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


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
    assert "uses 100 % of the budget; epsilon 17.14 of 17.14 has been spent" in said
    Path("workload.yaml").write_text(SPEC.replace("id: town", "id: a-new-one"))
    ok("plan", "workload.yaml", "--out", "new.plan", *QUICK[1:])
    assert ok("ledger", "status").out.splitlines()[1].split()[-2:] == ["more", "releases"]


OTHER = SPEC.partition("  - name: pairs")[0].replace("id: town", "id: other")
OTHER = OTHER.replace("add-remove}", "add-remove, delta: 1e-6}")


@pytest.mark.nightly(daily="0.1 is large")
@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (["--delta", "0.1"], "0.1 is large"),
        (["--delta", "0.0005", "--rows", "3000"], "0.0005 is above one in the 3,000 records"),
        (["--delta", "0.0001", "--rows", "3000"], ""),
    ],
)
def test_a_delta_at_which_records_may_be_published_is_warned_of(town, options, warned):
    Path("workload.yaml").write_text(OTHER.replace("{epsilon: 4}", "{epsilon: 4, delta: 1e-6}"))
    if "--rows" in options:  # of which a spec that says no rows knows nothing
        for form in ([], ["--why"]):
            said = ok("plan", "workload.yaml", *QUICK, "--new-dataset", *options, *form).out
            assert ("warning: " in said) == bool(warned)
            assert warned in said
    else:
        ok("plan", "workload.yaml", "--out", "other.plan", "--new-dataset")
        wanted = ("release", "data.csv", "--epsilon", "1", "--plan", "other.plan")
        for command in (wanted, ("plan", "workload.yaml", *QUICK)):
            said = refused(*command, *options, code=2)
            assert "--delta 0.1 is above the delta 1e-6 that the spec declares" in said
        Path("workload.yaml").write_text(Path("workload.yaml").read_text().replace("1e-6", "0.1"))
        said = ok("plan", "workload.yaml", "--out", "other.plan", "--change-cap").out
        assert f"warning: delta {warned}" in said
        dear = ("release", "data.csv", "--epsilon", "9", "--plan", "other.plan")
        assert warned in refused(*dear, code=3)
        told = ok(*wanted, "--noise", "laplace").err
        assert f"warning: delta {warned}" in told
        assert "Laplace noise, which does not use it" in told


def test_a_large_delta_of_the_budget_alone_is_warned_of_too(town):
    Path("workload.yaml").write_text(OTHER.replace("{epsilon: 4}", "{epsilon: 4, delta: 0.1}"))
    for form in ([], ["--why"]):
        said = ok("plan", "workload.yaml", *QUICK, "--new-dataset", *form).out
        assert "warning: delta 0.1 is large" in said
    ok("plan", "workload.yaml", "--out", "other.plan", "--new-dataset")
    wanted = ("release", "data.csv", "--epsilon", "1", "--plan", "other.plan")
    assert "warning: delta 0.1 is large" in ok(*wanted).err


def test_plan_ends_in_a_release_that_the_budget_can_pay_for(town):
    Path("workload.yaml").write_text(OTHER.replace("{epsilon: 4}", "{epsilon: 2, delta: 1e-6}"))

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


@pytest.mark.parametrize("text", [SHORT_STARTER, STARTER])
def test_what_init_writes_is_valid_by_the_schema_it_writes(text):
    jsonschema.validate(yaml.safe_load(text), schema())
    parse(text, name="workload.yaml", files={})


def test_init_writes_few_lines_or_all(own_folder):
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
def test_a_code_book_becomes_a_domain(own_folder, book, columns):
    Path("book.json").write_text(json.dumps(book))
    ok("init", "--from", "book.json")
    spec = parse(Path("workload.yaml").read_text(), name="workload.yaml", files={})
    assert [attribute.name for attribute in spec.domain.attributes] == columns


def test_labels_are_read_and_no_rows(own_folder, monkeypatch):
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
def test_what_is_no_code_book_is_refused(own_folder, content, said):
    Path("book.json").write_text(content)
    assert said in refused("init", "--from", "book.json", code=2)
