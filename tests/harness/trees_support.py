"""Trees of nested groups of uneven sizes, and their rows written out."""

import numpy as np
import scipy.sparse as sp

from dpquery.operators.factors import Groups
from dpquery.operators.gram import Mixture, Structured
from dpquery.operators.trees import Tree


def groups_of(place):
    """The groups of the codes that have one place."""
    n = len(place)
    return Groups(sp.csr_array((np.ones(n, dtype=np.int64), (place, np.arange(n)))))


def nested(rng, fan_outs, weights, *, shuffled=False):
    """The Gram of all codes, the groups of each level and the total, and the groups."""
    above, blocks = [], 1
    for least, most in fan_outs:
        counts = rng.integers(least, most + 1, blocks)
        above.append(np.repeat(np.arange(blocks), counts))
        blocks = int(counts.sum())
    place, factors = np.arange(blocks), []
    order = rng.permutation(blocks) if shuffled else np.arange(blocks)
    for parents in above[:0:-1]:
        place = parents[place]
        factors.append(groups_of(place[order]))
    mixture = Mixture(blocks, float(weights[0]), float(weights[-1]))
    terms = tuple(zip(map(float, weights[1:-1]), factors, strict=True))
    return Structured(mixture, terms), factors


def random_tree(rng, most=4):
    """A tree of blocks of any number of children, the codes in any order, some without a row."""
    fan_outs = [(1, 4)] * int(rng.integers(0, most))
    above, blocks = [], int(rng.integers(1, 3))
    weights = [rng.integers(0, 9, blocks)]
    for least, largest in fan_outs:
        counts = rng.integers(least, largest + 1, blocks)
        above.append(np.repeat(np.arange(blocks), counts))
        blocks = int(counts.sum())
        weights.append(rng.integers(0, 9, blocks))
    weights[-1] = rng.integers(1, 90, blocks)
    if above:
        above[-1] = rng.permutation(above[-1])
    return Tree(above[::-1], weights[::-1])


def rows_of(tree):
    """The rows of a tree, written out block by block."""
    n = tree.shape[1]
    place, rows = list(range(n)), []
    for level, weights in enumerate(tree.weights):
        if level:
            place = [int(tree.parents[level - 1][block]) for block in place]
        for block, weight in enumerate(weights.tolist()):
            if weight:
                rows.append([weight if place[code] == block else 0 for code in range(n)])
    return np.array(rows)
