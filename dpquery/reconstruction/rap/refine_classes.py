"""Relaxed rows for questions that tell more apart than was ever measured."""

from collections.abc import Sequence

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.factors import Array
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows

MAX_NUMBERS = 1 << 28  # of relaxed rows: a gigabyte


def spread_evenly(
    rows: RelaxedRows, classes: Sequence[Array], finer: Sequence[Array]
) -> RelaxedRows:
    """Give each code of a class the same share of its probability.

    Nothing that was measured says how the codes of a class differ, so this is a guess, and the one
    that favours none.

    Args:
        rows: over `classes`.
        classes: for each attribute the class of every code.
        finer: the same for the questions; no class is of codes from two of `classes`.

    Returns:
        Relaxed rows over `finer`; the very same ones where that is no finer.

    Raises:
        UnsupportedWorkloadError: they would be too many numbers to hold.
    """
    parts, shape = [], tuple(int(own.max()) + 1 for own in finer)
    if shape == rows.shape:
        return rows
    numbers = len(rows.values) * sum(shape)
    if numbers > MAX_NUMBERS:
        raise UnsupportedWorkloadError(
            f"the questions tell {sum(shape):,} values apart, which takes relaxed rows of "
            f"{numbers:,} numbers, and the limit is {MAX_NUMBERS:,}; ask for wider ranges"
        )
    for i, (before, after) in enumerate(zip(classes, finer, strict=True)):
        _, first = np.unique(after, return_index=True)
        parent = before[first]
        share = np.bincount(after) / np.bincount(before)[parent]
        parts.append(rows.distribution(i)[:, parent] * share.astype(np.float32))
    return RelaxedRows(shape, np.ascontiguousarray(np.concatenate(parts, axis=1)))
