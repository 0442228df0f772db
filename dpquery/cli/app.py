"""The entry point: every failure is one message on stderr and an exit code."""

import errno
import gc
import json
import logging
import os
import re
import sys
from io import StringIO
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dpquery.cli import ledger
from dpquery.cli.commands import (
    answer_command,
    audit_command,
    check_command,
    compare_command,
    docs_command,
    error_report_command,
    init_command,
    lint_command,
    package_command,
    plan_command,
    release_command,
    replicates_command,
    schema_command,
    synthetic_command,
)
from dpquery.cli.discover import discover_command
from dpquery.cli.screen import be_quiet, complain, shown_warnings, write_words
from dpquery.exceptions import DpqueryError
from dpquery.spec.problems import meant_by
from dpquery.version import __version__

_UsageError: Any = typer.BadParameter.__base__
PLAIN_WORDS = (
    ("Value error, ", ""),
    ("Input should be a valid integer.*", "it must be a whole number"),
    ("Input should be a valid number.*", "it must be a number"),
    ("Input should be greater than or equal to", "it must be at least"),
    ("Input should be less than or equal to", "it must be at most"),
    ("Input should be", "it must be"),
    ("Option ('.*') requires an argument", r"Missing value of \1"),
    (
        r"Got unexpected extra argument.*? \((epsilon|delta|rows|noise|target|also|out) (.*)\)",
        r"\1 lacks its two hyphens: write --\1 \2",
    ),
    (
        r"Got unexpected extra argument.*? \(([\d., ]+)\)",
        r"\1 stands apart; write numbers without blanks, with commas between several: 0.1,0.5",
    ),
    (
        r"Got unexpected extra argument.*? \((.*\.ya?ml)\)",
        r"Too many arguments: name one spec, as \1, and no data",
    ),
    (r"Got unexpected extra argument.*? \((.*)\)", r"Too many arguments: leave out \1 or another"),
    ("[Pp]ath ('.*') is not readable", r"you may not read \1: check its permissions with `ls -l`"),
)
"""What libraries say of a value that is refused, as patterns, and what people do."""
NO_SPACE = "no space is left where something was to be written: the output, or a temporary file"
NAMES = {"help_option_names": ["-h", "--help"]}


def _be_quiet_if(given: bool) -> None:
    if given:  # before the command or behind it
        be_quiet(True)


_Quiet = Annotated[
    bool,
    typer.Option(
        "-q",
        "--quiet",
        callback=_be_quiet_if,
        expose_value=False,
        help="Print the result and errors alone.",
    ),
]


def _quiet_alone(quiet: _Quiet = False) -> None:
    pass


_of_quiet = typer.Typer(add_completion=False)
_of_quiet.command()(_quiet_alone)
QUIET = typer.main.get_command(_of_quiet).params[0]


class Command(TyperCommand):
    """A command that can be told to be quiet."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - of a module of typer's own
        """Return its options, and that one."""
        *own, shows_help = super().get_params(ctx)
        return [*own, QUIET, shows_help]


app = typer.Typer(
    name="dpquery",
    help="Publish differentially private tables: plan without data, release under a ledger, "
    "report every error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=NAMES,
)
COMMANDS = (
    ("init", init_command, "init workload.yaml --from schema.json"),
    ("lint", lint_command, "lint workload.yaml"),
    ("schema", schema_command, "schema > workload.schema.json"),
    ("docs", docs_command, "docs tutorial"),
    ("check", check_command, "check data.csv workload.yaml"),
    (
        "discover",
        discover_command,
        "discover data.csv --column occupation --epsilon 0.2 --delta 1e-8 --max-values 3",
    ),
    ("plan", plan_command, "plan workload.yaml --epsilon 0.5 --rows 3000"),
    ("compare", compare_command, "compare old.plan workload.yaml --epsilon 0.5"),
    ("release", release_command, "release data.csv --epsilon 0.5"),
    ("answer", answer_command, "answer release questions.yaml"),
    ("replicates", replicates_command, "replicates release --items people,by_region --also csv"),
    ("synthetic", synthetic_command, "synthetic release --rows 1000"),
    ("audit", audit_command, "audit --quick"),
    ("error-report", error_report_command, "error-report release --html report.html"),
    ("package", package_command, "package release --also csv,xlsx"),
)
LEDGER_COMMANDS = (
    ("status", ledger.status, "ledger status"),
    ("history", ledger.history, "ledger history --json"),
    ("verify", ledger.verify, "ledger verify --releases release"),
    ("export", ledger.export, "ledger export > ledger.jsonl"),
    ("abandon", ledger.abandon, "ledger abandon 3f2a91c07b5d"),
)
ledger_app = typer.Typer(
    help="Inspect the ledger of spent privacy budget.", no_args_is_help=True, context_settings=NAMES
)
for _app, _commands in ((app, COMMANDS), (ledger_app, LEDGER_COMMANDS)):
    for _name, _command, _example in _commands:
        _first = (_command.__doc__ or "").partition("\n")[0]
        _epilog = f"Example: dpquery {_example}"
        _app.command(_name, cls=Command, short_help=_first, epilog=_epilog)(_command)
app.add_typer(ledger_app, name="ledger")

_WRITTEN_LAST = {"plan": "plan"} | dict.fromkeys(
    ("check", "lint", "error-report", "compare"), "file"
)

OLD_COLLECTIONS = 1_000
"""How many times the collector goes through new objects before it goes through all."""


def main() -> None:
    """Run the command line; every failure is one message on stderr and an exit code."""
    for library in ("OPENBLAS", "MKL", "OMP"):
        # One thread: small matrices run up to twenty times faster, and sums come out the same
        # whatever the machine, so that a plan does. Read when numpy is first imported.
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    # Tables by the hundred thousand are millions of objects and next to no cycles: to go through
    # all that is old again and again took a fifth of a plan's time. What is new is gone through.
    gc.set_threshold(*gc.get_threshold()[:2], OLD_COLLECTIONS)
    logging.disable()  # libraries would write traces, which may hold data, above our one line
    # A stream that the shell has closed is none at all.
    sys.stdout, sys.stderr = (each or StringIO() for each in (sys.stdout, sys.stderr))
    write_words()
    be_quiet(False)
    if mistyped := _mistyped(sys.argv[1:]):
        _fail(mistyped, 2)
    try:
        with shown_warnings():
            sys.exit(app(standalone_mode=False))
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(2)
        _fail(_usage_words(error), 2)
    except DpqueryError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail(_interrupted(), 130)
    except SystemExit as ended:
        if ended.code == 130:  # Ctrl-C inside a command, of which typer says nothing
            _fail(_interrupted(), 130)
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            sys.stdout = StringIO()  # what was full may be the output, which is flushed at the end
            _fail(f"{NO_SPACE}; {_charged()}", 70)
        _fail(f"internal error ({type(error).__name__}); nothing more is shown: it may be data", 70)


def _usage_words(error: typer.BadParameter) -> str:
    """Say what is wrong with the words of a command, and how it is typed."""
    message = error.format_message().rstrip(".")
    for said, plain in PLAIN_WORDS:
        message = re.sub(said, plain, message)
    examples, named = {name: example for name, _, example in COMMANDS}, sys.argv[1:2]
    place = " ".join(["dpquery", *(name for name in named if name in examples)])
    example = examples.get("".join(named), "")
    if error.ctx:
        place, example = error.ctx.command_path, error.ctx.command.epilog or ""
        arguments = [p for p in error.ctx.command.params if p.param_type_name == "argument"]
        needed = [each.name for each in arguments if each.required]
        if not arguments:
            message = message.replace(" or another", ": it takes none")
        if message.startswith("Missing argument") and len(needed) > 1:
            message = f"`{place}` needs {' and '.join(needed)}"
    if example and message.startswith(("Missing", "`")):
        message += f"; write it as in `dpquery {example.removeprefix('Example: dpquery ')}`"
    elif message.startswith("No such command") and not message.endswith("?"):
        group = [name for name, *_ in LEDGER_COMMANDS]
        there = group if place.endswith(" ledger") else [*examples, "ledger"]
        given = message.split("'")[1]
        meant = f"ledger {given}" if given in group and group != there else meant_by(given, there)
        message += f"; did you mean {meant!r}?" if meant else f"; there are {', '.join(there)}"
    elif error.ctx and message.startswith("No such option"):
        commands = getattr(error.ctx.find_root().command, "commands", {})
        elsewhere = {name: _options_of(each) for name, each in commands.items()}
        message = _no_such_option(message, _options_of(error.ctx.command), elsewhere)
    return f"{message}{'' if message.endswith('?') else ';'} see `{place} -h`"


def _options_of(command: object) -> list[str]:
    names = (each.opts[-1] for each in getattr(command, "params", ()))
    return [name for name in names if name.startswith("-")]


def _no_such_option(message: str, here: list[str], elsewhere: dict[str, list[str]]) -> str:
    """Say which command an option belongs to, else which options are like it, or all there are."""
    option = message.split()[3]
    others = [f"`dpquery {name}`" for name, options in elsewhere.items() if option in options]
    if others:
        return f"No such option: {option} belongs to {', '.join(others)}"
    if message.endswith(("?", ")")):
        return message
    return f"{message}; there are {', '.join(here)}"


def _mistyped(words: list[str]) -> str:
    """Return what is wrong with words that would be taken for others; empty if nothing is."""
    commands = {"ledger", *(name for name, *_ in COMMANDS)}
    if words and words[0] not in commands and os.path.isfile(words[0]):
        order = "plan {}" if words[0].endswith((".yaml", ".yml")) else "release {} --epsilon 1"
        return f"{words[0]} is a file, no command; write `dpquery {order.format(words[0])}`"
    for also, before, word in zip(["", "", *words], ["", *words], words, strict=False):
        if also == "--also" and word.isalpha() and not os.path.exists(word):
            return f"there is no file {word}; to add it too, write `--also {before},{word}`"
        if option := re.fullmatch("(?:[\u2013\u2014]+|-(?=[a-z]{3}))(.+)", word):
            dash = "one hyphen" if word[0] == "-" else "a long dash"
            return f"{word} begins with {dash}; type two hyphens: --{option[1]}"
        if before == "--out" and not word:
            return "--out is followed by an empty name; name what is to be written, or leave it out"
    given = [word.partition("=")[0] for word in words]
    for once in ("--epsilon", "--delta"):
        if given.count(once) > 1:
            return f"{once} is given twice; give it once"
    return ""


def _interrupted() -> str:
    written = _WRITTEN_LAST.get("".join(sys.argv[1:2]))
    return f"interrupted; {_charged()}" + (f" and no {written} was written" if written else "")


def _charged() -> str:
    if "".join(sys.argv[1:2]) in {"release", "discover"}:
        return "if `dpquery ledger status` has it charged, the same command again is free"
    return "nothing was charged"


def _fail(message: str, code: int) -> None:
    if "--json" in sys.argv:
        complain(json.dumps({"error": message, "exit_code": code}, ensure_ascii=False))
        sys.exit(code)
    for line in message.splitlines() or [""]:
        complain(f"dpquery: {line}")
    sys.exit(code)


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"dpquery {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "-V", "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    quiet: _Quiet = False,
) -> None:
    pass
