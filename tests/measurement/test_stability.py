"""One physical line more or less, in any kind of source, moves the counts by one record at most.

The privacy of every release rests on this. A neighbour is a file with one line more, one line
fewer, or one line replaced; or, where the unit is a person, with all lines of one id changed. The
hostile lines of every file are also put into every other kind of source that can hold them.
"""

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import damage
import numpy as np
import pyarrow as pa
import pytest
from damage import FILES, LONG_LINES, NASTY_LINES, PLAIN, SMALL, line_starts, some_or, with_line
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import (
    ALL_SUBSETS,
    BYTES,
    FUZZ,
    HEADER,
    LINE,
    NICE,
    TYPED,
    UNPACKED,
    assert_equal,
    attributes,
    cases,
    packed_in_members,
    run,
    slow_counts,
    spec_of,
)
from town import PERSON_SPEC, SPEC

from dpquery.measurement.counting import tabulate as module
from dpquery.measurement.counting import text_files
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.counting.text_files import Dialect, fields
from dpquery.spec.parsing.read import parse

# A value outside every column's domain is in a bin of its own here, so that even a malformed line
# is a record.
SHOW_SPEC = re.sub(r"(range: .*|values: \[F, M\]|bins: .*)}\n", r"\1, other: show}\n", SPEC)
COUNT_SPEC = SPEC.replace("other: drop", "other: count")
FIRST_SPEC = PERSON_SPEC.replace("max_rows: 2", "max_rows: 2, keep: first")
TEXTS = {"closed": SPEC, "open": SHOW_SPEC, "counted": COUNT_SPEC, "person": FIRST_SPEC}
SPECS = {name: parse(text, name="town.yaml", files={}) for name, text in TEXTS.items()}


@pytest.fixture
def counts(tmp_path, monkeypatch):
    """Return the function that counts a file by the real tabulate, in chunks of a size."""

    def counted(content, spec, *, chunk=2**24, block=2**22):
        path = tmp_path / "data.csv"
        path.write_bytes(content)
        monkeypatch.setattr(module, "_CHUNK", chunk)
        monkeypatch.setattr(text_files, "_PIECE", block)
        return tabulate(path, spec=spec, subsets=ALL_SUBSETS)

    return counted


def moves(one, other):
    """How far each table moves, in L1."""
    return {int(np.abs(one[subset] - other[subset]).sum()) for subset in ALL_SUBSETS}


def check_neighbours(before, after, name):
    """Check what one line more may do, under one of SPECS."""
    moved = moves(before, after)
    if name == "person":
        # The line may take the place of a later one of the same person; never does it change
        # how many records count by more than its own.
        assert max(moved) <= 2
        assert abs(int(after[()] - before[()])) <= 1
    else:
        assert moved in ({0}, {1})  # a record is in all tables or in none


def chunk_sizes(content, place, line):
    """Sizes of chunks that end before the line, inside it, after it, and nowhere near."""
    first = content.find(b"\n") + 1  # chunks begin below the header
    ends = {place - first, place - first + len(line) // 2, place - first + len(line) + 1}
    return [2**24, *(end for end in ends if end > 0)]


def corpus(files, extra, *, places, rng):
    """Yield (file, line, place, size of the chunks) for every file and line."""
    for content, line in itertools.product(files, extra):
        for place in line_starts(content, most=places):
            # Many small chunks of a large file take long and show nothing that few do not.
            least = (len(content) + len(line)) / 99
            sizes = [size for size in chunk_sizes(content, place, line) if size > least]
            yield content, line, place, sizes[rng.integers(len(sizes))]


def try_lines(counts, files, extra, *, places, names=tuple(SPECS)):
    """Check every line at some places of every file; return the number of pairs."""
    rng, pairs = np.random.default_rng(7), 0
    alone = lru_cache(maxsize=9)(lambda content, name: counts(content, SPECS[name]))
    for content, line, place, size in corpus(files, extra, places=places, rng=rng):
        name = names[pairs % len(names)]
        after = with_line(content, line, place)
        if place == len(content) and pairs % 2:
            after = after.removesuffix(b"\n")  # the line is the last one, and ends with the file
        block = (2**22, 64, 1024)[rng.integers(3) if len(content) < 10_000 else 0]
        counted = counts(after, SPECS[name], chunk=size, block=block)
        check_neighbours(alone(content, name), counted, name)
        pairs += 1
    return pairs


@pytest.mark.nightly(daily="32")
@pytest.mark.parametrize("step", [4, 32])
def test_a_nasty_line_anywhere_in_a_wild_file_is_one_record_at_most(counts, step, record_property):
    pairs = try_lines(counts, SMALL.values(), NASTY_LINES[::step], places=1)
    lines = NASTY_LINES[:: step // 4] + LONG_LINES
    pairs += try_lines(counts, [PLAIN, SMALL["quotes"]], lines, places=2)
    record_property("neighbours", pairs)
    assert pairs > 3200 / step


@pytest.mark.slow
def test_nasty_lines_everywhere_in_all_wild_files_are_one_record_at_most(counts, record_property):
    pairs = sum(
        try_lines(counts, SMALL.values(), NASTY_LINES, places=3, names=(name,)) for name in SPECS
    )
    pairs += try_lines(counts, SMALL.values(), LONG_LINES, places=2)
    large = [content for name, content in FILES.items() if name not in SMALL]
    pairs += try_lines(counts, large, NASTY_LINES[::9] + LONG_LINES[:1], places=1)
    record_property("neighbours", pairs)
    assert pairs > 17_000


PIECES = st.lists(st.sampled_from([*BYTES, b",", b"\n", b"F", b"0", b"a"]) | st.binary(max_size=9))
RAW = st.one_of(PIECES.map(b"".join), st.binary(max_size=60))


def fuzz(property_, record_property, *, examples):
    """Run a property of hypothesis and record how many pairs it compared."""
    compared = itertools.count()
    settings(FUZZ, max_examples=examples)(property_(lambda: next(compared)))()
    record_property("neighbours", next(compared))


def raw_bytes(counts):
    """Anything at all below the header, and anything at all as one line more and one fewer."""

    def with_count(compared):
        @given(
            body=RAW,
            line=RAW.map(lambda line: line.replace(b"\n", b"")) | st.sampled_from(NASTY_LINES),
            place=st.integers(0, 99),
            chunk=st.integers(1, 80) | st.just(2**24),
            name=st.sampled_from(list(SPECS)),
        )
        def one_line_more(body, line, place, chunk, name):
            content = PLAIN.splitlines(keepends=True)[0] + body
            starts = line_starts(content, most=99)
            place = starts[place % len(starts)]
            before = counts(content, SPECS[name])
            after = counts(with_line(content, line, place), SPECS[name], chunk=chunk, block=64)
            check_neighbours(before, after, name)
            compared()

        return one_line_more

    return with_count


def structured(tmp_path):
    """A line more among records of every kind of column, and a line replaced."""

    def with_count(compared):
        @given(
            body=st.lists(LINE, max_size=8),
            lines_=st.tuples(LINE, LINE),
            place=st.integers(0, 8),
            other=st.sampled_from(("count", "show", "drop")),
            chunk=st.integers(30, 200) | st.just(2**24),
        )
        def one_line_more_or_another(body, lines_, place, other, chunk):
            spec, path = spec_of(*attributes(other=other)), tmp_path / "f.csv"
            before = run(path, b"\n".join(body), spec=spec)
            with_one, with_other = (
                run(
                    path,
                    b"\n".join([*body[:place], line, *body[place:]]),
                    spec=spec,
                    chunk_bytes=chunk,
                )
                for line in lines_
            )
            assert moves(before, with_one) in ({0}, {1})
            assert moves(before, with_other) in ({0}, {1})
            assert max(moves(with_one, with_other)) <= 2
            for _ in range(3):
                compared()

        return one_line_more_or_another

    return with_count


PERSON = st.sampled_from([b"p", b"q", b" p", b"p\t", b"", b'"q"', b"P", b"\xa0p", b"\xff"])
OF_A_PERSON = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from([b"z", b" z", b'"z"']), LINE), max_size=5
)


def of_few_rows(body, most):
    """The same without the rows of a person beyond so many."""
    rows_of, kept = Counter(), []
    for person, line in body:
        name = person.strip(b' \t"')
        rows_of[name] += 1
        if rows_of[name] <= most:
            kept.append((person, line))
    return kept


def persons(tmp_path):
    """All lines of one person added, taken away or exchanged for others, and one line of theirs."""

    def with_count(compared):
        @given(
            body=st.lists(st.tuples(PERSON, NICE), max_size=12),
            lives=st.tuples(OF_A_PERSON, OF_A_PERSON),
            max_rows=st.integers(1, 3),
            chunk=st.integers(30, 200),
            keep=st.sampled_from(["random", "first"]),
        )
        def one_person(body, lives, max_rows, chunk, keep):
            spec = spec_of(*attributes(other="show"), person="id", max_rows=max_rows, keep=keep)
            if keep == "random":  # which rows stay of the others is then no matter of chance
                body = of_few_rows(body, max_rows)
            header, without = b"id," + HEADER, [b",".join(pair) for pair in body]

            def counted(life):
                content = list(without)
                for place, person, line in life:
                    content.insert(place, person + b"," + line)
                text = b"\n".join(content)
                return run(tmp_path / "f.csv", text, spec=spec, header=header, chunk_bytes=chunk)

            nobody, (one, other) = counted([]), map(counted, lives)
            assert_equal(nobody, slow_counts(b"\n".join(without), spec=spec, header=header))
            assert max(moves(nobody, one)) <= max_rows
            assert max(moves(nobody, other)) <= max_rows
            assert max(moves(one, other)) <= 2 * max_rows
            if lives[0]:
                less = max(moves(one, counted(lives[0][1:])))
                assert less <= (2 if keep == "first" else 2 * max_rows)
                compared()
            for _ in range(3):
                compared()

        return one_person

    return with_count


@some_or(2500, some=60)
def test_any_bytes_as_a_line_are_one_record_at_most(counts, record_property, examples):
    fuzz(raw_bytes(counts), record_property, examples=examples)


@some_or(500, some=30)
def test_one_line_more_or_replaced_moves_every_table_by_one_or_two(
    tmp_path, record_property, examples
):
    fuzz(structured(tmp_path), record_property, examples=examples)


@pytest.mark.nightly
@some_or(500, some=40)
def test_one_person_moves_every_table_by_max_rows_at_most(tmp_path, record_property, examples):
    fuzz(persons(tmp_path), record_property, examples=examples)


NAMES = damage.HEADER.decode().strip().split(",")
PLAIN_HEADER = [name for name, content in SMALL.items() if content.startswith(damage.HEADER)]
COMMA = Dialect(b",", b'"', False)


class Written(NamedTuple):
    """A file's lines in another kind of source."""

    locations: list[Path]
    file: str = "{}"  # how the spec declares it
    same: tuple[str, ...] = tuple(TEXTS)  # under which specs the counts are those of the plain file


@dataclass(frozen=True)
class Packed:
    suffix: str

    def __call__(self, content, folder):
        path = folder / f"data.csv{self.suffix}"
        path.write_bytes(packed_in_members(content, self.suffix))
        return Written([path])


def in_several_files(content, folder):
    """The lines of a file in three, each below the header."""
    header, starts = content[: content.find(b"\n") + 1], line_starts(content, most=3)
    paths = []
    for k, (low, high) in enumerate(itertools.pairwise([*starts, len(content)])):
        paths.append(folder / f"{k}.csv")
        paths[-1].write_bytes(header + content[low:high])
    return Written(paths)


@dataclass(frozen=True)
class Delimited:
    mark: bytes
    word: str

    def __call__(self, content, folder):
        swapped = content.translate(bytes.maketrans(b"," + self.mark, self.mark + b","))
        (folder / "data.csv").write_bytes(swapped)
        # A tab around a field is stripped, and a comma that took its place is not.
        same = () if self.mark == b"\t" else tuple(TEXTS)
        return Written([folder / "data.csv"], f"{{delimiter: '{self.word}'}}", same)


@dataclass(frozen=True)
class Quoted:
    mark: str

    def __call__(self, content, folder):
        mark = self.mark.encode()
        swapped = content.translate(bytes.maketrans(b'"' + mark, mark + b'"'))
        (folder / "data.csv").write_bytes(swapped)
        return Written([folder / "data.csv"], f'{{quote: "{self.mark}"}}')


def without_quotes(content, folder):
    (folder / "data.csv").write_bytes(content)
    return Written([folder / "data.csv"], "{quote: none}", ())


@dataclass(frozen=True)
class Encoded:
    """Each byte is a letter; as many bytes as the encoding has for it."""

    encoding: str
    codec: str

    def __call__(self, content, folder):
        (folder / "data.csv").write_bytes(content.decode("latin-1").encode(self.codec))
        return Written([folder / "data.csv"], f"{{encoding: {self.encoding}}}", ())


@dataclass(frozen=True)
class Rows:
    """The fields of each line that has as many as the header, as bytes."""

    name: str

    def __call__(self, content, folder):
        _, *lines = content.split(b"\n")
        rows = [fields(line, len(NAMES), COMMA) for line in lines if line not in {b"", b"\r"}]
        columns = list(zip(*filter(None, rows), strict=True)) or [()] * len(NAMES)
        table = pa.table({
            name: pa.array(column, pa.binary()) for name, column in zip(NAMES, columns, strict=True)
        })  # fmt: skip
        # Where a malformed line is a record, it is one that no typed source can hold.
        return Written([TYPED[self.name](table, folder / self.name)], same=("closed", "person"))


SOURCES = {
    **{suffix: Packed(suffix) for suffix in UNPACKED if suffix},
    "several files": in_several_files,
    **{word: Delimited(mark, word) for mark, word in ((b";", ";"), (b"|", "|"), (b"\t", "tab"))},
    "single quotes": Quoted("'"),
    "no quotes": without_quotes,
    "latin-1": Encoded("latin-1", "latin-1"),
    "cp1252": Encoded("cp1252", "latin-1"),
    "utf-16": Encoded("utf-16", "utf-16"),
    "utf-16-be": Encoded("utf-16-be", "utf-16-be"),
    **{name: Rows(name) for name in TYPED},
}
SLOW = ("rows.duckdb", "rows.adbc")  # a database is made anew for every line


def counter(source, folder):
    """Return the function that counts some lines in a source, and beside them the plain file."""
    specs = {}

    def spec_of(name, file):
        if (name, file) not in specs:
            text = re.sub(r"^domain:", f"file: {file}\ndomain:", TEXTS[name], flags=re.MULTILINE)
            specs[name, file] = parse(text, name="town.yaml", files={})
        return specs[name, file]

    def counted(content, name):
        made = SOURCES[source](content, folder)
        found = tabulate(made.locations, spec=spec_of(name, made.file), subsets=ALL_SUBSETS)
        if name in made.same:
            (folder / "plain.txt").write_bytes(content)
            plain = tabulate(folder / "plain.txt", spec=spec_of(name, "{}"), subsets=ALL_SUBSETS)
            assert_equal(found, plain)
        return found

    return counted


def try_pairs(source, folder, pairs):
    """Check a line more in each of some (file, line), under each spec in turn."""
    counted, generator = counter(source, folder), np.random.default_rng(9)
    before, number = {}, 0
    for name, (file, line) in zip(itertools.cycle(TEXTS), pairs, strict=False):
        content = SMALL[file]
        if (file, name) not in before:
            before[file, name] = counted(content, name)
        starts = line_starts(content, most=99)
        after = with_line(content, line, starts[generator.integers(len(starts))])
        check_neighbours(before[file, name], counted(after, name), name)
        number += 1
    return number


@pytest.mark.nightly
@pytest.mark.parametrize("source", cases([name for name in SOURCES if name not in SLOW]))
def test_a_nasty_line_in_any_source_is_one_record_at_most(source, tmp_path, record_property):
    pairs = [("plain", line) for line in NASTY_LINES]
    lines = itertools.cycle(NASTY_LINES)
    pairs += [(file, next(lines)) for file in PLAIN_HEADER * 2]
    number = try_pairs(source, tmp_path, pairs)
    record_property("neighbours", number)
    assert number > 100


@pytest.mark.slow
@pytest.mark.parametrize("source", cases(SOURCES))
def test_nasty_lines_everywhere_in_any_source(source, tmp_path, record_property):
    pairs = [*itertools.product(PLAIN_HEADER, NASTY_LINES)]
    number = try_pairs(source, tmp_path, pairs)
    record_property("neighbours", number)
    assert number > 1400


@pytest.mark.nightly
@pytest.mark.parametrize("source", cases(SOURCES))
def test_the_check_sees_a_record_too_many_in_any_source(source, tmp_path):
    counted = counter(source, tmp_path)
    for name, more in (("closed", 2), ("open", 2), ("counted", 2), ("person", 3)):
        added = PLAIN + b"".join(b"1,F,1,5,newcomer%d\n" % k for k in range(more))
        with pytest.raises(AssertionError):
            check_neighbours(counted(PLAIN, name), counted(added, name), name)
