"""The folder of answers to later questions: like that of the release that they are computed from.

Its manifest is that of the release but for the questions and what is known of their errors. The
guarantee is the release's, and nothing is charged: both are functions of the same noisy
measurements.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import assert_never

from dpquery.exceptions import PlanConflictError, SpecError
from dpquery.limits import MAX_LABELLED_TABLES
from dpquery.measurement.ledger.ledger import MANIFEST_FILE
from dpquery.measurement.noise.exact_noise import versions
from dpquery.measurement.release_key import (
    write_fraction,
    write_number,
    write_numbers,
    write_optional,
    write_real,
    write_record,
    write_series,
    write_text,
    write_texts,
)
from dpquery.plan_file.plan import read_plan_file
from dpquery.releases.folder.write import check_apart, check_target
from dpquery.releases.manifest import (
    PLAN_FILE,
    RELEASE_AGAIN,
    AnsweredFacts,
    Manifest,
    read_manifest,
)
from dpquery.releases.manifest_facts import derived_facts, item_facts
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PredicateSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
)
from dpquery.spec.spec import (
    DerivedItem,
    Difference,
    Item,
    KnownTotals,
    MergedRows,
    PublicationRules,
    Quantiles,
    Rate,
    Spec,
    SummedValues,
    Table,
)
from dpquery.version import __version__


def read_answerable(directory: Path) -> tuple[Manifest, bytes]:
    """Return the manifest and the plan of a release that can answer further questions.

    Raises:
        SpecError: the folder is not a release, was made before releases could be asked, or its
            plan is not the one that the manifest names.
    """
    manifest = read_manifest(directory)
    if manifest.answered is not None:
        raise SpecError(
            f"{directory} holds answers to questions about a release; name the release itself"
        )
    if not manifest.measurements:
        raise SpecError(
            f"{directory} was made by an older dpquery: run `dpquery release` again, which is free"
        )
    try:
        plan = read_plan_file(directory / PLAN_FILE)
    except OSError:
        plan = b""
    if hashlib.sha256(plan).hexdigest() != manifest.plan:
        raise SpecError(
            f"{directory / PLAN_FILE} is missing, damaged, or not of this release; {RELEASE_AGAIN}"
        )
    return manifest, plan


def answers_manifest(
    of: Manifest,
    questions: Spec,
    *,
    level: float,
    rmse: float | None,
    max_std_error: float | None,
    guessed: tuple[str, ...],
) -> Manifest:
    """Return the manifest of answers.

    Args:
        of: the release that was asked.
        questions: the release's spec, with the questions for its workload.
        level: of the noise intervals.
        rmse: root mean square standard error of all answers; None where errors are not known.
        max_std_error: the largest of them.
        guessed: see AnsweredFacts.
    """
    before = of.strategy.rmse
    errors_known = rmse is not None and before is not None and before > 0
    ratio = (rmse or 0.0) / (before or 1.0)
    return replace(
        of,
        tool=__version__,
        libraries=versions(),
        strategy=replace(
            of.strategy,
            rmse=rmse,
            max_std_error=max_std_error,
            lower_bound=None,
            bound_kind="",
            ratio=None,
        ),
        key=answers_key(of, questions.items, questions.derived),
        derived=derived_facts(questions),
        level=level,
        items=item_facts(questions, labelled_tables=MAX_LABELLED_TABLES),
        error_by_epsilon=tuple(
            (epsilon, rmse_at * ratio) for epsilon, rmse_at in of.error_by_epsilon if errors_known
        ),
        postprocessing="none" if of.extra else of.postprocessing,
        measurements="",
        extra=(),
        rap=None if of.rap is None else replace(of.rap, simulated=None),
        adaptive=None
        if of.adaptive is None
        else replace(of.adaptive, simulated=None, distances=()),
        answered=AnsweredFacts(of.key, of.measurements, guessed=guessed),
    )


def answers_key(of: Manifest, items: Sequence[Item], derived: Sequence[DerivedItem] = ()) -> str:
    """Return the key of answers, 64 hexadecimal digits: of the questions and of the measurements.

    Answers of one key may be written over each other. The text that it is made of has the notation
    and the rules of a release's key (see release_key): a field is written by name, and one that is
    new is left out where it has the value that was meant before.

    Args:
        of: the release that was asked.
        items: the questions.
        derived: what is made of their answers.
    """
    parts = [write_text(of.key), write_text(of.measurements), write_series(map(_item, items))]
    if derived:
        parts.append(write_series(map(_derived, derived)))
    content = write_series(parts)
    return hashlib.sha256(content.encode()).hexdigest()


def _item(item: Item) -> str:
    return write_record(
        "Item",
        name=write_text(item.name),
        tables=write_series(map(_table, item.tables)),
        weight=write_real(item.weight),
        description=write_text(item.description),
        place=write_text(item.place),
        **({} if item.publish is None else {"publish": _rules(item.publish)}),
        **({} if item.known is None else {"known": _known(item.known)}),
        **({} if item.share is None else {"share": write_fraction(item.share)}),
    )


def _known(known: KnownTotals) -> str:
    return write_record(
        "KnownTotals",
        values=write_numbers(known.values),
        file=write_text(known.file),
        why=write_text(known.why),
        lines=write_numbers(known.lines),
        place=write_text(known.place),
    )


def _derived(item: DerivedItem) -> str:
    statistic, numbers = item.statistic, list[float]()
    match statistic:
        case Rate(per=per, population=population):
            numbers = [per, *population]
        case Quantiles(probabilities=probabilities):
            numbers = [*probabilities]
        case MergedRows(attribute=attribute, rel_error=rel_error, sizes=sizes):
            numbers = [attribute, rel_error, *sizes]
        case _:
            pass
    return write_record(
        "DerivedItem",
        name=write_text(item.name),
        kind=write_text(statistic.kind),
        rows=_table(statistic.rows),
        tables=write_series(map(_table, statistic.tables)),
        numbers=write_series(map(write_real, numbers)),
        description=write_text(item.description),
        **({"release": write_text(statistic.release)} if isinstance(statistic, Difference) else {}),
    )


def _rules(rules: PublicationRules) -> str:
    rel_error, below, step = rules.rel_error, rules.below, rules.round_to
    return write_record(
        "PublicationRules",
        rel_error=write_optional(None if rel_error is None else write_real(rel_error)),
        below=write_optional(None if below is None else write_number(below)),
        round_to=write_optional(None if step is None else write_number(step)),
    )


def _table(table: Table) -> str:
    at_least = table.at_least
    return write_record(
        "Table",
        axes=write_series(
            write_series([write_number(i), _predicates(predicates)]) for i, predicates in table.axes
        ),
        where=write_series(
            write_series([write_number(i), _predicates(predicates)])
            for i, predicates in table.where
        ),
        at_least=write_optional(None if at_least is None else write_number(at_least)),
        **({} if table.summed is None else {"summed": _summed(table.summed)}),
    )


def _summed(summed: SummedValues) -> str:
    attribute, values = write_number(summed.attribute), write_numbers(summed.values)
    return write_record("SummedValues", attribute=attribute, values=values)


def _predicates(predicates: PredicateSet) -> str:
    size = write_number(predicates.size)
    match predicates:
        case IdentitySet(columns=()):
            return write_record("IdentitySet", size=size)
        case IdentitySet(columns=columns):
            shown = write_series(map(write_numbers, columns))
            return write_record("IdentitySet", size=size, columns=shown)
        case TotalSet():
            return write_record("TotalSet", size=size)
        case PrefixSet(length=length):
            return write_record("PrefixSet", size=size, length=write_number(length))
        case AllRangesSet(length=length):
            return write_record("AllRangesSet", size=size, length=write_number(length))
        case WidthSet(length=length, width=width):
            return write_record(
                "WidthSet", size=size, length=write_number(length), width=write_number(width)
            )
        case IntervalSet(bounds=bounds):
            return write_record(
                "IntervalSet", size=size, bounds=write_series(map(write_numbers, bounds))
            )
        case GroupSet(groups=groups, named=named):
            labelled = (
                write_series([write_text(label), write_numbers(codes)]) for label, codes in groups
            )
            levels = {"named": write_series(map(write_texts, named))} if named else {}
            return write_record("GroupSet", size=size, groups=write_series(labelled), **levels)
        case StackedSet(parts=parts):
            return write_record(
                "StackedSet", size=size, parts=write_series(map(_predicates, parts))
            )
    assert_never(predicates)


def check_answers_target(directory: Path, *, release: Path, key: str, replace_other: bool) -> None:
    """Refuse a target that is, or lies in, a release; else as check_target.

    Args:
        directory: where the answers are to go.
        release: the release that the questions are put to.
        key: of the answers.
        replace_other: whether answers to other questions may be replaced.

    Raises:
        PlanConflictError: the target is something else than a folder of answers.
    """
    check_apart(directory, release, noun="answers")
    if (directory / MANIFEST_FILE).exists():
        try:
            answered = read_manifest(directory).answered
        except SpecError:
            answered = None
        if answered is None:
            raise PlanConflictError(
                f"{directory} holds a release, not answers to questions; name another folder"
            )
    check_target(directory, key=key, replace=replace_other)
