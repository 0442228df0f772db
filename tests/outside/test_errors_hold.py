"""What is printed of errors is so: of answers, quotients and totals."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from dense import dense_block, dense_strategy
from scipy.stats import chi2, kstest, laplace, norm
from specs import random_spec, read, unhashed
from town import contents, ok, planned, refused, released, spec_text

import dpquery
from dpquery import Release, replicates
from dpquery.commands.replicates import noise_of, unit_noise
from dpquery.measurement.noise.laws import LAWS
from dpquery.operators.compile import compile_spec
from dpquery.operators.gram import gram
from dpquery.reconstruction.checks import flaw_of
from dpquery.reconstruction.derived import estimates_of
from dpquery.reconstruction.intervals import half_widths, standard_errors
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.strategy.expected_error import squared_sensitivity
from dpquery.strategy.search.candidates import Problem
from dpquery.strategy.search.select import SEARCHES, select
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy


def left_out(folder):
    plan = unhashed((folder / "p").read_text())
    return [
        (candidate["name"], candidate["reason"])
        for selection in plan["selections"]
        for candidate in selection["candidates"]
        if candidate["reason"] and "standard errors" in candidate["reason"]
    ]


@pytest.mark.nightly
def test_no_strategy_of_many_items_is_lost_to_a_false_alarm(tmp_path):
    items = [f"{{name: q{k}, product: {{x: {{is: {k}}}}}}}" for k in range(100)]
    spec = spec_text({"x": "{range: [0, 99]}"}, items, more="other: drop")
    planned(tmp_path, spec)
    assert left_out(tmp_path) == []


@pytest.mark.nightly
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


@pytest.mark.nightly(daily="rap")
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


@pytest.mark.nightly
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


@pytest.mark.nightly(daily=r"\[2\]")
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


# `dpquery replicates`: the noise of a release again, and the error of any statistic from it.


CHANCE = 1e-6  # that a true law fails a test; the draws are the same every time
RELEASE = ("release", "data.csv", "--epsilon", "0.5")


def exact(release, names):
    rows = [(name, row) for name in names for row in range(len(release.arrow(name)))]
    return release.covariance(rows)


@pytest.fixture(params=["laplace", "gaussian"])
def noise(request):
    request.getfixturevalue("town" if request.param == "laplace" else "gaussian_town")
    ok(*RELEASE, "--noise", request.param)
    return request.param


@pytest.mark.nightly(daily="laplace")
def test_the_error_of_any_sum_of_answers_is_that_of_the_exact_covariance(noise):
    """Of 200 random sums, some of a few answers and some of all, with any signs."""
    release, draws = Release("release"), 400
    drawn = noise_of(release, release.spec.items, draws=draws)
    together = np.hstack([drawn[name] for name in release.items]).astype(float)
    covariance, chance = exact(release, release.items), np.random.default_rng(1)
    for _ in range(200):
        sums = chance.normal(size=len(covariance)) * (chance.random(len(covariance)) < 0.2)
        variance, seen = sums @ covariance @ sums, together @ sums
        kurtosis = 3 if noise == "laplace" else 0  # at most, of a sum of measurements' noise
        spread = math.sqrt((2 + kurtosis) / draws)
        assert np.mean(seen**2) / variance == pytest.approx(1, abs=5.5 * spread)
        assert abs(seen.mean()) < 5.5 * math.sqrt(variance / draws)
    if noise == "gaussian":
        ratio = draws * np.mean(together[:, 0] ** 2) / covariance[0, 0]
        assert CHANCE < chi2.cdf(ratio, draws) < 1 - CHANCE


@pytest.mark.nightly(daily="gaussian")
def test_the_error_of_a_share_is_that_of_the_delta_method_where_noise_is_small(noise):
    release = Release("release")
    drawn = noise_of(release, release.spec.items, draws=1000)["age_by_sex"].astype(float)
    counts = np.linspace(3e4, 9e4, drawn.shape[1])  # of which noise is hardly a thousandth
    share = counts[0] / counts.sum()
    seen = (counts[0] + drawn[:, 0]) / (counts + drawn).sum(axis=1) - share
    slopes = -share / counts.sum() * np.ones(len(counts))
    slopes[0] += 1 / counts.sum()
    variance = slopes @ exact(release, ["age_by_sex"]) @ slopes
    assert np.sqrt(np.mean(seen**2)) == pytest.approx(math.sqrt(variance), rel=0.12)


def statistics_of(chance, counts):
    """Return a statistic that is no sum: of answers (draws, m) a number a draw, by random parts."""
    few, more = (chance.permutation(len(counts))[: chance.integers(2, 9)] for _ in range(2))
    kinds = (
        lambda x: x[:, few].sum(axis=1) / x[:, more].sum(axis=1),
        lambda x: np.log(x[:, few].sum(axis=1) / x[:, more].mean(axis=1)),
        lambda x: x[:, few[0]] / x[:, few].sum(axis=1) - x[:, more[0]] / x[:, more].sum(axis=1),
        lambda x: np.sqrt(np.maximum(x[:, few[0]], 0) * np.maximum(x[:, more[0]], 0)),
        lambda x: (x[:, few] ** 2).sum(axis=1) / x[:, few].sum(axis=1) ** 2,
        lambda x: np.median(x[:, few], axis=1) / x[:, more].max(axis=1),
    )
    return kinds[chance.integers(len(kinds))]


@pytest.mark.nightly(daily="gaussian")
def test_the_error_of_fifty_statistics_that_are_no_sums_is_that_of_the_exact_law(noise):
    """Beside 20,000 draws by the exact covariance, at counts of which noise is up to a tenth."""
    release, draws, chance = Release("release"), 400, np.random.default_rng(4)
    drawn = noise_of(release, release.spec.items, draws=draws)
    together = np.hstack([drawn[name] for name in release.items]).astype(float)
    covariance = exact(release, release.items)
    counts = math.sqrt(covariance.diagonal().max()) * chance.uniform(10, 60, len(covariance))
    law = chance.multivariate_normal(np.zeros(len(counts)), covariance, 20_000, method="svd")
    spread = math.sqrt((2 + (3 if noise == "laplace" else 0)) / draws) / 2
    for _ in range(50):
        statistic = statistics_of(chance, counts)
        at = statistic(counts[None])
        seen = np.sqrt(np.mean((statistic(counts + together) - at) ** 2))
        truth = np.sqrt(np.mean((statistic(counts + law) - at) ** 2))
        assert seen == pytest.approx(truth, rel=5.5 * spread)


@pytest.mark.nightly(daily="gaussian")
def test_a_package_holds_the_draws_on_request_and_says_what_they_are(noise):
    ok("replicates", "--also", "csv")
    ok("package", "--also", "csv,replicates")
    for path in Path("replicates").iterdir():
        name, _, end = path.name.partition(".")
        assert Path("package", f"{name}.noise.{end}").read_bytes() == path.read_bytes()
    book = Path("package/codebook.md").read_text()
    assert all(f"`{name}.noise.parquet`, `{name}.noise.csv`" in book for name in ("ages", "pairs"))
    assert "would be lost in noise with that of any of them" in book
    resources = json.loads(Path("package/datapackage.json").read_text())["resources"]
    listed = {resource["path"]: resource for resource in resources}
    assert {path.name for path in Path("package").glob("*.noise.*")} <= {*listed}
    assert "draws of their noise" in listed["ages.noise.csv"]["description"]
    ok("error-report", "package")
    before = contents(Path("package"))
    ok("package", "--also", "csv,replicates")
    assert contents(Path("package")) == before
    ok("package", "--also", "replicates:3,csv")
    assert sum("noise_" in name for name in pq.read_schema("package/ages.noise.parquet").names) == 3
    for wrong in ("replicates:0", "replicates:1", "replicates:x"):
        assert "from 2 to 10,000" in refused("package", "--also", wrong, code=2)
    ok("package")  # it replaces its own files, those of draws too
    assert not list(Path("package").glob("*.noise.*"))


DERIVED = """
derived:
  - {name: shares, share: {of: age_by_sex}}
  - {name: gap, difference: {of: age_by_sex, between: {sex: [F, M]}}}
"""


@pytest.mark.nightly(daily=r"\[town")
@pytest.mark.parametrize("of", ["town", "gaussian_town"])
def test_derived_items_have_the_error_that_is_published_of_them(of, request, monkeypatch):
    request.getfixturevalue(of)
    if of == "gaussian_town":  # of normal noise no part of each measured row is worked out
        monkeypatch.delattr("dpquery.reconstruction.derived.JointAnswers.coefficients")
    spec = Path("workload.yaml").read_text() + DERIVED
    Path("workload.yaml").write_text(spec.replace("sex: identity+total}", "sex: identity}"))
    head, *lines = Path("data.csv").read_text().splitlines()
    Path("data.csv").write_text("\n".join([head, *lines * 200]) + "\n")
    ok("plan", "workload.yaml", "--time-limit", "0")
    ok("release", "data.csv", "--epsilon", "1")
    ok("replicates", "--items", "shares,gap", "--draws", "200")
    for name in ("shares", "gap"):
        published = pd.read_parquet(f"release/{name}.parquet")
        drawn = pd.read_parquet(f"replicates/{name}.parquet").filter(like="noise_")
        seen = np.sqrt((drawn**2).mean(axis=1))
        known = published.std_error.notna() & (drawn.notna().mean(axis=1) > 0.99)
        assert known.sum() > len(known) / 2
        ratio = seen[known] / published.std_error[known]
        assert ratio.mean() == pytest.approx(1, abs=0.15 if name == "gap" else 0.3)

    def once_lost(*arguments, **options):
        values = estimates_of(*arguments, **options)
        values[1, 2] = np.nan
        return values

    monkeypatch.setattr("dpquery.commands.replicates.estimates_of", once_lost)
    ok("replicates", "--items", "gap", "--draws", "3", "--out", "lost", "--also", "csv")
    table, in_csv = pq.read_table("lost/gap.parquet"), pd.read_csv("lost/gap.csv")
    for drawn in (table.to_pandas(), in_csv):
        assert drawn.filter(like="noise_").isna().all(axis=1).tolist() == [k == 2 for k in range(5)]
    nulls = [table[name].null_count for name in table.column_names if name.startswith("noise_")]
    assert nulls == [0, 0, 0], "DuckDB leaves nulls out of sums, and not what is no number"
    assert ",nan,nan,nan" in Path("lost/gap.csv").read_text(), "nor does Excel a text"


def test_draws_are_of_the_law_that_was_published():
    uniform = np.random.default_rng(3).random(20_000)
    for name, law in (("gaussian", norm()), ("laplace", laplace(scale=1 / math.sqrt(2)))):
        assert kstest(unit_noise(LAWS[name], uniform), law.cdf).pvalue > CHANCE
        ends = unit_noise(LAWS[name], np.array([0.0, 0.5 - 2.0**-53, 0.5, 1 - 2.0**-53]))
        assert ends.tolist() == (-ends[::-1]).tolist()
        assert 8 < ends[3] < 30


def test_neither_the_data_nor_the_noisy_values_decide_the_draws(town):
    """Two releases of one key, of other records and other noise, have the same replicates."""
    written = []
    for name, text in (("a", Path("data.csv").read_text()), ("b", "age,sex,region,income\n")):
        Path(f"{name}.csv").write_text(text)
        options = ("--ledger", f"{name}.db", "--out", name, "--epsilon", "0.5")
        ok("plan", "workload.yaml", "--ledger", f"{name}.db")
        ok("release", f"{name}.csv", *options)
        ok("replicates", name, "--out", f"{name}.replicates", "--draws", "3")
        written.append([pq.read_table(f"{name}.replicates/{item}.parquet") for item in ("ages",)])
    for one, other in zip(*written, strict=True):
        assert one.column_names == other.column_names
        for column in ("noise_001", "noise_002", "noise_003"):
            assert one[column].equals(other[column])
        assert not one["estimate"].equals(other["estimate"])


@pytest.mark.nightly(daily="gaussian")
def test_files_hold_the_labels_and_estimates_of_the_release_and_the_same_command_the_same(noise):
    said = json.loads(ok("replicates", "--also", "csv", "--json", "--draws", "12").out)
    names = Release("release").items
    files = [f"{name}.{kind}" for name in names for kind in ("parquet", "csv")]
    assert said == {"directory": "replicates", "files": files, "draws": 12}
    before = contents(Path("replicates"))
    ok("replicates", "--also", "csv", "--draws", "12")
    assert contents(Path("replicates")) == before
    for name in names:
        of_release = pd.read_parquet(f"release/{name}.parquet")
        table = pd.read_parquet(f"replicates/{name}.parquet")
        labels = list(of_release.columns[: list(of_release.columns).index("estimate") + 1])
        assert list(table.columns) == [*labels, *(f"noise_{k:03}" for k in range(1, 13))]
        pd.testing.assert_frame_equal(table[labels], of_release[labels])
        in_csv = pd.read_csv(f"replicates/{name}.csv")
        assert in_csv.noise_007.to_numpy() == pytest.approx(table.noise_007, rel=1e-5)
    done = replicates("release", items=["ages"], draws=12, out="one")
    assert done.files == ("ages.parquet",)
    of_all = pd.read_parquet("replicates/ages.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet("one/ages.parquet"), of_all)


def test_no_label_of_the_csv_files_is_a_formula(town):
    spec = Path("workload.yaml").read_text().replace("[F, M]", "[F, '=M()']")
    Path("workload.yaml").write_text(spec)
    ok("plan", "workload.yaml", "--time-limit", "0")
    ok(*RELEASE)
    ok("replicates", "--also", "csv", "--draws", "2")
    assert set(pd.read_csv("replicates/age_by_sex.csv").sex) == {"F", "'=M()", "all"}
    assert "=M()" in set(pd.read_parquet("replicates/age_by_sex.parquet").sex)


def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(town, monkeypatch):
    ok(*RELEASE)
    assert "a whole number from 2" in refused("replicates", "--draws", "0", code=2)
    assert "no item 'age'; did you mean" in refused("replicates", "--items", "age", code=2)
    assert "--also 'xlsx' is not known" in refused("replicates", "--also", "xlsx", code=2)
    assert "lies in release" in refused("replicates", "--out", "release/more", code=5)
    ok("replicates", "--draws", "2")
    in_the_way = refused("replicates", "--draws", "3", code=5)
    assert "replicates/age_by_sex.parquet holds something else, which is kept" in in_the_way
    monkeypatch.setattr("dpquery.commands.replicates.MAX_REPLICATED_NUMBERS", 1000)
    assert "draws for fewer items with --items" in refused("replicates", "--out", "other", code=2)


# Answers of random specs, against least squares written out densely.

RELEASES = 200
SLICES = """\
dataset: {id: v10p, version: 1}
privacy: {unit: row}
budget: {epsilon: 100}
other: drop
domain: {a: {range: [0, 5]}, b: {range: [0, 4]}, c: {range: [0, 3]}, d: {range: [0, 2]}}
workload:
  - {name: q, product: {a: prefix}, where: {b: 0, c: {between: [0, 1]}, d: 0}}
  - {name: p, marginals: {ways: 1}}
  - {name: s, product: {b: identity, c: {between: [0, 1]}}}
"""
"""Three conditions on one item: its part of OPT_+ all but vanishes on the other records."""


def coefficients(strategy, W):
    """C with answers C y by least squares, from singular values of the rows themselves."""
    A = dense_strategy(strategy.measurements).astype(float)
    top = np.abs(A).max()
    U, s, Vt = np.linalg.svd(A / top, full_matrices=False)
    seen = s > 3e-14 * s[0]
    return (W @ Vt[seen].T / s[seen]) @ U[:, seen].T / top


def dense_coefficients(strategy, W):
    """The same; under the plain mechanism every query is its own noisy answer."""
    if isinstance(strategy, DirectStrategy):
        rows = [block.queries for block in strategy.workload.blocks]
        return np.diag(1 / np.repeat(np.array(strategy.weights, dtype=float), rows))
    assert dense(strategy)
    return coefficients(strategy, W)


def dense(strategy):
    """Whether all parts are solved as one; test_opt_union looks at those that are not."""
    return not isinstance(strategy, UnionStrategy) or strategy.joint is not None


def covered(text, noise, name=None):
    """The share of intervals that cover, of a strategy that is held against dense algebra.

    It is the best one for a spec, or the one of a name.
    """
    compiled = compile_spec(read(text))
    workload, rng = compiled.workload, np.random.default_rng(0)
    if name is None:
        selection = select(workload, noises=[noise])[noise]
        found = (each for each in selection.candidates if each.proposal is not None)
        by_choice = sorted(found, key=lambda each: each.name != selection.best.name)
        proposed = (each.proposal.strategy for each in by_choice)
        strategy = next(each for each in proposed if dense(each))
    else:  # which a proof may leave out of the search
        problem = Problem(workload, gram(workload), noise, 0, items=compiled.items)
        strategy = dict(SEARCHES)[name](problem).strategy
    scale = math.sqrt(squared_sensitivity(strategy))
    noise_std = scale * (math.sqrt(2) if noise == "laplace" else 4.2)
    assert flaw_of(strategy, workload, items=compiled.items, noise_std=noise_std) == ""
    W = np.vstack([dense_block(block) for block in workload.blocks]).astype(float)
    C, blocks = dense_coefficients(strategy, W), list(enumerate(workload.blocks))
    std = [standard_errors(strategy, b, position=k, noise_std=noise_std) for k, b in blocks]
    widths = [
        half_widths(strategy, b, errors, position=k, level=0.95)
        for (k, b), errors in zip(blocks, std, strict=True)
    ]
    expected = noise_std * np.sqrt((C**2).sum(axis=1))
    assert np.concatenate(std) == pytest.approx(expected, rel=1e-4)

    def drawn(shape):
        if noise == "laplace":
            return np.rint(rng.laplace(scale=scale, size=shape))
        return np.rint(rng.normal(scale=noise_std, size=shape))

    x = rng.integers(0, 2000, W.shape[1])
    A = dense_strategy(strategy.measurements)
    noisy = (A @ x.astype(object)).astype(float) + drawn(len(A))
    ends = np.cumsum([rows.block.queries for rows in strategy.measurements])[:-1]
    estimates = reconstruct(strategy, np.split(noisy, ends))
    answers = np.concatenate([estimates.answer(b, k).ravel() for k, b in blocks])
    noise_free = expected == 0  # sums of values that are all 0
    assert not answers[noise_free].any()
    off = np.abs(answers - C @ noisy)[~noise_free] / expected[~noise_free]
    assert off.max() < 2e-3, "answers are not those of least squares"
    errors = np.abs(C @ drawn((len(A), RELEASES)))
    return float((errors <= np.concatenate(widths)[:, None]).mean())


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_three_conditions_on_one_item_are_answered_as_printed(noise):
    assert 0.93 < covered(SLICES, noise, "OPT_+") < 0.97


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(8))
def test_random_specs_are_answered_as_printed(seed):
    rng = np.random.default_rng([seed, 11])
    text = random_spec(rng, wheres=(None, 3, 4)[seed % 3])
    assert 0.92 < covered(text, ("laplace", "gaussian")[seed % 2]) < 0.98
