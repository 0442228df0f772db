"""How to split a budget between measurements that are answered side by side.

A measurement of weight s has error E / s^2 and costs s p of an L1 budget (p its sensitivity) or
s^2 p of an L2 budget (p its squared sensitivity). Under a fixed total cost the sum of errors is
least where s^3 goes with E / p (L1) or s^4 with E / p (L2): [YCPS13] Cor. 3.3 for groups of rows,
by Lagrange multipliers.
"""

import numpy as np

from dpquery.operators.factors import Array
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.strategies import BITS, significant

LEAST = 1e-12  # of the largest share: what is hardly asked for is measured all the same


def split_budget(errors: Array, costs: Array, *, noise: Noise) -> list[int]:
    """Return the integer weights that minimise sum errors / weight^2 at a fixed total cost.

    Args:
        errors: sum of squared errors of what each measurement answers, at unit noise and weight.
        costs: sensitivity of each ("laplace"), or squared sensitivity ("gaussian").
        noise: which of the two adds up.
    """
    power = 1 if noise == "laplace" else 2
    shares = np.asarray(errors, dtype=np.float64) * costs ** (2 / power)
    shares = np.maximum(shares, LEAST * float(shares.max()))
    wanted = shares ** (1 / (2 + power)) / costs ** (1 / power)
    scale = float(1 << BITS) / float(wanted.min())
    return [significant(float(own) * scale) for own in wanted]
