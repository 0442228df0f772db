"""Words and numbers as people read them, in the statement, on the screen and in the report."""

import re
from collections.abc import Iterable, Sequence
from html import escape

# Names, labels and words come from files, and a terminal obeys control characters: it would rewrite
# what stands above, or turn a line around. Line ends alone are left.
OBEYED = (
    *(c for c in (*range(0x20), *range(0x7F, 0xA0)) if c != 0x0A),
    *(0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
)
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def without_controls(text: str) -> str:
    r"""Return a text without the characters that a terminal would obey.

    >>> without_controls("a\x1b[31m b")
    'a[31m b'
    """
    return text.translate(dict.fromkeys(OBEYED))


def csv_text(text: str) -> str:
    """Return a text as a cell has it: no spreadsheet takes it for a formula.

    >>> csv_text("=1+1"), csv_text("-5"), csv_text("-5 to -1"), csv_text("North")
    ("'=1+1", '-5', "'-5 to -1", 'North')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def one_line(text: str) -> str:
    """Return a user's text on one line, without the quotes that would break the page."""
    return " ".join(text.replace("`", "'").split())


def spaced(text: str) -> str:
    """Return a text on one line, with single blanks and nothing that a terminal would obey."""
    return " ".join(without_controls(text.replace("\t", " ")).split())


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def figure(value: float) -> str:
    """Return a figure with four significant digits at most, thousands separated.

    >>> figure(12345.678), figure(0.012345), figure(14.0)
    ('12,346', '0.01235', '14')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def in_full(value: float) -> str:
    """Return a declared number with all its digits, thousands separated.

    >>> in_full(1136869.5), in_full(0.05)
    ('1,136,869.5', '0.05')
    """
    return f"{value:,.12g}"


def rounded(value: float) -> str:
    """Return a figure as it is spoken of: two digits of it below 100, whole numbers above.

    >>> rounded(14.27), rounded(0.0123), rounded(131.4), rounded(12345.6)
    ('14', '0.012', '131', '12,346')
    """
    if abs(value) < 1e-9:
        return "0"  # what is exactly nothing, but for the last digits of floats
    return f"{value:,.0f}" if abs(value) >= 9.95 else f"{value:.2g}"


def percent(share: float) -> str:
    """Return a share in percent, two digits of it.

    >>> percent(0.0213), percent(0.00004), percent(0.978), percent(15.3), percent(0)
    ('2.1 %', 'under 0.1 %', '98 %', '1,530 %', '0 %')
    """
    if 0 < share < 0.001:
        return "under 0.1 %"
    value = 100 * share
    return f"{value:,.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def level_text(level: float) -> str:
    """Return the level of an interval.

    >>> level_text(0.95), level_text(0.999)
    ('95 %', '99.9 %')
    """
    return f"{100 * level:g} %"


def within(error: float | None) -> str:
    """Return half of an interval over what it is of; None is one without bound.

    >>> within(0.02), within(0.0001), within(150.0), within(None)
    ('±2.0 %', 'under ±0.1 %', 'over ±1,000 %', 'unbounded')
    """
    if error is None:
        return "unbounded"
    if error > 10:
        return "over ±1,000 %"
    return "under ±0.1 %" if 0 < error < 0.001 else f"±{percent(error)}"


def count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count(1, "row"), count(2000, "row"), count(2, "query"), count(2, "search")
    ('1 row', '2,000 rows', '2 queries', '2 searches')
    """
    many = f"{noun[:-1]}ies" if noun.endswith("y") else noun + ("es" if noun[-1] == "h" else "s")
    return f"{number:,} {noun if number == 1 else many}"


def html_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()
) -> str:
    """Return a table with words above and below it as HTML, escaped, for notebooks.

    >>> html_table("a < b", ["x"], [["1"]], ["seen"])
    '<p><b>a &lt; b</b></p><table><tr><th>x</th></tr><tr><td>1</td></tr></table><p>seen</p>'
    """
    head = "".join(f"<th>{_escaped(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    below = "".join(f"<p>{_escaped(note)}</p>" for note in notes)
    return f"<p><b>{_escaped(title)}</b></p><table><tr>{head}</tr>{body}</table>{below}"


def _escaped(text: str) -> str:
    return escape(without_controls(text))


def weight_words(column: str, at_most: float, step: float) -> str:
    """Return what a record counts as, as a sentence without its full stop.

    >>> print(weight_words("wt", 500, 0.1))
    A record counts as its number in `wt`, rounded to a multiple of 0.1: one above 500 as 500, and \
what is no number, or below 0.05, as 0
    """
    return (
        f"A record counts as its number in `{column}`, rounded to a multiple of {in_full(step)}: "
        f"one above {in_full(at_most)} as {in_full(at_most)}, and what is no number, or below "
        f"{in_full(step / 2)}, as 0"
    )


def rows_counted(max_rows: int, *, keep: str) -> str:
    """Return how many rows of a person count and which, as a sentence without its full stop.

    >>> rows_counted(3, keep="random")
    'At most 3 rows of each person are counted, chosen at random where there are more'
    """
    are = "is" if max_rows == 1 else "are"
    which = "chosen at random" if keep == "random" else "the first in the data"
    rows = f"{count(max_rows, 'row')} of each person {are} counted"
    return f"At most {rows}, {which} where there are more"
