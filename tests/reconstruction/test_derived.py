"""Derived items: equal to brute force without noise, and intervals that hold their level."""

import numpy as np
import pytest
from derived_support import HEAD, Simulated, strategies, town, truth
from scipy.special import ndtri

from dpquery.public_chance import public_generator
from dpquery.reconstruction.derived import (
    KnownRange,
    NoisyPairs,
    limits_of,
    quotient_rows,
    rows_in,
)
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.parsing.read import parse

NOISES = ("gaussian", "laplace")


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", [0, 1])
def test_statistics_of_exact_answers_are_those_of_the_counts(noise, kind):
    counts = town(3000)
    given = Simulated(strategies(noise)[kind]).rows(counts, public_generator(1), 0.0)
    for name, expected in truth(counts).items():
        assert given[name].estimate == pytest.approx(expected, rel=1e-6), name
        assert not given[name].lost.any()


def coefficients(simulated, table):
    """What every answer of a table makes of the measured rows, one unit of noise at a time."""
    sizes = [rows.block.queries for rows in simulated.strategy.measurements]
    block, position = simulated.tables[table]
    estimates = (
        reconstruct(simulated.strategy, np.split(unit, np.cumsum(sizes)[:-1]))
        for unit in np.eye(sum(sizes))
    )
    return np.array([one.answer(block, position).ravel() for one in estimates]).T


@pytest.mark.parametrize("kind", [0, 1])
def test_errors_are_those_of_the_joint_noise(kind):
    """The ends of an interval are where n - t d is q of its standard deviations from zero."""
    simulated = Simulated(strategies("gaussian")[kind])
    given = simulated.rows(town(3000), public_generator(2), 60.0, level=0.9)
    q, compared = float(ndtri(0.95)), 0
    for item in simulated.spec.derived:
        statistic, rows = item.statistic, given[item.name]
        if statistic.kind == "quantiles":
            continue
        above, below = statistic.tables
        n, d = (simulated.joint.estimate(table) for table in (above, below))
        C, D = coefficients(simulated, above), coefficients(simulated, below)
        if statistic.kind != "difference":
            d, D = d[rows_in(above, below)], D[rows_in(above, below)]
        for k, estimate in enumerate(rows.estimate):
            for t in (rows.low[k], rows.high[k]):
                off, t = (
                    (n[k] - d[k] - t, 1.0)
                    if statistic.kind == "difference"
                    else (n[k] - t * d[k], t)
                )
                assert abs(off) == pytest.approx(q * 60 * np.linalg.norm(C[k] - t * D[k]))
            t, scale = (1.0, 1.0) if statistic.kind == "difference" else (estimate, d[k])
            assert rows.std_error[k] == pytest.approx(60 * np.linalg.norm(C[k] - t * D[k]) / scale)
            compared += 1
    assert compared == 17


def test_intervals_of_quantiles_are_the_places_that_could_be_crossings():
    """Places on a fine grid, each tested by the noise of its interpolated count."""
    simulated = Simulated(strategies("gaussian")[0])
    given = simulated.rows(town(3000), public_generator(3), 150.0, level=0.9)["medians"]
    table = simulated.spec.derived[4].statistic.cumulative
    C = coefficients(simulated, table).reshape(2, 5, -1)
    P = simulated.joint.estimate(table).reshape(2, 5)
    edges, q = np.array([0, 10, 20, 40, 80, 160.0]), float(ndtri(0.95))
    grid = np.linspace(0, 5, 20001)
    for g in range(2):
        counts, noise = np.append(0, P[g]), np.vstack([np.zeros(C.shape[2]), C[g]])
        at = np.array([np.interp(grid, range(6), counts)]).T
        part, share = np.minimum(grid.astype(int), 4), (grid - np.minimum(grid.astype(int), 4))
        spread = noise[part] * (1 - share)[:, None] + noise[part + 1] * share[:, None]
        for k, p in enumerate((0.25, 0.5, 0.75)):
            off = np.abs(at[:, 0] - p * counts[-1])
            possible = grid[off <= q * 150 * np.linalg.norm(spread - p * noise[-1], axis=1)]
            low, high = np.interp([possible[0], possible[-1]], range(6), edges)
            row = 3 * g + k
            assert given.low[row] == pytest.approx(min(low, given.estimate[row]), abs=0.01)
            assert given.high[row] == pytest.approx(max(high, given.estimate[row]), abs=0.01)


@pytest.mark.parametrize("other", ["drop", "show", "count"])
def test_a_mean_of_values_that_some_records_lack_lies_within_them(other):
    text = HEAD.replace("other: drop", f"other: {other}") + "  - {name: m, mean: {sum: hours}}\n"
    (item,) = parse(text, name="town.yaml", files={}).derived
    assert limits_of(item.statistic) == KnownRange(0, 5)


def test_what_is_lost_in_noise_has_no_estimate_and_says_why():
    simulated = Simulated(strategies("gaussian")[0])
    given = simulated.rows(town(3000), public_generator(4), 1e6)
    for name in ("shares", "mean", "medians", "middle"):
        rows = given[name]
        assert rows.lost.any()
        assert "lost in noise" in rows.reason
        for values in (rows.estimate, rows.low, rows.high):
            assert np.array_equal(np.isnan(values), rows.lost)


@pytest.mark.parametrize("noise", ["gaussian", pytest.param("laplace", marks=pytest.mark.slow)])
def test_intervals_hold_their_level(noise):
    """At a middle signal; every shape of statistic, all rows of 60 releases together."""
    counts, chance = town(3000), public_generator(7)
    simulated, expected, repeats = Simulated(strategies(noise)[0]), truth(counts), 60
    held = {name: [] for name in expected}
    for _ in range(repeats):
        for name, rows in simulated.rows(counts, chance, 60.0, level=0.9).items():
            low = np.where(np.isnan(rows.low), -np.inf, rows.low)
            high = np.where(np.isnan(rows.high), np.inf, rows.high)
            held[name].append((low <= expected[name]) & (expected[name] <= high))
    for name, hits in held.items():
        share = np.mean(hits)
        assert share >= 0.87, (name, share)
        if name not in ("middle", "medians"):  # of whole values: at least the level
            assert share <= 0.93, (name, share)


def quotients_given(signal, ratio, correlation, noise, draws, seed=0):
    """Share of printed rows whose interval holds the ratio; draws are of two answers' noise."""
    chance = public_generator(seed)
    if noise == "gaussian":
        q, units = float(ndtri(0.975)), chance.normal(size=(2, draws))
    else:
        q, units = -np.log(0.05) / np.sqrt(2), chance.laplace(scale=np.sqrt(0.5), size=(2, draws))
    above = correlation * units[0] + np.sqrt(1 - correlation**2) * units[1] + ratio * signal
    ones = np.ones(draws)
    pairs = NoisyPairs(above, units[0] + signal, ones, ones, correlation * ones)
    rows = quotient_rows(pairs, lambda t: np.full(len(t), q), q)
    printed = ~rows.lost
    assert not np.isnan(rows.low[printed] + rows.high[printed] + rows.estimate[printed]).any()
    holds = (rows.low <= ratio) & (ratio <= rows.high)
    return holds[printed].mean(), printed.mean()


SIGNALS = [0.25, 0.5, 1, 1.5, 2, 2.5, 3, 4, 4.5, 5, 6, 8]
DRAWS = [20_000, pytest.param(500_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("noise", NOISES)
def test_quotients_that_are_printed_hold_their_level_at_every_signal(noise, draws):
    for signal in SIGNALS:
        for ratio in (0.1, 0.5, 0.9, 3):
            for correlation in (-0.7, 0, 0.6):
                held, _ = quotients_given(signal, ratio, correlation, noise, draws)
                assert held >= 0.945, (signal, ratio, correlation)


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("noise", NOISES)
def test_empty_groups_seldom_have_a_quotient(noise, draws):
    _, printed = quotients_given(0.0, 0.5, 0.3, noise, draws)
    assert printed <= 0.03
