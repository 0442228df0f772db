"""What the ledger refuses before anything is charged, and how it says so."""

from dpquery.exceptions import BudgetExceededError, PlanConflictError
from dpquery.measurement.accounting import Cap, units_text
from dpquery.measurement.ledger_events import Account


def check_funds(account: Account, units: int) -> None:
    """Refuse a charge that the account's cap has no room for."""
    if units <= 0:
        raise ValueError("a charge is a positive number of units")
    if units > account.remaining:
        raise BudgetExceededError(
            f"dataset {account.dataset!r}: this release asks for {account.cap.currency} "
            f"{units_text(units)} and {units_text(max(0, account.remaining))} of "
            f"{units_text(account.cap.units)} remain; nothing was charged"
        )


def check_unit(dataset: str, kept: Cap, unit: str) -> None:
    """Refuse a charge for another unit than the one on record."""
    if kept.unit != unit:
        raise PlanConflictError(
            f"dataset {dataset!r} is on record for the unit {kept.unit!r} and the spec protects "
            f"{unit!r}, and losses of different units do not add up; restore the unit in the spec, "
            "or change the record with `dpquery plan --change-cap` if nothing was spent"
        )


def cap_text(cap: Cap) -> str:
    """Return a cap in words."""
    if cap.epsilon is None:
        return f"rho {units_text(cap.units)}"
    delta = f" at delta {float(cap.delta):g}" if cap.delta else ""
    return f"epsilon {float(cap.epsilon):g}{delta}"
