"""Progress: one reporter for a context, whoever has a screen."""

import random
import re
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from io import StringIO
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pytest
import yaml
from specs import UNPACKED, single, spec_of, write_arrow, write_parquet
from town import Terminal, checked, counts, planned, released, spec_text

from dpquery.cli.screen import shown_progress
from dpquery.data_check.records import FileRecords
from dpquery.exceptions import OutOfTimeError
from dpquery.measurement.counting import tabulate
from dpquery.measurement.counting.locations import sources_of
from dpquery.progress import (
    LineWithShare,
    Work,
    current_reporter,
    report_progress,
    reporting,
    stage,
)
from dpquery.spec.columns import Integers


def test_the_innermost_reporter_alone_is_told_and_the_outer_one_comes_back():
    outer, inner = [], []
    report_progress("to nobody")
    with reporting(outer.append):
        report_progress("one")
        with reporting(inner.append):
            report_progress("two", 0.5)
        with reporting(None):
            report_progress("to nobody")
        report_progress("three", 1.0)
    report_progress("to nobody")
    assert (outer, inner) == (["one", "three: 100%"], ["two: 50%"])


def test_a_reporter_that_raises_ends_the_work_and_is_gone():
    def stop(line):
        raise OutOfTimeError(line)

    before = current_reporter()
    with pytest.raises(OutOfTimeError, match="enough"), reporting(stop):
        report_progress("enough")
    assert current_reporter() is before


def test_another_thread_is_not_heard():
    lines = []
    with reporting(lines.append):
        thread = threading.Thread(target=report_progress, args=("aside",))
        thread.start()
        thread.join()
    assert lines == []


def test_a_process_of_its_own_reports_to_nobody(capfd):
    with reporting(print), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as beside:
        beside.submit(report_progress, "aside").result()
    assert capfd.readouterr() == ("", "")


def test_shares_of_stages_are_of_the_whole_and_never_fall():
    lines = []
    with reporting(lines.append), stage("", 0.5, 1.0):
        with stage("first", 0.0, 0.4):
            for share in (0.5, 0.25, 7.0):
                report_progress("reading", share)
        with stage("second", 0.4, 1.0):
            report_progress("writing")
    assert [line.done for line in lines] == pytest.approx([0.5, 0.6, 0.6, 0.7, 0.7, 0.7])
    assert lines[1] == "first: reading: 60%"
    assert lines[-1] == "second: writing: 70%"
    assert {line.work for line in lines} == {"the whole command"}


def test_the_share_of_a_work_never_falls_and_is_one_at_most():
    lines = []
    with reporting(lines.append):
        work = Work("reading")
        for share in (0.0, 0.5, 0.25, 0.75, 2.0, 0.1):
            work.report(share)
        Work("reading").report(0.125)
    assert [line.done for line in lines] == [0.0, 0.5, 0.5, 0.75, 1.0, 1.0, 0.125]
    assert lines[3] == "reading: 75%"
    assert all(isinstance(line, LineWithShare) and line.words == "reading" for line in lines)


@pytest.fixture
def parts(tmp_path):
    """Persons in files of many kinds and sizes, one of them without records."""
    ids = np.random.default_rng(3).permutation(2000) // 2
    table = pa.table({"age": ids % 10, "id": ids})
    body = b"age,id\n" + b"".join(b"%d,%d\n" % (own % 10, own) for own in ids)
    (tmp_path / "a.csv").write_bytes(body)
    (tmp_path / "b.csv.gz").write_bytes(UNPACKED[".gz"](body))
    (tmp_path / "c.csv").write_bytes(b"age,id\n")
    write_parquet(table, tmp_path / "d.parquet")
    write_arrow(table.slice(0, 300), tmp_path / "e.arrow")
    return tmp_path


def shares_of(work):
    lines = []
    with reporting(lines.append):
        work()
    return [line.done for line in lines]


@pytest.mark.parametrize("limit", [2**30, 2**16])
def test_the_share_that_is_read_never_falls_whatever_the_files_and_passes(
    parts, monkeypatch, limit
):
    spec = spec_of(single("age", Integers(0, 9)), person="id", max_rows=2)
    classes = [np.arange(spec.domain.shape[0])]
    tally = tabulate.RecordTally(spec, [(0,)], classes, memory=limit)
    passes = []
    monkeypatch.setattr(tally, "end_pass", lambda end=tally.end_pass: passes.append(1) or end())
    shares = shares_of(lambda: tabulate._counted(parts, tally, tally.marginals, chunk_bytes=4096))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(set(shares)) > 10
    assert (len(passes) > 1) == (limit < 2**30)


def test_the_share_that_a_check_has_read_never_falls(parts, monkeypatch):
    monkeypatch.setattr("dpquery.data_check.records._PIECE", 4096)
    spec = spec_of(single("age", Integers(0, 9)), person="id")
    records = FileRecords(sources_of(parts, spec.file), spec)
    shares = shares_of(lambda: list(records.chunks()))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 10


def test_a_terminal_shows_a_bar_and_the_time_left(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with shown_progress():
        report_progress("[red]compiling")
        work = Work("reading the data")
        for share in (0.25, 0.5):
            work.report(share)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stderr.getvalue())
    assert re.search(r"reading the data ━+╺?━+ +50 % (0:00:0\d|-:--:--)", text)
    monkeypatch.setattr(sys, "stderr", StringIO())
    with shown_progress():
        report_progress("compiling")
    assert sys.stderr.getvalue() == ""


# What `dpquery check` advises is so: it can be pasted, and what it says of a file is true.


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


NUMBERS = "x\n0.5\n1.5\n2.5\n9223372036854775807\n10000000000000000000\n"


@pytest.mark.parametrize(
    ("declared", "content"),
    [
        ("{range: [0, 10]}", "x\n1.5\n2.5\n123456.75\n9.25\n-3.5\n4.5\n"),
        ("{range: [0, 10]}", NUMBERS),
        ("{bins: [0, 10]}", NUMBERS),
    ],
)
def test_bins_that_are_offered_hold_every_number(tmp_path, declared, content):
    said, offered = advice(tmp_path, content, {"x": declared})
    assert ("its numbers have decimals" in said) == ("range" in declared)
    numbers = [*map(float, content.split()[1:])]
    edges = offered["domain"]["x"]["bins"]
    assert edges[0] <= min(numbers) <= max(numbers) < float(edges[-1])
    assert sum(pasted(tmp_path, content, {"x": declared}, offered)) == len(numbers)


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


def test_numbers_that_no_bins_take_are_said_to_be_left(tmp_path):
    said, offered = advice(tmp_path, "x\n1\n15\n999\n1e30\n", {"x": "{bins: [0, 10]}"})
    assert "without 2: codes of missing answers, or too far away" in said
    assert offered["domain"]["x"]["bins"][-1] < 999
