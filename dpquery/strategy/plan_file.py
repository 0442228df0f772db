"""dpquery.plan: the spec, the compared candidates and the chosen integer strategies, as JSON.

A plan is input from outside when it is read: it holds numbers only, every one is checked against
the spec it carries, and the sensitivity is never read from it but computed anew.
"""

import base64
import binascii
import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Workload
from dpquery.operators.factors import Array, Dense, Factor, Identity, Ones, PIdentity, total
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.select import Objective
from dpquery.strategy.strategies import (
    DirectStrategy,
    MarginalsStrategy,
    ProductStrategy,
    Strategy,
    UnionStrategy,
    inverse_gram,
)

FORMAT = "dpquery.plan/1"
MAX_BYTES = 1 << 30
_LARGEST = 1 << 40  # of any integer in a strategy
_RESIDUAL = 1e-3  # of an inverse times its matrix, off the identity
_OBJECTIVES: dict[str, Objective] = {"rmse": "rmse", "max": "max"}
_NOISES: dict[str, Noise] = {"laplace": "laplace", "gaussian": "gaussian"}

Json = Mapping[str, "JsonValue"]
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True)
class CandidateFigures:
    """One line of the comparison, for unit noise at sensitivity one; None where not applicable."""

    name: str
    rmse: float | None
    weighted_rmse: float | None
    max_std_error: float | None
    exact: bool
    converged: bool
    reason: str


@dataclass(frozen=True)
class ItemFigures:
    """Expected error of one workload item under the chosen strategy, at unit noise."""

    name: str
    queries: int
    rmse: float
    max_std_error: float


@dataclass(frozen=True, eq=False)
class PlannedSelection:
    """The outcome for one kind of noise; `strategy` is kept encoded until the spec is compiled."""

    noise: Noise
    best: str
    strategy: Json
    candidates: tuple[CandidateFigures, ...]
    items: tuple[ItemFigures, ...]
    bound_rmse: float | None
    bound_kind: str

    @property
    def figures(self) -> CandidateFigures:
        """Figures of the chosen candidate."""
        return {own.name: own for own in self.candidates}[self.best]


@dataclass(frozen=True, eq=False)
class Plan:
    """All that release needs beside the data: the spec whole and a strategy for each noise."""

    tool: str
    spec_name: str
    spec_text: str
    spec_files: Mapping[str, str]
    objective: Objective
    seed: int
    selections: tuple[PlannedSelection, ...]
    digest: str = ""

    @property
    def noises(self) -> tuple[Noise, ...]:
        """The kinds of noise that were planned."""
        return tuple(own.noise for own in self.selections)


def encode_strategy(strategy: Strategy) -> dict[str, JsonValue]:
    """Return a strategy as JSON values."""
    head: dict[str, JsonValue] = {"name": strategy.name}
    match strategy:
        case ProductStrategy(factors=factors):
            return head | {"shape": "product", "factors": [_encode_factor(f) for f in factors]}
        case MarginalsStrategy(weights=weights):
            pairs: list[JsonValue] = [[list(b), weight] for b, weight in sorted(weights.items())]
            return head | {"shape": "marginals", "weights": pairs}
        case UnionStrategy():
            return head | {
                "shape": "union",
                "parts": [encode_strategy(part) for part in strategy.parts],
                "weights": list(strategy.weights),
                "groups": [list(group) for group in strategy.groups],
            }
        case DirectStrategy(weights=direct):
            return head | {"shape": "workload", "weights": list(direct)}
    assert_never(strategy)


def decode_strategy(encoded: Json, *, noise: Noise, workload: Workload) -> Strategy:
    """Return the strategy that a plan holds for a workload; SpecError if it does not fit."""
    try:
        strategy = _decode(encoded, noise, workload)
        _check_support(strategy, workload)
    except (KeyError, TypeError, ValueError, LookupError, ArithmeticError, zlib.error):
        raise SpecError(
            "the plan's strategy is damaged or does not fit its spec; run `dpquery plan` again"
        ) from None
    return strategy


def write_plan(plan: Plan) -> bytes:
    """Return the bytes of a plan file: the same plan gives the same bytes."""
    content = {
        "format": FORMAT,
        "tool": plan.tool,
        "spec": {
            "name": plan.spec_name,
            "text": plan.spec_text,
            "files": dict(sorted(plan.spec_files.items())),
        },
        "objective": plan.objective,
        "seed": plan.seed,
        "selections": [
            {
                "noise": own.noise,
                "best": own.best,
                "bound": own.bound_rmse,
                "bound_kind": own.bound_kind,
                "candidates": [vars(figures) for figures in own.candidates],
                "items": [vars(figures) for figures in own.items],
                "strategy": own.strategy,
            }
            for own in plan.selections
        ],
    }
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read_plan(content: bytes) -> Plan:
    """Parse the bytes of a plan file; SpecError if they are not one."""
    try:
        raw = json.loads(content)
        if raw["format"] != FORMAT:
            raise SpecError(f"the plan has format {raw['format']!r}, not {FORMAT!r}; plan again")
        return _parse(raw, hashlib.sha256(content).hexdigest())
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        raise SpecError("this is not a plan file, or it is damaged; run `dpquery plan`") from None


def _parse(raw: dict[str, "JsonValue"], digest: str) -> Plan:
    spec = _mapping(raw["spec"])
    files = {_text(name): _text(text) for name, text in _mapping(spec["files"]).items()}
    return Plan(
        tool=_text(raw["tool"]),
        spec_name=_text(spec["name"]),
        spec_text=_text(spec["text"]),
        spec_files=files,
        objective=_OBJECTIVES[_text(raw["objective"])],
        seed=_integer(raw["seed"], 0),
        selections=tuple(_parse_selection(_mapping(own)) for own in _list(raw["selections"], 1)),
        digest=digest,
    )


def _parse_selection(raw: Json) -> PlannedSelection:
    selection = PlannedSelection(
        noise=_NOISES[_text(raw["noise"])],
        best=_text(raw["best"]),
        strategy=_mapping(raw["strategy"]),
        candidates=tuple(_parse_figures(_mapping(own)) for own in _list(raw["candidates"])),
        items=tuple(_parse_item(_mapping(own)) for own in _list(raw["items"])),
        bound_rmse=_optional(raw["bound"]),
        bound_kind=_text(raw["bound_kind"]),
    )
    best = selection.figures
    if selection.bound_rmse == 0:
        raise ValueError("bound")
    if None in (best.rmse, best.weighted_rmse, best.max_std_error):
        raise ValueError("best")
    return selection


def _parse_figures(raw: Json) -> CandidateFigures:
    return CandidateFigures(
        name=_text(raw["name"]),
        rmse=_optional(raw["rmse"]),
        weighted_rmse=_optional(raw["weighted_rmse"]),
        max_std_error=_optional(raw["max_std_error"]),
        exact=raw["exact"] is True,
        converged=raw["converged"] is True,
        reason=_text(raw["reason"]),
    )


def _parse_item(raw: Json) -> ItemFigures:
    return ItemFigures(
        name=_text(raw["name"]),
        queries=_integer(raw["queries"], 1),
        rmse=_number(raw["rmse"]),
        max_std_error=_number(raw["max_std_error"]),
    )


def _decode(encoded: Json, noise: Noise, workload: Workload) -> Strategy:
    name, shape = _text(encoded["name"]), workload.shape_of_domain
    match encoded["shape"]:
        case "product":
            factors = [_decode_factor(_mapping(own)) for own in _list(encoded["factors"])]
            if tuple(factor.shape[1] for factor in factors) != shape:
                raise ValueError("shape")
            return ProductStrategy(name, noise, tuple(factors))
        case "marginals":
            return MarginalsStrategy(name, noise, shape, _decode_weights(encoded, workload))
        case "union":
            parts = tuple(
                _decode(_mapping(own), noise, workload) for own in _list(encoded["parts"])
            )
            products = tuple(part for part in parts if isinstance(part, ProductStrategy))
            weights = tuple(_integer(own, 1) for own in _list(encoded["weights"]))
            groups = tuple(
                tuple(_integer(position, 0) for position in _list(own))
                for own in _list(encoded["groups"])
            )
            positions = sorted(position for group in groups for position in group)
            if not len(parts) == len(products) == len(weights) == len(groups) > 0:
                raise ValueError("parts")
            if positions != list(range(len(workload.blocks))):
                raise ValueError("groups")
            return UnionStrategy(name, noise, products, weights, groups)
        case "workload":
            weights = tuple(_integer(own, 1) for own in _list(encoded["weights"]))
            if len(weights) != len(workload.blocks):
                raise ValueError("weights")
            return DirectStrategy(name, noise, workload, weights)
        case _:
            raise ValueError("shape")


def _check_support(strategy: Strategy, workload: Workload) -> None:
    """Refuse products that sum over what a block asks for; marginals are checked as they are read.

    A release would find it out too, but only when it writes: after the charge.
    """
    match strategy:
        case ProductStrategy():
            served = all(strategy.supports(block) for block in workload.blocks)
        case UnionStrategy():
            served = all(
                strategy.parts[strategy.part_of(position)].supports(block)
                for position, block in enumerate(workload.blocks)
            )
        case _:
            served = True
    if not served:
        raise ValueError("unsupported")


def _decode_weights(encoded: Json, workload: Workload) -> dict[tuple[int, ...], int]:
    weights: dict[tuple[int, ...], int] = {}
    for pair in _list(encoded["weights"]):
        subset, weight = _list(pair)
        b = tuple(_integer(i, 0) for i in _list(subset))
        if list(b) != sorted(set(b)) or any(i >= len(workload.shape_of_domain) for i in b):
            raise ValueError("subset")
        weights[b] = _integer(weight, 1)
    sizes = workload.shape_of_domain
    for block in workload.blocks:
        wanted = {i for i in block.attributes if sizes[i] > 1}
        if not any(wanted <= set(b) for b in weights):
            raise ValueError("unsupported")
    return weights


def _encode_factor(factor: Factor) -> JsonValue:
    if isinstance(factor, Identity):
        return {"kind": "identity", "n": factor.shape[1]}
    if isinstance(factor, Ones):
        return {"kind": "total", "n": factor.shape[1]}
    if isinstance(factor, PIdentity):
        arrays = {"diagonal": factor.diagonal[None, :], "rows": factor.rows}
        return {"kind": "p-identity"} | {name: _pack(own) for name, own in arrays.items()}
    return {"kind": "dense", "matrix": _pack(factor.dense())}


def _decode_factor(raw: Json) -> Factor:
    factor: Factor
    match raw["kind"]:
        case "identity":
            return Identity(_integer(raw["n"], 1))
        case "total":
            return total(_integer(raw["n"], 1))
        case "p-identity":
            factor = PIdentity(_unpack(raw["diagonal"])[0], _unpack(raw["rows"]))
            if np.any(factor.diagonal < 1):
                raise ValueError("diagonal")
        case "dense":
            factor = Dense(_unpack(raw["matrix"]))
            _check_rank(factor)
        case _:
            raise ValueError("kind")
    if not np.isfinite(inverse_gram(factor)).all():
        raise ValueError("singular")
    return factor


def _check_rank(factor: Factor) -> None:
    """Refuse a matrix whose Gram cannot be inverted in floats, though no error tells of it."""
    scale = float(factor.max_abs()) ** 2
    residual = (inverse_gram(factor) * scale) @ (factor.gram() / scale) - np.eye(factor.shape[1])
    if not np.abs(residual).max() < _RESIDUAL:
        raise ValueError("singular")


def _pack(matrix: Array) -> JsonValue:
    content = zlib.compress(np.ascontiguousarray(matrix, dtype="<i8").tobytes(), 6)
    return {"shape": list(matrix.shape), "data": base64.b64encode(content).decode()}


def _unpack(raw: JsonValue) -> Array:
    """Inflate an integer matrix; its declared shape limits how far."""
    packed = _mapping(raw)
    rows, columns = (_integer(n, 0) for n in _list(packed["shape"]))
    expected = 8 * rows * columns
    if expected > MAX_BYTES:
        raise ValueError("size")
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(
            base64.b64decode(_text(packed["data"]), validate=True), expected + 1
        )
    except binascii.Error:
        raise ValueError("base64") from None
    if len(content) != expected:
        raise ValueError("length")
    matrix = np.frombuffer(content, dtype="<i8").astype(np.int64).reshape(rows, columns)
    if matrix.size and max(int(matrix.max()), -int(matrix.min())) > _LARGEST:
        raise ValueError("range")
    return matrix


def _mapping(value: JsonValue) -> Json:
    if not isinstance(value, dict):
        raise TypeError("mapping")
    return value


def _list(value: JsonValue, least: int = 0) -> list[JsonValue]:
    if not isinstance(value, list) or len(value) < least:
        raise TypeError("list")
    return value


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise TypeError("text")
    return value


def _integer(value: JsonValue, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _LARGEST:
        raise ValueError("integer")
    return value


def _number(value: JsonValue) -> float:
    """Return a figure of an error: finite, and never negative."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError("number")
    return float(value)


def _optional(value: JsonValue) -> float | None:
    return None if value is None else _number(value)
