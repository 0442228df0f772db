"""discover() as a straight line: the values of a column that many persons have, found privately.

    spec without its domain -> ledger -> charged query -> noisy numbers of persons -> values file

The data is opened behind one door, measurement.curator, after the ledger has been charged. What is
published is the values whose noisy number of persons is at a threshold or above, with that number.
"""

import csv
import io
import os
import re
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

from dpquery.commands.arguments import (
    Amount,
    FilePath,
    as_data,
    as_path,
    checked_count,
    exact_delta,
    exact_epsilon,
    ledger_place,
)
from dpquery.commands.defaults import LARGEST_NUMBER, MAX_VALUES, PLAN_PATH, RELEASE_PATH, SPEC_PATH
from dpquery.exceptions import (
    BudgetExceededError,
    LargeDeltaWarning,
    PlanConflictError,
    SpecError,
)
from dpquery.measurement.accounting import budget_cap
from dpquery.measurement.counting.locations import stale_place
from dpquery.measurement.curator import measure
from dpquery.measurement.discovery import Discovery, found
from dpquery.measurement.ledger.caps import parent_cap
from dpquery.measurement.ledger.funds import Room
from dpquery.measurement.ledger.ledger import Ledger, StoredMeasurement
from dpquery.plan_file.plan import planned_before
from dpquery.planning.accounting_choice import settled_accounting
from dpquery.releases.budget_words import large_delta, within_reason
from dpquery.releases.manifest import refuse_second_ledger
from dpquery.spec.numbers import power
from dpquery.spec.parsing.read import load_for_column
from dpquery.spec.problems import quoted
from dpquery.spec.spec import Spec
from dpquery.untrusted.files import check_place, replace_file

_PLAIN = re.compile(r"\w[\w .-]{0,99}")  # a name that a file may have, whatever the system
_MOSTLY = 0.95  # the chance that counts as "nearly always"


@dataclass(frozen=True, eq=False)
class DiscoveryReport:
    """What was found: public facts and noisy values only."""

    file: Path  # where the values lie
    query: Discovery  # how they were found
    values: tuple[tuple[str, int], ...]  # with their noisy numbers of persons, or of rows
    measured: StoredMeasurement  # what the ledger holds of it
    room: Room  # what there is room for after it
    new: tuple[str, ...]  # what was put on record
    stale: str = ""  # what became of the data since the ledger's measurement, if anything

    @property
    def mostly_found_from(self) -> int:
        """The number of persons from which on a value is nearly always found."""
        noise = statistics.NormalDist().inv_cdf(_MOSTLY) * self.query.mechanism.noise_std
        return self.query.threshold + round(noise)


def discover(
    data: FilePath | Sequence[FilePath],
    *,
    column: str,
    epsilon: Amount,
    delta: Amount,
    spec_path: FilePath = SPEC_PATH,
    person: str | None = None,
    max_values: int = MAX_VALUES,
    out: FilePath | None = None,
    ledger_path: FilePath | None = None,
    new_dataset: bool = False,
) -> DiscoveryReport:
    """Find the values of a column that many persons have, and write them as a file of values.

    Args:
        data: one file or several, a glob, a folder, or a table of a database.
        column: its header.
        epsilon: what the discovery may spend.
        delta: with it; half of it is the threshold's, and comes off the budget's `discover`.
        spec_path: a spec, of which dataset, privacy, budget and file are read: its domain may name
            the file that is to be written.
        person: the column that tells persons apart, as the spec says.
        max_values: the most values of a person that count.
        out: the file; default: COLUMN.csv beside the spec.
        ledger_path: created if missing; the dataset and its cap are put on record. Default:
            $DPQUERY_LEDGER or the user's state directory.
        new_dataset: whether a new dataset, or parent, may have an id like one on record.

    Privacy:
        What is written is (epsilon, delta)-DP for the unit and neighbours that the spec declares;
        with all releases of the dataset it stays within the cap on record.

    Raises:
        DpqueryError: of the class that says what was wrong.
    """
    spec = _declared(as_path(spec_path), column, person, max_values)
    place, located = ledger_place(ledger_path), as_data(data, "dpquery discover DATA")
    if not new_dataset:
        refuse_second_ledger(place, spec, release=Path(RELEASE_PATH))
    file = _file_of(as_path(spec_path), column) if out is None else as_path(out)
    with Ledger.open(place, create=True) as ledger:
        spec = _counted(spec, ledger)
        query = Discovery(spec, max_values, exact_epsilon(epsilon), _delta(delta, spec))
        cap, parent = budget_cap(spec.budget, spec.privacy), parent_cap(spec.dataset, spec.privacy)
        before = partial(planned_before, as_path(spec_path).name, Path(PLAN_PATH))
        earlier = None if new_dataset else before
        ledger.check_registration(spec.dataset.id, cap, parent=parent, earlier=earlier)
        check_place(file)
        if os.path.lexists(file) and ledger.first_charged([query.key]) is None:
            raise PlanConflictError(
                f"{file} is there already, and is kept; name another file with --out, or move that "
                "one away; nothing was charged"
            )
        for words in large_delta(query.delta, spec):
            warnings.warn(words, LargeDeltaWarning, stacklevel=2)
        new = ledger.register(spec.dataset.id, cap, parent=parent)
        measured = measure(located, query, ledger=ledger)
        funds = ledger.funds(spec.dataset.id)
    room = funds.room_like(query.guarantee_at, epsilon=query.epsilon)
    values = found(measured.values)
    replace_file(file, _content(values, query))
    place_of = stale_place(located, measured.after) if measured.stored else None
    stale = "" if place_of is None else f"{place_of[0]} is {place_of[1]} since {measured.day}"
    return DiscoveryReport(file, query, tuple(values), measured, room, new, stale)


def _declared(path: Path, column: str, person: str | None, max_values: int) -> Spec:
    """Return what the spec declares but its domain, which is the column; refuse what differs."""
    spec = load_for_column(path, column)
    declared = spec.privacy.person
    checked_count("max_values", max_values, least=1, most=LARGEST_NUMBER)
    if person is not None and person != declared:
        unit = "row" if declared is None else f"a person by {quoted(declared)}"
        raise SpecError(
            f"--person is {quoted(person)} and the unit of {path} is {unit}; change one of them"
        )
    if declared is None and max_values > 1:
        raise SpecError(
            "the unit is row, and a row has one value; leave --max-values out, or declare `unit: "
            "{person: id, max_rows: 3}` in the spec"
        )
    if declared == column:
        raise SpecError(
            f"{quoted(column)} tells persons apart, so that no value is of many; name another "
            "column"
        )
    return spec


def _counted(spec: Spec, ledger: Ledger) -> Spec:
    """Return the spec with what its losses are added up as; refuse a budget without a delta."""
    if spec.budget.fixed == "pure" or spec.budget.rho is not None or not spec.budget.discover:
        raise BudgetExceededError(
            f"the budget of {spec.dataset.id!r} is {spec.budget}: it has no delta for discoveries, "
            "and a value that one person has may be found with the chance of a delta; declare "
            f"`budget: {{{_with_discover(spec)}}}` (and `dpquery plan SPEC --change-cap` where "
            "another budget is on record), or list the values, which costs nothing; nothing was "
            "charged"
        )
    on_record = {each.account.dataset: each.account.cap.currency for each in ledger.status()}
    settled = settled_accounting(spec, on_record, "auto")
    if settled is not None:
        return spec.counted_in(settled.accounting)
    # Adaptive measurement, which the closest answers may take, is charged in rho alone.
    return spec.counted_in("zcdp" if spec.prefer == "closest" else "gdp")


def _with_discover(spec: Spec) -> str:
    """Return the spec's budget with a tenth of its delta for discoveries, as it is written."""
    delta = spec.budget.delta or Fraction(1, 10**6)
    epsilon = 4.0 if spec.budget.epsilon is None else float(spec.budget.epsilon)
    return (
        f"epsilon: {epsilon:g}, delta: {power(float(delta))}, discover: {power(float(delta / 10))}"
    )


def _delta(given: Amount, spec: Spec) -> Fraction:
    delta = within_reason(exact_delta(given), spec)
    if not delta:
        raise SpecError("a discovery needs a delta above 0; give one such as --delta 1e-8")
    return delta


def _file_of(spec_path: Path, column: str) -> Path:
    if not _PLAIN.fullmatch(column):
        raise SpecError(f"no file can be called {quoted(column)} everywhere; name one with --out")
    return spec_path.parent / f"{column}.csv"


def _content(values: Sequence[tuple[str, int]], query: Discovery) -> bytes:
    """Return the file of values: a header, then value, label and noisy number, a line each."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    whom = "rows" if query.spec.privacy.person is None else "persons"
    lines.writerow(["code", "label", f"noisy_{whom}"])
    # `other` is what a spec calls all that is not listed.
    labels = {"other": "(other)"}
    lines.writerows((value, labels.get(value, value), count) for value, count in values)
    return text.getvalue().encode()
