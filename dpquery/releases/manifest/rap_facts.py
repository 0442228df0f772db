"""What release.json says of a run whose answers are read from relaxed rows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SimulatedFacts:
    """Errors on public data in place of the records, simulated when the plan was made.

    Attributes:
        proxy: the public data, in words.
        repetitions: number of runs.
        rmse: root mean square error of all answers, as the workload weighs them, in counts: the
            mean of the runs.
        rmse_spread: standard deviation of that from run to run.
        max_error: largest error of any answer, in counts, the mean of the runs.
        max_error_spread: standard deviation of that from run to run.
        weighted: whether the workload weighs its items differently.
    """

    proxy: str
    repetitions: int
    rmse: float
    rmse_spread: float
    max_error: float
    max_error_spread: float
    weighted: bool = False


@dataclass(frozen=True)
class RapFacts:
    """A run of relaxed adaptive projection: what was chosen and measured, and the resulting rows.

    Attributes:
        rounds: times that queries were chosen and measured; one round of none chosen measures all.
        selected: queries that each round chose.
        relaxed_rows: rows of the relaxed data that every answer is read from.
        total: the number of records that answers are scaled to: counted with noise and weighed with
            the declared number, or as it was declared.
        total_std: standard deviation of the noise it was counted with; None where it was declared.
        selection_scale: a query is e times as likely to be chosen as one whose answer was this
            many counts less wrong; None where no query had to be chosen.
        noise_std: for each round the standard deviation of the noise on its counts, in counts.
        simulated: errors on public data at this guarantee; None where the plan has none.
        declared: the number of records that the noisy count was weighed with, by inverse variances,
            as if it had a standard deviation of half of itself; None where there was no weighing.
        rows_sha256: of the numbers in relaxed_rows.parquet, row after row, as little-endian 32-bit
            floats; empty where an older dpquery did not keep it.
    """

    rounds: int
    selected: int
    relaxed_rows: int
    total: float
    total_std: float | None
    selection_scale: float | None
    noise_std: tuple[float, ...]
    simulated: SimulatedFacts | None
    declared: int | None = None
    rows_sha256: str = ""


@dataclass(frozen=True)
class AdaptiveFacts:
    """A run of adaptive measurement: what was chosen and measured, and the resulting rows.

    Attributes:
        candidates: tables that could be measured.
        one_way: tables of one attribute, each of which was measured first.
        one_way_std: standard deviation of the noise on their counts, in counts.
        rounds: attributes of the table that each round chose and measured, as "age x sex".
        noise_std: for each round the standard deviation of the noise on its counts.
        relaxed_rows: as of RAP; and so are the others.
        total: the number of records that answers are scaled to: estimated from the noisy tables of
            one attribute and weighed with the declared number, or as it was declared.
        total_std: standard deviation of the noise of that estimate; None where it was declared.
        simulated: errors on public data at this guarantee; None where the plan has none.
        declared: the number of records that the estimate was weighed with; None where it was not.
        rows_sha256: of the numbers in relaxed_rows.parquet.
        unbiased: number of answers that the measured tables give an unbiased estimate of too.
        unbiased_rmse: root mean square of the standard errors of these; None where there are none.
    """

    candidates: int
    one_way: int
    one_way_std: float
    rounds: tuple[str, ...]
    noise_std: tuple[float, ...]
    relaxed_rows: int
    total: float
    total_std: float | None
    simulated: SimulatedFacts | None
    declared: int | None
    rows_sha256: str
    unbiased: int = 0
    unbiased_rmse: float | None = None
