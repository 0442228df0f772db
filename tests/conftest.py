"""The town that the tests of the whole product share, planned once a session."""

import gc
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

# Matrices are small here, and threads that wait for each other take most of a busy machine's time.
# Read when numpy is first imported, which is below.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from _pytest.doctest import DoctestModule

# What a fixture needs of the product it imports itself: any one file of tests starts in no time.

DAILY = "not slow and not nightly"
MEMORY, ROOM = Path("/dev/shm"), 2**31  # noqa: S108 - pytest makes a folder of its own in it
TEST_SECONDS = 3  # CPU seconds; a test of every day that takes longer is named after the run
STARTED = [0.0]
TAKEN = {}  # by the name of a test, its CPU seconds

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


def pytest_addoption(parser):
    parser.addini("cpu_budget", "CPU seconds that the tests of every day may take", default="0")


def pytest_configure(config):
    """Keep the files of the tests of every day, 60 MB, in memory if there is room."""
    room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    if room and config.option.markexpr == DAILY:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Search for no garbage meanwhile, and never in what was collected: there is none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for tests here, and for no examples in docstrings: those are the product's."""
    collected = yield
    return [found for found in collected if not isinstance(found, DoctestModule)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave to every day the cases of a nightly test that its marker matches: `daily=`."""
    for item in items:
        mark = item.get_closest_marker("nightly")
        if mark and (case := mark.kwargs.get("daily")) and re.search(case, item.name):
            item.own_markers.remove(mark)


def pytest_runtest_logstart(nodeid, location):
    """Measure CPU seconds, those of a test's own processes too."""
    STARTED[0] = sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.cpu = sum(os.times()[:4]) - STARTED[0]
    return report


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        TAKEN[report.nodeid] = getattr(report, "cpu", 0.0)  # none where a process of tests died


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Let what was kept be freed, and fail a run that takes thrice what it may."""
    gc.unfreeze()
    budget = float(session.config.getini("cpu_budget"))
    if exitstatus == 0 and _daily(session.config) and sum(TAKEN.values()) > 3 * budget:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Say what took long, and how much of what a run may take was taken."""
    if not _daily(config):
        return
    for test, seconds in sorted(TAKEN.items(), key=lambda row: -row[1]):
        if seconds > TEST_SECONDS:
            terminalreporter.line(f"{seconds:5.1f} CPU s  {test}")
    budget = float(config.getini("cpu_budget"))
    terminalreporter.line(f"{sum(TAKEN.values()):.0f} CPU s of {budget:.0f}; thrice that fails")


def _daily(config):
    """Whether this is a run of the tests of every day, and not of some or of all."""
    return config.option.markexpr == DAILY and not config.option.keyword


@pytest.fixture(scope="session")
def planned_town(tmp_path_factory):
    return _planned(tmp_path_factory)


@pytest.fixture(scope="session")
def planned_gaussian_town(tmp_path_factory):
    return _planned(tmp_path_factory, "GAUSSIAN_SPEC")


@pytest.fixture(scope="session")
def forks():
    """Processes of their own in which commands are raced, killed and refused."""
    from interference_support import Forks, failing_calls

    with Forks(failing_calls()) as server:
        yield server


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """An empty folder; the working directory, with a ledger's place in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    return tmp_path


@pytest.fixture
def move_in(tmp_path, monkeypatch):
    """The function that makes a copy of a planned folder the working directory."""
    from town import renew

    def moved(template):
        folder = tmp_path / "town"
        renew(folder, template)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "nowhere"))
        return folder

    return moved


@pytest.fixture
def town(planned_town, move_in):
    """A folder of one's own with spec, plan, data and ledger; the working directory."""
    return move_in(planned_town)


@pytest.fixture(scope="session")
def planned_and_released_town(planned_town, tmp_path_factory):
    from town import ok, renew

    folder = tmp_path_factory.mktemp("released") / "town"
    renew(folder, planned_town)
    places = ("--plan", folder / "dpquery.plan", "--ledger", folder / "state" / "ledger.db")
    ok("release", folder / "data.csv", "--epsilon", "1", "--out", folder / "release", *places)
    return folder


@pytest.fixture
def released_town(planned_and_released_town, move_in):
    """The same folder with a release in it, at epsilon 1, that was made once."""
    return move_in(planned_and_released_town)


@pytest.fixture
def gaussian_town(planned_gaussian_town, move_in):
    """The same, with Gaussian noise to choose."""
    return move_in(planned_gaussian_town)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder of one's own with the spec and its public data, where RAP is the dense twin."""
    import rounds

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr("dpquery.planning.rehearsal.runs.RapProjection", rounds.Learner)
    (tmp_path / "workload.yaml").write_text(rounds.REHEARSAL_SPEC)
    rounds.write_records(tmp_path / "public.csv", rounds.records(1500, seed=3))
    return tmp_path


@pytest.fixture
def path(tmp_path):
    """A small ledger with one dataset on record."""
    from ledgers import new_ledger

    return new_ledger(tmp_path)


@pytest.fixture
def panel(tmp_path):
    """A ledger with two datasets under one cap."""
    from ledgers import new_panel

    return new_panel(tmp_path)


@pytest.fixture
def data(tmp_path):
    """The file of the small dataset that RAP's privacy is tested on."""
    import rounds

    return rounds.write_csv(tmp_path / "data.csv")


def _planned(tmp_path_factory, spec="SPEC"):
    import town

    folder = tmp_path_factory.mktemp("planned") / "town"
    town.plan_town(folder, getattr(town, spec), *town.SEARCHED)
    return folder
