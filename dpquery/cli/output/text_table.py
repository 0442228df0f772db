"""A table to print, as plain text cells: built by rooms, rendered by the command line."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """A titled table with notes below it.

    Attributes:
        title: above the table.
        columns: their names.
        rows: cells as text.
        notes: lines below the table.
        strong: index of the row to stress.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    strong: int | None = None

    def numeric(self) -> list[bool]:
        """Return which columns hold numbers alone."""
        return [
            any(row[k] for row in self.rows)
            and all(not row[k] or row[k][0] in "0123456789-." for row in self.rows)
            for k in range(len(self.columns))
        ]
