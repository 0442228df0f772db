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
from typing import NamedTuple

import numpy as np

from dpquery.arrays import Ints
from dpquery.spec.numbers import CLASS_DIGITS, ROW_DIGITS, class_edges, classes_by

_LEAST_BINS = 5  # of a column, where a class by one digit more would give as many
_CHANCE = 0.001  # that noise alone is taken for persons, in any class
_STEPS = 1, 2, 3, 4, 5, 7  # the values of max_rows that are tried, and ten times as many
_NOISE = 2.5, 3.0  # standard deviations: what lies beyond an edge is below, in all and in a class


@dataclass(frozen=True)
class FoundNumbers:
    """Where the numbers of a column lie; exact edges, noisy numbers."""

    low: Fraction  # from here on
    high: Fraction  # to below here
    # from, to below, noisy number of persons and its standard deviation; of whole classes, which
    # may begin before `low` and end behind `high`
    bins: tuple[tuple[Fraction, Fraction, int, float], ...]
    outside: int  # noisy number of persons with a number below all bins or above
    outside_std: float  # its standard deviation

    @property
    def edges(self) -> tuple[Fraction, ...]:
        """The edges of the bins, rising."""
        return (*(low for low, *_ in self.bins), self.bins[-1][1])


@dataclass(frozen=True)
class MaxRows:
    """What one max_rows would do to a table of the same persons."""

    max_rows: int
    left_out: float  # the share of all rows that it leaves out
    left_out_std: float  # how exactly that is known: noise, and rows within a class
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
    if levels[0].seen in ([], [0]):
        return None  # zeros alone make no range
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
    return FoundNumbers(low, high, tuple(bins), *_outside(levels, edges[0], edges[-1], std))


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


def _outside(
    levels: Sequence[_Level], low: Fraction, high: Fraction, std: float
) -> tuple[int, float]:
    """Return about how many are outside a range, in the fewest classes, and its deviation."""
    numbers, most = list[int](), classes_by(1)
    for place in range(-most, most + 1):
        start, stop = levels[0].edges(place)
        beyond, level = [place], levels[0]
        if start < high and stop > low:
            level = levels[1]  # the range may begin or end within this class
            ends = {each: level.edges(each) for each in _inside(place)}
            beyond = [each for each, (a, b) in ends.items() if b <= low or a >= high]
        numbers += [level.between(each, each + 1) for each in beyond]
    return sum(numbers), std * math.sqrt(len(numbers))


def _inside(place: int) -> Sequence[int]:
    """Return the ten classes by one digit more in a class; that of zero stays one."""
    first = 10 * place - 9 * (place > 0)
    return range(first, first + 10) if place else (0,)


def _outermost(levels: Sequence[_Level], std: float, end: int) -> Fraction:
    """Return the lowest edge of what was found, or with end -1 the highest."""
    coarse, *finer = levels
    place = coarse.seen[end]
    edge = coarse.edges(place)[end]
    for level in finer:
        inside, beyond = _inside(place), 0
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

    Persons have up to twice as many rows as those of the last class that is seen. Of a class by one
    digit the rows are those of its classes by two, or of as many persons in its middle: whichever
    is known better, given the noise and how far persons may be from the middle.

    Args:
        noisy: persons by their number of rows, in all classes by one digit, then by two.
        std: standard deviation of the noise.
        cells: of the table of which the error of a cell is said, all of one size.
        std_of_one: noise on a count of a release with a max_rows of 1.
    """
    persons = _Persons(noisy, std)
    if not persons.classes:
        return ()
    total, table = max(persons.add_up(0)[0], 1.0), list[MaxRows]()
    for most in (step * 10**power for power in range(len(noisy)) for step in _STEPS):
        share = persons.add_up(most)[0] / total
        # the same sums again, in classes by what says this share best
        more, std_of_share = (rows / total for rows in persons.add_up(most, share))
        share, noise = min(max(share + more, 0.0), 1.0), std_of_one * most
        error = math.hypot(share * total / cells, noise)
        table.append(MaxRows(most, share, std_of_share, noise, error))
        if most >= persons.most_seen:
            break
    return tuple(table)


class _Persons:
    """Persons by their number of rows, from 1 on."""

    def __init__(self, noisy: Ints, std: float) -> None:
        self.std = std
        coarse, fine = np.split(noisy, [2 * classes_by(ROW_DIGITS[0]) + 1])
        of_one, of_two = coarse[classes_by(1) :].tolist(), fine[classes_by(2) :].tolist()
        seen = np.flatnonzero(coarse >= above_noise(std, 1, len(ROW_DIGITS))) - classes_by(1)
        last = [class_edges(1, k)[1] for k in seen.tolist() if class_edges(1, k)[0] >= 1]
        self.most_seen = int(last[-1]) - 1 if last else 0
        # of each class by one digit its persons and edges, and the same of its classes by two
        self.classes: list[list[_Counted]] = []
        for k, n in enumerate(of_one):
            low, high = class_edges(1, k)
            if 1 <= low < 2 * (self.most_seen + 1) and last:
                parts = [(of_two[j], *class_edges(2, j)) for j in _inside(k)]
                counted = [
                    _Counted(n, int(a), math.ceil(b) - 1) for n, a, b in parts if a == int(a)
                ]
                self.classes.append([_Counted(n, int(low), int(high) - 1), *counted])

    def add_up(self, most: int, less: float = 0.0) -> tuple[float, float]:
        """Return the rows beyond `most` of each person, less a share of all, and how exactly."""
        sums, variances = 0.0, 0.0
        for one, *parts in self.classes:
            ways = []
            for classes in ([one], parts):
                rows, variance = 0.0, 0.0
                for each in classes:
                    low, high = (max(end - most, 0) - less * end for end in (each.low, each.high))
                    rows += each.persons * (low + high) / 2
                    off = max(each.persons, 0) * (high - low) / math.sqrt(12)
                    variance += (self.std * (low + high) / 2) ** 2 + off**2
                ways.append((variance, rows))
            variance, rows = min(ways)
            sums, variances = sums + rows, variances + variance
        return sums, math.sqrt(variances)


class _Counted(NamedTuple):
    """A class of numbers of rows."""

    persons: int  # how many there are, with noise
    low: int
    high: int  # included
