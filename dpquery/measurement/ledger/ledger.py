"""The ledger: charge, commit, look up and verify.

The order of a release is what protects the budget:

    hold(key)      twins wait here, so that noise never decides which of them wins
      reserve      the charge is durable on disk before the data are read or noise is drawn
      ... tabulate, draw: nothing may branch on noisy values but on those in the draft ...
      commit       the noisy measurement is durable before anything is computed from it

A run killed between the two is continued at no further charge, at most three times: its noise was
never seen, or is in the draft and not drawn again. A key that is committed gives its stored
measurement back, free. No charge is ever refunded. The ledger holds public facts and noisy
measurements only, so reading it is harmless.

A hash chain does not show that its end is missing. Whoever restores an older copy of the ledger,
or charges two copies of it, has a chain that is sound and does not count everything that was
published; the releases themselves are the only witnesses of what it lacks. So a release is never
replaced by one from a ledger that does not know it, and `dpquery ledger verify --releases` looks
up all there are. Where another ledger is meant to be used, the folder is to be moved away first:
that keeps the witness, and is done on purpose.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import LedgerError, PlanConflictError, SpecError
from dpquery.limits import MAX_JSON_BYTES
from dpquery.measurement.accounting import Cap, Currency, Price
from dpquery.measurement.ledger.admission import account_of, admitted, check_parent, check_unit
from dpquery.measurement.ledger.caps import Change, change, check_families, check_new, registration
from dpquery.measurement.ledger.events import (
    JSON,
    Account,
    Entry,
    Event,
    Head,
    LedgerState,
    pure_units,
    seal,
    threshold_of,
)
from dpquery.measurement.ledger.funds import Funds
from dpquery.measurement.ledger.store import (
    MeasurementFile,
    PartialMeasurement,
    Store,
    lock_key,
    measured_after,
    open_store,
    scrubbed,
)
from dpquery.untrusted.files import read_outside
from dpquery.untrusted.json_values import mapping, parsed

KEY_PREFIX = 12
"""So many first characters of a key are shown, and are enough to name a run that never finished."""


@dataclass(frozen=True)
class Status:
    """One dataset's account, what was charged to it, and the keys whose runs never finished.

    `last` is what its last release was charged, or the last one of the datasets whose parent it is.
    """

    funds: Funds
    releases: int
    discoveries: int
    unfinished: tuple[str, ...]
    last: Price | None

    @property
    def account(self) -> Account:
        """The dataset's own account."""
        return self.funds.account

    @property
    def repetitions(self) -> int | None:
        """How many releases of the price of the last one fit; None where there was none."""
        return None if self.last is None else self.funds.repetitions(self.last)


def status_of(state: LedgerState, name: str) -> Status:
    """Return the status of one dataset."""
    entries = [entry for entry in state.entries.values() if entry.dataset == name]
    done = [entry for entry in entries if entry.state == "committed"]
    family = {name} | {other.dataset for other in state.accounts.values() if other.parent == name}
    charged = [
        entry
        for entry in state.entries.values()
        if entry.dataset in family and entry.state == "committed"
    ]
    last = max(charged, key=lambda entry: entry.committed.seq, default=None)
    account = state.accounts[name]
    of_cap = account.cap.currency, account.cap.unit
    return Status(
        Funds(account, state.parent_of(account)),
        releases=sum(not entry.discovered for entry in done),
        discoveries=sum(entry.discovered for entry in done),
        unfinished=tuple(entry.key for entry in entries if entry.state == "reserved"),
        last=None if last is None else Price(last.units, *of_cap, last.pure, last.threshold),
    )


MANIFEST_FILE = "release.json"


def releases_below(folder: Path) -> list[Path]:
    """Return every folder with a release at or below a folder; hidden ones below are left out.

    Links to folders are followed, and every folder is looked at once.

    Raises:
        SpecError: there is none, or a folder cannot be searched.
    """

    def unreadable(problem: OSError) -> None:
        raise SpecError(f"{problem.filename} cannot be searched for releases; check the path")

    releases, seen = [], set()
    for place, inner, files in os.walk(folder, onerror=unreadable, followlinks=True):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        real = os.path.realpath(place)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        if MANIFEST_FILE in files:
            releases.append(Path(place))
    if not releases:
        raise SpecError(f"{folder} is not a release of dpquery, and there is none below it")
    return releases


def named_event(release: Path) -> Head:
    """Return the event that a release, or answers computed from one, names.

    Raises:
        SpecError: the folder is no release.
    """
    try:
        content = read_outside(release / MANIFEST_FILE, most=MAX_JSON_BYTES)
        named = mapping(mapping(parsed(content))["ledger"])
        seq, digest = named["seq"], named["head"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        seq = digest = None
    if type(seq) is int and isinstance(digest, str):
        return Head(seq, digest)
    raise SpecError(
        f"{release} is not a release of dpquery: its {MANIFEST_FILE} names no ledger event"
    )


def missing_event(release: Path, events: Sequence[Event], *, ledger: Path) -> str | None:
    """Return how a ledger lacks the event that a release names, in a line; None if it has it."""
    named = named_event(release)
    if 1 <= named.seq <= len(events):
        if events[named.seq - 1].head == named:
            return None
        cause = (
            f"whose event {named.seq} is another one: two copies of a ledger have been charged, "
            "or this is another ledger"
        )
    else:
        cause = (
            f"which ends at event {len(events)} and not at {named.seq} or later: this is an older "
            "copy, or another ledger"
        )
    return f"release {release} is not in the ledger at {ledger}, {cause}"


LARGE = 4 * 2**20


@dataclass(frozen=True, eq=False)
class StoredMeasurement:
    """A committed noisy measurement."""

    values: Ints  # (m,) noisy answers in grid steps
    head: Head  # the event that committed it, to be named in the release
    account: Account  # the dataset's account at that event; the same at every later run
    parent: Account | None  # its parent's at that event, if it had one
    charged: int  # what it was charged, in units
    pure: int | None  # the epsilon of a pure guarantee, in units of 1e-18; None for any other
    source: str  # what drew the noise
    stored: bool  # whether the ledger held it already
    day: str = ""  # on which it was committed
    after: int = 0  # when the run began that measured it, by the file system, in nanoseconds


class Ledger:
    """An open ledger; every method is one transaction, but for `hold`, which lasts."""

    def __init__(self, store: Store) -> None:
        """Wrap an open store; use `Ledger.open`."""
        self._store = store
        self._locked: dict[str, int] = {}

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, create: bool, timeout: float = 60.0) -> Iterator[Self]:
        """Open the ledger for a `with` block and verify its chain.

        Only planning may make a missing ledger. For another process it waits so many seconds.

        Raises:
            LedgerError: missing, damaged, unsafe, or on a network file system.
            LedgerLockedError: another process kept it locked.
        """
        with open_store(path, create=create, timeout=timeout) as store:
            store.read()
            yield cls(store)

    def head(self) -> Head:
        """Return the last event's number and hash."""
        return self._store.read()[0].head

    def register(
        self, dataset: str, cap: Cap, *, parent: Account | None = None, changes: bool = False
    ) -> tuple[str, ...]:
        """Register a dataset's cap and its parent, or change what is on record of them.

        Doing so again changes nothing. What is spent stays spent, and is charged to a new parent.

        Returns:
            Which of the two were not on record before.

        Raises:
            PlanConflictError: another parent than the one on record. Or another cap or unit; where
                these are to be changed, another currency or unit after something was spent: the sum
                that bounds the loss must be of one kind from the first charge to the last.
            BudgetExceededError: a new parent has no room for what was spent already.
        """
        with self._store.writing() as state:
            known = set(state.accounts)
            for kind, fields in self._steps(state, dataset, cap, parent, changes=changes):
                self._store.append(state, kind, fields)
            check_families(state)
            return tuple(name for name in state.accounts if name not in known)

    def _steps(
        self, state: LedgerState, dataset: str, cap: Cap, parent: Account | None, *, changes: bool
    ) -> Iterator[Change]:
        if changes:
            return change(state, dataset, cap, parent, ledger=self._store.path)
        return registration(state, dataset, cap, parent)

    def check_registration(
        self,
        dataset: str,
        cap: Cap,
        *,
        parent: Account | None = None,
        changes: bool = False,
        earlier: Callable[[], str] | None = None,
    ) -> Funds:
        """Return the accounts that `register` would leave; nothing is written.

        Raises:
            What it would raise; and where `earlier` is given, what `check_new` does.
        """
        state, _ = self._store.read()
        if earlier is not None:
            check_new(state, dataset, parent, earlier=earlier)
        for kind, fields in self._steps(state, dataset, cap, parent, changes=changes):
            state.apply(seal(state.head, kind=kind, day="", fields=fields)[0])
        check_families(state)
        account = state.accounts[dataset]
        return Funds(account, state.parent_of(account))

    def currencies(self) -> dict[str, Currency]:
        """Return what losses are added up in, for every dataset that was charged.

        The next plan says it again of one that was not.
        """
        accounts = self._store.read()[0].accounts.values()
        return {account.dataset: account.cap.currency for account in accounts if account.spent}

    @contextmanager
    def hold(self, key: str, *, timeout: float = 3600.0) -> Iterator[None]:
        """Lock a key across processes, from before its reservation to after its commit.

        Raises:
            LedgerLockedError: another process held the key for `timeout` seconds.
        """
        with scrubbed(self._store.path):
            descriptor = lock_key(self._store.path, key, timeout=timeout)
        self._locked[key] = descriptor
        try:
            yield
        finally:
            del self._locked[key]
            os.close(descriptor)

    def currency(self, dataset: str, *, unit: str, parent: str | None = None) -> Currency:
        """Return the currency that a dataset is charged in.

        Raises:
            LedgerError: the dataset is not registered.
            PlanConflictError: registered for another unit: losses of rows and of persons do not
                add up; or without the parent, who would then not be charged.
        """
        account = account_of(self._store.read()[0], dataset, ledger=self._store.path)
        check_unit(dataset, account.cap, unit)
        check_parent(account, parent)
        return account.cap.currency

    def lookup(self, dataset: str, *, key: str, price: Price) -> StoredMeasurement | None:
        """Return the stored measurement of a key, or None if it can be reserved.

        Raises:
            BudgetExceededError, LedgerError, PlanConflictError: as `reserve`, before the data
                are even opened.
        """
        entry = admitted(
            self._store.read()[0], dataset, key=key, price=price, ledger=self._store.path
        )
        if entry is None or entry.state != "committed":
            return None
        return self._stored(entry)

    def reserve(
        self,
        dataset: str,
        *,
        key: str,
        price: Price,
        native: Mapping[str, str],
        details: Mapping[str, JSON],
    ) -> None:
        """Charge a release, durably, before its data are read; the key must be locked by `hold`.

        A reservation that an earlier run left without a commit is continued at no charge.

        The same key is charged once. The native guarantee is exact text, such as {"pure": "1/2"}:
        that of the price. Details are public facts to keep with it.

        Raises:
            BudgetExceededError: the cap would be passed, or the key was begun too often.
            LedgerError: the dataset is not registered.
            PlanConflictError: the key is on record with a smaller charge, or the cap was changed
                to another currency or unit since the charge was worked out.
            ValueError: the key is committed already; `lookup` gives its measurement. Or the
                guarantee on record would not be the one that was priced.
        """
        self._check_locked(key)
        os.utime(self._locked[key])  # data that change from now on are newer than what is measured
        pure_differs = price.pure is not None and price.pure != pure_units(native)
        if pure_differs or price.threshold != threshold_of(native):
            raise ValueError("the guarantee is not that of the price")
        with self._store.writing() as state:
            entry = admitted(state, dataset, key=key, price=price, ledger=self._store.path)
            if entry is None:
                fields: dict[str, JSON] = {
                    "dataset": dataset,
                    "key": key,
                    "units": str(price.units),
                }
                fields |= {"native": native, "details": details}
                if (parent := state.accounts[dataset].parent) is not None:
                    fields["parent"] = parent
                self._store.append(state, "reserve", fields)
            elif entry.state == "committed":
                raise ValueError("the key is committed: look its measurement up")
            else:
                self._file(entry).remove()
                self._store.append(state, "retry", {"key": key})

    def commit(self, key: str, values: Ints, *, source: str) -> StoredMeasurement:
        """Store and return the noisy measurement of a reserved key, durably; `hold` locks the key.

        What is done here depends on the number of values alone, never on the values. If the key
        is committed already, the measurement stored then is returned and this one dropped.

        Values are (m,) in grid steps; the source of their noise is kept with them.
        """
        self._check_locked(key)
        if values.ndim != 1 or values.dtype != np.int64:
            raise TypeError("a measurement is a vector of int64")
        values = np.ascontiguousarray(values, dtype="<i8")
        entry = self._store.read()[0].entries.get(key)
        if entry is None or entry.state == "abandoned":
            raise ValueError("commit without a reservation")
        if entry.state == "committed":
            return self._stored(entry)
        file = self._file(entry)
        large = values.nbytes > LARGE
        if large:
            with scrubbed(self._store.path):
                file.write_pending(values)
        sha256 = hashlib.sha256(values.data).hexdigest()
        with self._store.writing() as state:
            fields: dict[str, JSON] = {"key": key, "sha256": sha256, "size": values.size}
            self._store.append(state, "commit", fields | {"source": source})
            if large:
                file.publish()
            else:
                self._store.put(state.head.seq, values.tobytes())
            account = state.accounts[entry.dataset]
            parent = state.parent_of(account)
            return StoredMeasurement(
                values, state.head, account, parent, entry.units, entry.pure, source, stored=False
            )

    def draft(self, key: str) -> PartialMeasurement:
        """Return the partial measurement of a reserved key that `hold` locks."""
        self._check_locked(key)
        return self._draft(self._store.read()[0].entries[key])

    def abandon(self, key: str) -> str:
        """Abandon an unfinished key: its charge stays spent, and a new run is charged again.

        Its first characters will do, KEY_PREFIX of them or more.

        Returns:
            The whole key.

        Raises:
            PlanConflictError: the key has no unfinished run, or several begin with it.
            LedgerLockedError: its run is still going on.
        """
        key = self._whole_key(key)
        with self.hold(key, timeout=0):
            with self._store.writing() as state:
                entry = state.entries.get(key)
                if entry is None or entry.state != "reserved":
                    raise PlanConflictError(
                        f"key {key} has no unfinished run; `dpquery ledger status` lists those"
                    )
                self._store.append(state, "abandon", {"key": key})
            # Only now: a run that is still to be continued must find what it drew.
            with scrubbed(self._store.path):
                self._file(entry).remove()
            self._draft(entry).clear()
        return key

    def _whole_key(self, given: str) -> str:
        """Return the key of an unfinished run that begins as given; what is given if none does."""
        entries = self._store.read()[0].entries
        if given in entries or len(given) < KEY_PREFIX:
            return given
        keys = [
            entry.key
            for entry in entries.values()
            if entry.state == "reserved" and entry.key.startswith(given)
        ]
        if len(keys) > 1:
            raise PlanConflictError(
                f"{len(keys)} unfinished runs have keys that begin with {given}; give more of it: "
                "`dpquery ledger status --json` has whole keys"
            )
        return keys[0] if keys else given

    def funds(self, dataset: str) -> Funds:
        """Return a dataset's account and its parent's as they are now.

        Raises:
            LedgerError: the dataset is not registered.
        """
        state, _ = self._store.read()
        account = account_of(state, dataset, ledger=self._store.path)
        return Funds(account, state.parent_of(account))

    def first_charged(self, keys: Sequence[str]) -> str | None:
        """Return which of some keys was charged first and not given up; None if none was."""
        entries = self._store.read()[0].entries
        charged = [entries[key] for key in keys if key in entries]
        kept = [entry for entry in charged if entry.state != "abandoned"]
        return min(kept, key=lambda entry: entry.reserved).key if kept else None

    def status(self) -> tuple[Status, ...]:
        """Return every dataset's account, in order of registration."""
        state, _ = self._store.read()
        return tuple(status_of(state, name) for name in state.accounts)

    def history(self) -> list[Event]:
        """Return all events, oldest first."""
        return self._store.read()[1]

    def export(self) -> Iterator[str]:
        """Yield every event as one line of JSON, for people and for git."""
        for event in self.history():
            yield json.dumps(event.as_json(), sort_keys=True)

    def verify(self, releases: Sequence[Path] = ()) -> Head:
        """Check the chain, every stored measurement, and that each release folder is in the chain.

        Raises:
            LedgerError: at the first event or measurement that does not hold; or naming every
                release that the ledger does not know: an older copy, or another ledger, is in its
                place.
            SpecError: a folder is no release; named with the others if some are not known.
        """
        state, events = self._store.read()
        for entry in state.entries.values():
            if entry.state == "committed":
                self._stored(entry)
        # check that every release is in the ledger; all that fail are named in one error
        missing, unreadable = [], []
        for release in releases:
            try:
                line = missing_event(release, events, ledger=self._store.path)
            except SpecError as error:
                unreadable.append(str(error))
            else:
                missing += [] if line is None else [line]
        if missing:
            raise LedgerError(
                "\n".join([*missing, *unreadable, "restore the ledger that was charged"])
            )
        if unreadable:
            raise SpecError("\n".join(unreadable))
        return state.head

    def check_replaced(self, release: Path) -> None:
        """Refuse to replace a release that this ledger does not know, if there is one.

        What it holds was published. Were it replaced, nothing would be left to show that this
        ledger does not count it.

        Raises:
            LedgerError: there is a release, and its event is not in the chain.
        """
        if not os.path.lexists(release / MANIFEST_FILE):
            return
        missing = missing_event(release, self.history(), ledger=self._store.path)
        if missing is not None:
            raise LedgerError(
                f"{missing}. What it holds was published and is not counted here: restore the "
                "ledger that was charged, or move the folder away, and keep it, to go on with this "
                "ledger; nothing was charged"
            )

    def _stored(self, entry: Entry) -> StoredMeasurement:
        seq = entry.committed.seq
        payload = self._store.get(seq)
        if payload is None:
            with scrubbed(self._store.path):
                payload = self._file(entry).read()
        if hashlib.sha256(payload).hexdigest() != entry.sha256 or entry.account is None:
            raise LedgerError(
                f"the measurement of event {seq} was changed or damaged; restore the ledger at "
                f"{self._store.path} from a backup"
            )
        values = np.frombuffer(payload, dtype="<i8").astype(np.int64, copy=False)
        head, account, parent = entry.committed, entry.account, entry.parent
        after = measured_after(self._store.path, entry.key, entry.day)
        made = StoredMeasurement(
            values, head, account, parent, entry.units, entry.pure, entry.source, stored=True
        )
        return replace(made, day=entry.day, after=after)

    def _file(self, entry: Entry) -> MeasurementFile:
        return MeasurementFile(self._store.path, key=entry.key, reserved=entry.reserved)

    def _draft(self, entry: Entry) -> PartialMeasurement:
        path, key, reserved = self._store.path, entry.key, entry.reserved
        return PartialMeasurement(
            path, lambda part: MeasurementFile(path, key=key, reserved=reserved, part=part)
        )

    def _check_locked(self, key: str) -> None:
        if key not in self._locked:
            raise ValueError("hold the key first")
