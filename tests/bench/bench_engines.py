"""Counting the sample's rows on every engine, beside its own group-by: `make bench-engines`.

    bench_engines.py 1000000          rows of the sample's spec, all columns text; tables of pairs
    bench_engines.py 5000000 ours     without the engines' own, which take minutes there

Each figure is of a process of its own: CPU seconds of it, of those below it and of the server, the
most memory of it and of the engine's processes in MB (on Linux). Ours codes every text; the
engine's own group-by is of the same pairs, of texts as they are. Where an
engine is not installed its rows are left out. JSON is written to build/.
"""

import itertools
import json
import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from data import write_duckdb
from engines import LOCAL, PG, cursor_of_postgres, in_postgres, postgres_running

from dpquery.measurement.counting.tabulate import tabulate
from dpquery.spec.parsing.read import load_spec

ROOT = Path(__file__).parents[2]
TICKS = os.sysconf("SC_CLK_TCK")


def grouped(attributes):
    """Return the engine's own query of all pairs of attributes."""
    columns = [", ".join(column.name for column in own.columns) for own in attributes]
    listed, pairs = ", ".join(columns), itertools.combinations(columns, 2)
    sets = ", ".join(f"({', '.join(pair)})" for pair in pairs)
    return f"SELECT {listed}, count(*) FROM persons GROUP BY GROUPING SETS ({sets})"  # noqa: S608


def ours(location):
    pairs = [(), *itertools.combinations(range(len(SPEC.domain.shape)), 2)]
    place = location if location.startswith("spark:") else Path(location)
    return tabulate([place], spec=SPEC, subsets=pairs)[()]


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


SPEC = load_spec(ROOT / "workloads" / "sample_persons.yaml")
QUERY = grouped(SPEC.domain.attributes)
OWN = {"duckdb": by_duckdb, "adbc": by_postgres, "spark": by_spark}


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
        inside = below(os.getpid(), found) - {os.getpid()}
        if server:
            inside |= below(server, found)
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


def written(rows, folder):
    """Write the sample's rows, again and again, wherever there is an engine."""
    sample = ROOT / "sample_data" / "persons.csv"
    names = sample.open().readline().strip().split(",")
    options = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    once = arrow_csv.read_csv(sample, convert_options=options).combine_chunks()
    table = pa.concat_tables([once] * -(-rows // once.num_rows)).slice(0, rows)
    (folder / "parts").mkdir()
    for k in range(4):
        part = table.slice(k * rows // 4, (k + 1) * rows // 4 - k * rows // 4)
        pq.write_table(part, folder / "parts" / f"{k}.parquet")
    found = {"parquet": str(folder / "parts")}
    if find_spec("duckdb"):
        found["duckdb"] = str(write_duckdb(table, folder / "rows.duckdb"))
    if os.environ.get(PG):
        found["adbc"] = str(in_postgres(table))
    if find_spec("pyspark"):
        found["spark"] = f"spark:{folder}/parts"
    return found


def main(sizes, *, alone):
    """Print a line for each engine, ours and its own."""
    spawned, lines = multiprocessing.get_context("spawn"), []
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[2] pyspark-shell"
    print(f"{'rows':>10} {'engine':8} {'counts':8} {'CPU s':>7} {'s':>7} {'MB':>7} {'its MB':>7}")
    for rows in sizes:
        with ExitStack() as left:
            server = 0
            if find_spec("adbc_driver_postgresql"):
                left.enter_context(postgres_running())
                place = os.environ[PG].partition("host=")[2].partition("&")[0]
                server = int(Path(place, "data", "postmaster.pid").read_text().split()[0])
            folder = Path(left.enter_context(tempfile.TemporaryDirectory()))
            places = written(rows, folder)
            cases = [(kind, own) for kind in places for own in ((0,) if alone else (0, 1))]
            for kind, own in cases:
                count = OWN.get(kind) if own else ours
                if count is None:
                    continue
                out = spawned.SimpleQueue()
                given = (count, places[kind], server if kind == "adbc" else 0, out)
                process = spawned.Process(target=measured, args=given)
                process.start()
                process.join()
                line = {"rows": rows, "engine": kind, "counts": "engine" if own else "dpquery"}
                line |= {} if process.exitcode else out.get()
                lines.append(line)
                print(*line.values(), flush=True)
    name = "bench_engines_ours.json" if alone else "bench_engines.json"
    (ROOT / "build" / name).write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    given = [int(own) for own in sys.argv[1:] if own != "ours"]
    main(given or [1_000_000, 5_000_000], alone="ours" in sys.argv)
