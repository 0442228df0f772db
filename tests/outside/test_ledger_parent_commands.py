"""The commands tell of both caps, and none charges a dataset without its parent."""

import json
from pathlib import Path

import pytest
from town import CSV, SPEC, contents, ok, refused, renew

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
def waves(planned, tmp_path, monkeypatch):
    """Two waves of a panel, planned; the working directory."""
    renew(tmp_path / "waves", planned)
    monkeypatch.chdir(tmp_path / "waves")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "waves" / "state" / "ledger.db"))


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


@pytest.mark.nightly
def test_plan_refuses_what_the_record_contradicts_with_a_remedy(waves):
    spec = WAVES["wave-1"]
    for changed, code, words in (
        (spec.replace("id: panel", "id: others"), 5, "restore the parent in the spec"),
        (SPEC.replace("id: town", "id: wave-1"), 5, "restore the parent in the spec"),
        (spec.replace("{epsilon: 3}", "{epsilon: 5}"), 5, "--change-cap"),
        (spec.replace("{epsilon: 3}", "{rho: 5}"), 2, "charged to both"),
        (spec.replace("id: panel", "id: wave-1"), 2, "its own parent"),
        (
            spec.replace("id: wave-1", "id: part").replace("panel", "wave-2"),
            5,
            "'wave-2' cannot be",
        ),
        (spec.replace("add-remove", "replace").replace("wave-1", "wave-3"), 5, "losses of d"),
    ):
        Path("changed.yaml").write_text(changed)
        message = refused("plan", "changed.yaml", "--out", "changed.plan", code=code)
        assert words in message
    Path("changed.yaml").write_text(spec.replace("{epsilon: 3}", "{epsilon: 5}"))
    ok("plan", "changed.yaml", "--out", "changed.plan", "--change-cap")
    assert json.loads(ok("ledger", "status", "--json").out)[0]["cap"] == "5"


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


@pytest.mark.nightly
def test_a_parent_changes_no_key_so_that_what_was_measured_before_stays_free(waves):
    Path("alone.yaml").write_text(SPEC.replace("id: town", "id: early"))
    ok("plan", "alone.yaml", "--out", "early.plan")
    ok(*publish("early", "1"))
    under = WAVES["wave-1"].replace("id: wave-1", "id: early")
    Path("alone.yaml").write_text(under)
    refused("plan", "alone.yaml", "--out", "early.plan", code=5)
    ok("plan", "alone.yaml", "--out", "early.plan", "--change-cap")
    before = json.loads(ok("ledger", "status", "--json").out)
    assert [account["spent"] for account in before] == ["1", "0", "0", "1"]
    ok(*publish("early", "1", "--replace"))
    assert json.loads(ok("ledger", "status", "--json").out) == before


@pytest.mark.nightly
def test_a_plan_says_what_a_release_takes_of_the_smaller_cap(waves):
    def share(*settings):
        return ok("plan", "wave-1.yaml", "--out", "x.plan", "--why", *settings).out

    shown = share()
    assert "uses 33 % of the budget of panel (epsilon 3); 3 of them fit what is left" in shown
    assert "every release is charged to panel as well" in shown
    beyond = share("--epsilon", "3.5")
    assert "would use 117 % of the budget of panel (epsilon 3); none fits" in beyond
    assert "together, but one at epsilon 3 does" in beyond
