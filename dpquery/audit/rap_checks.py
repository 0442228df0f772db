"""The law of a run of RAP, recomputed from public facts, and the checks of it.

Nothing here is taken from the code that is audited: rho is split in fractions as RAP's rounds say,
how far a record moves the selected counts is found by trying every kind of record, and the
probability of a selection is that of one exponential mechanism after another on what is left.

The whole run is one mechanism whose law is known to the last factor: a discrete Gaussian for the
total and for every count, a softmax for every selection, and a public side that follows from what
was measured. So runs through the real code are tested against that law, recomputed here, part by
part; and what the likelihood ratio of whole transcripts shows, the event that distinguishes
neighbours best, is compared with the rho that was charged.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtri
from scipy.stats import t as student

from dpquery.arrays import Floats, Ints
from dpquery.audit.cases import Size
from dpquery.audit.statistics import (
    ALPHA,
    Finding,
    NoiseDistribution,
    chi_square,
    clopper_pearson,
    combined,
    pooled,
    width_of,
    zcdp_loss,
)
from dpquery.audit.towns import (
    ALL_QUERIES_AT_ONCE,
    ANSWERED,
    BLOCKS,
    DECLARED,
    DELTA,
    EPSILON,
    STEPS_IN_A_COUNT,
    TOWNS,
    Bench,
    ReleasedRun,
    ShiftedFit,
    Town,
    TownRow,
    answers_of,
    released_run,
)
from dpquery.measurement.rounds.run import PublicFit, Round, RoundBudget
from dpquery.reconstruction.relaxed.fits import RapProjection
from dpquery.releases.manifest_facts import RapFacts

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
        starts, rounded = np.cumsum((0, *BLOCKS)), []
        for chosen, noisy in zip(numbers[run], counts[run] / 1024, strict=True):
            answers = np.concatenate([public.answers(position) for position in range(len(BLOCKS))])
            rounded.append(np.rint(answers).astype(np.int64))
            blocks = np.searchsorted(starts, chosen, side="right") - 1
            places = np.stack([blocks, chosen - starts[blocks]], axis=1)
            public.add(Round(places, 0, noisy, 1.0, UNSPENT))
        synthetic[run] = np.stack(rounded)
    return RapRuns(totals, numbers, counts, synthetic)


CHARGE = "a run of RAP costs no more than was charged for it, once, before the data was read"
FIGURES = "the noise and the sharpness that a release by RAP names are what its charge pays for"
NOISE = "the noise of RAP follows the exact discrete Gaussian law at the scale worked out apart"
TIES = "no noise value of RAP is tied to another one of its run, or of the run before"
CHOSEN = "RAP draws each query by the exponential mechanism among those left"
SHARP_SELECTIONS = "the selections of RAP are as sharp as their charge pays for"
APART = "no event of whole runs of RAP tells neighbouring data apart better than is claimed"

_SHARE = 10
"""Of the replicates of a small measurement, one in so many runs: each draws several times."""
_RELEASES = 5
_CELLS = 16
_LOW_BITS, _EXPECTED = 5, 50  # of the noise, and values for each of their cells
_ROUNDING = 1e-9
_EXACT = Fraction(1, 10**12)  # published figures are floats
_ORDERS = 1 + np.exp(np.linspace(-8, 8, 100_001))


def rap(size: Size) -> Iterator[Finding]:
    """Test runs of RAP on made-up towns against its distribution, for every kind of neighbour."""
    with tempfile.TemporaryDirectory() as folder:
        for number, town in enumerate(TOWNS if size.quick else (*TOWNS, ALL_QUERIES_AT_ONCE)):
            bench = Bench.of(town, Path(folder) / str(number))
            yield from audited(bench, size)


def audited(bench: Bench, size: Size) -> Iterator[Finding]:
    """Test the runs of one town against their distribution."""
    town, runs = bench.town, size.replicates // _SHARE
    numbers = range(1, 1 + max(1, size.releases // _RELEASES))
    releases = [released_run(bench, number) for number in numbers]
    split = RhoSplit(releases[0].charged, town)
    yield charge(town, releases)
    yield figures(town, releases, split)
    released = [run_of_release(bench, release) for release in releases]
    ours = rap_runs(bench, "data.csv", runs)
    observed = RapRuns.joined([ours, *released])
    neighbour = rap_runs(bench, "neighbour.csv", runs)
    yield from of_noise(town, observed, neighbour, split)
    if town.settings.adaptive:
        yield from of_selection(town, observed, neighbour, split)
        # compare what the most distinguishing event of transcripts shows with the rho charged
        here, there = truth(town, town.rows), truth(town, town.neighbour)
        ratios = [
            log_likelihood(runs, *here, split) - log_likelihood(runs, *there, split)
            for runs in (ours, neighbour)
        ]
        runs = len(ratios[0])
        hits = [int((ratio > 0).sum()) for ratio in ratios]
        p_low = clopper_pearson(hits[0], runs, alpha=ALPHA)[0]
        rho = float(split.rho)
        seen = zcdp_loss(p_low, clopper_pearson(hits[1], runs, alpha=ALPHA)[1])
        yield Finding(
            town.name,
            APART,
            seen <= rho,
            f"rho is at least {seen:.3g}, and {rho:.3g} is claimed: {seen / rho:.0%} of it is what "
            f"{runs:,} runs of each can show; the mean log ratio is {float(ratios[0].mean()):.3g}",
            neighbours=1,
            replicates=runs,
            tests=1,
        )


def truth(town: Town, rows: Sequence[TownRow]) -> tuple[int, Ints]:
    """Return the true total and the true answers, counted one record after another."""
    counted = town.counted(rows)
    return counted.total(), answers_of(counted)


def charge(town: Town, releases: Sequence[ReleasedRun]) -> Finding:
    """Compare the rho of a run, by its published figures, with what was charged, and when."""
    return charge_finding(CHARGE, town, releases, [_cost(town, release) for release in releases])


def charge_finding(
    claim: str, town: Town, releases: Sequence[ReleasedRun], costs: Sequence[Fraction]
) -> Finding:
    """Compare what runs cost with what was charged for them, and when."""
    rho = float(releases[0].charged)
    paid = all(
        cost <= release.charged * (1 + _EXACT)
        for cost, release in zip(costs, releases, strict=True)
    )
    early = all(release.early for release in releases)
    epsilon = float(np.min(_ORDERS * rho + _excess(_ORDERS)))
    return Finding(
        town.name,
        claim,
        paid and early and epsilon <= EPSILON * (1 + Fraction(_ROUNDING)),
        f"{len(releases)} releases: cost {float(max(costs)):.9g} of {rho:.9g} charged, or epsilon "
        f"{epsilon:.6g}; {'on record' if early else 'NOT on record'} at the first read",
    )


def _excess(orders: Floats) -> Floats:
    """Return epsilon - order rho of the tight conversion from zCDP [CKS20]."""
    return np.asarray((-math.log(DELTA) - np.log(orders)) / (orders - 1) + np.log1p(-1 / orders))


def _cost(town: Town, release: ReleasedRun) -> Fraction:
    """Return the rho of a run: its published noise and strength, its moves by brute force."""
    total = Fraction(0)
    facts, numbers = facts_of(release), runs_of(release.values[None], town).numbers
    if facts.total_std:
        total += Fraction(town.limit) ** 2 / (2 * Fraction(facts.total_std) ** 2)
    elif not town.replace or facts.total != DECLARED:
        return Fraction(10**9)  # a total without noise is beyond any budget
    for chosen, std in zip(numbers[0].tolist(), facts.noise_std, strict=True):
        move = worst_move(chosen, replace=town.replace) * town.limit**2
        total += move / (2 * Fraction(std) ** 2)
    if facts.selection_scale is None:
        return total
    rate = 1 / Fraction(facts.selection_scale)
    return total + numbers.size * (rate * town.span) ** 2 / 8


def facts_of(release: ReleasedRun) -> RapFacts:
    """Return what the manifest says of a run of RAP."""
    if release.manifest.rap is None:
        raise ValueError("the release of an audited town is not by RAP")
    return release.manifest.rap


def figures(town: Town, releases: Sequence[ReleasedRun], split: RhoSplit) -> Finding:
    """Compare published figures with those that follow from the rho charged."""
    pairs = []
    for release in releases:
        facts, run = facts_of(release), runs_of(release.values[None], town)
        scales = split.scales(run)[0] / STEPS_IN_A_COUNT
        if not town.replace:
            pairs += [(facts.total_std or 0.0, split.total_scale / STEPS_IN_A_COUNT)]
        pairs += [(facts.total, split.scaled_to(float(run.totals[0]) / STEPS_IN_A_COUNT))]
        pairs += list(zip(facts.noise_std, scales.tolist(), strict=True))
        if town.settings.adaptive:
            pairs += [(facts.selection_scale or 0.0, 1 / split.rate)]
    return figures_finding(FIGURES, town, pairs)


def figures_finding(claim: str, town: Town, pairs: Sequence[tuple[float, float]]) -> Finding:
    """Compare published figures with those that were worked out."""
    worst = max(abs(given / worked_out - 1) for given, worked_out in pairs)
    evidence = f"{len(pairs)} figures, the largest difference {worst:.1g} of one"
    return Finding(town.name, claim, worst <= _ROUNDING, evidence)


def of_noise(
    town: Town, observed: RapRuns, neighbour: RapRuns, split: RhoSplit
) -> Iterator[Finding]:
    """Test the noise of the total and the counts against discrete Gaussians, and for ties."""
    residuals, scales = [], []
    for runs, rows in ((observed, town.rows), (neighbour, town.neighbour)):
        of_total, of_counts = residuals_of(runs, *truth(town, rows))
        noisy = [of_total] if split.total else []
        residuals.append(np.column_stack([*noisy, of_counts.reshape(len(of_total), -1)]))
        wide = np.repeat(split.scales(runs), split.selected, axis=1)
        same = [np.full(len(of_total), split.total_scale)] if split.total else []
        scales.append(np.column_stack([*same, wide]))
    values, scale = np.concatenate(residuals), np.concatenate(scales)
    z = values / scale
    width, spread = width_of(z)
    cells = 1 << min(_LOW_BITS, int(values.size // _EXPECTED).bit_length() - 1)
    low_bits = chi_square(
        np.bincount(values.ravel() % cells, minlength=cells), np.full(cells, values.size / cells)
    )
    p = combined([_shape(values, scale), width, low_bits])
    yield Finding(
        town.name,
        NOISE,
        p > ALPHA,
        f"{z.size:,} values in {len(z):,} runs, {spread:.4f} of the "
        f"scale, p = {p:.2g}; {_CELLS - 1} degrees of freedom, {cells - 1} of the lowest bits",
        draws=z.size,
        tests=1,
    )
    p = _ties(z)
    yield Finding(
        town.name, TIES, p > ALPHA, f"{len(z):,} runs of {z.shape[1]} values, p = {p:.2g}", tests=1
    )


def _shape(values: Ints, scales: Floats) -> float:
    counted, expected = np.zeros(_CELLS, np.int64), np.zeros(_CELLS)
    quantiles = ndtri(np.arange(1, _CELLS) / _CELLS)
    for scale in np.unique(scales).tolist():
        group = values[scales == scale]
        edges = np.rint(quantiles * scale).astype(np.int64)
        below = NoiseDistribution("gaussian", Fraction(scale)).below(edges)
        expected += group.size * np.diff(np.concatenate([[0.0], below, [1.0]]))
        counted += np.bincount(np.searchsorted(edges, group), minlength=_CELLS)
    return chi_square(counted, expected)


def _ties(z: Floats) -> float:
    """Return the p-value of no correlation: within a run, and of a run with the next.

    By Student's t, which is the exact law of a correlation of two independent normal samples.
    """
    width = z.shape[1]
    pairs = [(z[:, i], z[:, j]) for i in range(width) for j in range(i)]
    pairs += [(z[1:, i], z[:-1, j]) for i in range(width) for j in range(width)]
    p_values = []
    for first, second in pairs:
        r = min(1 - 1e-15, abs(float(np.corrcoef(first, second)[0, 1])))
        free = len(first) - 2
        p_values.append(2 * float(student.sf(r * math.sqrt(free / (1 - r * r)), free)))
    return combined(p_values)


def of_selection(
    town: Town, observed: RapRuns, neighbour: RapRuns, split: RhoSplit
) -> Iterator[Finding]:
    """Test the selections against the exponential mechanism, one draw after another."""
    rounds = [
        draws_of(runs, truth(town, rows)[1], split)
        for runs, rows in ((observed, town.rows), (neighbour, town.neighbour))
    ]
    pairs = [
        (first, next_) for both in rounds for draws in both for first, next_ in pairwise(draws)
    ]
    all_draws = [draw for both in rounds for draws in both for draw in draws]
    possible = all((draw.chance > 0).all() for draw in all_draws)
    tests = [*_single(all_draws), *_paired(pairs)]
    fit = combined([chi_square(*cells) for cells in tests]) if possible else 0.0
    free = " + ".join(str(expected.size - 1) for _, expected in tests)
    drawn = sum(len(draw.outcome) for draw in all_draws)
    yield Finding(
        town.name,
        CHOSEN,
        fit > ALPHA,
        f"{drawn:,} draws, p = {fit:.2g}; {free} degrees of freedom",
        tests=1,
    )
    strength, p = likely_strength(all_draws, split.rate)
    yield Finding(
        town.name,
        SHARP_SELECTIONS,
        p > ALPHA,
        f"{drawn:,} draws look {strength:.3f} times as sharp, p = {p:.2g}",
        tests=1,
    )


Cells = tuple[Ints, Floats]
"""Counts, and what they are expected to be."""


def _single(draws: Sequence[RunDraws]) -> list[Cells]:
    """Return counts of the queries drawn: by draw of a round, and over all draws.

    Runs have laws of their own, which are added up: the statistic is then smaller, if anything.
    """
    m = draws[0].chances.shape[1]
    counted = np.stack([np.bincount(draw.outcome, minlength=m) for draw in draws])
    expected = np.stack([draw.chances.sum(axis=0) for draw in draws])
    return [pooled(counted, expected), pooled(counted.sum(axis=0), expected.sum(axis=0))]


def _paired(pairs: Sequence[tuple[RunDraws, RunDraws]]) -> list[Cells]:
    """Return counts of draws by the draw before in the round, and by the distance from it."""
    m = pairs[0][0].chances.shape[1]
    counted, expected = np.zeros((2, m, m), np.int64), np.zeros((2, m, m))
    for first, second in pairs:
        np.add.at(counted[0], (first.outcome, second.outcome), 1)
        np.add.at(expected[0], first.outcome, second.chances)
        np.add.at(counted[1, 0], (second.outcome - first.outcome) % m, 1)
        np.add.at(expected[1, 0], (np.arange(m) - first.outcome[:, None]) % m, second.chances)
    return [pooled(counted[0], expected[0]), pooled(counted[1, 0], expected[1, 0])]


def likely_strength(draws: Sequence[RunDraws], rate: float) -> tuple[float, float]:
    """Return the most likely strength of selection over the declared one, and a p-value.

    With M the moment generating function of the score that is drawn, P(scores so far up) is at most
    exp of the least sum of ln M(t) - t score over t [Chernoff], and so is it down: at the t that
    fits best. That holds for any number of draws.
    """
    gaps = [
        draw.scores - draw.scores[np.arange(len(draw.outcome)), draw.outcome][:, None]
        for draw in draws
    ]

    def tilted(t: float) -> float:
        return sum(
            float(np.log((draw.chances * np.exp(t * gap)).sum(axis=1)).sum())
            for draw, gap in zip(draws, gaps, strict=True)
        )

    best = minimize_scalar(tilted, bounds=(-rate, 3 * rate), method="bounded")
    return 1 + float(best.x) / rate, min(1.0, 2 * math.exp(min(0.0, float(best.fun))))
