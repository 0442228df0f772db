"""The town that the tests of the whole product share, planned once a session."""

import gc
import os
from contextlib import suppress

# Matrices are small here, and threads that wait for each other take most of a busy machine's time.
# Read when numpy is first imported, which is below.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import adaptive_support
import pytest
import rehearsal_support
from cli_support import GAUSSIAN_SPEC, PERSON_SPEC, plan_town, renew
from forked_commands import Forks, failing_calls
from ledgers import new_ledger
from parent_support import new_panel

from dpquery.planning.rehearsal import simulated_runs

# No test of every day depends on chance, or on how fast a machine is; long forms say
# `derandomize=False` to try other cases.
with suppress(ImportError):
    import hypothesis

    hypothesis.settings.register_profile(
        "the same every day",
        derandomize=True,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("the same every day")


def pytest_runtest_teardown(item, nextitem):
    """Leave what a file's tests keep to the end out of every later search for garbage.

    Late in a run of all tests such a search takes longer than most tests.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_sessionfinish():
    """Let what was kept be freed."""
    gc.unfreeze()


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


@pytest.fixture(scope="session")
def forks():
    """Processes of their own in which commands are raced, killed and refused."""
    with Forks(failing_calls()) as server:
        yield server


@pytest.fixture
def town(planned_town, tmp_path, monkeypatch):
    """A folder of one's own with spec, plan, data and ledger; the working directory."""
    return _move_in(tmp_path / "town", planned_town, monkeypatch)


@pytest.fixture
def gaussian_town(planned_gaussian_town, tmp_path, monkeypatch):
    """The same, with Gaussian noise to choose."""
    return _move_in(tmp_path / "town", planned_gaussian_town, monkeypatch)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder of one's own with the spec and its public data, where RAP is the dense twin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(simulated_runs, "RapProjection", rehearsal_support.Learner)
    (tmp_path / "workload.yaml").write_text(rehearsal_support.SPEC)
    rehearsal_support.write_csv(tmp_path / "public.csv", rehearsal_support.records(1500, seed=3))
    return tmp_path


@pytest.fixture
def path(tmp_path):
    """A small ledger with one dataset on record."""
    return new_ledger(tmp_path)


@pytest.fixture
def panel(tmp_path):
    """A ledger with two datasets under one cap."""
    return new_panel(tmp_path)


@pytest.fixture
def data(tmp_path):
    """The file of the small dataset that RAP's privacy is tested on."""
    return adaptive_support.write_csv(tmp_path / "data.csv")


def _move_in(folder, template, monkeypatch):
    renew(folder, template)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "nowhere"))
    return folder
