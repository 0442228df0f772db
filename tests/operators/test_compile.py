"""A compiled workload answers what the spec asks: on classes of codes, and r of k."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from dense import (
    coefficients,
    dense_block,
    dense_workload,
    indicator_rows,
    random_core,
    random_measured_factor,
)

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators import blocks
from dpquery.operators import gram as gram_terms
from dpquery.operators.blocks import (
    Block,
    Workload,
    differences,
    marginal,
    node_weights,
    threshold_nodes,
    threshold_sum,
    threshold_terms,
)
from dpquery.operators.blocks import product as product_block
from dpquery.operators.compile import compile_spec, factor
from dpquery.operators.factors import Groups, Identity
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix, WidthRanges
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.columns import Attribute, Categorical, Column, Domain
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
from dpquery.spec.spec import Budget, Dataset, Item, Privacy, Spec, SummedValues, Table
from dpquery.strategy.algebra.query_powers import expand, total_of
from dpquery.strategy.algebra.subsets import subsets_of, workload_eigenvalues
from dpquery.strategy.expected_error import (
    block_errors,
    expected_error,
    largest_of,
    squared_sensitivity,
)
from dpquery.strategy.search.candidates import Problem, marginals_candidate, residual_candidate
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy


def attribute(name, size, *, other):
    values = tuple(str(v) for v in range(size - other))
    return Attribute(
        name, (Column(name, Categorical(values, values), other="show" if other else "drop"),)
    )


def spec_of(sizes, items, *, others=None):
    others = others or [False] * len(sizes)
    attributes = tuple(
        attribute(f"a{i}", n, other=more)
        for i, (n, more) in enumerate(zip(sizes, others, strict=True))
    )
    return Spec(Dataset("d"), Privacy(), Budget(), Domain(attributes), tuple(items))


def codes_of(predicates):
    """Every query of a predicate set as a list of codes, from the words of its docstring."""
    match predicates:
        case IdentitySet(size=n):
            return [[code] for code in range(n)]
        case TotalSet(size=n):
            return [list(range(n))]
        case PrefixSet(length=n):
            return [[code for code in range(n) if code <= j] for j in range(n)]
        case AllRangesSet(length=n):
            return [list(range(i, j + 1)) for i in range(n) for j in range(i, n)]
        case WidthSet(length=n, width=w):
            return [list(range(i, i + w)) for i in range(n) if i + w <= n]
        case IntervalSet(bounds=bounds):
            return [list(range(first, last + 1)) for first, last in bounds]
        case GroupSet(groups=groups):
            return [list(codes) for _, codes in groups]
        case StackedSet(parts=parts):
            return [codes for part in parts for codes in codes_of(part)]


def random_set(rng, n, length, *, single=False, depth=0):
    """A predicate set over n codes of which `length` are ordered."""
    first = int(rng.integers(length))
    interval = (first, int(rng.integers(first, length)))
    codes = tuple(sorted(set(rng.integers(0, n, 2).tolist())))
    ones = [IntervalSet(n, (interval,)), GroupSet(n, (("g", codes),)), TotalSet(n)]
    if single:
        return ones[rng.integers(3)]
    many = [
        *ones,
        IdentitySet(n),
        PrefixSet(n, length),
        AllRangesSet(n, length),
        WidthSet(n, length, int(rng.integers(1, length + 1))),
        IntervalSet(n, (interval, (0, 0), (length - 1, length - 1))),
        GroupSet(n, (("g", codes), ("h", (n - 1,)))),
    ]
    if depth == 0:
        parts = tuple(random_set(rng, n, length, depth=1) for _ in range(2))
        many.append(StackedSet(n, parts))
    return many[rng.integers(len(many))]


def random_table(rng, sizes, lengths):
    d = len(sizes)
    chosen = sorted(rng.choice(d, int(rng.integers(0, d + 1)), replace=False).tolist())
    fixed = {i for i in chosen if rng.random() < 0.3}
    axes = tuple((i, random_set(rng, sizes[i], lengths[i])) for i in chosen if i not in fixed)
    where = tuple(
        (i, random_set(rng, sizes[i], lengths[i], single=True)) for i in chosen if i in fixed
    )
    at_least = int(rng.integers(1, len(axes) + 1)) if axes and rng.random() < 0.5 else None
    if at_least is None and rng.random() < 0.4:
        i = int(rng.integers(d))
        values = (int(rng.integers(1, 4)), *rng.integers(-3, 4, sizes[i] - 1).tolist())
        return Table(axes, where, summed=SummedValues(i, values))
    return Table(axes, where, at_least)


def random_spec(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, int(rng.integers(1, 4))).tolist()
    others = [n > 1 and bool(rng.random() < 0.4) for n in sizes]
    lengths = [n - more for n, more in zip(sizes, others, strict=True)]
    items = [
        Item(
            f"item{k}",
            tuple(random_table(rng, sizes, lengths) for _ in range(int(rng.integers(1, 4)))),
            float(rng.integers(1, 5)),
        )
        for k in range(int(rng.integers(1, 3)))
    ]
    return spec_of(sizes, items, others=others)


def brute_force_answers(table, counts):
    """Count records, or add up their values, query by query and cell by cell."""
    queries = [[set(codes) for codes in codes_of(predicates)] for _, predicates in table.axes]
    fixed = [(i, set(codes_of(predicates)[0])) for i, predicates in table.where]
    answers = []
    for row in product(*queries):
        axes = [(i, codes) for (i, _), codes in zip(table.axes, row, strict=True)]
        total = 0
        for cell in np.ndindex(counts.shape):
            hits = sum(cell[i] in codes for i, codes in axes)
            if hits >= table.threshold and all(cell[i] in codes for i, codes in fixed):
                summed = table.summed
                value = 1 if summed is None else summed.values[cell[summed.attribute]]
                total += int(counts[cell]) * value
        answers.append(total)
    return answers


def by_classes(counts, classes):
    for axis, numbers in enumerate(classes):
        onto = np.arange(numbers.max() + 1)[:, None] == numbers
        counts = np.moveaxis(np.tensordot(onto.astype(int), counts, axes=(1, axis)), 0, axis)
    return counts


@pytest.mark.parametrize("seed", range(150))
def test_answers_over_classes_equal_counting_over_codes(seed):
    spec = random_spec(seed)
    compiled = compile_spec(spec)
    counts = np.random.default_rng(seed).integers(0, 100, spec.domain.shape)
    x = by_classes(counts, compiled.classes).ravel()
    tables = [table for item in spec.items for table in item.tables]
    assert [len(positions) for positions in compiled.items] == [
        len(item.tables) for item in spec.items
    ]
    assert [position for positions in compiled.items for position in positions] == list(
        range(len(tables))
    )
    for table, block in zip(tables, compiled.workload.blocks, strict=True):
        assert block.matvec(x).tolist() == brute_force_answers(table, counts)
    for item, positions in zip(spec.items, compiled.items, strict=True):
        for table, k in zip(item.tables, positions, strict=True):
            largest = max(map(abs, table.summed.values)) if table.summed else 1
            assert compiled.workload.units[k] == largest
            assert compiled.workload.weights[k] == item.weight / largest**2


@pytest.mark.parametrize("seed", range(150))
def test_two_codes_share_a_class_exactly_when_no_query_tells_them_apart(seed):
    spec = random_spec(seed)
    compiled = compile_spec(spec)
    for i, (n, classes) in enumerate(zip(spec.domain.shape, compiled.classes, strict=True)):
        columns = [
            [int(code in codes) for code in range(n)]
            for item in spec.items
            for table in item.tables
            for j, predicates in (*table.axes, *table.where)
            if j == i
            for codes in codes_of(predicates)
        ]
        columns += [
            table.summed.values
            for item in spec.items
            for table in item.tables
            if table.summed is not None and table.summed.attribute == i
        ]
        signatures = [tuple(column) for column in np.array(columns).reshape(-1, n).T]
        for j, k in product(range(n), repeat=2):
            assert (classes[j] == classes[k]) == (signatures[j] == signatures[k])
        firsts = [classes.tolist().index(c) for c in range(classes.max() + 1)]
        assert firsts == sorted(firsts)


def test_a_condition_on_a_range_in_the_middle_leaves_two_classes():
    table = Table((), ((0, IntervalSet(100, ((18, 64),))),))
    compiled = compile_spec(spec_of([100], [Item("adults", (table,))]))
    assert compiled.workload.shape_of_domain == (2,)
    assert compiled.workload.blocks[0].matvec(np.array([30, 12])).tolist() == [12]


def test_fixed_bands_are_planned_on_bands():
    bands = IntervalSet(100, tuple((5 * k, 5 * k + 4) for k in range(20)))
    compiled = compile_spec(spec_of([100], [Item("bands", (Table(((0, bands),)),))]))
    assert compiled.workload.shape_of_domain == (20,)


def test_an_attribute_that_no_query_looks_at_has_one_class():
    table = Table(((0, IdentitySet(3)),))
    compiled = compile_spec(spec_of([3, 10**6], [Item("one", (table,))]))
    assert compiled.workload.shape_of_domain == (3, 1)


@pytest.mark.parametrize(
    ("predicates", "kind"),
    [
        (PrefixSet(9, 9), Prefix),
        (PrefixSet(9, 8), Prefix),
        (AllRangesSet(9, 8), AllRanges),
        (WidthSet(9, 9, 2), WidthRanges),
        (WidthSet(9, 8, 2), ListedRanges),
        (IntervalSet(9, ((0, 3), (2, 8))), ListedRanges),
        (GroupSet(9, (("g", (0, 4)),)), Groups),
    ],
)
def test_structure_survives_an_other_bin(predicates, kind):
    matrix = factor(predicates, np.arange(9))
    assert isinstance(matrix, kind)
    assert np.array_equal(matrix.dense(), indicator_rows(9, codes_of(predicates)))


def test_equal_predicate_sets_share_one_operator():
    ages = PrefixSet(50, 50)
    tables = (Table(((0, ages),)), Table(((0, ages), (1, IdentitySet(2)))))
    first, second = compile_spec(spec_of([50, 2], [Item("i", tables)])).workload.blocks
    assert isinstance(first, Block)
    assert first.factors[0] is second.factors[0]


SHAPE = (2, 3, 2, 3)
KINDS = {
    "all": Identity,
    "groups": lambda n: Groups.of(((0,), tuple(range(n)), (0, n - 1)), n),
    "target": lambda n: Groups.of(((n - 1,),), n),
    "prefix": Prefix,
}


def thresholds(*, shape=SHAPE, fixed=False):
    """Every r of k over up to four attributes, with targets of every kind, one attribute fixed."""
    kinds = list(KINDS)
    for k in range(1, 5 - fixed):
        for r in range(1, k + 1):
            for start in range(len(kinds)):
                factors = [KINDS[kinds[(start + i // 2) % 4]](shape[i]) for i in range(k + fixed)]
                counted = tuple(i >= fixed for i in range(k + fixed))
                yield Block(shape, tuple(range(k + fixed)), tuple(factors), counted, r)


EVERY = [*thresholds(), *thresholds(fixed=True)]


def all_targets(shape, sets, r, weights=None):
    blocks = [
        Block(shape, members, tuple(Identity(shape[i]) for i in members), (True,) * len(members), r)
        for members in sets
    ]
    return Workload(shape, tuple(blocks), weights or (1.0,) * len(blocks))


def records(count=40):
    rng = np.random.default_rng(5)
    return [tuple(int(rng.integers(n)) for n in SHAPE) for _ in range(count)]


@pytest.mark.nightly
@pytest.mark.parametrize("block", EVERY)
def test_answers_count_the_records_that_meet_r_targets(block):
    matrices, people = [factor.dense() for factor in block.factors], records()
    x = np.zeros(SHAPE, dtype=np.int64)
    for person in people:
        x[person] += 1
    expected = np.zeros(block.row_shape, dtype=np.int64)
    for row in product(*(range(m) for m in block.row_shape)):
        for person in people:
            met = [
                bool(F[j, person[i]]) for i, (F, j) in enumerate(zip(matrices, row, strict=True))
            ]
            fixed = all(m for m, counted in zip(met, block.counted, strict=True) if not counted)
            hits = sum(m for m, counted in zip(met, block.counted, strict=True) if counted)
            expected[row] += fixed and hits >= block.at_least
    assert np.array_equal(block.matvec(x.ravel()).reshape(block.row_shape), expected)
    assert np.array_equal(dense_block(block) @ x.ravel(), expected.ravel())


@pytest.mark.parametrize("limit", [0, math.inf])
def test_products_by_sets_and_by_attributes_are_those_of_the_dense_matrix(limit, monkeypatch):
    monkeypatch.setattr(blocks, "MAX_SET_SUMS", limit)
    rng = np.random.default_rng(3)
    values = Groups.of(((0,), (1,)), 3)  # of a boolean whose other texts count in totals alone
    wide = [
        Block((3,) * 6, tuple(range(6)), (values,) * 6, (True,) * 5 + (False,), r)
        for r in (2, 3, 4)
    ]
    for block in (*EVERY, *wide):
        W = dense_block(block)
        x, y = (rng.integers(-9, 2**40, size) for size in (W.shape[1], W.shape[0]))
        assert np.array_equal(block.matvec(x), W.astype(np.int64) @ x)
        assert np.array_equal(block.rmatvec(y), W.T.astype(np.int64) @ y)
        assert np.allclose(block.matvec(x / 7), W @ (x / 7), rtol=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize("paired", [0, 3])
def test_grams_are_those_of_the_dense_matrix(paired, monkeypatch):
    monkeypatch.setattr(gram_terms, "MAX_PAIRED", paired)
    for block in EVERY:
        W = dense_block(block)
        V = gram(Workload(SHAPE, (block,), (2.0,)))
        assert np.allclose(V.dense(), 2 * W.T @ W, atol=1e-9)
        x = np.arange(W.shape[1], dtype=float)
        assert np.allclose(V.matvec(x), 2 * W.T @ (W @ x))


def test_eigenvalues_are_traces_against_the_projectors():
    for block in EVERY:
        W = dense_block(block).astype(float)
        eigenvalues = workload_eigenvalues(gram(Workload(SHAPE, (block,), (1.0,))))
        for a in subsets_of(tuple(range(4))):
            P = np.ones((1, 1))
            for i, n in enumerate(SHAPE):
                mean = np.full((n, n), 1 / n)
                P = np.kron(P, np.eye(n) - mean if i in a else mean)
            trace = float(np.sum((W @ P) * W)) / math.prod(SHAPE)
            assert eigenvalues.get(a, 0.0) == pytest.approx(trace, rel=1e-9, abs=1e-12)


def strategies_over_all(noise):
    """Strategies that answer whatever is asked: marginals, cores, a product and a union of two."""
    rng = np.random.default_rng(1)
    every = {b: int(rng.integers(1, 9)) for b in subsets_of(tuple(range(4)))}
    cores = [random_core(rng, n) for n in SHAPE]
    factors = [random_measured_factor(rng, n) for n in SHAPE]
    whole = ProductStrategy("p", noise, tuple(factors))
    cells = ProductStrategy("i", noise, tuple(Identity(n) for n in SHAPE))
    return [
        MarginalsStrategy("m", noise, SHAPE, every),
        whole,
        UnionStrategy("u", noise, (whole, cells), (2, 3), ((0,), (1,))),
        *([ResidualStrategy("r", noise, tuple(cores), every)] if noise == "gaussian" else []),
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_every_row_has_the_variance_of_its_coefficients(noise):
    strategies = strategies_over_all(noise)
    for number, block in enumerate(EVERY):
        workload = Workload(SHAPE, (block,), (1.0,))
        strategy = strategies[number % len(strategies)]
        C = coefficients(strategy, dense_block(block), 0)
        expected = (C**2).sum(axis=1)
        sums = strategy.power_sums(block, position=0, order=2)
        assert np.allclose(expand(sums, block.row_shape).ravel(), expected, rtol=1e-7)
        assert total_of(sums, block) == pytest.approx(expected.sum(), rel=1e-7)
        fourth = strategy.power_sums(block, position=0, order=4)
        if fourth is not None:
            computed = expand(fourth, block.row_shape).ravel()
            assert np.allclose(computed, (C**4).sum(axis=1), rtol=1e-6)
        (error,) = block_errors(strategy, workload)
        scale = squared_sensitivity(strategy)
        assert error.max_std_error**2 == pytest.approx(scale * expected.max(), rel=1e-7)
        for variance in strategy.uniform_variances([block]).values():
            assert np.allclose(expected, variance, rtol=1e-7)


@pytest.mark.parametrize("build", [marginals_candidate, residual_candidate])
def test_answers_from_measurements_without_noise_are_the_truth(build):
    x = np.random.default_rng(0).integers(0, 9, SHAPE)
    blocks = tuple(block for block in EVERY if len(block.attributes) > 2)
    workload = Workload(SHAPE, blocks, (1.0,) * len(blocks))
    problem = Problem(workload, gram(workload), "gaussian", 0)
    strategy = build(problem).strategy
    answers = [
        float(measurement.weight)
        * measurement.block.matvec(x.ravel().astype(float))  # int64 would wrap
        for measurement in strategy.measurements
    ]
    estimates = reconstruct(strategy, answers)
    for position, block in enumerate(blocks):
        computed = estimates.answer(block, position).ravel()
        assert np.allclose(computed, dense_block(block) @ x.ravel(), atol=1e-6)


def test_predicted_errors_are_those_of_simulated_noise():
    shape, runs = (3, 2, 4), 2000
    workload = all_targets(shape, [(0, 1, 2), (0, 2)], 2, (1.0, 3.0))
    problem = Problem(workload, gram(workload), "gaussian", 0)
    strategy = residual_candidate(problem).strategy
    scale = math.sqrt(squared_sensitivity(strategy))
    rng = np.random.default_rng(0)
    errors = block_errors(strategy, workload)
    squares = [[], []]
    for _ in range(runs):
        noise = [
            scale * rng.normal(size=measurement.block.shape[0])
            for measurement in strategy.measurements
        ]
        estimates = reconstruct(strategy, noise)
        for position, block in enumerate(workload.blocks):
            squares[position].append(float((estimates.answer(block, position) ** 2).sum()))
    for squared, error in zip(squares, errors, strict=True):
        spread = np.std(squared) / math.sqrt(runs)
        assert abs(np.mean(squared) - error.total_squared) < 5 * spread
        assert spread < 0.04 * error.total_squared


def test_all_of_k_are_the_marginals():
    workload = all_targets(SHAPE, [(0, 1, 3), (1, 2)], 2)
    (first, second) = workload.blocks
    assert second.is_product
    assert not first.is_product
    same = marginal(SHAPE, (1, 2))
    x = np.arange(36)
    assert np.array_equal(second.matvec(x), same.matvec(x))
    assert second.terms == same.terms
    one, other = (gram(Workload(SHAPE, (block,), (1.0,))) for block in (second, same))
    assert workload_eigenvalues(one) == workload_eigenvalues(other)


def test_any_of_k_are_all_records_but_those_that_meet_none():
    x = np.random.default_rng(3).integers(0, 50, 36)
    for kind in KINDS.values():
        factors = tuple(kind(n) for n in SHAPE[:3])
        any_of = Block(SHAPE, (0, 1, 2), factors, (True,) * 3, 1)
        others = tuple(1 - factor.dense() for factor in factors)
        none = np.einsum("ia,jb,kc,abc->ijk", *others, x.reshape(SHAPE).sum(axis=3))
        assert np.array_equal(any_of.matvec(x), x.sum() - none.ravel())


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_thresholds_over_twelve_attributes_are_planned_in_closed_form(noise):
    shape = (2,) * 10 + (3, 3)
    workload = all_targets(shape, [tuple(range(12)), tuple(range(6))], 5, (1.0, 2.0))
    V = gram(workload)
    assert len(V.weights) <= 2**12 + 2**6
    problem = Problem(workload, V, noise, 0)
    build = residual_candidate if noise == "gaussian" else marginals_candidate
    strategy = build(problem).strategy
    error = expected_error(strategy, workload)
    eigenvalues = workload_eigenvalues(V)
    sizes = {a: math.prod(shape[i] - 1 for i in a) for a in eigenvalues}
    # The root of the eigenvalue of V on a is sqrt(v_a N / mult(a)), mult(a) times.
    svd = sum(math.sqrt(v * sizes[a]) for a, v in eigenvalues.items()) ** 2
    weighted = sum(
        weight * error_of_block.total_squared
        for weight, error_of_block in zip(workload.weights, error.blocks, strict=True)
    )
    if noise == "gaussian":
        assert weighted == pytest.approx(svd, rel=1e-4)
    else:
        assert weighted > svd


def test_eight_yes_or_no_targets_need_no_pairs_of_sets():
    shape = (2,) * 8
    factors = tuple(Groups.of(((1,),), 2) for _ in shape)
    block = Block(shape, tuple(range(8)), factors, (True,) * 8, 3)
    V = gram(Workload(shape, (block,), (1.0,)))
    hits = np.indices(shape).sum(axis=0).ravel() >= 3
    assert len(V.weights) <= 9**2
    assert V.trace == pytest.approx(hits.sum(), rel=1e-6)
    x = np.random.default_rng(0).normal(size=256)
    assert np.allclose(V.matvec(x), hits * (hits @ x), atol=1e-5)
    strategy = MarginalsStrategy("m", "gaussian", shape, {tuple(range(8)): 1})
    sums = strategy.power_sums(block, position=0, order=2)
    assert total_of(sums, block) == pytest.approx(hits.sum(), rel=1e-6)
    assert largest_of(sums) == pytest.approx(hits.sum(), rel=1e-6)


@pytest.mark.slow
def test_one_threshold_of_yes_or_no_targets_costs_one_unit_of_noise():
    shape = (2,) * 10
    factors = tuple(Groups.of(((1,),), 2) for _ in shape)
    block = Block(shape, tuple(range(10)), factors, (True,) * 10, 3)
    selection = select(Workload(shape, (block,), (1.0,)), noises=["gaussian"])["gaussian"]
    assert selection.best.error.rmse == pytest.approx(1.0, rel=1e-9)


def test_a_majority_of_three_leaves_no_pair_of_two_valued_attributes():
    workload = all_targets((2, 2, 2), [(0, 1, 2)], 2)
    assert sorted(map(len, workload_eigenvalues(gram(workload)))) == [0, 1, 1, 1, 3]
    for noise in ("gaussian", "laplace"):
        selection = select(workload, noises=[noise])[noise]
        W, _ = dense_workload(workload)
        best = selection.best.proposal.strategy
        C = coefficients(best, W, 0)
        unit = squared_sensitivity(best) * (C**2).sum() / 8
        assert selection.best.error.rmse**2 == pytest.approx(unit, rel=1e-6)


def test_a_table_too_wide_for_any_strategy_is_refused_with_its_size():
    shape = (9,) * 9
    workload = all_targets(shape, [tuple(range(9))], 4)
    with pytest.raises(UnsupportedWorkloadError, match=r"OPT_R: a table of 3.9e\+08 cells"):
        select(workload, noises=["gaussian", "laplace"])


@pytest.mark.parametrize("k", range(6))
def test_differences_are_sums_of_signed_terms(k):
    rng = np.random.default_rng(k)
    levels = rng.random(k).tolist()
    for beside, r in product(range(3), range(k + 3)):
        if not min(1, k + beside) <= r <= k + beside:
            continue
        computed = differences(levels, r, beside=beside)
        terms = threshold_terms((True,) * (k + beside), r)
        for row, a in enumerate(product((False, True), repeat=k)):
            for s in range(beside + 1):
                beside_hold = [True] * s + [False] * (beside - s)
                value = sum(
                    coef
                    * math.prod(p for p, x, y in zip(levels, mask, a, strict=False) if x and not y)
                    for coef, mask in terms
                    if all(y <= x for x, y in zip(mask, a, strict=False))
                    and all(
                        needed <= here for needed, here in zip(mask[k:], beside_hold, strict=True)
                    )
                )
                assert computed[row, s] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("k", range(13))
def test_nodes_give_every_function_of_the_hits(k):
    values = np.random.default_rng(k).normal(size=(3, k + 1))
    powers = threshold_nodes(k)[None, :] ** np.arange(k + 1)[:, None]
    assert np.allclose(node_weights(values) @ powers.T, values, atol=1e-9)


def test_tails_are_exact_beyond_64_bits():
    pairs = [(3**40, 5**30), (7**20, 2**70), (1, 11**20)]
    for r in range(4):
        expected = sum(
            math.prod(pair[i in chosen] for i, pair in enumerate(pairs))
            for size in range(r, 4)
            for chosen in combinations(range(3), size)
        )
        assert int(threshold_sum(pairs, r)) == expected


def _is_residual(candidate):
    return candidate.proposal and isinstance(candidate.proposal.strategy, ResidualStrategy)


def test_thresholds_beside_ranges_and_products_are_planned_and_proven():
    shape = (6, 4, 3, 2)
    blocks = (
        *all_targets(shape, [(0, 1, 2), (1, 2, 3)], 2).blocks,
        product_block(shape, {0: Prefix(6), 3: Identity(2)}),
        Block(shape, (0, 3), (Prefix(6), Identity(2)), (True, True), 1),
    )
    workload = Workload(shape, blocks, (1.0, 1.0, 0.5, 2.0))
    for objective in ("rmse", "max"):
        selection = select(workload, noises=["gaussian"], objective=objective)["gaussian"]
        best = min(
            (one for one in selection.candidates if _is_residual(one)), key=lambda one: one.score
        )
        assert selection.best.score <= best.score
        assert best.score >= math.sqrt(selection.score_bound.loss) * (1 - 1e-6)
        assert best.score <= 1.1 * math.sqrt(selection.score_bound.loss)
