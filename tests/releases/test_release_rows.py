"""Every query of an item is one row: declared labels in domain order, and the error it is worth."""

import itertools
import math
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pytest
from release_parts import DOMAIN, ITEMS, POOR, RACE, SEX_, WEEK, answers, identity, one

from dpquery.reconstruction.columns import COLUMN_NAMES
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.tables.errors import Tally, flags, relative_errors
from dpquery.releases.tables.item_table import layout
from dpquery.spec.columns import Bins, Boolean, Dates, Integers
from dpquery.spec.parsing.domain import RELEASE_COLUMNS
from dpquery.spec.predicates import GroupSet, IdentitySet, StackedSet, TotalSet, WidthSet, ranges
from dpquery.spec.spec import Item

# ------------------------------------------------------------------------------- the slow twin

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
            return [(column.range_label(i, j), i, j) for i, j in ranges(predicates)]


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


# ------------------------------------------------------------------------------- rows and labels


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
