"""What is refused, or said, before anything is charged; and what no message ever repeats."""

import gzip
import json
import shlex
from pathlib import Path

import pytest
from town import run

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
def here(tmp_path, monkeypatch):
    """A folder of one's own with a spec."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPQUERY_LEDGER", str(tmp_path / "state" / "ledger.db"))
    Path("s.yaml").write_text(SPEC)
    return tmp_path


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


@pytest.fixture
def released(here):
    Path("d.csv").write_text("x\na\nb\n")
    Path("q.yaml").write_text("workload: [{name: u, product: {}}]\n")
    assert run("plan", "s.yaml", "--time-limit", 1).code == 0
    assert run("release", "d.csv", "--epsilon", 1).code == 0
    return here


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
    ({"s.yaml": {"[a, b]": "[“a”, “b”]"}}, "lint s.yaml", 0,
     "s.yaml: values of 'x' have curly quotes, which are read as letters; where they are no"),
    ({"d.csv": {"x": "X"}}, "release d.csv --epsilon 2 --out r", 6,
     "the header lacks the declared column x; it has them in other capitals or small letters"),
    ({"d.csv": {"x\n": ""}}, "release d.csv --epsilon 2 --out r", 6,
     "if the first line is a record or a title, put one with the column names there"),
    ({"d.csv": {"x\n": "\n\nx\n"}}, "release d.csv --epsilon 2 --out r", 6,
     "it is empty: delete the empty lines above the column names"),
    ({"d.csv": bytes(99)}, "release d.csv --epsilon 2 --out r", 6,
     "it holds NUL characters, as no text does: name another file"),
    ({}, "release dpquery.plan --epsilon 2 --out r", 6,
     "this seems to be a plan; write `dpquery release DATA`"),
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
    ({}, "plan d.csv s.yaml", 2,
     "Too many arguments: name one spec, as s.yaml, and no data; see `dpquery plan -h`"),
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
