"""statement.md: the guarantee in words that a lawyer can read, from the manifest alone."""

import math
import re
from collections.abc import Sequence

from dpquery.plan_file.rehearsals import PlannedFit
from dpquery.releases.budget_words import DISCOVERED
from dpquery.releases.extra_columns import extra_lines
from dpquery.releases.manifest import (
    MEASUREMENTS_FILE,
    PLAN_FILE,
    RELAXED_ROWS_FILE,
    GuaranteeFacts,
    Manifest,
    PrivacyFacts,
)
from dpquery.releases.manifest_facts import (
    AdaptiveFacts,
    DerivedFacts,
    ItemFacts,
    RapFacts,
    derived_lines,
    facts_lines,
    over_units,
)
from dpquery.releases.words import count, figure, one_line, rows_counted, without_controls
from dpquery.spec.numbers import power
from dpquery.spec.spec import PublicationRules


def simulated_words(fitted: PlannedFit, *, weighted: bool) -> str:
    """Return what was simulated of answers without error bars."""
    return (
        f"{fitted.name}: no error bars; simulated on {fitted.proxy}: {rmse_name(weighted)} "
        f"{figure(fitted.rmse)}, largest error {figure(fitted.max_error)}"
    )


def rmse_name(weighted: bool) -> str:
    """Return the name of a simulated RMSE: weighted where the workload weighs its items."""
    return "weighted RMSE" if weighted else "RMSE"


def measured_errors(manifest: Manifest) -> dict[str, tuple[str, str]]:
    """Return by item what adaptive measurement told of its errors, as 95 % intervals.

    What the errors of all cells of a table add up to, the mean over its tables, as a share of the
    records, and the largest error of one cell: empty where noise hides it. The name is empty where
    all items were measured together.
    """
    run = manifest.adaptive
    if run is None:
        return {}
    answers = {item.name: item.queries for item in manifest.items}
    every, (first, *others) = sum(answers.values()), answers
    return {
        each.item or ("" if others else first): (
            "" if each.is_hidden(run.total) else each.share(run.total),
            each.largest_words(run.total * each.tables / answers.get(each.item, every)),
        )
        for each in run.distances
    }


def known_errors(manifest: Manifest, *, in_short: bool = False) -> str:
    """Return what is known of the errors of a fit: as measured, else in the plan's simulation.

    In short without the largest ones of several items.
    """
    if manifest.fitted is None:
        raise ValueError("not a release of relaxed rows")
    run, told = manifest.adaptive, measured_errors(manifest)
    if run is None or not told:
        return error_words(manifest.fitted)
    shares, largest = (
        ", ".join(f"{text} ({name})" if len(told) > 1 else text for name, text in texts if text)
        for texts in ([(name, one[k]) for name, one in told.items()] for k in (0, 1))
    )
    words = f"the errors of all cells of a table add up on average to {shares} of the records"
    if not shares:
        words = "the records are too few for the errors to say anything"
    elif hidden := ", ".join(name for name, (share, _) in told.items() if not share):
        words += f" (hidden by noise in {hidden})"
    if largest and not (in_short and len(told) > 1):
        words += f"; the largest error of one cell is {largest}"
    return f"measured with noise (95 %): {words}{REFITTED * run.refitted}"


REFITTED = "; these rows were fitted again, and differ from those measured in their last digits"


def error_words(run: RapFacts | AdaptiveFacts, *, spread_as: str = " (spread {})") -> str:
    """Return what is known of errors: as measured with noise, else in the plan's simulation."""
    if isinstance(run, AdaptiveFacts) and run.distances:
        words = "; ".join(distance.words(run.total) for distance in run.distances)
        return f"measured with noise (95 %): {words}{REFITTED * run.refitted}"
    simulated = run.simulated
    if simulated is None:
        return "errors are unknown; none were simulated for these questions at this guarantee"
    spreads = (simulated.rmse_spread, simulated.max_error_spread)
    # One run says nothing of the spread.
    rmse, largest = (
        spread_as.format(figure(spread)) * (simulated.repetitions > 1) for spread in spreads
    )
    return (
        f"errors are unknown; simulated, not measured: {rmse_name(simulated.weighted)} "
        f"{figure(simulated.rmse)}{rmse} and largest error "
        f"{figure(simulated.max_error)}{largest} in {count(simulated.repetitions, 'run')} on "
        f"{one_line(simulated.proxy)}"
    )


OF_OTHER_DATA = (
    " What other data say is to be expected if the records resemble them. A file of them is public "
    "by the word of whoever planned the release: nothing here protects it."
)
MEASURED_ERROR = (
    " How far the released tables are from those of the records was measured last, with noise, as "
    "a part of the run: the mean over tables moves by no more than the counts of one table do, "
    "however many tables there are. Half of it is the share of the records that would have to be "
    "in other cells."
)


def relaxed_words(manifest: Manifest) -> str:
    """Return how the answers of relaxed rows were made, and what is known of their errors."""
    run = manifest.fitted
    match run:
        case RapFacts():
            method, measured = "relaxed adaptive projection (RAP)", _measured_words(manifest, run)
            stds, chosen = run.noise_std, run.selection_scale is not None
            measured_last = False
        case AdaptiveFacts():
            method, measured = "adaptive measurement of whole tables", _chosen_words(run)
            stds, chosen = (run.one_way_std, *run.noise_std), True
            measured_last = bool(run.distances)
        case None:
            raise ValueError("not a release of relaxed rows")
    # Statements of older releases keep their bytes.
    spread_as = " (spread {})" if manifest.described else " ± {}"
    paid = "every choice and every count" if chosen else "every count"
    return (
        f"{tables_made(manifest)} read from "
        f"{count(run.relaxed_rows, 'relaxed row')}, made by {method}. A "
        "relaxed row is a record whose every attribute is a probability distribution over its "
        f"values. {measured} {_total_words(run)} The promise above covers "
        f"the whole run: {paid} is paid for in zero-concentrated differential privacy, and its ρ "
        f"was charged at once, before anything was measured. "
        f"{_source_words(manifest, stds, chosen=chosen)}\n\n"
        f"What is known of the errors: {error_words(run, spread_as=spread_as)}."
        + (MEASURED_ERROR if measured_last else OF_OTHER_DATA * (run.simulated is not None))
    )


def tables_made(manifest: Manifest) -> str:
    """Return how many files of tables were made, with their verb."""
    files = len(manifest.items)
    return f"{count(files, 'table file')} {'was' if files == 1 else 'were'}"


def _measured_words(manifest: Manifest, rap: RapFacts) -> str:
    if rap.selection_scale is None:
        whose = "was asked for" if manifest.answered is None else "the release was made for"
        return (
            f"Every count that {whose} was measured with noise, once, and the relaxed rows were "
            "fitted to all noisy counts."
        )
    rounds = "In one round" if rap.rounds == 1 else f"In each of {count(rap.rounds, 'round')}"
    return (
        f"{rounds}, {count(rap.selected, 'count')} on which the relaxed rows were far from the "
        f"records {'was' if rap.selected == 1 else 'were'} drawn by lot, a count "
        f"{figure(rap.selection_scale)} further off being e times as likely (the exponential "
        "mechanism), and measured with noise. After each measurement the relaxed rows were fitted "
        "to all noisy counts so far; all else was computed from noisy values."
    )


def measured_count(run: AdaptiveFacts) -> str:
    """Return how many rounds measured how many of the tables that could be chosen."""
    return (
        f"{count(len(run.rounds), 'round')} measured {len(set(run.rounds))} of "
        f"{count(run.candidates, 'table')}"
    )


def _chosen_words(run: AdaptiveFacts) -> str:
    times = "once" if len(run.rounds) == 1 else f"{len(run.rounds):,} times"
    return (
        f"First {count(run.one_way, 'table')} of one attribute "
        f"{'was' if run.one_way == 1 else 'were'} measured with noise. Then, {times}, one of "
        f"{run.candidates:,} tables was drawn by lot, a table on which the relaxed rows were "
        "further from the records than noise explains being the more likely (the exponential "
        f"mechanism), and measured whole, with noise: {len(set(run.rounds)):,} different ones. "
        "After each measurement the relaxed rows were fitted to all noisy tables so far, and where "
        "one had moved them by no more than its noise, the next round spent four times as much; "
        "all that was decided so was computed from noisy values."
    )


def _total_words(rap: RapFacts | AdaptiveFacts) -> str:
    if rap.total_std is None:
        return f"Answers are scaled to the declared number of records, {figure(rap.total)}."
    noise = f"noise of standard deviation {figure(rap.total_std)}"
    if rap.declared is None:
        return (
            "Answers are scaled to the number of records, which was measured too: "
            f"{figure(rap.total)}, with {noise}."
        )
    return (
        f"Answers are scaled to {figure(rap.total)} records: their number was measured too, with "
        f"{noise}, and weighed by inverse variances with the declared number, "
        f"{figure(rap.declared)}, which was given a standard deviation of half of itself."
    )


GENERATOR_WORDS = (
    "from a cryptographic random generator: no floating-point noise is used, and no seed exists "
    "from which it could be drawn again. The proofs and tests behind this reduce the risk of an "
    "implementation error; they do not remove it."
)


def _source_words(manifest: Manifest, stds: Sequence[float], *, chosen: bool) -> str:
    noise_facts = manifest.noise
    least, most = figure(min(stds)), figure(max(stds))
    spread = most if least == most else f"{least} to {most}"
    origin = "Choices and noise come" if chosen else "All draws come"
    return (
        "To each measured count, noise of the discrete Gaussian distribution of standard deviation "
        f"{spread} was added once. {origin} from {one_line(noise_facts.source)}, which "
        f"draws them exactly, in whole steps of {2.0**noise_facts.shift:g}, {GENERATOR_WORDS}"
    )


NUMBERED_WORDS = """\
In {items}, which {have} very many tables, rows have numbers and few columns: `table` and `cell`, \
`estimate`, {errors}. The files of tables and labels say what the numbers mean: an attribute's \
query in a row is number `cell` // `stride` % `size` in its list of `labels`."""
_HALF_WIDTH = """\
`std_error`, and `half_width`, half of the width of the noise interval: `ci_low` is `estimate` - \
`half_width`, `ci_high` is `estimate` + `half_width`. `rel_error` and `flag` are left to the \
reader"""


def numbered_lines(manifest: Manifest) -> list[str]:
    """Return the lines of the statement on numbered rows; none where there are none."""
    names = [f"`{item.file}`" for item in manifest.items if item.numbered]
    if not names:
        return []
    errors = "and `std_error` and `half_width`, empty in every row"
    errors = _HALF_WIDTH if manifest.error_bars else errors
    have = "has" if len(names) == 1 else "have"
    return ["", NUMBERED_WORDS.format(items=", ".join(names), have=have, errors=errors)]


SUPPRESSED = """\
- `suppressed`: the rule that left a row's `published` empty; no text where none did. The rules \
look at noisy values alone and protect nobody: the estimate stands in the same row. What is left \
out is missing from every sum of `published`, and of small counts those remain that noise raised."""


def published_lines(manifest: Manifest) -> list[str]:
    """Return what the columns hold, a line for each set of rules; none where no item has them."""
    items: dict[PublicationRules, list[str]] = {}
    files: list[ItemFacts | DerivedFacts] = [*manifest.items, *manifest.derived]
    for item in files:
        if item.published is not None:
            items.setdefault(item.published, []).append(f"`{item.name}`")
    lines = []
    for rules, names in items.items():
        of_all = all(item.published == rules for item in manifest.items)
        where = "" if of_all else f" in {', '.join(names)}"
        lines.append(f"- `published`{where}: {_words(rules)}.")
    return [*lines, SUPPRESSED] if lines else []


def _words(rules: PublicationRules) -> str:
    rounded = "" if rules.round_to is None else f", rounded to a multiple of {rules.round_to:,}"
    limits = [] if rules.rel_error is None else [f"a `rel_error` of {rules.rel_error:g} or more"]
    limits += [] if rules.below is None else [f"an estimate below {rules.below:,}"]
    empty = f"; empty in rows with {' or '.join(limits)}" if limits else ""
    return f"the estimate{rounded}{empty}"


UNPROTECTED = """\
The following is public and{apart} was never protected: the dataset's name, the names and lists of \
categories, the limits of ranges and bins, the questions asked, the strategy, {sizes}and all of \
this release but {noisy}. None of it was derived from the records{but}. \
Every combination that was asked for has a row, whether or not anyone is in it."""

UNCOVERED = """\
- Running time, memory, power use, and what else could be observed while the tables were made.
- Whoever can read the records, the curator's computer or the ledger's folder; a curator who \
breaks the rules.
- What can be learned about a person without that person's records: that smoking harms applies \
to smokers who are not in the data.
- Releases of the same records by other means than this ledger. The promises of all releases add up.
- Errors of the data themselves: who was missed, counted twice or answered wrongly."""


COUNTED_WORDS = (
    "the record is in totals, and in every table that does not name the attribute, but under none "
    "of its values: values may add up to less than the total"
)
SHOWN_WORDS = "the record is under the value `other`"
DROPPED_WORDS = "**the whole record is left out of every table**, of the total too"
ROWS_WORDS = (
    " `rows_per_person` counts persons by the number of their rows, those beyond that limit "
    "included: 1 to {rows}, and more."
)


TEMPLATE = """\
# Privacy statement

Tables from the dataset **{dataset}**, version {version}.

## What is promised

**Protected:** {unit}

**Compared:** {neighbours}

**Guarantee:** {guarantee}.

{odds}

**All releases together:** {cumulative}. Promises add up over releases; the ledger refuses a \
release that would pass the declared cap.

{counted}## What is public

{unprotected}

## What is not covered

{uncovered}

## How the numbers were made

{noise}

Post-processing: {postprocessing}. {unbiased}

## How to read the columns

{columns}

## Files

{files}
- `errors.parquet`: {errors}
- `release.json`: this release's facts for machines

Ledger event {seq}, {head}. Plan {plan}.
"""

UNBIASED = """\
Estimates are unbiased and are published as they came out: some are not whole numbers, and small \
ones can be negative. Setting those to zero would bias every sum."""

COLUMN_WORDS = """\
- `estimate`: the count, plus noise of mean zero.
- `std_error`: the standard error of that noise, known in advance and the same whatever the data.
- `ci_low`, `ci_high`: the {level} **noise interval**. In {level} of releases or more it \
contains the count of the records that are counted. It is not a sampling interval: it says \
nothing about how well these represent anyone else, nor about records that are left out.
- `rel_error`: `std_error` over the size of the estimate; empty where the estimate is zero.
- `flag`: `noisy` from a relative error of 30 % on, `very noisy` from 50 % on, a common rule in \
health statistics. It is computed from the noisy estimate, not from the true count."""

# Of relaxed adaptive projection, whose answers have no standard errors.

_BIASED = """\
**Estimates are biased{unknown}:** the relaxed rows fit what was measured, \
and guess the rest. They are never negative, agree with each other, and need not be whole."""

WITHOUT_ERRORS = """\
- `estimate`: the count, as the relaxed rows have it.
- `std_error`, `ci_low`, `ci_high`, `rel_error`: empty in every row. **There are no error bars:** \
the error of an estimate depends on the records, and publishing it would need budget of its own.
- `flag`: `no error bars` in every row."""


def biased_words(manifest: Manifest) -> str:
    """Return what is to be said of relaxed rows, as Markdown; of their errors, if none is known."""
    measured = manifest.adaptive is not None and manifest.adaptive.distances
    return _BIASED.format(unknown="" if measured else ", and nobody can say by how much")


def statement(manifest: Manifest) -> str:
    """Return the privacy statement of a release, as Markdown."""
    level = f"{100 * manifest.level:g} %"
    has_errors = manifest.error_bars
    columns = COLUMN_WORDS.format(level=level) if has_errors else WITHOUT_ERRORS
    if manifest.privacy.weight is not None:
        columns = weighted_words(columns)
    more = [*numbered_lines(manifest), *published_lines(manifest), *extra_lines(manifest)]
    more += derived_lines(manifest.derived)
    found = DISCOVERED in manifest.guarantee.cumulative
    apart = ", but for what discoveries found (named above)," * found
    but = " but that, which the promise of all releases together protects" * found
    sizes = "the sizes by which rows were merged, " * manifest.merged
    but += "; sizes taken from a release have its protection" * manifest.merged
    text = TEMPLATE.format(
        dataset=one_line(manifest.dataset.id),
        version=one_line(manifest.dataset.version),
        unit=unit_words(manifest.privacy),
        neighbours=neighbour_words(manifest.privacy),
        guarantee=guarantee_line(manifest.guarantee),
        odds=odds_words(manifest.guarantee, manifest.privacy),
        cumulative=one_line(manifest.guarantee.cumulative).rstrip("."),
        counted=_counted_words(manifest),
        unprotected="\n".join(
            [
                UNPROTECTED.format(noisy=_noisy_parts(manifest), apart=apart, but=but, sizes=sizes),
                *facts_lines(manifest.facts),
            ]
        ),
        uncovered=UNCOVERED,
        noise=_answered_words(manifest) + (_noise_words if has_errors else relaxed_words)(manifest),
        postprocessing=one_line(manifest.processing),
        unbiased=UNBIASED if has_errors else biased_words(manifest),
        columns="\n".join([columns, *more]),
        files="\n".join(_file_lines(manifest)),
        errors="a summary of the errors of each file above"
        if has_errors
        else "no errors are known",
        seq=manifest.ledger.seq,
        head=one_line(manifest.ledger.head),
        plan=manifest.plan,
    )
    return without_controls(text).replace("<", "&lt;")  # no word of a user's is markup


def weighted_words(text: str) -> str:
    """Return what is said of counts, said of weighted counts."""
    return re.sub(r"\b(the|in) count", r"\1 weighted count", text)


def _counted_words(manifest: Manifest) -> str:
    """Return the section that says whose records are in the tables; nothing where it is unknown."""
    facts, privacy = manifest.counted, manifest.privacy
    if facts is None:
        return ""
    lines = [
        f"- {', '.join(f'`{one_line(name)}`' for name in names)}: {does}."
        for names, does in (
            (facts.count, COUNTED_WORDS),
            (facts.show, SHOWN_WORDS),
            (facts.drop, DROPPED_WORDS),
        )
        if names
    ]
    if privacy.weight is not None:
        lines.append(f"- {privacy.weight.words}.")
    if privacy.unit == "person":
        malformed = "A record without an id, or a line that is no record, is in no table."
        verb = "is" if privacy.max_rows == 1 else "are"
        malformed += f" At most {count(privacy.max_rows, 'row')} of each person {verb} counted."
        if facts.rows:
            malformed += ROWS_WORDS.format(rows=facts.rows)
    elif facts.drop or privacy.weight is not None:
        malformed = "A line that is no record is left out of every table."
    else:
        malformed = "A line that is no record counts as one without any declared value."
    every = "" if facts.drop else "No record is left out because of its values. "
    head = f"Where a record has no declared value of an attribute. {every}"
    return "\n".join(["## Who is counted\n", head.strip() + "\n", *lines, f"- {malformed}\n\n"])


def unit_words(privacy: PrivacyFacts) -> str:
    """Return the privacy unit, in a sentence or two."""
    rows = count(privacy.max_rows, "row")
    if privacy.unit == "row":
        return (
            "one row of the file. If a person can have several rows, each row is protected, "
            "but the person with all rows together is protected less."
            if privacy.max_rows == 1
            else f"any {rows} of the file. A person is protected if the file has no more than "
            f"{rows} of theirs, which the curator promises and this tool cannot check."
        )
    return (
        f"one person, told apart by the column `{one_line(privacy.person or '')}`, with all their "
        f"records. {rows_counted(privacy.max_rows, keep=privacy.keep or 'first')}."
    )


def neighbour_words(privacy: PrivacyFacts) -> str:
    """Return the neighbouring datasets that an observer cannot distinguish."""
    if privacy.unit == "row" and privacy.max_rows == 1:
        whose, other = "that row", "another row in its place"
    else:
        whose, other = "those rows", "other rows in their place"
    without = f"with {other}" if privacy.neighbours == "replace" else "without"
    return f"the dataset with {whose} in it, and the dataset {without}."


def guarantee_line(guarantee: GuaranteeFacts) -> str:
    """Return the guarantee in the field's terms: epsilon, delta, rho or mu, and the mechanism."""
    if guarantee.kind == "pure":
        return f"ε = {guarantee.epsilon:g} (pure differential privacy, {guarantee.method})"
    if guarantee.mu is not None:
        exactly = f"μ = {guarantee.mu:.6g} of Gaussian differential privacy"
    else:
        exactly = f"ρ = {guarantee.rho:.6g} of zero-concentrated differential privacy"
    promise = f"ε = {guarantee.epsilon:g} at δ = {power(guarantee.delta)}"
    return f"{promise} ({exactly}, {guarantee.method})"


def odds_words(guarantee: GuaranteeFacts, privacy: PrivacyFacts) -> str:
    """Return the bounds of epsilon and delta on what an observer can conclude, in words."""
    factor = math.exp(min(guarantee.epsilon, 700.0))
    replaced = privacy.neighbours == "replace"
    other = "with any others in their place" if replaced else "without them"
    extra, aside = "", ""
    if guarantee.delta:
        chance = f"{power(guarantee.delta)} (one in {1 / guarantee.delta:,.0f})"
        extra = f", but for an extra probability of at most {chance}"
        aside = ", that extra probability aside"
    return (
        "In words: whatever an observer concludes from this release, the conclusion is at most "
        f"{_factor(factor)} times as probable with the protected records as {other}, and the other "
        f"way round{extra}. This holds whatever else the observer knows and however much they "
        f"compute. {sure_words(guarantee.epsilon, aside)}."
    )


def sure_words(epsilon: float, aside: str) -> str:
    """Return the bound of epsilon on what somebody could conclude who thought it even odds."""
    return (
        "Somebody who thought it even odds that the records are there could become "
        f"{sure_percent(epsilon)} sure at the very most{aside}; most are moved far less"
    )


def _noisy_parts(manifest: Manifest) -> str:
    """Return the parts of a release that come from the records, all of them by way of noise."""
    if manifest.error_bars:
        # Statements of releases without any of these keep their bytes.
        told = manifest.privacy.weight is not None or manifest.publishes or manifest.merged
        made = ", and what is made of them (intervals, flags, `published`, derived items)"
        return "its estimates and noisy measurements" + made * told
    chosen = manifest.rap is None or manifest.rap.selection_scale is not None
    which = ", which of them were made and with how much noise" if chosen else ""
    return f"its estimates, its noisy measurements{which}, and its relaxed rows"


def _answered_words(manifest: Manifest) -> str:
    if manifest.answered is None:
        return ""
    guess = "".join(
        f" **A guess:** it does not tell all values of `{one_line(name)}` apart; those were taken "
        "to be equally likely."
        for name in manifest.answered.guessed
    )
    source = "computed from its noisy measurements alone"
    if not manifest.error_bars:
        source = f"read off its `{RELAXED_ROWS_FILE}`, which was {source}"
    return (
        "These are answers to questions that were asked later, of the release with the key "
        f"`{manifest.answered.release}`. They were {source}: "
        "the records were not looked at again, nothing was charged, and what is promised above is "
        f"that release's promise, for the release and these answers together.{guess}\n\n"
    )


def _noise_words(manifest: Manifest) -> str:
    noise = manifest.noise
    taken, steps = (f" taken in steps of 2^{noise.shift},", " steps") if noise.shift else ("", "")
    rounded = ", that is normal noise rounded to a whole number," * (
        manifest.guarantee.kind == "gdp"
    )
    pure = manifest.guarantee.kind == "pure"
    moved = f"{noise.sensitivity} (L1)" if pure else f"the square root of {noise.sensitivity} (L2)"
    beside = noise.squares or noise.replicates
    what = "squared weights" if noise.squares else "differences of replicate weights"
    likewise = beside and (
        f"Sums of {what} were measured likewise, in steps of 2^{beside.shift}, "
        f"with noise of scale {beside.scale:.6g} steps. "
    )
    return (
        f"{tables_made(manifest)} computed from noisy measurements alone "
        f'(strategy "{one_line(manifest.strategy.name)}"). To the exact whole-number answer of '
        f"each measurement,{taken} noise of the {manifest.guarantee.mechanism} distribution "
        f"of scale {noise.scale:.6g}{steps}{rounded} was added once; the sensitivity it hides is "
        f"{moved}{steps}. {likewise or ''}{_in_counts(manifest)}"
        "The noise comes from "
        f"{one_line(noise.source)}, which draws it exactly, in whole numbers, {GENERATOR_WORDS}"
    )


def _in_counts(manifest: Manifest) -> str:
    strategy = manifest.strategy
    if strategy.rmse is None or strategy.max_std_error is None:
        return ""
    counts = "In counts" if manifest.privacy.weight is None else "By weight"
    return (
        f"{counts}, the standard errors of the answers are {figure(strategy.rmse)} (root mean "
        f"square) and {figure(strategy.max_std_error)} at most{over_units(manifest.items)}. "
    )


def _file_lines(manifest: Manifest) -> list[str]:
    lines = []
    for item in manifest.items:
        description = f". {one_line(item.description)}" if item.description else ""
        summed = "" if item.summed is None else f". They are {one_line(item.summed.words)}"
        facts = f"{summed}{one_line(item.level_words)}{description}"
        lines.append(f"- `{item.file}`: {count(item.queries, 'answer')}{facts}")
    lines += [
        f"- `{item.tables_file}`, `{item.labels_file}`: what the numbers in `{item.file}` mean"
        for item in manifest.items
        if item.numbered
    ]
    if RELAXED_ROWS_FILE in manifest.files and manifest.fitted is not None:
        rows = count(manifest.fitted.relaxed_rows, "relaxed row")
        lines.append(
            f"- `{RELAXED_ROWS_FILE}`: {rows}, a probability for each value of each attribute; "
            "`dpquery synthetic` makes records of them, without budget"
        )
    if manifest.measurements:
        lines += [
            f"- `{MEASUREMENTS_FILE}`: the noisy measurements that every answer comes from; "
            "`dpquery answer` answers new questions from them, without budget",
            f"- `{PLAN_FILE}`: the plan, which says what was measured and holds the spec word for "
            "word",
        ]
    return lines


def _factor(factor: float) -> str:
    return f"{factor:.3g}" if factor < 1000 else f"{factor:.1e}"


def sure_percent(epsilon: float) -> str:
    """Return how sure somebody could become who thought something even odds."""
    factor = math.exp(min(epsilon, 700.0))
    share = factor / (1 + factor)
    return "almost 100 %" if share > 0.9995 else f"{100 * share:.3g} %"
