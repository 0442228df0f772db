"""The columns `published` and `suppressed`: estimates that rules leave out or round.

The rules look at the estimate and its standard error, which stand in the same row: what they leave
out is not hidden. They are for the readers of a printed table, and protect nobody.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy import int32

from dpquery.arrays import Bools, Floats
from dpquery.releases.tables.errors import NO_ERROR_BARS
from dpquery.releases.tables.label_columns import encoded, masked
from dpquery.releases.tables.labels import LABEL
from dpquery.spec.model import PublicationRules
from dpquery.spec.parsing.sections import PUBLICATION_COLUMNS

PUBLICATION_FIELDS = [
    pa.field(name, kind, nullable=nullable)
    for name, kind, nullable in zip(
        PUBLICATION_COLUMNS, (pa.float64(), LABEL), (True, False), strict=True
    )
]


def publication_arrays(
    rules: PublicationRules, estimate: Floats, relative: Floats | None
) -> list[pa.Array]:
    """Return what is published of (m,) estimates, null where it is left out, and why it is.

    Args:
        rules: what is left out, and what the others are rounded to.
        estimate: (m,) estimates.
        relative: (m,) their relative errors; None where no errors are known: a rule on them then
            leaves everything out.
    """
    reason, reasons = np.zeros(len(estimate), dtype=int32), [""]
    for text, left_out in _left_out(rules, estimate, relative):
        reason[left_out & (reason == 0)] = len(reasons)
        reasons.append(text)
    step = rules.round_to
    shown = estimate if step is None else step * np.rint(estimate / step) + 0.0  # no zero below 0
    return [masked(shown, reason > 0), encoded(reason, pa.array(reasons, pa.string()))]


def _left_out(
    rules: PublicationRules, estimate: Floats, relative: Floats | None
) -> Iterator[tuple[str, Bools]]:
    """Yield for every rule why it leaves estimates out, in words, and which: (m,)."""
    if rules.rel_error is not None and relative is None:
        yield NO_ERROR_BARS, np.ones(len(estimate), dtype=bool)
    elif rules.rel_error is not None and relative is not None:
        yield f"rel_error of {rules.rel_error:g} or more", relative >= rules.rel_error
    if rules.below is not None:
        yield f"below {rules.below:,}", estimate < rules.below
