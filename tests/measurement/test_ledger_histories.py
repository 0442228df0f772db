"""Any history of a ledger is as its rules say, which stand here once more as dictionaries.

A step is asked of the rules and of the ledger: both do it, or both refuse it with the same error.
Steps are drawn at random, or are rows of a table, with words of the refusal where there is one.
"""

import math
import shutil
import sqlite3
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ledgers import CAP, PANEL_CAP, WHOLE, price_under_cap
from town import FAST

from dpquery.exceptions import BudgetExceededError, DpqueryError, LedgerError, PlanConflictError
from dpquery.measurement.accounting import UNIT, Cap, guarantee
from dpquery.measurement.ledger import ledger as ledger_module
from dpquery.measurement.ledger.admission import RETRIES
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import Store

DELTA = Fraction(1, 10**6)
THRESHOLDS = (Fraction(0), DELTA / 3, DELTA / 7)


def promise(epsilon, kind, discover=0):
    """The cap of a promise with a delta: the same in rho as in mu^2."""
    epsilon, discover = Fraction(epsilon), Fraction(discover)
    whole = guarantee("gaussian", epsilon=epsilon, delta=DELTA - discover, accounting=kind)
    units = math.floor(whole.amount * UNIT)
    currency = "mu^2" if kind == "gdp" else "rho"
    return Cap(currency, units, epsilon=epsilon, delta=DELTA, discover=discover)


PROMISES = [
    promise(epsilon, kind, discover)
    for epsilon, discover in ((1, 0), (2, 0), (2, DELTA / 3), (2, DELTA / 2))
    for kind in ("gdp", "zcdp")
]


def in_all_currencies(cap):
    """Return the caps of the same promise, if it is one."""
    of = cap.epsilon, cap.discover
    return [one for one in PROMISES if cap in PROMISES and (one.epsilon, one.discover) == of]


def cap_of(currency, units, epsilon):
    """A cap with two sums where it has an epsilon; one in epsilon has that sum alone."""
    return Cap(currency, units, epsilon=None if currency == "epsilon" else epsilon)


@dataclass(eq=False)
class Run:
    """What the rules know of a key."""

    dataset: str
    units: int
    pure: int | None = None
    threshold: Fraction = Fraction(0)
    state: str = "reserved"
    retries: int = 0
    values: list = field(default_factory=list)
    accounts: tuple = ()  # what its dataset and the parent had spent when it was committed


@dataclass
class Rules:
    """What is on record: caps, parents, and charges, each of a run."""

    caps: dict = field(default_factory=dict)
    parents: dict = field(default_factory=dict)
    charges: list = field(default_factory=list)
    runs: dict = field(default_factory=dict)  # the last of every key
    events: int = 0

    def charges_of(self, name):
        return [run for run in self.charges if name in self.payers(run.dataset)]

    def payers(self, name):
        return [one for one in (name, self.parents.get(name)) if one is not None]

    def spent(self, name):
        """The units, the epsilons if all are pure, and the delta of thresholds."""
        charges = self.charges_of(name)
        epsilons = [run.pure for run in charges]
        pure = None if None in epsilons else sum(epsilons)
        return sum(run.units for run in charges), pure, sum(run.threshold for run in charges)

    def check_room(self, name, more):
        """Refuse more charges than a cap has room for: by thresholds, and by both other sums."""
        cap, charges = self.caps[name], [*self.charges_of(name), *more]
        fits = sum(run.units for run in charges) <= cap.units
        if cap.currency != "epsilon" and cap.epsilon is not None:
            pure = [run.pure for run in charges]
            fits = fits or (None not in pure and sum(pure) <= cap.epsilon * UNIT)
        if sum(run.threshold for run in charges) > cap.discover or not fits:
            raise BudgetExceededError("")

    def charge(self, key, run):
        if run.dataset not in self.caps:
            raise LedgerError("")
        known = self.runs.get(key)
        if known is None or known.state == "abandoned":
            for name in self.payers(run.dataset):
                self.check_room(name, [run])
            self.runs[key] = run
            self.charges.append(run)
        elif (
            known.dataset != run.dataset
            or known.units < run.units
            or known.threshold < run.threshold
        ):
            raise PlanConflictError("")
        elif known.state == "reserved":
            if known.retries == RETRIES:
                raise BudgetExceededError("")
            known.retries += 1
        self.events += self.runs[key].state == "reserved"

    def abandon(self, key):
        if key not in self.runs or self.runs[key].state != "reserved":
            raise PlanConflictError("")
        self.runs[key].state = "abandoned"
        self.events += 1

    def currency(self, dataset, *, unit, parent=None):
        if dataset not in self.caps:
            raise LedgerError("")
        if self.caps[dataset].unit != unit or parent not in (None, self.parents.get(dataset)):
            raise PlanConflictError("")
        return self.caps[dataset].currency

    def register(self, dataset, cap, *, parent=None, changes=False):
        above, kept = parent and parent.dataset, self.parents.get(dataset)
        if changes and dataset not in self.caps:
            raise LedgerError("")
        if dataset in self.caps and above != kept and (kept is not None or not changes):
            raise PlanConflictError("")
        if above and (above in self.parents or dataset in self.parents.values()):
            raise PlanConflictError("")
        before = tuple(self.caps)
        if parent is not None:
            self.put(above, parent.cap, changes)
        self.put(dataset, cap, changes)
        if above != kept:
            if any(run.dataset == dataset for run in self.charges):
                self.check_room(above, self.charges_of(dataset))
            self.parents[dataset] = above
            self.events += 1
        kinds = {name: (each.currency, *kind_of(each.unit)) for name, each in self.caps.items()}
        if any(kinds[child] != kinds[name] for child, name in self.parents.items()):
            raise PlanConflictError("")
        return tuple(name for name in self.caps if name not in before)

    def put(self, name, cap, changes):
        """Put a cap on record, or change it."""
        kept = named = self.caps.get(name, cap)
        units = kept.unit, cap.unit
        if len({kind_of(unit) for unit in units}) == 1 and sum(" by " in u for u in units) == 1:
            named, cap = (replace(one, unit=max(units, key=len)) for one in (kept, cap))
        spent, _, threshold = self.spent(name)
        moved = [name]
        if changes:
            same = (named.currency, named.unit) == (cap.currency, cap.unit)
            if (spent and not same) or threshold > cap.discover:
                raise PlanConflictError("")
        elif named != cap:
            if spent or cap not in in_all_currencies(kept):
                raise PlanConflictError("")
            moved += [child for child, above in self.parents.items() if above == name]
        if name not in self.caps or kept != cap:
            self.events += len(moved)
            for child in moved[1:]:
                same = in_all_currencies(self.caps[child])
                self.caps[child] = next(one for one in same if one.currency == cap.currency)
            self.caps[name] = cap


def kind_of(unit):
    return unit.split(" by ")[0].split(", ")[0], unit.split(", ")[-1]


DATASETS = st.sampled_from(["people", "others"])
KEYS = st.sampled_from(["k1", "k2", "k3"])
CAPS = st.sampled_from(PROMISES) | st.builds(
    cap_of,
    st.sampled_from(["epsilon", "rho", "mu^2"]),
    st.sampled_from([0, 1, UNIT, 4 * UNIT, 10 * UNIT]),
    st.sampled_from([None, Fraction(1), Fraction(2)]),
)
ANY = "."
"""Words of whatever refusal the rules foresee."""


class Histories(RuleBasedStateMachine):
    """A ledger beside its rules."""

    steps = kills = 0

    @initialize()
    def begin(self):
        self.home = TemporaryDirectory(dir=FAST)
        self.copies = self.drawn = 0
        self.path = Path(self.home.name) / "0" / "ledger.db"
        self.rules = Rules()
        self.open()

    def open(self):
        self.context = Ledger.open(self.path, create=True)
        self.ledger = self.context.__enter__()

    def teardown(self):
        if hasattr(self, "context"):
            self.context.__exit__(None, None, None)
            self.home.cleanup()

    def foreseen(self, words, step, *arguments, **options):
        """Return the rules after a step, and what it gives or the error that it ends in.

        There is one if and only if there are words of it.
        """
        after, error, given = deepcopy(self.rules), None, None
        try:
            given = getattr(after, step)(*arguments, **options)
        except DpqueryError as refusal:
            error = type(refusal)
        assert words == ANY or (error is None) == (words is None)
        return after, given, error

    def ask(self, step, *arguments, words=None, **options):
        """Have rules and ledger do a step, or refuse it."""
        after, expected, error = self.foreseen(words, step, *arguments, **options)
        if error is not None:
            with pytest.raises(error, match=words):
                getattr(self.ledger, step)(*arguments, **options)
            return
        found = getattr(self.ledger, step)(*arguments, **options)
        assert step == "abandon" or found == expected
        self.rules = after

    @rule(
        dataset=DATASETS,
        cap=CAPS,
        above=st.none() | st.tuples(st.sampled_from(["panel", "others"]), st.none() | CAPS),
        changes=st.booleans(),
    )
    def register_any(self, dataset, cap, above, changes):
        if above is None or above[0] != dataset:
            parent = above and Account(above[0], above[1] or cap)
            self.ask("register", dataset, cap, parent=parent, changes=changes, words=ANY)

    @rule(
        dataset=DATASETS | st.just("panel"),
        key=KEYS,
        units=st.sampled_from([1, UNIT // 10, 3 * UNIT]),
        pure=st.sampled_from([None, 1, UNIT // 2, UNIT]),
        threshold=st.sampled_from(THRESHOLDS),
        ends=st.sampled_from(["well", "well", "killed before", "killed inside", "killed after"])
        | st.sampled_from(["fails before", "disk full", "killed committed"]),
        large=st.booleans(),
        words=st.just(ANY),
    )
    def release(
        self,
        dataset,
        key,
        units=UNIT,
        *,
        pure=None,
        threshold=THRESHOLDS[0],
        ends="well",
        large=False,
        words=None,
    ):
        """The protocol as the curator runs it, up to some end."""
        pure = None if threshold else pure
        price = replace(price_under_cap(self.ledger, dataset, units), pure=pure)
        price = replace(price, threshold=threshold)
        native = {"threshold": str(threshold)} if threshold else {}
        native = native if pure is None else {"pure": str(Fraction(pure, UNIT))}
        charge = {"key": key, "price": price, "native": native, "details": {}}
        run = Run(dataset, units, pure, threshold)
        after, _, error = self.foreseen(words, "charge", key, run)
        with self.ledger.hold(key):
            if error is not None:
                with pytest.raises(error, match=words):
                    self.ledger.lookup(dataset, key=key, price=price)
                with pytest.raises(error, match=words):
                    self.ledger.reserve(dataset, **charge)
                return
            stored = self.ledger.lookup(dataset, key=key, price=price)
            if after.runs[key].state == "committed":
                assert stored.stored
                self.is_as_committed(stored, key)
                return
            assert stored is None
            if ends == "killed before":
                self.killed_inside(self.ledger.reserve, dataset, **charge)
                return
            self.ledger.reserve(dataset, **charge)
            self.rules = after
            self.drawn += 1
            with mock.patch.object(ledger_module, "LARGE", 0 if large else 100):
                self.finish(key, np.array([self.drawn, -self.drawn, 0]), ends)

    def is_as_committed(self, stored, key):
        run, accounts = self.rules.runs[key], [stored.account, stored.parent]
        assert stored.values.tolist() == run.values
        assert tuple(of and (of.dataset, of.spent, of.pure) for of in accounts) == run.accounts

    def finish(self, key, values, ends):
        if ends == "killed after":
            self.kill()
        elif ends == "killed inside":
            self.killed_inside(self.ledger.commit, key=key, values=values, source="OpenDP 0")
        elif ends == "disk full":
            full = mock.Mock(side_effect=OSError(28, "No space left on device"))
            with mock.patch.object(Store, "append", full), pytest.raises(LedgerError):
                self.ledger.commit(key, values, source="OpenDP 0")
        elif ends != "fails before":
            run, rules = self.rules.runs[key], self.rules
            stored = self.ledger.commit(key, values, source="OpenDP 0")
            names = (run.dataset, rules.parents.get(run.dataset))
            run.accounts = tuple(name and (name, *rules.spent(name)[:2]) for name in names)
            run.state, run.values = "committed", values.tolist()
            rules.events += 1
            self.is_as_committed(stored, key)
            if ends == "killed committed":
                self.kill()

    def kill(self):
        """Go on with the files as they lie; what was open is gone."""
        type(self).kills += 1
        self.copies += 1
        copy = Path(self.home.name) / str(self.copies)
        shutil.copytree(self.path.parent, copy)
        with suppress(LedgerError, sqlite3.Error):
            self.context.__exit__(None, None, None)
        self.path = copy / "ledger.db"
        self.open()

    def killed_inside(self, step, *arguments, **options):
        """Copy the files while the transaction is open, all of it written but not committed."""
        type(self).kills += 1

        class KilledError(Exception):
            pass

        real = Store.append

        def copied(store, *fields):
            real(store, *fields)
            self.copies += 1
            shutil.copytree(self.path.parent, Path(self.home.name) / str(self.copies))
            raise KilledError

        with mock.patch.object(Store, "append", copied), pytest.raises(KilledError):
            step(*arguments, **options)
        self.context.__exit__(None, None, None)
        self.path = Path(self.home.name) / str(self.copies) / "ledger.db"
        self.open()

    @rule(key=KEYS)
    def abandon_any(self, key):
        self.ask("abandon", key, words=ANY)

    @rule(killed=st.booleans())
    def reopen(self, killed):
        if killed:
            self.kill()
        else:
            self.context.__exit__(None, None, None)
            self.open()

    @precondition(lambda self: hasattr(self, "ledger"))
    @invariant()
    def agrees(self):
        type(self).steps += 1
        statuses = {status.account.dataset: status for status in self.ledger.status()}
        assert statuses.keys() == self.rules.caps.keys()
        for dataset, status in statuses.items():
            account = status.account
            assert account.cap == self.rules.caps[dataset]
            assert account.parent == self.rules.parents.get(dataset)
            sums = account.spent, account.pure, account.threshold
            assert sums == self.rules.spent(dataset)
            runs = {key: run for key, run in self.rules.runs.items() if run.dataset == dataset}
            assert status.releases == sum(run.state == "committed" for run in runs.values())
            open_runs = {key for key, run in runs.items() if run.state == "reserved"}
            assert set(status.unfinished) == open_runs
        assert self.ledger.head().seq == len(self.ledger.history()) == self.rules.events
        self.ledger.verify()


@pytest.mark.parametrize(
    ("examples", "same"),
    [
        pytest.param(40, True, id="some"),
        pytest.param(400, False, id="many", marks=pytest.mark.slow),
    ],
)
def test_any_history_is_as_the_rules_say(examples, same, record_property):
    Histories.steps = Histories.kills = 0
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples,
            derandomize=same,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
    assert Histories.steps > examples
    assert Histories.kills > 0
    record_property("crashes", Histories.kills)


def step(name, *arguments, **options):
    return lambda machine: getattr(machine, name)(*arguments, **options)


release, currency, abandon = (
    partial(step, *name) for name in (["release"], ["ask", "currency"], ["ask", "abandon"])
)
unfinished = partial(release, ends="fails before")


def register(dataset, above=None, words=None, *, cap=PANEL_CAP, changes=False):
    """Put a dataset on record, below another account or below a panel of a cap."""
    above = Account("panel", above) if isinstance(above, Cap) else above
    return step("ask", "register", dataset, cap, parent=above, changes=changes, words=words)


change = partial(register, changes=True)
OTHER, LESS, RHO = Account("o", WHOLE), replace(WHOLE, units=UNIT, epsilon=1), Cap("rho", UNIT)
SMALL = Cap("rho", UNIT // 10, epsilon=Fraction(4), delta=Fraction(1, 10**9))
ROW, REPLACED, PERSON = "row, add-remove", "row, replace", "person, add-remove"
ID, NR, AB = (f"person by {column}, add-remove" for column in ("id", "nr", "a, b"))
MIXED = "losses of different units"
WAVES = [register("wave-1", WHOLE), register("wave-2", WHOLE)]


def of(unit, cap=PANEL_CAP):
    return replace(cap, unit=unit)


def waves(kind, words=None):
    """Two waves of promised caps, under another, counted in a currency."""
    own, above = promise(1, kind), promise(2, kind)
    return [register(wave, above, words, cap=own) for wave in ("wave-1", "wave-2")]


HISTORIES = {
    "a retry is free three times and then refused until abandoned": [
        register("people"),
        *[unfinished("people", "k")] * (1 + RETRIES),
        release("people", "k", words="ledger abandon"),
        abandon("k"),
        abandon("k", words="no unfinished run"),
        release("people", "k"),
        unfinished("people", "l", 2 * UNIT),
        abandon("l"),
        release("people", "l", 2 * UNIT, words="nothing is left"),
    ],
    "a key on record is never taken for a dearer one or for another dataset's": [
        *WAVES,
        unfinished("wave-1", "open"),
        release("wave-1", "done"),
        *(release("wave-1", key, UNIT + 1, words="smaller charge") for key in ("open", "done")),
        *(release("wave-2", key, words="another dataset") for key in ("open", "done")),
        release("wave-1", "done"),
        release("wave-1", "open", UNIT // 2),
    ],
    "all sums of a cap": [
        register("people", cap=cap_of("epsilon", UNIT, None)),
        unfinished("people", "k1", UNIT // 10),
        release("people", "k1", UNIT // 10),
        *[release("people", "k2", UNIT // 10, large=True)] * 2,
        release("people", "k3", 3 * UNIT, words="needs 3.8 times what is left"),
        register("others", cap=cap_of("mu^2", 4 * UNIT, 1)),
        *(release("others", key, 3 * UNIT, pure=UNIT // 2) for key in ("k4", "k5")),
        *(release("others", "k6", 3 * UNIT, pure=pure, words="nothing is") for pure in (1, None)),
        register("found", cap=promise(2, "gdp", DELTA / 3)),
        release("found", "k8", 1, threshold=DELTA / 3),
        release("found", "k9", 1, threshold=DELTA / 7, words="and 0 is left of what the budget"),
        change("found", None, "restore `discover`", cap=promise(2, "gdp", DELTA / 7)),
    ],
    "a charge is its parent's too, and later runs are told what the first was": [
        *WAVES,
        release("wave-1", "a"),
        release("wave-2", "b", 2 * UNIT),
        release("wave-1", "a"),
        unfinished("wave-1", "c"),
        release("wave-1", "c"),
        unfinished("wave-1", "d"),
        abandon("d"),
        release("wave-1", "d"),
    ],
    "the message names the cap that refuses and what remains": [
        *WAVES,
        release("wave-1", "a", 4 * UNIT),
        release("wave-1", "b", 1, words="nothing is left of the budget of epsilon 4; nothing was"),
        release("wave-2", "c", 3 * UNIT),
        register("panel", cap=WHOLE),
        release("panel", "d", 5 * UNIT // 2),
        release(
            "wave-2",
            "e",
            words="^dataset 'wave-2': this release needs 2 times what is left of the budget of "
            "epsilon 10 of its parent 'panel', for all of its datasets together; nothing was char",
        ),
        release("wave-1", "f", words="nothing is left of the budget of epsilon 4;"),  # its own
    ],
    "registering again changes nothing and any difference is a conflict": [
        *WAVES * 2,
        register("wave-1", WHOLE, "epsilon 4, but the spec declares epsilon 10", cap=CAP),
        register("wave-1", None, "with the parent 'panel' and the spec names none;"),
        register("wave-1", OTHER, "with the parent 'panel' and the spec names 'o'"),
        *(change("wave-1", above, "restore the parent") for above in (None, OTHER)),
        register("wave-1", LESS, "parent 'panel' is on record with a cap of epsilon 10, but the"),
        change("wave-1", LESS),
        release("wave-1", "a"),
        release("wave-2", "b", 1, words="nothing is left of the budget of epsilon 1 of its par"),
        register("wave-2", WHOLE, "epsilon 1, but the spec declares epsilon 10"),
    ],
    "a dataset charged before brings what it spent to its parent": [
        *WAVES,
        register("wave-0"),
        release("wave-0", "early", 3 * UNIT),
        unfinished("wave-0", "late"),
        register("wave-0", WHOLE, "--change-cap"),
        currency("wave-0", unit=ROW, parent="panel", words="no parent.*run `dpquery plan`"),
        change("wave-0", WHOLE),
        release("wave-0", "early", 3 * UNIT),
        release("wave-0", "late"),
        register("wave-0", WHOLE),
        currency("wave-0", unit=ROW, parent="panel"),
        currency("wave-0", unit=ROW),  # as a plan from before it came under its parent
        currency("wave-0", unit=ROW, parent="o", words="'panel'.*run `dpquery plan`"),
    ],
    "a dataset that spent more than its parent has left is not adopted": [
        *WAVES,
        register("wave-0"),
        *(release(f"wave-{k}", f"k{k}", 4 * UNIT) for k in range(3)),
        change("wave-0", WHOLE, "is 2 times what is left of"),
        change("wave-0", replace(WHOLE, units=8 * UNIT), "nothing is left"),
    ],
    "nor one whose discoveries spent more": [
        register("found", cap=promise(2, "gdp", DELTA / 3)),
        release("found", "k", 1, threshold=DELTA / 3),
        change("found", promise(2, "gdp"), "apart by `disc", cap=promise(2, "gdp", DELTA / 3)),
        *(
            do(name, promise(2, "gdp", DELTA / 2), cap=promise(2, "gdp", DELTA / 3))
            for do, name in ((change, "found"), (register, "next"))
        ),
        release("next", "l", 1, threshold=DELTA / 3, words="and 1.66667e-7 is left of what"),
    ],
    "a parent adds up the epsilons of all its datasets": [
        register("people", cap=SMALL),
        release("people", "before", pure=UNIT),
        register("others", SMALL, cap=SMALL),
        change("people", SMALL, cap=SMALL),
        release("others", "one", pure=3 * UNIT),
        release("people", "two", pure=UNIT // 10, words="nothing is left"),
    ],
    "a parent has no parent": [
        *WAVES,
        register("panel", OTHER, "'panel' cannot have a parent: it is that of", cap=WHOLE),
        change("panel", OTHER, "'panel' cannot have a parent: it is that of", cap=WHOLE),
        register("part", Account("wave-1", CAP), "'wave-1' cannot be a parent: it has the parent"),
    ],
    "a dataset and its parent are charged in one currency for one kind of unit": [
        *WAVES,
        register("next", WHOLE, "one is on record for 'rho', the other for 'epsilon'", cap=RHO),
        register("next", WHOLE, "'row, replace', the other for 'row, add-re", cap=of(REPLACED)),
        register("next", WHOLE, "'person, add-remove', the other for 'row", cap=of(ID)),
        # Nothing is spent, but the other wave is on record too.
        change("wave-1", RHO, "'wave-2' and its parent 'panel' cannot", cap=RHO),
        *(register("next", of(unit, WHOLE), MIXED, cap=of(unit)) for unit in (REPLACED, PERSON)),
    ],
    "charges for different units are never added up": [
        register("people"),
        register("people", None, "is on record for the unit 'row, add-remove'", cap=of(ID)),
        currency("people", unit=ID, words="on record for the unit 'row, add-remove'"),
        change("people", cap=of(ID)),
        change("people"),
        release("people", "k"),
        change("people", None, "cannot become epsilon for 'person by id", cap=of(ID)),
        change("people", None, "cannot become rho for 'row, add-remove'", cap=RHO),
        change("people", cap=LESS),
        release("people", "l", 1, words="nothing is left"),
    ],
    "persons are the same under any column of the datasets of a parent": [
        register("wave-1", of(PERSON, WHOLE), cap=of(ID)),
        register("wave-2", of(PERSON, WHOLE), cap=of(AB)),
        release("wave-1", "a"),
        # The parent itself says which column is its own once it is released from, and keeps to it.
        register("panel", None, "with a cap of epsilon 10, but the spec decl", cap=of(NR, LESS)),
        register("panel", None, "is on record for the unit", cap=of(ROW, LESS)),
        register("panel", cap=of(NR, WHOLE)),
        register("wave-1", of(PERSON, WHOLE), cap=of(ID)),
        currency("panel", unit=NR),
        register("panel", None, MIXED, cap=of(ID, WHOLE)),
        register("wave-1", of(PERSON, WHOLE), MIXED, cap=of(NR)),
        register("panel", None, MIXED, cap=WHOLE),
        currency("panel", unit=ID, words=MIXED),
    ],
    "a family is counted in another currency as a whole and only before a charge": [
        *[*waves("zcdp"), *waves("gdp"), waves("zcdp")[0], waves("gdp")[1]],
        release("wave-1", "k", UNIT // 10**6),
        *waves("zcdp", "is on record with a cap of"),
    ],
}


@pytest.mark.parametrize("steps", HISTORIES.values(), ids=HISTORIES)
def test_a_history_is_as_the_rules_say(steps):
    machine = Histories()
    machine.begin()
    try:
        for each in steps:
            each(machine)
            machine.agrees()
    finally:
        machine.teardown()
