"""Extra columns: the nearest consistent answers, what noise explains, whole numbers that add up."""

import math
from collections import Counter
from itertools import product as combinations_of

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, isotonic_regression, minimize

from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.compile import factor
from dpquery.operators.factors import Identity
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges
from dpquery.reconstruction import intervals as extremes
from dpquery.reconstruction.columns import (
    ExtraColumn,
    consistent,
    parse_columns,
    query_structure,
    thresholded,
    whole_numbers,
    with_columns,
)
from dpquery.reconstruction.intervals import expected_largest
from dpquery.reconstruction.least_squares import TableAnswers, reconstruct
from dpquery.reconstruction.nearest import (
    onto_chain,
    onto_rising,
    onto_simplex,
    relative_variances,
    to_whole,
)
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
)
from dpquery.spec.spec import Table
from dpquery.strategy.search import candidates
from dpquery.strategy.search.candidates import Problem

GROUPS = GroupSet(4, (("a", (0, 2)), ("b", (3,))))
COVERING = GroupSet(4, (("a", (0, 2)), ("b", (1, 3))))
DISJOINT = [
    IdentitySet(4),
    TotalSet(4),
    GROUPS,
    COVERING,
    IntervalSet(4, ((2, 3), (0, 1))),
    WidthSet(4, 4, 1),
    PrefixSet(2, 1),
]
SPECIAL = [
    PrefixSet(5, 4),
    AllRangesSet(4, 4),
    StackedSet(4, (IdentitySet(4), TotalSet(4))),
    StackedSet(4, (TotalSet(4), IdentitySet(4))),
    StackedSet(4, (COVERING, TotalSet(4))),
    StackedSet(4, (IdentitySet(4, ((4, 3),)), TotalSet(4))),
    StackedSet(4, (TotalSet(4), GROUPS)),
]
OVERLAPPING = [
    WidthSet(4, 4, 2),
    IntervalSet(4, ((0, 2), (1, 3))),
    GroupSet(4, (("a", (0, 1)), ("b", (1, 2)))),
    StackedSet(4, (PrefixSet(4, 4), TotalSet(4))),
    StackedSet(4, (IdentitySet(4), TotalSet(4), TotalSet(4))),
]


def table(*sets, at_least=None):
    return Table(tuple(enumerate(sets)), at_least=at_least)


def answers(columns, estimate, std_error=None):
    std = np.ones(columns.size) if std_error is None else np.asarray(std_error, dtype=float)
    return TableAnswers(columns, np.asarray(estimate, dtype=float), std, 1.96 * std)


def random_problem(rng, rows, m):
    y = rng.normal(scale=5, size=(rows, m)).round(rng.integers(0, 3))  # rounded: ties
    v = rng.choice([1.0, 1.0, 0.3, 4.0], size=(rows, m))
    return y, v, np.maximum(y.sum(axis=1), 0) * rng.choice([0, 1, 1, 2])


def slow_projection(y, v, constraints):
    """The same nearest point by a general solver."""
    minimum = minimize(
        lambda x: ((x - y) ** 2 / v).sum() / 2,
        np.maximum(y, 0),
        jac=lambda x: (x - y) / v,
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return minimum.x


@pytest.mark.parametrize("seed", range(12))
def test_the_chain_projection_is_the_quadratic_programmes(seed):
    rng = np.random.default_rng(100 + seed)
    y, v, _ = random_problem(rng, 3, int(rng.integers(1, 8)))
    total = np.maximum(y[:, -1], 0)
    projected = onto_chain(y, v, total)
    for row in range(3):
        size = y.shape[1]
        rules = [
            LinearConstraint(np.eye(size) - np.eye(size, k=-1), 0, np.inf),
            LinearConstraint(np.eye(size)[-1:], total[row], total[row]),
        ]
        slow = slow_projection(y[row], v[row], rules)
        np.testing.assert_allclose(projected[row], slow, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_rising_values_are_isotonic_regression(seed):
    rng = np.random.default_rng(150 + seed)
    size = int(rng.integers(1, 40))
    y, v = rng.normal(0.1, 1, (3, 5, size)).cumsum(axis=-1).round(seed % 3), rng.random((5, size))
    rows = [isotonic_regression(part[k], weights=1 / w).x for part in y for k, w in enumerate(v)]
    np.testing.assert_allclose(onto_rising(y, v), np.reshape(rows, y.shape), atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_the_simplex_projection_meets_the_kkt_conditions(seed):
    rng = np.random.default_rng(200 + seed)
    y, v, total = random_problem(rng, 4, int(rng.integers(1, 300)))
    x = onto_simplex(y, v, total)
    assert np.all(x >= 0)
    np.testing.assert_allclose(x.sum(axis=1), total, rtol=1e-9, atol=1e-9)
    for projected, given, variance in zip(x, y, v, strict=True):
        if projected.sum() > 0:
            price = (given - projected) / variance  # tau where positive, at most tau where zero
            tau = price[projected > 0]
            np.testing.assert_allclose(tau, tau[0], rtol=1e-9, atol=1e-9)
            assert np.all(price[projected == 0] <= tau[0] + 1e-9)


def test_exact_answers_stay_as_they_are_beside_noisy_ones():
    v = relative_variances(np.array([0.0, 2.0, 2.0]), (1, 3))
    x = onto_simplex(np.array([[4.0, 3.0, -5.0]]), v, np.array([4.5]))
    np.testing.assert_allclose(x, [[4.0, 0.5, 0.0]], atol=1e-9)


def consistent_by_brute_force(columns, x):
    """Whether some non-negative counts of the table's cells give these answers."""
    matrices = [factor(s, np.arange(s.size)).dense() for _, s in columns.axes]
    W = np.ones((1, 1))
    for matrix in matrices:
        W = np.kron(W, matrix)
    minimum = minimize(
        lambda c: ((W @ c - x) ** 2).sum() / 2,
        np.maximum(np.linalg.pinv(W) @ x, 0),
        jac=lambda c: W.T @ (W @ c - x),
        bounds=[(0, None)] * W.shape[1],
        method="L-BFGS-B",
        options={"ftol": 1e-16, "gtol": 1e-10, "maxiter": 5000},
    )
    return np.sqrt(2 * minimum.fun) < 1e-3


TABLES = [table(predicates) for predicates in (*DISJOINT, *SPECIAL)]
TABLES += [table(predicates, IdentitySet(3)) for predicates in SPECIAL]
TABLES += [table(IdentitySet(2), predicates, GROUPS) for predicates in SPECIAL[:3]]


@pytest.mark.parametrize("item_table", TABLES, ids=range(len(TABLES)))
def test_consistent_answers_are_those_of_some_counts_and_keep_the_size(item_table):
    rng = np.random.default_rng(7)
    given = answers(
        item_table, rng.normal(2, 5, item_table.size), rng.uniform(1, 3, item_table.size)
    )
    x, whole = consistent(given), whole_numbers(given)
    assert consistent_by_brute_force(item_table, x)
    assert consistent_by_brute_force(item_table, whole)
    assert np.all(np.abs(whole - x) <= 1 + 1e-6) or isinstance(item_table.axes[0][1], AllRangesSet)
    how = query_structure(item_table)
    if how.kind == "disjoint":
        assert x.sum() == pytest.approx(max(0, given.estimate.sum()))
        assert whole.sum() == round(x.sum())
    else:
        wholes = np.take(given.estimate.reshape(item_table.shape), how.whole, axis=how.axis)
        assert np.take(
            x.reshape(item_table.shape), how.whole, axis=how.axis
        ).sum() == pytest.approx(max(0, wholes.sum()))


@pytest.mark.parametrize("item_table", TABLES, ids=range(len(TABLES)))
def test_what_is_consistent_already_stays_as_it_is(item_table):
    rng = np.random.default_rng(8)
    counts = rng.poisson(1.0, [s.size for _, s in item_table.axes]).astype(float)
    x = counts
    for axis, (_, s) in enumerate(item_table.axes):
        matrix = factor(s, np.arange(s.size)).dense()
        x = np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis)
    given = answers(item_table, x.ravel())
    np.testing.assert_allclose(consistent(given), x.ravel(), atol=1e-9)
    np.testing.assert_array_equal(whole_numbers(given), x.ravel())


@pytest.mark.parametrize("predicates", OVERLAPPING, ids=str)
def test_overlapping_predicates_have_no_consistent_answers_and_say_why(predicates):
    assert predicates.kind == "overlapping"
    given = answers(table(predicates), np.arange(len(predicates)) - 1.0)
    assert consistent(given) is None
    assert whole_numbers(given) is None
    assert "overlap" in query_structure(given.table).reason
    assert np.all(with_columns(given, parse_columns(["nonnegative"])).extra[0] >= 0)


def test_thresholds_and_two_chains_have_no_consistent_answers_either():
    assert (
        "several of its queries" in query_structure(table(*[IdentitySet(2)] * 3, at_least=2)).reason
    )
    assert (
        "several of its attributes"
        in query_structure(table(PrefixSet(4, 4), PrefixSet(4, 4))).reason
    )


def test_whole_numbers_are_neighbours_that_add_up():
    rng = np.random.default_rng(10)
    for m in (1, 2, 17, 400):
        x = rng.exponential(1.0, (5, m)) * (rng.random((5, m)) < 0.5)
        total = np.rint(x.sum(axis=1))
        whole = to_whole(x, total)
        np.testing.assert_array_equal(whole.sum(axis=1), total)
        assert np.all((whole == np.floor(x)) | (whole == np.ceil(x)))


def test_the_universal_threshold_zeroes_a_table_of_zeros_and_keeps_what_stands_out():
    rng = np.random.default_rng(11)
    sparse = table(IdentitySet(10_000))
    noise = rng.normal(0, 3, sparse.size)
    noise[:20] += 100
    kept = thresholded(answers(sparse, noise, np.full(sparse.size, 3.0)), None)
    np.testing.assert_array_equal(kept[:20], noise[:20])
    assert np.count_nonzero(kept[20:]) <= 3
    some = thresholded(answers(sparse, noise, np.full(sparse.size, 3.0)), 1.0)
    np.testing.assert_array_equal(some, np.where(noise < 3.0, 0, noise))


def test_a_single_negative_answer_is_zero_under_any_threshold():
    assert thresholded(answers(table(TotalSet(3)), [-1.0]), None) == 0


def test_on_sparse_tables_every_column_errs_less_than_the_estimate_in_the_mean():
    rng = np.random.default_rng(12)
    sparse = table(IdentitySet(20), IdentitySet(25))
    truth = np.where(rng.random(sparse.size) < 0.05, rng.poisson(60, sparse.size), 0).astype(float)
    names = ("nonnegative", "consistent", "thresholded", "integer")
    squares = np.zeros(5)
    for _ in range(40):
        given = answers(sparse, truth + rng.normal(0, 4, sparse.size), np.full(sparse.size, 4.0))
        extra = with_columns(given, parse_columns(names)).extra
        squares += [np.square(x - truth).mean() for x in (given.estimate, *extra)]
    estimate, nonnegative, projected, zeroed, whole = squares / 40
    assert nonnegative < 0.6 * estimate
    assert projected < 0.25 * estimate
    assert zeroed < 0.25 * estimate
    assert whole < 1.1 * projected


def test_the_estimates_and_their_errors_stay_as_they_are():
    given = answers(table(IdentitySet(4)), [1.5, -2.0, 0.25, 7.0])
    before = [array.copy() for array in (given.estimate, given.std_error, given.half_width)]
    with_columns(given, parse_columns(["integer", "consistent", "nonnegative", "thresholded:2"]))
    after = (given.estimate, given.std_error, given.half_width)
    for array, old in zip(after, before, strict=True):
        np.testing.assert_array_equal(array, old)


def test_columns_are_read_in_order_and_named_as_given():
    parsed = parse_columns(["thresholded:1.5", "nonnegative"])
    assert parsed == (ExtraColumn("thresholded", 1.5), ExtraColumn("nonnegative"))
    assert [column.text for column in parsed] == ["thresholded:1.5", "nonnegative"]
    assert "below 1.5 standard errors" in parsed[0].meaning
    assert "sqrt(2 ln m)" in ExtraColumn("thresholded").meaning


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["nonegative"], "did you mean 'nonnegative'"),
        (["sorted"], "expected nonnegative, consistent"),
        (["consistent", "consistent"], "given twice"),
        (["thresholded", "thresholded:3"], "given twice"),
        (["thresholded:none"], "positive number"),
        (["thresholded:-1"], "positive number"),
        (["thresholded:nan"], "positive number"),
        (["thresholded:"], "positive number"),
        (["consistent:2"], "takes no number"),
        ([""], "not known"),
        (
            ["replicates:0"],
            r"`dpquery package --also replicates` \(replicates:2 to replicates:10000\)",
        ),
        (["csv:9"], "'csv:9' is no column; `dpquery package --also csv` writes"),
    ],
)
def test_a_wrong_column_is_refused_with_a_remedy(texts, message):
    with pytest.raises(SpecError, match=message):
        parse_columns(texts)


def test_every_kind_of_predicate_set_is_judged():
    assert {predicates.kind for predicates in DISJOINT} == {"disjoint"}
    assert [predicates.kind for predicates in SPECIAL] == [
        "prefix",
        "ranges",
        "summed",
        "summed",
        "summed",
        "bounded",
        "bounded",
    ]
    mixed = combinations_of(DISJOINT, SPECIAL)
    assert all(query_structure(table(*predicates)).axis == 1 for predicates in mixed)


# The expected largest error of a linear release: against simulation, for both kinds of noise.


SHAPE = (6, 5, 4)
TWO_TABLES = Workload(SHAPE, (marginal(SHAPE, (0, 1)), marginal(SHAPE, (1, 2))), (1.0, 1.0))
RANGES = Workload((24,), (product((24,), {0: AllRanges(24)}),), (1.0,))
ANY_OF = Workload(
    SHAPE, (Block(SHAPE, (0, 1, 2), tuple(Identity(n) for n in SHAPE), (True,) * 3, 1),), (1.0,)
)


def simulated_largest(strategy, workload, noise, runs=400):
    """The mean over runs of the largest error that pure noise of unit scale leaves behind."""
    rng = np.random.default_rng(7)
    draw = rng.normal if noise == "gaussian" else rng.laplace
    sizes = [measurement.block.shape[0] for measurement in strategy.measurements]
    largest = []
    for _ in range(runs):
        estimates = reconstruct(strategy, [draw(size=size) for size in sizes])
        errors = [estimates.answer(block, k) for k, block in enumerate(workload.blocks)]
        largest.append(max(float(np.abs(differences).max()) for differences in errors))
    return float(np.mean(largest))


def strategy_for(build, workload, noise):
    return build(Problem(workload, gram(workload), noise, 0)).strategy


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("build", "workload", "noise", "slack"),
    [
        (candidates.residual_candidate, TWO_TABLES, "gaussian", 1.06),
        (candidates.marginals_candidate, TWO_TABLES, "laplace", 1.12),
        (candidates.product_candidate, RANGES, "gaussian", 1.35),
        (candidates.product_candidate, RANGES, "laplace", 1.65),
        (candidates.residual_candidate, ANY_OF, "gaussian", 1.35),
    ],
)
def test_the_expectation_holds_and_is_not_too_small(build, workload, noise, slack):
    strategy = strategy_for(build, workload, noise)
    unit = 1.0 if noise == "gaussian" else math.sqrt(2)
    expected = expected_largest(strategy, workload, noise_std=unit)
    ratio = expected / simulated_largest(strategy, workload, noise)
    assert 0.97 < ratio < slack


def test_it_goes_with_the_noise():
    strategy = strategy_for(candidates.residual_candidate, TWO_TABLES, "gaussian")
    one = expected_largest(strategy, TWO_TABLES, noise_std=1.0)
    assert expected_largest(strategy, TWO_TABLES, noise_std=250.0) == pytest.approx(250 * one)


@pytest.mark.nightly(daily="-16")
@pytest.mark.statistical
@pytest.mark.parametrize("law", [0, extremes.CONCENTRATIONS // 2, extremes.CONCENTRATIONS - 1])
@pytest.mark.parametrize("queries", [1, 30, 1000])
def test_independent_errors_are_met(law, queries):
    rng = np.random.default_rng(queries)
    if law == 0:
        errors = rng.normal(size=(4000, queries))
    else:
        terms = round(((extremes.CONCENTRATIONS - 1) / law) ** 2)
        errors = rng.laplace(size=(terms, 4000, queries)).sum(axis=0) / math.sqrt(2 * terms)
    expected = extremes._largest(Counter({(0, law): queries}))
    assert expected == pytest.approx(np.abs(errors).max(axis=1).mean(), rel=0.03)


def test_small_errors_beside_a_large_one_do_not_matter():
    alone = extremes._largest(Counter({(0, 0): 1}))
    beside = extremes._largest(Counter({(0, 0): 1, (990, 0): 1000}))
    assert alone == pytest.approx(math.sqrt(2 / math.pi), rel=1e-3)
    assert beside == pytest.approx(alone, rel=1e-2)
