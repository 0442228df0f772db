"""Answers to questions asked later of a release: a folder like a release's, of another kind.

Its manifest is that of the release but for the questions and what is known of their errors. The
promise is the release's own, and nothing is added to what was spent: both are functions of the same
noisy measurements.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import dpquery
from dpquery.exceptions import PlanConflictError, SpecError
from dpquery.measurement.ledger_witness import MANIFEST_FILE
from dpquery.measurement.libraries import versions
from dpquery.release.answered_facts import AnsweredFacts
from dpquery.release.carried import read_plan_file
from dpquery.release.manifest import PLAN_FILE, ItemFacts, Manifest
from dpquery.release.manifest_input import read_manifest
from dpquery.release.write import check_target
from dpquery.spec.model import Item


def read_answerable(directory: Path) -> tuple[Manifest, bytes]:
    """Return the manifest and the plan of a release that can be asked.

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
            f"{directory / PLAN_FILE} is missing, damaged, or not of this release; run "
            "`dpquery release` again, which is free: the ledger holds the measurements"
        )
    return manifest, plan


def answers_manifest(
    of: Manifest,
    items: Sequence[Item],
    *,
    level: float,
    rmse: float | None,
    max_std_error: float | None,
    guessed: tuple[str, ...],
) -> Manifest:
    """Return the manifest of answers.

    Args:
        of: the release that was asked.
        items: the questions.
        level: of the noise intervals.
        rmse: root mean square standard error of all answers; None where errors are not known.
        max_std_error: the largest of them.
        guessed: see AnsweredFacts.
    """
    asked = repr((of.key, of.measurements, tuple(items)))
    before = of.strategy.rmse
    known = rmse is not None and before is not None and before > 0
    ratio = (rmse or 0.0) / (before or 1.0)
    return replace(
        of,
        tool=dpquery.__version__,
        libraries=versions(),
        strategy=replace(
            of.strategy,
            rmse=rmse,
            max_std_error=max_std_error,
            lower_bound=None,
            bound_kind="",
            ratio=None,
        ),
        key=hashlib.sha256(asked.encode()).hexdigest(),
        level=level,
        items=tuple(
            ItemFacts(item.name, f"{item.name}.parquet", item.size, item.description)
            for item in items
        ),
        error_by_epsilon=tuple((e, own * ratio) for e, own in of.error_by_epsilon if known),
        postprocessing="none" if of.extra else of.postprocessing,
        measurements="",
        extra=(),
        rap=None if of.rap is None else replace(of.rap, simulated=None),
        answered=AnsweredFacts(of.key, of.measurements, guessed=guessed),
    )


def check_answers_target(directory: Path, *, release: Path, key: str, replace_other: bool) -> None:
    """Refuse a target that is, or lies in, a release; else as check_target.

    Args:
        directory: where the answers are to go.
        release: the release that is asked.
        key: of the answers.
        replace_other: whether answers to other questions may be replaced.

    Raises:
        PlanConflictError: the target is something else than a folder of answers.
    """
    target, own = Path(os.path.realpath(directory)), Path(os.path.realpath(release))
    if target == own or own in target.parents or target in own.parents:
        raise PlanConflictError(
            f"{directory} is, holds or lies in {release}, the release, which is not changed; "
            "name another folder for the answers"
        )
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
