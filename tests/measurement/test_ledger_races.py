"""Commands that run at once never pass a cap, are charged once each, and never lose a charge."""

import json
from pathlib import Path

import pytest
from town import SPEC, Done, contents, kinds, ok, run, spent, start

from dpquery.exceptions import BudgetExceededError, PlanConflictError
from dpquery.measurement import curator

REAL = pytest.mark.parametrize(
    "real",
    [pytest.param(False, id="forked"), pytest.param(True, id="started", marks=pytest.mark.slow)],
)


def race(forks, commands, *, real=False):
    """Run commands at once: forked from a warm process, or each started from nothing."""
    if real:
        runs = [start(*command) for command in commands]
        said = [run.communicate(timeout=600) for run in runs]  # together, on a machine that is busy
        return [Done(run.returncode, *texts) for run, texts in zip(runs, said, strict=True)]
    folder = Path.cwd()
    environment = {"DPQUERY_LEDGER": str(folder / "state" / "ledger.db")}
    jobs = [
        {"folder": folder, "arguments": command, "environment": environment} for command in commands
    ]
    return forks.run(*jobs, together=True)


def release(number, epsilon="0.4", out=None):
    arguments = ["release", "data.csv", "--epsilon", epsilon, "--release-number", str(number)]
    return [*arguments, "--out", out or f"r{number}"]


@REAL
def test_of_24_releases_at_once_for_a_budget_of_ten_ten_succeed(town, forks, real, record_property):
    done = race(forks, [release(number) for number in range(1, 25)], real=real)
    codes = [ended.code for ended in done]
    assert sorted(codes) == [0] * 10 + [BudgetExceededError.exit_code] * 14, done
    assert spent() == "4"
    assert sorted(kinds()) == ["commit"] * 10 + ["register"] + ["reserve"] * 10
    there = [Path(f"r{number}").exists() for number in range(1, 25)]
    assert there == [code == 0 for code in codes]
    assert "ok: 10 releases in the chain" in ok("ledger", "verify", "--releases", ".").out
    assert all(
        "what is left" in ended.err or "nothing is left" in ended.err
        for ended in done
        if ended.code
    )
    record_property("races", len(done))


def test_six_twins_are_one_charge_and_the_same_bytes(town, forks, record_property):
    folders = ["a", "b", "c", "d", "same", "same"]
    done = race(forks, [release(1, "1", out) for out in folders])
    assert [ended.code for ended in done] == [0] * 6, done
    assert kinds() == ["register", "reserve", "commit"]
    assert spent() == "1"
    first, *others = (contents(out) for out in set(folders))
    assert all(other == first for other in others)
    assert sum("nothing was charged" in ended.err for ended in done) == 5
    record_property("races", len(done))


def test_plans_at_once_make_one_ledger_with_every_dataset_once(
    tmp_path, forks, monkeypatch, record_property
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    for number in range(4):
        Path(f"w{number}.yaml").write_text(SPEC.replace("id: town", f"id: town-{number % 2}"))
    commands = [["plan", f"w{i}.yaml", "--out", f"p{i}"] for i in range(4)]
    done = race(forks, commands)
    assert [ended.code for ended in done] == [0] * 4, done
    assert kinds() == ["register"] * 2
    names = {account["dataset"] for account in json.loads(ok("ledger", "status", "--json").out)}
    assert names == {"town-0", "town-1"}
    record_property("races", len(done))


def test_of_two_caps_declared_at_once_one_is_on_record_and_the_other_is_told(
    tmp_path, forks, monkeypatch, record_property
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    caps = ("3", "5", "3", "5")
    for number, cap in enumerate(caps):
        Path(f"w{number}.yaml").write_text(SPEC.replace("{epsilon: 4}", f"{{epsilon: {cap}}}"))
    done = race(forks, [["plan", f"w{i}.yaml", "--out", f"p{i}"] for i in range(4)])
    assert sorted(ended.code for ended in done) == [0, 0] + [PlanConflictError.exit_code] * 2, done
    (status,) = json.loads(ok("ledger", "status", "--json").out)
    for cap, ended in zip(caps, done, strict=True):
        assert (ended.code == 0) == (status["cap"] == cap)
    assert kinds() == ["register"]
    record_property("races", len(done))


def test_a_cap_changed_while_releases_run_is_kept_to_at_every_charge(town, forks, record_property):
    Path("more.yaml").write_text(SPEC.replace("{epsilon: 4}", "{epsilon: 2}"))
    lower = ["plan", "more.yaml", "--change-cap", "--out", "lower.plan"]
    done = race(forks, [*(release(number) for number in range(1, 9)), lower])
    assert done[-1].code == 0
    cap = 4.0
    total = 0.0
    for event in json.loads(ok("ledger", "history", "--json").out):
        if event["kind"] == "change-cap":
            cap = int(event["units"]) / 1e18
        elif event["kind"] == "reserve":
            total += int(event["units"]) / 1e18
            assert total <= cap + 1e-9
    assert sum(ended.code == 0 for ended in done[:-1]) == round(total / 0.4)
    record_property("races", len(done))


@pytest.mark.parametrize(
    ("kept", "changed"),
    [("{epsilon: 4}", "{rho: 4}"), ("{rho: 4}", "{epsilon: 4}"), ("add-remove", "replace")],
)
def test_a_charge_worked_out_for_another_cap_than_the_one_on_record_is_refused(
    town, monkeypatch, kept, changed
):
    now = SPEC.replace("{epsilon: 4}", kept) if kept[0] == "{" else SPEC
    Path("workload.yaml").write_text(now)
    ok("plan", "workload.yaml", "--change-cap")
    Path("changed.yaml").write_text(now.replace(kept, changed))
    checked = curator.check_header

    def meanwhile(*arguments):
        checked(*arguments)
        ok("plan", "changed.yaml", "--change-cap", "--out", "changed.plan")

    with monkeypatch.context() as patch:
        patch.setattr(curator, "check_header", meanwhile)
        done = run(*release(1, "0.1"))
    assert done.code == PlanConflictError.exit_code, done
    assert "changed meanwhile; run the command again" in " ".join(done.err.split())
    assert "reserve" not in kinds()
    assert spent() == "0"
    assert not Path("r1").exists()


def test_readers_are_never_in_the_way_and_always_see_a_sound_chain(town, forks, record_property):
    readers = [["ledger", "verify"], ["ledger", "status", "--json"], ["ledger", "export"]]
    commands = [command for number in range(1, 5) for command in (release(number), *readers)]
    done = race(forks, commands)
    assert [ended.code for ended in done] == [0] * len(commands), done
    assert spent() == "1.6"
    record_property("races", len(done))


def test_a_twin_of_a_killed_run_waits_and_then_goes_on_with_its_reservation(
    town, forks, record_property
):
    """The kernel lets go of the killed run's lock: no stale lock is left to be removed by hand."""
    job = {"folder": Path.cwd(), "arguments": release(1, "1")}
    job["environment"] = {"DPQUERY_LEDGER": str(Path("state/ledger.db").absolute())}
    dies = "import dpquery.measurement.curator as own, os, signal\n"
    dies += "def die(*_, **__):\n    os.kill(os.getpid(), signal.SIGKILL)\nown.tabulate = die\n"
    other = job | {"arguments": release(1, "1", "b")}
    done = forks.run(job | {"before": dies}, job, other, together=True)
    assert sorted(ended.code for ended in done) == [-9, 0, 0] or done[0].code == 0, done
    assert spent() == "1"
    assert kinds().count("reserve") == kinds().count("commit") == 1
    assert contents("r1") == contents("b")
    record_property("races", len(done))
