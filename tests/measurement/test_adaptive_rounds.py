"""No caller decides on the chance of a round; its noise costs its share, and hides all else."""

import dataclasses
import inspect
import math
from contextlib import nullcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from rounds import (
    AT_ONCE,
    DECLARED,
    PERSON,
    REPLACE,
    ROWS,
    SPEC,
    TWO,
    Frozen,
    ask,
    ask_tables,
    measured,
    open_ledger,
    write_csv,
)

from dpquery.exceptions import DpqueryError, SpecError, UnsupportedWorkloadError
from dpquery.measurement import curator
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.rounds import queries, query
from dpquery.measurement.rounds.chance import ExactChance
from dpquery.measurement.rounds.queries import RapRounds, offsets, rap_rounds
from dpquery.measurement.rounds.run import STEPS, run_rounds
from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Dense
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.progress import reporting
from dpquery.spec.spec import Rows
from dpquery.untrusted.json_values import as_json, record

# What chance decides, and who decides on chance.


@pytest.mark.parametrize("asked", [ask, ask_tables])
def test_nobody_can_hand_the_curator_another_chance(data, monkeypatch, asked):
    question = asked()
    for taker in (curator.measure, curator.LinearQuery, type(question), type(question).noisy):
        given = inspect.signature(taker).parameters.values()
        assert not [each for each in given if "chance" in f"{each.name} {each.annotation}".lower()]
    real, used = query.run_rounds, []

    def looking(*arguments, chance, **named):
        used.append(chance)
        return real(*arguments, chance=chance, **named)

    monkeypatch.setattr(query, "run_rounds", looking)
    measured(data, question)
    assert [type(chance) for chance in used] == [ExactChance]
    assert used == [ExactChance()]


def exact_answers_of(data, question):
    tables = tabulate(
        data, spec=question.spec, subsets=question.subsets, classes=question.compiled.classes
    )
    return query._exact(tables)


def test_rounds_never_select_a_query_twice_and_stop_when_they_were_to(data):
    question = ask(RapSettings(6, 12, 10, 0))
    outcome = question.rounds.measured(measured(data, question).values)
    places = np.concatenate([one_round.chosen for one_round in outcome.rounds])
    assert len(outcome.rounds) == 6
    assert len({tuple(place) for place in places.tolist()}) == 72 == question.spec.queries


@pytest.mark.statistical
def test_the_noise_of_a_round_is_as_wide_as_it_is_said_to_be(data):
    question = ask(RapSettings(1, 36, 10, 0), spec=DECLARED)
    answers = exact_answers_of(data, question)
    residuals = []
    for _ in range(100):
        fit = Frozen(48.0, question.compiled.workload)
        (only_round,) = run_rounds(question.rounds, answers, fit=fit, chance=ExactChance())
        true = question.rounds.answers(answers, only_round.chosen)
        residuals.append((only_round.noisy - true) / only_round.std)
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
    outcome = question.rounds.measured(measured(data, question).values)
    assert drawn == [(1, outcome.total_std), *((6, one_round.std) for one_round in outcome.rounds)]
    assert max(one_round.std for one_round in outcome.rounds) > question.rounds.std_bounds[0]


@pytest.mark.parametrize("spec", [SPEC, DECLARED])
def test_a_committed_vector_is_laid_out_as_documented(data, spec):
    question = ask(TWO, spec=spec)
    values = measured(data, question).values
    assert values.dtype == np.int64
    assert len(values) == 1 + 2 * 2 * 3
    outcome, starts = question.rounds.measured(values), offsets(question.compiled.workload)
    assert outcome.total == max(1, values[0] / STEPS)
    for one_round, first in zip(outcome.rounds, (1, 7), strict=True):
        numbers = starts[one_round.chosen[:, 0]] + one_round.chosen[:, 1]
        assert numbers.tolist() == values[first : first + 3].tolist()
        assert (one_round.noisy * STEPS).tolist() == values[first + 3 : first + 6].tolist()
    for damaged in (values[:-1], values[:-6], values[:0], np.append(values, 0)):
        with pytest.raises(ValueError, match=r"."):
            question.rounds.measured(damaged)
    at_once = ask(AT_ONCE, spec=spec)
    outcome = at_once.rounds.measured(measured(data, at_once).values)
    flat = [tuple(place) for place in outcome.rounds[0].chosen.tolist()]
    assert len(flat) == 72
    assert all(before < after for before, after in pairwise(flat))


@pytest.mark.nightly(daily=r"-(0.1|1e-6)\]")
@pytest.mark.parametrize("epsilon", ["1e-6", "0.01", "0.1", "1", "10"])
@pytest.mark.parametrize("counted", [-(10**6), 0, 900, 1000, 2000, 10**6])
def test_the_total_is_weighed_with_the_declared_one_by_inverse_variances(epsilon, counted):
    rounds = ask(epsilon=epsilon, rows=Rows(1000, exact=False)).rounds
    scaled = scaled_total(counted, rounds)
    noise, doubt = rounds.first_std, 500.0
    # The twin: least squares of two measurements of one number.
    A, y = np.array([[1 / doubt], [1 / noise]]), np.array([1000 / doubt, counted / noise])
    assert scaled == pytest.approx(max(1, np.linalg.lstsq(A, y)[0][0]), rel=1e-9)
    assert scaled_total(counted, ask(epsilon=epsilon).rounds) == max(1, counted)


def scaled_total(counted, rounds):
    """The total that answers are scaled to where so many records were counted."""
    return rounds.decoded([np.array([counted * STEPS])]).total


def test_a_run_goes_on_from_the_total_that_its_release_has(data):
    seen = []
    spec = SPEC.replace("version: 1}", "version: 1, rows: about 1000}")
    question = ask(spec=spec, epsilon="0.0001", project=remembering(seen))
    values = measured(data, question).values
    outcome = question.rounds.measured(values)
    assert outcome.total_std > 50_000
    assert outcome.total == pytest.approx(1000, rel=0.05)
    assert outcome.total == question.rounds.decoded([values[:1]]).total
    assert [state.total for state in seen] == [outcome.total]


def remembering(state):
    """A maker of frozen projections that keeps them."""

    def project(total):
        state.append(Frozen(total, ask().compiled.workload))
        return state[-1]

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
    monkeypatch.setattr(query, "ExactChance", FixedChance)
    monkeypatch.setattr(queries, "select_queries", fixed_selection)
    runs = []
    for name, rows in {"a": ROWS, "b": ROWS[:2], "c": [(CANARY,) * 3] * 9, "d": []}.items():
        projections, said = [], []
        folder = tmp_path / name
        folder.mkdir()
        question = ask(project=remembering(projections))
        path = open_ledger(folder, question)
        with Ledger.open(path, create=False) as ledger:
            data = write_csv(folder / "data.csv", rows)
            with reporting(said.append):
                done = curator.measure(data, question, ledger=ledger)
            exported = list(ledger.export())
        said = [line for line in said if not line.startswith("reading the data")]
        files = sorted(path for path in (folder / "state").rglob("*") if path.is_file())
        assert not [file for file in files if CANARY.encode() in file.read_bytes()]
        (seen,) = projections
        names = [file.name for file in files]
        runs.append((done.values.tolist(), seen.heard, said, exported, names))
    assert all(run == runs[0] for run in runs)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("asked", [ask, ask_tables])
def test_an_answer_that_is_too_large_is_refused_without_a_number(data, monkeypatch, asked):
    question = asked()
    shape = question.compiled.workload.shape_of_domain

    def huge(*_, subsets, **__):
        return {subset: np.full([shape[i] for i in subset], 2**40) for subset in subsets}

    monkeypatch.setattr(curator, "tabulate", huge)
    monkeypatch.setattr(RapRounds, "first", lambda *_: np.array([5 * STEPS]))
    with pytest.raises(DpqueryError) as caught:
        measured(data, question)
    assert str(2**40) not in str(caught.value)
    assert caught.value.__cause__ is None


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


@pytest.mark.parametrize(("spec", "settings"), MANY)
def test_the_parts_of_a_run_add_up_to_its_guarantee_to_the_last_fraction(spec, settings):
    split = ask(settings, spec=spec).rounds
    whole = split.total_rho + settings.rounds * (split.selection_rho + split.measurement_rho)
    assert whole == split.guarantee.amount
    span = split.records * (2 if split.replace else 1)
    drawn = settings.selected * (split.rate * span) ** 2 / 8
    assert drawn <= split.selection_rho <= drawn * (1 + Fraction(1, 10**9))


def test_a_quarter_is_drawn_among_counts_too_high_where_that_is_sharper():
    split = ask(RapSettings(6, 3, 10, 0)).rounds
    sides = [split.sides(number) for number in range(6)]
    assert all(under + over == 3 for (_, under), (_, over) in sides)
    assert [over for _, (_, over) in sides] == [0, 1, 1, 1, 0, 1]
    replacing = ask(RapSettings(6, 3, 10, 0), spec=REPLACE).rounds
    assert replacing.sides(5) == (("either", 3),)
    assert split.rate == pytest.approx(float(2 * replacing.rate), rel=1e-12)


@pytest.mark.parametrize(("spec", "settings"), MANY)
def test_the_noise_of_every_part_costs_its_share_and_no_more(spec, settings):
    question = ask(settings, spec=spec)
    split, workload = question.rounds, question.compiled.workload
    rng = np.random.default_rng(0)
    records = 3 if spec == PERSON else 1
    parts = [(split.total_rho, (records * STEPS) ** 2, split.first_scale)]
    for _ in range(20):
        size = settings.selected or 1
        numbers = rng.choice(workload.shape[0], size, replace=False)
        move = split.sensitivity(queries.all_places(workload)[numbers])
        scale = split.scale(split.measurement_rho, move)
        assert split.std_bounds[0] <= scale / STEPS <= split.std_bounds[1]
        parts.append((split.measurement_rho, move, scale))
    for rho, move, scale in parts[split.total is not None :]:
        cost = move / (2 * Fraction(scale) ** 2)
        assert cost <= rho <= cost * (1 + Fraction(1, 10**9))


def test_a_total_is_measured_unless_records_are_replaced_and_their_number_is_declared():
    assert () in ask(spec=SPEC).subsets
    assert () in ask(spec=REPLACE).subsets
    about = Rows(48, exact=False)
    assert ask(spec=REPLACE, rows=about).rounds.total is None
    assert ask(spec=SPEC, rows=Rows(48, exact=True)).rounds.total is None
    question = ask(spec=DECLARED)
    assert question.rounds.total == 48
    assert (question.rounds.total_rho, question.rounds.first_std) == (0, 0)
    assert () not in question.subsets


def test_a_total_takes_as_much_as_one_more_query_and_at_least_a_twentieth():
    for settings, share in ((TWO, Fraction(1, 13)), (RapSettings(4, 16, 10, 0), Fraction(1, 20))):
        split = ask(dataclasses.replace(settings, selected=min(settings.selected, 16))).rounds
        assert split.total_rho == split.guarantee.amount * share


@pytest.mark.parametrize(("spec", "limit"), [(SPEC, 1), (REPLACE, 1), (PERSON, 3)])
def test_no_neighbour_moves_a_count_or_the_total_by_more_than_declared(tmp_path, spec, limit):
    question = ask(spec=spec)
    replace, person = "replace" in spec, "person" in spec
    header = "age,sex,job,id" if person else "age,sex,job"
    outside = (9, "X", "z")

    def counts(rows):
        file = write_csv(tmp_path / "counted.csv", rows, header)
        tables = tabulate(
            file, spec=question.spec, subsets=question.subsets, classes=question.compiled.classes
        )
        blocks = question.compiled.workload.blocks
        exact = query._exact(tables)
        return np.concatenate([tables[()].reshape(1), *map(exact, blocks)])

    def of(person_id, rows):
        return [(*row, person_id) if person else row for row in rows]

    others = of("p1", ROWS[:3]) + of("p2", ROWS[5:8])
    worst = 0
    records = [of("p0", rows) for rows in ([ROWS[0]] * 7, ROWS[::9], [outside, ROWS[4]], [])]
    records = records if person else [rows[:1] for rows in records]
    for before in records:
        for after in records if replace else [[]]:
            moved = counts([*others, *before]) - counts([*others, *after])
            assert replace or (moved >= 0).all()  # which one-sided draws rely on
            worst = max(worst, int(np.abs(moved).max()))
    assert worst == limit


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
def test_hostile_settings_are_refused(raw):
    if isinstance(raw, dict) and raw:
        raw = vars(TWO) | raw
    with pytest.raises((LookupError, TypeError, ValueError)):
        record(RapSettings, raw)


def test_settings_come_back_as_they_were():
    for settings in (TWO, AT_ONCE):
        assert record(RapSettings, as_json(settings)) == settings


def test_rap_takes_the_guarantee_of_gaussian_noise_alone():
    question = ask(TWO)
    pure = guarantee("laplace", epsilon=Fraction(1), delta=Fraction(0))
    workload, privacy = question.compiled.workload, question.spec.privacy
    with pytest.raises(ValueError, match="zCDP"):
        rap_rounds(workload, TWO, privacy=privacy, guarantee=pure, rows=None)


@pytest.mark.parametrize("entries", [[0, 2], [1, -1], [0.5, 1.0], [0, 1]])
def test_queries_that_are_no_counts_are_refused_as_what_they_are(entries):
    factor = Dense(np.array([entries]))
    workload = Workload((2,), (product((2,), {0: factor}),) * 2, (1.0, 1.0))
    question = ask()
    counts = entries == [0, 1]
    with nullcontext() if counts else pytest.raises(UnsupportedWorkloadError, match="0 and 1"):
        rap_rounds(
            workload,
            RapSettings(1, 1, 10, 0),
            privacy=question.spec.privacy,
            guarantee=question.guarantee,
            rows=None,
        )
