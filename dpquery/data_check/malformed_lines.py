"""Why lines are malformed, and where the first ones stand."""

from dpquery.measurement.counting.csv_lines import MAX_LINE, fields

_LOOKED_AT = 1000  # malformed lines: the first ones say what is wrong with most


class MalformedLines:
    """The reasons of the first malformed lines of a file."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._line = 2  # the first below the header
        self._reasons: dict[str, tuple[int, int]] = {}
        self.looked_at = 0

    def add(self, lines: bytes, malformed: int) -> None:
        """Look at a chunk that has so many malformed lines."""
        if malformed and self.looked_at < _LOOKED_AT:
            for place, line in enumerate(lines.split(b"\n")):
                if line in {b"", b"\r"} or fields(line, self._width) is not None:
                    continue
                reason = self._reason(line)
                number, first = self._reasons.get(reason, (0, self._line + place))
                self._reasons[reason] = number + 1, first
                self.looked_at += 1
                if self.looked_at == _LOOKED_AT:
                    break
        self._line += lines.count(b"\n")

    def _reason(self, line: bytes) -> str:
        if len(line) > MAX_LINE:
            return "longer than a mebibyte"
        line = line.removesuffix(b"\r")
        if b"\0" in line or b"\r" in line:
            return "a NUL or a carriage return within the line"
        if line.count(b'"') % 2:
            return "quotes that do not pair up within the line"
        number = line.count(b",") + 1
        if b'"' in line:
            return "quotes within a field, or another number of fields than the header"
        return f"has {number} field{'s' * (number > 1)}, the header {self._width}"

    def reasons(self) -> tuple[tuple[str, int, int], ...]:
        """Return (what is wrong, how many, line of the first), commonest first."""
        ordered = sorted(self._reasons.items(), key=lambda own: -own[1][0])
        return tuple((reason, number, first) for reason, (number, first) in ordered)
