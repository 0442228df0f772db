"""What commands print: results to stdout, progress and messages to stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from dpquery.cli.grid import Grid


@contextmanager
def shown_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as shown:
        yield shown.update


def say(message: str) -> None:
    """Write a message to stderr."""
    typer.echo(message, err=True)


def print_json(value: object) -> None:
    """Print a result as indented JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_grids(grids: Sequence["Grid"]) -> None:
    """Render tables; a pipe gets the full width of their text, no colours and no padding."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 240, highlight=False)
    for grid in grids:
        table = Table(box=None, pad_edge=False)
        for name, right in zip(grid.columns, grid.numeric(), strict=True):
            table.add_column(escape(name), justify="right" if right else "left", overflow="fold")
        for place, row in enumerate(grid.rows):
            style = "bold" if place == grid.strong else None
            table.add_row(*(escape(cell) for cell in row), style=style)
        with console.capture() as rendered:
            console.print(escape(grid.title), table, *map(escape, grid.notes), sep="\n")
        for line in rendered.get().splitlines():
            typer.echo(line.rstrip())
        typer.echo()
