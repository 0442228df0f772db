"""A compiled workload on classes answers what the spec asks on codes."""

from itertools import product

import numpy as np
import pytest
from dense import indicator_rows

from dpquery.operators.blocks import Block
from dpquery.operators.compile import compile_spec, factor
from dpquery.operators.factors import Groups
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


def in_spec_order(table, block):
    """Rows of a block run over all its attributes in order; conditions have one row each."""
    axes = [len(predicates) for _, predicates in table.axes]
    assert list(block.row_shape) == [
        len(dict((*table.axes, *table.where))[i]) for i in block.attributes
    ]
    return axes


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
