"""What `dpquery check` advises is so: it can be pasted, and what it says of a file is true."""

import random
import re

import pytest
import yaml
from town import checked, counts, planned, released, spec_text

TOTAL = ["{name: n, product: {}}"]


def advice(folder, content, domain, *, more=""):
    """Return what a check prints of a file, and the YAML that it offers."""
    (folder / "s.yaml").write_text(spec_text(domain, TOTAL, more=more), encoding="utf-8")
    data = content if isinstance(content, bytes) else content.encode()
    (folder / "d.csv").write_bytes(data)
    _, said = checked(folder, folder / "d.csv")
    offered = said.partition("# To paste")[2].partition("\n")[2]
    return said, yaml.safe_load(offered) or {}


def undeclared(said):
    """Return how many records hold an undeclared value, as a check says."""
    held = re.search(r"([0-9,]+) of [0-9,]+ records? \(.*\) holds? an undeclared", said)
    return int(held[1].replace(",", "")) if held else 0


def pasted(folder, content, domain, offered, *, item="product: {x: identity}"):
    """Return the answers of a release under the spec with what was offered pasted in."""
    own = domain | {
        name: yaml.safe_dump(of, default_flow_style=True, width=9999, sort_keys=False).strip()
        for name, of in offered["domain"].items()
    }
    planned(folder, spec_text(own, [f"{{name: t, {item}}}"]))
    return counts(released(folder, folder / "d.csv")["t"])


def test_whole_numbers_of_any_size_are_no_decimals(tmp_path):
    content = f"x\n{2**63 - 1}\n-{2**63}\n3\n{10**30}\n"
    said, offered = advice(tmp_path, content, {"x": "{range: [0, 10]}"})
    assert "decimals" not in said
    assert offered == {}


def test_bins_that_are_offered_for_decimals_hold_every_number(tmp_path):
    domain = {"x": "{range: [0, 10]}"}
    content = "x\n1.5\n2.5\n123456.75\n9.25\n-3.5\n4.5\n"
    said, offered = advice(tmp_path, content, domain)
    assert "its numbers have decimals" in said
    edges = offered["domain"]["x"]["bins"]
    assert edges[0] <= -3.5
    assert edges[-1] > 123456.75
    assert sum(pasted(tmp_path, content, domain, offered)) == 6


def test_edges_of_bins_keep_their_digits_in_what_is_offered(tmp_path):
    _, offered = advice(tmp_path, "x\n0.1\n6.5\n", {"x": "{bins: [0, 0.12345678901234567, 1]}"})
    assert 0.12345678901234567 in offered["domain"]["x"]["bins"]


HIDDEN = ["Malmo\u0308", "malm\u00f6", "Malm\u00f6\u200b", "\u2060Malm\u00f6", "MALM\u00d6"]


def test_spellings_that_look_alike_are_one_value_and_are_written_out(tmp_path):
    domain = {"x": "{values: [Malm\u00f6, Lund]}"}
    content = "x\nMalm\u00f6\nLund\n" + "".join(f"{text}\n" for text in HIDDEN)
    said, offered = advice(tmp_path, content, domain)
    for hidden in "\u200b\u2060\u0308":
        assert hidden not in said  # as it is; its code is there
        assert f"\\u{ord(hidden):04x}" in said
    assert offered["domain"]["x"]["values"] == {
        "Malm\u00f6": ["Malm\u00f6", *HIDDEN],
        "Lund": "Lund",
    }
    assert pasted(tmp_path, content, domain, offered) == [6, 1]


def test_new_values_that_look_alike_are_offered_as_one(tmp_path):
    content = "x\na\nnew\nNew\nne\u00adw\n\u00e9t\u00e9\ne\u0301te\u0301\n"
    _, offered = advice(tmp_path, content, {"x": "{values: [a]}"})
    assert sorted(map(len, offered["domain"]["x"]["values"].values())) == [1, 2, 3]


def test_names_of_columns_with_invisible_characters_are_written_out(tmp_path):
    said, _ = advice(tmp_path, "ag\u200be,sex\n1,F\n", {"age": "{range: [0, 3]}"})
    assert "ag\\u200be" in said
    assert "\u200b" not in said


@pytest.mark.parametrize("line", ['a,"x"y', 'a,5" pipe', 'a,"x'])
def test_line_feeds_in_quotes_are_not_offered_where_a_release_would_end(tmp_path, line):
    content = f'x,y\na,"ok"\nb,"ok"\n{line}\nb,c\n' + 'a,"fine"\n' * 3
    said, offered = advice(tmp_path, content, {"x": "{values: [a, b]}"})
    if "file" in offered:
        assert offered["file"] != {"newlines_in_quotes": True}
    else:
        assert "differs" not in said
    planned(tmp_path, spec_text({"x": "{values: [a, b]}"}, TOTAL))
    assert counts(released(tmp_path, tmp_path / "d.csv")["n"]) == [7]


def test_line_feeds_in_quotes_are_offered_where_they_help(tmp_path):
    content = 'x,y\na,"one\ntwo"\nb,"ok"\n'
    _, offered = advice(tmp_path, content, {"x": "{values: [a, b]}"})
    assert offered["file"] == {"newlines_in_quotes": True}


TIMES = {
    "%d.%m.%Y %H:%M": ["31.01.2013 12:30", "28.02.2013 00:00"],
    "%d/%m/%Y %H:%M:%S": ["31/01/2013 12:30:59", "28/02/2013 00:00:00"],
    "%m/%d/%Y %I:%M %p": ["01/31/2013 12:30 PM", "02/28/2013 01:05 am"],
    "%d.%m.%Y": ["31.01.2013", "28.02.2013"],
}


@pytest.mark.parametrize("style", TIMES)
def test_dates_are_offered_a_format_with_the_time_behind_them(tmp_path, style):
    domain = {"x": "{date: {from: 2013-01, to: 2013-03, by: month}}"}
    content = "x\n" + "".join(f"{text}\n" for text in TIMES[style])
    _, offered = advice(tmp_path, content, domain)
    assert offered["domain"]["x"]["date"]["format"] == style
    offered["domain"]["x"]["date"] |= {"from": "2013-01", "to": "2013-03"}
    assert pasted(tmp_path, content, domain, offered) == [1, 1, 0]


@pytest.mark.parametrize(
    ("above", "number"), [("sep=;\n", 2), ("Table 1, persons\n\nof 2013, made-up\n", 4)]
)
def test_lines_above_the_header_are_said_and_not_taken_for_it(tmp_path, above, number):
    domain = {"x": "{values: [a, b]}", "y": "{range: [0, 3]}"}
    said, offered = advice(tmp_path, f"{above}x;y\na;1\nb;2\n", domain)
    assert f"the header is line {number}: delete the first" in said
    assert "of its lines have other than" not in said
    assert offered == {"file": {"delimiter": ";"}}


ODD = [
    "9" * 25,
    "1e400",
    "-0.5",
    "3.75",
    "NA",
    "",
    "yes\u200b",
    "#x",
    "a: b",
    "'",
    '"',
    "\\",
    "- a",
]
ODD += ["{", "[", "null", "~", "0x1F", "1_000", "\u00a0", "e\u0301", "\U0001f600", "ö", "01", "1.0"]
KINDS = [
    "{values: [a, b]}",
    "{values: {1: one, 2: two, no answer: ['']}}",
    "{range: [0, 10]}",
    "{bins: [0, 0.5, 10]}",
    "boolean",
    "{date: {from: 2013, to: 2014, by: month}}",
]


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_offered_reads_and_declares_more_than_before(tmp_path, kind):
    rng = random.Random(kind)  # noqa: S311 - made-up rows
    for _ in range(3):
        texts = rng.choices([*ODD, "1", "2", "a", "31.01.2013 10:00", "2013"], k=12)
        content = "x,k\n" + "".join(f'"{t.replace(chr(34), 2 * chr(34))}",1\n' for t in texts)
        domain = {"x": kind, "k": "{range: [1, 1]}"}
        said, offered = advice(tmp_path, content, domain)
        if "domain" not in offered:
            continue
        dumped = {
            name: yaml.safe_dump(of, default_flow_style=True, width=9999, sort_keys=False).strip()
            for name, of in offered["domain"].items()
        }
        again, _ = advice(tmp_path, content, domain | dumped)
        assert undeclared(again) < undeclared(said)


@pytest.mark.parametrize("declared", ["{bins: [0, 10]}", "{range: [0, 10]}"])
def test_bins_that_are_offered_end_beyond_the_largest_number(tmp_path, declared):
    content = "x\n0.5\n1.5\n2.5\n9223372036854775807\n10000000000000000000\n"
    _, offered = advice(tmp_path, content, {"x": declared})
    assert float(offered["domain"]["x"]["bins"][-1]) > 10**19
    assert sum(pasted(tmp_path, content, {"x": declared}, offered)) == 5


def test_numbers_that_no_bins_take_are_said_to_be_left(tmp_path):
    said, offered = advice(tmp_path, "x\n1\n15\n999\n1e30\n", {"x": "{bins: [0, 10]}"})
    assert "without 2: codes of missing answers, or too far away" in said
    assert offered["domain"]["x"]["bins"][-1] < 999
