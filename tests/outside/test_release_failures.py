"""Whatever stops the writing of a release or of a file, what was there stays whole."""

import errno
import itertools
import multiprocessing
import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from release_parts import answers, release
from town import contents

from dpquery.exceptions import DpqueryError, PlanConflictError, SpecError
from dpquery.untrusted.files import replacing

# ------------------------------------------------------------------------------- a folder


def failing(problem, *, after):
    left = itertools.count()

    def stops(item):
        if next(left) == after:
            raise problem
        return answers(item)

    return stops


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("problem", [KeyboardInterrupt(), RuntimeError("x"), MemoryError()])
def test_a_failure_in_the_middle_leaves_the_earlier_release(tmp_path, problem, after):
    release(tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(type(problem)):
        release(tmp_path / "out", key="k2", replace=True, answers=failing(problem, after=after))
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("where", ["write_batch", "write_table", "write_text", "fsync"])
def test_a_full_disk_loses_nothing_and_says_what_to_do(tmp_path, monkeypatch, where):
    release(tmp_path / "out")
    before = contents(tmp_path / "out")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    owner = {"write_text": Path, "fsync": os}.get(where, pq.ParquetWriter)
    monkeypatch.setattr(owner, where, full)
    with pytest.raises(DpqueryError, match=r"the disk is full.*run again.*costs nothing"):
        release(tmp_path / "out", key="k2", replace=True)
    monkeypatch.undo()
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]
    release(tmp_path / "out", key="k2", replace=True)


@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupt_between_the_two_renames_is_undone(tmp_path, monkeypatch, step):
    release(tmp_path / "out")
    before, rename, calls = contents(tmp_path / "out"), Path.rename, itertools.count(1)

    def interrupted(self, target):
        if next(calls) == step:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        release(tmp_path / "out", key="k2", replace=True)
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_killed_run_left_is_put_back_and_cleared_away(tmp_path):
    release(tmp_path / "out")
    before = contents(tmp_path / "out")
    workshop = tmp_path / ".out.writing"
    (workshop / "new").mkdir(parents=True)
    (workshop / "new" / "half.parquet").write_text("x")
    (tmp_path / "out").rename(workshop / "old")
    with pytest.raises(PlanConflictError, match="--replace"):
        release(tmp_path / "out", key="k2")
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


def slow_release(directory):
    def waits(item):
        time.sleep(0.05)
        return answers(item)

    release(Path(directory), answers=waits)


def test_twins_wait_for_each_other(tmp_path):
    context = multiprocessing.get_context("fork")
    runs = [context.Process(target=slow_release, args=(str(tmp_path / "out"),)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(30)
    assert [run.exitcode for run in runs] == [0] * 4
    release(tmp_path / "alone")
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert sorted(os.listdir(tmp_path)) == ["alone", "out"]


def test_the_manifest_is_written_last(tmp_path, monkeypatch):
    order, write_text = [], Path.write_text

    def noted(self, *args, **options):
        order.append((self.name, len(list(self.parent.iterdir()))))
        return write_text(self, *args, **options)

    monkeypatch.setattr(Path, "write_text", noted)
    release(tmp_path / "out")
    assert order[-1] == ("release.json", 5)


# ------------------------------------------------------------------------------- one file


def fail_halfway(path):
    with replacing(path) as draft:
        draft.write_text("half")
        raise OSError(errno.ENOSPC, "full")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(DpqueryError, match="cannot write"):
        fail_halfway(path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


def test_the_same_file_again_only_gets_newer(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("same")
    os.utime(path, (1, 1))
    before = path.stat()
    with replacing(path) as draft:
        draft.write_text("same")
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime > before.st_mtime


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    missing = tmp_path / "none" / "a.txt"
    with (
        pytest.raises(SpecError, match=r"a\.txt cannot be written: .*none is no folder"),
        replacing(missing) as draft,
    ):
        draft.write_text("new")
