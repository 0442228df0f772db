"""The versions that the privacy argument was tested with: older ones are refused, once and early.

They are the language and the four libraries between the file and the noisy values: pyarrow reads
lines, numpy and scipy hold the integers of counts and strategies, OpenDP draws noise. Versions are
read from what pip has put on record, so nothing slow is imported.
"""

import platform
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from dpquery.exceptions import DpqueryError

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
