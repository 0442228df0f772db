"""The error of relaxed rows against marginals, those of one or two attributes many at a time.

A run over many attributes measures hundreds of small tables, and a fit compares with all of them in
every step: tables of equal sizes are one product of stacked matrices.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints, Singles
from dpquery.reconstruction.rap.mirror_descent import Misfit
from dpquery.reconstruction.rap.whole_tables import WholeTables

STACKED_ORDER = 2  # attributes of a table at most
FEWEST = 3  # tables of equal sizes that are worth stacking


@dataclass(frozen=True, eq=False)
class Stack:
    """Tables of equal sizes.

    Attributes:
        classes: (count, n) for each axis the rows of the masses that hold its classes.
        noisy: (count, *sizes) the measured answers, as fractions of one.
        std: (count,) the standard deviation of their noise.
    """

    classes: tuple[Ints, ...]
    noisy: Singles
    std: Floats


class MarginalTables(WholeTables):
    """How far relaxed rows are from the noisy cells of marginals: see WholeTables."""

    def misfit(self, masses: Singles) -> Misfit:
        """Compare with the answers. masses: (sum of shape, n')."""
        gradient = np.zeros_like(masses)
        total, worst = self.add_blocks(self._single, masses, gradient)
        for stack in self._stacks:
            error, furthest = self._add_stack(stack, masses, gradient)
            total, worst = total + error, max(worst, furthest)
        return Misfit(total, worst, gradient)

    @cached_property
    def _places(self) -> dict[tuple[int, ...], list[int]]:
        """The places of tables by their sizes; () stands for those that are not stacked."""
        places: dict[tuple[int, ...], list[int]] = {}
        for place, block in enumerate(self.workload.blocks):
            sizes = block.row_shape if 0 < len(block.attributes) <= STACKED_ORDER else ()
            places.setdefault(sizes, []).append(place)
        return places

    @cached_property
    def _single(self) -> list[int]:
        groups = self._places.items()
        return [k for sizes, places in groups if not sizes or len(places) < FEWEST for k in places]

    @cached_property
    def _stacks(self) -> list[Stack]:
        stacks, blocks, spans = [], self.workload.blocks, self.partition.spans
        for sizes, places in self._places.items():
            if not sizes or len(places) < FEWEST:
                continue
            axes = zip(*(blocks[k].attributes for k in places), strict=True)
            classes = tuple(
                np.array([np.arange(spans[i].start, spans[i].stop) for i in axis]) for axis in axes
            )
            noisy = np.stack([self.noisy[k].reshape(sizes) for k in places])
            stacks.append(Stack(classes, noisy, np.array([self.std[k] for k in places])))
        return stacks

    def _add_stack(self, stack: Stack, masses: Singles, gradient: Singles) -> tuple[float, float]:
        """Add the gradient of a stack's errors, and return their sum and the worst error."""
        sides = [masses[classes] for classes in stack.classes]  # (count, n, n') each
        if len(sides) == 1:
            answers = sides[0].mean(axis=2)
        else:
            answers = sides[0] @ sides[1].transpose(0, 2, 1) / np.float32(masses.shape[1])
        residuals = answers - stack.noisy
        others = tuple(range(1, residuals.ndim))
        weights = (min(self.std) / stack.std) ** 2
        total = float((weights * np.square(residuals).sum(axis=others)).sum())
        worst = float((np.abs(residuals).max(axis=others) / stack.std).max())
        slope = np.asarray(residuals.T * (2 * weights)).T.astype(masses.dtype)
        if len(sides) == 1:
            slopes = [np.broadcast_to(slope[:, :, None], sides[0].shape)]
        else:
            slopes = [slope @ sides[1], slope.transpose(0, 2, 1) @ sides[0]]
        for classes, slopes_of_axis in zip(stack.classes, slopes, strict=True):
            for rows, added in zip(classes, slopes_of_axis, strict=True):
                gradient[rows[0] : rows[-1] + 1] += added
        return total, worst
