"""plan() as a straight line: the best strategy for a workload, without any data."""

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from dpquery.measurement import accounting
from dpquery.measurement.ledger.caps import parent_cap
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.mechanisms.release_content import Progress
from dpquery.plan_file.plan import PLAN_MARK, Plan, write_plan
from dpquery.planning.comparison import LINEAR, Wanted, stage_for, with_rap
from dpquery.planning.countable import compile_countable
from dpquery.planning.figures import planned, solution_check
from dpquery.planning.plan_report import PlanReport, report_of
from dpquery.planning.targets import goal_of, parse_sweep, parse_targets
from dpquery.spec.model import Spec
from dpquery.spec.parsing.spec import load_spec
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.objectives import Objective
from dpquery.strategy.search.select import select
from dpquery.untrusted.atomic_write import check_place, replace_file
from dpquery.version import __version__


def plan(
    spec_path: Path,
    *,
    plan_path: Path,
    ledger_path: Path,
    objective: Objective = "rmse",
    targets: Sequence[str] = (),
    sweep: str | None = None,
    seed: int = 0,
    time_limit: float = math.inf,
    jobs: int = 1,
    change_cap: bool = False,
    epsilon: Fraction | None = None,
    delta: Fraction | None = None,
    compare: Wanted = LINEAR,
    progress: Progress = lambda _: None,
) -> PlanReport:
    """Choose the best strategy for a spec's workload, register the dataset and write the plan.

    Args:
        spec_path: the YAML spec.
        plan_path: where the plan goes; replaced whole or not at all.
        ledger_path: created if missing; the dataset and its cap are put on record.
        objective: what the best strategy minimises.
        targets: or what it is to meet with the least epsilon: see planning.targets.parse_targets.
        sweep: epsilons at which errors are wanted too, such as "0.1,0.5,1,2".
        seed: of the optimisers' starting points.
        time_limit: CPU seconds for each kind of noise, after which the best found so far stands;
            and for the rehearsal of RAP.
        jobs: processes to use.
        change_cap: replace a cap on record by the spec's.
        epsilon: the report's figures are in counts at this epsilon; default: 1, or the least one
            that meets the targets.
        delta: and this delta; default: the spec's.
        compare: whether RAP is compared, and on what it is rehearsed.
        progress: told what is being tried.
    """
    check_place(plan_path, mark=PLAN_MARK)
    spec = load_spec(spec_path)
    compiled, cap = compile_countable(spec), accounting.budget_cap(spec.budget, spec.privacy)
    delta = spec.privacy.delta if delta is None else delta
    wanted, points = parse_targets(targets, spec, objective), parse_sweep(sweep)
    stage = stage_for(spec, compiled, compare, epsilon=epsilon, delta=delta, targets=bool(wanted))
    _register(ledger_path, spec, cap, change=change_cap)
    noises = _noises(spec, cap)
    selections = select(
        compiled.workload,
        noises=noises,
        objective=objective,
        targets=goal_of(wanted, spec, compiled),
        seed=seed,
        time_limit=time_limit,
        jobs=jobs,
        flaw_of=solution_check(spec, compiled, noises, epsilon=epsilon or Fraction(1), delta=delta),
        progress=progress,
    )
    chosen = tuple(planned(own, spec, compiled) for own in selections.values())
    made = Plan(__version__, spec_path.name, spec.text, spec.files, objective, wanted, seed, chosen)
    report = report_of(made, spec, epsilon=epsilon, delta=delta, sweep=points)
    report = with_rap(report, stage, wanted=compare, time_limit=time_limit, progress=progress)
    replace_file(plan_path, write_plan(report.plan), mark=PLAN_MARK)
    return report


def _register(ledger_path: Path, spec: Spec, cap: accounting.Cap, *, change: bool) -> None:
    parent = parent_cap(spec.dataset, spec.privacy)
    with Ledger.open(ledger_path, create=True) as ledger:
        put_on_record = ledger.change_cap if change else ledger.register
        put_on_record(spec.dataset.id, cap, parent=parent)


def _noises(spec: Spec, cap: accounting.Cap) -> tuple[Noise, ...]:
    """Return both kinds where there is a delta and the cap can be charged for Gaussian noise."""
    both = spec.privacy.delta > 0 and cap.currency == "rho"
    return ("laplace", "gaussian") if both else ("laplace",)
