"""What losses are added up as: said by the first plan, kept by the record, carried by releases."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from specs import unhashed
from town import CSV, GAUSSIAN_SPEC, ok, refused

from dpquery.measurement.accounting import UNIT, Guarantee, budget_cap, charge_units, guarantee
from dpquery.measurement.gdp import epsilon_of_gdp, squared_mu_of
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.plan_file.plan import plan_and_spec, read_plan
from dpquery.spec.spec import Budget, Dataset, Parent, Privacy

SPEC = GAUSSIAN_SPEC.replace("neighbours: replace", "neighbours: add-remove")
OPEN = "budget: {epsilon: 4, delta: 1e-6}"
EPSILON, DELTA = Fraction(1), Fraction(1, 10**6)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("people.csv").write_bytes(CSV)
    return tmp_path


def planned(*options, budget="{epsilon: 4, delta: 1e-6}", parent="", name="town"):
    spec = SPEC.replace("{epsilon: 4, delta: 1e-6}", budget).replace(", version: 1", parent)
    spec = spec.replace("id: town", f"id: {name}")
    Path("workload.yaml").write_text(spec)
    quick = ("--epsilon", 1, "--time-limit", 0, "--why")
    return ok("plan", "workload.yaml", *quick, *options).out


def currencies():
    with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
        accounts = [status.account for status in ledger.status()]
    return {account.dataset: account.cap.currency for account in accounts}


def released(noise, out="release", epsilon=1):
    ok("release", "people.csv", "--epsilon", epsilon, "--noise", noise, "--out", out)
    return json.loads(Path(out, "release.json").read_text())


def test_a_plan_with_gaussian_noise_counts_in_gdp_and_takes_the_noise_of_the_curve(
    folder,
):
    said = planned()
    assert "losses are added up as mu^2 of GDP: the plan prefers Gaussian noise" in " ".join(
        said.split()
    )
    assert currencies() == {"town": "mu^2"}
    made = released("gaussian")
    promise, noise = made["guarantee"], made["noise"]
    assert (promise["kind"], promise["mechanism"]) == ("gdp", "rounded Gaussian")
    assert promise["rho"] is None
    squared = squared_mu_of(EPSILON, DELTA)
    assert promise["mu"] == pytest.approx(math.sqrt(squared))
    assert Fraction(promise["charged"]) == squared
    exact = Fraction(int(noise["sensitivity"])) / Fraction(noise["scale"]) ** 2
    assert squared * (1 - Fraction(1, 10**12)) < exact <= squared
    statement = Path("release/statement.md").read_text()
    assert "of Gaussian differential privacy, rounded Gaussian noise)" in statement
    assert "normal noise rounded to a whole number" in " ".join(statement.split())
    with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
        (status,) = ledger.status()
        assert status.account.spent == squared * UNIT
        assert status.account.pure is None
    again = ok("release", "people.csv", "--epsilon", 1, "--noise", "gaussian")
    assert "nothing was charged" in again.err
    ok("error-report")
    ok("answer", "release", "workload.yaml", "--out", "answers")


@pytest.mark.nightly
def test_what_plan_says_of_the_errors_is_what_the_release_has(folder):
    planned()
    figures = json.loads(ok("plan", "workload.yaml", "--epsilon", 1, "--json").out)
    (gaussian,) = [one for one in figures["selections"] if one["noise"] == "gaussian"]
    (best,) = [one for one in gaussian["candidates"] if one["name"] == gaussian["best"]]
    assert released("gaussian")["strategy"]["rmse"] == pytest.approx(best["rmse"], rel=1e-6)
    squared = squared_mu_of(EPSILON, DELTA) / squared_mu_of(Fraction(4), DELTA)
    assert gaussian["budget_share"] == pytest.approx(float(squared))


def test_the_spec_overrules_the_choice(folder):
    said = planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    assert "losses are added up" not in said
    assert currencies() == {"town": "rho"}
    assert "accounting" not in json.loads(Path("dpquery.plan").read_text())
    assert released("gaussian")["guarantee"]["kind"] == "zcdp"
    assert "mu" not in json.loads(Path("release/release.json").read_text())["guarantee"]
    Path("workload.yaml").write_text(SPEC.replace(OPEN, OPEN[:-1] + ", accounting: gdp}"))
    message = refused("plan", "workload.yaml", "--change-cap", code=5)
    assert "charged in rho" in message


def test_a_record_in_epsilon_takes_laplace_noise_alone(folder):
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: pure}")
    assert currencies() == {"town": "epsilon"}
    plan, _ = plan_and_spec(Path("dpquery.plan").read_bytes(), Path("dpquery.plan"))
    assert [one.noise for one in plan.selections] == ["laplace"]


def test_a_dataset_on_record_keeps_its_currency(folder):
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    released("gaussian", out="before")
    said = planned()
    assert "losses are added up as rho of zCDP: town is on record so" in " ".join(said.split())
    assert read_plan(Path("dpquery.plan").read_bytes()).accounting == "zcdp"
    assert currencies() == {"town": "rho"}
    assert released("gaussian")["guarantee"]["mechanism"] == "discrete Gaussian"


PARENT = ", parent: {id: panel, budget: {epsilon: 8, delta: 1e-6}}"


@pytest.mark.parametrize("parent", ["", PARENT], ids=["alone", "with a parent"])
def test_a_dataset_that_was_not_charged_moves_to_what_the_next_plan_says(folder, parent):
    """To and fro, its parent and that one's other datasets with it, at caps worked out anew."""
    family = {"town"}
    if parent:
        planned(parent=parent, name="other")
        family = {"town", "other", "panel"}
    for accounting, currency in (("zcdp", "rho"), ("gdp", "mu^2"), ("zcdp", "rho")):
        fixed = f"{{epsilon: 4, delta: 1e-6, accounting: {accounting}}}"
        planned("--new-dataset", budget=fixed, parent=parent)
        assert currencies() == dict.fromkeys(family, currency)
        with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
            caps = {one.account.dataset: one.account.cap for one in ledger.status()}
        for name in family:
            promise = Budget(epsilon=Fraction(8 if name == "panel" else 4), delta=DELTA)
            budget = replace(promise, accounting=accounting)
            assert caps[name].units == budget_cap(budget, Privacy()).units
    said = planned(parent=parent)
    assert "mu^2 of GDP: the plan prefers Gaussian noise" in " ".join(said.split())
    assert currencies() == dict.fromkeys(family, "mu^2")
    released("gaussian")
    fixed = "{epsilon: 4, delta: 1e-6, accounting: zcdp}"
    Path("workload.yaml").write_text(
        Path("workload.yaml").read_text().replace("{epsilon: 4, delta: 1e-6}", fixed)
    )
    refused("plan", "workload.yaml", code=5)


def test_a_plan_looks_at_the_ledger_once_before_it_searches(folder, monkeypatch):
    opened, real = [], Ledger.open.__func__

    def counting(cls, path, *, create, **terms):
        opened.append(create)
        return real(cls, path, create=create, **terms)

    monkeypatch.setattr(Ledger, "open", classmethod(counting))
    planned()
    assert opened == [True, True]  # what registration would say, and registration
    opened.clear()
    planned()
    assert opened == [False, True, True]  # what is on record


@pytest.mark.nightly
def test_a_dataset_takes_the_currency_of_its_parent(folder):
    parent = ", parent: {id: panel, budget: {epsilon: 8, delta: 1e-6}}"
    planned(parent=parent)
    assert currencies() == {"panel": "mu^2", "town": "mu^2"}
    Path("state/ledger.db").rename("elsewhere.db")
    planned(parent=parent.replace("1e-6}", "1e-6, accounting: zcdp}"))
    assert currencies() == {"panel": "rho", "town": "rho"}


@pytest.mark.nightly
def test_a_release_in_gdp_is_charged_half_of_mu_squared_where_rho_adds_up(folder):
    planned()
    first = {name: Path(name).read_bytes() for name in ("dpquery.plan", "workload.yaml")}
    Path("state/ledger.db").rename("elsewhere.db")
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    for name, content in first.items():
        Path(name).write_bytes(content)
    assert released("gaussian")["guarantee"]["kind"] == "gdp"
    with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
        assert ledger.status()[0].account.spent == math.ceil(
            squared_mu_of(EPSILON, DELTA) * UNIT / 2
        )


def test_a_release_in_rho_is_refused_where_mu_squared_adds_up(folder):
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    content = Path("dpquery.plan").read_bytes()
    Path("state/ledger.db").rename("elsewhere.db")
    planned()
    Path("dpquery.plan").write_bytes(content)
    message = refused("release", "people.csv", "--epsilon", 1, "--noise", "gaussian", code=3)
    assert "run `dpquery plan` again" in message
    assert "accounting: zcdp" in message


@pytest.mark.nightly
def test_laplace_noise_is_charged_its_own_mu_and_fills_the_epsilon(folder):
    planned()
    for number in (1, 2, 3, 4):
        fresh = "release people.csv --epsilon 1 --noise laplace --replace --release-number"
        ok(*fresh.split(), number)
    with Ledger.open(Path("state/ledger.db"), create=False) as ledger:
        (status,) = ledger.status()
        assert status.account.pure == 4 * UNIT
    fifth = "release people.csv --epsilon 0.01 --noise laplace --release-number 5 --out fifth"
    assert "nothing is left" in refused(*fifth.split(), code=3)


def test_a_plan_that_counts_in_two_ways_is_refused(folder):
    planned(budget="{epsilon: 4, delta: 1e-6, accounting: zcdp}")
    raw = unhashed(Path("dpquery.plan").read_text())
    raw["accounting"] = "gdp"
    Path("dpquery.plan").write_text(json.dumps(raw, indent=1))
    assert "two ways" in refused("release", "people.csv", "--epsilon", 1, code=2)


def test_amounts_of_one_kind_are_charged_in_the_others_only_as_far_as_is_proven():
    gdp = guarantee("gaussian", epsilon=EPSILON, delta=DELTA, accounting="gdp")
    assert charge_units(gdp, "mu^2") == gdp.amount * UNIT
    assert charge_units(gdp, "rho") == math.ceil(gdp.amount * UNIT / 2)
    assert float(epsilon_of_gdp(gdp.amount, DELTA)) == pytest.approx(1.0)
    pure = Guarantee("pure", EPSILON, EPSILON, Fraction(0))
    assert charge_units(pure, "mu^2") == pytest.approx(1.51791119 * UNIT)


def test_budgets_agree_on_what_is_added_up():
    open_one, rho = Budget(epsilon=EPSILON, delta=DELTA), Budget(rho=EPSILON)
    assert (open_one.fixed, open_one.counted) == (None, "zcdp")
    assert (rho.fixed, Budget(epsilon=EPSILON).fixed) == ("zcdp", "pure")
    assert Dataset("a", "1", parent=Parent("b", rho)).parent.budget.fixed == "zcdp"
