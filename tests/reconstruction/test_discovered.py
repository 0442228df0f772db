"""What is said of numbers and of rows of persons that were discovered, against the truth."""

from itertools import pairwise

import numpy as np
import pytest

from dpquery.reconstruction.discovered import edge_text, found_numbers, max_rows_table
from dpquery.spec.numbers import CLASS_DIGITS, ROW_DIGITS, class_edges, classes_by

DRAWS = 60


def in_classes(values, digits_of_levels):
    """Return how many values are in each public class, found by its edges."""
    levels = []
    for digits in digits_of_levels:
        places = range(-classes_by(digits), classes_by(digits) + 1)
        edges = [float(class_edges(digits, place)[0]) for place in places]
        edges.append(float(class_edges(digits, places[-1])[1]))
        assert all(low < high for low, high in pairwise(edges))
        levels.append(np.histogram(values, edges)[0])
    return np.concatenate(levels)


def noisy(counts, std, rng):
    return counts + np.rint(rng.normal(0, std, counts.size)).astype(np.int64)


ROWS = {
    "a long tail": lambda rng: 1 + rng.geometric(0.08, 4000),
    "just above ten": lambda rng: rng.integers(10, 13, 3000),
    "few with most": lambda rng: np.minimum(20 * (1 + rng.pareto(1.2, 700)), 3000).astype(int),
    "each number a class": lambda rng: rng.integers(1, 5, 11_000),
    "few beyond a gap": lambda rng: np.r_[rng.integers(1, 5, 20_000), rng.integers(10, 16, 180)],
    "hundreds": lambda rng: rng.integers(1, 400, 6000),
}


@pytest.mark.statistical
@pytest.mark.nightly(daily="a long tail-8")
@pytest.mark.parametrize("std", [8.0, 40.0])
@pytest.mark.parametrize("name", ROWS)
def test_the_share_of_rows_left_out_and_the_error_are_in_their_intervals(name, std):
    rng = np.random.default_rng(5)
    rows = ROWS[name](rng)
    counts = in_classes(rows, ROW_DIGITS)
    shares, errors, known = [], [], []
    for _ in range(DRAWS):
        table = max_rows_table(noisy(counts, std, rng), std, cells=10, std_of_one=3.0)
        for smaller, larger in pairwise(table):
            assert smaller.left_out_low >= larger.left_out_low
            assert smaller.left_out_high >= larger.left_out_high
        for each in table:
            left = np.maximum(rows - each.max_rows, 0).sum()
            share, error = left / rows.sum(), np.hypot(left / 10, each.noise_std)
            shares.append(each.left_out_low - 1e-9 <= share <= each.left_out_high + 1e-9)
            errors.append(each.error_low - 1e-9 <= error <= each.error_high + 1e-9)
            known.append(each.left_out_high - each.left_out_low)
            assert each.noise_std == 3.0 * each.max_rows
    assert min(np.mean(shares), np.mean(errors)) > 0.9
    assert np.median(known) < 0.5


@pytest.mark.statistical
@pytest.mark.parametrize("std", [5.0, 20.0])
def test_the_max_rows_of_least_regret_has_at_most_thrice_the_least_error_on_average(std):
    rng = np.random.default_rng(8)
    rows, over = rng.integers(1, 25, 1200), []
    counts = in_classes(rows, ROW_DIGITS)

    def error(most):
        return np.hypot(np.maximum(rows - most, 0).sum() / 20, 0.1 * most)

    least = min(map(error, range(1, 30)))
    for _ in range(DRAWS):
        table = max_rows_table(noisy(counts, std, rng), std, cells=20, std_of_one=0.1)
        best = min(table, key=lambda each: each.regret)
        over.append(error(best.max_rows) / least)
    assert np.mean(over) < 3


NUMBERS = {
    "spread thinly": lambda rng: np.round(rng.normal(5, 30, 20_000), 1),
    "skewed": lambda rng: np.round(rng.exponential(2000, 20_000)),
}


@pytest.mark.statistical
@pytest.mark.nightly(daily="skewed-10")
@pytest.mark.parametrize("std", [10.0, 50.0])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_bins_and_outside_of_them_are_within_their_deviations(name, std):
    rng = np.random.default_rng(6)
    numbers = NUMBERS[name](rng)
    counts = in_classes(numbers, CLASS_DIGITS)
    outside, inside = [], []
    for _ in range(DRAWS):
        found = found_numbers(noisy(counts, std, rng), std)
        low, high = float(found.edges[0]), float(found.edges[-1])
        assert [stop for _, stop, *_ in found.bins[:-1]] == [low for low, *_ in found.bins[1:]]
        beyond = ((numbers < low) | (numbers >= high)).sum()
        outside.append((found.outside - beyond) / found.outside_std)
        inside += [
            (n - ((numbers >= float(a)) & (numbers < float(b))).sum()) / deviation
            for a, b, n, deviation, _ in found.bins
        ]
    for off in (outside, inside):
        assert 0.8 < np.sqrt(np.mean(np.square(off))) < 1.25


def test_numbers_that_hide_in_the_noise_class_by_class_are_in_the_range():
    """166 in each class by one digit, of which one is seen: noise passes 190 in none."""
    rng = np.random.default_rng(7)
    numbers = np.r_[np.round(rng.uniform(-130, -10, 2000)), np.full(300, -55)]
    counts, lost = in_classes(numbers, CLASS_DIGITS), []
    for _ in range(DRAWS):
        found = found_numbers(noisy(counts, 40.0, rng), 40.0)
        beyond = (numbers < float(found.edges[0])) | (numbers >= float(found.edges[-1]))
        lost.append(beyond.mean())
        assert lost[-1] <= found.most_outside
    assert np.mean(lost) < 0.1


@pytest.mark.parametrize(
    ("numbers", "std", "edges"),
    [
        (lambda rng: rng.integers(17, 90, 20_000), 20.0, "10 20 30 40 50 60 70 80 90"),
        (lambda rng: rng.integers(0, 8, 9000), 20.0, "0 1 2 3 4 5 6 7 8"),
        (lambda rng: rng.uniform(-2, 2, 20_000), 20.0, "-2 -1.5 -1 -0.5 0 0.5 1 1.5 2"),
        (lambda rng: rng.integers(9, 13, 9000), 20.0, "9 10 11 12"),
        (lambda rng: 10 ** rng.uniform(0, 6, 50_000), 20.0, "1 3 10 30 100 300 1000 3000"),
        (lambda rng: rng.integers(1950, 2020, 20_000), 5.0, "1950 1960 1970 1980 1990 2000 2010"),
        (lambda rng: rng.integers(17, 90, 1500), 40.0, "20 40 60 80"),
    ],
)
def test_bins_have_edges_that_a_person_would_choose(numbers, std, edges):
    rng = np.random.default_rng(2)
    counts = in_classes(numbers(rng), CLASS_DIGITS)
    found = found_numbers(noisy(counts, std, rng), std)
    assert " ".join(map(edge_text, found.edges)).startswith(edges)
    assert len(found.bins) <= 12


def test_zeros_alone_make_no_range():
    counts = in_classes(np.zeros(5000), CLASS_DIGITS)
    assert found_numbers(counts, 10.0) is None
