"""The file measurements.parquet: the noisy values behind a release, as the ledger has them.

They are public, being all that the noise was added for: whoever has them and the plan can compute
every answer of the release again, and answers to further questions.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy import int64

from dpquery.arrays import Ints
from dpquery.exceptions import SpecError
from dpquery.spec.model import Spec
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.untrusted.parquet import UNREADABLE, opened

BATCH_VALUES = 1 << 20
SCHEMA = pa.schema(
    [
        pa.field("measurement", pa.int32(), nullable=False),
        pa.field("attributes", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("weight", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
    ]
)


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
    return tuple(
        MeasurementLabel(
            " x ".join(names[i] for i in measurement.block.attributes),
            measurement.weight,
            measurement.block.queries,
        )
        for measurement in strategy.measurements
    )


def values_digest(values: Ints) -> str:
    """Return the sha256 of noisy values, as little-endian 64-bit integers. values: (m,)."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<i8").data).hexdigest()


def write_measurements(
    path: Path,
    values: Ints,
    measured: Sequence[MeasurementLabel],
    *,
    metadata: Mapping[str, str],
) -> None:
    """Write noisy values, the rows of one measurement after those of another.

    Args:
        path: of the new file.
        values: (m,) noisy values in steps of the grid.
        measured: what they belong to, in order.
        metadata: of the file.

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
                _repeated([group.attributes for group in measured_here], place - first),
                _repeated([str(group.weight) for group in measured_here], place - first),
                pa.array(batch),
            ]
            writer.write_batch(
                pa.RecordBatch.from_arrays(columns, schema=writer.schema),
                row_group_size=BATCH_VALUES,
            )


def _repeated(texts: Sequence[str], places: Ints) -> pa.Array:
    """Return the text at each place."""
    names = {name: k for k, name in enumerate(dict.fromkeys(texts))}
    name_of = np.array([names[text] for text in texts])
    return pa.DictionaryArray.from_arrays(
        pa.array(name_of[places], pa.int32()), pa.array(names, pa.string())
    )


def read_measurements(path: Path, measured: Sequence[MeasurementLabel], *, digest: str) -> Ints:
    """Return the noisy values of a release's file: (m,).

    Args:
        path: of the file; it may be damaged, or made to deceive.
        measured: what it must hold, by the plan.
        digest: see `values_digest`, by the manifest.

    Raises:
        SpecError: the file is not what the plan and the manifest say.
    """
    try:
        return _checked(path, measured, digest)
    except UNREADABLE:
        raise SpecError(
            f"{path} is missing, damaged, or not of this release; run `dpquery release` again, "
            "which is free: the ledger holds the measurements"
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
    """Return which measurement each of some rows belongs to."""
    inside = np.clip(ends, start, start + count)
    counts = inside - np.append([start], inside[:-1])
    return np.repeat(np.arange(len(ends)), counts)
