"""An item of a workload expands to the tables, a set of predicates to the codes, that it names."""

import itertools
import math
from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
from specs import BASE, read

from dpquery.public_chance import PublicDraws
from dpquery.spec.parsing import thresholds
from dpquery.spec.parsing.read import parse
from dpquery.spec.parsing.thresholds import (
    TooManySetsError,
    WeightedSets,
    draw_sets,
    geometric,
    zipf,
)
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
    ranges,
)
from dpquery.spec.spec import Spec, Table

SIZES = {"age": 10, "sex": 2, "state": 4, "income": 3, "hispanic": 2, "race": 12}


def workload(items: str, base: str = BASE) -> Spec:
    return read(f"{base[: base.index('workload:')]}workload:\n{items}")


def table(item: str) -> Table:
    """Return the only table of an item given in flow style, without its name."""
    (only,) = tables(item)
    return only


def tables(item: str) -> tuple[Table, ...]:
    return workload(f"  - {{name: it, {item}}}\n").items[0].tables


# Predicate sets, as sets of codes.


def queries(predicates: PredicateSet) -> list[list[int]]:
    """Return the codes of every query: the slow twin of all that works on predicate sets."""
    match predicates:
        case IdentitySet(size=size):
            return [[code] for code in range(size)]
        case TotalSet(size=size):
            return [list(range(size))]
        case GroupSet(groups=groups):
            return [list(codes) for _, codes in groups]
        case StackedSet(parts=parts):
            return [query for part in parts for query in queries(part)]
        case _:
            return [list(range(i, j + 1)) for i, j in ranges(predicates)]


SETS = [
    ("sex", "identity", [[0], [1]]),
    ("state", "identity", [[0], [1], [2], [3]]),
    ("sex", "identity+total", [[0], [1], [0, 1]]),
    ("state", "prefix", [[0], [0, 1], [0, 1, 2]]),
    ("income", "all-ranges", [[0], [0, 1], [0, 1, 2], [1], [1, 2], [2]]),
    ("income", "{width: 2}", [[0, 1], [1, 2]]),
    ("state", "{width: 3}", [[0, 1, 2]]),
    ("age", "{ranges: [[0, 2], [5, 5]]}", [[0, 1, 2], [5]]),
    ("income", "{ranges: [[0, 20000], [10000, 5e4]]}", [[0, 1], [1, 2]]),
    ("state", "{ranges: [[Alabama, 2]]}", [[0, 1]]),
    ("age", "{groups: {ends: [9, [0, 2], 1], five: [5]}}", [[0, 1, 2, 9], [5]]),
    ("state", "{groups: {some: [Alaska, 1], rest: [4, other]}}", [[0, 1], [2, 3]]),
    ("income", "{groups: {low or high: [[0, 10000], [20000, 50000]]}}", [[0, 2]]),
    ("sex", "{is: Female}", [[1]]),
    ("hispanic", "{is: TRUE}", [[1]]),
    ("hispanic", "{is: no}", [[0]]),
    ("state", "{is: other}", [[3]]),
    ("state", "{in: [4, Alabama]}", [[0, 2]]),
    ("age", "{between: [3, 5]}", [[3, 4, 5]]),
    ("income", "{between: [0, 20000]}", [[0, 1]]),
    ("race", "{is: {white: yes, black: no, asian: B}}", [[7]]),
    ("race", "{is: {white: yes, black: no}}", [[6, 7, 8]]),
    ("race", "{is: {any: {white: yes, asian: C}}}", [[2, 5, 6, 7, 8, 9, 10, 11]]),
    ("race", "{in: [{white: yes, black: yes}, {asian: A}]}", [[0, 3, 6, 9, 10, 11]]),
    ("race", "{groups: {a or b: [{asian: [A, B]}]}}", [[0, 1, 3, 4, 6, 7, 9, 10]]),
    ("sex", "[identity, total, {is: Male}]", [[0], [1], [0, 1], [0]]),
    ("sex", "[identity+total, total]", [[0], [1], [0, 1], [0, 1]]),
    ("sex", "[identity]", [[0], [1]]),
]


@pytest.mark.parametrize(("attribute", "text", "expected"), SETS)
def test_predicate_sets_hold_the_codes_that_they_name(
    attribute: str, text: str, expected: list[list[int]]
) -> None:
    ((index, predicates),) = table(f"product: {{{attribute}: {text}}}").axes
    assert index == list(SIZES).index(attribute)
    assert predicates.size == SIZES[attribute]
    assert queries(predicates) == expected
    assert len(predicates) == len(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age: all", AllRangesSet(10, 10)),
        ("age: prefix", PrefixSet(10, 10)),
        ("age: {width: 5}", WidthSet(10, 10, 5)),
        ("age: [[0, 4], [5, 9]]", IntervalSet(10, ((0, 4), (5, 9)))),
        ("state: all", AllRangesSet(4, 3)),
    ],
)
def test_ranges_are_products_of_sets_of_ranges(text: str, expected: PredicateSet) -> None:
    assert table(f"ranges: {{{text}}}").axes[0][1] == expected


@pytest.mark.parametrize(
    ("condition", "label"),
    [
        ("state: 1", "Alabama"),
        ("state: {in: [Arizona, 1]}", "Arizona, Alabama"),
        ("hispanic: yes", "yes"),
        ("race: {is: {white: yes, asian: C}}", "white=yes and asian=C"),
        ("race: {is: {any: {white: yes, black: t}}}", "white=yes or black=yes"),
        ("age: {in: [3, [5, 7]]}", "3, 5-7"),
        ("income: {in: [[0, 20000]]}", "[0, 20000)"),
    ],
)
def test_conditions_are_labelled_in_declared_words(condition: str, label: str) -> None:
    ((_, predicates),) = table(f"product: {{}}, where: {{{condition}}}").where
    assert isinstance(predicates, GroupSet)
    assert [name for name, _ in predicates.groups] == [label]


# Items.


def test_axes_are_in_domain_order_and_bare_totals_are_summed_out() -> None:
    parsed = table("product: {hispanic: total, sex: identity, age: {is: 3}, state: [total]}")
    assert [i for i, _ in parsed.axes] == [0, 1]
    assert parsed.at_least is None


def test_an_item_may_be_one_total() -> None:
    assert table("product: {}") == Table(())
    assert table("product: {sex: total}") == Table(())


def test_where_holds_for_every_table_of_an_item() -> None:
    parsed = tables(
        "where: {sex: Male}, union: [{product: {age: prefix}, where: {hispanic: yes}}, "
        "{marginals: {ways: 1, over: [income]}}, {union: [{any_of: {state: {is: 1}}}]}]"
    )
    male, yes = GroupSet(2, (("Male", (0,)),)), GroupSet(2, (("yes", (1,)),))
    assert parsed == (
        Table(((0, PrefixSet(10, 10)),), ((1, male), (4, yes))),
        Table(((3, IdentitySet(3)),), ((1, male),)),
        Table(((2, GroupSet(4, (("Alabama", (0,)),))),), ((1, male),), at_least=1),
    )


def sets_of(listed: tuple[Table, ...]) -> list[tuple[int, ...]]:
    return [tuple(i for i, _ in table.axes) for table in listed]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ways: 2", list(itertools.combinations(range(6), 2))),
        ("ways: 0", [()]),
        ("up_to: 1", [(), (0,), (1,), (2,), (3,), (4,), (5,)]),
        ("ways: 2, over: [race, age, sex]", [(0, 1), (0, 5), (1, 5)]),
        ("sets: [[sex, age], [race], []]", [(0, 1), (5,), ()]),
        ("max_cells: 4", [(), (1,), (2,), (3,), (4,), (1, 4)]),
        ("max_cells: 1", [()]),
        ("up_to: 0, over: []", [()]),
    ],
)
def test_marginals_expand_to_the_subsets_that_they_name(
    text: str, expected: list[tuple[int, ...]]
) -> None:
    assert sets_of(tables(f"marginals: {{{text}}}")) == expected


@pytest.mark.parametrize("cells", [1, 2, 3, 12, 40, 100, 1000, 10**6])
def test_small_marginals_are_all_that_fit(cells: int) -> None:
    sizes = list(SIZES.values())
    expected = [
        subset
        for k in range(7)
        for subset in itertools.combinations(range(6), k)
        if Table(tuple((i, IdentitySet(sizes[i])) for i in subset)).size <= cells
    ]
    assert sets_of(tables(f"marginals: {{max_cells: {cells}}}")) == expected


def test_marginals_leave_out_what_where_fixes() -> None:
    listed = tables("marginals: {ways: 5}, where: {hispanic: yes}")
    assert sets_of(listed) == [(0, 1, 2, 3, 5)]


def test_marginals_may_ask_for_more_than_identity() -> None:
    listed = tables("marginals: {sets: [[age, sex], [sex]], predicates: {age: prefix}}")
    assert listed == (
        Table(((0, PrefixSet(10, 10)), (1, IdentitySet(2)))),
        Table(((1, IdentitySet(2)),)),
    )


def test_thresholds_take_all_targets_or_one_an_attribute() -> None:
    every = table("threshold: {r: 2, of: [hispanic, sex, age], targets: all}")
    assert every == table("threshold: {r: 2, of: [hispanic, sex, age]}")
    assert (every.at_least, every.shape) == (2, (10, 2, 2))
    one = table(
        "threshold: {r: 1, of: [hispanic, age], targets: {age: {in: [1, 2]}, hispanic: yes}}"
    )
    assert (one.at_least, one.shape) == (1, (1, 1))
    assert [queries(predicates) for _, predicates in one.axes] == [[[1, 2]], [[1]]]


def test_a_union_holds_as_many_thresholds_as_it_lists() -> None:
    part = (
        "{threshold: {r: 2, of: [hispanic, sex, age], targets: {age: 3, sex: Male, hispanic: no}}}"
    )
    other = "{threshold: {r: 1, of: [sex, age]}}"
    (item,) = workload(f"  - {{name: a, union: [{', '.join([part, other] * 32)}]}}\n").items
    assert len(item.tables) == 64
    assert [(table.at_least, table.shape) for table in item.tables[:2]] == [
        (2, (1, 1, 1)),
        (1, (10, 2)),
    ]


def test_any_of_demands_one_of_its_predicates() -> None:
    parsed = table("any_of: {sex: identity, age: {between: [0, 4]}}")
    assert (parsed.at_least, parsed.shape, parsed.threshold) == (1, (1, 2), 1)


def test_weights_and_descriptions_are_kept() -> None:
    item = workload("  - {name: a_1-b, description: All of it, weight: 2.5e-3, product: {}}").items[
        0
    ]
    assert (item.name, item.description, item.weight) == ("a_1-b", "All of it", 0.0025)


def test_anchors_may_be_used_again_and_again() -> None:
    spec = workload(
        "  - name: a\n    product: {state: &some {groups: {few: &few [1, 2], all: [1, 2, 4]}}}\n"
        "  - {name: b, product: {state: *some, sex: identity}, where: {hispanic: no}}\n"
        "  - {name: c, product: {state: {in: *few}}}\n"
    )
    assert [item.size for item in spec.items] == [2, 4, 1]


# Random thresholds in a spec: the published law, exactly, and the same on every machine.


SAMPLED_SIZES = (9, 5, 16, 7, 2, 30)
WEIGHTS = {
    "uniform": thresholds.uniform(6),
    "zipf": zipf(6),
    "geometric": geometric(6, Fraction(2, 7)),
}


def sampled_tables(threshold: str) -> list[tuple[int, ...]]:
    text = BASE.replace("product: {age: prefix, sex: identity}", f"threshold: {threshold}")
    (item,) = parse(text, name="w.yaml", files={}).items
    assert all(table.at_least == 2 for table in item.tables)
    assert all(isinstance(axis, IdentitySet) for table in item.tables for _, axis in table.axes)
    return [tuple(i for i, _ in table.axes) for table in item.tables]


def test_a_sample_is_fixed_by_its_seed() -> None:
    """These very sets: another Python, or another machine, may not draw others."""
    sampled = sampled_tables("{r: 2, k: 3, sample: 6, seed: 0}")
    assert sampled == [(0, 1, 2), (0, 1, 5), (2, 4, 5), (0, 3, 4), (1, 4, 5), (1, 3, 4)]
    assert sampled_tables("{r: 2, k: 3, sample: 6, seed: 1}") != sampled
    assert sampled_tables("{r: 2, k: 3, sample: 4, seed: 0}") == sampled[:4]


def test_over_and_max_cells_say_what_may_be_drawn() -> None:
    sampled = sampled_tables("{r: 2, k: 2, sample: 3, seed: 0, over: [race, sex, age]}")
    assert sorted(sampled) == [(0, 1), (0, 5), (1, 5)]
    # Sizes are 10, 2, 4, 3, 2 and 2 * 2 * 3.
    small = sampled_tables("{r: 2, k: 2, sample: 5, seed: 4, max_cells: 8}")
    assert sorted(small) == [(1, 2), (1, 3), (1, 4), (2, 4), (3, 4)]


def test_the_first_attribute_named_is_the_likeliest() -> None:
    first = "{r: 2, k: 2, sample: 3, seed: 0, over: [%s], distribution: {geometric: 0.99}}"
    assert all(0 in members for members in sampled_tables(first % "age, sex, state, income, race"))
    assert all(5 in members for members in sampled_tables(first % "race, sex, state, income, age"))


@pytest.mark.parametrize("law", WEIGHTS)
@pytest.mark.parametrize("max_cells", [None, 200, 60])
def test_every_set_is_as_long_as_the_product_of_its_weights(law: str, max_cells: int) -> None:
    weights = WEIGHTS[law]
    for k in range(1, 7):
        every = [
            members
            for members in combinations(range(6), k)
            if max_cells is None or math.prod(SAMPLED_SIZES[i] for i in members) <= max_cells
        ]
        sets, place, numbers = WeightedSets(SAMPLED_SIZES, weights, k, max_cells), 0, []
        while place < sets.total:
            chosen, start, weight = sets.at(place)
            assert (chosen, start, weight) == sets.at(place + weight - 1)
            assert weight == math.prod(weights[i] for i in chosen)
            assert start == place
            numbers.append(chosen)
            place += weight
        assert sorted(numbers) == every
        assert sets.count == len(every)


def test_sets_are_drawn_by_that_law_and_none_twice() -> None:
    weights = [6, 3, 2, 1]
    sets, runs = WeightedSets((2, 2, 2, 2), weights, 2, None), 6000
    pairs = Counter(tuple(draw_sets(sets, 2, seed)) for seed in range(runs))
    for (first, second), count in pairs.items():
        one, other = (math.prod(weights[i] for i in members) for members in (first, second))
        p = one / sets.total * other / (sets.total - one)
        assert abs(count - runs * p) < 5 * math.sqrt(runs * p)
    assert len(pairs) == 6 * 5
    every = draw_sets(sets, 6, 7)
    assert sorted(every) == list(combinations(range(4), 2))


def test_draws_below_a_bound_are_even() -> None:
    for bound in (1, 2, 3, 7, 1000):
        draws = PublicDraws(bound)
        counts = Counter(draws.below(bound) % 7 for _ in range(7000))
        expected = [sum(v % 7 == rest for v in range(bound)) / bound for rest in range(7)]
        for rest, p in enumerate(expected):
            assert abs(counts[rest] - 7000 * p) <= 5 * math.sqrt(7000 * p)
    assert 0 <= PublicDraws(3).below(10**400) < 10**400


def test_a_hundred_attributes_are_counted_but_not_any_number_of_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = WeightedSets([100] * 300, thresholds.uniform(300), 6, 10**12)
    assert sets.count == math.comb(300, 6)
    assert len(set(draw_sets(sets, 50, 0))) == 50
    monkeypatch.setattr(thresholds, "MAX_DRAW_SUMS", 100)
    with pytest.raises(TooManySetsError):
        WeightedSets(range(2, 60), thresholds.uniform(58), 5, 10**6)
