"""What a check of a file found. All of it is made of the records: private, as they are."""

from dataclasses import dataclass

from dpquery.spec.domain import Column
from dpquery.spec.model import Spec


@dataclass(frozen=True)
class Header:
    """The column names of a file, held against the declared ones; all empty where there are none.

    Attributes:
        names: in file order; None where the first line cannot be read as the spec declares.
        missing: declared columns that are not there.
        repeated: declared columns that are there more than once.
        undeclared: names that the spec does not use, which is no mistake.
    """

    names: tuple[str, ...] | None
    missing: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether a release would read the file: each declared column is there, once."""
        return self.names is not None and not self.missing and not self.repeated


@dataclass(frozen=True)
class UndeclaredValues:
    """What one column holds beside the values that the spec declares for it.

    Attributes:
        attribute: name of the attribute that the column belongs to.
        column: as it is declared.
        records: how many hold an undeclared value.
        alone: of those left out of every table, how many are for this column alone.
        commonest: undeclared texts with their records, commonest first.
        complete: whether these are all of them, and the counts exact; at least so many otherwise.
        absent: labels of declared values that no record holds, for a list of values.
    """

    attribute: str
    column: Column
    records: int
    alone: int
    commonest: tuple[tuple[str, int], ...]
    complete: bool
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowsPerPerson:
    """How many rows persons have: those rows that no other reason leaves out.

    Attributes:
        persons: (rows, number of persons with so many), fewest rows first.
        share: of all persons that was looked at; below 1 the numbers are scaled up.
        blank: records without an id.
        blank_alone: of those, records that nothing else leaves out.
        busiest: ids of the persons with the most rows, with their rows.
    """

    persons: tuple[tuple[int, int], ...]
    share: float
    blank: int
    blank_alone: int
    busiest: tuple[tuple[str, int], ...]

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
        reasons: (what is wrong, how many, line of the first), of the first ones.
        looked_at: how many of them the reasons are of.
    """

    records: int
    dropped: bool
    reasons: tuple[tuple[str, int, int], ...]
    looked_at: int


@dataclass(frozen=True)
class Records:
    """What the records hold, read as a release reads them.

    Attributes:
        total: all records, malformed ones included.
        kept: those that a release counts in its tables.
        columns: for every declared column what is undeclared in it, in the order of the spec.
    """

    total: int
    kept: int
    malformed: Malformed
    columns: tuple[UndeclaredValues, ...]
    persons: RowsPerPerson | None

    @property
    def left_out(self) -> int:
        """Records that are in no table."""
        return self.total - self.kept


@dataclass(frozen=True)
class FileGuess:
    """A guess at how a file is laid out, from its beginning.

    Attributes:
        container: what holds the text, such as "gzip"; empty for plain text.
        is_text: whether there are lines to read.
        encoding: of the text.
        delimiter: between fields.
        quote: around fields.
        decimal: the decimal mark of its numbers.
        newlines_in_quotes: whether fields in quotes go over several lines.
        names: fields of the first line.
        steady: share of the other lines that have as many fields.
        remarks: what is odd besides.
    """

    container: str
    is_text: bool
    encoding: str = "utf-8"
    delimiter: str = ","
    quote: str = '"'
    decimal: str = "."
    newlines_in_quotes: bool = False
    names: tuple[str, ...] = ()
    steady: float = 0.0
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataCheck:
    """All that a check found.

    Attributes:
        spec: that the file was held against.
        header: its columns.
        layout: a guess at how it is laid out.
        records: what it holds; None where the header leaves nothing to read.
        remedies: lines of YAML to paste into the spec.
    """

    spec: Spec
    header: Header
    layout: FileGuess
    records: Records | None
    remedies: tuple[str, ...]

    @property
    def as_declared(self) -> bool:
        """Whether nothing is left out that the spec does not say.

        It says that of each person `max_rows` rows count at most, so those beyond are no surprise,
        and what becomes of other texts in a column that takes them in. It does not say that
        records cannot be read, belong to nobody, or hold what a column drops.
        """
        if not self.header.fits or self.records is None:
            return False
        dropped = any(own.records for own in self.records.columns if not own.column.other)
        nobody = self.records.persons is not None and self.records.persons.blank > 0
        return not (dropped or nobody or self.records.malformed.records)
