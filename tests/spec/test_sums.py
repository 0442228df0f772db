"""Sums: what they add up, what they weigh, and what a release of them says."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from specs import unhashed, with_true_figures
from town import ok, refused

from dpquery import answer, plan, release
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_SUMMED_VALUE
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting.exact_answers import RECORD_BITS
from dpquery.measurement.rounds.queries import rap_rounds
from dpquery.operators.blocks import Workload, product
from dpquery.operators.compile import compile_questions, compile_spec, finer_classes, merged_codes
from dpquery.operators.factors import Dense, Identity, Valued, total
from dpquery.operators.ranges import AllRanges, Prefix
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.reconstruction.columns import query_structure
from dpquery.releases.report.figures import load_report
from dpquery.spec.columns import Bins
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Privacy
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.minimax import largest_standard_error, score
from dpquery.strategy.sensitivity import factor_norms, sensitivity
from dpquery.strategy.shapes.direct import DirectStrategy, combination
from dpquery.strategy.shapes.marginals import ProductStrategy
from dpquery.strategy.shapes.splits import DenseFactorSplit, split_by

HEAD = """\
dataset: {id: work, version: 1}
privacy: {unit: row}
budget: {epsilon: 1000000}
domain:
  sex: {values: [F, M], other: drop}
  hours: {range: [0, 3]}
  size: {bins: [0, 10, 50]}
workload:
"""
ITEMS = """\
  - {name: people, product: {sex: identity+total}}
  - {name: hours, sum: {of: hours, by: {sex: identity+total}}}
  - {name: up_to, sum: {of: hours, by: {hours: prefix}}}
  - {name: long, where: {hours: {between: [2, 3]}}, sum: {of: hours, by: {sex: identity}}}
  - {name: size, sum: {of: size, value: {0: -5, 10: 30, other: 7}, by: {sex: identity}}}
  - name: both
    union: [{sum: {of: size, value: [1, 9]}}, {sum: {of: size, value: [1, 9], by: {sex: identity}}}]
"""
SPEC = HEAD + ITEMS
VALUES = np.array([7, -3, 0, 40, 12, 1, 1])
SCORED = "  - {name: s, sum: {of: hours, value: [2, 0, 2, 0]}}\n"
LATER = """\
workload:
  - {name: women, where: {sex: F}, sum: {of: hours, by: {hours: {groups: {short: [[0, 1]]}}}}}
  - {name: scores, sum: {of: hours, value: [0, 1, 1, -4]}}
"""
TEXTS = ["0", "1", "2", "3", "4", "5", "6", "120", "", "2.5", "5.0"]


def records(count=300):
    """Made-up records, some with texts that the spec does not declare."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "sex": rng.choice(["F", "M", "?"], count),
            "hours": rng.choice(TEXTS, count),
            "size": rng.choice(["0", "9.5", "10", "49", "50", "none"], count),
        }
    )


def numbers(data):
    """The records that are counted, with what each adds, worked out by pandas."""
    kept = data[data["sex"] != "?"].copy()
    hours = pd.to_numeric(kept["hours"])
    kept["hours"] = hours.where(hours.isin(range(4)), 0).astype(int)
    size = pd.to_numeric(kept["size"], errors="coerce")
    kept["bin"] = np.where(size.between(0, 50, "left"), np.where(size < 10, 0, 1), 2)
    return kept


def expected(data):
    """The sums of every item, in the order of its rows."""
    kept = numbers(data)
    by_sex = kept.groupby("sex")
    size = kept["bin"].map({0: -5, 1: 30, 2: 7})
    scored = kept["bin"].map({0: 1, 1: 9, 2: 0})
    long = kept["hours"].where(kept["hours"] >= 2, 0)
    return {
        "people": [*by_sex.size(), len(kept)],
        "hours": [*by_sex["hours"].sum(), kept["hours"].sum()],
        "up_to": [kept["hours"].where(kept["hours"] <= j, 0).sum() for j in range(4)],
        "long": [*long.groupby(kept["sex"]).sum()],
        "size": [*size.groupby(kept["sex"]).sum()],
        "both": [scored.sum(), *scored.groupby(kept["sex"]).sum()],
    }


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A release of every cell, and the report of the plan: a search for it would take long."""
    folder = tmp_path_factory.mktemp("sums")
    (folder / "workload.yaml").write_text(SPEC)
    records().to_csv(folder / "data.csv", index=False)
    report = plan(
        folder / "workload.yaml",
        plan_path=folder / "dpquery.plan",
        ledger_path=folder / "ledger.db",
        mechanism="linear",
        time_limit=0.1,
    )
    raw = unhashed((folder / "dpquery.plan").read_text())
    cells = tuple(map(Identity, compile_spec(read(SPEC)).workload.shape_of_domain))
    raw["selections"][0]["strategy"] = ProductStrategy("cells", "laplace", cells).encode()
    (folder / "dpquery.plan").write_text(json.dumps(with_true_figures(raw)))
    release(
        folder / "data.csv",
        epsilon=10000,
        plan_path=folder / "dpquery.plan",
        ledger_path=folder / "ledger.db",
        out=folder / "release",
        also=["nonnegative", "consistent", "integer"],
    )
    return folder, report


def read(text):
    return parse(text, name="w.yaml", files={})


def test_a_release_with_hardly_any_noise_holds_the_sums_of_pandas(planned):
    folder, _ = planned
    for name, sums in expected(records()).items():
        rows = pd.read_parquet(folder / "release" / f"{name}.parquet")
        assert rows["std_error"].max() < 0.1
        assert rows["estimate"].round().tolist() == sums
        assert ((rows["ci_low"] <= rows["estimate"]) & (rows["estimate"] <= rows["ci_high"])).all()
        for column in ("consistent", "integer"):
            assert rows[column].isna().all() == (name != "people")
        assert rows["nonnegative"].isna().all() == (name == "size")  # which may be negative


def test_a_release_says_what_its_sums_add_up_and_how_much(planned):
    folder, _ = planned
    manifest = json.loads((folder / "release" / "release.json").read_text())
    summed = {item["name"]: item.get("summed") for item in manifest["items"]}
    assert summed["people"] is None
    assert "summed" not in manifest["items"][0]
    assert summed["hours"] == {"of": "hours", "largest": 3, "other": 0}
    rounding = (
        "a record adds one number for its bin; a record beyond 2 bins of [0, 50) adds 7, however "
        "far; no interval includes this"
    )
    assert summed["size"] == {"of": "size", "largest": 30, "other": 7, "rounding": rounding}
    (consistent,) = (column for column in manifest["extra"] if column["name"] == "consistent")
    assert {empty["item"] for empty in consistent["empty"]} == summed.keys() - {"people"}
    assert {empty["reason"] for empty in consistent["empty"]} == {
        "its queries are sums, not counts"
    }
    (nonnegative,) = (column for column in manifest["extra"] if column["name"] == "nonnegative")
    assert nonnegative["empty"] == [{"item": "size", "reason": "its sums may be negative"}]
    statement = (folder / "release" / "statement.md").read_text()
    assert "sums of size: one record adds at most 30 either way, and one without" in statement
    assert f"without a declared value 7; {rounding}" in statement
    assert "each error of a sum divided by the largest value of a record: " in statement
    done = ok("error-report", folder / "release", "--html", folder / "r.html")
    assert "hours (sum of hours)" in done.out
    assert f"size and means of it: {rounding}" in done.out
    assert "hours and means of it" not in done.out
    text = (folder / "r.html").read_text()
    assert "RMS error by item, in counts" in text
    assert "RMS error by item, in the unit of hours" in text


def test_a_mean_over_bins_is_off_by_no_more_than_is_said_and_may_be_by_so_much():
    chance = np.random.default_rng(3)
    for _ in range(30):
        edges = np.cumsum(chance.integers(1, 40, size=6)) - 50
        numbers = [int(chance.integers(low, high + 1)) for low, high in pairwise(edges)]
        words = Bins((*map(float, edges),)).rounding_words(numbers)
        most = float(words.partition("up to ")[2].partition(" ")[0])
        low, high = map(float, words.partition("(in ")[2].partition(")")[0].split(" to "))
        assert most == max(abs(numbers[[*edges].index(low)] - end) for end in (low, high))
        assert words.endswith(")")
        own = np.linspace(edges[0], edges[-1], 100_001)
        added = np.array(numbers)[np.searchsorted(edges[1:-1], own, side="right")]
        assert most - 0.01 <= np.abs(own - added).max() <= most
    assert "up to" not in Bins((0.0, 1.0, 2.0)).rounding_words([0, 150])  # in another unit


def test_figures_over_several_items_take_sums_over_their_largest_value(planned):
    folder, report = planned
    best = report.priced[0]
    errors = report.errors.set_index("item")
    largest = {"people": 1, "hours": 3, "up_to": 3, "long": 3, "size": 30, "both": 9}
    squares = [row.queries * (row.rmse / largest[name]) ** 2 for name, row in errors.iterrows()]
    assert best.rmse == pytest.approx(np.sqrt(sum(squares) / errors["queries"].sum()))
    assert best.weighted_rmse == pytest.approx(best.rmse)
    most = max(row.max_std_error / largest[name] for name, row in errors.iterrows())
    assert best.max_std_error == pytest.approx(most)
    reported = load_report(folder / "release")
    stated = json.loads((folder / "release" / "release.json").read_text())["strategy"]["rmse"]
    assert reported.rmse == pytest.approx(stated)


def test_sums_are_answered_later_from_what_was_measured(planned, tmp_path):
    folder, _ = planned
    (tmp_path / "later.yaml").write_text(LATER)
    done = answer(folder / "release", tmp_path / "later.yaml", out=tmp_path / "answers")
    kept = numbers(records())
    women = kept[(kept["sex"] == "F") & (kept["hours"] <= 1)]["hours"].sum()
    scores = kept["hours"].map({0: 0, 1: 1, 2: 1, 3: -4}).sum()
    for name, value in (("women", women), ("scores", scores)):
        (estimate,) = pd.read_parquet(tmp_path / "answers" / f"{name}.parquet")["estimate"]
        assert round(estimate) == value
    manifest = json.loads((tmp_path / "answers" / "release.json").read_text())
    assert manifest["items"][1]["summed"] == {"of": "hours", "largest": 4, "other": 0}
    largest = [
        pd.read_parquet(tmp_path / "answers" / f"{name}.parquet")["std_error"].max() / unit
        for name, unit in (("women", 3), ("scores", 4))
    ]
    assert done.max_std_error == pytest.approx(max(largest))


def test_a_later_sum_may_not_tell_apart_what_was_counted_as_one():
    classes = compile_spec(read(HEAD + SCORED)).classes
    (later,) = read(HEAD + "  - {name: t, sum: {of: hours}}\n").items[0].tables
    assert list(merged_codes(later, classes)) == [(1, 0, 2)]  # no hours, and two
    (same,) = read(HEAD + "  - {name: t, sum: {of: hours, value: [5, 0, 5, 0]}}\n").items[0].tables
    assert list(merged_codes(same, classes)) == []


def test_codes_that_add_the_same_are_one_class_until_something_tells_them_apart():
    spec = read(HEAD + SCORED)
    hours = compile_spec(spec).classes[1]
    assert hours.tolist() == [0, 1, 0, 1, 1]  # the last adds what is not declared
    tables = [table for item in read(SPEC).items for table in item.tables]
    finer = finer_classes(compile_spec(spec).classes, tables)
    assert len(set(finer[1].tolist())) == 5
    block = compile_questions(spec, finer).workload.blocks[0]
    assert block.factors[0].dense().tolist() == [[2, 0, 2, 0, 0]]


def test_a_sum_weighs_what_its_counts_would_whatever_its_unit():
    """In minutes a sum has sixty times the error, and the plan is the same."""
    text = HEAD + (
        "  - {name: n, product: {sex: identity}}\n"
        "  - {name: s, weight: 3, sum: {of: hours, value: [0, 1, 2, 5], "
        "by: {sex: identity}}}\n"
    )
    minutes = text.replace("[0, 1, 2, 5]", "[0, 60, 120, 300]")
    in_hours, in_minutes = (compile_spec(read(spec)).workload for spec in (text, minutes))
    assert in_hours.weights == (1.0, 3 / 25)
    assert in_minutes.weights == (1.0, 3 / 300**2)
    errors = [
        expected_error(DirectStrategy("d", "gaussian", workload, weights), workload)
        for workload, weights in ((in_hours, (300, 60)), (in_minutes, (300, 1)))
    ]
    for figure in ("rmse", "weighted_rmse", "max_std_error"):
        assert getattr(errors[0], figure) == pytest.approx(getattr(errors[1], figure))
    assert errors[1].blocks[1].max_std_error == pytest.approx(
        60 * errors[0].blocks[1].max_std_error
    )
    goals = [largest_standard_error(workload) for workload in (in_hours, in_minutes)]
    scores = [
        score(goal, error, workload)
        for goal, error, workload in zip(goals, errors, (in_hours, in_minutes), strict=True)
    ]
    assert scores == pytest.approx([errors[0].max_std_error] * 2)


@pytest.mark.parametrize("change", ["enters", "moves"])
@pytest.mark.parametrize(("noise", "power"), [("laplace", 1), ("gaussian", 2)])
def test_a_record_moves_sums_by_no_more_than_the_sensitivity(noise, power, change):
    """All records and all pairs of them, one by one, through what the spec says that they add."""
    workload = compile_spec(read(SPEC.replace("0: -5", "0: -50"))).workload
    weights = (3, 1, 4, 1, 5, 9, 2)
    strategy = DirectStrategy("d", noise, workload, weights)
    columns = []
    for sex in "FM":
        for hours in range(5):
            for size in range(3):
                adds = hours if hours < 4 else 0
                sexes = [sex == "F", sex == "M"]
                row = [3 * int(s) for s in (*sexes, True)]
                row += [adds * int(s) for s in (*sexes, True)]
                row += [4 * adds * int(hours <= j) for j in range(4)]
                row += [adds * int(s) * int(2 <= hours <= 3) for s in sexes]
                row += [5 * (-50, 30, 7)[size] * int(s) for s in sexes]
                row += [9 * (1, 9, 0)[size]]
                row += [2 * (1, 9, 0)[size] * int(s) for s in sexes]
                columns.append(row)
    A = np.array(columns)
    largest = (np.abs(A) ** power).sum(axis=1).max()
    apart = (np.abs(A[:, None] - A) ** power).sum(axis=2).max()
    exact = sensitivity(strategy.measurements, noise, change)
    if change == "enters":
        assert exact == largest
    else:  # a bound for moves: never below, and far from the worst that there is
        assert max(largest, apart) <= exact <= 2**power * largest


def test_the_largest_values_stay_exact():
    """As many records as are counted, times the largest value, fit the integers of answers."""
    assert (MAX_SUMMED_VALUE << RECORD_BITS).bit_length() <= 62
    factor = Valued(compile_spec(read(SPEC)).workload.blocks[0].factors[0], np.full(2, 10**7))
    count = (1 << RECORD_BITS) - 1
    assert factor.matvec(np.array([count, 0])).tolist() == [count * 10**7, 0, count * 10**7]


def test_norms_of_columns_are_exact_where_their_squares_do_not_fit_64_bits():
    n = 700
    factor = Valued(AllRanges(n), np.full(n, -MAX_SUMMED_VALUE))
    exact = [MAX_SUMMED_VALUE**2 * (j + 1) * (n - j) for j in range(n)]
    assert max(exact) >= 1 << 63
    assert factor_norms(factor, 2) == exact
    assert factor.column_norms(2).tolist() == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    "queries",
    [
        Valued(total(7), VALUES),
        Valued(Prefix(7), VALUES),
        Valued(AllRanges(7), VALUES),  # more queries than codes
    ],
)
def test_powers_of_coefficients_on_cells_are_added_up_code_by_code(queries):
    """The closed form for counts does not hold: cells as a matrix of their own are the twin."""
    cells, twin = split_by(Identity(7)), DenseFactorSplit(Dense(np.eye(7, dtype=np.int64)))
    for order in (4, 6):
        assert cells.moments(queries, order) == pytest.approx(twin.moments(queries, order))
    patterns, of_twin = cells.patterns(queries), twin.patterns(queries)
    for name in ("kinds", "levels", "remainders", "reading", "numbers"):
        assert getattr(patterns, name) == pytest.approx(getattr(of_twin, name))


def test_a_combination_of_rows_is_refused_where_one_small_value_differs():
    """Among values of ten millions, one that is off by one is off."""
    values = np.array([10**7, 10**7 - 1, 5, 1])
    measured = product((4,), {0: Valued(total(4), values)})
    workload = Workload((4,), (measured,), (1.0,))
    other = values + np.eye(4, dtype=np.int64)[3]
    for wanted, found in ((values, True), (-3 * values, True), (other, False)):
        asked = product((4,), {0: Valued(total(4), wanted)})
        assert (combination(workload, (1,), asked) is not None) == found


def test_a_sum_of_values_that_are_all_one_is_not_taken_for_a_total():
    spec = read(HEAD + "  - {name: s, sum: {of: hours, value: [1, 1, 1, 1]}}\n")
    (block,) = compile_spec(spec).workload.blocks
    assert block.factors[0].dense().tolist() == [[1, 0]]  # but for other texts


def test_sums_have_no_consistent_answers_but_counts_beside_them_do():
    people, hours, *_ = read(SPEC).items
    assert not query_structure(people.tables[0]).reason
    assert query_structure(hours.tables[0]).reason
    assert not query_structure(replace(hours.tables[0], summed=None)).reason


def test_rap_is_not_compared_for_sums_and_says_why(own_folder):
    text = SPEC.replace("version: 1", "version: 1, rows: about 300")
    text = text.replace("{unit: row}", "{unit: row, delta: 1e-6}")
    text = text.replace("1000000}", "100, delta: 1e-4}")
    (own_folder / "workload.yaml").write_text(text)
    options = ["--mechanism", "rap", "--ledger", "ledger.db"]
    message = refused("plan", "workload.yaml", *options, code=2)
    assert "RAP answers counts, and the item 'hours' is a sum" in message


def test_no_run_of_rap_has_a_price_for_sums():
    """Whatever a plan says: a record moves a sum by more than RAP's noise hides."""
    terms = guarantee("gaussian", epsilon=Fraction(1), delta=Fraction(1, 10**6))
    for item, adds in ((0, False), (1, True)):
        spec = read(SPEC)
        workload = compile_spec(replace(spec, items=(spec.items[item],))).workload
        price = partial(
            rap_rounds, workload, RapSettings(1, 1, 20, 0), privacy=Privacy(), guarantee=terms
        )
        if adds:
            with pytest.raises(UnsupportedWorkloadError, match="RAP answers counts"):
                price(rows=None)
        else:
            price(rows=None)
