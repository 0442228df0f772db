"""Which values of a column many persons have: noisy numbers of persons, and a threshold.

Of each person at most `max_values` values count, whichever are the person's, so that one person
more moves the numbers of persons of at most `max_values` values, by 1 each. Rounded Gaussian noise
is added to the number of every value that somebody has, and a value is published, with its noisy
number, where that is at the threshold or above. The threshold is the least whole number t with

    max_values P(1 + noise >= t) <= threshold delta,

decided in interval arithmetic; noise of standard deviation s rounds to t - 1 or more where it is
t - 3/2 or more, so that P is the normal tail above (t - 3/2) / s.

**The guarantee.** Let files D and D' differ by one person, whom D' has, and let N be the values
that only this person has: at most `max_values`, of one person each. Of the other values the numbers
differ by at most sqrt(max_values) in L2, so what is published of them is mu-GDP, as a function of
numbers with noise calibrated to that. In D' something of N is published with a chance of at most
the threshold's delta, whatever happens to the other values. So the laws of what is published are
mixtures, of this weight, of anything and of laws that mu-GDP bounds: mixtures of one weight, for
D has none of N, and a part of any weight can be split off what it publishes. The delta of such
mixtures is the threshold's and that of mu at epsilon, added up; over several releases mu^2 and the
thresholds' deltas add up apart [MATH] 26.6. Where a person is replaced, both files have values of
their own, each with that chance in its own file; up to twice as many of the common ones differ.

Numbers and rows of persons are counted by public classes [MATH] 26.7: the noisy number of every
class is published, also of those that nobody is in, so that there is no threshold, and the whole
delta is the noise's.

Noise on the numbers is what allows publishing them. Mechanisms that publish values alone find some
more [DVGM22, HM26b], as do those that give persons with few values more weight [GGK20].
"""

import json
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import SpecError
from dpquery.measurement import gdp
from dpquery.measurement.accounting import Guarantee, guarantee, noise_scale
from dpquery.measurement.counting.value_counts import Sought, ValueCounts
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.noise.exact_noise import draw, source
from dpquery.measurement.release_key import discovery_key
from dpquery.spec.numbers import CLASS_DIGITS, ROW_DIGITS, ExactNumber, number
from dpquery.spec.spec import Spec

OPTIONS: dict[Sought, str] = {
    "values": "--column",
    "numbers": "--number",
    "rows": "--rows-per-person",
}
LEVELS_OF: dict[Sought, tuple[int, ...]] = {"numbers": CLASS_DIGITS, "rows": ROW_DIGITS}
"""By how many leading digits what is sought is put into public classes, level by level."""
_BYTES = 8  # of a word in which values are stored


@dataclass(frozen=True, eq=False)
class Discovery:
    """The query for the values of a column; all of it is public."""

    spec: Spec  # dataset, unit and file; its domain is the column alone
    max_values: int  # the most values of a person that count
    epsilon: Fraction  # of the discovery
    delta: Fraction  # of the discovery: half of it is the threshold's, if there is one
    sought: Sought = "values"  # or numbers, or rows of persons, by public classes

    def __post_init__(self) -> None:
        """Check what the sensitivity rests on."""
        one = self.spec.privacy.person is None or self.sought == "rows"
        if self.max_values < 1 or (one and self.max_values > 1):
            raise ValueError("a person has one value or more that count, and a row has one")
        if self.spec.privacy.person is None and self.sought == "rows":
            raise ValueError("rows of a person need persons")

    @cached_property
    def mechanism(self) -> CalibratedNoise:
        """The noise on every number of persons; D2 squared is what one person moves."""
        asked = self.guarantee_at(self.epsilon)
        moved = self.max_values * len(LEVELS_OF.get(self.sought, (1,)))
        if self.spec.privacy.neighbours == "replace":
            moved *= 2
        return CalibratedNoise(asked, 0, moved, max(1.0, noise_scale(asked, moved)))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the discovery, which is charged."""
        return self.mechanism.guarantee

    def guarantee_at(self, epsilon: Fraction) -> Guarantee:
        """Return the guarantee of the same discovery at another epsilon and the same delta."""
        of_threshold = self.delta / 2 if self.sought == "values" else Fraction(0)
        of_noise = self.delta - of_threshold
        noise = guarantee("gaussian", epsilon=epsilon, delta=of_noise, accounting="gdp")
        return Guarantee("gdp", noise.amount, epsilon, self.delta, threshold=of_threshold)

    @property
    def option(self) -> str:
        """What asks for it beside an epsilon."""
        return f"{OPTIONS[self.sought]} {self.column}"

    @property
    def column(self) -> str:
        """The column that is looked at."""
        return self.spec.domain.columns[0].name

    @cached_property
    def threshold(self) -> int:
        """The noisy number of persons from which on a value is published; 0 of public classes."""
        if self.sought != "values":
            return 0
        return least_threshold(
            self.mechanism.scale, new_values=self.max_values, delta=self.guarantee.threshold
        )

    @cached_property
    def key(self) -> str:
        """The ledger's key: discoveries of one key are one, charged once."""
        return discovery_key(
            self.spec,
            self.mechanism,
            sought=self.sought,
            max_values=self.max_values,
            threshold=self.threshold,
        )

    def source(self) -> str:
        """Return the name and version of the noise source."""
        return source(0, self.guarantee.law)

    def noisy(self, counted: ValueCounts) -> Ints:
        """Return the values found and their noisy numbers, as 64-bit words; see `found`.

        Of public classes the noisy numbers of all, also of those that nobody is in.
        """
        if self.sought != "values":
            return noisy_counts(counted.counts, self.mechanism)
        pairs = noisy_pairs(counted, self.mechanism, self.threshold)
        text = json.dumps(pairs, ensure_ascii=False).encode()
        return np.frombuffer(text.ljust(-(-len(text) // _BYTES) * _BYTES), "<i8").astype(np.int64)


def noisy_counts(counts: Ints, mechanism: CalibratedNoise) -> Ints:
    """Return numbers of persons with their noise."""
    return draw(
        counts, budget=mechanism.guarantee, sensitivity=mechanism.sensitivity, scale=mechanism.scale
    )


def noisy_pairs(
    counted: ValueCounts, mechanism: CalibratedNoise, threshold: int
) -> list[tuple[str, int]]:
    """Return the values whose noisy numbers are at the threshold or above, with these, in order."""
    noisy = noisy_counts(counted.counts, mechanism)
    over = np.flatnonzero(noisy >= threshold).tolist()
    # Sorted: the order in which they came is the data's.
    return sorted(((counted.values[i], int(noisy[i])) for i in over), key=_by_value)


def found(values: Ints) -> list[tuple[str, int]]:
    """Return the values that a discovery found, with their noisy numbers of persons."""
    return [(text, count) for text, count in json.loads(values.astype("<i8").tobytes())]


def least_threshold(scale: float, *, new_values: int, delta: Fraction) -> int:
    """Return the least number that so many values of one person pass with a chance of delta.

    Privacy: any of them, together; an upper bound of the chance is what decides.

    Raises:
        SpecError: there is none in reach.
    """
    most = gdp.Interval.of(delta / new_values).low

    def kept(threshold: int) -> bool:
        return gdp.tail(Fraction(2 * threshold - 3, 2) / Fraction(scale)).high <= most

    low, high = 1, 2
    while not kept(high):
        low, high = high, 2 * high
        if high > 2**52:
            raise SpecError("no value could be found at this epsilon and delta; give larger ones")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if kept(middle) else (middle, high)
    return high


def _by_value(pair: tuple[str, int]) -> tuple[bool, ExactNumber | str]:
    """Sort numbers first, by size, then texts."""
    exact = number(pair[0])
    return (True, pair[0]) if exact is None else (False, exact)
