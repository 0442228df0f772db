"""What fits a budget: an epsilon that is offered was priced and fits, and the next one does not."""

from fractions import Fraction
from functools import partial

import pytest
from ledgers import release_of

from dpquery.exceptions import BudgetExceededError, SpecError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import EPSILONS, UNIT, Cap, Guarantee, Price
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.funds import (
    Funds,
    epsilon_spent,
    epsilon_text,
    largest_epsilon,
    price_against,
    times_left,
)
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.noise.laplace_cost import Moves, laplace_rho
from dpquery.releases.budget_words import bar, left_words, room_words, taken_words
from dpquery.spec.spec import Budget, Privacy

DELTA = Fraction("1e-6")
PURE = accounting.budget_cap(Budget(Fraction(4), Fraction(0)), Privacy())
ZCDP = accounting.budget_cap(Budget(Fraction(2), DELTA), Privacy(delta=DELTA))
GDP = accounting.budget_cap(Budget(Fraction(2), DELTA, accounting="gdp"), Privacy(delta=DELTA))
RHO = Cap("rho", UNIT // 2)


def account_of(cap, spent, dataset="town", parent=None):
    """An account whose releases were not all pure, or whose sum of epsilons is the same sum."""
    pure = spent if cap.currency == "epsilon" else None
    return Account(dataset, cap, spent=spent, parent=parent, pure=pure)


def gaussian(epsilon):
    return accounting.guarantee("gaussian", epsilon=epsilon, delta=DELTA)


def rounded(epsilon):
    return accounting.guarantee("gaussian", epsilon=epsilon, delta=DELTA, accounting="gdp")


def laplace(epsilon):
    """Laplace noise on two thousand rows that move by a hundred steps each."""
    rho = laplace_rho([Moves(200_000, 20_000_000)], scale=float(200_000 / epsilon))
    return Guarantee("pure", epsilon, epsilon=epsilon, delta=Fraction(0), rho=rho)


def one_more(epsilon):
    """The next number of three digits."""
    _, power = f"{float(epsilon):.2e}".split("e")
    return epsilon + Fraction(10) ** (int(power) - 2)


@pytest.mark.parametrize("spent", ["0", "0.3", "0.5", "0.99", "0.99999"])
@pytest.mark.parametrize(
    ("cap", "guarantee"),
    [
        (PURE, laplace),
        (ZCDP, gaussian),
        (ZCDP, laplace),
        (RHO, gaussian),
        (RHO, laplace),
        (GDP, rounded),
    ],
    ids=["pure", "gaussian", "laplace in rho", "gaussian under rho", "laplace under rho", "mu^2"],
)
def test_the_largest_epsilon_fits_and_the_next_one_does_not(cap, guarantee, spent):
    account = account_of(cap, int(Fraction(spent) * cap.units))
    funds = Funds(account)
    room = funds.room_for(lambda at: price_against(guarantee(at), cap), epsilon=Fraction(1))
    assert room.largest is not None
    assert price_against(guarantee(room.largest), cap).units <= account.remaining
    assert price_against(guarantee(one_more(room.largest)), cap).units > account.remaining
    assert accounting.parse_epsilon(epsilon_text(room.largest)) == room.largest  # as it is typed


def test_the_largest_epsilon_is_the_largest_of_all_of_three_digits():
    """A dense twin of the search: one after another, over three powers of ten."""
    grid = [Fraction(n, 10**k) for k in (1, 2, 3) for n in range(100, 1000)]
    for limit in (Fraction("0.1"), Fraction("0.2345"), Fraction("9.99"), Fraction("10.04")):
        expected = max((epsilon for epsilon in grid if epsilon**2 <= limit**2), default=None)
        assert (
            largest_epsilon(lambda at, most=limit: at**2 <= most**2, near=Fraction(1)) == expected
        )
    assert largest_epsilon(lambda at: at < EPSILONS[0], near=Fraction(1)) is None
    assert largest_epsilon(lambda at: at <= EPSILONS[0], near=Fraction(1)) == EPSILONS[0]
    assert largest_epsilon(lambda at: True, near=Fraction(1)) == EPSILONS[1]


def test_epsilons_at_which_nothing_can_be_drawn_are_not_offered():
    def fits(epsilon, most):
        if not Fraction("0.01") <= epsilon <= 3:
            raise SpecError("no such noise")
        return epsilon <= most

    for most, expected in ((2, 2), (5, 3), (Fraction("0.001"), None)):
        assert largest_epsilon(partial(fits, most=most), near=Fraction(1)) == expected


@pytest.mark.parametrize("cap", [PURE, ZCDP], ids=["pure", "zcdp"])
@pytest.mark.parametrize("share", ["0.00001", "0.1", "0.5", "1"])
def test_the_epsilon_that_was_spent_covers_it_and_a_smaller_one_would_not(cap, share):
    account = account_of(cap, int(Fraction(share) * cap.units))
    epsilon = epsilon_spent(account)
    noise = "laplace" if cap is PURE else "gaussian"

    def charge(at):
        return price_against(accounting.guarantee(noise, epsilon=at, delta=cap.delta), cap).units

    assert charge(epsilon) >= account.spent
    less = epsilon * Fraction("0.989")
    if less > EPSILONS[0]:
        assert charge(less) < account.spent
    assert epsilon_spent(Account("town", cap)) == 0
    assert epsilon_spent(account_of(RHO, 1)) is None


def test_one_release_of_the_whole_budget_spends_its_epsilon_exactly():
    """No rounding turns the epsilon that was asked for into a larger one."""
    for epsilon in ("0.1", "0.7", "1", "2"):
        units = price_against(gaussian(Fraction(epsilon)), ZCDP).units
        assert epsilon_spent(account_of(ZCDP, units)) == Fraction(epsilon)


@pytest.mark.parametrize("used", [0, 3 * UNIT // 10])
def test_so_many_more_are_accepted_by_the_ledger_as_were_said_to_fit(tmp_path, used):
    cap = Cap("epsilon", UNIT, epsilon=Fraction(1))
    price = Price(13 * UNIT // 100, cap.currency, cap.unit)
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        ledger.register("people", cap)
        if used:
            release_of(ledger, "people", "before", used)
        number = ledger.funds("people").repetitions(price)
        assert number == (UNIT - used) // price.units
        for place in range(number):
            release_of(ledger, "people", f"k{place}", price.units)
        assert not ledger.funds("people").fits(price)
        with pytest.raises(BudgetExceededError):
            release_of(ledger, "people", "one more", price.units)
        assert ledger.status()[0].repetitions == 0


@pytest.mark.parametrize(("own", "parents"), [(1, 3), (3, 1)])
def test_the_tighter_of_both_caps_speaks(own, parents):
    cap = Cap("epsilon", 4 * UNIT, epsilon=Fraction(4))
    account = account_of(cap, cap.units - own * UNIT, "wave", "panel")
    parent = account_of(cap, cap.units - parents * UNIT, "panel")
    funds = Funds(account, parent)
    price = Price(UNIT // 2, cap.currency, cap.unit)
    assert funds.tighter is (account if own < parents else parent)
    assert funds.repetitions(price) == 2
    assert funds.fits(Price(UNIT, cap.currency, cap.unit))
    assert not funds.fits(Price(UNIT + 1, cap.currency, cap.unit))
    assert funds.epsilon_left == 1
    room = funds.room_for(lambda at: price_against(laplace(at), cap), epsilon=Fraction(1, 2))
    assert (room.largest, room.repetitions, room.share) == (1, 2, 1 / 8)
    told = room_words(room, "more like it")
    whose = "" if own < parents else " for all datasets of panel together"
    assert told == f"2 more like it fit what is left{whose}, or one at epsilon 1"
    sentence = taken_words(UNIT // 2, account, pure=None, parent=parent)
    assert ("of the budget of panel;" in sentence) is (own > parents)
    assert "on dataset wave up to this release, and epsilon" in sentence
    assert "on all datasets of panel together" in sentence


def test_a_bar_is_empty_only_where_nothing_and_full_only_where_everything_is_spent():
    cap = Cap("epsilon", UNIT, epsilon=Fraction(1))

    def drawn(thousandths):
        return bar(account_of(cap, thousandths * UNIT // 1000)).count("#")

    assert [drawn(spent) for spent in (0, 1, 500, 999, 1000, 2000)] == [0, 1, 5, 9, 10, 10]


def test_what_does_not_fit_is_said_to_be_larger_than_what_is_left():
    cap = Cap("epsilon", 10**18, epsilon=Fraction(1))
    over = Account("town", cap).over
    assert times_left(over(10**18 + 1, None)) == "1.1 times"
    assert times_left(over(4 * 10**18, None)) == "4 times"
    assert times_left(over(123_456 * 10**16, None)) == "1,300 times"


def test_nothing_left_is_said_so():
    cap = Cap("epsilon", UNIT, epsilon=Fraction(1))
    for spent in (UNIT, 2 * UNIT):
        account = account_of(cap, spent)
        assert Funds(account).epsilon_left is None
        assert left_words(account, Funds(account).epsilon_left) == "nothing of 1"
    almost = account_of(cap, UNIT - 1)
    assert left_words(almost, Funds(almost).epsilon_left) == "almost nothing of 1"
    assert left_words(account_of(RHO, UNIT // 8), None) == "rho 0.375 of 0.5"
    less = account_of(RHO, 1)  # what is left is never rounded up
    assert left_words(less, None) == "rho 0.4999 of 0.5"
