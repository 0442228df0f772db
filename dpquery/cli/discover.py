"""`dpquery discover`: what to declare of a column, found privately."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpquery.cli.options import AsJson, ChangeCap, LedgerPath, NewDataset, ledger_path
from dpquery.cli.screen import (
    Grid,
    announced_if_new,
    data_at,
    forbid_dumps,
    print_grids,
    print_json,
    say,
    say_new,
    show,
    shown_progress,
)
from dpquery.commands.defaults import CELLS, LARGEST_NUMBER, MAX_VALUES, SPEC_PATH

if TYPE_CHECKING:
    from dpquery.commands.discover import DiscoveryReport

_MOST_VALUES = 10_000  # of a range that is offered
_NO_MORE = 1.005  # times the least error: no more than that, as it is shown
_MOST_OUTSIDE = 0.5  # of all numbers, of bins that are offered


def discover_command(
    data: Annotated[list[str], typer.Argument(help="The data, as `dpquery release` takes it.")],
    epsilon: Annotated[str, typer.Option(help="What the discovery may spend.")],
    delta: Annotated[str, typer.Option(help="With it; half is for the threshold of --column.")],
    column: Annotated[str | None, typer.Option(help="The column, for its values.")] = None,
    number: Annotated[str | None, typer.Option(help="Or for range and bins of numbers.")] = None,
    rows_per_person: Annotated[str | None, typer.Option(help="Or of ids, for max_rows.")] = None,
    person: Annotated[
        str | None, typer.Option(help="The column that tells persons apart: the spec's.")
    ] = None,
    max_values: Annotated[
        int, typer.Option(min=1, max=LARGEST_NUMBER, help="The most values of a person that count.")
    ] = MAX_VALUES,
    cells: Annotated[
        int, typer.Option(min=1, help="Cells of the table that `max_rows` is chosen for.")
    ] = CELLS,
    spec: Annotated[
        Path,
        typer.Option(help="The workload; its dataset, privacy, budget and file are read alone."),
    ] = Path(SPEC_PATH),
    out: Annotated[Path | None, typer.Option(help="To write; default: COLUMN.csv.")] = None,
    change_cap: ChangeCap = False,
    new_dataset: NewDataset = False,
    ledger: LedgerPath = None,
    as_json: AsJson = False,
) -> None:
    """Find the values of a column that many persons have, privately, and write them to a file.

    Or the range and bins of one of numbers, or the max_rows that loses least. For what is not known
    beforehand; to declare it costs nothing. The same discovery again is free.
    """
    from dpquery.commands.discover import discover

    forbid_dumps()
    with data_at(data) as located, announced_if_new(ledger_path(ledger)), shown_progress():
        done = discover(
            located,
            column=column,
            number=number,
            rows_per_person=rows_per_person,
            epsilon=epsilon,
            delta=delta,
            spec_path=spec,
            person=person,
            max_values=max_values,
            cells=cells,
            out=out,
            ledger_path=ledger_path(ledger),
            change_cap=change_cap,
            new_dataset=new_dataset,
        )
    if done.stale:
        say(f"warning: {done.stale}")
    if done.measured.stored:
        say("nothing was charged: the ledger gave this discovery again; the data was not opened")
    if as_json:
        print_json(_json(done))
    else:
        show(_text(done, spec))
        if done.max_rows:
            print_grids([_rows_grid(done)])
    say_new(done.new)
    say(f"ledger: {ledger_path(ledger)}")


def _text(done: "DiscoveryReport", spec: Path) -> str:
    """Return the lines that `discover` prints."""
    from dpquery.measurement.ledger.funds import delta_text
    from dpquery.releases.budget_words import room_words, taken_words

    query, measured = done.query, done.measured
    account, threshold = measured.account, query.guarantee.threshold
    said = taken_words(
        measured.charged, account, pure=None, parent=measured.parent, what="discovery"
    )
    took, spent, apart = map(delta_text, (threshold, account.threshold, account.cap.discover))
    more = "no delta for another like it is left"
    if done.room.funds.threshold_left >= threshold:
        pure = "pure releases no longer add up by their epsilons; "
        more = pure * (not query.spec.privacy.delta)
        more += room_words(done.room, "more like it", query.delta)
    of_threshold = (
        f"delta: the threshold takes {took}; with it {spent} of the {apart} for discoveries is "
        "spent\n"
    )
    return (
        f"{_found(done)}\n"
        f"budget: {said}\n"
        f"{of_threshold if threshold else ''}"
        f"{'now' if measured.stored else 'after it'}: {more}\n"
        f"next: {_next(done, spec)}"
    )


def _found(done: "DiscoveryReport") -> str:
    """Return what was found and how exactly, and what is not seen."""
    from dpquery.releases.words import count, percent

    query = done.query
    whom = "rows" if query.spec.privacy.person is None else "persons"
    noise, drawn, so = f"standard deviation {query.mechanism.noise_std:.3g}", "", ""
    if whom == "persons":
        most, so = count(query.max_values, query.sought[:-1]), " so"
        drawn = f"counted: of each person at most {most}, drawn by chance of more; a larger "
        drawn += "--max-values costs no more, and has more noise"
        if query.max_values > 1 and query.sought == "numbers":
            drawn += "; who has several may count in several bins"
        drawn += "\n"
    if query.sought == "values":
        return (
            f"{done.file}: {count(len(done.values), 'value')} of {query.column}, with noisy "
            f"numbers of {whom} ({noise})\n{drawn}"
            f"not seen: values of fewer than about {query.threshold:,} {whom}{so} counted are "
            f"mostly not found, those of {done.mostly_found_from:,} or more nearly always; the "
            f"numbers near {query.threshold:,} are too large on average"
        )
    if query.sought == "numbers":
        found, outside = done.numbers, ""
        bins = count(len(found.bins) if found else 0, "bin")
        if found is not None:
            seen, further = max(found.outside, 0), 2 * found.outside_std
            off = f"{max(seen - further, 0):,.0f} to {seen + further:,.0f} {whom} (95 %)"
            outside = f"outside: {off}, at most {percent(found.most_outside)} of all numbers\n"
        return (
            f"{done.file}: {bins} of {query.column}, noisy counts of {whom} and their std\n"
            f"{drawn}not counted: blanks and texts\n{outside}"
            f"not seen: fewer than about {done.least_seen:,} {whom} far from all others"
        )
    return (
        f"{done.file}: what each max_rows does to a table of {count(done.cells, 'equal cell')}, "
        "given all the budget left\n"
        "error of a cell: rows left out and noise together, root mean square\n"
        f"not seen: fewer than about {done.least_seen:,} persons with very many rows, beyond what "
        "the upper ends allow for; if you know of such, declare max_rows by what you know"
    )


def _rows_grid(done: "DiscoveryReport") -> Grid:
    """Return what each max_rows does."""
    from dpquery.releases.words import figure, percent

    heads = ("max_rows", "rows left out, 95 %", "noise of a count", "error of a cell, 95 %")
    rows = [
        (
            f"{each.max_rows:,}",
            f"{percent(each.left_out_low)} to {percent(each.left_out_high)}",
            figure(each.noise_std),
            f"{figure(each.error_low)} to {figure(each.error_high)}",
        )
        for each in done.max_rows
    ]
    return Grid(f"rows of persons, by {done.query.column}", heads, tuple(rows))


def _next(done: "DiscoveryReport", spec: Path) -> str:
    """Return what is done with what was found: lines for the spec."""
    from dpquery.reconstruction.discovered import edge_text
    from dpquery.releases.words import percent
    from dpquery.spec.code_books import flow

    header, inside = flow(done.query.column), os.path.relpath(done.file, spec.parent)
    column = flow(done.query.spec.domain.attributes[0].name)
    of = f"column: {header}, " * (column != header)
    if best := done.least_regret:
        what = f"{best.max_rows:,} may have {math.ceil(best.regret * 10) / 10:.3g} times the least"
        if done.best_max_rows is None:
            return f"no max_rows is named, as even {what} error; a larger --epsilon tells more"
        what = f"{best.max_rows:,} loses least" if best.regret < _NO_MORE else f"{what} error"
        unit = f"unit: {{person: {header}, max_rows: {best.max_rows}}}"
        return f"in the privacy of {spec}, where max_rows {what}:\n  {unit}"
    if done.query.sought == "numbers" and done.numbers is not None:
        if (most := done.numbers.most_outside) > _MOST_OUTSIDE:
            return (
                f"too little stands out of the noise for a spec, as up to {percent(most)} may lie "
                "outside; a larger epsilon finds more, at its price"
            )
        low, high = done.numbers.whole_range
        edges = ", ".join(map(edge_text, done.numbers.edges))
        of_whole = f"\n  {column}: {{{of}range: [{low}, {high}], other: show}}"
        whole = all(edge.denominator == 1 for edge in done.numbers.edges)
        listed = whole and 0 < high - low < _MOST_VALUES
        told = "bins or, if there are no decimals, a range" if listed else "bins"
        return (
            f"in the domain of {spec}, {told}:\n"
            f"  {column}: {{{of}bins: [{edges}], other: show}}{of_whole * listed}"
        )
    if not done.values:
        nothing = "nothing stands out of the noise"
        if done.query.sought == "values":
            nothing = "no value was counted so often, and no spec can take an empty list"
            of_persons = done.query.spec.privacy.person is not None
            nothing += "; a larger --max-values counts more of those who have several" * of_persons
        if done.query.sought == "numbers":
            nothing += " (nor do zeros alone; texts are found by --column)"
        return f"{nothing}; a larger --epsilon sees what fewer have, at its price"
    outside = "; put the file into the spec's folder" if inside.startswith("..") else ""
    file = Path(inside).name if outside else Path(inside).as_posix()
    return (
        f"in the domain of {spec} (all other values are then counted together), and plan it"
        f"{outside}:\n  {column}: {{{of}values_file: {flow(file)}, other: show}}"
    )


def _json(done: "DiscoveryReport") -> dict[str, object]:
    """Return what `discover --json` prints; budget amounts are exact decimal text."""
    from dpquery.measurement.accounting import units_text

    query, measured = done.query, done.measured
    return {
        "file": str(done.file),
        "column": query.column,
        **_found_json(done),
        "noise_std": query.mechanism.noise_std,
        "epsilon": float(query.epsilon),
        "delta": float(query.delta),
        "free": measured.stored,
        "currency": measured.account.cap.currency,
        "charged": units_text(measured.charged),
        "charged_delta": str(query.guarantee.threshold),
        "spent": units_text(measured.account.spent),
        "spent_delta": str(measured.account.threshold),
    }


def _found_json(done: "DiscoveryReport") -> dict[str, object]:
    """Return what was found, by what was looked for."""
    if done.query.sought == "rows":
        table = [vars(each) for each in done.max_rows]
        return {"least_seen": done.least_seen, "max_rows": table, "best": done.best_max_rows}
    if done.query.sought == "numbers":
        if done.numbers is None:
            return {"least_seen": done.least_seen, "bins": []}
        names = ("from", "below", "noisy_count", "std", "classes")
        return {
            "least_seen": done.least_seen,
            "bins": [
                dict(zip(names, (float(low), float(high), *of), strict=True))
                for low, high, *of in done.numbers.bins
            ],
            "range": done.numbers.whole_range,
            "outside": {"noisy_count": done.numbers.outside, "std": done.numbers.outside_std},
        }
    return {
        "values": [{"value": value, "noisy_count": count} for value, count in done.values],
        "threshold": done.query.threshold,
        "nearly_always_from": done.mostly_found_from,
    }
