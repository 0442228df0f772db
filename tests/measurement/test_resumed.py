"""A run of rounds is charged once, before the data is read, and goes on from sound parts alone."""

import re
import sqlite3

import numpy as np
import pytest
from rounds import (
    AT_ONCE,
    SPEC,
    TWO,
    Frozen,
    Guess,
    ask,
    ask_tables,
    measured,
    open_ledger,
    spent_on,
)

from dpquery.exceptions import LedgerError
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import MeasurementFile, PartialMeasurement, Store
from dpquery.measurement.rounds.chance import ExactChance, differences_of
from dpquery.measurement.rounds.queries import all_places, family_sizes, squared_move
from dpquery.measurement.rounds.run import GRID_BITS, Round
from dpquery.measurement.rounds.tables import (
    CLOSING_SHARE,
    MEASURED_SHARE,
    ROUNDS_PER_ATTRIBUTE,
    penalties_of,
    steps_apart,
)
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.spec.spec import Rows


def raising(error):
    """A function that does nothing else."""

    def fail(*_, **__):
        raise error

    return fail


def nothing(said):
    """A function that must not be called."""
    return lambda *_, **__: pytest.fail(said)


def parts_in(path):
    """The files of a run that is not at its end."""
    return sorted(path.with_name("ledger.db.measurements").iterdir())


# The same question with a public side of its own, for each mechanism.
ASKED = {
    "RAP": lambda public=None: ask(project=public),
    "RAP, at once": lambda public=None: ask(AT_ONCE, project=public),
    "adaptive": lambda public=None: ask_tables(start=public),
}
each_mechanism = pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)


@each_mechanism
def test_the_same_run_is_free_the_second_time_and_does_not_open_the_data(data, asked):
    question = asked()
    path = open_ledger(data.parent, question)
    first = measured(data, question, path)
    before = spent_on(path)
    assert not parts_in(path)
    data.unlink()
    again = measured(data, asked(nothing("fitted")), path)
    np.testing.assert_array_equal(first.values, again.values)
    assert spent_on(path) == before
    assert first.source == again.source
    assert re.fullmatch(r"OpenDP [0-9.]+(, and dpquery [0-9.]+ to select)?", again.source)
    assert ("to select" in again.source) == (asked is not ASKED["RAP, at once"])


def test_a_source_is_named_by_how_many_numbers_are_drawn_at_a_time(monkeypatch):
    monkeypatch.setattr("dpquery.measurement.noise.exact_noise.BULK_ABOVE", TWO.selected)
    assert ask().source().startswith("OpenDP ")
    assert ask(AT_ONCE).source().startswith("the bulk sampler of dpquery ")


@each_mechanism
def test_parts_that_a_run_killed_after_its_commit_left_are_removed_by_the_next(
    data, monkeypatch, asked
):
    question = asked()
    path = open_ledger(data.parent, question)
    with monkeypatch.context() as patch:
        patch.setattr(PartialMeasurement, "clear", nothing("killed"))
        with pytest.raises(pytest.fail.Exception):
            measured(data, question, path)
    assert parts_in(path)
    measured(data, question, path)
    assert not parts_in(path)


class Crashing(Frozen):
    """Falls over when it is told of a round, until there are no falls left."""

    def __init__(self, total, workload, falls):
        super().__init__(total, workload)
        self.falls, self.heard = falls, [total]

    def add(self, measured):
        super().add(measured)
        if self.falls:
            self.falls.pop()
            raise RuntimeError("the fit failed")


class CrashingTables(Guess):
    """Falls over when it is told of a table, until there are no falls left."""

    def __init__(self, run, falls):
        super().__init__(ask_tables().rounds, run, restless=10**6)
        self.falls = falls

    def add(self, measured):
        super().add(measured)
        if self.falls and self.falls[0] == len(self.heard) - 3:
            self.falls.pop(0)
            raise RuntimeError("the fit failed")


def test_a_run_is_committed_once_its_last_round_is_measured_whatever_its_fit_would_do(data):
    question = ask(AT_ONCE, project=lambda total: Crashing(total, question.compiled.workload, [1]))
    path = open_ledger(data.parent, question)
    measured(data, question, path)
    assert spent_on(path)[1] == ["register", "reserve", "commit"]


def test_a_run_that_was_measured_whole_is_committed_without_a_fit(data, monkeypatch):
    question = ask_tables()
    path = open_ledger(data.parent, question)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", nothing("killed"))
        with pytest.raises(pytest.fail.Exception):
            measured(data, question, path)
    monkeypatch.setattr(ExactChance, "add_noise", nothing("drawn"))
    measured(data, ask_tables(start=nothing("fitted")), path)
    assert spent_on(path)[1] == ["register", "reserve", "retry", "commit"]


def test_the_levels_of_earlier_rounds_are_taken_from_what_was_committed(data):
    """A fit that says otherwise today, on another machine say, spends nothing anew."""
    question = ask_tables(start=lambda given: CrashingTables(given, [5]))
    path = open_ledger(data.parent, question)
    with pytest.raises(RuntimeError):
        measured(data, question, path)
    still = ask_tables()  # every level would rise
    assert still.key == question.key
    outcome = still.rounds.measured(measured(data, still, path).values)
    levels = [each.level for each in outcome.rounds]
    assert levels[:5] == [0] * 5
    assert levels[5:] == list(range(1, len(levels) - 4))
    spent = question.rounds.first_rho + sum(each.spent.rho for each in outcome.rounds)
    assert spent + question.rounds.closing_rho == question.guarantee.amount


def flipped(bit):
    def flip(content):
        at = bit % (8 * len(content))
        return (int.from_bytes(content, "little") ^ 1 << at).to_bytes(len(content), "little")

    return flip


def begun(data):
    """A question whose run fell over after its first round, and its two parts."""
    question = ask(project=lambda total: Crashing(total, question.compiled.workload, [1]))
    path = open_ledger(data.parent, question)
    with pytest.raises(RuntimeError):
        measured(data, question, path)
    return question, path, *parts_in(path)


def refused_and_given_up(data, question, path, monkeypatch):
    monkeypatch.setattr(ExactChance, "add_noise", nothing("drawn"))
    with pytest.raises(LedgerError, match="ledger abandon"):
        measured(data, question, path)
    with Ledger.open(path, create=False) as ledger:
        ledger.abandon(question.key)
    assert not parts_in(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content * 2,
        lambda content: content[:-3],
        lambda content: content[:-8],
        lambda content: content[8:],
        lambda _: b"",
        lambda content: bytes(len(content)),
        flipped(0),
        flipped(8 * 17 + 5),
        flipped(-1),
    ],
)
def test_a_run_whose_parts_were_damaged_says_so_draws_nothing_and_can_be_given_up(
    data, monkeypatch, damage, record_property
):
    question, path, _, part = begun(data)
    part.write_bytes(damage(part.read_bytes()))
    refused_and_given_up(data, question, path, monkeypatch)
    record_property("bad inputs", 1)


def test_a_part_of_another_run_or_of_another_place_is_refused(data, monkeypatch, record_property):
    question, path, total, part = begun(data)
    # It falls over before its first round is fitted.
    other = ask(release=2, project=raising(RuntimeError()))
    with pytest.raises(RuntimeError):
        measured(data, other, path)
    (foreign,) = set(part.parent.iterdir()) - {total, part}
    kept = {path: path.read_bytes() for path in (total, part)}
    part.unlink()  # so that its own chain does not give the other total away
    total.write_bytes(foreign.read_bytes())
    with pytest.raises(LedgerError, match="ledger abandon"):
        measured(data, question, path)
    total.write_bytes(kept[total])
    part.write_bytes(kept[total])
    with pytest.raises(LedgerError, match="ledger abandon"):
        measured(data, question, path)
    part.write_bytes(kept[part])
    foreign.unlink()
    total.write_bytes(kept[total][::-1])
    refused_and_given_up(data, question, path, monkeypatch)
    record_property("bad inputs", 3)


def with_parts(question, path, parts):
    """Put other parts, soundly sealed, in the place of those that are there."""
    with Ledger.open(path, create=False) as ledger, ledger.hold(question.key):
        draft = ledger.draft(question.key)
        draft.parts()
        draft.clear()
        for part in parts:
            draft.append(np.asarray(part))


def sealed_parts(question, path):
    """The parts of a run that is not at its end."""
    with Ledger.open(path, create=False) as ledger, ledger.hold(question.key):
        return ledger.draft(question.key).parts()


@pytest.mark.parametrize("values", [[1, 2], [-5, 1, 2, 0, 0, 0], [72, 1, 2, 0, 0, 0], [1] * 6])
def test_a_sealed_part_that_no_run_of_this_question_could_have_is_refused(
    data, monkeypatch, values
):
    question, path, _, _ = begun(data)
    with_parts(question, path, [sealed_parts(question, path)[0], values])
    refused_and_given_up(data, question, path, monkeypatch)


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
    falling = [[third[0], level, *third[2:]] for level in (1, 0)]
    yield "a level that falls", [first, second, *falling]
    rising = [[third[0], level, *third[2:]] for level in range(9)]
    yield "a round after the last", [first, *rising]


def test_parts_that_no_run_could_have_are_refused_draw_nothing_and_can_be_given_up(
    data, monkeypatch, record_property
):
    question = ask_tables(start=lambda given: CrashingTables(given, [2]))
    path = open_ledger(data.parent, question)
    with pytest.raises(RuntimeError):
        measured(data, question, path)
    bad = list(damaged(sealed_parts(question, path)))
    for _, given in bad:
        with_parts(question, path, given)
        with Ledger.open(path, create=False) as ledger, ledger.hold(question.key):
            draft = ledger.draft(question.key)
            with pytest.raises(LedgerError, match="ledger abandon"):
                question._parts(draft)
    refused_and_given_up(data, question, path, monkeypatch)
    record_property("bad inputs", len(bad))


def test_committed_values_that_do_not_spend_the_charge_exactly_are_refused(data, record_property):
    question = ask_tables()
    values = measured(data, question).values.tolist()
    outcome = question.rounds.measured(np.array(values))
    sizes = question.rounds.candidates.sizes
    ends = 11 + np.cumsum([2 + sizes[each.chosen[0]] for each in outcome.rounds])
    bad = [values[: int(end)] for end in ends[:-1]]  # rounds left out
    bad += [values[:11], values[:5], [], [*values, 0], values + values[ends[-2] :], values[1:]]
    bad += [[*values[:11], number, *values[12:]] for number in (-1, 7, 2**62)]
    bad += [[*values[:12], level, *values[13:]] for level in (-1, 1, 2**62)]
    for given in bad:
        with pytest.raises(ValueError, match=r"."):
            question.rounds.measured(np.array(given, dtype=np.int64))
    record_property("bad inputs", len(bad))


def test_a_draft_that_is_cleared_in_part_has_lost_its_last_parts(data, monkeypatch):
    """Without the first ones the run would begin anew, and meet what an earlier one drew."""
    question, path, _, _ = begun(data)
    with Ledger.open(path, create=False) as ledger, ledger.hold(question.key):
        draft = ledger.draft(question.key)
        parts = draft.parts()
        draft.append(np.arange(3))
        removed, real = [], MeasurementFile.remove

        def killed(file):
            if removed:
                raise KeyboardInterrupt
            removed.append(file)
            real(file)

        with monkeypatch.context() as patch:
            patch.setattr(MeasurementFile, "remove", killed)
            with pytest.raises(KeyboardInterrupt):
                draft.clear()
        left = ledger.draft(question.key).parts()
        assert [part.tolist() for part in left] == [part.tolist() for part in parts]


def test_a_run_that_could_not_be_given_up_keeps_its_parts(data, monkeypatch):
    question = ask(project=raising(RuntimeError("no fit")))
    path = open_ledger(data.parent, question)
    with pytest.raises(RuntimeError):
        measured(data, question, path)
    (part,) = parts_in(path)
    before = part.read_bytes()
    full = sqlite3.OperationalError("disk full")
    with monkeypatch.context() as patched, Ledger.open(path, create=False) as ledger:
        patched.setattr(Store, "append", raising(full))
        with pytest.raises(LedgerError):
            ledger.abandon(question.key)
    assert part.read_bytes() == before
    assert spent_on(path)[1] == ["register", "reserve"]


@pytest.mark.parametrize("asked", [ask, ask_tables])
def test_names_of_items_are_in_no_key_and_declared_rows_where_a_run_relies_on_them(asked):
    assert asked().key == asked(spec=SPEC.replace("name: products", "name: other")).key
    declared = asked(spec=SPEC.replace("version: 1}", "version: 1, rows: about 50}"))
    assert declared.key == asked(rows=Rows(50, exact=False)).key
    assert (declared.key == asked().key) == (asked is ask)  # adaptive runs share rho out by it


RULES = {
    "rap/1": {
        "grid": 10,
        "drawn among counts too high": [(0, 1, 0, 1), (0, 1, 1, 1)],
        "differences": [0, -2, -2, 0, 2],
        "families": [2, 1],
        "moves": [3, 2, 18],
        "layout": [0, 3, 71, 1024, -1, 2**40],
    },
    "adaptive/1": {
        "grid": 10,
        "rounds for each attribute": 16,
        "share that measures": (9, 10),
        "costs": [1, 4, 16],
        "penalties": [12, 4, 6, 24, 36, 12, 72],
        "layout": [3, 2, 1024, -1, 2**40],
    },
}

RULES["adaptive/2"] = RULES["adaptive/1"]  # another release is made of the same run
RULES["adaptive/3"] = RULES["adaptive/2"] | {"closing": (1, 50), "apart": 4 + 1024}
RULES["adaptive/4"] = RULES["adaptive/3"] | {"rounds of one-way tables": [16, 8, 1]}
RULES["adaptive/5"] = RULES["adaptive/4"] | {"errors of an item": 2}


def test_what_a_run_of_rap_asks_or_commits_changes_only_with_the_tag_in_its_key():
    """Rules that no number of the mechanism tells of: who changes one raises the tag, adds a row.

    The law of a selection is one of them too, and so is that of a draw: test_selection holds both.
    """
    places = all_places(ask().compiled.workload)[[0, 3, 71]]
    rounds = ask(RapSettings(4, 3, 10, 0)).rounds
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5])
    sizes = family_sizes(rounds.workload, places)
    sided = [ask(RapSettings(4, k, 10, 0)).rounds for k in (2, 3)]
    assert {
        "grid": GRID_BITS,
        "drawn among counts too high": [
            tuple(query.sides(number)[1][1] for number in range(4)) for query in sided
        ],
        "differences": differences_of(np.zeros(5, dtype=np.int64), halves).tolist(),
        "families": sizes,
        "moves": [
            squared_move(sizes, replace=True, records=1),
            squared_move(sizes, replace=False, records=1),
            squared_move(sizes[:1], replace=True, records=3),
        ],
        "layout": rounds.written(round_of(places, 0)).tolist(),
    } == RULES[rounds.layout]


def test_what_an_adaptive_run_asks_or_commits_changes_only_with_the_tag_in_its_key():
    rounds = ask_tables().rounds
    spent = [rounds.round(level, rounds.rounds_rho) for level in range(3)]
    assert {
        "grid": GRID_BITS,
        "rounds for each attribute": ROUNDS_PER_ATTRIBUTE,
        "share that measures": MEASURED_SHARE.as_integer_ratio(),
        "costs": [each.rho / rounds.unit for each in spent],
        "penalties": penalties_of(rounds.candidates, 2.5),
        "layout": rounds.written(round_of(np.array([3]), 2)).tolist(),
        "closing": CLOSING_SHARE.as_integer_ratio(),
        "rounds of one-way tables": [
            ask_tables(rows=Rows(count, exact=False)).rounds.one_way_rounds
            for count in (50, 1000, 50_000)
        ],
        "apart": steps_apart(np.array([0, 3]), np.array([0.0036, 2.0])).sum(),
        "errors of an item": rounds.item_errors,
    } == RULES[rounds.layout]


def round_of(chosen, level):
    """A round whose counts are of different sizes."""
    return Round(chosen, level, np.array([1.0, -1 / 1024, 2.0**30]), 1.0, spent=None)
