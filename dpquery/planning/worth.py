"""What each item of a plan is expected to be worth, and what would make the weakest one better.

All of it is known before any data: standard errors are, and so is the answer below which one will
be flagged. With the number of records, declared or about, two made-up populations of so many give
the verdicts that a report is likely to give. On 481 tables of 81 public files, at five noises, both
agreed in 71 % of the cases, and 83 % of these verdicts were the report's; where they differ, the
report's was one of the two in 87 % (`make bench-expect`). Where both are wrong it is worse.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Literal

import numpy as np

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import SpecError, UnsupportedWorkloadError
from dpquery.measurement.noise.calibration import OF_SAMPLE, steps
from dpquery.operators.blocks import Workload, product
from dpquery.operators.compile import CompiledSpec, factor
from dpquery.operators.factors import Factor
from dpquery.plan_file.plan import ItemFigures, Plan
from dpquery.planning.figures import SelectionAtBudget, selection_std
from dpquery.planning.rehearsal.populations import AttributeTree, Proxy, public_records
from dpquery.planning.targets import DerivedErrors
from dpquery.reconstruction.intervals import standard_errors
from dpquery.reconstruction.replicate_errors import least_told
from dpquery.reconstruction.sampling import LEAST, SampleDesign, of_squared_values
from dpquery.releases.report.figures import GOOD_ERROR, GRADE_NAMES, Judgement
from dpquery.releases.tables.item_table import NOISY, flags, lower_median, relative_errors
from dpquery.spec.predicates import even_spread
from dpquery.spec.spec import Spec
from dpquery.strategy.expected_error import ExpectedError
from dpquery.strategy.search.select import select
from dpquery.strategy.strategy import Noise

WIDTHS = {"gaussian": NormalDist().inv_cdf(0.975), "laplace": math.log(20) / math.sqrt(2)}
"""Standard errors in half of a 95 % interval; of Laplace noise that of one measured row, which is
the widest: an answer that adds up many is nearer to a normal one."""
UNEVEN = AttributeTree((0.05, 0.25, 0.1, 0.45), (1.5, 2.0, 3.0), longest=12)
MILDER = AttributeTree((0.0,), (1.0,), longest=12)
"""The populations that items are judged on: more uneven than those of rehearsals, as tables are."""
MOST_JUDGED = 200, 1_000_000  # tables and answers of an item that is judged
MOST_TRIED = 20_000  # answers that derived items are made of which are tried
NEAR = 0.9  # of its error: what an item could err alone is then worth no word
FACTORS = (25.0, 4.0)  # of a weight that are tried, the larger one first
CHEAP = 0.05  # the others may be so much worse for a larger weight to be nearly free
MOST_WEIGHED = 500  # tables of a plan whose items are tried with other weights
TARGET = 0.2  # of the average answer: a standard error that leaves most answers without a flag


@dataclass(frozen=True)
class ItemWorth:
    """What the answers of an item are expected to be worth, in counts or the unit of its sums."""

    name: str  # of the item
    queries: int  # how many answers it has
    rmse: float  # their expected root mean square error
    # the mean answer over the number of all records, where these are public, or are spread evenly
    # over all values; None of sums and thresholds
    share: float | None
    meet: float  # the share of all records that is taken to meet its `where`; 1 without one
    records: int | None  # how many there are, about; None where nobody said
    noise: Noise  # what is added
    # what is made of the errors on each population; nothing without `records`, for rows of persons,
    # for sums on made-up records, whose size nobody knows, and for items with very many answers
    judged: tuple[Judgement, ...]
    # how many records must meet its `where` for it to be "good", and "fair", as far as all of them
    # are enough; None without one, and on public records, which say how many meet it
    needs: dict[str, int] | None = field(default=None, hash=False)
    # of sums, where squared weights are measured, the least error of an answer of the same with
    # squared values, as if all noise were theirs; None where these are not measured
    squares_error: float | None = None
    # where strata or clusters of the sample are declared, whether what is measured by these is
    # expected to tell the error of an average answer
    by_design: Literal["told", "hidden", "not measured"] | None = None
    # where replicate weights are measured, from what standard error of the sample on they tell it
    told_from: float | None = None

    @property
    def within(self) -> float:
        """Half of a 95 % interval around a typical answer."""
        return WIDTHS[self.noise] * self.rmse

    @property
    def flagged_below(self) -> float:
        """The answer below which one is flagged as noisy."""
        return self.rmse / NOISY

    @property
    def average(self) -> float | None:
        """The mean answer."""
        return None if self.share is None or self.records is None else self.share * self.records

    def sample_std(self, effective: int) -> float | None:
        """The standard error that the mean answer has of a simple random sample of so many."""
        if self.share is None or self.records is None:
            return None
        return self.records * math.sqrt(self.share * (1 - self.share) / effective)

    def sampled_from(self, ratio: float, cap: float) -> float:
        """From about what answer on there is a `sampling_std`; infinite where there is none.

        It is made of a sum of squared weights, of `cap` at most each, which is expected to be the
        answer times a ratio and has the noise that a part of the budget leaves it. Of sums it is
        the least root mean square of what all records add up, if one answer is of all.
        """
        times = LEAST * cap * squares_noise(self.noise)
        if not ratio or (self.share is None and not (self.squares_error and self.records)):
            return math.inf
        if self.share is not None:
            return times * self.rmse / ratio
        return math.sqrt(times * (self.squares_error or 0.0) / ratio / (self.records or 1))

    @property
    def relative(self) -> float | None:
        """The error over the median answer; None where that is none, or not known."""
        return self.judged[0].median_rel_error if self.judged else None

    @property
    def within_shares(self) -> list[float | None]:
        """Half of a 95 % interval over the median answer, one for each of `grades`."""
        errors = {judged.grade: judged.median_rel_error for judged in reversed(self.judged)}
        shown = [errors[grade] for grade in self.grades]
        return [None if error is None else WIDTHS[self.noise] * error for error in shown]

    @property
    def grades(self) -> list[str]:
        """The verdicts to expect, the better one first: one, or two where populations differ."""
        given = {judged.grade for judged in self.judged}
        return [grade for grade in GRADE_NAMES if grade in given]

    @property
    def grade(self) -> str | None:
        """The verdict that is likeliest: good, fair or weak."""
        return self.judged[0].grade if self.judged else None

    @property
    def weakness(self) -> tuple[float, float]:
        """What is larger of an item that is worth less: flagged answers, errors for its size."""
        flagged = 0.0 if self.grade in (None, "good") else self.judged[0].flagged_share or 0.0
        return flagged, self.rmse / (self.share or math.inf)

    @property
    def good_from(self) -> int:
        """The number of records from which it is good; in each answer where no share is known."""
        return _rounded_up(self.rmse / GOOD_ERROR / (self.share or 1))


@dataclass(frozen=True)
class Weighed:
    """What a larger weight of an item does, by quick searches with and without it."""

    item: str  # its name
    weight: float  # to write into the spec
    rmse: float  # that of the item with this weight, about
    others: float  # by how much another item is worse at most, as a share
    within: float  # half of a 95 % interval around a typical answer of the item

    @property
    def cheap(self) -> bool:
        """Whether the others hardly lose by it."""
        return self.others <= CHEAP


@dataclass(frozen=True)
class WorstItem:
    """What there is to know of the item with the largest RMSE, of sums over their unit."""

    name: str  # of the item
    rmse: float  # its expected root mean square error, in counts or in the unit of its sums
    alone: float  # that of a quick strategy for this item alone, or `rmse` where that is less
    doubled: float  # what all errors of the plan are multiplied by at twice the epsilon
    # the mean of its answers; None where the number of records is not declared
    average: float | None


@dataclass(frozen=True)
class DerivedWorth:
    """What a derived item is expected to be worth, tried on the populations of all items."""

    name: str  # of the item
    kind: str  # of the statistic: share, ratio, mean, difference, rate, quantiles or merged
    rows: int  # how many it has
    # half of a 95 % interval of the median row, the same on the milder population, and of the
    # widest row of both, in its own unit; None where no row has a value
    within: float | None
    milder: float | None
    at_worst: float | None
    # how many rows are likely to have no estimate, being lost in noise; of merged ones how many
    # miss the relative error that they are merged for
    lost: int
    sums: tuple[str, ...] = ()  # merged rows that are sums, in words


class JudgedOn:
    """The records that items are judged on, made or read when they are first asked for."""

    def __init__(
        self, spec: Spec, compiled: CompiledSpec, *, rows: int | None, proxy: Path | None
    ) -> None:
        """Keep what is asked for; `rows` is used in place of what the spec says.

        Raises:
            SpecError: records count as their weights, of which rows tell nothing.
        """
        if rows is not None and spec.privacy.weight is not None:
            raise SpecError(
                "--rows says how many records there are, and here they count as their weights; "
                "declare about what these add up to, with `total` under `weight`"
            )
        self.rows = rows or spec.expected_total
        self.proxy, self._spec, self._compiled = proxy, spec, compiled
        self._tried = (UNEVEN, MILDER) if proxy is None else (UNEVEN,)

    @cached_property
    def populations(self) -> tuple[Proxy, ...]:
        """The records, the likeliest first; none where nobody said how many there are."""
        return tuple(
            public_records(self.proxy, self._spec, self._compiled, rows=self.rows, population=each)
            for each in self._tried
            if self.rows is not None
        )

    @cached_property
    def _derived(self) -> tuple[DerivedErrors, ...]:
        """The derived items on each population; none where they are many or rows are not known."""
        items = [item for item in self._spec.derived if not item.release]
        small = sum(table.size for item in items for table in item.statistic.tables) <= MOST_TRIED
        if self.rows is None or not items or not small:
            return ()
        with suppress(UnsupportedWorkloadError):
            return tuple(
                DerivedErrors(
                    items,
                    self._spec,
                    self._compiled,
                    rows=self.rows,
                    proxy=self.proxy,
                    population=population,
                )
                for population in self._tried
            )
        return ()

    def derived(self, priced: SelectionAtBudget) -> tuple[DerivedWorth, ...]:
        """Return what derived items are worth; none where they are many or rows are not known."""
        for tried in self._derived:
            tried.try_with([priced.selection])
        noise, worths = priced.selection.noise, []
        for name, item in self._derived[0].items.items() if self._derived else ():
            typical, widest, lost = list[float | None](), list[float](), 0
            for tried in self._derived:
                rows = tried.errors(name, noise, priced.std)
                known = WIDTHS[noise] * rows.std[np.isfinite(rows.std) & ~rows.lost]
                typical.append(lower_median(known) if known.size else None)
                widest += [float(known.max())] if known.size else []
                # without records there is noise
                lost = max(lost, int((rows.lost | np.isnan(rows.std)).sum()))
            sums = rows.merging.sums_in_words(self._spec.domain) if rows.merging else ()
            worths.append(
                DerivedWorth(
                    name,
                    item.statistic.kind,
                    len(rows.std),
                    typical[0],
                    typical[-1],
                    max(widest, default=None),
                    lost,
                    sums,
                )
            )
        return tuple(worths)

    @property
    def words(self) -> str:
        """What the records are; nothing where items are not judged."""
        if not self.populations:
            return ""
        if self.proxy is not None:
            return self.populations[0].words
        return (
            "made-up records, once as uneven as most and once less so, not like yours; --proxy "
            "names public ones that are more like them"
        )


@dataclass(frozen=True)
class PlanWorth:
    """What a plan's items are worth, and which are weakest."""

    items: tuple[ItemWorth, ...]  # in the order of the spec
    derived: tuple[DerivedWorth, ...]  # the derived items likewise, where they were tried
    worst: WorstItem  # the one with the largest error
    weakest: ItemWorth  # the one with the largest error for its size
    weighed: tuple[Weighed, ...]  # what a larger weight of either does, where one helps
    judged_on: str  # the records that items are judged on, in words; empty where they are not
    proxy: Path | None  # those that were named as public, if any

    @property
    def target(self) -> float:
        """An error of the weakest item to ask for: most of its answers are then not flagged."""
        average = self.weakest.average
        wanted = TARGET * average if average else self.weakest.rmse / 2
        return float(f"{min(wanted, self.weakest.rmse / 2):.2g}")


def worth_of(
    plan: Plan,
    priced: SelectionAtBudget,
    spec: Spec,
    compiled: CompiledSpec,
    *,
    delta: Fraction,
    judged_on: JudgedOn,
) -> PlanWorth:
    """Return what the items are worth under a plan's better selection, at its guarantee."""
    noise, design = priced.selection.noise, SampleDesign.of(spec, compiled.classes)
    items = []
    for place, errors in enumerate(priced.items):
        item = ItemWorth(
            errors.name,
            errors.queries,
            errors.rmse,
            _share(spec, compiled, place, judged_on),
            _meet(spec, compiled, place),
            judged_on.rows,
            noise,
            *_judged(spec, compiled, place, errors, noise, judged_on),
            _squares_error(spec, compiled, place, priced),
            told_from=_told_from(spec, priced, errors.rmse),
        )
        if design is not None:
            told = _by_design(spec, compiled, place, priced, item, design)
            item = replace(item, by_design=told)
        items.append(item)
    units = [1 if item.summed is None else item.summed.largest for item in spec.items]
    largest = max(range(len(items)), key=lambda k: items[k].rmse / units[k])
    for_size = max(
        (k for k, item in enumerate(items) if item.share or item.judged),
        key=lambda k: items[k].weakness,
        default=largest,
    )
    trials = _Trials(priced, compiled)
    alone = trials.alone(largest, units[largest])
    twice = selection_std(priced.selection, spec, epsilon=2 * priced.epsilon, delta=delta)
    average = None if spec.expected_total is None else items[largest].average
    worst = WorstItem(items[largest].name, items[largest].rmse, alone, twice / priced.std, average)
    tried = [for_size] if items[for_size].grade != "good" else []
    tried += [largest] if alone < NEAR * worst.rmse else []
    fixed = any(item.share for item in spec.items) or spec.states_facts
    fixed = fixed or len(compiled.workload.blocks) > MOST_WEIGHED
    if len(items) == 1 or plan.targets or plan.objective == "max" or fixed or plan.preferred:
        tried = []
    found = [weighed for k in dict.fromkeys(tried) if (weighed := trials.weighed(k, spec))]
    return PlanWorth(
        tuple(items),
        judged_on.derived(priced),
        worst,
        items[for_size],
        tuple(found),
        judged_on.words,
        judged_on.proxy,
    )


def _judged(
    spec: Spec,
    compiled: CompiledSpec,
    place: int,
    errors: ItemFigures,
    noise: Noise,
    judged_on: JudgedOn,
) -> tuple[tuple[Judgement, ...], dict[str, int] | None]:
    """Return what is made of an item's errors on each population, and what its `where` needs."""
    blocks = [compiled.workload.blocks[position] for position in compiled.items[place]]
    asked = {i for block in blocks for i in block.attributes}
    summed, made_up = spec.items[place].summed is not None, judged_on.proxy is None
    of_records = not summed and spec.privacy.weight is None
    if len(blocks) > MOST_JUDGED[0] or errors.queries > MOST_JUDGED[1] or (summed and made_up):
        return (), None
    if not all(spec.domain.attributes[i].in_data for i in asked):
        return (), None  # it counts persons, of whom nobody said how many there are
    found = []
    for population in judged_on.populations:
        answers = np.concatenate([population.answers(block) for block in blocks])
        if not answers.any():
            return (), None  # as of undeclared values alone, of which made-up records have none
        found.append((population, answers))
    judged = tuple(
        judgement(answers, rmse=errors.rmse, noise=noise, counts=of_records) for _, answers in found
    )
    conditions = {table.where for table in spec.items[place].tables}
    if not (found and made_up and len(conditions) == 1 and any(conditions)):
        return judged, None
    population, answers = found[0]
    (condition,) = conditions
    met = product(
        compiled.workload.shape_of_domain,
        {i: factor(values, compiled.classes[i]) for i, values in condition},
    )
    each = answers / population.answers(met).sum()

    def rank(records: int) -> int:
        judged = judgement(each * records, rmse=errors.rmse, noise=noise, counts=of_records)
        return GRADE_NAMES.index(judged.grade)

    least = {"good": _least(lambda n: rank(n) == 0, population.rows)}
    least["fair"] = _least(lambda n: rank(n) <= 1, population.rows)
    return judged, {grade: _rounded_up(records) for grade, records in least.items() if records}


def _least(enough: Callable[[int], bool], most: int) -> int:
    """Return the least number from 1 to `most` from which it holds, by halving; 0 if none."""
    return 1 + bisect_left(range(1, most + 1), True, key=enough) if enough(most) else 0


def _rounded_up(least: float) -> int:
    """Return a number of two digits that is as large at least."""
    step = 10.0 ** max(0, math.floor(math.log10(max(least, 1))) - 1)
    return int(math.ceil(least / step) * step)


def judgement(answers: Ints | Floats, *, rmse: float, noise: Noise, counts: bool) -> Judgement:
    """Return what a report would make of answers, (m,), with errors of one size."""
    relative = relative_errors(answers.astype(np.float64), np.full(len(answers), rmse))
    flagged, median = float((flags(relative) > 0).mean()), lower_median(relative)
    half = WIDTHS[noise] * rmse
    return Judgement(flagged, median if median < math.inf else None, half, counts)


def _squares_error(
    spec: Spec, compiled: CompiledSpec, place: int, priced: SelectionAtBudget
) -> float | None:
    """Return the least standard error of sums of squared values, see ItemWorth."""
    if spec.items[place].summed is None or not spec.privacy.measures_squares:
        return None
    strategy = priced.selection.decoded(compiled.workload)
    blocks = [of_squared_values(compiled.workload.blocks[k]) for k in compiled.items[place]]
    if not all(map(strategy.supports, blocks)):
        return None
    std = priced.noise_std(strategy)
    errors = (standard_errors(strategy, b, position=None, noise_std=std) for b in blocks)
    return min(float(each.min()) for each in errors)


def _told_from(spec: Spec, priced: SelectionAtBudget, rmse: float) -> float | None:
    """Return from what error of the sample on replicate weights tell that of an average answer."""
    weight, privacy, selection = spec.privacy.weight, spec.privacy, priced.selection
    if weight is None or weight.replicates is None:
        return None
    times = squares_noise(selection.noise) * weight.difference_steps / weight.steps
    times *= steps(privacy, "enters") / steps(privacy, selection.record_change)
    std, of = times * rmse, weight.replicates
    return math.sqrt(least_told(float(of.factor), len(of.names), std))


def squares_noise(noise: Noise) -> float:
    """Return how many times the noise of answers that of squares has, weights of 1 at most."""
    less = float(1 / OF_SAMPLE - 1)  # of the budget than the answers have, times
    return math.sqrt(less) if noise == "gaussian" else less


def _by_design(
    spec: Spec,
    compiled: CompiledSpec,
    place: int,
    priced: SelectionAtBudget,
    item: ItemWorth,
    design: SampleDesign,
) -> Literal["told", "hidden", "not measured"] | None:
    """Return whether noise leaves what the design of a sample makes of an average answer's error.

    None where nobody said how many records there are, and of tables by cluster.
    """
    weight = spec.privacy.weight
    blocks = [compiled.workload.blocks[k] for k in compiled.items[place]]
    by_cluster = any(design.cluster in block.attributes for block in blocks)
    if weight is None or weight.design_effect is None or not item.records or by_cluster:
        return None
    strategy, summed = priced.selection.decoded(compiled.workload), spec.items[place].summed
    if not design.told_by(strategy, [*blocks, *map(of_squared_values, blocks)]):
        return "not measured"
    std, unit = priced.noise_std(strategy), 1 if summed is None else summed.largest
    wide = map(design.by_units, blocks)
    errors = (standard_errors(strategy, b, position=None, noise_std=std) for b in wide)
    error = max(float(each.max()) for each in errors) / unit
    drawn = design.drawn[design.drawn > 0]
    lies_in = 1 if all(design.stratum in b.attributes for b in blocks) else len(drawn)
    average = item.average or item.records * item.meet / item.queries
    expected = weight.ratio_of_squares * average
    if design.cluster is not None:
        n, expected = float(drawn.mean()), expected * float(weight.design_effect)
        by = n / (n - 1) * error**2
        doubt = math.sqrt(4 * by * expected + 2 * lies_in * n * by**2)
        return "told" if expected >= LEAST * doubt else "hidden"
    of_stratum = min(1.0, average / item.records * len(drawn) / lies_in)
    times = squares_noise(item.noise) * float(weight.at_most)
    doubt = times * error + error * math.hypot(2 * average / lies_in, math.sqrt(5) * error)
    doubt = times * item.rmse / unit + lies_in * doubt / float(drawn.mean())
    return "told" if expected * (1 - of_stratum) >= LEAST * doubt else "hidden"


def _share(spec: Spec, compiled: CompiledSpec, place: int, judged_on: JudgedOn) -> float | None:
    blocks = [compiled.workload.blocks[position] for position in compiled.items[place]]
    summed = spec.items[place].summed is not None
    if summed or not all(block.is_product for block in blocks):
        return None
    if any(not spec.domain.attributes[i].in_data for block in blocks for i in block.attributes):
        return None  # it counts persons, of whom nobody said how many there are
    queries = sum(block.queries for block in blocks)
    if judged_on.proxy and judged_on.populations and queries <= MOST_JUDGED[1]:
        public = judged_on.populations[0]
        return sum(int(public.answers(b).sum()) for b in blocks) / queries / public.rows or None
    named = {i for block in blocks for i in block.attributes}
    spread, known = {i: _spread(spec, compiled, i) for i in named}, dict[Hashable, float]()

    def share_of(i: int, predicates: Factor) -> float:
        if (i, predicates.key) not in known:
            known[i, predicates.key] = float(predicates.matmat(spread[i]).sum())
        return known[i, predicates.key]

    shares = (math.prod(map(share_of, block.attributes, block.factors)) for block in blocks)
    mean = math.fsum(shares) / queries
    return mean or None  # of undeclared values nobody knows


def _meet(spec: Spec, compiled: CompiledSpec, place: int) -> float:
    """Return the least share of the records that meets the conditions of a table of an item."""
    shares = (
        math.prod(
            float(factor(met, compiled.classes[i]).matmat(_spread(spec, compiled, i)).sum())
            for i, met in table.where
            if spec.domain.attributes[i].in_data
        )
        for table in spec.items[place].tables
    )
    return min(shares)


def _spread(spec: Spec, compiled: CompiledSpec, place: int) -> Floats:
    shares = even_spread(spec.domain.attributes[place])
    return np.asarray(np.bincount(compiled.classes[place], weights=shares), float)[:, None]


class _Trials:
    """Quick strategies for a plan's items with other weights, for the noise that it takes.

    Those of no search: what a clock cuts short differs from one time to the next.
    """

    def __init__(self, priced: SelectionAtBudget, compiled: CompiledSpec) -> None:
        self.priced, self.compiled = priced, compiled

    @cached_property
    def as_planned(self) -> Sequence[float]:
        """The errors of all items with the weights that they have."""
        return self._errors(None, 1.0)

    def alone(self, place: int, unit: int) -> float:
        """Return the error of an item asked alone, or as it is where that is less."""
        rmse = self.priced.items[place].rmse
        if len(self.priced.items) == 1:
            return rmse
        asked = self.compiled.workload.select(self.compiled.items[place])
        quick = self._quick(asked, (range(len(asked.blocks)),))
        return rmse if quick is None else min(rmse, self.priced.std * unit * quick.rmse)

    def weighed(self, place: int, spec: Spec) -> Weighed | None:
        """Return what a larger weight of an item does; None where none helps much."""
        found, noise = None, self.priced.selection.noise
        for larger in FACTORS:
            errors = self._errors(place, larger)
            ratios = [new / old for new, old in zip(errors, self.as_planned, strict=True)]
            if not ratios or ratios[place] > NEAR * NEAR:
                break
            others = max(0.0, *(ratio - 1 for k, ratio in enumerate(ratios) if k != place))
            item = self.priced.items[place]
            weight = float(spec.items[place].weight) * larger
            rmse = item.rmse * ratios[place]
            found = Weighed(item.name, weight, rmse, others, WIDTHS[noise] * rmse)
            if found.cheap:
                break
        return found

    def _errors(self, place: int | None, factor: float) -> list[float]:
        """Return each item's error at unit noise with one of the weights so many times as large."""
        workload, items = self.compiled.workload, self.compiled.items
        heavier = set() if place is None else set(items[place])
        weights = tuple(
            weight * factor if k in heavier else weight for k, weight in enumerate(workload.weights)
        )
        error = self._quick(replace(workload, weights=weights), items)
        if error is None:
            return []
        return [
            math.sqrt(math.fsum(error.blocks[k].total_squared for k in places)) for places in items
        ]

    def _quick(self, workload: Workload, items: tuple[Sequence[int], ...]) -> ExpectedError | None:
        """Return the errors at unit noise of what is tried whatever the clock says."""
        noise, change = self.priced.selection.noise, self.priced.selection.record_change
        found = select(
            workload, noises=[noise], time_limit=0, change=change, items=items, proving=False
        )
        return found[noise].best.error
