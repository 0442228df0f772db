"""Planned cases: each with its plan, dense strategy and expected noise."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from dpquery.arrays import Numbers
from dpquery.audit.cases.dense_strategy import Cell, DenseStrategy, dense_strategy
from dpquery.audit.cases.expected_noise import ExpectedNoise, cells_of, expected_noise
from dpquery.audit.cases.query_classes import classes_of
from dpquery.audit.cases.specs_and_records import (
    CASES,
    Case,
    Codes,
    Record,
    Size,
    counted,
    records_for,
)
from dpquery.commands import plan as plan_command
from dpquery.exceptions import SpecError
from dpquery.plan_file.plan import plan_and_spec
from dpquery.spec.model import Spec


@dataclass(frozen=True, eq=False)
class PlannedCase:
    """A case and its plan.

    Attributes:
        case: its spec and how it is released.
        spec: parsed.
        plan: the plan file's bytes.
        name: of the strategy that was chosen.
        strategy: the chosen one, dense.
        noise: that it must have at the case's epsilon.
    """

    case: Case
    spec: Spec
    plan: bytes
    name: str
    strategy: DenseStrategy
    noise: ExpectedNoise

    @property
    def subject(self) -> str:
        """The case, strategy, noise and number of rows in a few words."""
        return (
            f"{self.case.name}: {self.name}, {self.noise.law.noise}, {self.strategy.length:,} rows"
        )

    @property
    def records(self) -> list[Record]:
        """The made-up records."""
        return records_for(self.spec)

    def cells(self, records: list[Record]) -> Counter[Cell]:
        """Return the counts of records by cells of classes, of those that the spec counts."""
        counts: Counter[Codes] = counted(records, self.spec)
        return cells_of(counts, self.strategy)

    def answers(self, records: list[Record]) -> Numbers:
        """Return the exact answers in steps of the grid: (rows,) Python integers."""
        return self.strategy.answers(self.cells(records))


def cases(size: Size) -> Iterator[Case]:
    """Yield the cases of an audit of some size."""
    return iter(size.user_cases or [case for case in CASES if case.quick or not size.quick])


@lru_cache(maxsize=2 * len(CASES))
def planned_case(case: Case, size: Size) -> PlannedCase:
    """Return a case with its plan, planned once for every run of the audit."""
    content = _planned(case) if case.plan is None else case.plan
    _, spec = plan_and_spec(content, Path("dpquery.plan"))
    raw = json.loads(content)
    selections = (selection for selection in raw["selections"] if selection["noise"] == case.noise)
    ((name, pairs),) = (
        (selection["best"], "record_change" in selection) for selection in selections
    )
    strategy = dense_strategy(spec, raw, case.noise)
    noise = expected_noise(
        strategy,
        spec,
        epsilon=case.epsilon,
        delta=spec.privacy.delta,
        accounting=spec.budget.counted,
        pairs=pairs,
    )
    return PlannedCase(case, spec, content, name, strategy, noise)


def _planned(case: Case) -> bytes:
    with private_folder() as folder:
        spec_path, plan_path = folder / "workload.yaml", folder / "dpquery.plan"
        spec_path.write_text(case.spec, encoding="utf-8")
        plan_command.plan(
            spec_path,
            plan_path=plan_path,
            ledger_path=folder / "state" / "ledger.db",
            mechanism="linear",
            time_limit=math.inf,
        )
        return plan_path.read_bytes()


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder that nobody else can read, and remove it."""
    with TemporaryDirectory(prefix="dpquery-audit-") as folder:
        yield Path(folder)


MOST_REPLACED = 512  # classes of an attribute: pairs of them are compared in Python integers
MOST_CELLS = 100_000  # of the domain: all columns of a strategy are looked at one by one


def cases_of(path: Path, *, epsilon: Fraction) -> tuple[Case, ...]:
    """Return a case for each kind of noise that a plan has a strategy for.

    Raises:
        SpecError: it is no plan, or has more cells than can be looked at one by one.
    """
    try:
        content = path.read_bytes()
    except OSError:
        raise SpecError(f"{path} cannot be read; name a plan that `dpquery plan` wrote") from None
    plan, spec = plan_and_spec(content, path)
    sizes = [max(classes) + 1 for classes in classes_of(spec)]
    if spec.privacy.neighbours == "replace" and max(sizes) > MOST_REPLACED:
        raise SpecError(
            f"{path} has an attribute of {max(sizes):,} classes, and where records are replaced "
            f"the audit compares up to {MOST_REPLACED} in pairs; run `dpquery audit` without "
            "--plan, which takes strategies of the same families"
        )
    cells = math.prod(sizes)
    if cells > MOST_CELLS:
        raise SpecError(
            f"{path} has {cells:,} cells, and the audit looks at up to {MOST_CELLS:,} one by one; "
            "run `dpquery audit` without --plan, which takes strategies of the same families"
        )
    return tuple(
        Case(path.name, plan.spec_text, selection.noise, epsilon, repeated=True, plan=content)
        for selection in plan.selections
    )
