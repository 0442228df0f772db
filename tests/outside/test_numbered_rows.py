"""Items of very many tables: numbered rows are the labelled ones, and every command reads them."""

import gc
import json
import tracemalloc
from collections import deque
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from release_parts import DOMAIN, ITEMS, answers, manifest, spec_of
from specs import unhashed
from town import run

from dpquery import error_report, plan, release
from dpquery.commands.answer import answer
from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Block, product
from dpquery.operators.factors import Identity
from dpquery.operators.ranges import Prefix
from dpquery.reconstruction.least_squares import TableAnswers, noisy_values, reconstruct
from dpquery.releases.folder.write import ReleaseContent, write_release
from dpquery.releases.manifest_facts import item_facts
from dpquery.releases.report.published import PublishedTables
from dpquery.releases.tables.item_table import Tally, layout, relative_errors
from dpquery.releases.tables.labels import LabelRuns, repeat_runs
from dpquery.releases.tables.long_table import axes_table, labels_table, long_layout
from dpquery.spec.columns import Attribute, Column, Domain, Integers
from dpquery.spec.predicates import IdentitySet
from dpquery.spec.spec import Item, Table
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore

ANSWERS = ["estimate", "std_error", "ci_low", "ci_high", "rel_error", "flag"]
SPEC = """
dataset: {id: town, version: 1}
privacy: {unit: row, delta: 1e-6}
budget: {epsilon: 8, delta: 1e-5}
domain:
  age: {range: [0, 3]}
  sex: {values: {f: Female, m: Male}}
  area: {values: [A, B, C]}
  born: {date: {from: 2013-01, to: 2013-03, by: month}}
workload:
  - {name: many, marginals: {up_to: 3}, description: all}
  - {name: few, product: {age: prefix}}
"""
LATER = "workload: [{name: later, marginals: {ways: 2, over: [age, sex, area]}}]"


def in_words(value):
    """A typed value as its label is written."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def joined(item, rows, axes, labels):
    """The answers of a numbered item with a column for each attribute, joined as a reader would."""
    wide = rows.drop(columns="half_width")
    for name in axes["attribute"].dropna().unique():
        of = axes[axes["attribute"] == name][["table", "labels", "size", "stride"]]
        one = wide[["table", "cell"]].merge(of, on="table")
        one["place"] = one["cell"] // one["stride"] % one["size"]
        one = one.merge(labels, on=["labels", "place"])[["table", "cell", "label"]]
        wide = wide.merge(one.rename(columns={"label": name}), how="left", on=["table", "cell"])
    return wide.sort_values(["table", "cell"], ignore_index=True)


@pytest.mark.nightly(daily=r"[05]\]|total|where|pairs|mixed|any|threshold")
@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_numbered_rows_joined_with_their_labels_are_the_labelled_rows(item):
    plain, long = layout(item, DOMAIN), long_layout(item)
    batches = [batch.rows for batch in plain.batches(answers(item))]
    labelled = pa.Table.from_batches(batches, plain.schema).to_pandas()
    batches = [batch.rows for batch in long.batches(answers(item), rows=max(7, item.size // 99))]
    rows = pa.Table.from_batches(batches, long.schema).to_pandas()
    assert np.array_equal(rows["estimate"] - rows["half_width"], labelled["ci_low"])
    axes = axes_table(item, DOMAIN).to_pandas()
    wide = joined(item, rows, axes, labels_table(item, DOMAIN).to_pandas())
    assert wide[["estimate", "std_error"]].equals(labelled[["estimate", "std_error"]])
    for name in [attribute.name for attribute in DOMAIN.attributes if attribute.name in labelled]:
        texts = [in_words(value) for value in labelled[name]]
        absent = "(all)" if name == "state" else "all"
        known = wide[name].fillna(absent).tolist()
        if name != "week" or isinstance(labelled[name].iloc[0], str):  # its days are in from_date
            assert known == texts
    if "table" in labelled:
        of_row = axes.drop_duplicates("table").set_index("table").loc[rows["table"]]
        assert of_row["name"].tolist() == labelled["table"].tolist()
        if "query" in labelled:
            assert of_row["query"].tolist() == labelled["query"].tolist()


@pytest.mark.nightly(daily="where|any|total")
@pytest.mark.parametrize("item", ITEMS[::5] + ITEMS[-6:], ids=lambda item: item.name)
def test_a_table_is_read_back_with_all_columns(item, tmp_path):
    spec = spec_of([item])
    plain = manifest(spec)
    numbered = replace(plain, items=item_facts(spec, labelled_tables=0))
    for name, facts in (("plain", plain), ("long", numbered)):
        write_release(tmp_path / name, ReleaseContent(answers, facts), spec=spec, replace=False)
    labelled, long = PublishedTables(), PublishedTables()
    labelled.directory, long.directory = tmp_path / "plain", tmp_path / "long"
    whole = labelled.arrow(item.name)
    names = axes_table(item, DOMAIN)["name"].to_pylist()
    for name in dict.fromkeys(names):
        if "table" in whole.column_names:
            expected = labelled.table(item.name, name)
        else:
            expected = whole.to_pandas()
        read = long.table(item.name, name)
        assert read[ANSWERS].astype({"flag": str}).equals(expected[ANSWERS].astype({"flag": str}))
        for column in (set(read) & set(expected)) - {*ANSWERS, "table"}:
            values, texts = expected[column], read[column]
            same = [
                (pd.isna(a) and pd.isna(b)) or a == b or in_words(a) == b
                for a, b in zip(values, texts, strict=True)
            ]
            assert all(same) or (column == "week" and (read["week_from"] == values).all())
    with pytest.raises(SpecError, match=r"has no table 'nobody'"):
        long.arrow(item.name, "nobody")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A release whose item `many` is numbered, and the same from a plan that does not say so."""
    here = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("DPQUERY_LEDGER", str(here / "ledger.db"))
        patch.setattr("dpquery.plan_file.plan.MAX_LABELLED_TABLES", 14)
        Path("workload.yaml").write_text(SPEC)
        Path("later.yaml").write_text(LATER)
        records = "\n".join(
            f"{k % 4},{'fm'[k % 2]},{'ABC'[k % 3]},2013-0{1 + k % 3}-07" for k in range(99)
        )
        Path("data.csv").write_text(f"age,sex,area,born\n{records}\n")
        plan("workload.yaml", time_limit=0)
        content = unhashed(Path("dpquery.plan").read_text())
        release("data.csv", epsilon=1, out="long", also=["nonnegative", "integer"])
        assert content.pop("labelled_tables") == 14
        Path("older.plan").write_text(json.dumps(content))
        released = release(
            "data.csv",
            epsilon=1,
            plan_path="older.plan",
            out="plain",
            also=["nonnegative", "integer"],
        )
        assert released.free
    return here


def views(folder):
    tables = PublishedTables()
    tables.directory = folder
    return tables


def test_the_metadata_name_the_numbers_and_their_differences_are_written(made):
    file = pq.ParquetFile(made / "long" / "many.parquet")
    described = json.loads(file.schema_arrow.metadata[b"dpquery"])
    assert described["labels"] == ["table", "cell"]
    group = file.metadata.row_group(0)
    for column in (0, 1):
        assert "DELTA_BINARY_PACKED" in group.column(column).encodings


def test_the_report_reads_numbered_items(made, monkeypatch):
    monkeypatch.chdir(made)
    report, plain = error_report("long", html="long.html"), error_report("plain", html=None)
    assert [item.rmse for item in report.items] == [item.rmse for item in plain.items]
    numbered, labelled = report.items[0].cells, plain.items[0].cells
    assert not numbered.whole
    assert numbered.relative.min() == pytest.approx(labelled.relative.min())
    assert numbered.relative.max() == pytest.approx(labelled.relative.max())
    assert report.items[1].cells.value.tolist() == plain.items[1].cells.value.tolist()
    assert "many" in Path("long.html").read_text()


def test_later_questions_are_answered_from_a_numbered_release_and_may_be_numbered(
    made, monkeypatch
):
    monkeypatch.chdir(made)
    answer("long", "later.yaml", out="plain-answers")
    monkeypatch.setattr("dpquery.releases.folder.answers.MAX_LABELLED_TABLES", 2)
    numbered = answer("long", "later.yaml", out="long-answers")
    assert [item.numbered for item in numbered.manifest.items] == [True]
    plain = views(made / "plain-answers")
    for name in ("age, sex", "age, area", "sex, area"):
        one, expected = numbered.table("later", name), plain.table("later", name)
        assert one["ci_low"].tolist() == expected["ci_low"].tolist()
        assert one[name.split(", ")[1]].tolist() == expected[name.split(", ")[1]].tolist()
    assert run("error-report", "long-answers").code == 0


@pytest.mark.parametrize("file", ["many.parquet", "many.tables.parquet", "many.labels.parquet"])
@pytest.mark.parametrize("harm", ["missing", "cut", "other"])
def test_a_damaged_file_of_a_numbered_item_is_an_error_that_names_the_remedy(
    made, tmp_path, file, harm
):
    for path in (made / "long").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = (tmp_path / file).read_bytes()
    if harm == "missing":
        (tmp_path / file).unlink()
    elif harm == "cut":
        (tmp_path / file).write_bytes(content[: len(content) // 2])
    else:
        (tmp_path / file).write_bytes((made / "long" / "errors.parquet").read_bytes())
    with pytest.raises(SpecError, match="is damaged: many"):
        views(tmp_path).arrow("many", "age, sex")


def test_numbers_that_point_nowhere_are_refused(made, tmp_path):
    for path in (made / "long").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    axes = pq.read_table(tmp_path / "many.tables.parquet")
    for column, value in (("first", 10**9), ("size", 10**9), ("stride", -1), ("labels", 77)):
        kind = axes.schema.field(column).type
        wrong = axes.set_column(
            axes.schema.get_field_index(column),
            axes.schema.field(column),
            pa.array([value] * axes.num_rows, kind),
        )
        pq.write_table(wrong, tmp_path / "many.tables.parquet")
        with pytest.raises(SpecError, match="is damaged: many"):
            views(tmp_path).arrow("many", "age, sex")


# Answers by the hundred million: the fast ways equal the slow ones, within memory of one table.


SHAPE = (40, 60, 50, 8)
CELLS = 40 * 60 * 50 * 8


def residual(shape, *, dense=()):
    rng = np.random.default_rng(1)
    cores = tuple(
        DenseCore(rng.integers(-9, 10, (n - 1, n))) if i in dense else CenteredCore(n)
        for i, n in enumerate(shape)
    )
    subsets = [b for k in range(len(shape) + 1) for b in combinations(range(len(shape)), k)]
    return ResidualStrategy("r", "gaussian", cores, {b: 2 + len(b) for b in subsets})


def marginals(shape):
    return MarginalsStrategy("m", "gaussian", shape, {tuple(range(len(shape))): 3, (0, 1): 7})


def noisy_answers(strategy):
    rng = np.random.default_rng(2)
    return [rng.normal(size=measurement.block.queries) for measurement in strategy.measurements]


def threshold(shape, r, counted=None, factors=None):
    every = tuple(range(len(shape)))
    matrices = tuple(Identity(n) for n in shape) if factors is None else factors
    return Block(shape, every, matrices, counted or (True,) * len(shape), r)


def slow_answer(strategy, noisy, block):
    """Every term of the block on the table of its own attributes, at full size."""
    total = np.zeros(block.row_shape)
    estimates = reconstruct(strategy, noisy)
    for coef, mask in block.terms:
        u = [i for i, inside in enumerate(mask) if inside]
        part = product(block.shape_of_domain, {i: block.factors[i] for i in u})
        shape = [m if i in u else 1 for i, m in enumerate(block.row_shape)]
        total += coef * estimates.answer(part, 0).reshape(shape)
    return total


@pytest.mark.parametrize(("kept", "wide"), [(0, 8), (7, 8), (1 << 16, 8), (1 << 16, 3)])
@pytest.mark.parametrize("strategy", [residual((4, 3, 5, 2), dense=(2,)), marginals((4, 3, 5, 2))])
def test_thresholds_are_signed_sums_of_the_tables_below(strategy, kept, wide, monkeypatch):
    shape, noisy = strategy.shape, noisy_answers(strategy)
    prefixes = (Prefix(4), Identity(3), Prefix(5), Identity(2))
    blocks = [
        threshold(shape, r, counted, factors)
        for factors in (None, prefixes)
        for counted in ((True,) * 4, (True, False, True, True))
        for r in range(1, sum(counted) + 1)
    ]
    expected = [slow_answer(strategy, noisy, block) for block in blocks]
    monkeypatch.setattr("dpquery.reconstruction.least_squares.MAX_KEPT_NUMBERS", kept)
    monkeypatch.setattr("dpquery.reconstruction.least_squares.WIDE", wide)
    estimates = reconstruct(strategy, noisy)
    for _ in range(2):  # what is kept serves again, unchanged
        for block, dense in zip(blocks, expected, strict=True):
            assert np.allclose(estimates.answer(block, 0), dense, rtol=1e-9)


def test_pieces_change_nothing(monkeypatch):
    strategy = residual((4, 3, 5, 2), dense=(2,))
    noisy, block = noisy_answers(strategy), threshold((4, 3, 5, 2), 2)
    whole = reconstruct(strategy, noisy).answer(block, 0)
    for piece, short in ((1, 0), (13, 4), (64, 99)):
        monkeypatch.setattr("dpquery.operators.blocks.PIECE", piece)
        monkeypatch.setattr("dpquery.operators.blocks.SHORT", short)
        assert np.allclose(reconstruct(strategy, noisy).answer(block, 0), whole, rtol=1e-12)


def peak_of(run):
    gc.collect()
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("r", [1, 2, 4])
@pytest.mark.parametrize("make", [residual, marginals])
def test_answering_takes_the_memory_of_three_tables(make, r):
    strategy = make(SHAPE)
    noisy, block = noisy_answers(strategy), threshold(SHAPE, r)
    estimates = reconstruct(strategy, noisy)
    estimates.answer(block, 0)  # what is kept for other tables is not of this one
    assert peak_of(lambda: estimates.answer(block, 0)) < 3.6 * 8 * CELLS


def test_a_file_takes_the_memory_of_its_batches():
    one, domain = wide_item()
    ones = np.broadcast_to(1.0, (CELLS,))
    answers = TableAnswers(one.tables[0], np.arange(float(CELLS)), ones, ones)

    def peak(tables):
        columns = layout(replace(one, tables=one.tables * tables), domain)
        return peak_of(lambda: deque(columns.batches(iter([answers] * tables), rows=1 << 15), 0))

    few, many = peak(1), peak(3)
    assert many < 1.2 * few + (1 << 16)
    assert many < 8 * CELLS


def wide_item():
    columns = [Column(f"a{i}", Integers(0, n - 1), "drop") for i, n in enumerate(SHAPE)]
    domain = Domain(tuple(Attribute(column.name, (column,)) for column in columns))
    axes = tuple((i, IdentitySet(n)) for i, n in enumerate(SHAPE))
    return Item("wide", (Table(axes, at_least=2),)), domain


def test_noisy_values_leave_their_grid_one_measurement_at_a_time():
    values = np.arange(-5, 5)
    noisy = noisy_values(values, [3, 0, 7], shift=2)
    assert [part.tolist() for part in noisy] == [[-20, -16, -12], [], list(range(-8, 20, 4))]
    assert [part.tolist() for part in noisy[1:]] == [[], list(range(-8, 20, 4))]
    assert len(noisy) == 3
    assert noisy[-1].dtype == np.float64
    with pytest.raises(IndexError):
        noisy[3]
    with pytest.raises(ValueError, match="10 values for measurements of 9"):
        noisy_values(values, [3, 6], shift=0)


@pytest.mark.parametrize("n", [1, 2, 7, 600])
@pytest.mark.parametrize("length", [1, 3, 50, 2000])
def test_runs_are_those_of_every_row_by_itself(n, length):
    rng = np.random.default_rng(n + length)
    values = rng.integers(0, 1000, n)
    for size in (1, 5, 4000):
        start = int(rng.integers(0, 3 * n * length))
        out = np.full(size + 4, -1)
        runs = LabelRuns(2, start, start + size, length)
        repeat_runs(values, runs, out[runs.rows])
        expected = values[np.arange(start, start + size) // length % n]
        assert out.tolist() == [-1, -1, *expected.tolist(), -1, -1]


def test_the_summary_of_one_standard_error_is_that_of_as_many():
    rng = np.random.default_rng(3)
    estimate, one = rng.normal(0, 3, 1000), np.broadcast_to(2.5, (1000,))
    short, long = Tally(), Tally()
    short.add(one, relative_errors(estimate, one))
    long.add(one.copy(), relative_errors(estimate, one.copy()))
    item, _ = wide_item()
    assert short.row(item) == long.row(item)
