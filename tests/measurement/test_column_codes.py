"""A value has one code by the rule, however it is written, and many at a time have it too."""

import math
import random
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import BASE, FUZZ, field_texts, read
from test_spec_mistakes import mistakes

from dpquery.measurement.counting import column_codes
from dpquery.measurement.counting.arrow_files import batch_of
from dpquery.measurement.counting.column_codes import ColumnCodes, code_of, texts_of
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.numbers import nearest_float, number, of_float, whole
from dpquery.spec.parsing.domain import read_domain
from dpquery.spec.parsing.yaml_nodes import read_yaml
from dpquery.spec.problems import Problems

LIST = BASE.replace("values: [Male, Female]", "values_file: s.txt")


def listed(values):
    return read(BASE.replace("[Male, Female]", values)).domain.attributes[1].columns[0]


def filed(content, delimiter=None):
    """The kind of a column whose values stand in a file, of a declared delimiter or none."""
    name = "s.txt" if delimiter is None else f"{{name: s.txt, delimiter: {delimiter}}}"
    text = LIST.replace("s.txt", name)
    return read(text, {"s.txt": content}).domain.attributes[1].columns[0].kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ("{1: North}", Categorical(("1",), ("North",))),
        ("{1: {label: North}}", Categorical(("1",), ("North",))),
        ("{1: {texts: [N]}}", Categorical(("1",), ("1",), (("N",),))),
        ("{1: {label: North, texts: ['1', N]}}", Categorical(("1",), ("North",), (("N",),))),
        ("{North: [1, N, '01']}", Categorical(("1",), ("North",), (("N", "01"),))),
        (
            "{1: yes, 0: no, no answer: ['', iap, NA, refused]}",
            Categorical(
                ("1", "0", ""), ("yes", "no", "no answer"), ((), (), ("iap", "NA", "refused"))
            ),
        ),
    ],
)
def test_a_value_has_a_code_a_label_and_any_number_of_texts(values, kind):
    assert listed(values).kind == kind


def test_every_text_of_a_value_is_counted_as_it_and_its_label_is_not():
    column = listed("{North: [1, N], South: [2], none: ['', iap]}")
    texts = [b"1", b"01.0", b"N", b"n", b"2", b"South", b"", b" iap"]
    assert [code_of(column)(text) for text in texts] == [0, 0, 0, -1, 1, -1, 2, 2]


def test_questions_name_a_value_by_any_text_number_or_label():
    for name in ("North", "N", "1", "01.0"):
        text = BASE.replace("[Male, Female]", "{North: [1, N], South: [2]}")
        spec = read(text.replace("sex: identity", f"sex: {{is: {name}}}"))
        assert spec.items[0].tables[0].axes[1][1].groups == (("North", (0,)),)


@pytest.mark.parametrize(
    ("content", "values", "labels"),
    [
        ("1,North\n2,South\n", "12", ("North", "South")),
        ("code,label\n1,North\n2,South\n", "12", ("North", "South")),
        ('"Label","Code"\n"North",1\n', "1", ("North",)),
        ("id,VALUE,note,label\n7,1,x,North\n8,2,,South\n", "12", ("North", "South")),
        ("code\n1\n2\n", "12", ("1", "2")),
        ("1\ncode\nlabel\n", ("1", "code", "label"), ("1", "code", "label")),
        (",no answer\n1,yes\n2,no\n", ("", "1", "2"), ("no answer", "yes", "no")),
        ("NA,no answer\nX,yes\n2,no\n", ("NA", "X", "2"), ("no answer", "yes", "no")),
        ("1,yes\nNA,no answer\n2,no\n", ("1", "NA", "2"), ("yes", "no answer", "no")),
        # Marks that separate no fields are part of values.
        ("a;b\nc\n", ("a;b", "c"), ("a;b", "c")),
        ("a;b,1;2\nc;d,3;4\n", ("a;b", "c;d"), ("1;2", "3;4")),
        ("'a;b'\nc;d;e\n", ("'a;b'", "c;d;e"), ("'a;b'", "c;d;e")),
    ],
)
def test_a_first_line_that_says_so_is_a_header(content, values, labels):
    assert filed(content) == Categorical(tuple(values), labels)


@pytest.mark.parametrize(
    ("delimiter", "content"),
    [
        ("';'", "A;Alpha, beta\n;none\n"),
        ("';'", 'label;note;code\n"Alpha, beta";;A\nnone;x;\n'),
        ("tab", "A\tAlpha, beta\r\n\tnone\r\n"),
        ('"\\t"', "code\tlabel\nA\tAlpha, beta\n\tnone\n"),
        ("'|'", "A | Alpha, beta\n|none\n"),
        ("','", 'A,"Alpha, beta"\n,none\n'),
    ],
)
def test_a_file_of_values_has_the_declared_delimiter(delimiter, content):
    assert filed(content, delimiter) == Categorical(("A", ""), ("Alpha, beta", "none"))


@pytest.mark.parametrize(
    ("content", "word", "mark"),
    [
        ("A;Alpha\nB;Beta\n", "semicolons", "';'"),
        ("code;label\nA;Alpha, beta\n", "semicolons", "';'"),
        ("A\tAlpha\n\tnone\n", "tabs", "tab"),
        ("\ncode|x|label\n2||South\n", "pipes", "'|'"),
    ],
)
def test_a_file_of_values_with_another_delimiter_is_refused_with_the_way_to_declare_it(
    content, word, mark
):
    line = 1 + content.startswith("\n")
    (message,) = mistakes(LIST, {"s.txt": content})
    assert message.startswith(f"s.txt:{line}:1: {word} seem to separate the fields; ")
    assert f"write `values_file: {{name: s.txt, delimiter: {mark}}}` in the spec, or" in message
    # What the message says is what helps, either way.
    assert len(filed(content, mark).values) < 3
    filed(content.replace(", beta", ""), "','")


LOOKS = "1:1: this line looks like a header, "
IN_PLACE = (
    "; write code,label in its place, or remove the line; if it is a value, put it in another line"
)
RENAME = (
    "and one is `code`, or has one column `code` and one `label`; rename its columns; if it is a "
)
RENAME += "value, put it in another line"


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (
            "state_fips,name\n1,Alabama\n2,Alaska\n",
            [f"{LOOKS}as every other value is a number{IN_PLACE}"],
        ),
        ("sex,name\nM,Male\nF,Female\n", [f"{LOOKS}as the column is called so{IN_PLACE}"]),
        ("code,name\n1,Alabama\n", [LOOKS + RENAME]),
        ("name,label\nAL,Alabama\n", [LOOKS + RENAME]),
        ("code,value,label\n1,2,3\n", [LOOKS + RENAME]),
        (
            "code,label,note\n1,North\n1.0,South,x\n01,East,\n",
            [
                "2:1: expected 3 fields, as the header has, found 2; put text with delimiters in "
                "double quotes",
                "4:1: the value is the same number as the one in line 3, and data may hold it "
                "in either form; keep one, or list both as texts of one value, "
                "{label: [text, text]}",
            ],
        ),
        ("code,label\n", ["1:1: no value follows the header; list at least one"]),
    ],
)
def test_a_header_that_is_not_clear_is_a_mistake(content, messages):
    assert mistakes(LIST, {"s.txt": content}) == [f"s.txt:{message}" for message in messages]


def test_with_a_decimal_comma_the_same_numbers_are_found():
    problems = Problems("w.yaml")
    node = read_yaml("{a: {values: ['0,5', 0.5, 1]}}", file="w.yaml", problems=problems)
    read_domain(node.entries, lambda name: name, other="drop", decimal=",")
    with pytest.raises(Exception, match=r"'0\.5' is the same number as '0,5' in line 1"):
        problems.raise_if_any()


# Every text has the code that the rules of its column say, or none.

NINES = b"9" * 50


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        (Integers(0, 40), {b"34": 34, b"+34": 34, b"34.0": 34, b"034": 34, b"34.": 34, b"-0": 0}),
        (
            Integers(0, 40),
            dict.fromkeys([b"34.5", b"3e-1", b"0x1", b"1_0", b"--1", b"41", b""], -1),
        ),
        (Integers(0, 40), dict.fromkeys([b"9" * 5000, "٣".encode(), b"\xff", b"nan", b"."], -1)),
        (Integers(-3, 3), {b"-3": 0, b"-4": -1, b" 3\t": 6}),
        (
            Bins((0.0, 1.0, 2.5)),
            {b"0": 0, b"-0.0": 0, b"1": 1, b"2.4999": 1, b"1e-400": 0, b".5": 0},
        ),
        (
            Bins((0.0, 1.0)),
            dict.fromkeys([b"1", b"-1e-9", b"nan", b"inf", b"1e400", b"-1e400"], -1),
        ),
        (Bins((0.0, 1.0)), dict.fromkeys([b"", b"0_1", b"0x0", b"1" * 100, b"0" * 100], -1)),
        # What is next to an edge is on its own side, however few floats lie between.
        (Bins((0.1, 0.2, 0.3)), {b"0.2": 1, b"0.19999999999999999999999": 0, b"0.30000": -1}),
        (Bins((0.0, 1.0)), {b"-1e-400": -1, b"0.99999999999999999999": 0}),
        (Boolean(), {b"TRUE": 1, b" y ": 1, b"0": 0, b"No": 0, b"maybe": -1, b"": -1, b"\xff": -1}),
        (Categorical(("a", ""), ("a", "none")), {b"a": 0, b" a": 0, b"": 1, b" ": 1, b"A": -1}),
        (Categorical(("é, x",), ("e",)), {"é, x".encode(): 0, "é, x".encode("latin-1"): -1}),
        (
            Categorical(("1", ""), ("yes", "no answer"), (("J", "ja"), ("iap", "NA"))),
            {b"01": 0, b"J": 0, b"ja ": 0, b"": 1, b"iap": 1, b"NA": 1, b"yes": -1, b"j": -1},
        ),
        # A huge exponent takes no memory, and is compared all the same.
        (Bins((0.0, 1.0, 1.7e308)), {b"1e-" + NINES: 0, b"1e" + NINES: -1, b"-1e-99999999": -1}),
        (Integers(0, 9), {b"1e999999999": -1}),
        (Categorical(("1e999999999",), ("x",)), {b"10e999999998": 0}),
    ],
)
def test_texts_have_the_documented_codes(kind, codes):
    plain, binned = code_of(Column("c", kind, "drop")), code_of(Column("c", kind, "show"))
    length = Column("c", kind, "drop").length
    for text, code in codes.items():
        assert plain(text) == code, text
        assert binned(text) == (length if code < 0 else code), text


HALF = Fraction(1, 2)
# Of each text the number that it writes where the decimal mark is a point, and where a comma.
TEXTS = {
    **dict.fromkeys([b"1", b" 1 ", b"\t1\r", b"01", b"+1", b"1e0", b"10e-1", b"0001E+00"], (1, 1)),
    **dict.fromkeys(["\u00a01\u2003".encode(), "\u20281\x85".encode(), b"\x1c1\x1f"], (1, 1)),
    **dict.fromkeys([b"1.", b"1.0", b"+1.000", b"0.1e1", b".1e1", b"10.0e-1"], (1, None)),
    **dict.fromkeys([b"1,", b"1,0", b"+1,000", b"0,1e1", b",1e1", b"10,0e-1"], (None, 1)),
    **dict.fromkeys([b"0", b"-0", b"+0", b"0e999999999", b"-0e-999999999999", b"0" * 64], (0, 0)),
    **dict.fromkeys([b"-2", b"-02", b"-2e0", b"-20e-1"], (-2, -2)),
    **dict.fromkeys([b"5e-1", b"0005e-1", b"50000e-5"], (HALF, HALF)),
    **dict.fromkeys([b"0.5", b".5", b"+.50"], (HALF, None)),
    **dict.fromkeys([b"0,5", b",5", b"+,50"], (None, HALF)),
    **dict.fromkeys([b"1000", b"1e3", b"1E+03"], (1000, 1000)),
    b"1,000": (None, 1),
    b"1.000": (1, None),
    **dict.fromkeys([b"1.000,5", b"1,000.5", b"1,000,000", b"1.000.000", b"1'000"], (None, None)),
    **dict.fromkeys([b"1 000", "1\u00a0000".encode(), b"1_000", b"1 .0", b"- 1"], (None, None)),
    **dict.fromkeys(
        [b"", b" ", b".", b",", b"+", b"-", b"e1", b"1e", b"1e+", b".e1"], (None, None)
    ),
    **dict.fromkeys([b"nan", b"NaN", b"inf", b"-Infinity", b"1#INF", b"NULL"], (None, None)),
    **dict.fromkeys([b"0x1", b"1d", b"1f", b"1L", b"1%", b"$1", b"0b1", b"1e1.0"], (None, None)),
    **dict.fromkeys(["１".encode(), "٣".encode(), "²".encode(), "½".encode()], (None, None)),
    **dict.fromkeys(["−1".encode(), "1\u200b".encode(), "\ufeff1".encode()], (None, None)),
    **dict.fromkeys([b"\xff1", b"1\xa0", b"1\x00", b"\xc3", b"\xed\xa0\x80"], (None, None)),
    **dict.fromkeys([b"0" * 65 + b"1", b"1" * 65, b"1." + b"0" * 63], (None, None)),
    **dict.fromkeys([b"++1", b"--1", b"+-1", b"1-", b"1+1", b"1e1e1"], (None, None)),
}
ONES = (Integers(-3, 1500), Categorical(("a", "1", "-2", "5e-1", "1000", "0"), tuple("abcdef")))
ONES += (
    Boolean(("yes", "1"), ("5e-1", "0")),
    Bins((-3.0, -1.5, 0.0, 0.5, 0.75, 1.0, 1.25, 2000.0)),
)


@pytest.mark.parametrize("mark", [".", ","])
@pytest.mark.parametrize("kind", ONES, ids=lambda kind: type(kind).__name__)
def test_a_number_is_a_number_in_every_kind(kind, mark):
    code = code_of(Column("c", kind, "drop"), mark)
    for text, values in TEXTS.items():
        value = values[mark == ","]
        expected = -1
        if value is not None:
            match kind:
                case Integers(low=low, high=high):
                    inside = value.denominator == 1 and low <= value <= high
                    expected = int(value) - low if inside else -1
                case Categorical(values=declared):
                    expected = [None, *map(Fraction, declared[1:])].index(value)
                case Boolean():
                    expected = {1: 1, HALF: 0, 0: 0}.get(value, -1)
                case Bins(edges=edges):
                    expected = sum(Fraction(edge) <= value for edge in edges) - 1
        assert code(text) == expected, text


def test_with_a_decimal_comma_numbers_of_the_spec_may_be_written_either_way():
    for declared in ("0.5", "0,5"):
        code = code_of(Column("c", Categorical((declared, "1"), ("half", "one")), "drop"), ",")
        assert [code(t) for t in (b"0,5", b",50", b"1", b"1,0", b"1.0")] == [0, 0, 1, 1, -1]
        assert code(declared.encode()) == 0


# Texts that look like numbers, more often than chance would have it.
NUMBERLIKE = st.text(st.sampled_from("0123456789" * 3 + "+-..eE, _x"), max_size=12)
PADDED = NUMBERLIKE.map(lambda text: f"{text:>20}".encode())
ANY = st.one_of(
    NUMBERLIKE.map(str.encode),
    PADDED,
    st.sampled_from([*TEXTS]),
    st.binary(max_size=80),
    st.text().map(str.encode),
)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False))
def test_numbers_have_the_order_of_what_they_write(a, b):
    exact = [number(str(value)) for value in (a, b)]
    if None not in exact:  # infinity is none, and a text may be too long
        assert (exact[0] < exact[1], exact[0] == exact[1]) == (a < b, a == b)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**18) + 1, 10**18 - 1))
def test_floats_and_whole_numbers_are_themselves(value, count):
    assert of_float(value) == number(repr(value)) == number(f"+{value!r}".replace("+-", "-"))
    assert whole(number(str(count))) == whole(number(f"{count}.000")) == count
    below, above = math.nextafter(value, -math.inf), math.nextafter(value, math.inf)
    if math.isfinite(below) and math.isfinite(above):
        assert of_float(below) < of_float(value) < of_float(above)


# Values coded many at a time have the codes of the exact rule, which is their slow twin.

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


@pytest.fixture
def however_few(monkeypatch):
    """The fast way, for few values too."""
    monkeypatch.setattr(column_codes, "_FEW", 0)


fast = pytest.mark.usefixtures("however_few")


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


@fast
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


@fast
@pytest.mark.parametrize("mark", [".", ","])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_way_to_write_a_number_has_the_code_of_the_rule(kind, mark):
    column = Column("c", kind, "drop")
    texts = [*TEXTS, *(text.encode() for text in BOUNDS), b"x" * 100, b"1" * 64, b"1" * 65]
    for bound in map(Decimal, BOUNDS):
        beside = [bound + sign * Decimal(10) ** -k for sign in (-1, 1) for k in (0, 1, 9, 16, 20)]
        texts += [f"{value:f}".replace(".", mark).encode() for value in (bound, *beside)]
    texts += [text.encode() for text in ("North", "North ", " North", "North\u00a0", "north")]
    texts += [b"$1", b"1.5", b"1,5"]
    texts += [b".5", b"5.", b"-.5e1", b"1.5E-3", b"1e+2", b"1e100", b"1\n", b"", b" ", b"12 years"]
    expected = [code_of(column, mark)(text) for text in texts]
    assert ColumnCodes(column, mark).of(pa.array(texts, pa.binary())).tolist() == expected


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


@fast
@pytest.mark.nightly
@pytest.mark.parametrize(("arrow_type", "values"), TYPED, ids=lambda own: str(own)[:30])
def test_typed_values_have_the_codes_of_their_texts(arrow_type, values):
    @FUZZ
    @given(st.lists(values, max_size=12), st.sampled_from(KINDS), st.sampled_from([".", ","]))
    def same(several, kind, mark):
        column = Column("c", kind, "count")
        array = pa.array(several, arrow_type)
        ((typed, places),) = batch_of([array]).columns[0]
        expected = [code_of(column, mark)(text) for text in field_texts(array, mark)]
        assert ColumnCodes(column, mark).of(typed)[places].tolist() == expected

    same()


@fast
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


@fast
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


@pytest.mark.nightly(daily=r"\[\]|%I|%H%M%S")
@fast
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
