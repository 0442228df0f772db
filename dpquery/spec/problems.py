"""Mistakes in a spec, each at its place: collected while reading, reported all at once."""

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dpquery.exceptions import SpecError
from dpquery.limits import MAX_LISTED_VALUES

_Word = TypeVar("_Word", bound=str)
_T = TypeVar("_T")
_P = TypeVar("_P")

_CODE = 32  # characters that take as much memory as a code
_SHOWN = 100  # lines of one report; more is noise
_OF_SEVERAL = {" is outside ": " are outside ", " is not a value of ": " are not values of "}
"""What stands between a value and the attribute that does not hold it; between several and it."""
_LONGEST = 40  # characters of what was given that a message repeats
_COMPARED = 1000  # names that are worth a search for the nearest one
_MEANT = {
    "ascii": "utf-8",
    "average": "mean",
    "bins": "width",
    "bool": "boolean",
    "columns": "domain",
    "condition": "where",
    "counts": "product",
    "crosstab": "product",
    "every": "identity",
    "filter": "where",
    "group_by": "product",
    "groupby": "product",
    "iso-8859-1": "latin-1",
    "max": "range",
    "min": "range",
    "missing": "other",
    "percent": "share",
    "percentage": "share",
    "proportion": "share",
    "publish": "release",
    "queries": "workload",
    "query": "product",
    "questions": "workload",
    "show": "status",
    "sql": "product",
    "tables": "workload",
    "us-ascii": "utf-8",
    "variables": "domain",
    "windows-1252": "cp1252",
}
"""Words of other tools, and the one of ours that is meant where it stands among the known ones."""


@dataclass(frozen=True, order=True)
class Place:
    """Where something stands: 1-based line and column of a file."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class UnreadableError(Exception):
    """A part of a spec cannot be read. Without a place, the reason has been reported already."""

    def __init__(self, place: Place | None, message: str = "") -> None:
        super().__init__(message)
        self.place = place
        self.message = message


class Problems:
    """The mistakes found so far in a spec and its value lists."""

    def __init__(self, file: str) -> None:
        """Start with none; `file` is the spec's own name, whose mistakes are listed first."""
        self._file = file
        self._noted: dict[tuple[Place, str], int] = {}  # with the number of the list it is in
        self._list = self._lists = 0  # numbers of the list that is read, and of the last
        self._listed = 0
        self.levels_named: set[tuple[str, str]] = set()
        """Attribute and name of every level of a hierarchy that a question names."""

    def add(self, place: Place, message: str) -> None:
        """Note one mistake; the same mistake at the same place counts once."""
        self._noted.setdefault((place, message), self._list)

    @property
    def none(self) -> bool:
        """Whether there is none so far."""
        return not self._noted

    def count_codes(self, count: int, label: str, place: Place, *, remedy: str) -> None:
        """Add to the codes that the spec lists, before they are; UnreadableError past the limit.

        An anchor used a thousand times lists its codes, and its labels, a thousand times. What
        follows the first that is too many is refused too, without another word.
        """
        if self._listed > MAX_LISTED_VALUES:
            raise UnreadableError(None)
        self._listed += count + len(label) // _CODE
        if self._listed > MAX_LISTED_VALUES:
            raise UnreadableError(
                place,
                "the groups and lists of the spec name over "
                f"{MAX_LISTED_VALUES:,} values; {remedy}",
            )

    def collected(self) -> AbstractContextManager[None, bool]:
        """Note the mistake that ends the block early, and go on after the block."""
        return _Collector(self)

    def attempt(self, read: Callable[[], _T]) -> _T | None:
        """Return what `read` returns; None where it ends in a mistake, which is noted."""
        with self.collected():
            return read()
        return None

    def each(self, parts: Iterable[_P], read: Callable[[_P], _T]) -> list[_T]:
        """Return what is read of each part; UnreadableError, once all were tried, if one cannot."""
        results, tried, around = [], 0, self._list
        self._list = self._lists = self._lists + 1
        for part in parts:
            tried += 1
            with self.collected():
                results.append(read(part))
        self._list = around
        if len(results) < tried:
            raise UnreadableError(None)
        return results

    def raise_if_any(self) -> None:
        """Raise one SpecError with a line for every mistake, in order of place."""
        if not self._noted:
            return
        ordered = sorted(self._noted, key=lambda problem: (problem[0].file != self._file, *problem))
        # values of one line, or one list, that the same attribute does not hold are one mistake
        joined: dict[tuple[object, ...], tuple[Place, str, list[tuple[str, str]]]] = {}
        begins: dict[int, int] = {}  # the first line of a list that has a mistake
        for place, message in ordered:
            verb = next((each for each in _OF_SEVERAL if each in message), "")
            given, _, of = message.partition(verb) if verb else (message, "", "")
            line = begins.setdefault(self._noted[place, message] or -place.line, place.line)
            key = (place.file, line, verb, _named(of)) if verb else (place, message)
            joined.setdefault(key, (place, verb, []))[2].append((given, of))
        lines = [f"{place}: {_of_all(verb, each)}" for place, verb, each in joined.values()]
        if len(lines) > _SHOWN:
            more = f"{self._file}: and {len(lines) - _SHOWN} more mistakes after these"
            lines = [*lines[:_SHOWN], more]
        raise SpecError("\n".join(lines))


def _named(of: str) -> str:
    """Return the attribute that a message is of, without what could be meant."""
    return of.partition("; ")[0]


def _of_all(verb: str, given: Sequence[tuple[str, str]]) -> str:
    """Return the message on what an attribute does not hold; any other is one text, as it is."""
    values, whose = [value for value, _ in given], {of for _, of in given}
    of = whose.pop() if len(whose) == 1 else _named(given[0][1])
    if len(values) == 1:
        return f"{values[0]}{verb}{of}"
    *some, last = values if len(values) <= 12 else [*values[:11], f"{len(values) - 11} more"]
    return f"{', '.join(some)} and {last}{_OF_SEVERAL[verb]}{of}"


class _Collector(AbstractContextManager[None, bool]):
    """What `collected` returns; a class, so that type checkers know that it may end a block."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def __exit__(self, kind: object, mistake: BaseException | None, trace: object) -> bool:
        if not isinstance(mistake, UnreadableError):
            return False
        if mistake.place is not None:
            self._problems.add(mistake.place, mistake.message)
        return True


class Placed:
    """What stands at a place, a node of YAML or a line of a file, and takes its own mistakes."""

    __slots__ = ()
    place: Place
    problems: Problems

    def mistake(self, message: str) -> UnreadableError:
        """Return the error of what stands here, to be raised."""
        return UnreadableError(self.place, message)

    def note(self, message: str) -> None:
        """Note a mistake in what stands here, and go on."""
        self.problems.add(self.place, message)


def near_in_folder(path: Path, *, folders: bool = False) -> str | None:
    """Return the name that may have been meant by a missing one of the same kind, if any.

    A name without an ending is taken for a folder's if there is such; of folders no file is named.
    """
    try:
        with os.scandir(path.parent) as entries:
            fits = {True: folders or not path.suffix, False: not folders}
            beside = [entry.name for entry in entries if fits[entry.is_dir()]]
    except (OSError, ValueError):
        beside = []
    if path.suffix:
        ending = nearest(path.suffix, {Path(name).suffix for name in beside})
        beside = [name for name in beside if Path(name).suffix == ending]
    files = {Path(name).stem: name for name in sorted(beside)}  # endings are alike anyway
    near = nearest(path.stem, files)
    return None if near is None else files[near]


def not_read(path: Path, error: OSError, remedy: str) -> SpecError:
    """Return the error that a file cannot be read, why, and what to do; `remedy` if it is missing.

    Where a file of a name like it lies in the folder, that is asked about.
    """
    near = near_in_folder(path)
    if isinstance(error, FileNotFoundError) and near is not None:
        remedy = f"did you mean {quoted(near)}?"
    elif isinstance(error, IsADirectoryError):
        remedy = "name a file in it"
    elif isinstance(error, PermissionError):
        remedy = "check its permissions with `ls -l`"
    return SpecError(f"{path} cannot be read: {error.strerror}; {remedy}")


def several_texts(name: str, given: str | Sequence[str]) -> Sequence[str]:
    """Return several texts that an argument holds; one of them alone may be given for itself."""
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, list | tuple) or not all(isinstance(one, str) for one in several):
        what = type(given).__name__
        raise SpecError(f"{name} is of the type {what}; expected a text or a list of texts")
    return several


def quoted(text: str) -> str:
    """Return a text as a message shows it: in quotes, on one line, cut where it is long.

    >>> quoted("age")
    "'age'"
    """
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def listed(names: Collection[str]) -> str:
    """Return names as a message lists them.

    >>> listed(["row", "person", "household"])
    'row, person or household'
    """
    shown = list(names)
    if len(shown) > 12:
        return f"{', '.join(shown[:12])} and {len(shown) - 12} more"
    return " or ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def one_of(what: str, given: str, known: tuple[_Word, ...]) -> _Word:
    """Return the known word that an option was given; SpecError if there is none.

    >>> one_of("noise", "auto", ("laplace", "gaussian", "auto"))
    'auto'
    """
    for word in known:
        if word == given:
            return word
    raise SpecError(f"{what} {given!r} is not known; choose one of {', '.join(known)}")


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a wrong one was probably meant to be, if any comes near."""
    if len(name) > 100 or len(known) > _COMPARED:
        return None
    folded = {word.casefold(): word for word in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.65)
    return folded[near[0]] if near else None


def meant_by(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a wrong one was probably meant to be, by its letters or its sense.

    >>> meant_by("percent", ["share", "mean"])
    'share'
    """
    other = _MEANT.get(name.casefold())
    return other if other in known else nearest(name, known)


def suggestion(name: str, known: Collection[str]) -> str:
    """Return the end of a message about a wrong name: the nearest one, or what there is.

    >>> suggestion("agee", ["age", "sex"])
    "; did you mean 'age'?"
    >>> suggestion("height", ["age", "sex"])
    '; expected age or sex'
    """
    near = meant_by(name, known)
    if near is not None:
        return f"; did you mean {quoted(near)}?"
    names = [word[:_LONGEST] or "''" for word in known]
    return f"; expected {listed(names)}" if known else ""
