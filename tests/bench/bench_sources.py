"""Counting the same rows from every kind of source, beside other readers: `make bench-sources`.

    bench_sources.py 1000000    5 of 6 columns, all tables of up to two of 5 attributes

In most files the income is in hundreds, of which there are few. In those called `many` it is in
cents, and `seen` is a moment in place of a yes or no: nearly every value is another one. There the
other readers bin it as a float, and cut the moment, as the spec does.

Each figure is of a process of its own: CPU seconds, seconds, and the most memory in MB (on Linux).
Spark's Java machine and its Python processes count as CPU seconds, and not as memory.
What stands beside ours is a plain count of the two-way tables of the same file by another reader,
which promises nothing about hostile lines; a library that is not installed is left out.
"""

import itertools
import multiprocessing
import os
import re
import sys
import tempfile
import time
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from specs import single, spec_of

from dpquery.measurement.counting.tabulate import tabulate
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import Bins, Boolean, Categorical, Dates, Integers

SPEC = spec_of(
    single("age", Integers(0, 99)),
    single("sex", Categorical(("M", "F"), ("M", "F"))),
    single("region", Integers(0, 49)),
    single("income", Bins((0.0, 1e4, 2e4, 5e4, 1e5, 1e6))),
    single("employed", Boolean()),
)
MANY = spec_of(
    *SPEC.domain.attributes[:4],
    single("seen", Dates(date(2013, 1, 1), date(2013, 12, 31), "month", DateFormat())),
)
EDGES = list(SPEC.domain.attributes[3].columns[0].kind.edges)
NAMES = [attribute.name for attribute in SPEC.domain.attributes]
SUBSETS = [own for size in range(3) for own in itertools.combinations(range(5), size)]
PAIRS = [(NAMES[i], NAMES[j]) for i, j in itertools.combinations(range(5), 2)]


def made_up(rows, *, many=False):
    """Return rows of six columns, one of them an id that no table needs."""
    generator = np.random.default_rng(1)
    incomes = np.round(generator.lognormal(10, 1, rows), 2 if many else -2)
    table = pa.table(
        {
            "age": generator.integers(0, 100, rows),
            "sex": pa.DictionaryArray.from_arrays(generator.integers(0, 2, rows), ["M", "F"]),
            "region": generator.integers(0, 50, rows),
            "income": np.minimum(incomes, 999_900.0),
            "employed": pa.DictionaryArray.from_arrays(
                generator.integers(0, 2, rows), ["yes", "no"]
            ),
            "id": pa.array(np.arange(rows)),
        }
    )
    if not many:
        return table
    first = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp())
    seen = pa.array(first + generator.integers(0, 365 * 86_400, rows)).cast(pa.timestamp("s"))
    return table.set_column(4, "seen", seen)


def write_all(folder, rows):
    """Write the rows in every way, and return the location of each."""
    table, text = made_up(rows), folder / "rows.csv"
    arrow_csv.write_csv(table, text, arrow_csv.WriteOptions(quoting_style="none"))
    arrow_csv.write_csv(
        table, folder / "quoted.csv", arrow_csv.WriteOptions(quoting_style="all_valid")
    )
    for suffix, codec in {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}.items():
        with pa.output_stream(f"{text}{suffix}", compression=codec) as out, text.open("rb") as file:
            while block := file.read(2**20):
                out.write(block)
    pq.write_table(table, folder / "rows.parquet")
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=2**18)
    write_sqlite(table, folder / "rows.db")
    table = made_up(rows, many=True)
    arrow_csv.write_csv(table, folder / "many.csv", arrow_csv.WriteOptions(quoting_style="none"))
    pq.write_table(table, folder / "many.parquet")
    names = ("rows.csv", "quoted.csv", "rows.csv.gz", "rows.csv.zst", "rows.csv.bz2")
    names += ("rows.parquet", "rows.arrow", "many.csv", "many.parquet")
    found = {name: folder / name for name in names}
    found["sqlite"] = Path(f"sqlite:{folder}/rows.db?table=persons")
    if find_spec("duckdb"):
        import duckdb

        with duckdb.connect(folder / "rows.duckdb") as connection:
            connection.execute(f"CREATE TABLE persons AS FROM '{folder}/rows.parquet'")
        found["duckdb"] = Path(f"duckdb:{folder}/rows.duckdb?table=persons")
        if find_spec("adbc_driver_manager"):
            os.environ["BENCH_ADBC"] = f"duckdb:{folder}/rows.duckdb"
            found["adbc, duckdb"] = Path("adbc:BENCH_ADBC?table=persons")
    if find_spec("pyspark"):
        found["spark"] = f"spark:{folder}/rows.parquet"
    return found


def write_sqlite(table, path):
    import sqlite3

    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE persons ({', '.join(table.schema.names)})")
    for batch in table.to_batches(max_chunksize=100_000):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        connection.executemany("INSERT INTO persons VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()


def of_many(path):
    return path.name.startswith("many")


def ours(location):
    data = [location] if isinstance(location, str) else location
    spec = MANY if isinstance(location, Path) and of_many(location) else SPEC
    return int(tabulate(data, spec=spec, subsets=SUBSETS)[()])


def by_pyarrow(path):
    read = pq.read_table if path.suffix == ".parquet" else arrow_csv.read_csv
    table = read(path)
    if of_many(path):
        bins = np.searchsorted(EDGES, table["income"].to_numpy(), side="right")
        table = table.set_column(3, "income", pa.array(bins))
        table = table.set_column(4, "employed", pc.month(table["seen"]))
    return [table.group_by(pair).aggregate([([], "count_all")]) for pair in PAIRS] and len(table)


def by_duckdb(path):
    import duckdb

    connection = duckdb.connect(config={"threads": 2})
    source = f"'{path}'"
    if of_many(path):
        places = " + ".join(f"(income >= {edge})::TINYINT" for edge in EDGES)
        source = (
            f"(SELECT age, sex, region, {places} AS income, month(seen) AS employed FROM '{path}')"  # noqa: S608
        )
    for pair in PAIRS:
        query = f"SELECT {pair[0]}, {pair[1]}, count(*) FROM {source} GROUP BY ALL"  # noqa: S608
        connection.sql(query).fetchall()
    return connection.sql(f"SELECT count(*) FROM '{path}'").fetchall()[0][0]  # noqa: S608


def by_polars(path):
    import polars

    if path.suffix == ".parquet":
        frame = polars.scan_parquet(path)
    else:
        frame = polars.scan_csv(path, try_parse_dates=True)
    if of_many(path):
        frame = frame.with_columns(
            polars.col("income").cut(EDGES, left_closed=True),
            polars.col("seen").dt.month().alias("employed"),
        )
    polars.collect_all([frame.group_by(pair).len() for pair in PAIRS])
    return frame.select(polars.len()).collect().item()


def cpu_of_children():
    """Return the CPU seconds of all processes below this one, those that have ended included."""
    parents, seconds = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(status.parent.name)] = int(fields[1])
        seconds[int(status.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    below = {os.getpid()}
    while more := {own for own, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(seconds[own] for own in below - {os.getpid()})


def measured(count, location, out):
    began, cpu = time.perf_counter(), time.process_time()
    rows = count(location)
    used = time.process_time() - cpu + cpu_of_children(), time.perf_counter() - began
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    out.put((*used, int(peak[1]) / 1024, rows))


def main(rows):
    """Print a line for each source and reader."""
    processes = multiprocessing.get_context("spawn")
    others = {"pyarrow": by_pyarrow, "duckdb": by_duckdb, "polars": by_polars}
    with tempfile.TemporaryDirectory() as folder:
        locations = write_all(Path(folder), rows)
        cases = [(name, "dpquery", ours) for name in locations]
        cases += [
            (name, reader, count)
            for name in ("rows.csv", "rows.parquet", "many.csv", "many.parquet")
            for reader, count in others.items()
            if find_spec(reader)
        ]
        print(f"{'source':14} {'reader':8} {'CPU s':>7} {'s':>7} {'MB':>7} {'records':>11}")
        for name, reader, count in cases:
            out = processes.SimpleQueue()
            process = processes.Process(target=measured, args=(count, locations[name], out))
            process.start()
            process.join()
            if process.exitcode:
                print(f"{name:14} {reader:8} failed")
                continue
            cpu, seconds, memory, counted = out.get()
            print(
                f"{name:14} {reader:8} {cpu:7.2f} {seconds:7.2f} {memory:7.0f} {counted:11,}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
