"""Answers by the hundred million: the fast ways equal the slow ones, within memory of one table."""

import gc
import tracemalloc
from collections import deque
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dpquery.operators.blocks import Block, product
from dpquery.operators.factors import Identity
from dpquery.operators.ranges import Prefix
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import NoisyValues, TableAnswers, reconstruct
from dpquery.releases.tables.errors import Tally, relative_errors
from dpquery.releases.tables.item_table import layout
from dpquery.releases.tables.labels import LabelRuns, repeat_runs
from dpquery.spec.columns import Attribute, Column, Domain, Integers
from dpquery.spec.predicates import IdentitySet
from dpquery.spec.spec import Item, Table
from dpquery.strategy.algebra.query_powers import expand
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore

SHAPE = (40, 60, 50, 8)
CELLS = 40 * 60 * 50 * 8


def residual(shape, *, dense=()):
    rng = np.random.default_rng(1)
    cores = tuple(
        DenseCore(rng.integers(-9, 10, (n - 1, n))) if i in dense else CenteredCore(n)
        for i, n in enumerate(shape)
    )
    subsets = [b for k in range(len(shape) + 1) for b in combinations(range(len(shape)), k)]
    return ResidualStrategy("r", "gaussian", cores, {b: 2 + len(b) for b in subsets})


def marginals(shape):
    return MarginalsStrategy("m", "gaussian", shape, {tuple(range(len(shape))): 3, (0, 1): 7})


def noisy_answers(strategy):
    rng = np.random.default_rng(2)
    return [rng.normal(size=measurement.block.queries) for measurement in strategy.measurements]


def threshold(shape, r, counted=None, factors=None):
    every = tuple(range(len(shape)))
    matrices = tuple(Identity(n) for n in shape) if factors is None else factors
    return Block(shape, every, matrices, counted or (True,) * len(shape), r)


def slow_answer(strategy, noisy, block):
    """Every term of the block on the table of its own attributes, at full size."""
    total = np.zeros(block.row_shape)
    estimates = reconstruct(strategy, noisy)
    for coef, mask in block.terms:
        u = [i for i, inside in enumerate(mask) if inside]
        part = product(block.shape_of_domain, {i: block.factors[i] for i in u})
        shape = [m if i in u else 1 for i, m in enumerate(block.row_shape)]
        total += coef * estimates.answer(part, 0).reshape(shape)
    return total


@pytest.mark.parametrize(("kept", "wide"), [(0, 8), (7, 8), (1 << 16, 8), (1 << 16, 3)])
@pytest.mark.parametrize("strategy", [residual((4, 3, 5, 2), dense=(2,)), marginals((4, 3, 5, 2))])
def test_thresholds_are_signed_sums_of_the_tables_below(strategy, kept, wide, monkeypatch):
    shape, noisy = strategy.shape, noisy_answers(strategy)
    prefixes = (Prefix(4), Identity(3), Prefix(5), Identity(2))
    blocks = [
        threshold(shape, r, counted, factors)
        for factors in (None, prefixes)
        for counted in ((True,) * 4, (True, False, True, True))
        for r in range(1, sum(counted) + 1)
    ]
    expected = [slow_answer(strategy, noisy, block) for block in blocks]
    monkeypatch.setattr("dpquery.reconstruction.least_squares.MAX_KEPT_NUMBERS", kept)
    monkeypatch.setattr("dpquery.reconstruction.least_squares.WIDE", wide)
    estimates = reconstruct(strategy, noisy)
    for _ in range(2):  # what is kept serves again, unchanged
        for block, dense in zip(blocks, expected, strict=True):
            assert np.allclose(estimates.answer(block, 0), dense, rtol=1e-9)


def test_pieces_change_nothing(monkeypatch):
    strategy = residual((4, 3, 5, 2), dense=(2,))
    noisy, block = noisy_answers(strategy), threshold((4, 3, 5, 2), 2)
    whole = reconstruct(strategy, noisy).answer(block, 0)
    for piece, short in ((1, 0), (13, 4), (64, 99)):
        monkeypatch.setattr("dpquery.operators.blocks.PIECE", piece)
        monkeypatch.setattr("dpquery.operators.blocks.SHORT", short)
        assert np.allclose(reconstruct(strategy, noisy).answer(block, 0), whole, rtol=1e-12)


def peak_of(run):
    gc.collect()
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("r", [1, 2, 4])
@pytest.mark.parametrize("make", [residual, marginals])
def test_answering_takes_the_memory_of_three_tables(make, r):
    strategy = make(SHAPE)
    noisy, block = noisy_answers(strategy), threshold(SHAPE, r)
    estimates = reconstruct(strategy, noisy)
    estimates.answer(block, 0)  # what is kept for other tables is not of this one
    assert peak_of(lambda: estimates.answer(block, 0)) < 3.6 * 8 * CELLS


def test_a_file_takes_the_memory_of_its_batches():
    one, domain = wide_item()
    ones = np.broadcast_to(1.0, (CELLS,))
    answers = TableAnswers(one.tables[0], np.arange(float(CELLS)), ones, ones)

    def peak(tables):
        columns = layout(replace(one, tables=one.tables * tables), domain)
        return peak_of(lambda: deque(columns.batches(iter([answers] * tables), rows=1 << 15), 0))

    few, many = peak(1), peak(3)
    assert many < 1.2 * few + (1 << 16)
    assert many < 8 * CELLS


def wide_item():
    columns = [Column(f"a{i}", Integers(0, n - 1), "drop") for i, n in enumerate(SHAPE)]
    domain = Domain(tuple(Attribute(column.name, (column,)) for column in columns))
    axes = tuple((i, IdentitySet(n)) for i, n in enumerate(SHAPE))
    return Item("wide", (Table(axes, at_least=2),)), domain


def test_noisy_values_leave_their_grid_one_measurement_at_a_time():
    values = np.arange(-5, 5)
    noisy = NoisyValues(values, [3, 0, 7], shift=2)
    assert [part.tolist() for part in noisy] == [[-20, -16, -12], [], list(range(-8, 20, 4))]
    assert [part.tolist() for part in noisy[1:]] == [[], list(range(-8, 20, 4))]
    assert len(noisy) == 3
    assert noisy[-1].dtype == np.float64
    with pytest.raises(IndexError):
        noisy[3]
    with pytest.raises(ValueError, match="10 values for measurements of 9"):
        NoisyValues(values, [3, 6], shift=0)


@pytest.mark.parametrize("n", [1, 2, 7, 600])
@pytest.mark.parametrize("length", [1, 3, 50, 2000])
def test_runs_are_those_of_every_row_by_itself(n, length):
    rng = np.random.default_rng(n + length)
    values = rng.integers(0, 1000, n)
    for size in (1, 5, 4000):
        start = int(rng.integers(0, 3 * n * length))
        out = np.full(size + 4, -1)
        runs = LabelRuns(2, start, start + size, length)
        repeat_runs(values, runs, out[runs.rows])
        expected = values[np.arange(start, start + size) // length % n]
        assert out.tolist() == [-1, -1, *expected.tolist(), -1, -1]


@pytest.mark.parametrize("strategy", [residual((4, 3)), residual((4, 3), dense=(0,))])
@pytest.mark.parametrize("r", [1, 2])
def test_one_standard_error_for_all_rows_is_held_once(strategy, r):
    block = threshold((4, 3), r)
    std = standard_errors(strategy, block, position=0, noise_std=2.0)
    half = half_widths(strategy, block, std, position=0, level=0.95)
    terms = strategy.variances(block, position=0)
    full = 2.0 * np.sqrt(np.broadcast_to(expand(terms), (4, 3)))
    assert np.array_equal(std, full.ravel())
    assert half == pytest.approx(1.959964 * std, rel=1e-6)
    same = len(set(std.tolist())) == 1
    assert (std.strides == (0,)) == (half.strides == (0,)) == same


def test_the_summary_of_one_standard_error_is_that_of_as_many():
    rng = np.random.default_rng(3)
    estimate, one = rng.normal(0, 3, 1000), np.broadcast_to(2.5, (1000,))
    short, long = Tally(), Tally()
    short.add(one, relative_errors(estimate, one))
    long.add(one.copy(), relative_errors(estimate, one.copy()))
    item, _ = wide_item()
    assert short.row(item) == long.row(item)
