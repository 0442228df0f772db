"""What never changes: the bytes of a release, and the keys of all kinds of them."""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from town import ok

from dpquery.measurement.accounting import Guarantee
from dpquery.measurement.curator import LinearQuery
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.rounds.queries import RapRounds
from dpquery.measurement.rounds.query import RoundsQuery
from dpquery.measurement.rounds.tables import CandidateTables, TableRounds
from dpquery.operators.blocks import Block, Workload, product
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.factors import Dense, Groups, Identity, Ones, Stacked, Valued, total
from dpquery.operators.p_identity import PIdentity
from dpquery.operators.ranges import AllRanges, Columns, ListedRanges, Prefix, WidthRanges
from dpquery.operators.trees import Hierarchy
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.spec.parsing.read import parse
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore

# One linear release and one by RAP, made again from noisy values in a ledger of long ago.
#
# `golden/` holds a plan, whose strategies were made by hand, and a ledger as SQL: both are what
# dpquery 0.1.0 wrote, with fixed values in place of noise. The commands alone are used here, so
# that whatever moves or is renamed in the product, this stays as it is. There is no data file: what
# the ledger holds is neither counted nor charged again.
#
#     OPENBLAS_NUM_THREADS=1 python tests/harness/pinned.py
#
# writes golden/digests.json anew, for a change that is meant.

GOLDEN = Path(__file__).parents[1] / "outside" / "golden"
DIGESTS = GOLDEN / "digests.json"
COMMANDS = (
    "release none.csv --epsilon 0.5 --mechanism linear --noise laplace --out linear "
    "--also nonnegative --also integer",
    "release none.csv --epsilon 1 --out rap",
    "answer linear questions.yaml --out linear-answers",
    "answer rap questions.yaml --out rap-answers",
)
ROWS = ("SELECT * FROM events", "SELECT * FROM measurements")
FOLDERS = ("linear", "rap", "linear-answers", "rap-answers")
# What depends on the versions of dpquery and of libraries, and on how a machine fits floats.
_UNPINNED = re.compile(r'"libraries": \{[^}]*\}|"tool": "[^"]*"|"rows_sha256": "[^"]*"')
_NUMBER = re.compile(r"[0-9]+\.[0-9]+(e[+-]?[0-9]+)?")


def make_releases(kind=""):
    """Make releases in the working directory; return what the ledger held before and after."""
    shutil.copy(GOLDEN / "plan.json", "dpquery.plan")
    shutil.copy(GOLDEN / "questions.yaml", "questions.yaml")
    ledger = Path("state").absolute() / "ledger.db"
    ledger.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(ledger)) as database:
        database.executescript((GOLDEN / "ledger.sql").read_text())
    ledger.chmod(0o600)
    before = rows_of(ledger)
    for command in COMMANDS:
        if f" {kind}" not in command:
            continue
        where = ["--ledger", ledger] if command.startswith("release") else []
        ok(*command.split(), *where)
    return before, rows_of(ledger)


def rows_of(ledger):
    """Every event and every measurement of a ledger."""
    with closing(sqlite3.connect(ledger)) as database:
        return [database.execute(query).fetchall() for query in ROWS]


def digests(content):
    """The sha256 of what a function makes of every file that the commands left."""
    there = [Path(folder) for folder in FOLDERS if Path(folder).exists()]
    files = sorted(path for folder in there for path in folder.iterdir())
    return {str(path): hashlib.sha256(content(path)).hexdigest() for path in files}


def pinned(path):
    """What is in a file, whatever library of whichever version wrote it.

    Numbers that are not whole count to six digits, and not at all where relaxed rows were fitted.
    """
    if path.suffix != ".parquet":
        return _NUMBER.sub(_short, _UNPINNED.sub("", path.read_text())).encode()
    table = pq.read_table(path)
    fitted = str(path).startswith("rap")
    lines = [f"{name.decode()}: {text.decode()}" for name, text in table.schema.metadata.items()]
    for field, column in zip(table.schema, table.columns, strict=True):
        lines.append(f"{field.name} {field.type} {field.nullable}")
        values = [
            str(value) for value in column.to_pylist() if not (fitted and isinstance(value, float))
        ]
        lines += [_NUMBER.sub(_short, value) for value in values]
    return "\n".join(lines).encode()


def _short(number):
    return f"{float(number[0]):.6g}"


def surroundings():
    """What decides the last bits of a file: the libraries, and how this machine does arithmetic."""
    numbers = np.linspace(0.1, 3, 999)
    results = (np.exp(numbers), np.log(numbers), np.sin(numbers), np.cumsum(numbers))
    results += (np.outer(numbers, numbers) @ np.exp(-np.outer(numbers, numbers)),)
    single = [values.astype(np.float32) for values in results]
    results += (np.exp(single[1]), single[4] @ single[4], single[0].sum())
    arithmetic = hashlib.sha256(b"".join(values.tobytes() for values in results)).hexdigest()
    manifest = json.loads(next(Path().glob("*/release.json")).read_text())
    return {"libraries": manifest["libraries"], "tool": manifest["tool"], "arithmetic": arithmetic}


def main():
    """Write the digests anew."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_releases()
        hashes = {"pinned": digests(pinned), "bytes": digests(Path.read_bytes)}
        DIGESTS.write_text(json.dumps({"made on": surroundings()} | hashes, indent=1) + "\n")
        os.chdir(GOLDEN)


# Releases of every kind, made by hand: no optimiser and no calibration has a part in them.
#
# What the ledger stores is named by the key of a release, so the keys of these must never change.

SPEC = """\
dataset: {id: survey, version: 1}
privacy: {unit: row, neighbours: add-remove, delta: 1e-9}
budget: {epsilon: 4, delta: 1e-9}
other: drop
domain:
  age: {range: [-2, 7]}
  sex: {values: [Male, Female]}
  state: {values: {1: Alabama, 2: "it's \\"Ala, ska\\"", 4: Arizóna}, other: show}
  income: {bins: [0, 0.5, 20000, 1e22]}
  hispanic: {column: hisp, boolean: {true: [Y], false: [N, ""]}}
  race: {merge: {white: boolean, asian: {values: [A, B, C]}}}
workload:
  - name: first
    product: {age: prefix, sex: identity}
"""
PERSON = SPEC.replace("unit: row", "unit: {person: id, max_rows: 3, keep: first}")
ANY_ROWS = PERSON.replace("keep: first", "keep: random")
NUMBERS = ANY_ROWS + "  - {name: rows, rows_per_person: {up_to: 20}}\n"
REPLACE = SPEC.replace("add-remove", "replace").replace("version: 1}", "version: 1, rows: 48}")
PARENT = SPEC.replace(
    "version: 1}", "version: 1, parent: {id: panel, budget: {epsilon: 9, delta: 1e-9}}}"
)

SHAPE = (8, 2, 4, 3, 2, 5)
CLASSES = ([0, 0, 1, 2, 3, 4, 5, 6, 7, 7], [0, 1], [0, 1, 2, 3], [0, 1, 2], [0, 1])
CLASSES = tuple(np.array(codes) for codes in (*CLASSES, [0, 1, 2, 3, 4, 4]))
YES = Groups.of(((1,),), 2)
BLOCKS = (
    product(SHAPE, {}),
    product(SHAPE, {0: Prefix(8), 1: Identity(2)}),
    product(SHAPE, {0: Prefix(8, 7), 2: AllRanges(4, 3)}),
    product(SHAPE, {0: WidthRanges(8, 3), 4: YES}),
    product(SHAPE, {2: ListedRanges(4, [(0, 1), (2, 3)]), 3: Stacked((Identity(3), total(3)))}),
    product(SHAPE, {5: Groups.of(((0, 1), (2,), (0, 3, 4)), 5)}),
    Block(SHAPE, (1, 3, 4), (Identity(2), Identity(3), YES), (True, True, True), 2),
    Block(SHAPE, (0, 1, 4), (AllRanges(8), Identity(2), YES), (False, True, True), 1),
)
WORKLOAD = Workload(SHAPE, BLOCKS, (1.0, 2.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0))

AGES = PIdentity(np.arange(100, 108), np.arange(16).reshape(2, 8) * 7)
STATES = Dense(
    np.array([[3, 0, 1, 0], [0, 2, 0, 0], [1, 0, 0, -5], [0, 1, 1, 70000], [1, 1, 1, 1]])
)
RACES = Hierarchy(5, (1, 2, 4), (3, 2, 70001))
CELLS = tuple(Identity(n) for n in SHAPE)
PARTS = (
    ProductStrategy("a", "laplace", (AGES, CELLS[1], *(total(n) for n in SHAPE[2:]))),
    ProductStrategy("b", "laplace", (Hierarchy(8, (1, 2), (3, 1)), Ones(1, 2), *CELLS[2:])),
)
CORES = (
    CenteredCore(8),
    CenteredCore(2),
    DenseCore(np.array([[2, -1, 0, 0], [1, 1, -2, 0], [5, 1, 1, -6]])),
)
CORES = (*CORES, CenteredCore(3), CenteredCore(2), CenteredCore(5))
SETS = {(): 7, (0,): 5, (2,): 3 << 40, (0, 2): 1}
STRATEGIES = {
    "product": ProductStrategy("p", "laplace", (AGES, CELLS[1], STATES, total(3), YES, RACES)),
    "permuted columns": ProductStrategy(
        "c", "laplace", (Columns(Hierarchy(8, (1, 4), (2, 3)), np.arange(8)[::-1]), *CELLS[1:])
    ),
    "marginals": MarginalsStrategy("m", "laplace", SHAPE, {(0, 1): 5, (2, 3, 4): 9, (): 1}),
    "factors": MarginalsStrategy("f", "laplace", SHAPE, {(0, 1): 5, (0, 2): 9}, {0: AGES}),
    "residual": ResidualStrategy("r", "laplace", CORES, SETS),
    "union": UnionStrategy("u", "laplace", PARTS, (3, 2), ((0, 1), (2, 3, 4, 5, 6, 7))),
    "workload": DirectStrategy("d", "laplace", WORKLOAD, tuple(range(2, 10))),
}

PURE = Guarantee("pure", Fraction(1, 3), epsilon=Fraction(1, 3), delta=Fraction(0))
ZCDP = Guarantee("zcdp", Fraction(7, 10**9), epsilon=Fraction(1), delta=Fraction(1, 10**9))
GDP = Guarantee("gdp", Fraction(11, 10**9), epsilon=Fraction(1), delta=Fraction(1, 10**9))
LAPLACE = CalibratedNoise(PURE, 0, 12345, 37035.00000000001)
GAUSSIAN = CalibratedNoise(ZCDP, 3, 10**20, 1e22)
ADAPTIVE = RapRounds(
    workload=WORKLOAD,
    rows=None,
    guarantee=ZCDP,
    settings=RapSettings(rounds=2, selected=3, relaxed_rows=10, seed=5),
    records=1,
    replace=False,
    total=None,
    total_rho=Fraction(1, 10**9),
    selection_rho=Fraction(1, 10**9),
    measurement_rho=Fraction(2, 10**9),
    rate=Fraction(12345, 1 << 64),
    whole=None,
)
AT_ONCE = replace(
    ADAPTIVE,
    settings=RapSettings(rounds=1, selected=0, relaxed_rows=10, seed=5),
    replace=True,
    total=48,
    total_rho=Fraction(0),
    selection_rho=Fraction(0),
    rate=Fraction(0),
    whole=18,
)


TABLES = TableRounds(
    edition=1,
    workload=WORKLOAD,
    rows=None,
    guarantee=ZCDP,
    records=1,
    replace=False,
    total=None,
    candidates=CandidateTables(((0,), (2,), (0, 2)), (8, 4, 32), (512, 500, 1024)),
)


MEASURED_TABLES = replace(
    TABLES, edition=3, candidates=replace(TABLES.candidates, asked=((0, 2), (), (2,)))
)


def compiled_of(workload=WORKLOAD, classes=CLASSES):
    """A workload over classes, as one item."""
    return CompiledSpec(workload, classes, (range(len(workload.blocks)),))


def linear(strategy=STRATEGIES["marginals"], spec=SPEC, mechanism=LAPLACE, **changes):
    """A linear release."""
    parsed = parse(spec, name="survey.yaml", files={})
    return replace(LinearQuery(parsed, compiled_of(), strategy, mechanism), **changes)


def in_rounds(rounds=ADAPTIVE, spec=SPEC, **changes):
    """A release by RAP, or by adaptive measurement, whose public side is never made."""
    parsed = parse(spec, name="survey.yaml", files={})
    return replace(RoundsQuery(parsed, compiled_of(), rounds, 1, lambda _: None), **changes)


_SUMS = (
    product(SHAPE, {0: Valued(total(8), np.arange(-2, 6)), 1: Identity(2)}),
    product(SHAPE, {2: Valued(AllRanges(4, 3), np.array([5, 0, -7, 10**7]))}),
)
SUMS = DirectStrategy("s", "laplace", Workload(SHAPE, _SUMS, (1.0, 1.0)), (3, 4))

RELEASES = {name: linear(strategy) for name, strategy in STRATEGIES.items()} | {
    "sums": linear(SUMS),
    "gaussian noise": linear(mechanism=GAUSSIAN),
    "rounded gaussian noise": linear(mechanism=replace(GAUSSIAN, guarantee=GDP)),
    "release 2": linear(release=2),
    "persons": linear(spec=PERSON),
    "persons, any rows": linear(spec=ANY_ROWS),
    "persons, numbers of rows": linear(spec=NUMBERS),
    "records replaced": linear(spec=REPLACE),
    "a parent": linear(spec=PARENT),
    "RAP": in_rounds(),
    "RAP, all at once": in_rounds(AT_ONCE, REPLACE),
    "RAP, persons": in_rounds(replace(ADAPTIVE, records=3), PERSON),
    "RAP, persons, any rows": in_rounds(replace(ADAPTIVE, records=3), ANY_ROWS),
    "RAP, a parent, release 3": in_rounds(spec=PARENT, release=3),
    "adaptive": in_rounds(TABLES),
    "adaptive, replaced": in_rounds(replace(TABLES, replace=True, total=48), REPLACE),
    "adaptive, persons": in_rounds(replace(TABLES, records=3), PERSON),
    "adaptive, release 2": in_rounds(TABLES, release=2),
    "adaptive, second edition": in_rounds(replace(TABLES, edition=2)),
    "adaptive, third edition": in_rounds(MEASURED_TABLES),
}


if __name__ == "__main__":
    main()
