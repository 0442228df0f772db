"""Adaptive runs with a public side that has no fit in it, for the tests of their privacy."""

import math
from fractions import Fraction

import numpy as np
from adaptive_support import SPEC

from dpquery.measurement import accounting
from dpquery.measurement.rounds.budget import adaptive_budget
from dpquery.measurement.rounds.tables import AdaptiveQuery
from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import parse


class Guess:
    """A model that learns nothing of what it is told: even tables, that move when it is told to.

    With `restless` a table is moved by as much whenever it was measured, and the level stays.
    """

    def __init__(self, shape, measurement, restless=0.0):
        self.shape, self.total, self.restless = shape, measurement.total, restless
        self.heard = [(table.tolist(), measurement.one_way_std) for table in measurement.one_way]
        self.moves = {}

    def table(self, attributes):
        sizes = [self.shape[i] for i in attributes]
        even = np.full(sizes, self.total / math.prod(sizes))
        return even + self.moves.get(attributes, 0) * self.restless

    def add(self, attributes, noisy, std):
        self.heard.append((attributes, noisy.tolist(), std))
        self.moves[attributes] = 1 - self.moves.get(attributes, 0)


def ask_tables(
    spec=SPEC, *, epsilon=1, delta="1e-6", release=1, restless=0.0, start=None, rows=None
):
    """A question of adaptive measurement, with a model that learns nothing."""
    parsed = parse(spec, name="town.yaml", files={})
    compiled = compile_spec(parsed)
    budget = adaptive_budget(
        compiled.workload,
        privacy=parsed.privacy,
        guarantee=accounting.guarantee(
            "gaussian", epsilon=Fraction(epsilon), delta=Fraction(delta)
        ),
        rows=rows or parsed.dataset.rows,
    )
    shape = compiled.workload.shape_of_domain
    make = start or (lambda measurement: Guess(shape, measurement, restless))
    return AdaptiveQuery(parsed, compiled, budget, release, make)


def exact_tables(question, rows):
    """The true tables of records in codes, by the number of the candidate."""
    shape = question.compiled.workload.shape_of_domain
    records = np.array(rows).reshape(-1, len(shape))

    def table(number):
        subset = question.budget.candidates.subsets[number]
        counts = np.zeros([shape[i] for i in subset], dtype=np.int64)
        np.add.at(counts, tuple(records[:, i] for i in subset), 1)
        return counts.ravel()

    return table
