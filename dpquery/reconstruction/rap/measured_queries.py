"""The queries that were measured one by one, with their noisy answers."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Factor
from dpquery.reconstruction.rap.partition import Partition
from dpquery.reconstruction.rap.query_answers import QueryAnswers, QueryForm


@dataclass(eq=False)
class _FormLists:
    """Queries of one form: the numbers of their predicates, their answers and the noise on them."""

    plain: list[list[int]] = field(default_factory=list)
    counted: list[list[int]] = field(default_factory=list)
    noisy: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)


class MeasuredQueries:
    """All queries measured so far: a few numbers for each, and a vector for each new predicate."""

    def __init__(self) -> None:
        self.predicates: list[tuple[int, Floats]] = []
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._forms: dict[tuple[int, int, int], _FormLists] = defaultdict(_FormLists)

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
        is_counted = [counted and not block.is_product for counted in block.counted]
        plain = [number for number, chosen in zip(numbers, is_counted, strict=True) if not chosen]
        counted = [number for number, chosen in zip(numbers, is_counted, strict=True) if chosen]
        form = self._forms[len(plain), len(counted), block.at_least if counted else 0]
        form.plain.append(plain)
        form.counted.append(counted)
        form.noisy.append(noisy)
        form.std.append(std)

    def query_answers(self, partition: Partition, *, rows: int) -> QueryAnswers:
        """Return the error of so many relaxed rows against these queries, by groups of classes."""
        queries = tuple(
            QueryForm(
                np.array(form.plain, dtype=np.int64).reshape(len(form.noisy), k).T,
                np.array(form.counted, dtype=np.int64).reshape(len(form.noisy), counted).T,
                r,
                np.array(form.noisy),
                np.array(form.std),
            )
            for (k, counted, r), form in self._forms.items()
        )
        return QueryAnswers(rows, partition.over_groups(self.predicates), queries)

    def _number(self, attribute: int, factor: Factor, row: int) -> int:
        predicate = np.asarray(factor.row(row), dtype=np.float64)
        number = self._numbers.setdefault((attribute, predicate.tobytes()), len(self.predicates))
        if number == len(self.predicates):
            self.predicates.append((attribute, predicate))
        return number
