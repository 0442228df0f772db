"""What may be put to the data: the small interface of a question, and the key that names it."""

import hashlib
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.ledger_draft import Draft
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec
from dpquery.spec.domain import Categorical, Column, Kind
from dpquery.spec.model import Spec
from dpquery.strategy.lattice import Subset

if TYPE_CHECKING:
    from hashlib import _Hash

Tables = MutableMapping[Subset, NDArray[np.int64]]


class Question(Protocol):
    """All that is put to the data at once: public to the last bit, and charged as one."""

    @property
    def spec(self) -> Spec:
        """Declares dataset, columns, domain and unit."""

    @property
    def compiled(self) -> CompiledSpec:
        """The classes that are counted."""

    @property
    def release(self) -> int:
        """Number of the release; another number draws fresh noise and pays for it."""

    @property
    def key(self) -> str:
        """Name what is measured: the same key is the same release, and is charged once."""

    @property
    def guarantee(self) -> Guarantee:
        """What all that is measured promises together: what is charged."""

    @property
    def subsets(self) -> list[Subset]:
        """The attribute subsets whose tables are counted."""

    def source(self) -> str:
        """Name what draws."""

    def noisy(
        self, tables: Tables, *, draft: Draft, progress: Callable[[str], None]
    ) -> NDArray[np.int64]:
        """Return the noisy values to commit, (m,), from the true tables, which may be used up.

        Privacy: the guarantee holds for these values. Whatever is computed from noisy values on the
        way, is computed from values that are in the draft.
        """


def public_digest(spec: Spec, compiled: CompiledSpec, mechanism: object, release: int) -> "_Hash":
    """Begin the key of a question with what it asks of whom, and how it is made private."""
    digest = hashlib.sha256()
    public = (
        spec.dataset,
        [[_coding(column) for column in own.columns] for own in spec.domain.attributes],
        (spec.privacy.person, spec.privacy.max_rows, spec.privacy.neighbours),
        mechanism,
        release,
    )
    digest.update(repr(public).encode())
    for classes in compiled.classes:
        digest.update(np.ascontiguousarray(classes, dtype="<i8").tobytes() + b";")
    return digest


def add_block(digest: "_Hash", weight: int, block: Block) -> None:
    """Add the queries of a block to a key."""
    digest.update(repr((weight, block.attributes, block.terms)).encode())
    for factor in block.factors:
        digest.update(repr(factor.key).encode())


def _coding(column: Column) -> tuple[str, Kind | tuple[str, ...], bool]:
    """Return what decides a column's codes: its labels do not."""
    kind = column.kind
    return column.name, kind.values if isinstance(kind, Categorical) else kind, column.other
