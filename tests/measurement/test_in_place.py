"""Counting in place: the codes of an engine are ours, rows of a person stay by their own cells."""

import datetime
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from data import assert_equal, counted, moved, single, spec_of
from engines import DAYS, LEVELS

from dpquery.exceptions import DataError
from dpquery.measurement.counting.engines import probe, pushed_codes, warehouses
from dpquery.measurement.counting.engines.probe import TEXTS
from dpquery.measurement.counting.engines.pushed_codes import folding_pattern
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.progress import reporting
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Integers
from dpquery.spec.spec import FileFormat

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("ibis")


def written(path, **columns):
    """Write the table `t` of Arrow arrays, and return where it is counted in place, and read."""
    path.unlink(missing_ok=True)
    with duckdb.connect(path) as connection:
        connection.register("rows", pa.table(columns))
        connection.execute("CREATE TABLE t AS SELECT * FROM rows")
    return Path(f"ibis:duckdb:{path}?table=t"), Path(f"duckdb:{path}?table=t")


KINDS = {
    "texts": Categorical(
        ("a", "É", "'", "\\"), ("a", "e", "q", "b"), (("A", "b%"), (), (), ("$",))
    ),
    "texts and numbers": LEVELS,
    "numbers": Categorical(("-2", "0.5", "1000", "0", "1e22"), tuple("abcde")),
    "whole": Integers(-3, 1500),
    "bins": Bins((-3.0, -1.5, 0.0, 0.1, 0.3, 0.5, 1.0, 1.25, 2000.0)),
    "truth": Boolean(("yes", "1", "straße"), ("no", "5e-1", "fi")),
    "weeks": DAYS,
}
NUMBERS = ["1", "-2", "0.5", "1000.0", "3.7", "0x10", "1d", "-0", "1e3", "10e-1", "0,5", "STRASSE"]
VALUES = {
    "texts": pa.array([*TEXTS, *NUMBERS, "ﬁ", "STRAßE", "É ", None]),
    "doubles": pa.array([*probe._DOUBLES, 0.29999999999999999, 1000.0, -2.0, None]),
    "whole": pa.array([-(2**63), 2**63 - 1, 2**53 + 1, -2, 0, 1, 1000, 1500, 1501, None]),
    "bytes": pa.array([0, 1, 100, None], pa.uint8()),
    "truth": pa.array([True, False, None]),
    "dates": pa.array([*probe._DAYS, DAYS.first, DAYS.last, None]),
    "times": pa.array([datetime.datetime(2024, 6, 30, 23, 59), datetime.datetime(1, 1, 1), None]),
    "decimals": pa.array(["0.50", "-2.00", "1000.00", "1.01", "3.70", None]).cast(
        pa.decimal128(12, 2)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", VALUES)
def test_the_codes_of_an_engine_are_those_of_our_coder(kind, values, tmp_path):
    place, rows = written(tmp_path / "d", c=VALUES[values])
    of_days = values in ("dates", "times")
    refused = values in ("doubles", "whole", "bytes", "truth") if kind == "weeks" else of_days
    for other in ("show", "drop"):
        spec = spec_of(single("c", KINDS[kind], other=other))
        if refused:
            with pytest.raises(DataError, match="column c"):
                check_header(place, spec)
            continue
        if other == "show":
            check_header(place, spec)
        assert_equal(counted(place, spec, [(), (0,)]), counted(rows, spec, [(), (0,)]))


def test_dates_without_end_are_other_dates(tmp_path):
    path = tmp_path / "d"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE t (d DATE, t TIMESTAMP)")
        connection.execute("INSERT INTO t VALUES ('infinity', '-infinity'), (NULL, 'infinity')")
        connection.execute("INSERT INTO t VALUES ('2024-02-29', '2024-02-29 01:00')")
        connection.execute("INSERT INTO t VALUES ('0044-03-15 (BC)', '20000-01-01')")
    place, rows = (Path(f"{kind}:{path}?table=t") for kind in ("ibis:duckdb", "duckdb"))
    for name in ("d", "t"):
        spec = spec_of(single(name, DAYS, other="show"))
        check_header(place, spec)
        assert counted(place, spec, [()])[()] == 4
        assert_equal(counted(place, spec, [(0,)]), counted(rows, spec, [(0,)]))


def test_decimal_commas_and_many_columns_of_one_attribute(tmp_path):
    texts = pa.array(["0,5", "1,0", "1.0", "1", "0,50e0", ",5", "-1,5", None])
    place, rows = written(
        tmp_path / "d", a=texts, b=pa.array([0.5, 1.0, 1.5, None] * 2), c=pa.array([True, None] * 4)
    )
    columns = tuple(Column(n, k, "count") for n, k in (("b", KINDS["bins"]), ("c", Boolean())))
    spec = spec_of(single("a", Bins((0.0, 0.5, 1.0, 2.0)), other="show"), Attribute("bc", columns))
    spec = warehouses.replace(spec, file=FileFormat(decimal=","))
    check_header(place, spec)
    subsets = [(), (0,), (1,), (0, 1)]
    assert_equal(counted(place, spec, subsets), counted(rows, spec, subsets))


def test_classes_are_counted_whatever_their_order(tmp_path):
    place, rows = written(tmp_path / "d", c=pa.array([*range(12), 50, None] * 3))
    spec = spec_of(single("c", Integers(0, 9), other="count"))
    scattered = [3, 1, 0, 2, 3, 1, 0, 4, 4, 0, 1]
    for classes in (range(11), [0] * 6 + [1] * 5, scattered):
        own = [np.array(classes)]
        check_header(place, spec, own)
        one, other = (
            tabulate(where, spec=spec, subsets=[(0,)], classes=own) for where in (place, rows)
        )
        assert_equal(one, other)


def test_a_collation_of_a_column_has_no_say(tmp_path):
    path = tmp_path / "d"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE t (c VARCHAR COLLATE NOCASE, id VARCHAR COLLATE NOCASE)")
        connection.execute("INSERT INTO t VALUES ('a', 'p'), ('A', 'P'), ('a ', ' p'), (NULL, 'q')")
    for person in (None, "id"):
        spec = spec_of(
            single("c", Categorical(("a",), ("a",)), other="show"), person=person, max_rows=1
        )
        found = counted(Path(f"ibis:duckdb:{path}?table=t"), spec, [(0,)])[0,]
        assert found.sum() == (4 if person is None else 3)
        if person is None:
            assert found.tolist() == [2, 2]


def test_yes_and_no_are_read_in_every_spelling_that_casefolds_to_them():
    import re

    for text in ("yes", "straße".casefold(), "k", "ﬃ".casefold(), "", "[^-]\\"):
        pattern = re.compile(f"^({folding_pattern(text)})$")
        near = {
            "".join(own) for own in itertools.product(*({c, c.upper(), c.lower()} for c in text))
        }
        near |= {"YES", "ye\u017f", "STRAßE", "STRAẞE", "\u212a", "ﬃ", "ﬀi", "fﬁ", "x", "sTRASSE"}
        for one in near:
            assert bool(pattern.search(one)) == (one.casefold() == text), (text, one)


# ------------------------------------------------------------------------------------ stability


def random_rows(generator, count, *, persons):
    choices = (["M", "F", "m ", None], [0, 1, 2, 5, None], [0.0, 0.1, 1.5, math.nan, None])
    rows = [tuple(own[generator.integers(len(own))] for own in choices) for _ in range(count)]
    return [(*row, f"p{generator.integers(persons)}") for row in rows]


def place_of(rows, path):
    columns = list(zip(*rows, strict=True)) or [()] * 4
    kinds = (pa.string(), pa.int32(), pa.float64(), pa.string())
    arrays = {
        name: pa.array(own, kind)
        for name, own, kind in zip(("sex", "age", "pay", "id"), columns, kinds, strict=True)
    }
    return written(path, **arrays)[0]


def three(other, **privacy):
    return spec_of(
        single("sex", Categorical(("M", "F"), ("M", "F")), other=other),
        single("age", Integers(0, 2), other=other),
        single("pay", Bins((0.0, 0.1, 9.0)), other=other),
        **privacy,
    )


ALL = [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


@pytest.mark.nightly
@pytest.mark.parametrize("other", ["count", "drop"])
def test_one_row_more_is_one_record_in_every_table_or_in_none(other, tmp_path):
    generator = np.random.default_rng(3)
    spec, seen = three(other), set()
    for k in range(6):
        rows = random_rows(generator, 30 + k, persons=9)
        before = counted(place_of(rows[1:], tmp_path / "d"), spec, ALL)
        after = counted(place_of(rows, tmp_path / "d"), spec, ALL)
        assert moved(before, after) in ({0}, {1})
        seen |= moved(before, after)
    assert 1 in seen


SALT = b"of the test, 16."


def test_one_person_more_changes_no_row_that_stays_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(warehouses.os, "urandom", lambda _: SALT)
    generator = np.random.default_rng(4)
    for max_rows in (1, 2):
        spec = three("count", person="id", max_rows=max_rows)
        rows = random_rows(generator, 60, persons=8)
        newcomer = [(*row[:3], "newcomer") for row in random_rows(generator, 5, persons=1)]
        without = counted(place_of(rows, tmp_path / "d"), spec, ALL)
        mixed = [rows[i] if i < 60 else newcomer[i - 60] for i in generator.permutation(65)]
        after = counted(place_of(mixed, tmp_path / "d"), spec, ALL)
        assert moved(without, after) == {max_rows}  # all of them are the newcomer's: added alone
        for subset in ALL:
            assert (after[subset] >= without[subset]).all()


def test_which_rows_stay_does_not_depend_on_where_they_stand(tmp_path, monkeypatch):
    """Ordered by a column that is not unique, a table moved by thousands between two runs."""
    monkeypatch.setattr(warehouses.os, "urandom", lambda _: SALT)
    generator = np.random.default_rng(5)
    rows = random_rows(generator, 5000, persons=300)
    spec = three("count", person="id", max_rows=3)
    first = counted(place_of(rows, tmp_path / "d"), spec, ALL)
    shuffled = [rows[i] for i in generator.permutation(5000)]
    assert_equal(counted(place_of(shuffled, tmp_path / "d"), spec, ALL), first)
    monkeypatch.setattr(warehouses.os, "urandom", lambda _: b"another salt, 16")
    assert moved(counted(place_of(rows, tmp_path / "d"), spec, ALL), first) != {0}


def test_every_row_of_a_person_is_as_likely_to_stay(tmp_path):
    """Rows of the same cells too: five of six rows have five times the chance of one."""
    copies = 3000
    rows = [("M" if k else "F", 0, 0.0, f"p{p}") for p in range(copies) for k in range(6)]
    spec = three("count", person="id", max_rows=1)
    sexes = counted(place_of(rows, tmp_path / "d"), spec, [(0,)])[0,]
    assert sexes[:2].sum() == copies
    spread = math.sqrt(copies * 5 / 36)
    assert abs(sexes[1] - copies / 6) < 6 * spread  # false once in 10^9


# ------------------------------------------------------------------------------------ traps


def test_the_backend_is_tried_before_the_charge_and_refused_if_it_codes_otherwise(
    tmp_path, monkeypatch
):
    place, _ = written(tmp_path / "d", c=pa.array(["1", "3.7", None]))
    spec = spec_of(single("c", Integers(0, 9), other="count"))
    check_header(place, spec)
    writer = pushed_codes.CodeWriter

    def by_cast(self, name, column, rows):
        return rows[name].try_cast("float64").try_cast("int64").fill_null(10)

    def nulls_dropped(self, name, column, rows, plain=writer.code):
        return rows[name].nullif("").isnull().ifelse(None, plain(self, name, column, rows))

    for wrong in (by_cast, nulls_dropped):
        with monkeypatch.context() as patch:
            patch.setattr(writer, "code", wrong)
            with pytest.raises(DataError, match=r"its engine (codes|fails over) values of c"):
                check_header(place, spec)


def test_casts_of_engines_read_what_is_no_number_and_we_do_not(tmp_path):
    with duckdb.connect() as connection:
        cast = "SELECT CAST('3.7' AS INTEGER), CAST('0x10' AS INTEGER)"
        assert connection.execute(cast).fetchone() == (4, 16)
    place, _ = written(tmp_path / "d", c=pa.array(["3.7", "0x10", "1d", "4", "16.0"]))
    spec = spec_of(single("c", Integers(0, 20), other="show"))
    found = counted(place, spec, [(0,)])[0,]
    assert {k: n for k, n in enumerate(found.tolist()) if n} == {4: 1, 16: 1, 21: 3}


def test_an_unbalanced_quote_loses_rows_to_an_engine_and_none_to_us(tmp_path):
    lines = [f"{k % 9},x" for k in range(3000)]
    lines.insert(1500, '7,"x')
    path = tmp_path / "f.csv"
    path.write_text("\n".join(["a,b", *lines]) + "\n")
    with duckdb.connect() as connection:
        theirs = connection.execute(
            "SELECT count(*) FROM read_csv(?, delim=',', quote='\"', header=true, "
            "ignore_errors=true, auto_detect=false, columns={'a': 'VARCHAR', 'b': 'VARCHAR'})",
            [str(path)],
        ).fetchone()
    assert theirs[0] < 2000
    spec = spec_of(single("a", Integers(0, 8), other="count"))
    assert counted(path, spec, [()])[()] == 3001


def test_nothing_is_spilled_unless_a_folder_is_named_and_then_it_is_said(tmp_path, monkeypatch):
    place, _ = written(tmp_path / "d", c=pa.array([1, 2]))
    spec = spec_of(single("c", Integers(0, 9)), person="c")
    folders, lines = [], []
    real = warehouses._duckdb_answers

    def watched(connection, query):
        setting = connection.con.sql("SELECT current_setting('temp_directory')")
        folders.append(setting.fetchall()[0][0])
        return real(connection, query)

    monkeypatch.setitem(warehouses._ANSWERS, "duckdb", watched)
    spill = tmp_path / "spill"
    with reporting(lines.append):
        counted(place, spec, [()])
        counted(Path(f"{place}&spill={spill}"), spec, [()])
    assert folders == ["", str(spill)]
    assert "plain text" not in lines[0]
    assert lines[-1].endswith(f"rows that do not fit the memory lie in {spill} as plain text")
    assert sorted(own.name for own in tmp_path.iterdir()) in (["d"], ["d", "spill"])


def test_the_extras_are_pinned_to_what_is_tested_here():
    import tomllib
    from importlib.metadata import version

    requirements = pytest.importorskip("packaging.requirements")
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in project["optional-dependencies"]["ibis"]:
        one = requirements.Requirement(text)
        assert version(one.name) in one.specifier
        assert any(own.operator in {"==", "<"} for own in one.specifier), text


# ------------------------------------------------------------------------------------ bad input


def refusal(location, spec):
    with pytest.raises(DataError) as caught:
        check_header(Path(location), spec)
    return str(caught.value)


def test_what_cannot_be_counted_in_place_is_refused_before_the_charge(tmp_path, monkeypatch):
    path = tmp_path / "d"
    kinds = {"n": pa.list_(pa.int8()), "f": pa.float32(), "z": pa.timestamp("us", "UTC")}
    place, _ = written(
        path,
        c=pa.array(["x"]),
        d=pa.array([0.5]),
        **{k: pa.array([None], v) for k, v in kinds.items()},
    )
    with duckdb.connect(path) as connection:
        connection.execute("CREATE VIEW v AS SELECT * FROM t")
    one = spec_of(single("c", Integers(0, 1)))
    assert "is a view" in refusal(f"ibis:duckdb:{path}?table=v", one)
    assert "does not exist" in refusal(f"ibis:duckdb:{path}?table=nobody", one)
    assert "lacks the declared column nowhere" in refusal(
        place, spec_of(single("nowhere", Boolean()))
    )
    for name in kinds:
        assert f"the column {name} has the type" in refusal(place, spec_of(single(name, Boolean())))
    assert "ids in place" in refusal(place, spec_of(single("c", Boolean()), person="d"))
    first = spec_of(single("c", Boolean()), person="c", keep="first")
    assert "set `keep: random`" in refusal(place, first)
    many = Categorical(tuple(f"v{k}" for k in range(5000)), tuple(f"v{k}" for k in range(5000)))
    assert "5,000 cases" in refusal(place, spec_of(single("c", many)))
    scattered = [np.random.default_rng(1).permutation(10_000)]
    wide = spec_of(single("c", Integers(0, 9999)))
    with pytest.raises(DataError, match="attribute c takes"):
        check_header(place, wide, scattered)
    far = spec_of(single("d", Integers(2**53, 2**53 + 5)))
    assert "beyond 2^53" in refusal(place, far)
    (tmp_path / "text").write_bytes(b"age\n1\n" * 99)
    assert "that can be opened" in refusal(f"ibis:duckdb:{tmp_path}/text?table=t", one)
    assert "there is no file" in refusal("ibis:duckdb:none?table=t", one)
    for wrong in ("ibis:", "ibis:duckdb:d", "ibis:duckdb:d?table=", "ibis:duckdb:d?table=a&x=1"):
        assert "does not name a table" in refusal(wrong, one)
    for wrong in ("ibis:snowflake:X?table=t", "ibis:d?table=t", "ibis:duckdb:?table=t"):
        assert "one of duckdb, postgres" in refusal(wrong, one)
    assert "is for DuckDB" in refusal("ibis:postgres:X?table=t&spill=/tmp", one)
    with pytest.raises(DataError, match="name it alone"):
        check_header([place, place], one)
    monkeypatch.setitem(sys.modules, "ibis", None)
    assert "pip install 'dpquery[ibis]'" in refusal(place, one)


def test_an_engine_that_stops_half_way_is_one_error_in_fixed_words(tmp_path, monkeypatch):
    place, _ = written(tmp_path / "d", c=pa.array([1, 2]))
    spec = spec_of(single("c", Integers(0, 9)))

    def stopping(connection, query):
        yield from warehouses._duckdb_answers(connection, query)
        raise duckdb.Error("CANARY")

    monkeypatch.setitem(warehouses._ANSWERS, "duckdb", stopping)
    with pytest.raises(DataError, match="could not be counted to its end") as caught:
        tabulate(place, spec=spec, subsets=[(0,)])
    assert "CANARY" not in str(caught.value)
    assert caught.value.__context__ is None
