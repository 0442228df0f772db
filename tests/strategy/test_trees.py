"""Trees of nested groups: their dense twins, the best weights, and what a plan makes of them."""

import json
from functools import cache

import baselines
import numpy as np
import pytest
from dense import dense_strategy, nested, random_factor, random_tree, rows_of
from scipy.optimize import check_grad

from dpquery.audit import dense_strategy as audit
from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Dense, Groups, Identity, IdentityRows, Stacked, total
from dpquery.operators.gram import Mixture, Structured, array_of, gram
from dpquery.operators.inverses import inverse_gram, inverse_trace, least_squares
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.plan_file.plan import decode_strategy
from dpquery.public_chance import public_generator
from dpquery.spec.parsing.read import parse
from dpquery.strategy.algebra.query_powers import expand
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.factor_json import pack
from dpquery.strategy.optimize.fixed_point import fixed_point
from dpquery.strategy.optimize.opt_0 import opt_0, opt_product
from dpquery.strategy.optimize.opt_0_laplace import best_p_identity
from dpquery.strategy.optimize.opt_tree import AlikeSets, NestedSets, TreeLoss, opt_tree
from dpquery.strategy.search.candidates import Problem, product_candidate
from dpquery.strategy.sensitivity import factor_norms, sensitivity
from dpquery.strategy.shapes import marginals as product_shape
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.strategy import WeightedBlock, integer_factor

noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_is_its_dense_twin(seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng)
    A, (m, n) = rows_of(tree), tree.shape
    assert A.shape == (m, n)
    X, Y = rng.integers(0, 99, (n, 3)), rng.integers(0, 99, (m, 2))
    assert np.array_equal(tree.matmat(X), A @ X)
    assert np.array_equal(tree.rmatmat(Y), A.T @ Y)
    assert np.array_equal(tree.gram(), A.T @ A)
    assert np.array_equal(tree.column_counts(), (A != 0).sum(axis=0))
    assert tree.max_abs == A.max()
    assert np.array_equal(tree.row_squares, (A**2).sum(axis=1))
    for power in (1, 2, 3):
        assert np.array_equal(tree.column_norms(power), (A**power).sum(axis=0))
        assert tree.exact_norms(power) == (A**power).sum(axis=0).tolist()
        assert tree.row_powers(power) == pytest.approx((A.astype(float) ** power).sum(axis=1))
    y = rng.normal(size=(m, 3))
    expected = np.linalg.lstsq(A.astype(float), y, rcond=None)[0]
    assert least_squares(tree)(y) == pytest.approx(expected, abs=1e-9)


TREES = [
    *(random_tree(np.random.default_rng(seed)) for seed in range(40)),
    Hierarchy(1, (1,), (5,)),
    Hierarchy(8, (1, 2, 4, 8), (3, 1, 2, 7)),
    Hierarchy(7, (1, 2, 4, 8), (3, 1, 2, 7)),
    Hierarchy(11, (1, 3, 6, 12), (1, 1, 1, 1)),
    Hierarchy(5, (1,), (2,)),
]


@pytest.mark.nightly(daily=r"\[\d\]")
@pytest.mark.parametrize("tree", TREES, ids=range(len(TREES)))
def test_the_inverse_of_a_tree_answers_every_kind_of_query(tree):
    inverse, n, rng = np.linalg.inv(tree.gram()), tree.shape[1], np.random.default_rng(1)
    M = inverse_gram(tree)
    assert M.array() == pytest.approx(inverse, abs=1e-12)
    X = rng.normal(size=(n, 3))
    assert M.matmat(X) == pytest.approx(inverse @ X, abs=1e-12)
    V = rng.normal(size=(n, n))
    assert inverse_trace(M, V) == pytest.approx(np.trace(inverse @ V))
    queries = [random_factor(rng, n) for _ in range(6)]
    queries += [Dense(rng.normal(size=(3, n))), Columns(AllRanges(n), rng.permutation(n))]
    queries += [AllRanges(n), ListedRanges(n, [(0, n - 1), (n // 2, n - 1)])]
    for Q in queries:
        F = Q.dense()
        assert M.quadratic(Q) == pytest.approx(np.diag(F @ inverse @ F.T), abs=1e-10)
    structured = Structured(Mixture(n, 2.0, 3.0), ((0.5, queries[0]), (2.0, queries[-1])))
    assert inverse_trace(M, structured) == pytest.approx(np.trace(inverse @ structured.array()))


def test_a_block_is_known_as_well_where_its_weight_is_far_above_its_children():
    tree = Tree([np.zeros(6, dtype=int)], [np.ones(6, dtype=int), np.array([1 << 40])])
    assert tree.tree.quadratic(total(6)) == pytest.approx(2.0**-80, rel=1e-9)
    assert tree.tree.quadratic(Groups.of((tuple(range(6)),), 6)) == pytest.approx(2.0**-80)


@pytest.mark.parametrize("power", [1, 2])
def test_wide_weights_have_the_norms_of_their_paths(power):
    tree = Tree([np.array([1, 0, 1])], [np.array([1 << 40, 3, 5]), np.array([7, 1 << 39])])
    expected = [(1 << 40 * power) + (1 << 39 * power), 3**power + 7**power]
    assert factor_norms(tree, power) == [*expected, 5**power + (1 << 39 * power)]


@pytest.mark.parametrize(
    ("parents", "weights", "complaint"),
    [
        ([], [], "all levels"),
        ([[0, 0]], [[1, 1]], "all levels"),
        ([[0, 0, 0]], [[1, 1], [1]], "has a parent"),
        ([[0, 0]], [[1, 1], [1, 1]], "holds a block"),
        ([[0, 2]], [[1, 1], [1, 1]], "holds a block"),
        ([[-1, 0]], [[1, 1], [1]], "holds a block"),
        ([[0, 1, 2], [1, 0, 1]], [[1, 1, 1], [1, 1, 1], [1, 1]], "order of their parents"),
        ([[0, 0]], [[1, 0], [1]], "without a weight"),
        ([[0, 0]], [[1, 1], [-1]], "negative"),
    ],
)
def test_impossible_trees_are_refused(parents, weights, complaint):
    with pytest.raises(ValueError, match=complaint):
        Tree(list(map(np.array, parents)), list(map(np.array, weights)))


FAN_OUTS = [((2, 9), (1, 12)), ((2, 6), (1, 6), (1, 8)), ((51, 51), (1, 3)), ((3, 3), (4, 4))]


@pytest.mark.parametrize("seed", range(12))
def test_the_sets_of_a_gram_are_found_in_any_order(seed):
    rng = np.random.default_rng(seed)
    fan_outs = FAN_OUTS[seed % 4]
    V, factors = nested(rng, fan_outs, rng.integers(1, 9, 1 + len(fan_outs)), shuffled=True)
    sets = NestedSets.of(V)
    tree = Tree(sets.parents, [np.sqrt(np.maximum(level, 0)) for level in sets.weights])
    assert tree.gram() == pytest.approx(array_of(V))
    kinds = AlikeSets.of(sets)
    for level, kind in enumerate(kinds.kinds):
        assert np.array_equal(kinds.weights[level][kind], sets.weights[level])
    crossing = Groups.of((tuple(range(1, V.n, 2)),), V.n)
    both = Structured(V.mixture, (*V.terms, (1.0, crossing)))
    assert (NestedSets.of(both) is None) == (len(factors) > 0 and V.n > 3)
    assert NestedSets.of(Structured(V.mixture, (*V.terms, (1.0, Prefix(V.n))))) is None
    assert NestedSets.of(Structured(V.mixture, (*V.terms, (-1.0, crossing)))) is None


def test_sets_of_one_code_of_all_codes_and_twice_the_same_are_counted_where_they_are():
    rows = Groups.of(((0,), (0, 1), (1, 0), (0, 1, 2, 3)), 4)
    V = Structured(Mixture(4, 1.0, 2.0), ((3.0, rows), (1.0, ListedRanges(4, [(2, 3), (3, 3)]))))
    sets = NestedSets.of(V)
    assert sets.weights[0].tolist() == [4.0, 1.0, 1.0, 2.0]
    assert [sorted(level.tolist()) for level in sets.weights[1:]] == [[1.0, 6.0], [5.0]]
    assert [sets.parents[0][0], sets.parents[1].tolist()] == [sets.parents[0][1], [0, 0]]


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_of_a_tree_and_its_gradient_are_those_of_the_matrices(seed):
    rng = np.random.default_rng(seed)
    V, _ = nested(rng, FAN_OUTS[seed % 4], rng.uniform(0.1, 5, 1 + len(FAN_OUTS[seed % 4])))
    sets = NestedSets.of(V)
    kinds = AlikeSets.of(sets)
    sizes = [len(weights) for weights in kinds.weights]
    ends = np.cumsum(sizes)[:-1]
    loss = TreeLoss(kinds)
    point = rng.uniform(0.1, 2, sum(sizes))
    squares = np.split(point, ends)
    every = [np.sqrt(level)[kind] for level, kind in zip(squares, kinds.kinds, strict=True)]
    dense = np.trace(np.linalg.solve(Tree(sets.parents, every).gram(), array_of(V)))
    assert loss(squares)[0] == pytest.approx(dense)
    error = check_grad(
        lambda y: loss(np.split(y, ends))[0],
        lambda y: np.concatenate(loss(np.split(y, ends))[1]),
        point,
    )
    assert error <= 1e-4 * np.linalg.norm(np.concatenate(loss(squares)[1]))


@pytest.mark.parametrize("seed", range(8))
def test_under_gaussian_noise_trees_are_as_good_as_any_rows(seed):
    rng = np.random.default_rng(seed)
    fan_outs = FAN_OUTS[seed % 4]
    V, _ = nested(rng, fan_outs, 10.0 ** rng.uniform(-1, 2, 1 + len(fan_outs)))
    tree, best = opt_tree(NestedSets.of(V), "gaussian"), fixed_point(array_of(V), None, 400)
    gram_of_tree = tree.factor.gram()
    peak = np.diagonal(gram_of_tree).max()
    assert peak == pytest.approx(1)
    assert tree.loss == pytest.approx(peak * np.trace(np.linalg.solve(gram_of_tree, array_of(V))))
    assert tree.loss <= best.loss * 1.001
    assert 0.999 * best.bound <= tree.bound <= best.loss
    assert tree.converged


@pytest.mark.filterwarnings("error")
def test_codes_that_no_query_holds_leave_the_bound_what_it_is():
    pairs = Groups.of(((0, 1, 2), (3, 4)), 5)
    all_held = Structured(Mixture(5, 1.0, 0.0), ((1.0, pairs),))
    more = Groups.of(((0, 1, 2), (3, 4)), 7)
    some_held = Structured(
        Mixture(7, 0.0, 0.0), ((1.0, more), (1.0, IdentityRows(7, np.arange(5))))
    )
    trees = [opt_tree(NestedSets.of(V), "gaussian") for V in (all_held, some_held)]
    assert trees[1].loss == pytest.approx(trees[0].loss, rel=1e-3)
    assert trees[1].bound == pytest.approx(trees[0].bound, rel=1e-3)
    assert trees[1].bound <= trees[1].loss <= 1.001 * trees[1].bound


@pytest.mark.parametrize("seed", range(2))
def test_under_laplace_noise_trees_are_as_good_as_p_identities(seed):
    rng = np.random.default_rng(seed)
    V, _ = nested(rng, ((8, 8), (1, 15)), 10.0 ** rng.uniform(0, 3, 3))
    tree = opt_tree(NestedSets.of(V), "laplace")
    A = tree.factor.dense()
    assert np.abs(A).sum(axis=0) == pytest.approx(1)
    assert tree.loss == pytest.approx(np.trace(np.linalg.solve(A.T @ A, array_of(V))))
    rows = best_p_identity(V, max(1, V.n // 16), public_generator(0), 450)
    assert tree.loss <= rows.loss * 1.002
    assert opt_0(V, noise="laplace", rng=public_generator(0)).loss <= rows.loss * 1.001


@noises
def test_rounded_weights_cost_next_to_nothing_and_never_more_than_the_budget(noise):
    rng = np.random.default_rng(3)
    V, _ = nested(rng, ((12, 12), (1, 9), (1, 9)), (1, 3, 10, 30), shuffled=True)
    real = opt_tree(NestedSets.of(V), noise)
    tree = integer_factor(real.factor, noise=noise)
    power = 1 if noise == "laplace" else 2
    norms = tree.column_norms(power)
    assert norms.max() <= 1 << 16 * power
    loss = float(norms.max()) ** (2 / power) * inverse_trace(inverse_gram(tree), V)
    assert loss <= real.loss * 1.001


COUNTRY = """
dataset: {id: levels, version: 1}
privacy: {unit: row, delta: 1e-9}
budget: {epsilon: 1, delta: 1e-9}
other: drop
domain: {area: {range: [0, 139]}, sex: {values: [f, m]}}
workload:
- name: people
  union:
  - product: {area: identity, sex: identity}
  - product:
      area: {groups: {A: [[0, 40]], B: [[41, 47], [100, 139]], C: [[48, 99]]}}
      sex: identity
  - product:
      area: {groups: {A1: [[0, 9]], A2: [[10, 40]], B: [[41, 47]], B2: [[100, 139]], C: [48, 60]}}
      sex: identity
  - product: {sex: identity}
"""


@cache
def planned(noise):
    """The workload over nested areas and its best product, with the bound that is proven."""
    spec = parse(COUNTRY, name="levels.yaml", files={})
    workload = compile_spec(spec).workload
    proposal = product_candidate(Problem(workload, gram(workload), noise, 0))
    return spec, workload, proposal


@noises
def test_nested_groups_beside_other_attributes_have_a_tree_that_is_proven_optimal(noise):
    _, workload, proposal = planned(noise)
    assert isinstance(proposal.strategy.factors[0], Tree)
    error = expected_error(proposal.strategy, workload)
    loss = error.weighted_rmse**2 * weighted_queries(workload)
    if noise == "gaussian":
        assert proposal.bound <= loss <= proposal.bound * 1.001
    else:
        assert loss < gram(workload).trace  # of the cells alone


@noises
def test_the_audit_reads_the_rows_of_a_tree_from_a_plan(noise):
    spec, workload, proposal = planned(noise)
    strategy = proposal.strategy
    plan = json.loads(json.dumps({"selections": [{"noise": noise, "strategy": strategy.encode()}]}))
    audited = audit.dense_strategy(spec, plan, noise)
    columns = np.array([audited.column(cell) for cell in audited.cells])
    dense = dense_strategy(strategy.measurements)
    assert np.array_equal(columns.T, dense)
    norms = np.abs(dense).sum(axis=0) if noise == "laplace" else (dense**2).sum(axis=0)
    assert sensitivity(strategy.measurements, noise) == norms.max()
    again = decode_strategy(plan["selections"][0]["strategy"], noise=noise, workload=workload)
    assert np.array_equal(dense_strategy(again.measurements), dense)


def test_hostile_trees_are_refused():
    _, workload, proposal = planned("gaussian")
    strategy = proposal.strategy
    encoded = json.loads(json.dumps(strategy.encode()))
    tree = encoded["factors"][0]
    assert tree["kind"] == "tree"
    changes = [
        {"parents": tree["parents"][:-1]},
        {"parents": tree["parents"][::-1]},
        {"weights": tree["weights"][1:]},
        {"weights": tree["weights"][::-1]},
        {"parents": [], "weights": []},
        {"parents": [], "weights": [pack(np.ones((1, 139)))]},
        {"weights": [{**tree["weights"][0], "shape": [1, 10**9]}, *tree["weights"][1:]]},
        {"weights": [{**tree["weights"][0], "shape": [2, 70]}, *tree["weights"][1:]]},
    ]
    for change in changes:
        hostile = {**encoded, "factors": [{**tree, **change}, *encoded["factors"][1:]]}
        with pytest.raises(SpecError):
            decode_strategy(hostile, noise="gaussian", workload=workload)


@noises
@pytest.mark.parametrize("seed", range(6))
def test_a_record_that_moves_between_codes_moves_a_tree_no_further_than_is_charged(seed, noise):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng)
    n = tree.shape[1]
    if n == 1:
        return
    measured = (WeightedBlock(3, product((n,), {0: tree})),)
    A = 3 * rows_of(tree).astype(object)
    apart = np.abs(A[:, :, None] - A[:, None, :])
    farthest = (apart if noise == "laplace" else apart**2).sum(axis=0).max()
    assert sensitivity(measured, noise, "moves within") == max(farthest, 0) or farthest == 0


@pytest.mark.parametrize("power", [1, 2])
def test_a_tree_of_many_codes_overlaps_at_least_by_its_highest_block(power):
    n = 3000
    tree = Tree([np.zeros(n, dtype=int)], [np.full(n, 5), np.array([4])])
    measured = (WeightedBlock(1, product((n,), {0: tree})),)
    noise = "laplace" if power == 1 else "gaussian"
    assert sensitivity(measured, noise, "moves within") == 2 * 5**power


def fourth_powers(strategy, *blocks):
    """The sums of fourth powers of all coefficients of the queries of some blocks."""
    sums = [strategy.power_sums(block, position=None, order=4) for block in blocks]
    pairs = zip(sums, blocks, strict=True)
    return np.concatenate([expand(terms, block.row_shape).ravel() for terms, block in pairs])


@pytest.mark.parametrize("kind", ["hierarchy", "tree"])
def test_moments_are_added_up_in_pieces_and_left_out_for_long_trees(kind, monkeypatch):
    tree = Tree([np.array([1, 0, 1, 0, 2, 1])], [np.arange(1, 7), np.array([3, 0, 5])])
    factor = tree if kind == "tree" else Hierarchy(6, (1, 2, 6), (3, 2, 1))
    strategy = ProductStrategy("t", "laplace", (factor, Identity(2)))
    block = product((6, 2), {0: Stacked((Identity(6), total(6))), 1: Identity(2)})
    either = Block((6, 2), (0, 1), (AllRanges(6), Identity(2)), (True, True), 1)
    A = factor.dense().astype(float)
    rows = block.factors[0].dense() @ np.linalg.pinv(A)
    whole = fourth_powers(strategy, block, either)
    weight = strategy.measurements[0].weight
    assert whole[:14] * weight**4 == pytest.approx(np.repeat((rows**4).sum(axis=1), 2))
    monkeypatch.setattr(product_shape, "PSEUDO_INVERSE_ENTRIES", 3 * factor.shape[0])
    if kind == "tree":
        assert strategy.fourth_and_sixth(block, position=None) is None
    else:
        assert fourth_powers(strategy, block, either) == pytest.approx(whole)


@pytest.mark.nightly
@noises
def test_a_hundred_thousand_codes_with_groups_are_planned_and_solved(noise):
    rng = np.random.default_rng(0)
    V, factors = nested(rng, ((51, 51), (20, 100), (20, 60)), (1, 1, 1, 1))
    selected = opt_0(V, noise=noise, rng=public_generator(0))
    tree = integer_factor(selected.factor, noise=noise)
    assert V.n > 90_000
    assert selected.loss <= selected.bound * 1.001 or noise == "laplace"
    x = rng.integers(0, 100, (V.n, 1))
    assert np.array_equal(np.rint(least_squares(tree)(tree.matmat(x))), x)
    variances = np.concatenate([inverse_gram(tree).quadratic(f) for f in (Identity(V.n), *factors)])
    power = 1 if noise == "laplace" else 2
    loss = float(max(factor_norms(tree, power))) ** (2 / power) * (
        variances.sum() + float(inverse_gram(tree).quadratic(total(V.n))[0])
    )
    assert loss == pytest.approx(selected.loss, rel=1e-3)


def test_products_that_differ_on_two_attributes_have_no_product_bound():
    shape = (4, 4)
    blocks = (product(shape, {0: Prefix(4)}), product(shape, {1: Prefix(4)}))
    V = gram(Workload(shape, blocks, (1.0, 1.0)))
    assert opt_product(V, noise="gaussian", rng=public_generator(0)).bound == 0


def test_codes_that_are_in_no_set_have_no_tree():
    V = Structured(Mixture(7, 0.5, 0.0), ((2.0, IdentityRows(7, np.array([1, 4]))),))
    assert NestedSets.of(V) is None
    selection = opt_0(V, noise="laplace", rng=public_generator(0))
    assert selection.loss > 0


# Hierarchies: exact inverses, level weights, and the published figures.


def problem_of(factor, noise):
    n = factor.shape[1]
    workload = Workload((n,), (product((n,), {0: factor}),), (1.0,))
    return Problem(workload, gram(workload), noise, seed=0)


@pytest.mark.parametrize(
    ("sizes", "weights", "complaint"),
    [
        ((2, 4), (1, 1), "single codes"),
        ((), (), "single codes"),
        ((1, 8, 16), (1, 1, 1), "all codes at most"),
        ((1, 2, 3), (1, 1, 1), "blocks of 3 codes"),
        ((1, 1), (1, 1), "blocks of 1 codes"),
        ((1, 2), (1, 0), "at least 1"),
        ((1, 2), (1,), "at least 1"),
    ],
)
def test_impossible_hierarchies_are_refused(sizes, weights, complaint):
    with pytest.raises(ValueError, match=complaint):
        Hierarchy(6, sizes, weights)


@pytest.mark.parametrize(
    "damage",
    [
        {"n": 9},
        {"n": 1 << 40},
        {"levels": []},
        {"levels": [[1, 0]]},
        {"levels": [[1, 1], [3, 1, 5]]},
        {"levels": [[1, 1], [2, -1]]},
        {"levels": [[2, 1], [4, 1]]},
    ],
)
def test_a_damaged_hierarchy_is_refused_when_it_is_read(damage):
    problem = problem_of(Prefix(8), "laplace")
    encoded = baselines.h2(problem).strategy.encode()
    decode_strategy(encoded, noise="laplace", workload=problem.workload)
    encoded["factors"][0] |= damage
    with pytest.raises(SpecError, match="plan"):
        decode_strategy(encoded, noise="laplace", workload=problem.workload)
