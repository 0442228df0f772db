# ruff: noqa: D102, the methods of PredicateSet say what they return
"""Predicate sets: the questions a spec may ask of one attribute, as sets of its codes.

An attribute's codes are 0..size-1. The first `length` of them are ordered; where the attribute has
a code for all other texts, that is the last one and belongs to no range. All that is known of a
kind of set stands in its class; `operators.compile` makes a matrix of each.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Literal

import numpy as np

from dpquery.arrays import Bools, Floats, Ints
from dpquery.spec.columns import Attribute, Categorical

NO_RANGE = -1
QueryKind = Literal["disjoint", "prefix", "ranges", "summed", "bounded", "overlapping"]
"""How the queries of a set overlap; "summed" and "bounded" are disjoint ones beside their total,
which they add up to, or to no more than that."""


@dataclass(frozen=True, eq=False)
class QueryLabels:
    """The queries of one predicate set in words and in codes."""

    labels: Sequence[str]  # (n,) texts, in query order
    first: Ints  # (n,) first code of the range that the query is, NO_RANGE where it is none
    last: Ints  # (n,) last code of that range

    @property
    def single_codes(self) -> Ints:
        """The code of every query that is one value, NO_RANGE of the others; (n,)."""
        return np.where(self.first == self.last, self.first, NO_RANGE)


class PredicateSet(ABC):
    """Queries on one attribute, each of which holds for some of its codes, in a fixed order."""

    size: int  # number of codes of the attribute

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def members(self) -> Iterator[Sequence[int]]:
        """Yield the codes that each query holds for, rising."""

    @property
    def asked(self) -> Bools:
        """Which codes any query holds for, (size,)."""
        held = np.zeros(self.size, dtype=bool)
        held[np.fromiter(chain.from_iterable(self.members()), np.int64)] = True
        return held

    @property
    def kind(self) -> QueryKind:
        """How the queries overlap."""
        return "disjoint"

    @property
    def whole(self) -> int:
        """The place of the query that counts whatever any of the others counts, if one does."""
        return len(self) - 1

    @abstractmethod
    def query_labels(self, attribute: Attribute) -> QueryLabels:
        """Return the queries in words and in codes; O(their number)."""

    def groups_of_levels(self, attribute: Attribute) -> list[tuple[str, str] | None]:
        """Return level and code of every query that is one group of a hierarchy's level."""
        codes, lowest = self.query_labels(attribute).single_codes.tolist(), attribute.levels[-1]
        return [None if i == NO_RANGE else (lowest.name, lowest.codes[i]) for i in codes]


@dataclass(frozen=True)
class IdentitySet(PredicateSet):
    """One query for each code that is shown."""

    size: int
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

    def members(self) -> Iterator[Sequence[int]]:
        return ((code,) for code in self.codes)

    def query_labels(self, attribute: Attribute) -> QueryLabels:
        codes = np.array(self.codes, dtype=np.int64)
        ends = np.where(codes < attribute.length, codes, NO_RANGE)
        return QueryLabels([attribute.label(code) for code in codes.tolist()], ends, ends)


@dataclass(frozen=True)
class TotalSet(PredicateSet):
    """One query that every record satisfies."""

    size: int

    def __len__(self) -> int:
        return 1

    def members(self) -> Iterator[Sequence[int]]:
        yield range(self.size)

    def query_labels(self, attribute: Attribute) -> QueryLabels:
        return QueryLabels([total_label(attribute)], *np.full((2, 1), NO_RANGE, dtype=np.int64))


class RangeSet(PredicateSet):
    """Queries that are ranges of ordered codes, both ends included."""

    @abstractmethod
    def ends(self) -> tuple[Ints, Ints]:
        """Return first and last code of every query, (n,) each."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """First and last code of every query."""
        first, last = self.ends()
        return list(zip(first.tolist(), last.tolist(), strict=True))

    def members(self) -> Iterator[Sequence[int]]:
        return (range(first, last + 1) for first, last in self.pairs)

    @property
    def asked(self) -> Bools:
        first, last = self.ends()
        begun, ended = (np.bincount(codes, minlength=self.size + 1) for codes in (first, last + 1))
        return np.asarray(np.cumsum(begun - ended)[: self.size] > 0)

    def query_labels(self, attribute: Attribute) -> QueryLabels:
        labels = [attribute.columns[0].range_label(i, j) for i, j in self.pairs]
        return QueryLabels(labels, *self.ends())


@dataclass(frozen=True)
class PrefixSet(RangeSet):
    """The queries code <= j, for every ordered code j."""

    size: int
    length: int

    def __len__(self) -> int:
        return self.length

    def ends(self) -> tuple[Ints, Ints]:
        return np.zeros(self.length, dtype=np.int64), np.arange(self.length, dtype=np.int64)

    @property
    def kind(self) -> QueryKind:
        return "prefix" if len(self) > 1 else "disjoint"


@dataclass(frozen=True)
class AllRangesSet(RangeSet):
    """The queries i <= code <= j, for every i <= j; i in the outer loop."""

    size: int
    length: int

    def __len__(self) -> int:
        return self.length * (self.length + 1) // 2

    def ends(self) -> tuple[Ints, Ints]:
        i, j = np.triu_indices(self.length)
        return i.astype(np.int64), j.astype(np.int64)

    @property
    def kind(self) -> QueryKind:
        return "ranges" if len(self) > 1 else "disjoint"

    @property
    def whole(self) -> int:
        return self.length - 1


@dataclass(frozen=True)
class WidthSet(RangeSet):
    """The queries i <= code < i + width, for every i that leaves the range inside."""

    size: int
    length: int
    width: int

    def __len__(self) -> int:
        return self.length - self.width + 1

    def ends(self) -> tuple[Ints, Ints]:
        first = np.arange(len(self), dtype=np.int64)
        return first, first + self.width - 1

    @property
    def kind(self) -> QueryKind:
        return "disjoint" if self.width == 1 or len(self) == 1 else "overlapping"


@dataclass(frozen=True)
class IntervalSet(RangeSet):
    """Listed ranges (first, last) of codes, both ends included."""

    size: int
    bounds: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.bounds)

    def ends(self) -> tuple[Ints, Ints]:
        first, last = np.array(self.bounds, dtype=np.int64).reshape(-1, 2).T
        return first, last

    @property
    def kind(self) -> QueryKind:
        first, last = np.array(sorted(self.bounds)).T
        return "disjoint" if np.all(last[:-1] < first[1:]) else "overlapping"


@dataclass(frozen=True)
class GroupSet(PredicateSet):
    """Listed groups (label, codes); the codes of a group are sorted and distinct."""

    size: int
    groups: tuple[tuple[str, tuple[int, ...]], ...]  # label and codes of each
    # of each its level in a hierarchy and its code there; empty where they have none
    named: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.groups)

    def members(self) -> Iterator[Sequence[int]]:
        return (codes for _, codes in self.groups)

    @property
    def kind(self) -> QueryKind:
        codes = [*chain.from_iterable(self.members())]
        return "disjoint" if len(codes) == len(set(codes)) else "overlapping"

    def query_labels(self, attribute: Attribute) -> QueryLabels:
        first, last = np.array(
            [_run(codes, attribute.length) for codes in self.members()], dtype=np.int64
        ).T
        return QueryLabels([label for label, _ in self.groups], first, last)

    def groups_of_levels(self, attribute: Attribute) -> list[tuple[str, str] | None]:
        return [*self.named] or super().groups_of_levels(attribute)


@dataclass(frozen=True)
class StackedSet(PredicateSet):
    """The queries of several sets, one after the other (identity + total, say)."""

    size: int
    parts: tuple[PredicateSet, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def members(self) -> Iterator[Sequence[int]]:
        return chain.from_iterable(part.members() for part in self.parts)

    @property
    def asked(self) -> Bools:
        return np.asarray(np.logical_or.reduce([part.asked for part in self.parts]))

    @property
    def kind(self) -> QueryKind:
        # whether disjoint queries sum to the total beside them, or to no more than it
        cells = [part for part in self.parts if not isinstance(part, TotalSet)]
        if len(self.parts) != 2 or len(cells) != 1 or not isinstance(cells[0], _CELLS):
            return "overlapping"
        if cells[0].kind != "disjoint":
            return "overlapping"
        return "summed" if cells[0].asked.all() else "bounded"

    @property
    def whole(self) -> int:
        return 0 if isinstance(self.parts[0], TotalSet) else len(self) - 1

    def query_labels(self, attribute: Attribute) -> QueryLabels:
        parts = [part.query_labels(attribute) for part in self.parts]
        return QueryLabels(
            [label for part in parts for label in part.labels],
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.last for part in parts]),
        )

    def groups_of_levels(self, attribute: Attribute) -> list[tuple[str, str] | None]:
        return [group for part in self.parts for group in part.groups_of_levels(attribute)]


_CELLS = (IdentitySet, GroupSet)


def even_spread(attribute: Attribute) -> Floats:
    """Return the share of records of each code, (size,).

    All declared values are as frequent, and no record has another one.
    """
    declared = reduce(np.kron, (np.arange(c.size) < c.length for c in attribute.columns))
    return np.asarray(declared / declared.sum())


def with_values(attribute: Attribute) -> PredicateSet | None:
    """Return the records whose values are declared; None where all others are dropped."""
    columns = tuple((column.size, column.length) for column in attribute.columns)
    if all(size == length for size, length in columns):
        return None
    if not attribute.merged:
        return IntervalSet(attribute.size, ((0, columns[0][1] - 1),))
    kept = tuple(IdentitySet(attribute.size, columns).codes)
    return GroupSet(attribute.size, (("declared", kept),))


def total_label(attribute: Attribute) -> str:
    """Return the label of "whatever the attribute": all, unless one of its values is called so."""
    kinds = [column.kind for column in attribute.columns]
    declared = {label for kind in kinds if isinstance(kind, Categorical) for label in kind.labels}
    return "(all)" if "all" in declared else "all"


def _run(codes: Sequence[int], length: int) -> tuple[int, int]:
    """Return (first, last) if sorted codes are a range of ordered codes, else NO_RANGE twice."""
    if codes and codes[-1] - codes[0] == len(codes) - 1 and codes[-1] < length:
        return codes[0], codes[-1]
    return NO_RANGE, NO_RANGE
