"""Start here: plan() and release() as straight lines through the six rooms.

    spec -> operators -> strategy -> measurement -> reconstruction -> release

plan sees no data. release opens the data behind one door, measurement.curator, after the ledger
has been charged; all that follows is a function of noisy answers and public inputs.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpquery import __version__
from dpquery.exceptions import SpecError
from dpquery.extra_columns import ExtraColumns, check_columns, extra_columns
from dpquery.figures import Priced, chosen_price, error_curve, planned
from dpquery.measurement import accounting
from dpquery.measurement.curator import Query, measure
from dpquery.measurement.ledger import Ledger, Measurement
from dpquery.measurement.ledger_events import Account
from dpquery.measurement.mechanism import design
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Array
from dpquery.plan_report import PlanReport, report_of
from dpquery.reconstruction.answers import TableAnswers
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import Estimates, reconstruct
from dpquery.reconstruction.postprocess import Column, parse_columns
from dpquery.release.extra import with_extra
from dpquery.release.manifest import LedgerFacts, Manifest, StrategyFacts, manifest_of
from dpquery.release.measurements import Measured, values_digest
from dpquery.release.write import Sources, check_target, write_release
from dpquery.spec.model import Item, Spec
from dpquery.spec.parse import load, parse
from dpquery.strategy.codec import decode_strategy
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.plan_file import Plan, read_plan, write_plan
from dpquery.strategy.select import Objective, select
from dpquery.tuning import goal_of, parse_sweep, parse_targets

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class ReleaseReport:
    """What was released: public facts only; `free` where the ledger held it already."""

    directory: Path
    spec: Spec
    priced: Priced
    epsilon: Fraction
    delta: Fraction
    account: Account
    free: bool


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
    progress: Progress = lambda _: None,
) -> PlanReport:
    """Choose the best strategy for a spec's workload, register the dataset and write the plan.

    Args:
        spec_path: the YAML spec.
        plan_path: where the plan goes; replaced whole or not at all.
        ledger_path: created if missing; the dataset and its cap are put on record.
        objective: what the best strategy minimises.
        targets: or what it is to meet with the least epsilon: see tuning.parse_targets.
        sweep: epsilons at which errors are wanted too, such as "0.1,0.5,1,2".
        seed: of the optimisers' starting points.
        time_limit: CPU seconds for each kind of noise, after which the best found so far stands.
        jobs: processes to use.
        change_cap: replace a cap on record by the spec's.
        epsilon: the report's figures are in counts at this epsilon; default: 1, or the least one
            that meets the targets.
        delta: and this delta; default: the spec's.
        progress: told what is being tried.
    """
    spec = load(spec_path)
    compiled = compile_spec(spec)
    cap = accounting.budget_cap(spec.budget, spec.privacy)
    delta = spec.privacy.delta if delta is None else delta
    wanted, points = parse_targets(targets, spec, objective), parse_sweep(sweep)
    selections = select(
        compiled.workload,
        noises=_noises(spec, cap),
        objective=objective,
        targets=goal_of(wanted, spec, compiled),
        seed=seed,
        time_limit=time_limit,
        jobs=jobs,
        progress=progress,
    )
    chosen = tuple(planned(own, spec, compiled) for own in selections.values())
    made = Plan(__version__, spec_path.name, spec.text, spec.files, objective, wanted, seed, chosen)
    report = report_of(made, spec, epsilon=epsilon, delta=delta, sweep=points)
    with Ledger.open(ledger_path, create=True) as ledger:
        put_on_record = ledger.change_cap if change_cap else ledger.register
        put_on_record(spec.dataset.id, cap)
    _write_atomically(plan_path, write_plan(made))
    return report


def release(
    data: Path,
    *,
    plan_path: Path,
    ledger_path: Path,
    out: Path,
    epsilon: Fraction,
    delta: Fraction | None = None,
    noise: Noise | None = None,
    also: Sequence[str] = (),
    confidence: float = 0.95,
    release_number: int = 1,
    replace: bool = False,
    progress: Progress = lambda _: None,
) -> ReleaseReport:
    """Carry a plan out on data: charge, measure, reconstruct, write.

    Args:
        data: the CSV file.
        plan_path: the plan.
        ledger_path: must exist and know the dataset.
        out: the release directory; written whole or not at all.
        epsilon: what this release may spend.
        delta: with it; default: the spec's.
        noise: one kind, or None for the better one by the plan.
        also: extra columns beside the estimates: see reconstruction.postprocess.parse_columns.
        confidence: level of the noise intervals.
        release_number: another number than before draws fresh noise and pays for it.
        replace: whether a different release in `out` gives way.
        progress: told what is being done.

    Privacy:
        What is written is (epsilon, delta)-DP for the unit and neighbours that the spec declares;
        with all earlier releases of the dataset it stays within the cap on record.
    """
    columns = parse_columns(also)
    content = _bytes_of(plan_path)
    plan, spec = _planned(content, plan_path)
    delta = spec.privacy.delta if delta is None else delta
    priced = chosen_price(plan, spec, noise, epsilon=epsilon, delta=delta)
    query = _query(spec, priced, epsilon=epsilon, delta=delta, release_number=release_number)
    check_columns(columns, query.strategy)
    check_target(out, key=query.key, replace=replace)
    with Ledger.open(ledger_path, create=False) as ledger:
        before = ledger.head()
        measured = measure(data, query, ledger=ledger, progress=progress)
        free = ledger.head() == before
    manifest = _manifest(plan, query, measured, priced, confidence=confidence)
    write_release(
        out,
        spec=spec,
        answers=_answers(query, measured, columns, level=confidence, progress=progress),
        manifest=with_extra(manifest, spec, columns),
        replace=replace,
        sources=Sources(content, measured.values, _measured(query)),
        progress=lambda done: progress(f"writing answers: {done / spec.queries:.0%}"),
    )
    settled = query.mechanism.guarantee.delta
    return ReleaseReport(out, spec, priced, epsilon, settled, measured.account, free)


def _query(
    spec: Spec, priced: Priced, *, epsilon: Fraction, delta: Fraction, release_number: int
) -> Query:
    """Return what is to be measured, and how."""
    compiled, kind = compile_spec(spec), priced.selection.noise
    strategy = decode_strategy(priced.selection.strategy, noise=kind, workload=compiled.workload)
    guarantee = accounting.guarantee(kind, epsilon=epsilon, delta=delta)
    mechanism = design(strategy, privacy=spec.privacy, guarantee=guarantee)
    return Query(spec, compiled, strategy, mechanism, release_number)


@dataclass(frozen=True, eq=False)
class _Answers:
    """Computes the answers of an item, one table at a time."""

    query: Query
    estimates: Estimates
    level: float
    extra: ExtraColumns

    def __call__(self, item: Item) -> Iterator[TableAnswers]:
        query, compiled, strategy = self.query, self.query.compiled, self.query.strategy
        places = compiled.items[query.spec.items.index(item)]
        for table, position in zip(item.tables, places, strict=True):
            block = compiled.workload.blocks[position]
            std = standard_errors(
                strategy, block, position=position, noise_std=query.mechanism.noise_std
            )
            half = half_widths(strategy, block, std, position=position, level=self.level)
            estimate = self.estimates.answer(block, position).ravel()
            yield self.extra.added_to(TableAnswers(table, estimate, std, half), block)


def _answers(
    query: Query,
    measured: Measurement,
    columns: tuple[Column, ...],
    *,
    level: float,
    progress: Progress,
) -> _Answers:
    noisy = _off_the_grid(query, measured)
    estimates = reconstruct(query.strategy, noisy)
    std = query.mechanism.noise_std
    extra = extra_columns(
        columns, query.strategy, noisy, estimates, noise_std=std, progress=progress
    )
    return _Answers(query, estimates, level, extra)


def _noises(spec: Spec, cap: accounting.Cap) -> tuple[Noise, ...]:
    """Return both kinds where there is a delta and the cap can be charged for Gaussian noise."""
    both = spec.privacy.delta > 0 and cap.currency == "rho"
    return ("laplace", "gaussian") if both else ("laplace",)


def _off_the_grid(query: Query, measured: Measurement) -> list[Array]:
    """Split the noisy values by measurement and return them in units of the integer strategy."""
    sizes = [own.block.shape[0] for own in query.strategy.measurements]
    values = measured.values.astype(np.float64) * 2.0**query.mechanism.shift
    return np.split(values, np.cumsum(sizes)[:-1])


def _measured(query: Query) -> tuple[Measured, ...]:
    """Return what the noisy values are of, in their order."""
    names = [own.name for own in query.spec.domain.attributes]
    return tuple(
        Measured(" x ".join(names[i] for i in own.block.attributes), own.weight, own.block.queries)
        for own in query.strategy.measurements
    )


def _manifest(
    plan: Plan, query: Query, measured: Measurement, priced: Priced, *, confidence: float
) -> Manifest:
    account, bound = measured.account, priced.bound_rmse
    encoded = json.dumps(priced.selection.strategy, sort_keys=True).encode()
    guarantee = query.mechanism.guarantee
    return manifest_of(
        query.spec,
        mechanism=query.mechanism,
        noise_source=measured.source,
        strategy=StrategyFacts(
            name=priced.selection.best,
            kind=str(priced.selection.strategy["shape"]),
            rmse=priced.rmse,
            max_std_error=priced.max_std_error,
            lower_bound=bound,
            bound_kind=priced.selection.bound_kind,
            ratio=None if bound is None else priced.weighted_rmse / bound,
            sha256=hashlib.sha256(encoded).hexdigest(),
        ),
        plan=plan.digest,
        key=query.key,
        ledger=LedgerFacts(measured.head.seq, measured.head.hash),
        cumulative=spent_text(account),
        level=confidence,
        error_by_epsilon=error_curve(priced, query.spec, delta=guarantee.delta),
        measurements=values_digest(measured.values),
    )


def spent_text(account: Account) -> str:
    """Return what a dataset has spent of its cap: exactly, and as epsilon where it has a delta."""
    cap = account.cap
    spent, whole = accounting.units_text(account.spent), accounting.units_text(cap.units)
    amount = f"{cap.currency} {spent} of {whole}"
    if cap.delta:
        rho = Fraction(account.spent, accounting.UNIT)
        epsilon = accounting.epsilon_of(rho, cap.delta)
        amount += f" (epsilon {epsilon:.4g} at delta {float(cap.delta):g})"
    return f"{amount} has been spent on dataset {account.dataset} up to this release"


def _bytes_of(plan_path: Path) -> bytes:
    try:
        return plan_path.read_bytes()
    except OSError:
        raise SpecError(
            f"{plan_path} cannot be read; run `dpquery plan workload.yaml` first, or name the plan "
            "with --plan"
        ) from None


def _planned(content: bytes, plan_path: Path) -> tuple[Plan, Spec]:
    """Return a plan and the spec that it carries."""
    plan = read_plan(content)
    name = f"{plan_path}, {plan.spec_name}"
    return plan, parse(plan.spec_text, name=name, files=plan.spec_files)


def _write_atomically(path: Path, content: bytes) -> None:
    """Replace a file whole or not at all; the same content only makes it newer, for Make."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and path.read_bytes() == content:
            path.touch()
            return
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise SpecError(f"{path} cannot be written: {error.strerror}") from None
