"""The hostile lines of every file, put into every other kind of source that can hold them.

A line more in a packed file, in one of several, in another dialect or encoding, or a row of its
fields in a typed file or a database, is one record at most; and what a source holds is counted as
the plain file of the same records is, where both are read by the same rules.
"""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from damage import HEADER, NASTY_LINES, PLAIN, SMALL, line_starts, with_line
from data import ALL_SUBSETS, TYPED, UNPACKED, assert_equal, cases, packed_in_members
from test_stability import COUNT_SPEC, FIRST_SPEC, SHOW_SPEC, check_neighbours
from town import SPEC

from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.counting.text_files import Dialect, fields
from dpquery.spec.parsing.read import parse

TEXTS = {"closed": SPEC, "open": SHOW_SPEC, "counted": COUNT_SPEC, "person": FIRST_SPEC}
NAMES = HEADER.decode().strip().split(",")
PLAIN_HEADER = [name for name, content in SMALL.items() if content.startswith(HEADER)]
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


def try_lines(source, folder, pairs):
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
    number = try_lines(source, tmp_path, pairs)
    record_property("neighbours", number)
    assert number > 100


@pytest.mark.slow
@pytest.mark.parametrize("source", cases(SOURCES))
def test_nasty_lines_everywhere_in_any_source(source, tmp_path, record_property):
    pairs = [*itertools.product(PLAIN_HEADER, NASTY_LINES)]
    number = try_lines(source, tmp_path, pairs)
    record_property("neighbours", number)
    assert number > 1400


@pytest.mark.parametrize("source", cases(SOURCES))
def test_the_check_sees_a_record_too_many_in_any_source(source, tmp_path):
    counted = counter(source, tmp_path)
    for name, more in (("closed", 2), ("open", 2), ("counted", 2), ("person", 3)):
        added = PLAIN + b"".join(b"1,F,1,5,newcomer%d\n" % k for k in range(more))
        with pytest.raises(AssertionError):
            check_neighbours(counted(PLAIN, name), counted(added, name), name)
