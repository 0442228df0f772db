"""Records drawn from an earlier release, to rehearse on: nothing but what was published is read.

A RAP release has relaxed rows, which are a distribution: records are drawn from them. A linear
release has noisy tables: those over every value of their attributes are made non-negative, by
projection onto tables of their total, and records follow them one after another. A table with more
cells than people has more noise than signal; its attributes are taken from smaller ones instead.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import SpecError
from dpquery.operators.compile import CompiledSpec, compile_spec
from dpquery.plan_file.plan import plan_and_spec, read_plan_file
from dpquery.planning.rehearsal.prior import sample_rows, sample_tables, spread
from dpquery.reconstruction.columns.simplex import onto_simplex
from dpquery.reconstruction.rap.relaxed_rows import RelaxedRows
from dpquery.releases.folder.relaxed_rows_file import read_relaxed
from dpquery.releases.manifest.manifest_input import read_manifest
from dpquery.releases.manifest.release_json import PLAN_FILE
from dpquery.spec.model import Spec, Table
from dpquery.spec.predicates import (
    IdentitySet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    TotalSet,
)
from dpquery.strategy.algebra.subsets import Subset
from dpquery.untrusted.parquet import UNREADABLE, opened


def draw_records(directory: Path, spec: Spec, *, records: int) -> tuple[Ints, tuple[str, ...]]:
    """Draw records of a spec's domain from a release of the same attributes.

    Returns:
        (records, d) codes; and the attributes that are in no table of the release, whose codes are
        those of the default prior: uniform ones would favour RAP, which starts from them.

    Raises:
        SpecError: the folder is no release, or its attributes are not those of the spec.
    """
    manifest = read_manifest(directory)
    if manifest.answered is not None:
        raise SpecError(
            f"the proxy {directory} holds answers to questions; name the release itself"
        )
    released = _spec_of(directory)
    names = [attribute.name for attribute in spec.domain.attributes]
    known = {
        attribute.name: (i, attribute) for i, attribute in enumerate(released.domain.attributes)
    }
    wrong = [o.name for o in spec.domain.attributes if known.get(o.name, (0, None))[1] != o]
    if wrong:
        raise SpecError(
            f"the proxy {directory} does not have these attributes as the spec declares them: "
            f"{', '.join(wrong)}; name a release of the same domain, or a public CSV file"
        )
    order = [known[name][0] for name in names]
    if manifest.fitted is not None:
        compiled = compile_spec(released)
        rows = read_relaxed(directory, compiled, digest=manifest.fitted.rows_sha256)
        return _from_relaxed(rows, compiled, records)[:, order], ()
    tables = _tables(directory, released, records)
    covered = {i for subset, _ in tables for i in subset}
    codes = sample_tables(released.domain.shape, tables, records=records)
    made_up = (name for name, i in zip(names, order, strict=True) if i not in covered)
    return codes[:, order], tuple(made_up)


def _spec_of(directory: Path) -> Spec:
    try:
        content = read_plan_file(directory / PLAN_FILE)
    except OSError:
        raise SpecError(
            f"the proxy {directory} has no {PLAN_FILE}: an older dpquery made it; run "
            "`dpquery release` again, which is free"
        ) from None
    _, spec = plan_and_spec(content, directory / PLAN_FILE)
    return spec


def _from_relaxed(rows: RelaxedRows, compiled: CompiledSpec, records: int) -> Ints:
    """Draw records from relaxed rows; the codes of a class are equally likely."""
    distributions = [rows.distribution(i) for i in range(len(rows.shape))]
    drawn = sample_rows(distributions, records=records)
    columns = [spread(drawn[:, i], classes) for i, classes in enumerate(compiled.classes)]
    return np.stack(columns, axis=1)


def _tables(directory: Path, released: Spec, cells: int) -> list[tuple[Subset, Floats]]:
    """Return the identity tables of a release, made non-negative: the small ones whole.

    Of a table with more than `cells` cells only the one-way marginals are taken.
    """
    tables: dict[Subset, Floats] = {}
    for item in released.items:
        estimates = _estimates(directory / f"{item.name}.parquet", item.size)
        ends = np.cumsum([table.size for table in item.tables])[:-1]
        for table, answers in zip(item.tables, np.split(estimates, ends), strict=True):
            subset, counts = _every_value(table, answers)
            parts = [(subset, counts)]
            if counts.size > cells:
                parts = [
                    ((i,), counts.sum(axis=tuple(j for j in range(len(subset)) if j != k)))
                    for k, i in enumerate(subset)
                ]
            for part, tensor in parts:
                if part and part not in tables:
                    tables[part] = _not_negative(tensor)
    return list(tables.items())


def _every_value(table: Table, estimates: Floats) -> tuple[Subset, Floats]:
    """Return a table as counts of every value of its attributes; over () where it is not that."""
    subset: list[int] = []
    counts = estimates.reshape(table.shape)
    if table.where or table.threshold < len(table.axes) or table.summed is not None:
        return (), np.zeros(())
    for i, predicates in table.axes:
        values = _values(predicates, np.moveaxis(counts, len(subset), 0))
        if values is None:
            return (), np.zeros(())
        if isinstance(predicates, TotalSet):
            counts = values[0]
            continue
        counts = np.moveaxis(values, 0, len(subset))
        subset.append(i)
    return tuple(subset), counts


def _values(predicates: PredicateSet, counts: Floats) -> Floats | None:
    """Return the counts of single values along the first axis, where the queries give them."""
    match predicates:
        case IdentitySet():
            return _on_codes(predicates, counts)
        case TotalSet():
            return counts
        case PrefixSet(size=size, length=length) if size == length:
            return np.diff(counts, axis=0, prepend=0)
        case StackedSet(parts=parts):
            start = 0
            for part in parts:
                if isinstance(part, IdentitySet):
                    return _on_codes(part, counts[start : start + len(part)])
                start += len(part)
        case _:
            pass
    return None


def _on_codes(predicates: IdentitySet, counts: Floats) -> Floats:
    """Return the counts along all codes; those that are not shown have none."""
    spread = np.zeros((predicates.size, *counts.shape[1:]))
    spread[np.asarray(predicates.codes)] = counts
    return spread


def _not_negative(counts: Floats) -> Floats:
    """Return the nearest table of the same total without negative counts."""
    flat = counts.reshape(1, -1)
    total = np.maximum(flat.sum(axis=1), 1.0)
    return onto_simplex(flat, np.ones_like(flat), total).reshape(counts.shape)


def _estimates(path: Path, queries: int) -> Floats:
    try:
        with opened(path, rows=queries) as file:
            if file.schema_arrow.field("estimate").type == pa.float64():
                values = file.read(columns=["estimate"]).column(0).to_numpy()
                if np.isfinite(values).all():
                    return np.asarray(values, dtype=np.float64)
    except UNREADABLE:
        pass
    raise SpecError(f"the proxy's {path} is missing or not as it was written; release it again")
