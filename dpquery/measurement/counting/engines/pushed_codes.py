"""Codes of values as expressions that an engine works out.

Codes of values as expressions of Ibis: a warehouse codes its own rows, by our rules.

The rules stand in `column_codes` and nowhere else. What is written here follows from them, type by
type, and asks them: which typed values have a declared text is found by giving the coder the text
of each that may, and where a bin begins, by comparing exact numbers. What cannot be written so that
every value of the type has the code that the coder gives to its text is refused with the reason.

*   **Whole numbers, doubles and booleans** are compared as what they are. Their texts are those of
    `arrow_files`: a double has the shortest digits that read back as it. These have the order of
    the doubles, so that a double is in the bin that its text is in; and a whole double below 2^53
    is the whole number of its text.
*   **Texts and exact decimals** are texts. Blanks are stripped, those of Unicode too. A number is
    taken apart by a regular expression into sign, power and digits, as `spec.numbers` does, and
    these are compared: no cast decides what a number is, since casts read `3.7` as 4, `0x10` as 16
    and `1d` as 1.0. Yes and no are regular expressions of all letters that casefold to a letter.
*   **Dates and times** are years, months and days, from which the number of the period follows.

No code is null: an engine may leave out nulls where it groups.

What a text says, as expressions of Ibis: its number taken apart, and its letters casefolded.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, assert_never

import numpy as np

from dpquery.arrays import Ints
from dpquery.limits import MAX_PUSHED_CASES
from dpquery.measurement.counting.column_codes import code_of, known_codes
from dpquery.spec.calendar import PeriodKind, period_number
from dpquery.spec.columns import Bins, Boolean, Categorical, Column, ColumnKind, Dates, Integers
from dpquery.spec.numbers import LONGEST, ExactNumber, decimal_text, magnitude, of_float

if TYPE_CHECKING:
    from ibis import Table, Value


LONG_EXPONENT = 15  # digits of an exponent that is still a number here; a longer one is far beyond
_LONGEST_PATTERN = 10_000  # characters


class UnpushableError(ValueError):
    """A column cannot be coded where it lies; says why, in words that follow the column's name."""


@dataclass(frozen=True)
class NumberParts:
    """A text taken apart as `spec.numbers.number` does: 0.digits times a power of ten."""

    ibis: ModuleType
    is_number: "Value"
    negative: "Value"
    power: "Value"
    digits: "Value"

    @classmethod
    def of(cls, ibis: ModuleType, name: str, rows: "Table") -> "NumberParts":
        """Return the parts that stand in a table under a text's name, where they do."""
        if f"{name}_digits" not in rows.columns:
            null = ibis.null
            return cls(ibis, null("boolean"), null("boolean"), null("int64"), null("string"))
        parts = (rows[f"{name}_{part}"] for part in ("is_number", "negative", "power", "digits"))
        return cls(ibis, *parts)

    def key(self) -> "Value":
        """Return the text that `key_text` has for the number; null where there is none."""
        sign = self.ibis.cases((self.negative, "-"), else_="")
        text = sign + self.power.cast("string") + ":" + self.digits
        return self.ibis.cases(
            (~self.is_number, self.ibis.null("string")), (self.digits == "", "0"), else_=text
        )

    def whole(self) -> "Value":
        """Return a whole number of at most 18 digits; null for all others."""
        length = self.digits.length().cast("int64")
        fits = self.is_number & (length <= self.power) & (self.power <= 18) & (self.digits != "")
        zeros = (self.power - length).cast("int32")
        padded = self.ibis.cases(
            (fits, self.digits + self.ibis.literal("0" * 18).substr(0, zeros))
        ).cast("int64")
        return self.ibis.cases(
            (self.is_number & (self.digits == ""), 0),
            (fits & self.negative, -padded),
            (fits, padded),
        )

    def reaches(self, edge: ExactNumber) -> "Value":
        """Return whether the number is at least an edge."""
        sign, power, digits = magnitude(edge)
        zero = self.digits == ""
        if sign == 0:
            return ~self.negative | zero
        if sign > 0:
            larger = (self.power > power) | ((self.power == power) & (self.digits >= digits))
            return ~self.negative & ~zero & larger
        smaller = (self.power < power) | ((self.power == power) & (self.digits <= digits))
        return ~self.negative | zero | smaller


def key_text(value: ExactNumber) -> str:
    """Return a text for a number, another for each other number."""
    if value[0] == 0:
        return "0"
    _, power, digits = magnitude(value)
    if len(str(abs(power))) > LONG_EXPONENT:
        raise UnpushableError("declares a number with an exponent that is too long")
    return f"{'-' if value[0] < 0 else ''}{power}:{digits}"


@cache
def _letters_of_folding() -> dict[str, str]:
    """Return, of each text that is one letter casefolded, all such letters."""
    letters: dict[str, str] = {}
    for code in range(0x110000):
        letter = chr(code)
        folded = letter.casefold()
        if folded != letter:
            letters[folded] = letters.get(folded, "") + letter
    return letters


def folding_pattern(text: str) -> str:
    """Return a regular expression of all texts that casefold to a text."""
    letters = _letters_of_folding()

    @cache
    def rest(k: int) -> str:
        if k == len(text):
            return ""
        ways = []
        for size in range(1, 4):
            part = text[k : k + size]
            if len(part) < size:
                break
            one = letters.get(part, "") + (part if size == 1 and part.casefold() == part else "")
            if one:
                letters_of_one = "".join(dict.fromkeys(one))
                ways.append(f"[{_escaped(letters_of_one)}]" + rest(k + size))
        if sum(map(len, ways)) > _LONGEST_PATTERN:
            raise UnpushableError("declares a yes or no of too many spellings")
        return ways[0] if len(ways) == 1 else f"({'|'.join(ways)})"

    return rest(0)


def _escaped(letters: str) -> str:
    """Return letters as they stand within brackets of a regular expression."""
    return "".join(f"\\{letter}" if letter in "\\]^-[" else letter for letter in letters)


_UNICODE_BLANKS = "".join(chr(c) for c in range(0x110000) if chr(c).isspace())
_EXACT_DOUBLE = 2**53  # whole doubles up to it are the whole numbers of their texts
_MONTH_STARTS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_SHORT_MONTHS = (4, 6, 9, 11)
_ISO_DATE = (
    "^([0-9]{4})-([0-9]{2})-([0-9]{2})"
    "([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,9})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?$"
)


@dataclass(frozen=True)
class CodeWriter:
    """Writes codes for one backend.

    Attributes:
        ibis: the library.
        plain: takes a collation off a text, so that equal means equal letters.
        digest: the MD5 of a text, in hexadecimal digits.
        decimal: the mark of decimals in texts that the spec declares.
    """

    ibis: ModuleType
    plain: Callable[["Value"], "Value"]
    digest: Callable[["Value"], "Value"]
    decimal: str

    def texts(self, name: str, value: "Value") -> "dict[str, Value]":
        """Return a value under a name: texts and exact decimals without blanks around them."""
        kind = value.type()
        if kind.is_string() or kind.is_decimal() or kind.is_uint64():
            text = self.plain(value if kind.is_string() else value.cast("string"))
            if kind.is_decimal() and self.decimal != ".":
                text = text.replace(".", self.decimal)
            return {name: self._stripped(text, _UNICODE_BLANKS)}
        return {name: value}

    def fields(self, name: str, column: Column, rows: "Table") -> "dict[str, Value]":
        """Return what `numbers` needs: the fields of a date, or of the number that a text writes.

        Raises:
            UnpushableError: there are dates to read, and none in values of this type; or numbers
                are written in another way than by digits and a mark.
        """
        if column.number is not None:
            raise UnpushableError(
                "declares how its numbers are written (`number`), which is not read in place; make "
                "it a column of numbers there"
            )
        if isinstance(column.kind, Dates):
            return self._date_fields(name, column.kind, rows)
        if not (_takes_numbers(column.kind, self.decimal) and rows[name].type().is_string()):
            return {}
        pattern = self._number_pattern
        names = ("sign", "before", "after", "exponent")
        return {
            f"{name}_{field}": rows[name].re_extract(pattern, k).fill_null("")
            for k, field in enumerate(names, start=1)
        }

    def numbers(self, name: str, column: Column, rows: "Table") -> "dict[str, Value]":
        """Return the number of a day; of a text that of 0.digits times a power of ten."""
        if isinstance(column.kind, Dates):
            return {f"{name}_ordinal": self._ordinal(name, rows)}
        if not _takes_numbers(column.kind, self.decimal) or f"{name}_sign" not in rows.columns:
            return {}
        text, sign, before = rows[name], rows[f"{name}_sign"], rows[f"{name}_before"]
        digits = before + rows[f"{name}_after"].re_replace(f"^{self._mark}", "")
        exponent = rows[f"{name}_exponent"]
        significant = digits.re_replace("^0+", "")
        size = exponent.re_replace("^[eE][+-]?0*", "")
        short = self.ibis.cases((size.length() <= LONG_EXPONENT, size)).nullif("").cast("int64")
        scale = self.ibis.cases(
            (size.length() > LONG_EXPONENT, 10 ** (LONG_EXPONENT + 1)), else_=short.fill_null(0)
        )
        signed = self.ibis.cases((exponent.re_search("^[eE]-"), -scale), else_=scale)
        power = before.length() - (digits.length() - significant.length()) + signed
        written = text.re_search(self._number_pattern) & (digits != "")
        return {
            f"{name}_is_number": (text.length() <= LONGEST) & written,
            f"{name}_negative": sign == "-",
            f"{name}_power": power.cast("int64"),
            f"{name}_digits": significant.re_replace("0+$", ""),
        }

    @property
    def _mark(self) -> str:
        return "[.]" if self.decimal == "." else self.decimal

    @property
    def _number_pattern(self) -> str:
        return f"^([+-]?)([0-9]*)({self._mark}[0-9]*)?([eE][+-]?[0-9]+)?$"

    def code(self, name: str, column: Column, rows: "Table") -> "Value":
        """Return the code of a column's values; -1 where the column drops them, and never null.

        Args:
            name: of the values in `rows`, which has what `texts`, `fields` and `numbers` return.
            column: declares the codes.
            rows: the table.

        Raises:
            UnpushableError: no expression has the code of every value of this type.
        """
        value = rows[name]
        kind = value.type()
        outside = -1 if column.drops else column.length
        if isinstance(column.kind, Dates):
            codes = self._period(name, column.kind, rows)
        elif kind.is_boolean():
            codes = self._of_boolean(column, value)
        elif kind.is_integer():
            codes = self._of_number(column, value, whole=True)
        elif kind.is_float64():
            codes = self._of_number(column, value, whole=False)
        elif kind.is_string():
            codes = self._of_text(name, column, rows)
        else:
            raise UnpushableError(
                f"has the type {kind}, whose values are not coded in place as what it declares; "
                "write it as texts, whole numbers, doubles, decimals or booleans"
            )
        blank = code_of(column, self.decimal)(b"")
        return self.ibis.cases((value.isnull(), blank), else_=codes).fill_null(outside)

    def class_of(self, code: "Value", classes: Ints) -> "Value":
        """Return the class of a code, (codes,) of classes; UnpushableError for too many steps."""
        steps = np.flatnonzero(np.diff(classes) != 1) + 1
        flat = np.flatnonzero(np.diff(classes) != 0) + 1
        if len(flat) < len(steps):
            starts, rises = flat, False
        else:
            starts, rises = steps, True
        begins = [0, *starts.tolist()]
        _check_cases(len(begins))
        leaves = [
            code + (int(classes[k]) - k) if rises else self.ibis.literal(int(classes[k]), "int64")
            for k in begins
        ]
        return self._step(lambda k: code >= begins[k + 1], leaves)

    def person(self, name: str, rows: "Table") -> "Value":
        """Return a text that is the same for all spellings of an id; null where there is none."""
        kind = rows[name].type()
        if not (kind.is_string() or kind.is_integer()):
            raise UnpushableError(
                f"has the type {kind}; ids in place are texts, whole numbers or decimals"
            )
        if kind.is_integer():
            return rows[name].cast("string")
        parts = NumberParts.of(self.ibis, name, rows)
        # No text without blanks around it begins with one.
        named = self.ibis.cases((parts.is_number, " " + parts.key()), else_=rows[name])
        return named.nullif("")

    def _step(self, reaches: Callable[[int], "Value"], leaves: Sequence["Value"]) -> "Value":
        """Return the leaf behind the last of ordered thresholds that a value reaches."""

        def between(low: int, high: int) -> "Value":
            if low == high:
                return leaves[low]
            middle = (low + high) // 2
            return self.ibis.cases(
                (reaches(middle), between(middle + 1, high)), else_=between(low, middle)
            )

        return between(0, len(leaves) - 1)

    def _bins(self, reaches: Sequence["Value"]) -> "Value":
        """Return the number of the bin, given whether its edges are reached; else -1."""
        _check_cases(len(reaches))
        codes = [-1, *range(len(reaches) - 1), -1]
        literals = [self.ibis.literal(code, "int64") for code in codes]
        return self._step(lambda k: reaches[k], literals).nullif(-1)

    def _listed(self, codes: Mapping[int, "Value"]) -> "Value":
        """Return the first code whose condition holds; null where none does."""
        _check_cases(len(codes))
        if not codes:
            return self.ibis.null("int64")
        return self.ibis.cases(*((condition, code) for code, condition in codes.items()))

    # ------------------------------------------------------------------------------ typed values

    def _of_boolean(self, column: Column, value: "Value") -> "Value":
        code = code_of(column, self.decimal)
        return self.ibis.cases((value, code(b"true")), else_=code(b"false"))

    def _of_number(self, column: Column, value: "Value", *, whole: bool) -> "Value":
        """Return the code of a whole number, or of a double."""
        codes: Value
        match column.kind:
            case Categorical() | Boolean():
                codes = self._of_candidates(column, value, whole=whole)
            case Integers(low=low, high=high):
                inside = value.between(low, high)
                if not whole:
                    if max(-low, high) > _EXACT_DOUBLE:
                        raise UnpushableError("has numbers beyond 2^53 in a column of doubles")
                    inside &= (value == value.floor()) & ~value.isnan()
                safe = self.ibis.cases((inside, value))
                codes = safe.cast("int64") - low
            case Bins(edges=edges):
                codes = self._bins([self._reaches(value, edge, whole=whole) for edge in edges])
            case Dates():
                raise TypeError("dates are coded by their fields")
            case _:
                assert_never(column.kind)
        if whole:
            return codes
        # Engines differ in where nan stands among the numbers.
        code = code_of(column, self.decimal)
        return self.ibis.cases(
            (value.isnan(), code(b"nan")),
            (value.isinf() & (value > 0), code(b"inf")),
            (value.isinf(), code(b"-inf")),
            else_=codes,
        )

    def _reaches(self, value: "Value", edge: float, *, whole: bool) -> "Value":
        """Return whether a whole number of 64 bits, or a double, is at least an edge."""
        if not whole:
            return value >= self._double(edge)
        first = math.ceil(_fraction(of_float(edge)))
        if -(2**63) < first < 2**63:
            return value >= self.ibis.literal(first, "int64")
        return self.ibis.literal(first < 0)

    def _double(self, double: float) -> "Value":
        """Return a literal that every engine reads as this double: from its shortest digits."""
        return self.ibis.literal(repr(double)).cast("float64")

    def _of_candidates(self, column: Column, value: "Value", *, whole: bool) -> "Value":
        """Return the code of each value of the type that is a declared number."""
        code = code_of(column, self.decimal)
        literals: dict[int, list[Value]] = {}
        for candidate in sorted(set(_candidates(column, self.decimal, whole=whole))):
            text = repr(candidate).replace(".", self.decimal)
            literal = self.ibis.literal(candidate, "int64") if whole else self._double(candidate)
            literals.setdefault(code(text.encode()), []).append(literal)
        return self._listed({k: value.isin(literals[k]) for k in sorted(literals)})

    # ------------------------------------------------------------------------------ dates

    def _date_fields(self, name: str, dates: Dates, rows: "Table") -> "dict[str, Value]":
        """Return year, month and day of a date, a time or a text by its name; null where none."""
        value = rows[name]
        kind = value.type()
        if dates.format.text:
            raise UnpushableError(
                "declares a format of dates, which is not read in place; make it a date there, and "
                "leave the format out"
            )
        if kind.is_string():
            parts = [value.re_extract(_ISO_DATE, k).fill_null("").nullif("") for k in (1, 2, 3)]
        elif kind.is_date() or (kind.is_timestamp() and kind.timezone is None):
            # Of infinite dates some engines have infinite years, and fail over them.
            first, last = (self.ibis.literal(day, "date") for day in (date.min, date.max))
            day = value if kind.is_date() else value.date()
            real = self.ibis.cases((day.between(first, last), value))
            parts = [real.year(), real.month(), real.day()]
        else:
            raise UnpushableError(
                f"declares dates and has the type {kind}; make it a date or a text"
            )
        names = ("year", "month", "day")
        return {
            f"{name}_{field}": part.cast("int64") for field, part in zip(names, parts, strict=True)
        }

    def _ordinal(self, name: str, rows: "Table") -> "Value":
        """Return the number of a day of the calendar, as `date.toordinal`; null if it has none."""
        year, month, day = (rows[f"{name}_{field}"] for field in ("year", "month", "day"))
        leap_year = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
        leap = self.ibis.cases((leap_year, 1), else_=0)
        days = self.ibis.cases((month == 2, 28 + leap), (month.isin(_SHORT_MONTHS), 30), else_=31)
        started = self.ibis.cases(*((month == k, n) for k, n in enumerate(_MONTH_STARTS, start=1)))
        real = (year >= 1) & month.between(1, 12) & (day >= 1) & (day <= days)
        before = year - 1
        ordinal = 365 * before + before // 4 - before // 100 + before // 400 + started + day
        ordinal += self.ibis.cases((month > 2, leap), else_=0)
        return self.ibis.cases((real, ordinal.cast("int64")))

    def _period(self, name: str, dates: Dates, rows: "Table") -> "Value":
        """Return the code of a date; null where it is outside."""
        ordinal, year, month = (rows[f"{name}_{field}"] for field in ("ordinal", "year", "month"))
        periods: dict[PeriodKind, Value] = {
            "day": ordinal,
            "week": (ordinal - 1) // 7,
            "month": year * 12 + month - 1,
            "quarter": year * 4 + (month - 1) // 3,
            "year": year,
        }
        code = periods[dates.by] - period_number(dates.first, dates.by)
        inside = ordinal.between(dates.first.toordinal(), dates.last.toordinal())
        return self.ibis.cases((inside, code.cast("int64")))

    # ------------------------------------------------------------------------------ texts

    def _of_text(self, name: str, column: Column, rows: "Table") -> "Value":
        """Return the code of a text."""
        text = rows[name]
        parts = NumberParts.of(self.ibis, name, rows)
        match column.kind:
            case Categorical() | Boolean():
                return self._of_listed_text(column.kind, text, parts)
            case Integers(low=low, high=high):
                whole = parts.whole()
                return self.ibis.cases((whole.between(low, high), whole - low))
            case Bins(edges=edges):
                reached = self._bins([parts.reaches(of_float(edge)) for edge in edges])
                return self.ibis.cases((parts.is_number, reached))
            case Dates():
                raise TypeError("dates are coded by their fields")
            case _:
                assert_never(column.kind)

    def _of_listed_text(
        self, kind: Categorical | Boolean, text: "Value", parts: NumberParts
    ) -> "Value":
        """Return the code of a declared text, else of the number that it writes."""
        known = known_codes(kind, self.decimal)
        texts: dict[int, list[str]] = {}
        keys: dict[int, list[str]] = {}
        for key, code in known.items():
            if isinstance(key, str):
                texts.setdefault(code, []).append(key)
            else:
                keys.setdefault(code, []).append(key_text(key))
        folded = isinstance(kind, Boolean)
        # One regular expression a list of yes and no; letter by letter otherwise.
        by_text = self._listed(
            {
                k: text.re_search(f"^({'|'.join(map(folding_pattern, listed))})$")
                if folded
                else text.isin(listed)
                for k, listed in texts.items()
            }
        )
        if not keys:
            return by_text
        key = parts.key()
        by_number = self._listed({k: key.isin(listed) for k, listed in keys.items()})
        return by_text.fill_null(by_number)

    def _stripped(self, text: "Value", blanks: str) -> "Value":
        return text.re_replace(f"^[{blanks}]+|[{blanks}]+$", "")


def _takes_numbers(kind: ColumnKind, decimal: str) -> bool:
    """Return whether a number may have a code."""
    match kind:
        case Categorical() | Boolean():
            return not all(isinstance(key, str) for key in known_codes(kind, decimal))
        case Integers() | Bins():
            return True
        case Dates():
            return False
        case _:
            assert_never(kind)


def _candidates(column: Column, decimal: str, *, whole: bool) -> Iterator[int | float]:
    """Yield all whole numbers of 64 bits, or doubles, whose text may be a declared number."""
    if not isinstance(column.kind, Categorical | Boolean):
        return
    for key in known_codes(column.kind, decimal):
        if isinstance(key, str):
            continue
        if abs(magnitude(key)[1]) > 400:
            continue  # no number of 64 bits is as large or as small
        exact = _fraction(key)
        if not whole:
            yield float(exact) + 0.0
        elif exact.denominator == 1 and -(2**63) <= exact < 2**63:
            yield int(exact)


def _fraction(value: ExactNumber) -> Fraction:
    return Fraction(decimal_text(value))


def _check_cases(count: int) -> None:
    if count > MAX_PUSHED_CASES:
        raise UnpushableError(
            f"takes {count:,} cases in one expression, and the limit is {MAX_PUSHED_CASES:,}; "
            "declare fewer values or wider bins"
        )
