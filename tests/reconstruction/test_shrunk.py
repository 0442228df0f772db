"""The best guess beside the estimates: exact algebra, the nearest tables, and what it gains."""

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.optimize import minimize
from town import contents, ok, spent

from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.blocks import Block, Workload, marginal, product
from dpquery.operators.factors import Groups, Identity, Stacked, Valued, total
from dpquery.operators.ranges import Prefix, WidthRanges
from dpquery.reconstruction.agreeing_tables import NonnegativeTables, ShrunkTables, not_shrunk
from dpquery.reconstruction.columns import (
    ExtraColumn,
    ExtraColumns,
    ToldError,
    check_columns,
    extra_columns,
    told_error,
)
from dpquery.reconstruction.components import (
    Components,
    StackedSets,
    add_below,
    component_noise,
    fittable_tables,
    proper_axes,
    residual,
)
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.nearest import onto_simplex
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.expected_error import squared_sensitivity
from dpquery.strategy.search.select import select

SHAPE = (4, 3, 5, 2)
PAIRS = tuple(combinations(range(4), 2))
GUESSES = (ExtraColumn("shrunk"), ExtraColumn("averaged"))
RELEASE = ("release", "data.csv", "--epsilon", "1")


def chosen(workload, noise):
    candidates = select(workload, noises=[noise])[noise].candidates
    made = [candidate for candidate in candidates if candidate.proposal is not None]
    return min(made, key=lambda candidate: candidate.error.rmse).proposal.strategy


def components_of(shape, sets, x, precision):
    stacked = StackedSets(shape, sets)
    values = {
        sizes: np.stack([residual(table_of(x, subset)[None])[0].reshape(sizes) for subset in group])
        for sizes, group in stacked.groups.items()
    }
    weights = {sizes: np.full(len(group), precision) for sizes, group in stacked.groups.items()}
    return Components(stacked, values, weights)


def table_of(x, subset):
    return x.sum(axis=tuple(i for i in range(x.ndim) if i not in subset))


def measured(strategy, x, std, chance):
    """Answers of a strategy's measurements with normal noise."""
    for each in strategy.measurements:
        block = each.block
        exact = each.weight * block.apply(
            table_of(x, block.attributes).reshape(block.table_shape).astype(float)
        )
        yield exact.ravel() + chance.normal(0, std, block.queries)


def dense_rows(strategy):
    return np.concatenate([each.weight * dense_block(each.block) for each in strategy.measurements])


def dense_block(block):
    """(queries, cells of the domain)."""
    columns = []
    for cell in np.eye(math.prod(SHAPE)):
        table = table_of(cell.reshape(SHAPE), block.attributes)
        columns.append(block.apply(table.reshape(block.table_shape)).ravel())
    return np.array(columns).T


def test_a_table_is_the_sum_of_its_components():
    x = np.random.default_rng(0).random(SHAPE)
    stacked = components_of(SHAPE, [(0, 1, 2), (1, 2, 3), (0, 3)], x, 1.0)
    for sizes, group in stacked.sets.groups.items():
        for place, subset in enumerate(group):
            below = {
                axes: stacked.values[tuple(sizes[k] for k in axes)][
                    [stacked.sets.places[tuple(subset[k] for k in axes)]]
                ]
                for axes in proper_axes(len(sizes))
            }
            table = stacked.values[sizes][[place]]
            add_below(table, below)
            assert table[0] == pytest.approx(table_of(x, subset))


@pytest.mark.nightly(daily="gaussian")
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_noise_of_a_component_is_that_of_its_dense_projection(noise):
    blocks = (*(marginal(SHAPE, pair) for pair in PAIRS), product(SHAPE, {2: Prefix(5)}))
    strategy = chosen(Workload(SHAPE, blocks, (1.0,) * len(blocks)), noise)
    inverse = np.linalg.pinv(dense_rows(strategy))

    def noise_of(subset):
        block = marginal(SHAPE, subset)
        return total_of(strategy.variances(block, position=None), block)

    sets = StackedSets(SHAPE, PAIRS)
    noises = component_noise(sets, noise_of)
    for sizes, group in sets.groups.items():
        for place, subset in enumerate(group):
            errors = dense_block(marginal(SHAPE, subset)) @ inverse
            part = residual(np.moveaxis(errors.reshape(*sizes, -1), -1, 0))
            freedom = math.prod(size - 1 for size in sizes)
            assert noises[sizes][place] == pytest.approx(np.sum(part**2) / freedom)


@pytest.mark.nightly
def test_the_nearest_tables_are_those_of_a_dense_solver():
    """Its own parametrisation: a signed vector of the domain, whose tables have no cell below 0."""
    shape, sets = (3, 2, 2), [(0, 1), (1, 2), (0, 2)]
    chance = np.random.default_rng(3)
    x = chance.normal(0.5, 2.0, shape)
    x += (6 - x.sum()) / x.size
    components = components_of(shape, sets, x, 1.0)
    components.precision[()][:] = 1e6
    tables = NonnegativeTables(components)
    tables.improve(3000)

    def distance(flat):
        moved, total = flat.reshape(shape), 0.0
        for sizes, group in components.sets.groups.items():
            for place, subset in enumerate(group):
                part = residual(table_of(moved - x, subset)[None])
                total += components.precision[sizes][place] * float(np.sum(part**2))
        return total

    rows = np.concatenate(
        [
            np.array([table_of(cell.reshape(shape), subset).ravel() for cell in np.eye(x.size)]).T
            for subset in sets
        ]
    )
    start = np.full(x.size, 0.5)
    solved = minimize(
        distance,
        start,
        constraints=[{"type": "ineq", "fun": lambda flat: rows @ flat, "jac": lambda _: rows}],
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    fitted = {subset: tables.table(subset) for subset in sets}
    expected = {subset: table_of(solved.x.reshape(shape), subset) for subset in sets}
    assert min(table.min() for table in (table_of(x, subset) for subset in sets)) < -0.5
    for subset in sets:
        assert fitted[subset] == pytest.approx(expected[subset], abs=0.02)
    for i in range(3):
        margins = [
            table.sum(axis=1 - subset.index(i)) for subset, table in fitted.items() if i in subset
        ]
        assert margins[0] == pytest.approx(margins[1], abs=1e-3)


def sparse_population(records, chance):
    """Records of which most share a few codes, on attributes that hang together."""
    first = chance.geometric(0.4, records).clip(max=30) - 1
    second = (first + chance.geometric(0.5, records)).clip(max=20) - 1
    third = chance.integers(0, 3, records) * (first > 1)
    x = np.zeros((30, 20, 12))
    np.add.at(x, (first, second, third), 1)
    return x


@pytest.mark.nightly(daily="laplace")
@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_guesses_err_far_less_than_estimates_and_by_what_is_told(noise):
    """Eight releases: also less than each table cut at zero and its size; the told errors."""
    columns = GUESSES if noise == "gaussian" else GUESSES[:1]  # fitting rows takes long
    shape = (30, 20, 12)
    blocks = tuple(marginal(shape, pair) for pair in combinations(range(3), 2))
    strategy = chosen(Workload(shape, blocks, (1.0,) * 3), noise)
    chance = np.random.default_rng(7)
    x, scale = sparse_population(2000, chance), {"gaussian": 1.5, "laplace": 0.4}[noise]
    std = scale * math.sqrt(squared_sensitivity(strategy))
    squares, pairs, within = np.zeros((2, 2)), [], 0
    for _ in range(8):
        answers = Measured(strategy, list(measured(strategy, x, std, chance)), std)
        extra, off = extra_columns(columns, answers, blocks), np.zeros((2, 2))
        for block in blocks:
            truth = table_of(x, block.attributes)
            estimate = answers.estimates.answer(block, None).ravel()
            simplex = onto_simplex(estimate[None], np.ones((1, truth.size)), estimate.sum()[None])
            off[0] += [np.sum((each - truth.ravel()) ** 2) for each in (estimate, simplex[0])]
            off[1] += np.sum((extra.guessed(block) - truth.ravel()) ** 2, axis=1)
        errors, queries = extra.told_errors(range(3)), sum(block.queries for block in blocks)
        for square, error in zip(off[1], errors.values(), strict=noise == "gaussian"):
            within += error.low <= math.sqrt(square / queries) <= error.high
            pairs += [(square, queries * error.rmse**2)] if error.rmse else []  # noise hides none
        squares += off
    assert np.all(squares[1] < [0.3 * squares[0, 0], 0.9 * squares[0, 1]])
    true, told = np.sum(pairs, axis=0)
    assert told == pytest.approx(true, rel=0.35)
    assert len(pairs) >= 4 * len(columns)
    assert within >= 0.8 * 8 * len(columns)


@pytest.mark.nightly
@pytest.mark.parametrize("scale", [2.0, 20.0])
def test_the_told_error_is_right_where_most_of_it_is_in_the_totals(scale):
    """Tables with totals, which are not shrunk; of twelve answers nothing is told."""
    shape = (12, 3, 2)
    block, small = (
        product(shape, {k: Stacked((Identity(shape[k]), total(shape[k]))) for k in axes})
        for axes in ((0, 1, 2), (1, 2))
    )
    strategy = chosen(Workload(shape, (block, small), (1.0, 1.0)), "gaussian")
    chance = np.random.default_rng(5)
    x = chance.multinomial(1000, chance.dirichlet(np.full(72, 0.3))).reshape(shape) * 1.0
    std, squares = scale * math.sqrt(squared_sensitivity(strategy)), np.zeros(2)
    for _ in range(15):
        answers = Measured(strategy, list(measured(strategy, x, std, chance)), std)
        extra = extra_columns(GUESSES[:1], answers, (block, small))
        off = extra.shrunk.answer(block) - block.apply(x)
        squares += np.mean(off**2), extra.told_errors([0])["shrunk"].rmse ** 2
        assert extra.told_errors([1]) == {}
    assert squares[1] == pytest.approx(squares[0], rel=0.2)


def test_the_told_error_and_its_interval_are_those_of_dense_algebra():
    """A linear guess `J y` of 12 answers, of which everything is known."""
    chance, std = np.random.default_rng(3), 2.0
    mixed, truth = np.linalg.qr(chance.normal(size=(12, 12)))[0], chance.normal(0, 1.0, 12)
    rows = mixed * np.sqrt(np.linspace(0.3, 3, 12))
    covariance = std**2 * rows @ rows.T
    slopes = chance.normal(0, 0.02, (12, 12)) + np.diag(np.linspace(0.6, 1.3, 12))
    variance, followed = np.trace(covariance), covariance @ slopes.T
    products = np.trace(covariance @ covariance), np.trace(followed @ followed)

    def told(y, signs):
        noise = std * signs @ rows.T
        off = slopes @ y - y
        cross, away = noise @ (noise @ slopes.T).T, noise @ off
        return told_error(off @ off, noise @ noise.T, cross, away, variance, 12)

    missed, spreads = [], []
    for _ in range(4000):
        y = truth + std * rows @ chance.normal(size=12)
        off = slopes @ y - y
        estimate = off @ off - variance + 2 * np.trace(followed)
        missed.append(estimate - np.sum((slopes @ y - truth) ** 2))
        spreads.append(4 * off @ covariance @ off - 2 * products[0] + 4 * products[1])
    assert np.mean(missed) == pytest.approx(0, abs=6 * np.std(missed) / math.sqrt(4000))
    assert np.mean(spreads) == pytest.approx(np.mean(np.square(missed)), rel=0.15)
    far = truth + 2 * std * rows @ np.ones(12)  # far off: the floor does not bind
    off = slopes @ far - far
    estimate = off @ off - variance + 2 * np.trace(followed)
    spread = 4 * off @ covariance @ off - 2 * products[0] + 4 * products[1]
    many = told(far, chance.choice([-1.0, 1.0], (3000, 12)))
    assert 12 * many.rmse**2 == pytest.approx(estimate, rel=0.02)
    half = 12 * (many.high**2 - many.low**2) / 2
    assert half == pytest.approx(1.96 * math.sqrt(spread), rel=0.05)
    assert 12 * many.low**2 == pytest.approx(12 * many.rmse**2 - half, rel=1e-9)
    apart, slopes_seen = np.eye(4), np.diag([0.2, 0.4, 0.6, 0.8])  # chance in the slopes alone
    few = told_error(100.0, apart, slopes_seen, np.zeros(4), variance, 12)
    deviation = np.std(np.diag(slopes_seen), ddof=1) / math.sqrt(4)
    assert 12 * (few.high**2 - few.rmse**2) == pytest.approx(1.96 * 2 * variance * deviation)


def test_each_column_is_told_its_own_error(monkeypatch):
    """Guesses of zeros, and guesses that are the estimates themselves: both errors are known."""
    shape = (9, 8)
    block = marginal(shape, (0, 1))
    strategy = chosen(Workload(shape, (block,), (1.0,)), "gaussian")
    x, std = np.full(shape, 30.0), 2 * math.sqrt(squared_sensitivity(strategy))
    noisy = list(measured(strategy, x, std, np.random.default_rng(1)))
    extra = extra_columns(GUESSES, Measured(strategy, noisy, std), (block,))

    def fitted(columns, block):
        estimates = columns.shrunk.measured.estimates.answer(block, None).ravel()
        return 0 * estimates, estimates

    monkeypatch.setattr(ExtraColumns, "fitted", fitted)
    told = extra.told_errors([0])
    squares = np.sum(fitted(extra, block)[1] ** 2)
    variance = std**2 * total_of(strategy.variances(block, position=None), block)
    assert told["shrunk"].rmse == pytest.approx(math.sqrt((squares - variance) / 72), rel=1e-9)
    assert told["averaged"].rmse == pytest.approx(math.sqrt(variance / 72), rel=1e-9)
    monkeypatch.setattr("dpquery.reconstruction.columns.MOST_REFITTED", 71)
    assert list(extra.told_errors([0])) == ["shrunk"]


def test_of_an_error_that_noise_hides_an_upper_end_is_told_and_of_less_than_that_nothing():
    signs = np.ones((4, 4)) + np.eye(4)
    hidden = told_error(100.0, 25 * signs, 0 * signs, np.full(4, 50.0), 100.0, 10)
    assert (hidden.rmse, hidden.low) == (None, 0.0)
    assert hidden.high > math.sqrt(1.96 * 50 / 10)
    assert told_error(0.0, 0.01 * signs, 0 * signs, np.zeros(4), 100.0, 10) is None


def test_the_mean_with_fitted_rows_errs_less_and_rows_that_explain_nothing_are_left_out():
    shape = (30, 20, 12)
    blocks = tuple(marginal(shape, pair) for pair in combinations(range(3), 2))
    strategy = chosen(Workload(shape, blocks, (1.0,) * 3), "gaussian")
    chance = np.random.default_rng(7)
    shares = [np.arange(1.0, size + 1) ** -1 for size in shape]
    shares = [each / each.sum() for each in shares]
    even = math.prod(np.ix_(*shares)).ravel()
    codes = chance.choice(even.size, 5000, p=even)
    x = np.bincount(codes, minlength=even.size).reshape(shape) * 1.0
    x[np.arange(12), np.arange(12), np.arange(12)] += 50  # some hang together
    squares = np.zeros(3)
    for scale in (10.0, 10.0, 10.0, 0.001):
        std = scale * math.sqrt(squared_sensitivity(strategy))
        noisy = list(measured(strategy, x, std, chance))
        answers = Measured(strategy, noisy, std)
        extra = extra_columns(GUESSES, answers, blocks)
        assert (extra.rows is None) == (scale < 1)
        for block in blocks:
            shrunk, averaged = extra.fitted(block)
            if scale < 1:
                assert np.array_equal(averaged, shrunk)
                continue
            rows = extra.rows.answer(block).ravel()
            assert averaged == pytest.approx((shrunk + rows) / 2, rel=1e-12)
            truth = table_of(x, block.attributes).ravel()
            squares += [np.sum((each - truth) ** 2) for each in (shrunk, rows, averaged)]
            cells = answers.estimates.answer(block, None).ravel()
            explained = np.mean((rows - cells) ** 2) / np.mean((truth - cells) ** 2)
            assert 0.5 < explained < 1.5
    assert squares[2] < min(0.9 * squares[0], squares[1])


def test_noise_around_independent_attributes_is_not_believed():
    shape = (30, 20)
    block = marginal(shape, (0, 1))
    strategy = chosen(Workload(shape, (block,), (1.0,)), "gaussian")
    x = np.multiply.outer(np.linspace(1, 9, 30), np.linspace(2, 6, 20))
    std = 6.0 * math.sqrt(squared_sensitivity(strategy))
    noisy = list(measured(strategy, x, std, np.random.default_rng(2)))
    answers = Measured(strategy, noisy, std)
    noise = answers.estimates.answer(block, None) - x
    left = ShrunkTables(answers, (block,)).answer(block) - x
    assert np.sum(left**2) < 0.15 * np.sum(noise**2)


def test_with_hardly_any_noise_the_guess_is_the_truth():
    shape = (30, 20, 12)
    blocks = (
        marginal(shape, (0, 1)),
        product(shape, {0: Stacked((Identity(30), total(30))), 2: Identity(12)}),
    )
    strategy = chosen(Workload(shape, blocks, (1.0, 1.0)), "gaussian")
    chance = np.random.default_rng(1)
    x = sparse_population(3000, chance)
    noisy = list(measured(strategy, x, 1e-3, chance))
    tables = ShrunkTables(Measured(strategy, noisy, 1e-3), blocks)
    for block in blocks:
        truth = block.apply(table_of(x, block.attributes))
        assert tables.answer(block) == pytest.approx(truth, abs=0.05)


def test_what_cannot_be_shrunk_is_left_out_with_its_reason():
    shape = (2,) * 9
    wide, small = marginal(shape, range(7)), marginal(shape, (0, 8))
    strategy = chosen(Workload(shape, (wide, small), (1.0, 1.0)), "gaussian")
    scope = fittable_tables(strategy, (wide, small), not_shrunk)
    assert scope.subsets == (None, (0, 8))
    assert "more than 6 attributes" in scope.reasons[0]
    noisy = list(measured(strategy, np.ones(shape), 1.0, np.random.default_rng(0)))
    tables = ShrunkTables(Measured(strategy, noisy, 1.0), (wide, small))
    assert tables.answer(wide) is None
    assert tables.answer(small).shape == (2, 2)


def test_sums_of_many_cells_are_not_shrunk():
    shape = (9, 3)
    blocks = (
        product(shape, {0: Prefix(9), 1: Identity(3)}),
        product(shape, {0: Stacked((WidthRanges(9, 2), total(9)))}),
        product(shape, {0: Valued(total(9), np.arange(9)), 1: Identity(3)}),
        Block(shape, (0, 1), (Identity(9), Identity(3)), (True, True), 1),
        product(shape, {0: Groups.of(((0, 1, 2), (2, 3)), 9), 1: Identity(3)}),
        product(shape, {0: WidthRanges(9, 1), 1: Stacked((Identity(3), total(3)))}),
        product(shape, {0: Groups.of(((0, 1, 2), (3, 8)), 9), 1: Identity(3)}),
    )
    strategy = chosen(Workload(shape, blocks, (1.0,) * len(blocks)), "gaussian")
    scope = fittable_tables(strategy, blocks, not_shrunk)
    assert [bool(reason) for reason in scope.reasons] == [True] * 5 + [False] * 2
    assert "sums of shrunk cells" in scope.reasons[0]
    assert "sums, not counts" in scope.reasons[2]
    assert "its queries overlap" in scope.reasons[4]


@pytest.mark.parametrize("column", ["shrunk", "averaged"])
def test_a_release_has_the_column_its_expected_error_and_the_same_bytes_again(
    released_town, column
):
    plain, paid = contents("release"), spent()
    before = pq.read_table("release/pairs.parquet")
    ok(*RELEASE, "--also", column)
    with_guess = contents("release")
    frame = pq.read_table("release/pairs.parquet")
    assert frame.column_names == [*before.column_names, column]
    assert frame["estimate"].equals(before["estimate"])
    assert min(frame[column].to_pylist()) >= 0
    ok(*RELEASE, "--also", column)
    assert contents("release") == with_guess
    ok(*RELEASE)
    assert (contents("release"), spent()) == (plain, paid)


@pytest.mark.parametrize(
    ("column", "told", "words"),
    [
        ("averaged", ToldError(12.5, 10.0, 14.5), "about 12.5 (10 to 14.5, 95 %)"),
        ("shrunk", ToldError(None, 0.0, 14.5), "at most 14.5 (95 %)"),
        ("averaged", None, ""),
    ],
)
def test_the_told_error_stands_where_the_column_is_described(
    town, monkeypatch, column, told, words
):
    errors = {} if told is None else {column: told}
    monkeypatch.setattr(ExtraColumns, "told_errors", lambda *_: errors)
    screen = ok(*RELEASE, "--also", column).out
    (facts,) = json.loads(Path("release/release.json").read_text())["extra"]
    kept = {key: facts[key] for key in facts if key.startswith("expected")}
    statement = " ".join(Path("release/statement.md").read_text().split())
    report = ok("error-report").out
    if told is None:
        assert not kept
        assert "errs by" not in screen + report
        assert "its answers err by" not in statement
        return
    figures = {} if told.rmse is None else {"expected_rmse": told.rmse}
    assert kept == figures | {"expected_interval": [told.low, told.high]}
    assert f"closest: `{column}` errs by {words}, as the noisy values tell\n" in screen
    assert f"As the noisy values tell, its answers err by {words}: the root mean" in statement
    assert f"`{column}` errs by {words}, as the noisy values tell" in report
    ok("package")
    quality = " ".join(Path("package/quality.md").read_text().split())
    assert f"All counts together, `{column}` errs by {words}, as the noisy" in quality
    assert f"and unbiased. The column `{column}` is biased: the " in quality
    nearer = json.loads(ok(*RELEASE, "--also", column, "--json").out)["nearer"]
    assert nearer == {"column": column, "rmse": told.rmse, "interval": [told.low, told.high]}


def test_later_answers_agree_with_the_column_of_the_release(town):
    ok(*RELEASE, "--also", "shrunk")
    Path("more.yaml").write_text("workload:\n  - {name: sexes, product: {sex: identity}}\n")
    ok("answer", "release", "more.yaml", "--also", "shrunk")
    later = pq.read_table("answers/sexes.parquet").to_pandas().set_index("sex")["shrunk"]
    wide = pq.read_table("release/age_by_sex.parquet").to_pandas()
    released = wide.groupby("sex")["shrunk"].sum()
    for sex in later.index:
        assert later[sex] == pytest.approx(released[sex], rel=0.05, abs=1.0)


def test_a_column_that_no_table_would_have_is_refused(monkeypatch):
    shape = (2,) * 9
    wide = marginal(shape, range(7))
    strategy = chosen(Workload(shape, (wide,), (1.0,)), "gaussian")
    with pytest.raises(UnsupportedWorkloadError, match="no table can be shrunk: a table has more"):
        check_columns((ExtraColumn("shrunk"),), strategy, (wide,))
    check_columns((ExtraColumn("shrunk"),), strategy, (wide, marginal(shape, (0, 1))))
    wide = marginal((800, 800), (0, 1))
    strategy = chosen(Workload(wide.shape_of_domain, (wide,), (1.0,)), "gaussian")
    check_columns((ExtraColumn("shrunk"),), strategy, (wide,))
    with pytest.raises(UnsupportedWorkloadError, match="and these have 640,000; take --also shr"):
        check_columns((ExtraColumn("averaged"),), strategy, (wide,))
    monkeypatch.setattr("dpquery.reconstruction.columns.MAX_AVERAGED_CELLS", 800 * 800 + 2 * 800)
    check_columns((ExtraColumn("averaged"),), strategy, (wide,))
