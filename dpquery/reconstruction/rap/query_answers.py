"""The answers of relaxed rows to single measured queries, and the gradient of their error.

A relaxed row answers a query by the probability that its predicates hold, drawn independently: the
product of the plain ones' probabilities, times the probability that at least r of the counted ones
hold. That tail is linear in each p_i: a programme over "a of the first i hold" gives it, and its
derivative by p_i is the probability that exactly r - 1 of the others hold ([MATH] 10). Only queries
that were measured are stored, a few numbers each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dpquery.arrays import Floats, Ints, Singles
from dpquery.reconstruction.rap.mirror_descent import FitTarget, Misfit
from dpquery.reconstruction.rap.partition import Sparse

# Of an array over queries and rows: the few that the programme needs at once stay in cache.
CACHED_ENTRIES = 1 << 15


@dataclass(frozen=True, eq=False)
class QueryForm:
    """Measured queries of one form, with as many plain and as many counted predicates each.

    Attributes:
        plain: (k, q) the predicates that must hold, as numbers of distinct predicates.
        counted: (k', q) the predicates of which `r` must hold at least.
        r: how many; 0 if none are counted.
        noisy: (q,) measured answers, as fractions of one.
        std: (q,) standard deviations of their noise.
    """

    plain: Ints
    counted: Ints
    r: int
    noisy: Floats
    std: Floats

    def pieces(self, size: int) -> Iterator["QueryForm"]:
        """Split into pieces of at most so many queries."""
        for start in range(0, len(self.noisy), size):
            queries = np.s_[start : start + size]
            plain, counted = self.plain[:, queries], self.counted[:, queries]
            yield QueryForm(plain, counted, self.r, self.noisy[queries], self.std[queries])

    @cached_property
    def uses(self) -> tuple[Ints, Ints, Ints]:
        """The predicates used; their uses in (k + k', q), one predicate's after another's; ends."""
        used = np.concatenate([self.plain, self.counted]).ravel()
        predicates, counts = np.unique(used, return_counts=True)
        return predicates, np.argsort(used, kind="stable"), np.cumsum([0, *counts])


@dataclass(frozen=True, eq=False)
class QueryAnswers:
    """The error of relaxed rows against the noisy answers of single queries, and its gradient.

    Attributes:
        rows: n'.
        predicates: (p, g) the distinct predicates, over the groups of classes they distinguish.
        queries: the measured queries, by form. They weigh by the inverse variance of their noise.
    """

    rows: int
    predicates: Sparse
    queries: tuple[QueryForm, ...]

    @property
    def target(self) -> FitTarget:
        """The answers with their noise, for the projection."""
        count = sum(len(form.noisy) for form in self.queries)
        return FitTarget(self.misfit, count * self._variance, count)

    def misfit(self, masses: Singles) -> Misfit:
        """Compare with the answers; squared errors weigh 1 on average. masses: (g, n').

        O((p + k r q) n') time and O((p + g) n') memory.
        """
        probabilities = self.predicates @ masses
        total, worst, gradient = 0.0, 0.0, np.zeros_like(probabilities)
        for form in self._pieces:
            values, slopes = _values(form, probabilities)
            residuals = values.mean(axis=1) - form.noisy
            weighted = residuals * (self._variance / form.std**2)
            total += float(weighted @ residuals)
            worst = max(worst, float(np.abs(residuals / form.std).max()))
            predicates, order, ends = form.uses
            coefs = (2 * weighted).astype(masses.dtype)[order % len(residuals)]
            by_use = (coefs, order, ends)
            gradient[predicates] += sp.csr_array(by_use, (len(predicates), len(order))) @ slopes
        return Misfit(total, worst, self.predicates.T @ gradient)

    @cached_property
    def _variance(self) -> float:
        """The harmonic mean of the variances: weights over it are 1 on average."""
        return float(1 / np.mean(np.concatenate([form.std**-2.0 for form in self.queries])))

    @cached_property
    def _pieces(self) -> tuple[QueryForm, ...]:
        size = max(1, CACHED_ENTRIES // self.rows)
        return tuple(piece for form in self.queries for piece in form.pieces(size))


def threshold_probability(p: Singles, r: int) -> tuple[Singles, Singles]:
    """Return the probability that at least r of k independent predicates hold, with its gradient.

    Args:
        p: (k, ...) their probabilities.
        r: from 1 to k.

    Returns:
        (...) the probability; (k, ...) its derivative by every probability.
    """
    k = len(p)
    before, after = _exactly(p, r), _exactly(p[::-1], r)
    slopes = np.empty_like(p)
    for i in range(k):
        ways = [state * after[k - 1 - i][r - 1 - a] for a, state in before[i].items()]
        slopes[i] = sum(ways[1:], start=ways[0])
    last = [before[i][r - 1] * p[i] for i in range(r - 1, k)]  # the r-th to hold is the i-th
    return np.asarray(sum(last[1:], start=last[0])), slopes


def _exactly(p: Singles, r: int) -> list[dict[int, Singles]]:
    """Return for i < k the probability that a of the first i hold, for a that lead to r - 1."""
    k = len(p)
    states: list[dict[int, Singles]] = [{0: np.ones((1,) * (p.ndim - 1), dtype=p.dtype)}]
    for i in range(k - 1):
        last, states_of = states[-1], {}
        for a in range(max(0, r - k + i + 1), min(i + 1, r - 1) + 1):
            ways = [last[a] * (1 - p[i])] if a in last else []
            ways += [last[a - 1] * p[i]] if a - 1 in last else []
            states_of[a] = sum(ways[1:], start=ways[0])
        states.append(states_of)
    return states


def _values(form: QueryForm, probabilities: Singles) -> tuple[Singles, Singles]:
    """Return (q, n') values, and (k q, n') derivatives by the plain and the counted predicates."""
    plain, counted = probabilities[form.plain], probabilities[form.counted]
    rows = probabilities.shape[1]
    if not len(counted):
        values, slopes = threshold_probability(plain, len(plain))
        return values, slopes.reshape(-1, rows)
    values, slopes = threshold_probability(counted, form.r)
    if not len(plain):
        return values, slopes.reshape(-1, rows)
    others, by_plain = threshold_probability(plain, len(plain))
    both = np.concatenate([by_plain * values, slopes * others])
    return values * others, both.reshape(-1, rows)
