"""Tables are drawn by the law that is paid for: against enumeration, and for all neighbours."""

import math
from fractions import Fraction
from itertools import product
from random import Random

import numpy as np
import pytest
from rounds import PERSON, REPLACE, SPEC, ask_tables, exact_tables

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.measurement.rounds import selection as candidates_module
from dpquery.measurement.rounds.selection import (
    LARGEST_WEIGHT,
    ExactChance,
    candidate_tables,
    distances,
    draw_table,
    penalties_of,
)
from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import parse


class Listening:
    """A chance that gives away what it is asked to draw from, and draws the same every time."""

    def __init__(self, level=0, below=0):
        self.answers, self.heard = (level, below), []

    def level(self, scores, members, rate):
        self.heard.append((list(scores), list(members), rate))
        return min(self.answers[0], len(scores) - 1)

    def below(self, bound):
        self.heard.append(bound)
        return min(self.answers[1], bound - 1)


def scores(question, tables, model, std):
    """The scores, worked out once more by hand: a number for each candidate."""
    given = question.budget.candidates
    return [
        weight
        * (
            sum(
                abs(int(true) - round(guess))
                for true, guess in zip(tables(k), model(k), strict=True)
            )
            - round(math.sqrt(2 / math.pi) * std * size)
        )
        for k, (weight, size) in enumerate(zip(given.weights, given.sizes, strict=True))
    ]


def towns(question, *, records):
    """Records in codes, drawn with a public seed."""
    shape = question.compiled.workload.shape_of_domain
    rng = np.random.default_rng(records)
    return np.stack([rng.integers(n, size=records) for n in shape], axis=1)


def drawn_from(question, rows, model, *, std, level=0, below=0):
    chance = Listening(level, below)
    number = draw_table(
        exact_tables(question, rows),
        model,
        candidates=question.budget.candidates,
        std=std,
        rate=Fraction(1, 7),
        chance=chance,
    )
    return number, chance.heard


def even(question):
    given = question.budget.candidates
    return lambda k: np.full(given.sizes[k], 3.5 / given.sizes[k] + 0.2)


def uneven(question):
    """Far too high in every other cell, and too low in the rest."""
    given = question.budget.candidates
    return lambda k: np.where(np.arange(given.sizes[k]) % 2, 90.0, 0.0)


def test_tables_of_one_score_are_drawn_together_and_then_one_of_them():
    question = ask_tables()
    model, rows = even(question), towns(question, records=30)
    by_hand = scores(question, exact_tables(question, rows), model, 1.25)
    for level, below in product(range(len(set(by_hand))), range(3)):
        number, (asked, bound) = drawn_from(
            question, rows, model, std=1.25, level=level, below=below
        )
        levels = sorted(set(by_hand))
        assert asked == (levels, [by_hand.count(score) for score in levels], Fraction(1, 7))
        equal = [k for k, score in enumerate(by_hand) if score == levels[level]]
        assert bound == len(equal)
        assert number == equal[min(below, len(equal) - 1)]


def test_a_table_is_drawn_as_often_as_its_weight_says():
    question = ask_tables()
    model, rows, rate = even(question), towns(question, records=6), Fraction(1, 3000)
    tables = exact_tables(question, rows)
    by_hand = scores(question, tables, model, 0.5)
    weights = np.exp(float(rate) * (np.array(by_hand) - max(by_hand)))
    expected = weights / weights.sum()
    assert expected.min() > 0.005
    chance = ExactChance(entropy=Random(7).randbytes)  # noqa: S311 (the same every time)
    size = 3000
    counts = np.zeros(len(expected))
    for _ in range(size):
        number = draw_table(
            tables,
            model,
            candidates=question.budget.candidates,
            std=0.5,
            rate=rate,
            chance=chance,
        )
        counts[number] += 1
    off = float(((counts - size * expected) ** 2 / (size * expected)).sum())
    assert off < 60  # a chi-square of 6 degrees of freedom
    uneven = np.roll(expected, 1)
    assert float(((counts - size * uneven) ** 2 / (size * uneven)).sum()) > 60


@pytest.mark.parametrize(("spec", "records"), [(SPEC, 1), (REPLACE, 1), (PERSON, 3)])
def test_no_neighbour_moves_a_draw_by_more_than_is_paid_for(spec, records):
    """The log ratio of a draw spans at most rate * score_span, and its square is paid for."""
    question = ask_tables(spec)
    budget, model = question.budget, uneven(question)
    rng = np.random.default_rng(5)
    shape = question.compiled.workload.shape_of_domain
    widest = 0
    for trial in range(60):
        rows = towns(question, records=4 + trial % 5)
        some = np.stack([rng.integers(n, size=records) for n in shape], axis=1)
        others = np.stack([rng.integers(n, size=records) for n in shape], axis=1)
        if trial % 3 == 0:  # the same records over and over move a table the furthest
            some, others = (
                np.repeat(some[:1], records, axis=0),
                np.repeat(others[:1], records, axis=0),
            )
        before = np.concatenate([rows, some])
        after = np.concatenate([rows, others]) if budget.replace else rows
        moved = np.array(scores(question, exact_tables(question, after), model, 2.0)) - np.array(
            scores(question, exact_tables(question, before), model, 2.0)
        )
        widest = max(widest, int(moved.max() - moved.min()), 2 * int(np.abs(moved).max()))
        assert moved.max() - moved.min() <= budget.score_span
    assert widest == budget.score_span  # as far as any could, for one table alone
    spent = budget.round(0, budget.rounds_rho)
    bounded = (spent.rate * budget.score_span) ** 2 / 8
    assert bounded <= spent.selection_rho <= bounded * (1 + Fraction(1, 10**9))


def test_penalties_are_what_noise_is_expected_to_measure_and_know_no_data():
    question = ask_tables()
    given = question.budget.candidates
    noise = np.random.default_rng(0).normal(0, 2.5, (4000, max(given.sizes)))
    for size, penalty in zip(given.sizes, penalties_of(given, 2.5), strict=True):
        assert penalty == pytest.approx(np.abs(noise[:, :size]).sum(axis=1).mean(), abs=0.8)
    rows = [towns(question, records=n) for n in (4, 40)]
    offsets = []
    for records in rows:
        tables = exact_tables(question, records)
        free = scores(question, tables, even(question), 0.0)
        offsets.append(np.array(free) - scores(question, tables, even(question), 2.5))
    assert (offsets[0] == offsets[1]).all()


def test_a_distance_is_of_whole_numbers_whatever_the_model_says():
    exact = {0: np.array([3, 0, 5, 1]), 1: np.array([7])}
    model = {0: np.array([2.5, 0.4, np.nan, -np.inf]), 1: np.array([4.0])}
    apart = distances(exact.__getitem__, model.__getitem__, [4, 1])
    assert apart == [1 + 0 + 5 + 2**40 + 1, 3]
    assert all(isinstance(each, int) for each in apart)


@pytest.mark.parametrize("cells_at_once", [1, 5, 40, 10**6])
def test_distances_are_the_same_however_many_tables_are_compared_at_once(
    cells_at_once, monkeypatch
):
    rng, sizes = np.random.default_rng(0), [3, 1, 7, 20, 2, 2]
    exact = [rng.integers(0, 9, size) for size in sizes]
    model = [rng.normal(4, 3, size) for size in sizes]
    monkeypatch.setattr("dpquery.measurement.rounds.selection.CELLS_AT_ONCE", cells_at_once)
    expected = [int(np.abs(x - np.rint(y)).sum()) for x, y in zip(exact, model, strict=True)]
    assert distances(exact.__getitem__, model.__getitem__, sizes) == expected


# What may be measured.


def tables_of_spec(text):
    return candidate_tables(compile_spec(parse(text, name="town.yaml", files={})).workload)


def test_candidates_are_all_tables_below_what_is_asked_and_weigh_what_they_share():
    given = ask_tables().budget.candidates
    assert given.subsets == ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
    assert given.sizes == (6, 2, 3, 12, 18, 6, 36)
    shared = [2 + 1, 3, 3, 2 + 1 + 1 + 2, 6, 6, 2 * 3 + 3]
    assert given.weights == tuple(round(LARGEST_WEIGHT * each / 9) for each in shared)
    assert given.one_way == 3


def test_weights_of_items_weigh_their_tables():
    pair = "  - {name: pair, weight: 2.5, product: {age: identity, sex: {is: F}}}\n"
    heavy = tables_of_spec(SPEC + pair)
    shared = [3 + 2.5, 3 + 2.5, 3, 6 + 5, 6 + 2.5, 6 + 2.5, 9 + 5]
    assert heavy.weights == tuple(round(LARGEST_WEIGHT * each / 14) for each in shared)


def test_groups_and_ranges_are_counted_in_classes_and_attributes_of_one_class_are_left_out():
    text = SPEC[: SPEC.index("workload")] + (
        "workload:\n"
        "  - {name: halves, product: {age: {ranges: [[0, 2], [3, 5]]}, sex: identity}}\n"
        "  - {name: some, product: {age: {is: 4}, job: total}}\n"
    )
    given = tables_of_spec(text)
    assert given.subsets == ((0,), (1,), (0, 1))
    assert given.sizes == (3, 2, 6)


@pytest.mark.parametrize(
    "items",
    [
        "  - {name: one, product: {age: identity, sex: identity}}\n",
        "  - {name: one, product: {age: prefix, sex: identity, job: total}}\n"
        "  - {name: two, product: {age: identity, sex: {is: F}}}\n",
        "  - {name: all, product: {}}\n",
    ],
)
def test_where_there_is_one_table_there_is_nothing_to_adapt(items):
    with pytest.raises(UnsupportedWorkloadError, match="nothing to adapt to; take --mechanism lin"):
        tables_of_spec(SPEC[: SPEC.index("workload")] + "workload:\n" + items)


def test_large_tables_are_left_out_and_too_many_are_refused(monkeypatch):
    wide = SPEC.replace("[0, 5]", "[0, 3999]")
    given = tables_of_spec(wide)
    assert (0, 2) not in given.subsets  # of 12,000 cells
    assert (0, 1) in given.subsets
    refused = pytest.raises(UnsupportedWorkloadError, match="fewer tables or coarser sets")
    for limit, value in (("MAX_ADAPTIVE_TABLES", 6), ("MAX_ADAPTIVE_CELLS", 40)):
        with monkeypatch.context() as patch, refused:
            patch.setattr(candidates_module, limit, value)
            tables_of_spec(SPEC)
    many = "\n".join(f"  a{i}: {{range: [0, 1]}}" for i in range(40))
    columns = ", ".join(f"a{i}" for i in range(40))
    start, end = SPEC.index("  age"), SPEC.index("workload")
    text = f"{SPEC[:start]}{many}\n{SPEC[end : SPEC.index('  - name')]}"
    with refused:
        tables_of_spec(text + f"  - {{name: t, threshold: {{r: 39, of: [{columns}]}}}}\n")
