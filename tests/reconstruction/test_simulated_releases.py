"""Every candidate that plan compares, carried out with real noise, errs by what is predicted.

The path is that of a release: exact integer answers, the mechanism's own noise, reconstruction.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from dpquery.measurement.accounting import guarantee, unit_variance
from dpquery.measurement.counting.exact_answers import exact_answers
from dpquery.measurement.noise.calibration import calibrated_noise
from dpquery.measurement.noise.exact_noise import draw
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Identity, IdentityRows, Stacked, Valued, total
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.spec import Privacy
from dpquery.strategy.search.select import select

RUNS = 200
BUDGET = {"epsilon": Fraction(1), "delta": Fraction(1, 10**6)}
SHAPE = (9, 4, 2)


def questions():
    """Ranges, marginals and a threshold over three attributes; ranges of one alone."""
    blocks = (
        product(SHAPE, {0: Prefix(9), 1: Stacked((Identity(4), total(4)))}),
        marginal(SHAPE, [1, 2]),
        Block(SHAPE, (1, 2), (Identity(4), Identity(2)), (True, True), 1),
    )
    line = product((16,), {0: AllRanges(16)})
    values = {i: IdentityRows(n, np.arange(n - 1)) for i, n in enumerate(SHAPE)}
    shown = (
        product(SHAPE, {0: values[0], 1: values[1]}),
        product(SHAPE, {1: values[1], 2: Stacked((values[2], total(2)))}),
        product(SHAPE, {0: Prefix(9, 8)}),
        Block(SHAPE, (1, 2), (values[1], values[2]), (True, True), 1),
    )
    sums = (
        product(SHAPE, {0: Valued(total(9), np.arange(9)), 1: Stacked((Identity(4), total(4)))}),
        product(SHAPE, {0: Valued(Prefix(9), np.arange(9)), 2: Identity(2)}),
        product(SHAPE, {1: Valued(total(4), np.array([5, -40, 0, 12]))}),
        marginal(SHAPE, [1, 2]),
    )
    return {
        "sums": Workload(SHAPE, sums, (1 / 64, 1 / 64, 1 / 1600, 1.0)),
        "not all shown": Workload(SHAPE, shown, (1.0, 2.0, 1.0, 1.0)),
        "several": Workload(SHAPE, blocks, (1.0, 2.0, 1.0)),
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
        assert spread < 0.12 * predicted**2  # so that an error of a factor would show
