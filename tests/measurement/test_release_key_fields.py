"""Every field of all that a release is charged for is in its key, or is known not to matter."""

import typing
from dataclasses import fields, is_dataclass, replace
from datetime import date
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from pinned import ADAPTIVE, CLASSES, LAPLACE, PERSON, compiled_of

from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.curator import LinearQuery
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.release_key import linear_key, rap_key
from dpquery.measurement.rounds.budget import RapBudget
from dpquery.measurement.rounds.queries import RapQuery
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.cells import CellClassBlock, CellClasses
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.factors import Identity
from dpquery.operators.ranges import Prefix
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.releases.folder.answers import answers_key
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import (
    Attribute,
    Bins,
    Boolean,
    Categorical,
    Column,
    Dates,
    Domain,
    Integers,
)
from dpquery.spec.numbers import NumberFormat
from dpquery.spec.parsing.read import parse
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
)
from dpquery.spec.spec import (
    Dataset,
    FileFormat,
    Item,
    KnownTotals,
    Privacy,
    PublicationRules,
    Spec,
    SummedValues,
    Table,
)
from dpquery.strategy.strategy import WeightedBlock

SAME = object()
"""In place of another value: the field is not in the key, for the reason given beside it."""
THIRD = Fraction(1, 3)
SHAPE = (4, 2, 2)
BLOCK = Block(SHAPE, (0, 1, 2), (Identity(4), Identity(2), Prefix(2)), (False, True, True), 1)
CELL_CLASSES = CellClasses(SHAPE, (0, 1), np.arange(8) // 2)
CLASS_BLOCK = CellClassBlock(CELL_CLASSES, product((4,), {0: Identity(4)}))
# Of every dataclass that a release is charged for, another value of every field.
FIELDS = {
    Spec: {
        "dataset": Dataset("other"),
        "privacy": Privacy(max_rows=9),
        "domain": Domain((Attribute("only", (Column("only", Integers(0, 1)),)),)),
        "budget": SAME,  # what may be spent
        "items": SAME,  # what is measured of them is in the blocks
        "file": FileFormat(delimiter=";"),
        "derived": SAME,  # made of the noisy answers alone
        "text": SAME,  # all that counts of it is in the other fields
        "files": SAME,
        "first_edition": SAME,
        "about": SAME,  # words for readers
        "prefer": SAME,  # says what the plan compares; what it chose is measured
        "impossible": SAME,  # what is known of answers changes nothing that is measured
    },
    Dataset: {
        "id": "other",
        "version": "2",
        "rows": SAME,  # where RAP relies on it, it is in the mechanism's total
        "parent": SAME,  # whose cap is charged too
    },
    Privacy: {
        "person": None,
        "max_rows": 4,
        "neighbours": "replace",
        "delta": SAME,  # the delta asked for is in the guarantee
        "keep": "random",
    },
    FileFormat: {
        "delimiter": ";",
        "encoding": "latin-1",
        "decimal": ",",
        "quote": "'",
        "newlines_in_quotes": True,
    },
    Domain: {"attributes": (Attribute("only", (Column("only", Integers(0, 1)),)),)},
    # An attribute is what its columns are, whatever the tables call it.
    Attribute: {"name": SAME, "columns": (Column("only", Integers(0, 1)),), "in_data": False},
    Column: {
        "name": "other",
        "kind": Integers(3, 4),
        "other": "count",
        "number": NumberFormat("'"),
    },
    NumberFormat: {"thousands": "'", "decimal": ".", "sign": "%"},
    Categorical: {
        "values": ("male", "female"),
        "labels": SAME,  # as tables
        "also": (("M",), ()),
        "levels": SAME,  # what is asked by them is in the queries
    },
    Dates: {
        "first": date(2013, 1, 2),
        "last": date(2013, 3, 30),
        "by": "month",
        "format": DateFormat("%d.%m.%y"),
    },
    DateFormat: {"text": "%d/%m/%Y"},
    Integers: {"low": -3, "high": 8},
    Bins: {"edges": (0.0, 0.5000000000000001, 20000.0, 1e22)},
    Boolean: {"true": ("J",), "false": ("F",)},
    CompiledSpec: {
        "workload": Workload(SHAPE, (BLOCK,), (1.0,)),
        "classes": (np.array([0, 1]),),
        "items": SAME,  # which table stands in which file
        "facts": SAME,  # what is known of answers changes nothing that is measured
    },
    Workload: {
        "shape_of_domain": SAME,  # follows from the classes
        "blocks": (BLOCK,),
        "weights": SAME,  # RAP does not look at them, and the strategy's are in what is measured
        "units": SAME,  # of figures alone
    },
    WeightedBlock: {"weight": 8, "block": replace(BLOCK, at_least=2)},
    Block: {
        "shape_of_domain": SAME,  # follows from the classes
        "attributes": (0, 1, 3),
        "factors": (Identity(4), Identity(2), Identity(2)),
        "counted": (True, True, False),
        "at_least": 2,
    },
    CellClassBlock: {
        "classes": replace(CELL_CLASSES, codes=np.arange(8) % 4),
        "inner": product((4,), {0: Prefix(4)}),
    },
    CellClasses: {
        "shape_of_domain": SAME,  # as that of a block
        "attributes": (0, 2),
        "codes": np.array([0, 0, 1, 1, 2, 2, 3, 0]),
    },
    CalibratedNoise: {
        "guarantee": replace(LAPLACE.guarantee, amount=Fraction(1, 4)),
        "shift": 1,
        "sensitivity": 12346,
        "scale": 37035.0,
        "change": SAME,  # what the sensitivity is for
    },
    Guarantee: {
        "kind": "other",
        "amount": THIRD / 2,
        "epsilon": THIRD / 2,
        "delta": Fraction(1, 10**10),
        "rho": SAME,  # a price: it follows from what is measured, and the proof of it may improve
        "squared_mu": SAME,
    },
    RapBudget: {
        "guarantee": replace(ADAPTIVE.guarantee, amount=THIRD),
        "settings": RapSettings(1, 2, 3, 4),
        "records": 2,
        "replace": True,
        "total": 48,
        "total_rho": THIRD,
        "selection_rho": THIRD,
        "measurement_rho": THIRD,
        "rate": THIRD,
        "whole": 18,
    },
    RapSettings: {"rounds": 3, "selected": 4, "relaxed_rows": 11, "seed": 6},
}
# Of all that answers to later questions are named by.
QUESTIONS = {
    Item: {
        "name": "b",
        "tables": (),
        "weight": 2.0,
        "description": "b",
        "place": "b:1:1",
        "publish": PublicationRules(below=3),
        "known": KnownTotals((8,), "b.csv", "b"),
        "share": THIRD,
    },
    KnownTotals: {
        "values": (8,),
        "file": "b.csv",
        "why": "b",
        "lines": (3,),
        "place": "b:1:1",
    },
    PublicationRules: {"rel_error": 0.5, "below": 7, "round_to": 9},
    Table: {
        "axes": (),
        "where": ((1, TotalSet(2)),),
        "at_least": 1,
        "summed": SummedValues(1, (1, 2)),
    },
    SummedValues: {"attribute": 1, "values": (5, 0, -6)},
    IdentitySet: {"size": 9, "columns": ((3, 2),)},
    TotalSet: {"size": 9},
    PrefixSet: {"size": 9, "length": 2},
    AllRangesSet: {"size": 9, "length": 2},
    WidthSet: {"size": 9, "length": 2, "width": 2},
    IntervalSet: {"size": 9, "bounds": ((0, 2),)},
    GroupSet: {"size": 9, "groups": (("a", (0, 2)),), "named": (("state", "01"),)},
    StackedSet: {"size": 9, "parts": (TotalSet(3), IdentitySet(3))},
}

DAYS = "  day: {date: {from: 2013-01-01, to: 2013-03-31, by: week, format: '%d.%m.%Y'}}\n"
DAYS += "  pay: {bins: [0, 1], number: {thousands: '.', decimal: ','}}\n"
PARSED = parse(PERSON.replace("workload:", DAYS + "workload:"), name="survey.yaml", files={})
MEASURED = (WeightedBlock(7, BLOCK), WeightedBlock(1, BLOCK), WeightedBlock(1, CLASS_BLOCK))
LINEAR = {
    "spec": PARSED,
    "compiled": CompiledSpec(None, CLASSES, ()),
    "measured": MEASURED,
    "mechanism": LAPLACE,
    "release": 1,
}
RAP = {
    "spec": PARSED,
    "compiled": compiled_of(Workload(SHAPE, (BLOCK, BLOCK), (1.0, 1.0))),
    "mechanism": ADAPTIVE,
    "settings": ADAPTIVE.settings,
    "layout": "rap/1",
    "release": 1,
}
PREDICATES = (IdentitySet(3), TotalSet(3), PrefixSet(3, 3), AllRangesSet(3, 3), WidthSet(3, 3, 1))
PREDICATES += (IntervalSet(3, ((0, 1),)), GroupSet(3, (("a", (0, 1)),)))
PREDICATES += (StackedSet(3, (IdentitySet(3), TotalSet(3))),)
ITEMS = tuple(Item("a", (Table(((0, predicate),)),)) for predicate in PREDICATES)
ITEMS += (Item("sum", (Table((), summed=SummedValues(0, (5, 0, -5))),)),)
ITEMS += (Item("c", (Table(()),), publish=PublicationRules(0.3, 10, 5)),)
ITEMS += (Item("d", (Table(()),), known=KnownTotals((7,), "a.csv", "a", (2,), "a:1:1")),)


def parts(value):
    """A value and all dataclasses in it."""
    if is_dataclass(value):
        yield value
        value = tuple(getattr(value, field.name) for field in fields(value))
    if isinstance(value, tuple):
        for part in value:
            yield from parts(part)


def with_part(value, old, new):
    """A value with another object in the place of one that is in it."""
    if value is old:
        return new
    if isinstance(value, tuple):
        return tuple(with_part(part, old, new) for part in value)
    if isinstance(value, dict):
        return {name: with_part(part, old, new) for name, part in value.items()}
    if not is_dataclass(value):
        return value
    names = [field.name for field in fields(value)]
    return replace(value, **{name: with_part(getattr(value, name), old, new) for name in names})


def kinds_in(hint):
    """All classes of ours in a type, and the dataclasses of what is in their fields."""
    kinds, todo = set(), [hint]
    while todo:
        kind = todo.pop()
        todo += typing.get_args(kind)
        if is_dataclass(kind) and kind not in kinds:
            kinds.add(kind)
            hints = typing.get_type_hints(kind)
            named = {**FIELDS, **QUESTIONS}.get(kind, {})
            todo += [
                hints[field.name] for field in fields(kind) if named.get(field.name) is not SAME
            ]
    return kinds


def fields_of(table):
    """Every field that a table gives another value of."""
    return [
        pytest.param(kind, name, other, id=f"{kind.__name__}.{name}")
        for kind, others in table.items()
        for name, other in others.items()
        if other is not SAME
    ]


def changed(value, kind, name, other):
    """A value whose first object of a kind has another field; None if there is no such object."""
    old = next((part for part in parts(tuple(value.values())) if type(part) is kind), None)
    return None if old is None else with_part(value, old, replace(old, **{name: other}))


def test_no_field_of_what_a_release_is_charged_for_is_forgotten():
    charged = [
        *typing.get_type_hints(linear_key).values(),
        *typing.get_type_hints(rap_key).values(),
    ]
    assert kinds_in(tuple[*charged]) == FIELDS.keys()
    for kind, others in FIELDS.items():
        assert {field.name for field in fields(kind)} == others.keys()
    linear = [field.name for field in fields(LinearQuery)]
    assert linear == ["spec", "compiled", "strategy", "mechanism", "release"]
    rap = [field.name for field in fields(RapQuery)]
    # The public side sees noisy values alone: what it makes of them is no part of what is asked.
    assert rap == ["spec", "compiled", "settings", "mechanism", "release", "project"]


@pytest.mark.parametrize(("kind", "name", "other"), fields_of(FIELDS))
def test_another_value_of_a_field_is_another_key(kind, name, other):
    pairs = [(linear_key, LINEAR), (rap_key, RAP)]
    others = [(key, fields, changed(fields, kind, name, other)) for key, fields in pairs]
    compared = [key(**fields) != key(**new) for key, fields, new in others if new is not None]
    if (kind, name) == (CompiledSpec, "workload"):
        compared = compared[1:]  # of a linear release the strategy is measured, not the workload
    assert compared
    assert all(compared)


@pytest.mark.parametrize("change", [{"release": 2}, {"layout": "rap/2"}], ids=str)
def test_another_release_or_another_layout_is_another_key(change):
    assert rap_key(**RAP) != rap_key(**RAP | change)
    assert "layout" in change or linear_key(**LINEAR) != linear_key(**LINEAR | change)


def test_texts_that_look_like_notation_are_texts():
    names = [
        ("a', version='b", "c"),
        ("a", "b', version='c"),
        ('a"', "'b"),
        ("a\\", "b"),
        ("a", "b"),
    ]
    keys = {
        linear_key(**LINEAR | {"spec": replace(PARSED, dataset=Dataset(*name))}) for name in names
    }
    assert len(keys) == len(names)


def test_the_blocks_of_a_release_are_in_its_key_in_their_order():
    orders = (MEASURED, MEASURED[::-1], MEASURED[:1], MEASURED[1:], (*MEASURED, *MEASURED))
    assert len({linear_key(**LINEAR | {"measured": order}) for order in orders}) == len(orders)


def test_no_field_of_a_question_is_forgotten():
    assert kinds_in(Item) == QUESTIONS.keys()
    assert set(typing.get_args(PredicateSet)) == {type(predicate) for predicate in PREDICATES}
    for kind, others in QUESTIONS.items():
        assert {field.name for field in fields(kind)} == others.keys()


@pytest.mark.parametrize(("kind", "name", "other"), fields_of(QUESTIONS))
def test_another_question_makes_other_answers(kind, name, other):
    of = SimpleNamespace(key="k", measurements="m")
    request = {"items": ITEMS}
    assert answers_key(of, **request) != answers_key(of, **changed(request, kind, name, other))


def test_answers_of_another_release_or_other_noise_are_other_answers():
    of = [SimpleNamespace(key=key, measurements=values) for key, values in ("km", "kn", "lm")]
    assert len({answers_key(release, ITEMS) for release in of}) == 3
