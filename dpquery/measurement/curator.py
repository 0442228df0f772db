"""The one door to the data: charge the ledger, count, add noise, commit. Nothing else opens it.

What leaves this module is the noisy measurement alone. Everything after it is post-processing.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpquery.measurement.accounting import charge_units, unit_of
from dpquery.measurement.exact import exact_answers
from dpquery.measurement.ledger import Ledger, Measurement
from dpquery.measurement.mechanism import Mechanism
from dpquery.measurement.noise import draw, source
from dpquery.measurement.tabulate import check_header, check_size, tabulate
from dpquery.operators.compile import CompiledSpec
from dpquery.spec.domain import Categorical, Column, Kind
from dpquery.spec.model import Spec
from dpquery.strategy.lattice import Subset
from dpquery.strategy.strategies import Strategy


@dataclass(frozen=True, eq=False)
class Query:
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
    mechanism: Mechanism
    release: int = 1

    @cached_property
    def key(self) -> str:
        """Name what is measured: the same key is the same release, and is charged once.

        Two workloads that share classes and strategy share the measurement too, and so do specs
        that differ in labels alone.
        """
        spec, mechanism, digest = self.spec, self.mechanism, hashlib.sha256()
        public = (
            spec.dataset,
            [[_coding(column) for column in own.columns] for own in spec.domain.attributes],
            (spec.privacy.person, spec.privacy.max_rows, spec.privacy.neighbours),
            mechanism,
            self.release,
        )
        digest.update(repr(public).encode())
        for classes in self.compiled.classes:
            digest.update(np.ascontiguousarray(classes, dtype="<i8").tobytes() + b";")
        for own in self.strategy.measurements:
            digest.update(repr((own.weight, own.block.attributes, own.block.terms)).encode())
            for factor in own.block.factors:
                digest.update(repr(factor.key).encode())
        return digest.hexdigest()


def _coding(column: Column) -> tuple[str, Kind | tuple[str, ...], bool]:
    """Return what decides a column's codes: its labels do not."""
    kind = column.kind
    return column.name, kind.values if isinstance(kind, Categorical) else kind, column.other


def measure(
    data: Path,
    query: Query,
    *,
    ledger: Ledger,
    progress: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Return the noisy measurement of a query, charging the ledger before the data is read.

    A query whose measurement is in the ledger is answered from there: free, identical, and without
    opening the file. A refused charge is refused before the file is opened; a noise source that is
    not to be trusted, tables that are too large to count, and a file that cannot be read or lacks
    a declared column are found before anything is charged.

    Privacy:
        The values returned are epsilon-DP or rho-zCDP as query.mechanism.guarantee says, for the
        unit and neighbours the spec declares. Between the draw and the commit nothing depends on
        the values drawn.
    """
    dataset, key = query.spec.dataset.id, query.key
    guarantee = query.mechanism.guarantee
    with ledger.hold(key):
        units = charge_units(guarantee, ledger.currency(dataset, unit=unit_of(query.spec.privacy)))
        stored = ledger.lookup(dataset, key=key, units=units)
        if stored is not None:
            progress("stored measurements found: nothing is charged, the data is not opened")
            return stored
        noise_source = source(sum(own.block.shape[0] for own in query.strategy.measurements))
        check_size(_subsets(query), query.strategy.shape)
        check_header(data, query.spec)
        ledger.reserve(
            dataset,
            key=key,
            units=units,
            native={guarantee.kind: str(guarantee.amount)},
            details={"version": query.spec.dataset.version, "release": query.release},
        )
        return ledger.commit(key, _noisy(data, query, progress), source=noise_source)


def _subsets(query: Query) -> list[Subset]:
    return list(dict.fromkeys(own.block.attributes for own in query.strategy.measurements))


def _noisy(data: Path, query: Query, progress: Callable[[str], None]) -> NDArray[np.int64]:
    """Count, answer exactly and add noise: the only lines that hold true values."""
    measurements, mechanism = query.strategy.measurements, query.mechanism
    tables = tabulate(
        data,
        spec=query.spec,
        subsets=_subsets(query),
        classes=query.compiled.classes,
        progress=lambda share: progress(f"reading the data: {share:.0%}"),
    )
    exact = [
        exact_answers(own, tables[own.block.attributes], shift=mechanism.shift)
        for own in measurements
    ]
    rows = sum(len(own) for own in exact)
    return draw(
        np.concatenate(exact),
        budget=mechanism.guarantee,
        sensitivity=mechanism.sensitivity,
        scale=mechanism.scale,
        progress=lambda done: progress(f"drawing noise: {done / rows:.0%}"),
    )
