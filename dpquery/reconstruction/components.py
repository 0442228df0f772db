"""Tables as components, stacked by size, each shrunk to what smaller ones say.

A component of many cells and few records is mostly noise. Level by level, the table over a set is
guessed from the fitted tables over its subsets (its centre: independence for pairs, the table of
largest entropy with those margins beyond), and what the measurements say beyond that is
believed as far as it stands out of its noise: with a prior variance kappa v of a cell, v the
centre, kappa by the moments of the component itself, the posterior mean is
    centre + kappa v / (kappa v + s^2) e        e the component measured less the centre's
([MATH] 16; [EM73] takes kappa from the data). All of it is a function of noisy values.

A table t over a set S is the sum of one component for each subset b of S, spread evenly over the
other attributes ([MATH] 16):
    t = sum_{b below S} r_b (x) 1/n,        n the cells of S beyond b,
where every axis of r_b sums to zero. Components of different subsets are orthogonal, so that each
can be worked on alone. With thousands of small tables the loops are over sizes, not over tables.

A column that comes from all tables together (agreeing_tables) works on the cells of
each: the strategy must hold them, and they must be few enough.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from types import MappingProxyType

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.limits import MAX_FITTED_CELLS, MAX_FITTED_TABLE_CELLS
from dpquery.operators.blocks import Block, marginal
from dpquery.operators.factors import Valued
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.nearest import NoiseShape, onto_simplex
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.strategy import Strategy

Sizes = tuple[int, ...]
KeptAxes = tuple[int, ...]
Stacks = dict[Sizes, Floats]
"""(count, *sizes) for each group of sets: see StackedSets."""
TABLE_CHUNK = 1 << 17  # numbers that are worked on at once: they fit the processor's cache


class StackedSets:
    """Attribute sets and all their subsets, grouped by the sizes of their attributes.

    Attributes:
        shape: sizes of all attributes.
        groups: the sets of each sizes, smaller sets first.
        places: of each set in its group.
    """

    def __init__(self, shape: Sizes, sets: Iterable[Subset]) -> None:
        closed = {subset for attributes in sets for subset in subsets_of(attributes)}
        self.shape = shape
        self.groups: dict[Sizes, list[Subset]] = {}
        for subset in sorted(closed, key=lambda each: (len(each), each)):
            self.groups.setdefault(self.sizes_of(subset), []).append(subset)
        self.places = {
            subset: place for group in self.groups.values() for place, subset in enumerate(group)
        }
        self._below: dict[tuple[Sizes, KeptAxes], Ints] = {}

    def sizes_of(self, subset: Subset) -> Sizes:
        """Return the sizes of the attributes of a set."""
        return tuple(self.shape[i] for i in subset)

    def below(self, sizes: Sizes, axes: KeptAxes) -> Ints:
        """Return for each set of a group the place of its subset at some axes. (count,)."""
        if (sizes, axes) not in self._below:
            subsets = (tuple(subset[k] for k in axes) for subset in self.groups[sizes])
            places = (self.places[subset] for subset in subsets)
            self._below[sizes, axes] = np.fromiter(places, np.int64, len(self.groups[sizes]))
        return self._below[sizes, axes]


def table_chunks(count: int, sizes: Sizes) -> Iterator[slice]:
    """Yield so many places in parts whose tables have some TABLE_CHUNK numbers together."""
    step = max(1, TABLE_CHUNK // max(1, math.prod(sizes)))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@cache
def proper_axes(order: int) -> tuple[KeptAxes, ...]:
    """Return the places of all proper subsets of a set of `order` members, smaller ones first."""
    return tuple(axes for size in range(order) for axes in combinations(range(order), size))


def largest_axes(order: int) -> tuple[KeptAxes, ...]:
    """Return the places of the subsets of one member less."""
    return tuple(combinations(range(order), order - 1)) if order else ()


def residual(tables: Floats) -> Floats:
    """Return the components over all axes of a stack of tables. (count, *sizes)."""
    for axis in range(1, tables.ndim):
        tables = tables - tables.mean(axis=axis, keepdims=True)
    return tables


def margin(tables: Floats, axes: KeptAxes) -> Floats:
    """Return the sums over all axes of a stack of tables but some. (count, *sizes of axes)."""
    others = tuple(k + 1 for k in range(tables.ndim - 1) if k not in axes)
    return np.asarray(tables.sum(axis=others)) if others else tables


def with_axes(values: Floats, axes: KeptAxes, order: int) -> Floats:
    """Return a stack over some axes with an axis of length one for each of the others."""
    sizes = dict(zip(axes, values.shape[1:], strict=True))
    return values.reshape(len(values), *(sizes.get(k, 1) for k in range(order)))


def per_table(figures: Floats, order: int) -> Floats:
    """Return one figure a table so that it multiplies a stack of tables of that order."""
    return figures.reshape(-1, *[1] * order)


def add_below(tables: Floats, components: Mapping[KeptAxes, Floats]) -> None:
    """Add to a stack of tables what the components of its proper subsets of axes say of them.

    Args:
        tables: (count, *sizes), changed in place.
        components: of every proper subset of the axes. (count, *sizes of the axes).
    """
    sizes = tables.shape[1:]
    order, cells = len(sizes), math.prod(sizes)
    for wide in largest_axes(order):
        # Each component is added once, to the first of the margins that contain it.
        wide_sizes = tuple(sizes[k] for k in wide)
        share, wide_cells = np.zeros((len(tables), *wide_sizes)), math.prod(wide_sizes)
        for axes, part in components.items():
            if _first_margin(axes, order) == wide:
                inner = tuple(wide.index(k) for k in axes)
                part_cells = math.prod(part.shape[1:])
                share += with_axes(part, inner, len(wide)) * (part_cells / wide_cells)
        tables += with_axes(share, wide, order) * (wide_cells / cells)


@cache
def _first_margin(axes: KeptAxes, order: int) -> KeptAxes:
    return next(wide for wide in largest_axes(order) if set(axes) <= set(wide))


RAKINGS = 3  # rounds of proportional fitting: the margins come from one another, and agree nearly
LEAST_BELIEF = 0.01  # of a component's precision, none is more than a hundred times its noise's
FEWEST_RECORDS = 1.0  # of a centre
FIXED = 1e6  # times its precision: the number of records stays as it was measured


@dataclass(frozen=True, eq=False)
class Components:
    """The components of tables over many sets, each with how far it is to be trusted."""

    sets: StackedSets  # of the tables, and all their subsets
    values: Stacks  # the components, in sums over the attributes beyond each set
    precision: dict[Sizes, Floats]  # (count,) one over the variance of a number of each component
    # of the noise along the attributes where it is not white
    shapes: Mapping[int, NoiseShape] = field(default_factory=dict)


def unshrunk_components(
    sets: StackedSets,
    table_of: Callable[[Subset], Floats],
    noise_of: Callable[[Subset], float],
    shapes: Mapping[int, NoiseShape] = MappingProxyType({}),
) -> Components:
    """Return the components as they were measured; those of one attribute leave no count below 0.

    These and the number of records are not to move: counts of many cells come before the cells.

    table_of gives the unbiased table over a set, in counts, and noise_of the sum of the variances
    of its cells; shapes are of attributes along which noise is not white.
    """
    noise = component_noise(sets, noise_of)
    values = {sizes: np.empty((len(group), *sizes)) for sizes, group in sets.groups.items()}
    for sizes, group in sets.groups.items():
        for places in table_chunks(len(group), sizes):
            tables = _stacked(sets, sizes, places, table_of)
            if not sizes:
                tables = np.maximum(tables, 0.0)
            if len(sizes) == 1:
                # the nearest tables of one attribute without negative counts. (count, n)
                total = values[()]
                nearest = onto_simplex(tables, np.ones_like(tables), np.repeat(total, len(tables)))
                for row, (attribute,) in enumerate(sets.groups[sizes][places]):
                    if attribute in shapes:
                        nearest[row] = shapes[attribute].nearest(tables[row], float(total[0]))
                tables = nearest
            values[sizes][places] = residual(tables)
    fixed = {sizes: FIXED if len(sizes) < 2 else 1.0 for sizes in noise}
    precision = {sizes: fixed[sizes] / each for sizes, each in noise.items()}
    return Components(sets, values, precision, shapes)


def shrunk_components(
    sets: StackedSets, table_of: Callable[[Subset], Floats], noise: dict[Sizes, Floats]
) -> Components:
    """Return the shrunk components of the tables over all sets.

    Of the unbiased table over a set, in counts, only the component of the set itself is read. Noise
    is (count,) for each sizes, the variance a degree of freedom of every component.
    """
    values: Stacks = {}
    fitted: Stacks = {}
    precision: dict[Sizes, Floats] = {}
    for sizes, group in sets.groups.items():
        values[sizes] = np.empty((len(group), *sizes))
        fitted[sizes] = np.empty((len(group), *sizes))
        precision[sizes] = np.empty(len(group))
        for places in table_chunks(len(sets.groups[sizes]), sizes):
            tables = _stacked(sets, sizes, places, table_of)
            margins = [
                (axes, fitted[tuple(sizes[k] for k in axes)][sets.below(sizes, axes)[places]])
                for axes in largest_axes(len(sizes))
            ]
            if not sizes:
                fitted[sizes][places] = np.maximum(tables, FEWEST_RECORDS)
                values[sizes][places] = fitted[sizes][places]
                precision[sizes][places] = FIXED / noise[sizes][places]
                continue
            total = fitted[()]
            centre = _centre(margins, sizes, total)
            excess = residual(tables - centre)
            belief = _belief(excess, centre, noise[sizes][places])
            guess = centre + belief * excess
            values[sizes][places] = residual(guess)
            trusted = _norms(residual(belief * excess)) / np.maximum(_norms(excess), 1e-300)
            precision[sizes][places] = 1 / (
                noise[sizes][places] * np.maximum(np.sqrt(trusted), LEAST_BELIEF)
            )
            positive = np.maximum(guess, 0.0)
            fitted[sizes][places] = (
                _raked(positive, margins)
                if len(sizes) > 1
                else onto_simplex(guess, np.ones_like(guess), np.repeat(total, len(guess)))
            )
    return Components(sets, values, precision)


def component_noise(sets: StackedSets, noise_of: Callable[[Subset], float]) -> dict[Sizes, Floats]:
    """Return the variance a degree of freedom of every component. (count,) for each sizes.

    The squared noise of a table is that of its components over the cells that each is spread over:
    their sums follow from the tables' by subtraction, smaller sets first.
    """
    sums: dict[Sizes, Floats] = {}
    for sizes, group in sets.groups.items():
        beyond = np.array([noise_of(subset) for subset in group])
        for axes in proper_axes(len(sizes)):
            part_sizes = tuple(sizes[k] for k in axes)
            part = sums[part_sizes][sets.below(sizes, axes)]
            beyond -= part * (math.prod(part_sizes) / math.prod(sizes))
        sums[sizes] = beyond
    tiny = np.finfo(float).tiny
    freedom = {sizes: max(math.prod(size - 1 for size in sizes), 1) for sizes in sums}
    return {sizes: np.maximum(total / freedom[sizes], tiny) for sizes, total in sums.items()}


def _stacked(
    sets: StackedSets, sizes: Sizes, places: slice, table_of: Callable[[Subset], Floats]
) -> Floats:
    return np.stack([table_of(subset).reshape(sizes) for subset in sets.groups[sizes][places]])


def _centre(margins: list[tuple[tuple[int, ...], Floats]], sizes: Sizes, total: Floats) -> Floats:
    """Return the tables of largest entropy with the margins. (count, *sizes)."""
    order = len(sizes)
    if order == 1:
        return np.broadcast_to(
            with_axes(margins[0][1], (), 1) / sizes[0], (len(margins[0][1]), *sizes)
        )
    first_axes, first = margins[0]
    last = margin(margins[-1][1], (len(sizes) - 2,))  # of the last attribute alone
    start = with_axes(first, first_axes, order) * with_axes(last, (order - 1,), order) / total[0]
    return start if order == 2 else _raked(start, margins)


def _raked(tables: Floats, margins: list[tuple[tuple[int, ...], Floats]]) -> Floats:
    """Scale tables to their margins in turn; a slice without records stays so."""
    order, least = tables.ndim - 1, np.finfo(float).eps ** 8  # by less nothing can be divided
    for _ in range(RAKINGS if order > 1 else 1):
        for axes, wanted in margins:
            sums = margin(tables, axes)
            ratio = np.divide(wanted, sums, out=np.zeros_like(sums), where=sums > least)
            tables = tables * with_axes(ratio, axes, order)
    return tables


def _belief(excess: Floats, centre: Floats, noise: Floats) -> Floats:
    sizes = excess.shape[1:]
    order, cells = len(sizes), math.prod(sizes)
    freedom = math.prod(size - 1 for size in sizes)
    if not freedom:
        return np.zeros_like(excess)
    beyond = np.maximum(_norms(excess) - noise * freedom, 0.0)
    records = centre.reshape(len(centre), -1).sum(axis=1) * (freedom / cells)
    prior = per_table(
        np.divide(beyond, records, out=np.zeros_like(beyond), where=records > 0), order
    )
    prior = prior * centre
    return np.asarray(prior / (prior + per_table(noise, order)))


def _norms(tables: Floats) -> Floats:
    flat = tables.reshape(len(tables), -1)
    return np.asarray(np.einsum("ij,ij->i", flat, flat))


MOST_ATTRIBUTES = 6  # of a table: it has 2^6 components


@dataclass(frozen=True, eq=False)
class FittableTables:
    """Which tables can be fitted, of those that blocks ask for."""

    # of each block, the attributes of its table; None where it cannot be fitted
    subsets: tuple[Subset | None, ...]
    reasons: tuple[str, ...]  # of each block, why it cannot; empty where it can

    @property
    def sets(self) -> tuple[Subset, ...]:
        """The attributes of the tables that can be fitted."""
        return tuple(dict.fromkeys(subset for subset in self.subsets if subset is not None))


def fittable_tables(
    strategy: Strategy, blocks: Sequence[Block], refusal: Callable[[Block], str]
) -> FittableTables:
    """Return which tables a strategy holds whole, and small enough to be fitted."""
    reasons: list[str] = []
    cells: dict[Subset, int] = {}
    for block in blocks:
        subset = varying(block)
        reason = refusal(block) or _too_much(strategy, block)
        if not reason and subset not in cells:
            cells[subset] = math.prod(strategy.shape[i] for i in subset)
            if sum(cells.values()) > MAX_FITTED_CELLS:
                del cells[subset]
                reason = f"all tables have more than {MAX_FITTED_CELLS:,} cells together"
        reasons.append(reason)
    pairs = zip(blocks, reasons, strict=True)
    subsets = tuple(None if reason else varying(block) for block, reason in pairs)
    return FittableTables(subsets, tuple(reasons))


def _too_much(strategy: Strategy, block: Block) -> str:
    subset = varying(block)
    if any(isinstance(factor, Valued) for factor in block.factors):
        return "its queries are sums, not counts"
    if len(subset) > MOST_ATTRIBUTES:
        return f"a table has more than {MOST_ATTRIBUTES} attributes"
    if math.prod(strategy.shape[i] for i in subset) > MAX_FITTED_TABLE_CELLS:
        return f"a table has more than {MAX_FITTED_TABLE_CELLS:,} cells"
    if not strategy.supports(marginal(strategy.shape, subset)):
        return "the plan measures its queries, and not the cells that they count"
    return ""


def noise_of_tables(measured: Measured) -> Callable[[Subset], float]:
    """Return the function that gives the sum of the variances of the cells of a table."""

    @cache
    def squared_noise(subset: Subset) -> float:
        block = marginal(measured.strategy.shape, subset)
        variances = measured.strategy.variances(block, position=None)
        return measured.noise_std**2 * total_of(variances, block)

    return squared_noise


def varying(block: Block) -> Subset:
    """Return the attributes of a block that have more than one class."""
    pairs = zip(block.attributes, block.table_shape, strict=True)
    return tuple(i for i, size in pairs if size > 1)
