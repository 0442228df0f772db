"""Specs and plans, any of them; records in any kind of source, and the slow count of them."""

import bz2
import csv
import decimal
import gzip
import itertools
import json
import math
import os
import sqlite3
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from dpquery.limits import MAX_STATE_BYTES
from dpquery.measurement.counting import column_codes, text_files
from dpquery.measurement.counting import tabulate as module
from dpquery.measurement.counting.arrow_files import batch_of
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.counting.text_files import Dialect
from dpquery.operators.cells import cell_classes
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity, total
from dpquery.operators.p_identity import PIdentity
from dpquery.plan_file.plan import decode_strategy
from dpquery.spec.columns import Attribute, Bins, Boolean, Categorical, Column, Domain, Integers
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Budget, Dataset, FileFormat, Privacy, Spec
from dpquery.strategy.algebra.subsets import subsets_of
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.shapes.cells import CellClassesStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore

# The small spec that the tests of the spec room vary.

BASE = """\
dataset: {id: survey, version: 1}
privacy: {unit: row, neighbours: add-remove, delta: 1e-9}
budget: {epsilon: 4, delta: 1e-9}
other: drop
domain:
  age: {range: [0, 9]}
  sex: {values: [Male, Female]}
  state: {values: {1: Alabama, 2: Alaska, 4: Arizona}, other: show}
  income: {bins: [0, 10000, 20000, 50000]}
  hispanic: boolean
  race: {merge: {white: boolean, black: boolean, asian: {values: [A, B, C]}}}
workload:
  - name: first
    product: {age: prefix, sex: identity}
"""


def read(text: str, files: dict[str, str] | None = None) -> Spec:
    """Return the spec that a text is, with the lists of values that it names."""
    return parse(text, name="w.yaml", files=files or {})


# Random specs of every form that a workload can take, small enough to be written out densely.

MOST_CELLS = 400


def random_spec(rng, *, wheres=None):
    """Return the text of a spec over three to six attributes, with up to 400 cells.

    Args:
        rng: the numpy generator that draws it.
        wheres: how many conditions the first item has; None draws it.
    """
    d = int(rng.integers(3, 7))
    sizes = _sizes(rng, d)
    names = "abcdef"[:d]
    lines = [
        "dataset: {id: fuzz, version: 1}",
        f"privacy: {{unit: row{', delta: 1e-6' if rng.random() < 0.5 else ''}}}",
        "budget: {epsilon: 100}",
        "other: drop",
        "domain:",
    ]
    kinds = {}
    for name, n in zip(names, sizes, strict=True):
        kinds[name], text = _attribute(rng, name, n)
        lines.append(f"  {name}: {text}")
    lines.append("workload:")
    for k in range(int(rng.integers(2, 5))):
        body = (
            _product(rng, names, sizes, kinds, wheres)
            if k == 0
            else _item(rng, names, sizes, kinds)
        )
        weight = f", weight: {10.0 ** rng.uniform(-3, 3):.3g}" if rng.random() < 0.5 else ""
        lines.append(f"  - {{name: q{k}, {body}{weight}}}")
    return "\n".join(lines) + "\n"


def _sizes(rng, d):
    while True:
        sizes = rng.integers(2, 7, d).tolist()
        if math.prod(sizes) <= MOST_CELLS:
            return sizes


def _attribute(rng, name, n):
    draw = rng.random()
    if n == 4 and draw < 0.3:
        return "merge", f"{{merge: {{{name}1: boolean, {name}2: boolean}}}}"
    if n == 2 and draw < 0.4:
        return "boolean", "boolean"
    if draw < 0.5:
        return "values", f"{{values: [{', '.join(f'v{k}' for k in range(n))}]}}"
    return "range", f"{{range: [0, {n - 1}]}}"


def _item(rng, names, sizes, kinds):
    draw = rng.random()
    if draw < 0.3:
        return _product(rng, names, sizes, kinds, None)
    if draw < 0.45:
        return _sum(rng, names, sizes, kinds)
    if draw < 0.65:
        return (
            f"marginals: {{{'ways' if rng.random() < 0.5 else 'up_to'}: {int(rng.integers(1, 4))}}}"
        )
    chosen = rng.permutation(len(names))[: int(rng.integers(2, 4))].tolist()
    if draw < 0.85:
        attributes = ", ".join(
            f"{names[i]}: {_condition(rng, names[i], sizes[i], kinds[names[i]], braces=True)}"
            for i in chosen
        )
        return f"any_of: {{{attributes}}}"
    r = int(rng.integers(1, len(chosen) + 1))
    return f"threshold: {{r: {r}, of: [{', '.join(names[i] for i in chosen)}]}}"


def _sum(rng, names, sizes, kinds):
    """A sum of one attribute, by some others or by itself."""
    plain = [i for i, name in enumerate(names) if kinds[name] != "merge"]
    if not plain:
        return _product(rng, names, sizes, kinds, None)
    i = plain[rng.integers(len(plain))]
    numbers = None
    if kinds[names[i]] != "range" or rng.random() < 0.5:
        numbers = [int(rng.integers(1, 40)), *rng.integers(-9, 40, sizes[i] - 1).tolist()]
    several = numbers is not None and rng.random() < 0.5
    elsewhere = _product(rng, names, sizes, kinds, None).replace("product:", "by:", 1)
    by, _, where = elsewhere.partition(", where:")
    if f"{names[i]}: " in elsewhere:  # a sum of what adds nothing is refused
        numbers = [number or 1 for number in numbers or range(sizes[i])]
    parts = [f"of: {names[i]}"]
    if numbers is not None:
        named = [f"{_value(kinds[names[i]], k)}: {n}" for k, n in enumerate(numbers)]
        parts.append(f"value: {numbers}" if several else f"value: {{{', '.join(named)}}}")
    return f"sum: {{{', '.join([*parts, by])}}}" + (f", where:{where}" if where else "")


def _product(rng, names, sizes, kinds, wheres):
    order = rng.permutation(len(names)).tolist()
    most = len(order) - 1
    chosen = order[: int(rng.integers(1, min(3, most) + 1))]
    rest = order[len(chosen) :]
    count = min(len(rest), int(rng.integers(0, len(rest) + 1)) if wheres is None else wheres)
    axes = ", ".join(
        f"{names[i]}: {_set(rng, names[i], sizes[i], kinds[names[i]])}" for i in chosen
    )
    where = ", ".join(
        f"{names[i]}: {_condition(rng, names[i], sizes[i], kinds[names[i]])}" for i in rest[:count]
    )
    return f"product: {{{axes}}}" + (f", where: {{{where}}}" if where else "")


def _set(rng, name, n, kind):
    words = ["identity", "identity", "total", "identity+total", "condition"]
    if kind == "range":
        words += ["prefix", "prefix", "all-ranges", "width"]
    word = words[rng.integers(len(words))]
    if word == "condition":
        return _condition(rng, name, n, kind, braces=True)
    return f"{{width: {int(rng.integers(1, n + 1))}}}" if word == "width" else word


def _value(kind, k):
    if kind == "boolean":
        return ("no", "yes")[k]
    return f"v{k}" if kind == "values" else str(k)


def _condition(rng, name, n, kind, *, braces=False):
    if kind == "merge":
        return _merged(rng, name)
    k = int(rng.integers(n))
    draw = rng.random()
    if kind == "range" and draw < 0.4:
        return f"{{between: [{k}, {int(rng.integers(k, n))}]}}"
    if draw < 0.6:
        chosen = sorted(rng.permutation(n)[: int(rng.integers(1, n + 1))].tolist())
        return f"{{in: [{', '.join(_value(kind, code) for code in chosen)}]}}"
    return f"{{is: {_value(kind, k)}}}" if braces else _value(kind, k)


def _merged(rng, name):
    """A condition on one or both columns of a merged attribute."""
    parts = [f"{name}{k}: {('no', 'yes')[rng.integers(2)]}" for k in (1, 2)]
    values = "{" + ", ".join(parts[: int(rng.integers(1, 3))]) + "}"
    return f"{{is: {values}}}"


# Plans changed by hand as their planner would have changed them: with figures that are true.


def unhashed(written):
    """Return the JSON of a plan file without its hash, so that what is changed in it is read."""
    plan = json.loads(written)
    plan.pop("sha256", None)
    return plan


def with_true_figures(plan):
    """Set the figures of every selection of a plan, as JSON values, to those of its strategy."""
    spec = plan["spec"]
    compiled = compile_spec(parse(spec["text"], name="spec", files=spec["files"]))
    for selection in plan["selections"]:
        strategy = decode_strategy(
            selection["strategy"], noise=selection["noise"], workload=compiled.workload
        )
        change = selection.get("record_change", "enters")
        error = expected_error(strategy, compiled.workload, change)
        best = next(line for line in selection["candidates"] if line["name"] == selection["best"])
        best |= {"rmse": error.rmse, "weighted_rmse": error.weighted_rmse}
        best |= {"max_std_error": error.max_std_error, "score": error.weighted_rmse}
    return plan


def put_true_figures(path=Path("dpquery.plan")):
    """Do the same in a file."""
    path.write_text(json.dumps(with_true_figures(json.loads(path.read_text()))))


def strategies(compiled):
    """One strategy of each shape for the town's workload."""
    workload = compiled.workload
    shape, noise = workload.shape_of_domain, "laplace"
    cells = tuple(Identity(n) for n in shape)
    (ages, *_, income) = shape
    optimised = PIdentity(np.arange(100, 100 + ages), np.arange(ages)[None, :] * 7)
    only = (optimised, Identity(2), *(total(n) for n in shape[2:]))
    rest = (total(ages), *cells[1:])
    groups = tuple(
        tuple(k for k, b in enumerate(workload.blocks) if (0 in b.attributes) == with_age)
        for with_age in (True, False)
    )
    parts = (ProductStrategy("a", noise, only), ProductStrategy("b", noise, rest))
    sets = {b: 5 + len(b) for b in ((0, 1), (0,), (1, 2), (1, 2, 3))}
    below = sorted({a for b in sets for a in subsets_of(b)})
    skew = np.tril(np.ones((income - 1, income), dtype=np.int64))
    cores = (*(CenteredCore(n) for n in shape[:-1]), DenseCore(skew))
    classes = cell_classes(workload, most=1 << 16)
    n = classes.count
    counted = PIdentity(np.arange(100, 100 + n), np.arange(n)[None, :] % 7)
    return {
        "cell-classes": CellClassesStrategy(
            "c", noise, classes, ProductStrategy("i", noise, (counted,))
        ),
        "product": ProductStrategy("p", noise, (optimised, *cells[1:])),
        "marginals": MarginalsStrategy("m", noise, shape, sets),
        "factors": MarginalsStrategy("f", noise, shape, sets, {0: optimised}),
        "residual": ResidualStrategy("r", noise, cores, {b: 3 + len(b) for b in below}),
        "union": UnionStrategy("u", noise, parts, (3, 2), groups),
        "direct": DirectStrategy("d", noise, workload, tuple(range(2, 2 + len(workload.blocks)))),
    }


# Records in any kind of source, and the slow count that all of them must agree with.

# Specs to count under, an oracle that reads line by line, and lines of every kind.


def spec_of(*attributes, person=None, max_rows=1, keep="random"):
    return Spec(
        dataset=Dataset("test"),
        privacy=Privacy(person=person, max_rows=max_rows, keep=keep),
        budget=Budget(),
        domain=Domain(tuple(attributes)),
        items=(),
    )


def single(name, kind, *, other="drop", header=None):
    return Attribute(name, (Column(header or name, kind, other),))


def attributes(*, other):
    """One attribute of every kind, one of them merged from two columns."""
    return (
        single("sex", Categorical(("M", "F"), ("Male", "Female")), other=other),
        single("age", Integers(-1, 3), other=other),
        single("pay", Bins((0.0, 1.5, 10.0)), other=other, header="income"),
        Attribute(
            "race", (Column("w", Boolean(), other), Column("b", Boolean(("Ä",), ("n",)), other))
        ),
    )


HEADER = b'sex,age,"income",w,b,extra'
WHITE = " \t\r\n\x0b\x0c"
ALL_SUBSETS = [s for r in range(5) for s in itertools.combinations(range(4), r)]


def run(
    path,
    body,
    *,
    spec,
    header=HEADER,
    subsets=ALL_SUBSETS,
    chunk_bytes=2**24,
    classes=None,
    memory=MAX_STATE_BYTES,
):
    path.write_bytes(header + b"\n" + body)
    classes = classes or [np.arange(n) for n in spec.domain.shape]
    tally = module.RecordTally(spec, subsets, classes, memory=memory)
    return module._counted(path, tally, tally.marginals, chunk_bytes=chunk_bytes)


def slow_number(text):
    """The exact number that a text writes, as the rules are documented, or None."""
    if len(text) > 64 or not text.isascii() or not set(text) <= set("0123456789.eE+-"):
        return None
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        return None


def slow_code(column, text):
    """The code of one text, by the rules as they are documented."""
    code = -1
    try:
        text = text.encode("latin-1").decode().strip()
    except UnicodeDecodeError:
        return -1 if column.drops else column.length
    number = slow_number(text)

    def listed(texts):
        return text in texts or (number is not None and number in map(slow_number, texts))

    match column.kind:
        case Categorical():
            code = next((c for c, texts in enumerate(column.kind.texts) if listed(texts)), -1)
        case Integers(low=low, high=high):
            if number is not None and low <= number <= high and number == int(number):
                code = int(number) - low
        case Bins(edges=edges):
            exact = [decimal.Decimal(repr(edge)) for edge in edges]
            for i, (low, high) in enumerate(itertools.pairwise(exact)):
                code = i if number is not None and low <= number < high else code
        case Boolean(true=true, false=false):
            text = text.casefold()
            both = [[t.casefold() for t in texts] for texts in (false, true)]
            code = next((c for c, texts in enumerate(both) if listed(texts)), -1)
    return column.length if code < 0 and not column.drops else code


def slow_record(line, width):
    """The fields of a line, or None if it is malformed."""
    line = line[:-1] if line[-1:] == b"\r" else line
    text = line.decode("latin-1")
    try:
        row = next(csv.reader([text], strict=True)) if '"' in text else text.split(",")
    except (csv.Error, StopIteration):
        return None
    return None if len(row) != width or "\r" in text or "\0" in text else row


def slow_counts(body, *, spec, header=HEADER, subsets=ALL_SUBSETS):
    """The counts by the rules as they are documented; of a person the first rows.

    The first of them says how many the person has, where an attribute is for that.
    """
    names, rows_of = next(csv.reader([header.decode()])), {}
    for number, line in enumerate(body.split(b"\n")):
        if line in (b"", b"\r"):
            continue
        row = slow_record(line, len(names)) if len(line) <= text_files.MAX_LINE else None
        fields = dict(zip(names, row, strict=True)) if row else dict.fromkeys(names, "\x01")
        cell = []
        for attribute in spec.domain.in_data:
            codes = [slow_code(c, fields[c.name]) for c in attribute.columns]
            sizes = [c.size for c in attribute.columns]
            cell.append(-1 if min(codes) < 0 else int(np.ravel_multi_index(codes, sizes)))
        person = number
        if spec.privacy.person:
            person = fields[spec.privacy.person].strip(WHITE) if row else ""
        if min(cell) >= 0 and person != "":
            rows_of.setdefault(person, []).append(cell)
    counts = {s: np.zeros([spec.domain.shape[i] for i in s], np.int64) for s in subsets}
    others = spec.domain.attributes[-1].size - 1  # the code of rows beside the first
    for rows in rows_of.values():
        for place, cell in enumerate(rows[: spec.privacy.max_rows]):
            whole = [*cell, others if place else min(len(rows), others) - 1]
            for subset in subsets:
                counts[subset][tuple(whole[i] for i in subset)] += 1
    return counts


def assert_equal(counted, expected):
    assert counted.keys() == expected.keys()
    for subset, counts in expected.items():
        assert counted[subset].shape == counts.shape
        assert counted[subset].dtype == np.int64
        np.testing.assert_array_equal(counted[subset], counts, err_msg=str(subset))


NICE = st.tuples(
    st.sampled_from([b"M", b"F", b" F ", b"m", b'"M"', b""]),
    st.sampled_from([b"-1", b"0", b"3", b"+2", b"4", b"2.0", b"1.5", b"9" * 30, b"x"]),
    st.sampled_from([b"0", b"1.5", b"-0", b"9.99", b"10", b"nan", b"1e400", b"1e0", b".5", b"1_0"]),
    st.sampled_from([b"yes", b"NO", b"1", b"0", b"t", b"maybe", b"\xff"]),
    st.sampled_from(["Ä".encode(), "ä".encode(), b"n", b"N", b"", b'"n"']),
    st.sampled_from([b"x", b"", b" "]),
).map(b",".join)
BYTES = [b'"', b"\r", b"\0", b"\xef\xbb\xbf", b"M", b"1", b" ", b"\xff", b"\\", b"#", b"\x0b"]
NASTY = st.lists(st.sampled_from([*BYTES, b","]), max_size=12).map(b"".join)
# A nice line with a few odd bytes somewhere: it keeps its width, so it is not merely ragged.
BITTEN = st.tuples(NICE, st.integers(0, 20), st.sampled_from(BYTES)).map(
    lambda bite: bite[0][: bite[1]] + bite[2] + bite[0][bite[1] :]
)
ROW = b"M,1,1,yes,n,"
SPECIAL = st.sampled_from(
    [
        *(b"", b"\r", b'"', b'""', b",,,,,", b"M,1,1,yes,n", b'M,1,"1\r,yes,n,'),
        *(b"M\r,1,1,yes,n,", b'"M"x,1,1,yes,n,', b"M\0,1,1,yes,n,"),
        *(ROW, ROW + b"\r", ROW + b"\r\r", ROW + b'"x', b"\xef\xbb\xbf" + ROW),
        ROW + b"x" * 200_000,
        *(ROW + b"x" * text_files.MAX_LINE, b'"' + b"x" * text_files.MAX_LINE + b'"'),
    ]
)
LINE = st.one_of(NICE, NICE, BITTEN, NASTY, SPECIAL)
FUZZ = settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


# One table of records written in every way that a release reads, and slow readings of each.

NAMES = ("sex", "age", "income", "w", "b", "extra")
UNPACKED = {"": bytes, ".gz": lambda own: gzip.compress(own, mtime=0), ".bz2": bz2.compress}
UNPACKED[".zst"] = lambda own: pa.compress(own, codec="zstd", asbytes=True)


def packed_in_members(content, suffix):
    """Compress the halves of a file apart, and put them behind each other."""
    half = len(content) // 2
    return UNPACKED[suffix](content[:half]) + UNPACKED[suffix](content[half:])


def dialect_of(file):
    return Dialect(file.delimiter.encode(), file.quote.encode(), file.newlines_in_quotes)


def written(rows, file, *, names=NAMES, line_end="\n"):
    """Write rows of texts as a CSV writer does: quotes where a field needs them, doubled inside."""

    def field(text):
        special = (file.delimiter, file.quote, "\n", "\r") if file.quote else ()
        if any(mark and mark in text for mark in special):
            return file.quote + text.replace(file.quote, file.quote * 2) + file.quote
        return text

    lines = [file.delimiter.join(map(field, row)) for row in (names, *rows)]
    return "".join(line + line_end for line in lines)


def typed_table(rows, kinds):
    """Return rows of Python values as an Arrow table of the kinds given by name."""
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    return pa.table(
        {
            name: pa.array(column, kind)
            for (name, kind), column in zip(kinds.items(), columns, strict=True)
        }
    )


def write_parquet(table, path):
    pq.write_table(table, path, row_group_size=3)
    return path


def write_arrow(table, path):
    with pa.ipc.new_file(path, table.schema) as writer:
        for start in range(0, table.num_rows, 4):
            writer.write_table(table.slice(start, 4))
    return path


def write_stream(table, path):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    return path


def write_sqlite(table, path):
    path.unlink(missing_ok=True)
    names = [name.replace('"', '""') for name in table.schema.names]
    listed = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join("?" * table.num_columns)
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE persons ({listed})")
        batches = (batch.to_pylist() for batch in table.to_batches(max_chunksize=2**16))
        rows = (tuple(row.values()) for batch in batches for row in batch)
        connection.executemany(f"INSERT INTO persons VALUES ({marks})", rows)  # noqa: S608
    connection.close()
    return Path(f"sqlite:{path}?table=persons")


def write_duckdb(table, path):
    import duckdb

    path.unlink(missing_ok=True)
    with duckdb.connect(path) as connection:
        connection.register("rows", table)
        connection.execute("CREATE TABLE persons AS SELECT * FROM rows")
    return Path(f"duckdb:{path}?table=persons")


def write_adbc(table, path):
    """Write a DuckDB database that is read by ADBC; an environment variable says where it is."""
    write_duckdb(table, path)
    os.environ[ADBC] = f"duckdb:{path}"
    return Path(f"adbc:{ADBC}?table=persons")


ADBC = "DPQUERY_TEST_ADBC"
TYPED = {
    "rows.parquet": write_parquet,
    "rows.arrow": write_arrow,
    "stream.arrow": write_stream,
    "rows.db": write_sqlite,
    "rows.duckdb": write_duckdb,
    "rows.adbc": write_adbc,
}


def needs(*libraries):
    """Skip a test where a library of an extra is missing."""
    missing = [name for name in libraries if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


DUCKDB = needs("duckdb")
TAKES = {"rows.duckdb": DUCKDB, "rows.adbc": needs("duckdb", "adbc_driver_manager")}


def cases(names, *, slow=()):
    """Return names of sources as parameters, those of extras only where they are installed.

    Args:
        names: the sources.
        slow: those of them that are not tried every day.
    """

    def marks(name):
        needed = [TAKES[name]] if name in TAKES else []
        return [*needed, pytest.mark.slow] if name in slow else needed

    return [pytest.param(name, marks=marks(name)) for name in names]


def counted(location, spec, subsets):
    return tabulate(location, spec=spec, subsets=subsets)


def field_texts(array, mark="."):
    """The text of each value of an Arrow array, as a CSV file would hold it, in bytes or None."""
    ((values, places),) = batch_of([array]).columns[0]
    texts = column_codes.texts_of(values, mark).to_pylist()
    return [texts[place] for place in places.tolist()]


def as_csv(rows):
    """Write rows of texts as plain CSV bytes: what every other source must count like."""
    return written(rows, FileFormat()).encode("utf-8", "surrogatepass")


def expected(rows, spec, subsets):
    header, _, body = as_csv(rows).partition(b"\n")
    return slow_counts(body, spec=spec, header=header, subsets=subsets)


def moved(one, other):
    return {int(np.abs(one[subset] - other[subset]).sum()) for subset in one}
