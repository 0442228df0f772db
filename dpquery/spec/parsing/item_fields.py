"""The table of fields: items, derived items and publication.

An entry here is as one in `fields`, which takes up all of these.
"""

from dataclasses import replace

from dpquery.spec.parsing.forms import (
    ByName,
    ListOf,
    PairOf,
    Real,
    Schema,
    TextForm,
    Unread,
    Whole,
    Word,
    ref,
)
from dpquery.spec.parsing.mappings import Field, Fields, choice, defaulted, optional

NAME = r"[a-z0-9_][a-z0-9_-]{0,99}"  # becomes a file name
_RESERVED = ("errors", "measurements", "relaxed_rows")  # a release has files of these names
QUANTILE_WORDS = {"median": 2, "quartiles": 4, "quintiles": 5, "deciles": 10, "percentiles": 100}

# fmt: off

_REL_ERROR = Real("a relative error", above=0, high=2,
    refusal="rel_error is {given}; expected a share above 0 and up to 2, such as 0.3 for 30 %")
ITEM_NAME = TextForm("the name of the item", NAME,
    "{given} cannot name an item, which becomes a file; use a-z, 0-9, _ and -",
    taken=_RESERVED, types=("string", "integer", "boolean"))
NAME_LIST = ListOf("names of attributes", ref("name"), least=0, unique=True,
    instead="; write it as in [age, sex]")


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


def _probabilities() -> Schema:
    number = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    listed = {"type": "array", "minItems": 1, "items": number}
    return {"anyOf": [{"enum": list(QUANTILE_WORDS)}, listed]}


class QuantileFields(Fields, what="quantiles"):
    """Values below which a share of the records lies, for every group."""

    of = Field(ref("name"),
        "An item that asks for identity or prefix of the attribute; its other attributes make the "
        "groups.", "income_by_region")
    over = Field(ref("name"), "The attribute: numbers, bins or dates.", "income")
    at = optional(Unread(_probabilities),
        "Shares such as [0.25, 0.5], or median, quartiles, quintiles, deciles, percentiles; the "
        "median unless given.", "quartiles")


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
# fmt: off


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
    round_to = optional(Whole("what estimates are rounded to", low=1, high=10**9,
            refusal="round_to is {value}; expected 1 to 1,000,000,000"),
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
