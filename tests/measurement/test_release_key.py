"""The key of a release never changes, and everything that a release is charged for is in it."""

import inspect
import math
import typing
from dataclasses import fields, is_dataclass, replace
from datetime import date, timedelta
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from pinned import ADAPTIVE, CLASSES, LAPLACE, MEASURED_TABLES, PERSON, RELEASES, compiled_of

from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.curator import LinearQuery
from dpquery.measurement.release_key import linear_key, rounds_key
from dpquery.measurement.rounds.query import RoundsQuery
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.cells import (
    BETWEEN,
    CellClassBlock,
    CellClasses,
    OrbitAxis,
    OrbitRows,
    Spread,
)
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.factors import (
    Centered,
    Dense,
    Factor,
    Groups,
    Identity,
    IdentityRows,
    Ones,
    Stacked,
    Valued,
    Weighted,
)
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.releases.folder.answers import answers_key
from dpquery.spec.numbers import NumberFormat
from dpquery.spec.parsing.read import parse
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PredicateSet,
    PrefixSet,
    RangeSet,
    StackedSet,
    TotalSet,
    WidthSet,
)
from dpquery.spec.spec import Dataset, Item, KnownTotals, PublicationRules, SummedValues, Table
from dpquery.strategy.strategy import WeightedBlock

KEYS = {
    "product": "ab2f089d499099dc342ffebbdbcbffa41944d79095eb9d5030cd1a4da7a0eadd",
    "permuted columns": "91c3b20c97dee7cc67919df8571e9a0490adefac4e2a8eeb1fae65e33f78f3d5",
    "marginals": "c390d13076a7cc3089c4a1472810f4ab42fdc4db79651f593b8e6129402bfcba",
    "factors": "8daa7e872393c8c62b3bfbe910551c71a48711aa8719f380a99386d327fa0ae5",
    "residual": "42c2394aec12a2693124ab50ed07c0ff499efe8c75dbd5e705d2de53ce737505",
    "union": "39d77450e3f3c5b408cd0131d405590255d4bbadf3a4da0ebcce08e6839d3043",
    "workload": "622b91d938372c637610adefabca515af4b55806b4456e59f7c596c8769a1593",
    "sums": "e1fb73b2516a0ecd7e9d6cfcb21f9250297079d68912bdc34fbc291ceaa154b5",
    "gaussian noise": "a8ad86fe64a386089ef4ae826aac8a2e6901dc40aba2f0d31317e4fff978004f",
    "rounded gaussian noise": "1b242a918900895d75148d47c8e4f86e0ab7057c786af5c9af0e8770c356e28a",
    "release 2": "2e0e7b31f3e61fced07ba6dff1632e30525cbf47b695d5f46da3a48a8646946b",
    "persons": "9bc93aaf8cade9c02672991e103c89b6b5c373affb1420b482f04aa1c54b55e1",
    "persons, any rows": "472e0752523c1efdb838eee52c9c43e4f3029577d3d80bb968d7f9f459d05a6b",
    "persons, numbers of rows": "f6e511d2efb81299840bd246467001aad382fa4185b7a81cdec5e300c6b23856",
    "records replaced": "1dc0920b64515ef4696bd15672ba98e52bbb8067743daca073ff58c5262c676e",
    "a parent": "c390d13076a7cc3089c4a1472810f4ab42fdc4db79651f593b8e6129402bfcba",
    "RAP": "07a6086f8ff840cfde5480a721ab263c4d2a9cf84c93fa86d41d4fe856085d9f",
    "RAP, all at once": "e6466bf30008cb799a37d79d8b934a668b8dde0f3f9d0d269952859646ec8e80",
    "RAP, persons": "a5a34ca78a13184e5f702d5c8e138057c7595ff208e9b0e4fdfcdba527929e94",
    "RAP, persons, any rows": "dfb423b20bc72a6746ee30e508666a1012230401b9d643e112f87657b46e12a0",
    "RAP, a parent, release 3": "a756493feb4722f0d424bea44503104d35cfcf142731655d034fffe78b7bc10a",
    "adaptive": "12d4268b46a3c704e991abb93f5e93a3569d377e6b6621bf2d2ee6e0fef4427f",
    "adaptive, replaced": "b2755ef2c1399e9c7e4f65849886328dd8decc93e11fc696f9bc5b4a40efc099",
    "adaptive, persons": "4a385747e001192bfaf274e9721994e1bfc89fcadef2d3c57290a85bc2b86f2c",
    "adaptive, release 2": "2477e5cd22f23b2900f64a4e3e6f7f3248e4f0cbec33dd5d28c52f724418a7ce",
    "adaptive, third edition": "b55aa228a2eef3092c9caa0cdb3418d62c91cafa19a7a03b9ceac8a703009b3a",
    "adaptive, second edition": "6fa305ff423e912444dc88ca4b4c8b3d920156ce8147408bb828a3d9a86e00a0",
}


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_has_the_key_that_it_always_had(name):
    assert RELEASES[name].key == KEYS[name]


def test_every_release_here_has_its_key_on_record():
    assert KEYS.keys() == RELEASES.keys()


@pytest.mark.parametrize("name", ["persons", "RAP, persons"])
def test_a_plan_of_format_1_has_the_key_that_it_always_had(name):
    """Its text does not say what became a choice later."""
    old = PERSON.replace("other: drop\n", "").replace("show", "bin").replace(", keep: first", "")
    spec = parse(old, name="survey.yaml", files={}, first_edition=True)
    assert replace(RELEASES[name], spec=spec).key == KEYS[name]


# Of every kind of factor: all that it is made of, and another value of each of that.
FACTORS = {
    Identity: {"n": (4, 5)},
    Ones: {"m": (1, 2), "n": (4, 5)},
    Centered: {"n": (4, 5)},
    Prefix: {"n": (4, 5), "length": (3, 4)},
    AllRanges: {"n": (4, 5), "length": (3, 4)},
    WidthRanges: {"n": (4, 5), "width": (2, 3)},
    ListedRanges: {"n": (4, 5), "bounds": ([(0, 1), (2, 3)], [(0, 1), (1, 3)])},
    Dense: {"matrix": ([[1, 2], [3, 4]], [[1, 2, 3, 4]])},
    PIdentity: {"diagonal": ([1, 2], [1, 3]), "rows": ([[3, 4]], [[3, 5]])},
    BlockPIdentity: {
        "diagonal": ([1, 2, 3, 4], [1, 2, 3, 5]),
        "inner": ([[5, 6, 7, 8]], [[5, 6, 7, 9]]),
        "outer": ([[9, 10]], [[9, 11]]),
        "size": (2, 3),
    },
    Hierarchy: {"n": (4, 6), "sizes": ((1, 2), (1, 4)), "weights": ((3, 4), (3, 5))},
    Tree: {
        "parents": (([0, 0, 1],), ([0, 1, 1],)),
        "weights": (([2, 2, 3], [4, 5]), ([2, 2, 4], [4, 6])),
    },
    IdentityRows: {"n": (4, 5), "codes": ([0, 2], [0, 1])},
    Groups: {
        "matrix": (sp.csr_array([[1, 1, 0], [0, 0, 1]]), sp.csr_array([[1, 0, 0], [0, 1, 1]]))
    },
    Stacked: {"parts": ((Identity(2), Ones(1, 2)), (Ones(1, 2), Identity(2)))},
    Columns: {"inner": (Prefix(4), Hierarchy(4, (1, 2), (1, 1))), "codes": ([1, 0], [0, 1])},
    Valued: {"inner": (Prefix(2), Identity(2)), "values": ([3, -1], [3, 1])},
    Spread: {"inner": (Prefix(2), Identity(2)), "classes": ([0, 0, 1], [0, 1, 1])},
    OrbitRows: {
        "axes": tuple((OrbitAxis(np.array(place)),) for place in ([0, 0, 1], [0, 1, 1])),
        "cores": tuple(
            {(BETWEEN,): np.array([[3, -1], [0, last]]), (0,): np.array([[5]])} for last in (2, 4)
        ),
    },
}
NEVER_MEASURED = {Weighted}


def concrete(kind):
    """All classes under one that can be made."""
    below = {subclass for direct in kind.__subclasses__() for subclass in concrete(direct)}
    return below if inspect.isabstract(kind) else below | {kind}


def made(value):
    """A value in which lists are arrays."""
    if isinstance(value, tuple):
        return tuple(map(made, value))
    return np.array(value) if isinstance(value, list) else value


def factor_key(factor):
    """The key of a linear release that measures one factor."""
    block = SimpleNamespace(attributes=(0,), terms=((1, (True,)),), factors=(factor,))
    return linear_key(**LINEAR | {"measured": (WeightedBlock(1, block),)})


def test_every_kind_of_factor_has_a_tag_and_all_that_it_is_made_of_is_in_the_key():
    assert concrete(Factor) == FACTORS.keys() | NEVER_MEASURED
    keys = []
    for kind, values in FACTORS.items():
        assert inspect.signature(kind).parameters.keys() == values.keys()
        first = {name: made(pair[0]) for name, pair in values.items()}
        keys += [factor_key(kind(**first))]
        keys += [factor_key(kind(**first | {name: made(values[name][1])})) for name in values]
    assert len(set(keys)) == len(keys)


def test_a_factor_that_is_not_of_integers_or_has_no_tag_has_no_key():
    for factor in (Dense(np.eye(2)), Weighted(Identity(2), np.ones(2))):
        with pytest.raises(TypeError, match="key"):
            factor_key(factor)


def test_the_integers_of_a_factor_are_the_same_however_they_are_held():
    matrix = np.array([[1, 2], [3, 4]])
    others = (matrix.astype(np.int32), np.asfortranarray(matrix), matrix.astype(">i8"))
    assert {factor_key(Dense(other)) for other in others} == {factor_key(Dense(matrix))}


# Every field of every dataclass that a release is charged for.

# What is not in the key, and why.
LEFT_OUT = {
    "Spec.budget": "what may be spent",
    "Spec.items": "what is measured of them is in the blocks",
    "Spec.derived": "made of the noisy answers alone",
    "Spec.text": "all that counts of it is in the other fields",
    "Spec.files": "all that counts of them is in the other fields",
    "Spec.first_edition": "all that counts of it is in the other fields",
    "Spec.about": "words for readers",
    "Spec.prefer": "says what the plan compares; what it chose is measured",
    "Spec.impossible": "what is known of answers changes nothing that is measured",
    "Dataset.rows": "where RAP relies on it, it is in the mechanism's total",
    "Dataset.parent": "whose cap is charged too",
    "Privacy.delta": "the delta asked for is in the guarantee",
    "RecordWeight.total": "as effective",
    "RecordWeight.effective": "for plans, and which errors of the sample are told",
    "RecordWeight.inclusion": "of what is made of noisy values",
    "RecordWeight.drawn": "as inclusion",
    "ReplicateWeights.factor": "as inclusion",
    "ReplicateWeights.degrees": "as inclusion",
    "Attribute.name": "an attribute is what its columns are, whatever the tables call it",
    "Categorical.labels": "as tables",
    "Categorical.levels": "what is asked by them is in the queries",
    "CompiledSpec.items": "which table stands in which file",
    "CompiledSpec.facts": "what is known of answers changes nothing that is measured",
    "Workload.shape_of_domain": "follows from the classes",
    "Workload.weights": "RAP does not look at them, and the strategy's are in what is measured",
    "Workload.units": "of figures alone",
    "Block.shape_of_domain": "follows from the classes",
    "CellClasses.shape_of_domain": "follows from the classes",
    "CalibratedNoise.change": "what the sensitivity is for",
    "CalibratedNoise.copies": "as many as there are replicates",
    "CalibratedNoise.step": "that of the weight",
    "CalibratedNoise.beside": "follows from the noise, and from what a weight says",
    "RapRounds.workload": "it is that of the compiled spec",
    "RapRounds.rows": "as of the dataset",
    "TableRounds.workload": "what it has a run measure is in the candidates",
    "TableRounds.rows": "as of the dataset",
    "Guarantee.rho": "a price: it follows from what is measured, and the proof may improve",
    "Guarantee.squared_mu": "as rho",
    "Guarantee.threshold": "of a discovery alone, whose key has it",
}
# Another value of what is none or empty in the requests here.
GIVEN = {
    "CalibratedNoise.guarantee": Guarantee("gdp", Fraction(1), Fraction(1), Fraction(0)),
    "Guarantee.kind": "gdp",
    "RecordWeight.design_effect": Fraction(2),
    "Column.number": NumberFormat("'"),
    "Categorical.also": (("M",), ()),
    "RapRounds.total": 48,
    "RapRounds.whole": 18,
    "TableRounds.total": 48,
    "Item.publish": PublicationRules(below=3),
    "Item.known": KnownTotals((8,), "b.csv", "b"),
    "Item.share": Fraction(1, 3),
    "Table.where": ((1, TotalSet(2)),),
    "Table.at_least": 1,
    "Table.summed": SummedValues(1, (1, 2)),
    "IdentitySet.columns": ((3, 2),),
    "GroupSet.named": (("state", "01"),),
}
SHAPE = (4, 2, 2)
BLOCK = Block(SHAPE, (0, 1, 2), (Identity(4), Identity(2), Prefix(2)), (False, True, True), 1)
CELL_CLASSES = CellClasses(SHAPE, (0, 1), np.arange(8) // 2)
CLASS_BLOCK = CellClassBlock(CELL_CLASSES, product((4,), {0: Identity(4)}))
DAYS = "  day: {date: {from: 2013-01-01, to: 2013-03-31, by: week, format: '%d.%m.%Y'}}\n"
DAYS += "  pay: {bins: [0, 1], number: {thousands: '.', decimal: ','}}\n"
WEIGHT = ", weight: {column: wt, at_most: 5, step: 0.5, replicates: REPLICATES}".replace(
    "REPLICATES", "{first: r1, count: 2, factor: 0.5, at_most: 3}"
)
WEIGHTED = PERSON.replace("keep: first}", "keep: first}" + WEIGHT)
PARSED = parse(WEIGHTED.replace("workload:", DAYS + "workload:"), name="survey.yaml", files={})
MEASURED = (WeightedBlock(7, BLOCK), WeightedBlock(1, BLOCK), WeightedBlock(1, CLASS_BLOCK))
LINEAR = {
    "spec": PARSED,
    "compiled": CompiledSpec(None, CLASSES, ()),
    "measured": MEASURED,
    "mechanism": LAPLACE,
    "release": 1,
}
SMALL = Workload(SHAPE, (BLOCK, BLOCK), (1.0, 1.0))
RAP = {
    "spec": PARSED,
    "compiled": compiled_of(SMALL),
    "rounds": replace(ADAPTIVE, workload=SMALL),
    "release": 1,
}
ADAPTIVE_RUN = {
    "spec": PARSED,
    "compiled": CompiledSpec(None, CLASSES, ()),
    "rounds": replace(MEASURED_TABLES, workload=None),
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


def rebuilt(value, **others):
    """A dataclass with other values of fields, whether or not they make sense together."""
    new = object.__new__(type(value))
    for field in fields(value):
        object.__setattr__(new, field.name, others.get(field.name, getattr(value, field.name)))
    return new


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
    return rebuilt(value, **{name: with_part(getattr(value, name), old, new) for name in names})


def kept(kind):
    """The names of the fields of a dataclass that are in a key."""
    names = [field.name for field in fields(kind)]
    return [name for name in names if f"{kind.__name__}.{name}" not in LEFT_OUT]


def another(value):
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | Fraction():
            return value + 1
        case float():
            return math.nextafter(value, math.inf)
        case str():
            return value + "'"
        case date():
            return value + timedelta(1)
        case np.ndarray():
            return np.concatenate([value[:-1], value[-1:] + 1])
        case tuple():
            return (*value[:-1], another(value[-1]))
        case Factor():
            return Dense(np.full(value.shape, 7))
    name = kept(type(value))[0]
    return rebuilt(value, **{name: another(getattr(value, name))})


def predicate_kinds():
    """All kinds of predicate sets that there are."""
    kinds = {*PredicateSet.__subclasses__(), *RangeSet.__subclasses__()}
    return {kind for kind in kinds if is_dataclass(kind)}


def kinds_in(hint):
    """All classes of ours in a type, and the dataclasses of what is in their fields."""
    kinds, todo = set(), [hint]
    while todo:
        kind = todo.pop()
        todo += typing.get_args(kind) or (predicate_kinds() if kind is PredicateSet else ())
        if is_dataclass(kind) and kind not in kinds:
            kinds.add(kind)
            todo += [typing.get_type_hints(kind)[name] for name in kept(kind)]
    return kinds


def fields_of(hint):
    """Every field that is in a key, of all classes in a type."""
    return [
        pytest.param(kind, name, id=f"{kind.__name__}.{name}")
        for kind in sorted(kinds_in(hint), key=lambda kind: kind.__name__)
        for name in kept(kind)
    ]


def changed(request, kind, name):
    """A request whose first object of a kind has another field; None if it has no such value."""
    old = next((part for part in parts(tuple(request.values())) if type(part) is kind), None)
    value = GIVEN.get(f"{kind.__name__}.{name}")
    if value is None and getattr(old, name, None) is not None:
        value = another(getattr(old, name))
    if old is None or value is None:
        return None
    return with_part(request, old, rebuilt(old, **{name: value}))


HINTS = [hint for key in (linear_key, rounds_key) for hint in typing.get_type_hints(key).values()]
CHARGED = tuple[*HINTS]


@pytest.mark.parametrize(("kind", "name"), fields_of(CHARGED))
def test_another_value_of_a_field_is_another_key(kind, name):
    """A new field, of whatever class, is one of these, or has its reason above."""
    requests = ((linear_key, LINEAR), (rounds_key, RAP), (rounds_key, ADAPTIVE_RUN))
    pairs = [(key, old, changed(old, kind, name)) for key, old in requests]
    compared = [key(**old) != key(**new) for key, old, new in pairs if new is not None]
    assert compared
    assert all(compared)


def test_what_is_said_of_fields_is_said_of_fields_that_there_are():
    kinds = kinds_in(CHARGED) | kinds_in(Item)
    assert {*LEFT_OUT, *GIVEN} <= {
        f"{kind.__name__}.{field.name}" for kind in kinds for field in fields(kind)
    }
    linear = [field.name for field in fields(LinearQuery)]
    assert linear == ["spec", "compiled", "strategy", "mechanism", "release"]
    in_rounds = [field.name for field in fields(RoundsQuery)]
    # The public side sees noisy values alone: what it makes of them is no part of what is asked.
    assert in_rounds == ["spec", "compiled", "rounds", "release", "start"]


def test_another_release_or_another_layout_is_another_key(monkeypatch):
    assert linear_key(**LINEAR) != linear_key(**LINEAR | {"release": 2})
    for request in (RAP, ADAPTIVE_RUN):
        keys = [rounds_key(**request), rounds_key(**request | {"release": 2})]
        monkeypatch.setattr(type(request["rounds"]), "layout", "another/2")
        assert len({*keys, rounds_key(**request)}) == 3


def test_texts_that_look_like_notation_are_texts():
    names = [
        ("a', version='b", "c"),
        ("a", "b', version='c"),
        ('a"', "'b"),
        ("a\\", "b"),
        ("a", "b"),
    ]
    specs = [replace(PARSED, dataset=Dataset(*name)) for name in names]
    assert len({linear_key(**LINEAR | {"spec": spec}) for spec in specs}) == len(names)


def test_the_blocks_of_a_release_are_in_its_key_in_their_order():
    orders = (MEASURED, MEASURED[::-1], MEASURED[:1], MEASURED[1:], (*MEASURED, *MEASURED))
    assert len({linear_key(**LINEAR | {"measured": order}) for order in orders}) == len(orders)


@pytest.mark.parametrize(("kind", "name"), fields_of(Item))
def test_another_question_makes_other_answers(kind, name):
    assert predicate_kinds() == {type(predicate) for predicate in PREDICATES}
    of, request = SimpleNamespace(key="k", measurements="m"), {"items": ITEMS}
    assert answers_key(of, **request) != answers_key(of, **changed(request, kind, name))


def test_answers_of_another_release_or_other_noise_are_other_answers():
    of = [SimpleNamespace(key=key, measurements=values) for key, values in ("km", "kn", "lm")]
    assert len({answers_key(release, ITEMS) for release in of}) == 3
