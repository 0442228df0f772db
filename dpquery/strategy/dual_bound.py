"""The dual bound for unions of products, with and without signs.

At any v > 0 on the cells, D = diag(v)^(1/2), no strategy's loss is below
    tr((D V D)^(1/2))^2 / sum(v)
([MATH] 1; v = 1 is the SVD bound [LM13]). Here v = kron_i v_i, and v_i is constant on the
interchangeable codes of attribute i. V then splits into sectors: each attribute is either at its
orbits or at zero-sum vectors of one kind, where totals vanish, so that few terms are left in most.

v starts from the duals of a product strategy and climbs by v_i <- m_i^2 / v_i, m_i the diagonal of
(D V D)^(1/2) summed over the other attributes: the optimum is where they are equal, and the square
goes twice as far as the fixed point v_i <- m_i. Every v on the way gives a bound; the best is kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.gram import Gram, is_mixture, is_of_values
from dpquery.strategy.algebra.orbits import (
    LARGEST_COMPARED,
    Orbits,
    WeightedOrbits,
    above_rounding,
    orbits_of,
)
from dpquery.strategy.root_trace import DECOMPOSITION, KroneckerSum, root_trace

Sector = tuple[tuple[int, int], ...]
"""(attribute, kind) for the attributes that are at zero-sum vectors of a kind."""

MAX_SECTORS = 1 << 16  # sectors of all terms together
BUDGET = 6e10  # floating point operations: some 4 CPU seconds
QUICK_BUDGET = BUDGET / 5
SECTOR_OVERHEAD = 1.5e6  # of a sector, in the same unit
DUAL_ROUNDS = 30
VALUE_ROUNDS = 4  # of values and totals alone: more gain some 0.1 % and take as long as all else
ENOUGH = 1e-5  # relative gain of a round below which the climb ends
DUAL_SAFETY = 1e-9  # relative; for the rounding of sums
DUAL_FLOOR = 1e-9  # least entry of v relative to its largest


@dataclass(frozen=True, eq=False)
class _Point:
    """The bound at one v, and the masses m_i per code of every attribute.

    None where there is no going on from here, since another point costs too much.
    """

    loss: float
    masses: list[Floats] | None
    cost: float


def dual_bound(gram: Gram) -> float | None:
    """Return a lower bound on the loss of every strategy; None where it takes too long."""
    orbits = _compared(gram)
    if orbits is None or _count_sectors(gram, orbits) > MAX_SECTORS:
        return None
    spent = sum(3 * len(orbit_set.levels) * _cost(len(orbit_set.sizes)) for orbit_set in orbits)
    vs, best = _uniform(orbits), None
    if spent < BUDGET / 2:
        # for each attribute the dual of its surrogate Gram, as OPT_x has it
        vs = _uniform(orbits)
        bounds = [_matrix_bounds(orbit_set, v) for orbit_set, v in zip(orbits, vs, strict=True)]
        for i, orbit_set in list(enumerate(orbits)) * 2:
            if len(orbit_set.sizes) == 1:
                continue
            factors = np.stack([b[gram.index[:, j]] for j, b in enumerate(bounds)], axis=1)
            factors[:, i] = 1.0
            weights = gram.weights * factors.prod(axis=1)
            surrogate = np.bincount(gram.index[:, i], weights, minlength=len(orbit_set.levels))
            rounds = int(0.05 * BUDGET / _cost(len(orbit_set.sizes)))
            level = np.tensordot(surrogate, orbit_set.levels, axes=1)
            for _ in range(min(max(rounds, 1), DUAL_ROUNDS // 2)):
                mass = _root_masses(orbit_set, vs[i], level, surrogate @ orbit_set.inside)
                vs[i] = _climbed(vs[i], mass / (orbit_set.sizes * mass.sum()))
                vs[i] /= float(orbit_set.sizes @ vs[i])
            bounds[i] = _matrix_bounds(orbit_set, vs[i])
    of_values = all(is_of_values(V) for matrices in gram.matrices for V in matrices)
    for _ in range(VALUE_ROUNDS if of_values else DUAL_ROUNDS):
        point = _evaluate(gram, orbits, vs, BUDGET - spent)
        if point is None:
            break
        spent += point.cost
        gain = math.inf if best is None else point.loss / best - 1
        best = point.loss if best is None else max(best, point.loss)
        if point.masses is None or gain < ENOUGH or spent + point.cost > BUDGET:
            break
        vs = [_climbed(v, m) for v, m in zip(vs, point.masses, strict=True)]
    return None if best is None else float(best) * (1 - DUAL_SAFETY)


def quick_bound(gram: Gram) -> float:
    """Return the SVD bound on the loss of every strategy, or 0 where it takes long."""
    orbits = _compared(gram)
    if orbits is None or _count_sectors(gram, orbits) * SECTOR_OVERHEAD > QUICK_BUDGET:
        return 0.0
    point = _evaluate(gram, orbits, _uniform(orbits), 0.0, budget=QUICK_BUDGET)
    return 0.0 if point is None else point.loss * (1 - DUAL_SAFETY)


def _compared(gram: Gram) -> list[Orbits] | None:
    """Return the orbits of every attribute; None where they are too many, or too many codes."""
    for n, matrices in zip(gram.shape_of_domain, gram.matrices, strict=True):
        if len(matrices) * n**2 > LARGEST_COMPARED and not all(map(is_mixture, matrices)):
            return None
    orbits = [orbits_of(matrices) for matrices in gram.matrices]
    if any(_cost(len(orbit_set.sizes)) > BUDGET / 8 for orbit_set in orbits):
        return None
    return orbits


def _cost(n: int) -> float:
    return DECOMPOSITION * float(n) ** 3


def _climbed(v: Floats, mass: Floats) -> Floats:
    climbed = mass * (mass / v)
    return np.asarray(np.maximum(climbed, DUAL_FLOOR * float(climbed.max())))


def _count_sectors(gram: Gram, orbits: Sequence[Orbits]) -> int:
    """Return an upper bound on the number of sectors: the sum of those of every term."""
    kinds = [1 + np.unique(orbit_set.inside.T, axis=0).shape[0] for orbit_set in orbits]
    rows = [[kinds[int(i)] for i in np.nonzero(index)[0]] for index in gram.index]
    return sum(math.prod(row) for row in rows)


def _evaluate(
    gram: Gram,
    orbits: Sequence[Orbits],
    vs: Sequence[Floats],
    left: float = math.inf,
    *,
    budget: float = BUDGET,
) -> _Point | None:
    """Return the bound at v = kron_i vs[i]; None where it takes too long.

    Its masses are for another point, and left out where `left` does not pay for two.
    """
    attributes = [WeightedOrbits(orbit_set, v) for orbit_set, v in zip(orbits, vs, strict=True)]
    masses = [np.zeros(len(attribute.sizes)) for attribute in attributes]
    total, cost, climbs = 0.0, 0.0, True
    for sector, terms in _sectors(gram, attributes).items():
        kinds = {i: attributes[i].kinds[k] for i, k in sector}
        count = math.prod(float(kind.roots.sum()) for kind in kinds.values())
        trace = root_trace(terms, attributes, budget - cost, mass_budget=left / 2 - cost)
        if trace is None:
            return None
        cost += trace.cost + SECTOR_OVERHEAD
        value = count * trace.value
        total += value
        if trace.masses is None:
            climbs = False
            continue
        for i, kind in kinds.items():
            masses[i] += value / float(kind.roots.sum()) * kind.roots
        for i, sector_masses in trace.masses.items():
            masses[i] += count * sector_masses
    if not climbs:
        return _Point(total**2, None, cost)
    for mass, attribute in zip(masses, attributes, strict=True):
        at_e = total - float(mass.sum())  # of sectors where the attribute is at e
        mass += at_e * attribute.e**2
    by_code = [
        mass / (attribute.sizes * total) for mass, attribute in zip(masses, attributes, strict=True)
    ]
    return _Point(total**2, by_code, cost)


def _sectors(gram: Gram, attributes: Sequence[WeightedOrbits]) -> dict[Sector, KroneckerSum]:
    """Return the terms of V on every sector, without the attributes of one dimension there."""
    sums: dict[Sector, KroneckerSum] = {}
    for weight, index in zip(gram.weights, gram.index, strict=True):
        row = [(int(i), int(index[i])) for i in np.nonzero(index)[0]]
        choices = [
            [None, *(k for k, kind in enumerate(attributes[i].kinds) if kind.scalars[u])]
            for i, u in row
        ]
        for choice in product(*choices):
            value, sector, pairs = float(weight), [], []
            for (i, u), k in zip(row, choice, strict=True):
                if k is not None:
                    sector.append((i, k))
                    value *= float(attributes[i].kinds[k].scalars[u])
                elif len(attributes[i].sizes) > 1:
                    pairs.append((i, u))
                else:
                    value *= float(attributes[i].matrices[u, 0, 0])
            terms = sums.setdefault(tuple(sector), {})
            terms[tuple(pairs)] = terms.get(tuple(pairs), 0.0) + value
    return sums


def _uniform(orbits: Sequence[Orbits]) -> list[Floats]:
    return [np.full(len(orbit_set.sizes), 1 / float(orbit_set.sizes.sum())) for orbit_set in orbits]


def _matrix_bounds(orbits: Orbits, v: Floats) -> Floats:
    """Return tr((D V D)^(1/2))^2 for each matrix V of an attribute."""
    both = zip(orbits.levels, orbits.inside, strict=True)
    return np.array([float(_root_masses(orbits, v, *one).sum()) ** 2 for one in both])


def _root_masses(orbits: Orbits, v: Floats, level: Floats, inside: Floats) -> Floats:
    """Return the diagonal of (D V D)^(1/2) by orbit, V known by its two parts. sum(v) = 1."""
    root = np.sqrt(v)
    S = level * np.outer(root, root)
    w, U = np.linalg.eigh((S + S.T) / 2)
    inside = np.maximum(inside * v, 0.0)
    return np.asarray(U**2 @ np.sqrt(above_rounding(w)) + (orbits.sizes - 1) * np.sqrt(inside))
