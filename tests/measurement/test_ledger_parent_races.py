"""Processes that race or are killed charge a dataset and its parent both, or neither."""

from dataclasses import replace

from ledgers import PANEL, PANEL_CAP, opened, run_script, spent_by

from dpquery.exceptions import BudgetExceededError
from dpquery.measurement.accounting import UNIT
from dpquery.measurement.ledger.ledger import Ledger

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
        spent = {each.account.dataset: each.account.spent // 10**18 for each in ledger.status()}
        return [spent["panel"], spent["wave-1"], ledger.verify().seq]
outcome = []
for moment in ("before", "inside", "after"):
    assert codes([forked(killed, moment)]) == [-signal.SIGKILL]
    outcome.append(state())
release(1)
print(json.dumps([*outcome, state()]))
"""


def test_a_run_killed_around_its_charge_has_charged_both_accounts_or_neither(
    panel, record_property
):
    """One event holds both charges: there is nothing between them to be killed at."""
    before = 5
    assert run_script(SCRIPT + KILLS, panel) == [
        [0, 0, before],
        [0, 0, before],
        [1, 1, before + 1],
        [1, 1, before + 3],  # continued and committed, at no charge
    ]
    record_property("crashes", 3)
