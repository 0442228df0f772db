"""Rows are one person's where their ids would be one value, in whatever type they are stored."""

import random
import sqlite3
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from town import checked, counts, planned, released, spec_text

WORKLOAD = ["{name: t, product: {x: identity}}", "{name: n, product: {}}"]


def persons_plan(folder, most, *, more=""):
    unit = f"{{person: id, max_rows: {most}}}"
    planned(folder, spec_text({"x": "{values: [a, b]}"}, WORKLOAD, unit=unit, more=more))


def parquet(path, ids, kind):
    values = pa.array(ids).cast(pa.float64()).cast(kind) if kind == pa.float32() else ids
    table = pa.table({"x": ["a"] * len(ids), "id": pa.array(values, kind)})
    pq.write_table(table, path)
    return path


def test_an_id_in_one_file_of_whole_numbers_and_one_of_floats_is_one_person(tmp_path):
    persons_plan(tmp_path, 1)
    whole = parquet(tmp_path / "a.parquet", [1, 2, 3], pa.int64())
    floats = parquet(tmp_path / "b.parquet", [1, 2, None, 4, float("nan")], pa.float64())
    tables = released(tmp_path, [whole, floats])
    assert counts(tables["n"]) == [4]  # no id, and nan among numbers, is nobody's
    code, said = checked(tmp_path, whole, floats)
    assert "4 persons, 6 rows" in said
    assert "2 persons by several spellings of one number" in said
    assert code == 1  # for the two rows without an id


SPELLINGS = {
    "7": ["7", "07", "+7", "7.0", "7.", "70e-1", "0.7e1", " 7\t", "\u00a07\u2003"],
    "-0.5": ["-0.5", "-.5", "-5e-1", "-0.50"],
    "0": ["0", "-0", "00", ".0", "0e9"],
    "abc": ["abc", " abc ", "\u00a0abc"],
    "ABC": ["ABC"],
    "12-3": ["12-3"],
    "12-03": ["12-03"],
    "1,000": ["1,000"],
    "1e5x": ["1e5x"],
    "é": ["é"],
    "e\u0301": ["e\u0301"],
}


@pytest.mark.parametrize("most", [1, 2])
def test_texts_are_one_person_where_they_would_be_one_value(tmp_path, most):
    persons_plan(tmp_path, most)
    rows = [f'a,"{text}"\n' for texts in SPELLINGS.values() for text in texts]
    (tmp_path / "d.csv").write_text("x,id\n" + "".join(rows), encoding="utf-8")
    kept = sum(min(most, len(texts)) for texts in SPELLINGS.values())
    assert counts(released(tmp_path, tmp_path / "d.csv")["n"]) == [kept]


TYPES = [pa.int64(), pa.int32(), pa.uint64(), pa.float64(), pa.float32(), pa.decimal128(12, 2)]
FORMS = ["{}", "{}.0", "0{}", "+{}", " {}", "{}e0", "{}0e-1", "n{}", "N{}"]


def stored(folder, kind, ids, fields):
    """Write rows in one kind of place, and return it."""
    stem = str(folder / f"{len(list(folder.iterdir()))}")
    if kind in {"csv", "sqlite"}:
        texts = [i if isinstance(i, str) else "" if i is None else repr(i) for i in ids]
        if kind == "csv":
            lines = [f"{x},{text}\n" for x, text in zip(fields, texts, strict=True)]
            path = folder / f"{stem}.csv"
            path.write_text("x,id\n" + "".join(lines))
            return path
        with sqlite3.connect(f"{stem}.db") as connection:
            connection.execute("CREATE TABLE t (x, id)")
            connection.executemany("INSERT INTO t VALUES (?, ?)", zip(fields, ids, strict=True))
        return f"sqlite:{stem}.db?table=t"
    table = pa.table({"x": fields, "id": pa.array(ids, kind)})
    if kind == pa.int32():
        with ipc.new_file(f"{stem}.arrow", table.schema) as writer:
            writer.write_table(table)
        return f"{stem}.arrow"
    pq.write_table(table, f"{stem}.parquet")
    return f"{stem}.parquet"


def name(value):
    """The person of an id, by an independent reading of the rule."""
    if value is None:
        return None
    text = repr(value) if isinstance(value, float) else str(value)
    text = text.strip()
    return Decimal(text) if not {"n", "N"} & set(text) else text


def recount(seed, folder, most):
    """Return a release's and our own number of rows that stay, of files of random id types."""
    rng = random.Random(seed)  # noqa: S311 - made-up rows
    rows_of, places = Counter(), []
    for kind in rng.sample([*TYPES, "csv", "sqlite", pa.string()], 3):
        numbers = [rng.randrange(40) for _ in range(rng.randrange(1, 30))]
        if kind in {pa.string(), "csv", "sqlite"}:
            ids = [rng.choice(FORMS).format(k) for k in numbers]
            if kind == "sqlite":  # where each value has a type of its own
                ids = [
                    rng.choice([text, k, float(k)]) for text, k in zip(ids, numbers, strict=True)
                ]
        elif pa.types.is_floating(kind):
            ids = [np.dtype(kind.to_pandas_dtype()).type(k).item() for k in numbers]
        else:
            ids = [Decimal(k) if pa.types.is_decimal(kind) else k for k in numbers]
        ids = [None if rng.random() < 0.1 else i for i in ids]
        places.append(stored(folder, kind, ids, [rng.choice("ab") for _ in ids]))
        rows_of.update(who for i in ids if (who := name(i)) is not None)
    ((found,),) = [counts(released(folder, places)["n"])]
    return found, sum(min(most, rows) for rows in rows_of.values())


@pytest.mark.parametrize("most", [1, 3])
def test_random_files_of_mixed_id_types_count_as_an_independent_recount_says(tmp_path, most):
    persons_plan(tmp_path, most)
    for seed in range(4):
        found, expected = recount(f"{most} {seed}", tmp_path, most)
        assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2, 5])
def test_many_random_files_of_mixed_id_types_count_as_an_independent_recount_says(tmp_path, most):
    persons_plan(tmp_path, most)
    for seed in range(100):
        found, expected = recount(f"many {most} {seed}", tmp_path, most)
        assert found == expected


def test_with_a_decimal_comma_typed_floats_and_texts_are_one_person(tmp_path):
    persons_plan(tmp_path, 1, more='file: {decimal: ",", delimiter: ";"}')
    (tmp_path / "d.csv").write_text("x;id\na;1,0\na;01\na;1.0\na;2,5\n")
    typed = parquet(tmp_path / "b.parquet", [1.0, 2.5], pa.float64())
    assert counts(released(tmp_path, [tmp_path / "d.csv", typed])["n"]) == [3]


def test_check_counts_ids_that_look_like_one_person_and_names_none(tmp_path):
    persons_plan(tmp_path, 1)
    ids = ["ab", "AB", "Ab", "xé1", "xe\u03011", "q\u200b9", "q9", "10", "10.0", "zz", "Z\u00adZ"]
    lines = "".join(
        f"a,{text}\n" for text in [*ids, "many", "many", "rows", "rows", "here", "here"]
    )
    (tmp_path / "d.csv").write_text("x,id\n" + lines, encoding="utf-8")
    code, said = checked(tmp_path, tmp_path / "d.csv")
    said = " ".join(said.split())
    assert code == 1
    assert "3 ids differ in upper and lower case alone, and would be 1 person without" in said
    assert "2 ids differ in the form of Unicode (NFKC) alone, and would be 1 person" in said
    assert "2 ids differ in invisible characters alone, and would be 1 person without" in said
    assert "2 ids differ in several of these alone, and would be 1 person without" in said
    assert "1 person by several spellings of one number" in said
    assert not [text for text in ids if len(text) > 2 and text in said]


def test_check_says_that_floats_round_long_ids(tmp_path):
    persons_plan(tmp_path, 1)
    floats = parquet(tmp_path / "b.parquet", [2.0**53 + 2, 5.0], pa.float64())
    code, said = checked(tmp_path, floats)
    assert code == 1
    assert "1 id beyond 2^53 written as floats, which round" in " ".join(said.split())
    assert checked(tmp_path, parquet(tmp_path / "c.parquet", [2**53 + 2], pa.int64()))[0] == 0


@pytest.mark.parametrize("kind", ["text", "whole"])
@pytest.mark.parametrize("how", ["duckdb", "ibis:duckdb"])
def test_a_table_of_duckdb_has_the_same_persons(tmp_path, kind, how):
    duckdb = pytest.importorskip("duckdb")
    texts = [text for texts in SPELLINGS.values() for text in texts]
    ids = pa.array(texts if kind == "text" else [1, 1, 2, 3, None])
    rows = pa.table({"x": ["a"] * len(ids), "id": ids})
    with duckdb.connect(tmp_path / "d.duckdb") as connection:
        connection.register("rows", rows)
        connection.execute("CREATE TABLE t AS SELECT * FROM rows")
    persons_plan(tmp_path, 1)
    found = counts(released(tmp_path, f"{how}:{tmp_path}/d.duckdb?table=t")["n"])
    assert found == [len(SPELLINGS) if kind == "text" else 3]
