"""The spec that `dpquery init` writes: complete, commented, and ready to plan.

starter.yaml holds its lines. Where one ends in `#: mapping.key`, the table of fields has the
comment; `#: mapping` alone stands for the list of all its fields.
"""

import re
import textwrap
from pathlib import Path

from dpquery.spec.parsing.fields import MAPPINGS, WORDS

_WIDTH = 100
_MARGIN, _LIST = 29, 36  # the columns of comments beside something, and of what a list says
_LONG = 48  # a comment stands above what is longer
_MARK = re.compile(r"^(.*?) *#: ([a-z_]+)(?:\.([a-z_]+))?$", re.MULTILINE)


def _wrapped(about: str, first: str, more: str = "") -> str:
    return textwrap.fill(about, _WIDTH, initial_indent=first, subsequent_indent=more or first)


def _comment(mark: re.Match[str]) -> str:
    """Return the line of a mark with the comment that it asks for."""
    before, mapping, key = mark.groups()
    fields, indent = MAPPINGS[mapping].fields, before[: len(before) - len(before.lstrip())]
    if key is None:
        entries = {word: f"{about.capitalize()}." for word, about in WORDS.get(mapping, {}).items()}
        entries |= {f"{name}: {field.example}": field.about for name, field in fields.items()}
        return "\n".join(_entry(entry, about) for entry, about in entries.items())
    about = fields[key].about
    if not before:
        return _wrapped(f"{key}: {about}", "  # ")
    if len(before) > _LONG:
        return f"{_wrapped(about, f'{indent}# ')}\n{before}"
    column = max(_MARGIN, len(before) + 2)
    return _wrapped(about, f"{before:{column}}# ", f"{'':{column}}# ")


def _entry(entry: str, about: str) -> str:
    start, blank = f"  #   {entry}", f"{'  #':{_LIST}}"
    if len(start) > _LIST - 2:
        return f"{start}\n{_wrapped(about, blank)}"
    return _wrapped(about, f"{start:{_LIST}}", blank)


_LINES = Path(__file__).with_name("starter.yaml").read_text(encoding="utf-8")
STARTER = _MARK.sub(_comment, _LINES)
