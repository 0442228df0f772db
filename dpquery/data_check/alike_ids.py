"""Ids that a release takes for several persons and that look like one's; private, as they are."""

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection

from dpquery.data_check.letters import is_invisible
from dpquery.measurement.counting.person_keys import name_of

_CONTROLS = bytes(range(32)) + b"\x7f"


_CHANGES: dict[str, Callable[[str], str]] = {
    "upper and lower case": str.casefold,
    "the form of Unicode (NFKC)": lambda text: unicodedata.normalize("NFKC", text),
    "invisible characters": lambda text: "".join(c for c in text if not is_invisible(c)),
}


def alike_ids(names: Collection[bytes], decimal: str) -> tuple[tuple[str, int, int], ...]:
    """Return (what alone tells some ids apart, these ids, the persons that they would be)."""
    if len({hash(_loose(name, decimal)) for name in names}) == len(names):
        return ()
    groups = defaultdict(list)
    for name in names:
        groups[_loose(name, decimal)].append(name)
    found = dict.fromkeys([*_CHANGES, "several of these"], (0, 0))
    for group in groups.values():
        if len(group) == 1:
            continue
        several = True
        for what, change in _CHANGES.items():
            parts = defaultdict(list)
            for name in group:
                parts[name_of(change(name.decode(errors="replace")).encode(), decimal)].append(name)
            alike = [len(part) for part in parts.values() if len(part) > 1]
            several &= not alike
            found[what] = found[what][0] + sum(alike), found[what][1] + len(alike)
        if several:
            ids, persons = found["several of these"]
            found["several of these"] = ids + len(group), persons + 1
    return tuple((what, ids, persons) for what, (ids, persons) in found.items() if ids)


def _loose(name: bytes, decimal: str) -> bytes:
    """Return one name for all that are alike."""
    if name.isascii():
        lower = name.lower()
        seen = lower.translate(None, _CONTROLS)
        return seen if seen == lower else name_of(seen, decimal)
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return name
    for change in (
        *_CHANGES.values(),
        *_CHANGES.values(),
    ):  # one may bring about what another takes
        text = change(text)
    return name_of(text.encode(), decimal)
