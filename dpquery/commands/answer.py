"""answer() as a straight line: questions asked later of a release, from its folder alone.

    release folder -> spec and classes -> strategy and noisy values -> answers -> folder

Nothing here opens data or a ledger: what comes out is a function of what is published already, so
it takes nothing of any budget.

Of a release by least squares there are two kinds. Codes that no question of its spec distinguished
were counted as one, and no later question can split them. And what was measured spans some tables
and not others. A release by RAP has a guess at everything, as long as it fits into memory.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpquery.arrays import Ints
from dpquery.commands.arguments import FilePath, as_path, checked_level
from dpquery.commands.defaults import ANSWERS_PATH, LEVEL
from dpquery.commands.opened import Release
from dpquery.exceptions import SpecError
from dpquery.limits import MAX_RAP_PREDICATES, MAX_RAP_TABLE_QUERIES
from dpquery.mechanisms.content import derived_answers, tables_of_derived
from dpquery.mechanisms.fitted import NO_COLUMNS, NO_LEVEL, RelaxedAnswers
from dpquery.mechanisms.linear import LinearAnswers, check_solution
from dpquery.operators.compile import CompiledSpec, compile_questions, finer_classes, merged_codes
from dpquery.plan_file.rehearsals import NO_DERIVED
from dpquery.progress import stage
from dpquery.reconstruction.columns import ExtraColumn, check_columns, extra_columns, parse_columns
from dpquery.reconstruction.derived import JointAnswers
from dpquery.reconstruction.least_squares import positions_of
from dpquery.reconstruction.relaxed.rows import spread_evenly
from dpquery.releases.folder.answers import answers_manifest, check_answers_target
from dpquery.releases.folder.noisy_files import read_relaxed
from dpquery.releases.folder.write import ReleaseContent, write_release
from dpquery.releases.manifest import Manifest, read_manifest
from dpquery.releases.report.published import PublishedTables
from dpquery.releases.statement import guarantee_line
from dpquery.spec.columns import Domain
from dpquery.spec.parsing.read import Questions, load_questions
from dpquery.spec.problems import Place, quoted
from dpquery.spec.spec import DerivedItem, Difference, Item, Spec
from dpquery.strategy.algebra.query_powers import total_of
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.expected_error import largest_of
from dpquery.strategy.strategy import Strategy, measured_sets, wide_attributes

MAX_NAMED = 4  # tables of one item, and measured sets, that a message names


def check_answerable(
    questions: Questions, classes: tuple[Ints, ...], strategy: Strategy
) -> CompiledSpec:
    """Return the operators of questions that a release by least squares can answer.

    Args:
        questions: what is to be answered.
        classes: what the release counts as one, for each attribute the class of every code.
        strategy: what it measured.

    Raises:
        SpecError: a line for each item and attribute whose codes are not distinguished, and for
            each set of attributes that is not measured together, at the item's place.
    """
    pairs = zip(questions.spec.items, questions.places, strict=True)
    distinguished = [
        (item, place) for item, place in pairs if not _merges(item, place, questions, classes)
    ]
    if not distinguished:
        questions.problems.raise_if_any()
    compiled = compile_questions(
        replace(questions.spec, items=tuple(item for item, _ in distinguished)), classes
    )
    measured: tuple[Subset, ...] | None = None
    for (item, place), places in zip(distinguished, compiled.items, strict=True):
        blocks = [compiled.workload.blocks[position] for position in places]
        missing = {wide_attributes(block): None for block in blocks if not strategy.supports(block)}
        if missing and measured is None:
            measured = measured_sets(strategy)
        for S in list(missing)[:MAX_NAMED]:
            message = _message(S, measured or (), questions.spec.domain, strategy)
            questions.problems.add(place, f"{quoted(item.name)}: {message}")
        if len(missing) > MAX_NAMED:
            questions.problems.add(
                place,
                f"{quoted(item.name)}: and {len(missing) - MAX_NAMED} tables more are not held",
            )
    questions.problems.raise_if_any()
    return compiled


def check_answers_size(questions: Questions, compiled: CompiledSpec, *, relaxed_rows: int) -> None:
    """Refuse questions whose tables are larger than what RAP holds when it makes a release.

    Raises:
        SpecError: a line for each such item, at its place.
    """
    for item, place, places in zip(
        questions.spec.items, questions.places, compiled.items, strict=True
    ):
        blocks = [compiled.workload.blocks[position] for position in places]
        queries = max(block.queries for block in blocks)
        # Those of a product are no more than its queries, and none is held for every relaxed row.
        thresholds = (
            factor for block in blocks if not block.is_product for factor in block.factors
        )
        predicates = max((factor.shape[0] for factor in thresholds), default=0)
        if queries > MAX_RAP_TABLE_QUERIES:
            questions.problems.add(
                place,
                f"{quoted(item.name)} has a table of {queries:,} queries, and the limit of a "
                f"release by RAP is {MAX_RAP_TABLE_QUERIES:,}; name fewer attributes or coarser "
                "sets",
            )
        elif relaxed_rows * predicates > MAX_RAP_PREDICATES:
            questions.problems.add(
                place,
                f"{quoted(item.name)} has {predicates:,} predicates on one attribute, and the "
                f"limit with {relaxed_rows:,} relaxed rows is "
                f"{MAX_RAP_PREDICATES // relaxed_rows:,}; name fewer ranges",
            )
    questions.problems.raise_if_any()


def _merges(item: Item, place: Place, questions: Questions, classes: tuple[Ints, ...]) -> bool:
    """Report the codes that an item distinguishes and a release does not; return if any."""
    merged: dict[int, tuple[int, int]] = {}
    for table in item.tables:
        for i, code, other in merged_codes(table, classes):
            merged.setdefault(i, (code, other))
    for i, (code, other) in merged.items():
        attribute = questions.spec.domain.attributes[i]
        questions.problems.add(
            place,
            f"{quoted(item.name)} tells {quoted(attribute.label(code))} from "
            f"{quoted(attribute.label(other))} of {quoted(attribute.name)}, and the release counts "
            "them as one: no question of its spec told them apart; plan again with this question "
            "in the spec",
        )
    return bool(merged)


def _message(S: Subset, measured: Sequence[Subset], domain: Domain, strategy: Strategy) -> str:
    names = [attribute.name for attribute in domain.attributes]
    together, listed = _crossed(S, names), ", ".join(names[i] for i in S)
    remedy = f"plan again with `marginals: {{sets: [[{listed}]]}}`"
    if not all(domain.attributes[i].in_data for i in S):
        remedy = "plan again with this question in the spec"
    if not strategy.spans_its_sets and any(set(S) <= set(T) for T in measured):
        return (
            f"the release measured what its own questions ask, and these of {together} are "
            f"no combination of the rows of one measurement; {remedy}"
        )
    nearest = sorted(measured, key=lambda T: (-len(set(T) & set(S)), len(T), T))
    shown = [_crossed(T, names) for T in nearest[:MAX_NAMED]]
    more = f" and {len(measured) - MAX_NAMED} more" if len(measured) > MAX_NAMED else ""
    return (
        f"no measured table holds {together} together; measured: {', '.join(shown)}{more}; {remedy}"
    )


def _crossed(subset: Iterable[int], names: Sequence[str]) -> str:
    return " x ".join(names[i] for i in subset) or "the total"


@dataclass(frozen=True, eq=False, repr=False)
class AnswerReport(PublishedTables):
    """What was answered; no errors are known where the release is of relaxed rows."""

    directory: Path  # where the answers are
    release: Path  # the release that was asked
    queries: int  # how many answers there are
    rmse: float | None  # root mean square standard error, in counts
    max_std_error: float | None  # the largest
    guessed: tuple[str, ...]  # see AnsweredFacts


def answer(
    release: FilePath,
    questions: FilePath,
    *,
    out: FilePath = ANSWERS_PATH,
    also: Sequence[str] = (),
    confidence: float | None = None,
    replace: bool = False,
) -> AnswerReport:
    """Answer new questions from a release's noisy measurements; free, and as often as wanted.

    Args:
        release: the folder of the release, which is not changed.
        questions: a YAML file with a `workload` section, or a whole spec that agrees with the
            release's.
        out: where the answers go, laid out as a release; written whole or not at all.
        also: extra columns beside the answers: see `reconstruction.columns.parse_columns`.
        confidence: level of the noise intervals, 0.95 unless said; RAP has none.
        replace: whether answers to other questions in `out` are replaced.

    Privacy:
        Post-processing: a function of the release and public inputs.

    Raises:
        SpecError: the questions have mistakes, or ask for what the measurements do not hold.
        PlanConflictError: `out` is in use for something else.
    """
    source, directory = as_path(release), as_path(out)
    columns = parse_columns(also)
    if source.is_file():
        raise SpecError(
            f"{source} is a file and no release folder; write `dpquery answer RELEASE QUESTIONS`"
        )
    checked_level(confidence)
    opened = Release(source)
    new_questions = load_questions(as_path(questions), of=opened.spec)
    level = confidence or LEVEL
    with stage("working out answers", 0.0, 0.4):
        if opened.facts.error_bars:
            made = _linear(opened, new_questions, columns, level)
        else:
            made = _relaxed(opened, new_questions, columns, confidence)
    facts, spec = made.manifest, new_questions.spec
    check_answers_target(directory, release=source, key=facts.key, replace_other=replace)
    with stage("", 0.4, 1.0):
        write_release(directory, made, spec=spec, replace=replace)
    figures = facts.strategy.rmse, facts.strategy.max_std_error
    guessed = facts.answered.guessed if facts.answered else ()
    return AnswerReport(directory, source, spec.queries, *figures, guessed)


def _linear(
    of: Release, questions: Questions, columns: tuple[ExtraColumn, ...], level: float
) -> ReleaseContent:
    """Answer by least squares, with exact errors, what the measurements span."""
    strategy, spec = of.answering, questions.spec
    new = check_answerable(questions, of.compiled.classes, strategy)
    planned = of.compiled.workload.blocks
    positions = positions_of(new.workload.blocks, planned)
    tables = tables_of_derived(spec, of.compiled.classes, planned, strategy)
    std = of.noise.noise_std
    rmse, largest = _errors(new, strategy, positions, std)
    remedy = "ask other questions: what the release holds stays as it is"
    check_solution(of.measured[0], new, noise_std=std, remedy=remedy, positions=positions)
    check_columns(columns, strategy, new.workload.blocks)
    measured = of.answered
    extra = extra_columns(columns, measured, (*new.workload.blocks, *planned))
    sampling, others = of.sampling(level), _other_releases(spec, of)
    answers = LinearAnswers(spec, new, measured, positions, level, extra, sampling)
    derived = derived_answers(spec, tables, measured, level=level, others=others, sampling=sampling)
    manifest = answers_manifest(
        of.facts, _naming_measurements(spec), level=level, rmse=rmse, max_std_error=largest
    )
    return ReleaseContent(answers, answers.described(manifest), derived=derived)


def _relaxed(
    of: Release, questions: Questions, columns: tuple[ExtraColumn, ...], confidence: float | None
) -> ReleaseContent:
    """Read any question off the relaxed rows; there are no intervals to have a level."""
    run = of.facts.fitted
    if run is None:
        raise ValueError("not a release of relaxed rows")
    if columns:
        raise SpecError(NO_COLUMNS.format(of.facts.strategy.name))
    if confidence is not None:
        raise SpecError(NO_LEVEL.format(of.facts.strategy.name))
    spec, classes = questions.spec, of.compiled.classes
    if spec.derived:
        raise SpecError(NO_DERIVED.format(of.facts.strategy.name))
    finer = finer_classes(classes, [table for item in spec.items for table in item.tables])
    new = compile_questions(spec, finer)
    released = read_relaxed(of.directory, of.compiled, digest=run.rows_sha256)
    check_answers_size(questions, new, relaxed_rows=len(released.values))
    rows = spread_evenly(released, classes, finer)
    pairs = enumerate(zip(classes, finer, strict=True))
    refined = frozenset(i for i, (before, after) in pairs if after.max() > before.max())
    guessed = tuple(spec.domain.attributes[i].name for i in sorted(refined))
    answers = RelaxedAnswers(spec, new, rows, run.total, of.unbiased, refined)
    manifest = answers_manifest(of.facts, spec, level=LEVEL, guessed=guessed)
    return ReleaseContent(answers, answers.described(manifest))


def _other_releases(asked: Spec, of: Release) -> dict[str, JointAnswers]:
    """Return the answers of the releases that differences are from, by their folders.

    Raises:
        SpecError: one is of another domain, has no error bars, or holds the same noise.
    """
    by_folder: dict[str, list[DerivedItem]] = {}
    for item in asked.derived:
        if item.release:
            by_folder.setdefault(item.release, []).append(item)
    answers = {}
    for folder, items in by_folder.items():
        other, place = Release(folder), items[0].place
        if not other.facts.error_bars:
            name = other.facts.strategy.name
            raise SpecError(f"{place}: {folder} is a release by {name}, which has no error bars")
        if other.spec.domain != of.spec.domain:
            raise SpecError(
                f"{place}: the domain of {folder} is another: rows could not be compared; make "
                "both releases of specs with one domain"
            )
        if other.facts.measurements == of.facts.measurements:
            raise SpecError(f"{place}: {folder} holds the same measurements as the release itself")
        spec = replace(other.spec, derived=tuple(items))
        planned, measured = other.compiled.workload.blocks, other.answered
        tables = tables_of_derived(spec, other.compiled.classes, planned, measured.strategy)
        answers[folder] = JointAnswers(tables, measured)
    return answers


def _naming_measurements(asked: Spec) -> Spec:
    """Return questions that name other releases by what they are, wherever they lie."""
    derived = []
    for item in asked.derived:
        statistic = item.statistic
        if isinstance(statistic, Difference) and statistic.release:
            other = read_manifest(Path(statistic.release))
            item = replace(
                item,
                statistic=replace(statistic, release=other.measurements),
                definition=item.definition.replace("another release", _named(other)),
            )
        derived.append(item)
    return replace(asked, derived=tuple(derived))


def _named(other: Manifest) -> str:
    """Return what readers are told of a release that another one is compared with."""
    dataset = other.dataset
    return (
        f"release {other.key[:12]} of {dataset.id}, version {dataset.version}, whose guarantee "
        f"is {guarantee_line(other.guarantee)}; what the difference reveals is limited by both "
        "guarantees together"
    )


def _errors(
    compiled: CompiledSpec, strategy: Strategy, positions: tuple[int | None, ...], std: float
) -> tuple[float, float]:
    workload, total, largest = compiled.workload, 0.0, 0.0
    for block, unit, position in zip(workload.blocks, workload.units, positions, strict=True):
        spread = strategy.variances(block, position=position)
        total += total_of(spread, block) / unit**2
        largest = max(largest, largest_of(spread) / unit**2)
    return std * math.sqrt(total / compiled.workload.shape[0]), std * math.sqrt(largest)
