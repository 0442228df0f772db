"""Every error a user can cause, with the exit code it ends in.

No message may hold a value read from the data: column names and declared labels only. Nor one of
a file that stands where a spec, or a file beside it, belongs: it may be the data.
"""

from typing import ClassVar


class DpqueryError(Exception):
    """Root of all errors that dpquery reports in one line and an exit code."""

    exit_code: ClassVar[int] = 70


class SpecError(DpqueryError):
    """The spec, a plan or an option is invalid; holds one line a mistake."""

    exit_code = 2


class UnsupportedWorkloadError(SpecError):
    """The workload is valid but no strategy here can answer it within the stated limits."""


class OutOfTimeError(DpqueryError):
    """An optimiser was stopped at plan's time limit; the other candidates stand."""


class LargeDeltaWarning(UserWarning):
    """The delta that a release is asked for promises next to nothing."""


class BudgetExceededError(DpqueryError):
    """The ledger refuses a charge that would pass the declared cap.

    Attributes:
        exactly: the charge and what is left, to the last digit; nothing where there is no charge.
    """

    exit_code = 3

    def __init__(self, message: str, *, exactly: str = "") -> None:
        """Keep the digits beside the message, which is in round numbers."""
        super().__init__(message)
        self.exactly = exactly


class LedgerError(DpqueryError):
    """The ledger is missing, damaged, or kept where it cannot be kept safely."""

    exit_code = 4


class PlanConflictError(DpqueryError):
    """The plan contradicts what the ledger or an existing release folder holds."""

    exit_code = 5


class DataError(DpqueryError):
    """The data file cannot be read or does not have the declared columns."""

    exit_code = 6


class ChangedDataError(DpqueryError):
    """The data is missing, or was changed after the measurement that the ledger would repeat."""

    exit_code = 7


class LedgerLockedError(DpqueryError):
    """Another process holds the ledger; trying again later is safe."""

    exit_code = 75
