"""The file of relaxed rows: one row a relaxed record, one column a class of values.

A column is called attribute=value and holds the probability that the record has the value, so that
the columns of an attribute sum to one. Values that no query distinguishes are one class and share a
column. `pandas.read_parquet("release/relaxed_rows.parquet").mean()` is every one-way table.
"""

import hashlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpquery.arrays import Ints, Singles
from dpquery.exceptions import SpecError
from dpquery.limits import MAX_RAP_FIT_NUMBERS
from dpquery.operators.compile import CompiledSpec
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows
from dpquery.releases.manifest.release_json import RELAXED_ROWS_FILE
from dpquery.spec.domain import Attribute, Domain
from dpquery.untrusted.parquet import UNREADABLE, opened

_SHOWN = 3  # values that the name of a class lists


def relaxed_table(rows: RelaxedRows, domain: Domain, classes: Sequence[Ints]) -> pa.Table:
    """Return the content of relaxed_rows.parquet.

    Args:
        rows: the relaxed rows.
        domain: whose labels name the columns.
        classes: for each attribute the class of every code.
    """
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


def rows_digest(values: Singles) -> str:
    """Return the sha256 of relaxed rows, as little-endian 32-bit floats. values: (rows, k)."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").data).hexdigest()


def read_relaxed(directory: Path, compiled: CompiledSpec, *, digest: str) -> RelaxedRows:
    """Read the relaxed rows of a release.

    Args:
        directory: of the release.
        compiled: its workload.
        digest: see rows_digest, by the manifest; empty in one of an older dpquery.

    Raises:
        SpecError: they are missing, not as they were written, or another release's.
    """
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
    raise SpecError(
        f"{directory / RELAXED_ROWS_FILE} is missing, damaged, or not of this release; run "
        "`dpquery release` again, which is free: the ledger holds the measurements"
    )


def _read(path: Path, *, columns: int) -> Singles:
    """Return the content of a file of so many columns, of no more numbers than RAP allows."""
    with opened(path, rows=None) as file:
        types = file.schema_arrow.types
        if len(types) != columns or set(types) != {pa.float32()}:
            raise ValueError("schema")
        if file.metadata.num_rows * columns > MAX_RAP_FIT_NUMBERS:
            raise ValueError("rows")
        return np.column_stack([column.to_numpy() for column in file.read().columns])
