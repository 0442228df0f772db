"""The one door to the data: charge the ledger, count, add noise, commit. Nothing else opens it.

What leaves this module is the noisy measurement alone. Everything after it is post-processing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpquery.measurement.accounting import Guarantee, Price, charge_units, unit_of
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.counting.tabulate import check_header, check_table_sizes, tabulate
from dpquery.measurement.ledger.ledger import Ledger, StoredMeasurement
from dpquery.measurement.ledger.partial_measurement import PartialMeasurement
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.noise.exact_noise import draw, source
from dpquery.measurement.noise.library_versions import check_libraries
from dpquery.measurement.query import Query, Tables
from dpquery.measurement.release_key import linear_key
from dpquery.operators.compile import CompiledSpec
from dpquery.spec.model import Spec
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.shapes.strategies import Strategy


@dataclass(frozen=True, eq=False)
class LinearQuery:
    """All that is put to the data, public to the last bit.

    Attributes:
        spec: declares dataset, columns, domain and unit.
        compiled: the classes that are counted.
        strategy: what is measured.
        mechanism: how it is made private.
        release: number of the release; another number draws fresh noise and pays for it.
    """

    spec: Spec
    compiled: CompiledSpec
    strategy: Strategy
    mechanism: CalibratedNoise
    release: int = 1

    @cached_property
    def key(self) -> str:
        """Name what is measured: the same key is the same release, and is charged once.

        Two workloads that share classes and strategy share the measurement too, and so do specs
        that differ in labels alone.
        """
        return linear_key(
            self.spec,
            self.compiled,
            measured=self.strategy.measurements,
            mechanism=self.mechanism,
            release=self.release,
        )

    @property
    def guarantee(self) -> Guarantee:
        """What is charged."""
        return self.mechanism.guarantee

    @property
    def subsets(self) -> list[Subset]:
        """The attribute subsets whose tables are counted."""
        return list(dict.fromkeys(own.block.attributes for own in self.strategy.measurements))

    def source(self) -> str:
        """Name what draws."""
        return source(sum(own.block.shape[0] for own in self.strategy.measurements))

    def noisy(
        self, tables: Tables, *, draft: PartialMeasurement, progress: Callable[[str], None]
    ) -> NDArray[np.int64]:
        """Answer exactly and add noise, all at once: there is nothing to keep in the draft."""
        mechanism = self.mechanism
        exact = self._exact(tables)
        rows = len(exact)
        return draw(
            exact,
            budget=mechanism.guarantee,
            sensitivity=mechanism.sensitivity,
            scale=mechanism.scale,
            progress=lambda done: progress(f"drawing noise: {done / rows:.0%}"),
        )

    def _exact(self, tables: Tables) -> NDArray[np.int64]:
        """Answer exactly, letting go of each table with the last that is asked of it."""
        measurements, shift = self.strategy.measurements, self.mechanism.shift
        last = {own.block.attributes: place for place, own in enumerate(measurements)}
        exact = np.empty(sum(own.block.queries for own in measurements), dtype=np.int64)
        start = 0
        for place, own in enumerate(measurements):
            b, stop = own.block.attributes, start + own.block.queries
            table = tables.pop(b) if last[b] == place else tables[b]
            answers = exact_answers(own, table, shift=shift)
            np.concatenate([answers], out=exact[start:stop])  # unlike =, refuses another length
            start = stop
        return exact


def measure(
    data: Path,
    query: Query,
    *,
    ledger: Ledger,
    progress: Callable[[str], None] = lambda _: None,
) -> StoredMeasurement:
    """Return the noisy measurement of a question, charging the ledger before the data is read.

    A question whose measurement is in the ledger is answered from there: free, identical, and
    without opening the file. A refused charge is refused before the file is opened; libraries that
    are not to be trusted, tables that are too large to count, and a file that cannot be read or
    lacks a declared column are found before anything is charged.

    Privacy:
        The values returned are epsilon-DP or rho-zCDP as query.guarantee says, for the unit and
        neighbours the spec declares. Between a draw and the commit nothing depends on the values
        drawn, unless they are in the draft by then, and so are never drawn again.
    """
    dataset, key = query.spec.dataset.id, query.key
    guarantee, subsets = query.guarantee, query.subsets
    with ledger.hold(key):
        price = _price(query, ledger)
        stored = ledger.lookup(dataset, key=key, price=price)
        if stored is not None:
            ledger.draft(key).clear()  # a run killed after its commit leaves its parts behind
            progress("stored measurements found: nothing is charged, the data is not opened")
            return stored
        check_libraries()
        noise_source = query.source()
        check_table_sizes(subsets, query.compiled.workload.shape_of_domain)
        check_header(data, query.spec)
        ledger.reserve(
            dataset,
            key=key,
            price=price,
            native={guarantee.kind: str(guarantee.amount)},
            details={"version": query.spec.dataset.version, "release": query.release},
        )
        tables = tabulate(
            data,
            spec=query.spec,
            subsets=subsets,
            classes=query.compiled.classes,
            progress=lambda share: progress(f"reading the data: {share:.0%}"),
        )
        draft = ledger.draft(key)
        values = query.noisy(tables, draft=draft, progress=progress)
        measured = ledger.commit(key, values, source=noise_source)
        draft.clear()
        return measured


def _price(query: Query, ledger: Ledger) -> Price:
    """Return what a question costs, once the record agrees with its spec."""
    dataset, unit = query.spec.dataset, unit_of(query.spec.privacy)
    parent = None if dataset.parent is None else dataset.parent.id
    currency = ledger.currency(dataset.id, unit=unit, parent=parent)
    return Price(charge_units(query.guarantee, currency), currency, unit)
