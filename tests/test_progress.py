"""Progress: one reporter for a context, whoever has a screen."""

import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from dpquery.exceptions import OutOfTimeError
from dpquery.progress import current_reporter, report_progress, reporting


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
