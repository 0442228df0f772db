"""The candidates that plan compares: each turns a workload into one integer strategy.

A candidate is a function of the workload alone. It raises UnsupportedWorkloadError, with the reason
as its message, where it cannot be measured or has nothing to offer.

The least score of a goal is the largest least weighted error over all weights of queries (minimax).
For cores and Gaussian noise the weights for fixed cores come from a convex problem (`minimax`) and
cores are selected anew for them, in turn. Any other candidate is selected for weights that go up
where its last strategy was worst. The best strategy of all rounds is kept, by its exact score.
"""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from scipy.linalg import block_diag

from dpquery.arrays import Floats
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import (
    MAX_CELL_CLASSES,
    MAX_CLASS_ENTRIES,
    MAX_CLASSED_CELLS,
    MAX_QUERIED_CLASSES,
    MAX_RESIDUAL_ATTRIBUTES,
    MAX_TABLE_CELLS,
)
from dpquery.operators.blocks import Workload
from dpquery.operators.cells import (
    CellClasses,
    OrbitAxis,
    OrbitRows,
    QueryBasis,
    cell_classes,
    gram_of_classes,
    queries_of_classes,
)
from dpquery.operators.factors import Dense, Factor, Ones
from dpquery.operators.gram import Gram, Mixture, array_of, classes, gram
from dpquery.progress import time_left
from dpquery.public_chance import public_generator
from dpquery.strategy.algebra.orbits import LARGEST_COMPARED, orbits_of
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.bounds import Bound, lower_bound, svd_bound
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.minimax import (
    BudgetProblem,
    Budgets,
    Goal,
    Share,
    bounding_workload,
    even_shares,
    raised,
    score,
    tuning_workload,
)
from dpquery.strategy.optimize.fixed_point import (
    MOST_MOVED,
    MOVES_GAP,
    TOTAL_SHARE,
    Optimum,
    basis_optimum,
    cells_optimum,
    independent,
    moves_optimum,
)
from dpquery.strategy.optimize.opt_0 import OPT_0_ITERATIONS, ProductSelection, opt_0, opt_product
from dpquery.strategy.optimize.opt_factors import check_optimisable, opt_factors
from dpquery.strategy.optimize.opt_marginals import MarginalsSelection, opt_marginals
from dpquery.strategy.optimize.opt_orbits import OrbitsOptimum, orbits_optimum
from dpquery.strategy.optimize.opt_residual import (
    ResidualSelection,
    best_weights,
    block_cores,
    opt_residual,
)
from dpquery.strategy.optimize.opt_union import group_by_kind, opt_union
from dpquery.strategy.shapes.cells import CellClassesStrategy, OrbitsStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, Core, DenseCore
from dpquery.strategy.strategy import (
    BITS,
    Noise,
    RecordChange,
    Strategy,
    integer_factor,
    significant,
)


@dataclass(frozen=True, eq=False)
class Proposal:
    """A strategy, whether its optimiser converged, and a lower bound on any loss (or 0)."""

    strategy: Strategy
    converged: bool = True
    bound: float = 0.0


class NoGainError(UnsupportedWorkloadError):
    """A candidate has found that no strategy is better than the best one so far by much.

    Attributes:
        bound: the lower bound on any loss that says so.
    """

    def __init__(self, reason: str, *, bound: float) -> None:
        super().__init__(reason)
        self.bound = bound


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of every candidate; selections that several start from are computed once."""

    workload: Workload  # the queries
    gram: Gram  # its Gram
    noise: Noise  # the kind of noise that will be added
    seed: int  # of the starting points; every optimiser starts its own generator from it
    least_score: float = math.inf  # the least score of a goal that a candidate has reached so far
    least_loss: float = math.inf  # the least weighted loss that a candidate has reached so far
    # what was selected for other weights of the same questions, to start from
    before: Strategy | None = None
    change: RecordChange = "enters"  # what one record does between neighbours
    # the places of the blocks of every item; none where each block is one
    items: tuple[Sequence[int], ...] = ()

    def knowing(self, least_loss: float) -> "Problem":
        """Return the same problem at another least loss, with the selections that are known."""
        problem = copy(self)
        object.__setattr__(problem, "least_loss", least_loss)
        return problem

    @cached_property
    def product(self) -> ProductSelection:
        """The best product strategy: the better of two numbers of p-Identity rows."""
        shape = self.workload.shape_of_domain
        rng, selections = public_generator(self.seed), []
        for divisor in (16, 8) if self.noise == "laplace" and max(shape) <= 128 else (16,):
            selections.append(opt_product(self.gram, noise=self.noise, rng=rng, divisor=divisor))
        return min(selections, key=lambda selection: selection.loss)

    @cached_property
    def marginals(self) -> MarginalsSelection:
        """The best weighted marginals."""
        return opt_marginals(
            self.gram,
            noise=self.noise,
            rng=public_generator(self.seed),
            start=self.before.weights if isinstance(self.before, MarginalsStrategy) else None,
            max_cells=MAX_TABLE_CELLS,
        )


def check_cells(shape: Sequence[int]) -> None:
    """Refuse a table that has more cells than can be tabulated and measured."""
    cells = math.prod(shape)
    if cells > MAX_TABLE_CELLS:
        raise UnsupportedWorkloadError(f"a table of {float(cells):.1e} cells to measure")


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
        least_loss=problem.least_loss,
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
        chosen = list(selection.cores)
        for i, (core, matrices) in enumerate(
            zip(selection.cores, problem.gram.matrices, strict=True)
        ):
            if core is not None and core.shape[1] <= MOST_MOVED:
                V = sum((array_of(V) for V in matrices[1:]), np.zeros(1))
                chosen[i] = moves_optimum(V, "moves within").rows
        choices.append(tuple(chosen))
    shape, noise, strategies = problem.workload.shape_of_domain, problem.noise, []
    try:
        for real in choices:
            cores = tuple(integer_core(n, F) for n, F in zip(shape, real, strict=True))
            weights = best_weights(cores, problem.gram, noise=noise, change=change)
            strategies.append(ResidualStrategy("OPT_R", noise, cores, weights))
        if change == "enters":
            strategies += _with_block_cores(problem, selection, strategies[0])
    except ValueError as reason:
        raise UnsupportedWorkloadError(f"rounded to integers, {reason}") from None
    if len(strategies) > 1:
        strategies.sort(key=lambda s: expected_error(s, problem.workload, change).weighted_rmse)
    return Proposal(strategies[0], selection.converged)


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
    """OPT_F: overlapping marginals of factors, for Laplace noise."""
    if problem.noise != "laplace":
        raise UnsupportedWorkloadError("for Laplace noise only")
    shape, noise = problem.workload.shape_of_domain, problem.noise
    check_optimisable(problem.gram)
    selection = opt_factors(
        problem.gram,
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


CLASSES_GAIN = 1e-2  # of the loss: tables answer more later questions than classes of their cells
CONVERGED = 1e-3  # relative gap to the bound of the classes' own optimum
CLASS_BITS = 20  # of the integers of a strategy of classes: its least rows are short
MAX_BASIS_WORK = 1 << 30  # multiplications of a round, which takes half a second
MAX_P_CLASSES = 1024  # of a p-Identity
LEAST_STEPS = 50  # of such a descent: fewer do not pay
P_WORK = 1e10  # of a descent: multiplications of all its steps, which take some five seconds
_GAIN_TEXT = f"{CLASSES_GAIN / 2:.1%} of its error than the best one here"


def cell_classes_candidate(problem: Problem) -> Proposal:
    """OPT_C: the best strategy over classes of cells that no query tells apart.

    Raises:
        NoGainError: none is better than the best one so far by CLASSES_GAIN.
    """
    few = problem.workload.shape[0] * MAX_CELL_CLASSES <= MAX_CLASS_ENTRIES
    most = MAX_CELL_CLASSES if problem.noise == "gaussian" else MAX_P_CLASSES
    if few and problem.noise == "gaussian" and problem.change == "enters":
        most = MAX_QUERIED_CLASSES
    classes = cell_classes(problem.workload, most=most)
    if len(classes.attributes) < 2:
        raise UnsupportedWorkloadError("one attribute: OPT_0 is this")
    if classes.count < 2:
        raise UnsupportedWorkloadError("all questions ask for the total")
    if classes.count > MAX_CELL_CLASSES:
        return _of_basis(problem, classes)
    V = gram_of_classes(problem.workload, classes)
    inner, converged, bound = _inner(problem, V, classes)
    return Proposal(CellClassesStrategy("OPT_C", problem.noise, classes, inner), converged, bound)


def _of_basis(problem: Problem, classes: CellClasses) -> Proposal:
    """Return the best strategy of the answers to a basis of the queries, beside the total."""
    workload = problem.workload
    queries = queries_of_classes(workload, classes)
    chosen = independent(queries[:-1].astype(np.float64))
    if len(chosen) ** 2 * classes.count > MAX_BASIS_WORK:
        raise UnsupportedWorkloadError(
            f"{len(chosen):,} independent queries over {classes.count:,} classes of cells"
        )
    basis = QueryBasis(tuple(chosen.tolist()), queries[chosen])
    V = np.zeros((len(chosen), len(chosen)))
    for weight, block in zip(workload.weights, workload.blocks, strict=True):
        shares = basis.combined(classes.by_class(block)).factors[0].dense()
        V += weight * shares.T @ shares
    enough = problem.least_loss / (1 + CLASSES_GAIN)
    optimum = basis_optimum(basis.rows.astype(np.float64), V, enough=enough)
    if not isinstance(optimum, Optimum):
        raise NoGainError(f"no strategy is better by {_GAIN_TEXT}", bound=optimum)
    converged, rows = optimum.loss <= optimum.bound * (1 + CONVERGED), optimum.rows
    if not queries[:-1].any(axis=0).all():  # of a class that no query counts the total tells alone
        basis = QueryBasis((*basis.numbers, len(queries) - 1), queries[[*chosen, -1]])
        rows = block_diag(
            rows * math.sqrt(1 - TOTAL_SHARE), np.full((1, 1), math.sqrt(TOTAL_SHARE))
        )
    strategy = CellClassesStrategy("OPT_C", problem.noise, classes, _product(rows), basis)
    return Proposal(strategy, converged, optimum.bound)


def _inner(
    problem: Problem, V: Floats, classes: CellClasses
) -> tuple[ProductStrategy | ResidualStrategy, bool, float]:
    """Return the strategy of the classes' counts, whether it converged, and a bound or 0."""
    change = problem.change
    if problem.noise == "laplace":
        enough = problem.least_loss / (1 + CLASSES_GAIN)
        factor, loss, converged = _p_identity(problem, V, classes, enough)
        if loss > enough:
            raise NoGainError(f"no better by {_GAIN_TEXT}", bound=0.0)
        return ProductStrategy("OPT_0", "laplace", (factor,)), converged, 0.0
    if change != "enters" and len(V) <= MOST_MOVED:
        return _moved(problem, V)
    enough = problem.least_loss / (1 + CLASSES_GAIN) if change == "enters" else math.inf
    optimum = cells_optimum(V, enough=enough)
    if not isinstance(optimum, Optimum):
        raise NoGainError(f"no strategy is better by {_GAIN_TEXT}", bound=optimum)
    converged = optimum.loss <= optimum.bound * (1 + CONVERGED)
    return _product(optimum.rows), converged, optimum.bound


def _product(rows: Floats) -> ProductStrategy:
    factor = integer_factor(Dense(rows), noise="gaussian", bits=CLASS_BITS)
    return ProductStrategy("OPT_0", "gaussian", (factor,))


def _p_identity(
    problem: Problem, V: Floats, classes: CellClasses, enough: float
) -> tuple[Factor, float, bool]:
    """Return the best of p-Identities from several starts, its loss and whether it converged.

    They start from rows by chance, and from the queries themselves with the total: unions of tables
    have their best strategies near those, far from any that chance leads to. Where the queries are
    more than the classes that start is the worst of all, and slow.
    """
    rng, n = public_generator(problem.seed), len(V)
    divisors = (16, 8) if n <= MOST_MOVED else (16,)
    search = partial(opt_0, V, noise="laplace", rng=rng, enough=enough)
    selections = [search(p=max(1, n // each)) for each in divisors]
    if problem.workload.shape[0] * n <= MAX_CLASS_ENTRIES:  # else they are not written out
        queries = np.unique(queries_of_classes(problem.workload, classes), axis=0)
        start = queries[np.count_nonzero(queries, axis=1) > 1].astype(np.float64)
        steps = int(P_WORK / (start.size * n)) if 0 < len(start) <= n else 0
        if steps >= LEAST_STEPS:
            steps = min(steps, OPT_0_ITERATIONS)
            selections.append(search(start=start, max_iterations=steps))
    best = min(selections, key=lambda selection: selection.loss)
    return integer_factor(best.factor, noise="laplace"), best.loss, best.converged


def _moved(problem: Problem, V: Floats) -> tuple[ProductStrategy | ResidualStrategy, bool, float]:
    """Return the optimum where records move; beside a total that is free where none leaves."""
    optimum = moves_optimum(V, problem.change)
    converged, product = optimum.loss <= optimum.bound * (1 + MOVES_GAP), _product(optimum.rows)
    if problem.change == "moves":
        return product, converged, optimum.bound
    (factor,) = product.factors
    cores: tuple[Core | None, ...] = (DenseCore(np.asarray(factor.dense(), dtype=np.int64)),)
    whole = Gram(
        (len(V),), np.ones(1), np.ones((1, 1), dtype=np.int32), ((Mixture(len(V), 0.0, 1.0), V),)
    )
    weights = best_weights(cores, whole, noise="gaussian", change=problem.change)
    return ResidualStrategy("OPT_R", "gaussian", cores, weights), converged, optimum.bound


FEW_CELLS = 512  # that OPT_C solves in a tenth of a second
MERGED = 2  # cells that are alike, on average: else OPT_C is as quick, or nothing can be done
SPLIT = 64  # times as many numbers as cells, where each attribute has its sums beside its codes
ORBIT_BITS = 24  # of the columns' length: no entry has more than the grid of exact answers


def orbits_candidate(problem: Problem) -> Proposal:
    """OPT_S: the best strategy for Gaussian noise where codes are interchangeable.

    Raises:
        NoGainError: none is better than the best one so far by CLASSES_GAIN.
    """
    if problem.noise != "gaussian":
        raise UnsupportedWorkloadError("for Gaussian noise only")
    if problem.change != "enters":
        raise UnsupportedWorkloadError("for records that enter or leave only")
    gram = problem.gram
    attributes = tuple(i for i in problem.workload.attributes if gram.shape_of_domain[i] > 1)
    if len(attributes) < 2:
        raise UnsupportedWorkloadError("one attribute: OPT_0 is this")
    cells = math.prod(gram.shape_of_domain[i] for i in attributes)
    if cells <= FEW_CELLS:
        raise UnsupportedWorkloadError(f"no more than {FEW_CELLS:,} cells: OPT_C is this")
    if cells > MAX_CLASSED_CELLS:
        raise UnsupportedWorkloadError(f"{float(cells):.1e} cells to measure at once")
    for i in attributes:
        matrices = gram.matrices[i]
        if len(matrices) * classes(matrices[0]) ** 2 > LARGEST_COMPARED:
            raise UnsupportedWorkloadError("an attribute with too many codes to compare them all")
    orbits = [orbits_of(matrices) for matrices in gram.matrices]
    if MERGED * math.prod(len(axis.sizes) for axis in orbits) > cells:
        raise UnsupportedWorkloadError("too few codes are interchangeable")
    if math.prod(len(orbits[i].sizes) + len(orbits[i].place) for i in attributes) > SPLIT * cells:
        raise UnsupportedWorkloadError("sums of interchangeable codes take more than the cells")
    optimum = orbits_optimum(gram, orbits, enough=problem.least_loss / (1 + CLASSES_GAIN))
    if not isinstance(optimum, OrbitsOptimum):
        reason = f"no strategy is better by {CLASSES_GAIN / 2:.1%} of its error than one here"
        raise NoGainError(reason, bound=optimum)
    axes = [OrbitAxis(orbits[i].place) for i in attributes]
    cores = {
        tuple(b[i] for i in attributes): np.rint(core * (1 << ORBIT_BITS)).astype(np.int64)
        for b, core in optimum.cores.items()
    }
    strategy = OrbitsStrategy(
        "OPT_S", "gaussian", problem.workload.shape_of_domain, attributes, OrbitRows(axes, cores)
    )
    return Proposal(strategy, optimum.loss <= optimum.bound * (1 + CONVERGED), optimum.bound)


REWEIGHTINGS = 8
PATIENCE = 2  # rounds without a better strategy
WORTH = 0.01  # relative gain below which a round was the last
SETTLED = 1e-3  # relative gap of score and weighted mean at which no weights help further
Build = Callable[[Problem], Proposal]


def goal_candidates(goal: Goal) -> tuple[tuple[str, Build], ...]:
    """Return the candidates that a goal adds, cheapest first; none where there is no goal."""
    if not goal:
        return ()
    return (
        ("OPT_R minimax", partial(residual_minimax, goal)),
        ("OPT_M minimax", partial(reweighted, goal, marginals_candidate)),
        ("OPT_x minimax", partial(reweighted, goal, product_candidate)),
        ("OPT_+ minimax", partial(reweighted, goal, union_candidate)),
    )


def starting_shares(problem: Problem, goal: Goal) -> list[Share]:
    """Return the best weights for centered cores under any noise; even ones where too many."""
    workload = problem.workload
    widest = max((len(block.attributes) for block in workload.blocks), default=0)
    if widest > MAX_RESIDUAL_ATTRIBUTES:
        return even_shares(goal, workload)
    shape = workload.shape_of_domain
    cores = tuple(CenteredCore(n) if n > 1 else None for n in shape)
    try:
        return BudgetProblem(workload, goal, cores).solve().shares
    except UnsupportedWorkloadError:
        return even_shares(goal, workload)


def goal_bound(problem: Problem, goal: Goal) -> Bound | None:
    """Return a proven lower bound on the square of the score of every strategy, if there is one."""
    workload = problem.workload
    V = gram(bounding_workload(workload, goal, even_shares(goal, workload)))
    known = [lower_bound(V, problem.change)]
    if problem.change == "enters" and svd_bound(V) is not None:
        shares = starting_shares(problem, goal)
        known.append(svd_bound(gram(bounding_workload(workload, goal, shares))))
    return max((bound for bound in known if bound), key=lambda bound: bound.loss, default=None)


def residual_minimax(goal: Goal, problem: Problem) -> Proposal:
    """OPT_R for a goal: the best budgets on the cores for the workload, or for even weights."""
    if problem.noise != "gaussian":
        raise UnsupportedWorkloadError("for Gaussian noise only")
    workload, shape = problem.workload, problem.workload.shape_of_domain
    best: tuple[Budgets, tuple[Core | None, ...]] | None = None
    for weighting in (workload, tuning_workload(workload, goal, even_shares(goal, workload))):
        selection = opt_residual(gram(weighting))
        for b in selection.subsets:
            check_cells([shape[i] for i in b])
        cores = tuple(integer_core(n, F) for n, F in zip(shape, selection.cores, strict=True))
        budgets = BudgetProblem(workload, goal, cores).solve()
        if best is None or budgets.score < best[0].score:
            best = budgets, cores
        if all(F is None for F in selection.cores):
            break
    if best is None:
        raise ValueError("no cores")
    budgets = best[0]
    scale = float(1 << BITS) * max(budgets.noise.values())
    weights = {b: significant(scale / noise) for b, noise in budgets.noise.items()}
    if problem.change == "moves within":
        weights = with_free_total(weights, workload.shape_of_domain)
    return Proposal(
        ResidualStrategy("OPT_R minimax", problem.noise, best[1], weights),
        converged=best[0].score <= best[0].bound * (1 + SETTLED),
    )


def reweighted(goal: Goal, build: Build, problem: Problem) -> Proposal:
    """Return the best strategy of another candidate for weights that follow its worst queries."""
    workload = problem.workload
    shares = even_shares(goal, workload)
    best, least, latest, strategy = None, math.inf, 0, None
    for turn in range(REWEIGHTINGS):
        tuned = tuning_workload(workload, goal, shares)
        candidate = build(replace(problem, workload=tuned, gram=gram(tuned), before=strategy))
        strategy = candidate.strategy
        error = expected_error(candidate.strategy, workload, problem.change)
        reached = score(goal, error, workload)
        words = f"{candidate.strategy.name} minimax round {turn + 1}: score {reached:.6g}"
        settled = least * (1 - WORTH) < reached < least
        if reached < least:
            best, least, latest = candidate, reached, turn
        if settled or not time_left(words):
            break
        shares, mean = raised(
            shares, goal, workload, candidate.strategy, power=1 / (1 + turn), change=problem.change
        )
        if reached**2 <= mean * (1 + SETTLED) or turn - latest >= PATIENCE:
            break
        if mean >= problem.least_score**2:  # none of this kind scores less than it does on mean
            break
    if best is None:
        raise ValueError("at least one round")
    strategy = replace(best.strategy, name=f"{best.strategy.name} minimax")
    return replace(best, strategy=strategy, bound=0.0)
