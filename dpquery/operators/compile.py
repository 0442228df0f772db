"""From a spec's tables to a workload with its weights, and from declared facts to equalities.

What no record can be is a union of boxes, products of sets of codes. Codes of an attribute that lie
in the same boxes are one atom: there are few, so that a tensor over atoms says what is possible,
however large the domain. A query is known to be 0 where all that it counts is impossible: where it
touches no possible atom.

Codes that no query distinguishes are merged into one class before anything else happens: a workload
that asks for five-year bands is planned, measured and reconstructed on bands. This loses nothing
(every column of W repeats within a class) and lowers the error of every strategy.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, chain, combinations
from operator import xor

import numpy as np

from dpquery.arrays import Bools, Floats, Ints, Numbers, numbered_by_first
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_FACT_ATOMS, MAX_RANGE_MEMBERS
from dpquery.operators.blocks import Block, Product, Workload, kron_apply, marginal, product
from dpquery.operators.cells import Spread
from dpquery.operators.factors import Factor, Groups, Identity, IdentityRows, Stacked, Valued, total
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix, WidthRanges
from dpquery.spec.predicates import (
    AllRangesSet,
    IdentitySet,
    PredicateSet,
    PrefixSet,
    RangeSet,
    StackedSet,
    TotalSet,
    WidthSet,
)
from dpquery.spec.spec import Spec, SummedValues, Table

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
        {i: np.flatnonzero(asked.asked) for i, asked in combination.where}
        for combination in spec.impossible
    ]
    named = tuple(sorted({i for box in boxes for i in box}))
    atoms = {i: np.zeros(len(classes[i]), dtype=np.int64) for i in named}
    for i, asked in (pair for box in boxes for pair in box.items()):
        met = np.zeros_like(atoms[i])
        met[asked] = 1
        atoms[i] = numbered_by_first(2 * atoms[i] + met)
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


_RANGES_AT_ONCE = 4096  # as bits of one number: more would take memory without end


@dataclass(frozen=True, eq=False)
class CompiledSpec:
    """A workload over classes of codes, and the way back to the spec."""

    workload: Workload  # one block a table, in spec order; its domain is counted in classes
    # for each attribute the class of every code, (n_i,), numbered by first appearance
    classes: tuple[Ints, ...]
    items: tuple[range, ...]  # for each item of the spec the positions of its blocks
    facts: PublicFacts | None = None  # what the spec says of its answers, if it says anything


def compile_spec(spec: Spec) -> CompiledSpec:
    """Build the operators of a spec's workload."""
    tables = [table for item in spec.items for table in item.tables]
    everything = [np.zeros(n, dtype=np.int64) for n in spec.domain.shape]
    compiled = compile_questions(spec, finer_classes(everything, tables))
    return replace(compiled, facts=public_facts(spec, compiled.classes, compiled.items))


def compile_questions(spec: Spec, classes: tuple[Ints, ...]) -> CompiledSpec:
    """Build the operators of a spec's workload over classes that none of its queries splits."""
    shape = tuple(int(codes.max()) + 1 for codes in classes)
    cache: dict[tuple[int, PredicateSet], Factor] = {}

    def factor_of(i: int, predicates: PredicateSet) -> Factor:
        if (i, predicates) not in cache:
            cache[i, predicates] = factor(predicates, classes[i])
        return cache[i, predicates]

    blocks: list[Block] = []
    weights: list[float] = []
    units: list[int] = []
    items: list[range] = []
    for item in spec.items:
        items.append(range(len(blocks), len(blocks) + len(item.tables)))
        for table in item.tables:
            factors = {i: factor_of(i, predicates) for i, predicates in (*table.axes, *table.where)}
            if table.summed is not None:
                factors |= _valued(table.summed, factors, classes)
            blocks.append(_block(table, shape, factors))
            weights.append(item.weight / table.unit**2)
            units.append(table.unit)
    workload = Workload(shape, tuple(blocks), tuple(weights), tuple(units))
    return CompiledSpec(workload, classes, tuple(items))


def _valued(
    summed: SummedValues, factors: dict[int, Factor], classes: Sequence[Ints]
) -> dict[int, Factor]:
    """Return the factor of the attribute that is summed: its predicates, times a value a class."""
    i = summed.attribute
    _, first = np.unique(classes[i], return_index=True)
    values = np.array(summed.values, dtype=np.int64)[first]
    return {i: Valued(factors[i] if i in factors else total(len(values)), values)}


def _block(table: Table, shape: tuple[int, ...], factors: dict[int, Factor]) -> Block:
    """Build one table's block; a product does not look at attributes whose total it asks for."""
    axes = {i for i, _ in table.axes}
    all_of = table.threshold == len(axes)
    plain = product(
        shape,
        {
            i: predicates
            for i, predicates in factors.items()
            if _asks(predicates) or (i in axes and not all_of)
        },
    )
    if all_of:
        return plain
    counted = tuple(i in axes for i in plain.attributes)
    return Block(shape, plain.attributes, plain.factors, counted, table.threshold)


def _asks(factor: Factor) -> bool:
    """Return whether a factor is more than one predicate that always holds."""
    m, n = factor.shape
    return isinstance(factor, Valued) or m != 1 or int(factor.row_sums[0]) < n


def factor(predicates: PredicateSet, classes: Ints) -> Factor:
    """Return the query matrix of one predicate set over the classes of its attribute's codes."""
    n = int(classes.max()) + 1
    match predicates:
        case IdentitySet():
            shown = classes[np.asarray(predicates.codes, dtype=np.int64)]
            every = np.array_equal(shown, np.arange(n))
            return Identity(n) if every else IdentityRows(n, shown)
        case TotalSet():
            return total(n)
        case PrefixSet(length=length):
            return Prefix(n, length)  # its classes are the codes, as are those of all ranges
        case AllRangesSet(length=length):
            return AllRanges(n, length)
        case WidthSet(length=length, width=width) if n == predicates.size == length:
            return WidthRanges(n, width)
        case RangeSet():
            return _ranges_over_classes(predicates, classes)
        case StackedSet(parts=parts):
            return Stacked(tuple(factor(part, classes) for part in parts))
        case _:
            return Groups.of(tuple(_members(codes, classes) for codes in predicates.members()), n)


def _ranges_over_classes(predicates: RangeSet, classes: Ints) -> Factor:
    n, bounds = int(classes.max()) + 1, predicates.pairs
    if np.all(np.diff(classes) >= 0):
        return ListedRanges(n, [(int(classes[i]), int(classes[j])) for i, j in bounds])
    if sum(j - i + 1 for i, j in bounds) > MAX_RANGE_MEMBERS:
        raise UnsupportedWorkloadError(
            f"the ranges of an attribute hold over {MAX_RANGE_MEMBERS:,} values in all, and groups "
            "of it are asked for too; ask for its single values (identity) as well, or for fewer"
        )
    return Groups.of(tuple(tuple(np.unique(classes[i : j + 1]).tolist()) for i, j in bounds), n)


def _members(codes: Iterable[int], classes: Ints) -> tuple[int, ...]:
    return tuple(sorted({int(classes[code]) for code in codes}))


def finer_classes(classes: Sequence[Ints], tables: Iterable[Table]) -> tuple[Ints, ...]:
    """Split classes of codes until no query of some tables distinguishes the codes of one."""
    used: list[dict[PredicateSet | SummedValues, None]] = [{} for _ in classes]
    for table in tables:
        for i, predicates in table.told_apart:
            used[i][predicates] = None
    return tuple(reduce(_refine, sets, start) for start, sets in zip(classes, used, strict=True))


def merged_codes(table: Table, classes: Sequence[Ints]) -> Iterator[tuple[int, int, int]]:
    """Yield (attribute, code, code) for each set of predicates that splits a class: two codes."""
    for i, predicates in table.told_apart:
        finer = _refine(classes[i], predicates)
        if int(finer.max()) > int(classes[i].max()):
            _, first = np.unique(classes[i], return_index=True)
            first = first[classes[i]]  # of each code, the first of its class
            code = int(np.argmax(finer != finer[first]))
            yield i, int(first[code]), code


def _refine(classes: Ints, predicates: PredicateSet | SummedValues) -> Ints:
    """Number the classes of codes after a predicate set, or values, have split them."""
    n = len(classes)
    match predicates:
        case IdentitySet():
            marks = np.full(n, n, dtype=np.int64)  # codes that are not shown have one mark
            codes = np.asarray(predicates.codes, dtype=np.int64)
            marks[codes] = codes
            return np.arange(n) if len(codes) >= n - 1 else _split(classes, marks)
        case TotalSet():
            return classes
        case PrefixSet(length=length) | AllRangesSet(length=length):
            return _split(classes, np.minimum(np.arange(n), length))
        case WidthSet():
            cuts = np.zeros(n + 1, dtype=np.int64)
            for first, last in predicates.pairs:
                cuts[first] = cuts[last + 1] = 1
            return _split(classes, np.cumsum(cuts[:n]))
        case RangeSet(pairs=bounds):
            for start in range(0, len(bounds), _RANGES_AT_ONCE):
                batch = bounds[start : start + _RANGES_AT_ONCE]
                classes = _split(classes, _number_by_ranges(n, batch))
            return classes
        case StackedSet(parts=parts):
            for part in parts:
                classes = _refine(classes, part)
            return classes
        case SummedValues(values=values):
            return _split(classes, numbered_by_first(np.array(values, dtype=np.int64)))
        case _:
            return _split(classes, _number_by_groups(n, [*predicates.members()]))


def _number_by_groups(n: int, groups: Sequence[Sequence[int]]) -> Ints:
    sizes = [len(codes) for codes in groups]
    codes = np.fromiter(chain.from_iterable(groups), np.int64, sum(sizes))
    order = np.argsort(codes, kind="stable")
    holding = np.repeat(np.arange(len(groups)), sizes)[order]  # by code, and then by group
    members, first = np.unique(codes[order], return_index=True)
    numbers: dict[bytes, int] = {b"": 0}
    marks = np.zeros(n, dtype=np.int64)
    marks[members] = [
        numbers.setdefault(groups_of_code.tobytes(), len(numbers))
        for groups_of_code in np.split(holding, first[1:])
    ]
    return marks


def _number_by_ranges(n: int, bounds: Iterable[tuple[int, int]]) -> Ints:
    """Number the codes by which ranges hold them; one bit of a Python int stands for a range."""
    flips = {0: 0}
    for k, (first, last) in enumerate(bounds):
        flips[first] = flips.get(first, 0) ^ 1 << k
        flips[last + 1] = flips.get(last + 1, 0) ^ 1 << k
    starts = sorted(flips)
    numbers: dict[int, int] = {}
    patterns = accumulate((flips[start] for start in starts), xor)
    marks = [numbers.setdefault(pattern, len(numbers)) for pattern in patterns]
    return np.repeat(marks, np.diff([*starts, max(n, starts[-1])]))[:n]


def _split(classes: Ints, marks: Ints) -> Ints:
    """Split classes by marks and number them by first appearance."""
    return numbered_by_first(classes * (int(marks.max()) + 1) + marks)
