"""Fixed shares of the budget: what items have for themselves is what the spec says."""

import math
from fractions import Fraction

import numpy as np
import pytest
from test_public_facts import simulated

from dpquery import plan, release
from dpquery.cli.show_plan import why_grids
from dpquery.exceptions import SpecError
from dpquery.operators.compile import compile_spec
from dpquery.planning.shares import ShareSearch, selections_by_shares, share_groups
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.parsing.read import parse
from dpquery.strategy.expected_error import expected_error, squared_sensitivity
from dpquery.strategy.search.select import select, unchecked
from dpquery.strategy.sensitivity import sensitivity

SPEC = """\
dataset: {id: town}
privacy: {unit: row}
budget: {epsilon: 400}
other: drop
domain:
  age: {range: [0, 9]}
  sex: {values: [F, M]}
  region: {values: [N, S, W]}
workload:
  - {name: ages, product: {age: prefix}, share: 0.5}
  - {name: by_region, product: {region: identity, sex: identity}, share: 0.2}
  - {name: bands, product: {age: {groups: {a: [[0, 4]], b: [[5, 9]]}}, sex: identity}}
  - {name: sexes, product: {sex: identity+total}}
"""
both_noises = pytest.mark.parametrize(
    "noise", ["gaussian", pytest.param("laplace", marks=pytest.mark.slow)]
)
SHARES = (Fraction(1, 2), Fraction(1, 5), Fraction(3, 10))


def chosen(noise):
    spec = parse(SPEC, name="w", files={})
    compiled = compile_spec(spec)
    groups = share_groups(spec, compiled)
    search = ShareSearch("rmse", 0, 0.6, 1, "enters")
    selection = selections_by_shares(groups, compiled.workload, [noise], search, unchecked)[noise]
    return compiled, groups, selection.best.proposal.strategy


def test_groups_are_the_items_with_shares_and_all_others():
    _, groups, strategy = chosen("gaussian")
    assert [places for places, _ in groups] == [(0,), (1,), (2, 3)]
    assert tuple(share for _, share in groups) == SHARES
    assert strategy.groups == ((0,), (1,), (2, 3))
    without = parse(
        SPEC.replace(", share: 0.5", "").replace(", share: 0.2", ""), name="w", files={}
    )
    assert share_groups(without, compile_spec(without)) == ()


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_every_part_has_its_share_of_what_is_charged(noise):
    """Of the L1 sensitivity, or of the square of the L2 sensitivity, to five digits."""
    _, _, strategy = chosen(noise)
    taken = [
        weight ** (1 if noise == "laplace" else 2) * sensitivity(part.measurements, noise, "enters")
        for weight, part in zip(strategy.weights, strategy.parts, strict=True)
    ]
    for part, share in zip(taken, SHARES, strict=True):
        assert float(Fraction(part) / Fraction(sum(taken))) == pytest.approx(share, rel=1e-4)
    # What is charged for is the sensitivity of all together, which is no more than their sum.
    assert sensitivity(strategy.measurements, noise, "enters") <= sum(taken)


@both_noises
def test_no_item_errs_more_than_alone_with_its_share(noise):
    compiled, groups, strategy = chosen(noise)
    error = expected_error(strategy, compiled.workload)
    for places, share in groups:
        alone = select(compiled.workload.select(places), noises=[noise], time_limit=0.3)[noise]
        scale = float(share) if noise == "laplace" else math.sqrt(share)
        together = sum(error.blocks[place].total_squared for place in places)
        least = sum(block.total_squared for block in alone.best.error.blocks) / scale**2
        assert together <= least * 1.02


@both_noises
def test_simulated_releases_err_as_predicted(noise):
    compiled, _, strategy = chosen(noise)
    blocks, runs = compiled.workload.blocks, 300
    x, rng = np.random.default_rng(5).integers(0, 30, 60), np.random.default_rng(6)
    std = 3.0 * min(strategy.weights)
    predicted = expected_error(strategy, compiled.workload)
    unit = std / math.sqrt(squared_sensitivity(strategy))
    squares = np.zeros(len(blocks))
    for _ in range(runs):
        estimates = reconstruct(strategy, simulated(strategy, x, std, rng))
        for place, block in enumerate(blocks):
            off = estimates.answer(block, place).ravel() - block.matvec(x)
            squares[place] += float((off**2).sum()) / runs
    expected = [unit**2 * block.total_squared for block in predicted.blocks]
    np.testing.assert_allclose(squares, expected, rtol=0.2)
    assert squares.sum() == pytest.approx(sum(expected), rel=0.1)


def test_plan_prints_the_shares_and_release_carries_them_out(tmp_path):
    (tmp_path / "w.yaml").write_text(SPEC)
    (tmp_path / "data.csv").write_text("age,sex,region\n3,F,N\n4,M,S\n")
    paths = {"plan_path": tmp_path / "p", "ledger_path": tmp_path / "ledger.db"}
    report = plan(tmp_path / "w.yaml", time_limit=0.3, **paths)
    assert report.priced[0].selection.best == "Shares"
    assert report.priced[0].bound_rmse is None
    (grid, *_) = why_grids(report)
    words = "shares of the budget, as the spec has them: ages 50 %, by_region 20 %, all others 30 %"
    assert words in grid.notes
    done = release(tmp_path / "data.csv", epsilon=2, out=tmp_path / "out", **paths)
    assert done.account.spent == 2 * 10**18


def test_targets_and_rap_split_the_budget_otherwise(tmp_path):
    (tmp_path / "w.yaml").write_text(SPEC.replace("{id: town}", "{id: town, rows: about 90}"))
    paths = {"plan_path": tmp_path / "p", "ledger_path": tmp_path / "ledger.db"}
    with pytest.raises(SpecError, match="targets decide how the budget is split"):
        plan(tmp_path / "w.yaml", targets=["ages: sd <= 5"], **paths)
    with pytest.raises(SpecError, match="RAP splits its budget by itself"):
        plan(tmp_path / "w.yaml", mechanism="rap", **paths)
