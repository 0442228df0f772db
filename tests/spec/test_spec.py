"""A spec is read whole: what it declares is what comes out, letter for letter."""

import dataclasses
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import pytest
from specs import BASE, read

from dpquery.exceptions import SpecError
from dpquery.limits import LARGEST_INTEGER
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.documents import STARTER, reference, schema
from dpquery.spec.parsing.fields import DEFINITIONS, MAPPINGS, ROWS
from dpquery.spec.parsing.forms import TextForm, Whole
from dpquery.spec.parsing.item_fields import RANGE_WORDS, SET_WORDS
from dpquery.spec.parsing.mappings import Field, Fields, choice, defaulted, optional
from dpquery.spec.parsing.read import load_spec, parse
from dpquery.spec.parsing.yaml_nodes import Node, read_yaml
from dpquery.spec.predicates import IdentitySet, PrefixSet
from dpquery.spec.problems import Problems, UnreadableError
from dpquery.spec.spec import Budget, Dataset, Privacy, Rows, Spec, Table
from dpquery.untrusted.json_values import MOST, Count, NotNegative, Positive, decode, parsed, record


def test_every_section_is_read() -> None:
    spec = read(BASE)
    assert spec.dataset == Dataset("survey", "1")
    assert spec.privacy == Privacy(None, 1, "add-remove", Fraction(1, 10**9))
    assert spec.budget == Budget(Fraction(4), Fraction(1, 10**9), None)
    assert spec.domain.attributes == (
        Attribute("age", (Column("age", Integers(0, 9), "drop"),)),
        Attribute(
            "sex", (Column("sex", Categorical(("Male", "Female"), ("Male", "Female")), "drop"),)
        ),
        Attribute(
            "state",
            (
                Column(
                    "state",
                    Categorical(("1", "2", "4"), ("Alabama", "Alaska", "Arizona")),
                    other="show",
                ),
            ),
        ),
        Attribute("income", (Column("income", Bins((0.0, 10000.0, 20000.0, 50000.0)), "drop"),)),
        Attribute("hispanic", (Column("hispanic", Boolean(), "drop"),)),
        Attribute(
            "race",
            (
                Column("white", Boolean(), "drop"),
                Column("black", Boolean(), "drop"),
                Column("asian", Categorical(("A", "B", "C"), ("A", "B", "C")), "drop"),
            ),
        ),
    )
    (item,) = spec.items
    assert (item.name, item.weight, item.description) == ("first", 1.0, "")
    assert item.tables == (Table(((0, PrefixSet(10, 10)), (1, IdentitySet(2)))),)
    assert (spec.text, spec.files, spec.queries) == (BASE, {}, 20)


@pytest.mark.parametrize(
    ("old", "new", "privacy"),
    [
        ("unit: row", "unit: {person: pid, max_rows: 3}", Privacy("pid", 3)),
        ("neighbours: add-remove", "neighbours: replace", Privacy(neighbours="replace")),
        (", delta: 1e-9}\nbud", ", delta: 0}\nbud", Privacy()),
        (", delta: 1e-9}\nbud", ", delta: 0.1}\nbud", Privacy(delta=Fraction(1, 10))),
    ],
)
def test_privacy_is_read_exactly(old: str, new: str, privacy: Privacy) -> None:
    plain = BASE if "delta" in old else BASE.replace(", delta: 1e-9}\nbud", "}\nbud")
    assert read(plain.replace(old, new)).privacy == privacy


@pytest.mark.parametrize(
    ("rows", "neighbours", "read_as"),
    [
        ("about 50000", "add-remove", Rows(50000, exact=False)),
        ("'about  50000 '", "replace", Rows(50000, exact=False)),
        ("48842", "replace", Rows(48842, exact=True)),
    ],
)
def test_the_number_of_rows_is_declared(rows: str, neighbours: str, read_as: Rows) -> None:
    text = BASE.replace("version: 1", f"version: 1, rows: {rows}").replace("add-remove", neighbours)
    text = text.replace("other: drop\n", "")  # which leaves out a number that is not declared
    assert read(text).dataset == Dataset("survey", "1", read_as)
    assert re.fullmatch(ROWS, rows.strip("'"))


@pytest.mark.parametrize("budget", ["{epsilon: 8, delta: 1e-6}", "{rho: 0.5}"])
def test_a_parent_is_declared_with_a_budget_in_the_same_currency(budget: str) -> None:
    text = BASE.replace("version: 1", f"parent: {{id: panel, budget: {budget}}}")
    parent = read(text).dataset.parent
    assert parent is not None
    assert parent.id == "panel"
    assert parent.budget == read(BASE.replace("{epsilon: 4, delta: 1e-9}", budget)).budget
    assert read(text).dataset == dataclasses.replace(read(BASE).dataset, parent=parent)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("{epsilon: 0.1}", Budget(Fraction(1, 10))),
        ("{epsilon: 1e-1}", Budget(Fraction(1, 10))),
        ("{rho: .5}", Budget(rho=Fraction(1, 2))),
        ("{epsilon: '4', delta: 1E-6}", Budget(Fraction(4), Fraction(1, 10**6))),
    ],
)
def test_budgets_are_exact(text: str, budget: Budget) -> None:
    assert read(BASE.replace("{epsilon: 4, delta: 1e-9}", text)).budget == budget


def test_scalars_keep_the_text_that_yaml_1_1_would_turn_into_something_else() -> None:
    texts = ["yes", "no", "on", "off", "010", "1:30", "0x1F", "1_000", "null", "~", "1.0", ".inf"]
    spec = read(BASE.replace("[Male, Female]", f"[{', '.join(texts)}]"))
    kind = spec.domain.attributes[1].columns[0].kind
    assert kind == Categorical(tuple(texts), tuple(texts))


def test_numbers_are_decimal_whatever_their_leading_zeros() -> None:
    spec = read(BASE.replace("[0, 9]", "[007, 010]"))
    assert spec.domain.attributes[0].columns[0].kind == Integers(7, 10)


def test_columns_may_have_another_header_their_own_booleans_and_an_other_bin() -> None:
    spec = read(
        BASE.replace("{range: [0, 9]}", "{range: [0, 9], column: AGE P, other: show}").replace(
            "hispanic: boolean", "hispanic: {boolean: {true: [Y], false: [N, '']}, other: drop}"
        )
    )
    assert spec.domain.attributes[0].columns == (Column("AGE P", Integers(0, 9), other="show"),)
    assert spec.domain.attributes[4].columns == (
        Column("hispanic", Boolean(("Y",), ("N", "")), "drop"),
    )


def test_values_between_curly_quotes_are_doubted_and_those_with_one_at_an_end_are_not() -> None:
    for values, doubted in (("“Male”, Female", True), ("boys’, girls’", False), ("’tis", False)):
        remarks = read(BASE.replace("Male, Female", values)).remarks
        assert any("curly quotes" in words for words in remarks) == doubted


def test_value_lists_come_from_files() -> None:
    text = BASE.replace("values: [Male, Female]", "values_file: lists/sex.txt")
    spec = read(text, {"lists/sex.txt": '\ufeffM,Male\r\n\r\n"F",  Female\r\n"a,b"\r\n'})
    kind = spec.domain.attributes[1].columns[0].kind
    assert kind == Categorical(("M", "F", "a,b"), ("Male", "Female", "a,b"))


def same(one: Spec, two: Spec) -> bool:
    names = ("dataset", "privacy", "budget", "domain", "items", "text", "files")
    return all(getattr(one, name) == getattr(two, name) for name in names)


def test_text_and_files_that_a_plan_carries_give_the_same_spec(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(BASE.replace("values: [Male, Female]", "values_file: s.txt"))
    (tmp_path / "s.txt").write_text("Male\nFemale\n")
    spec = load_spec(tmp_path / "w.yaml")
    assert spec.files == {"s.txt": "Male\nFemale\n"}
    assert same(spec, parse(spec.text, name="elsewhere", files=spec.files))


def test_the_starter_spec_parses_and_shows_every_kind() -> None:
    spec = parse(STARTER, name="workload.yaml", files={})
    assert STARTER.startswith("# yaml-language-server: $schema=workload.schema.json\n")
    kinds = {
        type(column.kind) for attribute in spec.domain.attributes for column in attribute.columns
    }
    assert kinds == {Integers, Categorical, Bins, Boolean, Dates}
    keys = {
        key for name, fields in MAPPINGS.items() if name != "questions" for key in fields.fields
    }
    assert [key for key in keys if not re.search(rf'\b{key}"?:', STARTER)] == []
    assert [word for word in [*SET_WORDS, *RANGE_WORDS] if word not in STARTER] == []
    assert max(map(len, STARTER.splitlines())) <= 100


def test_what_the_starter_has_in_comments_can_be_taken_out_of_them() -> None:
    """But for the parent and the values file, which need what lies elsewhere."""
    person = "  unit: {person: person_id, max_rows: 3, keep: first}"
    starter = re.sub(r"^  unit: row .*\n", "", STARTER, flags=re.MULTILINE)
    lines = (person, "  accounting: zcdp", "  born:", "file:", "  - name: rows_of_a_person")
    lines += ("publish:", "impossible:", "  answer:", "  rent:", "derived:")
    lines += ("  - {name: sexes_of_an_age", "  - {name: men_less_women")
    for line in lines:
        starter, times = re.subn(
            rf"^( *)# {line.lstrip()}", r"\1" + line.lstrip(), starter, flags=re.MULTILINE
        )
        assert times == 1, line
    for line in ("  description: How many persons", "  rows_per_person: {up_to: 20}"):
        starter, times = re.subn(rf"^  # {line}", f"  {line}", starter, flags=re.MULTILINE)
        assert times == 1, line
    spec = parse(starter, name="workload.yaml", files={})
    assert spec.privacy.person is not None
    assert spec.privacy.keep == "first"
    assert spec.budget.accounting == "zcdp"
    assert "born" in {attribute.name for attribute in spec.domain.attributes}
    assert spec.items[-1].name == "rows_of_a_person"
    assert [item.name for item in spec.derived] == ["sexes_of_an_age", "men_less_women"]


def test_labels_tell_any_two_codes_apart() -> None:
    bins = Column("x", Bins((0.0, 0.1, 1e6, 1000001.0, 1e20)), other="show")
    expected = ["[0, 0.1)", "[0.1, 1000000)", "[1000000, 1000001)", "[1000001, 1e+20)", "other"]
    assert [bins.label(code) for code in range(bins.size)] == expected
    assert bins.range_label(0, 1) == "[0, 1000000)"
    assert Column("x", Integers(-5, 5), "drop").range_label(0, 2) == "-5 to -3"
    assert Column("x", Categorical(("1", "2"), ("a", "b"))).range_label(0, 1) == "a to b"


# Parser, schema, starter and reference page come from one table of fields, and agree with it.


PAGE = Path(__file__).parents[2] / "dpquery" / "docs" / "spec.md"
EVERY = [
    pytest.param(field, id=f"{name}.{key}")
    for name, mapping in MAPPINGS.items()
    for key, field in mapping.fields.items()
]


def root(text: str, problems: Problems) -> Node:
    return read_yaml(text, file="w.yaml", problems=problems)


def test_the_reference_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `make docs`"


@pytest.mark.parametrize("field", EVERY)
def test_every_field_s_example_is_read_and_satisfies_the_schema(field: Field[object]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from test_spec_workload import as_json

    problems = Problems("w.yaml")
    node = root(field.example, problems)
    field.form.read(node)
    problems.raise_if_any()
    definitions = {name: form.schema() for name, form in DEFINITIONS.items()}
    form = field.form.schema() | {"definitions": definitions}
    assert list(jsonschema.Draft7Validator(form).iter_errors(as_json(node))) == []


@pytest.mark.parametrize("field", EVERY)
def test_every_field_says_what_it_is_in_a_line_or_two(field: Field[object]) -> None:
    assert field.about.endswith(".")
    assert len(field.about) <= 180


def test_every_mapping_of_the_schema_stands_in_the_reference_page() -> None:
    page = reference()
    known = {str(sorted(mapping.fields)) for mapping in MAPPINGS.values()}
    unknown: list[object] = []

    def visit(value: object) -> None:
        if isinstance(value, dict):
            keys = value.get("properties")
            if keys and str(sorted(keys)) not in known:
                unknown.extend(key for key in keys if f"`{key}`" not in page)
            for part in value.values():
                visit(part)
        elif isinstance(value, list):
            for part in value:
                visit(part)

    visit(schema())
    assert unknown == []
    assert "#:" not in STARTER


class Pet(Fields, what="a pet"):
    """A mapping that no spec has."""

    name = Field(TextForm("the pet's name"), "What it is called.", "Rex")
    legs = defaulted(Whole("how many legs it has", low=0), 4, "How many legs it has.", "4")
    barks = choice(Whole("how often it barks"), "How often it barks.", "3")
    swims = choice(Whole("how far it swims"), "How far it swims.", "20")
    fins = optional(Whole("how many fins it has"), "How many fins it has.", "2").with_("swims")
    chip = optional(TextForm("its chip"), "Its chip.", "x1").without("swims", "no fish: '{name}'")


def test_a_field_is_one_entry() -> None:
    problems = Problems("w.yaml")
    pet = Pet.read(root("{name: Rex, barks: 3, chip: x1}", problems))
    problems.raise_if_any()
    assert (pet.name, pet.legs, pet.barks, pet.fins, pet.chip) == ("Rex", 4, 3, None, "x1")
    assert pet.chosen == "barks"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("{nam: Rex, barks: 3}", ["1:2: a pet has no key 'nam'; did you mean 'name'?"]),
        ("{name: Rex}", ["1:1: a pet has one of the keys barks, swims; found none of them"]),
        ("{barks: 1}", ["1:1: a pet needs the key 'name'; add it, such as `name: Rex`"]),
        (
            "{name: [], legs: x, swims: 1, chip: a}",
            [
                "1:1: 'swims' needs the key 'fins'; add it, such as `fins: 2`",
                "1:8: expected the pet's name, found an empty list",
                "1:18: expected how many legs it has, a whole number, at least 0, found 'x'",
                "1:37: no fish: 'chip'",
            ],
        ),
    ],
)
def test_a_field_s_entry_is_all_that_its_checks_need(text: str, messages: list[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from test_spec_workload import as_json

    problems = Problems("w.yaml")
    node = root(text, problems)
    Pet.read(node)
    with pytest.raises(SpecError) as caught:
        problems.raise_if_any()
    assert str(caught.value).split("\n") == [f"w.yaml:{message}" for message in messages]
    assert not jsonschema.Draft7Validator(Pet.schema()).is_valid(as_json(node))


def test_a_field_at_fault_has_its_default_or_ends_what_depends_on_it_without_a_word() -> None:
    problems = Problems("w.yaml")
    pet = Pet.read(root("{name: Rex, legs: x}", problems))
    assert pet.legs == 4
    for key in ("barks", "chosen"):
        with pytest.raises(UnreadableError, match=r"^$"):
            getattr(pet, key)


# The reader of JSON from outside: each value has the type and the limits of its field.


@dataclass(frozen=True)
class Line:
    name: str
    noise: Literal["laplace", "gaussian"]
    queries: Count
    rmse: NotNegative | None
    bound: Positive
    epsilon: Fraction
    converged: bool


LINE = {
    "name": "ages",
    "noise": "laplace",
    "queries": 3,
    "rmse": 0,
    "bound": 1,
    "epsilon": "1/3",
    "converged": True,
}
REFUSED = {
    "name": [None, 1, "\ud800"],
    "noise": [None, "none", 1, ["laplace"]],
    "queries": [0, True, 1.0, LARGEST_INTEGER + 1, "1"],
    "rmse": [-0.5, MOST, 10**400, float("nan"), float("inf"), True, "1"],
    "bound": [0, 0.0, None],
    "epsilon": [1, "-1", "1e3", "1/0", "1/", "1" * 1001],
    "converged": [1, None, "true"],
}


def test_a_record_has_the_types_of_its_fields() -> None:
    line = record(Line, LINE | {"a name of a later version": 1})
    assert line == Line("ages", "laplace", 3, 0.0, 1.0, Fraction(1, 3), converged=True)
    assert isinstance(line.rmse, float)
    assert record(Line, LINE | {"rmse": None}).rmse is None


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_a_value_of_another_type_or_past_its_limits_is_refused(name: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError, ArithmeticError)):
        record(Line, LINE | {name: value})


@pytest.mark.parametrize("raw", [None, 1, "x", [LINE]])
def test_a_record_is_an_object_with_all_names(raw: object) -> None:
    with pytest.raises(TypeError):
        record(Line, raw)  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        record(Line, {})


def test_decode_takes_no_other_names() -> None:
    with pytest.raises(LookupError):
        decode(Line, LINE | {"other": 1})


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 2}', b"NaN", b"[Infinity]", b"{"])
def test_a_text_that_is_ambiguous_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"name|NaN|Infinity|Expecting"):
        parsed(text)


def test_rows_per_person_are_no_item_of_weighted_records() -> None:
    text = BASE.replace(
        "unit: row", "unit: {person: id, max_rows: 2}, weight: {column: wt, at_most: 9}"
    )
    items = "workload: [{name: rows, rows_per_person: {up_to: 3}}]\n"
    with pytest.raises(SpecError, match="with a weight this would add up weights"):
        read(text.partition("workload:")[0] + items)
