"""`dpquery check` at a terminal, into a pipe and at its traces: none."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from damage import CANARY, LARGE, NO_HEADERS, SMALL
from data import ADBC, TAKES, write_adbc, write_duckdb
from test_data_check import CENSUS, PANEL, PANEL_ROWS, SURVEY, SURVEY_ROWS
from town import contents, ended, refused, run, start

from dpquery.cli.screen import printable

ANSI = re.compile(r"\x1b\[[\d;]*m")  # what rich adds at a terminal: bold and its end


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a survey and its spec; the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("workload.yaml").write_text(SURVEY)
    Path("data.csv").write_text(f"id,sex,happy\n{SURVEY_ROWS}")
    return tmp_path


def at_terminal():
    return run("check", "data.csv", "workload.yaml", terminal=True)


def test_what_matters_comes_first_below_a_warning(here):
    done = at_terminal()
    assert done.code == 1
    lines = ANSI.sub("", done.out).splitlines()
    assert lines[0].startswith("PRIVATE: ")
    (first, *_) = (line for line in lines[3:] if line)
    assert first == "data.csv: 5 of 8 records (62 %) would be left out of every table"
    assert re.search(r"undeclared values in `happy` +4 +4", ANSI.sub("", done.out))
    assert done.err == ""


def test_without_a_terminal_nothing_is_shown_and_the_data_are_not_opened(here):
    Path("data.csv").unlink()
    message = refused("check", "data.csv", "workload.yaml", code=2)
    assert "--to-pipe" in message


def test_a_pipe_that_was_asked_for_gets_plain_text_of_one_width(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    done = run("check", "data.csv", "workload.yaml", "--to-pipe")
    assert done.code == 1
    assert done.out.startswith("PRIVATE: ")
    assert "\x1b" not in done.out
    assert "data.csv: 5 of 8 records (62 %) would be left out of every table\n" in done.out


def test_a_process_whose_stdout_is_a_file_refuses(here):
    with Path("printed").open("w") as file:
        command = [sys.executable, "-m", "dpquery", "check", "data.csv", "workload.yaml"]
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, check=False, text=True)
    assert done.returncode == 2
    assert Path("printed").read_text() == ""
    assert "--to-pipe" in done.stderr


COUNTS = SURVEY.replace("other: drop", "other: count")


@pytest.mark.parametrize(
    ("spec", "content", "code", "word"),
    [
        (SURVEY, "sex,happy\nF,1\nM,2\n", 0, "every record is counted, all 2 of them"),
        (SURVEY, "sex,happy\nF,1\n", 0, "every record is counted the file"),
        (COUNTS, "sex,happy\nF,1\nx,1\n", 0, "1 of 2 records (50 %) holds an"),
        (COUNTS, "sex,happy\nF,1\nx,1\n", 0, "# other values of `sex`, in 1 record: as declared"),
        (SURVEY, f"id,sex,happy\n{SURVEY_ROWS}", 1, "5 of 8 records"),
        (SURVEY, f"id;sex;happy\n{SURVEY_ROWS}".replace(",", ";"), 1, 'file: {delimiter: ";"}'),
        (PANEL, f"nr,year,union\n{PANEL_ROWS}", 0, "25 of 40 records (62 %)"),
        (CENSUS, "area,cars\n12,1\n", 1, "area: {range: [1, 12], other: drop}"),
        (SURVEY, "sex,happy\nF,1\nF\n", 1, "has 1 field, the header 2"),
        (SURVEY, "Sex,happy\nF,1\n", 1, "`sex` is not there; is it `Sex`?"),
        (SURVEY, "sex\nF\n", 1, "the header lacks the declared column happy;"),
    ],
)
def test_the_exit_code_says_whether_all_is_as_declared(here, spec, content, code, word):
    Path("workload.yaml").write_text(spec)
    Path("data.csv").write_text(content)
    done = at_terminal()
    assert done.code == code
    assert word in " ".join(ANSI.sub("", done.out).split())


def test_mistakes_of_spec_and_path_have_the_usual_codes(here):
    Path("workload.yaml").write_text("domain: 1\n")
    assert at_terminal().code == 2
    Path("workload.yaml").write_text(SURVEY)
    Path("data.csv").unlink()
    assert at_terminal().code == 6


@pytest.mark.parametrize("width", [40, 60, 160])
def test_no_line_of_a_table_is_wider_than_the_terminal(here, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    rows = "".join(f"F,{'long text ' * 9}{number}\n" for number in range(99))
    Path("data.csv").write_text(f"sex,happy\n{rows}")
    tables = ANSI.sub("", at_terminal().out).partition("# To paste")[0].split("\n\n", 1)[1]
    assert max(map(len, tables.splitlines())) <= width


ODD = SMALL | NO_HEADERS | {"one line": LARGE["three megabytes in one line"]}


@pytest.mark.parametrize("name", sorted(ODD))
def test_whatever_the_file_something_is_said_and_the_terminal_obeys_nothing(here, name):
    Path("workload.yaml").write_text(SURVEY.replace("happy:", "region:").replace("nr", "name"))
    Path("data.csv").write_bytes(ODD[name])
    done = at_terminal()
    assert done.code in {0, 1}, done
    shown = ANSI.sub("", done.out)
    assert printable(shown) == shown
    assert len(shown) < 20_000
    assert done.err == ""


def test_a_text_of_the_data_is_shown_as_a_text(here):
    Path("data.csv").write_bytes(
        b"sex,happy\n\x1b[31mF,[bold]x[/bold]\nM,\x1b]0;a\x07\nM,\xff\n\xe2\x80\xaeM,1\n"
    )
    shown = ANSI.sub("", at_terminal().out)
    for text in ("\\x1b[31mF", "[bold]x[/bold]", "\\x1b]0;a\\x07", "\\xff", "\\u202eM"):
        assert text in shown


# ------------------------------------------------------------------------------------ no trace

LISTENS = """
import os, sys
seen = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def hook(event, given):
    writes = event == "open" and (given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    made = {"tempfile.mkstemp", "tempfile.mkdtemp", "sqlite3.connect", "os.mkdir", "os.rename"}
    near = event == "open" and "ledger.db" in str(given[0])
    if event in made or writes or near:
        os.write(seen, f"{event} {given[0]}\\n".encode())
sys.addaudithook(hook)
"""


def test_a_check_opens_no_ledger_and_writes_no_file(town, monkeypatch, tmp_path):
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    Path("data.csv").write_text(f"age,sex,region,income\n{CANARY},F,1,5\n" * 3)
    before = contents(tmp_path / "town")
    done = ended(start("check", "data.csv", "workload.yaml", "--to-pipe", code=LISTENS))
    assert done.code == 1, done
    assert CANARY in done.out
    assert done.err == ""
    assert (tmp_path / "seen").read_text() == ""
    assert contents(tmp_path / "town") == before


def test_a_check_needs_no_ledger_and_makes_none(here):
    assert at_terminal().code == 1
    assert not (here / "state").exists()


def test_a_check_loads_neither_ledger_nor_noise_and_a_release_loads_no_check(town):
    code = (
        "import sys\nfrom unittest import mock\nfrom dpquery.cli.app import main\n"
        "sys.argv[1:] = {arguments}\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sys.modules)"
    )

    def loaded(*arguments):
        text = code.format(arguments=list(arguments))
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, check=True, text=True
        )
        return set(done.stdout.rpartition("LOADED ")[2].split())

    checked = loaded("check", "data.csv", "workload.yaml", "--to-pipe")
    assert "dpquery.data_check.check" in checked
    refused_rooms = ("dpquery.measurement.ledger", "dpquery.measurement.noise")
    refused_rooms += ("dpquery.commands.release", "dpquery.commands.plan", "dpquery.mechanisms")
    refused_rooms += ("dpquery.measurement.curator", "opendp")
    assert [name for name in checked if name.startswith(refused_rooms)] == []
    released = loaded("release", "data.csv", "--epsilon", "1")
    assert "dpquery.measurement.curator" in released
    assert [name for name in released if name.startswith("dpquery.data_check")] == []
    assert Path("release", "release.json").exists()


@pytest.mark.parametrize(
    "write", [pytest.param(own, marks=TAKES["rows.adbc"]) for own in (write_adbc, write_duckdb)]
)
def test_a_table_behind_a_connection_is_checked_as_one_of_a_file(here, write):
    names, *lines = Path("data.csv").read_text().splitlines()
    columns = zip(*(line.split(",") for line in lines), strict=True)
    table = pa.table(dict(zip(names.split(","), columns, strict=True)))
    done = run("check", str(write(table, here / "rows.duckdb")), "workload.yaml", "--to-pipe")
    assert (done.code, done.err) == (1, "")
    assert "5 of 8 records (62 %) would be left out of every table\n" in done.out
    assert re.search(r"undeclared values in `happy` +4 +4", done.out)


@pytest.mark.parametrize(
    "uri",
    [f"postgresql://{CANARY}@127.0.0.1:1/x", f"duckdb:{CANARY}"],
    ids=["a server", "a file"],
)
def test_what_a_variable_holds_is_in_no_message_of_a_check(here, uri, monkeypatch):
    pytest.importorskip("adbc_driver_manager")
    monkeypatch.setenv(ADBC, uri)
    done = run("check", f"adbc:{ADBC}?table=persons", "workload.yaml", "--to-pipe")
    assert done.code == 1
    assert CANARY not in done.out + done.err
    assert ADBC in done.out
