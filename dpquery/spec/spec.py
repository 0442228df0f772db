"""The spec as an object: items and tables, privacy, budget, derived items, public facts."""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

from dpquery.spec.columns import Attribute, Bins, Column, Domain, Integers, doubts
from dpquery.spec.numbers import power
from dpquery.spec.predicates import IdentitySet, PredicateSet


@dataclass(frozen=True)
class Impossible:
    """A combination of values that no record has."""

    # (attribute index, one-query predicate set), sorted by index: a record that meets all of them
    # cannot exist
    where: tuple[tuple[int, PredicateSet], ...]
    place: str = field(default="", compare=False)  # where it stands in the spec, file:line:column


@dataclass(frozen=True)
class KnownTotals:
    """The answers of an item that are published anyway."""

    values: tuple[int, ...]  # of its rows, in row order
    file: str  # that they stand in, beside the spec
    why: str  # they are public, in the spec's words
    lines: tuple[int, ...] = field(default=(), compare=False)  # of the file, for each row
    place: str = field(default="", compare=False)  # where the file is named, file:line:column


Neighbours = Literal["add-remove", "replace"]
Keep = Literal["random", "first"]
Prefer = Literal["unbiased", "closest"]
"""Which answers readers are to have: without bias, or those that err least, biased or not."""
Accounting = Literal["pure", "zcdp", "gdp"]
"""What losses are added up as: epsilon, rho of zCDP, or the square of mu of GDP."""


@dataclass(frozen=True)
class SummedValues:
    """What a record adds to a sum: a whole number for every code of one attribute."""

    attribute: int  # its index
    # of every code, that of other texts among them; one of them at least is not 0
    values: tuple[int, ...]

    @cached_property
    def largest(self) -> int:
        """The most that one record adds or takes away."""
        return max(map(abs, self.values))

    def rounding_words(self, attribute: Attribute) -> str:
        """Say what the sum leaves out: places in bins, and numbers that one number stands for."""
        kind, other = attribute.columns[0].kind, self.values[attribute.length :]
        words = [kind.rounding_words(self.values)] if isinstance(kind, Bins) else []
        if any(other) and isinstance(kind, Bins | Integers):
            words.append(f"a record beyond {kind.words} adds {other[0]:,}, however far")
        return f"{'; '.join(words)}; no interval includes this" if words else ""


@dataclass(frozen=True)
class Table:
    """One table of a workload item: a query for every combination of its axes' predicates.

    A query counts the records that satisfy its predicates, or adds up a value of theirs.
    """

    # (attribute index, predicate set), sorted by index. The rows of the table are the C-order
    # product of the sets; attributes not named are summed over
    axes: tuple[tuple[int, PredicateSet], ...]
    # (attribute index, one-query predicate set) that every query also demands
    where: tuple[tuple[int, PredicateSet], ...] = ()
    # how many of the axes' predicates a record must satisfy: len(axes) for a product, 1 for any-of,
    # r for an r-of-k threshold
    at_least: int | None = None
    # what is added up, over an ordinary product; None where records are counted
    summed: SummedValues | None = None

    @property
    def unit(self) -> int:
        """The most that one record changes a query: 1 for a count."""
        return 1 if self.summed is None else self.summed.largest

    @property
    def threshold(self) -> int:
        """The r of r-of-k; k where the table is an ordinary product."""
        return len(self.axes) if self.at_least is None else self.at_least

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of predicates on each axis."""
        return tuple(len(predicates) for _, predicates in self.axes)

    @property
    def size(self) -> int:
        """Number of queries."""
        return math.prod(self.shape)

    @property
    def attributes(self) -> tuple[int, ...]:
        """Indices of all attributes with predicates, sorted."""
        return tuple(sorted(i for i, _ in (*self.axes, *self.where)))

    @property
    def told_apart(self) -> tuple[tuple[int, PredicateSet | SummedValues], ...]:
        """All that tells codes of an attribute apart, with the attribute's index."""
        summed = () if self.summed is None else ((self.summed.attribute, self.summed),)
        return (*self.axes, *self.where, *summed)


@dataclass(frozen=True)
class PublicationRules:
    """What the column `published` shows of an estimate: nothing, or the estimate, rounded.

    Rules look at noisy values alone, so that they take no budget and protect nobody.
    """

    # estimates with a relative error of so much or more are left out; None: none are
    rel_error: float | None = None
    below: int | None = None  # estimates below this are left out; None: none are
    # the others are rounded to the nearest multiple of this; None: they stay as they are
    round_to: int | None = None


@dataclass(frozen=True)
class Item:
    """A named, weighted entry of the workload: tables of counts, or of sums of the same values.

    `weight` scales the squared error of its queries, that of sums over their `unit` squared.
    `place` is where it stands in the spec, file:line:column. `publish` are the rules of its column
    `published`, `known` its answers where they are public, `share` its fixed share of the budget.
    """

    name: str
    tables: tuple[Table, ...]
    weight: float = 1.0
    description: str = ""
    place: str = field(default="", compare=False)
    publish: PublicationRules | None = None
    known: KnownTotals | None = None
    share: Fraction | None = None

    @cached_property
    def size(self) -> int:
        """Number of queries."""
        return sum(table.size for table in self.tables)

    @property
    def summed(self) -> SummedValues | None:
        """What its queries add up; None where they count records."""
        return self.tables[0].summed


FAR_OFF = 0.1
"""A share of the weight of all records that no answer can lack and be called good."""


@dataclass(frozen=True)
class Drawn:
    """From what a fixed number of records, or of clusters of them, was drawn."""

    stratum: int | None  # the place of the attribute whose values are strata; None: all is one
    rows: tuple[int, ...]  # how many from each, by code; 0 of values that are not declared
    cluster: int | None = None  # the place of that whose values are the clusters; None of records

    @property
    def attributes(self) -> tuple[int, ...]:
        """The places of both."""
        return tuple(i for i in (self.stratum, self.cluster) if i is not None)


@dataclass(frozen=True)
class ReplicateWeights:
    """Columns of replicate weights, whose differences from the weight tell the error of a sample.

    A record adds them in whole steps of the weight's grid, and the squares of all of its own to
    `at_most` squared.
    """

    names: tuple[str, ...]
    factor: Fraction  # the variance is the sum of squared differences, times this
    at_most: Fraction  # the most that a record's differences are long together
    degrees: int  # of freedom, that the survey gives its variances

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns, of any numbers."""
        every = Bins((-sys.float_info.max, sys.float_info.max))
        return tuple(Column(name, every) for name in self.names)


@dataclass(frozen=True)
class RecordWeight:
    """What a record counts as: the number in a column, cut off at the top and put on a grid.

    A record adds whole steps of the grid, from 0 to `steps`, to the one cell that it is in. A text
    that is no number, or one below half a step, adds none.
    """

    name: str  # of the column
    at_most: Fraction  # what a larger weight counts as; a whole number of steps
    step: Fraction  # of the grid
    # about what the weights that count add up to, and the records of a simple random sample that
    # would say as much of the whole by unequal weights alone: public
    total: int | None = None
    effective: int | None = None
    # how many times the variance of Poisson sampling the sample's is, if sums of squared weights
    # are measured too, which say how large that is: then `total` and `effective` are given
    design_effect: Fraction | None = None
    inclusion: bool = False  # whether weights are one over the chances to be drawn
    drawn: Drawn | None = None  # from what the sample was: public
    replicates: ReplicateWeights | None = None  # measured in place of squared weights

    @property
    def steps(self) -> int:
        """The most steps that one record adds."""
        return int(self.at_most / self.step)

    @property
    def difference_steps(self) -> int:
        """The most steps that a record's differences of replicate weights are long together."""
        return 0 if self.replicates is None else int(self.replicates.at_most / self.step)

    @property
    def beside(self) -> tuple[str, ...]:
        """What is measured over the same tables for the error of the sample, sum by sum."""
        if self.replicates is not None:
            numbers = range(1, len(self.replicates.names) + 1)
            return tuple(f"replicate {k} less the weight" for k in numbers)
        return ("squared weights",) * (self.design_effect is not None)

    @property
    def ratio_of_squares(self) -> float:
        """How many times a sum of weights that of what they add to the variance is, about."""
        return (self.total or 0) / (self.effective or 1) - self.inclusion

    @cached_property
    def column(self) -> Column:
        """The column, with a code for every number of steps but 0, which any other text adds.

        The bin of each number is what rounds to it; that of the largest has no upper end.
        """
        edges = [float((k - Fraction(1, 2)) * self.step) for k in range(1, self.steps + 1)]
        return Column(self.name, Bins((*edges, sys.float_info.max)))


@dataclass(frozen=True)
class Privacy:
    """The protected unit: a row, or a person (a CSV column) with at most `max_rows` rows each.

    `keep` is which rows of a person with more count: any, each as likely, or the first. `weight` is
    what a record counts as; 1 without one.
    """

    person: str | None = None
    max_rows: int = 1
    neighbours: Neighbours = "add-remove"
    delta: Fraction = Fraction(0)
    keep: Keep = "random"
    weight: RecordWeight | None = None

    @property
    def steps(self) -> int:
        """The most that one record adds to its cell of the exact tables, which are of integers."""
        return 1 if self.weight is None else self.weight.steps

    @property
    def step(self) -> Fraction:
        """What one of them is worth in answers."""
        return Fraction(1) if self.weight is None else self.weight.step

    @property
    def beside(self) -> tuple[str, ...]:
        """What is measured over the same tables for the error of the sample, sum by sum."""
        return () if self.weight is None else self.weight.beside

    @property
    def copies(self) -> int:
        """How many of each table are held against the limit of cells: all only with replicates."""
        return 1 + len(self.beside) if len(self.beside) > 1 else 1

    @property
    def measures_squares(self) -> bool:
        """Whether that is sums of squared weights."""
        return self.weight is not None and self.weight.design_effect is not None


@dataclass(frozen=True)
class Budget:
    """The cap on all releases of a dataset: pure epsilon, (epsilon, delta), or rho (zCDP).

    `accounting` is what losses are added up as; None where the record, or a plan, is to say.
    `discover` is the part of delta that thresholds of discoveries may spend.
    """

    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)
    rho: Fraction | None = None
    accounting: Accounting | None = None
    discover: Fraction = Fraction(0)

    @property
    def fixed(self) -> Accounting | None:
        """What losses are added up as, where the budget leaves no choice."""
        if self.accounting is not None:
            return self.accounting
        if self.rho is not None:
            return "zcdp"
        return "pure" if self.delta == 0 else None

    @property
    def counted(self) -> Accounting:
        """The same, and zCDP where there is a choice that was not made: the older way."""
        return self.fixed or "zcdp"

    def __str__(self) -> str:
        if self.epsilon is None:
            return f"rho {float(self.rho or 0):g}"
        counted = "" if self.accounting is None else f", accounting {self.accounting}"
        if self.discover:
            counted += f", discover {power(float(self.discover))}"
        return f"epsilon {float(self.epsilon):g}, delta {power(float(self.delta))}{counted}"


@dataclass(frozen=True)
class Rows:
    """The declared number of records: public, as the spec is, and never read from the data."""

    count: int  # how many
    # whether that is the number in every table, which neighbours that replace one row leave public
    # where no column drops records; else no guarantee, and no answer, may rest on it
    exact: bool


@dataclass(frozen=True)
class Parent:
    """Whose people a dataset's are among: what is spent on it is spent on them as well."""

    id: str  # of the parent, which may be a dataset of its own
    budget: Budget  # the cap on all releases of all datasets that name this parent, and of its own

    def __str__(self) -> str:
        return f"{self.id} with a budget of {self.budget}"


@dataclass(frozen=True)
class Dataset:
    """The declared population of records; all versions share one budget."""

    id: str
    version: str = "1"
    rows: Rows | None = None
    parent: Parent | None = None


@dataclass(frozen=True)
class FileFormat:
    """How text files write their records; declared, since a guess would depend on the data."""

    delimiter: str = ","  # the byte between two fields
    # utf-8, utf-16 (with a byte order mark), utf-16-le, utf-16-be, latin-1 or cp1252
    encoding: str = "utf-8"
    decimal: str = "."  # the mark before a number's decimals
    quote: str = '"'  # the mark around a field that holds delimiters; empty where there is none
    # whether a quoted field may hold line feeds: a record is then as many lines as its quotes span,
    # and one line otherwise
    newlines_in_quotes: bool = False


QuotientKind = Literal["share", "ratio", "mean"]


@dataclass(frozen=True)
class Quotient:
    """Answers of one table over those of another, which has some of its axes."""

    kind: QuotientKind  # what it is called
    rows: Table  # the numerators
    denominator: Table  # each of its axes is one of the numerator's

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables whose answers it is made of."""
        return (self.rows, self.denominator)


@dataclass(frozen=True)
class Difference:
    """Answers of one table less those of another of the same axes."""

    first: Table  # of the one group
    second: Table  # of the other
    rows: Table  # the table that says what the rows are
    # the folder of the release whose the second is; empty where it is the same one
    release: str = ""

    kind: Literal["difference"] = "difference"

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables whose answers it is made of."""
        return (self.first, self.second)


@dataclass(frozen=True)
class Rate:
    """Answers of a table per so many of a public population."""

    rows: Table  # the table
    per: float  # how many
    population: tuple[float, ...]  # of every row of the table, above 0

    kind: Literal["rate"] = "rate"

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables whose answers it is made of."""
        return (self.rows,)


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of an ordered attribute, of all records or by group."""

    rows: Table  # the table that says which groups there are
    attribute: int  # index of the ordered attribute
    cumulative: Table  # the groups by prefixes of the attribute
    probabilities: tuple[float, ...]  # in (0, 1), rising

    kind: Literal["quantiles"] = "quantiles"

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables whose answers it is made of."""
        return (self.cumulative,)


@dataclass(frozen=True)
class MergedRows:
    """Answers of a table, added up over values of an attribute until each is precise enough."""

    rows: Table  # the table; it asks for single values of the attribute
    attribute: int  # index of the attribute: an ordered one, or one with a hierarchy
    rel_error: float  # the most that a standard error may be of its sum
    sizes: tuple[float, ...]  # expected records of each row; those of estimates may be below 0
    presumed: bool = False  # whether these are equal shares, for want of a file
    publish: PublicationRules | None = None  # of the item that has the rows

    kind: Literal["merged"] = "merged"

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables whose answers it is made of."""
        return (self.rows,)


Statistic = Quotient | Difference | Rate | Quantiles | MergedRows


@dataclass(frozen=True)
class DerivedItem:
    """A named statistic derived from items."""

    name: str  # becomes a file name, as an item's does
    statistic: Statistic  # what it is
    description: str = ""  # what it shows, for its readers
    definition: str = ""  # how it is worked out, in words
    place: str = ""  # where it stands in the spec, file:line:column
    items: tuple[str, ...] = ()  # names of those that it is made of

    @property
    def size(self) -> int:
        """Number of rows; of merged ones that before they are merged."""
        several = self.statistic.probabilities if isinstance(self.statistic, Quantiles) else (0.5,)
        return self.statistic.rows.size * len(several)

    @property
    def release(self) -> str:
        """The folder of another release that answers are from; empty where there is none."""
        return self.statistic.release if isinstance(self.statistic, Difference) else ""


@dataclass(frozen=True)
class About:
    """What readers of a release are told, in the spec's words; None where it says nothing.

    It is printed as it stands: no plan, key or number depends on it.
    """

    title: str | None = None  # of the publication
    description: str | None = None  # what it is about
    contact: str | None = None  # who answers questions about it
    licence: str | None = None  # what others may do with it
    period: str | None = None  # the time that the records are from
    area: str | None = None  # where they are from
    next_update: str | None = None  # when the next release is due
    notes: str | None = None  # what else a reader should know


@dataclass(frozen=True, eq=False)
class Spec:
    """A parsed spec. `text` and `files` (name -> text of value lists) let a plan carry it whole.

    `first_edition`: it is from a plan of format 1. `impossible`: combinations that no record has.
    `prefer`: what plan compares mechanisms and columns by.
    """

    dataset: Dataset
    privacy: Privacy
    budget: Budget
    domain: Domain
    items: tuple[Item, ...]
    file: FileFormat = FileFormat()
    derived: tuple[DerivedItem, ...] = ()
    text: str = field(repr=False, default="")
    files: Mapping[str, str] = field(repr=False, default_factory=dict)
    first_edition: bool = False
    about: About = About()
    prefer: Prefer = "unbiased"
    impossible: tuple[Impossible, ...] = ()

    @cached_property
    def queries(self) -> int:
        """Number of queries in the whole workload."""
        return sum(item.size for item in self.items)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are read of every record, that of persons apart."""
        if (weight := self.privacy.weight) is None:
            return self.domain.columns
        replicates = () if weight.replicates is None else weight.replicates.columns
        return (*self.domain.columns, weight.column, *replicates)

    @property
    def remarks(self) -> list[str]:
        """What may not have been meant."""
        return [*doubts(self.domain), *self._doubts_on_sizes()]

    def _doubts_on_sizes(self) -> Iterator[str]:
        """Yield which rows are merged by sizes that are presumed, or are far from all records."""
        merged = [
            (d.name, d.statistic) for d in self.derived if isinstance(d.statistic, MergedRows)
        ]
        presumed = {name: rows.rows.where for name, rows in merged if rows.presumed}
        if presumed:
            met = ", ".join(name for name, where in presumed.items() if where)
            yield (
                "merged as if all rows but those of `other` were of one size, so that small ones "
                f"stay too noisy: {', '.join(presumed)}"
                + f" (and as if values of a `where` were as frequent as others: {met})"
                * bool(met)
                + "; add `sizes: FILE`, a CSV file with the item's attributes and `size`, from a "
                "census, or the item's file in another release (`dpquery package --also csv`)"
            )
        for name, rows in merged:
            apart = all(isinstance(each, IdentitySet) for _, each in rows.rows.axes)
            every, known = self.expected_total, sum(rows.sizes)
            if every and apart and not rows.rows.where and not every / 2 <= known <= 2 * every:
                yield (
                    f"{name}: its `sizes` add up to {known:,.0f}, and the spec says that all "
                    f"records are about {every:,}: give sizes on that scale"
                )

    @property
    def may_prefer_closest(self) -> bool:
        """Whether `prefer: closest` would be another choice, and is not refused."""
        return self.prefer == "unbiased" and self.privacy.weight is None

    @property
    def expected_total(self) -> int | None:
        """About what all records count as together: their number, or what weights add up to."""
        if self.privacy.weight is not None:
            return self.privacy.weight.total
        return None if self.dataset.rows is None else self.dataset.rows.count

    @property
    def accounting(self) -> Accounting | None:
        """What losses are added up as; None where neither the budget nor its parent's says."""
        parent = self.dataset.parent
        return self.budget.fixed or (None if parent is None else parent.budget.fixed)

    def counted_in(self, accounting: Accounting) -> "Spec":
        """Return the spec with budgets that add up losses as this."""
        dataset = self.dataset
        if dataset.parent is not None:
            budget = replace(dataset.parent.budget, accounting=accounting)
            dataset = replace(dataset, parent=replace(dataset.parent, budget=budget))
        return replace(self, dataset=dataset, budget=replace(self.budget, accounting=accounting))

    @property
    def states_facts(self) -> bool:
        """Whether it says what is publicly known of the answers."""
        return any((self.impossible, *(item.known for item in self.items)))

    @property
    def weighted(self) -> bool:
        """Whether items weigh differently: a weighted RMSE is then another than the plain one."""
        return len({item.weight for item in self.items}) > 1
