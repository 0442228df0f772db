"""Checks of runs in rounds against their law, in both layouts.

Runs through the real code are tested against the law that is recomputed apart, part by part; and
what the likelihood ratio of whole runs shows, the event that distinguishes neighbours best, is
compared with the rho that was charged.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtri
from scipy.stats import t as student

from dpquery.arrays import Floats, Ints
from dpquery.audit.cases import Size
from dpquery.audit.measurements import WatchedRelease
from dpquery.audit.planned_cases import private_folder, rho_of
from dpquery.audit.rounds_law import Played, RapLaw, RunLaw, run_law, stated
from dpquery.audit.statistics import (
    Finding,
    NoiseDistribution,
    chi_square,
    combined,
    event_bounds,
    pooled,
    width_of,
    zcdp_loss,
)
from dpquery.audit.towns import (
    ALL_QUERIES_AT_ONCE,
    DELTA,
    EPSILON,
    STEPS_IN_A_COUNT,
    TOWNS,
    Bench,
    ShiftedFit,
)
from dpquery.reconstruction.relaxed.fits import RapProjection

CHARGE = "a run costs no more than was charged for it, once, before the data was read"
FIGURES = "the noise and the sharpness that a release names are what its charge pays for"
NOISE = "noise follows the exact discrete Gaussian law at the scale worked out apart"
TIES = "no noise value is tied to another one of its run, or of the run before"
CHOSEN = "each query is drawn by the exponential mechanism among those left"
SHARP_SELECTIONS = "selections are as sharp as their charge pays for"
LAW_OF_TABLES = "runs draw tables, levels and noise by the laws worked out apart"

_OF_QUERIES, _OF_TABLES = 10, 20
"""Of the replicates of a small measurement, one in so many runs: each draws several times."""
_RELEASES = 5
_CELLS = 16
_LOW_BITS, _EXPECTED = 5, 50  # of the noise, and values for each of their cells
_ROUNDING = 1e-9
_EXACT = Fraction(1, 10**12)  # published figures are floats

Cells = tuple[Ints, Floats]
"""Counts, and what they are expected to be."""
Tested = tuple[float, str]
"""A p-value, and the figures behind it in a few words."""


def rap(size: Size) -> Iterator[Finding]:
    """Test runs of RAP on made-up towns against their law, for every kind of neighbour."""
    with private_folder() as folder:
        for number, town in enumerate(TOWNS if size.quick else (*TOWNS, ALL_QUERIES_AT_ONCE)):
            yield from audited(Bench.of(town, folder / str(number)), size)


def audited(bench: Bench, size: Size) -> Iterator[Finding]:
    """Test the runs of one town that is asked single queries."""
    town = bench.town
    releases = [bench.release(k) for k in range(1, 1 + max(1, size.releases // _RELEASES))]
    law = run_law(town, releases[0].rho)
    yield from of_releases(law, releases)
    runs = runs_of(bench, law, size.replicates // _OF_QUERIES)
    observed = [runs[0][0], runs[1][1], _again(bench, law, releases)]
    draws = sum(run.noise.size for run in observed)
    yield Finding.of_chance(town.name, NOISE, *noise_fit(observed), draws=draws)
    yield Finding.of_chance(town.name, TIES, *ties(observed))
    if town.settings.adaptive:
        yield Finding.of_chance(town.name, CHOSEN, *choices_of(observed, town.settings.selected))
        yield Finding.of_chance(town.name, SHARP_SELECTIONS, *sharpness(observed))
        yield apart(law, runs)


def adaptive(size: Size) -> Iterator[Finding]:
    """Test adaptive runs over whole tables on made-up towns against their law."""
    observed: list[Played] = []
    with private_folder() as folder:
        for number, town in enumerate(TOWNS):
            bench = Bench.of(replace(town, tables=True), folder / str(number))
            releases = [bench.release(1)]
            law = run_law(bench.town, releases[0].rho)
            yield from of_releases(law, releases)
            runs = runs_of(bench, law, size.replicates // _OF_TABLES)
            observed += [runs[0][0], runs[1][1]]
    yield of_tables(observed)


def of_tables(observed: Sequence[Played]) -> Finding:
    """Test all noise and all draws of tables as one."""
    parts = [noise_fit(observed), choices_of(observed, 1), sharpness(observed)]
    evidence = "; ".join(words for _, words in parts)
    draws = sum(run.noise.size for run in observed)
    p = combined(p for p, _ in parts)
    return Finding.of_chance("all towns", LAW_OF_TABLES, p, evidence, draws=draws)


def runs_of(bench: Bench, law: RunLaw, number: int) -> list[list[Played]]:
    """Return so many runs of each of two neighbours, each as it is on either of them."""
    town = bench.town
    start, files = town.start, ("data.csv", "neighbour.csv")
    truths = [town.truth(rows) for rows in (town.rows, town.neighbour)]
    return [
        [
            Played.of(law.steps(values, truth, ShiftedFit(start)) for values in vectors)
            for truth in truths
        ]
        for vectors in (bench.vectors(file, number) for file in files)
    ]


def _again(bench: Bench, law: RunLaw, releases: Sequence[WatchedRelease]) -> Played:
    """Return the runs of releases of RAP, their relaxed rows fitted again before each round."""
    if not isinstance(law, RapLaw):
        raise TypeError("only RAP's rows are fitted again")
    town, workload = bench.town, bench.query.compiled.workload
    truth = town.truth(town.rows)
    totals = [law.scaled_to(float(release.values[0]) / STEPS_IN_A_COUNT) for release in releases]
    fits = (RapProjection(workload, town.settings, total) for total in totals)
    pairs = zip(releases, fits, strict=True)
    return Played.of(law.steps(release.values, truth, fit) for release, fit in pairs)


def of_releases(law: RunLaw, releases: Sequence[WatchedRelease]) -> Iterator[Finding]:
    """Compare what runs cost with the charge and its time, and published figures with the law."""
    costs, figures = zip(*(stated(law, release) for release in releases), strict=True)
    paid = all(
        cost <= release.rho * (1 + _EXACT) for cost, release in zip(costs, releases, strict=True)
    )
    early = all(release.early for release in releases)
    rho, due = float(law.rho), rho_of(float(EPSILON), float(DELTA))
    yield Finding(
        law.town.name,
        CHARGE,
        paid and early and rho <= due * (1 + _ROUNDING),
        f"{len(releases)} releases: cost {float(max(costs)):.9g} of {rho:.9g} charged, of "
        f"{due:.9g} promised; {'on record' if early else 'NOT on record'} at the first read",
    )
    off = [abs(published / due - 1) for each in figures for published, due in each]
    evidence = f"{len(off)} figures, the largest difference {max(off):.1g} of one"
    yield Finding(law.town.name, FIGURES, max(off) <= _ROUNDING, evidence)


def noise_fit(observed: Sequence[Played]) -> Tested:
    """Test noise against discrete Gaussians, its width and its lowest bits."""
    values, scales, z = (
        np.concatenate([getattr(run, name) for run in observed])
        for name in ("noise", "scales", "z")
    )
    width, spread = width_of(z)
    cells = 1 << min(_LOW_BITS, int(values.size // _EXPECTED).bit_length() - 1)
    low_bits = chi_square(
        np.bincount(values % cells, minlength=cells), np.full(cells, values.size / cells)
    )
    counted, expected = np.zeros(_CELLS, np.int64), np.zeros(_CELLS)
    quantiles = ndtri(np.arange(1, _CELLS) / _CELLS)
    for scale in np.unique(scales).tolist():
        group = values[scales == scale]
        edges = np.rint(quantiles * scale).astype(np.int64)
        below = NoiseDistribution("gaussian", Fraction(scale)).below(edges)
        expected += group.size * np.diff(np.concatenate([[0.0], below, [1.0]]))
        counted += np.bincount(np.searchsorted(edges, group), minlength=_CELLS)
    return (
        combined([chi_square(counted, expected), width, low_bits]),
        f"{z.size:,} values, {spread:.4f} of the scale; {_CELLS - 1} degrees of freedom, "
        f"{cells - 1} of the lowest bits",
    )


def ties(observed: Sequence[Played]) -> Tested:
    """Test that noise is not correlated: within a run, and of a run with the next.

    By Student's t, which is the exact law of a correlation of two independent normal samples. All
    runs have as many values.
    """
    z = np.concatenate([run.z.reshape(run.noise_of[-1] + 1, -1) for run in observed])
    width = z.shape[1]
    pairs = [(z[:, i], z[:, j]) for i in range(width) for j in range(i)]
    pairs += [(z[1:, i], z[:-1, j]) for i in range(width) for j in range(width)]
    p_values = []
    for first, second in pairs:
        r = min(1 - 1e-15, abs(float(np.corrcoef(first, second)[0, 1])))
        free = len(first) - 2
        p_values.append(2 * float(student.sf(r * math.sqrt(free / (1 - r * r)), free)))
    return combined(p_values), f"{len(z):,} runs of {width} values"


def choices_of(observed: Sequence[Played], selected: int) -> Tested:
    """Test what was drawn, so many in a round, against the exponential mechanism.

    Runs have laws of their own, which are added up: the statistic is then smaller, if anything.
    """
    by_place = [_cells(run.places, run.outcomes, run.chances) for run in observed]
    counted, expected = (np.concatenate(cells) for cells in zip(*by_place, strict=True))
    tests = [pooled(counted, expected), pooled(counted.sum(axis=0), expected.sum(axis=0))]
    tests = [cells for cells in [*tests, *paired(observed, selected)] if cells[1].size > 1]
    possible = all((run.chance > 0).all() for run in observed)
    fit = combined([chi_square(*cells) for cells in tests]) if possible else 0.0
    free = " + ".join(str(expected.size - 1) for _, expected in tests)
    return fit, f"{counted.sum():,} draws; {free} degrees of freedom"


def paired(observed: Sequence[Played], selected: int) -> list[Cells]:
    """Return counts of draws by the draw before in the round, and by the distance from it."""
    if selected == 1:
        return []
    pairs = [(run, np.flatnonzero(run.places % selected < selected - 1)) for run in observed]
    before = np.concatenate([run.outcomes[first] for run, first in pairs])
    outcome = np.concatenate([run.outcomes[first + 1] for run, first in pairs])
    chance = np.concatenate([run.chances[first + 1] for run, first in pairs])
    m = chance.shape[1]
    turned = np.take_along_axis(chance, (np.arange(m) + before[:, None]) % m, axis=1)
    apart = _cells(np.zeros_like(before), (outcome - before) % m, turned)
    return [pooled(*_cells(before, outcome, chance)), pooled(*apart)]


def _cells(groups: Ints, outcomes: Ints, chances: Floats) -> Cells:
    """Return how often each group drew each outcome, and how often it should."""
    shape = int(groups.max()) + 1, chances.shape[1]
    counted, expected = np.zeros(shape, np.int64), np.zeros(shape)
    np.add.at(counted, (groups, outcomes), 1)
    np.add.at(expected, groups, chances)
    return counted, expected


def sharpness(observed: Sequence[Played]) -> Tested:
    """Test the most likely strength of all choices against the declared one.

    With M the moment generating function of the exponent that is drawn, P(exponents so far up) is
    at most exp of the least sum of ln M(t) - t exponent over t [Chernoff], and so is it down: at
    the t that fits best. That holds for any number of draws.
    """
    gaps, chances = [], []
    for run in observed:
        (possible,) = np.nonzero(run.chance > 0)
        own = run.exponents[possible, run.outcomes[possible], None]
        chances.append(run.chances[possible])
        gaps.append(np.where(chances[-1] > 0, run.exponents[possible] - own, 0))
    gap, chance = np.concatenate(gaps), np.concatenate(chances)

    def tilted(t: float) -> float:
        return float(np.log((chance * np.exp(t * gap)).sum(axis=1)).sum())

    best = minimize_scalar(tilted, bounds=(-1, 3), method="bounded")
    p = min(1.0, 2 * math.exp(min(0.0, float(best.fun))))
    return p, f"{len(gap):,} draws look {1 + float(best.x):.3f} times as sharp"


def apart(law: RunLaw, runs: Sequence[Sequence[Played]]) -> Finding:
    """Compare what the most distinguishing event of whole runs shows with the rho charged.

    That event is that a run is likelier on one of two neighbours.
    """
    ratios = [on[0].log_likelihoods - on[1].log_likelihoods for on in runs]
    seen = zcdp_loss(*event_bounds(ratios[0], ratios[1], 0.0))
    return Finding.of_loss(law.town.name, "rho", seen, float(law.rho), len(ratios[0]))
