"""The part of the table of fields on what is printed and what readers are told.

An entry here is as one in `fields`, which takes up all of these.
"""

from dpquery.spec.parsing.forms import Real, TextForm, Whole
from dpquery.spec.parsing.mappings import Field, Fields, optional

# fmt: off


class SuppressFields(Fields, what="suppress"):
    """Which estimates are left out of the column `published`."""

    rel_error = optional(Real("a relative error", above=0,
            refusal="rel_error is {given}; expected a number above 0, such as 0.3 for 30 %"),
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
