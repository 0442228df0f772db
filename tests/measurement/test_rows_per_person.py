"""How many rows persons have, as an item of the workload: one cell a row, one number a person."""

import csv
import itertools
import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data import (
    FUZZ,
    HEADER,
    NICE,
    TYPED,
    WHITE,
    attributes,
    cases,
    run,
    single,
    slow_code,
    slow_record,
    spec_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from town import ANY_PLAN, ok, refused
from town import run as command

from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting import tally as tallying
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.measurement.noise.exact_noise import draw
from dpquery.operators.compile import compile_spec
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.columns import Integers, person_rows
from dpquery.spec.parsing.read import parse
from dpquery.spec.predicates import GroupSet, IdentitySet
from dpquery.strategy.search.select import select

NUMBERS = 4  # the place of the number of rows in the domains below
SUBSETS = [s for r in range(6) for s in itertools.combinations(range(5), r)]
BY_PERSON = st.lists(
    st.tuples(st.sampled_from([b" p\t", *b"p q r s".split(), b"long " * 9, b"", b" "]), NICE),
    min_size=10,
    max_size=25,
)


def domain_of(other, most):
    return (*attributes(other=other), person_rows(most))


def kept_cells(body, spec):
    """The cells of the first rows of each person, person by person, as the page says."""
    names = next(csv.reader(["id," + HEADER.decode()]))
    rows_of = {}
    for line in body.split(b"\n"):
        row = slow_record(line, len(names)) if line not in (b"", b"\r") else None
        if row is None:
            continue
        fields = dict(zip(names, row, strict=True))
        cell = []
        for attribute in spec.domain.in_data:
            codes = [slow_code(c, fields[c.name]) for c in attribute.columns]
            sizes = [c.size for c in attribute.columns]
            cell.append(-1 if min(codes) < 0 else int(np.ravel_multi_index(codes, sizes)))
        person = fields["id"].strip(WHITE)
        if person and min(cell) >= 0:
            rows_of.setdefault(person, []).append(tuple(cell))
    most = spec.domain.attributes[NUMBERS].size - 2
    cells = {}
    for person, rows in rows_of.items():
        numbers = [min(len(rows), most + 1) - 1, *[most + 1] * (len(rows) - 1)]
        pairs = zip(rows, numbers, strict=True)
        cells[person] = [(*row, number) for row, number in pairs][: spec.privacy.max_rows]
    return cells


def tables_of(cells, spec, subsets=SUBSETS):
    tables = {s: np.zeros([spec.domain.shape[i] for i in s], np.int64) for s in subsets}
    for cell in itertools.chain.from_iterable(cells.values()):
        for subset in subsets:
            tables[subset][tuple(cell[i] for i in subset)] += 1
    return tables


@settings(FUZZ, max_examples=60)
@given(
    rows=BY_PERSON,
    max_rows=st.integers(1, 3),
    most=st.integers(1, 6),
    chunk=st.integers(30, 400),
    memory=st.integers(7, 60).map(lambda rows: 40 * rows),
    other=st.sampled_from(("count", "show", "drop")),
)
def test_one_row_of_each_person_says_how_many_there_are(
    tmp_path, rows, max_rows, most, chunk, memory, other
):
    """The first rows as the twin says; with any rows the numbers are the same."""
    body = b"\n".join(b",".join(row) for row in rows)

    def counted(keep):
        spec = spec_of(*domain_of(other, most), person="id", max_rows=max_rows, keep=keep)
        options = {"header": b"id," + HEADER, "subsets": SUBSETS, "chunk_bytes": chunk}
        return run(tmp_path / "f.csv", body, spec=spec, memory=memory, **options), spec

    tables, spec = counted("first")
    expected = tables_of(kept_cells(body, spec), spec)
    for subset, counts in expected.items():
        np.testing.assert_array_equal(tables[subset], counts, err_msg=str(subset))
    tables, _ = counted("random")
    np.testing.assert_array_equal(tables[NUMBERS,], expected[NUMBERS,])
    joint = tables[tuple(range(5))]
    for subset, counts in tables.items():  # the tables are those of one and the same rows
        axes = tuple(i for i in range(5) if i not in subset)
        np.testing.assert_array_equal(counts, joint.sum(axis=axes))


@pytest.mark.statistical
def test_any_row_of_a_person_has_the_number(tmp_path):
    """10,000 persons of four rows, of which two count: of each year a quarter of the numbers."""
    domain = single("year", Integers(1, 4)), person_rows(5)
    spec = spec_of(*domain, person="id", max_rows=2)
    body = b"".join(b"%d,%d\n" % (k, year) for year in (1, 2, 3, 4) for k in range(10_000))
    table = run(tmp_path / "f.csv", body, spec=spec, header=b"id,year", subsets=[(0, 1)])[0, 1]
    assert table[:, 3].sum() == 10_000
    assert table[:, -1].sum() == 10_000
    assert table.sum() == 20_000
    assert (np.abs(table[:, 3] - 2500) < 6 * math.sqrt(10_000 * 3 / 16)).all()
    assert (np.abs(table[:, -1] - 2500) < 6 * math.sqrt(10_000 * 3 / 16)).all()


@pytest.mark.parametrize("name", cases(TYPED))
def test_every_source_gives_the_same_numbers(tmp_path, name):
    persons = [k for k in range(40) for _ in range(k % 7)]
    years = [row % 9 for row in range(len(persons))]  # 8 lies outside
    table = pa.table({"id": pa.array(persons, pa.int64()), "year": pa.array(years, pa.int64())})
    place = TYPED[name](table, tmp_path / name)
    domain = single("year", Integers(0, 7)), person_rows(4)
    spec = spec_of(*domain, person="id", max_rows=2)
    check_header(place, spec)
    counts = Counter(k for k, year in zip(persons, years, strict=True) if year < 8)
    of_number = Counter(min(number, 5) for number in counts.values())
    kept = sum(min(number, 2) for number in counts.values())
    expected = [*(of_number[k] for k in range(1, 6)), kept - len(counts)]
    assert tabulate(place, spec=spec, subsets=[(1,)])[1,].tolist() == expected


# The spec.

HEAD = """\
dataset: {id: panel}
privacy: {unit: {person: nr, max_rows: 3}, delta: 1e-6}
budget: {epsilon: 9, delta: 1e-6}
domain: {year: {range: [1980, 1987]}, married: boolean}
workload:
"""
ITEMS = """\
  - {name: years, product: {year: identity}}
  - {name: rows, rows_per_person: {up_to: 10}, weight: 2, description: Rows of persons}
  - {name: few, rows_per_person: {up_to: 3}, where: {married: yes}}
  - {name: both, union: [{product: {}}, {rows_per_person: {up_to: 1}}]}
"""


def test_items_share_one_attribute_behind_the_declared_ones():
    spec = parse(HEAD + ITEMS, name="w.yaml", files={})
    attribute = spec.domain.attributes[2]
    assert attribute == person_rows(10)
    assert [attribute.label(code) for code in (0, 9, 10)] == ["1", "10", "more"]
    assert attribute.size == 12
    assert [a.name for a in spec.domain.in_data] == ["year", "married"]
    assert spec.items[1].tables[0].axes == ((2, IdentitySet.of(attribute)),)
    few = GroupSet(12, (("1", (0,)), ("2", (1,)), ("3", (2,)), ("more", tuple(range(3, 11)))))
    assert spec.items[2].tables[0].axes == ((2, few),)
    assert [table.size for table in spec.items[3].tables] == [1, 2]
    assert len(parse(HEAD + ITEMS.split("\n")[0], name="w.yaml", files={}).domain.attributes) == 2
    marginals = "  - {name: all, marginals: {ways: 2}}\n"
    assert len(parse(HEAD + marginals + ITEMS, name="w.yaml", files={}).items[0].tables) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{person: nr, max_rows: 3}", "row", "7:35: the unit is row, so that it is not known"),
        (
            "domain: {year",
            "domain: {rows_per_person_to: boolean, year",
            "4:10: 'rows_per_person_to' is the name of a column that the release adds",
        ),
        ("{up_to: 10}", "{up_to: 0}", "7:43: up_to is 0; expected 1 to 10,000 rows of one person"),
        ("{up_to: 10}", "20", "7:35: expected rows_per_person, a mapping with keys among up_to"),
        ("{up_to: 10}", "{}", "7:35: rows_per_person needs the key 'up_to'; add it"),
        ("{year: identity}", "{rows_per_person: identity}", "6:29: unknown attribute 'rows_per_p"),
    ],
)
def test_mistakes_are_named_at_their_places(old, new, message):
    with pytest.raises(SpecError) as caught:
        parse((HEAD + ITEMS).replace(old, new, 1), name="w.yaml", files={})
    lines = str(caught.value).split("\n")
    assert any(line.startswith(f"w.yaml:{message}") for line in lines), lines


# Beginning to end.


def panel(path, persons=545, years=8):
    """A panel of so many rows each, sorted by year."""
    lines = [f"{k},{1980 + y},{(k + y) % 2}\n" for y in range(years) for k in range(persons)]
    path.write_text("nr,year,married\n" + "".join(lines))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of one's own with a panel, a spec and a ledger; the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    panel(tmp_path / "panel.csv")
    (tmp_path / "workload.yaml").write_text(HEAD + ITEMS)
    return tmp_path


@pytest.mark.nightly
def test_a_panel_is_planned_released_answered_and_checked(folder):
    plan = ok("plan", "workload.yaml", "--epsilon", "4", "--why")
    assert "rows_per_person tells up to 10 rows of a person apart, and more" in plan.out
    ok("release", "panel.csv", "--epsilon", "4", "--also", "consistent", "--also", "integer")
    rows = pq.read_table("release/rows.parquet")
    kinds = [rows.schema.field(i).type for i in range(3)]
    assert kinds == [pa.dictionary(pa.int32(), pa.string()), pa.int64(), pa.int64()]
    numbers = [*range(1, 11), None]
    assert rows["rows_per_person"].to_pylist() == [*map(str, range(1, 11)), "more"]
    assert rows["rows_per_person_from"].to_pylist() == numbers
    assert rows["rows_per_person_to"].to_pylist() == numbers
    estimate, error = rows["estimate"].to_numpy(), rows["std_error"].to_numpy()
    truth = np.where(np.arange(11) == 7, 545, 0)
    assert (np.abs(estimate - truth) < 7 * error).all()
    assert rows["consistent"].to_numpy().min() >= 0
    statement = Path("release/statement.md").read_text()
    assert "counts persons by the number of their rows, those beyond that limit incl" in statement
    assert json.loads(Path("release/release.json").read_text())["counted"]["rows"] == 10
    assert "rows.parquet" in ok("error-report", "release", "--json").out + statement
    again = ok("release", "panel.csv", "--epsilon", "4", "--out", "again")
    assert "nothing was charged" in again.err

    Path("later.yaml").write_text("workload: [{name: four, rows_per_person: {up_to: 4}}]")
    ok("answer", "release", "later.yaml")
    four = pq.read_table("answers/four.parquet")
    assert four["rows_per_person"].to_pylist() == ["1", "2", "3", "4", "more"]
    expected = [*estimate[:4], estimate[4:].sum()]
    np.testing.assert_allclose(four["estimate"].to_numpy(), expected, atol=1e-6)
    Path("later.yaml").write_text("workload: [{name: four, rows_per_person: {up_to: 40}}]")
    assert "tells up to 10 rows of a person apart, not 40" in refused(
        "answer", "release", "later.yaml", "--out", "more", code=2
    )
    checked = command("check", "panel.csv", "workload.yaml", "--to-pipe").out
    assert "545 persons, 4,360 rows" in checked
    assert "rows_per_person" not in checked


def test_a_release_that_did_not_count_them_says_so(folder):
    Path("workload.yaml").write_text(HEAD + ITEMS.split("\n")[0])
    ok(*ANY_PLAN, "workload.yaml")
    ok("release", "panel.csv", "--epsilon", "1")
    Path("later.yaml").write_text("workload: [{name: rows, rows_per_person: {up_to: 4}}]")
    message = refused("answer", "release", "later.yaml", code=2)
    assert "1:42: the release has not counted the rows of persons" in message


def test_the_memory_that_is_named_is_that_of_the_count(folder, monkeypatch):
    Path("workload.yaml").write_text(HEAD + ITEMS.split("\n")[1])
    ok("plan", "workload.yaml", "--time-limit", "1")
    release = ("release", "panel.csv", "--epsilon", "1")
    for amount in ("4 potatoes", "-1GB", "15MB", "17TB", "1e9", "4GB8"):
        message = refused(*release, "--memory", amount, code=2)
        assert f"memory is {amount!r}; expected an amount such as 4GB, 500MB or 2GiB" in message
    limits = []

    class Watched(tallying.KeptRows):
        def __init__(self, *, limit, **options):
            limits.append(limit)
            super().__init__(limit=limit, **options)

    monkeypatch.setattr(tallying, "KeptRows", Watched)
    ok(*release, "--memory", "32 MiB")
    assert limits == [32 * 2**20]
    assert "nothing was charged" in ok(*release, "--memory", "1.5GB", "--out", "again").err
    ok(*release, "--release-number", "2", "--out", "two")
    assert limits == [32 * 2**20, 2**30]


def test_memory_is_refused_where_no_rows_of_persons_are_held(folder):
    spec = (HEAD + ITEMS.split("\n")[0]).replace("{person: nr, max_rows: 3}", "row")
    Path("workload.yaml").write_text(spec)
    ok("plan", "workload.yaml", "--time-limit", "1")
    message = refused("release", "panel.csv", "--epsilon", "1", "--memory", "4GB", code=2)
    assert "the unit is row, so that no rows of persons are held; leave the memory out" in message


@pytest.mark.nightly
def test_synthetic_records_leave_the_number_out(folder):
    text = (HEAD + ITEMS).replace("{id: panel}", "{id: panel, rows: about 1600}")
    Path("workload.yaml").write_text(text)
    ok("plan", "workload.yaml", "--mechanism", "rap", "--epsilon", "4", "--time-limit", "5")
    ok("release", "panel.csv", "--epsilon", "4")
    estimate = pq.read_table("release/rows.parquet")["estimate"].to_numpy()
    assert int(np.argmax(estimate)) == 7
    ok("synthetic", "release", "--rows", "200")
    lines = Path("synthetic.csv").read_text().splitlines()
    assert lines[0] == "year,married,nr"
    assert len(lines) == 201
    assert len({line.split(",")[2] for line in lines[1:]}) == 200


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["laplace", pytest.param("gaussian", marks=pytest.mark.slow)])
def test_the_numbers_err_by_what_is_predicted(tmp_path, noise):
    """By the best strategy, with the data read again each time, as a release reads it."""
    panel(tmp_path / "panel.csv", persons=60)
    spec = parse(HEAD + ITEMS, name="w.yaml", files={})
    compiled = compile_spec(spec)
    strategy = select(compiled.workload, noises=[noise])[noise].best.proposal.strategy
    budget = guarantee(noise, epsilon=Fraction(1), delta=Fraction(1, 10**6))
    mechanism = calibrated_noise(strategy, privacy=spec.privacy, guarantee=budget)
    (number,) = compiled.items[1]
    block = compiled.workload.blocks[number]
    stated = standard_errors(strategy, block, position=number, noise_std=mechanism.noise_std)
    predicted = float(np.sqrt(np.mean(stated**2)))
    truth = np.where(np.arange(11) == 7, 60, 0)
    subsets = [measured.block.attributes for measured in strategy.measurements]
    squares = []
    for _ in range(200):
        tables = tabulate(
            tmp_path / "panel.csv", spec=spec, subsets=subsets, classes=compiled.classes
        )
        exact = [
            exact_answers(measured, tables[measured.block.attributes], shift=mechanism.shift)
            for measured in strategy.measurements
        ]
        noisy = draw(
            np.concatenate(exact),
            budget=mechanism.guarantee,
            sensitivity=mechanism.sensitivity,
            scale=mechanism.scale,
        )
        ends = np.cumsum([len(answers) for answers in exact])[:-1]
        values = np.split(noisy * 2.0**mechanism.shift, ends)
        error = reconstruct(strategy, values).answer(block, number).ravel() - truth
        squares.append(float(np.mean(error**2)))
    spread = np.std(squares) / math.sqrt(len(squares))
    assert abs(np.mean(squares) - predicted**2) <= 5 * spread
    assert spread < 0.12 * predicted**2  # so that an error of a factor would show
