"""The integer queries that a strategy measures; how real factors and weights become integers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.operators.block_p_identity import BlockPIdentity
from dpquery.operators.blocks import Block
from dpquery.operators.cell_classes import CellClassBlock
from dpquery.operators.factors import Dense, Factor, PIdentity
from dpquery.operators.trees import Tree
from dpquery.strategy.noise_kinds import Noise

BITS = 16  # of an integerised real factor: rounding moves the loss by about 2^-BITS
RESOLUTION = 16  # least bits of a strategy's largest entry: keeps the noise fine-grained


@dataclass(frozen=True, eq=False)
class WeightedBlock:
    """The integer queries weight * block, answered from the marginal over block.attributes."""

    weight: int
    block: Block | CellClassBlock


@dataclass(frozen=True, eq=False)
class WeightedColumns:
    """The integer queries weight * block, as a matrix over codes of attributes."""

    weight: int
    block: Block


def column_matrices(measurements: Sequence[WeightedBlock]) -> tuple[WeightedColumns, ...]:
    """Return measurements as matrices with the same columns, each column once or more often.

    A record that enters, leaves or moves changes the answers by the same columns in both: those of
    classes of cells are the columns of the cells.

    Raises:
        ValueError: they are not over the same classes of cells, so that no column is one of both.
    """
    kinds = {
        id(rows.block.classes) if isinstance(rows.block, CellClassBlock) else None
        for rows in measurements
    }
    if len(kinds) > 1:
        raise ValueError("measurements over different classes of cells")
    return tuple(
        WeightedColumns(
            rows.weight,
            rows.block.inner if isinstance(rows.block, CellClassBlock) else rows.block,
        )
        for rows in measurements
    )


def resolution(entry: int) -> int:
    """Return the power of two that lifts a largest entry to RESOLUTION bits."""
    return 1 << max(0, RESOLUTION + 1 - entry.bit_length())


def significant(weight: float, bits: int = BITS) -> int:
    """Round a positive weight to so many significant bits: an integer, times a power of two.

    >>> significant(3.0e9), significant(0.2)
    (3000008704, 1)
    """
    spare = max(0, math.frexp(weight)[1] - bits - 1)
    return max(1, round(math.ldexp(weight, -spare))) << spare


def integer_factor(factor: Factor, *, noise: Noise, bits: int = BITS) -> Factor:
    """Round a real factor to a grid of 2^-bits and return it times 2^bits, in integers.

    Under Laplace noise the diagonal of a p-Identity takes up the rounding of its rows, so every
    column keeps L1 norm 2^bits and the sensitivity does not grow (by more than p / 2^bits where
    the diagonal all but vanishes).
    """
    if np.issubdtype(factor.dtype, np.integer):
        return factor
    if isinstance(factor, PIdentity) and noise == "laplace":
        rows = np.rint(factor.rows * (1 << bits)).astype(np.int64)
        diagonal = np.maximum((1 << bits) - rows.sum(axis=0), 1)  # 0 would lose a column
        return PIdentity(diagonal, rows)
    if isinstance(factor, Tree):
        return _integer_tree(factor, noise, bits)
    if isinstance(factor, BlockPIdentity) and noise == "laplace":
        inner, outer = (
            np.rint(part * (1 << bits)).astype(np.int64) for part in (factor.inner, factor.outer)
        )
        below = BlockPIdentity(np.zeros_like(inner[0]), inner, outer, factor.size)
        diagonal = np.maximum((1 << bits) - below.column_norms(1), 1)
        return BlockPIdentity(diagonal, inner, outer, factor.size)
    return Dense(np.rint(factor.dense() * (1 << bits)).astype(np.int64))


def _integer_tree(factor: Tree, noise: Noise, bits: int) -> Tree:
    """Round the weights of blocks; those of codes take up the rounding on their paths."""
    levels = [np.rint(level * (1 << bits)).astype(np.int64) for level in factor.weights]
    power = 1 if noise == "laplace" else 2
    levels[0] = np.ones_like(levels[0])
    left = (1 << bits * power) - (Tree(factor.parents, levels).column_norms(power) - 1)
    if noise == "gaussian":
        left = np.floor(np.sqrt(np.maximum(left, 1))).astype(np.int64)
    levels[0] = np.maximum(left, 1)
    return Tree(factor.parents, levels)
