"""Nothing that can be seen depends on the data but through the noisy values.

With the noise source replaced by one that gives the same values whatever it is asked, a run over
any file at all must leave the same exit code, output and bytes in every file.
"""

import resource
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_support import CSV, contents, ok, renew, run

from dpquery.exceptions import DataError

CANARY = "CANARY_9f3a71"
HEADER = b"age,sex,region,income,name\n"
ROWS = (b"0,F,1,5,a\n", b"2,M,2,15,b\n", b"4,F,9,45.5,c\n", b"3,M,1,20.5,d\n")
SECRET = f"{CANARY},{CANARY},{CANARY},{CANARY},{CANARY}\n".encode()
COMMANDS = (
    ("release", "data.csv", "--epsilon", "1"),
    ("release", "data.csv", "--epsilon", "1", "--json"),
    ("release", "data.csv", "--epsilon", "0.5", "--release-number", "2", "--out", "second"),
    ("answer", "release", "workload.yaml", "--confidence", "0.9"),
    ("error-report",),
    ("error-report", "second", "--json"),
    ("error-report", "answers", "--html", "answers.html"),
    ("ledger", "status"),
    ("ledger", "history", "--json"),
    ("ledger", "export"),
    ("ledger", "verify", "--releases", "release", "--releases", "second"),
)


FILES = {
    "plain": HEADER + b"".join(ROWS),
    "empty": HEADER,
    "no line feed": HEADER.strip(),
    "one row": HEADER + ROWS[0],
    "shuffled": HEADER + b"".join(ROWS[i] for i in (2, 0, 3, 1)),
    "all outside": HEADER + b"99,X,,-1,x\n" * 50,
    "all missing": HEADER + b",,,,\n" * 50,
    "canaries": HEADER + SECRET * 7,
    "unicode": HEADER + "４,Ｆ,１,５,ж\n0,F,\u2028,5,🂡\n".encode() * 3,
    "not UTF-8": HEADER + b"\xff\xfe\xc3\x28,F,1,5,\x80\n" * 3,
    "NUL": HEADER + b"\0\n1,F,1,5,\0\n" + ROWS[0],
    "ragged": HEADER + b"1\n1,F,1,5,a,b,c\n,\n" + ROWS[0],
    "quotes": HEADER + b'1,"F,1,5,a\n"1","F","1","5","a"\n1,F"",1,5,a\n' + ROWS[1],
    "carriage returns": HEADER.replace(b"\n", b"\r\n") + ROWS[0].replace(b"\n", b"\r\n") + b"\r1\r",
    "no numbers": HEADER + b"nan,F,1,nan,a\n1e400,F,1,1e400,a\n-0,F,1,inf,a\n0x1,F,1,1_0,a\n",
    "a megabyte": HEADER + b"1,F,1,5," + b"x" * 2**20 + b"\n" + ROWS[2],
    "blank lines": HEADER + b"\n\n \n\t\n" + ROWS[3],
    "mark": b"\xef\xbb\xbf" + HEADER + b"\xef\xbb\xbf1,F,1,5,a\n",
    "many rows": HEADER + b"".join(ROWS) * 50_000,
    "columns moved": b"name,income,region,sex,age\n" + b"a,5,1,F,0\n" * 9,
    "one person": HEADER + ROWS[0] * 999,
    "nobody": HEADER + b"0,F,1,5,\n0,F,1,5, \n" * 9,
    "more columns": HEADER.strip() + f",{CANARY}\n".encode() + b"0,F,1,5,a,7\n" * 9,
}


def fixed_draw(answers, **_):
    """Noise that hides everything: values from their number alone."""
    return np.random.default_rng(answers.size).integers(-(2**40), 2**40, answers.size)


@pytest.fixture
def observe(request, town, monkeypatch):
    """Return the function from the bytes of a CSV file to all that can be observed afterwards."""
    monkeypatch.setattr("dpquery.measurement.curator.draw", fixed_draw)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(town / "tmp"))

    def observed(content, commands=COMMANDS, template="planned_town"):
        renew(town, request.getfixturevalue(template))
        (town / "tmp").mkdir()
        monkeypatch.chdir(town)
        Path("data.csv").write_bytes(content)
        done = [run(*command) for command in commands]
        Path("data.csv").unlink()
        return done, contents(".")

    return observed


@pytest.mark.parametrize(
    ("template", "commands"), [("planned_town", COMMANDS), ("planned_person_town", COMMANDS[:2])]
)
def test_whatever_the_data_everything_observable_is_the_same(observe, template, commands, capfd):
    expected_done, expected_files = observe(FILES["plain"], commands, template)
    assert [done.code for done in expected_done] == [0] * len(commands)
    assert "release/pairs.parquet" in expected_files
    for name, content in FILES.items():
        done, files = observe(content, commands, template)
        assert done == expected_done, name
        assert files.keys() == expected_files.keys(), name
        differing = [path for path in files if files[path] != expected_files[path]]
        assert not differing, name
        assert not holding_the_canary(done, files), name
        assert capfd.readouterr() == ("", ""), name  # what libraries write past Python


def test_the_test_above_sees_what_is_not_hidden(observe, monkeypatch):
    monkeypatch.setattr("dpquery.measurement.curator.draw", lambda answers, **_: answers)
    _, plain = observe(FILES["plain"])
    _, one_row = observe(FILES["one row"])
    assert plain["release/pairs.parquet"] != one_row["release/pairs.parquet"]


def holding_the_canary(done, files):
    """Outputs and files that hold the canary in any place."""
    written = [path for path, content in files.items() if CANARY.encode() in content]
    return written + [own for own in done if CANARY in own.out + own.err]


FAILURES = [
    (RuntimeError(CANARY), 70),
    (MemoryError(CANARY), 70),
    (KeyError(CANARY), 70),
    (RecursionError(CANARY), 70),
    (OSError(5, CANARY, CANARY), 70),
    (UnicodeDecodeError("utf-8", CANARY.encode(), 0, 1, CANARY), 70),
    (ExceptionGroup(CANARY, [ValueError(CANARY)]), 70),
]


@pytest.mark.parametrize(("failure", "code"), FAILURES, ids=lambda own: type(own).__name__)
@pytest.mark.parametrize("place", ["curator.tabulate", "curator.exact_answers", "curator.draw"])
def test_an_error_between_the_data_and_the_noise_says_nothing_of_the_data(
    town, monkeypatch, place, failure, code
):
    def fails(*_, **__):
        raise failure

    monkeypatch.setattr(f"dpquery.measurement.{place}", fails)
    done = run("release", "data.csv", "--epsilon", "1")
    assert done.code == code
    assert len(done.err.splitlines()) == 1
    assert "Traceback" not in done.err
    assert not holding_the_canary([done], contents(town))


@pytest.mark.parametrize("failure", [OSError(5, CANARY), ValueError(CANARY), MemoryError(CANARY)])
def test_a_file_that_cannot_be_read_to_its_end_is_named_without_its_content(
    town, monkeypatch, failure
):
    def fails(*_, **__):
        raise failure

    monkeypatch.setattr("dpquery.measurement.tabulate.columns", fails)
    done = run("release", "data.csv", "--epsilon", "1")
    assert done.code == DataError.exit_code
    assert "data.csv could not be read" in done.err
    assert not holding_the_canary([done], contents(town))


def test_a_header_that_lacks_a_column_is_not_shown(town):
    Path("data.csv").write_text(f"{CANARY},age,sex\n{CANARY},1,F\n")
    done = run("release", "data.csv", "--epsilon", "1")
    assert done.code == DataError.exit_code
    assert "region, income" in done.err
    assert not holding_the_canary([done], {})


def test_the_noise_source_never_tells_the_value_that_it_could_not_handle(town, monkeypatch):
    secret = 2**61 + 123_456_789

    def far_too_many(*_, **__):
        return np.array([secret])

    monkeypatch.setattr("dpquery.measurement.curator.exact_answers", far_too_many)
    done = run("release", "data.csv", "--epsilon", "1")
    assert done.code == 70
    assert str(secret) not in done.out + done.err


def test_a_crash_leaves_no_core_dump(town, monkeypatch):
    limits = []

    def crashes(*_, **__):
        limits.append(resource.getrlimit(resource.RLIMIT_CORE)[0])
        raise RuntimeError

    monkeypatch.setattr("dpquery.measurement.curator.tabulate", crashes)
    assert run("release", "data.csv", "--epsilon", "1").code == 70
    assert limits == [0]


def test_a_killed_run_leaves_no_trace_of_the_data(town, monkeypatch):
    Path("data.csv").write_bytes(FILES["canaries"])

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpquery.measurement.curator.draw", interrupted)
    done = run("release", "data.csv", "--epsilon", "1")
    assert done.code == 130
    Path("data.csv").unlink()
    assert not holding_the_canary([done], contents(town))


def test_every_combination_asked_for_has_a_row_whoever_is_in_it(town):
    Path("data.csv").write_bytes(CSV.splitlines(keepends=True)[0])
    ok("release", "data.csv", "--epsilon", "1")
    rows = {path.stem: pq.read_table(path).num_rows for path in Path("release").glob("*.parquet")}
    assert rows.pop("measurements") >= 15
    assert rows == {"age_by_sex": 15, "pairs": 6 + 6 + 9, "ages": 15, "errors": 3}


def test_a_published_file_holds_no_metadata_but_its_own(town):
    ok("release", "data.csv", "--epsilon", "1")
    for path in Path("release").glob("*.parquet"):
        assert set(pq.read_metadata(path).metadata) == {b"dpquery", b"ARROW:schema"}, path
