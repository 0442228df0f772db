"""What to do about a file that is another kind than its suffix says, before the charge."""

from pathlib import Path

from dpquery.measurement.counting.sources import open_regular
from dpquery.untrusted.file_kinds import kind_of

SUFFIX_OF_CODEC = {"gzip": ".gz", "zstd": ".zst", "bz2": ".bz2"}
_SUFFIXES = {**SUFFIX_OF_CODEC, "Parquet": ".parquet", "Arrow": ".arrow"}
_REMEDIES = {
    "zip": "it is a zip archive, as .xlsx files are: unpack it, or write the table as CSV",
    "SQLite": "it is an SQLite database: name a table, 'sqlite:FILE?table=NAME'",
    "DuckDB": "it is a DuckDB database: name a table, 'duckdb:FILE?table=NAME'",
    "Office": "it is an old Office file, as .xls files are: write the table as CSV",
    "Stata": "it is a Stata file: write the table as CSV",
    "SPSS": "it is an SPSS file: write the table as CSV",
}
_LONGEST = 16  # first bytes that tell kinds apart


def kind_of_file(path: Path) -> str:
    """Return what a file is by its first bytes; DataError if it cannot be read."""
    with open_regular(path) as file:
        try:
            return kind_of(file.read(_LONGEST))
        except OSError:
            return ""


def remedy_for(kind: str, path: Path) -> str:
    """Return what to do about a file of a kind; an empty text where it has the suffix of its kind.

    >>> remedy_for("gzip", Path("data.csv"))
    'it is gzip: give it the suffix .gz'
    """
    suffix = _SUFFIXES.get(kind)
    if suffix is None:
        return _REMEDIES.get(kind, "")
    return "" if path.suffix.lower() == suffix else f"it is {kind}: give it the suffix {suffix}"
