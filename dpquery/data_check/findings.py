"""What a check of a file found. All of it is made of the records: private, as they are."""

from dataclasses import dataclass

from dpquery.measurement.counting.value_codes import number_of
from dpquery.spec.domain import Column, Integers
from dpquery.spec.model import FileFormat, Spec
from dpquery.spec.numbers import is_whole

_AS_GOOD = {("latin-1", "cp1252"), ("utf-16", "utf-16-le"), ("utf-16", "utf-16-be")}
"""Encodings that seem to be, and declared ones that read the same bytes alike."""


@dataclass(frozen=True)
class Header:
    """The columns of all sources, held against the declared ones.

    Attributes:
        refusals: in which words a release would refuse a source, one for each that it would.
        missing: declared columns that a source lacks, or has in a type without a text.
        repeated: declared columns that a source has more than once.
        undeclared: names in files of text that the spec does not use, which is no mistake.
        zones: columns of dates whose times have a zone, with the zone, whose days are counted.
    """

    refusals: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    zones: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class UndeclaredValues:
    """What one column holds beside the values that the spec declares for it.

    Attributes:
        attribute: name of the attribute that the column belongs to.
        column: as it is declared.
        records: how many hold an undeclared value.
        declared: how many hold a declared one.
        alone: of those left out of every table, how many are for this column alone.
        commonest: undeclared texts with their records, commonest first.
        complete: whether these are all of them, and the counts exact; at least so many otherwise.
        absent: labels of declared values that no record holds, for a list of values.
    """

    attribute: str
    column: Column
    records: int
    declared: int
    alone: int
    commonest: tuple[tuple[str, int], ...]
    complete: bool
    absent: tuple[str, ...] = ()

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
    """How many rows persons have: those rows that no other reason leaves out.

    Attributes:
        persons: (rows, number of persons with so many), fewest rows first.
        share: of all persons that was looked at; below 1 the numbers are scaled up.
        blank: records without an id.
        blank_alone: of those, records that nothing else leaves out.
        busiest: ids of the persons with the most rows, with their rows.
        sorted_by: columns in whose order the rows of persons come, where the first ones are kept.
        respelled: persons whose id is a number that is written in several ways.
        rounded: ids that are whole numbers beyond 2^53, written as floats.
        alike: (what alone tells some ids apart, these ids, the persons that they would be).
    """

    persons: tuple[tuple[int, int], ...]
    share: float
    blank: int
    blank_alone: int
    busiest: tuple[tuple[str, int], ...]
    sorted_by: tuple[str, ...] = ()
    respelled: int = 0
    rounded: int = 0
    alike: tuple[tuple[str, int, int], ...] = ()

    def beyond(self, max_rows: int) -> int:
        """Return how many rows a limit leaves out."""
        return sum(max(0, rows - max_rows) * number for rows, number in self.persons)

    @property
    def number(self) -> int:
        """How many persons there are."""
        return sum(number for _, number in self.persons)


@dataclass(frozen=True)
class Malformed:
    """Records that cannot be split into fields.

    Attributes:
        records: how many.
        dropped: whether they are left out of every table.
        reasons: (what is wrong, how many, place of the first), of the first ones.
        looked_at: how many of them the reasons are of.
    """

    records: int
    dropped: bool
    reasons: tuple[tuple[str, int, str], ...]
    looked_at: int


@dataclass(frozen=True)
class Records:
    """What the records hold, read as a release reads them.

    Attributes:
        total: all records, malformed ones included.
        kept: those that a release counts in its totals.
        undeclared: those with an undeclared value in one column or more.
        columns: for every declared column what is undeclared in it, in the order of the spec.
        repeated: sources that hold the same records as an earlier one: both names, and how many.
    """

    total: int
    kept: int
    undeclared: int
    malformed: Malformed
    columns: tuple[UndeclaredValues, ...]
    persons: RowsPerPerson | None
    repeated: tuple[tuple[str, str, int], ...] = ()

    @property
    def left_out(self) -> int:
        """Records that are in no table."""
        return self.total - self.kept


@dataclass(frozen=True)
class FileGuess:
    """A guess at how a file of text is laid out; an empty text where that cannot be told.

    Attributes:
        name: of the file.
        container: what holds the text, such as "gzip"; empty for plain text.
        is_text: whether there are lines to read.
        encoding: of the text; empty where it is ASCII.
        delimiter: between fields.
        quote: around fields.
        decimal: the decimal mark of its numbers.
        newlines_in_quotes: whether fields in quotes go over several lines.
        names: fields of the first line.
        steady: share of the other lines that have as many fields.
        remarks: what is odd besides.
    """

    name: str
    container: str
    is_text: bool
    encoding: str = ""
    delimiter: str = ""
    quote: str = ""
    decimal: str = ""
    newlines_in_quotes: bool = False
    names: tuple[str, ...] = ()
    steady: float = 0.0
    remarks: tuple[str, ...] = ()

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
    """All that a check found.

    Attributes:
        spec: that the data were held against.
        header: their columns.
        layout: a guess at how a file of text is laid out; None where there is none.
        records: what they hold; None where the headers leave nothing to read.
        failures: where a source breaks in its midst, and so would a release.
        remedies: lines of YAML to paste into the spec.
    """

    spec: Spec
    header: Header
    layout: FileGuess | None
    records: Records | None
    failures: tuple[str, ...]
    remedies: tuple[str, ...]

    @property
    def as_declared(self) -> bool:
        """Whether nothing is left out that the spec does not say.

        It says that of each person `max_rows` rows count at most, so those beyond are no surprise,
        and what becomes of other texts in a column that takes them in. It does not say that there
        is no record; that records cannot be read, belong to nobody, or hold what a column drops;
        that ids may be of one person, or of several; that a column holds no declared value at all,
        or decimals where whole numbers are declared; that records are there twice; or that the
        file seems to be laid out otherwise.
        """
        if self.header.refusals or self.failures or self.records is None:
            return False
        if not self.records.total or self.records.repeated:
            return False
        declared = self.spec.file
        if self.layout and self.layout.is_text and self.layout.mended(declared) != declared:
            return False
        total = self.records.total
        if any(values.records >= total > 0 for values in self.records.columns):
            return False
        if any(values.decimals(declared.decimal) for values in self.records.columns):
            return False
        dropped = any(values.records for values in self.records.columns if values.column.drops)
        persons = self.records.persons
        unclear = persons is not None and (persons.blank or persons.alike or persons.rounded)
        return not (dropped or unclear or self.records.malformed.records)
