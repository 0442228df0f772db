"""The command line: arguments in, tables out. The only place with typer and rich.

Results go to stdout, progress and messages to stderr. Heavy modules are imported inside commands,
so that --help is quick.
"""

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from dpquery import __version__
from dpquery.exceptions import DpqueryError, SpecError
from dpquery.spec.problems import one_of

if TYPE_CHECKING:
    from dpquery.grid import Grid
    from dpquery.measurement.ledger import Ledger

app = typer.Typer(
    name="dpquery",
    help="Publish differentially private tables: plan without data, release under a ledger, "
    "report every error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
ledger_app = typer.Typer(help="Inspect the ledger of spent privacy budget.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
LedgerPath = Annotated[
    Path | None,
    typer.Option(
        "--ledger", help="The ledger; default $DPQUERY_LEDGER or the user's state directory."
    ),
]
Delta = Annotated[str | None, typer.Option(help="The delta of the guarantee; default: the spec's.")]
Noise = Annotated[str, typer.Option(help="laplace, gaussian, or auto: the better by the plan.")]
Objective = Annotated[
    str, typer.Option(help="What to minimise: rmse, or max, the largest standard error.")
]
Confidence = Annotated[
    float, typer.Option(help="Level of the noise intervals.", min=0.5, max=0.9999)
]
Number = Annotated[
    int,
    typer.Option("--release-number", min=1, help="A new number draws fresh noise, at full charge."),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace an earlier, different release in --out.")
]
ChangeCap = Annotated[
    bool, typer.Option("--change-cap", help="Replace the cap on record by the spec's.")
]

TimeLimit = Annotated[
    float,
    typer.Option(
        min=0, help="CPU seconds of search for each kind of noise; the best so far stands."
    ),
]
Jobs = Annotated[
    int, typer.Option(min=1, max=2, help="Processes: 2 searches both kinds of noise at once.")
]

Shown = Annotated[
    str | None, typer.Option(help="Show errors at this epsilon; default: 1, or what targets take.")
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

_INTERRUPTED = "interrupted; what the ledger has charged stays charged, and a retry is free"


def main() -> None:
    """Run the command line; every failure is one message on stderr and an exit code."""
    for library in ("OPENBLAS", "MKL", "OMP"):
        # One thread: small matrices run up to twenty times faster, and sums come out the same
        # whatever the machine, so that a plan does. Read when numpy is first imported.
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    try:
        app()
    except DpqueryError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail(_INTERRUPTED, 130)
    except SystemExit as ended:
        if ended.code == 130:  # Ctrl-C inside a command, of which typer says nothing
            _fail(_INTERRUPTED, 130)
        raise
    except Exception as error:
        _fail(f"internal error ({type(error).__name__}); nothing more is shown: it may be data", 70)


def _fail(message: str, code: int) -> None:
    for line in message.splitlines() or [""]:
        sys.stderr.write(f"dpquery: {line}\n")
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpquery {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("workload.yaml"),
) -> None:
    """Write a commented spec to start from.

    Its JSON Schema goes beside it, as workload.schema.json: editors complete and check with it.
    """
    from dpquery.spec.schema import schema_text
    from dpquery.spec.starter import STARTER

    beside = path.with_name("workload.schema.json")
    try:
        if not beside.exists():
            beside.write_text(schema_text(), encoding="utf-8")
        with path.open("x", encoding="utf-8") as file:
            file.write(STARTER)
    except FileExistsError:
        raise SpecError(f"{path} exists; name another file, or remove it first") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}; check the path") from None
    _say(f"wrote {path}; edit it, then run `dpquery plan {path}`")


@app.command()
def schema() -> None:
    """Print the JSON Schema (draft 7) of the spec."""
    from dpquery.spec.schema import schema_text

    typer.echo(schema_text(), nl=False)


@app.command()
def plan(
    spec: Annotated[Path, typer.Argument(help="The workload: a YAML file.")],
    epsilon: Shown = None,
    delta: Delta = None,
    objective: Objective = "rmse",
    target: Targets = None,
    sweep: SweepList = None,
    out: Annotated[Path, typer.Option(help="Where the plan goes.")] = Path("dpquery.plan"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the optimisers' starts.")] = 0,
    time_limit: TimeLimit = 60.0,
    jobs: Jobs = 2,
    change_cap: ChangeCap = False,
    ledger: LedgerPath = None,
    as_json: AsJson = False,
) -> None:
    """Choose the best strategy for a workload, without data.

    Shows what each candidate is worth, writes the plan, and puts the dataset and its cap on record
    in the ledger.
    """
    from dpquery import pipeline, summary
    from dpquery.measurement.accounting import parse_delta, parse_epsilon
    from dpquery.strategy import select

    with _progress() as progress:
        report = pipeline.plan(
            spec,
            plan_path=out,
            ledger_path=_ledger_path(ledger),
            objective=one_of("objective", objective, get_args(select.Objective)),
            targets=target or (),
            sweep=sweep,
            seed=seed,
            time_limit=time_limit,
            jobs=min(jobs, os.cpu_count() or 1),
            change_cap=change_cap,
            epsilon=None if epsilon is None else parse_epsilon(epsilon),
            delta=None if delta is None else parse_delta(delta),
            progress=progress,
        )
    if as_json:
        _print_json(summary.plan_json(report))
    else:
        _print_grids(summary.plan_grids(report))
    _say(f"wrote {out}; ledger: {_ledger_path(ledger)}")


@app.command()
def release(
    data: Annotated[Path, typer.Argument(help="The data: a CSV file with a header.")],
    epsilon: Annotated[str, typer.Option(help="What this release may spend.")],
    delta: Delta = None,
    plan: Annotated[Path, typer.Option(help="The plan to carry out.")] = Path("dpquery.plan"),
    out: Annotated[Path, typer.Option(help="The release directory.")] = Path("release"),
    noise: Noise = "auto",
    confidence: Confidence = 0.95,
    release_number: Number = 1,
    replace: Replace = False,
    ledger: LedgerPath = None,
    as_json: AsJson = False,
) -> None:
    """Carry out a plan: charge, measure, and write every answer.

    The same release again is free: it comes from the ledger and the data is not opened.
    """
    from dpquery import pipeline, summary
    from dpquery.measurement.accounting import parse_delta, parse_epsilon
    from dpquery.strategy import noise_kinds

    # A crash must not leave the records on disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with _progress() as progress:
        done = pipeline.release(
            data,
            plan_path=plan,
            ledger_path=_ledger_path(ledger),
            out=out,
            epsilon=parse_epsilon(epsilon),
            delta=None if delta is None else parse_delta(delta),
            noise=noise_kinds.chosen(one_of("noise", noise, noise_kinds.CHOICES)),
            confidence=confidence,
            release_number=release_number,
            replace=replace,
            progress=progress,
        )
    if as_json:
        _print_json(summary.release_json(done))
    else:
        typer.echo(summary.release_text(done))
    if done.free:
        _say("nothing was charged: the ledger holds this release, and the data was not opened")
    _say(f"ledger: {_ledger_path(ledger)}")


@app.command("error-report")
def error_report(
    directory: Annotated[Path, typer.Argument(help="A release directory.")] = Path("release"),
    html: Annotated[Path, typer.Option(help="Where the page with plots goes.")] = Path(
        "report.html"
    ),
    as_json: AsJson = False,
) -> None:
    """Say what each number of a release is worth.

    Prints a table, and writes a page with plots.
    """
    from dpquery import summary
    from dpquery.release import html as page
    from dpquery.release import report

    loaded = report.load(directory)
    page.write_html(loaded, html)
    if as_json:
        _print_json(report.to_json(loaded))
    else:
        _print_grids([summary.report_grid(loaded)])
    _say(f"wrote {html}")


@ledger_app.command()
def status(ledger: LedgerPath = None, as_json: AsJson = False) -> None:
    """Show what every dataset may spend, has spent and has left."""
    from dpquery import summary

    with _open_ledger(ledger) as opened:
        found = opened.status()
    if as_json:
        _print_json(summary.status_json(found))
    else:
        _print_grids([summary.status_grid(found)])
    _say(f"ledger: {_ledger_path(ledger)}")


@ledger_app.command()
def history(ledger: LedgerPath = None, as_json: AsJson = False) -> None:
    """List every event, oldest first."""
    from dpquery import summary

    with _open_ledger(ledger) as opened:
        events = opened.history()
    if as_json:
        _print_json([event.as_json() for event in events])
    else:
        _print_grids([summary.history_grid(events)])


@ledger_app.command()
def verify(
    releases: Annotated[
        list[Path] | None, typer.Option("--releases", help="Release directories to look up too.")
    ] = None,
    ledger: LedgerPath = None,
) -> None:
    """Check the hash chain and the stored measurements.

    With --releases, also that these releases are in the chain.
    """
    with _open_ledger(ledger) as opened:
        head = opened.verify(releases or [])
    typer.echo(f"ok: {head.seq} events, head {head.hash}")


@ledger_app.command()
def export(ledger: LedgerPath = None) -> None:
    """Print every event as a line of JSON."""
    with _open_ledger(ledger) as opened:
        for line in opened.export():
            typer.echo(line)


@ledger_app.command()
def abandon(
    key: Annotated[str, typer.Argument(help="An unfinished run, as `ledger status` shows it.")],
    ledger: LedgerPath = None,
) -> None:
    """Give up a run that never finished; its charge stays spent."""
    with _open_ledger(ledger) as opened:
        opened.abandon(key)
    _say(f"abandoned {key}; its charge stays spent")


def _ledger_path(given: Path | None) -> Path:
    from dpquery.measurement.ledger_files import default_path

    return default_path() if given is None else given


@contextmanager
def _open_ledger(given: Path | None) -> Iterator["Ledger"]:
    from dpquery.measurement.ledger import Ledger

    with Ledger.open(_ledger_path(given), create=False) as opened:
        yield opened


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as shown:
        yield shown.update


def _say(message: str) -> None:
    typer.echo(message, err=True)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _print_grids(grids: Sequence["Grid"]) -> None:
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
