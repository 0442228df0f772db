"""What is published beside the estimates: intervals, units, repetitions, tables that agree."""

import hashlib
import json
import re
import shutil
import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ledgers import opened
from pinned import DIGESTS, GOLDEN, digests, make_releases, pinned, rows_of, surroundings
from town import ok, refused

from dpquery.measurement.accounting import UNIT, charge_units, guarantee
from dpquery.measurement.gdp import squared_mu_of

LAPLACE = np.log(20) / np.sqrt(2)
"""Half of a 95 % interval of one Laplace draw over its standard deviation; a normal one: 1.96."""
SPEC = """\
dataset: {id: published, version: 1}
privacy: {unit: {person: id, max_rows: 2}, delta: 1e-6}
budget: {epsilon: 100, delta: 1e-6}
other: drop
domain: {region: {values: [N, S, W]}, age: {range: [0, 9]}}
about: {title: Town, area: The valley, period: In spring}
workload:
  - {name: people, product: {region: identity}}
  - {name: ages, product: {age: identity}}
derived:
  - {name: rates, rate: {of: people, population: population.csv, per: 1000}}
"""


@pytest.fixture
def planned(own_folder):
    Path("population.csv").write_text("region,population\nN,5000\nS,20000\nW,300\n")
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(900)},{rng.choice(list('NSW'))},{rng.integers(10)}" for _ in range(999)]
    Path("data.csv").write_text("id,region,age\n" + "\n".join(rows) + "\n")
    Path("workload.yaml").write_text(SPEC)
    ok("plan", "workload.yaml", "--time-limit", "0")


def release(number, noise):
    out = f"r{number}"
    ok("release", "data.csv", "--epsilon", "1", "--noise", noise, "--out", out,
       "--release-number", number)  # fmt: skip
    return Path(out)


def widths(table):
    """Half of each interval over the standard error of its row."""
    return (table["ci_high"] - table["ci_low"]) / 2 / table["std_error"]


def table(folder, item):
    return pd.read_parquet(folder / f"{item}.parquet")


@pytest.mark.nightly(daily="laplace")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_a_rate_has_the_interval_of_its_count(planned, noise):
    folder = release(1, noise)
    people, rates = table(folder, "people"), table(folder, "rates")
    scale = 1000 / np.array([5000, 20000, 300])
    for column in ("estimate", "ci_low", "ci_high"):
        off = np.abs(rates[column] - people[column] * scale)
        assert (off <= 0.02 * people["std_error"] * scale).all(), column
    assert rates["std_error"].tolist() == pytest.approx((people["std_error"] * scale).tolist())


def test_a_difference_between_releases_is_as_wide_as_the_heavier_tail_asks(planned):
    release(1, "gaussian"), release(2, "laplace")
    Path("change.yaml").write_text(
        "derived: [{name: change, difference: {of: people, release: r2}}]\n"
    )
    ok("answer", "r1", "change.yaml", "--out", "change")
    assert widths(table(Path("change"), "change")).min() >= LAPLACE * (1 - 1e-6)


def test_where_laplace_rows_are_too_many_the_heaviest_tail_stands_for_all(planned, monkeypatch):
    monkeypatch.setattr("dpquery.reconstruction.derived.MAX_UNITS", 0)
    assert widths(table(release(1, "laplace"), "rates")).min() >= LAPLACE * (1 - 1e-6)


def test_a_package_names_the_unit_the_area_and_the_period_of_the_spec(planned):
    release(1, "gaussian")
    ok("package", "r1", "--out", "package")
    described = json.loads(Path("package/datapackage.json").read_text())
    manifest = json.loads(Path("r1/release.json").read_text())
    assert described["privacy"]["unit"] == manifest["privacy"]["unit"] != "row"
    sections = re.split(r"^#+ (S[.0-9]*) ", Path("package/quality.md").read_text(), flags=re.M)
    said = dict(zip(sections[1::2], sections[2::2], strict=True))
    named = {number for number, text in said.items() if "In spring" in text}
    assert {number for number, text in said.items() if "The valley" in text} == {"S.3.7"}
    assert named == {"S.3.8", "S.5"}


PANEL = """\
dataset: {{id: {name}, version: 1, parent: {{id: panel, budget: {{epsilon: 3}}}}}}
privacy: {{unit: row}}
budget: {{epsilon: 3}}
domain: {{sex: {{values: [F, M]}}}}
workload: [{{name: people, product: {{sex: identity}}}}]
"""


def test_as_many_more_releases_fit_as_is_said_where_a_parent_has_less_left(own_folder):
    Path("data.csv").write_text("sex\nF\nM\n")
    for name in ("spring", "autumn"):
        Path(f"{name}.yaml").write_text(PANEL.format(name=name))
        ok("plan", f"{name}.yaml", "--out", f"{name}.plan")
    said = {}
    for name, epsilon, number in (("spring", "1.5", 1), ("autumn", "0.5", 1)):
        said = json.loads(released(name, epsilon, number).out)
    more = said["budget"]["more_like_it"]
    assert more == 2  # of 3 the parent has 1 left, the dataset 2.5
    for number in range(2, 2 + more):
        released("autumn", "0.5", number)
    refused(*asked("autumn", "0.5", 2 + more), code=3)


def asked(name, epsilon, number):
    return ("release", "data.csv", "--plan", f"{name}.plan", "--epsilon", epsilon, "--out",
            f"{name}{number}", "--release-number", number, "--json")  # fmt: skip


def released(name, epsilon, number):
    return ok(*asked(name, epsilon, number))


INTERCHANGEABLE = """\
dataset: {id: areas}
privacy: {unit: row, delta: 1e-9}
budget: {epsilon: 100, delta: 1e-9}
other: drop
domain: {area: {range: [0, 5]}, age: {range: [0, 7]}, sex: {values: [F, M]}}
workload:
  - {name: areas, product: {area: identity, sex: identity+total}}
  - {name: ages, product: {area: {groups: {n: [[0, 1]], s: [[2, 5]]}}, age: identity,
     sex: identity+total}}
  - {name: bands, product: {area: identity, age: {groups: {a: [[0, 2]], b: [[3, 7]]}}}}
  - {name: sexes, product: {sex: identity+total}}
derived:
  - {name: of_areas, difference: {of: areas, between: {sex: [M, F]}}}
  - {name: of_ages, difference: {of: ages, between: {sex: [M, F]}}}
  - {name: of_sexes, difference: {of: sexes, between: {sex: [M, F]}}}
"""


def test_a_difference_and_a_total_of_two_rows_have_the_errors_of_one_covariance(
    own_folder, monkeypatch
):
    """Var(M - F) + Var(M + F) = 2 Var(M) + 2 Var(F), whatever the strategy."""
    monkeypatch.setattr("dpquery.strategy.search.candidates.FEW_CELLS", 1)
    Path("data.csv").write_text("area,age,sex\n1,2,F\n")
    Path("workload.yaml").write_text(INTERCHANGEABLE)
    chosen = json.loads(ok("plan", "workload.yaml", "--json", "--time-limit", "3").out)["chosen"]
    assert chosen["strategy"] == "OPT_S"
    folder = release(1, "gaussian")
    for item, others in (("areas", ["area"]), ("ages", ["area", "age"]), ("sexes", [])):
        rows = table(folder, item)
        error = {sex: own.reset_index()["std_error"] for sex, own in rows.groupby("sex")}
        expected = 2 * error["M"] ** 2 + 2 * error["F"] ** 2 - error["all"] ** 2
        apart = table(folder, f"of_{item}")["std_error"] ** 2
        assert apart.tolist() == pytest.approx(expected.tolist(), rel=1e-6), others


AGREEING = """\
dataset: {id: agreeing}
privacy: {unit: row, delta: 1e-6}
budget: {epsilon: 1000, delta: 1e-6}
other: drop
domain: {a: {values: [x, y]}, b: {values: [x, y, z]}, c: {values: [x, y]}, d: {values: [x, y]}}
workload:
  - {name: abc, product: {a: identity, b: identity, c: identity}, weight: 1000}
  - {name: abd, product: {a: identity, b: identity, d: identity}}
"""


@pytest.fixture
def apart(own_folder, monkeypatch):
    """A planned folder whose tables are fitted by their components, not as one joint table."""
    monkeypatch.setattr("dpquery.reconstruction.joint_counts.MAX_JOINT_COUNTS", 0)
    rng = np.random.default_rng(1)  # half of the cells are empty, all margins of one attribute full
    drawn = [(a, "xyz"[rng.integers(3)]) for a in rng.choice(["x", "y"], 900)]
    Path("data.csv").write_text("a,b,c,d\n" + "".join(f"{a},{b},{a},{a}\n" for a, b in drawn))
    Path("workload.yaml").write_text(AGREEING)
    ok("plan", "workload.yaml")


def consistent():
    ok("release", "data.csv", "--epsilon", "1", "--also", "consistent", "--out", "r")
    return {item: table(Path("r"), item) for item in ("abc", "abd")}


@pytest.mark.nightly
def test_tables_too_many_for_one_joint_table_have_the_estimated_total_after_any_steps(
    apart, monkeypatch
):
    monkeypatch.setattr("dpquery.reconstruction.agreeing_tables.AGREEING_STEPS", 1)
    tables = consistent()
    for own in tables.values():
        assert own["consistent"].sum() == pytest.approx(tables["abc"]["estimate"].sum(), rel=1e-6)


# A release made again is free and has the bytes that it had, whatever was moved or renamed.


@pytest.fixture(scope="module", params=["linear", pytest.param("rap", marks=pytest.mark.nightly)])
def golden(tmp_path_factory, request):
    """The digests on record of a kind, and the ledger before and after it was made again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("golden"))
        known = json.loads(DIGESTS.read_text())
        for form in ("pinned", "bytes"):
            known[form] = {
                file: one for file, one in known[form].items() if file.startswith(request.param)
            }
        yield known, make_releases(request.param)


def test_releases_that_the_ledger_holds_are_made_again_without_a_charge_or_the_data(golden):
    before, after = golden[1]
    assert [len(rows) for rows in before] == [5, 2]
    assert after == before


def test_releases_made_again_hold_what_they_held(golden):
    assert digests(pinned) == golden[0]["pinned"]


def test_releases_made_again_have_the_bytes_that_they_had(golden):
    if surroundings() != golden[0]["made on"]:
        pytest.skip("other libraries or another arithmetic than the bytes were made with")
    assert digests(Path.read_bytes) == golden[0]["bytes"]


# A ledger of long ago in mu^2 of GDP opens, verifies and goes on, to the last unit.
#
# `golden/ledger_gdp.sql` is what dpquery 0.1.0 wrote, with fixed values in place of noise: a
# dataset with a parent, a release with Gaussian noise, and one with Laplace noise that was
# interrupted and abandoned. `golden/plan_gdp.json` is the plan they were made by.


GAUSSIAN, LAPLACE_EVENT = 56028963825260677, 389241966475395527
"""What the two releases were charged, in units of 1e-18."""
CAPS = {"town": 1431143912411619847, "town-2026": 702007296832396370}
CSV = b"age,sex\n0,F\n1,M\n4,F\n"
TABLE = "f29c16dce5fb54a71b0dd04bcb31418a04acbe1d5247bee5c4dcefd40e575b7a"
"""Of what its table holds."""


@pytest.fixture
def ledger(own_folder):
    """The ledger, beside the plan, in the working directory."""
    shutil.copy(GOLDEN / "plan_gdp.json", "dpquery.plan")
    Path("town.csv").write_bytes(CSV)
    path = own_folder / "state" / "ledger.db"
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(path)) as database:
        database.executescript((GOLDEN / "ledger_gdp.sql").read_text())
    path.chmod(0o600)
    return path


def accounts(path):
    with opened(path) as ledger:
        return {status.account.dataset: status.account for status in ledger.status()}


def test_it_verifies_and_says_what_it_said(ledger):
    with opened(ledger) as record:
        assert record.verify().seq == 7
    for name, account in accounts(ledger).items():
        assert (account.cap.currency, account.cap.units) == ("mu^2", CAPS[name])
        assert (account.spent, account.pure) == (GAUSSIAN + LAPLACE_EVENT, None)
    assert accounts(ledger)["town-2026"].parent == "town"


def test_caps_and_charges_are_worked_out_to_the_same_units_now():
    promise = {"delta": Fraction("1e-6"), "accounting": "gdp"}
    for name, epsilon in (("town", 6), ("town-2026", 4)):
        assert squared_mu_of(Fraction(epsilon), promise["delta"]) * UNIT == CAPS[name]
    gaussian = guarantee("gaussian", epsilon=Fraction(1), **promise)
    laplace = guarantee("laplace", epsilon=Fraction(1, 2), **promise)
    assert charge_units(gaussian, "mu^2") == GAUSSIAN
    assert charge_units(laplace, "mu^2") == LAPLACE_EVENT


def test_the_release_is_made_again_for_free_without_the_data(ledger):
    before = rows_of(ledger)
    release = "release none.csv --epsilon 1 --noise gaussian --out again"
    ok(*release.split(), "--ledger", ledger)
    assert rows_of(ledger) == before
    table = pinned(Path("again", "age_by_sex.parquet"))
    assert hashlib.sha256(table).hexdigest() == TABLE


def test_it_goes_on_at_the_charges_of_before(ledger):
    release = ["release", "town.csv", "--ledger"]
    laplace = ["--epsilon", "0.5", "--noise", "laplace", "--out", "laplace"]
    # What is abandoned stays spent, and is paid again.
    assert CAPS["town-2026"] < GAUSSIAN + 2 * LAPLACE_EVENT
    assert "the budget of epsilon 4 at delta 1e-6" in refused(*release, ledger, *laplace, code=3)
    ok(
        *release,
        ledger,
        *["--epsilon", "1", "--release-number", "2", "--noise", "gaussian", "--out", "more"],
    )
    spent = 2 * GAUSSIAN + LAPLACE_EVENT
    assert {account.spent for account in accounts(ledger).values()} == {spent}
    with opened(ledger) as record:
        assert record.verify().seq == 9
