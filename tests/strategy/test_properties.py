"""Promises of strategy selection on random schemas and random mixtures of questions."""

import numpy as np
import pytest

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import Groups, Identity, Stacked, total
from dpquery.operators.gram import gram
from dpquery.operators.ranges import AllRanges, ListedRanges, Prefix, WidthRanges
from dpquery.plan_file.plan import decode_strategy
from dpquery.strategy.expected_error import expected_error, squared_sensitivity, weighted_queries
from dpquery.strategy.optimize.opt_marginals import opt_marginals
from dpquery.strategy.optimize.opt_product import opt_product
from dpquery.strategy.search import select as select_module
from dpquery.strategy.search.select import select

checked = settings(max_examples=25)


@st.composite
def factors(draw, n):
    kind = draw(st.integers(0, 7))
    first = draw(st.integers(0, n - 1))
    last = draw(st.integers(first, n - 1))
    match kind:
        case 0:
            return Identity(n)
        case 1:
            return Prefix(n)
        case 2:
            return AllRanges(n)
        case 3:
            return WidthRanges(n, last - first + 1)
        case 4:
            return ListedRanges(n, [(first, last)])
        case 5:
            return Groups.of(((first,), tuple(sorted({0, first, last}))), n)
        case 6:
            return Stacked((Identity(n), total(n)))
        case _:
            return total(n)


@st.composite
def blocks(draw, shape, most=4):
    places = st.integers(0, len(shape) - 1)
    attributes = tuple(sorted(draw(st.sets(places, max_size=most))))
    counted = [draw(st.booleans()) for _ in attributes]
    r = draw(st.integers(1, sum(counted))) if any(counted) else 0
    drawn = tuple(draw(factors(shape[i])) for i in attributes)
    return Block(shape, attributes, drawn, tuple(counted), r)


@st.composite
def workloads(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    drawn = tuple(draw(st.lists(blocks(shape), min_size=1, max_size=4)))
    weights = tuple(draw(st.sampled_from([1e-6, 0.5, 1.0, 40.0, 1e6])) for _ in drawn)
    return Workload(shape, drawn, weights)


@st.composite
def schemas(draw):
    """Workloads over 2 to 12 attributes: smaller ones where there are many."""
    d = draw(st.integers(2, 12))
    size = 12 if d == 2 else 6 if d <= 4 else 3 if d <= 8 else 2
    shape = tuple(draw(st.lists(st.integers(1, size), min_size=d, max_size=d)))
    drawn = tuple(draw(st.lists(blocks(shape, most=3), min_size=1, max_size=6)))
    weights = tuple(draw(st.sampled_from([1e-3, 1.0, 1.0, 40.0])) for _ in drawn)
    return Workload(shape, drawn, weights)


def check_against_everything(workload, noise):
    """The best beats all candidates, and the product and marginal strategies as first optimised."""
    selection = select(workload, noises=[noise])[noise]
    known = [
        candidate.error.weighted_rmse
        for candidate in selection.candidates
        if candidate.error is not None
    ]
    best = selection.best.error.weighted_rmse
    assert best == min(known)
    loss, V = best**2 * weighted_queries(workload), gram(workload)
    rng = np.random.default_rng(0)
    for optimise in (opt_product, opt_marginals):
        assert loss <= optimise(V, noise=noise, rng=rng).loss * 1.001  # of rounding to integers


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@given(workload=schemas())
@settings(checked, max_examples=4)
def test_random_schemas_are_planned_no_worse_than_by_any_other_strategy(workload, noise):
    check_against_everything(workload, noise)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@given(workload=schemas())
@settings(checked, max_examples=150)
def test_many_random_schemas_are_planned_no_worse(workload, noise):
    check_against_everything(workload, noise)


@pytest.mark.nightly
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("objective", ["rmse", "max"])
@given(workload=workloads())
@settings(checked, max_examples=4)
def test_the_best_is_never_worse_than_any_baseline(workload, noise, objective):
    selection = select(workload, noises=[noise], objective=objective)[noise]
    known = [candidate for candidate in selection.candidates if candidate.error is not None]
    assert {"Identity", "Workload"} <= {candidate.name for candidate in known}
    field = "weighted_rmse" if objective == "rmse" else "max_std_error"
    assert getattr(selection.best.error, field) == min(
        getattr(candidate.error, field) for candidate in known
    )


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@given(workload=workloads())
@settings(checked, max_examples=7)
def test_every_candidate_is_exact_bounded_and_survives_the_plan_file(workload, noise):
    selection = select(workload, noises=[noise])[noise]
    weight = sum(
        weight * block.shape[0]
        for weight, block in zip(workload.weights, workload.blocks, strict=True)
    )
    for candidate in selection.candidates:
        if candidate.proposal is None:
            assert candidate.reason
            continue
        strategy = candidate.proposal.strategy
        error = expected_error(strategy, workload)
        assert 0 < error.rmse <= error.max_std_error * (1 + 1e-9) < np.inf
        assert error.weighted_rmse**2 * weight >= selection.bound.loss * (1 - 1e-6)
        assert all(isinstance(measurement.weight, int) for measurement in strategy.measurements)
        read = decode_strategy(strategy.encode(), noise=noise, workload=workload)
        assert squared_sensitivity(read) == squared_sensitivity(strategy)
        assert expected_error(read, workload).rmse == pytest.approx(error.rmse, rel=1e-9)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@given(workload=workloads(), seed=st.integers(0, 3))
@settings(checked, max_examples=2)
def test_selection_is_deterministic_for_a_seed(workload, noise, seed):
    once, again = (select(workload, noises=[noise], seed=seed)[noise] for _ in range(2))
    assert once.best.name == again.best.name
    for first, second in zip(once.candidates, again.candidates, strict=True):
        assert first.error == second.error
        if first.proposal is not None:
            assert first.proposal.strategy.encode() == second.proposal.strategy.encode()


@pytest.mark.parametrize("noise", [pytest.param("laplace", marks=pytest.mark.slow), "gaussian"])
def test_tables_of_weights_far_apart_are_all_answered(noise, monkeypatch):
    monkeypatch.setattr(select_module, "SETTLED", -1.0)  # all are searched, whatever is reached
    monkeypatch.setattr(select_module, "CONTAINED_IN", {})
    shape = (50, 40, 3)
    blocks = (
        Block(shape, (0, 1), (Prefix(50), Identity(40)), (True, True), 2),
        Block(shape, (2,), (Identity(3),), (True,), 1),
    )
    for weights in ((1e-18, 1.0), (1.0, 1e-18)):
        selection = select(Workload(shape, blocks, weights), noises=[noise])[noise]
        names = {
            candidate.name for candidate in selection.candidates if candidate.error is not None
        }
        assert {"Identity", "Workload", "OPT_M", "OPT_x", "OPT_+"} <= names


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_forty_attributes_are_planned_from_their_tables_alone(noise):
    shape = (90,) * 40
    blocks = tuple(
        Block(shape, (i, i + 1), (Identity(90), Identity(90)), (True, True), 2) for i in range(39)
    )
    selection = select(Workload(shape, blocks, (1.0,) * 39), noises=[noise])[noise]
    reasons = {candidate.name: candidate.reason for candidate in selection.candidates}
    assert "cells" in reasons["Identity"]
    assert selection.best.error.weighted_rmse**2 * 39 * 8100 >= selection.bound.loss


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_a_single_total_costs_one_unit_of_noise(noise):
    shape = (1000,) * 30
    workload = Workload(shape, (Block(shape, (), (), (), 0),), (1.0,))
    selection = select(workload, noises=[noise])[noise]
    assert selection.best.error.rmse == pytest.approx(1.0)
    assert selection.bound.loss == pytest.approx(1.0)
