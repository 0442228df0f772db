"""An adaptive run is charged once, and goes on from sound parts alone, whatever they were."""

import math
import random

import numpy as np
import pytest
from rounds import (
    DECLARED,
    PERSON,
    REPLACE,
    SPEC,
    Guess,
    ask_tables,
    measured,
    open_ledger,
    spent_on,
)

from dpquery.exceptions import LedgerError
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import PartialMeasurement
from dpquery.measurement.rounds import tables as rounds
from dpquery.measurement.rounds.budget import GRID_BITS, MEASURED_SHARE, ROUNDS_PER_ATTRIBUTE
from dpquery.measurement.rounds.selection import ExactChance, penalties_of
from dpquery.measurement.rounds.tables import ADAPTIVE_LAYOUT, MeasuredRound, measured_tables
from dpquery.spec.spec import Rows


class Crashing(Guess):
    """Falls over when it is told of a table, until there are no falls left."""

    def __init__(self, measurement, falls, heard):
        super().__init__((6, 2, 3), measurement, restless=10**6)
        heard.extend(self.heard)
        self.falls, self.heard = falls, heard

    def add(self, attributes, noisy, std):
        super().add(attributes, noisy, std)
        if self.falls and self.falls[0] == len(self.heard) - 3:
            self.falls.pop(0)
            raise RuntimeError("the fit failed")


def test_a_run_whose_fit_fails_goes_on_from_its_tables_at_no_charge(data):
    falls, runs = [1, 4, 9], []

    def start(measurement):
        runs.append([])
        return Crashing(measurement, falls, runs[-1])

    question = ask_tables(start=start)
    path = open_ledger(data.parent, question)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="the fit failed"):
            measured(data, question, path)
    done = measured(data, question, path)
    spent, kinds = spent_on(path)
    assert spent == math.ceil(question.guarantee.amount * 10**18)
    assert kinds == ["register", "reserve", "retry", "retry", "retry", "commit"]
    assert [len(run) - 3 for run in runs] == [1, 4, 9, 44]  # the last is fitted from the ledger
    assert all(run == runs[-1][: len(run)] for run in runs)
    assert len(measured_tables(question, done.values).rounds) == 45
    assert not list(path.with_name("ledger.db.measurements").iterdir())


def test_the_levels_of_earlier_rounds_are_taken_from_what_was_committed(data):
    """A fit that says otherwise today, on another machine say, spends nothing anew."""
    question = ask_tables(start=lambda given: Crashing(given, [5], []))
    path = open_ledger(data.parent, question)
    with pytest.raises(RuntimeError):
        measured(data, question, path)
    still = ask_tables()  # every level would rise
    assert still.key == question.key
    outcome = measured_tables(still, measured(data, still, path).values)
    levels = [each.level for each in outcome.rounds]
    assert levels[:5] == [0] * 5
    assert levels[5:] == list(range(1, len(levels) - 4))
    spent = question.budget.one_way_rho + sum(each.budget.rho for each in outcome.rounds)
    assert spent == question.guarantee.amount


def test_the_same_run_is_free_the_second_time_and_does_not_open_the_data(data):
    question = ask_tables()
    path = open_ledger(data.parent, question)
    first = measured(data, question, path)
    before = spent_on(path)
    data.unlink()
    again = measured(data, ask_tables(start=lambda _: pytest.fail("fitted")), path)
    np.testing.assert_array_equal(first.values, again.values)
    assert spent_on(path) == before
    assert again.source.startswith("OpenDP ")
    assert "to select" in again.source


def test_a_run_that_was_measured_whole_is_committed_without_a_fit(data, monkeypatch):
    question = ask_tables()
    path = open_ledger(data.parent, question)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", lambda *_, **__: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            measured(data, question, path)
    monkeypatch.setattr(ExactChance, "add_noise", lambda *_, **__: pytest.fail("drawn"))
    measured(data, ask_tables(start=lambda _: pytest.fail("fitted")), path)
    assert spent_on(path)[1] == ["register", "reserve", "retry", "commit"]


# Damage.


def begun(data):
    """A question whose run fell over after its second round, with its three parts."""
    question = ask_tables(start=lambda given: Crashing(given, [2], []))
    path = open_ledger(data.parent, question)
    with pytest.raises(RuntimeError):
        measured(data, question, path)
    with Ledger.open(path, create=False) as ledger, ledger.hold(question.key):
        return question, path, ledger.draft(question.key).parts()


def with_parts(question, path, parts):
    """Put other parts, soundly sealed, in the place of those that are there."""
    with Ledger.open(path, create=False) as ledger, ledger.hold(question.key):
        draft = ledger.draft(question.key)
        draft.parts()
        draft.clear()
        for part in parts:
            draft.append(np.asarray(part))


def damaged(parts):
    """Parts that no run has, one damage each."""
    first, second, third = (part.tolist() for part in parts)
    yield "a first part too short", [first[:-1]]
    yield "a first part too long", [[*first, 0]]
    yield "an empty first part", [[]]
    yield "a round too short", [first, second[:-1]]
    yield "a round too long", [first, [*second, 0]]
    yield "an empty round", [first, []]
    yield "no counts", [first, second[:2]]
    for number in (-1, 7, 2**62, -(2**63)):
        yield f"table {number}", [first, [number, *second[1:]]]
    other = next(k for k, n in enumerate((6, 2, 3, 12, 18, 6, 36)) if n != len(second) - 2)
    yield "another table", [first, [other, *second[1:]]]
    for level in (-1, 1, 2**62):
        yield f"a first level {level}", [first, [second[0], level, *second[2:]]]
    for level in (-1, 2, 2**62):
        yield f"a second level {level}", [first, second, [third[0], level, *third[2:]]]
    yield (
        "a level that falls",
        [
            first,
            second,
            [third[0], 1, *third[2:]],
            [third[0], 0, *third[2:]],
        ],
    )
    rising = [[third[0], level, *third[2:]] for level in range(9)]
    yield "a round after the last", [first, *rising]


def test_parts_that_no_run_could_have_are_refused_draw_nothing_and_can_be_given_up(
    data, monkeypatch, record_property
):
    question, path, parts = begun(data)
    monkeypatch.setattr(ExactChance, "add_noise", lambda *_, **__: pytest.fail("drawn"))
    bad = list(damaged(parts))
    for _, given in bad:
        with_parts(question, path, given)
        with Ledger.open(path, create=False) as ledger, ledger.hold(question.key):
            draft = ledger.draft(question.key)
            with pytest.raises(LedgerError, match="ledger abandon"):
                question._parts(draft)
    with pytest.raises(LedgerError, match="ledger abandon"):
        measured(data, question, path)
    with Ledger.open(path, create=False) as ledger:
        ledger.abandon(question.key)
    assert not list(path.with_name("ledger.db.measurements").iterdir())
    record_property("bad inputs", len(bad))


def test_committed_values_that_do_not_spend_the_charge_exactly_are_refused(data, record_property):
    question = ask_tables()
    values = measured(data, question).values.tolist()
    outcome = measured_tables(question, np.array(values))
    sizes = question.budget.candidates.sizes
    ends = 11 + np.cumsum([2 + sizes[each.number] for each in outcome.rounds])
    bad = [values[: int(end)] for end in ends[:-1]]  # rounds left out
    bad += [values[:11], values[:5], [], [*values, 0], values + values[ends[-2] :], values[1:]]
    bad += [[*values[:11], number, *values[12:]] for number in (-1, 7, 2**62)]
    bad += [[*values[:12], level, *values[13:]] for level in (-1, 1, 2**62)]
    for given in bad:
        with pytest.raises(ValueError, match=r"."):
            measured_tables(question, np.array(given, dtype=np.int64))
    record_property("bad inputs", len(bad))


def test_values_of_any_kind_are_read_or_refused(record_property):
    question, draw = ask_tables(), random.Random(3)  # noqa: S311 (no secret)
    small = [*range(-2, 9), 2**62, -(2**63)]
    for _ in range(400):
        size = draw.randrange(80)
        given = [draw.choice(small) for _ in range(size)]
        try:
            outcome = measured_tables(question, np.array(given, dtype=np.int64))
        except ValueError:
            continue
        assert outcome.finished
    record_property("bad inputs", 400)


def test_parts_that_a_run_killed_after_its_commit_left_are_removed_by_the_next(data, monkeypatch):
    question = ask_tables()
    path = open_ledger(data.parent, question)
    with monkeypatch.context() as patch:
        patch.setattr(PartialMeasurement, "clear", lambda _: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            measured(data, question, path)
    folder = path.with_name("ledger.db.measurements")
    assert list(folder.iterdir())
    measured(data, question, path)
    assert not list(folder.iterdir())


# Names.

PAIR = "  - {name: pair, weight: 3, product: {age: identity, sex: identity}}\n"


def test_every_public_parameter_is_in_the_key():
    questions = [
        ask_tables(),
        ask_tables(release=2),
        ask_tables(epsilon=2),
        ask_tables(delta="1e-7"),
        ask_tables(REPLACE),
        ask_tables(DECLARED),
        ask_tables(PERSON),
        ask_tables(SPEC + PAIR),
        ask_tables(SPEC + PAIR.replace("weight: 3", "weight: 2")),
        ask_tables(SPEC[: SPEC.index("  - name: thresholds")]),
        ask_tables(SPEC.replace("[0, 5]", "[0, 6]")),
        ask_tables(SPEC.replace("version: 1", "version: 2")),
    ]
    assert len({question.key for question in questions}) == len(questions)
    assert ask_tables().key == ask_tables(SPEC.replace("name: products", "name: other")).key
    assert ask_tables().key == ask_tables(rows=Rows(50, exact=False)).key


RULES = {
    "adaptive/1": {
        "grid": 10,
        "rounds for each attribute": 16,
        "share that measures": (9, 10),
        "costs": [1, 4, 16],
        "penalties": [12, 4, 6, 24, 36, 12, 72],
        "layout": [3, 2, 1024, -1, 2**40],
    }
}


def test_what_a_run_asks_or_commits_changes_only_with_the_tag_in_its_key():
    """Rules that no number of the mechanism tells of: who changes one raises the tag, adds a row.

    The law of a draw is one of them too, and is held by test_table_draws.
    """
    budget = ask_tables().budget
    spent = [budget.round(level, budget.rounds_rho) for level in range(3)]
    round_ = MeasuredRound(3, 2, np.array([1.0, -1 / 1024, 2.0**30]), spent[2])
    assert {
        "grid": GRID_BITS,
        "rounds for each attribute": ROUNDS_PER_ATTRIBUTE,
        "share that measures": MEASURED_SHARE.as_integer_ratio(),
        "costs": [each.rho / budget.unit for each in spent],
        "penalties": penalties_of(budget.candidates, 2.5),
        "layout": rounds.encoded_round(round_).tolist(),
    } == RULES[ADAPTIVE_LAYOUT]
