"""The Gram as a sum of Kronecker products equals W'W, signed blocks included."""

from functools import cache

import numpy as np
import pytest
from dense import dense_gram, random_workload

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.measurement.rounds.queries import _joint, family_sizes, squared_move
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Dense, Groups, Identity, Stacked, total
from dpquery.operators.gram import (
    Mixture,
    Structured,
    array_of,
    diagonal,
    gram,
    is_mixture,
    natural_order,
    restricted,
    times,
    total_sum,
    trace,
    trace_with,
    weighted_sum,
)
from dpquery.operators.inverses import inverse_times, inverse_trace, p_identity_inverse, quadratic
from dpquery.operators.p_identity import PIdentity
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges

seeds = pytest.mark.parametrize("seed", range(40))


@seeds
def test_gram_equals_the_dense_product(seed):
    workload = random_workload(np.random.default_rng(seed))
    V, expected = gram(workload), dense_gram(workload)
    x = np.random.default_rng(seed).normal(size=len(expected))
    assert np.allclose(V.dense(), expected)
    assert np.allclose(V.matvec(x), expected @ x)
    assert V.trace == pytest.approx(np.trace(expected))


@seeds
def test_term_traces_add_up_to_the_trace_against_a_product(seed):
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, attributes=3)
    V, inverses = gram(workload), [rng.normal(size=(n, n)) for n in workload.shape_of_domain]
    inverses = [M + M.T for M in inverses]
    big = np.eye(1)
    for M in inverses:
        big = np.kron(big, M)
    pairs = zip(inverses, V.matrices, strict=True)
    traces = [np.array([trace_with(M, each) for each in matrices]) for M, matrices in pairs]
    computed = V.weights @ V.term_traces(traces).prod(axis=1)
    expected = np.sum(big * dense_gram(workload))
    assert computed == pytest.approx(expected, abs=1e-9 * np.abs(big).sum() * V.trace)


def test_equal_terms_are_merged():
    shape = (3, 4)
    blocks = (marginal(shape, [0]), marginal(shape, [0]), product(shape, {1: total(4)}))
    V = gram(Workload(shape, blocks, (1.0, 2.0, 5.0)))
    assert sorted(V.weights) == [3.0, 5.0]


def test_mixtures_are_recognised_at_any_scale():
    for scale in (1e-12, 1.0, 1e12):
        assert is_mixture(scale * (3 * np.eye(4) + 2))
        assert not is_mixture(scale * Prefix(4).gram())
    assert is_mixture(np.ones((1, 1)))
    assert is_mixture(2 * np.eye(3))
    assert not is_mixture(np.diag([1.0, 2.0, 1.0]))


def test_an_array_over_too_many_values_is_refused_before_memory_is():
    n = 20_000
    workload = Workload((n,), (product((n,), {0: Prefix(n)}),), (1.0,))
    V = gram(workload).matrices[0][1]
    assert trace(V) == n * (n + 1) / 2
    with pytest.raises(UnsupportedWorkloadError, match="20,000 distinct values"):
        array_of(V)


# Grams and inverses kept by their products equal the arrays that they stand for.


ORDER = np.array([3, 0, 6, 2, 5, 1, 4])
FACTORS = [
    Prefix(7),
    Prefix(7, 4),
    AllRanges(7),
    AllRanges(7, 5),
    WidthRanges(7, 3),
    ListedRanges(7, [(0, 6), (2, 3), (2, 3), (5, 5)]),
    Groups.of(((0, 3), (1, 2, 6)), 7),
    Columns(AllRanges(7), ORDER),
    Columns(Prefix(9), ORDER + 1),
    Stacked((Prefix(7), Identity(7), total(7), Columns(WidthRanges(7, 2), ORDER))),
]
factors = pytest.mark.parametrize("factor", FACTORS, ids=lambda factor: str(factor.key[0]))


def gram_of(factor):
    n = factor.shape[1]
    return gram(Workload((n,), (product((n,), {0: factor}),), (1.0,))).matrices[0][1]


def numbers(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def check(V, expected):
    n = len(expected)
    X, M = numbers((n, 3)), numbers((n, n))
    assert array_of(V) == pytest.approx(expected)
    assert times(V, X) == pytest.approx(expected @ X)
    assert diagonal(V) == pytest.approx(np.diag(expected))
    assert trace(V) == pytest.approx(np.trace(expected))
    assert total_sum(V) == pytest.approx(expected.sum())
    assert trace_with(M + M.T, V) == pytest.approx(np.trace((M + M.T) @ expected))
    codes = np.array([5, 0, 3])
    assert array_of(restricted(V, codes)) == pytest.approx(expected[np.ix_(codes, codes)])
    twice = restricted(restricted(V, codes), np.array([2, 0]))
    assert array_of(twice) == pytest.approx(expected[np.ix_([3, 5], [3, 5])])


@factors
def test_a_structured_gram_equals_the_dense_one(factor):
    F = factor.dense().astype(float)
    assert isinstance(gram_of(factor), Structured)
    check(gram_of(factor), F.T @ F)


@pytest.mark.parametrize("others", [[Mixture(7, 2.0, -0.5)], [Mixture(7, 1.0, 0.0), np.eye(7)]])
def test_weighted_sums_equal_the_dense_ones(others):
    matrices = [gram_of(factor) for factor in FACTORS] + others
    weights = numbers(len(matrices), seed=1)
    weights[2] = 0.0
    expected = sum(w * array_of(V) for w, V in zip(weights, matrices, strict=True))
    V = weighted_sum(weights, matrices)
    assert isinstance(V, Structured) == (len(others) == 1)
    check(V, expected)


def test_weighted_sums_of_mixtures_stay_mixtures_and_others_are_symmetrised():
    assert isinstance(
        weighted_sum(np.ones(2), [Mixture(4, 1.0, 2.0), Mixture(4, 3.0, 0.0)]), Mixture
    )
    M = numbers((4, 4))
    assert weighted_sum(np.ones(1), [M]) == pytest.approx((M + M.T) / 2)


def test_the_natural_order_undoes_a_permutation():
    V = gram_of(Columns(AllRanges(7), ORDER))
    assert array_of(restricted(V, natural_order(V))) == pytest.approx(AllRanges(7).gram())
    mixed = gram_of(Stacked((Columns(AllRanges(7), ORDER), Prefix(7))))
    assert natural_order(mixed).tolist() == list(range(7))


def test_all_ranges_over_many_codes_never_list_a_range(monkeypatch):
    n = 50_000
    V = gram_of(AllRanges(n))
    monkeypatch.setattr(AllRanges, "bounds", property(lambda _: pytest.fail("listed the ranges")))
    X = np.zeros((n, 1))
    X[700] = 1.0
    i = np.arange(n)
    expected = (np.minimum(i, 700) + 1.0) * (n - np.maximum(i, 700))
    assert times(V, X)[:, 0] == pytest.approx(expected)
    assert trace(V) == pytest.approx(float(((i + 1.0) * (n - i)).sum()))


def test_columns_are_taken_once():
    with pytest.raises(ValueError, match="twice"):
        Columns(Prefix(3), np.array([0, 0]))


def p_identities():
    rng = np.random.default_rng(2)
    return [
        PIdentity(rng.random(7) + 0.1, rng.random((3, 7))),
        PIdentity(rng.integers(1, 99, 7), rng.integers(0, 99, (1, 7))),
    ]


@pytest.mark.parametrize("factor", p_identities())
def test_the_inverse_of_a_p_identity_equals_the_dense_one(factor):
    A, M, X = factor.dense().astype(float), p_identity_inverse(factor), numbers((7, 2))
    expected = np.linalg.inv(A.T @ A)
    assert M.array() == pytest.approx(expected)
    assert inverse_times(M, X) == pytest.approx(expected @ X)
    for F in FACTORS:
        assert inverse_trace(M, gram_of(F)) == pytest.approx(np.trace(expected @ F.gram()))


@factors
def test_quadratic_forms_by_rows_equal_the_dense_ones(factor):
    for strategy in (*p_identities(), PIdentity(np.full(7, 2.0), numbers((40, 7)))):
        M, F = p_identity_inverse(strategy), factor.dense().astype(float)
        expected = np.diag(F @ M.array() @ F.T)
        assert quadratic(factor, M) == pytest.approx(expected)
        assert quadratic(factor, M.array()) == pytest.approx(expected)


def test_quadratic_forms_of_signed_queries_take_squares():
    factor, M = Dense(numbers((4, 7), seed=3)), p_identity_inverse(p_identities()[0])
    F = factor.dense()
    assert quadratic(factor, M) == pytest.approx(np.diag(F @ M.array() @ F.T))


# How far neighbours move the counts of selected queries is never underrated, and rarely over.


SHAPE = (3, 4, 2)
CELLS = 24
CELL_VECTORS = np.eye(CELLS, dtype=np.int64)


def random_block(rng, shape=SHAPE):
    attributes = tuple(sorted(rng.choice(len(shape), rng.integers(1, 4), replace=False).tolist()))
    factors = tuple(
        (Identity(n), Prefix(n, n), AllRanges(n, n), Groups.of(((0,), (0, 1), (1,)), n))[
            rng.integers(4)
        ]
        for n in (shape[i] for i in attributes)
    )
    counted = tuple(bool(rng.integers(4)) for _ in attributes)
    k = sum(counted)
    return Block(shape, attributes, factors, counted, int(rng.integers(min(1, k), k + 1)))


@cache
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
    counts_of = np.hstack([np.zeros((len(rows), 1), dtype=np.int64), rows])
    if records == 2:  # or one record, or none
        first, second = np.triu_indices(CELLS + 1)
        counts_of = counts_of[:, first] + counts_of[:, second]
    if not replace:
        return int((counts_of**2).sum(0).max())
    lengths = (counts_of**2).sum(0)
    return int((lengths[:, None] + lengths - 2 * counts_of.T @ counts_of).max())


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("records", [1, 2])
def test_the_bound_holds_for_every_neighbour_by_brute_force(replace, records):
    exact = bound = 0
    for seed in range(20):
        workload, places, rows = selected(seed)
        sizes = family_sizes(workload, places)
        assert sum(sizes) == len(places)
        worst = worst_move(rows, replace=replace, records=records)
        sensitivity = squared_move(sizes, replace=replace, records=records)
        assert worst <= sensitivity <= records**2 * len(places)
        exact, bound = exact + worst, bound + sensitivity
    assert bound <= (1.3 if replace else 1.1) * exact


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
