"""The command line: arguments in, tables out. The only place with typer and rich."""

from dpquery.cli.app import app, main

__all__ = ["app", "main"]
