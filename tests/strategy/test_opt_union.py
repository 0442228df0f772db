"""OPT_+: prices of groups, greedy merging, budget shares, and never worse than fixed groupings."""

import math
from pathlib import Path

import numpy as np
import pytest
from dense import dense_workload, random_workload

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.measurement.accounting import analytic_gaussian_sigma
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity, Ones
from dpquery.operators.gram import gram, grams
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.spec.parsing.read import load_spec
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.optimize.opt_product import opt_product
from dpquery.strategy.optimize.opt_union import (
    MAX_KINDS,
    Pricing,
    exponent,
    greedy_groups,
    group_by_attributes,
    group_by_kind,
    opt_parts,
    opt_union,
    palettes,
)
from dpquery.strategy.search.candidates import Problem, union_candidate

noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])
STD = {"laplace": math.sqrt(2), "gaussian": analytic_gaussian_sigma(1.0, 1e-6)}


def rng(seed=0):
    return np.random.default_rng(seed)


def sensitivity_of(A, noise):
    return np.abs(A).sum(axis=0).max() if noise == "laplace" else np.linalg.norm(A, axis=0).max()


def dense_gram(workload):
    W, w = dense_workload(workload)
    return W.T @ (w[:, None] * W)


def dense_loss(A, workload):
    """tr((A'A)^+ V)."""
    return np.trace(np.linalg.pinv(A.T @ A, rcond=1e-12) @ dense_gram(workload))


def kron(matrices):
    out = np.eye(1)
    for matrix in matrices:
        out = np.kron(out, matrix)
    return out


def union_case():
    shape = (6, 5, 2)
    blocks = (
        product(shape, {0: Prefix(6), 2: Identity(2)}),
        product(shape, {1: AllRanges(5)}),
        marginal(shape, [0]),
    )
    return Workload(shape, blocks, (1.0, 2.0, 1.0))


SIGNED = Workload(
    (3, 4, 2),
    (
        Block((3, 4, 2), (0, 1), (Prefix(3), Identity(4)), (True, True), 1),
        product((3, 4, 2), {2: Ones(3, 2)}),
        marginal((3, 4, 2), [1, 2]),
    ),
    (1.0, 0.5, 2.0),
)
WORKLOADS = [union_case(), SIGNED, *(random_workload(rng(seed), attributes=3) for seed in range(6))]
workloads = pytest.mark.parametrize("workload", WORKLOADS)


@noises
@workloads
def test_opt_union_loss_adds_up_over_parts_and_shares_spend_the_budget(workload, noise):
    selection = opt_union(workload, noise=noise, rng=rng())
    assert sorted(j for group in selection.groups for j in group) == list(
        range(len(workload.blocks))
    )
    stack, total = [], 0.0
    for factors, share, group in zip(
        selection.factors, selection.shares, selection.groups, strict=True
    ):
        A = share * kron([factor.dense() for factor in factors])
        total += dense_loss(A, workload.select(group))
        stack.append(A)
    together = dense_loss(np.vstack(stack), workload)
    assert selection.loss == pytest.approx(total, rel=1e-4) or noise == "gaussian"
    assert together * (1 - 1e-4) <= selection.loss <= total * (1 + 1e-4)
    assert sensitivity_of(np.vstack(stack), noise) <= 1 + 1e-9
    power = 1 if noise == "laplace" else 2
    assert sum(share**power for share in selection.shares) == pytest.approx(1.0)


@noises
def test_no_other_split_of_the_budget_is_better(noise):
    groups = ((0, 2), (1,))
    selection = opt_parts(union_case(), noise=noise, rng=rng(), groups=groups, known={})
    alone = [kron([factor.dense() for factor in factors]) for factors in selection.factors]
    pairs = zip(alone, groups, strict=True)
    losses = [dense_loss(A, union_case().select(group)) for A, group in pairs]
    for share in np.linspace(0.01, 0.99, 99):
        other = 1 - share if noise == "laplace" else math.sqrt(1 - share**2)
        assert losses[0] / share**2 + losses[1] / other**2 >= selection.loss * (1 - 1e-9)


@noises
@workloads
def test_grouping_is_never_worse_than_fixed_groups_or_one_product(workload, noise):
    selection = opt_union(workload, noise=noise, rng=rng())
    slack = 1 + (1e-3 if noise == "gaussian" else 0.02)  # other starting points
    fixed = group_by_attributes(workload)
    apart = opt_parts(workload, noise=noise, rng=rng(), groups=fixed, known={})
    assert selection.loss <= apart.loss * slack
    assert selection.loss <= opt_product(gram(workload), noise=noise, rng=rng()).loss * slack


@noises
@workloads
def test_prices_are_the_losses_of_the_chosen_factors(workload, noise):
    prices = palettes(gram(workload), noise=noise, rng=rng())
    terms = [(each.index, each.weights) for each in grams(workload, group_by_kind(workload))]
    merged = greedy_groups(
        terms, workload.shape_of_domain, pricing=Pricing(prices), noise=noise, max_cells=1e9
    )
    kinds = group_by_kind(workload)
    for members, chosen in merged:
        group = [j for k in members for j in kinds[k]]
        index = np.concatenate([terms[k][0] for k in members])
        weights = np.concatenate([terms[k][1] for k in members])
        price = Pricing(prices).price(index[None], weights[None])[0][0]
        picked = [each.factors[c] for each, c in zip(prices, chosen, strict=True)]
        A = kron(
            [
                np.ones((1, n)) if f is None else f.factor.dense()
                for f, n in zip(picked, workload.shape_of_domain, strict=True)
            ]
        )
        assert price == pytest.approx(dense_loss(A, workload.select(group)), rel=1e-4)


@noises
@workloads
def test_merging_stops_where_no_pair_gains_and_nowhere_above_the_start(workload, noise):
    prices, power = palettes(gram(workload), noise=noise, rng=rng()), exponent(noise)
    terms = [(each.index, each.weights) for each in grams(workload, group_by_kind(workload))]
    merged = greedy_groups(
        terms, workload.shape_of_domain, pricing=Pricing(prices), noise=noise, max_cells=1e9
    )

    def root(members):
        index = np.concatenate([terms[k][0] for k in members])
        weights = np.concatenate([terms[k][1] for k in members])
        return Pricing(prices).price(index[None], weights[None])[0][0] ** power

    groups = [members for members, _ in merged]
    assert sorted(k for members in groups for k in members) == list(range(len(terms)))
    start = sum(root((k,)) for k in range(len(terms)))
    total = sum(root(members) for members in groups)
    assert total <= start * (1 + 1e-9)
    for j, left in enumerate(groups):
        for right in groups[:j]:
            assert root(left + right) >= (root(left) + root(right)) * (1 - 1e-9) - 2e-6 * total


def test_tables_that_do_not_fit_are_not_merged():
    shape = (4, 4)
    workload = Workload(shape, (marginal(shape, [0]), marginal(shape, [0, 1])), (1.0, 1e-3))
    together = opt_union(workload, noise="gaussian", rng=rng())
    assert together.groups == ((0, 1),)
    apart = opt_union(workload, noise="gaussian", rng=rng(), max_cells=15)
    assert apart.groups == ((0,), (1,))


def test_a_predicate_that_every_record_meets_leaves_no_term_without_a_factor():
    """Its cross terms are symmetric and of trace zero: no Gram of anything."""
    shape = (4, 4, 6, 5)
    factors = (Identity(4), Identity(4), Ones(1, 6), ListedRanges(5, [(0, 1)]))
    block = Block(shape, (0, 1, 2, 3), factors, (False, True, True, False), 1)
    found = palettes(gram(Workload(shape, (block,), (1.0,))), noise="laplace", rng=rng())
    assert all(palette.factors for palette in found)


def test_blocks_that_ask_the_same_are_of_one_kind():
    shape = (3, 3)
    blocks = (marginal(shape, [0]), marginal(shape, [1]), marginal(shape, [0]), product(shape, {}))
    assert group_by_kind(Workload(shape, blocks, (1.0, 1.0, 2.0, 1.0))) == ((0, 2), (1,), (3,))


def test_groups_are_maximal_attribute_sets():
    shape = (2,) * 3
    blocks = tuple(marginal(shape, a) for a in ([0, 1], [1], [1, 2], []))
    assert group_by_attributes(Workload(shape, blocks, (1.0,) * 4)) == ((0, 1, 3), (2,))


def test_ten_thousand_tables_are_refused_in_no_time():
    shape = (2,) * 150
    blocks = tuple(marginal(shape, [i, j]) for i in range(150) for j in range(i))
    with pytest.raises(UnsupportedWorkloadError, match="kinds"):
        opt_union(Workload(shape, blocks, (1.0,) * len(blocks)), noise="laplace", rng=rng())
    assert len(blocks) > MAX_KINDS


def candidate(workload, noise):
    problem = Problem(workload, gram(workload), noise, seed=0)
    return union_candidate(problem).strategy


def of_file(name, noise):
    spec = load_spec(Path(__file__).parents[2] / "workloads" / f"{name}.yaml")
    workload = compile_spec(spec).workload
    return workload, candidate(workload, noise)


@noises
def test_the_strategy_is_the_same_every_time_and_survives_the_plan(noise):
    workload = union_case()
    first, second = (candidate(workload, noise).encode() for _ in range(2))
    assert first == second
    again = decode_strategy(first, noise=noise, workload=workload)
    error = expected_error(candidate(workload, noise), workload)
    assert expected_error(again, workload) == error


@pytest.mark.slow
def test_two_products_are_ahead_of_every_figure_known_for_sf1_under_gaussian_noise():
    workload, strategy = of_file("sf1", "gaussian")
    assert len(strategy.parts) == 2
    assert strategy.joint is not None
    assert STD["gaussian"] * expected_error(strategy, workload).rmse <= 8.64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "noise", "best"),
    [
        ("sf1plus", "gaussian", 9.60),
        ("adult_prefix", "gaussian", 88.95),
        ("adult_prefix", "laplace", 495.0),
        ("loans_small_prefix", "gaussian", 71.1),
        ("loans_small_prefix", "laplace", 326.0),
        ("sample_persons", "laplace", 43.3),
    ],
)
def test_grouped_products_stay_where_they_have_been(name, noise, best):
    workload, strategy = of_file(name, noise)
    assert STD[noise] * expected_error(strategy, workload).rmse <= best


def test_blocks_of_one_kind_need_no_union():
    shape = (4, 3)
    workload = Workload(shape, (product(shape, {0: Prefix(4), 1: Identity(3)}),) * 2, (1.0, 2.0))
    with pytest.raises(UnsupportedWorkloadError, match="the same"):
        candidate(workload, "gaussian")
