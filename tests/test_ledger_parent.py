"""What is spent on the same people under several names is bounded by one cap, exactly."""

import json
import sqlite3
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from cli_support import CSV, SPEC, contents, ok, refused, renew
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import own_price, price, run_script

from dpquery.exceptions import BudgetExceededError, LedgerError, PlanConflictError
from dpquery.measurement.accounting import UNIT, Cap, kind_of
from dpquery.measurement.ledger import Ledger
from dpquery.measurement.ledger_caps import ParentCap
from dpquery.measurement.ledger_checks import check_price
from dpquery.measurement.ledger_events import Account, read_chain, seal

CAP = Cap("epsilon", 4 * UNIT, epsilon=Fraction(4))
WHOLE = Cap("epsilon", 10 * UNIT, epsilon=Fraction(10))
PANEL = ParentCap("panel", WHOLE)


@pytest.fixture
def path(tmp_path):
    """A ledger with two waves of one panel."""
    path = tmp_path / "state" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("wave-1", CAP, parent=PANEL)
        ledger.register("wave-2", CAP, parent=PANEL)
    return path


def opened(path):
    return Ledger.open(path, create=False)


def spent(ledger):
    return {s.account.dataset: Fraction(s.account.spent, UNIT) for s in ledger.status()}


def kinds(ledger):
    return [event.kind for event in ledger.history()]


def reserve(ledger, dataset, key, units=UNIT):
    price = own_price(ledger, dataset, units)
    ledger.reserve(dataset, key=key, price=price, native={}, details={})


def release(ledger, dataset, key, units=UNIT):
    with ledger.hold(key):
        stored = ledger.lookup(dataset, key=key, price=own_price(ledger, dataset, units))
        if stored is None:
            reserve(ledger, dataset, key, units)
            stored = ledger.commit(key, np.array([7, 8]), source="OpenDP 0")
        return stored


def test_a_price_is_one_of_the_parents_currency_and_unit_too():
    account, parent = Account("wave-1", CAP, parent="panel"), Account("panel", WHOLE)
    check_price(account, price(), parent=parent)
    for other in (replace(WHOLE, currency="rho"), replace(WHOLE, unit="row, replace")):
        with pytest.raises(PlanConflictError, match="changed meanwhile"):
            check_price(account, price(), parent=replace(parent, cap=other))


# What is charged.


def test_every_charge_of_a_dataset_is_its_parents_too_in_one_event(path):
    with opened(path) as ledger:
        before = ledger.head().seq
        one = release(ledger, "wave-1", "a")
        two = release(ledger, "wave-2", "b", 2 * UNIT)
        assert spent(ledger) == {"panel": 3, "wave-1": 1, "wave-2": 2}
        assert kinds(ledger)[before:] == ["reserve", "commit", "reserve", "commit"]
        assert [e.fields.get("parent") for e in ledger.history()[before::2]] == ["panel", "panel"]
        assert one.parent is not None
        assert two.parent is not None
        assert (one.parent.spent, two.parent.spent) == (UNIT, 3 * UNIT)
        # A later run is told what the earlier one was.
        again = release(ledger, "wave-1", "a")
        assert (again.account, again.parent) == (one.account, one.parent)
        assert spent(ledger)["panel"] == 3


def test_a_parent_may_be_a_dataset_of_its_own_and_shares_its_cap_with_them(path):
    with opened(path) as ledger:
        ledger.register("panel", WHOLE)
        release(ledger, "panel", "own", 7 * UNIT)
        release(ledger, "wave-1", "a", 3 * UNIT)
        assert spent(ledger) == {"panel": 10, "wave-1": 3, "wave-2": 0}
        for dataset in ("panel", "wave-1", "wave-2"):
            with pytest.raises(BudgetExceededError):
                release(ledger, dataset, f"more of {dataset}", 1)


def test_the_message_names_the_cap_that_refuses_and_what_remains(path):
    with opened(path) as ledger:
        release(ledger, "wave-1", "a", 4 * UNIT)
        with pytest.raises(BudgetExceededError) as own:
            release(ledger, "wave-1", "b", UNIT // 2)
        release(ledger, "wave-2", "c", 3 * UNIT)
        ledger.register("panel", WHOLE)
        release(ledger, "panel", "d", 5 * UNIT // 2)
        with pytest.raises(BudgetExceededError) as parents:
            release(ledger, "wave-2", "e", UNIT)
        with pytest.raises(BudgetExceededError) as both:
            release(ledger, "wave-1", "f", UNIT)
        history = ledger.head()
    assert str(own.value) == (
        "dataset 'wave-1': this release asks for epsilon 0.5 and 0 of 4 remain; nothing was charged"
    )
    assert str(parents.value) == (
        "dataset 'wave-2': this release asks for epsilon 1 and 0.5 of 10 remain for all datasets "
        "of its parent 'panel' together; nothing was charged"
    )
    assert "0 of 4 remain and 0.5 of 10 remain for all" in str(both.value)
    with opened(path) as ledger:
        assert ledger.head() == history


def test_a_run_that_never_finished_stays_charged_to_both_and_is_continued_free(path):
    with opened(path) as ledger:
        with ledger.hold("a"):
            reserve(ledger, "wave-1", "a")
        release(ledger, "wave-1", "a")
        assert spent(ledger) == {"panel": 1, "wave-1": 1, "wave-2": 0}
        with ledger.hold("b"):
            reserve(ledger, "wave-1", "b")
        ledger.abandon("b")
        assert spent(ledger) == {"panel": 2, "wave-1": 2, "wave-2": 0}
        release(ledger, "wave-1", "b")
        assert spent(ledger) == {"panel": 3, "wave-1": 3, "wave-2": 0}


SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
from ledgers import charge, codes, forked, opened
from dpquery.measurement.ledger import Ledger
from dpquery.measurement.ledger_store import Store

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
    roomy = replace(CAP, units=9 * UNIT)
    with Ledger.open(path, create=True) as ledger:
        for i in range(4):
            ledger.register(f"wave-{i}", roomy, parent=PANEL)
    ended = run_script(
        SCRIPT + "print(json.dumps(codes([forked(release, i) for i in range(24)])))", path
    )
    assert sorted(ended) == [0] * 10 + [BudgetExceededError.exit_code] * 14
    with opened(path) as ledger:
        found = spent(ledger)
        assert found.pop("panel") == sum(found.values()) == 10
        ledger.verify()
    record_property("races", 24)


KILLS = """
append = Store.append
def die(*args, **settings):
    os.kill(os.getpid(), signal.SIGKILL)
def killed(moment):
    def dying(store, state, kind, fields):
        if moment == "before":
            die()
        append(store, state, kind, fields)
        if moment == "inside":
            die()
    Store.append = dying
    if moment == "after":
        Ledger.commit = die
    release(1)
def state():
    with opened(path) as ledger:
        found = {own.account.dataset: own.account.spent // 10**18 for own in ledger.status()}
        return [found["panel"], found["wave-1"], ledger.verify().seq]
outcome = []
for moment in ("before", "inside", "after"):
    assert codes([forked(killed, moment)]) == [-signal.SIGKILL]
    outcome.append(state())
release(1)
print(json.dumps([*outcome, state()]))
"""


def test_a_run_killed_around_its_charge_has_charged_both_accounts_or_neither(path, record_property):
    """One event holds both charges: there is nothing between them to be killed at."""
    before = 5
    assert run_script(SCRIPT + KILLS, path) == [
        [0, 0, before],
        [0, 0, before],
        [1, 1, before + 1],
        [1, 1, before + 3],  # continued and committed, at no charge
    ]
    record_property("crashes", 3)


# What is on record.


def test_registering_again_changes_nothing_and_any_difference_is_a_conflict(path):
    less = ParentCap("panel", replace(WHOLE, units=UNIT, epsilon=Fraction(1)))
    with opened(path) as ledger:
        before = ledger.head()
        ledger.register("wave-1", CAP, parent=PANEL)
        for parent, match in (
            (None, "with the parent 'panel' and the spec names none; restore the parent"),
            (ParentCap("others", WHOLE), "with the parent 'panel' and the spec names 'others'"),
            (less, "parent 'panel' is on record with a cap of epsilon 10 and the spec declares"),
        ):
            with pytest.raises(PlanConflictError, match=match):
                ledger.register("wave-1", CAP, parent=parent)
        for parent in (None, ParentCap("others", WHOLE)):
            with pytest.raises(PlanConflictError, match="restore the parent"):
                ledger.change_cap("wave-1", CAP, parent=parent)
        assert ledger.head() == before


def test_a_parent_planned_itself_with_another_budget_is_told_of_the_budget(tmp_path):
    panel = ParentCap("panel", replace(WHOLE, unit="person, add-remove"))
    wave = replace(CAP, unit="person by id, add-remove")
    itself = replace(WHOLE, unit="person by nr, add-remove", units=UNIT, epsilon=Fraction(1))
    with Ledger.open(tmp_path / "own" / "ledger.db", create=True) as ledger:
        ledger.register("wave", wave, parent=panel)
        with pytest.raises(PlanConflictError) as told:
            ledger.register("panel", itself)
        with pytest.raises(PlanConflictError, match="is on record for the unit"):
            ledger.register("panel", replace(itself, unit="row, add-remove"))
        ledger.change_cap("panel", itself)
        ledger.register("panel", itself)
    assert "with a cap of epsilon 10 and the spec declares epsilon 1;" in str(told.value)


def test_a_parents_cap_is_changed_on_record(path):
    less = ParentCap("panel", replace(WHOLE, units=UNIT, epsilon=Fraction(1)))
    with opened(path) as ledger:
        ledger.change_cap("wave-1", CAP, parent=less)
        release(ledger, "wave-1", "a")
        with pytest.raises(BudgetExceededError, match="0 of 1 remain for all"):
            release(ledger, "wave-2", "b", 1)
        with pytest.raises(PlanConflictError, match="epsilon 1 and the spec declares epsilon 10"):
            ledger.register("wave-2", CAP, parent=PANEL)


def test_a_dataset_charged_before_brings_what_it_spent_to_its_parent(path):
    with opened(path) as ledger:
        ledger.register("wave-0", CAP)
        early = release(ledger, "wave-0", "early", 3 * UNIT)
        with ledger.hold("late"):
            reserve(ledger, "wave-0", "late", UNIT)
        with pytest.raises(PlanConflictError, match="--change-cap"):
            ledger.register("wave-0", CAP, parent=PANEL)
        assert spent(ledger)["panel"] == 0
        ledger.change_cap("wave-0", CAP, parent=PANEL)
        assert kinds(ledger)[-1] == "adopt"
        assert spent(ledger) == {"panel": 4, "wave-1": 0, "wave-2": 0, "wave-0": 4}
        # What was released before says what it said; what is released now names the parent.
        again = release(ledger, "wave-0", "early", 3 * UNIT)
        assert (again.account, again.parent, early.parent) == (early.account, None, None)
        late = release(ledger, "wave-0", "late", UNIT)
        assert late.parent is not None
        assert late.parent.spent == 4 * UNIT
        ledger.register("wave-0", CAP, parent=PANEL)


def test_a_dataset_that_spent_more_than_its_parent_has_left_does_not_come_under_it(path):
    with opened(path) as ledger:
        ledger.register("wave-0", CAP)
        release(ledger, "wave-0", "a", 3 * UNIT)
        ledger.register("panel", WHOLE)
        release(ledger, "panel", "b", 8 * UNIT)
        before = ledger.head()
        with pytest.raises(BudgetExceededError, match="epsilon 3 was spent on dataset 'wave-0' an"):
            ledger.change_cap("wave-0", CAP, parent=PANEL)
        assert ledger.head() == before


def test_a_parent_has_no_parent(path):
    above = ParentCap("everybody", WHOLE)
    with opened(path) as ledger:
        before = ledger.head()
        with pytest.raises(PlanConflictError, match="'panel' cannot have a parent: it is that of"):
            ledger.register("panel", WHOLE, parent=above)
        with pytest.raises(PlanConflictError, match="'panel' cannot have a parent"):
            ledger.change_cap("panel", WHOLE, parent=above)
        with pytest.raises(PlanConflictError, match="'wave-1' cannot be a parent: it has the par"):
            ledger.register("part", CAP, parent=ParentCap("wave-1", CAP))
        assert ledger.head() == before


def test_a_dataset_and_its_parent_are_charged_in_one_currency_for_one_kind_of_unit(path):
    rho = Cap("rho", UNIT)
    replaced = replace(CAP, unit="row, replace")
    persons = replace(CAP, unit="person by id, add-remove")
    with opened(path) as ledger:
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
            ledger.change_cap("wave-1", rho, parent=ParentCap("panel", rho))
        for unit in (replaced.unit, "person, add-remove"):
            other = ParentCap("panel", replace(WHOLE, unit=unit))
            with pytest.raises(PlanConflictError, match="losses of different units"):
                ledger.register("wave-3", replace(CAP, unit=unit), parent=other)
        assert ledger.head() == before


def test_persons_are_the_same_under_any_column_of_the_datasets_of_a_parent(tmp_path):
    by = {name: f"person by {name}, add-remove" for name in ("id", "pid", "a, b")}
    panel = ParentCap("panel", replace(WHOLE, unit="person, add-remove"))
    with Ledger.open(tmp_path / "state" / "ledger.db", create=True) as ledger:
        ledger.register("wave-1", replace(CAP, unit=by["id"]), parent=panel)
        ledger.register("wave-2", replace(CAP, unit=by["a, b"]), parent=panel)
        release(ledger, "wave-1", "a")
        # The parent itself says which column is its own once it is released from, and keeps to it.
        ledger.register("panel", replace(WHOLE, unit=by["pid"]))
        ledger.register("wave-1", replace(CAP, unit=by["id"]), parent=panel)
        assert ledger.currency("panel", unit=by["pid"]) == "epsilon"
        for ask in (
            lambda: ledger.register("panel", replace(WHOLE, unit=by["id"])),
            lambda: ledger.register("wave-1", replace(CAP, unit=by["pid"]), parent=panel),
            lambda: ledger.register("panel", WHOLE),
            lambda: ledger.currency("panel", unit=by["id"]),
        ):
            with pytest.raises(PlanConflictError, match="losses of different units"):
                ask()
        assert spent(ledger)["panel"] == 1


def test_a_spec_that_names_a_parent_is_not_charged_without_it(path):
    with opened(path) as ledger:
        ledger.register("alone", CAP)
        assert ledger.currency("wave-1", unit=CAP.unit, parent="panel") == "epsilon"
        # A plan from before the dataset came under its parent: both are charged.
        assert ledger.currency("wave-1", unit=CAP.unit) == "epsilon"
        for dataset, parent, kept in (("alone", "panel", "no parent"), ("wave-1", "o", "'panel'")):
            with pytest.raises(PlanConflictError, match=f"{kept}.*run `dpquery plan`"):
                ledger.currency(dataset, unit=CAP.unit, parent=parent)


def test_kinds_of_units_leave_the_column_out_and_nothing_else():
    assert kind_of("row, replace") == "row, replace"
    assert kind_of("person by row, add-remove") == "person, add-remove"
    assert kind_of("person by x, replace, add-remove") == "person, add-remove"
    assert kind_of("person, replace") == "person, replace"


# The chain.


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
    path, planted, record_property
):
    with opened(path) as ledger:
        ledger.register("alone", CAP)
    events = [(event["kind"], event["fields"]) for event in stored(path)]
    assert len(read_chain(chain(*events))[1]) == len(events)
    with pytest.raises(LedgerError, match=f"at event {len(events) + 1}"):
        read_chain(chain(*events, planted))
    record_property("bad inputs", 1)


def test_a_ledger_without_parents_is_read_and_written_as_before(tmp_path):
    """No new field, and so no new hash, where there is no parent."""
    path = tmp_path / "state" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("alone", CAP)
        measured = release(ledger, "alone", "a")
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
            units for own, units in self.charges.values() if dataset in (own, self.parents.get(own))
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

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(STEPS)
    def check(steps):
        path, brute = tmp_path / f"{next(numbers)}" / "ledger.db", Brute()
        ten = Cap("epsilon", 10, epsilon=Fraction(10, UNIT))
        with Ledger.open(path, create=True) as ledger:
            for kind, dataset, other, last in steps:
                if kind == "join" and other != dataset:
                    parent = None if other is None else ParentCap(other, ten)
                    own = ledger.change_cap if last else ledger.register
                    expected = brute.join(dataset, other, change=last)
                    assert succeeds(lambda own=own, d=dataset, p=parent: own(d, ten, parent=p)) == (
                        expected
                    )
                elif kind == "charge":
                    expected = brute.charge(dataset, str(other), last)
                    assert (
                        succeeds(lambda d=dataset, k=str(other), u=last: release(ledger, d, k, u))
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


# The commands.

WAVES = {
    name: SPEC.replace(
        "{id: town, version: 1}", f"{{id: {name}, parent: {{id: panel, budget: {{epsilon: 3}}}}}}"
    )
    for name in ("wave-1", "wave-2")
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "waves"
    folder.mkdir()
    (folder / "data.csv").write_bytes(CSV)
    for name, spec in WAVES.items():
        (folder / f"{name}.yaml").write_text(spec)
        ledger = ("--ledger", folder / "state" / "ledger.db")
        ok("plan", folder / f"{name}.yaml", "--out", folder / f"{name}.plan", *ledger)
    return folder


@pytest.fixture
def waves(planned, tmp_path, monkeypatch):
    """Two waves of a panel, planned; the working directory."""
    renew(tmp_path / "waves", planned)
    monkeypatch.chdir(tmp_path / "waves")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "waves" / "state" / "ledger.db"))


def publish(name, epsilon, *more):
    plan = ("--plan", f"{name}.plan", "--out", name)
    return ("release", "data.csv", *plan, "--epsilon", epsilon, *more)


def test_a_release_is_refused_and_told_by_both_caps_and_free_when_made_again(waves):
    first = ok(*publish("wave-1", "2.5"))
    assert first.out.rstrip().endswith(
        "budget: epsilon 2.5 of 4 has been spent on dataset wave-1 up to this release, and "
        "epsilon 2.5 of 3 on all datasets of panel together"
    )
    written = contents("wave-1")
    manifest = json.loads(written["release.json"])
    assert manifest["ledger"]["parent"] == "panel"
    sentence = manifest["guarantee"]["cumulative"]
    assert sentence in first.out
    assert sentence in written["statement.md"].decode()

    message = refused(*publish("wave-2", "1"), code=3)
    assert "0.5 of 3 remain for all datasets of its parent 'panel' together" in message
    done = json.loads(ok(*publish("wave-2", "0.5", "--json")).out)
    assert (done["spent"], done["cap"]) == ("0.5", "4")
    assert done["parent"] == {"dataset": "panel", "spent": "3", "cap": "3"}
    # The first one again: free, and what it says of the parent is what it said.
    ok(*publish("wave-1", "2.5"))
    assert contents("wave-1") == written

    status = json.loads(ok("ledger", "status", "--json").out)
    assert [(own["dataset"], own["parent"], own["spent"]) for own in status] == [
        ("panel", None, "3"),
        ("wave-1", "panel", "2.5"),
        ("wave-2", "panel", "0.5"),
    ]
    assert "parent" in ok("ledger", "status").out
    assert "wave-2 of panel" in ok("ledger", "history").out
    exported = [json.loads(line) for line in ok("ledger", "export").out.splitlines()]
    assert [own["parent"] for own in exported if own["kind"] == "reserve"] == ["panel"] * 2
    assert "ok: 9 events" in ok("ledger", "verify", "--releases", "wave-1").out


def test_plan_refuses_what_the_record_contradicts_with_a_remedy(waves):
    spec = WAVES["wave-1"]
    for changed, code, words in (
        (spec.replace("id: panel", "id: others"), 5, "restore the parent in the spec"),
        (SPEC.replace("id: town", "id: wave-1"), 5, "restore the parent in the spec"),
        (spec.replace("{epsilon: 3}", "{epsilon: 5}"), 5, "--change-cap"),
        (spec.replace("{epsilon: 3}", "{rho: 5}"), 2, "charged to both"),
        (spec.replace("id: panel", "id: wave-1"), 2, "its own parent"),
        (
            spec.replace("id: wave-1", "id: part").replace("panel", "wave-2"),
            5,
            "'wave-2' cannot be",
        ),
        (spec.replace("add-remove", "replace").replace("wave-1", "wave-3"), 5, "losses of d"),
    ):
        Path("changed.yaml").write_text(changed)
        message = refused("plan", "changed.yaml", "--out", "changed.plan", code=code)
        assert words in message
    Path("changed.yaml").write_text(spec.replace("{epsilon: 3}", "{epsilon: 5}"))
    ok("plan", "changed.yaml", "--out", "changed.plan", "--change-cap")
    assert json.loads(ok("ledger", "status", "--json").out)[0]["cap"] == "5"


def test_a_plan_of_another_ledger_is_not_charged_without_the_parent_it_names(waves):
    Path("alone.yaml").write_text(SPEC.replace("id: town", "id: wave-1"))
    other = ("--ledger", "other/ledger.db")
    ok("plan", "alone.yaml", "--out", "alone.plan", *other)
    message = refused(*publish("wave-1", "1", *other), code=5)
    assert "on record with no parent and the spec names 'panel'; run `dpquery plan`" in message
    # The other way round both are charged.
    ok("release", "data.csv", "--plan", "alone.plan", "--out", "out", "--epsilon", "1")
    assert {own["spent"] for own in json.loads(ok("ledger", "status", "--json").out)} == {"0", "1"}


def test_a_parent_changes_no_key_so_that_what_was_measured_before_stays_free(waves):
    Path("alone.yaml").write_text(SPEC.replace("id: town", "id: early"))
    ok("plan", "alone.yaml", "--out", "early.plan")
    ok(*publish("early", "1"))
    under = WAVES["wave-1"].replace("id: wave-1", "id: early")
    Path("alone.yaml").write_text(under)
    refused("plan", "alone.yaml", "--out", "early.plan", code=5)
    ok("plan", "alone.yaml", "--out", "early.plan", "--change-cap")
    before = json.loads(ok("ledger", "status", "--json").out)
    assert [own["spent"] for own in before] == ["1", "0", "0", "1"]
    ok(*publish("early", "1", "--replace"))
    assert json.loads(ok("ledger", "status", "--json").out) == before


def test_a_plan_says_what_a_release_takes_of_the_smaller_cap(waves):
    def share(*settings):
        return ok("plan", "wave-1.yaml", "--out", "x.plan", *settings).out

    told = share()
    assert "takes 33.33% of the whole budget" in told  # 1 of 3, not of 4
    assert "every release is charged to panel as well" in told
    assert "would take 1.2 times the whole budget" in share("--epsilon", "3.5")
