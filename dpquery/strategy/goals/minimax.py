"""The least score of a goal over noise budgets: a convex problem, solved to a certificate.

With fixed cores ([MATH] 6) the variance of query q is f_q = sum_b s_b^2 a_qb, and the budget is
sum_b p_b / s_b^2. In x_b = log (s_b^2 / p_b) the logarithms of both are convex, so that
    log sum_b exp(-x_b) + (1/t) log sum_q f_q^t
is smooth and convex; as t grows it goes to the square of the score. Its gradient vanishes where
lambda_q = f_q^(t-1) are the weights for which s is the best budget, and
    (sum_b sqrt(p_b v_b))^2 / sum_q lambda_q,   v_b = sum_q lambda_q a_qb,
is a lower bound on the square of the score of any budget: score over bound is the certificate.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize

from dpquery.arrays import Floats, Numbers
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_MINIMAX_COEFFICIENTS
from dpquery.operators.blocks import Workload
from dpquery.progress import report_progress
from dpquery.strategy.algebra.row_sums import expand
from dpquery.strategy.algebra.subsets import Subset, subsets_of
from dpquery.strategy.goals.goals import Goal, queries
from dpquery.strategy.goals.query_weights import RowClasses, Share, even_rows, row_classes, share_of
from dpquery.strategy.shapes.cores import Core
from dpquery.strategy.shapes.split_strategy import split_terms

MINIMAX_ITERATIONS = 400  # at each sharpness
SHARPNESSES = tuple(4.0**k for k in range(1, 9))  # the t of the smoothed maximum
SCORE_GAP = 1e-4  # relative gap of score and bound at which the solver is content
REST_BUDGET = 0.01  # of the budget, for the tables that a goal says nothing of
SPARE = 1e-6  # of the budget, for blocks of cores that no answer depends on


@dataclass(frozen=True, eq=False)
class Budgets:
    """The best noise of every block of cores.

    Attributes:
        noise: the standard deviation s_b of each block, for a budget of one.
        score: of the goal, at sensitivity one.
        bound: a lower bound on the score of any budget on the same cores.
        shares: the weights of queries that prove it.
    """

    noise: dict[Subset, float]
    score: float
    bound: float
    shares: list[Share]


class BudgetProblem:
    """The variances of a goal's queries, for an equal part of the budget on each block of cores.

    Attributes:
        subsets: the blocks of cores that the queries depend on.
        matrix: (queries or classes of queries, subsets); an RMSE is one row.
    """

    def __init__(self, workload: Workload, goal: Goal, cores: tuple[Core | None, ...]) -> None:
        self.workload, self.goal, self.cores = workload, goal, cores
        rests = [None if core is None else core.variances for core in cores]
        self.classes: dict[int, RowClasses] = {}
        below: dict[int, list[Subset]] = {}
        for k in sorted({k for limit in goal for k in limit.blocks}):
            by_subset = list(split_terms(cores, rests, workload.blocks[k], order=2))
            below[k] = [b for b, terms in by_subset for _ in terms]
            terms = [term for _, subset_terms in by_subset for term in subset_terms]
            self.classes[k] = row_classes(workload.blocks[k], terms)
        self._check_size()
        self.subsets, self.matrix = self._matrix(below)

    def _matrix(self, below: dict[int, list[Subset]]) -> tuple[list[Subset], "sp.csr_array"]:
        """Return the subsets that some variance depends on, and the variances over them."""
        every = dict.fromkeys(b for block_subsets in below.values() for b in block_subsets)
        place = {b: j for j, b in enumerate(every)}
        self.pieces: list[tuple[int, int, slice]] = []  # limit, block, where its rows stand
        rows, columns, values, size = [], [], [], 0
        for number, limit in enumerate(self.goal):
            for k in limit.blocks:
                tables = self._tables(number, k)
                span = slice(size, size + tables.shape[1])
                self.pieces.append((number, k, span))
                rows.append(np.tile(np.arange(span.start, span.stop), len(tables)))
                columns.append(np.repeat([place[b] for b in below[k]], tables.shape[1]))
                values.append(tables.ravel())
                size = span.stop if limit.figure == "sd" else size
            size += limit.figure == "rmse"
        index = (np.concatenate(rows), np.concatenate(columns))
        whole = sp.csr_array((np.concatenate(values), index), shape=(size, len(place)))
        whole = whole @ sp.diags_array([self.cost(b) for b in place])
        used = np.asarray(whole.max(axis=0).todense()).ravel() > 0
        subsets = [b for b, is_used in zip(place, used, strict=True) if is_used]
        return subsets, sp.csr_array(whole[:, np.nonzero(used)[0]])

    def cost(self, b: Subset) -> float:
        """Return p_b, the squared sensitivity of a block of cores."""
        norms = [core.factor.column_norms(2).max() for core in (self.cores[i] for i in b) if core]
        return math.prod(map(float, norms), start=1.0)

    def _check_size(self) -> None:
        size = sum(
            math.prod(classes.shape) * len(classes.terms) for classes in self.classes.values()
        )
        if size > MAX_MINIMAX_COEFFICIENTS:
            raise UnsupportedWorkloadError(f"{float(size):.1e} variances to weigh")

    def _tables(self, number: int, k: int) -> Numbers:
        """Return the contribution of each term of a block to every class, or to the RMSE."""
        limit, classes = self.goal[number], self.classes[k]
        if limit.figure == "sd":
            tables = [
                np.broadcast_to(expand([term]), classes.shape).ravel() for term in classes.terms
            ]
            return np.array(tables) / limit.target**2
        counts, whole = classes.counts, queries(limit, self.workload)
        sums = [
            [coef * math.prod(float(v @ n) for v, n in zip(vs, counts, strict=True)) / whole]
            for coef, vs in classes.terms
        ]
        return np.array(sums) / limit.target**2

    def solve(self) -> Budgets:
        """Return the best budgets; ever sharper maxima are minimised, each from the last."""
        x = -np.log(self.matrix.T @ np.ones(self.matrix.shape[0])) / 2
        value, noise = math.inf, x
        bound, weights = 0.0, np.ones(self.matrix.shape[0])
        for t in SHARPNESSES:
            x = self._sharpened(x, t)
            f = self.matrix @ np.exp(x)
            reached = float(f.max()) * float(np.exp(-x).sum())
            if reached < value:
                value, noise = reached, x
            lambdas = (f / f.max()) ** (t - 1)
            proven = float(np.sqrt(self.matrix.T @ lambdas).sum()) ** 2 / float(lambdas.sum())
            if proven > bound:
                bound, weights = proven, lambdas / lambdas.sum()
            if value <= bound * (1 + SCORE_GAP):
                break
        shares = self._shares(weights)
        return Budgets(self._noise(noise), math.sqrt(value), math.sqrt(bound), shares)

    def _sharpened(self, x: Floats, t: float) -> Floats:
        """Minimise the smoothed objective at one sharpness."""

        def fun(point: Floats) -> tuple[float, Floats]:
            report_progress(f"budgets: sharpness {t:g}")
            return self.smoothed(point, t)

        result = minimize(
            fun,
            x,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": MINIMAX_ITERATIONS, "ftol": 1e-10, "gtol": 1e-8},
        )
        return np.asarray(result.x)

    def smoothed(self, x: Floats, t: float) -> tuple[float, Floats]:
        """Return the smoothed log of the squared score, and its gradient. x: (subsets,)."""
        e = np.exp(x)
        f = self.matrix @ e
        top, cost = float(f.max()), float((1 / e).sum())
        w = (f / top) ** t
        total = float(w.sum())
        slope = e * (self.matrix.T @ (w / f)) / total - 1 / e / cost
        return math.log(cost) + math.log(top) + math.log(total) / t, slope

    def _noise(self, x: Floats) -> dict[Subset, float]:
        """Return s_b of every subset below a table: sqrt(p_b exp(x_b)), for a budget of one.

        What the goal says nothing of takes equal parts of REST of the budget, or of SPARE where
        only blocks are left that no answer depends on.
        """
        ratios = np.exp(x).tolist()  # s_b^2 / p_b
        budget = {b: 1 / ratio for b, ratio in zip(self.subsets, ratios, strict=True)}
        limited = {k for limit in self.goal for k in limit.blocks}
        shape, whole = self.workload.shape_of_domain, sum(budget.values())
        other: dict[Subset, None] = {}
        for block in self.workload.blocks:
            wide = tuple(i for i in block.attributes if shape[i] > 1)
            other.update(dict.fromkeys(b for b in subsets_of(wide) if b not in budget))
        part = REST_BUDGET if len(limited) < len(self.workload.blocks) else SPARE
        budget |= dict.fromkeys(other, part * whole / max(len(other), 1))
        whole = sum(budget.values())
        return {b: math.sqrt(self.cost(b) * whole / share) for b, share in budget.items()}

    def _shares(self, weights: Floats) -> list[Share]:
        shares = []
        for number, k, span in self.pieces:
            block, classes, mass = self.workload.blocks[k], self.classes[k], weights[span]
            limit = self.goal[number]
            if limit.figure == "rmse":
                part = block.queries / queries(limit, self.workload)
                shares.append(Share(number, k, float(mass[0]) * part, even_rows(block)))
            else:
                shares.append(share_of(number, k, block, classes, mass.reshape(classes.shape)))
        return shares
