"""A release folder holds every row and nothing of its own accord, and gives way only when asked."""

import json
import os
import stat

import pandas as pd
import pyarrow.parquet as pq
import pytest
from release_parts import AGE, ITEMS, answers, manifest, numbers, one, release, spec_of
from town import contents

from dpquery.exceptions import PlanConflictError, SpecError
from dpquery.progress import reporting
from dpquery.releases.folder import write
from dpquery.releases.folder.write import check_target, write_release
from dpquery.spec.predicates import AllRangesSet
from dpquery.spec.spec import Item


def test_a_release_holds_one_file_an_item_and_every_query_a_row(tmp_path):
    spec = spec_of()
    release(tmp_path / "out", spec)
    names = {f"{item.name}.parquet" for item in ITEMS}
    assert set(contents(tmp_path / "out")) == names | {
        "errors.parquet",
        "statement.md",
        "release.json",
    }
    for item in ITEMS:
        assert pq.read_metadata(tmp_path / "out" / f"{item.name}.parquet").num_rows == item.size
    assert os.listdir(tmp_path) == ["out"]


def test_pandas_reads_every_file(tmp_path):
    release(tmp_path / "out", spec_of())
    for item in ITEMS:
        frame = pd.read_parquet(tmp_path / "out" / f"{item.name}.parquet")
        assert len(frame) == item.size
        assert (
            not frame[["estimate", "std_error", "ci_low", "ci_high", "flag"]].isna().any(axis=None)
        )
    errors = pd.read_parquet(tmp_path / "out" / "errors.parquet")
    assert errors["item"].tolist() == [item.name for item in ITEMS]


def test_files_carry_no_metadata_but_ours(tmp_path):
    release(tmp_path / "out")
    for path in (tmp_path / "out").glob("*.parquet"):
        metadata = pq.read_metadata(path).metadata
        assert set(metadata) <= {b"dpquery", b"ARROW:schema"}
        facts = json.loads(metadata[b"dpquery"])
        assert facts["dataset"] == {"id": "people", "version": "7"}


def test_the_same_release_has_the_same_bytes(tmp_path):
    release(tmp_path / "one")
    release(tmp_path / "elsewhere" / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "elsewhere" / "two")


def test_files_follow_the_umask_and_are_private_while_written(tmp_path):
    modes = []

    def watched(item):
        modes.append(stat.S_IMODE((tmp_path / ".out.writing").stat().st_mode))
        return answers(item)

    before = os.umask(0o027)
    try:
        release(tmp_path / "out", answers=watched)
    finally:
        os.umask(before)
    assert set(modes) == {0o700}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "out" / "release.json").stat().st_mode) == 0o640


def test_an_identical_release_is_left_alone_but_for_the_stamp_that_make_reads(tmp_path):
    release(tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        os.utime(path, (1, 1))
    release(tmp_path / "out")
    stamps = {path.name: path.stat().st_mtime for path in (tmp_path / "out").iterdir()}
    assert stamps.pop("release.json") > 1
    assert set(stamps.values()) == {1}


def test_a_damaged_file_of_the_same_release_is_mended(tmp_path):
    release(tmp_path / "out")
    whole = contents(tmp_path / "out")
    (tmp_path / "out" / "statement.md").write_text("x")
    (tmp_path / "out" / "errors.parquet").unlink()
    release(tmp_path / "out")
    assert contents(tmp_path / "out") == whole


def test_another_release_is_replaced_only_when_asked(tmp_path):
    release(tmp_path / "out")
    with pytest.raises(PlanConflictError, match="--replace"):
        release(tmp_path / "out", spec_of(ITEMS[:2]), key="k2")
    release(tmp_path / "out", spec_of(ITEMS[:2]), key="k2", replace=True)
    assert "set0.parquet" in contents(tmp_path / "out")
    assert "any.parquet" not in contents(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "content", [None, "", "{}", "[]", '{"schema_version": "dpquery.release/9"}']
)
@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_that_is_no_release_is_never_replaced(tmp_path, content, replace):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("ten years")
    if content is not None:
        (tmp_path / "out" / "release.json").write_text(content)
    before = contents(tmp_path / "out")
    with pytest.raises(PlanConflictError, match="move the folder away"):
        check_target(tmp_path / "out", key="k1", replace=replace)
    with pytest.raises(PlanConflictError, match="move the folder away"):
        release(tmp_path / "out", replace=replace)
    assert contents(tmp_path / "out") == before


def test_a_file_a_link_or_a_foreign_file_in_the_way_is_kept(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(PlanConflictError, match="not a folder"):
            check_target(tmp_path / name, key="k1", replace=True)
    release(tmp_path / "out")
    for name in ("notes.txt", ".ledger"):
        path = tmp_path / "out" / name
        path.write_text("mine")
        check_target(tmp_path / "out", key="k1", replace=False)
        for key in ("k2", "k1"):
            with pytest.raises(PlanConflictError, match=f"also holds {name}"):
                release(tmp_path / "out", spec_of(ITEMS[:1]), key=key, replace=True)
        assert path.read_text() == "mine"
        path.unlink()


def test_a_missing_or_empty_target_is_free(tmp_path):
    check_target(tmp_path / "none", key="k1", replace=False)
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", key="k1", replace=False)
    release(tmp_path / "empty")
    assert "release.json" in contents(tmp_path / "empty")


def test_progress_counts_queries(tmp_path):
    spec, seen = spec_of(ITEMS[-3:]), []

    def see(line):
        seen.append(int(line.removeprefix("writing answers: ").removesuffix("%")))

    facts = manifest(spec)
    with reporting(see):
        write_release(tmp_path / "out", spec=spec, answers=answers, manifest=facts, replace=False)
    assert seen == sorted(seen)
    assert seen[-1] == 100


def test_two_results_differ_in_nothing_but_their_numbers(tmp_path):
    """Whatever the noisy answers are, the files have the same names, rows, labels and metadata."""

    def others(item):
        return (numbers(table, seed=99) for table in item.tables)

    release(tmp_path / "one")
    release(tmp_path / "two", answers=others)
    for name in ("release.json", "statement.md"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    for path in (tmp_path / "one").glob("*.parquet"):
        a, b = pq.read_table(path), pq.read_table(tmp_path / "two" / path.name)
        assert a.schema.equals(b.schema, check_metadata=True)
        assert len(a) == len(b)


def test_batches_on_disk_are_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "BATCH_ROWS", 10)
    item = Item("x", (one((AGE, AllRangesSet(8, 8))),))
    release(tmp_path / "out", spec_of([item]))
    assert pq.read_metadata(tmp_path / "out" / "x.parquet").num_row_groups == 4


def test_a_target_that_cannot_be_written_is_found_before_anything_is_charged(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written to"):
        check_target(tmp_path / "file" / "release", key="k", replace=False)
