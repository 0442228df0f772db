"""Cores and totals of attribute subsets (OPT_R): nothing is measured twice."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar, Self

import numpy as np

from dpquery.arrays import Ints
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.factors import Dense, Factor
from dpquery.strategy.algebra.query_powers import RowTerms
from dpquery.strategy.factor_json import decode_weights, encode_weights, pack, unpack
from dpquery.strategy.shapes.splits import CenteredCore, Core, DenseCore, Rest, SplitStrategy
from dpquery.strategy.strategy import BITS, Noise, WeightedBlock, significant, wide_attributes
from dpquery.untrusted.json_values import Json, JsonValue, integer, list_of, mapping


@dataclass(frozen=True, eq=False)
class ResidualStrategy(SplitStrategy):
    """kron_{i in b} F_i on the marginal over b, times an integer weight, for subsets b.

    With every b it holds every subset of b, so that nothing is measured twice and all is in closed
    form ([MATH] 6). Attributes of one class have no core.
    """

    kind: ClassVar[str] = "residual"

    cores: tuple[Core | None, ...]  # of each attribute
    weights: dict[tuple[int, ...], int]  # of each subset b
    # for attributes with several cores their common null vector in integers: (n,)
    spreads: Mapping[int, Ints] = field(default_factory=dict)
    # subset b -> attribute -> the core that b has in place of that of `cores`
    block_cores: Mapping[tuple[int, ...], Mapping[int, DenseCore]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        alike: dict[int, Core] = {}  # one core serves all attributes of as many classes
        for core in self.cores:
            if isinstance(core, CenteredCore):
                alike.setdefault(core.n, core)
        shared = (alike[core.n] if isinstance(core, CenteredCore) else core for core in self.cores)
        object.__setattr__(self, "cores", tuple(shared))
        object.__setattr__(
            self, "shape", tuple(1 if core is None else core.factor.shape[1] for core in self.cores)
        )
        for b, cores in self.block_cores.items():
            if b not in self.weights or not set(cores) <= set(b) & set(self.spreads):
                raise ValueError("cores of what is not measured")
        for i, spread in self.spreads.items():
            if sum(spread.tolist()) == 0:
                raise ValueError("a total spread over nothing")
            for core in (self.cores[i], *(c[i] for c in self.block_cores.values() if i in c)):
                if not isinstance(core, DenseCore) or not core.is_null(spread):
                    raise ValueError("cores of one attribute with different null vectors")

    def split_in(self, b: tuple[int, ...], i: int) -> Core:
        """Return the core of an attribute with more than one class in the block of b."""
        core = self.block_cores.get(b, {}).get(i) or self.cores[i]
        if core is None:
            raise ValueError(f"attribute {i} has one class and no core")
        return core

    @cached_property
    def measurements(self) -> tuple[WeightedBlock, ...]:
        return tuple(
            WeightedBlock(weight, product(self.shape, {i: self.split_in(b, i).factor for i in b}))
            for b, weight in self.weights.items()
        )

    @property
    def splits(self) -> tuple[Core | None, ...]:
        return self.cores

    @property
    def written_factors(self) -> list[Factor]:
        of_blocks = [core for cores in self.block_cores.values() for core in cores.values()]
        cores = [core for core in (*self.cores, *of_blocks) if isinstance(core, DenseCore)]
        spreads = [Dense(spread[None, :]) for spread in self.spreads.values() if self.block_cores]
        return [*(core.factor for core in cores), *spreads]

    def component_variance(self, b: tuple[int, ...]) -> float:
        if b not in self.weights:
            raise UnsupportedWorkloadError(f"no measurement holds the attributes {b}")
        return float(self.weights[b]) ** -2

    def uniform_variances(
        self, blocks: Sequence[Block], positions: Sequence[int | None]
    ) -> dict[int, float]:
        return {} if self.block_cores else super().uniform_variances(blocks, positions)

    def supports(self, block: Block) -> bool:
        return wide_attributes(block) in self.weights

    def serves(self, workload: Workload) -> bool:
        # With every set that lacks one of its members, and theirs, all of its subsets are there.
        return super().serves(workload) and all(
            b[:k] + b[k + 1 :] in self.weights for b in self.weights for k in range(len(b))
        )

    def power_sums(self, block: Block, *, position: int | None, order: int) -> RowTerms:
        return self.split_power_sums(block, order)

    def rest_in(self, b: tuple[int, ...], i: int, order: int) -> Rest:
        core = self.split_in(b, i)
        return core.variances if order == 2 else partial(core.power_sums, order=order)

    def likeness(self, block: Block) -> Hashable:
        return None if self.block_cores else super().likeness(block)

    def encode_parameters(self) -> dict[str, JsonValue]:
        encoded: dict[str, JsonValue] = {
            "cores": [_encode_core(core) for core in self.cores],
            "weights": encode_weights(self.weights),
        }
        if not self.block_cores:
            return encoded
        return encoded | {
            "spreads": [[i, pack(spread[None, :])] for i, spread in sorted(self.spreads.items())],
            "block_cores": [
                [list(b), i, pack(core.factor.dense())]
                for b, cores in sorted(self.block_cores.items())
                for i, core in sorted(cores.items())
            ],
        }

    @classmethod
    def decode(cls, encoded: Json, name: str, noise: Noise, workload: Workload) -> Self:
        shape = workload.shape_of_domain
        pairs = zip(list_of(encoded["cores"]), shape, strict=True)
        cores = tuple(_decode_core(core, n) for core, n in pairs)
        weights = decode_weights(encoded["weights"], len(shape))
        if "block_cores" not in encoded:
            return cls(name, noise, cores, weights)
        spreads: dict[int, Ints] = {}
        for pair in list_of(encoded["spreads"]):
            number, packed = list_of(pair)
            i = integer(number, 0)
            spread = unpack(packed, shape[i])
            if i in spreads or len(spread) != 1:
                raise ValueError("spreads")
            spreads[i] = spread[0]
        of_blocks: dict[tuple[int, ...], dict[int, DenseCore]] = {}
        for triple in list_of(encoded["block_cores"]):
            subset, number, packed = list_of(triple)
            b, i = tuple(integer(k, 0) for k in list_of(subset)), integer(number, 0)
            own = of_blocks.setdefault(b, {})
            if i in own:
                raise ValueError("a core given twice")
            own[i] = DenseCore(unpack(packed, shape[i]))
            own[i].recover(np.zeros((shape[i] - 1, 1)))  # refuses rows that are not independent
        return cls(name, noise, cores, weights, spreads, of_blocks)


SPARSE = "Sparse"
SPARSE_FACTOR = 3.0
"""Noise variance of a component over what it was, for each of its attributes."""


def sparse_variant(strategy: ResidualStrategy) -> ResidualStrategy:
    """Return the strategy with more of the budget for components of few attributes.

    Unbiased answers lose a little. Guesses that shrink components of many attributes to what those
    of few say (reconstruction/agreeing_tables) gain more where counts are small: [MATH] 16.
    """
    weights = {b: w * SPARSE_FACTOR ** (-len(b) / 2) for b, w in strategy.weights.items()}
    scale = float(1 << BITS) / min(weights.values())
    whole = {b: significant(weight * scale) for b, weight in weights.items()}
    return replace(strategy, name=SPARSE, weights=whole)


def _encode_core(core: Core | None) -> JsonValue:
    if core is None:
        return None
    if isinstance(core, DenseCore):
        return {"kind": "dense", "matrix": pack(core.factor.dense())}
    return {"kind": "centered", "n": core.factor.shape[1]}


def _decode_core(raw: JsonValue, n: int) -> Core | None:
    if n == 1 or raw is None:
        if n != 1 or raw is not None:
            raise ValueError("core")
        return None
    encoded = mapping(raw)
    if encoded["kind"] == "dense":
        core = DenseCore(unpack(encoded["matrix"], n))
        core.recover(np.zeros((n - 1, 1)))  # refuses rows that are not independent
        return core
    if encoded["kind"] != "centered" or integer(encoded["n"], 1) != n:
        raise ValueError("core")
    return CenteredCore(n)
