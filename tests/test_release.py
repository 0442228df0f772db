"""A release is whole or not there, has every row, and says nothing but what is public or noisy."""

import errno
import itertools
import json
import math
import multiprocessing
import os
import stat
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpquery.exceptions import DpqueryError, PlanConflictError, SpecError
from dpquery.measurement.accounting import charge_units, guarantee, units_text
from dpquery.measurement.mechanism import Mechanism
from dpquery.reconstruction.answers import TableAnswers
from dpquery.reconstruction.postprocess import NAMES
from dpquery.release import write
from dpquery.release.errors import Tally, flags, relative_errors
from dpquery.release.manifest import (
    LedgerFacts,
    StrategyFacts,
    manifest_of,
    manifest_text,
    read_manifest,
)
from dpquery.release.replacing import replacing
from dpquery.release.statement import statement
from dpquery.release.table import layout
from dpquery.release.write import check_target, write_release
from dpquery.spec.domain import (
    Attribute,
    Bins,
    Boolean,
    Categorical,
    Column,
    Domain,
    Integers,
)
from dpquery.spec.model import Budget, Dataset, Item, Privacy, Spec, Table
from dpquery.spec.parse_domain import RELEASE_COLUMNS
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
    ranges,
)


def attribute(name, *kinds, other=False):
    if len(kinds) == 1:
        return Attribute(name, (Column(name, kinds[0], other),))
    return Attribute(name, tuple(Column(f"{name}{k}", kind) for k, kind in enumerate(kinds)))


SEX = Categorical(("1", "2"), ("Male", "Female"))
DOMAIN = Domain(
    (
        attribute("age", Integers(-2, 5)),
        attribute("sex", SEX),
        attribute("income", Bins((0.0, 0.5, 1e4, 2e7)), other=True),
        attribute("poor", Boolean()),
        attribute("race", Boolean(), Boolean()),
        attribute("state", Categorical(("a", "b", "c"), ("all", "B", "C")), other=True),
    )
)
AGE, SEX_, INCOME, POOR, RACE, STATE = range(6)


def identity(index):
    return IdentitySet(DOMAIN.shape[index])


def whole(index):
    return TotalSet(DOMAIN.shape[index])


AGES = [
    identity(AGE),
    PrefixSet(8, 8),
    AllRangesSet(8, 8),
    WidthSet(8, 8, 3),
    IntervalSet(8, ((0, 1), (3, 3), (2, 7))),
    GroupSet(8, (("young", (0, 1, 2)), ("ends", (0, 7)), ("one", (4,)))),
    StackedSet(8, (IdentitySet(8), TotalSet(8), PrefixSet(8, 8))),
]
SETS = [(AGE, own) for own in AGES]
SETS += [(SEX_, identity(SEX_)), (SEX_, StackedSet(2, (IdentitySet(2), TotalSet(2))))]
SETS += [(INCOME, identity(INCOME)), (INCOME, AllRangesSet(4, 3)), (INCOME, PrefixSet(4, 3))]
SETS += [(INCOME, GroupSet(4, (("rich", (1, 2)), ("unclear", (2, 3)))))]
SETS += [(POOR, identity(POOR)), (POOR, GroupSet(2, (("yes", (1,)),)))]
SETS += [(RACE, identity(RACE)), (RACE, GroupSet(4, (("alone", (1, 2)), ("both", (3,)))))]
SETS += [(STATE, identity(STATE)), (STATE, StackedSet(4, (IdentitySet(4), TotalSet(4))))]

YES = GroupSet(2, (("yes", (1,)),))
FEMALE = GroupSet(2, (("Female", (1,)),))


def one(*axes, **options):
    return Table(tuple(axes), **options)


ITEMS = [Item(f"set{k}", (one(own),)) for k, own in enumerate(SETS)]
ITEMS += [
    Item(f"by_sex{k}", (one((AGE, own), (SEX_, identity(SEX_))),)) for k, own in enumerate(AGES)
]
ITEMS += [
    Item("total", (one(),)),
    Item("where", (one((AGE, identity(AGE)), where=((SEX_, FEMALE),)),)),
    Item(
        "pairs", tuple(one((a, identity(a)), (b, identity(b))) for a, b in ((0, 1), (0, 3), (2, 4)))
    ),
    Item(
        "mixed",
        (one(), one((AGE, identity(AGE))), one((AGE, whole(AGE)), (STATE, identity(STATE)))),
    ),
    Item("any", (one((SEX_, FEMALE), (POOR, YES), at_least=1),)),
    Item(
        "threshold",
        (
            one((SEX_, identity(SEX_)), (POOR, YES), (RACE, identity(RACE)), at_least=2),
            one((SEX_, FEMALE), (POOR, YES), where=((AGE, IntervalSet(8, ((0, 3),))),), at_least=1),
            one((POOR, identity(POOR))),
        ),
    ),
]


# ------------------------------------------------------------------------------- the slow twin


def slow_queries(own, predicates):
    """Return (label, first, last) of every query; first and last are None where it is no range."""
    column = own.columns[0]
    match predicates:
        case IdentitySet(size=size):
            ordered = [code < own.length for code in range(size)]
            return [(own.label(c), *((c, c) if ordered[c] else (None, None))) for c in range(size)]
        case TotalSet():
            return [("(all)" if own.name == "state" else "all", None, None)]
        case GroupSet(groups=groups):
            runs = [list(codes) == list(range(codes[0], codes[-1] + 1)) for _, codes in groups]
            runs = [run and g[1][-1] < own.length for run, g in zip(runs, groups, strict=True)]
            return [
                (label, *((codes[0], codes[-1]) if run else (None, None)))
                for run, (label, codes) in zip(runs, groups, strict=True)
            ]
        case StackedSet(parts=parts):
            return [query for part in parts for query in slow_queries(own, part)]
        case _:
            return [(column.range_label(i, j), i, j) for i, j in ranges(predicates)]


def slow_value(own, label, first, *, typed):
    if not typed or own.merged:
        return label
    match own.columns[0].kind:
        case Integers(low=low):
            return low + first
        case Boolean():
            return bool(first)
        case _:
            return label


def slow_ends(own, first, last):
    if first is None:
        return None, None
    kind = own.columns[0].kind
    if isinstance(kind, Integers):
        return kind.low + first, kind.low + last
    return kind.edges[first], kind.edges[last + 1]


def slow_columns(own, index, item, query):
    asked = [dict((*t.axes, *t.where)).get(index) for t in item.tables]
    typed = all(isinstance(p, IdentitySet) for p in asked) and own.length == own.size
    label, first, last = query
    row = {own.name: slow_value(own, label, first, typed=typed)}
    ordered = not own.merged and isinstance(own.columns[0].kind, Integers | Bins)
    if ordered and not (typed and isinstance(own.columns[0].kind, Integers)):
        row[f"{own.name}_from"], row[f"{own.name}_to"] = slow_ends(own, first, last)
    return row


def slow_rows(item):
    used = sorted({i for table in item.tables for i in table.attributes})
    counted = any(table.threshold < len(table.axes) for table in item.tables)
    for table in item.tables:
        conditions = (*table.axes, *table.where)
        attributes = DOMAIN.attributes
        queries = [slow_queries(attributes[i], own) for i, own in conditions]
        for chosen in itertools.product(*queries):
            own = {i: query for (i, _), query in zip(conditions, chosen, strict=True)}
            row = {}
            if counted or len(item.tables) > 1:
                row["table"] = ", ".join(attributes[i].name for i, _ in table.axes) or "total"
            if counted:
                k = len(table.axes)
                texts = {1: "any of"} if k > 1 else {}
                texts[k] = "all of"
                row["query"] = texts.get(table.threshold, f"{table.threshold} of {k}")
            for i in used:
                absent = ("(all)" if attributes[i].name == "state" else "all", None, None)
                row |= slow_columns(attributes[i], i, item, own.get(i, absent))
            yield row


# ------------------------------------------------------------------------------- fake releases


def numbers(table, *, seed=0):
    rng = np.random.default_rng(seed)
    estimate, error = rng.normal(40, 50, table.size), rng.uniform(1, 30, table.size)
    return TableAnswers(table, estimate, error, 2 * error)


def answers(item):
    return (numbers(table, seed=k) for k, table in enumerate(item.tables))


def spec_of(items=ITEMS, **privacy):
    return Spec(
        dataset=Dataset("people", "7"),
        privacy=Privacy(**{"delta": Fraction(1, 10**9), **privacy}),
        budget=Budget(epsilon=Fraction(4)),
        domain=DOMAIN,
        items=tuple(items),
    )


def manifest(spec, *, key="k1", noise="gaussian", epsilon="1"):
    own = guarantee(noise, epsilon=Fraction(epsilon), delta=Fraction(1, 10**9))
    return manifest_of(
        spec,
        mechanism=Mechanism(own, 3, 12345, 67890.5),
        noise_source="Source 7",
        strategy=StrategyFacts("marginals", "marginals", 9.0, 30.0, 8.0, "SVD bound", 1.125, "s"),
        plan="p" * 64,
        key=key,
        ledger=LedgerFacts(3, "h" * 64),
        cumulative="Releases so far have spent 1 of 4.",
        level=0.95,
        error_by_epsilon=[(0.5, 18), (1, 9)],
    )


def release(directory, spec=None, *, answers=answers, replace=False, **options):
    spec = spec or spec_of(ITEMS[-3:])
    made = manifest(spec, **options)
    write_release(directory, spec=spec, answers=answers, manifest=made, replace=replace)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def rows_of(item, rows=1 << 18):
    own = layout(item, DOMAIN)
    batches = [batch.rows for batch in own.batches(answers(item), rows=rows)]
    return pa.Table.from_batches(batches, own.schema)


# ------------------------------------------------------------------------------- rows and labels


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_labels_agree_with_a_row_by_row_twin(item):
    found = rows_of(item).to_pylist()
    estimates = np.concatenate([own.estimate for own in answers(item)])
    expected = list(slow_rows(item))
    labels = list(expected[0])
    assert [{name: row[name] for name in labels} for row in found] == expected
    assert list(found[0])[: len(labels)] == labels
    assert [row["estimate"] for row in found] == estimates.tolist()


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_batches_cut_across_tables_without_a_trace(rows):
    for item in ITEMS[-3:]:
        cut = rows_of(item, rows)
        assert (
            cut.equals(rows_of(item).combine_chunks())
            or cut.to_pylist() == rows_of(item).to_pylist()
        )
        assert max(len(batch) for batch in cut.to_batches()) <= rows


def test_code_by_code_attributes_are_typed():
    schema = layout(ITEMS[0], DOMAIN).schema
    assert schema.field("age").type == pa.int64()
    assert "age_from" not in schema.names
    assert (
        layout(Item("x", (one((POOR, identity(POOR))),)), DOMAIN).schema.field("poor").type
        == pa.bool_()
    )


def test_a_dictionary_is_the_declared_domain_in_domain_order():
    found = rows_of(Item("x", (one((SEX_, identity(SEX_))),)))
    assert found.column("sex").chunk(0).dictionary.to_pylist() == ["Male", "Female"]
    found = rows_of(Item("x", (one((RACE, identity(RACE))),)))
    expected = [DOMAIN.attributes[RACE].label(code) for code in range(4)]
    assert found.column("race").chunk(0).dictionary.to_pylist() == expected


def test_the_names_that_a_spec_may_not_use_are_those_of_our_columns():
    either = one((SEX_, identity(SEX_)), (POOR, identity(POOR)), at_least=1)
    own = layout(Item("x", (either,)), DOMAIN, extra=NAMES)
    assert set(own.whole_schema.names) - {"sex", "poor"} == RELEASE_COLUMNS


def test_answers_of_the_wrong_tables_are_refused():
    item = ITEMS[-1]
    for wrong in (list(answers(item))[:-1], list(answers(item))[::-1]):
        with pytest.raises(ValueError, match="no answers for table"):
            list(layout(item, DOMAIN).batches(iter(wrong)))


# ------------------------------------------------------------------------------- errors


def test_relative_errors_and_flags_follow_the_convention():
    estimate = np.array([100.0, 100.0, 100.0, -100.0, 0.0, 0.0])
    error = np.array([29.9, 30.0, 50.0, 60.0, 1.0, 0.0])
    relative = relative_errors(estimate, error)
    assert relative[:4] == pytest.approx([0.299, 0.3, 0.5, 0.6])
    assert math.isinf(relative[4])
    assert relative[5] == 0
    assert flags(relative).tolist() == [0, 1, 2, 2, 2, 0]


def test_relative_error_is_null_where_the_estimate_is_zero():
    def zeros(item):
        for table in item.tables:
            yield TableAnswers(table, *np.array([[0.0], [1.0], [2.0]]).repeat(table.size, 1))

    own = layout(ITEMS[1], DOMAIN)
    (batch,) = own.batches(zeros(ITEMS[1]))
    assert batch.rows.column("rel_error").null_count == 8
    tally = Tally()
    tally.add(batch.std_error, batch.relative)
    row = tally.row(ITEMS[1])
    assert row["median_rel_error"] is None
    assert row["worst_rel_error"] is None
    assert row["flagged_share"] == 1


def test_tally_agrees_with_numpy_over_many_batches():
    rng = np.random.default_rng(4)
    error, relative = rng.lognormal(3, 1, 30_001), rng.lognormal(-1, 3, 30_001)
    tally = Tally()
    for own in np.array_split(np.arange(30_001), 7):
        tally.add(error[own], relative[own])
    row = tally.row(Item("x", ()))
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert row["median_std_error"] == pytest.approx(np.median(error), rel=0.004)
    assert row["median_rel_error"] == pytest.approx(np.median(relative), rel=0.004)
    assert row["max_std_error"] == error.max()
    assert row["worst_rel_error"] == relative.max()
    assert row["flagged_share"] == np.mean(relative >= 0.3)


# ------------------------------------------------------------------------------- the folder


def test_a_release_holds_one_file_an_item_and_every_query_a_row(tmp_path):
    spec = spec_of()
    release(tmp_path / "out", spec)
    names = {f"{item.name}.parquet" for item in ITEMS}
    assert set(contents(tmp_path / "out")) == names | {
        "errors.parquet",
        "statement.md",
        "release.json",
    }
    for item in ITEMS:
        assert pq.read_metadata(tmp_path / "out" / f"{item.name}.parquet").num_rows == item.size
    assert os.listdir(tmp_path) == ["out"]


def test_pandas_reads_every_file(tmp_path):
    release(tmp_path / "out", spec_of())
    for item in ITEMS:
        frame = pd.read_parquet(tmp_path / "out" / f"{item.name}.parquet")
        assert len(frame) == item.size
        assert (
            not frame[["estimate", "std_error", "ci_low", "ci_high", "flag"]].isna().any(axis=None)
        )
    errors = pd.read_parquet(tmp_path / "out" / "errors.parquet")
    assert errors["item"].tolist() == [item.name for item in ITEMS]


def test_files_carry_no_metadata_but_ours(tmp_path):
    release(tmp_path / "out")
    for path in (tmp_path / "out").glob("*.parquet"):
        metadata = pq.read_metadata(path).metadata
        assert set(metadata) <= {b"dpquery", b"ARROW:schema"}
        facts = json.loads(metadata[b"dpquery"])
        assert facts["dataset"] == {"id": "people", "version": "7"}


def test_the_same_release_has_the_same_bytes(tmp_path):
    release(tmp_path / "one")
    release(tmp_path / "elsewhere" / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "elsewhere" / "two")


def test_files_follow_the_umask_and_are_private_while_written(tmp_path):
    modes = []

    def watched(item):
        modes.append(stat.S_IMODE((tmp_path / ".out.writing").stat().st_mode))
        return answers(item)

    before = os.umask(0o027)
    try:
        release(tmp_path / "out", answers=watched)
    finally:
        os.umask(before)
    assert set(modes) == {0o700}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "out" / "release.json").stat().st_mode) == 0o640


def test_an_identical_release_is_left_alone_but_for_the_stamp_that_make_reads(tmp_path):
    release(tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        os.utime(path, (1, 1))
    release(tmp_path / "out")
    stamps = {path.name: path.stat().st_mtime for path in (tmp_path / "out").iterdir()}
    assert stamps.pop("release.json") > 1
    assert set(stamps.values()) == {1}


def test_a_damaged_file_of_the_same_release_is_mended(tmp_path):
    release(tmp_path / "out")
    whole = contents(tmp_path / "out")
    (tmp_path / "out" / "statement.md").write_text("x")
    (tmp_path / "out" / "errors.parquet").unlink()
    release(tmp_path / "out")
    assert contents(tmp_path / "out") == whole


def test_another_release_is_replaced_only_when_asked(tmp_path):
    release(tmp_path / "out")
    with pytest.raises(PlanConflictError, match="--replace"):
        release(tmp_path / "out", spec_of(ITEMS[:2]), key="k2")
    release(tmp_path / "out", spec_of(ITEMS[:2]), key="k2", replace=True)
    assert "set0.parquet" in contents(tmp_path / "out")
    assert "any.parquet" not in contents(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "content", [None, "", "{}", "[]", '{"schema_version": "dpquery.release/9"}']
)
@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_that_is_no_release_is_never_replaced(tmp_path, content, replace):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("ten years")
    if content is not None:
        (tmp_path / "out" / "release.json").write_text(content)
    before = contents(tmp_path / "out")
    with pytest.raises(PlanConflictError, match="move the folder away"):
        check_target(tmp_path / "out", key="k1", replace=replace)
    with pytest.raises(PlanConflictError, match="move the folder away"):
        release(tmp_path / "out", replace=replace)
    assert contents(tmp_path / "out") == before


def test_a_file_a_link_or_a_foreign_file_in_the_way_is_kept(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(PlanConflictError, match="not a folder"):
            check_target(tmp_path / name, key="k1", replace=True)
    release(tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    check_target(tmp_path / "out", key="k1", replace=False)
    for key in ("k2", "k1"):
        with pytest.raises(PlanConflictError, match=r"notes\.txt"):
            release(tmp_path / "out", spec_of(ITEMS[:1]), key=key, replace=True)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_missing_or_empty_target_is_free(tmp_path):
    check_target(tmp_path / "none", key="k1", replace=False)
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", key="k1", replace=False)
    release(tmp_path / "empty")
    assert "release.json" in contents(tmp_path / "empty")


# ------------------------------------------------------------------------------- what goes wrong


def failing(problem, *, after):
    left = itertools.count()

    def stops(item):
        if next(left) == after:
            raise problem
        return answers(item)

    return stops


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("problem", [KeyboardInterrupt(), RuntimeError("x"), MemoryError()])
def test_a_failure_in_the_middle_leaves_the_earlier_release(tmp_path, problem, after):
    release(tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(type(problem)):
        release(tmp_path / "out", key="k2", replace=True, answers=failing(problem, after=after))
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("where", ["write_batch", "write_table", "write_text", "fsync"])
def test_a_full_disk_loses_nothing_and_says_what_to_do(tmp_path, monkeypatch, where):
    release(tmp_path / "out")
    before = contents(tmp_path / "out")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    owner = {"write_text": Path, "fsync": os}.get(where, pq.ParquetWriter)
    monkeypatch.setattr(owner, where, full)
    with pytest.raises(DpqueryError, match=r"the disk is full.*run again.*costs nothing"):
        release(tmp_path / "out", key="k2", replace=True)
    monkeypatch.undo()
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]
    release(tmp_path / "out", key="k2", replace=True)


@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupt_between_the_two_renames_is_undone(tmp_path, monkeypatch, step):
    release(tmp_path / "out")
    before, rename, calls = contents(tmp_path / "out"), Path.rename, itertools.count(1)

    def interrupted(self, target):
        if next(calls) == step:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        release(tmp_path / "out", key="k2", replace=True)
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_killed_run_left_is_put_back_and_cleared_away(tmp_path):
    release(tmp_path / "out")
    before = contents(tmp_path / "out")
    workshop = tmp_path / ".out.writing"
    (workshop / "new").mkdir(parents=True)
    (workshop / "new" / "half.parquet").write_text("x")
    (tmp_path / "out").rename(workshop / "old")
    with pytest.raises(PlanConflictError, match="--replace"):
        release(tmp_path / "out", key="k2")
    assert contents(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


def slow_release(directory):
    def waits(item):
        time.sleep(0.05)
        return answers(item)

    release(Path(directory), answers=waits)


def test_twins_wait_for_each_other(tmp_path):
    context = multiprocessing.get_context("fork")
    runs = [context.Process(target=slow_release, args=(str(tmp_path / "out"),)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(30)
    assert [run.exitcode for run in runs] == [0] * 4
    release(tmp_path / "alone")
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert sorted(os.listdir(tmp_path)) == ["alone", "out"]


def test_the_manifest_states_the_charge_that_the_ledger_has():
    for noise, epsilon in (("laplace", "1/3"), ("gaussian", "1")):
        own = guarantee(noise, epsilon=Fraction(epsilon), delta=Fraction(1, 10**9))
        stated = manifest(spec_of(ITEMS[-1:]), noise=noise, epsilon=epsilon).guarantee.charged
        units = charge_units(own, "epsilon" if noise == "laplace" else "rho")
        assert stated == units_text(units)


def test_the_manifest_is_written_last(tmp_path, monkeypatch):
    order, write_text = [], Path.write_text

    def noted(self, *args, **options):
        order.append((self.name, len(list(self.parent.iterdir()))))
        return write_text(self, *args, **options)

    monkeypatch.setattr(Path, "write_text", noted)
    release(tmp_path / "out")
    assert order[-1] == ("release.json", 5)


def test_progress_counts_queries(tmp_path):
    spec, seen = spec_of(ITEMS[-3:]), []
    write_release(
        tmp_path / "out",
        spec=spec,
        answers=answers,
        manifest=manifest(spec),
        replace=False,
        progress=seen.append,
    )
    assert seen == sorted(seen)
    assert seen[-1] == spec.queries


# ------------------------------------------------------------------------------- facts in words


def test_a_manifest_read_back_is_the_manifest(tmp_path):
    release(tmp_path / "out")
    text = (tmp_path / "out" / "release.json").read_text()
    assert read_manifest(tmp_path / "out") == manifest(spec_of(ITEMS[-3:]))
    assert manifest_text(read_manifest(tmp_path / "out")) == text
    assert json.loads(text)["ledger"] == {"seq": 3, "head": "h" * 64}
    assert str(tmp_path) not in text


def test_a_manifest_from_before_there_was_a_choice_names_opendp(tmp_path):
    release(tmp_path / "out")
    path = tmp_path / "out" / "release.json"
    older = json.loads(path.read_text())
    del older["noise"]["source"]
    path.write_text(json.dumps(older))
    assert read_manifest(tmp_path / "out").noise.source == "OpenDP"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"level": 0.95', '"level": "0.95"'),
        ('"level": 0.95', '"level": NaN'),
        ('"level": 0.95', '"levels": 0.95'),
        ('"any.parquet"', '"../any.parquet"'),
        ('"max_rows": 1', '"max_rows": true'),
        ("{", ""),
    ],
)
def test_a_damaged_manifest_is_told_apart(tmp_path, old, new):
    release(tmp_path / "out")
    path = tmp_path / "out" / "release.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(SpecError, match="damaged"):
        read_manifest(tmp_path / "out")


@pytest.mark.parametrize(
    ("privacy", "expected"),
    [
        ({}, ["one row of the file", "with that row in it, and the dataset without."]),
        ({"max_rows": 3}, ["any 3 rows of the file", "which the curator promises"]),
        (
            {"person": "pid", "max_rows": 2, "neighbours": "replace"},
            ["column `pid`", "At most 2 rows", "other rows in their place"],
        ),
    ],
)
def test_the_statement_names_unit_and_neighbours(privacy, expected):
    text = statement(manifest(spec_of(**privacy)))
    assert [words for words in expected if words not in text] == []


def test_the_statement_says_the_numbers_in_words():
    gaussian = statement(manifest(spec_of()))
    for words in (
        "ε = 1 at δ = 1e-9",
        "one in 1,000,000,000",
        "2.72 times",
        "73.1 %",
        "not a sampling",
    ):
        assert words in gaussian
    pure = statement(manifest(spec_of(), noise="laplace", epsilon="0.1"))
    assert "ε = 0.1 (pure" in pure
    assert "extra probability" not in pure
    assert "Releases so far have spent 1 of 4." in pure
    assert "The noise comes from Source 7, which draws it exactly" in pure


def test_a_description_cannot_break_the_statement():
    item = Item("x", (one(),), description="<script>alert(1)</script>\n# heading `code`")
    text = statement(manifest(spec_of([item])))
    assert "<script>" not in text
    assert "\n# heading" not in text


def test_two_results_differ_in_nothing_but_their_numbers(tmp_path):
    """Whatever the noisy answers are, the files have the same names, rows, labels and metadata."""

    def others(item):
        return (numbers(table, seed=99) for table in item.tables)

    release(tmp_path / "one")
    release(tmp_path / "two", answers=others)
    for name in ("release.json", "statement.md"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    for path in (tmp_path / "one").glob("*.parquet"):
        a, b = pq.read_table(path), pq.read_table(tmp_path / "two" / path.name)
        assert a.schema.equals(b.schema, check_metadata=True)
        assert len(a) == len(b)


def test_batches_on_disk_are_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "BATCH_ROWS", 10)
    item = Item("x", (one((AGE, AllRangesSet(8, 8))),))
    release(tmp_path / "out", spec_of([item]))
    assert pq.read_metadata(tmp_path / "out" / "x.parquet").num_row_groups == 4


def test_a_target_that_cannot_be_written_is_found_before_anything_is_charged(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanConflictError, match="cannot be written to"):
        check_target(tmp_path / "file" / "release", key="k", replace=False)


# ------------------------------------------------------------------------------- one file


def fail_halfway(path):
    with replacing(path) as draft:
        draft.write_text("half")
        raise OSError(errno.ENOSPC, "full")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as draft:
        draft.write_text("old")
    with pytest.raises(DpqueryError, match="cannot write"):
        fail_halfway(path)
    assert [own.name for own in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


def test_the_same_file_again_only_gets_newer(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("same")
    os.utime(path, (1, 1))
    before = path.stat()
    with replacing(path) as draft:
        draft.write_text("same")
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime > before.st_mtime


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    missing = tmp_path / "none" / "a.txt"
    with (
        pytest.raises(DpqueryError, match=r"cannot write .*: No such file"),
        replacing(missing) as draft,
    ):
        draft.write_text("new")
