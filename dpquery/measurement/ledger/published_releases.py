"""Published releases checked against the ledger: each names the event that paid for it.

A hash chain does not show that its end is missing. Whoever restores an older copy of the ledger,
or charges two copies of it, has a chain that is sound and does not count everything that was
published; the releases themselves are the only witnesses of what it lacks. So a release is never
replaced by one from a ledger that does not know it, and `dpquery ledger verify --releases` looks
up all there are. Where another ledger is meant to be used, the folder is to be moved away first:
that keeps the witness, and is done on purpose.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from dpquery.exceptions import LedgerError, SpecError
from dpquery.limits import MAX_JSON_BYTES
from dpquery.measurement.ledger.events import Event, Head
from dpquery.untrusted.files import read_outside
from dpquery.untrusted.json_values import mapping, parsed

MANIFEST_FILE = "release.json"


def releases_below(folder: Path) -> list[Path]:
    """Return every folder with a release at or below a folder; hidden ones below are left out.

    Links to folders are followed, and every folder is looked at once.

    Raises:
        SpecError: there is none, or a folder cannot be searched.
    """

    def unreadable(problem: OSError) -> None:
        raise SpecError(f"{problem.filename} cannot be searched for releases; check the path")

    releases, seen = [], set()
    for place, inner, files in os.walk(folder, onerror=unreadable, followlinks=True):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        real = os.path.realpath(place)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        if MANIFEST_FILE in files:
            releases.append(Path(place))
    if not releases:
        raise SpecError(f"{folder} is not a release of dpquery, and there is none below it")
    return releases


def named_event(release: Path) -> Head:
    """Return the event that a release, or answers computed from one, names.

    Raises:
        SpecError: the folder is no release.
    """
    try:
        content = read_outside(release / MANIFEST_FILE, most=MAX_JSON_BYTES)
        named = mapping(mapping(parsed(content))["ledger"])
        seq, digest = named["seq"], named["head"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        seq = digest = None
    if type(seq) is int and isinstance(digest, str):
        return Head(seq, digest)
    raise SpecError(
        f"{release} is not a release of dpquery: its {MANIFEST_FILE} names no ledger event"
    )


def missing_event(release: Path, events: Sequence[Event], *, ledger: Path) -> str | None:
    """Return how a ledger lacks the event that a release names, in a line; None if it has it.

    Args:
        release: the folder.
        events: the ledger's whole chain.
        ledger: its path, for the message.

    Returns:
        A line for the user, or None if the event is in the chain.
    """
    named = named_event(release)
    if 1 <= named.seq <= len(events):
        if events[named.seq - 1].head == named:
            return None
        cause = (
            f"whose event {named.seq} is another one: two copies of a ledger have been charged, "
            "or this is another ledger"
        )
    else:
        cause = (
            f"which ends at event {len(events)} and not at {named.seq} or later: this is an older "
            "copy, or another ledger"
        )
    return f"release {release} is not in the ledger at {ledger}, {cause}"


def check_witnesses(releases: Sequence[Path], events: Sequence[Event], *, ledger: Path) -> None:
    """Check that every release is in the ledger; all that fail are named in one error.

    Raises:
        LedgerError: some are not in the chain.
        SpecError: all that can be read are, and some folders are no release.
    """
    missing, unreadable = [], []
    for release in releases:
        try:
            line = missing_event(release, events, ledger=ledger)
        except SpecError as error:
            unreadable.append(str(error))
        else:
            missing += [] if line is None else [line]
    if missing:
        raise LedgerError("\n".join([*missing, *unreadable, "restore the ledger that was charged"]))
    if unreadable:
        raise SpecError("\n".join(unreadable))
