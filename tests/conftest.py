"""The town that the tests of the whole product share, planned once a session."""

import os

# Matrices are small here, and threads that wait for each other take most of a busy machine's time.
# Read when numpy is first imported, which is below.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from cli_support import GAUSSIAN_SPEC, PERSON_SPEC, plan_town, renew


@pytest.fixture(scope="session")
def planned_town(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "town"
    plan_town(folder)
    return folder


@pytest.fixture(scope="session")
def planned_gaussian_town(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "gaussian_town"
    plan_town(folder, GAUSSIAN_SPEC)
    return folder


@pytest.fixture(scope="session")
def planned_person_town(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned") / "person_town"
    plan_town(folder, PERSON_SPEC)
    return folder


@pytest.fixture
def town(planned_town, tmp_path, monkeypatch):
    """A folder of one's own with spec, plan, data and ledger; the working directory."""
    return _move_in(tmp_path / "town", planned_town, monkeypatch)


@pytest.fixture
def gaussian_town(planned_gaussian_town, tmp_path, monkeypatch):
    """The same, with Gaussian noise to choose."""
    return _move_in(tmp_path / "town", planned_gaussian_town, monkeypatch)


def _move_in(folder, template, monkeypatch):
    renew(folder, template)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "nowhere"))
    return folder
