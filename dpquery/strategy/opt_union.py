"""OPT_+: several product strategies side by side, each for a part of the workload ([HDMM18] 6.3).

Every part is answered from its own strategy, so with losses L_k and budget shares beta_k the loss
is sum_k L_k / beta_k^2. Shares of an L1 budget add to one: beta_k goes with L_k^(1/3). Shares of an
L2 budget have squares that add to one: beta_k^2 goes with L_k^(1/2).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from dpquery.operators.blocks import Workload
from dpquery.operators.gram import gram
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.opt_product import ProductSelection, opt_product

MAX_GROUPS = 12  # more maximal attribute sets than this are marginals' business


@dataclass(frozen=True, eq=False)
class UnionSelection:
    """Product strategies of sensitivity 1 with their budget shares.

    Attributes:
        parts: one selection a group.
        shares: beta_k, adding to one (Laplace) or with squares adding to one (Gaussian).
        loss: with each part answered from its own strategy alone.
    """

    parts: tuple[ProductSelection, ...]
    shares: tuple[float, ...]
    loss: float


def opt_union(
    workload: Workload,
    *,
    noise: Noise,
    rng: Generator,
    groups: tuple[tuple[int, ...], ...],
    progress: Callable[[str], None] = lambda _: None,
) -> UnionSelection:
    """Select a product strategy for each group of blocks and split the budget between them."""
    parts = tuple(
        opt_product(gram(workload.select(group)), noise=noise, rng=rng, progress=progress)
        for group in groups
    )
    losses = np.array([part.loss for part in parts])
    if noise == "laplace":
        roots = np.cbrt(losses)
        shares, loss = roots / roots.sum(), float(roots.sum() ** 3)
    else:
        roots = np.sqrt(losses)
        shares, loss = np.sqrt(roots / roots.sum()), float(roots.sum() ** 2)
    return UnionSelection(parts, tuple(shares.tolist()), loss)


def group_by_attributes(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Group blocks under the largest attribute sets that hold theirs.

    Returns one group for every maximal set, or none at all where a union has nothing to offer:
    with a single maximal set, or with more than MAX_GROUPS.
    """
    sets = [
        frozenset(i for i in block.attributes if workload.shape_of_domain[i] > 1)
        for block in workload.blocks
    ]
    tops: list[frozenset[int]] = []
    for own in sorted(dict.fromkeys(sets), key=len, reverse=True):
        if not any(own <= top for top in tops):
            tops.append(own)
        if len(tops) > MAX_GROUPS:
            return ()
    if len(tops) < 2:
        return ()
    home = [next(k for k, top in enumerate(tops) if own <= top) for own in sets]
    return tuple(
        tuple(position for position, k in enumerate(home) if k == wanted)
        for wanted in range(len(tops))
    )
