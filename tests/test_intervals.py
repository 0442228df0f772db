"""Noise intervals: the quantile against the inverted characteristic function."""

import numpy as np
import pytest
from scipy.optimize import brentq

from dpquery.operators.blocks import product
from dpquery.operators.factors import Identity, PIdentity
from dpquery.operators.ranges import AllRanges
from dpquery.reconstruction.intervals import half_widths, laplace_quantile, standard_errors
from dpquery.strategy.strategies import ProductStrategy


def inverted_quantile(c, level):
    """The slow twin: Gil-Pelaez inversion of prod 1 / (1 + c^2 t^2 / 2) at unit variance."""
    c = np.asarray(c) / np.sqrt(np.sum(np.square(c)))
    t = np.linspace(1e-6, 300, 200_001)
    phi = np.exp(-sum(np.log1p(t**2 / 2 * own**2) for own in c))
    tail = lambda q: 1 - 2 / np.pi * np.trapezoid(phi * np.sin(t * q) / t, t)  # noqa: E731
    return brentq(lambda q: tail(q) - (1 - level), 0.5, 8, xtol=1e-5)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_the_quantile_is_never_narrow_and_at_most_1_1_percent_wide(level):
    rng = np.random.default_rng(0)
    for trial in range(12):
        c = rng.random(rng.integers(1, 10)) ** rng.integers(1, 8)
        concentration = np.sum(c**4) / np.sum(c**2) ** 2
        ratio = laplace_quantile(np.array([concentration]), level)[0] / inverted_quantile(c, level)
        assert 1 - 5e-4 < ratio < 1.011, trial


@pytest.mark.parametrize("k", [1, 2, 5])
def test_equal_weights_are_exact(k):
    exact = inverted_quantile(np.ones(k), 0.95)
    assert laplace_quantile(np.array([1 / k]), 0.95)[0] == pytest.approx(exact, rel=3e-4)


@pytest.mark.statistical
def test_intervals_of_a_laplace_strategy_cover_what_they_say():
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 2**13, (2, 12))
    strategy = ProductStrategy(
        "p", "laplace", (PIdentity(2**16 - rows.sum(axis=0), rows), Identity(3))
    )
    block = product((12, 3), {0: AllRanges(12), 1: Identity(3)})
    scale = 1000.0
    std = standard_errors(strategy, block, position=0, noise_std=scale * 2**0.5)
    half = half_widths(strategy, block, std, position=0, level=0.95)
    plus = np.kron(strategy.pseudo_inverses[0], np.eye(3)) / strategy.measurements[0].weight
    W = np.array([block.matvec(e) for e in np.eye(36)]).T
    noise = W @ plus @ rng.laplace(scale=scale, size=(plus.shape[1], 40_000))
    coverage = (np.abs(noise) <= half[:, None]).mean(axis=1)
    assert noise.std(axis=1) == pytest.approx(std, rel=0.03)
    assert coverage.min() > 0.946
    assert coverage.max() < 0.957
