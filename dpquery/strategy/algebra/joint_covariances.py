"""Covariances of answers from products that are solved together: t t' of their coefficients."""

import math
from functools import reduce

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.operators.blocks import Block
from dpquery.strategy.algebra.joint_system import JointSystem, solved_rows
from dpquery.strategy.algebra.query_pairs import Contract, QueryPairs, QueryRows


def joint_covariances(system: JointSystem, pairs: QueryPairs) -> Floats:
    """Return the covariance of every pair under unit noise.

    Args:
        system: the parts, which together must support both blocks.
        pairs: rows of Kronecker products.

    Raises:
        LinAlgError: rounding has spoilt the coefficients.
    """

    def values(left: Ints, right: Ints, contract: Contract) -> Floats:
        first = _coefficients(system, pairs.left.block, left)
        second = _coefficients(system, pairs.right.block, right)
        return contract(first, second) * contract(
            _single(system, pairs.left.block, left), _single(system, pairs.right.block, right)
        )

    width = sum(stack.R.shape[0] * stack.R.shape[1] for stack in system.stacks)
    return pairs.crossed(width, values)


def _coefficients(system: JointSystem, block: Block, places: Ints) -> Floats:
    """Return t of rows of a product on the orthonormal rows of the system: (rows, columns)."""
    (_, sides), chosen = block.summands[0], QueryRows(block, places).predicates

    def predicates(i: int) -> Floats:
        table = system.predicates(block, sides, i, slice(None))
        rows = chosen[i][1] if i in chosen else np.zeros(len(places), dtype=np.int64)
        return table[rows]

    dense = reduce(_crossed, (predicates(i) for i in system.dense), np.ones((len(places), 1)))
    diagonal = reduce(_crossed, (predicates(i) for i in system.diagonal), np.ones((len(places), 1)))
    pieces = []
    for stack in system.stacks:
        solved = solved_rows(stack.R, dense[:, stack.columns])  # (places, rows, r)
        weighted = solved.transpose(1, 0, 2) * diagonal[:, stack.places, None]
        pieces.append(weighted.reshape(len(places), math.prod(weighted.shape[1:])))
    return np.concatenate(pieces, axis=1)


def _single(system: JointSystem, block: Block, places: Ints) -> Floats:
    """Return what the predicates on attributes of one class are: (rows, 1)."""
    chosen, out = QueryRows(block, places).predicates, np.ones(len(places))
    for place in system.single(block):
        factor, rows = chosen[block.attributes[place]]
        out *= factor.row_sums[rows]
    return out[:, None]


def _crossed(left: Floats, right: Floats) -> Floats:
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
