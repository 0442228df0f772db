"""Values coded many at a time have the codes of the exact rule, which is their slow twin."""

import math
import random
from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from data import FUZZ
from hypothesis import given
from hypothesis import strategies as st
from test_listed_values import ANY, NUMBERLIKE, ONES, TEXTS

from dpquery.measurement.counting import column_codes
from dpquery.measurement.counting.arrow_files import batch_of
from dpquery.measurement.counting.column_codes import ColumnCodes, code_of, texts_of
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import Bins, Categorical, Column, Dates, Integers
from dpquery.spec.numbers import nearest_float, number

FORMATS = ("", "%d.%m.%y", "%m/%d/%Y %I:%M %p", "%H%M%S %Y%m%d", "%d-%b-%Y %H:%M:%S", "%B %Y %H")
DATES = [
    Dates(date(2012, 2, 29), date(2013, 3, 1), by, DateFormat(text))
    for by, text in zip(("week", "day", "month", "day", "year", "quarter"), FORMATS, strict=True)
]
# Bounds with more digits than a float has, at the end of those that are exact, and far outside.
LONG = (
    Bins((-1e300, -0.1, 0.1, 0.2, 0.30000000000000004, 9007199254740993.0, 1e22)),
    Integers(10**15 - 3, 10**15 + 3),
    Integers(2**53 - 2, 2**53 + 2),
    Integers(-(10**18) + 1, -(10**18) + 9),
    Categorical(("0.1", "9007199254740993", "1e999999", "-1e-400", "inf", "nan"), tuple("abcdef")),
    Categorical(("", "North ", "North", "é", "+1", "a\tb"), tuple("abcdef")),
)
KINDS = (*ONES, *LONG, *DATES)
BOUNDS = sorted(
    {"0", "1", "-1.5", "0.5", "2000", "1500", "-3"}
    | {repr(edge) for kind in (*ONES, *LONG) if isinstance(kind, Bins) for edge in kind.edges}
    | {str(bound) for kind in LONG if isinstance(kind, Integers) for bound in (kind.low, kind.high)}
    | {"9007199254740993", "9007199254740992", "9007199254740994", "1e15", "999999999999999"}
)


@pytest.fixture(autouse=True)
def however_few(monkeypatch):
    """The fast way, for few values too."""
    monkeypatch.setattr(column_codes, "_FEW", 0)


@st.composite
def beside_a_bound(draw):
    """A number that is a bound, or differs from one in a late digit, written in any way."""
    value = Decimal(draw(st.sampled_from(BOUNDS)))
    value += draw(st.sampled_from((-1, 0, 0, 1))) * Decimal(10) ** draw(st.integers(-40, 1))
    text = draw(st.sampled_from((f"{value:f}", f"{value:e}", f"{value:E}", str(value))))
    if "." in text and "e" not in text.lower():
        text += "0" * draw(st.integers(0, 20))
    text = draw(st.sampled_from(("", "", "+", "0", "00000000000000000"))) + text
    return text.replace("0.", ".", 1).encode() if draw(st.booleans()) else text.encode()


NOON = st.datetimes(datetime(2012, 2, 27), datetime(2013, 3, 3))
DATE_TEXTS = st.builds(lambda when, text: when.strftime(text), NOON, st.sampled_from(FORMATS[1:]))
DATE_TEXTS |= NOON.map(str) | NOON.map(datetime.isoformat) | NOON.map(lambda when: str(when.date()))
DATE_TEXTS |= st.builds(
    "{}{}{}".format,
    NOON.map(lambda when: str(when.date())),
    st.sampled_from(("T", " ", "x", "")),
    st.sampled_from(("24:00", "23:61", "12:00Z", "1:00", "12:00:00.1234567890", "12:00\n", "12")),
)
DATE_TEXTS |= st.sampled_from(("2/29/2012 0:30 pm", "2/9/2012 12:60 am", "02/09/2012 1:5 AM"))
DATE_TEXTS |= st.sampled_from(("235960 20130101", "240000 20130101", "March 2012 24", "may 2012 7"))
WORDS = st.sampled_from(
    ("North", "North ", " North", "north", "é", "yes", "YES", "a", "a\tb", "$1")
)
SEVERAL = ANY | beside_a_bound() | DATE_TEXTS.map(str.encode) | WORDS.map(str.encode)


@FUZZ
@given(
    st.lists(SEVERAL, max_size=30),
    st.integers(),
    st.sampled_from(KINDS),
    st.sampled_from([".", ","]),
    st.sampled_from(["drop", "count"]),
)
def test_texts_have_the_codes_of_the_rule_whatever_stands_beside_them(
    texts, seed, kind, mark, other
):
    column = Column("c", kind, other)
    if mark == ",":
        texts = [text.replace(b".", b",") if seed % 2 else text for text in texts]
    alone = [code_of(column, mark)(text) for text in texts]
    codes = ColumnCodes(column, mark)
    assert codes.of(pa.array(texts, pa.binary())).tolist() == alone
    order = random.Random(seed).sample(range(len(texts)), len(texts))  # noqa: S311
    mixed = pa.array([texts[i] for i in order], pa.large_binary())
    assert codes.of(mixed).tolist() == [alone[i] for i in order]
    assert all(-1 <= code < column.size for code in alone)


@pytest.mark.parametrize("mark", [".", ","])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_way_to_write_a_number_has_the_code_of_the_rule(kind, mark):
    column = Column("c", kind, "drop")
    texts = [*TEXTS, *(text.encode() for text in BOUNDS), b"x" * 100, b"1" * 64, b"1" * 65]
    for bound in map(Decimal, BOUNDS):
        beside = [bound + sign * Decimal(10) ** -k for sign in (-1, 1) for k in (0, 1, 9, 16, 20)]
        texts += [f"{value:f}".replace(".", mark).encode() for value in (bound, *beside)]
    texts += [
        b"North",
        b"North ",
        b" North",
        "North\u00a0".encode(),
        b"north",
        b"$1",
        b"1.5",
        b"1,5",
    ]
    texts += [b".5", b"5.", b"-.5e1", b"1.5E-3", b"1e+2", b"1e100", b"1\n", b"", b" ", b"12 years"]
    expected = [code_of(column, mark)(text) for text in texts]
    assert ColumnCodes(column, mark).of(pa.array(texts, pa.binary())).tolist() == expected


def test_few_values_and_many_have_the_same_codes(monkeypatch):
    texts = [f"{k / 8:.{k % 5}f}".encode() for k in range(-400, 400)]
    for kind in KINDS:
        codes = ColumnCodes(Column("c", kind, "count"), ".")
        many = codes.of(pa.array(texts, pa.binary()))
        monkeypatch.setattr(column_codes, "_FEW", len(texts))
        assert codes.of(pa.array(texts, pa.binary())).tolist() == many.tolist()
        monkeypatch.setattr(column_codes, "_FEW", 0)


# ------------------------------------------------------------------------------------ typed values

WIDE = st.integers(-(2**63), 2**63 - 1)
NEAR = st.sampled_from([float(text) for text in BOUNDS]) | st.integers(-5, 1501).map(float)
FLOATS = st.floats() | NEAR | NEAR.map(lambda value: math.nextafter(value, math.inf)) | st.none()
SMALL = st.floats(width=32) | st.sampled_from([0.1, 0.2, 0.5, 1.0, 2000.0, -3.0]) | st.none()
TYPED = [
    (pa.int64(), WIDE | st.integers(-5, 1501) | st.integers(10**15 - 5, 10**15 + 5) | st.none()),
    (pa.int64(), st.integers(2**53 - 4, 2**53 + 4) | st.none()),
    (pa.uint64(), st.integers(0, 2**64 - 1) | st.integers(0, 1501) | st.none()),
    (pa.int8(), st.integers(-128, 127) | st.none()),
    (pa.float64(), FLOATS),
    (pa.float32(), SMALL),
    (pa.float16(), st.floats(width=16).map(np.float16) | st.none()),
    (
        pa.decimal128(38, 20),
        st.decimals(-2100, 2100, places=20) | st.sampled_from([Decimal("0.1")]),
    ),
    (pa.decimal128(10, 2), st.decimals(-2100, 2100, places=2) | st.none()),
    (pa.decimal256(60, 30), st.decimals(-2, 2, places=30) | st.none()),
    (pa.decimal128(5, -2), st.sampled_from([Decimal(1500), Decimal(0), Decimal(2000), None])),
    (pa.decimal32(5, 1), st.decimals(-2, 2, places=1) | st.none()),
    (pa.timestamp("s"), NOON | st.none()),
    (pa.timestamp("us"), NOON | st.datetimes(datetime(1, 1, 1)) | st.none()),
    (pa.timestamp("ms", "Europe/Berlin"), NOON),
    (pa.timestamp("ns"), NOON),
    (pa.date32(), st.dates() | NOON.map(datetime.date) | st.none()),
    (pa.bool_(), st.booleans() | st.none()),
    (pa.string(), st.text(max_size=9) | NUMBERLIKE | DATE_TEXTS | st.none()),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["1", "a", "yes", "2013-01-01", None])),
    (pa.dictionary(pa.int8(), pa.float64()), st.sampled_from([1.0, 0.5, None])),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("arrow_type", "values"), TYPED, ids=lambda own: str(own)[:30])
def test_typed_values_have_the_codes_of_their_texts(arrow_type, values):
    @FUZZ
    @given(st.lists(values, max_size=12), st.sampled_from(KINDS), st.sampled_from([".", ","]))
    def same(several, kind, mark):
        column = Column("c", kind, "count")
        ((typed, places),) = batch_of([pa.array(several, arrow_type)]).columns[0]
        texts = texts_of(typed, mark).to_pylist()
        expected = [code_of(column, mark)(texts[place]) for place in places.tolist()]
        assert ColumnCodes(column, mark).of(typed)[places].tolist() == expected

    same()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_that_no_calendar_has_are_outside(unit):
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    moments = [-(2**63) + 1, 2**63 - 1, -1, 0, -86_400 * second - 1]
    if unit != "ns":
        first, last = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
        moments += [first * 86_400 * second, first * 86_400 * second - 1]
        moments += [(last + 1) * 86_400 * second, (last + 1) * 86_400 * second - 1]
    times = pa.array([*moments, None], pa.int64()).view(pa.timestamp(unit))
    for kind in (Dates(date(1, 1, 1), date(9999, 12, 31), "month", DateFormat()), *KINDS):
        column = Column("c", kind, "drop")
        expected = [code_of(column)(text) for text in texts_of(times, ".").to_pylist()]
        assert ColumnCodes(column).of(times).tolist() == expected


# ----------------------------------------------------------------------- what the fast way rests on


@FUZZ
@given(st.lists(beside_a_bound(), min_size=2, max_size=2))
def test_rounding_to_a_float_never_turns_the_order_of_two_numbers_round(pair):
    exact = [number(text.decode()) for text in pair]
    floats, short = column_codes._written_numbers(pa.array(pair, pa.binary()), ".")
    for text, value, rounded in zip(pair, exact, floats.tolist(), strict=True):
        if value is None:
            assert math.isnan(rounded)
        elif not math.isnan(rounded):
            assert rounded == float(text) == nearest_float(value)
    if None not in exact and not np.isnan(floats).any():
        lower, upper = np.argsort([exact.index(value) for value in sorted(exact)])
        assert floats[lower] <= floats[upper]
        assert not short.all() or (floats[0] == floats[1]) == (exact[0] == exact[1])


@pytest.mark.parametrize("text", FORMATS)
@FUZZ
@given(texts=st.lists(DATE_TEXTS, max_size=20))
def test_midnight_is_of_the_same_day(text, texts):
    dates = DateFormat(text)
    if dates.midnight is None:
        assert text == "%d.%m.%y"
        return
    pattern, replacement = dates.midnight
    replaced = pa.compute.replace_substring_regex(
        pa.array(texts, pa.string()), pattern, replacement
    )
    for before, after in zip(texts, replaced.to_pylist(), strict=True):
        assert dates.read(before) == dates.read(after)


def test_of_many_times_few_texts_are_left():
    moments = [datetime(2013, 1, 1) + timedelta(seconds=97 * k) for k in range(2000)]
    days = {moment.date() for moment in moments}
    for text in FORMATS:
        if (rule := DateFormat(text).midnight) is None:
            continue
        written = pa.array([str(own) if not text else own.strftime(text) for own in moments])
        left = pa.compute.replace_substring_regex(written, *rule).unique()
        assert len(left) <= len(days)


def test_many_distinct_values_seldom_need_the_rule(monkeypatch):
    asked = []
    rule = code_of
    monkeypatch.setattr(
        column_codes,
        "code_of",
        lambda *own: lambda text: asked.append(text) or rule(*own)(text),
    )
    numbers = [f"{k / 64:.6f}" for k in range(20_000)]
    kinds = {
        Bins((0.0, 1.0, 10.0, 1000.0)): numbers,
        Integers(0, 99_999): [str(k) for k in range(20_000)],
        Integers(0, 99_998): [f"{k}.0" for k in range(20_000)],
        Categorical(("1", "2.5"), ("a", "b")): numbers,
        Categorical(("North",), ("a",)): [f"Town {k}" for k in range(20_000)],
        Dates(date(2013, 1, 1), date(2013, 12, 31), "day", DateFormat()): [
            str(datetime(2013, 1, 1) + timedelta(seconds=k)) for k in range(20_000)
        ],
    }
    for kind, texts in kinds.items():
        codes = ColumnCodes(Column("c", kind, "drop"))
        asked.clear()
        codes.of(pa.array([text.encode() for text in texts], pa.binary()))
        assert len(asked) < 20, kind
