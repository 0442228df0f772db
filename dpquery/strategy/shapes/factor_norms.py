"""The column norms of integer factors, as Python integers."""

from collections.abc import Hashable

import numpy as np

from dpquery.arrays import Numbers
from dpquery.operators.block_p_identity import BlockPIdentity
from dpquery.operators.factors import ROW_CHUNK, Factor, PIdentity
from dpquery.operators.hierarchies import Hierarchy
from dpquery.operators.merged import Spread
from dpquery.operators.orbit_rows import OrbitRows
from dpquery.operators.trees import Tree
from dpquery.operators.valued import Valued

_HALF_BITS = 31
_HALF = (1 << _HALF_BITS) - 1


class FactorNorms:
    """The column norms of factors, computed once for equal ones: marginals share theirs."""

    def __init__(self) -> None:
        self.known: dict[Hashable, list[int]] = {}

    def of(self, factor: Factor, power: int) -> list[int]:
        """Return sum_i |F_ij|^power for every column, or once where all columns have the same."""
        key = (factor.key, power)
        if key not in self.known:
            norms = factor_norms(factor, power)
            self.known[key] = norms if min(norms) < max(norms) else norms[:1]
        return self.known[key]


def factor_norms(factor: Factor, power: int) -> list[int]:
    """Return sum_i |F_ij|^power in Python ints, exact where int64 would wrap.

    For every column; once for a hierarchy, all of whose columns have the same.
    """
    if isinstance(factor, OrbitRows):
        return factor.exact_norms(power)
    if factor.max_abs() ** power * factor.shape[0] < 1 << 63:
        return [int(v) for v in factor.column_norms(power)]
    if isinstance(factor, Spread):
        norms = factor_norms(factor.inner, power)
        return norms if len(norms) == 1 else [norms[code] for code in factor.classes.tolist()]
    if isinstance(factor, Valued):
        norms = factor_norms(factor.inner, power)
        return [abs(v) ** power * n for v, n in zip(factor.values.tolist(), norms, strict=True)]
    if isinstance(factor, Hierarchy):
        return [sum(weight**power for weight in factor.weights)]
    if isinstance(factor, Tree):
        return factor.exact_norms(power)
    if isinstance(factor, PIdentity):
        below = _wide_norms(factor.rows, power)
        return [int(d) ** power + norm for d, norm in zip(factor.diagonal, below, strict=True)]
    if isinstance(factor, BlockPIdentity):
        below = _wide_norms(factor.inner, power)
        outer = _wide_norms(factor.outer, power)
        parts = zip(factor.diagonal.tolist(), below, strict=True)
        return [d**power + x + outer[j // factor.size] for j, (d, x) in enumerate(parts)]
    return _wide_norms(factor.dense(), power)


def _wide_norms(matrix: Numbers, power: int) -> list[int]:
    """Return sum_i |F_ij|^power of entries below 2^62, power 1 or 2, for every column.

    In digits of 31 bits, the squares of which are added up by their halves: sums of 2^31 rows fit.
    """
    rows, columns = matrix.shape
    total: Numbers = np.zeros(columns, dtype=object)
    step = max(1, ROW_CHUNK // columns)
    for start in range(0, rows, step):
        part = np.abs(matrix[start : start + step])
        low, high = part & _HALF, part >> _HALF_BITS
        if power == 1:
            digits = {0: low, _HALF_BITS: high}
        else:
            digits = {0: low * low, _HALF_BITS + 1: low * high, 2 * _HALF_BITS: high * high}
        for place, digit in digits.items():
            for half, shift in ((digit & _HALF, place), (digit >> _HALF_BITS, place + _HALF_BITS)):
                total = total + half.sum(axis=0).astype(object) * (1 << shift)
    return [int(norm) for norm in total]
