"""Parser, schema, starter and reference page come from one table of fields, and agree with it."""

from pathlib import Path

import pytest

from dpquery.exceptions import SpecError
from dpquery.spec.documents import STARTER, reference, schema
from dpquery.spec.parsing.fields import DEFINITIONS, MAPPINGS
from dpquery.spec.parsing.forms import TextForm, Whole
from dpquery.spec.parsing.mappings import Field, Fields, choice, defaulted, optional
from dpquery.spec.parsing.yaml_nodes import Node, read_yaml
from dpquery.spec.problems import Problems, UnreadableError

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
    from test_workloads import as_json

    problems = Problems("w.yaml")
    node = root(field.example, problems)
    field.form.read(node, problems)
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
    pet = Pet.read(root("{name: Rex, barks: 3, chip: x1}", problems), problems)
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
                "1:1: a swims needs the key 'fins'; add it, such as `fins: 2`",
                "1:8: expected the pet's name, found an empty list",
                "1:18: expected how many legs it has, a whole number, found 'x'",
                "1:37: no fish: 'chip'",
            ],
        ),
    ],
)
def test_a_field_s_entry_is_all_that_its_checks_need(text: str, messages: list[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from test_workloads import as_json

    problems = Problems("w.yaml")
    node = root(text, problems)
    Pet.read(node, problems)
    with pytest.raises(SpecError) as caught:
        problems.raise_if_any()
    assert str(caught.value).split("\n") == [f"w.yaml:{message}" for message in messages]
    assert not jsonschema.Draft7Validator(Pet.schema()).is_valid(as_json(node))


def test_a_field_at_fault_has_its_default_or_ends_what_depends_on_it_without_a_word() -> None:
    problems = Problems("w.yaml")
    pet = Pet.read(root("{name: Rex, legs: x}", problems), problems)
    assert pet.legs == 4
    for key in ("barks", "chosen"):
        with pytest.raises(UnreadableError, match=r"^$"):
            getattr(pet, key)
