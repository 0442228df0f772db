"""Made-up counts, their noisy measurements, and statistics of them, for tests of derived items."""

import numpy as np
from scipy.special import ndtri

from dpquery.mechanisms.derived import tables_of_derived
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity
from dpquery.public_chance import public_generator
from dpquery.reconstruction.derived import JointAnswers, derived_rows, rows_in
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.spec.parsing.read import parse
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy

HEAD = """\
dataset: {id: town}
privacy: {unit: row, delta: 1e-9}
budget: {epsilon: 4, delta: 1e-9}
other: drop
domain:
  sex: {values: [F, M]}
  region: {values: [N, S, W]}
  hours: {range: [0, 5]}
  income: {bins: [0, 10, 20, 40, 80, 160]}
workload:
  - {name: people, product: {sex: identity, region: identity}}
  - {name: all, product: {region: identity}}
  - {name: hours, sum: {of: hours, by: {sex: identity}}}
  - {name: incomes, product: {sex: identity, income: prefix}}
  - {name: worked, product: {sex: identity, hours: identity}}
derived:
"""
ITEMS = """\
  - {name: shares, share: {of: people, within: [region]}}
  - {name: part, ratio: {of: people, to: all}}
  - {name: mean, mean: {sum: hours}}
  - {name: gap, difference: {of: people, between: {sex: [M, F]}}}
  - {name: medians, quantiles: {of: incomes, over: income, at: quartiles}}
  - {name: middle, quantiles: {of: worked, over: hours, at: [0.3, 0.5]}}
"""
SHAPE = (2, 3, 6, 5)


def town(records, seed=5):
    """Counts of made-up records over all cells, with every statistic depending on the group."""
    chance = public_generator(seed)
    sex, region = chance.integers(2, size=records), chance.integers(3, size=records)
    hours = chance.binomial(5, 0.3 + 0.2 * sex)
    income = np.minimum(4, chance.binomial(4, 0.3 + 0.1 * region))
    counts = np.zeros(SHAPE)
    np.add.at(counts, (sex, region, hours, income), 1)
    return counts


def strategies(noise):
    """A product of cells, and marginals."""
    weights = {(0, 1): 3, (0, 2): 2, (0, 3): 2, (1,): 1, (): 1}
    return [
        MarginalsStrategy("m", noise, SHAPE, weights),
        ProductStrategy("p", noise, tuple(Identity(n) for n in SHAPE)),
    ]


class Simulated:
    """A spec, what its derived items are made of, and a strategy."""

    def __init__(self, strategy, items=ITEMS):
        self.spec = parse(HEAD + items, name="town.yaml", files={})
        self.compiled, self.strategy = compile_spec(self.spec), strategy
        blocks = self.compiled.workload.blocks
        self.coefficients = self.joint = None
        self.tables = tables_of_derived(self.spec, self.compiled.classes, blocks, strategy)

    def measured(self, counts, chance, std):
        """Noisy answers of all measurements; without noise where std is 0."""
        answers = []
        for rows in self.strategy.measurements:
            beyond = tuple(i for i in range(len(SHAPE)) if i not in rows.block.attributes)
            exact = rows.weight * rows.block.apply(counts.sum(axis=beyond)).ravel()
            laplace = self.strategy.noise == "laplace"
            noise = (
                chance.laplace(scale=1 / np.sqrt(2), size=exact.size)
                if laplace
                else chance.normal(size=exact.size)
            )
            answers.append(exact + std * noise)
        return answers

    def rows(self, counts, chance, std, *, level=0.95):
        """The figures of every derived item, by name."""
        estimates = reconstruct(self.strategy, self.measured(counts, chance, std))
        joint = JointAnswers(self.tables, self.strategy, estimates, max(std, 1e-9))
        if self.coefficients is not None:  # which are those of every release
            vars(joint)["coefficients"] = self.coefficients
        self.joint, self.coefficients = joint, joint.coefficients
        return {
            item.name: derived_rows(item.statistic, joint, self.spec.domain, level=level)
            for item in self.spec.derived
        }


def naive(joint, item, level):
    """Intervals by the root of the sum of squares, as if answers were independent."""
    statistic, q = item.statistic, float(ndtri((1 + level) / 2))
    above, below = statistic.tables
    n, d = joint.estimate(above), joint.estimate(below)
    v, w = (joint.covariance(t, np.arange(t.size), t, np.arange(t.size)) for t in (above, below))
    if statistic.kind == "difference":
        return n - d - q * np.sqrt(v + w), n - d + q * np.sqrt(v + w)
    of_rows = rows_in(above, below)
    d, w = d[of_rows], w[of_rows]
    half = q * np.abs(n / d) * np.sqrt(v / n**2 + w / d**2)
    return n / d - half, n / d + half


def truth(counts):
    """Every statistic worked out from the counts by hand."""
    sex_region, region = counts.sum(axis=(2, 3)), counts.sum(axis=(0, 2, 3))
    by_hours, by_income = counts.sum(axis=(1, 3)), counts.sum(axis=(1, 2))
    edges = np.array([0, 10, 20, 40, 80, 160.0])
    medians, middle = [], []
    for group in by_income:
        below = np.concatenate([[0], np.cumsum(group)])
        medians += [np.interp(p * below[-1], below, edges) for p in (0.25, 0.5, 0.75)]
    for group in by_hours:
        below = np.cumsum(group)
        middle += [float(np.argmax(below >= p * below[-1])) for p in (0.3, 0.5)]
    return {
        "shares": (sex_region / region).ravel(),
        "part": (sex_region / region).ravel(),
        "mean": by_hours @ np.arange(6) / by_hours.sum(axis=1),
        "gap": sex_region[1] - sex_region[0],
        "medians": np.array(medians),
        "middle": np.array(middle),
    }
