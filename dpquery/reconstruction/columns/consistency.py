"""Which answers of a table are consistent: those that one set of records could give.

A table is consistent if some table of counts, none negative, gives all its answers. For each set of
predicates on an attribute that means:
  disjoint   (identity, total, groups and ranges that do not overlap) no answer is negative
  prefix     no answer is negative, and none is larger than the next
  all ranges the same for the ranges from the first code on; any other is a difference of two
  + total    (disjoint ones that miss no code, and the total) no answer is negative, and the total
             is the sum of the others; where the disjoint ones miss a code, at least that sum
One attribute of a table may have one of the last three; the others are disjoint. Then the nearest
such answers have a closed form. Where queries overlap in any other way (r of k, overlapping groups
or ranges, prefixes of two attributes), or other tables share attributes, they come from
agreeing_tables.

The size of a table, the number of records that some query counts, is an estimate too. Kept at that
estimate it stays unbiased (unless negative), while cells move: that is what keeps projection from
inventing people.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, assert_never

from dpquery.spec.model import Table
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
    ranges,
)

QueryKind = Literal["disjoint", "prefix", "ranges", "summed", "bounded", "overlapping"]


@dataclass(frozen=True)
class QueryStructure:
    """How the queries of a table overlap, which decides what its consistent answers are.

    Attributes:
        kind: of the one axis that is not disjoint; "disjoint" where there is none.
        axis: its place among the table's axes; 0 where there is none.
        whole: which query of that axis is the sum of the disjoint ones among them.
        reason: why there are no consistent answers; empty where there are.
    """

    kind: QueryKind
    axis: int = 0
    whole: int = 0
    reason: str = ""


def query_structure(table: Table) -> QueryStructure:
    """Return how the queries of a table overlap."""
    if table.summed is not None:
        return QueryStructure("overlapping", reason="its queries are sums, not counts")
    if table.threshold < len(table.axes):
        return QueryStructure(
            "overlapping", reason="a record can be counted by several of its queries"
        )
    kinds = [query_kind(predicates) for _, predicates in table.axes]
    special = [place for place, kind in enumerate(kinds) if kind != "disjoint"]
    if not special:
        return QueryStructure("disjoint")
    if any(kinds[place] == "overlapping" for place in special):
        return QueryStructure(
            "overlapping", reason="the predicates of one of its attributes overlap"
        )
    if len(special) > 1:
        return QueryStructure(
            "overlapping", reason="several of its attributes have prefixes, ranges or totals"
        )
    (axis,) = special
    predicates = table.axes[axis][1]
    return QueryStructure(kinds[axis], axis, _whole(predicates))


def below_zero(table: Table) -> str:
    """Return why true answers may be negative; nothing where none can be."""
    if table.summed is None or min(table.summed.values) >= 0:
        return ""
    return "its sums may be negative"


def query_kind(predicates: PredicateSet) -> QueryKind:
    """Return how the predicates of one attribute overlap."""
    match predicates:
        case IdentitySet() | TotalSet():
            return "disjoint"
        case PrefixSet():
            return "prefix" if len(predicates) > 1 else "disjoint"
        case AllRangesSet():
            return "ranges" if len(predicates) > 1 else "disjoint"
        case WidthSet(width=width):
            return "disjoint" if width == 1 or len(predicates) == 1 else "overlapping"
        case IntervalSet():
            pairs = pairwise(sorted(ranges(predicates)))
            disjoint = all(last < first for (_, last), (first, _) in pairs)
            return "disjoint" if disjoint else "overlapping"
        case GroupSet(groups=groups):
            codes = [code for _, codes_of_group in groups for code in codes_of_group]
            return "disjoint" if len(codes) == len(set(codes)) else "overlapping"
        case StackedSet(parts=parts):
            return _with_total(parts)
    assert_never(predicates)


def _with_total(parts: Sequence[PredicateSet]) -> QueryKind:
    """Return whether disjoint queries sum to the total beside them, or to no more than it."""
    non_totals = [part for part in parts if not isinstance(part, TotalSet)]
    if len(parts) != 2 or len(non_totals) != 1:
        return "overlapping"
    match non_totals[0]:
        case IdentitySet() as cells:
            return "summed" if len(cells) == cells.size else "bounded"
        case GroupSet(size=size, groups=groups) as cells if query_kind(cells) == "disjoint":
            return "summed" if sum(len(codes) for _, codes in groups) == size else "bounded"
        case _:
            return "overlapping"


def _whole(predicates: PredicateSet) -> int:
    """Return the place of the query that counts whatever any of the others counts."""
    match predicates:
        case AllRangesSet(length=length):
            return length - 1
        case StackedSet(parts=parts) if isinstance(parts[0], TotalSet):
            return 0
        case _:
            return len(predicates) - 1
