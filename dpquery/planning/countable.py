"""Compile a spec whose tables are all small enough to be counted."""

import math
from collections.abc import Sequence

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_TABLE_CELLS, MAX_THRESHOLD_SUMS
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec, compile_spec
from dpquery.operators.thresholds import threshold_sum
from dpquery.spec.model import Spec

_COARSER = "ask it of fewer attributes, or of coarser sets of their values"


def compile_countable(spec: Spec) -> CompiledSpec:
    """Build the operators of a spec of whose tables none has more than MAX_TABLE_CELLS cells.

    Every query of a table depends on all of its cells, so each strategy, and RAP, counts them.

    Raises:
        UnsupportedWorkloadError: a line for every item with a wider table, with its place.
    """
    compiled = compile_spec(spec)
    too_wide = []
    for item, places in zip(spec.items, compiled.items, strict=True):
        widest = max((compiled.workload.blocks[k] for k in places), key=_cells, default=None)
        if widest is not None and _cells(widest) > MAX_TABLE_CELLS:
            names = " x ".join(spec.domain.attributes[i].name for i in widest.attributes)
            remedy = _COARSER
            declared = [_declared(compiled, spec, i) for i in widest.attributes]
            if math.prod(declared) <= MAX_TABLE_CELLS:
                remedy = f"with `other: drop` it has {math.prod(declared):,}; or {remedy}"
            too_wide.append(
                f"{item.place}: item {item.name!r} has a table over {names} of {_cells(widest):,} "
                f"cells to measure, and the limit is {MAX_TABLE_CELLS:,}; {remedy}"
            )
        elif (block := _most_summed(compiled, places)) is not None:
            declared = [_declared(compiled, spec, i) for i in block.attributes]
            dropped = _sums(block, declared)
            remedy = f"with `other: drop` it takes {dropped:,}; or {_COARSER}"
            too_wide.append(
                f"{item.place}: item {item.name!r} has a threshold over {len(block.attributes)} "
                f"attributes that takes {_sums(block, block.table_shape):,} sums of its table, "
                f"and the limit is {MAX_THRESHOLD_SUMS:,}; "
                f"{remedy if dropped <= MAX_THRESHOLD_SUMS else _COARSER}"
            )
    if too_wide:
        raise UnsupportedWorkloadError("\n".join(too_wide))
    return compiled


def _declared(compiled: CompiledSpec, spec: Spec, i: int) -> int:
    """Return the number of classes of an attribute's codes, less those of other texts alone."""
    attribute, classes = spec.domain.attributes[i], compiled.classes[i]
    if attribute.merged or not attribute.in_data:
        return int(classes.max()) + 1
    return len(np.unique(classes[: attribute.length]))


def _most_summed(compiled: CompiledSpec, places: range) -> Block | None:
    """Return a threshold among some blocks that takes more sums than memory has room for."""
    blocks = (compiled.workload.blocks[k] for k in places)
    return next((b for b in blocks if _sums(b, b.table_shape) > MAX_THRESHOLD_SUMS), None)


def _sums(block: Block, shape: Sequence[int]) -> int:
    """Return the cells of all marginals that a threshold is added up from; 0 for a product.

    They are those over the plain attributes and at least `at_least` of the counted ones.
    """
    if block.is_product:
        return 0
    pairs = [(1, n) for n, counted in zip(shape, block.counted, strict=True) if counted]
    plain = math.prod(n for n, counted in zip(shape, block.counted, strict=True) if not counted)
    return plain * int(threshold_sum(pairs, block.at_least))


def _cells(block: Block) -> int:
    return math.prod(block.table_shape)
