"""Made-up populations, on which plan rehearses what errs least where no public data are named.

They depend on no private data, and describe no real population. What errs least hangs on how skewed
a population is and on how its attributes depend on each other, so that there are three of them. In
the first, records fall into latent classes, within which attributes are independent: it is the
default prior. In the two others attributes form a tree, along which each follows its parent in a
share of the records: a few follow closely and most hardly, as in surveys, where latent classes make
all pairs depend on each other. Every attribute falls off from some code as a Zipf law, 1 / rank^s,
with several exponents s by turns. The seed is fixed: they are the same for every user, and for
every plan of the same domain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.public_chance import PublicGenerator, public_generator
from dpquery.strategy.algebra.subsets import Subset

SEED = 2026


class Population(Protocol):
    """A made-up population."""

    def draw(self, shape: Sequence[int], records: int, rng: PublicGenerator) -> Ints:
        """Draw records over a domain of codes. (records, d) int64."""


@dataclass(frozen=True)
class LatentClasses:
    """Classes with Zipf weights, within which attributes are independent.

    In the largest class an attribute falls off from its first code; in the others that code is
    drawn, which is what correlates attributes.

    Attributes:
        classes: how many.
        exponents: of the attributes, by turns.
    """

    classes: int
    exponents: tuple[float, ...]

    def draw(self, shape: Sequence[int], records: int, rng: PublicGenerator) -> Ints:
        """Draw records over a domain of codes. (records, d) int64."""
        classes, exponents = self.classes, self.exponents
        latent = rng.choice(classes, size=records, p=_zipf(classes, 1.0))
        codes = np.empty((records, len(shape)), dtype=np.int64)
        for i, n in enumerate(shape):
            starts = np.where(np.arange(classes) == 0, 0, rng.integers(n, size=classes))
            ranks = rng.choice(n, size=records, p=_zipf(n, exponents[i % len(exponents)]))
            codes[:, i] = (starts[latent] + ranks) % n
        return codes


@dataclass(frozen=True)
class AttributeTree:
    """Attributes that each follow an earlier one, drawn, in a share of the records.

    Where an attribute follows its parent, its code stands as far up as that of the parent does.

    Attributes:
        follows: the share of the records, of the attributes by turns.
        exponents: of the others, by turns.
    """

    follows: tuple[float, ...]
    exponents: tuple[float, ...]

    def draw(self, shape: Sequence[int], records: int, rng: PublicGenerator) -> Ints:
        """Draw records over a domain of codes. (records, d) int64."""
        codes = np.empty((records, len(shape)), dtype=np.int64)
        for i, n in enumerate(shape):
            exponent = self.exponents[i % len(self.exponents)]
            codes[:, i] = rng.choice(n, size=records, p=_zipf(n, exponent))
            if i > 0:
                parent = int(rng.integers(i))
                following = rng.random(records) < self.follows[i % len(self.follows)]
                codes[following, i] = codes[following, parent] * n // shape[parent]
        return codes


POPULATIONS: tuple[Population, ...] = (
    LatentClasses(6, (0.5, 1.0, 2.0)),
    AttributeTree((0.1, 0.5, 0.2, 0.9), (0.5, 1.0, 2.0)),
    AttributeTree((0.0, 0.2, 0.05, 0.5), (0.5, 1.0, 1.5)),
)


def sample_prior(
    shape: Sequence[int], *, records: int, population: Population = POPULATIONS[0]
) -> Ints:
    """Draw records of a made-up population over a domain of codes. (records, d) int64."""
    return population.draw(shape, records, public_generator(SEED))


def sample_tables(
    shape: Sequence[int], tables: Sequence[tuple[Subset, Floats]], *, records: int
) -> Ints:
    """Draw records that follow tables one after another. (records, d) int64.

    The table with the most attributes comes first; then, again and again, the one that shares the
    most attributes with those drawn already adds its others, given the shared ones. Attributes that
    no table holds together are independent but through others; those of no table are of the prior.

    Args:
        shape: sizes of the attributes.
        tables: attribute subsets, each with its counts: (n_i for i in subset), not negative.
        records: how many.
    """
    rng = public_generator(SEED)
    codes = sample_prior(shape, records=records)
    done: set[int] = set()
    while remaining := [table for table in tables if not done.issuperset(table[0])]:
        subset, table = max(remaining, key=lambda pair: (len(done & {*pair[0]}), len(pair[0])))
        known = [i for i in subset if i in done]
        new = [i for i in subset if i not in done]
        order = [subset.index(i) for i in (*known, *new)]
        wide = math.prod(shape[i] for i in new)
        rows = np.transpose(table, order).reshape(-1, wide)
        row_of = _numbers(codes, known, shape)
        drawn = _draw_columns(rng, rows, row_of)
        for i, column in zip(new, np.unravel_index(drawn, [shape[i] for i in new]), strict=True):
            codes[:, i] = column
        done.update(new)
    return codes


def sample_rows(distributions: Sequence[NDArray[np.floating]], *, records: int) -> Ints:
    """Draw records from relaxed rows: a row uniformly, then each attribute by its distribution.

    Args:
        distributions: for each attribute (n', n_i) the probabilities of its values in each row.
        records: how many.

    Returns:
        (records, d) int64.
    """
    rng = public_generator(SEED)
    rows = rng.integers(len(distributions[0]), size=records)
    columns = [_draw_columns(rng, distribution, rows) for distribution in distributions]
    return np.stack(columns, axis=1)


def spread(values: Ints, classes: Ints) -> Ints:
    """Draw a code of the class of each value, uniformly within the class. (records,) int64."""
    rng = public_generator(SEED)
    order = np.argsort(classes, kind="stable")
    sizes = np.bincount(classes)
    starts = np.cumsum(sizes) - sizes
    places = starts[values] + (rng.random(len(values)) * sizes[values]).astype(np.int64)
    return np.asarray(order[places])


def _numbers(codes: Ints, attributes: Sequence[int], shape: Sequence[int]) -> Ints:
    """Return the C-order number of each record's values of some attributes."""
    number = np.zeros(len(codes), dtype=np.int64)
    for i in attributes:
        number = number * shape[i] + codes[:, i]
    return number


def _draw_columns(rng: PublicGenerator, rows: NDArray[np.floating], row_of: Ints) -> Ints:
    """Draw a column for each record by the weights of its row, or by their sum if all are zero."""
    everywhere = rows.sum(axis=0)
    everywhere = everywhere if everywhere.any() else np.ones(rows.shape[1])
    drawn = np.empty(len(row_of), dtype=np.int64)
    order = np.argsort(row_of, kind="stable")
    present, starts = np.unique(row_of[order], return_index=True)
    for row, records in zip(present.tolist(), np.split(order, starts[1:]), strict=True):
        weights = rows[row] if rows[row].any() else everywhere
        ends = np.cumsum(weights, dtype=np.float64)
        places = np.searchsorted(ends, rng.random(len(records)) * ends[-1], side="right")
        drawn[records] = np.minimum(places, len(ends) - 1)
    return drawn


def _zipf(n: int, exponent: float) -> Floats:
    weights = np.arange(1, n + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())
