"""`dpquery init` and `dpquery schema`: a commented spec to start from, and its JSON Schema."""

from pathlib import Path
from typing import Annotated

import typer

from dpquery.cli.output.screen import say
from dpquery.commands.defaults import SPEC_PATH
from dpquery.exceptions import PlanConflictError, SpecError


def init_command(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path(SPEC_PATH),
) -> None:
    """Write a commented spec to start from.

    Its JSON Schema goes beside it, as workload.schema.json: editors complete and check with it.
    """
    from dpquery.spec.documents.json_schema import schema_text
    from dpquery.spec.documents.starter import STARTER
    from dpquery.untrusted.atomic_write import check_place

    check_place(path)
    beside = path.with_name("workload.schema.json")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(STARTER)
        if not beside.exists():
            beside.write_text(schema_text(), encoding="utf-8")
    except FileExistsError:
        raise PlanConflictError(f"{path} exists; name another file, or remove it first") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}; check the path") from None
    say(f"wrote {path}; edit it, then run `dpquery plan {path}`")


def schema_command() -> None:
    """Print the JSON Schema (draft 7) of the spec."""
    from dpquery.spec.documents.json_schema import schema_text

    typer.echo(schema_text(), nl=False)
