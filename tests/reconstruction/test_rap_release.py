"""Relaxed rows: what they answer, how they are fitted, and what a release of them says."""

import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from dense import MIXED, random_block, random_workload

from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.rounds.queries import all_places
from dpquery.measurement.rounds.run import MeasuredRun, Round
from dpquery.operators.blocks import Workload, marginal
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.reconstruction.relaxed.fits import RapProjection, replay
from dpquery.reconstruction.relaxed.misfit import (
    MeasuredQueries,
    WholeTables,
    softmax,
    threshold_probability,
)
from dpquery.reconstruction.relaxed.rows import Partition, RelaxedRows, rows_digest
from dpquery.releases.folder.noisy_files import class_labels, read_relaxed, relaxed_table
from dpquery.releases.folder.write import ReleaseContent, write_release
from dpquery.releases.manifest import AnsweredFacts, LedgerFacts, StrategyFacts, manifest_of
from dpquery.releases.manifest_facts import RapFacts, SimulatedFacts
from dpquery.releases.report.figures import load_report
from dpquery.releases.report.page import page
from dpquery.releases.statement import statement
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Domain, Integers
from dpquery.spec.predicates import GroupSet, IdentitySet, PrefixSet, TotalSet
from dpquery.spec.spec import Budget, Dataset, Item, Privacy, Spec, Table

DOMAIN = Domain(
    (
        Attribute("age", (Column("age", Integers(0, 29), "drop"),)),
        Attribute("sex", (Column("sex", Categorical(("1", "2"), ("Male", "Female")), "drop"),)),
        Attribute("income", (Column("income", Bins((0.0, 10.0, 20.5, 50.0)), other="show"),)),
        Attribute(
            "home", (Column("owns", Boolean(), "drop"), Column("rooms", Integers(1, 3), "drop"))
        ),
        Attribute("unasked", (Column("unasked", Integers(1, 7), "drop"),)),
    )
)
AGE, SEX = (0, IdentitySet(30)), (1, IdentitySet(2))
TEENS = GroupSet(30, (("teens", tuple(range(13, 20))), ("ends", (0, 1, 2, 28, 29))))
CLASSES = Spec(
    Dataset("people"),
    Privacy(),
    Budget(),
    DOMAIN,
    (
        Item("ages", (Table(((0, TEENS), SEX)),)),
        Item("rich", (Table(((2, PrefixSet(4, 3)), (3, GroupSet(6, (("own", (3, 4, 5)),))))),)),
    ),
)
ITEMS = (
    Item("everyone", (Table(()),)),
    Item("ages", (Table((AGE,)),)),
    Item("pyramid", (Table((AGE, SEX)),), 2.0, "Ages by sex"),
    Item("any", (Table(((0, TEENS), SEX), at_least=1), Table(((1, TotalSet(2)),)))),
)
SIMULATED = SimulatedFacts("the prior", 5, 31.4, 2.5, 160.2, 12.0)
RAP = RapFacts(4, 16, 3, 1234.0, 7.5, 12.5, (20.0, 35.5, 20.0, 20.0), SIMULATED)


def answers(item):
    for table in item.tables:
        yield TableAnswers(table, 10.0 + np.arange(table.size) % 7, None, None)


def manifest(rap=RAP, items=ITEMS):
    terms = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**9))
    return manifest_of(
        Spec(Dataset("people", "7"), Privacy(), Budget(epsilon=Fraction(4)), DOMAIN, items),
        mechanism=CalibratedNoise(terms, 0, 16, 40.5),
        noise_source="OpenDP 0",
        strategy=StrategyFacts("RAP", "relaxed", None, None, None, "", None, "s" * 64),
        plan="p" * 64,
        key="k",
        ledger=LedgerFacts(1, "h" * 64),
        cumulative="Releases so far have spent 1 of 4.",
        level=0.95,
        rap=rap,
    )


def relaxed():
    values = np.zeros((3, sum(DOMAIN.shape)), dtype=np.float32)
    for row in range(3):
        for start, size in zip(np.cumsum((0, *DOMAIN.shape)), DOMAIN.shape, strict=False):
            values[row, start + (7 * row + np.array([0, 1])) % size] += [0.75, 0.25]
    return RelaxedRows(DOMAIN.shape, values)


DIGEST = rows_digest(relaxed().values)


def release(folder, rap=RAP):
    spec = Spec(Dataset("people", "7"), Privacy(), Budget(), DOMAIN, ITEMS)
    classes = [np.arange(size) for size in DOMAIN.shape]
    write_release(
        folder,
        ReleaseContent(answers, manifest(rap), relaxed_table(relaxed(), DOMAIN, classes)),
        spec=spec,
        replace=False,
    )
    return load_report(folder)


def test_answers_with_errors_are_refused_in_a_release_without_and_the_other_way_round(tmp_path):
    spec = Spec(Dataset("people", "7"), Privacy(), Budget(), DOMAIN, ITEMS)

    def known(item):
        ones = (np.ones(table.size) for table in item.tables)
        return (
            TableAnswers(t, values, values, values)
            for t, values in zip(item.tables, ones, strict=True)
        )

    for given, facts in ((known, manifest()), (answers, replace(manifest(), rap=None))):
        with pytest.raises(ValueError, match="laid out for other answers"):
            write_release(tmp_path / "out", ReleaseContent(given, facts), spec=spec, replace=False)
        assert not (tmp_path / "out").exists()


def test_the_summary_of_errors_holds_no_figure(tmp_path):
    release(tmp_path / "out")
    (first, *rest) = pq.read_table(tmp_path / "out" / "errors.parquet").to_pylist()
    assert [fact["item"] for fact in (first, *rest)] == [item.name for item in ITEMS]
    assert rest[1] == dict.fromkeys(first) | {"item": "pyramid", "queries": 60, "weight": 2.0}


def test_the_statement_says_in_words_that_there_are_no_error_bars():
    text = " ".join(statement(manifest()).split())
    for words in (
        "relaxed adaptive projection",
        "Estimates are biased, and nobody can say by how much",
        "There are no error bars",
        "ε = 1 at δ = 1e-9",
        "zero-concentrated differential privacy",
        "In each of 4 rounds, 16 counts",
        "of standard deviation 20 to 35.5",
        "simulated, not measured: RMSE 31.4 ± 2.5",
        "5 runs on the prior",
        "public by the word of whoever planned the release",
        "measured too: 1,234",
        "dpquery synthetic",
        "`relaxed_rows.parquet`: 3 relaxed rows",
        # How much noise a round takes follows from its choices: how many one record can answer.
        "noisy measurements, which of them were made and with how much noise, and its",
    ):
        assert words in text, words
    for words in ("noise interval", "unbiased", "standard error of that noise", "expected RMSE"):
        assert words not in text, words


def test_the_statement_of_later_answers_says_what_was_measured_and_what_was_read():
    later = AnsweredFacts("k1", "m" * 64)
    at_once = replace(RAP, selection_scale=None, simulated=None)
    for fitted in (RAP, at_once):
        text = " ".join(statement(replace(manifest(fitted), answered=later)).split())
        assert "read off its `relaxed_rows.parquet`, which was computed from its noisy" in text
        assert "that was asked for was measured" not in text
    assert "Every count that the release was made for was measured with noise, once" in text


def test_the_page_draws_estimates_without_intervals_and_no_chart_of_errors(tmp_path):
    report = release(tmp_path / "out")
    text = page(report)
    assert "without error bars" in text
    assert "This release has no error bars" in text
    assert "unknown" in text
    for words in ('class="whisker', 'class="band', "RMS error by item", "noise interval", "nan"):
        assert words not in text
    assert 'class="line s0"' in text
    drawn = {item.name: item.cells for item in report.items}
    assert np.isnan(drawn["pyramid"].low).all()
    assert not drawn["pyramid"].error_bars


def test_relaxed_rows_are_read_by_name_in_one_line(tmp_path):
    release(tmp_path / "out")
    rows = pd.read_parquet(tmp_path / "out" / "relaxed_rows.parquet")
    assert len(rows) == 3
    assert set(rows.dtypes) == {np.dtype("float32")}
    assert rows["sex=Female"].tolist() == [0.25, 0.75, 0.25]
    for attribute in ("age", "sex", "income", "home", "unasked"):
        names = [name for name in rows if name.startswith(f"{attribute}=")]
        assert rows[names].sum(axis=1).tolist() == [1, 1, 1]


def test_classes_are_named_by_their_values():
    compiled = compile_spec(CLASSES)
    named = [
        class_labels(attribute, classes)
        for attribute, classes in zip(DOMAIN.attributes, compiled.classes, strict=True)
    ]
    assert named == [
        ["0 or 1 or 2 or 2 more", "3 or 4 or 5 or 15 more", "13-19"],
        ["Male", "Female"],
        ["[0, 10)", "[10, 20.5)", "[20.5, 50)", "other"],
        [
            "owns=no, rooms=1 or owns=no, rooms=2 or owns=no, rooms=3",
            "owns=yes, rooms=1 or owns=yes, rooms=2 or owns=yes, rooms=3",
        ],
        ["any"],
    ]


@pytest.mark.parametrize(
    "damage", ["missing", "cut", "nan", "negative", "narrow", "endless", "others"]
)
def test_damaged_relaxed_rows_are_found_and_the_remedy_named(tmp_path, monkeypatch, damage):
    digest = None
    release(tmp_path / "out")
    path = tmp_path / "out" / "relaxed_rows.parquet"
    table = pd.read_parquet(path)
    match damage:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:-9])
        case "nan" | "negative":
            table.iloc[1, 2] = math.nan if damage == "nan" else -0.5
            table.to_parquet(path)
            digest = rows_digest(table.to_numpy())
        case "others":
            table.iloc[::-1].to_parquet(path)
        case "narrow":
            table.iloc[:, 1:].to_parquet(path)
            digest = rows_digest(table.iloc[:, 1:].to_numpy())
        case "endless":
            monkeypatch.setattr(
                "dpquery.releases.folder.noisy_files.MAX_RAP_FIT_NUMBERS", table.size - 1
            )
            monkeypatch.setattr(pq, "read_table", lambda *_, **__: pytest.fail("read"))
    spec = replace(
        CLASSES,
        items=tuple(
            Item(f"a{i}", (Table(((i, IdentitySet(n)),)),)) for i, n in enumerate(DOMAIN.shape)
        ),
    )
    with pytest.raises(SpecError, match="run `dpquery release` again"):
        read_relaxed(tmp_path / "out", compile_spec(spec), digest=digest or DIGEST)


def round_of(places, noisy, std):
    """A round of so many queries."""
    return Round(places, 0, noisy, std, spent=None)


def random_rows(rng, shape, n, *, alpha=0.5):
    parts = [rng.dirichlet([alpha] * size, n) for size in shape]
    return RelaxedRows(shape, np.hstack(parts).astype(np.float32))


def joint(rows):
    """The counts over the whole domain that relaxed rows stand for, in fractions: one loop."""
    x = np.zeros(rows.shape)
    for row in range(len(rows.values)):
        weights = np.ones(1)
        for i in range(len(rows.shape)):
            weights = np.multiply.outer(weights, rows.distribution(i)[row].astype(float))
        x += weights[0]
    return x / len(rows.values)


def test_relaxed_rows_answer_any_block_as_the_records_that_they_stand_for():
    rng = np.random.default_rng(0)
    for _ in range(60):
        workload = random_workload(rng)
        rows = random_rows(rng, workload.shape_of_domain, 7)
        x = joint(rows).ravel()
        for block in workload.blocks:
            answers = rows.answer(block)
            assert answers.shape == block.row_shape
            assert answers.dtype == np.float32
            np.testing.assert_allclose(answers.ravel(), block.matvec(x), atol=2e-5)


def test_malformed_relaxed_rows_are_refused():
    for values in (np.ones((2, 4), np.float32), np.ones((2, 5)), np.ones((0, 5), np.float32)):
        with pytest.raises(ValueError, match="relaxed rows"):
            RelaxedRows((3, 2), values)


def measured_of(blocks, rng, *, each=6):
    """A few random queries of every block, as (block, row)."""
    measured = [block for block in blocks if block.attributes]
    return [(b, int(j)) for b in measured for j in rng.integers(b.queries, size=each)]


def surrogates_of(queries, shape, *, noisy):
    measured = MeasuredQueries()
    for (block, row), answer in zip(queries, noisy, strict=True):
        measured.add(block, row, noisy=answer, std=0.01)
    partition = Partition.whole(shape).refine(measured.predicates)
    return measured.query_answers(partition, rows=9), partition


def random_masses(rng, partition, n):
    logits = rng.normal(size=(partition.count, n))
    return softmax(logits, partition.spans)[1]


def test_surrogates_answer_as_the_relaxed_rows_do_to_every_kind_of_block():
    rng = np.random.default_rng(4)
    for _ in range(30):
        workload = random_workload(rng)
        queries = measured_of(workload.blocks, rng)
        if not queries:
            continue
        zeros = np.zeros(len(queries))
        surrogates, partition = surrogates_of(queries, workload.shape_of_domain, noisy=zeros)
        masses = random_masses(rng, partition, 9)
        rows = partition.rows(masses.astype(np.float32))
        expected = [rows.answer(block).ravel()[row] for block, row in queries]
        error = surrogates.misfit(masses).error
        assert error == pytest.approx(np.sum(np.square(expected)), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_the_gradient_of_the_surrogates_is_that_of_finite_differences(seed):
    rng = np.random.default_rng(seed)
    blocks = [random_block(rng, (4, 3, 5, 3), most=4) for _ in range(4)]
    queries = measured_of(blocks, rng)
    surrogates, partition = surrogates_of(queries, (4, 3, 5, 3), noisy=rng.random(len(queries)))
    masses = random_masses(rng, partition, 3)
    gradient = surrogates.misfit(masses).gradient
    for g in range(partition.count):
        for row in range(3):
            step = np.zeros_like(masses)
            step[g, row] = 1e-6
            ends = [surrogates.misfit(masses + move).error for move in (step, -step)]
            rise = ends[0] - ends[1]
            assert 3 * rise / 2e-6 == pytest.approx(gradient[g, row], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("k", "r"), [(k, r) for k in range(1, 6) for r in range(1, k + 1)])
def test_the_programme_of_a_tail_equals_its_sum_over_all_outcomes(k, r):
    p = np.random.default_rng(5).random((k, 4))
    expected = np.zeros(4)
    for hits in product((0, 1), repeat=k):
        each = [q if h else 1 - q for q, h in zip(p, hits, strict=True)]
        expected += np.multiply.reduce(each, axis=0) * (sum(hits) >= r)
    np.testing.assert_allclose(threshold_probability(p, r)[0], expected, atol=1e-12)


def records_of(shape, n, rng):
    """Records with attributes that depend on each other."""
    records = np.stack([rng.binomial(size - 1, 0.3, n) for size in shape], axis=1)
    records[:, 1] = np.where(rng.random(n) < 0.7, records[:, 0] % shape[1], records[:, 1])
    x = np.zeros(shape)
    np.add.at(x, tuple(records.T), 1)
    return x


def rounds_of(workload, x, *, rounds, size, std, rng):
    """Rounds of queries drawn without order, as a run would measure them."""
    places = [(p, j) for p, block in enumerate(workload.blocks) for j in range(block.queries)]
    order = rng.permutation(len(places))[: rounds * size].reshape(rounds, size)
    answers = [block.matvec(x.ravel()) for block in workload.blocks]
    for positions in order:
        chosen = np.array([places[i] for i in positions])
        exact = np.array([answers[p][j] for p, j in chosen])
        yield round_of(chosen, exact + std * rng.normal(size=size), max(std, 0.1))


def test_relaxed_rows_meet_answers_without_noise():
    rng = np.random.default_rng(6)
    x = records_of(MIXED.shape_of_domain, 1000, rng)
    projection = RapProjection(MIXED, RapSettings(1, 40, 200, 0), x.sum())
    for one_round in rounds_of(MIXED, x, rounds=1, size=40, std=0.0, rng=rng):
        projection.add(one_round)
        met = [projection.answers(p)[j] for p, j in one_round.chosen]
        np.testing.assert_allclose(met, one_round.noisy, atol=2)


def test_a_replay_gives_the_same_rows_byte_for_byte():
    rng = np.random.default_rng(7)
    x = records_of(MIXED.shape_of_domain, 500, rng)
    settings = RapSettings(3, 5, 50, 3)
    projection = RapProjection(MIXED, settings, x.sum())
    rounds = tuple(rounds_of(MIXED, x, rounds=3, size=5, std=4.0, rng=rng))
    for one_round in rounds:
        projection.add(one_round)
        projection.answers(0)
    again = replay(MIXED, settings, MeasuredRun(float(x.sum()), 0.0, (), 0.0, rounds))
    assert again.rows.values.tobytes() == projection.rows.values.tobytes()
    other = RapProjection(MIXED, RapSettings(3, 5, 50, 4), x.sum())
    other.add(rounds[0])
    assert other.rows.values.tobytes() != projection.rows.values.tobytes()


def test_what_no_query_tells_apart_stays_spread_evenly():
    shape = (6, 3)
    block = marginal(shape, (0, 1))
    projection = RapProjection(Workload(shape, (block,), (1.0,)), RapSettings(1, 1, 20, 0), 100.0)
    np.testing.assert_allclose(projection.answers(0), 100 / 18, rtol=1e-5)
    projection.add(round_of(np.array([[0, 4]]), np.array([40.0]), 0.5))  # code 1 and code 1
    table = projection.answers(0).reshape(shape)
    assert table[1, 1] == pytest.approx(40, abs=1)
    rest = np.delete(table, 1, axis=0)
    np.testing.assert_allclose(rest, np.broadcast_to(rest[0], rest.shape), rtol=1e-5)
    np.testing.assert_allclose(rest[:, 0], rest[:, 2], rtol=1e-5)


def test_precise_answers_weigh_more_than_noisy_ones():
    block = marginal((2, 2), (0,))
    workload = Workload((2, 2), (block,), (1.0,))
    projection = RapProjection(workload, RapSettings(2, 1, 20, 0), 100.0)
    projection.add(round_of(np.array([[0, 0]]), np.array([30.0]), 1.0))
    projection.add(round_of(np.array([[0, 0]]), np.array([60.0]), 10.0))
    assert projection.answers(0)[0] == pytest.approx(30.3, abs=1.5)


@pytest.mark.parametrize("seed", range(8))
def test_the_gradient_by_whole_tables_is_that_of_the_same_queries_one_by_one(seed):
    rng = np.random.default_rng(seed)
    shape = (4, 3, 2, 3)
    blocks = tuple(random_block(rng, shape, most=4) for _ in range(4))
    noisy = tuple(rng.random(block.queries) for block in blocks)
    tables = WholeTables(Workload(shape, blocks, (1.0,) * 4), noisy, (1.0,) * 4)
    masses = random_masses(rng, tables.partition, 5)
    by_table = tables.misfit(masses)
    queries = [(block, j) for block in blocks if block.attributes for j in range(block.queries)]
    answers = np.concatenate(
        [values for values, b in zip(noisy, blocks, strict=True) if b.attributes]
    )
    measured = MeasuredQueries()
    for (block, row), answer in zip(queries, answers, strict=True):
        measured.add(block, row, noisy=answer, std=1.0)
    one_by_one = measured.query_answers(tables.partition, rows=5).misfit(masses)
    assert by_table.error == pytest.approx(one_by_one.error, rel=1e-6)
    assert by_table.worst == pytest.approx(one_by_one.worst, rel=1e-6)
    np.testing.assert_allclose(by_table.gradient, one_by_one.gradient, rtol=1e-5, atol=1e-6)


def test_all_queries_measured_at_once_are_fitted_as_whole_tables():
    rng = np.random.default_rng(9)
    x = records_of(MIXED.shape_of_domain, 2000, rng)
    exact = MIXED.matvec(x.ravel())
    noisy = exact + 3 * rng.normal(size=len(exact))
    settings = RapSettings(1, 0, 1500, 0)
    measurement = MeasuredRun(2000.0, 0.0, (), 0.0, (round_of(all_places(MIXED), noisy, 3.0),))
    projection = replay(MIXED, settings, measurement)
    answers = np.concatenate([projection.answers(p) for p in range(len(MIXED.blocks))])
    assert np.sqrt(np.mean((answers - noisy) ** 2)) < 3.5
    assert np.sqrt(np.mean((answers - exact) ** 2)) < 3
    with pytest.raises(ValueError, match="answers for"):
        RapProjection(MIXED, settings, 2000.0).add(round_of(all_places(MIXED), noisy[1:], 3.0))


def test_measured_queries_are_held_and_not_those_they_were_chosen_from():
    shape = (5000, 4000, 3000)
    block = marginal(shape, (0, 1, 2))  # 6e10 queries
    workload = Workload(shape, (block,), (1.0,))
    tracemalloc.start()
    projection = RapProjection(workload, RapSettings(1, 3, 20, 0), 1000.0)
    projection.add(
        round_of(np.array([[0, 5], [0, 10**9], [0, 6 * 10**10 - 1]]), np.full(3, 300.0), 1.0)
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * 20 * sum(shape) * 4


def test_a_descent_ends_at_the_noise_level_or_where_answers_contradict_each_other():
    block = marginal((3,), (0,))
    workload = Workload((3,), (block,), (1.0,))
    places = np.array([[0, 0], [0, 1], [0, 2]])
    for answers, std, met in (([50, 30, 20], 1.0, True), ([90, 90, 90], 1.0, False)):
        projection = RapProjection(workload, RapSettings(1, 3, 20, 0), 100.0)
        projection.add(round_of(places, np.array(answers, dtype=float), std))
        residual = np.sum(np.square(projection.answers(0) - answers))
        assert (residual <= 3 * std**2 * 1.01) == met
        assert projection.steps <= 1000
    np.testing.assert_allclose(projection.answers(0), 100 / 3, rtol=0.01)
