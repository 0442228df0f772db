"""What a command writes never takes the place of something else: a ledger, data, a plan, a spec."""

import os
from pathlib import Path

import pytest
from rounds import MIXED_SPEC, rehearse
from town import contents, ok, plan_town, refused, renew

QUESTIONS = "workload:\n  - {name: sexes, product: {sex: identity}}\n"
FILES = {
    "plan": ("plan", "workload.yaml", "--time-limit", "0", "--out"),
    "page": ("error-report", "release", "--html"),
    "records": ("synthetic", "release", "--rows", "20", "--out"),
    "spec": ("init",),
}
FOLDERS = {
    "release": ("release", "data.csv", "--epsilon", "1", "--release-number", "2", "--out"),
    "answers": ("answer", "release", "more.yaml", "--out"),
}
KEPT = (
    "june.html",
    "state/ledger.db",
    "data.csv",
    "dpquery.plan",
    "workload.yaml",
    "more.yaml",
    "notes.txt",
)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs") / "town"
    plan_town(folder, MIXED_SPEC)
    rehearse(folder / "dpquery.plan")
    (folder / "more.yaml").write_text(QUESTIONS)
    (folder / "notes.txt").write_text("ten years")
    (folder / "june.html").write_text("<html><title>Error report: June</title></html>")
    places = ("--plan", folder / "dpquery.plan", "--ledger", folder / "state" / "ledger.db")
    ok("release", folder / "data.csv", "--epsilon", "1", "--out", folder / "release", *places)
    return folder


@pytest.fixture(autouse=True)
def released(template, tmp_path, monkeypatch):
    renew(tmp_path / "town", template)
    monkeypatch.chdir(tmp_path / "town")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "town" / "state" / "ledger.db"))


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("command", FILES)
def test_no_file_takes_the_place_of_another_kind(command, kept):
    if (command, kept) != ("plan", "dpquery.plan"):
        refused(*FILES[command], kept, code=5)
    Path("link").symlink_to(kept)
    if (command, kept) != ("plan", "dpquery.plan"):
        refused(*FILES[command], "link", code=5)


@pytest.mark.parametrize("kept", [*KEPT, "state", "."])
@pytest.mark.parametrize("command", FOLDERS)
def test_no_folder_takes_the_place_of_anything_else(command, kept):
    refused(*FOLDERS[command], kept, code=5)
    refused(*FOLDERS[command], kept, "--replace", code=5)


def test_a_ledger_in_a_folder_to_be_replaced_is_kept():
    for command, folder in (("answers", "other"), ("release", "release")):
        if not Path(folder).exists():
            ok(*FOLDERS[command], folder)
        for name in (".ledger.db", "ledger.db"):
            place = Path(folder, name)
            place.write_bytes(Path("state/ledger.db").read_bytes())
            Path("more.yaml").write_text(QUESTIONS.replace("sexes", "others"))
            said = refused(*FOLDERS[command], folder, "--replace", code=5)
            assert f"also holds {name}" in said
            place.unlink()


@pytest.mark.parametrize("command", [*FILES, *FOLDERS])
def test_the_sign_for_standard_output_is_no_name(command):
    said = refused(*(FILES | FOLDERS)[command], "-", code=2)
    assert "'-' is not taken for standard output" in said


@pytest.mark.parametrize("place", ["none/x", "data.csv/x", "state", "pipe", "/dev/null"])
@pytest.mark.parametrize("command", FILES)
def test_a_place_where_no_file_can_be_is_refused(command, place):
    os.mkfifo("pipe")
    said = refused(*FILES[command], place, code=2)
    assert f"dpquery: {place} " in said


@pytest.mark.parametrize("command", FILES)
def test_a_link_into_a_folder_that_is_missing_is_refused(command):
    Path("link").symlink_to("none/x")
    assert "is no folder" in refused(*FILES[command], "link", code=2)


@pytest.mark.parametrize("command", ["plan", "page", "records"])
def test_the_same_output_again_changes_nothing(command):
    ok(*FILES[command], "again")
    before = contents(".")
    ok(*FILES[command], "again")
    assert contents(".")["again"] == before["again"]
