"""Unbiased answers of measured tables: against dense least squares, by simulation, in a release."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rounds import MIXED, MIXED_SPEC, ROW_SPEC, rehearse_tables
from town import contents, ok, plan_town

from dpquery.measurement import accounting
from dpquery.measurement.accounting import guarantee, unit_variance
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.measurement.noise.exact_noise import draw
from dpquery.measurement.rounds.run import run_rounds
from dpquery.measurement.rounds.tables import table_rounds
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity, IdentityRows, Stacked, Valued, total
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.planning.rehearsal.runs import SeededChance
from dpquery.reconstruction.adaptive_fits import AdaptiveFit, UnbiasedAnswers, tables_of_run
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.reconstruction.relaxed.misfit import MeasuredTable
from dpquery.releases.manifest import read_manifest
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Privacy
from dpquery.strategy.search.select import select

SHAPE = (3, 4, 2, 1)
SETS = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1), (0,)]
STDS = [5.0, 5.0, 5.0, 3.0, 2.0, 1.5, 0.5]
BLOCKS = [
    marginal(SHAPE, ()),
    marginal(SHAPE, (1,)),
    marginal(SHAPE, (0, 1)),
    marginal(SHAPE, (1, 2, 3)),
    product(SHAPE, {0: Identity(3), 1: Prefix(4)}),
    Block(SHAPE, (0, 1), (Identity(3), Prefix(4)), (True, True), 1),
]


def truth():
    return np.random.default_rng(4).integers(0, 40, math.prod(SHAPE)).reshape(SHAPE) * 1.0


def sums(x, attributes):
    return x.sum(axis=tuple(i for i in range(x.ndim) if i not in attributes))


def measured(seed=0):
    chance = np.random.default_rng(seed)
    tables = [sums(truth(), attributes) for attributes in SETS]
    noisy = [x + chance.normal(0, std, x.shape) for x, std in zip(tables, STDS, strict=True)]
    return [MeasuredTable(s, x, std**2) for s, x, std in zip(SETS, noisy, STDS, strict=True)]


def dense_rows(attributes):
    """The matrix of a table's cells, one row a cell, over the cells of the whole domain."""
    cells = np.eye(math.prod(SHAPE)).reshape(-1, *SHAPE)
    return np.stack([sums(cell, attributes).ravel() for cell in cells], axis=1)


@pytest.mark.parametrize("total", [None, 321])
@pytest.mark.parametrize("place", range(len(BLOCKS)))
def test_answers_and_errors_are_those_of_dense_least_squares(place, total):
    block, tables = BLOCKS[place], measured()
    A = np.concatenate([dense_rows(t.attributes) / math.sqrt(t.variance) for t in tables])
    y = np.concatenate([t.values.ravel() / math.sqrt(t.variance) for t in tables])
    n = A.shape[1]
    border = np.full((n, 1), 0.0 if total is None else 1.0)  # a Lagrange multiplier of the total
    system = np.block([[A.T @ A, border], [border.T, np.zeros((1, 1))]])
    inverse = np.linalg.pinv(system)
    x = inverse[:n] @ np.append(A.T @ y, total or 0)
    cells = np.eye(n).reshape(-1, *SHAPE)
    W = np.stack([block.apply(sums(cell, block.attributes)).ravel() for cell in cells], axis=1)
    variances = np.diag(W @ inverse[:n, :n] @ W.T)
    answers = UnbiasedAnswers(SHAPE, tables, total)
    assert answers.holds(block)
    values, std = answers.answer(block)
    assert values == pytest.approx(W @ x, rel=1e-5)
    assert std == pytest.approx(np.sqrt(np.maximum(variances, 0)), rel=1e-4, abs=1e-4)
    assert answers.squared_errors(block) == pytest.approx(float((std**2).sum()), rel=1e-9)


def test_tables_that_were_not_measured_have_none():
    answers = UnbiasedAnswers(SHAPE, measured(), None)
    assert not answers.holds(marginal(SHAPE, (0, 2)))
    assert not answers.holds(marginal(SHAPE, (0, 1, 2)))


RUN_SPEC = """
dataset: {id: town, version: 1, rows: about 2000}
privacy: {unit: row, neighbours: add-remove, delta: 1e-9}
budget: {epsilon: 9, delta: 1e-9}
other: drop
domain: {a: {range: [0, 3]}, b: {range: [0, 2]}, c: {range: [0, 4]}, d: boolean}
workload:
  - {name: tables, marginals: {up_to: 3}}
"""


def standardised_errors(epsilon, runs):
    """The errors of all unbiased answers of some runs, in their standard errors."""
    spec = parse(RUN_SPEC, name="w", files={})
    workload = compile_spec(spec).workload
    shape = workload.shape_of_domain
    people = np.random.default_rng(5)
    kinds = people.integers(0, 3, 2000)
    columns = [
        np.where(people.random(2000) < 0.5, kinds % n, people.integers(0, n, 2000)) for n in shape
    ]
    guarantee = accounting.guarantee("gaussian", epsilon=epsilon, delta=Fraction(1, 10**9))
    tables = table_rounds(
        workload, privacy=spec.privacy, guarantee=guarantee, rows=spec.dataset.rows
    )

    @cache
    def exact(block):
        codes = [columns[i] for i in block.attributes]
        places = np.ravel_multi_index(codes, block.table_shape)
        return np.bincount(places, minlength=math.prod(block.table_shape))

    errors = []
    for seed in range(runs):
        chance = SeededChance(seed)
        first = tables.decoded([tables.first(exact, chance)])
        fit = AdaptiveFit(tables, first)
        rounds = run_rounds(tables, exact, fit=fit, chance=chance)
        run = replace(first, rounds=tuple(rounds))
        answers = UnbiasedAnswers(shape, tables_of_run(tables, run), None)
        for block in tables.blocks:
            if answers.holds(block):
                values, std = answers.answer(block)
                errors.append((values - exact(block)) / std)
    return np.concatenate(errors)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(4)])
def test_of_whole_runs_they_are_unbiased_and_their_intervals_cover(epsilon):
    """What is measured again depends on earlier noise: the intervals hold all the same."""
    errors = standardised_errors(epsilon, 100)
    assert len(errors) > 6000
    assert abs(errors.mean()) < 0.05
    assert errors.var() == pytest.approx(1, abs=0.1)
    assert (np.abs(errors) < 1.959964).mean() == pytest.approx(0.95, abs=0.015)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbiased") / "town"
    plan_town(folder, MIXED_SPEC)
    rehearse_tables(folder / "dpquery.plan")
    return folder


@pytest.fixture
def town(template, move_in):
    move_in(template)
    ok("release", "data.csv", "--epsilon", "1")


def test_a_release_has_them_where_a_measured_table_holds_the_row(town):
    manifest = read_manifest(Path("release"))
    spec = parse(Path("workload.yaml").read_text(), name="workload.yaml", files={})
    compiled, run = compile_spec(spec), manifest.adaptive
    names = [attribute.name for attribute in spec.domain.attributes]
    held = [set(name.split(" x ")) for name in (*run.rounds, *names)]
    count, squares = 0, 0.0
    for item, places in zip(manifest.items, compiled.items, strict=True):
        table, start = pd.read_parquet(Path("release") / item.file), 0
        for block in (compiled.workload.blocks[place] for place in places):
            rows, start = table[start : start + block.queries], start + block.queries
            wanted = {names[i] for i in block.attributes}
            measured_together = any(wanted <= one for one in held)
            filled = rows[["unbiased", "unbiased_std_error"]].notna()
            assert filled.to_numpy().all() if measured_together else not filled.to_numpy().any()
            count += block.queries * measured_together
            squares += float((rows["unbiased_std_error"] ** 2).sum())
    assert 0 < run.unbiased == count
    assert run.unbiased_rmse == pytest.approx(math.sqrt(squares / count), rel=1e-6)


def test_later_questions_have_them_too(town):
    Path("more.yaml").write_text("workload:\n  - {name: sexes, product: {sex: identity}}\n")
    ok("answer", "release", "more.yaml")
    answers = pd.read_parquet("answers/sexes.parquet")
    assert answers["unbiased"].notna().all()
    assert read_manifest(Path("answers")).adaptive.unbiased == len(answers)
    before = contents("answers")
    ok("answer", "release", "more.yaml")
    assert contents("answers") == before


def test_questions_that_tell_more_values_apart_have_none(own_folder):
    head = ROW_SPEC[: ROW_SPEC.index("workload:")]
    plan_town(own_folder, f"{head}workload:\n{MIXED}")
    rehearse_tables(own_folder / "dpquery.plan")
    ok("release", "data.csv", "--epsilon", "1")
    Path("finer.yaml").write_text("workload:\n  - {name: incomes, product: {income: identity}}\n")
    ok("answer", "release", "finer.yaml", "--out", "finer")
    finer = read_manifest(Path("finer"))
    assert finer.answered.guessed == ("income",)
    assert pd.read_parquet("finer/incomes.parquet")["unbiased"].isna().all()
    assert (finer.adaptive.unbiased, finer.adaptive.unbiased_rmse) == (0, None)


# Every candidate that plan compares, carried out with real noise, errs by what is predicted.
#
# The path is that of a release: exact integer answers, the mechanism's own noise, reconstruction.


RUNS = 200
BUDGET = {"epsilon": Fraction(1), "delta": Fraction(1, 10**6)}
TRIED = (9, 4, 2)


def questions():
    """Ranges, marginals and a threshold over three attributes; ranges of one alone."""
    blocks = (
        product(TRIED, {0: Prefix(9), 1: Stacked((Identity(4), total(4)))}),
        marginal(TRIED, [1, 2]),
        Block(TRIED, (1, 2), (Identity(4), Identity(2)), (True, True), 1),
    )
    line = product((16,), {0: AllRanges(16)})
    values = {i: IdentityRows(n, np.arange(n - 1)) for i, n in enumerate(TRIED)}
    shown = (
        product(TRIED, {0: values[0], 1: values[1]}),
        product(TRIED, {1: values[1], 2: Stacked((values[2], total(2)))}),
        product(TRIED, {0: Prefix(9, 8)}),
        Block(TRIED, (1, 2), (values[1], values[2]), (True, True), 1),
    )
    sums = (
        product(TRIED, {0: Valued(total(9), np.arange(9)), 1: Stacked((Identity(4), total(4)))}),
        product(TRIED, {0: Valued(Prefix(9), np.arange(9)), 2: Identity(2)}),
        product(TRIED, {1: Valued(total(4), np.array([5, -40, 0, 12]))}),
        marginal(TRIED, [1, 2]),
    )
    return {
        "sums": Workload(TRIED, sums, (1 / 64, 1 / 64, 1 / 1600, 1.0)),
        "not all shown": Workload(TRIED, shown, (1.0, 2.0, 1.0, 1.0)),
        "several": Workload(TRIED, blocks, (1.0, 2.0, 1.0)),
        "one": Workload((16,), (line,), (1.0,)),
    }


def table(block, x):
    beyond = tuple(i for i in range(x.ndim) if i not in block.attributes)
    return x.sum(axis=beyond)


def released(strategy, mechanism, workload, x):
    """Answers of one release, all blocks in a row."""
    exact = [
        exact_answers(measurement, table(measurement.block, x), shift=mechanism.shift)
        for measurement in strategy.measurements
    ]
    noisy = draw(
        np.concatenate(exact),
        budget=mechanism.guarantee,
        sensitivity=mechanism.sensitivity,
        scale=mechanism.scale,
    )
    values = np.split(
        noisy * 2.0**mechanism.shift, np.cumsum([len(answers) for answers in exact])[:-1]
    )
    estimates = reconstruct(strategy, values)
    pairs = enumerate(workload.blocks)
    return np.concatenate([estimates.answer(block, k).ravel() for k, block in pairs])


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("one", "gaussian"),
        pytest.param("one", "laplace", marks=pytest.mark.slow),
        pytest.param("several", "laplace", marks=pytest.mark.slow),
        pytest.param("sums", "laplace", marks=pytest.mark.slow),
        pytest.param("sums", "gaussian", marks=pytest.mark.slow),
        pytest.param("several", "gaussian", marks=pytest.mark.slow),
        pytest.param("not all shown", "laplace", marks=pytest.mark.slow),
        pytest.param("not all shown", "gaussian", marks=pytest.mark.slow),
    ],
)
def test_every_candidate_errs_by_what_is_predicted(name, noise):
    workload = questions()[name]
    x = np.random.default_rng(0).integers(0, 40, workload.shape_of_domain)
    truth = np.concatenate([block.apply(table(block, x)).ravel() for block in workload.blocks])
    unit = math.sqrt(unit_variance(noise, **BUDGET))
    for candidate in select(workload, noises=[noise])[noise].candidates:
        if candidate.proposal is None:
            continue
        strategy = candidate.proposal.strategy
        mechanism = calibrated_noise(
            strategy, privacy=Privacy(), guarantee=guarantee(noise, **BUDGET)
        )
        stated = [
            standard_errors(strategy, block, position=k, noise_std=mechanism.noise_std)
            for k, block in enumerate(workload.blocks)
        ]
        predicted = math.sqrt(np.mean(np.concatenate(stated) ** 2))
        assert predicted == pytest.approx(unit * candidate.error.rmse, rel=2e-4)
        runs = [released(strategy, mechanism, workload, x) - truth for _ in range(RUNS)]
        squares = np.mean(np.array(runs) ** 2, axis=1)
        spread = squares.std() / math.sqrt(RUNS)
        assert squares.mean() <= predicted**2 + 5 * spread, candidate.name
        assert squares.mean() >= predicted**2 - 5 * spread, candidate.name
        assert spread < 0.18 * predicted**2  # so that an error of a factor would show
