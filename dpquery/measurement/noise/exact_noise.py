"""Which sampler draws, and the versions of libraries that are accepted.

Exact Laplace or Gaussian noise on integers, from the operating system, unseeded.

The answers and the noise are whole numbers from end to end, because floating-point noise gives
away the true answer in its low bits. Before any draw the scale is checked against the budget, in
fractions. Pure and zCDP guarantees take discrete noise [CKS20]: up to BULK_ABOVE answers OpenDP's,
whose own privacy map must agree as well; it draws one number at a time, and above that the noise is
`bulk_noise`'s. GDP guarantees take rounded Gaussian noise, which OpenDP does not have: it is
`bulk_noise`'s at every size. A whole answer plus rounded noise is the answer plus continuous noise,
rounded: the Gaussian mechanism and post-processing.

What a law is called and costs stands in `laws`, the moves that it must hide in `calibration`;
contributing.md has all steps to a new one.

The versions that the privacy argument was tested with: older ones are refused, once and early.

They are the language and the four libraries between the file and the noisy values: pyarrow reads
lines, numpy and scipy hold the integers of counts and strategies, OpenDP draws noise. Versions are
read from what pip has put on record, so nothing slow is imported.
"""

import math
import platform
import re
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import metadata
from typing import Protocol

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import DpqueryError
from dpquery.measurement.accounting import Guarantee, sensitivity_bound
from dpquery.measurement.noise.bulk_noise import BulkSampler
from dpquery.measurement.noise.laws import Law
from dpquery.progress import report_progress
from dpquery.version import __version__

_RELEASE = re.compile(r"[0-9]+(\.[0-9]+)*")
_BEFORE_ITS_RELEASE = re.compile(r"[._-]?(a|b|c|rc|dev|alpha|beta|pre|nightly)")


@dataclass(frozen=True)
class Accepted:
    """The versions of a library that are accepted: `oldest` and later, and earlier than `below`."""

    oldest: str
    below: str | None = None

    def __contains__(self, version: str) -> bool:
        """Whether a version is accepted; one that cannot be read is not."""
        if not _RELEASE.match(version):
            return False
        # What leads to a release is already like it: "0.17rc1" is not below "0.17".
        early = self.below is None or _order(version)[0] < _order(self.below)[0]
        return early and _order(version) >= _order(self.oldest)

    def __str__(self) -> str:
        """Return the bounds as pip writes them."""
        return f">={self.oldest}" + (f",<{self.below}" if self.below else "")


# Before 0.14.2 OpenDP's sampler is biased; 0.16.0 is what the tests and the audit cover. Its next
# minor version may change the meaning of what is called here.
ACCEPTED = {
    "python": Accepted("3.11"),
    "numpy": Accepted("1.26"),
    "opendp": Accepted("0.16.0", below="0.17"),
    "pyarrow": Accepted("15"),
    "scipy": Accepted("1.12"),
}


@cache
def installed(name: str) -> str | None:
    """Return the version of a library, or of "python"; None where it is not installed.

    It is looked up once: what a process has loaded stays, whatever is installed meanwhile.
    """
    try:
        return platform.python_version() if name == "python" else metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_libraries() -> None:
    """Check every version in ACCEPTED; called before anything is charged.

    Raises:
        DpqueryError: one is missing, too old, or too new.
    """
    for name, accepted in ACCEPTED.items():
        version = installed(name)
        if version is None or version not in accepted:
            state = "is not installed" if version is None else f"{version} is installed"
            raise DpqueryError(
                f"{name} {state} and measuring is not trusted with it; install {name}{accepted}"
            )


def versions() -> tuple[tuple[str, str], ...]:
    """Return (name, version) of all in ACCEPTED that are installed, by name."""
    pairs = ((name, installed(name)) for name in sorted(ACCEPTED))
    return tuple((name, version) for name, version in pairs if version is not None)


def _order(version: str) -> tuple[tuple[int, ...], int]:
    """Return the sort key of a version: "0.16" and "0.16.0" alike, "0.16rc1" before them."""
    release = _RELEASE.match(version)
    if release is None:
        raise ValueError("not a version")
    numbers = tuple(map(int, release[0].split(".")))
    while numbers and numbers[-1] == 0:
        numbers = numbers[:-1]
    return numbers, 0 if _BEFORE_ITS_RELEASE.match(version, release.end()) else 1


BULK_ABOVE = 50_000
LARGEST_ANSWER = 2**62
LARGEST_SCALE = 2.0**52
_CHUNK = 100_000


class _Measurement(Protocol):
    def __call__(self, arg: Ints) -> list[int]: ...
    def map(self, d_in: float) -> float: ...


def draw(
    answers: Ints, *, budget: Guarantee, sensitivity: int, scale: float, out: Ints | None = None
) -> Ints:
    """Return the answers, each with fresh noise added.

    Args:
        answers: (m,) exact answers in grid steps, every one below 2^62 in size.
        budget: the guarantee to meet; its kind chooses the noise.
        sensitivity: exact D1 for Laplace noise, D2^2 for Gaussian noise, of all m answers together.
        scale: the scale of the noise in grid steps, as `noise_scale` gives it.
        out: where they are written; may be the answers, which are then gone. Default: new memory.

    Privacy: the whole vector is epsilon-DP, rho-zCDP or mu-GDP with budget.amount, for neighbours
    that move it by at most the sensitivity. Coordinates are independent, so drawing in chunks
    changes nothing, and which source draws depends on their number and the guarantee's kind alone.
    Running time is not protected.

    Raises:
        ValueError: a scale that does not meet the budget, or outside [1, 2^52).
        DpqueryError: a library is too old, or it fails; with no library message, since those
            contain values.
    """
    if answers.ndim != 1 or answers.dtype != np.int64:
        raise TypeError("answers must be a vector of int64")
    if not 1 <= scale < LARGEST_SCALE:
        raise ValueError(f"the noise scale must lie in [1, 2^52) grid steps, not {scale:g}")
    if sensitivity <= 0 or budget.law.cost(sensitivity, scale) > budget.amount:
        raise ValueError("the noise scale does not meet the budget; take it from noise_scale")
    if _in_bulk(answers.size, budget.law):
        add_noise = partial(_saturated_sum, BulkSampler(budget.law, scale))
    else:
        add_noise = partial(_measure, _mechanism(budget, sensitivity, scale))
    if answers.size and not _within_range(answers):
        raise DpqueryError("an exact answer does not fit the grid; declare smaller weights")
    noisy = np.empty_like(answers) if out is None else out
    for start in range(0, answers.size, _CHUNK):
        chunk = np.ascontiguousarray(answers[start : start + _CHUNK])
        noisy[start : start + chunk.size] = add_noise(chunk)
        report_progress("drawing noise", (start + chunk.size) / answers.size)
    return noisy


def source(size: int, law: Law) -> str:
    """Return the name and version of the noise source for so many answers and a law."""
    if _in_bulk(size, law):
        return f"the bulk sampler of dpquery {__version__}"
    return f"OpenDP {installed('opendp')}"


def _in_bulk(size: int, law: Law) -> bool:
    return law.real or size > BULK_ABOVE


def _saturated_sum(sampler: BulkSampler, chunk: Ints) -> Ints:
    """Return answers plus noise, clipped to +-2^62 without ever overflowing.

    Clipping is post-processing, and noise cut to an int64 is beyond the limits of every answer.
    """
    noise = sampler.sample(chunk.size)
    return chunk + np.clip(noise, -LARGEST_ANSWER - chunk, LARGEST_ANSWER - chunk)


def _mechanism(budget: Guarantee, sensitivity: int, scale: float) -> _Measurement:
    """Return the OpenDP measurement; ValueError if its own privacy map passes the budget."""
    check_libraries()
    mechanism = _built(budget.law, scale)
    charged = mechanism.map(sensitivity_bound(budget.law, sensitivity))
    if not (0 < charged < math.inf and charged <= budget.amount):
        raise ValueError("by OpenDP's privacy map the noise scale does not meet the budget")
    return mechanism


@lru_cache(maxsize=16)  # rounds of one scale, and the audit's thousands of releases
def _built(law: Law, scale: float) -> _Measurement:
    """Return the OpenDP measurement; T="i64", because T=int would mean 32 bits and clip."""
    import opendp.prelude as dp  # 0.4 s: only a release pays for it

    dp.enable_features("contrib")
    vectors = dp.vector_domain(dp.atom_domain(T="i64"))
    mechanism: _Measurement
    if law.power == 1:
        mechanism = dp.m.make_laplace(vectors, dp.l1_distance(T="f64"), scale=scale)
    else:
        mechanism = dp.m.make_gaussian(vectors, dp.l2_distance(T="f64"), scale=scale)
    return mechanism


def _measure(mechanism: _Measurement, chunk: Ints) -> Ints:
    """Return one chunk with noise; an error is raised outside the handler, to carry no values."""
    from opendp.mod import OpenDPException

    try:
        return np.asarray(mechanism(chunk), dtype=np.int64)
    except (OpenDPException, ArithmeticError, LookupError, TypeError, ValueError):
        pass
    raise DpqueryError("the noise source failed; nothing was measured")


def _within_range(answers: Ints) -> bool:
    """Return whether all answers lie strictly between -2^62 and 2^62."""
    # Two comparisons, not abs(): the absolute value of -2^63 is itself.
    return bool(answers.max() < LARGEST_ANSWER and answers.min() > -LARGEST_ANSWER)
