"""Queries are selected by the exact exponential mechanism, without replacement, at the stated cost.

The law is held against rational enclosures bit by bit; draws are held against the law, and against
Gumbel noise and OpenDP's noisy maximum, which are said to have it.
"""

import math
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import opendp.prelude as dp
import pytest
from noise_support import chi_square

from dpquery.measurement.selection import (
    ExactChance,
    _decided,
    _draw,
    _histogram,
    _weight,
    scores_of,
    select,
)

BLOCKS = ([0, 3, 3, 5], [2, 5, 1])
FLAT = [score for block in BLOCKS for score in block]
RATE = Fraction(1, 2)
NOBODY = np.zeros((0, 2), dtype=np.int64)
RARE = 1e-9


def scores(position):
    return np.array(BLOCKS[position])


def chosen(size, *, rate=RATE, taken=NOBODY):
    """Flat numbers of the queries selected, in order."""
    places = select(
        scores, blocks=2, taken=taken, size=size, rate=rate, chance=ExactChance()
    ).tolist()
    return tuple(4 * block + row for block, row in places)


def sequential_law(flat, rate, size):
    """Probability of every ordered selection, drawing one query after another."""
    weights = [math.exp(rate * own) for own in flat]
    law = {}
    for order in permutations(range(len(flat)), size):
        left, probability = sum(weights), 1.0
        for own in order:
            probability *= weights[own] / left
            left -= weights[own]
        law[order] = probability
    return law


def p_value(sample, law):
    seen = Counter(sample)
    assert set(seen) <= set(law)
    expected = np.array(list(law.values())) * len(sample)
    return chi_square(np.array([seen[own] for own in law]), expected)


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
                own = -Decimal(rate.numerator * gap) / rate.denominator
                exact = own.exp() * (1 << fineness)
            low = _weight(gap, rate, fineness)
            assert low <= exact <= low + 3


def test_a_draw_that_its_first_bits_leave_open_goes_on_with_more():
    levels, members = [0, 1], [1, 1]
    with localcontext(prec=100):
        threshold = int((1 / (1 + Decimal(-1).exp())) * (1 << 128))
    first, low = threshold >> 64, threshold & (2**64 - 1)
    for later, expected in ((low - 2**20, 1), (low + 2**20, 0)):
        words = [first, later, 0]
        asked = []

        def entropy(size, words=words, asked=asked):
            asked.append(size)
            return words.pop(0).to_bytes(size, "little")

        assert _decided(first, 64, levels, members, Fraction(1)) is None
        assert ExactChance(entropy).level(levels, members, Fraction(1)) == expected
        assert asked == [8, 8]


@pytest.mark.parametrize("bound", [1, 2, 5, 8, 200])
def test_every_number_below_a_bound_has_as_many_bytes(bound):
    drawn = Counter()
    for byte in range(256):
        again = iter([byte, 0])
        chance = ExactChance(lambda size, again=again: bytes([next(again)] * size))
        drawn[chance.below(bound)] += next(again, None) is not None or bound == 1
    assert len({drawn[own] for own in range(bound)}) == 1
    assert set(drawn) == set(range(bound))


@pytest.mark.statistical
def test_selections_follow_the_law_of_one_exponential_mechanism_after_another():
    sample = [chosen(2) for _ in range(10_000)]
    assert p_value(sample, sequential_law(FLAT, 0.5, 2)) > RARE
    for factor in (1 / 1.2, 1.2):
        assert p_value(sample, sequential_law(FLAT, 0.5 * factor, 2)) < RARE


@pytest.mark.statistical
def test_selections_follow_the_law_of_the_largest_with_gumbel_noise():
    size = 50_000
    noise = np.random.default_rng(0).gumbel(scale=2.0, size=(size, len(FLAT)))
    largest = np.argsort(-(np.array(FLAT) + noise), axis=1)[:, :3]
    law = sequential_law(FLAT, 0.5, 3)
    assert p_value([tuple(own) for own in largest.tolist()], law) > RARE
    assert p_value([chosen(3) for _ in range(5_000)], law) > RARE


@pytest.mark.statistical
def test_openDPs_noisy_maximum_has_the_same_law_and_the_same_cost():
    dp.enable_features("contrib")
    theirs = dp.m.make_noisy_max(
        dp.vector_domain(dp.atom_domain(T="i32")),
        dp.linf_distance(T="i32"),
        dp.zero_concentrated_divergence(),
        scale=float(1 / RATE),
    )
    law = sequential_law(FLAT, 0.5, 1)
    assert p_value([(theirs(FLAT),) for _ in range(5_000)], law) > RARE
    assert p_value([chosen(1) for _ in range(5_000)], law) > RARE
    for records in (1, 2, 7):
        assert theirs.map(records) == pytest.approx(float((RATE * records) ** 2 / 2), rel=1e-12)


def renyi(p, q, order):
    return math.log(sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (
        order - 1
    )


@pytest.mark.parametrize("rate", [0.1, 0.5, 2.0])
def test_neighbours_differ_by_no_more_than_the_stated_cost_whatever_their_scores_do(rate):
    flat, worst = [3, 5, 2, 2], 0.0
    law = sequential_law(flat, rate, 2)
    for move in product((-1, 0, 1), repeat=4):
        other = sequential_law([s + d for s, d in zip(flat, move, strict=True)], rate, 2)
        single, moved = (
            list(sequential_law([s + d for s, d in zip(flat, by, strict=True)], rate, 1).values())
            for by in ((0,) * 4, move)
        )
        ratios = [math.log(b / a) for a, b in zip(single, moved, strict=True)]
        assert max(ratios) - min(ratios) <= 2 * rate + 1e-9
        for order in (1.01, 2.0, 8.0, 50.0):
            cost = renyi(moved, single, order) / order
            assert cost <= rate**2 / 2 + 1e-9
            assert renyi(other.values(), law.values(), order) / order <= 2 * rate**2 / 2 + 1e-9
            worst = max(worst, cost)
    # A quarter of it, as for scores that all move the same way, would not do.
    assert worst > rate**2 / 8 or rate > 1


def test_queries_of_earlier_rounds_are_never_selected_again():
    taken = np.array([[0, 3], [1, 1], [1, 0]])
    for _ in range(50):
        assert sorted(chosen(4, taken=taken)) == [0, 1, 2, 6]


def test_every_block_is_asked_once_and_the_blocks_of_the_selected_once_more():
    asked = Counter()
    tables = [np.zeros(50), np.full(3, 10**6), np.arange(9), np.full(1, 10**6)]

    def asking(position):
        asked[position] += 1
        return tables[position].astype(np.int64)

    places = select(asking, blocks=4, taken=NOBODY, size=4, rate=Fraction(1), chance=ExactChance())
    assert sorted(places.tolist()) == [[1, 0], [1, 1], [1, 2], [3, 0]]
    assert asked == {0: 1, 1: 2, 2: 1, 3: 2}


def test_ranks_among_the_members_of_a_level_are_drawn_without_replacement():
    class Lowest(ExactChance):
        def level(self, *_):
            return 0

        def below(self, bound):
            return (bound - 1) // 2

    drawn = _draw([4], [7], size=7, rate=Fraction(1), chance=Lowest())
    assert [rank for _, rank in drawn] == [3, 2, 4, 1, 5, 0, 6]


def test_scores_are_whole_distances_whatever_the_public_side_answers():
    exact = np.array([0, 5, 7, 2**36, 3, 4])
    synthetic = np.array([0.49, 7.6, np.nan, -np.inf, np.inf, -1e300])
    assert scores_of(exact, synthetic).tolist() == [
        0,
        3,
        7,
        2**36 + 2**40,
        2**40 - 3,
        2**40 + 4,
    ]


@pytest.mark.parametrize("top", [10, 2**40])
def test_scores_are_counted_alike_in_a_dense_and_in_a_sparse_range(top):
    own = np.array([3, 0, top, 3, -1, 0, 0])
    levels, counts = _histogram(own)
    assert levels.tolist() == [0, 3, top]
    assert counts.tolist() == [3, 2, 1]
    assert [part.tolist() for part in _histogram(np.array([-1, -1]))] == [[], []]


def test_a_level_far_below_the_largest_is_reached_once_that_is_empty():
    levels, members = [0, 48_842], [1, 1]
    assert _draw(levels, members, size=2, rate=Fraction(3), chance=ExactChance()) == [
        (1, 0),
        (0, 0),
    ]
