"""The table of `make trust` adds up, begins with the longest, and fails when anything fails."""

import sys
from collections import Counter

import pytest
import trust
from trust import AUDIT, Outcome

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" tests="4">
<testcase classname="tests.test_x" name="test_a[1-x]" time="0.1"><properties>
<property name="draws" value="1000" /><property name="mutants" value="3" />
<property name="mutants caught" value="2" /></properties></testcase>
<testcase classname="tests.test_x" name="test_b" time="0.1"><properties>
<property name="draws" value="24" /><property name="crashes" value="5" /></properties></testcase>
<testcase classname="tests.test_x" name="test_c" time="0"><skipped message="no file" /></testcase>
{more}</testsuite></testsuites>"""
BROKEN = '<testcase classname="tests.test_x" name="test_d[y]"><failure message="no" /></testcase>'
FINDINGS = """{"passed": false, "findings": [
{"part": "sampler", "subject": "Laplace 2", "claim": "exact", "passed": true, "evidence": "p",
 "draws": 70, "neighbours": 0},
{"part": "neighbours", "subject": "Haar", "claim": "epsilon 1", "passed": %s, "evidence": "q",
 "draws": 30, "neighbours": 2}]}"""


def outcome(name, *, failures=()):
    return Outcome(name, 1, 0, Counter(), 1.0, failures)


def test_tallies_are_summed_over_all_tests_of_a_file():
    outcome = trust.of_tests("test_x.py", REPORT.format(more=""), code=0, seconds=12.3)
    assert outcome.tallies == {"draws": 1024, "crashes": 5, "mutants": 3, "mutants caught": 2}
    assert (outcome.checks, outcome.skipped, outcome.failures) == (2, 1, ())
    cells = dict(zip(trust.COLUMNS, trust.row(outcome), strict=True))
    assert cells["draws"] == "1,024"
    assert cells["mutants"] == "2/3"
    assert cells["races"] == ""
    assert cells["result"] == "passed, 1 skipped"


def test_findings_of_the_audit_are_counted_and_a_failed_one_is_named_with_its_part():
    good = trust.of_audit(FINDINGS % "true", code=0, seconds=1)
    assert (good.checks, good.failures) == (2, ())
    assert good.tallies == {"draws": 100, "neighbours": 2}
    (failure,) = trust.of_audit(FINDINGS % "false", code=1, seconds=1).failures
    assert failure.name == "Haar: epsilon 1"
    assert failure.command == "dpquery audit --part neighbours"


def test_the_last_line_is_the_sum_of_all_others():
    outcome = trust.of_tests("test_x.py", REPORT.format(more=""), code=0, seconds=2)
    both = trust.total([outcome, outcome, trust.of_audit(FINDINGS % "true", code=0, seconds=3)])
    assert both.tallies["draws"] == 2 * 1024 + 100
    assert (both.checks, both.skipped, both.seconds) == (6, 2, 7)
    assert "total" in trust.table([outcome]).splitlines()[-1]


def test_a_failing_section_ends_in_exit_code_1_and_says_how_to_run_it_alone(capsys):
    failed = trust.of_tests("test_x.py", REPORT.format(more=BROKEN), code=1, seconds=1)
    assert trust.trust(["a", "x"], {"a": outcome("a"), "x": failed}.__getitem__) == 1
    printed = capsys.readouterr().out
    assert "1 FAILED" in printed
    assert "\n  | no\n" in printed
    assert "pytest -m '' \"tests/test_x.py::test_d[y]\"" in printed
    assert trust.trust(["a"], outcome) == 0


def test_a_section_that_ends_before_its_first_check_has_failed():
    for report in ("<testsuites/>", REPORT.format(more="")):
        assert trust.of_tests("test_x.py", report, code=2, seconds=0).failures
    for printed in ("", '{"findings": []}', "Traceback"):
        assert trust.of_audit(printed, code=0, seconds=0).failures


def test_the_longest_begin_and_what_was_never_measured_before_them(monkeypatch):
    monkeypatch.setattr(trust, "SECONDS", {"short": 1, "long": 90, "middle": 20})
    assert trust.longest_first(["short", "new", "middle", "long"]) == [
        "new",
        "long",
        "middle",
        "short",
    ]


@pytest.mark.nightly
def test_newer_files_are_run_too_and_what_is_missing_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "ROOT", tmp_path)
    monkeypatch.setattr(trust, "SECONDS", {AUDIT: 9, "test_ledger.py": 5})
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_fuzz_new.py").write_text("def test_a():\n    pass\n")
    (tmp_path / "tests" / "test_other.py").touch()
    assert trust.sections() == [AUDIT, "test_fuzz_new.py", "test_ledger.py"]
    assert not trust.run("test_fuzz_new.py", quick=True).failures
    assert trust.run("test_ledger.py", quick=True).failures


def test_every_section_is_there():
    assert [name for name in trust.SECONDS if not [*(trust.ROOT / "tests").rglob(name)]] == [AUDIT]


@pytest.mark.nightly
def test_a_section_is_run_in_a_process_of_its_own_and_its_cpu_seconds_are_measured(
    tmp_path, monkeypatch
):
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "tests" / "test_y.py").write_text(
        "def test_good(record_property):\n    record_property('races', 7)\n"
        "def test_bad():\n    assert 0\n"
    )
    monkeypatch.setattr(trust, "ROOT", tmp_path)
    completed = trust.run("test_y.py", quick=True)
    assert (completed.checks, completed.tallies["races"], completed.failures[0].name) == (
        2,
        7,
        "test_bad",
    )
    assert completed.seconds > 0


def test_a_section_that_hangs_is_stopped_with_all_it_started_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "LIMIT", 2)
    monkeypatch.setattr(trust, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_y.py").write_text(
        "import subprocess, sys\ndef test_slow():\n"
        "    subprocess.call([sys.executable, '-c', 'import time; time.sleep(500)'])\n"
    )
    (failure,) = trust.run("test_y.py", quick=True).failures
    assert failure.name == "did not end in 0 minutes and was stopped"


def test_what_the_audit_said_before_it_crashed_is_shown(tmp_path, monkeypatch):
    (tmp_path / "dpquery").mkdir()
    (tmp_path / "dpquery" / "__main__.py").write_text("raise ValueError('out of cheese')\n")
    monkeypatch.setattr(trust, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (failure,) = trust.run(AUDIT, quick=True).failures
    assert failure.name.startswith("ended with exit code 1\nTraceback")
    assert failure.name.endswith("ValueError: out of cheese")


BUSY = """
import subprocess, sys, time
code = "import time\\nwhile time.process_time() < 1: pass"
subprocess.Popen([sys.executable, "-c", code])
sys.exit(3)
"""


def test_cpu_seconds_of_processes_that_nobody_waited_for_are_counted(tmp_path):
    code, seconds = trust._finished([sys.executable, "-c", BUSY], tmp_path / "printed")
    assert code != 0
    assert seconds > 1
