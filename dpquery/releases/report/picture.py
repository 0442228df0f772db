"""What a picture of answers is, what it says, and which groups of answers it shows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Ints
from dpquery.releases.report.cells import ItemCells
from dpquery.releases.report.shapes import median_error


@dataclass(frozen=True)
class Caption:
    """What the pictures of an item say about it.

    Attributes:
        title: of the item.
        unit: of its answers.
    """

    title: str
    unit: str

    def of(self, part: str) -> "Caption":
        """Return the caption of a part of the item."""
        return Caption(f"{self.title}, {part}" if part else self.title, self.unit)


@dataclass(frozen=True)
class Picture:
    """A picture as HTML, of which kind it is, and how it is read.

    Attributes:
        kind: name of its kind in PICTURE_KINDS.
        html: what stands on the page.
        notes: sentences on how to read it.
        parts: names of the kinds of its parts, where it is made of several.
    """

    kind: str
    html: str
    notes: tuple[str, ...]
    parts: tuple[str, ...] = ()


def chosen_groups(
    cells: ItemCells, groups: Sequence[tuple[str, Ints]], most: int, noun: str
) -> tuple[list[tuple[str, Ints]], tuple[str, ...]]:
    """Return so many groups at most, the most and the least reliable, and words on the choice.

    Args:
        cells: the answers.
        groups: names and rows of all groups.
        most: number of groups.
        noun: what a group is called, in the plural.
    """
    if len(groups) <= most:
        return list(groups), ()
    shown = [group for group in groups if not np.isnan(cells.value[group[1]]).all()]
    hidden = len(groups) - len(shown)
    said = (f"In {hidden:,} of {len(groups):,} {noun} nothing is published.",) if hidden else ()
    if len(shown) <= most:
        return shown or list(groups[:1]), said
    if not cells.error_bars:
        first = f"The first {most} of {len(groups):,} {noun} are drawn; all are in the file."
        return shown[:most], (*said, first)
    order = sorted(range(len(shown)), key=lambda k: median_error(cells, shown[k][1]))
    half = most // 2
    kept = [*order[: most - half], *order[len(order) - half :]]
    words = (
        f"Of {len(shown):,} {noun} the {most - half} most and the {half} least reliable ones are "
        "drawn, in this order, by their median noise interval; all are in the file."
    )
    return [shown[k] for k in kept], (*said, words)
