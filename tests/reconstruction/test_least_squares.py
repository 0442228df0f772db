"""Reconstruction against dense least squares, for every shape, and with public facts."""

import math
from itertools import combinations
from itertools import product as crossed

import numpy as np
import pytest
from dense import (
    coefficients,
    dense_block,
    dense_strategy,
    is_of_parts,
    random_block,
    random_strategies,
    weights_of_noise,
)
from test_expected_error import all_rows, close
from test_shapes import every_shape, row_coefficients, strategies

from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.compile import IMPOSSIBLE, ImpossibleCells, KnownAnswers, PublicFacts
from dpquery.operators.factors import Groups, Identity, Stacked, total
from dpquery.operators.p_identity import PIdentity
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.reconstruction.checks import CONTRADICTED, laplace_squares
from dpquery.reconstruction.checks import tested_facts as given_tests
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import Measured, reconstruct
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows, expand
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes import informed as informed_module
from dpquery.strategy.shapes.cells import OrbitsStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.informed import informed
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore
from dpquery.strategy.strategy import measured_sets


def p_identity(n, seed):
    rows = np.random.default_rng(seed).integers(0, 2**14, (1, n))
    return PIdentity(2**16 - rows.sum(axis=0), rows)


def union():
    parts = (
        ProductStrategy("a", "laplace", (p_identity(3, 1), Identity(1), total(4), Identity(2))),
        ProductStrategy("b", "laplace", (total(3), Identity(1), p_identity(4, 2), Identity(2))),
    )
    return UnionStrategy("u", "laplace", parts, (3, 5), ((0, 1), (2,)))


def residual():
    rows = np.random.default_rng(4).integers(-9, 10, (3, 4))
    cores = (CenteredCore(3), None, DenseCore(rows), CenteredCore(2))
    subsets = [b for k in range(4) for b in combinations((0, 2, 3), k)]
    weights = {b: 3 + 5 * place for place, b in enumerate(subsets)}
    return ResidualStrategy("r", "gaussian", cores, weights)


# Questions asked later: what the measured rows span is answered exactly, all else is refused.


def in_span(strategy, block):
    A = dense_strategy(strategy.measurements).astype(float)
    A, W = A / np.abs(A).max(), dense_block(block).astype(float)
    return np.abs(W @ np.linalg.pinv(A, rcond=1e-10) @ A - W).max() < 1e-6


def check(strategy, block):
    """The answers are unbiased, their standard errors those of the noise in them."""
    C = weights_of_noise(strategy, block)
    W = dense_block(block).astype(float)
    A = dense_strategy(strategy.measurements).astype(float)
    np.testing.assert_allclose(C @ A, W, atol=1e-7)
    errors = standard_errors(strategy, block, position=None, noise_std=3.0)
    np.testing.assert_allclose(errors, 3 * np.sqrt((C**2).sum(axis=1)), rtol=1e-7, atol=1e-12)
    half = half_widths(strategy, block, errors, position=None, level=0.9)
    assert half.shape == errors.shape
    assert np.all(half >= 1.6 * errors)
    return C


@pytest.mark.nightly
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("seed", range(12))
def test_a_new_question_is_answered_by_least_squares_or_refused_as_the_span_says(seed, noise):
    rng = np.random.default_rng([seed, noise == "laplace"])
    shape = tuple(rng.integers(1, 4, 3).tolist())
    for strategy, _ in random_strategies(rng, shape, noise):
        for _ in range(4):
            block = random_block(rng, shape)
            if not strategy.supports(block):
                # Rows that hold for every record, or for none, depend on nothing.
                constant = any(
                    set(np.ptp(factor.dense(), axis=1)) == {0} for factor in block.factors
                )
                alone = isinstance(strategy, DirectStrategy) or is_of_parts(strategy)
                # Orbits answer products of predicates alone ([MATH] 22).
                alone |= isinstance(strategy, OrbitsStrategy) and not block.is_product
                assert alone or constant or not in_span(strategy, block)
                continue
            C = check(strategy, block)
            if isinstance(strategy, DirectStrategy):
                continue
            dense = dense_block(block).astype(float)
            if not is_of_parts(strategy):
                np.testing.assert_allclose(C, coefficients(strategy, dense), atol=1e-8)
                continue
            part, _ = strategy.serving_part(block, None)
            parts = np.cumsum([0, *(rows_of(part) for part in strategy.parts)])
            of_part = C[:, parts[part] : parts[part + 1]]
            np.testing.assert_allclose(of_part, coefficients(strategy, dense, part=part), atol=1e-8)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("shape", [(3, 3, 3, 3), (2, 3, 2, 1)])
def test_tables_answered_together_have_the_bits_of_each_by_itself(shape, noise):
    rng = np.random.default_rng([*shape, noise == "laplace"])
    cores, below = tuple(CenteredCore(n) if n > 1 else None for n in shape), marginals_of(shape)
    weights = {b: int(rng.integers(1, 90)) for b in below if all(cores[i] for i in b)}
    alike = ResidualStrategy("alike", noise, cores, weights)
    asked = [marginal(shape, b) for b in below for _ in range(2)]
    asked += [product(shape, {i: Prefix(n) for i, n in enumerate(shape) if i in b}) for b in below]
    for strategy in (alike, *(each for each, _ in random_strategies(rng, shape, noise))):
        noisy = [rng.normal(size=size) for size in strategy.sizes]
        blocks = [block for block in asked if strategy.supports(block)]
        together = Measured(strategy, noisy, 1.0).answers(blocks, [None] * len(blocks))
        for block, answers in zip(blocks, together, strict=True):
            alone = Measured(strategy, noisy, 1.0).estimates.answer(block, None)
            assert np.array_equal(answers, alone), (strategy.name, block.attributes)


def marginals_of(shape):
    return [b for k in range(len(shape) + 1) for b in combinations(range(len(shape)), k)]


def rows_of(strategy):
    return sum(measurement.block.queries for measurement in strategy.measurements)


def test_of_the_parts_of_a_union_that_can_answer_the_one_with_least_noise_does(monkeypatch):
    shape = (3, 2)
    everything = ProductStrategy("all", "laplace", (Identity(3), Identity(2)))
    ages = ProductStrategy("ages", "laplace", (Identity(3), total(2)))
    union = UnionStrategy("u", "laplace", (everything, ages), (1, 1), ((0,), (1,)))
    monkeypatch.setattr(UnionStrategy, "joint_for", lambda *_: None)
    age, both = product(shape, {0: Prefix(3)}), product(shape, {0: Prefix(3), 1: Identity(2)})
    assert union.serving_part(age, None)[0] == 1
    assert union.serving_part(both, None)[0] == 0
    assert union.serving_part(age, 0)[0] == 0
    for block in (age, both):
        check(union, block)
    few = UnionStrategy("u", "laplace", (everything, ages), (100, 1), ((0,), (1,)))
    assert few.serving_part(age, None)[0] == 0


SPANNED = (4, 3)
WORKLOAD = Workload(
    SPANNED,
    (
        product(SPANNED, {0: Stacked((Identity(4), total(4))), 1: Prefix(3)}),
        Block(SPANNED, (0, 1), (Identity(4), Identity(3)), (True, True), 1),
        product(SPANNED, {0: Prefix(4)}),
    ),
    (1.0, 1.0, 1.0),
)


def direct():
    return DirectStrategy("d", "laplace", WORKLOAD, (3, 1, 4))


@pytest.mark.parametrize("position", range(3))
def test_a_question_that_was_measured_as_it_stands_keeps_its_answer(position):
    block = WORKLOAD.blocks[position]
    coefs = weights_of_noise(direct(), block, position)
    np.testing.assert_array_equal(weights_of_noise(direct(), block), coefs)


def test_rows_that_were_measured_are_those_very_rows():
    later = product(SPANNED, {0: Identity(4), 1: Prefix(3)})
    C = check(direct(), later)
    assert np.count_nonzero(C) == len(C)
    some = Block(
        SPANNED, (0, 1), (Groups.of(((2,), (0,)), 4), Groups.of(((1,),), 3)), (True, True), 1
    )
    C = check(direct(), some)
    assert np.count_nonzero(C) == len(C) == 2


@pytest.mark.parametrize(
    ("block", "answered"),
    [
        (product(SPANNED, {0: AllRanges(4)}), True),
        (product(SPANNED, {1: Identity(3)}), True),
        (product(SPANNED, {}), True),
        (Block(SPANNED, (0, 1), (Prefix(4), Identity(3)), (True, True), 1), True),
        (Block((2, 2, 3), (0, 1, 2), tuple(map(Identity, (2, 2, 3))), (True,) * 3, 2), None),
    ],
)
def test_combinations_of_measured_rows_are_answered_with_their_exact_error(block, answered):
    if answered:
        assert direct().supports(block)
        check(direct(), block)
        return
    shape = block.shape_of_domain
    workload = Workload(shape, (block, product(shape, {0: Identity(2)})), (1.0, 1.0))
    strategy = DirectStrategy("d", "gaussian", workload, (2, 5))
    assert strategy.supports(block)
    assert not strategy.supports(product(shape, {0: Identity(2), 1: Identity(2)}))
    assert strategy.supports(product(shape, {0: Prefix(2)}))
    check(strategy, block)


def test_measured_sets_are_the_largest():
    weights = {(): 1, (0,): 1, (0, 1): 2, (2,): 3, (1, 2): 1, (3,): 1}
    strategy = MarginalsStrategy("m", "laplace", (2, 2, 2, 1), weights)
    assert measured_sets(strategy) == ((0, 1), (1, 2))
    only = MarginalsStrategy("m", "laplace", (2, 2), {(): 1})
    assert measured_sets(only) == ((),)


SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3)))
SOLVED_AS_ONE = ("product", "marginals", "residual", "orbits")
"""Shapes whose cases tell all cells of the domain apart, and answer by least squares."""


def random_boxes(rng, shape):
    """Two combinations of values, which may overlap, over attributes of more than one code."""
    wide = [i for i, n in enumerate(shape) if n > 1]
    boxes = []
    for _ in range(2):
        named = rng.choice(wide, size=2, replace=False).tolist()
        sizes = [int(rng.integers(1, 3)) for _ in named]
        boxes.append(
            {
                i: set(rng.choice(shape[i], size, replace=False).tolist())
                for i, size in zip(named, sizes, strict=True)
            }
        )
    return boxes


def cells_in(boxes, shape):
    """Whether each cell of the domain is in a box, one loop a cell: (N,)."""
    cells = crossed(*map(range, shape))
    return np.array([any(all(c[i] in s for i, s in b.items()) for b in boxes) for c in cells])


def impossible_of(boxes, shape):
    """The same over atoms that are single codes."""
    named = tuple(sorted({i for box in boxes for i in box}))
    possible = np.ones([shape[i] for i in named], dtype=np.int64)
    for box in boxes:
        possible[np.ix_(*(sorted(box.get(i, range(shape[i]))) for i in named))] = 0
    touches = tuple(np.eye(shape[i], dtype=np.int64) for i in named)
    return ImpossibleCells(named, touches, possible)


def dense_least(strategy, W, out, known=None):
    """Least variances of queries W given x[out] = 0 and known rows: of all unbiased estimates.

    The equalities are put in by a basis of what they leave open.
    """
    A = dense_strategy(strategy.measurements).astype(float)
    F = np.eye(len(out))[out]
    if known is not None:
        F = np.vstack([F, known])
    _, sizes, Vt = np.linalg.svd(F)
    rank = int((sizes > 1e-9 * max(sizes.max(initial=0), 1e-300)).sum())
    free, scale = Vt[rank:].T, np.abs(A).max()
    _, sizes, Vt = np.linalg.svd(A @ free / scale, full_matrices=False)
    kept = sizes > 1e-8  # absolute: facts may leave nothing open that is measured
    C = (W @ free) @ Vt[kept].T / sizes[kept] / scale
    return (C**2).sum(axis=1)


@every_shape
@pytest.mark.parametrize("seed", SEEDS)
def test_impossible_queries_are_those_that_count_no_possible_cell(kind, seed):
    rng = np.random.default_rng(seed)
    for strategy, workload in strategies(kind, seed):
        boxes = random_boxes(rng, strategy.shape)
        out, facts = cells_in(boxes, strategy.shape), impossible_of(boxes, strategy.shape)
        for block in workload.blocks:
            dense = dense_block(block)
            assert np.array_equal(facts.rows(block), ~np.any(dense[:, ~out] != 0, axis=1))
        wide = [i for i, n in enumerate(strategy.shape) if n > 1]
        for attributes in (wide, wide[:1], []):
            table = marginal(strategy.shape, attributes)
            assert facts.count(strategy.shape, attributes) == facts.rows(table).sum()


def test_an_r_of_k_query_is_impossible_where_all_its_ways_are():
    """Every r of three attributes, of which two do not go together in one or both ways."""
    shape = (3, 2, 2)
    for boxes in ([{0: {0}, 1: {1}}], [{0: {0}}], [{0: {0}}, {1: {1}}, {2: {1}}]):
        out, facts = cells_in(boxes, shape), impossible_of(boxes, shape)
        for r in (1, 2, 3):
            factors = tuple(Identity(n) for n in shape)
            block = Block(shape, (0, 1, 2), factors, (True,) * 3, r)
            dense = dense_block(block)
            assert np.array_equal(facts.rows(block), ~np.any(dense[:, ~out] != 0, axis=1))


@pytest.mark.nightly(daily="workload|marginals")
@every_shape
@pytest.mark.parametrize("seed", SEEDS)
def test_errors_are_those_of_least_squares_under_the_facts(kind, seed):
    """Of impossible cells and of one block that is known."""
    rng, compared = np.random.default_rng(seed), 0
    for strategy, workload in strategies(kind, seed):
        shape = strategy.shape
        boxes = random_boxes(rng, shape)
        out = cells_in(boxes, shape)
        first = workload.blocks[0]
        known = KnownAnswers("known", 0, np.zeros(first.queries))
        of_known = dense_block(first).astype(float)
        for facts, extra in (
            (PublicFacts(impossible_of(boxes, shape)), None),
            (PublicFacts(impossible_of(boxes, shape), (known,)), of_known),
            (PublicFacts(None, (known,)), of_known),
        ):
            nothing = np.zeros(len(out), dtype=bool)
            without = nothing if facts.impossible is None else out
            answering = informed(strategy, facts, workload)
            for position, block in enumerate(workload.blocks):
                W = dense_block(block).astype(float)
                variances = expand(answering.variances(block, position=position)).ravel()
                before = (row_coefficients(strategy, block, position) ** 2).sum(axis=1)
                least = dense_least(strategy, W, without, extra)
                assert np.all(variances <= before * (1 + 1e-9))
                assert np.all(variances >= least - 1e-8 * before.max())
                if kind in SOLVED_AS_ONE:
                    np.testing.assert_allclose(
                        variances, least, atol=1e-8 * before.max(), rtol=1e-6
                    )
                compared += int((variances < before * 0.99).sum())
    assert compared


@pytest.mark.nightly(daily="union|orbits")
@every_shape
@pytest.mark.parametrize("seed", SEEDS)
def test_estimates_vary_as_their_covariances_and_are_exact_in_the_facts(kind, seed):
    rng = np.random.default_rng(seed)
    for strategy, workload in strategies(kind, seed):
        shape = strategy.shape
        boxes = random_boxes(rng, shape)
        x = np.where(cells_in(boxes, shape), 0.0, rng.integers(0, 50, math.prod(shape)))
        true = [dense_block(block).astype(float) @ x for block in workload.blocks]
        facts = PublicFacts(impossible_of(boxes, shape), (KnownAnswers("known", 0, true[0]),))
        answering = informed(strategy, facts, workload)
        sizes = [rows.block.queries for rows in strategy.measurements]
        ends = np.cumsum(sizes)[:-1]
        exact = dense_strategy(strategy.measurements).astype(float) @ x

        def answers(measured, answering=answering, ends=ends, workload=workload):
            estimates = reconstruct(answering, np.split(measured, ends))
            pairs = enumerate(workload.blocks)
            return [estimates.answer(block, place).ravel() for place, block in pairs]

        middle, scale = answers(exact), max(1.0, max(np.abs(each).max() for each in true))
        for given, expected in zip(middle, true, strict=True):
            np.testing.assert_allclose(given, expected, atol=1e-6 * scale)
        moved = [answers(exact + unit) for unit in np.eye(sum(sizes)) * scale]
        coefficients = [
            np.array([each[k] - middle[k] for each in moved]).T / scale
            for k in range(len(workload.blocks))
        ]
        assert np.array_equal(middle[0], true[0])
        assert not coefficients[0].any()
        before = [
            (row_coefficients(strategy, block, place) ** 2).sum(axis=1).max()
            for place, block in enumerate(workload.blocks)
        ]
        for i, left in enumerate(workload.blocks):
            across = QueryRows(left, np.arange(left.queries)[:, None], i)
            for j, right in enumerate(workload.blocks):
                covariances = answering.covariances(QueryPairs(across, all_rows(right, j)))
                dense, own = coefficients[i] @ coefficients[j].T, max(before[i], before[j])
                np.testing.assert_allclose(covariances, dense, atol=1e-7 * own, rtol=1e-6)


def town():
    """Ages by work and place, of which the young do not work."""
    shape = (9, 2, 4)
    workload_blocks = (
        marginal(shape, [0, 1]),
        product(shape, {1: Identity(2), 2: Identity(4)}),
        marginal(shape, [2]),
        product(shape, {0: total(9)}),
    )
    facts = PublicFacts(impossible_of([{0: {0, 1, 2}, 1: {1}}], shape))
    rng = np.random.default_rng(3)
    x = np.where(cells_in([{0: {0, 1, 2}, 1: {1}}], shape), 0, rng.integers(0, 40, 72))
    return shape, workload_blocks, facts, x


def simulated(strategy, x, std, rng):
    """Noisy answers of a strategy, by measurement."""
    exact = [rows.weight * rows.block.matvec(x).astype(float) for rows in strategy.measurements]
    if strategy.noise == "laplace":
        return [each + rng.laplace(scale=std / math.sqrt(2), size=len(each)) for each in exact]
    return [each + rng.normal(scale=std, size=len(each)) for each in exact]


def test_the_reference_law_of_laplace_noise_is_that_of_its_squares():
    assert laplace_squares(1, 200.0) == pytest.approx(math.exp(-20), rel=1e-2)
    rng = np.random.default_rng(0)
    for count in (1, 3, 20):
        sums = (rng.laplace(scale=2**-0.5, size=(100_000, count)) ** 2).sum(axis=1)
        for share in (0.5, 0.1, 0.01):
            assert laplace_squares(count, np.quantile(sums, 1 - share)) == pytest.approx(
                share, rel=0.1
            )
    assert laplace_squares(4, 1e9) == 0.0


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_a_contradicted_fact_is_left_out_and_the_others_stay(noise):
    shape, blocks, facts, x = town()
    workload = Workload(shape, blocks, (1.0,) * len(blocks))
    best = select(workload, noises=[noise], time_limit=0.3)[noise].best.proposal.strategy
    off = np.array([0.0, 300.0, 0.0, 0.0])
    wrong = KnownAnswers("wrong", 2, blocks[2].matvec(x) + off)
    right = KnownAnswers("right", 3, blocks[3].matvec(x).astype(float))
    both = PublicFacts(facts.impossible, (wrong, right))
    answering = informed(best, both, workload)
    std = 1.0 * max(rows.weight for rows in best.measurements)
    noisy = simulated(best, x, std, np.random.default_rng(1))
    relied, tests = given_tests(answering, Measured(best, noisy, std))
    assert [test.source for test in tests] == [IMPOSSIBLE, "wrong", "right"]
    assert [test.contradicted for test in tests] == [False, True, False]
    assert tests[1].chance < CONTRADICTED
    assert relied.left_out == {"wrong"}
    same = informed(best, PublicFacts(facts.impossible, (right,)), workload)
    for place, block in enumerate(blocks):
        given = reconstruct(relied, noisy).answer(block, place)
        np.testing.assert_allclose(given, reconstruct(same, noisy).answer(block, place))
    assert np.any(reconstruct(relied, noisy).answer(blocks[2], 2) != wrong.values)
    assert close(
        expand(relied.variances(blocks[2], position=2)),
        expand(same.variances(blocks[2], position=2)),
    )


def test_what_is_too_much_to_solve_for_stands_beside_the_other_answers(monkeypatch):
    shape, blocks, facts, _ = town()
    workload = Workload(shape, blocks, (1.0,) * len(blocks))
    best = select(workload, noises=["gaussian"], time_limit=0.3)["gaussian"].best.proposal.strategy
    monkeypatch.setattr(informed_module, "MAX_FACT_ROWS", 2)
    answering = informed(best, facts, workload)
    assert not answering.conditioned
    assert answering.has_impossible_cells
    for place, block in enumerate(blocks):
        before = expand(best.variances(block, position=place), block.row_shape).ravel()
        zeros = facts.zeros(block)
        after = expand(answering.variances(block, position=place)).ravel()
        np.testing.assert_allclose(after, np.where(zeros, 0.0, before))


def test_a_laplace_value_far_out_is_no_contradiction():
    """Seven standard errors: once in twenty thousand for Laplace noise, never for Gaussian."""
    shape = (3,)
    block = marginal(shape, [0])
    strategies_of = {
        noise: ProductStrategy("p", noise, (Identity(3),)) for noise in ("laplace", "gaussian")
    }
    known = KnownAnswers("known", 0, np.array([7.0, 0.0, 0.0]))
    contradicted = {}
    for noise, strategy in strategies_of.items():
        answering = informed(
            strategy, PublicFacts(None, (known,)), Workload(shape, (block,), (1.0,))
        )
        (rows,) = strategy.measurements
        measured = Measured(strategy, [np.zeros(3)], float(rows.weight))
        _, (test,) = given_tests(answering, measured)
        assert (test.statistic, test.degrees) == (pytest.approx(49.0), 3)
        contradicted[noise] = test.contradicted
    assert contradicted == {"laplace": False, "gaussian": True}
