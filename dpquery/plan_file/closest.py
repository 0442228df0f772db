"""The rehearsal of answers that may be biased, as a plan keeps it: what errs least.

A plan is input from outside when it is read: what is decoded here may be hostile.
"""

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Annotated, Literal

from dpquery.plan_file.rap_settings import check_guarantee
from dpquery.strategy.objectives import Objective
from dpquery.untrusted.json_values import Count, Json, JsonValue, NotNegative, Within, record

BiasedColumn = Literal["consistent", "shrunk"]
AnswerColumn = Literal["estimate", BiasedColumn]
"""The columns that are compared; the first is the unbiased one."""
MOST_CONTENDERS = 64


@dataclass(frozen=True)
class Contender:
    """One column of the answers from one strategy; errors in counts.

    Attributes:
        strategy: the name of what is measured.
        column: which of the answers.
        rmse: weighted root mean square error over all queries: known for estimates, simulated for
            the others: the mean over the runs.
        rmse_spread: its standard deviation over the runs; 0 for estimates.
        max_error: the largest absolute error, expected or simulated in the same way.
        max_error_spread: as of the RMSE.
    """

    strategy: str
    column: AnswerColumn
    rmse: NotNegative
    rmse_spread: NotNegative
    max_error: NotNegative
    max_error_spread: NotNegative

    def error(self, objective: Objective) -> float:
        """Return what the objective minimises."""
        return self.rmse if objective == "rmse" else self.max_error


@dataclass(frozen=True)
class PlannedClosest:
    """What was compared at a guarantee, and what a release gives its readers.

    Attributes:
        epsilon: of the guarantee.
        delta: of the same.
        proxy: in words, what stood in for the data.
        repetitions: how many runs were simulated.
        contenders: what was compared.
        chosen: the place of the one that errs least.
    """

    epsilon: Fraction
    delta: Fraction
    proxy: str
    repetitions: Count
    contenders: tuple[Contender, ...]
    chosen: Annotated[int, Within(0, MOST_CONTENDERS)]

    @property
    def best(self) -> Contender:
        """The contender that errs least."""
        return self.contenders[self.chosen]


def encode_closest(closest: PlannedClosest) -> dict[str, JsonValue]:
    """Return the rehearsal as JSON values."""
    return vars(closest) | {
        "epsilon": str(closest.epsilon),
        "delta": str(closest.delta),
        "contenders": [asdict(contender) for contender in closest.contenders],
    }


def decode_closest(raw: Json) -> PlannedClosest:
    """Return the rehearsal; TypeError, ValueError or LookupError where it is damaged."""
    closest = record(PlannedClosest, raw)
    check_guarantee(closest.epsilon, closest.delta)
    if closest.chosen >= len(closest.contenders):
        raise ValueError("chosen")
    return closest
