"""The audit of adaptive measurement passes what is sound, and mistakes planted here fail it."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpquery.audit import table_runs
from dpquery.audit.cases import QUICK
from dpquery.audit.statistics import ALPHA, clopper_pearson, zcdp_loss
from dpquery.audit.table_runs import (
    LAW_OF_TABLES,
    SETS,
    TABLES_PUBLISHED,
    TABLES_SPENT,
    WEIGHTS,
    TableLaw,
    adaptive,
    bench_of,
    drawn_by,
    draws_of_tables,
    law_of_draws,
    start_of,
    tables_charge,
    tables_figures,
    true_tables,
)
from dpquery.audit.towns import TOWNS, ShiftedFit, released_run
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.rounds import tables as table_rounds
from dpquery.measurement.rounds.tables import TableRounds

ROWS, REPLACED, PERSONS = TOWNS


def law_of(bench):
    """The law of its runs, at what the query is charged."""
    return TableLaw(bench.query.guarantee.amount, bench.town)


@pytest.mark.slow
def test_a_sound_product_passes(record_property):
    findings = list(adaptive(QUICK))
    assert [finding for finding in findings if not finding.passed] == []
    assert [finding.claim for finding in findings] == [TABLES_SPENT, TABLES_PUBLISHED] * 3 + [
        LAW_OF_TABLES
    ]
    assert sum(finding.tests for finding in findings) == 1
    record_property("draws", sum(finding.draws for finding in findings))


@pytest.mark.parametrize("town", TOWNS)
def test_a_town_is_counted_by_hand_as_the_curator_counts_it(town, tmp_path):
    bench = bench_of(town, tmp_path / "town")
    query, given = bench.query, bench.query.rounds.candidates
    assert (given.subsets, given.weights) == (SETS, WEIGHTS)
    for name, rows in (("data.csv", town.rows), ("neighbour.csv", town.neighbour)):
        tables = tabulate(
            bench.folder / name,
            spec=query.spec,
            subsets=query.subsets,
            classes=query.compiled.classes,
        )
        for subset, table in zip(SETS, true_tables(town, rows), strict=True):
            assert tables[subset].ravel().tolist() == table.tolist()
    before, after = (true_tables(town, rows) for rows in (town.rows, town.neighbour))
    moves = [int(((new - old) ** 2).sum()) for old, new in zip(before, after, strict=True)]
    assert max(moves) == law_of(bench).move


@pytest.mark.parametrize("town", TOWNS)
def test_the_law_is_that_of_the_budget(town, tmp_path):
    bench = bench_of(town, tmp_path / "town")
    law, budget = law_of(bench), bench.query.rounds
    assert law.unit == budget.unit
    assert law.first_std == pytest.approx(budget.first_std, rel=1e-12)
    assert law.closing == budget.closing_rho
    assert budget.distance_scale(1) / 1024 == pytest.approx(law.distance_std, rel=1e-12)
    left = budget.rounds_rho
    for level, cost in enumerate(law.costs([0, 1, 2])):
        spent = budget.round(level, left)
        assert (spent.rho, spent.last) == (cost, level == 2)
        assert budget.std(spent) == pytest.approx(law.std(cost * Fraction(9, 10)), rel=1e-12)
        assert float(spent.rate) == pytest.approx(law.rate(cost), rel=1e-12)
        left -= spent.rho


# What whole runs show of neighbours.


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("town", TOWNS)
def test_no_event_of_whole_runs_distinguishes_neighbours_better_than_is_claimed(town, tmp_path):
    """That a run is likelier on one of two neighbours is the event that distinguishes them best."""
    bench, runs = bench_of(town, tmp_path / "town"), 400
    here, there = (true_tables(town, rows) for rows in (town.rows, town.neighbour))
    ratios = []
    for file in ("data.csv", "neighbour.csv"):
        drawn = table_runs.table_runs(bench, file, runs)
        likely, unlikely = (
            draws_of_tables(drawn, start_of(town), true, law_of(bench)).log_likelihoods
            for true in (here, there)
        )
        ratios.append(likely - unlikely)
    rho = float(law_of(bench).rho)
    p_low = clopper_pearson(int((ratios[0] > 0).sum()), runs, alpha=ALPHA)[0]
    q_high = clopper_pearson(int((ratios[1] > 0).sum()), runs, alpha=ALPHA)[1]
    assert zcdp_loss(p_low, q_high) <= rho
    # A Gaussian mechanism of rho has log ratios of mean rho: no more than that may be seen, and
    # most of it must be, or the test could not see a run that costs twice as much.
    spread = float(ratios[0].std()) / math.sqrt(runs)
    assert 0.3 * rho < ratios[0].mean() < rho + 6 * spread


# What fails.


def claims_that_fail(town, folder, runs=60):
    bench = bench_of(town, folder / "town")
    released = released_run(bench, 1)
    law = TableLaw(released.charged, town)
    findings = [tables_charge(town, released, law), tables_figures(town, released, law)]
    findings.append(law_of_draws(drawn_by(bench, law, runs)))
    return {finding.claim for finding in findings if not finding.passed}


@pytest.mark.nightly
@pytest.mark.parametrize("town", [ROWS])
def test_a_sound_town_passes(town, tmp_path):
    assert claims_that_fail(town, tmp_path, runs=50) == set()


@pytest.mark.nightly
def test_tables_of_one_attribute_that_are_free_are_seen_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(TableRounds, "rounds_rho", property(lambda b: b.guarantee.amount))
    assert {TABLES_SPENT, TABLES_PUBLISHED} <= claims_that_fail(ROWS, tmp_path, runs=50)


@pytest.mark.nightly
def test_a_sensitivity_that_forgets_the_replaced_record_is_seen_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(TableRounds, "table_sensitivity", property(lambda b: b.records**2 << 20))
    assert {TABLES_SPENT, TABLES_PUBLISHED} <= claims_that_fail(REPLACED, tmp_path, runs=50)


@pytest.mark.nightly
@pytest.mark.parametrize(("town", "forgotten"), [(PERSONS, "records"), (REPLACED, "replace")])
def test_a_distance_whose_sensitivity_forgets_something_is_seen_at_once(
    town, forgotten, tmp_path, monkeypatch
):
    def forgetful(rounds, tables):
        moved = {"records": rounds.records, "replace": 2 if rounds.replace else 1} | {forgotten: 1}
        return (tables * moved["records"] * moved["replace"]) ** 2 << 20

    monkeypatch.setattr(TableRounds, "distance_sensitivity", forgetful)
    assert {TABLES_SPENT, TABLES_PUBLISHED} <= claims_that_fail(town, tmp_path, runs=50)


@pytest.mark.nightly
def test_a_distance_of_other_tables_than_those_released_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(ShiftedFit, "released_table", lambda fit, number: fit.answers(number) + 40)
    assert claims_that_fail(ROWS, tmp_path, runs=50) == {LAW_OF_TABLES}


@pytest.mark.slow
def test_a_draw_that_is_too_sharp_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(
        TableRounds, "score_span", property(lambda b: b.records * max(b.candidates.weights) // 2)
    )
    assert claims_that_fail(ROWS, tmp_path, runs=500) == {LAW_OF_TABLES}


@pytest.mark.nightly
def test_levels_that_rise_otherwise_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(table_rounds, "noise_norm", lambda std, cells: 0.0)
    assert LAW_OF_TABLES in claims_that_fail(ROWS, tmp_path, runs=50)


@pytest.mark.nightly
def test_noise_that_is_too_narrow_is_seen(tmp_path, monkeypatch):
    real = table_runs.TableRun.read

    def narrow(values):
        run = real(values)
        true = np.concatenate(true_tables(ROWS, ROWS.rows)[:2]) * 1024
        first = np.rint(true + 0.7 * (run.first - true)).astype(np.int64)
        return replace(run, first=first)

    monkeypatch.setattr(table_runs.TableRun, "read", narrow)
    assert LAW_OF_TABLES in claims_that_fail(ROWS, tmp_path, runs=150)
