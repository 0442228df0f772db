"""What is printed of errors is so: of answers, of quotients, of totals; no sound plan is lost."""

import numpy as np
import pytest
from specs import unhashed
from town import planned, released, spec_text

import dpquery


def left_out(folder):
    plan = unhashed((folder / "p").read_text())
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
        intervals = np.concatenate(held)  # some 40 of them: by the law at most one run in 30,000
        spread = np.sqrt(0.95 * 0.05 / len(intervals))
        assert intervals.mean() >= 0.95 - 4 * spread, name


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
    planned(tmp_path, spec, mechanism=mechanism, epsilon=20, time_limit=60)
    tables = released(tmp_path, tmp_path / "d.csv", epsilon=20, mechanism=mechanism)
    assert tables["all"]["estimate"][0] == pytest.approx(truth.sum(), abs=25)
    estimates, errors = ("unbiased", "unbiased_std_error")
    if mechanism != "adaptive":
        estimates, errors = ("estimate", "std_error")
    if mechanism != "rap":
        off = (tables["by_a"][estimates] - truth) / tables["by_a"][errors]
        assert np.abs(off).max() < 6


def people(domain, items, more=""):
    """Return a spec with a delta of which no item asks for the total."""
    text = spec_text(domain, items, more=more)
    return text.replace("unit: row", "unit: row, delta: 1e-6").replace("0}", "0, delta: 1e-6}", 1)


def total_of_last_release(folder, name):
    """Return the answer to the total, asked later of the last release."""
    (folder / "q.yaml").write_text("workload: [{name: t, product: {}}]\n")
    last = max(folder.glob("release*"), key=lambda path: int(path.name.removeprefix("release")))
    total = dpquery.answer(last, folder / "q.yaml", out=folder / name).table("t")
    return total["estimate"][0], total["std_error"][0]


def test_shares_and_the_total_hold_where_no_item_counts_undeclared_values(tmp_path):
    domain = {
        "sex": "{values: [F, M]}",
        "region": "{values: [N, S, W, E]}",
        "hours": "{range: [0, 5]}",
        "income": "{bins: [0, 10, 20, 40, 80, 160]}",
    }
    items = [
        "{name: people, product: {sex: identity, region: identity}}",
        "{name: by_region, product: {region: identity}}",
        "{name: hours, sum: {of: hours, by: {sex: identity, region: identity}}}",
        "{name: worked, product: {sex: identity, hours: prefix}}",
        "{name: incomes, product: {region: identity, income: identity}}",
    ]
    shares = "derived: [{name: shares, share: {of: people}}]"
    chance = np.random.default_rng(1)
    codes = (chance.integers(0, n, 6000) for n in (2, 4, 6, 160))
    lines = (f"{'FM'[s]},{'NSWE'[r]},{h},{x}\n" for s, r, h, x in zip(*codes, strict=True))
    (tmp_path / "d.csv").write_text("sex,region,hours,income\n" + "".join(lines))
    planned(tmp_path, people(domain, items, shares), time_limit=0.2, epsilon=0.5)
    for noise in ("gaussian", "laplace"):
        tables = released(tmp_path, tmp_path / "d.csv", epsilon=0.5, noise=noise)
        assert tables["shares"]["estimate"].notna().all(), noise
        total, error = total_of_last_release(tmp_path, noise)
        assert error < 60
        assert abs(total - 6000) < 6 * error


@pytest.mark.parametrize("seed", range(4))
def test_no_total_errs_far_more_than_the_worst_answer_and_no_answer_pays_for_it(tmp_path, seed):
    chance = np.random.default_rng(seed)
    names = ["a", "b", "c"]
    domain = {name: f"{{range: [0, {chance.integers(1, 6)}]}}" for name in names}
    pairs = [("a", "b"), ("b", "c"), ("a", "c")]
    forms = chance.choice(["identity", "prefix"], (3, 2))
    items = [
        f"{{name: i{k}, product: {{{p}: {f}, {q}: {g}}}}}"
        for k, ((p, q), (f, g)) in enumerate(zip(pairs, forms, strict=True))
    ]
    planned(tmp_path, people(domain, items), time_limit=1, search_both=True)
    (tmp_path / "d.csv").write_text("a,b,c\n" + "0,0,0\n" * 50)
    plan = unhashed((tmp_path / "p").read_text())
    for selection in plan["selections"]:
        noise = selection["noise"]
        tables = released(tmp_path, tmp_path / "d.csv", epsilon=1, noise=noise)
        _, error = total_of_last_release(tmp_path, noise)
        worst = max(tables[f"i{k}"]["std_error"].max() for k in range(3))
        assert error < 8 * worst, noise
        best = next(one for one in selection["candidates"] if one["name"] == selection["best"])
        assert noise == "laplace" or best["rmse"] < 1.011 * selection["bound"]
