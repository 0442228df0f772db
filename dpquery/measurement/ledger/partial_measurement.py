"""The parts of a measurement drawn in several steps, each durable before the next.

Where a later step follows from the noisy values of an earlier one, a run that ends between the two
must not draw the earlier one again: how it ended may depend on what was drawn, and drawing until a
run succeeds would be another mechanism than the one charged. So every part is made durable before
anything is computed from it, and the run that continues the reservation begins where it ended.

No event of the ledger names a part, so every part seals itself: it ends in a digest of its file's
name, which holds its key, reservation and number, of the seal of the part before, and of its
values. A part that was damaged, cut, or put in the place of another is refused. The seal has no
key: it finds accidents, and the ledger's folder is its owner's alone. A part that is lost with its
file is drawn again, which is harmless as long as the loss does not depend on what was drawn.
"""

import hashlib
from collections.abc import Callable
from itertools import count, takewhile
from pathlib import Path

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import LedgerError
from dpquery.measurement.ledger.database import scrubbed
from dpquery.measurement.ledger.files import MeasurementFile

_SEAL = hashlib.sha256().digest_size


class PartialMeasurement:
    """The parts of one reserved measurement, in order, each a file of its own.

    Args:
        ledger: the ledger's path, beside which the files lie.
        file: of the part of a number.
    """

    def __init__(self, ledger: Path, file: Callable[[int], MeasurementFile]) -> None:
        """Name the files; reads nothing."""
        self._ledger, self._file = ledger, file
        self._count, self._seal = 0, b""

    def parts(self) -> list[Ints]:
        """Return the parts that are durable; LedgerError where one is not as it was written."""
        self._seal = b""
        parts: list[Ints] = []
        with scrubbed(self._ledger):
            while (file := self._file(len(parts))).exists():
                content = file.read()
                values, seal = content[:-_SEAL], content[-_SEAL:]
                if len(values) % 8 or seal != self._sealing(file, values):
                    raise LedgerError(
                        f"the parts of an unfinished measurement beside {self._ledger} are damaged,"
                        " or begun by an earlier version; `dpquery ledger status` names it, and "
                        "`dpquery ledger abandon` gives it up: its charge stays spent, and a new "
                        "run pays anew"
                    )
                self._seal = seal
                parts.append(np.frombuffer(values, dtype="<i8").astype(np.int64))
        self._count = len(parts)
        return parts

    def append(self, values: Ints) -> None:
        """Write the next part durably, behind those that are there."""
        with scrubbed(self._ledger):
            file, words = self._file(self._count), np.ascontiguousarray(values, dtype="<i8")
            seal = self._sealing(file, words.tobytes())
            file.write_pending(np.concatenate([words, np.frombuffer(seal, dtype="<i8")]))
            file.publish()
        self._count, self._seal = self._count + 1, seal

    def clear(self) -> None:
        """Remove all parts, the last first, so that those left are always the first ones.

        They are not read: what is damaged can be given up too.
        """
        with scrubbed(self._ledger):
            numbers = takewhile(lambda number: self._file(number).exists(), count())
            for number in reversed(list(numbers)):
                self._file(number).remove()
        self._count, self._seal = 0, b""

    def _sealing(self, file: MeasurementFile, values: bytes) -> bytes:
        """Return the seal of a part that follows those read and written so far."""
        named = f"{file.name} {len(values)} ".encode()
        return hashlib.sha256(named + self._seal + values).digest()
