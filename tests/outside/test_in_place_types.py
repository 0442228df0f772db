"""Tables that are counted where they lie have the counts of the rows, for every type of times."""

import pytest
from town import counts, planned, released, spec_text

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("ibis")

MOMENTS = ["2001-01-01", "2001-01-31 23:59:59", "1999-12-31", "infinity", "-infinity", None]


@pytest.mark.parametrize(
    "kind", ["TIMESTAMP_NS", "TIMESTAMP_MS", "TIMESTAMP_S", "TIMESTAMP", "DATE"]
)
def test_times_of_every_precision_count_in_place_as_their_rows_do(tmp_path, kind):
    with duckdb.connect(tmp_path / "d.duckdb") as connection:
        connection.execute(f"CREATE TABLE t (c {kind})")
        connection.executemany("INSERT INTO t VALUES (?::VARCHAR)", [[text] for text in MOMENTS])
    declared = "{date: {from: 1700, to: 2200, by: year}}"
    planned(tmp_path, spec_text({"c": declared}, ["{name: q, product: {c: identity}}"]))
    for how in ("duckdb", "ibis:duckdb"):
        found = counts(released(tmp_path, f"{how}:{tmp_path}/d.duckdb?table=t")["q"])
        assert {1700 + k: n for k, n in enumerate(found) if n} == {1999: 1, 2001: 2}
