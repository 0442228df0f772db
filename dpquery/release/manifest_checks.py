"""Whether a manifest read from a folder could have been written by a release.

It comes from outside: its names become file names and its words pages, so that each must be of the
form that a release gives it.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpquery.spec.parse import IDENTIFIER, NEIGHBOURS
from dpquery.spec.parse_workload import NAME
from dpquery.strategy.json_values import LEAST

if TYPE_CHECKING:
    from dpquery.release.manifest import Manifest, RapFacts

WIDEST_SHIFT = 512  # bits of a strategy's integers below the grid; plans have some 75 at most
_DIGEST = re.compile(r"[0-9a-z]{1,64}")
_AMOUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?")
_WHOLE = re.compile(r"[0-9]{1,1000}")


def check_facts(manifest: "Manifest", *, mechanisms: frozenset[str]) -> None:
    """Refuse a manifest that says anything in another form than a release does.

    Args:
        manifest: as it was read: every value has its type.
        mechanisms: what a release calls them.

    Raises:
        ValueError: it does.
    """
    privacy, guarantee, noise = manifest.privacy, manifest.guarantee, manifest.noise
    names = [item.name for item in manifest.items]
    as_written = (
        all(_DIGEST.fullmatch(own) for own in _digests(manifest))
        and all(
            re.fullmatch(IDENTIFIER, own) for own in (manifest.dataset.id, manifest.dataset.version)
        )
        and privacy.unit == ("row" if privacy.person is None else "person")
        and privacy.neighbours in NEIGHBOURS
        and privacy.max_rows >= 1
        and guarantee.mechanism in mechanisms
        and guarantee.kind == ("pure" if guarantee.rho is None else "zcdp")
        and _AMOUNT.fullmatch(guarantee.charged) is not None
        and 0 <= guarantee.delta < 1
        and -WIDEST_SHIFT <= noise.shift <= WIDEST_SHIFT
        and _WHOLE.fullmatch(noise.sensitivity) is not None
        and 0 < manifest.level < 1
        and len(set(names)) == len(names) > 0
        and all(re.fullmatch(NAME, own.name) for own in manifest.items)
        and all(own.file == f"{own.name}.parquet" and own.queries > 0 for own in manifest.items)
        and min(_above_zero(manifest)) >= LEAST
        and (manifest.rap is None or _run_is_believable(manifest.rap))
    )
    if not as_written:
        raise ValueError("facts")


def _digests(manifest: "Manifest") -> Iterator[str]:
    yield from (manifest.plan, manifest.key, manifest.strategy.sha256, manifest.ledger.head)
    if manifest.measurements:
        yield manifest.measurements
    if manifest.answered is not None:
        yield from (manifest.answered.release, manifest.answered.measurements)


def _above_zero(manifest: "Manifest") -> Iterator[float]:
    own = manifest.strategy
    yield from (manifest.guarantee.epsilon, manifest.noise.scale)
    for figure in (manifest.guarantee.rho, own.rmse, own.max_std_error, own.lower_bound, own.ratio):
        if figure is not None:
            yield figure
    for point in manifest.error_by_epsilon:
        yield from point


def _run_is_believable(run: "RapFacts") -> bool:
    counts = [run.rounds, run.relaxed_rows]
    figures = [*run.noise_std]
    if run.simulated is not None:
        counts.append(run.simulated.repetitions)
        own = run.simulated
        figures += [1 + own.rmse, 1 + own.max_error, 1 + own.rmse_spread, 1 + own.max_error_spread]
    figures += [x for x in (run.total_std, run.selection_scale) if x is not None]
    return (
        min(counts) >= 1 and run.selected >= 0 and len(run.noise_std) > 0 and min(figures) >= LEAST
    )
