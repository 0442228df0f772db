"""What fits a budget, and what is said of it: both sums where two count, in lines that fit.

No adaptive adversary gets more than the cap: it has mechanisms with two or three outcomes, so that
all of it is a sum, sees every outcome, and picks the next mechanism that the account admits. What
its best strategy reaches, the sum of (P - exp(epsilon) Q)+ over all transcripts, is compared with
the cap's delta. The account is the ledger's; filters that are wrong must be caught.
"""

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from functools import partial
from hashlib import sha256

import numpy as np
import pytest
from ledgers import CAP, opened, release_of, spent
from scipy.special import logsumexp
from scipy.stats import norm
from town import ok, run

from dpquery.audit.both_sums import (
    COINS,
    DELTA_OF_SUMS,
    EPSILON_OF_SUMS,
    fresh_account,
    worst_delta,
)
from dpquery.cli.show_comparison import counted_words
from dpquery.exceptions import BudgetExceededError, PlanConflictError, SpecError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import (
    EPSILONS,
    UNIT,
    Cap,
    Guarantee,
    Price,
    budget_cap,
    charge_units,
)
from dpquery.measurement.ledger.admission import NoRoomError, check_funds
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
from dpquery.measurement.noise.calibration import Moves, laplace_rho
from dpquery.releases.budget_words import bar, exact_words, left_words, room_words, taken_words
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
    assert [account_of(Cap("epsilon", units), 0).share_spent for units in (0, 1)] == [1, 0]


def test_what_does_not_fit_is_said_to_be_larger_than_what_is_left():
    cap = Cap("epsilon", 10**18, epsilon=Fraction(1))
    over = Account("town", cap).over
    assert times_left(over(10**18 + 1, None)) == "1.1 times"
    assert times_left(over(4 * 10**18, None)) == "4 times"
    assert times_left(over(123_456 * 10**16, None)) == "1,300 times"


def test_nothing_left_is_said_so():
    cap = Cap("epsilon", UNIT, epsilon=Fraction(1))
    for units in (UNIT, 2 * UNIT):
        account = account_of(cap, units)
        assert Funds(account).epsilon_left is None
        assert left_words(account, Funds(account).epsilon_left) == "nothing of 1"
    almost = account_of(cap, UNIT - 1)
    assert left_words(almost, Funds(almost).epsilon_left) == "almost nothing of 1"
    assert left_words(account_of(RHO, UNIT // 8), None) == "rho 0.375 of 0.5"
    less = account_of(RHO, 1)  # what is left is never rounded up
    assert left_words(less, None) == "rho 0.4999 of 0.5"


DELTA = Fraction("1e-6")
COUNTED = {"gdp": "mu^2", "zcdp": "rho"}
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def cap(epsilon, kind="gdp", delta=DELTA):
    return budget_cap(Budget(Fraction(epsilon), delta, accounting=kind), Privacy(delta=delta))


def pure_release(epsilon):
    return accounting.guarantee("laplace", epsilon=Fraction(epsilon), delta=Fraction(0))


def gaussian_release(epsilon, kind="gdp"):
    return accounting.guarantee("gaussian", epsilon=Fraction(epsilon), delta=DELTA, accounting=kind)


def charged(account, *guarantees):
    for one in guarantees:
        price = price_against(one, account.cap)
        account = account.charged(price.units, price.pure)
    return account


def release(ledger, dataset, spent, *, finish=True, key=None):
    """A release of two numbers, or a run of one that was charged and never finished."""
    price = price_against(spent, ledger.funds(dataset).account.cap)
    key = key or sha256(f"{dataset}{ledger.head().seq}".encode()).hexdigest()
    with ledger.hold(key):
        ledger.lookup(dataset, key=key, price=price)
        native = {spent.kind: str(spent.amount)}
        ledger.reserve(dataset, key=key, price=price, native=native, details={})
        if finish:
            ledger.commit(key, np.array([7, 8]), source="OpenDP 0")
    return key


RELEASES = (
    *(("labour-force-2024", pure_release(1)), ("census", gaussian_release("0.3", "zcdp"))),
    *(
        ("plain", pure_release("0.5")),
        ("wave-1", gaussian_release(1)),
        ("wave-2", gaussian_release("2.9")),
    ),
    *(
        ("rho-only", pure_release("0.1")),
        ("labour-force-2024", pure_release(1)),
        ("plain", pure_release("0.5")),
    ),
    *(
        ("census", pure_release("0.01")),
        ("wave-1", gaussian_release("1.3")),
        ("rho-only", pure_release("0.1")),
    ),
    ("labour-force-2024", pure_release(1)),
)


@pytest.fixture
def ledger_path(tmp_path, monkeypatch):
    """The ledger of an office, of every currency, with a panel; the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "state" / "ledger.db"
    monkeypatch.setenv("DPQUERY_LEDGER", str(path))
    panel = Account("panel", cap(4))
    with Ledger.open(path, create=True) as ledger:
        ledger.register("labour-force-2024", cap(4))
        ledger.register("census", cap(2, "zcdp"))
        ledger.register("plain", cap(3, None, Fraction(0)))
        ledger.register("rho-only", Cap("rho", UNIT // 2))
        ledger.register("wave-1", cap(4), parent=panel)
        ledger.register("wave-2", cap(4), parent=panel)
    return path


@pytest.mark.nightly(daily=r"\[1\]")
@pytest.mark.parametrize("number", [0, 1, len(RELEASES)])
def test_a_status_fits_a_terminal_and_is_the_same_wherever_there_is_room(
    ledger_path, number, monkeypatch
):
    monkeypatch.setenv("TERM", "xterm-256color")
    with opened(ledger_path) as ledger:
        for place, (dataset, spent) in enumerate(RELEASES[:number]):
            release(ledger, dataset, spent, finish=place != 4)
    for options in ((), ("--exact",)):
        piped = ok("ledger", "status", *options).out
        assert "…" not in piped
        assert max(map(len, piped.splitlines())) <= 80
        for columns in ("80", "140"):
            monkeypatch.setenv("COLUMNS", columns)
            shown = run("ledger", "status", *options, terminal=True).out
            assert shown != piped  # what stands above the columns is stressed
            plain = [line.rstrip() for line in ESCAPES.sub("", shown).splitlines()]
            assert plain == piped.splitlines()


@pytest.mark.parametrize("kind", ["gdp", "zcdp"])
def test_both_sums_are_said_while_all_releases_are_pure_and_which_one_decides(ledger_path, kind):
    with opened(ledger_path) as ledger:
        ledger.register("people", cap(4, kind))
        release(ledger, "people", pure_release(1))
        release(ledger, "people", pure_release(1))
    *_, status = json.loads(ok("ledger", "status", "--json").out)
    cost, epsilons = status["sums"]
    assert (cost["currency"], cost["left"]) == (COUNTED[kind], "0")
    assert Fraction(cost["spent"]) > Fraction(cost["cap"])
    assert epsilons == {"currency": "epsilon", "cap": "4", "spent": "2", "left": "2"}
    assert (status["left"], status["decides"], status["share_spent"]) == ("0", "epsilon", 0.5)
    share = round(100 * float(Fraction(cost["spent"]) / Fraction(cost["cap"])))
    shown = ok("ledger", "status").out
    assert re.search(r"people +\[####....\] 50 % +epsilon 2 of 4 +1e-6 +2 +2\n", shown)
    said = rf"people +50 % +{share} % of {re.escape(COUNTED[kind])} +epsilon +nothing\n"
    assert re.search(said, shown)
    exact = ok("ledger", "status", "--exact").out
    over = Fraction(cost["spent"]) - Fraction(cost["cap"])
    over = accounting.units_text(int(over * UNIT))
    assert re.search(rf"people +{re.escape(COUNTED[kind])} +over +{over}\n", exact)
    assert re.search(r"people +epsilon +left +2\n", exact)
    assert "over: more is spent than the cap" in exact
    assert "-" not in re.sub(r"[a-z0-9]-[a-z0-9]", "", exact)  # but in names


def test_the_sum_by_cost_decides_where_less_of_it_is_spent_and_alone_once_noise_is_gaussian():
    fresh = Account("people", cap(4))
    assert len(fresh.sums) == 2
    assert not fresh.by_epsilons
    little = charged(fresh, pure_release("0.1"))
    assert (little.decisive.currency, little.by_epsilons) == ("mu^2", False)
    much = charged(fresh, pure_release(1))
    assert (much.decisive.currency, much.by_epsilons) == ("epsilon", True)
    assert much.decisive.share == much.share_spent
    mixed = charged(little, gaussian_release("0.1"))
    assert [one.currency for one in mixed.sums] == ["mu^2"]
    assert mixed.decisive.share == mixed.share_spent
    assert len(Account("people", Cap("rho", UNIT)).sums) == 1
    assert len(Account("people", cap(4, None, Fraction(0))).sums) == 1


def test_sentences_name_the_sum_that_decides():
    pure, plain = (
        charged(Account("people", cap(4)), pure_release(1)),
        "a plain sum of pure epsilons",
    )
    price = price_against(pure_release(1), pure.cap)
    said = taken_words(price.units, pure, pure=price.pure, parent=None)
    spent = f"epsilon 1 of 4 at delta 1e-6, counted as {plain}, has been spent on dataset people"
    assert said.startswith(f"this release uses 25 % of the budget; {spent} up to")
    assert counted_words(pure, price).endswith(f"counted as {plain}")
    assert counted_words(pure, price_against(gaussian_release(1), pure.cap)).endswith("mu^2 of GDP")
    assert "mu^2 1.517911190741958631 of 0.70200729683239637 and, as all releases are pure, " + (
        "epsilon 1 of 4 (which decides) has been spent"
    ) in exact_words(pure, parent=None)
    of_old = exact_words(pure, parent=None, of_sums=False)  # statements of old plans keep it
    assert "pure" not in of_old
    mixed = charged(pure, gaussian_release("0.1"))
    assert exact_words(mixed, parent=None) == exact_words(mixed, parent=None, of_sums=False)


def refusal(account, spent):
    with pytest.raises(NoRoomError) as caught:
        check_funds(Funds(account), price_against(spent, account.cap))
    return caught.value


def test_a_refusal_names_the_sum_that_was_closest_and_its_digits():
    pure = charged(Account("people", cap(4)), pure_release(1), pure_release(1))
    other = refusal(pure, gaussian_release(1))
    assert "counted as mu^2 of GDP: only Laplace noise does" in str(other)
    assert other.exactly == "mu^2 0.056028963825260677 where 0 of 0.70200729683239637 is left"
    more = refusal(pure, pure_release("2.5"))
    assert "needs 1.3 times what is left of the budget of epsilon 4 at delta 1e-6, counted as" in (
        str(more)
    )
    assert "a plain sum of pure epsilons;" in str(more)
    assert more.exactly.endswith(" is left or epsilon 2.5 where 2 of 4 is left")
    full = charged(pure, pure_release(2))
    assert "pure" not in str(refusal(full, gaussian_release(1)))


def test_a_refused_release_has_exact_digits_on_request(town):
    refused = run("release", "data.csv", "--epsilon", "5")
    exact = run("release", "data.csv", "--epsilon", "5", "--exact")
    assert refused.code == exact.code
    assert "exactly" not in refused.err
    assert exact.err.replace("; exactly: epsilon 5 where 4 of 4 is left", "") == refused.err


def test_the_end_of_what_can_be_asked_for_is_not_said_to_be_the_budgets():
    rich = Funds(Account("people", cap("1e6", None, Fraction(0))))
    room = rich.room_for(lambda at: price_against(pure_release(at), rich.account.cap), epsilon=1000)
    assert (room.repetitions, room.largest, room.limited) == (1000, Fraction(10**6), False)
    assert room_words(room, "more").endswith(
        "at any epsilon that can be asked for (up to about 1e6)"
    )

    def drawn_to(most):
        def price_at(epsilon):
            if epsilon > most:
                raise accounting.SpecError("noise of that scale cannot be drawn")
            return price_against(pure_release(epsilon), rich.account.cap)

        return rich.room_for(price_at, epsilon=Fraction(1))

    assert (drawn_to(183_400).largest, drawn_to(183_400).limited) == (183_000, False)
    poor = Funds(charged(rich.account, pure_release(817_000)))
    room = poor.room_for(lambda at: price_against(pure_release(at), poor.account.cap), epsilon=1000)
    assert (room.largest, room.limited) == (183_000, True)
    assert room_words(room, "more").endswith("183 more fit what is left, or one at epsilon 183000")


def test_a_run_is_given_up_by_the_characters_that_a_status_shows(ledger_path):
    with opened(ledger_path) as ledger:
        key = release(ledger, "plain", pure_release("0.5"), finish=False)
    (shown,) = re.findall(r"dpquery ledger abandon ([0-9a-f]+)\n", ok("ledger", "status").out)
    assert len(shown) == 12
    assert json.loads(ok("ledger", "status", "--json").out)[2]["unfinished"] == [key]
    assert run("ledger", "abandon", shown[:-1]).code == 5
    assert f"abandoned {key};" in run("ledger", "abandon", shown).err
    assert "abandon" not in ok("ledger", "status").out
    assert run("ledger", "abandon", shown).code == 5


def test_a_beginning_of_several_keys_gives_none_up(ledger_path):
    keys = [f"{'ab' * 8}{last * 48}" for last in "01"]
    with opened(ledger_path) as ledger:
        for key in keys:
            release(ledger, "plain", pure_release("0.5"), finish=False, key=key)
        with pytest.raises(PlanConflictError, match="2 unfinished runs"):
            ledger.abandon("ab" * 8)
        assert ledger.abandon(keys[0][:20]) == keys[0]
        assert ledger.abandon("ab" * 8) == keys[1]  # the other one is not unfinished any more


# No adaptive adversary gets more than the cap.

ORDERS = 1 + np.geomspace(1e-4, 1e4, 400)


@pytest.mark.parametrize("accounting", ["zcdp", "gdp"])
def test_no_adversary_reaches_more_than_delta(accounting):
    account = fresh_account(accounting)
    assert (
        0 < worst_delta(account, Account.admits, Account.charged, steps=4) <= float(DELTA_OF_SUMS)
    )


def test_the_mechanisms_are_what_they_are_charged_for():
    for coin in COINS:
        p, q = np.array(coin.p), np.array(coin.q)
        rho, squared_mu = (charge_units(coin.spent, sum_of) / UNIT for sum_of in ("rho", "mu^2"))
        for a, b in ((p, q), (q, p)):
            terms = np.outer(ORDERS - 1, np.log(a / b)) + np.log(a)
            divergence = logsumexp(terms, axis=1) / (ORDERS - 1)
            assert (divergence <= ORDERS * rho * (1 + 1e-9)).all()
            order = np.argsort(-a / b)  # the corners of the trade-off curve
            power, level = np.cumsum(a[order])[:-1], np.cumsum(b[order])[:-1]
            mu = math.sqrt(squared_mu)
            assert (norm.ppf(power) - norm.ppf(level) <= mu * (1 + 1e-9)).all()
        if coin.spent.kind == "pure":
            assert np.abs(np.log(p / q)).max() <= coin.spent.amount * (1 + 1e-9)
    assert np.abs(np.log(np.array(COINS[3].p) / COINS[3].q)).max() > EPSILON_OF_SUMS


def forgets_that_a_release_was_not_pure(account, units, pure):
    return replace(account.charged(units, 0), pure=account.pure + (pure or 0))


def counts_the_pure_apart(account, units, pure):
    """Each kind fills a sum of its own."""
    return replace(
        account.charged(units if pure is None else 0, 0), pure=account.pure + (pure or 0)
    )


def never_mind_the_pure_sum(account, units, pure):
    return pure is not None or units <= account.remaining


@pytest.mark.parametrize("accounting", ["zcdp", "gdp"])
@pytest.mark.parametrize(
    ("admits", "charged"),
    [
        (Account.admits, forgets_that_a_release_was_not_pure),
        (Account.admits, counts_the_pure_apart),
        (never_mind_the_pure_sum, Account.charged),
    ],
)
def test_a_wrong_filter_is_caught(accounting, admits, charged):
    assert worst_delta(fresh_account(accounting), admits, charged, steps=3) > 1.2 * float(
        DELTA_OF_SUMS
    )


def test_the_guarantee_on_record_is_the_one_that_was_priced(path):
    pure = Price(UNIT, CAP.currency, CAP.unit, UNIT // 2)
    found = replace(pure, pure=None, threshold=Fraction(1, 7))
    wrong = [(found, {}), (found, {"threshold": "1/9"}), (pure, {}), (pure, {"zcdp": "1/2"})]
    wrong += [(pure, {"pure": "1"}), (pure, {"pure": "1/2", "zcdp": "1"})]
    with opened(path) as ledger, ledger.hold("k"):
        for price, native in wrong:
            with pytest.raises(ValueError, match="guarantee"):
                ledger.reserve("people", key="k", price=price, native=native, details={})
    assert spent(path) == 0
