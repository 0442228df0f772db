"""The curve of GDP in interval arithmetic holds by 300-bit arithmetic and by other libraries.

Every search is also run with planted mistakes: a unit too much, delta ignored, a rounding the other
way; each must be refused.
"""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest

from dpquery.measurement import gdp
from dpquery.measurement.accounting import UNIT, Guarantee, charge_units, guarantee, noise_scale
from dpquery.measurement.gdp import (
    PI,
    Interval,
    delta_of,
    epsilon_of_gdp,
    mills,
    squared_mu_of,
    squared_mu_of_pure,
)
from dpquery.measurement.noise.laplace_cost import HALF_PI_ABOVE, laplace_squared_mu

mpmath = pytest.importorskip("mpmath")
dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting judges our conversions")
pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

EPSILONS = [Fraction(e) for e in ("1e-6", "1e-3", "0.1", "0.5", "1", "4", "20", "1000", "1e6")]
DELTAS = [
    Fraction(d) for d in ("1e-100", "1e-30", "1e-9", "1e-6", "1e-3", "0.1", "0.9", "0.999999")
]


@pytest.fixture(autouse=True)
def precise():
    """Work in 1,200 bits: what cancels is far less than that."""
    with mpmath.workprec(1200):
        yield


def exact(value):
    return mpmath.mpf(value.numerator) / mpmath.mpf(value.denominator)


def exact_delta(epsilon, squared_mu):
    """Delta by its definition."""
    mu, e = mpmath.sqrt(exact(squared_mu)), exact(epsilon)
    upper = mpmath.erfc((e / mu - mu / 2) / mpmath.sqrt(2))
    return (upper - mpmath.exp(e) * mpmath.erfc((e / mu + mu / 2) / mpmath.sqrt(2))) / 2


def test_pi_is_between_its_bounds_by_machin_s_formula():
    def arctan_of_inverse(n, terms):
        return sum(Fraction((-1) ** k, (2 * k + 1) * n ** (2 * k + 1)) for k in range(terms))

    low = 4 * (4 * arctan_of_inverse(5, 60) - arctan_of_inverse(239, 21))
    high = 4 * (4 * arctan_of_inverse(5, 61) - arctan_of_inverse(239, 20))
    assert Fraction(PI.low) < low < high < Fraction(PI.high)
    assert Fraction(PI.high) / 2 < HALF_PI_ABOVE < Fraction(PI.high) / 2 + Fraction(1, 10**39)


@pytest.mark.parametrize(
    "x", ["-40", "-6.5", "-6", "-1", "0", "0.3", "2", "5.99", "6", "7", "40", "1e9"]
)
def test_mills_ratio_is_between_its_bounds(x):
    bounds = mills(Interval(Decimal(x), Decimal(x)))
    with mpmath.workprec(4000):
        at = mpmath.mpf(x)
        if at < 100:
            ratio = mpmath.exp(at**2 / 2) * mpmath.erfc(at / mpmath.sqrt(2))
            ratio *= mpmath.sqrt(mpmath.pi / 2)
        else:
            ratio = 1 / at - 1 / at**3 + 3 / at**5 - 15 / at**7 + 105 / at**9
        assert mpmath.mpf(str(bounds.low)) <= ratio <= mpmath.mpf(str(bounds.high))
    assert bounds.high - bounds.low <= bounds.high * Decimal("1e-40")


@pytest.mark.parametrize("x", ["5", "5.5", "6", "6.5", "8"])
def test_the_series_and_the_continued_fraction_have_a_number_in_common(x):
    at = Interval(Decimal(x), Decimal(x))
    root = gdp._HALF_ROOT * (at * at / Interval.of(2)).exp()
    series = root - gdp._series(Decimal(x))
    fraction = gdp._continued_fraction(Decimal(x))
    assert max(series.low, fraction.low) <= min(series.high, fraction.high)


def curve_faults(squared_mu_for, epsilons=EPSILONS, deltas=DELTAS):
    """What is wrong with a conversion from (epsilon, delta): too much, or too little."""
    for epsilon, delta in itertools.product(epsilons, deltas):
        squared_mu = squared_mu_for(epsilon, delta)
        if squared_mu > 0 and exact_delta(epsilon, squared_mu) > exact(delta):
            yield "unsafe", epsilon, delta
        if exact_delta(epsilon, squared_mu + Fraction(1, UNIT)) <= exact(delta):
            yield "wasteful", epsilon, delta


def epsilon_faults(epsilon_for):
    for squared_mu, delta in itertools.product(
        map(Fraction, ("1e-9", "0.05", "1", "9")), DELTAS[2:]
    ):
        epsilon = epsilon_for(squared_mu, delta)
        if exact_delta(epsilon, squared_mu) > exact(delta):
            yield "unsafe", squared_mu, delta
        if epsilon > 0 and exact_delta(epsilon - Fraction(2, UNIT), squared_mu) <= exact(delta):
            yield "wasteful", squared_mu, delta


def pure_faults(squared_mu_for):
    """Randomised response: the curve of mu must be at or below its one corner, and only just."""
    for epsilon in EPSILONS:
        squared_mu = squared_mu_for(epsilon)
        corner = 1 / (1 + mpmath.exp(exact(epsilon)))
        for mu2, safe in ((squared_mu, True), (squared_mu - Fraction(1, UNIT), False)):
            half = mpmath.sqrt(exact(mu2)) / 2
            if (mpmath.erfc(half / mpmath.sqrt(2)) / 2 <= corner) != safe:
                yield "unsafe" if safe else "wasteful", epsilon


@pytest.mark.nightly
def test_mu_is_the_largest_whole_number_of_units_that_keeps_the_promise(record_property):
    assert list(curve_faults(squared_mu_of)) == []
    record_property("conversions", len(EPSILONS) * len(DELTAS))


def test_epsilon_is_the_least_whole_number_of_units_that_mu_implies():
    assert list(epsilon_faults(epsilon_of_gdp)) == []
    assert epsilon_of_gdp(Fraction(1), Fraction("0.5")) == 0  # the total variation is 0.383


def test_pure_noise_costs_the_least_mu_whose_curve_lies_below_randomised_response():
    assert list(pure_faults(squared_mu_of_pure)) == []


UP = Fraction(1, UNIT)


@pytest.mark.parametrize(
    ("faults", "planted"),
    [
        pytest.param(curve_faults, lambda e, d: squared_mu_of(e, d) + UP, id="a unit too much"),
        pytest.param(curve_faults, lambda e, d: squared_mu_of(e, d) - UP, id="a unit too little"),
        pytest.param(curve_faults, lambda e, d: squared_mu_of(e, Fraction(1, 2)), id="any delta"),
        pytest.param(
            curve_faults,
            lambda e, d: 2 * guarantee("gaussian", epsilon=max(e, Fraction(1)), delta=d).amount,
            id="by way of zCDP",
        ),
        pytest.param(epsilon_faults, lambda m, d: epsilon_of_gdp(m * m, d), id="mu for mu^2"),
        pytest.param(epsilon_faults, lambda m, d: epsilon_of_gdp(m, d) - 2 * UP, id="rounded down"),
        pytest.param(pure_faults, lambda e: squared_mu_of_pure(e) - UP, id="pure rounded down"),
        pytest.param(pure_faults, lambda e: squared_mu_of_pure(e) / 4, id="half of mu"),
    ],
)
def test_a_planted_mistake_is_found(faults, planted):
    assert next(faults(planted), None) is not None


@pytest.mark.parametrize("epsilon", ["0.1", "0.5", "1", "4"])
@pytest.mark.parametrize("delta", ["1e-6", "1e-9"])
def test_sigma_is_that_of_dp_accounting_and_at_least_what_opendp_asks(epsilon, delta):
    spent = guarantee(
        "gaussian", epsilon=Fraction(epsilon), delta=Fraction(delta), accounting="gdp"
    )
    sigma = noise_scale(spent, 10**12) / 10**6
    theirs = dp_accounting.get_sigma_gaussian(float(epsilon), float(delta))
    assert sigma == pytest.approx(theirs, rel=1e-7)
    judged = pld.from_gaussian_mechanism(sigma, use_connect_dots=True)
    assert judged.get_delta_for_epsilon(float(epsilon)) == pytest.approx(float(delta), rel=2e-3)
    by_rho = guarantee("gaussian", epsilon=Fraction(epsilon), delta=Fraction(delta))
    dp.enable_features("contrib")
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    measured = dp.m.make_gaussian(*space, scale=noise_scale(by_rho, 1))
    opendp = dp.c.make_zCDP_to_approxDP(measured).map(1.0).epsilon(delta=float(delta))
    assert opendp == pytest.approx(float(epsilon), rel=1e-6)  # and that takes more noise
    assert 1.04 < noise_scale(by_rho, 10**12) / 10**6 / sigma < 1.1


def test_sixteen_releases_of_a_sixteenth_keep_the_promise_by_dp_accounting():
    whole = squared_mu_of(Fraction(1), Fraction(1, 10**6))
    share = Guarantee("gdp", whole / 16, Fraction(1), Fraction(1, 10**6))
    assert 16 * charge_units(share, "mu^2") <= math.floor(whole * UNIT) + 16
    one = pld.from_gaussian_mechanism(1 / math.sqrt(whole / 16), use_connect_dots=True)
    assert one.self_compose(16).get_delta_for_epsilon(1.0) == pytest.approx(1e-6, rel=5e-3)
    assert one.self_compose(17).get_delta_for_epsilon(1.0) > 1.2e-6


def laplace_law(scale, shift, reach):
    y = np.arange(-reach, reach + shift + 1)
    at = np.exp(-np.abs(y) / scale)
    moved = np.exp(-np.abs(y - shift) / scale)
    return at / at.sum(), moved / moved.sum()


@pytest.mark.parametrize("moves", [(1,), (3,), (2, 1), (1, 1, 1), (4, 4)])
@pytest.mark.parametrize("scale", [1.0, 2.5, 8.0])
def test_laplace_noise_is_gdp_for_what_it_is_charged(moves, scale):
    """By its definition, at every epsilon: no event tells the laws apart better than mu allows."""
    p = q = np.ones(1)
    for move in moves:
        law, moved = laplace_law(scale, move, int(12 * scale))
        p, q = np.multiply.outer(p, law).ravel(), np.multiply.outer(q, moved).ravel()
        kept = (p > 1e-13) | (q > 1e-13)
        p, q = p[kept], q[kept]
    spent = Guarantee(
        "pure",
        Fraction(sum(moves)) / Fraction(scale),
        Fraction(1),
        Fraction(0),
        squared_mu=laplace_squared_mu(sum(move**2 for move in moves), scale=scale),
    )
    charged = Fraction(charge_units(spent, "mu^2"), UNIT)
    deltas = {}
    for epsilon in np.linspace(0, float(spent.amount), 25):
        seen = np.maximum(p - np.exp(epsilon) * q, 0).sum()
        deltas[epsilon] = seen
        assert seen <= float(delta_of(Fraction(float(epsilon)), charged).high) + 1e-9
    assert any(
        seen > float(delta_of(Fraction(float(epsilon)), charged / 3).high) + 1e-9
        for epsilon, seen in deltas.items()
    )
