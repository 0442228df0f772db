"""An adaptive run killed at any step goes on where it ended: charged once, nothing drawn twice.

As of RAP: every function that draws, decides or makes something durable is in turn the one before
or after which a process of its own is killed.
"""

import os
import secrets
import signal
from contextlib import contextmanager

import numpy as np
import pytest
from rounds import MIXED_SPEC, Guess, ask_tables, open_ledger, rehearse_tables, write_csv
from town import contents, ended, kinds, ok, plan_town, renew, spent, start

from dpquery.exceptions import BudgetExceededError
from dpquery.measurement import curator
from dpquery.measurement.ledger.caps import RETRIES
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import MeasurementFile, PartialMeasurement, Store
from dpquery.measurement.rounds import tables
from dpquery.measurement.rounds.selection import ExactChance
from dpquery.measurement.rounds.tables import AdaptiveQuery, measured_tables

STEPS = (
    (Ledger, "reserve"),
    (curator, "tabulate"),
    (tables, "noisy_one_way"),
    (tables, "draw_table"),
    (ExactChance, "level"),
    (ExactChance, "add_noise"),
    (PartialMeasurement, "parts"),
    (PartialMeasurement, "append"),
    (PartialMeasurement, "clear"),
    (MeasurementFile, "write_pending"),
    (MeasurementFile, "publish"),
    (MeasurementFile, "remove"),
    (Guess, "add"),
    (Store, "append"),
    (Store, "put"),
    (Ledger, "commit"),
)
SOME = pytest.mark.parametrize(
    "step", [pytest.param(12, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


def watched(patch, reached):
    """Have `reached(name)` called before and after every step."""

    def watch(owner, name):
        real = getattr(owner, name)

        def step(*arguments, **named):
            reached(name)
            try:
                return real(*arguments, **named)
            finally:
                reached(name)

        patch.setattr(owner, name, step)

    for owner, name in STEPS:
        watch(owner, name)


def measured(question, folder):
    with Ledger.open(folder / "state" / "ledger.db", create=False) as ledger:
        return curator.measure(folder / "data.csv", question, ledger=ledger)


def killed(question, folder, moment, *, of=None):
    """Measure in another process, which is killed at a moment; whether it got that far."""
    child = os.fork()
    if child == 0:
        try:
            left = [moment]

            def reached(name):
                left[0] -= of in {None, name}
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

            with pytest.MonkeyPatch.context() as patch:
                watched(patch, reached)
                measured(question, folder)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def durable(question, folder):
    """The parts that are there, and what is committed, or None."""
    with Ledger.open(folder / "state" / "ledger.db", create=False) as ledger:
        history = [event.kind for event in ledger.history()]
        if "reserve" not in history:
            return [], None
        if "commit" in history:
            return None, measured(question, folder).values
        with ledger.hold(question.key):
            return ledger.draft(question.key).parts(), None


@contextmanager
def counted(monkeypatch):
    """Count what is drawn."""
    drawn = {"add_noise": 0, "level": 0, "tabulate": 0}

    def reached(name):
        if name in drawn:
            drawn[name] += 0.5

    with monkeypatch.context() as patch:
        watched(patch, reached)
        yield drawn


def ends_well(question, folder, monkeypatch):
    """Check what a killed run left, continue it, and check that nothing is drawn again."""
    parts, committed = durable(question, folder)
    with counted(monkeypatch) as drawn:
        done = measured(question, folder).values
    rounds = measured_tables(question, done).rounds
    if committed is not None:
        assert drawn == {"add_noise": 0, "level": 0, "tabulate": 0}
        assert done.tolist() == committed.tolist()
    else:
        there = np.concatenate([np.zeros(0, np.int64), *parts])
        assert done[: len(there)].tolist() == there.tolist()
        assert drawn["add_noise"] == 1 + len(rounds) - len(parts)
        assert drawn["level"] == len(rounds) - max(0, len(parts) - 1)
    parts_rho = [question.budget.one_way_rho, *(each.budget.rho for each in rounds)]
    assert sum(parts_rho) == question.guarantee.amount
    with Ledger.open(folder / "state" / "ledger.db", create=False) as ledger:
        history = [event.kind for event in ledger.history()]
        account = ledger.status()[0].account
        ledger.verify()
    assert history.count("reserve") == history.count("commit") == 1
    assert account.spent == -(-question.guarantee.amount * 10**18 // 1)
    assert not list((folder / "state" / "ledger.db.measurements").iterdir())


@pytest.fixture
def towns(tmp_path):
    """Makes folders with the same data and a ledger each."""

    def make(name, question):
        folder = tmp_path / name
        folder.mkdir()
        write_csv(folder / "data.csv")
        open_ledger(folder, question)
        return folder

    return make


@SOME
def test_a_run_killed_at_any_step_goes_on_where_it_ended(towns, monkeypatch, step, record_property):
    question, steps = ask_tables(), []
    with monkeypatch.context() as patch:
        watched(patch, steps.append)
        measured(question, towns("whole", question))
    assert set(steps) == {name for _, name in STEPS}
    tried = range(1 + secrets.randbelow(step), len(steps) + 1, step)
    for moment in tried:
        folder = towns(f"killed-{moment}", question)
        killed(question, folder, moment)
        ends_well(question, folder, monkeypatch)
    record_property("crashes", len(tried))


def test_a_run_that_is_killed_every_time_draws_nothing_again(towns, record_property):
    question = ask_tables()
    folder, seen = towns("killed", question), set()
    for _ in range(1 + RETRIES):
        assert killed(question, folder, 2, of="add")  # told of the first round
        first, second = durable(question, folder)[0]
        seen.add((*first.tolist(), *second.tolist()))
    assert len(seen) == 1
    with pytest.raises(BudgetExceededError, match="ledger abandon"):
        measured(question, folder)
    record_property("crashes", 1 + RETRIES)


def test_parts_that_were_drawn_again_would_be_seen(towns, monkeypatch):
    """What these tests are for: a run that forgets its draft."""
    question = ask_tables()
    folder = towns("killed", question)
    assert killed(question, folder, 1, of="add")
    monkeypatch.setattr(AdaptiveQuery, "_parts", lambda *_: [])
    with monkeypatch.context() as patch, pytest.raises((AssertionError, ValueError)):
        ends_well(question, folder, patch)


# ------------------------------------------------------------------------- from the command line

RELEASE = ("release", "data.csv", "--epsilon", "1")
KILLED = """\
import os, signal
from importlib import import_module
def dies(module, owner, name, number):
    place, calls = getattr(import_module(module), owner), [0]
    real = getattr(place, name)
    def step(*arguments, **named):
        calls[0] += 1
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    setattr(place, name, step)
"""
PARTS = "dpquery.measurement.ledger.store", "PartialMeasurement", "append"
PLACES = {
    "before the first tables are durable": (*PARTS, 1, 0),
    "in the first draw": ("dpquery.measurement.rounds.selection", "ExactChance", "level", 1, 1),
    "in the first fit": ("dpquery.reconstruction.adaptive_fits", "AdaptiveFit", "add", 1, 2),
    "before the second round is durable": (*PARTS, 3, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_command_killed_between_rounds_is_completed_by_the_next(
    tmp_path, monkeypatch, place, record_property
):
    plan_town(tmp_path / "planned", MIXED_SPEC)
    rehearse_tables(tmp_path / "planned" / "dpquery.plan")
    renew(tmp_path / "town", tmp_path / "planned")
    monkeypatch.chdir(tmp_path / "town")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "town" / "state" / "ledger.db"))
    *where, parts = PLACES[place]
    done = ended(start(*RELEASE, code=f"{KILLED}\ndies{tuple(where)!r}"))
    assert (done.code, done.out) == (-9, "")
    committed = [name for name in contents("state") if name.endswith(".i64")]
    assert len(committed) == parts
    paid = spent()
    ok(*RELEASE)
    assert spent() == paid
    assert kinds() == ["register", "reserve", "retry", "commit"]
    assert not [name for name in contents("state") if name.endswith((".i64", ".pending"))]
    assert "ok" in ok("ledger", "verify", "--releases", "release").out
    record_property("crashes", 1)
