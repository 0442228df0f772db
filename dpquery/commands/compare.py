"""compare() as a straight line: the expected errors of two plans, item by item.

A spec is planned first, with a ledger that is made for it and thrown away: nothing is put on
record, and no plan is written.
"""

import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from dpquery.commands.arguments import Amount, FilePath, as_path, exact_delta, exact_epsilon
from dpquery.commands.defaults import FUNCTION_JOBS, TIME_LIMIT
from dpquery.commands.plan import plan
from dpquery.exceptions import SpecError
from dpquery.measurement.ledger.registered_caps import declared_funds
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import PLAN_MARK, Plan, plan_and_spec, read_plan_file
from dpquery.planning.figures import BudgetShares, SelectionAtBudget, allowed_prices
from dpquery.spec.model import Spec

if TYPE_CHECKING:
    import pandas as pd

HEAD = 200
"""Bytes in which the mark of a plan stands."""


@dataclass(frozen=True, eq=False)
class PlanAtEpsilon:
    """A plan with its better kind of noise at a guarantee.

    Attributes:
        name: the file that was named.
        spec: what was planned.
        plan: the plan.
        delta: of the guarantee.
        best: the better selection there.
    """

    name: str
    spec: Spec
    plan: Plan
    delta: Fraction
    best: SelectionAtBudget

    def errors(self) -> dict[str, tuple[int, float, float]]:
        """Return by item its queries, their RMSE and their largest standard error in counts."""
        items = self.best.items
        return {item.name: (item.queries, item.rmse, item.max_std_error) for item in items}


@dataclass(frozen=True, eq=False, repr=False)
class PlanComparison:
    """Two plans at one epsilon."""

    epsilon: Fraction
    first: PlanAtEpsilon
    second: PlanAtEpsilon

    @property
    def errors(self) -> "pd.DataFrame":
        """Expected errors in counts, a row an item of either plan; missing where it has none.

        `ratio` is the second plan's RMSE over the first one's.
        """
        import pandas as pd

        names = ["queries", "rmse", "max_std_error"]
        first, second = (
            pd.DataFrame.from_dict(
                one.errors(), orient="index", columns=[f"{name}_{place}" for name in names]
            )
            for place, one in (("first", self.first), ("second", self.second))
        )
        items = dict.fromkeys([*first.index, *second.index])
        frame = first.join(second, how="outer").reindex(list(items))
        for place in ("first", "second"):
            frame[f"queries_{place}"] = frame[f"queries_{place}"].astype("Int64")
        frame["ratio"] = frame["rmse_second"] / frame["rmse_first"]
        return frame.rename_axis("item").reset_index()

    def __repr__(self) -> str:
        """Return what was compared, in one line."""
        return f"<PlanComparison: {self.first.name} and {self.second.name}>"


def compare(
    first: FilePath,
    second: FilePath,
    *,
    epsilon: Amount | None = None,
    delta: Amount | None = None,
    time_limit: float = TIME_LIMIT,
    jobs: int = FUNCTION_JOBS,
) -> PlanComparison:
    """Return the expected errors of two plans at one epsilon; specs are planned for it.

    Args:
        first: a plan, or a spec.
        second: another one.
        epsilon: of both releases; default: 1.
        delta: of both; default: what the spec of each says.
        time_limit: CPU seconds for each kind of noise of a spec that is planned.
        jobs: processes to use where a spec is planned.

    Raises:
        DpqueryError: of the class that says what was wrong; nothing is ever written.
    """
    at = Fraction(1) if epsilon is None else exact_epsilon(epsilon)
    named_delta = None if delta is None else exact_delta(delta)
    one, other = (
        _at_epsilon(as_path(path), at, named_delta, time_limit, jobs) for path in (first, second)
    )
    return PlanComparison(at, one, other)


def _at_epsilon(
    path: Path, epsilon: Fraction, delta: Fraction | None, time_limit: float, jobs: int
) -> PlanAtEpsilon:
    planned, spec = _plan_of(path, time_limit, jobs)
    at_delta = spec.privacy.delta if delta is None else delta
    workload = compile_spec(spec).workload
    shares = BudgetShares(spec, workload, at_delta, declared_funds(spec))
    best = allowed_prices(planned, shares, None, epsilon=epsilon)[0]
    return PlanAtEpsilon(str(path), spec, planned, at_delta, best)


def _plan_of(path: Path, time_limit: float, jobs: int) -> tuple[Plan, Spec]:
    """Return the plan in a file, or that of the spec in it, and the spec."""
    try:
        content = read_plan_file(path)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}; name a plan or a spec") from None
    if PLAN_MARK in content[:HEAD]:
        return plan_and_spec(content, path)
    with tempfile.TemporaryDirectory() as folder:
        report = plan(
            path,
            plan_path=Path(folder) / "dpquery.plan",
            ledger_path=Path(folder) / "ledger.db",
            time_limit=time_limit,
            jobs=jobs,
            mechanism="linear",
        )
    return report.plan, report.spec
