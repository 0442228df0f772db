"""The rounds of an adaptive run: each draws a table and measures it, then a model is fitted again.

The interface of the model is stated here: it is public and sees noisy values alone.

A run is committed as one vector of int64, all counts in steps of 2^-10: the noisy tables of one
attribute, in the order of the candidates; then for each round the number of its table, its level,
and the noisy counts of the table, cell by cell in order. What a round cost follows from the levels
of all rounds up to it, which are committed for that: a model fitted anew on another machine may
differ in its last bits, and what was spent must not. The last round is the one that takes all that
is left. The model is never stored: it follows from this.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import accumulate
from typing import Protocol

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import LedgerError
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.accounting import guarantee as guarantee_of
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.ledger.store import PartialMeasurement
from dpquery.measurement.noise.exact_noise import source
from dpquery.measurement.query import Tables
from dpquery.measurement.release_key import adaptive_key
from dpquery.measurement.rounds.budget import (
    GRID_BITS,
    STEPS,
    AdaptiveBudget,
    RoundBudget,
    adaptive_budget,
)
from dpquery.measurement.rounds.queries import weighed_total
from dpquery.measurement.rounds.selection import Chance, ExactChance, draw_table, noise_norm
from dpquery.operators.blocks import marginal
from dpquery.operators.compile import CompiledSpec
from dpquery.progress import report_progress
from dpquery.spec.spec import Rows, Spec
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.strategy import WeightedBlock
from dpquery.version import __version__

ADAPTIVE_LAYOUT = "adaptive/1"
"""Named in the key of every run, beside all numbers of its mechanism.

Raise it with any change to what the same mechanism asks or commits: the grid, what a round costs,
when the level rises, the score of a table and the law of its draw, how the model is rounded, the
layout of a committed vector. See rap.rounds.LAYOUT.
"""


class TableFit(Protocol):
    """The interface of the model, the public side of a run, between two rounds.

    Privacy: it is given noisy values only, so all it does is post-processing.
    """

    def table(self, attributes: Subset) -> Floats:
        """Return the table over ascending attributes, in counts: one axis an attribute."""
        ...

    def add(self, attributes: Subset, noisy: Floats, std: float) -> None:
        """Add a measured table to what is fitted, and fit again.

        Args:
            attributes: of the table, ascending.
            noisy: (cells,) counts.
            std: the standard deviation of their noise, in counts.
        """
        ...


@dataclass(frozen=True, eq=False)
class MeasuredRound:
    """The table of one round; public.

    Attributes:
        number: of the candidate.
        level: of the round, which says what it cost.
        noisy: (cells,) noisy counts, multiples of 2^-10.
        budget: what it spent.
    """

    number: int
    level: int
    noisy: Floats
    budget: RoundBudget


@dataclass(frozen=True, eq=False)
class AdaptiveMeasurement:
    """The noisy values of an adaptive run; public, and the model follows from them.

    Attributes:
        total: the number of records that answers are scaled to, at least 1.
        total_std: standard deviation of the noise of their noisy number; 0 where it was declared.
        one_way: noisy counts of the tables of one attribute, in the order of the candidates.
        one_way_std: standard deviation of their noise, in counts.
        rounds: in order.
    """

    total: float
    total_std: float
    one_way: tuple[Floats, ...]
    one_way_std: float
    rounds: tuple[MeasuredRound, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether its last round is there."""
        return bool(self.rounds) and self.rounds[-1].budget.last


def run_tables(
    tables: Callable[[int], Ints],
    *,
    budget: AdaptiveBudget,
    fit: TableFit,
    chance: Chance,
    done: Sequence[MeasuredRound] = (),
) -> Iterator[MeasuredRound]:
    """Yield every round as it is measured, before the model is given it.

    It is a generator: nothing happens but by iterating over it, and the model is given the last
    round when the iteration ends.

    Args:
        tables: true counts of the candidate of a number, (cells,).
        budget: what rounds spend, from `adaptive_budget`.
        fit: the model of the tables of one attribute.
        chance: draws tables and noise.
        done: rounds of an earlier run that was cut short; the model is given them, and they are
            neither drawn again nor yielded.

    Privacy:
        All rounds together are budget.rounds_rho-zCDP, for neighbours as the budget has them: each
        is a draw and a measurement whose parameters follow from earlier rounds, and their rho add
        up to that whatever the levels. See `rap.rounds.run_rounds` of what is made durable when.
    """
    subsets, sizes = budget.candidates.subsets, budget.candidates.sizes
    left, level = budget.rounds_rho, 0
    for number in range(budget.most_rounds):
        if number < len(done):
            this_round = done[number]
        else:
            this_round = _measured(tables, budget, budget.round(level, left), level, fit, chance)
            yield this_round
        spent, attributes = this_round.budget, subsets[this_round.number]
        before = fit.table(attributes)
        fit.add(attributes, this_round.noisy, spent.std)
        if spent.last:
            return
        moved = float(np.abs(fit.table(attributes) - before).sum())
        level = this_round.level + (moved <= noise_norm(spent.std, sizes[this_round.number]))
        left -= spent.rho


@dataclass(frozen=True, eq=False)
class AdaptiveQuery:
    """The query of a whole adaptive run, charged as one; all of it is public.

    Attributes:
        spec: declares dataset, columns, domain and unit.
        compiled: the workload, and the classes that are counted.
        budget: from `adaptive_budget`, for this workload.
        release: number of the release; another number draws fresh noise and pays for it.
        start: returns the model of the tables of one attribute.
    """

    spec: Spec
    compiled: CompiledSpec
    budget: AdaptiveBudget
    release: int
    start: Callable[[AdaptiveMeasurement], TableFit]

    @cached_property
    def key(self) -> str:
        """Return the ledger's key: queries of one key are one release, charged once."""
        return adaptive_key(
            self.spec,
            self.compiled,
            budget=self.budget,
            layout=ADAPTIVE_LAYOUT,
            release=self.release,
        )

    @property
    def guarantee(self) -> Guarantee:
        """The privacy guarantee of the whole query, which is charged."""
        return self.budget.guarantee

    @property
    def option(self) -> str:
        """The option of a release that asks for adaptive measurement, whatever the plan prefers."""
        return "--mechanism adaptive"

    def guarantee_at(self, epsilon: Fraction) -> Guarantee:
        """Return the guarantee of the same run at another epsilon and the same delta."""
        asked = guarantee_of("gaussian", epsilon=epsilon, delta=self.guarantee.delta)
        privacy, rows = self.spec.privacy, self.spec.dataset.rows
        workload = self.compiled.workload
        return adaptive_budget(workload, privacy=privacy, guarantee=asked, rows=rows).guarantee

    @property
    def subsets(self) -> list[Subset]:
        """The attribute subsets whose tables are counted."""
        return list(self.budget.candidates.subsets)

    def source(self) -> str:
        """Return the names and versions of the noise sources."""
        candidates, kind = self.budget.candidates, self.guarantee.kind
        sizes = {sum(candidates.sizes[: candidates.one_way]), *candidates.sizes}
        sources = sorted({source(size, kind) for size in sizes})
        return f"{' and '.join(sources)}, and dpquery {__version__} to select"

    def noisy(self, tables: Tables, *, draft: PartialMeasurement) -> Ints:
        """Return the noisy tables, each in the draft before the model sees it.

        Chance is always the exact one.
        """
        chance, parts, subsets = ExactChance(), self._parts(draft), self.budget.candidates.subsets

        @cache  # every round reads all of them
        def exact(number: int) -> Ints:
            block = marginal(self.compiled.workload.shape_of_domain, subsets[number])
            return exact_answers(WeightedBlock(1, block), tables[block.attributes], shift=0)

        if not parts:
            parts = [noisy_one_way(exact, self.budget, chance)]
            draft.append(parts[0])
        measured = decoded_run(parts, self.budget, self.spec.dataset.rows)
        if measured.finished:
            return np.concatenate(parts)
        rounds = run_tables(
            exact,
            budget=self.budget,
            fit=self.start(measured),
            chance=chance,
            done=measured.rounds,
        )
        for this_round in rounds:
            parts.append(encoded_round(this_round))
            draft.append(parts[-1])
            report_progress(f"adaptive measurement: {len(parts) - 1} measured")
            if this_round.budget.last:
                break  # it is not fitted here: reconstruction fits it, from the ledger
        return np.concatenate(parts)

    def _parts(self, draft: PartialMeasurement) -> list[Ints]:
        """Return the parts that an earlier run left; LedgerError where no run leaves such."""
        parts = draft.parts()
        try:
            if parts:
                decoded_run(parts, self.budget, self.spec.dataset.rows)
        except ValueError:
            raise LedgerError(
                f"the parts of the unfinished measurement {self.key} are damaged; "
                "`dpquery ledger abandon` it: its charge stays spent, and a new run pays anew"
            ) from None
        return parts


def measured_tables(query: AdaptiveQuery, values: Ints) -> AdaptiveMeasurement:
    """Return what a committed vector holds.

    Raises:
        ValueError: it is not of the layout of this query, or does not spend its rho exactly.
    """
    candidates, parts = query.budget.candidates, []
    end = sum(candidates.sizes[: candidates.one_way])
    parts.append(values[:end])
    while end < len(values):
        number = int(values[end])
        if not 0 <= number < len(candidates.sizes):
            raise ValueError("a table that is no candidate")
        start, end = end, end + 2 + candidates.sizes[number]
        parts.append(values[start:end])
    measured = decoded_run(parts, query.budget, query.spec.dataset.rows)
    if not measured.finished:
        raise ValueError("these values do not spend what was charged")
    return measured


def noisy_one_way(tables: Callable[[int], Ints], budget: AdaptiveBudget, chance: Chance) -> Ints:
    """Return the tables of one attribute with noise, in grid steps: (cells of all,)."""
    exact = np.concatenate([tables(number) for number in range(budget.candidates.one_way)])
    return chance.add_noise(
        exact << GRID_BITS,
        budget=budget.part(budget.one_way_rho),
        sensitivity=budget.squared_sensitivity(budget.candidates.one_way),
        scale=budget.one_way_scale,
    )


def encoded_round(measured: MeasuredRound) -> Ints:
    """Return the part of a committed vector that holds a round."""
    steps = np.asarray(np.rint(measured.noisy * STEPS), dtype=np.int64)
    return np.concatenate([np.array([measured.number, measured.level], dtype=np.int64), steps])


def decoded_run(
    parts: Sequence[Ints], budget: AdaptiveBudget, rows: Rows | None
) -> AdaptiveMeasurement:
    """Return the tables in the parts of a run, which may have rounds to come.

    Raises:
        ValueError: no run under this budget has such parts.
    """
    candidates = budget.candidates
    first, *rest = parts
    sizes = candidates.sizes[: candidates.one_way]
    if len(first) != sum(sizes):
        raise ValueError("tables of one attribute that are none")
    one_way = np.split(first / STEPS, list(accumulate(sizes))[:-1])
    rounds: list[MeasuredRound] = []
    left, level = budget.rounds_rho, 0
    for values in rest:
        number, now = (int(value) for value in values[:2]) if len(values) > 2 else (-1, 0)
        known = 0 <= number < len(candidates.sizes)
        if not known or len(values) != 2 + candidates.sizes[number] or left == 0:
            raise ValueError("a round that is none")
        if now not in ({level, level + 1} if rounds else {0}):
            raise ValueError("a level that no round after the one before has")
        spent = budget.round(now, left)
        rounds.append(MeasuredRound(number, now, values[2:] / STEPS, spent))
        left, level = left - spent.rho, now
    total, total_std = _total(one_way, budget, rows)
    return AdaptiveMeasurement(total, total_std, tuple(one_way), budget.one_way_std, tuple(rounds))


def _total(
    one_way: Sequence[Floats], budget: AdaptiveBudget, rows: Rows | None
) -> tuple[float, float]:
    """Return the number of records, and the standard deviation of the noise it was counted with.

    Every table of one attribute has a noisy sum, whose variance grows with its cells; their mean,
    weighed by precision, is weighed again with what was declared: see `rap.rounds.weighed_total`.

    Privacy:
        Post-processing: of committed values and of public ones.
    """
    if budget.total is not None:
        return float(max(1, budget.total)), 0.0
    precisions = [1 / len(noisy) for noisy in one_way]
    counted = float(np.average([noisy.sum() for noisy in one_way], weights=precisions))
    std = budget.one_way_std / sum(precisions) ** 0.5
    return weighed_total(counted, std, rows), std


def _measured(
    tables: Callable[[int], Ints],
    budget: AdaptiveBudget,
    spent: RoundBudget,
    level: int,
    fit: TableFit,
    chance: Chance,
) -> MeasuredRound:
    """Return one round: a table drawn and measured; holds true values on the way."""
    subsets = budget.candidates.subsets
    number = draw_table(
        tables,
        lambda each: fit.table(subsets[each]).ravel(),
        candidates=budget.candidates,
        std=spent.std,
        rate=spent.rate,
        chance=chance,
    )
    noisy = chance.add_noise(
        tables(number) << GRID_BITS,
        budget=budget.part(spent.measurement_rho),
        sensitivity=budget.squared_sensitivity(1),
        scale=spent.scale,
    )
    return MeasuredRound(number, level, noisy / STEPS, spent)
