"""What persons cost beside rows: CPU seconds and memory, over one file and in one run.

python tests/bench/bench_persons.py [million rows]    default: 10
python tests/bench/bench_persons.py --memory [million rows] [million persons] [memory ...]

The second counts a Parquet file of ids that are whole numbers, under each limit of memory.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from dpquery.commands.arguments import checked_memory
from dpquery.measurement.counting.persons import KeptRows
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.spec.parsing.read import parse

SPEC = """\
dataset: {{id: bench}}
privacy: {{unit: {unit}}}
budget: {{epsilon: 1}}
domain:
  age: {{range: [0, 99]}}
  sex: {{values: [F, M]}}
  region: {{range: [1, 8]}}
  income: {{bins: [0, 10000, 20000, 50000, 90001]}}
workload: [{{name: all, product: {{}}}}]
"""
LARGE = """\
dataset: {id: bench}
privacy: {unit: {person: id, max_rows: 3}}
budget: {epsilon: 1}
domain: {age: {range: [0, 99]}, region: {range: [0, 7]}}
workload:
  - {name: all, product: {age: identity, region: identity}}
  - {name: rows, rows_per_person: {up_to: 20}}
"""
UNITS = (
    "row",
    "{person: id, max_rows: 3}",
    "{person: id, max_rows: 1}",
    "{person: id, max_rows: 3, keep: first}",
)


def write(path, rows, each):
    """A file of persons with so many rows each on average, in random order."""
    rng = np.random.default_rng(4)
    sexes = np.array(["F", "M"])[rng.integers(0, 2, rows)]
    columns = {
        "id": rng.integers(0, int(rows / each), rows),
        "age": rng.integers(0, 100, rows),
        "sex": pa.array(sexes),
        "region": rng.integers(1, 9, rows),
        "income": rng.integers(0, 90_000, rows),
    }
    arrow_csv.write_csv(pa.table(columns), path, arrow_csv.WriteOptions(quoting_style="none"))


def count(path, unit):
    """Count a file in this process, and print what that took."""
    spec = parse(SPEC.format(unit=unit), name="bench", files={})
    before, start = os.times(), time.perf_counter()
    tabulate(Path(path), spec=spec, subsets=[(0, 1), (1, 2, 3), ()])
    after, wall = os.times(), time.perf_counter() - start
    cpu = after.user + after.system - before.user - before.system
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"| {unit} | {cpu:.1f} | {wall:.1f} | {memory:.2f} |", flush=True)


def write_large(path, rows, persons):
    """A Parquet file of persons in random order, made batch by batch."""
    rng = np.random.default_rng(4)
    schema = pa.schema({"id": pa.int64(), "age": pa.int8(), "region": pa.int8()})
    with pq.ParquetWriter(path, schema) as file:
        for start in range(0, rows, 2**20):
            size = min(2**20, rows - start)
            columns = [rng.integers(0, n, size) for n in (persons, 100, 8)]
            file.write_table(pa.table(columns, names=schema.names).cast(schema))


def count_within(path, memory):
    """Count a file within a limit of memory in this process, and print what that took."""
    spec = parse(LARGE, name="bench", files={})
    passes = [0]
    begin = KeptRows.begin_pass
    KeptRows.begin_pass = lambda self: [passes.append(0), begin(self)][1]
    before = os.times()
    tables = tabulate(Path(path), spec=spec, subsets=[(0, 1), (2,)], memory=checked_memory(memory))
    after = os.times()
    cpu = after.user + after.system - before.user - before.system
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    kept = int(tables[2,].sum())
    print(f"| {memory} | {kept:,} | {len(passes) - 1} | {cpu:.0f} | {gigabytes:.2f} |", flush=True)


def main_memory(rows=10, persons=1, *memories):
    rows, persons = int(float(rows) * 1e6), int(float(persons) * 1e6)
    print(f"\n{rows:,} rows of {persons:,} persons\n")
    print("| memory | rows that stay | passes | CPU s | GB |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.parquet"
        write_large(path, rows, persons)
        for memory in memories or ("1GiB", "256MB", "64MB"):
            own = (sys.executable, __file__, "--within", str(path), memory)
            subprocess.run(own, check=True)


def main():
    rows = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 10_000_000
    for each in (10, 1.2):
        print(f"\n{rows:,} rows, {each} of a person\n")
        print("| unit | CPU s | wall s | GB |\n|---|---|---|---|", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "data.csv", rows, each)
            for unit in UNITS:
                own = (sys.executable, __file__, "--count", str(Path(folder) / "data.csv"), unit)
                subprocess.run(own, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        count(*sys.argv[2:])
    elif sys.argv[1:2] == ["--within"]:
        count_within(*sys.argv[2:])
    elif sys.argv[1:2] == ["--memory"]:
        main_memory(*sys.argv[2:])
    else:
        main()
