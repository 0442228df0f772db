"""The sensitivity of selected queries, by families of which a record answers one at most.

Two queries are disjoint where no record satisfies both. Let the selected queries be split into
families of pairwise disjoint ones. A record added or removed moves at most one count of a family,
by 1: the squared length of the move of all counts is at most the number of families. Replacing a
record moves at most two counts of a family, one down and one up, and none of them by more than 1:
that is at most the sum over families of min(size, 2). A person's c records are c such moves one
after another, whose lengths add up, so c^2 times that bounds the squared length. No split is ever
worse than counting every query, which is the family of each alone; any split is sound, so it is
made in the simplest way: a query joins the first family that it is disjoint with as a whole.

Which queries are disjoint is read off their predicates. Let two queries have h attributes on which
both have a predicate and these share no code. A record that satisfied both would fail one of the
two predicates on each of those attributes: h in all. But a query that asks at least r of its k
counted predicates, and all the others, lets k - r of them fail and no more. So they are disjoint if
h is greater than what the two let fail together, or if one of the h predicate pairs has both sides
uncounted. For cells of one marginal, k = r, and h = 1 is enough.

The selected queries are public by the time they are measured, and so is all of this.
"""

from collections.abc import Hashable

import numpy as np

from dpquery.arrays import Bools, Ints, Singles
from dpquery.operators.blocks import Block, Workload

_NONE = -1


def family_sizes(workload: Workload, places: Ints) -> list[int]:
    """Return the sizes of families of pairwise disjoint queries that hold each of these once.

    Args:
        workload: blocks of 0/1 queries.
        places: (k, 2): position of a block, number of a row in it. O(k^2) for k of them.
    """
    ordered = places[np.lexsort((places[:, 1], places[:, 0]))]
    clashes, barred = _clashes(workload, ordered)
    slack = np.array([_slack(workload.blocks[position]) for position, _ in ordered])
    family = np.zeros(len(ordered), dtype=np.int64)
    sizes: list[int] = []
    for k in range(len(ordered)):
        disjoint = (clashes[k, :k] > slack[k] + slack[:k]) | barred[k, :k]
        disjoint_members = np.bincount(family[:k], weights=disjoint, minlength=len(sizes))
        fitting = np.flatnonzero(disjoint_members == np.array(sizes))
        family[k] = fitting[0] if fitting.size else len(sizes)
        if fitting.size:
            sizes[family[k]] += 1
        else:
            sizes.append(1)
    return sizes


def squared_move(sizes: list[int], *, replace: bool, records: int) -> int:
    """Return a bound on the squared L2 move of the counts between neighbours.

    Args:
        sizes: of families of pairwise disjoint queries.
        replace: whether neighbours have records replaced, or added or removed.
        records: c, the most records of a person.
    """
    return records**2 * sum(min(size, 2 if replace else 1) for size in sizes)


def _slack(block: Block) -> int:
    """Return how many of a row's predicates may fail."""
    return sum(block.counted) - block.at_least


def _clashes(workload: Workload, places: Ints) -> tuple[Ints, Bools]:
    """Return h for all pairs of queries, and whether a pair has two uncounted sides: (k, k)."""
    clashes = np.zeros((len(places), len(places)), dtype=np.int64)
    barred = np.zeros((len(places), len(places)), dtype=np.bool_)
    for i in workload.attributes:
        numbers, matrix = _predicates(workload, places, i)
        apart = matrix @ matrix.T == 0
        restricted = numbers != _NONE
        clash = apart[np.ix_(numbers, numbers)] & restricted[:, None] & restricted
        counted = np.array([_counted(workload.blocks[position], i) for position, _ in places])
        clashes += clash
        barred |= clash & ~counted[:, None] & ~counted
    return clashes, barred


def _counted(block: Block, i: int) -> bool:
    """Return whether a block counts its predicates on attribute i."""
    return i in block.attributes and block.counted[block.attributes.index(i)]


def _predicates(workload: Workload, places: Ints, i: int) -> tuple[Ints, Singles]:
    """Return which predicate each query has on attribute i, or -1, and the distinct ones as rows.

    The rows are 0/1 over the codes, in floats, which hold the number of shared codes exactly.
    """
    row_of: dict[Hashable, int] = {}
    numbers = np.full(len(places), _NONE)
    rows = [np.zeros(workload.shape_of_domain[i], dtype=np.float32)]
    for k, (position, row) in enumerate(places.tolist()):
        block = workload.blocks[position]
        if i not in block.attributes:
            continue
        axis = block.attributes.index(i)
        factor = block.factors[axis]
        index = int(np.unravel_index(row, block.row_shape)[axis])
        if (factor.key, index) not in row_of:
            row_of[factor.key, index] = len(rows)
            rows.append(factor.row(index).astype(np.float32))
        numbers[k] = row_of[factor.key, index]
    return numbers, np.stack(rows)
