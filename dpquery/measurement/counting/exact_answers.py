"""Exact answers of integer strategies: no float ever touches a true count.

The entries of a Kronecker product of rounded factors can need 80 bits and more. Answers are then
computed in digits of as many bits as the factors leave room for in int64, one array a digit and no
more digits than the bits so far need, with carries after every factor, and cut down to a grid of
2^shift by flooring. Where the answers fit 62 bits before the weight is applied, only the product
with the weight is computed in two parts. The path depends on the strategy alone.
"""

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import DataError, UnsupportedWorkloadError
from dpquery.limits import RECORD_BITS
from dpquery.operators.blocks import PIECE
from dpquery.operators.cells import CellClassBlock
from dpquery.operators.factors import Ones
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.strategy import WeightedBlock, WeightedColumns, by_form, column_matrices

Tables = MutableMapping[Subset, Ints]
"""The true marginals over attribute subsets: confidential, one axis an attribute."""
ENTRY_BITS = 25  # of a strategy's entries on the grid: 2^(36 + 25) stays below 2^62
_LEAST_DIGIT = 24  # bits


def largest_entry(measurement: WeightedColumns) -> int:
    """Return a bound on the absolute entries of a measurement's matrix."""
    block = measurement.block
    largest = measurement.weight * math.prod(max(1, factor.max_abs) for factor in block.factors)
    if block.is_product or all(factor.zero_one for factor in block.factors):
        return largest  # of an r-of-k block: its rows count records that meet r predicates or not
    return largest * sum(abs(coef) for coef, _ in block.terms)


def grid_shift(measurements: tuple[WeightedBlock, ...]) -> int:
    """Return the shift at which every entry fits ENTRY_BITS: answers are kept over 2^shift."""
    widest = max(largest_entry(alike[0]) for alike in by_form(column_matrices(measurements)))
    return max(0, widest.bit_length() - ENTRY_BITS)


def exact_answers(
    measurement: WeightedBlock, table: Ints, *, shift: int, bits: int = RECORD_BITS
) -> Ints:
    """Return floor(weight * block(table) / 2^shift), exactly.

    Args:
        measurement: integer weight times integer block.
        table: the true marginal over the block's attributes, int64.
        shift: from `grid_shift`; more where the table may hold more.
        bits: of the most that the table may hold, whatever the sign, less one.

    Returns:
        (m,) int64, every entry below 2^62 in size.

    Raises:
        DataError: the table holds 2^36 records or more.
    """
    return answers_alike([measurement], [table], shift=shift, bits=bits)


def answers_alike(
    measurements: Sequence[WeightedBlock],
    tables: Sequence[Ints],
    *,
    shift: int,
    bits: int = RECORD_BITS,
) -> Ints:
    """Return the answers of measurements that differ in their attributes alone, end to end.

    Raises:
        DataError: as `exact_answers`.
    """
    classed = [one.block for one in measurements if isinstance(one.block, CellClassBlock)]
    tables = [*map(CellClassBlock.class_table, classed, tables)] if classed else tables
    (columns,) = column_matrices(measurements[:1])
    table = tables[0]
    if len(tables) > 1:
        table = np.stack(tables)
        columns = replace(columns, block=columns.block.repeated(len(tables)))
    flat = table.reshape(len(tables), -1)
    signed = flat.size and flat.min() < 0
    if flat.size and int((np.abs(flat) if signed else flat).sum(axis=1).max()) >= 1 << bits:
        raise DataError(
            f"the data file holds more than 2^{RECORD_BITS} records, or steps of weights; split "
            "it, or declare a larger `step`"
        )
    return _exact_answers(columns, table, shift, bits)


def _exact_answers(measurement: WeightedColumns, table: Ints, shift: int, record_bits: int) -> Ints:
    block, weight, bits = measurement.block, measurement.weight, _bits(measurement, record_bits)
    if bits <= 62:
        answers = np.multiply(block.apply(table).ravel(), weight)
        return np.right_shift(answers, shift, out=answers)
    if (
        _bits(replace(measurement, weight=1), record_bits) <= 62
        and weight.bit_length() + shift <= 62
    ):
        return _scaled(block.apply(table).ravel(), weight, shift)
    width, twos = _digit_bits(measurement), _twos(weight)
    total: list[Ints] = []
    for coef, mask in block.terms:
        largest = (1 << record_bits) - 1
        digits = _carried([table], width, record_bits)
        for factor, inside in zip(block.factors[::-1], mask[::-1], strict=True):
            applied = factor if inside else Ones(*factor.shape)
            largest *= max(1, applied.max_abs)
            *others, n = digits[0].shape  # the last axis becomes the first one
            flat = (digit.reshape(-1, n).T for digit in digits)
            digits = [applied.matmat(digit).reshape(-1, *others) for digit in flat]
            digits = _carried(digits, width, largest.bit_length())
        pairs = zip_longest(total, digits, fillvalue=np.zeros((), np.int64))
        total = [partial + coef * digit for partial, digit in pairs]
    if weight >> twos > 1 or len(block.terms) > 1:
        scaled = [(weight >> twos) * digit for digit in _carried(total, width, bits - twos)]
        total = _carried(scaled, width, bits - twos)
    return _floor_shift(total, width, shift - twos).ravel()


def _scaled(answers: Ints, weight: int, shift: int) -> Ints:
    """Return floor(weight * answers / 2^shift), which is known to fit 62 bits, as the answers do.

    With answers = 2^shift high + low that is weight * high + floor(weight * low / 2^shift): piece
    by piece, so that what is in between stays in a core's cache.
    """
    out, low = np.empty_like(answers), (1 << shift) - 1
    for start in range(0, len(answers), PIECE):
        piece = answers[start : start + PIECE]
        out[start : start + PIECE] = weight * (piece >> shift) + (weight * (piece & low) >> shift)
    return out


def check_width(measurements: tuple[WeightedBlock, ...]) -> None:
    """Refuse strategy entries too wide for digits of 24 bits, before anything is charged."""
    for weighted in (alike[0] for alike in by_form(column_matrices(measurements))):
        if _bits(weighted, RECORD_BITS) > 62 and _digit_bits(weighted) < _LEAST_DIGIT:
            raise UnsupportedWorkloadError(
                "the plan's integers are too wide for exact arithmetic; run `dpquery plan` again"
            )


def _bits(measurement: WeightedColumns, record_bits: int) -> int:
    """Return the bits of the largest answer that the declared limits allow."""
    return record_bits + largest_entry(measurement).bit_length()


def _digit_bits(measurement: WeightedColumns) -> int:
    """Return of how many bits digits are, so that 61 hold them times whatever is applied."""
    block, weight = measurement.block, measurement.weight
    signed = sum(abs(coef) for coef, _ in block.terms)
    growth = max(weight >> _twos(weight), signed, *(factor.growth() for factor in block.factors))
    return 61 - growth.bit_length()


def _twos(weight: int) -> int:
    """Return how many times a weight can be halved."""
    return (weight & -weight).bit_length() - 1


def _carried(digits: list[Ints], width: int, bits: int) -> list[Ints]:
    """Return the same number of so many bits in digits of [0, 2^width), all but the last."""
    missing = -(-bits // width) - len(digits)
    out = [*digits, *[np.zeros((), np.int64)] * missing]
    for k in range(len(out) - 1):
        carry = out[k] >> width
        out[k] = out[k] & ((1 << width) - 1)
        out[k + 1] = out[k + 1] + carry
    return out


def _floor_shift(digits: list[Ints], width: int, shift: int) -> Ints:
    """Return floor(sum_k digits[k] 2^(width k) / 2^shift), which is known to fit 62 bits.

    Sums are taken modulo 2^64, as int64 does: a digit 64 places up adds nothing, and the sign
    digits above cancel. Of digits wholly below the cut nothing is left but the sign of the last.
    """
    total = np.zeros_like(digits[0])
    for k, digit in enumerate(digits):
        place = width * k - shift
        if place < 0:
            total = total + (digit >> min(-place, 63))
        elif place < 64:
            total = total + (digit << place)
    return total
