"""Nothing that can be seen depends on the data but through the noisy values.

With noise and choice replaced by ones that are the same whatever they are asked, a run over any
file at all must leave the same exit code, output and bytes in every file.
"""

import gzip
import io
import os
import socket
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from damage import CANARY, FILES, HEADER, NO_HEADERS, PLAIN, WITHOUT_REGION
from interference_support import FIXED, Step, fails, observe, planned_once
from town import CSV, contents, kinds, ok, renew, run, spent

from dpquery import release
from dpquery.exceptions import DataError
from dpquery.measurement.counting import tabulate as module
from dpquery.measurement.counting import text_files

CURATOR = "dpquery.measurement.curator"
ALSO = "--also nonnegative --also consistent --also thresholded:1.5 --also integer"
EVERYTHING = (
    Step("release data.csv --epsilon 1"),
    Step("release data.csv --epsilon 1 --json"),
    Step("release data.csv --epsilon 0.5", code=5),
    Step("release data.csv --epsilon 0.5 --release-number 2 --out second"),
    Step("release data.csv --epsilon 0.25 --out second --replace"),
    Step("release data.csv --epsilon 2 --out dear", crash=f"{CURATOR}.draw", code=70),
    Step("release data.csv --epsilon 4 --out dear", code=3),
    Step("answer release workload.yaml --confidence 0.9"),
    Step("answer release more.yaml --out more --json"),
    Step("error-report"),
    Step("error-report second --json --html second.html"),
    Step("error-report answers --html answers.html"),
    Step("package --also csv,replicates --json"),
    Step("package answers --also csv --out packed-answers"),
    Step("ledger status --json"),
    Step("ledger history"),
    Step("ledger history --json"),
    Step("ledger export"),
    Step("ledger verify --releases release --releases second"),
)
COLUMNS = (
    Step(f"release data.csv --epsilon 1 {ALSO}"),
    Step("release data.csv --epsilon 1 --also integer --json"),
    Step(f"answer release more.yaml {ALSO} --json"),
    Step("error-report --json"),
)
CRASHES = (
    Step("release data.csv --epsilon 1", crash=f"{CURATOR}.tabulate", code=70),
    Step("release data.csv --epsilon 1", crash=f"{CURATOR}.answers_alike", code=70),
    Step("release data.csv --epsilon 1", crash=f"{CURATOR}.draw", code=70),
    Step("ledger status --json"),
    Step("release data.csv --epsilon 1"),
    Step("ledger export"),
)
SHORT = (Step("release data.csv --epsilon 1 --json"), Step("error-report"), Step("ledger export"))
RAP = (
    Step("release data.csv --epsilon 1"),
    Step("release data.csv --epsilon 1 --json"),
    Step("release data.csv --epsilon 0.5 --mechanism linear --out linear"),
    Step("answer release more.yaml --json"),
    Step("synthetic --rows 40 --json"),
    Step("synthetic --seed 3 --out of_the_total.csv"),
    Step("error-report --json"),
    Step("package --also csv"),
    Step("ledger history --json"),
    Step("ledger verify --releases release --releases linear"),
)
RAP_CRASH = (
    Step(
        "release data.csv --epsilon 1", crash="dpquery.mechanisms.fitted.RapProjection.add", code=70
    ),
    Step("release data.csv --epsilon 1"),
    Step("synthetic --rows 40"),
    Step("ledger export"),
)


FEW = ("canaries", "one quote that never ends", "many rows")
SOME = (*FEW, "empty", "one row", "ragged", "CRLF", "one person", "nobody", "many persons")
RAP_SHORT = (RAP[0], RAP[3], RAP[4])
SCENARIOS = {
    "every command": ("rows", EVERYTHING, FEW[:1], tuple(FILES)),
    "persons": ("persons", SHORT, (FEW[0], "empty", *SOME[8:]), tuple(FILES)),
    "weights": ("weights", SHORT, (FEW[0], "empty", "ragged"), tuple(FILES)),
    "replicates": ("replicates", SHORT, (FEW[0], "empty", "ragged"), tuple(FILES)),
    "RAP": ("RAP", RAP, FEW[:1], SOME[1:8]),
}
LONG_SCENARIOS = {
    "columns beside the estimates": ("rows", COLUMNS, SOME),
    "after crashes": ("rows", CRASHES, SOME),
    "RAP after a crash": ("RAP", RAP_CRASH, SOME[1:8:2]),
    "Gaussian noise, records replaced": ("replaced", EVERYTHING, SOME),
    "after crashes, persons": ("persons", CRASHES, SOME[1:8:2]),
    "RAP, persons": ("RAP, persons", RAP_SHORT, SOME[1:8:2]),
    "RAP, persons, after a crash": ("RAP, persons", RAP_CRASH, SOME[1:8:2]),
    "RAP, records replaced": ("RAP, replaced", RAP_SHORT, SOME[1:8:2]),
    "RAP, all at once": ("RAP, all at once", RAP_SHORT, SOME[1:8:2]),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return the function from the name of a town to the folder where it is planned, once."""
    return planned_once(tmp_path_factory.mktemp("interference"))


@pytest.fixture
def seen(template, tmp_path, monkeypatch):
    """Return the function from the bytes of a file to all that can be seen of some steps."""
    for place, fixed in FIXED.items():
        monkeypatch.setattr(place, fixed)
    folder = tmp_path / "town"
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name, place in {"TMPDIR": "tmp", "HOME": "home", "XDG_STATE_HOME": "nowhere"}.items():
        monkeypatch.setenv(name, str(folder / place))
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))

    def of(content, town="rows", steps=SHORT):
        renew(folder, template(town))
        for name in ("tmp", "home"):
            (folder / name).mkdir()
        monkeypatch.chdir(folder)
        if town == "replicates":
            for column, replicate in ((b"age", b"rep1"), (b"sex", b"rep2")):
                content = content.replace(column, replicate, 1)
        return observe(folder, content, steps)

    return of


def differences(seen, scenario, names, capfd, expected=None):
    """Yield what differs between the plain file and those of some names."""
    town, steps, *_ = scenario
    expected = expected or seen(PLAIN, town, steps)
    for name in names:
        capfd.readouterr()
        observed = seen(FILES[name], town, steps)
        for what in (observed.difference(expected), observed.holding_the_canary()):
            if what:
                yield name, what
        if capfd.readouterr() != ("", ""):  # what is written past Python's own streams
            yield name, "output of a library"


def assert_the_same(seen, scenario, names, capfd):
    """Compare the files of some names with the plain one; return how many were compared."""
    town, steps, *_ = scenario
    first = seen(PLAIN, town, steps)  # what is imported or remembered once happens here
    assert [ended.code for ended in first.done] == [step.code for step in steps]
    assert not list(differences(seen, scenario, names, capfd))
    return len(names)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_whatever_the_data_everything_observable_is_the_same(
    seen, scenario, capfd, record_property
):
    steps = SCENARIOS[scenario]
    record_property("neighbours", assert_the_same(seen, steps, steps[2], capfd))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [*SCENARIOS, *LONG_SCENARIOS])
def test_whatever_the_data_of_all_wild_files_everything_is_the_same(
    seen, scenario, capfd, record_property
):
    steps = (SCENARIOS | LONG_SCENARIOS)[scenario]
    record_property("neighbours", assert_the_same(seen, steps, steps[-1], capfd))


def test_every_combination_asked_for_has_a_row_whoever_is_in_it(town):
    Path("data.csv").write_bytes(CSV.splitlines(keepends=True)[0])
    ok("release", "data.csv", "--epsilon", "1")
    rows = {path.stem: pq.read_table(path).num_rows for path in Path("release").glob("*.parquet")}
    assert rows.pop("measurements") >= 15
    assert rows == {"age_by_sex": 15, "pairs": 6 + 6 + 9, "ages": 15, "errors": 3}


def test_a_published_file_holds_no_metadata_but_its_own(released_town):
    for path in Path("release").glob("*.parquet"):
        assert set(pq.read_metadata(path).metadata) == {b"dpquery", b"ARROW:schema"}, path


# A release that fails says why in fixed words: nothing read from the data is in any message.
#
# Whatever goes wrong with the data file, the exit code is 6; what goes wrong before the charge
# costs nothing, and what goes wrong after it is retried for free.


RELEASE = ("release", "data.csv", "--epsilon", "1")
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


def test_a_file_is_opened_as_often_whoever_is_in_it(town, monkeypatch):
    """Who watches which files are opened learns nothing from it."""
    real, opened = io.open, []

    def watched(file, *arguments, **settings):
        opened.append(Path(str(file)).name)
        return real(file, *arguments, **settings)

    monkeypatch.setattr(io, "open", watched)
    times = []
    for number, content in enumerate((PLAIN, PLAIN.splitlines()[0] + b"\n"), 1):
        Path("data.csv").write_bytes(content)
        opened.clear()
        ok("release", "data.csv", "--epsilon", "1", "--release-number", number, "--replace")
        times.append(opened.count("data.csv"))
    assert times[0] == times[1] > 0


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
    ("name", "number"), [("canaries", 5), ("many rows", 5), ("a megabyte", 12), ("quotes", 116)]
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
    assert "cannot be unpacked: it is damaged or cut off (gzip)" in run(*command).err
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
@pytest.mark.parametrize("place", ["tabulate", "answers_alike", "draw"])
def test_an_error_between_the_data_and_the_noise_says_nothing_of_the_data(
    town, monkeypatch, place, failure, code
):
    monkeypatch.setattr(f"{CURATOR}.{place}", fails(failure))
    done = run("release", "data.csv", "--epsilon", "1")
    assert done.code == code
    assert len(done.err.splitlines()) == 1
    assert "Traceback" not in done.err
    assert not holding_the_canary([done], contents(town))
