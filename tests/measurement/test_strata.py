"""The error of the sample: where it is told, what declared strata take off, where it is left."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from release_parts import told_by_releases
from town import ok

from dpquery.exceptions import SpecError
from dpquery.operators.blocks import marginal, product
from dpquery.operators.factors import Groups, Identity, Valued
from dpquery.operators.ranges import Prefix
from dpquery.reconstruction import sampling
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.sampling import SampleDesign, SampleVariances, SquareErrors
from dpquery.spec.parsing.read import parse
from dpquery.strategy.shapes.marginals import MarginalsStrategy

SHAPE = (3, 2, 4)  # region, the stratum; sex; age
REGION = np.repeat([0, 1, 2], [7, 5, 2])
SEX = np.array([0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 1])
AGE = np.array([0, 3, 1, 2, 0, 1, 1, 3, 0, 2, 2, 1, 3, 1])
WEIGHT = np.array([2, 2, 2, 3, 5, 2, 2, 9, 8, 7, 9, 9, 30, 33]) / 1.0
DRAWN = np.array([7.0, 5.0, 2.0])
WHOLE = {(0, 1, 2): 1}
EXACT = (1e-9, 1e-9)  # the noise of weights and of squares


def measured(strategy, values, std, rng=None):
    """Return what a strategy measures of sums of values, one a record."""
    table = np.zeros(SHAPE)
    np.add.at(table, (REGION, SEX, AGE), values)
    noisy = []
    for rows in strategy.measurements:
        beyond = tuple(i for i in range(3) if i not in rows.block.attributes)
        exact = rows.weight * rows.block.apply(table.sum(axis=beyond)).ravel()
        noisy.append(exact if rng is None else exact + rng.normal(0, std, exact.shape))
    return Measured(strategy, noisy, std)


def errors_of(weight=WEIGHT, *, sets=WHOLE, drawn=DRAWN, stds=EXACT, rng=None, inclusion=False):
    strategy = MarginalsStrategy("m", "gaussian", SHAPE, sets)
    weights = measured(strategy, weight, stds[0], rng)
    squares = measured(strategy, weight**2 - weight * inclusion, stds[1])
    design = (
        drawn
        if drawn is None or isinstance(drawn, SampleDesign)
        else SampleDesign(0, np.array(drawn))
    )
    ratio = (weight**2).sum() / weight.sum() - inclusion
    return SquareErrors(weights, 0.95, squares, ratio, 1.5, design, inclusion)


def of_design(z, weight=WEIGHT, rest=(1, 1, 1)):
    """The variance of a sum of w z by the design, times 1.5: of w z in n records, n times."""
    parts = [(weight * z)[h == REGION] for h in range(3)]
    return 1.5 * sum(r * len(u) * np.var(u, ddof=1) for r, u in zip(rest, parts, strict=True))


BLOCKS = {
    "all": (product(SHAPE, {}), [np.ones(14)]),
    "sex": (marginal(SHAPE, (1,)), [s == SEX for s in range(2)]),
    "sex by age": (
        marginal(SHAPE, (1, 2)),
        [(s == SEX) & (a == AGE) for s in range(2) for a in range(4)],
    ),
    "sex by region": (
        marginal(SHAPE, (0, 1)),
        [(r == REGION) & (s == SEX) for r in range(3) for s in range(2)],
    ),
    "up to a region": (product(SHAPE, {0: Prefix(3)}), [r >= REGION for r in range(3)]),
    "some regions": (
        product(SHAPE, {0: Groups.of(((0, 2), (1,)), 3), 1: Identity(2)}),
        [np.isin(REGION, g) & (s == SEX) for g in ([0, 2], [1]) for s in range(2)],
    ),
    "sums of ages": (
        product(SHAPE, {1: Identity(2), 2: Valued(Groups.of(((0, 1, 2, 3),), 4), np.arange(4))}),
        [AGE * (s == SEX) for s in range(2)],
    ),
    "sums of regions": (
        product(SHAPE, {0: Valued(Groups.of(((0, 1, 2),), 3), np.arange(1, 4))}),
        [REGION + 1],
    ),
}


@pytest.mark.parametrize(("block", "values"), BLOCKS.values(), ids=BLOCKS)
def test_without_noise_it_is_the_variance_of_the_design_record_by_record(block, values):
    told = errors_of().variances(block, None).variance
    assert np.allclose(told, [of_design(z * 1.0) for z in values], rtol=1e-6)
    # With one chance to all of a stratum, 1 - n / N times that of drawing with replacement.
    weight = np.array([4.0, 1.5, 20.0])[REGION]
    told = errors_of(weight, inclusion=True).variances(block, None).variance
    design = [of_design(z * 1.0, weight, 1 - 1 / np.array([4.0, 1.5, 20.0])) for z in values]
    assert np.allclose(told, design, atol=1e-5)
    # Without strata, or by an attribute whose classes are none, it is that of Poisson sampling.
    for drawn in (None, [0.0, 0.0, 0.0]):
        told = errors_of(drawn=drawn).variances(block, None).variance
        assert np.allclose(told, [1.5 * (WEIGHT**2 * z**2).sum() for z in values])


def test_quotients_and_differences_are_those_of_the_design_too():
    errors, women, ones = errors_of(), SEX == 1, np.ones(14)
    every, sexes, both = product(SHAPE, {}), marginal(SHAPE, (1,)), marginal(SHAPE, (0, 1))

    def told(above, below, of_rows, values, others):
        quotients = np.array([(WEIGHT * y).sum() for y in values])
        quotients /= [(WEIGHT * x).sum() for x in others]
        found = errors.quotient_variances(
            (above, None), (below, None), np.array(of_rows), quotients
        ).variance
        pairs = zip(values, others, quotients, strict=True)
        assert np.allclose(found, [of_design(y - r * x) for y, x, r in pairs], rtol=1e-5)

    told(sexes, every, [0, 0], [~women, women], [ones, ones])
    of_both = [(r == REGION) & (s == SEX) for r in range(3) for s in range(2)]
    told(both, every, [0] * 6, of_both, [ones] * 6)
    told(
        both,
        marginal(SHAPE, (0,)),
        [0, 0, 1, 1, 2, 2],
        of_both,
        [r == REGION for r in [0, 0, 1, 1, 2, 2]],
    )
    told(both, sexes, [0, 1] * 3, of_both, [~women, women] * 3)
    sums, values = BLOCKS["sums of ages"]
    told(sums, sexes, [0, 1], values, [~women, women])
    ages = [product(SHAPE, {1: Groups.of(((s,),), 2), 2: Identity(4)}) for s in range(2)]
    found = errors.difference_variances((ages[0], None), (ages[1], None)).variance
    signs = [(a == AGE) * np.where(women, -1.0, 1.0) for a in range(4)]
    assert np.allclose(found, [of_design(z) for z in signs], rtol=1e-6)


@pytest.mark.nightly(daily="True")
@pytest.mark.parametrize("share", [False, True])
def test_noise_moves_what_strata_take_off_to_no_side(share, monkeypatch):
    """Of women, in 100 draws of noise that is half as large as what is summed, each with its minus.

    Beside strata that are known not to be whole, so that all of T^2 / (n - 1) is seen.
    """
    monkeypatch.setattr(sampling, "LEAST", -1e9)  # whatever noise may hide
    drawn, women = np.array([70.0, 50.0, 20.0]), product(SHAPE, {1: Groups.of(((1,),), 2)})
    every = product(SHAPE, {})

    def taken_off(noise):
        errors = errors_of(drawn=drawn, stds=(4.0, 1e-9))
        errors.weights.noisy[0] += noise
        ratio, of = np.zeros(1), errors.weights.estimates
        if share:
            ratio = of.answer(women, None).ravel() / of.answer(every, None)
        found = [
            (
                each.quotient_variances((women, None), (every, None), np.zeros(1, int), ratio)
                if share
                else each.variances(women, None)
            ).variance
            for each in (replace(errors, design=None), errors)
        ]
        squares = np.bincount(REGION, WEIGHT**2 * ((SEX == 1) - ratio) ** 2)
        return (found[0] - found[1] + 1.5 * (squares / (drawn - 1)).sum())[0]

    part = share * (WEIGHT * (SEX == 1)).sum() / WEIGHT.sum()
    z = np.bincount(REGION, WEIGHT * ((SEX == 1) - part))
    true = 1.5 * (z**2 / (drawn - 1)).sum()
    # Four cells of either sex a stratum, all of one variance. The noise of z there is less that of
    # all z times its share of all records, for which the quotient makes up.
    lies_there = share * np.bincount(REGION, WEIGHT) / WEIGHT.sum()
    noise = 64 * ((1 - part) ** 2 + part**2) * (1 - 2 * lies_there + 3 * lies_there**2)
    assert taken_off(0.0) == pytest.approx(true - 1.5 * (noise / (drawn - 1)).sum())
    draws = 4 * np.random.default_rng(4).standard_normal((100, 24))
    means = np.array([(taken_off(each) + taken_off(-each)) / 2 for each in draws])
    std = means.std() / np.sqrt(len(means))
    assert abs(means.mean() - true) < 6 * std


def test_what_noise_may_hide_is_told_too_large_up_to_the_figure_of_poisson_sampling():
    """Of all records, whose weights differ little within strata: it is a tenth of that figure."""
    every, ones = product(SHAPE, {}), np.ones(14)
    design, poisson = of_design(ones), 1.5 * (WEIGHT**2).sum()
    unit = np.sqrt(24) + np.sqrt(8) * (1 / (DRAWN - 1)).sum()  # standard errors of 24 and 8 cells
    told = [
        errors_of(stds=(1e-9, std)).variances(every, None).variance[0] for std in (1, 9, 110, 4000)
    ]
    assert np.allclose(told[:3], [design, design + 4.5 * 9 * unit, poisson], rtol=1e-6)
    assert design + 4.5 * 9 * unit < poisson
    assert np.isnan(told[3])
    weights = errors_of(stds=(50.0, 1e-9)).variances(every, None).variance[0]
    assert weights == pytest.approx(poisson), "as is what noise in the weights hides"


def test_nothing_is_taken_off_what_is_not_measured_by_stratum():
    errors = errors_of(sets={(0, 2): 1, (1, 2): 1})
    of_sex, of_age = (errors.variances(marginal(SHAPE, (i,)), None).variance for i in (1, 2))
    assert np.allclose(of_sex, [1.5 * (WEIGHT**2)[s == SEX].sum() for s in range(2)])
    assert np.allclose(of_age, [of_design(a == AGE) for a in range(4)], rtol=1e-5)
    blocks = (marginal(SHAPE, (1,)), marginal(SHAPE, (2,)))
    assert [errors.variances(b, None).by_design.any() for b in blocks] == [False, True]


FOUR = SampleDesign(None, np.array([4.0]), 2, np.arange(4))  # clusters by age
WITHIN = SampleDesign(0, np.array([4.0, 4.0, 0.0]), 2, np.arange(4))  # of two regions


def of_clusters(z, design):
    """The variance that the totals of w z by cluster make, drawn from each of the strata."""
    strata = [REGION >= 0] if design is FOUR else [h == REGION for h in range(2)]
    totals = ([(WEIGHT * z)[h & (a == AGE)].sum() for a in range(4)] for h in strata)
    return sum(4 * np.var(each, ddof=1) for each in totals)


@pytest.mark.parametrize("design", [FOUR, WITHIN], ids=["clusters", "within strata"])
def test_without_noise_clusters_tell_what_their_totals_do(design, monkeypatch):
    monkeypatch.setattr(sampling, "LEAST", 0.0)
    errors, women, ones = errors_of(drawn=design), SEX == 1, np.ones(14)
    for name, (block, values) in BLOCKS.items():
        found = errors.variances(block, None)
        if 2 in block.attributes:
            poisson = [1.5 * (WEIGHT**2 * z**2).sum() for z in values]
            assert np.allclose(found.variance, poisson), f"{name} are of clusters"
            assert np.isinf(found.degrees).all()
            continue
        true = np.array([of_clusters(z * 1.0, design) for z in values])
        assert np.allclose(found.variance[true > 0], true[true > 0], rtol=1e-5)
        if name == "sex":
            assert found.degrees.tolist() == [3 if design is FOUR else 6] * 2
    sexes, every = marginal(SHAPE, (1,)), product(SHAPE, {})
    ratio = np.array([(WEIGHT * ~women).sum(), (WEIGHT * women).sum()]) / WEIGHT.sum()
    found = errors.quotient_variances((sexes, None), (every, None), np.zeros(2, int), ratio)
    true = [of_clusters(y - r * ones, design) for y, r in zip((~women, women), ratio, strict=True)]
    assert np.allclose(found.variance, true, rtol=1e-5)
    apart = (product(SHAPE, {1: Groups.of(((s,),), 2), 0: Identity(3)}) for s in range(2))
    found = errors.difference_variances(*((block, None) for block in apart))
    signs = [(r == REGION) * np.where(women, -1.0, 1.0) for r in range(3)]
    true = np.array([of_clusters(z, design) for z in signs])
    assert np.allclose(found.variance[true > 0], true[true > 0], rtol=1e-5)


@pytest.mark.parametrize("share", [False, True])
def test_noise_moves_what_clusters_tell_to_no_side(share, monkeypatch):
    """Of women by region, in 100 draws of noise, each with its minus."""
    monkeypatch.setattr(sampling, "LEAST", -1e9)  # whatever noise may hide
    women, every = product(SHAPE, {1: Groups.of(((1,),), 2)}), product(SHAPE, {})
    part = share * (WEIGHT * (SEX == 1)).sum() / WEIGHT.sum()

    def told(noise):
        errors = errors_of(drawn=WITHIN, stds=(0.5, 1e-9))
        errors.weights.noisy[0] += noise
        of, none = errors.weights.estimates, np.zeros(1, int)
        if not share:
            return errors.variances(women, None).variance[0]
        ratio = of.answer(women, None).ravel() / of.answer(every, None)
        return errors.quotient_variances((women, None), (every, None), none, ratio).variance[0]

    draws = np.random.default_rng(5).standard_normal((100, 24)) / 2
    means = np.array([(told(each) + told(-each)) / 2 for each in draws])
    true = of_clusters((SEX == 1) - part, WITHIN)
    assert abs(means.mean() - true) < 6 * means.std() / np.sqrt(len(means))
    # Left in, the noise of 8 clusters of one cell each, or of shares of two, would be seen.
    assert 12 * means.std() / np.sqrt(len(means)) < 2


def test_what_noise_hides_of_clusters_is_left_to_the_design_effect():
    """Of all records; noise as large as this has degrees of freedom of its own."""
    every, told = product(SHAPE, {}), []
    for std in (1.0, 4.0, 1500.0):
        told.append(errors_of(drawn=FOUR, stds=(std, 1e-9)).variances(every, None))
    # Of 4 clusters of 6 cells each, so that a total has a variance of 6 times that of a cell.
    by, true = np.array([6.0, 6 * 16, 6 * 1500**2]) * 4 / 3, of_clusters(np.ones(14), FOUR)
    left = true - np.array([3.0, 3 * 16, 3 * 1500**2]) * 6 * 4 / 3
    doubt = np.sqrt(4 * by * abs(left) + 8 * by**2)
    assert (left > 3 * doubt).tolist() == [True, False, False]
    assert [found.by_design[0] for found in told] == [True, False, False]
    assert told[0].variance[0] == pytest.approx(left[0])
    assert told[0].degrees[0] == pytest.approx(1 / (1 / 3 + (doubt / left)[0] ** 2 / 2))
    assert [found.variance[0] for found in told[1:]] == pytest.approx([1.5 * (WEIGHT**2).sum()] * 2)
    assert np.isinf([found.degrees[0] for found in told[1:]]).all()


def test_intervals_of_few_clusters_are_wider_by_students_t():
    found = SampleVariances(np.full(2, 100.0), np.ones(2, bool), np.array([3, np.inf]))
    ends = (np.full(2, -30.0), np.full(2, 40.0))  # of the noise, as sides of a right angle
    columns = errors_of().together(found, np.zeros(2), np.full(2, 1e-9), ends)
    assert np.allclose(columns.total_high, np.hypot([31.8245, 19.59964], 40))
    assert np.allclose(columns.total_low, -np.hypot([31.8245, 19.59964], 30))


def test_codes_that_are_counted_as_one_are_no_stratum():
    spec = parse(SPEC.replace("MORE", STRATA), name="spec.yaml", files={})
    classes = [np.array([0, 1, 0, 2, 3]), np.arange(3), np.arange(4)]
    strata = SampleDesign.of(spec, classes)
    assert (strata.stratum, strata.drawn.tolist()) == (0, [0, 1000, 1000, 0])


ROWS = "{of: region, rows: {n: 1000, e: 1000, s: 1000"
REFUSED = {
    "{of: area, rows: {n: 9}}": "unknown attribute 'area'",
    f"{ROWS}}}}}": "is given for 1 of 4 values of 'region', the first of them 'w'; add how many",
    f"{ROWS}, x: 9}}}}": "'x' is not a value of 'region'",
    f"{ROWS}, w: 1}}}}": "at least 2 and at most 1,000,000,000,000, found '1'; join",
    f"{ROWS}, w: -5}}}}": "at least 2 and at most 1,000,000,000,000, found '-5'; join",
    f"{ROWS}, w: 900, W: 100}}}}": "'W' is not a value of 'region'; did you mean 'w'?",
    "{of: region, rows: {n: 9, e: 9, s: 9, w: 9}}": "36 records were drawn from all strata, and by "
    "the rest of the spec there are at least 2,800; give the numbers of records in the file",
    "{of: month, rows: {2020: 4000}}": "'2020' stands for several values; give each",
    "{of: pair, rows: {n: 4000}}": "'pair' is made of several columns, and strata are the values",
}


CLUSTERS_REFUSED = {
    "clusters: {of: area}": "unknown attribute 'area'",
    "clusters: {of: pair}": "'pair' is made of several columns, and clusters are the values of one",
    "clusters: {of: sex, within: pair}": "'pair' is made of several columns, and strata are the",
    "clusters: {of: sex, within: sex}": "'sex' tells the clusters apart already; name",
    "clusters: {of: sure}": "'sure' has one declared value, and one cluster shows no error",
    "strata: {of: region, rows: {n: 4000}}, clusters: {of: sex}": "clusters make all of the error",
}
STRATA_REFUSED = {f"strata: {text}": words for text, words in REFUSED.items()}


@pytest.mark.parametrize(("design", "words"), (STRATA_REFUSED | CLUSTERS_REFUSED).items())
def test_designs_that_cannot_be_are_refused_with_the_line_and_the_remedy(design, words):
    more = "domain: {month: {date: {from: 2020-01-01, to: 2020-12-31, by: month}}, pair: {merge: "
    more += "{first: {values: [a, b]}, second: boolean}}, sure: {values: [yes]}, "
    text = SPEC.replace("MORE", design).replace("domain: {", more)
    with pytest.raises(SpecError, match=r"spec\.yaml:5:\d+: ") as refusal:
        parse(text, name="spec.yaml", files={})
    assert words in str(refusal.value)


def test_strata_without_the_error_of_the_sample_are_refused():
    words = r"spec\.yaml:5:\d+: 'strata' needs the key 'design_effect'; add it, such as `design_eff"
    with pytest.raises(SpecError, match=words):
        parse(SPEC.replace("design_effect: 1, MORE", STRATA), name="spec.yaml", files={})


def test_plan_and_release_say_of_which_answers_strata_take_something_off(own_folder):
    text = SPEC.replace("MORE", STRATA).replace("region: identity, sex", "region")
    Path("workload.yaml").write_text(text)
    words = " ".join(ok("plan", "workload.yaml", "--epsilon", "8", "--time-limit", "0").out.split())
    assert "; strata of region make it smaller in jobs" in words
    unmeasured = "; not all of by_sex, sexes is measured by region too: ask for its sets and totals"
    assert f"{unmeasured} by region too where strata of region are to tell it" in words
    lines = "n,F,f,90\ne,M,p,60\ns,F,u,30\nw,M,u,20\n" * 1000
    Path("data.csv").write_text(f"region,sex,job,wt\n{lines}")
    ok("release", "data.csv", "--epsilon", "8")
    ok("error-report", "release")
    words = "What the declared strata, the values of `region`, make it less is taken off as far as "
    words += "noise lets it be known; elsewhere, as in all of `by_sex`, `sexes`, it is too large."
    assert words in Path("release/statement.md").read_text()
    assert words.replace("`", "") in Path("report.html").read_text()


def test_plan_and_release_say_of_which_answers_clusters_tell_the_error(own_folder):
    Path("workload.yaml").write_text(CLUSTERED)
    words = " ".join(ok("plan", "workload.yaml", "--epsilon", "8", "--time-limit", "0").out.split())
    assert "; clusters of psu tell it in jobs, by_sex, by_region, sexes" in words
    _, drawn = clustered(np.random.default_rng(3))
    pq.write_table(pa.table(drawn()), "data.parquet")
    ok("release", "data.parquet", "--epsilon", "8")
    words = "Where the same was measured by the declared clusters, the values of `psu` in each of "
    words += "`region`, and noise does not hide it, their totals make it instead, and intervals are"
    words += " by Student's t; elsewhere, as in all of `by_psu`, the design effect does. "
    assert words in Path("release/statement.md").read_text()


SPEC = """\
dataset: {id: stratified}
privacy:
  unit: row
  delta: 1e-6
  weight: {column: wt, at_most: 100, total: 200000, effective: 2800, design_effect: 1, MORE}
budget: {epsilon: 1000, delta: 1e-5}
domain: {region: {values: [n, e, s, w]}, sex: {values: [F, M]}, job: {values: [f, p, u]}}
workload:
  - {name: jobs, product: {job: identity}}
  - {name: by_sex, product: {sex: identity, job: identity}}
  - {name: by_region, product: {region: identity, sex: identity, job: identity}}
  - {name: sexes, product: {sex: identity}}
derived:
  - {name: shares, share: {of: by_sex, within: [sex]}}
  - {name: gap, difference: {of: by_sex, between: {sex: [F, M]}}}
"""
DOMAIN = {"region": "nesw", "sex": "FM", "job": "fpu"}
STRATA = "strata: {of: region, rows: {n: 1000, e: 1000, s: 1000, w: 1000}}"
CLUSTERED = (
    SPEC.replace("MORE", "clusters: {of: psu, within: region}")
    .replace(
        "at_most: 100, total: 200000, effective: 2800, design_effect: 1",
        "at_most: 30, total: 36000, effective: 1200, design_effect: 2",
    )
    .replace("region: {values", "psu: {values: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}, region: {values")
    .replace(
        "derived:",
        "  - {name: by_psu, product: {region: identity, psu: identity, "
        "sex: identity, job: identity}}\nderived:",
    )
)


def population(rng):
    """Return people by region, columns of all in its order, and true answers by item."""
    people = np.array([90_000, 60_000, 30_000, 20_000])
    region = np.repeat(np.arange(4), people)
    sex, chance = rng.integers(0, 2, people.sum()), rng.random(people.sum())
    full = np.array([0.85, 0.55, 0.3, 0.1])[region] - 0.05 * sex
    job = (chance > full) * 1 + (chance > full + (1 - full) / 3)
    codes = {"region": region, "sex": sex, "job": job}
    return (
        people,
        {n: np.array(list(DOMAIN[n]))[c] for n, c in codes.items()},
        truth_of(region, sex, job),
    )


def truth_of(region, sex, job):
    """Return what a population answers, by item."""
    by_sex = np.bincount(sex * 3 + job).reshape(2, 3)
    return {
        "jobs": by_sex.sum(axis=0),
        "by_sex": by_sex.ravel(),
        "by_region": np.bincount((region * 2 + sex) * 3 + job, minlength=24),
        "sexes": by_sex.sum(axis=1),
        "shares": (by_sex / by_sex.sum(axis=1, keepdims=True)).ravel(),
        "gap": by_sex[0] - by_sex[1],
    }


def stratified(rng):
    """Return the true answers, and what draws a sample of 1,000 from every region."""
    people, columns, truth = population(rng)
    starts, weights = np.cumsum(people) - people, np.repeat(people / 1000, 1000)

    def drawn():
        regions = zip(starts, people, strict=True)
        picked = np.concatenate([s + rng.choice(n, 1000, replace=False) for s, n in regions])
        return {name: values[picked] for name, values in columns.items()} | {"wt": weights}

    return truth, drawn


def clustered(rng):
    """Return the true answers, and what draws 10 of 300 clusters of 30 in every region, whole."""
    cluster = np.repeat(np.arange(1200), 30)
    region, sex, chance = cluster // 300, rng.integers(0, 2, 36_000), rng.random(36_000)
    full = (np.array([0.6, 0.5, 0.4, 0.3])[region] + rng.normal(0, 0.15, 1200)[cluster]).clip(0, 1)
    job = (chance > full) * 1 + (chance > full + (1 - full) / 3)
    columns = {"region": region, "sex": sex, "job": job}
    named = {n: np.array(list(DOMAIN[n]))[c].reshape(4, 300, 30) for n, c in columns.items()}
    regions, psu = np.repeat(np.arange(4), 10), np.tile(np.repeat(np.arange(1, 11), 30), 4)

    def drawn():
        picked = np.concatenate([rng.choice(300, 10, replace=False) for _ in range(4)])
        rows = {name: values[regions, picked].ravel() for name, values in named.items()}
        return rows | {"psu": psu, "wt": np.full(1200, 30.0)}

    return truth_of(region, sex, job), drawn


def drawn_and_released(folder, *, samples, sampled=stratified, inclusion=False, epsilon=4):
    """Return of every answer the true one, and what each of some releases tells of it.

    See `told_by_releases`; each is of a sample of its own.
    """
    text = CLUSTERED if sampled is clustered else SPEC.replace("MORE", STRATA)
    text = text.replace("}}}\nbudget", "}}, inclusion: true}\nbudget") if inclusion else text
    Path("workload.yaml").write_text(text)
    ok("plan", "workload.yaml", "--epsilon", str(epsilon), "--time-limit", "0")
    content, (truth, drawn) = Path("dpquery.plan").read_bytes(), sampled(np.random.default_rng(7))
    told = told_by_releases(content, drawn, folder=folder, samples=samples, epsilon=epsilon)
    return truth, {name: told[name][:, :4] for name in truth}


def test_two_releases_tell_the_error_of_the_design(own_folder):
    """With hardly any noise: of n records from N, N^2 p (1 - p) / n in every stratum."""
    _, told = drawn_and_released(own_folder, samples=2, epsilon=500)
    people, columns, _ = population(np.random.default_rng(7))
    for item, column in (("jobs", "job"), ("sexes", "sex")):
        regions = np.split(columns[column], np.cumsum(people)[:-1])
        share = np.array([[(of == v).mean() for v in DOMAIN[column]] for of in regions])
        design = np.sqrt(people**2 / 1000 @ (share * (1 - share)))
        std, _, _, poisson = told[item].mean(axis=0)
        assert np.allclose(std, design, rtol=0.03)
        assert (poisson > 1.05 * design).all()
        assert poisson[0] > 1.3 * design[0]


@pytest.mark.nightly
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("sampled", "inclusion"), [(stratified, False), (stratified, True), (clustered, False)]
)
def test_intervals_hold_what_the_population_has_of_samples(
    own_folder, sampled, inclusion, record_property
):
    """Of 400 samples, each released once; of strata, those of Poisson sampling hold too much."""
    epsilon = 16 if sampled is clustered else 4  # else noise hides much, and intervals are wider
    truth, told = drawn_and_released(
        own_folder, samples=400, sampled=sampled, inclusion=inclusion, epsilon=epsilon
    )
    every = []
    for name, each in told.items():
        std, low, high, poisson = each.transpose(1, 0, 2)
        known = ~np.isnan(std)
        off, half = np.abs((low + high) / 2 - truth[name]), (high - low) / 2
        share = (off <= half)[known].mean()
        record_property(name, float(share))
        assert 0.9 <= share <= 0.98  # 0.93 to 0.97, but for chance: of two rows that go together
        every += (off <= half)[known].tolist()
        if name == "sexes" and sampled is stratified:
            wider = np.sqrt(half**2 + 1.96**2 * (poisson**2 - std**2))
            record_property("Poisson", float((off <= wider).mean()))
            assert (off <= wider).mean() > 0.965
    assert 0.93 <= np.mean(every) <= 0.97


@pytest.mark.parametrize("effect", [1.0, 1.5])
def test_what_public_numbers_let_expect_says_which_sums_of_squares_are_told(effect):
    """Half of the weights, and noise has a standard deviation of 1."""
    strategy = MarginalsStrategy("m", "gaussian", (4,), {(0,): 1})
    weights, squares = (Measured(strategy, [], std) for std in (0.1, 1.0))
    for each, sums in ((weights, [6.02, 5.98, 6.2, 90.0]), (squares, [0.5, 9.0, -1.0, 91.5])):
        vars(each)["estimates"] = SimpleNamespace(answer=lambda *_, sums=sums: np.array(sums))
    errors = SquareErrors(weights, 0.95, squares, 0.5, effect)
    variances = errors.variances(marginal((4,), (0,)), 0).variance
    assert np.allclose(variances, [effect * 0.5, np.nan, np.nan, effect * 91.5], equal_nan=True)
    estimate, ends = np.full(4, 50.0), (np.full(4, 40.0), np.full(4, 80.0))
    both = errors.together(
        SampleVariances.poisson(np.full(4, 100.0)), estimate, np.full(4, 3.0), ends
    )
    assert np.allclose(both.total_std, np.sqrt(109))
    assert np.allclose(both.total_low, 50 - np.hypot(10, 19.59964))
    assert np.allclose(both.total_high, 50 + np.hypot(30, 19.59964))
