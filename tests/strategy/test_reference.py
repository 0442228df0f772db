"""Published figures: what [HDMM18] and ResidualPlanner+ report, met or beaten by plan's choice.

RMSE per query at epsilon = 1 (and delta = 1e-6), as published. One attribute meets every figure as
printed; elsewhere one per cent is allowed above it: optimisers start at random.
"""

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity, Stacked, total
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, Columns, Prefix, WidthRanges
from dpquery.spec.parsing.read import load_spec
from dpquery.strategy.bounds import svd_bound
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.minimax import largest_standard_error, score
from dpquery.strategy.optimize.opt_0 import opt_product
from dpquery.strategy.optimize.opt_marginals import opt_marginals
from dpquery.strategy.optimize.opt_union import opt_union
from dpquery.strategy.search.candidates import (
    Problem,
    factors_candidate,
    goal_bound,
    residual_candidate,
    residual_minimax,
)
from dpquery.strategy.search.select import select

PUBLISHED = json.loads((Path(__file__).parents[1] / "reference" / "published.json").read_text())
STD = {"laplace": math.sqrt(2), "gaussian": 4.224679}  # at epsilon 1, delta 1e-6, analytic
TABLES = {"laplace": "hdmm_table4_laplace_1d", "gaussian": "hdmm_table5_gaussian_1d"}
ALLOWED = 1.01
ROUNDED = 1.00005  # a figure that is optimal, printed with five digits

pytestmark = pytest.mark.reference


def single(factor):
    return Workload((factor.shape[1],), (product((factor.shape[1],), {0: factor}),), (1.0,))


def one_attribute(kind, n):
    match kind:
        case "all-range":
            return single(AllRanges(n))
        case "prefix":
            return single(Prefix(n))
        case "width32":
            return single(WidthRanges(n, 32))
        case _:
            order = np.random.default_rng(0).permutation(n)
            return single(Columns(AllRanges(n), order))


def union_of(shape, subsets):
    blocks = tuple(marginal(shape, subset) for subset in subsets)
    return Workload(shape, blocks, (1.0,) * len(blocks))


def subsets_up_to(d, size):
    return [subset for k in range(size + 1) for subset in combinations(range(d), k)]


def cps(prefix):
    shape = tuple(PUBLISHED["domains"]["CPS"])
    stacked = {i: Stacked((Identity(n), total(n))) for i, n in enumerate(shape)}
    if prefix:
        stacked |= {0: Prefix(shape[0]), 1: Prefix(shape[1])}
    return Workload(shape, (product(shape, stacked),), (1.0,))


def adult():
    shape = tuple(PUBLISHED["domains"]["Adult"])
    return union_of(shape, subsets_up_to(len(shape), 3))


def loans_small():
    shape = tuple(PUBLISHED["domains"]["Loans"])
    every = subsets_up_to(len(shape), len(shape))
    return union_of(shape, [b for b in every if math.prod(shape[i] for i in b) <= 5000])


MARGINALS = {
    "CPS all marginals": lambda: cps(prefix=False),
    "Adult <=3D marginals": adult,
    "Loans small marginals": loans_small,
}


def rmse(workload, noise):
    return STD[noise] * select(workload, noises=[noise])[noise].best.error.rmse


@pytest.mark.nightly
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize(
    "kind",
    [
        "all-range",
        "prefix",
        pytest.param("width32", marks=pytest.mark.slow),
        pytest.param("permuted", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("n", [64, *(pytest.param(n, marks=pytest.mark.slow) for n in (256, 1024))])
def test_one_attribute_meets_the_published_tables(n, kind, noise):
    ours = rmse(one_attribute(kind, n), noise)
    assert round(ours, 2) <= PUBLISHED[TABLES[noise]][kind][str(n)]


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("prefix", [False, True])
def test_cps_meets_the_published_figures(prefix, noise):
    table = "hdmm_table6_laplace" if noise == "laplace" else "hdmm_table7_gaussian"
    name = "CPS all prefix-marginals" if prefix else "CPS all marginals"
    assert rmse(cps(prefix), noise) <= PUBLISHED[table][name] * ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Adult <=3D marginals", "Loans small marginals"])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_marginals_meet_the_published_figures(name, noise):
    table = "hdmm_table6_laplace" if noise == "laplace" else "hdmm_table7_gaussian"
    assert rmse(MARGINALS[name](), noise) <= PUBLISHED[table][name] * ALLOWED


@pytest.mark.parametrize("name", MARGINALS)
def test_svd_bounds_equal_the_published_ones(name):
    workload = MARGINALS[name]()
    bound = math.sqrt(svd_bound(gram(workload)).loss / workload.shape[0]) * STD["gaussian"]
    assert bound == pytest.approx(PUBLISHED["proven_lower_bound_gaussian"][name], rel=1e-5)


@pytest.mark.nightly
def test_example_13_needs_a_union_of_products():
    published = PUBLISHED["hdmm_example_13"]
    shape = (100, 100)
    blocks = (product(shape, {0: Prefix(100)}), product(shape, {1: Prefix(100)}))
    workload, rng = Workload(shape, blocks, (1.0, 1.0)), np.random.default_rng(0)
    alone = opt_product(gram(workload), noise="laplace", rng=rng)
    assert alone.loss <= published["OPT_x"] * ALLOWED
    union = opt_union(workload, noise="laplace", rng=rng)
    assert union.loss <= published["OPT_+"] * ALLOWED


def test_example_15_orders_product_union_and_marginals():
    published = PUBLISHED["hdmm_example_15"]
    workload = union_of((2, 5, 50, 100), list(combinations(range(4), 2)))
    V, rng = gram(workload), np.random.default_rng(0)
    assert V.trace == published["identity"]
    losses = {
        "OPT_x": opt_product(V, noise="laplace", rng=rng).loss,
        "OPT_+": opt_union(workload, noise="laplace", rng=rng).loss,
        "OPT_M": opt_marginals(V, noise="laplace", rng=rng).loss,
    }
    for name, loss in losses.items():
        assert loss <= published[name] * ALLOWED
    assert round(losses["OPT_M"]) <= published["OPT_M"]


def rmse_of(build, name, noise):
    """The RMSE of one candidate on a workload that comes with the project."""
    spec = load_spec(Path(__file__).parents[2] / "workloads" / f"{name}.yaml")
    workload = compile_spec(spec).workload
    proposal = build(Problem(workload, gram(workload), noise, seed=0))
    return STD[noise] * expected_error(proposal.strategy, workload).rmse


BEST_LAPLACE = {  # file: RMSE to stay at or below, all below [HDMM18] Table 6
    "sf1": 7.30,
    "sf1plus": 9.83,
    "cps_prefix": 40.56,
    "adult_prefix": 380.0,
    "loans_small_prefix": 230.0,
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "best"), BEST_LAPLACE.items())
def test_overlapping_factors_are_ahead_of_every_laplace_figure(name, best):
    assert rmse_of(factors_candidate, name, "laplace") <= best


BEST_GAUSSIAN = {  # file: RMSE to stay at or below, the best known of any public tool or prototype
    "sf1": 9.45,
    "sf1plus": 10.50,
    "cps": 7.852,
    "cps_prefix": 29.47,
    "adult_marginals": 45.06,
    "adult_prefix": 70.9,
    "loans_small": 34.67,
    "loans_small_prefix": 53.7,
}


@pytest.mark.nightly(daily="cps-|loans_small-")
@pytest.mark.parametrize(("name", "best"), BEST_GAUSSIAN.items())
def test_cores_and_totals_are_ahead_of_every_gaussian_figure(name, best):
    assert rmse_of(residual_candidate, name, "gaussian") <= best


@pytest.mark.nightly
@pytest.mark.parametrize("name", MARGINALS)
def test_the_largest_error_of_marginals_meets_the_published_one_and_is_optimal(name):
    workload = MARGINALS[name]()
    goal = largest_standard_error(workload)
    problem = Problem(workload, gram(workload), "gaussian", seed=0)
    strategy = residual_minimax(goal, problem).strategy
    reached = score(goal, expected_error(strategy, workload), workload)
    published = PUBLISHED["max_variance_sd_gaussian_residualplanner"][name]
    assert STD["gaussian"] * reached <= published * ROUNDED
    assert reached <= math.sqrt(goal_bound(problem, goal).loss) * 1.001
