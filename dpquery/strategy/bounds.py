"""Lower bounds on the loss of any strategy: SVD, for records that move, and by duality.

The SVD bound [LM13] is (sum of singular values of W)^2 / N; it holds for L2 sensitivity and so for
L1 too, which is never smaller. It factors over a single product, has a closed form in the marginal
algebra ([MATH] 3, 4), and is computed outright while N is small.

Where records move between cells, with weights v_m >= 0 of the moves m of a record and
S = sum_m v_m m m', no strategy's loss is below
    tr((S^(1/2) V S^(1/2))^(1/2))^2 / sum(v),
the loss with the largest m'A'Am as squared sensitivity ([MATH] 13.3). L1 lengths are never below L2
lengths, so that it holds for Laplace noise too.

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
from dpquery.limits import MAX_ALGEBRA_ATTRIBUTES, MAX_DENSE_CLASSES
from dpquery.operators.gram import (
    Gram,
    Matrix,
    Mixture,
    array_of,
    classes,
    diagonal,
    is_mixture,
    is_of_values,
    natural_order,
    restricted,
)
from dpquery.progress import reporting
from dpquery.strategy.algebra.orbits import (
    LARGEST_COMPARED,
    Orbits,
    WeightedOrbits,
    above_rounding,
    eigvalsh,
    orbits_of,
)
from dpquery.strategy.algebra.roots import TridiagonalInverse
from dpquery.strategy.algebra.subsets import Subset, member_products, workload_eigenvalues
from dpquery.strategy.optimize.fixed_point import (
    MOST_MOVED,
    OPTIMALITY_GAP,
    move_budgets,
    moves_optimum,
    optimum,
)
from dpquery.strategy.root_trace import DECOMPOSITION, KroneckerSum, root_trace
from dpquery.strategy.strategy import RecordChange

MAX_PATTERNS = 1 << 22  # sets of attributes that a move changes, times subsets
MAX_DECOMPOSED_CELLS = 1200  # cells of a domain whose Gram is decomposed outright
SAFETY = 1e-9  # relative; for the rounding of sums


def moves_bound(gram: Gram, change: RecordChange) -> float | None:
    """Return a lower bound on the loss where a record moves; None where none is known."""
    widest = int(np.count_nonzero(gram.index, axis=1).max())
    if in_marginal_algebra(gram) and widest <= MAX_ALGEBRA_ATTRIBUTES:
        # At weights that are equal for moves that change the same attributes: by symmetry none are
        # better. On the eigenspace of a, S is then a multiple of the identity.
        eigenvalues = workload_eigenvalues(gram)
        subsets = list(eigenvalues)
        beyond = np.array(gram.shape_of_domain, dtype=np.float64) - 1
        values = np.array(list(eigenvalues.values())) * member_products(subsets, beyond)
        lengths = _lengths(subsets, gram.shape_of_domain)
        if change == "moves":
            lengths = np.concatenate([lengths, np.ones((1, len(subsets)))])
        return move_budgets(values, lengths).bound
    cells = math.prod(gram.shape_of_domain)
    if cells > MAX_DECOMPOSED_CELLS:
        return None
    V = gram.dense()
    V = (V + V.T) / 2
    if cells <= MOST_MOVED:
        with reporting(None):  # no candidate is at work, and no clock is asked
            return moves_optimum(V, change).bound
    # All pairs alike: S is a multiple of the projector beside the total.
    centred = V - V.mean(axis=0) - V.mean(axis=1)[:, None] + V.mean()
    trace = float(np.sqrt(above_rounding(eigvalsh(centred))).sum())
    return 2 / (cells - 1) * trace**2 * (1 - SAFETY)


def in_marginal_algebra(gram: Gram) -> bool:
    """Return whether every matrix is a mixture of identity and ones."""
    return all(is_mixture(V) for matrices in gram.matrices for V in matrices)


def _lengths(subsets: list[Subset], shape: tuple[int, ...]) -> Floats:
    """Return squared lengths of moves in the parts P_a x, times N / mult(a): (moves, subsets).

    A move that changes the attributes D has 2 (1 - prod_{i in a & D} -1 / (n_i - 1)) in that of a.
    All sets D are listed where there are few; else the set of all attributes alone.
    """
    wide = sorted({i for a in subsets for i in a})
    if not wide:
        return np.zeros((1, len(subsets)))
    signs = {i: -1 / (shape[i] - 1) for i in wide}
    if len(subsets) << len(wide) > MAX_PATTERNS:
        return np.array([[2 * (1 - math.prod(signs[i] for i in a)) for a in subsets]])
    products, sets = np.ones((1 << len(wide), len(subsets))), np.arange(1 << len(wide))
    for bit, i in enumerate(wide):
        inside = np.array([i in a for a in subsets])
        changed = (sets >> bit & 1).astype(bool)
        products[np.ix_(changed, inside)] *= signs[i]
    return np.asarray(2 * (1 - products[1:]))


FIXED_POINT_ROUNDS = 300  # of the fixed point


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on sensitivity^2 tr((A'A)^-1 V), and what proves it."""

    loss: float
    kind: str


def lower_bound(
    gram: Gram, change: RecordChange = "enters", *, proving: bool = True
) -> Bound | None:
    """Return the best bound on the loss of every strategy; None where none is known.

    A loss has the sensitivity of the change. A record that may leave, and move besides, is bound by
    what holds for one that leaves. Dual bounds may take seconds; without proving there is the SVD
    bound alone.
    """
    entering = _entering_bound(gram) if proving else svd_bound(gram)
    if change == "enters":
        return entering
    moving = moves_bound(gram, change) if proving else None
    known = [None if moving is None else Bound(moving, "dual bound")]
    if entering is not None:
        known.append(moved_bound(entering, gram))
    if change == "moves":
        known.append(entering)
    return max((bound for bound in known if bound), key=lambda b: b.loss, default=None)


def moved_bound(entering: Bound, gram: Gram) -> Bound | None:
    """Return a bound where a record moves, from one where it enters; None if it says nothing.

    That is 2 (root of the loss - root of the largest diagonal entry)^2 ([MATH] 13.3).
    """
    largest = 0.0
    for weight, places in zip(gram.weights, gram.index, strict=True):
        named = (matrices[j] for matrices, j in zip(gram.matrices, places, strict=True))
        largest += float(weight) * math.prod(float(diagonal(V).max()) for V in named)
    length = math.sqrt(entering.loss) * (1 - SAFETY) - math.sqrt(largest) * (1 + SAFETY)
    return Bound(2 * length**2, "dual bound") if length > 0 else None


def _entering_bound(gram: Gram) -> Bound | None:
    """Return the better of the SVD bound and the dual bound, where one is known."""
    svd = svd_bound(gram)
    if in_marginal_algebra(gram):
        return svd  # [MATH] 4: a strategy attains it
    loss = solved_dual_bound(gram) or dual_bound(gram)
    if loss is None or (svd is not None and svd.loss >= loss):
        return svd
    return Bound(loss, "dual bound")


def solved_dual_bound(gram: Gram) -> float | None:
    """Return the largest dual bound of a single product of prefix sums, all ranges and mixtures.

    Duals multiply over the attributes ([MATH] 1). Those of prefix sums and all ranges are solved
    for any number of classes; mixtures a I + b 11' have theirs at v = 1. None for other Grams.
    """
    if len(gram.weights) > 1:
        return None
    bound = float(gram.weights[0])
    for matrices, j in zip(gram.matrices, gram.index[0], strict=True):
        inverse = _tridiagonal(matrices[j])
        if inverse is not None:
            v = np.ones(len(inverse.diagonal))
            with reporting(None):  # no candidate is at work, and no clock is asked
                bound *= optimum(inverse, v, FIXED_POINT_ROUNDS, OPTIMALITY_GAP).bound
        elif isinstance(matrices[j], Mixture):
            bound *= _root_trace(matrices[j]) ** 2 / classes(matrices[j])
        else:
            return None
    return bound


def svd_bound(gram: Gram) -> Bound | None:
    """Return the SVD bound where it can be computed, else None."""
    if len(gram.weights) == 1:
        named = [matrices[j] for matrices, j in zip(gram.matrices, gram.index[0], strict=True)]
        if all(map(_has_eigenvalues, named)):
            roots = [_root_trace(V) ** 2 / classes(V) for V in named]
            return Bound(float(gram.weights[0]) * math.prod(roots), "SVD bound")
    widest = int(np.count_nonzero(gram.index, axis=1).max())
    if widest <= MAX_ALGEBRA_ATTRIBUTES and in_marginal_algebra(gram):
        # the SVD bound: the value of a has multiplicity prod_{i in a} (n_i - 1)
        eigenvalues = workload_eigenvalues(gram)
        beyond = np.array(gram.shape_of_domain, dtype=np.float64) - 1
        multiplicities = member_products(list(eigenvalues), beyond)
        of_cores = np.sqrt(np.array(list(eigenvalues.values())) * multiplicities)
        return Bound(float(of_cores.sum()) ** 2, "SVD bound")
    if math.prod(gram.shape_of_domain) <= MAX_DECOMPOSED_CELLS:
        V = gram.dense()
        return Bound(_root_trace((V + V.T) / 2) ** 2 / len(V), "SVD bound")
    return None


def _tridiagonal(V: Matrix) -> TridiagonalInverse | None:
    return TridiagonalInverse.of(restricted(V, natural_order(V)))


def _has_eigenvalues(V: Matrix) -> bool:
    if isinstance(V, Mixture) or classes(V) <= MAX_DENSE_CLASSES:
        return True
    return _tridiagonal(V) is not None


def _root_trace(V: Matrix) -> float:
    if isinstance(V, Mixture):
        return (V.n - 1) * math.sqrt(V.a) + math.sqrt(V.a + V.n * V.b)
    inverse = _tridiagonal(V)
    if inverse is not None:
        root = inverse.root(np.ones(len(inverse.diagonal)))
        return float(root.diagonal().sum()) * (1 - root.error)
    return float(np.sqrt(above_rounding(eigvalsh(array_of(V)))).sum())


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
