"""Between linear strategies and RAP: a plan rehearses on public data only, and says what it saw."""

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import pytest
from cli_support import kinds, refused

from dpquery.strategy.plan_file import read_plan, write_plan
from dpquery.strategy.planned_rap import PlannedRap
from dpquery.strategy.rap import RapSettings

REHEARSED = PlannedRap(
    settings=RapSettings(rounds=2, selected=3, relaxed_rows=50, seed=0),
    epsilon=Fraction(1, 10),
    delta=Fraction(1, 10**9),
    proxy="the default prior",
    repetitions=3,
    rmse=4.5,
    rmse_spread=0.25,
    max_error=17.0,
    max_error_spread=2.0,
    linear_rmse=11.0,
    linear_max_error=60.5,
    preferred=True,
)


# The plan file.


def test_a_plan_with_a_rehearsal_is_read_as_it_was_written(town):
    plain = read_plan(Path("dpquery.plan").read_bytes())
    assert plain.relaxed is None
    assert b"relaxed" not in write_plan(plain)
    written = write_plan(dataclasses.replace(plain, relaxed=REHEARSED))
    assert read_plan(written).relaxed == REHEARSED
    assert write_plan(read_plan(written)) == written


HOSTILE = {
    "no mapping": None,
    "a list": [],
    "nothing": {},
    "an epsilon of nothing": {"epsilon": "0"},
    "an epsilon below zero": {"epsilon": "-1"},
    "an epsilon past all use": {"epsilon": "10000001"},
    "an epsilon over zero": {"epsilon": "1/0"},
    "an epsilon too long to read": {"epsilon": "1" * 1001},
    "an epsilon that is no text": {"epsilon": 1},
    "a delta of zero": {"delta": "0"},
    "a delta of one": {"delta": "1"},
    "no delta": {"delta": None},
    "no repetitions": {"repetitions": 0},
    "half a repetition": {"repetitions": 0.5},
    "an error below zero": {"rmse": -1.0},
    "an error without end": {"max_error": float("inf")},
    "an error that is no number": {"linear_rmse": float("nan")},
    "an error in words": {"linear_max_error": "10"},
    "a preference in words": {"preferred": "yes"},
    "a preference of one": {"preferred": 1},
    "half a character": {"proxy": "\ud800"},
    "no settings": {"settings": None},
    "settings of no rounds": {"settings": {"rounds": 0}},
    "endless settings": {
        "settings": {"rounds": 1000, "selected": 2**39, "relaxed_rows": 1, "seed": 0}
    },
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_rehearsal_is_refused_before_anything_is_charged(town, hostile):
    plan = read_plan(Path("dpquery.plan").read_bytes())
    raw = json.loads(write_plan(dataclasses.replace(plan, relaxed=REHEARSED)))
    own = HOSTILE[hostile]
    raw["relaxed"] = raw["relaxed"] | own if own else own
    Path("dpquery.plan").write_text(json.dumps(raw))
    assert "plan" in refused("release", "data.csv", "--epsilon", "1", code=2)
    assert kinds() == ["register"]
