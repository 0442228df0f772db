"""Exact sensitivity of integer strategies: the largest column norm, as a Python int.

Adding one record to class j of the domain moves the answers by column j. For a union of Kronecker
products the squared (or absolute) column norms are a sum of Kronecker products of per-attribute
vectors; classes of codes with equal vectors are merged before the maximum is searched.
"""

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array, Factor
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.strategies import Measurement

Term = tuple[int, dict[int, list[int]]]
SEARCH_LIMIT = 200_000  # column classes searched exactly; beyond, a sum of maxima bounds it


def sensitivity(measurements: Sequence[Measurement], noise: Noise) -> int:
    """Return the largest L1 column norm ("laplace") or squared L2 column norm ("gaussian").

    Exact for one product and wherever the distinct columns can be searched; else an upper bound,
    the sum over measurements of each one's own maximum.

    Privacy:
        Holds for adding or removing one record. [HDMM18] Thm 3 for a single product.
    """
    power = 1 if noise == "laplace" else 2
    constant, varying, norms = 0, [], _Norms()
    for measurement in measurements:
        for coef, vectors in _column_terms(measurement.block, power, norms):
            scale, left = _without_constants(coef * measurement.weight**power, vectors)
            if left:
                varying.append((scale, left))
            else:
                constant += scale
    if len(varying) == 1 and varying[0][0] > 0:
        return constant + _sum_of_maxima(varying)
    return constant + _largest(varying)


def column_support(measurements: Sequence[Measurement]) -> int:
    """Return an upper bound on the number of nonzero entries of any column."""
    total, known = 0, dict[Hashable, int]()
    for measurement in measurements:
        block = measurement.block
        if not block.is_product:
            total += math.prod(block.row_shape)
            continue
        for factor in block.factors:
            if factor.key not in known:
                known[factor.key] = int(factor.column_counts().max())
        total += math.prod(known[factor.key] for factor in block.factors)
    return total


def _column_terms(block: Block, power: int, norms: "_Norms") -> Iterator[Term]:
    """Yield the column norms of a block as a sum of products of per-attribute vectors.

    The entries of an r-of-k block are all 0 or 1, so its column sums serve both norms.
    """
    signed = not block.is_product
    own = [norms.of(factor, 1 if signed else power) for factor in block.factors]
    for coef, mask in block.terms:
        yield (
            coef,
            {
                i: columns if inside else [factor.shape[0]]
                for i, columns, factor, inside in zip(
                    block.attributes, own, block.factors, mask, strict=True
                )
            },
        )


class _Norms:
    """The column norms of factors, found once for equal ones: marginals share theirs."""

    def __init__(self) -> None:
        self.known: dict[Hashable, list[int]] = {}

    def of(self, factor: Factor, power: int) -> list[int]:
        """Return sum_i |F_ij|^power for every column, or once where all columns have the same."""
        key = (factor.key, power)
        if key not in self.known:
            norms = _norms(factor, power)
            self.known[key] = norms if min(norms) < max(norms) else norms[:1]
        return self.known[key]


def _norms(factor: Factor, power: int) -> list[int]:
    """Return sum_i |F_ij|^power for every column, in Python ints where int64 could wrap."""
    if factor.max_abs() ** power * factor.shape[0] < 1 << 63:
        return [int(v) for v in factor.column_norms(power)]
    columns = factor.dense().astype(object).T
    return [sum(abs(v) ** power for v in column) for column in columns]


def _without_constants(scale: int, vectors: dict[int, list[int]]) -> Term:
    """Move the vectors with equal entries into the scale: marginals have no others."""
    left = {}
    for i, vector in vectors.items():
        if len(vector) == 1:
            scale *= vector[0]
        else:
            left[i] = vector
    return scale, left


def _largest(terms: list[Term]) -> int:
    attributes = sorted({i for _, vectors in terms for i in vectors})
    distinct = {i: _distinct_columns(terms, i) for i in attributes}
    if math.prod(len(columns) for columns in distinct.values()) > SEARCH_LIMIT:
        return _sum_of_maxima(terms)
    total: Array = np.zeros((), dtype=object)
    for j, (scale, vectors) in enumerate(terms):
        term: Array = np.array(scale, dtype=object)
        for i in attributes:
            own = [column[j] for column in distinct[i]] if i in vectors else [1] * len(distinct[i])
            term = np.multiply.outer(term, np.array(own, dtype=object))
        total = total + term
    return int(np.max(total))


def _distinct_columns(terms: list[Term], i: int) -> list[tuple[int, ...]]:
    """Return the distinct tuples, one entry a term, that the codes of attribute i contribute."""
    present = [vectors.get(i) for _, vectors in terms]
    n = next(len(vector) for vector in present if vector is not None)
    filled = [[1] * n if vector is None else vector for vector in present]
    return list(dict.fromkeys(zip(*filled, strict=True)))


def _sum_of_maxima(terms: list[Term]) -> int:
    """Bound the sum from above; negative terms count at their least."""
    total = 0
    for scale, vectors in terms:
        pick = max if scale > 0 else min
        total += scale * math.prod(pick(vector) for vector in vectors.values())
    return total
