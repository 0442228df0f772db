"""Very many tables counted together: exact, each record once, in however many steps."""

import itertools
import math

import numpy as np
import pytest

from dpquery.measurement.counting import tables as maximal_tables
from dpquery.measurement.counting import tables as table_counts


@pytest.mark.parametrize("small", [0, 30, 300, 10**6])
def test_tables_counted_together_hold_each_table_once(small, monkeypatch):
    monkeypatch.setattr(maximal_tables, "_SMALL", small)
    shape = (3, 1, 4, 2, 5, 2, 3)
    tables = [(), *itertools.combinations(range(7), 3), (0, 1, 4, 5), (2, 3)]
    together = maximal_tables.counted_together(tables, shape)
    held = [table for _, inside in together for table in inside]
    assert sorted(held) == sorted(tables)
    assert all(set(table) <= set(group) for group, inside in together for table in inside)
    sizes = [(math.prod(shape[i] for i in group), inside) for group, inside in together]
    assert all(size <= small or len(inside) == 1 for size, inside in sizes)
    assert (len(together) < len(tables)) == (small > 0)


def test_five_attributes_of_ten_values_cover_ten_triples(monkeypatch):
    triples = list(itertools.combinations(range(20), 3))
    together = maximal_tables.counted_together(triples, (10,) * 20)
    assert max(len(group) for group, _ in together) == 5
    assert len(together) < 1.7 * len(triples) / 10


@pytest.mark.parametrize("held", [1, 400, 10**9])
@pytest.mark.parametrize("narrow", [0, 10**9])
@pytest.mark.parametrize("most", [50, 2**32 - 1])
def test_rows_that_are_held_and_narrow_counts_change_nothing(monkeypatch, held, narrow, most):
    monkeypatch.setattr(table_counts, "HELD", held)
    monkeypatch.setattr(table_counts, "WIDE_CELLS", narrow)
    monkeypatch.setattr(table_counts, "_MOST", most)
    monkeypatch.setattr(maximal_tables, "MAX_COUNTED_CELLS", 700)  # too few to merge what is kept
    shape, generator = (3, 1, 300, 2, 5), np.random.default_rng(4)
    subsets = [(0, 3, 4), (0, 1), (2,), (0, 3), (), (1, 3, 4), (0, 1, 4)]
    counts = table_counts.TableCounts(subsets, shape)
    rows = np.column_stack([generator.integers(n, size=150) for n in shape])
    for part in np.split(rows, [1, 40, 40, 110]):
        counts.add(dict(enumerate(part.T)), len(part))
    counts.add_cells(np.array([[0, 0], [3, 4]]))
    tables = counts.marginals()
    first = counts.homes[0]
    for subset in subsets:
        expected = np.zeros([shape[i] for i in subset], np.int64)
        np.add.at(expected, tuple(rows[:, i] for i in subset), 1)
        expected = expected if subset else np.array(len(rows))
        if counts._home_of[subset] == first:
            expected[(0,) * len(subset)] += 7
        assert tables[subset].dtype == np.int64
        np.testing.assert_array_equal(tables[subset], expected)
    whole = np.concatenate(list(counts.cells()), axis=1)
    again = table_counts.TableCounts(subsets, shape)
    again.add_cells(whole[:, ::-1])
    np.testing.assert_array_equal(again.marginals()[0, 3, 4], tables[0, 3, 4])
    with pytest.raises(IndexError):
        counts.add_cells(np.array([[10**6], [1]]))


def test_counts_go_on_in_64_bits_past_what_32_hold(monkeypatch):
    monkeypatch.setattr(table_counts, "WIDE_CELLS", 0)
    counts = table_counts.TableCounts([(0,)], (2,))
    counts.add({0: np.zeros(2, np.int64)}, 2)
    counts._count_held()
    assert counts._cells.dtype == np.uint32
    counts._cells[:] = 2**32 - 1  # as if there had been so many rows
    counts._rows = 2**32 - 1
    counts.add({0: np.array([0, 1, 1])}, 3)
    assert counts.marginals()[0,].tolist() == [2**32, 2**32 + 1]
