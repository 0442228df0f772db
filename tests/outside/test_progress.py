"""Progress: one reporter for a context, whoever has a screen."""

import io
import re
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from data import UNPACKED, single, spec_of, write_arrow, write_parquet
from town import CSV, GAUSSIAN_SPEC

import dpquery as commands
from dpquery.cli.screen import shown_progress
from dpquery.data_check.records import FileRecords
from dpquery.exceptions import OutOfTimeError
from dpquery.measurement.counting import tabulate
from dpquery.measurement.counting.locations import sources_of
from dpquery.progress import (
    LineWithShare,
    Work,
    current_reporter,
    report_progress,
    reporting,
    stage,
)
from dpquery.spec.columns import Integers


def test_the_innermost_reporter_alone_is_told_and_the_outer_one_comes_back():
    outer, inner = [], []
    report_progress("to nobody")
    with reporting(outer.append):
        report_progress("one")
        with reporting(inner.append):
            report_progress("two", 0.5)
        with reporting(None):
            report_progress("to nobody")
        report_progress("three", 1.0)
    report_progress("to nobody")
    assert (outer, inner) == (["one", "three: 100%"], ["two: 50%"])


def test_a_reporter_that_raises_ends_the_work_and_is_gone():
    def stop(line):
        raise OutOfTimeError(line)

    before = current_reporter()
    with pytest.raises(OutOfTimeError, match="enough"), reporting(stop):
        report_progress("enough")
    assert current_reporter() is before


def test_a_reporter_can_add_to_the_lines_of_another():
    lines = []
    with reporting(lines.append):
        reporter = current_reporter()
        with reporting(lambda line: reporter(f"gaussian: {line}")):
            report_progress("OPT_0")
    assert lines == ["gaussian: OPT_0"]


def test_another_thread_is_not_heard():
    lines = []
    with reporting(lines.append):
        thread = threading.Thread(target=report_progress, args=("aside",))
        thread.start()
        thread.join()
    assert lines == []


def test_a_process_of_its_own_reports_to_nobody(capfd):
    with (
        reporting(print),
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as beside,
    ):
        beside.submit(report_progress, "aside").result()
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------- stages of a longer work


def test_shares_of_stages_are_of_the_whole_and_never_fall():
    lines = []
    with reporting(lines.append), stage("", 0.5, 1.0):
        with stage("first", 0.0, 0.4):
            for share in (0.5, 0.25, 7.0):
                report_progress("reading", share)
        with stage("second", 0.4, 1.0):
            report_progress("writing")
    assert [line.done for line in lines] == pytest.approx([0.5, 0.6, 0.6, 0.7, 0.7, 0.7])
    assert lines[1] == "first: reading: 60%"
    assert lines[-1] == "second: writing: 70%"
    assert {line.work for line in lines} == {"the whole command"}


def progress_of(work):
    """The lines that a command reports, and what it returns."""
    lines = []
    with reporting(lines.append):
        done = work()
    return lines, done


@pytest.fixture
def lines_of_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("workload.yaml").write_text(GAUSSIAN_SPEC)

    def run_all(rows, folder):
        Path("data.csv").write_bytes(CSV + rows)
        number = {"release_number": int(folder[-1])}
        return {
            "plan": progress_of(lambda: commands.plan("workload.yaml", time_limit=2))[0],
            "release": progress_of(
                lambda: commands.release("data.csv", epsilon="0.5", out=folder, **number)
            )[0],
            "answer": progress_of(
                lambda: commands.answer(folder, "workload.yaml", out=f"{folder}a")
            )[0],
            "package": progress_of(
                lambda: commands.package(folder, out=f"{folder}p", also=["csv"])
            )[0],
        }

    return run_all


@pytest.mark.nightly
def test_commands_say_in_words_what_they_do_with_shares_and_nothing_of_the_records(
    lines_of_commands,
):
    first = lines_of_commands(b"", "r1")
    for command, lines in first.items():
        shares = [line.done for line in lines if isinstance(line, LineWithShare)]
        assert shares == sorted(shares), command
        assert len(set(shares)) >= 3, command
        assert 0 <= shares[0] <= 0.2, command
        assert 0.8 <= shares[-1] <= 1, command
    assert any("best strategy with Gaussian noise: OPT_M" in line for line in first["plan"])
    assert any("best strategy with Laplace noise: OPT_M" in line for line in first["plan"])
    assert {line.partition(":")[0] for line in first["release"]} >= {
        "checking the plan",
        "reading the data",
        "drawing noise",
        "writing answers",
    }
    more = lines_of_commands(b"1,F,1,5\n" * 700, "r2")
    for command in ("release", "answer"):
        assert first[command] == more[command]
        assert [line.done for line in first[command]] == [line.done for line in more[command]]


# ------------------------------------------------------------------------------ shares never fall


def test_the_share_of_a_work_never_falls_and_is_one_at_most():
    lines = []
    with reporting(lines.append):
        work = Work("reading")
        for share in (0.0, 0.5, 0.25, 0.75, 2.0, 0.1):
            work.report(share)
        Work("reading").report(0.125)
    assert [line.done for line in lines] == [0.0, 0.5, 0.5, 0.75, 1.0, 1.0, 0.125]
    assert lines[3] == "reading: 75%"
    assert all(isinstance(line, LineWithShare) and line.words == "reading" for line in lines)


@pytest.fixture
def parts(tmp_path):
    """Persons in files of many kinds and sizes, one of them without records."""
    ids = np.random.default_rng(3).permutation(6000) // 2
    table = pa.table({"age": ids % 10, "id": ids})
    body = b"age,id\n" + b"".join(b"%d,%d\n" % (own % 10, own) for own in ids)
    (tmp_path / "a.csv").write_bytes(body)
    (tmp_path / "b.csv.gz").write_bytes(UNPACKED[".gz"](body))
    (tmp_path / "c.csv").write_bytes(b"age,id\n")
    write_parquet(table, tmp_path / "d.parquet")
    write_arrow(table.slice(0, 300), tmp_path / "e.arrow")
    return tmp_path


def shares_of(work):
    lines = []
    with reporting(lines.append):
        work()
    return [line.done for line in lines]


@pytest.mark.parametrize("limit", [2**30, 2**16])
def test_the_share_that_is_read_never_falls_whatever_the_files_and_passes(
    parts, monkeypatch, limit
):
    spec = spec_of(single("age", Integers(0, 9)), person="id", max_rows=2)
    classes = [np.arange(spec.domain.shape[0])]
    tally = tabulate.RecordTally(spec, [(0,)], classes, memory=limit)
    passes = []
    monkeypatch.setattr(tally, "end_pass", lambda end=tally.end_pass: passes.append(1) or end())
    shares = shares_of(lambda: tabulate._tabulate(parts, tally, chunk_bytes=4096))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(set(shares)) > 10
    assert (len(passes) > 1) == (limit < 2**30)


def test_the_share_that_a_check_has_read_never_falls(parts, monkeypatch):
    monkeypatch.setattr("dpquery.data_check.records._PIECE", 4096)
    spec = spec_of(single("age", Integers(0, 9)), person="id")
    records = FileRecords(sources_of(parts, spec.file), spec)
    shares = shares_of(lambda: list(records.chunks()))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 10


def test_a_terminal_shows_a_bar_and_the_time_left(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with shown_progress():
        report_progress("[red]compiling")
        work = Work("reading the data")
        for share in (0.25, 0.5):
            work.report(share)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stderr.getvalue())
    assert re.search(r"reading the data: 50% ━+╺?━+ (0:00:0\d|-:--:--)", text)
