"""Releases testify: a ledger that lacks what they name is not the one that was charged."""

import json
import shutil
from pathlib import Path

import pytest
from ledgers import opened, release
from town import contents, kinds, ok, refused, renew, run

from dpquery.exceptions import LedgerError, SpecError
from dpquery.measurement.ledger.events import Event, Head
from dpquery.measurement.ledger.ledger import missing_event, named_event, releases_below

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
    said = ok("plan", "workload.yaml").err
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


def write_release(folder, measurement):
    folder.mkdir()
    named = {"seq": measurement.head.seq, "head": measurement.head.hash}
    (folder / "release.json").write_text(json.dumps({"ledger": named}))
    return folder


def test_an_older_copy_is_found_by_the_releases_it_has_lost(path, tmp_path):
    copy = path.with_name("copy.db")
    with opened(path) as ledger:
        first = write_release(tmp_path / "r1", release(ledger))
    copy.write_bytes(path.read_bytes())  # closed, so all of it is in the one file
    with opened(path) as ledger:
        second = write_release(tmp_path / "r2", release(ledger, "k2"))
        assert ledger.verify([first, second]) == ledger.head()
    copy.chmod(0o600)
    copy.replace(path)
    with opened(path) as ledger:
        assert ledger.verify([first]) == ledger.head()
        with pytest.raises(LedgerError, match="older copy"):
            ledger.verify([first, second])
        release(ledger, "k3")  # the same number of events again, but not the same events
        with pytest.raises(LedgerError, match="event 5 is another one: two copies"):
            ledger.verify([second])


def test_what_is_no_release_is_not_verified(path, tmp_path):
    with opened(path) as ledger:
        for text in (None, "{}", "[]", '{"ledger": {"seq": "x", "head": 1}}'):
            if text is not None:
                (tmp_path / "release.json").write_text(text)
            with pytest.raises(SpecError, match="not a release"):
                ledger.verify([tmp_path])
