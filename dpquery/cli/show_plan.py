"""The screen of `plan`: what each table is worth before it is paid for, and what is next.

`show_why` has the rest of it, `show_comparison` and `releases.words` what others print too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote

from dpquery.cli.screen import Grid, PlanFiles
from dpquery.cli.show_comparison import closest_notes, cost, guarantee_text
from dpquery.commands.defaults import PLAN_PATH
from dpquery.measurement.ledger.funds import STILL_FREE, epsilon_text
from dpquery.plan_file.plan import CandidateFigures
from dpquery.planning.figures import SelectionAtBudget
from dpquery.planning.report import PlanReport
from dpquery.planning.targets import DerivedReached
from dpquery.planning.worth import DerivedWorth, ItemWorth, Weighed
from dpquery.reconstruction.sampling import HIDDEN_BY_NOISE, SQUARES_NOT_MEASURED
from dpquery.releases.budget_words import GROWS, delta_words, grows_unlike, room_words, spent_share
from dpquery.releases.report.answers import width_unit
from dpquery.releases.report.figures import GOOD_COUNTS, GRADE_NAMES, GRADES
from dpquery.releases.statement import sure_percent
from dpquery.releases.words import (
    count,
    figure,
    in_full,
    percent,
    rounded,
    rows_counted,
    weight_words,
    within,
)
from dpquery.spec.numbers import power
from dpquery.spec.predicates import with_values
from dpquery.spec.spec import Quantiles, Spec

BEYOND_BUDGET = (
    "the targets cost more than the whole budget: no release meets all of them; ask for less, or "
    "declare a larger budget"
)

PROXY_PUBLIC = (
    "must be public, since what is expected is made of it; if it holds the records to be "
    "protected, delete this plan and plan again without --proxy"
)
DERIVED_UNWEIGHED = (
    "errors of derived items depend on what the weights add up to; say it with `total` under "
    "`weight`"
)

FIGURE_NAMES = {"sd": "max std error", "rmse": "RMSE"}

BEARABLE = 0.25  # by so much others may be worse for the weakest table

BEST = 1e-4  # of a proven bound: no strategy is better by more

MOST_WORTHS = 7  # lines of the first screen

MOST_DERIVED = 4  # likewise
MOST_SUMS = 6  # merged rows of an item that are listed

LEFT_OUT_SHOWN = 6  # columns that the first screen names


def plan_grids(report: PlanReport, files: PlanFiles) -> list[Grid]:
    """Return what a plan is worth before it is paid for, what was asked, and what is next."""
    return [_worth_grid(report, files), *asked_grids(report)]


def asked_grids(report: PlanReport) -> list[Grid]:
    """Return what was asked beside the plan: its targets, and errors at other epsilons."""
    targets = [_target_grid(report)] if report.reached or report.derived else []
    return [*targets, *_sweep_grids(report)]


def _worth_grid(report: PlanReport, files: PlanFiles) -> Grid:
    """Return a line a table, and one each on the weakest, the price, the risk and what is next."""
    spec, worth = report.spec, report.worth
    records = worth.items[0].records
    noun = "records" if spec.privacy.weight is None else "by weight"
    about = _unknown_rows(report) if records is None else f", about {records:,} {noun}"
    declared = spec.expected_total
    if declared not in (None, records):
        about += f" (the spec says {declared:,})"
    delta = f" (delta {power(float(report.delta))})" if report.delta else ""
    title = (
        f"{spec.dataset.id}: {count(spec.queries, 'answer')} in {count(len(spec.items), 'table')} "
        f"at epsilon {float(report.epsilon):g}{delta}{about}"
    )
    columns, rows = _worth_rows(report)
    nearest = closest_notes(report) * (report.nearer is None)  # else it was not asked for
    asked, notes = (
        [f"{word:<9}{text}" for word, text in lines if text]
        for lines in (nearest, _first_notes(report, files))
    )
    return Grid("\n".join([title, *asked]), columns, rows, tuple(notes))


def _unknown_rows(report: PlanReport) -> str:
    """Say what the number of records would tell, where nobody said it."""
    if report.spec.privacy.weight is not None:
        return ""
    derived = ", also of derived items," * bool(report.spec.derived)
    nearer = " and whether `prefer: closest` errs far less" * report.may_be_nearer
    return f"; --rows, about how many records there are, tells what to expect{derived}{nearer}"


def expected_grid(report: PlanReport) -> Grid:
    """Return a line for each table and each derived item, and what is expected on which records."""
    words = report.worth.judged_on
    grades = GRADES + GOOD_COUNTS * (report.spec.privacy.weight is None)
    judged = [f"what to expect is judged on {words}", grades] if words else []
    columns, rows = _worth_rows(report, whole=True)
    for item in report.worth.derived:
        if item.sums:
            more = len(item.sums) - MOST_SUMS
            others = f"; {more:,} more will be in {item.name}.map.csv of the release" * (more > 0)
            judged.append(f"{item.name} adds up {'; '.join(item.sums[:MOST_SUMS])}{others}")
    of = " of the estimates" * report.guesses + " of a linear release" * bool(report.plan.preferred)
    return Grid(f"what to expect{of}", columns, rows, tuple(judged))


def _worth_rows(
    report: PlanReport, *, whole: bool = False
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return headings and lines, of the weakest tables and derived items or of the whole plan."""
    worth = report.worth
    amount = "{:,} records" if report.spec.privacy.weight is None else "a weight of {:,}"
    weakest = sorted(worth.items, key=_weakness, reverse=True)
    few = whole or len(weakest) <= MOST_WORTHS + 1
    shown = set(weakest if few else weakest[:MOST_WORTHS])
    rows = [_worth_row(item, amount) for item in worth.items if item in shown]
    others = [item for item in worth.items if item not in shown]
    if others:
        counts = [item for item in others if item.judged] or others
        grades = {grade for item in others for grade in item.grades}
        expect = " or ".join(grade for grade in GRADE_NAMES if grade in grades)
        if not all(item.judged for item in others):
            most = max(item.good_from for item in others)
            expect = f"good from {amount.format(most)} at best"
        name, size = f"{len(others)} others (--why)", f"{sum(item.queries for item in others):,}"
        width = f"±{rounded(max(item.within for item in counts))}"
        flagged = rounded(max(item.flagged_below for item in counts))
        rows.append((name, size, width, flagged, "", expect))
    most_lost = sorted(worth.derived, key=lambda item: item.lost / max(item.rows, 1), reverse=True)
    more = [] if whole else most_lost[MOST_DERIVED:]
    rows += [_derived_row(item) for item in worth.derived if item not in more]
    if more:
        lost, size = (sum(each) for each in zip(*((m.lost, m.rows) for m in more), strict=True))
        name = f"{len(more)} more derived (--why)"
        rows.append((name, f"{size:,}", "", "", "", _lost(lost, size)))
    columns = ("table", "answers", "95 % within", "flagged below", "average cell", "expect")
    unbarred = report.guesses and not whole and not worth.derived
    left_out = (2, 3, 5) * unbarred + (4,) * (worth.items[0].records is None)
    kept = [place for place in range(len(columns)) if place not in left_out]
    return tuple(columns[k] for k in kept), tuple(tuple(row[k] for k in kept) for row in rows)


def _weakness(item: ItemWorth) -> tuple[bool, bool, float, float]:
    """Return what is larger of the weakest items; after the weak ones those of unknown size."""
    unknown = bool(item.needs) or (item.share is None and not item.judged)
    return item.grade == "weak" and not item.needs, unknown, *item.weakness


def _worth_row(item: ItemWorth, amount: str) -> tuple[str, ...]:
    average = "" if item.average is None or item.needs is not None else rounded(item.average)
    if item.needs is not None:
        expect = _needs_words(item.needs)
    elif item.grade is not None:
        shares = " to ".join(map(within, item.within_shares))
        expect = f"{' or '.join(item.grades)}, {shares}"
    elif item.share is None:
        expect = f"good from answers of {item.good_from:,}"
    else:
        expect = f"good from {amount.format(item.good_from)} at best"
    return (
        item.name,
        f"{item.queries:,}",
        f"±{rounded(item.within)}",
        rounded(item.flagged_below),
        average,
        expect,
    )


def _needs_words(needs: Mapping[str, int]) -> str:
    """Say how many records must meet a condition, which nobody declares, for each verdict."""
    if not needs:
        return "weak, even if all records meet `where`"
    good, fair = needs.get("good"), needs["fair"]
    if good is None:
        return f"fair if {fair:,} meet `where`, else weak"
    under = f"weak below {fair:,}" if fair < good else "else weak"
    return f"good if {good:,} meet `where`, {under}"


def _derived_row(item: DerivedWorth) -> tuple[str, ...]:
    """Return one line for a derived item, whose interval is in its own unit."""
    scale, unit = width_unit(item.kind)
    known = {rounded(scale * width): width for width in (item.milder, item.within) if width}
    typical = " to ".join(f"±{text}" for text, _ in sorted(known.items(), key=lambda one: one[1]))
    worst = "" if item.at_worst is None else f"at worst ±{rounded(scale * item.at_worst)}{unit}"
    expect = ", ".join(
        filter(None, (item.kind, worst * (item.rows > 1), _lost(item.lost, item.rows)))
    )
    if item.kind == "merged":
        missed = f"{item.lost:,} still too noisy" if item.lost else "if as large as expected"
        expect = f"{count(item.rows, 'row')} by merging (--why), {missed}"
    return f"{item.name}", f"{item.rows:,}", f"about {typical}{unit}" * bool(known), "", "", expect


def _lost(lost: int, rows: int) -> str:
    """Say how many rows are likely to have no estimate."""
    return f"{lost:,} of {count(rows, 'row')} likely to have no estimate" if lost else ""


def _first_notes(report: PlanReport, files: PlanFiles) -> list[tuple[str, str]]:
    """Return the lines below the tables, each under the word that it begins with."""
    spec, worth = report.spec, report.worth
    is_weak = worth.weakest.grade == "weak" and not report.plan.targets
    notes = [("weak" if is_weak else "better", "; ".join(remedy_words(report)))]
    notes *= not report.guesses
    notes += closest_notes(report) * (report.nearer is not None)
    notes += [("beyond", BEYOND_BUDGET)] * report.targets_beyond_budget
    notes += [("targets", words) for words in least_words(report)]
    notes += [("price", price_words(report)), ("risk", risk_words(report))]
    notes += [("delta", words) for words in delta_words(report.delta, spec.budget, report.records)]
    if spec.derived and spec.privacy.weight is not None and worth.items[0].records is None:
        notes.append(("derived", DERIVED_UNWEIGHED))
    if worth.proxy is not None:
        notes.append(("proxy", f"{worth.proxy} {PROXY_PUBLIC}"))
    notes += [("counts", _counts_words(spec)), *(("bins", words) for words in _bin_words(spec))]
    notes += sample_notes(report)
    notes += [("note", words) for words in _remarks(report)]
    return [
        *notes,
        ("wrote", f"{files.plan or 'nothing (--dry-run)'}; {_chosen_words(report)}"),
        ("next", _next_words(report, files)),
    ]


def sample_notes(report: PlanReport) -> list[tuple[str, str]]:
    """Say what the cap of weights may cost, and how noise compares with the error of the sample."""
    weight, worth = report.spec.privacy.weight, report.worth
    if weight is None:
        return []
    total, records, cap = worth.items[0].records, report.records, float(weight.at_most)
    mean = f", {rounded(cap * records / total)} times the mean" if total and records else ""
    lost = (
        f"{in_full(cap)} at most{mean}: half of that halves the noise. What larger ones lose by it "
        "is missing from every answer, and in no interval; dpquery check counts it"
    )
    compared, told, sums, hidden, unmeasured = [], [], [], [], []
    for item, asked in zip(worth.items, report.spec.items, strict=True):
        if weight.effective and (error := item.sample_std(weight.effective)):
            compared.append(f"{item.name} {percent(math.hypot(1, item.rmse / error) - 1)}")
        size, summed = item.sampled_from(weight.ratio_of_squares, cap), asked.summed
        means = [d.name for d in report.spec.derived if item.name in d.items]
        named = ", ".join([item.name, *means * (summed is not None)])
        if summed is not None and item.squares_error is None:
            unmeasured.append(named)
        elif summed is not None and size > summed.largest:
            hidden.append(named)
        elif summed is not None:
            of = report.spec.domain.attributes[summed.attribute].name
            sums.append(f"{named} from {of} of {rounded(float(f'{size:.2g}'))} on average")
        elif item.sample_std(1):
            told.append(f"{item.name} {rounded(float(f'{size:.2g}'))}")
    words = []
    if compared:
        of = f"what noise adds to the error of a simple sample of {weight.effective:,} records"
        words.append(f"{of}, in cells of average size: {', '.join(compared)}")
    if weight.replicates is not None:
        words += [_replicate_words(report)]
    if weight.design_effect is not None:
        sizes = "answers have a sampling_std from about these sizes on: "
        words += [f"{sizes}{', '.join(told)}"] * bool(told)
        over_all = "sums over all records (root mean square; smaller ones from more): "
        words += [f"{over_all}{', '.join(sums)}"] * bool(sums)
        words += [f"none in {', '.join(hidden)}: {HIDDEN_BY_NOISE}"] * bool(hidden)
        words += [f"none in {', '.join(unmeasured)}: {SQUARES_NOT_MEASURED}"] * bool(unmeasured)
        words += _design_words(report)
    return [("weights", lost)] + [("sample", "; ".join(words))] * bool(words)


def _replicate_words(report: PlanReport) -> str:
    """Say from what error of the sample on replicate weights tell it."""
    weight, told = report.spec.privacy.weight, []
    for item in report.worth.items:
        if (least := item.told_from) is None or weight is None:
            continue
        size = least**2 / weight.ratio_of_squares if weight.effective and weight.total else 0.0
        counts = bool(size) and item.sample_std(1) is not None
        of = f" (answers from about {rounded(float(f'{size:.2g}'))} by weight on)" * counts
        told.append(f"{item.name} {rounded(float(f'{least:.2g}'))}{of}")
    return (
        f"replicate weights tell a sampling_std where it is about this or more: {', '.join(told)}; "
        "twice the epsilon, or half of their at_most, halves that"
    )


def _design_words(report: PlanReport) -> list[str]:
    """Say which items' errors of the sample the declared strata or clusters tell."""
    weight = report.spec.privacy.weight
    if weight is None or weight.drawn is None:
        return []
    names = [report.spec.domain.attributes[i].name for i in weight.drawn.attributes]
    if weight.drawn.cluster is None:
        of, does, hides = f"strata of {names[0]}", "make it smaller in", "noise hides most of what"
    else:
        of, does, hides = f"clusters of {names[-1]}", "tell it in", "noise hides what"
    told, hidden, unmeasured = (
        ", ".join(item.name for item in report.worth.items if item.by_design == state)
        for state in ("told", "hidden", "not measured")
    )
    by = f"by {' and '.join(names)} too"
    hides += f" {of} make of it in {hidden}: less so with a table of the same {by}, or more weight"
    words = [f"{of} {does} {told}"] * bool(told) + [f"{hides} for it"] * bool(hidden)
    asks = f"not all of {unmeasured} is measured {by}: ask for its sets and totals {by}"
    return words + [f"{asks} where {of} are to tell it"] * bool(unmeasured)


def _next_words(report: PlanReport, files: PlanFiles) -> str:
    """Say what is run next: a release that the budget can pay for, or what helps if none fits."""
    spec, fitting = quote(str(files.spec)), _fitting_options(report)
    check, released = f"dpquery check data.csv {spec}", report.room and report.room.funds
    if not fitting:
        words = f"no release fits: declare a larger `budget:` in {spec}, then run "
        words += f"`dpquery plan {spec} --change-cap`"
        return words + (f"; {STILL_FREE}" if released and released.account.spent else "")
    plan = "" if str(files.plan) == PLAN_PATH else f" --plan {quote(str(files.plan))}"
    delta = report.delta != report.spec.privacy.delta
    plan += f" --delta {power(float(report.delta))}" if delta else ""
    command = "this command without --dry-run"
    if files.plan is not None:
        command = f"dpquery release data.csv{plan} {fitting}"
    words = f"{check} first, since a file cut off is charged too; then {command}"
    asked, reached = _asked(report), (*report.reached, *report.derived)
    if fitting == asked:
        return words + ", which misses targets" * (not all(one.met for one in reached))
    missed = ", and misses the targets" if report.least else ""
    return f"{words} ({asked} does not fit; {fitting} does{missed})"


def _asked(report: PlanReport) -> str:
    return f"--epsilon {epsilon_text(report.epsilon)}"


def _fitting_options(report: PlanReport) -> str:
    """Return the options of a release that fits: as asked, or with other noise, or the largest."""
    if report.room is not None and report.room.repetitions:
        return _asked(report)
    linear = "--mechanism linear " if report.plan.preferred else ""
    rooms = {noise: room for noise, room in report.rooms.items() if room.largest}
    for noise, room in rooms.items():
        if room.repetitions:
            return f"{_asked(report)} {linear}--noise {noise}"
    if not rooms:
        return ""
    noise, room = max(rooms.items(), key=lambda one: one[1].largest or 0)
    return f"--epsilon {epsilon_text(room.largest or report.epsilon)} {linear}--noise {noise}"


def remedy_words(report: PlanReport) -> list[str]:
    """Say which item is weak for its size and what to do, and which weights are nearly free."""
    worth, lines = report.worth, []
    weakest, is_weak = worth.weakest, worth.weakest.grade == "weak" and not report.plan.targets
    by_item = {weighed.item: weighed for weighed in worth.weighed}
    if is_weak:
        is_table = weakest.share is not None  # of counts: there may be fewer and larger ones
        remedies = ["coarser values"] * is_table
        own = by_item.pop(weakest.name, None)
        if own is not None and own.others <= BEARABLE:
            remedies.append(f"{_weight(own, report.spec)} (±{rounded(own.within)}; {_others(own)})")
        beside = "; give others that matter one too" * (len(worth.items) > 1)
        about = rounded(report.target_epsilon)
        target = f'--target "{weakest.name}: rmse <= {worth.target:g}"'
        bounds = report.spec.prefer == "unbiased"  # targets are refused beside the closest answers
        remedies += [f"{target} (met from about epsilon {about}{beside})"] * bounds
        unknown = report.nearer is None  # else a line says how much closer it is
        remedies += ["`prefer: closest`"] * (report.spec.may_prefer_closest and unknown)
        too = "fine" if is_table else "small"
        sure = "may be" if weakest.needs or len(weakest.grades) > 1 else "is"
        lines.append(f"{weakest.name} {sure} too {too} for its noise: {', or '.join(remedies)}")
    now = {item.name: item.within for item in worth.items}
    return lines + [
        f"{one.item} is ±{rounded(one.within)} with {_weight(one, report.spec)}, not "
        f"±{rounded(now[one.item])} ({_others(one)})"
        for one in by_item.values()
        if one.cheap
    ]


def _weight(weighed: Weighed, spec: Spec) -> str:
    of_item = " of the item" * (spec.privacy.weight is not None)  # and not of records
    return f"`weight: {weighed.weight:g}`{of_item}"


def _others(weighed: Weighed) -> str:
    return f"others {percent(weighed.others)} worse at most"


def price_words(report: PlanReport) -> str:
    """Say what a release takes of the budget, how many fit, and what a single one could be."""
    room, best = report.room, report.priced[0]
    if room is None:
        return cost(report)
    account = room.funds.tighter
    whose = f" of {account.dataset}" if account is room.funds.parent else ""
    spent = f"; {spent_share(account)} of the budget is spent already" if account.spent else ""
    grows = grows_unlike(report.epsilon, room.share, account.cap)
    why = f" ({GROWS})" if grows else ""
    words = f"{percent(room.share)} of the budget{whose}{why}{spent}; "
    if not room.repetitions:
        return words + room_words(room, "such releases", report.spent_delta)
    fit = "such release fits" if room.repetitions == 1 else "such releases fit"
    words += f"{room.repetitions:,} {fit}"
    compared = report.plan.adaptive is not None or report.nearer is not None
    if compared and not account.spent and account.cap.currency == "mu^2":
        words += "; adaptive measurement is refused after one, except under `accounting: zcdp`"
    single = report.single
    if single is None or report.guesses:
        return words
    return (
        f"{words}. If it is the only one, --epsilon "
        f"{epsilon_text(single.epsilon, report.spent_delta)} has "
        f"{single.rmse / best.rmse:.2g} times the error"
    )


def risk_words(report: PlanReport) -> str:
    """Say what the guarantee bounds, in a line."""
    privacy = report.spec.privacy
    delta = report.spent_delta
    aside = f" ({power(float(delta))} aside)" if delta else ""
    whose = "record" if privacy.person is None else "person"
    guess = f"that one {whose} is in the file"
    if privacy.neighbours == "replace":
        guess = f"between two values of one {whose}"
    most = sure_percent(float(report.epsilon))
    return f"an even-odds guess {guess} rises to {most} at most{aside}"


def _counts_words(spec: Spec) -> str:
    """Say whose records are in no table, and where undeclared values count."""
    names: dict[str, list[str]] = {"drop": [], "count": [], "show": []}
    for attribute in spec.domain.in_data:
        for column in attribute.columns:
            names[column.other].append(column.name)

    def named(columns: Sequence[str]) -> str:
        more = len(columns) - LEFT_OUT_SHOWN
        return ", ".join(columns[:LEFT_OUT_SHOWN]) + (f" and {more} more" if more > 0 else "")

    def of(columns: Sequence[str]) -> str:
        name = columns[0] if len(columns) == 1 else f"{len(columns)} columns"
        return f"undeclared values of {name}"

    words = [
        f"records with an undeclared value of {named(names['drop'])} are in no table"
        if names["drop"]
        else "no record is left out because of a value"
    ]
    if names["count"]:
        words.append(f"{of(names['count'])} are in totals alone, which not every table has")
    if names["show"]:
        words.append(f"{of(names['show'])} have a row other in tables by single values")
    over = [d.statistic.attribute for d in spec.derived if isinstance(d.statistic, Quantiles)]
    if blank := [
        a.name for i, a in enumerate(spec.domain.attributes) if i in over and with_values(a)
    ]:
        words.append(f"quantiles of {named(blank)} are of declared values alone")
    if spec.privacy.person is not None:
        words.append(f"records without {spec.privacy.person} are in no table")
        words.append(rows_counted(spec.privacy.max_rows, keep=spec.privacy.keep).lower())
    if (weight := spec.privacy.weight) is not None:
        said = weight_words(weight.name, float(weight.at_most), float(weight.step))
        words.append(said[0].lower() + said[1:])
    return "; ".join(words)


def _bin_words(spec: Spec) -> Iterator[str]:
    """Yield what no error says of sums, and of means that are made of them."""
    attributes = spec.domain.attributes
    for item in spec.items:
        summed = item.summed
        words = "" if summed is None else summed.rounding_words(attributes[summed.attribute])
        if words:
            means = [d.name for d in spec.derived if item.name in d.items]
            yield f"{', '.join([item.name, *means])}: {words}"


def _remarks(report: PlanReport) -> Iterator[str]:
    """Yield what may not have been meant, and what was not looked at."""
    spec, account = report.spec, report.room and report.room.funds.account
    yield from spec.remarks
    fixed = account and account.spent and account.cap.currency == "epsilon"
    if spec.budget.delta and not report.delta and not fixed:
        yield (
            "Gaussian noise is left out, because the `delta` under privacy is 0; with "
            f"`delta: {power(float(spec.budget.delta))}` there, as under budget, it is compared too"
        )
    if stopped := sum(c.stopped for one in report.priced for c in one.selection.candidates):
        yield f"not finished: {count(stopped, 'search')}; give --time-limit more seconds"
    yield report.remark


def _chosen_words(report: PlanReport) -> str:
    """Name the strategy, and how far from the best possible it is at most."""
    best, preferred = report.priced[0], report.plan.preferred
    ratio = ratio_to_bound(best, best.selection.figures)
    named = best.selection.best if preferred is None else preferred.name
    if ratio is None or preferred is not None:
        return f"{named} (--why, --candidates)"
    off = ""
    if ratio >= 1 + BEST:
        off = f"within {percent(ratio - 1)} of " if ratio < 1.5 else f"at most {ratio:.1f} times "
    return f"{named}, {off}the best possible (--why, --candidates)"


def least_words(report: PlanReport) -> list[str]:
    """Say what each kind of noise needs to meet the targets, and which tables have none."""
    derived = {item.name: item.items for item in report.spec.derived}
    named = [n for of in report.plan.targets for n in (of.item, *derived.get(of.item, ()))]
    others = [item.name for item in report.spec.items if item.name not in named]
    return [
        f"all targets are met from epsilon = {float(needed.epsilon):g} with "
        f"{needed.noise.capitalize()} noise: {percent(needed.share)} of the budget"
        + (", which cannot pay for it" if needed.share > 1 else "")
        for needed in report.least
    ] + [
        "tables without a target share about 1 % of the budget; name them too if they matter, or "
        "all of them with *"
    ] * bool(report.least and others)


def ratio_to_bound(priced: SelectionAtBudget, candidate: CandidateFigures) -> float | None:
    """Return what is minimised over the least that it can be: like with like."""
    bound = priced.selection.bound_score
    return None if bound is None or candidate.score is None else candidate.score / bound


def _target_grid(report: PlanReport) -> Grid:
    rows = tuple(
        (
            reached.target.item,
            FIGURE_NAMES[reached.target.figure],
            "none" if math.isinf(reached.figure) else figure(reached.figure),
            figure(reached.target.at_most),
            "met" if reached.met else "not met",
        )
        for reached in (*report.reached, *report.derived)
    )
    noise = report.priced[0].selection.noise.capitalize()
    title = f"targets, with {noise} noise at {guarantee_text(report)}"
    notes = [*report.derived_words, *map(_rows_without, report.derived)]
    columns = ("item", "figure", "reached", "target", "")
    return Grid(title, columns, rows, tuple(dict.fromkeys(note for note in notes if note)))


def _rows_without(reached: DerivedReached) -> str:
    """Say which rows of a derived item have no estimate, or nothing to compare one with."""
    name, rows = reached.target.item, reached.rows
    words = []
    if reached.lost:
        words.append(f"{reached.lost} of {rows} rows are lost in noise, so that no target is met")
    if reached.unknown:
        words.append(f"{reached.unknown} of {rows} rows have no records there and are left out")
    return f"{name}: {'; '.join(words)}" if words else ""


def _sweep_grids(report: PlanReport) -> list[Grid]:
    if not report.sweep:
        return []
    rows = []
    for point in report.sweep:
        for place, priced in enumerate(point.priced):
            rows.append(
                (
                    f"{float(point.epsilon):g}",
                    priced.selection.noise,
                    priced.selection.best,
                    figure(priced.rmse),
                    figure(priced.max_std_error),
                    percent(priced.share),
                    "chosen" if place == 0 else "",
                )
            )
    columns = ("epsilon", "noise", "strategy", "RMSE", "max std error", "of the budget", "")
    both = len(report.priced) > 1 and report.counted
    counted = (f"all of it where {report.counted.partition(':')[0]}",) if both else ()
    return [Grid("error by epsilon", columns, tuple(rows), counted)]


def worth_json(report: PlanReport) -> dict[str, object]:
    """Return what each item is worth, in its spec's order, and what would make the weakest better.

    `grade`, `average` and `relative`, the error over the median answer of a made-up population, are
    null where the number of records is not known; `grades` has a second one where a less uneven
    population gives another.
    """
    worth = report.worth
    return {
        "records": worth.items[0].records,
        "judged_on": worth.judged_on or None,
        "items": [
            {
                "name": item.name,
                "within_95": item.within,
                "flagged_below": item.flagged_below,
                "average": item.average,
                "relative": item.relative,
                "grade": item.grade,
                "grades": item.grades,
                "good_from": item.good_from,
                "meet_where": item.meet,
                "records_to_meet": item.needs,
                "good_from_is_of": "an answer" if item.share is None else "the file",
            }
            for item in worth.items
        ],
        "derived": [_renamed(vars(item)) for item in worth.derived],
        "weakest": worth.weakest.name,
        "weighed": [_renamed(vars(weighed)) for weighed in worth.weighed],
    }


def _renamed(values: Mapping[str, object]) -> dict[str, object]:
    """Return a record in which half of an interval is called by its level."""
    return {"within_95" if name == "within" else name: value for name, value in values.items()}
