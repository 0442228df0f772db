"""The algebra of marginals: every Gram in it is diagonal in one common set of eigenspaces.

There is one eigenspace for each attribute subset a, with projector
    P_a = kron_{i in a} (I - J/n_i)  kron_{i not in a} J/n_i,
of dimension mult(a) = prod_{i in a} (n_i - 1). A strategy of marginals b with weights theta_b has
eigenvalue kappa(a) = sum_{b >= a} theta_b^2 prod_{i not in b} n_i there ([MATH] 3), so its inverse,
its error and every query's variance are sums over subsets. All eigenvalues here are divided by the
number of cells N: kappa(a) / N = sum_{b >= a} theta_b^2 / prod_{i in b} n_i, since N itself leaves
the range of floats at some hundred attributes.
"""

import math
from collections.abc import Iterable

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array
from dpquery.operators.gram import Gram, total_sum, trace
from dpquery.strategy.lattice import Subset, subsets_of
from dpquery.strategy.polynomials import block_polynomial, nonzero_places, polynomial_power
from dpquery.strategy.strategies import MarginalsStrategy

ROUNDING = 1e-12  # relative to what cancelled
MAX_ATTRIBUTES = 20  # of one table: its subsets are all listed
RowTerms = list[tuple[float, list[Array]]]
"""sum_t coef_t kron_i vector_ti over the rows of a block; vectors have length m_i or 1."""


def workload_eigenvalues(gram: Gram) -> dict[Subset, float]:
    """Return tr(P_a V) / N for every subset a on which it is not zero.

    A Kronecker term contributes prod_i tr(P_{a_i} V_i) / n_i, with tr(P_0 V) = 1'V1/n, tr(P_1 V)
    the rest of the trace; 11' contributes to subsets without i alone, and one to them.

    Raises:
        UnsupportedWorkloadError: a term looks at more than MAX_ATTRIBUTES attributes.
    """
    widest = int(np.count_nonzero(gram.index, axis=1).max())
    if widest > MAX_ATTRIBUTES:
        raise UnsupportedWorkloadError(f"a table looks at {widest} attributes")
    sized = list(zip(gram.shape_of_domain, gram.matrices, strict=True))
    zero = [np.array([total_sum(V) / n**2 for V in own]) for n, own in sized]
    whole = [np.array([trace(V) / n for V in own]) for n, own in sized]
    rest = [_difference(w, z) for w, z in zip(whole, zero, strict=True)]
    found: dict[Subset, float] = {}
    size: dict[Subset, float] = {}
    for weight, row in zip(gram.weights, gram.index, strict=True):
        inside = tuple(int(i) for i in np.nonzero(row)[0])
        for a in subsets_of(inside):
            value = float(weight)
            for i in inside:
                value *= (rest if i in a else zero)[i][row[i]]
            found[a] = found.get(a, 0.0) + value
            size[a] = size.get(a, 0.0) + abs(value)
    return {a: value for a, value in found.items() if value > ROUNDING * size[a]}


def _difference(x: Array, y: Array) -> Array:
    """Return x - y, and zero where that is rounding alone."""
    return np.where(np.abs(x - y) > ROUNDING * np.abs(x), x - y, 0.0)


class MarginalInverse:
    """(A'A)^+ of a MarginalsStrategy, by its eigenvalues 1 / kappa(a), each times N."""

    def __init__(self, strategy: MarginalsStrategy) -> None:
        self.strategy = strategy
        self.shape = strategy.shape

    def cells(self, subset: Iterable[int]) -> int:
        """Return the number of cells of the marginal over a subset."""
        return math.prod(self.shape[i] for i in subset)

    def inverse(self, a: Subset) -> float:
        """Return N / kappa(a); an error where a is not measured."""
        if a not in self.strategy.squares_above:
            raise UnsupportedWorkloadError(f"no measured marginal holds the attributes {a}")
        return 1.0 / self.strategy.squares_above[a]

    def variance(self, block: Block) -> RowTerms:
        """Return the variance of every query under unit noise: sum_a q P_a q' / kappa(a).

        For i in a the predicate contributes |q_i|^2 - s_i^2/n_i, s_i its number of codes; else
        s_i^2/n_i. Predicates that an r-of-k block replaces by ones have s_i = n_i.
        """
        S = block.attributes
        places = list(nonzero_places(polynomial_power(block_polynomial(block), 2)))
        vectors = [
            {
                (count, inside): self._variance_vector(block, k, count, inside)
                for count in {place[k] for place, _ in places}
                for inside in (False, True)
            }
            for k in range(len(S))
        ]
        terms: RowTerms = []
        for a in subsets_of(tuple(i for i in S if self.shape[i] > 1)):
            scale = self.inverse(a) / self.cells(S)
            within = [i in a for i in S]
            for place, coef in places:
                if any(inside and c != 2 for c, inside in zip(place, within, strict=True)):
                    continue  # a residual projector annihilates ones
                own = zip(vectors, place, within, strict=True)
                terms.append((coef * scale, [v[count, inside] for v, count, inside in own]))
        return terms

    def _variance_vector(self, block: Block, k: int, count: int, inside: bool) -> Array:
        factor, n = block.factors[k], block.factors[k].shape[1]
        s = distinct_or_all(factor.row_sums.astype(np.float64))
        if inside:
            return distinct_or_all(factor.row_squares.astype(np.float64)) - s**2 / n
        return s**count * float(n) ** (1 - count)

    def fourth_powers(self, block: Block) -> RowTerms | None:
        r"""Return sum_r c_r^4 of every query; None for signed blocks.

        On the cells of a measured marginal b the coefficient of a query is
            theta_b sum_{a <= b & S} prod_{i not in b} s_i / kappa(a)
                    kron_{i in a} (q_i - s_i/n_i) kron_{i in b \ a} s_i/n_i,
        a polynomial with one variable an attribute of t = b & S; its fourth power is taken once
        for each t and summed over the b that meet S in t.
        """
        if len(block.terms) > 1:
            return None
        S = block.attributes
        terms: RowTerms = []
        for t, scale in self._met(S).items():
            g = np.zeros((2,) * len(t))
            for a in subsets_of(t):
                g[tuple(int(i in a) for i in t)] = self.inverse(a)
            for place, coef in nonzero_places(polynomial_power(g, 4)):
                counts = dict(zip(t, place, strict=True))
                vectors = [self._fourth_vector(block, k, counts.get(i)) for k, i in enumerate(S)]
                terms.append((coef * scale, vectors))
        return terms

    def _met(self, S: Subset) -> dict[Subset, float]:
        r"""Return, for each t <= S, the sum of theta_b^4 |b \ S| / |b | S|^4 over b with b & S = t.

        By inclusion-exclusion over the sets u between t and S, of which every b above u is held.
        """
        above = self.strategy.fourths_above
        found: dict[Subset, float] = {}
        for t in subsets_of(S):
            beyond = tuple(i for i in S if i not in t)
            terms = (
                (-1) ** len(more) * above.get(tuple(sorted((*t, *more))), 0.0)
                for more in subsets_of(beyond)
            )
            exactly = sum(terms)
            if exactly > ROUNDING * above.get(t, 0.0):
                found[t] = exactly * float(self.cells(t)) ** 3 / float(self.cells(S)) ** 4
        return found

    def _fourth_vector(self, block: Block, k: int, count: int | None) -> Array:
        """Return sum_r (q - s/n)^c (s/n)^(4-c) of a 0/1 row; s^4 where its attribute is summed."""
        s, n = distinct_or_all(block.factors[k].row_sums.astype(np.float64)), block.table_shape[k]
        if count is None:
            return np.asarray(s**4)
        mean = s / n
        spread = s * (1 - mean) ** count + (n - s) * (-mean) ** count
        return np.asarray(spread * mean ** (4 - count))


def distinct_or_all(vector: Array) -> Array:
    """Return one entry where all are equal: constant axes then cost nothing."""
    return vector[:1] if len(vector) and np.all(vector == vector[0]) else vector
