"""The rounds of RAP: each selects queries and measures them, then the projection is fitted again.

The interface of the projection is stated here: it is public and sees noisy values alone. That of
chance, which selects by true values, is in selection.

A run is committed as one vector of int64, all counts in steps of 2^-10: the total, noisy or as
declared; then for each round the numbers of its K queries, counted through all blocks in order, in
the order drawn, and after them their K noisy counts. Where all queries are measured at once there
are no numbers, and the counts are in the workload's order. The synthetic rows are never stored:
they follow from this, as does the total that they are scaled to (see `scaled_total`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import LedgerError
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.accounting import guarantee as guarantee_of
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.ledger.store import PartialMeasurement
from dpquery.measurement.noise.exact_noise import source
from dpquery.measurement.query import Tables
from dpquery.measurement.release_key import rap_key
from dpquery.measurement.rounds.budget import GRID_BITS, STEPS, RapBudget, rap_budget
from dpquery.measurement.rounds.selection import Chance, ExactChance, differences_of, select_queries
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.progress import report_progress
from dpquery.spec.spec import Rows, Spec
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.strategy import WeightedBlock
from dpquery.version import __version__

LAYOUT = "rap/1"
"""Named in the key of every run, beside the settings and all numbers of its mechanism.

Raise it with any change to what the same settings and the same mechanism ask or commit: the grid,
the split of a round between the sides, the law of a selection, how synthetic counts are rounded,
the sensitivity of selected queries, the layout of a committed vector. A run begun, or committed,
by an earlier version is then another question, and is never continued or read by the new rules.
What is made of a committed vector, such as `scaled_total` or the fit, is not part of it: a public
function of what was committed, of which every later round may be one too.
"""


class Projection(Protocol):
    """The interface of the projection, the public side of RAP, between two rounds.

    Privacy: it is given noisy values only, so all it does is post-processing.
    """

    def answers(self, position: int) -> NDArray[np.floating]:
        """Return the synthetic answers of the workload block at a position, (m,) counts, float."""
        ...

    def add(self, places: Ints, noisy: Floats, std: float) -> None:
        """Add the noisy answers of a round to what is fitted, and fit again.

        Args:
            places: (k, 2) int64: position of a workload block, number of a row in it.
            noisy: (k,) noisy counts.
            std: the standard deviation of their noise, in counts.
        """
        ...


@dataclass(frozen=True, eq=False)
class Round:
    """The noisy answers of one round; public.

    Attributes:
        places: (k, 2) int64: position of a workload block, number of a row in it.
        noisy: (k,) noisy counts, multiples of 2^-10.
        std: standard deviation of their noise, in counts.
    """

    places: Ints
    noisy: Floats
    std: float


@dataclass(frozen=True, eq=False)
class RapMeasurement:
    """The noisy values of a whole run of RAP; public, and the synthetic rows follow from them.

    Attributes:
        total: the number of records that answers are scaled to, from `scaled_total`.
        total_std: standard deviation of the noise it was counted with, 0 where it was declared.
        rounds: in order.
    """

    total: float
    total_std: float
    rounds: tuple[Round, ...]


def run_rounds(
    answers: Callable[[int], Ints],
    *,
    workload: Workload,
    mechanism: RapBudget,
    projection: Projection,
    chance: Chance,
    done: Sequence[Round] = (),
) -> Iterator[Round]:
    """Yield every round as it is measured, before the projection is given it.

    It is a generator: nothing happens but by iterating over it, and the projection is given the
    last round when the iteration ends.

    Args:
        answers: exact answers, (m,), of the workload block at a position; a block at a time.
        workload: all queries that may be selected.
        mechanism: rounds, scales and shares, from `rap_budget` for this workload.
        projection: the public side.
        chance: selects queries and draws noise.
        done: rounds of an earlier run that was cut short; the projection is given them, and they
            are neither drawn again nor yielded.

    Privacy:
        All rounds together are (rho - total_rho)-zCDP, for neighbours as the mechanism has them:
        each is a selection and a measurement whose parameters follow from earlier rounds. The
        projection's answers decide what is asked next, and adaptive composition allows for any
        rule that sees earlier outputs alone. An iterator that makes every round durable before it
        takes the next sees to it that the projection, whatever becomes of it, cannot have a round
        drawn again.
    """
    taken = np.zeros((0, 2), dtype=np.int64)
    for number in range(mechanism.settings.rounds):
        if number < len(done):
            this_round = done[number]
        else:
            this_round = _measured(answers, workload, mechanism, projection, chance, taken)
            yield this_round
        projection.add(this_round.places, this_round.noisy, this_round.std)
        taken = np.concatenate([taken, this_round.places])


@dataclass(frozen=True, eq=False)
class RapQuery:
    """The query of a whole run of RAP, charged as one; all of it is public.

    Attributes:
        spec: declares dataset, columns, domain and unit.
        compiled: the workload, and the classes that are counted.
        settings: of RAP.
        mechanism: from `rap_budget`, for this workload and these settings.
        release: number of the release; another number draws fresh noise and pays for it.
        project: returns the projection, given the total.
    """

    spec: Spec
    compiled: CompiledSpec
    settings: RapSettings
    mechanism: RapBudget
    release: int
    project: Callable[[float], Projection]

    def __post_init__(self) -> None:
        if self.settings != self.mechanism.settings:
            raise ValueError("the mechanism was designed for other settings")

    @cached_property
    def key(self) -> str:
        """Return the ledger's key: queries of one key are one release, charged once."""
        return rap_key(
            self.spec,
            self.compiled,
            mechanism=self.mechanism,
            settings=self.settings,
            layout=LAYOUT,
            release=self.release,
        )

    @property
    def guarantee(self) -> Guarantee:
        """The privacy guarantee of the whole query, which is charged."""
        return self.mechanism.guarantee

    @property
    def option(self) -> str:
        """The option of a release that asks for RAP, whatever the plan prefers."""
        return "--mechanism rap"

    def guarantee_at(self, epsilon: Fraction) -> Guarantee:
        """Return the guarantee of the same run at another epsilon and the same delta."""
        asked = guarantee_of("gaussian", epsilon=epsilon, delta=self.guarantee.delta)
        workload, rows = self.compiled.workload, self.spec.dataset.rows
        privacy = self.spec.privacy
        return rap_budget(
            workload, self.settings, privacy=privacy, guarantee=asked, rows=rows
        ).guarantee

    @property
    def subsets(self) -> list[Subset]:
        """The attribute subsets whose tables are counted: the blocks, and () for the total."""
        subsets = dict.fromkeys(block.attributes for block in self.compiled.workload.blocks)
        return list(subsets if self.mechanism.total is not None else subsets | {(): None})

    @property
    def round_size(self) -> int:
        """Number of values that a round commits."""
        return 2 * self.settings.selected or self.compiled.workload.shape[0]

    def source(self) -> str:
        """Return the names and versions of the noise sources."""
        kind = self.guarantee.kind
        if self.settings.adaptive:
            return f"{source(self.settings.selected, kind)}, and dpquery {__version__} to select"
        sizes = [self.compiled.workload.shape[0], *([1] if self.mechanism.total is None else [])]
        return " and ".join(dict.fromkeys(source(size, kind) for size in sizes))

    def noisy(self, tables: Tables, *, draft: PartialMeasurement) -> Ints:
        """Return the noisy total and rounds, each in the draft before the projection sees it.

        Chance is always the exact one.
        """
        chance, parts = ExactChance(), self._parts(draft)
        if not parts:
            counted = int(tables[()]) if self.mechanism.total is None else 0
            parts = [noisy_total(counted, self.mechanism, chance)]
            draft.append(parts[0])
        measured = _decoded(parts, self)
        rounds = run_rounds(
            lambda position: _exact(self.compiled.workload.blocks[position], tables),
            workload=self.compiled.workload,
            mechanism=self.mechanism,
            projection=self.project(measured.total),
            chance=chance,
            done=measured.rounds,
        )
        # The last round is not fitted here: reconstruction fits it, from the ledger.
        for this_round in islice(rounds, self.settings.rounds - len(measured.rounds)):
            parts.append(_encoded(this_round, self.compiled.workload, self.mechanism))
            draft.append(parts[-1])
            report_progress(f"RAP: {len(parts) - 1} of {self.settings.rounds} rounds measured")
        return np.concatenate(parts)

    def _parts(self, draft: PartialMeasurement) -> list[Ints]:
        """Return the total and the rounds that an earlier run left; LedgerError if damaged."""
        parts = draft.parts()
        sizes = [1, *[self.round_size] * self.settings.rounds]
        if [len(part) for part in parts] != sizes[: len(parts)] or not self._numbered(parts[1:]):
            raise LedgerError(
                f"the parts of the unfinished measurement {self.key} are damaged; "
                "`dpquery ledger abandon` it: its charge stays spent, and a new run pays anew"
            )
        return parts

    def _numbered(self, rounds: Sequence[Ints]) -> bool:
        """Return whether rounds name queries of the workload, none of them twice."""
        if not rounds:
            return True
        numbers = np.concatenate([values[: self.settings.selected] for values in rounds])
        in_workload = (numbers >= 0) & (numbers < self.compiled.workload.shape[0])
        return bool(in_workload.all()) and len(np.unique(numbers)) == len(numbers)


def rounds_of(query: RapQuery, values: Ints) -> RapMeasurement:
    """Return the total and rounds that a committed vector holds.

    Raises:
        ValueError: it is not of the layout of this query.
    """
    if len(values) != 1 + query.settings.rounds * query.round_size:
        raise ValueError("these are not the values of this query")
    parts = np.split(values, range(1, len(values), query.round_size))
    return _decoded(parts, query)


def all_places(workload: Workload) -> Ints:
    """Return the places of all queries, (m, 2), in order."""
    sizes = [block.queries for block in workload.blocks]
    positions = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.arange(len(positions)) - np.repeat(offsets(workload)[:-1], sizes)
    return np.stack([positions, rows], axis=1)


def offsets(workload: Workload) -> Ints:
    """Return the number of queries before each block, and of all."""
    return np.array([0, *accumulate(block.queries for block in workload.blocks)], dtype=np.int64)


def noisy_total(counted: int, mechanism: RapBudget, chance: Chance) -> Ints:
    """Return the number of records in grid steps, (1,): as declared, or as counted with noise."""
    if mechanism.total is not None:
        return np.array([mechanism.total << GRID_BITS])
    return chance.add_noise(
        np.array([counted << GRID_BITS]),
        budget=mechanism.budget(mechanism.total_rho),
        sensitivity=mechanism.total_sensitivity,
        scale=mechanism.total_scale,
    )


def scaled_total(steps: int, mechanism: RapBudget, rows: Rows | None) -> float:
    """Return the number of records that answers are scaled to, at least 1.

    All answers follow it, and at low signal a noisy count alone could be anything. So it is weighed
    with the declared number, which is believed to half of itself, by their inverse variances: that
    moves a clear count by far less than its noise, and says what was declared where nothing is.

    Args:
        steps: the committed total, in grid steps.
        mechanism: how it came about.
        rows: the declared number of rows, if there is one.

    Privacy:
        Post-processing: of a committed value and of public ones.
    """
    known = None if mechanism.total is not None else rows
    return weighed_total(float(steps / STEPS), mechanism.total_std, known)


def weighed_total(counted: float, std: float, rows: Rows | None) -> float:
    """Return a noisy number of records weighed with the declared one, if there is one; at least 1.

    Args:
        counted: the noisy number.
        std: standard deviation of its noise.
        rows: the declared number, believed to half of itself.
    """
    if rows is None:
        return max(1.0, counted)
    noise, doubt = std**2, (rows.count / 2) ** 2
    return max(1.0, (rows.count / doubt + counted / noise) / (1 / doubt + 1 / noise))


def _exact(block: Block, tables: Tables) -> Ints:
    """Return the exact answers of a block, (m,)."""
    table = tables[block.attributes]
    return np.asarray(exact_answers(WeightedBlock(1, block), table, shift=0))


def _encoded(measured: Round, workload: Workload, mechanism: RapBudget) -> Ints:
    """Return the part of a committed vector that holds a round."""
    steps = np.asarray(np.rint(measured.noisy * STEPS), dtype=np.int64)
    if not mechanism.settings.adaptive:
        return steps
    numbers = offsets(workload)[measured.places[:, 0]] + measured.places[:, 1]
    return np.concatenate([numbers, steps])


def _decoded(parts: Sequence[Ints], query: RapQuery) -> RapMeasurement:
    """Return the total and rounds in the parts of a run, which may have rounds to come."""
    workload, mechanism = query.compiled.workload, query.mechanism
    (counted,), *rounds = parts
    starts, decoded = offsets(workload), []
    for values in rounds:
        if mechanism.settings.adaptive:
            numbers, values = np.split(values, 2)
            positions = np.searchsorted(starts, numbers, side="right") - 1
            places = np.stack([positions, numbers - starts[positions]], axis=1)
        else:
            places = all_places(workload)
        move = mechanism.sensitivity(workload, places)
        std = mechanism.scale(mechanism.measurement_rho, move) / STEPS
        decoded.append(Round(places, values / STEPS, std))
    total = scaled_total(int(counted), mechanism, query.spec.dataset.rows)
    return RapMeasurement(total, mechanism.total_std, tuple(decoded))


def _measured(
    answers: Callable[[int], Ints],
    workload: Workload,
    mechanism: RapBudget,
    projection: Projection,
    chance: Chance,
    taken: Ints,
) -> Round:
    """Return one round: queries selected, or all, and measured; holds true values on the way."""
    if mechanism.settings.adaptive:
        number = len(taken) // mechanism.settings.selected
        places = select_queries(
            lambda block: differences_of(answers(block), projection.answers(block).ravel()),
            blocks=len(workload.blocks),
            taken=taken,
            sides=mechanism.sides(number),
            rate=mechanism.rate,
            chance=chance,
        )
    else:
        places = all_places(workload)
    exact = _answered(answers, places)
    move = mechanism.sensitivity(workload, places)
    scale = mechanism.scale(mechanism.measurement_rho, move)
    budget = mechanism.budget(mechanism.measurement_rho)
    noisy = chance.add_noise(exact << GRID_BITS, budget=budget, sensitivity=move, scale=scale)
    return Round(places, noisy / STEPS, scale / STEPS)


def _answered(answers: Callable[[int], Ints], places: Ints) -> Ints:
    """Return the exact answers at some places, (k,), computing every block once."""
    exact = np.empty(len(places), dtype=np.int64)
    order = np.argsort(places[:, 0], kind="stable")
    blocks, starts = np.unique(places[order, 0], return_index=True)
    for position, here in zip(blocks.tolist(), np.split(order, starts[1:]), strict=True):
        exact[here] = answers(position)[places[here, 1]]
    return exact
