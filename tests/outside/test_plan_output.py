"""What plan prints: each table's error first, what is worst in words, and the rest on request."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from cli_support import SPEC, ok

from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import load_spec

ONE = SPEC.split("  - name: pairs")[0]


def lines_of(*arguments):
    return ok("plan", "workload.yaml", *arguments).out.splitlines()


def figures(line):
    return [float(word.replace(",", "")) for word in line.split() if word[0].isdigit()]


@pytest.mark.nightly
def test_the_error_of_every_item_comes_first(town):
    lines = lines_of("--epsilon", "0.5")
    promised = json.loads(ok("plan", "workload.yaml", "--epsilon", "0.5", "--json").out)
    assert lines[0] == "town: 51 queries in 3 items, epsilon = 0.5: expected error"
    assert lines[1].split() == ["item", "queries", "RMSE", "max", "std", "error"]
    for line, item in zip(lines[2:5], promised["selections"][0]["items"], strict=True):
        assert line.split()[0] == item["name"]
        queries, rmse, largest = figures(line.removeprefix(item["name"]))
        assert queries == item["queries"]
        assert rmse == pytest.approx(item["rmse"], rel=1e-3)
        assert largest == pytest.approx(item["max_std_error"], rel=1e-3)


def test_the_worst_item_is_named_with_what_it_would_err_alone(town):
    """It is no more than what the plain mechanism on the item's own queries errs by."""
    lines = lines_of("--epsilon", "1")
    rmses = {line.split()[0]: figures(line)[-2] for line in lines[2:5]}
    worst = max(rmses, key=rmses.__getitem__)
    words = next(line for line in lines if "errs most" in line)
    assert words.startswith(f"{worst} errs most: a typical answer is off by")
    assert figures(words)[0] == pytest.approx(rmses[worst], rel=1e-3)
    assert f"less than about {2 * rmses[worst]:.4g}"[:-1] in words
    alone = next(line for line in lines if line.startswith("asked alone it would err by"))
    compiled = compile_spec(load_spec(Path("workload.yaml")))
    place = list(rmses).index(worst)
    workload = compiled.workload.select(compiled.items[place])
    every_row = workload.rmatvec(np.ones(workload.shape[0]))  # of zeros and ones
    sensitivity = every_row.max()
    said = float(alone.split()[6].rstrip(":"))
    assert said <= math.sqrt(2) * sensitivity * 1.001
    assert said < 0.9 * rmses[worst]


def test_one_item_is_not_compared_with_itself(town):
    Path("workload.yaml").write_text(ONE)
    text = "\n".join(lines_of())
    assert "errs most" not in text
    assert "asked alone" not in text
    assert "a typical answer is off by" in text


def test_twice_the_epsilon_is_what_is_said_of_it(town):
    once, twice = (
        json.loads(ok("plan", "workload.yaml", "--epsilon", at, "--json").out)
        for at in ("0.7", "1.4")
    )
    one, two = (done["selections"][0]["items"][0]["rmse"] for done in (once, twice))
    assert f"at epsilon = 1.4 all errors are {two / one:.2f} times as large" in lines_of(
        "--epsilon", "0.7"
    )


@pytest.mark.nightly
def test_the_candidates_are_shown_on_request(town):
    plain, full = lines_of(), lines_of("--candidates")
    assert "strategies compared" not in plain
    (count,) = (line for line in plain if line.startswith("--candidates shows the"))
    begin = full.index("strategies compared")
    assert "x bound" in full[begin + 1]
    rows = json.loads(ok("plan", "workload.yaml", "--json").out)["selections"][0]["candidates"]
    assert figures(count) == [len(rows)]
    shown = {row["name"] for row in rows if row["rmse"] is not None}
    assert shown <= {line.split()[1] for line in full[begin + 2 :] if line}
