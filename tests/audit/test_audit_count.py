"""How many tests of chance the whole audit makes, added up without drawing what they look at.

Every one fails a sound product with probability ALPHA. An audit that makes more of them than its
false alarm allows ends in an error, after it has run for minutes.
"""

import inspect
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from dpquery.audit import both_sums, end_to_end, installation, neighbours
from dpquery.audit import rap_checks as rap
from dpquery.audit import run as audit_run
from dpquery.audit.cases import CASES, FULL, Size
from dpquery.audit.measurements import repeated_measurements, repeated_releases
from dpquery.audit.statistics import ALPHA, MOST_TESTS, Finding

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
    rap.charge,
    rap.figures,
)
"""What is left out here, as it makes no test of chance: looked up in its text."""


def finding_of(*_):
    return Finding("", "", True, "")


@pytest.fixture
def without_draws(monkeypatch):
    """Every case is the same small one, with a few draws that are never looked at."""
    releases = repeated_releases(SMALL, FEW)
    measurements = repeated_measurements(SMALL, FEW)
    for module in (end_to_end, neighbours):
        monkeypatch.setattr(module, "repeated_measurements", lambda *_: measurements)
    monkeypatch.setattr(end_to_end, "repeated_releases", lambda *_: releases)
    for module, name in (
        *((end_to_end, name) for name in ("goodness_of_fit", "dependence", "repeats")),
        *((installation, name) for name in ("goodness_of_fit", "dependence", "chi_square")),
        *((rap, name) for name in ("chi_square", "_ties")),
        (neighbours, "chi_square"),
    ):
        monkeypatch.setattr(module, name, lambda *_, **__: 0.5)
    monkeypatch.setattr(installation, "_noise", lambda *_: np.zeros(1, np.int64))
    monkeypatch.setattr(end_to_end, "_released", lambda *_: np.zeros(1, np.int64))
    kind, write = next(iter(neighbours.writers().items()))
    monkeypatch.setattr(neighbours, "writers", lambda: {kind: write})
    monkeypatch.setattr(neighbours, "readers", lambda: iter(()))
    monkeypatch.setattr(rap, "charge", finding_of)
    monkeypatch.setattr(rap, "figures", finding_of)
    monkeypatch.setattr(rap, "released_run", released_run)


def released_run(bench, number):
    """A run that went no way through a release."""
    charged = Fraction(bench.query.guarantee.amount)
    return SimpleNamespace(charged=charged, values=bench.vectors("data.csv", 1)[0])


@pytest.mark.nightly
def test_the_whole_audit_makes_no_more_tests_of_chance_than_its_false_alarm_allows(without_draws):
    for part in OF_NO_CHANCE:
        assert "tests=" not in inspect.getsource(part)
    size = replace(FULL, draws=FEW.draws, replicates=FEW.replicates, releases=FEW.releases)
    counted = {
        name: sum(finding.tests for finding in part(size))
        for name, part in audit_run.PARTS.items()
        if name not in {"charges", "supply"}
    }
    assert min(counted[name] for name in counted if name != "lattice") > 0
    assert sum(counted.values()) <= MOST_TESTS, counted
    assert MOST_TESTS * ALPHA < 1e-6
