"""All that speaks for dpquery in one table: `make trust`, or `python tests/house/trust.py --quick`.

Runs `dpquery audit` and the test files that guard the privacy promise, slow tests too, a process a
core, the longest first. The tests say themselves how much they tried, by `record_property` of
pytest; the tallies are summed here. The exit code is 1 if anything failed, and what failed is named
with the command that runs it alone.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
PATTERNS = (
    "test_noise.py",
    "test_bulk_noise.py",
    "test_rounded_noise.py",
    "test_audit*.py",
    "test_mistakes.py",
    "test_non_interference*.py",
    "test_stability.py",
    "test_bad_input.py",
    "test_hostile_plans.py",
    "test_fuzz_*.py",
    "test_ledger*.py",
    "test_release_protocol.py",
    "test_crashes*.py",
    "test_adaptive*.py",
    "test_selection.py",
    "test_accounting*.py",
    "test_threats.py",
    "test_supply.py",
    "test_solution_check.py",
)
AUDIT = "dpquery audit"
# What must be there, with the CPU seconds that it last took, to begin with the longest.
SECONDS = {
    "test_mistakes.py": 1757,
    "test_fuzz_answers.py": 362,
    "test_audit.py": 355,
    "test_stability.py": 325,
    AUDIT: 312,
    "test_non_interference.py": 244,
    "test_crashes.py": 148,
    "test_fuzz_plan.py": 146,
    "test_fuzz_csv.py": 107,
    "test_ledger_races.py": 101,
    "test_audit_rap.py": 100,
    "test_non_interference_processes.py": 98,
    "test_fuzz_release.py": 87,
    "test_non_interference_sources.py": 77,
    "test_release_protocol.py": 77,
    "test_fuzz_spec_bytes.py": 55,
    "test_fuzz_sensitivity.py": 45,
    "test_fuzz_ledger_damage.py": 44,
    "test_bulk_noise.py": 41,
    "test_crashes_rap.py": 36,
    "test_threats.py": 36,
    "test_fuzz_spec.py": 31,
    "test_fuzz_ledger_histories.py": 29,
    "test_ledger_storage.py": 24,
    "test_fuzz_arguments.py": 21,
    "test_bad_input.py": 19,
    "test_non_interference_failures.py": 19,
    "test_selection.py": 18,
    "test_accounting_others.py": 17,
    "test_ledger_parent_commands.py": 16,
    "test_rounded_noise.py": 16,
    "test_supply.py": 16,
    "test_audit_readers.py": 14,
    "test_audit_surroundings.py": 14,
    "test_ledger_witness.py": 14,
    "test_noise.py": 13,
    "test_solution_check.py": 13,
    "test_hostile_plans.py": 11,
    "test_audit_count.py": 10,
    "test_audit_statistics.py": 10,
    "test_ledger_status.py": 8,
    "test_adaptive_rounds.py": 7,
    "test_ledger.py": 7,
    "test_ledger_place.py": 7,
    "test_accounting.py": 6,
    "test_adaptive_resumed.py": 6,
    "test_ledger_tamper.py": 6,
    "test_adaptive_costs.py": 5,
    "test_ledger_parent.py": 4,
    "test_ledger_parent_history.py": 4,
    "test_ledger_parent_races.py": 4,
}
# Servers of forked processes outlive whoever started them by a moment. Their CPU seconds count too.
HEIR = """\
import ctypes, os, subprocess, sys, time
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become children of this one
code, end = subprocess.call(sys.argv[1:]), time.monotonic() + 10
while time.monotonic() < end:
    try:
        if os.waitpid(-1, os.WNOHANG) == (0, 0):
            time.sleep(0.05)
    except ChildProcessError:
        break
sys.exit(code != 0)
"""
TALLIES = ("draws", "neighbours", "bad inputs", "crashes", "races", "conversions")
# Many an input that is tried is good: what matters is that none is read as another.
COLUMNS = ("section", "checks", *(tally.removeprefix("bad ") for tally in TALLIES))
COLUMNS += ("mutants", "CPU s", "result")
LIMIT = 60 * 60
"""Seconds that a section may take; one that takes longer hangs."""


@dataclass(frozen=True)
class Failure:
    """What failed, the command that runs it alone, and the first of what it said."""

    name: str
    command: str
    said: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a section of the table found: `checks` made, `skipped` ones not counted among them."""

    section: str
    checks: int
    skipped: int
    tallies: Counter[str]
    seconds: float
    failures: tuple[Failure, ...]


def sections() -> list[str]:
    """Return the audit and the test files: those that must be there, and newer ones."""
    files = {path.name for pattern in PATTERNS for path in (ROOT / "tests").rglob(pattern)}
    return [AUDIT, *sorted(files | set(SECONDS) - {AUDIT})]


def longest_first(names: Iterable[str]) -> list[str]:
    """Return the names in the order that keeps every core busy to the end."""
    return sorted(names, key=lambda name: -SECONDS.get(name, 10**6))


def run(section: str, *, quick: bool) -> Outcome:
    """Run one section in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        if section == AUDIT:
            command = [sys.executable, "-m", "dpquery", "audit", "--json"]
            code, seconds = _finished(command + ["--quick"] * quick, report)
            said = _errors_file(report).read_text(encoding="utf-8", errors="replace")
            printed = report.read_text(encoding="utf-8")
            return of_audit(printed, said=said, code=code, seconds=seconds)
        place = next((ROOT / "tests").rglob(section), f"tests/{section}")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        # The newer layout of the report has no place for what tests record.
        command += [f"--junit-xml={report}", "-o", "junit_family=xunit1", str(place)]
        command += ["-m", ""] * (not quick)
        code, seconds = _finished(command, Path(folder) / "printed")
        content = report.read_text(encoding="utf-8") if report.exists() else "<testsuites/>"
        return of_tests(section, content, code=code, seconds=seconds)


def _errors_file(printed: Path) -> Path:
    """Return the file beside the output of a command that holds what it said of errors."""
    return printed.with_name(f"{printed.name}.err")


def _finished(command: Sequence[str], printed: Path) -> tuple[int | None, float]:
    """Run a command from the root, its output into files; return exit code and CPU seconds.

    The code is None where it took longer than LIMIT and was killed with all that it started.
    """
    threads, heir = {"OPENBLAS_NUM_THREADS": "1"}, [sys.executable, "-c", HEIR]
    late = threading.Event()
    with printed.open("wb") as file, _errors_file(printed).open("wb") as errors:
        process = subprocess.Popen(
            [*heir, *command],
            cwd=ROOT,
            env=os.environ | threads,
            stdout=file,
            stderr=errors,
            start_new_session=True,
        )

        def kill() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(LIMIT, kill)
        timer.start()
        _, status, used = os.wait4(process.pid, 0)  # with all processes that it waited for
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return None if late.is_set() else process.returncode, used.ru_utime + used.ru_stime


def _ending(code: int | None) -> str:
    late = f"did not end in {LIMIT // 60} minutes and was stopped"
    return late if code is None else f"ended with exit code {code}"


def of_audit(printed: str, *, said: str = "", code: int | None, seconds: float) -> Outcome:
    """Read the findings of the audit; the same part failing in several places is run once."""
    findings = json.loads(printed)["findings"] if printed.startswith("{") else []
    tallies = Counter({name: sum(finding[name] for finding in findings) for name in TALLIES[:2]})
    failures = [
        Failure(f"{finding['subject']}: {finding['claim']}", f"{AUDIT} --part {finding['part']}")
        for finding in findings
        if not finding["passed"]
    ]
    if code is None or ((code or not findings) and not failures):
        failures.append(Failure(f"{_ending(code)}\n{said[-2000:]}".rstrip(), AUDIT))
    return Outcome(AUDIT, len(findings), 0, tallies, seconds, tuple(failures))


def of_tests(section: str, report: str, *, code: int | None, seconds: float) -> Outcome:
    """Read pytest's junit report of one test file."""
    tallies: Counter[str] = Counter()
    failures, skipped = [], 0
    cases = list(ElementTree.fromstring(report).iter("testcase"))  # noqa: S314 pytest wrote it
    for case in cases:
        skipped += case.find("skipped") is not None
        for recorded in case.iter("property"):
            tallies[recorded.get("name", "")] += int(float(recorded.get("value", "0")))
        for failed in (*case.iter("failure"), *case.iter("error")):
            name, said = case.get("name", ""), failed.get("message", "")[:1000]
            failures.append(Failure(name, f"pytest -m '' \"tests/{section}::{name}\"", said))
    if code is None or (code and not failures):
        failures.append(Failure(_ending(code), f"pytest -m '' tests/{section}"))
    return Outcome(section, len(cases) - skipped, skipped, tallies, seconds, tuple(failures))


def total(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the last line."""
    return Outcome(
        "total",
        sum(outcome.checks for outcome in outcomes),
        sum(outcome.skipped for outcome in outcomes),
        sum((outcome.tallies for outcome in outcomes), Counter()),
        sum(outcome.seconds for outcome in outcomes),
        tuple(failure for outcome in outcomes for failure in outcome.failures),
    )


def row(outcome: Outcome) -> tuple[str, ...]:
    """Return the cells of a line, an empty one where nothing of the kind was tried."""
    tallies = outcome.tallies
    caught = f"{tallies['mutants caught']}/{tallies['mutants']}" if tallies["mutants"] else ""
    result = f"{len(outcome.failures)} FAILED" if outcome.failures else "passed"
    if outcome.skipped:
        result += f", {outcome.skipped} skipped"
    counts = [f"{tallies[name]:,}" if tallies[name] else "" for name in TALLIES]
    return outcome.section, f"{outcome.checks:,}", *counts, caught, f"{outcome.seconds:.0f}", result


def table(outcomes: Sequence[Outcome]) -> str:
    """Return all lines, numbers flush right."""
    rows = [COLUMNS, *(row(outcome) for outcome in (*outcomes, total(outcomes)))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    edges = (0, len(COLUMNS) - 1)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in edges else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in rows
    )


def verdict(outcomes: Sequence[Outcome]) -> int:
    """Print the table and what failed; return the exit code."""
    print(table(outcomes))
    failures = total(outcomes).failures
    for failure in failures:
        print(f"\nFAILED: {failure.name}\n  run it alone: {failure.command}")
        if failure.said:
            print(indent(failure.said, "  | "))
    return 1 if failures else 0


def trust(names: Sequence[str], runs: Callable[[str], Outcome]) -> int:
    """Run the sections, a process a core, and print what they found in the order of `names`."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        running = {pool.submit(runs, name): name for name in longest_first(names)}
        for number, done in enumerate(as_completed(running), 1):
            print(f"{number} of {len(names)}: {running[done]}", file=sys.stderr, flush=True)
        outcomes = {name: done.result() for done, name in running.items()}
    return verdict([outcomes[name] for name in names])


def main() -> None:
    """Run everything, or with --quick the tests of every day and the short audit."""
    parser = argparse.ArgumentParser(description="Run the audit and the tests that guard privacy.")
    parser.add_argument("--quick", action="store_true", help="the short audit and everyday tests")
    quick = parser.parse_args().quick
    sys.exit(trust(sections(), lambda name: run(name, quick=quick)))


if __name__ == "__main__":
    main()
