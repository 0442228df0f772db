"""Numbers as texts: what a number is, exactly, however it is written.

`1`, `1.0`, `01`, `+1` and `1e0` are one number. A number here is no float, which would round it,
and no fraction, which `1e999999999` would fill the memory with: it is a tuple that is equal for
equal numbers only and has their order.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property

ExactNumber = tuple[int, int, str]
"""(sign, exponent, digits): the tuples of two numbers compare as the numbers do."""

LONGEST = 64
"""Characters of the longest number: one that matters is shorter."""

THOUSANDS = {".": "[.]", ",": ",", "'": "['\u2019]", "space": "[ \u00a0\u2009\u202f]"}
"""What may stand between groups of three digits, and its pattern: a space of any width."""

_NUMBER = re.compile(r"([+-]?)(?=[0-9.])([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_EXPONENT = re.compile("e[+]?(-?)0*")  # as printf writes it
_NINES_LESS = str.maketrans("0123456789", "9876543210")
_AFTER_DIGITS = "~"
_ZERO: ExactNumber = (0, 0, "")


def number(text: str, decimal: str = ".") -> ExactNumber | None:
    """Return the number that a text writes; None if it writes none.

    A number has ASCII digits, at most one decimal mark beside them, a sign or none, and an exponent
    or none; no separators of thousands, no inf, no nan, and at most LONGEST characters.

    Args:
        text: without white space around it.
        decimal: the decimal mark, "." or ",". With another than "." a point is no part of a number.

    >>> number("1") == number("+01.0") == number("10e-1") == number("1,0", decimal=",")
    True
    >>> number("-1e999999999999") < number("-2.5") < number("0") < number("1e-400")
    True
    """
    if len(text) > LONGEST:
        return None
    sign, power = "", 0
    before, _, after = text.partition(decimal)
    digits = before + after
    if not (digits.isascii() and digits.isdigit()):  # it has a sign or an exponent, or is none
        written = _NUMBER.fullmatch(text if decimal == "." else _pointed(text, decimal))
        if written is None:
            return None
        sign, before, after, exponent = written.groups("")
        digits, power = before + after, int(exponent or 0)
    if not digits:
        return None
    significant = digits.lstrip("0")
    if not significant:
        return _ZERO
    # The number is 0.significant times a power of ten.
    power += len(before) - (len(digits) - len(significant))
    significant = significant.rstrip("0")
    if sign == "-":
        return -1, -power, significant.translate(_NINES_LESS) + _AFTER_DIGITS
    return 1, power, significant


@dataclass(frozen=True)
class NumberFormat:
    """How the texts of a column write numbers, where not by digits and the file's mark alone."""

    thousands: str = ""  # what stands between groups of three digits: one of THOUSANDS, or nothing
    decimal: str = "."  # the mark before decimals
    # what may stand before or behind a number, such as % or EUR; it changes no value
    sign: str = ""

    def number(self, text: str) -> ExactNumber | None:
        """Return the number that a text writes so; None if it writes none.

        >>> NumberFormat(".", ",", "€").number("-1.234,5 €") == number("-1234.5")
        True
        >>> NumberFormat(".", ",").number("1.5"), NumberFormat("'").number("1'0000")
        (None, None)
        """
        if len(text) > 2 * LONGEST:
            return None
        found = self._pattern.fullmatch(self._unsigned(text) if self.sign else text)
        if found is None:
            return None
        minus, whole, after, exponent = found.groups("")
        digits = "".join(digit for digit in whole if digit.isdigit())
        return number(f"{minus}{digits}.{after}{exponent}")

    @property
    def example(self) -> str:
        """A text of the format: what it says of 1234.5."""
        between = "\u00a0" if self.thousands == "space" else self.thousands
        return f"1{between}234{self.decimal}5 {self.sign}".strip()

    def _unsigned(self, text: str) -> str:
        """Return a text without its sign, and with its plus or minus first."""
        first = text[:1] if text[:1] in {"+", "-"} else ""
        rest = text[len(first) :].lstrip()
        bare = rest.removeprefix(self.sign)
        return first + (rest.removesuffix(self.sign) if bare == rest else bare).strip()

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        between = THOUSANDS.get(self.thousands)
        grouped = f"[0-9]{{1,3}}(?:{between}[0-9]{{3}})+|" if between else ""
        mark = re.escape(self.decimal)
        return re.compile(rf"([+-]?)({grouped}[0-9]*)(?:{mark}([0-9]*))?([eE][+-]?[0-9]+)?")


def _pointed(text: str, decimal: str) -> str:
    """Return a text with a point for its decimal mark, "" where it has points already."""
    return "" if "." in text else text.replace(decimal, ".")


def whole(value: ExactNumber) -> int | None:
    """Return a number of at most 18 digits as an integer; None if it is another one.

    >>> whole(number("-34.0")), whole(number("0.5")), whole(number("1e18"))
    (-34, None, None)
    """
    sign, power, digits = magnitude(value)
    if sign == 0:
        return 0
    if not len(digits) <= power <= 18:
        return None
    return sign * int(digits.ljust(power, "0"))


def is_whole(value: ExactNumber) -> bool:
    """Return whether a number is whole, however large it is.

    >>> is_whole(number("9223372036854775808")), is_whole(number("12.50"))
    (True, False)
    """
    _, power, digits = magnitude(value)
    return len(digits) <= power or not digits


def magnitude(value: ExactNumber) -> tuple[int, int, str]:
    """Return (sign, power, digits): the number is sign times 0.digits times 10^power.

    >>> magnitude(number("-12.50"))
    (-1, 2, '125')
    """
    sign, power, digits = value
    if sign < 0:
        return sign, -power, digits.removesuffix(_AFTER_DIGITS).translate(_NINES_LESS)
    return value


def nearest_float(value: ExactNumber) -> float:
    """Return the float next to a number, infinite where the number is beyond all floats.

    >>> nearest_float(number("-0.10")), nearest_float(number("1e999999999999"))
    (-0.1, inf)
    """
    sign, power, digits = magnitude(value)
    return sign * float(f"0.{digits}e{power}")


def of_float(value: float) -> ExactNumber:
    """Return the number that a finite float is written as: the shortest that reads back as it."""
    exact = number(repr(value))
    if exact is None:
        raise ValueError(f"{value} is no number")
    return exact


def decimal_text(value: ExactNumber) -> str:
    """Return a text that writes a number, with a point.

    >>> number(decimal_text(number("-0012.50"))) == number("-12.5")
    True
    """
    sign, power, digits = magnitude(value)
    return f"{'-' * (sign < 0)}0.{digits}e{power}" if sign else "0"


def power(value: float) -> str:
    """Return a number as people read and type it: without zeros or a plus in its exponent.

    >>> power(1e-9), power(1e6), power(0.5)
    ('1e-9', '1e6', '0.5')
    """
    return _EXPONENT.sub(r"e\1", f"{value:g}")


CLASS_DIGITS = (1, 2, 3)
"""By how many leading digits numbers are put into classes: 17 is in 10 to 20, and in 17 to 18."""
ROW_DIGITS = (1, 2)
"""As many for numbers of rows of a person: below 100 each has a class of its own."""
_POWERS = range(-3, 15)  # of ten: numbers from 0.001 to below 10^15 are told apart


def classes_by(digits: int) -> int:
    """Return how many classes by so many leading digits hold numbers above 0."""
    return int(9 * 10 ** (digits - 1)) * len(_POWERS)


def class_of(value: ExactNumber) -> int:
    """Return the class of a number by three digits: 1, 2, ... above 0.001, and -1, -2, ... below 0.

    In class 0 are numbers from 0 to 0.001; the outermost have all that lies beyond.

    >>> [class_of(number(text)) for text in ("0", "0.001", "17", "17.09", "-17", "1e999")]
    [0, 1, 3671, 3671, -3670, 16200]
    """
    sign, power, digits = magnitude(value)
    place = 900 * (power - 1 - _POWERS[0]) + int(digits[:3].ljust(3, "0")) - 100
    if sign < 0 and len(digits) <= 3:
        place -= 1  # classes hold their lower edge
    return sign * (1 + min(max(place, 0), classes_by(3) - 1)) if sign < 0 or place >= 0 else 0


@cache
def class_edges(digits: int, place: int) -> tuple[Fraction, Fraction]:
    """Return from where a class by so many digits goes, and to below which number.

    >>> [str(edge) for edge in class_edges(1, 37) + class_edges(3, -3670)]
    ['10', '20', '-17', '-169/10']
    """
    if not place:
        return Fraction(0), Fraction(10) ** _POWERS[0]
    decade, lead = divmod(abs(place) - 1, 9 * 10 ** (digits - 1))
    step = Fraction(10) ** (_POWERS[0] + decade - digits + 1)
    low = (10 ** (digits - 1) + lead) * step
    return (low, low + step) if place > 0 else (-low - step, -low)
