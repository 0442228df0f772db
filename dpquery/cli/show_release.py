"""What the other commands print, as plain rows and JSON values: no terminal, colours or data.

What commands print of budgets, as plain rows and JSON values: no terminal, colours or data.
"""

from collections.abc import Sequence
from fractions import Fraction
from shlex import quote
from typing import TYPE_CHECKING

from dpquery.arrays import Ints
from dpquery.cli.screen import Grid
from dpquery.commands.defaults import RELEASE_PATH
from dpquery.commands.release import ReleaseReport
from dpquery.measurement.accounting import units_text
from dpquery.measurement.ledger.events import Account, Event, LedgerState, RunningSum, pure_units
from dpquery.measurement.ledger.funds import Room, cap_text, delta_text, epsilon_text
from dpquery.measurement.ledger.ledger import KEY_PREFIX, Status
from dpquery.mechanisms.linear import LinearMechanism
from dpquery.releases.budget_words import (
    bar,
    exact_words,
    growth_words,
    left_words,
    room_words,
    spent_share,
    taken_words,
)
from dpquery.releases.extra_columns import nearer_json, told_errors_words
from dpquery.releases.manifest import Manifest
from dpquery.releases.manifest_facts import missed_lines, nearer_words, over_units
from dpquery.releases.statement import known_errors, simulated_words
from dpquery.releases.words import count, figure, level_text, percent
from dpquery.spec.numbers import power

if TYPE_CHECKING:
    from dpquery.commands.answer import AnswerReport
    from dpquery.mechanisms.fitted import AdaptiveMechanism, RapMechanism
    from dpquery.releases.report.figures import Report


_UNTOLD = "not told here: whether the file is whole and its records fit the spec"
_UNTOLD_WEIGHTS = ", nor how many weights are missing, negative or text, which count as 0"
_PARENTS = "*"  # behind what is left in the parent


def room_json(room: Room) -> dict[str, object]:
    """Return what there is room for; `largest_epsilon` is exact text, and fits."""
    return {
        "account": room.funds.tighter.dataset,
        "share": room.share,
        "more_like_it": room.repetitions,
        "largest_epsilon": None if room.largest is None else epsilon_text(room.largest),
    }


def status_grids(statuses: Sequence[Status], *, exact: bool) -> list[Grid]:
    """Return the datasets' accounts, and their unfinished runs if there are any.

    With `exact`, accounts are in what is added up, to the last digit.
    """
    accounts = _exact_grids(statuses) if exact else [_budgets(statuses), *_both_sums(statuses)]
    return [*accounts, *_unfinished(statuses)]


def _budgets(statuses: Sequence[Status]) -> Grid:
    """Return what is spent and left, a row a dataset."""
    shown = [_row(status) for status in statuses]
    columns = [name for name in next(iter(shown), {}) if any(row[name] for row in shown)]
    rows = tuple(tuple(row[name] for name in columns) for row in shown)
    meanings = {
        "left": "left: the largest epsilon that one release can have",
        "more": "more: how many releases of the price of the last one fit",
    }
    notes = [note for name, note in meanings.items() if name in columns]
    if any(_by_parent(status) for status in statuses):
        notes.append(f"{_PARENTS}: in its parent, where less is left")
    grows = growth_words(*(status.funds.tighter for status in statuses))
    notes += [f"spent: {grows}"] * bool(grows)
    return Grid(_first_sentence(statuses), tuple(columns), rows, tuple(notes))


def _first_sentence(statuses: Sequence[Status]) -> str:
    """Say what is spent and what still fits: of one dataset; several have a line each."""
    if not statuses:
        return "no dataset is on record"
    if len(statuses) > 1:
        return f"budgets of {len(statuses)} datasets"
    (status,) = statuses
    account, largest, more = status.funds.tighter, status.funds.epsilon_left, status.repetitions
    share = spent_share(account) if account.spent else "nothing"
    spent = f"{status.account.dataset}: {share} spent"
    if account.share_spent >= 1:
        return f"{spent}; no further release fits"
    if largest is None:
        return spent
    last = f", or {more:,} like the last, fit" if more else " fits"
    offered = epsilon_text(largest, account.cap.noise_delta)
    return f"{spent}; one release at epsilon {offered}{last}"


def _row(status: Status) -> dict[str, str]:
    account, decisive = status.account, status.funds.tighter
    left = left_words(decisive, status.funds.epsilon_left)
    return {
        "dataset": _dataset(account),
        "spent": f"{bar(account, width=8)} {spent_share(account)}",
        "left": f"{left} {_PARENTS}" if _by_parent(status) else left,
        "delta": power(float(decisive.cap.delta)) if decisive.cap.delta else "",
        "more": "" if status.repetitions is None else f"{status.repetitions:,}",
        "releases": str(status.releases),
        "discoveries": str(status.discoveries or ""),
    }


def _dataset(account: Account) -> str:
    return account.dataset + (f" of {account.parent}" if account.parent else "")


def _by_parent(status: Status) -> bool:
    return status.funds.tighter is status.funds.parent


def _both_sums(statuses: Sequence[Status]) -> list[Grid]:
    """Return both sums of the datasets for which either one admits a release."""
    rows = []
    for status in statuses:
        account = status.account
        if len(_counted(account)) == 1:
            continue
        gaussian = status.funds.epsilon_left_with("gaussian")
        cost, epsilons = account.sums
        rows.append(
            (
                account.dataset,
                percent(float(epsilons.share)),
                f"{percent(float(cost.share))} of {cost.currency}",
                account.decisive.currency,
                "nothing" if gaussian is None else f"epsilon {epsilon_text(gaussian)}",
            )
        )
    if not rows:
        return []
    title = "Laplace noise alone so far: the next release has to fit one of two sums"
    columns = ("dataset", "by epsilons", "by cost", "decides", "left, Gaussian")
    notes = (
        "by epsilons: their plain sum, of the epsilon of the budget",
        "by cost: what they cost in mu^2 or rho, as a share of the budget in it",
        "decides: the sum of which less is spent; the shares above are by it",
        "Gaussian noise is charged by cost alone, and ends the sum by epsilons",
    )
    return [Grid(title, columns, tuple(rows), notes)]


def _counted(account: Account) -> tuple[RunningSum, ...]:
    """Return the sums of an account; where nothing is spent, one says all that both could."""
    return account.sums if account.spent else account.sums[:1]


def _exact_grids(statuses: Sequence[Status]) -> list[Grid]:
    rows: list[tuple[str, ...]] = [
        (_dataset(status.account), one.currency, name, units_text(units))
        for status in statuses
        for one in _counted(status.account)
        for name, units in (
            ("cap", one.most),
            ("spent", one.spent),
            ("left", one.left) if one.left >= 0 else ("over", -one.left),
        )
    ]
    rows += [
        (_dataset(status.account), "delta", f"{name} by discoveries", delta_text(delta))
        for status in statuses
        for name, delta in _discoveries(status).items()
    ]
    notes = []
    if any(len(_counted(status.account)) > 1 for status in statuses):
        notes.append("two sums, while all noise is Laplace noise: a release has to fit one of them")
    if any(one.left < 0 for status in statuses for one in status.account.sums):
        notes.append("over: more is spent than the cap: the other sum admitted it, or the cap fell")
    columns = ("dataset", "counted in", "", "amount")
    return [Grid("budget by dataset, to the last digit", columns, tuple(rows), tuple(notes))]


def _discoveries(status: Status) -> dict[str, Fraction]:
    """Return the delta that discoveries may spend, have spent and can spend; nothing without."""
    account = status.account
    if not account.cap.discover:
        return {}
    left = status.funds.threshold_left
    return {"cap": account.cap.discover, "spent": account.threshold, "left": left}


def _unfinished(statuses: Sequence[Status]) -> list[Grid]:
    """Return the runs that were charged and never finished, and what gives each of them up."""
    rows = tuple(
        (status.account.dataset, f"dpquery ledger abandon {key[:KEY_PREFIX]}")
        for status in statuses
        for key in status.unfinished
    )
    if not rows:
        return []
    notes = (
        "the same command again goes on at no charge; what is given up stays charged",
        f"a run is named by {KEY_PREFIX} characters of its key or more; --json has all of them",
    )
    return [Grid("charged and never finished", ("dataset", "to give it up"), rows, notes)]


def status_json(status: Status) -> dict[str, object]:
    """Return a dataset's account as JSON values; amounts are exact decimal text.

    `left` is never below 0. `sums` has what each sum that can admit a release is of; `decides` is
    what the one with less spent is counted in. `epsilon_left` is at the cap's delta, and like
    `more_like_the_last` it is what dataset and parent both have room for.
    """
    account, left = status.account, status.funds.epsilon_left
    sums = [
        {
            "currency": one.currency,
            "cap": units_text(one.most),
            "spent": units_text(one.spent),
            "left": units_text(max(0, one.left)),
        }
        for one in account.sums
    ]
    deltas = {name: delta_text(delta) for name, delta in _discoveries(status).items()}
    return {
        "dataset": account.dataset,
        **sums[0],
        "releases": status.releases,
        "unfinished": list(status.unfinished),
        "parent": account.parent,
        "share_spent": float(account.share_spent),
        "sums": sums,
        "decides": account.decisive.currency,
        "epsilon_left": None if left is None else epsilon_text(left),
        "more_like_the_last": status.repetitions,
        **({"discoveries": {"count": status.discoveries, **deltas}} if deltas else {}),
    }


def history_grid(events: Sequence[Event], *, exact: bool) -> Grid:
    """Return the ledger's events, one a row; amounts as shares of the cap of that time."""
    rows, state = [], LedgerState()
    for event in events:
        state.apply(event)
        fields = event.as_json()
        dataset, parent, units = str(fields.get("dataset", "")), fields.get("parent"), ""
        entry = state.entries.get(str(fields.get("key")))
        if "units" in fields:
            number, account = int(str(fields["units"])), state.accounts[dataset]
            pure = account.pure if event.kind == "adopt" else pure_units(fields.get("native"))
            if exact:
                units = units_text(number)
            elif event.kind in ("register", "change-cap"):
                units = cap_text(account.cap)
            else:
                units = percent(float(account.share(number, pure)))
        rows.append(
            (
                str(event.head.seq),
                event.day,
                event.kind + (" of a discovery" if entry and entry.discovered else ""),
                dataset + (f" of {parent}" if parent else ""),
                units,
                str(fields.get("key", ""))[:KEY_PREFIX],
                event.head.hash[:12],
            )
        )
    columns = ("seq", "day", "event", "dataset", "amount", "key", "hash")
    return Grid("ledger events", columns, tuple(rows))


def release_text(done: ReleaseReport, *, exact: bool) -> str:
    """Return the lines that `release` prints; with `exact` the budget to the last digit."""
    mechanism, guarantee = done.mechanism, done.mechanism.query.guarantee
    delta = f", delta = {power(float(guarantee.delta))}" if guarantee.delta else ""
    if isinstance(mechanism, LinearMechanism):
        priced, selection = mechanism.priced, mechanism.priced.selection
        worth = (
            f"{selection.best} with {selection.noise.capitalize()} noise: expected RMSE "
            f"{figure(priced.rmse)}, largest standard error {figure(priced.max_std_error)}"
            f"{over_units(done.manifest.items)}"
        )
    else:
        worth = _relaxed_text(mechanism, done.manifest)
    account, parent = done.account, done.parent
    if exact:
        budget = exact_words(account, parent=parent)
    else:
        measured = done.measured
        budget = taken_words(measured.charged, account, pure=measured.pure, parent=parent)
    grows = growth_words(account, parent)
    when = "now" if done.free else "after it"
    weight, untold, counted = done.manifest.privacy.weight, _UNTOLD, ""
    if weight is not None:
        untold, counted = untold + _UNTOLD_WEIGHTS, f"; {weight.clause}"
    notes = [fact.note for fact in done.facts]
    notes += [weight.warning] if weight and weight.warning else []
    facts = "".join(note + "\n" for note in (*notes, *_merged_lines(done)))
    return (
        f"{done.directory}: {count(done.spec.queries, 'answer')} in "
        f"{count(len(done.spec.items), 'item')}, "
        f"epsilon = {float(guarantee.epsilon):g}{delta}{counted}\n"
        f"{worth}\n"
        f"{nearer_text(done)}"
        f"{facts}"
        f"budget: {budget}{grows and f' ({grows})'}\n"
        f"{when}: {room_words(done.room, 'more like it', guarantee.delta)}\n"
        f"{untold}; dpquery check tells\n"
        f"next: {_next(done)}"
    )


def nearer_text(done: ReleaseReport) -> str:
    """Say by the noisy values how far off the best guess is, where it is there or far nearer."""
    manifest = done.manifest
    told = told_errors_words(manifest) or (manifest.nearer and nearer_words(*manifest.nearer))
    return f"closest: {told}\n" if told else ""


def _next(done: ReleaseReport) -> str:
    """Return what is run after a release."""
    place = "" if str(done.directory) == RELEASE_PATH else f" {quote(str(done.directory))}"
    report = f"dpquery error-report{place} (how reliable each number is)"
    if isinstance(done.mechanism, LinearMechanism):
        return f"{report}, then dpquery package{place} (to hand over)"
    return f"{report}, then dpquery synthetic{place} (records to work with)"


def _relaxed_text(mechanism: "RapMechanism | AdaptiveMechanism", manifest: Manifest) -> str:
    simulated, name = mechanism.simulated, mechanism.planned.name
    if manifest.adaptive is not None and manifest.adaptive.distances:
        return f"{name}: no error bars; {known_errors(manifest, in_short=True)}"
    if simulated is None:
        return f"{name}: no error bars, and the plan simulated no errors at this epsilon and delta"
    return simulated_words(mechanism.planned, weighted=simulated.weighted)


def release_json(done: ReleaseReport) -> dict[str, object]:
    """Return what `release --json` prints; budget amounts are exact decimal text.

    Of RAP and adaptive measurement nobody knows the errors: `rmse` and `max_std_error` are null,
    and what the plan simulated is under `simulated`; how far the tables of an adaptive run are off,
    as it was measured with noise, under `distances`.
    """
    mechanism, guarantee = done.mechanism, done.mechanism.query.guarantee
    return {
        "directory": str(done.directory),
        "queries": done.spec.queries,
        "mechanism": "linear" if isinstance(mechanism, LinearMechanism) else mechanism.planned.key,
        "epsilon": float(guarantee.epsilon),
        "delta": float(guarantee.delta),
        **(
            _linear_json(mechanism)
            if isinstance(mechanism, LinearMechanism)
            else _relaxed_json(mechanism, done.measured.values)
        ),
        **nearer_json(done.manifest),
        "free": done.free,
        **({"facts": [vars(fact) for fact in done.facts]} if done.facts else {}),
        "budget": room_json(done.room),
        "currency": done.account.cap.currency,
        **_account_json(done.account),
        "parent": done.parent and {"dataset": done.parent.dataset, **_account_json(done.parent)},
    }


def _account_json(account: Account) -> dict[str, str]:
    return {"spent": units_text(account.spent), "cap": units_text(account.cap.units)}


def _linear_json(mechanism: LinearMechanism) -> dict[str, object]:
    return {
        "strategy": mechanism.priced.selection.best,
        "noise": mechanism.priced.selection.noise,
        "rmse": mechanism.priced.rmse,
        "max_std_error": mechanism.priced.max_std_error,
    }


def _relaxed_json(mechanism: "RapMechanism | AdaptiveMechanism", values: Ints) -> dict[str, object]:
    simulated = None if mechanism.simulated is None else vars(mechanism.simulated)
    distances = mechanism.distances(mechanism.query.rounds.measured(values))
    facts = {
        "strategy": mechanism.planned.name,
        "noise": "gaussian",
        "rmse": None,
        "max_std_error": None,
    }
    return facts | {"simulated": simulated, "distances": [vars(each) for each in distances]}


def answer_text(done: "AnswerReport") -> str:
    """Return the lines that `answer` prints."""
    head = f"{done.directory}: {count(done.queries, 'answer')} in {count(len(done.items), 'item')}"
    if done.rmse is None or done.max_std_error is None:
        errors = "no error bars: the release is of relaxed rows"
        if done.guessed:
            names = ", ".join(done.guessed)
            errors += f"\na guess: values of {names} that it does not tell apart are taken as equal"
    else:
        largest = figure(done.max_std_error)
        errors = f"RMSE {figure(done.rmse)}, largest standard error {largest}"
    return "\n".join([f"{head}, from {done.release}", errors, *_merged_lines(done)])


def _merged_lines(done: "ReleaseReport | AnswerReport") -> list[str]:
    """Return a line for each item of merged rows, by which sizes and where, and what is wrong."""
    merged = [facts for facts in done.manifest.derived if facts.merged is not None]
    return [*(f"{facts.name}: {facts.merged_words}" for facts in merged), *missed_lines(merged)]


def answer_json(done: "AnswerReport") -> dict[str, object]:
    """Return what `answer --json` prints."""
    paths = {"directory": str(done.directory), "release": str(done.release)}
    figures = {"rmse": done.rmse, "max_std_error": done.max_std_error, "charged": "0"}
    sizes = {"queries": done.queries, "items": len(done.items), "guessed": list(done.guessed)}
    return {**paths, **sizes, **figures}


def report_grids(report: "Report") -> list[Grid]:
    """Return what `error-report` prints: a line an item, the guarantee, a line a derived item."""
    from dpquery.releases.report.figures import INTERVAL_COLUMNS, headline, to_rows

    title, *notes = headline(report)
    rows = tuple(to_rows(report))
    if not report.measured:  # the page has room for sentences
        pairs = zip(rows, report.items, strict=True)
        rows = tuple((*row[:-1], f"{item.grade}{item.others}") for row, item in pairs)
    grids = [Grid(title, report.columns, rows, tuple(notes))]
    if report.derived:
        level = level_text(report.manifest.level)
        of_noise = " of noise" * report.manifest.tells_sample
        derived = f"derived from the answers: half of the {level} interval{of_noise}, in its unit"
        rows = tuple(item.summary for item in report.derived)
        said = missed_lines([item.facts for item in report.derived])
        grids.append(Grid(derived, INTERVAL_COLUMNS, rows, tuple(said)))
    return grids
