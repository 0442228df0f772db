"""Days as texts, and the periods that they lie in: days, ISO weeks, months, quarters, years.

Dates are read by rules of our own, not by `strptime`: it follows the machine's language, and takes
texts that have one date for one library and none for another. All of them are of the Gregorian
calendar, years 1 to 9999.
"""

import re
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import Literal, NamedTuple, assert_never, get_args

from dpquery.exceptions import SpecError
from dpquery.spec.problems import listed

PeriodKind = Literal["day", "week", "month", "quarter", "year"]
PERIOD_KINDS: tuple[PeriodKind, ...] = get_args(PeriodKind)

_LONGEST = 64  # characters of a text that may be a date
_PIVOT = 69  # two digits from here on are of the twentieth century, as POSIX has it
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH_OF = {name[:3]: month for month, name in enumerate(_MONTHS, start=1)}
_MONTH_OF |= {name: month for month, name in enumerate(_MONTHS, start=1)}

_TIME = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
_ISO_TIME = rf"^([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})[T ]{_TIME}$"
_ISO = re.compile(rf"(?P<Y>[0-9]{{4}})-(?P<m>[0-9]{{2}})-(?P<d>[0-9]{{2}})(?:[T ]{_TIME})?")
# What a directive matches: its digits, or a pattern where it is no number.
_DIGITS = {"Y": 4, "y": 2, "m": 2, "d": 2, "H": 2, "I": 2, "M": 2, "S": 2}
_WORDS = {"b": "[A-Za-z]{3}", "B": "[A-Za-z]{3,9}", "p": "[AaPp][Mm]"}
_LENGTHS = _DIGITS | {"b": 3, "B": 9, "p": 2}  # characters, at most
_LIMITS = {"H": (0, 23), "I": (1, 12), "M": (0, 59), "S": (0, 60)}
_TIMES = {"H": "[01][0-9]|2[0-3]", "I": "0[1-9]|1[0-2]", "M": "[0-5][0-9]", "S": "[0-5][0-9]|60"}
_MIDNIGHT = {"H": "00", "I": "12", "M": "00", "S": "00", "p": "AM"}
_OF_A_DATE = {"year": "Yy", "month": "mbB", "day": "d"}
_NAMED_DATE = re.compile(
    r"(?P<year>[0-9]{4})(?:-(?:(?P<month>[0-9]{2})(?:-(?P<day>[0-9]{2}))?|Q(?P<quarter>[1-4])"
    r"|W(?P<week>[0-9]{2})))?"
)


def period_number(day: date, by: PeriodKind) -> int:
    """Return the number of the period that a day lies in; the next period has the next number."""
    match by:
        case "day":
            return day.toordinal()
        case "week":
            return (day.toordinal() - 1) // 7  # day 1 of the calendar was a Monday
        case "month":
            return day.year * 12 + day.month - 1
        case "quarter":
            return day.year * 4 + (day.month - 1) // 3
        case "year":
            return day.year
    assert_never(by)


def period_start(number: int, by: PeriodKind) -> date:
    """Return the first day of a period."""
    match by:
        case "day":
            return date.fromordinal(number)
        case "week":
            return date.fromordinal(number * 7 + 1)
        case "month":
            return date(number // 12, number % 12 + 1, 1)
        case "quarter":
            return date(number // 4, number % 4 * 3 + 1, 1)
        case "year":
            return date(number, 1, 1)
    assert_never(by)


def period_end(number: int, by: PeriodKind) -> date:
    """Return the last day of a period; that of the calendar where the period outlasts it."""
    try:
        return period_start(number + 1, by) - timedelta(days=1)
    except (ValueError, OverflowError):
        return date.max


def period_label(number: int, by: PeriodKind) -> str:
    """Return what a period is called.

    >>> [period_label(period_number(date(2014, 12, 30), by), by) for by in PERIOD_KINDS]
    ['2014-12-30', '2015-W01', '2014-12', '2014-Q4', '2014']
    """
    day = period_start(number, by)
    match by:
        case "day":
            return day.isoformat()
        case "week":
            year, week, _ = day.isocalendar()
            return f"{year:04}-W{week:02}"
        case "month":
            return day.isoformat()[:7]
        case "quarter":
            return f"{day.year:04}-Q{(day.month + 2) // 3}"
        case "year":
            return f"{day.year:04}"
    assert_never(by)


class Span(NamedTuple):
    """The days first..last, and the kind of period that they are."""

    first: date
    last: date
    by: PeriodKind


def named_period(text: str) -> Span | None:
    """Return the period that a spec or a question names; None if there is no such period.

    >>> named_period("2013-W05").first.isoformat(), named_period("2013-Q1").last.isoformat()
    ('2013-01-28', '2013-03-31')
    """
    parts = _NAMED_DATE.fullmatch(text)
    if parts is None:
        return None
    given = {name: int(digits) for name, digits in parts.groupdict().items() if digits}
    by: PeriodKind = next(kind for kind in PERIOD_KINDS if kind in given)
    year, month, day = given["year"], given.get("month", 1), given.get("day", 1)
    try:
        if by == "week":
            start = date.fromisocalendar(year, given["week"], 1)
        else:
            start = date(year, given["quarter"] * 3 - 2 if by == "quarter" else month, day)
    except ValueError:
        return None
    number = period_number(start, by)
    return Span(start, period_end(number, by), by)


class _Piece(NamedTuple):
    """A directive of a format, without its %, or a text between directives."""

    directive: bool
    text: str


@dataclass(frozen=True)
class DateFormat:
    """A format of dates in directives of `strftime`; SpecError for one that cannot be read by."""

    text: str = ""  # of the format; empty for ISO 8601, 2013-01-31, after which a time may follow

    def __post_init__(self) -> None:
        """Refuse directives that are unknown or say the same twice."""
        for name in self._directives:
            if name not in _DIGITS | _WORDS:
                known = ", ".join(f"%{name}" for name in _DIGITS | _WORDS)
                raise SpecError(f"the format has %{name}, which is none of {known} and %%")
        for names in (*_OF_A_DATE.values(), *_DIGITS, *_WORDS):
            if sum(self._directives.count(name) for name in names) > 1:
                raise SpecError(f"the format has two of {listed([f'%{name}' for name in names])}")

    def has(self, part: Literal["year", "month", "day"]) -> bool:
        """Return whether texts of the format say a part of the date."""
        return not self.text or any(name in _OF_A_DATE[part] for name in self._directives)

    def read(self, text: str) -> date | None:
        """Return the day that a text says, None if it is no text of the format.

        A month or a day that the format lacks is the first. A time is checked and cut off.
        """
        if len(text) > _LONGEST or (parts := self._pattern.fullmatch(text)) is None:
            return None
        given = parts.groupdict()
        for name, (low, high) in _LIMITS.items():
            if name in given and not low <= int(given[name]) <= high:
                return None
        year = int(given["Y"] if "Y" in given else given["y"])
        if "Y" not in given:
            year += 1900 if year >= _PIVOT else 2000
        name_of_month = given.get("b") or given.get("B")
        month = _MONTH_OF.get(name_of_month.lower(), 0) if name_of_month else given.get("m", 1)
        try:
            return date(year, int(month), int(given.get("d", 1)))
        except ValueError:
            return None

    def write(self, day: date) -> str:
        """Return a text of the format that says a day, at midnight."""
        if not self.text:
            return day.isoformat()
        name_of_month = _MONTHS[day.month - 1].title()
        written = {"Y": f"{day.year:04}", "y": f"{day.year % 100:02}", "m": f"{day.month:02}"}
        written |= {"d": f"{day.day:02}", "b": name_of_month[:3], "B": name_of_month} | _MIDNIGHT
        return "".join(written[text] if directive else text for directive, text in self._pieces)

    @property
    def example(self) -> str:
        """A text of the format: what it says of the last day of January 2013."""
        return self.write(date(2013, 1, 31))

    @cached_property
    def midnight(self) -> tuple[str, str] | None:
        """A pattern of texts with a time, and what sets their time to midnight.

        Both are for RE2, and None where the format has no time or is not in ASCII. The pattern may
        miss texts of the format, and matches no other text.
        """
        if not self.text:
            return _ISO_TIME, r"\1"
        longest = sum(_LENGTHS[text] if named else len(text) for named, text in self._pieces)
        timed = not _MIDNIGHT.keys().isdisjoint(self._directives)
        if not timed or longest > _LONGEST or not self.text.isascii():
            return None
        pattern = replacement = ""
        dates = 0
        for place, (directive, text) in enumerate(self._pieces):
            if not directive:
                pattern += re.escape(text)
                replacement += text.replace("\\", r"\\")
            elif text in _MIDNIGHT:
                pattern += f"(?:{self._time(place)})"
                replacement += _MIDNIGHT[text]
            else:
                dates += 1
                pattern += f"({self._matched(place)})"
                replacement += f"\\{dates}"
        return f"^{pattern}$", replacement

    @cached_property
    def _pieces(self) -> list[_Piece]:
        parts = re.findall(r"%.?|[^%]+", self.text, re.DOTALL)
        return [
            _Piece(True, part[1:])
            if part[0] == "%" and part != "%%"
            else _Piece(False, part.replace("%%", "%"))
            for part in parts
        ]

    @cached_property
    def _directives(self) -> list[str]:
        return [piece.text for piece in self._pieces if piece.directive]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        if not self.text:
            return _ISO
        pattern = ""
        for place, (directive, text) in enumerate(self._pieces):
            pattern += f"(?P<{text}>{self._matched(place)})" if directive else re.escape(text)
        return re.compile(pattern)

    def _matched(self, place: int) -> str:
        """Return the pattern of a directive: a word, or digits of any value."""
        text = self._pieces[place].text
        if text in _WORDS:
            return _WORDS[text]
        least = 1 if self._single_digit(place) else _DIGITS[text]
        return f"[0-9]{{{least},{_DIGITS[text]}}}"

    def _time(self, place: int) -> str:
        """Return the pattern of a directive of a time, digits within their limits."""
        text = self._pieces[place].text
        if text not in _TIMES:
            return _WORDS[text]
        return (
            f"{_TIMES[text]}|[{_LIMITS[text][0]}-9]" if self._single_digit(place) else _TIMES[text]
        )

    def _single_digit(self, place: int) -> bool:
        """Return whether a number may have one digit of two: only where no other can follow it."""
        text = self._pieces[place].text
        before, after = self._pieces[:place][-1:], self._pieces[place + 1 :][:1]
        beside = [piece.text in _DIGITS for piece in before + after if piece.directive]
        beside += [piece.text[-1].isdigit() for piece in before if not piece.directive]
        beside += [piece.text[0].isdigit() for piece in after if not piece.directive]
        return _DIGITS[text] == 2 and text != "y" and not any(beside)
