"""Parquet, Arrow and databases: rows count as those of a CSV file of the same values."""

import datetime
import decimal
import math
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
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
    moved,
    single,
    slow_counts,
    spec_of,
    typed_table,
    write_duckdb,
    write_parquet,
    write_sqlite,
)

from dpquery.exceptions import DataError
from dpquery.measurement.counting import arrow_files, column_codes
from dpquery.measurement.counting.arrow_files import batch_of
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.progress import reporting
from dpquery.spec.columns import Bins, Boolean, Categorical, Integers

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


def texts_of(array, mark="."):
    ((values, places),) = batch_of([array]).columns[0]
    assert places.dtype == np.int32
    texts = column_codes.texts_of(values, mark).to_pylist()
    return [texts[i] for i in places.tolist()]


@pytest.mark.parametrize(("kind", "values", "texts"), TEXTS, ids=lambda own: str(own)[:30])
def test_a_typed_value_is_the_text_of_a_csv_field(kind, values, texts):
    array = pa.array(values, kind)
    wanted = [text if isinstance(text, bytes) else text.encode() for text in texts]
    assert texts_of(array) == wanted
    assert texts_of(pa.concat_arrays([array] * 3)[len(values) : 2 * len(values)]) == wanted
    for i in range(len(values)):  # whatever stands beside it
        assert texts_of(array[i : i + 1]) == wanted[i : i + 1]


def test_no_value_of_any_type_is_an_error():
    for kind in ("date32", "date64", "time32[s]", "time64[ns]"):
        wide = pa.int32() if "32" in kind else pa.int64()
        extremes = pa.array([-(2**31), 2**31 - 1, 0, None], wide).cast(pa.int64())
        extremes = pa.array(extremes.to_pylist(), wide).view(pa.type_for_alias(kind))
        assert len(texts_of(extremes)) == 4
    for unit in ("s", "ms", "us", "ns"):
        extremes = pa.array([-(2**63) + 1, 2**63 - 1, None], pa.int64())
        assert len(texts_of(extremes.view(pa.timestamp(unit)))) == 3
        assert len(texts_of(extremes.view(pa.timestamp(unit, "Europe/Berlin")))) == 3


def test_numbers_have_the_decimal_mark_that_the_spec_declares():
    assert texts_of(pa.array([1.5, None]), ",") == [b"1,5", b""]
    assert texts_of(pa.array([decimal.Decimal("1.5")]), ",") == [b"1,5"]
    assert texts_of(pa.array(["1.5"]), ",") == [b"1.5"]


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


@DUCKDB
def test_one_row_more_of_a_duckdb_table_is_one_record(tmp_path):
    generator = np.random.default_rng(5)
    spec = spec_of(*attributes(other="show"))
    choices = [["M", "F", "x\n", None], [-1, 3, 9, None], [0.0, 1.5, math.nan], [True, None]]
    choices += [["Ä", "n"], ["\0", 'a"']]
    rows = [tuple(own[generator.integers(len(own))] for own in choices) for _ in range(40)]
    tables = [
        counted(write(name, rows[:stop], tmp_path), spec, ALL_SUBSETS)
        for stop in (40, 39)
        for name in ("rows.duckdb", "rows.parquet")
    ]
    assert_equal(tables[0], tables[1])
    assert_equal(tables[2], tables[3])
    assert moved(tables[0], tables[2]) == {1}


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


@pytest.mark.parametrize(("kind", "values"), NESTED, ids=lambda own: str(own)[:20])
def test_a_nested_column_is_refused_by_name_and_type_where_it_is_declared(tmp_path, kind, values):
    table = pa.table({"age": pa.array(values, kind), "sex": ["yes"]})
    path = tmp_path / "f.parquet"
    if not pa.types.is_map(kind):
        with pa.ipc.new_file(tmp_path / "f.arrow", table.schema) as writer:
            writer.write_table(table)
        assert f"the column age has the type {kind}" in refusal(tmp_path / "f.arrow")
    write_parquet(table, path)
    assert "the column age has the type" in refusal(path)
    assert tabulate(path, spec=spec_of(single("sex", Boolean())), subsets=[()])[()] == 1


def test_a_typed_file_without_a_declared_column_or_of_another_kind_is_refused(tmp_path):
    write_parquet(pa.table({"x": [1]}), tmp_path / "f.parquet")
    assert "column age; rename" in refusal(tmp_path / "f.parquet")
    twice = pa.table([[1], [2]], names=["age", " age"])
    write_parquet(twice, tmp_path / "f.parquet")
    assert "column age more than once" in refusal(tmp_path / "f.parquet")
    for name in ("g.parquet", "g.arrow"):
        (tmp_path / name).write_bytes(b"age\n1\n")
        assert "give it the suffix of what it is" in refusal(tmp_path / name)
        assert "no file" in refusal(tmp_path / f"none-{name}")


@pytest.mark.parametrize("name", ["f.parquet", "f.arrow"])
def test_a_typed_file_that_is_cut_off_is_said_to_be_incomplete(tmp_path, name):
    table, path = pa.table({"age": range(999)}), tmp_path / name
    if name == "f.parquet":
        write_parquet(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    path.write_bytes(path.read_bytes()[:-20])
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
    if values is None:
        column = pa.array([datetime.date(2013, 1, 5)], pa.date32()).dictionary_encode().cast(type_)
    else:
        column = pa.array(values, type_)
    table = pa.table({"age": column})
    with pa.ipc.new_file(tmp_path / "f.arrow", table.schema) as writer:
        writer.write_table(table)
    write_parquet(table, tmp_path / "f.parquet")
    for path in (tmp_path / "f.arrow", tmp_path / "f.parquet"):
        with pytest.raises(DataError) as caught:
            check_header(path, spec_of(single("age", kind)))
        assert "the column age has the type" in str(caught.value)
        assert "declared as numbers, which none of its values is; " in str(caught.value)
        assert remedy in str(caught.value)
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


def test_a_database_names_a_table_that_is_one(tmp_path):
    place = tmp_path / "a b%.db"
    table = pa.table({"age": [1], 'o"dd': ["x"]})
    write_sqlite(table, place)
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE VIEW twice AS SELECT * FROM persons, (SELECT 1 UNION SELECT 2)")
        connection.execute('CREATE TABLE "x; DROP ""T""" (age)')
    connection.close()
    spec = spec_of(
        single("age", Integers(0, 1)), single("o", Boolean(), header='o"dd', other="show")
    )
    assert tabulate(Path(f"sqlite:{place}?table=persons"), spec=spec, subsets=[()])[()] == 1
    assert "is a view" in refusal(f"sqlite:{place}?table=twice")
    assert "does not exist" in refusal(f"sqlite:{place}?table=nobody")
    assert 'column o"dd' in refusal(f"sqlite:{place}?table=x%3B%20DROP%20%22T%22", spec)
    assert "does not name a table" in refusal(f"sqlite:{place}")
    assert "does not name a table" in refusal(f"sqlite:{place}?table=persons&where=1")
    assert "there is no file" in refusal("sqlite:none.db?table=persons")
    (tmp_path / "text.db").write_bytes(b"age\n1\n" * 99)
    assert "is not an SQLite database" in refusal(f"sqlite:{tmp_path}/text.db?table=persons")


def test_a_duckdb_table_is_one_and_is_only_read(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    location = write("rows.duckdb", [("M", 1, 0.0, True, "n", "x")], tmp_path)
    path = tmp_path / "rows.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE VIEW other AS SELECT * FROM persons")
        connection.execute("CREATE TABLE nested AS SELECT [1] AS age")
    before = path.read_bytes()
    assert "is a view" in refusal(f"duckdb:{path}?table=other")
    assert "does not exist" in refusal(f"duckdb:{path}?table=nobody")
    assert "the column age has the type list" in refusal(f"duckdb:{path}?table=nested")
    (tmp_path / "text.db").write_bytes(b"age\n1\n" * 99)
    assert "is not a DuckDB database" in refusal(f"duckdb:{tmp_path}/text.db?table=persons")
    assert tabulate(location, spec=AGE, subsets=[()])[()] == 1
    assert path.read_bytes() == before
    assert sorted(own.name for own in tmp_path.iterdir()) == ["rows.duckdb", "text.db"]


def test_without_the_extra_a_duckdb_database_is_refused_before_the_charge(tmp_path, monkeypatch):
    (tmp_path / "a.db").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "pip install 'dpquery[duckdb]'" in refusal(f"duckdb:{tmp_path}/a.db?table=persons")
