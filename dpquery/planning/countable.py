"""Compile a spec whose tables are all small enough to be counted."""

import math

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_TABLE_CELLS
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec, compile_spec
from dpquery.planning.fact_checks import check_facts
from dpquery.spec.model import Spec

_COARSER = "ask it of fewer attributes, or of coarser sets of their values"


def compile_countable(spec: Spec) -> CompiledSpec:
    """Build the operators of a spec of whose tables none has more than MAX_TABLE_CELLS cells.

    Every query of a table depends on all of its cells, so each strategy, and RAP, counts them.

    Raises:
        UnsupportedWorkloadError: a line for every item with a wider table, with its place.
        SpecError: public facts leave an item nothing to measure.
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
    if too_wide:
        raise UnsupportedWorkloadError("\n".join(too_wide))
    check_facts(spec, compiled)
    return compiled


def _declared(compiled: CompiledSpec, spec: Spec, i: int) -> int:
    """Return the number of classes of an attribute's codes, less those of other texts alone."""
    attribute, classes = spec.domain.attributes[i], compiled.classes[i]
    if attribute.merged or not attribute.in_data:
        return int(classes.max()) + 1
    return len(np.unique(classes[: attribute.length]))


def _cells(block: Block) -> int:
    return math.prod(block.table_shape)
