"""Which blocks of a workload one product strategy should serve: greedy merging for OPT_+.

Every attribute gets a few factors in advance, by OPT_0 for each of its Grams V alone and with the
total, V + c 11'. Restricted to them, the best product for a group of blocks is found by comparing
numbers, tr(X^-1 V) of each factor with each Gram, so that all pairs of groups can be priced. Losses
L_k of groups with the best split of the budget add up to (sum L_k^(1/3))^3 under Laplace noise and
(sum L_k^(1/2))^2 under Gaussian noise ([HDMM18] 6.3): the pair that lowers this sum most is merged
until none does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.operators.gram import Gram, Mixture, array_of, is_mixture, trace
from dpquery.operators.inverses import inverse_trace
from dpquery.progress import time_left
from dpquery.public_chance import PublicGenerator
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.optimize.factor_selection import FactorSelection
from dpquery.strategy.optimize.opt_0 import opt_0

TOTALS = (0.0, 0.1, 1.0, 10.0)  # trace of 11' in proportion to that of V
GROUP_SWEEPS = 3
MERGED_CELLS = 1 << 22  # of the table under a merged group
LEAST_GAIN = 1e-6  # of a merge, in proportion to the sum: less is rounding
CHUNK = 64  # pairs priced at once

TRIAL_ITERATIONS = 100  # iterations on a factor to choose from
FactorChoice = FactorSelection | None


def exponent(noise: Noise) -> float:
    """Return the power of the parts' losses that adds up under the best split of the budget."""
    return 1 / 3 if noise == "laplace" else 1 / 2


@dataclass(frozen=True, eq=False)
class Palette:
    """The factors of one attribute to choose from, with the trace that each gives for each Gram.

    Attributes:
        factors: the selections; the first is None, which measures the total alone.
        traces: (factors, matrices) tr(X^-1 V).
    """

    factors: tuple[FactorChoice, ...]
    traces: Floats


def palettes(
    gram: Gram,
    *,
    noise: Noise,
    rng: PublicGenerator,
    divisor: int = 16,
) -> tuple[Palette, ...]:
    """Select the factors of every attribute in advance."""
    attribute_palettes, in_time = [], True
    for i, (n, matrices) in enumerate(zip(gram.shape_of_domain, gram.matrices, strict=True)):
        factors: list[FactorChoice] = [None]
        rows = [np.array([trace(V) for V in matrices]) / n]
        arrays = [array_of(V) for V in matrices[1:]] if n > 1 else []
        # Totals need no factor of their own, and cross terms of signed blocks are no Grams.
        grams = [M for M in arrays if np.array_equal(M, M.T) and np.any(M[0, 0] != M)]
        for M in grams or arrays[:1]:
            for share in TOTALS if in_time or len(factors) == 1 else ():
                goal = M * (n / np.trace(M)) + share
                even = Mixture(n, float(goal[0, 0] - goal[0, -1]), float(goal[0, -1]))
                selected = opt_0(
                    even if is_mixture(goal) else goal,
                    noise=noise,
                    rng=rng,
                    p=max(1, n // divisor),
                    max_iterations=TRIAL_ITERATIONS,
                )
                factors.append(selected)
                rows.append(np.array([inverse_trace(selected.inverse, V) for V in matrices]))
                words = f"OPT_+ factors of attribute {i + 1}: {len(factors) - 1}"
                in_time = in_time and time_left(words)
        attribute_palettes.append(Palette(tuple(factors), np.array(rows)))
    return tuple(attribute_palettes)


class Pricing:
    """The best products from the palettes, for many groups of Kronecker terms at once."""

    def __init__(self, palettes: Sequence[Palette]) -> None:
        self.palettes = palettes
        self.least = [
            palette.traces[-len(palette.factors[1:]) :].min(axis=0) for palette in palettes
        ]

    def price(self, index: NDArray[np.integer], weights: Floats) -> tuple[Floats, Ints]:
        """Return the losses and choices of groups.

        Args:
            index: (groups, terms, d) matrix of each attribute, as in a Gram.
            weights: (groups, terms), zero for padding.

        Returns:
            (groups,) losses and (groups, d) which factor of each palette.
        """
        looked_at = (index != 0).any(axis=1)
        d = index.shape[2]
        current = np.stack([self.least[i][index[:, :, i]] for i in range(d)])
        choices = np.zeros((len(index), d), dtype=np.int64)
        for _ in range(GROUP_SWEEPS):
            for i in range(d):
                others = weights * np.delete(current, i, axis=0).prod(axis=0)
                traces = self.palettes[i].traces[:, index[:, :, i]]
                scores = np.einsum("cgp,gp->cg", traces, others)
                if len(traces) > 1:
                    scores[0, looked_at[:, i]] = math.inf
                choices[:, i] = scores.argmin(axis=0)
                current[i] = traces[choices[:, i], np.arange(len(index))]
        return (weights * current.prod(axis=0)).sum(axis=1), choices


GramPair = tuple[NDArray[np.integer], Floats]
Merged = tuple[tuple[int, ...], tuple[int, ...]]
"""The kinds in a group, and which factor of each palette it takes."""


def greedy_groups(
    terms: Sequence[GramPair],
    shape: tuple[int, ...],
    *,
    pricing: Pricing,
    noise: Noise,
    max_cells: float,
) -> tuple[list[Merged], list[Merged]]:
    """Return the groups after merging while the loss falls, and two groups.

    Returns:
        The groups where no merge gains, and the two groups; none of those if they do not fit.
    """
    state = _Merging(terms, shape, pricing, noise, min(max_cells, MERGED_CELLS))
    for k in range(len(terms)):
        if not time_left(f"OPT_+ compares group {k + 1} of {len(terms)}"):
            break
        state.compare(k, range(k))
    two, best = state.groups(), state.groups()
    while state.merge(LEAST_GAIN):
        best = state.groups()
        two = best if len(best) > 1 else two
        if not time_left(f"OPT_+ merges groups: {len(state.alive)} left"):
            break
    while len(state.alive) > 2 and state.merge(-math.inf):
        two = state.groups()
    return best, two if len(two) == 2 else []


class _Merging:
    """The groups, their losses, and the gain of merging each pair."""

    def __init__(
        self,
        terms: Sequence[GramPair],
        shape: tuple[int, ...],
        pricing: Pricing,
        noise: Noise,
        max_cells: float,
    ) -> None:
        self.bits = math.log2(max_cells)
        self.terms, self.pricing, self.power = list(terms), pricing, exponent(noise)
        self.members: list[tuple[int, ...]] = [(k,) for k in range(len(terms))]
        self.alive = list(range(len(terms)))
        losses, choices = pricing.price(*_stacked(self.terms))
        self.roots, self.choices = np.maximum(losses, 0.0) ** self.power, choices
        self.gains = np.full((len(terms), len(terms)), -math.inf)
        self.sizes = np.log2(np.array(shape, dtype=np.float64))
        self.named = np.array([(index != 0).any(axis=0) for index, _ in terms])

    def compare(self, k: int, others: Sequence[int]) -> None:
        """Compute the gain of merging group k with each of the others."""
        cells = (self.named[list(others)] | self.named[k]) @ self.sizes
        fits = [j for j, size in zip(others, cells, strict=True) if size <= self.bits]
        for start in range(0, len(fits), CHUNK):
            chunk = fits[start : start + CHUNK]
            pairs = [_joined(self.terms[j], self.terms[k]) for j in chunk]
            losses, _ = self.pricing.price(*_stacked(pairs))
            gains = self.roots[chunk] + self.roots[k] - np.maximum(losses, 0.0) ** self.power
            self.gains[chunk, k] = self.gains[k, chunk] = gains

    def groups(self) -> list[Merged]:
        """Return the groups that are left."""
        return [(self.members[k], tuple(self.choices[k].tolist())) for k in self.alive]

    def merge(self, least: float) -> bool:
        """Merge the pair that gains most; False where none gains so much, in proportion."""
        j, k = (int(v) for v in np.unravel_index(int(np.argmax(self.gains)), self.gains.shape))
        if not self.gains[j, k] > least * self.roots[self.alive].sum():
            return False
        self.terms[j] = _joined(self.terms[j], self.terms[k])
        self.members[j] += self.members[k]
        self.named[j] |= self.named[k]
        self.alive.remove(k)
        self.gains[k, :] = self.gains[:, k] = self.gains[j, :] = self.gains[:, j] = -math.inf
        loss, choice = self.pricing.price(*_stacked([self.terms[j]]))
        self.roots[j], self.choices[j] = max(float(loss[0]), 0.0) ** self.power, choice[0]
        self.compare(j, [other for other in self.alive if other != j])
        return True


def _joined(left: GramPair, right: GramPair) -> GramPair:
    return np.concatenate([left[0], right[0]]), np.concatenate([left[1], right[1]])


def _stacked(groups: Sequence[GramPair]) -> GramPair:
    """Pad groups to one number of terms, with weights of zero."""
    longest = max(len(weights) for _, weights in groups)
    index = np.zeros((len(groups), longest, groups[0][0].shape[1]), dtype=np.int64)
    weights = np.zeros((len(groups), longest))
    for g, (term_index, term_weights) in enumerate(groups):
        index[g, : len(term_index)], weights[g, : len(term_index)] = term_index, term_weights
    return index, weights
