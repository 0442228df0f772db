"""The part of the table of fields on how the texts of a column write dates and numbers.

An entry here is as one in `fields`, which takes up all of these.
"""

from dpquery.spec.calendar import PERIOD_KINDS, PeriodKind
from dpquery.spec.numbers import THOUSANDS
from dpquery.spec.parsing.forms import Period, TextForm, Word
from dpquery.spec.parsing.mappings import Field, Fields, defaulted, optional

# fmt: off


class DateFields(Fields, what="date"):
    """Dates, counted by day, week, month, quarter or year."""

    from_ = Field(Period("the first day"),
        "The first day, or the first week, month, quarter or year; earlier dates are not counted.",
        "2013-01-01")
    to = Field(Period("the last day"), "The last day, or the last week, month, quarter or year.",
        "2013-12")
    by = defaulted(Word[PeriodKind]("a period", PERIOD_KINDS), "day",
        "The periods that are told apart. Weeks are of ISO 8601, Monday first; a period that from "
        "or to cuts holds the days between them.", "month")
    format = optional(TextForm("a format of dates"),
        "How dates are written in the file, in %Y %y %m %b %B %d %H %I %M %S %p; unless given "
        "2013-01-31, perhaps with a time behind it. Zones of time do not count.", '"%d.%m.%Y"')


class NumberFields(Fields, what="number"):
    """How texts write numbers: separators of thousands, the decimal mark, a sign of percent."""

    thousands = optional(Word("what stands between thousands", tuple(THOUSANDS)),
        "What stands between groups of three digits; `space` is one of any width.", "'.'")
    decimal = optional(Word("a decimal mark", (".", ",")),
        "What stands before decimals; what `file` says unless given.", "','")
    sign = optional(TextForm("a sign"),
        "What may stand before or behind the number; 12 % is the number 12.", "'%'")
