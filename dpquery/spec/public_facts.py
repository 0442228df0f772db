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


@dataclass(frozen=True)
class KnownTotals:
    """The answers of an item that are published anyway.

    Attributes:
        values: of its rows, in row order.
        file: that they stand in, beside the spec.
        why: they are public, in the spec's words.
        lines: of the file, for each row.
        place: where the file is named, file:line:column.
    """

    values: tuple[int, ...]
    file: str
    why: str
    lines: tuple[int, ...] = field(default=(), compare=False)
    place: str = field(default="", compare=False)
