"""Public facts as linear equalities: answers that are known without looking at the records.

What no record can be is a union of boxes, products of sets of codes. Codes of an attribute that lie
in the same boxes are one atom: there are few, so that a tensor over atoms says what is possible,
however large the domain. A query is known to be 0 where all that it counts is impossible: where it
touches no possible atom.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpquery.arrays import Bools, Floats, Ints, Numbers, numbered_by_first
from dpquery.exceptions import SpecError
from dpquery.limits import MAX_FACT_ATOMS
from dpquery.operators.blocks import Block, Product, Workload, kron_apply, marginal
from dpquery.operators.cells import Spread
from dpquery.operators.factors import Factor, Valued
from dpquery.spec.predicates import selected_codes
from dpquery.spec.spec import Spec

IMPOSSIBLE = "`impossible`"
"""The source of what follows from impossible combinations; others are items."""


@dataclass(frozen=True, eq=False)
class ImpossibleCells:
    """The cells of a domain that no record is in."""

    attributes: tuple[int, ...]  # the sorted indices of those that some combination names
    # for each of them whether a class holds codes of an atom, (classes, atoms)
    touches: tuple[Ints, ...]
    possible: Ints  # 1 for every cell of atoms that records may be in, else 0

    def rows(self, block: Block) -> Bools:
        """Return which queries of a block can count no record: (m,), in C order."""
        if block.is_product:
            every = range(len(block.factors))
            return np.ravel(np.broadcast_to(self._all_of(block, every), block.row_shape))
        counted = [place for place, counts in enumerate(block.counted) if counts]
        always = [place for place, counts in enumerate(block.counted) if not counts]
        out = np.ones(block.row_shape, dtype=bool)
        for chosen in combinations(counted, block.at_least):
            out &= self._all_of(block, (*always, *chosen))
        return out.ravel()

    def count(self, shape: Sequence[int], attributes: Sequence[int]) -> int:
        """Return how many cells of the table over some attributes no record is in."""
        named = tuple(i for i in attributes if i in self.attributes)
        others = math.prod(shape[i] for i in attributes if i not in named)
        return int(self.rows(marginal(tuple(shape), named)).sum()) * others

    def _all_of(self, block: Block, places: Sequence[int]) -> Bools:
        """Return where the conjunctions of some predicates are impossible; it broadcasts."""
        asked = {block.attributes[place]: block.factors[place] for place in places}
        products: list[Product | None] = [
            _touching(asked[i], touches) if i in asked else _any_atom
            for i, touches in zip(self.attributes, self.touches, strict=True)
        ]
        touched = kron_apply(products, self.possible)
        axes = {i: axis for axis, i in enumerate(self.attributes)}
        kept = [axes[i] for i in block.attributes if i in axes]
        beyond = tuple(axis for axis in range(touched.ndim) if axis not in kept)
        table = touched.sum(axis=beyond)  # of length 1: the others are in the block
        sizes = [
            length if i in asked and i in axes else 1
            for i, length in zip(block.attributes, block.row_shape, strict=True)
        ]
        return np.asarray(table.reshape(sizes) == 0)


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    """The answers of a block that are published anyway."""

    source: str  # the item
    position: int  # of its block in the workload
    values: Floats  # (m,) of its queries, in C order


@dataclass(frozen=True, eq=False)
class PublicFacts:
    """What is known of the answers of a workload."""

    # the cells that no record is in; None where all may hold some
    impossible: ImpossibleCells | None
    known: tuple[KnownAnswers, ...] = ()  # blocks whose answers are known

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the facts come from, in order: items cannot have the name of the first."""
        first = (IMPOSSIBLE,) if self.impossible else ()
        return (*first, *(known.source for known in self.known))

    def stated(self, workload: Workload) -> dict[str, int]:
        """Return how many answers of a workload each source states."""
        zeros = sum(int(self.zeros(block).sum()) for block in workload.blocks)
        return {IMPOSSIBLE: zeros} | {known.source: len(known.values) for known in self.known}

    def zeros(self, block: Block) -> Bools:
        """Return which queries of a block can count no record: (m,)."""
        if self.impossible is None:
            return np.zeros(block.queries, dtype=bool)
        return self.impossible.rows(block)

    def at(self, position: int | None) -> KnownAnswers | None:
        """Return what is known of the block at a place in the workload; None where nothing is."""
        return next((known for known in self.known if known.position == position), None)


def public_facts(
    spec: Spec, classes: Sequence[Ints], items: Sequence[Sequence[int]]
) -> PublicFacts | None:
    """Return what a spec says of its answers, over classes of codes; None where it says nothing.

    Raises:
        SpecError: the combinations that are impossible cut the domain into too many pieces.
    """
    if not spec.states_facts:
        return None
    known = tuple(
        KnownAnswers(item.name, places[0], np.array(item.known.values, dtype=np.float64))
        for item, places in zip(spec.items, items, strict=True)
        if item.known is not None
    )
    return PublicFacts(_impossible_cells(spec, classes) if spec.impossible else None, known)


def _impossible_cells(spec: Spec, classes: Sequence[Ints]) -> ImpossibleCells:
    boxes = [
        {i: np.array(sorted(set(selected_codes(asked)))) for i, asked in combination.where}
        for combination in spec.impossible
    ]
    named = tuple(sorted({i for box in boxes for i in box}))
    atoms = {i: _atoms([box[i] for box in boxes if i in box], len(classes[i])) for i in named}
    sizes = [int(atoms[i].max()) + 1 for i in named]
    if math.prod(sizes) > MAX_FACT_ATOMS:
        raise SpecError(
            f"{spec.impossible[0].place}: the impossible combinations cut the domain into "
            f"{math.prod(sizes):,} pieces, and the limit is {MAX_FACT_ATOMS:,}; name fewer, or "
            "with the same sets of values"
        )
    possible = np.ones(sizes, dtype=np.int64)
    for box in boxes:
        inside = [
            np.unique(atoms[i][box[i]]) if i in box else np.arange(n)
            for i, n in zip(named, sizes, strict=True)
        ]
        possible[np.ix_(*inside)] = 0
    touches = []
    for i, n in zip(named, sizes, strict=True):
        table = np.zeros((int(classes[i].max()) + 1, n), dtype=np.int64)
        table[classes[i], atoms[i]] = 1
        touches.append(table)
    return ImpossibleCells(named, tuple(touches), possible)


def _atoms(sets: Sequence[Ints], n: int) -> Ints:
    atoms = np.zeros(n, dtype=np.int64)
    for codes in sets:
        inside = np.zeros(n, dtype=np.int64)
        inside[codes] = 1
        atoms = numbered_by_first(2 * atoms + inside)
    return atoms


def _touching(factor: Factor, touches: Ints) -> Callable[[Numbers], Numbers]:
    """Return the product with whether each predicate holds codes of each atom: (m, atoms)."""
    if isinstance(factor, Spread):
        codes = np.zeros((int(factor.classes.max()) + 1, touches.shape[1]), dtype=np.int64)
        np.maximum.at(codes, factor.classes, touches)
        return _touching(factor.inner, codes)
    if isinstance(factor, Valued):  # what adds 0 does not matter
        return _touching(factor.inner, touches * (factor.values != 0)[:, None])
    table: Ints = (factor.matmat(touches) > 0).astype(np.int64)
    return lambda tensor: table @ tensor


def _any_atom(tensor: Numbers) -> Numbers:
    return np.asarray(tensor.sum(axis=0, keepdims=True))
