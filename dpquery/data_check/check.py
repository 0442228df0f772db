"""check() as a straight line: a file held against its spec, for the curator's eyes alone.

No command of a release comes here, and from here nothing leads to the ledger or to noise.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpquery.data_check.file_records import FileRecords
from dpquery.data_check.findings import DataCheck, Malformed, Records
from dpquery.data_check.layout import guessed_layout
from dpquery.data_check.malformed_lines import MalformedLines
from dpquery.data_check.remedies import remedies
from dpquery.data_check.tallies import ColumnTally, PersonTally, columns_of
from dpquery.spec.model import Spec
from dpquery.spec.parsing.spec import load_spec


def check(
    data: Path, spec_path: Path, *, progress: Callable[[str], None] = lambda _: None
) -> DataCheck:
    """Return what a release of a file would count and leave out, and why.

    Args:
        data: the file.
        spec_path: the YAML spec.
        progress: told the share of the file that was read, for the operator's terminal alone.

    Privacy:
        The result is made of the records and is NOT private: it may go no further than they.
        Nothing is written, and the ledger is not opened.

    Raises:
        SpecError: the spec has mistakes.
        DataError: the file cannot be opened, or breaks in its midst.
    """
    spec = load_spec(spec_path)
    file = FileRecords(data, spec)
    layout = guessed_layout(data, file.declared)
    records = _records(file, spec, progress) if file.places else None
    return DataCheck(
        spec, file.header, layout, records, remedies(spec, file.header, layout, records)
    )


def _records(file: FileRecords, spec: Spec, progress: Callable[[str], None]) -> Records:
    """Return what the records hold, read and coded as a release does."""
    tallies = columns_of(spec.domain.attributes, file.places)
    name_of_person = spec.privacy.person if spec.privacy.person in file.places else None
    persons = None if name_of_person is None else PersonTally()
    lines = MalformedLines(file.width)
    total = kept = malformed = 0
    for chunk in file.chunks(lambda share: progress(f"reading the data: {share:.0%}")):
        reasons = np.zeros(chunk.records, np.int32)  # for which a record is left out
        dropping: list[tuple[ColumnTally | PersonTally, NDArray[np.bool_]]] = []
        for tally in tallies:
            undeclared = tally.add(chunk.texts[tally.column.name])
            if not tally.column.other:
                reasons += undeclared
                dropping.append((tally, undeclared))
        if persons is not None and name_of_person is not None:
            blank = persons.blanks(chunk.texts[name_of_person])
            reasons += blank
            dropping.append((persons, blank))
            persons.add(chunk.texts[name_of_person], reasons == 0)
        for reason, left_out in dropping:
            reason.add_alone(int((left_out & (reasons == 1)).sum()))
        total += chunk.records + chunk.malformed
        kept += int((reasons == 0).sum())
        malformed += chunk.malformed
        lines.add(chunk.lines, chunk.malformed)
    dropped = name_of_person is not None or any(not own.column.other for own in tallies)
    rows = None if persons is None else persons.result()
    kept -= 0 if rows is None else rows.beyond(spec.privacy.max_rows)
    return Records(
        total,
        kept + (0 if dropped else malformed),
        Malformed(malformed, dropped, lines.reasons(), lines.looked_at),
        tuple(tally.result() for tally in tallies),
        rows,
    )
