"""Queries and tables are selected by the exact exponential mechanism, at the stated cost.

The law is held against rational enclosures bit by bit; draws are held against the law, and against
OpenDP's noisy maximum, which is said to have it; tables against enumeration.
"""

import math
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import opendp.prelude as dp
import pytest
from dense import chi_square
from rounds import PERSON, REPLACE, SPEC, ask_tables, exact_tables

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.measurement.rounds import tables as candidates_module
from dpquery.measurement.rounds.chance import ExactChance, _decided, _weight, differences_of
from dpquery.measurement.rounds.queries import _TAKEN, _histogram, scores_of, select_queries
from dpquery.measurement.rounds.tables import (
    LARGEST_WEIGHT,
    candidate_tables,
    distances,
    draw_table,
    penalties_of,
)
from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import parse

BLOCKS = ([0, 3, -3, 5], [2, -5, 1])
FLAT = [value for block in BLOCKS for value in block]
EITHER = [abs(value) for value in FLAT]
RATE = Fraction(1, 2)
NOBODY = np.zeros((0, 2), dtype=np.int64)
RARE = 1e-9


def differences(position):
    return np.array(BLOCKS[position])


def chosen(size, *, sides=None, taken=NOBODY):
    """Flat numbers of the queries selected, in order."""
    places = select_queries(
        differences,
        blocks=2,
        taken=taken,
        sides=sides or [("either", size)],
        rate=RATE,
        chance=ExactChance(),
    ).tolist()
    return tuple(4 * block + row for block, row in places)


def sequential_law(rate, *scores):
    """Probability of every ordered selection: the scores of all queries, once for each draw."""
    law = {}
    for order in permutations(range(len(scores[0])), len(scores)):
        left, probability = set(range(len(scores[0]))), 1.0
        for number, score in zip(order, scores, strict=True):
            probability *= 1 / sum(
                math.exp(rate * (score[other] - score[number])) for other in left
            )
            left.remove(number)
        law[order] = probability
    return law


def p_value(sample, law):
    seen = Counter(sample)
    assert set(seen) <= set(law)
    expected = np.array(list(law.values())) * len(sample)
    return chi_square(np.array([seen[outcome] for outcome in law]), expected)


LEVELS = [
    ([0, 1, 2, 3], [5, 1, 0, 7], Fraction(1, 3)),
    ([0, 1, 2], [10**9, 1, 1], Fraction(7)),
    ([0, 40, 48842], [3, 10**8, 2], Fraction(1, 1000)),
    ([0, 10**10], [10**12, 1], Fraction(1, 10**9)),
    ([7], [3], Fraction(2)),
    ([0, 5, 6, 300], [1, 2, 3, 0], Fraction(22, 7)),
]


@pytest.mark.parametrize(("levels", "members", "rate"), LEVELS)
def test_leading_bits_decide_for_the_very_level_that_the_law_has_there(levels, members, rate):
    with localcontext(prec=80):
        e = Decimal(rate.numerator) / Decimal(rate.denominator)
        weights = [n * (e * (s - levels[-1])).exp() for s, n in zip(levels, members, strict=True)]
        total, below = sum(weights), Decimal(0)
        ends = []
        for weight in reversed(weights):
            below += weight
            ends.append(below / total)
        for bits in (1, 5, 9):
            open_cells = 0
            for u in range(1 << bits):
                level = _decided(u, bits, levels, members, rate)
                if level is None:
                    open_cells += 1
                    continue
                place = len(levels) - 1 - level
                start = ends[place - 1] if place else Decimal(0)
                slack = Decimal(10) ** -15
                assert start <= Decimal(u) / (1 << bits) + slack
                assert Decimal(u + 1) / (1 << bits) <= ends[place] + slack
            assert open_cells < len(levels)


def test_the_enclosure_of_a_weight_holds_its_exponential():
    for fineness, rate in product((70, 200, 1000), (Fraction(1, 977), Fraction(31, 7))):
        for gap in {0, 1, 2, 50, int(fineness / 2 / rate), int(fineness * 0.69 / rate)}:
            with localcontext(prec=2 * fineness):
                exponent = -Decimal(rate.numerator * gap) / rate.denominator
                exact = exponent.exp() * (1 << fineness)
            low = _weight(gap, rate, fineness)
            assert low <= exact <= low + 3


def test_a_draw_that_its_first_bits_leave_open_goes_on_with_more():
    levels, members = [0, 1], [1, 1]
    with localcontext(prec=100):
        threshold = int((1 / (1 + Decimal(-1).exp())) * (1 << 128))
    first, low = threshold >> 64, threshold & (2**64 - 1)
    for later, expected in ((low - 2**20, 1), (low + 2**20, 0)):
        words = [first, later, 0]
        requests = []

        def entropy(size, words=words, requests=requests):
            requests.append(size)
            return words.pop(0).to_bytes(size, "little")

        assert _decided(first, 64, levels, members, Fraction(1)) is None
        assert ExactChance(entropy).level(levels, members, Fraction(1)) == expected
        assert requests == [8, 8]


@pytest.mark.parametrize("bound", [1, 2, 5, 8, 200])
def test_every_number_below_a_bound_has_as_many_bytes(bound):
    drawn = Counter()
    for byte in range(256):
        again = iter([byte, 0])
        chance = ExactChance(lambda size, again=again: bytes([next(again)] * size))
        drawn[chance.below(bound)] += next(again, None) is not None or bound == 1
    assert len({drawn[number] for number in range(bound)}) == 1
    assert set(drawn) == set(range(bound))


@pytest.mark.statistical
def test_selections_follow_the_law_of_one_exponential_mechanism_after_another():
    sample = [chosen(2) for _ in range(10_000)]
    assert p_value(sample, sequential_law(0.5, EITHER, EITHER)) > RARE
    for factor in (1 / 1.2, 1.2):
        assert p_value(sample, sequential_law(0.5 * factor, EITHER, EITHER)) < RARE


@pytest.mark.statistical
@pytest.mark.nightly
def test_draws_on_two_sides_follow_the_scores_of_each_and_never_meet():
    under, over = [max(value, 0) for value in FLAT], [max(-value, 0) for value in FLAT]
    sample = [chosen(3, sides=[("under", 2), ("over", 1)]) for _ in range(10_000)]
    assert p_value(sample, sequential_law(0.5, under, under, over)) > RARE
    for wrong in ((under, over, over), (EITHER, EITHER, over), (under, under, EITHER)):
        assert p_value(sample, sequential_law(0.5, *wrong)) < RARE


@pytest.mark.nightly
@pytest.mark.statistical
def test_openDPs_noisy_maximum_has_the_same_law_and_the_same_cost():
    dp.enable_features("contrib")
    theirs = dp.m.make_noisy_max(
        dp.vector_domain(dp.atom_domain(T="i32")),
        dp.linf_distance(T="i32"),
        dp.zero_concentrated_divergence(),
        scale=float(1 / RATE),
    )
    law = sequential_law(0.5, EITHER)
    assert p_value([(theirs(EITHER),) for _ in range(5_000)], law) > RARE
    assert p_value([chosen(1) for _ in range(5_000)], law) > RARE
    for records in (1, 2, 7):
        assert theirs.map(records) == pytest.approx(float((RATE * records) ** 2 / 2), rel=1e-12)


def test_a_score_is_how_far_an_answer_is_off_to_its_side_and_0_beyond():
    differences = np.array([2, 1, 0, -1, -3])
    assert scores_of(differences, "under").tolist() == [2, 1, 0, 0, 0]
    assert scores_of(differences, "over").tolist() == [0, 0, 0, 1, 3]
    assert scores_of(differences, "either").tolist() == [2, 1, 0, 1, 3]


def renyi(p, q, order):
    return math.log(sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (
        order - 1
    )


def worst_costs(side, moves, rate):
    """The largest span of the log ratio of one draw, and rho of one and of two draws."""
    flat = np.array([3, 5, -2, 2, -4])
    score = scores_of(flat, side).tolist()
    laws = [sequential_law(rate, score), sequential_law(rate, score, score)]
    span, costs = 0.0, [0.0, 0.0]
    for move in moves:
        moved = scores_of(flat + move, side).tolist()
        others = [sequential_law(rate, moved), sequential_law(rate, moved, moved)]
        ratios = [math.log(others[0][outcome] / laws[0][outcome]) for outcome in laws[0]]
        span = max(span, max(ratios) - min(ratios))
        for k, (law, other) in enumerate(zip(laws, others, strict=True)):
            p, q = law.values(), other.values()
            for order in (1.01, 2.0, 8.0, 50.0):
                cost = max(renyi(p, q, order), renyi(q, p, order)) / order
                costs[k] = max(costs[k], cost)
    return span, costs


UP, DOWN, ANY = ([*product(steps, repeat=5)] for steps in ((0, 1), (0, -1), (-1, 0, 1)))


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_neighbours_differ_by_no_more_than_the_stated_cost_whatever_their_counts_do(rate):
    tight = 1e-9
    for side, moves in product(("under", "over"), (UP, DOWN)):
        span, (one, two) = worst_costs(side, moves, rate)
        assert span <= rate + tight
        assert one <= rate**2 / 8 + tight
        assert two <= 2 * rate**2 / 8 + tight
    for side in ("under", "over", "either"):
        span, (one, two) = worst_costs(side, ANY[:: 1 if rate == 1.0 else 5], rate)
        assert span <= 2 * rate + tight
        assert one <= rate**2 / 2 + tight
        assert two <= 2 * rate**2 / 2 + tight


def test_queries_of_earlier_rounds_are_never_selected_again():
    taken = np.array([[0, 3], [1, 1], [1, 0]])
    for _ in range(50):
        assert sorted(chosen(4, taken=taken)) == [0, 1, 2, 6]


def test_every_block_is_asked_once_and_the_blocks_of_the_selected_once_more():
    calls = Counter()
    tables = [np.zeros(50), np.full(3, 10**6), np.arange(9), np.full(1, 10**6)]

    def asking(position):
        calls[position] += 1
        return tables[position].astype(np.int64)

    sides = [("under", 3), ("over", 0), ("either", 1)]
    places = select_queries(
        asking, blocks=4, taken=NOBODY, sides=sides, rate=Fraction(1), chance=ExactChance()
    )
    assert sorted(places.tolist()) == [[1, 0], [1, 1], [1, 2], [3, 0]]
    assert calls == {0: 1, 1: 2, 2: 1, 3: 2}


def test_queries_of_one_score_are_taken_by_rank_whatever_was_taken_before():
    tables = [np.full(3, 7), np.zeros(0, dtype=np.int64), np.full(4, 7)]
    ranks = iter([3, 2, 3, 0, 2, 1, 0])
    places = select_queries(
        tables.__getitem__,
        blocks=3,
        taken=NOBODY,
        sides=[("under", 4), ("either", 3)],
        rate=Fraction(1),
        chance=SimpleNamespace(level=lambda *_: 0, below=lambda _: next(ranks)),
    )
    assert places.tolist() == [[2, 0], [0, 2], [2, 2], [0, 0], [2, 3], [2, 1], [0, 1]]


def test_differences_are_whole_whatever_the_public_side_answers():
    exact = np.array([0, 5, 7, 2**36, 3, 4])
    synthetic = np.array([0.49, 7.6, np.nan, -np.inf, np.inf, -1e300])
    far = 2**40
    assert differences_of(exact, synthetic).tolist() == [0, -3, 7, 2**36 + far, 3 - far, 4 + far]


@pytest.mark.parametrize("top", [10, 2**40])
def test_differences_are_counted_alike_in_a_dense_and_in_a_sparse_range(top):
    codes = np.array([3, -7, top, 3, _TAKEN, -7, -7])
    levels, counts = _histogram(codes)
    assert levels.tolist() == [-7, 3, top]
    assert counts.tolist() == [3, 2, 1]
    assert [part.tolist() for part in _histogram(np.array([_TAKEN]))] == [[], []]


def test_a_level_far_below_the_largest_is_reached_once_that_is_empty():
    rate, scores = Fraction(3), [0, 48_842]
    assert ExactChance().level(scores, [1, 1], rate) == 1
    assert ExactChance().level(scores, [1, 0], rate) == 0


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


def by_number(question, rows):
    """The true tables of records in codes, by the number of the candidate."""
    exact = exact_tables(question, rows)
    return lambda number: exact(question.rounds.blocks[number])


def scores(question, tables, model, std):
    """The scores, worked out once more by hand: a number for each candidate."""
    given = question.rounds.candidates
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
        by_number(question, rows),
        model,
        candidates=question.rounds.candidates,
        std=std,
        rate=Fraction(1, 7),
        chance=chance,
    )
    return number, chance.heard


def even(question):
    given = question.rounds.candidates
    return lambda k: np.full(given.sizes[k], 3.5 / given.sizes[k] + 0.2)


def uneven(question):
    """Far too high in every other cell, and too low in the rest."""
    given = question.rounds.candidates
    return lambda k: np.where(np.arange(given.sizes[k]) % 2, 90.0, 0.0)


@pytest.mark.parametrize("records", [5, 30])
def test_tables_of_one_score_are_drawn_together_and_then_one_of_them(records):
    question = ask_tables()
    model, rows = even(question), towns(question, records=records)
    by_hand = scores(question, by_number(question, rows), model, 1.25)
    for level, below in product(range(len(set(by_hand))), range(3)):
        number, (asked, bound) = drawn_from(
            question, rows, model, std=1.25, level=level, below=below
        )
        levels = sorted(set(by_hand))
        assert asked == (levels, [by_hand.count(score) for score in levels], Fraction(1, 7))
        equal = [k for k, score in enumerate(by_hand) if score == levels[level]]
        assert bound == len(equal)
        assert number == equal[min(below, len(equal) - 1)]


@pytest.mark.parametrize(("spec", "records"), [(SPEC, 1), (REPLACE, 1), (PERSON, 3)])
def test_no_neighbour_moves_a_draw_by_more_than_is_paid_for(spec, records):
    """The log ratio of a draw spans at most rate * score_span, and its square is paid for."""
    question = ask_tables(spec)
    budget, model = question.rounds, uneven(question)
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
        moved = np.array(scores(question, by_number(question, after), model, 2.0)) - np.array(
            scores(question, by_number(question, before), model, 2.0)
        )
        widest = max(widest, int(moved.max() - moved.min()), 2 * int(np.abs(moved).max()))
        assert moved.max() - moved.min() <= budget.score_span
    assert widest == budget.score_span  # as far as any could, for one table alone
    spent = budget.round(0, budget.rounds_rho)
    bounded = (spent.rate * budget.score_span) ** 2 / 8
    assert bounded <= spent.selection_rho <= bounded * (1 + Fraction(1, 10**9))


def test_penalties_are_what_noise_is_expected_to_measure_and_know_no_data():
    question = ask_tables()
    given = question.rounds.candidates
    noise = np.random.default_rng(0).normal(0, 2.5, (4000, max(given.sizes)))
    for size, penalty in zip(given.sizes, penalties_of(given, 2.5), strict=True):
        assert penalty == pytest.approx(np.abs(noise[:, :size]).sum(axis=1).mean(), abs=0.8)
    rows = [towns(question, records=n) for n in (4, 40)]
    offsets = []
    for records in rows:
        tables = by_number(question, records)
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
    monkeypatch.setattr("dpquery.measurement.rounds.tables.CELLS_AT_ONCE", cells_at_once)
    expected = [int(np.abs(x - np.rint(y)).sum()) for x, y in zip(exact, model, strict=True)]
    assert distances(exact.__getitem__, model.__getitem__, sizes) == expected


def tables_of_spec(text):
    return candidate_tables(compile_spec(parse(text, name="town.yaml", files={})).workload)


def test_candidates_are_all_tables_below_what_is_asked_and_weigh_what_they_share():
    given = ask_tables().rounds.candidates
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
