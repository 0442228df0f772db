"""What Spark's machines count of parts of the rows adds up, in any partitions; without Spark."""

import math
import os
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import CANARY
from engines import Partitions, cut, simulated
from hypothesis import given
from hypothesis import strategies as st
from specs import FUZZ, assert_equal, attributes, single, spec_of

from dpquery.exceptions import DataError
from dpquery.measurement.counting.arrow_files import batch_of
from dpquery.measurement.counting.engines import spark as spark_session
from dpquery.measurement.counting.locations import sources_of
from dpquery.measurement.counting.persons import ExpandedSecret, PersonKeys
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.measurement.counting.tally import RecordTally
from dpquery.spec.columns import Categorical, Integers, person_rows
from dpquery.spec.spec import FileFormat

ALL = [(), (0,), (1,), (0, 1)]


def by_parts(table, spec, subsets, cuts, *, secret=None):
    """Count the slices of a table apart, each by a counter of its own, and add the counts up."""
    whole = [np.arange(n) for n in spec.domain.shape]
    counter = partial(RecordTally, spec, subsets, whole, secret=secret)
    total = counter()
    for low, high in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
        part = counter()
        rows = table.slice(low, high - low).combine_chunks()
        for batch in rows.to_batches():
            part.add(*batch_of([batch.column(name) for name in part.names]))
        part.end_pass()
        for cells in part.partial_tables():
            total.add_partial_tables(cells)
    return total.marginals()


def test_partial_tables_of_any_parts_add_up_to_those_of_the_whole(tmp_path):
    spec = spec_of(*attributes(other="show"))
    columns = {"sex": ["M", "F", "x"], "age": [-1, 3, 7], "income": [0.0, 9.5, math.nan]}
    columns |= {"w": [True, False, None], "b": ["Ä", "n", ""], "extra": ["", "a", "b"]}
    subsets = [(), (0, 2), (1,), (3,), (0, 1, 2, 3)]

    @FUZZ
    @given(
        rows=st.lists(st.tuples(*[st.integers(0, 2)] * 6), max_size=12),
        cuts=st.lists(st.integers(0, 12), max_size=4).map(sorted),
    )
    def adds_up(rows, cuts):
        table = pa.table({
            name: pa.array([values[row[k]] for row in rows], pa.array(values).type)
            for k, (name, values) in enumerate(columns.items())
        })  # fmt: skip
        cuts = [min(cut, table.num_rows) for cut in cuts]
        pq.write_table(table, tmp_path / "all.parquet")
        expected = tabulate(tmp_path / "all.parquet", spec=spec, subsets=subsets)
        assert_equal(by_parts(table, spec, subsets, cuts), expected)

    adds_up()


@pytest.mark.parametrize("number", [-1, 4])
def test_a_count_of_no_cell_is_never_left_out_without_a_word(number):
    tally = RecordTally(spec_of(single("a", Integers(0, 3))), [(0,)], [np.arange(4)])
    with pytest.raises(IndexError):
        tally.add_partial_tables(np.array([[0, number], [1, 1]]))


PARTS = st.lists(st.integers(0, 12), max_size=4)
AGAIN = st.lists(st.integers(0, 4), max_size=2)
MARKS = ("M", "F", None, "x")


def test_in_any_partitions_all_rows_count_once(tmp_path, monkeypatch):
    spec = spec_of(
        single("a", Integers(0, 3), other="show"), single("b", Categorical(MARKS[:2], MARKS[:2]))
    )

    @FUZZ
    @given(
        rows=st.lists(st.tuples(st.integers(-1, 5), st.sampled_from(MARKS)), max_size=12),
        tables=st.lists(st.tuples(PARTS, AGAIN), min_size=1, max_size=2),
    )
    def once(rows, tables):
        names = {"a": pa.int64(), "b": pa.string()}
        columns = list(zip(*rows, strict=True)) or [(), ()]
        types = names.values()
        whole = pa.table(
            [pa.array(*own) for own in zip(columns, types, strict=True)], names=[*names]
        )
        pq.write_table(pa.concat_tables([whole] * len(tables)), tmp_path / "all.parquet")
        expected = tabulate(tmp_path / "all.parquet", spec=spec, subsets=ALL)
        with monkeypatch.context() as patch:
            simulated(patch, [Partitions(cut(whole, cuts), again=again) for cuts, again in tables])
            for limit in ("_BLOCK", "_OF_A_TASK", "_SENT"):
                patch.setattr(spark_session, limit, 2)
            assert_equal(tabulate(["spark:x"], spec=spec, subsets=ALL), expected)

    once()


def test_in_any_partitions_a_person_is_one(monkeypatch):
    ids = [
        "p",
        "quite a long name",
        "quite a long nam",
        " p ",
        "",
        "a much longer name than others",
    ]
    domain = single("a", Integers(0, 3)), person_rows(2)
    spec = {most: spec_of(*domain, person="id", max_rows=most) for most in (1, 2, 9)}

    @FUZZ
    @given(
        rows=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(ids)), max_size=12),
        tables=st.lists(st.tuples(PARTS, AGAIN), min_size=1, max_size=2),
        most=st.sampled_from([1, 2, 9]),
    )
    def one(rows, tables, most):
        ages, persons = zip(*rows, strict=True) if rows else ((), ())
        whole = pa.table({"a": pa.array(ages, pa.int64()), "id": pa.array(persons, pa.string())})
        rows_of = Counter(name.strip() for age, name in rows * len(tables) if age < 4 and name)
        expected = sum(min(most, own) for own in rows_of.values())
        with monkeypatch.context() as patch:
            simulated(patch, [Partitions(cut(whole, cuts), again=again) for cuts, again in tables])
            found = tabulate(["spark:x"], spec=spec[most], subsets=[(), (0,), (1,)])
        assert found[()] == found[0,].sum() == expected
        of_number = Counter(min(own, 3) for own in rows_of.values())
        others = expected - len(rows_of)  # rows that stay beside the one with the number
        assert found[1,].tolist() == [*(of_number[k] for k in (1, 2, 3)), others]
        if most == 9 and max(rows_of.values(), default=0) <= most:
            ages = Counter(age for age, name in rows * len(tables) if age < 4 and name)
            assert found[0,].tolist() == [ages[age] for age in range(4)]

    one()


def test_keys_of_one_secret_are_the_same_wherever_they_are_made_and_other_secrets_give_others():
    ids = [b"short", b"x" * 16, b"y" * 40, b"z" * 5_000, b"z" * 4_999 + b"a"]
    together, _ = PersonKeys(ExpandedSecret(b"s" * 32, b"keys")).of(
        pa.array(ids, pa.large_binary())
    )
    for order in (ids, ids[::-1], ids[2:] + ids[:2]):  # factors are drawn few or many at a time
        keys = PersonKeys(ExpandedSecret(b"s" * 32, b"keys"))
        for person in order:
            alone, named = keys.of(pa.array([person], pa.large_binary()))
            assert named.all()
            np.testing.assert_array_equal(alone[:, 0], together[:, ids.index(person)])
    other, _ = PersonKeys(ExpandedSecret(b"t" * 32, b"keys")).of(pa.array(ids, pa.large_binary()))
    assert not np.isin(other, together).any()


def test_each_partition_draws_rows_of_its_own_and_each_try_the_same():
    spec = spec_of(single("age", Integers(0, 9999)), person="id", max_rows=9)

    def kept(secret, part):
        tally = RecordTally(spec, [(0,)], [np.arange(10_000)], secret=secret, part=part)
        texts = [pa.array(range(10_000)), pa.array(["p"] * 10_000)]
        tally.add(*batch_of(texts))
        tally.end_pass()
        return set(np.flatnonzero(tally.marginals()[0,]).tolist())

    first = kept(b"s" * 32, b"a")
    assert len(first) == 9
    assert kept(b"s" * 32, b"a") == first
    assert len(first & kept(b"s" * 32, b"b")) < 5
    assert len(first & kept(b"t" * 32, b"a")) < 5


def test_of_two_partitions_each_draws_by_the_lowest_of_its_keys(monkeypatch):
    ids = [person for person in "abcdefgh" for _ in range(1000)]
    spec = spec_of(single("age", Integers(0, 999)), person="id", max_rows=1)
    simulated(monkeypatch, [Partitions([pa.table({"age": [*range(1000)] * 8, "id": ids})])])
    found = tabulate(["spark:x"], spec=spec, subsets=[(0,)])[0,]
    assert found.sum() == 8
    assert (found > 0).sum() > 5  # of two that drew alike, four persons would be at most four ages


def test_all_that_is_drawn_on_spark_follows_from_what_the_operating_system_gives(monkeypatch):
    table = pa.table({"age": [*range(60)] * 9, "id": [p for p in "abcdefghi" for _ in range(60)]})
    spec = spec_of(single("age", Integers(0, 59)), person="id", max_rows=3)
    simulated(monkeypatch, [Partitions(cut(table, [100, 300]))])

    def drawn(secret):
        asked = []
        monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or secret)
        found = tabulate(["spark:x"], spec=spec, subsets=[(0,)])[0,]
        assert asked == [32]  # once, on this machine: no task asks its own
        return found.tolist()

    assert drawn(b"s" * 32) == drawn(b"s" * 32) != drawn(b"t" * 32)


def test_what_is_shuffled_of_a_row_holds_neither_an_id_nor_a_value():
    spec = spec_of(single("age", Integers(0, 9)), person="id", max_rows=2)
    tally = RecordTally(spec, [(0,)], [np.arange(10)], secret=b"s" * 32)
    texts = [pa.array([7, 7, 99, 1]), pa.array(["123456789012345", "", CANARY, CANARY * 9])]
    rows = tally.rows_of_persons(batch_of(texts).columns)
    assert rows.shape == (3, 2)  # of two rows that are inside and have an id
    content = rows.tobytes() + rows.T.tobytes()
    assert not any(part in content for part in (b"12345678", b"9012345", CANARY[:8].encode()))


def test_without_the_extra_a_table_on_spark_is_refused_with_the_remedy(monkeypatch):
    for name in [own for own in sys.modules if own.startswith("pyspark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(DataError, match=re.escape("pip install 'dpquery[spark]'")):
        check_header(["spark:x.parquet"], spec_of(single("age", Integers(0, 9))))


def test_locations_on_spark_stand_alone_and_keep_their_slashes(tmp_path):
    from dpquery.commands.arguments import as_data

    assert as_data(["spark:s3a://bucket/x.parquet"]) == ["spark:s3a://bucket/x.parquet"]
    assert as_data("spark:table=db.persons") == ["spark:table=db.persons"]
    assert as_data("a.csv") == [Path("a.csv")]
    spec = spec_of(single("age", Integers(0, 9)), person="id", keep="first")
    (tmp_path / "a.csv").write_text("age,id\n")
    with pytest.raises(DataError, match="is on Spark, and other data is not"):
        check_header([tmp_path / "a.csv", "spark:x.parquet"], spec)
    with pytest.raises(DataError, match="have no order"):
        check_header(["spark:x.parquet"], spec)
    with pytest.raises(DataError, match="counted by a release alone"):
        sources_of(["spark:x.parquet"], FileFormat())
