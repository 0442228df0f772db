"""The law of a run of RAP, recomputed from public facts: split, scales, probabilities.

Nothing here is taken from the code that is audited: rho is split in fractions as RAP's rounds say,
how far a record moves the selected counts is found by trying every kind of record, and the
probability of a selection is that of one exponential mechanism after another on what is left.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.audit.towns import (
    ANSWERED,
    BLOCKS,
    DECLARED,
    STEPS_IN_A_COUNT,
    Bench,
    ReleasedRun,
    ShiftedFit,
    Town,
)
from dpquery.measurement.rounds.run import PublicFit, Round, RoundBudget
from dpquery.reconstruction.relaxed.fits import RapProjection

UNSPENT = RoundBudget(Fraction(0), Fraction(0), Fraction(0), last=False)  # no fit looks at it
_NEVER = 1e-300  # stands in the logarithm for what cannot happen whatever the data
_OVER = 4  # one query in so many is drawn among those answered too high, where a side is taken


@dataclass(frozen=True, eq=False)
class RapRuns:
    """The transcripts of n runs of T rounds of K queries, and what the public side said in them."""

    totals: Ints  # (n,) in grid steps
    numbers: Ints  # (n, T, K) queries that were measured, in the order drawn
    counts: Ints  # (n, T, K) their noisy counts, in grid steps
    synthetic: Ints  # (n, T, m) rounded synthetic counts before each round

    @classmethod
    def joined(cls, runs: Sequence["RapRuns"]) -> "RapRuns":
        """Return the runs of several as one."""
        names = ("totals", "numbers", "counts", "synthetic")
        return cls(*(np.concatenate([getattr(run, name) for run in runs]) for name in names))


@dataclass(frozen=True)
class RhoSplit:
    """Where the rho of a run goes, and the strength eta of its selections."""

    rho: Fraction
    town: Town

    @property
    def selected(self) -> int:
        """K; all queries where none are selected."""
        return self.town.settings.selected or len(ANSWERED)

    @cached_property
    def total(self) -> Fraction:
        """The rho of the total: as much as one more query would cost, and a twentieth at least.

        Where records are replaced, it is the number declared, and free.
        """
        if self.town.replace:
            return Fraction(0)
        settings = self.town.settings
        parts = 2 * settings.rounds * settings.selected or worst_move(
            range(len(ANSWERED)), replace=self.town.replace
        )
        return self.rho * max(Fraction(1, 20), Fraction(1, parts + 1))

    @property
    def measurement(self) -> Fraction:
        """The rho of measuring the queries of a round."""
        rho = (self.rho - self.total) / self.town.settings.rounds
        return rho / 2 if self.town.settings.adaptive else rho

    @property
    def selection(self) -> Fraction:
        """The rho of selecting the queries of a round."""
        return self.measurement if self.town.settings.adaptive else Fraction(0)

    @property
    def rate(self) -> float:
        """Eta: K draws whose log ratio spans eta (span) cost K (eta span)^2 / 8."""
        return math.sqrt(8 * self.selection / (self.selected * self.town.span**2))

    @property
    def total_scale(self) -> float:
        """Scale of the total's noise, in grid steps; 0 where there is none."""
        if not self.total:
            return 0.0
        return STEPS_IN_A_COUNT * math.sqrt(self.town.limit**2 / (2 * self.total))

    def scaled_to(self, noisy: float) -> float:
        """Return the total that answers are multiples of, from the count that was committed.

        A town that declares about so many is believed as a count would be whose noise has a
        standard deviation of half as many.
        """
        if not self.total:
            return noisy
        counts = np.array([noisy, DECLARED])
        stds = np.array([self.total_scale / STEPS_IN_A_COUNT, DECLARED / 2])
        return max(1.0, float(np.average(counts, weights=stds**-2)))

    def scale(self, numbers: Sequence[int]) -> float:
        """Return the scale of the noise on the counts of some queries, in grid steps."""
        town = self.town
        if town.settings.adaptive:
            move = families_move(numbers, replace=town.replace)
        else:
            move = worst_move(numbers, replace=town.replace)
        return STEPS_IN_A_COUNT * math.sqrt(move * town.limit**2 / (2 * self.measurement))

    def scales(self, runs: RapRuns) -> Floats:
        """Return the scale of the noise in every round, in grid steps: (n, T)."""
        known: dict[tuple[int, ...], float] = {}
        rounds = runs.numbers.reshape(-1, self.selected).tolist()
        for numbers in {tuple(sorted(numbers)) for numbers in rounds}:
            known[numbers] = self.scale(numbers)
        return np.array(
            [[known[tuple(sorted(numbers))] for numbers in run] for run in runs.numbers.tolist()]
        )

    def sides(self, number: int) -> list[int]:
        """Return for each draw of a round whether it is among counts too low, 1, high, -1, or 0."""
        size = self.selected
        if self.town.replace:
            return [0] * size
        over = (number + 1) * size // _OVER - number * size // _OVER
        return [1] * (size - over) + [-1] * over


def worst_move(numbers: Sequence[int], *, replace: bool) -> int:
    """Return the largest squared move of some counts over all pairs of neighbouring records."""
    kinds = ANSWERED[list(numbers)].T
    if not replace:
        return int((kinds**2).sum(axis=1).max())
    kinds = np.concatenate([kinds, np.zeros_like(kinds[:1])])  # a record outside the domain
    return int(((kinds[:, None] - kinds) ** 2).sum(axis=2).max())


def families_move(numbers: Sequence[int], *, replace: bool) -> int:
    """Return the squared move that RAP allows for: over families of disjoint queries."""
    families: list[list[int]] = []
    for number in sorted(numbers):
        for family in families:
            if not (ANSWERED[family] @ ANSWERED[number]).any():
                family.append(number)
                break
        else:
            families.append([number])
    return sum(min(len(family), 2 if replace else 1) for family in families)


@dataclass(frozen=True, eq=False)
class RunDraws:
    """One draw of every run, and its law where the true answers are some."""

    # (n, m); of another strength in each draw where they are multiplied by it
    scores: Ints | Floats
    chances: Floats  # (n, m): 0 for queries that are not left
    outcome: Ints  # (n,) the query drawn

    @property
    def chance(self) -> Floats:
        """The probability of what was drawn, (n,)."""
        return np.asarray(self.chances[np.arange(len(self.outcome)), self.outcome])


def draws_of(runs: RapRuns, answers: Ints, split: RhoSplit) -> list[list[RunDraws]]:
    """Return all draws, of each round in order, as they are where the true answers are these."""
    if not split.town.settings.adaptive:
        return []
    left = np.ones((len(runs.totals), len(answers)), dtype=np.bool_)
    everyone = np.arange(len(left))
    rounds: list[list[RunDraws]] = []
    for number in range(runs.numbers.shape[1]):
        off = answers - runs.synthetic[:, number]
        rounds.append([])
        for draw, side in enumerate(split.sides(number)):
            scores = np.maximum(side * off, 0) if side else np.abs(off)
            weights = np.where(left, split.rate * scores, -np.inf)
            chances = np.exp(weights - weights.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            outcome = runs.numbers[:, number, draw]
            rounds[-1].append(RunDraws(scores, chances, outcome))
            left[everyone, outcome] = False
    return rounds


def residuals_of(runs: RapRuns, total: int, answers: Ints) -> tuple[Ints, Ints]:
    """Return the noise that was added, where the true answers are these: (n,) and (n, T, K)."""
    return runs.totals - STEPS_IN_A_COUNT * total, runs.counts - STEPS_IN_A_COUNT * answers[
        runs.numbers
    ]


def log_likelihood(runs: RapRuns, total: int, answers: Ints, split: RhoSplit) -> Floats:
    """Return the log probability of every transcript, (n,), up to what no data changes."""
    of_total, of_counts = residuals_of(runs, total, answers)
    scales = split.scales(runs)[:, :, None]
    noise = ((of_counts / scales) ** 2).sum(axis=(1, 2))
    if split.total:
        noise += (of_total / split.total_scale) ** 2
    chances = [draw.chance for draws in draws_of(runs, answers, split) for draw in draws]
    chosen = [np.log(np.maximum(chance, _NEVER)) for chance in chances]
    return np.asarray(sum(chosen, -noise / 2))


def rap_runs(bench: Bench, file: str, number: int) -> RapRuns:
    """Return so many runs of RAP on a file."""
    values, start = np.stack(bench.vectors(file, number)), bench.town.start
    return runs_of(values, bench.town, lambda _: ShiftedFit(start))


def run_of_release(bench: Bench, release: ReleasedRun) -> RapRuns:
    """Return the run of a release of RAP, its relaxed rows fitted again before each round."""
    town, workload = bench.town, bench.query.compiled.workload
    split = RhoSplit(release.charged, town)

    def fitted(counted: float) -> PublicFit:
        return RapProjection(workload, town.settings, split.scaled_to(counted))

    return runs_of(release.values[None], town, fitted)


def runs_of(
    values: Ints, town: Town, project: Callable[[float], PublicFit] | None = None
) -> RapRuns:
    """Read committed vectors as RAP lays them out, and play the public side again.

    Args:
        values: (n, 1 + 2 T K), or (n, 1 + m) where all queries were measured at once.
        town: its settings.
        project: makes the public side, given the total as it was committed; None where nobody
            asks what it said.
    """
    settings, m = town.settings, len(ANSWERED)
    totals, rest = values[:, 0], values[:, 1:]
    synthetic = np.zeros((len(values), settings.rounds, m), dtype=np.int64)
    if not settings.adaptive:
        numbers = np.broadcast_to(np.arange(m), synthetic.shape)
        return RapRuns(totals, numbers, rest[:, None], synthetic)
    rounds = rest.reshape(len(values), settings.rounds, 2, settings.selected)
    numbers, counts = rounds[:, :, 0], rounds[:, :, 1]
    for run in range(len(values)):
        if project is None:
            break
        public = project(float(totals[run] / 1024))
        synthetic[run] = _played(public, numbers[run], counts[run] / 1024)
    return RapRuns(totals, numbers, counts, synthetic)


def _played(public: PublicFit, numbers: Ints, noisy: Floats) -> Ints:
    """Return the rounded answers that a public side has before each round, (T, m)."""
    starts, synthetic = np.cumsum((0, *BLOCKS)), []
    for chosen, counts in zip(numbers, noisy, strict=True):
        answers = np.concatenate([public.answers(position) for position in range(len(BLOCKS))])
        synthetic.append(np.rint(answers).astype(np.int64))
        blocks = np.searchsorted(starts, chosen, side="right") - 1
        places = np.stack([blocks, chosen - starts[blocks]], axis=1)
        public.add(Round(places, 0, counts, 1.0, UNSPENT))
    return np.stack(synthetic)
