"""Sigma by every accounting, for 1, 4 and 16 equal releases of one budget: `make bench-accounting`.

dpquery's own: in mu^2 of GDP and in rho of zCDP. Beside them the analytic Gaussian mechanism, that
is one measurement that takes everything, cut into equal ones; the privacy loss distributions of
dp-accounting, of a list that is fixed in advance; and what OpenDP's conversion from zCDP asks for.
"""

import math
from fractions import Fraction
from itertools import product

import opendp.prelude as dp
from dp_accounting import get_sigma_gaussian
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.optimize import brentq

from dpquery.measurement.accounting import UNIT, Guarantee, budget_cap, noise_scale
from dpquery.spec.spec import Accounting, Budget, Privacy

EPSILONS, DELTAS, RELEASES = ("0.1", "1", "4"), ("1e-6", "1e-9"), (1, 4, 16)
_FINE = 10**6  # sensitivity in steps, so that the scale has its digits


def ours(epsilon: str, delta: str, releases: int, accounting: Accounting) -> float:
    """Return the sigma of releases of which so many fill the cap."""
    budget = Budget(Fraction(epsilon), Fraction(delta), accounting=accounting)
    share = Fraction(budget_cap(budget, Privacy()).units // releases, UNIT)
    spent = Guarantee(accounting, share, Fraction(epsilon), Fraction(delta))
    return noise_scale(spent, _FINE**2) / _FINE


def by_pld(epsilon: str, delta: str, releases: int, near: float) -> float:
    """Return the least sigma by dp-accounting, composing the list."""

    def excess(sigma: float) -> float:
        one = from_gaussian_mechanism(
            sigma, value_discretization_interval=1e-4, use_connect_dots=True
        )
        spent = one.self_compose(releases).get_delta_for_epsilon(float(epsilon))
        return math.log(spent / float(delta))

    return brentq(excess, near * 0.98, near * 1.02, xtol=near * 1e-6)


def by_opendp(epsilon: str, delta: str, releases: int, near: float) -> float:
    """Return the least sigma by OpenDP's conversion of the sum of rho."""
    dp.enable_features("contrib")
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)

    def excess(sigma: float) -> float:
        one = dp.m.make_gaussian(*space, scale=sigma)
        both = dp.c.make_zCDP_to_approxDP(dp.c.make_composition([one] * releases))
        return both.map(1.0).epsilon(delta=float(delta)) - float(epsilon)

    return brentq(excess, near * 0.9, near * 1.3, xtol=near * 1e-6)


def main() -> None:
    """Print the table of tests/reference/accounting.md."""
    judged = "| dpquery, mu^2 | analytic | PLD, fixed list | dpquery, rho | OpenDP |"
    print(f"| epsilon | delta | releases {judged}\n|{'---|' * 8}")
    for epsilon, delta, releases in product(EPSILONS, DELTAS, RELEASES):
        sigma = ours(epsilon, delta, releases, "gdp")
        figures = [
            sigma,
            get_sigma_gaussian(float(epsilon), float(delta)) * math.sqrt(releases),
            by_pld(epsilon, delta, releases, sigma),
            ours(epsilon, delta, releases, "zcdp"),
            by_opendp(epsilon, delta, releases, sigma),
        ]
        cells = " | ".join(f"{figure:#.6g}" for figure in figures)
        print(f"| {epsilon} | {delta} | {releases} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
