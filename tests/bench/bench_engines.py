"""Counting the sample's rows on every engine, beside its own group-by: `make bench-engines`.

    bench_engines.py 1000000                rows of the sample's spec, all columns text
    bench_engines.py 1000000 duckdb ours    of one engine alone, without its own group-by

Each figure is of a process of its own: CPU seconds of it, of those below it and of the server, the
most memory of it and of the engine's processes in MB (on Linux). Ours codes every text; the
engine's own group-by is of the same pairs, of texts as they are; that of Parquet is Polars'. Where
an engine is not installed its rows are left out. A row is printed and stored in
tests/reference/engines.json as it is measured, in place of a former one.
"""

import itertools
import json
import multiprocessing
import os
import re
import sqlite3
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from engines import LOCAL, PG, connect_server, cursor_of_postgres, in_postgres, postgres_running
from specs import write_duckdb, write_sqlite

from dpquery.measurement.counting.tabulate import tabulate
from dpquery.spec.parsing.read import load_spec

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "reference" / "engines.json"
SIZES = [200_000, 1_000_000, 5_000_000]
TICKS = os.sysconf("SC_CLK_TCK")


def listed(columns):
    return ", ".join(columns)


def ours(location):
    pairs = [(), *itertools.combinations(range(len(SPEC.domain.shape)), 2)]
    place = location if location.startswith("spark:") else Path(location)
    return tabulate([place], spec=SPEC, subsets=pairs)[()]


def by_polars(location):
    import polars

    table = polars.scan_parquet(f"{location}/*.parquet")
    return len(polars.collect_all([table.group_by(pair).len() for pair in PAIRS]))


def by_sqlite(location):
    with closing(sqlite3.connect(location.partition(":")[2].partition("?")[0])) as base:
        query = "SELECT {0}, count(*) FROM persons GROUP BY {0}"
        return sum(len(base.execute(query.format(listed(own))).fetchall()) for own in PAIRS)


def by_duckdb(location):
    import duckdb

    with duckdb.connect(location.partition(":")[2].partition("?")[0], read_only=True) as base:
        base.execute("SET threads = 2")
        return base.sql(QUERY).to_arrow_table().num_rows


def by_postgres(_):
    with cursor_of_postgres() as cursor:
        cursor.execute(QUERY)
        return cursor.fetch_arrow_table().num_rows


def by_spark(location):
    from pyspark.sql import SparkSession

    session = SparkSession.builder.config(map=LOCAL).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.read.parquet(location.partition(":")[2]).createOrReplaceTempView("persons")
    return session.sql(QUERY).toArrow().num_rows


def by_connect(location):
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(os.environ["SPARK_REMOTE"]).getOrCreate()
    session.read.parquet(location.partition(":")[2]).createOrReplaceTempView("persons")
    return session.sql(QUERY).toArrow().num_rows


SPEC = load_spec(ROOT / "workloads" / "sample_persons.yaml")
COLUMNS = [[column.name for column in own.columns] for own in SPEC.domain.attributes]
PAIRS = [one + other for one, other in itertools.combinations(COLUMNS, 2)]
QUERY = (
    f"SELECT {listed(itertools.chain(*COLUMNS))}, count(*) FROM persons "  # noqa: S608
    f"GROUP BY GROUPING SETS ({listed(f'({listed(pair)})' for pair in PAIRS)})"
)
OWN = {
    "parquet": by_polars,
    "sqlite": by_sqlite,
    "duckdb": by_duckdb,
    "adbc": by_postgres,
    "spark": by_spark,
    "connect": by_connect,
}
NAMES = {
    "parquet": "Parquet; Polars",
    "duckdb": "DuckDB",
    "sqlite": "SQLite",
    "adbc": "PostgreSQL, by ADBC",
    "spark": "Spark on two cores, with its start",
    "connect": "Spark Connect, without the server's start",
}
MOVED = {
    "parquet": "5 GB, of 5 bytes a row",
    "duckdb": "9 GB",
    "sqlite": "85 GB",
    "adbc": "130 GB, sent here: texts, and 4 bytes a value",
    "spark": "5 GB; sent 24 bytes a cell and partition, 1 GB in all at 128 MB each; 16 MB here",
}
NEEDED = {"parquet": "polars", "duckdb": "duckdb", "adbc": "adbc_driver_postgresql"}
NEEDED |= {"spark": "pyspark", "connect": "grpc"}


def processes():
    """Return parent, CPU seconds and MB of every process; those of ended children are theirs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            memory = re.search(r"RssAnon:\s+(\d+)", (folder / "status").read_text())
        except OSError:
            continue
        size = int(memory[1]) / 1024 if memory else 0.0
        found[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS, size
    return found


def below(root, found):
    inside = {root}
    while more := {pid for pid, own in found.items() if own[0] in inside} - inside:
        inside |= more
    return inside


def measured(count, location, server, out):
    most, ended = [0.0], threading.Event()

    def engine():
        found = processes()
        inside = below(os.getpid(), found) | (below(server, found) if server else set())
        inside -= {os.getpid(), os.getppid()}
        return [found[pid] for pid in inside if pid in found]

    def watch():
        while not ended.wait(0.2):
            most[0] = max(most[0], sum(size for _, _, size in engine()))

    def cpu():
        return time.process_time() + sum(seconds for _, seconds, _ in engine())

    threading.Thread(target=watch, daemon=True).start()
    began, start = cpu(), time.perf_counter()
    count(location)
    took = time.perf_counter() - start
    ended.set()
    time.sleep(0.5)  # until the server has ended what served us
    own = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    figures = {"cpu_s": cpu() - began, "s": took, "mb": int(own[1]) / 1024, "engine_mb": most[0]}
    out.put({name: round(figure, 1) for name, figure in figures.items()})


def written(rows, folder, kind):
    """Write the sample's rows, again and again, where an engine has them."""
    sample = ROOT / "sample_data" / "persons.csv"
    names = sample.open().readline().strip().split(",")
    options = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    once = arrow_csv.read_csv(sample, convert_options=options).combine_chunks()
    table = pa.concat_tables([once] * -(-rows // once.num_rows)).slice(0, rows)
    (folder / "parts").mkdir()
    for k in range(4):
        part = table.slice(k * rows // 4, (k + 1) * rows // 4 - k * rows // 4)
        pq.write_table(part, folder / "parts" / f"{k}.parquet")
    match kind:
        case "parquet":
            return str(folder / "parts")
        case "sqlite":
            return str(write_sqlite(table, folder / "rows.db"))
        case "duckdb":
            return str(write_duckdb(table, folder / "rows.duckdb"))
        case "adbc":
            return str(in_postgres(table))
    return f"spark:{folder}/parts"


@contextmanager
def running(kind, folder):
    """Yield the process of a server, which runs meanwhile, or 0."""
    if kind == "adbc":
        with postgres_running():
            place = os.environ[PG].partition("host=")[2].partition("&")[0]
            yield int(Path(place, "data", "postmaster.pid").read_text().split()[0])
    elif kind == "connect":
        with connect_server(folder) as (address, _), pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_REMOTE", address)
            yield os.getpid()
    else:
        yield 0


def shown(stored):
    """Return the page's line of each engine, of the figures that were stored."""
    found = {(own["engine"], own["counts"], own["rows"]): own for own in stored}
    for kind, name in NAMES.items():
        cells = [name]
        for counts in ("dpquery", "engine"):
            of_it = [own for rows in SIZES if (own := found.get((kind, counts, rows)))]
            cells.append(" / ".join(f"{own['cpu_s']:.3g}" for own in of_it))
            here, there = of_it[-1]["mb"] / 1000, of_it[-1]["engine_mb"] / 1000
            cells.append(f"{here:.2f} + {there:.2f}" if there else f"{here:.2f}")
        yield f"| {' | '.join(cells)} |"


def on_paper(stored):
    """Return the page's line of each engine for 10^9 rows: what a million more take, and bytes."""
    of_ours = {
        (own["engine"], own["rows"]): own["cpu_s"] for own in stored if own["counts"] != "engine"
    }
    for kind, moved in MOVED.items():
        million = (of_ours[kind, 5_000_000] - of_ours[kind, 1_000_000]) / 4
        yield f"| {re.split('[,;]| on', NAMES[kind])[0]} | {million / 3.6:.1g} | {moved} |"


def main(sizes, kinds, *, alone):
    """Print and store a line for each size and engine, ours and its own."""
    spawned = multiprocessing.get_context("spawn")
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[2] pyspark-shell"
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    lines = {(own["rows"], own["engine"], own["counts"]): own for own in stored}
    print(f"{'rows':>10} {'engine':8} {'counts':8} {'CPU s':>7} {'s':>7} {'MB':>7} {'its MB':>7}")
    for rows, kind in itertools.product(sizes, kinds):
        if find_spec(NEEDED.get(kind, "sqlite3")) is None:
            continue
        with tempfile.TemporaryDirectory() as place, running(kind, Path(place)) as server:
            location = written(rows, Path(place), kind)
            for counts, count in (("dpquery", ours), ("engine", OWN[kind]))[: 2 - alone]:
                out = spawned.SimpleQueue()
                process = spawned.Process(target=measured, args=(count, location, server, out))
                process.start()
                process.join()
                line = {"rows": rows, "engine": kind, "counts": counts}
                line |= {} if process.exitcode else out.get()
                lines[rows, kind, counts] = line
                print(*line.values(), flush=True)
                RESULTS.write_text(
                    json.dumps([lines[key] for key in sorted(lines)], indent=1) + "\n"
                )


if __name__ == "__main__":
    words = sys.argv[1:]
    kinds = [own for own in OWN if own in words] or [*OWN]
    main([int(own) for own in words if own.isdigit()] or SIZES, kinds, alone="ours" in words)
