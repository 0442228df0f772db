"""answer() as a straight line: questions asked later of a release, from its folder alone.

    release folder -> spec and classes -> strategy and noisy values -> answers -> folder

Nothing here opens data or a ledger: what comes out is a function of what is published already, so
it takes nothing of any budget.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from dpquery.commands.answerable import check_answerable, check_answers_size
from dpquery.commands.arguments import FilePath, as_path, checked_level
from dpquery.commands.defaults import ANSWERS_PATH, LEVEL
from dpquery.commands.opened_release import Release
from dpquery.exceptions import SpecError
from dpquery.mechanisms.derived import NO_DERIVED, derived_answers, tables_of_derived
from dpquery.mechanisms.linear import LinearAnswers, check_solution
from dpquery.mechanisms.relaxed_release import NO_COLUMNS, NO_LEVEL, RelaxedAnswers
from dpquery.operators.compile import (
    CompiledSpec,
    compile_questions,
    finer_classes,
)
from dpquery.progress import stage
from dpquery.reconstruction.columns.extra_columns import check_columns, extra_columns
from dpquery.reconstruction.columns.postprocess import ExtraColumn, parse_columns
from dpquery.reconstruction.derived.joint_answers import JointAnswers
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.reconstruction.linear_answers import positions_of
from dpquery.reconstruction.rap.relaxed_rows import spread_evenly
from dpquery.reconstruction.table_answers import TableAnswers
from dpquery.releases.folder.answers import answers_manifest, check_answers_target
from dpquery.releases.folder.relaxed_rows_file import read_relaxed
from dpquery.releases.folder.write import write_release
from dpquery.releases.manifest.extra_columns import with_extra
from dpquery.releases.manifest.manifest_input import read_manifest
from dpquery.releases.manifest.release_json import Manifest
from dpquery.releases.manifest.statement import guarantee_line
from dpquery.releases.report.views import PublishedTables
from dpquery.spec.model import DerivedItem, Difference, Item, Spec
from dpquery.spec.parsing.later_queries import Questions, load_questions
from dpquery.strategy.algebra.row_sums import total_of
from dpquery.strategy.errors.expected_error import largest_of
from dpquery.strategy.shapes.strategies import Strategy


@dataclass(frozen=True, eq=False, repr=False)
class AnswerReport(PublishedTables):
    """What was answered; no errors are known where the release is of relaxed rows.

    Attributes:
        directory: where the answers are.
        release: the release that was asked.
        queries: how many answers there are.
        rmse: root mean square standard error, in counts.
        max_std_error: the largest.
        guessed: see AnsweredFacts.
    """

    directory: Path
    release: Path
    queries: int
    rmse: float | None
    max_std_error: float | None
    guessed: tuple[str, ...]


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
        also: extra columns beside the answers: see columns.postprocess.parse_columns.
        confidence: level of the noise intervals, 0.95 unless said; RAP has none.
        replace: whether answers to other questions in `out` are replaced.

    Privacy:
        Post-processing: a function of the release and public inputs.

    Raises:
        SpecError: the questions have mistakes, or ask for what the measurements do not hold.
        PlanConflictError: `out` is in use for something else.
    """
    source, directory, columns = as_path(release), as_path(out), parse_columns(also)
    checked_level(confidence)
    opened = Release(source)
    manifest = opened.facts
    new_questions = load_questions(as_path(questions), of=opened.spec)
    request = _Request(new_questions, confidence, columns)
    with stage("working out answers", 0.0, 0.4):
        answered = (_linear if manifest.error_bars else _relaxed)(opened, request)
    answers_of = answers_manifest(
        manifest,
        _naming_measurements(new_questions.spec),
        level=request.level,
        rmse=answered.rmse,
        max_std_error=answered.max_std_error,
        guessed=answered.guessed,
    )
    check_answers_target(directory, release=source, key=answers_of.key, replace_other=replace)
    with stage("", 0.4, 1.0):
        write_release(
            directory,
            spec=new_questions.spec,
            answers=answered.answers,
            manifest=answered.described(answers_of),
            replace=replace,
            derived=answered.derived,
        )
    queries, figures = new_questions.spec.queries, (answered.rmse, answered.max_std_error)
    return AnswerReport(directory, source, queries, *figures, answered.guessed)


@dataclass(frozen=True, eq=False)
class _Request:
    """The questions to a release, and the form of the answers."""

    questions: Questions
    confidence: float | None
    columns: tuple[ExtraColumn, ...]

    @property
    def level(self) -> float:
        """Of the noise intervals."""
        return self.confidence or LEVEL


@dataclass(frozen=True, eq=False)
class _Answered:
    """The answers of items, and their errors over all queries; None where these are not known.

    `described` adds what there is to say of their columns to the manifest.
    """

    answers: Callable[[Item], Iterator[TableAnswers]]
    described: Callable[[Manifest], Manifest]
    derived: tuple[pa.Table, ...] = ()
    rmse: float | None = None
    max_std_error: float | None = None
    guessed: tuple[str, ...] = ()


def _linear(of: Release, request: _Request) -> _Answered:
    """Answer by least squares, with exact errors, what the measurements span."""
    new_questions, columns = request.questions, request.columns
    strategy = of.answering
    new = check_answerable(new_questions, of.compiled.classes, strategy)
    planned = of.compiled.workload.blocks
    positions = positions_of(new.workload.blocks, planned)
    tables = tables_of_derived(new_questions.spec, of.compiled.classes, planned, strategy)
    std = of.noise_std
    rmse, largest = _errors(new, strategy, positions, std)
    remedy = "ask other questions: what the release holds stays as it is"
    check_solution(of.measured[0], new, noise_std=std, remedy=remedy, positions=positions)
    check_columns(columns, strategy, new.workload.blocks)
    noisy = of.noisy
    estimates = reconstruct(strategy, noisy)
    blocks = (*new.workload.blocks, *of.compiled.workload.blocks)
    extra = extra_columns(columns, strategy, noisy, estimates, blocks, noise_std=std)
    answers = LinearAnswers(
        new_questions.spec,
        new,
        strategy,
        estimates,
        positions=positions,
        noise_std=std,
        level=request.level,
        extra=extra,
    )
    derived = derived_answers(
        new_questions.spec,
        tables,
        strategy,
        estimates,
        noise_std=std,
        level=request.level,
        others=_other_releases(new_questions.spec, of),
    )
    described = partial(
        with_extra, spec=new_questions.spec, columns=columns, fitted=answers.fitted_facts
    )
    return _Answered(answers, described, derived, rmse, largest)


def _relaxed(of: Release, request: _Request) -> _Answered:
    """Read any question off the relaxed rows; there are no intervals to have a level."""
    run = of.facts.fitted
    if run is None:
        raise ValueError("not a release of relaxed rows")
    if request.columns:
        raise SpecError(NO_COLUMNS.format(of.facts.strategy.name))
    if request.confidence is not None:
        raise SpecError(NO_LEVEL.format(of.facts.strategy.name))
    if request.questions.spec.derived:
        raise SpecError(NO_DERIVED)
    new_questions = request.questions
    classes = of.compiled.classes
    finer = finer_classes(
        classes, [table for item in new_questions.spec.items for table in item.tables]
    )
    new = compile_questions(new_questions.spec, finer)
    released = read_relaxed(of.directory, of.compiled, digest=run.rows_sha256)
    check_answers_size(new_questions, new, relaxed_rows=len(released.values))
    rows = spread_evenly(released, classes, finer)
    pairs = enumerate(zip(classes, finer, strict=True))
    refined = frozenset(i for i, (before, after) in pairs if after.max() > before.max())
    guessed = tuple(new_questions.spec.domain.attributes[i].name for i in sorted(refined))
    answers = RelaxedAnswers(new_questions.spec, new, rows, run.total, of.unbiased, refined)
    return _Answered(answers, answers.described, guessed=guessed)


def _other_releases(asked: Spec, of: Release) -> dict[str, JointAnswers]:
    """Return the answers of the releases that differences are from, by their folders.

    Raises:
        SpecError: one is of another domain, has no error bars, or holds the same noise.
    """
    by_folder: dict[str, list[DerivedItem]] = {}
    for item in asked.derived:
        if isinstance(item.statistic, Difference) and item.statistic.release:
            by_folder.setdefault(item.statistic.release, []).append(item)
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
        planned, strategy = other.compiled.workload.blocks, other.answering
        tables = tables_of_derived(spec, other.compiled.classes, planned, strategy)
        estimates = reconstruct(strategy, other.noisy)
        answers[folder] = JointAnswers(tables, strategy, estimates, other.noise_std)
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
    """Return the root mean square of all standard errors and the largest, in counts or units."""
    workload, total, largest = compiled.workload, 0.0, 0.0
    for block, unit, position in zip(workload.blocks, workload.units, positions, strict=True):
        spread = strategy.variances(block, position=position)
        total += total_of(spread, block) / unit**2
        largest = max(largest, largest_of(spread) / unit**2)
    return std * math.sqrt(total / compiled.workload.shape[0]), std * math.sqrt(largest)
