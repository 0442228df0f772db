"""Whether a record, or a person, moves the measurements as far as was declared, and no further.

The law of the noise is known, so the best event is one of the likelihood ratio: where it passes a
threshold. The threshold is chosen on a third of the values, the event's probabilities are bounded
on the rest [Clopper-Pearson], and no mechanism that keeps its claim can have such probabilities.
"""

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from scipy.special import ndtri

from dpquery.arrays import Floats, Ints
from dpquery.audit.cases import Size, writers
from dpquery.audit.end_to_end import readers
from dpquery.audit.measurements import RepeatedMeasurements, repeated_measurements
from dpquery.audit.planned_cases import cases, private_folder
from dpquery.audit.statistics import (
    ALPHA,
    Finding,
    chi_square,
    clopper_pearson,
    combined,
    pure_loss,
)
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.spec.parsing.read import parse
from dpquery.strategy.strategy import Noise

_PERSONS, _YEARS = 6_000, 5
_SPEC = f"""\
dataset: {{id: made-up}}
privacy: {{unit: {{person: id, max_rows: 2}}}}
budget: {{epsilon: 1}}
domain: {{year: {{range: [1, {_YEARS}]}}}}
workload:
  - {{name: years, product: {{year: identity}}}}
  - {{name: rows, rows_per_person: {{up_to: {_YEARS + 1}}}}}
"""


def rows_of_persons() -> Finding:
    """Count a panel that is sorted by year, and compare the years of the rows that count.

    Every kind of source has the panel, and the p-values of all of them are taken as one test.
    Of the two rows of each person one has the number of that person's rows, of any year, and the
    other the last code: so many persons, and as many rows more, have one number each. The rows of a
    person are two different years of five, so the counts of the years spread 3/4 as much as those
    of as many independent rows: they are blown up by that, about their mean.
    """
    spec = parse(_SPEC, name="made-up", files={})
    years = np.repeat(np.arange(1, _YEARS + 1), _PERSONS)
    panel = pa.table({"year": years, "id": np.tile(np.arange(_PERSONS), _YEARS)})
    of_years, of_numbers, kinds = [], [], writers()
    for write in kinds.values():
        with private_folder() as folder:
            location = write(panel, folder)
            table = tabulate(location, spec=spec, subsets=[(0, 1)])[0, 1][:_YEARS]
        p_value, p_numbered = _even(table)
        of_years.append(p_value)
        of_numbers.append(p_numbered)
    p_value, p_numbered = combined(of_years), combined(of_numbers)
    return Finding(
        f"{_PERSONS:,} persons of {_YEARS} rows, sorted by year, at most 2 of each: "
        + ", ".join(kinds),
        "of a person max_rows rows count, each as likely as the others, and one has their number",
        min(p_value, p_numbered) >= ALPHA,
        f"the years of the rows that count are even with a p-value of {p_value:.2g}, and of those "
        f"that have the number {_YEARS} with {p_numbered:.2g}",
        tests=2,
    )


def _even(table: Ints) -> tuple[float, float]:
    """Return p-values of all years being as likely: of the rows that count, of those numbered.

    Both are 0 where not every person has max_rows rows and one number. table: (years, numbers).
    """
    years, numbers = table.sum(axis=1), table.sum(axis=0)
    expected = np.zeros_like(numbers)
    expected[[_YEARS - 1, -1]] = _PERSONS
    if not (numbers == expected).all():
        return 0.0, 0.0
    mean = 2 * _PERSONS / _YEARS
    spread = np.rint(mean + (years - mean) * np.sqrt((_YEARS - 1) / (_YEARS - 2))).astype(np.int64)
    of_numbered = table[:, _YEARS - 1]
    return (
        chi_square(spread, np.full(_YEARS, mean)),
        chi_square(of_numbered, np.full(_YEARS, _PERSONS / _YEARS)),
    )


_QUANTILES = np.linspace(0.02, 0.98, 60)
_HAIR = 1e-9


def neighbours(size: Size) -> Iterator[Finding]:
    """Bound the privacy loss from below, for every case that is measured many times.

    That holds whichever rows of a person count; the last findings are that none is
    preferred, and that of all kinds of sources one record more is one more in its own cell.
    """
    for case in cases(size):
        if case.repeated:
            yield _privacy_loss(repeated_measurements(case, size))
    yield rows_of_persons()
    yield from readers()


def _privacy_loss(measurements: RepeatedMeasurements) -> Finding:
    """Compare the privacy loss that the best event shows with the claim."""
    noise, case = measurements.planned.noise, measurements.planned.case
    shifts = (measurements.exact - measurements.other_exact).astype(np.int64)
    ratios = [
        noise.law.log_ratio((values.astype(object) - measurements.exact).astype(np.int64), -shifts)
        for values in (measurements.values, measurements.other_values)
    ]
    amount, reached = float(noise.amount), shown_loss(*ratios, noise=case.noise)
    name, claim = {
        "laplace": ("epsilon", amount),
        "gaussian": ("mu = sqrt(2 rho)", math.sqrt(2 * amount)),
        "rounded": ("mu", math.sqrt(amount)),
    }[noise.law.noise]
    return Finding(
        f"{measurements.planned.subject}, {_unit(measurements)}",
        "no event tells neighbouring data apart better than is claimed",
        reached <= claim * (1 + 1e-12),
        f"{name} is at least {reached:.3f}, and {claim:.4g} is claimed: {reached / claim:.0%} of "
        f"it is what {len(ratios[0]):,} draws of each can show",
        neighbours=1,
        replicates=len(measurements.values),
        tests=1,
    )


def shown_loss(ratios: Floats, other_ratios: Floats, *, noise: Noise) -> float:
    """Return the loss that the event shows which distinguishes two data sets best."""
    third = len(ratios) // 3
    left = len(ratios) - third
    tried, other_tried = ratios[:third], other_ratios[:third]
    # A hair below each value: many Laplace ratios are all the largest, but for their rounding.
    thresholds = np.quantile(np.concatenate([tried, other_tried]), _QUANTILES) - _HAIR

    def loss(hits: int, other_hits: int) -> float:
        p_low = clopper_pearson(hits, left, alpha=ALPHA)[0]
        # the least epsilon, or the least mu of Gaussian noise, that allows for an event
        q_high = clopper_pearson(other_hits, left, alpha=ALPHA)[1]
        if noise == "laplace":
            return pure_loss(p_low, q_high)
        return max(0.0, float(ndtri(p_low) - ndtri(q_high)))

    def expected_loss(threshold: float) -> float:
        return loss(*(int((drawn > threshold).mean() * left) for drawn in (tried, other_tried)))

    best = max(thresholds.tolist(), key=expected_loss)
    return loss(*(int((drawn[third:] > best).sum()) for drawn in (ratios, other_ratios)))


def _unit(measurements: RepeatedMeasurements) -> str:
    privacy = measurements.planned.spec.privacy
    unit = "a row" if privacy.person is None else f"a person of up to {privacy.max_rows} rows"
    return f"{unit} {'replaced' if privacy.neighbours == 'replace' else 'more'}"
