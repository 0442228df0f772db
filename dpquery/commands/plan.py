"""plan() as a straight line: the best strategy for a workload, without any data."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from threadpoolctl import threadpool_limits

from dpquery.commands.arguments import (
    Amount,
    FilePath,
    as_path,
    checked_count,
    checked_seconds,
    exact_delta,
    exact_epsilon,
    ledger_place,
)
from dpquery.commands.defaults import (
    DEFAULT_SEED,
    FUNCTION_JOBS,
    MECHANISM_CHOICE,
    OBJECTIVE,
    PLAN_PATH,
    RELEASE_PATH,
    TIME_LIMIT,
)
from dpquery.limits import LARGEST_INTEGER
from dpquery.measurement import accounting
from dpquery.measurement.ledger.caps import parent_cap
from dpquery.measurement.ledger.funds import Funds
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.mechanisms.content import check_derived, tables_of_derived
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.plan import (
    PLAN_MARK,
    TABLES_EDITION,
    Plan,
    Target,
    most_labelled,
    planned_before,
    write_plan,
)
from dpquery.plan_file.rehearsals import MechanismChoice
from dpquery.planning.accounting_choice import SUMS, Counted, Rivals, by_noise, settled_accounting
from dpquery.planning.compare_mechanisms import (
    ColumnRehearsal,
    MechanismRequest,
    beside_fits,
    stages_for,
    with_fits,
    with_nearer,
)
from dpquery.planning.figures import planned, solution_check
from dpquery.planning.report import PlanReport, Terms, compile_countable, report_of
from dpquery.planning.search import PlanSearch
from dpquery.planning.targets import DerivedTargets, parse_sweep, parse_targets, split_targets
from dpquery.planning.worth import JudgedOn
from dpquery.progress import stage
from dpquery.releases.budget_words import within_reason
from dpquery.releases.manifest import refuse_second_ledger
from dpquery.spec.parsing.read import load_spec
from dpquery.spec.problems import one_of
from dpquery.spec.spec import Accounting, Spec
from dpquery.strategy.search.select import Selection
from dpquery.strategy.strategy import Noise, Objective
from dpquery.untrusted.files import check_place, replace_file
from dpquery.version import __version__

SEARCHING, PRICING = (0.02, 0.8), (0.8, 1.0)
"""Shares of a plan's work, about, as an operator sees them."""


def plan(
    spec_path: FilePath,
    *,
    plan_path: FilePath = PLAN_PATH,
    ledger_path: FilePath | None = None,
    objective: str = OBJECTIVE,
    targets: Sequence[str] = (),
    sweep: str | None = None,
    seed: int = DEFAULT_SEED,
    time_limit: float = TIME_LIMIT,
    jobs: int = FUNCTION_JOBS,
    change_cap: bool = False,
    new_dataset: bool = False,
    epsilon: Amount | None = None,
    delta: Amount | None = None,
    mechanism: str = MECHANISM_CHOICE,
    proxy: FilePath | None = None,
    rap_search: bool = False,
    search_both: bool = False,
    rows: int | None = None,
    dry_run: bool = False,
) -> PlanReport:
    """Choose the best strategy for a spec's workload, register the dataset and write the plan.

    Args:
        spec_path: the YAML spec.
        plan_path: where the plan goes; replaced whole or not at all.
        ledger_path: created if missing; the dataset and its cap are put on record. Default:
            $DPQUERY_LEDGER or the user's state directory.
        objective: what the best strategy minimises: "rmse", or "max", the largest standard error.
        targets: or what it is to meet with the least epsilon: see planning.targets.parse_targets.
        sweep: epsilons at which errors are wanted too, such as "0.1,0.5,1,2".
        seed: of the optimisers' starting points.
        time_limit: CPU seconds for each kind of noise, after which the best found so far stands;
            and for the rehearsal of RAP.
        jobs: processes to use; a script that asks for 2 guards its main part with `__name__`.
        change_cap: replace a cap on record by the spec's.
        new_dataset: whether a new dataset, or parent, may have an id like one on record.
        epsilon: the report's figures are in counts at this epsilon; default: 1, or the least one
            that meets the targets.
        delta: and this delta; default: the spec's.
        mechanism: "linear", "rap", "adaptive", or "auto": linear or adaptive measurement,
            whichever is better, where the spec wants what errs least.
        proxy: public data to judge the items on, to rehearse RAP on, and to try targets on derived
            items on: a CSV file, or the folder of a release.
        rap_search: whether RAP is compared too, with settings that are searched on the proxy.
        search_both: whether a kind of noise is searched for long that is far from being taken at
            this epsilon; without it, such a one has quick candidates alone.
        rows: about how many records there are, in place of what the spec says: what the items are
            worth is then said of that many, and nothing else comes from it.
        dry_run: whether nothing is put on record and no plan is written.

    Returns:
        The plan with its figures in counts; `errors` and `candidates` are data frames.

    Raises:
        DpqueryError: of the class that says what was wrong; nothing is written then.
    """
    out, ledger = as_path(plan_path), ledger_place(ledger_path)
    minimised = one_of("objective", objective, get_args(Objective))
    choice = one_of("mechanism", mechanism, get_args(MechanismChoice))
    request = MechanismRequest(choice, None if proxy is None else as_path(proxy), rap_search)
    shown = None if epsilon is None else exact_epsilon(epsilon)
    named_delta, points = None if delta is None else exact_delta(delta), parse_sweep(sweep)
    _check_search(seed, time_limit, rows, out)
    spec, counted, compiled = _counted_spec(as_path(spec_path), ledger, request)
    at_delta = spec.privacy.delta if named_delta is None else within_reason(named_delta, spec)
    judged_on = JudgedOn(spec, compiled, rows=rows, proxy=request.proxy)
    goals, on_derived = both = split_targets(parse_targets(targets, spec, minimised), spec)
    tried = DerivedTargets(on_derived, spec, compiled, request.proxy) if on_derived else None
    proxies, stage_of_rap = stages_for(
        spec, compiled, request, epsilon=shown, delta=at_delta, targets=both
    )
    earlier = None if new_dataset else partial(planned_before, Path(spec_path).name, out)
    with _ledger_to_ask(ledger, None if new_dataset else spec, dry_run=dry_run) as asked:
        funds = _would_register(asked, spec, counted, change=change_cap, earlier=earlier)
    noises, at_epsilon, narrowed = _noises(spec), shown or Fraction(1), at_delta and not search_both
    flaw_of = solution_check(spec, compiled, noises, epsilon=at_epsilon, delta=at_delta)
    reach = Rivals(spec, compiled, funds, at_epsilon, at_delta, not shown) if narrowed else None
    search = PlanSearch(spec, compiled, noises, minimised, seed, time_limit, jobs, flaw_of, reach)
    with threadpool_limits(1), stage("", *SEARCHING):  # see select.other_process
        on_items = tried.on_items(goals, search.quick) if tried else ()
        selections = search.best((*goals, *on_items))
    complete = _plan_of(spec, compiled, Path(spec_path), minimised, goals, seed, selections, tried)
    reported = _Reporter(funds, spec, compiled, Terms(shown, at_delta, points, judged_on, tried))
    columns = ColumnRehearsal(spec, compiled, proxies, minimised, flaw_of, time_limit)
    with threadpool_limits(1), stage("working out errors and what they cost", *PRICING):
        counted = counted or reported.counted(complete)
        report = columns.compared(complete, selections, lambda plan: reported(plan, counted))
        report = with_fits(report, stage_of_rap, request=request, time_limit=time_limit)
        report = with_nearer(reported.charged_as_fit(report, counted), compiled)
    if dry_run:
        return report
    new = _register(ledger, report.spec, change=change_cap)
    replace_file(out, write_plan(report.plan), mark=PLAN_MARK)
    return replace(report, new=new)


def _plan_of(
    spec: Spec,
    compiled: CompiledSpec,
    path: Path,
    objective: Objective,
    targets: tuple[Target, ...],
    seed: int,
    selections: Mapping[Noise, Selection],
    tried: DerivedTargets | None,
) -> Plan:
    """Return the plan of what was chosen for a spec in a file of some name, by this version.

    Raises:
        SpecError: a derived item is made of what one of the strategies would not hold, or no noise
            meets a target on one.
    """
    for proposal in (selection.best.proposal for selection in selections.values()):
        if proposal is not None:
            blocks = compiled.workload.blocks
            tables_of_derived(spec, compiled.classes, blocks, proposal.strategy)
    plan = Plan(
        __version__,
        path.name,
        spec.text,
        spec.files,
        objective,
        targets,
        seed,
        selections=tuple(planned(selection, spec, compiled) for selection in selections.values()),
        labelled_tables=most_labelled(spec),
        tables=TABLES_EDITION,
    )
    return plan if tried is None else tried.noted(plan)


@dataclass(frozen=True)
class _Reporter:
    """Reports a plan by what losses are added up as, and by what the ledger has room for then."""

    funds: Mapping[Accounting, Funds]
    spec: Spec
    compiled: CompiledSpec
    terms: Terms

    def __call__(self, plan: Plan, counted: Counted) -> PlanReport:
        """Return the report."""
        spec = self.spec.counted_in(counted.accounting)
        funds, noted = self.funds[counted.accounting], counted.noted(plan)
        return report_of(noted, spec, self.compiled, funds, self.terms, counted.words)

    def counted(self, plan: Plan) -> Counted:
        """Return what losses are best added up as, where nothing settles it before."""
        return by_noise(plan, self.spec, self.compiled.workload, self.funds, self.terms)

    def charged_as_fit(self, report: PlanReport, counted: Counted) -> PlanReport:
        """Return the report again, in what RAP is charged in, where the plan prefers such."""
        fitted = counted.given_up_for(report.plan)
        if fitted is None:
            return report
        fitted_now = self(report.plan, fitted).remarked(report.remark)
        return beside_fits(fitted_now, self.compiled.workload)


def _counted_spec(
    path: Path, ledger: Path, request: MechanismRequest
) -> tuple[Spec, Counted | None, CompiledSpec]:
    """Return the spec, what its losses are added up as where that is settled, and its operators."""
    spec = load_spec(path)
    counted = settled_accounting(spec, _currencies(ledger), request.mechanism)
    spec = spec if counted is None else spec.counted_in(counted.accounting)
    compiled = compile_countable(spec)
    check_derived(spec, compiled)
    return spec, counted, compiled


def _check_search(seed: int, time_limit: float, rows: int | None, out: Path) -> None:
    """Refuse a seed, a time limit, a number of rows or a place for the plan that is none."""
    if rows is not None:
        checked_count("rows", rows, least=1, most=LARGEST_INTEGER)
    checked_count("seed", seed, least=0, most=LARGEST_INTEGER)
    checked_seconds(time_limit)
    check_place(out, mark=PLAN_MARK)


def _currencies(ledger_path: Path) -> dict[str, accounting.Currency]:
    """Return what the losses of all datasets on record are added up in."""
    if not os.path.lexists(ledger_path):
        return {}
    with Ledger.open(ledger_path, create=False) as ledger:
        return ledger.currencies()


@contextmanager
def _ledger_to_ask(ledger: Path, spec: Spec | None, *, dry_run: bool) -> Iterator[Path]:
    """Yield the ledger; for a dry run without one, an empty one that is gone afterwards.

    With a spec it is refused to begin one beside a release of the dataset.
    """
    if not dry_run and spec is not None:
        refuse_second_ledger(ledger, spec, release=Path(RELEASE_PATH))
    if not dry_run or os.path.lexists(ledger):
        yield ledger
        return
    with TemporaryDirectory() as folder:
        yield Path(folder) / "ledger.db"


def _would_register(
    ledger_path: Path,
    spec: Spec,
    settled: Counted | None,
    *,
    change: bool,
    earlier: Callable[[], str] | None,
) -> dict[Accounting, Funds]:
    """Return the accounts that the dataset will be charged to, by what losses are added up as.

    Refused as `_register` would be; and where `earlier` is given, an id like one on record is.
    """
    possible = tuple(SUMS) if settled is None else (settled.accounting,)
    funds = {}
    with Ledger.open(ledger_path, create=True) as ledger:
        for kind in possible:
            counted = spec.counted_in(kind)
            funds[kind] = ledger.check_registration(
                spec.dataset.id,
                accounting.budget_cap(counted.budget, spec.privacy),
                parent=parent_cap(counted.dataset, spec.privacy),
                changes=change,
                earlier=earlier,
            )
    return funds


def _register(ledger_path: Path, spec: Spec, *, change: bool) -> tuple[str, ...]:
    """Put the dataset on record; return what is new on it."""
    cap = accounting.budget_cap(spec.budget, spec.privacy)
    parent = parent_cap(spec.dataset, spec.privacy)
    with Ledger.open(ledger_path, create=True) as ledger:
        return ledger.register(spec.dataset.id, cap, parent=parent, changes=change)


def _noises(spec: Spec) -> tuple[Noise, ...]:
    """Return both kinds where there is a delta and the cap can be charged for Gaussian noise."""
    if spec.privacy.weight is not None and spec.privacy.weight.replicates is not None:
        return ("gaussian",)
    both = spec.privacy.delta > 0 and spec.budget.counted != "pure"
    return ("laplace", "gaussian") if both else ("laplace",)
