"""A real data set end to end: errors and intervals mean what they say.

These tests compare releases with true answers, which the product never does.
"""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from dpquery.commands import plan as plan_command
from dpquery.commands import release as release_command

ROOT = Path(__file__).parents[2]
ADULT = ROOT.parent / "shared" / "data" / "adult.csv"
SPEC = ROOT / "workloads" / "adult_basic.yaml"

pytestmark = [
    pytest.mark.skipif(not ADULT.exists(), reason="the Adult data set is not beside the checkout"),
    pytest.mark.statistical,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adult")


def planned(folder, budget):
    text = SPEC.read_text().replace("budget: {epsilon: 4, delta: 1e-9}", f"budget: {budget}")
    assert budget in text
    home = folder / budget.strip("{}").replace(": ", "_").replace(", ", "-")
    home.mkdir()
    (home / "workload.yaml").write_text(text)
    report = plan_command.plan(
        home / "workload.yaml",
        plan_path=home / "dpquery.plan",
        ledger_path=home / "ledger" / "ledger.db",
        mechanism="linear",
        time_limit=math.inf,
    )
    return home, report


def true_counts(item, table, domain):
    """Count one table of an item with pandas alone."""
    data = pd.read_csv(ADULT)
    axes = [(domain.attributes[i].name, len(predicates)) for i, predicates in table.axes]
    cells = np.ravel_multi_index([data[n].to_numpy() for n, _ in axes], [m for _, m in axes])
    counts = np.bincount(cells, minlength=table.size)
    return np.cumsum(counts) if item.name.endswith("_prefix") else counts


def compare(home, report, *, releases, noise):
    """Release again and again; return errors over standard errors, and which intervals cover."""
    truth = {
        item.name: np.concatenate(
            [true_counts(item, table, report.spec.domain) for table in item.tables]
        )
        for item in report.spec.items
    }
    errors, predicted, covered = [], [], []
    for number in range(1, releases + 1):
        release_command.release(
            ADULT,
            plan_path=home / "dpquery.plan",
            ledger_path=home / "ledger" / "ledger.db",
            out=home / "release",
            epsilon=Fraction(1),
            noise=noise,
            release_number=number,
            replace=True,
        )
        for name, answers in truth.items():
            table = pq.read_table(
                home / "release" / f"{name}.parquet",
                columns=["estimate", "std_error", "ci_low", "ci_high"],
            ).to_pandas()
            errors.append((table["estimate"] - answers).to_numpy())
            predicted.append(table["std_error"].to_numpy())
            covered.append(
                ((table["ci_low"] <= answers) & (answers <= table["ci_high"])).to_numpy()
            )
    return np.concatenate(errors), np.concatenate(predicted), np.concatenate(covered)


def check(errors, predicted, covered, *, rmse_within, coverage_within):
    empirical, expected = np.sqrt(np.mean(errors**2)), np.sqrt(np.mean(predicted**2))
    assert empirical == pytest.approx(expected, rel=rmse_within)
    assert covered.mean() == pytest.approx(0.95, abs=coverage_within)
    assert abs(errors.mean()) < 0.2 * expected


CASES = [("laplace", "{epsilon: 100}"), ("gaussian", "{epsilon: 100, delta: 1e-9}")]


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "budget"), CASES)
def test_twenty_releases_of_adult_err_as_predicted_and_cover_95_percent(folder, noise, budget):
    home, report = planned(folder, budget)
    compared = compare(home, report, releases=20, noise=noise)
    check(*compared, rmse_within=0.03, coverage_within=0.01)


@pytest.mark.slow
def test_two_releases_of_adult_err_about_as_predicted(folder):
    home, report = planned(folder, "{epsilon: 50, delta: 1e-9}")
    compared = compare(home, report, releases=2, noise="gaussian")
    check(*compared, rmse_within=0.15, coverage_within=0.04)
