"""Strategies as JSON values, read back: integers only, each checked against the workload.

What is read may be hostile. It can make a release fail before the charge, never make it lie: the
sensitivity is computed from the integers themselves, and a strategy that is singular or does not
measure what is asked is refused here. How each shape is written stands with it.
"""

from dpquery.exceptions import SpecError
from dpquery.operators.blocks import Workload
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.registry import SHAPES
from dpquery.strategy.shapes.size_limits import MAX_ALL_BYTES, MAX_MATRIX_BYTES, check_strategy_size
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.untrusted.json_values import Json, JsonValue, integer, list_of, text_of


def decode_strategy(encoded: Json, *, noise: Noise, workload: Workload) -> Strategy:
    """Return the strategy that a plan holds for a workload; SpecError if it does not fit."""
    try:
        _check_packed(encoded)
        shape = SHAPES[text_of(encoded["shape"])]
        strategy = shape.decode(encoded, text_of(encoded["name"]), noise, workload)
        check_strategy_size(strategy)
        _check_served(strategy, workload)
    except (LookupError, TypeError, ValueError, ArithmeticError, MemoryError):
        raise SpecError(
            "the plan's strategy is damaged or does not fit its spec; run `dpquery plan` again"
        ) from None
    return strategy


def _check_served(strategy: Strategy, workload: Workload) -> None:
    """Refuse a strategy that leaves questions open: a release would notice after the charge."""
    if not strategy.serves(workload):
        raise ValueError("unsupported")


def _check_packed(encoded: Json) -> None:
    """Refuse matrices over MAX_ALL_BYTES in all, or one over MAX_MATRIX_BYTES."""
    remaining: list[JsonValue | Json] = [encoded]
    total = 0
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict) and "data" in value:
            rows, columns = (integer(size, 0) for size in list_of(value["shape"]))
            total += 8 * rows * columns
            if 8 * rows * columns > MAX_MATRIX_BYTES or total > MAX_ALL_BYTES:
                raise ValueError("size")
        elif isinstance(value, dict | list):
            remaining += value.values() if isinstance(value, dict) else value
