"""A run of RAP is charged once, before the data is read, and goes on from sound parts alone."""

import dataclasses
import math
import re
import sqlite3

import numpy as np
import pytest
from rounds import (
    AT_ONCE,
    DECLARED,
    PERSON,
    REPLACE,
    SPEC,
    TWO,
    Frozen,
    ask,
    measured,
    open_ledger,
    spent_on,
    write_csv,
)

from dpquery.exceptions import BudgetExceededError, DataError, LedgerError, SpecError
from dpquery.measurement import curator
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.ledger.store import MeasurementFile, PartialMeasurement, Store
from dpquery.measurement.rounds import queries
from dpquery.measurement.rounds.budget import GRID_BITS
from dpquery.measurement.rounds.queries import Round, all_places, rounds_of
from dpquery.measurement.rounds.selection import (
    ExactChance,
    differences_of,
    family_sizes,
    squared_move,
)
from dpquery.plan_file.rehearsals import RapSettings, encode_settings

# When it is charged.


def test_a_refused_run_charges_nothing_and_opens_nothing(data, monkeypatch):
    path = open_ledger(data.parent, ask())
    before = spent_on(path)
    monkeypatch.setattr(curator, "tabulate", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(BudgetExceededError):
        measured(data, ask(epsilon=11), path)
    with pytest.raises(DataError):
        measured(write_csv(data, header="age,sex,jobs"), ask(), path)
    monkeypatch.setattr(
        curator, "check_table_sizes", lambda *_: (_ for _ in ()).throw(SpecError("large"))
    )
    with pytest.raises(SpecError):
        measured(data, ask(), path)
    assert spent_on(path) == before


def test_the_charge_is_durable_before_the_data_is_read(data, monkeypatch):
    question = ask()
    path = open_ledger(data.parent, question)
    seen = []

    def reading(*arguments, **named):
        seen.append(spent_on(path))
        return tabulate(*arguments, **named)

    monkeypatch.setattr(curator, "tabulate", reading)
    measured(data, question, path)
    ((spent, kinds),) = seen
    assert kinds[-1] == "reserve"
    assert spent == math.ceil(question.guarantee.amount * 10**18) == spent_on(path)[0]


# Once, and only once.


@pytest.mark.parametrize("settings", [TWO, AT_ONCE])
def test_the_same_run_is_free_the_second_time_and_does_not_open_the_data(data, settings):
    question = ask(settings)
    path = open_ledger(data.parent, question)
    first = measured(data, question, path)
    before = spent_on(path)
    data.unlink()
    again = measured(data, ask(settings, project=lambda _: pytest.fail("projected")), path)
    np.testing.assert_array_equal(first.values, again.values)
    assert spent_on(path) == before
    assert first.source == again.source
    assert re.fullmatch(r"OpenDP [0-9.]+(, and dpquery [0-9.]+ to select)?", again.source)
    assert ("to select" in again.source) == settings.adaptive


class Crashing(Frozen):
    """Falls over when it is told of a round, until there are no falls left."""

    def __init__(self, total, workload, falls, heard):
        super().__init__(total, workload)
        self.falls, self.heard = falls, heard

    def add(self, places, noisy, std):
        super().add(places, noisy, std)
        if self.falls:
            self.falls.pop()
            raise RuntimeError("the fit failed")


def test_a_run_whose_projection_fails_goes_on_from_its_round_at_no_charge(data):
    falls, runs = [1, 1, 1], []

    def project(total):
        runs.append([total])
        return Crashing(total, question.compiled.workload, falls, runs[-1])

    question = ask(RapSettings(3, 2, 10, 0), project=project)
    path = open_ledger(data.parent, question)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="the fit failed"):
            measured(data, question, path)
    done = measured(data, question, path)
    spent, kinds = spent_on(path)
    assert spent == math.ceil(question.guarantee.amount * 10**18)
    assert kinds == ["register", "reserve", "retry", "retry", "retry", "commit"]
    # All four runs heard the same total and rounds, as far as they came.
    outcome = rounds_of(question, done.values)
    whole = [outcome.total, *((r.places.tolist(), r.noisy.tolist(), r.std) for r in outcome.rounds)]
    assert [len(run) for run in runs] == [2, 2, 2, 3]  # the last round decides nothing more here
    assert all(run == whole[: len(run)] for run in runs)
    assert not list(path.with_name("ledger.db.measurements").iterdir())


def test_a_run_is_committed_once_its_last_round_is_measured_whatever_its_fit_would_do(data):
    def project(total):
        return Crashing(total, question.compiled.workload, [1], [])

    question = ask(AT_ONCE, project=project)
    path = open_ledger(data.parent, question)
    measured(data, question, path)
    assert spent_on(path)[1] == ["register", "reserve", "commit"]


def flipped(bit):
    def flip(content):
        at = bit % (8 * len(content))
        return (int.from_bytes(content, "little") ^ 1 << at).to_bytes(len(content), "little")

    return flip


def begun(data):
    """A question whose run fell over after its first round, and its two parts."""
    falls = [1]
    question = ask(project=lambda total: Crashing(total, question.compiled.workload, falls, []))
    path = open_ledger(data.parent, question)
    with pytest.raises(RuntimeError):
        measured(data, question, path)
    total, part = sorted(path.with_name("ledger.db.measurements").iterdir())
    return question, path, total, part


def refused_and_given_up(data, question, path, monkeypatch):
    monkeypatch.setattr(ExactChance, "add_noise", lambda *_, **__: pytest.fail("drawn"))
    with pytest.raises(LedgerError, match="ledger abandon"):
        measured(data, question, path)
    with Ledger.open(path, create=False) as ledger:
        ledger.abandon(question.key)
    assert not list(path.with_name("ledger.db.measurements").iterdir())


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
    other = ask(release=2, project=question.project)
    with pytest.raises(RuntimeError):  # it falls over before its first round is fitted
        measured(
            data,
            dataclasses.replace(other, project=lambda _: (_ for _ in ()).throw(RuntimeError)),
            path,
        )
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


@pytest.mark.parametrize("values", [[1, 2], [-5, 1, 2, 0, 0, 0], [72, 1, 2, 0, 0, 0], [1] * 6])
def test_a_sealed_part_that_no_run_of_this_question_could_have_is_refused(
    data, monkeypatch, values
):
    question, path, _, _ = begun(data)
    with Ledger.open(path, create=False) as ledger, ledger.hold(question.key):
        draft = ledger.draft(question.key)
        total = draft.parts()[0]
        draft.clear()
        draft.append(total)
        draft.append(np.array(values))
    refused_and_given_up(data, question, path, monkeypatch)


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


def test_a_run_that_fails_four_times_is_given_up_and_leaves_no_parts(data):
    question = ask(project=lambda _: (_ for _ in ()).throw(RuntimeError("no fit")))
    path = open_ledger(data.parent, question)
    for _ in range(4):
        with pytest.raises(RuntimeError):
            measured(data, question, path)
    with pytest.raises(BudgetExceededError, match="never finished"):
        measured(data, question, path)
    folder = path.with_name("ledger.db.measurements")
    assert len(list(folder.iterdir())) == 1
    with Ledger.open(path, create=False) as ledger:
        ledger.abandon(question.key)
    assert not list(folder.iterdir())


def test_a_run_that_could_not_be_given_up_keeps_its_parts(data, monkeypatch):
    question = ask(project=lambda _: (_ for _ in ()).throw(RuntimeError("no fit")))
    path = open_ledger(data.parent, question)
    with pytest.raises(RuntimeError):
        measured(data, question, path)
    (part,) = path.with_name("ledger.db.measurements").iterdir()
    before = part.read_bytes()
    full = sqlite3.OperationalError("disk full")
    with monkeypatch.context() as patched, Ledger.open(path, create=False) as ledger:
        patched.setattr(Store, "append", lambda *_: (_ for _ in ()).throw(full))
        with pytest.raises(LedgerError):
            ledger.abandon(question.key)
    assert part.read_bytes() == before
    assert spent_on(path)[1] == ["register", "reserve"]


def test_parts_that_a_run_killed_after_its_commit_left_are_removed_by_the_next(data, monkeypatch):
    question = ask()
    path = open_ledger(data.parent, question)
    with monkeypatch.context() as patch:
        patch.setattr(PartialMeasurement, "clear", lambda _: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            measured(data, question, path)
    folder = path.with_name("ledger.db.measurements")
    assert len(list(folder.iterdir())) == 3
    measured(data, question, path)
    assert not list(folder.iterdir())


def test_every_public_parameter_is_in_the_key():
    questions = [
        ask(),
        ask(release=2),
        ask(epsilon=2),
        ask(delta="1e-7"),
        ask(AT_ONCE),
        *(ask(dataclasses.replace(TWO, **{name: 1})) for name in encode_settings(TWO)),
        ask(spec=REPLACE),
        ask(spec=DECLARED),
        ask(spec=PERSON),
        ask(spec=SPEC.replace("r: 2", "r: 1")),
        ask(spec=SPEC.replace("ways: 2", "ways: 1")),
        ask(spec=SPEC.replace("[0, 5]", "[0, 6]")),
        ask(spec=SPEC.replace("version: 1", "version: 2")),
    ]
    assert len({question.key for question in questions}) == len(questions)
    assert ask().key == ask(spec=SPEC.replace("name: products", "name: other")).key
    assert ask().key == ask(spec=SPEC.replace("version: 1}", "version: 1, rows: about 50}")).key


RULES = {
    "rap/1": {
        "grid": 10,
        "drawn among counts too high": [(0, 1, 0, 1), (0, 1, 1, 1)],
        "differences": [0, -2, -2, 0, 2],
        "families": [2, 1],
        "moves": [3, 2, 18],
        "layout": [0, 3, 71, 1024, -1, 2**40],
    }
}


def test_what_a_run_asks_or_commits_changes_only_with_the_tag_in_its_key():
    """Rules that no number of the mechanism tells of: who changes one raises the tag, adds a row.

    The law of a selection is one of them too, and is held by test_selection.
    """
    workload = ask().compiled.workload
    places = all_places(workload)[[0, 3, 71]]
    mechanism = ask(RapSettings(4, 3, 10, 0)).mechanism
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5])
    round_ = Round(places, np.array([1.0, -1 / 1024, 2.0**30]), 1.0)
    sizes = family_sizes(workload, places)
    sided = [ask(RapSettings(4, k, 10, 0)).mechanism for k in (2, 3)]
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
        "layout": queries._encoded(round_, workload, mechanism).tolist(),
    } == RULES[queries.LAYOUT]
