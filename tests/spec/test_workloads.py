"""Every example in workloads/ is valid, asks exactly what it says, and editors agree with it."""

import json
import re
from pathlib import Path

import pytest

from dpquery.exceptions import SpecError
from dpquery.spec.documents import STARTER, schema, schema_text
from dpquery.spec.parsing.read import load_spec, parse
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode, read_yaml
from dpquery.spec.predicates import GroupSet, IntervalSet, StackedSet
from dpquery.spec.problems import Problems
from dpquery.spec.spec import Spec

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


BASE = """\
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
    assert valid(BASE)
    assert len(parse(BASE, name="w.yaml", files={"s.txt": "a\n"}).items) == 9


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
    text = BASE.replace(old, new, 1)
    assert text != BASE
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


@pytest.mark.parametrize("name", PUBLISHED)
def test_examples_have_the_published_domains(name):
    domains = published("anchors/published.json")["domains"]
    assert list(spec(f"{name}.yaml").domain.shape) == domains[PUBLISHED[name]]


@pytest.mark.parametrize("name", ["adult_basic", "adult_marginals", "thresholds"])
def test_adult_examples_declare_the_columns_of_the_file(name):
    sizes = published("data/adult-domain.json")
    assert {one.name: one.size for one in spec(f"{name}.yaml").domain.attributes} == sizes
