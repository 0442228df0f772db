"""A ledger is on disk whole or not at all, and any history of it agrees with a plain model."""

import errno
import math
import os
import shutil
import sqlite3
import stat
import traceback
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pytest
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
from ledgers import CAP, VALUES, charge, opened, price_under_cap, release, release_of, spent
from town import FAST, contents, run

from dpquery.exceptions import BudgetExceededError, LedgerError, PlanConflictError, SpecError
from dpquery.measurement.accounting import UNIT, Cap, guarantee
from dpquery.measurement.ledger import ledger as ledger_module
from dpquery.measurement.ledger import store
from dpquery.measurement.ledger.admission import RETRIES
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import Store, default_path, file_system


def test_what_is_not_a_ledger_is_refused_in_our_words(path):
    for content in (b"", b"not a database at all" * 100):
        path.write_bytes(content)
        with pytest.raises(LedgerError) as caught, opened(path):
            pass
        assert "file is not a database" not in "".join(traceback.format_exception(caught.value))
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(LedgerError, match="is a folder; give the ledger's own path"), opened(path):
        pass


def test_a_full_disk_undoes_the_whole_step(path):
    with opened(path) as ledger:
        database = ledger._store._database
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        with ledger.hold("k1"):
            charge(ledger)
            database.execute(f"PRAGMA max_page_count = {pages + 1}")
            with pytest.raises(LedgerError, match="no room") as caught:
                ledger.commit("k1", np.zeros(100_000, np.int64), source="OpenDP 0")
            assert "disk is full" not in "".join(traceback.format_exception(caught.value))
            assert [event.kind for event in ledger.history()] == ["register", "reserve"]
            database.execute("PRAGMA max_page_count = 1000000")
            ledger.commit("k1", np.zeros(100_000, np.int64), source="OpenDP 0")
        ledger.verify()
    assert spent(path) == UNIT


def test_a_full_disk_under_a_large_file_leaves_nothing(path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device", "CANARY")

    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(LedgerError, match="there is no room") as caught:
                ledger.commit("k1", np.zeros(600_000, np.int64), source="OpenDP 0")
        assert "CANARY" not in str(caught.value)
        assert list((path.parent / "ledger.db.measurements").iterdir()) == []
        assert ledger.commit("k1", np.ones(600_000, np.int64), source="OpenDP 0").values[0] == 1


def test_a_failed_step_is_undone_whole_and_its_file_never_outlives_the_next(path, monkeypatch):
    real = store.MeasurementFile.publish

    def publish_and_fail(file):
        real(file)
        raise OSError(5, "Input/output error")

    large = np.zeros(600_000, np.int64)
    monkeypatch.setattr(store.MeasurementFile, "publish", publish_and_fail)
    with opened(path) as ledger:
        for go_on in (lambda: charge(ledger), lambda: None):
            with ledger.hold("k1"):
                charge(ledger)
                with pytest.raises(LedgerError, match="Input/output"):
                    ledger.commit("k1", large, source="OpenDP 0")
                assert "commit" not in [event.kind for event in ledger.history()]
                assert len(list(path.parent.rglob("*.i64"))) == 1
                go_on()
        ledger.abandon("k1")
        assert list(path.parent.rglob("*.i64")) == []


def test_an_uncommitted_draw_is_removed_when_its_run_is_begun_again(path):
    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        (entry,) = ledger._store.read()[0].entries.values()
        file = ledger._file(entry)
        file.write_pending(VALUES)
        file.publish()
        charge(ledger)
        assert list(path.parent.rglob("*.i64")) == []


def test_a_large_file_and_its_name_are_durable_before_the_commit(path, monkeypatch):
    synced = []
    real = os.fsync

    def watched(descriptor):
        with opened(path) as other:
            synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), other.head().seq))
        real(descriptor)

    with opened(path) as ledger, ledger.hold("k1"):
        charge(ledger)
        monkeypatch.setattr(os, "fsync", watched)
        ledger.commit("k1", np.zeros(600_000, np.int64), source="OpenDP 0")
    # The new folder's name, the file, its pending name, its name.
    assert synced == [(True, 2), (False, 2), (True, 2), (True, 2)]


def test_a_new_ledger_is_whole_in_its_file_before_its_log_is_closed(tmp_path, monkeypatch):
    """Closing moves what the log holds into the file; on a full disk it fails without a word."""
    with monkeypatch.context() as patched:
        patched.setattr(store, "_SCHEMA", "no statement")
        with pytest.raises(sqlite3.OperationalError):
            store._create(tmp_path / "ledger.db")
    assert list(tmp_path.iterdir()) == []
    seen = []

    class Watched(sqlite3.Connection):
        def close(self):
            (draft,) = tmp_path.glob("*.new")
            alone = tmp_path / "alone" / "ledger.db"
            alone.parent.mkdir(mode=0o700)
            alone.write_bytes(draft.read_bytes())
            alone.chmod(0o600)
            seen.append(alone)
            super().close()

    real = sqlite3.connect
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", lambda *a, **s: real(*a, **s, factory=Watched))
        store._create(tmp_path / "ledger.db")
    (alone,) = seen
    with opened(alone) as ledger:
        ledger.register("people", CAP)
        release(ledger)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EINVAL])
def test_a_folder_that_was_there_need_not_be_readable(tmp_path, monkeypatch, code):
    """Where names can be made in a folder but not listed, or it cannot be synchronised."""
    real, refused, kind = store.sync_path, {tmp_path}, code

    def sync(path):
        if path in refused:
            raise OSError(kind, os.strerror(kind))
        real(path)

    monkeypatch.setattr(store, "sync_path", sync)
    with Ledger.open(tmp_path / "a" / "b" / "ledger.db", create=True):
        pass
    refused = {tmp_path / "c"}  # a folder just made, whose names must be durable
    with pytest.raises(LedgerError), Ledger.open(tmp_path / "c/b/ledger.db", create=True):
        pass
    refused, kind = {tmp_path}, errno.EIO
    with pytest.raises(LedgerError), Ledger.open(tmp_path / "d" / "ledger.db", create=True):
        pass


def test_the_innermost_and_latest_mount_decides():
    mounts = "a / ext4 rw\nb /home nfs rw\nc /home/a\\040b xfs rw\nd /ho cifs rw\ne /home ext4 rw\n"
    assert file_system(Path("/home/a b/c"), mounts) == "xfs"
    assert file_system(Path("/home/x"), mounts) == "ext4"
    assert file_system(Path("/etc"), mounts) == "ext4"
    assert file_system(Path("/etc"), "") == ""


def test_the_default_path_is_the_users_state_or_as_told(monkeypatch):
    monkeypatch.delenv("DPQUERY_LEDGER", raising=False)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_path() == Path("/h/.local/state/dpquery/ledger.db")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert default_path() == Path("/s/dpquery/ledger.db")
    monkeypatch.setenv("DPQUERY_LEDGER", "/l/x.db")
    assert default_path() == Path("/l/x.db")


@pytest.mark.parametrize("beside", ["-wal", "-shm", "-journal", ".locks", ".measurements"])
def test_what_lies_beside_it_is_refused_where_others_could_change_it_or_it_is_a_link(path, beside):
    neighbour = path.with_name(path.name + beside)
    neighbour.mkdir() if beside[0] == "." else neighbour.touch()
    neighbour.chmod(0o777)
    with pytest.raises(LedgerError, match="can be changed by other users"), opened(path):
        pass
    neighbour.rmdir() if beside[0] == "." else neighbour.unlink()
    neighbour.symlink_to(path.parent if beside[0] == "." else path.parent / "elsewhere")
    with pytest.raises(LedgerError, match="is a link"), opened(path):
        pass
    neighbour.unlink()
    with opened(path) as ledger:
        release(ledger)


def test_a_second_name_of_the_ledger_is_refused_under_both(path):
    other = path.with_name("other.db")
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(LedgerError, match="second name"), opened(name):
            pass
    other.unlink()
    assert spent(path) == 0


def mounted(monkeypatch, folder, kind):
    """Have a folder on a file system of a kind, for whoever asks for the mounts."""
    mounts, place = folder.parent / "mounts", str(folder).replace(" ", "\\040")
    mounts.write_bytes(os.fsencode(f"disk / ext4 rw 0 0\nserver:/x {place} {kind} rw 0 0\n"))
    monkeypatch.setattr(store, "_MOUNTS", mounts)


@pytest.mark.parametrize(
    "kind",
    [
        *("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "fuse.unheard-of", "9p"),
        *("afs", "lustre", "gpfs", "ceph", "glusterfs", "virtiofs", "vboxsf", "ocfs2"),
    ],
)
def test_every_file_system_of_another_machine_is_refused(path, monkeypatch, kind):
    mounted(monkeypatch, path.parent, kind)
    with pytest.raises(LedgerError, match=f"network file system .{kind}.,"), opened(path):
        pass
    with pytest.raises(LedgerError, match="network"), Ledger.open(path, create=True):
        pass


@pytest.mark.parametrize("name", ["new", "Müller", "two words"])
def test_no_ledger_is_made_on_a_network_disk_whatever_its_name(tmp_path, monkeypatch, name):
    mounted(monkeypatch, tmp_path / name, "nfs4")
    path = tmp_path / name / "deep" / "ledger.db"
    with pytest.raises(LedgerError, match="network"), Ledger.open(path, create=True):
        pass
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "fuseblk", "tmpfs"])
def test_a_file_system_of_this_machine_is_used_and_one_in_memory_is_warned_of(
    path, monkeypatch, kind
):
    mounted(monkeypatch, path.parent, kind)
    assert spent(path) == 0
    assert ["lies in memory" in risk for risk in store.risks(path)] == [True] * (kind == "tmpfs")


def test_a_ledger_in_a_git_checkout_is_warned_of(path, tmp_path, monkeypatch):
    mounted(monkeypatch, path.parent, "ext4")
    before = store.risks(path)
    # The folder of the tests may be in a checkout itself.
    assert bool(before) == any((folder / ".git").exists() for folder in path.parents)
    (path.parents[1] / ".git").write_text("gitdir: elsewhere")  # a file in a worktree
    (risk,) = store.risks(path)
    assert "git checkout" in risk


def odd_places(folder):
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "a_file").touch()
    (folder / "a_folder").mkdir(mode=0o700)
    os.mkfifo(folder / "a_pipe", 0o600)
    yield from ("loop", "loop/ledger.db", "a_file/ledger.db", "a_folder", "a_pipe", "x" * 300)
    yield from (
        "a_folder/../a_file/",
        "../" * 60 + "dev/null",
        "a_folder/" + "y/" * 3000 + "ledger.db",
    )


@pytest.mark.parametrize(
    "command", ["plan workload.yaml", "release data.csv --epsilon 1", "ledger status"]
)
def test_an_odd_place_for_a_ledger_is_refused_in_our_words(town, command):
    before = set(contents("."))
    for place in odd_places(town):
        done = run(*command.split(), "--ledger", place)
        codes = {LedgerError.exit_code, SpecError.exit_code if len(place) > 255 else None}
        assert done.code in codes, (place, done)
        assert "Traceback" not in done.err
    assert "release" not in set(contents(".")) - before


# Any history of a ledger agrees with a plain model of it, and the model notices mistakes.

DATASETS = st.sampled_from(["people", "others"])
KEYS = st.sampled_from(["k1", "k2", "k3"])
UNITS = st.sampled_from([1, UNIT // 10, 3 * UNIT])
DELTA = Fraction(1, 10**6)


def cap_of(currency, units, epsilon):
    """A cap with two sums where it has an epsilon; one in epsilon has that sum alone."""
    return Cap(currency, units, epsilon=None if currency == "epsilon" else epsilon)


def promise(epsilon, kind, discover):
    """The cap of a promise with a delta: the same in rho as in mu^2."""
    whole = guarantee("gaussian", epsilon=epsilon, delta=DELTA - discover, accounting=kind)
    units = math.floor(whole.amount * UNIT)
    currency = "mu^2" if kind == "gdp" else "rho"
    return Cap(currency, units, epsilon=epsilon, delta=DELTA, discover=discover)


THRESHOLDS = (Fraction(0), DELTA / 3, DELTA / 7)
PROMISES = [
    promise(Fraction(epsilon), kind, discover)
    for epsilon, discover in ((1, Fraction(0)), (2, Fraction(0)), (2, DELTA / 3), (2, DELTA / 2))
    for kind in ("gdp", "zcdp")
]
CAPS = st.sampled_from(PROMISES) | st.builds(
    cap_of,
    st.sampled_from(["epsilon", "rho", "mu^2"]),
    st.sampled_from([0, 1, UNIT, 4 * UNIT, 10 * UNIT]),
    st.sampled_from([None, Fraction(1), Fraction(2)]),
)


@dataclass
class Run:
    """What the model knows of a key."""

    dataset: str
    units: int
    threshold: Fraction
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
        self.epsilons, self.thresholds = {}, {}
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

    @rule(dataset=DATASETS, cap=CAPS)
    def register(self, dataset, cap):
        before = self.caps.get(dataset, cap)
        # A promise of which nothing is spent may be kept in the other currency instead.
        same = {before, cap} <= set(PROMISES) and before.epsilon == cap.epsilon
        same = same and before.discover == cap.discover
        if before != cap and not (same and not self.spent[dataset]):
            with pytest.raises(PlanConflictError):
                self.ledger.register(dataset, cap)
        else:
            self.ledger.register(dataset, cap)
            self.recorded(self.caps.get(dataset) != cap)
            self.caps[dataset] = cap
            self.spent.setdefault(dataset, 0)
            self.epsilons.setdefault(dataset, [])
            self.thresholds.setdefault(dataset, Fraction(0))

    @rule(dataset=DATASETS, cap=CAPS)
    def change_cap(self, dataset, cap):
        if dataset not in self.caps:
            with pytest.raises(LedgerError):
                self.ledger.register(dataset, cap, changes=True)
        elif self.thresholds[dataset] > cap.discover or (
            self.spent[dataset] and cap.currency != self.caps[dataset].currency
        ):
            with pytest.raises(PlanConflictError):
                self.ledger.register(dataset, cap, changes=True)
        else:
            self.ledger.register(dataset, cap, changes=True)
            self.recorded(cap != self.caps[dataset])
            self.caps[dataset] = cap

    def refusal(self, dataset, key, units, pure, threshold):
        """The error that a charge must end in, or None."""
        known = self.runs.get(key)
        if dataset not in self.caps:
            return LedgerError
        if known is None or known.state == "abandoned":
            over = self.spent[dataset] + units > self.caps[dataset].units
            epsilons, most = [*self.epsilons[dataset], pure], self.caps[dataset].epsilon
            if most is not None and None not in epsilons and sum(epsilons) <= most * UNIT:
                over = False
            over = over or self.thresholds[dataset] + threshold > self.caps[dataset].discover
            return BudgetExceededError if over else None
        if known.dataset != dataset or known.units < units or known.threshold < threshold:
            return PlanConflictError
        if known.state == "reserved" and known.retries == RETRIES:
            return BudgetExceededError
        return None

    @rule(
        dataset=DATASETS,
        key=KEYS,
        units=UNITS,
        pure=st.sampled_from([None, 1, UNIT // 2, UNIT]),
        threshold=st.sampled_from(THRESHOLDS),
        ends=st.sampled_from(["well", "well", "killed before", "killed inside", "killed after"])
        | st.sampled_from(["fails before", "disk full", "killed committed"]),
        large=st.booleans(),
    )
    def release(self, dataset, key, units, pure, ends, large, threshold=THRESHOLDS[0]):
        pure = None if threshold else pure
        price = replace(price_under_cap(self.ledger, dataset, units), pure=pure)
        price = replace(price, threshold=threshold)
        native = {"threshold": str(threshold)} if threshold else {}
        native = native if pure is None else {"pure": str(Fraction(pure, UNIT))}
        if (error := self.refusal(dataset, key, units, pure, threshold)) is not None:
            with self.ledger.hold(key):
                with pytest.raises(error):
                    self.ledger.lookup(dataset, key=key, price=price)
                with pytest.raises(error):
                    self.ledger.reserve(dataset, key=key, price=price, native=native, details={})
            return
        with self.ledger.hold(key):
            stored = self.ledger.lookup(dataset, key=key, price=price)
            known = self.runs.get(key)
            if known is not None and known.state == "committed":
                assert stored.values.tolist() == known.values
                return
            assert stored is None
            if ends == "killed before":
                charge = {"dataset": dataset, "key": key, "price": price}
                self.killed_inside(self.ledger.reserve, **charge, native=native, details={})
                return
            self.ledger.reserve(dataset, key=key, price=price, native=native, details={})
            self.charged(dataset, key, units, pure, threshold)
            self.drawn += 1
            values = np.array([self.drawn, -self.drawn, 0])
            with mock.patch.object(ledger_module, "LARGE", 0 if large else 100):
                self.finish(key, values, ends)

    def charged(self, dataset, key, units, pure, threshold):
        known = self.runs.get(key)
        if known is None or known.state == "abandoned":
            self.spent[dataset] += units
            self.epsilons[dataset].append(pure)
            self.thresholds[dataset] += threshold
            self.runs[key] = Run(dataset, units, threshold)
        else:
            known.retries += 1
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

        def copied(store, *arguments):
            real(store, *arguments)
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
        known = self.runs.get(key)
        if known is None or known.state != "reserved":
            with pytest.raises(PlanConflictError):
                self.ledger.abandon(key)
        else:
            self.ledger.abandon(key)
            known.state = "abandoned"
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
        statuses = {status.account.dataset: status for status in self.ledger.status()}
        assert statuses.keys() == self.caps.keys()
        for dataset, status in statuses.items():
            assert status.account.cap == self.caps[dataset]
            assert status.account.spent == self.spent[dataset]
            assert status.account.threshold == self.thresholds[dataset]
            epsilons = self.epsilons[dataset]
            assert status.account.pure == (None if None in epsilons else sum(epsilons))
            runs = {key: run for key, run in self.runs.items() if run.dataset == dataset}
            assert status.releases == sum(run.state == "committed" for run in runs.values())
            open_runs = {key for key, run in runs.items() if run.state == "reserved"}
            assert set(status.unfinished) == open_runs
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
    machine = Histories()
    machine.begin()
    try:
        machine.register(dataset="people", cap=cap_of("epsilon", UNIT, None))
        release = {"dataset": "people", "units": UNIT // 10, "pure": None}
        for key, ends, large in (
            *(("k1", "fails before", False), ("k1", "well", False)),
            *(("k2", "well", True), ("k2", "well", True)),
        ):
            machine.release(**release, key=key, ends=ends, large=large)
            machine.agrees()
        release = {"key": "k3", "units": UNIT * 3, "ends": "well", "large": False}
        machine.release(dataset="people", pure=None, **release)
        machine.agrees()
        machine.register(dataset="others", cap=cap_of("mu^2", 4 * UNIT, Fraction(1)))
        for key, pure in (("k4", UNIT // 2), ("k5", UNIT // 2), ("k6", 1), ("k7", None)):
            machine.release(**release | {"dataset": "others", "key": key, "pure": pure})
            machine.agrees()
        machine.register(dataset="found", cap=promise(Fraction(2), "gdp", DELTA / 3))
        found = {"dataset": "found", "units": 1, "pure": None, "ends": "well", "large": False}
        for key, threshold in (("k8", DELTA / 3), ("k9", DELTA / 7)):
            machine.release(**found, key=key, threshold=threshold)
            machine.agrees()
    finally:
        machine.teardown()


def test_the_model_agrees_with_a_short_history():
    short_history()


def test_a_family_is_counted_in_another_currency_as_a_whole_and_only_before_a_charge(tmp_path):
    def counted_in(kind):
        return promise(Fraction(1), kind, Fraction(0)), promise(Fraction(2), kind, Fraction(0))

    (cap, above), (later, later_above) = counted_in("zcdp"), counted_in("gdp")
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        for wave in ("wave-1", "wave-2"):
            ledger.register(wave, cap, parent=Account("panel", above))
        ledger.register("wave-1", later, parent=Account("panel", later_above))
        caps = {status.account.dataset: status.account.cap for status in ledger.status()}
        assert caps == {"panel": later_above, "wave-1": later, "wave-2": later}
        release_of(ledger, "wave-1", "k1", UNIT // 10**6)
        with pytest.raises(PlanConflictError):
            ledger.register("wave-1", cap, parent=Account("panel", above))
        assert caps == {s.account.dataset: s.account.cap for s in ledger.status()}
