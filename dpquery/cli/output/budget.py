"""What commands print of budgets, as plain rows and JSON values: no terminal, colours or data."""

from collections.abc import Sequence

from dpquery.cli.output.text_table import Grid
from dpquery.measurement.accounting import units_text
from dpquery.measurement.ledger.dataset_status import Status
from dpquery.measurement.ledger.events import Event, LedgerState, pure_units
from dpquery.measurement.ledger.funds import Room, cap_text, epsilon_text
from dpquery.releases.budget_words import bar, left_words, spent_share
from dpquery.releases.formatting import percent, power


def room_json(room: Room) -> dict[str, object]:
    """Return what there is room for; `largest_epsilon` is exact text, and fits."""
    return {
        "account": room.funds.tighter.dataset,
        "share": room.share,
        "more_like_it": room.repetitions,
        "largest_epsilon": None if room.largest is None else epsilon_text(room.largest),
    }


def status_grid(statuses: Sequence[Status], *, exact: bool) -> Grid:
    """Return the datasets' accounts; with `exact` in their currency, to the last digit."""
    shown = [(_exact_row if exact else _row)(status) for status in statuses]
    columns = dict.fromkeys(name for row in shown for name, cell in row.items() if cell)
    rows = tuple(tuple(row[name] for name in columns) for row in shown)
    left = "left: the largest epsilon that one release can have"
    more = "more: how many releases of the price of the last one fit"
    notes = (
        ()
        if exact
        else tuple(note for name, note in (("left", left), ("more", more)) if name in columns)
    )
    return Grid("budget by dataset", tuple(columns), rows, notes)


def _row(status: Status) -> dict[str, str]:
    account, decisive = status.account, status.funds.tighter
    whose = f" in {decisive.dataset}" if decisive is status.funds.parent else ""
    return {
        "dataset": account.dataset,
        "spent": f"{bar(account)} {spent_share(account)}",
        "left": left_words(decisive, status.funds.epsilon_left) + whose,
        "at delta": power(float(decisive.cap.delta)) if decisive.cap.delta else "",
        "more": "" if status.repetitions is None else f"{status.repetitions:,}",
        "releases": str(status.releases),
        "unfinished": ", ".join(status.unfinished),
        "parent": account.parent or "",
    }


def _exact_row(status: Status) -> dict[str, str]:
    account = status.account
    return {
        "dataset": account.dataset,
        "currency": account.cap.currency,
        "cap": units_text(account.cap.units),
        "spent": units_text(account.spent),
        "left": units_text(account.remaining),
        "releases": str(status.releases),
        "unfinished": ", ".join(status.unfinished),
        "parent": account.parent or "",
    }


def status_json(statuses: Sequence[Status]) -> list[dict[str, object]]:
    """Return the datasets' accounts as JSON values; amounts are exact decimal text.

    `epsilon_left` is at the cap's delta, and like `more_like_the_last` it is what dataset and
    parent both have room for.
    """
    return [
        _exact_row(status)
        | {
            "releases": status.releases,
            "unfinished": list(status.unfinished),
            "parent": status.account.parent,
            "share_spent": float(status.account.share_spent),
            "epsilon_left": None if left is None else epsilon_text(left),
            "more_like_the_last": status.repetitions,
        }
        for status in statuses
        for left in [status.funds.epsilon_left]
    ]


def history_grid(events: Sequence[Event], *, exact: bool) -> Grid:
    """Return the ledger's events, one a row; amounts as shares of the cap of that time."""
    rows, state = [], LedgerState()
    for event in events:
        state.apply(event)
        fields = event.as_json()
        dataset, parent, units = str(fields.get("dataset", "")), fields.get("parent"), ""
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
                event.kind,
                dataset + (f" of {parent}" if parent else ""),
                units,
                str(fields.get("key", ""))[:12],
                event.head.hash[:12],
            )
        )
    columns = ("seq", "day", "event", "dataset", "amount", "key", "hash")
    return Grid("ledger events", columns, tuple(rows))
