"""The public side of RAP: what relaxed rows answer, and how they are fitted to noisy answers."""

from itertools import product

import numpy as np
import pytest
from strategies_support import MIXED, random_block, random_workload

from dpquery.operators.blocks import Block, marginal
from dpquery.operators.factors import Identity
from dpquery.reconstruction.relaxed import RelaxedRows


def random_rows(rng, shape, n, *, alpha=0.5):
    parts = [rng.dirichlet([alpha] * size, n) for size in shape]
    return RelaxedRows(shape, np.hstack(parts).astype(np.float32))


def one_hot(records, shape):
    parts = [np.eye(n, dtype=np.float32)[own] for n, own in zip(shape, records.T, strict=True)]
    return RelaxedRows(shape, np.hstack(parts))


def joint(rows):
    """The counts over the whole domain that relaxed rows stand for, in fractions: one loop."""
    x = np.zeros(rows.shape)
    for row in range(len(rows.values)):
        own = np.ones(1)
        for i in range(len(rows.shape)):
            own = np.multiply.outer(own, rows.distribution(i)[row].astype(float))
        x += own[0]
    return x / len(rows.values)


def test_relaxed_rows_answer_any_block_as_the_records_that_they_stand_for():
    rng = np.random.default_rng(0)
    for _ in range(60):
        workload = random_workload(rng)
        rows = random_rows(rng, workload.shape_of_domain, 7)
        x = joint(rows).ravel()
        for block in workload.blocks:
            answers = rows.answer(block)
            assert answers.shape == block.row_shape
            assert answers.dtype == np.float32
            np.testing.assert_allclose(answers.ravel(), block.matvec(x), atol=2e-5)


def test_rows_that_are_records_give_exact_answers():
    rng = np.random.default_rng(1)
    shape = MIXED.shape_of_domain
    records = np.stack([rng.integers(n, size=64) for n in shape], axis=1)
    rows = one_hot(records, shape)
    x = np.zeros(shape)
    np.add.at(x, tuple(records.T), 1)
    for block in (*MIXED.blocks, *(random_block(rng, shape) for _ in range(40))):
        counts = 64 * rows.answer(block).astype(float)
        np.testing.assert_array_equal(counts.ravel(), block.matvec(x.ravel()))


@pytest.mark.parametrize(("k", "r"), [(k, r) for k in range(1, 5) for r in range(1, k + 1)])
def test_a_threshold_over_relaxed_rows_is_a_tail_of_the_poisson_binomial(k, r):
    rng = np.random.default_rng(2)
    shape = (3, 2, 4, 3)[:k]
    rows = random_rows(rng, shape, 5)
    block = Block(shape, tuple(range(k)), tuple(map(Identity, shape)), (True,) * k, r)
    answers = rows.answer(block)
    for target in product(*map(range, shape)):
        p = np.array([rows.distribution(i)[:, y] for i, y in enumerate(target)], dtype=float)
        tail = np.zeros(5)
        for held in product((0, 1), repeat=k):
            each = [own if h else 1 - own for own, h in zip(p, held, strict=True)]
            chance = np.multiply.reduce(each, axis=0)
            tail += chance * (sum(held) >= r)
        assert answers[target] == pytest.approx(tail.mean(), abs=1e-6)


def test_rows_in_several_batches_answer_as_in_one():
    rng = np.random.default_rng(3)
    rows = random_rows(rng, (3, 4, 2), 2500)
    table = rows.answer(marginal(rows.shape, (0, 1, 2)))
    np.testing.assert_allclose(table, joint(rows), atol=1e-6)


def test_malformed_relaxed_rows_are_refused():
    for values in (np.ones((2, 4), np.float32), np.ones((2, 5)), np.ones((0, 5), np.float32)):
        with pytest.raises(ValueError, match="relaxed rows"):
            RelaxedRows((3, 2), values)
