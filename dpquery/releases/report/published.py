"""A folder of published tables as data frames: what is published there, and nothing else."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dpquery.exceptions import SpecError
from dpquery.releases.manifest import ERRORS_FILE, Manifest, read_manifest, saying_damage
from dpquery.releases.manifest_facts import ItemFacts
from dpquery.releases.report.figures import load_report
from dpquery.releases.report.numbered import labelled_tables
from dpquery.spec.problems import quoted, suggestion
from dpquery.untrusted.parquet import opened

if TYPE_CHECKING:
    import pandas as pd


class PublishedTables:
    """Views of a release's folder, or of answers': what is published there and nothing else.

    Every call reads the folder anew, so that what comes out is the caller's to change.
    """

    directory: Path

    @cached_property
    def manifest(self) -> Manifest:
        """The facts of release.json."""
        return read_manifest(self.directory)

    @property
    def items(self) -> tuple[str, ...]:
        """Names of the items, in spec order."""
        return tuple(facts.name for facts in self.manifest.items)

    def arrow(self, item: str, table: str | None = None) -> pa.Table:
        """Return an item's answers, one row a query, with the columns of its file.

        Args:
            item: its name.
            table: one of its tables, by its attributes joined by ", ", or "total"; all unless
                named. Where the rows of the file are numbered, those of one table come with
                labels, intervals and flags.

        Raises:
            SpecError: there is no such item or table, or its file is damaged.
        """
        for derived in self.manifest.derived:
            if derived.name == item and table is None:
                return self._read(derived.file, rows=derived.rows)
        facts = self._facts(item)
        if table is None:
            return self._read(facts.file, rows=facts.queries)
        rows = self._rows_of(facts, table)
        if rows is None:
            raise SpecError(f"item {quoted(item)} of {self.directory} has no table {quoted(table)}")
        return rows

    def table(self, item: str, table: str | None = None) -> "pd.DataFrame":
        """Return an item's answers as a data frame: see `arrow`."""
        frame: pd.DataFrame = self.arrow(item, table).to_pandas()
        return frame

    @property
    def errors(self) -> "pd.DataFrame":
        """The errors of the answers, one row an item: errors.parquet."""
        table = self._read(ERRORS_FILE, rows=len(self.manifest.items))
        frame: pd.DataFrame = table.to_pandas()
        return frame

    def _facts(self, item: str) -> ItemFacts:
        facts = {item.name: item for item in self.manifest.items}
        if item not in facts:
            hint = suggestion(item, self.items)
            raise SpecError(f"{self.directory} has no item {quoted(item)}{hint}")
        return facts[item]

    def _rows_of(self, facts: ItemFacts, table: str) -> pa.Table | None:
        if facts.numbered:
            with saying_damage(self.directory, facts.file):
                return labelled_tables(self.directory, facts, table)
        rows = self._read(facts.file, rows=facts.queries)
        if "table" in rows.column_names:
            rows = rows.filter(pc.equal(rows["table"].cast(pa.string()), table))
            return rows if rows.num_rows else None
        return None

    def _read(self, name: str, *, rows: int) -> pa.Table:
        with saying_damage(self.directory, name), opened(self.directory / name, rows=rows) as file:
            return file.read()

    def __repr__(self) -> str:
        """Return the class and the folder: a whole report is no text to print."""
        return f"<{type(self).__name__}: {self.directory}>"

    def _repr_html_(self) -> str:
        """Return the error report's table, for notebooks."""
        return load_report(self.directory)._repr_html_()
