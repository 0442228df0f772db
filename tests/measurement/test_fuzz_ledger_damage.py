"""Any damage to a ledger's files ends in exit 0 or 4, and no event is ever read as another."""

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from damage import chance
from ledgers import new_ledger, opened, price, release
from town import FAST, run

from dpquery.exceptions import LedgerError
from dpquery.measurement.accounting import UNIT


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A ledger with all kinds of events, its log beside it as a kill would leave it."""
    folder = tmp_path_factory.mktemp("whole")
    path = new_ledger(folder)
    for number in range(30):
        with opened(path) as ledger:
            release(ledger, f"key {number}", UNIT // 10, np.arange(number * 40))
    with opened(path) as ledger:
        with ledger.hold("given up"):
            ledger.reserve("people", key="given up", price=price(1), native={}, details={})
        ledger.abandon("given up")
        with ledger.hold("unfinished"):
            ledger.reserve("people", key="unfinished", price=price(1), native={}, details={})
        shutil.copytree(path.parent, folder / "killed")
        events = [event.head for event in ledger.history()]
    assert (folder / "killed" / "ledger.db-wal").stat().st_size > 4096
    return {"closed": path.parent, "killed": folder / "killed", "events": events}


def flipped(content, draw):
    """Some bytes changed, in one place or in many."""
    content = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 8, 100])):
        content[draw.randrange(len(content))] ^= 1 + draw.randrange(255)
    return bytes(content)


def shuffled_pages(content, draw):
    pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
    one, two = draw.randrange(len(pages)), draw.randrange(len(pages))
    pages[one], pages[two] = pages[two], pages[one]
    return b"".join(pages)


def blanked(content, draw):
    at = draw.randrange(len(content))
    return content[:at] + bytes(draw.choice([16, 512, 4096])) + content[at + 4096 :]


DAMAGE = {
    "bytes changed": flipped,
    "bytes changed in the head": lambda content, draw: flipped(content[:200], draw) + content[200:],
    "cut off": lambda content, draw: content[: draw.randrange(len(content))],
    "a page cut off": lambda content, _: content[: len(content) - 4096],
    "pages exchanged": shuffled_pages,
    "blanked": blanked,
    "something behind it": lambda content, draw: content + draw.randbytes(5000),
    "nothing": lambda *_: b"",
    "noise": lambda content, draw: draw.randbytes(len(content)),
}
COMMANDS = (
    *(("ledger", "verify"), ("ledger", "history"), ("ledger", "history", "--json")),
    *(("ledger", "status"), ("ledger", "export"), ("ledger", "abandon", "unfinished")),
)


def damaged(whole, folder, *, state, ending, damage, draw):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole[state], folder)
    file = folder / f"ledger.db{ending}"
    file.write_bytes(DAMAGE[damage](file.read_bytes(), draw))
    return folder / "ledger.db"


def check(path, command):
    """Run a command on a damaged ledger: it ends in 0 or 4, or for what is not there in 5."""
    done = run(*command, "--ledger", path)
    assert done.code in ({0, 4, 5} if "abandon" in command else {0, 4}), (command, done)
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    assert "sqlite" not in done.err.lower()
    assert done.code == 0 or done.err.startswith("dpquery: ")
    return done


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("times", "seed"),
    [pytest.param(2, 1, id="some"), pytest.param(30, None, id="many", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("state", "ending"), [("closed", ""), ("killed", ""), ("killed", "-wal"), ("killed", "-shm")]
)
def test_a_damaged_ledger_is_found_out_and_never_read_as_another(
    whole, state, ending, times, seed, record_property
):
    tried, draw = 0, chance(seed)
    with TemporaryDirectory(dir=FAST) as name:
        for damage in DAMAGE:
            for _ in range(times):
                place = {"state": state, "ending": ending, "damage": damage}
                path = damaged(whole, Path(name) / "own", **place, draw=draw)
                tried += 1
                check(path, COMMANDS[tried % len(COMMANDS)])
                with suppress(LedgerError), opened(path) as ledger:
                    heads = [event.head for event in ledger.history()]
                    events = whole["events"]
                    expected = events[: len(heads)] + heads[len(events) :]  # giving up adds one
                    assert heads == expected
                    # Damage to the log can take its end away, as if it had not been written.
                    assert ending == "-wal" or len(heads) >= len(events)
    record_property("bad inputs", tried)


def test_the_undamaged_ledgers_are_read_whole(whole, tmp_path):
    for state in ("closed", "killed"):
        shutil.copytree(whole[state], tmp_path / state)
        path = tmp_path / state / "ledger.db"
        assert check(path, ("ledger", "verify")).code == 0
        with opened(path) as ledger:
            assert len(ledger.history()) >= 64


def other_databases():
    yield "PRAGMA user_version = 7"
    yield "CREATE TABLE events (seq, body, hash); CREATE TABLE measurements (seq, payload)"
    mine = "PRAGMA application_id = 1685090609;"
    yield mine
    yield mine + "CREATE TABLE events (seq, body, hash)"
    measurements = "CREATE TABLE measurements (seq, payload);"
    yield mine + "CREATE VIEW events AS SELECT 1 AS seq, 2 AS body, 3 AS hash;" + measurements
    mine += "CREATE TABLE events (seq, body, hash);" + measurements
    # SQLite quotes this name, which is no text that could be read.
    unreadable = (
        "UPDATE sqlite_master SET sql = '', name = CAST(x'ff' AS TEXT) WHERE name = 'events'"
    )
    yield f"{mine} PRAGMA writable_schema = 1; {unreadable}"
    yield from (mine + f"PRAGMA user_version = {count}" for count in (-5, 1, 2147483647))
    text = "CAST(x'ff80' AS TEXT)"
    for row in ("1, x'ff', x'fe'", f"1, {text}, 'x'", "NULL, NULL, NULL", "1e300, 5, 1.5"):
        yield mine + f"INSERT INTO events VALUES ({row})"  # noqa: S608 - rows of this test
    yield mine + "INSERT INTO measurements VALUES ('x', 'y')"  # noqa: S608 - this test's


def test_another_database_is_no_ledger(tmp_path, record_property):
    scripts = list(other_databases())
    for script in scripts:
        path = tmp_path / "own" / "ledger.db"
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir(mode=0o700)
        with closing(sqlite3.connect(path)) as database:
            database.executescript(script)
        path.chmod(0o600)
        for command in COMMANDS:
            check(path, command)
    record_property("bad inputs", len(scripts))
