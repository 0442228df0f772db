"""What reconstruction hands to the release: the answers of one table, each with its error."""

from dataclasses import dataclass

from dpquery.arrays import Floats, Ints
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
        stated: (m,) 0 for what was measured, 1 for what is impossible by a public fact, 2 for what
            is known by one; None where there are no facts.
    """

    table: Table
    estimate: Floats
    std_error: Floats | None
    half_width: Floats | None
    extra: tuple[Floats | Ints | None, ...] = ()
    stated: Ints | None = None
