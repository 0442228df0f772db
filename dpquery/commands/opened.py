"""A release's folder opened again: its plan, its strategy and its noisy values, checked."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.commands.arguments import FilePath, as_path
from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import guarantee, parse_delta, parse_epsilon
from dpquery.measurement.ledger.ledger import MANIFEST_FILE
from dpquery.measurement.noise.calibration import CalibratedNoise, calibrated_noise, sound_change
from dpquery.measurement.noise.laws import LAWS
from dpquery.measurement.rounds.tables import TableRounds
from dpquery.mechanisms.content import ReleaseRequest, digest_of
from dpquery.mechanisms.fitted import adaptive_mechanism
from dpquery.mechanisms.linear import given_facts, measured_values, sampling_errors
from dpquery.operators.compile import CompiledSpec, compile_spec
from dpquery.plan_file.plan import plan_and_spec
from dpquery.reconstruction.adaptive_fits import UnbiasedAnswers
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.sampling import SamplingErrors
from dpquery.releases.folder.answers import read_answerable
from dpquery.releases.folder.noisy_files import measurement_labels, read_measurements
from dpquery.releases.manifest import (
    MEASUREMENTS_FILE,
    PLAN_FILE,
    RELEASE_AGAIN,
    NoiseFacts,
    SquaresFacts,
)
from dpquery.releases.report.published import PublishedTables
from dpquery.spec.problems import quoted, suggestion
from dpquery.strategy.algebra.query_powers import QueryPairs, QueryRows
from dpquery.strategy.strategy import RecordChange, Strategy

ItemRow = tuple[str, int]
"""An item's name and a row of its file, from 0 on."""


class Release(PublishedTables):
    """A release by its folder: its tables, and how the errors of its answers go together.

    >>> from dpquery import Release
    >>> release = Release("release")  # doctest: +SKIP
    >>> release.covariance("ages", [("ages", 0), ("total", 0)])  # doctest: +SKIP

    Attributes:
        directory: the folder.
        facts: what release.json said when the folder was opened.
        plan: the plan that the release carries out.
        spec: what was planned.
    """

    def __init__(self, directory: FilePath) -> None:
        """Open a folder.

        Raises:
            SpecError: the folder is not a release, or is damaged.
        """
        self.directory = as_path(directory)
        self.facts, content = read_answerable(self.directory)
        self.plan, self.spec = plan_and_spec(content, self.directory / PLAN_FILE)

    @cached_property
    def compiled(self) -> CompiledSpec:
        """The operators of the spec's workload."""
        return compile_spec(self.spec)

    @cached_property
    def measured(self) -> tuple[Strategy, RecordChange]:
        """What was measured, and what its noise takes a record to do.

        Of the plan's strategies that is the one that the manifest names.

        Raises:
            SpecError: the plan has it not.
        """
        facts = self.facts
        noise = [law.noise for law in LAWS.values() if law.title == facts.guarantee.mechanism]
        for selection in self.plan.selections:
            named = digest_of(selection.strategy) == facts.strategy.sha256
            if named and [selection.noise] == noise:
                strategy = selection.decoded(self.compiled.workload)
                return strategy, sound_change(selection.record_change, self.spec)
        raise SpecError(
            f"the release's {PLAN_FILE} does not hold the strategy that its manifest names; "
            f"{RELEASE_AGAIN}"
        )

    @cached_property
    def noise(self) -> CalibratedNoise:
        """The noise on the rows of the integer strategy.

        What the manifest says of the noise must be what the plan and the guarantee ask for: errors
        that are stated too small would be believed.

        Raises:
            SpecError: it is not.
        """
        strategy, change = self.measured
        promised, stated = self.facts.guarantee, self.facts.noise
        terms = guarantee(
            strategy.noise,
            epsilon=parse_epsilon(str(promised.epsilon)),
            delta=parse_delta(str(promised.delta)),
            accounting=self.spec.budget.counted,
        )
        due = calibrated_noise(strategy, privacy=self.spec.privacy, guarantee=terms, change=change)
        told: list[NoiseFacts | SquaresFacts] = [stated]
        told += [*filter(None, (stated.squares, stated.replicates))]
        of_kinds = [due] if due.beside is None else [due, due.beside]
        same = len(told) == len(of_kinds) and all(
            (one.shift, one.sensitivity) == (other.shift, str(other.sensitivity))
            and math.isclose(one.scale, other.scale, rel_tol=1e-9)
            for one, other in zip(told, of_kinds, strict=True)
        )
        if promised.kind != terms.kind or not same:
            raise SpecError(
                f"{self.directory / MANIFEST_FILE} is damaged: its noise is not what the plan asks "
                f"for at epsilon {promised.epsilon:g}; {RELEASE_AGAIN}"
            )
        beside = due.beside and replace(due.beside, scale=told[-1].scale)
        return replace(due, scale=stated.scale, beside=beside)

    @cached_property
    def noisy(self) -> list[Measured]:
        """What its values say, and those of squared weights behind where they are measured."""
        path, strategy = self.directory / MEASUREMENTS_FILE, self.measured[0]
        labels = measurement_labels(self.spec, strategy)
        values = read_measurements(path, labels, digest=self.facts.measurements)
        return measured_values(strategy, self.noise, values)

    def sampling(self, level: float) -> SamplingErrors | None:
        """Return what is measured beside the weights says of the sample, where anything is."""
        return sampling_errors(self.spec, self.compiled.classes, self.noisy, level)

    @cached_property
    def answering(self) -> Strategy:
        """What was measured as it answers: given those public facts that nothing contradicts."""
        if self.compiled.facts is None:
            return self.measured[0]
        return given_facts(self.noisy[0], self.compiled)[0].strategy

    @cached_property
    def answered(self) -> Measured:
        """The noisy values with what they are answered by."""
        return replace(self.noisy[0], strategy=self.answering)

    @cached_property
    def unbiased(self) -> UnbiasedAnswers | None:
        """What the tables that an adaptive run measured say by themselves; None of other releases.

        Raises:
            SpecError: the plan, the manifest and the noisy values do not go together.
        """
        run, promised = self.facts.adaptive, self.facts.guarantee
        if run is None:
            return None
        epsilon, delta = parse_epsilon(str(promised.epsilon)), parse_delta(str(promised.delta))
        request = ReleaseRequest(epsilon, delta, noise=None, columns=(), release=1)
        path = self.directory / MEASUREMENTS_FILE
        # They differ in the noise on tables of one attribute, in what is measured of errors, or in
        # neither.
        editions = (
            adaptive_mechanism(self.plan, self.spec, request, edition=k)
            for k in range(TableRounds.edition, 1, -1)
        )
        said = {1 + (each.largest is not None) for each in run.distances}
        try:
            mechanism = next(
                each
                for each in editions
                if math.isclose(each.query.rounds.first_std, run.one_way_std, rel_tol=1e-6)
                and said <= {each.query.rounds.item_errors}
            )
            labels = mechanism.labels_of(run.rounds)
            values = read_measurements(path, labels, digest=self.facts.measurements)
            return mechanism.unbiased(values)
        except (KeyError, StopIteration, ValueError):
            raise SpecError(
                f"{self.directory / MANIFEST_FILE} is damaged: its noisy values are of no run that "
                f"it describes; {RELEASE_AGAIN}"
            ) from None

    def covariance(
        self, rows: "str | Sequence[ItemRow]", others: "str | Sequence[ItemRow] | None" = None
    ) -> Floats:
        """Return the covariance of the noise of answers: (rows, others), in counts squared.

        It is exact, as standard errors are: those squared stand on the diagonal.

        Args:
            rows: an item, all of whose rows are meant, or (item, row of its file) pairs.
            others: the same; default: `rows`.

        Raises:
            SpecError: there is no such item or row, or the release is by RAP, whose errors are not
                known.
        """
        if not self.facts.error_bars:
            name = self.facts.strategy.name
            raise SpecError(f"the answers of {name} have no error bars, and so no covariances")
        left = self._by_block(rows)
        right = left if others is None else self._by_block(others)
        out = np.empty((_count(left), _count(right)))
        for position, (at, places) in left.items():
            for other, (across, other_places) in right.items():
                out[np.ix_(at, across)] = self._covariances(
                    position, places[:, None], other, other_places
                )
        return out

    def _covariances(self, position: int, places: Ints, other: int, other_places: Ints) -> Floats:
        blocks = self.compiled.workload.blocks
        left = QueryRows(blocks[position], places, position)
        right = QueryRows(blocks[other], other_places, other)
        return self.answering.covariances(QueryPairs(left, right)) * self.noise.noise_std**2

    def _by_block(self, rows: "str | Sequence[ItemRow]") -> dict[int, tuple[Ints, Ints]]:
        """Return for each block which of the rows are its, and where they stand in it."""
        if isinstance(rows, str):
            rows = [(rows, row) for row in range(self._facts(rows).queries)]
        named = {item.name: k for k, item in enumerate(self.spec.items)}
        sorted_out: dict[int, list[tuple[int, int]]] = {}
        for k, (name, row) in enumerate(rows):
            if name not in named:
                raise SpecError(
                    f"{self.directory} has no item {quoted(name)}{suggestion(name, named)}"
                )
            item, left = self.spec.items[named[name]], row
            if not 0 <= row < item.size:
                raise SpecError(f"{quoted(name)} has rows 0 to {item.size - 1}, and no row {row}")
            for table, position in zip(item.tables, self.compiled.items[named[name]], strict=True):
                if left < table.size:
                    sorted_out.setdefault(position, []).append((k, left))
                    break
                left -= table.size
        pairs = {position: np.array(entries).T for position, entries in sorted_out.items()}
        return {position: (pair[0], pair[1]) for position, pair in pairs.items()}


def _count(by_block: dict[int, tuple[Ints, Ints]]) -> int:
    return sum(len(at) for at, _ in by_block.values())
