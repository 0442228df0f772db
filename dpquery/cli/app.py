"""The entry point: every failure is one message on stderr and an exit code."""

import os
import sys
from typing import Annotated

import typer

from dpquery.cli.commands import (
    answer_command,
    audit_command,
    check_command,
    compare_command,
    error_report_command,
    init_command,
    package_command,
    plan_command,
    release_command,
    schema_command,
    synthetic_command,
)
from dpquery.cli.ledger import ledger_app
from dpquery.cli.screen import say
from dpquery.exceptions import DpqueryError
from dpquery.version import __version__

app = typer.Typer(
    name="dpquery",
    help="Publish differentially private tables: plan without data, release under a ledger, "
    "report every error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for name, command in (
    ("init", init_command),
    ("schema", schema_command),
    ("check", check_command),
    ("plan", plan_command),
    ("compare", compare_command),
    ("release", release_command),
    ("answer", answer_command),
    ("synthetic", synthetic_command),
    ("audit", audit_command),
    ("error-report", error_report_command),
    ("package", package_command),
):
    app.command(name)(command)
app.add_typer(ledger_app, name="ledger")

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
        say(f"dpquery: {line}")
    sys.exit(code)


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"dpquery {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
