"""Specs in plans of format 1, in which what is left out meant something else.

A column without `other` dropped other texts, and `bin` was `show`. The first rows of a person were
counted.
"""

from dpquery.spec.parsing.yaml_nodes import MapNode, Node, TextNode


def of_first_edition(root: Node) -> Node:
    """Return the nodes of a spec that says the same in today's words."""
    if not isinstance(root, MapNode):
        return root
    of_section = {"domain": _column, "privacy": _privacy}
    entries = [
        (key, of_section[key.text](value) if key.text in of_section else value)
        for key, value in root.entries
    ]
    drop = (TextNode(root.place, "other", True), TextNode(root.place, "drop", True))
    return MapNode(root.place, (*entries, drop))


def _privacy(node: Node) -> Node:
    """Return the section with `keep: first` where the unit is a person."""
    if not isinstance(node, MapNode):
        return node
    entries = []
    for key, value in node.entries:
        if key.text == "unit" and isinstance(value, MapNode):
            first = (TextNode(value.place, "keep", True), TextNode(value.place, "first", True))
            value = MapNode(value.place, (*value.entries, first))
        entries.append((key, value))
    return MapNode(node.place, tuple(entries))


def _column(node: Node) -> Node:
    """Return a declaration with `show` for `bin`, those inside it too."""
    if not isinstance(node, MapNode):
        return node
    entries = []
    for key, value in node.entries:
        binned = key.text == "other" and isinstance(value, TextNode) and value.text == "bin"
        entries.append((key, TextNode(value.place, "show", True) if binned else _column(value)))
    return MapNode(node.place, tuple(entries))
