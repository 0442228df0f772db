"""Values of a JSON file that comes from outside, each checked as it is taken."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from fractions import Fraction
from types import UnionType
from typing import (
    Annotated,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from dpquery.limits import LARGEST_INTEGER, MAX_JSON_VALUES

_T = TypeVar("_T")

MOST = 1e100  # of any figure: in counts, and squared, it must still be a number
LEAST_FIGURE = 1e-100  # of any figure above zero: its logarithm must still be one

Json = Mapping[str, "JsonValue"]
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

_FRACTION = re.compile(r"[0-9]{1,1000}(/[0-9]{1,1000})?")


class MisplacedError(ValueError):
    """A value of a JSON text that is not of its type.

    Attributes:
        place: names of the fields that lead to it, joined by dots.
    """

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


class ChangedError(Exception):
    """A file was changed since it was written, by the hash that it states."""


@dataclass(frozen=True)
class Within:
    """Limits of a number, both included, for the type of a dataclass's field."""

    low: float | Fraction
    high: float | Fraction
    or_zero: bool = False

    def holds(self, value: object) -> bool:
        """Return whether a number is within the limits, or 0 where that is allowed beside them."""
        number = cast(float, value)
        return self.low <= number <= self.high or (self.or_zero and number == 0)


@dataclass(frozen=True)
class Matching:
    """The form of a text, as a regular expression, for the type of a dataclass's field."""

    pattern: str

    def holds(self, value: object) -> bool:
        """Return whether a whole text has the form."""
        return re.fullmatch(self.pattern, cast(str, value)) is not None


@dataclass(frozen=True)
class Unwritten:
    """Of a field that is not written where it has its default."""

    def holds(self, value: object) -> bool:
        """Return that any value will do."""
        return True


UNWRITTEN = Unwritten()
Count = Annotated[int, Within(1, LARGEST_INTEGER)]
NotNegative = Annotated[float, Within(0, MOST)]
Positive = Annotated[float, Within(math.ulp(0.0), MOST)]


def parsed(content: bytes) -> JsonValue:
    """Return the value of a JSON text; ValueError or RecursionError where it is not JSON.

    Refused too: a name given twice in one object, NaN and infinity, too many values.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise ValueError("values")
    value: JsonValue = json.loads(content, object_pairs_hook=_object, parse_constant=_refuse)
    return value


def sha256_of(content: Mapping[str, object]) -> str:
    """Return the hash of JSON values, in their order, that a file states of its own content."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def as_written(raw: Json) -> Json:
    """Return the content of a file without the hash of it that it states; older files state none.

    The hash guards against changes by hand and accidents alone: whoever means to can renew it.

    Raises:
        ChangedError: the content is not that of the hash.
    """
    kept = {key: value for key, value in raw.items() if key != "sha256"}
    if raw.get("sha256", "") not in ("", sha256_of(kept)):
        raise ChangedError
    return kept


def _object(pairs: Sequence[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name twice")
    return values


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def mapping(value: JsonValue) -> Json:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise TypeError("mapping")
    return value


def list_of(value: JsonValue, least: int = 0) -> list[JsonValue]:
    """Return a value that must be a list of at least `least` entries."""
    if not isinstance(value, list) or len(value) < least:
        raise TypeError("list")
    return value


def text_of(value: JsonValue) -> str:
    """Return a value that must be text."""
    if not isinstance(value, str):
        raise TypeError("text")
    value.encode()  # a lone surrogate can be read, but never written: UnicodeEncodeError
    return value


def integer(value: JsonValue, low: int) -> int:
    """Return a value that must be a whole number from low to LARGEST_INTEGER."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= LARGEST_INTEGER:
        raise ValueError("integer")
    return value


def scaled_integer(value: JsonValue) -> int:
    """Return a whole number of at most LARGEST_INTEGER times a power of two up to 2^256."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 256:
        raise ValueError("integer")
    if value // (value & -value) > LARGEST_INTEGER:
        raise ValueError("integer")
    return value


def record(kind: type[_T], raw: JsonValue | Mapping[str, object]) -> _T:
    """Return the dataclass that an object holds; names that are none of its fields are ignored.

    Fields that have a default may be missing.

    Raises:
        LookupError, TypeError, ValueError, ArithmeticError: a field is missing or at fault.
    """
    if not isinstance(raw, Mapping):
        raise TypeError("mapping")
    usual = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    given = {name: raw[name] for name in usual if name in raw or usual[name] is MISSING}
    return cast(_T, decode(kind, given))


def as_json(value: object) -> JsonValue:
    """Return a dataclass as JSON values: fields by name, but for those that are UNWRITTEN."""
    if is_dataclass(value):
        hints = get_type_hints(type(value), include_extras=True)
        return {
            field.name: as_json(getattr(value, field.name))
            for field in fields(value)
            if UNWRITTEN not in get_args(hints[field.name])
            or getattr(value, field.name) != field.default
        }
    if isinstance(value, Fraction):
        return str(value)
    return [*map(as_json, value)] if isinstance(value, tuple) else cast(JsonValue, value)


def decode(kind: object, raw: object) -> object:
    """Turn JSON values into a dataclass, a tuple or a plain value of a type.

    Args:
        kind: the type: a dataclass whose fields are all given, and no others; a tuple, a Mapping to
            texts or to what is looked at later, a union with None, a Literal, a Fraction as text, a
            plain type; or Annotated with Within, Matching.
        raw: what the JSON text holds there.

    Raises:
        LookupError, TypeError, ValueError, ArithmeticError: it is not of the type.
    """
    origin, members = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(raw, dict):
        hints = get_type_hints(kind, include_extras=True)
        return kind(**{name: _at(name, hints[name], value) for name, value in raw.items()})
    if origin is tuple and isinstance(raw, list | tuple):
        members = members[:1] * len(raw) if Ellipsis in members else members
        return tuple(decode(member, value) for member, value in zip(members, raw, strict=True))
    if origin is Mapping and isinstance(raw, dict):
        return {name: text_of(v) if members[1] is str else v for name, v in raw.items()}
    if origin is UnionType or origin is Union:
        return None if raw is None else decode(members[0], raw)
    if origin is Annotated:
        value = decode(members[0], raw)
        if not all(limits.holds(value) for limits in members[1:]):
            raise ValueError("out of limits")
        return value
    return _plain(kind, raw)


def _at(name: str, kind: object, raw: object) -> object:
    """Return a field's value; what is wrong with it is told by its place."""
    try:
        return decode(kind, raw)
    except MisplacedError as within:
        raise MisplacedError(f"{name}.{within.place}") from None
    except (LookupError, TypeError, ValueError, ArithmeticError):
        raise MisplacedError(name) from None


def _plain(kind: object, raw: object) -> object:
    if get_origin(kind) is Literal and isinstance(raw, str) and raw in get_args(kind):
        return raw
    if kind is float and type(raw) in (int, float) and abs(cast(float, raw)) < MOST:
        return float(cast(float, raw))
    if kind is str and isinstance(raw, str):
        raw.encode()  # a lone surrogate can be read, but never written: UnicodeEncodeError
        return raw
    if kind is Fraction and isinstance(raw, str) and _FRACTION.fullmatch(raw):
        return Fraction(raw)
    decoded = isinstance(kind, type) and is_dataclass(kind)  # by a reader of its own
    if (decoded or kind in (int, bool)) and type(raw) is kind:
        return raw
    raise TypeError(f"{kind} expected")
