"""The table of fields: items, derived items and publication.

An entry here is as one in `fields`, which takes up all of these. `items` makes tables of them, and
`operators.compile` weighs these in the search.
"""

from dataclasses import replace
from typing import Literal

from dpquery.limits import MAX_PERSON_ROWS, MAX_SUMMED_VALUE
from dpquery.spec.parsing.forms import (
    ByName,
    Decimal,
    ListOf,
    PairOf,
    Real,
    TextForm,
    Unread,
    Whole,
    Word,
    WordOr,
    either,
    ref,
)
from dpquery.spec.parsing.mappings import Field, Fields, choice, defaulted, optional

NAME = r"[a-z0-9_][a-z0-9_-]{0,99}"  # becomes a file name
_RESERVED = ("errors", "measurements", "relaxed_rows")  # a release has files of these names
QUANTILE_WORDS = {"median": 2, "quartiles": 4, "quintiles": 5, "deciles": 10, "percentiles": 100}

_Distribution = Literal["uniform", "zipf", "geometric"]

SET_WORDS = {
    "identity": "every value",
    "total": "all values together",
    "prefix": "up to each value",
    "all-ranges": "from any value to any other",
    "identity+total": "every value, and all together",
}
RANGE_WORDS = {"all": "every range", "prefix": "up to each value"}

# fmt: off

_REL_ERROR = Real("a relative error", above=0, high=2, instead="; 0.3 is 30 %")
ITEM_NAME = TextForm("the name of the item", NAME,
    instead="; it becomes a file: use a-z, 0-9, _ and -",
    taken=_RESERVED, types=("string", "integer", "boolean"))
NAME_LIST = ListOf("names of attributes", ref("name"), least=0, unique=True,
    instead="; write it as in [age, sex]")
SPANS = ListOf("ranges [first, last]", ref("span"))
_OVER = replace(NAME_LIST, what="the attributes to combine")
_ENTRIES = Unread(ListOf("values", ref("entry")).schema)
LEVEL_NAME = TextForm("the name of a level", types=("string", "number"))
_WITHIN = ByName("groups of higher levels", either(ref("value"), ListOf("values", ref("value"))),
    least=1, key="level", empty="no level is named; write {level: [values]}")
_WIDTH = Whole("the width", low=1)
_WAYS = Whole("the number of attributes in a marginal", low=0)
_SUMMED = Whole("the value that a record adds", low=-MAX_SUMMED_VALUE, high=MAX_SUMMED_VALUE,
    instead="; write all values in a unit in which they are such, as cents or thousands")
SUMMED_LIST = ListOf("the values to add up", _SUMMED)
SUMMED_BY_NAME = ByName("the values to add up, a list or value: number", _SUMMED, key="value")


class ConditionFields(Fields):
    """What a record must meet."""

    is_ = choice(either(ref("value"), ref("merged_value"), ref("level_value")), "One value.",
        "North")
    in_ = choice(_ENTRIES, "Any of these values and ranges.", "[North, South]")
    between = choice(ref("span"),
        "First and last value, both included; edges where it is bins.", "[18, 64]")


class SetFields(ConditionFields):
    """Queries about one attribute; those of a condition are one query."""

    width = choice(_WIDTH, "Every window of so many values.", "5")
    ranges = choice(SPANS, "Ranges, a query each; they may overlap.", "[[0, 17], [18, 64]]")
    groups = choice(ByName("groups, labels with their values", _ENTRIES, least=1, key="label",
            empty="no group is given; write {groups: {label: [values]}}",
            example="groups: {label: [values]}"),
        "Label: values, a query each.", "{inland: [East, South], coast: [North, West]}")
    level = choice(LEVEL_NAME,
        "Every group of a level of the attribute's hierarchy; a level's name alone is the same.",
        "county")
    within = optional(_WITHIN,
        "Only those that lie in these groups of other levels.", "{state: [48, Oklahoma]}")


class RangeFields(Fields):
    """Windows of values."""

    width = Field(_WIDTH, "Every window of so many values.", "5")


class MarginalFields(Fields, what="marginals"):
    """Tables over subsets of attributes."""

    ways = choice(_WAYS, "All tables over exactly this many attributes.", "2")
    up_to = choice(_WAYS, "All tables over at most this many attributes.", "3")
    sets = choice(ListOf("lists of attributes", ref("names")),
        "Lists of attributes, a table each; [] is the total.", "[[age, sex], [region], []]")
    max_cells = choice(Whole("the most cells of a marginal", low=1),
        "All tables with at most this many cells.", "5000")
    over = optional(_OVER, "The attributes to combine; all unless given.", "[age, sex, region]",
    ).without("sets", "`sets` names its attributes itself; leave out `over`")
    predicates = optional(ByName("attributes with predicate sets", ref("set")),
        "What to ask of an attribute other than identity.", "{age: prefix}")


class GeometricFields(Fields, what="a distribution with a parameter"):
    """The chance falls by a factor from each attribute to the next."""

    geometric = Field(Decimal("the p of a geometric distribution", above=0, below=1),
        "The p of (1 - p)^rank; 1/4 where only the word is given.", "0.25")


_LISTED = ("of", "`of` is not a sample; leave out '{name}'")


class ThresholdFields(Fields, what="a threshold"):
    """Records that meet at least r targets, of listed attributes or of random sets."""

    r = Field(Whole("how many of the attributes must meet their target", low=1),
        "How many of the attributes must meet their target.", "2")
    of = choice(replace(_OVER, what="the attributes to count over", least=1),
        "The attributes to count over.", "[age, sex, region]")
    sample = choice(Whole("how many sets to draw", low=1),
        "So many random sets of attributes, a table each.", "16")
    targets = optional(WordOr(
            Word("`all`, or a target for each attribute in `of`", ("all",)),
            ByName("the targets", ref("condition"))),
        "A target for each attribute, a value or a group such as {in: [1, 2]}. all, as none "
        "given: every combination of values.", "{disabled: yes, income: {between: [0, 9]}}",
    ).without("sample", "a sample has all targets; leave out '{name}'")
    k = optional(Whole("the number of attributes to count over", low=1),
        "How many attributes each random set has.", "3").with_("sample").without(*_LISTED)
    seed = optional(Whole("the seed"),
        "Another seed draws other sets; it is public, and no noise has one.", "0",
    ).with_("sample").without(*_LISTED)
    over = optional(_OVER, "The attributes to draw from; all unless given.", "[age, sex, region]",
    ).without(*_LISTED)
    distribution = defaulted(WordOr(Word[_Distribution]("a distribution over attributes",
            ("uniform", "zipf", "geometric")), GeometricFields), "uniform",
        "How a set's chance goes with its attributes, the first named the likeliest: the product "
        "of 1 for each, of 1/rank, or of (1 - p)^rank.", "zipf").without(*_LISTED)
    max_cells = optional(Whole("the most cells of a table", low=1),
        "Sets whose table has more cells are not drawn.", "5000").without(*_LISTED)


class SumFields(Fields, what="a sum"):
    """A whole number of every record, added up."""

    of = Field(ref("name"),
        "The attribute to add up: of a range the numbers themselves. A text that is not declared, "
        "an empty one too, adds 0, or what `value` says of `other`.", "hours")
    by = defaulted(ByName("what to add up by, attributes with predicate sets", ref("set")), (),
        "A sum for every combination of what is asked of each attribute; one sum in all unless "
        "given.", "{sex: identity, region: identity+total}")
    value = optional(either(SUMMED_LIST, SUMMED_BY_NAME),
        "What every value adds, 0 if it adds nothing: numbers in order, or value: number. Bins "
        "are named by the edge where they begin. Not needed for a range.",
        "{none: 0, some: 1, many: 5}")


class PersonRowsFields(Fields, what="rows_per_person"):
    """How many persons have 1, 2, ... rows, from which max_rows is chosen next time."""

    up_to = Field(Whole("the most rows that are told apart", low=1, high=MAX_PERSON_ROWS),
        "A query for each number of rows up to this one, and one for more.", "20")


class SuppressFields(Fields, what="suppress"):
    """Which estimates are left out of the column `published`."""

    rel_error = optional(_REL_ERROR,
        "Those whose standard error is this share of them or more.", "0.3")
    below = optional(Whole("the least estimate that is shown"),
        "Those below this number.", "10")


class PublishFields(Fields, what="publish"):
    """What stands in a column `published` beside each estimate; by noisy values alone."""

    suppress = optional(SuppressFields, "Which estimates are left out there.",
        "{rel_error: 0.3, below: 10}")
    round_to = optional(Whole("what estimates are rounded to", low=1, high=10**9),
        "Those shown are rounded to the nearest multiple of this.", "5")


class KnownFields(Fields, what="known"):
    """Totals that are published anyway: they are NOT PROTECTED."""

    file = Field(TextForm("the name of a file of totals", types=("string",)),
        "A UTF-8 file beside the spec: a header with the item's attributes and `value`, and a line "
        "for every row of the item, by labels or codes.", "persons_by_region.csv")
    why = Field(TextForm("why they are public", types=("string",)),
        "Why everyone may know them, printed with each release. Never give counts of the records "
        "that are to be protected, unless these are published.", "census of 2020, table P1")


class AboutFields(Fields, what="about"):
    """What readers of the release are told: public words, printed as they stand."""

    title = optional(TextForm("a title"), "The title of the publication.", "Persons of Sampleland")
    description = optional(TextForm("a description"), "What it is about, in a paragraph.",
        "Counts of persons by age, sex and region.")
    contact = optional(TextForm("whom to ask"),
        "Who answers questions about it: an office, an address for mail.",
        "Statistics Sampleland, info@stats.example")
    licence = optional(TextForm("a licence"),
        "What others may do with it: the name of a licence, or its address.", "CC-BY-4.0")
    period = optional(TextForm("a period"), "The time that the records are from.", "2024")
    area = optional(TextForm("an area"), "Where they are from.", "Sampleland")
    next_update = optional(TextForm("the next update"), "When the next release is due.",
        "2026-09")
    notes = optional(TextForm("notes"), "What else a reader should know.",
        "Institutions are not covered.")


class PartFields(Fields, what="a part of a union", choice="an item"):
    """A table, or several."""

    where = defaulted(ByName("conditions on attributes", ref("condition"),
        example="where: {employed: yes}"), (),
        "What every record counted must meet as well.", "{employed: yes}")
    product = choice(ByName("the product, attributes with predicate sets", ref("set"),
        example="product: {age: identity, sex: total}"),
        "A table with a query for every combination of what it asks of each attribute.",
        "{age: prefix, sex: identity}")
    marginals = choice(MarginalFields, "Tables over subsets of attributes.", "{ways: 2}")
    ranges = choice(ByName(
            "the ranges, attributes with all, prefix, {width: n} or [[first, last], ...]",
            ref("ranges"), least=1, empty="no attribute is named; name at least one"),
        "Ranges in one or more dimensions: a list of [first, last], all, prefix or {width: n}.",
        "{age: [[0, 17], [18, 64]], income: all}")
    union = choice(ListOf("the parts of a union, items without names", ref("part")),
        "Several items without names, in one file.", "[{product: {}}, {product: {sex: identity}}]")
    any_of = choice(ByName("the alternatives, attributes with predicate sets", ref("set"), least=1,
            empty="no alternative is given; name at least one attribute"),
        "Records that meet at least one of the predicates.", "{sex: {is: Male}, age: {width: 5}}")
    threshold = choice(ThresholdFields,
        "Records that meet at least r of the targets.", "{r: 2, of: [employed, sex, disabled]}")
    sum_ = choice(SumFields, "A value of the records, added up; errors are in its unit.",
        "{of: hours, by: {sex: identity}}")
    rows_per_person = choice(PersonRowsFields,
        "How many persons have 1, 2, ... rows, those beyond max_rows too; for a unit of persons. "
        "`where` looks at one row of each person, any of those counted.", "{up_to: 20}")


class ItemFields(PartFields, what="a workload item", choice="an item"):
    """An entry of the workload: tables under a name."""

    name = Field(ITEM_NAME,
        "Unique; the name of its file in the release.", "age_by_sex")
    description = defaulted(TextForm("a description"), "",
        "What the table shows, for its readers.", "Every year of age by sex")
    weight = defaulted(Real("a weight", above=0, instead="; leave out what weighs nothing"), 1.0,
        "How much its squared error counts in the plan. Errors of a sum are divided by its largest "
        "value, so that it counts as much as a table of counts.", "2")
    share = optional(Decimal("a share of the budget", above=0, high=1),
        "The share of each release's budget that is reserved for it; items without one divide the "
        "rest. If no item has one, `plan` finds the best division.", "0.4")
    publish = optional(PublishFields, "Instead of the spec's `publish`, for this item.",
        "{round_to: 10}")
    known = optional(KnownFields,
        "Its answers are published anyway: they are taken as exact, are NOT PROTECTED, and other "
        "answers have smaller errors.",
        "{file: persons_by_region.csv, why: 'census of 2020, table P1'}")


class ShareFields(Fields, what="share"):
    """Each row of an item as a share of the rows that it is compared with."""

    of = Field(ref("name"), "The item.", "sex_by_age")
    within = defaulted(replace(NAME_LIST, what="the attributes within which shares add up"), (),
        "Shares add up to 1 among all records with the same values of these; of all records "
        "unless given.", "[age]")
    among = optional(Word("what shares are of", ("declared", "all")),
        "Whether shares are of the records with a declared value, or of all. Unless given of "
        "declared ones, where the item has rows for all of them and none for the total.", "all")


class RatioFields(Fields, what="ratio"):
    """Rows of one item over those of another."""

    of = Field(ref("name"), "The item above.", "employed_by_region")
    to = Field(ref("name"),
        "The item below: it asks the same of some of the attributes, and nothing of others.",
        "people_by_region")


class MeanFields(Fields, what="mean"):
    """What records add up to, over their number."""

    sum_ = Field(ref("name"), "An item that is a sum.", "hours_by_sex")
    count = optional(ref("name"),
        "The item that counts the records; those of the sum's rows with a declared value of what "
        "is added up unless given.", "workers_by_sex")


class DifferenceFields(Fields, what="difference"):
    """Rows of an item for one value of an attribute, or in one release, less those of another."""

    of = Field(ref("name"), "The item.", "sex_by_age")
    between = choice(ByName("an attribute with the two values to compare",
            PairOf("two values", ref("condition"), ref("condition")), least=1),
        "The attribute and its two values: the first less the second.", "{sex: [Male, Female]}")
    release = choice(TextForm("the folder of another release", types=("string",)),
        "The folder of another release of the same domain, in questions to `dpquery answer`: the "
        "release that is asked less that one.", "../release_2019")


class RateFields(Fields, what="rate"):
    """Rows of an item per so many of a public population."""

    of = Field(ref("name"), "The item.", "births_by_region")
    population = Field(TextForm("the name of a file of populations", types=("string",)),
        "A CSV file beside the spec: a column for each attribute of the item's rows, and "
        "`population`. Its numbers are public and taken as exact.", "population.csv")
    per = defaulted(Real("what rates are per", above=0), 1000.0,
        "Rates are per so many.", "100000")


class QuantileFields(Fields, what="quantiles"):
    """Values below which a share of the records lies, for every group."""

    of = Field(ref("name"),
        "An item that asks for identity or prefix of the attribute; its others make the groups.",
        "income_by_region")
    over = Field(ref("name"), "The attribute: numbers, bins or dates.", "income")
    at = defaulted(WordOr(
            Word("probabilities such as [0.25, 0.5, 0.75], or a word", tuple(QUANTILE_WORDS)),
            ListOf("probabilities", Real("a probability", above=0, below=1,
                instead="; 0.5 is that of the median"))), (0.5,),
        "Shares [0.25, 0.5], or median, quartiles, quintiles, deciles, percentiles; median unless "
        "given.", "quartiles")


class MergedRowsFields(Fields, what="merged"):
    """Rows of an item added up over neighbours or siblings until each is precise enough."""

    of = Field(ref("name"), "An item with a row for every value of the attribute.", "people_by_age")
    over = Field(ref("name"),
        "The attribute: numbers, bins or dates, of which neighbours are added up, or one with a "
        "hierarchy, of which small siblings are.", "age")
    rel_error = Field(_REL_ERROR,
        "The most that a standard error may be of the size to expect.", "0.2")
    sizes = optional(TextForm("the name of a file of sizes", types=("string",)),
        "A CSV file beside the spec: the item's attributes, and `size`, the count or weight to "
        "expect of a row, or `estimate` of an earlier release. Equal shares of all unless given.",
        "census_2020.csv")


class DerivedFields(Fields, what="a derived item", choice="a derived item"):
    """A statistic made of the noisy answers of items: it costs no budget, and may come later."""

    name = Field(ITEM_NAME,
        "Unique, among items too; the name of its file in the release.", "share_of_sexes")
    description = defaulted(TextForm("a description"), "",
        "What it shows, for its readers.", "Women and men in every age")
    share = choice(ShareFields, "Each row as a share of those it is compared with.",
        "{of: sex_by_age, within: [age]}")
    ratio = choice(RatioFields, "Rows of one item over those of another.",
        "{of: employed_by_region, to: people_by_region}")
    mean = choice(MeanFields, "What records add up to, over their number.", "{sum: hours_by_sex}")
    difference = choice(DifferenceFields, "Rows for one value less those for another.",
        "{of: sex_by_age, between: {sex: [Male, Female]}}")
    rate = choice(RateFields, "Rows per so many of a public population.",
        "{of: births_by_region, population: population.csv}")
    quantiles = choice(QuantileFields, "Median, quartiles, percentiles of an ordered attribute.",
        "{of: income_by_region, over: income, at: quartiles}")
    merged = choice(MergedRowsFields,
        "Rows added up over neighbours until each is precise enough to print.",
        "{of: people_by_age, over: age, rel_error: 0.2}")
# fmt: on
