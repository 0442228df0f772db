"""The sample data is reproducible, plausible, and fits the workload that is shipped for it."""

import csv
import hashlib
import importlib.util
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from types import ModuleType

import pytest

from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import load_spec
from dpquery.spec.predicates import GroupSet, IdentitySet
from dpquery.spec.spec import Spec

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "workloads" / "sample_persons.yaml"
PEOPLE = 50_000
RACES = ("white", "black", "american_indian", "asian", "pacific_islander", "other_race")
SIGNS = ("poverty", "unemployed", "homeless", "low_net_worth")

Row = dict[str, str]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    where = importlib.util.spec_from_file_location(
        "make_persons", ROOT / "sample_data" / "make_persons.py"
    )
    assert where is not None
    assert where.loader is not None
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(maker: ModuleType) -> list[Row]:
    with maker.PATH.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def people(rows: list[Row]) -> list[Row]:
    """The rows that survive the declared domain: those whose age is an age."""
    return [row for row in rows if row["age"].isdigit() and int(row["age"]) <= 110]


def share(rows: list[Row], condition: Callable[[Row], bool]) -> float:
    return sum(map(condition, rows)) / len(rows)


def aged(rows: list[Row], first: int, last: int) -> list[Row]:
    return [row for row in rows if first <= int(row["age"]) <= last]


def incomes(rows: list[Row]) -> list[int]:
    return [int(row["income"]) for row in rows if row["income"].lstrip("-").isdigit()]


def test_persons_csv_is_what_make_persons_writes(maker: ModuleType) -> None:
    assert maker.PATH.read_bytes() == maker.render().encode()


def test_the_survey_of_the_tutorial_is_the_file_that_the_readme_names(maker: ModuleType) -> None:
    readme = maker.PATH.with_name("README.md").read_text(encoding="utf-8")
    survey = maker.PATH.with_name("nhanes2.csv").read_bytes()
    assert hashlib.sha256(survey).hexdigest() in readme
    assert len(survey.splitlines()) == 10_338
    assert b"10,337 persons" in readme.encode()


def test_the_made_up_geography_is_numbers_of_areas_and_states_in_order() -> None:
    text = (ROOT / "workloads" / "geography.csv").read_text(encoding="utf-8")
    head, *lines = text.splitlines()
    assert head == "area,state"
    areas, states = zip(*(line.split(",") for line in lines), strict=True)
    assert [*areas] == [str(number) for number in range(1, 2025)]
    assert [*dict.fromkeys(states)] == [f"S{number:02}" for number in range(1, 52)]
    assert [*states] == sorted(states)


def test_the_file_is_small_and_has_50000_rows(maker: ModuleType, rows: list[Row]) -> None:
    assert maker.PATH.stat().st_size < 5_000_000
    assert len(rows) == PEOPLE


def test_a_few_ages_and_incomes_are_blemished(rows: list[Row], people: list[Row]) -> None:
    assert 10 <= len(rows) - len(people) <= 60
    odd = Counter(row["income"] for row in people if not row["income"].isdigit())
    assert 500 < odd[""] < 2500
    assert 20 < odd["refused"] < 200
    assert any(text.startswith("-") for text in odd)


def test_states_have_their_share_of_the_population(people: list[Row]) -> None:
    states = Counter(row["state"] for row in people)
    assert len(states) == 51
    assert [name for name, _ in states.most_common(4)] == [
        "California",
        "Texas",
        "Florida",
        "New York",
    ]
    assert states["California"] / len(people) == pytest.approx(0.119, abs=0.01)
    assert min(states.values()) > 50


def test_the_age_pyramid_is_that_of_a_nation(people: list[Row]) -> None:
    assert share(people, lambda row: int(row["age"]) < 18) == pytest.approx(0.24, abs=0.03)
    assert share(people, lambda row: int(row["age"]) >= 65) == pytest.approx(0.165, abs=0.02)
    women = [
        share(aged(people, *ages), lambda row: row["sex"] == "Female")
        for ages in ((0, 17), (65, 79), (80, 110))
    ]
    assert women[0] < 0.5 < women[1] < women[2]
    utah, maine = (
        median(int(row["age"]) for row in people if row["state"] == state)
        for state in ("Utah", "Maine")
    )
    assert utah < maine - 5


def test_everyone_has_a_race_and_some_have_several(people: list[Row]) -> None:
    races = Counter(sum(row[race] == "yes" for race in RACES) for row in people)
    assert races[0] == 0
    assert 0.07 < 1 - races[1] / len(people) < 0.15


def test_race_and_hispanic_origin_follow_the_state(people: list[Row]) -> None:
    def percent(state: str, column: str) -> float:
        return 100 * share(
            [row for row in people if row["state"] == state], lambda row: row[column] == "yes"
        )

    assert percent("New Mexico", "hispanic") == pytest.approx(47.7, abs=7)
    assert percent("Maine", "hispanic") < 6
    assert percent("Mississippi", "black") > 30
    assert percent("Hawaii", "asian") > 35
    assert share(people, lambda row: row["hispanic"] == "yes") == pytest.approx(0.187, abs=0.01)


def test_income_rises_to_middle_age_and_falls_after(people: list[Row]) -> None:
    assert set(incomes(aged(people, 0, 15))) == {0}
    young, middle, old = (
        median(incomes(aged(people, *ages))) for ages in ((18, 24), (40, 54), (75, 110))
    )
    assert young < old < middle
    adults = incomes(aged(people, 25, 64))
    assert mean(adults) > 1.2 * median(adults)
    assert 500_000 < max(adults) < 10_000_000


def test_relationship_and_employment_agree_with_age(people: list[Row]) -> None:
    children = aged(people, 0, 15)
    assert {row["employment"] for row in children} == {"under 16"}
    assert not {row["relationship"] for row in children} & {"householder", "spouse", "parent"}
    assert "under 16" not in {row["employment"] for row in aged(people, 16, 110)}
    assert share(aged(people, 30, 54), lambda row: row["employment"] == "employed") > 0.7
    assert all(row["unemployed"] == "yes" for row in people if row["employment"] == "unemployed")


def test_signs_of_deprivation_come_together(people: list[Row]) -> None:
    marginal = {sign: share(people, lambda row, s=sign: row[s] == "yes") for sign in SIGNS}
    assert marginal["homeless"] < 0.02 < marginal["unemployed"] < marginal["poverty"] < 0.2
    poor = [row for row in people if row["poverty"] == "yes"]
    for sign in SIGNS[1:]:
        assert share(poor, lambda row, s=sign: row[s] == "yes") > 1.4 * marginal[sign]
    signs = Counter(sum(row[sign] == "yes" for sign in SIGNS) for row in people)
    assert 300 < signs[3] + signs[4] < 1500
    adults = aged(people, 25, 64)
    by_poverty = {
        flag: median(incomes([row for row in adults if row["poverty"] == flag]))
        for flag in ("yes", "no")
    }
    assert by_poverty["yes"] < 0.6 * by_poverty["no"]


@pytest.fixture(scope="module")
def spec() -> Spec:
    return load_spec(SPEC)


def test_the_workload_is_of_a_size_that_plans_in_seconds(spec: Spec) -> None:
    assert 10_000 < spec.queries < 60_000
    shape = compile_spec(spec).workload.shape_of_domain
    assert spec.domain.size > 10**9, "small enough for a strategy over the whole domain"
    for item in spec.items:
        for table in item.tables:
            assert math.prod(shape[i] for i in table.attributes) <= 20_000, item.name


def test_the_workload_reads_the_columns_of_the_file(spec: Spec, rows: list[Row]) -> None:
    declared = {column.name for attribute in spec.domain.attributes for column in attribute.columns}
    assert declared == set(rows[0])
    state = spec.domain.attributes[spec.domain.index("state")].columns[0].kind
    assert {row["state"] for row in rows} == set(state.values)


def test_the_workload_shows_every_kind_of_item(spec: Spec) -> None:
    text = SPEC.read_text(encoding="utf-8")
    kinds = ("product", "marginals", "ranges", "union", "any_of", "threshold")
    settings = ("where", "weight", "prefix", "groups", "width", "merge", "other: show")
    assert [word for word in (*kinds, *settings) if word not in text] == []
    assert {item.name for item in spec.items} >= {"age_ranges", "pairs", "deprived"}
    assert any(item.weight != 1 for item in spec.items)
    tables = [table for item in spec.items for table in item.tables]
    assert {table.at_least for table in tables} == {None, 1, 2, 3}
    assert any(table.axes == () for table in tables)
    assert any(table.where for table in tables)


def test_the_main_race_groups_share_out_everyone_with_a_race(spec: Spec) -> None:
    (item,) = (item for item in spec.items if item.name == "race_by_state")
    (groups,) = (axis for _, axis in item.tables[0].axes if isinstance(axis, GroupSet))
    race = spec.domain.attributes[spec.domain.index("race")]
    main = [codes for label, codes in groups.groups if "combined" not in label]
    declared = set(IdentitySet.of(race).codes)
    assert [len(declared.intersection(codes)) for codes in main] == [1, 1, 1, 1, 1, 1, 57]
    left_out = declared.difference(*main)
    assert [race.label(code) for code in left_out] == [", ".join(f"{name}=no" for name in RACES)]
