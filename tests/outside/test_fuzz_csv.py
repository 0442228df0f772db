"""Any bytes as the data: released, or refused for their header, in words that were there before.

A refused file costs nothing and leaves the earlier release as it was. No bytes below a header that
was good can make a run fail: whether it does would tell something of the records.
"""

import itertools
import os
import re

import pytest
from damage import CANARY, HEADER, NASTY_LINES, NO_HEADERS, PLAIN, SMALL, WITHOUT_REGION
from data import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from town import PERSON_SPEC, SPEC, contents, ok, plan_town, renew, run, spent

DECLARED = "age|sex|region|income|name"
HINTS = (
    r"it begins as UTF-16 does: set `file: \{encoding: utf-16\}` in the spec"
    r"|(semicolon|tab|pipe)s separate them: "
    r"set `file: \{delimiter: (\";\"|tab|\"\|\")\}` in the spec"
    r"|it is gzip: give it the suffix \.gz"
    r"|it is empty: delete the empty lines above the column names"
    r"|it seems to be JSON, as plans are: name the records, as CSV or Parquet"
    r"|it holds NUL characters, as no text does: name another file"
    r"|it has them in other capitals or small letters: [^;]*"
    r"|if the first line is a record or a title, [^;]*; else rename columns in the file, or set "
    r"`column:` in the spec"
)
NAMES = rf"the declared columns? (({DECLARED})(, )?)+"
REMEDY = (
    rf"((`privacy: unit: person` names 'name': change it there, or in the file)?(; )?"
    r"(rename columns in the file, or set `column:` in the spec)?(; )?"
    r"(give each column of the file a name of its own, or take out all but the right one)?"
    rf"|{HINTS}); nothing was charged"
)
REFUSALS = re.compile(
    r"dpquery: data\.csv: the first line is not a header of comma-separated column names in UTF-8; "
    r"(write one there, or name another file, or set its encoding in the spec, such as "
    rf"`file: \{{encoding: latin-1\}}`|{HINTS}); nothing was charged\n"
    rf"|dpquery: data\.csv: the header lacks {NAMES}(, and has {NAMES} more than once)?; {REMEDY}\n"
    rf"|dpquery: data\.csv: the header has {NAMES} more than once; {REMEDY}\n"
    r"|dpquery: data\.csv is empty: no header and no record; name another file; "
    r"nothing was charged\n"
)
TOKENS = [b",", b'"', b"\n", b"\r", b"\r\n", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"age", b"region"]
TOKENS += [
    b" ",
    b"\t",
    b"\\",
    b"\x1b[2J",
    b"%s",
    b"{0}",
    CANARY.encode(),
    b"1e999",
    b"\xc3",
    b"\x1a",
]
TOKENS += [line for line in NASTY_LINES if len(line) < 500]
EDITS = st.tuples(
    st.integers(0, 2**16),
    st.integers(0, 9),
    st.sampled_from(TOKENS) | st.binary(max_size=6),
)


def edited(content, edits, *, first=0, last=None):
    """The bytes with some stretches between two places taken out and others put in."""
    for place, length, token in edits:
        start = first + place % ((last or len(content)) - first + 1)
        content = content[:start] + token + content[start + length :]
    return content


FILES = st.one_of(
    st.binary(max_size=200),
    st.builds(edited, st.sampled_from([*SMALL.values(), PLAIN]), st.lists(EDITS, max_size=4)),
    st.builds(edited, st.sampled_from([*NO_HEADERS.values()][:8]), st.lists(EDITS, max_size=2)),
    st.builds(edited, st.sampled_from([*WITHOUT_REGION.values()]), st.lists(EDITS, max_size=2)),
)
HEADERS = st.lists(EDITS, min_size=1, max_size=3).map(
    lambda edits: edited(HEADER[:-1], edits) + b"\n" + PLAIN[len(HEADER) :]
)
BODIES = st.one_of(
    st.binary(max_size=300),
    st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join),
    st.builds(edited, st.sampled_from([*SMALL.values()]), st.lists(EDITS, max_size=6)),
).map(lambda body: HEADER + body)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Towns with an earlier release, for half a unit of budget."""
    folder = tmp_path_factory.mktemp("released")
    for name, spec in {"rows": SPEC, "persons": PERSON_SPEC}.items():
        plan_town(folder / name, spec)
        (folder / name / "data.csv").write_bytes(PLAIN)
        arguments = (
            "--ledger",
            folder / name / "state" / "ledger.db",
            "--out",
            folder / name / "release",
        )
        plan = ("--plan", folder / name / "dpquery.plan")
        ok("release", folder / name / "data.csv", "--epsilon", "0.5", *plan, *arguments)
    return folder


@pytest.fixture
def tried(released, tmp_path, monkeypatch):
    """Return the function that releases any bytes, checks what is left, and tells the exit code."""
    folder = tmp_path / "town"
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
    monkeypatch.chdir(tmp_path)  # where to come back to
    towns = itertools.cycle(["rows", "persons"])

    def of(content):
        renew(folder, released / next(towns))
        os.chdir(folder)
        before = contents("release")
        (folder / "data.csv").write_bytes(content)
        done = run("release", "data.csv", "--epsilon", "1", "--replace")
        (folder / "data.csv").unlink()
        left = contents(folder)
        assert not [name for name, content in left.items() if CANARY.encode() in content]
        if done.code == 0:
            assert done.err == f"ledger: {folder / 'state' / 'ledger.db'}\n"
            assert CANARY not in done.out
            assert spent() == "1.5"
            assert contents("release") != before
        else:
            assert (done.code, done.out) == (6, "")
            assert REFUSALS.fullmatch(done.err), done.err
            assert spent() == "0.5"
            assert contents("release") == before
        return done.code

    return of


def fuzz(tried, files, record_property, *, examples, code=None):
    """Try files of a kind, which all end in a code, if there is one; record how many."""
    codes = []

    @settings(FUZZ, max_examples=examples)
    @given(content=files)
    def any_bytes(content):
        codes.append(tried(content))
        assert code in (None, codes[-1])

    any_bytes()
    record_property("bad inputs", len(codes))
    return set(codes)


@pytest.mark.nightly
def test_any_bytes_are_released_or_refused_for_their_header(tried, record_property):
    assert fuzz(tried, FILES, record_property, examples=20) == {0, 6}


def test_any_header_is_read_or_refused_without_being_shown(tried, record_property):
    assert fuzz(tried, HEADERS, record_property, examples=20) == {0, 6}


def test_no_bytes_below_a_good_header_make_a_release_fail(tried, record_property):
    fuzz(tried, BODIES, record_property, examples=12, code=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "headers"])
def test_long_fuzz_of_files(tried, record_property, kind):
    files = {"files": FILES, "headers": HEADERS}[kind]
    assert fuzz(tried, files, record_property, examples=150) == {0, 6}


@pytest.mark.slow
def test_long_fuzz_of_what_is_below_a_good_header(tried, record_property):
    fuzz(tried, BODIES, record_property, examples=150, code=0)


@pytest.mark.parametrize(
    ("place", "leak"),
    [
        ("dpquery.measurement.counting.tally.ColumnCodes", ValueError(CANARY)),
        ("dpquery.measurement.counting.text_files.csv.reader", RuntimeError(CANARY)),
    ],
)
def test_a_run_that_falls_over_a_file_is_found(tried, monkeypatch, place, leak):
    def fails(*_, **__):
        raise leak

    monkeypatch.setattr(place, fails)
    with pytest.raises(AssertionError):
        tried(PLAIN)
