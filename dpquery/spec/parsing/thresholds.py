"""Questions of at least r of k, and sets of attributes drawn at random.

Random sets of attributes, the same on every machine: exact draws from hashes, in integers.

A set of k attributes is drawn with probability in proportion to the product of its attributes'
weights, among the sets that fit a limit on their cells, and none twice: the historical workloads of
[RAP] 5. The draws are a function of the seed and the weights alone. No generator is involved whose
stream could change with a library, and no float.
"""

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

from dpquery.limits import MAX_DRAW_SUM_BITS, MAX_DRAW_SUMS, MAX_DRAWN_FROM, MAX_DRAWN_SETS
from dpquery.spec.columns import Attribute
from dpquery.spec.parsing.item_fields import ThresholdFields
from dpquery.spec.parsing.predicate_sets import Scope, Sets, read_condition, table
from dpquery.spec.parsing.yaml_nodes import Node, TextNode
from dpquery.spec.predicates import IdentitySet, PredicateSet
from dpquery.spec.problems import UnreadableError, quoted
from dpquery.spec.spec import Table

DrawState = tuple[int, int, int]
"""(attribute, how many are still to be chosen from it on, room left for their cells)."""


class TooManySetsError(Exception):
    """There are too many sets of attributes to count."""


class WeightedSets:
    """All sets of k attributes that fit, as intervals end to end, each as long as its weight."""

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[int], k: int, max_cells: int | None
    ) -> None:
        """Take the number of values and the weight of every attribute, in order.

        Raises:
            TooManySetsError: they cannot be counted in MAX_DRAW_SUMS sums.
        """
        self.sizes, self.weights, self.k = sizes, weights, k
        self.room = 1 if max_cells is None else max_cells
        if max_cells is None:
            self.sizes = [1] * len(sizes)  # whatever they are, every set fits
        self._most = [
            list(accumulate(sorted(self.sizes[i:], reverse=True)[:k], self._times, initial=1))
            for i in range(len(sizes) + 1)
        ]
        bits = k * max(weights).bit_length() + 64
        self._most_states = min(MAX_DRAW_SUMS, MAX_DRAW_SUM_BITS // bits)
        self._sums: dict[DrawState, tuple[int, int]] = {}
        self._sum_all()
        self.total, self.count = self._sum(0, k, self.room)

    def at(self, place: int) -> tuple[tuple[int, ...], int, int]:
        """Return the set at a place below `total`: its attributes, its start and its weight."""
        chosen: list[int] = []
        start, weight, room = 0, 1, self.room
        for i, (size, attribute_weight) in enumerate(zip(self.sizes, self.weights, strict=True)):
            left = self.k - len(chosen)
            if not left:
                break
            inside = weight * attribute_weight * self._sum(i + 1, left - 1, room // size)[0]
            if place - start < inside:
                chosen.append(i)
                weight, room = weight * attribute_weight, room // size
            else:
                start += inside
        return tuple(chosen), start, weight

    def _sum_all(self) -> None:
        """Fill `_sums`: find the states from the first attribute on, sum from the last."""
        levels: list[set[DrawState]] = [{self._state(0, self.k, self.room)}]
        states = 0
        for _ in self.sizes:
            levels.append({following for state in levels[-1] for following in self._next(*state)})
            states += len(levels[-1])
            if states > self._most_states:
                raise TooManySetsError
        for level in reversed(levels):
            for i, left, room in level:
                if left and len(self.sizes) - i >= left and room:
                    weight, count = self._sum(i + 1, left - 1, room // self.sizes[i])
                    beside, more = self._sum(i + 1, left, room)
                    self._sums[i, left, room] = self.weights[i] * weight + beside, count + more

    def _times(self, cells: int, size: int) -> int:
        return min(cells * size, self.room + 1)

    def _next(self, i: int, left: int, room: int) -> Iterator[DrawState]:
        if left and len(self.sizes) - i >= left and room:
            yield self._state(i + 1, left - 1, room // self.sizes[i])
            yield self._state(i + 1, left, room)

    def _state(self, i: int, left: int, room: int) -> DrawState:
        """Return the state, its room capped at the cells of the largest set from i on."""
        most = self._most[i]
        return i, left, min(room, most[min(left, len(most) - 1)])

    def _sum(self, i: int, left: int, room: int) -> tuple[int, int]:
        """Return total weight and number of the sets of `left` attributes from i on that fit."""
        if not left and room:
            return 1, 1
        return self._sums.get(self._state(i, left, room), (0, 0))


def draw_sets(sets: WeightedSets, count: int, seed: int) -> list[tuple[int, ...]]:
    """Return `count` distinct sets in the order drawn; a smaller count gives the first of them."""
    from dpquery.public_chance import PublicDraws  # and numpy: few specs draw

    draws, taken = PublicDraws(seed), list[tuple[int, int]]()
    sets_drawn = []
    left = sets.total
    for _ in range(count):
        place = draws.below(left)
        for start, weight in taken:
            if place < start:
                break
            place += weight
        chosen, start, weight = sets.at(place)
        sets_drawn.append(chosen)
        bisect.insort(taken, (start, weight))
        left -= weight
    return sets_drawn


def uniform(count: int) -> list[int]:
    """Return equal weights."""
    return [1] * count


def zipf(count: int) -> list[int]:
    """Return weights in proportion to 1, 1/2, 1/3, ...

    >>> zipf(4)
    [12, 6, 4, 3]
    """
    whole = math.lcm(*range(1, count + 1))
    return [whole // rank for rank in range(1, count + 1)]


def geometric(count: int, p: Fraction) -> list[int]:
    """Return weights in proportion to 1, 1 - p, (1 - p)^2, ...

    >>> geometric(3, Fraction(1, 4))
    [16, 12, 9]
    """
    top, bottom = (1 - p).as_integer_ratio()
    return [top**rank * bottom ** (count - 1 - rank) for rank in range(count)]


DEFAULT_P = Fraction(1, 4)  # of `geometric`, as [RAP] has it


def read_threshold(given: ThresholdFields, scope: Scope, where: Sets) -> list[Table]:
    """Return the table of a threshold over listed attributes, or those of a random sample."""
    if given.chosen == "sample":
        return _sampled(given, scope, where)
    given.problems.attempt(lambda: _check_r(given, len(given.of), "the number of attributes"))
    attributes = scope.attributes(given.of, fixed=where)
    axes: Sets = {i: IdentitySet.of(attribute) for i, attribute in attributes.items()}
    if isinstance(given.targets, tuple):
        axes = _targets(given.node("targets"), given.targets, scope, attributes)
    return [table(given.node("of"), axes, where, at_least=given.r)]


def _check_r(given: ThresholdFields, k: int, what: str) -> None:
    if given.r > k:
        message = f"r is {given.r}; expected 1 to {k}, {what}"
        raise given.node("r").mistake(message)


def _targets(
    node: Node,
    entries: Sequence[tuple[TextNode, Node]],
    scope: Scope,
    attributes: Mapping[int, Attribute],
) -> Sets:
    names = [attribute.name for attribute in attributes.values()]

    def read(target: Node, attribute: Attribute) -> PredicateSet:
        if attribute.name not in names:
            raise target.mistake(
                f"{quoted(attribute.name)} has a target but is not in `of`; add it there"
            )
        return read_condition(target, attribute)

    targets = scope.sets(entries, fixed=(), read=read)
    named = {key.text for key, _ in entries}
    missing = [name for name in names if name not in named]
    if missing:
        raise node.mistake(f"no target for {quoted(missing[0])}, which is in `of`; give each one")
    return targets


def _sampled(given: ThresholdFields, scope: Scope, where: Sets) -> list[Table]:
    attributes = scope.over(given.over, fixed=where)
    k, seed, count, cells = given.k, given.seed, given.sample, given.max_cells
    if k is None or seed is None or not scope.complete:
        raise UnreadableError(None)
    if k > len(attributes):
        raise given.node("k").mistake(
            f"k is {k}; expected 1 to {len(attributes)}, the number of attributes to draw from"
        )
    _check_r(given, k, "the number of attributes of each")
    if len(attributes) > MAX_DRAWN_FROM:  # which would take minutes
        raise given.node().mistake(
            f"there are {len(attributes):,} attributes to draw from, and the limit is "
            f"{MAX_DRAWN_FROM:,}; name fewer in `over`"
        )
    if count > MAX_DRAWN_SETS:
        raise given.node("sample").mistake(
            f"sample is {count:,}, and the limit is {MAX_DRAWN_SETS:,} sets; draw fewer"
        )
    sizes = [attribute.shown for attribute in attributes.values()]
    try:
        sets = WeightedSets(sizes, _weights(given, len(sizes)), k, cells)
    except TooManySetsError:
        raise given.node("k").mistake(
            f"too many sets of {k} to count; name fewer attributes in `over`"
        ) from None
    fitting = "" if cells is None else f" with at most {cells:,} cells"
    if not sets.count:
        least = f"the smallest has {math.prod(sorted(sizes)[:k]):,}"
        words = f"no set of {k} attributes has so few cells: {least}; allow more"
        raise given.node("max_cells").mistake(words)
    node = given.node("sample")
    if count > sets.count:
        raise node.mistake(
            f"sample is {count}; expected 1 to {sets.count:,}, the number of sets of {k} of "
            f"{len(attributes)} attributes{fitting}"
        )
    axes = [(i, IdentitySet.of(attribute)) for i, attribute in attributes.items()]
    return [
        table(node, dict(axes[j] for j in chosen), where, at_least=given.r)
        for chosen in draw_sets(sets, count, seed)
    ]


def _weights(given: ThresholdFields, count: int) -> list[int]:
    match given.distribution:
        case "uniform":
            return uniform(count)
        case "zipf":
            return zipf(count)
        case "geometric":
            return geometric(count, DEFAULT_P)
        case parametrised:
            return geometric(count, parametrised.geometric)
