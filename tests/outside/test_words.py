"""What words and signs mean, held against the numbers in the files."""

import re
from pathlib import Path

import pandas as pd
import pytest
from town import run

SPEC = """\
dataset: {id: ops}
privacy: {unit: row, delta: 1e-6}
budget: {epsilon: 10, delta: 1e-6}
domain:
  x: {values: [a, b, c, d, e]}
workload:
  - {name: t, product: {x: identity}}
  - {name: n, product: {}}
derived:
  - {name: s, share: {of: t}}
"""


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_what_stands_behind_the_sign_is_half_of_the_interval(tmp_path, monkeypatch, noise, level):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("s.yaml").write_text(SPEC)
    Path("d.csv").write_text("x\n" + "a\nb\nc\nd\nd\ne\n" * 90)
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
    how = ("--epsilon", 1, "--noise", noise, "--confidence", level)
    assert run("release", "d.csv", *how).code == 0
    printed = run("error-report").out
    assert f"{100 * level:g} % within" in printed
    for item in ("t", "n"):
        rows = pd.read_parquet(f"release/{item}.parquet")
        halves = (rows["ci_high"] - rows["ci_low"]) / 2 / rows["estimate"].abs()
        (line,) = re.findall(rf"^{item} .*$", printed, re.MULTILINE)
        typical, worst = (float(figure) for figure in re.findall(r"±([\d.]+) %", line))
        assert typical == pytest.approx(100 * halves.median(), rel=0.06)
        assert worst == pytest.approx(100 * halves.max(), rel=0.06)
    shares = pd.read_parquet("release/s.parquet")
    half = 100 * (shares["ci_high"] - shares["ci_low"]).median() / 2
    (line,) = re.findall(r"^s .*$", printed, re.MULTILINE)
    assert float(re.search(r"±([\d.]+) points", line)[1]) == pytest.approx(half, rel=0.01)
    assert f"half of the {100 * level:g} % interval" in printed


def test_a_share_that_nothing_is_known_of_is_not_seven_hundred_points(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("s.yaml").write_text(SPEC)
    Path("d.csv").write_text("x\na\nb\n")
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
    for number in range(1, 9):
        how = ("--epsilon", "0.1", "--release-number", number, "--replace", "--confidence", "0.99")
        assert run("release", "d.csv", *how).code == 0
        printed = run("error-report").out
        for width in re.findall(r"(?<!over )±([\d,.]+) points", printed):
            assert float(width.replace(",", "")) <= 100
