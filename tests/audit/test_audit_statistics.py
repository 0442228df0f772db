"""The audit's statistics are right: exact laws, level, power, and what contradicts a claim."""

import inspect
import math
import tempfile
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import binom, binomtest, chi2, kstest, norm
from town import refused

from dpquery.audit import both_sums, end_to_end, installation
from dpquery.audit import rounds_checks as rounds
from dpquery.audit import run as audit_run
from dpquery.audit.cases import CASES, FULL, Size
from dpquery.audit.end_to_end import readers, two_processes
from dpquery.audit.measurements import neighbouring_measurements, repeated_releases, values_of
from dpquery.audit.planned_cases import mu_of, planned_case, rho_of
from dpquery.audit.statistics import (
    ALPHA,
    MOST_TESTS,
    TO_ITS_END,
    Finding,
    NoiseDistribution,
    chi_square,
    clopper_pearson,
    combined,
    goodness_of_fit,
    pooled,
    pure_loss,
    zcdp_loss,
)
from dpquery.cli import show_checks
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.ledger import store
from dpquery.measurement.noise.bulk_noise import BulkSampler
from dpquery.measurement.noise.laws import LAWS

ROUNDED = 1 + 1e-12
NOISES = ["laplace", "gaussian", "rounded"]


def masses(noise, scale, reach):
    """The law from its definition, one value after the other."""
    steps = np.arange(-reach, reach + 1)
    if noise == "rounded":
        far = np.abs(steps)
        return steps, norm.sf((far - 0.5) / scale) - norm.sf((far + 0.5) / scale)
    power = {"laplace": 1, "gaussian": 2}[noise]
    weights = np.exp(-(np.abs(steps) ** power) / (power * scale**power))
    return steps, weights / weights.sum()


@pytest.mark.parametrize("scale", [1.0, 2.0, 3.3, 12.0, 199.0, 201.0, 250.5])
@pytest.mark.parametrize("noise", NOISES)
def test_the_law_is_the_sum_of_its_masses(noise, scale):
    steps, masses_at = masses(noise, scale, math.ceil(45 * scale))
    near = np.abs(steps) <= 12 * scale
    law = NoiseDistribution(noise, Fraction(scale))
    assert np.abs(law.below(steps[near]) - np.cumsum(masses_at)[near]).max() < 1e-11


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_log_ratio_is_that_of_the_masses(noise):
    steps, masses_at = masses(noise, 3.3, 60)
    values, shifts = np.array([[0, 2], [-5, 1], [7, -9]]), np.array([3, -1])
    at = dict(zip(steps.tolist(), np.log(masses_at), strict=True))
    expected = [
        sum(at[v] - at[v - s] for v, s in zip(row, shifts.tolist(), strict=True))
        for row in values.tolist()
    ]
    assert NoiseDistribution(noise, Fraction(3.3)).log_ratio(values, shifts) == pytest.approx(
        expected
    )


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("scale", [1.0, 3.3, 999_983.0])
@pytest.mark.parametrize("noise", NOISES)
def test_p_values_of_sound_noise_are_uniform(noise, scale):
    sampler, law = BulkSampler(LAWS[noise], scale), NoiseDistribution(noise, Fraction(scale))
    p_values = [goodness_of_fit(sampler.sample(8_000), law) for _ in range(300)]
    below = [p for p in p_values if p < 1]  # doubled, so half of them are 1
    assert kstest(below, "uniform").pvalue > 1e-9
    assert binom.sf(len(below) - 1, len(p_values), 0.5) > 1e-9


@pytest.mark.statistical
@pytest.mark.parametrize("factor", [0.95, 1, 1.05])
@pytest.mark.parametrize("scale", [2.0, 3.3, 1000.3, 999_983.0])
@pytest.mark.parametrize("noise", NOISES)
def test_a_scale_five_per_cent_off_is_seen(noise, scale, factor):
    sample = BulkSampler(LAWS[noise], scale).sample(100_000)
    p = goodness_of_fit(sample, NoiseDistribution(noise, Fraction(scale) * Fraction(factor)))
    assert (p > ALPHA) == (factor == 1)


@pytest.mark.parametrize("trials", [2_000, 100_000])
def test_the_tail_of_the_test_is_honest_where_it_decides(trials):
    """Of two cells the exact chance of each outcome is known, down to one in a hundred million."""
    counts = np.arange(trials + 1)
    expected = np.array([0.03, 0.97]) * trials
    near = np.abs(counts - expected[0]) < 8 * math.sqrt(expected[0])
    p = np.array([chi_square(np.array([k, trials - k]), expected) for k in counts[near]])
    chance = binom.pmf(counts[near], trials, 0.03)
    for alpha in (1e-3, 1e-6, ALPHA):
        assert chance[p < alpha].sum() < alpha


def test_cells_of_few_values_are_taken_together():
    counted, expected = np.array([60, 140, 3, 1]), np.array([100.0, 100.0, 2.0, 2.0])
    statistic = 2 * (60 * math.log(0.6) + 140 * math.log(1.4))
    assert chi_square(counted, expected) == pytest.approx(2 * chi2.sf(statistic, 2))


def test_next_cells_are_pooled_until_there_is_something_to_test():
    counted, expected = np.arange(12).reshape(3, 4), np.full((3, 4), 20.0)
    counts, expectations = pooled(counted, expected)
    assert (counts.tolist(), expectations.tolist()) == (
        [0 + 1 + 2, 3 + 4 + 5, 6 + 7 + 8, 9 + 10 + 11],
        [60] * 4,
    )
    counts, expectations = pooled(counted.ravel()[:10], expected.ravel()[:10])
    assert (counts.tolist(), expectations.tolist()) == ([3, 12, 30], [60, 60, 80])
    assert pooled(np.array([7]), np.array([20.0]))[1].tolist() == [20]


def test_counts_that_leave_nothing_to_test_are_no_test():
    for expected in (np.array([100.0]), np.array([20.0, 29.0])):
        with pytest.raises(ValueError, match="too few"):
            chi_square(np.ones(expected.size, np.int64), expected)


def test_too_few_values_are_not_tested():
    with pytest.raises(ValueError, match="too few"):
        goodness_of_fit(np.zeros(99, np.int64), NoiseDistribution("laplace", Fraction(5)))


def test_p_values_are_combined_by_their_number():
    assert combined([0.2, 1e-9, 0.5]) == pytest.approx(3e-9)
    assert combined([0.9, 0.8]) == 1.0


@pytest.mark.parametrize(("successes", "trials"), [(0, 50), (50, 50), (7, 50), (4999, 10_000)])
@pytest.mark.parametrize("alpha", [0.05, ALPHA])
def test_clopper_and_pearson_agree_with_scipy(successes, trials, alpha):
    exact = binomtest(successes, trials).proportion_ci(1 - alpha, method="exact")
    assert clopper_pearson(successes, trials, alpha=alpha) == pytest.approx(tuple(exact), rel=1e-5)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_only_shares_have_bounds(successes, trials):
    with pytest.raises(ValueError, match=str(trials)):
        clopper_pearson(successes, trials, alpha=0.05)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0])
def test_randomised_response_meets_its_epsilon_and_none_smaller(epsilon):
    p, q = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
    assert pure_loss(p, q) == pytest.approx(epsilon)
    assert pure_loss(p, q) <= epsilon * ROUNDED
    assert pure_loss(p, q) > epsilon * 0.999
    assert pure_loss(q, p) == 0


def test_the_complement_of_an_event_tells_as_much_as_the_event():
    assert pure_loss(0.99, 0.9) > 1.0  # P(not E) is 0.01 and 0.1
    assert pure_loss(0.99, 0.9) <= math.log(10) * ROUNDED


def test_what_happens_on_one_side_only_breaks_every_claim():
    assert pure_loss(0.001, 0.0) > 100.0
    assert pure_loss(1.0, 0.999) > 100.0
    assert zcdp_loss(0.001, 0.0) > 100.0
    assert zcdp_loss(1.0, 0.999) > 100.0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_zcdp_of_randomised_response_is_its_renyi_curve(epsilon):
    p, q = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
    orders = 1 + np.geomspace(1e-4, 1e3, 20_000)
    curve = np.logaddexp(
        orders * math.log(p) + (1 - orders) * math.log(q),
        orders * math.log(q) + (1 - orders) * math.log(p),
    ) / ((orders - 1) * orders)
    assert zcdp_loss(p, q) == pytest.approx(curve.max(), rel=1e-3)
    assert zcdp_loss(p, q) <= epsilon**2 / 2
    assert zcdp_loss(q, p) == 0


@pytest.mark.parametrize("rho", [0.01, 0.125, 0.5, 2.0])
def test_no_event_of_a_gaussian_mechanism_breaks_its_own_rho(rho):
    shift = math.sqrt(2 * rho)
    for threshold in np.linspace(-4, 4 + shift, 60):
        p, q = norm.sf(threshold - shift), norm.sf(threshold)
        assert zcdp_loss(p, q) <= rho * ROUNDED
        assert zcdp_loss(1 - q, 1 - p) <= rho * ROUNDED
    middle = norm.sf(-shift / 2), norm.sf(shift / 2)
    assert zcdp_loss(*middle) > rho * 0.5


# The audit's look at every kind of source passes on sound readers, and sees one that is not.


def failed(findings):
    return [finding for finding in findings if not finding.passed]


def test_every_kind_of_source_is_read_record_by_record():
    assert not failed(readers())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("place", "kinds"),
    [
        ("arrow_files.batch_of", {"Parquet", "Arrow"}),
        ("databases.batch_of", {"DuckDB"} if find_spec("duckdb") else set()),
        ("databases._batch_of_rows", {"SQLite"}),
        ("text_files.columns", {"CSV"}),
    ],
)
def test_a_reader_that_loses_a_record_of_a_batch_is_seen(place, kinds, monkeypatch):
    module, _, name = place.rpartition(".")
    module = import_module(f"dpquery.measurement.counting.{module}")
    real = getattr(module, name)

    def loses_the_first(given, *others, **named):
        records = real(given, *others, **named)
        return records._replace(
            columns=[[(values, places[1:]) for values, places in own] for own in records.columns]
        )

    monkeypatch.setattr(module, name, loses_the_first)
    assert {finding.subject.partition(":")[0] for finding in failed(readers())} == kinds


# How many tests of chance the whole audit makes, added up without drawing what they look at.
#
# Every one fails a sound product with probability ALPHA. An audit that makes more of them than its
# false alarm allows ends in an error, after it has run for minutes.


FEW = Size(draws=100, replicates=100, releases=2)
SMALL = next(case for case in CASES if case.name == "marginals of rows")
OF_NO_CHANCE = (
    both_sums,
    end_to_end.readers,
    installation.supply,
    installation.version_finding,
    installation._locked_finding,
    installation._apart_finding,
    installation.files_finding,
    rounds.of_releases,
)
"""What is left out here, as it makes no test of chance: looked up in its text."""


@pytest.fixture
def without_draws(monkeypatch):
    """Every case is the same small one, with a few draws that are never looked at."""
    releases = repeated_releases(SMALL, FEW)
    measurements = neighbouring_measurements(SMALL, FEW)
    monkeypatch.setattr(end_to_end, "neighbouring_measurements", lambda *_: measurements)
    monkeypatch.setattr(end_to_end, "repeated_releases", lambda *_: releases)
    for module, name in (
        *((end_to_end, name) for name in ("goodness_of_fit", "dependence", "repeats")),
        *((installation, name) for name in ("goodness_of_fit", "dependence", "chi_square")),
        (rounds, "chi_square"),
        (end_to_end, "chi_square"),
    ):
        monkeypatch.setattr(module, name, lambda *_, **__: 0.5)
    monkeypatch.setattr(installation, "_noise", lambda *_: np.zeros(1, np.int64))
    monkeypatch.setattr(end_to_end, "_released", lambda *_: np.zeros(1, np.int64))
    kind, write = next(iter(end_to_end.writers().items()))
    monkeypatch.setattr(end_to_end, "writers", lambda: {kind: write})
    monkeypatch.setattr(end_to_end, "readers", lambda: iter(()))
    monkeypatch.setattr(rounds, "ties", lambda *_: (0.5, ""))
    monkeypatch.setattr(rounds, "of_releases", lambda *_: iter(()))
    monkeypatch.setattr(rounds.Bench, "release", released_run)


def released_run(bench, number):
    """A run that went no way through a release."""
    charged = Fraction(bench.query.guarantee.amount)
    return SimpleNamespace(rho=charged, values=bench.vectors("data.csv", 1)[0])


@pytest.mark.nightly
def test_the_whole_audit_makes_no_more_tests_of_chance_than_its_false_alarm_allows(without_draws):
    for part in OF_NO_CHANCE:
        assert "tests=" not in inspect.getsource(part)
        assert "of_chance" not in inspect.getsource(part)
    size = replace(FULL, draws=FEW.draws, replicates=FEW.replicates, releases=FEW.releases)
    counted = {
        name: sum(finding.tests for finding in part(size))
        for name, part in audit_run.PARTS.items()
        if name not in {"charges", "supply"}
    }
    assert min(counted[name] for name in counted if name != "lattice") > 0
    assert sum(counted.values()) <= MOST_TESTS, counted
    assert MOST_TESTS * ALPHA < 1e-6


# The audit is not misled by what is around it, and its last words are of what was run.


FEWER = Size(draws=5_000, replicates=300, releases=12, quick=True)
(ROWS,) = (case for case in CASES if case.name == "marginals of rows")


@pytest.mark.slow
def test_one_of_two_processes_that_fails_is_no_sign_of_health(monkeypatch):
    real, folders = end_to_end._released, []

    def spoilt(planned, folder):
        folders.append(folder)
        if len(folders) == 2:
            (folder / "dpquery.plan").write_bytes(b"no plan")
        return real(planned, folder)

    monkeypatch.setattr(end_to_end, "_released", spoilt)
    with pytest.raises(ValueError, match="ended in another process with 2"):
        two_processes(planned_case(ROWS, replace(FEWER))[0])


@pytest.mark.parametrize(
    "column", [pa.array([1.5, 2.0]), pa.array([1, None]), pa.array([1, 2], pa.int32())]
)
def test_measurements_that_are_no_whole_numbers_are_no_measurements(tmp_path, column):
    pq.write_table(pa.table({"value": column}), tmp_path / "measurements.parquet")
    with pytest.raises(ValueError, match="whole numbers"):
        values_of(tmp_path)


@pytest.mark.nightly(daily="1e-100|0.5")
@pytest.mark.parametrize("epsilon", ["1e-6", "1e-3", "1", "30", "1e4", "1e6"])
@pytest.mark.parametrize("delta", ["1e-100", "1e-30", "1e-9", "1e-3", "0.5"])
def test_rho_and_mu_worked_out_apart_are_those_of_the_product_at_the_extremes(epsilon, delta):
    terms = {"epsilon": Fraction(epsilon), "delta": Fraction(delta)}
    amount = float(guarantee("gaussian", **terms).amount)
    assert rho_of(float(epsilon), float(delta)) == pytest.approx(amount, rel=1e-10)
    squared = float(guarantee("gaussian", **terms, accounting="gdp").amount)
    assert mu_of(float(epsilon), float(delta)) ** 2 == pytest.approx(squared, rel=1e-9)


@pytest.mark.parametrize("plant", ["network", "missing"])
def test_a_folder_for_made_up_data_that_is_not_fit_is_refused_first(plant, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit_run, "PARTS", {"residuals": None})
    if plant == "network":
        monkeypatch.setattr(store, "_mounts", lambda: "server:/tmp / nfs4 rw 0 0")
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert "set TMPDIR to a local disk" in refused("audit", code=2)


def closing(*findings, quick=False, own_plan=False):
    text = show_checks.audit_closing(findings, quick=quick, own_plan=own_plan)
    return " ".join(text.split())


def test_the_closing_text_says_what_belongs_to_the_parts_that_were_run():
    supply = Finding("numpy", "a claim", True, "fine", part="supply")
    text = closing(supply)
    for part in ("of noise", "neighbouring", "chance", "end to end", "Specs", "--quick"):
        assert part not in text
    assert "1 check." in text
    assert "__pycache__" in text
    noise = Finding("a case", "a claim", True, "fine", draws=5, tests=1, part="residuals")
    assert "below 2 to 4 % end to end" in closing(noise)
    assert "below 4 to 7 % end to end" in closing(noise, quick=True)
    assert "other than those made up here" in closing(noise)
    assert "other than those of this plan" in closing(noise, own_plan=True)
    assert f"probability about {ALPHA:.1e}" in closing(noise, supply)
    pair = Finding(
        "a case", "a claim", True, "fine", neighbours=1, replicates=70, part="neighbours"
    )
    assert "2 pairs of neighbouring data, measured 140 times in all" in closing(pair, pair)
    assert "parts above" not in closing(pair)


def test_a_part_that_ends_in_an_error_is_told_from_a_check_that_failed():
    broken = Finding("the whole part", TO_ITS_END, False, "OSError: disk full", part="rap")
    wrong = Finding("a case", "a claim", False, "p = 1e-12", part="residuals")
    assert "make no release" not in closing(broken)
    assert "Ended in an error before all was checked: rap." in closing(broken)
    assert "1 of 2 checks FAILED: make no release" in closing(broken, wrong)
    assert "Ended in an error" not in closing(wrong)
