"""What is printed of errors is so: of answers, of quotients, of totals; no sound plan is lost."""

import json

from outside_support import planned, spec_text


def left_out(folder):
    plan = json.loads((folder / "p").read_text())
    return [
        (candidate["name"], candidate["reason"])
        for selection in plan["selections"]
        for candidate in selection["candidates"]
        if candidate["reason"] and "standard errors" in candidate["reason"]
    ]


def test_no_strategy_of_many_items_is_lost_to_a_false_alarm(tmp_path):
    items = [f"{{name: q{k}, product: {{x: {{is: {k}}}}}}}" for k in range(100)]
    spec = spec_text({"x": "{range: [0, 99]}"}, items, more="other: drop")
    planned(tmp_path, spec)
    assert left_out(tmp_path) == []
