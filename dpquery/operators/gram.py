"""The Gram V = sum_blocks weight W'W of a workload, as a sum of Kronecker products.

Strategy selection sees the workload through this alone: the error of any linear strategy is
tr((A'A)^-1 V). Each attribute keeps its few distinct matrices once; a term names one for each.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpquery.operators.blocks import Block, Workload, kron_apply
from dpquery.operators.factors import Array


@dataclass(frozen=True, eq=False)
class Gram:
    """V = sum_j weights[j] kron_i matrices[i][index[j, i]].

    Attributes:
        shape_of_domain: sizes of the attributes.
        weights: (k,) coefficient of each term; negative ones come from signed blocks.
        index: (k, d) which matrix of each attribute a term takes; 0 is always 11'.
        matrices: for each attribute its distinct (n_i, n_i) arrays. Terms of signed blocks may take
            matrices that are not symmetric; the sum is.
    """

    shape_of_domain: tuple[int, ...]
    weights: Array
    index: Array
    matrices: tuple[tuple[Array, ...], ...]

    def matvec(self, x: Array) -> Array:
        """Return V x. x: (N,)."""
        tensor = x.reshape(self.shape_of_domain)
        out = np.zeros(self.shape_of_domain)
        for weight, row in zip(self.weights, self.index, strict=True):
            matrices = [own[j] for own, j in zip(self.matrices, row, strict=True)]
            out += weight * kron_apply([matrix.__matmul__ for matrix in matrices], tensor)
        return out.ravel()

    def dense(self) -> Array:
        """Return V as an (N, N) array: for small domains."""
        total = np.zeros((1, 1))
        for weight, row in zip(self.weights, self.index, strict=True):
            term = np.ones((1, 1)) * weight
            for own, j in zip(self.matrices, row, strict=True):
                term = np.kron(term, own[j])
            total = total + term
        return total

    def traces(self, inverses: list[Array | None]) -> list[Array]:
        """Return tr(M_i V_iu) for each attribute i and each of its matrices u; None is identity."""
        return [
            np.array([np.trace(V) if M is None else np.sum(M * V) for V in own])
            for M, own in zip(inverses, self.matrices, strict=True)
        ]

    def term_traces(self, traces: list[Array]) -> Array:
        """Return the (k, d) factors of each term's trace from `traces`."""
        return np.stack([own[self.index[:, i]] for i, own in enumerate(traces)], axis=1)

    @cached_property
    def trace(self) -> float:
        """tr(V): the squared error of the identity strategy at unit noise."""
        none: list[Array | None] = [None] * len(self.matrices)
        return float(self.weights @ self.term_traces(self.traces(none)).prod(axis=1))


class _Attribute:
    """Collects the distinct matrices of one attribute."""

    def __init__(self, n: int) -> None:
        self.matrices = [np.ones((n, n))]
        self.places: dict[Hashable, int] = {}

    def place(self, block: Block, i: int, left: bool, right: bool) -> int:
        factor = block.factors[i]
        if not (left or right) and factor.shape[0] == 1:
            return 0
        key = (factor.key, left, right)
        if key not in self.places:
            self.places[key] = len(self.matrices)
            self.matrices.append(_cross_gram(block, i, left, right))
        return self.places[key]


def _cross_gram(block: Block, i: int, left: bool, right: bool) -> Array:
    """Return L'R, where L and R are factor i or, outside the term, all ones."""
    factor = block.factors[i]
    m, n = factor.shape
    if left and right:
        return factor.gram()
    columns = factor.rmatvec(np.ones(m, dtype=factor.dtype)).astype(np.float64)
    ones = np.ones(n)
    if left:
        return np.outer(columns, ones)
    return np.outer(ones, columns) if right else np.full((n, n), float(m))


def gram(workload: Workload) -> Gram:
    """Return the Gram of a workload. Equal terms are merged."""
    attributes = [_Attribute(n) for n in workload.shape_of_domain]
    terms: dict[tuple[int, ...], float] = {}
    for weight, block in zip(workload.weights, workload.blocks, strict=True):
        for left_coef, left in block.terms:
            for right_coef, right in block.terms:
                row = [0] * len(attributes)
                for i, (axis, u, v) in enumerate(zip(block.attributes, left, right, strict=True)):
                    row[axis] = attributes[axis].place(block, i, u, v)
                key = tuple(row)
                terms[key] = terms.get(key, 0.0) + weight * left_coef * right_coef
    return Gram(
        workload.shape_of_domain,
        np.array(list(terms.values())),
        np.array(list(terms), dtype=np.int64).reshape(len(terms), len(attributes)),
        tuple(tuple(attribute.matrices) for attribute in attributes),
    )


def is_mixture(V: Array) -> bool:
    """Return whether V = a I + b 11', the Grams of the marginal algebra."""
    n = len(V)
    mixture = np.full((n, n), V[0, -1])
    np.fill_diagonal(mixture, V[0, 0])
    return bool(np.allclose(V, mixture, rtol=1e-10, atol=0))
