"""Integer factors, matrices and weights of subsets as JSON values, and back.

What is read may be hostile: a factor that is singular, too ill-conditioned or of another size than
its attribute is refused with a LookupError, TypeError, ValueError or ArithmeticError.
"""

import base64
import binascii
import zlib

import numpy as np

from dpquery.arrays import Numbers
from dpquery.limits import LARGEST_INTEGER
from dpquery.operators.factors import Dense, Factor, Identity, Ones, total
from dpquery.operators.inverses import inverse_gram
from dpquery.operators.p_identity import BlockPIdentity, PIdentity
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.strategy.algebra.subsets import Subset
from dpquery.untrusted.json_values import (
    Json,
    JsonValue,
    integer,
    list_of,
    mapping,
    scaled_integer,
    text_of,
)

OF_SIZE: dict[str, type[Factor]] = {"identity": Identity, "total": Ones}
"""Factors that are known by their number of classes."""


def encode_factor(factor: Factor) -> JsonValue:
    """Return a factor as JSON values."""
    for kind, of_size in OF_SIZE.items():
        if isinstance(factor, of_size):
            return {"kind": kind, "n": factor.shape[1]}
    if isinstance(factor, Hierarchy):
        levels: list[JsonValue] = [
            [s, w] for s, w in zip(factor.sizes, factor.weights, strict=True)
        ]
        return {"kind": "hierarchy", "n": factor.shape[1], "levels": levels}
    if isinstance(factor, Tree):
        blocks = {"parents": factor.parents, "weights": factor.weights}
        return {"kind": "tree"} | {
            name: [pack(level[None, :]) for level in by_level] for name, by_level in blocks.items()
        }
    if isinstance(factor, PIdentity):
        arrays = {"diagonal": factor.diagonal[None, :], "rows": factor.rows}
        return {"kind": "p-identity"} | {name: pack(array) for name, array in arrays.items()}
    if isinstance(factor, BlockPIdentity):
        arrays = {"diagonal": factor.diagonal[None, :], "inner": factor.inner}
        arrays["outer"] = factor.outer
        packed = {name: pack(array) for name, array in arrays.items()}
        return {"kind": "block-p-identity", "size": factor.size, **packed}
    return {"kind": "dense", "matrix": pack(factor.dense())}


def decode_factor(raw: Json, n: int) -> Factor:
    """Return a factor of an attribute of n classes: of full column rank, or the total."""
    factor: Factor
    match raw["kind"]:
        case "total" if integer(raw["n"], 1) == n:
            factor = total(n)
        case "identity" if integer(raw["n"], 1) == n:
            factor = Identity(n)
        case "hierarchy" if integer(raw["n"], 1) == n:
            pairs = [
                [integer(number, 1) for number in list_of(level)]
                for level in list_of(raw["levels"])
            ]
            factor = Hierarchy(n, [size for size, _ in pairs], [weight for _, weight in pairs])
        case "tree":
            parents, weights = (
                [_unpacked_level(level, n) for level in list_of(raw[name])]
                for name in ("parents", "weights")
            )
            factor = Tree(parents, weights)
            if factor.shape[1] != n:
                raise ValueError("shape")
        case "p-identity":
            diagonal, rows = unpack(raw["diagonal"], n), unpack(raw["rows"], n)
            if len(diagonal) != 1 or not 1 <= len(rows) <= n:
                raise ValueError("p-identity")
            factor = PIdentity(diagonal[0], rows)
            if np.any(factor.diagonal < 1):
                raise ValueError("singular")
            inverse_gram(factor)
        case "block-p-identity":
            factor = _block_p_identity(raw, n)
        case "dense":
            matrix = unpack(raw["matrix"], n)
            if len(matrix) < n:
                raise ValueError("shape")
            factor = Dense(matrix)
            inverse_gram(factor)
        case _:
            raise ValueError("kind")
    return factor


def _block_p_identity(raw: Json, n: int) -> Factor:
    size = integer(raw["size"], 1)
    blocks = -(-n // size)
    diagonal, inner = unpack(raw["diagonal"], n), unpack(raw["inner"], n)
    outer = unpack(raw["outer"], blocks)
    if len(diagonal) != 1 or len(inner) > size or len(outer) > blocks:
        raise ValueError("block-p-identity")
    if np.any(diagonal < 1):
        raise ValueError("singular")
    factor = BlockPIdentity(diagonal[0], inner, outer, size)
    inverse_gram(factor)
    return factor


def encode_weights(weights: dict[Subset, int]) -> list[JsonValue]:
    """Return the weights of subsets as JSON values, sorted."""
    return [[list(b), weight] for b, weight in sorted(weights.items())]


def decode_weights(raw: JsonValue, attributes: int) -> dict[Subset, int]:
    """Return the weights of subsets of so many attributes."""
    weights: dict[Subset, int] = {}
    for pair in list_of(raw):
        subset, weight = list_of(pair)
        b = tuple(integer(i, 0) for i in list_of(subset))
        if list(b) != sorted(set(b)) or any(i >= attributes for i in b):
            raise ValueError("subset")
        weights[b] = scaled_integer(weight)
    return weights


def pack(matrix: Numbers) -> JsonValue:
    """Return a matrix of integers as its shape and its compressed bytes."""
    content = zlib.compress(np.ascontiguousarray(matrix, dtype="<i8").tobytes(), 6)
    return {"shape": list(matrix.shape), "data": base64.b64encode(content).decode()}


def _unpacked_level(raw: JsonValue, most: int) -> Numbers:
    rows, columns = (integer(size, 1) for size in list_of(mapping(raw)["shape"]))
    if rows != 1 or columns > most:
        raise ValueError("shape")
    return np.asarray(unpack(raw, columns)[0])


def unpack(raw: JsonValue, n: int) -> Numbers:
    """Inflate an integer matrix of n columns; its declared shape limits how far."""
    packed = mapping(raw)
    rows, columns = (integer(size, 0) for size in list_of(packed["shape"]))
    if columns != n:
        raise ValueError("shape")
    expected = 8 * rows * columns  # within the limits that decode_strategy checks first
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(
            base64.b64decode(text_of(packed["data"]), validate=True), expected + 1
        )
    except (binascii.Error, zlib.error):
        raise ValueError("data") from None
    if len(content) != expected:
        raise ValueError("length")
    matrix = np.frombuffer(content, dtype="<i8").astype(np.int64).reshape(rows, columns)
    if matrix.size and max(int(matrix.max()), -int(matrix.min())) > LARGEST_INTEGER:
        raise ValueError("range")
    return matrix
