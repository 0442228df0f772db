"""OPT_+: several product strategies side by side, each for a part of the workload ([HDMM18] 6.3).

With losses L_k and budget shares beta_k the loss is sum_k L_k / beta_k^2 while parts are answered
alone. Shares of an L1 budget add to one: beta_k goes with L_k^(1/3). Shares of an
L2 budget have squares that add to one: beta_k^2 goes with L_k^(1/2).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import MAX_DENSE_CLASSES, MAX_JOINT_CLASSES
from dpquery.operators.blocks import Workload
from dpquery.operators.factors import Factor
from dpquery.operators.gram import Gram, gram, grams
from dpquery.progress import time_left
from dpquery.public_chance import PublicGenerator
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.optimize.block_groups import Pricing, greedy_groups, palettes
from dpquery.strategy.optimize.opt_pair import opt_pair
from dpquery.strategy.optimize.opt_product import ProductSelection, opt_product

MAX_KINDS = 256  # of blocks, by attributes and factors: beyond, OPT_M and OPT_R serve better

BlockGroups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class UnionSelection:
    """Products of real factors of sensitivity 1, with their budget shares.

    Attributes:
        factors: of each part, one for each attribute.
        shares: beta_k, adding to one (Laplace) or with squares adding to one (Gaussian).
        loss: with each part answered from its own strategy alone, or of two solved together.
        groups: the places of the blocks that each part serves.
        converged: whether every optimiser met its tolerance.
    """

    factors: tuple[tuple[Factor, ...], ...]
    shares: tuple[float, ...]
    loss: float
    groups: BlockGroups
    converged: bool


def opt_union(
    workload: Workload,
    *,
    noise: Noise,
    rng: PublicGenerator,
    max_cells: float = math.inf,
) -> UnionSelection:
    """Return groups of blocks, a product strategy for each, and the split of the budget.

    Groups are merged greedily from one for each kind of block. Compared with what that ends in are
    one group for every maximal attribute set, one for all, and, under Gaussian noise, two groups
    whose products are improved for being solved together.

    Args:
        workload: the queries.
        noise: which sensitivity the budget is split for.
        rng: for the starting points.
        max_cells: of the table under a group that is not a block's own.

    Raises:
        UnsupportedWorkloadError: more than MAX_KINDS kinds of blocks, or too large an attribute.
    """
    kinds, V, shape = group_by_kind(workload), gram(workload), workload.shape_of_domain
    attribute_palettes = palettes(V, noise=noise, rng=rng)
    terms = [(group_gram.index, group_gram.weights) for group_gram in grams(workload, kinds)]
    merged, pair = greedy_groups(
        terms,
        shape,
        pricing=Pricing(attribute_palettes),
        noise=noise,
        max_cells=max_cells,
    )
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
    if pair and noise == "gaussian" and max(shape) <= MAX_JOINT_CLASSES:
        two = tuple(select(*merge) for merge in pair)
        apart = opt_parts(workload, noise=noise, rng=rng, groups=two, known=known)
        selections.append(_together(V, apart))
    return min(selections, key=lambda selection: selection.loss)


def _together(V: Gram, apart: UnionSelection) -> UnionSelection:
    """Return two products with their factors improved for being solved together."""
    first, second = apart.factors
    together = opt_pair(V, (first, second), (apart.shares[0], apart.shares[1]))
    if together is None:
        return apart
    return UnionSelection(
        together.factors, together.shares, together.loss, apart.groups, together.converged
    )


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
        raise UnsupportedWorkloadError(f"{len(places)} kinds of blocks to group")
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
