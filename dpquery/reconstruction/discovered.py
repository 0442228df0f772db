"""What discoveries say of numbers: where they lie, and what each max_rows would leave out.

Everything is made of the noisy numbers of persons in public classes (`spec.numbers`). Some are
taken to be in a class where its noisy number is above what noise alone passes in any class, once
in a thousand discoveries of nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from dpquery.arrays import Ints
from dpquery.spec.numbers import CLASS_DIGITS, class_edges, classes_by

_LEAST_BINS = 5  # of a column, where a class by one digit more would give as many
_CHANCE = 0.001  # that noise alone is taken for persons, in any class
_NOISE = 2.5, 3.0  # standard deviations: what lies beyond an edge is below, in all and in a class


@dataclass(frozen=True)
class FoundNumbers:
    """Where the numbers of a column lie; exact edges, noisy numbers."""

    low: Fraction  # from here on
    high: Fraction  # to below here
    # from, to below, noisy number of persons and its standard deviation; of whole classes, which
    # may begin before `low` and end behind `high`
    bins: tuple[tuple[Fraction, Fraction, int, float], ...]

    @property
    def edges(self) -> tuple[Fraction, ...]:
        """The edges of the bins, rising."""
        return (*(low for low, *_ in self.bins), self.bins[-1][1])


@dataclass(frozen=True)
class MaxRows:
    """What one max_rows would do to a table of the same persons."""

    max_rows: int
    left_out: float  # the share of all rows that it leaves out
    left_out_std: float  # the noise on that share
    noise_std: float  # of a count of a release
    error: float  # of a cell: root mean square of what is left out and of noise


def edge_text(edge: Fraction) -> str:
    """Return an edge as a spec writes it."""
    return str(edge) if edge.denominator == 1 else f"{float(edge):.6g}"


def above_noise(std: float, digits: int, levels: int) -> float:
    """Return what noise passes in no class by so many digits, mostly; it is one of the levels."""
    classes = 2 * classes_by(digits) + 1
    return std * NormalDist().inv_cdf(1 - _CHANCE / levels / classes)


def found_numbers(noisy: Ints, std: float) -> FoundNumbers | None:
    """Return where numbers lie; None where no class stands out of the noise.

    Either end is that of the outermost class by one digit in which somebody is, moved inwards by
    finer classes as long as what lies beyond is no more than noise. Bins are the coarsest classes
    of which there are some.

    Args:
        noisy: of all classes by one digit, then two and three, as a discovery measures them.
        std: standard deviation of the noise.
    """
    ends = np.cumsum([2 * classes_by(digits) + 1 for digits in CLASS_DIGITS])
    pairs = zip(CLASS_DIGITS, np.split(noisy, ends[:-1]), strict=True)
    levels = list[_Level]()
    for digits, of in pairs:
        seen = np.flatnonzero(of >= above_noise(std, digits, len(CLASS_DIGITS)))
        levels.append(_Level(digits, of, (seen - classes_by(digits)).tolist()))
    if not levels[0].seen:
        return None
    low, high = (_outermost(levels, std, end) for end in (0, -1))
    best = max(levels, key=lambda level: min(len(level.seen), _LEAST_BINS))
    starts = [k for k in best.seen if best.edges(k)[1] > low and best.edges(k)[0] < high]
    edges = [*(best.edges(k)[0] for k in starts), best.edges(starts[-1])[1]]
    bins = (
        # Between two classes that are seen there may be many that are not, each with its noise.
        (*ends, best.between(k, last), std * math.sqrt(last - k))
        for ends, (k, last) in zip(
            pairwise(edges), pairwise([*starts, starts[-1] + 1]), strict=True
        )
    )
    return FoundNumbers(low, high, tuple(bins))


@dataclass(frozen=True)
class _Level:
    digits: int
    noisy: Ints  # (n,) of its classes, the lowest first
    seen: list[int]  # the classes in which somebody is, rising

    def edges(self, place: int) -> tuple[Fraction, Fraction]:
        return class_edges(self.digits, place)

    def between(self, first: int, last: int) -> int:
        """Return the noisy number in classes from the first to below the last."""
        zero = classes_by(self.digits)
        return int(self.noisy[zero + first : zero + last].sum())


def _outermost(levels: Sequence[_Level], std: float, end: int) -> Fraction:
    """Return the lowest edge of what was found, or with end -1 the highest."""
    coarse, *finer = levels
    place = coarse.seen[end]
    edge = coarse.edges(place)[end]
    for level in finer:
        # Of classes by one digit more there are ten in each but that of zero, which stays one.
        first = 10 * place - 9 * (place > 0)
        inside = [first + k for k in range(10)] if place else [0]
        beyond = 0
        for n, place in enumerate(inside if end == 0 else inside[::-1], 1):
            one = level.between(place, place + 1)
            beyond += one
            if beyond > _NOISE[0] * std * math.sqrt(n) or one > _NOISE[1] * std:
                edge = level.edges(place)[end]
                break
        else:
            break
    return edge


def max_rows_table(
    noisy: Ints, std: float, *, cells: int, std_of_one: float
) -> tuple[MaxRows, ...]:
    """Return what each max_rows would leave out; nothing where no class stands out of the noise.

    Numbers of rows from 10 on are taken for the middle of their class. In the class behind the last
    that is seen half as many persons are taken to be as would be, give or take as many: they have
    the most rows.

    Args:
        noisy: persons by their number of rows, in all classes by one digit.
        std: standard deviation of the noise.
        cells: of the table of which the error of a cell is said, all of one size.
        std_of_one: noise on a count of a release with a max_rows of 1.
    """
    zero = classes_by(1)
    edges = [class_edges(1, k) for k in range(zero + 1)]
    first = next(k for k, (low, _) in enumerate(edges) if low == 1)
    passed = above_noise(std, 1, 1)
    seen = np.flatnonzero(noisy[zero:] >= passed)
    if not seen.size or seen[-1] < first:
        return ()
    last = min(int(seen[-1]) + 2, len(edges))
    persons = noisy[zero + first : zero + last].astype(np.float64)
    stds = np.full(persons.shape, std)
    if last > seen[-1] + 1:
        persons[-1] = stds[-1] = passed / 2
    rows = np.array([float(low + high - 1) / 2 for low, high in edges[first:last]])
    total, table = max(float(persons @ rows), 1.0), list[MaxRows]()
    for most in (digit * 10**power for power in range(len(edges)) for digit in (1, 2, 3, 5)):
        cut = np.maximum(rows - most, 0.0)
        left, noise = max(float(persons @ cut), 0.0), std_of_one * most
        table.append(
            MaxRows(
                most,
                left / total,
                float(np.linalg.norm(stds * cut)) / total,
                noise,
                math.hypot(left / cells, noise),
            )
        )
        if not cut.any():
            break
    return tuple(table)
