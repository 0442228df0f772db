"""What a budget is worth, in the terms that it was declared in: on the screen and in statements."""

import math
from collections.abc import Callable
from decimal import ROUND_DOWN, Decimal, localcontext
from fractions import Fraction
from functools import partial

from dpquery.exceptions import SpecError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import UNIT, Cap, Price, units_text
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.funds import Room, cap_text, epsilon_spent, epsilon_text
from dpquery.releases.words import percent
from dpquery.spec.numbers import power
from dpquery.spec.spec import Budget, Spec

GROWS = "the cost grows about as epsilon squared"
"""Why half of an epsilon is not half of a budget that is counted in rho or mu^2."""
_SEEN = 0.01  # of a budget: what a share is off from the epsilon's, where a reader asks why

DISCOVERED = "lists or limits of values were found in the records by discoveries, which this counts"
"""Said of a dataset where what was spent is not releases alone."""

DeltaForm = Callable[[float], str]
RECORDED: DeltaForm = "{:g}".format
"""How statements have always written a delta: a release that is made again has the same bytes."""

LARGE_DELTA = Fraction(1, 1000)  # where nobody said how many records there are


def delta_words(delta: Fraction, budget: Budget, records: int | None) -> list[str]:
    """Warn where records may be published as they are, at a release's delta or its budget's."""
    delta = max(delta, budget.delta)
    if delta <= (LARGE_DELTA if records is None else Fraction(1, records)):
        return []
    above = "is large" if records is None else f"is above one in the {records:,} records"
    return [
        f"warning: delta {power(float(delta))} {above}: a release that shows some records as they "
        "are would keep that promise; write a far smaller delta, such as 1e-9"
    ]


def large_delta(delta: Fraction, spec: Spec) -> list[str]:
    """Return the warning of a delta, by how many records the spec says there are; or nothing."""
    rows = spec.dataset.rows
    return delta_words(delta, spec.budget, None if rows is None else rows.count)


def within_reason(delta: Fraction, spec: Spec) -> Fraction:
    """Return a delta, unless records may be published at it and the spec declares none so large."""
    declared = max(spec.privacy.delta, spec.budget.delta)
    if delta > declared and large_delta(delta, spec):
        raise SpecError(
            f"--delta {power(float(delta))} is above the delta {power(float(declared))} that the "
            "spec declares, and so large that records may be published as they are; "
            f"{f'take {power(float(declared))} or less' if declared else 'leave it out'}"
        )
    return delta


def growth_words(*accounts: Account | None) -> str:
    """Say why a share that is spent is not the epsilon's share of the cap, where it is not."""
    spent = ((each, epsilon_spent(each)) for each in accounts if each is not None)
    grows = (
        epsilon is not None and grows_unlike(epsilon, float(account.share_spent), account.cap)
        for account, epsilon in spent
    )
    return GROWS if any(grows) else ""


def grows_unlike(epsilon: Fraction, share: float, cap: Cap) -> bool:
    """Return whether a share of a cap is another one than an epsilon is of the cap's."""
    return cap.epsilon is not None and abs(share - float(epsilon / cap.epsilon)) > _SEEN


def taken_words(
    charged: int,
    account: Account,
    *,
    pure: int | None,
    parent: Account | None,
    form: DeltaForm = power,
    what: str = "release",
) -> str:
    """Return what a release takes and all that is spent with it, in one sentence.

    `pure` is the epsilon of a pure guarantee, in units of 1e-18. Where less is left of the parent,
    it has the first word.
    """
    decisive, whose = account, ""
    if parent is not None and parent.remaining < account.remaining:
        decisive, whose = parent, f" of {parent.dataset}"
    used = percent(float(decisive.share(charged, pure)))
    known = "" if whose or form is RECORDED else used  # a statement keeps its bytes
    text = (
        f"this {what} uses {used} of the budget{whose}; "
        f"{_spent(account, form, known)} has been spent on dataset {account.dataset} "
        f"up to this {what}"
    )
    if parent is None:
        return text
    return f"{text}, and {_spent(parent, form)} on all datasets of {parent.dataset} together"


def exact_words(
    account: Account, *, parent: Account | None, of_sums: bool = True, form: DeltaForm = power
) -> str:
    """Return what a dataset and its parent have spent of their caps, to the last digit.

    `of_sums` is whether both sums are said where either admits a release.
    """
    said = _by_sums if of_sums else partial(_exactly, form=form)
    text = f"{said(account)} has been spent on dataset {account.dataset} up to this release"
    if parent is None:
        return text
    return f"{text}, and {said(parent)} on all datasets of {parent.dataset} together"


def counted_words(account: Account, price: Price) -> str:
    """Return the cap of an account, and by which sum a charge to it is the share that is said."""
    both, by_cost = (account.share(price.units, pure) for pure in (price.pure, None))
    return cap_text(account.cap, by_epsilons=len(account.sums) > 1 and both < by_cost)


def room_words(room: Room, noun: str, delta: Fraction = Fraction(0)) -> str:
    """Return how many releases like one fit, and the largest epsilon of a single one at its delta.

    >>> from dpquery.measurement.accounting import Cap, Price
    >>> from dpquery.measurement.ledger.funds import Funds
    >>> price, funds = Price(7, "epsilon", "row"), Funds(Account("town", Cap("epsilon", 30)))
    >>> room_words(Room(funds, price, 4, Fraction("2.93")), "more like it")
    '4 more like it fit what is left, or one at epsilon 2.93'
    >>> room_words(Room(funds, price, 4, Fraction(183), limited=False), "more like it")
    '4 more like it fit what is left, or one at any epsilon that can be asked for (up to about 183)'
    """
    number, largest = room.repetitions, room.largest
    left, decisive = "what is left", room.funds.tightest(room.price)
    if decisive is room.funds.parent:
        left += f" for all datasets of {decisive.dataset} together"
    if decisive.share_spent >= 1:
        return left.replace("what", "nothing")
    if largest is None:
        return f"none fits {left}"
    one = f"one at epsilon {epsilon_text(largest, delta)}"
    if not room.limited:
        one = f"one at any epsilon that can be asked for (up to about {epsilon_text(largest)})"
    if number == 0:
        return f"none fits {left}, but {one} does"
    return f"{number:,} {noun} {'fits' if number == 1 else 'fit'} {left}, or {one}"


def spent_share(account: Account) -> str:
    """Return the share of a cap that is spent."""
    share = account.share_spent
    return "over 99 %" if Fraction("0.995") <= share < 1 else percent(float(share))


def bar(account: Account, *, width: int = 10) -> str:
    """Return a bar that fills as a cap is spent: never empty then, and full with nothing left."""
    spent = account.share_spent
    filled = min(math.ceil(spent * width), width - 1) if spent < 1 else width
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def left_words(account: Account, epsilon: Fraction | None) -> str:
    """Return what is left of a cap in what it was declared in, epsilon or rho, and the whole."""
    cap = account.cap
    if cap.epsilon is None:
        left = Decimal(max(0, account.remaining)) / UNIT
        with localcontext(prec=4, rounding=ROUND_DOWN):  # never more than there is
            return f"rho {float(+left):g} of {float(cap.units / UNIT):g}"
    whole = f"of {float(cap.epsilon):g}"
    if epsilon is None:
        return f"{'almost ' if account.share_spent < 1 else ''}nothing {whole}"
    return f"epsilon {epsilon_text(epsilon)} {whole}"


def _spent(account: Account, form: DeltaForm, known: str = "") -> str:
    """Return what is spent of a cap, as it was declared; an epsilon covers it.

    The share is left out where it is known.
    """
    cap, epsilon = account.cap, epsilon_spent(account)
    if epsilon is None:  # a cap in rho, or nobody could ask for so much
        return f"{spent_share(account)} of {cap_text(cap, form=form)}"
    whole = cap_text(cap, by_epsilons=account.by_epsilons, form=form).removeprefix("epsilon ")
    if account.remaining >= 0:  # three digits may round up beyond a cap that has more
        epsilon = min(epsilon, cap.epsilon or epsilon)
    amount = f"epsilon {epsilon_text(epsilon)} of {whole}"
    share = spent_share(account)
    return f"{amount} ({share})" if share != known else amount + "," * (", " in amount)


def _by_sums(account: Account) -> str:
    """Return what is spent by every sum, exactly; the first as `_exactly` where it is the one."""
    if len(account.sums) == 1:
        return _exactly(account)
    cost, epsilons = (
        f"{one.currency} {units_text(one.spent)} of {units_text(one.most)}"
        + (" (which decides)" if one == account.decisive else "")
        for one in account.sums
    )
    return f"{cost} and, as all releases are pure, {epsilons}"


def _exactly(account: Account, form: DeltaForm = power) -> str:
    cap = account.cap
    amount = f"{cap.currency} {units_text(account.spent)} of {units_text(cap.units)}"
    if cap.delta:
        epsilon = accounting.epsilon_of_units(cap, account.spent)
        amount += f" (epsilon {epsilon:.4g} at delta {form(float(cap.delta))})"
    return amount
