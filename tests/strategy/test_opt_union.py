"""OPT_+: prices of groups, greedy merging, budget shares, and never worse than fixed groupings."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from dense import (
    dense_gram,
    dense_strategy,
    dense_workload,
    kron,
    random_workload,
    rng,
    sensitivity_of,
)

from dpquery.audit import dense_strategy as audit
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.cells import Spread
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Dense, Groups, Identity, Ones
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.parsing.read import parse
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.optimize.opt_0 import opt_product
from dpquery.strategy.optimize.opt_union import (
    MAX_KINDS,
    group_by_attributes,
    group_by_kind,
    opt_parts,
    opt_union,
    palettes,
)
from dpquery.strategy.search.candidates import Problem, union_candidate
from dpquery.strategy.search.closed_forms import divisions_of, parts_candidate
from dpquery.strategy.search.select import select
from dpquery.strategy.sensitivity import factor_norms, sensitivity

noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])


def dense_loss(A, workload):
    """tr((A'A)^+ V)."""
    return np.trace(np.linalg.pinv(A.T @ A, rcond=1e-12) @ dense_gram(workload))


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


@pytest.mark.nightly(daily="workload[03]")
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
    # Grouping is never worse than fixed groups or one product, but for other starting points.
    slack = 1 + (1e-3 if noise == "gaussian" else 0.02)
    fixed = group_by_attributes(workload)
    apart = opt_parts(workload, noise=noise, rng=rng(), groups=fixed, known={})
    assert selection.loss <= apart.loss * slack
    assert selection.loss <= opt_product(gram(workload), noise=noise, rng=rng()).loss * slack


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


def test_ten_thousand_tables_are_refused_in_no_time():
    shape = (2,) * 150
    blocks = tuple(marginal(shape, [i, j]) for i in range(150) for j in range(i))
    with pytest.raises(UnsupportedWorkloadError, match="kinds"):
        opt_union(Workload(shape, blocks, (1.0,) * len(blocks)), noise="laplace", rng=rng())
    assert len(blocks) > MAX_KINDS


def candidate(workload, noise):
    problem = Problem(workload, gram(workload), noise, seed=0)
    return union_candidate(problem).strategy


@pytest.mark.nightly(daily="gaussian")
@noises
def test_the_strategy_is_the_same_every_time_and_survives_the_plan(noise):
    workload = union_case()
    first, second = (candidate(workload, noise).encode() for _ in range(2))
    assert first == second
    again = decode_strategy(first, noise=noise, workload=workload)
    error = expected_error(candidate(workload, noise), workload)
    assert expected_error(again, workload) == error


# Parts: items planned alone and side by side, over classes of their own; never worse than that.


STATES = Groups.of(tuple(tuple(range(4 * k, 4 * k + 4)) for k in range(3)), 12)
SHAPE = (12, 3, 8)
GEOGRAPHY = Workload(
    SHAPE,
    (
        product(SHAPE, {0: Identity(12), 1: Identity(3)}),
        product(SHAPE, {0: STATES, 1: Identity(3)}),
        product(SHAPE, {0: STATES, 2: Prefix(8)}),
    ),
    (1.0, 1.0, 2.0),
)
ITEMS = ((0, 1), (2,))


@cache
def parts_of(noise, change="enters"):
    problem = Problem(GEOGRAPHY, gram(GEOGRAPHY), noise, 0, change=change, items=ITEMS)
    return parts_candidate(problem).strategy


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_parts_are_not_given_up_while_searches_may_still_win(noise):
    """Their closed forms lose to what is to be beaten; what is found by searches is below it."""
    shape, tables = (16, 16), ({0: Prefix(16)}, {1: Prefix(16)})
    two = Workload(shape, tuple(product(shape, each) for each in tables), (1.0, 1.0))
    problem = Problem(two, gram(two), noise, 0, items=((0,), (1,)))
    found = parts_candidate(problem)
    loss = expected_error(found.strategy, two).weighted_rmse ** 2 * weighted_queries(two)
    again = parts_candidate(replace(problem, least_loss=1.001 * loss))
    assert again.strategy.encode() == found.strategy.encode()
    with pytest.raises(UnsupportedWorkloadError, match="cannot win"):
        parts_candidate(replace(problem, least_loss=0.999 * loss))


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_parts_are_planned_over_the_codes_that_they_tell_apart(noise):
    strategy = parts_of(noise)
    coarse = [part for part in strategy.parts if part.kind == "coarser"]
    assert {part.inner.shape for part in coarse} >= {(3, 1, 8)}
    A, (W, _) = dense_strategy(strategy.measurements), dense_workload(GEOGRAPHY)
    norms = np.abs(A).sum(axis=0) if noise == "laplace" else (A**2).sum(axis=0)
    assert sensitivity(strategy.measurements, noise) == norms.max()
    x = np.random.default_rng(0).integers(0, 50, A.shape[1]).astype(float)
    answers, start = [], 0
    for rows in strategy.measurements:
        answers.append((A.astype(float) @ x)[start : start + rows.block.queries])
        start += rows.block.queries
    estimates = reconstruct(strategy, answers)
    back = [estimates.answer(b, k).ravel() for k, b in enumerate(GEOGRAPHY.blocks)]
    assert np.concatenate(back) == pytest.approx(W @ x, abs=1e-6)


def test_parts_come_back_from_a_plan_and_hostile_ones_do_not():
    strategy = parts_of("gaussian")
    encoded = json.loads(json.dumps(strategy.encode()))
    again = decode_strategy(encoded, noise="gaussian", workload=GEOGRAPHY)
    rows = [np.sort(dense_strategy(s.measurements), axis=0) for s in (again, strategy)]
    assert np.array_equal(*rows)
    place = next(k for k, part in enumerate(encoded["parts"]) if part["shape"] == "coarser")
    for classes in ([0] * 12, [0, 2] * 6, [0] * 11, [-1] * 12):
        hostile = json.loads(json.dumps(encoded))
        hostile["parts"][place]["classes"][0] = classes
        with pytest.raises(SpecError):
            decode_strategy(hostile, noise="gaussian", workload=GEOGRAPHY)
    nested = encoded
    for _ in range(2):
        nested = {**encoded, "parts": [nested], "weights": [1], "groups": [[0, 1, 2]]}
    with pytest.raises(SpecError):
        decode_strategy(nested, noise="gaussian", workload=GEOGRAPHY)


TWO_LEVELS = """
dataset: {id: levels, version: 1}
privacy: {unit: row, delta: 1e-9}
budget: {epsilon: 1, delta: 1e-9}
other: drop
domain: {a: {range: [0, 5]}, b: boolean, c: {range: [0, 3]}}
workload:
- {name: cells, product: {a: identity, b: identity}}
- {name: groups, product: {a: {groups: {A: [[0, 1]], B: [[2, 5]]}}, c: prefix}}
- {name: either, threshold: {r: 1, of: [b, c], targets: {b: yes, c: {is: 1}}}}
"""


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_audit_reads_the_same_rows_from_a_plan_of_parts(noise):
    spec = parse(TWO_LEVELS, name="levels.yaml", files={})
    workload = compile_spec(spec).workload
    strategy = parts_candidate(Problem(workload, gram(workload), noise, 0)).strategy
    assert {"coarser", "union"} <= {strategy.kind, *(part.kind for part in strategy.parts)}
    plan = {"selections": [{"noise": noise, "strategy": strategy.encode()}]}
    audited = audit.dense_strategy(spec, json.loads(json.dumps(plan)), noise)
    columns = np.array([audited.column(cell) for cell in audited.cells])
    assert np.array_equal(columns.T, dense_strategy(strategy.measurements))


def test_divisions_are_items_and_items_whose_attributes_another_one_has():
    problem = Problem(GEOGRAPHY, gram(GEOGRAPHY), "laplace", 0)
    assert divisions_of(problem) == (((0, 1), (2,)), ((0,), (1,), (2,)))


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_out_of_time_the_parts_are_planned_by_what_is_quick(noise):
    selection = select(GEOGRAPHY, noises=[noise], time_limit=0, items=ITEMS)[noise]
    parts = next(candidate for candidate in selection.candidates if candidate.name == "Parts")
    assert parts.error is not None or "cannot win" in parts.reason


def test_a_spread_factor_is_its_dense_twin():
    classes = np.array([0, 0, 1, 2, 2, 2])
    factor, inner = Spread(Prefix(3), classes), Prefix(3)
    dense = inner.dense()[:, classes]
    rng = np.random.default_rng(0)
    X, Y = rng.integers(0, 9, (6, 2)), rng.integers(0, 9, (3, 2))
    assert np.array_equal(factor.dense(), dense)
    assert np.array_equal(factor.matmat(X), dense @ X)
    assert np.array_equal(factor.rmatmat(Y), dense.T @ Y)
    assert np.array_equal(factor.gram(), dense.T @ dense)
    assert np.array_equal(factor.column_norms(2), (dense**2).sum(axis=0))
    M = rng.normal(size=(6, 6))
    M = M + M.T
    assert factor.quadratic(M) == pytest.approx(np.diag(dense @ M @ dense.T))


@pytest.mark.parametrize("power", [1, 2])
def test_a_spread_factor_with_wide_entries_has_the_norms_of_its_columns(power):
    classes = np.array([0, 1, 1, 2])
    inner = Dense(np.array([[1, 2, 1 << 40], [1 << 38, 3, 5]]))
    dense = inner.dense().astype(object)[:, classes]
    assert factor_norms(Spread(inner, classes), power) == (abs(dense) ** power).sum(axis=0).tolist()


def test_a_question_that_tells_codes_of_a_class_apart_has_no_answer():
    coarser = (part for part in parts_of("gaussian").parts if part.kind == "coarser")
    strategy = next(part for part in coarser if part.inner.shape == (3, 1, 8))
    assert strategy.supports(product(SHAPE, {0: STATES, 2: Prefix(8)}))
    assert not strategy.supports(product(SHAPE, {0: Identity(12), 2: Prefix(8)}))
