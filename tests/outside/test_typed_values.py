"""Typed values count as what the text of a CSV file would be, and none of them ends a release."""

import io
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
