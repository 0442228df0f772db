r"""Powers of an r-of-k query's coefficients, as sums of outer products over the rows of a block.

Under marginals and cores the part of a query in a set b of attributes is one difference of the
threshold in b, taken at the levels of the other predicates: squared or to the fourth power it stays
one number wherever those levels are one number a table. Attributes whose predicates have several
levels, and strategies that mix a query with the total, take powers of a sum of k + 1 products, with
one term for each choice of `order` of them.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block
from dpquery.operators.thresholds import differences, node_weights, threshold_nodes
from dpquery.strategy.algebra.row_sums import RowTerms
from dpquery.strategy.algebra.subsets import Subset


class SplitPowers:
    """Powers of the parts of a block's queries, by the set of attributes that a part lies in.

    Where a row takes predicate i its value is `inside` on a part that lies in i and its level on
    one that does not; where it takes all ones instead, 0 and 1.
    """

    def __init__(
        self, block: Block, levels: Sequence[Floats], inside: Mapping[int, Floats], *, order: int
    ) -> None:
        """Take the levels of all predicates, (m_k,) or one number, and powers of their rests."""
        self.block, self.levels, self.inside, self.order = block, levels, inside, order
        counted = [
            k for k, is_counted in enumerate(block.counted) if is_counted and not block.is_product
        ]
        even = [k for k in counted if len(levels[k]) == 1]
        even.sort(key=lambda k: block.attributes[k] in inside)  # what no part lies in comes first
        self.even, self.uneven = even, [k for k in counted if k not in even]
        level = [float(levels[k][0]) for k in even]
        r = block.at_least if counted else 0
        self.values = differences(level, r, beside=len(self.uneven))

    def terms(self, b: Subset) -> RowTerms:
        """Return the order-th power of the part of every query in b; none where there is none."""
        S, (row, values) = self.block.attributes, (0, self.values)
        for k in self.even:
            row = 2 * row + (S[k] in b)
        values = values[row]
        for k in self.uneven:
            values = np.diff(values) if S[k] in b else values
        left = [k for k in self.uneven if S[k] not in b]
        if not np.any(values):
            return []
        fixed = [self._vector(k, b) for k in range(len(S))]
        if len(values) == 1:  # one level: every product, and most thresholds
            return [(math.prod([float(values[0])] * self.order), fixed)]
        terms: RowTerms = []
        for coef, points in _powers(node_weights(values), threshold_nodes(len(left)), self.order):
            vectors = list(fixed)
            for k in left:
                factors = (1 + (x - 1) * self.levels[k] for x in points)
                vectors[k] = math.prod(factors, start=np.ones(1))
            terms.append((coef, vectors))
        return terms

    def _vector(self, k: int, b: Subset) -> Floats:
        """Return what the k-th predicate contributes alone."""
        i = self.block.attributes[k]
        if i in b:
            return self.inside[i]
        return np.ones(1) if k in self.even else np.asarray(self.levels[k] ** self.order)


def _powers(
    alphas: Floats, points: Floats, order: int
) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Yield the terms of (sum_j alpha_j kron(x_j))^order: their coefficient and its points."""
    for chosen in combinations_with_replacement(range(len(points)), order):
        times = math.factorial(order)
        for count in Counter(chosen).values():
            times //= math.factorial(count)
        coef = times * math.prod(float(alphas[j]) for j in chosen)
        if coef:
            yield coef, tuple(float(points[j]) for j in chosen)


def mixed_powers(block: Block, forms: Sequence[Mapping[int, Floats]], order: int) -> RowTerms:
    """Return the order-th power of every query, given those of predicates mixed with the total.

    Args:
        block: whose queries.
        forms: for each factor and each count c of `counts`, the sum of products of c copies of a
            predicate's coefficients and order - c of the total's: (m,), or one number.
        order: how many copies are multiplied.
    """
    if block.is_product:
        return [(1.0, [form[order] for form in forms])]
    k = sum(block.counted)
    alphas = node_weights((np.arange(k + 1) >= block.at_least).astype(np.float64))
    terms: RowTerms = []
    lone = 0.0
    for coef, points in _powers(alphas, threshold_nodes(k), order):
        shares = _expanded([x - 1 for x in points])
        vectors = [
            _mixed(form, shares) if counted else form[order]
            for form, counted in zip(forms, block.counted, strict=True)
        ]
        if all(len(v) == 1 for v in vectors):
            lone += coef * math.prod(float(v[0]) for v in vectors)
        else:
            terms.append((coef, vectors))
    return [*terms, (lone, [np.ones(1)] * len(forms))] if lone else terms


def _mixed(form: Mapping[int, Floats], shares: Sequence[float]) -> Floats:
    """Return sum_c shares[c] coefs[c]."""
    total: Floats = np.zeros(1)
    for c, share in enumerate(shares):
        if share:
            total = total + share * form[c]
    return total


def _expanded(points: Sequence[float]) -> list[float]:
    """Return the coefficients of prod_x (1 + x t), constant first."""
    coefs = [1.0]
    for x in points:
        coefs = [a + x * b for a, b in zip([*coefs, 0.0], [0.0, *coefs], strict=True)]
    return coefs


def counts(block: Block, order: int) -> list[list[int]]:
    """Return, for each factor, of how many copies of its predicate `mixed_powers` asks."""
    every = list(range(order + 1))
    return [every if counted and not block.is_product else [order] for counted in block.counted]
