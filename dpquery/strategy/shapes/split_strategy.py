"""Strategies that split every attribute into a level and a remainder: marginals and residuals."""

# ruff: noqa: D102 (a method of a base class or protocol is described there)

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Factor
from dpquery.strategy.algebra.marginal_algebra import distinct_or_all
from dpquery.strategy.algebra.query_pairs import QueryPairs, SymmetricForm, sums_of_pairs
from dpquery.strategy.algebra.row_sums import RowTerms
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.algebra.threshold_powers import SplitPowers
from dpquery.strategy.shapes.splits import Split
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.uniform_variances import uniform_variances

Rest = Callable[[Factor], Floats]
"""q H q' of every query on one attribute, or the sum of higher powers of q R."""


class SplitStrategy(Strategy):
    """Estimates are sums of components, one for each set of attributes, which are independent."""

    @property
    @abstractmethod
    def splits(self) -> Sequence[Split | None]:
        """The split of every attribute's queries; there may be none for one class."""

    @abstractmethod
    def component_variance(self, b: Subset) -> float:
        """Return the variance of what is measured of b beyond its subsets, under unit noise.

        Raises:
            UnsupportedWorkloadError: no measurement holds all attributes of b.
        """

    def uniform_variances(self, blocks: Iterable[Block]) -> dict[int, float]:
        splits = [
            None if n == 1 else split for n, split in zip(self.shape, self.splits, strict=True)
        ]
        return uniform_variances(splits, self.component_variance, blocks)

    def covariances(self, pairs: QueryPairs) -> Floats:
        if not (self.supports(pairs.left.block) and self.supports(pairs.right.block)):
            raise UnsupportedWorkloadError("no measurement holds the attributes that are asked for")
        return pairs.over_products(self._covariances)

    def _covariances(self, pairs: QueryPairs) -> Floats:
        """Return the sum over the b that both queries look at of what they share in b.

        That is share_b prod_{i in b} q_i H_i r_i' times the levels of all other predicates.
        """
        apart: Floats = np.ones(())
        shared: list[tuple[int, Floats]] = []
        insides: dict[tuple[int, int], Floats] = {}
        blocks = pairs.left.block, pairs.right.block
        for i in sorted({i for block in blocks for i in block.attributes}):
            (F, rows), (G, others) = sides = pairs.sides(i)
            split = self.splits[i]
            if split is None or self.shape[i] == 1:
                apart = apart * sums_of_pairs(*sides)
                continue
            level = split.levels(F)[rows] * split.levels(G)[others]
            if all(i in block.attributes for block in blocks):
                shared.append((i, level))
            else:
                apart = apart * level
        values = np.zeros(pairs.shape)
        for b in subsets_of(tuple(i for i, _ in shared)):
            term = self.component_variance(b) * apart
            for i, level in shared:
                if i not in b:
                    term = term * level
                    continue
                split = self.split_in(b, i)
                if (i, id(split)) not in insides:
                    form = SymmetricForm(split.remainder_times, split.variances)
                    insides[i, id(split)] = form.of_pairs(*pairs.sides(i))
                term = term * insides[i, id(split)]
            values += term
        return values

    def split_in(self, b: Subset, i: int) -> Split:
        """Return the split of an attribute of more than one class within component b."""
        split = self.splits[i]
        if split is None:
            raise ValueError(f"attribute {i} has one class and no split")
        return split

    def split_power_sums(
        self,
        block: Block,
        rests: Sequence[Rest | None],
        order: int,
        within: Mapping[Subset, Mapping[int, Rest]] = MappingProxyType({}),
    ) -> RowTerms:
        """Return the sum over b <= S of component b's share of every query's power sum.

        `within` has the rests that are not the same within a component as elsewhere.
        """
        terms: RowTerms = []
        for b, powers in split_terms(self.splits, rests, block, order=order, within=within):
            if powers:
                share = self.component_variance(b) ** (order / 2)
                terms += [(coef * share, vectors) for coef, vectors in powers]
        return terms


def split_terms(
    splits: Sequence[Split | None],
    rests: Sequence[Rest | None],
    block: Block,
    *,
    order: int,
    within: Mapping[Subset, Mapping[int, Rest]] = MappingProxyType({}),
) -> Iterator[tuple[Subset, RowTerms]]:
    """Yield every b <= S with prod_{i in b} rest_i prod_{i not in b} (q z)^order of every query.

    The rest is q H q', or the sum of higher powers of q R. Where an r-of-k block takes all ones
    instead of the predicate, q z is 1 and the rest is 0. `within` has other rests for some b.
    """
    levels, inside = [], {}
    factors = dict(zip(block.attributes, block.factors, strict=True))
    for i, factor in zip(block.attributes, block.factors, strict=True):
        split, rest = splits[i], rests[i]
        if split is None or rest is None or factor.shape[1] == 1:
            levels.append(distinct_or_all(factor.row_sums.astype(np.float64)))
        else:
            levels.append(distinct_or_all(split.levels(factor)))
            inside[i] = distinct_or_all(rest(factor))
    powers = SplitPowers(block, levels, inside, order=order)
    for b in subsets_of(tuple(inside)):
        if b not in within:
            yield b, powers.terms(b)
            continue
        changed = {i: distinct_or_all(rest(factors[i])) for i, rest in within[b].items()}
        yield b, SplitPowers(block, levels, inside | changed, order=order).terms(b)
