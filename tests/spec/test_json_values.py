"""The reader of JSON from outside: each value has the type and the limits of its field."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import pytest

from dpquery.limits import LARGEST_INTEGER
from dpquery.untrusted.json_values import MOST, Count, NotNegative, Positive, decode, parsed, record


@dataclass(frozen=True)
class Line:
    name: str
    noise: Literal["laplace", "gaussian"]
    queries: Count
    rmse: NotNegative | None
    bound: Positive
    epsilon: Fraction
    converged: bool


LINE = {
    "name": "ages",
    "noise": "laplace",
    "queries": 3,
    "rmse": 0,
    "bound": 1,
    "epsilon": "1/3",
    "converged": True,
}
REFUSED = {
    "name": [None, 1, "\ud800"],
    "noise": [None, "none", 1, ["laplace"]],
    "queries": [0, True, 1.0, LARGEST_INTEGER + 1, "1"],
    "rmse": [-0.5, MOST, 10**400, float("nan"), float("inf"), True, "1"],
    "bound": [0, 0.0, None],
    "epsilon": [1, "-1", "1e3", "1/0", "1/", "1" * 1001],
    "converged": [1, None, "true"],
}


def test_a_record_has_the_types_of_its_fields() -> None:
    line = record(Line, LINE | {"a name of a later version": 1})
    assert line == Line("ages", "laplace", 3, 0.0, 1.0, Fraction(1, 3), converged=True)
    assert isinstance(line.rmse, float)
    assert record(Line, LINE | {"rmse": None}).rmse is None


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_a_value_of_another_type_or_past_its_limits_is_refused(name: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError, ArithmeticError)):
        record(Line, LINE | {name: value})


@pytest.mark.parametrize("raw", [None, 1, "x", [LINE]])
def test_a_record_is_an_object_with_all_names(raw: object) -> None:
    with pytest.raises(TypeError):
        record(Line, raw)  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        record(Line, {})


def test_decode_takes_no_other_names() -> None:
    with pytest.raises(LookupError):
        decode(Line, LINE | {"other": 1})


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 2}', b"NaN", b"[Infinity]", b"{"])
def test_a_text_that_is_ambiguous_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"name|NaN|Infinity|Expecting"):
        parsed(text)
