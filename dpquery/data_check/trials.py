"""What a check offers to declare, tried before it is shown; made of the records, so private."""

import re
from collections.abc import Mapping
from dataclasses import replace

from dpquery.data_check.file_records import FileRecords
from dpquery.data_check.findings import FileGuess, UndeclaredValues
from dpquery.exceptions import DataError, SpecError
from dpquery.measurement.counting.locations import Data, sources_of
from dpquery.measurement.counting.value_codes import code_of
from dpquery.spec.domain import Attribute, Boolean, Categorical, Column, ColumnKind, Integers
from dpquery.spec.model import Spec
from dpquery.spec.parsing.spec import parse

_TRIAL = """\
dataset: {{id: trial}}
privacy: {{unit: row}}
budget: {{epsilon: 1}}
{other}
domain:
  {line}
workload:
  - {{name: all, product: {{}}}}
"""


def declares_more(
    line: str, attribute: Attribute, odd: Mapping[str, UndeclaredValues], spec: Spec
) -> bool:
    """Return whether a line of YAML declares what an attribute does, and some of what it does not.

    Args:
        line: of the section `domain`.
        attribute: as it is declared.
        odd: what is undeclared, by column.
        spec: that declares it.
    """
    other = re.search(r"^other\s*:.*", spec.text, re.MULTILINE)
    text = _TRIAL.format(other=other[0] if other else "", line=line)
    try:
        (offered,) = parse(text, name="trial", files={}).domain.attributes
    except SpecError:
        return False
    columns = {column.name: column for column in offered.columns}
    known = all(
        _has(columns[column.name], text, spec.file.decimal)
        for column in attribute.columns
        for text in _texts_of(column.kind)
    )
    return known and any(
        _has(column, text, spec.file.decimal) or column.other != odd[column.name].column.other
        for column in offered.columns
        if column.name in odd
        for text, _ in odd[column.name].commonest
    )


def _has(column: Column, text: str, decimal: str) -> bool:
    """Return whether a text is declared."""
    code = code_of(column, decimal)(text.encode("utf-8", "surrogateescape"))
    return 0 <= code < column.length


def _texts_of(kind: ColumnKind) -> list[str]:
    """Return texts that a column declares: all listed ones, or the ends."""
    match kind:
        case Categorical(texts=texts):
            return [text for listed in texts for text in listed]
        case Boolean(true=true, false=false):
            return [*true, *false]
        case Integers(low=low, high=high):
            return [str(low), str(high)]
        case _:
            return []


def tried_layout(layout: FileGuess, data: Data, spec: Spec) -> FileGuess:
    """Return a guess without what would make more lines malformed, or end a release.

    Args:
        layout: the guess.
        data: as `check` takes it.
        spec: declares the layout as it is.
    """
    if layout.mended(spec.file) == spec.file:
        return layout
    before = _faults(data, spec)
    if _faults(data, _with(spec, layout)) <= before:
        return layout
    one_line = replace(layout, newlines_in_quotes=False)
    if layout.newlines_in_quotes and _faults(data, _with(spec, one_line)) <= before:
        remark = (
            "its quotes do not pair up: write the file again with quotes doubled within fields, or "
            "declare `file: {quote: none}` where they are letters like others"
        )
        return replace(one_line, remarks=(*layout.remarks, remark))
    return FileGuess(layout.name, layout.container, is_text=True, names=layout.names)


def _with(spec: Spec, layout: FileGuess) -> Spec:
    return replace(spec, file=layout.mended(spec.file))


def _faults(data: Data, spec: Spec) -> tuple[int, int, int]:
    """Return how much of some data a release cannot read: headers, ends of sources, lines."""
    try:
        file = FileRecords(sources_of(data, spec.file), spec)
        malformed = sum(chunk.malformed for chunk in file.chunks()) if file.columns else 0
    except DataError:
        return 2**30, 0, 0
    return len(file.header.refusals), len(file.failures), malformed
