"""Two waves of one panel in a ledger, which one cap bounds together."""

from fractions import Fraction

import numpy as np
from ledgers import price_under_cap

from dpquery.measurement.accounting import UNIT, Cap
from dpquery.measurement.ledger.caps import ParentCap
from dpquery.measurement.ledger.ledger import Ledger

CAP = Cap("epsilon", 4 * UNIT, epsilon=Fraction(4))
WHOLE = Cap("epsilon", 10 * UNIT, epsilon=Fraction(10))
PANEL = ParentCap("panel", WHOLE)


def new_panel(folder):
    """A ledger with two waves of the panel on record."""
    path = folder / "state" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.register("wave-1", CAP, parent=PANEL)
        ledger.register("wave-2", CAP, parent=PANEL)
    return path


def spent(ledger):
    """What every dataset has spent."""
    return {s.account.dataset: Fraction(s.account.spent, UNIT) for s in ledger.status()}


def kinds(ledger):
    """The kinds of all events, oldest first."""
    return [event.kind for event in ledger.history()]


def reserve(ledger, dataset, key, units=UNIT):
    """Charge a dataset."""
    price = price_under_cap(ledger, dataset, units)
    ledger.reserve(dataset, key=key, price=price, native={}, details={})


def release(ledger, dataset, key, units=UNIT):
    """The protocol as the curator runs it."""
    with ledger.hold(key):
        stored = ledger.lookup(dataset, key=key, price=price_under_cap(ledger, dataset, units))
        if stored is None:
            reserve(ledger, dataset, key, units)
            stored = ledger.commit(key, np.array([7, 8]), source="OpenDP 0")
        return stored
