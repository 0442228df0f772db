"""Strategies read back from JSON values: integers only, each checked against the workload.

What is read may be hostile. It can make a release fail before the charge, never make it false: the
sensitivity is computed from the integers themselves, and a strategy that is singular or does not
answer its workload is refused here. Encoding and decoding of each shape stand with the shape.
"""

from dpquery.exceptions import SpecError
from dpquery.limits import MAX_MATRICES_BYTES, MAX_MATRIX_BYTES
from dpquery.operators.blocks import Workload
from dpquery.strategy.noise_kinds import Noise
from dpquery.strategy.shapes.registry import SHAPES
from dpquery.strategy.shapes.size_limits import check_strategy_size
from dpquery.strategy.shapes.strategies import Strategy
from dpquery.untrusted.json_values import Json, JsonValue, integer, list_of, text_of


def decode_strategy(encoded: Json, *, noise: Noise, workload: Workload) -> Strategy:
    """Return the strategy that a plan describes.

    Args:
        encoded: what `Strategy.encode` returned, or hostile.
        noise: what is added.
        workload: that it is to answer.

    Raises:
        SpecError: it is damaged, too large, or does not answer the workload.
    """
    try:
        _check_packed(encoded)
        shape = SHAPES[text_of(encoded["shape"])]
        strategy = shape.decode(encoded, text_of(encoded["name"]), noise, workload)
        check_strategy_size(strategy)
        _check_served(strategy, workload)
    except (LookupError, TypeError, ValueError, ArithmeticError, MemoryError, RecursionError):
        raise SpecError(
            "the plan's strategy is damaged or does not fit its spec; run `dpquery plan` again"
        ) from None
    return strategy


def _check_served(strategy: Strategy, workload: Workload) -> None:
    """Refuse what does not answer its workload: a release would notice only after the charge."""
    if not strategy.serves(workload):
        raise ValueError("unsupported")


def _check_packed(encoded: Json) -> None:
    """Refuse matrices over MAX_MATRICES_BYTES in all, or one over MAX_MATRIX_BYTES."""
    remaining: list[JsonValue | Json] = [encoded]
    total = 0
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict) and "data" in value:
            rows, columns = (integer(size, 0) for size in list_of(value["shape"]))
            total += 8 * rows * columns
            if 8 * rows * columns > MAX_MATRIX_BYTES or total > MAX_MATRICES_BYTES:
                raise ValueError("size")
        elif isinstance(value, dict | list):
            remaining += value.values() if isinstance(value, dict) else value
