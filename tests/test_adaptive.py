"""A run of RAP is one charged question: its parts add up, its rounds are drawn once, nothing leaks.

The public side is a frozen one here: whatever it answers, these promises must hold.
"""

import dataclasses
import inspect
import math
import re
import sqlite3
from contextlib import nullcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from adaptive_support import AT_ONCE, ROWS, SPEC, TWO, Frozen, ask, open_ledger, write_csv

from dpquery.exceptions import (
    BudgetExceededError,
    DataError,
    DpqueryError,
    LedgerError,
    SpecError,
    UnsupportedWorkloadError,
)
from dpquery.measurement import adaptive, curator
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.adaptive import (
    AdaptiveQuery,
    Round,
    all_places,
    offsets,
    rounds_of,
    run_rounds,
)
from dpquery.measurement.disjoint import family_sizes, squared_move
from dpquery.measurement.ledger import Ledger
from dpquery.measurement.ledger_draft import Draft
from dpquery.measurement.ledger_store import Store
from dpquery.measurement.rap_mechanism import GRID_BITS, STEPS
from dpquery.measurement.selection import ExactChance, differences_of
from dpquery.measurement.tabulate import tabulate
from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Dense
from dpquery.spec.model import Rows
from dpquery.strategy.rap import RapSettings, decode_settings, encode_settings

REPLACE = SPEC.replace("add-remove", "replace")
DECLARED = REPLACE.replace("version: 1}", "version: 1, rows: 48}")
PERSON = SPEC.replace("unit: row", "unit: {person: id, max_rows: 3}")
ALL_RANGES = "  - name: spans\n    ranges: {age: all}\n"
WIDE = str(list(range(999)))
MANY = [
    (SPEC, TWO),
    (SPEC, RapSettings(5, 1, 10, 0)),
    (SPEC, AT_ONCE),
    (REPLACE, TWO),
    (REPLACE, AT_ONCE),
    (DECLARED, TWO),
    (PERSON, TWO),
    (PERSON, AT_ONCE),
]


@pytest.fixture
def data(tmp_path):
    return write_csv(tmp_path / "data.csv")


def measured(data, question, path=None):
    path = path or open_ledger(data.parent, question)
    with Ledger.open(path, create=False) as ledger:
        return curator.measure(data, question, ledger=ledger)


def spent_on(path):
    with Ledger.open(path, create=False) as ledger:
        return ledger.status()[0].account.spent, [event.kind for event in ledger.history()]


# What it costs.


@pytest.mark.parametrize(("spec", "settings"), MANY)
def test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction(spec, settings):
    own = ask(settings, spec=spec).mechanism
    whole = own.total_rho + settings.rounds * (own.selection_rho + own.measurement_rho)
    assert whole == own.guarantee.amount
    span = own.records * (2 if own.replace else 1)
    drawn = settings.selected * (own.rate * span) ** 2 / 8
    assert drawn <= own.selection_rho <= drawn * (1 + Fraction(1, 10**9))


def test_a_quarter_is_drawn_among_counts_too_high_where_that_is_sharper():
    own = ask(RapSettings(6, 3, 10, 0)).mechanism
    sides = [own.sides(number) for number in range(6)]
    assert all(under + over == 3 for (_, under), (_, over) in sides)
    assert [over for _, (_, over) in sides] == [0, 1, 1, 1, 0, 1]
    replacing = ask(RapSettings(6, 3, 10, 0), spec=REPLACE).mechanism
    assert replacing.sides(5) == (("either", 3),)
    assert own.rate == pytest.approx(float(2 * replacing.rate), rel=1e-12)


@pytest.mark.parametrize(("spec", "settings"), MANY)
def test_the_noise_of_every_part_costs_its_share_and_no_more(spec, settings):
    question = ask(settings, spec=spec)
    own, workload = question.mechanism, question.compiled.workload
    rng = np.random.default_rng(0)
    parts = [(own.total_rho, own.total_sensitivity, own.total_scale)]
    for _ in range(20):
        size = settings.selected or 1
        numbers = rng.choice(workload.shape[0], size, replace=False)
        move = own.sensitivity(workload, adaptive.all_places(workload)[numbers])
        scale = own.scale(own.measurement_rho, move)
        assert own.std_bounds[0] <= scale / STEPS <= own.std_bounds[1]
        parts.append((own.measurement_rho, move, scale))
    for rho, move, scale in parts[own.total is not None :]:
        cost = move / (2 * Fraction(scale) ** 2)
        assert cost <= rho <= cost * (1 + Fraction(1, 10**9))


def test_a_total_is_measured_unless_records_are_replaced_and_their_number_is_declared():
    assert () in ask(spec=SPEC).subsets
    assert () in ask(spec=REPLACE).subsets
    about = Rows(48, exact=False)
    assert ask(spec=REPLACE, rows=about).mechanism.total is None
    assert ask(spec=SPEC, rows=Rows(48, exact=True)).mechanism.total is None
    question = ask(spec=DECLARED)
    assert question.mechanism.total == 48
    assert (question.mechanism.total_rho, question.mechanism.total_std) == (0, 0)
    assert () not in question.subsets


def test_a_person_pays_for_all_rows():
    row, person = ask(spec=SPEC).mechanism, ask(spec=PERSON).mechanism
    assert person.total_std == pytest.approx(3 * row.total_std, rel=1e-12)
    assert person.std_bounds == pytest.approx([3 * own for own in row.std_bounds], rel=1e-12)
    assert float(row.rate / person.rate) == pytest.approx(3, rel=1e-12)


def test_a_total_takes_as_much_as_one_more_query_and_at_least_a_twentieth():
    for settings, share in ((TWO, Fraction(1, 13)), (RapSettings(4, 16, 10, 0), Fraction(1, 20))):
        own = ask(dataclasses.replace(settings, selected=min(settings.selected, 16))).mechanism
        assert own.total_rho == own.guarantee.amount * share


@pytest.mark.parametrize(("spec", "limit"), [(SPEC, 1), (REPLACE, 1), (PERSON, 3)])
def test_no_neighbour_moves_a_count_or_the_total_by_more_than_declared(tmp_path, spec, limit):
    question = ask(spec=spec)
    replace, person = "replace" in spec, "person" in spec
    header = "age,sex,job,id" if person else "age,sex,job"
    outside = (9, "X", "z")

    def counts(rows):
        file = write_csv(tmp_path / "counted.csv", rows, header)
        tables = tabulate(
            file,
            spec=question.spec,
            subsets=question.subsets,
            classes=question.compiled.classes,
        )
        blocks = question.compiled.workload.blocks
        return np.concatenate(
            [tables[()].reshape(1), *(adaptive._exact(b, tables) for b in blocks)]
        )

    def of(person_id, rows):
        return [(*row, person_id) if person else row for row in rows]

    others = of("p1", ROWS[:3]) + of("p2", ROWS[5:9])
    worst = 0
    records = [of("p0", own) for own in ([ROWS[0]] * 7, ROWS[::9], [outside, ROWS[4]], [])]
    records = records if person else [own[:1] for own in records]
    for before in records:
        for after in records if replace else [[]]:
            moved = counts([*others, *before]) - counts([*others, *after])
            assert replace or (moved >= 0).all()  # which one-sided draws rely on
            worst = max(worst, int(np.abs(moved).max()))
    assert worst == limit


# What is refused, and when.


@pytest.mark.parametrize(
    ("settings", "spec", "epsilon", "error"),
    [
        (RapSettings(100, 100, 10, 0), SPEC, 1, "fewer rounds"),
        (AT_ONCE, SPEC.replace("[0, 5]", "[0, 999999]"), 1, "select some in rounds"),
        (TWO, SPEC, 10**8, "smaller epsilon"),
        (TWO, SPEC.replace("[0, 5]", "[0, 99999]").replace("[a, b, c]", WIDE), 1, "coarser sets"),
        (RapSettings(1, 1, 2**20, 0), SPEC.replace("[0, 5]", "[0, 99]"), 1, "fewer relaxed rows"),
        (
            RapSettings(1, 0, 10_000, 0),
            SPEC.replace("[0, 5]", "[0, 255]") + ALL_RANGES,
            1,
            "name fewer ranges",
        ),
        (RapSettings(1, 4096, 1, 0), SPEC.replace("[0, 5]", "[0, 9999]"), 1, "queries a round"),
    ],
)
def test_a_run_that_cannot_be_made_is_refused_from_public_inputs(settings, spec, epsilon, error):
    with pytest.raises(SpecError, match=error):
        ask(settings, spec=spec, epsilon=epsilon)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {"rounds": 0},
        {"rounds": 1001},
        {"rounds": 2, "selected": 0},
        {"selected": -1},
        {"selected": 4097},
        {"rounds": 1000, "selected": 66},
        {"relaxed_rows": 0},
        {"relaxed_rows": 2**21},
        {"seed": -1},
        {"seed": 2**41},
        {"rounds": True},
        {"rounds": 2.0},
        {"selected": "3"},
        {"seed": None},
    ],
)
def test_hostile_settings_end_in_a_spec_error(raw):
    if isinstance(raw, dict) and raw:
        raw = encode_settings(TWO) | raw
    with pytest.raises(SpecError, match="dpquery plan"):
        decode_settings(raw)


def test_settings_come_back_as_they_were():
    for settings in (TWO, AT_ONCE):
        assert decode_settings(encode_settings(settings)) == settings


def test_a_query_takes_only_the_mechanism_of_its_settings():
    with pytest.raises(ValueError, match="other settings"):
        dataclasses.replace(ask(TWO), settings=AT_ONCE)
    question = ask(TWO)
    pure = guarantee("laplace", epsilon=Fraction(1), delta=Fraction(0))
    workload, privacy = question.compiled.workload, question.spec.privacy
    with pytest.raises(ValueError, match="zCDP"):
        adaptive.design_rap(workload, TWO, privacy=privacy, guarantee=pure, rows=None)


@pytest.mark.parametrize("entries", [[0, 2], [1, -1], [0.5, 1.0], [0, 1]])
def test_queries_that_are_no_counts_are_refused_as_what_they_are(entries):
    factor = Dense(np.array([entries]))
    workload = Workload((2,), (product((2,), {0: factor}),) * 2, (1.0, 1.0))
    question = ask()
    counts = entries == [0, 1]
    with nullcontext() if counts else pytest.raises(UnsupportedWorkloadError, match="0 and 1"):
        adaptive.design_rap(
            workload,
            RapSettings(1, 1, 10, 0),
            privacy=question.spec.privacy,
            guarantee=question.guarantee,
            rows=None,
        )


def test_a_refused_run_charges_nothing_and_opens_nothing(data, monkeypatch):
    path = open_ledger(data.parent, ask())
    before = spent_on(path)
    monkeypatch.setattr(curator, "tabulate", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(BudgetExceededError):
        measured(data, ask(epsilon=11), path)
    with pytest.raises(DataError):
        measured(write_csv(data, header="age,sex,jobs"), ask(), path)
    monkeypatch.setattr(curator, "check_size", lambda *_: (_ for _ in ()).throw(SpecError("large")))
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
    told = rounds_of(question, done.values)
    whole = [told.total, *((r.places.tolist(), r.noisy.tolist(), r.std) for r in told.rounds)]
    assert [len(own) for own in runs] == [2, 2, 2, 3]  # the last round decides nothing more here
    assert all(own == whole[: len(own)] for own in runs)
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
    kept = {own: own.read_bytes() for own in (total, part)}
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
        patch.setattr(Draft, "clear", lambda _: pytest.fail("killed"))
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
    assert len({own.key for own in questions}) == len(questions)
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
            tuple(own.sides(number)[1][1] for number in range(4)) for own in sided
        ],
        "differences": differences_of(np.zeros(5, dtype=np.int64), halves).tolist(),
        "families": sizes,
        "moves": [
            squared_move(sizes, replace=True, records=1),
            squared_move(sizes, replace=False, records=1),
            squared_move(sizes[:1], replace=True, records=3),
        ],
        "layout": adaptive._encoded(round_, workload, mechanism).tolist(),
    } == RULES[adaptive.LAYOUT]


# What chance decides, and who decides on chance.


def test_nobody_can_hand_the_curator_another_chance(data, monkeypatch):
    takers = [curator.measure, AdaptiveQuery, AdaptiveQuery.noisy, curator.Query]
    for taker in takers:
        given = inspect.signature(taker).parameters.values()
        assert not [own for own in given if "chance" in f"{own.name} {own.annotation}".lower()]
    used = []
    monkeypatch.setattr(
        adaptive,
        "run_rounds",
        lambda *arguments, chance, **named: (
            used.append(chance) or run_rounds(*arguments, chance=chance, **named)
        ),
    )
    measured(data, ask())
    assert [type(own) for own in used] == [ExactChance]
    assert used == [ExactChance()]


def exact_answers_of(data, question):
    tables = tabulate(
        data, spec=question.spec, subsets=question.subsets, classes=question.compiled.classes
    )
    return lambda position: adaptive._exact(question.compiled.workload.blocks[position], tables)


def test_rounds_never_select_a_query_twice_and_stop_when_they_were_to(data):
    question = ask(RapSettings(6, 12, 10, 0))
    own = rounds_of(question, measured(data, question).values)
    places = np.concatenate([made.places for made in own.rounds])
    assert len(own.rounds) == 6
    assert len({tuple(place) for place in places.tolist()}) == 72 == question.spec.queries


@pytest.mark.statistical
def test_the_noise_of_a_round_is_as_wide_as_it_is_said_to_be(data):
    question = ask(RapSettings(1, 36, 10, 0), spec=DECLARED)
    answers = exact_answers_of(data, question)
    residuals = []
    for _ in range(100):
        (made,) = run_rounds(
            answers,
            workload=question.compiled.workload,
            mechanism=question.mechanism,
            projection=Frozen(48.0, question.compiled.workload),
            chance=ExactChance(),
        )
        true = np.array([answers(block)[row] for block, row in made.places.tolist()])
        residuals.append((made.noisy - true) / made.std)
    squares = float((np.concatenate(residuals) ** 2).sum())
    size = 36 * 100
    # Six standard deviations of a chi-square; noise a fifth wider or narrower is beyond them.
    for factor in (1 / 1.2, 1, 1.2):
        off = abs(factor**2 * squares / size - 1)
        assert (off < 6 * math.sqrt(2 / size)) == (factor == 1)


def test_every_round_is_drawn_at_the_scale_of_all_its_queries(data, monkeypatch):
    real, drawn = ExactChance.add_noise, []

    def looking(chance, answers, **named):
        drawn.append((len(answers), named["scale"] / STEPS))
        return real(chance, answers, **named)

    monkeypatch.setattr(ExactChance, "add_noise", looking)
    question = ask(RapSettings(3, 6, 10, 0))
    own = rounds_of(question, measured(data, question).values)
    assert drawn == [(1, own.total_std), *((6, made.std) for made in own.rounds)]
    assert max(made.std for made in own.rounds) > question.mechanism.std_bounds[0]


# What can be seen.


def test_a_committed_vector_is_laid_out_as_documented(data):
    question = ask(TWO)
    values = measured(data, question).values
    assert values.dtype == np.int64
    assert len(values) == 1 + 2 * 2 * 3
    own, starts = rounds_of(question, values), offsets(question.compiled.workload)
    assert own.total == max(1, values[0] / STEPS)
    for made, first in zip(own.rounds, (1, 7), strict=True):
        numbers = starts[made.places[:, 0]] + made.places[:, 1]
        assert numbers.tolist() == values[first : first + 3].tolist()
        assert (made.noisy * STEPS).tolist() == values[first + 3 : first + 6].tolist()
    with pytest.raises(ValueError, match="not the values"):
        rounds_of(question, values[:-1])
    at_once = ask(AT_ONCE)
    own = rounds_of(at_once, measured(data, at_once).values)
    flat = [tuple(place) for place in own.rounds[0].places.tolist()]
    assert len(flat) == 72
    assert all(before < after for before, after in pairwise(flat))


def remembering(made):
    """A maker of frozen projections that keeps them."""

    def project(total):
        made.append(Frozen(total, ask().compiled.workload))
        return made[-1]

    return project


CANARY = "CANARY_9f3a71"


class FixedChance(ExactChance):
    """Noise that hides everything."""

    def add_noise(self, answers, **_):
        return np.full(answers.size, 7 * STEPS)


def fixed_selection(differences, *, sides, taken, **_):
    """A selection that looks at the data and hides everything."""
    differences(0)
    return np.array([[0, len(taken) + k] for k in range(sum(size for _, size in sides))])


def test_nothing_but_noisy_values_reaches_the_projection_the_ledger_or_the_screen(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(adaptive, "ExactChance", FixedChance)
    monkeypatch.setattr(adaptive, "select", fixed_selection)
    runs = []
    for name, rows in {"a": ROWS, "b": ROWS[:2], "c": [(CANARY,) * 3] * 9, "d": []}.items():
        projections, said = [], []
        folder = tmp_path / name
        folder.mkdir()
        question = ask(project=remembering(projections))
        path = open_ledger(folder, question)
        with Ledger.open(path, create=False) as ledger:
            data = write_csv(folder / "data.csv", rows)
            done = curator.measure(data, question, ledger=ledger, progress=said.append)
            exported = list(ledger.export())
        said = [own for own in said if not own.startswith("reading the data")]
        files = sorted(own for own in (folder / "state").rglob("*") if own.is_file())
        assert not [own for own in files if CANARY.encode() in own.read_bytes()]
        (seen,) = projections
        names = [own.name for own in files]
        runs.append((done.values.tolist(), seen.heard, said, exported, names))
    assert all(own == runs[0] for own in runs)
    assert capfd.readouterr() == ("", "")


def test_an_answer_that_is_too_large_is_refused_without_a_number(data, monkeypatch):
    def huge(*_, subsets, **__):
        return {own: np.full((1,) * len(own), 2**40) for own in subsets}

    monkeypatch.setattr(curator, "tabulate", huge)
    monkeypatch.setattr(adaptive, "noisy_total", lambda *_: np.array([5 * STEPS]))
    with pytest.raises(DpqueryError) as caught:
        measured(data, ask())
    assert str(2**40) not in str(caught.value)
    assert caught.value.__cause__ is None
