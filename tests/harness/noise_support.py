"""The laws of the noise in floats, and how a sample is held against them."""

import math
from fractions import Fraction

import numpy as np
from scipy.stats import chi2, norm

from dpquery.measurement.accounting import Guarantee

KINDS = {"laplace": "pure", "gaussian": "zcdp", "rounded": "gdp"}
"""The guarantee for which each law is drawn."""


def budget_for(noise, scale):
    """A guarantee that a sensitivity of 1 meets at this scale, with a hair to spare."""
    hair = 1 + Fraction(1, 10**9)
    ratio = hair / Fraction(scale)
    amount = {"laplace": ratio, "gaussian": ratio**2 / 2, "rounded": ratio**2}[noise]
    return Guarantee(KINDS[noise], amount, amount, Fraction(0))


def cdf(noise, scale, k):
    """P(X <= k), exact but for float rounding."""
    if noise == "rounded":
        return norm.cdf((k + 0.5) / scale)
    if noise == "laplace":
        q = math.exp(-1 / scale)
        above = 1 - np.exp(-(np.maximum(k, 0) + 1.0) / scale) / (1 + q)
        return np.where(k >= 0, above, np.exp(-np.maximum(-k, 0.0) / scale) / (1 + q))
    if scale > 1000:  # by Poisson summation the two laws differ by exp(-2 pi^2 scale^2)
        return norm.cdf((k + 0.5) / scale)
    support = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale) + 1)
    mass = np.exp(-(support**2) / (2 * scale**2))
    return np.interp(k, support, np.cumsum(mass) / mass.sum())


def cells(scale):
    """Where cells of about equal mass end."""
    return np.unique(np.rint(np.tan(np.linspace(-1.35, 1.35, 41)) * scale)).astype(np.int64)


def counts(edges, sample):
    """Draws in each cell; a cell ends with its edge, the last one never."""
    return np.bincount(np.searchsorted(edges, sample), minlength=edges.size + 1)


def p_value(noise, scale, sample):
    """Chi-square of a sample against the law, in cells of about equal mass."""
    edges = cells(scale)
    return p_of_counts(noise, scale, edges, counts(edges, sample))


def p_of_counts(noise, scale, edges, seen):
    """The same, of draws that were counted in cells."""
    expected = np.diff(np.concatenate([[0.0], cdf(noise, scale, edges), [1.0]])) * seen.sum()
    return chi_square(seen, expected)


def chi_square(observed, expected):
    """Chi-square of counts against their expectations, rare cells taken together."""
    keep = expected >= 5
    rest, rest_seen = expected[~keep].sum(), observed[~keep].sum()
    statistic = np.sum((observed[keep] - expected[keep]) ** 2 / expected[keep])
    statistic += (rest_seen - rest) ** 2 / rest if rest > 0 else 0.0
    return chi2.sf(statistic, keep.sum() + (rest > 0) - 1)
