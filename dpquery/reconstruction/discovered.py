"""What discoveries say of numbers: where they lie, and what each max_rows would leave out.

Everything is made of the noisy numbers of persons in public classes (`spec.numbers`). Some are
taken to be in a class where its noisy number is above what noise alone passes in any class, once
in 100,000 discoveries of nothing.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from dpquery.arrays import Ints
from dpquery.spec.numbers import CLASS_DIGITS, ROW_DIGITS, class_edges, classes_by

Bin = tuple[Fraction, Fraction, int, float, int]
"""From, to below, noisy number of persons, its standard deviation, and in how many classes they
were counted, once in each."""

_MOST_BINS = 12
_MOST_CELLS = 100  # of equal steps, of which bins are made
_NEARLY = 0.85  # of the most information that any bins give: the fewest bins with it are taken
_LEAST_SHARE = 0.02  # of all numbers, in a bin
_SEEN = 5.0  # standard deviations of a bin's number, from which on it is one
_CHANCE = 1e-5  # that noise alone is taken for persons, in any class
_LASTS = 1 / 3  # the most persons in a far octave, of those in the one before
_OCTAVES = 20  # after which next to nothing is left of them
# the max_rows that are tried
_TRIED = sorted({k * 10**p // 10 for p in range(10) for k in (10, 15, 20, 30, 40, 50, 70)})
_FAR = 18  # the most classes by one digit in which what noise hides is looked for: two decades
# standard deviations: what lies beyond an edge is below, in all and in a class; in classes together
_NOISE = 2.5, 3.0, 3.5


@dataclass(frozen=True)
class FoundNumbers:
    """Where the numbers of a column lie; exact edges, noisy numbers."""

    bins: tuple[Bin, ...]  # rising, without gaps
    outside: int  # noisy number of persons with a number below all bins or above
    outside_std: float  # its standard deviation

    @property
    def edges(self) -> tuple[Fraction, ...]:
        """The edges of the bins, rising."""
        return (*(low for low, *_ in self.bins), self.bins[-1][1])

    @property
    def most_outside(self) -> float:
        """The share of all that may be outside of the bins: by the upper end of 95 %."""
        most = max(self.outside, 0) + 2 * self.outside_std
        return most / (most + max(sum(number for _, _, number, *_ in self.bins), 0))

    @property
    def whole_range(self) -> tuple[int, int]:
        """The first and the last whole number of them."""
        return math.ceil(self.edges[0]), math.ceil(self.edges[-1]) - 1


@dataclass(frozen=True)
class MaxRows:
    """What one max_rows would do to a table of the same persons; intervals of 95 %."""

    max_rows: int
    left_out_low: float  # the share of all rows that it leaves out
    left_out_high: float
    noise_std: float  # of a count of a release
    error_low: float  # of a cell: root mean square of what is left out and of noise
    error_high: float
    # the most times the least error of any, with all at the same end or as they are estimated
    regret: float


def edge_text(edge: Fraction) -> str:
    """Return an edge as a spec writes it."""
    return str(edge) if edge.denominator == 1 else f"{float(edge):.6g}"


def above_noise(std: float, digits: int, levels: int) -> float:
    """Return what noise passes in no class by so many digits, mostly; it is one of the levels."""
    classes = 2 * classes_by(digits) + 1
    return std * NormalDist().inv_cdf(1 - _CHANCE / levels / classes)


def found_numbers(noisy: Ints, std: float) -> FoundNumbers | None:
    """Return where numbers lie; None where no class stands out of the noise.

    Either end is that of the outermost class by one digit in which somebody is, moved outwards as
    long as classes beyond hold more than noise together, then inwards by finer classes as long as
    what lies beyond is no more; then outwards to the grid of round edges on which the bins lie. Of
    the grids it is the one of fewest bins that tell nearly as much as those of any.

    Args:
        noisy: of all classes by one digit, then two and three, as a discovery measures them.
        std: standard deviation of the noise.
    """
    levels = _levels(noisy, std, CLASS_DIGITS)
    if levels[0].seen in ([], [0]):
        return None  # zeros alone make no range
    low, high = (_outermost(levels, std, end) for end in (0, -1))
    tried = [_bins(levels, std, low, high, edges) for edges in _grids(low, high)]
    told = [(_information(bins), bins) for bins in tried if len(bins) <= _MOST_BINS]
    enough = _NEARLY * max(information for information, _ in told)
    # of as many, those that tell more, then those of less noise, then the coarsest
    _, bins = min(
        (each for each in told if each[0] >= enough),
        key=lambda of: (len(of[1]), -round(of[0], 2), sum(classes for *_, classes in of[1])),
    )
    low, high = bins[0][0], bins[-1][1]
    far = levels[0].edges(classes_by(1))[1]
    below, above = _between(levels, -far, low), _between(levels, high, far)
    std_outside = std * math.sqrt(below[1] + above[1])
    return FoundNumbers(tuple(bins), below[0] + above[0], std_outside)


@dataclass(frozen=True)
class _Level:
    digits: int
    noisy: Ints  # (n,) of its classes, the lowest first
    sums: Ints  # (n + 1,) of those below each and of all
    seen: list[int]  # the classes in which somebody is, rising

    def edges(self, place: int) -> tuple[Fraction, Fraction]:
        return class_edges(self.digits, place)

    def of(self, place: int) -> int:
        """Return the noisy number in a class."""
        return int(self.noisy[classes_by(self.digits) + place])


def _levels(noisy: Ints, std: float, digits: Sequence[int]) -> list[_Level]:
    """Return what a discovery measured, by the number of digits of the classes."""
    ends = np.cumsum([2 * classes_by(each) + 1 for each in digits])
    levels = list[_Level]()
    for each, of in zip(digits, np.split(noisy, ends[:-1]), strict=True):
        seen = np.flatnonzero(of >= above_noise(std, each, len(digits)))
        sums = np.r_[0, np.cumsum(of)]
        levels.append(_Level(each, of, sums, (seen - classes_by(each)).tolist()))
    return levels


def _grids(low: Fraction, high: Fraction) -> Iterator[list[Fraction]]:
    """Yield edges that a person would choose, from low or below to high or above.

    In equal steps, the largest first; then in steps that grow with the numbers.
    """
    known = _known()
    for step in (lead * Fraction(10) ** power for power in range(14, -4, -1) for lead in (5, 2, 1)):
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first > _MOST_CELLS:
            break
        edges = [k * step for k in range(first, last + 1)]
        if known.issuperset(edges):
            yield edges
    by_one = _mirrored(range(10, 100, 10)) & known
    ends = {max(e for e in by_one if e <= low), min(e for e in by_one if e >= high)}
    for leads in ((10,), (10, 30), (10, 20, 50), range(10, 100, 10), range(10, 100, 5)):
        edges = sorted((_mirrored(leads) & known) | ends)
        yield edges[bisect_right(edges, low) - 1 : bisect_left(edges, high) + 1]


def _mirrored(leads: Iterable[int]) -> set[Fraction]:
    """Return numbers by their two leading digits, of any power of ten and sign, and 0."""
    above = {lead * Fraction(10) ** power for power in range(-4, 15) for lead in leads}
    return above | {-edge for edge in above} | {Fraction(0)}


def _bins(
    levels: Sequence[_Level], std: float, low: Fraction, high: Fraction, edges: list[Fraction]
) -> list[Bin]:
    """Return bins between some of the edges, each of more than noise and of some share.

    From the highest down, as a bin begins where somebody is, and what is empty belongs to the one
    below. Zero is an edge wherever it lies between them: who is seen next to it alone is put into
    the bin above. The noise beyond low and high, up to the outer edges, decides nothing.
    """
    least = _LEAST_SHARE * _between(levels, low, high)[0]

    def seen(start: Fraction, stop: Fraction) -> bool:
        number, classes = _between(levels, start, stop)
        return number > max(_SEEN * std * math.sqrt(classes), least)

    kept, stop = [edges[-1]], high
    for start in reversed(edges[1:-1]):
        begins = seen(start, stop)
        if not begins and start == 0 and len(kept) > 1:
            kept.pop()
        if begins or start == 0:
            kept.append(start)
            stop = start
    if len(kept) > 1 and stop and not seen(low, stop):
        kept.pop()
    kept.append(edges[0])
    bins = list[Bin]()
    for start, stop in pairwise(reversed(kept)):
        number, classes = _between(levels, start, stop)
        bins.append((start, stop, number, std * math.sqrt(classes), classes))
    return bins


def _information(bins: Sequence[Bin]) -> float:
    """Return the entropy of which bin somebody is in."""
    numbers = [max(number, 1) for _, _, number, *_ in bins]
    return math.log(sum(numbers)) - sum(n * math.log(n) for n in numbers) / sum(numbers)


def _between(levels: Sequence[_Level], low: Fraction, high: Fraction) -> tuple[int, int]:
    """Return the noisy number between two edges in the fewest classes, and how many these are."""
    number, classes, parts = 0, 0, [(low, high)]
    for level in levels:
        starts, rest = _starts(level.digits), list[tuple[Fraction, Fraction]]()
        for start, stop in parts:
            first, last = bisect_left(starts, start), bisect_right(starts, stop) - 1
            if first < last:
                number += int(level.sums[last] - level.sums[first])
                classes += last - first
                rest += [(start, starts[first]), (starts[last], stop)]
            else:
                rest.append((start, stop))
        parts = [part for part in rest if part[0] < part[1]]
    return number, classes


@cache
def _starts(digits: int) -> tuple[Fraction, ...]:
    """Return where the classes by so many digits begin, the lowest first, and the last ends."""
    most = classes_by(digits)
    edges = [class_edges(digits, place) for place in range(-most, most + 1)]
    return (*(low for low, _ in edges), edges[-1][1])


@cache
def _known() -> frozenset[Fraction]:
    """Return the edges between which numbers are known."""
    return frozenset(_starts(CLASS_DIGITS[-1]))


def _inside(place: int) -> Sequence[int]:
    """Return the ten classes by one digit more in a class; that of zero stays one."""
    first = 10 * place - 9 * (place > 0)
    return range(first, first + 10) if place else (0,)


def _outermost(levels: Sequence[_Level], std: float, end: int) -> Fraction:
    """Return the lowest edge of what was found, or with end -1 the highest."""
    coarse, *finer = levels
    place = _farthest(coarse, std, coarse.seen[end], 1 if end else -1)
    edge = coarse.edges(place)[end]
    for level in finer:
        inside, beyond = _inside(place), 0
        for n, place in enumerate(inside if end == 0 else inside[::-1], 1):
            one = level.of(place)
            beyond += one
            if beyond > _NOISE[0] * std * math.sqrt(n) or one > _NOISE[1] * std:
                edge = level.edges(place)[end]
                break
        else:
            break
    return edge


def _farthest(level: _Level, std: float, place: int, step: int) -> int:
    """Return up to which class, from one that is seen, classes hold more than noise together."""
    middle = classes_by(level.digits)
    towards, at = level.noisy[::step], middle + step * place
    while True:
        sums = np.cumsum(towards[at + 1 :][:_FAR])
        over = sums / np.sqrt(np.arange(1, sums.size + 1))
        if max(over, default=0.0) <= _NOISE[2] * std:
            return step * (at - middle)
        at += 1 + int(np.argmax(over))


def max_rows_table(
    noisy: Ints, std: float, *, cells: int, std_of_one: float
) -> tuple[MaxRows, ...]:
    """Return what each max_rows would leave out; nothing where no class stands out of the noise.

    Persons are counted up to twice the rows of the last class in which somebody is. Of a class by
    one digit the rows are those of its classes by two, or of as many persons in its middle:
    whichever is known better, given the noise and how far persons may be from the middle. Beyond,
    there may be as many in the next octave as noise can hide there, but no more than in the one
    before, and a third as many in each further one: few persons, who have many rows.

    Args:
        noisy: persons by their number of rows, in all classes by one digit, then by two.
        std: standard deviation of the noise.
        cells: of the table of which the error of a cell is said, all of one size.
        std_of_one: noise on a count of a release with a max_rows of 1.
    """
    persons = _Persons(noisy, std)
    if not persons.classes:
        return ()
    (total, off), hidden = persons.add_up(0), persons.beyond(0)
    total, least = max(total, 1.0), math.inf
    lows, highs, rows_lost = list[tuple[float, float]](), list[tuple[float, float]](), list[float]()
    for most in _TRIED:
        noise = std_of_one * most
        if noise >= least:
            break  # which has less error than any larger one, whatever that leaves out
        share = persons.add_up(most)[0] / total
        # the same sums again, in classes by what says this share best
        more, std_of_share = (rows / total for rows in persons.add_up(most, share))
        share, past = min(max(share + more, 0.0), 1.0), persons.beyond(most)
        high = ((share + 2 * std_of_share) * total + past) / (total + hidden)
        std_of_lost = math.hypot(std_of_share * total, share * off)
        rows_lost.append(share * total)
        lost = max(rows_lost[-1] - 2 * std_of_lost, 0.0), rows_lost[-1] + 2 * std_of_lost + past
        lows.append((max(share - 2 * std_of_share, 0.0), lost[0]))
        highs.append((min(high, 1.0), lost[1]))
        least = min(least, math.hypot(lost[1] / cells, noise))
    # a larger one leaves out no more: no less than what any larger one does, no more than a smaller
    above = np.minimum.accumulate(highs)
    below = np.minimum(np.maximum.accumulate(lows[::-1])[::-1], above)
    noises = std_of_one * np.array(_TRIED[: len(lows)])
    of_rows = np.array([below[:, 1], np.clip(rows_lost, below[:, 1], above[:, 1]), above[:, 1]])
    errors = np.hypot(of_rows / cells, noises)
    regrets = (errors / errors.min(axis=1, keepdims=True)).max(axis=0)
    columns = (below[:, 0], above[:, 0], noises, errors[0], errors[2], regrets)
    return tuple(map(MaxRows, _TRIED, *(column.tolist() for column in columns)))


class _Persons:
    """Persons by their number of rows, from 1 on."""

    def __init__(self, noisy: Ints, std: float) -> None:
        self.std = std
        coarse, fine = levels = _levels(noisy, std, ROW_DIGITS)
        seen = [place for place in coarse.seen if coarse.edges(place)[0] >= 1]
        self.classes: list[list[_Counted]] = []
        if not seen:
            return
        self.end = 2 * coarse.edges(_farthest(coarse, std, seen[-1], 1))[1]
        # of each class by one digit its persons and edges, and the same of its classes by two
        for k in range(1, classes_by(1) + 1):
            low, high = coarse.edges(k)
            if 1 <= low < self.end:
                parts = [(fine.of(j), *fine.edges(j)) for j in _inside(k)]
                counted = [
                    _Counted(n, int(a), math.ceil(b) - 1) for n, a, b in parts if a == int(a)
                ]
                one = _Counted(coarse.of(k), int(low), int(high) - 1)
                self.classes.append([one, *counted])
        most = math.inf  # persons in the last octave, then in the one beyond
        for start in (self.end / 2, self.end):
            number, classes = _between(levels, start, 2 * start)
            most = min(max(number, 0) + 2 * std * math.sqrt(classes), most)
        self.hidden = most

    def beyond(self, most: int) -> float:
        """Return the rows beyond `most` of those who may be beyond all classes."""
        octaves = np.arange(_OCTAVES)
        rows = 1.5 * float(self.end) * 2.0**octaves
        return float(self.hidden * _LASTS**octaves @ np.maximum(rows - most, 0))

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
            (first, rows), (second, others) = ways
            if both := first + second:  # else there is nothing
                sums += (second * rows + first * others) / both
                variances += first * second / both
        return sums, math.sqrt(variances)


class _Counted(NamedTuple):
    """A class of numbers of rows."""

    persons: int  # how many there are, with noise
    low: int
    high: int  # included
