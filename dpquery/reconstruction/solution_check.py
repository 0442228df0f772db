"""Whether what reconstruction makes of a strategy's measurements is what its figures say.

Nothing here looks at data or at noisy values: the check is about the plan. Counts are drawn from a
public generator and measured without noise: every answer must come back. Then pure noise of known
size is reconstructed: the answers must vary as their standard errors say. A strategy that is too
ill-conditioned for floats fails, whatever its shape.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import chdtri, gammaincinv

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block, Workload
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.reconstruction.probes import OnDemand, Probes
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.weighted_block import WeightedBlock

MAX_BIAS = 1e-4  # of the standard error: how far an answer to exact counts may be off
LEAST_BIAS = 1e-12  # of all records: what no reader of an answer can see, at any epsilon
ANSWERS = 1 << 21  # looked at, in about equal shares for every item
TABLES = 2000  # looked at
MOST_DRAWS = 64  # of noise
DRAWN = 1 << 23  # numbers in all draws of noise, but for the first draw
BLOCK_COST = 1 << 14  # numbers that take as long as the steps of answering one block
FEW_DRAWS = 8  # below, the spread of draws says nothing of how far their mean may be off
FALSE_ALARM = 1e-9  # chance that an item of a sound strategy fails
SPREADS = 12  # standard errors of a mean over draws: far beyond what chance gives
UNSOLVED = "its equations cannot be solved in floating-point numbers"

KnownBlock = tuple[Block, int | None]
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
    checked: list[list[KnownBlock]] = []
    units: list[int] = []
    for places in items:
        blocks = [pairs[place] for place in places]
        chosen = probes.sample(blocks, answers=ANSWERS // len(items), most=TABLES)
        known = chosen if positions is None else [positions[place] for place in chosen]
        blocks_checked = (workload.blocks[place] for place in chosen)
        checked.append(list(zip(blocks_checked, known, strict=True)))
        units += [workload.units[place] for place in chosen]
    try:
        with np.errstate(all="ignore"):
            check = _Check(strategy, checked, noise_std, probes)
            return check.of_exact_answers(units) or check.of_noise()
    except (ArithmeticError, np.linalg.LinAlgError):
        return UNSOLVED


class _Check:
    """One strategy, the blocks of each item that are looked at, and their standard errors."""

    def __init__(
        self,
        strategy: Strategy,
        items: Sequence[Sequence[KnownBlock]],
        noise_std: float,
        probes: Probes,
    ) -> None:
        self.strategy, self.noise_std, self.probes = strategy, noise_std, probes
        self.checked = [pair for item in items for pair in item]
        self.ends = np.cumsum([len(item) for item in items])[:-1]
        self.std = _standard_errors(strategy, self.checked, noise_std)

    def of_exact_answers(self, units: Sequence[int]) -> str:
        """Return what is wrong with answers that are measured without noise.

        Args:
            units: of every block that is looked at, the most that one record adds to an answer.
        """
        measurements = self.strategy.measurements
        exact = OnDemand(len(measurements), lambda k: self._exact(measurements[k]))
        invisible, worst = LEAST_BIAS * float(self.probes.counts.sum()), 0.0
        answered = zip(self._answers(exact), self.checked, self.std, units, strict=True)
        for answers, (block, _), std, unit in answered:
            off = np.abs(answers - block.apply(self.probes.table(block)).ravel())
            bias = off - invisible * unit
            if not (np.isfinite(bias).all() and np.isfinite(std).all()):
                return UNSOLVED
            worst = max(worst, float(np.where(bias > 0, bias / std, 0.0).max()))
        if worst <= MAX_BIAS:
            return ""
        return f"an answer to exact counts is off by {worst:.2g} of its standard error"

    def _exact(self, rows: WeightedBlock) -> Floats:
        """Return the exact answers of a measurement, as the floats that they are solved in.

        Whole numbers of sums might not fit.
        """
        answers = float(rows.weight) * rows.block.apply(self.probes.table(rows.block))
        return np.asarray(answers.ravel())

    def of_noise(self) -> str:
        """Return what is wrong with the spread of the answers to pure noise.

        Held against chance are the largest answer of all, in standard errors, and of every item the
        mean square over draws: by its own spread over them, and by the law that it would have if
        all answers of the item were one number, which is the widest there is.
        """
        rows = sum(measured.block.queries for measured in self.strategy.measurements)
        numbers = rows + sum(block.queries for block, _ in self.checked)
        least = max(1, min(FEW_DRAWS, DRAWN // numbers))
        draws = DRAWN // (numbers + BLOCK_COST * len(self.checked))
        draws = min(MOST_DRAWS, max(least, draws))
        squares, largest = np.zeros((draws, len(self.ends) + 1)), 0.0
        for draw in range(draws):
            noise = self.probes.noise(self.noise_std)
            means = []
            for answers, std in zip(self._answers(noise), self.std, strict=True):
                square = np.where(
                    std > 0, (answers / std) ** 2, np.where(answers == 0, 1.0, np.inf)
                )
                largest = max(largest, float(square.max()))
                means.append(float(square.mean()))
            squares[draw] = [float(np.mean(part)) for part in np.split(np.array(means), self.ends)]
        if not largest <= chdtri(1, FALSE_ALARM / (draws * numbers)):
            return f"an answer is {math.sqrt(largest):.3g} of its standard errors off in one draw"
        ratio = _unlikely_mean(squares)
        if ratio is None:
            return ""
        return f"answers vary {math.sqrt(ratio):.2g} times as much as their standard errors say"

    def _answers(self, measured: Sequence[Floats]) -> Iterator[Floats]:
        estimates = reconstruct(self.strategy, measured)
        for block, position in self.checked:
            yield estimates.answer(block, position).ravel()


def _standard_errors(
    strategy: Strategy, checked: Sequence[KnownBlock], noise_std: float
) -> list[Floats]:
    """Return the standard errors of every block's answers, as a release states them."""
    uniform = strategy.uniform_variances([block for block, _ in checked])
    return [
        np.full(1, noise_std * math.sqrt(uniform[k]))
        if k in uniform
        else standard_errors(strategy, block, position=position, noise_std=noise_std)
        for k, (block, position) in enumerate(checked)
    ]


def _unlikely_mean(squares: Floats) -> float | None:
    """Return the mean square of an item that is not 1, chance aside. squares: (draws, items)."""
    draws = len(squares)
    # Quantiles of chi-squared as scipy.stats has them, which takes a second to import.
    low = 2 * gammaincinv(draws / 2, FALSE_ALARM) / draws
    high = chdtri(draws, FALSE_ALARM) / draws
    means = squares.mean(axis=0)
    wrong = ~((low <= means) & (means <= high))
    if draws >= FEW_DRAWS:
        spread = squares.std(axis=0, ddof=1) / math.sqrt(draws)
        wrong |= np.abs(means - 1) > SPREADS * spread + 0.01
    return float(means[wrong][0]) if wrong.any() else None
