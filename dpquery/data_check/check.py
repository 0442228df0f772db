"""check() as a straight line: a file held against its spec, for the curator's eyes alone.

No command of a release comes here, and from here nothing leads to the ledger or to noise.
"""

from pathlib import Path

import numpy as np

from dpquery.arrays import Bools
from dpquery.data_check.findings import (
    ColumnTally,
    DataCheck,
    Malformed,
    PersonTally,
    Records,
    ReplicateTally,
    WeightTally,
)
from dpquery.data_check.layout import guessed_layout, malformed_lines
from dpquery.data_check.records import FileRecords, RepeatedSources, RowOrder, tried_layout
from dpquery.data_check.remedies import remedies
from dpquery.measurement.counting.locations import Data, sources_of
from dpquery.measurement.counting.text_files import TextFile
from dpquery.spec.parsing.read import load_spec
from dpquery.spec.spec import Spec


def check(data: Data, spec_path: Path) -> DataCheck:
    """Return what a release of some data would count and leave out, and why.

    Privacy:
        The result is made of the records and is NOT private: it may go no further than they.
        Nothing is written, and the ledger is not opened.

    Raises:
        SpecError: the spec has mistakes.
        DataError: a file cannot be opened.
    """
    spec = load_spec(spec_path)
    sources = sources_of(data, spec.file)
    file = FileRecords(sources, spec)
    texts = [source for source in sources if isinstance(source, TextFile)]
    odd = [source for source in texts if source not in file.readable]
    first = next(iter(odd or texts), None)  # of those that have something wrong, if any
    layout = None if first is None else guessed_layout(first.path, file.declared)
    if layout is not None and layout.is_text:
        layout = tried_layout(layout, data, spec)
    records = _records(file, spec) if file.columns and file.readable else None
    lines = remedies(spec, layout, records)
    return DataCheck(spec, file.header, layout, records, tuple(file.failures), lines)


def _records(file: FileRecords, spec: Spec) -> Records:
    """Return what the records hold, read and coded as a release does."""
    tallies = [
        ColumnTally(attribute, column, spec.file.decimal)
        for attribute in spec.domain.in_data
        for column in attribute.columns
        if column.name in file.columns
    ]
    name_of_person = spec.privacy.person if spec.privacy.person in file.columns else None
    persons = None if name_of_person is None else PersonTally(spec.file.decimal)
    weight, weights, replicates = spec.privacy.weight, None, _replicate_tally(file, spec)
    if weight is not None and weight.name in file.columns:
        weights = WeightTally(weight, spec.file.decimal)
    order = None
    if name_of_person is not None and spec.privacy.keep == "first":
        columns = [tally.column for tally in tallies]
        order = RowOrder(name_of_person, columns, spec.file.decimal)
    sources = RepeatedSources()
    total = kept = odd = malformed = 0
    for chunk in file.chunks():
        sources.add(chunk.source, list(chunk.texts.values()))
        if order is not None:
            order.add(chunk.texts)
        reasons = np.zeros(chunk.records, np.int32)  # for which a record is left out
        touched = np.zeros(chunk.records, np.bool_)
        dropping: list[tuple[ColumnTally | PersonTally, Bools]] = []
        for tally in tallies:
            undeclared = tally.add(chunk.texts[tally.column.name])
            touched |= undeclared
            if tally.column.drops:
                reasons += undeclared
                dropping.append((tally, undeclared))
        if persons is not None and name_of_person is not None:
            blank = persons.blanks(chunk.texts[name_of_person])
            reasons += blank
            dropping.append((persons, blank))
            persons.add(chunk.texts[name_of_person], reasons == 0)
        if weights is not None and weight is not None:
            weights.add(chunk.texts[weight.name], reasons == 0)
        if replicates is not None:
            replicates.add(chunk.texts, reasons == 0)
        for reason, left_out in dropping:
            reason.add_alone(int((left_out & (reasons == 1)).sum()))
        total += chunk.records + chunk.malformed
        kept += int((reasons == 0).sum())
        odd += int(touched.sum())
        malformed += chunk.malformed
    dropped = name_of_person is not None or any(tally.column.drops for tally in tallies)
    rows = None if persons is None else persons.result(order.result() if order else ())
    kept -= 0 if rows is None else rows.beyond(spec.privacy.max_rows)
    return Records(
        total,
        kept + (0 if dropped else malformed),
        odd,
        Malformed(malformed, dropped, *malformed_lines(file.readable, malformed)),
        tuple(tally.result() for tally in tallies),
        rows,
        None if weights is None else weights.result(),
        None if replicates is None else replicates.result(),
        sources.result(),
    )


def _replicate_tally(file: FileRecords, spec: Spec) -> ReplicateTally | None:
    """Return what looks at replicate weights, if the file has all that are declared."""
    weight = spec.privacy.weight
    if weight is None or weight.replicates is None:
        return None
    names = weight.replicates.names
    if not {weight.name, *names} <= set(file.columns):
        return None
    return ReplicateTally(weight, names, spec.file.decimal)
