"""The one door to the data: charge the ledger, count, add noise, commit.

Nothing else on a release's way opens it (tests/house/test_architecture holds that); `data_check`
does, for the curator's eyes. What leaves this module is the noisy measurement alone, and everything
after it is post-processing.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import BudgetExceededError, DataError
from dpquery.limits import MAX_STATE_BYTES, RECORD_BITS
from dpquery.measurement.accounting import Guarantee, Price, price_of, unit_of
from dpquery.measurement.accounting import guarantee as guarantee_of
from dpquery.measurement.counting.exact_answers import Tables, answers_alike
from dpquery.measurement.counting.locations import Data, sources_of
from dpquery.measurement.counting.sources import ColumnsError
from dpquery.measurement.counting.tabulate import (
    check_header,
    check_table_sizes,
    count_values,
    tabulate,
)
from dpquery.measurement.discovery import Discovery
from dpquery.measurement.ledger.admission import RETRIES, NoRoomError
from dpquery.measurement.ledger.events import JSON
from dpquery.measurement.ledger.funds import STILL_FREE, Funds, Room, delta_text, epsilon_text
from dpquery.measurement.ledger.ledger import Ledger, StoredMeasurement
from dpquery.measurement.ledger.store import PartialMeasurement
from dpquery.measurement.noise.calibration import CalibratedNoise, Calibration, calibration
from dpquery.measurement.noise.exact_noise import check_libraries, draw, source
from dpquery.measurement.release_key import linear_key
from dpquery.operators.blocks import runs_alike
from dpquery.operators.compile import CompiledSpec
from dpquery.progress import report_progress
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.strategy import Strategy, WeightedBlock, form_of

if TYPE_CHECKING:
    from dpquery.measurement.rounds.queries import RapRounds
    from dpquery.measurement.rounds.query import RoundsQuery
    from dpquery.measurement.rounds.tables import TableRounds

Query: TypeAlias = "LinearQuery | RoundsQuery[RapRounds] | RoundsQuery[TableRounds]"
"""All that is measured and charged together; every part of it is public.

Privacy: its guarantee holds for the noisy values of all its steps. Whatever is computed from noisy
values before the commit is computed from values that are in the draft.
"""
_Counts = TypeVar("_Counts")


@dataclass(frozen=True, eq=False)
class LinearQuery:
    """The query of a linear strategy with noise of one scale; all of it is public."""

    spec: Spec  # declares dataset, columns, domain and unit
    compiled: CompiledSpec  # the classes that are counted
    strategy: Strategy  # what is measured
    mechanism: CalibratedNoise  # how it is made private
    release: int = 1  # number of the release; another number draws fresh noise and pays for it

    @cached_property
    def key(self) -> str:
        """Return the ledger's key: queries of one key are one release, charged once.

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
        """The privacy guarantee of the whole query, which is charged."""
        return self.mechanism.guarantee

    @property
    def option(self) -> str:
        """The option of a release that asks for this noise, whatever the plan prefers."""
        return f"--noise {self.guarantee.law.noise}"

    def guarantee_at(self, epsilon: Fraction) -> Guarantee:
        """Return the guarantee of the same query at another epsilon, with what it costs."""
        noise, delta, kind = self.strategy.noise, self.guarantee.delta, self.guarantee.kind
        asked = guarantee_of(noise, epsilon=epsilon, delta=delta, accounting=kind)
        return self._calibration.noise_for(asked).guarantee

    @cached_property
    def _calibration(self) -> Calibration:
        """What the noise is calibrated to at every epsilon."""
        return calibration(self.strategy, privacy=self.spec.privacy, change=self.mechanism.change)

    @property
    def subsets(self) -> list[Subset]:
        """The attribute subsets whose tables are counted."""
        measurements = self.strategy.measurements
        return list(dict.fromkeys(weighted.block.attributes for weighted in measurements))

    def source(self) -> str:
        """Return the name and version of the noise source."""
        rows = sum(weighted.block.shape[0] for weighted in self.strategy.measurements)
        return source(rows, self.guarantee.law)

    def noisy(self, tables: Tables, *, draft: PartialMeasurement) -> Ints:
        """Return the exact answers with noise, (m,) grid steps; one draw needs no draft."""
        mechanisms = self.mechanism.all
        drawn = [
            draw(
                rows,
                budget=mechanism.own,
                sensitivity=mechanism.sensitivity,
                scale=mechanism.scale,
                out=rows,
            )
            for rows, mechanism in zip(
                self._exact(tables).reshape(len(mechanisms), -1), mechanisms, strict=True
            )
        ]
        return drawn[0] if len(drawn) == 1 else np.concatenate(drawn)

    def _exact(self, tables: Tables) -> Ints:
        """Return the exact answers, (m,) grid steps, freeing each table after its last use.

        What is measured beside the weights stands behind them, as many answers to each sum.
        """
        measurements, mechanisms = self.strategy.measurements, self.mechanism.all
        uses = Counter(weighted.block.attributes for weighted in measurements)
        exact = np.empty((len(mechanisms), sum(self.strategy.sizes)), dtype=np.int64)

        def counted(weighted: WeightedBlock) -> Ints:
            """Return the table of a measurement: one part for each mechanism."""
            subset = weighted.block.attributes
            uses[subset] -= 1
            table = tables[subset] if uses[subset] else tables.pop(subset)
            return table[None] if len(mechanisms) == 1 else table

        start = 0
        for alike in runs_alike(measurements, form_of, _numbers):
            stop = start + sum(weighted.block.queries for weighted in alike)
            parts = zip(*map(counted, alike), strict=True)
            for out, tables_of, mechanism in zip(exact, parts, mechanisms, strict=True):
                bits = RECORD_BITS + mechanism.shift - self.mechanism.shift
                answers = answers_alike(alike, tables_of, shift=mechanism.shift, bits=bits)
                np.concatenate([answers], out=out[start:stop])  # unlike =, refuses another length
            start = stop
        return exact.ravel()


def _numbers(weighted: WeightedBlock) -> int:
    """Return the size of a measurement's table, or of its answers where they are more."""
    return max(math.prod(weighted.block.table_shape), weighted.block.queries)


def measure(
    data: Data,
    query: "Query | Discovery",
    *,
    ledger: Ledger,
    memory: int = MAX_STATE_BYTES,
    others: "Iterable[Query]" = (),
) -> StoredMeasurement:
    """Return the noisy measurement of a query, charging the ledger before the data is read.

    A query whose measurement is in the ledger is answered from there: free, identical, and without
    opening a file. A refused charge is refused before a file is opened. Libraries of versions that
    are not accepted, tables too large to count, and a file that cannot be read or lacks a declared
    column are reported before anything is charged.

    Args:
        data: files or tables; see `locations`.
        query: what is measured, and how it is made private; of a discovery, what is looked for.
        ledger: open, with the dataset registered.
        memory: bytes of rows of persons that are held at a time.
        others: what could be released in its place, looked at where the charge is refused.

    Raises:
        BudgetExceededError: the cap has no room for the charge; what fits is named.
        DataError: the file cannot be read, or lacks a declared column; where that is found after
            the charge, the message says that it stands.
        LedgerError: the dataset is not registered, or the ledger cannot be used.
        PlanConflictError: the record has another cap, unit, parent or charge than the query.
        UnsupportedWorkloadError: tables too large to count.

    Privacy:
        The values returned are epsilon-DP, rho-zCDP or mu-GDP as query.guarantee says, for the unit
        and neighbours that the spec declares. Between a draw and the commit nothing depends on the
        values drawn, unless they are in the draft by then, and so are never drawn again.
    """
    dataset, key = query.spec.dataset.id, query.key
    guarantee = query.guarantee
    with ledger.hold(key), _told_what_fits(query, others, ledger):
        price = _price(query, ledger, query.guarantee)
        stored = ledger.lookup(dataset, key=key, price=price)
        if stored is not None:
            ledger.draft(key).clear()  # a run killed after its commit leaves its parts behind
            report_progress("stored measurements found: nothing is charged, the data is not opened")
            return stored
        check_libraries()
        noise_source = query.source()
        _check_before_charge(data, query)
        ledger.reserve(
            dataset,
            key=key,
            price=price,
            native=guarantee.native,
            details={"version": query.spec.dataset.version, **_told_of(query)},
        )
        spec = query.spec
        if isinstance(query, Discovery):
            most, sought = query.max_values, query.sought
            counts = _charged(
                partial(count_values, data, spec=spec, max_values=most, sought=sought)
            )
            values = query.noisy(counts)
        else:
            of, classes = query.subsets, query.compiled.classes
            count = partial(tabulate, data, spec=spec, subsets=of, classes=classes, memory=memory)
            tables = _charged(count)
            values = query.noisy(tables, draft=ledger.draft(key))
        measurement = ledger.commit(key, values, source=noise_source)
        ledger.draft(key).clear()
        return measurement


def _told_of(query: "Query | Discovery") -> dict[str, JSON]:
    """Return what the ledger keeps of a query beside its price: public facts."""
    if isinstance(query, Discovery):
        return {"discover": query.column}
    return {"release": query.release}


def _check_before_charge(data: Data, query: "Query | Discovery") -> None:
    """Check headers and sizes; DataError says that nothing was charged."""
    try:
        if isinstance(query, Discovery):
            sources_of(data, query.spec.file)  # which Spark's tables are not
        else:
            shape, copies = query.compiled.workload.shape_of_domain, query.spec.privacy.copies
            check_table_sizes(query.subsets, shape, copies)
        check_header(data, query.spec)
    except ColumnsError as error:
        option = query.option if isinstance(query, Discovery) else ""
        problem = error.told(person=query.spec.privacy.person, option=option)
    except DataError as error:
        problem = str(error)
    else:
        return
    # Raised outside the handler, as below.
    raise DataError(f"{problem}{'' if problem.endswith('?') else ';'} nothing was charged")


def _charged(count: Callable[[], _Counts]) -> _Counts:
    """Return the counts of a query that is charged; where data fail, DataError says so too."""
    try:
        return count()
    except DataError as error:
        problem = str(error)
    # Raised outside the handler: what hangs on the error may hold a line of the file.
    raise DataError(
        f"{problem}. The charge stands: it was made before the data were read. Once they can be, "
        f"the same command goes on free of charge, {RETRIES} times at most"
    )


def _price(query: "Query | Discovery", ledger: Ledger, guarantee: Guarantee) -> Price:
    """Return the price of a query; PlanConflictError if the record disagrees with its spec."""
    dataset, unit = query.spec.dataset, unit_of(query.spec.privacy)
    parent = None if dataset.parent is None else dataset.parent.id
    currency = ledger.currency(dataset.id, unit=unit, parent=parent)
    return price_of(guarantee, currency, unit)


@contextmanager
def _told_what_fits(
    query: "Query | Discovery", others: "Iterable[Query]", ledger: Ledger
) -> Iterator[None]:
    """Add to a refusal the largest epsilons that would still be accepted, and how to ask for them.

    One kind of noise may fit where another does not: they are charged by different sums.
    """
    try:
        yield
    except NoRoomError as refusal:
        rooms = [(one, _room(one, refusal.funds, ledger)) for one in (query, *others)]
        fitting = [(one, room) for one, room in rooms if room is not None and room.largest]
        asked = [_options(one, one.guarantee.epsilon) for one, room in fitting if room.repetitions]
        largest = [_options(one, room.largest) for one, room in fitting if room.largest]
        remedy = f"{' or '.join(asked)} fits; " if asked else ""
        if largest:
            remedy += f"the largest that still fits is {'; so does '.join(largest)}"
        else:
            remedy = "no epsilon is small enough to fit; " if refusal.funds.remaining else ""
            remedy += STILL_FREE
        what = "discovery" if isinstance(query, Discovery) else "release"
        message = refusal.with_remedy(remedy, what=what)
        raise BudgetExceededError(message, exactly=refusal.exactly) from None


def _options(query: "Query | Discovery", epsilon: Fraction) -> str:
    delta = f"--delta {delta_text(query.delta)} " if isinstance(query, Discovery) else ""
    return f"--epsilon {epsilon_text(epsilon)} {delta}{query.option}"


def _room(query: "Query | Discovery", funds: Funds, ledger: Ledger) -> Room | None:
    def price_at(epsilon: Fraction) -> Price:
        return _price(query, ledger, query.guarantee_at(epsilon))

    try:
        return funds.room_for(price_at, epsilon=query.guarantee.epsilon)
    except BudgetExceededError:  # of a kind that the cap is never charged for
        return None
