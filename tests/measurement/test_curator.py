"""A measurement is named by all that is public of it: no two that differ share a name."""

import dataclasses
from fractions import Fraction

import numpy as np

from dpquery.measurement.accounting import guarantee
from dpquery.measurement.curator import LinearQuery
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Dense, Identity
from dpquery.spec.parsing.read import parse
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy

SPEC = """\
dataset: {id: town, version: 1}
privacy: {unit: row, neighbours: add-remove}
budget: {epsilon: 4}
other: drop
domain:
  age: {range: [0, 1]}
  sex: {values: [F, M]}
  pay: {bins: [0, 10, 20]}
workload:
  - name: pairs
    marginals: {ways: 2}
"""
SHAPE = (2, 2, 2)
TABLES = MarginalsStrategy("tables", "laplace", SHAPE, {(0,): 1, (1,): 2})


def ask(spec=SPEC, *, strategy=TABLES, epsilon="1", release=1, classes=None):
    """A question; most of what can differ leaves the noise as it is."""
    parsed = parse(spec, name="town.yaml", files={})
    compiled = compile_spec(parsed)
    if classes is not None:
        compiled = dataclasses.replace(compiled, classes=classes)
    terms = guarantee("laplace", epsilon=Fraction(epsilon), delta=Fraction(0))
    mechanism = calibrated_noise(strategy, privacy=parsed.privacy, guarantee=terms)
    return LinearQuery(parsed, compiled, strategy, mechanism, release)


def product_of(matrix):
    return ProductStrategy("p", "laplace", (Dense(np.array(matrix)), Identity(2), Identity(2)))


def test_all_that_is_public_of_a_linear_release_is_in_its_key():
    same_noise = [
        ask(),
        ask(release=2),
        ask(SPEC.replace("id: town", "id: city")),
        ask(SPEC.replace("version: 1", "version: 2")),
        ask(SPEC.replace("unit: row", "unit: {person: id, max_rows: 1}")),
        ask(SPEC.replace("unit: row", "unit: {person: ssn, max_rows: 1}")),
        ask(SPEC.replace("[0, 1]", "[1, 2]")),
        ask(SPEC.replace("[F, M]", "[M, F]")),
        ask(SPEC.replace("[0, 10, 20]", "[0, 11, 20]")),
        ask(SPEC.replace("age: {", "age: {column: years, ")),
        ask(strategy=MarginalsStrategy("tables", "laplace", SHAPE, {(0,): 2, (1,): 1})),
        ask(strategy=MarginalsStrategy("tables", "laplace", SHAPE, {(0,): 1, (2,): 2})),
        ask(classes=(np.array([1, 0]), np.array([0, 1]), np.array([0, 1]))),
        ask(classes=(np.array([0, 1]), np.array([1, 0]), np.array([0, 1]))),
    ]
    assert {query.mechanism for query in same_noise} == {ask().mechanism}
    products = [
        ask(strategy=product_of(factors)) for factors in ([[2, 1], [1, 2]], [[1, 2], [2, 1]])
    ]
    assert products[0].mechanism == products[1].mechanism
    other_noise = [
        ask(epsilon="2"),
        ask(SPEC.replace("add-remove", "replace")),
        ask(SPEC.replace("unit: row", "unit: {person: id, max_rows: 2}")),
        ask(strategy=MarginalsStrategy("tables", "laplace", SHAPE, {(0,): 1, (1,): 3})),
    ]
    keys = [query.key for query in same_noise + products + other_noise]
    assert len(set(keys)) == len(keys)


def test_what_changes_no_measurement_changes_no_key():
    assert ask().key == ask(SPEC.replace("name: pairs", "name: others")).key
    assert ask().key == ask(SPEC.replace("[F, M]", "{F: women, M: men}")).key
    assert ask().key == ask(SPEC.replace("epsilon: 4", "epsilon: 5")).key
