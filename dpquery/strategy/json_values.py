"""Values of a JSON file that comes from outside, each checked as it is taken."""

from collections.abc import Mapping

LARGEST = 1 << 40  # of any integer in a plan, powers of two apart
MOST = 1e100  # of any figure: in counts, and squared, it must still be a number

Json = Mapping[str, "JsonValue"]
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def mapping(value: JsonValue) -> Json:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise TypeError("mapping")
    return value


def listed(value: JsonValue, least: int = 0) -> list[JsonValue]:
    """Return a value that must be a list of at least so many."""
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
    """Return a value that must be a whole number from low to LARGEST."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= LARGEST:
        raise ValueError("integer")
    return value


def scaled_integer(value: JsonValue) -> int:
    """Return a whole number of at most LARGEST times a power of two up to 2^256."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 256:
        raise ValueError("integer")
    if value // (value & -value) > LARGEST:
        raise ValueError("integer")
    return value


def number_of(value: JsonValue) -> float:
    """Return a figure of an error: finite, and never negative."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < MOST:
        raise ValueError("number")
    return float(value)


def optional_number(value: JsonValue) -> float | None:
    """Return the same, or None."""
    return None if value is None else number_of(value)
