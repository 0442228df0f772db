"""Random thresholds in a spec: the published law, exactly, and the same on every machine."""

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
from specs import BASE

from dpquery.public_chance import PublicDraws
from dpquery.spec.parsing import thresholds
from dpquery.spec.parsing.read import parse
from dpquery.spec.parsing.thresholds import (
    TooManySetsError,
    WeightedSets,
    draw_sets,
    geometric,
    zipf,
)
from dpquery.spec.predicates import IdentitySet

SIZES = (9, 5, 16, 7, 2, 30)
WEIGHTS = {
    "uniform": thresholds.uniform(6),
    "zipf": zipf(6),
    "geometric": geometric(6, Fraction(2, 7)),
}


def tables(threshold: str) -> list[tuple[int, ...]]:
    text = BASE.replace("product: {age: prefix, sex: identity}", f"threshold: {threshold}")
    (item,) = parse(text, name="w.yaml", files={}).items
    assert all(table.at_least == 2 for table in item.tables)
    assert all(isinstance(axis, IdentitySet) for table in item.tables for _, axis in table.axes)
    return [tuple(i for i, _ in table.axes) for table in item.tables]


def test_a_sample_is_fixed_by_its_seed() -> None:
    """These very sets: another Python, or another machine, may not draw others."""
    sampled = tables("{r: 2, k: 3, sample: 6, seed: 0}")
    assert sampled == [(0, 1, 2), (0, 1, 5), (2, 4, 5), (0, 3, 4), (1, 4, 5), (1, 3, 4)]
    assert tables("{r: 2, k: 3, sample: 6, seed: 1}") != sampled
    assert tables("{r: 2, k: 3, sample: 4, seed: 0}") == sampled[:4]


def test_over_and_max_cells_say_what_may_be_drawn() -> None:
    sampled = tables("{r: 2, k: 2, sample: 3, seed: 0, over: [race, sex, age]}")
    assert sorted(sampled) == [(0, 1), (0, 5), (1, 5)]
    # Sizes are 10, 2, 4, 3, 2 and 2 * 2 * 3.
    small = tables("{r: 2, k: 2, sample: 5, seed: 4, max_cells: 8}")
    assert sorted(small) == [(1, 2), (1, 3), (1, 4), (2, 4), (3, 4)]


def test_the_first_attribute_named_is_the_likeliest() -> None:
    first = "{r: 2, k: 2, sample: 3, seed: 0, over: [%s], distribution: {geometric: 0.99}}"
    assert all(0 in members for members in tables(first % "age, sex, state, income, race"))
    assert all(5 in members for members in tables(first % "race, sex, state, income, age"))


@pytest.mark.parametrize("law", WEIGHTS)
@pytest.mark.parametrize("max_cells", [None, 200, 60])
def test_every_set_is_as_long_as_the_product_of_its_weights(law: str, max_cells: int) -> None:
    weights = WEIGHTS[law]
    for k in range(1, 7):
        every = [
            members
            for members in combinations(range(6), k)
            if max_cells is None or math.prod(SIZES[i] for i in members) <= max_cells
        ]
        sets, place, numbers = WeightedSets(SIZES, weights, k, max_cells), 0, []
        while place < sets.total:
            chosen, start, weight = sets.at(place)
            assert (chosen, start, weight) == sets.at(place + weight - 1)
            assert weight == math.prod(weights[i] for i in chosen)
            assert start == place
            numbers.append(chosen)
            place += weight
        assert sorted(numbers) == every
        assert sets.count == len(every)


def test_sets_are_drawn_by_that_law_and_none_twice() -> None:
    weights = [6, 3, 2, 1]
    sets, runs = WeightedSets((2, 2, 2, 2), weights, 2, None), 6000
    pairs = Counter(tuple(draw_sets(sets, 2, seed)) for seed in range(runs))
    for (first, second), count in pairs.items():
        one, other = (math.prod(weights[i] for i in members) for members in (first, second))
        p = one / sets.total * other / (sets.total - one)
        assert abs(count - runs * p) < 5 * math.sqrt(runs * p)
    assert len(pairs) == 6 * 5
    every = draw_sets(sets, 6, 7)
    assert sorted(every) == list(combinations(range(4), 2))


def test_draws_below_a_bound_are_even() -> None:
    for bound in (1, 2, 3, 7, 1000):
        draws = PublicDraws(bound)
        counts = Counter(draws.below(bound) % 7 for _ in range(7000))
        expected = [sum(v % 7 == rest for v in range(bound)) / bound for rest in range(7)]
        for rest, p in enumerate(expected):
            assert abs(counts[rest] - 7000 * p) <= 5 * math.sqrt(7000 * p)
    assert 0 <= PublicDraws(3).below(10**400) < 10**400


def test_a_hundred_attributes_are_counted_but_not_any_number_of_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = WeightedSets([100] * 300, thresholds.uniform(300), 6, 10**12)
    assert sets.count == math.comb(300, 6)
    assert len(set(draw_sets(sets, 50, 0))) == 50
    monkeypatch.setattr(thresholds, "MAX_DRAW_SUMS", 100)
    with pytest.raises(TooManySetsError):
        WeightedSets(range(2, 60), thresholds.uniform(58), 5, 10**6)
