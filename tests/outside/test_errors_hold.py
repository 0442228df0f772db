"""What is printed of errors is so: of answers, of quotients, of totals; no sound plan is lost."""

import json

import numpy as np
from outside_support import planned, released, spec_text


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


def test_shares_and_means_that_are_printed_hold_their_level_at_low_signal(tmp_path):
    """Groups have up to 5 records each, and noise of about their size."""
    chance = np.random.default_rng(5)
    records = chance.integers(0, 6, 40)
    women = chance.binomial(records, 0.3)
    lines = [
        f"{'F' if k < of_sex else 'M'},{group},{k}\n"
        for group, (n, of_sex) in enumerate(zip(records, women, strict=True))
        for k in range(n)
    ]
    (tmp_path / "d.csv").write_text("sex,group,k\n" + "".join(lines))
    domain = {"sex": "{values: [F, M]}", "group": "{range: [0, 39]}", "k": "{range: [0, 5]}"}
    items = [
        "{name: people, product: {sex: identity, group: identity}}",
        "{name: total_k, sum: {of: k, by: {group: identity}}}",
        "{name: groups, product: {group: identity}}",
    ]
    derived = (
        "\nother: drop\nderived:\n"
        "  - {name: shares, share: {of: people, within: [group]}}\n"
        "  - {name: means, mean: {sum: total_k, count: groups}}\n"
        "  - {name: ratios, ratio: {of: total_k, to: groups}}"
    )
    planned(tmp_path, spec_text(domain, items, more=derived))
    with np.errstate(all="ignore"):
        shares = np.concatenate([women / records, 1 - women / records])
        means = records * (records - 1) / 2 / records
    printed = {"shares": [], "means": [], "ratios": []}
    for epsilon in (0.3, 0.7, 1.5) * 3:
        tables = released(tmp_path, tmp_path / "d.csv", epsilon=epsilon)
        for name, truth in {"shares": shares, "means": means, "ratios": means}.items():
            table = tables[name]
            low, high = (table[end].to_numpy(float) for end in ("ci_low", "ci_high"))
            held = (low <= truth + 1e-9) & (truth - 1e-9 <= high)
            printed[name].append(held[~np.isnan(low) & ~np.isnan(truth)])
    for name, held in printed.items():
        assert np.concatenate(held).mean() >= 0.945, name
