"""The graphical model that fits all measurements best: Private-PGM, by the optional package mbi.

The model is the distribution of largest entropy among those whose marginals have the least
    sum_k ||A_k p_k - y_k||^2 / (2 std_k^2)
over the measurements y_k = A_k p_k + noise on the marginals p_k ([McKenna19]). The measurements
enter as they were made, through their integer queries: their noise is independent, so this is minus
the log-likelihood under Gaussian noise (under Laplace noise, least squares with the right weights).
Reconstructed tables share their noise, and would be weighed as if they did not.

Mirror descent runs until the sum stands still, or ITERATIONS long. mbi's first step is safe for any
measurements and far too short for these: it grows by a hundredth a time, and half the iterations
pass before it fits. A longer one is halved by the line search until it does, within twenty. To stop
where the sum is what it would be at the true counts (the discrepancy principle) takes half the
time, and on Adult erred more by a quarter under Laplace noise: large cells come last.

Everything is post-processing. What a model of junction trees cannot hold is refused beforehand.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Protocol

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_QUERY_MATRIX_ENTRIES, MAX_TREE_CELLS
from dpquery.operators.blocks import Block
from dpquery.operators.factors import Identity
from dpquery.reconstruction.components import varying
from dpquery.reconstruction.least_squares import Measured
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.strategy import Strategy, WeightedColumns, column_matrices

LIBRARIES = ("jax", "mbi")
FIT_ITERATIONS = 1000
FIRST_STEP_FACTOR = 1e4  # than mbi's, the first step
# Relative fall of the loss over 50 iterations, twice in a row, that ends the fit.
FIT_TOLERANCE = 1e-4


class _Marginal(Protocol):
    def datavector(self, *, flatten: bool) -> Floats: ...


class _Model(Protocol):
    def project(self, attrs: tuple[str, ...]) -> _Marginal: ...


def check_graphical(strategy: Strategy) -> None:
    """Refuse, before anything is charged, a model that could not be fitted.

    Raises:
        SpecError: mbi is not installed.
        UnsupportedWorkloadError: the junction tree would be too large, or the strategy is the
            workload itself, which says nothing of the number of records.
    """
    if any(find_spec(name) is None for name in LIBRARIES):
        raise SpecError(
            "--also graphical needs the package mbi, which is not installed; install it with "
            "`pip install 'dpquery[mbi]'`, or leave the column out"
        )
    if not strategy.spans_its_sets:
        raise UnsupportedWorkloadError(
            "--also graphical: the plan measures the workload's own queries, or classes of cells, "
            "and no table that a model could be fitted to; leave the column out"
        )
    measured = column_matrices(strategy.measurements)
    cells = junction_tree_cells(
        strategy.shape, [varying(measurement.block) for measurement in measured]
    )
    if cells > MAX_TREE_CELLS:
        raise UnsupportedWorkloadError(
            f"--also graphical: the attributes that are measured together tie into tables of "
            f"{float(cells):.1e} cells, and the limit is {float(MAX_TREE_CELLS):.1e}; leave the "
            "column out, or ask for fewer tables that share attributes"
        )
    factors = {id(factor): factor for m in measured for factor in m.block.factors}
    entries = sum(math.prod(f.shape) for f in factors.values() if not isinstance(f, Identity))
    if entries > MAX_QUERY_MATRIX_ENTRIES:
        raise UnsupportedWorkloadError(
            f"--also graphical: the queries measured take {float(entries):.1e} numbers to write "
            f"out, and the limit is {float(MAX_QUERY_MATRIX_ENTRIES):.1e}; leave the column out"
        )


def junction_tree_cells(shape: Sequence[int], subsets: Iterable[Subset]) -> int:
    """Return how many cells the tables of a junction tree over attribute subsets have together.

    Attributes are eliminated one by one, each time the one that ties its neighbours into the
    smallest table, as mbi does.

    >>> junction_tree_cells((10, 10, 10), [(0, 1), (1, 2)])
    200
    >>> junction_tree_cells((10, 10, 10), [(0, 1), (1, 2), (0, 2)])
    1000
    """
    near: dict[int, set[int]] = {}
    for subset in subsets:
        for i in subset:
            near.setdefault(i, set()).update(subset)

    def size(i: int) -> int:
        return math.prod(shape[j] for j in near[i])

    cliques: list[set[int]] = []
    while near:
        i = min(sorted(near), key=size)
        clique = near.pop(i)
        if not any(clique <= larger for larger in cliques):
            cliques.append(clique)
        for j in clique - {i}:
            near[j] = (near[j] | clique) - {i}
    return sum(math.prod(shape[i] for i in clique) for clique in cliques)


@dataclass(frozen=True, eq=False)
class _Query:
    """The queries of one measurement: a matrix for each axis of a table, None for the identity."""

    shape: tuple[int, ...]
    matrices: tuple[Floats | None, ...]

    def __call__(self, marginal: _Marginal) -> Floats:
        import jax.numpy as jnp

        table = marginal.datavector(flatten=False).reshape(self.shape)
        for axis, matrix in enumerate(self.matrices):
            if matrix is not None:
                table = jnp.moveaxis(jnp.tensordot(matrix, table, axes=(1, axis)), 0, axis)
        return table.ravel()

    def op_norm_sq(self) -> float:
        """Return the largest squared singular value."""
        norms = (np.linalg.norm(matrix, 2) for matrix in self.matrices if matrix is not None)
        return math.prod(float(norm) ** 2 for norm in norms)


class GraphicalModel:
    """A fitted graphical model, which answers block by block."""

    def __init__(self, model: _Model) -> None:
        """Take a model of mbi over attributes named by their places."""
        self._model = model

    def answer(self, block: Block) -> Floats:
        """Return the model's answers to a block, of shape block.row_shape."""
        import jax

        with jax.enable_x64(True):
            table = self._model.project(_names(varying(block))).datavector(flatten=False)
            return block.apply(np.asarray(table, dtype=np.float64).reshape(block.table_shape))


def fit_graphical(measured: Measured) -> GraphicalModel:
    """Fit the model to what was measured by a strategy that has passed check_graphical.

    The model has one record at least.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.
    """
    import jax

    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mbi: advice to whoever writes scripts with it
        from mbi import Domain, LinearMeasurement
        from mbi.estimation import MirrorDescent
        from mbi.marginal_loss import from_linear_measurements

        strategy = measured.strategy
        columns = column_matrices(strategy.measurements)
        used = sorted({i for measurement in columns for i in varying(measurement.block)})
        measurements = [
            LinearMeasurement(values, _names(varying(measurement.block)), std, query)
            for measurement, noisy in zip(columns, measured.noisy, strict=True)
            for values, std, query in [_scaled(measurement, noisy, measured.noise_std)]
        ]
        domain = Domain(_names(used), tuple(strategy.shape[i] for i in used))
        loss = from_linear_measurements(measurements, domain)
        bold = replace(loss, lipschitz=loss.lipschitz / FIRST_STEP_FACTOR)
        fitted = MirrorDescent().estimate(
            domain,
            bold,
            known_total=max(measured.total, 1.0),
            iters=FIT_ITERATIONS,
            tol=FIT_TOLERANCE,
        )
    return GraphicalModel(fitted)


def _scaled(
    measurement: WeightedColumns, noisy: Floats, noise_std: float
) -> tuple[Floats, float, _Query]:
    """Return values, their standard deviation and their queries, with entries of at most one."""
    block, scale = measurement.block, float(measurement.weight)
    matrices: list[Floats | None] = []
    for factor in block.factors:
        if isinstance(factor, Identity):
            matrices.append(None)
            continue
        entry = float(factor.max_abs)
        matrices.append(np.asarray(factor.dense(), dtype=np.float64) / entry)
        scale *= entry
    return noisy / scale, noise_std / scale, _Query(block.table_shape, tuple(matrices))


def _names(attributes: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"{i}" for i in attributes)
