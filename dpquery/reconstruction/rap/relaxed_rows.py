"""Relaxed rows: synthetic records that hold distributions in place of codes, and their answers.

A relaxed row x has one distribution x_i over the classes of each attribute [RAP]. A query asks of
it what it would ask, on average, of records drawn from these distributions independently: with
p_i = f_i . x_i for the predicate f_i on attribute i, a product answers prod_i p_i, and "at least r
of the counted predicates, and all others" the tail of a Poisson-binomial times the others. Where
the rows are records, every p_i 0 or 1, these are the exact answers. n' rows answer their mean.

All queries of a block at once, [MATH] 10: the table mean over rows of prod_i p_i[j_i] is one matrix
product of two half-tables, and a threshold is the signed sum of such tables over the sets of
counted predicates, each spread along the axes that it leaves out. Predicates that agree on every
row, such as classes that nothing measured tells apart, are worked out once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpquery.operators.blocks import Block
from dpquery.operators.factors import Factor, Identity

Floats = NDArray[np.float32]
ROWS_AT_ONCE = 1024  # relaxed rows whose half-tables are held together: more leave the cache


@dataclass(frozen=True, eq=False)
class Chances:
    """What the predicates of one attribute hold of every relaxed row.

    Attributes:
        distinct: (u, n') the probabilities p of each row, for predicates that differ.
        places: (m,) which of these each predicate is.
    """

    distinct: Floats
    places: NDArray[np.int64]

    @classmethod
    def of(cls, values: Floats) -> "Chances":
        """Find the predicates that agree on every row. values: (m, n')."""
        seen: dict[bytes, int] = {}
        places = np.array([seen.setdefault(own.tobytes(), len(seen)) for own in values])
        _, first = np.unique(places, return_index=True)
        return cls(values[first], places)


@dataclass(frozen=True, eq=False)
class RelaxedRows:
    """Relaxed rows, each with one distribution an attribute.

    Attributes:
        shape: classes of each attribute of the domain.
        values: (n', sum of shape) float32, the distributions of a row side by side.
    """

    shape: tuple[int, ...]
    values: Floats

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != sum(self.shape):
            raise ValueError(f"relaxed rows of {self.values.shape} for the domain {self.shape}")
        if self.values.dtype != np.float32 or len(self.values) == 0:
            raise ValueError("relaxed rows are of float32, and one at least")

    def answer(self, block: Block) -> Floats:
        """Return the answers of a block as fractions of one: row_shape.

        Memory: the table, one more of its size, and n' numbers for every distinct predicate.
        """
        if not block.attributes:
            return np.ones((), dtype=np.float32)
        late = [block.is_product and factor.shape[0] > factor.shape[1] for factor in block.factors]
        chances = [
            self._classes[i] if after else self._chances(i, factor)
            for i, factor, after in zip(block.attributes, block.factors, late, strict=True)
        ]
        table = at_least([own.distinct for own in chances], block.counted, block.at_least)
        for axis in reversed(range(len(chances))):
            if len(chances[axis].places) > len(chances[axis].distinct):
                table = table.take(chances[axis].places, axis)
        for axis, factor in enumerate(block.factors):
            if late[axis]:
                table = along(factor, table, axis)
        return table

    def distribution(self, attribute: int) -> Floats:
        """Return the distributions of one attribute: (n', n_i)."""
        start = sum(self.shape[:attribute])
        return self.values[:, start : start + self.shape[attribute]]

    def _chances(self, attribute: int, factor: Factor) -> Chances:
        own = self._classes[attribute]
        if isinstance(factor, Identity):
            return own
        return Chances.of(np.asarray(factor.matmat(own.distinct[own.places]), dtype=np.float32))

    @cached_property
    def _classes(self) -> tuple[Chances, ...]:
        own = (np.ascontiguousarray(self.distribution(i).T) for i in range(len(self.shape)))
        return tuple(Chances.of(values) for values in own)


def at_least(
    chances: Sequence[Floats], counted: Sequence[bool], r: int, *, held: Sequence[bool] = ()
) -> Floats:
    """Return the mean chance that at least r of the counted predicates hold, and all others.

    The signed sum of [MATH] 5, where every table is first added to the next larger one that holds
    its predicates: only k tables are ever spread over the whole.

    Args:
        chances: for each axis (m_i, n') the probability of every predicate in every row.
        counted: which axes are counted.
        r: how many of these are to hold.
        held: the axes of the term to start from; by default all.

    Returns:
        (m_1, ..., m_k), of size 1 along the axes that are not held.
    """
    held = held or [True] * len(chances)
    t = sum(inside and own for inside, own in zip(held, counted, strict=True))
    nothing = np.ones_like(chances[0][:1])
    table = mean_product([p if own else nothing for p, own in zip(chances, held, strict=True)])
    if t > r:
        table *= (-1) ** (t - r) * math.comb(t - 1, t - r)
        missing = next((i for i, own in enumerate(held) if not own), len(held))
        for i in (i for i in range(missing) if counted[i]):
            fewer = [own and j != i for j, own in enumerate(held)]
            table += at_least(chances, counted, r, held=fewer)
    return table


def mean_product(chances: Sequence[Floats]) -> Floats:
    """Return the mean over rows of prod_i p_i[j_i] for all j: (m_1, ..., m_k).

    Args:
        chances: for each axis (m_i, n') the probability of every predicate in every row.
    """
    rows = chances[0].shape[1]
    total: Floats | None = None
    for start in range(0, rows, ROWS_AT_ONCE):
        left, right = halves([p[:, start : start + ROWS_AT_ONCE] for p in chances])
        product = half_table(left) @ half_table(right).T
        total = product if total is None else np.add(total, product, out=total)
    if total is None:
        raise ValueError("no rows")
    total /= rows
    return total.reshape([len(p) for p in chances])


def halves(chances: Sequence[Floats]) -> tuple[Sequence[Floats], Sequence[Floats]]:
    """Split axes into two groups with as few products of each as can be; one axis has all ones."""
    both = [*chances, np.ones_like(chances[0][:1])] if len(chances) == 1 else chances
    sizes = [len(p) for p in both]
    cut = min(range(1, len(both)), key=lambda i: math.prod(sizes[:i]) + math.prod(sizes[i:]))
    return both[:cut], both[cut:]


def half_table(chances: Sequence[Floats]) -> Floats:
    """Return the products of several axes in every row: (prod m_i, n')."""
    table = chances[0]
    for p in chances[1:]:
        table = (table[:, None] * p).reshape(-1, p.shape[1])
    return table


def along(factor: Factor, table: Floats, axis: int) -> Floats:
    """Apply a factor along one axis of a table."""
    moved = np.moveaxis(table, axis, 0)
    flat = np.asarray(
        factor.matmat(np.ascontiguousarray(moved).reshape(len(moved), -1)), np.float32
    )
    return np.moveaxis(flat.reshape(-1, *moved.shape[1:]), 0, axis)
