"""Why lines are malformed, and where the first ones stand."""

from collections.abc import Iterable, Iterator

from dpquery.limits import MAX_LINE
from dpquery.measurement.counting.csv_lines import Dialect, fields
from dpquery.measurement.counting.sources import Source
from dpquery.measurement.counting.text_files import TextFile

_LOOKED_AT = 1000  # malformed lines: the first ones say what is wrong with most
_PIECE = 2**22


def malformed_lines(
    sources: Iterable[Source], number: int
) -> tuple[tuple[tuple[str, int, str], ...], int]:
    """Return (what is wrong, how many, place of the first) of the first malformed lines.

    Args:
        sources: of those, files of text have lines.
        number: how many malformed lines there are.

    Returns:
        The reasons, commonest first, and of how many lines they are.
    """
    reasons: dict[str, tuple[int, str]] = {}
    looked_at = 0
    wanted = min(number, _LOOKED_AT)
    for source in sources:
        if not isinstance(source, TextFile) or source.dialect.newlines_in_quotes:
            continue  # of a record that goes over lines no number says where it stands
        for line, reason in _reasons(source) if looked_at < wanted else ():
            so_far, first = reasons.get(reason, (0, f"line {line:,} of {source.path.name}"))
            reasons[reason] = so_far + 1, first
            looked_at += 1
            if looked_at == wanted:
                break
    ordered = sorted(reasons.items(), key=lambda item: -item[1][0])
    return tuple((reason, so_far, first) for reason, (so_far, first) in ordered), looked_at


def _reasons(file: TextFile) -> Iterator[tuple[int, str]]:
    """Yield the number of each malformed line of a file, and what is wrong with it."""
    width = len(file.header() or ())
    before = 2  # the first line below the header
    for chunk in file.chunks(_PIECE):
        for place, line in enumerate(chunk.split(b"\n")):
            if line not in {b"", b"\r"} and fields(line, width, file.dialect) is None:
                yield before + place, _reason(line, width, file.dialect)
        before += chunk.count(b"\n")


def _reason(line: bytes, width: int, dialect: Dialect) -> str:
    if len(line) > MAX_LINE:
        return "longer than a mebibyte"
    line = line.removesuffix(b"\r")
    if b"\0" in line or b"\r" in line:
        return "a NUL or a carriage return within the line"
    quotes = line.count(dialect.quote) if dialect.quote else 0
    if quotes % 2:
        return "quotes that do not pair up within the line"
    if quotes:
        return f"quotes within a field, or other than {width} fields"
    number = line.count(dialect.delimiter) + 1
    return f"has {number} field{'s' * (number > 1)}, the header {width}"
