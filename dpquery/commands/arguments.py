"""Arguments of commands as people give them, made exact or refused with a SpecError."""

import math
import os
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from dpquery.commands.defaults import LARGEST_NUMBER, LEVELS, MEMORIES
from dpquery.exceptions import DataError, SpecError
from dpquery.measurement.accounting import parse_delta, parse_epsilon
from dpquery.measurement.ledger.store import default_path

FilePath = str | os.PathLike[str]
Amount = str | int | float | Decimal | Fraction
"""An epsilon or a delta; a float is what Python prints of it, so that 0.1 is one tenth exactly."""

_MEMORY = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]i?b|b)?\s*", re.IGNORECASE)
_BYTES = {f"{letter}B": 1000**power for power, letter in enumerate(("", *"KMGT"))}
_BYTES |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}


def exact_epsilon(given: Amount) -> Fraction:
    """Return an epsilon exactly as given; SpecError unless it is between 1e-6 and 1e6.

    >>> exact_epsilon(0.1), exact_epsilon("1e-3"), exact_epsilon(Fraction(1, 3))
    (Fraction(1, 10), Fraction(1, 1000), Fraction(1, 3))
    """
    parsed = parse_epsilon(_text(given))
    return given if isinstance(given, Fraction) else parsed


def exact_delta(given: Amount) -> Fraction:
    """Return a delta exactly as given; SpecError unless it is 0, or from 1e-100 to below 1."""
    parsed = parse_delta(_text(given))
    return given if isinstance(given, Fraction) else parsed


_LONGEST_NAME = 255  # bytes of a file's name, on every file system that a ledger may lie on
_LONGEST_PATH = 3500  # characters; Linux takes 4,096 bytes, and files in a folder have names too
_SHOWN = 40  # characters of a name that is none


def as_path(given: FilePath) -> Path:
    """Return a path; one of a class of its own stays so: the audit watches when it is opened.

    Raises:
        SpecError: no file can have that name.
    """
    path = _as_given(given)
    try:
        names = os.fsencode(path).split(b"/")
    except UnicodeEncodeError:
        names = [b"\0"]
    too_long = len(path.absolute().as_posix()) > _LONGEST_PATH
    if too_long or any(b"\0" in name or len(name) > _LONGEST_NAME for name in names):
        raise SpecError(
            f"{str(path)[:_SHOWN]!r} can be the name of no file or folder: it holds a NUL or half "
            "a character, or is too long; name another place"
        )
    return path


def _as_given(given: FilePath) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise SpecError(f"{_what(given)} was given where a path is expected; give that as a text")
    return given if isinstance(given, Path) else Path(given)


def _what(given: object) -> str:
    """Return what was given, by its type: it may hold data."""
    name = type(given).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def as_data(
    given: FilePath | Sequence[FilePath], order: str = "dpquery release DATA"
) -> Path | list[Path | str]:
    """Return where the data lie: one location or several.

    Args:
        given: the locations.
        order: how the command is typed, for messages.

    Raises:
        DataError: one of them is a spec or a plan, by its name.
    """
    several = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(several, list | tuple):
        raise DataError(
            f"{_what(given)} was given where the path of the data is expected, or a list of paths; "
            "write it to a file, such as Parquet, and name that"
        )
    check_data_named(several, order)
    if isinstance(given, os.PathLike):
        return _as_given(given)
    # No path: `spark:s3a://` has two slashes in a row.
    return [at if isinstance(at, str) and ":" in at else _as_given(at) for at in several]


def check_data_named(locations: Iterable[FilePath], order: str) -> None:
    """Refuse a spec or a plan where the data should stand, by its name; `order` is the command."""
    for at in locations:
        ending = str(at).lower().rpartition(".")[2]
        if ending in ("yaml", "yml", "plan"):
            found, remedy = "a plan" if ending == "plan" else "a spec", f"`{order}`"
            if order == "dpquery release DATA":  # which reads the spec in its plan
                made = f"`{order}` after `dpquery plan {at}`"
                remedy = f"`{order} --plan {at}`" if ending == "plan" else made
            raise DataError(f"{at}: this seems to be {found}, not the data; write {remedy}")


def ledger_place(given: FilePath | None) -> Path:
    """Return the ledger that was named, or the default one."""
    return default_path() if given is None else as_path(given)


def _check_number(name: str, given: object, which: str) -> None:
    if not isinstance(given, int | float):
        raise SpecError(f"{name} is {_what(given)}; expected a number {which}")


def checked_level(given: float | None) -> float | None:
    """Return the level of noise intervals; SpecError unless it is within LEVELS."""
    if given is None:
        return None
    _check_number("confidence", given, "such as 0.95")
    if not LEVELS[0] <= given <= LEVELS[1]:
        fraction = given / 100
        instead = f"; write {fraction:g}" if LEVELS[0] <= fraction <= LEVELS[1] else ""
        raise SpecError(f"confidence {given:g} is not from {LEVELS[0]:g} to {LEVELS[1]:g}{instead}")
    return given


def checked_count(name: str, given: int, *, least: int, most: int = LARGEST_NUMBER) -> int:
    """Return a whole number; SpecError unless it is from `least` to `most`."""
    _check_number(name, given, f"such as {least:,}")
    if given != int(given) or not least <= given <= most:
        raise SpecError(f"{name} {given!r} is not a whole number from {least:,} to {most:,}")
    return given


def checked_seconds(given: float) -> float:
    """Return a time limit in CPU seconds; SpecError if it is negative or no number."""
    _check_number("time_limit", given, "of seconds, such as 60")
    if math.isnan(given) or given < 0:
        raise SpecError(f"time_limit {given!r} is not a number of seconds from 0 on")
    return given


def checked_memory(given: str | int) -> int:
    """Return an amount of memory in bytes; SpecError unless it is within MEMORIES.

    >>> checked_memory("4GB"), checked_memory("1.5 GiB"), checked_memory(2**30)
    (4000000000, 1610612736, 1073741824)
    """
    match = _MEMORY.fullmatch(str(given))
    amount = 0 if match is None else int(Fraction(match[1]) * _BYTES[(match[2] or "B").upper()])
    if not MEMORIES[0] <= amount <= MEMORIES[1]:
        raise SpecError(
            f"memory is {str(given)[:40]!r}; expected an amount such as 4GB, 500MB or 2GiB, from "
            f"{MEMORIES[0] // 10**6} MB to {MEMORIES[1] // 10**12} TB"
        )
    return amount


def _text(given: Amount) -> str:
    return repr(float(given)) if isinstance(given, Fraction) else str(given)
