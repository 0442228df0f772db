"""The laws of noise, one object each: what it is called, costs, deviates by, and is drawn as.

With f(y) = exp(-|y|^power / (power scale^power)), noise y has weight f(y) on the integers, or it is
a real of density proportional to f(y), rounded: a whole answer plus rounded noise is the answer
plus real noise, rounded, which is a mechanism and post-processing.

To add a law, write its object here and enter it in LAWS; one with another f is a class below `Law`
whose methods say otherwise. `bulk_noise` draws f, `accounting` has prices in other currencies, and
the audit works every law out once more.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from dpquery.arrays import Floats
from dpquery.spec.spec import Accounting
from dpquery.strategy.strategy import Noise

LawName = Literal["laplace", "gaussian", "rounded"]


@dataclass(frozen=True)
class Law:
    """A law of noise, for every scale."""

    name: LawName  # in keys, but for the first law of each power
    title: str  # in releases
    kind: Accounting  # of guarantee that it gives
    power: Literal[1, 2]  # 1: moves cost their L1 norm D1; 2: the square of their L2 norm, D2^2
    divisor: int  # at scale t moves of cost D take D / (divisor t^power) of a guarantee
    real: bool = False  # drawn as a real, and rounded

    @property
    def noise(self) -> Noise:
        """The kind of noise that strategies are optimised for where they have this law."""
        return "laplace" if self.power == 1 else "gaussian"

    @property
    def tagged(self) -> bool:
        """Whether keys name it: those of the first law of each kind of noise say nothing."""
        return self != next(law for law in LAWS.values() if law.noise == self.noise)

    def cost(self, sensitivity: Fraction | int, scale: float) -> Fraction:
        """Return the exact epsilon, rho or squared mu of noise of a scale.

        The sensitivity is exact, in grid steps: D1 or D2^2.
        """
        return sensitivity / (self.divisor * Fraction(scale) ** self.power)

    def scale(self, move: float, amount: float) -> float:
        """Return about the scale that has this cost where neighbours move by D1 or D2."""
        cost = self.divisor * amount
        return move / (cost if self.power == 1 else math.sqrt(cost))

    def unit_variance(self, amount: float) -> float:
        """Return the variance of noise that costs so much at sensitivity 1, but for rounding."""
        return 2 / self.power / (self.divisor * amount) ** (2 // self.power)

    def std(self, scale: float) -> float:
        """Return the standard deviation of noise of a scale, in its steps.

        That of rounded noise of variance scale^2 + 1/12, to 2e-8 of it at a scale of 1 and to 1e-15
        from 2 on; that of the continuous laws for discrete noise: exact to 1e-7 of it for Gaussian
        noise, and for Laplace noise too large by 1 / (24 scale^2) of it, 4 % at a scale of 1.
        """
        fine = math.sqrt(2 / self.power) * scale
        return math.hypot(fine, math.sqrt(1 / 12)) if self.real else fine

    def quantile(self, tail: Floats) -> Floats:
        """Return what noise of standard deviation one exceeds with these probabilities."""
        from scipy.special import ndtri  # which only replicates ask for: not at every start

        return -ndtri(tail) if self.power == 2 else -np.log(2 * tail) / math.sqrt(2)


LAWS: Mapping[LawName, Law] = {
    law.name: law
    for law in (
        Law("laplace", "discrete Laplace", "pure", power=1, divisor=1),
        Law("gaussian", "discrete Gaussian", "zcdp", power=2, divisor=2),
        Law("rounded", "rounded Gaussian", "gdp", power=2, divisor=1, real=True),
    )
}


def law_of(kind: Accounting) -> Law:
    """Return the law that is drawn where a guarantee of a kind is asked for."""
    return next(law for law in LAWS.values() if law.kind == kind)
