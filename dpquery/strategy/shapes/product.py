"""A Kronecker product of one integer factor for each attribute (OPT_x, Identity)."""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_DENSE_CLASSES, MAX_FOURTH_POWERS
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.factors import Factor, Identity, Ones
from dpquery.operators.inverses import (
    Inverse,
    inverse_array,
    inverse_gram,
    inverse_times,
    least_squares,
    quadratic,
)
from dpquery.operators.trees import Tree
from dpquery.strategy.algebra.marginal_algebra import distinct_or_all
from dpquery.strategy.algebra.query_pairs import QueryPairs, SymmetricForm
from dpquery.strategy.algebra.row_sums import RowTerms
from dpquery.strategy.algebra.threshold_powers import counts, mixed_powers
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.factor_json import decode_factor, encode_factor
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.weighted_block import WeightedBlock, resolution
from dpquery.untrusted.json_values import Json, JsonValue, list_of, mapping

PSEUDO_INVERSE_ENTRIES = 1 << 26  # entries of a pseudo-inverse held at once: half a gigabyte


@dataclass(frozen=True, eq=False)
class ProductStrategy(Strategy):
    """kron_i A_i, one integer factor for each attribute: of full column rank, or the total."""

    kind: ClassVar[str] = "product"

    factors: tuple[Factor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(factor.shape[1] for factor in self.factors))

    @cached_property
    def attributes(self) -> tuple[int, ...]:
        """Attributes that are measured; the others have one class or are summed over."""
        return tuple(
            i
            for i, factor in enumerate(self.factors)
            if factor.shape[1] > 1 and not isinstance(factor, Ones)
        )

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """The one product, scaled up where its entries are small."""
        factors = {i: self.factors[i] for i in self.attributes}
        entry = math.prod(factor.max_abs() for factor in factors.values())
        return (WeightedBlock(resolution(entry), product(self.shape, factors)),)

    @cached_property
    def inverses(self) -> dict[int, Inverse]:
        """(A_i'A_i)^-1 of every measured attribute whose factor is not the identity."""
        return {
            i: inverse_gram(self.factors[i])
            for i in self.attributes
            if not isinstance(self.factors[i], Identity)
        }

    def recover(self, i: int, answers: Floats) -> Floats:
        """Return A_i^+ times answers. answers: (m_i, k) -> (n_i, k)."""
        if i not in self.inverses:
            return answers
        return self._solvers[i](answers)

    @cached_property
    def _solvers(self) -> dict[int, Callable[[Floats], Floats]]:
        return {i: least_squares(self.factors[i]) for i in self.inverses}

    @cached_property
    def pseudo_inverses(self) -> dict[int, Floats]:
        """A_i^+ of the same attributes, written out: (n_i, m_i)."""
        return {i: self.factors[i].matmat(inverse_array(M)).T for i, M in self.inverses.items()}

    @property
    def written_factors(self) -> tuple[Factor, ...]:
        return self.factors

    def supports(self, block: Block) -> bool:
        return all(i in self.attributes or self.shape[i] == 1 for i in block.attributes)

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowTerms | None:
        """Return sums of powers of coefficients; None where these take more than they are worth.

        That is where an order above 2 looks at every query of an attribute on too many rows, or at
        an inverse that is too large to be written out.
        """
        if order > 2 and any(
            self._takes_long(i, factor)
            for i, factor in zip(block.attributes, block.factors, strict=True)
        ):
            return None
        if not self.supports(block):
            raise UnsupportedWorkloadError("the strategy sums over an attribute that is asked for")
        outside = 1.0
        for i in self.attributes:
            if i not in block.attributes:
                outside *= self._total_power(i, order)
        outside /= float(self.measurements[0].weight) ** order
        forms = [
            {c: distinct_or_all(form) for c, form in self._forms(i, factor, order, needed).items()}
            for i, factor, needed in zip(
                block.attributes, block.factors, counts(block, order), strict=True
            )
        ]
        return [(outside * coef, vectors) for coef, vectors in mixed_powers(block, forms, order)]

    def covariances(self, pairs: QueryPairs) -> Floats:
        return pairs.over_products(self._covariances)

    def _covariances(self, pairs: QueryPairs) -> Floats:
        """Return prod_i q_i (A_i'A_i)^-1 r_i' of pairs of rows of products."""
        if not (self.supports(pairs.left.block) and self.supports(pairs.right.block)):
            raise UnsupportedWorkloadError("the strategy sums over an attribute that is asked for")
        forms = {i: self._form_of_pairs(i) for i in self.attributes}
        return pairs.product_of(forms) / float(self.measurements[0].weight) ** 2

    def _form_of_pairs(self, i: int) -> SymmetricForm:
        if i not in self.inverses:
            return SymmetricForm(lambda X: X, lambda factor: factor.row_squares)
        inverse = self.inverses[i]
        return SymmetricForm(
            partial(inverse_times, inverse), lambda factor: quadratic(factor, inverse)
        )

    def _takes_long(self, i: int, queries: Factor) -> bool:
        """Return whether powers of the coefficients of an attribute's queries take minutes."""
        if i not in self.inverses:
            return False
        m, n = self.factors[i].shape
        in_pieces = isinstance(self.factors[i], Tree)
        too_long = m * n > PSEUDO_INVERSE_ENTRIES if in_pieces else n > MAX_DENSE_CLASSES
        return too_long or queries.shape[0] * m > MAX_FOURTH_POWERS

    def _total_power(self, i: int, order: int) -> float:
        """Return sum_r c_r^order for the total query of one attribute."""
        if isinstance(self.factors[i], Identity):
            return float(self.shape[i])
        return float((self._of_total(i) ** order).sum())

    def _of_total(self, i: int) -> Floats:
        """Return the coefficients A_i (A_i'A_i)^-1 1 of the total query of one attribute."""
        ones = np.ones((self.shape[i], 1))
        return self.factors[i].matmat(inverse_times(self.inverses[i], ones))[:, 0]

    def _forms(self, i: int, factor: Factor, order: int, counts: list[int]) -> dict[int, Floats]:
        """Return, for each count c, sum_r f_r^c t_r^(order - c) of every row.

        f is the coefficient vector of the row's predicate and t that of the total: the two that an
        r-of-k block mixes. An attribute of one class is not measured; its coefficients are row
        sums.
        """
        if i not in self.attributes:
            sums = factor.row_sums.astype(np.float64)
            return {c: sums**c for c in counts}
        if isinstance(self.factors[i], Identity):
            return {c: factor.row_powers(c) for c in counts}
        if counts == [2] and order == 2:
            return {2: quadratic(factor, self.inverses[i])}
        powers: dict[int, Floats] = {c: np.zeros(factor.shape[0]) for c in counts}
        for rows, plus in self._pseudo_inverse(i):
            if counts == [order]:
                powers[order] += factor.row_power_sums(plus, order)
                continue
            f, t = factor.matmat(plus), self._of_total(i)[rows]
            for c in counts:
                powers[c] += ((f**c) * t ** (order - c)).sum(axis=1)
        return powers

    def _pseudo_inverse(self, i: int) -> Iterator[tuple[slice, Floats]]:
        """Yield A_i^+ of an attribute, some columns at a time: which, and (n_i, columns)."""
        m, n = self.factors[i].shape
        if m * n <= PSEUDO_INVERSE_ENTRIES:
            yield slice(None), self.pseudo_inverses[i]
            return
        step = max(1, PSEUDO_INVERSE_ENTRIES // m)
        for start in range(0, m, step):
            rows = slice(start, min(start + step, m))
            units = np.zeros((m, rows.stop - start))
            units[rows] = np.eye(rows.stop - start)
            yield rows, inverse_times(self.inverses[i], self.factors[i].rmatmat(units))

    def encode_parameters(self) -> dict[str, JsonValue]:
        return {"factors": [encode_factor(factor) for factor in self.factors]}

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        pairs = zip(list_of(encoded["factors"]), workload.shape_of_domain, strict=True)
        return cls(name, noise, tuple(decode_factor(mapping(factor), n) for factor, n in pairs))
