"""Strategies that do not give the answers they promise: plan drops them, release refuses them."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from dense import MIXED, random_strategies
from town import contents, ok, refused, spent

import dpquery.reconstruction.checks as probes_module
import dpquery.strategy.algebra.joint_system as joint_module
from dpquery.operators.blocks import Workload, product
from dpquery.operators.factors import Dense, Identity, PIdentity, total
from dpquery.operators.inverses import inverse_gram
from dpquery.public_chance import public_seed
from dpquery.reconstruction.checks import flaw_of
from dpquery.strategy.algebra.joint_system import joint_system
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import split_by


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(6))
def test_sound_strategies_of_every_shape_pass(seed):
    for strategy, workload in random_strategies(np.random.default_rng(seed), (3, 4, 2), "laplace"):
        items = [range(place, place + 1) for place in range(len(workload.blocks))]
        assert flaw_of(strategy, workload, items=items, noise_std=1e4) == "", strategy.name


@pytest.mark.parametrize("room", [0, 10])
def test_values_that_are_not_kept_come_again_the_same(room, monkeypatch):
    monkeypatch.setattr(probes_module, "ON_DEMAND", 0)
    monkeypatch.setattr(probes_module, "KEPT_VALUES", room)
    shape = (3, 4, 2)
    for strategy, workload in random_strategies(np.random.default_rng(1), shape, "gaussian"):
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


@pytest.mark.parametrize(("n", "trials"), CASES)
def test_sound_strategies_pass_at_any_number_of_items(n, trials):
    assert flaws_of_items(n, range(trials)) == 0


@pytest.mark.parametrize("factor", [0.75, 1.3])
@pytest.mark.parametrize(("n", "trials"), CASES)
def test_noise_that_is_not_what_is_stated_is_seen(n, trials, factor, monkeypatch):
    noise = probes_module.Probes.noise
    monkeypatch.setattr(probes_module.Probes, "noise", lambda self, std: noise(self, factor * std))
    trials = min(trials, 100)
    assert flaws_of_items(n, range(trials)) >= 0.99 * trials


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


def test_a_flawed_candidate_gives_way_to_the_next_and_says_why():
    sound = select(MIXED, noises=["gaussian"])["gaussian"]
    name = sound.best.name

    def flaw(strategy):
        return "it is what the test drops" if strategy.name == name else ""

    other = select(MIXED, noises=["gaussian"], flaw_of=flaw)["gaussian"]
    assert other.best.name != name
    assert other.best.score >= sound.best.score
    (dropped,) = [candidate for candidate in other.candidates if candidate.name == name]
    assert (dropped.proposal, dropped.reason) == (None, "left out: it is what the test drops")


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


def test_a_free_release_again_is_refused_too_and_the_folder_stays(town, monkeypatch):
    ok(*RELEASE)
    before = contents(Path())
    flawed(monkeypatch, "dpquery.mechanisms.linear")
    refused(*RELEASE, code=2)
    assert contents(Path()) == before


def test_later_questions_that_would_be_answered_wrongly_are_refused(town, monkeypatch):
    ok(*RELEASE)
    Path("questions.yaml").write_text("workload: [{name: one, product: {sex: identity}}]\n")
    flawed(monkeypatch, "dpquery.mechanisms.linear")
    assert "an answer is off by 3" in refused("answer", "release", "questions.yaml", code=2)
    assert not Path("answers").exists()


def test_plan_leaves_out_what_it_cannot_solve(town, monkeypatch):
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
