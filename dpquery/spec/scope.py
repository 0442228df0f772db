"""What the items of a workload may refer to: the declared attributes, by name and once each."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dpquery.spec.domain import Attribute
from dpquery.spec.parse_predicates import read_condition, read_set
from dpquery.spec.predicates import PredicateSet, TotalSet
from dpquery.spec.problems import Problems, UnreadableError, quoted, suggestion
from dpquery.spec.reading import described, entries, text
from dpquery.spec.source import ListNode, Node

# Predicate sets by the position of their attribute.
Sets = dict[int, PredicateSet]
_ReadSet = Callable[[Node, Attribute], PredicateSet]


@dataclass(frozen=True, eq=False)
class Scope:
    """What the items of a workload may refer to.

    Attributes:
        problems: takes every mistake.
        declared: position and attribute by name; None where its declaration is at fault. Empty
            where the whole domain is: then no name can be judged.
    """

    problems: Problems
    declared: Mapping[str, tuple[int, Attribute | None]]

    def attribute(self, node: Node) -> tuple[int, Attribute]:
        """Return the position and the attribute that a node names."""
        name = text(node, "the name of an attribute")
        if not self.declared:
            raise UnreadableError(None)
        if name not in self.declared:
            raise UnreadableError(
                node.place, f"unknown attribute {quoted(name)}{suggestion(name, self.declared)}"
            )
        index, attribute = self.declared[name]
        if attribute is None:
            raise UnreadableError(None)
        return index, attribute

    def attributes(self, node: Node, what: str, *, fixed: Collection[int]) -> dict[int, Attribute]:
        """Return the attributes of a list, which may be empty; none twice and none of `fixed`."""
        if not isinstance(node, ListNode):
            raise UnreadableError(node.place, f"expected {what}, a list, found {described(node)}")
        found: dict[int, Attribute] = {}
        for own in node.items:
            with self.problems.collected():
                index, attribute = self.attribute(own)
                _check_free(own, attribute, repeated=index in found, fixed=index in fixed)
                found[index] = attribute
        if len(found) < len(node.items):
            raise UnreadableError(None)
        return found

    def sets(self, node: Node, what: str, *, fixed: Collection[int], read: _ReadSet) -> Sets:
        """Return a predicate set for every attribute that a mapping names."""
        found: Sets = {}
        for key, value in entries(node, what):
            with self.problems.collected():
                index, attribute = self.attribute(key)
                _check_free(key, attribute, repeated=index in found, fixed=index in fixed)
                found[index] = read(value, attribute)
        return found

    def read_set(self, node: Node, attribute: Attribute) -> PredicateSet:
        """Return any predicate set."""
        return read_set(node, attribute, problems=self.problems)

    def read_condition(self, node: Node, attribute: Attribute) -> PredicateSet:
        """Return a predicate set of one query."""
        return read_condition(node, attribute, problems=self.problems)

    def read_choosing(self, node: Node, attribute: Attribute) -> PredicateSet:
        """Return a predicate set that is more than the bare total."""
        found = self.read_set(node, attribute)
        if isinstance(found, TotalSet):
            raise UnreadableError(
                node.place,
                f"every record has the total of {quoted(attribute.name)}, so it asks nothing "
                "here; leave the attribute out",
            )
        return found


def _check_free(node: Node, attribute: Attribute, *, repeated: bool, fixed: bool) -> None:
    if repeated or fixed:
        why = "`where` has it already" if fixed else "it is named already"
        raise UnreadableError(
            node.place, f"attribute {quoted(attribute.name)} is repeated: {why}; name it once"
        )
