"""The law of a run in rounds, recomputed from public facts, for both layouts.

Nothing here is taken from the code that is audited: rho is split in fractions as the rounds say,
tables are counted one record after another, how far a record moves what is measured is found by
trying every kind of record, and the probability of a choice is that of one exponential mechanism
after another on what is left.

A committed vector is played again step by step where the true answers are some: noise that was
added, a discrete Gaussian of a known scale, and choices, softmaxes of known exponents, on a public
side that follows from what was measured. So the law of a whole run is known to the last factor.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.audit.measurements import WatchedRelease
from dpquery.audit.towns import (
    ANSWERED,
    BLOCKS,
    DECLARED,
    STEPS_IN_A_COUNT,
    TOWN_TABLES,
    ShiftedFit,
    Town,
)
from dpquery.measurement.rounds.run import PublicFit, Round, RoundBudget
from dpquery.releases.manifest import read_manifest

_UNSPENT = RoundBudget(Fraction(0), Fraction(0), Fraction(0), last=False)  # no fit looks at it
_NEVER = 1e-300  # stands in the logarithm for what cannot happen whatever the data
_OVER = 4  # one query in so many is drawn among those answered too high, where a side is taken
_WEIGHTS = (512, 512, 1024)
"""Two blocks share one attribute each with the first two tables, and two each with the last."""
_ITEMS = 2
"""Both items ask for both attributes: the distance of the last table is measured for either."""
_BEYOND = Fraction(10**9)
"""The cost of what no charge pays for."""
_TINY = 1e-9
"""Stands for a figure that is not there: no charge pays for it."""


class AddedNoise(NamedTuple):
    """A step of a run that measures."""

    added: Ints  # (k,) in grid steps
    std: float  # of the noise, in counts
    squared_move: int  # the squared length by which neighbours move what is measured, in counts


class Chosen(NamedTuple):
    """A step of a run that draws one of m: with probability proportional to exp(exponents)."""

    place: int  # of the draw, among all of a run
    exponents: Floats  # (m,); -inf for what is not left, and for all where it may not be drawn
    outcome: int


Step = AddedNoise | Chosen


class Published(NamedTuple):
    """What the manifest of a release says of its run."""

    stds: list[float | None]  # of each step that measures, in counts
    others: list[tuple[float, float]]  # further figures, and what they should be
    choices: Fraction  # the rho of all choices by them; beyond any charge if one cannot be


@dataclass(frozen=True, eq=False)
class Played:
    """The steps of n runs, as they are where the true answers are some."""

    noise: Ints  # (v,) of all runs, one after the other, in grid steps
    scales: Floats  # (v,)
    noise_of: Ints  # (v,) the number of the run
    exponents: Floats  # (d, m) of all draws; see `Chosen`
    outcomes: Ints  # (d,)
    places: Ints  # (d,)
    draws_of: Ints  # (d,) the number of the run

    @classmethod
    def of(cls, runs: Iterable[Iterable[Step]]) -> "Played":
        """Put the steps of runs together."""
        steps = [(number, step) for number, run in enumerate(runs) for step in run]
        noise = [(number, step) for number, step in steps if isinstance(step, AddedNoise)]
        draws = [(number, step) for number, step in steps if isinstance(step, Chosen)]
        sizes = [len(step.added) for _, step in noise]
        return cls(
            np.concatenate([step.added for _, step in noise]),
            np.repeat([STEPS_IN_A_COUNT * step.std for _, step in noise], sizes),
            np.repeat([number for number, _ in noise], sizes),
            np.array([step.exponents for _, step in draws]),
            np.array([step.outcome for _, step in draws], np.int64),
            np.array([step.place for _, step in draws], np.int64),
            np.array([number for number, _ in draws], np.int64),
        )

    @cached_property
    def chances(self) -> Floats:
        """The probability of everything in every draw, (d, m)."""
        most = self.exponents.max(axis=1, keepdims=True)
        chances = np.exp(self.exponents - np.where(np.isfinite(most), most, 0))
        return np.asarray(chances / np.maximum(chances.sum(axis=1, keepdims=True), _NEVER))

    @property
    def chance(self) -> Floats:
        """The probability of what was drawn, (d,)."""
        return np.asarray(self.chances[np.arange(len(self.outcomes)), self.outcomes])

    @property
    def z(self) -> Floats:
        """The noise over its scale, (v,)."""
        return np.asarray(self.noise / self.scales)

    @property
    def log_likelihoods(self) -> Floats:
        """The log probability of every run, (n,), up to what no data changes."""
        noise = np.bincount(self.noise_of, weights=self.z**2) / 2
        chosen = np.log(np.maximum(self.chance, _NEVER)) if len(self.outcomes) else np.zeros(0)
        return np.asarray(np.bincount(self.draws_of, weights=chosen, minlength=len(noise)) - noise)


@dataclass(frozen=True)
class _Law:
    """Where the rho of a run goes, and the law of what it draws."""

    rho: Fraction
    town: Town

    def std(self, rho: Fraction, move: int) -> float:
        """Return the standard deviation, in counts, of noise that costs rho.

        The move is that of one row of a person, squared.
        """
        return self.town.limit * math.sqrt(move / (2 * rho))

    def noise(
        self, noisy: Ints, exact: Ints, rho: Fraction, move: int, least: int = 0
    ) -> AddedNoise:
        """Return the step that made exact numbers noisy, both in grid steps, and costs rho.

        The least move is the one that there is, where noise is made for a larger one.
        """
        squared_move = (least or move) * self.town.limit**2
        return AddedNoise(noisy - exact, self.std(rho, move), squared_move)


@dataclass(frozen=True)
class RapLaw(_Law):
    """Of single queries, K a round."""

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
            tuple(range(len(ANSWERED))), replace=self.town.replace
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

    @cached_property
    def rate(self) -> float:
        """Eta: K draws whose log ratio spans eta (span) cost K (eta span)^2 / 8."""
        return math.sqrt(8 * self.selection / (self.selected * self.town.span**2))

    def scaled_to(self, noisy: float) -> float:
        """Return the total that answers are multiples of, from the count that was committed.

        A town that declares about so many is believed as a count would be whose noise has a
        standard deviation of half as many.
        """
        if not self.total:
            return noisy
        counts = np.array([noisy, DECLARED])
        stds = np.array([self.std(self.total, 1), DECLARED / 2])
        return max(1.0, float(np.average(counts, weights=stds**-2)))

    def sides(self, number: int) -> list[int]:
        """Return for each draw of a round whether it is among counts too low, 1, high, -1, or 0."""
        size = self.selected
        if self.town.replace:
            return [0] * size
        over = (number + 1) * size // _OVER - number * size // _OVER
        return [1] * (size - over) + [-1] * over

    def read(self, values: Ints) -> list[tuple[Ints, Ints]]:
        """Return of each round the queries that were measured and their noisy counts, (K,).

        Args:
            values: (1 + 2 T K,), or (1 + m,) where all queries were measured at once.
        """
        if not self.town.settings.adaptive:
            return [(np.arange(len(ANSWERED)), values[1:])]
        rounds = values[1:].reshape(self.town.settings.rounds, 2, self.selected)
        return [(chosen, counts) for chosen, counts in rounds]

    def steps(self, values: Ints, truth: Sequence[Ints], fit: PublicFit) -> Iterator[Step]:
        """Yield the steps of a committed vector where the true answers are some, by block.

        The fit is the public side before the first round.
        """
        answers = np.concatenate(truth)
        if self.total:
            total = STEPS_IN_A_COUNT * truth[1].sum(keepdims=True)
            yield self.noise(values[:1], total, self.total, 1)
        left, place = np.ones(len(answers), dtype=np.bool_), 0
        starts = np.cumsum((0, *map(len, BLOCKS)))
        for number, (chosen, counts) in enumerate(self.read(values)):
            if self.selection:
                synthetic = np.concatenate([fit.answers(block) for block in range(len(BLOCKS))])
                off = answers - np.rint(synthetic).astype(np.int64)
                for side, query in zip(self.sides(number), chosen.tolist(), strict=True):
                    scores = np.maximum(side * off, 0) if side else np.abs(off)
                    yield Chosen(place, np.where(left, self.rate * scores, -np.inf), query)
                    left[query], place = False, place + 1
            least = worst_move(tuple(chosen.tolist()), replace=self.town.replace)
            move = least
            if self.selection:
                move = families_move(tuple(chosen.tolist()), replace=self.town.replace)
            exact = STEPS_IN_A_COUNT * answers[chosen]
            yield self.noise(counts, exact, self.measurement, move, least)
            if number + 1 < self.town.settings.rounds:
                blocks = np.searchsorted(starts, chosen, side="right") - 1
                queries = np.stack([blocks, chosen - starts[blocks]], axis=1)
                fit.add(Round(queries, 0, counts / STEPS_IN_A_COUNT, 1.0, _UNSPENT))

    def published(self, release: WatchedRelease) -> Published:
        """Return what a release says of its run."""
        town, facts = self.town, read_manifest(release.folder).rap
        if facts is None:
            raise ValueError("the release of an audited town is not by RAP")
        counted, span = float(release.values[0]) / STEPS_IN_A_COUNT, Fraction(town.span)
        others = [(facts.total, self.scaled_to(counted))]
        choices = _BEYOND if town.replace and facts.total != DECLARED else Fraction(0)
        if self.selection:
            scale = facts.selection_scale or _TINY
            others.append((scale, 1 / self.rate))
            draws = town.settings.rounds * self.selected
            choices += draws * (span / Fraction(scale)) ** 2 / 8
        total = [] if town.replace else [facts.total_std]
        return Published([*total, *facts.noise_std], others, choices)


@cache
def worst_move(numbers: tuple[int, ...], *, replace: bool) -> int:
    """Return the largest squared move of some counts over all pairs of neighbouring records."""
    kinds = ANSWERED[list(numbers)].T
    if not replace:
        return int((kinds**2).sum(axis=1).max())
    kinds = np.concatenate([kinds, np.zeros_like(kinds[:1])])  # a record outside the domain
    return int(((kinds[:, None] - kinds) ** 2).sum(axis=2).max())


@cache
def families_move(numbers: tuple[int, ...], *, replace: bool) -> int:
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


@dataclass(frozen=True)
class TableLaw(_Law):
    """Of whole tables, one a round, ever dearer."""

    @property
    def closing(self) -> Fraction:
        """The rho of the distances of all items."""
        return self.rho / 50

    @property
    def of_error(self) -> Fraction:
        """The rho of the distance of an item, and of its largest error."""
        return self.closing / (2 * _ITEMS)

    @property
    def unit(self) -> Fraction:
        """The rho of a round at level 0: sixteen rounds for each of two attributes."""
        return (self.rho - self.closing) / 32

    @property
    def move(self) -> int:
        """By how much a row moves a table, squared."""
        return 2 if self.town.replace else 1

    @property
    def error_moves(self) -> tuple[int, int]:
        """By how much a row moves a distance, and the largest error, squared.

        A record moves a distance by a count, a replaced one by two; no cell moves by two.
        """
        return 4 if self.town.replace else 1, 1

    @cached_property
    def first(self) -> Fraction:
        """The rho of each table of one attribute: so many rounds, by the noise on half of rho."""
        off = self.std((self.rho - self.closing) / 2, self.move) / (0.008 * DECLARED)
        rounds = math.floor(160 / 9 * off / (1 + off))
        return Fraction(9, 10) * self.unit * max(1, min(16, rounds))

    def costs(self, levels: Sequence[int]) -> list[Fraction]:
        """Return the rho of rounds at some levels; what they leave is not their sum, if damaged."""
        left, costs = self.rho - self.closing - 2 * self.first, []
        for level in levels:
            cost = 4**level * self.unit
            costs.append(left if 0 < left < 2 * cost else cost)
            left -= costs[-1]
        return costs

    def rate(self, rho: Fraction) -> float:
        """Return eta of a draw in a round that costs rho: (eta span)^2 / 8 is a tenth of it."""
        return math.sqrt(8 * rho / 10) / (2 * self.town.span * max(_WEIGHTS))

    def read(self, values: Ints) -> list[tuple[int, int, Ints]]:
        """Return of each round its table, its level and its noisy counts.

        Rounds follow each other from the tables of one attribute to a closing part: a number that
        says nothing here, and of each item the distance and the largest error.
        """
        rounds, values = [], values[sum(map(len, TOWN_TABLES[:2])) : -1 - 2 * _ITEMS]
        while values.size:
            number, level = values[:2].tolist()
            end = 2 + len(TOWN_TABLES[number])
            rounds.append((number, level, values[2:end]))
            values = values[end:]
        return rounds

    def steps(self, values: Ints, truth: Sequence[Ints], fit: PublicFit) -> Iterator[Step]:
        """Yield the steps of a committed vector where the true tables are some; see `RapLaw`."""
        first, level, rounds = np.concatenate(truth[:2]), 0, self.read(values)
        exact = STEPS_IN_A_COUNT * first
        yield self.noise(values[: len(first)], exact, 2 * self.first, 2 * self.move)
        costs = self.costs([given for _, given, _ in rounds])
        for (number, given, counts), cost in zip(rounds, costs, strict=True):
            measured = self.noise(
                counts, STEPS_IN_A_COUNT * truth[number], cost * Fraction(9, 10), self.move
            )
            std = measured.std
            scores = [
                weight * _distance(table, fit.answers(k), std)
                for k, (weight, table) in enumerate(zip(_WEIGHTS, truth, strict=True))
            ]
            # a level that does not follow from what was measured before cannot be
            follows = given == level
            exponents = self.rate(cost) * np.array(scores) if follows else np.full(3, -np.inf)
            yield Chosen(0, exponents, number)
            yield measured
            before = fit.answers(number)
            noisy = counts / STEPS_IN_A_COUNT
            fit.add(Round(np.array([number]), given, noisy, std, _UNSPENT))
            moved = float(np.abs(fit.answers(number) - before).sum())
            level = given + (moved <= math.sqrt(2 / math.pi) * std * len(counts))
        released = np.rint(STEPS_IN_A_COUNT * fit.answers(2)).astype(np.int64)
        apart: Ints = np.abs(STEPS_IN_A_COUNT * truth[2] - released)
        for errors in values[-2 * _ITEMS :].reshape(_ITEMS, 2):
            for k, true in enumerate((apart.sum(keepdims=True), apart.max(keepdims=True))):
                yield self.noise(errors[k : k + 1], true, self.of_error, self.error_moves[k])

    def published(self, release: WatchedRelease) -> Published:
        """Return what a release says of its run; whose parts are to be its rho to the last."""
        facts = read_manifest(release.folder).adaptive
        if facts is None:
            raise ValueError("the release of an audited town is not of adaptive measurement")
        costs = self.costs([level for _, level, _ in self.read(release.values)])
        whole = 2 * self.first + sum(costs) + self.closing == self.rho and min(costs) >= self.unit
        errors = [std for each in facts.distances for std in (each.std, each.largest_std)]
        choices = Fraction(0) if whole else _BEYOND
        choices += sum(cost / 10 for cost in costs)
        stds = [facts.one_way_std, *facts.noise_std, *errors]
        return Published(stds, [(facts.candidates, len(TOWN_TABLES))], choices)


def _distance(table: Ints, model: NDArray[np.floating], std: float) -> int:
    """Return how far a table is from the model beyond its noise, in whole counts."""
    off = int(np.abs(table - np.rint(model)).sum())
    return off - round(math.sqrt(2 / math.pi) * std * len(table))


RunLaw = RapLaw | TableLaw


def run_law(town: Town, rho: Fraction) -> RunLaw:
    """Return the law of a town's runs in its layout."""
    return TableLaw(rho, town) if town.tables else RapLaw(rho, town)


def stated(law: RunLaw, release: WatchedRelease) -> tuple[Fraction, list[tuple[float, float]]]:
    """Return what a run cost, by its published figures, and these with what they should be."""
    town = law.town
    steps = law.steps(release.values, town.truth(town.rows), ShiftedFit(town.start))
    measured = [step for step in steps if isinstance(step, AddedNoise)]
    stds, figures, cost = law.published(release)
    for step, std in zip(measured, stds, strict=True):
        cost += step.squared_move / (2 * Fraction(std or _TINY) ** 2)
        figures.append((std or _TINY, step.std))
    return cost, figures
