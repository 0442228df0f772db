"""A measurement is named by all that is public of it, and its folder holds what it was made of."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from town import GAUSSIAN_SPEC, ok, plan_town

from dpquery.exceptions import DataError, SpecError, UnsupportedWorkloadError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting import tables as maximal_tables
from dpquery.measurement.counting import tables as table_counts
from dpquery.measurement.counting.exact_answers import (
    ENTRY_BITS,
    answers_alike,
    check_width,
    exact_answers,
    grid_shift,
    largest_entry,
)
from dpquery.measurement.curator import LinearQuery
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.operators.blocks import Block, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Centered, Dense, Identity
from dpquery.operators.p_identity import PIdentity
from dpquery.operators.ranges import Prefix
from dpquery.operators.trees import Hierarchy
from dpquery.releases.folder import noisy_files
from dpquery.releases.folder.noisy_files import (
    MeasurementLabel,
    read_measurements,
    values_digest,
    write_measurements,
)
from dpquery.spec.parsing.read import parse
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.strategy import WeightedBlock

SPEC = """\
dataset: {id: town, version: 1}
privacy: {unit: row, neighbours: add-remove}
budget: {epsilon: 4}
other: drop
domain:
  age: {range: [0, 1]}
  sex: {values: [F, M]}
  pay: {bins: [0, 10, 20]}
workload:
  - name: pairs
    marginals: {ways: 2}
"""
SHAPE = (2, 2, 2)
TABLES = MarginalsStrategy("tables", "laplace", SHAPE, {(0,): 1, (1,): 2})


def ask(spec=SPEC):
    parsed = parse(spec, name="town.yaml", files={})
    terms = guarantee("laplace", epsilon=Fraction(1), delta=Fraction(0))
    mechanism = calibrated_noise(TABLES, privacy=parsed.privacy, guarantee=terms)
    return LinearQuery(parsed, compile_spec(parsed), TABLES, mechanism, 1)


def test_what_changes_no_measurement_changes_no_key():
    assert ask().key == ask(SPEC.replace("name: pairs", "name: others")).key
    assert ask().key == ask(SPEC.replace("[F, M]", "{F: women, M: men}")).key
    assert ask().key == ask(SPEC.replace("epsilon: 4", "epsilon: 5")).key


GROUPS = (
    MeasurementLabel("age x sex", 3, 4),
    MeasurementLabel("", 7 << 70, 1),
    MeasurementLabel("age x sex", 2, 2),
)
VALUES = np.array([5, -3, 2**62, -(2**62), 0, 9, -9])


def written(path, values=VALUES, groups=GROUPS):
    write_measurements(path, values, groups, metadata={"dpquery": "{}"})
    return path


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_noisy_values_are_read_back_as_they_were(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(noisy_files, "BATCH_VALUES", batch)
    path = written(tmp_path / "m.parquet")
    read = read_measurements(path, GROUPS, digest=values_digest(VALUES))
    assert np.array_equal(read, VALUES)
    table = pq.read_table(path).to_pydict()
    assert table["attributes"] == ["age x sex"] * 4 + [""] + ["age x sex"] * 2
    assert table["weight"] == ["3"] * 4 + [str(7 << 70)] + ["2"] * 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR2")),
        lambda path: written(path, VALUES + 1),
        lambda path: written(
            path, VALUES[:-1], (*GROUPS[:-1], MeasurementLabel("age x sex", 2, 1))
        ),
        lambda path: written(path, groups=(GROUPS[2], *GROUPS[1:-1], GROUPS[0])),
        lambda path: pq.write_table(pa.table({"value": VALUES}), path),
        lambda path: pq.write_table(pq.read_table(path).slice(1), path),
    ],
)
def test_a_file_that_is_not_what_was_written_is_refused(tmp_path, damage):
    path = written(tmp_path / "m.parquet")
    damage(path)
    with pytest.raises(SpecError, match="dpquery release` again, which is free"):
        read_measurements(path, GROUPS, digest=values_digest(VALUES))


@pytest.fixture
def folder(own_folder):
    plan_town(own_folder, GAUSSIAN_SPEC)
    ok("release", "data.csv", "--epsilon", "1", "--out", "release")
    return own_folder / "release"


# Exact answers against Python's own integers, and very many tables counted together.


def python_answers(measurement, table, shift):
    """The slow twin: the dense matrix in Python integers."""
    total = [0] * math.prod(measurement.block.row_shape)
    for coef, mask in measurement.block.terms:
        matrix = np.array([[coef * measurement.weight]], dtype=object)
        for factor, inside in zip(measurement.block.factors, mask, strict=True):
            operator = factor.dense() if inside else np.ones(factor.shape, dtype=np.int64)
            matrix = np.kron(matrix, operator.astype(object))
        answers = matrix.dot(table.ravel().astype(object))
        total = [a + int(b) for a, b in zip(total, answers, strict=True)]
    return [value >> shift for value in total]


def check(measurement, table, shift=None):
    """Compare answers with the twin's, at a shift or at that of the grid; return them.

    Also where several tables are answered together.
    """
    shift = grid_shift((measurement,)) if shift is None else shift
    answers = exact_answers(measurement, table, shift=shift).tolist()
    tables = [table, np.flip(table), table]
    several = answers_alike([measurement] * 3, tables, shift=shift).tolist()
    flipped = python_answers(measurement, tables[1], shift)
    assert answers == python_answers(measurement, table, shift)
    assert several == [*answers, *flipped, *answers]
    return answers


@pytest.mark.nightly(daily=r"-(1|25)\]")
@pytest.mark.parametrize("bits", [1, 8, 16, 25])
@pytest.mark.parametrize("attributes", [1, 2, 5])
def test_answers_equal_python_integers_at_every_width(bits, attributes):
    rng = np.random.default_rng(bits * 10 + attributes)
    for _ in range(4):
        shape = tuple(int(n) for n in rng.integers(1, 6, attributes))
        factors = {
            i: Dense(rng.integers(-(2**bits), 2**bits + 1, (n + 1, n))) for i, n in enumerate(shape)
        }
        measurement = WeightedBlock(int(rng.integers(1, 1000)), product(shape, factors))
        cells, records = math.prod(shape), 2 ** int(rng.integers(1, 37)) - 1
        check(measurement, rng.multinomial(records, np.full(cells, 1 / cells)).reshape(shape))


@pytest.mark.parametrize("weight", [1, 3 << 16, (1 << 20) - 1, 77 << 30])
def test_answers_whose_weight_alone_is_wide_are_exact(weight):
    rng = np.random.default_rng(weight.bit_length())
    shape = (20, 3, 9)  # with records of 2^36 some 47 bits, before the weight
    block = product(shape, {i: Centered(n) for i, n in enumerate(shape)})
    check(WeightedBlock(weight, block), rng.integers(0, 2**22, shape))


@pytest.mark.parametrize("weight", [1, 3])
def test_answers_that_no_float_holds_are_exact(weight):
    block = product((2,), {0: Dense(np.array([[2**23 - 1, 2**22 + 1], [1, 2**23 - 3]]))})
    computed = check(WeightedBlock(weight, block), np.array([2**35 - 1, 2**34 + 7]), 0)
    assert any(int(float(value)) != value for value in computed)


@pytest.mark.parametrize("shift", [0, 7, 30])
def test_signed_blocks_and_structured_factors_are_exact_too(shift):
    rng = np.random.default_rng(0)
    shape = (4, 3, 2)
    rows = rng.integers(0, 2**15, (2, 4))
    factors = (PIdentity(2**16 - rows.sum(axis=0), rows), Prefix(3), Identity(2))
    block = Block(shape, (0, 1, 2), factors, (True, True, True), 2)
    check(WeightedBlock(12345, block), rng.integers(0, 10**6, shape), shift)


@pytest.mark.parametrize(
    ("weight", "shift"),
    [(77 << 60, shift) for shift in (50, 61, 130)] + [(1 << 90, 80), (12345, 3)],
)
def test_very_large_weights_are_exact_as_an_odd_number_times_a_power_of_two(weight, shift):
    block = product((3,), {0: Dense(np.array([[3, -1, 2], [0, 5, 7]]))})
    check(WeightedBlock(weight, block), np.array([1, 10, 1]), shift)


@pytest.mark.parametrize(
    "factor", [Hierarchy(2, [1], [2**35]), Dense(np.array([[2**34 + 1, 0], [1, 2**34]]))]
)
def test_counts_of_many_records_do_not_wrap_under_a_single_wide_factor(factor):
    measurement = WeightedBlock(1, product((2,), {0: factor}))
    check_width((measurement,))
    check(measurement, np.array([2**35 + 1, 2**34]))


def test_deviations_of_half_a_million_codes_from_their_mean_are_exact():
    """Entries grow with the codes here, but sums of a row only twice as fast."""
    n, weight = 1 << 19, (1 << 17) - 1
    measurement = WeightedBlock(weight, product((n,), {0: Centered(n)}))
    check_width((measurement,))
    shift, counts = grid_shift((measurement,)), np.zeros(n, dtype=np.int64)
    counts[[0, 7, n - 1]] = [2**35, 2**34 + 3, 2**34 - 5]
    answers, whole = exact_answers(measurement, counts, shift=shift), int(counts.sum())
    for code in (0, 1, 7, n - 1):
        exact = weight * (n * int(counts[code]) - whole) >> shift
        assert int(answers[code]) == exact


def test_the_grid_leaves_room_for_two_to_the_36_records():
    wide = WeightedBlock(2**20, product((3, 3), {i: Dense(np.full((3, 3), 2**16)) for i in (0, 1)}))
    assert largest_entry(wide) >> grid_shift((wide,)) <= 2**ENTRY_BITS
    assert 36 + ENTRY_BITS <= 62


def test_the_bound_on_entries_holds_for_signed_blocks():
    rng = np.random.default_rng(2)
    shape = (3, 2, 4)
    for at_least in (1, 2, 3):
        factors = tuple(Dense(rng.integers(-9, 10, (n, n))) for n in shape)
        weighted_block = WeightedBlock(5, Block(shape, (0, 1, 2), factors, (True,) * 3, at_least))
        cells = np.eye(24, dtype=np.int64).reshape(24, *shape)
        entries = [abs(v) for cell in cells for v in python_answers(weighted_block, cell, 0)]
        assert max(entries) <= largest_entry(weighted_block)


def test_more_records_than_declared_possible_are_refused():
    measurement = WeightedBlock(1, product((2,), {0: Identity(2)}))
    with pytest.raises(DataError, match="more than"):
        exact_answers(measurement, np.array([2**35, 2**35]), shift=0)


def test_integers_too_wide_for_the_digits_are_refused_before_any_data():
    block = product((3,), {0: Dense(np.full((3, 3), 2**39))})
    with pytest.raises(UnsupportedWorkloadError, match="too wide"):
        check_width((WeightedBlock(3, block),))
    check_width((WeightedBlock(3 << 100, product((3,), {0: Identity(3)})),))


@pytest.mark.parametrize("small", [0, 30, 300, 10**6])
def test_tables_counted_together_hold_each_table_once(small, monkeypatch):
    monkeypatch.setattr(maximal_tables, "_SMALL", small)
    shape = (3, 1, 4, 2, 5, 2, 3)
    tables = [(), *itertools.combinations(range(7), 3), (0, 1, 4, 5), (2, 3)]
    together = maximal_tables.counted_together(tables, shape)
    held = [table for _, inside in together for table in inside]
    assert sorted(held) == sorted(tables)
    assert all(set(table) <= set(group) for group, inside in together for table in inside)
    sizes = [(math.prod(shape[i] for i in group), inside) for group, inside in together]
    assert all(size <= small or len(inside) == 1 for size, inside in sizes)
    assert (len(together) < len(tables)) == (small > 0)


def test_five_attributes_of_ten_values_cover_ten_triples(monkeypatch):
    triples = list(itertools.combinations(range(20), 3))
    together = maximal_tables.counted_together(triples, (10,) * 20)
    assert max(len(group) for group, _ in together) == 5
    assert len(together) < 1.7 * len(triples) / 10


@pytest.mark.parametrize("held", [1, 400, 10**9])
@pytest.mark.parametrize("narrow", [0, 10**9])
@pytest.mark.parametrize("most", [50, 2**32 - 1])
def test_rows_that_are_held_and_narrow_counts_change_nothing(monkeypatch, held, narrow, most):
    monkeypatch.setattr(table_counts, "HELD", held)
    monkeypatch.setattr(table_counts, "WIDE_CELLS", narrow)
    monkeypatch.setattr(table_counts, "_MOST", most)
    shape, generator = (3, 1, 300, 2, 5), np.random.default_rng(4)
    subsets = [(0, 3, 4), (0, 1), (2,), (0, 3), (), (1, 3, 4), (0, 1, 4)]
    counts = table_counts.TableCounts(subsets, shape)
    rows = np.column_stack([generator.integers(n, size=150) for n in shape])
    for part in np.split(rows, [1, 40, 40, 110]):
        counts.add(dict(enumerate(part.T)), len(part))
    counts.add_cells(np.array([[0, 0], [3, 4]]))
    tables = counts.marginals()
    first = counts.homes[0]
    for subset in subsets:
        expected = np.zeros([shape[i] for i in subset], np.int64)
        np.add.at(expected, tuple(rows[:, i] for i in subset), 1)
        expected = expected if subset else np.array(len(rows))
        if counts._home_of[subset] == first:
            expected[(0,) * len(subset)] += 7
        assert tables[subset].dtype == np.int64
        np.testing.assert_array_equal(tables[subset], expected)
    whole = np.concatenate(list(counts.cells()), axis=1)
    again = table_counts.TableCounts(subsets, shape)
    again.add_cells(whole[:, ::-1])
    np.testing.assert_array_equal(again.marginals()[0, 3, 4], tables[0, 3, 4])
    with pytest.raises(IndexError):
        counts.add_cells(np.array([[10**6], [1]]))


def test_counts_go_on_in_64_bits_past_what_32_hold(monkeypatch):
    monkeypatch.setattr(table_counts, "WIDE_CELLS", 0)
    counts = table_counts.TableCounts([(0,)], (2,))
    counts.add({0: np.zeros(2, np.int64)}, 2)
    counts._count_held()
    assert counts._cells.dtype == np.uint32
    counts._cells[:] = 2**32 - 1  # as if there had been so many rows
    counts._counted = 2**32 - 1
    counts.add({0: np.array([0, 1, 1])}, 3)
    assert counts.marginals()[0,].tolist() == [2**32, 2**32 + 1]
