"""Answers as bars: few of them, or the most and the least reliable of many."""

from html import escape

from dpquery.releases.report.bars import Bar, bar_picture
from dpquery.releases.report.cells import EXTREME_ROWS, ItemCells
from dpquery.releases.report.picture import Caption, Picture
from dpquery.releases.report.shapes import groups_of, is_grid


def _bar(cells: ItemCells, row: int, label: str, head: str = "") -> Bar:
    value = float(cells.value[row])
    known = value == value
    answer = cells.answer_words(row)
    return Bar(
        label=label,
        value=value,
        text=answer.partition(" (")[0],
        low=float(cells.low[row]) if known else float("nan"),
        high=float(cells.high[row]) if known else float("nan"),
        flagged=bool(cells.flagged[row]),
        head=head,
        tip=f"{head}, {label}: {answer}" if head else f"{label}: {answer}",
    )


def draw_bars(cells: ItemCells, caption: Caption) -> Picture:
    """Return a bar for each answer, under heads where two columns or more say what it is."""
    varying = cells.varying
    heads = groups_of(cells, varying[:1]) if len(varying) > 1 else []
    if heads and is_grid(varying):
        bars = [
            _bar(cells, row, cells.words(row, varying[1:]), head)
            for head, rows in heads
            for row in rows.tolist()
        ]
    else:
        bars = [_bar(cells, row, cells.words(row, varying)) for row in range(len(cells))]
    what = "A bar goes from zero to the answer"
    return Picture("bars", bar_picture(bars, title=caption.title), _bar_notes(cells, what))


def _bar_notes(cells: ItemCells, what: str) -> tuple[str, ...]:
    if not cells.error_bars:
        return (f"{what}; how far it is off is not known.",)
    flagged = " Hollow bars are flagged." if (cells.flagged & ~cells.withheld).any() else ""
    return (f"{what}, the thin line across its end is the noise interval.{flagged}",)


def draw_one(cells: ItemCells, caption: Caption) -> Picture:
    """Return a single answer as a figure."""
    value, _, interval = cells.answer_words(0).partition(" (")
    small = f"<small>{escape(interval.rstrip(')'))}</small>" if interval else ""
    words = f"{caption.unit}; below it the noise interval" if interval else caption.unit
    html = f'<p class="one"><b>{escape(value)}</b>{small}</p>'
    return Picture("one answer", html, (f"{words[:1].upper()}{words[1:]}.",))


def draw_extremes(cells: ItemCells, caption: Caption) -> Picture:
    """Return the most and the least reliable answers as bars; the largest without error bars."""
    order = cells.by_reliability
    half = min(EXTREME_ROWS, len(order) // 2) or len(order)
    ends = (("Most reliable", order[:half]), ("Least reliable", order[len(order) - half :][::-1]))
    if not cells.error_bars:
        ends = (("Largest", order[:half]), ("Smallest", order[len(order) - half :][::-1]))
    blocks = []
    for head, rows in ends:
        bars = [_bar(cells, row, cells.words(row, cells.varying)) for row in rows.tolist()]
        title = f"{caption.title}: {head.lower()} answers"
        if bars:
            blocks.append(f"<h4>{head} answers</h4>{bar_picture(bars, title=title)}")
    notes = [
        "There are too many answers to draw all: these have the smallest and the largest noise "
        "interval for their size. They are chosen by noisy values, so chance has a part in it."
        if cells.error_bars
        else "There are too many answers to draw all: these are the largest and the smallest; how "
        "far they are off is not known.",
        "The two plots have scales of their own.",
    ]
    return Picture("extremes", "".join(blocks), (*notes, *_bar_notes(cells, "A bar is an answer")))
