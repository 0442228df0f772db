"""The items of a release: their files, and what their answers add up."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpquery.spec.domain import Domain
from dpquery.spec.model import Item, PublicationRules, Spec


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
    """

    name: str
    file: str
    queries: int
    description: str
    published: PublicationRules | None = None
    summed: SummedFacts | None = None
    numbered: bool = False

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
