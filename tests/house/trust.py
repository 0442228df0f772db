"""All that speaks for dpquery in one table: `make trust`, or `python tests/house/trust.py --quick`.

Runs `dpquery audit` and the test files that guard the privacy promise, slow tests too. The tests
say themselves how much they tried, by `record_property` of pytest; the tallies are summed here.
The exit code is 1 if anything failed, and what failed is named with the command that runs it alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
GUARDING = "accounting* adaptive* audit* bad_input bulk_noise crashes* funds fuzz_* ledger*"
GUARDING += " mistakes noise non_interference* once refusals release_protocol rounds_commands"
GUARDING += " selection stability supply threats"
AUDIT = "dpquery audit"
TALLIES = ("draws", "neighbours", "bad inputs", "crashes", "races", "conversions")
# Many an input that is tried is good: what matters is that none is read as another.
COLUMNS = ("section", "checks", *(tally.removeprefix("bad ") for tally in TALLIES))
COLUMNS += ("mistakes", "s", "result")
LIMIT = 3 * 60 * 60
"""Seconds that all of it may take; what takes longer hangs."""


@dataclass(frozen=True)
class Failure:
    """What failed, the command that runs it alone, and the first of what it said."""

    name: str
    command: str
    said: str = ""


@dataclass
class Outcome:
    """What a section of the table found: `checks` made, `skipped` ones not counted among them."""

    section: str
    checks: int = 0
    skipped: int = 0
    tallies: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Count what another one found too."""
        self.checks += other.checks
        self.skipped += other.skipped
        self.tallies += other.tallies
        self.seconds += other.seconds
        self.failures += other.failures


def files() -> list[Path]:
    """Return the files of tests; what has a name here must be there."""
    found = []
    for name in GUARDING.split():
        of_name = sorted((ROOT / "tests").rglob(f"test_{name}.py"))
        if not of_name:
            sys.exit(f"no file of tests is called test_{name}.py")
        found += of_name
    return found


def audited(*, quick: bool) -> Outcome:
    """Run the audit and read its findings."""
    started = time.monotonic()
    command = [sys.executable, "-m", "dpquery", "audit", "--json", *["--quick"] * quick]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    findings = json.loads(done.stdout)["findings"] if done.stdout.startswith("{") else []
    tallies = Counter({name: sum(finding[name] for finding in findings) for name in TALLIES[:2]})
    failures = [
        Failure(f"{finding['subject']}: {finding['claim']}", f"{AUDIT} --part {finding['part']}")
        for finding in findings
        if not finding["passed"]
    ]
    if (done.returncode or not findings) and not failures:
        failures.append(Failure(f"ended with {done.returncode}", AUDIT, done.stderr[-2000:]))
    seconds = time.monotonic() - started
    return Outcome(AUDIT, len(findings), 0, tallies, seconds, failures)


def tested(paths: Sequence[Path], *, quick: bool) -> list[Outcome]:
    """Run the files of tests on all cores, and read pytest's report of each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        # The newer layout of the report has no place for what tests record.
        command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--maxprocesses", "4"]
        command += [f"--junit-xml={report}", "-o", "junit_family=xunit1", "--dist", "worksteal"]
        command += [*map(str, paths), *["-m", ""] * (not quick)]
        code = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, timeout=LIMIT).returncode
        root = ElementTree.parse(report).getroot()  # noqa: S314 pytest wrote it
    outcomes = defaultdict(Outcome, {path.name: Outcome(path.name) for path in paths})
    for case in root.iter("testcase"):
        file = Path(case.get("file", "?"))
        outcomes[file.name].add(_of_case(case, file))
    if code and not any(outcome.failures for outcome in outcomes.values()):
        outcomes["pytest"] = Outcome("pytest", failures=[Failure(f"ended with {code}", "pytest")])
    return [*outcomes.values()]


def _of_case(case: ElementTree.Element, file: Path) -> Outcome:
    tallies: Counter[str] = Counter()
    for recorded in case.iter("property"):
        tallies[recorded.get("name", "")] += int(float(recorded.get("value", "0")))
    name = case.get("name", "")
    failures = [
        Failure(name, f"pytest -m '' \"{file}::{name}\"", failed.get("message", "")[:1000])
        for failed in (*case.iter("failure"), *case.iter("error"))
    ]
    skipped = int(case.find("skipped") is not None)
    seconds = float(case.get("time", "0"))
    return Outcome(file.name, 1 - skipped, skipped, tallies, seconds, failures)


def row(outcome: Outcome) -> tuple[str, ...]:
    """Return the cells of a line, an empty one where nothing of the kind was tried."""
    tallies = outcome.tallies
    caught = f"{tallies['mistakes caught']}/{tallies['mistakes']}" if tallies["mistakes"] else ""
    result = f"{len(outcome.failures)} FAILED" if outcome.failures else "passed"
    if outcome.skipped:
        result += f", {outcome.skipped} skipped"
    counts = [f"{tallies[name]:,}" if tallies[name] else "" for name in TALLIES]
    return outcome.section, f"{outcome.checks:,}", *counts, caught, f"{outcome.seconds:.0f}", result


def table(outcomes: Sequence[Outcome]) -> str:
    """Return all lines, numbers flush right."""
    rows = [COLUMNS, *map(row, outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    edges = (0, len(COLUMNS) - 1)
    lines = []
    for cells in rows:
        sized = enumerate(zip(cells, widths, strict=True))
        flush = [cell.ljust(w) if place in edges else cell.rjust(w) for place, (cell, w) in sized]
        lines.append("  ".join(flush).rstrip())
    return "\n".join(lines)


def main() -> int:
    """Run everything, or with --quick the tests of every day and the short audit."""
    parser = argparse.ArgumentParser(description="Run the audit and the tests that guard privacy.")
    parser.add_argument("--quick", action="store_true", help="the short audit and everyday tests")
    quick = parser.parse_args().quick
    outcomes = [audited(quick=quick), *tested(files(), quick=quick)]
    total = Outcome("total")
    for outcome in outcomes:
        total.add(outcome)
    print(table([*outcomes, total]))
    for failure in total.failures:
        print(f"\nFAILED: {failure.name}\n  run it alone: {failure.command}")
        if failure.said:
            print(indent(failure.said, "  | "))
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
