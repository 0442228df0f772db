"""The tables that an adaptive run may measure: all below what the questions ask, and their weights.

A candidate is a set of attributes that some block of the workload holds, over the classes that the
workload is counted in, so that one rule serves marginals, groups, ranges, thresholds and unions. A
candidate weighs what the workload has in common with it: the sum over all blocks of the weight of
the block times the number of attributes that both hold, as in AIM [McKenna22]. Only ratios matter
to a draw, so weights are whole numbers, of which the largest is LARGEST_WEIGHT.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_ADAPTIVE_CELLS, MAX_ADAPTIVE_TABLES
from dpquery.operators.blocks import Workload
from dpquery.strategy.algebra.subsets import Subset

MOST_CANDIDATE_CELLS = 10_000
"""Cells of a candidate of several attributes at most: larger ones say little in any round."""
LARGEST_WEIGHT = 1 << 10


@dataclass(frozen=True)
class CandidateTables:
    """The tables that may be measured, numbered from 0; public.

    Attributes:
        subsets: attributes of each, ascending; those of one attribute come first.
        sizes: cells of each.
        weights: of each in a draw, at least 1.
    """

    subsets: tuple[Subset, ...]
    sizes: tuple[int, ...]
    weights: tuple[int, ...]

    @property
    def one_way(self) -> int:
        """Number of tables of one attribute, which are measured first."""
        return sum(len(subset) == 1 for subset in self.subsets)


def candidate_tables(workload: Workload) -> CandidateTables:
    """Return the tables that may be measured for a workload.

    Raises:
        UnsupportedWorkloadError: the questions ask for one table only, or for too many.
    """
    shape = workload.shape_of_domain
    asked: dict[Subset, Fraction] = {}
    for block, weight in zip(workload.blocks, workload.weights, strict=True):
        attributes = tuple(i for i in block.attributes if shape[i] > 1)
        asked[attributes] = asked.get(attributes, Fraction(0)) + Fraction(weight)
    asked.pop((), None)
    products = all(block.is_product for block in workload.blocks)
    if not asked or (len(asked) == 1 and products):
        raise UnsupportedWorkloadError(
            "adaptive measurement chooses among tables, and the questions ask for one table only: "
            "there is nothing to adapt to; take --mechanism linear"
        )
    subsets = _closure(asked, shape)
    of_attribute = [Fraction(0)] * len(shape)  # what all blocks that hold it weigh
    for attributes, summed in asked.items():
        for i in attributes:
            of_attribute[i] += summed
    shared = [sum(of_attribute[i] for i in subset) for subset in subsets]
    largest = max(shared)
    return CandidateTables(
        subsets,
        tuple(math.prod(shape[i] for i in subset) for subset in subsets),
        tuple(max(1, round(LARGEST_WEIGHT * each / largest)) for each in shared),
    )


def _closure(asked: dict[Subset, Fraction], shape: tuple[int, ...]) -> tuple[Subset, ...]:
    """Return all sets below those asked that are small enough: smaller ones first, in order."""
    closure: set[Subset] = set()
    cells = 0
    for attributes in sorted(asked):
        level: set[Subset] = {(i,) for i in attributes}
        while level:
            new = level - closure
            closure |= new
            cells += sum(math.prod(shape[i] for i in subset) for subset in new)
            if len(closure) > MAX_ADAPTIVE_TABLES or cells > MAX_ADAPTIVE_CELLS:
                raise UnsupportedWorkloadError(
                    "adaptive measurement looks at all tables below those that are asked for, at "
                    f"most {MAX_ADAPTIVE_TABLES:,} of {MAX_ADAPTIVE_CELLS:,} cells in all, and "
                    "this workload has more; ask for fewer tables or coarser sets, or take "
                    "--mechanism linear"
                )
            level = {
                (*subset, i)
                for subset in level
                for i in attributes
                if i > subset[-1]
                and math.prod(shape[j] for j in subset) * shape[i] <= MOST_CANDIDATE_CELLS
            }
    return tuple(sorted(closure, key=lambda subset: (len(subset), subset)))
