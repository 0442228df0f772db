"""Public facts: the section `impossible` of a spec."""

from collections.abc import Iterable

from dpquery.spec.parsing.fields import COMBINATION
from dpquery.spec.parsing.scope import Scope
from dpquery.spec.parsing.yaml_nodes import Node
from dpquery.spec.predicates import selected_codes
from dpquery.spec.public_facts import Impossible


def read_impossible(nodes: Iterable[Node], scope: Scope) -> tuple[Impossible, ...]:
    """Return the combinations that no record has, in file order."""
    combinations: list[Impossible] = []
    for node in nodes:
        with scope.problems.collected():
            combination = _combination(node, scope)
            if combination in combinations:
                raise node.mistake("this combination is there twice; leave one out")
            combinations.append(combination)
    return tuple(combinations)


def _combination(node: Node, scope: Scope) -> Impossible:
    entries = COMBINATION.read(node, scope.problems)
    where = scope.sets(entries, fixed=(), read=scope.read_condition)
    if len(where) < len(entries):
        return Impossible((), str(node.place))  # what is wrong was noted
    sizes = {i: attribute.size for i, attribute in scope.declared.values() if attribute}
    if all(set(selected_codes(asked)) == set(range(sizes[i])) for i, asked in where.items()):
        raise node.mistake(
            "every record meets these conditions, so that none could exist; name the values that "
            "do not go together"
        )
    return Impossible(tuple(sorted(where.items())), str(node.place))
