"""Grams and inverses kept by their products equal the arrays that they stand for."""

import numpy as np
import pytest

from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Dense, Groups, Identity, PIdentity, Stacked, total
from dpquery.operators.gram import (
    Mixture,
    Structured,
    array_of,
    diagonal,
    gram,
    natural_order,
    restricted,
    times,
    total_sum,
    trace,
    trace_with,
    weighted_sum,
)
from dpquery.operators.inverses import inverse_times, inverse_trace, p_identity_inverse, quadratic
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges

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
