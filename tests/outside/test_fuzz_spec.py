"""A spec that nearly makes sense is read or refused by its place; what is read the schema takes."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from damage import chance, check_places, damaged, limited, mutated, slow_but, some_or
from town import SPEC, contents, kinds, ok, refused, run

from dpquery.exceptions import SpecError
from dpquery.operators.compile import compile_spec
from dpquery.spec.documents import STARTER, schema
from dpquery.spec.parsing.read import load_spec, parse

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

EVERY = (
    SPEC
    + """\
  - name: some
    where: {sex: F}
    union:
      - any_of: {age: {ranges: [[0, 1]]}, region: {groups: {all: [North, South], one: [North]}}}
      - threshold: {r: 2, of: [age, region, income]}
  - name: few
    threshold: {r: 1, of: [age, sex], targets: {age: {between: [1, 3]}, sex: {in: [F]}}}
  - {name: drawn, threshold: {r: 1, sample: 2, k: 2, seed: 3, distribution: {geometric: 0.5}}}
  - {name: wide, ranges: {age: {width: 2}, income: [[0, 20.5]]}}
"""
)

names = st.sampled_from(["age", "sex", "région", "a b", "yes", "no", "~", "010", "1:30", "x", "<<"])
numbers = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([0, -1, 10**6, 2**20, 2**31, 2**63, 10**18, 10**19, -(10**18)]),
    st.sampled_from(["1e-9", "1e400", ".nan", ".inf", "0x10", "0o7", "010", "1_0", "٣", "1e-400"]),
    st.floats(allow_nan=False, allow_infinity=False),
)
words = st.one_of(
    names,
    st.text(max_size=8),
    st.sampled_from(
        ["identity", "total", "prefix", "all-ranges", "all", "other", "boolean", "any"]
    ),
    st.sampled_from(["2020-01-01", "null", "\x1b[2J", "a\0b", "\u202e", "é" * 50, "= x", "@x"]),
)
leaves = st.one_of(numbers, words, st.none(), st.booleans())
anything = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)
spans = st.lists(st.one_of(st.integers(0, 9), leaves), min_size=2, max_size=2)


def nearly(strategy):
    """Mostly what makes sense, now and then anything at all."""
    return st.integers(0, 14).flatmap(lambda k: anything if k == 0 else strategy)


def one_key(**choices):
    """A mapping with one of some keys."""
    return st.one_of(*(st.fixed_dictionaries({key: value}) for key, value in choices.items()))


columns = st.one_of(
    st.just("boolean"),
    one_key(
        range=nearly(st.tuples(st.integers(0, 3), st.integers(3, 30)).map(list)),
        values=nearly(st.lists(words, min_size=1, max_size=5)),
        bins=nearly(st.lists(st.integers(0, 50), min_size=2, max_size=5, unique=True).map(sorted)),
        boolean=nearly(st.fixed_dictionaries({"true": st.lists(words, min_size=1, max_size=2)})),
        values_file=nearly(st.sampled_from(["list.txt", "../x", "/etc/passwd", "a\0b", "no.txt"])),
        merge=nearly(st.dictionaries(st.sampled_from(["m", "n", "o"]), st.just("boolean"))),
    ),
    st.fixed_dictionaries(
        {"hierarchy": nearly(st.sampled_from(["areas.csv", "areas.csv", "list.txt"]))},
        optional={
            "levels": nearly(st.sampled_from([["s", "t"], ["t"], [["s", "t"], ["m", "t"]], ["m"]]))
        },
    ),
)
groups_of_levels = st.dictionaries(st.sampled_from(["s", "t", "m"]), words, min_size=1, max_size=2)
conditions = st.one_of(
    words, groups_of_levels, one_key(**{"is": words, "in": st.lists(words), "between": spans})
)
sets = st.one_of(
    st.sampled_from(["identity", "total", "prefix", "all-ranges", "identity+total"]),
    one_key(
        width=numbers,
        ranges=st.lists(spans, max_size=3),
        groups=st.dictionaries(words, st.lists(st.one_of(words, spans), max_size=3), max_size=3),
    ),
    conditions,
    st.sampled_from(["s", "t", "m"]),
    st.fixed_dictionaries(
        {"level": nearly(st.sampled_from(["s", "t", "m"]))},
        optional={"within": nearly(groups_of_levels)},
    ),
    st.lists(st.sampled_from(["identity", "total", "prefix", "s"]), max_size=3),
)
attributes = st.lists(names, max_size=3)
marginals = st.fixed_dictionaries(
    {},
    optional={
        "ways": numbers,
        "up_to": numbers,
        "sets": st.lists(attributes, max_size=3),
        "max_cells": numbers,
        "over": attributes,
        "predicates": st.dictionaries(names, sets, max_size=2),
    },
)
thresholds = st.fixed_dictionaries(
    {"r": numbers},
    optional={
        "of": attributes,
        "targets": st.one_of(st.just("all"), st.dictionaries(names, conditions, max_size=3)),
        "sample": numbers,
        "k": numbers,
        "seed": numbers,
        "distribution": st.one_of(
            st.sampled_from(["uniform", "zipf", "geometric"]), one_key(geometric=numbers)
        ),
        "max_cells": numbers,
    },
)
parts = one_key(
    product=nearly(st.dictionaries(names, sets, max_size=2)),
    marginals=nearly(marginals),
    ranges=nearly(st.dictionaries(names, st.one_of(st.just("all"), sets), max_size=2)),
    any_of=nearly(st.dictionaries(names, sets, max_size=3)),
    threshold=nearly(thresholds),
)
parts = st.one_of(parts, one_key(union=st.lists(parts, max_size=2)))
items = st.tuples(
    st.fixed_dictionaries(
        {"name": nearly(st.sampled_from(["a", "b", "c_1", "errors", "../x"]))},
        optional={"weight": numbers, "description": words, "where": st.just({"sex": "F"})},
    ),
    parts,
).map(lambda parts: parts[0] | parts[1])
specs = st.fixed_dictionaries(
    {
        "dataset": nearly(
            st.fixed_dictionaries(
                {"id": st.sampled_from(["town", "a/b", "1.5", ""])},
                optional={"rows": st.one_of(numbers, st.just("about 50")), "version": numbers},
            )
        ),
        "privacy": nearly(
            st.fixed_dictionaries(
                {"unit": st.one_of(st.just("row"), st.just({"person": "p", "max_rows": 3}))},
                optional={"delta": numbers, "neighbours": st.sampled_from(["replace", "x"])},
            )
        ),
        "budget": nearly(st.fixed_dictionaries({"epsilon": st.one_of(st.just(4), numbers)})),
        "domain": nearly(
            st.dictionaries(names, nearly(columns), max_size=3).map(
                lambda more: {"age": {"range": [0, 9]}, "sex": {"values": ["F", "M"]}} | more
            )
        ),
        "workload": nearly(st.lists(items, min_size=1, max_size=3)),
    }
)


LISTS = {"list.txt": "a\nb,label\n", "areas.csv": "t,s,s_label,m\na,x,X,1\nb,x,X,2\nc,y,,1\n"}


def outcome(text):
    """Return the spec that a text is, None where it is refused: nothing else may come of it."""
    try:
        spec = parse(text, name="w.yaml", files=LISTS)
        compile_spec(spec)
    except SpecError as error:
        check_places(str(error))
        return None
    return spec


@pytest.fixture(scope="module")
def validator():
    return pytest.importorskip("jsonschema").Draft7Validator(schema())


class Core(yaml.SafeLoader):
    """YAML as editors read it: dates are texts."""


Core.yaml_implicit_resolvers = {
    first: [kind for kind in kinds_of if not kind[0].endswith(("timestamp", "merge"))]
    for first, kinds_of in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def seen(text):
    """Return what an editor checks with the schema: keys are texts."""
    return texts_for_keys(yaml.load(text, Loader=Core))  # noqa: S506


def texts_for_keys(value):
    if isinstance(value, list):
        return [texts_for_keys(part) for part in value]
    if not isinstance(value, dict):
        return value
    named = {key if isinstance(key, str) else json.dumps(key): part for key, part in value.items()}
    return {key: texts_for_keys(part) for key, part in named.items()}


def check_spec(spec, validator):
    """Return whether a spec was read; what the parser takes, the schema takes too."""
    text = yaml.safe_dump(spec, allow_unicode=True, sort_keys=False)
    if outcome(text) is None:
        return False
    refusals = [error.message for error in validator.iter_errors(seen(text))]
    assert not refusals, (text, refusals)
    return True


@some_or(800, some=40)
def test_specs_that_nearly_make_sense_are_read_or_refused_by_place(
    examples, validator, record_property
):
    tried = []

    @hypothesis.settings(
        derandomize=True,
        max_examples=examples,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(specs)
    def check(spec):
        tried.append(check_spec(spec, validator))

    check()
    record_property("bad inputs", len(tried))


@some_or(600, some=60)
def test_changed_specs_are_read_or_refused_and_the_schema_takes_what_is_read(
    examples, validator, record_property
):
    """They make sense but for one or two things."""
    draw, bases = chance(9), [seen(text) for text in (SPEC, STARTER, EVERY)]
    read = tried = 0
    for _ in range(examples):
        spec = mutated(draw.choice(bases), draw)
        spec = mutated(spec, draw) if draw.random() < 0.3 and isinstance(spec, dict) else spec
        with suppress(yaml.YAMLError, UnicodeEncodeError):  # what cannot be written down
            read += check_spec(spec, validator)
            tried += 1
    assert read >= examples // 10
    record_property("bad inputs", tried)


@pytest.mark.parametrize(
    "threshold",
    [
        {"r": 1, "sample": 2, "k": 2},
        {"r": 1, "sample": 2, "seed": 0},
        {"r": 1, "sample": 2, "k": 2, "seed": 0, "targets": "all"},
        {"r": 1, "of": ["age", "sex"], "k": 2},
        {"r": 1, "of": ["age", "sex"], "seed": 2},
        {"r": 1, "of": ["age", "sex"], "max_cells": 2},
    ],
)
def test_the_schema_knows_what_goes_with_a_sample(validator, threshold):
    spec = seen(SPEC)
    for condition in (threshold, {"r": 1, "of": ["age", "sex"]}):
        spec["workload"] = [{"name": "a", "threshold": condition}]
        read = outcome(yaml.safe_dump(spec)) is not None
        assert read is not bool(list(validator.iter_errors(spec)))


# Whatever bytes a spec or a file of questions holds: read or refused by its place, in bounds.


WORKLOADS = sorted((Path(__file__).parents[2] / "workloads").glob("*.yaml"))


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


@pytest.mark.nightly(daily="code|name|alias|laughs|date|character|half|zeros")
@pytest.mark.parametrize("case", YAML)
def test_yaml_s_own_tricks_are_refused_at_their_line(town, case):
    Path("workload.yaml").write_text(YAML[case])
    said = refused("plan", "workload.yaml", "--time-limit", "0", code=2)
    assert "workload.yaml:" in said
    assert len(said) < 20_000
    assert not Path("canary").exists()


@pytest.mark.parametrize(
    "name", ["pipe.txt", "folder", "device.txt", "loop.txt", '"a\\0b"', '"\\x1b[2J.t"', "x" * 5000]
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


def test_damaged_questions_are_answered_or_refused_by_place(released_town, record_property):
    whole = (HEAD + "workload:\n  - {name: q, product: {age: identity}}\n").encode()
    short = b"workload:\n  - name: q\n    marginals: {ways: 1, over: [sex, region]}\n"
    for content in mutants_of([whole, short], 15, seed=8):
        Path("q.yaml").write_bytes(content)
        done = run("answer", "release", "q.yaml", "--replace")
        assert done.code in (0, 2), done
        assert done.code == 0 or "q.yaml" in done.err, done
        assert "Traceback" not in done.err
    record_property("bad inputs", 15)
