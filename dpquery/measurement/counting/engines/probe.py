"""Rows of our own that a warehouse is tried on, and the counts that our coder gives.

The values are those that engines read in different ways, and what lies at every edge of what the
spec declares. They are public: none is from any table.
"""

import datetime
import decimal
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, cycle, islice
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from dpquery.arrays import Ints
from dpquery.measurement.counting.arrow_files import batch_of
from dpquery.measurement.counting.column_codes import ColumnCodes
from dpquery.measurement.counting.persons import person_names
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.numbers import decimal_text, number
from dpquery.spec.spec import Privacy

if TYPE_CHECKING:
    from ibis import Table, Value
    from ibis.expr.datatypes import DataType


CaseValue = bool | int | float | str | decimal.Decimal | datetime.date | datetime.datetime
_Any = TypeVar("_Any")
_NS_YEARS = 1678, 2261  # that times in nanoseconds are of, from end to end
_MOST = 400  # cases of a column: those of the spec come first
_END = 9  # of a list the first and the last so many
_SMALL_POWER = 40  # of ten, of numbers that any type may hold

TEXTS: tuple[str, ...] = (
    *("", " ", "\t", "1", " 1 ", "\t1\r\n", "01", "+1", "-1", "1e0", "10e-1", "0001E+00", "1."),
    *("1.0", "0.1e1", ".1e1", "1,0", "1,", "0", "-0", "0e999999999", "5e-1", "0.5", ".5", "3.7"),
    *("0x10", "1d", "1f", "1L", "1_000", "1 000", "1,000", "1.000", "1.000,5", "1'000", "1e3"),
    *("1E+03", ".", "+", "-", "e1", "1e", ".e1", "nan", "NaN", "inf", "-Infinity", "NULL", "null"),
    *("++1", "1e1e1", "$1", "1%", "0b1", "１", "٣", "½", "−1", "1\u200b", "\ufeff1", "\u00a01"),
    *("\u20281\x85", "\x1c1\x1f", "0" * 65 + "1", "1" * 65, "1." + "0" * 63, "1e-" + "9" * 50),
    *("1e" + "9" * 50, "true", "TRUE", "False", "yes", "Yes", "ye\u017f", "YES\u00a0", "n", "é"),
    *("E\u0301", "e\u0301", "É", "ß", "ss", "ẞ", "ı", "İ", "i", "I", "K", "k", "\u212a", "a'b"),
    *("'", '"', "\\", "\\1", "%", "_", "$$", "2024-02-29", "2023-02-29", "2024-2-9", "2024-02-30"),
    *("0000-01-01", "2024-13-01", "2024-02-29T12:30", "2024-02-29 12:30:00Z", "2024-02-29 12"),
    *("20240229", "29.02.2024", "2024-02-29 12:30:00.123+01:00", "2024-02-29\n", "10000-01-01"),
)
_WHOLE: tuple[int, ...] = (
    *(0, 1, -1, 2, 10, 127, -128, 32767, 2**31 - 1, -(2**31), 2**53, 2**53 + 1, -(2**53) - 1),
    *(2**63 - 1, -(2**63), 10**18),
)
_DOUBLES: tuple[float, ...] = (
    *(0.0, -0.0, 1.0, -1.0, 0.1, 0.3, 0.1 + 0.2, 0.5, 1.5, 2.5, 3.7, -0.5, 1e22, 1e-300, 1e300),
    *(5e-324, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), math.nan, math.inf, -math.inf),
)
_DAYS = tuple(
    datetime.date.fromisoformat(text)
    for text in (
        *("0001-01-01", "1582-10-10", "1900-02-28", "1970-01-01", "2000-02-29", "2024-02-29"),
        *("2024-12-30", "2025-01-01", "9999-12-31"),
    )
)


@dataclass(frozen=True)
class CaseRows:
    """Rows of some columns, as values and as the types that they have in the warehouse."""

    kinds: "tuple[DataType, ...]"
    columns: tuple[tuple[CaseValue | None, ...], ...]
    persons: tuple[str | None, ...] = ()

    def of_persons(self, *, copies: int) -> "CaseRows":
        """Return each row so many times, of one person, whose id is written in several ways."""
        columns = tuple(tuple(v for v in column for _ in range(copies)) for column in self.columns)
        letters, numbers = ("P{}", " P{}\t", "P{}\u00a0\n "), ("{}", " 0{}e0\t", "+{}.0")
        forms = (letters, numbers, letters, (None,) * 3, numbers, ("\t",) * 3, letters)
        ids = [
            form and form.format(k)
            for k in range(len(self.columns[0]))
            for form in islice(cycle(forms[k % len(forms)]), copies)
        ]
        return CaseRows(self.kinds, columns, tuple(ids))

    def written(self, ibis: ModuleType) -> "Table":
        """Return a table expression of these rows, with columns v0, v1, ... and `person`."""
        rows = ibis.range(len(self.columns[0])).unnest().name("k").as_table()
        values = {
            f"v{c}": _chosen(ibis, rows, column, kind)
            for c, (column, kind) in enumerate(zip(self.columns, self.kinds, strict=True))
        }
        if self.persons:
            values["person"] = _chosen(ibis, rows, self.persons, ibis.dtype("string"))
        return rows.select(**values)


def _chosen(
    ibis: ModuleType, rows: "Table", values: Sequence[CaseValue | None], kind: "DataType"
) -> "Value":
    """Return the value of each row as an expression."""
    literals: dict[str, list[int]] = {}
    texts: dict[str, CaseValue] = {}
    for k, value in enumerate(values):
        if value is not None:
            literals.setdefault(repr(value), []).append(k)
            texts[repr(value)] = value
    cases = [(rows["k"].isin(ks), _literal(ibis, texts[key], kind)) for key, ks in literals.items()]
    return ibis.cases(*cases) if cases else ibis.null(kind)


def _literal(ibis: ModuleType, value: CaseValue, kind: "DataType") -> "Value":
    if isinstance(value, float | decimal.Decimal):
        return ibis.literal(str(value)).cast(kind)
    return ibis.literal(value, kind)


def case_rows(attribute: Attribute, kinds: "Sequence[DataType]") -> CaseRows:
    """Return the rows that an attribute's columns of some types are tried on."""
    columns = [
        # By what they look like: -0.0 equals 0.0.
        list(islice({repr(value): value for value in _cases(column, kind)}.values(), _MOST))
        for column, kind in zip(attribute.columns, kinds, strict=True)
    ]
    most = max(map(len, columns))
    repeated = tuple(tuple(column[k % len(column)] for k in range(most)) for column in columns)
    return CaseRows(tuple(kinds), repeated)


def expected_counts(
    rows: CaseRows, attribute: Attribute, classes: Ints, privacy: Privacy, mark: str
) -> Ints:
    """Return the records of each class by our own coder, (classes,); at most max_rows a person."""
    codes = np.zeros(len(rows.columns[0]), np.int64)
    inside = np.ones(codes.size, np.bool_)
    for column, values, kind in zip(attribute.columns, rows.columns, rows.kinds, strict=True):
        array = pa.array(values, kind.to_pyarrow())
        ((distinct, places),) = batch_of([array]).columns[0]
        column_codes = ColumnCodes(column, mark).of(distinct)[places]
        inside &= column_codes >= 0
        codes = codes * column.size + column_codes
    weights = np.ones(codes.size)
    if rows.persons:
        seen: dict[bytes, int] = {}
        for k, person in enumerate(person_names(pa.array(rows.persons), mark).to_pylist()):
            if not person:
                inside[k] = False
            elif inside[k]:
                seen[person] = seen.get(person, 0) + 1
                weights[k] = seen[person] <= privacy.max_rows
    counted = classes[codes[inside]]
    return np.bincount(counted, weights[inside], minlength=int(classes.max()) + 1).astype(np.int64)


def _cases(column: Column, kind: "DataType") -> "Iterator[CaseValue | None]":
    """Yield values of a type, those that the spec makes special first; some of them twice."""
    yield None
    if kind.is_boolean():
        yield from (True, False)
    elif kind.is_integer():
        low, high = kind.bounds
        near = (math.floor(x) + k for x in _numbers(column) for k in (0, 1, -1))
        yield from (k for k in chain(near, _WHOLE) if low <= k <= high)
    elif kind.is_floating():
        for x in map(float, _numbers(column)):
            yield from (x, math.nextafter(x, math.inf), math.nextafter(x, -math.inf))
        yield from _DOUBLES
    elif kind.is_decimal():
        yield from _decimals(column, kind)
    elif kind.is_date() or kind.is_timestamp():
        for day in chain(_days(column), _DAYS):
            if kind.is_date():
                yield day
            elif kind.scale != 9 or _NS_YEARS[0] <= day.year <= _NS_YEARS[1]:
                yield datetime.datetime(day.year, day.month, day.day, 23, 59, 59, 999_999)
    else:
        yield from _texts(column)


def _texts(column: Column) -> Iterator[str]:
    """Yield texts that stand for what is declared, or nearly so."""
    for listed in _ends(_listed(column)):
        yield from (listed, f" {listed}\t", listed.swapcase(), listed + "x", f"{listed}\n.")
    for day in _days(column):
        yield from (day.isoformat(), f"{day.isoformat()} 23:59")
    for x in _numbers(column):
        text = f"{decimal.Decimal(x.numerator) / decimal.Decimal(x.denominator):f}"
        yield from (text, f"{text}e0", f"0{text}", f"+{text}", f"{text}1", f"{text}.0", f"{text}.1")
        yield from (text.replace(".", ","), f"{text}e1", f"{text}0e-1")
    yield from TEXTS


def _decimals(column: Column, kind: "DataType") -> Iterator[decimal.Decimal]:
    """Yield decimals that the type holds."""
    precision, scale = kind.precision or 38, kind.scale or 0
    unit = decimal.Decimal(1).scaleb(-scale)
    with decimal.localcontext(prec=80):
        for x in chain(_numbers(column), map(Fraction, ("0", "1", "-1", "2", "3.7"))):
            exact = decimal.Decimal(x.numerator) / decimal.Decimal(x.denominator)
            near = exact.quantize(unit, decimal.ROUND_FLOOR)
            for value in (near, near + unit, near - unit):
                if abs(value) < decimal.Decimal(10) ** (precision - scale):
                    yield value


def _numbers(column: Column) -> Iterator[Fraction]:
    """Yield numbers at the edges of what a column declares."""
    match column.kind:
        case Integers(low=low, high=high):
            yield from map(Fraction, (low - 1, low, low + 1, high - 1, high, high + 1))
        case Bins(edges=edges):
            yield from (Fraction(repr(edge)) for edge in _ends(edges))
        case _:
            values = (number(text) for text in _ends(_listed(column)))
            small = (v for v in values if v is not None and abs(v[1]) < _SMALL_POWER)
            yield from (Fraction(decimal_text(value)) for value in small)


def _listed(column: Column) -> list[str]:
    match column.kind:
        case Categorical(labels=labels) as kind:
            return [*chain.from_iterable(kind.texts), *labels]
        case Boolean(true=true, false=false):
            return [*true, *false]
        case _:
            return []


def _days(column: Column) -> Iterator[datetime.date]:
    if isinstance(column.kind, Dates):
        first, last = column.kind.first.toordinal(), column.kind.last.toordinal()
        for day in (first - 1, first, first + 1, (first + last) // 2, last - 1, last, last + 1):
            if 1 <= day <= datetime.date.max.toordinal():
                yield datetime.date.fromordinal(day)


def _ends(listed: Sequence[_Any]) -> Sequence[_Any]:
    """Return the first and last of a list."""
    return listed if len(listed) <= 2 * _END else [*listed[:_END], *listed[-_END:]]
