"""The sensitivity, noise scale and rho that a release must have, from plan, spec and epsilon.

By brute force over all columns of the dense strategy, in Python integers and fractions.
"""

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfcx, expit, log_ndtr, ndtr, ndtri

from dpquery.audit.cases.dense_strategy import Cell, DenseStrategy
from dpquery.audit.cases.record_moves import furthest_move
from dpquery.audit.statistics import NoiseDistribution
from dpquery.spec.model import Accounting, Spec

_FAR = 1e4  # deltas below exp(-_FAR) are as good as 0
_SPAN = 18.0  # mu lies within exp(+-_SPAN) for epsilon from 1e-6 to 1e6, and delta from 1e-100
MOST_PAIRS = 2_000  # of columns that are compared one by one; of more, their norms are added


@dataclass(frozen=True, eq=False)
class ExpectedNoise:
    """The noise that a guarantee takes.

    Attributes:
        amount: the epsilon of pure DP, the rho of zCDP, or the squared mu of GDP.
        sensitivity: in steps of the grid: D1 for Laplace noise, D2^2 for Gaussian noise.
        law: of the noise.
        worst: the cell whose records move the answers furthest where they leave it; or two cells,
            from one of which they move to the other.
    """

    amount: Fraction
    sensitivity: int
    law: NoiseDistribution
    worst: tuple[Cell, ...]

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in steps of the grid."""
        return self.law.std


def expected_noise(
    strategy: DenseStrategy,
    spec: Spec,
    *,
    epsilon: Fraction,
    delta: Fraction,
    accounting: Accounting,
    pairs: bool,
) -> ExpectedNoise:
    """Return the noise that (epsilon, delta) takes for a strategy and a protected unit.

    Gaussian noise is rounded continuous noise where losses are added up as GDP, else discrete.

    Args:
        strategy: what is measured.
        spec: its unit and neighbours, and whether a column drops records.
        epsilon: of the guarantee.
        delta: of the guarantee.
        accounting: what losses are added up as.
        pairs: whether a plan counts a replaced record as one move, as plans once did not.
    """
    power, privacy = 1 if strategy.noise == "laplace" else 2, spec.privacy
    norms = {cell: column_norm(strategy, cell, power) for cell in strategy.cells}
    worst = max(norms, key=lambda cell: norms[cell])
    largest, records, moved = norms[worst], privacy.max_rows, 1
    pair: tuple[Cell, ...] = (worst,)
    if privacy.neighbours == "replace":
        distance, pair = furthest_move(strategy, power)
        columns = [column for attribute in spec.domain.attributes for column in attribute.columns]
        outside = privacy.person is not None or any(column.other == "drop" for column in columns)
        if not pairs:
            records *= 2
        elif distance and not (outside and largest > distance):
            largest, moved = distance, 2
        elif outside:
            pair, moved = (worst,), 2
        else:
            moved = 2
    sensitivity = _on_grid(strategy, largest, power, columns=moved) * records**power
    if power == 1:
        return ExpectedNoise(
            epsilon,
            sensitivity,
            NoiseDistribution("laplace", Fraction(sensitivity) / epsilon),
            pair,
        )
    if accounting == "gdp":
        mu = mu_of(float(epsilon), float(delta))
        law = NoiseDistribution("rounded", Fraction(math.sqrt(sensitivity) / mu))
        return ExpectedNoise(Fraction(mu) ** 2, sensitivity, law, pair)
    rho = rho_of(float(epsilon), float(delta))
    scale = Fraction(math.sqrt(sensitivity / (2 * rho)))
    return ExpectedNoise(Fraction(rho), sensitivity, NoiseDistribution("gaussian", scale), pair)


def column_norm(strategy: DenseStrategy, cell: Cell, power: int) -> int:
    """Return the sum over all rows of |entry|^power of one column."""
    return sum(rows.column_norm(cell, power) for rows in strategy.rows)


def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest rho for which rho-zCDP implies (epsilon, delta)-DP, by [CKS20] Prop. 12.

    It is the largest over alpha > 1 of the rho with which
        epsilon = alpha rho + ln(1 / (alpha delta)) / (alpha - 1) + ln(1 - 1 / alpha).
    """

    def less_rho(log_order: float) -> float:
        a = math.exp(log_order)  # alpha - 1
        rest = -(math.log1p(a) + math.log(delta)) / a - math.log1p(1 / a)
        return -(epsilon - rest) / (1 + a)

    grid = np.linspace(-16, 32, 900)  # for epsilon from 1e-6 to 1e6, and delta from 1e-100
    near = float(grid[int(np.argmin([less_rho(float(log_order)) for log_order in grid]))])
    optimum = minimize_scalar(less_rho, bounds=(near - 0.1, near + 0.1), method="bounded",
                            options={"xatol": 1e-10})  # fmt: skip
    return -float(optimum.fun)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the mu at which Gaussian noise is (epsilon, delta)-DP and no better [BW18].

    With u = epsilon / mu - mu / 2 and v = u + mu, and M the ratio of Mills,
        delta = Phi(-u) - exp(epsilon) Phi(-v) = phi(u) (M(u) - M(v)).
    """

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        u = epsilon / mu - mu / 2
        if u < 0:
            reached = math.log(ndtr(-u) - math.exp(epsilon + float(log_ndtr(-u - mu))))
        elif u > _FAR:
            reached = -math.inf
        else:
            ratios = erfcx(u / math.sqrt(2)) - erfcx((u + mu) / math.sqrt(2))
            reached = math.log(ratios / 2) - u**2 / 2
        return max(reached, -_FAR) - math.log(delta)

    return math.exp(brentq(excess, -_SPAN, _SPAN, xtol=1e-15, rtol=1e-15))


def pure_squared_mu(epsilon: float) -> float:
    """Return the squared mu of GDP that epsilon-DP implies: two laws as far apart as it allows."""
    return (2 * float(ndtri(expit(-epsilon)))) ** 2


def cells_of(counts: Counter[tuple[int, ...]], strategy: DenseStrategy) -> Counter[Cell]:
    """Return counts by cells of classes, from counts by codes."""
    by_class: Counter[Cell] = Counter()
    for codes, count in counts.items():
        pairs = zip(strategy.classes, codes, strict=True)
        by_class[tuple(classes[code] for classes, code in pairs)] += count
    return by_class


def _on_grid(strategy: DenseStrategy, exact: int, power: int, *, columns: int) -> int:
    """Return the sensitivity where answers are floored to steps of 2^shift.

    Each nonzero entry of one column, or of two, can then move its row by one step more.
    """
    shift = strategy.shift
    if not shift:
        return exact
    rows = strategy.rows
    support = sum(max(block.column_norm(cell, 0) for cell in strategy.cells) for block in rows)
    if columns > 1:
        support = min(columns * support, strategy.length)
    if power == 1:
        return -(-exact // (1 << shift)) + support
    length = -(-(math.isqrt(exact - 1) + 1) // (1 << shift))
    return (length + math.isqrt(support) + 1) ** 2
