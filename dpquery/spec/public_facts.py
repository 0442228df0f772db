"""What is known of the records without looking at them: public facts that a spec declares."""

from dataclasses import dataclass, field

from dpquery.spec.predicates import PredicateSet


@dataclass(frozen=True)
class Impossible:
    """A combination of values that no record has.

    Attributes:
        where: (attribute index, one-query predicate set), sorted by index: a record that meets all
            of them cannot exist.
        place: where it stands in the spec, file:line:column.
    """

    where: tuple[tuple[int, PredicateSet], ...]
    place: str = field(default="", compare=False)
