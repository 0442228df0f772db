"""The interface of a query: what the curator needs to charge, count and measure it."""

from collections.abc import MutableMapping
from fractions import Fraction
from typing import Protocol

from dpquery.arrays import Ints
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.ledger.store import PartialMeasurement
from dpquery.operators.compile import CompiledSpec
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.subsets import Subset

Tables = MutableMapping[Subset, Ints]
"""The true marginals over attribute subsets: confidential, one axis an attribute."""


class Query(Protocol):
    """All that is measured and charged together; every part of it is public."""

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
        """The ledger's key: queries of one key are one release, charged once."""

    @property
    def guarantee(self) -> Guarantee:
        """The privacy guarantee of the whole query, which is charged."""

    @property
    def option(self) -> str:
        """The option of a release that asks for this query, whatever the plan prefers."""

    def guarantee_at(self, epsilon: Fraction) -> Guarantee:
        """Return the guarantee of the same query at another epsilon and the same delta.

        Raises:
            SpecError: there is no such query.
        """

    @property
    def subsets(self) -> list[Subset]:
        """The attribute subsets whose tables are counted."""

    def source(self) -> str:
        """Return the names and versions of the noise sources."""

    def noisy(self, tables: Tables, *, draft: PartialMeasurement) -> Ints:
        """Return the noisy values to commit, (m,).

        Args:
            tables: the true marginal of every subset; may be emptied.
            draft: makes the noisy values of one step durable before the next step uses them.

        Privacy: the guarantee holds for these values. Whatever is computed from noisy values
        before the commit is computed from values that are in the draft.
        """
