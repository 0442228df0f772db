"""The forms that a value in a spec can have: a text, a number, a list, a mapping and so on.

A form reads a node into a Python value, or refuses it at its place, and says itself in JSON Schema,
from which the reference page has its words: so a field names its form only once.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Generic, Protocol, TypeVar

from dpquery.spec.calendar import Span, named_period
from dpquery.spec.numbers import power
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode
from dpquery.spec.problems import UnreadableError, listed, quoted, suggestion

# ruff: noqa: D102 (a method of a base class or protocol is described there)


Schema = dict[str, object]

_T = TypeVar("_T")
_N = TypeVar("_N", int, Fraction)
_W = TypeVar("_W", bound=str)
_Read = TypeVar("_Read", covariant=True)

_TOO_LARGE = re.compile(r"[+-]?[0-9]{19,}")
# Bounded, because 1e999999999 as an exact fraction fills the memory.
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")


class Form(Protocol[_Read]):
    """A form of values; a subclass of `mappings.Fields` is one too, the form of a mapping."""

    def read(self, node: Node) -> _Read:
        """Return the value; UnreadableError if the node has another form."""

    def schema(self) -> Schema:
        """Return the JSON Schema of the form."""


def described(node: Node) -> str:
    """Return what a node is, for the `found` part of a message."""
    match node:
        case TextNode(empty=True):
            return "nothing"
        case TextNode(text=text):
            return quoted(text)
        case ListNode(items=items):
            return "a list" if items else "an empty list"
        case MapNode(entries=entries):
            return "a mapping" if entries else "an empty mapping"


def kind_of_node(node: Node) -> str:
    """Return what a node is, where a mapping belongs: a text that is there may be of no spec."""
    return "a text" if isinstance(node, TextNode) and not node.empty else described(node)


def described_as(schema: Schema, description: str) -> Schema:
    """Return a schema with a description."""
    # Draft 7 ignores whatever stands beside $ref, so that a description needs the detour.
    return ({"allOf": [schema]} if "$ref" in schema else schema) | {"description": description}


def _unexpected(node: Node, what: str, instead: str = "") -> UnreadableError:
    return node.mistake(f"expected {what}, found {described(node)}{instead}")


def limits(schema: Mapping[str, object] | Mapping[object, object]) -> str:
    """Return the limits of a number in words.

    >>> limits({"minimum": 1, "exclusiveMaximum": 2000})
    ', at least 1 and below 2,000'
    """
    ends = {"minimum": "at least", "exclusiveMinimum": "above"}
    ends |= {"maximum": "at most", "exclusiveMaximum": "below"}
    found = [(words, schema[end]) for end, words in ends.items() if end in schema]
    shown = [f"{w} {f'{e:,}' if isinstance(e, int) else power(float(str(e)))}" for w, e in found]
    return f", {' and '.join(shown)}" if shown else ""


@dataclass(frozen=True)
class TextForm:
    """A text, spaces around it removed as from the fields of a CSV file."""

    what: str  # what messages call it
    pattern: str = ""  # what the whole of it must match
    instead: str = ""  # the end of the message about another one
    taken: tuple[str, ...] = ()  # texts that it must not be
    # the JSON types that editors may see in it
    types: tuple[str, ...] = ("string", "number", "boolean")

    def read(self, node: Node) -> str:
        if not isinstance(node, TextNode) or node.empty:
            raise _unexpected(node, self.what)
        text = node.text.strip()
        if text in self.taken or (self.pattern and not re.fullmatch(self.pattern, text)):
            also = f", and not {text!r}" if text in self.taken else ""
            raise _unexpected(node, self.what, self.instead + also)
        return text

    def schema(self) -> Schema:
        schema: Schema = {"type": list(self.types)}
        schema |= {"pattern": f"^{self.pattern}$"} if self.pattern else {}
        return schema | ({"not": {"enum": list(self.taken)}} if self.taken else {})


@dataclass(frozen=True)
class _Number:
    what: str  # what messages call it
    low: Fraction | int | None = None  # the least that it may be
    high: Fraction | int | None = None  # the most that it may be
    above: int | None = None  # what it must exceed
    below: int | None = None  # what it must stay under
    smallest: Fraction | None = None  # the least that it may be unless it is 0
    instead: str = ""  # the end of the message about another one

    kind: ClassVar[str] = "number"
    words: ClassVar[str] = "a number such as 0.5 or 1e-9"
    pattern: ClassVar[str] = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"

    def schema(self) -> Schema:
        # Tools of YAML 1.1 take 1e-9 for a text.
        schema: Schema = {"type": [self.kind, "string"], "pattern": rf"^\s*{self.pattern}\s*$"}
        ends = {"minimum": self.low, "maximum": self.high}
        ends |= {"exclusiveMinimum": self.above, "exclusiveMaximum": self.below}
        given = {name: end for name, end in ends.items() if end is not None}
        return schema | {n: end if isinstance(end, int) else float(end) for n, end in given.items()}

    def _within(self, node: Node, read: Callable[[str], _N], pattern: re.Pattern[str]) -> _N:
        """Return the number that a node is, if it has the pattern and lies within the limits."""
        written = node.text.strip() if isinstance(node, TextNode) else ""
        if pattern.fullmatch(written):
            value = read(written)
            if (
                (self.low is None or value >= self.low)
                and (self.high is None or value <= self.high)
                and (self.above is None or value > self.above)
                and (self.below is None or value < self.below)
                and (self.smallest is None or value == 0 or value >= self.smallest)
            ):
                return value
        within = " of at most 18 digits" * bool(_TOO_LARGE.fullmatch(written))
        within += limits(self.schema())
        within += f" (0, or at least {power(float(self.smallest))})" if self.smallest else ""
        raise _unexpected(node, f"{self.what}, {self.words}{within}", self.instead)


class Whole(_Number):
    """A whole number of at most 18 digits."""

    kind: ClassVar[str] = "integer"
    words: ClassVar[str] = "a whole number"
    pattern: ClassVar[str] = r"[+-]?[0-9]{1,18}"

    def read(self, node: Node) -> int:
        return self._within(node, int, re.compile(self.pattern))


class Decimal(_Number):
    """A decimal number, exactly; never NaN or infinity."""

    def read(self, node: Node) -> Fraction:
        return self._within(node, Fraction, _DECIMAL)


class Real(_Number):
    """A decimal number as the nearest finite float."""

    def read(self, node: Node) -> float:
        try:
            return float(self._within(node, Fraction, _DECIMAL))
        except OverflowError:
            raise node.mistake(f"{described(node)} is too large; the limit is 1.7e308") from None


@dataclass(frozen=True)
class Period:
    """A day, or an ISO week, month, quarter or year; `what` is what messages call it."""

    what: str

    pattern: ClassVar[str] = r"[0-9]{4}(-([0-9]{2}(-[0-9]{2})?|Q[1-4]|W[0-9]{2}))?"

    def read(self, node: Node) -> Span:
        period = named_period(node.text.strip()) if isinstance(node, TextNode) else None
        if period is None:
            forms = "2013-01-31, 2013-01, 2013-Q1, 2013-W05 or 2013"
            raise _unexpected(node, f"{self.what}, a date such as {forms}")
        return period

    def schema(self) -> Schema:
        return {"type": ["string", "integer"], "pattern": f"^{self.pattern}$"}


@dataclass(frozen=True)
class Word(Generic[_W]):
    """One of a few fixed words; `what` is what messages call it.

    `renamed` has words that were known once, each with the one to write now.
    """

    what: str
    known: tuple[_W, ...]
    renamed: tuple[tuple[str, _W], ...] = ()

    def read(self, node: Node) -> _W:
        if not isinstance(node, TextNode) or node.empty:
            choices = f", one of {listed(self.known)}" if len(self.known) > 1 else ""
            raise _unexpected(node, self.what + choices)
        for word in self.known:
            if word == node.text:
                return word
        hint = suggestion(node.text, self.known)
        if len(self.known) == 1 and not hint.endswith("?"):
            hint = ""  # `what` says it
        now = dict(self.renamed).get(node.text)
        if now is not None:
            hint = f" any more; write {now}, which is the same"
        raise node.mistake(f"{quoted(node.text)} is not {self.what}{hint}")

    def schema(self) -> Schema:
        return {"enum": list(self.known)}


class Delimiter(Word[str]):
    """A delimiter; a tab may be given as itself or as the word."""

    def read(self, node: Node) -> str:
        if isinstance(node, TextNode) and node.text in {"tab", "\t"}:
            return "\t"
        if isinstance(node, TextNode) and node.text not in self.known:
            marks = listed([f"'{mark}'" for mark in self.known])
            raise node.mistake(f"{quoted(node.text)} is not {self.what}; expected {marks}")
        return super().read(node)

    def schema(self) -> Schema:
        return {"enum": [*self.known, "\t"]}


@dataclass(frozen=True)
class YesNo:
    """Yes or no, as YAML writes them; `what` is what messages call it."""

    what: str

    def read(self, node: Node) -> bool:
        known = {"true": True, "yes": True, "false": False, "no": False}
        if not isinstance(node, TextNode) or node.text.lower() not in known:
            raise _unexpected(node, f"{self.what}, true or false")
        return known[node.text.lower()]

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class WordOr(Generic[_W, _T]):
    """A text, such as one of a few fixed words, or else a list, or a mapping."""

    word: Form[_W]
    other: Form[_T]

    def read(self, node: Node) -> _W | _T:
        other: object = self.other
        kind = ListNode if isinstance(other, ListOf) else MapNode
        return self.other.read(node) if isinstance(node, kind) else self.word.read(node)

    def schema(self) -> Schema:
        return {"anyOf": [self.word.schema(), self.other.schema()]}


@dataclass(frozen=True)
class ListOf(Generic[_T]):
    """A list of at least `least` entries; whether they are `unique` is checked where they mean.

    A value that is no list is refused with `instead`: what else may have been meant.
    """

    what: str
    item: Form[_T]
    least: int = 1
    unique: bool = False
    instead: str = ""

    def read(self, node: Node) -> tuple[_T, ...]:
        if not isinstance(node, ListNode) or (self.least and not node.items):
            least = " with at least one entry" if self.least else ""
            message = f"expected {self.what}, a list{least}, found {described(node)}"
            raise node.mistake(f"{message}{self.instead}")
        return tuple(node.problems.each(node.items, self.item.read))

    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self.item.schema()}
        schema |= {"minItems": self.least} if self.least else {}
        return schema | ({"uniqueItems": True} if self.unique else {})


@dataclass(frozen=True)
class PairOf(Generic[_T]):
    """A list of two."""

    what: str
    first: Form[_T]
    last: Form[_T]

    def read(self, node: Node) -> tuple[_T, _T]:
        if not isinstance(node, ListNode) or len(node.items) != 2:
            count = f" of {len(node.items)}" if isinstance(node, ListNode) and node.items else ""
            message = f"expected {self.what}, a list of two, found {described(node)}{count}"
            raise node.mistake(message)
        forms = zip((self.first, self.last), node.items, strict=True)
        first, last = node.problems.each(forms, lambda part: part[0].read(part[1]))
        return first, last

    def schema(self) -> Schema:
        return {"type": "array", "items": self.first.schema(), "minItems": 2, "maxItems": 2}


@dataclass(frozen=True)
class ByName(Generic[_T]):
    """A mapping whose keys are names that the author gives, such as attributes."""

    what: str  # what messages call it
    item: Form[_T]  # the form of each value
    least: int = 0  # how many entries it has at least
    # the message about none; without one, they are counted where they mean something
    empty: str = ""
    key: str = "attribute"  # what a key is, for the reference page
    example: str = ""  # what to write instead of something else

    def read(self, node: Node) -> tuple[tuple[TextNode, _T], ...]:
        if not isinstance(node, MapNode):
            instead = f"; write it as in `{self.example}`" if self.example else ""
            found = f"found {kind_of_node(node)}{instead}"
            raise node.mistake(f"expected {self.what}, a mapping, {found}")
        if self.empty and not node.entries:
            raise node.mistake(self.empty)
        entries = node.entries
        return tuple(node.problems.each(entries, lambda each: (each[0], self.item.read(each[1]))))

    def schema(self) -> Schema:
        # The title is for the reference page.
        item = self.item.schema()
        schema: Schema = {"type": "object", "title": self.key, "additionalProperties": item}
        return schema | ({"minProperties": self.least} if self.least else {})


@dataclass(frozen=True)
class Unread:
    """A node that is left as it is, for a reader that knows the attribute, and its schema."""

    describe: Callable[[], Schema]

    def read(self, node: Node) -> Node:
        return node

    def schema(self) -> Schema:
        return self.describe()


def ref(name: str) -> Unread:
    """Return the form of that name among the table's `DEFINITIONS`."""
    return Unread(lambda: {"$ref": f"#/definitions/{name}"})


def either(*forms: Form[object], about: str = "") -> Unread:
    """Return any of several forms; `about` is what editors say of them."""
    description = {"description": about} if about else {}
    return Unread(lambda: {"anyOf": [form.schema() for form in forms], **description})
