"""The draw of the table that the model is furthest from: an exact exponential mechanism.

The score of a table t is a whole number,

    s_t = w_t (|| M_t - rounded table of the model ||_1 - penalty_t),

with M_t its true counts, w_t its weight, and penalty_t the L1 norm that the noise of measuring it
is expected to have, rounded: what would be learnt beyond the noise [McKenna22]. Table t is drawn
with probability proportional to exp(eta s_t).

Privacy: weights and penalties are public, and so is the model, a function of noisy values. Let
neighbours move every true table by at most S in L1: S = D where D records are added or removed, and
2 D where they are replaced. Then s_t moves by at most w_t S, up or down. The log ratio of a draw is
eta (s'_t - s_t) - ln(Z' / Z) at table t, and over all tables the first term spans at most
2 eta S max_t w_t. A mechanism whose log ratio spans at most r is r-bounded-range, hence
(r^2 / 8)-zCDP [CR21]: AdaptiveBudget.round takes the sharpest eta with which that is the share of
the draw. [MATH] 10.8.

Exactness: scores are integers, and the law is drawn by ExactChance; see rap.selection.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Ints
from dpquery.measurement.adaptive.candidates import CandidateTables
from dpquery.measurement.rap.selection import Chance, differences_of

CELLS_AT_ONCE = 1 << 16


def draw_table(
    tables: Callable[[int], Ints],
    model: Callable[[int], NDArray[np.floating]],
    *,
    candidates: CandidateTables,
    std: float,
    rate: Fraction,
    chance: Chance,
) -> int:
    """Return the number of a table, drawn by how far the model is from it.

    Args:
        tables: true counts of the candidate of a number, (cells,); confidential.
        model: what the model has for it, (cells,); public.
        candidates: the tables that may be drawn.
        std: of the noise that the table is to be measured with, in counts.
        rate: eta.
        chance: draws.
    """
    penalties = penalties_of(candidates, std)
    moves = distances(tables, model, candidates.sizes)
    scores = [
        weight * (moved - penalty)
        for weight, moved, penalty in zip(candidates.weights, moves, penalties, strict=True)
    ]
    levels = sorted(set(scores))
    of_level: list[list[int]] = [[] for _ in levels]
    place = {score: level for level, score in enumerate(levels)}
    for number, score in enumerate(scores):
        of_level[place[score]].append(number)
    drawn = of_level[chance.level(levels, [len(equal) for equal in of_level], rate)]
    return drawn[chance.below(len(drawn))]


def distances(
    tables: Callable[[int], Ints],
    model: Callable[[int], NDArray[np.floating]],
    sizes: Sequence[int],
) -> list[int]:
    """Return for each table the L1 distance of true counts from rounded ones of a model.

    They are whole numbers. Small tables are compared many at a time.

    Args:
        tables: true counts of the table of a number, (cells,); confidential.
        model: what the model has for it, (cells,); public.
        sizes: cells of each.
    """
    apart: list[int] = []
    while len(apart) < len(sizes):
        first, ends = len(apart), [sizes[len(apart)]]
        while first + len(ends) < len(sizes) and ends[-1] < CELLS_AT_ONCE:
            ends.append(ends[-1] + sizes[first + len(ends)])
        numbers = range(first, first + len(ends))
        exact = np.concatenate([tables(number) for number in numbers])
        synthetic = np.concatenate([model(number) for number in numbers])
        differences = np.abs(differences_of(exact, synthetic))
        apart += np.add.reduceat(differences, [0, *ends[:-1]]).tolist()
    return apart


def penalties_of(candidates: CandidateTables, std: float) -> list[int]:
    """Return the L1 norm that noise on each table is expected to have, rounded; public."""
    return [round(noise_norm(std, cells)) for cells in candidates.sizes]


def noise_norm(std: float, cells: int) -> float:
    """Return the expected L1 norm of normal noise on so many cells."""
    return math.sqrt(2 / math.pi) * std * cells
