"""Canonical text of values, unambiguous where several follow each other; keys are its hash.

Records have a literal tag and literal names; no name follows a class or an attribute, which may be
called otherwise tomorrow. Values stand as in a Python literal: texts quoted, numbers exact (a float
by the shortest digits that give it back), bytes escaped, tuples in brackets. So two different
values never have one text, and what follows a value cannot be taken for a part of it.

The text of a value never changes. One thing in it is Python's: a character of a text that Unicode
had not assigned yet when that Python was made is escaped, and later stands for itself.
"""

from collections.abc import Iterable
from fractions import Fraction
from operator import index

import numpy as np

from dpquery.arrays import Numbers


def write_record(tag: str, **fields: str) -> str:
    """Return the text of named fields, each already written, in the order given.

    >>> write_record("Integers", low=write_number(0), high=write_number(9))
    'Integers(low=0, high=9)'
    """
    return f"{tag}({', '.join(f'{name}={value}' for name, value in fields.items())})"


def write_series(values: Iterable[str]) -> str:
    """Return the text of a tuple of values that are already written.

    >>> write_series([]), write_series(["1"]), write_series(["1", "2"])
    ('()', '(1,)', '(1, 2)')
    """
    written = list(values)
    return f"({written[0]},)" if len(written) == 1 else f"({', '.join(written)})"


def write_text(value: str) -> str:
    """Return a text in quotes."""
    return str.__repr__(value)


def write_texts(values: Iterable[str]) -> str:
    """Return a tuple of texts."""
    return write_series(write_text(value) for value in values)


def write_number(value: int) -> str:
    """Return a whole number, of numpy's too."""
    return str(index(value))


def write_numbers(values: Iterable[int]) -> str:
    """Return a tuple of whole numbers."""
    return write_series(write_number(value) for value in values)


def write_real(value: float) -> str:
    """Return a floating-point number, exactly."""
    return repr(float(value))


def write_fraction(value: Fraction) -> str:
    """Return a fraction in lowest terms."""
    return f"Fraction({value.numerator}, {value.denominator})"


def write_truth(value: bool) -> str:
    """Return True or False."""
    return "True" if value else "False"


def write_optional(written: str | None) -> str:
    """Return what is written, or None."""
    return "None" if written is None else written


def write_integers(array: Numbers) -> str:
    """Return the integers of an array, row after row, as little-endian 64-bit ones.

    Its shape is not in the text. TypeError if they are not integers: no other array is exact.
    """
    return repr(integer_bytes(array))


def integer_bytes(array: Numbers) -> bytes:
    """Return the same as bytes, which do not say where they end."""
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"a key is made of integers, not of {array.dtype}")
    return np.ascontiguousarray(array, dtype="<i8").tobytes()
