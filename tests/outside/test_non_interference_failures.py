"""A release that fails says why in fixed words: nothing read from the data is in any message.

Whatever goes wrong with the data file, the exit code is 6; what goes wrong before the charge costs
nothing, and what goes wrong after it is retried for free.
"""

import gzip
import io
import os
import resource
import socket
from pathlib import Path

import numpy as np
import pytest
from damage import CANARY, FILES, HEADER, NO_HEADERS, PLAIN, WITHOUT_REGION
from interference_support import fails
from town import CSV, contents, kinds, ok, run, spent

from dpquery import release
from dpquery.exceptions import DataError
from dpquery.measurement.counting import tabulate as module
from dpquery.measurement.counting import text_files

RELEASE = ("release", "data.csv", "--epsilon", "1")
CURATOR = "dpquery.measurement.curator"
STANDS = "The charge stands: it was made before the data were read."


def holding_the_canary(done, files):
    """Outputs and files that hold the canary in any place."""
    written = [path for path, content in files.items() if CANARY.encode() in content]
    return written + [ended for ended in done if CANARY in ended.out + ended.err]


def all_but_the_data():
    return {name: content for name, content in contents(".").items() if name != "data.csv"}


def failed_alike(content=None, *, charged):
    """Release a file, which fails for a reason of the file's; return the message."""
    if content is not None:
        Path("data.csv").write_bytes(content)
    done = run(*RELEASE)
    assert done.code == DataError.exit_code, done
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert spent() == ("1" if charged else "0")
    assert kinds() == ["register", *["reserve"] * charged]
    assert not Path("release").exists()
    assert not holding_the_canary([done], all_but_the_data())
    assert (STANDS in done.err) == charged
    return done.err


# --------------------------------------------------------------------- found before the charge


def test_every_file_without_a_header_is_refused_in_the_same_words(town, record_property):
    messages = {name: failed_alike(own, charged=False) for name, own in NO_HEADERS.items()}
    assert "is empty" in messages.pop("nothing")  # as its size says
    assert len({own.partition(";")[0] for own in messages.values()}) == 1
    # As their first bytes say, which every file of the kind has.
    assert "encoding: utf-16" in messages.pop("UTF-16")
    assert "it is gzip: give it the suffix .gz" in messages.pop("gzip")
    assert "it is empty: delete the empty lines above" in messages.pop("a line feed")
    assert len(set(messages.values())) == 1
    record_property("bad inputs", len(NO_HEADERS))


def test_every_header_without_a_declared_column_is_refused_in_the_same_words(town, record_property):
    messages = {
        name: failed_alike(header, charged=False) for name, header in WITHOUT_REGION.items()
    }
    assert "has the declared column region more than once;" in messages.pop("twice")
    assert "it has them in other capitals" in messages.pop("another case")
    (message,) = set(messages.values())
    assert "lacks the declared column region;" in message
    assert message.count("region") == 1
    assert "age" not in message
    record_property("bad inputs", len(WITHOUT_REGION))


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(town, record_property):
    Path("data.csv").unlink()
    messages = set()
    assert "there is no file data.csv;" in failed_alike(charged=False)
    Path("data.csv").mkdir()
    assert "a folder without files" in failed_alike(charged=False)
    Path("data.csv").rmdir()
    os.mkfifo("data.csv")
    messages.add(run(*RELEASE).err)
    Path("data.csv").unlink()
    for place in ("/dev/zero", "/dev/null", "/nowhere/at/all", "data.csv"):
        Path("data.csv").symlink_to(place)
        messages.add(run(*RELEASE).err)
        Path("data.csv").unlink()
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind("data.csv")
        messages.add(run(*RELEASE).err)
    assert len(messages) == 1
    assert "not a file" in messages.pop()
    assert spent() == "0"
    record_property("bad inputs", 8)


def test_a_file_that_may_not_be_read_is_refused(town, monkeypatch):
    opened_by_tabulate(monkeypatch, fails(PermissionError(13, CANARY, CANARY)))
    assert "may not be read by you" in failed_alike(charged=False)


# --------------------------------------------------------------------- found after the charge


class Breaking(io.FileIO):
    """A file on a disk that breaks after some bytes."""

    good, failure = 0, OSError()

    def readinto(self, buffer):
        if self.tell() >= self.good:
            raise self.failure
        return super().readinto(memoryview(buffer)[: self.good])


def opened_by_tabulate(monkeypatch, opens):
    """Let a function open the data file wherever tabulate does."""
    real = Path.open

    def opened(self, *arguments, **settings):
        ours = self.name == "data.csv" and arguments == ("rb",)
        return opens(self) if ours else real(self, *arguments, **settings)

    monkeypatch.setattr(Path, "open", opened)


@pytest.mark.parametrize(
    ("name", "number"),
    [("canaries", 5), ("many rows", 5), ("a megabyte", 12), ("quotes", 116)],
)
def test_a_disk_that_breaks_in_mid_file_says_only_that(town, monkeypatch, name, number):
    Path("data.csv").write_bytes(FILES[name])
    opened = []

    def opens(path):
        opened.append(Breaking(path))
        opened[-1].good = 2**30 if len(opened) == 1 else len(HEADER) + 40
        opened[-1].failure = OSError(number, CANARY, CANARY)
        return io.BufferedReader(opened[-1], 32)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_CHUNK", 64)
        opened_by_tabulate(patch, opens)
        assert "could not be read to its end" in failed_alike(charged=True)
    ok(*RELEASE)
    assert spent() == "1"


def test_a_file_whose_packing_breaks_off_costs_once_and_goes_on_free(town):
    noise = np.random.default_rng(1).bytes(2**20).hex("\n", 40).encode()
    packed = gzip.compress(FILES["canaries"] + noise, mtime=0)
    os.rename("data.csv", "data.csv.gz")
    command = ("release", "data.csv.gz", "--epsilon", "1")
    for good in (3 * len(packed) // 4, len(packed) - 9):  # again, and no second charge
        Path("data.csv.gz").write_bytes(packed[:good])
        done = run(*command)
        assert (done.code, done.out) == (DataError.exit_code, "")
        assert "data.csv.gz could not be read to its end" in done.err
        assert f"{STANDS} Once they can be, the same command goes on free of charge" in done.err
        assert not holding_the_canary([done], all_but_the_data())
        assert spent() == "1"
    Path("data.csv.gz").write_bytes(packed[:99])  # and where not even the header unpacks
    assert "not a header" in (unread := run(*command).err)
    assert "; check that it unpacks without an error (gzip), and the disk" in unread
    Path("data.csv.gz").write_bytes(packed)
    ok(*command)
    assert (spent(), kinds()[-1]) == ("1", "commit")


def test_what_the_data_broke_with_hangs_on_no_error(town, monkeypatch):
    """A traceback, as in a notebook, would show all that an error was raised from."""

    def breaks(*_, **__):
        try:
            {}[CANARY]
        except KeyError:
            raise DataError("the data broke") from None

    monkeypatch.setattr(f"{CURATOR}.tabulate", breaks)
    with pytest.raises(DataError, match=STANDS) as caught:
        release("data.csv", epsilon="1")
    assert caught.value.__context__ is caught.value.__cause__ is None


def other_header(path):
    path.write_bytes(WITHOUT_REGION["another name"])


def folder(path):
    path.unlink()
    path.mkdir()


def pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [Path.unlink, folder, pipe, other_header])
def test_a_file_that_is_changed_after_the_charge_costs_it_once(town, monkeypatch, change):
    real, path = module.tabulate, Path("data.csv")
    path.write_bytes(FILES["canaries"])

    def changed(*arguments, **given):
        change(path)
        return real(*arguments, **given)

    with monkeypatch.context() as patch:
        patch.setattr(f"{CURATOR}.tabulate", changed)
        failed_alike(charged=True)
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_bytes(CSV)
    ok(*RELEASE)
    assert spent() == "1"


def test_a_file_that_is_removed_while_it_is_open_is_read_all_the_same(town, monkeypatch):
    located, times = text_files.TextFile._located, []

    def removing(source, text, declared):
        times.append(source.path)
        if len(times) == 2:  # the header has been checked, and the charge made
            source.path.unlink()
        return located(source, text, declared)

    monkeypatch.setattr(text_files.TextFile, "_located", removing)
    ok(*RELEASE)
    assert len(times) == 2


def test_a_line_without_an_end_takes_no_memory(town):
    with Path("data.csv").open("wb") as file:
        file.write(PLAIN)
        file.truncate(2**26)  # holes: read as NUL
    ok(*RELEASE)


# --------------------------------------------------------------------- errors of our own


FAILURES = [
    (RuntimeError(CANARY), 70),
    (MemoryError(CANARY), 70),
    (KeyError(CANARY), 70),
    (RecursionError(CANARY), 70),
    (OSError(5, CANARY, CANARY), 70),
    (UnicodeDecodeError("utf-8", CANARY.encode(), 0, 1, CANARY), 70),
    (ExceptionGroup(CANARY, [ValueError(CANARY)]), 70),
]


@pytest.mark.parametrize(("failure", "code"), FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("place", ["tabulate", "exact_answers", "draw"])
def test_an_error_between_the_data_and_the_noise_says_nothing_of_the_data(
    town, monkeypatch, place, failure, code
):
    monkeypatch.setattr(f"{CURATOR}.{place}", fails(failure))
    done = run("release", "data.csv", "--epsilon", "1")
    assert done.code == code
    assert len(done.err.splitlines()) == 1
    assert "Traceback" not in done.err
    assert not holding_the_canary([done], contents(town))


def test_the_noise_source_never_tells_the_value_that_it_could_not_handle(town, monkeypatch):
    secret = 2**61 + 123_456_789

    def far_too_many(*_, **__):
        return np.array([secret])

    monkeypatch.setattr("dpquery.measurement.curator.exact_answers", far_too_many)
    done = run("release", "data.csv", "--epsilon", "1")
    assert done.code == 70
    assert str(secret) not in done.out + done.err


def test_a_crash_leaves_no_core_dump(town, monkeypatch):
    limits = []
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))  # where none were written anyway

    def crashes(*_, **__):
        limits.append(resource.getrlimit(resource.RLIMIT_CORE)[0])
        raise RuntimeError

    monkeypatch.setattr("dpquery.measurement.curator.tabulate", crashes)
    assert run("release", "data.csv", "--epsilon", "1").code == 70
    assert limits == [0]
