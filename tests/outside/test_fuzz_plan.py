"""Whatever a plan holds, or is typed: refused before the charge, or as private as charged.

A plan comes from outside. Its integers decide how much noise there is, so that wherever a changed
plan is accepted, its sensitivity is worked out again, column by column.
"""

import base64
import json
import zlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from damage import (
    NO_FILES,
    WILD,
    chance,
    damaged,
    limited,
    mutated,
    paths,
    put,
    replace_by,
    slow_but,
)
from dense import dense_strategy
from rounds import MIXED_SPEC, rehearse
from specs import strategies, unhashed, with_true_figures
from town import contents, kinds, ok, plan_town, refused, run

from dpquery.exceptions import SpecError
from dpquery.mechanisms.content import ReleaseRequest
from dpquery.mechanisms.fitted import rap_mechanism
from dpquery.mechanisms.linear import linear_mechanism
from dpquery.operators.compile import compile_spec
from dpquery.operators.p_identity import BlockPIdentity
from dpquery.operators.trees import Hierarchy, Tree
from dpquery.plan_file.plan import plan_and_spec
from dpquery.spec.parsing.read import parse
from dpquery.strategy.shapes.marginals import ProductStrategy

SHAPES = ("product", "hierarchy", "tree", "blocks", "marginals", "factors", "residual")
SHAPES = (*SHAPES, "union", "direct", "cell-classes")


@pytest.fixture(scope="module")
def plans(planned_town, planned_gaussian_town, tmp_path_factory):
    """Plans of every shape of strategy, by name, as JSON values."""
    documents = {
        "laplace": unhashed((planned_town / "dpquery.plan").read_text()),
        "gaussian": unhashed((planned_gaussian_town / "dpquery.plan").read_text()),
    }
    compiled = compile_spec(parse(documents["laplace"]["spec"]["text"], name="spec", files={}))
    kinds = strategies(compiled)
    (ages, *rest) = kinds["product"].factors
    n = ages.shape[1]
    kinds["hierarchy"] = ProductStrategy("h", "laplace", (Hierarchy(n, (1, 2), (3, 2)), *rest))
    levels = [1 + np.arange(n), np.array([3, 0])]
    kinds["tree"] = ProductStrategy("t", "laplace", (Tree([np.arange(n) % 2], levels), *rest))
    local, over = np.arange(2 * n).reshape(2, n), np.full((1, -(-n // 3)), 5)
    blocks = BlockPIdentity(np.arange(3, 3 + n), local, over, 3)
    kinds["blocks"] = ProductStrategy("b", "laplace", (blocks, *rest))
    for shape in SHAPES:
        plan = put(documents["laplace"], ("selections", 0, "strategy"), kinds[shape].encode())
        documents[shape] = with_true_figures(plan)
    return documents


def strategy_place(name):
    """Return where the strategy that is changed stands in a plan, and its noise."""
    gaussian = name == "gaussian"
    return ("selections", int(gaussian), "strategy"), "gaussian" if gaussian else "laplace"


def accepted(plan, *, mechanism="linear", noise=None):
    """Return the mechanism of a plan, None where it is refused: nothing else may come of it."""
    content = plan if isinstance(plan, bytes) else json.dumps(plan).encode("utf-8", "replace")
    try:
        read, spec = plan_and_spec(content, Path("dpquery.plan"))
        terms = ReleaseRequest(Fraction(1), spec.privacy.delta, noise, (), 1)
        return (linear_mechanism if mechanism == "linear" else rap_mechanism)(read, spec, terms)
    except SpecError:
        return None


def check_private(mechanism):
    """Assert that the noise hides what a person can move, worked out from the rows themselves."""
    query, noise = mechanism.query, mechanism.query.mechanism
    rows = dense_strategy(query.strategy.measurements)
    power = 1 if query.strategy.noise == "laplace" else 2
    columns = list(rows.T)
    if query.spec.privacy.neighbours == "replace":
        columns += [first - second for first in rows.T for second in rows.T]
    moved = max(sum(abs(int(v)) ** power for v in column) for column in columns)
    moved *= query.spec.privacy.max_rows**power
    assert noise.sensitivity << power * noise.shift >= moved
    if noise.shift == 0 and query.spec.privacy.neighbours == "add-remove":
        assert noise.sensitivity == moved
    if power == 1:
        charged = Fraction(noise.sensitivity) / Fraction(noise.scale)
    else:
        charged = Fraction(noise.sensitivity) / (2 * Fraction(noise.scale) ** 2)
    assert charged <= noise.guarantee.amount * (1 + Fraction(1, 2**40))


def try_all(plans, *, noise=None):
    """Try plans; return how many there were, and how many of them were accepted."""
    tried = taken = 0
    for plan in plans:
        tried += 1
        mechanism = accepted(plan, noise=noise)
        if mechanism is not None:
            taken += 1
            check_private(mechanism)
    return tried, taken


@pytest.mark.nightly
@pytest.mark.parametrize("shape", [*SHAPES, "gaussian"])
def test_changed_strategies_are_refused_or_charged_for_what_they_are(plans, shape, record_property):
    draw, plan = chance(len(shape)), plans[shape]
    place, noise = strategy_place(shape)
    changed = (mutated(plan, draw, below=place) for _ in range(60))
    tried, taken = try_all(changed, noise=noise)
    # With figures to match, that the checks behind them are reached too.
    for _ in range(60):
        other = mutated(plan, draw, below=place)
        try:
            other = with_true_figures(other)
        except (SpecError, ValueError, TypeError, LookupError):
            continue
        more = try_all([other], noise=noise)
        tried, taken = tried + more[0], taken + more[1]
    assert taken > 0
    record_property("bad inputs", tried)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*SHAPES, "gaussian"])
def test_every_leaf_of_a_strategy_may_hold_anything(plans, shape, record_property):
    plan, (place, noise) = plans[shape], strategy_place(shape)
    inside = [path for path in paths(plan) if path[:3] == place]
    draw = chance(1)
    changed = (put(plan, path, value) for path in inside for value in draw.sample(WILD, 16))
    tried, _ = try_all(changed, noise=noise)
    record_property("bad inputs", tried)


@pytest.mark.nightly
def test_everything_around_a_strategy_may_hold_anything(plans, record_property):
    draw, tried = chance(3), 0
    for name in ("laplace", "gaussian"):
        tried += try_all(mutated(plans[name], draw) for _ in range(15))[0]
    for name in plans:  # the spec of one plan and the strategies of another
        for other in draw.sample(sorted(plans), 5):
            crossed = put(plans[name], ("selections",), plans[other]["selections"])
            tried += try_all([crossed])[0]
    record_property("bad inputs", tried)


def test_damaged_bytes_are_refused_or_private(plans, record_property):
    draw, content = chance(4), json.dumps(plans["residual"], indent=1).encode()
    text = plans["laplace"]["spec"]["text"]
    specs = (damaged(text.encode(), draw).decode("utf-8", "replace") for _ in range(60))
    tried, _ = try_all(damaged(content, draw) for _ in range(150))
    tried += try_all(put(plans["laplace"], ("spec", "text"), text) for text in specs)[0]
    record_property("bad inputs", tried)


def test_a_name_given_twice_and_nan_are_refused(plans):
    content = json.dumps(plans["laplace"])
    assert accepted(content.encode()) is not None
    assert accepted(content.replace('"seed": 0', '"seed": 0, "seed": 0').encode()) is None
    assert accepted(content.replace('"seed": 0', '"seed": 0, "note": NaN').encode()) is None


@pytest.mark.nightly
def test_changed_settings_of_rap_are_refused_or_split_what_is_charged(
    tmp_path_factory, record_property
):
    folder = tmp_path_factory.mktemp("rap")
    plan_town(folder, MIXED_SPEC)
    rehearse(folder / "dpquery.plan")
    plan, draw, tried = unhashed((folder / "dpquery.plan").read_text()), chance(5), 0
    for _ in range(50):
        mechanism = accepted(mutated(plan, draw, below=("relaxed",)), mechanism="rap")
        tried += 1
        if mechanism is None:
            continue
        split = mechanism.query.rounds
        rounds = split.settings.rounds * (split.selection_rho + split.measurement_rho)
        assert split.total_rho + rounds <= split.guarantee.amount
        assert min(split.selection_rho, split.measurement_rho, split.total_rho) >= 0
    record_property("bad inputs", tried)


RELEASE = ("release", "data.csv", "--epsilon", "1")


def test_refused_plans_leave_ledger_and_folder_as_they_are(town, plans, record_property):
    draw, tried = chance(6), 0
    for _ in range(12):
        other = mutated(plans["marginals"], draw, below=("selections", 0, "strategy"))
        if accepted(other) is None:
            Path("dpquery.plan").write_bytes(json.dumps(other).encode("utf-8", "replace"))
            assert "plan" in refused(*RELEASE, code=2)
            assert kinds() == ["register"]
            tried += 1
    assert tried > 0
    record_property("bad inputs", tried)


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("unit: row", "unit: {person: name, max_rows: 1}"),
        ("neighbours: add-remove", "neighbours: replace"),
    ],
)
def test_a_plan_for_another_unit_than_the_ledger_s_is_refused(town, given, instead):
    plan = unhashed(Path("dpquery.plan").read_text())
    assert given in plan["spec"]["text"]
    plan["spec"]["text"] = plan["spec"]["text"].replace(given, instead)
    Path("dpquery.plan").write_text(json.dumps(plan))
    Path("data.csv").write_bytes(b"age,sex,region,income,name\n1,F,1,5,a\n")
    refused(*RELEASE, code=5)
    assert kinds() == ["register"]


def test_words_of_a_plan_never_reach_the_terminal_as_commands(town):
    plan = unhashed(Path("dpquery.plan").read_text())
    selection = plan["selections"][0]
    for line in selection["candidates"]:
        if line["name"] == selection["best"]:
            line["name"] = "\x1b[2J\x9b31m\u202egood [red]"
    selection["best"] = "\x1b[2J\x9b31m\u202egood [red]"
    Path("dpquery.plan").write_text(json.dumps(plan))
    done = [
        run(*RELEASE),
        run(*RELEASE, "--json"),
        run("error-report"),
        run("error-report", "--json"),
    ]
    for ended in done:
        assert ended.code == 0
        assert not set(ended.out + ended.err) & set("\x1b\x9b\u202e")
    assert json.loads(done[1].out)["strategy"] == plan["selections"][0]["best"]
    plan["spec"]["name"] = "\x1b[2J"
    plan["spec"]["text"] = "dataset: ["
    Path("dpquery.plan").write_text(json.dumps(plan))
    assert "\x1b" not in refused(*RELEASE, code=2)


def wide_spec(domain, workload):
    return (
        "dataset: {id: town}\nprivacy: {unit: row}\nbudget: {epsilon: 4}\n"
        f"other: drop\ndomain:\n{domain}workload:\n{workload}"
    )


CODES = 1 << 20
LONG = wide_spec(f"  x: {{range: [0, {CODES - 1}]}}\n", "  - {name: upto, product: {x: prefix}}\n")
ONE_CLASS = wide_spec(
    "".join(f"  a{i}: {{values: [x]}}\n" for i in range(60)) + "  b: boolean\n",
    "  - {name: one, product: {b: identity}}\n",
)
PAIR = wide_spec(
    "  x: {range: [0, 1023]}\n  y: {range: [0, 1023]}\n",
    "  - {name: both, product: {x: identity, y: identity}}\n",
)


def ones():
    return base64.b64encode(zlib.compress(b"\1\0\0\0\0\1\0\0" * CODES)).decode()


def nothing():
    return base64.b64encode(zlib.compress(bytes(8 * 9000**2), 1)).decode()


FINE = {"name": "hostile", "shape": "product"}
BOMBS = {
    "a hierarchy of huge weights": (
        LONG,
        FINE
        | {"factors": [{"kind": "hierarchy", "n": CODES, "levels": [[1, 2**40], [2, 2**40 - 1]]}]},
    ),
    "a p-identity of huge entries": (
        LONG,
        FINE
        | {
            "factors": [
                {
                    "kind": "p-identity",
                    "diagonal": {"shape": [1, CODES], "data": ones},
                    "rows": {"shape": [1, CODES], "data": ones},
                }
            ]
        },
    ),
    "marginals of sixty attributes": (
        ONE_CLASS,
        {"name": "m", "shape": "marginals", "weights": [[list(range(61)), 1]], "factors": []},
    ),
    "cores of sixty attributes": (
        ONE_CLASS,
        {
            "name": "r",
            "shape": "residual",
            "cores": [*[None] * 60, {"kind": "centered", "n": 2}],
            "weights": [[[], 1], [[60], 1], [list(range(60)), 1]],
        },
    ),
    "a shape that is no longer read": (
        PAIR,
        {"name": "q", "shape": "quad-tree", "pair": [0, 1], "levels": [[1, 1, 1]] * 100_000},
    ),
    "matrices that are not there": (
        PAIR,
        FINE
        | {
            "factors": [
                {"kind": "dense", "matrix": {"shape": [2**30, 1024], "data": "eJwDAAAAAAE="}}
            ]
            * 2
        },
    ),
    "a matrix of nothing": (
        wide_spec("  x: {range: [0, 8999]}\n", "  - {name: n, product: {x: identity}}\n"),
        FINE | {"factors": [{"kind": "dense", "matrix": {"shape": [9000, 9000], "data": nothing}}]},
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("bomb", slow_but(BOMBS, "marginals of sixty attributes"))
def test_a_plan_that_asks_for_the_unreasonable_is_refused_in_bounds(town, plans, bomb):
    spec, strategy = BOMBS[bomb]
    plan = put(plans["laplace"], ("spec", "text"), spec)
    plan = put(plan, ("selections", 0, "strategy"), strategy)
    (item,) = parse(spec, name="spec", files={}).items
    figures = [{"name": item.name, "queries": item.size, "rmse": 1.0, "max_std_error": 1.0}]
    plan = put(plan, ("selections", 0, "items"), figures)
    Path("dpquery.plan").write_text(json.dumps(plan, default=lambda data: data()))
    done = limited(*RELEASE)
    assert (done.code, done.out) == (2, ""), done
    assert "plan" in done.err
    assert kinds() == ["register"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "content",
    [b"[[]," * (1 << 24), pytest.param(b"[" + b"0," * (1 << 25) + b"0]", marks=pytest.mark.slow)],
    ids=["lists", "numbers"],
)
def test_more_values_than_can_be_held_are_never_read(town, content):
    Path("dpquery.plan").write_bytes(content)
    done = limited(*RELEASE)
    assert (done.code, done.out) == (2, "")
    assert "not a plan file" in done.err


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_plan_that_is_no_file_is_refused_at_once(town, kind):
    replace_by(Path("dpquery.plan"), kind)
    said = run(*RELEASE)
    assert said.code == 2
    assert "dpquery.plan cannot be read" in said.err


# Whatever is typed after a command: exit 2 or another documented code, and no file is lost.

NUMBERS = (
    "nan", "-1", "0x1", "1e400", "1e-400", "", "٣", "1/3", "--", "true", "9" * 5000, "1e7",
    "\x1b[2J", "-inf", "1,5", "1e",
)  # fmt: skip
TYPED, PLANNED = ("release", "data.csv"), ("plan", "workload.yaml", "--time-limit", "0")
ANSWERED = ("answer", "release", "more.yaml")
WRONG = {
    (*TYPED, "--epsilon"): NUMBERS,
    (*PLANNED, "--epsilon"): NUMBERS,
    (*TYPED, "--epsilon", "1", "--delta"): NUMBERS,
    (*PLANNED, "--delta"): NUMBERS,
    (*PLANNED, "--sweep"): (*(number for number in NUMBERS if number != "1,5"), "1,", "1;2"),
    (*PLANNED, "--seed"): (*NUMBERS, str(2**41), str(10**30)),
    (*PLANNED, "--jobs"): (*NUMBERS, "0", "3", str(10**9)),
    ("plan", "workload.yaml", "--time-limit"): tuple(
        x for x in NUMBERS if x[:2] not in ("1e", "99")
    ),
    (*PLANNED, "--objective"): NUMBERS,
    (*PLANNED, "--mechanism"): NUMBERS,
    (*PLANNED, "--target"): (*NUMBERS, "*: sd <= ٣", "*: sd <= -1", "*: sd <= 1e999"),
    (*TYPED, "--epsilon", "1", "--release-number"): (*NUMBERS, "0", str(10**30)),
    (*TYPED, "--epsilon", "1", "--confidence"): NUMBERS,
    (*TYPED, "--epsilon", "1", "--noise"): NUMBERS,
    (*TYPED, "--epsilon", "1", "--mechanism"): NUMBERS,
    (*TYPED, "--epsilon", "1", "--also"): (*NUMBERS, "thresholded:nan", "thresholded:-1", "x:1"),
    (*ANSWERED, "--confidence"): NUMBERS,
    (*ANSWERED, "--also"): NUMBERS,
    ("synthetic", "release", "--rows"): (*NUMBERS, "0", str(10**30)),
    ("synthetic", "release", "--seed"): NUMBERS,
}


@pytest.fixture
def full_town(town):
    ok("release", "data.csv", "--epsilon", "1")
    Path("more.yaml").write_text("workload:\n  - {name: q, product: {age: identity}}\n")
    return town


@pytest.mark.nightly
def test_wild_numbers_and_words_are_refused_and_nothing_is_charged(full_town, record_property):
    tried, before, wrong = 0, contents("."), []
    for command, values in WRONG.items():
        for value in values:
            done = run(*command, value)
            if (done.code, done.out) != (2, "") or "Traceback" in done.err or "\x1b" in done.err:
                wrong.append((command, value, done))
            tried += 1
    assert wrong == []
    assert {k: v for k, v in contents(".").items() if not k.startswith("state/")} == {
        k: v for k, v in before.items() if not k.startswith("state/")
    }
    record_property("bad inputs", tried)


def test_a_link_to_a_plan_is_written_through(full_town):
    Path("kept.plan").write_bytes(Path("dpquery.plan").read_bytes())
    Path("link.plan").symlink_to("kept.plan")
    ok(*PLANNED, "--seed", "5", "--out", "link.plan")
    assert Path("link.plan").is_symlink()
    assert json.loads(Path("kept.plan").read_text())["seed"] == 5
