"""Whatever is typed after a command: exit 2 or another documented code, and no file is lost."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from damage import CANARY, HEADER, NASTY_LINES, NO_HEADERS, PLAIN, SMALL, WITHOUT_REGION
from dense import dense_block, dense_strategy
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import FUZZ, random_spec, read
from town import PERSON_SPEC, SPEC, contents, ok, plan_town, refused, renew, run, spent

from dpquery.operators.compile import compile_spec
from dpquery.operators.gram import gram
from dpquery.reconstruction.checks import flaw_of
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.expected_error import squared_sensitivity
from dpquery.strategy.search.candidates import Problem
from dpquery.strategy.search.select import SEARCHES, select
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy

NUMBERS = (
    "nan", "-1", "0x1", "1e400", "1e-400", "", "٣", "1/3", "--", "true", "9" * 5000, "1e7",
    "\x1b[2J", "-inf", "1,5", "1e",
)  # fmt: skip
RELEASE, PLAN = ("release", "data.csv"), ("plan", "workload.yaml", "--time-limit", "0")
ANSWER = ("answer", "release", "more.yaml")
WRONG = {
    (*RELEASE, "--epsilon"): NUMBERS,
    (*PLAN, "--epsilon"): NUMBERS,
    (*RELEASE, "--epsilon", "1", "--delta"): NUMBERS,
    (*PLAN, "--delta"): NUMBERS,
    (*PLAN, "--sweep"): (*(number for number in NUMBERS if number != "1,5"), "1,", "1;2"),
    (*PLAN, "--seed"): (*NUMBERS, str(2**41), str(10**30)),
    (*PLAN, "--jobs"): (*NUMBERS, "0", "3", str(10**9)),
    ("plan", "workload.yaml", "--time-limit"): tuple(
        x for x in NUMBERS if x[:2] not in ("1e", "99")
    ),
    (*PLAN, "--objective"): NUMBERS,
    (*PLAN, "--mechanism"): NUMBERS,
    (*PLAN, "--target"): (*NUMBERS, "*: sd <= ٣", "*: sd <= -1", "*: sd <= 1e999"),
    (*RELEASE, "--epsilon", "1", "--release-number"): (*NUMBERS, "0", str(10**30)),
    (*RELEASE, "--epsilon", "1", "--confidence"): NUMBERS,
    (*RELEASE, "--epsilon", "1", "--noise"): NUMBERS,
    (*RELEASE, "--epsilon", "1", "--mechanism"): NUMBERS,
    (*RELEASE, "--epsilon", "1", "--also"): (*NUMBERS, "thresholded:nan", "thresholded:-1", "x:1"),
    (*ANSWER, "--confidence"): NUMBERS,
    (*ANSWER, "--also"): NUMBERS,
    ("synthetic", "release", "--rows"): (*NUMBERS, "0", str(10**30)),
    ("synthetic", "release", "--seed"): NUMBERS,
}


@pytest.fixture
def full_town(town):
    ok("release", "data.csv", "--epsilon", "1")
    Path("more.yaml").write_text("workload:\n  - {name: q, product: {age: identity}}\n")
    return town


@pytest.mark.nightly
def test_wild_numbers_and_words_are_refused_and_nothing_is_charged(full_town, record_property):
    tried, before, wrong = 0, contents("."), []
    for command, values in WRONG.items():
        for value in values:
            done = run(*command, value)
            if (done.code, done.out) != (2, "") or "Traceback" in done.err or "\x1b" in done.err:
                wrong.append((command, value, done))
            tried += 1
    assert wrong == []
    assert {k: v for k, v in contents(".").items() if not k.startswith("state/")} == {
        k: v for k, v in before.items() if not k.startswith("state/")
    }
    record_property("bad inputs", tried)


NO_PLACE = (".", "", "folder", "pipe", "..", "loop")
KEPT = ("data.csv", "state/ledger.db", "workload.yaml", "release/release.json")
WRITERS = {
    "plan": (*PLAN, "--out"),
    "page": ("error-report", "release", "--html"),
    "starter": ("init",),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_file_is_written_where_none_can_be(full_town, writer, record_property):
    Path("folder").mkdir()
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    for place in NO_PLACE:
        done = run(*WRITERS[writer], place)
        assert done.code == 2, (place, done)
        assert done.err.startswith("dpquery: "), done
    record_property("bad inputs", len(NO_PLACE))


@pytest.mark.nightly
@pytest.mark.parametrize("writer", ["plan", "page"])
@pytest.mark.parametrize("place", KEPT)
def test_a_file_of_another_kind_is_never_replaced(full_town, writer, place):
    Path("link").symlink_to(place)
    for path in (place, "link"):
        assert "holds something else" in refused(*WRITERS[writer], path, code=5)


def test_a_link_to_a_plan_is_written_through(full_town):
    Path("kept.plan").write_bytes(Path("dpquery.plan").read_bytes())
    Path("link.plan").symlink_to("kept.plan")
    ok(*PLAN, "--seed", "5", "--out", "link.plan")
    assert Path("link.plan").is_symlink()
    assert json.loads(Path("kept.plan").read_text())["seed"] == 5


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["data.csv", ".", "", "link", "pipe", "release/x", "loop"])
def test_a_release_and_answers_go_to_folders_of_their_own(full_town, place, record_property):
    Path("folder").mkdir()
    Path("link").symlink_to("folder")
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    for command in ((*RELEASE, "--epsilon", "0.5", "--out"), (*ANSWER, "--out")):
        if (command[0], place) == ("release", "release/x"):
            continue  # a folder inside is another folder
        done = run(*command, place)
        assert done.code in (2, 5), done
        assert done.err.startswith("dpquery: ")
    record_property("bad inputs", 2)


@pytest.mark.nightly
@pytest.mark.parametrize("bench", ["bench_thresholds.py", "bench_answers.py"])
def test_an_unknown_job_of_a_bench_is_named(bench):
    path = Path(__file__).parents[1] / "bench" / bench
    done = subprocess.run(
        [sys.executable, path, "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("'nothing' is not known; name some of")


# Answers of random specs against least squares written out densely.
#
# Random workloads with slices, any_of, thresholds, merged columns and weights over six orders of
# magnitude: what is chosen answers noisy values as dense least squares do, errs by what is
# printed, and covers what it says.


RELEASES = 200
SLICES = """\
dataset: {id: v10p, version: 1}
privacy: {unit: row}
budget: {epsilon: 100}
other: drop
domain: {a: {range: [0, 5]}, b: {range: [0, 4]}, c: {range: [0, 3]}, d: {range: [0, 2]}}
workload:
  - {name: q, product: {a: prefix}, where: {b: 0, c: {between: [0, 1]}, d: 0}}
  - {name: p, marginals: {ways: 1}}
  - {name: s, product: {b: identity, c: {between: [0, 1]}}}
"""
"""Three conditions on one item: its part of OPT_+ all but vanishes on the other records."""


def coefficients(strategy, W):
    """C with answers C y by least squares, from singular values of the rows themselves."""
    A = dense_strategy(strategy.measurements).astype(float)
    top = np.abs(A).max()
    U, s, Vt = np.linalg.svd(A / top, full_matrices=False)
    seen = s > 3e-14 * s[0]
    return (W @ Vt[seen].T / s[seen]) @ U[:, seen].T / top


def dense_coefficients(strategy, W):
    """The same; under the plain mechanism every query is its own noisy answer."""
    if isinstance(strategy, DirectStrategy):
        rows = [block.queries for block in strategy.workload.blocks]
        return np.diag(1 / np.repeat(np.array(strategy.weights, dtype=float), rows))
    assert dense(strategy)
    return coefficients(strategy, W)


def dense(strategy):
    """Whether all parts are solved as one; test_opt_union looks at those that are not."""
    return not isinstance(strategy, UnionStrategy) or strategy.joint is not None


def covered(text, noise, name=None):
    """The share of intervals that cover, of a strategy that is held against dense algebra.

    It is the best one for a spec, or the one of a name.
    """
    compiled = compile_spec(read(text))
    workload, rng = compiled.workload, np.random.default_rng(0)
    if name is None:
        selection = select(workload, noises=[noise])[noise]
        found = (each for each in selection.candidates if each.proposal is not None)
        by_choice = sorted(found, key=lambda each: each.name != selection.best.name)
        proposed = (each.proposal.strategy for each in by_choice)
        strategy = next(each for each in proposed if dense(each))
    else:  # which a proof may leave out of the search
        problem = Problem(workload, gram(workload), noise, 0, items=compiled.items)
        strategy = dict(SEARCHES)[name](problem).strategy
    scale = math.sqrt(squared_sensitivity(strategy))
    noise_std = scale * (math.sqrt(2) if noise == "laplace" else 4.2)
    assert flaw_of(strategy, workload, items=compiled.items, noise_std=noise_std) == ""
    W = np.vstack([dense_block(block) for block in workload.blocks]).astype(float)
    C, blocks = dense_coefficients(strategy, W), list(enumerate(workload.blocks))
    std = [standard_errors(strategy, b, position=k, noise_std=noise_std) for k, b in blocks]
    widths = [
        half_widths(strategy, b, errors, position=k, level=0.95)
        for (k, b), errors in zip(blocks, std, strict=True)
    ]
    expected = noise_std * np.sqrt((C**2).sum(axis=1))
    assert np.concatenate(std) == pytest.approx(expected, rel=1e-4)

    def drawn(shape):
        if noise == "laplace":
            return np.rint(rng.laplace(scale=scale, size=shape))
        return np.rint(rng.normal(scale=noise_std, size=shape))

    x = rng.integers(0, 2000, W.shape[1])
    A = dense_strategy(strategy.measurements)
    noisy = (A @ x.astype(object)).astype(float) + drawn(len(A))
    ends = np.cumsum([rows.block.queries for rows in strategy.measurements])[:-1]
    estimates = reconstruct(strategy, np.split(noisy, ends))
    answers = np.concatenate([estimates.answer(b, k).ravel() for k, b in blocks])
    noise_free = expected == 0  # sums of values that are all 0
    assert not answers[noise_free].any()
    off = np.abs(answers - C @ noisy)[~noise_free] / expected[~noise_free]
    assert off.max() < 2e-3, "answers are not those of least squares"
    errors = np.abs(C @ drawn((len(A), RELEASES)))
    return float((errors <= np.concatenate(widths)[:, None]).mean())


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_three_conditions_on_one_item_are_answered_as_printed(noise):
    assert 0.93 < covered(SLICES, noise, "OPT_+") < 0.97


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(8))
def test_random_specs_are_answered_as_printed(seed):
    rng = np.random.default_rng([seed, 11])
    text = random_spec(rng, wheres=(None, 3, 4)[seed % 3])
    assert 0.92 < covered(text, ("laplace", "gaussian")[seed % 2]) < 0.98


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("seed", range(12, 112))
def test_more_random_specs_are_answered_as_printed(seed, noise):
    rng = np.random.default_rng([seed, 11])
    assert 0.92 < covered(random_spec(rng, wheres=(None, 2, 3, 4)[seed % 4]), noise) < 0.98


# Any bytes as the data: released, or refused for their header, in words that were there before.
#
# A refused file costs nothing and leaves the earlier release as it was. No bytes below a header
# that was good can make a run fail: whether it does would tell something of the records.


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
