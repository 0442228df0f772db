"""`dpquery check` at a terminal, into a pipe and at its traces: none."""

import gzip
import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from damage import CANARY, LARGE, NO_HEADERS, SMALL
from specs import ADBC, TAKES, write_adbc, write_duckdb
from test_data_check import (
    CENSUS,
    DROP,
    HEAD,
    PANEL,
    PANEL_ROWS,
    SURVEY,
    SURVEY_ROWS,
    WORKLOAD,
    checked,
    mended,
)
from town import contents, ended, refused, run, start

from dpquery.cli.screen import printable
from dpquery.cli.show_checks import check_grids, left_out_grid
from dpquery.data_check import check as module
from dpquery.data_check.layout import guessed_layout

ANSI = re.compile(r"\x1b\[[\d;]*m")  # what rich adds at a terminal: bold and its end


@pytest.fixture
def here(own_folder):
    """A folder with a survey and its spec; the working directory."""
    Path("workload.yaml").write_text(SURVEY)
    Path("data.csv").write_text(f"id,sex,happy\n{SURVEY_ROWS}")
    return own_folder


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
CUT = SURVEY.replace("version: 1", "version: 1, rows: about 8")


@pytest.mark.parametrize(
    ("spec", "content", "code", "word"),
    [
        (SURVEY, "sex,happy\nF,1\nM,2\n", 0, "every record is counted, all 2 of them"),
        (SURVEY, "sex,happy\nF,1\n", 0, "every record is counted the file"),
        (CUT, "sex,happy\nF,1\nM,2\n", 1, "declares about 8 records: is the file whole"),
        (COUNTS, "sex,happy\nF,1\nx,1\n", 0, "1 of 2 records (50 %) holds an"),
        (COUNTS, "sex,happy\nF,1\nx,1\n", 0, "# other values of `sex`: as declared, counted in"),
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


@pytest.mark.nightly(daily=r"\[(NUL|UTF-16\]|canar|only|gzip|markup|nothing)")
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


@pytest.mark.nightly
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
    noise = (f"dpquery.measurement.noise.{name}" for name in ("bulk", "exact", "calibration"))
    refused_rooms = ("dpquery.measurement.ledger", *noise)  # what a law is called draws nothing
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
    "uri", [f"postgresql://{CANARY}@127.0.0.1:1/x", f"duckdb:{CANARY}"], ids=["a server", "a file"]
)
def test_what_a_variable_holds_is_in_no_message_of_a_check(here, uri, monkeypatch):
    pytest.importorskip("adbc_driver_manager")
    monkeypatch.setenv(ADBC, uri)
    done = run("check", f"adbc:{ADBC}?table=persons", "workload.yaml", "--to-pipe")
    assert done.code == 1
    assert CANARY not in done.out + done.err
    assert ADBC in done.out


# How a file seems to be laid out, from its beginning.


TEXT = "name;eur\nZoë;1,5\n€;2,25\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (TEXT.encode(), {"encoding": "utf-8", "delimiter": ";", "decimal": ","}),
        (TEXT.encode("cp1252"), {"encoding": "cp1252"}),
        (TEXT.replace("€", "ä").encode("latin-1"), {"encoding": "latin-1"}),
        (TEXT.encode("utf-16"), {"encoding": "utf-16", "delimiter": ";"}),
        (TEXT.encode("utf-16-be"), {"encoding": "utf-16-be", "delimiter": ";"}),
        (TEXT.replace(";", "\t").encode(), {"delimiter": "\t"}),
        (TEXT.replace(";", "|").encode(), {"delimiter": "|"}),
        (b"name,eur\n'a,b',1\n'c',2\n", {"quote": "'", "steady": 1.0}),
        (b'name,eur\n"a\nb",1\n"c",2\n', {"newlines_in_quotes": True}),
        (b'name,eur\n"a",1\n"c",2\n', {"newlines_in_quotes": False}),
        (b'name,eur,n\n"a",1,2\n"c",2', {"newlines_in_quotes": False}),  # it is cut off
        (TEXT.replace("\n", "\r").encode(), {"delimiter": ";", "names": ("name", "eur")}),
        (b"name,eur\nx\x0by,1\nx\xe2\x80\xa8y,2\n", {"steady": 1.0}),
        (gzip.compress(TEXT.encode(), mtime=0), {"container": "gzip", "delimiter": ";"}),
        (
            gzip.compress(TEXT.encode(), mtime=0)[:20],
            {"is_text": False, "container": "gzip, damaged"},
        ),
        (b"PAR1\0\0", {"container": "Parquet", "is_text": False}),
        (b"SQLite format 3\0", {"container": "SQLite"}),
        (b"\0" * 99, {"is_text": False}),
        (b"", {"is_text": True, "names": ()}),
        (b"\n\n", {"is_text": True}),
        (b'"' * 2**21, {"is_text": True}),
    ],
)
def test_the_layout_is_guessed(tmp_path, content, expected):
    (tmp_path / "d").write_bytes(content)
    result = guessed_layout(tmp_path / "d", ("name", "eur"))
    assert {key: getattr(result, key) for key in expected} == expected


def test_a_first_record_in_place_of_a_header_and_odd_ends_of_lines_are_remarked(tmp_path):
    for content, word in (
        (b"1,2.5\n3,4.5\n", "looks like a record"),
        (b"name,eur\ra,1\r", "carriage"),
        (b"name,eur\na,1", "has no end"),
        ("name,eur\na,1".encode("utf-16"), "has no end"),
    ):
        (tmp_path / "d").write_bytes(content)
        (remark,) = guessed_layout(tmp_path / "d", ("name", "eur")).remarks
        assert word in remark
    for content in (b"", b"name,eur\na,1\r\n", "name,eur\na,1\n".encode("utf-16-le")):
        (tmp_path / "d").write_bytes(content)
        assert not guessed_layout(tmp_path / "d", ("name", "eur")).remarks


def test_declared_columns_tell_delimiters_apart(tmp_path):
    (tmp_path / "d").write_text("a;b,c,d,e\n1;2,3,4,5\n")
    assert guessed_layout(tmp_path / "d", ("a",)).delimiter == ";"
    assert guessed_layout(tmp_path / "d", ()).delimiter == ","


# What `dpquery check` offers to declare of dates, and of answers that are missing.


DAYS = HEAD + "domain:\n  day: {date: {from: 2013, to: 2014, by: day}}\n" + WORKLOAD
YEARS = HEAD + "domain:\n  day: {date: {from: 1980, to: 1987, by: year}}\n" + WORKLOAD


@pytest.mark.parametrize(
    ("spec", "content", "line", "comment"),
    [
        (
            DAYS,  # one text of another form moves no column to it
            "2013-05-01\n2013-05-02\n2013-05-02\n01.05.2013\n",
            "  day: {date: {from: 2013-01-01, to: 2014-12-31, by: day}, other: count}",
            "# written as 2013-01-31: 3 records, as 31.01.2013: 1; a column has one format",
        ),
        (
            DAYS,  # records count, not texts
            "2013-05-01\n2013-05-01\n2013-05-01\n01.05.2013\n02.05.2013\n",
            "  day: {date: {from: 2013-01-01, to: 2014-12-31, by: day}, other: count}",
            "# written as 2013-01-31: 3 records, as 31.01.2013: 2; a column has one format",
        ),
        (
            DAYS,
            "2013-05-01\n01.05.2013\n02.05.2013\nNA\n",
            '  day: {date: {from: 2013-01-01, to: 2014-12-31, by: day, format: "%d.%m.%Y"}, '
            "other: count}",
            "# written as 31.01.2013: 2 records, as 2013-01-31: 1; a column has one format",
        ),
        (
            YEARS,
            "1980\n1981\n1989\n",
            '  day: {date: {from: 1980-01-01, to: 1989-12-31, by: year, format: "%Y"}, '
            "other: drop}",
            "",
        ),
        (
            YEARS.replace("by: year}}", "by: year}, other: show}"),  # nothing is left to show
            "1980\n1989\n",
            '  day: {date: {from: 1980-01-01, to: 1989-12-31, by: year, format: "%Y"}, '
            "other: count}",
            "",
        ),
        (
            DAYS.replace("from: 2013", "from: 2013-02-03"),  # days are not told by years
            "2013\n2014\n9999\n",
            '  day: {date: {from: 2013-01-01, to: 2014-12-31, by: year, format: "%Y"}, '
            "other: count}",
            "",
        ),
        (
            DAYS.replace("by: day", "by: week"),
            "2013-05\n2014-02\n",
            '  day: {date: {from: 2013-01-01, to: 2014-12-31, by: month, format: "%Y-%m"}, '
            "other: drop}",
            "",
        ),
    ],
)
def test_dates_are_offered_the_format_that_most_records_fit(tmp_path, spec, content, line, comment):
    result = checked(tmp_path, spec, f"day\n{content}")
    assert result.remedies[-1] == line
    said = [one.strip() for one in result.remedies if "# written" in one]
    assert said == [comment] * bool(comment)
    mended(tmp_path, spec, result)
    again = module.check(tmp_path / "d.csv", tmp_path / "mended.yaml")
    fewer = again.records.columns[0].records, result.records.columns[0].records
    assert fewer[0] < fewer[1] or comment


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ('1\nNA\n""\n', "# all of them seem to be missing answers: nothing need be declared"),
        (
            "1\nNA\nwho\n",
            "# no line to paste suggests itself: declare by hand what is to be told apart",
        ),
    ],
)
def test_missing_answers_in_a_column_of_numbers_are_nothing_to_declare(tmp_path, texts, said):
    spec = CENSUS.replace(DROP, "").replace("  cars: {range: [0, 2]}\n", "")
    result = checked(tmp_path, spec, f"area\n{texts}")
    assert [line.strip() for line in result.remedies][-1] == said


@pytest.mark.parametrize(("last", "code"), [(98, True), (97, False)])
def test_a_number_beside_a_range_may_be_a_code_for_no_answer(tmp_path, last, code):
    """Of 1 to 98 and 99 nobody knows; 98 is no such code."""
    spec = CENSUS.replace(DROP, "").replace(
        "cars: {range: [0, 2]}", f"cars: {{range: [0, {last}]}}"
    )
    result = checked(tmp_path, spec, f"cars\n1\n{last + 1}\n")
    assert any("a code for no answer in many files" in line for line in result.remedies) == code
    assert f"range: [0, {last + 1}]" in "\n".join(result.remedies)


def test_a_header_that_is_there_twice_is_no_value_to_declare(tmp_path):
    spec = CENSUS.replace(DROP, "").replace("area: {range: [1, 9]}", "area: {values: [north]}")
    lines = checked(tmp_path, spec, "area,cars\narea,cars\nnowhere,1\n").remedies
    assert sum("a record repeats the header: take that line out" in line for line in lines) == 2
    declared = [line for line in lines if line.lstrip().startswith(("area:", "cars:"))]
    assert any("nowhere" in line for line in declared)
    assert not any(re.search(r"\[.*\b(area|cars)\b|, (area|cars):", line) for line in declared)


# What `dpquery check` says of the order of rows, of whole files, and of limits to declare.


FIRST = PANEL.replace("max_rows: 3", "max_rows: 3, keep: first")


def test_rows_that_are_sorted_within_persons_are_told_where_the_first_ones_stay(tmp_path):
    content = f"nr,year,union\n{PANEL_ROWS}"
    assert checked(tmp_path, FIRST, content).records.persons.sorted_by == ("year",)
    backwards = "".join(reversed(PANEL_ROWS.splitlines(keepends=True)))
    result = checked(tmp_path, FIRST, f"nr,year,union\n{backwards}")
    assert result.records.persons.sorted_by == ("year",)
    (_, *grids) = [left_out_grid(result, "d.csv"), *check_grids(result)]
    (note,) = [note for grid in grids for note in grid.notes if "keep: first" in note]
    assert "sorted by year" in note
    mixed = PANEL_ROWS.replace("1,1984", "1,1979").replace("1,1981", "1,1985")
    assert checked(tmp_path, FIRST, f"nr,year,union\n{mixed}").records.persons.sorted_by == ()
    assert checked(tmp_path, PANEL, content).records.persons.sorted_by == ()


@pytest.mark.parametrize("piece", [2**23, 40])
def test_the_order_of_rows_is_that_of_a_loop_over_each_person(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("dpquery.data_check.records._PIECE", piece)
    generator = np.random.default_rng(8)
    spec = FIRST.replace("union: boolean", "union: {range: [0, 3], other: count}")
    for trial in range(30):
        rows = [
            (generator.integers(1, 4), 1980 + generator.integers(8), generator.integers(5))
            for _ in range(25)
        ]
        if trial % 3:
            rows.sort(key=lambda row: row[trial % 3], reverse=trial % 2 == 0)
        content = "".join(f"{nr},{year},{union}\n" for nr, year, union in rows)
        expected = []
        for name, k, most in (("year", 1, 1987), ("union", 2, 3)):
            steps = []
            for person in (1, 2, 3):
                values = [row[k] for row in rows if row[0] == person and row[k] <= most]
                steps += [b - a for a, b in itertools.pairwise(values) if a != b]
            if len(steps) >= 8 and (min(steps) > 0 or max(steps) < 0):
                expected.append(name)
        result = checked(tmp_path, spec, f"nr,year,union\n{content}")
        assert result.records.persons.sorted_by == tuple(expected)


def test_the_same_rows_under_two_names_are_told_and_other_rows_are_not(tmp_path):
    (tmp_path / "w.yaml").write_text(SURVEY.replace(DROP, ""))
    text = f"id,sex,happy\n{SURVEY_ROWS}"
    for name, content in {
        "a.csv": text,
        "b.csv": text.replace("iap", "inap"),
        "c.csv": text,
        "d.csv": "happy,sex\n"
        + "".join(
            f"{happy},{sex}\n" for _, sex, happy in (r.split(",") for r in SURVEY_ROWS.split())
        ),
        "e.csv": "sex,happy\n",
        "f.csv": "sex,happy\n",
        "g.csv": "id,sex,happy\n" + "".join(sorted(SURVEY_ROWS.splitlines(keepends=True))[::-1]),
    }.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "h.csv.gz").write_bytes(gzip.compress(text.encode()))
    names = [tmp_path / name for name in ("a.csv", "b.csv", "e.csv", "f.csv", "g.csv")]
    result = module.check(names, tmp_path / "w.yaml")
    assert result.records.repeated == ()
    assert result.as_declared
    names += [tmp_path / name for name in ("c.csv", "d.csv", "h.csv.gz")]
    result = module.check(names, tmp_path / "w.yaml")
    first = str(tmp_path / "a.csv")
    assert result.records.repeated == tuple((str(own), first, 8) for own in names[-3:])
    assert not result.as_declared
    notes = left_out_grid(result, "data").notes
    assert sum("holds the same 8 records as" in note for note in notes) == 3


@pytest.mark.parametrize(("number", "rows"), [(1, 1), (30, 306), (12, 31)])
def test_limits_of_rows_that_are_proposed_are_round_and_leave_out_few(tmp_path, number, rows):
    persons = {f"p{k}": 1 + k % 9 for k in range(1000)}
    persons |= {f"q{k}": rows * (k + 1) // number for k in range(number)}
    content = "".join(f"{person},1981,0\n" * n for person, n in persons.items())
    result = checked(tmp_path, PANEL, f"nr,year,union\n{content}")
    lines = [line for line in result.remedies if "max_rows" in line][:-1]
    found = [int(re.search(r"max_rows: (\d+)", line)[1]) for line in lines]
    total = sum(persons.values())
    for limit, share in zip(found, (10, 100), strict=False):
        beyond = sum(max(0, n - limit) for n in persons.values())
        assert share * beyond <= total
        assert str(limit).rstrip("0") in "123456789"
        assert f"would leave out {beyond:,} of {total:,} rows" in "".join(lines)
    assert found
