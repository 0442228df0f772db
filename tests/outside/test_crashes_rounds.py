"""A run of rounds killed at any step goes on where it ended: charged once, nothing drawn twice.

For RAP and for adaptive measurement every function that draws, decides or makes something durable
is in turn the one before or after which a process of its own is killed. What must hold then: the
parts that are durable are the first values of what is committed in the end, and as many draws are
made anew as there were parts missing.
"""

import errno
import itertools
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from release_parts import answers, release
from rounds import TWO, Frozen, Guess, ask, ask_tables, open_ledger, write_csv
from town import contents

from dpquery.exceptions import BudgetExceededError, DpqueryError, PlanConflictError, SpecError
from dpquery.measurement import curator
from dpquery.measurement.ledger.admission import RETRIES
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import MeasurementFile, PartialMeasurement, Store
from dpquery.measurement.rounds import queries, tables
from dpquery.measurement.rounds.chance import ExactChance
from dpquery.measurement.rounds.run import Rounds
from dpquery.untrusted.files import replacing

# Steps of every run: how often answers are looked at depends on what is drawn.
STEPS = (
    (Ledger, "reserve"),
    (curator, "tabulate"),
    (Rounds, "first"),
    (ExactChance, "level"),
    (ExactChance, "add_noise"),
    (PartialMeasurement, "parts"),
    (PartialMeasurement, "append"),
    (PartialMeasurement, "clear"),
    (MeasurementFile, "write_pending"),
    (MeasurementFile, "publish"),
    (MeasurementFile, "remove"),
    (Store, "append"),
    (Store, "put"),
    (Ledger, "commit"),
)


def draws_of(question, values):
    """How many things each round draws; all rounds together cost what the run is charged."""
    budget, rounds = question.rounds, question.rounds.measured(values).rounds
    costs = [budget.first_rho, *(each.spent.rho for each in rounds), budget.closing_rho]
    assert sum(costs) == question.guarantee.amount
    return [len(each.chosen) for each in rounds]


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        ask: makes a question.
        ends_apart: whether how many rounds it has is drawn too.
        steps: what it has beside those of every run.
    """

    ask: Callable
    ends_apart: bool
    steps: tuple

    @property
    def all_steps(self):
        return STEPS + self.steps


KINDS = {
    "RAP": Kind(lambda: ask(TWO), False, ((queries, "select_queries"), (Frozen, "add"))),
    "tables": Kind(
        ask_tables, True, ((tables, "draw_table"), (Guess, "add"), (Guess, "released_table"))
    ),
}
SOME = pytest.mark.parametrize(
    "step", [pytest.param(15, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def watched(patch, kind, reached):
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

    for owner, name in kind.all_steps:
        watch(owner, name)


def measured(question, folder):
    with Ledger.open(folder / "state" / "ledger.db", create=False) as ledger:
        return curator.measure(folder / "data.csv", question, ledger=ledger)


def killed(kind, question, folder, moment, *, of=None):
    """Measure in another process, which is killed at a moment; whether it got that far.

    Moments count all steps, or those of one name: each twice, as it begins and as it ends.
    """
    child = os.fork()
    if child == 0:
        try:
            left = [moment]

            def reached(name):
                left[0] -= of in {None, name}
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

            with pytest.MonkeyPatch.context() as patch:
                watched(patch, kind, reached)
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
def counted(monkeypatch, kind):
    """Count what is drawn."""
    drawn = {"add_noise": 0, "level": 0, "tabulate": 0}

    def reached(name):
        if name in drawn:
            drawn[name] += 0.5

    with monkeypatch.context() as patch:
        watched(patch, kind, reached)
        yield drawn


def ends_well(kind, question, folder, monkeypatch):
    """Check what a killed run left, continue it, and check that nothing is drawn again."""
    parts, committed = durable(question, folder)
    with counted(monkeypatch, kind) as drawn:
        done = measured(question, folder).values
    rounds = draws_of(question, done)
    if committed is not None:
        assert drawn == {"add_noise": 0, "level": 0, "tabulate": 0}
        assert done.tolist() == committed.tolist()
    else:
        there = np.concatenate([np.zeros(0, np.int64), *parts])
        assert done[: len(there)].tolist() == there.tolist()
        left, closing = 1 + len(rounds) + kind.ends_apart - len(parts), kind.ends_apart
        errors = question.rounds.closing_length - 1
        assert drawn["add_noise"] == left + (errors - 1) * (closing and left > 0)
        assert drawn["level"] == sum(rounds[max(0, len(parts) - 1) :])
    with Ledger.open(folder / "state" / "ledger.db", create=False) as ledger:
        history = [event.kind for event in ledger.history()]
        account = ledger.status()[0].account
        ledger.verify()
    assert history.count("reserve") == history.count("commit") == 1
    assert account.spent == -(-question.guarantee.amount * 10**18 // 1)
    assert not list((folder / "state" / "ledger.db.measurements").iterdir())


def moments_of(kind, question, folder, monkeypatch):
    """How often a step begins or ends in a run that nothing disturbs."""
    steps = []
    with monkeypatch.context() as patch:
        watched(patch, kind, steps.append)
        measured(question, folder)
    assert set(steps) == {name for _, name in kind.all_steps}
    return len(steps)


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


@pytest.mark.nightly(daily="RAP")
@SOME
def test_a_run_killed_at_any_step_goes_on_where_it_ended(
    towns, monkeypatch, kind, step, record_property
):
    question = kind.ask()
    moments = moments_of(kind, question, towns("whole", question), monkeypatch)
    tried = range(1 + secrets.randbelow(step), moments + 1, step)
    for moment in tried:
        folder = towns(f"killed-{moment}", question)
        came = killed(kind, question, folder, moment)
        assert came or kind.ends_apart
        ends_well(kind, question, folder, monkeypatch)
    record_property("crashes", len(tried))


@pytest.mark.nightly(daily="tables")
def test_a_run_that_is_killed_every_time_draws_nothing_again(towns, kind, record_property):
    question = kind.ask()
    folder, seen = towns("killed", question), set()
    for _ in range(1 + RETRIES):
        assert killed(kind, question, folder, 2, of="add")  # told of the first round
        first, second = durable(question, folder)[0]
        seen.add((*first.ravel().tolist(), *second.tolist()))
    assert len(seen) == 1
    with pytest.raises(BudgetExceededError, match="ledger abandon"):
        measured(question, folder)
    record_property("crashes", 1 + RETRIES)


# Whatever stops the writing of a release or of a file, what was there stays whole.


def failing(problem, *, after):
    left = itertools.count()

    def stops(item):
        if next(left) == after:
            raise problem
        return answers(item)

    return stops


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("problem", [KeyboardInterrupt(), RuntimeError("x"), MemoryError()])
def test_a_failure_in_the_middle_leaves_the_earlier_release(tmp_path, problem, after):
    release(tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(type(problem)):
        release(tmp_path / "out", key="k2", replace=True, answers=failing(problem, after=after))
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("where", ["write_batch", "write_table", "write_text", "fsync"])
def test_a_full_disk_loses_nothing_and_says_what_to_do(tmp_path, monkeypatch, where):
    release(tmp_path / "out")
    before = contents(tmp_path / "out")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    owner = {"write_text": Path, "fsync": os}.get(where, pq.ParquetWriter)
    monkeypatch.setattr(owner, where, full)
    with pytest.raises(DpqueryError, match=r"the disk is full.*run again.*costs nothing"):
        release(tmp_path / "out", key="k2", replace=True)
    monkeypatch.undo()
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]
    release(tmp_path / "out", key="k2", replace=True)


@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupt_between_the_two_renames_is_undone(tmp_path, monkeypatch, step):
    release(tmp_path / "out")
    before, rename, calls = contents(tmp_path / "out"), Path.rename, itertools.count(1)

    def interrupted(self, target):
        if next(calls) == step:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        release(tmp_path / "out", key="k2", replace=True)
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


def fail_halfway(path):
    with replacing(path) as draft:
        draft.write_text("half")
        raise OSError(errno.ENOSPC, "full")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(DpqueryError, match="cannot write"):
        fail_halfway(path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


def test_the_same_file_again_only_gets_newer(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("same")
    os.utime(path, (1, 1))
    before = path.stat()
    with replacing(path) as draft:
        draft.write_text("same")
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime > before.st_mtime
    with pytest.raises(PlanConflictError, match="something else"), replacing(path) as draft:
        draft.write_text("other")
    assert path.read_text() == "same"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    missing = tmp_path / "none" / "a.txt"
    with (
        pytest.raises(SpecError, match=r"a\.txt cannot be written: .*none is no folder"),
        replacing(missing) as draft,
    ):
        draft.write_text("new")
