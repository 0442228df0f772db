"""How far neighbours move the counts of selected queries is never underrated, and rarely over."""

from itertools import combinations_with_replacement

import numpy as np
import pytest

from dpquery.measurement.rounds.queries import (
    _clashes,
    _joint,
    _slack,
    family_sizes,
    squared_move,
)
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.operators.factors import Groups, Identity
from dpquery.operators.ranges import AllRanges, Prefix

SHAPE = (3, 4, 2)
CELLS = 24
CELL_VECTORS = np.eye(CELLS, dtype=np.int64)


def random_block(rng, shape=SHAPE):
    attributes = tuple(sorted(rng.choice(len(shape), rng.integers(1, 4), replace=False).tolist()))
    factors = tuple(
        (
            Identity(n),
            Prefix(n, n),
            AllRanges(n, n),
            Groups.of(((0,), (0, 1), (1,)), n),
        )[rng.integers(4)]
        for n in (shape[i] for i in attributes)
    )
    counted = tuple(bool(rng.integers(4)) for _ in attributes)
    k = sum(counted)
    return Block(shape, attributes, factors, counted, int(rng.integers(min(1, k), k + 1)))


def selected(seed, most=9):
    """A workload, places in it, and the 0/1 rows of the queries there."""
    rng = np.random.default_rng(seed)
    workload = Workload(SHAPE, tuple(random_block(rng) for _ in range(3)), (1.0,) * 3)
    starts = np.cumsum([0, *(block.queries for block in workload.blocks)])
    size = min(int(starts[-1]), int(rng.integers(1, most)))
    numbers = rng.choice(starts[-1], size, replace=False)
    positions = np.searchsorted(starts, numbers, side="right") - 1
    rows = np.stack([workload.matvec(cell) for cell in CELL_VECTORS], axis=1)[numbers]
    return workload, np.stack([positions, numbers - starts[positions]], axis=1), rows


def worst_move(rows, *, replace, records):
    """The largest squared move over all neighbours, by trying every one of them."""
    counts_of = [
        rows[:, list(one_record)].sum(1)
        for one_record in combinations_with_replacement(range(CELLS), 1)
    ]
    if records == 2:
        counts_of += [
            rows[:, list(two_records)].sum(1)
            for two_records in combinations_with_replacement(range(CELLS), 2)
        ]
    counts_of = np.stack([np.zeros(len(rows), dtype=np.int64), *counts_of], axis=1)
    if not replace:
        return int((counts_of**2).sum(0).max())
    lengths = (counts_of**2).sum(0)
    return int((lengths[:, None] + lengths - 2 * counts_of.T @ counts_of).max())


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("records", [1, 2])
def test_the_bound_holds_for_every_neighbour_by_brute_force(replace, records):
    exact = bound = 0
    for seed in range(60):
        workload, places, rows = selected(seed)
        sizes = family_sizes(workload, places)
        assert sum(sizes) == len(places)
        worst = worst_move(rows, replace=replace, records=records)
        sensitivity = squared_move(sizes, replace=replace, records=records)
        assert worst <= sensitivity <= records**2 * len(places)
        exact, bound = exact + worst, bound + sensitivity
    assert bound <= (1.3 if replace else 1.1) * exact


def test_queries_held_for_disjoint_share_no_record_and_those_of_products_are_all_found():
    missed = 0
    for seed in range(60):
        workload, places, rows = selected(seed)
        clashes, barred = _clashes(workload, places)
        slack = np.array([_slack(workload.blocks[position]) for position, _ in places])
        apart = (clashes > slack[:, None] + slack) | barred
        truly = rows @ rows.T == 0
        assert not (apart & ~truly).any()
        whole = slack[:, None] + slack == 0
        np.testing.assert_array_equal(apart[whole], truly[whole])
        missed += (truly & ~apart).sum()
    assert missed < 100


def test_cells_of_one_marginal_count_once_and_twice_where_records_are_replaced():
    workload = Workload(SHAPE, (marginal(SHAPE, (0, 1)),), (1.0,))
    places = np.array([[0, 3], [0, 7], [0, 11], [0, 0]])
    sizes = family_sizes(workload, places)
    assert sizes == [4]
    assert squared_move(sizes, replace=False, records=1) == 1
    assert squared_move(sizes, replace=True, records=1) == 2
    assert squared_move(sizes, replace=True, records=3) == 18
    assert squared_move(family_sizes(workload, places[:1]), replace=True, records=1) == 1


def test_thresholds_are_disjoint_where_too_many_targets_differ_and_only_there():
    shape = (3, 3, 3, 3)
    factors = (Identity(3),) * 4
    targets = [(0, 0, 0, 0), (1, 1, 1, 0), (1, 1, 1, 1), (0, 1, 1, 0)]
    rows = np.ravel_multi_index(tuple(zip(*targets, strict=True)), shape)
    families = {}
    for r in (1, 2, 3, 4):
        block = Block(shape, (0, 1, 2, 3), factors, (True,) * 4, r)
        places = np.stack([np.zeros(4, dtype=np.int64), np.sort(rows)], axis=1)
        families[r] = sorted(family_sizes(Workload(shape, (block,), (1.0,)), places))
    # With 3 of 4 to hold, two targets that differ in 3 places or more share no record.
    assert families == {1: [1] * 4, 2: [1] * 4, 3: [1, 1, 2], 4: [4]}


@pytest.mark.parametrize("replace", [False, True])
def test_the_bound_for_all_queries_at_once_holds_for_every_neighbour(replace):
    for seed in range(20):
        workload, _, _ = selected(seed)
        rows = np.stack([workload.matvec(cell) for cell in CELL_VECTORS], axis=1)
        worst = worst_move(rows, replace=replace, records=1)
        bound = _joint(workload, replace=replace)
        assert worst <= bound <= len(rows)
        assert replace or bound == worst


def test_families_that_take_thresholds_for_products_would_be_caught():
    shape = (3, 4, 2)
    block = Block(shape, (0, 1), (Identity(3), Identity(4)), (True, True), 1)
    workload = Workload(shape, (block,), (1.0,))
    places = np.array([[0, 0], [0, 5]])
    rows = np.stack([workload.matvec(cell) for cell in CELL_VECTORS], axis=1)[[0, 5]]
    assert worst_move(rows, replace=False, records=1) == 2
    assert family_sizes(workload, places) == [1, 1]
