"""A plan is input from outside: whatever it holds, it is refused before anything is charged."""

import base64
import json
import os
import pickle
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from specs import unhashed, with_true_figures
from town import kinds, ok, refused

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


def test_a_plan_cut_short_is_refused(town):
    whole = Path("dpquery.plan").read_bytes()
    Path("dpquery.plan").write_bytes(whole[:-100])
    assert "plan" in refused(*RELEASE, code=2)


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
