"""Start here: plan() and release() as straight lines through the six rooms.

    spec -> operators -> strategy -> measurement -> reconstruction -> release

plan sees no data. release opens the data behind one door, measurement.curator, after the ledger
has been charged; all that follows is a function of noisy answers and public inputs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from dpquery import __version__
from dpquery.exceptions import SpecError
from dpquery.measurement import accounting
from dpquery.measurement.curator import measure
from dpquery.measurement.ledger.caps import parent_cap
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.mechanisms.choose import Contract, chosen_contract, remark_on
from dpquery.mechanisms.release_content import LEVEL, Progress, Terms
from dpquery.plan_file.plan import MARK, Plan, plan_and_spec, read_plan_file, write_plan
from dpquery.planning.comparison import LINEAR, Mechanism, Wanted, stage_for, with_rap
from dpquery.planning.countable import compile_countable
from dpquery.planning.figures import planned, solution_check
from dpquery.planning.plan_report import PlanReport, report_of
from dpquery.planning.targets import goal_of, parse_sweep, parse_targets
from dpquery.reconstruction.columns.postprocess import parse_columns
from dpquery.release.folder.write import Sources, check_target, write_release
from dpquery.spec.model import Spec
from dpquery.spec.parsing.spec import load
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.search.select import Objective, select
from dpquery.untrusted.atomic_write import check_place, replace_file


@dataclass(frozen=True, eq=False)
class ReleaseReport:
    """What was released: public facts only; `free` where the ledger held it already.

    `remark` is what to say of the choice between linear strategies and RAP, if anything.
    `account` is the dataset's and `parent` its parent's, if it has one, as the release left them.
    """

    directory: Path
    spec: Spec
    contract: Contract
    account: Account
    parent: Account | None
    free: bool
    remark: str = ""


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
    check_place(plan_path, mark=MARK)
    spec = load(spec_path)
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
    replace_file(plan_path, write_plan(report.plan), mark=MARK)
    return report


def _register(ledger_path: Path, spec: Spec, cap: accounting.Cap, *, change: bool) -> None:
    parent = parent_cap(spec.dataset, spec.privacy)
    with Ledger.open(ledger_path, create=True) as ledger:
        put_on_record = ledger.change_cap if change else ledger.register
        put_on_record(spec.dataset.id, cap, parent=parent)


def release(
    data: Path,
    *,
    plan_path: Path,
    ledger_path: Path,
    out: Path,
    epsilon: Fraction,
    delta: Fraction | None = None,
    mechanism: Mechanism = "auto",
    noise: Noise | None = None,
    also: Sequence[str] = (),
    confidence: float | None = None,
    release_number: int = 1,
    replace: bool = False,
    progress: Progress = lambda _: None,
) -> ReleaseReport:
    """Carry a plan out on data: choose a contract, charge and measure, make answers, write.

    Args:
        data: the CSV file.
        plan_path: the plan.
        ledger_path: must exist and know the dataset.
        out: the release directory; written whole or not at all.
        epsilon: what this release may spend.
        delta: with it; default: the spec's.
        mechanism: a linear strategy, RAP, or what the plan prefers.
        noise: of a linear strategy: one kind, or None for the better one by the plan.
        also: extra columns beside the estimates: see reconstruction.columns.postprocess.parse_columns.
        confidence: level of the noise intervals, 0.95 unless said; RAP has none.
        release_number: another number than before draws fresh noise and pays for it.
        replace: whether a different release in `out` gives way.
        progress: told what is being done.

    Privacy:
        What is written is (epsilon, delta)-DP for the unit and neighbours that the spec declares;
        with all earlier releases of the dataset it stays within the cap on record.
    """
    content = _bytes_of(plan_path)
    plan, spec = plan_and_spec(content, plan_path)
    delta = spec.privacy.delta if delta is None else delta
    terms = Terms(epsilon, delta, noise, parse_columns(also), release_number, confidence)
    contract = chosen_contract(plan, spec, terms, mechanism=mechanism)
    check_target(out, key=contract.query.key, replace=replace)
    with Ledger.open(ledger_path, create=False) as ledger:
        ledger.check_replaced(out)
        measured = measure(data, contract.query, ledger=ledger, progress=progress)
    made = contract.make(measured, level=confidence or LEVEL, progress=progress)
    write_release(
        out,
        spec=spec,
        answers=made.answers,
        manifest=made.manifest,
        replace=replace,
        sources=Sources(content, measured.values, contract.measured),
        relaxed=made.relaxed,
        progress=lambda done: progress(f"writing answers: {done / spec.queries:.0%}"),
    )
    remark = remark_on(plan, terms, mechanism=mechanism)
    return ReleaseReport(
        out, spec, contract, measured.account, measured.parent, measured.stored, remark
    )


def _noises(spec: Spec, cap: accounting.Cap) -> tuple[Noise, ...]:
    """Return both kinds where there is a delta and the cap can be charged for Gaussian noise."""
    both = spec.privacy.delta > 0 and cap.currency == "rho"
    return ("laplace", "gaussian") if both else ("laplace",)


def _bytes_of(plan_path: Path) -> bytes:
    try:
        return read_plan_file(plan_path)
    except OSError as error:
        raise SpecError(
            f"{plan_path} cannot be read: {error.strerror}; run `dpquery plan workload.yaml` "
            "first, or name the plan with --plan"
        ) from None
