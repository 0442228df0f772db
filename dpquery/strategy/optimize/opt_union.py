"""OPT_+: several product strategies side by side, each for a part of the workload ([HDMM18] 6.3).

With losses L_k and budget shares beta_k the loss is sum_k L_k / beta_k^2 while parts are answered
alone. Shares of an L1 budget add to one: beta_k goes with L_k^(1/3). Shares of an
L2 budget have squares that add to one: beta_k^2 goes with L_k^(1/2).

Every attribute gets a few factors in advance, by OPT_0 for each of its Grams V alone and with the
total, V + c 11'. Restricted to them, the best product for a group of blocks is found by comparing
numbers, tr(X^-1 V) of each factor with each Gram, so that all pairs of groups can be priced. Losses
L_k of groups with the best split of the budget add up to (sum L_k^(1/3))^3 under Laplace noise and
(sum L_k^(1/2))^2 under Gaussian noise ([HDMM18] 6.3): the pair that lowers this sum most is merged
until none does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_DENSE_CLASSES
from dpquery.operators.blocks import Workload
from dpquery.operators.factors import Factor
from dpquery.operators.gram import Gram, Mixture, array_of, gram, grams, is_mixture, trace
from dpquery.operators.inverses import inverse_trace
from dpquery.progress import time_left
from dpquery.public_chance import PublicGenerator
from dpquery.strategy.optimize.descents import FactorSelection
from dpquery.strategy.optimize.opt_0 import ProductSelection, opt_0, opt_product
from dpquery.strategy.strategy import Noise

TOTALS = (0.0, 0.1, 1.0, 10.0)  # trace of 11' in proportion to that of V
GROUP_SWEEPS = 3
DIVISOR = 16  # an attribute of n classes gets n // 16 p-Identity rows
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
    """The factors of one attribute to choose from, with the trace that each gives for each Gram."""

    # the selections; the first is None, which measures the total alone
    factors: tuple[FactorChoice, ...]
    traces: Floats  # (factors, matrices) tr(X^-1 V)


def palettes(gram: Gram, *, noise: Noise, rng: PublicGenerator) -> tuple[Palette, ...]:
    """Select the factors of every attribute in advance."""
    attribute_palettes, in_time = [], True
    for i, (n, matrices) in enumerate(zip(gram.shape_of_domain, gram.matrices, strict=True)):
        factors: list[FactorChoice] = [None]
        rows = [np.array([trace(V) for V in matrices]) / n]
        arrays = [array_of(V) for V in matrices[1:]] if n > 1 else []
        arrays = [M for M in arrays if np.trace(M) > 0]
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
                    p=max(1, n // DIVISOR),
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
) -> tuple[list[Merged], float]:
    """Return the groups after merging while the loss falls, and that loss."""
    state = _Merging(terms, shape, pricing, noise, min(max_cells, MERGED_CELLS))
    for k in range(len(terms)):
        if not time_left(f"OPT_+ compares group {k + 1} of {len(terms)}"):
            break
        state.compare(k, range(k))
    while state.merge():
        if not time_left(f"OPT_+ merges groups: {len(state.alive)} left"):
            break
    return state.groups(), float(state.roots[state.alive].sum() ** (1 / state.power))


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
        cells = (self.named[list(others)] | self.named[k]) @ self.sizes
        fits = [j for j, size in zip(others, cells, strict=True) if size <= self.bits]
        for start in range(0, len(fits), CHUNK):
            chunk = fits[start : start + CHUNK]
            pairs = [_joined(self.terms[j], self.terms[k]) for j in chunk]
            losses, _ = self.pricing.price(*_stacked(pairs))
            gains = self.roots[chunk] + self.roots[k] - np.maximum(losses, 0.0) ** self.power
            self.gains[chunk, k] = self.gains[k, chunk] = gains

    def groups(self) -> list[Merged]:
        return [(self.members[k], tuple(self.choices[k].tolist())) for k in self.alive]

    def merge(self) -> bool:
        """Merge the pair that gains most; False where none gains LEAST_GAIN of the whole."""
        j, k = (int(v) for v in np.unravel_index(int(np.argmax(self.gains)), self.gains.shape))
        if not self.gains[j, k] > LEAST_GAIN * self.roots[self.alive].sum():
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


MAX_KINDS = 256  # of blocks, by attributes and factors: beyond, OPT_M and OPT_R serve better

BlockGroups = tuple[tuple[int, ...], ...]

PRICED: dict[Noise, float] = {"gaussian": 1.25, "laplace": math.inf}
"""Times that products from no palette, solved together, lower a loss at most: 1.1 where measured,
under Gaussian noise; 1.8 under Laplace noise, for which a price says little."""


@dataclass(frozen=True, eq=False)
class UnionSelection:
    """Products of real factors of sensitivity 1, with their budget shares."""

    factors: tuple[tuple[Factor, ...], ...]  # of each part, one for each attribute
    # beta_k, adding to one (Laplace) or with squares adding to one (Gaussian)
    shares: tuple[float, ...]
    loss: float  # with each part answered from its own strategy alone
    groups: BlockGroups  # the places of the blocks that each part serves
    converged: bool  # whether every optimiser met its tolerance


def opt_union(
    workload: Workload,
    *,
    noise: Noise,
    rng: PublicGenerator,
    max_cells: float = math.inf,
    least_loss: float = math.inf,
) -> UnionSelection:
    """Return groups of blocks, a product strategy for each, and the split of the budget.

    Groups are merged greedily from one for each kind of block. Compared with what that ends in are
    one group for every maximal attribute set, and one for all.

    Raises:
        UnsupportedWorkloadError: more than MAX_KINDS kinds of blocks, or too large an attribute; or
            none is below the least loss so far.
    """
    kinds, shape = group_by_kind(workload), workload.shape_of_domain
    attribute_palettes = palettes(gram(workload), noise=noise, rng=rng)
    terms = [(group_gram.index, group_gram.weights) for group_gram in grams(workload, kinds)]
    merged, priced = greedy_groups(
        terms, shape, pricing=Pricing(attribute_palettes), noise=noise, max_cells=max_cells
    )
    if priced > PRICED[noise] * least_loss:
        raise UnsupportedWorkloadError("products side by side cannot win")
    known: dict[tuple[int, ...], ProductSelection] = {}

    def select(members: tuple[int, ...], chosen: tuple[int, ...]) -> tuple[int, ...]:
        group = tuple(sorted(j for k in members for j in kinds[k]))
        if group not in known:
            start = [
                palette.factors[c] for palette, c in zip(attribute_palettes, chosen, strict=True)
            ]
            group_gram = gram(workload.select(group))
            known[group] = opt_product(group_gram, noise=noise, rng=rng, start=start)
        return group

    best = tuple(select(*merge) for merge in merged)
    others = [group_by_attributes(workload), (tuple(range(len(workload.blocks))),)]
    fitting = [other for other in others if _largest(workload, other) <= max_cells]
    selections: list[UnionSelection] = []
    for groups in dict.fromkeys((best, *fitting)):
        if not selections or time_left(f"OPT_+ with {len(groups)} groups"):
            selections.append(opt_parts(workload, noise=noise, rng=rng, groups=groups, known=known))
    return min(selections, key=lambda selection: selection.loss)


def opt_parts(
    workload: Workload,
    *,
    noise: Noise,
    rng: PublicGenerator,
    groups: BlockGroups,
    known: Mapping[tuple[int, ...], ProductSelection],
) -> UnionSelection:
    """Return a product strategy for each group, of `known` where it is there, and the split."""
    parts = [
        known.get(group) or opt_product(gram(workload.select(group)), noise=noise, rng=rng)
        for group in groups
    ]
    losses = np.array([part.loss for part in parts])
    if noise == "laplace":
        roots = np.cbrt(losses)
        shares, loss = roots / roots.sum(), float(roots.sum() ** 3)
    else:
        roots = np.sqrt(losses)
        shares, loss = np.sqrt(roots / roots.sum()), float(roots.sum() ** 2)
    return UnionSelection(
        factors=tuple(part.factors for part in parts),
        shares=tuple(shares.tolist()),
        loss=loss,
        groups=groups,
        converged=all(part.converged for part in parts),
    )


def _largest(workload: Workload, groups: BlockGroups) -> int:
    """Return the number of cells of the largest table under a group."""
    shape = workload.shape_of_domain
    attribute_sets = [{i for j in group for i in workload.blocks[j].attributes} for group in groups]
    return max(math.prod(shape[i] for i in attributes) for attributes in attribute_sets)


def group_by_kind(workload: Workload) -> BlockGroups:
    """Return groups of blocks with the same factors on the same attributes.

    Raises:
        UnsupportedWorkloadError: more than MAX_KINDS kinds of blocks, or too large an attribute.
    """
    widest = max(workload.shape_of_domain)
    if widest > MAX_DENSE_CLASSES:
        raise UnsupportedWorkloadError(f"an attribute has {widest:,} classes")
    places: dict[object, list[int]] = {}
    for place, block in enumerate(workload.blocks):
        kind = (block.attributes, tuple(factor.key for factor in block.factors), block.terms)
        places.setdefault(kind, []).append(place)
        if len(places) > MAX_KINDS:
            raise UnsupportedWorkloadError(f"more than {MAX_KINDS} kinds of blocks to group")
    return tuple(map(tuple, places.values()))


def group_by_attributes(workload: Workload) -> BlockGroups:
    """Return one group of blocks for each largest attribute set: those whose sets it contains."""
    homes = largest_sets(
        [
            frozenset(i for i in block.attributes if workload.shape_of_domain[i] > 1)
            for block in workload.blocks
        ]
    )
    return tuple(
        tuple(position for position, home in enumerate(homes) if home == group)
        for group in range(max(homes, default=-1) + 1)
    )


def largest_sets(sets: Sequence[frozenset[int]]) -> list[int]:
    """Return for every set the number of the first largest one that contains it, largest first."""
    tops: list[frozenset[int]] = []
    for attributes in sorted(dict.fromkeys(sets), key=len, reverse=True):
        if not any(attributes <= top for top in tops):
            tops.append(attributes)
    return [next(k for k, top in enumerate(tops) if attributes <= top) for attributes in sets]
