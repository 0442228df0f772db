"""Replicate weights: what is added up of them, how far a record moves that, and what it tells."""

from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from release_parts import columns_of, told_by_releases
from town import ok, run

from dpquery.audit.planned_cases import planned_in
from dpquery.exceptions import DataError, SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_COUNTED_CELLS
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting import tables
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.counting.tabulate import check_table_sizes, tabulate
from dpquery.measurement.counting.tally import difference_steps
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.operators.blocks import marginal, product
from dpquery.operators.factors import Identity
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.replicate_errors import ReplicateErrors, least_told
from dpquery.spec.parsing.read import parse
from dpquery.strategy.shapes.marginals import MarginalsStrategy

SPEC = """\
dataset: {id: sample, version: "1", rows: about 400}
privacy:
  unit: row
  delta: 1e-6
  weight:
    column: wt
    at_most: 12
    step: 0.5
    total: 2000
    effective: 300
    replicates: {first: rep08, count: 4, factor: 0.25, at_most: 20}
budget: {epsilon: 1000000, delta: 1e-5, accounting: gdp}
domain:
  sex: {values: [F, M]}
  age: {range: [0, 3]}
workload:
  - {name: both, product: {sex: identity+total, age: identity}}
  - {name: ages, sum: {of: age, by: {sex: identity}}}
derived:
  - {name: of_an_age, share: {of: both, within: [age]}}
  - {name: mean_age, mean: {sum: ages}}
  - {name: gap, difference: {of: both, between: {sex: [F, M]}}}
  - {name: in_all, merged: {of: both, over: age, rel_error: 1e-9}}
"""
NAMES = ["rep08", "rep09", "rep10", "rep11"]
PERSONS = SPEC.replace("unit: row", "unit: {person: id, max_rows: 2}\n  neighbours: replace")


def spec_of(text=SPEC):
    return parse(text, name="workload.yaml", files={})


def weight_of(text=SPEC):
    return spec_of(text).privacy.weight


def dense(rows):
    """Return what records add up, each (sex, age, weight, replicates): (5, 2, 4), slowly."""
    sums = np.zeros((5, 2, 4))
    for sex, age, weight, replicates in rows:
        if weight < 0.25:
            continue
        counted = int(min(weight, 12.0) * 2 + 0.5)
        left = min(1.0, 12 / weight) * 2
        exact = [(each - weight) * left for each in replicates]
        steps = [round(each) for each in exact]
        if sum(each * each for each in steps) > 40**2:
            length = sum(each * each for each in exact) ** 0.5
            steps = [int(each * min(1.0, 40 / length)) for each in exact]
        sums[:, sex, age] += [counted, *steps]
    return sums


def sampled(rng, number):
    """Return records with half samples of them for replicates, and a few with odd weights."""
    rows = []
    for k in range(number):
        weight = float(rng.choice([0.2, 2.0, 3.7, 5.0, 11.1, 14.0]))
        kept = rng.integers(0, 2, 4)
        replicates = [2 * weight * half if k % 7 else weight * 1.07 * half - 1 for half in kept]
        rows.append((int(rng.integers(2)), int(rng.integers(4)), weight, replicates))
    return rows


def written(path, rows, ids=None):
    """Write records to a CSV file, of persons where their ids are given."""
    lines = ["sex,age,wt," + ",".join(NAMES) + ",id" * (ids is not None)]
    for k, (sex, age, weight, replicates) in enumerate(rows):
        values = ["FM"[sex], age, weight, *replicates, *([] if ids is None else [ids[k]])]
        lines.append(",".join(map(str, values)))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_tables_are_those_of_a_slow_count(tmp_path):
    rows = sampled(np.random.default_rng(1), 300)
    found = tabulate(written(tmp_path / "a.csv", rows), spec=spec_of(), subsets=[(0, 1), (0,), ()])
    assert np.array_equal(found[0, 1][:, :2, :4], dense(rows))
    assert np.array_equal(found[0,][:, :2], dense(rows).sum(axis=2))
    assert np.array_equal(found[()], dense(rows).sum(axis=(1, 2)))
    # of persons, none of whom has more rows than count
    ids = np.arange(300) // 2
    path, persons = written(tmp_path / "b.csv", rows, ids), spec_of(PERSONS)
    found = tabulate(path, spec=persons, subsets=[(0, 1)])
    assert np.array_equal(found[0, 1][:, :2, :4], dense(rows))
    again = tabulate(path, spec=persons, subsets=[(0, 1)], memory=4000)  # in several passes
    assert np.array_equal(again[0, 1][:, :2, :4], dense(rows))


@pytest.mark.parametrize("kind", [pa.float64(), pa.large_string()])
def test_typed_replicate_weights_are_read_as_their_texts_are(tmp_path, kind):
    rows = sampled(np.random.default_rng(2), 60)
    of_row = [[sex, age, weight, *each] for sex, age, weight, each in rows]
    sex, age, *numbers = zip(*of_row, strict=True)
    columns = {"sex": ["FM"[each] for each in sex], "age": list(age)}
    texts = ([str(each) for each in column] for column in numbers)
    parsed = {
        name: pa.array(text).cast(kind) for name, text in zip(["wt", *NAMES], texts, strict=True)
    }
    pq.write_table(pa.table(columns | parsed), tmp_path / "a.parquet")
    found = tabulate(tmp_path / "a.parquet", spec=spec_of(), subsets=[(0, 1)])
    assert np.array_equal(found[0, 1][:, :2, :4], dense(rows))


TEXTS = {
    ("4", "4", "4", "4", "4"): [0, 0, 0, 0],
    ("4", "0", "", "x", "nan"): [-8, -8, -8, -8],  # what is no number is 0
    ("4", "-1", "8", "1e0", " 4 "): [-10, 8, -6, 0],  # what is below 0 stands
    ("24", "48", "0", "24", "24"): [24, -24, 0, 0],  # of a weight cut in half, half of it
    ("4", "1e308", "4", "4", "4"): [40, 0, 0, 0],  # scaled down
    ("4", "1e308", "1e308", "1e308", "4"): [23, 23, 23, 0],  # and towards 0
    ("4", "-inf", "inf", "-1e400", "4"): [-8, -8, -8, 0],  # as a weight would be
    ("0.2", "9", "9", "9", "9"): [0, 0, 0, 0],  # of no weight
    ("x", "9", "9", "9", "9"): [0, 0, 0, 0],
    ("-3", "9", "9", "9", "9"): [0, 0, 0, 0],
}


@pytest.mark.parametrize(("texts", "steps"), TEXTS.items())
def test_texts_add_the_differences_that_are_documented(tmp_path, texts, steps):
    path = tmp_path / "a.csv"
    path.write_text("sex,age,wt," + ",".join(NAMES) + "\nF,1," + ",".join(texts) + "\nM\n")
    _, *found = tabulate(path, spec=spec_of(), subsets=[()])[()]
    assert [int(each) for each in found] == steps
    assert sum(int(each) ** 2 for each in found) <= 40**2


def test_no_numbers_make_differences_longer_than_the_cap():
    rng, weight = np.random.default_rng(3), weight_of()
    full = 10.0 ** rng.uniform(-1, 6, 20_000)
    far = 10.0 ** rng.uniform(-3, 300, (4, 20_000)) * rng.choice([-1, 1], (4, 20_000))
    near = full + rng.normal(0, 10, (4, 20_000))
    at = full + 10 * rng.choice([-1, 1], (4, 20_000))  # of length 20 where the weight is kept
    odd = np.where(rng.random((4, 20_000)) < 0.5, np.nan, 1.7e308)
    for replicates in (far, near, at, odd):
        steps = difference_steps(full, replicates, weight)
        assert steps.dtype == np.int64
        assert (steps**2).sum(axis=0).max() <= 40**2
    # What is no longer than the cap is only rounded, and what is longer keeps its direction.
    full = np.full(20_000, 9.0)
    near = full + rng.normal(0, 10, (4, 20_000))
    exact, steps = (near - full) * 2, difference_steps(full, near, weight)
    length = np.sqrt((exact**2).sum(axis=0))
    short = (np.rint(exact) ** 2).sum(axis=0) <= 40**2
    assert 0.2 < short.mean() < 0.9
    assert np.abs(steps - exact)[:, short].max() <= 0.5
    assert np.abs(steps - exact * np.minimum(1, 40 / length))[:, ~short].max() <= 1
    full_steps = np.sqrt((steps**2).sum(axis=0))[~short]
    assert full_steps.min() > 40 - 2.1


def _unit_records():
    """Return what one record can be, at the corners: a cell, and differences of length 40."""
    vectors = [(40, 0, 0, 0), (-40, 0, 0, 0), (0, 0, 40, 0), (20, -20, 20, 20), (-20, 20, -20, -20)]
    cells = [(sex, age) for sex in range(2) for age in range(4)]
    return [(cell, np.array(vector)) for cell in cells for vector in vectors]


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("sets", [{(0, 1): 3}, {(0, 1): 2, (0,): 5, (): 1}, {(0,): 1, (1,): 2}])
def test_no_differences_move_all_sums_together_further_than_the_sensitivity(sets, rows, neighbours):
    unit = f"{{person: id, max_rows: {rows}}}" if rows > 1 else "row"
    text = SPEC.replace("unit: row", f"unit: {unit}\n  neighbours: {neighbours}")
    strategy, privacy = MarginalsStrategy("m", "gaussian", (2, 4), sets), spec_of(text).privacy
    terms = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6), accounting="gdp")
    noise = calibrated_noise(strategy, privacy=privacy, guarantee=terms)
    assert noise.beside.copies == 4
    assert noise.beside.scale == pytest.approx(3 * noise.scale * _moved_by(noise), rel=1e-6)
    columns = {}
    for cell in np.ndindex(2, 4):
        table = np.zeros((2, 4), dtype=np.int64)
        table[cell] = 1
        columns[cell] = np.concatenate(
            [
                each.weight
                * each.block.apply(
                    table.sum(axis=tuple(i for i in (0, 1) if i not in each.block.attributes))
                ).ravel()
                for each in strategy.measurements
            ]
        )
    moves = [np.outer(columns[cell], vector) for cell, vector in _unit_records()]
    furthest = max((move**2).sum() for move in moves)
    if neighbours == "replace":
        furthest = max(((one - other) ** 2).sum() for one, other in combinations(moves, 2))
    assert furthest * rows**2 == noise.beside.sensitivity


def _moved_by(noise):
    """Return how many times as far as all weights all differences move."""
    return (noise.beside.sensitivity / noise.sensitivity) ** 0.5


SHAPE = (2, 4)


def told_of(sums, std, rng=None):
    """Return the errors of a sample by what is added up, with noise of a standard error."""
    strategy = MarginalsStrategy("m", "gaussian", SHAPE, {(0, 1): 1})
    parts = []
    for part in sums:
        noise = 0.0 if rng is None else rng.normal(0, std, 8)
        parts.append(Measured(strategy, [part.ravel() + noise], std))
    return ReplicateErrors(parts[0], 0.95, tuple(parts[1:]), 0.25, 3)


def by_replicates(sums, statistic):
    """Return the variance of a statistic of a table by replicate weights, one after the other."""
    weights, *differences = sums
    full = np.asarray(statistic(weights))
    return 0.25 * sum((np.asarray(statistic(weights + each)) - full) ** 2 for each in differences)


def test_without_noise_it_is_what_the_answers_by_each_replicate_say():
    sums = dense(sampled(np.random.default_rng(4), 300)) / 2
    errors = told_of(sums, 1e-9)
    cells, sexes, every = marginal(SHAPE, (0, 1)), marginal(SHAPE, (0,)), product(SHAPE, {})
    for block, statistic in (
        (cells, np.ravel),
        (sexes, lambda table: table.sum(axis=1)),
        (every, lambda table: [table.sum()]),
    ):
        told = errors.variances(block, None)
        assert np.allclose(told.variance, by_replicates(sums, statistic), rtol=1e-6)
        assert np.allclose(told.degrees, 3)
    # Differences, of rows that share records too; and quotients, linearised.
    women = product(SHAPE, {0: Identity(2), 1: Identity(4)})
    found = errors.difference_variances((women, None), (women, None)).variance
    assert (found == 0).all()
    weights, *differences = sums
    shares = (weights / weights.sum(axis=1, keepdims=True)).ravel()
    of_rows = np.repeat([0, 1], 4)
    found = errors.quotient_variances((cells, None), (sexes, None), of_rows, shares).variance
    slow = 0.25 * sum(
        (each.ravel() - shares * each.sum(axis=1)[of_rows]) ** 2 for each in differences
    )
    assert np.allclose(found, slow, rtol=1e-6)
    # that of a row over itself is certain
    found = errors.quotient_variances((sexes, None), (sexes, None), np.arange(2), np.ones(2))
    assert (found.variance == 0).all()

    merged = errors.merged_variances(
        cells, None, lambda x: x.reshape(2, 4).sum(axis=1), np.full(2, 1e-9)
    )
    assert np.allclose(merged.variance, by_replicates(sums, lambda t: t.sum(axis=1)), rtol=1e-6)


def test_noise_moves_it_to_no_side_and_hides_what_is_small(monkeypatch):
    sums = dense(sampled(np.random.default_rng(5), 300)) / 2
    rng = np.random.default_rng(6)
    cells = marginal(SHAPE, (0, 1))
    exact = by_replicates(sums, np.ravel)
    std = float(np.sqrt(exact.mean()))
    monkeypatch.setattr("dpquery.reconstruction.replicate_errors.LEAST", -np.inf)
    found = []
    for _ in range(4000):
        squared = told_of(sums, std, rng)
        squares = [(each.noisy[0]) ** 2 - std**2 for each in squared.differences]
        told = squared.variances(cells, None).variance
        assert np.allclose(np.nan_to_num(told), np.maximum(0.25 * sum(squares), 0))
        found.append(0.25 * sum(squares))
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - exact) < 6 * error).all()
    # What it says of its own standard error is so, on average.
    due = 0.25 * np.sqrt(16 * std**2 * exact + 8 * std**4)
    assert np.allclose(np.std(found, axis=0), due, rtol=0.1)


def test_it_is_told_from_three_standard_errors_of_noise_on():
    sums = dense(sampled(np.random.default_rng(7), 300)) / 2
    cells = marginal(SHAPE, (0, 1))
    variance = told_of(sums, 1e-9).variances(cells, None).variance
    for place in range(8):
        low, high = 1e-6, 1e6
        for _ in range(80):  # the noise with which this variance, left of the sum, is the least
            middle = (low + high) / 2
            least = least_told(0.25, 4, middle) + 0.25 * 4 * middle**2
            low, high = (middle, high) if least < variance[place] else (low, middle)
        known = told_of(sums, low * 0.999).variances(cells, None)
        hidden = told_of(sums, low * 1.001).variances(cells, None)
        assert not np.isnan(known.variance[place])
        assert np.isnan(hidden.variance[place])
        # a third of it is noise: degrees 1 / (1 / 3 + 1 / 18), and three without
        assert known.degrees[place] == pytest.approx(1 / (1 / 3 + 1 / 18), rel=1e-2)
    assert told_of(sums, 1e6).missing(cells, None).startswith("noise hides")
    assert told_of(sums, 1e-9).missing(cells, None) == ""


@pytest.fixture
def sample(own_folder):
    rows = sampled(np.random.default_rng(8), 400)
    written(Path("data.csv"), rows)
    Path("workload.yaml").write_text(SPEC)
    ok("plan", "workload.yaml", "--epsilon", "5000")
    ok("release", "data.csv", "--epsilon", "5000")
    return rows


def test_a_release_tells_counts_sums_shares_means_and_differences(sample):
    both, total = columns_of("release/both.parquet"), lambda t: np.vstack([t, t.sum(axis=0)])
    due = np.sqrt(by_replicates(dense(sample) / 2, total).ravel())
    order = [("FM".find(s) % 3, int(a)) for s, a in zip(both["sex"], both["age"], strict=True)]
    told = both["sampling_std"]
    for place, (sex, age) in enumerate(order):
        assert told[place] == pytest.approx(due[sex * 4 + age], rel=0.1)
    total_std = np.hypot(told, both["std_error"])
    assert np.allclose(both["total_std"], total_std)

    def due_of(statistic):
        weights, *differences = dense(sample) / 2
        moved = [
            np.array(statistic(weights + 1e-6 * each)) - statistic(weights) for each in differences
        ]
        return 0.5 * np.sqrt(sum(each**2 for each in moved)) * 1e6

    for name, statistic in (
        ("ages", lambda t: t @ np.arange(4)),
        ("mean_age", lambda t: t @ np.arange(4) / t.sum(axis=1)),
        ("gap", lambda t: t[0] - t[1]),
        ("of_an_age", lambda t: (total(t) / t.sum(axis=0)).ravel()),
    ):
        found = columns_of(f"release/{name}.parquet")
        told, slow = found["sampling_std"], due_of(statistic)
        assert sorted(told) == pytest.approx(sorted(slow), rel=0.1), name
    assert not np.isnan(columns_of("release/in_all.parquet")["sampling_std"]).any()


def test_a_release_says_what_told_it_and_answers_again(sample):
    words = " ".join(Path("release/statement.md").read_text().split())
    assert "estimated from 4 replicate weights (`rep08` and so on)" in words
    assert "Sums of differences of replicate weights were measured likewise" in words
    assert "squared weights" not in words
    Path("more.yaml").write_text(
        SPEC[SPEC.index("domain") : SPEC.index("workload")]
        + "workload: [{name: sexes, product: {sex: identity}}]\n"
    )
    ok("answer", "release", "more.yaml", "--out", "more")
    found = columns_of("more/sexes.parquet")["sampling_std"]
    due = np.sqrt(by_replicates(dense(sample) / 2, lambda table: table.sum(axis=1)))
    assert found == pytest.approx(due, rel=0.1)
    assert '"replicates": {' in Path("release/release.json").read_text()


def test_plan_says_from_which_error_of_the_sample_on_replicates_tell_it(own_folder):
    Path("workload.yaml").write_text(SPEC)
    words = " ".join(ok("plan", "workload.yaml", "--epsilon", "5").out.split())
    assert "replicate weights tell a sampling_std where it is about this or more: both" in words
    assert "twice the epsilon, or half of their at_most, halves that" in words
    assert "Laplace" not in words


REFUSED = {
    "first: rep08": ("first: rep", "does not end in a number"),
    "at_most: 20}": ("at_most: 20.3}", "expected a whole number"),
    "effective: 300": ("effective: 300\n    design_effect: 2", "leave out `design_effect`"),
    "  weight:": ("  weight:\n    clusters: {of: sex}", "leave out .* `strata` and `clusters`"),
    "column: wt": ("column: rep09", "'rep09' is a replicate weight and something else"),
    "{first: rep08, count: 4,": (
        "{first: '%s', count: 1," % ("9" * 5000),
        "number, at least 2 and at most 1,000, found",
    ),
    "count: 4": ("count: 1", "number, at least 2 and at most 1,000, found"),
    "factor: 0.25": ("factor: 0", "above 0 and at most 1,000, found"),
}


@pytest.mark.parametrize(("given", "changed"), REFUSED.items())
def test_what_cannot_be_is_refused_with_the_line_and_the_remedy(given, changed):
    text, words = changed
    with pytest.raises(SpecError, match=words) as refusal:
        spec_of(SPEC.replace(given, text))
    assert "workload.yaml:" in str(refusal.value)


def test_pure_epsilon_and_missing_columns_are_refused_before_any_charge(own_folder):
    pure = SPEC.replace("  delta: 1e-6\n", "").replace(", delta: 1e-5, accounting: gdp", "")
    Path("workload.yaml").write_text(pure)
    done = run("plan", "workload.yaml")
    assert done.code
    assert "replicate weights are measured with Gaussian noise" in done.err
    Path("workload.yaml").write_text(SPEC)
    ok("plan", "workload.yaml")
    Path("data.csv").write_text("sex,age,wt,rep08,rep09,rep10\nF,1,3,1,2,3\n")
    done = run("release", "data.csv", "--epsilon", "1")
    assert done.code
    assert "lacks the declared column rep11" in " ".join(done.err.split())
    assert "nothing was charged" in done.err
    assert "nothing" in ok("ledger", "status").out


def test_all_copies_of_tables_stay_within_the_limit(monkeypatch):
    monkeypatch.setattr(tables, "MAX_COUNTED_CELLS", 39)
    check_table_sizes([(0, 1)], (2, 4), 4)
    with pytest.raises(UnsupportedWorkloadError, match="cells in all"):
        check_table_sizes([(0, 1)], (2, 4), 5)
    assert spec_of().privacy.copies == 5
    assert MAX_COUNTED_CELLS == 2**28
    monkeypatch.setattr("dpquery.measurement.noise.calibration.MAX_COUNTED_CELLS", 39)
    strategy = MarginalsStrategy("m", "gaussian", (2, 4), {(0, 1): 1})
    terms = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6), accounting="gdp")
    with pytest.raises(UnsupportedWorkloadError, match="40 sums would be measured"):
        calibrated_noise(strategy, privacy=spec_of().privacy, guarantee=terms)


def test_sums_of_differences_too_large_to_be_exact_are_refused():
    (weighted,) = MarginalsStrategy("m", "gaussian", SHAPE, {(0, 1): 1}).measurements
    differences = np.zeros(SHAPE, dtype=np.int64)
    differences[0] = [2**35, -(2**34), -(2**34), -1]  # which add up to little
    with pytest.raises(DataError, match="more than"):
        exact_answers(weighted, differences, shift=0)
    differences[0, 3] = 1
    differences[0, 0] -= 2
    assert np.array_equal(exact_answers(weighted, differences, shift=0), differences.ravel())


def test_a_check_names_columns_with_odd_replicate_weights_and_counts_what_is_scaled(own_folder):
    Path("workload.yaml").write_text(SPEC)
    rows = ["F,1,4,0,8,8,0", "M,2,4,,8,-1,8", "F,3,4,0,x,8,8", "M,0,0,x,,,", "F,0,4,90,4,4,4"]
    Path("data.csv").write_text("\n".join(["sex,age,wt," + ",".join(NAMES), *rows]) + "\n")
    done = run("check", "data.csv", "workload.yaml", "--to-pipe")
    words = " ".join(done.out.split())
    assert done.code == 1
    assert "2 replicate weights no number, taken for 0: rep08 (1), rep09 (1)" in words
    assert "1 replicate weight below 0, taken as they are: rep10 (1)" in words
    assert "scaled down to their `at_most` in 1 record" in words


SURVEY = """\
dataset: {id: survey, version: "1", rows: about 1200}
privacy:
  unit: row
  delta: 1e-6
  weight:
    column: wt
    at_most: 30
    step: 0.5
    replicates: {first: r1, count: 24, factor: 0.0416666666667, at_most: 147, degrees: 20}
budget: {epsilon: 1000000, delta: 1e-5, accounting: gdp}
domain:
  sex: {values: [F, M]}
  job: {values: [a, b, c]}
workload:
  - {name: jobs, product: {job: identity}}
  - {name: by_sex, product: {sex: identity, job: identity}}
derived:
  - {name: shares, share: {of: by_sex, within: [sex]}}
  - {name: gap, difference: {of: by_sex, between: {sex: [F, M]}}}
"""


def half_samples(rng):
    """Return the true answers, and what draws 2 of 60 clusters of 30 in each of 20 strata.

    The replicates are balanced half samples: 24 rows of a Hadamard matrix (Paley's, of order 23).
    """
    squares = {k * k % 23 for k in range(1, 23)}
    signs = np.array(
        [[1] * 24]
        + [
            [-1] + [1 if j == i or (j - i) % 23 in squares else -1 for j in range(23)]
            for i in range(23)
        ]
    )
    assert np.array_equal(signs @ signs.T, 24 * np.eye(24))
    full = (0.5 + rng.normal(0, 0.15, (20, 60, 1))).clip(0, 1)
    sex, chance = rng.integers(0, 2, (20, 60, 30)), rng.random((20, 60, 30))
    job = (chance > full) * 1 + (chance > full + (1 - full) / 3)
    by_sex = np.bincount((sex * 3 + job).ravel(), minlength=6).reshape(2, 3)
    truth = {
        "jobs": by_sex.sum(axis=0),
        "by_sex": by_sex.ravel(),
        "shares": (by_sex / by_sex.sum(axis=1, keepdims=True)).ravel(),
        "gap": by_sex[0] - by_sex[1],
    }
    strata = np.arange(20)[:, None]
    kept = 1 + signs[:, 1:21, None, None] * np.array([1, -1])[:, None]
    replicates = np.broadcast_to(30.0 * kept, (24, 20, 2, 30)).reshape(24, -1)

    def drawn():
        picked = np.array([rng.choice(60, 2, replace=False) for _ in range(20)])
        columns = {"sex": sex[strata, picked].ravel(), "job": job[strata, picked].ravel()}
        rows = {
            name: np.array(list("FMabc"))[c + 2 * (name == "job")] for name, c in columns.items()
        }
        return (
            rows | {"wt": np.full(1200, 30.0)} | {f"r{k + 1}": r for k, r in enumerate(replicates)}
        )

    return truth, drawn


@pytest.mark.nightly
@pytest.mark.statistical
def test_intervals_hold_what_the_population_has_of_samples(own_folder, record_property):
    """Of 400 samples, each released once, by balanced half samples."""
    truth, drawn = half_samples(np.random.default_rng(9))
    content = planned_in(own_folder, SURVEY)
    told = told_by_releases(content, drawn, folder=own_folder, samples=400, epsilon=16)
    every = []
    for name, each in told.items():
        std, low, high, *_ = each.transpose(1, 0, 2)
        known = ~np.isnan(std)
        covered = ((low <= truth[name]) & (truth[name] <= high))[known]
        record_property(name, float(covered.mean()))
        every += covered.tolist()
    assert 0.93 <= np.mean(every) <= 0.98


def test_two_releases_tell_the_error_of_half_samples(own_folder):
    """With hardly any noise: as 20 strata with two clusters each do, by their differences."""
    content, exact = planned_in(own_folder, SURVEY), []
    _, drawn = half_samples(np.random.default_rng(9))

    def kept():
        exact.append(drawn())
        return exact[-1]

    told = told_by_releases(content, kept, folder=own_folder, samples=2, epsilon=5000)
    assert not np.isnan(told["by_sex"][:, :3]).any()
    for rows, found in zip(exact, told["jobs"], strict=True):
        totals = 30 * np.array([(rows["job"].reshape(20, 2, 30) == j).sum(axis=2) for j in "abc"])
        design = np.sqrt(((totals[:, :, 0] - totals[:, :, 1]) ** 2).sum(axis=1))
        assert np.allclose(found[0], design, rtol=0.02)
