"""The items of a release: their files, and what their answers add up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpquery.spec.domain import Domain
from dpquery.spec.model import Item, PublicationRules, Spec
from dpquery.spec.predicates import GroupSet, IdentitySet, PredicateSet, StackedSet


@dataclass(frozen=True)
class SummedFacts:
    """What the answers of an item add up; where records are counted there is none.

    Attributes:
        of: the attribute whose value is added up.
        largest: the most that one record adds or takes away. Figures over several items take the
            errors of this one over it.
        other: what a record adds whose text is not declared; None where such records are dropped.
    """

    of: str
    largest: int
    other: int | None

    @property
    def words(self) -> str:
        """The same in a sentence without its first word and full stop."""
        other = "" if self.other is None else f", and one without a declared value {self.other:,}"
        return f"sums of {self.of}: one record adds at most {self.largest:,} either way{other}"


@dataclass(frozen=True)
class LevelFacts:
    """The levels of one attribute's hierarchy that rows of an item are groups of.

    Attributes:
        attribute: its name.
        levels: their names, in the order of the rows.
    """

    attribute: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class ItemFacts:
    """One item of the release, and the file of its answers.

    Attributes:
        name: the item's.
        file: of its answers.
        queries: number of its rows.
        description: what the table shows, for its readers.
        published: rules of the column `published`; None, and left out, where there is none.
        summed: what its answers add up; None, and left out, where they count records.
        numbered: whether rows say by numbers what they count, and two more files what these mean;
            left out of the file where they say it in words.
        levels: of hierarchies that its rows are asked by; left out of the file where there is none.
    """

    name: str
    file: str
    queries: int
    description: str
    published: PublicationRules | None = None
    summed: SummedFacts | None = None
    numbered: bool = False
    levels: tuple[LevelFacts, ...] = ()

    @property
    def level_words(self) -> str:
        """The levels in a sentence, after a full stop; nothing where there are none."""
        words = [f"{facts.attribute} by {', '.join(facts.levels)}" for facts in self.levels]
        return f". Rows of {'; '.join(words)}" if words else ""

    @property
    def tables_file(self) -> str:
        """The file that says which attributes each numbered table has."""
        return f"{self.name}.tables.parquet"

    @property
    def labels_file(self) -> str:
        """The file that says how the values on these attributes are called."""
        return f"{self.name}.labels.parquet"

    @property
    def files(self) -> tuple[str, ...]:
        """All its files."""
        more = (self.tables_file, self.labels_file) if self.numbered else ()
        return (self.file, *more)


def item_facts(spec: Spec, *, labelled_tables: int | None) -> tuple[ItemFacts, ...]:
    """Return the items with their files; those of more tables than that are numbered."""
    return tuple(
        ItemFacts(
            item.name,
            f"{item.name}.parquet",
            item.size,
            item.description,
            item.publish,
            summed_facts(item, spec.domain),
            labelled_tables is not None and len(item.tables) > labelled_tables,
            tuple(_level_facts(item, spec.domain)),
        )
        for item in spec.items
    )


def over_units(items: Sequence[ItemFacts]) -> str:
    """Return what figures over several items make of sums; nothing where there are none."""
    if all(item.summed is None for item in items):
        return ""
    return ", those of sums over the most that one record adds"


def summed_facts(item: Item, domain: Domain) -> SummedFacts | None:
    """Return what an item adds up; None where it counts records."""
    summed = item.summed
    if summed is None:
        return None
    attribute = domain.attributes[summed.attribute]
    other = None if attribute.columns[0].drops else summed.values[-1]
    return SummedFacts(attribute.name, summed.largest, other)


def _level_facts(item: Item, domain: Domain) -> Iterator[LevelFacts]:
    """Yield the levels that an item asks for, for each attribute that has a hierarchy."""
    for index, attribute in enumerate(domain.attributes):
        if attribute.levels:
            lowest = attribute.levels[-1].name
            every = [(*table.axes, *table.where) for table in item.tables]
            sets = [predicates for axes in every for i, predicates in axes if i == index]
            names = [name for predicates in sets for name in _level_names(predicates, lowest)]
            if names:
                yield LevelFacts(attribute.name, tuple(dict.fromkeys(names)))


def _level_names(predicates: PredicateSet, lowest: str) -> Iterator[str]:
    """Yield the level of every query that is a group of one; of all values the lowest once."""
    match predicates:
        case StackedSet(parts=parts):
            for part in parts:
                yield from _level_names(part, lowest)
        case GroupSet(named=named):
            yield from dict.fromkeys(level for level, _ in named)
        case IdentitySet():
            yield lowest
        case _:
            pass
