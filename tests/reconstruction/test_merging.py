"""Rows that are added up until they are precise enough: which, and what is said of the sums."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from town import ok, refused

from dpquery import Release
from dpquery.reconstruction.merging import merging_of
from dpquery.spec.columns import Attribute, Categorical, Column, HierarchyLevel, Integers
from dpquery.spec.parsing.read import parse
from dpquery.spec.predicates import IdentitySet
from dpquery.spec.spec import MergedRows, Table


def attribute_of(kind, other="count"):
    return Attribute("a", (Column("a", kind, other),))


def merged(attribute, sizes, covariance, rel_error):
    table = Table(((0, IdentitySet.of(attribute)),))
    statistic = MergedRows(table, 0, rel_error, tuple(map(float, sizes)))
    merging = merging_of(statistic, [covariance], attribute)
    assert sorted(np.concatenate(merging.of)) == list(range(len(sizes))), "each row once"
    return [tuple(rows.tolist()) for rows in merging.of], merging


def covariance_of(chance, n):
    root = chance.normal(size=(n, n + 1))
    return root @ root.T


def relative(rows, sizes, covariance):
    rows = list(rows)
    total = float(np.asarray(sizes)[rows].sum())
    std = math.sqrt(covariance[np.ix_(rows, rows)].sum())
    return std / total if total > 0 else math.inf


def runs_of(n):
    """Every way to cut 0..n-1 into runs."""
    for cuts in itertools.product([False, True], repeat=n - 1):
        ends = [0, *(k + 1 for k, cut in enumerate(cuts) if cut), n]
        yield [tuple(range(a, b)) for a, b in itertools.pairwise(ends)]


def cost_of(way, sizes, covariance, rel_error):
    """What a way to cut rows is judged by: the least is taken."""
    errors = {codes: relative(codes, sizes, covariance) for codes in way}
    missed = [codes for codes in way if errors[codes] > rel_error]
    left = round(sum(max(0.0, float(sizes[list(codes)].sum())) for codes in missed), 6)
    uneven = sum(error**2 for codes, error in errors.items() if codes not in missed)
    return len(missed) - len(way), left, len(missed), round(uneven, 9)


def best_of(ways, *target):
    """Of ways that bring all sums to the target the best, else the best of all."""
    costs = [cost_of(way, *target) for way in ways]
    return min([cost for cost in costs if not cost[2]], default=min(costs))


@pytest.mark.nightly(daily=r"\[\d\]")
@pytest.mark.parametrize("seed", range(40))
def test_neighbours_are_cut_into_as_many_rows_as_reach_the_target(seed):
    """Of all 128 ways to cut eight rows; where none has all at the target, as few are left."""
    chance, n = np.random.default_rng(seed), 8
    sizes = chance.uniform(0, 9, n) * (chance.random(n) < chance.choice([0.3, 0.8]))
    sizes -= chance.uniform(0, 4, n) * (seed % 4 > 1)  # noisy ones may be below 0
    covariance = covariance_of(chance, n) if seed % 2 else np.eye(n)
    rel_error = chance.choice([0.1, 0.2, 0.3, 0.6, 1.0, 3.0])
    rows, merging = merged(attribute_of(Integers(0, n - 1)), sizes, covariance, rel_error)
    target = (sizes, covariance, rel_error)
    assert cost_of(rows, *target) == pytest.approx(best_of(runs_of(n), *target))
    assert merging.missed.sum() == cost_of(rows, *target)[2]


def test_years_too_few_to_be_told_do_not_take_the_others_along():
    """All ten together miss 10 %; eight of them reach it, and the other two are one row."""
    sizes = np.array([0, 1, *[46] * 8])
    rows, merging = merged(attribute_of(Integers(0, 9)), sizes, 169 * np.eye(10), 0.1)
    assert relative(range(10), sizes, 169 * np.eye(10)) > 0.1
    assert rows == [(0, 1), tuple(range(2, 10))]
    assert merging.missed.tolist() == [True, False]


LEVELS = (
    HierarchyLevel("state", ("A", "B"), ("Aa", "Bb"), (0, 0, 0, 0, 1, 1)),
    HierarchyLevel("county", ("1", "2", "3"), ("c1", "c2", "c3"), (0, 0, 1, 1, 2, 2)),
    HierarchyLevel("tract", tuple("abcdef"), tuple("abcdef"), tuple(range(6))),
)


@pytest.mark.parametrize(
    ("sizes", "rows", "labels"),
    [
        ([9, 9, 9, 9, 9, 9], [(0,), (1,), (2,), (3,), (4,), (5,)], list("abcdef")),
        ([4, 4, 4, 3, 4, 4], [(0,), (1,), (2, 3), (4,), (5,)], ["a", "b", "c2", "e", "f"]),
        ([9, 9, 9, 1, 9, 9], [(0,), (1,), (2, 3), (4,), (5,)], ["a", "b", "c2", "e", "f"]),
        ([9, 9, 1, 1, 9, 9], [(0, 2, 3), (1,), (4,), (5,)], ["other of Aa", "b", "e", "f"]),
        ([9, 8, 9, 9, 1, 1], [(0,), (1, 4, 5), (2,), (3,)], ["a", "other listed", "c", "d"]),
        ([4, 1, 3, 3, 9, 4], [(0, 1), (2, 3), (4,), (5,)], ["c1", "c2", "e", "f"]),
        ([9, 9, 9, 1, 9, 5], [(0,), (1,), (2, 3), (4,), (5,)], ["a", "b", "c2", "e", "f"]),
        ([9, 2, 9, 3, 9, 9], [(0,), (1, 3), (2,), (4,), (5,)], ["a", "other of Aa", *"cef"]),
        ([0, 0, 0, 0, 0, 0], [(0, 1, 2, 3, 4, 5)], ["all listed"]),
        ([1, 1, 0, 0, 3, 2], [(0, 1, 2, 3), (4, 5)], ["Aa", "c3"]),
    ],
)
def test_small_siblings_are_one_row_in_the_lowest_group_where_they_reach_the_target(
    sizes, rows, labels
):
    """Independent rows of variance 1: alone they reach 0.3 from a size of 4 on, pairs from 5."""
    attribute = attribute_of(Categorical(tuple("abcdef"), tuple("abcdef"), (), LEVELS))
    made, merging = merged(attribute, sizes, np.eye(6), 0.3)
    assert made == rows
    assert [dict(merging.rows.axes)[0].groups[place][0] for place in merging.places] == labels


def ways_of(levels):
    """Every way: a value by itself, or with the others of the lowest chosen group it lies in."""
    n = len(levels[-1].codes)
    groups = {each for level in levels[:-1] for each in level.members}
    for alone in itertools.product([False, True], repeat=n):
        for chosen in itertools.product([False, True], repeat=len(groups)):
            kept = [g for g, is_chosen in zip(groups, chosen, strict=True) if is_chosen]
            rows = {}
            for k in range(n):
                within = [g for g in (*kept, tuple(range(n))) if k in g]
                rows.setdefault((k,) if alone[k] else min(within, key=len), []).append(k)
            yield tuple(sorted(map(tuple, rows.values())))


def best_of_hierarchy(ways, sizes, covariance, rel_error):
    """Of ways whose single values reach the target: most rows, then fewest records in others."""

    def cost(way):
        missed = [codes for codes in way if relative(codes, *target[:2]) > rel_error]
        records = sum(sizes[list(codes)].sum() for codes in missed)
        return len(missed) - len(way), records, len(missed)

    target = sizes, covariance, rel_error
    told = {k for k in range(len(sizes)) if relative((k,), sizes, covariance) <= rel_error}
    costs = [cost(way) for way in ways if all(len(c) > 1 or c[0] in told for c in way)]
    return cost, min([each for each in costs if not each[2]], default=min(costs))


def hierarchical(seed, n):
    chance = np.random.default_rng(seed)
    sizes = np.floor(chance.uniform(0, 9, n) * (chance.random(n) < chance.choice([0.4, 0.8])))
    return sizes, np.eye(n), chance.choice([0.1, 0.2, 0.3, 0.6])


@pytest.mark.parametrize("correlated", [False, True])
def test_of_one_group_as_many_rows_as_can_be_are_printed(correlated):
    """Of all choices of who is alone in a group of eight."""
    levels = (HierarchyLevel("v", tuple("abcdefgh"), tuple("abcdefgh"), tuple(range(8))),)
    attribute = attribute_of(Categorical(tuple("abcdefgh"), tuple("abcdefgh"), (), levels))
    ways = set(ways_of(levels))
    for seed in range(100):
        sizes, covariance, rel_error = hierarchical(seed, 8)
        if correlated:
            covariance = covariance_of(np.random.default_rng(seed), 8)
        cost, best = best_of_hierarchy(ways, sizes, covariance, rel_error)
        assert cost(merged(attribute, sizes, covariance, rel_error)[0]) == best


@pytest.mark.parametrize("kind", ["hierarchy", "range"])
def test_noisy_sizes_below_zero_are_added_up_with_the_others(kind):
    """Three nines and three minus nines are nobody: without the latter they would be a row."""
    letters, sizes = tuple("abcdef"), np.array([9.0, -9.0] * 3)
    values = Categorical(letters, letters, (), LEVELS) if kind == "hierarchy" else Integers(0, 5)
    rows, merging = merged(attribute_of(values), sizes, np.eye(6), 0.1)
    assert (rows, merging.missed.all()) == ([tuple(range(6))], True)
    rows, merging = merged(attribute_of(values), np.maximum(sizes, 0), np.eye(6), 0.1)
    assert (rows, merging.missed.any()) == ([tuple(range(6))], False)


def test_rows_that_are_called_alike_add_up_the_same():
    """Of three groups of rows the first and the last have one rest, the second has another."""
    attribute = attribute_of(Categorical(tuple("abcdef"), tuple("abcdef"), (), LEVELS))
    table = Table(((0, IdentitySet.of(attribute)), (1, IdentitySet(3))))
    sizes = np.transpose([[9, 8, 9, 9, 1, 1], [8, 9, 9, 9, 1, 1], [9, 8, 9, 9, 1, 1]]).ravel()
    statistic = MergedRows(table, 0, 0.3, tuple(map(float, sizes)))
    merging = merging_of(statistic, [np.eye(6)] * 3, attribute)
    predicates = merging.rows.axes[0][1]
    rests = {1: (0, 4, 5), 2: (1, 4, 5)}
    for number, rest in rests.items():
        label = f"other listed, set {number} ({', '.join('abcdef'[k] for k in rest)})"
        added = [k for k, at in enumerate(merging.places) if predicates.groups[at // 3][0] == label]
        assert [tuple(merging.of[k] // 3) for k in added] == [rest] * number
        assert ("other", f"listed, set {number}") in predicates.named
    assert len({*predicates.named}) == len(predicates.named)


def test_of_three_levels_as_many_rows_as_can_be_are_printed():
    """Three in 200 leave a row that misses to few where it better had been an empty group."""
    attribute = attribute_of(Categorical(tuple("abcdef"), tuple("abcdef"), (), LEVELS))
    ways, fewer, more = set(ways_of(LEVELS)), 0, 0
    for seed in range(200):
        target = hierarchical(seed, 6)
        cost, best = best_of_hierarchy(ways, *target)
        reached = cost(merged(attribute, *target)[0])
        fewer += reached[:1] > best[:1]
        more += reached > best
    assert (fewer, more) == (0, 3)


def test_the_row_of_other_texts_is_nobodys_neighbour():
    attribute = attribute_of(Integers(0, 3), "show")
    rows, merging = merged(attribute, [1, 1, 1, 1, 0], np.eye(5), 0.4)
    assert rows == [(0, 1, 2, 3), (4,)]
    assert len(merging.rows.axes[0][1]) == 2


SPEC = """\
dataset: {id: town, version: 1, rows: about 2000}
privacy: {unit: row, delta: 1e-7}
budget: {epsilon: 90, delta: 1e-7}
domain:
  age: {range: [0, 29], other: show}
  sex: {values: [F, M]}
  area: {hierarchy: areas.csv, levels: [state, county, tract]}
workload:
  - {name: ages, product: {age: identity, sex: identity}}
  - {name: upto, product: {age: prefix, sex: identity}, weight: 9}
  - {name: bands, product: {age: {ranges: [[0, 9], [10, 29]]}, sex: identity+total}}
  - {name: areas, product: {area: identity}, where: {sex: M}}
derived:
  - {name: few, merged: {of: ages, over: age, rel_error: 0.2}}
  - {name: sized, merged: {of: ages, over: age, rel_error: 0.2, sizes: sizes.csv}}
  - {name: places, merged: {of: areas, over: area, rel_error: 1}}
"""


@pytest.fixture(params=["laplace", "gaussian"])
def noise(request, own_folder):
    Path("workload.yaml").write_text(SPEC)
    Path("areas.csv").write_text(
        "state,county,tract\n" + "".join(f"S{k // 16},C{k // 4},T{k}\n" for k in range(64))
    )
    lines = [
        f"{age},{sex},{300 / (age + 3):.2f}"
        for age in ["other", *range(30)]
        if age != "other"
        for sex in "FM"
    ] + ["other,F,1", "other,M,1"]
    Path("sizes.csv").write_text("\n".join(["age,sex,size", *lines]) + "\n")
    chance = np.random.default_rng(2)
    people = zip(
        chance.integers(0, 31, 2000),
        chance.choice(["F", "M"], 2000),
        chance.integers(0, 64, 2000),
        strict=True,
    )
    text = "".join(f"{age},{sex},T{area}\n" for age, sex, area in people)
    Path("data.csv").write_text("age,sex,area\n" + text)
    return request.param


EPSILON = {"laplace": "0.2", "gaussian": "0.3"}


def released(noise, out="release", epsilon="", data="data.csv"):
    epsilon = epsilon or EPSILON[noise]
    ok("plan", "workload.yaml", "--epsilon", epsilon, "--time-limit", "0")
    ok("release", data, "--epsilon", epsilon, "--noise", noise, "--out", out)
    return Release(out)


@pytest.mark.nightly(daily="gaussian")
def test_merged_rows_are_the_sums_that_their_labels_say_with_the_exact_error(noise):
    release = released(noise)
    table, ages = release.table("few"), release.table("ages")
    assert 4 <= len(table) < len(ages)
    position = {key: row for row, key in enumerate(zip(ages.age, ages.sex, strict=True))}
    assert table.rel_error.to_numpy() == pytest.approx(table.std_error / table.estimate.abs())
    for line in table.itertuples():
        span = range(int(line.age_from), int(line.age_to) + 1) if line.age != "other" else ["other"]
        rows = [position[str(age), line.sex] for age in span]
        assert len(rows) == line.cells
        assert line.estimate == pytest.approx(ages.estimate[rows].sum(), abs=1e-6)
        covariance = release.covariance([("ages", row) for row in rows])
        assert line.std_error == pytest.approx(math.sqrt(covariance.sum()))
        if line.age != "other":
            assert line.std_error <= 0.2 * 2000 / 60 * len(rows) * (1 + 1e-9)
    every = table.groupby("sex", observed=True)
    assert every.cells.sum().tolist() == [31, 31]
    assert every.estimate.sum().tolist() == pytest.approx(
        ages.groupby("sex", observed=True).estimate.sum().tolist()
    )
    asked = "workload:\n  - name: same\n    product: {sex: identity, age: {ranges: ["
    spans = sorted(
        {
            (int(a), int(b))
            for a, b in zip(table.age_from.dropna(), table.age_to.dropna(), strict=True)
        }
    )
    asked += ", ".join(f"[{a}, {b}]" for a, b in spans) + "]}}\n"
    Path("same.yaml").write_text(asked)
    ok("answer", "release", "same.yaml")
    answers = pd.read_parquet("answers/same.parquet")
    both = table[table.age != "other"].merge(answers, on=["age_from", "age_to", "sex"])
    assert len(both) == (table.age != "other").sum()
    for column in ("estimate", "std_error", "ci_low", "ci_high"):
        assert both[f"{column}_x"].to_numpy() == pytest.approx(both[f"{column}_y"].to_numpy())


@pytest.mark.nightly(daily="gaussian")
def test_larger_rows_to_expect_leave_more_apart_and_siblings_stay_in_their_group(noise):
    release = released(noise, epsilon={"laplace": "0.2", "gaussian": "0.5"}[noise])
    few, sized = release.table("few"), release.table("sized")
    young = sized[(sized.age_to < 5) & (sized.sex == "F")]
    assert len(young) > ((few.age_to < 5) & (few.sex == "F")).sum()
    assert (sized[sized.age != "other"].groupby("sex", observed=True).cells.sum() == 30).all()
    places = release.table("places")
    assert places.cells.sum() == 64
    of_county = {1: "tract", 4: "county", 16: "state"}
    assert set(places.area_level) <= set(of_county.values())
    assert [of_county[cells] for cells in places.cells] == places.area_level.tolist()


NEXT = """\
domain:
  age: {hierarchy: women.csv, levels: [merged, age], other: show}
  sex: {values: [F, M]}
  area: {hierarchy: release/places.map.csv, levels: [[merged, tract], [state, tract]]}
workload:
  - {name: women, product: {age: merged}, where: {sex: F}}
  - {name: areas, product: {area: [merged, state]}, where: {sex: M}}
"""


@pytest.mark.nightly(daily="gaussian")
def test_the_next_spec_takes_the_map_and_asks_for_the_merged_rows(noise):
    sizes = pd.read_csv("sizes.csv")
    sizes["size"] *= np.where(sizes.sex == "F", 4, 1)
    sizes.to_csv("sizes.csv", index=False)
    release = released(noise)
    mapped, table = pd.read_csv("release/sized.map.csv"), release.table("sized")
    joined = mapped.merge(table, on=["merged", "sex"], suffixes=("", "_of_row"))
    assert len(joined) == len(mapped) == 60
    assert joined.age.between(joined.age_from, joined.age_to).all()
    mapped[mapped.sex == "F"].to_csv("women.csv", index=False)
    head = SPEC[: SPEC.index("domain:")].replace("version: 1", "version: 2")
    Path("next.yaml").write_text(head + NEXT)
    ok("plan", "next.yaml", "--epsilon", "30", "--out", "next.plan", "--time-limit", "0")
    ok("release", "data.csv", "--plan", "next.plan", "--epsilon", "30", "--out", "next")
    again, sized, truth = Release("next"), table, pd.read_csv("data.csv")
    women = again.table("women")
    before = sized[(sized.sex == "F") & (sized.age != "other")]
    assert women.age.tolist() == [age.replace(" to ", "-") for age in before.age]
    for line, old in zip(women.itertuples(), before.itertuples(), strict=True):
        inside = truth.age.between(old.age_from, old.age_to) & (truth.sex == "F")
        assert line.estimate == pytest.approx(inside.sum(), abs=9)
    areas, places = again.table("areas"), release.table("places")
    level = areas[areas.area_level == "merged"]
    assert level.area.tolist() == places.area.tolist()
    assert level.area_code.tolist() == places.merged.tolist()
    of_places = pd.read_csv("release/places.map.csv").groupby("merged").size()
    assert (places.set_index("merged").cells == of_places).all()


@pytest.mark.nightly(daily="laplace")
def test_neither_the_data_nor_the_noise_decide_which_rows_are_merged(noise, monkeypatch):
    tables = []
    for name, text in (("a", Path("data.csv").read_text()), ("b", "age,sex,area\n")):
        Path(f"{name}.csv").write_text(text)
        monkeypatch.setenv("DPQUERY_LEDGER", f"{name}.db")
        table = released(noise, name, data=f"{name}.csv").table("few")
        tables.append(table.drop(columns=["estimate", "ci_low", "ci_high", "rel_error", "flag"]))
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.nightly(daily="gaussian")
def test_plan_report_package_and_replicates_have_them(noise):
    seen = ok("plan", "workload.yaml", "--epsilon", "0.3", "--time-limit", "0").out
    assert "rows by merging (--why), if as large as expected" in seen
    why = ok("plan", "workload.yaml", "--epsilon", "0.3", "--time-limit", "0", "--why").out
    assert re.search(r"few adds up [0-9]+-[0-9]+, [FM] \([0-9]+\); .*in few.map.csv of the", why)
    told = "were of one size, so that small ones stay too noisy: few, places (and as if values of "
    told += "a `where` were as frequent as others: places); add `sizes: FILE`"
    for words in (seen, why, ok("lint", "workload.yaml").out):
        assert " ".join(words.split()).count(told) == 1, "no file says how large their rows are"
    sizes = pd.read_csv("sizes.csv")
    for times in (3, 1):
        sizes.assign(size=times * sizes["size"]).to_csv("sizes.csv", index=False)
        told = f"sized: its `sizes` add up to {times * sizes['size'].sum():,.0f}, and the spec says"
        assert (told in ok("lint", "workload.yaml").out) is (times == 3)
    release = released(noise)
    rows = len(release.table("few"))
    manifest = json.loads(Path("release/release.json").read_text())
    facts = {each["name"]: each for each in manifest["derived"]}
    assert facts["few"]["rows"] == rows
    assert facts["few"]["definition"] == (
        "ages, added up over age up to a relative error of 0.2, as if all rows but those of "
        "`other` were of one size"
    )
    assert facts["sized"]["definition"].endswith(", by sizes.csv")
    cells = release.table("few").cells
    assert facts["few"]["merged"] == pytest.approx(cells[cells > 1].sum() / 62)
    said = f"{100 * facts['few']['merged']:.0f} % of the rows of the item are in sums, as few.map"
    few = release.table("few")
    missed = (few.std_error > 0.2 * few.estimate).mean()
    assert facts["few"]["missed"] == pytest.approx(missed)
    assert missed > 0
    lines = [line for line in ok("error-report").out.splitlines() if "less precise than" in line]
    for name in (name for name in facts if facts[name]["missed"]):
        (line,) = [line for line in lines if f" % of the rows of {name}" in line]
        assert ("nothing is left to add" in line) is facts[name].get("no_more", False), name
    assert len(lines) <= 2
    assert said in Path("report.html").read_text()
    assert said in Path("release/statement.md").read_text()
    ok("package", "--also", "csv")
    assert len(pd.read_csv("package/few.csv")) == rows
    book = Path("package/codebook.md").read_text()
    assert "How many rows of the item are added up in this one" in book
    assert book.count("of values added up `other of` its level") == 1  # of places
    assert said in book
    assert "`few.map.csv` |  | Which values the rows of `few` add up: join on `merged`" in book
    assert Path("package/few.map.csv").read_bytes() == Path("release/few.map.csv").read_bytes()
    ok("replicates", "--items", "few", "--draws", "400")
    drawn = pd.read_parquet("replicates/few.parquet").filter(like="noise_")
    ratio = np.sqrt((drawn**2).mean(axis=1)) / release.table("few").std_error
    assert ratio.to_numpy() == pytest.approx(1, abs=0.3)
    said = refused("plan", "workload.yaml", "--target", "few: sd <= 9", code=2)
    assert "set a target on 'ages'" in said


@pytest.mark.nightly(daily="gaussian")
def test_the_page_draws_no_line_of_sums_and_says_what_sets_hold(noise):
    """Of ages alone a line would be drawn; women live in other tracts than men do."""
    head, (ages, *_, areas) = SPEC[: SPEC.index("workload")], re.findall("  - .*product.*\n", SPEC)
    text = head + "workload:\n" + ages.replace(", sex: identity", "")
    text += areas.replace("area: identity}, where: {sex: M}", "area: identity, sex: identity}")
    sized = "places, merged: {of: areas, over: area, rel_error: 0.3, sizes: tracts.csv}"
    text += "derived:\n  - {name: few, merged: {of: ages, over: age, rel_error: 0.2}}\n"
    text = text.replace(", other: show", "")
    Path("workload.yaml").write_text(f"{text}  - {{name: {sized}}}\n")
    small = {"F": range(4), "M": range(5)}
    lines = [f"T{k},{sex},{300 * (k not in small[sex])}" for k in range(64) for sex in "FM"]
    Path("tracts.csv").write_text("\n".join(["area,sex,size", *lines]) + "\n")
    released(noise)
    ok("error-report")
    page = Path("report.html").read_text()
    kinds = dict(re.findall(r'aria-labelledby="([a-z-]+)" data-kind="([a-z ]+)"', page))
    assert kinds["item-ages"] == "line"
    assert kinds["derived-few"] == "points"
    assert len(pd.read_parquet("release/few.parquet")) >= 5
    mapped = pd.read_csv("release/places.map.csv")
    sets = mapped[mapped.merged.str.contains(", set ")].groupby("merged_label").tract.agg(list)
    assert len(sets) == 2
    for name, tracts in sets.items():
        number = name.partition(" (")[0]
        assert f"{number} adds up {', '.join(tracts)}." in page
        assert name == f"{number} ({', '.join(tracts[:3])} and {len(tracts) - 3} more)"


@pytest.mark.nightly(daily="gaussian")
def test_merged_rows_are_published_by_the_rules_of_their_item(noise):
    rules = ", publish: {round_to: 10, suppress: {below: 100}}}"
    ages = "product: {age: identity, sex: identity}"
    Path("workload.yaml").write_text(SPEC.replace(ages + "}", ages + rules))
    release = released(noise)
    table = release.table("few")
    left_out = table.estimate < 100
    assert len(table) > 9  # by chance all of them are below 100 at times
    assert table.published[~left_out].tolist() == [
        10 * round(x / 10) for x in table.estimate[~left_out]
    ]
    assert table.published[left_out].isna().all()
    assert (table.suppressed == "below 100").tolist() == left_out.tolist()
    assert "published" not in release.table("places")
    told = "- `published` in `ages`, `few`, `sized`: the estimate, rounded to a multiple of 10"
    statement = Path("release/statement.md").read_text()
    assert told in statement
    assert "none of the estimates; 'published' is made of them by the rules of" in statement
    assert "the strategy, the sizes by which rows were merged, and all of this" in statement
    ok("error-report")
    words = f"a rule on noisy values leaves out {left_out.sum()} of {len(table)} answers"
    assert words in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("given", "instead", "message"),
    [
        ("over: age, rel_error: 0.2}}", "over: sex, rel_error: 0.2}}",
         "the values of 'sex' have neither an order nor a hierarchy"),
        ("of: ages, over: age, rel_error: 0.2}}", "of: bands, over: age, rel_error: 0.2}}",
         "'bands' does not have one row for each value of 'age'; ask for `age: identity`"),
        (", rel_error: 0.2}}", ", rel_error: 0}}", "above 0 and at most 2, found '0'; 0.3 is 30 %"),
        (", rel_error: 0.2}}", "}}", "merged needs the key 'rel_error'; add it"),
        (", rows: about 2000", "", "how large rows are to be expected is not known; say `rows:"),
        ("sizes.csv}}", "none.csv}}", "workload.yaml:15:72: none.csv cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_refused_at_its_place(noise, given, instead, message):
    Path("workload.yaml").write_text(SPEC.replace(given, instead, 1))
    assert message in refused("plan", "workload.yaml", code=2)


@pytest.mark.nightly(daily="gaussian")
def test_sizes_that_are_no_numbers_or_missing_are_refused_with_their_line(noise):
    text = Path("sizes.csv").read_text()
    Path("sizes.csv").write_text(text.replace("0,F,100.00", "0,F,many"))
    assert "sizes.csv:2:1: this is no size" in refused("plan", "workload.yaml", code=2)
    Path("sizes.csv").write_text(
        text.replace("age,sex,size", '"age","sex","estimate"').replace("0,F,100.00", "0,F,-1")
    )
    ok("plan", "workload.yaml", "--time-limit", "0")  # as an earlier release has it
    Path("sizes.csv").write_text(text.replace("0,F,100.00\n", ""))
    assert "sizes.csv has no size for 0, F" in refused("plan", "workload.yaml", code=2)


def test_sizes_name_yes_and_no_as_the_data_write_them():
    text = SPEC[: SPEC.index("  area:")] + "  old: boolean\n"
    text += "workload: [{name: ages, product: {age: identity, old: identity}}]\nderived:\n"
    text += "  - {name: few, merged: {of: ages, over: age, rel_error: 0.2, sizes: s.csv}}\n"
    for no, yes in (("0", "1"), ("False", "TRUE"), ("no", "yes")):
        lines = [
            f"{age},{old},{k}" for age in [*range(30), "other"] for k, old in ((3, no), (8, yes))
        ]
        files = {"s.csv": "\n".join(["age,old,size", *lines])}
        assert parse(text, name="w.yaml", files=files).derived[0].statistic.sizes == (3, 8) * 31


@pytest.mark.parametrize("by", ["day", "week", "month", "quarter", "year"])
def test_sizes_name_periods_by_their_label_or_by_the_first_day_as_tables_do(by):
    text = (
        SPEC[: SPEC.index("  age:")]
        + f"  t: {{date: {{from: 2012-12-01, to: 2014-03-31, by: {by}}}}}\n"
    )
    text += "workload: [{name: periods, product: {t: identity}}]\nderived:\n"
    plain = "  - {name: few, merged: {of: periods, over: t, rel_error: 0.2}}\n"
    kind = parse(text + plain, name="w.yaml", files={}).domain.attributes[0].columns[0].kind
    text += plain.replace("0.2}", "0.2, sizes: s.csv}")
    for named in (kind.label, lambda code: kind.start(code).isoformat()):
        lines = [*(f"{named(code)},{code}" for code in range(kind.length)), "other,7"]
        files = {"s.csv": "\n".join(["t,size", *lines])}
        sizes = parse(text, name="w.yaml", files=files).derived[0].statistic.sizes
        assert sizes[: kind.length] == tuple(range(kind.length))


@pytest.mark.nightly(daily="laplace")
def test_sizes_that_are_the_release_s_own_answers_are_told(noise):
    """Their noise then decides what is merged; those of another release have other noise."""
    released(noise)
    ok("package", "--also", "csv")
    Path("sizes.csv").write_bytes(Path("package/ages.csv").read_bytes())
    for number, told in (("1", True), ("2", False)):
        epsilon = EPSILON[noise] if told else "0.4"
        ok("plan", "workload.yaml", "--epsilon", epsilon, "--time-limit", "0")
        asked = ("--epsilon", epsilon, "--noise", noise, "--out", f"r{number}")
        said = ok("release", "data.csv", *asked).out
        assert ("its `sizes` are this release's own" in said) is told
        assert (
            "its `sizes` are this release's own" in ok("error-report", f"r{number}").out
        ) is told
        facts = json.loads(Path(f"r{number}/release.json").read_text())["derived"]
        assert [each["name"] for each in facts if each.get("own_sizes")] == ["sized"] * told


def test_equal_sizes_are_of_declared_values_alone_of_merged_columns_too(noise):
    """Two yes/no columns as one attribute have four declared pairs of nine; 2,000 people."""
    group = "  group: {merge: {white: boolean, black: boolean}}\n"
    item = "  - {name: ages, product: {age: identity}, where: {group: {in: [{white: yes}]}}}\n"
    text = SPEC[: SPEC.index("  area:")] + group + "workload:\n" + item + "derived:\n"
    text += "  - {name: few, merged: {of: ages, over: age, rel_error: 0.2}}\n"
    sizes = parse(text, name="w.yaml", files={}).derived[0].statistic.sizes
    assert sizes == pytest.approx([2000 / 30 / 2] * 30 + [0])
