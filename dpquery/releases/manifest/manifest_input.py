"""The reader of release.json: refuses one that no release could have written.

It comes from outside: its names become file names and its words pages, so that each must be of the
form that a release gives it.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from dpquery.exceptions import SpecError
from dpquery.limits import MAX_JSON_BYTES
from dpquery.measurement.ledger.published_releases import MANIFEST_FILE
from dpquery.releases.manifest.derived_facts import DerivedFacts
from dpquery.releases.manifest.rap_facts import AdaptiveFacts, RapFacts
from dpquery.releases.manifest.release_json import (
    ADAPTIVE,
    MECHANISMS,
    RAP,
    SCHEMA_VERSION,
    Manifest,
)
from dpquery.spec.model import PublicationRules
from dpquery.spec.parsing.derived_fields import NAME
from dpquery.spec.parsing.fields import IDENTIFIER, NEIGHBOURS
from dpquery.untrusted.files import read_outside
from dpquery.untrusted.json_values import LEAST_FIGURE, decode, mapping, parsed, text_of

WIDEST_SHIFT = 512  # bits of a strategy's integers below the grid; plans have some 75 at most
_DIGEST = re.compile(r"[0-9a-z]{1,64}")
_AMOUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?")
_WHOLE = re.compile(r"[0-9]{1,1000}")


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a release; SpecError if the directory holds none that can be read."""
    try:
        content = read_outside(directory / MANIFEST_FILE, most=MAX_JSON_BYTES)
        raw = mapping(parsed(content))
        version = raw["schema_version"]
        if version == SCHEMA_VERSION:
            libraries = sorted(mapping(raw["libraries"]).items())
            manifest = cast(Manifest, decode(Manifest, {**raw, "libraries": libraries}))
            _check_facts(manifest, place=directory / MANIFEST_FILE)
            return manifest
        version = text_of(version)[:40]
    except (FileNotFoundError, NotADirectoryError):
        raise SpecError(
            f"{directory} is not a release folder: it has no {MANIFEST_FILE}; "
            "name the folder that `dpquery release` wrote"
        ) from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise SpecError(
            f"{directory / MANIFEST_FILE} is damaged; run `dpquery release` again, which is free: "
            "the ledger holds the measurements"
        ) from None
    raise SpecError(
        f"{directory / MANIFEST_FILE} has format {version!r}, not {SCHEMA_VERSION!r}; "
        "read it with the version of dpquery that wrote it"
    )


def _check_facts(manifest: Manifest, *, place: Path) -> None:
    """Refuse a manifest with a fact in another form than a release gives it.

    Args:
        manifest: as it was read: every value has its type.
        place: of its file.

    Raises:
        SpecError: some fact has another form; names the first.
    """
    for what, holds in _facts(manifest):
        if not holds:
            raise SpecError(
                f"{place} is damaged: its {what} is none that a release states; run `dpquery "
                "release` again, which is free: the ledger holds the measurements"
            )


def _facts(manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """Yield every fact by name, and whether a release could have stated it."""
    privacy, guarantee, noise = manifest.privacy, manifest.guarantee, manifest.noise
    names = [item.name for item in manifest.items]
    parent = manifest.ledger.parent
    yield "digest", all(_DIGEST.fullmatch(digest) for digest in _digests(manifest))
    yield "dataset's id", _matches(IDENTIFIER, manifest.dataset.id)
    yield "dataset's version", _matches(IDENTIFIER, manifest.dataset.version)
    yield "parent", parent is None or _matches(IDENTIFIER, parent)
    yield "privacy unit", privacy.unit == ("row" if privacy.person is None else "person")
    yield "kind of neighbours", privacy.neighbours in NEIGHBOURS
    yield "number of rows a person", privacy.max_rows >= 1
    yield (
        "choice of rows",
        privacy.keep is None or (privacy.keep == "random" and privacy.person is not None),
    )
    rows = 0 if manifest.counted is None else manifest.counted.rows
    yield "rows of persons", rows == 0 or (rows > 0 and privacy.person is not None)
    yield "mechanism", guarantee.mechanism in (*MECHANISMS.values(), RAP, ADAPTIVE)
    stated = (guarantee.rho is not None, guarantee.mu is not None)
    kinds = {"pure": (False, False), "zcdp": (True, False), "gdp": (False, True)}
    yield "kind of guarantee", kinds.get(guarantee.kind) == stated
    yield "charge", _AMOUNT.fullmatch(guarantee.charged) is not None
    yield "delta", 0 <= guarantee.delta < 1
    yield "noise's shift", -WIDEST_SHIFT <= noise.shift <= WIDEST_SHIFT
    yield "sensitivity", _WHOLE.fullmatch(noise.sensitivity) is not None
    yield "level", 0 < manifest.level < 1
    yield "edition of tables", manifest.tables in (1, 2)
    yield "list of items", len(set(names)) == len(names) > 0
    yield "name of an item", all(_matches(NAME, name) for name in names)
    yield "file of an item", all(item.file == f"{item.name}.parquet" for item in manifest.items)
    yield "derived item", _derived_are_believable(manifest.derived, names)
    yield (
        "rule of publication",
        all(_rules_are_believable(item.published) for item in manifest.items),
    )
    yield "number of queries", all(item.queries > 0 for item in manifest.items)
    sums = [item.summed for item in manifest.items if item.summed is not None]
    yield "largest value of a sum", all(summed.largest >= 1 for summed in sums)
    yield "figure", min(_above_zero(manifest)) >= LEAST_FIGURE
    fitted = manifest.fitted
    yield "run", (manifest.rap is None or manifest.adaptive is None)
    yield "run of RAP", fitted is None or _run_is_believable(fitted)


def _derived_are_believable(derived: Sequence[DerivedFacts], items: Sequence[str]) -> bool:
    names = [*items, *(item.name for item in derived)]
    return len(set(names)) == len(names) and all(
        _matches(NAME, item.name) and item.file == f"{item.name}.parquet" and item.rows > 0
        for item in derived
    )


def _rules_are_believable(rules: PublicationRules | None) -> bool:
    if rules is None:
        return True
    stated = (rules.rel_error, rules.below, rules.round_to)
    return (
        any(rule is not None for rule in stated)
        and (rules.rel_error is None or rules.rel_error >= LEAST_FIGURE)
        and (rules.round_to is None or rules.round_to >= 1)
    )


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def _digests(manifest: Manifest) -> Iterator[str]:
    yield from (manifest.plan, manifest.key, manifest.strategy.sha256, manifest.ledger.head)
    if manifest.measurements:
        yield manifest.measurements
    if manifest.fitted is not None and manifest.fitted.rows_sha256:
        yield manifest.fitted.rows_sha256
    if manifest.answered is not None:
        yield from (manifest.answered.release, manifest.answered.measurements)


def _above_zero(manifest: Manifest) -> Iterator[float]:
    strategy = manifest.strategy
    yield from (manifest.guarantee.epsilon, manifest.noise.scale)
    errors = (strategy.rmse, strategy.max_std_error, strategy.lower_bound, strategy.ratio)
    for figure in (manifest.guarantee.rho, manifest.guarantee.mu, *errors):
        if figure is not None:
            yield figure
    for point in manifest.error_by_epsilon:
        yield from point


def _run_is_believable(run: RapFacts | AdaptiveFacts) -> bool:
    counts = [run.relaxed_rows, *([] if run.declared is None else [run.declared])]
    figures = [*run.noise_std]
    if isinstance(run, AdaptiveFacts):
        counts += [run.one_way, run.candidates + 1 - run.one_way]
        figures.append(run.one_way_std)
        figures += [] if run.unbiased_rmse is None else [run.unbiased_rmse]
        measured = (run.unbiased > 0) == (run.unbiased_rmse is not None)
        rounds = len(run.rounds) == len(run.noise_std) and run.unbiased >= 0 and measured
    else:
        counts.append(run.rounds)
        figures += [] if run.selection_scale is None else [run.selection_scale]
        rounds = run.selected >= 0
    errors = [0.0]
    if run.simulated is not None:
        counts.append(run.simulated.repetitions)
        simulated = run.simulated
        errors = [simulated.rmse, simulated.max_error]
        errors += [simulated.rmse_spread, simulated.max_error_spread]
    figures += [] if run.total_std is None else [run.total_std]
    return (
        min(counts) >= 1
        and rounds
        and len(run.noise_std) > 0
        and min(figures) >= LEAST_FIGURE
        and all(error == 0 or error >= LEAST_FIGURE for error in errors)
    )
