"""What a record adds to the sums of differences of replicate weights: whole steps of the grid.

A replicate weight that is no number is 0, as it is of records that a replicate leaves out. The
differences of a weight that is cut off are taken of what is left of it: they are as much smaller as
it is. Those of a record that adds no weight are 0.
"""

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.spec.spec import RecordWeight

_FAR = 2.0**40  # steps, beyond which a difference is not told from a larger one
_ABOVE_ONE = 1 + 1e-12  # the rounding of floats is less than what is above


def difference_steps(full: Floats, replicates: Floats, weight: RecordWeight) -> Ints:
    """Return the differences of records in steps, (k, n).

    They are rounded to the nearest step. Where that makes them longer together than the cap, they
    are scaled down to it and rounded towards 0; a hair less where floats leave them too long.

    Args:
        full: weights above 0, (n,).
        replicates: the replicate weights, (k, n); nan where there is no number.
        weight: says the grid and the caps.

    Privacy: the squares of what a record adds add up to the cap's at most, whatever its numbers
    are: that is checked on whole numbers, which floats hold exactly up to there.
    """
    most, exact = weight.difference_steps, exact_differences(full, replicates, weight)
    scaled = exact * (most / np.maximum(np.sqrt((exact**2).sum(axis=0)), most))
    steps = np.zeros_like(exact)
    for tried in (np.trunc(scaled / _ABOVE_ONE), np.trunc(scaled * _ABOVE_ONE), np.rint(exact)):
        steps = np.where((tried**2).sum(axis=0) <= most**2, tried, steps)
    return steps.astype(np.int64)


def exact_differences(full: Floats, replicates: Floats, weight: RecordWeight) -> Floats:
    """Return the same before they are rounded or scaled down, (k, n)."""
    left = np.minimum(1.0, float(weight.at_most) / full) / float(weight.step)
    with np.errstate(over="ignore"):  # of numbers near the largest float
        return np.clip((np.nan_to_num(replicates) - full) * left, -_FAR, _FAR)
