"""Whatever bytes a spec or a file of questions holds: read or refused by its place, in bounds."""

import os
from pathlib import Path

import pytest
from damage import chance, check_places, damaged, limited, slow_but
from town import SPEC, contents, kinds, ok, refused, run

from dpquery.exceptions import SpecError
from dpquery.operators.compile import compile_spec
from dpquery.spec.documents import STARTER
from dpquery.spec.parsing.read import load_spec, parse

WORKLOADS = sorted((Path(__file__).parents[2] / "workloads").glob("*.yaml"))


# ------------------------------------------------------------------------------ bytes


def mutants_of(texts, count, seed):
    draw = chance(seed)
    for _ in range(count):
        yield damaged(draw.choice(texts), draw)


def check_bytes(texts, count, tmp_path, record_property):
    path = tmp_path / "w.yaml"
    for content in mutants_of(texts, count, seed=count):
        path.write_bytes(content)
        try:
            compile_spec(load_spec(path))
        except SpecError as error:
            check_places(str(error))
    record_property("bad inputs", count)


def test_damaged_bytes_of_specs_are_read_or_refused_by_place(tmp_path, record_property):
    small = [SPEC.encode(), STARTER.encode(), *(path.read_bytes() for path in WORKLOADS[-3:])]
    check_bytes(small, 40, tmp_path, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda path: path.stem)
def test_damaged_bytes_of_every_workload_are_read_or_refused(workload, tmp_path, record_property):
    check_bytes([workload.read_bytes()], 40, tmp_path, record_property)


# -------------------------------------------------------------------- what YAML makes possible

HEAD = SPEC.split("workload:")[0]
YAML = {
    "code": "a: !!python/object/apply:os.system ['touch canary']\n" + SPEC,
    "a name": SPEC.replace("name: ages", "name: !!python/name:os.system ages"),
    "a merge key": SPEC.replace("- name: ages", "- <<: {weight: 2}\n    name: ages"),
    "an alias of itself": SPEC.replace("{age: all}", "&a {age: *a}"),
    "laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{c}: &{c} [{','.join([f'*{b}'] * 9)}]\n"
        for b, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + SPEC,
    "a key twice": SPEC + "budget: {epsilon: 9}\n",
    "two documents": SPEC + "---\n" + SPEC,
    "a megabyte": SPEC.replace("name: ages", f"name: {'x' * 1_000_000}"),
    "a long number": SPEC.replace("epsilon: 4", f"epsilon: {'9' * 1_000_000}"),
    "a complex key": SPEC.replace("name: ages", "? [name]\n    : ages\n    name: ages"),
    "a date": SPEC.replace("epsilon: 4", "epsilon: 2020-01-01"),
    "an octal": SPEC.replace("epsilon: 4", "epsilon: 0o17"),
    "a number of base sixty": SPEC.replace("epsilon: 4", "epsilon: 1:30"),
    "a directive": "%YAML 9999999999999999.0\n---\n" + SPEC,
    "a character of no meaning": SPEC.replace("North", '"\\U99999999"'),
    "tabs": SPEC.replace("  ", "\t"),
    "a byte order mark inside": SPEC.replace("name: ages", "name: \ufeffages"),
    "half a character": SPEC.replace("North", '"\\ud800"'),
    "nothing": "",
    "a file of zeros": "\0" * 1000,
}


@pytest.mark.parametrize("case", YAML)
def test_yaml_s_own_tricks_are_refused_at_their_line(town, case):
    Path("workload.yaml").write_text(YAML[case])
    said = refused("plan", "workload.yaml", "--time-limit", "0", code=2)
    assert "workload.yaml:" in said
    assert len(said) < 20_000
    assert not Path("canary").exists()


@pytest.mark.parametrize(
    "name",
    ["pipe.txt", "folder", "device.txt", "loop.txt", '"a\\0b"', '"\\x1b[2J.t"', "x" * 5000],
)
def test_value_lists_that_are_no_files_are_refused_at_once(town, name):
    os.mkfifo("pipe.txt")
    Path("folder").mkdir()
    Path("loop.txt").symlink_to("loop.txt")
    Path("device.txt").symlink_to("/dev/zero")
    Path("workload.yaml").write_text(SPEC.replace("values: [F, M]", f"values_file: {name}"))
    before = contents("state")
    said = run("plan", "workload.yaml", "--time-limit", "0")
    assert said.code == 2
    assert "workload.yaml:7:" in said.err
    assert "\x1b" not in said.err
    assert contents("state") == before


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
def test_a_spec_that_is_no_file_is_refused_at_once(town, kind):
    path = Path("odd.yaml")
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    for command in (("plan", path), ("answer", "release", path)):
        if command[0] == "answer":
            ok("release", "data.csv", "--epsilon", "1")
        said = run(*command)
        assert said.code == 2
        assert "odd.yaml cannot be read" in said.err


# ---------------------------------------------------------- few bytes, unreasonable demands

WIDE = "dataset: {id: town}\nprivacy: {unit: row}\nbudget: {epsilon: 4}\ndomain:\n"
ZIP = f"{WIDE}  zip: {{range: [0, 999999]}}\nworkload:\n"


def yes_or_no(attributes):
    return WIDE + "".join(f"  a{i}: boolean\n" for i in range(attributes)) + "workload:\n"


BOMBS = {
    "lists of ranges": ZIP
    + "  - {name: a, product: {zip: {in: ["
    + "[0, 999999], " * 2000
    + "[0, 1]]}}}\n",
    "lists in many items": ZIP
    + "  - {name: a, product: {zip: &g {in: [[0, 999999]]}}}\n"
    + "".join(f"  - {{name: b{i}, product: {{zip: *g}}}}\n" for i in range(300)),
    "labels that repeat": ZIP.replace("range: [0, 999999]", f"values: [&v {'x' * 100_000}, y]")
    + "  - {name: a, product: {zip: {in: ["
    + "*v, " * 20_000
    + "y]}}}\n",
    "descriptions that repeat": ZIP
    + f"  - {{name: a, description: &d {'x' * 1_000_000}, product: {{}}}}\n"
    + "".join(f"  - {{name: b{i}, description: *d, product: {{}}}}\n" for i in range(3000)),
    "a sample of very many": yes_or_no(5000)
    + "  - {name: a, threshold: {r: 1, sample: 9, k: 9, seed: 0, distribution: zipf}}\n",
    "a sample that is very large": yes_or_no(90)
    + "  - {name: a, threshold: {r: 1, sample: 900000, k: 9, seed: 0}}\n",
    "chances of many digits": yes_or_no(900)
    + "  - {name: a, threshold: {r: 1, sample: 9, k: 90, seed: 0, distribution: {geometric: 0."
    + "1234567890" * 4
    + "}}}\n",
}  # fmt: skip


@pytest.mark.parametrize("bomb", slow_but(BOMBS))
def test_a_spec_that_asks_for_the_unreasonable_is_refused_in_bounds(town, bomb):
    Path("workload.yaml").write_text(BOMBS[bomb])
    done = limited("plan", "workload.yaml", "--time-limit", "0", "--jobs", "1")
    assert (done.code, done.out) == (2, ""), done
    assert "workload.yaml:" in done.err
    assert kinds() == ["register"]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["groups", "ranges"])
def test_very_many_groups_and_ranges_are_numbered_at_once(town, what):
    spans = [f"[{i}, {i + 30}]" for i in range(0, 60_000, 3)]
    if what == "groups":
        predicates = (
            "groups: {" + ", ".join(f"g{i}: [{codes}]" for i, codes in enumerate(spans)) + "}"
        )
    else:
        predicates = "ranges: [" + ", ".join(spans) + "]"
    text = f"{ZIP}  - {{name: a, product: {{zip: {{{predicates}}}}}}}\n"
    (classes,) = compile_spec(parse(text, name="w.yaml", files={})).classes
    first_and_last = {(max(0, -((30 - code) // 3)), code // 3) for code in range(59_998)}
    at_the_end = {-((30 - code) // 3) for code in range(59_998, 60_028)}
    assert int(classes.max()) + 1 == len(first_and_last | at_the_end) + 1


# --------------------------------------------------------------------------- questions


def test_damaged_questions_are_answered_or_refused_by_place(town, record_property):
    ok("release", "data.csv", "--epsilon", "1")
    whole = (HEAD + "workload:\n  - {name: q, product: {age: identity}}\n").encode()
    short = b"workload:\n  - name: q\n    marginals: {ways: 1, over: [sex, region]}\n"
    for content in mutants_of([whole, short], 15, seed=8):
        Path("q.yaml").write_bytes(content)
        done = run("answer", "release", "q.yaml", "--replace")
        assert done.code in (0, 2), done
        assert done.code == 0 or "q.yaml" in done.err, done
        assert "Traceback" not in done.err
    record_property("bad inputs", 15)
