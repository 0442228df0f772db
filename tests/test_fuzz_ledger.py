"""Any history of a ledger agrees with a plain model of it, and any damage ends in exit 0 or 4.

Histories: registering, charging, committing, giving up, retrying, changing caps, disks that refuse
and kills in any order. A kill is what its name says to a file: the folder is copied as it lies,
open transactions, locks and logs included, and only the copy goes on.
"""

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pytest
from cli_support import run
from fuzz_support import chance
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ledgers import new_ledger, opened, own_price, price, release

from dpquery.exceptions import BudgetExceededError, LedgerError, PlanConflictError
from dpquery.measurement import ledger as ledger_module
from dpquery.measurement.accounting import UNIT, Cap
from dpquery.measurement.ledger import Ledger
from dpquery.measurement.ledger_checks import RETRIES
from dpquery.measurement.ledger_store import Store

MEMORY = Path("/dev/shm")  # noqa: S108 - folders of our own are made in it
FAST = MEMORY if os.access(MEMORY, os.W_OK) else None

DATASETS = st.sampled_from(["people", "others"])
KEYS = st.sampled_from(["k1", "k2", "k3"])
UNITS = st.sampled_from([1, UNIT // 10, 3 * UNIT])
CAPS = st.sampled_from([0, 1, UNIT, 4 * UNIT, 10 * UNIT])


@dataclass
class Run:
    """What the model knows of a key."""

    dataset: str
    units: int
    state: str = "reserved"
    retries: int = 0
    values: list = field(default_factory=list)


class Histories(RuleBasedStateMachine):
    """A ledger beside a model of two dictionaries."""

    steps = kills = 0

    @initialize()
    def begin(self):
        self.home = TemporaryDirectory(dir=FAST)
        self.copies = 0
        self.path = Path(self.home.name) / "0" / "ledger.db"
        self.caps, self.spent, self.runs, self.events, self.drawn = {}, {}, {}, 0, 0
        self.open()

    def open(self):
        self.context = Ledger.open(self.path, create=True)
        self.ledger = self.context.__enter__()

    def teardown(self):
        if hasattr(self, "context"):
            self.context.__exit__(None, None, None)
            self.home.cleanup()

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

    def recorded(self, number=1):
        self.events += number

    @rule(dataset=DATASETS, units=CAPS)
    def register(self, dataset, units):
        cap = Cap("epsilon", units)
        if self.caps.get(dataset, cap) != cap:
            with pytest.raises(PlanConflictError):
                self.ledger.register(dataset, cap)
        else:
            self.ledger.register(dataset, cap)
            self.recorded(dataset not in self.caps)
            self.caps[dataset] = cap
            self.spent.setdefault(dataset, 0)

    @rule(dataset=DATASETS, units=CAPS, currency=st.sampled_from(["epsilon", "rho"]))
    def change_cap(self, dataset, units, currency):
        cap = Cap(currency, units)
        if dataset not in self.caps:
            with pytest.raises(LedgerError):
                self.ledger.change_cap(dataset, cap)
        elif self.spent[dataset] and currency != self.caps[dataset].currency:
            with pytest.raises(PlanConflictError):
                self.ledger.change_cap(dataset, cap)
        else:
            self.ledger.change_cap(dataset, cap)
            self.recorded(cap != self.caps[dataset])
            self.caps[dataset] = cap

    def refusal(self, dataset, key, units):
        """The error that a charge must end in, or None."""
        own = self.runs.get(key)
        if dataset not in self.caps:
            return LedgerError
        if own is None or own.state == "abandoned":
            over = self.spent[dataset] + units > self.caps[dataset].units
            return BudgetExceededError if over else None
        if (own.dataset, own.units) != (dataset, units):
            return PlanConflictError
        if own.state == "reserved" and own.retries == RETRIES:
            return BudgetExceededError
        return None

    @rule(
        dataset=DATASETS,
        key=KEYS,
        units=UNITS,
        ends=st.sampled_from(["well", "well", "killed before", "killed inside", "killed after"])
        | st.sampled_from(["fails before", "disk full", "killed committed"]),
        large=st.booleans(),
    )
    def release(self, dataset, key, units, ends, large):
        price = own_price(self.ledger, dataset, units)
        if (error := self.refusal(dataset, key, units)) is not None:
            with self.ledger.hold(key):
                with pytest.raises(error):
                    self.ledger.lookup(dataset, key=key, price=price)
                with pytest.raises(error):
                    self.ledger.reserve(dataset, key=key, price=price, native={}, details={})
            return
        with self.ledger.hold(key):
            stored = self.ledger.lookup(dataset, key=key, price=price)
            own = self.runs.get(key)
            if own is not None and own.state == "committed":
                assert stored.values.tolist() == own.values
                return
            assert stored is None
            if ends == "killed before":
                charge = {"dataset": dataset, "key": key, "price": price}
                self.killed_inside(self.ledger.reserve, **charge, native={}, details={})
                return
            self.ledger.reserve(dataset, key=key, price=price, native={}, details={})
            self.charged(dataset, key, units)
            self.drawn += 1
            values = np.array([self.drawn, -self.drawn, 0])
            with mock.patch.object(ledger_module, "LARGE", 0 if large else 100):
                self.finish(key, values, ends)

    def charged(self, dataset, key, units):
        own = self.runs.get(key)
        if own is None or own.state == "abandoned":
            self.spent[dataset] += units
            assert self.spent[dataset] <= self.caps[dataset].units
            self.runs[key] = Run(dataset, units)
        else:
            own.retries += 1
        self.recorded()

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
            self.ledger.commit(key, values, source="OpenDP 0")
            self.runs[key].state, self.runs[key].values = "committed", values.tolist()
            self.recorded()
            if ends == "killed committed":
                self.kill()

    def killed_inside(self, step, **arguments):
        """Copy the files while the transaction is open, all of it written but not committed."""
        type(self).kills += 1

        class KilledError(Exception):
            pass

        real = Store.append

        def copied(store, *own):
            real(store, *own)
            self.copies += 1
            shutil.copytree(self.path.parent, Path(self.home.name) / str(self.copies))
            raise KilledError

        with mock.patch.object(Store, "append", copied), pytest.raises(KilledError):
            step(**arguments)
        self.context.__exit__(None, None, None)
        self.path = Path(self.home.name) / str(self.copies) / "ledger.db"
        self.open()

    @rule(key=KEYS)
    def abandon(self, key):
        own = self.runs.get(key)
        if own is None or own.state != "reserved":
            with pytest.raises(PlanConflictError):
                self.ledger.abandon(key)
        else:
            self.ledger.abandon(key)
            own.state = "abandoned"
            self.recorded()

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
        found = {own.account.dataset: own for own in self.ledger.status()}
        assert found.keys() == self.caps.keys()
        for dataset, own in found.items():
            assert own.account.cap == self.caps[dataset]
            assert own.account.spent == self.spent[dataset]
            runs = {key: run for key, run in self.runs.items() if run.dataset == dataset}
            assert own.releases == sum(run.state == "committed" for run in runs.values())
            open_runs = {key for key, run in runs.items() if run.state == "reserved"}
            assert set(own.unfinished) == open_runs
        assert self.ledger.head().seq == len(self.ledger.history()) == self.events
        self.ledger.verify()


def histories(examples, *, derandomize, phases=tuple(Phase)):
    """Run random histories, or with `derandomize` the same ones every time."""
    Histories.steps = Histories.kills = 0
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples,
            derandomize=derandomize,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=phases,
            database=None,
        ),
    )
    return Histories.steps


@pytest.mark.parametrize(
    ("examples", "same"),
    [
        pytest.param(25, True, id="some"),
        pytest.param(400, False, id="many", marks=pytest.mark.slow),
    ],
)
def test_any_history_agrees_with_a_plain_model(examples, same, record_property):
    assert histories(examples, derandomize=same) > examples
    assert Histories.kills > 0
    record_property("crashes", Histories.kills)


def short_history():
    """A release that fails and is run again, one past the cap, and a large one, asked for twice."""
    own = Histories()
    own.begin()
    try:
        own.register(dataset="people", units=UNIT)
        release = {"dataset": "people", "units": UNIT // 10}
        for key, ends, large in (
            *(("k1", "fails before", False), ("k1", "well", False)),
            *(("k2", "well", True), ("k2", "well", True)),
        ):
            own.release(**release, key=key, ends=ends, large=large)
            own.agrees()
        own.release(dataset="people", key="k3", units=UNIT * 3, ends="well", large=False)
        own.agrees()
    finally:
        own.teardown()


def test_the_model_agrees_with_a_short_history():
    short_history()


MISTAKES = pytest.mark.parametrize(
    "mistake",
    [
        ("dpquery.measurement.ledger_checks.RETRIES", 0),
        ("dpquery.measurement.ledger_checks.check_funds", lambda *_, **__: None),
        ("dpquery.measurement.ledger.MeasurementFile.publish", lambda _: None),
    ],
    ids=["no retry", "no cap", "large files never published"],
)


@MISTAKES
def test_the_model_notices_a_mistake(mistake):
    with mock.patch(*mistake), pytest.raises((Exception, pytest.fail.Exception)):
        short_history()


@pytest.mark.slow
@MISTAKES
def test_many_histories_come_upon_a_mistake(mistake):
    with mock.patch(*mistake), pytest.raises((Exception, pytest.fail.Exception)):
        histories(1500, derandomize=True, phases=[Phase.generate])


# ------------------------------------------------------------------------------------ damaged files


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A ledger with all kinds of events, its log beside it as a kill would leave it."""
    folder = tmp_path_factory.mktemp("whole")
    path = new_ledger(folder)
    for number in range(30):
        with opened(path) as ledger:
            release(ledger, f"key {number}", UNIT // 10, np.arange(number * 40))
    with opened(path) as ledger:
        with ledger.hold("given up"):
            ledger.reserve("people", key="given up", price=price(1), native={}, details={})
        ledger.abandon("given up")
        with ledger.hold("unfinished"):
            ledger.reserve("people", key="unfinished", price=price(1), native={}, details={})
        shutil.copytree(path.parent, folder / "killed")
        events = [event.head for event in ledger.history()]
    assert (folder / "killed" / "ledger.db-wal").stat().st_size > 4096
    return {"closed": path.parent, "killed": folder / "killed", "events": events}


def flipped(content, draw):
    """Some bytes changed, in one place or in many."""
    content = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 8, 100])):
        content[draw.randrange(len(content))] ^= 1 + draw.randrange(255)
    return bytes(content)


def shuffled_pages(content, draw):
    pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
    one, two = draw.randrange(len(pages)), draw.randrange(len(pages))
    pages[one], pages[two] = pages[two], pages[one]
    return b"".join(pages)


def blanked(content, draw):
    at = draw.randrange(len(content))
    return content[:at] + bytes(draw.choice([16, 512, 4096])) + content[at + 4096 :]


DAMAGE = {
    "bytes changed": flipped,
    "bytes changed in the head": lambda content, draw: flipped(content[:200], draw) + content[200:],
    "cut off": lambda content, draw: content[: draw.randrange(len(content))],
    "a page cut off": lambda content, _: content[: len(content) - 4096],
    "pages exchanged": shuffled_pages,
    "blanked": blanked,
    "something behind it": lambda content, draw: content + draw.randbytes(5000),
    "nothing": lambda *_: b"",
    "noise": lambda content, draw: draw.randbytes(len(content)),
}
COMMANDS = (
    *(("ledger", "verify"), ("ledger", "history"), ("ledger", "history", "--json")),
    *(("ledger", "status"), ("ledger", "export"), ("ledger", "abandon", "unfinished")),
)


def damaged(whole, folder, *, state, ending, damage, draw):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole[state], folder)
    file = folder / f"ledger.db{ending}"
    file.write_bytes(DAMAGE[damage](file.read_bytes(), draw))
    return folder / "ledger.db"


def check(path, command):
    """Run a command on a damaged ledger: it ends in 0 or 4, or for what is not there in 5."""
    done = run(*command, "--ledger", path)
    assert done.code in ({0, 4, 5} if "abandon" in command else {0, 4}), (command, done)
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    assert "sqlite" not in done.err.lower()
    assert done.code == 0 or done.err.startswith("dpquery: ")
    return done


@pytest.mark.parametrize(
    ("times", "seed"),
    [pytest.param(2, 1, id="some"), pytest.param(30, None, id="many", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("state", "ending"), [("closed", ""), ("killed", ""), ("killed", "-wal"), ("killed", "-shm")]
)
def test_a_damaged_ledger_is_found_out_and_never_read_as_another(
    whole, state, ending, times, seed, record_property
):
    tried, draw = 0, chance(seed)
    with TemporaryDirectory(dir=FAST) as name:
        for damage in DAMAGE:
            for _ in range(times):
                place = {"state": state, "ending": ending, "damage": damage}
                path = damaged(whole, Path(name) / "own", **place, draw=draw)
                tried += 1
                check(path, COMMANDS[tried % len(COMMANDS)])
                with suppress(LedgerError), opened(path) as ledger:
                    found = [event.head for event in ledger.history()]
                    events = whole["events"]
                    own = events[: len(found)] + found[len(events) :]  # giving up adds one
                    assert found == own
                    # Damage to the log can take its end away, as if it had not been written.
                    assert ending == "-wal" or len(found) >= len(events)
    record_property("bad inputs", tried)


def test_the_undamaged_ledgers_are_read_whole(whole, tmp_path):
    for state in ("closed", "killed"):
        shutil.copytree(whole[state], tmp_path / state)
        path = tmp_path / state / "ledger.db"
        assert check(path, ("ledger", "verify")).code == 0
        with opened(path) as ledger:
            assert len(ledger.history()) >= 64


def other_databases():
    yield "PRAGMA user_version = 7"
    yield "CREATE TABLE events (seq, body, hash); CREATE TABLE measurements (seq, payload)"
    mine = "PRAGMA application_id = 1685090609;"
    yield mine
    yield mine + "CREATE TABLE events (seq, body, hash)"
    measurements = "CREATE TABLE measurements (seq, payload);"
    yield mine + "CREATE VIEW events AS SELECT 1 AS seq, 2 AS body, 3 AS hash;" + measurements
    mine += "CREATE TABLE events (seq, body, hash);" + measurements
    # SQLite quotes this name, which is no text that could be read.
    unreadable = (
        "UPDATE sqlite_master SET sql = '', name = CAST(x'ff' AS TEXT) WHERE name = 'events'"
    )
    yield f"{mine} PRAGMA writable_schema = 1; {unreadable}"
    yield from (mine + f"PRAGMA user_version = {count}" for count in (-5, 1, 2147483647))
    text = "CAST(x'ff80' AS TEXT)"
    for row in ("1, x'ff', x'fe'", f"1, {text}, 'x'", "NULL, NULL, NULL", "1e300, 5, 1.5"):
        yield mine + f"INSERT INTO events VALUES ({row})"  # noqa: S608 - rows of this test
    yield mine + "INSERT INTO measurements VALUES ('x', 'y')"  # noqa: S608 - this test's


def test_another_database_is_no_ledger(tmp_path, record_property):
    scripts = list(other_databases())
    for script in scripts:
        path = tmp_path / "own" / "ledger.db"
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir(mode=0o700)
        with closing(sqlite3.connect(path)) as database:
            database.executescript(script)
        path.chmod(0o600)
        for command in COMMANDS:
            check(path, command)
    record_property("bad inputs", len(scripts))


@pytest.mark.slow
def test_a_hundred_thousand_events_are_read_and_added_to(tmp_path):
    path = new_ledger(tmp_path)
    with opened(path) as ledger, ledger._store.writing() as state:
        for number in range(50_000):
            key = f"{number:064x}"
            charge = {"dataset": "people", "key": key, "units": "1", "native": {}, "details": {}}
            ledger._store.append(state, "reserve", charge)
            stored = {"key": key, "sha256": "0" * 64, "size": 1, "source": "x"}
            ledger._store.append(state, "commit", stored)
    with opened(path) as ledger:
        ledger.change_cap("people", Cap("epsilon", 60_000))
        (status,) = ledger.status()
    assert (status.account.spent, status.releases) == (50_000, 50_000)
    assert status.account.remaining == 10_000
