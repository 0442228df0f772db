"""What discrete Laplace noise costs in zCDP and in GDP, bounded from above for a vector.

Noise of scale t on a whole number that neighbours move by s costs the Kullback-Leibler divergence
of the two laws, for D_alpha / alpha is largest where alpha tends to 1:

    kappa(s) = x - k (1 - exp(-x)),  x = s / t,  k = 1 / (t sinh(1 / t)) < 1.

Rows have independent noise, so that a vector of moves s_1, s_2, ... costs the sum of their kappa.
kappa(s) = x r(x), where r(x) = 1 - k (1 - exp(-x)) / x is increasing and concave; by Jensen's
inequality moves of L1 norm D1 and squared L2 norm Q therefore cost at most

    sum_k kappa(s_k) <= (D1 / t) r(Q / (D1 t)),

with equality where all rows that move do so by the same, and never above kappa(D1). It grows with
D1 and with Q.

In GDP noise that is epsilon-DP costs at most the squared mu (pi / 2) epsilon^2, and rows add up: Q
as above costs (pi / 2) Q / t^2. The proofs are in docs/MATH.md, section 26.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

_DIGITS = 60
_SLACK = Fraction(1, 10**30)
HALF_PI_ABOVE = Fraction("1.5707963267948966192313216916397514420986")
"""A number just above pi / 2."""


@dataclass(frozen=True)
class Moves:
    """Bounds on how far neighbours move some rows, in grid steps."""

    total: int  # bounds the L1 norm
    squared: int  # bounds the square of the L2 norm


def laplace_rho(blocks: Iterable[Moves] | Counter[Moves], *, scale: float) -> Fraction:
    """Return a rho that noise of a scale gives for moves within these bounds, rounded up.

    Args:
        blocks: bounds for each of some sets of rows, which are moved together; or how many sets
            have the same.
        scale: of the noise in grid steps; 1 or more.

    Privacy: of a whole rho-zCDP at every order alpha > 1, and in both directions.

    >>> float(round(laplace_rho([Moves(2**20, 2**40)], scale=2.0**20), 4))  # all on one row
    0.3679
    >>> float(round(laplace_rho([Moves(2**20, 2**30)], scale=2.0**20), 4))  # on 2^10 rows
    0.0005
    """
    each = Counter(blocks).items()
    costs = (times * (_rho(block, Fraction(scale)) + _SLACK) for block, times in each)
    return sum(costs, Fraction(0))


def laplace_squared_mu(squared: int, *, scale: float) -> Fraction:
    """Return a squared mu that noise of a scale gives for moves of a squared L2 norm, rounded up.

    Args:
        squared: bounds the square of the L2 norm of the moves, in grid steps.
        scale: of the noise in grid steps.

    Privacy: of a whole mu-GDP, in both directions.
    """
    return HALF_PI_ABOVE * squared / Fraction(scale) ** 2


def _rho(block: Moves, scale: Fraction) -> Fraction:
    """Return (D1 / t) r(Q / (D1 t)), good to 1e-30.

    With 60 digits an operation errs by less than 1e-59 of its result. Two differences cancel, that
    of sinh(1 / t) and that of 1 - exp(-z), both down to 2^-53 of what is subtracted, as t < 2^52
    and z >= 1 / t: their ratio errs by less than 1e-41. It is at most 1, and D1 / t, which it
    takes part of, is an epsilon: at most 1e6, or a little more.
    """
    with localcontext(prec=_DIGITS):
        t = _decimal(scale)
        one = 1 / t
        k = 2 * one / (one.exp() - (-one).exp())
        z = _decimal(Fraction(block.squared, block.total) / scale)
        share = k * (1 - (-z).exp()) / z
        return Fraction(block.total / t * (1 - share))


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
