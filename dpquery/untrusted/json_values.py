"""Values of a JSON file that comes from outside, each checked as it is taken."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from types import UnionType
from typing import NoReturn, cast, get_args, get_origin, get_type_hints

LARGEST_INTEGER = 1 << 40  # of any integer in a plan, powers of two apart
MOST = 1e100  # of any figure: in counts, and squared, it must still be a number
LEAST_FIGURE = 1e-100  # of any figure above zero: its logarithm must still be one
MAX_JSON_BYTES = 1 << 28  # of a file of JSON
MAX_VALUES = 1 << 24  # in such a file: each takes some sixty bytes in memory, and two in the file

Json = Mapping[str, "JsonValue"]
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def parsed(content: bytes) -> JsonValue:
    """Return the value of a JSON text; ValueError or RecursionError where it is not JSON.

    Refused too: a name given twice in one object, NaN and infinity, more values than MAX_VALUES.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError("values")
    value: JsonValue = json.loads(content, object_pairs_hook=_object, parse_constant=_refuse)
    return value


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


def number_of(value: JsonValue) -> float:
    """Return a figure of an error: finite, and never negative."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < MOST:
        raise ValueError("number")
    return float(value)


def optional_number(value: JsonValue) -> float | None:
    """Return a figure of an error, or None for null."""
    return None if value is None else number_of(value)


def decode(kind: object, raw: object) -> object:
    """Turn JSON values into a dataclass, a tuple or a plain value of the type asked for."""
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(raw, dict):
        hints = get_type_hints(kind)
        return kind(**{name: decode(hints[name], value) for name, value in raw.items()})
    if get_origin(kind) is tuple and isinstance(raw, list | tuple):
        members = get_args(kind)
        members = members[:1] * len(raw) if Ellipsis in members else members
        return tuple(decode(member, value) for member, value in zip(members, raw, strict=True))
    if isinstance(kind, UnionType):
        return None if raw is None else decode(get_args(kind)[0], raw)
    if kind is float and type(raw) in (int, float) and abs(cast(float, raw)) < MOST:
        return float(cast(float, raw))
    if kind is str and isinstance(raw, str):
        raw.encode()  # a lone surrogate can be read, but never written: UnicodeEncodeError
        return raw
    if kind in (int, bool) and type(raw) is kind:
        return raw
    raise TypeError(f"{kind} expected")
