"""Typed values count as what the text of a CSV file would be, and none of them ends a release."""

import io
import random
import sqlite3
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from town import checked, counts, planned, released, spec_text

from dpquery.exceptions import DataError

MONTHS = "{date: {from: 2019-12, to: 2020-02, by: month}}"


def plan_of(folder, **domain):
    items = [f"{{name: {name}, product: {{{name}: identity}}}}" for name in domain]
    planned(folder, spec_text(domain, [*items, "{name: n, product: {}}"]))


def written_arrow(path, table, *, stream=False):
    with (ipc.new_stream if stream else ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table)
    return path


# ---------------------------------------------------------------------------- times with a zone

BERLIN_NIGHTS = ["2019-12-31 23:30", "2020-01-01 00:30", "2020-01-31 23:59:59", "2020-02-01"]


def nights():
    """Local times of Berlin; three of them are of another month in UTC, or next to it."""
    times = pd.to_datetime(pd.Series([*BERLIN_NIGHTS, None], name="t"), format="ISO8601")
    return pd.DataFrame({"t": times.dt.tz_localize("Europe/Berlin")})


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "dictionary"])
def test_a_frame_counts_on_the_days_of_its_zone_in_every_kind_of_file(tmp_path, kind):
    plan_of(tmp_path, t=MONTHS)
    frame, path = nights(), tmp_path / f"d.{kind.replace('dictionary', 'feather')}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        table = pa.Table.from_pandas(frame)
        if kind == "dictionary":
            table = pa.table({"t": table["t"].combine_chunks().dictionary_encode()})
        written_arrow(path, table)
    assert counts(released(tmp_path, path)["t"]) == [1, 2, 1]
    if kind == "parquet":
        assert "days are those of Europe/Berlin" in checked(tmp_path, path)[1]


# The years in which an island had a day twice, by the mean time of its place, and left one out.
YEARS = {"s": 1892, "ns": 2011}
ZONES = ["America/New_York", "Asia/Kolkata", "Pacific/Apia", "Europe/London", "UTC", "-03:30"]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", YEARS)
def test_days_of_a_zone_are_those_of_an_independent_calendar(tmp_path, zone, unit):
    year = YEARS[unit]
    plan_of(tmp_path, t=f"{{date: {{from: {year}-01-01, to: {year + 1}-01-02}}}}")
    rng = np.random.default_rng(5)
    span = (datetime(year, 1, 3, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC))
    first, last = (int(moment.timestamp()) for moment in span)
    seconds = rng.integers(first, last, 400)  # so many are coded otherwise than a few
    own = timedelta(hours=-3, minutes=-30) if zone[0] == "-" else None
    place = UTC if own is not None else ZoneInfo(zone)
    days = {}
    for second in seconds.tolist():
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
        day = (moment + own if own else moment.astimezone(place)).date()
        days[day] = days.get(day, 0) + 1
    factor = 1 if unit == "s" else 10**9
    times = pa.array(seconds * factor).cast(pa.timestamp(unit, zone))
    for part, path in enumerate([times[:300], times[300:]]):  # few, and many at once
        pq.write_table(pa.table({"t": path}), tmp_path / f"{part}.parquet")
    tables = released(tmp_path, [tmp_path / "0.parquet", tmp_path / "1.parquet"])
    found = counts(tables["t"])
    start = date(year, 1, 1).toordinal()
    assert {date.fromordinal(start + k): n for k, n in enumerate(found) if n} == days


def test_a_zone_that_nobody_knows_is_refused_before_the_charge(tmp_path):
    plan_of(tmp_path, t=MONTHS)
    times = pa.array([0], pa.timestamp("us", "No/Where"))
    pq.write_table(pa.table({"t": times}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="a zone that this machine does not know") as refused:
        released(tmp_path, tmp_path / "d.parquet")
    assert "charge stands" not in str(refused.value)


@pytest.mark.parametrize("how", ["duckdb", "ibis:duckdb"])
def test_moments_of_a_database_are_refused_before_the_charge(tmp_path, how):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(tmp_path / "d.duckdb") as connection:
        connection.execute("CREATE TABLE t (t TIMESTAMPTZ)")
    plan_of(tmp_path, t=MONTHS)
    with pytest.raises(DataError, match="make it a date") as refused:
        released(tmp_path, f"{how}:{tmp_path}/d.duckdb?table=t")
    assert "charge stands" not in str(refused.value)


# ------------------------------------------------------------ values that their type does not allow


def raw(kind, numbers, size):
    """Return an array of any bits."""
    data = b"".join(number.to_bytes(size, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(data)])


def no_utf8(kind, binary):
    texts = pa.array([b"a"] * 3 + [b"\xff", b"long and no UTF-8 \xc3("], binary)
    return pa.Array.from_buffers(kind, len(texts), texts.buffers())


NUMBERS = "{bins: [0, 1, 10, 1000000]}"
HOURS = "{values: ['01:00:00', '25:00:00']}"
UNSOUND = {
    "string": ("{values: [a, b]}", no_utf8(pa.string(), pa.binary()), [3, 0]),
    "large_string": ("{values: [a, b]}", no_utf8(pa.large_string(), pa.large_binary()), [3, 0]),
    "string_view": ("{values: [a, b]}", no_utf8(pa.string_view(), pa.binary_view()), [3, 0]),
    "decimal32": (NUMBERS, raw(pa.decimal32(3, 1), [5, 15, 999, 1000], 4), [1, 1, 1]),
    "decimal64": (NUMBERS, raw(pa.decimal64(12, 0), [0, 1, 10**12, 2**63 - 1], 8), [1, 1, 0]),
    "decimal128": (NUMBERS, raw(pa.decimal128(3, 1), [5, 999, 123456, 2**127 - 1], 16), [1, 0, 1]),
    "decimal256": (NUMBERS, raw(pa.decimal256(3, 0), [5, 999, 1000, 2**255 - 1], 32), [0, 1, 1]),
    "time32": (HOURS, raw(pa.time32("s"), [3600, 90_000, -1, 2**31 - 1], 4), [1, 0]),
    "time64": (HOURS, raw(pa.time64("us"), [3600 * 10**6, 90_000 * 10**6, 2**63 - 1], 8), [1, 0]),
    "date64": (
        "{date: {from: 1969-12, to: 1970-02, by: month}}",
        raw(pa.date64(), [0, 86_400_000, 5, -1, -86_400_000, 2**62], 8),
        [1, 2, 0],
    ),
}
AS_DICTIONARY = {"string", "large_string", "decimal128", "time32", "date64"}


def places(folder, name, values):
    """Yield files of every kind that hold some values."""
    arrays = [values]
    if name in AS_DICTIONARY:
        indices = pa.array(range(len(values)), pa.int8())
        arrays.append(pa.DictionaryArray.from_arrays(indices, values, safe=False))
    for k, array in enumerate(arrays):
        table = pa.table({"c": array})
        yield written_arrow(folder / f"{k}.arrow", table)
        yield written_arrow(folder / f"{k}.feather", table, stream=True)
        if "decimal" in name or name in {"string", "large_string"}:
            try:
                pq.write_table(table, folder / f"{k}.parquet")
            except pa.ArrowException:  # some no writer of Parquet takes
                continue
            yield folder / f"{k}.parquet"


@pytest.mark.parametrize("name", UNSOUND)
def test_a_value_that_its_type_does_not_allow_is_one_that_is_not_declared(tmp_path, name):
    declared, values, expected = UNSOUND[name]
    plan_of(tmp_path, c=declared)
    for place in places(tmp_path, name, values):
        tables = released(tmp_path, place)
        assert counts(tables["c"]) == expected, place
        assert counts(tables["n"]) == [len(values)], place


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.decimal32(3, 0), pa.date64()])
def test_a_dictionary_of_more_values_than_rows_is_read(tmp_path, kind):
    """One record more or less decides of that: it must not decide whether a release fails."""
    plan_of(tmp_path, c="{values: ['1', '2']}" if kind != pa.date64() else MONTHS)
    own = [date(2020, 1, k) for k in (1, 2, 3)] if kind == pa.date64() else ["1", "2", "3"]
    values = pa.array(map(Decimal, own) if pa.types.is_decimal(kind) else own, kind)
    for k, rows in enumerate([[0], [0, 1, None, 2]]):
        indices = pa.array(rows, pa.int8())
        table = pa.table({"c": pa.DictionaryArray.from_arrays(indices, values)})
        tables = released(tmp_path, written_arrow(tmp_path / f"{k}.arrow", table))
        assert counts(tables["n"]) == [len(rows)]
        if kind != pa.date64():
            assert counts(tables["c"]) == [[1, 0], [1, 1]][k]


def test_many_unsound_values_are_read_as_a_few_are(tmp_path):
    plan_of(tmp_path, c=NUMBERS)
    values = raw(pa.decimal64(3, 1), [5, 15, 100_000] * 1000, 8)
    for place in places(tmp_path, "decimal64", values):
        assert counts(released(tmp_path, place)["c"]) == [1000, 1000, 0]


def test_an_arrow_file_whose_offsets_are_damaged_is_still_refused(tmp_path):
    plan_of(tmp_path, c="{values: [aaaa, b]}")
    sink = io.BytesIO()
    written_arrow(sink, pa.table({"c": ["aaaa", "b"]}))
    damaged = sink.getvalue().replace(np.array([0, 4, 5], "<i4").tobytes(), b"\xff\xff\xff\x7f" * 3)
    (tmp_path / "d.arrow").write_bytes(damaged)
    assert damaged != sink.getvalue()
    with pytest.raises(DataError, match="could not be read to its end"):
        released(tmp_path, tmp_path / "d.arrow")


# ------------------------------------------------------------ times of databases

MOMENTS = ["2001-01-01", "2001-01-31 23:59:59", "1999-12-31", "infinity", "-infinity", None]


@pytest.mark.parametrize(
    "kind", ["TIMESTAMP_NS", "TIMESTAMP_MS", "TIMESTAMP_S", "TIMESTAMP", "DATE"]
)
def test_times_of_every_precision_and_without_end_are_counted(tmp_path, kind):
    duckdb = pytest.importorskip("duckdb")
    old = [] if kind == "TIMESTAMP_NS" else ["0044-03-15 (BC)"]
    with duckdb.connect(tmp_path / "d.duckdb") as connection:
        connection.execute(f"CREATE TABLE t (c {kind})")
        texts = [[text] for text in [*MOMENTS, *old]]
        connection.executemany("INSERT INTO t VALUES (?::VARCHAR)", texts)
    plan_of(tmp_path, c="{date: {from: 1700, to: 2200, by: year}}")
    found = counts(released(tmp_path, f"duckdb:{tmp_path}/d.duckdb?table=t")["c"])
    assert {1700 + k: n for k, n in enumerate(found) if n} == {1999: 1, 2001: 2}


# Rows are one person's where their ids would be one value, in whatever type they are stored.


WORKLOAD = ["{name: t, product: {x: identity}}", "{name: n, product: {}}"]


def persons_plan(folder, most, *, more=""):
    unit = f"{{person: id, max_rows: {most}}}"
    planned(folder, spec_text({"x": "{values: [a, b]}"}, WORKLOAD, unit=unit, more=more))


def parquet(path, ids, kind):
    values = pa.array(ids).cast(pa.float64()).cast(kind) if kind == pa.float32() else ids
    table = pa.table({"x": ["a"] * len(ids), "id": pa.array(values, kind)})
    pq.write_table(table, path)
    return path


def test_an_id_in_one_file_of_whole_numbers_and_one_of_floats_is_one_person(tmp_path):
    persons_plan(tmp_path, 1)
    whole = parquet(tmp_path / "a.parquet", [1, 2, 3], pa.int64())
    floats = parquet(tmp_path / "b.parquet", [1, 2, None, 4, float("nan")], pa.float64())
    tables = released(tmp_path, [whole, floats])
    assert counts(tables["n"]) == [4]  # no id, and nan among numbers, is nobody's
    code, said = checked(tmp_path, whole, floats)
    assert "4 persons, 6 rows" in said
    assert "2 persons by several spellings of one number" in said
    assert code == 1  # for the two rows without an id


SPELLINGS = {
    "7": ["7", "07", "+7", "7.0", "7.", "70e-1", "0.7e1", " 7\t", "\u00a07\u2003"],
    "-0.5": ["-0.5", "-.5", "-5e-1", "-0.50"],
    "0": ["0", "-0", "00", ".0", "0e9"],
    "abc": ["abc", " abc ", "\u00a0abc"],
    "ABC": ["ABC"],
    "12-3": ["12-3"],
    "12-03": ["12-03"],
    "1,000": ["1,000"],
    "1e5x": ["1e5x"],
    "é": ["é"],
    "e\u0301": ["e\u0301"],
}


@pytest.mark.parametrize("most", [1, 2])
def test_texts_are_one_person_where_they_would_be_one_value(tmp_path, most):
    persons_plan(tmp_path, most)
    rows = [f'a,"{text}"\n' for texts in SPELLINGS.values() for text in texts]
    (tmp_path / "d.csv").write_text("x,id\n" + "".join(rows), encoding="utf-8")
    kept = sum(min(most, len(texts)) for texts in SPELLINGS.values())
    assert counts(released(tmp_path, tmp_path / "d.csv")["n"]) == [kept]


TYPES = [pa.int64(), pa.int32(), pa.uint64(), pa.float64(), pa.float32(), pa.decimal128(12, 2)]
FORMS = ["{}", "{}.0", "0{}", "+{}", " {}", "{}e0", "{}0e-1", "n{}", "N{}"]


def stored(folder, kind, ids, fields):
    """Write rows in one kind of place, and return it."""
    stem = str(folder / f"{len(list(folder.iterdir()))}")
    if kind in {"csv", "sqlite"}:
        texts = [i if isinstance(i, str) else "" if i is None else repr(i) for i in ids]
        if kind == "csv":
            lines = [f"{x},{text}\n" for x, text in zip(fields, texts, strict=True)]
            path = folder / f"{stem}.csv"
            path.write_text("x,id\n" + "".join(lines))
            return path
        with sqlite3.connect(f"{stem}.db") as connection:
            connection.execute("CREATE TABLE t (x, id)")
            connection.executemany("INSERT INTO t VALUES (?, ?)", zip(fields, ids, strict=True))
        return f"sqlite:{stem}.db?table=t"
    table = pa.table({"x": fields, "id": pa.array(ids, kind)})
    if kind == pa.int32():
        with ipc.new_file(f"{stem}.arrow", table.schema) as writer:
            writer.write_table(table)
        return f"{stem}.arrow"
    pq.write_table(table, f"{stem}.parquet")
    return f"{stem}.parquet"


def name(value):
    """The person of an id, by an independent reading of the rule."""
    if value is None:
        return None
    text = repr(value) if isinstance(value, float) else str(value)
    text = text.strip()
    return Decimal(text) if not {"n", "N"} & set(text) else text


def recount(seed, folder, most):
    """Return a release's and our own number of rows that stay, of files of random id types."""
    rng = random.Random(seed)  # noqa: S311 - made-up rows
    rows_of, places = Counter(), []
    for kind in rng.sample([*TYPES, "csv", "sqlite", pa.string()], 3):
        numbers = [rng.randrange(40) for _ in range(rng.randrange(1, 30))]
        if kind in {pa.string(), "csv", "sqlite"}:
            ids = [rng.choice(FORMS).format(k) for k in numbers]
            if kind == "sqlite":  # where each value has a type of its own
                ids = [
                    rng.choice([text, k, float(k)]) for text, k in zip(ids, numbers, strict=True)
                ]
        elif pa.types.is_floating(kind):
            ids = [np.dtype(kind.to_pandas_dtype()).type(k).item() for k in numbers]
        else:
            ids = [Decimal(k) if pa.types.is_decimal(kind) else k for k in numbers]
        ids = [None if rng.random() < 0.1 else i for i in ids]
        places.append(stored(folder, kind, ids, [rng.choice("ab") for _ in ids]))
        rows_of.update(who for i in ids if (who := name(i)) is not None)
    ((found,),) = [counts(released(folder, places)["n"])]
    return found, sum(min(most, rows) for rows in rows_of.values())


@pytest.mark.parametrize("most", [1, 3])
def test_random_files_of_mixed_id_types_count_as_an_independent_recount_says(tmp_path, most):
    persons_plan(tmp_path, most)
    for seed in range(4):
        found, expected = recount(f"{most} {seed}", tmp_path, most)
        assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2, 5])
def test_many_random_files_of_mixed_id_types_count_as_an_independent_recount_says(tmp_path, most):
    persons_plan(tmp_path, most)
    for seed in range(100):
        found, expected = recount(f"many {most} {seed}", tmp_path, most)
        assert found == expected


def test_with_a_decimal_comma_typed_floats_and_texts_are_one_person(tmp_path):
    persons_plan(tmp_path, 1, more='file: {decimal: ",", delimiter: ";"}')
    (tmp_path / "d.csv").write_text("x;id\na;1,0\na;01\na;1.0\na;2,5\n")
    typed = parquet(tmp_path / "b.parquet", [1.0, 2.5], pa.float64())
    assert counts(released(tmp_path, [tmp_path / "d.csv", typed])["n"]) == [3]


def test_check_counts_ids_that_look_like_one_person_and_names_none(tmp_path):
    persons_plan(tmp_path, 1)
    ids = ["ab", "AB", "Ab", "xé1", "xe\u03011", "q\u200b9", "q9", "10", "10.0", "zz", "Z\u00adZ"]
    lines = "".join(
        f"a,{text}\n" for text in [*ids, "many", "many", "rows", "rows", "here", "here"]
    )
    (tmp_path / "d.csv").write_text("x,id\n" + lines, encoding="utf-8")
    code, said = checked(tmp_path, tmp_path / "d.csv")
    said = " ".join(said.split())
    assert code == 1
    assert "3 ids differ in upper and lower case alone, and would be 1 person without" in said
    assert "2 ids differ in the form of Unicode (NFKC) alone, and would be 1 person" in said
    assert "2 ids differ in invisible characters alone, and would be 1 person without" in said
    assert "2 ids differ in several of these alone, and would be 1 person without" in said
    assert "1 person by several spellings of one number" in said
    assert not [text for text in ids if len(text) > 2 and text in said]


def test_check_says_that_floats_round_long_ids(tmp_path):
    persons_plan(tmp_path, 1)
    floats = parquet(tmp_path / "b.parquet", [2.0**53 + 2, 5.0], pa.float64())
    code, said = checked(tmp_path, floats)
    assert code == 1
    assert "1 id beyond 2^53 written as floats, which round" in " ".join(said.split())
    assert checked(tmp_path, parquet(tmp_path / "c.parquet", [2**53 + 2], pa.int64()))[0] == 0


@pytest.mark.parametrize("kind", ["text", "whole"])
@pytest.mark.parametrize("how", ["duckdb", "ibis:duckdb"])
def test_a_table_of_duckdb_has_the_same_persons(tmp_path, kind, how):
    duckdb = pytest.importorskip("duckdb")
    texts = [text for texts in SPELLINGS.values() for text in texts]
    ids = pa.array(texts if kind == "text" else [1, 1, 2, 3, None])
    rows = pa.table({"x": ["a"] * len(ids), "id": ids})
    with duckdb.connect(tmp_path / "d.duckdb") as connection:
        connection.register("rows", rows)
        connection.execute("CREATE TABLE t AS SELECT * FROM rows")
    persons_plan(tmp_path, 1)
    found = counts(released(tmp_path, f"{how}:{tmp_path}/d.duckdb?table=t")["n"])
    assert found == [len(SPELLINGS) if kind == "text" else 3]
