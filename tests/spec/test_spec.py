"""A spec is read whole: what it declares is what comes out, letter for letter."""

import dataclasses
import re
from fractions import Fraction
from pathlib import Path

import pytest
from specs import BASE, read

from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.documents import STARTER
from dpquery.spec.parsing.fields import MAPPINGS, RANGE_WORDS, ROWS, SET_WORDS
from dpquery.spec.parsing.read import load_spec, parse
from dpquery.spec.predicates import IdentitySet, PrefixSet
from dpquery.spec.spec import Budget, Dataset, Privacy, Rows, Spec, Table


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
