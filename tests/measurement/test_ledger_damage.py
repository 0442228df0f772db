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
from ledgers import CAP, edit, new_ledger, opened, price, release, spent
from town import FAST, contents, kinds, ok, refused, renew, run

from dpquery.exceptions import LedgerError, SpecError
from dpquery.measurement.accounting import UNIT
from dpquery.measurement.ledger import store as ledger_store
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


def test_every_event_taken_out_swapped_doubled_or_put_in_is_found(charged, record_property):
    whole = rows(charged)
    numbered = [(seq, body, digest) for seq, (_, body, digest) in enumerate(whole, 1)]
    assert numbered == whole
    changed = []
    for at in range(len(whole)):
        rest = [*whole[:at], *whole[at + 1 :]]
        changed.append(rest)  # taken out, the last one too
        if at + 1 < len(whole):
            with pytest.raises(LedgerError, match=f"damaged at event {at + 1}:"):
                read_chain(rest)
        changed.append(renumbered(rest))
        changed.append(whole[:at])  # all from here on cut off
        changed.append(renumbered([*whole[: at + 1], *whole[at:]]))  # doubled
    for one, two in combinations(range(len(whole)), 2):
        swapped = list(whole)
        swapped[one], swapped[two] = whole[two], whole[one]
        changed += [renumbered(swapped), swapped_bodies(whole, one, two)]
    for events in changed:
        assert is_noticed(charged, events), events
    assert not is_noticed(charged, whole)
    record_property("bad inputs", len(changed))


def renumbered(events):
    return [(seq, body, digest) for seq, (_, body, digest) in enumerate(events, 1)]


def swapped_bodies(whole, one, two):
    swapped = [list(row) for row in whole]
    swapped[one][1], swapped[two][1] = whole[two][1], whole[one][1]
    return swapped


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


def test_a_measurement_of_another_type_is_a_damaged_one(path):
    """A schema says what is written, not what a damaged page or another hand makes of it."""
    with opened(path) as ledger:
        release(ledger, "k1")
    edit(path, "ALTER TABLE measurements RENAME TO kept")
    edit(path, "CREATE TABLE measurements (seq INTEGER PRIMARY KEY, payload)")
    for value in ("text", 7, 1.5, None):
        edit(path, "INSERT OR REPLACE INTO measurements VALUES (3, ?)", value)
        with opened(path) as ledger, pytest.raises(LedgerError, match="changed or damaged"):
            ledger.verify()


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


def sealed(seq, text, head):
    """An event of this text with a sound hash, as whoever can write the ledger may make one."""
    digest = hashlib.sha256(f"{head.hash}\n{seq}\n{text}".encode()).hexdigest()
    return seq, text, digest


RESERVE = '{"day":"2026-01-01","fields":%s,"kind":"reserve"}'
HOSTILE = {
    "deep JSON": "[" * 200_000,
    "deep fields": RESERVE % ("[" * 3000 + "]" * 3000),
    "no object": "7",
    "NaN": RESERVE % '{"dataset":"people","details":NaN,"key":"k","units":"1"}',
    "a twin key": RESERVE % '{"dataset":"people","key":"k","key":"k","units":"1"}',
    "another spelling": RESERVE % '{"dataset": "people","key":"k","units":"1"}',
    "half a character": RESERVE % r'{"dataset":"people","key":"\ud800","units":"1"}',
    "no day": '{"day":7,"fields":{"dataset":"people","key":"k","units":"1"},"kind":"reserve"}',
    "an odd day": '{"day":"20260101","fields":{"dataset":"people","key":"k","units":"1"},'
    '"kind":"reserve"}',
    "a negative charge": RESERVE % '{"dataset":"people","key":"k","units":"-1"}',
    "a charge of nothing": RESERVE % '{"dataset":"people","key":"k","units":"0"}',
    "a charge of blanks": RESERVE % '{"dataset":"people","key":"k","units":" 1 "}',
    "an endless charge": RESERVE % ('{"dataset":"people","key":"k","units":"%s"}' % ("9" * 5000)),
    "an unknown dataset": RESERVE % '{"dataset":"x","key":"k","units":"1"}',
    "fields left out": RESERVE % '{"dataset":"people"}',
    "nothing reserved": RESERVE.replace("reserve", "commit") % '{"key":"k"}',
    "an unknown kind": RESERVE.replace("reserve", "nonsense") % "{}",
    "fields that are text": RESERVE % '"x"',
    "no fields": RESERVE % "null",
}

REGISTER = {"currency": "epsilon", "dataset": "others", "delta": "0", "epsilon": "1", "units": "5"}
REGISTER |= {"unit": "row, add-remove"}
for NAME, VALUES in {
    "epsilon": ("1e999999999", "1/0x", "-1", 1.5),
    "units": ("1e9", -5, None),
}.items():
    for VALUE in VALUES:
        FIELDS = json.dumps(REGISTER | {NAME: VALUE}, sort_keys=True, separators=(",", ":"))
        HOSTILE[f"a cap of {NAME} {VALUE}"] = RESERVE.replace("reserve", "register") % FIELDS


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_event_with_a_sound_hash_is_a_damaged_ledger(path, text):
    with opened(path) as ledger:
        head = ledger.head()
    edit(path, "INSERT INTO events VALUES (?, ?, ?)", *sealed(2, text, head))
    with pytest.raises(LedgerError, match="damaged at event 2:"), opened(path):
        pass


def test_the_hostile_events_would_be_taken_in_if_they_were_sound(path):
    with opened(path) as ledger:
        head = ledger.head()
    fields = json.dumps(REGISTER, sort_keys=True, separators=(",", ":"))
    cap = sealed(2, RESERVE.replace("reserve", "register") % fields, head)
    charge = RESERVE % '{"dataset":"people","key":"k","units":"1"}'
    edit(path, "INSERT INTO events VALUES (?, ?, ?)", *cap)
    edit(path, "INSERT INTO events VALUES (?, ?, ?)", *sealed(3, charge, Head(2, cap[2])))
    assert spent(path) == 1


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


def test_an_event_rewritten_with_its_own_hash_breaks_the_chain_after_it(path):
    with opened(path) as ledger:
        release(ledger)
        register, reserve, _ = ledger.history()
    cheaper = dict(reserve.fields) | {"units": "1"}
    event, text = ledger_store.seal(register.head, kind="reserve", day=reserve.day, fields=cheaper)
    edit(path, "UPDATE events SET body = ?, hash = ? WHERE seq = 2", text, event.head.hash)
    with pytest.raises(LedgerError, match="damaged at event 3:"), opened(path):
        pass


@pytest.mark.parametrize("size", [3, 600_000])
def test_a_changed_or_lost_measurement_is_found(path, size):
    with opened(path) as ledger:
        release(ledger, values=np.arange(size))
    for change in ("x", None):
        if size > 3:
            (file,) = path.parent.rglob("*.i64")
            file.write_bytes(b"x") if change else file.unlink()
        elif change:
            edit(path, "UPDATE measurements SET payload = x'00'")
        else:
            edit(path, "DELETE FROM measurements")
        with opened(path) as ledger:
            for use in (ledger.verify, lambda: release(ledger)):
                with pytest.raises(LedgerError):
                    use()


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
