"""Runs at once never pass a cap or lose a charge, and releases testify to what was charged."""

import json
import shutil
from pathlib import Path

import pytest
from town import ANY_PLAN, SPEC, Done, contents, kinds, ok, refused, renew, run, spent, start

from dpquery.exceptions import BudgetExceededError, LedgerError, PlanConflictError, SpecError
from dpquery.measurement import curator
from dpquery.measurement.ledger.events import Event, Head
from dpquery.measurement.ledger.ledger import missing_event, named_event, releases_below

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


def release_command(number, epsilon="0.4", out=None):
    arguments = ["release", "data.csv", "--epsilon", epsilon, "--release-number", str(number)]
    return [*arguments, "--out", out or f"r{number}"]


@REAL
def test_of_24_releases_at_once_for_a_budget_of_ten_ten_succeed(town, forks, real, record_property):
    done = race(forks, [release_command(number) for number in range(1, 25)], real=real)
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
    done = race(forks, [release_command(1, "1", out) for out in folders])
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
    commands = [[*ANY_PLAN, f"w{i}.yaml", "--out", f"p{i}"] for i in range(4)]
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
    done = race(forks, [[*ANY_PLAN, f"w{i}.yaml", "--out", f"p{i}"] for i in range(4)])
    assert sorted(ended.code for ended in done) == [0, 0] + [PlanConflictError.exit_code] * 2, done
    (status,) = json.loads(ok("ledger", "status", "--json").out)
    for cap, ended in zip(caps, done, strict=True):
        assert (ended.code == 0) == (status["cap"] == cap)
    assert kinds() == ["register"]
    record_property("races", len(done))


def test_a_cap_changed_while_releases_run_is_kept_to_at_every_charge(town, forks, record_property):
    Path("more.yaml").write_text(SPEC.replace("{epsilon: 4}", "{epsilon: 2}"))
    lower = [*ANY_PLAN, "more.yaml", "--change-cap", "--out", "lower.plan"]
    done = race(forks, [*(release_command(number) for number in range(1, 9)), lower])
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
    ok(*ANY_PLAN, "workload.yaml", "--change-cap")
    Path("changed.yaml").write_text(now.replace(kept, changed))
    checked = curator.check_header

    def meanwhile(*arguments):
        checked(*arguments)
        ok(*ANY_PLAN, "changed.yaml", "--change-cap", "--out", "changed.plan")

    with monkeypatch.context() as patch:
        patch.setattr(curator, "check_header", meanwhile)
        done = run(*release_command(1, "0.1"))
    assert done.code == PlanConflictError.exit_code, done
    assert "changed meanwhile; run the command again" in " ".join(done.err.split())
    assert "reserve" not in kinds()
    assert spent() == "0"
    assert not Path("r1").exists()


def test_readers_are_never_in_the_way_and_always_see_a_sound_chain(town, forks, record_property):
    readers = [["ledger", "verify"], ["ledger", "status", "--json"], ["ledger", "export"]]
    commands = [
        command for number in range(1, 5) for command in (release_command(number), *readers)
    ]
    done = race(forks, commands)
    assert [ended.code for ended in done] == [0] * len(commands), done
    assert spent() == "1.6"
    record_property("races", len(done))


def test_a_twin_of_a_killed_run_waits_and_then_goes_on_with_its_reservation(
    town, forks, record_property
):
    """The kernel lets go of the killed run's lock: no stale lock is left to be removed by hand."""
    job = {"folder": Path.cwd(), "arguments": release_command(1, "1")}
    job["environment"] = {"DPQUERY_LEDGER": str(Path("state/ledger.db").absolute())}
    dies = "import dpquery.measurement.curator as own, os, signal\n"
    dies += "def die(*_, **__):\n    os.kill(os.getpid(), signal.SIGKILL)\nown.tabulate = die\n"
    other = job | {"arguments": release_command(1, "1", "b")}
    done = forks.run(job | {"before": dies}, job, other, together=True)
    assert sorted(ended.code for ended in done) == [-9, 0, 0] or done[0].code == 0, done
    assert spent() == "1"
    assert kinds().count("reserve") == kinds().count("commit") == 1
    assert contents("r1") == contents("b")
    record_property("races", len(done))


RELEASE = ("release", "data.csv", "--epsilon", "0.5")


@pytest.fixture
def restored(town, planned_town):
    """A town whose release is charged, and whose ledger was then replaced by an older copy."""
    ok(*RELEASE)
    renew("state", planned_town / "state")
    return town


@pytest.mark.parametrize(
    "arguments",
    [RELEASE, (*RELEASE, "--release-number", "2", "--replace"), (*RELEASE[:-1], "1", "--replace")],
    ids=["the same release", "another number", "another epsilon"],
)
def test_a_release_that_the_ledger_does_not_know_is_never_replaced(restored, arguments):
    said = refused(*arguments, code=4)
    assert "ends at event 1" in said
    assert "an older copy" in said
    assert "move the folder away" in said
    assert "nothing was charged" in said
    assert kinds() == ["register"]


def test_a_ledger_made_anew_does_not_replace_what_the_lost_one_paid_for(town):
    ok(*RELEASE)
    shutil.rmtree("state")
    assert "and there is no ledger" in refused("plan", "workload.yaml", code=4)
    said = ok("plan", "workload.yaml", "--new-dataset").err
    assert "is a new ledger, in which nothing has been spent" in said
    assert "another ledger" in refused(*RELEASE, code=4)
    Path("release").rename("kept")  # on purpose: the witness is still there
    ok(*RELEASE)
    assert "kept" in refused("ledger", "verify", "--releases", ".", code=4)


def test_a_release_of_another_ledger_is_not_replaced_on_the_say_so_of_a_flag(town, planned_town):
    ok(*RELEASE)
    renew("other", planned_town / "state")
    ok(*RELEASE, "--ledger", "other/ledger.db", "--out", "another")
    before = contents("release")
    said = refused(*RELEASE, "--ledger", "other/ledger.db", "--replace", code=4)
    assert "two copies" in said
    assert contents("release") == before
    ok(*RELEASE, "--replace")


def test_two_copies_that_were_both_charged_are_told_by_their_releases(town):
    shutil.copytree("state", "copied")
    ok(*RELEASE, "--out", "out/here")
    ok(*RELEASE, "--ledger", "copied/ledger.db", "--out", "out/there/deep")
    for ledger, mine, other in (("state", "here", "there"), ("copied", "there", "here")):
        arguments = ("ledger", "verify", "--ledger", f"{ledger}/ledger.db", "--releases")
        assert "1 release in the chain" in ok(*arguments, f"out/{mine}").out
        said = refused(*arguments, "out", code=4)
        assert f"release out/{other}" in said
        assert "whose event 3 is another one: two copies of a ledger have been charged" in said


def test_every_release_below_a_folder_is_looked_up_and_all_that_are_missing_are_named(restored):
    shutil.copytree("release", "all/a")
    shutil.copytree("release", "all/deep/er/b")
    ok(*RELEASE, "--out", "all/deep/c")
    ok("ledger", "verify", "--releases", "all/deep/c")
    said = refused("ledger", "verify", "--releases", "all", code=4)
    assert [name in said for name in ("all/a ", "all/deep/er/b ", "all/deep/c ")] == [1, 1, 0]
    assert "restore the ledger that was charged" in said


def test_answers_testify_like_the_release_they_were_made_of(town, planned_town):
    ok(*RELEASE)
    questions = "workload:\n  - name: sexes\n    product: {sex: identity}\n"
    Path("questions.yaml").write_text(questions)
    ok("answer", "release", "questions.yaml", "--out", "answers")
    assert "2 releases in the chain" in ok("ledger", "verify", "--releases", ".").out
    renew("state", planned_town / "state")
    assert "answers" in refused("ledger", "verify", "--releases", "answers", code=4)


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "7", "{}", '{"ledger": 7}', '{"ledger": {"seq": "x", "head": 1}}'),
        *('{"ledger": {"seq": 1}}', "[" * 100_000, '{"ledger": {"seq": 1e999, "head": ""}}'),
        '{"ledger": {"seq": ' + "9" * 5000 + ', "head": ""}}',
    ],
)
def test_a_manifest_that_names_no_event_is_no_witness(town, content):
    Path("odd").mkdir()
    Path("odd/release.json").write_text(content)
    assert "not a release" in refused("ledger", "verify", "--releases", ".", code=2)


def test_what_is_no_release_hides_none_that_is_missing(restored):
    for name in ("a", "z"):
        Path(name).mkdir()
        Path(name, "release.json").write_text("{}")
    said = refused("ledger", "verify", "--releases", ".", code=4)
    assert "release release is not in the ledger" in said
    assert [f"{name} is not a release of dpquery" in said for name in ("a", "z")] == [True, True]


def test_a_folder_without_releases_is_not_taken_for_verified(town):
    assert "none below it" in refused("ledger", "verify", "--releases", "state", code=2)
    assert "cannot be searched" in refused("ledger", "verify", "--releases", "nowhere", code=2)


def test_hidden_folders_are_drafts_and_links_are_followed_once(town):
    ok(*RELEASE)
    shutil.copytree("release", ".release.writing/new")
    Path("release/back").symlink_to(town)
    assert releases_below(Path()) == [Path("release")]
    Path("again").symlink_to("release")
    assert len(releases_below(Path())) == 1
    Path("here").mkdir()
    Path("here/linked").symlink_to(town / "release")
    Path("here/nowhere").symlink_to("nothing")
    assert releases_below(Path("here")) == [Path("here/linked")]
    with pytest.raises(SpecError, match="not a release"):
        named_event(Path("state"))


def test_only_the_very_event_that_is_named_is_accepted(tmp_path):
    events = [Event(Head(seq, f"{seq}" * 64), "reserve", "2026-01-01", {}) for seq in (1, 2)]
    cases = {(1, "1"): None, (2, "2"): None, (2, "1"): "another one", (3, "1"): "ends at event 2"}
    cases |= {(0, "0"): "ends at event 2", (-1, "2"): "ends at event 2"}
    for (seq, digit), said in cases.items():
        named = {"ledger": {"seq": seq, "head": digit * 64}}
        (tmp_path / "release.json").write_text(json.dumps(named))
        missing = missing_event(tmp_path, events, ledger=Path("l.db"))
        assert missing is None if said is None else said in missing


def test_an_empty_target_needs_no_witness(town):
    Path("release").mkdir()
    ok(*RELEASE)
    assert run("ledger", "verify", "--releases", "release").code == 0


def test_a_release_is_refused_before_the_data_is_opened(restored):
    Path("data.csv").unlink()
    assert "older copy" in refused(*RELEASE, code=4)
    assert LedgerError.exit_code == 4
