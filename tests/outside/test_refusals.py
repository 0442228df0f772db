"""What is refused, or said, before anything is charged; a plan is input from outside like any."""

import base64
import gzip
import json
import os
import pickle
import re
import shlex
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from specs import unhashed, with_true_figures
from town import kinds, ok, refused, run

import dpquery
from dpquery.exceptions import DataError, SpecError

SPEC = """\
dataset: {id: ops}
privacy: {unit: row}
budget: {epsilon: 10}
domain:
  x: {values: [a, b]}
workload:
  - {name: t, product: {x: identity}}
"""


@pytest.fixture
def here(own_folder):
    """A folder of one's own with a spec."""
    Path("s.yaml").write_text(SPEC)
    return own_folder


def charges():
    events = json.loads(run("ledger", "history", "--json").out)
    return sum(event["kind"] == "reserve" for event in events)


@pytest.mark.parametrize("content", [b"x,y\n", b"x,y", b"x,y\n\n\n", b"\xef\xbb\xbfx,y\r\n"])
def test_a_header_alone_is_no_record(here, content):
    Path("d.csv").write_bytes(content)
    done = run("check", "d.csv", "s.yaml", "--to-pipe")
    assert done.code == 1
    assert "d.csv: there is no record" in done.out
    assert "every record" not in done.out
    assert "% of its lines" not in done.out


@pytest.mark.parametrize("name", ["d.csv", "d.csv.gz", "d.parquet", "d.arrow", "folder"])
def test_an_empty_file_is_refused_before_the_charge(here, name):
    if name == "folder":
        Path(name).mkdir()
        Path(name, "empty.csv").touch()
    else:
        Path(name).write_bytes(gzip.compress(b"") if name.endswith("gz") else b"")
    if "csv" in name:
        assert "is empty: no header and no record" in run("check", name, "s.yaml", "--to-pipe").out
    assert run("check", name, "s.yaml", "--to-pipe").code == 1
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
    assert run("release", name, "--epsilon", 1).code == 6
    assert charges() == 0


NO_SPECS = {
    "table.csv": 'name,diagnosis\nSECRETA,SECRETB\nO\'SECRETC,"SECRETD: cancer"\n',
    "semicolons.txt": "name;diagnosis\nSECRETA;SECRETB: HIV\n",
    "colons.csv": "name: SECRETA,b\nSECRETB: x,2\n",
    "one_column.csv": "SECRETA\nSECRETB\n",
    "tags.csv": "!SECRET!A x,y\n",
    "aliases.csv": "*SECRET,b\n",
    "directives.csv": "%SECRET,2\n1,2\n",
    "twice.csv": "SECRET: 1\nSECRET: 1\n",
    "keys.csv": "domain: SECRETA\nname: SECRETB\n",
    "latin.csv": "SECRETÄ,b\n".encode("latin-1"),
    "packed.csv.gz": gzip.compress(b"name,SECRET\n"),
    "records.json": '{"SECRETA": 1, "b": [{"SECRETB": 3}]}',
    "list.yaml": "- SECRETA\n- [SECRETB, {SECRETC: SECRETD}]\n",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
        Path("s.yaml").write_text(SPEC)
        Path("d.csv").write_text("x\na\nb\n")
        Path("q.yaml").write_text("workload: [{name: u, product: {}}]\n")
        assert run("plan", "s.yaml", "--time-limit", 1).code == 0
        assert run("release", "d.csv", "--epsilon", 1).code == 0
    return folder


@pytest.fixture
def released(here, template):
    shutil.copytree(template, here, dirs_exist_ok=True)
    return here


@pytest.mark.nightly(daily="keys|packed|colons|records|table")
@pytest.mark.parametrize("name", NO_SPECS)
def test_nothing_is_repeated_of_a_file_that_is_no_spec(released, name):
    content = NO_SPECS[name]
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    for command in (
        ("plan", name),
        ("compare", name, "dpquery.plan"),
        ("compare", "s.yaml", name),
        ("check", "s.yaml", name, "--to-pipe"),
        ("answer", "release", name),
        ("answer", name, "q.yaml"),
        ("answer", name, "release"),
        ("release", "s.yaml", "--plan", name, "--epsilon", 1),
        ("error-report", name),
        ("audit", "--plan", name, "--epsilon", 1),
        ("ledger", "status", "--ledger", name),
    ):
        done = run(*command)
        assert done.code in {2, 4, 6}, command
        assert "SECRET" not in done.out + done.err
    said = run("plan", name).err
    assert "`dpquery check DATA SPEC`" in said or "but some other text: it lacks the keys" in said
    if name == "table.csv":
        assert "it seems to be a CSV file" in said


@pytest.mark.parametrize(
    "named",
    [
        "values_file: f.csv",
        "hierarchy: f.csv, levels: [y, z]",
        "known: {file: f.csv, why: w}",
        "population: f.csv",
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        "SECRETA\nSECRETA\n",
        "SECRETA;SECRETB\nSECRETC;SECRETD\n",
        "code,SECRETA\n1,SECRETB\n1.0,SECRETC\n1,SECRETB\n",
        "x,value,population\na,SECRETA,SECRETB\nb,-7654,0\n",
        "z,y,y_label\n1,SECRETA,SECRETB\n2,SECRETA,SECRETC\n1,SECRETD,SECRETE\n",
    ],
)
def test_a_file_beside_the_spec_may_be_the_wrong_one(here, named, content):
    Path("f.csv").write_text(content)
    spec = SPEC
    if named.startswith("known"):
        spec = spec.replace("identity}}", f"identity}}, {named}}}")
    elif named.startswith("population"):
        spec += f"derived: [{{name: r, rate: {{of: t, {named}}}}}]\n"
    else:
        spec = spec.replace("values: [a, b]", named)
    Path("s.yaml").write_text(spec)
    done = run("plan", "s.yaml", "--time-limit", 0)
    assert done.code == 2
    assert "SECRETA" not in done.err
    assert "-7654" not in done.err
    assert "f.csv" in done.err


@pytest.mark.parametrize("key", ["dataset", "privacy", "domain", "about"])
def test_a_text_where_keys_belong_is_not_repeated(here, key):
    lines = [line for line in SPEC.splitlines() if not line.startswith((key, "  x"))]
    Path("s.yaml").write_text("\n".join([f"{key}: SECRETA,77", *lines]) + "\n")
    done = run("plan", "s.yaml")
    assert done.code == 2
    assert f"s.yaml:1:{len(key) + 3}: " in done.err
    assert "SECRET" not in done.err


@pytest.mark.parametrize(
    "name", ["a\0b", "folder/a\0b", "x" * 300, "/".join(["x" * 200] * 30), "\ud800"]
)
def test_a_name_that_no_file_can_have_is_refused(released, name):
    for call in (
        lambda: dpquery.plan(name),
        lambda: dpquery.plan("s.yaml", plan_path=name),
        lambda: dpquery.plan("s.yaml", ledger_path=name),
        lambda: dpquery.release("d.csv", epsilon=2, out=name),
        lambda: dpquery.release("d.csv", epsilon=2, plan_path=name),
        lambda: dpquery.answer(name, "q.yaml"),
        lambda: dpquery.answer("release", "q.yaml", out=name),
        lambda: dpquery.synthesize("release", out=name),
        lambda: dpquery.error_report("release", html=name),
        lambda: dpquery.compare(name, "dpquery.plan"),
        lambda: dpquery.package("release", out=name),
        lambda: dpquery.Release(name),
    ):
        with pytest.raises(SpecError, match="can be the name of no file or folder"):
            call()
    with pytest.raises(DataError):
        dpquery.release(name, epsilon=2, out="other")
    assert charges() == 1


MISTAKES = [
    # (files to put or {old: new} to change in them, command, exit code, what is said)
    ({"release/release.json": {'"epsilon": 1.0': '"epsilon": 0.1'}}, "error-report release", 2,
     "release/release.json was changed after it was written; put it back, or move the folder away"),
    ({"release/release.json": {'"level": 0.95': '"level": 0.5'}}, "package release", 2,
     "release/release.json was changed after it was written; put it back, or move the folder away"),
    ({"s.yaml": {"[a, b]": "[0-9, 10-19, 80+]"}}, "lint s.yaml", 0,
     "s.yaml: the values of 'x' look like ranges of numbers, and count records that hold these"),
    ({"s.yaml": {"[a, b]": "[0-9, 10-19]", "id: ops": "id: other"}},
     "plan s.yaml --dry-run --new-dataset --time-limit 1", 0,
     "note     the values of 'x' look like ranges of numbers, and count records that hold these"),
    ({"s.yaml": {"[a, b]": "[a b]"}}, "lint s.yaml", 0,
     "s.yaml: 'x' has one value, 'a b': two values have a comma between them"),
    ({"s.yaml": {"[a, b]": "[“a”, “b”]"}}, "lint s.yaml", 0,
     "s.yaml: values of 'x' have curly quotes, which are read as letters; where they are no"),
    ({"s.yaml": {"[a, b]": '[a, ""]'}}, "lint s.yaml", 0,
     "s.yaml: the blank of 'x' is shown as nothing; write its values as a mapping with a label"),
    ({"d.csv": {"x": "X"}}, "release d.csv --epsilon 2 --out r", 6,
     "the header lacks the declared column x; it has them in other capitals or small letters"),
    ({"d.csv": {"x\n": ""}}, "release d.csv --epsilon 2 --out r", 6,
     "if the first line is a record or a title, put one with the column names there"),
    ({"d.csv": {"x\n": "\n\nx\n"}}, "release d.csv --epsilon 2 --out r", 6,
     "it is empty: delete the empty lines above the column names"),
    ({"d.csv": bytes(99)}, "release d.csv --epsilon 2 --out r", 6,
     "it holds NUL characters, as no text does: name another file"),
    ({"d.csv": b"[1]\n"}, "release d.csv --epsilon 2 --out r", 6,
     "it seems to be JSON, as plans are: name the records, as CSV or Parquet"),
    ({}, "release dpquery.plan --epsilon 2 --out r", 6,
     "this seems to be a plan, not the data; write `dpquery release DATA --plan"),
    ({}, "release release --epsilon 2 --out r", 6,
     "release is a release, by its release.json; name the records"),
    ({}, "release https://example.org/d.csv --epsilon 2 --out r", 6,
     "data are not read from https:// addresses; download the file, and"),
    ({}, "release 'no/*.csv' --epsilon 2 --out r", 6,
     "no/*.csv matches no file; check its folder and the pattern"),
    ({}, "release d.csv --epsilon 2 --out ''", 2,
     "--out is followed by an empty name"),
    ({}, "release d.csv –epsilon 2", 2,
     "begins with a long dash; type two hyphens: --epsilon"),
    ({}, "release d.csv -epsilon 2", 2,
     "-epsilon begins with one hyphen; type two hyphens: --epsilon"),
    ({}, "release d.csv --epsilon", 2,
     "Missing value of '--epsilon'; write it as in `dpquery release data.csv --epsilon 0.5"),
    ({}, "release d.csv --epsilon 2 --release-number two", 2,
     "Invalid value for '--release-number': it must be a whole number; see"),
    ({}, "release d.csv --epsilon 2 --plan s.yaml --out r", 2,
     "s.yaml is not a plan file, or it is damaged: it seems to be some other text; name the"),
    ({}, "release d.csv --epsilon 2 --plan release --out r", 2,
     "release cannot be read: Is a directory; name a file in it"),
    ({"r/a.txt": b''}, "release d.csv --epsilon 2 --out r", 5,
     "r is not empty and holds no release.json, so that it is no release; move the folder"),
    ({}, "check d.csv", 2,
     "`dpquery check` needs data and spec; write it as in `dpquery check data.csv workload.yaml`"),
    ({"bin.yaml": b""}, "plan missing.yaml", 2,
     "missing.yaml cannot be read: No such file or directory; check the path"),
    ({}, "release --epsilon 2", 2,
     "Missing argument 'data'; write it as in `dpquery release data.csv"),
    ({}, "publish d.csv", 2,
     "No such command 'publish'; did you mean 'release'?"),
    ({}, "plan ss.yaml", 2,
     "ss.yaml cannot be read: No such file or directory; did you mean 's.yaml'?"),
    ({"s.yaml": {"ops}": "ops, rows: about 9}"}}, "plan s.yaml --proxy p.dat", 2,
     "the proxy cannot be read: there is no file p.dat; give the path of a data file"),
    ({"s.yaml": SPEC.encode("utf-16")}, "plan s.yaml", 2,
     "s.yaml:1:1: this is not UTF-8; save the file as UTF-8\n"),
    ({"q.yaml": {"workload: [{name: u, product: {}}]": "product: {}"}}, "answer release q.yaml", 2,
     "this is no file of questions, but some other text: it lacks the keys workload; write"),
    ({"q.yaml": b"- name: u\n  product: {}\n"}, "answer release q.yaml", 2,
     "q.yaml:1:1: this is a list of items; put the line `workload:` above it"),
    ({"q.yaml": b"workload\n- name: u\n"}, "answer release q.yaml", 2, "'workload' has no colon"),
    ({}, "status", 2, "No such command 'status'; did you mean 'ledger status'?"),
    ({}, "plan d.csv s.yaml", 2,
     "Too many arguments: name one spec, as s.yaml, and no data; see `dpquery plan -h`"),
    ({}, "plan s.yaml epsilon 2", 2, "epsilon lacks its two hyphens: write --epsilon 2; see"),
    ({}, "release d.csv --epsilon 1 --also nonnegative integer", 2,
     "there is no file integer; to add it too, write `--also nonnegative,integer`"),
    ({}, "plan s.yaml --target a:rmse<=5,b:rmse<=4 --epsilon 1", 2, "give --target once for each"),
    ({}, "ledger history ops", 2,
     "Too many arguments: leave out ops: it takes none; see `dpquery ledger history -h`"),
    ({"plan": b""}, "plan missing.yaml", 2, "missing.yaml cannot be read: No such file"),
    ({}, "d.csv", 2, "d.csv is a file, no command; write `dpquery release d.csv --epsilon 1`"),
    ({}, "release d.csv --epsilon 1 --rows 9", 2,
     "No such option: --rows belongs to `dpquery plan`, `dpquery synthetic`; see"),
    ({}, "ledger shwo", 2,
     "No such command 'shwo'; there are status, history, verify, export, abandon; see"),
    ({}, "error-report --format html", 2,
     "No such option: --format; there are --html, --json; see `dpquery error-report -h`"),
    ({}, "plan s.yaml --epsilon 0.5 --epsilon=1", 2, "--epsilon is given twice; give it once"),
    ({}, "init d.csv", 5, "d.csv exists and is kept; give the spec another name"),
    ({}, "plan s.yaml --sweep 0.1 0.5 1", 2,
     "0.5 1 stands apart; write numbers without blanks, with commas between several: 0.1,0.5"),
    ({}, "ledger status --ledger no.db", 4,
     "there is no ledger at no.db; check the path in --ledger or DPQUERY_LEDGER, or, if"),
    ({}, "release d.csv --epsilon 1 --out new --ledger no.db", 4,
     "there is no ledger at no.db; "),
    ({}, "ledger status --ledger release", 4,
     "release is a folder; give the ledger's own path, such as ledger.db in it"),
]  # fmt: skip
"""Ordinary mistakes, and the words that say where, why and what to do."""


@pytest.mark.parametrize(("files", "command", "code", "said"), MISTAKES)
def test_a_mistake_is_met_with_place_cause_and_remedy(released, files, command, code, said):
    for name, content in files.items():
        if isinstance(content, dict):
            text = Path(name).read_text()
            for old, new in content.items():
                assert old in text
                text = text.replace(old, new)
            content = text.encode()
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    done = run(*shlex.split(command))
    assert (done.code, said in done.out + done.err) == (code, True), done
    assert charges() == 1


# A plan is input from outside: whatever it holds, it is refused before anything is charged.

RELEASE = ("release", "data.csv", "--epsilon", "1")


@pytest.fixture(autouse=True)
def tried(record_property):
    """Count what was tried: every test here tries one bad input at least."""
    record_property("bad inputs", 1)


def test_a_missing_plan_says_how_to_make_one(town):
    Path("dpquery.plan").unlink()
    assert "dpquery plan" in refused(*RELEASE, code=2)


def plan_json():
    return unhashed(Path("dpquery.plan").read_text())


def strategy_of(plan):
    return plan["selections"][0]["strategy"]


def _best(plan):
    selection = plan["selections"][0]
    return next(line for line in selection["candidates"] if line["name"] == selection["best"])


DAMAGE = {
    "another format": lambda plan: plan.update(format="dpquery.plan/999"),
    "a list for the spec": lambda plan: plan.update(spec=[]),
    "text for a seed": lambda plan: plan.update(seed="0"),
    "no selections": lambda plan: plan.update(selections=[]),
    "an unknown noise": lambda plan: plan["selections"][0].update(noise="none"),
    "an unknown best": lambda plan: plan["selections"][0].update(best="Magic"),
    "NaN for an error": lambda plan: plan["selections"][0]["items"][0].update(rmse=float("nan")),
    "an error too large for a float": lambda plan: plan["selections"][0].update(bound=10**400),
    "a negative error": lambda plan: plan["selections"][0]["items"][0].update(rmse=-1.0),
    "an unknown shape": lambda plan: strategy_of(plan).update(shape="magic"),
    "a broken spec": lambda plan: plan["spec"].update(text="dataset: ["),
    "another workload": lambda plan: plan["spec"].update(
        text=plan["spec"]["text"].replace("[F, M]", "[F, M, X]")
    ),
    "a best without figures": lambda plan: _best(plan).update(rmse=None),
    "a best of no figures": lambda plan: _best(plan).update(max_std_error="1"),
    "a best without a score": lambda plan: _best(plan).update(score=None),
    "targets of no list": lambda plan: plan.update(targets={}),
    "a target of nothing": lambda plan: plan.update(
        targets=[{"item": "ages", "figure": "sd", "at_most": 0}]
    ),
    "a target of an unknown figure": lambda plan: plan.update(
        targets=[{"item": "ages", "figure": "median", "at_most": 1}]
    ),
    "a path for an item": lambda plan: plan["spec"].update(
        text=plan["spec"]["text"].replace("name: pairs", "name: ../pairs")
    ),
    "a path for a file": lambda plan: plan["spec"].update(
        text=plan["spec"]["text"].replace("values: [F, M]", "values_file: ../data.csv")
    ),
}
HARMLESS = {"name": "hostile", "factors": []}
DENSE = {"kind": "dense", "matrix": {"shape": [2, 2], "data": ""}}
STRATEGIES = {
    "a negative weight": {"shape": "marginals", "weights": [[[0, 1, 2, 3], -1]]},
    "a weight of zero": {"shape": "marginals", "weights": [[[0, 1, 2, 3], 0]]},
    "a fractional weight": {"shape": "marginals", "weights": [[[0, 1, 2, 3], 1.5]]},
    "a huge weight": {"shape": "marginals", "weights": [[[0, 1, 2, 3], 2**80 + 1]]},
    "a weight past all floats": {"shape": "marginals", "weights": [[[0, 1, 2, 3], 2**1024]]},
    "an attribute there is not": {"shape": "marginals", "weights": [[[0, 1, 2, 9], 1]]},
    "too little measured": {"shape": "marginals", "weights": [[[0], 1]]},
    "nothing measured": {"shape": "marginals", "weights": []},
    "weights of no blocks": {"shape": "workload", "weights": [1]},
    "too few factors": {"shape": "product", "factors": [{"kind": "identity", "n": 5}]},
    "a huge factor": {
        "shape": "product",
        "factors": [{"kind": "identity", "n": 2**40} for _ in range(4)],
    },
    "a huge matrix": {
        "shape": "product",
        "factors": [
            {"kind": "dense", "matrix": {"shape": [2**30, 2**30], "data": "eJwDAAAAAAE="}}
            for _ in range(4)
        ],
    },
    "no base64": {"shape": "product", "factors": [DENSE] * 4},
    "no parts": {"shape": "union", "parts": [], "weights": [], "groups": []},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_plan_is_refused(town, damage):
    plan = plan_json()
    DAMAGE[damage](plan)
    Path("dpquery.plan").write_text(json.dumps(plan))
    assert "plan" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_hostile_strategy_is_refused(town, strategy):
    plan = plan_json()
    plan["selections"][0]["strategy"] = HARMLESS | STRATEGIES[strategy]
    Path("dpquery.plan").write_text(json.dumps(plan))
    assert "plan" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b"1" * 5000]
)
def test_a_file_that_is_no_plan_is_refused(town, content):
    Path("dpquery.plan").write_bytes(content)
    assert "plan" in refused(*RELEASE, code=2)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_neither_a_plan_nor_a_spec_is_ever_run(town):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        Path("dpquery.plan").write_bytes(pickle.dumps(Trap(), protocol))
        assert "plan" in refused(*RELEASE, code=2)
    spec = Path("workload.yaml").read_text()
    for tag in ("!!python/object/apply:os.mkdir", "!!python/object/new:os.mkdir"):
        Path("trap.yaml").write_text(spec.replace("[F, M]", f"{tag} [sprung]"))
        assert "tag" in refused("plan", "trap.yaml", "--out", "trap.plan", code=2)
    assert not Path("sprung").exists()


SINGULAR = base64.b64encode(zlib.compress(np.arange(25, dtype="<i8").tobytes())).decode()


RANK_TWO = {"kind": "dense", "matrix": {"shape": [5, 5], "data": SINGULAR}}
REST = [{"kind": "identity", "n": n} for n in (2, 3, 3)]
MARGINALS = {"name": "x", "shape": "marginals", "weights": [[[0, 1, 2, 3], 1]]}
ONES = base64.b64encode(zlib.compress(np.ones((1, 5), dtype="<i8").tobytes())).decode()
NOTHING = base64.b64encode(zlib.compress(b"")).decode()
ROWLESS = {
    "kind": "p-identity",
    "diagonal": {"shape": [1, 5], "data": ONES},
    "rows": {"shape": [0, 5], "data": NOTHING},
}
WIDE = {"kind": "dense", "matrix": {"shape": [1, 5], "data": ONES}}
UNANSWERABLE = {
    "a total of what is asked": {"shape": "product", "factors": [{"kind": "total", "n": 5}, *REST]},
    "a matrix of rank two": {"shape": "product", "factors": [RANK_TWO, *REST]},
    "a matrix of too few rows": {"shape": "product", "factors": [WIDE, *REST]},
    "a p-identity without rows": {"shape": "product", "factors": [ROWLESS, *REST]},
    "marginals of a total": {"factors": [[0, {"kind": "total", "n": 5}]]},
    "marginals of rank two": {"factors": [[0, RANK_TWO]]},
    "marginals of another size": {"factors": [[0, {"kind": "identity", "n": 4}]]},
    "a factor of an attribute there is not": {"factors": [[4, {"kind": "identity", "n": 5}]]},
    "two factors of one attribute": {"factors": [[0, {"kind": "identity", "n": 5}]] * 2},
}


@pytest.mark.parametrize("figure", ["best", "bound_kind"])
def test_text_that_cannot_be_written_is_refused(town, figure):
    plan = plan_json()
    plan["selections"][0][figure] = "\ud800"
    Path("dpquery.plan").write_text(json.dumps(plan))
    assert "plan" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


def test_more_rows_than_can_be_held_are_refused_before_anything_is_charged(town):
    plan, rows = plan_json(), 1 << 14
    tall = base64.b64encode(zlib.compress(np.tile(np.eye(5, dtype="<i8"), (rows, 1)).tobytes()))
    wide = base64.b64encode(zlib.compress(np.tile(np.eye(2, dtype="<i8"), (rows, 1)).tobytes()))
    factors = [
        {"kind": "dense", "matrix": {"shape": [5 * rows, 5], "data": tall.decode()}},
        {"kind": "dense", "matrix": {"shape": [2 * rows, 2], "data": wide.decode()}},
        *REST[1:],
    ]
    plan["selections"][0]["strategy"] = HARMLESS | {"shape": "product", "factors": factors}
    Path("dpquery.plan").write_text(json.dumps(plan))
    assert "cells in all" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


def test_marginals_of_cells_are_read(town):
    plan = plan_json()
    plan["selections"][0]["strategy"] = MARGINALS | {"factors": [[1, REST[0]]]}
    Path("dpquery.plan").write_text(json.dumps(with_true_figures(plan)))
    ok(*RELEASE)


@pytest.mark.parametrize("figure", ["rmse", "weighted_rmse", "max_std_error"])
@pytest.mark.parametrize("factor", [0.5, 0.99, 1.01, 2.0])
def test_figures_that_are_not_those_of_the_strategy_are_refused(town, figure, factor):
    plan = plan_json()
    _best(plan)[figure] *= factor
    Path("dpquery.plan").write_text(json.dumps(plan))
    assert "changed by hand" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


def test_a_bound_above_what_is_reached_is_refused(town):
    plan = plan_json()
    plan["selections"][0]["bound"] = 1.01 * _best(plan)["weighted_rmse"]
    Path("dpquery.plan").write_text(json.dumps(plan))
    assert "changed by hand" in refused(*RELEASE, code=2)


@pytest.mark.parametrize("strategy", UNANSWERABLE)
def test_a_plan_that_cannot_answer_is_refused_before_anything_is_charged(town, strategy):
    plan = plan_json()
    plan["selections"][0]["strategy"] = MARGINALS | UNANSWERABLE[strategy]
    Path("dpquery.plan").write_text(json.dumps(plan))
    assert "does not fit its spec" in refused(*RELEASE, code=2)
    assert kinds() == ["register"]


@pytest.mark.parametrize(
    ("written", "instead"),
    [(r'"bound": [0-9.e-]+', '"bound": 0.1'), ('"name": "', '"name": "x'), ("row", "rows")],
)
def test_a_plan_that_was_changed_by_hand_is_refused_by_its_name(town, written, instead):
    whole = Path("dpquery.plan").read_text()
    changed = re.sub(written, instead, whole, count=1)
    assert changed != whole
    Path("changed.plan").write_text(changed)
    said = refused(*RELEASE, "--plan", "changed.plan", code=2)
    assert "changed.plan was changed after `dpquery plan` wrote it" in said
    assert kinds() == ["register"]


def test_a_plan_that_is_laid_out_otherwise_is_the_same_plan(town):
    plan = json.loads(Path("dpquery.plan").read_text())
    Path("dpquery.plan").write_text(json.dumps(plan, indent=4))
    ok(*RELEASE)
