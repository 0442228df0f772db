"""release() as a straight line: a plan carried out on data.

The data is opened behind one door, measurement.curator, after the ledger has been charged; all
that follows is a function of noisy answers and public inputs.
"""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from dpquery.commands.arguments import (
    Amount,
    FilePath,
    as_data,
    as_path,
    checked_count,
    checked_level,
    checked_memory,
    exact_delta,
    exact_epsilon,
    ledger_place,
)
from dpquery.commands.defaults import (
    LEVEL,
    MECHANISM_CHOICE,
    NOISE_CHOICE,
    PLAN_PATH,
    RELEASE_NUMBER,
    RELEASE_PATH,
)
from dpquery.exceptions import ChangedDataError, LargeDeltaWarning, PlanConflictError, SpecError
from dpquery.limits import MAX_STATE_BYTES
from dpquery.measurement.counting.locations import Data, stale_place
from dpquery.measurement.curator import Query, measure
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.funds import Room
from dpquery.measurement.ledger.ledger import Ledger, StoredMeasurement
from dpquery.mechanisms.choose import chosen_mechanism, remark_on
from dpquery.mechanisms.content import ReleaseRequest
from dpquery.mechanisms.linear import linear_queries
from dpquery.plan_file.plan import ChangedFile, changed_since, plan_and_spec, read_plan_file
from dpquery.plan_file.rehearsals import MechanismChoice
from dpquery.progress import stage
from dpquery.reconstruction.columns import parse_columns
from dpquery.releases.budget_words import large_delta, within_reason
from dpquery.releases.folder.write import Sources, claimed_target, write_release
from dpquery.releases.report.published import PublishedTables
from dpquery.spec.numbers import power
from dpquery.spec.problems import near_in_folder, not_read, one_of, quoted
from dpquery.spec.spec import Spec
from dpquery.strategy.strategy import CHOICES as NOISES
from dpquery.strategy.strategy import chosen as chosen_noise

if TYPE_CHECKING:
    from dpquery.mechanisms.choose import ReleaseMechanism
    from dpquery.releases.manifest_facts import PublicFactUse


@dataclass(frozen=True)
class StaleData:
    """Data that is not what the ledger's measurement was made of, by its times."""

    place: str  # the file
    day: str  # when it was measured
    changed: bool  # whether it was changed since; else it is missing
    near: str | None  # the file beside a missing one that may have been meant, if any
    otherwise: str  # what else measures anew

    def __str__(self) -> str:
        meant = f" (did you mean {quoted(self.near)}?)" if self.near else ""
        happened = "is newer than the measurement" if self.changed else f"is not there{meant}"
        new = f"give the dataset another `version:` in the spec{self.otherwise}"
        return (
            f"{self.place} {happened}: the numbers are those of {self.day}, out of the ledger. To "
            f"measure new data, which is charged, {new}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class ReleaseReport(PublishedTables):
    """What was released: public facts only."""

    directory: Path  # where it lies
    spec: Spec  # what was asked
    mechanism: "ReleaseMechanism"  # how it was made
    measured: StoredMeasurement  # what the ledger holds of it
    room: Room  # what there is room for after it: now, also where it was released long ago
    remark: str = ""  # what to say of the choice between linear strategies and RAP, if anything
    # a file of the spec that is another one now than when it was planned, if one is
    changed: ChangedFile | None = None
    facts: "tuple[PublicFactUse, ...]" = ()  # what became of public facts
    # data that is missing or newer than the ledger's measurement, if any is
    stale: StaleData | None = None

    @property
    def account(self) -> Account:
        """The dataset's account, as the release left it."""
        return self.measured.account

    @property
    def parent(self) -> Account | None:
        """Its parent's, if it has one, as the release left it."""
        return self.measured.parent

    @property
    def free(self) -> bool:
        """Whether the ledger held it already."""
        return self.measured.stored


CHECKING, MEASURING, ANSWERING, WRITING = (0.0, 0.1), (0.1, 0.6), (0.6, 0.75), (0.75, 1.0)
"""Shares of a release's work, about, as an operator sees them."""


def release(
    data: FilePath | Sequence[FilePath],
    *,
    epsilon: Amount,
    delta: Amount | None = None,
    plan_path: FilePath = PLAN_PATH,
    ledger_path: FilePath | None = None,
    out: FilePath = RELEASE_PATH,
    mechanism: str = MECHANISM_CHOICE,
    noise: str = NOISE_CHOICE,
    also: Sequence[str] = (),
    confidence: float | None = None,
    release_number: int = RELEASE_NUMBER,
    replace: bool = False,
    memory: str | int | None = None,
    as_planned: bool = False,
    same: bool = False,
) -> ReleaseReport:
    """Carry a plan out on data: choose its mechanism, charge and measure, make answers, write.

    Args:
        data: one file or several, a glob, a folder, or a table such as
            "sqlite:survey.db?table=persons".
        epsilon: what this release may spend.
        delta: with it; default: the spec's.
        plan_path: the plan.
        ledger_path: must exist and know the dataset. Default: $DPQUERY_LEDGER or the user's state
            directory.
        out: the release directory; written whole or not at all.
        mechanism: "linear", "rap", "adaptive", or "auto": what the plan prefers.
        noise: of a linear strategy: "laplace", "gaussian", or "auto": the better by the plan.
        also: extra columns beside the estimates: see `reconstruction.columns.parse_columns`.
        confidence: level of the noise intervals, 0.95 unless said; RAP and
            adaptive measurement have none.
        release_number: another number than before draws fresh noise and pays for it.
        replace: whether a different release in `out` is replaced.
        memory: for the rows of persons that are held at a time, such as "4GB", or bytes; 1 GiB
            unless said. Less takes more passes over the data; the law of what is released, its key
            and its price are the same.
        as_planned: whether a release is charged though a file of the spec says something else now
            than when it was planned.
        same: whether a release that the ledger holds is written though the data has changed since.

    Privacy:
        What is written is (epsilon, delta)-DP for the unit and neighbours that the spec declares;
        with all earlier releases of the dataset it stays within the cap on record.

    Returns:
        What was released; its tables are data frames: see PublishedTables.

    Raises:
        DpqueryError: of the class that says what was wrong.
    """
    directory, budget = as_path(out), exact_epsilon(epsilon)
    choice = one_of("mechanism", mechanism, get_args(MechanismChoice))
    kind = chosen_noise(one_of("noise", noise, NOISES))
    checked_level(confidence)
    checked_count("release_number", release_number, least=1)
    content = _bytes_of(as_path(plan_path))
    plan, spec = plan_and_spec(content, Path(plan_path))
    changed = changed_since(plan, Path(plan_path))
    at_delta = spec.privacy.delta if delta is None else within_reason(exact_delta(delta), spec)
    held, columns, located = _memory_for_persons(memory, spec), parse_columns(also), as_data(data)
    terms = ReleaseRequest(budget, at_delta, kind, columns, release_number, confidence)
    with ExitStack() as claim:
        with Ledger.open(ledger_place(ledger_path), create=False) as ledger:
            with stage("checking the plan", *CHECKING):
                chosen = chosen_mechanism(plan, spec, terms, mechanism=choice, ledger=ledger)
            remark = remark_on(plan, terms, mechanism=choice)
            paid = _is_paid(ledger, chosen.query, same=same)
            target = claimed_target(directory, key=chosen.query.key, replace=replace, paid=paid)
            workshop = claim.enter_context(target)
            ledger.check_replaced(directory)
            _check_unchanged(changed, as_planned=as_planned or paid)
            _warn_of_delta(at_delta, chosen.query)
            with stage("", *MEASURING):
                others = linear_queries(plan, spec, terms, other_than=chosen.query)
                measured = measure(located, chosen.query, ledger=ledger, memory=held, others=others)
            funds = ledger.funds(spec.dataset.id)
        stale, refusal = _stale(located, measured, same=same)
        with stage("working out answers", *ANSWERING):
            made = chosen.make(measured, level=confidence or LEVEL)
        with stage("", *WRITING):
            sources = Sources(content, measured.values, chosen.labels(measured.values))
            write_release(
                directory, made, spec=spec, sources=sources, workshop=workshop, unless_same=refusal
            )
    room = funds.room_like(chosen.query.guarantee_at, epsilon=budget)
    facts = made.manifest.facts
    return ReleaseReport(directory, spec, chosen, measured, room, remark, changed, facts, stale)


def _is_paid(ledger: Ledger, query: Query, *, same: bool) -> bool:
    """Whether the ledger has charged a release; PlanConflictError if it must have and has not."""
    paid = ledger.first_charged([query.key]) is not None
    if same and not paid:
        raise PlanConflictError(
            "--same writes a release again that was paid for, and the ledger holds none like this; "
            "leave --same out to pay for a new one; nothing was charged"
        )
    return paid


def _warn_of_delta(delta: Fraction, query: Query) -> None:
    """Warn of a large delta before it is charged, also where Laplace noise leaves it unused."""
    pure = not query.guarantee.delta
    unused = "; this release has Laplace noise, which does not use it" if pure else ""
    declared = max(query.spec.privacy.delta, query.spec.budget.delta)
    above = (
        f"warning: delta {power(float(delta))} is above the {power(float(declared))} that the spec "
        "declares: this release alone promises less than all together"
    )
    for words in [*large_delta(delta, query.spec), *[above] * (delta > declared)]:
        warnings.warn(f"{words}{unused}", LargeDeltaWarning, stacklevel=3)


def stale_data(data: Data, measured: StoredMeasurement, otherwise: str = "") -> StaleData | None:
    """Return what became of the data since the ledger's measurement, and what else measures anew.

    None where the data is as it was, or was measured just now.
    """
    place = stale_place(data, measured.after) if measured.stored else None
    if place is None:
        return None
    changed = place[1] == "changed"
    near = None if changed else near_in_folder(Path(place[0]))
    return StaleData(place[0], measured.day, changed, near, otherwise)


def _stale(
    data: Data, measured: StoredMeasurement, *, same: bool
) -> tuple[StaleData | None, ChangedDataError | None]:
    """Return what became of the data since the ledger's measurement, if it is not there.

    And what is raised where a release that is there would become another one.

    Raises:
        ChangedDataError: the data has changed.
    """
    stale = stale_data(data, measured, " and plan again, or give another --release-number")
    if stale is None:
        return None, None
    refusal = ChangedDataError(f"{stale}; nothing was written: --same writes the old numbers")
    if stale.changed and not same:
        raise refusal
    return stale, None if same else refusal


def _check_unchanged(changed: ChangedFile | None, *, as_planned: bool) -> None:
    """Refuse to charge for what says something else than the steward's files do now."""
    if changed and changed.in_content and not as_planned:
        raise PlanConflictError(
            f"{changed.name} says something else now than when it was planned; run `dpquery plan` "
            "again, or give --as-planned to release what was planned; nothing was charged"
        )


def _memory_for_persons(given: str | int | None, spec: Spec) -> int:
    if given is None:
        return MAX_STATE_BYTES
    if spec.privacy.person is None:
        raise SpecError(
            "the unit is row, so that no rows of persons are held; leave the memory out"
        )
    return checked_memory(given)


def _bytes_of(plan_path: Path) -> bytes:
    try:
        return read_plan_file(plan_path)
    except OSError as error:
        remedy = "run `dpquery plan workload.yaml` first, or name the plan with --plan"
        raise not_read(plan_path, error, remedy) from None
