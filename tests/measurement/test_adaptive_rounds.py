"""No caller decides on the chance of a round, its noise is as wide as said, and hides all else."""

import inspect
import math
from itertools import pairwise

import numpy as np
import pytest
from rounds import (
    AT_ONCE,
    DECLARED,
    ROWS,
    SPEC,
    TWO,
    Frozen,
    ask,
    measured,
    open_ledger,
    write_csv,
)

from dpquery.exceptions import DpqueryError
from dpquery.measurement import curator
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.rounds import queries
from dpquery.measurement.rounds.budget import STEPS
from dpquery.measurement.rounds.queries import (
    RapQuery,
    offsets,
    rounds_of,
    run_rounds,
    scaled_total,
)
from dpquery.measurement.rounds.selection import ExactChance
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.progress import reporting
from dpquery.spec.spec import Rows

# What chance decides, and who decides on chance.


def test_nobody_can_hand_the_curator_another_chance(data, monkeypatch):
    takers = [curator.measure, RapQuery, RapQuery.noisy, curator.LinearQuery]
    for taker in takers:
        given = inspect.signature(taker).parameters.values()
        assert not [
            parameter
            for parameter in given
            if "chance" in f"{parameter.name} {parameter.annotation}".lower()
        ]
    used = []
    monkeypatch.setattr(
        queries,
        "run_rounds",
        lambda *arguments, chance, **named: (
            used.append(chance) or run_rounds(*arguments, chance=chance, **named)
        ),
    )
    measured(data, ask())
    assert [type(chance) for chance in used] == [ExactChance]
    assert used == [ExactChance()]


def exact_answers_of(data, question):
    tables = tabulate(
        data, spec=question.spec, subsets=question.subsets, classes=question.compiled.classes
    )
    return lambda position: queries._exact(question.compiled.workload.blocks[position], tables)


def test_rounds_never_select_a_query_twice_and_stop_when_they_were_to(data):
    question = ask(RapSettings(6, 12, 10, 0))
    outcome = rounds_of(question, measured(data, question).values)
    places = np.concatenate([one_round.places for one_round in outcome.rounds])
    assert len(outcome.rounds) == 6
    assert len({tuple(place) for place in places.tolist()}) == 72 == question.spec.queries


@pytest.mark.statistical
def test_the_noise_of_a_round_is_as_wide_as_it_is_said_to_be(data):
    question = ask(RapSettings(1, 36, 10, 0), spec=DECLARED)
    answers = exact_answers_of(data, question)
    residuals = []
    for _ in range(100):
        (only_round,) = run_rounds(
            answers,
            workload=question.compiled.workload,
            mechanism=question.mechanism,
            projection=Frozen(48.0, question.compiled.workload),
            chance=ExactChance(),
        )
        true = np.array([answers(block)[row] for block, row in only_round.places.tolist()])
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
    outcome = rounds_of(question, measured(data, question).values)
    assert drawn == [(1, outcome.total_std), *((6, one_round.std) for one_round in outcome.rounds)]
    assert max(one_round.std for one_round in outcome.rounds) > question.mechanism.std_bounds[0]


# What can be seen.


def test_a_committed_vector_is_laid_out_as_documented(data):
    question = ask(TWO)
    values = measured(data, question).values
    assert values.dtype == np.int64
    assert len(values) == 1 + 2 * 2 * 3
    outcome, starts = rounds_of(question, values), offsets(question.compiled.workload)
    assert outcome.total == max(1, values[0] / STEPS)
    for one_round, first in zip(outcome.rounds, (1, 7), strict=True):
        numbers = starts[one_round.places[:, 0]] + one_round.places[:, 1]
        assert numbers.tolist() == values[first : first + 3].tolist()
        assert (one_round.noisy * STEPS).tolist() == values[first + 3 : first + 6].tolist()
    with pytest.raises(ValueError, match="not the values"):
        rounds_of(question, values[:-1])
    at_once = ask(AT_ONCE)
    outcome = rounds_of(at_once, measured(data, at_once).values)
    flat = [tuple(place) for place in outcome.rounds[0].places.tolist()]
    assert len(flat) == 72
    assert all(before < after for before, after in pairwise(flat))


@pytest.mark.parametrize("epsilon", ["1e-6", "0.01", "0.1", "1", "10"])
@pytest.mark.parametrize("counted", [-(10**6), 0, 900, 1000, 2000, 10**6])
def test_the_total_is_weighed_with_the_declared_one_by_inverse_variances(epsilon, counted):
    mechanism, declared = ask(epsilon=epsilon).mechanism, Rows(1000, exact=False)
    scaled = scaled_total(counted * STEPS, mechanism, declared)
    noise, doubt = mechanism.total_std, 500.0
    # The twin: least squares of two measurements of one number.
    A, y = np.array([[1 / doubt], [1 / noise]]), np.array([1000 / doubt, counted / noise])
    assert scaled == pytest.approx(max(1, np.linalg.lstsq(A, y)[0][0]), rel=1e-9)
    assert scaled_total(counted * STEPS, mechanism, None) == max(1, counted)


def test_a_clear_total_is_kept_and_without_a_signal_it_is_the_declared_one():
    declared = Rows(48_842, exact=False)
    clear, hidden = (ask(epsilon=epsilon).mechanism for epsilon in ("0.1", "1e-6"))
    for counted in (30_000, 48_842, 70_000):
        assert abs(scaled_total(counted * STEPS, clear, declared) - counted) < clear.total_std / 100
    for off in (-3, 0, 3):
        counted = round(48_842 + off * hidden.total_std)
        scaled = scaled_total(counted * STEPS, hidden, declared)
        assert scaled == pytest.approx(48_842, rel=0.05)
    exact = ask(spec=DECLARED).mechanism
    assert scaled_total(48 * STEPS, exact, Rows(48, exact=True)) == 48


def test_a_run_goes_on_from_the_total_that_its_release_has(data):
    seen = []
    spec = SPEC.replace("version: 1}", "version: 1, rows: about 1000}")
    question = ask(spec=spec, epsilon="0.0001", project=remembering(seen))
    values = measured(data, question).values
    outcome = rounds_of(question, values)
    assert outcome.total_std > 50_000
    assert outcome.total == pytest.approx(1000, rel=0.05)
    assert outcome.total == scaled_total(
        int(values[0]), question.mechanism, Rows(1000, exact=False)
    )
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
    monkeypatch.setattr(queries, "ExactChance", FixedChance)
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


def test_an_answer_that_is_too_large_is_refused_without_a_number(data, monkeypatch):
    def huge(*_, subsets, **__):
        return {subset: np.full((1,) * len(subset), 2**40) for subset in subsets}

    monkeypatch.setattr(curator, "tabulate", huge)
    monkeypatch.setattr(queries, "noisy_total", lambda *_: np.array([5 * STEPS]))
    with pytest.raises(DpqueryError) as caught:
        measured(data, ask())
    assert str(2**40) not in str(caught.value)
    assert caught.value.__cause__ is None
