"""All sources of noise against the exact law, and the chunks of one draw against each other."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from dpquery.arrays import Ints
from dpquery.audit.cases.specs_and_records import Size
from dpquery.audit.checks.dependence import dependence
from dpquery.audit.findings import Finding
from dpquery.audit.statistics import (
    ALPHA,
    NoiseDistribution,
    chi_square,
    combined,
    goodness_of_fit,
)
from dpquery.measurement.accounting import Guarantee, GuaranteeKind
from dpquery.measurement.noise.exact_noise import BULK_ABOVE, draw, source
from dpquery.strategy.noise_kinds import Law

# Small scales and no powers of two among them: there a biased sampler has been shipped before.
SCALES: dict[Law, tuple[float, ...]] = {
    "laplace": (1.0, 2.0, 5.0, 3.3, 999_983.0),
    "gaussian": (1.0, 2.0, 3.7, 12.0, 999_983.0),
    "rounded": (1.0, 1.5, 3.7, 40.0, 999_983.0),
}
GUARANTEES: dict[Law, GuaranteeKind] = {"laplace": "pure", "gaussian": "zcdp", "rounded": "gdp"}
_BULK_DRAWS = 4  # times those of the slow source
_REMAINDERS = 64
_CHUNKED = 200_000  # of one draw: two chunks of `draw`, seven of the bulk sampler


def sampler(size: Size) -> Iterator[Finding]:
    """Test what `draw` adds to zeros against the exact distribution, for all sources."""
    for noise, scales in SCALES.items():
        for scale in scales:
            if noise != "rounded":  # of which both draws would be of the one source that has it
                yield _checked(noise, scale, at_once=BULK_ABOVE, draws=size.draws)
            yield _checked(noise, scale, at_once=None, draws=_BULK_DRAWS * size.draws)
    for noise, scales in SCALES.items():
        yield _chunks(noise, max(scales))


def _checked(noise: Law, scale: float, *, at_once: int | None, draws: int) -> Finding:
    """Test one scale; at most `at_once` numbers are drawn in one call, or all of them."""
    batch = draws if at_once is None else min(at_once, draws)
    total = batch * max(1, draws // batch)
    values = np.concatenate([_noise(noise, scale, batch) for _ in range(total // batch)])
    p = goodness_of_fit(values, NoiseDistribution(noise, Fraction(scale)))
    return Finding(
        "sampler",
        f"{source(batch, GUARANTEES[noise])}, {noise} noise of scale {scale:,g}",
        "draws follow the exact law",
        p > ALPHA,
        f"p = {p:.2g}, {total:,} draws",
        draws=total,
        tests=1,
    )


def _chunks(noise: Law, scale: float) -> Finding:
    """Test that no chunk of a draw follows from another: all values at all distances.

    The signs and the low bits of the same draws are tested, too: at this scale remainders are even.
    """
    law, values = NoiseDistribution(noise, Fraction(scale)), _noise(noise, scale, _CHUNKED)
    remainders = np.bincount(values % _REMAINDERS, minlength=_REMAINDERS)
    signs = np.array([np.count_nonzero(values < 0), np.count_nonzero(values > 0)])
    p = combined(
        [
            dependence(values[np.newaxis], law),
            chi_square(remainders, np.full(_REMAINDERS, _CHUNKED / _REMAINDERS)),
            chi_square(signs, np.full(2, signs.sum() / 2)),
        ]
    )
    return Finding(
        "sampler",
        f"{source(_CHUNKED, GUARANTEES[noise])}, {noise} noise in chunks",
        "values at any distance in one draw are independent, signs and low bits fair",
        p > ALPHA,
        f"p = {p:.2g}, {_CHUNKED:,} draws",
        draws=_CHUNKED,
        tests=1,
    )


def _noise(noise: Law, scale: float, size: int) -> Ints:
    ratio = 1 / Fraction(scale)
    amounts = {"pure": ratio, "zcdp": ratio**2 / 2, "gdp": ratio**2}
    # A hair more than the noise costs: OpenDP rounds its own charge up to a float.
    amount = amounts[GUARANTEES[noise]] * (1 + Fraction(1, 10**9))
    budget = Guarantee(GUARANTEES[noise], amount, amount, Fraction(0))
    return draw(np.zeros(size, np.int64), budget=budget, sensitivity=1, scale=scale)
