"""Pages of headings, paragraphs and tables, written as Markdown and as HTML from one content.

The HTML needs nothing else: no network, no script, light and dark, narrow and wide, and print.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dpquery.releases.formatting import without_controls

PAGE_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; --soft: #596273; --rule: #d9dde4;
  --box: #f5f6f8; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e6e9ef; --soft: #a2acbb;
  --rule: #343c49; --box: #1d232d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 12px; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 36px 0 10px; padding-top: 16px; border-top: 1px solid var(--rule);
  overflow-wrap: anywhere; }
h3 { font-size: 16px; margin: 24px 0 6px; overflow-wrap: anywhere; }
p { max-width: 75ch; margin: 0 0 10px; overflow-wrap: anywhere; }
code { background: var(--box); padding: 0 4px; border-radius: 4px; overflow-wrap: inherit; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin: 8px 0 18px; }
th, td { padding: 6px 14px 6px 0; text-align: left; vertical-align: top; overflow-wrap: break-word;
  border-bottom: 1px solid var(--rule); }
thead th { color: var(--soft); font-weight: 600; }
td:first-child { font-weight: 600; min-width: 8ch; }
@media (max-width: 640px) {
  thead { position: absolute; left: -9999px; }
  tr, td { display: block; border: 0; padding: 0; }
  tr { border-bottom: 1px solid var(--rule); padding: 8px 0; }
  td:not(:first-child)::before { content: attr(data-head) ": "; color: var(--soft); }
  td[data-head=""]::before { content: none !important; }
  td, code { overflow-wrap: anywhere; }
  td:empty { display: none; }
}
@media print { main { max-width: none; } tr { break-inside: avoid; } }
"""
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Heading:
    """A heading of level 2 or 3."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; what stands in `backticks` is a name."""

    text: str


@dataclass(frozen=True)
class TextTable:
    """A table of texts under a head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Content = Heading | Paragraph | TextTable


def markdown_page(title: str, content: Sequence[Content]) -> str:
    """Return a page as Markdown."""
    parts = [f"# {_line(title)}"]
    for part in content:
        match part:
            case Heading(text=text, level=level):
                parts.append(f"{'#' * level} {_line(text)}")
            case Paragraph(text=text):
                parts.append(_line(text))
            case TextTable(head=head, rows=rows):
                lines = [head, ("---",) * len(head), *rows]
                parts.append("\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def html_page(title: str, content: Sequence[Content]) -> str:
    """Return a page as HTML."""
    parts = [f"<h1>{_marked_up(title)}</h1>"]
    for part in content:
        match part:
            case Heading(text=text, level=level):
                parts.append(f"<h{level}>{_marked_up(text)}</h{level}>")
            case Paragraph(text=text):
                parts.append(f"<p>{_marked_up(text)}</p>")
            case TextTable():
                parts.append(_html_table(part))
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(without_controls(title))}</title>\n<style>{PAGE_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _html_table(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{_marked_up(name)}</th>' for name in table.head)
    rows = "\n".join(
        "<tr>"
        + "".join(
            f'<td data-head="{escape(name)}">{_marked_up(cell)}</td>'
            for name, cell in zip(table.head, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    body = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>"
    return f'<div class="wide"><table>\n{body}\n</table></div>'


def _marked_up(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(_spaced(text)))


def _line(text: str) -> str:
    return _spaced(text).replace("<", "&lt;")


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _spaced(text: str) -> str:
    """Return a text on one line."""
    return " ".join(without_controls(text.replace("\t", " ")).split())
