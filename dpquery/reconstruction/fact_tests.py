"""Whether noisy answers contradict what is publicly known of them, and what is then relied on.

What is known less what was estimated, decorrelated, is pure noise where the facts are true: n
values of variance one. The sum of their squares is chi-squared with n degrees of freedom under
Gaussian noise. Under Laplace noise each is a sum of Laplace variables; the reference is the sum of
squares of n of them, the law where every fact was measured by one value ([MATH] 25).
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc

from dpquery.arrays import Floats
from dpquery.reconstruction.least_squares import Estimates, discrepancies
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.informed import InformedStrategy

CONTRADICTED = 1e-6  # chance below which a fact is not relied on
LEAST_CHANCE = 1e-12  # that is told apart from none
_STEPS = 1 << 18  # of the grid on which the law of squares of Laplace variables is added up


@dataclass(frozen=True)
class FactTest:
    """What the noisy answers say of a source of public facts.

    Attributes:
        source: of the facts.
        degrees: how many equalities were tested, none of which follows from the others.
        statistic: the sum of squares, in variances of the noise; 0 where nothing was tested.
        chance: that noise makes it so large where the facts are true: at least LEAST_CHANCE.
    """

    source: str
    degrees: int
    statistic: float
    chance: float

    @property
    def contradicted(self) -> bool:
        """Whether the facts are not relied on."""
        return self.chance < CONTRADICTED


def tested_facts(
    strategy: InformedStrategy, estimates: Estimates, *, noise_std: float
) -> tuple[InformedStrategy, tuple[FactTest, ...]]:
    """Return the strategy that relies on no contradicted fact, and the tests of all.

    Sources are tested one after the other, each given those before it. The one that is least likely
    is left out, until none is contradicted.

    Args:
        strategy: says what is known.
        estimates: of what was measured, without the facts.
        noise_std: standard deviation of the noise on each measured row.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    refuted: list[FactTest] = []
    while True:
        tests = _tests(strategy, estimates, noise_std)
        worst = min(tests, key=lambda test: test.chance, default=None)
        if worst is None or not worst.contradicted:
            order = strategy.sources
            return strategy, tuple(sorted([*tests, *refuted], key=lambda t: order.index(t.source)))
        refuted.append(worst)
        strategy = strategy.without(worst.source)


def _tests(strategy: InformedStrategy, estimates: Estimates, noise_std: float) -> list[FactTest]:
    squares = (discrepancies(strategy, estimates) / noise_std) ** 2
    by_source: dict[str, list[Floats]] = {
        source: [] for source in strategy.sources if source not in strategy.left_out
    }
    start = 0
    for each in strategy.equalities:
        by_source[each.source].append(squares[start : start + len(each.values)])
        start += len(each.values)
    tests = []
    for source, parts in by_source.items():
        values = np.concatenate([np.zeros(0), *parts])
        total = float(values.sum())
        tests.append(
            FactTest(source, len(values), total, _chance(total, len(values), strategy.noise))
        )
    return tests


def _chance(statistic: float, degrees: int, noise: Noise) -> float:
    if degrees == 0:
        return 1.0
    beyond = laplace_squares if noise == "laplace" else chdtrc
    chance = beyond(degrees, statistic)
    return min(1.0, max(LEAST_CHANCE, float(chance)))


def laplace_squares(count: int, statistic: float) -> float:
    """Return the chance that squares of so many Laplace variables of variance 1 add up to more.

    The law of one is exact on every step of a grid, and is added up by its Fourier transform, to
    some 1e-11 of all chance.
    """
    far = count + 40.0 * np.sqrt(5.0 * count) + 1000.0  # beyond lies a chance of 1e-13
    if statistic >= far:
        return 0.0
    edges = (np.arange(_STEPS + 1) - 0.5) * (2 * far / _STEPS)
    below = -np.expm1(-np.sqrt(2.0 * np.maximum(edges, 0.0)))
    law = np.fft.irfft(np.fft.rfft(np.diff(below)) ** count, _STEPS)
    return float(law[edges[1:] > statistic].sum())
