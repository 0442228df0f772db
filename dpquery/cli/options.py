"""Options that commands share, with their help."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dpquery.commands.defaults import LARGEST_NUMBER, LEVEL, LEVELS, MOST_JOBS
from dpquery.limits import LARGEST_INTEGER

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Exact = Annotated[
    bool, typer.Option("--exact", help="Show budgets in their currency, to the last digit.")
]
LedgerPath = Annotated[
    Path | None,
    typer.Option(
        "--ledger", help="The ledger; default $DPQUERY_LEDGER or the user's state directory."
    ),
]
Delta = Annotated[str | None, typer.Option(help="The delta of the guarantee; default: the spec's.")]
NoiseOption = Annotated[
    Literal["laplace", "gaussian", "auto"],
    typer.Option(
        help="auto: the better by the plan. A named one needs a linear "
        "strategy, unless --mechanism rap or adaptive (which take gaussian)."
    ),
]
ObjectiveOption = Annotated[
    Literal["rmse", "max"], typer.Option(help="What to minimise; max: the largest standard error.")
]
Mechanism = Literal["linear", "rap", "adaptive", "auto"]
ReleaseMechanismOption = Annotated[
    Mechanism,
    typer.Option(help="rap and adaptive have no error bars; auto: what the plan prefers."),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        help=f"Level of the noise intervals, {LEVELS[0]:g} to {LEVELS[1]:g}; default: {LEVEL:g}."
    ),
]
Number = Annotated[
    int,
    typer.Option(
        "--release-number",
        min=1,
        max=LARGEST_NUMBER,
        help="A new number draws fresh noise, at full charge.",
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace an earlier, different release in --out.")
]
AsPlanned = Annotated[
    bool,
    typer.Option("--as-planned", help="Release what was planned, though the spec has changed."),
]
Same = Annotated[
    bool, typer.Option("--same", help="Write what the ledger holds, though the data has changed.")
]
Also = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        help="Add a column beside the estimates: nonnegative, consistent, thresholded[:Z], "
        "integer, graphical, shrunk or averaged; several with commas.",
    ),
]
PlanMechanismOption = Annotated[
    Mechanism,
    typer.Option(
        help="adaptive: whole tables chosen in rounds; auto: linear, or "
        "where the spec prefers the smallest error the best of the three."
    ),
]
ProxyPath = Annotated[
    Path | None,
    typer.Option(
        "--proxy",
        help="PUBLIC data to judge tables on, to rehearse RAP and adaptive measurement on, and to "
        "try derived targets on: a CSV file of the same columns, or a release folder. Never the "
        "records to be protected: the plan shows what it gave.",
    ),
]
RapSearch = Annotated[
    bool, typer.Option("--rap-search", help="Search RAP's rounds and queries on the proxy.")
]
SearchBoth = Annotated[
    bool,
    typer.Option(
        "--search-both", help="Search a kind of noise for long that is far from being taken, too."
    ),
]
ChangeCap = Annotated[
    bool,
    typer.Option(
        "--change-cap", help="Replace the caps on record by the spec's, or add its parent."
    ),
]

NewDataset = Annotated[
    bool,
    typer.Option(
        "--new-dataset", help="The dataset is a new one, though its id is like one on record."
    ),
]
TimeLimit = Annotated[
    float,
    typer.Option(
        min=0, help="CPU seconds of search for each kind of noise; the best so far stands."
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, max=LARGEST_INTEGER, help="Seed of the optimisers' starts.")
]
Jobs = Annotated[
    int,
    typer.Option(
        min=1, max=MOST_JOBS, help=f"Processes: {MOST_JOBS} searches both kinds of noise at once."
    ),
]

Shown = Annotated[
    str | None,
    typer.Option(
        help="Show errors, and rehearse RAP, at this epsilon; default: 1, or what targets take."
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target", help="Plan for the least epsilon that keeps an error: 'ITEM: sd <= 50'."
    ),
]
SweepList = Annotated[
    str | None, typer.Option("--sweep", help="Show errors at these epsilons too: 0.1,0.5,1,2.")
]
CodeBook = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="A code book to take the columns from: a Frictionless table schema, CSVW, or the "
        "labels of an SPSS or Stata file, of which no row is read.",
    ),
]
ItemNames = Annotated[
    list[str] | None, typer.Option("--items", help="Items that are wanted: a,b; default: all.")
]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        help="Beside Parquet: csv; for a package also xlsx and replicates[:100] (draws of the "
        "noise of every answer). Several with commas.",
    ),
]


def ledger_path(given: Path | None) -> Path:
    """Return the ledger that was named, or the default one."""
    from dpquery.measurement.ledger.store import default_path

    return default_path() if given is None else given
