"""The same release in two processes with separate ledgers: their noise must differ.

A generator that is seeded when the program starts gives one process different noise every time, and
the next process all of it again.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from scipy.stats import poisson

from dpquery.arrays import Ints
from dpquery.audit.cases.planned_cases import PlannedCase, private_folder
from dpquery.audit.cases.specs_and_records import write_csv
from dpquery.audit.checks.repeated_releases import register, values_of
from dpquery.audit.findings import Finding
from dpquery.audit.statistics import ALPHA


def two_processes(planned: PlannedCase) -> Finding:
    """Test that `dpquery release` in two processes, on copies of one folder, differs in noise."""
    with private_folder() as folder:
        first, second = folder / "first", folder / "second"
        first.mkdir()
        write_csv(first / "data.csv", planned.records, planned.spec)
        (first / "dpquery.plan").write_bytes(planned.plan)
        register(planned, first / "state" / "ledger.db")
        shutil.copytree(first, second)
        values = [_released(planned, directory) for directory in (first, second)]
    equal = int((values[0] == values[1]).sum())
    rows = planned.strategy.length
    p = float(poisson.sf(equal - 1, rows * planned.noise.law.all_equal(2)))
    return Finding(
        "independence",
        planned.subject,
        "the same command in another process draws other noise",
        p > ALPHA,
        f"p = {p:.2g}, {equal} of {rows:,} values are equal",
        draws=2 * rows,
        tests=1,
    )


def _released(planned: PlannedCase, folder: Path) -> Ints:
    case = planned.case
    command = ["release", "data.csv", "--plan", "dpquery.plan", "--noise", case.noise]
    command += ["--epsilon", f"{float(case.epsilon)!r}", "--ledger", "state/ledger.db"]
    process = subprocess.run(  # noqa: S603 this very program, on a file that was just made up
        [sys.executable, "-m", "dpquery", *command], cwd=folder, capture_output=True, check=False
    )
    if process.returncode:
        raise ValueError(f"`dpquery release` ended in another process with {process.returncode}")
    return values_of(folder / "release")
