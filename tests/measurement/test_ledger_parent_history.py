"""A history that leaves a parent out is found, and any other agrees with a plain model."""

import json
import sqlite3
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import PANEL_CAP, opened, release_of

from dpquery.exceptions import BudgetExceededError, LedgerError, PlanConflictError
from dpquery.measurement.accounting import UNIT, Cap
from dpquery.measurement.ledger.caps import ParentCap
from dpquery.measurement.ledger.events import read_chain, seal
from dpquery.measurement.ledger.ledger import Ledger


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
                    parent = None if other is None else ParentCap(other, ten)
                    declare = ledger.change_cap if last else ledger.register
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
