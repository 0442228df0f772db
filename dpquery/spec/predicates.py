"""Predicate sets: the questions a spec may ask of one attribute, as sets of its codes.

An attribute's codes are 0..size-1. The first `length` of them are ordered; where the attribute has
a code for all other texts, that is the last one and belongs to no range.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from dpquery.arrays import Bools, Floats
from dpquery.spec.columns import Attribute


@dataclass(frozen=True)
class IdentitySet:
    """One query for each code that is shown."""

    size: int  # number of codes
    # (codes, how many of them, the first, are shown) of each column that makes up the attribute;
    # empty where all codes are shown
    columns: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, attribute: Attribute) -> "IdentitySet":
        """Return the single values of an attribute."""
        if attribute.shown == attribute.size:
            return cls(attribute.size)
        columns = tuple((column.size, column.shown) for column in attribute.columns)
        return cls(attribute.size, columns)

    def __len__(self) -> int:
        return math.prod(shown for _, shown in self.columns) if self.columns else self.size

    @property
    def codes(self) -> Sequence[int]:
        """The codes that are shown, rising; O(their number) for merged columns."""
        if len(self.columns) < 2:
            return range(len(self))
        codes = [0]
        for size, shown in self.columns:
            codes = [code * size + part for code in codes for part in range(shown)]
        return codes


@dataclass(frozen=True)
class TotalSet:
    """One query that every record satisfies."""

    size: int

    def __len__(self) -> int:
        return 1


@dataclass(frozen=True)
class PrefixSet:
    """The queries code <= j, for every ordered code j."""

    size: int
    length: int

    def __len__(self) -> int:
        return self.length


@dataclass(frozen=True)
class AllRangesSet:
    """The queries i <= code <= j, for every i <= j; i in the outer loop."""

    size: int
    length: int

    def __len__(self) -> int:
        return self.length * (self.length + 1) // 2


@dataclass(frozen=True)
class WidthSet:
    """The queries i <= code < i + width, for every i that leaves the range inside."""

    size: int
    length: int
    width: int

    def __len__(self) -> int:
        return self.length - self.width + 1


@dataclass(frozen=True)
class IntervalSet:
    """Listed ranges (first, last) of codes, both ends included."""

    size: int
    bounds: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.bounds)


@dataclass(frozen=True)
class GroupSet:
    """Listed groups (label, codes); the codes of a group are sorted and distinct."""

    size: int  # number of codes
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # label and codes of each
    # of each its level in a hierarchy and its code there; empty where they have none
    named: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.groups)


@dataclass(frozen=True)
class StackedSet:
    """The queries of several sets, one after the other (identity + total, say)."""

    size: int
    parts: tuple["PredicateSet", ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)


PredicateSet = (
    IdentitySet
    | TotalSet
    | PrefixSet
    | AllRangesSet
    | WidthSet
    | IntervalSet
    | GroupSet
    | StackedSet
)


def even_spread(attribute: Attribute) -> Floats:
    """Return the share of records of each code, (size,).

    All declared values are as frequent, and no record has another one.
    """
    declared = reduce(np.kron, (np.arange(c.size) < c.length for c in attribute.columns))
    return np.asarray(declared / declared.sum())


def selected_codes(predicates: PredicateSet) -> Iterator[int]:
    """Yield the codes that meet at least one predicate; some of them more than once."""
    match predicates:
        case IdentitySet():
            yield from predicates.codes
        case TotalSet(size=size):
            yield from range(size)
        case GroupSet(groups=groups):
            for _, codes in groups:
                yield from codes
        case StackedSet(parts=parts):
            for part in parts:
                yield from selected_codes(part)
        case AllRangesSet(length=length) | WidthSet(length=length):
            yield from range(length)  # of widths that fit: every code is in some range
        case _:
            for first, last in ranges(predicates):
                yield from range(first, last + 1)


def with_values(attribute: Attribute) -> PredicateSet | None:
    """Return the records whose values are declared; None where all others are dropped."""
    columns = tuple((column.size, column.length) for column in attribute.columns)
    if all(size == length for size, length in columns):
        return None
    if not attribute.merged:
        return IntervalSet(attribute.size, ((0, columns[0][1] - 1),))
    kept = tuple(IdentitySet(attribute.size, columns).codes)
    return GroupSet(attribute.size, (("declared", kept),))


def asked_codes(predicates: PredicateSet) -> Bools:
    """Return which codes any query of a set holds for, (size,)."""
    held = np.zeros(predicates.size, dtype=bool)
    match predicates:
        case TotalSet():
            held[:] = True
        case IdentitySet():
            held[np.asarray(predicates.codes)] = True
        case GroupSet(groups=groups):
            held[[code for _, codes in groups for code in codes]] = True
        case StackedSet(parts=parts):
            held = np.logical_or.reduce([asked_codes(part) for part in parts])
        case IntervalSet(bounds=bounds):
            for first, last in bounds:
                held[first : last + 1] = True
        case _:
            held[: predicates.length] = True
    return held


def ranges(predicates: PredicateSet) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of every query of an ordered set, in query order."""
    match predicates:
        case PrefixSet(length=length):
            yield from ((0, j) for j in range(length))
        case AllRangesSet(length=length):
            yield from ((i, j) for i in range(length) for j in range(i, length))
        case WidthSet(length=length, width=width):
            yield from ((i, i + width - 1) for i in range(length - width + 1))
        case IntervalSet(bounds=bounds):
            yield from bounds
        case _:
            raise TypeError(f"{type(predicates).__name__} is not a set of ranges")
