"""The files of noisy values: measurements.parquet and relaxed_rows.parquet.

Noisy values are public, being all that the noise was added for: whoever has them and the plan can
compute every answer of the release again, and answers to further questions.

The file of relaxed rows: one row a relaxed record, one column a class of values.

A column is called attribute=value and holds the probability that the record has the value, so that
the columns of an attribute sum to one. Values that no query distinguishes are one class and share a
column. `pandas.read_parquet("release/relaxed_rows.parquet").mean()` is every one-way table.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy import int64

from dpquery.arrays import Ints, Singles
from dpquery.exceptions import SpecError
from dpquery.limits import MAX_RAP_FIT_NUMBERS
from dpquery.operators.compile import CompiledSpec
from dpquery.releases.manifest import RELAXED_ROWS_FILE, RELEASE_AGAIN
from dpquery.releases.tables.file_columns import MEASUREMENTS, schema_of
from dpquery.releases.tables.labels import repeated_texts
from dpquery.spec.columns import Attribute, Domain
from dpquery.spec.spec import Spec
from dpquery.strategy.strategy import Strategy

if TYPE_CHECKING:
    from dpquery.reconstruction.relaxed.rows import RelaxedRows
from dpquery.untrusted.parquet import UNREADABLE, opened

BATCH_VALUES = 1 << 20
SCHEMA = schema_of(MEASUREMENTS.values())


@dataclass(frozen=True)
class MeasurementLabel:
    """The attributes and the weight of one measurement, and its number of rows.

    The weight may be past 64 bits: the file has its decimal digits.
    """

    attributes: str
    weight: int
    rows: int


def measurement_labels(spec: Spec, strategy: Strategy) -> tuple[MeasurementLabel, ...]:
    """Return the measurements that the noisy values of a strategy belong to, in their order."""
    names = [attribute.name for attribute in spec.domain.attributes]
    counted = ("", *(f" ({what})" for what in spec.privacy.beside))
    return tuple(
        MeasurementLabel(
            " x ".join(names[i] for i in measurement.block.attributes) + what,
            measurement.weight,
            measurement.block.queries,
        )
        for what in counted
        for measurement in strategy.measurements
    )


def values_digest(values: Ints) -> str:
    """Return the sha256 of noisy values, as little-endian 64-bit integers. values: (m,)."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<i8").data).hexdigest()


def write_measurements(
    path: Path, values: Ints, measured: Sequence[MeasurementLabel], *, metadata: Mapping[str, str]
) -> None:
    """Write noisy values, the rows of one measurement after those of another.

    Privacy:
        Post-processing: noisy values and public facts.
    """
    ends = _ends(measured, len(values))
    with pq.ParquetWriter(
        path,
        SCHEMA.with_metadata(metadata),
        version="2.6",
        compression="snappy",
        use_dictionary=["measurement", "attributes", "weight"],
        column_encoding={"value": "DELTA_BINARY_PACKED"},
    ) as writer:
        for start in range(0, len(values), BATCH_VALUES):
            batch = values[start : start + BATCH_VALUES]
            place = _places(ends, start, len(batch))
            first, last = int(place[0]), int(place[-1])
            measured_here = measured[first : last + 1]
            columns = [
                pa.array(place, pa.int32()),
                repeated_texts([group.attributes for group in measured_here], place - first),
                repeated_texts([str(group.weight) for group in measured_here], place - first),
                pa.array(batch),
            ]
            writer.write_batch(
                pa.RecordBatch.from_arrays(columns, schema=writer.schema),
                row_group_size=BATCH_VALUES,
            )


def read_measurements(path: Path, measured: Sequence[MeasurementLabel], *, digest: str) -> Ints:
    """Return the noisy values of a file that may be damaged, or made to deceive: (m,).

    Raises:
        SpecError: the file is not what the plan and the manifest say.
    """
    try:
        return _checked(path, measured, digest)
    except UNREADABLE:
        raise SpecError(
            f"{path} is missing, damaged, or not of this release; {RELEASE_AGAIN}"
        ) from None


def _checked(path: Path, measured: Sequence[MeasurementLabel], digest: str) -> Ints:
    rows = sum(label.rows for label in measured)
    with opened(path, rows=rows) as file:
        if file.schema_arrow.remove_metadata() != SCHEMA:
            raise ValueError("schema")
        values = _values(file, _ends(measured, rows))
    if values_digest(values) != digest:
        raise ValueError("digest")
    return values


def _values(file: pq.ParquetFile, ends: Ints) -> Ints:
    rows, start = int(ends[-1]), 0
    values = np.empty(rows, dtype=int64)
    for batch in file.iter_batches(BATCH_VALUES, columns=["measurement", "value"]):
        place, noisy = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        if start + len(noisy) > rows or not np.array_equal(place, _places(ends, start, len(noisy))):
            raise ValueError("measurement")
        values[start : start + len(noisy)] = noisy
        start += len(noisy)
    if start != rows:
        raise ValueError("rows")
    return values


def _ends(measured: Sequence[MeasurementLabel], rows: int) -> Ints:
    ends = np.fromiter(accumulate(label.rows for label in measured), int64)
    if not len(ends) or ends[-1] != rows:
        raise ValueError("rows")
    return ends


def _places(ends: Ints, start: int, count: int) -> Ints:
    inside = np.clip(ends, start, start + count)
    counts = inside - np.append([start], inside[:-1])
    return np.repeat(np.arange(len(ends)), counts)


_SHOWN = 3  # values that the name of a class lists


def relaxed_table(rows: "RelaxedRows", domain: Domain, classes: Sequence[Ints]) -> pa.Table:
    """Return the content of relaxed_rows.parquet."""
    names: dict[str, None] = {}
    for attribute, class_of_code in zip(domain.attributes, classes, strict=True):
        for label in class_labels(attribute, class_of_code):
            name = f"{attribute.name}={label}"
            names[name if name not in names else f"{name} (column {len(names)})"] = None
    columns = [pa.array(np.ascontiguousarray(column)) for column in rows.values.T]
    schema = pa.schema([pa.field(name, pa.float32(), nullable=False) for name in names])
    return pa.Table.from_arrays(columns, schema=schema)


def class_labels(attribute: Attribute, classes: Ints) -> list[str]:
    """Return the label of each class of codes: its value, its range, or a list of its values."""
    order = np.argsort(classes, kind="stable")
    ends = np.cumsum(np.bincount(classes))[:-1]
    return [_class_label(attribute, codes) for codes in np.split(order, ends)]


def _class_label(attribute: Attribute, codes: Ints) -> str:
    first, last = int(codes[0]), int(codes[-1])
    if len(codes) == 1:
        return attribute.label(first)
    if len(codes) == attribute.size:
        return "any"
    run = last - first == len(codes) - 1 and last < attribute.length
    if run and not attribute.merged:
        return attribute.columns[0].range_label(first, last)
    listed = " or ".join(attribute.label(code) for code in islice(codes.tolist(), _SHOWN))
    more = len(codes) - _SHOWN
    return listed if more <= 0 else f"{listed} or {more} more"


def read_relaxed(directory: Path, compiled: CompiledSpec, *, digest: str) -> "RelaxedRows":
    """Read the relaxed rows of a release.

    The digest is empty in a release of an older dpquery.

    Raises:
        SpecError: they are missing, not as they were written, or another release's.
    """
    # few releases have any
    from dpquery.reconstruction.relaxed.rows import RelaxedRows, rows_digest

    if not digest:
        raise SpecError(
            f"{directory} was made by an older dpquery, which did not say which relaxed rows are "
            "its own: run `dpquery release` again, which is free"
        )
    shape = compiled.workload.shape_of_domain
    try:
        values = _read(directory / RELAXED_ROWS_FILE, columns=sum(shape))
        rows = RelaxedRows(shape, np.ascontiguousarray(values))
        as_written = rows_digest(values) == digest and np.isfinite(values).all()
        bounded = as_written and (values >= 0).all() and (values <= 2).all()
        if bounded and all(rows.distribution(i).any(axis=1).all() for i in range(len(shape))):
            return rows
    except UNREADABLE:
        pass
    rows_file = directory / RELAXED_ROWS_FILE
    raise SpecError(f"{rows_file} is missing, damaged, or not of this release; {RELEASE_AGAIN}")


def _read(path: Path, *, columns: int) -> Singles:
    """Return the content of a file of so many columns, of no more numbers than RAP allows."""
    with opened(path, rows=None) as file:
        types = file.schema_arrow.types
        if len(types) != columns or set(types) != {pa.float32()}:
            raise ValueError("schema")
        if file.metadata.num_rows * columns > MAX_RAP_FIT_NUMBERS:
            raise ValueError("rows")
        return np.column_stack([column.to_numpy() for column in file.read().columns])
