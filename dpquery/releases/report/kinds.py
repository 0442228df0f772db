"""Which picture an item gets: one table of kinds, each with the shapes of answers that it fits.

The first kind that fits is drawn. Kinds that split an item up (tables, levels) choose again for
each part. All answers can be drawn by the last kind, so that no item is left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from dpquery.arrays import Ints
from dpquery.releases.formatting import count, percent, within
from dpquery.releases.report.answer_bars import draw_bars, draw_extremes, draw_one
from dpquery.releases.report.answer_lines import draw_line, draw_lines, fits_line, fits_lines
from dpquery.releases.report.answer_maps import draw_maps, draw_ranges, fits_maps, fits_ranges
from dpquery.releases.report.cells import Dimension, ItemCells
from dpquery.releases.report.picture import Caption, Picture, chosen_groups
from dpquery.releases.report.shapes import levels, median_error

MOST_BARS = 40
MOST_TABLES = 6  # of an item that are drawn
LISTED_TABLES = 100


@dataclass(frozen=True)
class PictureKind:
    """A way to draw answers.

    Attributes:
        name: of the kind.
        fits: whether answers can be drawn so.
        draw: returns the picture.
    """

    name: str
    fits: Callable[[ItemCells], bool]
    draw: Callable[[ItemCells, Caption], Picture]


def picture_of(cells: ItemCells, caption: Caption) -> Picture:
    """Return the picture that fits answers best: of the first kind that fits."""
    kind = next(kind for kind in PICTURE_KINDS if kind.fits(cells))
    return kind.draw(cells, caption)


# ------------------------------------------------------------------------------- parts


def _tables(cells: ItemCells) -> list[tuple[str, Ints]]:
    """Return the rows of each table of an item of several, by name."""
    named = [dimension for dimension in cells.dimensions if dimension.name == "table"]
    return _rows_of_tables(cells, named[0]) if named else []


def _rows_of_tables(cells: ItemCells, tables: Dimension) -> list[tuple[str, Ints]]:
    """Return the rows of each table, those of one name together, in file order."""
    order = np.argsort(tables.places, kind="stable")
    pieces = np.split(order, np.flatnonzero(np.diff(tables.places[order])) + 1)
    return list(zip(tables.texts, pieces, strict=True))


def _fits_tables(cells: ItemCells) -> bool:
    return len(cells) > MOST_BARS and len(_tables(cells)) > 1


def _draw_tables(cells: ItemCells, caption: Caption) -> Picture:
    """Return a picture of each table, behind its name, after a list of all of them."""
    groups = _tables(cells)
    chosen, said = chosen_groups(cells, groups, MOST_TABLES, "tables")
    listed = ""
    if cells.error_bars:
        listed = _list_of_tables(cells, groups)
    parts = [(name, cells.take(rows)) for name, rows in chosen]
    return _parts("tables", parts, caption, said, before=listed)


def _list_of_tables(cells: ItemCells, groups: Sequence[tuple[str, Ints]]) -> str:
    """Return how reliable the answers of each table are, as HTML."""
    heads = ("table", "answers", "half of the noise interval, median", "flagged")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{len(rows):,}</td>'
        f"<td>{within(_median(cells, rows))}</td>"
        f"<td>{percent(float(cells.flagged[rows].mean()))}</td></tr>"
        for name, rows in groups[:LISTED_TABLES]
    )
    more = len(groups) - LISTED_TABLES
    note = f"<p>{more:,} more tables are in the file.</p>" if more > 0 else ""
    return (
        f"<details><summary>{count(len(groups), 'table')}: how reliable each is</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Tables of the item">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}</details>"
    )


def _median(cells: ItemCells, rows: Ints) -> float | None:
    value = median_error(cells, rows)
    return value if np.isfinite(value) else None


def _fits_levels(cells: ItemCells) -> bool:
    split = _leveled(cells)
    return split is not None and (len(cells) > MOST_BARS or len(levels(split)) > 2)


def _leveled(cells: ItemCells) -> Dimension | None:
    """Return the column with levels, the one of most of them."""
    split = [(len(found), d) for d in cells.varying if (found := levels(d))]
    return max(split, key=lambda pair: pair[0])[1] if split else None


def _draw_levels(cells: ItemCells, caption: Caption) -> Picture:
    """Return a picture of each level of a column, from all together to single values."""
    split = _leveled(cells)
    if split is None:
        raise ValueError("these answers have no levels")
    parts = [(level.title, cells.take(level.rows)) for level in levels(split)]
    said = (f"Open a level of {split.name} to go from the whole to its parts.",)
    return _parts("levels", parts, caption, said)


def _parts(
    kind: str,
    parts: Sequence[tuple[str, ItemCells]],
    caption: Caption,
    said: tuple[str, ...],
    *,
    before: str = "",
) -> Picture:
    """Return parts that can be opened one by one, the first open, each with its own picture."""
    blocks, kinds = [], []
    for k, (name, part) in enumerate(parts):
        picture = picture_of(part, caption.of(name))
        kinds += [picture.kind, *picture.parts]
        notes = " ".join(picture.notes)
        is_open = " open" if k == 0 else ""
        blocks.append(
            f"<details{is_open}><summary>{escape(name)} "
            f"<small>{count(len(part), 'answer')}</small></summary>"
            f'{picture.html}<p class="note">{escape(notes)}</p></details>'
        )
    return Picture(kind, f"{before}{''.join(blocks)}", said, tuple(kinds))


PICTURE_KINDS = (
    PictureKind("extremes", lambda cells: not cells.whole, draw_extremes),
    PictureKind("one answer", lambda cells: len(cells) == 1, draw_one),
    PictureKind("tables", _fits_tables, _draw_tables),
    PictureKind("levels", _fits_levels, _draw_levels),
    PictureKind("line", fits_line, draw_line),
    PictureKind("ranges", fits_ranges, draw_ranges),
    PictureKind("bars", lambda cells: len(cells) <= MOST_BARS, draw_bars),
    PictureKind("heat map", lambda cells: fits_maps(cells, ordered=True), draw_maps),
    PictureKind("lines", fits_lines, draw_lines),
    PictureKind("heat map", fits_maps, draw_maps),
    PictureKind("extremes", lambda cells: True, draw_extremes),
)
"""The kinds of pictures, in the order in which they are tried."""
