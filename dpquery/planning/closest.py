"""The answers that err least, biased or not: columns of linear strategies, rehearsed and compared.

Estimates are unbiased and their error is known. `consistent` and `shrunk` give that up: on tables
of small counts they err far less, by how much depends on the data, and so they are simulated on
public populations. A strategy that spends more on small tables (`sparse_variant`) is compared too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import process_time

from dpquery.exceptions import OutOfTimeError, UnsupportedWorkloadError
from dpquery.operators.compile import CompiledSpec
from dpquery.plan_file.closest import BiasedColumn, Contender, PlannedClosest
from dpquery.plan_file.plan import Plan
from dpquery.planning.figures import SelectionAtBudget, planned
from dpquery.planning.plan_report import PlanReport
from dpquery.planning.rehearsal.linear_runs import LinearStage, rehearse_columns
from dpquery.planning.rehearsal.proxy import Proxy, populations_in_words
from dpquery.planning.rehearsal.simulated_runs import Errors, mean_and_spread
from dpquery.reconstruction.columns.extra_columns import check_columns
from dpquery.reconstruction.columns.postprocess import ExtraColumn
from dpquery.reconstruction.expected_largest import expected_largest
from dpquery.spec.model import Spec
from dpquery.strategy.errors.expected_error import expected_error, squared_sensitivity
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.objectives import Objective
from dpquery.strategy.search.problem import Proposal
from dpquery.strategy.search.select import Candidate, Flaw, Selection
from dpquery.strategy.shapes.residual import ResidualStrategy, sparse_variant
from dpquery.strategy.shapes.strategies import Strategy

COLUMN_RUNS = 3
BIASED_COLUMNS: tuple[BiasedColumn, ...] = ("consistent", "shrunk")


@dataclass(frozen=True, eq=False)
class ColumnRehearsal:
    """Compares the columns of a plan's strategies on public populations.

    Attributes:
        spec: what is asked.
        compiled: the same.
        proxies: the populations, one for each run in turn; without any nothing is compared.
        objective: what is minimised.
        flaw_of: see `select`.
        time_limit: CPU seconds for all runs.
    """

    spec: Spec
    compiled: CompiledSpec
    proxies: tuple[Proxy, ...]
    objective: Objective
    flaw_of: Flaw
    time_limit: float

    def compared(
        self,
        plan: Plan,
        selections: Mapping[Noise, Selection],
        reported: Callable[[Plan], PlanReport],
    ) -> PlanReport:
        """Return the report of the plan with the strategy and the column that err least.

        Args:
            plan: by the error of its estimates.
            selections: what it was made of.
            reported: reports a plan.
        """
        report = reported(plan)
        if not self.proxies:
            return report
        try:
            return reported(self._plan(report, selections))
        except (OutOfTimeError, UnsupportedWorkloadError) as reason:
            return report.remarked(f"no columns were compared: {reason}")

    def _plan(self, report: PlanReport, selections: Mapping[Noise, Selection]) -> Plan:
        priced = report.priced[0]
        selection = selections[priced.selection.noise]
        sparse = self._sparse(selection)
        compared, end = [selection.best, *sparse], process_time() + self.time_limit
        contenders = [
            contender
            for candidate in compared
            if candidate.proposal is not None
            for contender in self._contenders(candidate.proposal.strategy, priced, end)
        ]
        chosen = min(range(len(contenders)), key=lambda k: contenders[k].error(self.objective))
        closest = PlannedClosest(
            report.epsilon,
            report.delta,
            populations_in_words(self.proxies),
            COLUMN_RUNS,
            tuple(contenders),
            chosen,
        )
        best = next(c for c in compared if c.name == closest.best.strategy)
        wider = replace(selection, best=best, candidates=(*selection.candidates, *sparse))
        taken = planned(wider, self.spec, self.compiled)
        return replace(
            report.plan,
            closest=closest,
            selections=tuple(
                taken if one.noise == taken.noise else one for one in report.plan.selections
            ),
        )

    def _sparse(self, selection: Selection) -> tuple[Candidate, ...]:
        """Return the sparse variant of the best OPT_R of a selection, if there is a sound one."""
        residual = [
            (candidate.score, candidate.proposal.strategy)
            for candidate in selection.candidates
            if candidate.proposal is not None
            and isinstance(candidate.proposal.strategy, ResidualStrategy)
        ]
        if not residual or selection.noise != "gaussian":
            return ()
        strategy = sparse_variant(min(residual, key=lambda pair: pair[0])[1])
        if self.flaw_of(strategy):
            return ()
        error = expected_error(strategy, self.compiled.workload, selection.change)
        score = error.weighted_rmse if self.objective == "rmse" else error.max_std_error
        return (Candidate(strategy.name, Proposal(strategy), error, score=score, sound=True),)

    def _contenders(
        self, strategy: Strategy, priced: SelectionAtBudget, end: float
    ) -> list[Contender]:
        """Return the estimates and the columns that can be made from a strategy."""
        workload, change = self.compiled.workload, priced.selection.change
        noise_std = priced.std * squared_sensitivity(strategy, change) ** 0.5
        rmse = priced.std * expected_error(strategy, workload, change).weighted_rmse
        largest = expected_largest(strategy, workload, noise_std=noise_std)
        estimates = Contender(strategy.name, "estimate", rmse, 0.0, largest, 0.0)
        columns = self._columns(strategy)
        stage = LinearStage(self.spec, self.compiled, strategy, priced.selection.noise, noise_std)
        runs = []
        for seed in range(COLUMN_RUNS):
            if process_time() > end:
                raise OutOfTimeError("the CPU seconds of --time-limit are over; give more")
            proxy = self.proxies[seed % len(self.proxies)]
            made = [ExtraColumn(name) for name in columns]
            runs.append(rehearse_columns(stage, made, proxy, seed=seed))
        simulated = [
            _contender(strategy.name, name, [run[k] for run in runs])
            for k, name in enumerate(columns)
        ]
        return [estimates, *simulated]

    def _columns(self, strategy: Strategy) -> list[BiasedColumn]:
        """Return the columns that can be made from a strategy."""
        possible: list[BiasedColumn] = []
        for name in BIASED_COLUMNS:
            try:
                check_columns([ExtraColumn(name)], strategy, self.compiled.workload.blocks)
            except UnsupportedWorkloadError:
                continue
            possible.append(name)
        return possible


def _contender(strategy: str, column: BiasedColumn, runs: Sequence[Errors]) -> Contender:
    rmses, largest = [run.rmse for run in runs], [run.largest for run in runs]
    return Contender(strategy, column, *mean_and_spread(rmses), *mean_and_spread(largest))
