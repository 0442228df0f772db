"""What is checked before a charge, and where it is refused."""

from fractions import Fraction
from pathlib import Path

from dpquery.exceptions import BudgetExceededError, LedgerError, PlanConflictError
from dpquery.measurement.accounting import Cap, Price, unit_kind, units_text
from dpquery.measurement.ledger.events import Account, Entry, LedgerState
from dpquery.measurement.ledger.funds import Funds, cap_text, times_left
from dpquery.spec.numbers import power

RETRIES = 3


class NoRoomError(BudgetExceededError):
    """A cap has no room for a charge; whoever can price other epsilons adds what would fit.

    Attributes:
        funds: the accounts that were to be charged.
        price: the charge.
    """

    def __init__(self, funds: Funds, price: Price) -> None:
        self.funds, self.price = funds, price
        tighter = self.funds.tightest(self.price)
        charges = (self.price.units, self.price.pure)
        super().__init__(
            self.with_remedy(""),
            exactly=" or ".join(
                f"{one.currency} {units_text(charge)} where {units_text(max(0, one.left))} of "
                f"{units_text(one.most)} is left"
                for one, charge in zip(tighter.sums, charges, strict=False)
                if charge is not None
            ),
        )

    def with_remedy(self, remedy: str, *, what: str = "release") -> str:
        """Return the message with a remedy in it, if there is one; `what` is refused."""
        parts = [self._refusal(what), *([remedy] if remedy else []), "nothing was charged"]
        return f"dataset {self.funds.account.dataset!r}: {'; '.join(parts)}"

    def _refusal(self, what: str) -> str:
        """Return how far the charge is from what is left, by the sum that is closest to it."""
        funds, price, tighter = self.funds, self.price, self.funds.tightest(self.price)
        over = tighter.over(price.units, price.pure)
        by_epsilons = len(tighter.sums) > 1 and over != tighter.over(price.units, None)
        budget = f"the budget of {cap_text(tighter.cap, by_epsilons=by_epsilons)}"
        if tighter is funds.parent:
            budget += f" of its parent {tighter.dataset!r}, for all of its datasets together"
        if over is not None:
            return f"this {what} needs {times_left(over)} what is left of {budget}"
        if price.pure is None and tighter.decisive.left > 0:
            return f"Gaussian noise does not fit what is left of {budget}: only Laplace noise does"
        return f"nothing is left of {budget}"


def account_of(state: LedgerState, dataset: str, *, ledger: Path) -> Account:
    """Return a dataset's account; LedgerError if it is not registered."""
    account = state.accounts.get(dataset)
    if account is None:
        raise LedgerError(
            f"dataset {dataset!r} is not registered in the ledger at {ledger}, which has "
            f"{', '.join(sorted(state.accounts)) or 'none'}; run `dpquery plan` first, or name "
            "another ledger with --ledger"
        )
    return account


def admitted(
    state: LedgerState, dataset: str, *, key: str, price: Price, ledger: Path
) -> Entry | None:
    """Return the entry of a key that may go on, or None for a new one that the cap allows.

    Raises:
        BudgetExceededError: its cap or its parent's would be passed, or the key was begun too
            often.
        LedgerError: the dataset is not registered.
        PlanConflictError: the key is on record with a smaller charge, or a cap is no longer of the
            price's currency or unit.
    """
    account = account_of(state, dataset, ledger=ledger)
    parent = state.parent_of(account)
    check_price(account, price, parent=parent)
    entry = state.entries.get(key)
    if entry is None or entry.state == "abandoned":
        check_funds(Funds(account, parent), price)
        return None
    # What an earlier version charged may be more than the price is now, and stands.
    smaller = entry.units < price.units or entry.threshold < price.threshold
    if entry.dataset != dataset or smaller:
        raise PlanConflictError(
            f"key {key} is on record with another dataset or a smaller charge; plan again"
        )
    if entry.state == "reserved" and entry.retries >= RETRIES:
        raise BudgetExceededError(
            f"key {key} was begun {RETRIES + 1} times and never finished; find the cause, then "
            "`dpquery ledger abandon` it: its charge stays spent, and a new run pays anew"
        )
    return entry


def check_price(account: Account, price: Price, *, parent: Account | None) -> None:
    """Refuse a price worked out for another currency or unit than those on record by now.

    A cap may be changed between the two, and the same units would be another loss.
    """
    recorded = [(account.cap.currency, account.cap.unit)]
    priced = [(price.currency, price.unit)]
    if parent is not None:
        recorded.append((parent.cap.currency, unit_kind(parent.cap.unit)))
        priced.append((price.currency, unit_kind(price.unit)))
    if recorded != priced:
        raise PlanConflictError(
            f"the cap on record for dataset {account.dataset!r} was changed meanwhile; run the "
            "command again; nothing was charged"
        )


def check_funds(funds: Funds, price: Price) -> None:
    """Refuse a charge that the account's cap, or its parent's, has no room for."""
    if price.units <= 0:
        raise ValueError("a charge is a positive number of units")
    if funds.threshold_left < price.threshold:
        left = max(Fraction(0), funds.threshold_left)
        smaller = "give a smaller --delta, or " if left else ""
        raise BudgetExceededError(
            f"dataset {funds.account.dataset!r}: this discovery needs delta "
            f"{power(float(price.threshold))}, half of its own, and {power(float(left))} is left "
            f"of what the budget sets apart for discoveries; {smaller}set more "
            "apart, with `discover` in the budget of the spec and of its parent (and --change-cap "
            "where they are on record); nothing was charged"
        )
    if not funds.fits(price):
        raise NoRoomError(funds, price)


def check_unit(dataset: str, recorded: Cap, unit: str) -> None:
    """Refuse a charge for another unit than the one on record."""
    if recorded.unit != unit:
        raise PlanConflictError(
            f"dataset {dataset!r} is on record for the unit {recorded.unit!r}, but the spec "
            f"protects {unit!r}, and losses of different units do not add up; restore the unit in "
            "the spec, or change the record with `dpquery plan SPEC --change-cap` if nothing was "
            "spent"
        )


def check_parent(account: Account, parent: str | None) -> None:
    """Refuse a charge that would leave out the parent whom the spec declares.

    A spec from before the dataset came under its parent names none; both are charged all the same.
    """
    if parent is not None and account.parent != parent:
        recorded = "no parent" if account.parent is None else f"the parent {account.parent!r}"
        raise PlanConflictError(
            f"dataset {account.dataset!r} is on record with {recorded} and the spec names "
            f"{parent!r}; run `dpquery plan` with this ledger first"
        )
