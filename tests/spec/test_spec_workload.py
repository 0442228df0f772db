"""An item expands to the tables that it names; every example in workloads/ is valid."""

import itertools
import json
import math
import re
from collections import Counter
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from specs import BASE, read

from dpquery.exceptions import SpecError
from dpquery.public_chance import PublicDraws
from dpquery.spec.documents import STARTER, schema, schema_text
from dpquery.spec.parsing import thresholds
from dpquery.spec.parsing.read import load_spec, parse
from dpquery.spec.parsing.thresholds import (
    TooManySetsError,
    WeightedSets,
    draw_sets,
    geometric,
    zipf,
)
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode, read_yaml
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    WidthSet,
)
from dpquery.spec.problems import Problems
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
    assert [[*codes] for codes in predicates.members()] == expected
    assert np.flatnonzero(predicates.asked).tolist() == sorted(
        {c for codes in expected for c in codes}
    )
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
    assert [[*map(list, asked.members())] for _, asked in one.axes] == [[[1, 2]], [[1]]]


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


ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "workloads").glob("*.yaml"))


def spec(name: str) -> Spec:
    return load_spec(ROOT / "workloads" / name)


@pytest.mark.nightly
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_example_is_a_readable_spec(file: Path) -> None:
    loaded = load_spec(file)
    assert loaded.queries > 0
    assert all(item.description for item in loaded.items)
    assert max(map(len, file.read_text(encoding="utf-8").splitlines())) <= 160
    from_text = parse(loaded.text, name="plan", files=loaded.files)
    assert (from_text.domain, from_text.items) == (loaded.domain, loaded.items)


@pytest.mark.parametrize(
    ("name", "tables", "queries"),
    [
        ("sf1.yaml", 33, 4151),
        ("sf1plus.yaml", 33, 215_852),
        ("cps.yaml", 1, 618_120),
        ("cps_prefix.yaml", 1, 600_000),
        ("adult_marginals.yaml", 470, 21_043_262),
        ("adult_prefix.yaml", 91, 148_137),
        ("adult_basic.yaml", 14 + 91 + 2, 148_909),
        ("loans_small.yaml", 188, 279_751),
        ("loans_small_prefix.yaml", 188, 279_751),
        ("prefix.yaml", 1, 115),
        ("all_ranges.yaml", 1, 115 * 116 // 2),
        ("width.yaml", 1, 111),
        ("geography.yaml", 4, 2024 * 4 + 51 * 4 + 4 + 51 * 26),
        ("thresholds.yaml", 6, 5 * 2 * 2 + 7 * 6 * 5 + 9 * 7 * 6 * 2 + 1 + 2),
        ("adult_thresholds.yaml", 64 + 16 + 1, 11_763_141),
    ],
)
def test_examples_ask_as_many_queries_as_published(name: str, tables: int, queries: int) -> None:
    loaded = spec(name)
    assert sum(len(item.tables) for item in loaded.items) == tables
    assert loaded.queries == queries
    comment = loaded.text[: loaded.text.index("\ndataset")]
    assert all(
        int(n.replace(",", "")) == queries for n in re.findall(r"([\d,]+)\W+queries", comment)
    )


SF1 = """\
p1 1
p3 7 1
p4 2 1
p5 14 3
p8 70 1
p9 2 70 1
p10 70 1
p11 2 70 1
p12 46 3
p12a_i 322 21 46 3 46 3
pct12 206 3
pct12a_o 1442 21 206 3 1442 21
"""


@pytest.mark.parametrize(("name", "factor"), [("sf1.yaml", 1), ("sf1plus.yaml", 52)])
def test_census_tables_hold_the_products_of_the_summary_file(name: str, factor: int) -> None:
    loaded = spec(name)
    lines = [
        f"{item.name} {' '.join(str(table.size // factor) for table in item.tables)}\n"
        for item in loaded.items
    ]
    assert "".join(lines) == SF1
    assert all(table.size % factor == 0 for item in loaded.items for table in item.tables)


def test_census_predicate_sets_hold_the_codes_of_the_summary_file() -> None:
    loaded = spec("sf1.yaml")
    race, age = 2, 3
    tables = {item.name: item.tables for item in loaded.items}
    popcount = [code.bit_count() for code in range(64)]
    race1 = dict(tables["p3"][0].axes)[race]
    assert isinstance(race1, GroupSet)
    several = tuple(code for code in range(64) if popcount[code] != 1)
    assert [codes for _, codes in race1.groups] == [(1,), (2,), (4,), (8,), (16,), (32,), several]
    race2 = dict(tables["p8"][0].axes)[race]
    assert isinstance(race2, StackedSet)
    groups = [part.groups for part in race2.parts if isinstance(part, GroupSet)]
    assert [codes for part in groups for _, codes in part] == [
        *((code,) for code in range(1, 64)),
        *(tuple(c for c in range(64) if popcount[c] == k) for k in range(1, 7)),
        tuple(c for c in range(64) if popcount[c] >= 2),
    ]
    letters = loaded.domain.attributes[race]
    assert [letters.label(1 << i) for i in range(6)] == ["W", "B", "I", "A", "P", "O"]
    assert letters.label(21) == "WIP"
    assert dict(tables["p11"][1].axes)[1] == GroupSet(2, (("Not Hispanic", (1,)),))
    assert dict(tables["p11"][1].axes)[age] == IntervalSet(115, ((18, 114),))
    for name, count in (("p12", 23), ("pct12", 103)):
        bands = dict(tables[name][0].axes)[age]
        assert isinstance(bands, IntervalSet)
        assert len(bands) == count
        assert [i for first, last in bands.bounds for i in range(first, last + 1)] == [*range(115)]


def test_the_starter_example_is_what_init_writes() -> None:
    assert (ROOT / "workloads" / "starter.yaml").read_text(encoding="utf-8") == STARTER


# The JSON Schema, against documents as editors read them.


def as_json(node: Node) -> object:
    """Return a node as the core schema of YAML 1.2 has it, which is what editors check."""
    match node:
        case MapNode(entries=entries):
            return {key.text: as_json(value) for key, value in entries}
        case ListNode(items=items):
            return [as_json(item) for item in items]
        case TextNode(text=text, plain=plain):
            words = {"true": True, "false": False, "null": None, "~": None, "": None}
            if plain and text in words:
                return words[text]
            if plain and re.fullmatch(r"[-+]?[0-9]+", text):
                return int(text)
            if plain and re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
                return float(text)
            return text


def valid(text: str) -> bool:
    jsonschema = pytest.importorskip("jsonschema")
    root = read_yaml(text, file="w.yaml", problems=Problems("w.yaml"))
    return jsonschema.Draft7Validator(schema()).is_valid(as_json(root))


def test_the_schema_is_draft_7_and_says_what_everything_is() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(schema())
    assert json.loads(schema_text()) == schema()
    silent: list[str] = []

    def visit(value: object, path: str) -> None:
        if isinstance(value, dict):
            for name, part in value.get("properties", {}).items():
                if not part.get("description"):
                    silent.append(f"{path}/{name}")
            for name, part in value.items():
                visit(part, f"{path}/{name}")
        elif isinstance(value, list):
            for i, part in enumerate(value):
                visit(part, f"{path}/{i}")

    visit(schema(), "")
    assert silent == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_example_satisfies_the_schema(file: Path) -> None:
    assert valid(file.read_text(encoding="utf-8"))


SURVEY = """\
dataset: {id: survey, parent: {id: panel, budget: {rho: 4}}}
privacy: {unit: {person: pid, max_rows: 2}, neighbours: replace, delta: 1e-9}
budget: {rho: 1e-1}
domain:
  age: {range: [0, '9'], other: drop}
  sex: {values: [yes, no, null, 1]}
  state: {values_file: s.txt, column: STATE}
  race: {merge: {white: boolean, black: {boolean: {true: [Y], false: ['']}, other: show}}}
workload:
  - name: first
    weight: .5
    product: {age: [prefix, {width: 2}, {ranges: [[0, 3]]}], sex: {is: yes}, state: total}
  - {name: 2, any_of: {race: {groups: {a: [{white: yes}], b: [{any: {white: yes, black: no}}]}}}}
  - {name: c, marginals: {ways: 1, over: [age], predicates: {age: prefix}}, where: {sex: 1}}
  - {name: d, marginals: {sets: [[], [age]]}, where: {sex: {in: [1, no]}}}
  - {name: e, ranges: {age: {width: 3}}, description: 1}
  - {name: f, ranges: {age: [[0, 3]]}}
  - {name: g, threshold: {r: 1, of: [age, sex], targets: {age: {between: [0, 3]}, sex: yes}}}
  - {name: h, threshold: {r: 2, of: [age, sex], targets: all}}
  - {name: i, union: [{product: {}}, {marginals: {max_cells: 5}, where: {age: 3}}]}
"""


def test_schema_and_parser_take_the_same_good_document() -> None:
    assert valid(SURVEY)
    assert len(parse(SURVEY, name="w.yaml", files={"s.txt": "a\n"}).items) == 9


BAD = [
    ("dataset: {id: survey, parent: {id: panel, budget: {rho: 4}}}\n", ""),
    (", budget: {rho: 4}", ""),
    ("rho: 4", "rho: 0"),
    ("id: panel", "name: panel"),
    ("{id: panel, budget: {rho: 4}}", "panel"),
    ("id: survey", "id: a b"),
    ("id: survey", "id: x, name: y"),
    ("max_rows: 2", "max_rows: 0"),
    (", max_rows: 2", ""),
    ("{person: pid, max_rows: 2}", "rows"),
    ("neighbours: replace", "neighbours: change"),
    ("delta: 1e-9", "delta: 1"),
    ("delta: 1e-9", "delta: -1"),
    ("delta: 1e-9", "delta: small"),
    ("rho: 1e-1", "rho: 0"),
    ("rho: 1e-1", "rho: .nan"),
    ("rho: 1e-1", "rho: 1, epsilon: 1"),
    ("rho: 1e-1", "rho: 1, delta: 1e-9"),
    ("rho: 1e-1", ""),
    ("[0, '9']", "[0]"),
    ("[0, '9']", "[0, 1.5]"),
    ("other: drop", "other: keep"),
    ("[yes, no, null, 1]", "[]"),
    ("[yes, no, null, 1]", "[a, a]"),
    ("values: [yes, no, null, 1]", "values: [a], bins: [1, 2]"),
    ("values: [yes, no, null, 1]", ""),
    ("values: [yes, no, null, 1]", "bins: [1]"),
    ("{values: [yes, no, null, 1]}", "bool"),
    ("white: boolean", "white: {merge: {a: boolean, b: boolean}}"),
    ("white: boolean, ", ""),
    ("name: first", "name: First"),
    ("name: first", "name: errors"),
    ("name: first\n", "description: x\n"),
    ("weight: .5", "weight: 0"),
    ("weight: .5", "weight: .inf"),
    ("weight: .5", "wait: 5"),
    ("state: total", "state: [[all]]"),
    ("prefix, {width: 2}", "prefix, [total]"),
    ("{width: 2}", "{width: 0}"),
    ("{width: 2}", "{}"),
    ("{ranges: [[0, 3]]}", "{ranges: [0, 3]}"),
    ("{is: yes}", "true"),
    ("{is: yes}", "{is: [yes]}"),
    ("a: [{white: yes}]", "a: []"),
    ("ways: 1", "ways: 1, up_to: 2"),
    ("ways: 1", "ways: -1"),
    ("sets: [[], [age]]", "sets: [age]"),
    ("sets: [[], [age]]", "sets: [[age]], over: [age]"),
    ("{age: {width: 3}}", "{age: identity}"),
    ("{age: {width: 3}}", "{}"),
    ("r: 1, ", "r: 0, "),
    ("r: 1, ", ""),
    ("targets: all", "targets: some"),
    ("union: [{product: {}}", "union: [{product: {}, name: x}"),
    ("union: [{product: {}}", "union: [{}"),
    ("{max_cells: 5}", "{}"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("old", "new"), BAD)
def test_schema_and_parser_refuse_the_same_bad_documents(old: str, new: str) -> None:
    text = SURVEY.replace(old, new, 1)
    assert text != SURVEY
    assert not valid(text)
    with pytest.raises(SpecError):
        parse(text, name="w.yaml", files={"s.txt": "a\n"})


PUBLISHED = {"adult_marginals": "Adult", "cps": "CPS", "loans_small": "Loans"}
PUBLISHED |= {"adult_prefix": "Adult", "cps_prefix": "CPS", "loans_small_prefix": "Loans"}


def published(name):
    file = ROOT.parent / "shared" / name
    if not file.exists():
        pytest.skip("the published figures are not beside this checkout")
    return json.loads(file.read_text(encoding="utf-8"))


DOMAINS = {"adult_marginals": "Adult", "cps": "CPS", "loans_small": "Loans"}
DOMAINS |= {"adult_prefix": "Adult", "cps_prefix": "CPS", "loans_small_prefix": "Loans"}


@pytest.mark.parametrize("name", DOMAINS)
def test_examples_have_the_published_domains(name: str) -> None:
    published = json.loads((ROOT / "tests" / "reference" / "published.json").read_text())
    assert list(spec(f"{name}.yaml").domain.shape) == published["domains"][DOMAINS[name]]
