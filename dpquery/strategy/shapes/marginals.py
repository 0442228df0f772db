"""Weighted marginals of cells or of factors, and one product (OPT_0, OPT_x, OPT_M, OPT_F)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.limits import (
    MAX_COEFFICIENT_WORK,
    MAX_DENSE_CLASSES,
    MAX_FOURTH_POWERS,
    MAX_MARGINAL_SETS,
)
from dpquery.operators.blocks import (
    Block,
    Workload,
    kron_apply,
    node_weights,
    product,
    threshold_nodes,
)
from dpquery.operators.factors import ROW_CHUNK, Factor, Identity, Ones
from dpquery.operators.inverses import (
    Inverse,
    inverse_array,
    inverse_gram,
    inverse_times,
    least_squares,
    quadratic,
)
from dpquery.operators.trees import Tree
from dpquery.strategy.algebra.query_powers import (
    POWER_COST,
    QueryPairs,
    RowSums,
    RowTerms,
    SymmetricForm,
    counts,
    mixed_powers,
)
from dpquery.strategy.algebra.subsets import (
    CANCELLATION,
    Subset,
    distinct_or_all,
    outer_products,
    polynomial_power,
    subsets_of,
)
from dpquery.strategy.factor_json import (
    decode_factor,
    decode_weights,
    encode_factor,
    encode_weights,
)
from dpquery.strategy.shapes.splits import FactorSplit, Patterns, SplitStrategy, split_by
from dpquery.strategy.strategy import (
    Noise,
    PowerPair,
    Strategy,
    WeightedBlock,
    resolution,
    wide_attributes,
)
from dpquery.untrusted.json_values import Json, JsonValue, integer, list_of, mapping

MAX_WIDE = 7  # of one table whose sixth powers are listed: 8^7 terms
ORDERS = (4, 6)


@dataclass(frozen=True, eq=False)
class MarginalsStrategy(SplitStrategy):
    """kron_{i in b} A_i on the marginal over b, times a positive integer weight, for subsets b."""

    kind: ClassVar[str] = "marginals"

    shape: tuple[int, ...]  # sizes of the domain's attributes
    weights: dict[tuple[int, ...], int]  # subset b -> weight
    # the integer factors A_i, of full column rank; attributes without one are measured cell by
    # cell, A_i = I, which gives the plain marginals
    factors: dict[int, Factor] = field(default_factory=dict)

    @cached_property
    def splits(self) -> tuple[FactorSplit, ...]:
        """The split of every attribute's queries by its factor."""
        cells = {n: split_by(Identity(n)) for n in self.shape}
        own = {i: split_by(factor) for i, factor in self.factors.items()}
        return tuple(own.get(i) or cells[n] for i, n in enumerate(self.shape))

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        return tuple(
            WeightedBlock(weight, product(self.shape, {i: self.splits[i].factor for i in b}))
            for b, weight in self.weights.items()
        )

    @cached_property
    def squares_above(self) -> dict[tuple[int, ...], float]:
        """sum_{b >= a} weight_b^2 / prod_{i in b} mu_i: A'A's eigenvalues, scaled ([MATH] 7)."""
        return self._sums_above(2, [1 / split.mu for split in self.splits])

    def powers_above(self, order: int) -> dict[tuple[int, ...], float]:
        """Return sum_{b >= a} weight_b^order prod_{i in b} sum_r (A_i z_i)_r^order for every a."""
        if order not in self._powers_above:
            shares = [self.reading_power(i, order) for i in range(len(self.shape))]
            self._powers_above[order] = self._sums_above(order, shares)
        return self._powers_above[order]

    @cached_property
    def _powers_above(self) -> dict[int, dict[tuple[int, ...], float]]:
        return {}

    def reading_power(self, i: int, order: int) -> float:
        """Return sum_r (A_i z_i)_r^order of an attribute."""
        return float((self.splits[i].reading ** order).sum())

    def _sums_above(self, power: int, shares: list[float]) -> dict[tuple[int, ...], float]:
        sums: dict[tuple[int, ...], float] = {}
        for b, weight in self.weights.items():
            share = float(weight) ** power * math.prod(shares[i] for i in b)
            for a in subsets_of(b):
                sums[a] = sums.get(a, 0.0) + share
        return sums

    @property
    def written_factors(self) -> tuple[Factor, ...]:
        return tuple(self.factors.values())

    @property
    def listings(self) -> dict[str, tuple[int, int]]:
        number = sum(1 << len(b) for b in self.weights)
        return {"sets and their subsets": (number, MAX_MARGINAL_SETS)}

    def supports(self, block: Block) -> bool:
        return wide_attributes(block) in self.squares_above

    def component_variance(self, b: Subset) -> float:
        """Return 1 / lambda_b, lambda = squares_above; an error where b is not measured."""
        if b not in self.squares_above:
            raise UnsupportedWorkloadError(f"no measured marginal holds the attributes {b}")
        return 1.0 / self.squares_above[b]

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowSums | None:
        """Return sums of powers of coefficients; None above 2 for signed or very wide blocks."""
        if order > 2:
            return even_powers(self, block, order)
        return self.split_power_sums(block, order)

    def coefficient_sums(self, block: Block) -> PowerPair | None:
        r"""Return both sums from coefficients on the measured sets that meet the block's.

        On the answers of a measured b the coefficients of a query over S are, with t = b & S,
            theta_b kron_{i in b \ S} A_i z_i
                sum_{a <= t} (D_a / lambda_a) kron_{i in a} A_i H_i q_i kron_{i in t \ a} A_i z_i,
        D_a the difference of the query in a at the levels of its other predicates. What is outside
        S is a factor of its own; equal predicates and equal rows are written out once.
        """
        splits = [self.splits[i] for i in block.attributes]
        patterns = [
            split.patterns(factor) for split, factor in zip(splits, block.factors, strict=True)
        ]
        counts = [len(pattern.levels) for pattern in patterns]
        wide = [k for k, i in enumerate(block.attributes) if self.shape[i] > 1]
        rows = math.prod(1 + len(patterns[k].reading) for k in wide)
        if POWER_COST * math.prod(counts) * rows > MAX_COEFFICIENT_WORK:
            return None
        S = tuple(block.attributes[k] for k in wide)
        beyond = [beyond_parts(self, S, order) for order in ORDERS]
        sums = np.zeros((len(ORDERS), math.prod(counts)))
        width = max(1, ROW_CHUNK // rows)
        for start in range(0, sums.shape[1], width):
            part = slice(start, min(start + width, sums.shape[1]))
            chosen = np.unravel_index(np.arange(part.start, part.stop), counts) if counts else ()
            D = _differences(
                block, [pattern.levels[j] for pattern, j in zip(patterns, chosen, strict=True)]
            )
            for t in {t: None for scales in beyond for t in scales}:
                places = [k for k, i in enumerate(block.attributes) if i in t]
                C, numbers = _on_part(self, t, D, places, patterns, chosen)
                squares = C * C
                fourths = squares * squares
                for total, scales, powers in zip(
                    sums, beyond, (fourths, fourths * squares), strict=True
                ):
                    total[part] += scales.get(t, 0.0) * np.einsum("jr,jr->j", powers, numbers)
        kinds = [
            pattern.kinds if len(pattern.levels) > 1 else np.zeros(1, dtype=np.int64)
            for pattern in patterns
        ]
        fourth, sixth = (total.reshape(counts)[np.ix_(*kinds)] for total in sums)
        return fourth, sixth  # axes of length 1 where all predicates are alike

    def encode_parameters(self) -> dict[str, JsonValue]:
        factors: list[JsonValue] = [
            [i, encode_factor(self.factors[i])] for i in sorted(self.factors)
        ]
        return {"weights": encode_weights(self.weights), "factors": factors}

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        """Return the marginals that JSON values hold; each factor has full column rank."""
        shape, factors = workload.shape_of_domain, dict[int, Factor]()
        weights = decode_weights(encoded["weights"], len(shape))
        for pair in list_of(encoded["factors"]):
            place, raw = list_of(pair)
            i, factor = integer(place, 0), mapping(raw)
            if i in factors or factor["kind"] == "total":
                raise ValueError("factors")
            factors[i] = decode_factor(factor, shape[i])
            if factor["kind"] != "identity":
                inverse_gram(factors[i])
        return cls(name, noise, shape, weights, factors)


def even_powers(strategy: MarginalsStrategy, block: Block, order: int) -> Floats | None:
    r"""Return sum_r c_r^order of every query of a block; None if it is signed or very wide.

    The order is even; the tensor has one axis an attribute, of length 1 where all rows are equal.

    On the answers of a measured subset b the coefficients of a query over S are
        theta_b prod_{i in S \ b} q_i z_i  kron_{i in b \ S} A_i z_i
            sum_{a <= t} (1 / lambda_a) kron_{i in a} A_i H_i q_i kron_{i in t \ a} A_i z_i q_i z_i,
    a polynomial with one variable an attribute of t = b & S; its power is taken once for each t and
    summed over the b that meet S in t. All t share one array of coefficients, with a last entry on
    the axis of an attribute outside t.
    """
    S = wide_attributes(block)
    if not block.is_product or len(S) > MAX_WIDE:
        return None
    coefficients = np.zeros((order + 2,) * len(S))
    for t, scale in beyond_parts(strategy, S, order).items():
        g = np.zeros((2,) * len(t))
        for a in subsets_of(t):
            g[tuple(int(i in a) for i in t)] = strategy.component_variance(a)
        place = tuple(slice(order + 1) if i in t else order + 1 for i in S)
        coefficients[place] = scale * polynomial_power(g, order)
    total = coefficients
    for i, factor in zip(block.attributes, block.factors, strict=True):
        levels = strategy.splits[i].levels(factor).astype(np.float64) ** order
        if i in S:
            table = np.concatenate([strategy.splits[i].moments(factor, order), levels[None]])
            spread = np.ptp(table, axis=1) <= CANCELLATION * np.abs(table).max(axis=1)
            table = table[:, :1] if spread.all() else table  # equal but for rounding
            total = np.tensordot(total, table, axes=(0, 0))
        else:
            total = np.multiply.outer(total, distinct_or_all(levels))
    return np.asarray(np.maximum(total, 0.0))


def beyond_parts(strategy: MarginalsStrategy, S: Subset, order: int) -> dict[Subset, float]:
    r"""Return, for each t <= S, what the b with b & S = t contribute beyond t.

    That is the sum of theta_b^order prod_{i in b \ S} sum_r (A_i z_i)_r^order.
    By inclusion-exclusion over the sets u between t and S, whose sums over b >= u are known; over
    all measured b where those are fewer.
    """
    exactly: dict[Subset, float] = {}
    if len(strategy.weights) < 3 ** len(S):
        for b, weight in strategy.weights.items():
            t = tuple(i for i in b if i in S)
            rest = (strategy.reading_power(i, order) for i in b if i not in S)
            exactly[t] = exactly.get(t, 0.0) + float(weight) ** order * math.prod(rest)
        return exactly
    above = strategy.powers_above(order)
    for t in subsets_of(S):
        left = tuple(i for i in S if i not in t)
        whole = sum(
            (-1) ** len(more) * above.get(tuple(sorted((*t, *more))), 0.0)
            for more in subsets_of(left)
        )
        if whole > CANCELLATION * above.get(t, 0.0):
            exactly[t] = whole / math.prod(strategy.reading_power(i, order) for i in t)
    return exactly


def _differences(block: Block, levels: Sequence[Floats]) -> Floats:
    """Return D_a of some queries, given their levels: (queries, 2, ..., 2), an axis a predicate."""
    if not levels:
        return np.ones(1)
    queries, k = len(levels[0]), sum(block.counted)
    if block.is_product:
        terms = [(1.0, [np.stack([p, np.ones(queries)], axis=1) for p in levels])]
    else:
        weights = node_weights((np.arange(k + 1) >= block.at_least).astype(np.float64))
        terms = []
        for alpha, x in zip(weights.tolist(), threshold_nodes(k).tolist(), strict=True):
            pairs = [
                np.stack([1 + (x - 1) * p, np.full(queries, x - 1)], axis=1)
                if counted
                else np.stack([p, np.ones(queries)], axis=1)
                for p, counted in zip(levels, block.counted, strict=True)
            ]
            terms.append((alpha, pairs))
    D = sum(outer_products(pairs, np.full(queries, alpha)) for alpha, pairs in terms)
    return np.asarray(D).reshape((queries,) + (2,) * len(levels))


def _on_part(
    strategy: MarginalsStrategy,
    t: tuple[int, ...],
    D: Floats,
    places: Sequence[int],
    patterns: Sequence[Patterns],
    chosen: Sequence[Ints],
) -> tuple[Floats, Floats]:
    """Return the coefficients on distinct rows over t, and how many rows each is: (queries, r)."""
    inside = tuple(slice(None) if k in places else 0 for k in range(len(patterns)))
    shares = np.zeros((2,) * len(t))
    for a in subsets_of(t):
        shares[tuple(int(i in a) for i in t)] = strategy.component_variance(a)
    C = D[(slice(None), *inside)] * shares
    queries = len(C)
    C, numbers = C.reshape(queries, -1), np.ones((1, 1))
    for k in places:
        pattern = patterns[k]
        pairs = C.reshape(queries, 2, -1)
        remainders = pattern.remainders[chosen[k]]
        C = pairs[:, 0, :, None] * pattern.reading + pairs[:, 1, :, None] * remainders[:, None, :]
        C = C.reshape(queries, -1)
        each = pattern.numbers[chosen[k]] if len(pattern.numbers) > 1 else pattern.numbers
        numbers = (numbers[:, :, None] * each[:, None, :]).reshape(max(len(numbers), len(each)), -1)
    return C, np.broadcast_to(numbers, C.shape)


PSEUDO_INVERSE_ENTRIES = 1 << 26  # entries of a pseudo-inverse held at once: half a gigabyte


@dataclass(frozen=True, eq=False)
class ProductStrategy(Strategy):
    """kron_i A_i, one integer factor for each attribute: of full column rank, or the total."""

    kind: ClassVar[str] = "product"

    factors: tuple[Factor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(factor.shape[1] for factor in self.factors))

    @cached_property
    def attributes(self) -> tuple[int, ...]:
        """Attributes that are measured; the others have one class or are summed over."""
        return tuple(
            i
            for i, factor in enumerate(self.factors)
            if factor.shape[1] > 1 and not isinstance(factor, Ones)
        )

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        """The one product, scaled up where its entries are small."""
        factors = {i: self.factors[i] for i in self.attributes}
        entry = math.prod(factor.max_abs for factor in factors.values())
        return (WeightedBlock(resolution(entry), product(self.shape, factors)),)

    @cached_property
    def inverses(self) -> dict[int, Inverse]:
        """(A_i'A_i)^-1 of every measured attribute whose factor is not the identity."""
        return {
            i: inverse_gram(self.factors[i])
            for i in self.attributes
            if not isinstance(self.factors[i], Identity)
        }

    def cells(self, noisy: Floats) -> Floats:
        """Return kron_i A_i^+ times noisy answers: the cells of the measured attributes."""
        solvers = [
            least_squares(self.factors[i]) if i in self.inverses else None for i in self.attributes
        ]
        sizes = [self.factors[i].shape[0] for i in self.attributes]
        return kron_apply(solvers, noisy.reshape(sizes))

    @cached_property
    def pseudo_inverses(self) -> dict[int, Floats]:
        """A_i^+ of the same attributes, written out: (n_i, m_i)."""
        return {i: self.factors[i].matmat(inverse_array(M)).T for i, M in self.inverses.items()}

    @property
    def written_factors(self) -> tuple[Factor, ...]:
        return self.factors

    def supports(self, block: Block) -> bool:
        return all(i in self.attributes or self.shape[i] == 1 for i in block.attributes)

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowTerms | None:
        """Return sums of powers of coefficients; None where these take more than they are worth.

        That is where an order above 2 looks at every query of an attribute on too many rows, or at
        an inverse that is too large to be written out.
        """
        if order > 2 and any(
            self._takes_long(i, factor)
            for i, factor in zip(block.attributes, block.factors, strict=True)
        ):
            return None
        if not self.supports(block):
            raise UnsupportedWorkloadError("the strategy sums over an attribute that is asked for")
        outside = 1.0
        for i in self.attributes:
            if i not in block.attributes:
                outside *= self._total_power(i, order)
        outside /= float(self.measurements[0].weight) ** order
        forms = [
            {c: distinct_or_all(form) for c, form in self._forms(i, factor, order, needed).items()}
            for i, factor, needed in zip(
                block.attributes, block.factors, counts(block, order), strict=True
            )
        ]
        return [(outside * coef, vectors) for coef, vectors in mixed_powers(block, forms, order)]

    def covariances(self, pairs: QueryPairs) -> Floats:
        return pairs.over_products(self._covariances)

    def _covariances(self, pairs: QueryPairs) -> Floats:
        """Return prod_i q_i (A_i'A_i)^-1 r_i' of pairs of rows of products."""
        if not (self.supports(pairs.left.block) and self.supports(pairs.right.block)):
            raise UnsupportedWorkloadError("the strategy sums over an attribute that is asked for")
        forms = {i: self._form_of_pairs(i) for i in self.attributes}
        return pairs.product_of(forms) / float(self.measurements[0].weight) ** 2

    def _form_of_pairs(self, i: int) -> SymmetricForm:
        if i not in self.inverses:
            return SymmetricForm(lambda X: X, lambda factor: factor.row_squares)
        inverse = self.inverses[i]
        return SymmetricForm(
            partial(inverse_times, inverse), lambda factor: quadratic(factor, inverse)
        )

    def _takes_long(self, i: int, queries: Factor) -> bool:
        """Return whether powers of the coefficients of an attribute's queries take minutes."""
        if i not in self.inverses:
            return False
        m, n = self.factors[i].shape
        in_pieces = isinstance(self.factors[i], Tree)
        too_long = m * n > PSEUDO_INVERSE_ENTRIES if in_pieces else n > MAX_DENSE_CLASSES
        return too_long or queries.shape[0] * m > MAX_FOURTH_POWERS

    def _total_power(self, i: int, order: int) -> float:
        if isinstance(self.factors[i], Identity):
            return float(self.shape[i])
        return float((self._of_total(i) ** order).sum())

    def _of_total(self, i: int) -> Floats:
        ones = np.ones((self.shape[i], 1))
        return self.factors[i].matmat(inverse_times(self.inverses[i], ones))[:, 0]

    def _forms(self, i: int, factor: Factor, order: int, counts: list[int]) -> dict[int, Floats]:
        """Return, for each count c, sum_r f_r^c t_r^(order - c) of every row.

        f is the coefficient vector of the row's predicate and t that of the total: the two that an
        r-of-k block mixes. An attribute of one class is not measured; its coefficients are row
        sums.
        """
        if i not in self.attributes:
            sums = factor.row_sums.astype(np.float64)
            return {c: sums**c for c in counts}
        if isinstance(self.factors[i], Identity):
            return {c: factor.row_powers(c) for c in counts}
        if counts == [2] and order == 2:
            return {2: quadratic(factor, self.inverses[i])}
        powers: dict[int, Floats] = {c: np.zeros(factor.shape[0]) for c in counts}
        for rows, plus in self._pseudo_inverse(i):
            if counts == [order]:
                powers[order] += factor.row_power_sums(plus, order)
                continue
            f, t = factor.matmat(plus), self._of_total(i)[rows]
            for c in counts:
                powers[c] += ((f**c) * t ** (order - c)).sum(axis=1)
        return powers

    def _pseudo_inverse(self, i: int) -> Iterator[tuple[slice, Floats]]:
        m, n = self.factors[i].shape
        if m * n <= PSEUDO_INVERSE_ENTRIES:
            yield slice(None), self.pseudo_inverses[i]
            return
        step = max(1, PSEUDO_INVERSE_ENTRIES // m)
        for start in range(0, m, step):
            rows = slice(start, min(start + step, m))
            units = np.zeros((m, rows.stop - start))
            units[rows] = np.eye(rows.stop - start)
            yield rows, inverse_times(self.inverses[i], self.factors[i].rmatmat(units))

    def encode_parameters(self) -> dict[str, JsonValue]:
        return {"factors": [encode_factor(factor) for factor in self.factors]}

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        pairs = zip(list_of(encoded["factors"]), workload.shape_of_domain, strict=True)
        return cls(name, noise, tuple(decode_factor(mapping(factor), n) for factor, n in pairs))
