"""The ledger's events: a hash chain, and the accounts that follow from it alone.

Nothing is stored that could disagree with the events. What a dataset has spent, and what became of
a key, follows from replaying them; a changed, missing or inserted event breaks the chain there.
Events hold public facts and no time finer than the day.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from fractions import Fraction
from typing import Literal, cast, get_args

from dpquery.exceptions import LedgerError
from dpquery.measurement.accounting import UNIT, Cap, Currency

_DIGITS = re.compile("[0-9]{1,1000}")

JSON = None | bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"]
EventKind = Literal["register", "adopt", "change-cap", "reserve", "retry", "commit", "abandon"]


@dataclass(frozen=True)
class Head:
    """The last event: its number and the hash that covers the whole chain up to it."""

    seq: int = 0
    hash: str = "0" * 64


@dataclass(frozen=True)
class Event:
    """One event: its place in the chain, its day and kind, and its fields."""

    head: Head
    kind: EventKind
    day: str
    fields: Mapping[str, JSON]

    def as_json(self) -> dict[str, JSON]:
        """Return the event as one flat object, for export."""
        place: dict[str, JSON] = {"seq": self.head.seq, "hash": self.head.hash}
        return place | {"kind": self.kind, "day": self.day} | dict(self.fields)


@dataclass(frozen=True)
class RunningSum:
    """A sum that a cap bounds: what is added up; in units of 1e-18 the most and what is spent."""

    currency: Currency  # what is added up; "epsilon" for the epsilons of pure releases too
    most: int  # the cap
    spent: int  # what it has come to

    @property
    def left(self) -> int:
        """Units that are left; negative where more is spent, which another sum admitted."""
        return self.most - self.spent

    @property
    def share(self) -> Fraction:
        """What is spent of the most."""
        return Fraction(self.spent, max(1, self.most))


@dataclass(frozen=True)
class Account:
    """One dataset: its cap and what is spent of it, in units of 1e-18 of the cap's currency."""

    dataset: str  # its name
    cap: Cap  # the most that may ever be spent
    spent: int = 0  # by its own releases, and by those of every dataset whose parent it is
    # whose account every charge goes to as well; None for a dataset of its own
    parent: str | None = None
    # the epsilons of the same releases added up, in units of 1e-18, while all of them are pure;
    # None from the first other one on
    pure: int | None = 0
    threshold: Fraction = Fraction(0)  # the delta that thresholds of discoveries have spent
    discovered: tuple[str, ...] = ()  # the columns that discoveries were charged for

    @property
    def remaining(self) -> int:
        """Units that are left; negative where the cap was lowered below what is spent."""
        return self.cap.units - self.spent

    def over(self, units: int, pure: int | None) -> Fraction | None:
        """Return a charge over what is left, by whichever of two sums leaves more room for it.

        `pure` is its epsilon where all that is charged for is pure, in units of 1e-18.

        Returns:
            1 or less where the charge is admitted; None where nothing is left by either sum.
        """
        charged = self._charged_sums(units, pure)
        return min(
            (Fraction(charge, one.left) for charge, one in charged if one.left > 0), default=None
        )

    def admits(self, units: int, pure: int | None) -> bool:
        """Return whether the cap has room for a charge, by either of its two sums; see `over`.

        Privacy: all releases together are (epsilon, delta)-DP as the cap declares; the proof is in
        [MATH] 26.5. Once a release is not pure, only the sum in the currency counts, also
        for those before it.
        """
        over = self.over(units, pure)
        return over is not None and over <= 1

    def share(self, units: int, pure: int | None) -> Fraction:
        """Return what a charge is of the whole cap, by whichever sum it takes less of; see `over`.

        Once a release is not pure, that is the sum in the currency.
        """
        charged = self._charged_sums(units, pure)
        return min(Fraction(charge, max(1, one.most)) for charge, one in charged)

    def _charged_sums(self, units: int, pure: int | None) -> Iterator[tuple[int, RunningSum]]:
        """Yield what a charge adds to each sum that can admit it."""
        for charge, one in zip((units, pure), self.sums, strict=False):
            if charge is not None:
                yield charge, one

    @property
    def share_spent(self) -> Fraction:
        """What is spent of the whole cap, by whichever sum leaves more; 1 where nothing is left."""
        return self.share(self.spent, self.pure) if self.cap.units > 0 else Fraction(1)

    @property
    def sums(self) -> tuple[RunningSum, ...]:
        """The sums that can admit a release, first the one in the cap's currency; see `over`.

        The other one is that of epsilons, under an epsilon that is kept in another currency and
        while all releases are pure.
        """
        cap, most = self.cap, self.cap.pure_units
        cost = RunningSum(cap.currency, cap.units, self.spent)
        if cap.currency == "epsilon" or most is None or self.pure is None:
            return (cost,)
        return (cost, RunningSum("epsilon", most, self.pure))

    @property
    def decisive(self) -> RunningSum:
        """The sum of which less is spent: the one that `share_spent` is of."""
        return min(self.sums, key=lambda one: one.share)

    @property
    def by_epsilons(self) -> bool:
        """Whether the sum of epsilons decides, beside one in another currency."""
        return self.decisive.currency != self.cap.currency

    def charged(
        self,
        units: int,
        pure: int | None,
        threshold: Fraction = Fraction(0),
        *,
        discovered: tuple[str, ...] = (),
    ) -> "Account":
        """Return the account after a charge, of a discovery or a release; see `admits`."""
        return replace(
            self,
            spent=self.spent + units,
            pure=None if self.pure is None or pure is None else self.pure + pure,
            threshold=self.threshold + threshold,
            discovered=(*dict.fromkeys((*self.discovered, *discovered)),),
        )


@dataclass(frozen=True)
class Entry:
    """What became of one key."""

    key: str  # names the measurement that was charged for, its release number included
    dataset: str  # the account charged
    units: int  # the charge
    reserved: int  # number of the event that charged it
    # whether its measurement is still to come, stored, or given up
    state: Literal["reserved", "committed", "abandoned"] = "reserved"
    retries: int = 0  # runs after the first that continued the reservation
    committed: Head = Head()  # the event that stored the measurement
    day: str = ""  # of that event
    sha256: str = ""  # hash of the stored noisy measurement
    account: Account | None = None  # the dataset's account at that event
    parent: Account | None = None  # its parent's then, if it had one
    source: str = ""  # what drew its noise
    # the epsilon of a pure guarantee, in units of 1e-18; None for any other
    pure: int | None = None
    threshold: Fraction = Fraction(0)  # the delta that a discovery spent beside
    discovered: bool = False  # whether it is a discovery, and no release


@dataclass
class LedgerState:
    """All accounts and entries after some events; grows by `apply`."""

    head: Head = Head()
    accounts: dict[str, Account] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Update accounts and entries by one event.

        Raises:
            KeyError, TypeError, ValueError: the event cannot follow from those before it.
        """
        match event.kind:
            case "register" | "change-cap":
                self._set_cap(event)
            case "adopt":
                self._adopt(event)
            case "reserve":
                self._reserve(event)
            case "retry" | "commit" | "abandon":
                self._continue(event)
            case _:
                raise ValueError("no such kind of event")
        self.head = event.head

    def _set_cap(self, event: Event) -> None:
        dataset, cap = str(event.fields["dataset"]), cap_from(event.fields)
        if event.kind == "register":
            if dataset in self.accounts:
                raise ValueError("registered twice")
            self.accounts[dataset] = Account(dataset, cap)
        else:
            self.accounts[dataset] = replace(self.accounts[dataset], cap=cap)

    def parent_of(self, account: Account) -> Account | None:
        """Return the account that an account's charges go to as well, if there is one."""
        return None if account.parent is None else self.accounts[account.parent]

    def _adopt(self, event: Event) -> None:
        """Put a dataset under its parent, who takes over all that was spent on it before."""
        child = self.accounts[str(event.fields["dataset"])]
        parent = self.accounts[str(event.fields["parent"])]
        parents = {account.parent for account in self.accounts.values()}
        if child.parent is not None or parent.parent is not None or child.dataset in parents:
            raise ValueError("one parent, and none above it")
        if child.dataset == parent.dataset or _whole(event.fields["units"]) != child.spent:
            raise ValueError("not what was spent")
        self.accounts[child.dataset] = replace(child, parent=parent.dataset)
        self.accounts[parent.dataset] = parent.charged(
            child.spent, child.pure, child.threshold, discovered=child.discovered
        )

    def _reserve(self, event: Event) -> None:
        key, dataset = str(event.fields["key"]), str(event.fields["dataset"])
        units = _whole(event.fields["units"])
        account = self.accounts[dataset]
        earlier = self.entries.get(key)
        if units <= 0 or (earlier is not None and earlier.state != "abandoned"):
            raise ValueError("not a new charge")
        if event.fields.get("parent") != account.parent:
            raise ValueError("not charged to its parent")
        native = event.fields.get("native")
        pure, threshold = pure_units(native), threshold_of(native)
        details = event.fields.get("details")
        found: tuple[str, ...] = ()
        if isinstance(details, Mapping) and "discover" in details:
            found = (str(details["discover"]),)
        for payer in (account, self.parent_of(account)):
            if payer is not None:
                after = payer.charged(units, pure, threshold, discovered=found)
                self.accounts[payer.dataset] = after
        charged = Entry(key, dataset, units, reserved=event.head.seq, pure=pure)
        self.entries[key] = replace(charged, threshold=threshold, discovered=bool(found))

    def _continue(self, event: Event) -> None:
        entry = self.entries[str(event.fields["key"])]
        if entry.state != "reserved":
            raise ValueError("no open reservation")
        if event.kind == "retry":
            entry = replace(entry, retries=entry.retries + 1)
        elif event.kind == "abandon":
            entry = replace(entry, state="abandoned")
        else:
            account = self.accounts[entry.dataset]
            entry = replace(
                entry,
                state="committed",
                committed=event.head,
                day=event.day,
                sha256=str(event.fields["sha256"]),
                account=account,
                parent=self.parent_of(account),
                # Before there was a choice, OpenDP drew all noise and its name was not kept.
                source=str(event.fields.get("source", "OpenDP")),
            )
        self.entries[entry.key] = entry


def seal(
    previous: Head, *, kind: EventKind, day: str, fields: Mapping[str, JSON]
) -> tuple[Event, str]:
    """Return the event that follows `previous`, and the canonical text to store for it."""
    text = _text(kind=kind, day=day, fields=fields)
    return Event(_next(previous, text), kind, day, fields), text


def read_chain(rows: Iterable[tuple[int, str, str]]) -> tuple[LedgerState, list[Event]]:
    """Verify the stored rows (seq, text, hash) and replay them.

    Raises:
        LedgerError: at the first event that does not follow from those before it.
    """
    state = LedgerState()
    events = []
    for seq, text, stored in rows:
        expected = _next(state.head, text)
        sound = expected == Head(seq, stored)
        if sound:
            try:
                event = _read(expected, text)
                state.apply(event)
                events.append(event)
            except (KeyError, TypeError, ValueError, RecursionError):
                sound = False
        if not sound:
            raise LedgerError(
                f"the ledger was changed or damaged at event {expected.seq}: its hash chain does "
                "not hold there; restore the ledger from a backup"
            )
    return state, events


def _read(head: Head, text: str) -> Event:
    """Read an event back; ValueError, or as apply, if `seal` could not have written it."""
    body = json.loads(text)
    kind, day, fields = body["kind"], body["day"], body["fields"]
    if _text(kind=kind, day=day, fields=fields) != text:
        raise ValueError("not as it was written")
    if date.fromisoformat(day).isoformat() != day:
        raise ValueError("not a day")
    if "\\ud" in text:  # half a character can be read, and never be printed: ValueError
        json.dumps(body, ensure_ascii=False).encode()
    return Event(head, kind, day, fields)


def _text(*, kind: EventKind, day: str, fields: Mapping[str, JSON]) -> str:
    body = {"kind": kind, "day": day, "fields": fields}
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def cap_fields(dataset: str, cap: Cap) -> dict[str, JSON]:
    """Return the fields of an event that sets a cap; numbers as exact text."""
    fields: dict[str, JSON] = {
        "dataset": dataset,
        "currency": cap.currency,
        "units": str(cap.units),
        "epsilon": None if cap.epsilon is None else str(cap.epsilon),
        "delta": str(cap.delta),
        "unit": cap.unit,
    }
    return fields | {"discover": str(cap.discover)} if cap.discover else fields


def pure_units(native: JSON) -> int | None:
    """Return the epsilon of a release from its guarantee on record, in units of 1e-18, rounded up.

    None where the guarantee is not pure, or is not on record.
    """
    if not isinstance(native, Mapping) or set(native) != {"pure"}:
        return None
    return math.ceil(_exact(native["pure"]) * UNIT)


def threshold_of(native: JSON) -> Fraction:
    """Return the delta that the threshold of a discovery spent; 0 of a release."""
    spent = native.get("threshold", "0") if isinstance(native, Mapping) else "0"
    return _exact(spent)


def cap_from(fields: Mapping[str, JSON]) -> Cap:
    """Read back the cap that `cap_fields` wrote."""
    currency, epsilon = fields["currency"], fields["epsilon"]
    if currency not in get_args(Currency):
        raise ValueError("no such currency")
    return Cap(
        currency=cast(Currency, currency),
        units=_whole(fields["units"]),
        epsilon=None if epsilon is None else _exact(epsilon),
        delta=_exact(fields["delta"]),
        discover=_exact(fields.get("discover", "0")),
        unit=str(fields["unit"]),
    )


def _whole(value: JSON) -> int:
    """Read a whole number as it is written: no sign, no blanks, no more digits than make sense."""
    if not (isinstance(value, str) and _DIGITS.fullmatch(value)):
        raise ValueError("not a whole number")
    return int(value)


def _exact(value: JSON) -> Fraction:
    """Read a fraction as it is written; an exponent could stand for more digits than there are."""
    above, slash, below = str(value).partition("/")
    denominator = _whole(below) if slash else 1
    if denominator == 0:
        raise ValueError("not a fraction")
    return Fraction(_whole(above), denominator)


def _next(previous: Head, text: str) -> Head:
    seq = previous.seq + 1
    covered = f"{previous.hash}\n{seq}\n{text}"
    return Head(seq, hashlib.sha256(covered.encode()).hexdigest())
