"""Is this the software that was audited? Versions, and the files of every library that matters.

A wheel lists its files with their SHA-256, and pip keeps that list. So a file that was edited, cut,
lost or added since the installation is found, as is a module that comes from elsewhere. What this
cannot find is an attacker who may write where dpquery is installed: whoever can change a library
can change the list, and this file. `pip install --require-hashes` is what keeps foreign wheels out.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path

from dpquery.audit.findings import Finding, Size
from dpquery.measurement.libraries import ACCEPTED, Accepted, installed

LOCK = "requirements.txt"
SEALED = ("dpquery", *(name for name in ACCEPTED if name != "python"))
_PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
_SHOWN = 3


def supply(_: Size) -> Iterator[Finding]:
    """Check versions against what is accepted and locked, and installed files against their wheels.

    Only a version that dpquery would refuse fails; another one than the locked is worth a word.
    """
    locked = locked_versions()
    for name, accepted in ACCEPTED.items():
        yield version_finding(name, accepted, locked)
    yield _locked_finding(locked)
    for name in SEALED:
        yield files_finding(name)


def locked_versions() -> dict[str, str]:
    """Return the version of every library that the lock file holds."""
    text = resources.files("dpquery.audit").joinpath(LOCK).read_text(encoding="utf-8")
    return dict(_PIN.findall(text))


def version_finding(name: str, accepted: Accepted, locked: Mapping[str, str]) -> Finding:
    """Say whether an installed version would be accepted by a release."""
    version = installed(name)
    evidence = f"installed: {version or 'none'}; accepted: {accepted}"
    if name in locked and version != locked[name]:
        evidence += f"; {locked[name]} is what was locked, and tested most"
    passed = version is not None and version in accepted
    return Finding("supply", name, "a release accepts its version", passed, evidence)


def _locked_finding(locked: Mapping[str, str]) -> Finding:
    found = {name: installed(name) or "missing" for name in locked}
    others = [f"{name} {found[name]}" for name in locked if found[name] != locked[name]]
    evidence = f"{len(locked) - len(others)} of {len(locked)} are the same"
    if others:
        evidence += f"; others here: {', '.join(others)}"
    return Finding("supply", LOCK, "versions may differ from the locked ones", True, evidence)


def files_finding(name: str) -> Finding:
    """Say whether the files of a library are those of its wheel, and the ones that are imported."""
    claim = "its files are those of its wheel"
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return Finding("supply", name, claim, False, "pip has no record of it; install it with pip")
    if _is_editable(distribution):
        evidence = "it is installed for development: its files are not sealed"
        return Finding("supply", name, claim, True, evidence)
    sealed = {Path(str(distribution.locate_file(own))): own for own in distribution.files or ()}
    hashed = {path: own.hash for path, own in sealed.items() if own.hash is not None}
    wrong = [path.name for path, own in hashed.items() if not _has_hash(path, own)]
    wrong += [path.name for path in _code_beside(hashed, name) if path not in hashed]
    spec = find_spec(name)
    if spec is None or spec.origin is None or Path(spec.origin) not in hashed:
        wrong.append(f"{name} is imported from another folder")
    evidence = f"{len(hashed)} files have their hashes"
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        evidence = f"changed, lost or added: {', '.join(wrong[:_SHOWN])}{more}; install it again"
    return Finding("supply", name, claim, not wrong, evidence)


def _is_editable(distribution: metadata.Distribution) -> bool:
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _has_hash(path: Path, wanted: metadata.FileHash) -> bool:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, wanted.mode).digest()
    except (OSError, ValueError):
        return False
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == wanted.value


def _code_beside(hashed: Mapping[Path, metadata.FileHash], name: str) -> Iterator[Path]:
    """Yield every file below the package that Python or the linker would load."""
    folders = {path.parent for path in hashed if path.parent.name == name}
    for folder in folders:
        for suffix in ("py", "so"):
            yield from folder.rglob(f"*.{suffix}")
