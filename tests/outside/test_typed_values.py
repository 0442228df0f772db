"""Dates, numbers and typed values count as they are declared, and none of them ends a release."""

import io
import itertools
import sqlite3
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from specs import BASE, read, run, single, spec_of
from town import checked, counts, planned, quickly, released, spec_text

import dpquery
from dpquery.cli.show_comparison import domain_grid
from dpquery.exceptions import DataError, SpecError
from dpquery.measurement.counting.column_codes import code_of
from dpquery.releases.tables.labels import attribute_columns
from dpquery.spec.calendar import (
    PERIOD_KINDS,
    DateFormat,
    named_period,
    period_end,
    period_label,
    period_number,
    period_start,
)
from dpquery.spec.columns import Attribute, Column, Dates
from dpquery.spec.predicates import AllRangesSet, PrefixSet, WidthSet
from dpquery.spec.spec import Item, Table

FREQUENCY = {"day": "D", "week": "W-SUN", "month": "M", "quarter": "Q", "year": "Y"}
# Leap years and a century that is none, years of 53 weeks, and the ends of all of them.
DAYS = [
    day
    for year in (1900, 1999, 2000, 2004, 2008, 2009, 2013, 2015, 2020, 2026)
    for day in (date(year, 1, 1) + timedelta(days=k) for k in range(370))
]


@pytest.mark.nightly(daily="week|month")
@pytest.mark.parametrize("by", PERIOD_KINDS)
def test_periods_are_those_of_pandas(by):
    periods = pd.DatetimeIndex(DAYS).to_period(FREQUENCY[by])
    for day, period in zip(DAYS, periods, strict=True):
        number = period_number(day, by)
        assert period_start(number, by) == period.start_time.date()
        assert period_end(number, by) == period.end_time.date()
        assert period_number(day + timedelta(days=1), by) - number in (0, 1)


@pytest.mark.parametrize("by", PERIOD_KINDS)
def test_what_a_period_is_called_names_it(by):
    styles = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m", "year": "%Y"}
    for day in DAYS:
        label = period_label(period_number(day, by), by)
        quarter = f"{day.year}-Q{(day.month + 2) // 3}"
        assert label == (quarter if by == "quarter" else day.strftime(styles[by]))
        period = named_period(label)
        assert period.by == by
        assert period.first <= day <= period.last
        assert period.first == period_start(period_number(day, by), by)


@pytest.mark.parametrize("by", PERIOD_KINDS)
def test_periods_reach_to_both_ends_of_the_calendar(by):
    for day in (date.min, date.max):
        number = period_number(day, by)
        assert period_start(number, by) <= day <= period_end(number, by)
        assert period_label(number, by)


@pytest.mark.parametrize(
    "text",
    [
        *["2013-W53", "2013-W00", "2013-13", "2013-00", "2013-02-29", "2013-Q5", "0000", "13", ""],
        *["2013-1", "2013-1-1", "2013-01-01T00:00", "2013-w05", "٢٠١٣", "2013-W054", "2013-02-30"],
    ],
)
def test_what_is_no_period_is_none(text):
    assert named_period(text) is None


FORMATS = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%Y%m%d", "%d%b%Y", "%B %d, %Y", "%d-%b-%y"]
FORMATS += ["%y%m%d", "%Y-%m-%d %H:%M:%S", "%m/%d/%Y %I:%M %p", "%d/%m/%y %H:%M", "%%%Y/%m/%d"]


@pytest.mark.parametrize("text", FORMATS)
def test_a_format_reads_and_writes_what_strptime_does(text):
    date_format = DateFormat(text)
    for day in DAYS[::3]:
        moment = datetime(day.year, day.month, day.day, 17, 5, 59)
        written = moment.strftime(text)
        if "%y" in text and day.year < 1969:
            continue
        assert date_format.read(written) == datetime.strptime(written, text).date() == day
        assert date_format.read(date_format.write(day)) == day
        assert datetime.strptime(date_format.write(day), text).date() == day


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("", {"2013-01-31": 31, "2013-01-31T05:00:00Z": 31, "2013-01-31 05:00": 31}),
        ("", {"2013-01-31T05:00:00.123+01:00": 31, "2013-01-31T05:00:00-0500": 31}),
        ("", dict.fromkeys(["2013-1-31", "13-01-31", "2013-01-32", "2013-01-31x", "2013/01/31"])),
        ("", dict.fromkeys(["2013-01-31T", "2013-01-31T5", "2013-01-31 noon", "20130131", ""])),
        ("", dict.fromkeys(["２０13-01-31", "2013-01-31\n", "٢٠١٣-01-31", "0000-01-01"])),
        ("%Y-%m-%d", {"2013-1-31": 31, "2013-01-31": 31, "2013-01-31T05:00": None}),
        ("%d.%m.%Y", {"31.1.2013": 31, "1.01.2013": 1, "31.01.13": None, "31.13.2013": None}),
        ("%Y%m%d", {"20130131": 31, "2013131": None, "201301310": None}),
        ("%d%b%Y", {"31JAN2013": 31, "1jan2013": 1, "001jan2013": None, "31Mai2013": None}),
        ("%B %d, %Y", {"January 31, 2013": 31, "jan 1, 2013": 1, "Januar 31, 2013": None}),
        ("%d.%m.%Y %H:%M", {"31.01.2013 23:59": 31, "31.01.2013 24:00": None, "31.01.2013": None}),
        ("%m/%d/%Y %I:%M %p", {"1/31/2013 1:05 pm": 31, "1/31/2013 13:05 PM": None}),
    ],
)
def test_texts_are_the_days_that_they_say_or_none(text, days):
    for written, day in days.items():
        assert DateFormat(text).read(written) == (day and date(2013, 1, day)), written


def test_years_of_two_digits_are_of_1969_to_2068():
    read = DateFormat("%d.%m.%y").read
    years = [read(f"01.01.{year:02}").year for year in range(100)]
    assert years == [*range(2000, 2069), *range(1969, 2000)]


@given(st.text(st.sampled_from("%YymdbBHIMSp-./ %%1")), st.text(max_size=70), st.dates())
def test_reading_is_total(text, written, day):
    try:
        date_format = DateFormat(text)
    except SpecError:
        return
    if date_format.has("year"):
        assert isinstance(date_format.read(written), date | None)
        again = date_format.read(date_format.write(day))
        assert again is None or again.month in (day.month, 1)


def dates(by, first=date(2012, 12, 5), last=date(2014, 2, 10), text=""):
    return Dates(first, last, by, DateFormat(text))


@pytest.mark.parametrize("by", PERIOD_KINDS)
def test_a_day_has_the_code_of_its_period_and_days_outside_have_none(by):
    kind = dates(by)
    column = Column("day", kind, "drop")
    code, labels = code_of(column), [column.label(k) for k in range(column.size)]
    assert len(set(labels)) == column.length
    for k in range(-40, 480):
        day = kind.first + timedelta(days=k)
        inside = kind.first <= day <= kind.last
        expected = labels.index(period_label(period_number(day, by), by)) if inside else -1
        assert code(day.isoformat().encode()) == expected


@pytest.mark.nightly(daily="month|AllRangesSet-q")
@pytest.mark.parametrize("by", PERIOD_KINDS)
@pytest.mark.parametrize("kind_of_set", [PrefixSet, WidthSet, AllRangesSet])
def test_ranges_of_dates_count_the_days_between_their_ends(kind_of_set, by, tmp_path):
    last = date(2013, 1, 20) if by == "day" else date(2014, 2, 10)
    kind = dates(by, last=last)
    attribute = Attribute("day", (Column("day", kind, "drop"),))
    days = [
        kind.first + timedelta(days=int(k))
        for k in np.random.default_rng(1).integers(-20, 500, 900)
    ]
    body = "".join(f"{day}\n" for day in days).encode()
    spec = spec_of(single("day", kind))
    counts = run(tmp_path / "days.csv", body, spec=spec, header=b"day", subsets=[(0,)])[(0,)]
    n = attribute.size
    asked = kind_of_set(n, n, 2) if kind_of_set is WidthSet else kind_of_set(n, n)
    shown = attribute_columns(attribute, Item("x", (Table(((0, asked),)),)), index=0)
    low, high = ([*column.values[asked].tolist()] for column in shown[1:])
    ends = zip(low, high, strict=True)
    for (i, j), (low, high) in zip(asked.pairs, ends, strict=True):
        between = sum(low <= day <= high and kind.first <= day <= kind.last for day in days)
        assert counts[i : j + 1].sum() == between


DAY = "{date: {from: 2012-12, to: 2014-02-10, by: BY}}"


def asked(by, question):
    text = BASE.replace("{range: [0, 9]}", DAY.replace("BY", by))
    spec = read(text.replace("product: {age: prefix,", f"product: {{age: {question},"))
    return spec.items[0].tables[0].axes[0][1]


@pytest.mark.parametrize(
    ("by", "question", "bounds"),
    [
        ("day", "{between: [2013-01-01, 2013-01-31]}", (31, 61)),
        ("day", "{between: [2013, 2013-W05]}", (31, 64)),
        ("day", "{ranges: [[2012-12-01, 2014-02-10]]}", (0, 436)),
        ("month", "{between: [2013-01-01, 2013-03-31]}", (1, 3)),
        ("month", "{between: [2013-Q1, 2013]}", (1, 12)),
        ("month", "{ranges: [[2012-12, 2014-02]]}", (0, 14)),
        ("week", "{between: [2012-W48, 2013-W01]}", (0, 5)),
        ("quarter", "{between: [2012-Q4, 2014]}", (0, 5)),
        ("year", "{between: [2013, 2013-12-31]}", (1, 1)),
    ],
)
def test_ranges_are_written_as_dates_or_periods(by, question, bounds):
    assert asked(by, question).bounds == (bounds,)


@pytest.mark.parametrize(
    ("by", "value", "label", "codes"),
    [
        ("day", "2013-01-05", "2013-01-05", [35]),
        ("day", "2013-01", "2013-01", range(31, 62)),
        ("day", "2012-W48", "2012-W48", range(2)),
        ("month", "2014-02", "2014-02", [14]),
        ("month", "2013-Q2", "2013-Q2", [4, 5, 6]),
        ("year", "2012-12", "2012", [0]),
    ],
)
def test_a_value_is_a_period_of_one_or_more_codes(by, value, label, codes):
    assert asked(by, f"{{is: {value}}}").groups == ((label, tuple(codes)),)


@pytest.mark.parametrize(
    ("by", "question", "mistake"),
    [
        ("month", "{is: 2013-01-05}", "'2013-01-05' is part of the month 2013-01"),
        (
            "month",
            "{between: [2013-01-01, 2013-03-30]}",
            "'2013-03-30' is part of the month 2013-03",
        ),
        ("quarter", "{is: 2013-W01}", "'2013-W01' is part of the quarter 2012-Q4"),
        (
            "day",
            "{is: 2012-11-30}",
            "'2012-11-30' is outside 'age', which holds 2012-12-01 to 2014-",
        ),
        (
            "day",
            "{is: 5.1.2013}",
            "expected a value of 'age', a date such as 2013-01-31, 2013-01, ",
        ),
        ("day", "{between: [2013-02, 2013-01]}", "the range from '2013-02' to '2013-01' is empty"),
        ("year", "{width: 4}", "the width 4 does not fit 'age'; expected 1 to 3"),
    ],
)
def test_questions_that_cut_a_period_or_leave_the_domain_are_refused(by, question, mistake):
    with pytest.raises(SpecError) as caught:
        asked(by, question)
    assert str(caught.value).partition(": ")[2].startswith(mistake)


def test_a_merged_column_may_hold_dates():
    merged = "{merge: {day: {date: {from: 2013-01-30, to: 2013-02-01}}, ok: boolean}}"
    spec = read(BASE.replace("{range: [0, 9]}", merged).replace("age: prefix", "age: identity"))
    labels = [spec.domain.attributes[0].label(code) for code in range(6)]
    expected = itertools.product(("2013-01-30", "2013-01-31", "2013-02-01"), ("no", "yes"))
    assert labels == [f"day={day}, ok={ok}" for day, ok in expected]


@pytest.mark.parametrize(
    ("declared", "written"), [("", "2013-01-31"), (', by: year, format: "%Y"', "2013")]
)
def test_a_plan_says_how_dates_are_read(declared, written):
    spec = read(BASE.replace("range: [0, 9]", f"date: {{from: 2013, to: 2014{declared}}}"))
    assert f"dates of age are read as {written}; `format` says so" in domain_grid(spec).notes


# `number` reads numbers with separators of thousands, another mark or a sign, and says so.


GERMAN = "{thousands: '.', decimal: ','}"
EDGES = "[0, 1, 2, 1000, 2000]"
ITEM = ["{name: t, product: {x: identity}}", "{name: n, product: {}}"]


def plan_of(folder, declared, *, more=""):
    planned(folder, spec_text({"x": declared}, ITEM, more=more))


def csv_of(folder, texts, name="d.csv"):
    lines = "".join('"{}"\n'.format(text.replace('"', '""')) for text in texts)
    (folder / name).write_text("x\n" + lines, encoding="utf-8")
    return folder / name


READ = {
    GERMAN: {
        "1.234": 1234, "1.234,5": 1234.5, "-1.234": -1234, "1234": 1234, "0,5": 0.5, "12.34": None,
        "1.2345": None, "1,234.5": None, "1.234.567": 1234567, ".234": None, "1..234": None,
    },
    "{thousands: ',', sign: '$'}": {
        "$1,234.50": 1234.5, "-$5": -5, "$-5": -5, "5 $": 5, "$ 5": 5, "5": 5, "$": None,
        "$$5": None, "1,23": None, "5%": None, "--5": None, "$5$": None, "+$5": 5, "5,000": 5000,
    },
    "{sign: '%'}": {"12 %": 12, "12.5%": 12.5, "% 3": 3, "1,5 %": None, "1e2%": 100, "-3%": -3},
    "{thousands: space, decimal: ','}": {
        "1\u00a0234,5": 1234.5, "1 234": 1234, "1\u202f234\u202f567": 1234567, "12 34": None,
    },
    "{thousands: \"'\", sign: CHF}": {
        "CHF 1'234.55": 1234.55, "1\u2019234 CHF": 1234, "EUR 5": None,
    },
}  # fmt: skip


@pytest.mark.nightly(daily="CHF|space")
@pytest.mark.parametrize("number", READ)
def test_numbers_are_read_as_they_are_declared_and_nothing_else_is_one(tmp_path, number):
    """Each number lies in a bin of its own; what is none is counted in the total alone."""
    known = sorted({value for value in READ[number].values() if value is not None})
    edges = [edge for value in known for edge in (value, value + 0.01)]
    plan_of(tmp_path, f"{{bins: {edges}, number: {number}}}")
    texts = list(READ[number])
    few, many = csv_of(tmp_path, texts), csv_of(tmp_path, 200 * texts, "many.csv")
    for place, times in ((few, 1), (many, 200)):  # so many are coded otherwise than a few
        tables = released(tmp_path, place)
        found = counts(tables["t"])
        assert found[1::2] == [0] * (len(known) - 1)
        values = list(READ[number].values())
        assert found[::2] == [times * values.count(value) for value in known]
        assert counts(tables["n"]) == [times * len(texts)]


def test_typed_numbers_are_themselves(tmp_path):
    plan_of(tmp_path, f"{{bins: {EDGES}, number: {GERMAN}}}")
    pq.write_table(pa.table({"x": [1.234, 1234.0, 0.5]}), tmp_path / "d.parquet")
    pq.write_table(pa.table({"x": ["1.234", "0,5"]}), tmp_path / "e.parquet")
    places = [tmp_path / "d.parquet", tmp_path / "e.parquet"]
    assert counts(released(tmp_path, places)["t"]) == [2, 1, 0, 2]
    assert "every record is counted, all 5" in checked(tmp_path, *places)[1]
    assert "undeclared" not in checked(tmp_path, *places)[1]


def test_where_texts_and_numbers_are_not_told_apart_it_is_refused_before_the_charge(tmp_path):
    plan_of(tmp_path, f"{{bins: {EDGES}, number: {GERMAN}}}")
    with sqlite3.connect(tmp_path / "d.db") as connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(DataError, match="leave `number` out") as refused:
        released(tmp_path, f"sqlite:{tmp_path}/d.db?table=t")
    assert "charge stands" not in str(refused.value)


def test_another_format_is_another_release(tmp_path):
    data, paid = csv_of(tmp_path, ["1.234"]), []
    for number in ("", f", number: {GERMAN}", ", number: {thousands: ','}", f", number: {GERMAN}"):
        (tmp_path / "s.yaml").write_text(spec_text({"x": f"{{bins: {EDGES}{number}}}"}, ITEM))
        own = {"plan_path": tmp_path / "p", "ledger_path": tmp_path / "l.db"}
        with quickly():
            dpquery.plan(tmp_path / "s.yaml", time_limit=0, **own)
            done = dpquery.release(data, epsilon=1, out=tmp_path / "r", replace=True, **own)
        paid.append(not done.free)
    assert paid == [True, True, True, False]


OFFERED = {
    "1.234,50 1.000 12.500 7": {"thousands": ".", "decimal": ","},
    "$1,234 $999 $12,500.50": {"thousands": ",", "decimal": ".", "sign": "$"},
    "12% 15% 7%": {"decimal": ".", "sign": "%"},
    "1'234 12'500 7": {"thousands": "'", "decimal": "."},
}


@pytest.mark.parametrize("texts", OFFERED)
def test_check_offers_the_format_that_reads_the_numbers(tmp_path, texts):
    domain = {"x": "{bins: [0, 1000, 2000, 20000]}"}
    (tmp_path / "s.yaml").write_text(spec_text(domain, ITEM))
    data = csv_of(tmp_path, texts.split())
    _, said = checked(tmp_path, data)
    offered = yaml.safe_load(said.partition("# To paste")[2].partition("\n")[2])["domain"]["x"]
    assert offered["number"] == OFFERED[texts]
    plan_of(tmp_path, yaml.safe_dump(offered, default_flow_style=True, width=9999).strip())
    assert sum(counts(released(tmp_path, data)["t"])) == len(texts.split())
    assert "see what the code book says" in said


def test_decimals_that_may_be_thousands_are_said_to_be(tmp_path):
    (tmp_path / "s.yaml").write_text(spec_text({"x": "{range: [0, 9000]}"}, ITEM))
    for texts, said_so in (("1.234 2.345 999", True), ("1.234 2.5", False)):
        _, said = checked(tmp_path, csv_of(tmp_path, texts.split()))
        assert "bins take both" in said
        assert (
            f"1.234 is 1234, the range with number: {GERMAN}" in said.replace('"', "'")
        ) == said_so


MONTHS = "{date: {from: 2019-12, to: 2020-02, by: month}}"


def plan_of_columns(folder, **domain):
    items = [f"{{name: {name}, product: {{{name}: identity}}}}" for name in domain]
    planned(folder, spec_text(domain, [*items, "{name: n, product: {}}"]))


def written_arrow(path, table, *, stream=False):
    with (ipc.new_stream if stream else ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table)
    return path


BERLIN_NIGHTS = ["2019-12-31 23:30", "2020-01-01 00:30", "2020-01-31 23:59:59", "2020-02-01"]


def nights():
    """Local times of Berlin; three of them are of another month in UTC, or next to it."""
    times = pd.to_datetime(pd.Series([*BERLIN_NIGHTS, None], name="t"), format="ISO8601")
    return pd.DataFrame({"t": times.dt.tz_localize("Europe/Berlin")})


@pytest.mark.nightly(daily="parquet|csv")
@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "dictionary"])
def test_a_frame_counts_on_the_days_of_its_zone_in_every_kind_of_file(tmp_path, kind):
    plan_of_columns(tmp_path, t=MONTHS)
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


@pytest.mark.nightly
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", YEARS)
def test_days_of_a_zone_are_those_of_an_independent_calendar(tmp_path, zone, unit):
    year = YEARS[unit]
    plan_of_columns(tmp_path, t=f"{{date: {{from: {year}-01-01, to: {year + 1}-01-02}}}}")
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
    plan_of_columns(tmp_path, t=MONTHS)
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
    plan_of_columns(tmp_path, t=MONTHS)
    with pytest.raises(DataError, match="make it a date") as refused:
        released(tmp_path, f"{how}:{tmp_path}/d.duckdb?table=t")
    assert "charge stands" not in str(refused.value)


# Values that their type does not allow.


def raw(kind, numbers, size):
    """Return an array of any bits."""
    data = b"".join(number.to_bytes(size, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(data)])


def no_utf8(kind, binary):
    texts = pa.array([b"a"] * 3 + [b"\xff", b"long and no UTF-8 \xc3("], binary)
    return pa.Array.from_buffers(kind, len(texts), texts.buffers())


BINNED = "{bins: [0, 1, 10, 1000000]}"
HOURS = "{values: ['01:00:00', '25:00:00']}"
UNSOUND = {
    "string": ("{values: [a, b]}", no_utf8(pa.string(), pa.binary()), [3, 0]),
    "large_string": ("{values: [a, b]}", no_utf8(pa.large_string(), pa.large_binary()), [3, 0]),
    "string_view": ("{values: [a, b]}", no_utf8(pa.string_view(), pa.binary_view()), [3, 0]),
    "decimal32": (BINNED, raw(pa.decimal32(3, 1), [5, 15, 999, 1000], 4), [1, 1, 1]),
    "decimal64": (BINNED, raw(pa.decimal64(12, 0), [0, 1, 10**12, 2**63 - 1], 8), [1, 1, 0]),
    "decimal128": (BINNED, raw(pa.decimal128(3, 1), [5, 999, 123456, 2**127 - 1], 16), [1, 0, 1]),
    "decimal256": (BINNED, raw(pa.decimal256(3, 0), [5, 999, 1000, 2**255 - 1], 32), [0, 1, 1]),
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


@pytest.mark.nightly(daily="decimal128")
@pytest.mark.parametrize("name", UNSOUND)
def test_a_value_that_its_type_does_not_allow_is_one_that_is_not_declared(tmp_path, name):
    declared, values, expected = UNSOUND[name]
    plan_of_columns(tmp_path, c=declared)
    for place in places(tmp_path, name, values):
        tables = released(tmp_path, place)
        assert counts(tables["c"]) == expected, place
        assert counts(tables["n"]) == [len(values)], place


@pytest.mark.nightly(daily="kind0")
@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.decimal32(3, 0), pa.date64()])
def test_a_dictionary_of_more_values_than_rows_is_read(tmp_path, kind):
    """One record more or less decides of that: it must not decide whether a release fails."""
    plan_of_columns(tmp_path, c="{values: ['1', '2']}" if kind != pa.date64() else MONTHS)
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
    plan_of_columns(tmp_path, c=BINNED)
    values = raw(pa.decimal64(3, 1), [5, 15, 100_000] * 1000, 8)
    for place in places(tmp_path, "decimal64", values):
        assert counts(released(tmp_path, place)["c"]) == [1000, 1000, 0]


def test_an_arrow_file_whose_offsets_are_damaged_is_still_refused(tmp_path):
    plan_of_columns(tmp_path, c="{values: [aaaa, b]}")
    sink = io.BytesIO()
    written_arrow(sink, pa.table({"c": ["aaaa", "b"]}))
    damaged = sink.getvalue().replace(np.array([0, 4, 5], "<i4").tobytes(), b"\xff\xff\xff\x7f" * 3)
    (tmp_path / "d.arrow").write_bytes(damaged)
    assert damaged != sink.getvalue()
    with pytest.raises(DataError, match="could not be read to its end"):
        released(tmp_path, tmp_path / "d.arrow")


MOMENTS = ["2001-01-01", "2001-01-31 23:59:59", "1999-12-31", "infinity", "-infinity", None]


@pytest.mark.nightly(daily="NS|DATE")
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
    plan_of_columns(tmp_path, c="{date: {from: 1700, to: 2200, by: year}}")
    found = counts(released(tmp_path, f"duckdb:{tmp_path}/d.duckdb?table=t")["c"])
    assert {1700 + k: n for k, n in enumerate(found) if n} == {1999: 1, 2001: 2}
