"""Rational functions below the square root: sums of a few inverses instead of a decomposition.

    r(x) = sum_k c_k x / (x + tau_k) <= sqrt(x)
is the trapezoid rule for (2/pi) integral_0^oo x / (x + u^2) du in log u.
"""

import math

import numpy as np

from dpquery.arrays import Floats

NODE_STEP = 1.0  # of log u; the rule is then right to 2 exp(-pi^2)
POLE_SPAN = 1e-11  # least pole over the largest eigenvalue: rounding stays far below it
LAST_NODE = 2.0  # of log u: the last at seven times sqrt(whole)
POLES = math.ceil((LAST_NODE - 0.5 * math.log(POLE_SPAN)) / NODE_STEP) + 1


def root_nodes(whole: float, step: float = NODE_STEP) -> tuple[Floats, Floats, float]:
    """Return (c, tau, slope) with sum_k c_k x / (x + tau_k) + slope x <= sqrt(x) for x <= whole.

    The sum over all nodes is sqrt(x) within a factor 1 +- 2 sum_m sech(pi^2 m / step), which c is
    divided by. Nodes below the first are counted at the first, those above the last as if x were
    `whole`: both only make the sum smaller.
    """
    poles = math.ceil((LAST_NODE - 0.5 * math.log(POLE_SPAN)) / step) + 1
    more = math.ceil(60 / step)
    u = np.exp(0.5 * math.log(POLE_SPAN * whole) + step * np.arange(poles + more))
    excess = 1 + 2 * sum(1 / math.cosh(math.pi**2 * m / step) for m in range(1, 9))
    c = (2 / math.pi) * step * u / excess
    c[0] /= 1 - math.exp(-step)
    slope = float((c[poles:] / (whole + u[poles:] ** 2)).sum())
    return c[:poles], u[:poles] ** 2, slope
