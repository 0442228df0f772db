"""The query of a run in rounds: charged as one, each round durable before the fit sees it."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Generic, TypeVar

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import LedgerError
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.accounting import guarantee as guarantee_of
from dpquery.measurement.counting.exact_answers import Tables, exact_answers
from dpquery.measurement.ledger.store import PartialMeasurement
from dpquery.measurement.noise.exact_noise import source
from dpquery.measurement.release_key import rounds_key
from dpquery.measurement.rounds.chance import ExactChance
from dpquery.measurement.rounds.queries import RapRounds
from dpquery.measurement.rounds.run import MeasuredRun, PublicFit, TrueAnswers, run_rounds
from dpquery.measurement.rounds.tables import TableRounds
from dpquery.operators.blocks import Block
from dpquery.operators.compile import CompiledSpec
from dpquery.progress import report_progress
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.strategy import WeightedBlock
from dpquery.version import __version__

SomeRounds = TypeVar("SomeRounds", RapRounds, TableRounds)


@dataclass(frozen=True, eq=False)
class RoundsQuery(Generic[SomeRounds]):
    """The query of a whole run of RAP or of adaptive measurement; all of it is public."""

    spec: Spec  # declares dataset, columns, domain and unit
    compiled: CompiledSpec  # the workload, and the classes that are counted
    rounds: SomeRounds  # what may be chosen, and what it costs: of this workload
    release: int  # number of the release; another number draws fresh noise and pays for it
    # returns the fit of what is measured before all rounds
    start: Callable[[MeasuredRun], PublicFit]

    @cached_property
    def key(self) -> str:
        """Return the ledger's key: queries of one key are one release, charged once."""
        return rounds_key(self.spec, self.compiled, rounds=self.rounds, release=self.release)

    @property
    def guarantee(self) -> Guarantee:
        """The privacy guarantee of the whole query, which is charged."""
        return self.rounds.guarantee

    @property
    def option(self) -> str:
        """The option of a release that asks for such a run, whatever the plan prefers."""
        return f"--mechanism {self.rounds.key}"

    def guarantee_at(self, epsilon: Fraction) -> Guarantee:
        """Return the guarantee of the same run at another epsilon and the same delta."""
        asked = guarantee_of("gaussian", epsilon=epsilon, delta=self.guarantee.delta)
        return self.rounds.at(asked, self.spec.privacy).guarantee

    @property
    def subsets(self) -> list[Subset]:
        """The attribute subsets whose tables are counted."""
        return self.rounds.subsets

    def source(self) -> str:
        """Return the names and versions of the noise sources."""
        sources = (source(size, self.guarantee.law) for size in self.rounds.sizes)
        names = " and ".join(dict.fromkeys(sources))
        return f"{names}, and dpquery {__version__} to select" if self.rounds.selects else names

    def noisy(self, tables: Tables, *, draft: PartialMeasurement) -> Ints:
        """Return the noisy values of a run, each part in the draft before the fit sees it.

        Chance is always the exact one.
        """
        chance, rounds, parts = ExactChance(), self.rounds, self._parts(draft)
        exact = _exact(tables)
        if rounds.kept:
            exact = cache(exact)
        if not parts:
            parts = [rounds.first(exact, chance)]
            draft.append(parts[0])
        measured = rounds.decoded(parts)
        if measured.finished:
            return np.concatenate(parts)
        fit = self.start(measured)
        for this_round in run_rounds(rounds, exact, fit=fit, chance=chance, done=measured.rounds):
            parts.append(rounds.written(this_round))
            draft.append(parts[-1])
            of = "" if rounds.number is None else f" of {rounds.number} rounds"
            report_progress(f"{rounds.name}: {len(parts) - 1}{of} measured")
            if this_round.spent.last and not rounds.closing_length:
                break  # it is not fitted here: reconstruction fits it, from the ledger
        if rounds.closing_length:
            parts.append(rounds.closing(exact, fit, chance))
            draft.append(parts[-1])
        return np.concatenate(parts)

    def _parts(self, draft: PartialMeasurement) -> list[Ints]:
        """Return the parts that an earlier run left; LedgerError where no run leaves such."""
        parts = draft.parts()
        try:
            if parts:
                self.rounds.decoded(parts)
        except ValueError:
            raise LedgerError(
                f"the parts of the unfinished measurement {self.key} are damaged; "
                "`dpquery ledger abandon` it: its charge stays spent, and a new run pays anew"
            ) from None
        return parts


def _exact(tables: Tables) -> TrueAnswers:
    def exact(block: Block) -> Ints:
        table = tables[block.attributes]
        return np.asarray(exact_answers(WeightedBlock(1, block), table, shift=0))

    return exact
