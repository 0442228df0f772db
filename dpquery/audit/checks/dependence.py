"""Tests of independence of noise: between rows, between releases, and for repeated values."""

import math

import numpy as np
from scipy.special import ndtr
from scipy.stats import poisson

from dpquery.arrays import Floats, Ints
from dpquery.audit.statistics import NoiseDistribution, combined

_MOST_PAIRED = 200  # rows of which every pair is looked at
_LEAST_TERMS = 200  # of a sum, for its law to be normal as far out as ALPHA
_MOST_EXPECTED = 5.0  # coincidences, for their number to be Poisson


def dependence(values: Ints, law: NoiseDistribution) -> float:
    """Return the p-value of noise being independent. values: (replicates, rows).

    Every value is turned into its place in the law, which is about uniform, and so is its distance
    from the middle: products of two of either add up to normal sums if all are independent.
    """
    places = law.scores(values)
    p_values = [p for scores in (places, _distances(places)) for p in _pairwise(scores)]
    return combined(p_values)


def _distances(places: Floats) -> Floats:
    """Return the distances of places from the middle, with mean 0 and variance 1."""
    return np.asarray(2 * np.abs(places) - math.sqrt(3))


def _pairwise(scores: Floats) -> list[float]:
    replicates, rows = scores.shape
    sums: list[Floats] = []
    if replicates >= _LEAST_TERMS and rows <= _MOST_PAIRED:
        sums.append(np.triu(scores.T @ scores, 1) / math.sqrt(replicates))
        sums.append(scores[:-1].T @ scores[1:] / math.sqrt(replicates - 1))
    else:
        if rows >= _LEAST_TERMS // 2:
            sums.append(np.triu(scores @ scores.T, 1) / math.sqrt(rows))
        sums.append(_lagged(scores))
    return [combined(2 * ndtr(-np.abs(normal[normal != 0]))) for normal in sums]


def _lagged(scores: Floats) -> Floats:
    """Return the normed sums of products of rows that are some lag apart, one for every lag."""
    replicates, rows = scores.shape
    spectrum = np.fft.rfft(scores, 2 * rows, axis=1)
    sums = np.fft.irfft(np.abs(spectrum) ** 2, 2 * rows, axis=1)[:, 1:rows].sum(axis=0)
    terms = replicates * (rows - np.arange(1, rows))
    enough = terms >= _LEAST_TERMS
    return np.asarray(sums[enough] / np.sqrt(terms[enough]))


def repeats(values: Ints, law: NoiseDistribution) -> float:
    """Return the p-value of the number of repeated values of the noise. values: (releases, rows).

    That is: in one row of two releases, in two rows of one release, and in one row of all releases.
    """
    releases, rows = values.shape
    p_values = [_coincidences(values, law)]
    if math.comb(rows, 2) * releases * law.all_equal(2) < _MOST_EXPECTED:
        p_values.append(_coincidences(values.T, law))
    if releases > 2:
        constant = bool((values == values[0]).all(axis=0).any())
        p_values.append(min(1.0, rows * law.all_equal(releases)) if constant else 1.0)
    return combined(p_values)


def _coincidences(values: Ints, law: NoiseDistribution) -> float:
    """Return the p-value of the number of values that repeat an earlier one of their column."""
    size, columns = values.shape
    repeated = sum(size - np.unique(column).size for column in values.T)
    return float(poisson.sf(repeated - 1, columns * math.comb(size, 2) * law.all_equal(2)))
