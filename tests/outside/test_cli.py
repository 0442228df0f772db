"""The commands, as typed."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from town import contents, ended, kinds, ok, refused, run, spent, start

from dpquery.cli.app import app

ESCAPE = "\x1b"
OUTPUTS = ("dpquery.plan", "release", "report.html")


@pytest.fixture
def released(town):
    ok("release", "data.csv", "--epsilon", "1")
    return town


def outputs(folder):
    files = contents(folder)
    return {name: files[name] for name in files if name.startswith(OUTPUTS)}


@pytest.mark.nightly
def test_the_three_commands_work_as_typed_in_one_folder_and_twice_give_the_same_bytes(
    tmp_path, planned_town, monkeypatch
):
    for name in ("workload.yaml", "data.csv"):
        (tmp_path / name).write_bytes((planned_town / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    commands = ("plan workload.yaml", "release data.csv --epsilon 1", "error-report")
    first = [ended(start(*command.split())) for command in commands]
    assert [done.code for done in first] == [0, 0, 0], first
    written = outputs(tmp_path)
    assert {"dpquery.plan", "release/release.json", "report.html"} <= set(written)
    again = [ok(*command.split()) for command in commands]
    assert outputs(tmp_path) == written
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


def test_a_second_run_makes_every_output_newer_so_that_make_settles(released):
    ok("error-report")
    old = time.time() - 1000
    for name in ("dpquery.plan", "release/release.json", "report.html"):
        os.utime(name, (old, old))
    ok("plan", "workload.yaml")
    ok("release", "data.csv", "--epsilon", "1")
    ok("error-report")
    for name in ("dpquery.plan", "release/release.json", "report.html"):
        assert os.stat(name).st_mtime > old + 500


@pytest.mark.parametrize(
    "command",
    [
        "plan workload.yaml --json",
        "release data.csv --epsilon 1 --json",
        "error-report --json",
        "ledger status --json",
        "ledger history --json",
        "schema",
    ],
)
def test_json_output_is_json_and_nothing_else(released, command):
    assert json.loads(ok(*command.split()).out)


def test_docs_prints_where_the_pages_are_and_each_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place, names = ok("docs").out.splitlines()
    assert names.split(", ") == sorted(page.stem for page in Path(place).glob("*.md"))
    assert ok("docs", "epsilon").out == Path(place, "epsilon.md").read_text()
    refused("docs", "tutoriel", code=2)


def test_the_export_is_one_json_object_a_line_and_verify_names_its_head(released):
    events = [json.loads(line) for line in ok("ledger", "export").out.splitlines()]
    assert [event["kind"] for event in events] == ["register", "reserve", "commit"]
    said = ok("ledger", "verify", "--releases", "release").out
    assert said.startswith(f"ok: 3 events, head {events[-1]['hash']}")


def test_tables_are_not_cut_and_have_no_colours_where_they_are_piped(released):
    for command in ("plan workload.yaml", "error-report", "ledger status", "ledger history"):
        out = ok(*command.split()).out
        assert "town" in out or "age_by_sex" in out
        assert ESCAPE not in out
        assert "…" not in out


@pytest.mark.nightly
def test_no_color_is_honoured_on_a_terminal(released, monkeypatch):
    pty = pytest.importorskip("pty")

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colour = re.compile(f"{ESCAPE}\\[([0-9]+;)*[349][0-7]")
    assert colour.search(_shown_on_a_terminal(pty))  # what is being done has a green sign before it
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(_shown_on_a_terminal(pty))


def _shown_on_a_terminal(pty):
    reading, writing = pty.openpty()
    command = [sys.executable, "-m", "dpquery", "plan", "workload.yaml", "--time-limit", "0"]
    shown = b""
    with subprocess.Popen(command, stdout=writing, stderr=writing) as process:
        os.close(writing)
        with suppress(OSError):  # how Linux says that the other end is closed
            while part := os.read(reading, 65536):
                shown += part
    os.close(reading)
    assert process.returncode == 0
    return shown.decode()


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [("> /dev/full", 70, "no space is left where something was to be written"), (">&-", 0, "")],
)
def test_an_output_that_takes_nothing_leaves_a_release_whole(released, shell, code, said):
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
    assert "not finished" not in run("plan", "workload.yaml").out


def test_no_progress_goes_to_a_pipe(town):
    released = ok("release", "data.csv", "--epsilon", "1").err.splitlines()
    assert [line.partition(" ")[0] for line in released] == ["ledger:"]
    for options, begins in ([], "ledger:"), (["--json"], "wrote"), (["--dry-run"], ""):
        planned = ok("plan", "workload.yaml", *options).err
        assert [line.partition(" ")[0] for line in planned.splitlines()] == [begins] * bool(begins)
    assert "%" not in ok("answer", "release", "workload.yaml").err
    assert "%" not in ok("package", "release", "--also", "csv").err


def test_the_version_is_printed():
    assert ok("--version").out.startswith("dpquery ")


def test_init_writes_a_spec_that_plans_and_never_overwrites(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    ok("init")
    assert {"workload.yaml", "workload.schema.json"} == set(contents(tmp_path))
    again = run("init")
    assert again.code == 5
    assert "workload.yaml exists" in again.err
    ok("init", "second.yaml")
    nowhere = run("init", "nowhere/third.yaml")
    assert nowhere.code == 2
    assert "nowhere/third.yaml cannot be written" in nowhere.err
    assert json.loads((tmp_path / "workload.schema.json").read_text()) == json.loads(
        ok("schema").out
    )


def test_abandon_gives_an_unfinished_run_up_and_keeps_its_charge(town, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr("dpquery.measurement.curator.tabulate", broken)
        assert run("release", "data.csv", "--epsilon", "1").code == 70
    (status,) = json.loads(ok("ledger", "status", "--json").out)
    (key,) = status["unfinished"]
    ok("ledger", "abandon", key)
    assert kinds() == ["register", "reserve", "abandon"]
    assert run("ledger", "abandon", key).code == 5
    ok("release", "data.csv", "--epsilon", "1")
    assert spent() == "2"


def test_a_pipe_that_closes_early_is_no_crash(released):
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
