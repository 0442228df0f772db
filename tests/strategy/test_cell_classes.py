"""Classes of cells that no query tells apart: found, solved, measured and read back."""

import json
import math
from pathlib import Path

import bench_office
import numpy as np
import pyarrow.parquet as pq
import pytest
from bench_office import office_spec
from dense import classes_of_cells, dense_block, dense_strategy, dense_workload, random_workload
from specs import put_true_figures, unhashed
from town import SEARCHED, ok, plan_town, refused

import dpquery.audit.dense_strategy as audit
import dpquery.strategy.search.candidates as candidates
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.limits import MAX_CELL_CLASSES
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.cells import CellClassBlock, CellClasses, cell_classes, gram_of_classes
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity, IdentityRows
from dpquery.operators.gram import gram
from dpquery.operators.ranges import Prefix
from dpquery.plan_file.plan import decode_strategy
from dpquery.public_chance import public_generator
from dpquery.spec.parsing.read import parse
from dpquery.strategy.bounds import lower_bound
from dpquery.strategy.expected_error import expected_error, weighted_queries
from dpquery.strategy.optimize.fixed_point import TOTAL_SHARE, Optimum, cells_optimum, gram_blocks
from dpquery.strategy.optimize.opt_0 import opt_0
from dpquery.strategy.search.candidates import (
    CLASSES_GAIN,
    NoGainError,
    Problem,
    cell_classes_candidate,
)
from dpquery.strategy.search.select import select
from dpquery.strategy.sensitivity import sensitivity
from dpquery.strategy.strategy import WeightedBlock, WeightedColumns, column_matrices

SLICES = """\
dataset: {id: town}
privacy: {unit: row, delta: 1e-6}
budget: {epsilon: 4, delta: 1e-6}
other: drop
domain:
  age: {range: [0, 4]}
  sex: {values: [F, M]}
  region: {values: {1: North, 2: South}, other: show}
  income: {bins: [0, 10, 20.5, 50]}
workload:
  - {name: ages, where: {region: {is: North}}, product: {age: prefix}}
  - {name: incomes, where: {region: {is: South}}, product: {sex: identity, income: identity}}
  - {name: regions, product: {region: identity}}
"""
"""Disjoint slices: a record is in one of them."""
THRESHOLDS = Workload(
    (3, 2, 4),
    (
        Block((3, 2, 4), (0, 1, 2), (Identity(3), Identity(2), Prefix(4)), (True, True, False), 1),
        Block((3, 2, 4), (0, 1, 2), (Identity(3), Identity(2), Prefix(4, 2)), (True,) * 3, 2),
    ),
    (1.0, 2.0),
)
seeds = pytest.mark.parametrize("seed", range(25))


def office(name):
    return compile_spec(parse(office_spec(name), name=name, files={})).workload


@seeds
def test_classes_are_the_distinct_columns_of_the_workload(seed):
    workload = THRESHOLDS if seed == 0 else random_workload(np.random.default_rng(seed))
    W, _ = dense_workload(workload)
    known = {}
    expected = [known.setdefault(tuple(column), len(known)) for column in W.T.tolist()]
    classes = cell_classes(workload, most=1 << 20)
    assert classes_of_cells(classes) == expected
    assert classes.count == len(known)


def test_cells_that_one_question_each_counts_are_not_one_class():
    shape, first = (2, 2), IdentityRows(2, np.arange(1))
    blocks = (product(shape, {0: first}), product(shape, {1: first}))
    classes = cell_classes(Workload(shape, blocks, (1.0, 1.0)), most=4)
    assert classes_of_cells(classes) == [0, 1, 2, 3]


@seeds
def test_queries_and_gram_over_classes_are_those_over_cells(seed):
    rng = np.random.default_rng(seed)
    workload = THRESHOLDS if seed == 0 else random_workload(rng)
    classes = cell_classes(workload, most=1 << 20)
    _, w = dense_workload(workload)
    x = rng.integers(0, 9, math.prod(workload.shape_of_domain))
    codes = classes_of_cells(classes)
    totals = np.bincount(codes, x, minlength=classes.count)
    outside = tuple(i for i in range(len(workload.shape_of_domain)) if i not in classes.attributes)
    table = x.reshape(workload.shape_of_domain).sum(axis=outside)
    assert classes.totals(table).tolist() == totals.tolist()
    rows = []
    for block in workload.blocks:
        over_classes = classes.by_class(block)
        rows.append(dense_block(over_classes))
        assert (rows[-1][:, codes] == dense_block(block)).all()
        measured = CellClassBlock(classes, over_classes)
        answers = measured.apply(table)
        assert answers.ravel().tolist() == (dense_block(block) @ x).tolist()
        y = rng.integers(0, 9, answers.shape)
        apart = (y.ravel() @ dense_block(measured)).reshape(workload.shape_of_domain)
        index = tuple(0 if i in outside else slice(None) for i in range(apart.ndim))
        assert (measured.adjoint(y) == apart[index]).all()
    stacked = np.vstack(rows).astype(float)
    assert gram_of_classes(workload, classes) == pytest.approx(stacked.T @ (w[:, None] * stacked))


def test_a_question_that_tells_cells_of_a_class_apart_is_refused():
    shape = (3, 4)
    asked = Workload(shape, (product(shape, {0: Identity(3)}),), (1.0,))
    classes = cell_classes(asked, most=10)
    with pytest.raises(UnsupportedWorkloadError, match="tells apart"):
        classes.by_class(marginal(shape, (0, 1)))
    finer = CellClasses(shape, (0, 1), np.arange(12) // 2)
    with pytest.raises(UnsupportedWorkloadError, match="tells apart"):
        finer.by_class(marginal(shape, (1,)))


def test_too_many_cells_or_classes_are_refused():
    shape = (3000, 3000)
    cells = Workload(shape, (marginal(shape, (0, 1)),), (1.0,))
    with pytest.raises(UnsupportedWorkloadError, match="cells"):
        cell_classes(cells, most=MAX_CELL_CLASSES)
    shape = (60, 60)
    wide = Workload(shape, (marginal(shape, (0,)), marginal(shape, (1,))), (1.0, 1.0))
    with pytest.raises(UnsupportedWorkloadError, match="classes of cells"):
        cell_classes(wide, most=MAX_CELL_CLASSES)


def test_measurements_over_different_classes_have_no_common_columns():
    shape = (2, 2)
    whole = Workload(shape, (marginal(shape, (0, 1)),), (1.0,))
    blocks = [
        WeightedBlock(1, CellClassBlock(cell_classes(whole, most=9), marginal((4,), (0,))))
        for _ in range(2)
    ]
    with pytest.raises(ValueError, match="different classes"):
        column_matrices(blocks)
    with pytest.raises(ValueError, match="different classes"):
        column_matrices([blocks[0], WeightedBlock(1, marginal(shape, (0,)))])
    (columns,) = column_matrices(blocks[:1])
    assert isinstance(columns, WeightedColumns)
    assert columns.block is blocks[0].block.inner


@seeds
def test_the_optimum_is_within_its_gap_of_its_bound_and_no_strategy_is_below_it(seed):
    rng = np.random.default_rng(seed)
    W = (rng.random((int(rng.integers(1, 12)), int(rng.integers(2, 30)))) < 0.4).astype(float)
    W[0, 0] = 1
    optimum = cells_optimum(W.T @ W)
    assert isinstance(optimum, Optimum)
    norms = (optimum.rows**2).sum(axis=0)
    assert norms.max() <= 1 + 1e-9
    loss = np.trace(np.linalg.solve(optimum.rows.T @ optimum.rows, W.T @ W))
    beside = 1.0 if W.any(axis=0).all() else 1 / (1 - TOTAL_SHARE)
    assert loss <= optimum.loss * beside * (1 + 1e-9)
    assert optimum.bound <= loss <= optimum.bound * beside * 1.001
    for _ in range(20):
        other = rng.normal(size=(30, W.shape[1])) + 3 * np.eye(30, W.shape[1])
        other /= np.sqrt((other**2).sum(axis=0))
        assert np.trace(np.linalg.solve(other.T @ other, W.T @ W)) >= optimum.bound * (1 - 1e-9)


def test_a_gram_that_falls_apart_is_solved_in_its_parts():
    rng = np.random.default_rng(6)
    parts = [(rng.random((4, 5)) < 0.5).astype(float) for _ in range(3)]
    W = np.zeros((12, 15))
    for k, part in enumerate(parts):
        W[4 * k : 4 * k + 4, 5 * k : 5 * k + 5] = part
    order = rng.permutation(15)
    V = (W.T @ W)[np.ix_(order, order)]
    assert len(gram_blocks(V)) >= 3
    whole = cells_optimum(V)
    apart = [cells_optimum(part.T @ part) for part in parts]  # a record is in one of them
    assert whole.loss <= sum(optimum.loss for optimum in apart) * (1 + 1e-3)
    assert whole.bound <= sum(optimum.loss for optimum in apart)
    assert sum(optimum.bound for optimum in apart) <= whole.loss * (1 + 1e-3)


def test_the_search_ends_at_a_bound_that_is_enough():
    W = np.tril(np.ones((20, 20)))
    optimum = cells_optimum(W.T @ W)
    bound = cells_optimum(W.T @ W, enough=optimum.bound * 0.99)
    assert isinstance(bound, float)
    assert optimum.bound * 0.99 <= bound <= optimum.loss


@pytest.mark.parametrize(
    ("name", "best"),
    [("six single questions", "Fourier+"), ("smallest: any of three, 2 of 3, one", "OPT_C")],
)
def test_small_workloads_are_proven_optimal(name, best):
    workload = office(name)
    selection = select(workload, noises=("gaussian",))["gaussian"]
    loss = selection.best.error.weighted_rmse**2 * weighted_queries(workload)
    assert selection.best.name == best
    if best == "OPT_C":
        assert loss <= selection.bound.loss * 1.002
    else:  # no better by so little, and answers more later questions
        assert loss <= selection.bound.loss * (1 + CLASSES_GAIN)


# Six: tables of attributes are kept where classes of cells gain less than CLASSES_GAIN of the loss,
# since they answer more later questions. Columns: a record may be in no question, and the total has
# its share.


@pytest.mark.nightly
def test_under_laplace_noise_the_search_starts_at_the_queries_too(monkeypatch):
    """Of 72 classes, by chance alone the error is 27 % above that from the queries."""
    domain = "a: {range: [0, 3]}, b: {range: [0, 15]}, c: boolean"
    items = ["{b: identity}", "{a: {between: [1, 3]}, b: {between: [3, 14]}}", "{c: {is: no}}"]
    items = [f"product: {item}" for item in items]
    items += ["where: {c: {is: no}}, product: {a: {is: 2}}"]
    lines = "".join(f"  - {{name: q{k}, {item}}}\n" for k, item in enumerate(items))
    text = bench_office.HEAD.format(domain=domain) + lines
    workload = compile_spec(parse(text, name="", files={})).workload
    strategy = cell_classes_candidate(Problem(workload, gram(workload), "laplace", 0)).strategy
    V = gram_of_classes(workload, strategy.classes)
    by_chance = opt_0(V, noise="laplace", rng=public_generator(0), p=len(V) // 16)
    error = expected_error(strategy, workload).weighted_rmse
    assert error < 0.85 * math.sqrt(by_chance.loss / weighted_queries(workload))
    monkeypatch.setattr(candidates, "MAX_CLASS_ENTRIES", 1000)  # too many to be written out
    alone = cell_classes_candidate(Problem(workload, gram(workload), "laplace", 0)).strategy
    assert error < 0.85 * expected_error(alone, workload).weighted_rmse


@pytest.mark.parametrize("change", ["moves", "moves within"])
def test_where_records_move_the_strategy_is_near_the_bound_of_that(change):
    workload = office("smallest: any of three, 2 of 3, one")
    selection = select(workload, noises=("gaussian",), change=change)["gaussian"]
    bound = lower_bound(gram(workload), change)
    loss = selection.best.error.weighted_rmse**2 * workload.shape[0]
    assert bound.loss * (1 - 1e-9) <= loss <= bound.loss * 1.005
    (classed,) = [c for c in selection.candidates if c.name == "OPT_C" and c.error]
    again = expected_error(classed.proposal.strategy, workload, change)
    assert again.weighted_rmse == classed.error.weighted_rmse


@pytest.fixture(scope="module")
def planned_slices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "slices"
    plan_town(folder, SLICES, *SEARCHED)
    return folder


@pytest.fixture
def sliced(planned_slices, move_in):
    move_in(planned_slices)
    plan = unhashed(Path("dpquery.plan").read_text())
    (selection,) = (s for s in plan["selections"] if s["noise"] == "gaussian")
    assert selection["strategy"]["shape"] == "cell-classes"


GAUSSIAN = ("release", "data.csv", "--epsilon", "1", "--noise", "gaussian")


def test_a_release_of_classes_is_answered_again_and_refuses_what_it_did_not_tell_apart(sliced):
    ok(*GAUSSIAN)
    measured = pq.read_table("release/measurements.parquet")
    assert set(measured["attributes"].to_pylist()) == {"age x sex x region x income"}
    ages = pq.read_table("release/ages.parquet")
    assert (ages["std_error"].to_numpy() > 0).all()
    Path("more.yaml").write_text(
        "workload:\n  - {name: up_to, where: {region: {is: North}}, product: {age: identity}}\n"
    )
    ok("answer", "release", "more.yaml")
    singles = pq.read_table("answers/up_to.parquet")["estimate"].to_numpy()
    assert np.cumsum(singles) == pytest.approx(ages["estimate"].to_numpy(), abs=1)
    Path("finer.yaml").write_text(
        "workload:\n  - {name: finer, where: {region: {is: South}}, product: {age: identity}}\n"
    )
    refused("answer", "release", "finer.yaml", "--out", "finer", code=2)


DAMAGE = {
    "another inner shape": lambda inner: inner.update(shape="marginals"),
    "classes of classes": lambda inner: inner.update(shape="cell-classes", inner=dict(inner)),
    "no factor": lambda inner: inner.update(factors=[]),
    "two factors": lambda inner: inner.update(factors=inner["factors"] * 2),
    "a total for a factor": lambda inner: inner.update(factors=[{"kind": "total", "n": 13}]),
    "another number of classes": lambda inner: inner.update(
        factors=[{"kind": "identity", "n": 14}]
    ),
    "no inner strategy": lambda inner: inner.clear(),
}


@pytest.mark.nightly
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_plan_of_other_classes_is_refused_before_anything_is_charged(sliced, damage):
    plan = unhashed(Path("dpquery.plan").read_text())
    (selection,) = (s for s in plan["selections"] if s["noise"] == "gaussian")
    damage(selection["strategy"]["inner"])
    Path("dpquery.plan").write_text(json.dumps(plan))
    refused(*GAUSSIAN, code=2)
    assert not Path("release").exists()


def test_a_plan_whose_inner_strategy_is_the_identity_is_charged_for_what_it_is(sliced):
    plan = unhashed(Path("dpquery.plan").read_text())
    (selection,) = (s for s in plan["selections"] if s["noise"] == "gaussian")
    inner = selection["strategy"]["inner"]
    classes = cell_classes(
        compile_spec(parse(SLICES, name="spec", files={})).workload, most=MAX_CELL_CLASSES
    )
    inner["factors"] = [{"kind": "identity", "n": classes.count}]
    Path("dpquery.plan").write_text(json.dumps(plan))
    put_true_figures()
    ok(*GAUSSIAN)
    facts = json.loads(Path("release/release.json").read_text())
    assert facts["noise"]["sensitivity"] == str(1 << 32)


@pytest.fixture(params=["smallest: any of three, 2 of 3, one", "indicators with thresholds"])
def by_queries(request, monkeypatch):
    monkeypatch.setattr(candidates, "MAX_CELL_CLASSES", 1)
    spec = parse(office_spec(request.param), name="spec.yaml", files={})
    workload = compile_spec(spec).workload
    return spec, workload, cell_classes_candidate(Problem(workload, gram(workload), "gaussian", 0))


def test_where_classes_are_many_a_mix_of_the_answers_to_a_basis_is_the_optimum(by_queries):
    _, workload, proposal = by_queries
    strategy, A = proposal.strategy, dense_strategy(proposal.strategy.measurements)
    W, weights = dense_workload(workload)
    assert len(A) == np.linalg.matrix_rank(A.astype(float)) < strategy.classes.count
    squared = int((A**2).sum(axis=0).max())
    assert sensitivity(strategy.measurements, "gaussian") == squared
    inverse = np.linalg.pinv(A.astype(float))
    assert W @ inverse @ A == pytest.approx(W, abs=1e-6)
    loss = squared * float(weights @ ((W @ inverse) ** 2).sum(axis=1))
    error = expected_error(strategy, workload)
    assert error.weighted_rmse**2 * weights.sum() == pytest.approx(loss, rel=1e-6)
    beside = 1.0 if W.any(axis=0).all() else 1 / (1 - TOTAL_SHARE)
    assert proposal.bound <= loss <= proposal.bound * beside * 1.001
    assert strategy.supports(product(workload.shape_of_domain, {}))  # the total
    assert not strategy.supports(marginal(workload.shape_of_domain, (0, 1)))
    with pytest.raises(UnsupportedWorkloadError, match="not measured"):
        strategy.basis.combined(marginal((strategy.classes.count,), (0,)))


def test_a_basis_is_not_gone_on_with_where_it_cannot_win(by_queries):
    _, workload, proposal = by_queries
    with pytest.raises(NoGainError) as refusal:
        cell_classes_candidate(
            Problem(workload, gram(workload), "gaussian", 0, least_loss=proposal.bound)
        )
    assert 0 < refusal.value.bound <= proposal.bound * 1.001


def test_the_audit_reads_the_same_rows_from_a_plan_of_a_basis(by_queries):
    spec, _, proposal = by_queries
    encoded = json.loads(json.dumps(proposal.strategy.encode()))
    plan = {"selections": [{"noise": "gaussian", "strategy": encoded}]}
    read = audit.dense_strategy(spec, plan, "gaussian")
    A = np.stack([read.column(cell) for cell in read.cells], axis=1)
    assert np.array_equal(A, dense_strategy(proposal.strategy.measurements))


@pytest.mark.parametrize(
    "damage",
    [
        lambda queries: queries.pop(),
        lambda queries: queries.__setitem__(0, 10**6),
        lambda queries: queries.__setitem__(0, -1),
        lambda queries: queries.__setitem__(0, queries[1]),
        lambda queries: queries.clear(),
    ],
    ids=["one fewer", "one there is not", "a negative one", "one twice", "none"],
)
def test_a_plan_of_another_basis_is_refused(by_queries, damage):
    _, workload, proposal = by_queries
    raw = json.loads(json.dumps(proposal.strategy.encode()))
    again = decode_strategy(raw, noise="gaussian", workload=workload)
    assert again.encode() == proposal.strategy.encode()
    damage(raw["queries"])
    with pytest.raises(SpecError):
        decode_strategy(raw, noise="gaussian", workload=workload)
