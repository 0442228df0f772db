"""Synthetic records drawn from relaxed rows: each has one code an attribute.

A relaxed row is a distribution of records whose attributes are independent. It gives its share of
the records, and these spread over the values of every attribute as evenly as whole numbers allow:
systematic sampling, in another order for each attribute. The records of one row so have its
distributions to within one record, and independent attributes. Codes that no query distinguishes
are one class, about which nothing was measured: they share its records evenly.

The chance in this is public: it comes from a seed by a hash, the same on every machine, and says
nothing about any record. Nothing here is private that the relaxed rows were not.
"""

from collections.abc import Sequence

import numpy as np
from numpy import float64, int64, uint64

from dpquery.arrays import Floats, Ints, Singles
from dpquery.public_chance import PublicChance
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows


def rounded_records(
    rows: RelaxedRows, classes: Sequence[Ints], *, records: int, chance: PublicChance
) -> list[Ints]:
    """Return the codes of each attribute in so many records, in shuffled order.

    Args:
        rows: the relaxed rows, over classes of codes.
        classes: for each attribute the class of every code.
        records: how many to make.
        chance: what decides.

    Privacy:
        Post-processing: a function of the relaxed rows and a public seed.
    """
    relaxed = len(rows.values)
    start = int(chance.bits("rows", 1)[0] % uint64(relaxed))
    ends = (np.arange(relaxed + 1) * records + start) // relaxed
    records_of_row = np.diff(ends)  # of each row; the floor or the ceiling of its share
    row = np.repeat(np.arange(relaxed), records_of_row)
    first = ends[:-1][row]
    shuffled = chance.order("records", np.zeros(records, dtype=int64))
    codes = []
    for i, class_of_code in enumerate(classes):
        rank = np.empty(records, dtype=int64)
        rank[chance.order(f"ranks {i}", row)] = np.arange(records)
        offset = chance.uniform(f"offsets {i}", relaxed)[row]
        place = (rank - first + offset) / records_of_row[row]
        classes_drawn = _classes_at(rows.distribution(i), row, place)
        codes.append(
            _codes_of(class_of_code, classes_drawn, chance.uniform(f"codes {i}", records))[shuffled]
        )
    return codes


def _classes_at(distribution: Singles, row: Ints, place: Floats) -> Ints:
    """Return the class in which each place of [0, 1) of a row's distribution falls. (m,)."""
    n = distribution.shape[1]
    reached = np.cumsum(distribution, axis=1, dtype=float64)
    reached /= reached[:, -1:]
    last = n - 1 - np.argmax(distribution[:, ::-1] > 0, axis=1)
    laid_out = (reached + np.arange(len(reached))[:, None]).ravel()
    position = np.searchsorted(laid_out, row + place, side="right") - row * n
    return np.asarray(np.clip(position, 0, last[row]))  # a sum of floats may fall short of one


def _codes_of(classes: Ints, drawn: Ints, uniform: Floats) -> Ints:
    """Return a code of each class, every one of it as likely. (m,)."""
    order, sizes = np.argsort(classes, kind="stable"), np.bincount(classes)
    starts = np.cumsum(sizes) - sizes
    return np.asarray(order[starts[drawn] + (uniform * sizes[drawn]).astype(int64)])
