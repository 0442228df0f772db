"""The forms that a value in a spec can have: a text, a number, a list, a mapping and so on.

A form reads a node into a Python value, or refuses it at its place. It also describes itself, as a
JSON Schema and in words, so that a field has to name its form only once.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Generic, Protocol, TypeVar

from dpquery.spec.problems import Problems, UnreadableError, listed, quoted, suggestion
from dpquery.spec.source import ListNode, MapNode, Node, TextNode

Schema = dict[str, object]

_T = TypeVar("_T")
_W = TypeVar("_W", bound=str)
_Read = TypeVar("_Read", covariant=True)

_TOO_LARGE = re.compile(r"[+-]?[0-9]{19,}")
# Bounded, because 1e999999999 as an exact fraction fills the memory.
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")


class Form(Protocol[_Read]):
    """A form of values; a class of `fields.Fields` is one too, the form of a mapping."""

    def read(self, node: Node, problems: Problems) -> _Read:
        """Return the value; UnreadableError if the node has another form."""

    def schema(self) -> Schema:
        """Return the JSON Schema of the form."""

    def words(self) -> str:
        """Return what may be written, for the reference page."""


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


def described_as(schema: Schema, description: str) -> Schema:
    """Return a schema with a description."""
    # Draft 7 ignores whatever stands beside $ref, so that a description needs the detour.
    own: Schema = {"allOf": [schema]} if "$ref" in schema else schema
    return own | {"description": description} if description else own


def _refusal(node: Node, what: str) -> UnreadableError:
    return UnreadableError(node.place, f"expected {what}, found {described(node)}")


@dataclass(frozen=True)
class Text:
    """A text, spaces around it removed as from the fields of a CSV file.

    Attributes:
        what: what messages call it.
        pattern: what the whole of it must match.
        taken: texts that it must not be.
        refusal: the message about a text that does not match, with {given} and {what}.
        number: the JSON type that the text may look like to an editor.
        shape: how the reference page shows the pattern.
    """

    what: str
    pattern: str = ""
    taken: tuple[str, ...] = ()
    refusal: str = ""
    number: str = "number"
    shape: str = "text"

    def read(self, node: Node, problems: Problems) -> str:
        """Return the text."""
        if not isinstance(node, TextNode) or node.empty:
            raise _refusal(node, self.what)
        found = node.text.strip()
        if found in self.taken or (self.pattern and not re.fullmatch(self.pattern, found)):
            message = self.refusal.format(given=described(node), what=self.what)
            message += f", and not {found!r}" if found in self.taken else ""
            raise UnreadableError(node.place, message)
        return found

    def schema(self) -> Schema:
        """Return the schema, as editors see texts such as `yes` and 1."""
        if not self.pattern:
            return Ref("text").schema()
        found: Schema = {"type": ["string", self.number], "pattern": f"^{self.pattern}$"}
        return found | {"not": {"enum": list(self.taken)}} if self.taken else found

    def words(self) -> str:
        """Return `text`, or the shape of the pattern."""
        return self.shape


@dataclass(frozen=True)
class Limits:
    """The ends of a number: `low` and `high` may be reached, `above` and `below` may not.

    `smallest` is what a number has at least that is not 0.
    """

    low: Fraction | int | None = None
    high: Fraction | int | None = None
    above: int | None = None
    below: int | None = None
    smallest: Fraction | None = None

    def hold(self, value: Fraction | float) -> bool:
        """Return whether a value lies within."""
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (self.smallest is None or value == 0 or value >= self.smallest)
        )

    def schema(self) -> Schema:
        """Return the limits in JSON Schema's words."""
        ends = {"minimum": self.low, "maximum": self.high}
        ends |= {"exclusiveMinimum": self.above, "exclusiveMaximum": self.below}
        return {
            name: end if isinstance(end, int) else float(end)
            for name, end in ends.items()
            if end is not None
        }

    def words(self) -> str:
        """Return the limits as a reader says them.

        >>> Limits(low=1, high=10**9).words()
        ' from 1 to 1,000,000,000'
        """
        low, high = (_figure(end) for end in (self.low, self.high))
        if low and high:
            return f" from {low} to {high}"
        parts = [f"{low} or more"] if low else []
        parts += [f"above {self.above}"] if self.above is not None else []
        parts += [f"below {self.below}"] if self.below is not None else []
        return f", {' and '.join(parts)}" if parts else ""


def _figure(end: Fraction | int | None) -> str:
    if end is None:
        return ""
    return f"{end:,}" if isinstance(end, int) else f"{float(end):g}"


@dataclass(frozen=True)
class _Number:
    """A number.

    Attributes:
        what: what messages call it.
        limits: its ends, for the schema and the reference page.
        refusal: the message about a number outside, with {given} and {value}. Without one, reading
            does not check the limits: a stricter check follows that knows more than the number.
    """

    what: str
    limits: Limits = Limits()
    refusal: str = ""

    kind: ClassVar[str] = "number"
    # Tools of YAML 1.1 take 1e-9 for a text.
    pattern: ClassVar[str] = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"

    def schema(self) -> Schema:
        """Return the schema of the number, which may stand in quotes."""
        pattern = rf"^\s*{self.pattern}\s*$"
        return {"type": [self.kind, "string"], "pattern": pattern} | self.limits.schema()

    def words(self) -> str:
        """Return `number` and its limits."""
        return f"number{self.limits.words()}"

    def _decimal(self, node: Node) -> Fraction:
        if not isinstance(node, TextNode) or not _DECIMAL.fullmatch(node.text.strip()):
            raise _refusal(node, f"{self.what}, a number such as 0.5 or 1e-9")
        return Fraction(node.text.strip())

    def _check(self, node: Node, value: Fraction | float) -> None:
        if self.refusal and not self.limits.hold(value):
            shown = value if isinstance(value, int) else f"{float(value):g}"
            raise UnreadableError(
                node.place, self.refusal.format(given=described(node), value=shown)
            )


class Whole(_Number):
    """A whole number of at most 18 digits."""

    kind: ClassVar[str] = "integer"
    pattern: ClassVar[str] = r"[+-]?[0-9]{1,18}"

    def read(self, node: Node, problems: Problems) -> int:
        """Return the number."""
        written = node.text.strip() if isinstance(node, TextNode) else ""
        if _TOO_LARGE.fullmatch(written):
            message = f"{described(node)} is too large for {self.what}; the limit is 18 digits"
            raise UnreadableError(node.place, message)
        if not re.fullmatch(self.pattern, written):
            raise _refusal(node, f"{self.what}, a whole number")
        self._check(node, int(written))
        return int(written)

    def words(self) -> str:
        """Return `whole number` and its limits."""
        return f"whole {super().words()}"


class Decimal(_Number):
    """A decimal number, exactly; never NaN or infinity."""

    def read(self, node: Node, problems: Problems) -> Fraction:
        """Return the number."""
        value = self._decimal(node)
        self._check(node, value)
        return value


class Real(_Number):
    """A decimal number as the nearest finite float."""

    def read(self, node: Node, problems: Problems) -> float:
        """Return the number."""
        try:
            value = float(self._decimal(node))
        except OverflowError:
            message = f"{described(node)} is too large; the limit is 1.7e308"
            raise UnreadableError(node.place, message) from None
        self._check(node, value)
        return value


@dataclass(frozen=True)
class Word(Generic[_W]):
    """One of a few fixed words."""

    what: str
    known: tuple[_W, ...]

    def read(self, node: Node, problems: Problems) -> _W:
        """Return the word."""
        if not isinstance(node, TextNode) or node.empty:
            raise _refusal(node, f"{self.what}, one of {listed(self.known)}")
        for word in self.known:
            if word == node.text:
                return word
        hint = suggestion(node.text, self.known)
        raise UnreadableError(node.place, f"{quoted(node.text)} is not {self.what}{hint}")

    def schema(self) -> Schema:
        """Return the schema of the words."""
        return {"enum": list(self.known)}

    def words(self) -> str:
        """Return the words."""
        return " or ".join(f"`{word}`" for word in self.known)


@dataclass(frozen=True)
class WordOr(Generic[_W, _T]):
    """One of a few fixed words, or a mapping."""

    word: Word[_W]
    mapping: Form[_T]

    def read(self, node: Node, problems: Problems) -> _W | _T:
        """Return the word, or what the mapping says."""
        if isinstance(node, MapNode):
            return self.mapping.read(node, problems)
        return self.word.read(node, problems)

    def schema(self) -> Schema:
        """Return the schema of either."""
        return {"anyOf": [self.word.schema(), self.mapping.schema()]}

    def words(self) -> str:
        """Return what either may be."""
        return f"{self.word.words()} or {self.mapping.words()}"


@dataclass(frozen=True)
class ListOf(Generic[_T]):
    """A list. With `least` 0 it may be empty; `unique` is for editors, a later check says where."""

    what: str
    item: Form[_T]
    least: int = 1
    unique: bool = False

    def read(self, node: Node, problems: Problems) -> tuple[_T, ...]:
        """Return what its entries are."""
        if not isinstance(node, ListNode) or (self.least and not node.items):
            least = " with at least one entry" if self.least else ""
            raise _refusal(node, f"{self.what}, a list{least}")
        return tuple(problems.each(node.items, lambda own: self.item.read(own, problems)))

    def schema(self) -> Schema:
        """Return the schema of the list."""
        found: Schema = {"type": "array", "items": self.item.schema()}
        found |= {"minItems": self.least} if self.least else {}
        return found | {"uniqueItems": True} if self.unique else found

    def words(self) -> str:
        """Return what the list holds."""
        return f"list of: {self.item.words()}"


@dataclass(frozen=True)
class Pair(Generic[_T]):
    """A list of two."""

    what: str
    first: Form[_T]
    last: Form[_T]

    def read(self, node: Node, problems: Problems) -> tuple[_T, _T]:
        """Return both."""
        if not isinstance(node, ListNode) or len(node.items) != 2:
            count = f" of {len(node.items)}" if isinstance(node, ListNode) and node.items else ""
            raise UnreadableError(
                node.place, f"expected {self.what}, a list of two, found {described(node)}{count}"
            )
        forms = zip((self.first, self.last), node.items, strict=True)
        first, last = problems.each(forms, lambda own: own[0].read(own[1], problems))
        return first, last

    def schema(self) -> Schema:
        """Return the schema of the pair."""
        return {"type": "array", "items": self.first.schema(), "minItems": 2, "maxItems": 2}

    def words(self) -> str:
        """Return both."""
        return f"[{self.first.words()}, {self.last.words()}]"


@dataclass(frozen=True)
class ByName(Generic[_T]):
    """A mapping whose keys are names that the author gives, such as attributes.

    Attributes:
        what: what messages call it.
        item: the form of each value.
        key: what a key is, for the reference page.
        least: how many entries it has at least.
        empty: the message about none; without one, reading does not count them.
    """

    what: str
    item: Form[_T]
    key: str = "attribute"
    least: int = 0
    empty: str = ""

    def read(self, node: Node, problems: Problems) -> tuple[tuple[TextNode, _T], ...]:
        """Return its entries in file order."""
        if not isinstance(node, MapNode):
            raise _refusal(node, f"{self.what}, a mapping")
        if self.empty and not node.entries:
            raise UnreadableError(node.place, self.empty)
        entries = problems.each(
            node.entries, lambda own: (own[0], self.item.read(own[1], problems))
        )
        return tuple(entries)

    def schema(self) -> Schema:
        """Return the schema of the mapping."""
        found: Schema = {"type": "object", "additionalProperties": self.item.schema()}
        return found | {"minProperties": self.least} if self.least else found

    def words(self) -> str:
        """Return what a key and its value are."""
        return f"mapping of {self.key}: {self.item.words()}"


class _Unread:
    """A form whose nodes are left as they are, for a reader that knows the attribute."""

    def read(self, node: Node, problems: Problems) -> Node:
        """Return the node."""
        return node


@dataclass(frozen=True)
class Scalar(_Unread):
    """A text, as the types that editors see in it."""

    types: tuple[str, ...]

    def schema(self) -> Schema:
        """Return the schema."""
        return {"type": list(self.types)}

    def words(self) -> str:
        """Return `text`."""
        return "text"


@dataclass(frozen=True)
class Ref(_Unread):
    """A form of the table's `DEFINITIONS`, by name."""

    name: str

    def schema(self) -> Schema:
        """Return the reference."""
        return {"$ref": f"#/definitions/{self.name}"}

    def words(self) -> str:
        """Return the name, as the reference page has it."""
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Later(_Unread):
    """A form that is read once more is known: what messages call it, or which values there are."""

    form: Form[object]

    def schema(self) -> Schema:
        """Return the schema of the form."""
        return self.form.schema()

    def words(self) -> str:
        """Return the words of the form."""
        return self.form.words()


@dataclass(frozen=True)
class AnyOf(_Unread):
    """One of several forms; `about` says what they have in common."""

    forms: tuple[Form[object], ...]
    about: str = ""

    def schema(self) -> Schema:
        """Return the schema of any of them."""
        return described_as({"anyOf": [form.schema() for form in self.forms]}, self.about)

    def words(self) -> str:
        """Return the words of each."""
        return ", or ".join(form.words() for form in self.forms)
