"""`dpquery ledger`: the ledger of spent privacy budget."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpquery.cli.options import AsJson, Exact, LedgerPath, ledger_path
from dpquery.cli.screen import print_grids, print_json, say

if TYPE_CHECKING:
    from dpquery.measurement.ledger.ledger import Ledger


def status(ledger: LedgerPath = None, exact: Exact = False, as_json: AsJson = False) -> None:
    """Show what every dataset may spend, has spent and has left."""
    from dpquery.cli import show_release as summary

    with _open_ledger(ledger) as opened:
        statuses = opened.status()
    if as_json:
        print_json([summary.status_json(status) for status in statuses])
    else:
        print_grids(summary.status_grids(statuses, exact=exact))
    say(f"ledger: {ledger_path(ledger)}")


def history(ledger: LedgerPath = None, exact: Exact = False, as_json: AsJson = False) -> None:
    """List every event, oldest first."""
    from dpquery.cli import show_release as summary

    with _open_ledger(ledger) as opened:
        events = opened.history()
    if as_json:
        print_json([event.as_json() for event in events])
    else:
        print_grids([summary.history_grid(events, exact=exact)])


def verify(
    releases: Annotated[
        list[Path] | None,
        typer.Option("--releases", help="Release directories, or folders of them, to look up too."),
    ] = None,
    ledger: LedgerPath = None,
) -> None:
    """Check the hash chain and the stored measurements.

    With --releases, also that these releases, and all below these folders, are in the chain: one
    that is not shows that the ledger is an older copy, or one of two copies that were both charged.
    """
    from dpquery.measurement.ledger.ledger import releases_below
    from dpquery.releases.words import count

    published = [release for folder in releases or () for release in releases_below(folder)]
    with _open_ledger(ledger) as opened:
        head = opened.verify(published)
    typer.echo(f"ok: {count(head.seq, 'event')}, head {head.hash}")
    if published:
        typer.echo(f"ok: {count(len(published), 'release')} in the chain")


def export(ledger: LedgerPath = None) -> None:
    """Print every event as a line of JSON."""
    with _open_ledger(ledger) as opened:
        for line in opened.export():
            typer.echo(line)


def abandon(
    key: Annotated[
        str,
        typer.Argument(help="An unfinished run: its key as `ledger status` shows it, or whole."),
    ],
    ledger: LedgerPath = None,
) -> None:
    """Give up a run that never finished; its charge stays spent."""
    with _open_ledger(ledger) as opened:
        whole = opened.abandon(key)
    say(f"abandoned {whole}; its charge stays spent")


@contextmanager
def _open_ledger(given: Path | None) -> Iterator["Ledger"]:
    from dpquery.measurement.ledger.ledger import Ledger

    with Ledger.open(ledger_path(given), create=False) as opened:
        yield opened
