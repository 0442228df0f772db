"""The audit is not misled by what is around it, and its last words are of what was run."""

import tempfile
from dataclasses import replace
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from town import refused

from dpquery.audit import end_to_end
from dpquery.audit import run as audit_run
from dpquery.audit.cases import CASES, Size
from dpquery.audit.end_to_end import two_processes
from dpquery.audit.measurements import values_of
from dpquery.audit.planned_cases import mu_of, planned_case, rho_of
from dpquery.audit.statistics import TO_ITS_END, Finding
from dpquery.cli import show_checks
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.ledger import store

FEW = Size(draws=5_000, replicates=300, releases=12, quick=True)
(ROWS,) = (case for case in CASES if case.name == "marginals of rows")


@pytest.mark.slow
def test_a_release_that_fails_in_another_process_is_no_sign_of_health(monkeypatch):
    planned = replace(planned_case(ROWS, replace(FEW)), plan=b"no plan")
    with pytest.raises(ValueError, match="ended in another process with 2"):
        two_processes(planned)


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
        two_processes(planned_case(ROWS, replace(FEW)))


@pytest.mark.parametrize(
    "column", [pa.array([1.5, 2.0]), pa.array([1, None]), pa.array([1, 2], pa.int32())]
)
def test_measurements_that_are_no_whole_numbers_are_no_measurements(tmp_path, column):
    pq.write_table(pa.table({"value": column}), tmp_path / "measurements.parquet")
    with pytest.raises(ValueError, match="whole numbers"):
        values_of(tmp_path)


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
    assert "probability about 8.0e-09" in closing(noise, supply)
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
