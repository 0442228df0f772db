"""What is not as declared: tallies over the records, and the findings made of them.

What a check of a file found. All of it is made of the records: private, as they are.
"""

import heapq
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpquery.arrays import Bools, Floats, Ints
from dpquery.measurement.counting.column_codes import ColumnCodes, number_of, numbers_in
from dpquery.measurement.counting.persons import name_of, person_names
from dpquery.measurement.counting.sources import StoredValues
from dpquery.measurement.counting.tally import exact_differences
from dpquery.spec.columns import Attribute, Categorical, Column, Integers
from dpquery.spec.numbers import is_whole, nearest_float, number
from dpquery.spec.problems import nearest
from dpquery.spec.spec import FAR_OFF, FileFormat, RecordWeight, Spec


def is_invisible(letter: str) -> bool:
    """Return whether a character shows nothing, or only changes how another one is shown."""
    return unicodedata.category(letter) in {"Cc", "Cf"} or "\ufe00" <= letter <= "\ufe0f"


def seen(text: str) -> str:
    r"""Return what is seen of a text, in one form of Unicode.

    >>> seen("Malmo\u0308\u200b") == "Malm\u00f6"
    True
    """
    visible = "".join(letter for letter in text if not is_invisible(letter))
    return unicodedata.normalize("NFC", " ".join(visible.split()))


def written_out(text: str) -> str:
    r"""Return a text with what is not seen in it as YAML and Python write it.

    >>> print(written_out("a\u200bb\u00a0Malmo\u0308"))
    a\u200bb\u00a0Malmo\u0308
    """
    composed = unicodedata.is_normalized("NFC", text)

    def is_hidden(letter: str) -> bool:
        blank = letter != " " and unicodedata.category(letter) in {"Zs", "Zl", "Zp"}
        mark = not composed and unicodedata.combining(letter) > 0
        return ord(letter) >= 128 and (is_invisible(letter) or blank or mark)

    def escaped(letter: str) -> str:
        code = ord(letter)
        return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"

    return "".join(escaped(letter) if is_hidden(letter) else letter for letter in text)


_CONTROLS = bytes(range(32)) + b"\x7f"


_CHANGES: dict[str, Callable[[str], str]] = {
    "upper and lower case": str.casefold,
    "the form of Unicode (NFKC)": lambda text: unicodedata.normalize("NFKC", text),
    "invisible characters": lambda text: "".join(c for c in text if not is_invisible(c)),
}


def alike_ids(names: Collection[bytes], decimal: str) -> tuple[tuple[str, int, int], ...]:
    """Return (what alone tells some ids apart, these ids, the persons that they would be)."""
    if len({hash(_loose(name, decimal)) for name in names}) == len(names):
        return ()
    groups = defaultdict(list)
    for name in names:
        groups[_loose(name, decimal)].append(name)
    found = dict.fromkeys([*_CHANGES, "several of these"], (0, 0))
    for group in groups.values():
        if len(group) == 1:
            continue
        several = True
        for what, change in _CHANGES.items():
            parts = defaultdict(list)
            for name in group:
                parts[name_of(change(name.decode(errors="replace")).encode(), decimal)].append(name)
            alike = [len(part) for part in parts.values() if len(part) > 1]
            several &= not alike
            found[what] = found[what][0] + sum(alike), found[what][1] + len(alike)
        if several:
            ids, persons = found["several of these"]
            found["several of these"] = ids + len(group), persons + 1
    return tuple((what, ids, persons) for what, (ids, persons) in found.items() if ids)


def _loose(name: bytes, decimal: str) -> bytes:
    if name.isascii():
        lower = name.lower()
        seen = lower.translate(None, _CONTROLS)
        return seen if seen == lower else name_of(seen, decimal)
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return name
    for change in 2 * [*_CHANGES.values()]:  # one may bring about what another takes
        text = change(text)
    return name_of(text.encode(), decimal)


_AS_GOOD = {("latin-1", "cp1252"), ("utf-16", "utf-16-le"), ("utf-16", "utf-16-be")}
"""Encodings that seem to be, and declared ones that read the same bytes alike."""


@dataclass(frozen=True)
class Header:
    """The columns of all sources, held against the declared ones."""

    # in which words a release would refuse a source, one for each that it would
    refusals: tuple[str, ...] = ()
    # declared columns that a source lacks, or has in a type without a text
    missing: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()  # declared columns that a source has more than once
    # names in files of text that the spec does not use, which is no mistake
    undeclared: tuple[str, ...] = ()
    # columns of dates whose times have a zone, with the zone, whose days are counted
    zones: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class UndeclaredValues:
    """What one column holds beside the values that the spec declares for it."""

    attribute: str  # name of the attribute that the column belongs to
    column: Column
    records: int  # how many hold an undeclared value
    declared: int  # how many hold a declared one
    alone: int  # of those left out of every table, how many are for this column alone
    commonest: tuple[tuple[str, int], ...]  # undeclared texts with their records, commonest first
    # whether these are all of them, and the counts exact; at least so many otherwise
    complete: bool
    # declared values that no record holds, by their codes, for a list of values
    absent: tuple[str, ...] = ()
    unseen: int = 0  # how many of the whole numbers of a range no record holds

    @property
    def misspelt(self) -> dict[str, str]:
        """Of the codes in `absent` those near an undeclared text, which may be meant, with it."""
        texts = [text for text, _ in self.commonest]
        near = {code: nearest(code, texts) for code in self.absent}
        return {code: text for code, text in near.items() if text is not None}

    def decimals(self, mark: str) -> int:
        """Return how many records hold a number between two whole ones where these are declared.

        At least so many where texts were forgotten. `mark` is the decimal mark of the file.
        """
        if not isinstance(self.column.kind, Integers):
            return 0
        read = number_of(self.column, mark)
        exact = ((read(text), records) for text, records in self.commonest)
        return sum(n for value, n in exact if value is not None and not is_whole(value))


@dataclass(frozen=True)
class RowsPerPerson:
    """How many rows persons have: those rows that no other reason leaves out."""

    # (rows, number of persons with so many), fewest rows first
    persons: tuple[tuple[int, int], ...]
    share: float  # of all persons that was looked at; below 1 the numbers are scaled up
    blank: int  # records without an id
    blank_alone: int  # of those, records that nothing else leaves out
    busiest: tuple[tuple[str, int], ...]  # ids of the persons with the most rows, with their rows
    # columns in whose order the rows of persons come, where the first ones are kept
    sorted_by: tuple[str, ...] = ()
    respelled: int = 0  # persons whose id is a number that is written in several ways
    rounded: int = 0  # ids that are whole numbers beyond 2^53, written as floats
    # (what alone tells some ids apart, these ids, the persons that they would be)
    alike: tuple[tuple[str, int, int], ...] = ()

    def beyond(self, max_rows: int) -> int:
        """Return how many rows a limit leaves out."""
        return sum(max(0, rows - max_rows) * number for rows, number in self.persons)

    @property
    def number(self) -> int:
        """How many persons there are."""
        return sum(number for _, number in self.persons)


@dataclass(frozen=True, eq=False)
class WeightsFound:
    """The weights of those records that no other reason leaves out."""

    declared: RecordWeight
    weights: Floats  # (n,) different ones that count, rising
    records: Floats  # (n,) how many have each
    # texts that are no weight, or one below 0, and count as 0, commonest first
    counting_none: tuple[tuple[str, int], ...]

    @property
    def total(self) -> float:
        """What they add up to, those that count as 0 apart, before anything is cut off."""
        return float(self.weights @ self.records)

    @property
    def small(self) -> int:
        """How many records have a weight that counts as 0, being below half a step."""
        return int(self.records[self.weights < float(self.declared.step) / 2].sum())

    @property
    def weightless(self) -> int:
        """How many records count as 0."""
        return self.small + sum(number for _, number in self.counting_none)

    @property
    def share_cut_off(self) -> float:
        """The share of it that the declared cap takes."""
        lost, _ = self.cut_off(float(self.declared.at_most))
        return lost / self.total if lost else 0.0

    def cut_off(self, at_most: float) -> tuple[float, int]:
        """Return what a cap takes of that, and of how many records."""
        beyond = np.maximum(self.weights - at_most, 0.0)
        return float(beyond @ self.records), int(self.records[beyond > 0].sum())

    def effective(self, at_most: float) -> float:
        """Return the square of the sum under a cap over the sum of squares, all on the grid."""
        step = float(self.declared.step)
        counted = step * np.floor(np.minimum(self.weights, at_most) / step + 0.5)
        squares = float(counted**2 @ self.records)
        return float(counted @ self.records) ** 2 / squares if squares else 0.0


@dataclass(frozen=True)
class ReplicatesFound:
    """The replicate weights of those records that have a weight."""

    none: dict[str, int]  # by column, how many are no number
    negative: dict[str, int]  # and how many are below 0
    scaled: int  # records whose differences are longer than the cap
    lost: float  # the share of all squared differences that it takes


@dataclass(frozen=True)
class Malformed:
    """Records that cannot be split into fields."""

    records: int  # how many
    dropped: bool  # whether they are left out of every table
    # (what is wrong, how many, place of the first), of the first ones
    reasons: tuple[tuple[str, int, str], ...]
    looked_at: int  # how many of them the reasons are of


@dataclass(frozen=True)
class Records:
    """What the records hold, read as a release reads them."""

    total: int  # all records, malformed ones included
    kept: int  # those that a release counts in its totals
    undeclared: int  # those with an undeclared value in one column or more
    malformed: Malformed
    # for every declared column what is undeclared in it, in the order of the spec
    columns: tuple[UndeclaredValues, ...]
    persons: RowsPerPerson | None
    weights: WeightsFound | None
    replicates: ReplicatesFound | None
    # sources that hold the same records as an earlier one: both names, and how many
    repeated: tuple[tuple[str, str, int], ...] = ()

    @property
    def left_out(self) -> int:
        """Records that are in no table."""
        return self.total - self.kept


@dataclass(frozen=True)
class FileGuess:
    """A guess at how a file of text is laid out; an empty text where that cannot be told."""

    name: str  # of the file
    container: str  # what holds the text, such as "gzip"; empty for plain text
    is_text: bool  # whether there are lines to read
    encoding: str = ""  # of the text; empty where it is ASCII
    delimiter: str = ""  # between fields
    quote: str = ""  # around fields
    decimal: str = ""  # the decimal mark of its numbers
    newlines_in_quotes: bool = False  # whether fields in quotes go over several lines
    names: tuple[str, ...] = ()  # fields of the first line
    steady: float = 0.0  # share of the other lines that have as many fields
    remarks: tuple[str, ...] = ()  # what is odd besides

    def mended(self, declared: FileFormat) -> FileFormat:
        """Return what to declare in place of what is: the same where nothing speaks against it."""
        encoding = self.encoding or declared.encoding
        if (encoding, declared.encoding) in _AS_GOOD:
            encoding = declared.encoding
        return FileFormat(
            self.delimiter or declared.delimiter,
            encoding,
            self.decimal or declared.decimal,
            self.quote or declared.quote,
            self.newlines_in_quotes or declared.newlines_in_quotes,
        )


@dataclass(frozen=True)
class DataCheck:
    """All that a check found."""

    spec: Spec  # that the data were held against
    header: Header  # their columns
    layout: FileGuess | None  # a guess at how a file of text is laid out; None where there is none
    records: Records | None  # what they hold; None where the headers leave nothing to read
    failures: tuple[str, ...]  # where a source breaks in its midst, and so would a release
    remedies: tuple[str, ...]  # lines of YAML to paste into the spec

    @property
    def far_from_declared(self) -> bool:
        """Whether the records are a quarter more or fewer than the spec says, as of a cut file."""
        rows = self.spec.dataset.rows
        return bool(rows and self.records and abs(self.records.total - rows.count) > rows.count / 4)

    @property
    def as_declared(self) -> bool:
        """Whether nothing is left out that the spec does not say.

        It says that of each person `max_rows` rows count at most, so those beyond are no surprise,
        and what becomes of other texts in a column that takes them in. It does not say that there
        is no record; that records cannot be read, belong to nobody, or hold what a column drops;
        that ids may be of one person, or of several; that a weight or a replicate of it counts as
        0, or that a cap takes a tenth of all weight, or of squared differences; that a column holds
        no declared value at all, another spelling of one that is in no record, or decimals where
        whole numbers are declared; that records are there twice, or far from as many as declared;
        or that the file seems to be laid out otherwise.
        """
        if self.header.refusals or self.failures or self.records is None:
            return False
        if not self.records.total or self.records.repeated or self.far_from_declared:
            return False
        declared = self.spec.file
        if self.layout and self.layout.is_text and self.layout.mended(declared) != declared:
            return False
        total = self.records.total
        if any(values.records >= total > 0 for values in self.records.columns):
            return False
        if any(v.misspelt or v.decimals(declared.decimal) for v in self.records.columns):
            return False
        dropped = any(values.records for values in self.records.columns if values.column.drops)
        persons, weights = self.records.persons, self.records.weights
        if weights and (weights.counting_none or weights.share_cut_off >= FAR_OFF):
            return False
        replicates = self.records.replicates
        if replicates and (replicates.none or replicates.lost >= FAR_OFF):
            return False
        unclear = persons is not None and (persons.blank or persons.alike or persons.rounded)
        return not (dropped or unclear or self.records.malformed.records)


MAX_TEXTS = 10_000
"""Undeclared texts of a column that are counted at once."""
MAX_PERSONS = 2**21
"""Persons that are counted at once; of more, a random half, a quarter and so on is followed."""
_LONGEST = 64  # bytes of a text or an id that are kept
_EXACT_FLOAT = 2**53  # up to which every whole number is a float


class TextCounts:
    """Records of each text; where there are too many texts the rarer half is forgotten.

    A text that is common anywhere in the file, at its end too, is found all the same.
    """

    def __init__(self, most: int = MAX_TEXTS) -> None:
        self._most = most
        self._counts: Counter[bytes] = Counter()
        self.complete = True

    def add(self, text: bytes, records: int) -> None:
        """Count a text in some more records."""
        self._counts[text[:_LONGEST]] += records
        if len(self._counts) > self._most:
            commonest = heapq.nlargest(
                self._most // 2, self._counts.items(), key=lambda item: item[1]
            )
            self._counts = Counter(dict(commonest))
            self.complete = False

    def commonest(self) -> tuple[tuple[str, int], ...]:
        """Return all texts that are known, commonest first."""
        return tuple((readable(text), records) for text, records in self._counts.most_common())


class ColumnTally:
    """Undeclared values of one column."""

    def __init__(self, attribute: Attribute, column: Column, decimal: str = ".") -> None:
        self.column = column
        self._attribute = attribute
        self._codes = ColumnCodes(column, decimal)
        self._texts = TextCounts()
        self._seen = np.zeros(column.length, np.bool_)
        self._records = self._declared = self._alone = 0

    def add(self, texts: StoredValues) -> Bools:
        """Count one chunk; return for every record whether its value is undeclared."""
        parts = [np.zeros(0, np.bool_)]
        for distinct, index in texts:
            codes = self._codes.of(distinct)
            undeclared = (codes < 0) | (codes >= self.column.length)
            records = np.bincount(index, minlength=len(distinct))
            self._seen[codes[~undeclared & (records > 0)]] = True
            for place in np.flatnonzero(undeclared & (records > 0)).tolist():
                self._texts.add(distinct[place].as_py().strip(), int(records[place]))
            parts.append(undeclared[index])
        undeclared = np.concatenate(parts)
        self._records += int(undeclared.sum())
        self._declared += int((~undeclared).sum())
        return undeclared

    def add_alone(self, records: int) -> None:
        """Count records that are left out for this column alone."""
        self._alone += records

    def result(self) -> UndeclaredValues:
        """Return what was found."""
        absent: tuple[str, ...] = ()
        places, kind = np.flatnonzero(~self._seen), self.column.kind
        if isinstance(kind, Categorical):
            absent = tuple(kind.values[place] for place in places)
        return UndeclaredValues(
            self._attribute.name,
            self.column,
            self._records,
            self._declared,
            self._alone,
            self._texts.commonest(),
            self._texts.complete,
            absent,
            len(places) * isinstance(kind, Integers),
        )


def _counted_inside(texts: StoredValues, inside: Bools) -> Iterator[tuple[pa.Array, Ints]]:
    """Yield the distinct texts of a chunk's pieces, and how many records inside have each."""
    start = 0
    for distinct, index in texts:
        kept = index[inside[start : start + index.size]]
        start += index.size
        yield distinct, np.bincount(kept, minlength=len(distinct))


class WeightTally:
    """The weights of those records that nothing leaves out."""

    def __init__(self, weight: RecordWeight, decimal: str = ".") -> None:
        self._weight, self._decimal = weight, decimal
        self._codes = ColumnCodes(weight.column, decimal)
        self._records: Counter[float] = Counter()  # of each weight
        self._texts = TextCounts()

    def add(self, texts: StoredValues, inside: Bools) -> None:
        """Count the weights of one chunk, of the records that are inside."""
        for distinct, records in _counted_inside(texts, inside):
            counts_none = self._codes.of(distinct) == self._weight.steps
            for place in np.flatnonzero(records).tolist():
                text = distinct[place].as_py().strip()
                exact = number(text.decode(errors="replace"), self._decimal)
                value = math.nan if exact is None else nearest_float(exact)
                if counts_none[place] and not 0 <= value < math.inf:
                    self._texts.add(text, int(records[place]))
                else:
                    self._records[value] += int(records[place])

    def result(self) -> WeightsFound:
        """Return what was found."""
        weights, records = np.array(sorted(self._records.items()), float).reshape(-1, 2).T
        return WeightsFound(self._weight, weights, records, self._texts.commonest())


class ReplicateTally:
    """The replicate weights of those records that nothing leaves out, and that have a weight."""

    def __init__(self, weight: RecordWeight, names: Sequence[str], decimal: str) -> None:
        self._weight, self._decimal = weight, decimal
        self._names = names
        self._none, self._negative = Counter[str](), Counter[str]()
        self._scaled, self._before, self._lost = 0, 0.0, 0.0

    def add(self, texts: Mapping[str, StoredValues], inside: Bools) -> None:
        """Look at the records of one chunk that are inside."""
        columns = (self._weight.name, *self._names)
        full, *others = (numbers_in(texts[name], self._decimal) for name in columns)
        weighed = inside & (full >= float(self._weight.step) / 2)
        replicates = np.array(others)[:, weighed]
        for name, numbers in zip(self._names, replicates, strict=True):
            self._none[name] += int(np.isnan(numbers).sum())
            self._negative[name] += int((numbers < 0).sum())
        exact = exact_differences(full[weighed], replicates, self._weight)
        squared, most = (exact**2).sum(axis=0), float(self._weight.difference_steps) ** 2
        self._scaled += int((squared > most).sum())
        self._before += float(squared.sum())
        self._lost += float(np.maximum(squared - most, 0.0).sum())

    def result(self) -> ReplicatesFound:
        """Return what was found."""
        share = self._lost / self._before if self._lost else 0.0
        return ReplicatesFound(dict(+self._none), dict(+self._negative), self._scaled, share)


class PersonTally:
    """Rows of each person, of those rows that nothing else leaves out.

    Beyond so many persons a random part of them is followed, chosen by a hash that differs from
    run to run, with all rows of each: memory stays bounded and the picture true.
    """

    def __init__(self, decimal: str = ".", most: int = MAX_PERSONS) -> None:
        self._decimal, self._most = decimal, most
        self._rows: dict[bytes, int] = {}
        self._spelled: dict[bytes, tuple[bytes, int]] = {}  # other than by the name, in how many
        self._respelled: set[bytes] = set()
        self._mask = 0
        self.blank = self._blank_alone = 0

    def blanks(self, texts: StoredValues) -> Bools:
        """Return for every record of a chunk whether it has no id."""
        parts = [np.zeros(0, np.bool_)]
        for distinct, index in texts:
            names = person_names(distinct, self._decimal).to_pylist()
            parts.append(np.array([not name for name in names], np.bool_)[index])
        blank = np.concatenate(parts)
        self.blank += int(blank.sum())
        return blank

    def add(self, texts: StoredValues, inside: Bools) -> None:
        """Count the rows of one chunk that are inside."""
        for distinct, rows in _counted_inside(texts, inside):
            names = person_names(distinct, self._decimal).to_pylist()
            for text, name, count in zip(distinct.to_pylist(), names, rows.tolist(), strict=True):
                if count:
                    self._add(_identity(name), text.strip(), count)

    def add_alone(self, records: int) -> None:
        """Count records that are left out for want of an id alone."""
        self._blank_alone += records

    def _add(self, person: bytes, text: bytes, rows: int) -> None:
        if hash(person) & self._mask:
            return
        self._rows[person] = self._rows.get(person, 0) + rows
        if text != person and len(text) <= _LONGEST:
            first, before = self._spelled.get(person, (text, 0))
            self._spelled[person] = first, before + rows
            if text != first:
                self._respelled.add(person)
        if len(self._rows) > self._most:
            self._mask = 2 * self._mask + 1
            gone = {person for person in self._rows if hash(person) & self._mask}
            for person in gone:
                del self._rows[person]
                self._spelled.pop(person, None)
            self._respelled -= gone

    def result(self, sorted_by: tuple[str, ...] = ()) -> RowsPerPerson:
        """Return what was found, here and of the order of rows."""
        scale = self._mask + 1
        numbers = sorted(Counter(self._rows.values()).items())
        busiest = heapq.nlargest(3, self._rows.items(), key=lambda item: item[1])
        # One who has rows by the name itself too.
        self._respelled.update(p for p, (_, n) in self._spelled.items() if n < self._rows[p])
        return RowsPerPerson(
            tuple((rows, scale * number) for rows, number in numbers),
            1 / scale,
            self.blank,
            self._blank_alone,
            tuple((readable(person), rows) for person, rows in busiest),
            sorted_by,
            len(self._respelled),
            sum(
                (person.isdigit() and int(person) > _EXACT_FLOAT and not text.isdigit())
                for person, (text, _) in self._spelled.items()
            ),
            alike_ids(self._rows, self._decimal),
        )


def _identity(person: bytes) -> bytes:
    """Return what a person is counted by: the name, cut where it is long."""
    if len(person) <= _LONGEST:
        return person
    return b"%b %d" % (person[:_LONGEST], hash(person))


def readable(text: bytes) -> str:
    """Return the text of a field; bytes that are no UTF-8 stand as half characters."""
    return text.decode("utf-8", "surrogateescape")
