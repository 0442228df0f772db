"""Records that are replaced: how far they move the answers, and what noise that takes."""

import json
from fractions import Fraction
from functools import cache
from itertools import product as every

import numpy as np
import pytest
from dense import classes_of_cells, dense_strategy, random_strategies
from specs import unhashed, with_true_figures
from test_sensitivity import strategies_of
from town import GAUSSIAN_SPEC, SEARCHED, ok, plan_town, refused, spent

import dpquery.strategy.sensitivity as module
from dpquery.audit.dense_strategy import DenseRows, DenseStrategy
from dpquery.audit.planned_cases import furthest_move
from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.curator import LinearQuery
from dpquery.measurement.noise.calibration import (
    calibrated_noise,
    record_change,
    sound_change,
    steps,
)
from dpquery.operators.blocks import product
from dpquery.operators.cells import CellClassBlock
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Centered, Dense, Identity, total
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Privacy
from dpquery.strategy.sensitivity import block_norms, column_support, sensitivity
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.strategy import WeightedBlock

noises = pytest.mark.parametrize("noise", ["laplace", "gaussian"])
changes = pytest.mark.parametrize("change", ["moves", "moves within"])


def power_of(noise):
    return 1 if noise == "laplace" else 2


def lengths(A, power):
    """The largest column norm and the largest distance of two columns, by brute force."""
    distances = [(abs(A.T - column) ** power).sum(axis=1).max() for column in A.T]
    return (abs(A) ** power).sum(axis=0).max(), max(distances)


@cache
def drawn(seed, noise):
    """Strategies with the norm and the distance of their columns."""
    some = strategies_of(np.random.default_rng(seed), noise)
    return [(one, *lengths(dense_strategy(one.measurements), power_of(noise))) for one in some]


@noises
@changes
@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(k, marks=pytest.mark.nightly) for k in range(8, 20))]
)
def test_the_distance_of_two_columns_is_exact_and_for_laplace_noise_never_too_small(
    seed, noise, change, monkeypatch
):
    """Beyond the search every block takes its own bound."""
    exact = 0
    for strategy, norm, distance in drawn(seed, noise):
        least = max(norm, distance) if change == "moves" else distance or norm
        computed = sensitivity(strategy.measurements, noise, change)
        assert type(computed) is int
        if noise == "gaussian":
            assert computed == least
        assert least <= computed <= 2 * norm or noise == "gaussian"
        exact += computed == least
        with monkeypatch.context() as patch:
            patch.setattr(module, "SEARCHED_PAIRS", 0)
            computed = sensitivity(strategy.measurements, noise, change)
        norms = block_norms(strategy.measurements, noise)
        assert least <= computed <= power_of(noise) * 2 * sum(norms)
    assert exact >= 10


@pytest.mark.nightly(daily=r"AllRanges|Hierarchy|PIdentity \(5|BlockP")
@noises
@pytest.mark.parametrize(
    "factor",
    [
        Prefix(300),
        AllRanges(40),
        Hierarchy(300, (1, 10, 100), (3, 1 << 40, 7)),
        Centered(9),
        Dense(np.array([[1 << 40, -5, 3], [1 << 32, 1 << 32, 0], [1 - (1 << 60), 7, 1 << 59]])),
        PIdentity(np.array([1 << 40, 3, 9]), np.array([[1 << 33, 2, 0], [5, 5, 1 << 31]])),
        PIdentity(np.arange(5, 305), np.arange(600).reshape(2, 300)),
        BlockPIdentity(
            np.arange(5, 9), np.array([[1 << 40, 2, 0, 3]]), np.array([[7, 1 << 33]]), 2
        ),
    ],
    ids=lambda factor: f"{type(factor).__name__} {factor.shape}",
)
def test_long_and_wide_factors_are_exact(factor, noise):
    strategy = ProductStrategy("one", noise, (factor,))
    A, power = dense_strategy(strategy.measurements), power_of(noise)
    columns = A.T
    n = len(columns)
    picks = range(n) if n < 50 else [0, 1, 2, n // 2, n - 2, n - 1]
    least = max(sum(abs(v) ** power for v in columns[i] - columns[j]) for i in picks for j in picks)
    computed = sensitivity(strategy.measurements, noise, "moves within")
    assert computed >= least
    if n < 50 or not isinstance(factor, PIdentity):
        assert computed == least  # the ends of a line are furthest apart


@noises
def test_blocks_too_long_to_list_with_opposite_signs_are_far_apart(noise):
    n = 5000
    outer = np.where(np.arange(2) == 0, 1000, -1000)[None]
    factor = BlockPIdentity(np.ones(n, dtype=int), np.ones((1, n), dtype=int), outer, n // 2)
    strategy = ProductStrategy("long", noise, (factor,))
    (measurement,) = strategy.measurements
    least = measurement.weight ** power_of(noise) * (2000 ** power_of(noise) + 4)
    assert sensitivity([measurement], noise, "moves within") >= least


@noises
def test_factors_too_long_to_list_take_the_largest_norm_twice(noise):
    n = 5000
    inner, outer = np.arange(n)[None] % 2, np.array([[0, 1]])
    blocks = BlockPIdentity(np.ones(n, dtype=int), inner, outer, n // 2)
    for factor in (Prefix(n), Hierarchy(n, (1, 50), (2, 3)), Identity(n), blocks):
        strategy = ProductStrategy("long", noise, (factor,))
        (measurement,) = strategy.measurements
        norm = sensitivity([measurement], noise)
        distance = sensitivity([measurement], noise, "moves within")
        assert norm < distance <= 2 * norm
    signed = ProductStrategy("signed", "gaussian", (Centered(n),))
    assert sensitivity(signed.measurements, "gaussian", "moves within") == 2 * n**2 * (
        signed.measurements[0].weight ** 2
    )


@noises
def test_what_no_replaced_record_moves_takes_the_noise_of_one_that_leaves(noise):
    for shape, factors in (((4,), {}), ((1,), {0: Identity(1)}), ((3,), {0: total(3)})):
        measurements = [WeightedBlock(7, product(shape, factors))]
        assert sensitivity(measurements, noise, "moves within") == 7 ** power_of(noise)


def persons(strategy, rows):
    """Moves of the answers by a person with up to `rows` records, for one with up to as many."""
    A = dense_strategy(strategy.measurements)
    cells = [*range(A.shape[1]), None]
    column = [*A.T, np.zeros(len(A), dtype=object)]
    where = range(len(cells))
    for taken in every(where, repeat=rows):
        for put in every(where, repeat=rows):
            yield sum(column[k] for k in put) - sum(column[k] for k in taken)


@pytest.mark.nightly(daily=r"\[0")
@noises
@pytest.mark.parametrize("seed", range(3))
def test_no_person_of_several_rows_moves_the_answers_further(seed, noise):
    rng = np.random.default_rng(seed)
    privacy = Privacy(person="id", max_rows=2, neighbours="replace")
    budget = guarantee(noise, epsilon=Fraction(1), delta=Fraction(1, 10**6))
    for strategy, _ in random_strategies(rng, (2, 2), noise):
        if len(dense_strategy(strategy.measurements)) > 40:
            continue
        mechanism = calibrated_noise(strategy, privacy=privacy, guarantee=budget)
        moves = persons(strategy, 2)
        longest = max(sum(abs(v) ** power_of(noise) for v in move) for move in moves)
        assert longest <= mechanism.sensitivity << power_of(noise) * mechanism.shift


def test_rows_that_two_columns_touch_are_all_counted_on_the_grid():
    strategy = MarginalsStrategy("m", "gaussian", (3, 4), {(0,): 5, (0, 1): 7})
    assert column_support(strategy.measurements) == 2
    assert column_support(strategy.measurements, "moves") == 4
    assert column_support([WeightedBlock(3, product((5,), {}))], "moves") == 1


SPEC = """\
dataset: {id: survey}
privacy: {unit: row, neighbours: replace, delta: 1e-9}
budget: {epsilon: 4, delta: 1e-9}
domain: {age: {range: [0, 7]}, sex: {values: [F, M], other: count}}
workload:
  - {name: first, product: {age: prefix, sex: identity}}
"""


def parsed(text):
    return parse(text, name="spec", files={})


def test_rows_leave_where_a_column_drops_them_and_persons_always():
    assert record_change(parsed(SPEC)) == "moves within"
    assert record_change(parsed(SPEC.replace("other: count", "other: drop"))) == "moves"
    assert record_change(parsed(SPEC.replace("other: count", "other: show"))) == "moves within"
    person = SPEC.replace("unit: row", "unit: {person: id, max_rows: 2}")
    assert record_change(parsed(person)) == "moves"
    assert record_change(parsed(SPEC.replace("replace", "add-remove"))) == "enters"


def test_a_plan_cannot_claim_that_records_move_less_than_they_do():
    dropped = parsed(SPEC.replace("other: count", "other: drop"))
    assert sound_change("moves", dropped) == "moves"
    assert sound_change("enters", dropped) == "enters"  # twice as many records: more noise
    with pytest.raises(SpecError, match="other neighbours"):
        sound_change("moves within", dropped)
    with pytest.raises(SpecError):
        sound_change("moves", parsed(SPEC.replace("replace", "add-remove")))
    with pytest.raises(ValueError, match="added or removed"):
        steps(Privacy(), "moves")


@noises
def test_plans_that_do_not_say_it_count_a_replaced_record_twice(noise):
    strategy = ProductStrategy("cells", noise, (Identity(5),))
    budget = guarantee(noise, epsilon=Fraction(1), delta=Fraction(1, 10**6))
    privacy = Privacy(person="id", max_rows=3, neighbours="replace")
    older = calibrated_noise(strategy, privacy=privacy, guarantee=budget, change="enters")
    column = strategy.measurements[0].weight
    assert older.sensitivity == (6 * column) ** power_of(noise)


@noises
@pytest.mark.parametrize("seed", range(6))
def test_the_audit_finds_the_same_distance_by_itself(seed, noise):
    rng = np.random.default_rng(seed)
    shape = (3, 2)
    for strategy, _ in random_strategies(rng, shape, noise):
        rows = tuple(audited(measurement) for measurement in strategy.measurements)
        dense = DenseStrategy(noise, shape, [[0, 1, 2], [0, 1]], rows)
        distance, (first, second) = furthest_move(dense, power_of(noise))
        computed = sensitivity(strategy.measurements, noise, "moves within")
        assert computed == (distance or sensitivity(strategy.measurements, noise))
        between = abs(dense.column(first) - dense.column(second)) ** power_of(noise)
        if noise == "gaussian":
            assert int(between.sum()) == distance


def audited(measurement):
    block, class_of = measurement.block, None
    if isinstance(block, CellClassBlock):
        cells = every(*(range(n) for n in block.shape_of_domain))
        codes = classes_of_cells(block.classes)
        class_of = {cell: (code,) for cell, code in zip(cells, codes, strict=True)}
        block = block.inner
    matrices = tuple(factor.dense().astype(object) for factor in block.factors)
    at_least = None if block.is_product else block.at_least
    return DenseRows(
        measurement.weight, block.attributes, matrices, block.counted, at_least, class_of
    )


KEYS = {
    "laplace": "d6f14180c30fbc50a600159d7caabdba7a7491e47d62f518f337b7109f2ce9d9",
    "gaussian": "cf11fdcc78760e2f19de6e77282462852f64cb64e44bd4965a056e8e1e90f19b",
}
"""Of releases of cells at epsilon 1 and delta 1e-9, by the version before records moved."""


@noises
def test_what_was_released_before_keeps_its_key_and_other_noise_has_another(noise):
    spec = parsed(SPEC)
    compiled = compile_spec(spec)
    cells = tuple(Identity(n) for n in compiled.workload.shape_of_domain)
    strategy = ProductStrategy("cells", noise, cells)
    budget = guarantee(noise, epsilon=Fraction(1), delta=Fraction(1, 10**9))

    def query(change):
        mechanism = calibrated_noise(
            strategy, privacy=spec.privacy, guarantee=budget, change=change
        )
        return LinearQuery(spec, compiled, strategy, mechanism)

    older, newer = query("enters"), query("moves within")
    assert older.key == KEYS[noise]
    # Laplace noise on cells is what it was, and so one release with it.
    assert (newer.key == older.key) == (newer.mechanism.scale == older.mechanism.scale)
    assert (newer.key == older.key) == (noise == "laplace")


@pytest.mark.nightly
def test_a_release_of_a_plan_of_before_is_free_and_answers_as_it_did(own_folder):
    plan_town(own_folder, GAUSSIAN_SPEC, *SEARCHED)
    plan = unhashed((own_folder / "dpquery.plan").read_text())
    assert {selection["record_change"] for selection in plan["selections"]} == {"moves"}
    for selection in plan["selections"]:
        del selection["record_change"]
    (own_folder / "old.plan").write_text(json.dumps(with_true_figures(plan)))
    older = ("release", "data.csv", "--epsilon", "1", "--noise", "gaussian", "--plan", "old.plan")
    ok(*older, "--out", "first")
    before = spent()
    ok(*older, "--out", "again")
    assert spent() == before
    ok("release", "data.csv", "--epsilon", "1", "--noise", "gaussian", "--out", "moved")
    assert spent() > before
    scale = {
        folder: json.loads((own_folder / folder / "release.json").read_text())["noise"]["scale"]
        for folder in ("first", "again", "moved")
    }
    assert scale["first"] == scale["again"] > 1.2 * scale["moved"]
    for folder in ("first", "moved"):
        ok("answer", folder, "workload.yaml", "--out", f"{folder}-later")


def test_a_plan_that_claims_what_its_spec_forbids_is_refused(own_folder):
    plan_town(own_folder, GAUSSIAN_SPEC)
    path = own_folder / "dpquery.plan"
    plan = unhashed(path.read_text())
    for selection in plan["selections"]:
        selection["record_change"] = "moves within"
    path.write_text(json.dumps(with_true_figures(plan)))
    before = spent()
    assert "neighbours" in refused("release", "data.csv", "--epsilon", "1", code=2)
    assert spent() == before


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("tops", [1, 2])
def test_a_tree_of_more_codes_than_are_listed_overlaps_no_more_than_its_rows(
    monkeypatch, tops, power
):
    above = np.arange(4) // 2 if tops == 2 else np.zeros(4, dtype=int)
    tree = Tree([above], [np.full(4, 2), np.full(tops, 3)])
    exact = module._overlaps(tree, power).least
    monkeypatch.setattr(module, "LISTED_CODES", 1)
    assert module._overlaps(tree, power).least <= exact
