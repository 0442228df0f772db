"""What the partial-knowledge study measured last: history helps, drift hurts, zero is worse.

`tests/bench/bench_future.py tests/reference/future.json` measures anew; here its outcome is read.
"""

import json
from pathlib import Path

import pytest

FUTURE = Path(__file__).parents[1] / "reference" / "future.json"
FIGURES = json.loads(FUTURE.read_text())["figures"]


def errors(distribution, name="rap"):
    """Error by size of the history, without drift."""
    rows = [r for r in FIGURES if r["distribution"] == distribution and r["gamma"] == 0]
    return [r[name] for r in sorted(rows, key=lambda r: r["size"])]


@pytest.mark.parametrize("distribution", ["uniform", "zipf", "geometric"])
def test_the_error_of_later_questions_falls_as_the_history_grows(distribution):
    one, *_, last = errors(distribution)
    assert last < one / 2
    assert all(relaxed < one for relaxed in errors(distribution)[1:])
    pairs = zip(errors(distribution), errors(distribution, "all_0"), strict=True)
    assert all(relaxed < zero for relaxed, zero in pairs)


@pytest.mark.parametrize("distribution", ["uniform", "zipf", "geometric"])
def test_a_linear_release_answers_more_of_them_the_longer_its_history(distribution):
    share = errors(distribution, "linear_answerable")
    assert share[-1] > max(share[:2])


def test_the_error_grows_with_drift():
    rows = [r for r in FIGURES if r["distribution"] == "geometric" and r["size"] == 4]
    by_drift = [r["rap"] for r in sorted(rows, key=lambda r: r["gamma"])]
    assert by_drift[0] < by_drift[3] < by_drift[5]
