"""Whether floats can solve a strategy, and whether noise contradicts a public fact.

Nothing here looks at data or at noisy values: the check is about the plan. Counts are drawn from a
public generator and measured without noise: every answer must come back. Then pure noise of known
size is reconstructed: the answers must vary as their standard errors say. A strategy that is too
ill-conditioned for floats fails, whatever its shape.

Every limit is a quantile of chi-squared with the degrees of freedom that are there, and the chance
of a false alarm is shared out over all that is looked at: a sound strategy passes, however many
items, answers and draws there are.

Counts and noise are drawn from a generator whose seed goes with the strategy, so that the same plan
is tried the same way every time. Nothing here is private, and none of it protects anything.

What is known less what was estimated, decorrelated, is pure noise where the facts are true: n
values of variance one. The sum of their squares is chi-squared with n degrees of freedom under
Gaussian noise. Under Laplace noise each is a sum of Laplace variables; the reference is the sum of
squares of n of them, the law where every fact was measured by one value ([MATH] 25).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, chdtri, gammainc, gammaincc, gammaincinv

from dpquery.arrays import Floats, Ints, Numbers
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.cells import CellClassBlock
from dpquery.public_chance import public_generator, public_seed
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import Measured, MeasuredValues, discrepancies
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows
from dpquery.strategy.shapes.informed import InformedStrategy
from dpquery.strategy.strategy import Noise, Strategy, WeightedBlock

PROBED_CELLS = 512  # of the domain that hold records
MOST_RECORDS = 1 << 22  # in each of them: some 10^9 records in all
ON_DEMAND = 1 << 23  # measured rows above which noise is drawn for those that are looked at
KEPT_VALUES = 1 << 24  # numbers of all measurements that are kept
_PLACE_BITS = 64  # of a seed that goes with a measurement


class Probes:
    """Records in some cells of a strategy's domain, and noise for its measured rows."""

    def __init__(self, strategy: Strategy) -> None:
        weights = [rows.weight for rows in strategy.measurements]
        self._rng = public_generator(public_seed((strategy.shape, weights)))
        self._rows = strategy.sizes
        self.shape = strategy.shape
        self.codes = np.stack(
            [self._rng.integers(n, size=PROBED_CELLS) for n in self.shape], axis=1
        )
        self.counts = self._rng.integers(MOST_RECORDS, size=PROBED_CELLS)

    def table(self, block: Block | CellClassBlock) -> Numbers:
        """Return the counts over the attributes of a block."""
        cells = np.zeros(PROBED_CELLS, dtype=np.int64)
        for i in block.attributes:
            cells = cells * self.shape[i] + self.codes[:, i]
        sizes = block.table_shape
        return np.bincount(cells, self.counts, minlength=math.prod(sizes)).reshape(sizes)

    def noise(self, std: float) -> Sequence[Floats]:
        """Return independent normal noise for the rows of every measurement.

        Where there is much of it, that of each measurement has its own seed, to be drawn again.
        """
        if sum(self._rows) <= ON_DEMAND:
            return [std * self._rng.normal(size=size) for size in self._rows]
        seed = int(self._rng.integers(1 << 63)) << _PLACE_BITS
        return MeasuredValues(
            len(self._rows),
            lambda k: std * public_generator(seed + k).normal(size=self._rows[k]),
            room=KEPT_VALUES,
        )

    def sample(self, blocks: Sequence[tuple[int, Block]], *, answers: int, most: int) -> list[int]:
        """Return some of the numbers of blocks, one at least, of about so many answers in all."""
        chosen: list[int] = []
        total = 0
        for place in self._rng.permutation(len(blocks)).tolist():
            number, block = blocks[place]
            chosen.append(number)
            total += block.queries
            if total >= answers or len(chosen) >= most:
                break
        return chosen

    def places(self, count: int, most: int) -> Ints:
        """Return the places of some of so many answers, in order; of all where these are few."""
        if count <= most:
            return np.arange(count)
        return np.unique(self._rng.integers(count, size=most))


MAX_BIAS = 1e-4  # of the standard error: how far an answer to exact counts may be off
LEAST_BIAS = 1e-12  # of all records: what no reader of an answer can see, at any epsilon
ANSWERS = 1 << 21  # looked at, in about equal shares for every item
TABLES = 2000  # looked at
MOST_DRAWS = 64  # of noise
DRAWN = 1 << 23  # numbers in all draws of noise, but for the first draw
BLOCK_COST = 1 << 14  # numbers that take as long as the steps of answering one block
LEAST_DRAWS = 16  # where the first of them is no larger than its share
FALSE_ALARM = 1e-6  # chance that a sound strategy fails
SAMPLED_BLOCKS = 256  # whose answers are held against their covariances, but one of every item
SAMPLED_ANSWERS = 32  # of each of them
POOLED_BLOCKS = 16  # some of whose answers are held against all their covariances at once
POOLED_ANSWERS = 16  # of each of them
MISPRINT = 1e-3  # of a variance: how far the covariance of an answer with itself may be off
ROUNDING = 1e-4  # of the largest: variance of a sum of answers that rounding may have made
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

    Items are the places of their blocks, some of which are looked at. Positions are of the blocks
    in the workload that the strategy was made for; by default their own.
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
        # tables of one shape together: they are answered at once
        self.order = sorted(range(len(self.checked)), key=lambda k: self.checked[k][0].row_shape)
        # the standard errors of every block's answers, as a release states them
        uniform = strategy.uniform_variances(*self._asked(range(len(self.checked))))
        self.std = [
            np.full(1, noise_std * math.sqrt(uniform[k]))
            if k in uniform
            else standard_errors(strategy, block, position=position, noise_std=noise_std)
            for k, (block, position) in enumerate(self.checked)
        ]

    def of_exact_answers(self, units: Sequence[int]) -> str:
        """Return what is wrong with answers that are measured without noise.

        Units are the most that one record adds to an answer of each block that is looked at.
        """
        measurements = self.strategy.measurements
        exact = MeasuredValues(
            len(measurements), lambda k: self._exact(measurements[k]), room=KEPT_VALUES
        )
        invisible, worst = LEAST_BIAS * float(self.probes.counts.sum()), 0.0
        for place, answers in self._answers(exact):
            block, std = self.checked[place][0], self.std[place]
            off = np.abs(answers - block.apply(self.probes.table(block)).ravel())
            bias = off - invisible * units[place]
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
        mean square over draws, by the law that it would have if all answers of the item were one
        number, which is the widest there is. It is too wide for items of many answers: some of
        each are held against their covariances too, so that each counts for what it is worth.
        """
        numbers = sum(self.strategy.sizes) + sum(block.queries for block, _ in self.checked)
        least = max(1, min(LEAST_DRAWS, DRAWN // numbers))
        draws = DRAWN // (numbers + BLOCK_COST * len(self.checked))
        draws = min(MOST_DRAWS, max(least, draws))
        samples = self._samples()
        misprinted = [s.misprint for s in samples if not abs(s.misprint - 1) <= MISPRINT]
        if misprinted:
            return _varied(misprinted[0])
        looked_at: dict[int, list[_Sample]] = {}
        for sample in samples:
            for place in sample.places:
                looked_at.setdefault(place, []).append(sample)
        squares, largest = np.zeros((draws, len(self.ends) + 1)), 0.0
        for draw in range(draws):
            noise = self.probes.noise(self.noise_std)
            means = np.zeros(len(self.checked))
            for place, answers in self._answers(noise):
                std = self.std[place]
                square = np.where(
                    std > 0, (answers / std) ** 2, np.where(answers == 0, 1.0, np.inf)
                )
                largest = max(largest, float(square.max()))
                means[place] = square.mean()
                for sample in looked_at.get(place, ()):
                    sample.add(place, answers)
            for sample in samples:
                sample.end_draw()
            squares[draw] = [float(np.mean(part)) for part in np.split(means, self.ends)]
        if not largest <= chdtri(1, FALSE_ALARM / 3 / (draws * numbers)):
            return f"an answer is {math.sqrt(largest):.3g} of its standard errors off in one draw"
        chance = FALSE_ALARM / 3 / len(samples)
        unlikely = [_unlikely_mean(squares), *(s.unlikely_mean(chance) for s in samples)]
        return next((_varied(ratio) for ratio in unlikely if ratio is not None), "")

    def _samples(self) -> list["_Sample"]:
        """Return some answers of some blocks of every item, and some of several blocks together."""
        share = max(1, SAMPLED_BLOCKS // (len(self.ends) + 1))
        of_items = np.split(np.arange(len(self.checked)), self.ends)
        alone = [[int(place)] for item in of_items for place in item[:share]]
        pooled = self.probes.places(len(self.checked), POOLED_BLOCKS).tolist()
        return [
            *(self._sample(places, SAMPLED_ANSWERS) for places in alone),
            self._sample(pooled, POOLED_ANSWERS),
        ]

    def _sample(self, blocks: Sequence[int], most: int) -> "_Sample":
        chosen: dict[int, Ints] = {}
        for place in blocks:
            block, _ = self.checked[place]
            rows = self.probes.places(block.queries, most)
            chosen[place] = rows[np.broadcast_to(self.std[place], block.queries)[rows] > 0]
        parts: list[list[Floats]] = []
        for k, p in enumerate(chosen):  # symmetric: half of them are worked out
            above = [parts[j][k].T for j in range(k)]
            beside = [self._covariances(p, chosen[p], q, chosen[q]) for q in list(chosen)[k:]]
            parts.append(above + beside)
        std = [np.broadcast_to(self.std[p], self.checked[p][0].queries)[chosen[p]] for p in chosen]
        return _Sample(chosen, np.concatenate(std), np.block(parts))

    def _covariances(self, place: int, rows: Ints, other: int, other_rows: Ints) -> Floats:
        (block, position), (against, across) = self.checked[place], self.checked[other]
        left = QueryRows(block, rows[:, None], position)
        right = QueryRows(against, other_rows[None, :], across)
        return self.noise_std**2 * self.strategy.covariances(QueryPairs(left, right))

    def _answers(self, measured: Sequence[Floats]) -> Iterator[tuple[int, Floats]]:
        """Yield the place of every block and its answers, those of tables of one shape together."""
        estimates = Measured(self.strategy, measured, self.noise_std)
        answers = estimates.answers(*self._asked(self.order))
        yield from zip(self.order, map(np.ravel, answers), strict=True)

    def _asked(self, places: Sequence[int]) -> tuple[list[Block], list[int | None]]:
        """Return some of the blocks that are looked at, and their positions."""
        asked = [self.checked[place] for place in places]
        return [block for block, _ in asked], [position for _, position in asked]


class _Sample:
    """Some answers, and the sum over draws of the squares of what is independent in them.

    Attributes:
        places: for each block the places of its answers.
        misprint: that variance of theirs which is furthest from the square of its standard error,
            as a multiple of it.
    """

    def __init__(self, places: Mapping[int, Ints], std: Floats, covariance: Floats) -> None:
        self.places = places
        correlation = covariance / np.outer(std, std)
        variances = np.append(np.diag(correlation), 1.0)
        self.misprint = float(variances[np.argmax(np.abs(variances - 1))])
        values, vectors = np.linalg.eigh((correlation + correlation.T) / 2)
        kept = values > ROUNDING * values.max(initial=0.0)
        directions = vectors[:, kept] / np.sqrt(values[kept]) / std[:, None]
        ends = np.cumsum([len(rows) for rows in places.values()])[:-1]
        self._directions = dict(zip(places, np.split(directions, ends), strict=True))
        self._draw = np.zeros(directions.shape[1])
        self._sum, self._degrees = 0.0, 0

    def add(self, place: int, answers: Floats) -> None:
        """Add the answers of a block to the draw of noise that is looked at."""
        self._draw += answers[self.places[place]] @ self._directions[place]

    def end_draw(self) -> None:
        """Count what was added since the last draw."""
        self._sum += float(self._draw @ self._draw)
        self._degrees += len(self._draw)
        self._draw[:] = 0.0

    def unlikely_mean(self, chance: float) -> float | None:
        """Return the mean of the squares if it is not 1, but for such a chance."""
        if not self._degrees:
            return None
        half, degrees = self._sum / 2, self._degrees / 2
        if min(gammainc(degrees, half), gammaincc(degrees, half)) >= chance / 2:
            return None
        return self._sum / self._degrees


def _varied(ratio: float) -> str:
    return f"answers vary {math.sqrt(ratio):.2g} times as much as their standard errors say"


def _unlikely_mean(squares: Floats) -> float | None:
    """Return the mean square of an item that is not 1, chance aside. squares: (draws, items)."""
    draws, items = squares.shape
    chance = FALSE_ALARM / 3 / items / 2
    # Quantiles of chi-squared as scipy.stats has them, which takes a second to import.
    low = 2 * gammaincinv(draws / 2, chance) / draws
    high = chdtri(draws, chance) / draws
    means = squares.mean(axis=0)
    wrong = ~((low <= means) & (means <= high))
    return float(means[wrong][0]) if wrong.any() else None


CONTRADICTED = 1e-6  # chance below which a fact is not relied on
LEAST_CHANCE = 1e-12  # that is told apart from none
_STEPS = 1 << 18  # of the grid on which the law of squares of Laplace variables is added up


@dataclass(frozen=True)
class FactTest:
    """What the noisy answers say of a source of public facts."""

    source: str  # of the facts
    degrees: int  # how many equalities were tested, none of which follows from the others
    statistic: float  # the sum of squares, in variances of the noise; 0 where nothing was tested
    chance: float  # that noise makes it so large where the facts are true: at least LEAST_CHANCE

    @property
    def contradicted(self) -> bool:
        """Whether the facts are not relied on."""
        return self.chance < CONTRADICTED


def tested_facts(
    strategy: InformedStrategy, measured: Measured
) -> tuple[InformedStrategy, tuple[FactTest, ...]]:
    """Return the strategy that relies on no contradicted fact, and the tests of all.

    Sources are tested one after the other, each given those before it. The one that is least likely
    is left out, until none is contradicted.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    refuted: list[FactTest] = []
    while True:
        tests = _tests(strategy, measured)
        worst = min(tests, key=lambda test: test.chance, default=None)
        if worst is None or not worst.contradicted:
            order = strategy.sources
            return strategy, tuple(sorted([*tests, *refuted], key=lambda t: order.index(t.source)))
        refuted.append(worst)
        strategy = strategy.without(worst.source)


def _tests(strategy: InformedStrategy, measured: Measured) -> list[FactTest]:
    squares = (discrepancies(strategy, measured.estimates) / measured.noise_std) ** 2
    by_source: dict[str, list[Floats]] = {
        source: [] for source in strategy.sources if source not in strategy.left_out
    }
    start = 0
    for each in strategy.equalities:
        by_source[each.source].append(squares[start : start + len(each.values)])
        start += len(each.values)
    tests = []
    for source, parts in by_source.items():
        values = np.concatenate([np.zeros(0), *parts])
        total = float(values.sum())
        tests.append(
            FactTest(source, len(values), total, _chance(total, len(values), strategy.noise))
        )
    return tests


def _chance(statistic: float, degrees: int, noise: Noise) -> float:
    if degrees == 0:
        return 1.0
    beyond = laplace_squares if noise == "laplace" else chdtrc
    chance = beyond(degrees, statistic)
    return min(1.0, max(LEAST_CHANCE, float(chance)))


def laplace_squares(count: int, statistic: float) -> float:
    """Return the chance that squares of so many Laplace variables of variance 1 add up to more.

    The law of one is exact on every step of a grid, and is added up by its Fourier transform, to
    some 1e-11 of all chance.
    """
    far = count + 40.0 * np.sqrt(5.0 * count) + 1000.0  # beyond lies a chance of 1e-13
    if statistic >= far:
        return 0.0
    edges = (np.arange(_STEPS + 1) - 0.5) * (2 * far / _STEPS)
    below = -np.expm1(-np.sqrt(2.0 * np.maximum(edges, 0.0)))
    law = np.fft.irfft(np.fft.rfft(np.diff(below)) ** count, _STEPS)
    return float(law[edges[1:] > statistic].sum())
