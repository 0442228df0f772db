"""The queries that were measured one by one, with their noisy answers, as surrogates take them."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from dpquery.operators.blocks import Block
from dpquery.operators.factors import Array, Factor
from dpquery.reconstruction.rap.partition import Partition
from dpquery.reconstruction.rap.query_answers import Alike, Surrogates


@dataclass(eq=False)
class _Form:
    """Queries with as many plain and counted predicates each, by the numbers of these."""

    plain: list[list[int]] = field(default_factory=list)
    counted: list[list[int]] = field(default_factory=list)
    noisy: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)


class MeasuredQueries:
    """Grows with every measured query by a few numbers, and by a row for each new predicate."""

    def __init__(self) -> None:
        self.predicates: list[tuple[int, Array]] = []
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._forms: dict[tuple[int, int, int], _Form] = defaultdict(_Form)

    def add(self, block: Block, row: int, *, noisy: float, std: float) -> None:
        """Take in one query: row `row` of a block, with its answer as a fraction of one.

        The total, of a block without attributes, is one whatever the rows hold.
        """
        if not block.attributes:
            return
        places = np.unravel_index(row, block.row_shape)
        numbers = [
            self._number(attribute, factor, int(place))
            for attribute, factor, place in zip(
                block.attributes, block.factors, places, strict=True
            )
        ]
        counts = [own and not block.is_product for own in block.counted]
        plain = [number for number, own in zip(numbers, counts, strict=True) if not own]
        counted = [number for number, own in zip(numbers, counts, strict=True) if own]
        form = self._forms[len(plain), len(counted), block.at_least if counted else 0]
        form.plain.append(plain)
        form.counted.append(counted)
        form.noisy.append(noisy)
        form.std.append(std)

    def surrogates(self, partition: Partition, *, rows: int) -> Surrogates:
        """Return them over groups of classes, for so many relaxed rows."""
        queries = tuple(
            Alike(
                np.array(form.plain, dtype=np.int64).reshape(len(form.noisy), k).T,
                np.array(form.counted, dtype=np.int64).reshape(len(form.noisy), counted).T,
                r,
                np.array(form.noisy),
                np.array(form.std),
            )
            for (k, counted, r), form in self._forms.items()
        )
        return Surrogates(rows, partition.over_groups(self.predicates), queries)

    def _number(self, attribute: int, factor: Factor, row: int) -> int:
        predicate = np.asarray(factor.row(row), dtype=np.float64)
        number = self._numbers.setdefault((attribute, predicate.tobytes()), len(self.predicates))
        if number == len(self.predicates):
            self.predicates.append((attribute, predicate))
        return number
