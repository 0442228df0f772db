"""What is said of a ledger: both sums where two count, in lines that fit a terminal."""

import json
import re
from fractions import Fraction
from hashlib import sha256

import numpy as np
import pytest
from ledgers import opened
from town import ok, run

from dpquery.cli.show_comparison import counted_words
from dpquery.exceptions import PlanConflictError
from dpquery.measurement import accounting
from dpquery.measurement.accounting import UNIT, Cap, budget_cap
from dpquery.measurement.ledger.caps import NoRoomError, ParentCap, check_funds
from dpquery.measurement.ledger.events import Account
from dpquery.measurement.ledger.funds import Funds, price_against
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.releases.budget_words import exact_words, room_words, taken_words
from dpquery.spec.spec import Budget, Privacy

DELTA = Fraction("1e-6")
COUNTED = {"gdp": "mu^2", "zcdp": "rho"}
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def cap(epsilon, kind="gdp", delta=DELTA):
    return budget_cap(Budget(Fraction(epsilon), delta, accounting=kind), Privacy(delta=delta))


def laplace(epsilon):
    return accounting.guarantee("laplace", epsilon=Fraction(epsilon), delta=Fraction(0))


def gaussian(epsilon, kind="gdp"):
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
    *(("labour-force-2024", laplace(1)), ("census", gaussian("0.3", "zcdp"))),
    *(("plain", laplace("0.5")), ("wave-1", gaussian(1)), ("wave-2", gaussian("2.9"))),
    *(("rho-only", laplace("0.1")), ("labour-force-2024", laplace(1)), ("plain", laplace("0.5"))),
    *(("census", laplace("0.01")), ("wave-1", gaussian("1.3")), ("rho-only", laplace("0.1"))),
    ("labour-force-2024", laplace(1)),
)


@pytest.fixture
def ledger_path(tmp_path, monkeypatch):
    """The ledger of an office, of every currency, with a panel; the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "state" / "ledger.db"
    monkeypatch.setenv("DPQUERY_LEDGER", str(path))
    panel = ParentCap("panel", cap(4))
    with Ledger.open(path, create=True) as ledger:
        ledger.register("labour-force-2024", cap(4))
        ledger.register("census", cap(2, "zcdp"))
        ledger.register("plain", cap(3, None, Fraction(0)))
        ledger.register("rho-only", Cap("rho", UNIT // 2))
        ledger.register("wave-1", cap(4), parent=panel)
        ledger.register("wave-2", cap(4), parent=panel)
    return path


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


def test_a_long_name_is_broken_on_a_narrow_terminal_and_nothing_is_cut(ledger_path, monkeypatch):
    name = "a-register-of-everything-that-was-ever-counted-2024"
    with opened(ledger_path) as ledger:
        ledger.register(name, cap(4))
        release(ledger, name, laplace("0.3"))
    monkeypatch.setenv("COLUMNS", "80")
    shown = ESCAPES.sub("", run("ledger", "status", terminal=True).out)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    assert "[#.......] 7.5 %  epsilon 3.7 of 4" in shown


@pytest.mark.parametrize("kind", ["gdp", "zcdp"])
def test_both_sums_are_said_while_all_releases_are_pure_and_which_one_decides(ledger_path, kind):
    with opened(ledger_path) as ledger:
        ledger.register("people", cap(4, kind))
        release(ledger, "people", laplace(1))
        release(ledger, "people", laplace(1))
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
    little = charged(fresh, laplace("0.1"))
    assert (little.decisive.currency, little.by_epsilons) == ("mu^2", False)
    much = charged(fresh, laplace(1))
    assert (much.decisive.currency, much.by_epsilons) == ("epsilon", True)
    assert much.decisive.share == much.share_spent
    mixed = charged(little, gaussian("0.1"))
    assert [one.currency for one in mixed.sums] == ["mu^2"]
    assert mixed.decisive.share == mixed.share_spent
    assert len(Account("people", Cap("rho", UNIT)).sums) == 1
    assert len(Account("people", cap(4, None, Fraction(0))).sums) == 1


def test_sentences_name_the_sum_that_decides():
    pure, plain = charged(Account("people", cap(4)), laplace(1)), "a plain sum of pure epsilons"
    price = price_against(laplace(1), pure.cap)
    said = taken_words(price.units, pure, pure=price.pure, parent=None)
    assert f"epsilon 1 of 4 at delta 1e-06, counted as {plain} (25 %)" in said
    assert counted_words(pure, price).endswith(f"counted as {plain}")
    assert counted_words(pure, price_against(gaussian(1), pure.cap)).endswith("mu^2 of GDP")
    assert "mu^2 1.517911190741958631 of 0.70200729683239637 and, as all releases are pure, " + (
        "epsilon 1 of 4 (which decides) has been spent"
    ) in exact_words(pure, parent=None)
    of_old = exact_words(pure, parent=None, of_sums=False)  # statements of old plans keep it
    assert "pure" not in of_old
    mixed = charged(pure, gaussian("0.1"))
    assert exact_words(mixed, parent=None) == exact_words(mixed, parent=None, of_sums=False)


def refusal(account, spent):
    with pytest.raises(NoRoomError) as caught:
        check_funds(Funds(account), price_against(spent, account.cap))
    return caught.value


def test_a_refusal_names_the_sum_that_was_closest_and_its_digits():
    pure = charged(Account("people", cap(4)), laplace(1), laplace(1))
    other = refusal(pure, gaussian(1))
    assert "counted as mu^2 of GDP, but for pure releases (Laplace noise)" in str(other)
    assert other.exactly == "mu^2 0.056028963825260677 where 0 of 0.70200729683239637 is left"
    more = refusal(pure, laplace("2.5"))
    assert "needs 1.3 times what is left of the budget of epsilon 4 at delta 1e-06, counted as" in (
        str(more)
    )
    assert "a plain sum of pure epsilons;" in str(more)
    assert more.exactly.endswith(" is left or epsilon 2.5 where 2 of 4 is left")
    full = charged(pure, laplace(2))
    assert "pure" not in str(refusal(full, gaussian(1)))


def test_a_refused_release_has_exact_digits_on_request(ledger_path, town_of_two):
    refused = run("release", "data.csv", "--epsilon", "5")
    exact = run("release", "data.csv", "--epsilon", "5", "--exact")
    assert refused.code == exact.code
    assert "exactly" not in refused.err
    assert exact.err.replace("; exactly: epsilon 5 where 4 of 4 is left", "") == refused.err


@pytest.fixture
def town_of_two(ledger_path):
    """A plan and data in the working directory."""
    with open("workload.yaml", "w") as file:
        file.write(
            "dataset: {id: town}\nprivacy: {unit: row}\nbudget: {epsilon: 4}\n"
            "domain: {sex: {values: [F, M]}}\n"
            "workload: [{name: sexes, product: {sex: identity}}]\n"
        )
    with open("data.csv", "w") as file:
        file.write("sex\nF\nM\n")
    ok("plan", "workload.yaml", "--time-limit", "0")


def test_the_end_of_what_can_be_asked_for_is_not_said_to_be_the_budgets():
    rich = Funds(Account("people", cap("1e6", None, Fraction(0))))
    room = rich.room_for(lambda at: price_against(laplace(at), rich.account.cap), epsilon=1000)
    assert (room.repetitions, room.largest, room.limited) == (1000, Fraction(10**6), False)
    assert room_words(room, "more").endswith(
        "at any epsilon that can be asked for (up to about 1e+06)"
    )

    def drawn_to(most):
        def price_at(epsilon):
            if epsilon > most:
                raise accounting.SpecError("noise of that scale cannot be drawn")
            return price_against(laplace(epsilon), rich.account.cap)

        return rich.room_for(price_at, epsilon=Fraction(1))

    assert (drawn_to(183_400).largest, drawn_to(183_400).limited) == (183_000, False)
    poor = Funds(charged(rich.account, laplace(817_000)))
    room = poor.room_for(lambda at: price_against(laplace(at), poor.account.cap), epsilon=1000)
    assert (room.largest, room.limited) == (183_000, True)
    assert room_words(room, "more").endswith("183 more fit what is left, or one at epsilon 183000")


def test_a_run_is_given_up_by_the_characters_that_a_status_shows(ledger_path):
    with opened(ledger_path) as ledger:
        key = release(ledger, "plain", laplace("0.5"), finish=False)
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
            release(ledger, "plain", laplace("0.5"), finish=False, key=key)
        with pytest.raises(PlanConflictError, match="2 unfinished runs"):
            ledger.abandon("ab" * 8)
        assert ledger.abandon(keys[0][:20]) == keys[0]
        assert ledger.abandon("ab" * 8) == keys[1]  # the other one is not unfinished any more
