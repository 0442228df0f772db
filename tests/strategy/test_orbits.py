"""OPT_S: interchangeable codes, the optimum on their orbits, and rows that treat them alike."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from dense import dense_strategy, dense_workload, random_axis
from specs import put_true_figures, unhashed
from town import ok, plan_town, refused

import dpquery.audit.dense_strategy as audit
import dpquery.strategy.search.candidates as orbits_search
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.operators.blocks import marginal
from dpquery.operators.cells import BETWEEN, OrbitRows
from dpquery.operators.compile import compile_spec
from dpquery.operators.gram import gram
from dpquery.plan_file.plan import decode_strategy
from dpquery.spec.parsing.read import parse
from dpquery.strategy.algebra.orbits import orbits_of
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.optimize.fixed_point import cells_optimum
from dpquery.strategy.optimize.opt_orbits import component_gram, components, orbits_optimum
from dpquery.strategy.search.candidates import NoGainError, Problem, orbits_candidate
from dpquery.strategy.search.select import select
from dpquery.strategy.sensitivity import sensitivity

AREAS = """\
dataset: {id: town}
privacy: {unit: row, delta: 1e-6}
budget: {epsilon: 4, delta: 1e-6}
other: drop
domain: {age: {range: [0, 4]}, sex: {values: [F, M]}, region: {range: [0, 5]}}
workload:
  - {name: cells, product: {age: identity, region: {groups: {a: [[0, 2]], b: [[3, 4]], c: [5]}}}}
  - {name: wide, product: {age: {groups: {young: [[0, 1]]}}, region: identity, sex: identity}}
  - {name: all, product: {sex: identity+total}}
"""
THRESHOLDS = (
    AREAS
    + """\
  - {name: any, any_of: {age: {between: [0, 1]}, region: {in: [0, 5]}, sex: {is: F}}, weight: 3}
  - {name: two, where: {sex: {is: M}}, threshold: {r: 1, of: [age, region],
     targets: {age: {is: 0}, region: {between: [3, 4]}}}}
"""
)
LARGE = """\
dataset: {id: areas}
privacy: {unit: row, delta: 1e-9}
budget: {epsilon: 4, delta: 1e-9}
other: drop
domain: {area: {range: [0, 29]}, age: {range: [0, 39]}, sex: {values: [F, M]}}
workload:
  - {name: areas, product: {area: identity, sex: identity+total}}
  - {name: ages, product: {area: {groups: {n: [[0, 9]], s: [[10, 29]]}}, age: identity}}
  - {name: bands, product: {area: identity, age: {groups: {a: [[0, 4]], b: [[5, 39]]}}}}
"""


def workload_of(text):
    return compile_spec(parse(text, name="spec.yaml", files={})).workload


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(orbits_search, "FEW_CELLS", 1)


def problem(workload, noise="gaussian", **known):
    return Problem(workload, gram(workload), noise, 0, **known)


@pytest.fixture(params=[AREAS, THRESHOLDS], ids=["products", "thresholds"])
def areas(small, request):
    workload = workload_of(request.param)
    return workload, orbits_candidate(problem(workload))


@pytest.mark.parametrize("text", [AREAS, THRESHOLDS])
def test_the_components_are_the_gram_in_another_basis(text):
    V = gram(workload_of(text))
    orbits = [orbits_of(matrices) for matrices in V.matrices]
    values = []
    for b in components(V, orbits):
        inside = [
            axis.sizes[orbit] - 1 for axis, orbit in zip(orbits, b, strict=True) if orbit != BETWEEN
        ]
        values += np.linalg.eigvalsh(component_gram(V, orbits, b)).tolist() * math.prod(inside)
    dense = np.linalg.eigvalsh(V.dense())
    values = np.sort(np.array(values + [0.0] * (len(dense) - len(values))))
    assert values == pytest.approx(dense, abs=1e-9)


def test_the_optimum_over_orbits_is_that_over_cells():
    V = gram(workload_of(AREAS))
    orbits = [orbits_of(matrices) for matrices in V.matrices]
    found, dense = orbits_optimum(V, orbits), cells_optimum(V.dense())
    assert found.loss <= found.bound * (1 + 3e-4)
    assert dense.bound * (1 - 1e-9) <= found.loss <= dense.loss * (1 + 3e-4)
    assert found.bound <= dense.loss


def test_the_integer_strategy_has_the_error_that_was_promised(areas):
    workload, proposal = areas
    A = dense_strategy(proposal.strategy.measurements)
    W, weights = dense_workload(workload)
    squared = int((A**2).sum(axis=0).max())
    assert sensitivity(proposal.strategy.measurements, "gaussian") == squared
    X = (A.astype(float).T @ A.astype(float)) / squared
    loss = np.trace(np.linalg.pinv(X, hermitian=True, rcond=1e-12) @ (W.T * weights) @ W)
    error = expected_error(proposal.strategy, workload)
    assert error.weighted_rmse**2 * weights.sum() == pytest.approx(loss, rel=1e-6)
    assert proposal.bound <= loss <= proposal.bound * (1 + 5e-4)
    assert proposal.converged


def test_codes_of_an_orbit_are_measured_alike(areas):
    _, proposal = areas
    norms = (dense_strategy(proposal.strategy.measurements) ** 2).sum(axis=0)
    rows = proposal.strategy.rows
    place = np.stack(np.meshgrid(*(axis.place for axis in rows.axes), indexing="ij"), axis=-1)
    for orbit in product(*(range(axis.count) for axis in rows.axes)):
        alike = norms.reshape(rows.sizes)[(place == orbit).all(axis=-1)]
        assert len(set(alike.tolist())) == 1


def test_what_was_not_measured_has_no_answer(areas):
    workload, proposal = areas
    cells = marginal(workload.shape_of_domain, (0, 1, 2))
    assert not proposal.strategy.supports(cells)
    with pytest.raises(UnsupportedWorkloadError):
        proposal.strategy.power_sums(cells, position=None, order=2)


def test_the_longest_column_is_no_longer_than_promised(areas):
    squared = sensitivity(areas[1].strategy.measurements, "gaussian")
    assert squared <= (1 << 2 * orbits_search.ORBIT_BITS) * (1 + 1e-6)


def test_wide_entries_have_exact_norms():
    rng = np.random.default_rng(3)
    axes = [random_axis(rng, 5), random_axis(rng, 6)]
    m = axes[0].count * axes[1].count
    core = rng.integers(-(1 << 40), 1 << 40, (m, m))
    rows = OrbitRows(axes, {(BETWEEN, BETWEEN): core})
    dense = np.array([[int(v) for v in row] for row in rows.dense()], dtype=object)
    assert rows.exact_norms(2) == (dense**2).sum(axis=0).tolist()
    assert rows.exact_norms(1) == abs(dense).sum(axis=0).tolist()


def test_what_cannot_be_better_ends_with_a_bound(small):
    workload = workload_of(AREAS)
    with pytest.raises(NoGainError) as refusal:
        orbits_candidate(problem(workload, least_loss=orbits_candidate(problem(workload)).bound))
    assert refusal.value.bound > 0


@pytest.mark.parametrize(
    ("text", "noise", "reason"),
    [
        (AREAS, "laplace", "Gaussian noise only"),
        (AREAS.replace("age: identity, region: {groups: {a: [[0, 2]], b: [[3, 4]], c: [5]}}",
                       "age: prefix, region: prefix"
         ).replace("age: {groups: {young: [[0, 1]]}}, region: identity, sex: identity",
                   "age: prefix, region: prefix").replace("sex: identity+total", "age: prefix"),
         "gaussian", "too few codes are interchangeable"),
    ],
)  # fmt: skip
def test_what_it_is_not_for_is_said(small, text, noise, reason):
    with pytest.raises(UnsupportedWorkloadError, match=reason):
        orbits_candidate(problem(workload_of(text), noise))


def test_plan_finds_it_where_cells_are_many_and_it_is_proven_optimal():
    workload = workload_of(LARGE)
    selection = select(workload, noises=("gaussian",))["gaussian"]
    assert selection.best.name == "OPT_S"
    ratio = selection.best.error.rmse / math.sqrt(selection.bound.loss / workload.shape[0])
    assert 1 - 1e-9 <= ratio <= 1.001


def encoded_areas(areas):
    return json.loads(json.dumps(areas[1].strategy.encode()))


HOSTILE = {
    "no attributes": lambda raw: raw.update(attributes=[]),
    "an attribute twice": lambda raw: raw["attributes"].__setitem__(1, raw["attributes"][0]),
    "an attribute there is not": lambda raw: raw["attributes"].__setitem__(-1, 99),
    "orbits of fewer codes": lambda raw: raw["places"][0].pop(),
    "orbits in another order": lambda raw: raw["places"].__setitem__(0, [1, 1, 0, 0, 0]),
    "an orbit without codes": lambda raw: raw["places"].__setitem__(0, [0, 0, 2, 2, 2]),
    "a negative orbit": lambda raw: raw["places"].__setitem__(0, [-1, -1, 0, 0, 0]),
    "places of fewer attributes": lambda raw: raw["places"].pop(),
    "a component of no orbit": lambda raw: raw["cores"][0][0].__setitem__(0, 7),
    "a component of fewer attributes": lambda raw: raw["cores"][0][0].pop(),
    "a component twice": lambda raw: raw["cores"].append(raw["cores"][0]),
    "no cores": lambda raw: raw.update(cores=[]),
    "a core of another size": lambda raw: raw["cores"][0].__setitem__(1, raw["cores"][-1][1]),
    "a component that is not measured": lambda raw: raw["cores"].pop(),
    "a huge core": lambda raw: raw["cores"][0][1].update(shape=[2**30, 2**30]),
}


@pytest.mark.parametrize("damage", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_plan_of_orbits_is_refused(areas, damage):
    workload, raw = areas[0], encoded_areas(areas)
    decode_strategy(raw, noise="gaussian", workload=workload)
    damage(raw)
    with pytest.raises(SpecError):
        decode_strategy(raw, noise="gaussian", workload=workload)


@pytest.mark.parametrize("near", [0, 1], ids=["singular", "ill-conditioned"])
def test_a_core_that_cannot_be_inverted_is_refused(areas, near):
    workload, proposal = areas
    rows = proposal.strategy.rows
    wide = [b for b, core in rows.cores.items() if len(core) > 1]
    for b in wide[: 1 if near else None]:
        core = np.full_like(rows.cores[b], 1 << 36) + near * np.eye(len(rows.cores[b]), dtype=int)
        raw = replace(proposal.strategy, rows=OrbitRows(rows.axes, rows.cores | {b: core}))
        text = json.loads(json.dumps(raw.encode()))
        with pytest.raises(SpecError):
            decode_strategy(text, noise="gaussian", workload=workload)


def test_the_audit_reads_the_same_rows_from_a_plan_of_orbits(areas):
    spec = parse(AREAS, name="spec.yaml", files={})
    plan = {"selections": [{"noise": "gaussian", "strategy": encoded_areas(areas)}]}
    read = audit.dense_strategy(spec, plan, "gaussian")
    A = np.stack([read.column(cell) for cell in read.cells], axis=1)
    assert np.array_equal(A, dense_strategy(areas[1].strategy.measurements))


def test_a_release_of_orbits_has_its_answers_and_answers_again(own_folder, areas):
    plan_town(own_folder, AREAS)
    plan = unhashed(Path("dpquery.plan").read_text())
    (selection,) = (s for s in plan["selections"] if s["noise"] == "gaussian")
    selection["strategy"] = encoded_areas(areas)
    Path("dpquery.plan").write_text(json.dumps(plan))
    put_true_figures()
    ok("release", "data.csv", "--epsilon", "1", "--noise", "gaussian")
    totals = pq.read_table("release/all.parquet")["estimate"].to_numpy()
    assert totals[0] + totals[1] == pytest.approx(totals[2], abs=1)
    Path("more.yaml").write_text("workload:\n  - {name: ages, product: {age: identity}}\n")
    ok("answer", "release", "more.yaml")
    assert (pq.read_table("answers/ages.parquet")["std_error"].to_numpy() > 0).all()
    Path("pairs.yaml").write_text(
        "workload:\n  - {name: pairs, product: {age: identity, sex: identity, region: identity}}\n"
    )
    refused("answer", "release", "pairs.yaml", "--out", "pairs", code=2)
