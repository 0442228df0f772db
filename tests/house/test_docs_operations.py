"""docs/operations.md quotes messages and exit codes that the product has."""

import re
from pathlib import Path

import pytest
from cli_support import run

from dpquery import exceptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "dpquery" / "docs" / "operations.md").read_text(encoding="utf-8")


def words(text):
    """A text in one line, without the quotes and marks that split a message in code."""
    return " ".join(re.sub(r'"\s+f?"', "", text).split())


def refusals():
    """The messages in the tables of refusals: their parts between names and numbers."""
    below = PAGE[PAGE.index("## When a command refuses") :]
    cells = re.findall(r"^\| (\d+.*?) \| .+\|$", below, re.MULTILINE)
    quoted = [re.findall(r"`([^`]+)`", cell) for cell in cells]
    return [part.strip() for texts in quoted for text in texts for part in text.split("…")]


def test_every_message_that_is_quoted_can_be_printed():
    sources = (ROOT / "dpquery").rglob("*.py")
    code = " ".join(words(path.read_text(encoding="utf-8")) for path in sources)
    code = code.replace("{MANIFEST_FILE}", "release.json")
    parts = [part.strip(" ;:,") for part in refusals()]
    assert len(parts) > 10
    assert [part for part in parts if len(part) > 3 and part not in code] == []


def test_the_exit_codes_are_those_of_the_exceptions():
    table = PAGE[PAGE.index("## Exit codes") : PAGE.index("## When a command")]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type)]
    raised = {kind.exit_code for kind in kinds if issubclass(kind, exceptions.DpqueryError)}
    assert documented == raised | {0, 1, 130}


def test_every_ledger_command_is_explained():
    listed = run("ledger", "--help").out.partition("Commands:")[2]
    names = re.findall(r"^ {2}([a-z-]+) ", listed, re.MULTILINE)
    assert len(names) > 4
    assert [name for name in names if f"`dpquery ledger {name}" not in PAGE] == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "dpquery" / "docs").glob("*.md")), ids=lambda p: p.stem
)
def test_options_and_commands_named_in_a_page_exist(page):
    named = set(re.findall(r"`dpquery ([a-z-]+)", page.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if run(name, "--help").code] == []
