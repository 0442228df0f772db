"""Linear strategies rehearsed on public populations: how far the columns beside the estimates err.

The error of estimates is known exactly. That of the columns that give up being unbiased depends on
the data, as RAP's does, so that they are simulated on the same populations.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.arrays import Floats
from dpquery.operators.compile import CompiledSpec
from dpquery.planning.rehearsal.proxy import Proxy
from dpquery.planning.rehearsal.simulated_runs import Errors
from dpquery.progress import report_progress
from dpquery.public_chance import PublicGenerator, public_generator
from dpquery.reconstruction.columns.extra_columns import ExtraColumns, extra_columns
from dpquery.reconstruction.columns.postprocess import ExtraColumn
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.reconstruction.linear_answers import table_answers
from dpquery.spec.model import Spec, Table
from dpquery.strategy.errors.expected_error import weighted_queries
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.strategies import Strategy


@dataclass(frozen=True, eq=False)
class LinearStage:
    """What the rehearsal of a linear strategy needs, all of it public.

    Attributes:
        spec: what is asked.
        compiled: the same.
        strategy: what is measured.
        noise: the law of its noise.
        noise_std: standard deviation of the noise on each measured row.
    """

    spec: Spec
    compiled: CompiledSpec
    strategy: Strategy
    noise: Noise
    noise_std: float

    @property
    def tables(self) -> Iterator[tuple[Table, int]]:
        """Every table with the place of its block."""
        for item, places in zip(self.spec.items, self.compiled.items, strict=True):
            yield from zip(item.tables, places, strict=True)


def rehearse_columns(
    stage: LinearStage, columns: Sequence[ExtraColumn], proxy: Proxy, *, seed: int
) -> list[Errors]:
    """Release once on a public population and return the errors of each column.

    Where a table has no value in a column, its reader takes the estimate, and so does this.

    Args:
        stage: the strategy.
        columns: to judge.
        proxy: stands in for the data.
        seed: of the noise; public, it protects nothing.
    """
    rng, strategy = public_generator(seed), stage.strategy
    noisy = [
        float(rows.weight) * proxy.answers(rows.block) + _noise(rng, stage, rows.block.queries)
        for rows in strategy.measurements
    ]
    estimates = reconstruct(strategy, noisy)
    blocks, weights = stage.compiled.workload.blocks, stage.compiled.workload.weights
    report_progress("rehearsing columns beside the estimates")
    extra: ExtraColumns = extra_columns(
        tuple(columns), strategy, noisy, estimates, blocks, noise_std=stage.noise_std
    )
    squares, largest = np.zeros(len(columns)), np.zeros(len(columns))
    for table, place in stage.tables:
        block = blocks[place]
        answers = table_answers(
            table,
            block,
            estimates,
            strategy=strategy,
            position=place,
            noise_std=stage.noise_std,
            level=0.95,
        )
        truth = proxy.answers(block).ravel()
        for k, values in enumerate(extra.added_to(answers, block).extra):
            error = (answers.estimate if values is None else values) - truth
            squares[k] += weights[place] * float(np.square(error).sum())
            largest[k] = max(largest[k], float(np.abs(error).max()))
    queries = weighted_queries(stage.compiled.workload)
    return [
        Errors(math.sqrt(square / queries), float(most))
        for square, most in zip(squares, largest, strict=True)
    ]


def _noise(rng: PublicGenerator, stage: LinearStage, queries: int) -> Floats:
    if stage.noise == "laplace":
        return rng.laplace(scale=stage.noise_std / math.sqrt(2), size=queries)
    return rng.normal(scale=stage.noise_std, size=queries)
