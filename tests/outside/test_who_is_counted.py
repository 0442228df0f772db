"""Whose records are in a table: what a value that is not declared does, by the words of the spec.

It takes its record out of what is asked of that column, and never out of the rest, unless the
column drops; then the whole record is out.
"""

import itertools
import json
import random
import re
import sqlite3
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from damage import some_or
from specs import BASE, random_spec, read
from town import checked, counts, ok, planned, refused, released, spec_text

from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.measurement.counting.column_codes import code_of
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import plan_and_spec
from dpquery.planning.report import compile_countable
from dpquery.spec.parsing.read import parse
from dpquery.spec.predicates import IdentitySet

MODES = ("count", "show", "drop")
PAIRS = list(itertools.product(MODES, MODES))
STRANGE = ("", " ", "-1", "99", "refused", "nan", "1.5", "other")


def one_item(domain, item, other="count"):
    return (
        f"dataset: {{id: d}}\nprivacy: {{unit: row}}\nbudget: {{epsilon: 1}}\nother: {other}\n"
        f"domain:\n{domain}workload:\n  - {{name: t, {item}}}\n"
    )


def exact(path, spec):
    """The true answers of every table of a spec, in its order, from the file."""
    compiled = compile_spec(spec)
    subsets = [block.attributes for block in compiled.workload.blocks]
    tables = tabulate(path, spec=spec, subsets=subsets, classes=compiled.classes)
    blocks = compiled.workload.blocks
    return [b.apply(tables[own]).ravel().tolist() for b, own in zip(blocks, subsets, strict=True)]


def written(path, names, rows, *more):
    lines = [",".join(names), *(",".join(row) for row in rows), *more]
    path.write_text("\n".join(lines) + "\n")
    return path


# The survey: blanks and text answers in columns that no question uses.

SURVEY = """\
  year: {values: [2016, 2018]}
  age: {range: [18, 89]}
  happy: {values: [very, pretty, not]}
  hours: {range: [0, 89]}
"""
HEADER = ("year", "age", "happy", "hours")


def survey(path, people=400):
    rng = np.random.default_rng(3)
    rows = [
        (
            str(rng.choice(["2016", "2018"])),
            str(rng.choice(["18", "40", "89 or older", ""])),
            str(rng.choice(["very", "pretty", "not", ".i: Inapplicable"])),
            str(rng.choice(["40", "", "No answer"])),
        )
        for _ in range(people)
    ]
    return rows, written(path, HEADER, rows, "a line that is no record", '"')


# Every kind of predicate set against counting by the texts themselves.

DECLARED = ("0", "1", "2", "3")
FORMS = {
    "identity": [{v} for v in DECLARED],
    "total": [None],
    "identity+total": [*({v} for v in DECLARED), None],
    "prefix": [set(DECLARED[: k + 1]) for k in range(4)],
    "all-ranges": [set(DECLARED[i : j + 1]) for i in range(4) for j in range(i, 4)],
    "{width: 2}": [set(DECLARED[i : i + 2]) for i in range(3)],
    "{width: 4}": [set(DECLARED)],
    "{ranges: [[0, 2], [1, 3]]}": [{"0", "1", "2"}, {"1", "2", "3"}],
    "{groups: {a: [0, 2], b: [1]}}": [{"0", "2"}, {"1"}],
    "{is: 1}": [{"1"}],
    "{in: [0, 3]}": [{"0", "3"}],
    "{between: [1, 2]}": [{"1", "2"}],
    "[identity, prefix]": [*({v} for v in DECLARED), *(set(DECLARED[: k + 1]) for k in range(4))],
}
SHOWN = {
    "{is: other}": [{"other"}],
    "{groups: {a: [other, 2], b: [1]}}": [{"other", "2"}, {"1"}],
    "{in: [0, other]}": [{"0", "other"}],
}


def sets_of(form, mode):
    """The texts that each query of a form asks for; `other` stands for all others."""
    sets = (FORMS | SHOWN)[form]
    if mode == "show" and form.startswith(("identity", "[identity")):
        sets = [*sets[:4], {"other"}, *sets[4:]]
    return [{*DECLARED, "other"} if own is None else own for own in sets]


def two_columns(path, rng, records=150):
    texts = (*DECLARED, *DECLARED, *STRANGE)
    rows = [tuple(str(own) for own in rng.choice(texts, 2)) for _ in range(records)]
    return rows, written(path, ("x", "y"), rows, "1", "1,1,1")


def meaning(rows, modes):
    """The records that count, a text that is not declared as `other`; two lines are malformed."""
    rows = [tuple(v if v in DECLARED else "other" for v in row) for row in rows]
    rows += [("other", "other")] * 2
    drops = [mode == "drop" for mode in modes]
    return [r for r in rows if not any(d and v == "other" for d, v in zip(drops, r, strict=True))]


def domain_of(modes):
    return "".join(
        f"  {n}: {{range: [0, 3], other: {m}}}\n" for n, m in zip("xy", modes, strict=True)
    )


@pytest.mark.parametrize("modes", PAIRS, ids="-".join)
def test_every_predicate_counts_what_it_says(tmp_path, modes):
    rng = np.random.default_rng(5)
    rows, path = two_columns(tmp_path / "d.csv", rng)
    people = meaning(rows, modes)
    forms = [[*FORMS, *(SHOWN if mode == "show" else ())] for mode in modes]
    pairs = list(itertools.product(*forms))
    chosen = [pairs[k] for k in rng.permutation(len(pairs))[:20]]
    chosen += [("identity", "identity"), ("identity+total", "total"), ("total", "prefix")]
    parts = ", ".join(f"{{product: {{x: {a}, y: {b}}}}}" for a, b in chosen)
    spec = read(one_item(domain_of(modes), f"union: [{parts}]"))
    for (a, b), found in zip(chosen, exact(path, spec), strict=True):
        expected = [
            sum(x in own and y in other for x, y in people)
            for own in sets_of(a, modes[0])
            for other in sets_of(b, modes[1])
        ]
        assert found == expected, (a, b)


@pytest.mark.parametrize("modes", PAIRS, ids="-".join)
def test_conditions_thresholds_and_any_of_count_what_they_say(tmp_path, modes):
    rows, path = two_columns(tmp_path / "d.csv", np.random.default_rng(6))
    people = meaning(rows, modes)
    parts = (
        "{product: {x: identity}, where: {y: 2}}",
        "{product: {}, where: {y: 2}}",
        "{any_of: {x: {is: 1}, y: {is: 2}}}",
        "{threshold: {r: 1, of: [x, y], targets: all}}",
        "{marginals: {up_to: 2}}",
    )
    spec = read(one_item(domain_of(modes), f"union: [{', '.join(parts)}]"))
    xs, ys = (sets_of("identity", mode) for mode in modes)
    pairs = list(itertools.product(xs, ys))
    assert exact(path, spec) == [
        [sum(x in own and y == "2" for x, y in people) for own in xs],
        [sum(y == "2" for _, y in people)],
        [sum(x == "1" or y == "2" for x, y in people)],
        [sum(x in a or y in b for x, y in people) for a, b in pairs],
        [len(people)],
        [sum(x in own for x, _ in people) for own in xs],
        [sum(y in own for _, y in people) for own in ys],
        [sum(x in a and y in b for x, y in people) for a, b in pairs],
    ]


@pytest.mark.parametrize("modes", list(itertools.product(MODES, repeat=3)), ids="-".join)
def test_a_merged_attribute_shows_what_each_of_its_columns_shows(tmp_path, modes):
    rng = np.random.default_rng(7)
    rows = [tuple(str(own) for own in rng.choice(["yes", "no", "?"], 3)) for _ in range(150)]
    path = written(tmp_path / "d.csv", "abc", rows)
    columns = ", ".join(
        f"{name}: {{values: [no, yes], other: {mode}}}"
        for name, mode in zip("abc", modes, strict=True)
    )
    parts = (
        "{product: {m: identity}}",
        "{product: {m: {is: {a: yes}}}}",
        "{product: {m: {is: {a: yes, c: no}}}}",
        "{product: {m: {is: {any: {a: yes, b: yes}}}}}",
        "{product: {}}",
    )
    spec = read(one_item(f"  m: {{merge: {{{columns}}}}}\n", f"union: [{', '.join(parts)}]"))
    people = [
        r for r in rows if not any(v == "?" and m == "drop" for v, m in zip(r, modes, strict=True))
    ]
    values = [("no", "yes", *(["?"] if mode == "show" else [])) for mode in modes]
    cells, a, both, either, total = exact(path, spec)
    assert cells == [sum(r == cell for r in people) for cell in itertools.product(*values)]
    assert a == [sum(r[0] == "yes" for r in people)]
    assert both == [sum(r[0] == "yes" and r[2] == "no" for r in people)]
    assert either == [sum("yes" in r[:2] for r in people)]
    assert total == [len(people)]
    ((_, identity),) = spec.items[0].tables[0].axes
    labels = [spec.domain.attributes[0].label(code) for code in identity.codes]
    assert len(labels) == len(cells) == len(identity)
    assert not any(
        f"{n}=other" in own
        for own in labels
        for n, m in zip("abc", modes, strict=True)
        if m == "count"
    )


# A record's contribution to tables without a column does not depend on what that column holds.

TEXTS = (*STRANGE, "0", "1", "2", "v0", "v1", "yes", "no", "ja", "x" * 90)


@pytest.mark.nightly(daily=r"\[\d\]")
@pytest.mark.parametrize("seed", range(40))
def test_tables_without_a_column_do_not_see_what_it_holds(tmp_path, seed):
    rng = np.random.default_rng(seed)
    mode = MODES[int(rng.integers(2))]
    spec = parse(random_spec(rng).replace("other: drop", f"other: {mode}"), name="w", files={})
    columns = [column.name for a in spec.domain.attributes for column in a.columns]
    declared = [
        [text for text in TEXTS if code_of(replace(column, other="drop"))(text.encode()) >= 0]
        for a in spec.domain.attributes
        for column in a.columns
    ]

    def text_of(place):
        """A text that the column declares, or now and then any text."""
        return str(rng.choice(declared[place] if rng.random() < 0.8 else TEXTS))

    rows = [[text_of(place) for place in range(len(columns))] for _ in range(30)]
    i = int(rng.integers(len(spec.domain.attributes)))
    mine = {columns.index(column.name) for column in spec.domain.attributes[i].columns}
    changed = [
        [str(rng.choice(TEXTS)) if place in mine else text for place, text in enumerate(row)]
        for row in rows
    ]
    before = exact(written(tmp_path / "a.csv", columns, rows), spec)
    after = exact(written(tmp_path / "b.csv", columns, changed), spec)
    tables = [table for item in spec.items for table in item.tables]
    others = [k for k, table in enumerate(tables) if i not in table.attributes]
    assert [before[k] for k in others] == [after[k] for k in others]


# What the spec says, and what older plans said.


def test_a_column_says_otherwise_than_the_spec():
    spec = read(BASE.replace("[0, 9]}", "[0, 9], other: count}"))
    modes = {a.name: {column.other for column in a.columns} for a in spec.domain.attributes}
    assert modes["age"] == {"count"}
    assert modes["state"] == {"show"}
    assert modes["race"] == modes["sex"] == {"drop"}
    assert {
        c.other
        for a in read(BASE.replace("other: drop\n", "")).domain.attributes
        for c in a.columns
    } == {"count", "show"}


def test_a_plan_of_format_1_means_what_it_meant():
    old = BASE.replace("other: drop\n", "").replace("other: show", "other: bin")
    assert parse(old, name="w", files={}, first_edition=True).domain == read(BASE).domain


def test_of_a_person_in_a_plan_of_format_1_the_first_rows_count():
    """So that its release has the key that it was paid under."""
    new = BASE.replace("unit: row", "unit: {person: id, max_rows: 3}")
    assert new != BASE
    old = new.replace("other: drop\n", "").replace("other: show", "other: bin")
    assert parse(new, name="w", files={}).privacy.keep == "random"
    assert parse(old, name="w", files={}, first_edition=True).privacy.keep == "first"


def test_a_plan_file_of_format_1_is_read_so():
    path = Path(__file__).parent / "golden" / "plan.json"
    plan, spec = plan_and_spec(path.read_bytes(), path)
    assert plan.first_edition
    modes = {column.other for a in spec.domain.attributes for column in a.columns}
    assert modes == {"show", "drop"}
    renamed = path.read_bytes().replace(b"dpquery.plan/1", b"dpquery.plan/2")
    with pytest.raises(SpecError, match="write show, which is the same"):
        plan_and_spec(renamed, path)


def test_identity_shows_rising_codes_and_as_many_as_it_says():
    own = IdentitySet(24, ((4, 3), (2, 2), (3, 2)))
    shown = [a * 6 + b * 3 + c for a in range(3) for b in range(2) for c in range(2)]
    assert list(own.codes) == shown
    assert len(own) == len(shown)


@pytest.fixture
def folder(own_folder):
    """A folder of one's own with a ledger; the working directory."""
    return own_folder


def test_plan_statement_and_manifest_say_who_is_counted(folder):
    survey(folder / "survey.csv")
    text = one_item(
        SURVEY.replace("[0, 89]}", "[0, 89], other: show}"), "product: {happy: identity+total}"
    )
    (folder / "workload.yaml").write_text(text.replace("epsilon: 1}", "epsilon: 9}"))
    plan = ok("plan", "workload.yaml", "--why")
    assert "no record is left out because of its values" in plan.out
    assert re.search(r"age +18 to 89 +counted in totals alone", plan.out)
    assert re.search(r"hours +0 to 89 +shown as other", plan.out)
    domain = json.loads(ok("plan", "workload.yaml", "--json").out)["domain"]
    assert [own["other"] for own in domain] == ["count", "count", "count", "show"]
    ok("release", "survey.csv", "--epsilon", "1")
    counted = json.loads(Path("release/release.json").read_text())["counted"]
    assert counted == {"count": ["year", "age", "happy"], "show": ["hours"], "drop": []}
    statement = Path("release/statement.md").read_text()
    assert "## Who is counted" in statement
    assert "`year`, `age`, `happy`: the record is in totals" in statement
    assert "A line that is no record counts as one" in statement
    Path("more.yaml").write_text("workload: [{name: all, product: {}}]")
    ok("answer", "release", "more.yaml")


def test_a_plan_names_every_attribute_that_drops_records(folder):
    survey(folder / "survey.csv")
    domain = SURVEY.replace("[0, 89]}", "[0, 89], other: drop}").replace(
        "not]}", "not], other: drop}"
    )
    text = (
        one_item(domain, "product: {year: identity}")
        .replace("epsilon: 1}", "epsilon: 4}")
        .replace("id: d}", "id: persons}")
    )
    (folder / "workload.yaml").write_text(
        text.replace("unit: row", "unit: {person: age, max_rows: 2}").replace(
            "  age: {range: [18, 89]}\n", ""
        )
    )
    assert "records with another value of happy, hours" in " ".join(
        ok("plan", "workload.yaml", "--why").out.split()
    )
    ok("release", "survey.csv", "--epsilon", "1")
    statement = Path("release/statement.md").read_text()
    assert "`happy`, `hours`: **the whole record is left out of every table**" in statement
    assert "At most 2 rows of each person are counted." in statement


def test_other_is_named_only_where_it_is_shown(folder):
    (folder / "workload.yaml").write_text(one_item(SURVEY, "product: {happy: {is: other}}"))
    assert "give it `other: show`" in refused("plan", "workload.yaml", code=2)


@pytest.mark.parametrize("number", [13, 16, 20])
def test_many_columns_merged_have_too_many_codes_only_where_others_are_counted(number):
    columns = ", ".join(f"b{k}: boolean" for k in range(number))
    domain = f"  all: {{merge: {{{columns}}}}}\n"
    with pytest.raises(SpecError, match=rf"with `other: drop` .* has {2**number:,}; or declare"):
        parse(one_item(domain, "product: {}"), name="w", files={})
    spec = parse(one_item(domain, "product: {}", "drop"), name="w", files={})
    assert spec.domain.shape == (2**number,)


@pytest.mark.parametrize("number", [16, 18])
def test_a_threshold_over_many_columns_is_too_wide_only_where_others_are_counted(number):
    names = [f"b{k}" for k in range(number)]
    domain = "".join(f"  {name}: boolean\n" for name in names)
    targets = ", ".join(f"{name}: yes" for name in names)
    two = f"threshold: {{r: 2, of: [{', '.join(names)}], targets: {{{targets}}}}}"
    single = "  - {name: single, marginals: {ways: 1}}\n"  # tells no from other
    counting, dropping = (one_item(domain, two, other) + single for other in ("count", "drop"))
    if number == 16:
        compiled = compile_countable(parse(counting, name="w", files={}))
        assert compiled.workload.blocks[0].table_shape == (3,) * number
    else:
        message = r"387,420,489 cells .*`other: drop` it has 262,144; or ask"
        with pytest.raises(UnsupportedWorkloadError, match=message):
            compile_countable(parse(counting, name="w", files={}))
    for text in (dropping, one_item(domain, two)):
        compiled = compile_countable(parse(text, name="w", files={}))
        assert compiled.workload.blocks[0].table_shape == (2,) * number


def test_a_threshold_over_twenty_columns_is_answered_from_their_table(tmp_path):
    """A sum over every set of the columns would be one of 3^20 numbers."""
    names = [f"b{k}" for k in range(20)]
    domain = "".join(f"  {name}: boolean\n" for name in names)
    targets = ", ".join(f"{name}: yes" for name in names)
    listed = f"of: [{', '.join(names)}], targets: {{{targets}}}"
    items = [f"threshold: {{r: {r}, {listed}}}" for r in (1, 4, 10, 17, 20)]
    union = f"union: [{', '.join(f'{{{item}}}' for item in items)}]"
    rng = np.random.default_rng(8)
    rows = rng.choice(["yes", "no", "", "?"], size=(300, 20), p=[0.4, 0.3, 0.2, 0.1])
    rows[:40] = rng.choice(["yes", "no"], size=(40, 20), p=[0.9, 0.1])
    data = written(tmp_path / "data.csv", names, rows.tolist())
    hits = (rows == "yes").sum(axis=1)
    expected = [[int((hits >= r).sum())] for r in (1, 4, 10, 17, 20)]
    assert exact(data, parse(one_item(domain, union), name="w", files={})) == expected


# Rows are one person's where their ids would be one value, in whatever type.

WORKLOAD = ["{name: t, product: {x: identity}}", "{name: n, product: {}}"]


def persons_plan(folder, most, *, more=""):
    unit = f"{{person: id, max_rows: {most}}}"
    planned(folder, spec_text({"x": "{values: [a, b]}"}, WORKLOAD, unit=unit, more=more))


def parquet(path, ids, kind):
    values = pa.array(ids).cast(pa.float64()).cast(kind) if kind == pa.float32() else ids
    table = pa.table({"x": ["a"] * len(ids), "id": pa.array(values, kind)})
    pq.write_table(table, path)
    return path


def test_an_id_in_one_file_of_whole_numbers_and_one_of_floats_is_one_person(tmp_path):
    persons_plan(tmp_path, 1)
    whole = parquet(tmp_path / "a.parquet", [1, 2, 3], pa.int64())
    floats = parquet(tmp_path / "b.parquet", [1, 2, None, 4, float("nan")], pa.float64())
    tables = released(tmp_path, [whole, floats])
    assert counts(tables["n"]) == [4]  # no id, and nan among numbers, is nobody's
    code, said = checked(tmp_path, whole, floats)
    assert "4 persons, 6 rows" in said
    assert "2 persons by several spellings of one number" in said
    assert code == 1  # for the two rows without an id


SPELLINGS = {
    "7": ["7", "07", "+7", "7.0", "7.", "70e-1", "0.7e1", " 7\t", "\u00a07\u2003"],
    "-0.5": ["-0.5", "-.5", "-5e-1", "-0.50"],
    "0": ["0", "-0", "00", ".0", "0e9"],
    "abc": ["abc", " abc ", "\u00a0abc"],
    "ABC": ["ABC"],
    "12-3": ["12-3"],
    "12-03": ["12-03"],
    "1,000": ["1,000"],
    "1e5x": ["1e5x"],
    "é": ["é"],
    "e\u0301": ["e\u0301"],
}


@pytest.mark.parametrize("most", [1, 2])
def test_texts_are_one_person_where_they_would_be_one_value(tmp_path, most):
    persons_plan(tmp_path, most)
    rows = [f'a,"{text}"\n' for texts in SPELLINGS.values() for text in texts]
    (tmp_path / "d.csv").write_text("x,id\n" + "".join(rows), encoding="utf-8")
    kept = sum(min(most, len(texts)) for texts in SPELLINGS.values())
    assert counts(released(tmp_path, tmp_path / "d.csv")["n"]) == [kept]


TYPES = [pa.int64(), pa.int32(), pa.uint64(), pa.float64(), pa.float32(), pa.decimal128(12, 2)]
SPELT = ["{}", "{}.0", "0{}", "+{}", " {}", "{}e0", "{}0e-1", "n{}", "N{}"]


def stored(folder, kind, ids, fields):
    """Write rows in one kind of place, and return it."""
    stem = str(folder / f"{len(list(folder.iterdir()))}")
    if kind in {"csv", "sqlite"}:
        texts = [i if isinstance(i, str) else "" if i is None else repr(i) for i in ids]
        if kind == "csv":
            lines = [f"{x},{text}\n" for x, text in zip(fields, texts, strict=True)]
            path = folder / f"{stem}.csv"
            path.write_text("x,id\n" + "".join(lines))
            return path
        with sqlite3.connect(f"{stem}.db") as connection:
            connection.execute("CREATE TABLE t (x, id)")
            connection.executemany("INSERT INTO t VALUES (?, ?)", zip(fields, ids, strict=True))
        return f"sqlite:{stem}.db?table=t"
    table = pa.table({"x": fields, "id": pa.array(ids, kind)})
    if kind == pa.int32():
        with ipc.new_file(f"{stem}.arrow", table.schema) as writer:
            writer.write_table(table)
        return f"{stem}.arrow"
    pq.write_table(table, f"{stem}.parquet")
    return f"{stem}.parquet"


def name(value):
    """The person of an id, by an independent reading of the rule."""
    if value is None:
        return None
    text = repr(value) if isinstance(value, float) else str(value)
    text = text.strip()
    return Decimal(text) if not {"n", "N"} & set(text) else text


def recount(seed, folder, most):
    """Return a release's and our own number of rows that stay, of files of random id types."""
    rng = random.Random(seed)  # noqa: S311 - made-up rows
    rows_of, places = Counter(), []
    for kind in rng.sample([*TYPES, "csv", "sqlite", pa.string()], 3):
        numbers = [rng.randrange(40) for _ in range(rng.randrange(1, 30))]
        if kind in {pa.string(), "csv", "sqlite"}:
            ids = [rng.choice(SPELT).format(k) for k in numbers]
            if kind == "sqlite":  # where each value has a type of its own
                ids = [
                    rng.choice([text, k, float(k)]) for text, k in zip(ids, numbers, strict=True)
                ]
        elif pa.types.is_floating(kind):
            ids = [np.dtype(kind.to_pandas_dtype()).type(k).item() for k in numbers]
        else:
            ids = [Decimal(k) if pa.types.is_decimal(kind) else k for k in numbers]
        ids = [None if rng.random() < 0.1 else i for i in ids]
        places.append(stored(folder, kind, ids, [rng.choice("ab") for _ in ids]))
        rows_of.update(who for i in ids if (who := name(i)) is not None)
    ((found,),) = [counts(released(folder, places)["n"])]
    return found, sum(min(most, rows) for rows in rows_of.values())


@some_or(100, some=4)
@pytest.mark.parametrize("most", [1, 3])
def test_random_files_of_mixed_id_types_count_as_an_independent_recount_says(
    tmp_path, most, examples
):
    persons_plan(tmp_path, most)
    for seed in range(examples):
        found, expected = recount(f"{most} {seed}", tmp_path, most)
        assert found == expected


def test_with_a_decimal_comma_typed_floats_and_texts_are_one_person(tmp_path):
    persons_plan(tmp_path, 1, more='file: {decimal: ",", delimiter: ";"}')
    (tmp_path / "d.csv").write_text("x;id\na;1,0\na;01\na;1.0\na;2,5\n")
    typed = parquet(tmp_path / "b.parquet", [1.0, 2.5], pa.float64())
    assert counts(released(tmp_path, [tmp_path / "d.csv", typed])["n"]) == [3]


def test_check_counts_ids_that_look_like_one_person_and_names_none(tmp_path):
    persons_plan(tmp_path, 1)
    ids = ["ab", "AB", "Ab", "xé1", "xe\u03011", "q\u200b9", "q9", "10", "10.0", "zz", "Z\u00adZ"]
    lines = "".join(
        f"a,{text}\n" for text in [*ids, "many", "many", "rows", "rows", "here", "here"]
    )
    (tmp_path / "d.csv").write_text("x,id\n" + lines, encoding="utf-8")
    code, said = checked(tmp_path, tmp_path / "d.csv")
    said = " ".join(said.split())
    assert code == 1
    assert "3 ids differ in upper and lower case alone, and would be 1 person without" in said
    assert "2 ids differ in the form of Unicode (NFKC) alone, and would be 1 person" in said
    assert "2 ids differ in invisible characters alone, and would be 1 person without" in said
    assert "2 ids differ in several of these alone, and would be 1 person without" in said
    assert "1 person by several spellings of one number" in said
    assert not [text for text in ids if len(text) > 2 and text in said]


def test_check_says_that_floats_round_long_ids(tmp_path):
    persons_plan(tmp_path, 1)
    floats = parquet(tmp_path / "b.parquet", [2.0**53 + 2, 5.0], pa.float64())
    code, said = checked(tmp_path, floats)
    assert code == 1
    assert "1 id beyond 2^53 written as floats, which round" in " ".join(said.split())
    assert checked(tmp_path, parquet(tmp_path / "c.parquet", [2**53 + 2], pa.int64()))[0] == 0


@pytest.mark.nightly(daily="duckdb-whole")
@pytest.mark.parametrize("kind", ["text", "whole"])
@pytest.mark.parametrize("how", ["duckdb", "ibis:duckdb"])
def test_a_table_of_duckdb_has_the_same_persons(tmp_path, kind, how):
    duckdb = pytest.importorskip("duckdb")
    texts = [text for texts in SPELLINGS.values() for text in texts]
    ids = pa.array(texts if kind == "text" else [1, 1, 2, 3, None])
    rows = pa.table({"x": ["a"] * len(ids), "id": ids})
    with duckdb.connect(tmp_path / "d.duckdb") as connection:
        connection.register("rows", rows)
        connection.execute("CREATE TABLE t AS SELECT * FROM rows")
    persons_plan(tmp_path, 1)
    found = counts(released(tmp_path, f"{how}:{tmp_path}/d.duckdb?table=t")["n"])
    assert found == [len(SPELLINGS) if kind == "text" else 3]
