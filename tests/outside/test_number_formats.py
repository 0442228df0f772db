"""`number` reads numbers with separators of thousands, another mark or a sign, and says so."""

import random
import sqlite3
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from town import checked, counts, planned, released, spec_text

import dpquery
from dpquery.exceptions import DataError

GERMAN = "{thousands: '.', decimal: ','}"
EDGES = "[0, 1, 2, 1000, 2000]"
ITEM = ["{name: t, product: {x: identity}}", "{name: n, product: {}}"]


def plan_of(folder, declared, *, more=""):
    planned(folder, spec_text({"x": declared}, ITEM, more=more))


def csv_of(folder, texts, name="d.csv"):
    lines = "".join('"{}"\n'.format(text.replace('"', '""')) for text in texts)
    (folder / name).write_text("x\n" + lines, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("", [0, 1, 0, 0]),
        (f", number: {GERMAN}", [0, 0, 0, 1]),
        (", number: {sign: '%'}", [0, 1, 0, 0]),
    ],
)
def test_one_point_is_decimal_or_thousand_as_declared(tmp_path, number, expected):
    plan_of(tmp_path, f"{{bins: {EDGES}{number}}}")
    tables = released(tmp_path, csv_of(tmp_path, ["1.234"]))
    assert counts(tables["t"]) == expected
    assert counts(tables["n"]) == [1]


READ = {
    GERMAN: {
        "1.234": 1234, "1.234,5": 1234.5, "-1.234": -1234, "1234": 1234, "0,5": 0.5, "12.34": None,
        "1.2345": None, "1,234.5": None, "1.234.567": 1234567, ".234": None, "1..234": None,
    },
    "{thousands: ',', sign: '$'}": {
        "$1,234.50": 1234.5, "-$5": -5, "$-5": -5, "5 $": 5, "$ 5": 5, "5": 5, "$": None,
        "$$5": None, "1,23": None, "5%": None, "--5": None, "$5$": None, "+$5": 5, "5,000": 5000,
    },
    "{sign: '%'}": {"12 %": 12, "12.5%": 12.5, "% 3": 3, "1,5 %": None, "1e2%": 100, "-3%": -3},
    "{thousands: space, decimal: ','}": {
        "1\u00a0234,5": 1234.5, "1 234": 1234, "1\u202f234\u202f567": 1234567, "12 34": None,
    },
    "{thousands: \"'\", sign: CHF}": {
        "CHF 1'234.55": 1234.55, "1\u2019234 CHF": 1234, "EUR 5": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("number", READ)
def test_numbers_are_read_as_they_are_declared_and_nothing_else_is_one(tmp_path, number):
    """Each number lies in a bin of its own; what is none is counted in the total alone."""
    known = sorted({value for value in READ[number].values() if value is not None})
    edges = [edge for value in known for edge in (value, value + 0.01)]
    plan_of(tmp_path, f"{{bins: {edges}, number: {number}}}")
    texts = list(READ[number])
    few, many = csv_of(tmp_path, texts), csv_of(tmp_path, 200 * texts, "many.csv")
    for place, times in ((few, 1), (many, 200)):  # so many are coded otherwise than a few
        tables = released(tmp_path, place)
        found = counts(tables["t"])
        assert found[1::2] == [0] * (len(known) - 1)
        values = list(READ[number].values())
        assert found[::2] == [times * values.count(value) for value in known]
        assert counts(tables["n"]) == [times * len(texts)]


def written(value, thousands, decimal, sign):
    """A number as a person of some country writes it."""
    whole, _, after = f"{abs(value)}".partition(".")
    groups = f"{int(whole):,}".replace(",", thousands)
    text = ("-" if value < 0 else "") + groups + (decimal + after if after else "")
    return f"{text} {sign}" if sign else text


def test_random_numbers_in_random_formats_are_counted_as_a_recount_says(tmp_path):
    rng = random.Random(3)  # noqa: S311 - made-up rows
    for thousands, decimal, sign in ((".", ",", "€"), (",", ".", ""), ("'", ".", "%")):
        place = tmp_path / f"{ord(thousands)}"
        place.mkdir()
        edges = [-100000, -10, 0, 0.5, 999.5, 1000, 54321.25, 10**7]
        number = {"thousands": thousands, "decimal": decimal} | ({"sign": sign} if sign else {})
        plan_of(place, yaml.safe_dump({"bins": edges, "number": number}, default_flow_style=True))
        values = [
            Decimal(rng.randrange(-(10**7), 10**9)).scaleb(-rng.randrange(4)) for _ in range(300)
        ]
        values = [Decimal(f"{value:f}") for value in values]
        texts = [written(value, thousands, decimal, sign) for value in values]
        bounds = [Decimal(str(edge)) for edge in edges]
        expected = [sum(low <= value < high for value in values) for low, high in pairwise(bounds)]
        assert counts(released(place, csv_of(place, texts))["t"]) == expected


def test_typed_numbers_are_themselves(tmp_path):
    plan_of(tmp_path, f"{{bins: {EDGES}, number: {GERMAN}}}")
    pq.write_table(pa.table({"x": [1.234, 1234.0, 0.5]}), tmp_path / "d.parquet")
    pq.write_table(pa.table({"x": ["1.234", "0,5"]}), tmp_path / "e.parquet")
    places = [tmp_path / "d.parquet", tmp_path / "e.parquet"]
    assert counts(released(tmp_path, places)["t"]) == [2, 1, 0, 2]
    assert "every record is counted, all 5" in checked(tmp_path, *places)[1]
    assert "undeclared" not in checked(tmp_path, *places)[1]


def test_where_texts_and_numbers_are_not_told_apart_it_is_refused_before_the_charge(tmp_path):
    plan_of(tmp_path, f"{{bins: {EDGES}, number: {GERMAN}}}")
    with sqlite3.connect(tmp_path / "d.db") as connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(DataError, match="leave `number` out") as refused:
        released(tmp_path, f"sqlite:{tmp_path}/d.db?table=t")
    assert "charge stands" not in str(refused.value)


def test_another_format_is_another_release(tmp_path):
    data, paid = csv_of(tmp_path, ["1.234"]), []
    for number in ("", f", number: {GERMAN}", ", number: {thousands: ','}", f", number: {GERMAN}"):
        (tmp_path / "s.yaml").write_text(spec_text({"x": f"{{bins: {EDGES}{number}}}"}, ITEM))
        own = {"plan_path": tmp_path / "p", "ledger_path": tmp_path / "l.db"}
        dpquery.plan(tmp_path / "s.yaml", **own)
        done = dpquery.release(data, epsilon=1, out=tmp_path / "r", replace=True, **own)
        paid.append(not done.free)
    assert paid == [True, True, True, False]


OFFERED = {
    "1.234,50 1.000 12.500 7": {"thousands": ".", "decimal": ","},
    "$1,234 $999 $12,500.50": {"thousands": ",", "decimal": ".", "sign": "$"},
    "12% 15% 7%": {"decimal": ".", "sign": "%"},
    "1'234 12'500 7": {"thousands": "'", "decimal": "."},
}


@pytest.mark.parametrize("texts", OFFERED)
def test_check_offers_the_format_that_reads_the_numbers(tmp_path, texts):
    domain = {"x": "{bins: [0, 1000, 2000, 20000]}"}
    (tmp_path / "s.yaml").write_text(spec_text(domain, ITEM))
    data = csv_of(tmp_path, texts.split())
    _, said = checked(tmp_path, data)
    offered = yaml.safe_load(said.partition("# To paste")[2].partition("\n")[2])["domain"]["x"]
    assert offered["number"] == OFFERED[texts]
    plan_of(tmp_path, yaml.safe_dump(offered, default_flow_style=True, width=9999).strip())
    assert sum(counts(released(tmp_path, data)["t"])) == len(texts.split())
    assert "see what the code book says" in said


def test_decimals_that_may_be_thousands_are_said_to_be(tmp_path):
    (tmp_path / "s.yaml").write_text(spec_text({"x": "{range: [0, 9000]}"}, ITEM))
    for texts, said_so in (("1.234 2.345 999", True), ("1.234 2.5", False)):
        _, said = checked(tmp_path, csv_of(tmp_path, texts.split()))
        assert "bins take both" in said
        assert (
            f"1.234 is 1234, the range with number: {GERMAN}" in said.replace('"', "'")
        ) == said_so
