"""The candidates that plan compares: each turns a workload into one integer strategy.

A candidate is a function of the workload alone. It raises UnsupportedWorkloadError, with the reason
as its message, where it cannot be measured or has nothing to offer.
"""

import math
from collections.abc import Sequence

import numpy as np

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_TABLE_CELLS
from dpquery.operators.blocks import Workload
from dpquery.operators.factors import Dense, Factor, Ones
from dpquery.operators.gram import array_of
from dpquery.public_chance import public_generator
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.errors.expected_error import expected_error
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.optimize.opt_0_moves import MOST_MOVED, MOVES_GAP, moves_optimum
from dpquery.strategy.optimize.opt_block_cores import block_cores
from dpquery.strategy.optimize.opt_factors import check_optimisable, opt_factors
from dpquery.strategy.optimize.opt_product import ProductSelection
from dpquery.strategy.optimize.opt_residual import ResidualSelection, best_weights, opt_residual
from dpquery.strategy.optimize.opt_union import group_by_kind, opt_union
from dpquery.strategy.search.problem import Problem, Proposal, check_cells
from dpquery.strategy.shapes.cores import CenteredCore, Core, DenseCore
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.union import UnionStrategy
from dpquery.strategy.shapes.weighted_block import BITS, integer_factor, significant

FREE_TOTAL = 16.0  # times the weight by which all else says something of the total
BLOCK_CORES_GAIN = 1e-2  # of the loss: each takes room in a plan
MAX_FACTOR_BITS = (
    224  # of the widest product of factors of OPT_F: its powers stay in the range of floats
)


def product_candidate(problem: Problem) -> Proposal:
    """OPT_x (OPT_0 where there is one attribute), the better of two numbers of rows."""
    shape = problem.workload.shape_of_domain
    check_cells(shape)
    moved = _moved_product(problem)
    if moved is not None:
        return moved
    best = problem.product
    name = "OPT_x" if sum(n > 1 for n in shape) > 1 else "OPT_0"
    return Proposal(_integer_product(name, best.factors, problem.noise), best.converged, best.bound)


def union_candidate(problem: Problem) -> Proposal:
    """OPT_+: one product for each group of blocks, grouped by what the error gains."""
    if len(group_by_kind(problem.workload)) == 1:
        raise UnsupportedWorkloadError("all blocks ask the same")
    selection = opt_union(
        problem.workload,
        noise=problem.noise,
        rng=public_generator(problem.seed),
        max_cells=MAX_TABLE_CELLS,
    )
    if len(selection.groups) == 1:
        raise UnsupportedWorkloadError("one product serves all blocks best")
    parts = tuple(
        _integer_product("OPT_x", factors, problem.noise) for factors in selection.factors
    )
    for part in parts:
        check_cells([part.shape[i] for i in part.attributes])
    strategy = UnionStrategy.of_shares("OPT_+", parts, selection.shares, selection.groups)
    return Proposal(strategy, selection.converged)


def marginals_candidate(problem: Problem) -> Proposal:
    """OPT_M: weighted marginals."""
    shape = problem.workload.shape_of_domain
    selection = problem.marginals
    weights = _integer_weights(selection.weights, problem.workload)
    if problem.change == "moves within":
        weights = with_free_total(weights, shape)
    return Proposal(MarginalsStrategy("OPT_M", problem.noise, shape, weights), selection.converged)


def residual_candidate(problem: Problem) -> Proposal:
    """OPT_R: cores and totals of attribute subsets, for Gaussian noise."""
    if problem.noise != "gaussian":
        raise UnsupportedWorkloadError("for Gaussian noise only")
    change = problem.change
    selection = opt_residual(problem.gram, total_free=change == "moves within")
    shape = problem.workload.shape_of_domain
    for b in selection.subsets:
        check_cells([shape[i] for i in b])
    choices = [selection.cores]
    if change != "enters":
        choices.append(_moved_cores(problem, selection.cores))
    try:
        strategies = [_residual(problem, real) for real in choices]
        if change == "enters":
            strategies += _with_block_cores(problem, selection, strategies[0])
    except ValueError as reason:
        raise UnsupportedWorkloadError(f"rounded to integers, {reason}") from None
    if len(strategies) > 1:
        strategies.sort(key=lambda s: expected_error(s, problem.workload, change).weighted_rmse)
    return Proposal(strategies[0], selection.converged)


def _residual(problem: Problem, real: Sequence[Floats | None]) -> ResidualStrategy:
    """Return rounded cores with their best weights."""
    shape, noise = problem.workload.shape_of_domain, problem.noise
    cores = tuple(integer_core(n, F) for n, F in zip(shape, real, strict=True))
    weights = best_weights(cores, problem.gram, noise=noise, change=problem.change)
    return ResidualStrategy("OPT_R", noise, cores, weights)


def _with_block_cores(
    problem: Problem, selection: ResidualSelection, common: ResidualStrategy
) -> list[ResidualStrategy]:
    """Return the strategy with cores for single blocks, where they gain by BLOCK_CORES_GAIN."""
    chosen = block_cores(problem.gram, selection.cores)
    if chosen is None or chosen.loss * (1 + BLOCK_CORES_GAIN) > selection.loss:
        return []
    cores = list(common.cores)
    for i, matrix in chosen.cores.items():
        cores[i] = DenseCore(matrix)
    of_blocks = {
        b: {i: DenseCore(matrix) for i, matrix in by_attribute.items()}
        for b, by_attribute in chosen.of_blocks.items()
    }
    weights = best_weights(tuple(cores), problem.gram, noise=problem.noise, block_cores=of_blocks)
    return [
        ResidualStrategy("OPT_R", problem.noise, tuple(cores), weights, chosen.spreads, of_blocks)
    ]


def _moved_cores(problem: Problem, cores: Sequence[Floats | None]) -> tuple[Floats | None, ...]:
    """Return the cores with those of `moves_optimum` where an attribute is small enough.

    An attribute's Gram is the sum of its matrices but for the total.
    """
    chosen = list(cores)
    for i, (core, matrices) in enumerate(zip(cores, problem.gram.matrices, strict=True)):
        if core is not None and core.shape[1] <= MOST_MOVED:
            V = sum((array_of(V) for V in matrices[1:]), np.zeros(1))
            chosen[i] = moves_optimum(V, "moves within").rows
    return tuple(chosen)


def _moved_product(problem: Problem) -> Proposal | None:
    """Return the optimum of one attribute whose records may leave, for Gaussian noise."""
    shape = problem.workload.shape_of_domain
    wide = [i for i, n in enumerate(shape) if n > 1]
    if problem.change != "moves" or problem.noise != "gaussian" or len(wide) != 1:
        return None
    if shape[wide[0]] > MOST_MOVED:
        return None
    optimum = moves_optimum(problem.gram.dense(), problem.change)
    factors: list[Factor] = [Ones(1, 1) for _ in shape]
    factors[wide[0]] = Dense(optimum.rows)
    strategy = _integer_product("OPT_0", factors, problem.noise)
    return Proposal(strategy, optimum.loss <= optimum.bound * (1 + MOVES_GAP), optimum.bound)


def factors_candidate(problem: Problem) -> Proposal:
    """OPT_F: overlapping marginals of factors."""
    shape, noise = problem.workload.shape_of_domain, problem.noise
    check_optimisable(problem.gram)
    selection = opt_factors(
        problem.gram,
        noise=noise,
        rng=public_generator(problem.seed),
        max_cells=MAX_TABLE_CELLS,
        marginals=problem.marginals,
        product=_small_product(problem),
    )
    weights = _integer_weights(selection.weights, problem.workload)
    counts = {b: sum(i in selection.factors for i in b) for b in weights}
    widest = max(counts.values())
    bits = min(BITS, MAX_FACTOR_BITS // max(1, widest))  # of the columns of a factor: 2^bits long
    rounded = {
        i: integer_factor(real, noise=noise, bits=bits) for i, real in selection.factors.items()
    }
    scaled = {b: weight << bits * (widest - counts[b]) for b, weight in weights.items()}
    if problem.change == "moves within":
        scaled = with_free_total(scaled, shape)
    return Proposal(MarginalsStrategy("OPT_F", noise, shape, scaled, rounded), selection.converged)


def with_free_total(weights: dict[Subset, int], shape: Sequence[int]) -> dict[Subset, int]:
    """Return weights with one of the total at which it adds next to nothing to any error.

    For records that never leave the domain: they do not move the total, so that it costs nothing.
    """
    known = sum((weight**2 / math.prod(shape[i] for i in b) for b, weight in weights.items()), 0.0)
    return weights | {(): significant(max(1.0, FREE_TOTAL * math.sqrt(known)))}


def _integer_weights(real: dict[Subset, float], workload: Workload) -> dict[Subset, int]:
    """Round weights to BITS bits; one that vanishes stays at 1 where a table needs it."""
    peak = max(real.values())
    scaled = {b: round(theta / peak * (1 << BITS)) for b, theta in real.items()}
    weights = {b: weight for b, weight in scaled.items() if weight > 0}
    supported = {a for b in weights for a in subsets_of(b)}
    for block in workload.blocks:
        attributes = tuple(i for i in block.attributes if workload.shape_of_domain[i] > 1)
        if attributes not in supported:
            over = [b for b in real if set(attributes) <= set(b)]
            top = max(over, key=lambda b: real[b], default=attributes)
            check_cells([workload.shape_of_domain[i] for i in top])
            weights[top] = 1
            supported.update(subsets_of(top))
    return weights


def _small_product(problem: Problem) -> ProductSelection | None:
    """Return OPT_x's selection where the whole domain can be measured."""
    if math.prod(problem.workload.shape_of_domain) > MAX_TABLE_CELLS:
        return None
    try:
        return problem.product
    except UnsupportedWorkloadError:
        return None


def integer_core(n: int, F: Floats | None) -> Core | None:
    """Round the real core of an attribute of n classes; None is the centered one."""
    if n == 1:
        return None
    if F is None:
        return CenteredCore(n)
    return DenseCore(np.rint(F / np.abs(F).max() * (1 << BITS)).astype(np.int64))


def _integer_product(name: str, factors: Sequence[Factor], noise: Noise) -> ProductStrategy:
    rounded = tuple(integer_factor(factor, noise=noise) for factor in factors)
    return ProductStrategy(name, noise, rounded)
