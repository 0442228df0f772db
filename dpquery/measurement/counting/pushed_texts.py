"""What a text says, as expressions of Ibis: its number taken apart, and its letters casefolded."""

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from dpquery.spec.numbers import ExactNumber, magnitude

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
