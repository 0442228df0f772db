"""One linear release and one by RAP, made again from noisy values in a ledger of long ago.

`golden/` holds a plan, whose strategies were made by hand, and a ledger as SQL: both are what
dpquery 0.1.0 wrote, with fixed values in place of noise. The commands alone are used here, so that
whatever moves or is renamed in the product, this stays as it is. There is no data file: what the
ledger holds is neither counted nor charged again.

    OPENBLAS_NUM_THREADS=1 python tests/harness/golden_release.py

writes golden/digests.json anew, for a change that is meant.
"""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from cli_support import ok

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


def make_releases():
    """Make the releases in the working directory; return what the ledger held before and after."""
    shutil.copy(GOLDEN / "plan.json", "dpquery.plan")
    shutil.copy(GOLDEN / "questions.yaml", "questions.yaml")
    ledger = Path("state").absolute() / "ledger.db"
    ledger.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(ledger)) as database:
        database.executescript((GOLDEN / "ledger.sql").read_text())
    ledger.chmod(0o600)
    before = rows_of(ledger)
    for command in COMMANDS:
        where = ["--ledger", ledger] if command.startswith("release") else []
        ok(*command.split(), *where)
    return before, rows_of(ledger)


def rows_of(ledger):
    """Every event and every measurement of a ledger."""
    with closing(sqlite3.connect(ledger)) as database:
        return [database.execute(query).fetchall() for query in ROWS]


def digests(content):
    """The sha256 of what a function makes of every file that the commands left."""
    files = sorted(path for folder in FOLDERS for path in Path(folder).iterdir())
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
    manifest = json.loads(Path("rap", "release.json").read_text())
    return {"libraries": manifest["libraries"], "tool": manifest["tool"], "arithmetic": arithmetic}


def main():
    """Write the digests anew."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_releases()
        hashes = {"pinned": digests(pinned), "bytes": digests(Path.read_bytes)}
        DIGESTS.write_text(json.dumps({"made on": surroundings()} | hashes, indent=1) + "\n")
        os.chdir(GOLDEN)


if __name__ == "__main__":
    main()
