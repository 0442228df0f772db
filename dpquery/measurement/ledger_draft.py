"""The parts of a measurement that is made in several steps, durable before its commit.

Where a later step follows from the noisy values of an earlier one, a run that ends between the two
must not draw the earlier one again: how it ended may depend on what was drawn, and drawing until a
run succeeds would be another mechanism than the one charged. So every part is made durable before
anything is computed from it, and the run that continues the reservation begins where it ended.
"""

from collections.abc import Callable
from itertools import count, takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpquery.exceptions import LedgerError
from dpquery.measurement.ledger_files import MeasurementFile
from dpquery.measurement.ledger_store import scrubbed


class Draft:
    """The parts of one reserved measurement, in order, each a file of its own.

    Args:
        ledger: the ledger's path, beside which the files lie.
        file: of the part of a number.
    """

    def __init__(self, ledger: Path, file: Callable[[int], MeasurementFile]) -> None:
        """Read nothing yet."""
        self._ledger, self._file = ledger, file
        self._known = 0

    def parts(self) -> list[NDArray[np.int64]]:
        """Return the parts that are durable; LedgerError where one is not as it was written."""
        found: list[NDArray[np.int64]] = []
        with scrubbed(self._ledger):
            while (file := self._file(len(found))).exists():
                content = file.read()
                if len(content) % 8:
                    raise LedgerError(
                        f"the parts of an unfinished measurement beside {self._ledger} are damaged;"
                        " `dpquery ledger status` names it, and `dpquery ledger abandon` gives it "
                        "up: its charge stays spent, and a new run pays anew"
                    )
                found.append(np.frombuffer(content, dtype="<i8").astype(np.int64))
        self._known = len(found)
        return found

    def append(self, values: NDArray[np.int64]) -> None:
        """Make the next part durable, after those that `parts` returned and were appended since."""
        with scrubbed(self._ledger):
            file = self._file(self._known)
            file.write_pending(np.ascontiguousarray(values, dtype="<i8"))
            file.publish()
        self._known += 1

    def clear(self) -> None:
        """Remove all parts, the last first, so that those left are always the first ones.

        They are not read: what is damaged can be given up too.
        """
        with scrubbed(self._ledger):
            there = takewhile(lambda number: self._file(number).exists(), count())
            for number in reversed(list(there)):
                self._file(number).remove()
