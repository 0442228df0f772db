"""From nodes to Python values: the few readers that every section of a spec shares."""

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from dpquery.spec.problems import Problems, UnreadableError, listed, nearest, quoted, suggestion
from dpquery.spec.source import ListNode, MapNode, Node, TextNode

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_TOO_LARGE = re.compile(r"[+-]?[0-9]{19,}")
# Bounded, because 1e999999999 as an exact fraction fills the memory.
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")


def described(node: Node) -> str:
    """Return what a node is, for the `found` part of a message."""
    match node:
        case TextNode(empty=True):
            return "nothing"
        case TextNode(text=text):
            return quoted(text)
        case ListNode(items=items):
            return "a list" if items else "an empty list"
        case MapNode(entries=entries):
            return "a mapping" if entries else "an empty mapping"


def text(node: Node, what: str) -> str:
    """Return the text of a scalar, spaces around it removed as from the fields of a CSV file."""
    if not isinstance(node, TextNode) or node.empty:
        raise UnreadableError(node.place, f"expected {what}, found {described(node)}")
    return node.text.strip()


def whole(node: Node, what: str) -> int:
    """Return a whole number of at most 18 digits."""
    if isinstance(node, TextNode) and _TOO_LARGE.fullmatch(node.text.strip()):
        raise UnreadableError(
            node.place, f"{described(node)} is too large for {what}; the limit is 18 digits"
        )
    if not isinstance(node, TextNode) or not _WHOLE.fullmatch(node.text.strip()):
        raise UnreadableError(
            node.place, f"expected {what}, a whole number, found {described(node)}"
        )
    return int(node.text)


def decimal(node: Node, what: str) -> Fraction:
    """Return a decimal number exactly; never NaN or infinity."""
    if not isinstance(node, TextNode) or not _DECIMAL.fullmatch(node.text.strip()):
        raise UnreadableError(
            node.place, f"expected {what}, a number such as 0.5 or 1e-9, found {described(node)}"
        )
    return Fraction(node.text.strip())


def real(node: Node, what: str) -> float:
    """Return a decimal number as the nearest finite float."""
    decimal(node, what)
    value = float(text(node, what))
    if math.isinf(value):
        raise UnreadableError(node.place, f"{described(node)} is too large; the limit is 1.7e308")
    return value


def items(node: Node, what: str) -> tuple[Node, ...]:
    """Return the items of a list that holds at least one."""
    if not isinstance(node, ListNode) or not node.items:
        raise UnreadableError(
            node.place, f"expected {what}, a list with at least one entry, found {described(node)}"
        )
    return node.items


def pair(node: Node, what: str) -> tuple[Node, Node]:
    """Return both items of a list of two."""
    if not isinstance(node, ListNode) or len(node.items) != 2:
        count = f" of {len(node.items)}" if isinstance(node, ListNode) and node.items else ""
        raise UnreadableError(
            node.place, f"expected {what}, a list of two, found {described(node)}{count}"
        )
    return node.items[0], node.items[1]


def entries(node: Node, what: str) -> tuple[tuple[TextNode, Node], ...]:
    """Return the entries of a mapping, which may have none."""
    if not isinstance(node, MapNode):
        raise UnreadableError(node.place, f"expected {what}, a mapping, found {described(node)}")
    return node.entries


def fields(
    node: Node,
    what: str,
    *,
    problems: Problems,
    required: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> dict[str, Node]:
    """Return the values of a mapping with fixed keys; unknown and missing keys go to `problems`."""
    known = (*required, *optional)
    given: dict[str, Node] = {}
    meant = set()
    if not isinstance(node, MapNode):
        raise UnreadableError(
            node.place,
            f"expected {what}, a mapping with keys among {', '.join(known)}, found "
            f"{described(node)}",
        )
    for key, value in node.entries:
        if key.text in known:
            given[key.text] = value
        else:
            meant.add(nearest(key.text, known))
            hint = suggestion(key.text, known)
            problems.add(key.place, f"{what} has no key {quoted(key.text)}{hint}")
    for name in required:
        if name not in given and name not in meant:
            problems.add(node.place, f"{what} needs the key {quoted(name)}; add it")
    return given


def choice(node: Node, what: str, known: Sequence[str]) -> str:
    """Return one of a few fixed words."""
    if not isinstance(node, TextNode) or node.empty:
        raise UnreadableError(
            node.place, f"expected {what}, one of {listed(known)}, found {described(node)}"
        )
    if node.text not in known:
        raise UnreadableError(
            node.place, f"{quoted(node.text)} is not {what}{suggestion(node.text, known)}"
        )
    return node.text


def only_one(
    given: Mapping[str, Node], node: Node, what: str, *, kinds: Sequence[str]
) -> tuple[str, Node]:
    """Return the one entry of `given` whose key is among `kinds`.

    Raises:
        UnreadableError: there is none, or more than one, which is reported at the mapping `node`.
    """
    found = [kind for kind in kinds if kind in given]
    if not found and isinstance(node, MapNode) and len(node.entries) > len(given):
        raise UnreadableError(None)  # an unknown key has been reported: it was meant to be the one
    if len(found) != 1:
        held = f"found {' and '.join(found)}" if found else "found none of them"
        raise UnreadableError(node.place, f"{what} has one of the keys {', '.join(kinds)}; {held}")
    return found[0], given[found[0]]
