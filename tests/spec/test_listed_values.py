"""Values are listed in the spec or in a file: codes, labels and all the texts that mean them."""

import pytest
from specs import BASE, read
from test_spec_mistakes import mistakes

from dpquery.measurement.counting.column_codes import code_of
from dpquery.spec.columns import Categorical
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
