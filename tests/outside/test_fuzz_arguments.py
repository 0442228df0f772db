"""Whatever is typed after a command: exit 2 or another documented code, and no file is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from town import contents, ok, refused, run

NUMBERS = (
    "nan", "-1", "0x1", "1e400", "1e-400", "", "٣", "1/3", "--", "true", "9" * 5000, "1e7",
    "\x1b[2J", "-inf", "1,5", "1e",
)  # fmt: skip
RELEASE, PLAN = ("release", "data.csv"), ("plan", "workload.yaml", "--time-limit", "0")
ANSWER = ("answer", "release", "more.yaml")
WRONG = {
    (*RELEASE, "--epsilon"): NUMBERS,
    (*PLAN, "--epsilon"): NUMBERS,
    (*RELEASE, "--epsilon", "1", "--delta"): NUMBERS,
    (*PLAN, "--delta"): NUMBERS,
    (*PLAN, "--sweep"): (*(number for number in NUMBERS if number != "1,5"), "1,", "1;2"),
    (*PLAN, "--seed"): (*NUMBERS, str(2**41), str(10**30)),
    (*PLAN, "--jobs"): (*NUMBERS, "0", "3", str(10**9)),
    ("plan", "workload.yaml", "--time-limit"): tuple(
        x for x in NUMBERS if x[:2] not in ("1e", "99")
    ),
    (*PLAN, "--objective"): NUMBERS,
    (*PLAN, "--mechanism"): NUMBERS,
    (*PLAN, "--target"): (*NUMBERS, "*: sd <= ٣", "*: sd <= -1", "*: sd <= 1e999"),
    (*RELEASE, "--epsilon", "1", "--release-number"): (*NUMBERS, "0", str(10**30)),
    (*RELEASE, "--epsilon", "1", "--confidence"): NUMBERS,
    (*RELEASE, "--epsilon", "1", "--noise"): NUMBERS,
    (*RELEASE, "--epsilon", "1", "--mechanism"): NUMBERS,
    (*RELEASE, "--epsilon", "1", "--also"): (*NUMBERS, "thresholded:nan", "thresholded:-1", "x:1"),
    (*ANSWER, "--confidence"): NUMBERS,
    (*ANSWER, "--also"): NUMBERS,
    ("synthetic", "release", "--rows"): (*NUMBERS, "0", str(10**30)),
    ("synthetic", "release", "--seed"): NUMBERS,
}


@pytest.fixture
def full_town(town):
    ok("release", "data.csv", "--epsilon", "1")
    Path("more.yaml").write_text("workload:\n  - {name: q, product: {age: identity}}\n")
    return town


@pytest.mark.nightly
def test_wild_numbers_and_words_are_refused_and_nothing_is_charged(full_town, record_property):
    tried, before, wrong = 0, contents("."), []
    for command, values in WRONG.items():
        for value in values:
            done = run(*command, value)
            if (done.code, done.out) != (2, "") or "Traceback" in done.err or "\x1b" in done.err:
                wrong.append((command, value, done))
            tried += 1
    assert wrong == []
    assert {k: v for k, v in contents(".").items() if not k.startswith("state/")} == {
        k: v for k, v in before.items() if not k.startswith("state/")
    }
    record_property("bad inputs", tried)


NO_PLACE = (".", "", "folder", "pipe", "..", "loop")
KEPT = ("data.csv", "state/ledger.db", "workload.yaml", "release/release.json")
WRITERS = {
    "plan": (*PLAN, "--out"),
    "page": ("error-report", "release", "--html"),
    "starter": ("init",),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_file_is_written_where_none_can_be(full_town, writer, record_property):
    Path("folder").mkdir()
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    for place in NO_PLACE:
        done = run(*WRITERS[writer], place)
        assert done.code == 2, (place, done)
        assert done.err.startswith("dpquery: "), done
    record_property("bad inputs", len(NO_PLACE))


@pytest.mark.nightly
@pytest.mark.parametrize("writer", ["plan", "page"])
@pytest.mark.parametrize("place", KEPT)
def test_a_file_of_another_kind_is_never_replaced(full_town, writer, place):
    Path("link").symlink_to(place)
    for path in (place, "link"):
        assert "holds something else" in refused(*WRITERS[writer], path, code=5)


def test_a_link_to_a_plan_is_written_through(full_town):
    Path("kept.plan").write_bytes(Path("dpquery.plan").read_bytes())
    Path("link.plan").symlink_to("kept.plan")
    ok(*PLAN, "--seed", "5", "--out", "link.plan")
    assert Path("link.plan").is_symlink()
    assert json.loads(Path("kept.plan").read_text())["seed"] == 5


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["data.csv", ".", "", "link", "pipe", "release/x", "loop"])
def test_a_release_and_answers_go_to_folders_of_their_own(full_town, place, record_property):
    Path("folder").mkdir()
    Path("link").symlink_to("folder")
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    for command in ((*RELEASE, "--epsilon", "0.5", "--out"), (*ANSWER, "--out")):
        if (command[0], place) == ("release", "release/x"):
            continue  # a folder inside is another folder
        done = run(*command, place)
        assert done.code in (2, 5), done
        assert done.err.startswith("dpquery: ")
    record_property("bad inputs", 2)


@pytest.mark.nightly
@pytest.mark.parametrize("bench", ["bench_thresholds.py", "bench_answers.py"])
def test_an_unknown_job_of_a_bench_is_named(bench):
    path = Path(__file__).parents[1] / "bench" / bench
    done = subprocess.run(
        [sys.executable, path, "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("'nothing' is not known; name some of")
