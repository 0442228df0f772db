"""The records of a file, parsed by the very functions that a release parses them with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpquery.data_check.findings import Header
from dpquery.exceptions import DataError
from dpquery.measurement.counting.csv_lines import Texts, chunks, columns
from dpquery.measurement.counting.tabulate import _header, _open
from dpquery.spec.model import Spec

_CHUNK = 2**24


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some records of a file.

    Attributes:
        texts: the declared columns by name.
        records: how many of them could be split into fields.
        malformed: how many could not.
        lines: the bytes that they were read from.
    """

    texts: dict[str, Texts]
    records: int
    malformed: int
    lines: bytes


class FileRecords:
    """A file held against a spec: its header, and the declared columns that can be read."""

    def __init__(self, path: Path, spec: Spec) -> None:
        """Read the header.

        Raises:
            DataError: the file cannot be opened.
        """
        columns_declared = [c for own in spec.domain.attributes for c in own.columns]
        declared = [column.name for column in columns_declared]
        if spec.privacy.person is not None:
            declared.append(spec.privacy.person)
        self.declared = tuple(dict.fromkeys(declared))
        self._path = path
        with _open(path) as file:
            try:
                names = tuple(_header(file, path))
            except DataError:
                self.width, self.places, self.header = 0, dict[str, int](), Header(None)
                return
        self.width = len(names)
        self.places = {name: names.index(name) for name in self.declared if names.count(name) == 1}
        self.header = Header(
            names,
            missing=tuple(name for name in self.declared if name not in names),
            repeated=tuple(name for name in self.declared if names.count(name) > 1),
            undeclared=tuple(name for name in names if name not in self.declared),
        )

    def chunks(self, progress: Callable[[float], None]) -> Iterator[Chunk]:
        """Yield all records below the header, in order.

        Raises:
            DataError: the file breaks in its midst.
        """
        wanted = list(self.places.values())
        with _open(self._path) as file:
            length = max(1, self._path.stat().st_size)
            _header(file, self._path)
            for lines in chunks(file, _CHUNK):
                texts, malformed = columns(lines, width=self.width, wanted=wanted)
                records = sum(index.size for _, index in texts[0])
                yield Chunk(dict(zip(self.places, texts, strict=True)), records, malformed, lines)
                progress(min(1.0, file.tell() / length))
