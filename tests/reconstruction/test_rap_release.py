"""A release of relaxed rows says that its errors are unknown, and can be told from its records."""

import json
import math
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from dpquery.exceptions import SpecError
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.operators.compile import compile_spec
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.reconstruction.relaxed.rows import RelaxedRows, rows_digest
from dpquery.releases.folder.noisy_files import class_labels, read_relaxed, relaxed_table
from dpquery.releases.folder.write import write_release
from dpquery.releases.manifest import (
    AnsweredFacts,
    LedgerFacts,
    StrategyFacts,
    manifest_of,
    read_manifest,
)
from dpquery.releases.manifest_facts import RapFacts, SimulatedFacts
from dpquery.releases.report.figures import headline, load_report
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
        spec=spec,
        answers=answers,
        manifest=manifest(rap),
        replace=False,
        relaxed=relaxed_table(relaxed(), DOMAIN, classes),
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
            write_release(tmp_path / "out", spec=spec, answers=given, manifest=facts, replace=False)
        assert not (tmp_path / "out").exists()


def test_the_summary_of_errors_holds_no_figure(tmp_path):
    release(tmp_path / "out")
    (first, *rest) = pq.read_table(tmp_path / "out" / "errors.parquet").to_pylist()
    assert [fact["item"] for fact in (first, *rest)] == [item.name for item in ITEMS]
    assert rest[1] == dict.fromkeys(first) | {"item": "pyramid", "queries": 60, "weight": 2.0}


def test_the_manifest_holds_the_run_and_no_figure_that_nobody_knows(tmp_path):
    release(tmp_path / "out")
    raw = json.loads((tmp_path / "out" / "release.json").read_text())
    assert raw["guarantee"]["mechanism"] == "relaxed adaptive projection"
    assert raw["guarantee"]["kind"] == "zcdp"
    assert raw["rap"] == json.loads(json.dumps(asdict(RAP)))
    assert {raw["strategy"][name] for name in ("rmse", "max_std_error", "ratio")} == {None}
    assert read_manifest(tmp_path / "out") == manifest()
    assert "relaxed_rows.parquet" in manifest().files


def test_the_statement_says_in_words_that_there_are_no_error_bars():
    text = " ".join(statement(manifest()).split())
    for words in (
        "relaxed adaptive projection",
        "Estimates are biased",
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
    ):
        assert words in text, words
    for words in ("noise interval", "unbiased", "standard error of that noise", "expected RMSE"):
        assert words not in text, words


def test_words_are_escaped_once_and_only_where_they_would_be_markup(tmp_path):
    fitted = replace(RAP, simulated=replace(SIMULATED, proxy="the public file <b>.csv"))
    report = release(tmp_path / "out", fitted)
    assert "the public file <b>.csv" in "\n".join(headline(report))
    assert "the public file &lt;b>.csv" in statement(report.manifest)
    assert "the public file &lt;b&gt;.csv" in page(report)


def test_the_statement_of_later_answers_says_what_was_measured_and_what_was_read():
    later = AnsweredFacts("k1", "m" * 64)
    at_once = replace(RAP, selection_scale=None, simulated=None)
    for fitted in (RAP, at_once):
        text = " ".join(statement(replace(manifest(fitted), answered=later)).split())
        assert "read off its `relaxed_rows.parquet`, which was computed from its noisy" in text
        assert "that was asked for was measured" not in text
    assert "Every count that the release was made for was measured with noise, once" in text


def test_the_statement_counts_among_what_is_noisy_which_counts_were_chosen():
    """How much noise a round takes follows from its choices: how many one record can answer."""
    text = " ".join(statement(manifest(RAP)).split())
    assert "noisy measurements, which of them were made and with how much noise, and its" in text


def test_one_round_and_one_count_are_one():
    fitted = replace(RAP, rounds=1, selected=1, noise_std=(20.0,))
    text = " ".join(statement(manifest(fitted)).split())
    assert "In one round, 1 count on which the relaxed rows were far from the records was" in text


def test_the_statement_tells_what_was_declared_and_what_was_not_simulated():
    fitted = replace(RAP, total_std=None, selection_scale=None, simulated=None)
    text = " ".join(statement(manifest(fitted)).split())
    assert "scaled to the declared number of records, 1,234" in text
    assert "Every count that was asked for was measured with noise, once, and the relaxed" in text
    assert "every count is paid for" in text
    assert "which of them were made" not in text
    section = text.split("## How the numbers")[1].split("## How to read")[0]
    for words in ("choice", "Choices", "round", "After each"):
        assert words not in section, words
    assert "none were simulated for these questions" in text
    text = " ".join(statement(manifest(replace(RAP, declared=1500))).split())
    assert "Answers are scaled to 1,234 records: their number was measured too" in text
    assert "noise of standard deviation 7.5, and weighed by inverse variances with the" in text
    assert "declared number, 1,500, which was given a standard deviation of half" in text


def test_an_rmse_that_weighs_items_differently_is_called_weighted(tmp_path):
    report = release(tmp_path / "out", replace(RAP, simulated=replace(SIMULATED, weighted=True)))
    assert "measured: weighted RMSE 31.4 (spread 2.5) and largest" in "\n".join(headline(report))
    assert "measured: weighted RMSE 31.4" in " ".join(statement(report.manifest).split())
    assert "Simulated weighted RMSE" in page(report)


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
