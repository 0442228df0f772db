"""Of each person max_rows rows stay, each as likely as the others, whoever else is in the data."""

import inspect
import itertools
import math
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from data import FUZZ, WHITE
from dense import chi_square
from hypothesis import given
from hypothesis import strategies as st

from dpquery.measurement.counting import persons as module
from dpquery.measurement.counting.persons import KeptRows, PersonKeys, _sorted, person_names

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
ROWS = st.lists(st.tuples(NEAR, st.integers(0, 3), SHIFTS))
OTHERS = st.lists(st.tuples(FAR, st.integers(0, 3), SHIFTS), min_size=5)
TINY = 4 * 40  # bytes of four rows


class RowByRow:
    """Gives every row the priority that it was given, whatever the pass."""

    def __init__(self):
        self.priority = 0

    def __call__(self, size):
        return self.priority.to_bytes(8, "little") if size else b""


def run(rows, *, max_rows, keep="random", limit=2**30, least=1, monkeypatch):
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
    limit=st.sampled_from([TINY, 8 * 40, 2**30]),
    least=st.sampled_from([1, 5]),
)
def test_the_rows_of_lowest_priority_stay_in_any_number_of_passes(
    rows, max_rows, keep, limit, least, monkeypatch
):
    settings = {"max_rows": max_rows, "keep": keep}
    stay = run(rows, limit=limit, least=least, monkeypatch=monkeypatch, **settings)
    assert stay == slow(rows, **settings)


@FUZZ
@given(
    others=OTHERS,
    life=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=8),
    max_rows=st.integers(1, 3),
    limits=st.tuples(*[st.sampled_from([24 * 40, 2**30])] * 2),
)
def test_one_person_more_moves_no_row_of_the_others(others, life, max_rows, limits, monkeypatch):
    """The others' rows have the priorities that they have without the newcomer.

    Nor does it move a number of rows: one row of the newcomer comes with one, the others with 0.
    """
    newcomer = (7 << 60, 9)
    rows = list(enumerate(others))
    for place, priority in life:
        rows.insert(place, (None, (newcomer, priority, 62)))
    settings = {"max_rows": max_rows, "monkeypatch": monkeypatch}
    with_them = run([row for _, row in rows], limit=limits[0], **settings)
    without = run(others, limit=limits[1], **settings)
    stay = [(rows[place][0], number) for place, number in with_them.items()]
    assert {place: number for place, number in stay if place is not None} == without
    theirs = sorted((number for place, number in stay if place is None), reverse=True)
    assert theirs == [len(life), *[0] * (min(max_rows, len(life)) - 1)][: len(life)]


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


@pytest.mark.parametrize("max_rows", [1, 3, 50])
def test_the_memory_is_bounded_and_no_person_is_forgotten_or_counted_twice(max_rows):
    rng = np.random.default_rng(5)
    keys, of_row = many(2000, rng.integers(1, 9, 2000), rng)
    limit = 600 * 32
    stay, passes, held = counted(keys, max_rows=max_rows, limit=limit, chunk=100)
    assert held <= 600
    assert passes > 3
    assert len(np.unique(stay)) == len(stay)
    every = np.bincount(of_row)
    assert (np.bincount(of_row[stay], minlength=2000) == np.minimum(every, max_rows)).all()
    whole, one, _ = counted(keys, max_rows=max_rows, limit=2**30)
    assert one == 1
    few = every[of_row] <= max_rows
    np.testing.assert_array_equal(np.sort(stay[few[stay]]), np.sort(whole[few[whole]]))


@pytest.mark.parametrize("max_rows", [1, 3])
def test_the_number_of_passes_is_at_most_the_one_documented(max_rows):
    """The least power of two that is at least twice the bytes that stay over the memory."""
    keys, of_row = many(1500, RNG.integers(1, 6, 1500), RNG)
    stay = int(np.minimum(np.bincount(of_row), max_rows).sum())
    for held in (400, 1000, 9000):
        _, passes, _ = counted(keys, max_rows=max_rows, limit=32 * held, chunk=100)
        assert passes <= 2 ** max(0, math.ceil(math.log2(2 * stay / held)))
        assert passes >= stay / held / 2


def test_a_person_of_more_rows_than_fit_is_counted_and_the_passes_end():
    keys = np.array([[3 << 62] * 500 + [1 << 20, 2, 2**64 - 1], [1] * 503], np.uint64)
    stay, passes, _ = counted(keys, max_rows=400, limit=4 * 32, chunk=50)
    assert len(stay) == 403
    assert passes < 300


def test_the_first_rows_stay_on_request_in_any_number_of_passes():
    keys, of_row = many(300, 5, np.random.default_rng(6))
    expected = [n for k in range(300) for n in np.flatnonzero(of_row == k)[:2]]
    for limit in (100 * 32, 2**30):
        stay, passes, _ = counted(keys, max_rows=2, limit=limit, chunk=40, keep="first")
        assert sorted(stay.tolist()) == sorted(expected)
        assert (passes > 1) == (limit < 2**30)


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
    for class_, source in ((PersonKeys, "random_bytes"), (KeptRows, "random_bytes")):
        assert inspect.signature(class_).parameters[source].default is os.urandom
