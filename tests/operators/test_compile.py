"""A compiled workload answers what the spec asks: on classes of codes, and r of k."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from dense import dense_block, indicator_rows

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators import blocks
from dpquery.operators.blocks import Block, Workload, threshold_sum
from dpquery.operators.blocks import product as product_block
from dpquery.operators.compile import compile_spec, factor
from dpquery.operators.factors import Groups, Identity, IdentityRows
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix, WidthRanges
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
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.algebra.subsets import subsets_of, workload_eigenvalues
from dpquery.strategy.expected_error import expected_error, largest_of
from dpquery.strategy.search.candidates import Problem, marginals_candidate, residual_candidate
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy


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
        case IdentitySet(size=n, columns=columns):
            shown = product(*(range(shown) for _, shown in columns or ((n, n),)))
            sizes = [size for size, _ in columns] or [n]
            return [[int(np.ravel_multi_index(parts, sizes))] for parts in shown]
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


@pytest.mark.nightly(daily=r"\[[1-4]?\d\]")
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


@pytest.mark.nightly(daily=r"\[[1-4]?\d\]")
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
        (IdentitySet(9, ((9, 8),)), IdentityRows),
        (IdentitySet(9, ((3, 2), (3, 3))), IdentityRows),
    ],
)
def test_structure_survives_an_other_bin(predicates, kind):
    matrix = factor(predicates, np.arange(9))
    assert isinstance(matrix, kind)
    assert np.array_equal(matrix.dense(), indicator_rows(9, codes_of(predicates)))


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


@pytest.mark.nightly(daily="inf")
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


@pytest.mark.nightly(daily="laplace")
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


def test_a_table_too_wide_for_any_strategy_is_refused_with_its_size():
    shape = (9,) * 9
    workload = all_targets(shape, [tuple(range(9))], 4)
    with pytest.raises(UnsupportedWorkloadError, match=r"OPT_R: a table of 3.9e\+08 cells"):
        select(workload, noises=["gaussian", "laplace"])


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
