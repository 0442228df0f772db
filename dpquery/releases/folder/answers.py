"""The folder of answers to later questions: like that of the release that they are computed from.

Its manifest is that of the release but for the questions and what is known of their errors. The
guarantee is the release's, and nothing is charged: both are functions of the same noisy
measurements.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dpquery.exceptions import PlanConflictError, SpecError
from dpquery.limits import MAX_LABELLED_TABLES
from dpquery.measurement.ledger.ledger import MANIFEST_FILE
from dpquery.measurement.noise.exact_noise import versions
from dpquery.measurement.release_key import KeyText, key_text, write_record
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
from dpquery.spec.predicates import PredicateSet, StackedSet
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
    rmse: float | None = None,
    max_std_error: float | None = None,
    guessed: tuple[str, ...] = (),
) -> Manifest:
    """Return the manifest of answers.

    Errors are None where they are not known.
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
    """
    parts: list[object] = [of.key, of.measurements, map(_item, items)]
    if derived:
        parts.append(map(_derived, derived))
    return hashlib.sha256(key_text(parts).encode()).hexdigest()


def _item(item: Item) -> KeyText:
    return write_record(
        "Item",
        name=item.name,
        tables=map(_table, item.tables),
        weight=float(item.weight),
        description=item.description,
        place=item.place,
        **({} if item.publish is None else {"publish": _rules(item.publish)}),
        **({} if item.known is None else {"known": _known(item.known)}),
        **({} if item.share is None else {"share": item.share}),
    )


def _known(known: KnownTotals) -> KeyText:
    return write_record(
        "KnownTotals",
        values=known.values,
        file=known.file,
        why=known.why,
        lines=known.lines,
        place=known.place,
    )


def _derived(item: DerivedItem) -> KeyText:
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
        name=item.name,
        kind=statistic.kind,
        rows=_table(statistic.rows),
        tables=map(_table, statistic.tables),
        numbers=map(float, numbers),
        description=item.description,
        **({"release": statistic.release} if isinstance(statistic, Difference) else {}),
    )


def _rules(rules: PublicationRules) -> KeyText:
    rel_error = None if rules.rel_error is None else float(rules.rel_error)
    return write_record(
        "PublicationRules", rel_error=rel_error, below=rules.below, round_to=rules.round_to
    )


def _table(table: Table) -> KeyText:
    axes, where = (
        [(i, _predicates(predicates)) for i, predicates in pairs]
        for pairs in (table.axes, table.where)
    )
    summed = {} if table.summed is None else {"summed": _summed(table.summed)}
    return write_record("Table", axes=axes, where=where, at_least=table.at_least, **summed)


def _summed(summed: SummedValues) -> KeyText:
    return write_record("SummedValues", attribute=summed.attribute, values=summed.values)


def _predicates(predicates: PredicateSet) -> KeyText:
    """Return a set's fields by name, without what it has none of."""
    given = {key: value for key, value in vars(predicates).items() if value != ()}
    if isinstance(predicates, StackedSet):
        given["parts"] = map(_predicates, predicates.parts)
    return write_record(type(predicates).__name__, **given)


def check_answers_target(directory: Path, *, release: Path, key: str, replace_other: bool) -> None:
    """Refuse a target that is, or lies in, a release; else as check_target.

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
