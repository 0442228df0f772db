"""The installed sampler and the locked versions.

A wheel lists its files with their SHA-256, and pip keeps that list. So a file that was edited, cut,
lost or added since the installation is found, as is a module that comes from elsewhere. What this
cannot find: compiled copies in __pycache__ that do not fit their source, and .pth files, which run
when Python starts: wheels do not list them. Nor an attacker who may write where dpquery is
installed: whoever can change a library can change the list, and this file. `pip install
--require-hashes` is what keeps foreign wheels out.
"""

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np

from dpquery.arrays import Ints
from dpquery.audit.cases import Size
from dpquery.audit.end_to_end import dependence
from dpquery.audit.statistics import (
    Finding,
    NoiseDistribution,
    chi_square,
    combined,
    goodness_of_fit,
)
from dpquery.measurement.accounting import Guarantee, GuaranteeKind
from dpquery.measurement.noise.exact_noise import (
    ACCEPTED,
    BULK_ABOVE,
    Accepted,
    draw,
    installed,
    source,
)
from dpquery.measurement.noise.laws import LawName, law_of

# Small scales and no powers of two among them: there a biased sampler has been shipped before.
SCALES: dict[LawName, tuple[float, ...]] = {
    "laplace": (1.0, 2.0, 5.0, 3.3, 999_983.0),
    "gaussian": (1.0, 2.0, 3.7, 12.0, 999_983.0),
    "rounded": (1.0, 1.5, 3.7, 40.0, 999_983.0),
}
GUARANTEES: dict[LawName, GuaranteeKind] = {"laplace": "pure", "gaussian": "zcdp", "rounded": "gdp"}
_BULK_DRAWS = 4  # times those of the slow source
_REMAINDERS = 64
_CHUNKED = 200_000  # of one draw: two chunks of `draw`, seven of the bulk sampler


def sampler(size: Size) -> Iterator[Finding]:
    """Test what `draw` adds to zeros against the exact distribution, for all sources."""
    for noise, scales in SCALES.items():
        for scale in scales:
            if noise != "rounded":  # of which both draws would be of the one source that has it
                yield _checked(noise, scale, at_once=BULK_ABOVE, draws=size.draws)
            yield _checked(noise, scale, at_once=None, draws=_BULK_DRAWS * size.draws)
    for noise, scales in SCALES.items():
        yield _chunks(noise, max(scales))


def _checked(noise: LawName, scale: float, *, at_once: int | None, draws: int) -> Finding:
    """Test one scale; at most `at_once` numbers are drawn in one call, or all of them."""
    batch = draws if at_once is None else min(at_once, draws)
    total = batch * max(1, draws // batch)
    values = np.concatenate([_noise(noise, scale, batch) for _ in range(total // batch)])
    return Finding.of_chance(
        f"{source(batch, law_of(GUARANTEES[noise]))}, {noise} noise of scale {scale:,g}",
        "draws follow the exact law",
        goodness_of_fit(values, NoiseDistribution(noise, Fraction(scale))),
        f"{total:,} draws",
        draws=total,
    )


def _chunks(noise: LawName, scale: float) -> Finding:
    """Test that no chunk of a draw follows from another: all values at all distances.

    The signs and the low bits of the same draws are tested, too: at this scale remainders are even.
    """
    law, values = NoiseDistribution(noise, Fraction(scale)), _noise(noise, scale, _CHUNKED)
    remainders = np.bincount(values % _REMAINDERS, minlength=_REMAINDERS)
    signs = np.array([np.count_nonzero(values < 0), np.count_nonzero(values > 0)])
    tests = [
        dependence(values[np.newaxis], law),
        chi_square(remainders, np.full(_REMAINDERS, _CHUNKED / _REMAINDERS)),
        chi_square(signs, np.full(2, signs.sum() / 2)),
    ]
    return Finding.of_chance(
        f"{source(_CHUNKED, law_of(GUARANTEES[noise]))}, {noise} noise in chunks",
        "values at any distance in one draw are independent, signs and low bits fair",
        combined(tests),
        f"{_CHUNKED:,} draws",
        draws=_CHUNKED,
    )


def _noise(noise: LawName, scale: float, size: int) -> Ints:
    ratio = 1 / Fraction(scale)
    amounts = {"pure": ratio, "zcdp": ratio**2 / 2, "gdp": ratio**2}
    # A hair more than the noise costs: OpenDP rounds its own charge up to a float.
    amount = amounts[GUARANTEES[noise]] * (1 + Fraction(1, 10**9))
    budget = Guarantee(GUARANTEES[noise], amount, amount, Fraction(0))
    return draw(np.zeros(size, np.int64), budget=budget, sensitivity=1, scale=scale)


LOCK = "requirements.txt"
SEALED = ("dpquery", *(name for name in ACCEPTED if name != "python"))
NO_HASHES = "its package manager keeps no hashes: not checked"
_PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
_SHOWN = 3


def supply(_: Size) -> Iterator[Finding]:
    """Check versions against what is accepted and locked, and installed files against their wheels.

    Only a version that dpquery would refuse fails; another one than the locked is only reported.
    """
    locked = locked_versions()
    for name, accepted in ACCEPTED.items():
        yield version_finding(name, accepted, locked)
    yield _locked_finding(locked)
    for name in SEALED:
        yield files_finding(name)
    yield _apart_finding()


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
    return Finding(name, "a release accepts its version", passed, evidence)


def _locked_finding(locked: Mapping[str, str]) -> Finding:
    versions = {name: installed(name) or "missing" for name in locked}
    others = [f"{name} {versions[name]}" for name in locked if versions[name] != locked[name]]
    evidence = f"{len(locked) - len(others)} of {len(locked)} are the same"
    if others:
        evidence += f"; others here: {', '.join(others)}"
    return Finding(LOCK, "versions may differ from the locked ones", True, evidence)


def _apart_finding() -> Finding:
    """Say whether a release loads the room that shows what records hold, which it must not."""
    code = "import sys, dpquery.cli.commands, dpquery.commands.release; print(*sys.modules)"
    process = subprocess.run(  # noqa: S603 this very program, on no file
        [sys.executable, "-c", code], capture_output=True, check=False, text=True
    )
    loaded = [name for name in process.stdout.split() if name.split(".")[0] == "dpquery"]
    shows = [name for name in loaded if name.split(".")[1:2] == ["data_check"]]
    evidence = f"{len(loaded)} modules of dpquery are loaded, {len(shows)} of the check"
    claim = "a release loads nothing of `dpquery check`, which shows what records hold"
    return Finding("dpquery", claim, bool(loaded) and not shows, evidence)


def files_finding(name: str) -> Finding:
    """Say whether the files of a library are those of its wheel, and the ones that are imported."""
    claim = "its files are those of its wheel"
    distributions = _records(name)
    if not distributions:
        return Finding(name, claim, False, "pip has no record of it; install it with pip")
    if any(_is_developed(distribution, name) for distribution in distributions):
        evidence = "it is installed for development: its files are not sealed"
        return Finding(name, claim, True, evidence)
    distribution = distributions[0]
    sealed = {Path(str(distribution.locate_file(file))): file for file in distribution.files or ()}
    hashed = {path: file.hash for path, file in sealed.items() if file.hash is not None}
    if not hashed:
        return Finding(name, claim, True, NO_HASHES)
    wrong = [path.name for path, expected in hashed.items() if not _has_hash(path, expected)]
    # every file below the package that Python or the linker would load
    folders = {path.parent for path in hashed if path.parent.name == name}
    loaded = (path for top in folders for end in ("py", "so") for path in top.rglob(f"*.{end}"))
    wrong += [path.name for path in loaded if path not in hashed]
    if _imported(name) not in hashed:
        wrong.append(f"{name} is imported from another folder")
    evidence = f"{len(hashed)} files have their hashes"
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        evidence = f"changed, lost or added: {', '.join(wrong[:_SHOWN])}{more}; install it again"
    return Finding(name, claim, not wrong, evidence)


def _records(name: str) -> list[metadata.Distribution]:
    """Return what is on record of a library, what pip wrote first.

    A folder of sources may hold a record of its own, without hashes, before pip's is found.
    """

    def has_no_record(distribution: metadata.Distribution) -> bool:
        return not (_origin(distribution) or distribution.read_text("RECORD"))

    return sorted(metadata.distributions(name=name), key=has_no_record)


def _origin(distribution: metadata.Distribution) -> str:
    return distribution.read_text("direct_url.json") or ""


def _is_developed(distribution: metadata.Distribution, name: str) -> bool:
    """Return whether pip installed a folder for development, and the library is loaded from it."""
    origin, imported = json.loads(_origin(distribution) or "{}"), _imported(name)
    if imported is None or not origin.get("dir_info", {}).get("editable"):
        return False
    folder = Path(unquote(urlsplit(origin["url"]).path))
    return imported.resolve().is_relative_to(folder.resolve())


def _imported(name: str) -> Path | None:
    spec = find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _has_hash(path: Path, expected: metadata.FileHash) -> bool:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, expected.mode).digest()
    except (OSError, ValueError):
        return False
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == expected.value
