"""The audit's statistics are right: exact laws, level, power, and what contradicts a claim."""

import math
from fractions import Fraction

import numpy as np
import pytest
from dense import cdf
from scipy.stats import binom, binomtest, chi2, kstest, norm

from dpquery.audit.statistics import (
    ALPHA,
    NoiseDistribution,
    chi_square,
    clopper_pearson,
    combined,
    goodness_of_fit,
    pooled,
    pure_loss,
    zcdp_loss,
)
from dpquery.measurement.noise.bulk_noise import BulkSampler

SCALES = [1.0, 2.0, 3.3, 5.0, 12.0, 199.0, 201.0, 1000.3, 999_983.0, 2.0**45 + 1]
ROUNDED = 1 + 1e-12
NOISES = ["laplace", "gaussian", "rounded"]


def masses(noise, scale, reach):
    """The law from its definition, one value after the other."""
    steps = np.arange(-reach, reach + 1)
    if noise == "rounded":
        far = np.abs(steps)
        return steps, norm.sf((far - 0.5) / scale) - norm.sf((far + 0.5) / scale)
    power = {"laplace": 1, "gaussian": 2}[noise]
    weights = np.exp(-(np.abs(steps) ** power) / (power * scale**power))
    return steps, weights / weights.sum()


@pytest.mark.parametrize("scale", [1.0, 2.0, 3.3, 12.0, 199.0, 201.0, 250.5])
@pytest.mark.parametrize("noise", NOISES)
def test_the_law_is_the_sum_of_its_masses(noise, scale):
    steps, masses_at = masses(noise, scale, math.ceil(45 * scale))
    near = np.abs(steps) <= 12 * scale
    law = NoiseDistribution(noise, Fraction(scale))
    assert np.abs(law.below(steps[near]) - np.cumsum(masses_at)[near]).max() < 1e-11


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("noise", NOISES)
def test_the_law_agrees_with_that_of_the_other_tests(noise, scale):
    k = np.rint(np.linspace(-6, 6, 101) * scale).astype(np.int64)
    assert (
        np.abs(NoiseDistribution(noise, Fraction(scale)).below(k) - cdf(noise, scale, k)).max()
        < 2e-8
    )


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_log_ratio_is_that_of_the_masses(noise):
    steps, masses_at = masses(noise, 3.3, 60)
    values, shifts = np.array([[0, 2], [-5, 1], [7, -9]]), np.array([3, -1])
    at = dict(zip(steps.tolist(), np.log(masses_at), strict=True))
    expected = [
        sum(at[v] - at[v - s] for v, s in zip(row, shifts.tolist(), strict=True))
        for row in values.tolist()
    ]
    assert NoiseDistribution(noise, Fraction(3.3)).log_ratio(values, shifts) == pytest.approx(
        expected
    )


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("scale", [1.0, 3.3, 999_983.0])
@pytest.mark.parametrize("noise", NOISES)
def test_p_values_of_sound_noise_are_uniform(noise, scale):
    sampler, law = BulkSampler(noise, scale), NoiseDistribution(noise, Fraction(scale))
    p_values = [goodness_of_fit(sampler.sample(8_000), law) for _ in range(300)]
    below = [p for p in p_values if p < 1]  # doubled, so half of them are 1
    assert kstest(below, "uniform").pvalue > 1e-9
    assert binom.sf(len(below) - 1, len(p_values), 0.5) > 1e-9


@pytest.mark.statistical
@pytest.mark.parametrize("factor", [0.95, 1, 1.05])
@pytest.mark.parametrize("scale", [2.0, 3.3, 1000.3, 999_983.0])
@pytest.mark.parametrize("noise", NOISES)
def test_a_scale_five_per_cent_off_is_seen(noise, scale, factor):
    sample = BulkSampler(noise, scale).sample(100_000)
    p = goodness_of_fit(sample, NoiseDistribution(noise, Fraction(scale) * Fraction(factor)))
    assert (p > ALPHA) == (factor == 1)


@pytest.mark.parametrize("trials", [2_000, 100_000])
def test_the_tail_of_the_test_is_honest_where_it_decides(trials):
    """Of two cells the exact chance of each outcome is known, down to one in a hundred million."""
    counts = np.arange(trials + 1)
    expected = np.array([0.03, 0.97]) * trials
    near = np.abs(counts - expected[0]) < 8 * math.sqrt(expected[0])
    p = np.array([chi_square(np.array([k, trials - k]), expected) for k in counts[near]])
    chance = binom.pmf(counts[near], trials, 0.03)
    for alpha in (1e-3, 1e-6, ALPHA):
        assert chance[p < alpha].sum() < alpha


def test_cells_of_few_values_are_taken_together():
    counted, expected = np.array([60, 140, 3, 1]), np.array([100.0, 100.0, 2.0, 2.0])
    statistic = 2 * (60 * math.log(0.6) + 140 * math.log(1.4))
    assert chi_square(counted, expected) == pytest.approx(2 * chi2.sf(statistic, 2))


def test_next_cells_are_pooled_until_there_is_something_to_test():
    counted, expected = np.arange(12).reshape(3, 4), np.full((3, 4), 20.0)
    counts, expectations = pooled(counted, expected)
    assert (counts.tolist(), expectations.tolist()) == (
        [0 + 1 + 2, 3 + 4 + 5, 6 + 7 + 8, 9 + 10 + 11],
        [60] * 4,
    )
    counts, expectations = pooled(counted.ravel()[:10], expected.ravel()[:10])
    assert (counts.tolist(), expectations.tolist()) == ([3, 12, 30], [60, 60, 80])
    assert pooled(np.array([7]), np.array([20.0]))[1].tolist() == [20]


def test_counts_that_leave_nothing_to_test_are_no_test():
    for expected in (np.array([100.0]), np.array([20.0, 29.0])):
        with pytest.raises(ValueError, match="too few"):
            chi_square(np.ones(expected.size, np.int64), expected)


def test_too_few_values_are_not_tested():
    with pytest.raises(ValueError, match="too few"):
        goodness_of_fit(np.zeros(99, np.int64), NoiseDistribution("laplace", Fraction(5)))


def test_p_values_are_combined_by_their_number():
    assert combined([0.2, 1e-9, 0.5]) == pytest.approx(3e-9)
    assert combined([0.9, 0.8]) == 1.0


@pytest.mark.parametrize(("successes", "trials"), [(0, 50), (50, 50), (7, 50), (4999, 10_000)])
@pytest.mark.parametrize("alpha", [0.05, ALPHA])
def test_clopper_and_pearson_agree_with_scipy(successes, trials, alpha):
    exact = binomtest(successes, trials).proportion_ci(1 - alpha, method="exact")
    assert clopper_pearson(successes, trials, alpha=alpha) == pytest.approx(tuple(exact), rel=1e-5)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_only_shares_have_bounds(successes, trials):
    with pytest.raises(ValueError, match=str(trials)):
        clopper_pearson(successes, trials, alpha=0.05)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0])
def test_randomised_response_meets_its_epsilon_and_none_smaller(epsilon):
    p, q = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
    assert pure_loss(p, q) == pytest.approx(epsilon)
    assert pure_loss(p, q) <= epsilon * ROUNDED
    assert pure_loss(p, q) > epsilon * 0.999
    assert pure_loss(q, p) == 0


def test_the_complement_of_an_event_tells_as_much_as_the_event():
    assert pure_loss(0.99, 0.9) > 1.0  # P(not E) is 0.01 and 0.1
    assert pure_loss(0.99, 0.9) <= math.log(10) * ROUNDED


def test_what_happens_on_one_side_only_breaks_every_claim():
    assert pure_loss(0.001, 0.0) > 100.0
    assert pure_loss(1.0, 0.999) > 100.0
    assert zcdp_loss(0.001, 0.0) > 100.0
    assert zcdp_loss(1.0, 0.999) > 100.0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_zcdp_of_randomised_response_is_its_renyi_curve(epsilon):
    p, q = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
    orders = 1 + np.geomspace(1e-4, 1e3, 20_000)
    curve = np.logaddexp(
        orders * math.log(p) + (1 - orders) * math.log(q),
        orders * math.log(q) + (1 - orders) * math.log(p),
    ) / ((orders - 1) * orders)
    assert zcdp_loss(p, q) == pytest.approx(curve.max(), rel=1e-3)
    assert zcdp_loss(p, q) <= epsilon**2 / 2
    assert zcdp_loss(q, p) == 0


@pytest.mark.parametrize("rho", [0.01, 0.125, 0.5, 2.0])
def test_no_event_of_a_gaussian_mechanism_breaks_its_own_rho(rho):
    shift = math.sqrt(2 * rho)
    for threshold in np.linspace(-4, 4 + shift, 60):
        p, q = norm.sf(threshold - shift), norm.sf(threshold)
        assert zcdp_loss(p, q) <= rho * ROUNDED
        assert zcdp_loss(1 - q, 1 - p) <= rho * ROUNDED
    middle = norm.sf(-shift / 2), norm.sf(shift / 2)
    assert zcdp_loss(*middle) > rho * 0.5
