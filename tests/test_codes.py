"""Every text has the code that the rules of its column say, or none."""

import pytest

from dpquery.measurement.counting.value_codes import code_of
from dpquery.spec.domain import Bins, Boolean, Categorical, Column, Integers


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        (Integers(0, 40), {b"34": 34, b"+34": 34, b"34.0": 34, b"034": 34, b"34.": 34, b"-0": 0}),
        (
            Integers(0, 40),
            dict.fromkeys([b"34.5", b"3e-1", b"0x1", b"1_0", b"--1", b"41", b""], -1),
        ),
        (Integers(0, 40), dict.fromkeys([b"9" * 5000, "٣".encode(), b"\xff", b"nan", b"."], -1)),
        (Integers(-3, 3), {b"-3": 0, b"-4": -1, b" 3\t": 6}),
        (
            Bins((0.0, 1.0, 2.5)),
            {b"0": 0, b"-0.0": 0, b"1": 1, b"2.4999": 1, b"1e-400": 0, b".5": 0},
        ),
        (
            Bins((0.0, 1.0)),
            dict.fromkeys([b"1", b"-1e-9", b"nan", b"inf", b"1e400", b"-1e400"], -1),
        ),
        (Bins((0.0, 1.0)), dict.fromkeys([b"", b"0_1", b"0x0", b"1" * 100, b"0" * 100], -1)),
        (Boolean(), {b"TRUE": 1, b" y ": 1, b"0": 0, b"No": 0, b"maybe": -1, b"": -1, b"\xff": -1}),
        (Categorical(("a", ""), ("a", "none")), {b"a": 0, b" a": 0, b"": 1, b" ": 1, b"A": -1}),
        (Categorical(("é, x",), ("e",)), {"é, x".encode(): 0, "é, x".encode("latin-1"): -1}),
    ],
)
def test_texts_have_the_documented_codes(kind, codes):
    plain, binned = code_of(Column("c", kind)), code_of(Column("c", kind, other=True))
    length = Column("c", kind).length
    for text, code in codes.items():
        assert plain(text) == code, text
        assert binned(text) == (length if code < 0 else code), text
