"""From JSON values to frozen dataclasses of facts, as their annotations say; input from outside."""

from dataclasses import is_dataclass
from types import UnionType
from typing import cast, get_args, get_origin, get_type_hints

from dpquery.strategy.json_values import MOST


def decode(kind: object, raw: object) -> object:
    """Turn JSON values into a dataclass, a tuple or a plain value of the type asked for."""
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(raw, dict):
        hints = get_type_hints(kind)
        return kind(**{name: decode(hints[name], value) for name, value in raw.items()})
    if get_origin(kind) is tuple and isinstance(raw, list | tuple):
        members = get_args(kind)
        members = members[:1] * len(raw) if Ellipsis in members else members
        return tuple(decode(own, value) for own, value in zip(members, raw, strict=True))
    if isinstance(kind, UnionType):
        return None if raw is None else decode(get_args(kind)[0], raw)
    if kind is float and type(raw) in (int, float) and abs(cast(float, raw)) < MOST:
        return float(cast(float, raw))
    if kind is str and isinstance(raw, str):
        raw.encode()  # a lone surrogate can be read, but never written: UnicodeEncodeError
        return raw
    if kind in (int, bool) and type(raw) is kind:
        return raw
    raise TypeError(f"{kind} expected")
