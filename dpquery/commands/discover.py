"""discover() as a straight line: what to declare of a column, found privately.

    spec without its domain -> ledger -> charged query -> noisy numbers of persons -> a file

The data is opened behind one door, measurement.curator, after the ledger has been charged. What is
published is the values whose noisy number of persons is at a threshold or above, with that number;
of numbers, and of rows of persons, what follows from noisy numbers of persons in public classes.
"""

import csv
import io
import math
import os
import re
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from fractions import Fraction
from functools import cached_property, partial
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
from dpquery.commands.defaults import (
    CELLS,
    LARGEST_NUMBER,
    MAX_VALUES,
    PLAN_PATH,
    RELEASE_PATH,
    SPEC_PATH,
)
from dpquery.commands.release import StaleData, stale_data
from dpquery.exceptions import BudgetExceededError, LargeDeltaWarning, PlanConflictError, SpecError
from dpquery.measurement.accounting import UNIT, budget_cap
from dpquery.measurement.counting.value_counts import Sought
from dpquery.measurement.curator import measure
from dpquery.measurement.discovery import LEVELS_OF, OPTIONS, Discovery, found
from dpquery.measurement.ledger.caps import parent_cap
from dpquery.measurement.ledger.funds import Room
from dpquery.measurement.ledger.ledger import Ledger, StoredMeasurement
from dpquery.plan_file.plan import planned_before
from dpquery.planning.accounting_choice import settled_accounting
from dpquery.reconstruction.discovered import (
    FoundNumbers,
    MaxRows,
    above_noise,
    edge_text,
    found_numbers,
    max_rows_table,
)
from dpquery.releases.budget_words import large_delta, within_reason
from dpquery.releases.manifest import refuse_second_ledger
from dpquery.spec.numbers import power
from dpquery.spec.parsing.read import load_for_column
from dpquery.spec.problems import quoted
from dpquery.spec.spec import Spec
from dpquery.untrusted.files import check_place, replace_file

_PLAIN = re.compile(r"\w[\w .-]{0,99}")  # a name that a file may have, whatever the system
_MOST_HEADER = 100  # bytes
_MOST_REGRET = 2.0  # of a max_rows that is named
_MOSTLY = 0.95  # the chance that counts as "nearly always"


@dataclass(frozen=True, eq=False)
class DiscoveryReport:
    """What was found: public facts and noisy values only."""

    file: Path  # where the values lie
    query: Discovery  # how they were found
    measured: StoredMeasurement  # what the ledger holds of it
    room: Room  # what there is room for after it
    new: tuple[str, ...]  # what was put on record
    stale: StaleData | None = None  # what became of the data since the ledger's measurement
    cells: int = CELLS  # of the table that a max_rows is chosen for

    @cached_property
    def values(self) -> tuple[tuple[str, int], ...]:
        """The values found, with their noisy numbers of persons, or of rows."""
        return tuple(found(self.measured.values)) if self.query.sought == "values" else ()

    @cached_property
    def numbers(self) -> FoundNumbers | None:
        """Where numbers lie; None where noise hides it."""
        if self.query.sought != "numbers":
            return None
        return found_numbers(self.measured.values, self.query.mechanism.noise_std)

    @cached_property
    def max_rows(self) -> tuple[MaxRows, ...]:
        """What each max_rows would do; nothing where noise hides it."""
        if self.query.sought != "rows":
            return ()
        std, account = self.query.mechanism.noise_std, self.room.funds.tighter
        # Of all that is left, where max_rows is 1: a square of mu, or rho, which is half of it.
        left = max(account.remaining, 1) / UNIT * (2 if account.cap.currency == "rho" else 1)
        of_one = math.sqrt((2 if self.query.spec.privacy.neighbours == "replace" else 1) / left)
        return max_rows_table(self.measured.values, std, cells=self.cells, std_of_one=of_one)

    @property
    def least_regret(self) -> MaxRows | None:
        """The max_rows that loses least however it is; None where noise hides all."""
        return min(self.max_rows, key=lambda each: each.regret, default=None)

    @property
    def best_max_rows(self) -> int | None:
        """That one where it loses little; None where noise hides which does."""
        best = self.least_regret
        return None if best is None or best.regret > _MOST_REGRET else best.max_rows

    @property
    def least_seen(self) -> int:
        """The number of persons from which on they stand out of the noise, half of the time."""
        return _least_seen(self.query)

    @property
    def mostly_found_from(self) -> int:
        """The number of persons from which on a value is nearly always found."""
        noise = statistics.NormalDist().inv_cdf(_MOSTLY) * self.query.mechanism.noise_std
        return self.query.threshold + round(noise)


def discover(
    data: FilePath | Sequence[FilePath],
    *,
    column: str | None = None,
    number: str | None = None,
    rows_per_person: str | None = None,
    epsilon: Amount,
    delta: Amount,
    spec_path: FilePath = SPEC_PATH,
    person: str | None = None,
    max_values: int = MAX_VALUES,
    cells: int = CELLS,
    out: FilePath | None = None,
    ledger_path: FilePath | None = None,
    change_cap: bool = False,
    new_dataset: bool = False,
) -> DiscoveryReport:
    """Find what to declare of a column, and write it as a file.

    One of three: the values of a column that many persons have, the range and bins of one of
    numbers, or what each max_rows would leave out.

    Args:
        data: one file or several, a glob, a folder, or a table of a database.
        column: the header of a column of values.
        number: or of one of numbers.
        rows_per_person: or of the one that tells persons apart, of whom the rows are counted.
        epsilon: what the discovery may spend.
        delta: with it; of values half of it is the threshold's, off the budget's `discover`.
        spec_path: a spec, of which dataset, privacy, budget and file are read: its domain may name
            the file that is to be written.
        person: the column that tells persons apart, as the spec says.
        max_values: the most values of a person that count.
        cells: of the table that a max_rows is chosen for.
        out: the file; default: COLUMN.csv beside the spec.
        ledger_path: created if missing; the dataset and its cap are put on record. Default:
            $DPQUERY_LEDGER or the user's state directory.
        change_cap: replace a cap on record by the spec's.
        new_dataset: whether a new dataset, or parent, may have an id like one on record.

    Privacy:
        What is written is (epsilon, delta)-DP for the unit and neighbours that the spec declares;
        with all releases of the dataset it stays within the cap on record.

    Raises:
        DpqueryError: of the class that says what was wrong.
    """
    sought, column = _one_of(column, number, rows_per_person)
    checked_count("cells", cells, least=1, most=LARGEST_NUMBER)
    if cells != CELLS and sought != "rows":
        raise SpecError("--cells is of the table that --rows-per-person is for; leave it out")
    spec = _declared(as_path(spec_path), column, person, max_values, sought)
    place, located = ledger_place(ledger_path), as_data(data, "dpquery discover DATA")
    if not new_dataset:
        refuse_second_ledger(place, spec, release=Path(RELEASE_PATH))
    if out is None and not _PLAIN.fullmatch(column):
        raise SpecError(f"no file can be called {quoted(column)} everywhere; name one with --out")
    file = as_path(spec_path).parent / f"{column}.csv" if out is None else as_path(out)
    with Ledger.open(place, create=True) as ledger:
        asked = within_reason(exact_delta(delta), spec)
        if not asked:
            raise SpecError("a discovery needs a delta above 0; give one such as --delta 1e-8")
        spec = _counted(spec, ledger, sought, asked)
        query = Discovery(spec, max_values, exact_epsilon(epsilon), asked, sought)
        cap, parent = budget_cap(spec.budget, spec.privacy), parent_cap(spec.dataset, spec.privacy)
        before = partial(planned_before, as_path(spec_path).name, Path(PLAN_PATH))
        earlier = None if new_dataset else before
        ledger.check_registration(
            spec.dataset.id, cap, parent=parent, changes=change_cap, earlier=earlier
        )
        check_place(file)
        if ledger.first_charged([query.key]) is None:
            _check_new(query, file)
        for words in large_delta(query.delta, spec):
            warnings.warn(words, LargeDeltaWarning, stacklevel=2)
        new = ledger.register(spec.dataset.id, cap, parent=parent, changes=change_cap)
        measured = measure(located, query, ledger=ledger)
        funds = ledger.funds(spec.dataset.id)
    room = funds.room_like(query.guarantee_at, epsilon=query.epsilon)
    stale = stale_data(located, measured)
    report = DiscoveryReport(file, query, measured, room, new, stale, cells)
    if _found_nothing(file):
        file.unlink()
    replace_file(file, _content(report))
    return report


def _check_new(query: Discovery, file: Path) -> None:
    """Refuse what would be charged and find nothing, or could not be written."""
    if os.path.lexists(file) and not _found_nothing(file):
        raise PlanConflictError(
            f"{file} is there already, and is kept; name another file with --out, or move that "
            "one away; nothing was charged"
        )
    rows, least = query.spec.dataset.rows, _least_seen(query)
    if rows is not None and rows.count < least:
        whom = "rows" if query.spec.privacy.person is None else "persons"
        raise SpecError(
            f"at this epsilon and delta only what about {least:,} {whom} have stands out of the "
            f"noise, and the spec declares {rows.count:,} rows; give a larger --epsilon; nothing "
            "was charged"
        )


def _least_seen(query: Discovery) -> int:
    """Return the number of persons from which on they stand out of the noise."""
    if query.sought == "values":
        return query.threshold
    return math.ceil(above_noise(query.mechanism.noise_std, 1, len(LEVELS_OF[query.sought])))


def _one_of(*columns: str | None) -> tuple[Sought, str]:
    """Return what is looked for, and the column."""
    given = [(kind, name) for kind, name in zip(OPTIONS, columns, strict=True) if name is not None]
    if len(given) != 1:
        raise SpecError(
            "a discovery is of one column: give --column for its values, --number for the range "
            "and bins of numbers, or --rows-per-person for the max_rows that loses least"
        )
    return given[0]


def _declared(path: Path, column: str, person: str | None, max_values: int, sought: Sought) -> Spec:
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
    if sought == "rows":
        if max_values > 1:
            raise SpecError("--rows-per-person counts rows, not values; leave --max-values out")
        if declared != column:
            whom = "records; "
            if declared is not None:
                whom = f"persons by {quoted(declared)}; name that column, or "
            raise SpecError(
                f"--rows-per-person counts rows of those whom {path} protects, which are {whom}"
                f"declare `unit: {{person: {column}, max_rows: 1}}`"
            )
    elif declared == column:
        raise SpecError(
            f"{quoted(column)} tells persons apart, so that no value is of many; name another "
            "column"
        )
    return spec


def _counted(spec: Spec, ledger: Ledger, sought: Sought, asked: Fraction) -> Spec:
    """Return the spec with what its losses are added up as; refuse a budget without a delta."""
    delta = spec.budget.discover if sought == "values" else spec.budget.delta
    if spec.budget.fixed == "pure" or spec.budget.rho is not None or not delta:
        reason = "a discovery's noise is Gaussian, which takes an epsilon and a delta"
        otherwise = ""
        if sought == "values":
            reason = (
                "it has no delta for discoveries, whose noise is Gaussian, and which may find a "
                "value that one person has with the chance of a delta"
            )
            otherwise = ", or list the values, which costs nothing"
        # A tenth of it is set apart, which holds two discoveries like this one.
        delta = max(spec.budget.delta or Fraction(1, 10**6), 10 * asked * (sought == "values"))
        epsilon = 4.0 if spec.budget.epsilon is None else float(spec.budget.epsilon)
        apart = f", discover: {power(float(delta / 10))}" if sought == "values" else ""
        raise BudgetExceededError(
            f"the budget of {spec.dataset.id!r} is {spec.budget}: {reason}; declare `budget: "
            f"{{epsilon: {epsilon:g}, delta: {power(float(delta))}{apart}}}` (and give "
            f"--change-cap where another is on record){otherwise}; nothing was charged"
        )
    on_record = {each.account.dataset: each.account.cap.currency for each in ledger.status()}
    settled = settled_accounting(spec, on_record, "auto")
    if settled is not None:
        return spec.counted_in(settled.accounting)
    # Adaptive measurement, which the closest answers may take, is charged in rho alone.
    return spec.counted_in("zcdp" if spec.prefer == "closest" else "gdp")


def _found_nothing(file: Path) -> bool:
    """Whether a file is what a discovery writes where nothing stands out of the noise."""
    return (
        file.is_file()
        and file.stat().st_size < _MOST_HEADER
        and re.fullmatch(b"(code|from|max_rows),[a-z_,]+\n", file.read_bytes()) is not None
    )


def _content(done: DiscoveryReport) -> bytes:
    """Return the file of what was found: a header and a line for each value, bin or max_rows."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    noisy = "noisy_rows" if done.query.spec.privacy.person is None else "noisy_counted"
    match done.query.sought:
        case "values":
            lines.writerow(["code", "label", noisy])
            # `other` is what a spec calls all that is not listed.
            labels = {"other": "(other)"}
            lines.writerows((value, labels.get(value, value), n) for value, n in done.values)
        case "numbers":
            lines.writerow(["from", "below", noisy, "std", "classes"])
            bins = () if done.numbers is None else done.numbers.bins
            lines.writerows(
                (edge_text(low), edge_text(high), n, f"{std:.6g}", classes)
                for low, high, n, std, classes in bins
            )
        case "rows":
            lines.writerow(field.name for field in fields(MaxRows))
            lines.writerows(
                (each.max_rows, *(f"{figure:.6g}" for figure in astuple(each)[1:]))
                for each in done.max_rows
            )
    return text.getvalue().encode()
