"""What the ledger says of one dataset: what it may spend, has spent, and released."""

from dataclasses import dataclass

from dpquery.measurement.accounting import Price
from dpquery.measurement.ledger.events import Account, LedgerState
from dpquery.measurement.ledger.funds import Funds

KEY_PREFIX = 12
"""So many first characters of a key are shown, and are enough to name a run that never finished."""


@dataclass(frozen=True)
class Status:
    """One dataset's account, its releases, and the keys whose runs never finished.

    `last` is what its last release was charged, or the last one of the datasets whose parent it is.
    """

    funds: Funds
    releases: int
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
        releases=sum(entry.state == "committed" for entry in entries),
        unfinished=tuple(entry.key for entry in entries if entry.state == "reserved"),
        last=None if last is None else Price(last.units, *of_cap, last.pure),
    )
