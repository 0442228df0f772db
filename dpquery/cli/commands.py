"""Plan, release, answer, error-report, compare, synthetic, init, schema, package, check, audit."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpquery.cli.options import (
    Also,
    AsJson,
    AsPlanned,
    ChangeCap,
    CodeBook,
    Confidence,
    Delta,
    Exact,
    Formats,
    ItemNames,
    Jobs,
    LedgerPath,
    NewDataset,
    NoiseOption,
    Number,
    ObjectiveOption,
    PlanMechanismOption,
    ProxyPath,
    RapSearch,
    ReleaseMechanismOption,
    Replace,
    Same,
    SearchBoth,
    Seed,
    Shown,
    SweepList,
    Targets,
    TimeLimit,
    ledger_path,
)
from dpquery.cli.screen import (
    PlanFiles,
    announced_if_new,
    data_at,
    print_grids,
    print_json,
    say,
    say_new,
    show,
    shown_progress,
)
from dpquery.commands.defaults import (
    ANSWERS_PATH,
    AUDIT_EPSILON,
    DEFAULT_SEED,
    LARGEST_NUMBER,
    MECHANISM_CHOICE,
    NOISE_CHOICE,
    OBJECTIVE,
    PACKAGE_PATH,
    PLAN_PATH,
    RELEASE_NUMBER,
    RELEASE_PATH,
    REPLICATES,
    REPLICATES_PATH,
    REPORT_PATH,
    SHELL_JOBS,
    SPEC_PATH,
    SYNTHETIC_PATH,
    TIME_LIMIT,
)
from dpquery.exceptions import BudgetExceededError, PlanConflictError, SpecError
from dpquery.limits import LARGEST_INTEGER

if TYPE_CHECKING:
    from dpquery.commands.release import ReleaseReport
    from dpquery.planning.report import PlanReport


def plan_command(
    spec: Annotated[Path, typer.Argument(help="The workload: a YAML file, or - for stdin.")],
    epsilon: Shown = None,
    delta: Delta = None,
    objective: ObjectiveOption = OBJECTIVE,
    target: Targets = None,
    sweep: SweepList = None,
    mechanism: PlanMechanismOption = MECHANISM_CHOICE,
    proxy: ProxyPath = None,
    rap_search: RapSearch = False,
    search_both: SearchBoth = False,
    out: Annotated[Path, typer.Option(help="Where the plan goes.")] = Path(PLAN_PATH),
    seed: Seed = DEFAULT_SEED,
    time_limit: TimeLimit = TIME_LIMIT,
    jobs: Jobs = SHELL_JOBS,
    change_cap: ChangeCap = False,
    new_dataset: NewDataset = False,
    ledger: LedgerPath = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST_INTEGER, help="About how many records there are."),
    ] = None,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Show every strategy that was compared.")
    ] = False,
    why: Annotated[
        bool, typer.Option("--why", help="Show all that is known: why, other noise, who counts.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write no plan and put nothing on record.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose the best strategy for a workload, without data.

    Shows the expected error of every item, writes the plan, and puts the dataset and its cap on
    record in the ledger. Ends with exit code 1 where targets cost more than the whole budget.
    """
    from dpquery.commands.plan import plan

    new = nullcontext() if dry_run else announced_if_new(ledger_path(ledger))
    with new, shown_progress():
        report = plan(
            spec,
            plan_path=out,
            ledger_path=ledger_path(ledger),
            objective=objective,
            targets=target or (),
            sweep=sweep,
            seed=seed,
            time_limit=time_limit,
            jobs=min(jobs, os.cpu_count() or 1),
            change_cap=change_cap,
            new_dataset=new_dataset,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            proxy=proxy,
            rap_search=rap_search,
            search_both=search_both,
            rows=rows,
            dry_run=dry_run,
        )
    files = PlanFiles(spec, None if dry_run else out, ledger_path(ledger))
    _show_plan(report, files, change_cap, candidates=candidates, why=why, as_json=as_json)


def _show_plan(
    report: "PlanReport",
    files: PlanFiles,
    cap_changed: bool,
    *,
    candidates: bool,
    why: bool,
    as_json: bool,
) -> None:
    from dpquery.cli.show_plan import BEYOND_BUDGET, plan_grids
    from dpquery.cli.show_why import candidates_grid, plan_json, why_grids

    if as_json:
        print_json(plan_json(report))
    elif why:
        print_grids(why_grids(report, candidates=candidates))
    else:
        compared = [candidates_grid(report)] if candidates else []
        print_grids([*plan_grids(report, files), *compared])
    say_new(report.new)
    if files.plan is not None:
        if cap_changed:
            say(f"the cap of {report.spec.dataset.id} on record is now {report.spec.budget}")
        wrote = f"wrote {files.plan}; " if as_json or why else ""  # else the screen says so
        say(f"{wrote}ledger: {files.ledger}")
    if report.targets_beyond_budget:
        say(f"dpquery: {BEYOND_BUDGET}")
        raise typer.Exit(1)


def release_command(
    data: Annotated[
        list[str],
        typer.Argument(
            help="The data: text with a header, Parquet or Arrow files, a folder or quoted glob of "
            "them, - for stdin, sqlite:FILE?table=NAME, duckdb:FILE?table=NAME, spark:PATH or "
            "spark:table=NAME; several are one table. Also adbc:VARIABLE?table=NAME, for servers "
            "and warehouses."
        ),
    ],
    epsilon: Annotated[str, typer.Option(help="What this release may spend.")],
    delta: Delta = None,
    plan: Annotated[Path, typer.Option(help="The plan to carry out.")] = Path(PLAN_PATH),
    out: Annotated[Path, typer.Option(help="The release directory.")] = Path(RELEASE_PATH),
    mechanism: ReleaseMechanismOption = MECHANISM_CHOICE,
    noise: NoiseOption = NOISE_CHOICE,
    also: Also = None,
    confidence: Confidence = None,
    release_number: Number = RELEASE_NUMBER,
    replace: Replace = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="For rows of persons held at a time, such as 4GB; default: 1GiB. Less takes more "
            "passes over the data."
        ),
    ] = None,
    as_planned: AsPlanned = False,
    same: Same = False,
    ledger: LedgerPath = None,
    exact: Exact = False,
    as_json: AsJson = False,
) -> None:
    """Carry out a plan: charge, measure, and write every answer.

    By RAP, answers have no error bars and relaxed rows lie beside them: see `dpquery synthetic`.
    The same release again is free: it comes from the ledger and the data is not opened.
    A file that is cut off is charged like a whole one, lest a refusal tell of it: check it first.
    """
    from dpquery.cli.screen import forbid_dumps
    from dpquery.commands.release import release

    forbid_dumps()
    with data_at(data) as located, shown_progress(), _exact_refusals(exact=exact):
        done = release(
            located,
            plan_path=plan,
            ledger_path=ledger_path(ledger),
            out=out,
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            noise=noise,
            also=also or (),
            confidence=confidence,
            release_number=release_number,
            replace=replace,
            memory=memory,
            as_planned=as_planned,
            same=same,
        )
    _show_release(done, data, exact=exact, as_json=as_json)
    say(f"ledger: {ledger_path(ledger)}")


@contextmanager
def _exact_refusals(*, exact: bool) -> Iterator[None]:
    """With `exact`, add to a refusal of a charge what it was refused by, to the last digit."""
    try:
        yield
    except BudgetExceededError as refusal:
        if not (exact and refusal.exactly):
            raise
        raise BudgetExceededError(f"{refusal}; exactly: {refusal.exactly}") from None


def _show_release(done: "ReleaseReport", data: list[str], *, exact: bool, as_json: bool) -> None:
    from dpquery.cli import show_release as summary

    if done.stale is not None:
        say(f"warning: {done.stale}")
    if done.free:
        more = f" and {len(data) - 1} more were" if data[1:] else " was"
        say(
            f"nothing was charged: the ledger gave this release again; {data[0]}{more} not opened "
            "(for other data, change `id:` or `version:` in the spec)"
        )
    if as_json:
        print_json(summary.release_json(done))
    else:
        show(summary.release_text(done, exact=exact))
    if done.remark:
        say(done.remark)
    if done.changed is not None:
        say(
            f"{done.changed.name} has changed since it was planned: this is the release of the "
            "plan; `dpquery plan` takes up what is new"
        )


def answer_command(
    release: Annotated[Path, typer.Argument(help="The release directory.")],
    questions: Annotated[Path, typer.Argument(help="A YAML file with a `workload` section.")],
    out: Annotated[Path, typer.Option(help="Where the answers go.")] = Path(ANSWERS_PATH),
    also: Also = None,
    confidence: Confidence = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace answers to other questions in --out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer new questions from an old release, free of budget.

    Needs the release's folder alone: neither the data nor the ledger is opened.
    """
    from dpquery.cli import show_release as summary
    from dpquery.commands.answer import answer

    with shown_progress():
        done = answer(
            release, questions, out=out, also=also or (), confidence=confidence, replace=replace
        )
    if as_json:
        print_json(summary.answer_json(done))
    else:
        show(summary.answer_text(done))
    say("nothing was charged: neither the data nor the ledger was opened")


def replicates_command(
    release: Annotated[Path, typer.Argument(help="The release directory.")] = Path(RELEASE_PATH),
    items: ItemNames = None,
    draws: Annotated[int, typer.Option(help="How many draws of the noise.")] = REPLICATES,
    out: Annotated[Path, typer.Option(help="Where the files go.")] = Path(REPLICATES_PATH),
    also: Formats = None,
    as_json: AsJson = False,
) -> None:
    """Draw a release's noise again, for the error of any statistic.

    Writes each item's estimates with columns noise_001, noise_002, ...: a statistic of `estimate +
    noise_001` less that of `estimate` has its standard error as root mean square over all draws.
    """
    from dpquery.commands.replicates import replicates

    with shown_progress():
        done = replicates(release, items=items or (), draws=draws, out=out, also=also or ())
    if as_json:
        print_json({"directory": str(done.directory), "files": done.files, "draws": done.draws})
    else:
        show("\n".join(done.files))
    say(f"wrote {done.directory}: {done.draws:,} draws of the noise beside each estimate")
    if done.sampled:
        say(
            "what they tell is the error of the noise alone: that of the sample, which `total_std` "
            "takes in, comes on top and may be larger"
        )
    say("nothing was charged: neither the data nor the ledger was opened")


def compare_command(
    first: Annotated[Path, typer.Argument(help="A plan, a release, or a spec.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    epsilon: Annotated[
        str | None, typer.Option(help="Compare at this epsilon; default: 1.")
    ] = None,
    delta: Delta = None,
    time_limit: TimeLimit = TIME_LIMIT,
    jobs: Jobs = SHELL_JOBS,
    as_json: AsJson = False,
) -> None:
    """Show the expected errors of two plans, item by item.

    Specs are planned for it. Nothing is written, and the ledger is not opened.
    """
    from dpquery.cli.show_comparison import compare_grid, compare_json
    from dpquery.commands.others import compare

    with shown_progress():
        compared = compare(
            first,
            second,
            epsilon=epsilon,
            delta=delta,
            time_limit=time_limit,
            jobs=min(jobs, os.cpu_count() or 1),
        )
    if as_json:
        print_json(compare_json(compared))
    else:
        print_grids([compare_grid(compared)])


def synthetic_command(
    release: Annotated[Path, typer.Argument(help="A release directory, made by RAP.")] = Path(
        RELEASE_PATH
    ),
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, max=LARGEST_NUMBER, help="How many records; default: the released total."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the records go; replaces no file.")] = Path(
        SYNTHETIC_PATH
    ),
    seed: Annotated[int, typer.Option(min=0, help="Public seed of the rounding.")] = DEFAULT_SEED,
    as_json: AsJson = False,
) -> None:
    """Write synthetic records of a RAP release as CSV, free of budget.

    The columns are those that the spec declares. Nobody in the file exists; what it says of many
    is as biased as the release is, and has no error bars.
    """
    from dpquery.commands.others import synthesize
    from dpquery.releases.words import count

    with shown_progress():
        done = synthesize(release, out=out, records=rows, seed=seed)
    if as_json:
        print_json({"file": str(done.file), "records": done.records})
    else:
        middles = ", in bins by their middles" * done.binned
        show(f"{done.file}: {count(done.records, 'synthetic record')}{middles}")
    say("nothing was charged: neither the data nor the ledger was opened")


def error_report_command(
    directory: Annotated[Path, typer.Argument(help="A release directory.")] = Path(RELEASE_PATH),
    html: Annotated[Path, typer.Option(help="Where the page with plots goes.")] = Path(REPORT_PATH),
    as_json: AsJson = False,
) -> None:
    """Say what each number of a release is worth.

    Prints a table, and writes a page with plots.
    """
    from dpquery.cli import show_release as summary
    from dpquery.commands.error_report import error_report
    from dpquery.releases.report.figures import to_json

    report = error_report(directory, html=html)
    if as_json:
        print_json(to_json(report))
    else:
        print_grids(summary.report_grids(report))
    say(f"wrote {html}")


def init_command(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path(SPEC_PATH),
    full: Annotated[bool, typer.Option("--full", help="Show every key, with its comment.")] = False,
    source: CodeBook = None,
) -> None:
    """Write a spec to start from.

    Its JSON Schema goes beside it, as workload.schema.json: editors complete and check with it.
    """
    from dpquery.spec.code_books import starter_of
    from dpquery.spec.documents import SHORT_STARTER, STARTER, schema_text
    from dpquery.untrusted.files import check_place

    check_place(path)
    text = starter_of(source) if source else STARTER if full else SHORT_STARTER
    beside = path.with_name("workload.schema.json")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        if not beside.exists():
            beside.write_text(schema_text(), encoding="utf-8")
    except FileExistsError:
        raise PlanConflictError(f"{path} exists and is kept; give the spec another name") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}; check the path") from None
    say(f"wrote {path}; edit it, then run `dpquery plan {path}`")


def lint_command(
    specs: Annotated[list[Path], typer.Argument(help="Workloads: YAML files, or - for stdin.")],
    as_json: AsJson = False,
) -> None:
    """Read specs and report every mistake with its place; nothing is planned or put on record."""
    from dpquery.releases.budget_words import large_delta
    from dpquery.releases.words import count
    from dpquery.spec.parsing.read import load_spec

    read, mistakes = {}, []
    for path in dict.fromkeys(specs):
        try:
            read[str(path)] = spec = load_spec(path)
            if spec.derived:
                from dpquery.mechanisms.content import check_derived
                from dpquery.planning.report import compile_countable

                check_derived(spec, compile_countable(spec))
        except SpecError as error:
            mistakes.append(str(error))
    if mistakes:
        raise SpecError("\n".join(mistakes))
    if as_json:
        sizes = {
            name: {"items": len(spec.items), "queries": spec.queries} for name, spec in read.items()
        }
        print_json(sizes)
        return
    for name, spec in read.items():
        items = count(len(spec.items), "table")
        show(f"{name}: {count(spec.queries, 'answer')} in {items}, no mistakes")
        for words in (*spec.remarks, *large_delta(spec.privacy.delta, spec)):
            show(f"{name}: {words}")


def schema_command() -> None:
    """Print the JSON Schema (draft 7) of the spec."""
    from dpquery.spec.documents import schema_text

    typer.echo(schema_text(), nl=False)


def docs_command(
    page: Annotated[str, typer.Argument(help="A page, such as tutorial or epsilon.")] = "",
) -> None:
    """Print a page of the documentation, or where the pages are."""
    from dpquery.spec.problems import suggestion

    folder = Path(__file__).parents[1] / "docs"
    pages = {path.stem: path for path in sorted(folder.glob("*.md"))}
    if not page:
        show(f"{folder}\n{', '.join(pages)}")
        return
    if (name := page.removesuffix(".md")) not in pages:
        raise SpecError(f"there is no page {page!r}{suggestion(name, pages)}")
    show(pages[name].read_text(encoding="utf-8"), nl=False)


PRIVATE = """\
PRIVATE: made of the records, without noise, for those who
may see them. Do not publish, send or store it. No file is
written here, and no ledger is opened.
"""


def check_command(
    data: Annotated[
        list[str],
        typer.Argument(help="The data, as `release` takes them: files, globs, folders, tables."),
    ],
    spec: Annotated[Path, typer.Argument(help="The workload: a YAML file, or - for stdin.")],
    to_pipe: Annotated[
        bool,
        typer.Option(
            "--to-pipe", help="Print although stdout is no terminal: to a pipe or a file."
        ),
    ] = False,
) -> None:
    """Say, to those who may see the records, what a release would leave out.

    Undeclared values, malformed records, rows of a person beyond max_rows, and the YAML to mend
    it. Private: it prints to a terminal alone, writes no file and opens no ledger. Exit code 1
    where something seems wrong; not for undeclared values that are in the totals.
    """
    from dpquery.cli.screen import forbid_dumps
    from dpquery.cli.show_checks import check_grids, left_out_grid, to_paste
    from dpquery.commands.arguments import check_data_named
    from dpquery.data_check.check import check

    check_data_named(data, "dpquery check DATA SPEC")
    if not (sys.stdout.isatty() or to_pipe):
        raise SpecError(
            "what `dpquery check` shows is private and stdout is no terminal; run it in one, or "
            "say --to-pipe where nobody else can read what it goes to"
        )
    forbid_dumps()
    show(PRIVATE)
    with data_at(data) as located, shown_progress():
        checked = check([Path(place) for place in located], spec)
    name = data[0] + f" and {len(data) - 1} more" * bool(data[1:])
    print_grids([left_out_grid(checked, name), *check_grids(checked)])
    lines = to_paste(checked, str(spec))
    if lines:
        show("\n".join(lines))
    if not checked.as_declared:
        raise typer.Exit(1)


def package_command(
    directory: Annotated[Path, typer.Argument(help="A release directory.")] = Path(RELEASE_PATH),
    out: Annotated[Path, typer.Option(help="Where the package goes.")] = Path(PACKAGE_PATH),
    also: Formats = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the package of another release in --out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put a release together to hand over.

    The same files, with a code book, quality and methodology, a data package and a registry entry
    beside them. Needs the release's folder alone: neither the data nor the ledger is opened.
    """
    from dpquery.commands.others import package

    with shown_progress():
        done = package(directory, out=out, also=also or (), replace=replace)
    if as_json:
        print_json(
            {
                "directory": str(done.directory),
                "files": list(done.files),
                "left_out": list(done.left_out),
            }
        )
    else:
        show("\n".join(done.files))
    for name in done.left_out:
        say(f"{name} has more rows than a sheet: tables.xlsx leaves it out")
    if not done.about:
        say("the spec says nothing under `about`: title, contact, licence and the rest are empty")
    say(f"wrote {done.directory}")
    say("nothing was charged: neither the data nor the ledger was opened")


def audit_command(
    quick: Annotated[
        bool, typer.Option("--quick", help="Draw less: 20 seconds; larger mistakes are seen.")
    ] = False,
    part: Annotated[
        list[str] | None, typer.Option("--part", help="Run this part alone; can be repeated.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Test a plan of your own, on made-up data alone.")
    ] = None,
    epsilon: Annotated[str, typer.Option(help="Of the releases of that plan.")] = AUDIT_EPSILON,
    as_json: AsJson = False,
) -> None:
    """Test the installed versions through the real release path, on made-up data.

    Takes about two minutes. Nobody's data is opened and no ledger of yours. Exit code 1 where a
    check fails.
    """
    from dpquery.audit import planned_cases, run
    from dpquery.cli import show_checks as summary_audit
    from dpquery.measurement.accounting import parse_epsilon

    cases = () if plan is None else planned_cases.cases_of(plan, epsilon=parse_epsilon(epsilon))
    with shown_progress():
        findings = run.audit(part or (), quick=quick, cases=cases)
    if as_json:
        print_json(summary_audit.audit_json(findings, quick=quick, own_plan=bool(cases)))
    else:
        print_grids(summary_audit.audit_grids(findings))
        show(summary_audit.audit_closing(findings, quick=quick, own_plan=bool(cases)))
    if not all(finding.passed for finding in findings):
        raise typer.Exit(1)
