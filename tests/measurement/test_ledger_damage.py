"""Whatever is changed in a ledger is found, and no event is ever read as another."""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing, suppress
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from damage import chance
from ledgers import CAP, edit, new_ledger, new_panel, opened, price, release
from town import FAST, contents, kinds, ok, refused, renew, run

from dpquery.exceptions import LedgerError, SpecError
from dpquery.measurement.accounting import UNIT
from dpquery.measurement.ledger.events import Event, Head, cap_fields, cap_from, read_chain
from dpquery.measurement.ledger.ledger import missing_event, named_event, releases_below
from dpquery.measurement.ledger.store import MeasurementFile


@pytest.fixture
def charged(path):
    """A ledger with every kind of event, the last of each kind at its end in turn."""
    with opened(path) as ledger:
        release(ledger, "k1")
        release(ledger, "k2", 2 * UNIT)
        with ledger.hold("k3"):
            for _ in range(2):
                ledger.reserve("people", key="k3", price=price(), native={}, details={})
        ledger.abandon("k3")
    return path


def rows(path):
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT seq, body, hash FROM events ORDER BY seq").fetchall()


def rewrite(path, events):
    """Put these (seq, body, hash) in the place of all events."""
    with closing(sqlite3.connect(path)) as database:
        for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("DELETE FROM events")
        database.executemany("INSERT INTO events VALUES (?, ?, ?)", events)
        database.commit()


def is_noticed(path, events):
    rewrite(path, events)
    with suppress(LedgerError), opened(path):
        return False
    return True


def test_every_byte_of_every_event_is_covered(charged, record_property):
    whole, tried = rows(charged), 0
    changes = [*[chr(code) for code in (0, 32, 48, 57, 65, 123)], "é"]
    for place, (seq, body, digest) in enumerate(whole):
        for column, text in ((1, body), (2, digest)):
            for at in range(len(text)):
                change = changes[(at + place) % len(changes)]
                if text[at] == change:
                    change = "x"
                row = [seq, body, digest]
                row[column] = text[:at] + change + text[at + 1 :]
                tried += 1
                # The chain is read as `open` reads it; a hundred of them go the whole way.
                if tried % 40 == 0:
                    assert is_noticed(charged, [*whole[:place], row, *whole[place + 1 :]])
                with pytest.raises(LedgerError, match=f"damaged at event {seq}:"):
                    read_chain([*whole[:place], row, *whole[place + 1 :]])
    record_property("bad inputs", tried)
    assert tried > 1500


def changed_chains(whole):
    """All rows but for one or two events: taken out, doubled, swapped, rewritten or cut off."""

    def renumbered(events):
        return [(seq, body, digest) for seq, (_, body, digest) in enumerate(events, 1)]

    for at in range(len(whole)):
        rest = [*whole[:at], *whole[at + 1 :]]
        other_day = json.loads(whole[at][1]) | {"day": "2026-02-02"}
        text = json.dumps(other_day, sort_keys=True, separators=(",", ":"))
        rewritten = followed(whole[:at] or [(0, "", "0" * 64)], text)[-1:]
        yield from (rest, renumbered(rest), whole[:at], renumbered([*whole[: at + 1], *whole[at:]]))
        yield [*whole[:at], *rewritten, *whole[at + 1 :]] if at + 1 < len(whole) else rest
    for one, two in combinations(range(len(whole)), 2):
        swapped, bodies = list(whole), [list(row) for row in whole]
        swapped[one], swapped[two] = whole[two], whole[one]
        bodies[one][1], bodies[two][1] = whole[two][1], whole[one][1]
        yield from (renumbered(swapped), bodies)


def test_every_event_taken_out_swapped_doubled_or_put_in_is_found(charged, record_property):
    whole = rows(charged)
    for at in range(len(whole) - 1):
        with pytest.raises(LedgerError, match=f"damaged at event {at + 1}:"):
            read_chain([*whole[:at], *whole[at + 1 :]])
    changed = list(changed_chains(whole))
    for events in changed:
        assert is_noticed(charged, events), events
    assert not is_noticed(charged, whole)
    record_property("bad inputs", len(changed))


def test_every_changed_byte_of_a_stored_measurement_is_found(path, record_property):
    with opened(path) as ledger:
        release(ledger, "k1")
        release(ledger, "k2", values=np.arange(3))
    with closing(sqlite3.connect(path)) as database:
        ((payload,), (other,)) = database.execute("SELECT payload FROM measurements")
    changed = [
        payload[:at] + bytes([byte ^ 1]) + payload[at + 1 :] for at, byte in enumerate(payload)
    ]
    changed += [payload[:-1], payload + b"\0", b"", other, payload[::-1]]
    for content in changed:
        edit(path, "UPDATE measurements SET payload = ? WHERE seq = 3", content)
        with opened(path) as ledger:
            for use in (ledger.verify, lambda: release(ledger, "k1")):
                with pytest.raises(LedgerError, match="event 3 was changed or damaged"):
                    use()
            assert release(ledger, "k2").values.tolist() == [0, 1, 2]
    edit(path, "UPDATE measurements SET payload = ? WHERE seq = 3", payload)
    with opened(path) as ledger:
        ledger.verify()
    record_property("bad inputs", len(changed))


def test_a_measurement_of_another_type_or_none_is_a_damaged_one(path):
    """A schema says what is written, not what a damaged page or another hand makes of it."""
    with opened(path) as ledger:
        release(ledger, "k1")
    edit(path, "ALTER TABLE measurements RENAME TO kept")
    edit(path, "CREATE TABLE measurements (seq INTEGER PRIMARY KEY, payload)")
    for value in ("gone", "text", 7, 1.5, None):
        if value != "gone":
            edit(path, "INSERT OR REPLACE INTO measurements VALUES (3, ?)", value)
        with opened(path) as ledger:
            for use in (ledger.verify, lambda: release(ledger, "k1")):
                with pytest.raises(LedgerError):
                    use()


def test_files_of_other_measurements_are_never_taken_for_ones_own(path):
    """Not those of another key, nor of the same key's earlier reservation, nor a pending one."""
    large = np.arange(600_000)
    with opened(path) as ledger:
        release(ledger, "k1", values=large)
        (mine,) = path.with_name("ledger.db.measurements").iterdir()
        release(ledger, "k2", values=large + 1)
        (other,) = {*mine.parent.iterdir()} - {mine}
        kept = mine.read_bytes()
        mine.write_bytes(other.read_bytes())
        with pytest.raises(LedgerError, match="changed or damaged"):
            release(ledger, "k1")
        mine.rename(mine.with_suffix(".pending"))
        with pytest.raises(LedgerError, match="No such file"):
            release(ledger, "k1")
        mine.write_bytes(kept)
        assert release(ledger, "k1").values.tolist() == large.tolist()
    abandoned = MeasurementFile(path, key="k3", reserved=2)
    abandoned.write_pending(np.full(600_000, 7))
    abandoned.publish()  # what a run left whose reservation is another
    with opened(path) as ledger, ledger.hold("k3"):
        ledger.reserve("people", key="k3", price=price(), native={}, details={})
        assert ledger.commit("k3", large, source="OpenDP 0").values[0] == 0
        assert ledger.lookup("people", key="k3", price=price()).values[1] == 1


@pytest.mark.parametrize("damaged", ["1/0", "7/", "/7", "/", "1/2/3", "-1", "1/-2", ""])
def test_a_cap_that_is_no_number_is_not_read_as_one(damaged):
    fields = cap_fields("people", CAP)
    assert cap_from(fields) == CAP
    assert cap_from(fields | {"delta": "1/2"}).delta == Fraction(1, 2)
    for name in ("epsilon", "delta"):
        with pytest.raises(ValueError, match="not a"):
            cap_from(fields | {name: damaged})


def as_text(kind, **fields):
    """The text of an event as it is stored."""
    body = {"day": "2026-01-01", "fields": fields, "kind": kind}
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


RESERVE = '{"day":"2026-01-01","fields":%s,"kind":"reserve"}'
CHARGE = {"dataset": "people", "key": "k", "units": "1"}
CAP_FIELDS = {"currency": "epsilon", "dataset": "others", "delta": "0", "epsilon": "1"}
CAP_FIELDS |= {"unit": "row, add-remove", "units": "5"}
IN_WAVE, NONE = CHARGE | {"dataset": "wave-1"}, {"units": "0"}
HOSTILE = {
    "deep JSON": "[" * 200_000,
    "deep fields": RESERVE % ("[" * 3000 + "]" * 3000),
    "no object": "7",
    "NaN": RESERVE % '{"dataset":"people","details":NaN,"key":"k","units":"1"}',
    "a twin key": RESERVE % '{"dataset":"people","key":"k","key":"k","units":"1"}',
    "another spelling": RESERVE % '{"dataset": "people","key":"k","units":"1"}',
    "half a character": as_text("reserve", **CHARGE | {"key": "\ud800"}),
    "no day": as_text("reserve", **CHARGE).replace('"2026-01-01"', "7"),
    "an odd day": as_text("reserve", **CHARGE).replace("-", ""),
    "fields left out": as_text("reserve", dataset="people"),
    "nothing reserved": as_text("commit", key="k"),
    "an unknown kind": as_text("nonsense"),
    "fields that are text": RESERVE % '"x"',
    "no fields": RESERVE % "null",
    "an unknown dataset": as_text("reserve", **CHARGE | {"dataset": "x"}),
    "a parent left out": as_text("reserve", **IN_WAVE),
    "another parent": as_text("reserve", **IN_WAVE, parent="wave-2"),
    "its own parent": as_text("reserve", **CHARGE | {"dataset": "panel"}, parent="panel"),
    "units that were not spent": as_text("adopt", dataset="people", parent="panel", units="1"),
}
for DATASET, PARENT in (
    *(("wave-1", "wave-2"), ("panel", "wave-2"), ("panel", "panel"), ("people", "wave-2")),
    *(("people", "nobody"), ("people", "people")),
):
    FIELDS = {"dataset": DATASET, "parent": PARENT, "units": "0"}
    HOSTILE[f"{DATASET} under {PARENT}"] = as_text("adopt", **FIELDS)
for UNITS in ("-1", "0", " 1 ", "9" * 5000):
    HOSTILE[f"a charge of {UNITS[:9]!r}"] = as_text("reserve", **CHARGE | {"units": UNITS})
for NAME, VALUE in (
    *(("epsilon", value) for value in ("1e999999999", "1/0x", "-1", 1.5)),
    *(("units", value) for value in ("1e9", -5, None)),
):
    HOSTILE[f"a cap of {NAME} {VALUE}"] = as_text("register", **CAP_FIELDS | {NAME: VALUE})


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """The rows of a ledger of two waves under a panel, and of people apart."""
    path = new_panel(tmp_path_factory.mktemp("family"))
    with opened(path) as ledger:
        ledger.register("people", CAP)
    return rows(path)


def followed(whole, *texts):
    """Rows and what is put behind them, with sound hashes, by whoever can write the ledger."""
    whole = list(whole)
    for text in texts:
        seq, digest = whole[-1][0] + 1, whole[-1][2]
        digest = hashlib.sha256(f"{digest}\n{seq}\n{text}".encode()).hexdigest()
        whole.append((seq, text, digest))
    return whole


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_event_with_a_sound_hash_is_a_damaged_ledger(family, text, record_property):
    with pytest.raises(LedgerError, match=f"damaged at event {len(family) + 1}:"):
        read_chain(followed(family, text))
    record_property("bad inputs", 1)


def test_the_hostile_events_would_be_taken_in_if_they_were_sound(family):
    texts = as_text("register", **CAP_FIELDS), as_text("reserve", **CHARGE)
    texts += (
        as_text("reserve", **IN_WAVE | {"key": "l"}, parent="panel"),
        as_text("adopt", dataset="people", parent="panel", units="1"),
    )
    state, events = read_chain(followed(family, *texts))
    assert len(events) == len(family) + 4
    assert [state.accounts[name].spent for name in ("people", "wave-1", "panel")] == [1, 1, 2]


def test_a_ledger_without_parents_is_read_and_written_as_before(charged):
    """No new field, and so no new hash, where there is no parent."""
    register, reserve, commit, *_ = (json.loads(body)["fields"] for _, body, _ in rows(charged))
    assert sorted(register) == sorted(CAP_FIELDS)
    assert sorted(reserve) == ["dataset", "details", "key", "native", "units"]
    assert sorted(commit) == ["key", "sha256", "size", "source"]


@pytest.mark.parametrize("told", ["PRAGMA user_version = 2", "PRAGMA user_version"])
def test_a_measurement_without_its_event_is_found(path, told):
    """Whatever the count of the events is made to say."""
    with opened(path) as ledger:
        release(ledger)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in ("DROP TRIGGER events_stay", "DELETE FROM events WHERE seq = 3", told):
            database.execute(statement)
    with pytest.raises(LedgerError, match="lost events off its end"), opened(path):
        pass


def test_rows_can_only_be_added(path):
    with opened(path) as ledger:
        release(ledger)
    database = sqlite3.connect(path)
    for statement in (
        "DELETE FROM events",
        "DELETE FROM measurements",
        "UPDATE events SET seq = seq + 7",
        "UPDATE measurements SET seq = seq + 7",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append only"):
            database.execute(statement)
    database.close()


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
    "no damage": lambda content, _: content,
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
    assert "sqlite" not in done.err.replace("an SQLite file", "").lower()  # what a ledger is
    assert done.code == 0 or done.err.startswith(
        '{"error": ' if "--json" in command else "dpquery: "
    )
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
                done = check(path, COMMANDS[tried % len(COMMANDS)])
                assert damage != "no damage" or done.code == 0
                with suppress(LedgerError), opened(path) as ledger:
                    heads = [event.head for event in ledger.history()]
                    events = whole["events"]
                    expected = events[: len(heads)] + heads[len(events) :]  # giving up adds one
                    assert heads == expected
                    # Damage to the log can take its end away, as if it had not been written.
                    assert ending == "-wal" or len(heads) >= len(events)
    record_property("bad inputs", tried)


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


# A release testifies to what was charged, whatever became of the ledger.

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
    Path("data.csv").unlink()  # it is refused before they are opened
    said = refused(*arguments, code=4)
    assert "ends at event 1" in said
    assert "an older copy" in said
    assert "move the folder away" in said
    assert "nothing was charged" in said
    assert kinds() == ["register"]


def test_a_ledger_made_anew_does_not_replace_what_the_lost_one_paid_for(town):
    ok("plan", "workload.yaml")
    ok(*RELEASE)
    shutil.rmtree("state")
    assert "and there is no ledger" in refused("plan", "workload.yaml", code=4)
    said = ok("plan", "workload.yaml", "--new-dataset").err
    assert "is a new ledger, in which nothing has been spent" in said
    assert "another ledger" in refused(*RELEASE, code=4)
    Path("release").rename("kept")  # on purpose: the witness is still there
    Path("release").mkdir()  # an empty target needs no witness
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
    """Answers testify like the release that they were made of; what is no release hides none."""
    shutil.copytree("release", "all/a")
    shutil.copytree("release", "all/deep/er/b")
    Path("questions.yaml").write_text("workload: [{name: sexes, product: {sex: identity}}]\n")
    ok("answer", "release", "questions.yaml", "--out", "all/answers")
    ok(*RELEASE, "--out", "all/deep/c")
    ok("answer", "all/deep/c", "questions.yaml", "--out", "all/deep/d")
    assert (
        "2 releases in the chain"
        in ok("ledger", "verify", "--releases", "all/deep/c", "--releases", "all/deep/d").out
    )
    for name in ("all/0", "all/z"):
        Path(name).mkdir()
        Path(name, "release.json").write_text("{}")
    said = refused("ledger", "verify", "--releases", "all", code=4)
    missing = ("all/a ", "all/answers ", "all/deep/er/b ")
    assert [f"release {name}is not in the ledger" in said for name in missing] == [True] * 3
    assert [f"{name} is not a release of dpquery" in said for name in ("all/0", "all/z")] == [1, 1]
    assert "all/deep/c" not in said
    assert "restore the ledger that was charged" in said
    assert "none below it" in refused("ledger", "verify", "--releases", "state", code=2)
    assert "cannot be searched" in refused("ledger", "verify", "--releases", "nowhere", code=2)


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
