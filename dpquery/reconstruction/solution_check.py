"""Whether what reconstruction makes of a strategy's measurements is what its figures say.

Nothing here looks at data or at noisy values: the check is about the plan. Counts are drawn from a
public generator and measured without noise: every answer must come back. Then pure noise of known
size is reconstructed: the answers must vary as their standard errors say. A strategy that is too
ill-conditioned for floats fails, whatever its shape.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import chi2

from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import Array
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.reconstruction.probes import Probes
from dpquery.strategy.errors.uniform_variances import uniform_variances
from dpquery.strategy.shapes.strategies import Strategy

OFF = 1e-4  # of the standard error: how far an answer without noise may be off
INVISIBLE = 1e-12  # of all records: what no reader of counts can see, at any epsilon
ANSWERS = 1 << 21  # looked at, in about equal shares for every item
TABLES = 2000  # looked at
MOST_DRAWS = 64  # of noise; fewer where there are many numbers
CHANCE = 1e-9  # that the noise of a sound item seems too large, or too small

Asked = tuple[Block, int | None]
"""A block to be answered, and its position in the workload that the strategy was made for."""


def flaw_of(
    strategy: Strategy,
    workload: Workload,
    *,
    items: Sequence[Sequence[int]],
    noise_std: float,
    positions: Sequence[int | None] | None = None,
) -> str:
    """Return what is wrong with the answers from a strategy, in words; nothing where it is sound.

    Args:
        strategy: what is measured.
        workload: what is answered from it.
        items: the places of the blocks of every item: some of each are looked at.
        noise_std: standard deviation of the noise on each measured row.
        positions: of the blocks in the workload that the strategy was made for; default: their own.
    """
    probes, pairs = Probes(strategy), list(enumerate(workload.blocks))
    asked: list[list[Asked]] = []
    for places in items:
        blocks = [pairs[place] for place in places]
        chosen = probes.sample(blocks, answers=ANSWERS // len(items), most=TABLES)
        own = chosen if positions is None else [positions[place] for place in chosen]
        asked.append([(workload.blocks[k], at) for k, at in zip(chosen, own, strict=True)])
    try:
        check = _Check(strategy, asked, noise_std, probes)
        return check.of_exact_answers() or check.of_noise()
    except (ArithmeticError, np.linalg.LinAlgError):
        return "its equations cannot be solved in floating-point numbers"


class _Check:
    """One strategy, the blocks of each item that are looked at, and their standard errors."""

    def __init__(
        self,
        strategy: Strategy,
        items: Sequence[Sequence[Asked]],
        noise_std: float,
        probes: Probes,
    ) -> None:
        self.strategy, self.noise_std, self.probes = strategy, noise_std, probes
        self.asked = [pair for item in items for pair in item]
        self.ends = np.cumsum([len(item) for item in items])[:-1]
        self.std = _standard_errors(strategy, self.asked, noise_std)

    def of_exact_answers(self) -> str:
        """Return what is wrong with answers that are measured without noise."""
        exact = [
            (rows.weight * rows.block.apply(self.probes.table(rows.block))).ravel()
            for rows in self.strategy.measurements
        ]
        least = INVISIBLE * float(self.probes.counts.sum())
        worst = 0.0
        for answers, (block, _), std in zip(
            self._answers(exact), self.asked, self.std, strict=True
        ):
            off = np.abs(answers - block.apply(self.probes.table(block)).ravel())
            if not np.isfinite(off).all():
                return "its equations cannot be solved in floating-point numbers"
            worst = max(worst, float((np.maximum(off - least, 0.0) / std).max()))
        if worst <= OFF:
            return ""
        return f"an answer to exact counts is off by {worst:.2g} of its standard error"

    def of_noise(self) -> str:
        """Return what is wrong with the spread of the answers to pure noise."""
        sizes = [rows.block.queries for rows in self.strategy.measurements]
        numbers = sum(sizes) + sum(block.queries for block, _ in self.asked)
        draws = min(MOST_DRAWS, max(1, ANSWERS // numbers))
        squares = np.zeros(len(self.asked))
        for _ in range(draws):
            noise = [self.noise_std * values for values in self.probes.noise()]
            pairs = zip(self._answers(noise), self.std, strict=True)
            squares += [float(np.mean((answers / std) ** 2)) / draws for answers, std in pairs]
        low, high = chi2.ppf(CHANCE, draws) / draws, chi2.isf(CHANCE, draws) / draws
        means = [float(part.mean()) for part in np.split(squares, self.ends)]
        wrong = [mean for mean in means if not low <= mean <= high]
        if not wrong:
            return ""
        return (
            f"answers vary {math.sqrt(max(wrong)):.2g} times as much as their standard errors say"
        )

    def _answers(self, measured: Sequence[Array]) -> Iterator[Array]:
        estimates = reconstruct(self.strategy, measured)
        for block, position in self.asked:
            yield estimates.answer(block, position).ravel()


def _standard_errors(strategy: Strategy, asked: Sequence[Asked], noise_std: float) -> list[Array]:
    """Return the standard errors of every block's answers, as a release states them."""
    uniform = uniform_variances(strategy, [block for block, _ in asked])
    return [
        np.full(1, noise_std * math.sqrt(uniform[k]))
        if k in uniform
        else standard_errors(strategy, block, position=position, noise_std=noise_std)
        for k, (block, position) in enumerate(asked)
    ]
