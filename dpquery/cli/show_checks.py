"""What check and audit print.

What `check` prints, as plain rows; made of the records: private, as they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import fill

from dpquery.audit.statistics import ALPHA, TO_ITS_END, Finding
from dpquery.cli.screen import Grid
from dpquery.data_check.findings import (
    DataCheck,
    FileGuess,
    Header,
    Malformed,
    Records,
    ReplicatesFound,
    RowsPerPerson,
    UndeclaredValues,
    WeightsFound,
    written_out,
)
from dpquery.releases.words import count, figure, in_full, percent
from dpquery.spec.columns import Bins, Boolean, Categorical, Column, Dates, Integers
from dpquery.spec.problems import nearest
from dpquery.spec.spec import FileFormat

WHAT_PASSING_SHOWS = {
    "supply": "The installed libraries are of versions that are accepted; the evidence names those "
    "that are not the locked ones, and those whose files could not be checked.",
    "sampler": "No difference from the exact laws was seen in what all sources of noise "
    "draw at these scales, small and uneven ones too.",
    "charges": "Noise is charged no less than its law costs, at these moves, scales, orders and "
    "events, and a ledger accepts what its two sums allow, which no adversary of so few steps gets "
    "past.",
    "lattice": "Records are counted and answered exactly, in whole numbers. What is published lies "
    "on the grid and, where it was worked out apart, follows to six digits from noisy whole "
    "numbers alone. The ledger is charged in full before the records are read, and once.",
    "residuals": "What is released differs from the exact answers by noise of the law and the "
    "scale that plan, unit and epsilon demand, worked out apart from the product.",
    "independence": "No rows and no releases share their noise, nor does any foretell another's, "
    "as far as sums of pairs show.",
    "neighbours": "No event was found that tells neighbouring data sets apart better than the "
    "claim allows; a mistake must be larger than the gap between bound and claim to be seen here.",
    "discoveries": "Discoveries add the noise, hold the threshold and pay the price that epsilon "
    "and delta demand, worked out apart; what few have is found as rarely as that.",
    "rap": "Relaxed adaptive projection chooses and measures with the chances and the noise that "
    "it is charged for, as far as the runs show.",
    "adaptive": "Adaptive measurement draws its tables and measures them with the chances and the "
    "noise that it is charged for, as far as the runs show.",
}
_RELEASING = (
    *("lattice", "residuals", "independence", "neighbours"),
    *("discoveries", "rap", "adaptive"),
)
_POWER = (
    "An error of a scale below {}, or events rarer than about 1 in 10,000: no number of draws "
    "that fits the time shows them. The stated scale itself is held exactly against the plan."
)
_UNSEEN = (
    (("supply",), "Compiled copies in __pycache__ and .pth files: wheels do not list them."),
    (_RELEASING, "How long a run takes and how much memory it needs: both depend on the data."),
    (
        _RELEASING,
        "An operator who reads the disk or the memory, lets the data out, or restores an old "
        "ledger.",
    ),
    (
        _RELEASING,
        "Whether your spec is true: that the id column names persons, that nobody is in two "
        "datasets of different names, and that the domain was written without looking at the data.",
    ),
)
_OTHERS = "Specs and strategies other than {}; the same code makes all of them."
_SHARED = (
    "Mistakes that this program and its audit share: how the spec is read, for one. The proofs and "
    "the code are open to read."
)


def cannot_show(findings: Sequence[Finding], *, quick: bool, own_plan: bool) -> list[str]:
    """Return what the parts that were run cannot show.

    Args:
        findings: of these parts.
        quick: whether less was drawn.
        own_plan: whether a user's own plan was looked at.
    """
    parts = {finding.part for finding in findings}
    power = _POWER.format("4 to 7 % end to end" if quick else "2 to 4 % end to end")
    notes = [power] if parts & {"residuals", "rap", "adaptive"} else []
    notes += [text for about, text in _UNSEEN if parts & set(about)]
    if parts & set(_RELEASING):
        notes.append(_OTHERS.format("those of this plan" if own_plan else "those made up here"))
    return [*notes, _SHARED]


def audit_grids(findings: Sequence[Finding]) -> list[Grid]:
    """Return a table for each claim of each part."""
    claims = dict.fromkeys((finding.part, finding.claim) for finding in findings)
    grids = []
    for part, claim in claims:
        checks = [one for one in findings if (one.part, one.claim) == (part, claim)]
        rows = [("ok" if one.passed else "FAILED", one.subject, one.evidence) for one in checks]
        grids.append(Grid(f"{part}: {claim}", ("", "subject", "evidence"), tuple(rows)))
    return grids


def audit_closing(findings: Sequence[Finding], *, quick: bool, own_plan: bool) -> str:
    """Return what the findings show, and what they cannot show."""
    from dpquery.measurement.noise.exact_noise import versions  # check loads no noise

    parts = dict.fromkeys(finding.part for finding in findings)
    text = [f"{_totals(findings)}\n{', '.join(f'{name} {number}' for name, number in versions())}"]
    if all(finding.passed for finding in findings):
        shown = [_point(WHAT_PASSING_SHOWS[part]) for part in parts if part in WHAT_PASSING_SHOWS]
        text.append("\n".join(["What this shows, of these versions on this machine:", *shown]))
    else:
        text += _failed(findings)
    unseen = cannot_show(findings, quick=quick, own_plan=own_plan)
    text.append("\n".join(["What it cannot show:", *map(_point, unseen)]))
    return "\n\n".join(text)


def _failed(findings: Sequence[Finding]) -> list[str]:
    """Say what to do about checks that failed, and about parts that ended in an error."""
    failed = [finding for finding in findings if not finding.passed]
    broken = [finding.part for finding in failed if finding.claim == TO_ITS_END]
    text = []
    if len(failed) > len(broken):
        text.append(_wrapped(
            f"{len(failed) - len(broken)} of {len(findings)} checks FAILED: make no release with "
            "this installation. Run the audit again in a fresh environment with the locked "
            "versions; if it fails there too, report it with this output: it holds made-up data "
            "alone."
        ))  # fmt: skip
    if broken:
        text.append(_wrapped(
            f"Ended in an error before all was checked: {', '.join(broken)}. What was left shows "
            "nothing, good or bad. Where the disk or the memory was full, make room and run the "
            "audit again; else, or if it ends so again, report it with this output."
        ))  # fmt: skip
    return text


def audit_json(findings: Sequence[Finding], *, quick: bool, own_plan: bool) -> dict[str, object]:
    """Return the findings and their totals as JSON values."""
    from dpquery.measurement.noise.exact_noise import versions

    tests = sum(finding.tests for finding in findings)
    return {
        "passed": all(finding.passed for finding in findings),
        "checks": len(findings),
        "failed": sum(not finding.passed for finding in findings),
        "tests": tests,
        "alpha": ALPHA,
        "false_alarm_about": tests * ALPHA,
        "draws": sum(finding.draws for finding in findings),
        "neighbours": sum(finding.neighbours for finding in findings),
        "replicates": sum(finding.replicates for finding in findings),
        "versions": dict(versions()),
        "findings": [asdict(finding) for finding in findings],
        "cannot_show": cannot_show(findings, quick=quick, own_plan=own_plan),
    }


def _totals(findings: Sequence[Finding]) -> str:
    """Count what was done, and say how likely a false alarm was if anything was left to chance."""
    tests, draws, pairs, measured = (
        sum(getattr(finding, name) for finding in findings)
        for name in ("tests", "draws", "neighbours", "replicates")
    )
    done = [count(len(findings), "check")]
    done += [f"{count(draws, 'draw')} of noise"] if draws else []
    done += (
        [f"{count(pairs, 'pair')} of neighbouring data, measured {measured:,} times in all"]
        if pairs
        else []
    )
    text = f"{'; '.join(done)}."
    if tests:
        verb = "rests" if tests == 1 else "rest"
        text += (
            f" {count(tests, 'check')} {verb} on chance, at level {ALPHA:.0e} each: a sound "
            f"installation fails any of them with probability about {tests * ALPHA:.1e}."
        )
    return _wrapped(text)


def _wrapped(text: str) -> str:
    return fill(text, 96)


def _point(text: str) -> str:
    return fill(text, 96, initial_indent="  - ", subsequent_indent="    ")


_COMMONEST = 6  # undeclared texts of a column that are shown
_NAMES = 20  # columns that are named
_LONGEST = 40  # characters of a text that are shown
_SOURCES = 5  # refusals of a release that are shown
_MARKS = {
    **{",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe", ".": "point"},
    **{'"': "double quotes", "'": "single quotes", "": "any"},
}
_FATES = {"count": "in totals alone", "show": "other", "drop": "left out"}
_LAYOUT = {
    "encoding": "encoding",
    "delimiter": "delimiter",
    "quotes": "quote",
    "decimal mark": "decimal",
    "quotes over line ends": "newlines_in_quotes",
}


def left_out_grid(checked: DataCheck, name: str) -> Grid:
    """Return what matters most: whether a release would read the data, and whom it leaves out."""
    records = checked.records
    notes = tuple(_problems(checked))
    if records is None:
        return Grid(f"{name}: `dpquery release` would refuse this", (), (), notes)
    refused = "`dpquery release` would refuse this; apart from that, " if notes else ""
    if not records.total:
        title = f"{name}: {refused}there is no record: find the rest, since a release is charged"
        return Grid(title, (), (), notes)
    if not records.left_out:
        all_of = f", all {records.total:,} of them" if records.total > 1 else ""
        where = "in the totals" if records.undeclared else "counted"
        title = f"{name}: {refused}every record is {where}{all_of}{_lost_weight(records)}"
        return Grid(title, (), (), (*_remarks(checked, records), *notes))
    share = percent(records.left_out / records.total)
    title = (
        f"{name}: {refused}{_about(records)}{records.left_out:,} of "
        f"{count(records.total, 'record')} ({share}) would be left out of every table"
        f"{_lost_weight(records)}"
    )
    columns = ("because of", "records", "for this alone")
    remarks = (*_remarks(checked, records), *notes)
    return Grid(title, columns, tuple(_reasons(checked, records)), remarks)


def _lost_weight(records: Records) -> str:
    """Say what of the weight of those who are in tables does not count, if records have weights."""
    if records.weights is None:
        return ""
    none, cut = records.weights.weightless, records.weights.share_cut_off
    words = f", but for {none:,} whose weight is taken for 0" if none else ""
    return words + f"; `at_most` cuts off {percent(cut)} of the weight" * bool(cut)


def _remarks(checked: DataCheck, records: Records) -> Iterator[str]:
    """Yield what is odd in records that are read, and how days are told."""
    if checked.far_from_declared and checked.spec.dataset.rows is not None:
        number = f"{checked.spec.dataset.rows.count:,}"
        yield f"the spec declares about {number} records: is the file whole, or the number old?"
    yield from _repeated(records)
    if any(values.records and not values.column.drops for values in records.columns):
        hold = "holds" if records.undeclared == 1 else "hold"
        yield (
            f"{records.undeclared:,} of {count(records.total, 'record')} "
            f"({percent(records.undeclared / records.total)}) {hold} an undeclared value somewhere"
        )
    for name, zone in checked.header.zones:
        yield f"`{name}` holds times with a zone: days are those of {zone}"


def _repeated(records: Records) -> Iterator[str]:
    """Yield which sources hold the same records as another."""
    for name, first, number in records.repeated[:_SOURCES]:
        yield (
            f"{name} holds the same {count(number, 'record')} as {first}, in all declared columns "
            "and in the same order: a release would count them twice"
        )


def _problems(checked: DataCheck) -> Iterator[str]:
    """Yield what keeps a release from reading the data, and what of it is in the headers."""
    yield from checked.header.refusals[:_SOURCES]
    if len(checked.header.refusals) > _SOURCES:
        yield f"and so {len(checked.header.refusals) - _SOURCES:,} more"
    if checked.header.refusals and checked.header.missing and checked.records is not None:
        yield f"not looked at, for want of a column: {_named(checked.header.missing)}"
    if checked.header.repeated:
        yield f"not looked at, for more than one column: {_named(checked.header.repeated)}"
    for name in checked.header.missing:
        if near := nearest(name, checked.header.undeclared):
            yield f"`{name}` is not there; is it `{written_out(near)[:_LONGEST]}`?"
    yield from checked.failures


def _about(records: Records) -> str:
    return "about " if records.persons is not None and records.persons.share < 1 else ""


def _reasons(checked: DataCheck, records: Records) -> Iterator[tuple[str, str, str]]:
    """Yield why records are left out, the most first."""
    rows = [
        (f"undeclared values in `{values.column.name}`", values.records, values.alone)
        for values in records.columns
        if values.records and values.column.drops
    ]
    if records.malformed.records and records.malformed.dropped:
        lines = records.malformed.records
        rows.append(("lines that cannot be split into fields", lines, lines))
    persons = records.persons
    if persons is not None:
        if persons.blank:
            rows.append(
                (f"no id in `{checked.spec.privacy.person}`", persons.blank, persons.blank_alone)
            )
        limit = checked.spec.privacy.max_rows
        if beyond := persons.beyond(limit):
            rows.append((f"max_rows: {limit}, as declared", beyond, beyond))
    for reason, number, alone in sorted(rows, key=lambda row: -row[1]):
        yield reason, f"{number:,}", f"{alone:,}"


def check_grids(checked: DataCheck) -> list[Grid]:
    """Return a table a concern."""
    grids = []
    records = checked.records
    if records is not None:
        undeclared = [values for values in records.columns if values.records]
        if undeclared:
            grids.append(_values_grid(undeclared, records.total))
        if records.malformed.records:
            grids.append(_malformed_grid(records.malformed, records.total))
        if records.persons is not None:
            grids.append(_persons_grid(records.persons, checked.spec.privacy.max_rows))
        if records.weights is not None:
            grids.append(_weights_grid(records.weights, records.replicates))
    if checked.layout is not None:
        grids.append(_layout_grid(checked.layout, checked.spec.file, checked.header))
    return grids


def _values_grid(columns: Sequence[UndeclaredValues], total: int) -> Grid:
    rows = tuple(
        (
            values.column.name,
            _declared(values.column),
            f"{values.records:,}",
            _FATES[values.column.other],
            _commonest(values),
        )
        for values in columns
    )
    notes = [
        f"`{values.column.name}`: declared and in no record: {_named(values.absent)}"
        for values in columns
        if values.absent
    ]
    notes += [
        f"`{values.column.name}`: {values.unseen:,} of {values.column.length:,} values are in no "
        "record"
        for values in columns
        if values.unseen
    ]
    notes += [
        f"`{values.column.name}`: is {_shown(text)} the declared {_shown(code)}?"
        for values in columns
        for code, text in values.misspelt.items()
    ]
    if any(not values.complete for values in columns):
        notes.append("+: at least so many; there are too many different texts to count them all")
    notes += [
        f"`{values.column.name}`: no record holds a declared value"
        for values in columns
        if values.records >= total
    ]
    names = ("column", "declared", "records", "which are", "undeclared values, commonest first")
    return Grid("undeclared values", names, rows, tuple(notes))


def _commonest(values: UndeclaredValues) -> str:
    sign = "" if values.complete else "+"
    shown = [
        f"{_shown(text)} ({records:,}{sign})" for text, records in values.commonest[:_COMMONEST]
    ]
    rest = len(values.commonest) - len(shown)
    return ", ".join(shown) + (f" and {rest:,}{sign} more" if rest else "")


def _shown(text: str) -> str:
    """Return a text in quotes, cut where it is long, with bytes that are no text written out."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    text = written_out(text)
    return f'"{text[:_LONGEST]}…"' if len(text) > _LONGEST else f'"{text}"'


def _declared(column: Column) -> str:
    match column.kind:
        case Categorical(values=values):
            return count(len(values), "value")
        case Integers(low=low, high=high):
            return f"{low} to {high}"
        case Bins(edges=edges):
            return f"{edges[0]:g} up to {edges[-1]:g}"
        case Boolean():
            return "boolean"
        case Dates(first=first, last=last):
            return f"{first} to {last}"


def _malformed_grid(malformed: Malformed, total: int) -> Grid:
    what = "left out of every table" if malformed.dropped else "counted in totals alone"
    rows = tuple((reason, f"{n:,}", first) for reason, n, first in malformed.reasons)
    notes: tuple[str, ...] = ()
    if malformed.looked_at < malformed.records:
        notes = (f"of the first {malformed.looked_at:,} such lines",)
    elif malformed.reasons and malformed.reasons[0][1] > total / 4:
        notes = ("decimal commas without quotes make two fields of one: write points, or quotes",)
    elif malformed.records == 1:
        notes = ("correct it before a release; if it is the last line, the file is cut off",)
    title = f"{count(malformed.records, 'line')} cannot be split into fields: {what}"
    return Grid(title, ("what is wrong", "lines", "first in"), rows, notes)


def _persons_grid(persons: RowsPerPerson, max_rows: int) -> Grid:
    """Return how many rows persons have, and what each limit would leave out."""
    about = "about " if persons.share < 1 else ""
    limits = sorted({1, 2, 3, 5, 10, 20, 50, max_rows, *(rows for rows, _ in persons.persons[-1:])})
    number = dict(persons.persons)
    top = max(number, default=0)
    rows: list[tuple[str, ...]] = []
    strong = None
    total = sum(n * of for n, of in persons.persons)
    for limit in limits:
        if limit > max(top, max_rows):
            break
        strong = len(rows) if limit == max_rows else strong
        beyond = persons.beyond(limit)
        rows.append(
            (
                f"{limit:,}",
                f"{sum(of for n, of in persons.persons if n > limit):,}",
                f"{beyond:,}",
                percent(beyond / total) if total else "",
                "as declared" if limit == max_rows else "",
            )
        )
    notes = [
        f"most rows: {', '.join(f'{_shown(person)} ({n:,})' for person, n in persons.busiest)}"
    ]
    if persons.blank:
        notes.append(f"{count(persons.blank, 'record')} without an id, which are nobody's")
    if persons.respelled:
        notes.append(
            f"{count(persons.respelled, 'person')} by several spellings of one number, as 1 and 1.0"
        )
    if persons.rounded:
        notes.append(
            f"{count(persons.rounded, 'id')} beyond 2^53 written as floats, which round: several "
            "persons may have one; write ids as whole numbers or texts"
        )
    notes += [
        f"{ids:,} ids differ in {what} alone, and would be {count(of, 'person')} without: if each "
        "is one, write their ids alike, since a release counts them as several"
        for what, ids, of in persons.alike
    ]
    if persons.share < 1:
        notes.append(f"of about one person in {round(1 / persons.share):,}, chosen at random")
    if persons.sorted_by and persons.beyond(max_rows):
        notes.append(
            f"`keep: first`, and rows of a person are sorted by {_named(persons.sorted_by)}: those "
            "that are left out are always the last of it; `keep: random` takes any"
        )
    title = (
        f"rows per person: {about}{count(persons.number, 'person')}, {about}{count(total, 'row')}"
    )
    columns = ("max_rows", "persons with more", "rows left out", "share", "")
    return Grid(title, columns, tuple(rows), tuple(notes) if persons.busiest else (), strong)


def _weights_grid(found: WeightsFound, replicates: ReplicatesFound | None) -> Grid:
    """Return what each cap of the weights would cut off, and what counts as 0."""
    declared, largest = float(found.declared.at_most), float(found.weights.max(initial=0.0))
    caps = sorted({declared, largest, *(declared * times for times in (0.25, 0.5, 2.0, 4.0))})
    rows, total = [], found.total
    for cap in caps:
        cut, records = found.cut_off(cap)
        rows.append(
            (
                in_full(cap),
                f"{records:,}",
                f"{cut:,.0f}",
                percent(cut / total) if total else "",
                f"{found.effective(cap):,.0f}",
                f"{figure(cap / declared)} times",
                "as declared" if cap == declared else "the largest" if cap == largest else "",
            )
        )
        if cap >= max(declared, largest):
            break
    notes = [
        "effective samples are by unequal weights alone; they and sums are private, and no "
        "`effective` or `total` of a spec"
    ]
    if found.small:
        half = in_full(float(found.declared.step) / 2)
        notes.append(f"{count(found.small, 'weight')} of 0 or more, but below {half}, taken for 0")
    if odd := found.counting_none:
        texts = ", ".join(f"{_shown(text)} ({number:,})" for text, number in odd[:_COMMONEST])
        what = count(sum(n for _, n in odd), "weight")
        notes.append(f"{what} below 0, or no number, taken for 0: {texts}")
    notes += _replicate_notes(replicates)
    amounts = ("weight cut off", "of the sum", "effective sample")
    columns = ("at_most", "records above", *amounts, "noise", "")
    title = f"weights in `{found.declared.name}`: {total:,.0f} in all, before any is cut off"
    return Grid(title, columns, tuple(rows), tuple(notes), caps.index(declared))


def _replicate_notes(found: ReplicatesFound | None) -> Iterator[str]:
    """Yield what is odd in replicate weights."""
    odd = {} if found is None else {"no number, taken for 0": found.none}
    odd |= {} if found is None else {"below 0, taken as they are": found.negative}
    for what, columns in odd.items():
        if columns:
            named = ", ".join(f"{name} ({n:,})" for name, n in list(columns.items())[:_COMMONEST])
            yield f"{count(sum(columns.values()), 'replicate weight')} {what}: {named}"
    if found is not None and found.scaled:
        yield (
            f"differences of replicate weights are scaled down to their `at_most` in "
            f"{count(found.scaled, 'record')}, which takes {percent(found.lost)} of their squares"
        )


def _layout_grid(layout: FileGuess, declared: FileFormat, header: Header) -> Grid:
    """Return a guess at how a file is laid out beside what is declared."""
    notes = [*layout.remarks]
    if not layout.is_text:
        holder = layout.container or "something else than text"
        return Grid(f"{layout.name} seems to be {holder}", (), (), tuple(notes))
    mended = layout.mended(declared)
    rows = []
    for what, key in _LAYOUT.items():
        now, seems, to_be = (getattr(of, key) for of in (declared, layout, mended))
        rows.append((what, _word(seems), _word(now), "" if now == to_be else "differs"))
    if layout.container:
        rows.append(("packed by", layout.container, "", ""))
    if layout.steady < 1:
        share = percent(1 - layout.steady)
        notes.append(f"{share} of its lines have other than {count(len(layout.names), 'field')}")
    if header.undeclared and layout.delimiter in {"", declared.delimiter}:
        notes.append(f"columns that the spec does not use: {_named(header.undeclared)}")
    notes.append("a guess from the first mebibyte: a release takes the spec's word")
    columns = (layout.name, "seems to be", "declared", "")
    return Grid("the file", columns, tuple(rows), tuple(notes))


def _word(value: str | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _MARKS.get(value, value)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(
        name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
        for name in map(written_out, names[:_NAMES])
    )
    return shown + (f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else "")


def to_paste(checked: DataCheck, spec: str) -> list[str]:
    """Return the YAML that would declare what was found, with a warning above it."""
    if not checked.remedies:
        return []
    return [
        f"# To paste into {spec}, where the code book says so too:",
        "# a spec is published, and one that was written from the",
        "# records tells what it was written from.",
        *checked.remedies,
    ]
