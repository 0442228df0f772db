"""The audit of RAP passes what is sound, and every mistake planted here fails where it should."""

import dataclasses
import math
import random
import re
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import count

import numpy as np
import pytest

from dpquery.audit import rounds_checks, towns
from dpquery.audit.cases import QUICK, Size
from dpquery.audit.measurements import tables_in
from dpquery.audit.rounds_checks import (
    CHARGE,
    CHOSEN,
    FIGURES,
    LAW_OF_TABLES,
    NOISE,
    SHARP_SELECTIONS,
    TIES,
    adaptive,
    apart,
    of_releases,
    of_tables,
    paired,
    runs_of,
)
from dpquery.audit.rounds_law import _WEIGHTS, families_move, run_law, worst_move
from dpquery.audit.statistics import ALPHA, APART, chi_square
from dpquery.audit.towns import ALL_QUERIES_AT_ONCE, ANSWERED, DECLARED, TOWNS, Bench, ShiftedFit
from dpquery.measurement import curator
from dpquery.measurement.ledger.ledger import Ledger
from dpquery.measurement.rounds import queries
from dpquery.measurement.rounds import tables as table_rounds
from dpquery.measurement.rounds.chance import ExactChance
from dpquery.measurement.rounds.queries import RapRounds, all_places
from dpquery.measurement.rounds.query import _exact
from dpquery.measurement.rounds.tables import TableRounds
from dpquery.mechanisms import fitted as rap_mechanism
from dpquery.progress import reporting

ROWS, REPLACED, PERSONS = TOWNS
AT_ONCE = {CHARGE, FIGURES}
SMALL = Size(draws=0, replicates=10 * 150, releases=1)
MIDDLE = Size(draws=0, replicates=10 * 400, releases=1)
LARGE = Size(draws=0, replicates=10 * 1000, releases=1)


def failed(town, folder, size=SMALL):
    """The claims that do not hold of a town."""
    findings = rounds_checks.audited(Bench.of(town, folder / "town"), size)
    return {finding.claim for finding in findings if not finding.passed}


@pytest.mark.slow
def test_a_sound_product_passes(record_property):
    findings = list(rounds_checks.rap(QUICK))
    assert [finding for finding in findings if not finding.passed] == []
    assert len(findings) == 3 * 7
    assert sum(finding.tests for finding in findings) <= 18
    for finding in (finding for finding in findings if finding.claim in {NOISE, CHOSEN}):
        _, _, free = finding.evidence.partition("; ")
        assert re.match(r"1\d ", free), finding.evidence  # degrees of freedom: there is a test
    record_property("draws", sum(finding.draws for finding in findings))
    record_property("neighbours", sum(finding.neighbours for finding in findings))


SUBSETS = ((0,), (1,), (0, 1))
"""Of the tables of age, sex, and both."""
TABLED = [replace(town, tables=True) for town in TOWNS]


@pytest.mark.parametrize("town", [*TOWNS, ALL_QUERIES_AT_ONCE, *TABLED])
def test_a_town_is_counted_by_hand_as_the_curator_counts_it(town, tmp_path):
    bench = Bench.of(town, tmp_path / "town")
    query, truths = bench.query, []
    for name, rows in (("data.csv", town.rows), ("neighbour.csv", town.neighbour)):
        tables, truth = tables_in(bench.folder / name, query), town.truth(rows)
        truths.append(np.concatenate(truth))
        if town.tables:
            answers = [tables[subset].ravel() for subset in SUBSETS]
        else:
            answers = list(map(_exact(tables), query.compiled.workload.blocks))
            assert tables.get((), DECLARED) == truth[1].sum()
            assert (() in tables) != town.replace
        assert [each.tolist() for each in answers] == [each.tolist() for each in truth]
    moved = truths[1] - truths[0]
    assert np.abs(moved).max() == town.limit
    assert (moved.min() < 0) == town.replace
    if town.tables:
        given, ends = query.rounds.candidates, np.cumsum([4, 2])
        assert (given.subsets, given.weights) == (SUBSETS, _WEIGHTS)
        most = max(int((part**2).sum()) for part in np.split(moved, ends))
        assert most == run_law(town, query.guarantee.amount).move * town.limit**2


@pytest.mark.parametrize("town", TOWNS)
def test_moves_by_brute_force_are_those_that_noise_is_made_for(town, tmp_path):
    query = Bench.of(town, tmp_path / "town").query
    workload, mechanism = query.compiled.workload, query.rounds
    law = run_law(town, mechanism.guarantee.amount)
    every, rng = all_places(workload), np.random.default_rng(0)
    for _ in range(60):
        numbers = rng.choice(len(every), int(rng.integers(1, 6)), replace=False)
        move = families_move(tuple(numbers.tolist()), replace=town.replace)
        assert worst_move(tuple(numbers.tolist()), replace=town.replace) <= move
        assert mechanism.sensitivity(every[numbers]) == move * town.limit**2 << 20
    assert (law.total, law.selection) == (mechanism.total_rho, mechanism.selection_rho)
    assert law.measurement == mechanism.measurement_rho
    assert law.rate == pytest.approx(float(mechanism.rate), rel=1e-12)


@pytest.mark.nightly
def test_a_draw_that_depends_on_the_one_before_is_seen_in_a_quick_audit(tmp_path):
    """Where each draw alone follows its law."""
    bench = Bench.of(ROWS, tmp_path / "town")
    run = runs_of(bench, run_law(ROWS, bench.query.guarantee.amount), 300)[0][0]
    assert min(chi_square(*cells) for cells in paired([run], 2)) > ALPHA
    tied = run.outcomes.copy()
    tied[::2] = (run.outcomes[1::2] - 1) % len(ANSWERED)
    assert min(chi_square(*cells) for cells in paired([replace(run, outcomes=tied)], 2)) < ALPHA


# What does not: figures that do not add up, which the first release shows.


def designed(change):
    """RAP's design with a change, wherever it is made."""
    real = queries.rap_rounds

    def design(workload, settings, **named):
        return change(partial(real, workload, settings), **named)

    return design


@pytest.fixture
def plant(monkeypatch):
    def planted(design):
        for module in (rap_mechanism, towns):
            monkeypatch.setattr(module, "rap_rounds", designed(design))

    return planted


def first_release(town, folder):
    """What the release alone gives away: charge and figures."""
    done = Bench.of(town, folder / "town").release(1)
    findings = of_releases(run_law(town, done.rho), [done])
    return {finding.claim for finding in findings if not finding.passed}


def free_total(design, **named):
    mechanism = design(**named)
    whole = mechanism.guarantee.amount / mechanism.settings.rounds
    half = whole / 2 if mechanism.settings.adaptive else whole
    return dataclasses.replace(mechanism, measurement_rho=half)


def no_person(design, *, privacy, **named):
    return design(privacy=dataclasses.replace(privacy, max_rows=1), **named)


def true_total(design, **named):
    return dataclasses.replace(design(**named), total=48)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("town", "design"), [(ROWS, free_total), (ROWS, true_total), (PERSONS, no_person)]
)
def test_a_total_that_is_free_and_rows_that_are_ignored_are_seen_at_once(
    tmp_path, plant, town, design
):
    plant(design)
    assert first_release(town, tmp_path) == AT_ONCE


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("town", "rate"),
    [
        (ROWS, lambda real, rho, selected, span: real(rho, 1, span)),
        (REPLACED, lambda real, rho, selected, span: real(rho, selected, span // 2)),
        (PERSONS, lambda real, rho, selected, span: real(rho, selected, 1)),
        (ROWS, lambda real, rho, selected, span: real(rho * 101 / 100, selected, span)),
    ],
    ids=["K ignored", "one-sided rule under replace", "max_rows ignored", "one part in 200"],
)
def test_a_selection_that_is_too_sharp_for_its_share_is_seen_at_once(
    tmp_path, monkeypatch, town, rate
):
    monkeypatch.setattr(queries, "sharpest_rate", partial(rate, queries.sharpest_rate))
    assert first_release(town, tmp_path) == AT_ONCE


def test_a_charge_after_the_data_was_read_is_seen_at_once(tmp_path, monkeypatch):
    real = curator.measure

    def measure(data, query, *, ledger, **named):
        drafted = type(ledger).draft

        def draft(self, key):
            for args, fields in charges:
                reserve(*args, **fields)
            charges.clear()
            return drafted(self, key)

        charges, reserve = [], type(ledger).reserve
        with monkeypatch.context() as patch:
            patch.setattr(
                type(ledger), "reserve", lambda *args, **more: charges.append((args, more))
            )
            patch.setattr(type(ledger), "draft", draft)
            return real(data, query, ledger=ledger, **named)

    monkeypatch.setattr("dpquery.commands.release.measure", measure)
    assert first_release(ROWS, tmp_path) == {CHARGE}


def test_a_charge_after_the_first_records_were_read_is_seen_at_once(tmp_path, monkeypatch):
    real, reserve, late = curator.tabulate, Ledger.reserve, []

    def charged_during_progress(data, **named):
        def on_progress(line):
            if line.endswith(" 0%"):  # no record has been read yet
                return
            for args, fields in late:
                reserve(*args, **fields)
            late.clear()

        with reporting(on_progress):
            return real(data, **named)

    monkeypatch.setattr(Ledger, "reserve", lambda *args, **fields: late.append((args, fields)))
    monkeypatch.setattr(curator, "tabulate", charged_during_progress)
    assert first_release(ROWS, tmp_path) == {CHARGE}


# And laws that are not those declared, which many runs show.


def strength(factor):
    real = ExactChance.level

    def level(self, scores, members, rate):
        return real(self, scores, members, rate * factor)

    return {"level": level}


def narrow(factor):
    real = ExactChance.add_noise

    def add_noise(self, answers, **named):
        noise = real(self, answers, **named) - answers
        return answers + np.rint(factor * noise).astype(np.int64)

    return {"add_noise": add_noise}


def reused():
    """The noise of a round again in the next."""
    real, kept = ExactChance.add_noise, []

    def add_noise(self, answers, **named):
        if answers.size == 1:
            kept.clear()
            return real(self, answers, **named)
        if not kept:
            kept.append((real(self, answers, **named) - answers) / named["scale"])
        return answers + np.rint(kept[0] * named["scale"]).astype(np.int64)

    return {"add_noise": add_noise}


def coarse():
    """Noise of whole counts: the law is kept, its grid is not."""
    real = ExactChance.add_noise

    def add_noise(self, answers, **named):
        return real(self, answers, **named) >> 10 << 10

    return {"add_noise": add_noise}


def seeded():
    real = ExactChance.level

    def level(self, *law):
        return real(ExactChance(random.Random(5).randbytes), *law)  # noqa: S311

    return {"level": level}


CALLS = count()


def drawn_again(*args, taken, real=queries.select_queries, **named):
    """Queries are drawn again in a later round; but in the release, which would not be read."""
    return real(*args, taken=taken if next(CALLS) < 2 else taken[:0], **named)


def one_sided(self, number, real=RapRounds.sides):
    return real(dataclasses.replace(self, replace=False), number)


FAULTS = {
    "selection a quarter sharper": (ROWS, ExactChance, strength(Fraction(5, 4)), SHARP_SELECTIONS),
    "seeded selection": (ROWS, ExactChance, seeded(), CHOSEN),
    "the first query of a score": (PERSONS, ExactChance, {"below": lambda self, bound: 0}, CHOSEN),
    "a round's noise again": (ROWS, ExactChance, reused(), TIES),
    "noise of whole counts": (REPLACED, ExactChance, coarse(), NOISE),
    "noise a twentieth too narrow": (ALL_QUERIES_AT_ONCE, ExactChance, narrow(0.95), NOISE),
    "queries taken for disjoint": (
        ROWS, queries, {"family_sizes": lambda _, places: [len(places)]}, NOISE
    ),
    "queries drawn again": (ROWS, queries, {"select_queries": drawn_again}, CHOSEN),
    "one-sided draws": (REPLACED, RapRounds, {"sides": one_sided}, CHOSEN),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_planted_in_rap_is_seen_where_it_is(tmp_path, monkeypatch, fault):
    town, owner, planted, where = FAULTS[fault]
    for name, wrong in planted.items():
        monkeypatch.setattr(owner, name, wrong)
    size = {SHARP_SELECTIONS: MIDDLE}.get(where, SMALL)
    assert where in failed(town, tmp_path, LARGE if town is ALL_QUERIES_AT_ONCE else size)


@pytest.mark.slow
def test_rows_of_a_person_that_are_ignored_are_seen_by_the_neighbours_too(tmp_path, plant):
    plant(no_person)
    assert failed(PERSONS, tmp_path, LARGE) >= {CHARGE, FIGURES, NOISE, SHARP_SELECTIONS, APART}


# The audit of adaptive measurement passes what is sound, and mistakes planted here fail it.


@pytest.mark.slow
def test_a_sound_adaptive_run_passes(record_property):
    findings = list(adaptive(QUICK))
    assert [finding for finding in findings if not finding.passed] == []
    assert [finding.claim for finding in findings] == [CHARGE, FIGURES] * 3 + [LAW_OF_TABLES]
    assert sum(finding.tests for finding in findings) == 1
    record_property("draws", sum(finding.draws for finding in findings))


@pytest.mark.parametrize("town", TABLED)
def test_the_law_is_that_of_the_budget(town, tmp_path):
    query = Bench.of(town, tmp_path / "town").query
    law, budget = run_law(town, query.guarantee.amount), query.rounds
    assert law.unit == budget.unit
    assert law.std(law.first, law.move) == pytest.approx(budget.first_std, rel=1e-12)
    assert law.closing == budget.closing_rho
    scales = budget.distance_scale(1), budget.largest_scale
    stds = [law.std(law.of_error, move) for move in law.error_moves]
    assert [scale / 1024 for scale in scales] == pytest.approx(stds, rel=1e-12)
    left = budget.rounds_rho
    levels = range(1 + int(left >= 5 * budget.unit))  # as many as are left to a town of few records
    for level, cost in enumerate(law.costs(levels)):
        spent = budget.round(level, left)
        assert (spent.rho, spent.last) == (cost, cost == left)
        assert budget.std(spent) == pytest.approx(
            law.std(cost * Fraction(9, 10), law.move), rel=1e-12
        )
        assert float(spent.rate) == pytest.approx(law.rate(cost), rel=1e-12)
        left -= spent.rho


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("town", TABLED)
def test_no_event_of_whole_runs_distinguishes_neighbours_better_than_is_claimed(town, tmp_path):
    """That a run is likelier on one of two neighbours is the event that distinguishes them best."""
    bench, number = Bench.of(town, tmp_path / "town"), 400
    law = run_law(town, bench.query.guarantee.amount)
    runs = runs_of(bench, law, number)
    assert apart(law, runs).passed
    # A Gaussian mechanism of rho has log ratios of mean rho: no more than that may be seen, and
    # most of it must be, or the test could not see a run that costs twice as much.
    ratios, rho = runs[0][0].log_likelihoods - runs[0][1].log_likelihoods, float(law.rho)
    spread = float(ratios.std()) / math.sqrt(number)
    assert 0.3 * rho < ratios.mean() < rho + 6 * spread


def claims_that_fail(town, folder, runs=60):
    bench = Bench.of(replace(town, tables=True), folder / "town")
    released = bench.release(1)
    law = run_law(bench.town, released.rho)
    observed = runs_of(bench, law, runs)
    findings = [*of_releases(law, [released]), of_tables([observed[0][0], observed[1][1]])]
    return {finding.claim for finding in findings if not finding.passed}


def without(forgotten):
    """The sensitivity of a distance that forgets the rows of a person or the replaced record."""

    def sensitivity(rounds, tables):
        moved = {"records": rounds.records, "replace": 2 if rounds.replace else 1} | {forgotten: 1}
        return (tables * moved["records"] * moved["replace"]) ** 2 << 20

    return sensitivity


FREE, FORGETFUL = (
    property(lambda budget: budget.guarantee.amount),
    property(lambda budget: budget.records**2 << 20),
)
SHARP = property(lambda budget: budget.records * max(budget.candidates.weights) // 2)
TABLE_FAULTS = {
    "tables of one attribute are free": (ROWS, TableRounds, "rounds_rho", FREE, AT_ONCE),
    "forgets that one leaves": (REPLACED, TableRounds, "table_sensitivity", FORGETFUL, AT_ONCE),
    "a distance of one row": (
        PERSONS, TableRounds, "distance_sensitivity", without("records"), AT_ONCE
    ),
    "a distance of one record": (
        REPLACED, TableRounds, "distance_sensitivity", without("replace"), AT_ONCE
    ),
    "a distance of other tables": (
        ROWS, ShiftedFit, "released_table", lambda fit, k: fit.answers(k) + 40, {LAW_OF_TABLES}
    ),
    "levels that rise otherwise": (
        ROWS, table_rounds, "noise_norm", lambda std, cells: 0.0, {LAW_OF_TABLES}
    ),
    "noise that is too narrow": (
        ROWS, ExactChance, "add_noise", narrow(0.9)["add_noise"], {LAW_OF_TABLES}
    ),
    "a draw that is too sharp": (ROWS, TableRounds, "score_span", SHARP, {LAW_OF_TABLES}),
}  # fmt: skip
RUNS = {"noise that is too narrow": 150, "a draw that is too sharp": 500}  # 50 of the others


@pytest.mark.nightly
@pytest.mark.parametrize("fault", TABLE_FAULTS)
def test_a_mistake_planted_in_tables_is_seen_where_it_is(fault, tmp_path, monkeypatch):
    town, owner, name, wrong, claims = TABLE_FAULTS[fault]
    monkeypatch.setattr(owner, name, wrong)
    failed = claims_that_fail(town, tmp_path, runs=RUNS.get(fault, 50))
    assert claims <= failed
    assert claims == AT_ONCE or not AT_ONCE & failed
