"""What is spent on the same people under several names is bounded by one cap, exactly."""

import json
import sqlite3
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import (
    PANEL,
    PANEL_CAP,
    WHOLE,
    kinds,
    opened,
    price,
    release_of,
    reserve,
    run_script,
    spent_by,
)

from dpquery.exceptions import BudgetExceededError, LedgerError, PlanConflictError
from dpquery.measurement.accounting import UNIT, Cap, unit_kind
from dpquery.measurement.ledger.admission import check_price
from dpquery.measurement.ledger.events import Account, read_chain, seal
from dpquery.measurement.ledger.ledger import Ledger


def test_a_price_is_one_of_the_parents_currency_and_unit_too():
    account, parent = Account("wave-1", PANEL_CAP, parent="panel"), Account("panel", WHOLE)
    check_price(account, price(), parent=parent)
    for other in (replace(WHOLE, currency="rho"), replace(WHOLE, unit="row, replace")):
        with pytest.raises(PlanConflictError, match="changed meanwhile"):
            check_price(account, price(), parent=replace(parent, cap=other))


def test_every_charge_of_a_dataset_is_its_parents_too_in_one_event(panel):
    with opened(panel) as ledger:
        before = ledger.head().seq
        one = release_of(ledger, "wave-1", "a")
        two = release_of(ledger, "wave-2", "b", 2 * UNIT)
        assert spent_by(ledger) == {"panel": 3, "wave-1": 1, "wave-2": 2}
        assert kinds(ledger)[before:] == ["reserve", "commit", "reserve", "commit"]
        assert [e.fields.get("parent") for e in ledger.history()[before::2]] == ["panel", "panel"]
        assert one.parent is not None
        assert two.parent is not None
        assert (one.parent.spent, two.parent.spent) == (UNIT, 3 * UNIT)
        # A later run is told what the earlier one was.
        again = release_of(ledger, "wave-1", "a")
        assert (again.account, again.parent) == (one.account, one.parent)
        assert spent_by(ledger)["panel"] == 3


def test_the_message_names_the_cap_that_refuses_and_what_remains(panel):
    with opened(panel) as ledger:
        release_of(ledger, "wave-1", "a", 4 * UNIT)
        with pytest.raises(BudgetExceededError) as refusal:
            release_of(ledger, "wave-1", "b", UNIT // 2)
        release_of(ledger, "wave-2", "c", 3 * UNIT)
        ledger.register("panel", WHOLE)
        release_of(ledger, "panel", "d", 5 * UNIT // 2)
        with pytest.raises(BudgetExceededError) as parents:
            release_of(ledger, "wave-2", "e", UNIT)
        with pytest.raises(BudgetExceededError) as both:
            release_of(ledger, "wave-1", "f", UNIT)
        history = ledger.head()
    assert str(refusal.value) == (
        "dataset 'wave-1': nothing is left of the budget of epsilon 4; nothing was charged"
    )
    assert str(parents.value) == (
        "dataset 'wave-2': this release needs 2 times what is left of the budget of epsilon 10 of "
        "its parent 'panel', for all of its datasets together; nothing was charged"
    )
    assert str(both.value) == str(refusal.value)  # its own has less left
    with opened(panel) as ledger:
        assert ledger.head() == history


def test_a_run_that_never_finished_stays_charged_to_both_and_is_continued_free(panel):
    with opened(panel) as ledger:
        with ledger.hold("a"):
            reserve(ledger, "wave-1", "a")
        release_of(ledger, "wave-1", "a")
        assert spent_by(ledger) == {"panel": 1, "wave-1": 1, "wave-2": 0}
        with ledger.hold("b"):
            reserve(ledger, "wave-1", "b")
        ledger.abandon("b")
        assert spent_by(ledger) == {"panel": 2, "wave-1": 2, "wave-2": 0}
        release_of(ledger, "wave-1", "b")
        assert spent_by(ledger) == {"panel": 3, "wave-1": 3, "wave-2": 0}


def test_registering_again_changes_nothing_and_any_difference_is_a_conflict(panel):
    less = Account("panel", replace(WHOLE, units=UNIT, epsilon=Fraction(1)))
    with opened(panel) as ledger:
        before = ledger.head()
        ledger.register("wave-1", PANEL_CAP, parent=PANEL)
        for parent, match in (
            (None, "with the parent 'panel' and the spec names none; restore the parent"),
            (Account("others", WHOLE), "with the parent 'panel' and the spec names 'others'"),
            (less, "parent 'panel' is on record with a cap of epsilon 10, but the spec declares"),
        ):
            with pytest.raises(PlanConflictError, match=match):
                ledger.register("wave-1", PANEL_CAP, parent=parent)
        for parent in (None, Account("others", WHOLE)):
            with pytest.raises(PlanConflictError, match="restore the parent"):
                ledger.register("wave-1", PANEL_CAP, parent=parent, changes=True)
        assert ledger.head() == before


def test_a_parent_planned_itself_with_another_budget_is_told_of_the_budget(tmp_path):
    panel = Account("panel", replace(WHOLE, unit="person, add-remove"))
    wave = replace(PANEL_CAP, unit="person by id, add-remove")
    itself = replace(WHOLE, unit="person by nr, add-remove", units=UNIT, epsilon=Fraction(1))
    with Ledger.open(tmp_path / "own" / "ledger.db", create=True) as ledger:
        ledger.register("wave", wave, parent=panel)
        with pytest.raises(PlanConflictError) as refusal:
            ledger.register("panel", itself)
        with pytest.raises(PlanConflictError, match="is on record for the unit"):
            ledger.register("panel", replace(itself, unit="row, add-remove"))
        ledger.register("panel", itself, changes=True)
        ledger.register("panel", itself)
    assert "with a cap of epsilon 10, but the spec declares epsilon 1;" in str(refusal.value)


def test_a_parents_cap_is_changed_on_record(panel):
    less = Account("panel", replace(WHOLE, units=UNIT, epsilon=Fraction(1)))
    with opened(panel) as ledger:
        ledger.register("wave-1", PANEL_CAP, parent=less, changes=True)
        release_of(ledger, "wave-1", "a")
        with pytest.raises(
            BudgetExceededError, match="nothing is left of the budget of epsilon 1 of its pa"
        ):
            release_of(ledger, "wave-2", "b", 1)
        with pytest.raises(PlanConflictError, match="epsilon 1, but the spec declares epsilon 10"):
            ledger.register("wave-2", PANEL_CAP, parent=PANEL)


def test_a_dataset_charged_before_brings_what_it_spent_to_its_parent(panel):
    with opened(panel) as ledger:
        ledger.register("wave-0", PANEL_CAP)
        early = release_of(ledger, "wave-0", "early", 3 * UNIT)
        with ledger.hold("late"):
            reserve(ledger, "wave-0", "late", UNIT)
        with pytest.raises(PlanConflictError, match="--change-cap"):
            ledger.register("wave-0", PANEL_CAP, parent=PANEL)
        assert spent_by(ledger)["panel"] == 0
        ledger.register("wave-0", PANEL_CAP, parent=PANEL, changes=True)
        assert kinds(ledger)[-1] == "adopt"
        assert spent_by(ledger) == {"panel": 4, "wave-1": 0, "wave-2": 0, "wave-0": 4}
        # What was released before says what it said; what is released now names the parent.
        again = release_of(ledger, "wave-0", "early", 3 * UNIT)
        assert (again.account, again.parent, early.parent) == (early.account, None, None)
        late = release_of(ledger, "wave-0", "late", UNIT)
        assert late.parent is not None
        assert late.parent.spent == 4 * UNIT
        ledger.register("wave-0", PANEL_CAP, parent=PANEL)


@pytest.mark.parametrize(("most", "said"), [(10, "is 2 times what is left of"), (8, "nothing is")])
def test_a_dataset_that_spent_more_than_its_parent_has_left_is_not_adopted(panel, most, said):
    parent = Account("panel", Cap("epsilon", most * UNIT, epsilon=Fraction(most)))
    with opened(panel) as ledger:
        ledger.register("wave-0", PANEL_CAP)
        for wave in ("wave-0", "wave-1", "wave-2"):
            release_of(ledger, wave, wave, 4 * UNIT)
        before = ledger.history()
        with pytest.raises(BudgetExceededError, match=said):
            ledger.register("wave-0", PANEL_CAP, parent=parent, changes=True)
        assert ledger.history() == before


def test_a_parent_has_no_parent(panel):
    above = Account("everybody", WHOLE)
    with opened(panel) as ledger:
        before = ledger.head()
        with pytest.raises(PlanConflictError, match="'panel' cannot have a parent: it is that of"):
            ledger.register("panel", WHOLE, parent=above)
        with pytest.raises(PlanConflictError, match="'panel' cannot have a parent"):
            ledger.register("panel", WHOLE, parent=above, changes=True)
        with pytest.raises(PlanConflictError, match="'wave-1' cannot be a parent: it has the par"):
            ledger.register("part", PANEL_CAP, parent=Account("wave-1", PANEL_CAP))
        assert ledger.head() == before


def test_a_dataset_and_its_parent_are_charged_in_one_currency_for_one_kind_of_unit(panel):
    rho = Cap("rho", UNIT)
    replaced = replace(PANEL_CAP, unit="row, replace")
    persons = replace(PANEL_CAP, unit="person by id, add-remove")
    with opened(panel) as ledger:
        before = ledger.head()
        for cap, match in (
            (rho, "one is on record for 'rho', the other for 'epsilon'"),
            (replaced, "'row, replace', the other for 'row, add-remove'"),
            (persons, "'person, add-remove', the other for 'row, add-remove'"),
        ):
            with pytest.raises(PlanConflictError, match=match):
                ledger.register("wave-3", cap, parent=PANEL)
        # Nothing is spent, but the other wave is on record too.
        with pytest.raises(PlanConflictError, match="'wave-2' and its parent 'panel' cannot"):
            ledger.register("wave-1", rho, parent=Account("panel", rho), changes=True)
        for unit in (replaced.unit, "person, add-remove"):
            other = Account("panel", replace(WHOLE, unit=unit))
            with pytest.raises(PlanConflictError, match="losses of different units"):
                ledger.register("wave-3", replace(PANEL_CAP, unit=unit), parent=other)
        assert ledger.head() == before


def test_persons_are_the_same_under_any_column_of_the_datasets_of_a_parent(tmp_path):
    by = {name: f"person by {name}, add-remove" for name in ("id", "pid", "a, b")}
    panel = Account("panel", replace(WHOLE, unit="person, add-remove"))
    with Ledger.open(tmp_path / "state" / "ledger.db", create=True) as ledger:
        ledger.register("wave-1", replace(PANEL_CAP, unit=by["id"]), parent=panel)
        ledger.register("wave-2", replace(PANEL_CAP, unit=by["a, b"]), parent=panel)
        release_of(ledger, "wave-1", "a")
        # The parent itself says which column is its own once it is released from, and keeps to it.
        ledger.register("panel", replace(WHOLE, unit=by["pid"]))
        ledger.register("wave-1", replace(PANEL_CAP, unit=by["id"]), parent=panel)
        assert ledger.currency("panel", unit=by["pid"]) == "epsilon"
        for ask in (
            lambda: ledger.register("panel", replace(WHOLE, unit=by["id"])),
            lambda: ledger.register("wave-1", replace(PANEL_CAP, unit=by["pid"]), parent=panel),
            lambda: ledger.register("panel", WHOLE),
            lambda: ledger.currency("panel", unit=by["id"]),
        ):
            with pytest.raises(PlanConflictError, match="losses of different units"):
                ask()
        assert spent_by(ledger)["panel"] == 1


def test_a_spec_that_names_a_parent_is_not_charged_without_it(panel):
    with opened(panel) as ledger:
        ledger.register("alone", PANEL_CAP)
        assert ledger.currency("wave-1", unit=PANEL_CAP.unit, parent="panel") == "epsilon"
        # A plan from before the dataset came under its parent: both are charged.
        assert ledger.currency("wave-1", unit=PANEL_CAP.unit) == "epsilon"
        for dataset, parent, kept in (("alone", "panel", "no parent"), ("wave-1", "o", "'panel'")):
            with pytest.raises(PlanConflictError, match=f"{kept}.*run `dpquery plan`"):
                ledger.currency(dataset, unit=PANEL_CAP.unit, parent=parent)


def test_kinds_of_units_leave_the_column_out_and_nothing_else():
    assert unit_kind("row, replace") == "row, replace"
    assert unit_kind("person by row, add-remove") == "person, add-remove"
    assert unit_kind("person by x, replace, add-remove") == "person, add-remove"
    assert unit_kind("person, replace") == "person, replace"


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
from ledgers import charge, codes, forked, opened
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import Store

path = Path(sys.argv[1])
def release(i):
    key = f"k{i}"
    with opened(path) as ledger, ledger.hold(key):
        charge(ledger, key, dataset=f"wave-{i % 4}")
        ledger.commit(key, np.array([i]), source="OpenDP 0")
"""


def test_of_24_racing_processes_of_four_datasets_ten_pass_the_cap_of_their_parent(
    tmp_path, record_property
):
    path = tmp_path / "state" / "ledger.db"
    roomy = replace(PANEL_CAP, units=9 * UNIT)
    with Ledger.open(path, create=True) as ledger:
        for i in range(4):
            ledger.register(f"wave-{i}", roomy, parent=PANEL)
    ended = run_script(
        SCRIPT + "print(json.dumps(codes([forked(release, i) for i in range(24)])))", path
    )
    assert sorted(ended) == [0] * 10 + [BudgetExceededError.exit_code] * 14
    with opened(path) as ledger:
        charged = spent_by(ledger)
        assert charged.pop("panel") == sum(charged.values()) == 10
        ledger.verify()
    record_property("races", 24)


def chain(*events):
    """Return stored rows with sound hashes over any events."""
    rows, head = [], None
    for kind, fields in events:
        state, _ = read_chain([])
        event, text = seal(head or state.head, kind=kind, day="2026-01-01", fields=fields)
        head = event.head
        rows.append((head.seq, text, head.hash))
    return rows


def stored(path):
    with sqlite3.connect(path) as database:
        return [json.loads(b) for (b,) in database.execute("SELECT body FROM events ORDER BY seq")]


@pytest.mark.parametrize(
    "planted",
    [
        ("reserve", {"dataset": "wave-1", "key": "k", "units": "5"}),
        ("reserve", {"dataset": "wave-1", "key": "k", "units": "5", "parent": "wave-2"}),
        ("reserve", {"dataset": "panel", "key": "k", "units": "5", "parent": "panel"}),
        ("adopt", {"dataset": "wave-1", "parent": "wave-2", "units": "0"}),
        ("adopt", {"dataset": "panel", "parent": "wave-2", "units": "0"}),
        ("adopt", {"dataset": "panel", "parent": "panel", "units": "0"}),
        ("adopt", {"dataset": "alone", "parent": "wave-2", "units": "0"}),
        ("adopt", {"dataset": "alone", "parent": "nobody", "units": "0"}),
        ("adopt", {"dataset": "alone", "parent": "panel", "units": "1"}),
        ("adopt", {"dataset": "alone", "parent": "alone", "units": "0"}),
    ],
)
def test_a_sound_hash_over_a_charge_that_leaves_the_parent_out_is_found(
    panel, planted, record_property
):
    with opened(panel) as ledger:
        ledger.register("alone", PANEL_CAP)
    events = [(event["kind"], event["fields"]) for event in stored(panel)]
    assert len(read_chain(chain(*events))[1]) == len(events)
    with pytest.raises(LedgerError, match=f"at event {len(events) + 1}"):
        read_chain(chain(*events, planted))
    record_property("bad inputs", 1)


def test_a_ledger_without_parents_is_read_and_written_as_before(tmp_path):
    """No new field, and so no new hash, where there is no parent."""
    path = tmp_path / "state" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("alone", PANEL_CAP)
        measured = release_of(ledger, "alone", "a")
        assert measured.parent is None
    assert [sorted(event["fields"]) for event in stored(path)] == [
        ["currency", "dataset", "delta", "epsilon", "unit", "units"],
        ["dataset", "details", "key", "native", "units"],
        ["key", "sha256", "size", "source"],
    ]


class Brute:
    """The rules once more, in a few lines: a dictionary of caps, parents and charges."""

    def __init__(self):
        self.caps, self.parents, self.charges = {}, {}, {}

    def total(self, dataset):
        return sum(
            units
            for child, units in self.charges.values()
            if dataset in (child, self.parents.get(child))
        )

    def fits(self, dataset, units):
        return self.total(dataset) + units <= self.caps[dataset]

    def join(self, dataset, parent, *, change):
        kept = self.parents.get(dataset)
        if dataset in self.caps and kept != parent:
            if kept is not None or not change:
                return False
            if dataset in self.parents.values() or self.parents.get(parent):
                return False
            if parent in self.caps and not self.fits(parent, self.total(dataset)):
                return False
        elif (dataset not in self.caps and change) or (parent and self.parents.get(parent)):
            return False
        self.caps.setdefault(dataset, 10)
        if parent:
            self.caps.setdefault(parent, 10)
            self.parents[dataset] = parent
        return True

    def charge(self, dataset, key, units):
        if dataset not in self.caps:
            return False
        if key in self.charges:
            return self.charges[key] == (dataset, units)
        parent = self.parents.get(dataset)
        if not self.fits(dataset, units) or (parent and not self.fits(parent, units)):
            return False
        self.charges[key] = (dataset, units)
        return True


NAMES = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), NAMES, st.none() | NAMES, st.booleans()),
        st.tuples(st.just("charge"), NAMES, st.integers(0, 20), st.integers(1, 6)),
    ),
    max_size=25,
)


def test_any_history_agrees_with_a_brute_model(tmp_path):
    numbers = iter(range(10**6))

    @settings(max_examples=30, derandomize=True)
    @given(STEPS)
    def check(steps):
        path, brute = tmp_path / f"{next(numbers)}" / "ledger.db", Brute()
        ten = Cap("epsilon", 10, epsilon=Fraction(10, UNIT))
        with Ledger.open(path, create=True) as ledger:
            for kind, dataset, other, last in steps:
                if kind == "join" and other != dataset:
                    parent = None if other is None else Account(other, ten)
                    declare = partial(ledger.register, changes=last)
                    expected = brute.join(dataset, other, change=last)
                    assert succeeds(
                        lambda declare=declare, d=dataset, p=parent: declare(d, ten, parent=p)
                    ) == (expected)
                elif kind == "charge":
                    expected = brute.charge(dataset, str(other), last)
                    assert (
                        succeeds(
                            lambda d=dataset, k=str(other), u=last: release_of(ledger, d, k, u)
                        )
                        == expected
                    )
            assert {s.account.dataset: s.account.spent for s in ledger.status()} == {
                name: brute.total(name) for name in brute.caps
            }
            assert {s.account.dataset: s.account.parent for s in ledger.status()} == {
                name: brute.parents.get(name) for name in brute.caps
            }
            ledger.verify()

    check()


def succeeds(ask):
    try:
        ask()
    except (BudgetExceededError, PlanConflictError, LedgerError):
        return False
    return True
