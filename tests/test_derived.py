"""Derived items: equal to brute force without noise, and intervals that hold their level."""

import numpy as np
import pytest
from derived_support import Simulated, strategies, town, truth

from dpquery.public_chance import public_generator

NOISES = ("gaussian", "laplace")


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", [0, 1])
def test_statistics_of_exact_answers_are_those_of_the_counts(noise, kind):
    counts = town(3000)
    given = Simulated(strategies(noise)[kind]).rows(counts, public_generator(1), 0.0)
    for name, expected in truth(counts).items():
        assert given[name].estimate == pytest.approx(expected, rel=1e-6), name
        assert not given[name].lost.any()


@pytest.mark.parametrize("noise", ["gaussian", pytest.param("laplace", marks=pytest.mark.slow)])
def test_intervals_hold_their_level(noise):
    """At a middle signal; every shape of statistic, all rows of 120 releases together."""
    counts, chance = town(3000), public_generator(7)
    simulated, expected, repeats = Simulated(strategies(noise)[0]), truth(counts), 120
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
