"""The best guess at tables from unbiased ones: each component shrunk towards what smaller ones say.

A component of many cells and few records is mostly noise. Level by level, the table over a set is
guessed from the fitted tables over its subsets (its centre: independence for pairs, the table of
largest entropy with those margins beyond), and what the measurements say beyond that is
believed as far as it stands out of its noise: with a prior variance kappa v of a cell, v the
centre, kappa by the moments of the component itself, the posterior mean is
    centre + kappa v / (kappa v + s^2) e        e the component measured less the centre's
([MATH] 16; [EM73] takes kappa from the data). All of it is a function of noisy values.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from dpquery.arrays import Floats
from dpquery.reconstruction.columns.noise_shapes import NoiseShape
from dpquery.reconstruction.columns.simplex import onto_simplex
from dpquery.reconstruction.columns.stacked_tables import (
    Sizes,
    StackedSets,
    Stacks,
    largest_axes,
    margin,
    per_table,
    proper_axes,
    residual,
    table_chunks,
    with_axes,
)
from dpquery.strategy.algebra.subsets import Subset

RAKINGS = 3  # rounds of proportional fitting: the margins come from one another, and agree nearly
LEAST_BELIEF = 0.01  # of a component's precision, none is more than a hundred times its noise's
FEWEST_RECORDS = 1.0  # of a centre
FIXED = 1e6  # times its precision: the number of records stays as it was measured


@dataclass(frozen=True, eq=False)
class Components:
    """The components of tables over many sets, each with how far it is to be trusted.

    Attributes:
        sets: of the tables, and all their subsets.
        values: the components, in sums over the attributes beyond each set.
        precision: (count,) one over the variance of a number of each component.
        shapes: of the noise along the attributes where it is not white.
    """

    sets: StackedSets
    values: Stacks
    precision: dict[Sizes, Floats]
    shapes: Mapping[int, NoiseShape] = field(default_factory=dict)


def unshrunk_components(
    sets: StackedSets,
    table_of: Callable[[Subset], Floats],
    noise_of: Callable[[Subset], float],
    shapes: Mapping[int, NoiseShape] = MappingProxyType({}),
) -> Components:
    """Return the components as they were measured; those of one attribute leave no count below 0.

    These and the number of records are not to move: counts of many cells come before the cells.

    Args:
        sets: which tables.
        table_of: the unbiased table over a set, in counts.
        noise_of: the sum of the variances of its cells.
        shapes: of the noise along the attributes where it is not white.
    """
    noise = component_noise(sets, noise_of)
    values = {sizes: np.empty((len(group), *sizes)) for sizes, group in sets.groups.items()}
    for sizes, group in sets.groups.items():
        for places in table_chunks(len(group), sizes):
            tables = _stacked(sets, sizes, places, table_of)
            if not sizes:
                tables = np.maximum(tables, 0.0)
            if len(sizes) == 1:
                tables = _nearest_single(sets, sizes, places, tables, values[()], shapes)
            values[sizes][places] = residual(tables)
    fixed = {sizes: FIXED if len(sizes) < 2 else 1.0 for sizes in noise}
    precision = {sizes: fixed[sizes] / each for sizes, each in noise.items()}
    return Components(sets, values, precision, shapes)


def _nearest_single(
    sets: StackedSets,
    sizes: Sizes,
    places: slice,
    tables: Floats,
    total: Floats,
    shapes: Mapping[int, NoiseShape],
) -> Floats:
    """Return the nearest tables of one attribute without negative counts. (count, n)."""
    nearest = onto_simplex(tables, np.ones_like(tables), np.repeat(total, len(tables)))
    for row, (attribute,) in enumerate(sets.groups[sizes][places]):
        if attribute in shapes:
            nearest[row] = shapes[attribute].nearest(tables[row], float(total[0]))
    return nearest


def shrunk_components(
    sets: StackedSets, table_of: Callable[[Subset], Floats], noise: dict[Sizes, Floats]
) -> Components:
    """Return the shrunk components of the tables over all sets.

    Args:
        sets: which tables.
        table_of: the unbiased table over a set, in counts; of it only the component of the set
            itself is read, so that the component alone will do.
        noise: (count,) for each sizes, the variance a degree of freedom of every component.
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
            margins = _margins(sets, fitted, sizes, places)
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


def _margins(
    sets: StackedSets, fitted: Stacks, sizes: Sizes, places: slice
) -> list[tuple[tuple[int, ...], Floats]]:
    """Return the fitted tables of one attribute less, by the axes that they keep."""
    return [
        (axes, fitted[tuple(sizes[k] for k in axes)][sets.below(sizes, axes)[places]])
        for axes in largest_axes(len(sizes))
    ]


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
    order = tables.ndim - 1
    for _ in range(RAKINGS if order > 1 else 1):
        for axes, wanted in margins:
            sums = margin(tables, axes)
            ratio = np.divide(wanted, sums, out=np.zeros_like(sums), where=sums > 0)
            tables = tables * with_axes(ratio, axes, order)
    return tables


def _belief(excess: Floats, centre: Floats, noise: Floats) -> Floats:
    """Return which share of the excess is kept in every cell. (count, *sizes)."""
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
    """Return the sum of squares of every table. (count,)."""
    flat = tables.reshape(len(tables), -1)
    return np.asarray(np.einsum("ij,ij->i", flat, flat))
