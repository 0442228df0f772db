"""Processes of their own: what they leave, however they end, and whatever they are told to say.

Between two system calls that change the disk nothing on it changes. So a process that is killed
before every such call in turn has been killed at every moment there is.
"""

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import CANARY, FILES, HEADER, PLAIN
from interference_support import COUNT, FIXED, KILL, Step, failing_calls, observe, planned_once
from python_files import PYTHON_PATH
from specs import ADBC, TYPED, UNPACKED, cases, written
from town import CSV, FAST, SPEC, contents, kinds, ok, plan_town, renew, run, spent

from dpquery.exceptions import DataError
from dpquery.spec.spec import FileFormat

needs_a_compiler = pytest.mark.skipif(failing_calls() is None, reason="needs cc, on Linux")
FIX = "import interference_support\ninterference_support.fix_all_chance()\n"
# So many records that are alike, that their number is nowhere by chance.
MANY = 7_654_321 // 99
ALIKE = HEADER + f"1,F,1,5,{CANARY}\n".encode() * MANY
PERSONS_ALIKE = HEADER + b"".join(f"1,F,1,5,{CANARY}{k}\n".encode() for k in range(MANY))
COMMANDS = {
    "rows": ("release data.csv --epsilon 1 --json", "error-report", "ledger export"),
    "persons": ("release data.csv --epsilon 1",),
    "RAP": ("release data.csv --epsilon 1", "synthetic --rows 40"),
}


TOWN = pytest.mark.parametrize(
    "town", ["rows", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("persons", "RAP"))]
)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return the function from the name of a town to the folder where it is planned, once."""
    return planned_once(tmp_path_factory.mktemp("processes"))


@pytest.fixture
def place():
    """A folder of one's own, in memory if there is one."""
    with TemporaryDirectory(dir=FAST) as name:
        yield Path(name) / "town"


def make_ready(place, town, content):
    """Fill the folder, with a HOME and a TMPDIR in it; return the environment."""
    renew(place, town)
    (place / "data.csv").write_bytes(content)
    for name in ("tmp", "home"):
        (place / name).mkdir()
    return {
        "DPQUERY_LEDGER": str(place / "state" / "ledger.db"),
        "TMPDIR": str(place / "tmp"),
        "HOME": str(place / "home"),
        "XDG_STATE_HOME": str(place / "home"),
    }


def job(place, command, environment, **more):
    return {
        "folder": place,
        "arguments": command.split(),
        "environment": environment,
        **({"arm": (COUNT, 0, 0)} if failing_calls() else {}),
    } | more


def left_behind(place):
    """Every file but the data themselves."""
    return {name: content for name, content in contents(place).items() if name != "data.csv"}


def holding(files, *secrets):
    """Name the files that match one of some secrets, or are named after one."""
    pattern = re.compile(b"|".join([CANARY.encode(), *secrets]))
    return [name for name, file in files.items() if pattern.search(file + name.encode())]


def counts_of(number):
    """What a true count looks like: as text, and as an int64 of any grid, in memory's order."""
    text = rb"(?<![\w.])(%d|%s)(?!\w)" % (number, f"{number:,}".encode())
    return [text, *(re.escape(struct.pack("<q", number << bits)) for bits in range(44))]


@TOWN
def test_whatever_the_data_a_process_makes_the_same_calls_and_leaves_the_same_bytes(
    template, place, forks, town, record_property
):
    results = {}
    names = ["canaries", "empty", "quotes", "many rows"]
    for name, content in {"plain": PLAIN, **{key: FILES[key] for key in names}}.items():
        environment = make_ready(place, template(town), content)
        jobs = [job(place, command, environment, before=FIX) for command in COMMANDS[town]]
        results[name] = forks.run(*jobs), left_behind(place)
        assert not holding(results[name][1]), name
    assert [ended.code for ended in results["plain"][0]] == [0] * len(COMMANDS[town])
    assert [name for name in names if results[name] != results["plain"]] == []
    record_property("neighbours", len(names))


@needs_a_compiler
@pytest.mark.parametrize(
    ("town", "times"),
    [("rows", 3), *(pytest.param(command, 25, marks=pytest.mark.slow) for command in COMMANDS)],
)
def test_a_release_killed_before_any_call_leaves_nothing_of_the_data(
    template, place, forks, town, times, record_property
):
    content = PERSONS_ALIKE if town == "persons" else ALIKE
    environment = make_ready(place, template(town), content)
    request = job(place, COMMANDS[town][0], environment, before=FIX)
    (done,) = forks.run(request)
    assert done.code == 0, done
    moments = range(len(done.names), 0, -max(1, len(done.names) // times))
    for moment in moments:
        make_ready(place, template(town), content)
        (killed,) = forks.run(request | {"arm": (KILL, moment, 0)})
        assert killed.code == -9, moment
        assert (killed.out, killed.err) == ("", "")
        assert not holding(left_behind(place), *counts_of(MANY)), done.names[moment - 1]
    record_property("crashes", len(moments))


PLACES = [Path(folder) for folder in ("/tmp", "/var/tmp", "/dev/shm") if Path(folder).is_dir()]  # noqa: S108
LOUD = {"PYTHONWARNINGS": "always", "PYTHONFAULTHANDLER": "1", "PYTHONDEVMODE": "1"}
ENVIRONMENTS = {
    "everything at once": LOUD | {"COLUMNS": "20", "HOME": "/proc", "TERM": "dumb"},
    "a narrow terminal": {"COLUMNS": "20", "LINES": "5", "FORCE_COLOR": "1"},
    "no English": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:replace"},
    "home cannot be written to": {"HOME": "/proc", "XDG_STATE_HOME": "/proc"},
}


def spoken(place, command, environment, **streams):
    """Start a command in a process of its own, with noise and choice fixed."""
    variables = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    variables |= {"PYTHONPATH": PYTHON_PATH, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", f"{FIX}from dpquery.cli.app import main\nmain()", *command.split()],
        cwd=place,
        env=variables | environment,
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams),
    )


def new_files(before):
    """Files in the folders for everybody's temporary files that were not there before."""
    files = {}
    for path in (entry for folder in PLACES for entry in set(folder.iterdir()) - before):
        try:
            files[str(path)] = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue  # another process's, and gone or closed to us
    return files


@pytest.mark.slow
@pytest.mark.parametrize("settings", ENVIRONMENTS)
def test_whatever_python_is_told_it_says_nothing_of_the_data(
    template, place, settings, record_property
):
    before = {path for folder in PLACES for path in folder.iterdir()}
    results = {}
    for name in ("plain", "canaries"):
        ready = make_ready(place, template("rows"), FILES[name])
        del ready["TMPDIR"]
        process = spoken(place, COMMANDS["rows"][0], ready | ENVIRONMENTS[settings])
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        results[name] = out, err, left_behind(place)
        assert CANARY.encode() not in out + err
        assert not holding(results[name][2])
    assert [name for name, result in results.items() if result != results["plain"]] == []
    assert not holding(new_files(before))
    record_property("neighbours", len(results) - 1)


SLOW = """
import time
import dpquery.measurement.curator as curator
real = curator.tabulate
def slow(*given, **settings):
    tables = real(*given, **settings)
    time.sleep(0.5)
    return tables
curator.tabulate = slow
"""


def read_all(descriptor, into):
    """Read a terminal to its end, which is an error on Linux."""
    try:
        while piece := os.read(descriptor, 4096):
            into.append(piece)
    except OSError:
        pass


@pytest.mark.slow
def test_progress_is_for_a_terminal_alone(template, place, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FIX", FIX + SLOW)
    environment = make_ready(place, template("rows"), CSV) | {"TERM": "xterm", "COLUMNS": "80"}
    command = COMMANDS["rows"][0]
    piped = spoken(place, command, environment)
    out, err = piped.communicate(timeout=60)
    assert err.decode().splitlines() == [f"ledger: {environment['DPQUERY_LEDGER']}"]
    make_ready(place, template("rows"), CSV)
    master, slave = pty.openpty()
    seen = []
    reader = threading.Thread(target=read_all, args=(master, seen))
    reader.start()
    shown = spoken(place, command, environment, stderr=slave)
    os.close(slave)
    assert shown.communicate(timeout=60)[0] == out
    reader.join()
    os.close(master)
    assert b"reading the data" in b"".join(seen)
    assert b"ledger: " in b"".join(seen)


# Of every kind of source: nothing but noisy values shows what is in it, and a failure costs once.
#
# What is wrong with a header, a schema or a name is seen before the charge; what is wrong with the
# records is one error after it, in fixed words, and the same command goes on free.


NAMES = ("age", "sex", "region", "income", "name")
ROWS = [(str(k % 6), "FM"[k % 2], "1", "15", f"p{k}") for k in range(7)]
SECRET = (CANARY,) * 5
HOSTILE = [
    ("1", "F", "1", "5", text)
    for text in ('"', "\n", ";", "'", "\ufeff", "a\r\nb", "\0", "é€", "x" * 3000, '"";\n"', CANARY)
]
CONTENTS = {
    "nobody": [],
    "canaries": [SECRET] * 5,
    "hostile": HOSTILE,
    "many": [*ROWS, *HOSTILE] * 400,
}
QUOTED = FileFormat(delimiter=";", newlines_in_quotes=True)
FORMATS = {
    "semicolons, line feeds in quotes": ("data.csv", QUOTED, "utf-8"),
    "UTF-16, tabs": ("data.csv", FileFormat(delimiter="\t", encoding="utf-16"), "utf-16"),
    "cp1252, pipes, packed": (
        "data.csv.gz",
        FileFormat(delimiter="|", encoding="cp1252", quote="'", decimal=","),
        "cp1252",
    ),
    "zst": ("data.csv.zst", FileFormat(), "utf-8"),
    **{name: (name, FileFormat(), "") for name in TYPED},
}
READ_LIKE_OTHERS = ("UTF-16, tabs", "cp1252, pipes, packed", "zst", "rows.arrow", "stream.arrow")
READ_LIKE_OTHERS += ("rows.adbc",)
LOCATIONS = {
    "rows.db": "sqlite:rows.db?table=persons",
    "rows.duckdb": "duckdb:rows.duckdb?table=persons",
    "rows.adbc": f"adbc:{ADBC}?table=persons",
}


def spec_text(file):
    shown = "tab" if file.delimiter == "\t" else f'"{file.delimiter}"'
    section = (
        f"file: {{delimiter: {shown}, encoding: {file.encoding}, decimal: '{file.decimal}', "
        f"quote: {'none' if not file.quote else repr(file.quote)}, "
        f"newlines_in_quotes: {str(file.newlines_in_quotes).lower()}}}\n"
    )
    return SPEC.replace("domain:\n", section + "domain:\n", 1)


def content_of(form, rows, folder):
    """Return the bytes of a source of some rows."""
    name, file, encoding = FORMATS[form]
    if form in TYPED:
        columns = list(zip(*rows, strict=True)) or [()] * len(NAMES)
        table = pa.table(
            {own: pa.array(column, pa.string()) for own, column in zip(NAMES, columns, strict=True)}
        )
        folder.mkdir(exist_ok=True)
        TYPED[form](table, folder / form)
        os.environ[ADBC] = f"duckdb:{form}"  # in the town
        return (folder / form).read_bytes()
    text = written(rows, file, names=NAMES)
    suffix = Path(name).suffix
    return UNPACKED.get(suffix, bytes)(text.encode(encoding, "replace"))


def location_of(form):
    return LOCATIONS.get(form, FORMATS[form][0])


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Return the function from a form to the folder where its town is planned, once."""
    folders = {}

    def of(form):
        if form not in folders:
            folders[form] = tmp_path_factory.mktemp("planned") / "town"
            plan_town(folders[form], spec_text(FORMATS[form][1]))
        return folders[form]

    return of


@pytest.fixture
def town_of(planned, tmp_path, monkeypatch):
    """Return the function that makes the town of a form the working directory, as planned."""
    folder = tmp_path / "town"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))

    def of(form):
        renew(folder, planned(form))
        (folder / "tmp").mkdir()
        monkeypatch.chdir(folder)
        return folder

    return of


@pytest.mark.nightly
@pytest.mark.parametrize("form", cases(FORMATS, slow=READ_LIKE_OTHERS))
def test_whatever_the_data_in_any_source_everything_observable_is_the_same(
    form, town_of, tmp_path, monkeypatch, record_property
):
    for place, fixed in FIXED.items():
        monkeypatch.setattr(place, fixed)
    steps = (
        Step(f"release {location_of(form)} --epsilon 1 --json"),
        Step(f"release {location_of(form)} --epsilon 1"),
        Step("error-report"),
        Step("ledger export"),
    )

    def seen(rows):
        folder, content = town_of(form), content_of(form, rows, tmp_path / "made")
        return observe(folder, content, steps, name=FORMATS[form][0])

    seen(ROWS)  # what is imported or remembered once happens here
    plain = seen(ROWS)
    assert [own.code for own in plain.done] == [0] * len(steps)
    for name, rows in CONTENTS.items():
        other = seen(rows)
        assert not other.difference(plain), name
        assert not other.holding_the_canary(), name
    record_property("files", len(CONTENTS))


@pytest.mark.nightly
@pytest.mark.parametrize("form", cases(FORMATS))
def test_the_same_rows_are_the_same_release_wherever_they_lie(form, town_of, tmp_path, monkeypatch):
    monkeypatch.setattr("dpquery.measurement.curator.draw", lambda exact, **_: exact)
    rows = [*ROWS, ("9", "x", "2", "45.5", "q"), ("1", "F", "", "0", ""), ("", "M", "7", "5", "r")]
    if FORMATS[form][1].decimal == ",":
        rows = [tuple(text.replace(".", ",") for text in row) for row in rows]
    town_of(form)
    Path(FORMATS[form][0]).write_bytes(content_of(form, rows, tmp_path / "made"))
    ok("release", location_of(form), "--epsilon", "1")
    values = Path("release", "measurements.parquet").read_bytes()
    plain = [tuple(text.replace(",", ".") for text in row) for row in rows]
    town_of("zst")
    Path("plain.csv").write_text(written(plain, FileFormat(), names=NAMES))
    ok("release", "plain.csv", "--epsilon", "1")
    one, other = (
        pq.read_table(pa.BufferReader(own)).column("value")
        for own in (values, Path("release", "measurements.parquet").read_bytes())
    )
    assert one == other


def failed(location, *, charged):
    done = run("release", *location.split(" "), "--epsilon", "1")
    assert (done.code, done.out) == (DataError.exit_code, "")
    assert len(done.err.splitlines()) == 1
    assert CANARY not in done.err
    assert spent() == ("1" if charged else "0")
    assert kinds() == ["register", *["reserve"] * charged]
    assert not Path("release").exists()
    return done.err


def test_quotes_that_do_not_pair_cost_once_and_go_on_free(town_of, tmp_path):
    form = "semicolons, line feeds in quotes"
    town_of(form)
    content = content_of(form, [*ROWS, SECRET], tmp_path / "made")
    Path("data.csv").write_bytes(content + f'1;F;1;5;a"{CANARY}\n'.encode())
    message = failed("data.csv", charged=True)
    assert message.startswith("dpquery: data.csv does not pair its quotes")
    Path("data.csv").write_bytes(content)
    ok("release", "data.csv", "--epsilon", "1")
    assert spent() == "1"


def test_all_headers_are_checked_before_the_charge(town_of):
    town_of("zst")
    for name in ("a.csv", "b.csv", "c.csv"):
        Path(name).write_bytes(CSV)
    Path("c.csv").write_bytes(CSV.replace(b"region", CANARY.encode()))
    assert "c.csv: the header lacks" in failed("a.csv b.csv c.csv", charged=False)
    assert "named twice" in failed("a.csv b.csv ./a.csv", charged=False)
    Path("data").mkdir()
    assert "without files" in failed("data", charged=False)
    assert "matches no file" in failed("data/*.csv", charged=False)
    Path("semicolons.csv").write_bytes(CSV.replace(b",", b";"))
    assert 'set `file: {delimiter: ";"}`' in failed("semicolons.csv", charged=False)
    shutil.move("a.csv", "data/a.csv")
    ok("release", "b.csv", "data/", "--epsilon", "1")
    assert spent() == "1"


def test_a_release_in_python_takes_one_location_or_several(town_of):
    from dpquery import release

    town_of("zst")
    Path("a.csv").write_bytes(CSV)
    Path("b.csv").write_bytes(CSV)
    release(["a.csv", Path("b.csv")], epsilon=1)
    assert spent() == "1"
    assert release("a.csv", epsilon=1, replace=True).free
