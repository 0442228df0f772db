"""The search for supports finds the best where all can be tried, and never loses ground."""

import math
from itertools import combinations

import numpy as np
import pytest
from dense import random_workload

from dpquery.exceptions import OutOfTimeError
from dpquery.operators.blocks import Workload, marginal
from dpquery.operators.gram import gram
from dpquery.progress import reporting
from dpquery.strategy.algebra.subsets import Lattice
from dpquery.strategy.optimize.opt_marginals import MarginalSearch, MarginalsProblem, opt_marginals

seeds = pytest.mark.parametrize("seed", range(8))


def rng(seed=0):
    return np.random.default_rng(seed)


def marginals(shape, subsets, weights=None):
    blocks = tuple(marginal(shape, subset) for subset in subsets)
    return Workload(shape, blocks, tuple(weights or (1.0,) * len(blocks)))


def random_marginals(seed, d=3):
    shape = tuple(rng(seed).integers(2, 30, d).tolist())
    every = [b for k in range(min(d, 4)) for b in combinations(range(d), k)]
    chosen = [b for b in every if rng(seed).random() < 0.7] or every
    return marginals(shape, chosen, rng(seed).choice([0.1, 1.0, 10.0], len(chosen)).tolist())


def problem_of(workload, max_cells=1e8):
    return MarginalsProblem(gram(workload), noise="laplace", max_cells=max_cells)


def search_of(problem):
    return MarginalSearch(problem.lattice, problem.cells, problem.target, problem.allowed)


def slow_loss(workload, weights):
    """(sum theta)^2 sum_a target_a / kappa_a, by loops over subsets."""
    problem = problem_of(workload)
    error = 0.0
    for a, target in zip(problem.lattice.subsets, problem.target, strict=True):
        names = {problem.attributes[i] for i in a}
        kappa = sum(
            theta**2 / math.prod(workload.shape_of_domain[i] for i in b)
            for b, theta in weights.items()
            if names <= set(b)
        )
        error += target / kappa if target > 0 else 0.0
    return sum(weights.values()) ** 2 * error


@seeds
def test_a_step_never_raises_the_loss(seed):
    problem = problem_of(random_workload(rng(seed)))
    theta = rng(seed).random(len(problem.lattice)) + 0.01
    for _ in range(5):
        moved = problem.step(theta)
        assert problem.loss(moved)[0] <= problem.loss(theta)[0] * (1 + 1e-12)
        theta = moved


@pytest.mark.nightly
@seeds
def test_the_support_found_is_the_best_of_all_supports(seed):
    workload = random_marginals(seed)
    problem = problem_of(workload)
    search, every = search_of(problem), np.arange(len(problem.lattice))
    best = math.inf
    for mask in range(1, 1 << len(every)):
        subsets = every[mask >> every & 1 > 0]
        if problem.lattice.inclusions(search.needed, subsets).any(axis=1).all():
            best = min(best, search.finish(subsets, np.ones(len(subsets))).loss)
    selection = opt_marginals(gram(workload), noise="laplace", rng=rng(seed))
    assert selection.loss <= best * (1 + 1e-6)


@seeds
def test_the_loss_is_that_of_the_weights_and_no_hop_raises_it(seed):
    workload = random_marginals(seed, d=5)
    losses = []
    for hops in (0, 20, 60):
        selection = opt_marginals(gram(workload), noise="laplace", rng=rng(), restarts=2, hops=hops)
        assert sum(selection.weights.values()) == pytest.approx(1)
        assert slow_loss(workload, selection.weights) == pytest.approx(selection.loss, rel=1e-7)
        losses.append(selection.loss)
    assert losses == sorted(losses, reverse=True)


@seeds
def test_a_hop_is_better_or_nothing(seed):
    workload = random_marginals(seed, d=5)
    most = max(math.prod(block.table_shape) for block in workload.blocks)
    problem = problem_of(workload, max_cells=most)
    search, generator = search_of(problem), rng(seed)
    first = search.finish(search.measurable, np.ones(len(search.measurable)))
    for _ in range(30):
        better = search.hop(first, generator)
        assert better is None or better.loss < first.loss
        assert better is None or problem.allowed[better.subsets].all()


def test_weights_of_very_different_sizes_lose_no_table():
    shape = (2, 3, 900)
    workload = marginals(shape, [(0,), (1,), (2,)], [1e-9, 1.0, 1e9])
    selection = opt_marginals(gram(workload), noise="laplace", rng=rng())
    assert slow_loss(workload, selection.weights) == pytest.approx(selection.loss, rel=1e-6)


@pytest.mark.parametrize("d", [1, 4])
def test_inclusion_and_toggling_agree_with_sets(d):
    full = Lattice(d)
    family = [a for a in full.subsets if len(a) != 1]
    for lattice in (full, Lattice(d, family)):
        low, high = rng(1).integers(len(lattice), size=6), rng(2).integers(len(lattice), size=9)
        included = [
            [set(lattice.subset(a)) <= set(lattice.subset(b)) for b in high.tolist()]
            for a in low.tolist()
        ]
        assert lattice.inclusions(low, high).tolist() == np.array(included, dtype=float).tolist()
        numbers, attributes = rng(3).integers(len(lattice), size=20), rng(4).integers(d, size=20)
        expected = [
            tuple(sorted(set(lattice.subset(k)) ^ {i}))
            for k, i in zip(numbers.tolist(), attributes.tolist(), strict=True)
        ]
        toggled = [lattice.subset(k) for k in lattice.toggled(numbers, attributes).tolist()]
        assert toggled == [a for a in expected if a in lattice.subsets]


def test_beyond_the_full_lattice_unions_of_tables_are_measured_where_they_pay():
    shape = (2,) * 18
    pairs = list(combinations(range(0, 18, 3), 2))
    workload = marginals(shape, [*pairs, *((i,) for i in range(18))])
    selection = opt_marginals(gram(workload), noise="laplace", rng=rng(), hops=40)
    assert any(len(b) > 2 for b in selection.weights)
    alone = opt_marginals(gram(workload), noise="laplace", rng=rng(), restarts=1, hops=0)
    assert selection.loss < alone.loss


def test_most_of_many_subsets_are_kept_as_a_full_lattice():
    shape = (2,) * 17
    wide = marginals(shape, [range(17)])
    assert problem_of(wide).lattice.full
    assert not problem_of(marginals(shape, [range(8), range(8, 17)])).lattice.full


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_a_time_limit_stops_the_search(noise):
    lines = []

    def stop(line):
        lines.append(line)
        raise OutOfTimeError("enough")

    with reporting(stop):
        stopped = opt_marginals(gram(random_marginals(0, d=5)), noise=noise, rng=rng())
    assert len(lines) < 10
    whole = opt_marginals(gram(random_marginals(0, d=5)), noise=noise, rng=rng())
    assert whole.loss * 0.999 < stopped.loss < math.inf
