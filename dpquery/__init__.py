"""Differentially private tables: plan without data, release under a ledger, report every error.

The commands are functions too: `plan`, `compare`, `discover`, `release`, `answer`, `synthesize`,
`replicates`, `error_report` and `package`. Each is loaded when it is first used, so that importing
dpquery costs nothing. `reporting` shows what they are doing; `Release` opens a release's folder.
"""

from typing import TYPE_CHECKING

from dpquery.version import __version__

if TYPE_CHECKING:
    from dpquery.commands.answer import answer
    from dpquery.commands.discover import discover
    from dpquery.commands.error_report import error_report
    from dpquery.commands.opened import Release
    from dpquery.commands.others import compare, package, synthesize
    from dpquery.commands.plan import plan
    from dpquery.commands.release import release
    from dpquery.commands.replicates import replicates
    from dpquery.progress import reporting


__all__ = [
    "Release",
    "__version__",
    "answer",
    "compare",
    "discover",
    "error_report",
    "package",
    "plan",
    "release",
    "replicates",
    "reporting",
    "synthesize",
]


def __getattr__(name: str) -> object:
    """Return a command by its name."""
    match name:
        case "answer":
            from dpquery.commands.answer import answer

            return answer
        case "compare":
            from dpquery.commands.others import compare

            return compare
        case "discover":
            from dpquery.commands.discover import discover

            return discover
        case "error_report":
            from dpquery.commands.error_report import error_report

            return error_report
        case "package":
            from dpquery.commands.others import package

            return package
        case "plan":
            from dpquery.commands.plan import plan

            return plan
        case "release":
            from dpquery.commands.release import release

            return release
        case "Release":
            from dpquery.commands.opened import Release

            return Release
        case "replicates":
            from dpquery.commands.replicates import replicates

            return replicates
        case "synthesize":
            from dpquery.commands.others import synthesize

            return synthesize
        case "reporting":
            from dpquery.progress import reporting

            return reporting
        case _:
            raise AttributeError(f"module 'dpquery' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
