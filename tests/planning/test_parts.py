"""What is too large to be rehearsed is judged on a part of it, in time, and says so."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rounds import plan
from town import ok

from dpquery.exceptions import OutOfTimeError
from dpquery.operators.blocks import Workload, marginal, product
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Dense
from dpquery.operators.gram import gram
from dpquery.planning.rehearsal.part import (
    PART_ATTRIBUTES,
    Errors,
    finished_in_time,
    parts_of,
    whole_of,
)
from dpquery.planning.rehearsal.populations import proxies_for
from dpquery.planning.rehearsal.runs import LinearStage, rehearse_columns
from dpquery.reconstruction.columns import ExtraColumn
from dpquery.releases.words import figure
from dpquery.spec.parsing.read import parse
from dpquery.strategy.expected_error import expected_error, squared_sensitivity
from dpquery.strategy.search.candidates import Problem, residual_candidate


def wide_spec(attributes, values=3, ways=2):
    """All tables of so many attributes, `ways` at a time."""
    domain = "".join(f"  a{i}: {{range: [1, {values}]}}\n" for i in range(attributes))
    return (
        "dataset: {id: small, rows: about 3000}\nprivacy: {unit: row, delta: 1e-6}\n"
        "budget: {epsilon: 9, delta: 1e-5}\nother: drop\nprefer: closest\n"
        f"domain:\n{domain}workload:\n  - {{name: tables, marginals: {{ways: {ways}}}}}\n"
    )


def star(points):
    """Tables of one attribute with each of the others, which share nothing else."""
    shape = (2,) * (points + 1)
    blocks = tuple(marginal(shape, (0, i)) for i in range(1, points + 1))
    return Workload(shape, blocks, (1.0,) * points)


def test_a_part_is_all_tables_of_some_attributes_and_never_none():
    whole = compile_spec(parse(wide_spec(30), name="wide", files={})).workload
    first, second = parts_of(whole)
    assert [len(part.attributes) for part in (first, second)] == list(PART_ATTRIBUTES)
    assert [len(part.positions) for part in (first, second)] == [24 * 23 // 2, 8 * 7 // 2]
    assert first.share == Fraction(276, 435)
    assert first.words == ", with 24 of the 30 attributes"
    for block in second.narrow.blocks:
        assert math.prod(second.narrow.shape_of_domain) == 3**8
        assert second.attributes.issuperset(block.attributes)
    part = parts_of(star(40))[0]
    assert len(part.positions) == 23  # with the attribute that all tables have
    (small,) = parts_of(star(5))
    assert small.is_whole
    assert small.words == ""


def test_tables_of_more_attributes_than_a_part_has_are_taken_whole():
    wide = marginal((2,) * 12, tuple(range(12)))
    (first,) = parts_of(Workload((2,) * 12, (wide,), (1.0,)))
    assert first.is_whole


def test_of_a_part_columns_err_as_they_do_in_the_whole():
    spec = parse(wide_spec(9), name="wide", files={})
    compiled = compile_spec(spec)
    workload = compiled.workload
    strategy = residual_candidate(Problem(workload, gram(workload), "gaussian", 0)).strategy
    unit = expected_error(strategy, workload).rmse / math.sqrt(squared_sensitivity(strategy))
    estimates = Errors(4e5 * unit, 1.0)
    (proxy, *_) = proxies_for(None, spec, compiled, rows=3000)
    _, part = parts_of(workload)
    errors = []
    for each in (whole_of(workload), part):
        stage = LinearStage(
            *each.of_spec(spec, compiled), each.of_strategy(strategy), "gaussian", 4e5
        )
        runs = [
            rehearse_columns(stage, [ExtraColumn("shrunk")], proxy, seed=k)[0] for k in range(3)
        ]
        scaled = each.scaled(runs, strategy, noise_std=4e5, estimates=estimates)
        errors.append(np.mean([run.rmse for run in scaled]))
    assert errors[1] == pytest.approx(errors[0], rel=0.25)


def test_what_is_not_finished_is_tried_on_less_and_then_given_up():
    parts, tried = parts_of(star(40)), []

    def rehearsal(part, end):
        tried.append(len(part.positions))
        if len(part.positions) > fits:
            raise OutOfTimeError("no")
        return part

    fits = 7
    assert finished_in_time(parts, 1.0, rehearsal) is parts[1]
    fits = 0
    with pytest.raises(OutOfTimeError):
        finished_in_time(parts, 1.0, rehearsal)
    assert tried == [23, 7, 23, 7]


def test_a_wide_plan_compares_on_a_part_and_says_which(small):
    Path("workload.yaml").write_text(wide_spec(26))
    shown = plan("--epsilon", "0.5")
    where = "3 made-up populations, with 24 of the 26 attributes"
    assert shown["closest"]["proxy"] == shown["adaptive"]["proxy"] == where
    assert shown["adaptive"]["tables"] == 26 + 26 * 25 // 2  # those of a release


def test_a_plan_that_compared_nothing_says_so_on_its_first_screen(small):
    Path("workload.yaml").write_text(wide_spec(4))
    shown = ok("plan", "workload.yaml", "--time-limit", "0").out
    words = "nothing nearer was compared: a release gives the unbiased estimates"
    assert words in " ".join(shown.split())


@pytest.mark.nightly
def test_where_a_guess_errs_far_less_a_plan_of_estimates_says_so_and_by_how_much(small):
    Path("workload.yaml").write_text(wide_spec(9).replace("prefer: closest\n", ""))
    shown = plan("--epsilon", "0.03")
    best = shown["chosen"]["strategy"]
    (candidate,) = (c for c in shown["selections"][0]["candidates"] if c["name"] == best)
    assert shown["nearer"]["rmse"] < 0.7 * candidate["rmse"]
    assert "nearer" not in plan("--epsilon", "20")
    screen = " ".join(ok("plan", "workload.yaml", "--epsilon", "0.03").out.split())
    assert "`prefer: closest` would have an error of about" in screen
    assert f"instead of {figure(candidate['rmse'])}" in screen
    Path("workload.yaml").write_text(wide_spec(9))
    contenders = plan("--epsilon", "0.03", "--mechanism", "linear")["closest"]["contenders"]
    (guess,) = (c for c in contenders if c["column"] == "shrunk" and c["strategy"] != "Sparse")
    assert shown["nearer"]["rmse"] == pytest.approx(guess["rmse"], rel=0.3)


def test_a_plan_that_is_not_known_to_be_faint_is_not_tried(small, monkeypatch):
    def never(_, queries=None):
        assert queries, "the best guess is tried beside estimates"

    monkeypatch.setattr("dpquery.planning.compare_mechanisms.quick_part", never)
    unasked = wide_spec(4).replace("prefer: closest\n", "")
    for text in (wide_spec(4), unasked.replace(", rows: about 3000", "")):
        Path("workload.yaml").write_text(text)
        plan("--epsilon", "0.5", "--mechanism", "linear")
    Path("workload.yaml").write_text(unasked)
    assert "nearer" not in plan("--epsilon", "8")


def write_wide(attributes, rows=3000):
    """Write records in which every attribute follows the one before it in a tenth of them."""
    rng = np.random.default_rng(5)
    codes = rng.choice(6, (rows, attributes), p=[0.75, *[0.05] * 5]) + 1
    for i in range(1, attributes):
        codes[:, i] = np.where(rng.random(rows) < 0.1, codes[:, i - 1], codes[:, i])
    names = [f"a{i}" for i in range(attributes)]
    pd.DataFrame(codes, columns=names).to_csv("data.csv", index=False)


def test_a_release_says_by_its_noisy_values_how_much_nearer_the_best_guess_is(small):
    Path("workload.yaml").write_text(wide_spec(12, values=6).replace("prefer: closest\n", ""))
    write_wide(12)
    release = ("release", "data.csv", "--epsilon", "0.2", "--mechanism", "linear")
    plan("--epsilon", "0.2")
    shown = json.loads(ok(*release, "--json").out)
    said = shown["nearer"]["rmse"]
    screen = ok(*release, "--replace").out
    assert f"the best guess would have an error of about {figure(said)} instead of" in screen
    assert f"about {figure(said)} instead of" in ok("error-report").out
    assert json.loads(ok("error-report", "--json").out)["nearer"]["rmse"] == said
    with_guess = ok(*release, "--replace", "--also", "shrunk").out
    assert "the best guess would" not in ok("error-report").out
    assert f"closest: `shrunk` has an error of about {figure(said)}, as the noisy" in with_guess
    manifest = json.loads(Path("release/release.json").read_text())
    (column,) = manifest["extra"]
    assert column["expected_rmse"] == pytest.approx(said, rel=1e-3)
    assert said < 0.7 * shown["rmse"]
    table = pd.read_parquet("release/tables.parquet")
    asked = [column for column in table if column.startswith("a") and column[1:].isdigit()]
    data, squares = pd.read_csv("data.csv", dtype=str), []
    for _, row in table.iterrows():
        where = np.ones(len(data), dtype=bool)
        for name in asked:
            if pd.notna(row[name]) and str(row[name]) != "all":
                where &= (data[name] == str(row[name])).to_numpy()
        squares.append((row["shrunk"] - where.sum()) ** 2)
    assert math.sqrt(np.mean(squares)) == pytest.approx(said, rel=0.35)


def test_a_release_with_much_signal_says_nothing_of_guesses(small):
    Path("workload.yaml").write_text(wide_spec(4, values=6).replace("prefer: closest\n", ""))
    write_wide(4)
    plan("--epsilon", "8")
    assert "nearer" not in json.loads(ok("release", "data.csv", "--epsilon", "8", "--json").out)


def test_a_rehearsal_measures_what_a_release_would_however_large_its_whole_numbers(small):
    spec = parse(wide_spec(4, values=7, ways=3), name="wide", files={})
    compiled = compile_spec(spec)
    workload = compiled.workload
    (proxy, *_) = proxies_for(None, spec, compiled, rows=3000)
    factors = {i: Dense(np.full((2, 7), 2**30, dtype=np.int64)) for i in range(3)}
    block = product(workload.shape_of_domain, factors)
    assert proxy.measured(block) == pytest.approx(np.full(8, 3000 * 2.0**90), rel=1e-12)
