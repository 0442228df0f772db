"""`dpquery discover`: the values of a column that many persons have."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpquery.cli.options import AsJson, LedgerPath, NewDataset, ledger_path
from dpquery.cli.screen import (
    announced_if_new,
    data_at,
    forbid_dumps,
    print_json,
    say,
    show,
    shown_progress,
)
from dpquery.commands.defaults import LARGEST_NUMBER, MAX_VALUES, SPEC_PATH

if TYPE_CHECKING:
    from dpquery.commands.discover import DiscoveryReport

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")


def discover_command(
    data: Annotated[list[str], typer.Argument(help="The data, as `dpquery release` takes it.")],
    column: Annotated[str, typer.Option(help="The header of the column.")],
    epsilon: Annotated[str, typer.Option(help="What the discovery may spend.")],
    delta: Annotated[
        str,
        typer.Option(help="With it; half comes off the budget's `discover`."),
    ],
    person: Annotated[
        str | None, typer.Option(help="The column that tells persons apart: the spec's.")
    ] = None,
    max_values: Annotated[
        int,
        typer.Option(min=1, max=LARGEST_NUMBER, help="The most values of a person that count."),
    ] = MAX_VALUES,
    spec: Annotated[
        Path,
        typer.Option(help="The workload; its dataset, privacy, budget and file are read alone."),
    ] = Path(SPEC_PATH),
    out: Annotated[
        Path | None, typer.Option(help="The file of values; default: COLUMN.csv beside the spec.")
    ] = None,
    new_dataset: NewDataset = False,
    ledger: LedgerPath = None,
    as_json: AsJson = False,
) -> None:
    """Find the values of a column that many persons have, privately, and write them to a file.

    For columns whose values are not known beforehand; to list them costs nothing. Values of few
    persons are not found. The same discovery again is free.
    """
    from dpquery.commands.discover import discover

    forbid_dumps()
    with data_at(data) as located, announced_if_new(ledger_path(ledger)), shown_progress():
        done = discover(
            located,
            column=column,
            epsilon=epsilon,
            delta=delta,
            spec_path=spec,
            person=person,
            max_values=max_values,
            out=out,
            ledger_path=ledger_path(ledger),
            new_dataset=new_dataset,
        )
    if done.stale:
        say(
            f"warning: {done.stale}: these values are out of the ledger; to find those of new "
            "data, which is charged, give the dataset another `version:` in the spec"
        )
    if done.measured.stored:
        say("nothing was charged: the ledger gave this discovery again; the data was not opened")
    if as_json:
        print_json(_json(done))
    else:
        show(_text(done, spec))
    for name in done.new:
        say(f"{name} is new in this ledger, with a budget of its own")
    say(f"ledger: {ledger_path(ledger)}")


def _text(done: "DiscoveryReport", spec: Path) -> str:
    """Return the lines that `discover` prints."""
    from dpquery.measurement.ledger.funds import delta_text
    from dpquery.releases.budget_words import room_words, taken_words
    from dpquery.releases.words import count

    query, measured = done.query, done.measured
    account, threshold = measured.account, query.guarantee.threshold
    whom = "rows" if query.spec.privacy.person is None else "persons"
    said = taken_words(
        measured.charged, account, pure=None, parent=measured.parent, what="discovery"
    )
    took, spent, apart = map(delta_text, (threshold, account.threshold, account.cap.discover))
    more = "no delta for another like it is left"
    if done.room.funds.threshold_left >= threshold:
        more = f"{room_words(done.room, 'more like it')}, with delta {delta_text(query.delta)}"
    return (
        f"{done.file}: {count(len(done.values), 'value')} of {query.column}, with noisy numbers of "
        f"{whom} (standard deviation {query.mechanism.noise_std:.3g})\n"
        f"not seen: values that fewer than about {query.threshold:,} {whom} have are mostly not "
        f"found, those that {done.mostly_found_from:,} or more have nearly always\n"
        f"budget: {said}\n"
        f"delta: the threshold takes {took}; with it {spent} of the {apart} for discoveries is "
        "spent\n"
        f"after it: {more}\n"
        f"next: {_next(done, spec)}"
    )


def _next(done: "DiscoveryReport", spec: Path) -> str:
    """Return what is done with the file."""
    if not done.values:
        return "no spec can take a list without values; a larger epsilon finds more, at its price"
    column, inside = done.query.column, os.path.relpath(done.file, spec.parent)
    outside = "; put the file into the spec's folder" if inside.startswith("..") else ""
    file = Path(inside).name if outside else Path(inside).as_posix()
    return (
        f"in the domain of {spec} (all other values are then counted together), and plan it"
        f"{outside}:\n  {_in_yaml(column)}: {{values_file: {_in_yaml(file)}, other: show}}"
    )


def _in_yaml(text: str) -> str:
    """Return a text as YAML reads it in braces: a quoted one is one of JSON."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _json(done: "DiscoveryReport") -> dict[str, object]:
    """Return what `discover --json` prints; budget amounts are exact decimal text."""
    from dpquery.measurement.accounting import units_text

    query, measured = done.query, done.measured
    return {
        "file": str(done.file),
        "column": query.column,
        "values": [{"value": value, "noisy_count": count} for value, count in done.values],
        "noise_std": query.mechanism.noise_std,
        "threshold": query.threshold,
        "nearly_always_from": done.mostly_found_from,
        "epsilon": float(query.epsilon),
        "delta": float(query.delta),
        "free": measured.stored,
        "currency": measured.account.cap.currency,
        "charged": units_text(measured.charged),
        "charged_delta": str(query.guarantee.threshold),
        "spent": units_text(measured.account.spent),
        "spent_delta": str(measured.account.threshold),
    }
