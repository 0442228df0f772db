r"""The Gram of a workload, as a sum of Kronecker products.

Strategy selection sees the workload through this alone: the error of any linear strategy is
tr((A'A)^-1 V). Each attribute keeps its few distinct matrices once; a term names one for each.
Mixtures a I + b 11', which is all that marginals and thresholds of them have, are kept as two
numbers; Grams of ranges and groups, and their sums, as the query matrices they come from: both take
any number of classes.
Other matrices are arrays, of at most MAX_CLASSES classes, and so is what asks for an array.

A predicate set of which every class of an attribute meets equally many, as its values do, is split
into its mean over rows p 11' and the rest D = F - p 11', with 1'D = 0. Then the Gram of an r-of-k
block is diagonal in the sets a of attributes that take D:
    W'W = sum_a (prod_{i not in a} m_i) lambda_a^2 kron_{i in a} D_i'D_i kron_{i not in a} 11',
with lambda_a the difference of the threshold in a ([MATH] 5): 2^k terms, no pairs of terms, nothing
that cancels. Predicates that classes meet unequally often, such as one target, enter by all pairs
of sets of them while those are few, by pairs of the nodes of operators.thresholds beyond.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_DENSE_CLASSES
from dpquery.operators.blocks import (
    Block,
    SplitFactor,
    Workload,
    differences,
    kron_apply,
    node_weights,
    threshold_nodes,
)
from dpquery.operators.factors import Dense, Factor, Identity, IdentityRows, Ones, Stacked, Weighted
from dpquery.operators.ranges import Columns

Sides = tuple[SplitFactor, SplitFactor]
"""Of L'R with L = a 11' + b F: ((a, b) of L, (a, b) of R)."""
GRAM = ((0.0, 1.0), (0.0, 1.0))
MAX_PAIRED = 3  # predicates of which all sets are paired; Grams of ranges keep their structure so


def gram_terms(block: Block) -> Iterator[tuple[float, tuple[Sides | None, ...]]]:
    """Yield (coef, sides of every factor) of W'W = sum coef kron L'R; None stands for 11'."""
    if block.is_product:
        yield 1.0, (GRAM,) * len(block.factors)
        return
    sums = {
        k: column_sums(factor)
        for k, (factor, counted) in enumerate(zip(block.factors, block.counted, strict=True))
        if counted
    }
    even = [k for k, column_sum in sums.items() if is_even(column_sum)]
    uneven = [k for k in sums if k not in even]
    rows = block.row_shape
    levels = [float(sums[k][0]) for k in even]
    means = [level / rows[k] for k, level in zip(even, levels, strict=True)]
    values = differences(means, block.at_least, beside=len(uneven))
    fixed: list[Sides | None] = [None if counted else GRAM for counted in block.counted]
    pairs = list(_pairs(values, len(uneven)))
    for row, chosen in enumerate(product((False, True), repeat=len(even))):
        sides, scale = list(fixed), 1.0
        for k, level, inside in zip(even, levels, chosen, strict=True):
            m = float(rows[k])
            sides[k] = ((-level, m), (-level, m)) if inside else None  # m D: whole numbers
            scale *= m**-2 if inside else m
        for coefs, choice in pairs:
            if coefs[row]:
                coef, placed = scale * float(coefs[row]), list(sides)
                for k, both in zip(uneven, choice, strict=True):
                    if all(side == (1.0, 0.0) for side in both):
                        coef *= rows[k]  # 11' on both sides is m 11'
                    else:
                        placed[k] = both
                yield coef, tuple(placed)


def _pairs(values: Floats, beside: int) -> Iterator[tuple[Floats, tuple[Sides, ...]]]:
    """Yield what each pair of Kronecker products of the uneven factors weighs: (sets of even,)."""
    if beside <= MAX_PAIRED:
        sets = list(product((False, True), repeat=beside))
        weights = {u: _difference(values, sum(u)) for u in sets}
        sides = {u: tuple((0.0, 1.0) if inside else (1.0, 0.0) for inside in u) for u in sets}
        halves = [(weights[u], sides[u]) for u in sets]
    else:
        points, alphas = threshold_nodes(beside).tolist(), node_weights(values)
        halves = [(alphas[:, j], ((1.0, x - 1.0),) * beside) for j, x in enumerate(points)]
    for left, on_left in halves:
        for right, on_right in halves:
            yield left * right, tuple(zip(on_left, on_right, strict=True))


def _difference(values: Floats, order: int) -> Floats:
    """Return the differences in so many of the predicates beside, the others missed."""
    signs = [(-1) ** (order - s) * math.comb(order, s) for s in range(order + 1)]
    return np.asarray(values[:, : order + 1] @ np.array(signs, dtype=np.float64))


def column_sums(factor: Factor) -> Floats:
    """Return how many predicates each class meets: (n,), or one number for them all."""
    if isinstance(factor, Identity):
        return np.ones(1)
    return factor.rmatvec(np.ones(factor.shape[0], dtype=factor.dtype)).astype(np.float64)


def is_even(columns: Floats) -> bool:
    """Return whether every class meets equally many predicates."""
    return bool(np.all(columns == columns[0]))


EVEN = 1e-12  # relative spread of weights that are equal but for rounding
KEPT_CLASSES = 2048  # of a matrix whose array is kept once it was asked for: 32 MB
MANY_TERMS = 8  # beyond which such an array is multiplied with, and not one factor after another
SMALL_CLASSES = 128  # of a matrix that keeps its own array: 128 KB
KEPT_ARRAYS = 32  # those that were asked for last
FLAT = 1e-10  # relative spread of entries that are equal but for the rounding of sums


@dataclass(frozen=True)
class Mixture:
    """The matrix a I + b 11' over n classes."""

    n: int
    a: float
    b: float

    def array(self) -> Floats:
        """Return it written out: (n, n)."""
        return np.eye(self.n) * self.a + self.b


@dataclass(frozen=True, eq=False)
class Structured:
    """The matrix sum_k weight_k F_k'F_k + a I + b 11', known by its products."""

    mixture: Mixture  # a I + b 11'
    terms: tuple[tuple[float, Factor], ...]  # weight and query matrix of each other summand

    @property
    def n(self) -> int:
        """Number of classes."""
        return self.mixture.n

    def matmat(self, X: Floats) -> Floats:
        """Return its product with X: (n, k)."""
        if self.n <= KEPT_CLASSES and len(self.terms) > MANY_TERMS:
            return np.asarray(self.array() @ X)
        total = self.mixture.a * X + self.mixture.b * X.sum(axis=0)
        for weight, factor in self.terms:
            total += weight * factor.gram_matmat(X)
        return np.asarray(total)

    @cached_property
    def diagonal(self) -> Floats:
        """(n,)."""
        total = np.full(self.n, self.mixture.a + self.mixture.b)
        for weight, factor in self.terms:
            total += weight * factor.column_norms(2)
        return total

    def array(self) -> Floats:
        """Return it written out: (n, n). Small ones are kept, others of KEPT_CLASSES a while."""
        if self.n <= SMALL_CLASSES:
            return self._small_array
        return _kept_array(self) if self.n <= KEPT_CLASSES else self._written_out()

    @cached_property
    def _small_array(self) -> Floats:
        return _read_only(self._written_out())

    def _written_out(self) -> Floats:
        total = self.mixture.array()
        for weight, factor in self.terms:
            total += weight * factor.gram()
        return total


@lru_cache(KEPT_ARRAYS)
def _kept_array(V: Structured) -> Floats:
    return _read_only(V._written_out())


def _read_only(array: Floats) -> Floats:
    array.flags.writeable = False
    return array


Matrix = Floats | Mixture | Structured


def classes(V: Matrix) -> int:
    """Return the number of classes n of an (n, n) matrix."""
    return V.n if isinstance(V, Mixture | Structured) else len(V)


def diagonal(V: Matrix) -> Floats:
    """Return diag(V): (n,)."""
    if isinstance(V, Mixture):
        return np.full(V.n, V.a + V.b)
    return V.diagonal if isinstance(V, Structured) else np.diagonal(V)


def times(V: Matrix, X: Floats) -> Floats:
    """Return V X. X: (n, k)."""
    if isinstance(V, Mixture):
        return np.asarray(V.a * X + V.b * X.sum(axis=0))
    return V.matmat(X) if isinstance(V, Structured) else np.asarray(V @ X)


def trace(V: Matrix) -> float:
    """Return tr(V)."""
    return float(diagonal(V).sum())


def total_sum(V: Matrix) -> float:
    """Return 1'V1."""
    if isinstance(V, Mixture):
        level = V.a + V.b * V.n
        return V.n * level if abs(level) > EVEN * abs(V.a) else 0.0
    return float(times(V, np.ones((classes(V), 1))).sum())


def trace_with(M: Floats, V: Matrix) -> float:
    """Return tr(M V) for a symmetric M: (n, n)."""
    if isinstance(V, Mixture):
        return V.a * float(np.trace(M)) + V.b * float(M.sum())
    return float(np.sum(M * array_of(V)))


def array_of(V: Matrix) -> Floats:
    """Return V as an array, if it has at most MAX_CLASSES classes."""
    if not isinstance(V, Mixture | Structured):
        return V
    _check_classes(V.n)
    return V.array()


def weighted_sum(weights: Numbers, matrices: Sequence[Matrix]) -> Matrix:
    """Return sum_k weights[k] matrices[k], symmetrised; structure is kept where all have some."""
    n, summands = classes(matrices[0]), list(zip(weights.tolist(), matrices, strict=True))
    a, b, terms = 0.0, 0.0, []
    for weight, V in summands:
        if weight and not isinstance(V, Mixture | Structured):
            total = sum((w * array_of(summand) for w, summand in summands if w), np.zeros((n, n)))
            return np.asarray((total + total.T) / 2)
        if isinstance(V, Structured):
            terms += [(weight * coef, factor) for coef, factor in V.terms if weight]
            V = V.mixture
        if isinstance(V, Mixture):
            a, b = a + weight * V.a, b + weight * V.b
    return Structured(Mixture(n, a, b), tuple(terms)) if terms else Mixture(n, a, b)


def restricted(V: Matrix, codes: Ints) -> Matrix:
    """Return the rows and columns of V at the codes."""
    if np.array_equal(codes, np.arange(classes(V))):
        return V
    if isinstance(V, Mixture):
        return Mixture(len(codes), V.a, V.b)
    if isinstance(V, Structured):
        terms = tuple((weight, _columns(factor, codes)) for weight, factor in V.terms)
        return Structured(Mixture(len(codes), V.mixture.a, V.mixture.b), terms)
    return np.asarray(V[np.ix_(codes, codes)])


def _columns(factor: Factor, codes: Ints) -> Factor:
    if isinstance(factor, Columns):
        return _columns(factor.inner, factor.codes[codes])
    return factor if np.array_equal(codes, np.arange(factor.shape[1])) else Columns(factor, codes)


def natural_order(V: Matrix) -> Ints:
    """Return the order of the codes in which ranges hold neighbours: (n,)."""
    terms = V.terms if isinstance(V, Structured) else ()
    orders = [factor.codes for _, factor in terms if isinstance(factor, Columns)]
    if not orders or len(orders) < len(terms) or any(np.any(o != orders[0]) for o in orders):
        return np.arange(classes(V))
    return np.argsort(orders[0])


@dataclass(frozen=True, eq=False)
class Gram:
    """V = sum_j weights[j] kron_i matrices[i][index[j, i]]."""

    shape_of_domain: tuple[int, ...]  # sizes of the attributes
    weights: Floats  # (k,) coefficient of each term; negative ones come from signed blocks
    index: NDArray[np.int32]  # (k, d) which matrix of each attribute a term takes; 0 is always 11'
    # for each attribute its distinct (n_i, n_i) matrices. Terms of signed blocks may take matrices
    # that are not symmetric; the sum is
    matrices: tuple[tuple[Matrix, ...], ...]

    def matvec(self, x: Floats) -> Floats:
        """Return V x. x: (N,)."""
        tensor = x.reshape(self.shape_of_domain)
        out = np.zeros(self.shape_of_domain)
        for weight, row in zip(self.weights, self.index, strict=True):
            matrices = [
                grams_of_attribute[j]
                for grams_of_attribute, j in zip(self.matrices, row, strict=True)
            ]
            out += weight * kron_apply([partial(times, V) for V in matrices], tensor)
        return out.ravel()

    def dense(self) -> Floats:
        """Return V as an (N, N) array: for small domains."""
        total = np.zeros((1, 1))
        for weight, row in zip(self.weights, self.index, strict=True):
            term = np.ones((1, 1)) * weight
            for grams_of_attribute, j in zip(self.matrices, row, strict=True):
                term = np.kron(term, array_of(grams_of_attribute[j]))
            total = total + term
        return total

    def traces(self) -> list[Floats]:
        """Return tr(V_iu) for each attribute i and each of its matrices u."""
        return [np.array([trace(V) for V in matrices]) for matrices in self.matrices]

    def term_traces(self, traces: list[Floats]) -> Floats:
        """Return the (k, d) factors of each term's trace from `traces`."""
        return np.stack([by_matrix[self.index[:, i]] for i, by_matrix in enumerate(traces)], axis=1)

    @cached_property
    def trace(self) -> float:
        """tr(V): the squared error of the identity strategy at unit noise."""
        return float(self.weights @ self.term_traces(self.traces()).prod(axis=1))


class _Attribute:
    """Collects the distinct matrices of one attribute."""

    def __init__(self, n: int) -> None:
        self.matrices: list[Matrix] = [Mixture(n, 0.0, 1.0)]
        self.places: dict[Hashable, int] = {}
        self.grams: dict[Hashable, Matrix] = {}

    def place(self, factor: Factor, sides: Sides | None) -> int:
        if sides is None:
            return 0
        key = (factor.key, sides)
        if key not in self.places:
            self.places[key] = len(self.matrices)
            if factor.key not in self.grams:
                self.grams[factor.key] = _gram_of(factor)
            self.matrices.append(_cross_gram(factor, self.grams[factor.key], sides))
        return self.places[key]


def _cross_gram(factor: Factor, squared: Matrix, sides: Sides) -> Matrix:
    """Return L'R for L = a 11' + b F and R likewise, and F'F that is known."""
    (a, b), (c, d) = sides
    m, n = factor.shape
    if a == c == 0:
        return squared
    columns = column_sums(factor)
    if is_even(columns):
        level = float(columns[0])
        ones = Mixture(n, 0.0, a * c * m + (a * d + b * c) * level)
        return weighted_sum(np.array([1.0, b * d]), [ones, squared])
    _check_classes(n)
    beside = a * d * columns[None, :] + b * c * columns[:, None] + a * c * m
    return np.asarray(beside + b * d * array_of(squared))


def _gram_of(factor: Factor) -> Matrix:
    m, n = factor.shape
    if isinstance(factor, Identity):
        return Mixture(n, 1.0, 0.0)
    if isinstance(factor, Ones):
        return Mixture(n, 0.0, float(m))
    if isinstance(factor, Weighted):
        weights = factor.weights
        if isinstance(factor.factor, Ones):
            return Mixture(n, 0.0, float(weights.sum()))
        if isinstance(factor.factor, Identity) and np.ptp(weights) <= EVEN * weights.max():
            return Mixture(n, float(weights.mean()), 0.0)
    if isinstance(factor, Stacked):
        grams = [_gram_of(part) for part in factor.parts]
        return weighted_sum(np.ones(len(grams)), grams)
    if isinstance(factor, Dense | Weighted):
        _check_classes(n)
        return factor.gram()
    return Structured(Mixture(n, 0.0, 0.0), ((1.0, factor),))


def _check_classes(n: int) -> None:
    if n > MAX_DENSE_CLASSES:
        raise UnsupportedWorkloadError(
            f"an attribute with {n:,} distinct values is asked for ranges or groups, and the limit "
            f"for those is {MAX_DENSE_CLASSES:,}; declare wider bins, or ask for its values only"
        )


def gram(workload: Workload) -> Gram:
    """Return the Gram of a workload. Equal terms are merged."""
    return grams(workload, [range(len(workload.blocks))])[0]


def grams(workload: Workload, groups: Sequence[Sequence[int]]) -> tuple[Gram, ...]:
    """Return the Gram of each group of blocks, given by their places; they share their matrices."""
    attributes = [_Attribute(n) for n in workload.shape_of_domain]
    terms_of_groups = []
    for group in groups:
        terms: dict[Places, float] = {}
        for block, weight in ((workload.blocks[j], workload.weights[j]) for j in group):
            for coef, sides in gram_terms(block):
                triples = zip(block.attributes, block.factors, sides, strict=True)
                places = ((i, attributes[i].place(factor, both)) for i, factor, both in triples)
                key = tuple(place for place in places if place[1])
                terms[key] = terms.get(key, 0.0) + weight * coef
        terms_of_groups.append(terms)
    matrices = tuple(tuple(attribute.matrices) for attribute in attributes)
    return tuple(
        Gram(
            workload.shape_of_domain,
            np.array(list(terms.values())),
            _index(list(terms), len(attributes)),
            matrices,
        )
        for terms in terms_of_groups
    )


Places = tuple[tuple[int, int], ...]
"""(attribute, matrix) of a term, in order of attributes, but for its matrices 11'."""


def _index(terms: Sequence[Places], d: int) -> NDArray[np.int32]:
    index = np.zeros((len(terms), d), dtype=np.int32)
    rows = np.repeat(np.arange(len(terms)), [len(places) for places in terms])
    pairs = np.array([place for places in terms for place in places], dtype=np.int64).reshape(-1, 2)
    index[rows, pairs[:, 0]] = pairs[:, 1]
    return index


def is_mixture(V: Matrix) -> bool:
    """Return whether V = a I + b 11', the Grams of the marginal algebra.

    The diagonal and one column say of most that they are none, before an array is written out.
    Beyond MAX_CLASSES no array is written out for it, and only a Mixture counts.
    """
    if isinstance(V, Mixture):
        return True
    n = classes(V)
    if isinstance(V, Structured) and n > MAX_DENSE_CLASSES:
        return False
    first = times(V, np.eye(n, 1))[:, 0]
    apart = np.abs(first[1:] - first[-1]).max(initial=0.0)
    on_diagonal = diagonal(V)
    uneven = np.abs(on_diagonal - on_diagonal[0]).max()
    if apart > FLAT * abs(first[0]) or uneven > FLAT * abs(on_diagonal[0]):
        return False
    A = array_of(V)
    mixture = np.full((n, n), A[0, -1])
    np.fill_diagonal(mixture, A[0, 0])
    return bool((np.abs(A - mixture) <= FLAT * np.abs(mixture)).all())


def is_of_values(V: Matrix) -> bool:
    """Return whether V is of single values and totals: a mixture, and cells of some classes."""
    if isinstance(V, Structured) and all(inner_type(f) is IdentityRows for _, f in V.terms):
        return True
    return is_mixture(V)


def inner_type(factor: Factor) -> type[Factor]:
    """Return the class of a factor, whatever the order of its codes."""
    return type(factor.inner if isinstance(factor, Columns) else factor)
