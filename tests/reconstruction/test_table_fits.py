"""Fits of whole tables: against dense optima, and what every fit has to keep."""

import dataclasses
import json
import math
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from dense import random_strategies
from town import contents, ok, refused, spent

import dpquery.reconstruction.checks as probes_module
import dpquery.strategy.algebra.joint_system as joint_module
from dpquery.measurement.rounds.run import MeasuredRun, Round
from dpquery.measurement.rounds.tables import CandidateTables, TableRounds
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Dense, Identity, total
from dpquery.operators.inverses import inverse_gram
from dpquery.operators.p_identity import PIdentity
from dpquery.operators.ranges import Prefix
from dpquery.public_chance import PublicChance, public_seed
from dpquery.reconstruction.adaptive_fits import AdaptiveFit, merged_components, released_rows
from dpquery.reconstruction.checks import flaw_of
from dpquery.reconstruction.components import StackedSets, residual
from dpquery.reconstruction.relaxed.fits import FittedRows
from dpquery.reconstruction.relaxed.misfit import (
    MarginalTables,
    MeasuredTable,
    WholeTables,
    merged_tables,
)
from dpquery.releases.folder.synthetic import rounded_records
from dpquery.strategy.algebra.joint_system import joint_system
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import split_by

SHAPE = (3, 4, 2)
RECORDS = 400.0


def truth():
    return np.random.default_rng(0).dirichlet(np.full(24, 0.3)).reshape(SHAPE) * RECORDS


def margin_of(x, attributes):
    return x.sum(axis=tuple(i for i in range(x.ndim) if i not in attributes))


def measure(x, sets, std, seed=1):
    chance = np.random.default_rng(seed)
    return [
        MeasuredTable(s, margin_of(x, s) + chance.normal(0, std, margin_of(x, s).shape), std**2)
        for s in sets
    ]


ONES = [(0,), (1,), (2,)]
PAIRS = list(combinations(range(3), 2))


def test_measurements_of_a_table_are_merged_by_precision():
    first = MeasuredTable((0,), np.array([4.0, 0.0, 1.0]), 1.0)
    second = MeasuredTable((0,), np.array([0.0, 4.0, 1.0]), 1 / 3)
    (merged,) = merged_tables([first, second])
    assert merged.values == pytest.approx([1.0, 3.0, 1.0])
    assert merged.variance == pytest.approx(1 / 4)


def test_tables_compared_together_are_compared_as_one_by_one():
    shape = (3, 4, 3, 4, 3, 2)
    sets = [(0,), (2,), (4,), (5,), (0, 1), (2, 3), (3, 4), (0, 3), (1, 5), (0, 1, 2)]
    rng = np.random.default_rng(2)
    blocks = tuple(marginal(shape, each) for each in sets)
    noisy = tuple(rng.random(b.row_shape).astype(np.float32) for b in blocks)
    stds = tuple(0.1 + rng.random(len(sets)))
    workload = Workload(shape, blocks, (1.0,) * len(sets))
    masses = rng.random((sum(shape), 7)).astype(np.float32)
    together = MarginalTables(workload, noisy, stds)
    assert {len(stack.std) for stack in together._stacks} == {3}
    got, twin = together.misfit(masses), WholeTables(workload, noisy, stds).misfit(masses)
    assert got.error == pytest.approx(twin.error, rel=1e-5)
    assert got.worst == pytest.approx(twin.worst, rel=1e-5)
    assert got.gradient == pytest.approx(twin.gradient, rel=1e-4, abs=1e-4)


def test_a_margin_has_the_noise_of_the_cells_that_it_adds_up():
    table = MeasuredTable((0, 1), np.arange(12.0).reshape(3, 4), 2.0)
    assert table.margin((1,)).values == pytest.approx(np.arange(12.0).reshape(3, 4).sum(axis=0))
    assert table.margin((1,)).variance == 6.0


@pytest.mark.parametrize("std", [0.5, 30.0, 1e4])
def test_a_model_keeps_the_total_and_has_no_negative_cell(std):
    model = FittedRows(SHAPE, measure(truth(), [*ONES, (0, 1), (1, 2)], std), RECORDS)
    for attributes in [(), *ONES, *PAIRS, (0, 1, 2)]:
        table = model.table(attributes)
        assert table.shape == tuple(SHAPE[i] for i in attributes)
        assert table.min() >= 0
        assert table.sum() == pytest.approx(RECORDS)


def test_exact_tables_are_met_and_more_measurements_move_the_model_there():
    x = truth()
    before = FittedRows(SHAPE, measure(x, ONES, 0.5), RECORDS)
    after = FittedRows(SHAPE, measure(x, ONES + PAIRS, 0.5), RECORDS, before)
    for pair in PAIRS:
        assert np.abs(after.table(pair) - margin_of(x, pair)).max() < 2.0
    assert max(np.abs(before.table(p) - margin_of(x, p)).max() for p in PAIRS) > 10.0


def test_rows_start_at_the_one_way_tables():
    x = truth()
    model = FittedRows(SHAPE, measure(x, ONES, 0.5), RECORDS)
    far = FittedRows(SHAPE, [], RECORDS)
    assert model.steps < 20  # rows that start at even classes take 59
    assert np.abs(far.table((1,)) - RECORDS / 4).max() < RECORDS / 20


def test_the_error_weighs_every_table_by_its_precision_and_its_gradient_is_its_slope():
    x, stds = truth(), (4.0, 8.0, 2.0)
    noisy = [measure(x, [p], std)[0].values for p, std in zip(PAIRS, stds, strict=True)]
    blocks = tuple(marginal(SHAPE, p) for p in PAIRS)
    tables = WholeTables(Workload(SHAPE, blocks, (1.0,) * 3), tuple(noisy), stds)
    chance = np.random.default_rng(3)
    masses = np.concatenate([chance.dirichlet(np.ones(n), 5).T for n in SHAPE])
    starts = np.cumsum([0, *SHAPE])

    def dense(masses):
        each = [masses[a:b] for a, b in pairwise(starts)]
        answers = [each[i] @ each[j].T / masses.shape[1] for i, j in PAIRS]
        parts = [
            np.sum((answer - y) ** 2) / std**2
            for answer, y, std in zip(answers, noisy, stds, strict=True)
        ]
        return min(stds) ** 2 * sum(parts)

    misfit = tables.misfit(masses)
    assert misfit.error == pytest.approx(dense(masses))
    assert tables.target.noise == pytest.approx(min(stds) ** 2 * sum(y.size for y in noisy))
    for place in np.ndindex(masses.shape):
        moved = np.zeros_like(masses)
        moved[place] = 1e-4
        slope = (dense(masses + moved) - dense(masses - moved)) / 2e-4
        assert misfit.gradient[place] / masses.shape[1] == pytest.approx(slope, abs=1e-4)


@pytest.mark.parametrize(
    ("tables", "total"), [([MeasuredTable((0,), np.ones(4), 1.0)], 5.0), ([], 0.0)]
)
def test_a_table_of_other_classes_and_no_records_are_refused(tables, total):
    with pytest.raises(ValueError, match=r"a table of|no records"):
        FittedRows(SHAPE, tables, total)


@pytest.mark.parametrize("variance", [0.0, math.inf, math.nan])
def test_noise_without_a_variance_is_refused(variance):
    with pytest.raises(ValueError, match="variance"):
        MeasuredTable((0,), np.ones(3), variance)


def test_merged_components_are_those_of_dense_weighted_least_squares():
    sets, stds = [(0,), (1, 2), (0, 1), (0, 1, 2)], [2.0, 3.0, 7.0, 4.0]
    measured = [measure(truth(), [s], std)[0] for s, std in zip(sets, stds, strict=True)]
    cells = np.eye(24).reshape(24, *SHAPE)
    columns = [
        np.concatenate([margin_of(cell, t.attributes).ravel() / t.variance**0.5 for t in measured])
        for cell in cells
    ]
    noisy = np.concatenate([t.values.ravel() / t.variance**0.5 for t in measured])
    design = np.stack(columns, axis=1)
    estimate = np.linalg.solve(design.T @ design, design.T @ noisy).reshape(SHAPE)
    covariance = np.linalg.inv(design.T @ design)
    stacked = StackedSets(SHAPE, sets)
    values, noise = merged_components(stacked, measured)
    for subset, place in stacked.places.items():
        sizes = stacked.sizes_of(subset)
        component = residual(margin_of(estimate, subset)[None])[0]
        assert values[sizes][place] == pytest.approx(component)
        maps = np.stack([residual(margin_of(cell, subset)[None])[0].ravel() for cell in cells], 1)
        freedom = max(math.prod(n - 1 for n in sizes), 1)
        variance = np.trace(maps @ covariance @ maps.T) / freedom
        assert noise[sizes][place] == pytest.approx(variance)


def test_thresholds_and_groups_are_answered_as_the_table_of_their_attributes_says():
    model = FittedRows(SHAPE, measure(truth(), ONES + PAIRS, 3.0), RECORDS)
    whole = model.table((0, 1, 2))
    threshold = Block(
        SHAPE, (0, 1, 2), tuple(map(Identity, SHAPE)), at_least=2, counted=(True,) * 3
    )
    groups = product(SHAPE, {0: Prefix(3), 1: Identity(4)})
    for block in (threshold, groups):
        dense = whole.sum(axis=2) if block is groups else whole
        assert model.answer(block) == pytest.approx(block.apply(dense), rel=1e-3, abs=0.5)
        assert model.answer(block).shape == block.row_shape


def test_records_drawn_from_a_model_keep_its_measured_tables():
    model = FittedRows(SHAPE, measure(truth(), ONES + PAIRS, 1.0), RECORDS)
    classes = [np.arange(n) for n in SHAPE]
    codes = rounded_records(model.rows, classes, records=20_000, chance=PublicChance(0, 0))
    for pair in PAIRS:
        sizes = [SHAPE[i] for i in pair]
        places = np.ravel_multi_index([codes[i] for i in pair], sizes)
        counts = np.bincount(places, minlength=math.prod(sizes)).reshape(sizes) * (RECORDS / 20_000)
        assert np.abs(counts - model.table(pair)).max() < 6.0


def misfit(model, measured):
    """Return the weighted squared error against measured tables, in noise variances a cell."""
    gaps = [(model.table(t.attributes) - t.values) ** 2 / t.variance for t in measured]
    return float(np.mean(np.concatenate([gap.ravel() for gap in gaps])))


def test_rows_to_select_by_fit_closer_than_noise_explains():
    measured = measure(truth(), ONES + PAIRS, 8.0)
    plain = FittedRows(SHAPE, measured, RECORDS)
    closer = FittedRows(SHAPE, measured, RECORDS, closer=True)
    assert misfit(closer, measured) < 0.8 * misfit(plain, measured)
    assert 0.8 < misfit(plain, measured) < 1.1  # it stops where noise explains what is left
    assert closer.steps <= 200


def test_a_run_selects_by_close_rows_and_releases_them_beside_rows_fitted_afresh():
    ones, pairs = measure(truth(), ONES, 8.0), measure(truth(), PAIRS, 8.0, seed=2)
    sizes = tuple(table.values.size for table in ones + pairs)
    candidates = CandidateTables(tuple(ONES + PAIRS), sizes, (1,) * 6)
    workload = Workload(SHAPE, (marginal(SHAPE, (0,)),), (1.0,))
    tables = TableRounds(workload, None, 1, False, None, None, candidates)
    rounds = tuple(
        Round(np.array([3 + k]), 0, table.values.ravel(), 8.0, spent=None)
        for k, table in enumerate(pairs)
    )
    first = MeasuredRun(RECORDS, 0.0, tuple(table.values for table in ones), 8.0)
    whole, seen = replace(first, rounds=rounds), AdaptiveFit(tables, first)
    for measured in rounds[:-1]:
        seen.add(measured)
    made = released_rows(tables, whole, seen)
    afresh = FittedRows(SHAPE, ones + pairs, RECORDS)
    assert misfit(seen.model, ones + pairs) < 0.8 * misfit(afresh, ones + pairs)
    mean = (afresh.table((0, 1, 2)) + seen.model.table((0, 1, 2))) / 2
    answers = made.answer(marginal(SHAPE, (0, 1, 2))) * RECORDS
    np.testing.assert_allclose(answers.reshape(SHAPE), mean, rtol=1e-4, atol=1e-3)
    short = AdaptiveFit(tables, first)  # as where the run was cut short and goes on
    for other in (None, short):
        assert np.array_equal(released_rows(tables, whole, other).values, made.values)
    old = released_rows(replace(tables, edition=1), whole, None)
    assert np.array_equal(old.values, afresh.rows.values)


# Strategies that do not give the answers they promise: plan drops them, release refuses them.


@pytest.mark.nightly(daily="10")
@pytest.mark.parametrize("room", [0, 10])
def test_values_that_are_not_kept_come_again_the_same(room, monkeypatch):
    monkeypatch.setattr(probes_module, "ON_DEMAND", 0)
    monkeypatch.setattr(probes_module, "KEPT_VALUES", room)
    shape = (3, 4, 2)
    for strategy, workload in list(random_strategies(np.random.default_rng(1), shape, "gaussian"))[
        ::3
    ]:
        probes = probes_module.Probes(strategy)
        first, second = probes.noise(3.0), probes.noise(3.0)
        kept = [first[place].copy() for place in range(len(first))]
        assert all(np.array_equal(first[place], kept[place]) for place in range(len(first)))
        drawn = [*kept, *second]
        assert len({float(values[0]) for values in drawn}) == len(drawn)
        items = [range(place, place + 1) for place in range(len(workload.blocks))]
        assert flaw_of(strategy, workload, items=items, noise_std=1e4) == "", strategy.name


def test_noise_drawn_on_demand_is_as_wide_as_it_should(monkeypatch):
    monkeypatch.setattr(probes_module, "ON_DEMAND", 0)
    strategy = ProductStrategy("a", "gaussian", (Identity(100), Identity(1000)))
    (noise,) = probes_module.Probes(strategy).noise(3.0)
    assert noise.size == 100_000
    assert noise.std() == pytest.approx(3, rel=0.02)


def union():
    """Two products with different factors, and a workload that both serve."""
    rows = np.random.default_rng(3).integers(0, 2**13, (2, 6))
    narrow = PIdentity(2**16 - rows.sum(axis=0), rows)
    second = Dense(np.tri(6, dtype=int) + np.eye(6, dtype=int))
    parts = (
        ProductStrategy("a", "laplace", (narrow, Identity(3))),
        ProductStrategy("b", "laplace", (second, total(3))),
    )
    blocks = (product((6, 3), {0: Identity(6), 1: Identity(3)}), product((6, 3), {0: Identity(6)}))
    workload = Workload((6, 3), blocks, (1.0, 1.0))
    return UnionStrategy("u", "laplace", parts, (1, 9_000), ((0,), (1,))), workload


def flaw_of_union():
    strategy, workload = union()
    return flaw_of(strategy, workload, items=(range(1), range(1, 2)), noise_std=1e6)


def test_answers_that_are_off_are_seen(monkeypatch):
    assert flaw_of_union() == ""
    project = joint_module.JointSystem.project

    def off(self, answers):
        return tuple(1.0001 * y for y in project(self, answers))

    monkeypatch.setattr(joint_module.JointSystem, "project", off)
    assert "an answer to exact counts is off by" in flaw_of_union()


@pytest.mark.parametrize("factor", [0.4, 0.7, 1.6, 4.0])
def test_standard_errors_that_are_misprinted_are_seen(factor, monkeypatch):
    variances = joint_module.JointSystem.variances
    monkeypatch.setattr(
        joint_module.JointSystem, "variances", lambda self, b: factor**-2 * variances(self, b)
    )
    flaw = flaw_of_union()
    assert "as much as their standard errors say" in flaw or "standard errors off" in flaw


def items_over(n, seed):
    """One attribute measured with unequal weights, and an item for each of n ranges of it."""
    rng = np.random.default_rng(seed)
    size = max(10, n // 10)
    ends = np.sort(rng.integers(0, size, (n, 2)), axis=1)
    codes = np.arange(size)
    rows = ((ends[:, :1] <= codes) & (codes <= ends[:, 1:])).astype(int)
    blocks = tuple(
        product((size, 4), {0: Dense(row[None]), **({1: Identity(4)} if k % 3 else {})})
        for k, row in enumerate(rows)
    )
    measured = Dense(np.tri(size, dtype=int) + np.diag(rng.integers(1, 10, size)))
    strategy = ProductStrategy("a", "gaussian", (measured, Identity(4)))
    return strategy, Workload((size, 4), blocks, (1.0,) * n)


def flaws_of_items(n, seeds):
    """Count the trials that fail; each draws noise of its own, which goes with the seed."""
    found = 0
    with pytest.MonkeyPatch.context() as patch:
        for seed in seeds:
            patch.setattr(probes_module, "public_seed", lambda of, k=seed: public_seed((of, k)))
            strategy, workload = items_over(n, seed)
            items = [range(k, k + 1) for k in range(n)]
            found += flaw_of(strategy, workload, items=items, noise_std=1e4) != ""
    return found


FEW = [(10, 10), (300, 1)]
MANY = [(10, 1000), (100, 300), (1000, 40), (3000, 10)]
CASES = [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY)]


@pytest.mark.nightly(daily="10-10")
@pytest.mark.parametrize(("n", "trials"), CASES)
def test_sound_strategies_pass_at_any_number_of_items(n, trials):
    assert flaws_of_items(n, range(trials)) == 0


@pytest.mark.nightly(daily=r"10-10-1\.3")
@pytest.mark.parametrize("factor", [0.75, 1.3])
@pytest.mark.parametrize(("n", "trials"), CASES)
def test_noise_that_is_not_what_is_stated_is_seen(n, trials, factor, monkeypatch):
    noise = probes_module.Probes.noise
    monkeypatch.setattr(probes_module.Probes, "noise", lambda self, std: noise(self, factor * std))
    trials = min(trials, 100)
    assert flaws_of_items(n, range(trials)) >= 0.99 * trials


@pytest.mark.nightly(daily="10-10")
@pytest.mark.parametrize(("n", "trials"), CASES)
def test_a_measured_row_in_ten_that_is_three_times_as_noisy_is_seen(n, trials, monkeypatch):
    noise = probes_module.Probes.noise

    def uneven(self, std):
        (values,) = noise(self, std)
        values[::10] *= 3
        return [values]

    monkeypatch.setattr(probes_module.Probes, "noise", uneven)
    trials = min(trials, 100)
    assert flaws_of_items(n, range(trials)) >= 0.99 * trials


def test_what_is_no_number_is_seen(monkeypatch):
    monkeypatch.setattr(
        joint_module.JointSystem,
        "project",
        lambda self, y: tuple(s.R[:, 0] * math.nan for s in self.stacks),
    )
    assert "floating-point numbers" in flaw_of_union()


def test_a_triangle_that_cannot_be_solved_is_no_solution():
    R = np.array([[[1.0, 1.0], [0.0, 0.0]]])
    with np.errstate(all="ignore"), pytest.raises(np.linalg.LinAlgError):
        joint_module.solved_rows(R, np.ones((1, 2)))


def test_a_factor_without_full_rank_in_floats_is_refused():
    high = 1 << 52
    almost = Dense(np.array([[high, high], [high, high + 1]]))
    with pytest.raises(np.linalg.LinAlgError):
        inverse_gram(almost)
    assert joint_system((2, 2), [{0: almost, 1: Identity(2)}, {0: Identity(2)}], [1, 1]) is None


def test_a_predicate_that_always_holds_has_no_remainder():
    """Else rounding is multiplied with the share of a table that is hardly measured."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        factor = Dense(np.triu(rng.integers(1, 65536, (4, 4))))
        assert split_by(factor).variances(total(4)) == [0.0]


def test_parts_of_far_weights_keep_their_scale():
    """Rows a million times smaller are still rows: what they alone see is answered from them."""
    strategy, workload = union()
    far = dataclasses.replace(strategy, weights=(1, 9_000_000_000))
    assert flaw_of(far, workload, items=(range(1), range(1, 2)), noise_std=1e6) == ""


def test_a_union_whose_gram_is_past_the_range_of_floats_is_solved():
    n = 4
    slim = PIdentity(np.array([1, 1, 1, 65536]), np.array([[65535, 65535, 65535, 1]]))
    other = PIdentity(np.array([65536, 1, 1, 1]), np.array([[1, 65535, 65535, 65535]]))
    shape = (n,) * 4
    parts = tuple(
        ProductStrategy("p", "laplace", factors)
        for factors in ((slim,) * 4, (other,) * 4, (Identity(n),) * 2 + (total(n),) * 2)
    )
    strategy = UnionStrategy("u", "laplace", parts, (5, 7, 1 << 40), ((0,), (1,), (2,)))
    last, first = Dense(np.array([[0, 0, 0, 1]])), Dense(np.array([[1, 0, 0, 0]]))
    blocks = (
        product(shape, dict.fromkeys(range(4), last)),
        product(shape, dict.fromkeys(range(4), first)),
        product(shape, {0: Identity(n), 1: Identity(n)}),
    )
    workload = Workload(shape, blocks, (1.0, 1.0, 1.0))
    flaw = flaw_of(strategy, workload, items=[range(k, k + 1) for k in range(3)], noise_std=1e9)
    assert flaw == ""


RELEASE = ("release", "data.csv", "--epsilon", "1")


def flawed(monkeypatch, where):
    monkeypatch.setattr(f"{where}.flaw_of", lambda *_, **__: "an answer is off by 3")


def test_a_release_of_a_flawed_strategy_is_refused_and_nothing_is_charged(town, monkeypatch):
    before = contents(Path())
    flawed(monkeypatch, "dpquery.mechanisms.linear")
    message = refused(*RELEASE, code=2)
    assert "does not give the answers that it promises: an answer is off by 3" in message
    assert "run `dpquery plan` again with --epsilon 1, which leaves it out" in message
    assert contents(Path()) == before
    assert spent() == "0"


def test_a_free_release_again_is_refused_too_and_the_folder_stays(released_town, monkeypatch):
    before = contents(Path())
    flawed(monkeypatch, "dpquery.mechanisms.linear")
    refused(*RELEASE, code=2)
    assert contents(Path()) == before


def test_later_questions_that_would_be_answered_wrongly_are_refused(released_town, monkeypatch):
    Path("questions.yaml").write_text("workload: [{name: one, product: {sex: identity}}]\n")
    flawed(monkeypatch, "dpquery.mechanisms.linear")
    assert "an answer is off by 3" in refused("answer", "release", "questions.yaml", code=2)
    assert not Path("answers").exists()


def test_plan_leaves_out_what_it_cannot_solve(town, monkeypatch):
    ok("plan", "workload.yaml")
    best = json.loads(Path("dpquery.plan").read_text())["selections"][0]["best"]

    def flaw(strategy, *_, **__):
        return "an answer is off by 3" if strategy.name == best else ""

    monkeypatch.setattr("dpquery.planning.figures.flaw_of", flaw)
    ok("plan", "workload.yaml")
    selection = json.loads(Path("dpquery.plan").read_text())["selections"][0]
    assert selection["best"] != best
    (line,) = [line for line in selection["candidates"] if line["name"] == best]
    assert line["reason"] == "left out: an answer is off by 3"
    assert line["rmse"] is None
