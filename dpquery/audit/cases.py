"""Random specs and records, in every kind of source.

There is a case for every family of strategies that the planner has, for every law of noise, both
sources of it, every currency, and every kind of protected unit.
"""

import csv
import datetime
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpquery.arrays import Ints
from dpquery.spec.spec import Spec
from dpquery.strategy.strategy import Noise

SOURCE_SPEC = """\
dataset: {id: made-up}
privacy: {unit: row}
budget: {epsilon: 1}
domain:
  age: {range: [0, 3]}
  pay: {bins: [0, 0.1, 1.5]}
  works: boolean
  sex: {values: [M, F]}
  since: {date: {from: 2013-01-01, to: 2014-12-31, by: year}}
workload: [{name: all, product: {}}]
"""
VALUES: dict[str, tuple[pa.DataType, tuple[tuple[object, int], ...]]] = {
    "age": (pa.int64(), ((0, 0), (1, 1), (2, 2), (3, 3), (-1, 4), (None, 4))),
    "pay": (
        pa.float64(),
        ((0.05, 0), (0.1, 1), (1.25, 1), (math.nan, 2), (math.inf, 2), (1e300, 2), (None, 2)),
    ),
    "works": (pa.bool_(), ((False, 0), (True, 1), (None, 2))),
    "sex": (pa.string(), (("M", 0), (" F ", 1), ('M"', 2), ("", 2), ("\u00e9,;'", 2), (None, 2))),
    "since": (
        pa.date32(),
        (
            (datetime.date(2013, 1, 1), 0),
            (datetime.date(2014, 12, 31), 1),
            (datetime.date(2015, 1, 1), 2),
            (None, 2),
        ),
    ),
    "remark": (pa.string(), ((",", 0), ('"', 0), (None, 0), ("x" * 99, 0))),
}
"""Of each column its type and the values that records have, with their codes; the last is other's.

No question names the remark, and whatever it holds counts alike.
"""


def records_of_sources(number: int) -> tuple[pa.Table, Ints]:
    """Return so many records as a typed table, and their codes of all columns but the remark."""
    places = np.arange(number)[:, None] * [7, 11, 3, 5, 9, 2] // [1, 3, 2, 4, 5, 1]
    arrays, codes = [], []
    for (kind, values), column in zip(VALUES.values(), places.T.tolist(), strict=True):
        chosen = [values[place % len(values)] for place in column]
        arrays.append(pa.array([value for value, _ in chosen], kind))
        codes.append([code for _, code in chosen])
    return pa.table(arrays, names=[*VALUES]), np.array(codes[:-1]).T


def written_csv(table: pa.Table, folder: Path) -> Path:
    """Write a table as text."""
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([table.schema.names, *_rows(table)])
    return path


def written_parquet(table: pa.Table, folder: Path) -> Path:
    """Write a table as Parquet of several row groups."""
    pq.write_table(table, folder / "rows.parquet", row_group_size=max(1, table.num_rows // 3))
    return folder / "rows.parquet"


def written_arrow(table: pa.Table, folder: Path) -> Path:
    """Write a table as an Arrow file of several batches."""
    with pa.ipc.new_file(str(folder / "rows.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, table.num_rows // 3))
    return folder / "rows.arrow"


def written_sqlite(table: pa.Table, folder: Path) -> Path:
    """Write a table into an SQLite database, which has numbers and texts."""
    marks = ", ".join("?" * table.num_columns)
    with closing(sqlite3.connect(folder / "rows.db")) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS records")
        connection.execute(f"CREATE TABLE records ({', '.join(table.schema.names)})")
        connection.executemany(f"INSERT INTO records VALUES ({marks})", _rows(table))  # noqa: S608
    return Path(f"sqlite:{folder / 'rows.db'}?table=records")


def written_duckdb(table: pa.Table, folder: Path) -> Path:
    """Write a table into a DuckDB database."""
    import duckdb

    with closing(duckdb.connect(folder / "rows.duckdb")) as connection:
        connection.register("given", table)
        connection.execute("CREATE OR REPLACE TABLE records AS SELECT * FROM given")
    return Path(f"duckdb:{folder / 'rows.duckdb'}?table=records")


def writers() -> dict[str, Callable[[pa.Table, Path], Path]]:
    """Return what writes a table into a folder, and returns its location, by kind of source."""
    kinds = {
        "CSV": written_csv,
        "Parquet": written_parquet,
        "Arrow": written_arrow,
        "SQLite": written_sqlite,
    }
    return kinds | ({"DuckDB": written_duckdb} if find_spec("duckdb") else {})


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [
        [value.isoformat() if isinstance(value, datetime.date) else value for value in column]
        for column in (column.to_pylist() for column in table.columns)
    ]
    return list(zip(*columns, strict=True))


Codes = tuple[int, ...]
"""The code of every attribute of a record; OUTSIDE where it has none."""

OUTSIDE = -1
_STRANGE = "no such value"
_RECORDS = 200


@dataclass(frozen=True)
class Case:
    """A spec, and how it is released."""

    name: str  # in a few words
    spec: str  # YAML
    noise: Noise  # the kind of it
    epsilon: Fraction = Fraction(1)  # of each release
    repeated: bool = False  # whether its measurement is also repeated many times
    quick: bool = False  # whether the quick audit has it too
    apart: bool = False  # whether two processes release it too
    plan: bytes | None = None  # a plan file's bytes; None where the audit makes the plan

    @classmethod
    def read(cls, text: str) -> "Case":
        """Read a case: name and how it is released, unit, attributes, a line for each item."""
        head, privacy, domain, *items = text.splitlines()
        name, _, words = head.partition(": ")
        noise: Noise = "laplace" if "laplace" in words else "gaussian"
        delta = ", delta: 1e-6, accounting: " + ("gdp" if "gdp" in words else "zcdp")
        workload = (f"  - {{name: item{k}, {item}}}\n" for k, item in enumerate(items))
        spec = (
            "dataset: {id: made-up}\n"
            f"privacy: {{unit: {privacy}}}\n"
            f"budget: {{epsilon: 1000{delta if 'delta' in privacy else ''}}}\n"
            f"other: {'count' if 'other counted' in words else 'drop'}\n"
            f"domain: {{{domain}}}\n"
            f"workload:\n{''.join(workload)}"
        )
        epsilon = Fraction(words.partition("epsilon ")[2].partition(",")[0] or 1)
        repeated, quick, apart = (word in words for word in ("repeated", "quick", "apart"))
        return cls(name, spec, noise, epsilon, repeated, quick, apart)


@dataclass(frozen=True)
class Record:
    """One made-up row: whose it is, the code of every attribute of the data, and its weight."""

    person: str
    codes: Codes
    weight: str = "1"


_CASES = """\
marginals of rows: laplace, repeated, quick, apart
row, neighbours: add-remove
a: {range: [0, 2]}, b: {values: [F, M]}, c: {bins: [0, 10, 20.5, 50], column: income}
product: {a: identity}, weight: 9
product: {b: identity, c: identity}

residuals of persons: gaussian, gdp, epsilon 6, repeated, quick
{person: id, max_rows: 3}, neighbours: add-remove, delta: 1e-6
a: {range: [0, 39]}, b: {values: [F], other: show}, c: {range: [0, 12]}
product: {a: identity+total}, weight: 9
product: {b: identity, c: prefix}
product: {}
rows_per_person: {up_to: 4}

weights of persons: gaussian, gdp, epsilon 4, repeated, quick
{person: id, max_rows: 3}, neighbours: add-remove, delta: 1e-6, weight: {column: wt, at_most: 2.5, \
step: 0.1, total: 90, effective: 60, design_effect: 1.5}
a: {range: [0, 4]}, b: {values: [F, M]}
product: {a: identity, b: identity+total}
sum: {of: a, by: {b: identity}}

replicate weights of persons who are replaced: gaussian, gdp, epsilon 4, repeated, quick
{person: id, max_rows: 3}, neighbours: replace, delta: 1e-6, weight: {column: wt, at_most: 2.5, \
step: 0.1, replicates: {first: rep1, count: 3, factor: 0.5, at_most: 3}}
a: {range: [0, 4]}, b: {values: [F, M]}
product: {a: identity, b: identity+total}

weights of rows that are replaced: laplace, other counted, epsilon 2, repeated
row, neighbours: replace, weight: {column: wt, at_most: 300, total: 9000, effective: 60, step: 25, \
inclusion: true, design_effect: 1}
a: {range: [0, 4]}, b: {values: [F, M]}
product: {a: prefix, b: identity}

prefixes of one attribute: laplace, epsilon 2, repeated
{person: id, max_rows: 3}, neighbours: add-remove
a: {range: [0, 11]}
product: {a: prefix}
sum: {of: a}

a hierarchy of blocks: gaussian, epsilon 4, repeated
row, neighbours: add-remove, delta: 1e-6
a: {range: [0, 15]}
product: {a: [identity, {ranges: [[0, 3], [4, 7], [8, 11], [12, 15]]}, total]}

two of three, in exchange for another record: laplace, epsilon 3, repeated
row, neighbours: replace
a: boolean, b: {values: [x, y, z]}, c: {range: [0, 9]}
threshold: {r: 2, of: [a, b, c], targets: {a: yes, b: z, c: {between: [3, 5]}}}
product: {c: identity}

ranges by prefixes: laplace, where squared mu adds up: gdp
row, neighbours: add-remove, delta: 1e-6
a: {range: [0, 31]}, b: {range: [0, 4]}
product: {a: all-ranges, b: prefix}

ranges by groups, of persons who are replaced: laplace, epsilon 1/3
{person: id, max_rows: 3}, neighbours: replace
a: {range: [0, 19]}, b: {range: [0, 2]}
product: {a: all-ranges, b: identity+total}

prefixes of every two attributes: laplace
row, neighbours: add-remove
a: {range: [0, 15]}, b: {range: [0, 11]}, c: {range: [0, 7]}
product: {a: prefix, b: prefix}
product: {a: prefix, c: prefix}
product: {b: prefix, c: prefix}

tables of two attributes: gaussian
row, neighbours: add-remove, delta: 1e-6
a: {range: [0, 4]}, b: {range: [0, 2]}, c: boolean
product: {a: identity, b: identity}
product: {a: identity, c: identity}
product: {b: identity, c: identity}

slices that no record has two of, of persons: gaussian, repeated, quick
{person: id, max_rows: 3}, neighbours: add-remove, delta: 1e-6
a: {range: [0, 3]}, b: {range: [0, 4]}, c: boolean
where: {a: {is: 0}}, product: {b: prefix}
where: {a: {is: 1}}, product: {b: identity, c: identity}
product: {a: identity}
where: {a: {is: 2}}, sum: {of: b, value: [3, -2, 0, 7, 1]}

rectangles: laplace, where rho adds up
row, neighbours: add-remove, delta: 1e-6
a: {range: [0, 15]}, b: {range: [0, 15]}
ranges: {a: all, b: all}

a wide table: laplace, quick, apart
row, neighbours: add-remove
a: {range: [0, 255]}, b: {range: [0, 255]}
product: {a: identity, b: identity}
product: {a: identity}

a wide table of rows that are replaced: gaussian, gdp
row, neighbours: replace, delta: 1e-6
a: {range: [0, 255]}, b: {range: [0, 255]}
product: {a: identity, b: identity}
product: {a: identity}

prefixes of rows that are replaced: gaussian, other counted, epsilon 3, repeated, quick
row, neighbours: replace, delta: 1e-6
a: {range: [0, 15]}, b: {range: [0, 2]}
product: {a: prefix, b: identity}

rows that are replaced and may be dropped: gaussian, epsilon 3, repeated
row, neighbours: replace, delta: 1e-6
a: {range: [0, 11]}
product: {a: prefix}
"""
CASES = tuple(map(Case.read, _CASES.split("\n\n")))


_WEIGHTS = ("1", "0.34", "2.71", "", "1e9", " 1.96", "-1", "1,5", "nan", "0.049")
"""Texts of weights, of which some are more than a cap, and some are none."""


def steps_added(record: Record, spec: Spec, part: int = 0) -> int:
    """Return what a record adds to its cell: 1, or the steps of its weight; or what is beside."""
    weight = spec.privacy.weight
    if weight is None:
        return 1
    written = _number(record.weight)
    steps = max(0, math.floor(min(written, weight.at_most) / weight.step + Fraction(1, 2)))
    if part == 0 or weight.replicates is None:
        return steps * (steps if part else 1)  # the weight, or its square
    if steps == 0:
        return 0
    left = min(Fraction(1), weight.at_most / written) / weight.step
    exact = [(_number(text) - written) * left for text in replicate_texts(record, spec)]
    most, nearest = int(weight.replicates.at_most / weight.step), [round(d) for d in exact]
    if sum(d * d for d in nearest) > most**2:
        long = Fraction(math.sqrt(sum(d * d for d in exact)))
        nearest = [int(d * min(Fraction(1), most / long)) for d in exact]
    return nearest[part - 1]


def replicate_texts(record: Record, spec: Spec) -> list[str]:
    """Return a record's replicate weights, some of which are no number, or below 0."""
    weight, seed = spec.privacy.weight, sum(record.codes) + len(record.weight)
    if weight is None or weight.replicates is None:
        return []
    kinds = ("0", record.weight, "-0.41", "", "1.37", "3.1")
    columns = weight.replicates.columns
    return [kinds[(seed * (k + 1) + k) % len(kinds)] for k in range(len(columns))]


def _number(text: str) -> Fraction:
    try:
        return Fraction(text)
    except ValueError:
        return Fraction(0)


def records_for(spec: Spec) -> list[Record]:
    """Return made-up records, among them persons with many rows and codes outside.

    All rows of a person that are inside are alike where persons are protected, so that it is no
    matter of chance which of them count.
    """
    records = []
    for k in range(_RECORDS):
        codes = []
        person = k % 37 if k % 5 else 0
        kind = k if spec.privacy.person is None else person
        for i, attribute in enumerate(spec.domain.in_data):
            open_ = any(column.drops for column in attribute.columns)
            strange = open_ and k % 13 == 7 + i
            code = (kind * (2 * i + 3) + kind * kind // 11) % min(attribute.size, 40)
            codes.append(OUTSIDE if strange else code)
        records.append(Record(f"p{person}", tuple(codes), _WEIGHTS[kind % len(_WEIGHTS)]))
    return records


def counted(records: Iterable[Record], spec: Spec, part: int = 0) -> Counter[Codes]:
    """Return counts by codes of the records inside the domain, up to max_rows a person.

    Of weighted ones the sums of a part of what they add, see `steps_added`. The first record of
    each person has the person's number of records where that is asked for. What has no person
    where persons are protected does not count.
    """
    named = spec.privacy.person is not None
    inside = [record for record in records if OUTSIDE not in record.codes]
    inside = [record for record in inside if record.person or not named]
    rows_of = Counter(record.person for record in inside)
    numbered = [a for a in spec.domain.attributes if not a.in_data]
    seen: Counter[str] = Counter()
    counts: Counter[Codes] = Counter()
    for record in inside:
        seen[record.person] += 1
        if named and seen[record.person] > spec.privacy.max_rows:
            continue
        codes = list(record.codes)
        for attribute in numbered:
            more, further = attribute.size - 2, attribute.size - 1
            first = seen[record.person] == 1
            codes.append(min(rows_of[record.person] - 1, more) if first else further)
        counts[tuple(codes)] += steps_added(record, spec, part)
    return counts


def write_csv(path: Path, records: Sequence[Record], spec: Spec) -> None:
    """Write records as a CSV file, with the columns of persons and weights that the spec names."""
    person, weight = spec.privacy.person, spec.privacy.weight
    more = [*([] if person is None else [person]), *([] if weight is None else [weight.name])]
    if weight is not None and weight.replicates is not None:
        more += [column.name for column in weight.replicates.columns]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*(column.name for column in spec.domain.columns), *more])
        for record in records:
            texts = [text for i, code in enumerate(record.codes) for text in _texts(spec, i, code)]
            beside = [record.person] * (person is not None) + [record.weight] * (weight is not None)
            beside += replicate_texts(record, spec)
            writer.writerow(texts + beside)


def _texts(spec: Spec, i: int, code: int) -> list[str]:
    columns = spec.domain.attributes[i].columns
    if code == OUTSIDE:
        return [_STRANGE for _ in columns]
    texts = []
    for column in reversed(columns):
        code, digit = divmod(code, column.size)
        # of bins the lower edge, which is in
        texts.append(_STRANGE if digit == column.length else column.kind.texts_of(digit)[-1])
    return texts[::-1]


@dataclass(frozen=True, eq=False)
class Size:
    """How much an audit draws. Each run has its own, which is the key of what its parts share."""

    draws: int  # from each source of noise at each scale
    replicates: int  # of each small measurement
    releases: int  # of each made-up dataset, whole
    quick: bool = False  # whether only some of the made-up datasets are used
    user_cases: tuple[Case, ...] = ()  # cases of a user's plan, in place of those of the audit


FULL = Size(draws=100_000, replicates=5_000, releases=20)
QUICK = Size(draws=20_000, replicates=1_500, releases=12, quick=True)
