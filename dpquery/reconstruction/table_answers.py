"""What reconstruction hands to the release: the answers of one table, each with its error."""

from dataclasses import dataclass

from numpy import float64, int64
from numpy.typing import NDArray

from dpquery.spec.model import Table


@dataclass(frozen=True, eq=False)
class TableAnswers:
    """Answers of one table in row order.

    Attributes:
        table: the table of the spec that these answer.
        estimate: (m,) estimates, in counts; unbiased where there is a standard error.
        std_error: (m,) standard errors of the noise, in counts; None where the answers have none,
            as those from relaxed rows: their error depends on the data.
        half_width: (m,) half widths of the noise interval at the release's confidence level; None
            where there is no standard error.
        extra: (m,) values of each extra column asked for, in order; None where the table has none.
    """

    table: Table
    estimate: NDArray[float64]
    std_error: NDArray[float64] | None
    half_width: NDArray[float64] | None
    extra: tuple[NDArray[float64] | NDArray[int64] | None, ...] = ()
