"""Whatever a release folder or a data file holds: a documented exit code, and nothing else."""

import csv
import hashlib
import itertools
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import (
    CANARY,
    HEADER,
    NASTY_LINES,
    NO_FILES,
    NO_HEADERS,
    PLAIN,
    SMALL,
    WILD,
    WITHOUT_REGION,
    chance,
    damaged,
    limited,
    mutated,
    paths,
    put,
    replace_by,
    slow_but,
    some_or,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import MIXED_SPEC, rehearse
from specs import FUZZ, unhashed
from town import PERSON_SPEC, SPEC, contents, ok, plan_town, renew, run, spent

from dpquery.exceptions import SpecError
from dpquery.releases.folder.noisy_files import (
    MeasurementLabel,
    read_measurements,
    values_digest,
    write_measurements,
)

QUESTIONS = "workload:\n  - {name: q, product: {age: identity, sex: identity}}\n"
READERS = (
    ("answer", "bad", "more.yaml", "--replace"),
    ("error-report", "bad", "--html", "page.html"),
    ("synthetic", "bad", "--rows", "20", "--out", "made.csv"),
    ("ledger", "verify", "--releases", "bad"),
    ("package", "bad", "--also", "csv", "--replace"),
)
PROXY = ("plan", "workload.yaml", "--proxy", "bad", "--out", "other.plan", "--time-limit", "0")
WRITTEN = ("answers/", "package/", "page.html", "made.csv", "other.plan", "state/", "bad/")
EVIL = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e'\"&"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released") / "town"
    plan_town(folder, MIXED_SPEC.replace("version: 1}", "version: 1, rows: about 50}"))
    rehearse(folder / "dpquery.plan")
    (folder / "more.yaml").write_text(QUESTIONS)
    (folder / "secret.parquet").write_bytes(b"outside")
    out = ("--plan", folder / "dpquery.plan", "--ledger", folder / "state" / "ledger.db")
    for name, mechanism in (("linear", "linear"), ("rap", "rap")):
        options = ("--epsilon", "1", "--mechanism", mechanism, "--out", folder / name)
        ok("release", folder / "data.csv", *options, *out)
    return folder


@pytest.fixture
def released(template, move_in):
    return move_in(template)


def fresh(kind):
    shutil.rmtree("bad", ignore_errors=True)
    shutil.copytree(kind, "bad")
    Path("made.csv").unlink(missing_ok=True)


def outside():
    files = contents(".")
    return {name: files[name] for name in files if not name.startswith(WRITTEN)}


def check_readers(commands=READERS):
    """Run what reads a release; whatever it holds, this and no more may come of it."""
    before, inside = outside(), contents("bad")
    for command in commands:
        done = run(*command)
        codes = (0, 2, 4) if command[0] == "ledger" else (0, 2, 5)
        assert done.code in codes, (command, done)
        assert done.code == 0 or done.err.startswith("dpquery: "), done
        assert "Traceback" not in done.err
        assert not set(done.out + done.err) & set("\x1b\x9b\u202e"), done
    assert outside() == before
    assert contents("bad") == inside


def resigned():
    """Name the plan of the folder in its manifest, so that what it holds is looked at."""
    path = Path("bad/release.json")
    facts = unhashed(path.read_text())
    facts["plan"] = hashlib.sha256(Path("bad/release.plan").read_bytes()).hexdigest()
    path.write_text(json.dumps(facts))


def change_manifest(draw):
    path = Path("bad/release.json")
    facts = mutated(unhashed(path.read_text()), draw)
    path.write_bytes(json.dumps(facts).encode("utf-8", "replace"))


def change_plan(draw):
    path = Path("bad/release.plan")
    below = draw.choice([("selections",), ("spec",), ("relaxed",), ()])
    plan = mutated(unhashed(path.read_text()), draw, below=below)
    path.write_bytes(json.dumps(plan).encode("utf-8", "replace"))
    resigned()


def change_table(draw):
    path = draw.choice(sorted(Path("bad").glob("*.parquet")))
    table = pq.read_table(path)
    k, rows = draw.randrange(table.num_columns), table.num_rows
    field, kind = table.schema.field(k), draw.randrange(8)
    others = {
        0: lambda: table.slice(0, max(0, rows - 1)),
        1: lambda: pa.concat_tables([table, table]),
        2: lambda: table.remove_column(k),
        3: lambda: table.set_column(k, field.name, pa.array([EVIL] * rows)),
        4: lambda: table.set_column(
            k, field.name, pa.array([draw.choice([np.nan, np.inf, -1e308, 1e308])] * rows)
        ),
        5: lambda: table.set_column(k, field.with_nullable(True), pa.nulls(rows, field.type)),
        6: lambda: table.replace_schema_metadata({"dpquery": json.dumps(draw.choice(WILD[:12]))}),
        7: lambda: table.set_column(k, field.name, pa.array([[1.0]] * rows)),
    }
    pq.write_table(others[kind](), path, compression=draw.choice(["snappy", "gzip", "zstd"]))


def change_bytes(draw):
    path = draw.choice(sorted(path for path in Path("bad").iterdir() if path.suffix != ".md"))
    path.write_bytes(damaged(path.read_bytes(), draw))
    if path.suffix == ".plan":
        resigned()


CHANGES = (change_manifest, change_plan, change_table, change_bytes)


@pytest.mark.nightly
@some_or(40, some=4)
@pytest.mark.parametrize("kind", ["linear", "rap"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_damaged_folder_is_read_or_refused(released, kind, change, examples, record_property):
    draw = chance(examples)
    for number in range(examples):
        fresh(kind)
        change(draw)
        check_readers([*READERS, *[PROXY] * (number % 16 == 15)])
    record_property("bad inputs", examples)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "rap"])
def test_every_fact_of_a_manifest_may_be_anything(released, kind, record_property):
    draw, tried = chance(3), 0
    fresh(kind)
    facts = unhashed(Path("bad/release.json").read_text())
    for place in paths(facts):
        for value in draw.sample(WILD, 2):
            other = json.dumps(put(facts, place, value)).encode("utf-8", "replace")
            Path("bad/release.json").write_bytes(other)
            check_readers(READERS[:2])
            tried += 1
    record_property("bad inputs", tried)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        "../secret.parquet",
        "/etc/passwd",
        "..",
        "",
        "a/b.parquet",
        "pairs.parquet\0",
        "errors.parquet",
    ],
)
def test_files_that_a_manifest_names_lie_in_its_folder(released, name):
    fresh("linear")
    facts = unhashed(Path("bad/release.json").read_text())
    facts["items"][0]["file"] = name
    Path("bad/release.json").write_text(json.dumps(facts))
    for command in READERS[:2]:
        done = run(*command)
        assert done.code == 2
        assert "release.json is damaged" in done.err


@pytest.mark.nightly(daily="pipe-release.plan|device-pairs|folder-errors|itself-release.json")
@pytest.mark.parametrize(
    "name", ["release.json", "release.plan", "pairs.parquet", "errors.parquet"]
)
@pytest.mark.parametrize("kind", NO_FILES)
def test_parts_of_a_release_that_are_no_files_are_refused_at_once(released, name, kind):
    fresh("linear")
    replace_by(Path("bad", name), kind)
    command = READERS[0] if name == "release.plan" else READERS[1]
    done = run(*command)
    assert done.code == 2, done
    assert "bad" in done.err
    if name == "release.json":
        assert run(*READERS[3]).code == 2


@pytest.mark.parametrize("figure", ["rmse", "max_error", "rmse_spread"])
def test_errors_of_a_rehearsal_are_never_negative(released, figure):
    fresh("rap")
    facts = unhashed(Path("bad/release.json").read_text())
    facts["rap"]["simulated"][figure] = -0.5
    Path("bad/release.json").write_text(json.dumps(facts))
    done = run("error-report", "bad")
    assert done.code == 2
    assert f"its rap.simulated.{figure} is none" in done.err


DRAWN = {"small", "circle", "rect", "path", "h4", "ul", "li", "details", "summary"}
"""What other pictures may be made of."""


class Page(HTMLParser):
    """Notes every element and every attribute that could run something."""

    def __init__(self):
        super().__init__()
        self.elements, self.dangerous = set(), []

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.dangerous += [key for key, _ in attrs if key.startswith(("on", "src"))]
        links = [value or "" for key, value in attrs if "href" in key]
        self.dangerous += [link for link in links if not harmless(link)]


def harmless(link):
    """Whether a link leads to a place on the page, or holds rows that no spreadsheet obeys."""
    rows = unquote(link.removeprefix("data:text/csv;charset=utf-8,"))
    cells = [cell for row in csv.reader(rows.splitlines()) for cell in row]
    held = rows != link and not set(rows) & set("\x1b\x9b\u202e")
    held &= not any(re.match(r"[=+@]|-[^0-9]", cell) for cell in cells)
    return held or re.fullmatch(r"#[a-z0-9_-]+", link) is not None


@pytest.mark.parametrize("kind", ["linear", "rap"])
def test_words_of_a_folder_are_never_markup_nor_commands(released, kind):
    fresh(kind)
    ok("error-report", "bad", "--html", "page.html")
    plain = Page()
    plain.feed(Path("page.html").read_text())
    facts = unhashed(Path("bad/release.json").read_text())
    for item in facts["items"]:
        item["description"] = EVIL
    facts["strategy"] |= {"name": EVIL, "kind": EVIL, "bound_kind": EVIL}
    facts["guarantee"]["cumulative"] = facts["postprocessing"] = facts["noise"]["source"] = EVIL
    if kind == "rap":
        facts["rap"]["simulated"]["proxy"] = EVIL
    Path("bad/release.json").write_text(json.dumps(facts))
    table = pq.read_table("bad/age_by_sex.parquet")
    k = table.schema.names.index("sex")
    written = table.set_column(k, "sex", pa.array([EVIL] * len(table)).dictionary_encode())
    pq.write_table(written.replace_schema_metadata(table.schema.metadata), "bad/age_by_sex.parquet")
    check_readers()
    page = Page()
    page.feed(Path("page.html").read_text())
    assert page.elements <= plain.elements | DRAWN
    assert page.dangerous == plain.dangerous == []
    assert not set(Path("page.html").read_text()) & set("\x1b\x9b\u202e")
    if Path("answers/statement.md").exists():
        assert not set(Path("answers/statement.md").read_text()) & set("<\x1b\x9b\u202e")


def bomb_values(kind):
    schema = pq.read_schema(f"{kind}/measurements.parquet")
    table = pq.read_table(f"{kind}/measurements.parquet").slice(0, 1)
    many = pa.concat_tables([table] * 1000).combine_chunks()
    with pq.ParquetWriter("bad/measurements.parquet", schema) as writer:
        for _ in range(200):
            writer.write_table(many)


def bomb_relaxed(kind):
    names = pq.read_schema("rap/relaxed_rows.parquet").names
    schema = pa.schema([pa.field(name, pa.float32(), nullable=False) for name in names])
    zeros = pa.array(np.zeros(1 << 21), pa.float32())
    table = pa.Table.from_arrays([zeros] * len(names), schema=schema)
    pq.write_table(table, "bad/relaxed_rows.parquet", compression="zstd")


def bomb_texts(kind):
    """Relaxed rows of texts: a dictionary of one long text, used a million times."""
    names = pq.read_schema("rap/relaxed_rows.parquet").names
    array = pa.DictionaryArray.from_arrays(
        np.zeros(1 << 20, dtype=np.int32), pa.array(["x" * 10**6])
    )
    pq.write_table(pa.table(dict.fromkeys(names, array)), "bad/relaxed_rows.parquet")


def bomb_labels(kind):
    """An item whose every label is ten million letters, packed to nothing."""
    table = pq.read_table("bad/age_by_sex.parquet")
    array = pa.DictionaryArray.from_arrays(
        np.zeros(len(table), dtype=np.int32), pa.array(["x" * 10**8])
    )
    k = table.schema.names.index("sex")
    other = table.set_column(k, "sex", array).replace_schema_metadata(table.schema.metadata)
    pq.write_table(other, "bad/age_by_sex.parquet", compression="zstd", compression_level=19)


def bomb_items(kind):
    """errors.parquet whose names of items are one text of a hundred megabytes."""
    table = pq.read_table("bad/errors.parquet")
    array = pa.array(["x" * 10**8] * len(table))
    pq.write_table(
        table.set_column(0, table.schema.field(0), array).cast(table.schema),
        "bad/errors.parquet",
        compression="zstd",
        use_dictionary=True,
    )


BOMBS = {
    "values without end": ("linear", bomb_values, READERS[0]),
    "relaxed rows without end": ("rap", bomb_relaxed, READERS[2]),
    "relaxed rows of texts": ("rap", bomb_texts, READERS[2]),
    "labels without end": ("linear", bomb_labels, READERS[1]),
    "names without end": ("linear", bomb_items, READERS[1]),
}


@pytest.mark.parametrize("bomb", slow_but(BOMBS))
def test_a_small_file_that_unfolds_to_gigabytes_is_refused_in_bounds(released, bomb):
    kind, make, command = BOMBS[bomb]
    fresh(kind)
    make(kind)
    assert sum(path.stat().st_size for path in Path("bad").iterdir()) < 1 << 23
    done = limited(*command)
    assert (done.code, done.out) == (2, ""), done
    assert "bad" in done.err


def test_rows_that_are_claimed_and_not_there_are_refused(released):
    fresh("linear")
    facts = unhashed(Path("bad/release.json").read_text())
    facts["items"][0]["queries"] = 1 << 40
    Path("bad/release.json").write_text(json.dumps(facts))
    done = run(*READERS[1])
    assert done.code == 2
    assert "damaged" in done.err


@pytest.mark.parametrize("scale", [0, 1])
def test_values_that_cannot_be_noise_are_refused_before_they_unfold(tmp_path, scale):
    """Noise of the least scale there is takes two bits a value; values all alike take none."""
    noise = np.random.default_rng(0).laplace(0.0, max(scale, 1), 1 << 18)
    values = np.rint(scale * noise).astype(np.int64)
    groups = (MeasurementLabel("age", 1, len(values)),)
    path = tmp_path / "m.parquet"
    write_measurements(path, values, groups, metadata={})
    if scale:
        assert np.array_equal(read_measurements(path, groups, digest=values_digest(values)), values)
    else:
        assert path.stat().st_size < len(values) // 8
        with (
            pytest.raises(SpecError, match="damaged"),
            mock.patch.object(pq.ParquetFile, "iter_batches", side_effect=AssertionError),
        ):
            read_measurements(path, groups, digest=values_digest(values))


def test_figures_too_small_to_be_drawn_and_numbers_that_are_missing_are_refused(released):
    """Both were internal errors once."""
    fresh("linear")
    facts = unhashed(Path("bad/release.json").read_text())
    facts["error_by_epsilon"][0][1] = 5e-324
    Path("bad/release.json").write_text(json.dumps(facts))
    assert run(*READERS[1]).code == 2
    for kind, column, value in (("rap", 1, None), ("linear", 2, 5e-324)):
        fresh(kind)
        table = pq.read_table("bad/errors.parquet")
        array = pa.array([value] * len(table), table.schema.field(column).type)
        pq.write_table(
            table.set_column(column, table.schema.field(column), array), "bad/errors.parquet"
        )
        done = run(*READERS[1])
        assert done.code == 2
        assert "damaged" in done.err


# Any bytes as the data: released, or refused for their header, in known words.

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
    r"|if the first line is a record or a title, [^;]*; else "
    r"(`privacy: unit: person` names 'name': change it there, or in the file)?(; )?"
    r"(rename columns in the file, or set `column:` in the spec)?"
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
    st.integers(0, 2**16), st.integers(0, 9), st.sampled_from(TOKENS) | st.binary(max_size=6)
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
def of_town(tmp_path_factory):
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
def data_tried(of_town, tmp_path, monkeypatch):
    """Return the function that releases any bytes, checks what is left, and tells the exit code."""
    folder = tmp_path / "town"
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
    monkeypatch.chdir(tmp_path)  # where to come back to
    towns = itertools.cycle(["rows", "persons"])

    def of(content):
        renew(folder, of_town / next(towns))
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


def fuzz(data_tried, files, record_property, *, examples, code=None):
    """Try files of a kind, which all end in a code, if there is one; record how many."""
    codes = []

    @settings(FUZZ, max_examples=examples)
    @given(content=files)
    def any_bytes(content):
        codes.append(data_tried(content))
        assert code in (None, codes[-1])

    any_bytes()
    record_property("bad inputs", len(codes))
    return set(codes)


@some_or(150, some=10)
def test_any_header_is_read_or_refused_without_being_shown(data_tried, examples, record_property):
    assert fuzz(data_tried, HEADERS, record_property, examples=examples) == {0, 6}


@some_or(150, some=12)
def test_no_bytes_below_a_good_header_make_a_release_fail(data_tried, examples, record_property):
    fuzz(data_tried, BODIES, record_property, examples=examples, code=0)
