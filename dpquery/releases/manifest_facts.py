"""What the manifest says of items, of RAP runs and of public facts."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist
from typing import Annotated

from dpquery.limits import LARGEST_INTEGER
from dpquery.reconstruction.checks import LEAST_CHANCE
from dpquery.releases.words import count, figure, one_line, percent, rounded
from dpquery.spec.columns import PERSON_ROWS, Domain
from dpquery.spec.parsing.item_fields import NAME
from dpquery.spec.spec import Item, MergedRows, PublicationRules, Spec
from dpquery.untrusted.json_values import LEAST_FIGURE, MOST, UNWRITTEN, Count, Matching, Within

Digest = Annotated[str, Matching("[0-9a-z]{1,64}")]
RowsDigest = Annotated[str, Matching("[0-9a-z]{0,64}")]
ItemName = Annotated[str, Matching(NAME)]
FigureAboveZero = Annotated[float, Within(LEAST_FIGURE, MOST)]
"""Above zero: its logarithm, and its square, must still be numbers."""
FigureFromZero = Annotated[float, Within(LEAST_FIGURE, MOST, or_zero=True)]
ShareOfRows = Annotated[float, Within(LEAST_FIGURE, 1.0, or_zero=True)]


Z_95 = NormalDist().inv_cdf(0.975)
MOST_SHARE = 1.0  # of the records: a distance that may be larger says nothing of the tables


@dataclass(frozen=True)
class SummedFacts:
    """What the answers of an item add up; where records are counted there is none."""

    of: str  # the attribute whose value is added up
    # the most that one record adds or takes away. Figures over several items take the errors of
    # this one over it
    largest: Count
    # what a record adds whose text is not declared; None where such records are dropped
    other: int | None
    # what no error says of a sum over bins, or of one with `other`; left out of the file elsewhere
    rounding: Annotated[str, UNWRITTEN] = ""
    # whether each record adds that times its weight; left out of the file where none has one
    weighted: Annotated[bool, UNWRITTEN] = False

    @property
    def words(self) -> str:
        """The same in a sentence without its first word and full stop."""
        other = "" if self.other is None else f", and one without a declared value {self.other:,}"
        rounding = f"; {self.rounding}" if self.rounding else ""
        times = " times its weight" * self.weighted
        most = f"one record adds at most {self.largest:,}{times} either way"
        return f"sums of {self.of}: {most}{other}{rounding}"


def units_counted(columns: Collection[str]) -> str:
    """Return what a file with these columns counts."""
    if PERSON_ROWS not in columns:
        return "records"
    return "records or persons" if "table" in columns else "persons"


def amount_words(
    summed: SummedFacts | None, *, weighted: bool, columns: Collection[str] = ()
) -> str:
    """Return what an answer is: a count, or a sum of what, and whether of weighted records.

    >>> amount_words(None, weighted=True), amount_words(None, weighted=False, columns={PERSON_ROWS})
    ('weighted count', 'count of persons')
    """
    of = f" of {units_counted(columns)}" * (PERSON_ROWS in columns)
    return "weighted " * weighted + (f"count{of}" if summed is None else f"sum of {summed.of}")


@dataclass(frozen=True)
class LevelFacts:
    """The levels of one attribute's hierarchy that rows of an item are groups of."""

    attribute: str  # its name
    levels: tuple[str, ...]  # their names, in the order of the rows


@dataclass(frozen=True)
class ItemFacts:
    """One item of the release, and the file of its answers."""

    name: ItemName  # the item's
    file: str  # of its answers
    queries: Count  # number of its rows
    description: str  # what the table shows, for its readers
    # rules of the column `published`; None, and left out, where there is none
    published: Annotated[PublicationRules | None, UNWRITTEN] = None
    # what its answers add up; None, and left out, where they count records
    summed: Annotated[SummedFacts | None, UNWRITTEN] = None
    # whether rows say by numbers what they count, and two more files what these mean; left out of
    # the file where they say it in words
    numbered: Annotated[bool, UNWRITTEN] = False
    # of hierarchies that its rows are asked by; left out of the file where there is none
    levels: Annotated[tuple[LevelFacts, ...], UNWRITTEN] = ()

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
            summed_facts(item, spec),
            labelled_tables is not None and len(item.tables) > labelled_tables,
            tuple(_level_facts(item, spec.domain)),
        )
        for item in spec.items
    )


def over_units(items: Sequence[ItemFacts]) -> str:
    """Return what figures over several items make of sums; nothing where there are none."""
    largest = {f"{s.largest:,} ({s.of})": 0 for item in items if (s := item.summed)}
    if not largest:
        return ""
    return f", each error of a sum divided by the largest value of a record: {', '.join(largest)}"


def roundings(items: Sequence[ItemFacts]) -> list[tuple[str, str]]:
    """Return the items of whose sums no error says all, each with what it leaves out."""
    summed = [(item.name, item.summed.rounding) for item in items if item.summed]
    return [(name, words) for name, words in summed if words]


def summed_facts(item: Item, spec: Spec) -> SummedFacts | None:
    """Return what an item adds up; None where it counts records."""
    summed, weighted = item.summed, spec.privacy.weight is not None
    if summed is None:
        return None
    attribute = spec.domain.attributes[summed.attribute]
    other = None if attribute.columns[0].drops else summed.values[-1]
    rounding = summed.rounding_words(attribute)
    return SummedFacts(attribute.name, summed.largest, other, rounding, weighted)


def _level_facts(item: Item, domain: Domain) -> Iterator[LevelFacts]:
    """Yield the levels that an item asks for, for each attribute that has a hierarchy."""
    for index, attribute in enumerate(domain.attributes):
        if attribute.levels:
            every = [(*table.axes, *table.where) for table in item.tables]
            sets = [predicates for axes in every for i, predicates in axes if i == index]
            groups = chain.from_iterable(each.groups_of_levels(attribute) for each in sets)
            if names := dict.fromkeys(group[0] for group in groups if group):
                yield LevelFacts(attribute.name, tuple(names))


@dataclass(frozen=True)
class SimulatedFacts:
    """Errors on public data in place of the records, simulated when the plan was made."""

    proxy: str  # the public data, in words
    repetitions: Count  # number of runs
    # root mean square error of all answers, as the workload weighs them, in counts: the mean of the
    # runs
    rmse: FigureFromZero
    rmse_spread: FigureFromZero  # standard deviation of that from run to run
    max_error: FigureFromZero  # largest error of any answer, in counts, the mean of the runs
    max_error_spread: FigureFromZero  # standard deviation of that from run to run
    weighted: bool = False  # whether the workload weighs its items differently


@dataclass(frozen=True)
class RapFacts:
    """A run of relaxed adaptive projection: what was chosen and measured, and the rows made."""

    # times that queries were chosen and measured; one round of none chosen measures all
    rounds: Count
    selected: Annotated[int, Within(0, LARGEST_INTEGER)]  # queries that each round chose
    relaxed_rows: Count  # rows of the relaxed data that every answer is read from
    # the number of records that answers are scaled to: counted with noise and weighed with the
    # declared number, or as it was declared
    total: float
    # standard deviation of the noise it was counted with; None where it was declared
    total_std: FigureAboveZero | None
    # a query is e times as likely to be chosen as one whose answer was this many counts less wrong;
    # None where no query had to be chosen
    selection_scale: FigureAboveZero | None
    # for each round the standard deviation of the noise on its counts, in counts
    noise_std: tuple[FigureAboveZero, ...]
    # errors on public data at this guarantee; None where the plan has none
    simulated: SimulatedFacts | None
    # the number of records that the noisy count was weighed with, by inverse variances, as if it
    # had a standard deviation of half of itself; None where there was no weighing
    declared: Count | None = None
    # of the numbers in relaxed_rows.parquet, row after row, as little-endian 32-bit floats; empty
    # where an older dpquery did not keep it
    rows_sha256: RowsDigest = ""


@dataclass(frozen=True)
class DistanceFacts:
    """How far the released tables of an item are from those of the records, measured with noise."""

    item: str  # its name; empty where all items are measured together
    tables: Count  # how many different tables it asks for that were measured
    # the sum over the cells of a table of |released - true|, the mean over the tables, in counts,
    # with noise: it may be below 0
    distance: float
    std: FigureAboveZero  # standard deviation of that noise
    # the largest error in a cell of all its tables, likewise; None of an older dpquery
    largest: Annotated[float | None, UNWRITTEN] = None
    largest_std: Annotated[FigureAboveZero | None, UNWRITTEN] = None

    def words(self, total: float) -> str:
        """Return the same as a share of so many records, with its 95 % interval.

        >>> DistanceFacts("all", 15, 210.0, 5.0).words(1000.0)
        'the errors of all cells of a table of all add up on average to 20 % to 22 % of the records'
        >>> DistanceFacts("pairs", 15, 210.0, 5.0, 30.0, 5.0).words(1000.0).partition(", and ")[2]
        'the largest error of one cell is 20 to 40'
        >>> DistanceFacts("pairs", 15, 210.0, 500.0).words(1000.0)
        'the records are too few for the errors measured on pairs to say anything'
        """
        if self.is_hidden(total):
            measured = f"on {self.item} " if self.item else ""
            return f"the records are too few for the errors measured {measured}to say anything"
        of, share = f" of {self.item}" if self.item else "", self.share(total)
        words = (
            f"the errors of all cells of a table{of} add up on average to {share} of the records"
        )
        if self.largest is None or self.largest_std is None:
            return words
        return f"{words}, and the largest error of one cell is {self.largest_words(math.inf)}"

    def largest_words(self, average: float) -> str:
        """Return the 95 % interval of the largest error; empty where it is not known.

        Nor is it told where it may be none, and may be more than the average answer.

        >>> largest = DistanceFacts("pairs", 15, 210.0, 5.0, 3.0, 5.0).largest_words
        >>> largest(100.0), largest(10.0)
        ('13 at most', '')
        """
        if self.largest is None or self.largest_std is None:
            return ""
        low, high = (self.largest + z * self.largest_std for z in (-Z_95, Z_95))
        if low > 0:
            return f"{rounded(low)} to {rounded(high)}"
        return f"{rounded(high)} at most" if high < average else ""

    def is_hidden(self, total: float) -> bool:
        """Whether it may be more than all of so many records, and so says nothing."""
        return (self.distance + Z_95 * self.std) / total > MOST_SHARE

    def share(self, total: float) -> str:
        """Return the 95 % interval of the distance as a share of so many records."""
        low, high = ((self.distance + z * self.std) / total for z in (-Z_95, Z_95))
        return f"{percent(low)} to {percent(high)}" if low > 0 else f"{percent(high)} at most"


@dataclass(frozen=True)
class AdaptiveFacts:
    """A run of adaptive measurement: what was chosen and measured, and the resulting rows."""

    candidates: Count  # tables that could be measured
    one_way: Count  # tables of one attribute, each of which was measured first
    one_way_std: FigureAboveZero  # standard deviation of the noise on their counts, in counts
    # attributes of the table that each round chose and measured, as "age x sex"
    rounds: tuple[str, ...]
    # for each round the standard deviation of the noise on its counts
    noise_std: tuple[FigureAboveZero, ...]
    relaxed_rows: Count  # as of RAP; and so are the others
    # the number of records that answers are scaled to: estimated from the noisy tables of one
    # attribute and weighed with the declared number, or as it was declared
    total: float
    # standard deviation of the noise of that estimate; None where it was declared
    total_std: FigureAboveZero | None
    # errors on public data at this guarantee; None where the plan has none
    simulated: SimulatedFacts | None
    # the number of records that the estimate was weighed with; None where it was not
    declared: Count | None
    rows_sha256: RowsDigest  # of the numbers in relaxed_rows.parquet
    # number of answers that the measured tables give an unbiased estimate of too
    unbiased: Annotated[int, Within(0, LARGEST_INTEGER)] = 0
    # root mean square of the standard errors of these; None where there are none
    unbiased_rmse: FigureAboveZero | None = None
    # how far the released tables are from the true ones, by item; none of an older dpquery
    distances: Annotated[tuple[DistanceFacts, ...], UNWRITTEN] = ()
    # whether the rows were fitted again, on another machine, and are not to the last digit those
    # that the distances are of
    refitted: Annotated[bool, UNWRITTEN] = False


READING_DERIVED = """\
Derived items are made from the noisy answers alone and take no budget. Their intervals hold with \
the noise of all answers together: adding up squares of `std_error` of answers would not, since \
answers share noise. A row that is lost in noise has no estimate, and `reason` says why."""


@dataclass(frozen=True)
class DerivedFacts:
    """A statistic derived from items, and its file."""

    name: ItemName  # the derived item's
    file: str  # of its rows
    rows: Count  # how many there are; of merged ones known when they are written
    kind: str  # share, ratio, mean, difference, rate, quantiles or merged
    definition: str  # how it is worked out, in words
    description: str  # what it shows, for its readers
    # the share of the item's rows that are merged with others; None of other kinds
    merged: Annotated[ShareOfRows | None, UNWRITTEN] = None
    # the share of merged rows whose standard error is more of the noisy estimate than was asked
    missed: Annotated[ShareOfRows | None, UNWRITTEN] = None
    # whether some of these were known to be so beforehand, however rows were added up
    no_more: Annotated[bool, UNWRITTEN] = False
    # whether the sizes that they are merged by are the release's own answers; left out if not
    own_sizes: Annotated[bool, UNWRITTEN] = False
    # rules of the column `published` of merged rows; None, and left out, where there is none
    published: Annotated[PublicationRules | None, UNWRITTEN] = None

    @property
    def map_file(self) -> str:
        """The file that says which values are merged."""
        return f"{self.name}.map.csv"

    @property
    def files(self) -> tuple[str, ...]:
        """Its files."""
        return (self.file,) if self.merged is None else (self.file, self.map_file)

    @property
    def words(self) -> str:
        """How it is worked out, how much of it is merged, and what is wrong with that."""
        missed = "" if self.own_sizes else f"{percent(self.missed or 0.0)} of its rows are "
        wrong = self.missed_words and f"; {missed}{self.missed_words}"
        return f"{self.merged_words}{wrong}"

    @property
    def merged_words(self) -> str:
        """How it is worked out, and how much of it is merged."""
        if self.merged is None:
            return self.definition
        part = f"{percent(self.merged)} of the rows of the item"
        return f"{self.definition}; {part} are in sums, as {self.map_file} says"

    @property
    def missed_words(self) -> str:
        """What is wrong with merged rows, and what helps: alike for several items."""
        if self.own_sizes:
            return (
                "its `sizes` are this release's own estimates, so that their noise decided what is "
                "merged, and intervals hold less often than stated; take those of another release"
            )
        if not self.missed:
            return ""
        none = "nothing is left to add to them, or " * self.no_more
        why = f"{none}they have fewer records than expected"
        return f"less precise than was asked, because {why}"


def missed_lines(items: Sequence[DerivedFacts]) -> list[str]:
    """Return what is wrong with merged rows: a line for all items with which the same is."""
    named: dict[str, list[str]] = {}
    for item in items:
        share = "" if item.own_sizes else f"{percent(item.missed or 0.0)} of the rows of "
        named.setdefault(item.missed_words, []).append(f"{share}{item.name}")
    return [f"{', '.join(names)}: {words}" for words, names in named.items() if words]


def derived_facts(spec: Spec) -> tuple[DerivedFacts, ...]:
    """Return the derived items with their files."""
    return tuple(
        DerivedFacts(
            item.name,
            f"{item.name}.parquet",
            item.size,
            item.statistic.kind,
            item.definition,
            item.description,
            published=item.statistic.publish if isinstance(item.statistic, MergedRows) else None,
        )
        for item in spec.derived
    )


def derived_lines(items: Sequence[DerivedFacts]) -> list[str]:
    """Return the lines of the statement on derived items; none where there are none."""
    if not items:
        return []
    return [*(f"- `{item.file}`: {item.words}." for item in items), "", READING_DERIVED]


def nearer_words(guess: float, unbiased: float) -> str:
    """Say how much nearer the best guess would be, where it is not among the columns."""
    return (
        f"over the answers that can have a best guess, it would have an error of about "
        f"{figure(guess)} and not {figure(unbiased)}, as the noisy values tell; `dpquery release` "
        "again with --also shrunk --replace adds it, free"
    )


def derived_note(items: Sequence[DerivedFacts]) -> str:
    """Return one line for the error report: which items are derived."""
    named = ", ".join(f"{item.name} ({item.kind})" for item in items)
    return f"derived from the answers, in files of their own: {named}"


KNOWN_WORDS = """\
**The {answers} of `{item}` are public and ARE NOT PROTECTED by anything in this release.** They \
are not computed from the records: they stand in the file `{file}` (SHA-256 {digest}) and are \
public because: {why}."""
KNOWN_EXACT = """\
They are published as they stand there, without noise and with the flag `known`."""
IMPOSSIBLE_WORDS = """\
By public knowledge no record has {facts}. Records that have it all the same were measured and are \
protected as any other."""
ZERO = """\
{answers} of this release that count only such records are 0, and have the flag `impossible`."""
RELIED_ON = "The other answers are estimated given this, and err less."
NOT_CORRECTED = """\
The other answers are estimated without this, and need not add up to these zeros."""
NOT_RELIED_ON = """\
**The noisy answers contradict this, and it was not relied on:** {test}. All answers are \
estimated without it, with the errors that they then have."""
AGREES = "The noisy answers do not contradict it: {test}."


@dataclass(frozen=True)
class PublicFactUse:
    """A source of public facts, and what became of it."""

    source: str  # `impossible`, or the item that is known
    words: str  # which records are impossible, or why the item's answers are public
    answers: int  # how many answers of the release it states
    # how many equalities the noisy answers were held against; 0 where others do not take it into
    # account
    tested: int
    statistic: float  # the sum of squares of what they are off, in variances of the noise
    p_value: float  # the chance that noise makes it so large where the facts are true
    relied_on: bool  # whether answers rest on it: not where that chance is below 1e-6
    file: str = ""  # that the answers of an item stand in; empty of what is impossible
    sha256: str = ""  # of its text, as UTF-8

    @property
    def test(self) -> str:
        """The test in words."""
        below = "below " if self.p_value <= LEAST_CHANCE else ""
        return (
            f"chi-square {self.statistic:.4g} with {count(self.tested, 'degree')} of freedom, "
            f"p = {below}{self.p_value:.2g}"
        )

    @property
    def note(self) -> str:
        """What became of it, in a line for the screen and the report."""
        bare = ", NOT PROTECTED" * bool(self.file)
        name = f"public facts of {self.source} ({count(self.answers, 'answer')}{bare})"
        if not self.relied_on:
            return (
                f"warning: the noisy answers contradict the {name}: {self.test}; they were not "
                "relied on, and answers are estimated without them"
            )
        if self.tested:
            return f"{name}: the noisy answers do not contradict them: {self.test}"
        return f"{name}: the other answers do not take them into account"


def facts_lines(facts: Sequence[PublicFactUse]) -> list[str]:
    """Return the paragraphs of the statement on public facts; none where there are none."""
    lines = []
    for fact in facts:
        answers = count(fact.answers, "answer")
        if fact.file:
            source = {"item": fact.source, "file": one_line(fact.file), "digest": fact.sha256}
            why = one_line(fact.words).rstrip(".")
            known = KNOWN_WORDS.format(answers=answers, why=why, **source)
        else:
            known = IMPOSSIBLE_WORDS.format(facts=one_line(fact.words))
        zero = KNOWN_EXACT if fact.file else ZERO.format(answers=answers)
        if not fact.relied_on:
            became = NOT_RELIED_ON.format(test=fact.test)
        elif fact.tested:
            became = f"{zero} {RELIED_ON} {AGREES.format(test=fact.test)}"
        else:
            became = f"{zero} {NOT_CORRECTED}"
        lines += ["", f"**Public facts.** {known} {became}"]
    return lines
