"""Parquet, Arrow and databases, and parts of rows apart: they count as a CSV file of the same rows.

What Spark's machines count of parts of the rows adds up, in any partitions; here without Spark.
"""

import datetime
import decimal
import math
import os
import re
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import CANARY
from engines import Partitions, cut, simulated
from hypothesis import given
from hypothesis import strategies as st
from specs import (
    ALL_SUBSETS,
    DUCKDB,
    FUZZ,
    TAKES,
    TYPED,
    as_csv,
    assert_equal,
    attributes,
    cases,
    counted,
    field_texts,
    moved,
    single,
    slow_counts,
    spec_of,
    typed_table,
    write_arrow,
    write_duckdb,
    write_parquet,
)

from dpquery.exceptions import DataError
from dpquery.measurement.counting import arrow_files
from dpquery.measurement.counting.arrow_files import batch_of
from dpquery.measurement.counting.engines import spark as spark_session
from dpquery.measurement.counting.locations import sources_of
from dpquery.measurement.counting.persons import ExpandedSecret, PersonKeys
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.measurement.counting.tally import RecordTally
from dpquery.progress import reporting
from dpquery.spec.columns import Bins, Boolean, Categorical, Integers, person_rows
from dpquery.spec.spec import FileFormat

NAN, DAY = math.nan, datetime.date(2024, 2, 29)


NOON = datetime.datetime(2024, 2, 29, 12, 30)


TEXTS = [
    (pa.int8(), [1, -1, None], ["1", "-1", ""]),
    (pa.uint64(), [2**64 - 1, 0], ["18446744073709551615", "0"]),
    (
        pa.float64(),
        [1.0, 12345678.0, 0.1, -0.0, 0.0, None],
        ["1.0", "12345678.0", "0.1", "0.0", "0.0", ""],
    ),
    (pa.float64(), [1e22, 5e-324, NAN, math.inf], ["1e+22", "5e-324", "nan", "inf"]),
    (pa.float32(), [0.1, 1.0, None, 16777216.0], ["0.1", "1.0", "", "16777216.0"]),
    (pa.float16(), [np.float16(0.1), None], ["0.1", ""]),
    (pa.bool_(), [True, False, None], ["true", "false", ""]),
    (pa.string(), ["", " a ", None, "é", "\0"], ["", " a ", "", "é", "\0"]),
    (pa.large_string(), ["a", "a"], ["a", "a"]),
    (pa.string_view(), ["a", None], ["a", ""]),
    (pa.binary(), [b"\xff", None], [b"\xff", ""]),
    (pa.binary(2), [b"ab", None], ["ab", ""]),
    (pa.binary_view(), [b"\xff"], [b"\xff"]),
    (pa.dictionary(pa.int8(), pa.string()), ["b", None, "a", "b"], ["b", "", "a", "b"]),
    (pa.dictionary(pa.uint32(), pa.int64()), [7, None, 7], ["7", "", "7"]),
    (pa.decimal128(38, 2), [decimal.Decimal("1.50"), None], ["1.50", ""]),
    (pa.decimal128(5, -2), [decimal.Decimal(1200), decimal.Decimal(0)], ["1200", "0"]),
    (pa.decimal256(60, 0), [decimal.Decimal(10**50)], ["1" + "0" * 50]),
    (pa.decimal32(5, 1), [decimal.Decimal("-0.5"), None], ["-0.5", ""]),
    (pa.date32(), [DAY, None], ["2024-02-29", ""]),
    (pa.date64(), [DAY], ["2024-02-29"]),
    (pa.timestamp("ns"), [NOON, None], ["2024-02-29 12:30:00", ""]),
    (pa.timestamp("us", "UTC"), [NOON], ["2024-02-29 12:30:00Z"]),
    (pa.timestamp("us", "Europe/Berlin"), [NOON, None], ["2024-02-29 13:30:00+01:00", ""]),
    (pa.timestamp("ns", "-03:30"), [NOON], ["2024-02-29 09:00:00-03:30"]),
    (pa.time64("us"), [datetime.time(1, 2, 3, 40)], ["01:02:03.00004"]),
    (pa.null(), [None, None], ["", ""]),
]


@pytest.mark.parametrize(("kind", "values", "texts"), TEXTS, ids=lambda own: str(own)[:30])
def test_a_typed_value_is_the_text_of_a_csv_field(kind, values, texts):
    array = pa.array(values, kind)
    wanted = [text if isinstance(text, bytes) else text.encode() for text in texts]
    assert field_texts(array) == wanted
    assert batch_of([array]).columns[0][0][1].dtype == np.int32
    assert field_texts(pa.concat_arrays([array] * 3)[len(values) : 2 * len(values)]) == wanted
    for i in range(len(values)):  # whatever stands beside it
        assert field_texts(array[i : i + 1]) == wanted[i : i + 1]


def test_no_value_of_any_type_is_an_error():
    for kind in ("date32", "date64", "time32[s]", "time64[ns]"):
        wide = pa.int32() if "32" in kind else pa.int64()
        extremes = pa.array([-(2**31), 2**31 - 1, 0, None], wide).cast(pa.int64())
        extremes = pa.array(extremes.to_pylist(), wide).view(pa.type_for_alias(kind))
        assert len(field_texts(extremes)) == 4
    for unit in ("s", "ms", "us", "ns"):
        extremes = pa.array([-(2**63) + 1, 2**63 - 1, None], pa.int64())
        assert len(field_texts(extremes.view(pa.timestamp(unit)))) == 3
        assert len(field_texts(extremes.view(pa.timestamp(unit, "Europe/Berlin")))) == 3


def test_numbers_have_the_decimal_mark_that_the_spec_declares():
    assert field_texts(pa.array([1.5, None]), ",") == [b"1,5", b""]
    assert field_texts(pa.array([decimal.Decimal("1.5")]), ",") == [b"1,5"]
    assert field_texts(pa.array(["1.5"]), ",") == [b"1.5"]


KINDS = {"sex": pa.string(), "age": pa.int32(), "income": pa.float64(), "w": pa.bool_()}
KINDS |= {"b": pa.dictionary(pa.int8(), pa.string()), "extra": pa.string()}


FREE = st.text(st.sampled_from('MF Än",\n\r\0;'), max_size=4)


ROW = st.tuples(
    st.sampled_from(["M", "F", " F ", None]) | FREE,
    st.integers(-2, 4) | st.none(),
    st.sampled_from([0.0, -0.0, 1.5, 9.99, 10.0, math.inf, -1.0, 1e-300, 1e16, None]),
    st.booleans() | st.none(),
    st.sampled_from(["Ä", "ä", "n", "", None]),
    FREE | st.just("x" * 2000),
)


SOURCES = [name for name in TYPED if name not in TAKES]  # those make a database for each


def fields(row):
    """The texts of a row as a CSV file would hold them; what no line can hold is undeclared."""
    return tuple(
        "" if v is None else str(v).lower() if isinstance(v, bool) else str(v) for v in row
    )


def slow_typed(rows, spec):
    """The counts of rows, each as the quoted line that the CSV reader of the oracle takes."""
    tables = {s: np.zeros([spec.domain.shape[i] for i in s], np.int64) for s in ALL_SUBSETS}
    for row in rows:
        stripped = (text.strip() for text in fields(row))
        texts = [text if text.isprintable() else "\x01" for text in stripped]
        header, _, body = as_csv([texts]).partition(b"\n")
        for subset, own in slow_counts(body, spec=spec, header=header).items():
            tables[subset] += own
    return tables


def write(name, rows, folder):
    return TYPED[name](typed_table(rows, KINDS), folder / name)


def check_sources(names, record):
    @FUZZ
    @given(
        rows=st.lists(ROW, max_size=9),
        more=ROW,
        place=st.integers(0, 9),
        name=st.sampled_from(names),
        other=st.sampled_from(("count", "show", "drop")),
        piece=st.integers(1, 5),
    )
    def one_row_more(tmp_path, rows, more, place, name, other, piece):
        spec = spec_of(*attributes(other=other))
        with pytest.MonkeyPatch.context() as patch:
            found = counted(write(name, rows, tmp_path), spec, ALL_SUBSETS)
            patch.setattr(arrow_files, "ROWS_OF_A_PIECE", piece)
            patch.setattr("dpquery.measurement.counting.databases.ROWS_OF_A_PIECE", piece)
            with_one = [*rows[:place], more, *rows[place:]]
            after = counted(write(name, with_one, tmp_path), spec, ALL_SUBSETS)
        if name == "rows.db":  # no booleans of its own
            rows = [(*row[:3], row[3] if row[3] is None else int(row[3]), *row[4:]) for row in rows]
        assert_equal(found, slow_typed(rows, spec))
        assert moved(found, after) in ({0}, {1})
        record.append(name)

    return one_row_more


def test_one_row_more_of_any_values_is_one_record_and_rows_count_as_in_csv(
    tmp_path, record_property
):
    record = []
    check_sources(SOURCES, record)(tmp_path=tmp_path)
    record_property("neighbours", len(record))
    assert set(record) == set(SOURCES)


@pytest.mark.parametrize("name", cases(TYPED))
def test_the_rows_of_a_person_are_limited_in_any_source(tmp_path, name):
    spec = spec_of(single("age", Integers(0, 9)), person="extra", max_rows=2, keep="first")
    rows = [("M", age, 0.0, True, "n", person) for age, person in enumerate("ppqp q")]
    found = tabulate(write(name, rows, tmp_path), spec=spec, subsets=[(0,)])
    assert found[0,].tolist() == [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("name", cases(TYPED))
def test_only_wanted_columns_are_read_whatever_their_order(tmp_path, name):
    spec = spec_of(single("w", Boolean(), other="show"), single("age", Integers(0, 1)))
    rows = [("M", 1, 0.0, True, "n", "x"), ("M", 0, 0.0, None, "n", "x")]
    shares = []
    location = write(name, rows, tmp_path)
    check_header(location, spec)
    with reporting(shares.append):
        found = tabulate(location, spec=spec, subsets=[(0, 1)])
    assert found[0, 1].tolist() == [[0, 0], [0, 1], [1, 0]]
    assert shares[-1] == "reading the data: 100%"


@DUCKDB
def test_a_table_in_parts_of_every_kind_is_one_table(tmp_path):
    rows = [("M", age, 1.0, True, "n", "x") for age in (-1, 0, 1)]
    csv = tmp_path / "rows.csv"
    csv.write_bytes(as_csv([fields(row) for row in rows]))
    locations = [csv, *(write(name, rows, tmp_path) for name in TYPED if name != "rows.adbc")]
    spec = spec_of(single("age", Integers(-1, 1)))
    assert tabulate(locations, spec=spec, subsets=[(0,)])[0,].tolist() == [len(locations)] * 3
    persons = spec_of(*spec.domain.attributes, person="extra", max_rows=2)
    assert tabulate(locations, spec=persons, subsets=[()])[()] == 2
    with pytest.raises(DataError, match="named twice"):
        check_header([*locations, locations[-1]], spec)


AGE = spec_of(single("age", Integers(0, 1)))


NESTED = [
    (pa.list_(pa.int8()), [[1]]),
    (pa.struct({"x": pa.int8()}), [{"x": 1}]),
    (pa.map_(pa.string(), pa.int8()), [[("x", 1)]]),
    (pa.duration("s"), [1]),
]


def refusal(location, spec=AGE):
    with pytest.raises(DataError) as caught:
        check_header(Path(location), spec)
    with pytest.raises(DataError):
        tabulate(Path(location), spec=spec, subsets=[()])
    return str(caught.value)


FILES = {"f.parquet": write_parquet, "f.arrow": write_arrow}


@pytest.mark.parametrize(("kind", "values"), NESTED, ids=lambda own: str(own)[:20])
def test_a_nested_column_is_refused_by_name_and_type_where_it_is_declared(tmp_path, kind, values):
    table = pa.table({"age": pa.array(values, kind), "sex": ["yes"]})
    for name, write_file in FILES.items():
        path = write_file(table, tmp_path / name)
        told = "" if pa.types.is_map(kind) or name == "f.parquet" else f" {kind}"
        assert f"the column age has the type{told}" in refusal(path)
        assert tabulate(path, spec=spec_of(single("sex", Boolean())), subsets=[()])[()] == 1


@pytest.mark.parametrize("name", FILES)
def test_a_typed_file_that_lacks_a_column_is_of_another_kind_or_cut_off_is_refused(tmp_path, name):
    path, write_file = tmp_path / name, FILES[name]
    assert "no file" in refusal(path)
    assert "column age; rename" in refusal(write_file(pa.table({"x": [1]}), path))
    twice = pa.table([[1], [2]], names=["age", " age"])
    assert "column age more than once" in refusal(write_file(twice, path))
    path.write_bytes(b"age\n1\n")
    assert "give it the suffix of what it is" in refusal(path)
    content = write_file(pa.table({"age": range(999)}), path).read_bytes()
    path.write_bytes(content[:-20])
    assert "it is incomplete or damaged; copy it again, or write it again" in refusal(path)


NEVER_NUMBERS = [
    (pa.timestamp("us"), [datetime.datetime(2013, 1, 5, 7)], "as `date: {from: ..., to: ...}`"),
    (pa.timestamp("ns", "UTC"), [None], "as `date: {from: ..., to: ...}`"),
    (pa.date32(), [datetime.date(2013, 1, 5)], "as `date: {from: ..., to: ...}`"),
    (pa.time64("us"), [datetime.time(7)], "declare its `values`"),
    (pa.bool_(), [True], "declare it as `boolean`"),
    (pa.dictionary(pa.int8(), pa.date32()), None, "as `date: {from: ..., to: ...}`"),
]


@pytest.mark.parametrize("kind", [Integers(0, 1), Bins((0.0, 1.0))], ids=["range", "bins"])
@pytest.mark.parametrize(("type_", "values", "remedy"), NEVER_NUMBERS)
def test_a_column_of_times_or_booleans_that_is_declared_as_numbers_is_refused(
    tmp_path, kind, type_, values, remedy
):
    words = "the column age has the type .* declared as numbers, which none of its values is; .*"
    words += re.escape(remedy)
    column = pa.array(values or [datetime.date(2013, 1, 5)], None if values is None else type_)
    table = pa.table(
        {"age": (column.dictionary_encode() if values is None else column).cast(type_)}
    )
    for name, write_file in FILES.items():
        path = write_file(table, tmp_path / name)
        with pytest.raises(DataError, match=words):
            check_header(path, spec_of(single("age", kind)))
        for other in (Boolean(), Categorical(("1",), ("1",))):
            check_header(path, spec_of(single("age", other)))


def test_a_duckdb_column_of_times_that_is_declared_as_numbers_is_refused(tmp_path):
    pytest.importorskip("duckdb")
    times = pa.array([datetime.datetime(2013, 1, 5, 7)], pa.timestamp("us"))
    location = write_duckdb(pa.table({"age": times}), tmp_path / "f.duckdb")
    with pytest.raises(DataError, match=r"declare it as `date:"):
        check_header(location, AGE)


def test_a_damaged_typed_file_is_an_error_after_the_charge(tmp_path):
    path = tmp_path / "f.parquet"
    write_parquet(pa.table({"age": pa.array(range(9000)), "x": ["CANARY"] * 9000}), path)
    content = bytearray(path.read_bytes())
    content[20:4000] = bytes(3980)
    path.write_bytes(content)
    check_header(path, AGE)
    with pytest.raises(DataError, match="could not be read to its end") as caught:
        tabulate(path, spec=AGE, subsets=[()])
    assert caught.value.__context__ is None


STATEMENTS = [
    "CREATE VIEW twice AS SELECT * FROM persons, (SELECT 1 UNION SELECT 2)",
    'CREATE TABLE "x; DROP ""T""" (age INTEGER)',
]


@pytest.mark.parametrize("name", cases(["rows.db", "rows.duckdb", "rows.adbc"]))
def test_a_database_names_a_table_that_is_one_and_is_only_read(tmp_path, name):
    path = tmp_path / f"a b%{name}"
    location = TYPED[name](pa.table({"age": [1], 'o"dd': ["x"]}), path)
    connect = sqlite3.connect if name == "rows.db" else pytest.importorskip("duckdb").connect
    with closing(connect(path)) as connection:
        for statement in STATEMENTS + ["CREATE TABLE nested AS SELECT [1] AS age"] * (
            name != "rows.db"
        ):
            connection.execute(statement)
    spec = spec_of(
        single("age", Integers(0, 1)), single("o", Boolean(), header='o"dd', other="show")
    )
    before, place = path.read_bytes(), str(location).partition("?")[0]
    assert tabulate(location, spec=spec, subsets=[()])[()] == 1
    assert "is a view" in refusal(f"{place}?table=twice")
    for missing in ("nobody", "person_"):  # no pattern
        assert "does not exist" in refusal(f"{place}?table={missing}")
    assert 'column o"dd' in refusal(f"{place}?table=x%3B%20DROP%20%22T%22", spec)
    assert "does not name a table" in refusal(place)
    assert "does not name a table" in refusal(f"{place}?table=persons&where=1")
    if name != "rows.db":
        assert "the column age has the type list" in refusal(f"{place}?table=nested")
    assert path.read_bytes() == before
    assert [own.name for own in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", ["SQLite", "DuckDB"])
def test_a_file_that_is_no_database_is_refused(tmp_path, kind):
    (tmp_path / "text.db").write_bytes(b"age\n1\n" * 99)
    words = f"is not an? {kind} database"
    assert re.search(words, refusal(f"{kind.lower()}:{tmp_path}/text.db?table=persons"))
    assert "there is no file" in refusal(f"{kind.lower()}:none.db?table=persons")


def test_without_the_extra_a_duckdb_database_is_refused_before_the_charge(tmp_path, monkeypatch):
    (tmp_path / "a.db").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "pip install 'dpquery[duckdb]'" in refusal(f"duckdb:{tmp_path}/a.db?table=persons")


# Parts of the rows, in any partitions.


ALL = [(), (0,), (1,), (0, 1)]


def by_parts(table, spec, subsets, cuts, *, secret=None):
    """Count the slices of a table apart, each by a counter of its own, and add the counts up."""
    whole = [np.arange(n) for n in spec.domain.shape]
    counter = partial(RecordTally, spec, subsets, whole, secret=secret)
    total = counter()
    for low, high in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
        part = counter()
        rows = table.slice(low, high - low).combine_chunks()
        for batch in rows.to_batches():
            part.add(*batch_of([batch.column(name) for name in part.names]))
        part.end_pass()
        for cells in part.partial_tables():
            total.add_partial_tables(cells)
    return total.marginals()


def test_partial_tables_of_any_parts_add_up_to_those_of_the_whole(tmp_path):
    spec = spec_of(*attributes(other="show"))
    columns = {"sex": ["M", "F", "x"], "age": [-1, 3, 7], "income": [0.0, 9.5, math.nan]}
    columns |= {"w": [True, False, None], "b": ["Ä", "n", ""], "extra": ["", "a", "b"]}
    subsets = [(), (0, 2), (1,), (3,), (0, 1, 2, 3)]

    @FUZZ
    @given(
        rows=st.lists(st.tuples(*[st.integers(0, 2)] * 6), max_size=12),
        cuts=st.lists(st.integers(0, 12), max_size=4).map(sorted),
    )
    def adds_up(rows, cuts):
        table = pa.table({
            name: pa.array([values[row[k]] for row in rows], pa.array(values).type)
            for k, (name, values) in enumerate(columns.items())
        })  # fmt: skip
        cuts = [min(cut, table.num_rows) for cut in cuts]
        pq.write_table(table, tmp_path / "all.parquet")
        expected = tabulate(tmp_path / "all.parquet", spec=spec, subsets=subsets)
        assert_equal(by_parts(table, spec, subsets, cuts), expected)

    adds_up()


@pytest.mark.parametrize("number", [-1, 4])
def test_a_count_of_no_cell_is_never_left_out_without_a_word(number):
    tally = RecordTally(spec_of(single("a", Integers(0, 3))), [(0,)], [np.arange(4)])
    with pytest.raises(IndexError):
        tally.add_partial_tables(np.array([[0, number], [1, 1]]))


PARTS = st.lists(st.integers(0, 12), max_size=4)


AGAIN = st.lists(st.integers(0, 4), max_size=2)


MARKS = ("M", "F", None, "x")


def test_in_any_partitions_all_rows_count_once(tmp_path, monkeypatch):
    spec = spec_of(
        single("a", Integers(0, 3), other="show"), single("b", Categorical(MARKS[:2], MARKS[:2]))
    )

    @FUZZ
    @given(
        rows=st.lists(st.tuples(st.integers(-1, 5), st.sampled_from(MARKS)), max_size=12),
        tables=st.lists(st.tuples(PARTS, AGAIN), min_size=1, max_size=2),
    )
    def once(rows, tables):
        names = {"a": pa.int64(), "b": pa.string()}
        columns = list(zip(*rows, strict=True)) or [(), ()]
        types = names.values()
        whole = pa.table(
            [pa.array(*own) for own in zip(columns, types, strict=True)], names=[*names]
        )
        pq.write_table(pa.concat_tables([whole] * len(tables)), tmp_path / "all.parquet")
        expected = tabulate(tmp_path / "all.parquet", spec=spec, subsets=ALL)
        with monkeypatch.context() as patch:
            simulated(patch, [Partitions(cut(whole, cuts), again=again) for cuts, again in tables])
            for limit in ("_BLOCK", "_OF_A_TASK", "_SENT"):
                patch.setattr(spark_session, limit, 2)
            assert_equal(tabulate(["spark:x"], spec=spec, subsets=ALL), expected)

    once()


def test_in_any_partitions_a_person_is_one(monkeypatch):
    ids = [
        "p",
        "quite a long name",
        "quite a long nam",
        " p ",
        "",
        "a much longer name than others",
    ]
    domain = single("a", Integers(0, 3)), person_rows(2)
    spec = {most: spec_of(*domain, person="id", max_rows=most) for most in (1, 2, 9)}

    @FUZZ
    @given(
        rows=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(ids)), max_size=12),
        tables=st.lists(st.tuples(PARTS, AGAIN), min_size=1, max_size=2),
        most=st.sampled_from([1, 2, 9]),
    )
    def one(rows, tables, most):
        ages, persons = zip(*rows, strict=True) if rows else ((), ())
        whole = pa.table({"a": pa.array(ages, pa.int64()), "id": pa.array(persons, pa.string())})
        rows_of = Counter(name.strip() for age, name in rows * len(tables) if age < 4 and name)
        expected = sum(min(most, own) for own in rows_of.values())
        with monkeypatch.context() as patch:
            simulated(patch, [Partitions(cut(whole, cuts), again=again) for cuts, again in tables])
            found = tabulate(["spark:x"], spec=spec[most], subsets=[(), (0,), (1,)])
        assert found[()] == found[0,].sum() == expected
        of_number = Counter(min(own, 3) for own in rows_of.values())
        others = expected - len(rows_of)  # rows that stay beside the one with the number
        assert found[1,].tolist() == [*(of_number[k] for k in (1, 2, 3)), others]
        if most == 9 and max(rows_of.values(), default=0) <= most:
            ages = Counter(age for age, name in rows * len(tables) if age < 4 and name)
            assert found[0,].tolist() == [ages[age] for age in range(4)]

    one()


def test_keys_of_one_secret_are_the_same_wherever_they_are_made_and_other_secrets_give_others():
    ids = [b"short", b"x" * 16, b"y" * 40, b"z" * 5_000, b"z" * 4_999 + b"a"]
    together, _ = PersonKeys(ExpandedSecret(b"s" * 32, b"keys")).of(
        pa.array(ids, pa.large_binary())
    )
    for order in (ids, ids[::-1], ids[2:] + ids[:2]):  # factors are drawn few or many at a time
        keys = PersonKeys(ExpandedSecret(b"s" * 32, b"keys"))
        for person in order:
            alone, named = keys.of(pa.array([person], pa.large_binary()))
            assert named.all()
            np.testing.assert_array_equal(alone[:, 0], together[:, ids.index(person)])
    other, _ = PersonKeys(ExpandedSecret(b"t" * 32, b"keys")).of(pa.array(ids, pa.large_binary()))
    assert not np.isin(other, together).any()


def test_each_partition_draws_rows_of_its_own_and_each_try_the_same():
    spec = spec_of(single("age", Integers(0, 9999)), person="id", max_rows=9)

    def kept(secret, part):
        tally = RecordTally(spec, [(0,)], [np.arange(10_000)], secret=secret, part=part)
        texts = [pa.array(range(10_000)), pa.array(["p"] * 10_000)]
        tally.add(*batch_of(texts))
        tally.end_pass()
        return set(np.flatnonzero(tally.marginals()[0,]).tolist())

    first = kept(b"s" * 32, b"a")
    assert len(first) == 9
    assert kept(b"s" * 32, b"a") == first
    assert len(first & kept(b"s" * 32, b"b")) < 5
    assert len(first & kept(b"t" * 32, b"a")) < 5


def test_of_two_partitions_each_draws_by_the_lowest_of_its_keys(monkeypatch):
    ids = [person for person in "abcdefgh" for _ in range(1000)]
    spec = spec_of(single("age", Integers(0, 999)), person="id", max_rows=1)
    simulated(monkeypatch, [Partitions([pa.table({"age": [*range(1000)] * 8, "id": ids})])])
    found = tabulate(["spark:x"], spec=spec, subsets=[(0,)])[0,]
    assert found.sum() == 8
    assert (found > 0).sum() > 5  # of two that drew alike, four persons would be at most four ages


def test_all_that_is_drawn_on_spark_follows_from_what_the_operating_system_gives(monkeypatch):
    table = pa.table({"age": [*range(60)] * 9, "id": [p for p in "abcdefghi" for _ in range(60)]})
    spec = spec_of(single("age", Integers(0, 59)), person="id", max_rows=3)
    simulated(monkeypatch, [Partitions(cut(table, [100, 300]))])

    def drawn(secret):
        asked = []
        monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or secret)
        found = tabulate(["spark:x"], spec=spec, subsets=[(0,)])[0,]
        assert asked == [32]  # once, on this machine: no task asks its own
        return found.tolist()

    assert drawn(b"s" * 32) == drawn(b"s" * 32) != drawn(b"t" * 32)


def test_what_is_shuffled_of_a_row_holds_neither_an_id_nor_a_value():
    spec = spec_of(single("age", Integers(0, 9)), person="id", max_rows=2)
    tally = RecordTally(spec, [(0,)], [np.arange(10)], secret=b"s" * 32)
    texts = [pa.array([7, 7, 99, 1]), pa.array(["123456789012345", "", CANARY, CANARY * 9])]
    rows = tally.rows_of_persons(batch_of(texts).columns)
    assert rows.shape == (3, 2)  # of two rows that are inside and have an id
    content = rows.tobytes() + rows.T.tobytes()
    assert not any(part in content for part in (b"12345678", b"9012345", CANARY[:8].encode()))


def test_why_a_count_ended_is_told_in_words_of_our_own(monkeypatch):
    class Stopped(Partitions):
        def select(self, *_):
            raise OSError(f"OutOfMemoryError at {CANARY}")

    simulated(monkeypatch, [Stopped([pa.table({"age": [1]})])])
    with pytest.raises(DataError, match="too little memory") as caught:
        tabulate(["spark:x"], spec=spec_of(single("age", Integers(0, 9))), subsets=[()])
    assert CANARY not in str(caught.value)


def test_without_the_extra_a_table_on_spark_is_refused_with_the_remedy(monkeypatch):
    for name in [own for own in sys.modules if own.startswith("pyspark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(DataError, match=re.escape("pip install 'dpquery[spark]'")):
        check_header(["spark:x.parquet"], spec_of(single("age", Integers(0, 9))))


def test_locations_on_spark_stand_alone_and_keep_their_slashes(tmp_path):
    from dpquery.commands.arguments import as_data

    assert as_data(["spark:s3a://bucket/x.parquet"]) == ["spark:s3a://bucket/x.parquet"]
    assert as_data("spark:table=db.persons") == ["spark:table=db.persons"]
    assert as_data("a.csv") == [Path("a.csv")]
    spec = spec_of(single("age", Integers(0, 9)), person="id", keep="first")
    (tmp_path / "a.csv").write_text("age,id\n")
    with pytest.raises(DataError, match="is on Spark, and other data is not"):
        check_header([tmp_path / "a.csv", "spark:x.parquet"], spec)
    with pytest.raises(DataError, match="have no order"):
        check_header(["spark:x.parquet"], spec)
    with pytest.raises(DataError, match="counted by a release alone"):
        sources_of(["spark:x.parquet"], FileFormat())
