"""YAML text to nodes that know their place; nothing is interpreted.

A scalar keeps its text: `yes`, `010`, `1:30` and `1e-9` mean what the place they stand in makes of
them, never what YAML 1.1 does (a boolean, 8, 90 and a string). Tags, merge keys and second
documents are refused, so are texts that take unreasonable time or memory to read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import yaml

from dpquery.limits import MAX_SPEC_CHARACTERS, MAX_SPEC_DEPTH, MAX_SPEC_ENTRIES
from dpquery.spec.problems import Place, Placed, Problems, UnreadableError, quoted

_HALF_CHARACTER = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, eq=False, slots=True)
class TextNode(Placed):
    """One scalar; `plain` where it stands without quotes."""

    place: Place
    problems: Problems
    text: str
    plain: bool

    @property
    def empty(self) -> bool:
        """Whether nothing was written here; an empty text in quotes is something."""
        return self.plain and not self.text


@dataclass(frozen=True, eq=False, slots=True)
class ListNode(Placed):
    """A sequence, in block or flow style."""

    place: Place
    problems: Problems
    items: tuple["Node", ...]


@dataclass(frozen=True, eq=False, slots=True)
class MapNode(Placed):
    """A mapping in file order; no two keys have the same text."""

    place: Place
    problems: Problems
    entries: tuple[tuple[TextNode, "Node"], ...]


Node = TextNode | ListNode | MapNode


_Start = yaml.ScalarEvent | yaml.CollectionStartEvent


class _Mark(Protocol):
    """A place as PyYAML counts it, from 0."""

    line: int
    column: int


def read_yaml(text: str, *, file: str, problems: Problems) -> Node:
    """Return the root of the one YAML document in a text.

    Raises:
        UnreadableError: the text is not YAML, or too large. Lesser mistakes (a key given twice, a
            tag) go to `problems`.
    """
    if len(text) > MAX_SPEC_CHARACTERS:
        raise UnreadableError(
            Place(file, 1, 1),
            f"the text is longer than {MAX_SPEC_CHARACTERS:,} characters; put long value lists in "
            "files",
        )
    return _Builder(file, problems).document(_events(text, file))


def _events(text: str, file: str) -> Iterator[yaml.Event]:
    """Yield PyYAML's events, its errors turned into ours."""
    reached = Place(file, 1, 1)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            reached = _place(file, event.end_mark)
            yield event
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        column = len(before) - before.rfind("\n")
        raise UnreadableError(
            Place(file, before.count("\n") + 1, column),
            f"the character U+{ord(text[error.position]):04X} cannot stand in YAML; remove it",
        ) from None
    except yaml.MarkedYAMLError as error:
        if error.problem_mark is not None and "'\\t'" in (error.problem or ""):
            before = _lines(text)[error.problem_mark.line][: error.problem_mark.column]
            where = "a tab stands here" if before.strip() else "this line begins with a tab"
            place = _place(file, error.problem_mark)
            raise UnreadableError(place, f"{where}; YAML wants spaces") from None
        raise _in_plain_words(error, text, file) from None
    except (ValueError, OverflowError):  # PyYAML on "\U99999999" and on %YAML 999...9.0
        raise UnreadableError(
            reached, "this is not YAML: an escape or a directive after this has no meaning"
        ) from None


ALIGNED = (
    "this does not line up with what stands above it; begin entries of one list, and keys of one "
    "mapping, in the same column"
)
_UNREADABLE = (
    ("flow mapping", "the `{{` in line {line} is not closed before this; add `}}`, or a comma"),
    ("flow sequence", "the `[` in line {line} is not closed before this; add `]`, or a comma"),
    ("quoted scalar", "the quote in line {line} is not closed before this; add the other quote"),
    (
        "found ','",
        "a comma stands behind a value that is complete; begin what follows on a line of its own",
    ),
    ("found '<block", ALIGNED),
    (
        "block collection",
        "the list that begins in line {line} has a dash before every entry, and this line has "
        "none; add it, begin this key in the column of those above, or leave out all dashes",
    ),
    ("but found '-'", "a dash stands among the keys of a mapping; leave it out"),
    (
        "block mapping",
        "a key in this line, or in one above, has no colon, or a bracket too many; write `key: "
        "value`",
    ),
    (
        "mapping values are not allowed",
        "a key stands in the middle of a value; put a blank behind the colon before it, or begin "
        "each key on a line of its own, in the same column as the other keys",
    ),
    ("", "{problem}; check the indentation, brackets and quotes up to here"),
)
"""What PyYAML was reading, and in plain words what is wrong and what to do; the first that fits."""


_KEY = r"(?m)^[\s-]*(?P<key>[A-Za-z_]\w{0,39})"
_COLON, _BLANK = "{key!r} has no colon", "{key!r} has no blank behind its colon"
_MEANT = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"(?m)^ *-(?P<key>[A-Za-z_]\w{0,39}:)",
            "the dash has no blank behind it; write `- {key}`"),
        (rf"{_KEY} (?P<value>[\[{{])", f"{_COLON}; write `{{key}}: {{value}}`"),
        (rf"{_KEY}:(?P<value>[\[{{])", f"{_BLANK}; write `{{key}}: {{value}}`"),
        (rf"{_KEY} (?P<value>[^\s:#/,]{{1,40}})\s*$", f"{_COLON}; write `{{key}}: {{value}}`"),
        (rf"{_KEY}:(?P<value>[^\s:#/,]{{1,40}})\s*$", f"{_BLANK}; write `{{key}}: {{value}}`"),
        (r"(?m)^(?P<indent> *)(?:- )?(?P<key>[A-Za-z_]\w{0,39})\s*\n(?P=indent)(?: |- )",
            f"{_COLON}; write `{{key}}:`"),
    )
)  # fmt: skip
"""What a line is that YAML cannot read, or with the line above that it goes on from."""


def _in_plain_words(error: yaml.MarkedYAMLError, text: str, file: str) -> UnreadableError:
    place, lines = _place(file, error.problem_mark or error.context_mark), _lines(text)
    number = place.line
    if "mapping values" in (error.problem or ""):  # the value of a key above goes on to here
        number = next((n for n in range(number - 1, 0, -1) if lines[n - 1].strip()), number)
    elif "simple key" in (error.context or "") and error.context_mark:
        number = error.context_mark.line + 1
    read = "\n".join(lines[n - 1] for n in sorted({number, place.line}))
    for pattern, words in _MEANT:
        if bare := pattern.search(read):
            before = read[: bare.end("key")]
            number = place.line if "\n" in before else number
            told = words.format(**bare.groupdict())
            column = len(before) - before.rfind("\n")
            return UnreadableError(
                replace(place, line=number, column=column), f"this is not YAML: {told}"
            )
    mark, problem = error.context_mark, ", ".join(filter(None, (error.context, error.problem)))
    words = next(
        words for part, words in _UNREADABLE if part in problem and (mark or "{line}" not in words)
    )
    told = words.format(line=0 if mark is None else mark.line + 1, problem=problem)
    return UnreadableError(place, f"this is not YAML: {told}")


def _lines(text: str) -> list[str]:
    return re.split("\r\n|[\n\r\x85\u2028\u2029]", text)


def _place(file: str, mark: _Mark | None) -> Place:
    return Place(file, mark.line + 1, mark.column + 1) if mark else Place(file, 1, 1)


class _Builder:
    """Builds nodes from events, with aliases resolved to the nodes that they name."""

    def __init__(self, file: str, problems: Problems) -> None:
        self._file = file
        self._problems = problems
        self._count = 0
        self._anchors: dict[str, tuple[Node, int]] = {}

    def document(self, events: Iterator[yaml.Event]) -> Node:
        """Return the only document of a stream."""
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._unreadable(event, "a second document starts here; keep one a file")
                root = self._node(next(events), events, depth=1)
        if root is None:
            raise UnreadableError(
                Place(self._file, 1, 1), "the file is empty; `dpquery init` writes a spec to edit"
            )
        return root

    def _node(
        self, event: yaml.Event, events: Iterator[yaml.Event], *, depth: int, listed: bool = False
    ) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if not isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            raise TypeError(f"{type(event).__name__} starts no node")
        before = self._count
        self._grow(event, 1)
        if depth > MAX_SPEC_DEPTH:
            raise self._unreadable(event, f"nested deeper than {MAX_SPEC_DEPTH} levels; no spec is")
        if event.tag is not None:
            self._problems.add(
                _place(self._file, event.start_mark),
                f"the tag {quoted(event.tag)} has no meaning here; put text in quotes instead",
            )
        node = self._value(event, events, depth, listed=listed)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._count - before)
        return node

    def _value(
        self, event: _Start, events: Iterator[yaml.Event], depth: int, *, listed: bool
    ) -> Node:
        place = _place(self._file, event.start_mark)
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items.append(self._node(item, events, depth=depth + 1, listed=True))
            return ListNode(place, self._problems, tuple(items))
        if isinstance(event, yaml.ScalarEvent):
            return self._text(event, place)
        return MapNode(place, self._problems, tuple(self._entries(events, depth, listed=listed)))

    def _entries(
        self, events: Iterator[yaml.Event], depth: int, *, listed: bool
    ) -> Iterator[tuple[TextNode, Node]]:
        seen: dict[str, int] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events, depth=depth + 1)
            value = self._node(next(events), events, depth=depth + 1)
            place = _place(self._file, event.start_mark)
            if not isinstance(key, TextNode):
                self._problems.add(place, "a key must be a single text, not a list or a mapping")
            elif key.plain and key.text == "<<":
                self._problems.add(place, "merge keys (<<) are not supported; write the keys out")
            elif key.text in seen:
                begins = listed and key.text == next(iter(seen))
                self._problems.add(
                    place,
                    f"the key {quoted(key.text)} is given twice, first in line {seen[key.text]}; "
                    + ("put a dash before it if a new entry begins here, or " if begins else "")
                    + "keep one",
                )
            else:
                seen[key.text] = place.line
                yield replace(key, place=place), value

    def _text(self, event: yaml.ScalarEvent, place: Place) -> TextNode:
        if _HALF_CHARACTER.search(event.value):
            raise UnreadableError(place, "half a character (\\ud800 to \\udfff); write it whole")
        return TextNode(place, self._problems, event.value, plain=event.style is None)

    def _alias(self, event: yaml.AliasEvent) -> Node:
        anchor = event.anchor or ""
        if anchor not in self._anchors:
            raise self._unreadable(
                event, f"no anchor &{anchor[:40]} stands before this; define it first"
            )
        node, size = self._anchors[anchor]
        self._grow(event, size)
        return node

    def _grow(self, event: yaml.Event, size: int) -> None:
        self._count += size
        if self._count > MAX_SPEC_ENTRIES:
            raise self._unreadable(
                event,
                f"more than {MAX_SPEC_ENTRIES:,} entries, aliases counted each time; use fewer",
            )

    def _unreadable(self, event: yaml.Event, message: str) -> UnreadableError:
        return UnreadableError(_place(self._file, event.start_mark), message)
