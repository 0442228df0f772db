"""An adaptive run spends its rho to the last fraction, whatever its levels, and hides all else."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds import (
    DECLARED,
    PERSON,
    REPLACE,
    ROWS,
    SPEC,
    Guess,
    ask_tables,
    exact_tables,
    measured,
    open_ledger,
    write_csv,
)

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.rounds import tables
from dpquery.measurement.rounds.chance import ExactChance
from dpquery.measurement.rounds.run import STEPS, MeasuredRun, run_rounds
from dpquery.measurement.rounds.tables import MEASURED_SHARE, steps_apart, table_rounds
from dpquery.progress import reporting
from dpquery.spec.spec import Rows

ALL = [SPEC, REPLACE, DECLARED, PERSON]


def spent_by(levels, budget):
    """The rho of all parts of a run whose levels rise where they are told to."""
    left, level, total = budget.rounds_rho, 0, budget.first_rho + budget.closing_rho
    parts = []
    for rise in levels:
        spent = budget.round(level, left)
        parts.append(spent)
        total += spent.selection_rho + spent.measurement_rho
        left -= spent.rho
        if spent.last:
            return total, left, parts
        level += rise
    raise AssertionError("the levels were too few")


@given(st.integers(0, 2**31), st.sampled_from(ALL), st.floats(0, 1))
def test_the_parts_of_every_run_are_its_guarantee_to_the_last_fraction(seed, spec, share):
    budget = ask_tables(spec).rounds
    rises = np.random.default_rng(seed).random(48) < share  # none costs less than a 48th of rho
    total, left, parts = spent_by(rises.astype(int).tolist(), budget)
    assert total == budget.guarantee.amount
    assert left == 0
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].rho < 2 * budget.unit * 4 ** sum(rises[: len(parts) - 1].tolist())


@pytest.mark.parametrize("spec", ALL)
def test_the_noise_of_every_part_costs_its_share_and_no_more(spec):
    budget = ask_tables(spec).rounds
    records = 3 if spec == PERSON else 1
    moved = records**2 * (2 if "replace" in spec else 1)
    costs = [(budget.first_rho, 3 * moved, budget.first_std)]
    for rises in ([0] * 99, [1] * 99, [0, 1] * 50):
        _, _, parts = spent_by(rises, budget)
        for part in parts:
            costs.append((part.measurement_rho, moved, budget.std(part)))
            assert part.selection_rho == part.rho * (1 - MEASURED_SHARE)
            span = 2 * records * (2 if "replace" in spec else 1) * max(budget.candidates.weights)
            drawn = (part.rate * span) ** 2 / 8
            assert drawn <= part.selection_rho <= drawn * (1 + Fraction(1, 10**9))
    for rho, square, std in costs:
        cost = square / (2 * Fraction(std) ** 2)
        assert cost <= rho <= cost * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("spec", ALL)
def test_no_neighbour_moves_a_table_by_more_than_is_paid_for(spec):
    question = ask_tables(spec)
    records = question.rounds.records
    codes = [(0, 0, 0), (5, 1, 2), (0, 1, 1)]
    worst = 0
    for before in codes:
        for after in codes if "replace" in spec else [None]:
            old = exact_tables(question, [(1, 0, 0), *[before] * records])
            new = exact_tables(question, [(1, 0, 0), *([after] * records if after else [])])
            for block in question.rounds.blocks:
                worst = max(worst, int(((old(block) - new(block)) ** 2).sum()))
    assert worst << 20 == question.rounds.table_sensitivity


@pytest.mark.parametrize("spec", ALL)
def test_no_neighbour_moves_a_distance_by_more_than_is_paid_for(spec):
    """Whatever is released: with the changed cells far above or below, the bound is reached."""
    question, chance = ask_tables(spec), np.random.default_rng(0)
    rounds = question.rounds
    (numbers,) = rounds.measured_items
    codes, worst = [(0, 0, 0), (5, 1, 2), (0, 1, 1)], [0, 0]
    for before in codes:
        for after in codes if "replace" in spec else [None]:
            old = exact_tables(question, [(1, 0, 0), *[before] * rounds.records])
            new = exact_tables(question, [(1, 0, 0), *[after] * (rounds.records if after else 0)])
            far = [exact_tables(question, [before] * 10**3)(rounds.blocks[k]) for k in numbers]
            wild = [chance.normal(0, 3, size=table.shape) for table in far]
            for released in (far, wild, [np.full(table.shape, np.nan) for table in far]):
                off = [
                    np.concatenate(
                        [
                            steps_apart(exact(rounds.blocks[k]), table)
                            for k, table in zip(numbers, released, strict=True)
                        ]
                    )
                    for exact in (new, old)
                ]
                moved = abs(off[0].sum() - off[1].sum()), abs(off[0].max() - off[1].max())
                worst = list(map(max, worst, moved))
    assert worst[0] ** 2 == rounds.distance_sensitivity(len(numbers))
    assert worst[1] ** 2 == rounds.largest_sensitivity


def test_a_distance_is_that_of_what_is_released_with_the_noise_that_is_paid_for(data):
    """Of 200 runs: the mean and the spread of the noise are what they are said to be."""
    question = ask_tables()
    rounds, path = question.rounds, open_ledger(data.parent, question)
    exact, (numbers,) = (
        exact_tables(question, [(a, "FM".index(s), "abc".index(j)) for a, s, j in ROWS]),
        rounds.measured_items,
    )
    outcome = rounds.measured(measured(data, question, path).values)
    guess = Guess(rounds, outcome)
    apart = [np.abs(exact(rounds.blocks[k]) - guess.released_table(k)) for k in numbers]
    true = STEPS * np.array([sum(map(np.sum, apart)), max(map(np.max, apart))])
    drawn = np.array([rounds.closing(exact, guess, ExactChance())[1:] for _ in range(200)])
    scales = np.array([rounds.distance_scale(len(numbers)), rounds.largest_scale])
    noise = (drawn - true) / scales
    assert (np.abs(noise.mean(axis=0)) < 5 / math.sqrt(200)).all()
    assert noise.std(axis=0) == pytest.approx([1, 1], abs=0.3)
    costs = [rounds.distance_sensitivity(len(numbers)), rounds.largest_sensitivity] / scales**2 / 2
    assert costs.sum() == pytest.approx(float(rounds.closing_rho), rel=1e-9)
    assert rounds.closing_rho == rounds.guarantee.amount / 50


def test_of_more_items_than_eight_the_distance_is_measured_together():
    workload = ask_tables().compiled.workload
    sets = [block.attributes for block in workload.blocks]
    for items, groups in (([[0], [1, 2]], 2), ([[k % 3] for k in range(9)], 1), ([], 1)):
        candidates = tables.candidate_tables(workload, items)
        asked = [{candidates.subsets[k] for k in numbers} for numbers in candidates.asked]
        alone = [{sets[k] for k in places} for places in items]
        assert asked == (alone if groups > 1 else [set(sets)])
        rounds = replace(ask_tables().rounds, candidates=candidates)
        tables_of = map(len, rounds.measured_items)
        costs = [
            rounds.distance_sensitivity(k) / rounds.distance_scale(k) ** 2 / 2
            + rounds.largest_sensitivity / rounds.largest_scale**2 / 2
            for k in tables_of
        ]
        assert sum(costs) == pytest.approx(float(rounds.closing_rho), rel=1e-9)
    assert 1 in rounds.sizes  # of a distance
    assert 1 not in replace(rounds, candidates=replace(candidates, asked=((),))).sizes


def test_noise_that_cannot_be_drawn_and_sums_are_refused_from_public_inputs():
    with pytest.raises(SpecError, match="smaller epsilon"):
        ask_tables(epsilon=10**8)
    with pytest.raises(SpecError, match="larger epsilon"):
        ask_tables(epsilon=Fraction(1, 10**12), delta="1e-30")
    with pytest.raises(UnsupportedWorkloadError, match="200,005 values of all attributes"):
        ask_tables(SPEC.replace("[0, 5]", "[0, 199999]"))
    question = ask_tables()
    pure = guarantee("laplace", epsilon=Fraction(1), delta=Fraction(0))
    workload, privacy = question.compiled.workload, question.spec.privacy
    with pytest.raises(ValueError, match="zCDP"):
        table_rounds(workload, privacy=privacy, guarantee=pure, rows=None)


# What chance decides, and who decides on chance.


def levels_of(outcome):
    return [each.level for each in outcome.rounds]


def test_the_level_rises_where_a_table_moved_the_model_by_no_more_than_its_noise(data):
    still = (question := ask_tables()).rounds.measured(measured(data, question).values)
    assert levels_of(still) == list(range(len(still.rounds)))
    restless = ask_tables(restless=10**6, release=2)
    moving = restless.rounds.measured(measured(data, restless).values)
    assert set(levels_of(moving)) == {0}
    assert len(moving.rounds) == 45 > len(still.rounds)  # 48 units, of which 2.7 went before
    for outcome, budget in ((still, question.rounds), (moving, restless.rounds)):
        assert budget.first_rho + sum(each.spent.rho for each in outcome.rounds) == (
            budget.guarantee.amount - budget.closing_rho
        )


@pytest.mark.parametrize(("factor", "rises"), [(0.99, True), (1.01, False)])
def test_the_noise_that_a_move_is_held_against_is_its_expected_norm(factor, rises):
    question = ask_tables()
    spent = question.rounds.round(0, question.rounds.rounds_rho)
    norm = math.sqrt(2 / math.pi) * question.rounds.std(
        spent
    )  # of one cell; a guess moves every cell as much
    outcome = decoded_start(question)
    guess = Guess(question.rounds, outcome, factor * norm)
    exact = exact_tables(question, [(0, 0, 0)] * 9)
    runs = run_rounds(question.rounds, exact, fit=guess, chance=ExactChance())
    assert [next(runs).level, next(runs).level] == [0, int(rises)]


def decoded_start(question):
    sizes = question.rounds.candidates.sizes[:3]
    steps = np.full(sum(sizes), 4 * STEPS)
    return question.rounds.decoded([steps])


@pytest.mark.statistical
def test_noise_is_as_wide_as_it_is_said_to_be(data):
    question = ask_tables(DECLARED, restless=10**6)
    exact, residuals = exact_tables(question, coded(ROWS)), []
    for _ in range(120):
        values = question.noisy(tables_of_rows(question), draft=Draft())
        outcome = question.rounds.measured(values)
        blocks = question.rounds.blocks
        for block, noisy in zip(blocks, outcome.first, strict=False):
            residuals.append((noisy - exact(block)) / outcome.first_std)
        for each in outcome.rounds:
            residuals.append((each.noisy - exact(blocks[each.chosen[0]])) / each.std)
    squares = np.concatenate(residuals) ** 2
    for factor in (1 / 1.2, 1, 1.2):
        off = abs(factor**2 * float(squares.mean()) - 1)
        assert (off < 6 * math.sqrt(2 / squares.size)) == (factor == 1)


class Draft:
    """Parts that are kept in memory."""

    def __init__(self, parts=()):
        self.kept = list(parts)

    def parts(self):
        return list(self.kept)

    def append(self, values):
        self.kept.append(values)


def coded(rows):
    return [(age, "FM".index(sex), "abc".index(job)) for age, sex, job in rows]


def tables_of_rows(question, rows=ROWS):
    shape = question.compiled.workload.shape_of_domain
    exact = exact_tables(question, coded(rows))
    return {
        block.attributes: exact(block).reshape([shape[i] for i in block.attributes])
        for block in question.rounds.blocks
    }


def test_a_total_is_estimated_from_all_first_tables_unless_it_is_declared(data):
    question = ask_tables()
    outcome = question.rounds.measured(measured(data, question).values)
    sums, cells = [table.sum() for table in outcome.first], [6, 2, 3]
    weights = [1 / n for n in cells]
    assert outcome.total == pytest.approx(max(1, np.average(sums, weights=weights)), rel=1e-12)
    assert outcome.total_std == pytest.approx(question.rounds.first_std, rel=1e-12)  # 1/6+1/2+1/3
    exact = ask_tables(DECLARED)
    assert exact.rounds.total == 48
    declared = decoded_start(exact)
    assert (declared.total, declared.total_std) == (48.0, 0.0)
    assert ask_tables(rows=Rows(48, exact=True)).rounds.total is None
    assert ask_tables(REPLACE, rows=Rows(48, exact=False)).rounds.total is None


def test_a_declared_number_that_is_not_exact_is_weighed_with_the_noisy_one():
    steps = np.zeros(11, dtype=np.int64)
    for rows, total in ((Rows(1000, exact=False), pytest.approx(1000, rel=0.02)), (None, 1)):
        assert ask_tables(epsilon="0.0001", rows=rows).rounds.decoded([steps]).total == total


def test_a_committed_vector_is_laid_out_as_documented(data):
    question = ask_tables()
    values = measured(data, question).values
    assert values.dtype == np.int64
    outcome = question.rounds.measured(values)
    sizes, end = question.rounds.candidates.sizes, 11
    np.testing.assert_array_equal(values[:11], np.concatenate(outcome.first) * STEPS)
    for level, each in enumerate(outcome.rounds):
        (number,) = each.chosen.tolist()
        assert values[end : end + 2].tolist() == [number, level]
        end += 2 + sizes[number]
        np.testing.assert_array_equal(values[end - sizes[number] : end], each.noisy * STEPS)
    assert values[end] == 7  # what the guess says goes with all that it releases
    assert end + 3 == len(values)
    assert outcome.closing.tolist() == values[end:].tolist()


def test_nothing_but_noisy_values_reaches_the_model_the_ledger_or_the_screen(
    data, monkeypatch, capfd
):
    """With chance that gives back what it is given whatever the data, nothing else differs."""

    def deaf(_, scores, members, rate):
        return 0

    def silent(_, answers, *, budget, sensitivity, scale):
        return np.arange(len(answers)) * 1000

    monkeypatch.setattr(ExactChance, "level", deaf)
    monkeypatch.setattr(ExactChance, "below", lambda *_: 0)
    monkeypatch.setattr(ExactChance, "add_noise", silent)
    monkeypatch.setattr(tables, "draw_table", lambda *_, candidates, **__: 3)
    seen = []
    for name, rows in (("one", ROWS), ("two", ROWS[:3] * 7), ("none", [])):
        folder = data.parent / name
        folder.mkdir()
        models, said = [], []

        def start(run, models=models):
            models.append(Guess(ask_tables().rounds, run))
            return models[-1]

        question = ask_tables(start=start)
        file, path = write_csv(folder / "data.csv", rows), open_ledger(folder, question)
        with reporting(lambda line, *_, said=said: said.append(line)):
            values = measured(file, question, path).values.tolist()
        (model,) = models
        with Ledger.open(path, create=False) as ledger:
            history = [event.as_json() for event in ledger.history()]
        said = [line for line in said if not line.startswith("reading the data")]
        seen.append((values, model.heard, said, history))
    assert seen[0] == seen[1] == seen[2]
    assert capfd.readouterr() == ("", "")


@pytest.mark.statistical
def test_a_fit_is_told_the_noise_that_the_tables_have():
    """Empty tables of 1,000 cells and more are their own noise, of a spread that can be seen."""
    head, _, _ = SPEC.partition("domain:")
    wide = "domain: {a: {range: [0, 999]}, b: {range: [0, 999]}, c: {range: [0, 999]}}\n"
    wide += "workload: [{name: pairs, marginals: {ways: 2}}]\n"
    question = ask_tables(head + wide, epsilon=4)
    fit = Guess(question.rounds, MeasuredRun(1000.0, 0.0, (), 1.0))

    def empty(block):
        return np.zeros(block.queries, dtype=np.int64)

    list(run_rounds(question.rounds, empty, fit=fit, chance=ExactChance()))
    assert fit.heard
    for _, noisy, std in fit.heard:
        assert np.std(noisy) == pytest.approx(std, rel=6 / math.sqrt(2 * len(noisy)))
