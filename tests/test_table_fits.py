"""Fits of whole tables: against dense optima, and what every fit has to keep."""

import math
from itertools import combinations

import numpy as np
import pytest

from dpquery.operators.blocks import Workload, marginal
from dpquery.reconstruction.adaptive.fits import fit_tables
from dpquery.reconstruction.adaptive.measured_tables import MeasuredTable, merged_tables
from dpquery.reconstruction.rap.whole_tables import WholeTables

SHAPE = (3, 4, 2)
RECORDS = 400.0


def truth():
    return np.random.default_rng(0).dirichlet(np.full(24, 0.3)).reshape(SHAPE) * RECORDS


def margin_of(x, attributes):
    return x.sum(axis=tuple(i for i in range(x.ndim) if i not in attributes))


def measure(x, sets, std, seed=1):
    chance = np.random.default_rng(seed)
    return [
        MeasuredTable(s, margin_of(x, s) + chance.normal(0, std, margin_of(x, s).shape), std**2)
        for s in sets
    ]


ONES = [(0,), (1,), (2,)]
PAIRS = list(combinations(range(3), 2))


def test_measurements_of_a_table_are_merged_by_precision():
    first = MeasuredTable((0,), np.array([4.0, 0.0, 1.0]), 1.0)
    second = MeasuredTable((0,), np.array([0.0, 4.0, 1.0]), 1 / 3)
    (merged,) = merged_tables([first, second])
    assert merged.values == pytest.approx([1.0, 3.0, 1.0])
    assert merged.variance == pytest.approx(1 / 4)


def test_a_margin_has_the_noise_of_the_cells_that_it_adds_up():
    table = MeasuredTable((0, 1), np.arange(12.0).reshape(3, 4), 2.0)
    assert table.margin((1,)).values == pytest.approx(np.arange(12.0).reshape(3, 4).sum(axis=0))
    assert table.margin((1,)).variance == 6.0


def test_a_model_keeps_the_total_and_has_no_negative_cell():
    model = fit_tables(SHAPE, measure(truth(), ONES + PAIRS, 30.0), RECORDS)
    for attributes in [(), *ONES, *PAIRS, (0, 1, 2)]:
        table = model.table(attributes)
        assert table.shape == tuple(SHAPE[i] for i in attributes)
        assert table.min() >= 0
        assert table.sum() == pytest.approx(RECORDS)


def test_exact_tables_are_met_and_more_measurements_move_the_model_there():
    x = truth()
    before = fit_tables(SHAPE, measure(x, ONES, 0.5), RECORDS)
    after = fit_tables(SHAPE, measure(x, ONES + PAIRS, 0.5), RECORDS, before)
    for pair in PAIRS:
        assert np.abs(after.table(pair) - margin_of(x, pair)).max() < 2.0
    assert max(np.abs(before.table(p) - margin_of(x, p)).max() for p in PAIRS) > 10.0


def test_from_one_way_tables_alone_attributes_are_independent():
    x = truth()
    model = fit_tables(SHAPE, measure(x, ONES, 0.5), RECORDS)
    expected = np.einsum("i,j,k->ijk", *(margin_of(x, one) for one in ONES)) / RECORDS**2
    assert np.abs(model.table((0, 1, 2)) - expected).max() < 2.0


def test_the_same_measurements_give_the_same_model():
    measured = measure(truth(), ONES + PAIRS, 5.0)
    first, second = (fit_tables(SHAPE, measured, RECORDS) for _ in range(2))
    assert np.array_equal(first.table((0, 1, 2)), second.table((0, 1, 2)))


def test_the_error_weighs_every_table_by_its_precision_and_its_gradient_is_its_slope():
    x, stds = truth(), (4.0, 8.0, 2.0)
    noisy = [measure(x, [p], std)[0].values for p, std in zip(PAIRS, stds, strict=True)]
    blocks = tuple(marginal(SHAPE, p) for p in PAIRS)
    tables = WholeTables(Workload(SHAPE, blocks, (1.0,) * 3), tuple(noisy), stds)
    chance = np.random.default_rng(3)
    masses = np.concatenate([chance.dirichlet(np.ones(n), 5).T for n in SHAPE])
    starts = np.cumsum([0, *SHAPE])

    def dense(masses):
        each = [masses[a:b] for a, b in zip(starts, starts[1:], strict=False)]
        answers = [each[i] @ each[j].T / masses.shape[1] for i, j in PAIRS]
        parts = [
            np.sum((answer - y) ** 2) / std**2
            for answer, y, std in zip(answers, noisy, stds, strict=True)
        ]
        return min(stds) ** 2 * sum(parts)

    misfit = tables.misfit(masses)
    assert misfit.error == pytest.approx(dense(masses))
    assert tables.target.noise == pytest.approx(min(stds) ** 2 * sum(y.size for y in noisy))
    for place in np.ndindex(masses.shape):
        moved = np.zeros_like(masses)
        moved[place] = 1e-4
        slope = (dense(masses + moved) - dense(masses - moved)) / 2e-4
        assert misfit.gradient[place] / masses.shape[1] == pytest.approx(slope, abs=1e-4)


@pytest.mark.parametrize(
    ("tables", "total"),
    [([MeasuredTable((0,), np.ones(4), 1.0)], 5.0), ([], 0.0)],
)
def test_a_table_of_other_classes_and_no_records_are_refused(tables, total):
    with pytest.raises(ValueError, match="a table of|no records"):
        fit_tables(SHAPE, tables, total)


@pytest.mark.parametrize("variance", [0.0, math.inf, math.nan])
def test_noise_without_a_variance_is_refused(variance):
    with pytest.raises(ValueError, match="variance"):
        MeasuredTable((0,), np.ones(3), variance)
