"""Killed before any of its system calls, or refused any of them, a run loses nothing.

Every call that changes a disk, SQLite's and pyarrow's own included, is in turn the one before which
the process is killed, the one that fails, and the one from which on there is no room left. What is
asked each time: the chain holds, a release is charged at most once, nothing is published without a
committed charge, an earlier release is whole, and the next run ends well at no further charge.
"""

import errno
import json
import re
import secrets
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from interference_support import COUNT, FAIL_FROM, FAIL_ONCE, KILL, failing_calls
from ledgers import CAP, charge, new_ledger, opened, release, spent
from town import FAST, contents, ok, renew

from dpquery.exceptions import LedgerError
from dpquery.measurement.accounting import UNIT
from dpquery.measurement.ledger.ledger import Ledger

needs_a_compiler = pytest.mark.skipif(failing_calls() is None, reason="needs cc, on Linux")

WAYS = {
    "killed": (KILL, 0),
    "refused for want of room": (FAIL_ONCE, errno.ENOSPC),
    "refused by the disk": (FAIL_ONCE, errno.EIO),
    "out of room from there on": (FAIL_FROM, errno.ENOSPC),
}
SIZES = {"in a row": 2, "in a file": 600_000}


def disturbing(*, some, all_):
    """Parameters (way, step): every day two ways at some calls, else each way at all or many."""
    everyday = [pytest.param(way, some, id=f"{way}, some") for way in list(WAYS)[:2]]
    slow = [pytest.param(way, all_, id=way, marks=pytest.mark.slow) for way in WAYS]
    return pytest.mark.parametrize(("way", "step"), everyday + slow)


@pytest.fixture
def folder():
    """A folder in memory, if there is one: what a kill leaves does not depend on the disk."""
    with TemporaryDirectory(dir=FAST) as name:
        yield Path(name)


def numbers(calls, step):
    """Numbers of the calls to disturb: all, or some, others every time, and the last."""
    return sorted({*range(1 + secrets.randbelow(step), calls + 1, step), calls})


# ------------------------------------------------------------------------------- the ledger alone

PRELUDE = """
import sys
from pathlib import Path
import numpy as np
from dpquery.exceptions import DpqueryError
from dpquery.measurement.ledger.ledger import Ledger
from ledgers import CAP, charge, opened, release
def reported(work):
    try:
        work()
    except DpqueryError as error:
        sys.stderr.write(str(error))
        sys.exit(error.exit_code)
"""
RELEASES = (
    PRELUDE
    + """
def work():
    with opened(Path("state/ledger.db")) as ledger:
        release(ledger, "k2", values=np.full({size}, 1))
"""
)
REGISTERS = (
    PRELUDE
    + """
def work():
    with Ledger.open(Path("new/deep/ledger.db"), create=True) as ledger:
        ledger.register("people", CAP)
"""
)
ABANDONS = (
    PRELUDE
    + """
def work():
    with opened(Path("state/ledger.db")) as ledger:
        ledger.abandon("k3")
"""
)


def calls_of(forks, job):
    """Run a job undisturbed and return the number of calls to disturb."""
    (done,) = forks.run(job | {"arm": (COUNT, 0, 0)})
    assert done.code == 0, done
    assert len(done.names) > 5
    return len(done.names)


def disturbed(forks, job, *, way, number):
    """Run a job whose call of this number is the one; it ends as it may."""
    mode, error = WAYS[way]
    (done,) = forks.run(job | {"arm": (mode, number, error)})
    if mode == KILL:
        assert done.code == -9, done
        assert done.out == done.err == ""
    else:
        assert done.code in {0, LedgerError.exit_code, 70}, done
        assert not re.search("Traceback|internal error|CANARY", done.err), done
        assert done.code == 0 or done.err
    return done


@pytest.mark.nightly
@needs_a_compiler
@disturbing(some=8, all_=1)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_release_disturbed_at_any_call_is_charged_once_and_goes_on_free(
    folder, forks, way, size, step, record_property
):
    template = folder / "template"
    with opened(new_ledger(template)) as ledger:
        release(ledger, "k1", values=np.full(size, 7))
    working = folder / "own"
    path = working / "state" / "ledger.db"
    job = {"folder": working, "before": RELEASES.format(size=size), "code": "reported(work)"}
    renew(working, template)
    crashes = numbers(calls_of(forks, job), step)
    charged, committed, crashed = set(), set(), 0
    for number in crashes:
        renew(working, template)
        done = disturbed(forks, job, way=way, number=number)
        crashed += done.code != 0
        with opened(path) as ledger:
            ledger.verify()
            kinds = [event.kind for event in ledger.history()]
            assert kinds in (
                *(["register", "reserve", "commit"], ["register", "reserve", "commit", "reserve"]),
                ["register", "reserve", "commit", "reserve", "commit"],
            )
            assert done.code != 0 or kinds[3:] == ["reserve", "commit"]
            charged.add(len(kinds) > 3)
            committed.add(len(kinds) > 4)
            kept = 1 if len(kinds) > 4 else 2
            for values in (np.full(size, 2), np.full(size, 3)):
                assert set(release(ledger, "k2", values=values).values.tolist()) == {kept}
            assert set(release(ledger, "k1").values.tolist()) == {7}
            ledger.verify()
        assert spent(path) == 2 * UNIT
        left = {file.suffix for file in path.with_name("ledger.db.measurements").glob("*")}
        assert left <= {".i64"}
    # Some were disturbed before, and some after.
    assert charged == committed == {False, True}
    record_property("crashes", crashed)


@needs_a_compiler
@disturbing(some=8, all_=1)
def test_a_ledger_whose_making_is_disturbed_at_any_call_is_whole_or_not_there(
    folder, forks, way, step, record_property
):
    job = {"folder": folder, "before": REGISTERS, "code": "reported(work)"}
    crashes = numbers(calls_of(forks, job), step)
    path, crashed = folder / "new" / "deep" / "ledger.db", 0
    for number in crashes:
        shutil.rmtree(folder / "new")
        crashed += disturbed(forks, job, way=way, number=number).code != 0
        with Ledger.open(path, create=True) as ledger:
            ledger.register("people", CAP)
            assert [event.kind for event in ledger.history()] == ["register"]
            release(ledger)
        assert {left.name for left in path.parent.iterdir()} == {"ledger.db", "ledger.db.locks"}
    record_property("crashes", crashed)


@needs_a_compiler
@disturbing(some=8, all_=1)
def test_giving_up_disturbed_at_any_call_gives_no_charge_back(
    folder, forks, way, step, record_property
):
    template = folder / "template"
    with opened(new_ledger(template)) as ledger, ledger.hold("k3"):
        charge(ledger, "k3")
        ledger.draft("k3").append(np.arange(3))
    working = folder / "own"
    path = working / "state" / "ledger.db"
    job = {"folder": working, "before": ABANDONS, "code": "reported(work)"}
    renew(working, template)
    crashes, crashed = numbers(calls_of(forks, job), step), 0
    for number in crashes:
        renew(working, template)
        crashed += disturbed(forks, job, way=way, number=number).code != 0
        assert spent(path) == UNIT
        with opened(path) as ledger:
            given_up = ledger.history()[-1].kind == "abandon"
            if not given_up:
                with ledger.hold("k3"):  # what was drawn is still there to be gone on with
                    charge(ledger, "k3")
                    assert [values.tolist() for values in ledger.draft("k3").parts()] == [[0, 1, 2]]
                ledger.abandon("k3")
            assert release(ledger, "k3").values.tolist() == [5, -(2**61), 0, 7]
        assert spent(path) == 2 * UNIT
    record_property("crashes", crashed)


# ------------------------------------------------------------------------- the whole command line

LATER = ["release", "data.csv", "--epsilon", "1", "--replace"]


@pytest.fixture
def working_town(planned_town, folder, monkeypatch):
    """A town that holds an earlier release; a function makes the working folder the same again."""
    template, working = folder / "template", folder / "own"
    renew(template, planned_town)
    renew(working, template)
    working.mkdir(exist_ok=True)
    monkeypatch.chdir(working)
    monkeypatch.setenv("DPQUERY_LEDGER", str(working / "state" / "ledger.db"))
    ok("release", "data.csv", "--epsilon", "0.5")
    renew(template, working)

    def again():
        monkeypatch.chdir(folder)
        renew(working, template)
        monkeypatch.chdir(working)

    return working, again


def command(folder, *arguments, **settings):
    environment = {"DPQUERY_LEDGER": str(folder / "state" / "ledger.db")}
    return {"folder": folder, "arguments": arguments, "environment": environment} | settings


def events():
    with opened(Path("state/ledger.db")) as ledger:
        return ledger.history()


def charges():
    return [event.kind for event in events() if event.kind in {"reserve", "commit"}]


def check_left_behind(before):
    """Check what a disturbed run left: return whether its measurement is committed."""
    published = Path("release") if Path("release").exists() else Path(".release.writing/old")
    with opened(Path("state/ledger.db")) as ledger:
        ledger.verify([published])
    kinds = charges()
    assert kinds in (["reserve", "commit", "reserve", "commit"][:most] for most in (2, 3, 4))
    if contents("release") != before:
        # The new one is in its place, or the earlier one is on its way out.
        assert len(kinds) == 4
        if Path("release").exists():
            assert json.loads(Path("release/release.json").read_text())["ledger"]["seq"] > 3
        else:
            assert contents(".release.writing/old") == before
    return len(kinds) == 4


def check_completed(forks, folder, committed):
    """Run again to the end: free, whole, the committed measurement, nothing left lying about."""
    stored = events()[-1].fields["sha256"] if committed else None
    first, second = forks.run(command(folder, *LATER), command(folder, *LATER, "--out", "again"))
    assert first.code == second.code == 0, first
    assert charges() == ["reserve", "commit"] * 2
    assert spent(Path("state/ledger.db"), "town") == 3 * UNIT // 2
    published = json.loads(Path("release/release.json").read_text())["measurements"]
    assert published == events()[-1].fields["sha256"]
    assert stored in (None, published)
    assert contents("again") == contents("release")
    with opened(Path("state/ledger.db")) as ledger:
        ledger.verify([Path("release"), Path("again")])
    left = [name for name in contents(".") if re.search(r"writing|pending|/\.|db\.new", name)]
    assert not left


def telling(forks, job):
    """Numbers of the calls to disturb: of a long row of the same calls only the ends."""
    (done,) = forks.run(job | {"arm": (COUNT, 0, 0)})
    assert done.code == 0, done
    names = ["", *done.names, ""]
    return [n for n in range(1, len(names) - 1) if not names[n - 1] == names[n] == names[n + 1]]


@needs_a_compiler
@disturbing(some=18, all_=5)
def test_a_command_disturbed_at_any_call_loses_nothing_and_the_next_completes_it(
    working_town, forks, way, step, record_property
):
    working, again = working_town
    before = contents("release")
    job = command(working, *LATER)
    messages = telling(forks, job)
    assert len(messages) > 40
    crashes, crashed = [messages[place - 1] for place in numbers(len(messages), step)], 0
    for number in crashes:
        again()
        done = disturbed(forks, job, way=way, number=number)
        crashed += done.code != 0
        committed = check_left_behind(before)
        assert done.code != 0 or committed
        check_completed(forks, working, committed)
    record_property("crashes", crashed)


@pytest.mark.parametrize(
    ("times", "large"),
    [
        pytest.param(3, False, id="a few"),
        pytest.param(25, False, id="many", marks=pytest.mark.slow),
        pytest.param(10, True, id="many large", marks=pytest.mark.slow),
    ],
)
def test_a_command_killed_at_a_random_moment_loses_nothing(
    working_town, forks, times, large, record_property
):
    working, again = working_town
    before = contents("release")
    to_files = (
        "import dpquery.measurement.ledger.ledger as module\nmodule.LARGE = 0" if large else ""
    )
    job = command(working, *LATER, before=to_files)
    begun = time.monotonic()
    forks.run(job)
    lasts = time.monotonic() - begun
    killed = 0
    for _ in range(times):
        again()
        (done,) = forks.run(job, kill_after=lasts * secrets.randbelow(1000) / 1000)
        assert done.code in {0, -9}
        killed += done.code == -9
        check_completed(forks, working, check_left_behind(before))
    assert killed > 0 or times < 10
    record_property("crashes", killed)
