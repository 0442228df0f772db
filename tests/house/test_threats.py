"""The checklist of leaks: its table in docs/guarantee.md is true, and what no other file shows.

The table is read and held against the source: every function and test that it names exists.
"""

import ast
import base64
import ctypes
import hashlib
import inspect
import multiprocessing
import os
import re
import resource
import subprocess
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from dense import budget_for
from python_files import ROOT, TESTS, find, package
from town import CSV, PERSON_SPEC, SEARCHED, contents, ended, ok, refused, run, start

import dpquery
from dpquery.audit.run import PARTS
from dpquery.cli import commands
from dpquery.cli.app import app
from dpquery.measurement.counting.engines import spark
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.noise.exact_noise import BULK_ABOVE, draw
from dpquery.spec.parsing.read import load_spec

TABLE = ROOT / "dpquery" / "docs" / "guarantee.md"
ROWS = 48
# Not defended, or not offered: these rows point to what the page says of them.
DOCUMENTED = {12, 39}
CANARY = "CANARY_9f3a71"
CODE, TEST = re.compile(r"`([\w.]+)`"), re.compile(r"`(test_\w+\.py)::(\w+)`")
QUOTED, PART = re.compile(r"documented: “(.+?)”"), re.compile(r"`audit:(\w+)`")


def rows(text):
    """The cells of each row of the table, by the row's number."""
    lines = re.findall(r"^\| (\d+) \|(.+)\|$", text, re.MULTILINE)
    return [(int(number), [cell.strip() for cell in rest.split("|")]) for number, rest in lines]


@cache
def named_tests():
    """The functions at the top of all files of tests, as (file, function)."""
    return {
        (path.name, node.name)
        for path in TESTS.rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }


@cache
def misnamed(name):
    """What is wrong with a name of code; nothing if there is such a piece."""
    try:
        find(name, package())
    except LookupError as error:
        return str(error)


def mistakes(text):
    """All that is wrong with a table."""
    entries = rows(text)
    numbers = [number for number, _ in entries]
    wrong = [] if numbers == list(range(1, ROWS + 1)) else [f"rows are {numbers}"]
    said = " ".join(QUOTED.sub("", TABLE.read_text(encoding="utf-8")).split())
    for number, cells in entries:
        if len(cells) != 4 or not all(cells):
            wrong.append(f"{number}: not four full cells")
            continue
        _, _, code, tests = cells
        wrong += [f"{number}: {no}" for name in CODE.findall(code) if (no := misnamed(name))]
        wrong += [
            f"{number}: no {name} in {file}"
            for file, name in TEST.findall(tests)
            if (file, name) not in named_tests()
        ]
        parts, quoted = PART.findall(tests), QUOTED.findall(tests)
        wrong += [f"{number}: the audit has no part {part}" for part in parts if part not in PARTS]
        wrong += [
            f"{number}: the page does not say {phrase!r}" for phrase in quoted if phrase not in said
        ]
        if not (TEST.findall(tests) or parts or (quoted and number in DOCUMENTED)):
            wrong.append(f"{number}: no test")
        rest = TEST.sub("", PART.sub("", QUOTED.sub("", tests)))
        if rest.replace(",", "").strip():
            wrong.append(f"{number}: what is {rest.strip()!r}?")
        if not CODE.findall(code) and number not in DOCUMENTED:
            wrong.append(f"{number}: no code")
    return wrong


def test_every_row_of_the_checklist_names_code_and_tests_that_exist():
    assert mistakes(TABLE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("| 7 |", "| 70 |", "rows are"),
        ("`tabulate`", "`guess`", "nothing is called 'guess'"),
        ("`tabulate`", "`_parse`", "'_parse' is ambiguous"),
        ("`test_supply.py::test_", "`test_supply.py::test_no_", "no test_no_"),
        ("`audit:supply`", "`audit:nothing`", "no part nothing"),
        ("“Not covered: running time", "“Covered: running time", "the page does not say"),
        ("| 12 |", "| 12 | x |", "not four full cells"),
    ],
)
def test_a_false_entry_is_found(old, new, expected):
    text = TABLE.read_text(encoding="utf-8")
    assert old in text
    assert any(expected in mistake for mistake in mistakes(text.replace(old, new)))


# Rows whose test has no better place.


@pytest.mark.parametrize("separator", [b";", b"\t", b"|", b" "])
def test_row_2_another_separator_is_refused_and_never_guessed(town, separator, record_property):
    Path("data.csv").write_bytes(CSV.replace(b",", separator))
    message = refused("release", "data.csv", "--epsilon", "1", code=6)
    assert "header" in message
    record_property("bad inputs", 1)


def test_row_8_errors_belong_to_the_estimates_and_columns_beside_them_are_called_biased(
    released_town,
):
    plain = Path("release", "statement.md").read_text()
    assert "Estimates are unbiased and are published as they came out" in plain
    assert "They are biased" not in plain
    ok("release", "data.csv", "--epsilon", "1", "--also", "nonnegative")
    assert "They are biased" in Path("release", "statement.md").read_text()


@pytest.mark.nightly
def test_row_9_a_plan_is_the_same_whether_the_data_are_there_or_poisoned(town, monkeypatch):
    def poisoned(*_, **__):
        raise AssertionError("the data were opened")

    planned = Path("dpquery.plan").read_bytes()
    for place in ("tabulate", "check_header"):
        monkeypatch.setattr(f"dpquery.measurement.curator.{place}", poisoned)
    monkeypatch.setattr("dpquery.measurement.counting.sources.open_regular", poisoned)
    for data in (CSV, b"age,sex,region,income\n" + b"0,F,1,5\n" * 999, None):
        Path("data.csv").unlink(missing_ok=True)
        if data is not None:
            Path("data.csv").write_bytes(data)
        ok("plan", "workload.yaml", *SEARCHED)
        assert Path("dpquery.plan").read_bytes() == planned


def test_row_11_no_time_and_no_speed_is_printed_or_written(town):
    Path("data.csv").write_bytes(CSV * 200)
    printed = [
        ok("release", "data.csv", "--epsilon", "1"),
        ok("error-report"),
        ok("ledger", "history"),
        ok("ledger", "export"),
    ]
    texts = {str(i): ended.out + ended.err for i, ended in enumerate(printed)}
    texts |= {name: Path("release", name).read_text() for name in ("statement.md", "release.json")}
    texts["page"] = Path("report.html").read_text()
    timed = re.compile(r"\d:\d\d\b|rows/s|rows per|\belapsed|\bETA\b|\b\d+(\.\d+)? ?(ms|seconds)\b")
    assert {name: match[0] for name, text in texts.items() if (match := timed.search(text))} == {}
    assert timed.search("read 600 rows/s, 12:03:01")


def drawn_in_a_child(size, pipe):
    settings = {"budget": budget_for("laplace", 1e6), "sensitivity": 1, "scale": 1e6}
    pipe.send(draw(np.zeros(size, np.int64), **settings).tolist())


@pytest.mark.parametrize("size", [200, BULK_ABOVE + 1])
def test_row_14_forked_processes_draw_different_noise(size):
    forked = multiprocessing.get_context("fork")
    settings = {"budget": budget_for("laplace", 1e6), "sensitivity": 1, "scale": 1e6}
    samples = [draw(np.zeros(size, np.int64), **settings).tolist()]  # every source is warm now
    for _ in range(2):
        ours, theirs = forked.Pipe(duplex=False)
        child = forked.Process(target=drawn_in_a_child, args=(size, theirs))
        child.start()
        samples.append(ours.recv())
        child.join()
    samples.append(draw(np.zeros(size, np.int64), **settings).tolist())
    for i, first in enumerate(samples):
        for second in samples[:i]:
            same = sum(a == b for a, b in zip(first, second, strict=True))
            assert same < size / 20


def secret_rows(spec_rows=40):
    """A data file of the town in which every value is a canary or lies beside one."""
    extra = f"3,M,1,20.5,{CANARY}\n{CANARY},{CANARY},{CANARY},{CANARY},{CANARY}\n"
    return f"age,sex,region,income,name\n{extra * spec_rows}".encode()


def holding(folder):
    """Files that hold the canary, the data file apart."""
    files = contents(folder)
    return [name for name in files if CANARY.encode() in files[name] and name != "data.csv"]


WRITES = """
import os, sys
seen = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def hook(event, given):
    writes = event == "open" and (given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if event in {"tempfile.mkstemp", "tempfile.mkdtemp", "sqlite3.connect"} or writes:
        os.write(seen, (os.fsdecode(given[0]) + "\\n").encode())
sys.addaudithook(hook)
"""


LOUD = "import logging, warnings\nlogging.basicConfig(level=1)\nwarnings.simplefilter('always')\n"


def test_rows_15_and_16_a_release_of_loud_libraries_says_and_writes_nothing_else(
    town, monkeypatch, tmp_path
):
    """It opens no file for writing but its own; loggers and warnings, turned up, tell nothing."""
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("TMPDIR", str(town / "tmp"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONWARNINGS", "always")
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    Path("tmp").mkdir()
    Path("data.csv").write_bytes(secret_rows())
    done = ended(start("release", "data.csv", "--epsilon", "1", code=WRITES + LOUD))
    assert done.code == 0, done
    assert CANARY not in done.out + done.err
    assert not re.search(r"^(DEBUG|INFO|WARNING|ERROR)|Warning", done.err, re.MULTILINE)
    names = re.sub(r"^file:|\?mode=\w+$", "", (tmp_path / "seen").read_text(), flags=re.MULTILINE)
    opened = {os.path.relpath(name, town) for name in names.splitlines()}
    allowed = re.compile(r"state/ledger\.db|\.?release[\w.]*(/.*)?|\.\.?$|\.dpquery[\w.-]*(/.*)?")
    assert [name for name in opened if not allowed.match(name)] == []
    assert any(name.startswith("state") for name in opened)
    assert list(Path("tmp").iterdir()) == []
    assert holding(".") == []


def test_row_23_no_column_weighs_records_without_a_cap():
    fields = {"weights", "weight_column", "frequency"}
    names = ("Dataset", "Privacy", "Budget", "Spec", "RecordWeight")
    records = [find(name, package()).text for name in names]
    declared = {
        node.target.id: node.value
        for text in records
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.AnnAssign)
    }
    assert "dataset" in declared
    assert declared.keys() & fields == set()
    assert {"person", "max_rows", "weight"} <= declared.keys()
    assert declared["at_most"] is declared["step"] is None  # neither may be left out


IDS = [
    (b"a\n a\na \n\ta\t\n", 2),  # white space around an id is nobody's name
    (b'"a"\n"a "\na\n', 2),
    (b"a\r\na\r\na\r\n", 2),
    (b"a\nA\n", 2),  # letter by letter: two persons, as guarantee.md says
    (b"7\n07\n7.0\n7e0\n+7\n", 2),  # one number, one person
    (b"7x\n07x\n7.0x\n", 3),
    ("\u00a07\u2003\n7\n7\n".encode(), 2),
    (b'\n \n\t\n""\n', 0),  # nobody
]


@pytest.mark.parametrize(("ids", "counted"), IDS)
def test_row_25_an_id_is_compared_as_a_value_is(tmp_path, ids, counted):
    (tmp_path / "workload.yaml").write_text(PERSON_SPEC)
    spec = load_spec(tmp_path / "workload.yaml")
    body = b"".join(b"0,F,1,5," + line for line in ids.splitlines(keepends=True))
    (tmp_path / "d.csv").write_bytes(b"age,sex,region,income,name\n" + body)
    assert tabulate(tmp_path / "d.csv", spec=spec, subsets=[()])[()] == counted


def digests(content):
    """What a fingerprint of some bytes would look like, in any of the usual ways."""
    for name in ("md5", "sha1", "sha256", "sha512", "blake2b"):
        raw = hashlib.new(name, content).digest()
        yield from (raw, raw.hex().encode(), base64.b64encode(raw).rstrip(b"="))
        yield base64.urlsafe_b64encode(raw).rstrip(b"=")
    yield f"{zlib.crc32(content):08x}".encode()


def test_row_29_no_digest_of_the_data_is_anywhere(town):
    data = CSV * 50
    Path("data.csv").write_bytes(data)
    ok("release", "data.csv", "--epsilon", "1")
    ok("error-report")
    lines = data.splitlines(keepends=True)
    body = b"".join(lines[1:])
    forms = (data, body, data.strip(), b"".join(sorted(lines)), lines[1], lines[1].strip())
    known = {known_digest for form in forms for known_digest in digests(form)}
    files = {name: content for name, content in contents(".").items() if name != "data.csv"}
    files["export"] = ok("ledger", "export").out.encode()
    assert [name for name, file in files.items() if any(print_ in file for print_ in known)] == []
    plan = Path("dpquery.plan").read_bytes()  # the digest of the plan is named: so it would be seen
    assert any(digest in files["release/release.json"] for digest in digests(plan))


CRASHES = """
import ctypes, resource
import dpquery.measurement.curator as curator
_, most = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
tabulate = curator.tabulate
def crashes(*given, **settings):
    tables = tabulate(*given, **settings)
    ctypes.string_at(0)
curator.tabulate = crashes
"""


def test_row_33_a_crash_of_the_process_leaves_no_dump_and_no_values(
    town, monkeypatch, record_property
):
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    Path("data.csv").write_bytes(secret_rows())
    before = set(contents("."))
    done = ended(start("release", "data.csv", "--epsilon", "1", code=CRASHES))
    assert done.code == -11
    record_property("crashes", 1)
    assert CANARY not in done.out + done.err
    assert holding(".") == []
    claimed = {".release.writing/"}  # empty: the next run takes it over
    assert [name for name in set(contents(".")) - before - claimed if "state" not in name] == []


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "prctl"), reason="Linux marks processes so")
def test_row_33_no_other_process_of_the_user_may_read_the_memory(town, monkeypatch):
    marks, (_, most) = [], resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as it is before any release

    def looks(*_, **__):
        marks.append(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
        marks.append(resource.getrlimit(resource.RLIMIT_CORE)[0])
        raise RuntimeError(CANARY)

    monkeypatch.setattr("dpquery.measurement.curator.tabulate", looks)
    done = run("release", "data.csv", "--epsilon", "1")
    assert (done.code, CANARY in done.err) == (70, False)
    assert marks == [0, 0]


def test_row_34_the_repository_holds_no_data_but_what_a_script_makes_or_is_public():
    try:
        listing = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    kinds = {".csv", ".tsv", ".parquet", ".pkl", ".pickle", ".npy", ".npz", ".db", ".duckdb"}
    kinds |= {".feather", ".arrow", ".sas7bdat", ".dta", ".xlsx", ".zip", ".gz", ".plan"}
    data = [name for name in listing.stdout.splitlines() if Path(name).suffix in kinds]
    # test_pages.py holds them: one is published, one is made again, one is numbers alone.
    # It makes the areas of the showcases again; their records are in no file here.
    files = ["sample_data/nhanes2.csv", "sample_data/persons.csv", "workloads/geography.csv"]
    files += ["workloads/postcodes.csv", "workloads/tracts.csv"]
    assert data == files


def test_row_35_what_is_typed_for_a_release_is_paths_budgets_and_names():
    public = {"data", "plan", "out", "ledger", "epsilon", "delta", "mechanism", "noise", "also"}
    public |= {"confidence", "release_number", "replace", "as_json", "exact", "memory"}
    public |= {"as_planned", "same"}
    assert set(inspect.signature(commands.release_command).parameters) == public


def test_row_41_records_are_read_by_three_commands_and_a_proxy_is_said_to_be_public():
    readers = {
        (command.name, name)
        for command in app.registered_commands
        for name in inspect.signature(command.callback).parameters
        if name in {"data", "csv", "records", "truth", "proxy", "against", "compare"}
    }
    read = {("release", "data"), ("discover", "data"), ("check", "data"), ("plan", "proxy")}
    assert readers == read
    assert "PUBLIC data" in ok("plan", "--help").out


def test_row_43_a_check_says_that_it_is_private_and_has_no_option_to_write():
    given = set(inspect.signature(commands.check_command).parameters)
    assert given == {"data", "spec", "to_pipe"}
    assert commands.PRIVATE.startswith("PRIVATE: ")
    assert "check" not in dpquery.__all__


def test_row_44_a_session_of_spark_shows_nothing_and_encrypts():
    assert spark._OF_THE_MACHINES == {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "false",
        "spark.io.encryption.enabled": "true",
    }
    assert spark._OF_THE_PROGRAM["spark.log.level"] == "OFF"
    program = inspect.getsource(spark._gateway)
    assert program.count("subprocess.DEVNULL") == 2
