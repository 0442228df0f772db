"""OPT_S: the fixed point over orbits of codes that are interchangeable, attribute by attribute.

Optima are unmoved by swaps of such codes. V and X then fall apart into components: each attribute
is at the sums of its orbits, or at zero-sum vectors within one orbit of n codes, of which there are
n - 1. On a component V is a matrix over the combinations of orbits of the attributes at their sums,
as often as there are zero-sum vectors. v has one entry for every combination of orbits ([MATH] 22).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_ORBIT_COMPONENTS
from dpquery.operators.blocks import outer_product
from dpquery.operators.cells import BETWEEN, Component
from dpquery.operators.gram import Gram
from dpquery.strategy.algebra.orbits import Orbits
from dpquery.strategy.optimize.fixed_point import (
    CELLS_GAP,
    CELLS_ROUNDS,
    FILLED_DIAGONAL,
    Climb,
    GramBlock,
    of_blocks,
    total_share,
)

MOST_COMBINATIONS = 1024  # of orbits: a round decomposes a matrix of so many


@dataclass(frozen=True, eq=False)
class OrbitsOptimum:
    """A strategy for interchangeable codes."""

    # by component rows (m, m) over sums of orbits, to be measured for every combination of codes
    # within orbits, each against the mean of its orbit
    cores: dict[Component, Floats]
    loss: float  # of the strategy, or slightly more, before the total is beside it
    bound: float  # the largest dual value seen; no strategy has a smaller loss


def orbits_optimum(
    gram: Gram, orbits: Sequence[Orbits], *, enough: float = 0.0
) -> OrbitsOptimum | float:
    """Return the best strategy; only a lower bound where that is enough.

    Raises:
        UnsupportedWorkloadError: combinations of orbits, or components, are too many.
    """
    counts = [len(axis.sizes) for axis in orbits]
    combinations = math.prod(counts)
    if combinations > MOST_COMBINATIONS:
        raise UnsupportedWorkloadError(
            f"{combinations:,} combinations of interchangeable codes; "
            f"the limit is {MOST_COMBINATIONS:,}"
        )
    sizes = outer_product([axis.sizes.astype(np.float64) for axis in orbits]).ravel()
    kept: list[tuple[Component, GramBlock]] = []
    diagonal = np.zeros(combinations)
    for b in components(gram, orbits):
        numbers = np.arange(math.prod(counts)).reshape(counts)
        part = tuple(slice(None) if orbit == BETWEEN else orbit for orbit in b)
        cells = np.asarray(numbers[part].ravel())
        V = component_gram(gram, orbits, b) / np.sqrt(np.outer(sizes[cells], sizes[cells]))
        block = GramBlock.of(cells, V, _multiplicity(orbits, b))
        if block is not None:
            diagonal[cells] += block.multiplicity * np.diagonal(V)
            kept.append((b, block))
    at = of_blocks([block for _, block in kept])
    found = Climb(at, "OPT_S", gap=CELLS_GAP, rounds=CELLS_ROUNDS, enough=enough)
    found.climb(np.sqrt(diagonal * sizes))
    if found.is_hopeless:
        return found.bound
    filled = {}
    for (b, block), half in zip(kept, found.primal, strict=True):
        X = half.T @ half / found.longest
        X *= np.sqrt(np.outer(sizes[block.cells], sizes[block.cells]))
        X[np.diag_indices(len(X))] += FILLED_DIAGONAL
        filled[b] = X
    sums, total = (BETWEEN,) * len(counts), np.sqrt(sizes)
    share = total_share(filled[sums], total, diagonal)
    cores = {}
    for b, X in filled.items():
        beside = share * np.outer(total, total) if b == sums else 0.0
        shared = (1 - share) * X + beside
        rows = np.linalg.cholesky(shared / (1 + FILLED_DIAGONAL)).T
        cores[b] = np.asarray(rows / _lengths(orbits, b))
    return OrbitsOptimum(cores, found.best.loss * (1 + FILLED_DIAGONAL), found.bound)


def components(gram: Gram, orbits: Sequence[Orbits]) -> list[Component]:
    """Return the components on which some term of a Gram is not zero.

    Raises:
        UnsupportedWorkloadError: they are too many.
    """
    known: set[Component] = set()
    for index in gram.index:
        choices = [
            [BETWEEN, *np.flatnonzero(axis.inside[u]).tolist()]
            for axis, u in zip(orbits, index, strict=True)
        ]
        if math.prod(map(len, choices)) > MAX_ORBIT_COMPONENTS:
            raise UnsupportedWorkloadError(
                f"more than {MAX_ORBIT_COMPONENTS:,} components of interchangeable codes"
            )
        known.update(product(*choices))
    if len(known) > MAX_ORBIT_COMPONENTS:
        raise UnsupportedWorkloadError(f"{len(known):,} components of interchangeable codes")
    return sorted(known)


def component_gram(gram: Gram, orbits: Sequence[Orbits], b: Component) -> Floats:
    """Return V on a component, on normalised indicators of orbits: (m, m)."""
    size = math.prod(
        len(axis.sizes) for axis, orbit in zip(orbits, b, strict=True) if orbit == BETWEEN
    )
    total = np.zeros((size, size))
    for weight, index in zip(gram.weights, gram.index, strict=True):
        scale, term = float(weight), np.ones((1, 1))
        for axis, u, orbit in zip(orbits, index, b, strict=True):
            if orbit == BETWEEN:
                term = np.kron(term, axis.levels[u])
            else:
                scale *= float(axis.inside[u, orbit])
        if scale:
            total += scale * term
    return (total + total.T) / 2


def _multiplicity(orbits: Sequence[Orbits], b: Component) -> float:
    pairs = zip(orbits, b, strict=True)
    return math.prod(float(axis.sizes[orbit]) - 1 for axis, orbit in pairs if orbit != BETWEEN)


def _lengths(orbits: Sequence[Orbits], b: Component) -> Floats:
    """Return what a core's columns are divided by where sums and n I - 11' are measured: (m,)."""
    sums = [
        np.sqrt(axis.sizes) if orbit == BETWEEN else axis.sizes[orbit : orbit + 1].astype(float)
        for axis, orbit in zip(orbits, b, strict=True)
    ]
    return outer_product(sums).ravel()
