"""A release made again is free and has the bytes that it had, whatever was moved or renamed."""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest
from ledgers import opened
from pinned import DIGESTS, GOLDEN, digests, make_releases, pinned, rows_of, surroundings
from town import ok, refused

from dpquery.measurement.accounting import UNIT, charge_units, guarantee
from dpquery.measurement.gdp import squared_mu_of


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The digests on record, and the ledger before and after the releases were made again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("golden"))
        yield json.loads(DIGESTS.read_text()), make_releases()


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


GAUSSIAN, LAPLACE = 56028963825260677, 389241966475395527
"""What the two releases were charged, in units of 1e-18."""
CAPS = {"town": 1431143912411619847, "town-2026": 702007296832396370}
CSV = b"age,sex\n0,F\n1,M\n4,F\n"
TABLE = "f29c16dce5fb54a71b0dd04bcb31418a04acbe1d5247bee5c4dcefd40e575b7a"
"""Of what its table holds."""


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """The ledger, beside the plan, in the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN / "plan_gdp.json", "dpquery.plan")
    Path("town.csv").write_bytes(CSV)
    path = tmp_path / "state" / "ledger.db"
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
        assert (account.spent, account.pure) == (GAUSSIAN + LAPLACE, None)
    assert accounts(ledger)["town-2026"].parent == "town"


def test_caps_and_charges_are_worked_out_to_the_same_units_now():
    promise = {"delta": Fraction("1e-6"), "accounting": "gdp"}
    for name, epsilon in (("town", 6), ("town-2026", 4)):
        assert squared_mu_of(Fraction(epsilon), promise["delta"]) * UNIT == CAPS[name]
    gaussian = guarantee("gaussian", epsilon=Fraction(1), **promise)
    laplace = guarantee("laplace", epsilon=Fraction(1, 2), **promise)
    assert charge_units(gaussian, "mu^2") == GAUSSIAN
    assert charge_units(laplace, "mu^2") == LAPLACE


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
    assert CAPS["town-2026"] < GAUSSIAN + 2 * LAPLACE
    assert "the budget of epsilon 4 at delta 1e-6" in refused(*release, ledger, *laplace, code=3)
    ok(
        *release,
        ledger,
        *["--epsilon", "1", "--release-number", "2", "--noise", "gaussian", "--out", "more"],
    )
    spent = 2 * GAUSSIAN + LAPLACE
    assert {account.spent for account in accounts(ledger).values()} == {spent}
    with opened(ledger) as record:
        assert record.verify().seq == 9
