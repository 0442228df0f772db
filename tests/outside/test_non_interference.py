"""Nothing that can be seen depends on the data but through the noisy values.

With noise and choice replaced by ones that are the same whatever they are asked, a run over any
file at all must leave the same exit code, output and bytes in every file.
"""

import os
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from damage import FILES, PLAIN
from interference_support import FIXED, Step, fixed_draw, fixed_select, observe, planned_once
from town import CSV, ok, renew

from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.rounds.run import GRID_BITS
from dpquery.progress import reporting

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
    Step("release data.csv --epsilon 1", crash=f"{CURATOR}.exact_answers", code=70),
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
    "every command": ("rows", EVERYTHING, FEW[:2], tuple(FILES)),
    "persons": ("persons", SHORT, (FEW[0], *SOME[3:]), tuple(FILES)),
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


def counting(leak):
    """A tabulate that hands the number of records on to a leak."""

    def leaking(*arguments, **settings):
        tables = tabulate(*arguments, **settings)
        leak(int(next(iter(tables.values())).sum()))
        return tables

    return leaking


def appending(place, what):
    """A function that adds the size of the data file to the text that the one at a place makes."""
    module, _, name = place.rpartition(".")
    real = getattr(import_module(module), name)
    return lambda *given: real(*given) + what(Path("data.csv").stat().st_size)


def shown_to_a_pipe():
    return reporting(lambda line: print(line, file=sys.stderr))


def made_and_removed(records):
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"%d" % records)


def in_another_order(answers, **_):
    return np.roll(fixed_draw(answers), int(answers.sum()))


def named_after(size, kind):
    return f"{kind} {size} {Path('data.csv').stat().st_size}"


WRITE, ADAPTIVE = "dpquery.releases.folder.write", "dpquery.measurement.rounds.queries"
TABULATE = f"{CURATOR}.tabulate"
WARMED = []
LEAKS = {
    "none": {},
    "noise that hides nothing": {f"{CURATOR}.draw": lambda answers, **_: answers},
    "values in an order of the data's": {f"{CURATOR}.draw": in_another_order},
    "a count on stdout": {TABULATE: counting(print)},
    "a count past Python": {TABULATE: counting(lambda n: os.write(2, b"%d" % n))},
    "a count as exit code": {TABULATE: counting(sys.exit)},
    "a file": {TABULATE: counting(lambda n: Path(f"home/{n}").touch())},
    "a cache": {TABULATE: counting(lambda n: Path("tmp/cache").write_text(str(n)))},
    "a temporary file, gone again": {TABULATE: counting(lambda n: n and made_and_removed(n))},
    "the mode of a file": {TABULATE: counting(lambda n: Path("home").chmod(0o700 + n % 8))},
    "the age of the data": {TABULATE: counting(lambda _: shutil.copystat("data.csv", "more.yaml"))},
    "a copy of the data": {TABULATE: counting(lambda _: shutil.copy("data.csv", "home"))},
    "the size in the manifest": {
        f"{WRITE}.manifest_text": appending(f"{WRITE}.manifest_text", lambda size: f"{size}\n")
    },
    "the size in the statement": {
        f"{WRITE}.statement": appending(f"{WRITE}.statement", lambda size: f"{size} bytes\n")
    },
    "the size in a Parquet file": {
        f"{WRITE}._metadata": lambda *_: {"size": str(Path("data.csv").stat().st_size)}
    },
    "the size in the ledger": {f"{CURATOR}.source": named_after},
    "progress in a pipe": {
        "dpquery.cli.commands.shown_progress": shown_to_a_pipe,
        "dpquery.measurement.counting.tabulate._CHUNK": 16,
    },
}
RAP_LEAKS = {
    "a total without noise": {
        f"{ADAPTIVE}.RapRounds.first": lambda rounds, exact, _: (
            exact(rounds.first_blocks[0]) << GRID_BITS
        )
    },
    "queries chosen without chance": {
        f"{ADAPTIVE}.select_queries": lambda differences, **given: fixed_select(
            differences, **given
        )[np.argsort(differences(0)[:3])]
    },
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_seen(seen, monkeypatch, capfd, leak):
    steps = SHORT[::2]
    if not WARMED:  # what is imported or remembered once is no leak
        WARMED.append(seen(PLAIN, "rows", steps))
    for place, leaking in LEAKS[leak].items():
        monkeypatch.setattr(place, leaking)
    plain = seen(PLAIN, "rows", steps)
    codes = [ended.code for ended in plain.done]
    assert codes == [0, 0] or "exit code" in leak  # it is no mere crash
    found = list(differences(seen, ("rows", steps), ["canaries"], capfd, plain))
    assert bool(found) == bool(LEAKS[leak])


@pytest.mark.nightly
@pytest.mark.parametrize("leak", RAP_LEAKS)
def test_a_planted_leak_of_rap_is_seen(seen, monkeypatch, capfd, leak):
    for place, leaking in RAP_LEAKS[leak].items():
        monkeypatch.setattr(place, leaking)
    assert seen(PLAIN, "RAP", SHORT[:1]).done[0].code == 0
    assert list(differences(seen, ("RAP", SHORT[:1]), ["empty", "one person"], capfd))


def test_every_combination_asked_for_has_a_row_whoever_is_in_it(town):
    Path("data.csv").write_bytes(CSV.splitlines(keepends=True)[0])
    ok("release", "data.csv", "--epsilon", "1")
    rows = {path.stem: pq.read_table(path).num_rows for path in Path("release").glob("*.parquet")}
    assert rows.pop("measurements") >= 15
    assert rows == {"age_by_sex": 15, "pairs": 6 + 6 + 9, "ages": 15, "errors": 3}


def test_a_published_file_holds_no_metadata_but_its_own(town):
    ok("release", "data.csv", "--epsilon", "1")
    for path in Path("release").glob("*.parquet"):
        assert set(pq.read_metadata(path).metadata) == {b"dpquery", b"ARROW:schema"}, path
