"""Small ledgers, and what is charged to them."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
from python_files import PYTHON_PATH

from dpquery.exceptions import DpqueryError
from dpquery.measurement.accounting import UNIT, Cap, Price
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.ledger import Ledger

# A small ledger and the protocol of a release, for the tests of the ledger.

CAP = Cap("epsilon", 10 * UNIT, epsilon=Fraction(10))
VALUES = np.array([5, -(2**61), 0, 7], np.int64)


def price(units=UNIT):
    """A charge to a cap like CAP."""
    return Price(units, CAP.currency, CAP.unit)


def price_under_cap(ledger, dataset, units):
    """A charge to the cap that a dataset has on record, if it is."""
    caps = {status.account.dataset: status.account.cap for status in ledger.status()}
    cap = caps.get(dataset, CAP)
    return Price(units, cap.currency, cap.unit)


def new_ledger(folder):
    """A ledger with one registered dataset."""
    path = folder / "state" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("people", CAP)
    return path


@contextmanager
def opened(path, **settings):
    with Ledger.open(path, create=False, **settings) as ledger:
        yield ledger


def charge(ledger, key="k1", units=UNIT, dataset="people"):
    ledger.reserve(
        dataset, key=key, price=price(units), native={"pure": "1"}, details={"release": 1}
    )


def release(ledger, key="k1", units=UNIT, values=VALUES):
    """The protocol as the curator runs it."""
    with ledger.hold(key):
        stored = ledger.lookup("people", key=key, price=price(units))
        if stored is not None:
            return stored
        charge(ledger, key, units)
        return ledger.commit(key, values, source="OpenDP 0")


def spent(path, dataset="people"):
    with opened(path) as ledger:
        (status,) = (s for s in ledger.status() if s.account.dataset == dataset)
        return status.account.spent


def edit(path, statement, *values):
    """Change the database as a curator with a free hand would: without the triggers."""
    database = sqlite3.connect(path, isolation_level=None)
    triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        database.execute(f"DROP TRIGGER {name}")
    database.execute(statement, values)
    database.close()


def run_script(script, *arguments):
    """Run a script and return the JSON it prints; what it forks inherits no threads of tests."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def forked(work, *arguments):
    """Do some work in a process of its own, which ends in the exit code of its error."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work(*arguments)
        os._exit(0)
    except DpqueryError as error:
        os._exit(error.exit_code)
    finally:
        os._exit(99)


def codes(pids):
    """Return how each process ended: its exit code, or minus the signal that killed it."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


# Two waves of one panel in a ledger, which one cap bounds together.

PANEL_CAP = Cap("epsilon", 4 * UNIT, epsilon=Fraction(4))
WHOLE = Cap("epsilon", 10 * UNIT, epsilon=Fraction(10))
PANEL = Account("panel", WHOLE)


def new_panel(folder):
    """A ledger with two waves of the panel on record."""
    path = folder / "state" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("wave-1", PANEL_CAP, parent=PANEL)
        ledger.register("wave-2", PANEL_CAP, parent=PANEL)
    return path


def spent_by(ledger):
    """What every dataset has spent."""
    return {s.account.dataset: Fraction(s.account.spent, UNIT) for s in ledger.status()}


def kinds(ledger):
    """The kinds of all events, oldest first."""
    return [event.kind for event in ledger.history()]


def reserve(ledger, dataset, key, units=UNIT):
    """Charge a dataset."""
    price = price_under_cap(ledger, dataset, units)
    ledger.reserve(dataset, key=key, price=price, native={}, details={})


def release_of(ledger, dataset, key, units=UNIT):
    """The protocol as the curator runs it."""
    with ledger.hold(key):
        stored = ledger.lookup(dataset, key=key, price=price_under_cap(ledger, dataset, units))
        if stored is None:
            reserve(ledger, dataset, key, units)
            stored = ledger.commit(key, np.array([7, 8]), source="OpenDP 0")
        return stored
