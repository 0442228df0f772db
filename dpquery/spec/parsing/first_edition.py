"""Specs in plans of format 1: without `other` a column dropped other texts; `bin` was `show`."""

from dpquery.spec.parsing.yaml_nodes import MapNode, Node, TextNode


def of_first_edition(root: Node) -> Node:
    """Return the nodes of a spec that says the same in today's words."""
    if not isinstance(root, MapNode):
        return root
    entries = [
        (key, _column(value) if key.text == "domain" else value) for key, value in root.entries
    ]
    drop = (TextNode(root.place, "other", True), TextNode(root.place, "drop", True))
    return MapNode(root.place, (*entries, drop))


def _column(node: Node) -> Node:
    """Return a declaration with `show` for `bin`, those inside it too."""
    if not isinstance(node, MapNode):
        return node
    entries = []
    for key, value in node.entries:
        binned = key.text == "other" and isinstance(value, TextNode) and value.text == "bin"
        entries.append((key, TextNode(value.place, "show", True) if binned else _column(value)))
    return MapNode(node.place, tuple(entries))
