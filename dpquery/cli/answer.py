"""`dpquery answer`: new questions about an old release."""

from pathlib import Path
from typing import Annotated

import typer

from dpquery.cli.options import Also, AsJson, Confidence
from dpquery.cli.output.screen import print_json, say, show, shown_progress
from dpquery.commands.defaults import ANSWERS_PATH


def answer_command(
    release: Annotated[Path, typer.Argument(help="The release directory.")],
    questions: Annotated[Path, typer.Argument(help="A YAML file with a `workload` section.")],
    out: Annotated[Path, typer.Option(help="Where the answers go.")] = Path(ANSWERS_PATH),
    also: Also = None,
    confidence: Confidence = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace answers to other questions in --out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer new questions from an old release, free of budget.

    Needs the release's folder alone: neither the data nor the ledger is opened.
    """
    from dpquery.cli.output import release as summary
    from dpquery.commands.answer import answer

    with shown_progress():
        done = answer(
            release,
            questions,
            out=out,
            also=also or (),
            confidence=confidence,
            replace=replace,
        )
    if as_json:
        print_json(summary.answer_json(done))
    else:
        show(summary.answer_text(done))
    say("nothing was charged: neither the data nor the ledger was opened")
