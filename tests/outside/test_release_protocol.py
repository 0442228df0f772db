"""A release is charged once and is whole or not there, however and whenever its run ends."""

import json
import os
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from town import CSV, SPEC, contents, ok, refused, renew, run, spent

EARLIER = ("release", "data.csv", "--epsilon", "0.5")
LATER = ("release", "data.csv", "--epsilon", "1", "--replace")

CURATOR = "dpquery.measurement.curator"


@pytest.fixture
def released(town):
    """A town whose folder `release` holds an earlier release."""
    ok(*EARLIER)
    return town


def is_whole(folder="release"):
    """Whether a folder holds all files of its manifest, readable, and the ledger knows it."""
    manifest = json.loads(Path(folder, "release.json").read_text())
    assert "ok" in ok("ledger", "verify", "--releases", folder).out
    for item in manifest["items"]:
        assert pq.read_table(Path(folder, item["file"])).num_rows == item["queries"]
    ok("error-report", folder)
    return manifest


def test_tables_too_large_to_count_are_refused_before_the_charge(town, monkeypatch):
    monkeypatch.setattr("dpquery.measurement.counting.tables.MAX_COUNTED_CELLS", 1)
    assert "the limit is 1" in refused(*EARLIER, code=2)
    assert spent() == "0"


def test_a_release_killed_four_times_is_given_up_and_anew_is_paid_anew(town, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"{CURATOR}.tabulate", interrupted)
        assert [run(*LATER).code for _ in range(4)] == [130] * 4
    given_up = run(*LATER)
    assert given_up.code == 3
    assert "ledger abandon" in given_up.err
    assert spent() == "1"
    (key,) = json.loads(ok("ledger", "status", "--json").out)[0]["unfinished"]
    ok("ledger", "abandon", key)
    ok(*LATER)
    assert spent() == "2"


def test_a_release_names_what_drew_its_noise_and_goes_on_naming_it(town, monkeypatch):
    ok(*EARLIER)
    with monkeypatch.context() as patch:
        patch.setattr("dpquery.measurement.noise.exact_noise.BULK_ABOVE", 0)
        ok(*LATER, "--out", "bulk")
        ok(*EARLIER, "--out", "again")
    for folder, name in (("release", f"OpenDP {version('opendp')}"), ("bulk", "the bulk sampler")):
        source = is_whole(folder)["noise"]["source"]
        assert source.startswith(name)
        assert f"comes from {source}," in Path(folder, "statement.md").read_text()
    ok(*LATER, "--out", "bulk_again")
    assert contents("again") == contents("release")
    assert contents("bulk_again") == contents("bulk")


def test_another_release_number_draws_fresh_noise_and_pays(released):
    ok(*EARLIER, "--release-number", "2", "--out", "second")
    assert spent() == "1"
    first, second = (
        pq.read_table(Path(name, "pairs.parquet")).column("estimate").to_pylist()
        for name in ("release", "second")
    )
    assert sum(a != b for a, b in zip(first, second, strict=True)) > len(first) / 2


def test_the_data_are_copied_elsewhere_and_nothing_of_either_place_is_published(released):
    elsewhere = Path("quite_another_place")
    elsewhere.mkdir()
    copy = elsewhere / "renamed.csv"
    copy.write_bytes(Path("data.csv").read_bytes())
    os.utime(copy, (1, 1))
    ok("release", copy, "--epsilon", "0.5", "--out", "again")
    ok("error-report", "again", "--html", "again.html")
    assert contents("again") == contents("release")
    traces = {"data.csv", "renamed.csv", "quite_another", str(released)}
    traces |= {str(Path.home())} - {"/"}
    # Shorter names turn up in noise by chance.
    traces |= {name for name in (os.uname().nodename, os.environ.get("USER", "")) if len(name) > 4}
    published = contents("again") | {
        "report": Path("again.html").read_bytes(),
        "plan": Path("dpquery.plan").read_bytes(),
        "ledger": ok("ledger", "export").out.encode(),
    }
    for name, content in published.items():
        assert not [trace for trace in traces if trace.encode() in content], name


def test_the_same_release_on_another_ledger_is_other_noise_of_the_same_size(
    town, planned_town, tmp_path
):
    ok(*EARLIER)
    renew(tmp_path / "other", planned_town)
    ok(*EARLIER, "--ledger", tmp_path / "other/state/ledger.db", "--out", "other")
    first, second = (
        {name: pq.read_table(Path(folder, name)) for name in ("ages.parquet", "pairs.parquet")}
        for folder in ("release", "other")
    )
    for name, table in first.items():
        assert table.column("std_error") == second[name].column("std_error")
        assert table.column("estimate") != second[name].column("estimate")


def test_the_ledger_on_disk_holds_the_noisy_measurement_and_public_facts_only(released):
    with closing(sqlite3.connect("state/ledger.db")) as database:
        tables = {
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
    assert tables == {"events", "measurements"}
    allowed = {"seq", "hash", "previous", "kind", "day", "dataset", "key", "units", "native"}
    allowed |= {"details", "sha256", "size", "currency", "epsilon", "delta", "unit", "source"}
    for line in ok("ledger", "export").out.splitlines():
        assert set(json.loads(line)) <= allowed


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("place", "noise"),
    [("town", "laplace"), ("gaussian_town", "laplace"), ("gaussian_town", "gaussian")],
)
def test_plan_manifest_statement_and_error_table_tell_the_same_errors(place, noise, request):
    request.getfixturevalue(place)
    arguments = ("--epsilon", "0.7")
    planned = json.loads(ok("plan", "workload.yaml", "--json", *arguments).out)
    released = json.loads(ok("release", "data.csv", "--json", "--noise", noise, *arguments).out)
    manifest = is_whole()
    (best,) = [selection for selection in planned["selections"] if selection["noise"] == noise]
    assert (released["noise"], released["strategy"]) == (noise, best["best"])
    errors = {row["item"]: row for row in pq.read_table("release/errors.parquet").to_pylist()}
    assert list(errors) == [item["name"] for item in best["items"]]
    for item in best["items"]:
        error = errors[item["name"]]
        table = pq.read_table(f"release/{item['name']}.parquet").column("std_error").to_numpy()
        assert error["queries"] == item["queries"] == len(table)
        assert error["rmse"] == pytest.approx(item["rmse"], rel=1e-6)
        assert error["rmse"] == pytest.approx((table**2).mean() ** 0.5, rel=1e-6)
        assert error["max_std_error"] == pytest.approx(item["max_std_error"], rel=1e-6)
        assert error["max_std_error"] == table.max()
    total = sum(error["queries"] * error["rmse"] ** 2 for error in errors.values())
    count = sum(error["queries"] for error in errors.values())
    assert released["rmse"] == pytest.approx((total / count) ** 0.5, rel=1e-6)
    (figures,) = [line for line in best["candidates"] if line["name"] == best["best"]]
    assert (
        manifest["strategy"]["rmse"]
        == released["rmse"]
        == pytest.approx(figures["rmse"], rel=1e-12)
    )
    ratio = figures["weighted_rmse"] / best["bound_rmse"]
    assert manifest["strategy"]["ratio"] == pytest.approx(ratio, rel=1e-12)
    assert manifest["strategy"]["max_std_error"] == pytest.approx(
        figures["max_std_error"], rel=1e-12
    )
    assert manifest["strategy"]["lower_bound"] == best["bound_rmse"]
    guarantee = manifest["guarantee"]
    statement = Path("release/statement.md").read_text()
    assert f"ε = {guarantee['epsilon']:g}" in statement
    assert guarantee["mechanism"] in statement
    assert guarantee["cumulative"] in statement
    if guarantee["kind"] == "zcdp" or released["currency"] == "epsilon":
        assert guarantee["charged"] == released["spent"]
    assert manifest["ledger"]["head"] in statement


# The commands tell of both caps, and none charges a dataset without its parent.


WAVES = {
    name: SPEC.replace(
        "{id: town, version: 1}", f"{{id: {name}, parent: {{id: panel, budget: {{epsilon: 3}}}}}}"
    )
    for name in ("wave-1", "wave-2")
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "waves"
    folder.mkdir()
    (folder / "data.csv").write_bytes(CSV)
    for name, spec in WAVES.items():
        (folder / f"{name}.yaml").write_text(spec)
        ledger = ("--ledger", folder / "state" / "ledger.db")
        ok("plan", folder / f"{name}.yaml", "--out", folder / f"{name}.plan", *ledger)
    return folder


@pytest.fixture
def waves(planned, move_in):
    """Two waves of a panel, planned; the working directory."""
    move_in(planned)


def publish(name, epsilon, *more):
    plan = ("--plan", f"{name}.plan", "--out", name)
    return ("release", "data.csv", *plan, "--epsilon", epsilon, *more)


def test_a_release_is_refused_and_told_by_both_caps_and_free_when_made_again(waves):
    first = ok(*publish("wave-1", "2.5"))
    assert first.out.rstrip().endswith(
        "budget: this release uses 83 % of the budget of panel; epsilon 2.5 of 4 (62 %) has been "
        "spent on dataset wave-1 up to this release, and epsilon 2.5 of 3 (83 %) on all datasets "
        "of panel together\n"
        "after it: none fits what is left for all datasets of panel together, but one at epsilon "
        "0.5 does\n"
        "not told here: whether the file is whole and its records fit the spec; dpquery check "
        "tells\n"
        "next: dpquery error-report wave-1 (how reliable each number is), then dpquery package "
        "wave-1 (to hand over)"
    )
    written = contents("wave-1")
    manifest = json.loads(written["release.json"])
    assert manifest["ledger"]["parent"] == "panel"
    sentence = manifest["guarantee"]["cumulative"]
    assert sentence in first.out
    assert sentence in written["statement.md"].decode()

    message = refused(*publish("wave-2", "1"), code=3)
    assert (
        "needs 2 times what is left of the budget of epsilon 3 of its parent 'panel', for all of "
        "its datasets together; the largest that still fits is --epsilon 0.5 --noise laplace; "
        "nothing was charged" in message
    )
    done = json.loads(ok(*publish("wave-2", "0.5", "--json")).out)
    assert (done["spent"], done["cap"]) == ("0.5", "4")
    assert done["parent"] == {"dataset": "panel", "spent": "3", "cap": "3"}
    # The first one again: free, and what it says of the parent is what it said.
    ok(*publish("wave-1", "2.5"))
    assert contents("wave-1") == written

    status = json.loads(ok("ledger", "status", "--json").out)
    assert [(account["dataset"], account["parent"], account["spent"]) for account in status] == [
        ("panel", None, "3"),
        ("wave-1", "panel", "2.5"),
        ("wave-2", "panel", "0.5"),
    ]
    assert "parent" in ok("ledger", "status").out
    assert "wave-2 of panel" in ok("ledger", "history").out
    exported = [json.loads(line) for line in ok("ledger", "export").out.splitlines()]
    assert [event["parent"] for event in exported if event["kind"] == "reserve"] == ["panel"] * 2
    assert "ok: 9 events" in ok("ledger", "verify", "--releases", "wave-1").out


def test_a_plan_of_another_ledger_is_not_charged_without_the_parent_it_names(waves):
    Path("alone.yaml").write_text(SPEC.replace("id: town", "id: wave-1"))
    other = ("--ledger", "other/ledger.db")
    ok("plan", "alone.yaml", "--out", "alone.plan", *other)
    message = refused(*publish("wave-1", "1", *other), code=5)
    assert "on record with no parent and the spec names 'panel'; run `dpquery plan`" in message
    # The other way round both are charged.
    ok("release", "data.csv", "--plan", "alone.plan", "--out", "out", "--epsilon", "1")
    assert {account["spent"] for account in json.loads(ok("ledger", "status", "--json").out)} == {
        "0",
        "1",
    }
