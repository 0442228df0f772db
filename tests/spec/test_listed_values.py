"""Values are listed in the spec or in a file: codes, labels and all the texts that mean them."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import BASE, read
from test_spec_mistakes import mistakes

from dpquery.measurement.counting.column_codes import code_of
from dpquery.spec.columns import Bins, Boolean, Categorical, Column, Integers
from dpquery.spec.numbers import number, of_float, whole
from dpquery.spec.parsing.domain import read_domain
from dpquery.spec.parsing.yaml_nodes import read_yaml
from dpquery.spec.problems import Problems

LIST = BASE.replace("values: [Male, Female]", "values_file: s.txt")


def listed(values):
    return read(BASE.replace("[Male, Female]", values)).domain.attributes[1].columns[0]


def filed(content):
    return read(LIST, {"s.txt": content}).domain.attributes[1].columns[0].kind


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
    text = LIST.replace("s.txt", f"{{name: s.txt, delimiter: {delimiter}}}")
    kind = read(text, {"s.txt": content}).domain.attributes[1].columns[0].kind
    assert kind == Categorical(("A", ""), ("Alpha, beta", "none"))


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
    declared = LIST.replace("s.txt", f"{{name: s.txt, delimiter: {mark}}}")
    assert len(read(declared, {"s.txt": content}).domain.attributes[1].columns[0].kind.values) < 3
    with_commas = LIST.replace("s.txt", "{name: s.txt, delimiter: ','}")
    read(with_commas, {"s.txt": content.replace(", beta", "")})


@pytest.mark.parametrize("content", ["a;b\nc\n", "a;b,1;2\nc;d,3;4\n", "'a;b'\nc;d;e\n"])
def test_marks_that_separate_no_fields_are_part_of_values(content):
    assert filed(content).values == tuple(line.split(",")[0] for line in content.split())


RENAME = (
    "and one is `code`, or has one column `code` and one `label`; rename its columns; if it is a "
)
RENAME += "value, put it in another line"


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (
            "state_fips,name\n1,Alabama\n2,Alaska\n",
            [
                "1:1: this line looks like a header, as every other value is a number; write "
                "code,label in its place, or remove the line; if it is a value, put it in another "
                "line"
            ],
        ),
        (
            "sex,name\nM,Male\nF,Female\n",
            [
                "1:1: this line looks like a header, as the column is called so; write "
                "code,label in its place, or remove the line; if it is a value, put it in another "
                "line"
            ],
        ),
        ("code,name\n1,Alabama\n", [f"1:1: this line looks like a header, {RENAME}"]),
        ("name,label\nAL,Alabama\n", [f"1:1: this line looks like a header, {RENAME}"]),
        ("code,value,label\n1,2,3\n", [f"1:1: this line looks like a header, {RENAME}"]),
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
    read_domain(node.entries, problems, lambda name: name, other="drop", decimal=",")
    with pytest.raises(Exception, match=r"'0\.5' is the same number as '0,5' in line 1"):
        problems.raise_if_any()


# Every text has the code that the rules of its column say, or none.


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


def test_a_huge_exponent_takes_no_memory_and_is_compared_all_the_same():
    column = Column("c", Bins((0.0, 1.0, 1.7e308)), "drop")
    for text, expected in ((b"1e-" + b"9" * 50, 0), (b"1e" + b"9" * 50, -1), (b"-1e-99999999", -1)):
        assert code_of(column)(text) == expected
    assert code_of(Column("c", Integers(0, 9), "drop"))(b"1e999999999") == -1
    assert code_of(Column("c", Categorical(("1e999999999",), ("x",)), "drop"))(b"10e999999998") == 0


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


@given(ANY, st.sampled_from([".", ","]))
def test_what_one_kind_reads_as_a_number_every_kind_does(text, mark):
    for value in (0, 1, 10):
        near = (value - 1.0, float(value), value + 0.5)
        equal = [
            code_of(Column("c", Integers(value, value), "drop"), mark)(text) == 0,
            code_of(Column("c", Categorical(("x", f"{value}.0"), ("", "")), "drop"), mark)(text)
            == 1,
            code_of(Column("c", Boolean((f"0{value}",), ("x",)), "drop"), mark)(text) == 1,
        ]
        binned = code_of(Column("c", Bins(near), "drop"), mark)(text)
        assert len(set(equal)) == 1
        assert binned == 1 or not equal[0]


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
