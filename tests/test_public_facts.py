"""Public facts against dense twins: which queries are impossible, and answers that know it."""

from itertools import product as crossed

import numpy as np
import pytest
from strategies_support import dense_block, dense_strategy
from test_shapes import every_shape, row_coefficients, strategies

from dpquery.operators.public_facts import ImpossibleCells, PublicFacts
from dpquery.strategy.algebra.row_sums import expand
from dpquery.strategy.shapes.informed import informed

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3)))
SOLVED_AS_ONE = ("product", "marginals", "residual", "orbits")
"""Shapes whose cases tell all cells of the domain apart, and answer by least squares."""


def random_boxes(rng, shape):
    """Two combinations of values that overlap, over one or two attributes of more than one code."""
    wide = [i for i, n in enumerate(shape) if n > 1]
    boxes = []
    for _ in range(2):
        named = rng.choice(wide, size=min(2, len(wide)), replace=False)
        codes = {
            int(i): rng.choice(shape[i], size=int(rng.integers(1, 3)), replace=False) for i in named
        }
        boxes.append({i: set(map(int, chosen)) for i, chosen in codes.items()})
    return boxes


def cells_in(boxes, shape):
    """Whether each cell of the domain is in a box, one loop a cell: (N,)."""
    cells = crossed(*map(range, shape))
    return np.array([any(all(c[i] in s for i, s in b.items()) for b in boxes) for c in cells])


def facts_of(boxes, shape):
    named = tuple(sorted({i for box in boxes for i in box}))
    possible = np.ones([shape[i] for i in named], dtype=np.int64)
    for box in boxes:
        possible[np.ix_(*(sorted(box.get(i, range(shape[i]))) for i in named))] = 0
    touches = tuple(np.eye(shape[i], dtype=np.int64) for i in named)
    return PublicFacts(ImpossibleCells(named, touches, possible))


@every_shape
@pytest.mark.parametrize("seed", SEEDS)
def test_variances_are_those_of_least_squares_over_the_possible_cells(kind, seed):
    """Dense: columns of impossible cells are left out of what is measured."""
    rng = np.random.default_rng(seed)
    for strategy, workload in strategies(kind, seed):
        shape = strategy.shape
        boxes = random_boxes(rng, shape)
        out = cells_in(boxes, shape)
        answering = informed(strategy, facts_of(boxes, shape), workload)
        A = dense_strategy(strategy.measurements).astype(float)[:, ~out]
        inverse = np.linalg.pinv(A / np.abs(A).max(), rcond=1e-10) / np.abs(A).max()
        for position, block in enumerate(workload.blocks):
            W = dense_block(block).astype(float)
            variances = expand(answering.variances(block, position=position)).ravel()
            before = (row_coefficients(strategy, block, position) ** 2).sum(axis=1)
            least = ((W[:, ~out] @ inverse) ** 2).sum(axis=1)
            assert np.all(variances <= before * (1 + 1e-9))
            assert np.all(variances >= least - 1e-9 * before.max())
            assert np.array_equal(variances == 0, np.isclose(least, 0, atol=1e-9 * before.max()))
            if kind in SOLVED_AS_ONE:
                np.testing.assert_allclose(variances, least, atol=1e-9 * before.max(), rtol=1e-6)
