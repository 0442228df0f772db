"""Synthetic records, written as CSV.

The columns are those that the spec declares, in its order: listed values as they stand in the data,
whole numbers as digits, a bin by its middle, a period by its first day, yes and no by the first
text of each, the code of other texts by a text that nothing else accepts. Where the unit is a
person, every record is another person: which records belong together is not known, so how many
rows persons have is not in the records, though tables of the release may say it.

A relaxed row is a distribution of records whose attributes are independent. It gives its share of
the records, and these spread over the values of every attribute as evenly as whole numbers allow:
systematic sampling, in another order for each attribute. The records of one row so have its
distributions to within one record, and independent attributes. Codes that no query distinguishes
are one class, about which nothing was measured: they share its records evenly.

The chance in this is public: it comes from a seed by a hash, the same on every machine, and says
nothing about any record. Nothing here is private that the relaxed rows were not.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy import float64, int64, uint64

from dpquery.arrays import Floats, Ints, Singles
from dpquery.exceptions import SpecError
from dpquery.measurement.counting.column_codes import code_of
from dpquery.operators.compile import CompiledSpec
from dpquery.progress import report_progress
from dpquery.public_chance import PublicChance
from dpquery.reconstruction.relaxed.rows import RelaxedRows
from dpquery.spec.columns import Attribute, Column
from dpquery.spec.spec import Spec
from dpquery.untrusted.files import replacing


def rounded_records(
    rows: RelaxedRows, classes: Sequence[Ints], *, records: int, chance: PublicChance
) -> list[Ints]:
    """Return the codes of each attribute in so many records, in shuffled order.

    Privacy:
        Post-processing: a function of the relaxed rows and a public seed.
    """
    relaxed = len(rows.values)
    start = int(chance.bits("rows", 1)[0] % uint64(relaxed))
    ends = (np.arange(relaxed + 1) * records + start) // relaxed
    records_of_row = np.diff(ends)  # of each row; the floor or the ceiling of its share
    row = np.repeat(np.arange(relaxed), records_of_row)
    first = ends[:-1][row]
    shuffled = chance.order("records", np.zeros(records, dtype=int64))
    codes = []
    for i, class_of_code in enumerate(classes):
        rank = np.empty(records, dtype=int64)
        rank[chance.order(f"ranks {i}", row)] = np.arange(records)
        offset = chance.uniform(f"offsets {i}", relaxed)[row]
        place = (rank - first + offset) / records_of_row[row]
        classes_drawn = _classes_at(rows.distribution(i), row, place)
        codes.append(
            _codes_of(class_of_code, classes_drawn, chance.uniform(f"codes {i}", records))[shuffled]
        )
    return codes


def _classes_at(distribution: Singles, row: Ints, place: Floats) -> Ints:
    """Return the class in which each place of [0, 1) of a row's distribution falls. (m,)."""
    n = distribution.shape[1]
    reached = np.cumsum(distribution, axis=1, dtype=float64)
    reached /= reached[:, -1:]
    last = n - 1 - np.argmax(distribution[:, ::-1] > 0, axis=1)
    laid_out = (reached + np.arange(len(reached))[:, None]).ravel()
    position = np.searchsorted(laid_out, row + place, side="right") - row * n
    return np.asarray(np.clip(position, 0, last[row]))  # a sum of floats may fall short of one


def _codes_of(classes: Ints, drawn: Ints, uniform: Floats) -> Ints:
    """Return a code of each class, every one of it as likely. (m,)."""
    order, sizes = np.argsort(classes, kind="stable"), np.bincount(classes)
    starts = np.cumsum(sizes) - sizes
    return np.asarray(order[starts[drawn] + (uniform * sizes[drawn]).astype(int64)])


BATCH = 1 << 18
"""Records that are drawn together: each batch has the distributions of the relaxed rows."""
_OTHER = ("other", "(other)", "-", "?", "none of these", "x" * 80)


def write_synthetic(
    path: Path, spec: Spec, compiled: CompiledSpec, rows: RelaxedRows, *, records: int, seed: int
) -> None:
    """Write synthetic records, whole or not at all; the same call writes the same bytes.

    Privacy:
        Post-processing: a function of the relaxed rows and public inputs.

    Raises:
        SpecError: a value cannot be written.
        PlanConflictError: a file of another content is in the way.
        DpqueryError: the file cannot be written.
    """
    attributes = spec.domain.in_data
    values = [[code_texts(column) for column in attribute.columns] for attribute in attributes]
    with replacing(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header(spec))
        for batch, start in enumerate(range(0, records, BATCH)):
            size = min(BATCH, records - start)
            chance = PublicChance(seed, batch)
            codes = rounded_records(rows, compiled.classes, records=size, chance=chance)
            codes = codes[: len(attributes)]
            writer.writerows(_lines(spec, values, codes, first=start + 1))
            report_progress("writing records", (start + size) / records)


def header(spec: Spec) -> list[str]:
    """Return the columns that a spec declares, in its order; the person's last."""
    names = [column.name for column in spec.domain.columns]
    return names if spec.privacy.person is None else [*names, spec.privacy.person]


def _lines(
    spec: Spec, values: Sequence[Sequence[Sequence[str]]], codes: Sequence[Ints], *, first: int
) -> Iterator[tuple[str, ...]]:
    columns: list[list[str]] = []
    by_attribute = zip(spec.domain.in_data, values, codes, strict=True)
    for attribute, texts_by_column, attribute_codes in by_attribute:
        codes_by_column = _column_codes(attribute, attribute_codes)
        for column_codes, texts in zip(codes_by_column, texts_by_column, strict=True):
            columns.append(np.array(texts, dtype=object)[column_codes].tolist())
    if spec.privacy.person is not None:
        columns.append([str(first + k) for k in range(len(codes[0]))])
    return zip(*columns, strict=True)


def _column_codes(attribute: Attribute, codes: Ints) -> list[Ints]:
    """Split the codes of an attribute into those of its columns; the first is the slowest."""
    by_column = []
    for column in reversed(attribute.columns):
        codes, column_codes = np.divmod(codes, column.size)
        by_column.append(column_codes)
    return by_column[::-1]


def code_texts(column: Column, decimal: str = ".") -> list[str]:
    """Return for each code of a column a text that is read as that code, given the decimal mark.

    >>> from dpquery.spec.columns import Bins
    >>> code_texts(Column("income", Bins((0.0, 10.0, 20.5)), other="show"))
    ['5', '15.25', 'other']
    """
    read = code_of(column, decimal)
    decimal = decimal if column.number is None else column.number.decimal
    written = []
    for code in range(column.size):
        candidates = _OTHER if code == column.length else column.kind.texts_of(code)
        forms = (form for text in candidates for form in (text, text.replace(".", decimal)))
        fitting = (text for text in forms if read(text.encode()) == code)
        text_of_code = next((text for text in fitting if not set(text) & set("\n\r")), None)
        if text_of_code is None:
            raise SpecError(
                f"no line of a CSV file could hold {column.label(code)!r} in column "
                f"{column.name!r}, so that no record can be written with it; declare another text"
            )
        written.append(text_of_code)
    return written
