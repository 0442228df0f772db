"""Surrogates of single queries: what relaxed rows answer to them, and the gradient of that.

A query holds in a relaxed row with the chance that its predicates do, drawn independently: the
product of the plain ones' probabilities, times the chance that at least r of the counted ones hold.
That tail is linear in each p_i: a programme over "a of the first i hold" gives it, and its
derivative by p_i is the chance that exactly r - 1 of the others hold ([MATH] 10). Only queries that
were measured are kept, a few numbers each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpquery.operators.factors import Array
from dpquery.reconstruction.rap.mirror_descent import FitTarget, Misfit
from dpquery.reconstruction.rap.partition import Sparse
from dpquery.reconstruction.rap.relaxed_rows import Floats

Indices = NDArray[np.int64]
CACHED_ENTRIES = (
    1 << 15
)  # of an array over queries and rows: the few that a programme holds stay in cache


@dataclass(frozen=True, eq=False)
class Alike:
    """Measured queries of one form: as many plain and as many counted predicates each.

    Attributes:
        plain: (k, q) the predicates that must hold, as numbers of distinct predicates.
        counted: (k', q) the predicates of which `r` must hold at least.
        r: how many; 0 if none are counted.
        noisy: (q,) measured answers, as fractions of one.
        std: (q,) standard deviations of their noise.
    """

    plain: Indices
    counted: Indices
    r: int
    noisy: Array
    std: Array

    def pieces(self, size: int) -> Iterator["Alike"]:
        """Split into pieces of at most so many queries."""
        for start in range(0, len(self.noisy), size):
            own = np.s_[start : start + size]
            plain, counted = self.plain[:, own], self.counted[:, own]
            yield Alike(plain, counted, self.r, self.noisy[own], self.std[own])

    @cached_property
    def uses(self) -> tuple[Indices, Indices, Indices]:
        """The predicates used; their uses in (k + k', q), one predicate's after another's; ends."""
        used = np.concatenate([self.plain, self.counted]).ravel()
        predicates, counts = np.unique(used, return_counts=True)
        return predicates, np.argsort(used, kind="stable"), np.cumsum([0, *counts])


@dataclass(frozen=True, eq=False)
class Surrogates:
    """How far relaxed rows are from the noisy answers of measured queries.

    Attributes:
        rows: n'.
        predicates: (p, g) the distinct predicates, over the groups of classes that they tell apart.
        queries: the measured queries, by form. They weigh by the inverse variance of their noise.
    """

    rows: int
    predicates: Sparse
    queries: tuple[Alike, ...]

    @property
    def target(self) -> FitTarget:
        """The answers with their noise, for the projection."""
        count = sum(len(form.noisy) for form in self.queries)
        return FitTarget(self.misfit, count * self._variance, count)

    def misfit(self, masses: Floats) -> Misfit:
        """Compare with the answers; squared errors weigh 1 on average. masses: (g, n').

        O((p + k r q) n') time and O((p + g) n') memory.
        """
        chances = self.predicates @ masses
        total, worst, gradient = 0.0, 0.0, np.zeros_like(chances)
        for own in self._pieces:
            values, slopes = _values(own, chances)
            residuals = values.mean(axis=1) - own.noisy
            weighted = residuals * (self._variance / own.std**2)
            total += float(weighted @ residuals)
            worst = max(worst, float(np.abs(residuals / own.std).max()))
            predicates, order, ends = own.uses
            coefs = (2 * weighted).astype(masses.dtype)[order % len(residuals)]
            by_use = (coefs, order, ends)
            gradient[predicates] += sp.csr_array(by_use, (len(predicates), len(order))) @ slopes
        return Misfit(total, worst, self.predicates.T @ gradient)

    @cached_property
    def _variance(self) -> float:
        """The harmonic mean of the variances: weights over it are 1 on average."""
        return float(1 / np.mean(np.concatenate([form.std**-2.0 for form in self.queries])))

    @cached_property
    def _pieces(self) -> tuple[Alike, ...]:
        size = max(1, CACHED_ENTRIES // self.rows)
        return tuple(own for form in self.queries for own in form.pieces(size))


def threshold_chance(p: Floats, r: int) -> tuple[Floats, Floats]:
    """Return the chance that at least r of k independent predicates hold, with its gradient.

    Args:
        p: (k, ...) their probabilities.
        r: from 1 to k.

    Returns:
        (...) the chance; (k, ...) its derivative by every probability.
    """
    k = len(p)
    before, after = _exactly(p, r), _exactly(p[::-1], r)
    slopes = np.empty_like(p)
    for i in range(k):
        ways = [state * after[k - 1 - i][r - 1 - a] for a, state in before[i].items()]
        slopes[i] = sum(ways[1:], start=ways[0])
    last = [before[i][r - 1] * p[i] for i in range(r - 1, k)]  # the r-th to hold is the i-th
    return np.asarray(sum(last[1:], start=last[0])), slopes


def _exactly(p: Floats, r: int) -> list[dict[int, Array]]:
    """Return by i < k the chance that exactly a of the first i hold, where r - 1 of k - 1 may."""
    k = len(p)
    states: list[dict[int, Array]] = [{0: np.ones((1,) * (p.ndim - 1), dtype=p.dtype)}]
    for i in range(k - 1):
        last, states_of = states[-1], {}
        for a in range(max(0, r - k + i + 1), min(i + 1, r - 1) + 1):
            ways = [last[a] * (1 - p[i])] if a in last else []
            ways += [last[a - 1] * p[i]] if a - 1 in last else []
            states_of[a] = sum(ways[1:], start=ways[0])
        states.append(states_of)
    return states


def _values(own: Alike, chances: Floats) -> tuple[Floats, Floats]:
    """Return (q, n') values, and (k q, n') derivatives by the plain and the counted predicates."""
    plain, counted = chances[own.plain], chances[own.counted]
    rows = chances.shape[1]
    if not len(counted):
        values, slopes = threshold_chance(plain, len(plain))
        return values, slopes.reshape(-1, rows)
    values, slopes = threshold_chance(counted, own.r)
    if not len(plain):
        return values, slopes.reshape(-1, rows)
    others, by_plain = threshold_chance(plain, len(plain))
    both = np.concatenate([by_plain * values, slopes * others])
    return values * others, both.reshape(-1, rows)
