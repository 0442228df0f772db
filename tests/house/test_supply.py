"""What dpquery rests on is locked by hash, checked by version, and audited file by file."""

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest
from town import ok, refused

from dpquery.audit import installation
from dpquery.audit.cases import QUICK
from dpquery.measurement.noise import exact_noise
from dpquery.measurement.noise.exact_noise import ACCEPTED, Accepted, installed, versions

TOML = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
PROJECT = TOML["project"]
DECLARED = {
    re.match(r"[a-z0-9]+", line)[0]: re.sub(r"^[a-z0-9]+", "", line)
    for line in PROJECT["dependencies"]
}
LOCKED = installation.locked_versions()


def accepted(bounds):
    """The bounds of a dependency, such as ">=1,<2", as the run-time check holds them."""
    parts = dict(re.match(r"(>=|<)(.+)", part).groups() for part in bounds.split(","))
    return Accepted(parts[">="], parts.get("<"))


def test_the_bounds_checked_at_run_time_are_those_of_the_project():
    assert {name: ACCEPTED[name] for name in ACCEPTED if name != "python"} == {
        name: accepted(DECLARED[name]) for name in ("numpy", "opendp", "pyarrow", "scipy")
    }
    assert str(ACCEPTED["python"]) == PROJECT["requires-python"]


def test_every_dependency_is_locked_within_its_bounds():
    assert set(DECLARED) <= set(LOCKED)
    assert [name for name in DECLARED if LOCKED[name] not in accepted(DECLARED[name])] == []
    assert "1.0" not in accepted(">=1.1,<2")


def test_every_locked_library_has_its_hashes_and_nothing_else_is_in_the_file():
    text = resources.files("dpquery.audit").joinpath("requirements.txt").read_text()
    assert TOML["tool"]["setuptools"]["package-data"]["dpquery.audit"] == ["requirements.txt"]
    pins = re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "").splitlines()
    pin = re.compile(r"[a-z0-9-]+==[0-9][0-9a-z.]* +(--hash=sha256:[0-9a-f]{64} *)+")
    assert [line for line in pins if not pin.fullmatch(line)] == []
    assert len(pins) == len(LOCKED) >= len(DECLARED)


def installed_version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def test_what_the_locked_libraries_need_is_locked_too():
    missing = set()
    same = [name for name, version in LOCKED.items() if installed_version(name) == version]
    for name in same:  # another version may need others
        for line in metadata.requires(name) or ():
            needed, _, marker = line.partition(";")
            if not marker.strip():
                missing.add(re.match(r"[A-Za-z0-9_.-]+", needed)[0].lower().replace("_", "-"))
    assert missing - set(LOCKED) == set()


OLDER = [
    ("numpy", "1.25.2"),
    ("opendp", "0.14.1"),
    ("opendp", "0.16.0rc1"),
    ("opendp", "0.17.0"),
    ("opendp", "0.17.0rc1"),
    ("opendp", "nonsense"),
    ("pyarrow", "14.0.2"),
    ("scipy", "1.11.4"),
    ("python", "3.10.13"),
    ("numpy", None),
]


@pytest.mark.parametrize(("name", "version"), OLDER)
def test_a_version_not_to_be_trusted_ends_before_the_charge_and_before_the_data(
    town, monkeypatch, name, version
):
    def reported(versions):
        if versions != name:
            return real(versions)
        if version is None:
            raise metadata.PackageNotFoundError
        return version

    real = metadata.version
    monkeypatch.setattr(exact_noise, "installed", installed.__wrapped__)  # nothing is remembered
    monkeypatch.setattr(metadata, "version", reported)
    if name == "python":
        monkeypatch.setattr(platform, "python_version", lambda: version)
    Path("data.csv").unlink()  # so opening it would be another error
    message = refused("release", "data.csv", "--epsilon", "1", code=70)
    assert f"install {name}{ACCEPTED[name]}" in message


def test_versions_are_compared_as_numbers():
    bounds = Accepted("1.26", below="2.10")
    for good in ("1.26", "1.26.0", "1.100", "2.9.9", "2.0.0rc1", "2.9.9.dev3", "1.26.4+local"):
        assert good in bounds, good
    for bad in ("1.9", "1.25.99", "1.26rc1", "1.26.0.dev1", "2.10", "2.10.1", "11", "", "x1.27"):
        assert bad not in bounds, bad
    for early in ("2.10rc1", "2.10.0rc1", "2.10.0.dev3", "2.10.1a1", "3a0"):  # like what is to come
        assert early not in bounds, early


def test_a_release_names_the_versions_that_made_it(released_town):
    manifest = Path("release", "release.json").read_text()
    for name, version in versions():
        assert f'"{name}": "{version}"' in manifest
    assert dict(versions())["python"] == platform.python_version()


def test_a_stored_release_needs_no_noise_and_so_no_version(released_town, monkeypatch):
    monkeypatch.setitem(exact_noise.ACCEPTED, "opendp", Accepted("99"))
    ok("release", "data.csv", "--epsilon", "1")


@pytest.mark.nightly
def test_the_audit_of_this_installation_passes():
    findings = list(installation.supply(QUICK))
    # A checkout that PYTHONPATH puts before what pip installed is rightly said to be another one.
    other = {"dpquery"} if "PYTHONPATH" in os.environ else set()
    assert [
        finding for finding in findings if not finding.passed and finding.subject not in other
    ] == []
    assert {finding.subject for finding in findings} == {*ACCEPTED, "dpquery", "requirements.txt"}


def test_a_release_that_loads_what_shows_records_is_found(monkeypatch):
    claim = "a release loads nothing of `dpquery check`, which shows what records hold"
    (own,) = (own for own in installation.supply(QUICK) if own.claim == claim)
    assert own.passed
    for printed in ("dpquery.commands.release dpquery.data_check.check", ""):
        done = subprocess.CompletedProcess([], 0, printed, "")
        monkeypatch.setattr(installation.subprocess, "run", lambda *_, done=done, **__: done)
        assert not installation._apart_finding().passed


@pytest.mark.nightly
def test_another_version_than_the_locked_is_worth_a_word_and_an_old_one_fails(monkeypatch):
    accepted_one = installation.version_finding("scipy", Accepted("1"), {"scipy": "1.0"})
    assert accepted_one.passed
    assert "1.0 is what was locked" in accepted_one.evidence
    assert not installation.version_finding("scipy", Accepted("99"), {}).passed
    assert not installation.version_finding("no-such-library", Accepted("1"), {}).passed
    assert "locked" not in installation.version_finding("scipy", Accepted("1"), {}).evidence
    monkeypatch.setitem(LOCKED, "scipy", "1.0")
    monkeypatch.setattr(installation, "locked_versions", lambda: LOCKED)
    reports = [
        finding for finding in installation.supply(QUICK) if finding.subject == "requirements.txt"
    ]
    assert reports[0].passed
    assert f"scipy {installed('scipy')}" in reports[0].evidence


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A small library as pip leaves it, where Python finds it."""
    package = tmp_path / "sealedlib"
    package.mkdir()
    (package / "__init__.py").write_text("ANSWER = 42\n")
    (package / "core.so").write_bytes(b"machine code")
    facts = tmp_path / "sealedlib-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: sealedlib\nVersion: 1.0\n")
    lines = [
        f"{path.relative_to(tmp_path)},sha256={digest(path)},{path.stat().st_size}"
        for path in package.iterdir()
    ]
    record = "sealedlib-1.0.dist-info/RECORD"
    (facts / "RECORD").write_text("\n".join([*lines, f"{record},,", "sealedlib/made.pyc,,"]) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def digest(path):
    raw = hashlib.sha256(path.read_bytes()).digest()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_files_as_they_came_pass(wheel):
    finding = installation.files_finding("sealedlib")
    assert finding.passed
    assert finding.evidence == "2 files have their hashes"


def edited(folder):
    (folder / "sealedlib" / "__init__.py").write_text("ANSWER = 43\n")


def cut(folder):
    (folder / "sealedlib" / "core.so").write_bytes(b"machine cod")


def lost(folder):
    (folder / "sealedlib" / "core.so").unlink()


def added(folder):
    (folder / "sealedlib" / "more").mkdir()
    (folder / "sealedlib" / "more" / "patch.py").write_text("import os\n")


def shadowed(folder):
    (folder / "first" / "sealedlib").mkdir(parents=True)
    (folder / "first" / "sealedlib" / "__init__.py").write_text("ANSWER = 41\n")
    sys.path.insert(0, str(folder / "first"))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (edited, "__init__.py"),
        (cut, "core.so"),
        (lost, "core.so"),
        (added, "patch.py"),
        (shadowed, "sealedlib is imported from another folder"),
    ],
)
def test_a_changed_lost_added_or_shadowed_file_is_found(wheel, monkeypatch, damage, named):
    monkeypatch.setattr(sys, "path", list(sys.path))
    damage(wheel)
    finding = installation.files_finding("sealedlib")
    assert not finding.passed
    assert named in finding.evidence


def test_a_library_that_pip_does_not_know_fails_and_one_under_development_is_said_to_be(wheel):
    assert not installation.files_finding("no-such-library").passed
    beside = wheel / "sealedlib-1.0.dist-info" / "direct_url.json"
    edited(wheel)
    beside.write_text('{"url": "file:///elsewhere", "dir_info": {"editable": true}}')
    assert not installation.files_finding("sealedlib").passed
    beside.write_text(EDITABLE % wheel.as_uri())
    finding = installation.files_finding("sealedlib")
    assert finding.passed
    assert "not sealed" in finding.evidence


EDITABLE = '{"url": "%s", "dir_info": {"editable": true}}'


def with_egg_info(folder):
    """Leave what a build leaves beside a package: a record without hashes and without origin."""
    (folder / "sealedlib.egg-info").mkdir()
    facts = "Metadata-Version: 2.1\nName: sealedlib\nVersion: 1.0\n"
    (folder / "sealedlib.egg-info" / "PKG-INFO").write_text(facts)
    (folder / "sealedlib.egg-info" / "SOURCES.txt").write_text("sealedlib/__init__.py\n")


def test_a_folder_of_sources_that_comes_first_does_not_hide_that_it_is_under_development(
    tmp_path, monkeypatch
):
    sources, installed_in = tmp_path / "some where", tmp_path / "site"
    (sources / "sealedlib").mkdir(parents=True)
    (sources / "sealedlib" / "__init__.py").touch()
    with_egg_info(sources)
    facts = installed_in / "sealedlib-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: sealedlib\nVersion: 1.0\n")
    (facts / "RECORD").write_text("sealedlib-1.0.dist-info/METADATA,sha256=x,1\n")
    (facts / "direct_url.json").write_text(EDITABLE % sources.as_uri())
    monkeypatch.syspath_prepend(installed_in)
    monkeypatch.syspath_prepend(sources)  # as `python -m` does with the folder it is started in
    finding = installation.files_finding("sealedlib")
    assert finding.passed
    assert "for development" in finding.evidence


def test_a_record_without_hashes_does_not_hide_that_of_the_wheel(wheel, monkeypatch):
    (wheel / "first").mkdir()
    with_egg_info(wheel / "first")
    monkeypatch.syspath_prepend(wheel / "first")
    assert installation.files_finding("sealedlib").evidence == "2 files have their hashes"
    edited(wheel)
    assert not installation.files_finding("sealedlib").passed


def test_a_library_whose_package_manager_keeps_no_hashes_is_said_not_to_be_checked(wheel):
    (wheel / "sealedlib-1.0.dist-info" / "RECORD").unlink()
    finding = installation.files_finding("sealedlib")
    assert finding.passed
    assert finding.evidence == installation.NO_HASHES
