"""Both sources of noise against the exact law, and the chunks of one draw against each other."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from dpquery.arrays import Ints
from dpquery.audit.cases.specs_and_records import Size
from dpquery.audit.checks.dependence import dependence
from dpquery.audit.findings import Finding
from dpquery.audit.statistics import ALPHA, NoiseDistribution, goodness_of_fit
from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.noise.exact_noise import BULK_ABOVE, draw, source
from dpquery.strategy.noise_kinds import Noise

# Small scales and no powers of two among them: there a biased sampler has been shipped before.
SCALES: dict[Noise, tuple[float, ...]] = {
    "laplace": (1.0, 2.0, 5.0, 3.3, 999_983.0),
    "gaussian": (1.0, 2.0, 3.7, 12.0, 999_983.0),
}
_BULK_DRAWS = 4  # times those of the slow source
_CHUNKED = 200_000  # of one draw: two chunks of `draw`, seven of the bulk sampler


def sampler(size: Size) -> Iterator[Finding]:
    """Test what `draw` adds to zeros against the exact distribution, for both sources."""
    for noise, scales in SCALES.items():
        for scale in scales:
            for at_once, draws in ((BULK_ABOVE, size.draws), (None, _BULK_DRAWS * size.draws)):
                yield _checked(noise, scale, at_once=at_once, draws=draws)
    for noise, scales in SCALES.items():
        yield _chunks(noise, max(scales))


def _checked(noise: Noise, scale: float, *, at_once: int | None, draws: int) -> Finding:
    """Test one scale; at most `at_once` numbers are drawn in one call, or all of them."""
    batch = draws if at_once is None else min(at_once, draws)
    total = batch * max(1, draws // batch)
    values = np.concatenate([_noise(noise, scale, batch) for _ in range(total // batch)])
    p = goodness_of_fit(values, NoiseDistribution(noise, Fraction(scale)))
    return Finding(
        "sampler",
        f"{source(batch)}, {noise} noise of scale {scale:,g}",
        "draws follow the exact discrete law",
        p > ALPHA,
        f"p = {p:.2g}, {total:,} draws",
        draws=total,
        tests=1,
    )


def _chunks(noise: Noise, scale: float) -> Finding:
    """Test that no chunk of a draw follows from another: all values at all distances."""
    law = NoiseDistribution(noise, Fraction(scale))
    p = dependence(_noise(noise, scale, _CHUNKED)[np.newaxis], law)
    return Finding(
        "sampler",
        f"{source(_CHUNKED)}, {noise} noise in chunks",
        "values at any distance in one draw are independent",
        p > ALPHA,
        f"p = {p:.2g}, {_CHUNKED:,} draws",
        draws=_CHUNKED,
        tests=1,
    )


def _noise(noise: Noise, scale: float, size: int) -> Ints:
    ratio = 1 / Fraction(scale)
    amount = ratio if noise == "laplace" else ratio**2 / 2
    # A hair more than the noise costs: OpenDP rounds its own charge up to a float.
    amount *= 1 + Fraction(1, 10**9)
    budget = Guarantee("pure" if noise == "laplace" else "zcdp", amount, amount, Fraction(0))
    return draw(np.zeros(size, np.int64), budget=budget, sensitivity=1, scale=scale)
