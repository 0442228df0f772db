"""Answers of random specs against least squares written out densely.

Random workloads with slices, any_of, thresholds, merged columns and weights over six orders of
magnitude: what is chosen answers noisy values as dense least squares do, errs by what is printed,
and covers what it says.
"""

import math

import numpy as np
import pytest
from dense import dense_block, dense_strategy
from specs import random_spec, read

from dpquery.operators.compile import compile_spec
from dpquery.operators.gram import gram
from dpquery.reconstruction.checks import flaw_of
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.expected_error import squared_sensitivity
from dpquery.strategy.search.candidates import Problem
from dpquery.strategy.search.select import SEARCHES, select
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy

RELEASES = 200
SLICES = """\
dataset: {id: v10p, version: 1}
privacy: {unit: row}
budget: {epsilon: 100}
other: drop
domain: {a: {range: [0, 5]}, b: {range: [0, 4]}, c: {range: [0, 3]}, d: {range: [0, 2]}}
workload:
  - {name: q, product: {a: prefix}, where: {b: 0, c: {between: [0, 1]}, d: 0}}
  - {name: p, marginals: {ways: 1}}
  - {name: s, product: {b: identity, c: {between: [0, 1]}}}
"""
"""Three conditions on one item: its part of OPT_+ all but vanishes on the other records."""


def coefficients(strategy, W):
    """C with answers C y by least squares, from singular values of the rows themselves."""
    A = dense_strategy(strategy.measurements).astype(float)
    top = np.abs(A).max()
    U, s, Vt = np.linalg.svd(A / top, full_matrices=False)
    seen = s > 3e-14 * s[0]
    return (W @ Vt[seen].T / s[seen]) @ U[:, seen].T / top


def dense_coefficients(strategy, W):
    """The same; under the plain mechanism every query is its own noisy answer."""
    if isinstance(strategy, DirectStrategy):
        rows = [block.queries for block in strategy.workload.blocks]
        return np.diag(1 / np.repeat(np.array(strategy.weights, dtype=float), rows))
    assert dense(strategy)
    return coefficients(strategy, W)


def dense(strategy):
    """Whether all parts are solved as one; test_parts looks at those that are not."""
    return not isinstance(strategy, UnionStrategy) or strategy.joint is not None


def covered(text, noise, name=None):
    """The share of intervals that cover, of a strategy that is held against dense algebra.

    It is the best one for a spec, or the one of a name.
    """
    compiled = compile_spec(read(text))
    workload, rng = compiled.workload, np.random.default_rng(0)
    if name is None:
        selection = select(workload, noises=[noise])[noise]
        found = (each for each in selection.candidates if each.proposal is not None)
        by_choice = sorted(found, key=lambda each: each.name != selection.best.name)
        proposed = (each.proposal.strategy for each in by_choice)
        strategy = next(each for each in proposed if dense(each))
    else:  # which a proof may leave out of the search
        problem = Problem(workload, gram(workload), noise, 0, items=compiled.items)
        strategy = dict(SEARCHES)[name](problem).strategy
    scale = math.sqrt(squared_sensitivity(strategy))
    noise_std = scale * (math.sqrt(2) if noise == "laplace" else 4.2)
    assert flaw_of(strategy, workload, items=compiled.items, noise_std=noise_std) == ""
    W = np.vstack([dense_block(block) for block in workload.blocks]).astype(float)
    C, blocks = dense_coefficients(strategy, W), list(enumerate(workload.blocks))
    std = [standard_errors(strategy, b, position=k, noise_std=noise_std) for k, b in blocks]
    widths = [
        half_widths(strategy, b, errors, position=k, level=0.95)
        for (k, b), errors in zip(blocks, std, strict=True)
    ]
    expected = noise_std * np.sqrt((C**2).sum(axis=1))
    assert np.concatenate(std) == pytest.approx(expected, rel=1e-4)

    def drawn(shape):
        if noise == "laplace":
            return np.rint(rng.laplace(scale=scale, size=shape))
        return np.rint(rng.normal(scale=noise_std, size=shape))

    x = rng.integers(0, 2000, W.shape[1])
    A = dense_strategy(strategy.measurements)
    noisy = (A @ x.astype(object)).astype(float) + drawn(len(A))
    ends = np.cumsum([rows.block.queries for rows in strategy.measurements])[:-1]
    estimates = reconstruct(strategy, np.split(noisy, ends))
    answers = np.concatenate([estimates.answer(b, k).ravel() for k, b in blocks])
    noise_free = expected == 0  # sums of values that are all 0
    assert not answers[noise_free].any()
    off = np.abs(answers - C @ noisy)[~noise_free] / expected[~noise_free]
    assert off.max() < 2e-3, "answers are not those of least squares"
    errors = np.abs(C @ drawn((len(A), RELEASES)))
    return float((errors <= np.concatenate(widths)[:, None]).mean())


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_three_conditions_on_one_item_are_answered_as_printed(noise):
    assert 0.93 < covered(SLICES, noise, "OPT_+") < 0.97


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(8))
def test_random_specs_are_answered_as_printed(seed):
    rng = np.random.default_rng([seed, 11])
    text = random_spec(rng, wheres=(None, 3, 4)[seed % 3])
    assert 0.92 < covered(text, ("laplace", "gaussian")[seed % 2]) < 0.98


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("seed", range(12, 112))
def test_more_random_specs_are_answered_as_printed(seed, noise):
    rng = np.random.default_rng([seed, 11])
    assert 0.92 < covered(random_spec(rng, wheres=(None, 2, 3, 4)[seed % 4]), noise) < 0.98
