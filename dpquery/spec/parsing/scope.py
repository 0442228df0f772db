"""What the items of a workload may refer to: the declared attributes, by name and once each."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from dpquery.spec.domain import Attribute
from dpquery.spec.parsing.forms import TextForm
from dpquery.spec.parsing.predicate_sets import read_condition, read_set
from dpquery.spec.parsing.yaml_nodes import Node, TextNode
from dpquery.spec.predicates import PredicateSet, TotalSet
from dpquery.spec.problems import Problems, UnreadableError, quoted, suggestion

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
        rows: position of `person_rows` and the attribute itself; None where the domain is a
            release's that does not have it.
    """

    problems: Problems
    declared: Mapping[str, tuple[int, Attribute | None]]
    rows: tuple[int, Attribute] | None = None

    def person_rows(self, node: Node) -> tuple[int, Attribute]:
        """Return the position and the attribute of the rows of persons, asked for at a node."""
        if self.rows is None:
            raise node.mistake(
                "the release has not counted the rows of persons; ask for them in the spec of a "
                "release"
            )
        return self.rows

    def attribute(self, node: Node) -> tuple[int, Attribute]:
        """Return the position and the attribute that a node names."""
        name = TextForm("the name of an attribute").read(node, self.problems)
        if not self.declared:
            raise UnreadableError(None)
        if name not in self.declared:
            raise node.mistake(f"unknown attribute {quoted(name)}{suggestion(name, self.declared)}")
        index, attribute = self.declared[name]
        if attribute is None:
            raise UnreadableError(None)
        return index, attribute

    def attributes(self, nodes: Iterable[Node], *, fixed: Collection[int]) -> dict[int, Attribute]:
        """Return the attributes of a list; none twice and none of `fixed`."""
        named: dict[int, Attribute] = {}

        def name(node: Node) -> None:
            index, attribute = self._free(node, taken=named, fixed=fixed)
            named[index] = attribute

        self.problems.each(nodes, name)
        return named

    def sets(
        self, entries: Iterable[tuple[TextNode, Node]], *, fixed: Collection[int], read: _ReadSet
    ) -> Sets:
        """Return a predicate set for every attribute that a mapping names."""
        sets: Sets = {}
        for key, value in entries:
            with self.problems.collected():
                index, attribute = self._free(key, taken=sets, fixed=fixed)
                sets[index] = read(value, attribute)
        return sets

    def varied(self, entries: Iterable[tuple[TextNode, Node]], *, fixed: Collection[int]) -> Sets:
        """Return the predicate sets of a mapping but for totals, which ask nothing of records."""
        sets = self.sets(entries, fixed=fixed, read=self.read_set)
        return {i: asked for i, asked in sets.items() if not isinstance(asked, TotalSet)}

    def _free(
        self, node: Node, *, taken: Collection[int], fixed: Collection[int]
    ) -> tuple[int, Attribute]:
        """Return the position and the attribute that a node names for the first time."""
        index, attribute = self.attribute(node)
        if index in taken or index in fixed:
            why = "`where` has it already" if index in fixed else "it is named already"
            raise node.mistake(
                f"attribute {quoted(attribute.name)} is repeated: {why}; name it once"
            )
        return index, attribute

    def over(self, nodes: Iterable[Node] | None, *, fixed: Collection[int]) -> dict[int, Attribute]:
        """Return the attributes to combine in the order named; all that are not fixed for None."""
        if nodes is not None:
            return self.attributes(nodes, fixed=fixed)
        declared = self.declared.values()
        return {
            i: attribute for i, attribute in declared if attribute is not None and i not in fixed
        }

    @property
    def complete(self) -> bool:
        """Whether every declared attribute is known: until then, how many there are is not."""
        return all(attribute is not None for _, attribute in self.declared.values())

    def read_set(self, node: Node, attribute: Attribute) -> PredicateSet:
        """Return any predicate set."""
        return read_set(node, attribute, problems=self.problems)

    def read_condition(self, node: Node, attribute: Attribute) -> PredicateSet:
        """Return a predicate set of one query."""
        return read_condition(node, attribute, problems=self.problems)

    def read_choosing(self, node: Node, attribute: Attribute) -> PredicateSet:
        """Return a predicate set other than the total alone."""
        predicates = self.read_set(node, attribute)
        if isinstance(predicates, TotalSet):
            raise node.mistake(
                f"every record has the total of {quoted(attribute.name)}, so it asks nothing "
                "here; leave the attribute out"
            )
        return predicates
