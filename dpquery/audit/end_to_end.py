"""Releases from the command line, in processes of their own, and what a record moves in them.

The parts of the audit that look at whole releases: lattice, residuals, independence.

A generator that is seeded when the program starts gives one process different noise every time, and
the next process all of it again.

The law of the noise is known, so the best event is one of the likelihood ratio: where it passes a
threshold. The threshold is chosen on a third of the values, the event's probabilities are bounded
on the rest [Clopper-Pearson], and no mechanism that keeps its claim can have such probabilities.
"""

import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.special import ndtr, ndtri
from scipy.stats import poisson

from dpquery.arrays import Floats, Ints
from dpquery.audit.cases import SOURCE_SPEC, Size, records_of_sources, write_csv, writers
from dpquery.audit.dense_strategy import Cell, DenseRows, DenseStrategy, queries_of
from dpquery.audit.measurements import (
    MeasuredPart,
    RepeatedReleases,
    neighbouring_measurements,
    noise_in,
    query_of,
    register,
    repeated_releases,
    tables_of,
    units,
    values_of,
)
from dpquery.audit.planned_cases import PlannedPart, cases, planned_case, private_folder
from dpquery.audit.statistics import (
    ALPHA,
    Finding,
    NoiseDistribution,
    chi_square,
    combined,
    event_bounds,
    goodness_of_fit,
    pure_loss,
)
from dpquery.measurement.accounting import UNIT, units_text
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.spec.parsing.read import parse
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.strategy import Noise
from dpquery.untrusted.json_values import mapping


def two_processes(planned: PlannedPart) -> Finding:
    """Test that `dpquery release` in two processes, on copies of one folder, differs in noise."""
    with private_folder() as folder:
        first, second = folder / "first", folder / "second"
        first.mkdir()
        write_csv(first / "data.csv", planned.records, planned.spec)
        (first / "dpquery.plan").write_bytes(planned.plan)
        register(planned, first / "state" / "ledger.db")
        shutil.copytree(first, second)
        values = [_released(planned, directory) for directory in (first, second)]
    equal, rows = int((values[0] == values[1]).sum()), planned.strategy.length
    return Finding.of_chance(
        planned.subject,
        "the same command in another process draws other noise",
        float(poisson.sf(equal - 1, rows * planned.noise.law.all_equal(2))),
        f"{equal} of {rows:,} values are equal",
        draws=2 * rows,
    )


def _released(planned: PlannedPart, folder: Path) -> Ints:
    case = planned.case
    command = ["release", "data.csv", "--plan", "dpquery.plan", "--noise", case.noise]
    command += ["--epsilon", f"{float(case.epsilon)!r}", "--ledger", "state/ledger.db"]
    process = subprocess.run(  # noqa: S603 this very program, on a file that was just made up
        [sys.executable, "-m", "dpquery", *command], cwd=folder, capture_output=True, check=False
    )
    if process.returncode:
        raise ValueError(f"`dpquery release` ended in another process with {process.returncode}")
    return values_of(folder / "release")


_MOST_PAIRED = 200  # rows of which every pair is looked at
_LEAST_TERMS = 200  # of a sum, for its law to be normal as far out as ALPHA
_MOST_EXPECTED = 5.0  # coincidences, for their number to be Poisson


def dependence(values: Ints, law: NoiseDistribution) -> float:
    """Return the p-value of noise being independent. values: (replicates, rows).

    Every value is turned into its place in the law, which is about uniform, and so is its distance
    from the middle: products of two of either add up to normal sums if all are independent.
    """
    return _dependence(law.scores(values))


def _dependence(places: Floats) -> float:
    p_values = [
        p
        for scores in (places, np.asarray(2 * np.abs(places) - math.sqrt(3)))
        for p in _pairwise(scores)
    ]
    return combined(p_values)


def _pairwise(scores: Floats) -> list[float]:
    replicates, rows = scores.shape
    sums: list[Floats] = []
    if replicates >= _LEAST_TERMS and rows <= _MOST_PAIRED:
        sums.append(np.triu(scores.T @ scores, 1) / math.sqrt(replicates))
        sums.append(scores[:-1].T @ scores[1:] / math.sqrt(replicates - 1))
    else:
        if rows >= _LEAST_TERMS // 2:
            sums.append(np.triu(scores @ scores.T, 1) / math.sqrt(rows))
        sums.append(_lagged(scores))
    return [combined(2 * ndtr(-np.abs(normal[normal != 0]))) for normal in sums]


def _lagged(scores: Floats) -> Floats:
    """Return the normed sums of products of rows that are some lag apart, one for every lag."""
    replicates, rows = scores.shape
    spectrum = np.fft.rfft(scores, 2 * rows, axis=1)
    sums = np.fft.irfft(np.abs(spectrum) ** 2, 2 * rows, axis=1)[:, 1:rows].sum(axis=0)
    terms = replicates * (rows - np.arange(1, rows))
    enough = terms >= _LEAST_TERMS
    return np.asarray(sums[enough] / np.sqrt(terms[enough]))


def repeats(values: Ints, law: NoiseDistribution) -> float:
    """Return the p-value of the number of repeated values of the noise. values: (releases, rows).

    That is: in one row of two releases, in two rows of one release, and in one row of all releases.
    """
    releases, rows = values.shape
    p_values = [_coincidences(values, law)]
    if math.comb(rows, 2) * releases * law.all_equal(2) < _MOST_EXPECTED:
        p_values.append(_coincidences(values.T, law))
    if releases > 2:
        constant = bool((values == values[0]).all(axis=0).any())
        p_values.append(min(1.0, rows * law.all_equal(releases)) if constant else 1.0)
    return combined(p_values)


def _coincidences(values: Ints, law: NoiseDistribution) -> float:
    """Return the p-value of the number of values that repeat an earlier one of their column."""
    size, columns = values.shape
    repeated = sum(size - np.unique(column).size for column in values.T)
    return float(poisson.sf(repeated - 1, columns * math.comb(size, 2) * law.all_equal(2)))


_SCALE_SLACK = 1e-6  # of the scale, above what is needed: it is rounded up to a float
_FIGURES_SLACK = 1e-6
ON_GRID = "values are whole steps of the grid"
_SMALL = 4_000_000  # entries of the matrices by which estimates are worked out apart
_HUGE = (1 << 33) + 12_345  # records in a cell, of three: fewer than the 2^36 that may be
_GROUP = 2_000  # values that are tested against the law together


def lattice(size: Size) -> Iterator[Finding]:
    """Compare answers before and after the noise with those computed in Python integers."""
    for case in cases(size):
        releases = repeated_releases(case, size)
        yield _exactness(planned_case(case, size))
        yield _grid(releases)
        yield _charge(releases)


def residuals(size: Size) -> Iterator[Finding]:
    """Test released minus exact answers against the noise distribution at the recomputed scale."""
    for case in cases(size):
        releases = repeated_releases(case, size)
        for released in releases.parts:
            # compare the scale and sensitivity in the manifest with the recomputed ones
            planned = released.planned
            noise, needed = noise_in(releases.manifest, planned), planned.noise.law.scale
            given = Fraction(float(str(noise["scale"])))
            same = int(str(noise["sensitivity"])) == planned.noise.sensitivity
            enough = -1e-12 <= given / needed - 1 <= _SCALE_SLACK
            yield Finding(
                planned.subject,
                "scale and sensitivity are what plan, unit and epsilon demand",
                same and enough,
                f"scale {float(given):.10g}, by brute force over all columns {float(needed):.10g}",
            )
            yield _law([released], "released less exact follows the law, in every block")
        if case.repeated:
            for both in neighbouring_measurements(case, size):
                yield _law(both, "measured less exact follows the law, in every row")


def independence(size: Size) -> Iterator[Finding]:
    """Test that noise is independent between rows and releases, and never used twice."""
    for case in cases(size):
        releases = repeated_releases(case, size)
        yield _independent([[released] for released in releases.parts], "releases")
        planned, released = releases.planned, releases.parts[0].residuals
        p, evidence = repeats(released, planned.noise.law), f"{len(released)} releases"
        yield Finding.of_chance(planned.subject, "no noise is used twice", p, evidence)
        if case.repeated:
            yield _independent(neighbouring_measurements(case, size), "replicates")
        if case.apart and not size.quick:
            yield two_processes(planned)


def _exactness(parts: Sequence[PlannedPart]) -> Finding:
    """Compare the curator's counts and exact answers with those of the audit."""
    planned = parts[0]
    query, records = query_of(planned), planned.records
    tables = tables_of(query, records)
    huge = Counter(dict.fromkeys(planned.strategy.cells[::7][:3], _HUGE))
    cells = [each for part in parts for each in part.cells(records)]
    strategies = [part.strategy for part in parts for _ in range(part.copies)]
    many = [huge + each for each in cells]
    same = all(np.array_equal(tables[b], _table(cells, planned, b)) for b in tables)
    pairs = ((dict(tables), cells), ({b: _table(many, planned, b) for b in tables}, many))
    for given, counted in pairs:
        pairs_of = zip(strategies, counted, strict=True)
        exact = np.concatenate([strategy.answers(each) for strategy, each in pairs_of])
        same &= np.array_equal(query._exact(given), exact)
    return Finding(
        planned.subject,
        "records are counted, and answered before the noise, exactly",
        same,
        f"{'the same' if same else 'NOT the same'} in Python integers, for "
        f"{len(records)} records and for {3 * _HUGE:,} more",
    )


def _table(counted: Sequence[Counter[Cell]], planned: PlannedPart, b: Subset) -> Ints:
    """Return a table; where more is counted beside, all along a first axis."""
    tables = np.zeros([len(counted), *(planned.strategy.shape[i] for i in b)], dtype=np.int64)
    for part, cells in enumerate(counted):
        for cell, count in cells.items():
            tables[(part, *(cell[i] for i in b))] += count
    return tables if len(counted) > 1 else np.asarray(tables[0])


def _grid(releases: RepeatedReleases) -> Finding:
    """Compare published estimates and errors with least squares on the measured integers."""
    shift = int(str(mapping(releases.manifest["noise"])["shift"]))
    same_grid = shift == releases.planned.strategy.shift
    strategy, spec = releases.planned.strategy, releases.planned.spec
    small = (strategy.length + spec.queries) * len(strategy.cells) <= _SMALL
    worst, claim, compared = 0.0, ON_GRID, "too many estimates to work out apart"
    if small:
        claim = f"{ON_GRID}, estimates and errors follow from them"
        expected = _estimates(releases)
        parts = np.split(
            expected[:, 1], np.cumsum([item.size for item in releases.planned.spec.items])[:-1]
        )
        summary = np.array([[math.sqrt((part**2).mean()), part.max()] for part in parts])
        pairs = ((releases.answers, expected), (releases.errors, summary))
        worst = max(float((np.abs(a - b) / np.abs(b).max(axis=0)).max()) for a, b in pairs)
        compared = f"estimates and errors within {worst:.1g} of least squares"
    return Finding(
        releases.planned.subject,
        claim,
        same_grid and worst < _FIGURES_SLACK,
        f"steps of 2^{shift}; {compared}",
    )


def _estimates(releases: RepeatedReleases) -> Floats:
    """Return (estimate, standard error) of all queries by dense least squares: (queries, 2)."""
    strategy, noise = releases.planned.strategy, releases.planned.noise
    step = 2.0**strategy.shift * float(releases.planned.spec.privacy.step)
    W = [_matrix(rows, strategy) for rows in queries_of(releases.planned.spec, strategy.classes)]
    A = [_matrix(rows, strategy) for rows in strategy.rows]
    solved: list[Floats] = [np.zeros(0)] * len(W)  # of each block of queries, over all rows
    first, before = 0, 0
    for blocks, places in strategy.apart or ((len(A), range(len(W))),):
        part = np.concatenate(A[first : first + blocks])
        peak = np.abs(part).max()
        inverse = np.linalg.pinv(part / peak, rcond=1e-10) * (step / peak)
        after = strategy.length - before - len(part)
        for place in places:
            solved[place] = np.pad(W[place] @ inverse, ((0, 0), (before, after)))
        first, before = first + blocks, before + len(part)
    C = np.concatenate(solved)
    errors = noise.law.std * np.sqrt((C**2).sum(axis=1))
    return np.stack([C @ releases.parts[0].values[0].astype(np.float64), errors], axis=1)


def _matrix(rows: DenseRows, strategy: DenseStrategy) -> Floats:
    return np.stack([rows.column(cell) for cell in strategy.cells], axis=1).astype(np.float64)


def _charge(releases: RepeatedReleases) -> Finding:
    """Compare the charge on record when the data was opened with what the noise costs."""
    due = [units(released.planned, releases.manifest) for released in releases.parts]
    least, most = (sum(ends) for ends in zip(*due, strict=True))
    least -= len(due) - 1  # each part is rounded up
    paid, free = releases.made[0].paid, releases.again.free
    early = all(each.early and each.paid == paid for each in releases.made)
    # the manifest states the guarantee that was charged, exactly
    charged = Fraction(str(mapping(releases.manifest["guarantee"])["charged"]))
    stated = Fraction(paid, UNIT)
    if releases.planned.case.noise == "laplace":
        stated = math.ceil(releases.planned.case.epsilon * UNIT) / Fraction(UNIT)
    return Finding(
        releases.planned.subject,
        "the noise is paid for before the records are read, once",
        early and free and charged == stated and least <= paid <= most,
        f"charged {units_text(paid)}, due {units_text(least)}, "
        f"{'before' if early else 'NOT before'} reading; "
        f"{'free' if free else 'NOT free'} the second time",
    )


def _law(measured: Sequence[MeasuredPart], claim: str) -> Finding:
    """Test residuals against the noise distribution: all together, and in groups of rows."""
    planned, values = measured[0].planned, np.concatenate([each.residuals for each in measured])
    law, groups = planned.noise.law, _groups(planned, values)
    spread = float(np.sqrt((values.astype(np.float64) ** 2).mean())) / law.std
    return Finding.of_chance(
        planned.subject,
        claim,
        combined([goodness_of_fit(group, law) for group in groups]),
        f"{values.size:,} draws, all together and in parts: {len(groups) - 1}, spread "
        f"{spread:.4f} of what is due",
        draws=values.size,
    )


def _groups(planned: PlannedPart, values: Ints) -> list[Ints]:
    """Return all values, and those of each row; of blocks and their pieces if rows have few."""
    if len(values) >= 100:
        return [values, *values.T]
    groups, start = [values], 0
    for block in planned.strategy.rows:
        part = values[:, start : start + block.length]
        start += block.length
        pieces = max(1, part.size // _GROUP)
        groups += [piece for piece in np.array_split(part, pieces, axis=1) if piece.size >= 100]
    return groups


def _independent(parts: Sequence[Sequence[MeasuredPart]], what: str) -> Finding:
    """Test the noise of all parts together, of the one or two data sets that were measured."""
    scores = np.concatenate(
        [
            part[0].planned.noise.law.scores(np.concatenate([each.residuals for each in part]))
            for part in parts
        ],
        axis=1,
    )
    return Finding.of_chance(
        parts[0][0].planned.subject,
        f"the noise of no two rows, and of no two {what}, depends on each other",
        _dependence(scores),
        f"{scores.size:,} draws",
    )


_RECORDS, _LEFT_OUT = 240, (0, 79, 80, 151, 239)  # at the ends of files, batches and row groups too


def readers() -> Iterator[Finding]:
    """Count made-up records from every kind of source, and again without some of them."""
    spec = parse(SOURCE_SPEC, name="made-up", files={})
    every = tuple(range(len(spec.domain.shape)))
    subsets = [every, (), *((i,) for i in every)]
    table, codes = records_of_sources(_RECORDS)
    kept = [np.delete(np.arange(_RECORDS), left) for left in ((), *_LEFT_OUT)]
    for kind, write in writers().items():
        wrong = 0
        with private_folder() as folder:
            for records in kept:
                location = write(table.take(records), folder)
                check_header(location, spec)
                expected = np.zeros(spec.domain.shape, np.int64)
                np.add.at(expected, tuple(codes[records].T), 1)
                for subset, counts in tabulate(location, spec=spec, subsets=subsets).items():
                    summed = tuple(i for i in every if i not in subset)
                    wrong += not np.array_equal(counts, expected.sum(axis=summed))
        yield Finding(
            f"{kind}: {_RECORDS} records of numbers, texts, dates, blanks and nulls",
            "one record more is one more in its own cell, and moves no other",
            not wrong,
            f"{len(_LEFT_OUT)} records left out one by one: {wrong} of "
            f"{len(kept) * len(subsets)} tables are not what the records say",
            neighbours=len(_LEFT_OUT),
        )


_PERSONS, _YEARS = 6_000, 5
_SPEC = f"""\
dataset: {{id: made-up}}
privacy: {{unit: {{person: id, max_rows: 2}}}}
budget: {{epsilon: 1}}
domain: {{year: {{range: [1, {_YEARS}]}}}}
workload:
  - {{name: years, product: {{year: identity}}}}
  - {{name: rows, rows_per_person: {{up_to: {_YEARS + 1}}}}}
"""


def rows_of_persons() -> Finding:
    """Count a panel that is sorted by year, and compare the years of the rows that count.

    Every kind of source has the panel, and the p-values of all of them are taken as one test.
    Of the two rows of each person one has the number of that person's rows, of any year, and the
    other the last code: so many persons, and as many rows more, have one number each. The rows of a
    person are two different years of five, so the counts of the years spread 3/4 as much as those
    of as many independent rows: they are blown up by that, about their mean.
    """
    spec = parse(_SPEC, name="made-up", files={})
    years = np.repeat(np.arange(1, _YEARS + 1), _PERSONS)
    panel = pa.table({"year": years, "id": np.tile(np.arange(_PERSONS), _YEARS)})
    of_years, of_numbers, kinds = [], [], writers()
    for write in kinds.values():
        with private_folder() as folder:
            location = write(panel, folder)
            table = tabulate(location, spec=spec, subsets=[(0, 1)])[0, 1][:_YEARS]
        p_value, p_numbered = _even(table)
        of_years.append(p_value)
        of_numbers.append(p_numbered)
    p_value, p_numbered = combined(of_years), combined(of_numbers)
    return Finding(
        f"{_PERSONS:,} persons of {_YEARS} rows, sorted by year, at most 2 of each: "
        + ", ".join(kinds),
        "of a person max_rows rows count, each as likely as the others, and one has their number",
        min(p_value, p_numbered) >= ALPHA,
        f"the years of the rows that count are even with a p-value of {p_value:.2g}, and of those "
        f"that have the number {_YEARS} with {p_numbered:.2g}",
        tests=2,
    )


def _even(table: Ints) -> tuple[float, float]:
    """Return p-values of all years being as likely: of the rows that count, of those numbered.

    Both are 0 where not every person has max_rows rows and one number. table: (years, numbers).
    """
    years, numbers = table.sum(axis=1), table.sum(axis=0)
    expected = np.zeros_like(numbers)
    expected[[_YEARS - 1, -1]] = _PERSONS
    if not (numbers == expected).all():
        return 0.0, 0.0
    mean = 2 * _PERSONS / _YEARS
    spread = np.rint(mean + (years - mean) * np.sqrt((_YEARS - 1) / (_YEARS - 2))).astype(np.int64)
    of_numbered = table[:, _YEARS - 1]
    return (
        chi_square(spread, np.full(_YEARS, mean)),
        chi_square(of_numbered, np.full(_YEARS, _PERSONS / _YEARS)),
    )


_QUANTILES = np.linspace(0.02, 0.98, 60)
_HAIR = 1e-9


def neighbours(size: Size) -> Iterator[Finding]:
    """Bound the privacy loss from below, for every case that is measured many times.

    That holds whichever rows of a person count; the last findings are that none is
    preferred, and that of all kinds of sources one record more is one more in its own cell.
    """
    for case in cases(size):
        if case.repeated:
            yield _privacy_loss(*neighbouring_measurements(case, size)[0])
    yield rows_of_persons()
    yield from readers()


def _privacy_loss(here: MeasuredPart, there: MeasuredPart) -> Finding:
    """Compare the privacy loss that the best event shows with the claim."""
    planned = here.planned
    law, amount = planned.noise.law, float(planned.noise.amount)
    shifts = (there.exact - here.exact).astype(np.int64)
    ratios = [
        law.log_ratio((each.values.astype(object) - here.exact).astype(np.int64), shifts)
        for each in (here, there)
    ]
    reached = shown_loss(*ratios, noise=planned.case.noise)
    name, claim = {
        "laplace": ("epsilon", amount),
        "gaussian": ("mu = sqrt(2 rho)", math.sqrt(2 * amount)),
        "rounded": ("mu", math.sqrt(amount)),
    }[law.noise]
    privacy = planned.spec.privacy
    unit = "a row" if privacy.person is None else f"a person of up to {privacy.max_rows} rows"
    change = "replaced" if privacy.neighbours == "replace" else "more"
    subject = f"{planned.subject}, {unit} {change}"
    return Finding.of_loss(subject, name, reached, claim, len(here.values))


def shown_loss(ratios: Floats, other_ratios: Floats, *, noise: Noise) -> float:
    """Return the loss that the event shows which distinguishes two data sets best."""
    third = len(ratios) // 3
    left = len(ratios) - third
    tried, other_tried = ratios[:third], other_ratios[:third]
    # A hair below each value: many Laplace ratios are all the largest, but for their rounding.
    thresholds = np.quantile(np.concatenate([tried, other_tried]), _QUANTILES) - _HAIR

    def loss(drawn: Floats, other_drawn: Floats, threshold: float, trials: int) -> float:
        # the least epsilon, or the least mu of Gaussian noise, that allows for an event
        p_low, q_high = event_bounds(drawn, other_drawn, threshold, trials=trials)
        if noise == "laplace":
            return pure_loss(p_low, q_high)
        return max(0.0, float(ndtri(p_low) - ndtri(q_high)))

    best = max(thresholds.tolist(), key=lambda least: loss(tried, other_tried, least, left))
    return loss(ratios[third:], other_ratios[third:], best, left)
