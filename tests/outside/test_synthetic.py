"""Synthetic records lie in the declared domain and say what the relaxed rows say."""

import csv
import io
import json
import math
from datetime import date
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rounds import MIXED_SPEC, rehearse, relaxed_of
from specs import unhashed
from town import contents, ok, plan_town, refused, renew

from dpquery.exceptions import SpecError
from dpquery.measurement.counting.column_codes import code_of
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.operators.blocks import marginal
from dpquery.operators.compile import compile_spec
from dpquery.public_chance import PublicChance
from dpquery.reconstruction.relaxed.rows import RelaxedRows
from dpquery.releases.folder import synthetic
from dpquery.releases.folder.synthetic import code_texts, rounded_records, write_synthetic
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import (
    Attribute,
    Bins,
    Boolean,
    Categorical,
    Column,
    Dates,
    Domain,
    Integers,
)
from dpquery.spec.parsing.read import parse
from dpquery.spec.predicates import GroupSet, IdentitySet
from dpquery.spec.spec import Budget, Dataset, Item, Privacy, Spec, Table

AWKWARD = Categorical(("", "a,b", 'say "x"', "é ü", "0", "other"), tuple("uvwxyz"))
KINDS = {
    "listed": Column("c", AWKWARD),
    "listed, other": Column("c", AWKWARD, other="show"),
    "all of ours are taken": Column(
        "c", Categorical(synthetic._OTHER[:-1], tuple("abcde")), "show"
    ),
    "integers": Column("c", Integers(-12, 7)),
    "integers, other": Column("c", Integers(10**17, 10**17 + 3), other="show"),
    "bins": Column("c", Bins((-1e300, -0.5, 0.0, 1e-300, 0.1, 0.3, 1e15, 1.7e308)), other="show"),
    "bins of one float": Column("c", Bins((1.0, math.nextafter(1.0, 2.0), 2.0))),
    "several texts": Column("c", Categorical(("1", ""), ("x", "none"), (("J",), ("NA", "iap")))),
    "days": Column(
        "c", Dates(date(2012, 2, 27), date(2013, 3, 1), "day", DateFormat()), other="show"
    ),
    "cut weeks": Column(
        "c", Dates(date(2012, 2, 29), date(2013, 1, 1), "week", DateFormat("%d%b%y"))
    ),
    "years": Column("c", Dates(date(1, 1, 1), date(9999, 12, 31), "year", DateFormat("%Y %I %p"))),
    "boolean": Column("c", Boolean(), other="show"),
    "boolean, own words": Column("c", Boolean(("ja", "oui"), ("nein",))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_code_has_a_text_that_reads_back_as_it(kind):
    column = KINDS[kind]
    for mark in (".", ","):
        read = code_of(column, mark)
        assert [read(text.encode()) for text in code_texts(column, mark)] == [*range(column.size)]


def test_a_value_that_no_line_can_hold_is_refused_by_its_label():
    column = Column("c", Categorical(("a", "b\nc"), ("a", "the second")))
    with pytest.raises(SpecError, match="'the second' in column 'c'"):
        code_texts(column)


DOMAIN = Domain(
    (
        Attribute("age", (Column("age", Integers(0, 9), "drop"),)),
        Attribute("word", (Column("the word", AWKWARD, "drop"),)),
        Attribute("income", (Column("income", Bins((0.0, 10.0, 20.5, 50.0)), other="show"),)),
        Attribute(
            "home", (Column("owns", Boolean(), "drop"), Column("rooms", Integers(1, 3), "drop"))
        ),
        Attribute("unasked", (Column("unasked", Integers(1, 7), "drop"),)),
    )
)
AGES = GroupSet(10, (("teens", (3, 4, 5)), ("ends", (0, 1, 9))))
ITEM = Item(
    "asked",
    (
        Table(((0, AGES), (1, IdentitySet(6)))),
        Table(((2, IdentitySet(4)), (3, GroupSet(6, (("own", (3, 4, 5)),))))),
    ),
)


def spec(**privacy):
    return Spec(Dataset("people"), Privacy(**privacy), Budget(Fraction(1)), DOMAIN, (ITEM,))


def relaxed(count=40, seed=0):
    """Sparse rows: what the attributes say of each other is strong."""
    rng = np.random.default_rng(seed)
    shape = compile_spec(spec()).workload.shape_of_domain
    values = [rng.dirichlet(np.full(n, 0.15), size=count) for n in shape]
    values = [np.where(value < 0.01, 0, value) for value in values]
    values = [value / value.sum(axis=1, keepdims=True) for value in values]
    return RelaxedRows(shape, np.concatenate(values, axis=1).astype(np.float32))


def written(path, *, rows=None, records=5000, seed=0, parsed=None):
    parsed = spec() if parsed is None else parsed
    rows = relaxed() if rows is None else rows
    compiled = compile_spec(parsed)
    write_synthetic(path, parsed, compiled, rows, records=records, seed=seed)
    return path


def counted(path, parsed, subsets):
    return tabulate(path, spec=parsed, subsets=subsets, classes=compile_spec(parsed).classes)


def distances(path, rows, records):
    """For every pair of attributes Pearson's chi-square over its degrees of freedom."""
    shape = rows.shape
    pairs = [pair for pair in combinations(range(len(shape)), 2) if min(shape[i] for i in pair) > 1]
    counts = counted(path, spec(), pairs)
    for pair in pairs:
        expected = records * rows.answer(marginal(shape, pair)).astype(float)
        likely = expected > 5
        freedom = max(1, int(likely.sum()) - 1)
        yield float(((counts[pair] - expected)[likely] ** 2 / expected[likely]).sum()) / freedom


def test_records_read_by_our_own_reader_have_the_answers_of_the_relaxed_rows(tmp_path):
    rows, records = relaxed(), 5000
    path = written(tmp_path / "s.csv", rows=rows, records=records)
    assert counted(path, spec(), [()])[()] == records  # every record is inside the domain
    for i, size in enumerate(rows.shape):
        counts = counted(path, spec(), [(i,)])[(i,)]
        expected = records * rows.distribution(i).mean(axis=0)
        assert counts.shape == (size,)
        assert np.abs(counts - expected).max() <= len(rows.values)  # one record a relaxed row
    assert max(distances(path, rows, records)) < 2


def test_one_relaxed_row_gives_its_distributions_to_within_a_record():
    rows = RelaxedRows((3, 2), np.array([[0.25, 0.0, 0.75, 0.4, 0.6]], dtype=np.float32))
    classes = (np.arange(3), np.arange(2))
    for records in (1, 7, 1000):
        codes = rounded_records(rows, classes, records=records, chance=PublicChance(0, 0))
        for drawn, shares in zip(codes, ([0.25, 0, 0.75], [0.4, 0.6]), strict=True):
            counts = np.bincount(drawn, minlength=len(shares))
            assert np.abs(counts - records * np.array(shares)).max() < 1 + 1e-4
            assert counts[np.array(shares) == 0].sum() == 0


@pytest.mark.parametrize("records", [1, 39, 40, 41, 1000])
def test_relaxed_rows_give_equal_numbers_of_records(records):
    values = np.eye(40, dtype=np.float32)
    (codes,) = rounded_records(
        RelaxedRows((40,), values), (np.arange(40),), records=records, chance=PublicChance(3, 0)
    )
    given = np.bincount(codes, minlength=40)
    assert given.sum() == records
    assert given.max() - given.min() <= 1


def test_codes_of_one_class_share_its_records(tmp_path):
    path = written(tmp_path / "s.csv", records=20_000)
    counted = tabulate(path, spec=spec(), subsets=[(0,), (4,)])
    ages, unasked = counted[(0,)], counted[(4,)]
    for members in ([0, 1, 9], [3, 4, 5], [2, 6, 7, 8]):
        even = ages[members].mean()
        assert np.abs(ages[members] - even).max() < 5 * np.sqrt(even)
    assert np.abs(unasked - 20_000 / 7).max() < 5 * np.sqrt(20_000 / 7)


def test_the_order_of_records_says_nothing(tmp_path):
    path = written(tmp_path / "s.csv", records=4000)
    lines = path.read_text().splitlines()
    half = tmp_path / "half.csv"
    half.write_text("\n".join(lines[:2001]) + "\n")
    assert max(distances(half, relaxed(), 2000)) < 2.5


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path):
    first = written(tmp_path / "a.csv").read_bytes()
    assert written(tmp_path / "b.csv").read_bytes() == first
    assert written(tmp_path / "c.csv", seed=1).read_bytes() != first


def test_the_rounding_is_the_same_on_every_machine():
    chance = PublicChance(5, 2)
    assert chance.bits("rows", 2).tolist() == [14204234529567778019, 9116448555546078170]
    assert chance.uniform("rows", 2).tolist() == [
        bits / 2**64 for bits in (14204234529567776768, 9116448555546077184)
    ]


def test_batches_are_made_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "BATCH", 700)
    path = written(tmp_path / "s.csv")
    assert counted(path, spec(), [()])[()] == 5000
    assert max(distances(path, relaxed(), 5000)) < 2


def test_every_record_has_a_person_of_its_own(tmp_path):
    parsed = spec(person="who", max_rows=1)
    path = written(tmp_path / "s.csv", parsed=parsed, records=500)
    assert counted(path, parsed, [()])[()] == 500
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len({row["who"] for row in rows}) == 500


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released") / "town"
    plan_town(folder, MIXED_SPEC)
    rehearse(folder / "dpquery.plan")
    ledger = ("--ledger", folder / "state" / "ledger.db")
    command = ("release", folder / "data.csv", "--epsilon", "1", "--plan", folder / "dpquery.plan")
    ok(*command, "--out", folder / "release", *ledger)
    for name in ("data.csv", "dpquery.plan", "workload.yaml"):
        (folder / name).unlink()
    return folder


@pytest.fixture
def released(template, tmp_path, monkeypatch):
    """A folder with a release alone: no data, no plan, no ledger that is named."""
    renew(tmp_path / "town", template)
    monkeypatch.chdir(tmp_path / "town")
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "no ledger"))
    return tmp_path / "town"


def test_synthetic_records_take_the_release_alone(released):
    before = contents("release")
    done = ok("synthetic", "--rows", "2000")
    middles = ", in bins by their middles" * ("bins:" in MIXED_SPEC)
    assert done.out == f"synthetic.csv: 2,000 synthetic records{middles}\n"
    assert "nothing was charged" in done.err
    assert contents("release") == before
    parsed = parse(MIXED_SPEC, name="workload.yaml", files={})
    compiled = compile_spec(parsed)
    rows = relaxed_of(Path("release"), compiled)
    counts = counted(Path("synthetic.csv"), parsed, [(), (0,), (1, 2)])
    assert counts[()] == 2000
    for subset in ((0,), (1, 2)):
        expected = 2000 * rows.answer(marginal(rows.shape, subset))
        assert np.abs(counts[subset] - expected).max() < 5 * np.sqrt(2000 / counts[subset].size)


def test_a_linear_release_has_no_records_to_make(released_town):
    assert "--mechanism rap" in refused("synthetic", code=2)


def test_answers_to_later_questions_are_not_what_records_are_made_of(released):
    Path("more.yaml").write_text("workload:\n  - {name: sexes, product: {sex: identity}}\n")
    ok("answer", "release", "more.yaml")
    assert "name the release itself" in refused("synthetic", "answers", code=2)


@pytest.mark.parametrize("name", ["release.plan", "relaxed_rows.parquet", "release.json"])
def test_a_damaged_release_is_refused_with_the_remedy(released, name):
    path = Path("release") / name
    path.write_bytes(path.read_bytes()[:-20])
    assert "`dpquery release` again" in refused("synthetic", code=2)


def test_records_without_end_are_written_only_when_asked_for(released):
    path = Path("release/release.json")
    raw = unhashed(path.read_text())
    raw["rap"]["total"] = 1e99
    path.write_text(json.dumps(raw))
    assert "say how many to write with --rows" in refused("synthetic", code=2)
    ok("synthetic", "--rows", "7")


@pytest.mark.parametrize("out", ["release/release.json", "link/records.csv"])
def test_the_release_is_not_changed(released, out):
    Path("link").symlink_to("release")
    message = refused("synthetic", "--out", out, code=5)
    assert "lies in release, a release, which is not changed" in message


def test_relaxed_rows_of_another_release_are_refused(released):
    path, facts = Path("release/relaxed_rows.parquet"), Path("release/release.json")
    Path("more.yaml").write_text("workload:\n  - {name: sexes, product: {sex: identity}}\n")
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    readers = (
        ("synthetic",),
        ("answer", "release", "more.yaml"),
        ("plan", "workload.yaml", "--proxy", "release"),
    )
    Path("workload.yaml").write_text(
        MIXED_SPEC.replace("version: 1}", "version: 1, rows: about 9}\nprefer: closest")
    )
    for command in readers:
        assert "damaged, or not of this release" in refused(*command, code=2)
    old = unhashed(facts.read_text())
    del old["rap"]["rows_sha256"]
    facts.write_text(json.dumps(old))
    for command in readers:
        assert "made by an older dpquery" in refused(*command, code=2)
