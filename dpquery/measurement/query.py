"""What may be put to the data: the small interface of a question."""

from collections.abc import Callable, MutableMapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.ledger.partial_measurement import PartialMeasurement
from dpquery.operators.compile import CompiledSpec
from dpquery.spec.model import Spec
from dpquery.strategy.algebra.subsets import Subset

Tables = MutableMapping[Subset, NDArray[np.int64]]


class Query(Protocol):
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
        self, tables: Tables, *, draft: PartialMeasurement, progress: Callable[[str], None]
    ) -> NDArray[np.int64]:
        """Return the noisy values to commit, (m,), from the true tables, which may be used up.

        Privacy: the guarantee holds for these values. Whatever is computed from noisy values on the
        way, is computed from values that are in the draft.
        """
