"""No two requests share a key, whatever they are made of; the same request has the same."""

import pytest

pytest.importorskip("hypothesis")
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.release_key import linear_key
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.factors import Dense, Identity, Ones, Stacked
from dpquery.operators.ranges import ListedRanges, Prefix
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Domain, Integers
from dpquery.spec.spec import Budget, Dataset, Privacy, Spec
from dpquery.strategy.strategy import WeightedBlock

# Few values, so that two requests are often the same; and texts that look like notation.
names = st.text(alphabet="ab'\"(),=\\;\n\0é", max_size=4) | st.sampled_from(
    ["a', 'b", "1)", "None"]
)
few = st.integers(0, 2)
reals = st.sampled_from([0.0, 0.1, 0.1 + 2**-56, 1.0, 1e22, 1e23])
kinds = st.one_of(
    st.tuples(st.just(Categorical), st.lists(names, max_size=3).map(tuple)),
    st.tuples(st.just(Integers), few, few),
    st.tuples(st.just(Bins), st.lists(reals, max_size=3).map(tuple)),
    st.tuples(st.just(Boolean), st.lists(names, max_size=2).map(tuple), st.tuples(names)),
)
columns = st.tuples(names, kinds, st.booleans())
factors = st.recursive(
    st.one_of(
        st.tuples(st.just("identity"), few),
        st.tuples(st.just("ones"), few, few),
        st.tuples(st.just("prefix"), few, few),
        st.tuples(st.just("dense"), st.sampled_from([(1, 4), (2, 2)]), st.tuples(*[few] * 4)),
        st.tuples(st.just("ranges"), few, st.lists(st.tuples(few, few), max_size=2).map(tuple)),
    ),
    lambda inner: st.tuples(st.just("stacked"), st.lists(inner, min_size=1, max_size=2).map(tuple)),
    max_leaves=3,
)
blocks = st.lists(st.tuples(few, st.lists(st.tuples(few, factors), max_size=2)), max_size=2)
PARTS = {
    "dataset": st.tuples(names, names),
    "domain": st.lists(st.lists(columns, min_size=1, max_size=2), min_size=1, max_size=2),
    "unit": st.tuples(st.none() | names, few, st.sampled_from(["add-remove", "replace"])),
    "noise": st.tuples(names, few, few, few, few, few, reals),
    "release": few,
    "classes": few,
    "blocks": blocks,
}


def column_of(name, kind, other):
    """A column; the labels of its values have no part in its key."""
    kind_class, *values = kind
    return Column(
        name,
        kind_class(*values, values[0]) if kind_class is Categorical else kind_class(*values),
        "show" if other else "drop",
    )


def factor_of(kind, *arguments):
    """A factor."""
    match kind:
        case "identity":
            return Identity(*arguments)
        case "ones":
            return Ones(*arguments)
        case "prefix":
            return Prefix(*arguments)
        case "dense":
            return Dense(np.array(arguments[1]).reshape(arguments[0]))
        case "ranges":
            return ListedRanges(*arguments)
        case _:
            return Stacked(tuple(factor_of(*part) for part in arguments[0]))


def key_of(request):
    """The key of a request, which no parser and no planner has to make sense of."""
    attributes = [tuple(column_of(*column) for column in merged) for merged in request["domain"]]
    domain = Domain(tuple(Attribute("any", columns) for columns in attributes))
    person, rows, neighbours = request["unit"]
    privacy = Privacy(person, rows, neighbours)
    spec = Spec(Dataset(*request["dataset"]), privacy, Budget(), domain, ())
    kind, amount, epsilon, delta, *noise = request["noise"]
    guarantee = Guarantee(kind, *(Fraction(number, 3) for number in (amount, epsilon, delta)))
    classes = np.full(len(attributes), request["classes"])  # how many is known from the domain
    measured = tuple(
        WeightedBlock(
            weight,
            block_of([i for i, _ in spec_of_block], [factor_of(*f) for _, f in spec_of_block]),
        )
        for weight, spec_of_block in request["blocks"]
    )
    return linear_key(
        spec,
        CompiledSpec(None, (classes,), ()),
        measured=measured,
        mechanism=CalibratedNoise(guarantee, *noise),
        release=request["release"],
    )


def block_of(attributes, drawn):
    """A product."""
    return Block((), tuple(attributes), tuple(drawn), (True,) * len(drawn), len(drawn))


@given(st.fixed_dictionaries(PARTS), st.data())
@settings(max_examples=100)
def test_requests_that_differ_have_keys_that_differ(request, data):
    part = data.draw(st.sampled_from(sorted(PARTS)))
    other = request | {part: data.draw(PARTS[part])}
    assert (key_of(request) == key_of(other)) == (request == other)
