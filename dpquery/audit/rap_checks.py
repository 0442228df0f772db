"""The checks of RAP: its charge, its noise, its selections, and what an observer can learn.

The whole run is one mechanism whose law is known to the last factor: a discrete Gaussian for the
total and for every count, a softmax for every selection, and a public side that follows from what
was measured. So runs through the real code are tested against that law, recomputed here, part by
part; and what the likelihood ratio of whole transcripts shows, the event that distinguishes
neighbours best, is compared with the rho that was charged.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtri
from scipy.stats import t as student

from dpquery.arrays import Floats, Ints
from dpquery.audit.cases import Size
from dpquery.audit.rap_runs import (
    RapRuns,
    RhoSplit,
    RunDraws,
    draws_of,
    log_likelihood,
    rap_runs,
    residuals_of,
    run_of_release,
    runs_of,
    worst_move,
)
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
    DECLARED,
    DELTA,
    EPSILON,
    STEPS_IN_A_COUNT,
    TOWNS,
    Bench,
    ReleasedRun,
    Town,
    TownRow,
    answers_of,
    released_run,
)
from dpquery.releases.manifest_facts import RapFacts

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
        town.name,
        TIES,
        p > ALPHA,
        f"{len(z):,} runs of {z.shape[1]} values, p = {p:.2g}",
        tests=1,
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
