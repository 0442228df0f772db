"""The ledger: what every dataset may spend, what it has spent, and the measurements it paid for.

The order of a release is what protects the budget:

    hold(key)      twins wait here, so that noise never decides which of them wins
      reserve      the charge is durable on disk before the data are read or noise is drawn
      ... tabulate, draw: nothing may branch on noisy values but on those in the draft ...
      commit       the noisy measurement is durable before anything is computed from it

A run killed between the two is continued at no further charge, at most three times: its noise was
never seen, or is in the draft and not drawn again. A key that is committed gives its stored
measurement back, free. No charge is ever refunded. The ledger holds public facts and noisy
measurements only, so reading it is harmless.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpquery.exceptions import (
    BudgetExceededError,
    LedgerError,
    PlanConflictError,
    SpecError,
)
from dpquery.measurement.accounting import Cap, Currency
from dpquery.measurement.ledger_checks import cap_text, check_funds, check_unit
from dpquery.measurement.ledger_draft import Draft
from dpquery.measurement.ledger_events import (
    JSON,
    Account,
    Entry,
    Event,
    Head,
    State,
    cap_fields,
)
from dpquery.measurement.ledger_files import MeasurementFile, lock_key
from dpquery.measurement.ledger_store import Store, open_store, scrubbed

RETRIES = 3
LARGE = 4 * 2**20


@dataclass(frozen=True, eq=False)
class Measurement:
    """A committed noisy measurement.

    Attributes:
        values: (m,) noisy answers in grid steps.
        head: the event that committed it, to be named in the release.
        account: the dataset's account at that event; the same at every later run.
        source: what drew the noise.
    """

    values: NDArray[np.int64]
    head: Head
    account: Account
    source: str


@dataclass(frozen=True)
class Status:
    """One dataset's account, its number of releases, and the keys whose runs never finished."""

    account: Account
    releases: int
    unfinished: tuple[str, ...]


class Ledger:
    """An open ledger; every method is one transaction."""

    def __init__(self, store: Store) -> None:
        """Wrap an open store; use `Ledger.open`."""
        self._store = store
        self._held: set[str] = set()

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, create: bool, timeout: float = 60.0) -> Iterator[Self]:
        """Open the ledger for a `with` block and verify its chain.

        Args:
            path: the database file, as `default_path` gives it.
            create: whether a missing ledger is made; only planning may.
            timeout: seconds to wait for another process.

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

    def register(self, dataset: str, cap: Cap) -> None:
        """Put a dataset's cap on record; registering the same cap again does nothing.

        Raises:
            PlanConflictError: the dataset is on record with another cap, or for another unit.
        """
        with self._store.writing() as state:
            account = state.accounts.get(dataset)
            if account is None:
                self._store.append(state, "register", cap_fields(dataset, cap))
            elif account.cap != cap:
                check_unit(dataset, account.cap, cap.unit)
                raise PlanConflictError(
                    f"dataset {dataset!r} is on record with a cap of {cap_text(account.cap)} and "
                    f"the spec declares {cap_text(cap)}; restore the budget in the spec, or "
                    "change the cap on record with `dpquery plan --change-cap`"
                )

    def change_cap(self, dataset: str, cap: Cap) -> None:
        """Change a dataset's cap, on record; what is spent stays spent.

        Raises:
            PlanConflictError: another currency or unit after something was spent: the sum that
                bounds the loss must be of one kind from the first charge to the last.
        """
        with self._store.writing() as state:
            account = self._account(state, dataset)
            kept, wanted = account.cap, cap
            if account.spent and (kept.currency, kept.unit) != (wanted.currency, wanted.unit):
                raise PlanConflictError(
                    f"dataset {dataset!r} has been charged in {kept.currency} for {kept.unit!r}, "
                    f"and that cannot become {wanted.currency} for {wanted.unit!r}; restore those "
                    "in the spec"
                )
            if account.cap != cap:
                self._store.append(state, "change-cap", cap_fields(dataset, cap))

    @contextmanager
    def hold(self, key: str, *, timeout: float = 3600.0) -> Iterator[None]:
        """Hold a key from before its reservation to after its commit.

        Raises:
            LedgerLockedError: another process held the key for `timeout` seconds.
        """
        with scrubbed(self._store.path):
            descriptor = lock_key(self._store.path, key, timeout=timeout)
        self._held.add(key)
        try:
            yield
        finally:
            self._held.discard(key)
            os.close(descriptor)

    def currency(self, dataset: str, *, unit: str) -> Currency:
        """Return what a dataset is charged in for a protected unit, as `unit_of` puts it.

        Raises:
            LedgerError: the dataset is not registered.
            PlanConflictError: it is, for another unit: losses of rows and of persons do not add up.
        """
        cap = self._account(self._store.read()[0], dataset).cap
        check_unit(dataset, cap, unit)
        return cap.currency

    def lookup(self, dataset: str, *, key: str, units: int) -> Measurement | None:
        """Return the stored measurement of a key, or None if it can be reserved.

        Raises:
            BudgetExceededError, LedgerError, PlanConflictError: as `reserve`, before the data
                are even opened.
        """
        entry = self._admit(self._store.read()[0], dataset, key, units)
        if entry is None or entry.state != "committed":
            return None
        return self._stored(entry)

    def reserve(
        self,
        dataset: str,
        *,
        key: str,
        units: int,
        native: Mapping[str, str],
        details: Mapping[str, JSON],
    ) -> None:
        """Charge a release, durably, before its data are read; the key must be held.

        A reservation that an earlier run left without a commit is continued at no charge.

        Args:
            dataset: the account to charge.
            key: names the measurement and its release number; the same key is charged once.
            units: the charge in the dataset's currency.
            native: the guarantee as exact text, such as {"pure": "1/2"}.
            details: public facts to keep with it.

        Raises:
            BudgetExceededError: the cap would be passed, or the key was begun too often.
            LedgerError: the dataset is not registered.
            PlanConflictError: the key is on record with another charge.
            ValueError: the key is committed already; `lookup` gives its measurement.
        """
        self._check_held(key)
        with self._store.writing() as state:
            entry = self._admit(state, dataset, key, units)
            if entry is None:
                fields: dict[str, JSON] = {"dataset": dataset, "key": key, "units": str(units)}
                fields |= {"native": native, "details": details}
                self._store.append(state, "reserve", fields)
            elif entry.state == "committed":
                raise ValueError("the key is committed: look its measurement up")
            else:
                self._file(entry).remove()
                self._store.append(state, "retry", {"key": key})

    def commit(self, key: str, values: NDArray[np.int64], *, source: str) -> Measurement:
        """Store the noisy measurement of a held, reserved key; durable when this returns.

        What is done here depends on the number of values alone, never on the values. If the key
        is committed already, the measurement stored then is returned and this one dropped.

        Args:
            key: the key.
            values: (m,) noisy answers in grid steps.
            source: what drew their noise; kept with them.
        """
        self._check_held(key)
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
            return Measurement(values, state.head, state.accounts[entry.dataset], source)

    def draft(self, key: str) -> Draft:
        """Return the parts of a held, reserved key's measurement that are durable already."""
        self._check_held(key)
        return self._draft(self._store.read()[0].entries[key])

    def abandon(self, key: str) -> None:
        """Give an unfinished key up; its charge stays spent, and a new run is charged anew.

        Raises:
            PlanConflictError: the key has no unfinished run.
            LedgerLockedError: its run is still going on.
        """
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

    def status(self) -> tuple[Status, ...]:
        """Return every dataset's account, in order of registration."""
        state, _ = self._store.read()
        entries = state.entries.values()
        return tuple(
            Status(
                account,
                releases=sum(e.dataset == name and e.state == "committed" for e in entries),
                unfinished=tuple(
                    e.key for e in entries if e.dataset == name and e.state == "reserved"
                ),
            )
            for name, account in state.accounts.items()
        )

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
            LedgerError: at the first that does not hold; a release that the ledger does not know
                means that an older copy, or another ledger, is in its place.
            SpecError: a folder is no release.
        """
        state, events = self._store.read()
        for entry in state.entries.values():
            if entry.state == "committed":
                self._stored(entry)
        for folder in releases:
            if _release_head(folder) not in {event.head for event in events}:
                raise LedgerError(
                    f"release {folder} is not in the ledger at {self._store.path}: this is an "
                    "older copy or another ledger; restore the one that was charged"
                )
        return state.head

    def _admit(self, state: State, dataset: str, key: str, units: int) -> Entry | None:
        """Return the entry of a key that may go on, or None for a new one that the cap allows."""
        account = self._account(state, dataset)
        entry = state.entries.get(key)
        if entry is None or entry.state == "abandoned":
            check_funds(account, units)
            return None
        if (entry.dataset, entry.units) != (dataset, units):
            raise PlanConflictError(
                f"key {key} is on record with another dataset or charge; plan again"
            )
        if entry.state == "reserved" and entry.retries >= RETRIES:
            raise BudgetExceededError(
                f"key {key} was begun {RETRIES + 1} times and never finished; mend the cause, then "
                "`dpquery ledger abandon` it: its charge stays spent, and a new run pays anew"
            )
        return entry

    def _stored(self, entry: Entry) -> Measurement:
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
        return Measurement(values, entry.committed, entry.account, entry.source)

    def _file(self, entry: Entry) -> MeasurementFile:
        return MeasurementFile(self._store.path, key=entry.key, reserved=entry.reserved)

    def _draft(self, entry: Entry) -> Draft:
        path, key, reserved = self._store.path, entry.key, entry.reserved
        return Draft(
            path, lambda part: MeasurementFile(path, key=key, reserved=reserved, part=part)
        )

    def _check_held(self, key: str) -> None:
        if key not in self._held:
            raise ValueError("hold the key first")

    def _account(self, state: State, dataset: str) -> Account:
        account = state.accounts.get(dataset)
        if account is None:
            raise LedgerError(
                f"dataset {dataset!r} is not registered in the ledger at {self._store.path}; "
                "run `dpquery plan` first"
            )
        return account


def _release_head(folder: Path) -> Head:
    """Read which event a release names as its own."""
    try:
        named = json.loads((folder / "release.json").read_text(encoding="utf-8"))["ledger"]
        return Head(int(named["seq"]), str(named["head"]))
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise SpecError(f"{folder} is not a release of dpquery: its release.json names no ledger event")
