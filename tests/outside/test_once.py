"""A budget is one budget: what begins another one is said, and what is charged is charged once."""

import json
from pathlib import Path

import pytest
from cli_support import run

import dpquery
from dpquery.exceptions import PlanConflictError

SPEC = """\
dataset: {{id: {name}}}
privacy: {{unit: row}}
budget: {{epsilon: 10}}
domain:
  x: {{values: [a, b]}}
workload:
  - {{name: t, product: {{x: identity}}}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of one's own with a ledger, which `plan` makes, and some records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("d.csv").write_text("x\n" + "a\nb\na\n" * 20)
    return tmp_path


def planned(name, *options, file="s.yaml", out="dpquery.plan", parent=""):
    """Plan for a dataset of some id."""
    spec = SPEC.format(name=name + (f", parent: {parent}" if parent else ""))
    Path(file).write_text(spec)
    return run("plan", file, "--out", out, "--time-limit", 1, *options)


def on_record():
    done = run("ledger", "status", "--json")
    assert done.code == 0
    return sorted(account["dataset"] for account in json.loads(done.out))


@pytest.mark.parametrize("name", ["clinc", "clinics", "clniic", "Clinic", "cli-nic", "clinik"])
def test_an_id_like_one_on_record_is_refused(here, name):
    assert planned("clinic").code == 0
    done = planned(name, file="other.yaml", out="other.plan")
    assert (done.code, done.out, Path("other.plan").exists()) == (5, "", False)
    assert f"'{name}'" in done.err
    assert "'clinic'" in done.err
    assert "--new-dataset" in done.err
    assert on_record() == ["clinic"]
    assert planned(name, "--new-dataset", file="other.yaml", out="other.plan").code == 0
    assert on_record() == sorted(["clinic", name])
    assert planned(name, file="other.yaml", out="other.plan").code == 0  # on record by now


@pytest.mark.parametrize("name", ["clinic-2024", "clinic-2", "school", "clinic-2023-4"])
def test_a_new_dataset_is_announced_in_one_line(here, name):
    said = planned("clinic-2023").err.splitlines()
    assert sum("clinic-2023 is new" in line for line in said) == 1
    assert "is new" not in planned("clinic-2023").err
    said = planned(name, file="other.yaml", out="other.plan")
    assert said.code == 0
    assert sum(f"{name} is new" in line for line in said.err.splitlines()) == 1


def test_a_parent_is_a_budget_too(here):
    assert planned("wave-1", parent="{id: panel, budget: {epsilon: 10}}").code == 0
    typed = "{id: panell, budget: {epsilon: 10}}"
    refused = planned("wave-2", file="b.yaml", out="b.plan", parent=typed)
    assert (refused.code, on_record()) == (5, ["panel", "wave-1"])
    assert "'panel'" in refused.err
    own = planned("panel-a", file="c.yaml", out="c.plan", parent=typed.replace("ll", "l"))
    assert own.code == 0  # its charges are charged to the parent that it is named after


def test_a_spec_that_gets_another_id_is_no_new_dataset(here):
    assert planned("clinic").code == 0
    renamed = planned("hospital")
    assert (renamed.code, on_record()) == (5, ["clinic"])
    assert "'clinic'" in renamed.err
    assert planned("hospital", file="h.yaml", out="h.plan").code == 0


def test_the_function_refuses_and_announces_as_the_command_does(here):
    assert planned("hospital").code == 0
    Path("other.yaml").write_text(SPEC.format(name="hospitl"))
    with pytest.raises(PlanConflictError, match="--new-dataset"):
        dpquery.plan("other.yaml", plan_path="other.plan", time_limit=1)
    report = dpquery.plan("other.yaml", plan_path="other.plan", time_limit=1, new_dataset=True)
    assert report.new == ("hospitl",)


def release(number, out="release"):
    return ["release", "d.csv", "--epsilon", "1", "--release-number", str(number), "--out", out]


def spent():
    """The numbers of the releases that were charged, in order."""
    events = json.loads(run("ledger", "history", "--json").out)
    return [event["details"]["release"] for event in events if event["kind"] == "reserve"]


def test_of_releases_at_once_into_one_folder_one_is_charged(here, forks):
    assert planned("ops").code == 0
    environment = {"DPQUERY_LEDGER": str(here / "state" / "ledger.db")}
    jobs = [
        {"folder": here, "arguments": release(number), "environment": environment}
        for number in (1, 2, 3, 4)
    ]
    done = forks.run(*jobs, together=True)
    assert sorted(ended.code for ended in done) == [0, 5, 5, 5]
    assert len(spent()) == 1
    assert run("ledger", "verify", "--releases", "release").code == 0
    assert all("another --out" not in ended.err for ended in done)  # nobody else has paid


def test_a_refused_folder_says_that_what_was_paid_for_is_free_elsewhere(here):
    assert planned("ops").code == 0
    assert run(*release(1)).code == 0
    assert run(*release(2, "second")).code == 0
    refused = run(*release(2))
    assert refused.code == 5
    assert "the same command with another --out is free" in refused.err
    unpaid = run(*release(3))
    assert unpaid.code == 5
    assert "is free" not in unpaid.err
    assert run(*release(2, "third")).code == 0
    assert spent() == [1, 2]
    first, again = (Path(name, "t.parquet").read_bytes() for name in ("second", "third"))
    assert first == again


def test_a_charge_that_is_refused_leaves_no_folder(here):
    assert planned("ops").code == 0
    done = run("release", "d.csv", "--epsilon", 11, "--out", "deep/er/release")
    assert done.code == 3
    assert not Path("deep").exists()
    assert run("release", "none.csv", "--epsilon", 1, "--out", "deep/er/release").code == 6
    assert not Path("deep").exists()
    assert spent() == []
