"""Of each person max_rows rows stay, and how many persons have is an item of the workload."""

import inspect
import itertools
import json
import math
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dense import chi_square
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import (
    FUZZ,
    HEADER,
    NICE,
    WHITE,
    assert_equal,
    attributes,
    run,
    single,
    slow_counts,
    spec_of,
)
from town import ok, refused
from town import run as command

from dpquery.exceptions import SpecError
from dpquery.measurement.counting import persons as module
from dpquery.measurement.counting import tally as tallying
from dpquery.measurement.counting.persons import KeptRows, PersonKeys, _sorted, person_names
from dpquery.spec.columns import Integers, person_rows
from dpquery.spec.parsing.read import parse
from dpquery.spec.predicates import GroupSet, IdentitySet

STRICT = 1e-9
RNG = np.random.default_rng(8)
SHORT = st.binary(max_size=4) | st.sampled_from([b"a", b" a", b"a\t", b"\x0ba\x0c", b"", b"  "])
LONG = st.tuples(st.sampled_from([b"x" * 11, b"x" * 12, b"y" * 30]), SHORT).map(b"".join)
IDS = st.lists(SHORT | LONG, max_size=40)


def keys_of(ids, keys=None):
    """The keys of ids as tuples, None where one is blank."""
    words, ok = (keys or PersonKeys()).of(person_names(pa.array(ids, pa.binary()), "."))
    assert words.shape == (2, len(ids))
    return [tuple(key) if own else None for key, own in zip(words.T.tolist(), ok, strict=True)]


def test_an_id_has_one_key_in_all_threads_that_come_upon_it():
    drawing, at_once = [], []

    def slow(size):
        drawing.append(size)
        at_once.append(len(drawing))
        time.sleep(0.3)
        drawing.pop()
        return os.urandom(size)

    keys, ids = PersonKeys(slow), [b"x" * 40, b"y" * 60]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: keys_of(ids, keys), range(2))
    assert one == other
    assert at_once == [1, 1]  # the second thread finds what the first has drawn


@FUZZ
@given(ids=IDS)
def test_ids_have_one_key_where_they_are_equal_when_stripped(ids):
    keys = keys_of(ids)
    names = [text.strip(WHITE.encode()) for text in ids]
    assert [key is None for key in keys] == [not name for name in names]
    for (one, key), (other, other_key) in itertools.combinations(zip(names, keys, strict=True), 2):
        assert (key == other_key) is (one == other)


def test_ids_of_up_to_15_bytes_have_keys_of_their_own():
    """Where words end and lengths differ, and among numbers in a row: no two leave alike."""
    ids = [b"%d" % k for k in range(50_000)]
    ids += [b"\0" * k for k in range(1, 16)] + [b"a" * k + b"\0" for k in range(15)]
    ids += [b"z" * k + b"%c" % c + b"z" * (14 - k) for k in range(15) for c in range(33, 122)]
    assert len(set(keys_of(ids))) == len(set(ids))


def test_long_ids_are_hashed_as_the_proof_says():
    entropy = remembered_bytes()
    keys = PersonKeys(entropy)
    ids = [bytes(range(65, 65 + size)) for size in (16, 22)]
    ids += [b"k" * (size - 1) + b"l" for size in (255, 256, 257, 259, 260, 264, 4_001)]
    found, _ = keys.of(pa.array([b"short", *ids], pa.large_binary()))
    spread = [int(word) | 1 for word in np.frombuffer(entropy.drawn[0], np.uint64)]
    drawn = np.frombuffer(entropy.drawn[1], np.uint64).reshape(-1, 4).T
    for place, text in enumerate(ids, 1):
        words = np.frombuffer(text + b"\0" * (-len(text) % 4), "<u4")
        hashes = []
        for row in drawn.tolist():
            terms = zip(row[2:], words.tolist(), strict=False)
            total = row[0] + row[1] * len(text) + sum(c * x for c, x in terms)
            hashes.append(total % 2**64 >> 32)
        high, low = hashes[0] << 32 | hashes[1], hashes[2] << 32 | hashes[3]
        low = low % 2**56 | 255 << 56

        def mixed(word, first, second):
            word = word * first % 2**64
            word ^= word >> 32
            word = word * second % 2**64
            return word ^ word >> 29

        low ^= mixed(high, *spread[:2])
        high ^= mixed(low, *spread[2:])
        assert found[:, place].tolist() == [high, low]


def remembered_bytes():
    """The operating system's bytes, and a list of what it gave."""

    def entropy(size):
        entropy.drawn.append(os.urandom(size))
        return entropy.drawn[-1]

    entropy.drawn = []
    return entropy


def test_a_key_does_not_depend_on_the_array_that_the_id_stands_in():
    keys = PersonKeys()
    ids = [b"a", None, b" a ", b"b" * 20, b"c" * 90, b"", b"b" * 20 + b"\t", "ä".encode() * 9]
    whole = keys_of(ids, keys)
    assert whole[1] is whole[5] is None
    assert whole[0] == whole[2]
    assert whole[3] == whole[6]
    for start, stop in itertools.combinations(range(len(ids) + 1), 2):
        part, _ = keys.of(person_names(pa.array(ids, pa.binary())[start:stop], "."))
        for key, expected in zip(part.T.tolist(), whole[start:stop], strict=True):
            assert expected is None or tuple(key) == expected
    assert keys_of([], keys) == keys_of([b"", None], keys)[:0] == []
    assert keys_of([b"a"]) != keys_of([b"a"])


def test_persons_are_spread_evenly_over_the_first_bits():
    for text in (b"%d", b"%015d", b"household/%020d"):
        words, _ = PersonKeys().of(pa.array([text % k for k in range(51_200)], pa.large_binary()))
        for shift in (56, 40):
            sizes = np.bincount(words[0] >> np.uint64(shift) & np.uint64(255), minlength=256)
            assert sizes.min() > 100
            assert sizes.max() < 300


# A row is the key of its person, and a priority with its shift. Keys are made by hand, so that
# their first words may agree or be next to each other: those take a hundred passes to part.
SHIFTS = st.sampled_from([0, 39, 40, 62])
NEAR = st.tuples(st.sampled_from([0, 1, 7 << 60, (7 << 60) + 1, 2**64 - 1]), st.integers(0, 2))
FAR = st.tuples(st.sampled_from([0, 5 << 60, 7 << 60, 15 << 60]), st.integers(0, 2))
ROWS = st.lists(st.tuples(NEAR | FAR, st.integers(0, 3), SHIFTS))
TINY = 4 * 40  # bytes of four rows


class RowByRow:
    """Gives every row the priority that it was given, whatever the pass."""

    def __init__(self):
        self.priority = 0

    def __call__(self, size):
        return self.priority.to_bytes(8, "little") if size else b""


def kept_rows(rows, *, max_rows, keep="random", limit=2**30, least=1, monkeypatch):
    """The rows that stay, each with its person's number of rows or 0; a row an `add`."""
    monkeypatch.setattr(module, "_LEAST", least)
    entropy = RowByRow()
    kept = KeptRows(
        max_rows=max_rows, words=1, keep=keep, numbered=True, limit=limit, random_bytes=entropy
    )
    stay, again = [], True
    while again:
        for number, (key, *priority) in enumerate(rows):
            entropy.priority = priority[0] << priority[1] if priority else number
            kept.add(np.array([key], np.uint64).T, np.array([[number]], np.uint64))
        stay += [tuple(row) for part in kept.kept() for row in part.T.tolist()]
        again = kept.begin_pass()
    assert len(dict(stay)) == len(stay)
    return dict(stay)


def slow(rows, *, max_rows, keep="random"):
    """The same, person by person."""
    stay = {}
    for person in {row[0] for row in rows}:
        theirs = [(p << shift, n) for n, (key, p, shift) in enumerate(rows) if key == person]
        if keep == "first":
            theirs = [(0, n) for _, n in theirs]
        for rank, (_, number) in enumerate(sorted(theirs)[:max_rows]):
            stay[number] = len(theirs) if rank == 0 else 0
    return stay


@FUZZ
@given(
    rows=ROWS,
    max_rows=st.integers(1, 3),
    keep=st.sampled_from(["random", "first"]),
    limit=st.sampled_from([TINY, 8 * 40, 24 * 40, 2**30]),
    least=st.sampled_from([1, 5]),
)
def test_the_rows_of_lowest_priority_stay_in_any_number_of_passes(
    rows, max_rows, keep, limit, least, monkeypatch
):
    """Whoever else has rows: those of each person are known by that person's alone."""
    settings = {"max_rows": max_rows, "keep": keep}
    stay = kept_rows(rows, limit=limit, least=least, monkeypatch=monkeypatch, **settings)
    assert stay == slow(rows, **settings)


@FUZZ
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([0, 1 << 23, 1 << 24, 5 << 61]),
            st.integers(0, 1),
            st.sampled_from([0, 1, 1 << 40, (1 << 40) + 1, 3 << 40]),
        ),
        min_size=1,
    )
)
def test_rows_are_sorted_by_all_of_the_key_and_priority(rows):
    rows = np.array([(*row, number) for number, row in enumerate(rows)], np.uint64).T
    order = np.lexsort((rows[2], rows[1], rows[0]))
    np.testing.assert_array_equal(_sorted(rows), rows[:, order])


def many(persons, each, rng):
    """Rows of some persons, in random order; (keys of the rows, persons of the rows)."""
    keys = rng.integers(0, 2**63, (2, persons), dtype=np.uint64) << np.uint64(1)
    of_row = rng.permutation(np.repeat(np.arange(persons), each))
    return keys[:, of_row], of_row


def counted(keys, *, max_rows, limit, chunk=1000, keep="random"):
    """The numbers of the rows that stay, the number of passes, and the most rows held."""
    kept = KeptRows(max_rows=max_rows, words=1, limit=limit, keep=keep)
    numbers = np.arange(keys.shape[1], dtype=np.uint64)[None]
    stay, passes, held = [], 0, 0
    while passes == 0 or kept.begin_pass():
        for start in range(0, keys.shape[1], chunk):
            kept.add(keys[:, start : start + chunk], numbers[:, start : start + chunk])
            held = max(held, kept._rows())
        stay += [part[0] for part in kept.kept()]
        passes += 1
    return np.concatenate(stay), passes, held


@pytest.mark.nightly(daily=r"\[50\]")
@pytest.mark.parametrize("max_rows", [1, 3, 50])
def test_the_memory_is_bounded_and_no_person_is_forgotten_or_counted_twice(max_rows):
    """In as many passes as documented: the least power of two that is at least twice the bytes
    that stay over the memory."""
    rng = np.random.default_rng(5)
    keys, of_row = many(2000, rng.integers(1, 9, 2000), rng)
    every = np.bincount(of_row)
    whole, one, _ = counted(keys, max_rows=max_rows, limit=2**30)
    assert one == 1
    few = every[of_row] <= max_rows
    for most in (600, 9000):
        stay, passes, held = counted(keys, max_rows=max_rows, limit=most * 32, chunk=100)
        assert held <= most
        assert passes > 3 or most == 9000
        assert len(stay) / most / 2 <= passes
        assert passes <= 2 ** max(0, math.ceil(math.log2(2 * len(stay) / most)))
        assert len(np.unique(stay)) == len(stay)
        assert (np.bincount(of_row[stay], minlength=2000) == np.minimum(every, max_rows)).all()
        np.testing.assert_array_equal(np.sort(stay[few[stay]]), np.sort(whole[few[whole]]))


def test_a_person_of_more_rows_than_fit_is_counted_and_the_passes_end():
    keys = np.array([[3 << 62] * 500 + [1 << 20, 2, 2**64 - 1], [1] * 503], np.uint64)
    stay, passes, _ = counted(keys, max_rows=400, limit=4 * 32, chunk=50)
    assert len(stay) == 403
    assert passes < 300


@pytest.mark.nightly(daily=r"\[(1-passes|2-one pass)")
@pytest.mark.statistical
@pytest.mark.parametrize("limit", [15_000 * 32, 2**30], ids=["passes", "one pass"])
@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_every_set_of_a_persons_rows_is_as_likely_as_any_other(max_rows, limit):
    """20,000 persons of five rows each, their rows together or apart: chi-square over all sets."""
    persons, each = 20_000, 5
    keys, of_row = many(persons, each, np.random.default_rng(7))
    order = np.argsort(of_row, kind="stable")
    place = np.empty(len(of_row), np.int64)
    place[order] = np.tile(np.arange(each), persons)
    for arranged in (np.arange(len(of_row)), order):
        stay, passes, _ = counted(keys[:, arranged], max_rows=max_rows, limit=limit, chunk=7000)
        assert (passes > 1) == (limit < 2**30)
        chosen = np.zeros((persons, each), np.bool_)
        chosen[of_row[arranged[stay]], place[arranged[stay]]] = True
        assert (chosen.sum(axis=1) == max_rows).all()
        sets = Counter(map(tuple, chosen.tolist()))
        every = itertools.product((False, True), repeat=each)
        kinds = [set_ for set_ in every if sum(set_) == max_rows]
        seen = np.array([sets[set_] for set_ in kinds])
        assert chi_square(seen, np.full(len(kinds), persons / len(kinds))) > STRICT


def test_all_bits_are_the_operating_systems():
    for class_ in (PersonKeys, KeptRows):
        assert inspect.signature(class_).parameters["random_bytes"].default is os.urandom


NUMBERS = 4  # the place of the number of rows in the domains below
SUBSETS = [s for r in range(6) for s in itertools.combinations(range(5), r)]
BY_PERSON = st.lists(
    st.tuples(st.sampled_from([b" p\t", *b"p q r s".split(), b"long " * 9, b"", b" "]), NICE),
    min_size=10,
    max_size=25,
)


def domain_of(other, most):
    return (*attributes(other=other), person_rows(most))


@settings(FUZZ, max_examples=12)
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
    expected = slow_counts(body, spec=spec, header=b"id," + HEADER, subsets=SUBSETS)
    assert_equal(tables, expected)
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
        (
            "{up_to: 10}",
            "{up_to: 0}",
            "7:43: expected the most rows that are told apart, a whole number, at least 1 and at",
        ),
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


def panel(path, persons=545, years=8):
    """A panel of so many rows each, sorted by year."""
    lines = [f"{k},{1980 + y},{(k + y) % 2}\n" for y in range(years) for k in range(persons)]
    path.write_text("nr,year,married\n" + "".join(lines))


@pytest.fixture
def folder(own_folder):
    """A folder of one's own with a panel, a spec and a ledger; the working directory."""
    panel(own_folder / "panel.csv")
    (own_folder / "workload.yaml").write_text(HEAD + ITEMS)
    return own_folder


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
    ok("package")
    book = Path("package/codebook.md").read_text()
    assert "| `rmse` | number | records or persons | Root mean" in book
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
    ok("plan", "workload.yaml")
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
