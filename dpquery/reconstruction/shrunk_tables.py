"""The best guess at every table of a release, and how far off it is expected to be.

Each table is shrunk component by component (shrinkage), then all are moved to the nearest tables
that agree and have no negative cell (NonnegativeTables). What follows has no interval: its error
depends on the data, and the posterior's intervals do not hold their level. The mean square error
over all answers can be estimated from the noisy values alone ([Stein81]): with y the unbiased
answers, C the covariance of their noise and f(y) the guesses,
    E |f(y) - truth|^2 = E [|f(y) - y|^2 - tr C + 2 tr(C df/dy)],
the last term by one more noise draw d of the same law: d'(f(y + h d) - f(y)) / h ([RBU08]).
"""

import math
from collections.abc import Sequence

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block, marginal
from dpquery.operators.factors import Factor, Groups, Stacked
from dpquery.operators.ranges import Ranges
from dpquery.public_chance import public_generator, public_seed
from dpquery.reconstruction.agreeing_tables import NonnegativeTables
from dpquery.reconstruction.components import (
    StackedSets,
    component_noise,
    fittable_tables,
    noise_of_tables,
    shrunk_components,
    varying,
)
from dpquery.reconstruction.least_squares import Estimates, reconstruct
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.strategy import Strategy

PROBE_STEP = 0.01  # of the noise: small enough that cells seldom pass zero on the way


def not_shrunk(block: Block) -> str:
    """Return why the answers of a block are not shrunk; nothing where they are.

    Only what counts disjoint cells, and their totals, is: noise of other answers is far smaller
    than that of the cells that they add up, and the sums of shrunk cells would err more.
    """
    if not block.is_product or any(map(_overlaps, block.factors)):
        return "its queries overlap, and sums of shrunk cells err more than their estimates"
    return ""


def _overlaps(factor: Factor) -> bool:
    """Return whether ranges, or groups, of one set hold the same code."""
    if isinstance(factor, Stacked):
        return any(map(_overlaps, factor.parts))
    return isinstance(factor, Ranges | Groups) and int(factor.column_norms(1).max()) > 1


class ShrunkTables:
    """The guesses at all tables that can be shrunk, block by block."""

    def __init__(
        self,
        strategy: Strategy,
        noisy: Sequence[Floats],
        blocks: Sequence[Block],
        *,
        noise_std: float,
    ) -> None:
        self.scope = fittable_tables(strategy, blocks, not_shrunk)
        self._strategy, self._noisy, self._noise_std = strategy, noisy, noise_std
        self._blocks = blocks
        self._subsets = dict(zip(blocks, self.scope.subsets, strict=True))
        self._sets = StackedSets(strategy.shape, self.scope.sets)
        noise_of = noise_of_tables(strategy, noise_std=noise_std)
        self._noise = component_noise(self._sets, noise_of)
        self._tables = self._fit(reconstruct(strategy, noisy))

    def answer(self, block: Block) -> Floats | None:
        """Return the answers of a block, of shape block.row_shape; None where it has none."""
        if self._subsets.get(block) is None:
            return None
        return _answer(self._tables, block)

    def expected_rmse(self, counted: Sequence[int]) -> float | None:
        """Return the estimated root mean square error of the answers of some blocks, in counts.

        Returns:
            None where no such table was shrunk, or noise hides the error. The estimate has an
            error itself: see docs/benchmarks.md.
        """
        places = [k for k in counted if self.scope.subsets[k] is not None]
        if not places:
            return None
        chance = public_generator(public_seed(("shrunk", self._strategy.shape, len(self._blocks))))
        probe = [chance.normal(0.0, self._noise_std, values.shape) for values in self._noisy]
        moved = [
            values + PROBE_STEP * noise for values, noise in zip(self._noisy, probe, strict=True)
        ]
        unbiased = reconstruct(self._strategy, self._noisy)
        noise_only = reconstruct(self._strategy, probe)
        moved_tables = self._fit(reconstruct(self._strategy, moved))
        total, queries = 0.0, 0
        for place in places:
            block = self._blocks[place]
            guess = _answer(self._tables, block)
            change = (_answer(moved_tables, block) - guess) / PROBE_STEP
            total += float(np.sum((guess - unbiased.answer(block, None)) ** 2))
            total += 2 * float(np.sum(noise_only.answer(block, None) * change))
            total -= self._noise_std**2 * total_of(
                self._strategy.variances(block, position=None), block
            )
            queries += block.queries
        return math.sqrt(total / queries) if total > 0 else None

    def _fit(self, estimates: Estimates) -> NonnegativeTables:
        shape = self._strategy.shape

        def table_of(subset: Subset) -> Floats:
            return estimates.answer(marginal(shape, subset), None)

        components = shrunk_components(self._sets, table_of, self._noise)
        tables = NonnegativeTables(components)
        tables.improve()
        return tables


def _answer(tables: NonnegativeTables, block: Block) -> Floats:
    return block.apply(tables.table(varying(block)).reshape(block.table_shape))
