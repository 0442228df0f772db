"""What a plan holds about RAP: its settings, what it reached on a public proxy, and the choice.

RAP's error depends on the data, so that these figures are simulated, at one guarantee, and never
promised. A plan is input from outside when it is read: every value is checked as it is taken.
"""

import re
from dataclasses import dataclass, fields
from fractions import Fraction

from dpquery.strategy.rap import RapSettings, decode_settings, encode_settings
from dpquery.untrusted.json_values import Json, JsonValue, integer, number_of, text_of

_FRACTION = re.compile(r"[0-9]{1,1000}(/[0-9]{1,1000})?")
_EPSILONS = (Fraction(1, 10**6), Fraction(10**6))
_LEAST_DELTA = Fraction(1, 10**100)


@dataclass(frozen=True)
class PlannedRap:
    """RAP as it was rehearsed; errors in counts.

    Attributes:
        settings: what was rehearsed, and what a release carries out.
        epsilon: of the guarantee that was rehearsed.
        delta: of the same; above 0.
        proxy: in words, what stood in for the data.
        repetitions: how often it was rehearsed.
        rmse: root mean square error over all queries, weighted as the workload weighs them: the
            mean over the repetitions.
        rmse_spread: its standard deviation over the repetitions; 0 where there was one.
        max_error: the largest absolute error over all queries: the mean over the repetitions.
        max_error_spread: as of the RMSE.
        linear_rmse: what the better linear strategy is expected to reach: weighted RMSE.
        linear_max_error: the same: largest absolute error over all queries.
        margin: RAP is the better one where its error is below so many times the linear one.
        preferred: whether a release takes RAP.
    """

    settings: RapSettings
    epsilon: Fraction
    delta: Fraction
    proxy: str
    repetitions: int
    rmse: float
    rmse_spread: float
    max_error: float
    max_error_spread: float
    linear_rmse: float
    linear_max_error: float
    margin: float
    preferred: bool


def encode_rap(relaxed: PlannedRap) -> dict[str, JsonValue]:
    """Return it as JSON values."""
    values = {own.name: getattr(relaxed, own.name) for own in fields(relaxed)}
    return values | {
        "settings": encode_settings(relaxed.settings),
        "epsilon": str(relaxed.epsilon),
        "delta": str(relaxed.delta),
    }


def decode_rap(raw: Json) -> PlannedRap:
    """Return what JSON values hold; TypeError, ValueError or LookupError where they do not."""
    epsilon, delta = _fraction(raw["epsilon"]), _fraction(raw["delta"])
    if not _EPSILONS[0] <= epsilon <= _EPSILONS[1] or not _LEAST_DELTA <= delta < 1:
        raise ValueError("guarantee")
    preferred = raw["preferred"]
    if not isinstance(preferred, bool):
        raise TypeError("preferred")
    return PlannedRap(
        settings=decode_settings(raw["settings"]),
        epsilon=epsilon,
        delta=delta,
        proxy=text_of(raw["proxy"]),
        repetitions=integer(raw["repetitions"], 1),
        rmse=number_of(raw["rmse"]),
        rmse_spread=number_of(raw["rmse_spread"]),
        max_error=number_of(raw["max_error"]),
        max_error_spread=number_of(raw["max_error_spread"]),
        linear_rmse=number_of(raw["linear_rmse"]),
        linear_max_error=number_of(raw["linear_max_error"]),
        margin=number_of(raw.get("margin", 1)),  # plans once asked for none
        preferred=preferred,
    )


def _fraction(value: JsonValue) -> Fraction:
    text = text_of(value)
    if not _FRACTION.fullmatch(text):
        raise ValueError("fraction")
    return Fraction(text)
