"""Strategies as JSON values, and back: integers only, each checked against the workload.

What is read may be hostile. It can make a release fail before the charge, never make it lie: the
sensitivity is computed from the integers themselves, and a strategy that is singular or does not
measure what is asked is refused here.
"""

import base64
import binascii
import zlib
from typing import assert_never

import numpy as np

from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Workload
from dpquery.operators.factors import Array, Dense, Factor, Identity, Ones, PIdentity, total
from dpquery.operators.hierarchies import Haar, Hierarchy
from dpquery.operators.inverses import inverse_gram
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.answerable import supports
from dpquery.strategy.shapes.cores import CenteredCore, Core, DenseCore
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy
from dpquery.strategy.shapes.product import ProductStrategy
from dpquery.strategy.shapes.quad_tree import Level, QuadTreeStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.size_limits import MAX_ALL_BYTES, MAX_MATRIX_BYTES, check_strategy_size
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.strategy.shapes.union import UnionStrategy
from dpquery.untrusted.json_values import (
    LARGEST_INTEGER,
    Json,
    JsonValue,
    integer,
    list_of,
    mapping,
    scaled_integer,
    text_of,
)


def encode_strategy(strategy: Strategy) -> dict[str, JsonValue]:
    """Return a strategy as JSON values."""
    head: dict[str, JsonValue] = {"name": strategy.name}
    match strategy:
        case ProductStrategy(factors=factors):
            return head | {"shape": "product", "factors": [_encode_factor(f) for f in factors]}
        case MarginalsStrategy(weights=weights, factors=by_attribute):
            pairs: list[JsonValue] = [[list(b), weight] for b, weight in sorted(weights.items())]
            placed: list[JsonValue] = [
                [i, _encode_factor(by_attribute[i])] for i in sorted(by_attribute)
            ]
            return head | {"shape": "marginals", "weights": pairs, "factors": placed}
        case ResidualStrategy(cores=cores, weights=weights):
            pairs = [[list(b), weight] for b, weight in sorted(weights.items())]
            encoded: list[JsonValue] = [_encode_core(core) for core in cores]
            return head | {"shape": "residual", "cores": encoded, "weights": pairs}
        case UnionStrategy():
            return head | {
                "shape": "union",
                "parts": [encode_strategy(part) for part in strategy.parts],
                "weights": list(strategy.weights),
                "groups": [list(group) for group in strategy.groups],
            }
        case QuadTreeStrategy(pair=pair, levels=levels):
            listing: list[JsonValue] = [[*level.sizes, level.weight] for level in levels]
            return head | {"shape": "quad-tree", "pair": list(pair), "levels": listing}
        case DirectStrategy(weights=direct):
            return head | {"shape": "workload", "weights": list(direct)}
    assert_never(strategy)


def decode_strategy(encoded: Json, *, noise: Noise, workload: Workload) -> Strategy:
    """Return the strategy that a plan holds for a workload; SpecError if it does not fit."""
    try:
        _check_packed(encoded)
        strategy = _decode(encoded, noise, workload)
        check_strategy_size(strategy)
        _check_support(strategy, workload)
    except (LookupError, TypeError, ValueError, ArithmeticError, MemoryError, zlib.error):
        raise SpecError(
            "the plan's strategy is damaged or does not fit its spec; run `dpquery plan` again"
        ) from None
    return strategy


def _decode(encoded: Json, noise: Noise, workload: Workload) -> Strategy:
    name, shape = text_of(encoded["name"]), workload.shape_of_domain
    match encoded["shape"]:
        case "product":
            encoded_factors = zip(list_of(encoded["factors"]), shape, strict=True)
            factors = [_decode_factor(mapping(factor), n) for factor, n in encoded_factors]
            return ProductStrategy(name, noise, tuple(factors))
        case "marginals":
            by_subset, by_attribute = (
                _decode_weights(encoded, workload),
                _decode_factors(encoded, shape),
            )
            return MarginalsStrategy(name, noise, shape, by_subset, by_attribute)
        case "residual":
            pairs = zip(list_of(encoded["cores"]), shape, strict=True)
            cores = tuple(_decode_core(core, n) for core, n in pairs)
            return ResidualStrategy(name, noise, cores, _decode_weights(encoded, workload))
        case "union":
            return _decode_union(encoded, name, noise, workload)
        case "quad-tree":
            return _decode_quad_tree(encoded, name, noise, shape)
        case "workload":
            weights = tuple(scaled_integer(weight) for weight in list_of(encoded["weights"]))
            if len(weights) != len(workload.blocks):
                raise ValueError("weights")
            return DirectStrategy(name, noise, workload, weights)
        case _:
            raise ValueError("shape")


def _decode_union(encoded: Json, name: str, noise: Noise, workload: Workload) -> UnionStrategy:
    parts = tuple(_decode(mapping(part), noise, workload) for part in list_of(encoded["parts"]))
    products = tuple(part for part in parts if isinstance(part, ProductStrategy))
    weights = tuple(scaled_integer(weight) for weight in list_of(encoded["weights"]))
    groups = tuple(
        tuple(integer(position, 0) for position in list_of(group, 1))
        for group in list_of(encoded["groups"])
    )
    if not len(parts) == len(products) == len(weights) == len(groups) > 0:
        raise ValueError("parts")
    positions = sorted(position for group in groups for position in group)
    if positions != list(range(len(workload.blocks))):
        raise ValueError("groups")
    return UnionStrategy(name, noise, products, weights, groups)


def _check_support(strategy: Strategy, workload: Workload) -> None:
    """Refuse a strategy that does not support every block of the workload.

    A release would find it out too, but only when it writes: after the charge.
    """
    match strategy:
        case UnionStrategy():
            served = all(
                strategy.parts[strategy.part_of(position)].supports(block)
                for position, block in enumerate(workload.blocks)
            )
        case DirectStrategy():
            served = True
        case _:
            served = all(supports(strategy, block) for block in workload.blocks)
    if isinstance(strategy, ResidualStrategy):
        # With every set that lacks one of its members, and theirs, all of its subsets are there.
        measured = strategy.weights
        served = served and all(
            b[:k] + b[k + 1 :] in measured for b in measured for k in range(len(b))
        )
    if not served:
        raise ValueError("unsupported")


def _decode_quad_tree(
    encoded: Json, name: str, noise: Noise, shape: tuple[int, ...]
) -> QuadTreeStrategy:
    first, second = (integer(position, 0) for position in list_of(encoded["pair"]))
    levels = []
    for raw in list_of(encoded["levels"]):
        rows, columns, weight = (integer(number, 1) for number in list_of(raw))
        levels.append(Level((rows, columns), weight))
    return QuadTreeStrategy(name, noise, shape, (first, second), tuple(levels))


def _decode_weights(encoded: Json, workload: Workload) -> dict[tuple[int, ...], int]:
    weights: dict[tuple[int, ...], int] = {}
    for pair in list_of(encoded["weights"]):
        subset, weight = list_of(pair)
        b = tuple(integer(i, 0) for i in list_of(subset))
        if list(b) != sorted(set(b)) or any(i >= len(workload.shape_of_domain) for i in b):
            raise ValueError("subset")
        weights[b] = scaled_integer(weight)
    return weights


def _decode_factors(encoded: Json, shape: tuple[int, ...]) -> dict[int, Factor]:
    """Return the factors of marginals, each of full column rank."""
    factors: dict[int, Factor] = {}
    for pair in list_of(encoded["factors"]):
        place, raw = list_of(pair)
        i, factor = integer(place, 0), mapping(raw)
        if i in factors or factor["kind"] == "total":
            raise ValueError("factors")
        factors[i] = _decode_factor(factor, shape[i])
        if factor["kind"] != "identity":
            inverse_gram(factors[i])
    return factors


def _encode_factor(factor: Factor) -> JsonValue:
    if isinstance(factor, Identity):
        return {"kind": "identity", "n": factor.shape[1]}
    if isinstance(factor, Ones):
        return {"kind": "total", "n": factor.shape[1]}
    if isinstance(factor, Haar):
        return {"kind": "haar", "n": factor.shape[1]}
    if isinstance(factor, Hierarchy):
        levels: list[JsonValue] = [
            [s, w] for s, w in zip(factor.sizes, factor.weights, strict=True)
        ]
        return {"kind": "hierarchy", "n": factor.shape[1], "levels": levels}
    if isinstance(factor, PIdentity):
        arrays = {"diagonal": factor.diagonal[None, :], "rows": factor.rows}
        return {"kind": "p-identity"} | {name: _pack(array) for name, array in arrays.items()}
    return {"kind": "dense", "matrix": _pack(factor.dense())}


def _encode_core(core: Core | None) -> JsonValue:
    if core is None:
        return None
    if isinstance(core, DenseCore):
        return {"kind": "dense", "matrix": _pack(core.factor.dense())}
    return {"kind": "centered", "n": core.factor.shape[1]}


def _decode_core(raw: JsonValue, n: int) -> Core | None:
    if n == 1 or raw is None:
        if n != 1 or raw is not None:
            raise ValueError("core")
        return None
    encoded = mapping(raw)
    if encoded["kind"] == "dense":
        core = DenseCore(_unpack(encoded["matrix"], n))
        core.recover(np.zeros((n - 1, 1)))  # refuses rows that are not independent
        return core
    if encoded["kind"] != "centered" or integer(encoded["n"], 1) != n:
        raise ValueError("core")
    return CenteredCore(n)


def _decode_factor(raw: Json, n: int) -> Factor:
    factor: Factor
    match raw["kind"]:
        case "identity":
            factor = Identity(integer(raw["n"], 1))
        case "total":
            factor = total(integer(raw["n"], 1))
        case "haar" if integer(raw["n"], 1) == n:
            factor = Haar(n)
        case "hierarchy" if integer(raw["n"], 1) == n:
            pairs = [
                [integer(number, 1) for number in list_of(level)]
                for level in list_of(raw["levels"])
            ]
            factor = Hierarchy(n, [size for size, _ in pairs], [weight for _, weight in pairs])
        case "p-identity":
            diagonal, rows = _unpack(raw["diagonal"], n), _unpack(raw["rows"], n)
            if len(diagonal) != 1 or not 1 <= len(rows) <= n:
                raise ValueError("p-identity")
            factor = PIdentity(diagonal[0], rows)
            if np.any(factor.diagonal < 1):
                raise ValueError("singular")
            inverse_gram(factor)
        case "dense":
            matrix = _unpack(raw["matrix"], n)
            if len(matrix) < n:
                raise ValueError("shape")
            factor = Dense(matrix)
            inverse_gram(factor)
        case _:
            raise ValueError("kind")
    if factor.shape[1] != n:
        raise ValueError("shape")
    return factor


def _pack(matrix: Array) -> JsonValue:
    content = zlib.compress(np.ascontiguousarray(matrix, dtype="<i8").tobytes(), 6)
    return {"shape": list(matrix.shape), "data": base64.b64encode(content).decode()}


def _check_packed(encoded: Json) -> None:
    """Refuse matrices over MAX_ALL_BYTES in all, or one over MAX_MATRIX_BYTES."""
    todo: list[JsonValue | Json] = [encoded]
    total = 0
    while todo:
        value = todo.pop()
        if isinstance(value, dict) and "data" in value:
            rows, columns = (integer(size, 0) for size in list_of(value["shape"]))
            total += 8 * rows * columns
            if 8 * rows * columns > MAX_MATRIX_BYTES or total > MAX_ALL_BYTES:
                raise ValueError("size")
        elif isinstance(value, dict | list):
            todo += value.values() if isinstance(value, dict) else value


def _unpack(raw: JsonValue, n: int) -> Array:
    """Inflate an integer matrix of n columns; its declared shape limits how far."""
    packed = mapping(raw)
    rows, columns = (integer(size, 0) for size in list_of(packed["shape"]))
    if columns != n:
        raise ValueError("shape")
    expected = 8 * rows * columns  # within the limits of _check_packed
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(
            base64.b64decode(text_of(packed["data"]), validate=True), expected + 1
        )
    except binascii.Error:
        raise ValueError("base64") from None
    if len(content) != expected:
        raise ValueError("length")
    matrix = np.frombuffer(content, dtype="<i8").astype(np.int64).reshape(rows, columns)
    if matrix.size and max(int(matrix.max()), -int(matrix.min())) > LARGEST_INTEGER:
        raise ValueError("range")
    return matrix
