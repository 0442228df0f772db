"""Caps on record, and parents.

The people of a dataset may be in others too: the waves of a panel, or extracts of one register.
What is spent on each is then spent on the same people, and the sum is bounded by the cap of a
parent, whom their specs name. Every charge of a dataset is one of its parent too, in one event.

A parent is registered with the first dataset that names it, and may be a dataset that is released
from itself. It has no parent of its own: one level is what a sum over the same people needs. A
dataset keeps the parent it was given, since a charge that is left out is never made up for. One
that was charged before comes under a parent only as a change of the record that is asked for, and
the parent then takes over all that was spent: refused instead, the operator's way out would be a
new name, and its history would count nowhere.

Losses add up in one currency and for one kind of unit. Persons are persons whatever the column is
called that identifies them: that these are the same people is what naming the parent declares.

A new name is a new budget. One that is probably another spelling of a name on record, a dataset's
or a parent's, is refused unless whoever plans says that it is new.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dpquery.exceptions import BudgetExceededError, PlanConflictError
from dpquery.measurement.accounting import Cap, budget_cap, cap_counted_in, unit_kind
from dpquery.measurement.ledger.admission import account_of, check_unit
from dpquery.measurement.ledger.events import JSON, Account, EventKind, LedgerState, cap_fields
from dpquery.measurement.ledger.funds import Funds, cap_text, times_left
from dpquery.spec.numbers import power
from dpquery.spec.spec import Dataset, Privacy, Spec

Change = tuple[EventKind, dict[str, JSON]]


def parent_cap(dataset: Dataset, privacy: Privacy) -> Account | None:
    """Return the parent that a spec declares, if it does, without charges; its unit has no column.

    Raises:
        SpecError: an (epsilon, delta) too small to be counted.
    """
    if dataset.parent is None:
        return None
    cap = budget_cap(dataset.parent.budget, privacy)
    return Account(dataset.parent.id, replace(cap, unit=unit_kind(cap.unit)))


def declared_funds(spec: Spec) -> Funds:
    """Return the accounts that a spec declares, with nothing spent.

    Raises:
        SpecError: an (epsilon, delta) too small to be counted.
    """
    dataset, cap = spec.dataset, budget_cap(spec.budget, spec.privacy)
    parent = parent_cap(dataset, spec.privacy)
    name = None if parent is None else parent.dataset
    return Funds(Account(dataset.id, cap, parent=name), parent)


def registration(
    state: LedgerState, dataset: str, cap: Cap, parent: Account | None
) -> Iterator[Change]:
    """Yield the events that register a dataset; none where all is on record already.

    Append each before taking the next; `check_families` looks at the outcome.

    Raises:
        PlanConflictError: the record says something else.
    """
    account = state.accounts.get(dataset)
    parent_name = None if parent is None else parent.dataset
    if parent is not None:
        _check_level(state, dataset, parent=parent.dataset)
        yield from _registered(state, parent.dataset, parent.cap, whose="parent")
    if account is not None and account.parent != parent_name:
        _check_same_parent(account, parent_name)
        raise PlanConflictError(
            f"dataset {dataset!r} is on record without a parent and the spec names "
            f"{parent_name!r}; --change-cap puts it under that, and charges there what was spent "
            "already, or leave `parent` out"
        )
    yield from _registered(state, dataset, cap, whose="dataset")
    if account is None and parent_name is not None:
        yield _adoption(state.accounts[dataset], parent=state.accounts[parent_name])


def change(
    state: LedgerState, dataset: str, cap: Cap, parent: Account | None, *, ledger: Path
) -> Iterator[Change]:
    """Yield the events that change a dataset's record to its spec; see `registration`.

    Raises:
        PlanConflictError: another currency or unit after something was spent: the sum that bounds
            the loss must be of one kind from the first charge to the last; or another parent.
        BudgetExceededError: the parent has no room for what was spent already.
        LedgerError: the dataset is not registered.
    """
    account = account_of(state, dataset, ledger=ledger)
    parent_name = None if parent is None else parent.dataset
    if account.parent != parent_name:
        _check_same_parent(account, parent_name)
    if parent is not None:
        _check_level(state, dataset, parent=parent.dataset)
        yield from _changed(state, parent.dataset, parent.cap)
    yield from _changed(state, dataset, cap)
    if parent_name is not None and account.parent is None:
        yield _adoption(account, parent=state.accounts[parent_name])


def check_new(
    state: LedgerState, dataset: str, parent: Account | None, *, earlier: Callable[[], str]
) -> None:
    """Refuse a new name that is probably one on record, spelled otherwise or given up.

    The names of a dataset and its parent may be alike, since charges of the one are charged to the
    other. `earlier` gives the dataset that the same spec was planned for before, or nothing.

    Raises:
        PlanConflictError: one of the two is new, and like one on record.
    """
    above = None if parent is None else parent.dataset
    for new, other in ((dataset, above), (above, dataset)):
        if new is None or new in state.accounts:
            continue
        known = [name for name in state.accounts if name != other]
        like, how = next((name for name in known if _alike(new, name)), None), "which is like it"
        if like is None and new == dataset and (before := earlier()) in known:
            like = None if _same_but_for_digits(new, before) else before
            how = "for which this spec was planned before"
        if like is not None:
            raise PlanConflictError(
                f"dataset {new!r} is not on record, and {like!r} is, {how}; a new id is a new "
                f"budget: restore {like!r} in the spec if the people are the same, or add "
                "--new-dataset if they are others; nothing was put on record"
            )


def _alike(new: str, known: str) -> bool:
    """Return whether two names differ in case and marks alone, or in a letter or two.

    Names of the same letters and other digits are those of years or waves. Of fewer than three
    letters none is like another, of eight or more each edit may be one of two.
    """
    first, second = _letters(new), _letters(known)
    if first == second:
        return not _same_but_for_digits(new, known)
    longest = max(len(first), len(second))
    return _within(first, second, edits=(longest >= 3) + (longest >= 8))


def _same_but_for_digits(new: str, known: str) -> bool:
    digits, known_digits = (re.sub("[^0-9]", "", name) for name in (new, known))
    return _letters(new) == _letters(known) and digits != known_digits


def _letters(name: str) -> str:
    return re.sub("[^a-z]", "", name.lower())


def _within(first: str, second: str, *, edits: int) -> bool:
    """Return whether so many edits make one text of the other; two letters swapped are one."""
    if abs(len(first) - len(second)) > edits:
        return False
    pairs = enumerate(zip(first, second, strict=False))
    shared = min(len(first), len(second))
    same = next((place for place, (one, other) in pairs if one != other), shared)
    first, second = first[same:], second[same:]
    if not edits or first == second:
        return first == second
    swapped = len(first) > 1 and first[:2] == second[1::-1]
    return (
        _within(first[1:], second[1:], edits=edits - 1)
        or _within(first[1:], second, edits=edits - 1)
        or _within(first, second[1:], edits=edits - 1)
        or (swapped and _within(first[2:], second[2:], edits=edits - 1))
    )


def check_families(state: LedgerState) -> None:
    """Refuse a record in which a charge cannot be added to a parent's.

    Raises:
        PlanConflictError: a parent has a parent, or another currency or unit than its dataset.
    """
    for account in state.accounts.values():
        parent = state.parent_of(account)
        if parent is None:
            continue
        pair = f"dataset {account.dataset!r} and its parent {parent.dataset!r}"
        for recorded, of_dataset in (
            (parent.cap.currency, account.cap.currency),
            (unit_kind(parent.cap.unit), unit_kind(account.cap.unit)),
        ):
            if recorded != of_dataset:
                raise PlanConflictError(
                    f"{pair} cannot share a charge: one is on record for {of_dataset!r}, the other "
                    f"for {recorded!r}; declare the same unit, neighbours and kind of budget for "
                    "both, or name another parent"
                )


def _registered(state: LedgerState, name: str, cap: Cap, *, whose: str) -> Iterator[Change]:
    """Yield the event that registers a cap or the name of its person column, if one is needed."""
    account = state.accounts.get(name)
    if account is None:
        yield "register", cap_fields(name, cap)
        return
    recorded, declared = account.cap, _with_column(cap, recorded=account.cap)
    if recorded == declared:
        return
    if not account.spent and cap_counted_in(recorded, declared.currency) == declared:
        yield "change-cap", cap_fields(name, declared)
        for other in list(state.accounts.values()):  # none was charged, as their parent was not
            if other.parent == name:
                moved = cap_counted_in(other.cap, declared.currency)
                yield "change-cap", cap_fields(other.dataset, moved)
        return
    if _names_column_first(declared, recorded=recorded):
        recorded = replace(recorded, unit=declared.unit)  # only the budget can still differ
        if recorded == declared:
            yield "change-cap", cap_fields(name, declared)
            return
    check_unit(name, recorded, declared.unit)
    raise PlanConflictError(
        f"{whose} {name!r} is on record with a cap of {cap_text(recorded)}, but the spec declares "
        f"{cap_text(cap)}; restore the budget in the spec, or change the cap on record with "
        "--change-cap"
    )


def _changed(state: LedgerState, name: str, cap: Cap) -> Iterator[Change]:
    """Yield the event that registers or changes a cap, if one is needed."""
    account = state.accounts.get(name)
    if account is None:
        yield "register", cap_fields(name, cap)
        return
    recorded, declared = account.cap, _with_column(cap, recorded=account.cap)
    same_unit = recorded.unit == declared.unit or _names_column_first(declared, recorded=recorded)
    if account.spent and not (recorded.currency == declared.currency and same_unit):
        raise PlanConflictError(
            f"dataset {name!r} has been charged in {recorded.currency} for {recorded.unit!r}, "
            f"and that cannot become {declared.currency} for {declared.unit!r}; restore those "
            "in the spec"
        )
    if declared.discover < account.threshold:
        raise PlanConflictError(
            f"discoveries have spent delta {power(float(account.threshold))} of {name!r}, and the "
            f"spec sets {power(float(declared.discover))} apart for them; restore `discover`"
        )
    if recorded != declared:
        yield "change-cap", cap_fields(name, declared)


def _adoption(account: Account, *, parent: Account) -> Change:
    """Return the event that puts a dataset under a parent, who takes over what was spent."""
    over = parent.over(account.spent, account.pure)
    if account.threshold > parent.cap.discover - parent.threshold:
        raise BudgetExceededError(
            f"discoveries have spent delta {power(float(account.threshold))} of "
            f"{account.dataset!r}; set as much apart by `discover` in the budget of the parent "
            f"{parent.dataset!r}; nothing was changed"
        )
    if account.spent and not parent.admits(account.spent, account.pure):
        spent = f"what was spent on dataset {account.dataset!r}"
        budget = (
            f"the budget of {cap_text(parent.cap)} of the parent {parent.dataset!r}, for all of "
            "its datasets together"
        )
        raise BudgetExceededError(
            f"{spent} is {times_left(over)} what is left of {budget}; nothing was changed"
            if over is not None
            else f"nothing is left of {budget}, to take over {spent}; nothing was changed"
        )
    fields: dict[str, JSON] = {"dataset": account.dataset, "parent": parent.dataset}
    return "adopt", fields | {"units": str(account.spent)}


def _check_level(state: LedgerState, dataset: str, *, parent: str) -> None:
    above = state.accounts.get(parent)
    children = [child.dataset for child in state.accounts.values() if child.parent == dataset]
    if above is not None and above.parent is not None:
        raise PlanConflictError(
            f"{parent!r} cannot be a parent: it has the parent {above.parent!r} itself; name that "
            f"one as the parent of {dataset!r}"
        )
    if children:
        raise PlanConflictError(
            f"dataset {dataset!r} cannot have a parent: it is that of {children[0]!r}, and a "
            "parent has none; leave `parent` out of its spec"
        )


def _check_same_parent(account: Account, parent_name: str | None) -> None:
    """Refuse to take a dataset away from its parent."""
    if account.parent is not None:
        named = "names none" if parent_name is None else f"names {parent_name!r}"
        raise PlanConflictError(
            f"dataset {account.dataset!r} is on record with the parent {account.parent!r} and the "
            f"spec {named}; restore the parent in the spec: no charge to it may be left out"
        )


def _with_column(declared: Cap, *, recorded: Cap) -> Cap:
    """Return the declared cap, in the unit on record where it only lacks the column's name."""
    same_kind = unit_kind(recorded.unit) == declared.unit
    return replace(declared, unit=recorded.unit) if same_kind else declared


def _names_column_first(declared: Cap, *, recorded: Cap) -> bool:
    """Return whether a parent known only by its datasets is now a dataset itself."""
    return recorded.unit != declared.unit and recorded.unit == unit_kind(declared.unit)
