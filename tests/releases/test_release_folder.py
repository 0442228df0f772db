"""A release folder holds every row and nothing of its own accord, and gives way only when asked."""

import itertools
import json
import math
import os
import stat
from dataclasses import replace
from datetime import date, timedelta
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from release_parts import (
    DOMAIN,
    INCOME,
    ITEMS,
    POOR,
    RACE,
    SEX_,
    WEEK,
    answers,
    identity,
    manifest,
    one,
    release,
    spec_of,
)
from town import contents

from dpquery.exceptions import PlanConflictError, SpecError
from dpquery.measurement.accounting import charge_units, guarantee, units_text
from dpquery.reconstruction.columns import COLUMN_NAMES
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.folder.write import check_target
from dpquery.releases.manifest import manifest_text, read_manifest
from dpquery.releases.statement import statement
from dpquery.releases.tables.item_table import Tally, flags, layout, relative_errors
from dpquery.releases.tables.labels import release_rules
from dpquery.spec.columns import Bins, Boolean, Dates, Integers
from dpquery.spec.parsing.domain import RELEASE_COLUMNS
from dpquery.spec.predicates import GroupSet, IdentitySet, StackedSet, TotalSet, WidthSet
from dpquery.spec.spec import Item
from dpquery.version import __version__


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


def test_files_carry_no_metadata_but_ours(tmp_path):
    release(tmp_path / "out")
    for path in (tmp_path / "out").glob("*.parquet"):
        metadata = pq.read_metadata(path).metadata
        assert set(metadata) <= {b"dpquery", b"ARROW:schema"}
        facts = json.loads(metadata[b"dpquery"])
        assert facts["dataset"] == {"id": "people", "version": "7"}
    assert json.loads((tmp_path / "out" / "release.json").read_text())["tool"] == __version__


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
    for name in ("notes.txt", ".ledger"):
        path = tmp_path / "out" / name
        path.write_text("mine")
        check_target(tmp_path / "out", key="k1", replace=False)
        for key in ("k2", "k1"):
            with pytest.raises(PlanConflictError, match=f"also holds {name}"):
                release(tmp_path / "out", spec_of(ITEMS[:1]), key=key, replace=True)
        assert path.read_text() == "mine"
        path.unlink()


def test_a_missing_or_empty_target_is_free(tmp_path):
    check_target(tmp_path / "none", key="k1", replace=False)
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", key="k1", replace=False)
    release(tmp_path / "empty")
    assert "release.json" in contents(tmp_path / "empty")


def test_a_target_that_cannot_be_written_is_found_before_anything_is_charged(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written to"):
        check_target(tmp_path / "file" / "release", key="k", replace=False)


# The manifest and the statement say what was charged and is promised; a damaged one is found.


def test_the_manifest_states_the_charge_that_the_ledger_has():
    for noise, epsilon in (("laplace", "1/3"), ("gaussian", "1")):
        terms = guarantee(noise, epsilon=Fraction(epsilon), delta=Fraction(1, 10**9))
        stated = manifest(spec_of(ITEMS[-1:]), noise=noise, epsilon=epsilon).guarantee.charged
        units = charge_units(terms, "epsilon" if noise == "laplace" else "rho")
        assert stated == units_text(units)


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


def test_the_statement_says_what_the_noise_comes_to_in_counts():
    facts = manifest(spec_of())
    strategy = replace(facts.strategy, rmse=31.7, max_std_error=220.25)
    coarse = replace(facts.noise, scale=3.3e8, shift=59, sensitivity="16")
    text = " ".join(statement(replace(facts, strategy=strategy, noise=coarse)).split())
    assert "of each measurement, taken in steps of 2^59, noise of the discrete Gaussian" in text
    assert "of scale 3.3e+08 steps was added once" in text
    assert "are 31.7 (root mean square) and 220.2 at most" in text
    fine = replace(facts.noise, shift=0)
    text = " ".join(statement(replace(facts, strategy=strategy, noise=fine)).split())
    assert "of each measurement, noise of the discrete Gaussian" in text
    assert "steps" not in text


def test_a_description_cannot_break_the_statement():
    item = Item("x", (one(),), description="<script>alert(1)</script>\n# heading `code`")
    text = statement(manifest(spec_of([item])))
    assert "<script>" not in text
    assert "\n# heading" not in text


# Every query of an item is one row: declared labels in domain order, and the error it is worth.

MONDAYS = [date(2012, 12, 24), date(2012, 12, 31), date(2013, 1, 7), date(2013, 1, 14)]


def slow_queries(attribute, predicates):
    """Return (label, first, last) of every query; first and last are None where it is no range."""
    column = attribute.columns[0]
    match predicates:
        case IdentitySet(size=size):
            ordered = [code < attribute.length for code in range(size)]
            return [
                (attribute.label(c), *((c, c) if ordered[c] else (None, None))) for c in range(size)
            ]
        case TotalSet():
            return [("(all)" if attribute.name == "state" else "all", None, None)]
        case GroupSet(groups=groups):
            runs = [list(codes) == list(range(codes[0], codes[-1] + 1)) for _, codes in groups]
            runs = [
                run and g[1][-1] < attribute.length for run, g in zip(runs, groups, strict=True)
            ]
            return [
                (label, *((codes[0], codes[-1]) if run else (None, None)))
                for run, (label, codes) in zip(runs, groups, strict=True)
            ]
        case StackedSet(parts=parts):
            return [query for part in parts for query in slow_queries(attribute, part)]
        case _:
            return [(column.range_label(i, j), i, j) for i, j in predicates.pairs]


def slow_value(attribute, label, first, *, typed):
    if not typed or attribute.merged:
        return label
    match attribute.columns[0].kind:
        case Integers(low=low):
            return low + first
        case Boolean():
            return bool(first)
        case Dates():
            return MONDAYS[first]
        case _:
            return label


def slow_ends(attribute, first, last):
    if first is None:
        return None, None
    kind = attribute.columns[0].kind
    if isinstance(kind, Integers):
        return kind.low + first, kind.low + last
    if isinstance(kind, Dates):
        return MONDAYS[first], MONDAYS[last] + timedelta(days=6)
    return kind.edges[first], kind.edges[last + 1]


def slow_columns(attribute, index, item, query):
    used = [dict((*t.axes, *t.where)).get(index) for t in item.tables]
    typed = all(isinstance(p, IdentitySet) for p in used) and attribute.length == attribute.size
    label, first, last = query
    row = {attribute.name: slow_value(attribute, label, first, typed=typed)}
    kind = attribute.columns[0].kind
    if attribute.name in ("sex", "state"):  # whose labels are not their codes
        one_value = first is not None and first == last
        row[f"{attribute.name}_code"] = kind.values[first] if one_value else None
    ordered = not attribute.merged and isinstance(kind, Integers | Bins | Dates)
    if ordered and not (typed and isinstance(kind, Integers | Dates)):
        row[f"{attribute.name}_from"], row[f"{attribute.name}_to"] = slow_ends(
            attribute, first, last
        )
    return row


def slow_rows(item):
    used = sorted({i for table in item.tables for i in table.attributes})
    counted = any(table.threshold < len(table.axes) for table in item.tables)
    for table in item.tables:
        conditions = (*table.axes, *table.where)
        attributes = DOMAIN.attributes
        queries = [slow_queries(attributes[i], predicates) for i, predicates in conditions]
        for chosen in itertools.product(*queries):
            query_of = {i: query for (i, _), query in zip(conditions, chosen, strict=True)}
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
                row |= slow_columns(attributes[i], i, item, query_of.get(i, absent))
            yield row


def rows_of(item, rows=1 << 18):
    columns = layout(item, DOMAIN)
    batches = [batch.rows for batch in columns.batches(answers(item), rows=rows)]
    return pa.Table.from_batches(batches, columns.schema)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_labels_agree_with_a_row_by_row_twin(item):
    rows = rows_of(item).to_pylist()
    estimates = np.concatenate([batch.estimate for batch in answers(item)])
    expected = list(slow_rows(item))
    labels = list(expected[0])
    assert [{name: row[name] for name in labels} for row in rows] == expected
    assert list(rows[0])[: len(labels)] == labels
    assert [row["estimate"] for row in rows] == estimates.tolist()


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
    weeks = layout(Item("x", (one((WEEK, identity(WEEK))),)), DOMAIN).schema
    assert weeks.field("week").type == pa.date32()
    weeks = layout(Item("x", (one((WEEK, WidthSet(4, 4, 2))),)), DOMAIN).schema
    assert [weeks.field(f"week_{end}").type for end in ("from", "to")] == [pa.date32()] * 2


def test_a_column_has_one_type_in_all_files_and_the_edge_of_a_bin_is_not_its_last_value():
    asked = ((WEEK, identity(WEEK)), (WEEK, WidthSet(4, 4, 2)), (INCOME, identity(INCOME)))
    items = [Item("x", (one(axis),)) for axis in asked]
    names = [
        set(layout(item, DOMAIN, rules=release_rules(items, DOMAIN)).schema.names) for item in items
    ]
    assert names[0] == names[1] >= {"week", "week_from", "week_to"}
    assert names[2] >= {"income_from", "income_below"}


def test_a_dictionary_is_the_declared_domain_in_domain_order():
    table = rows_of(Item("x", (one((SEX_, identity(SEX_))),)))
    assert table.column("sex").chunk(0).dictionary.to_pylist() == ["Male", "Female"]
    table = rows_of(Item("x", (one((RACE, identity(RACE))),)))
    expected = [DOMAIN.attributes[RACE].label(code) for code in range(4)]
    assert table.column("race").chunk(0).dictionary.to_pylist() == expected


def test_the_names_that_a_spec_may_not_use_are_those_of_our_columns():
    either = one((SEX_, identity(SEX_)), (POOR, identity(POOR)), at_least=1)
    columns = layout(Item("x", (either,)), DOMAIN, extra=COLUMN_NAMES)
    assert set(columns.whole_schema.names) - {"sex", "sex_code", "poor"} == RELEASE_COLUMNS


def test_answers_of_the_wrong_tables_are_refused():
    item = ITEMS[-1]
    for wrong in (list(answers(item))[:-1], list(answers(item))[::-1]):
        with pytest.raises(ValueError, match="no answers for table"):
            list(layout(item, DOMAIN).batches(iter(wrong)))


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

    columns = layout(ITEMS[1], DOMAIN)
    (batch,) = columns.batches(zeros(ITEMS[1]))
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
    for places in np.array_split(np.arange(30_001), 7):
        tally.add(error[places], relative[places])
    row = tally.row(Item("x", ()))
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert row["median_std_error"] == pytest.approx(np.median(error), rel=0.004)
    assert row["median_rel_error"] == pytest.approx(np.median(relative), rel=0.004)
    assert row["max_std_error"] == error.max()
    assert row["worst_rel_error"] == relative.max()
    assert row["flagged_share"] == np.mean(relative >= 0.3)
