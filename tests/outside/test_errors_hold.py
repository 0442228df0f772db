"""What is printed of errors is so: of answers, of quotients, of totals; no sound plan is lost."""

import json

import numpy as np
import pytest
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


def records_of_which_some_are_dropped(folder, records, chance):
    """Write records of which about a fifth hold an undeclared value; return the counts by `a`."""
    a, kept = chance.integers(0, 3, records), chance.random(records) > 0.2
    lines = [f"{code},{'x' if inside else '?'}\n" for code, inside in zip(a, kept, strict=True)]
    (folder / "d.csv").write_text("a,b\n" + "".join(lines))
    return np.bincount(a[kept], minlength=3)


@pytest.mark.parametrize("mechanism", ["adaptive", "linear", "rap"])
def test_declared_rows_are_not_taken_for_those_inside_the_domain(tmp_path, mechanism):
    """Under `drop` a replaced record may leave the domain: how many are inside is not public."""
    truth = records_of_which_some_are_dropped(tmp_path, 900, np.random.default_rng(2))
    spec = (
        "dataset: {id: d, rows: 900}\n"
        "privacy: {unit: row, neighbours: replace, delta: 1e-6}\n"
        "budget: {epsilon: 1000, delta: 1e-6, accounting: zcdp}\n"
        "domain:\n"
        "  a: {range: [0, 2]}\n"
        "  b: {values: [x, y], other: drop}\n"
        "workload:\n"
        "  - {name: all, product: {}}\n"
        "  - {name: by_a, product: {a: identity}}\n"
        "  - {name: both, product: {a: identity, b: identity}}\n"
    )
    planned(tmp_path, spec, mechanism=mechanism, epsilon=20)
    tables = released(tmp_path, tmp_path / "d.csv", epsilon=20, mechanism=mechanism)
    assert tables["all"]["estimate"][0] == pytest.approx(truth.sum(), abs=25)
    estimates, errors = ("unbiased", "unbiased_std_error")
    if mechanism != "adaptive":
        estimates, errors = ("estimate", "std_error")
    if mechanism != "rap":
        off = (tables["by_a"][estimates] - truth) / tables["by_a"][errors]
        assert np.abs(off).max() < 6
