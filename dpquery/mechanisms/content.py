"""What a release is made of, whichever mechanism made it: answers, and the facts about them."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import pyarrow as pa

from dpquery.measurement.ledger.ledger import StoredMeasurement
from dpquery.plan_file.plan import Plan
from dpquery.reconstruction.columns import ExtraColumn
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.budget_words import RECORDED, exact_words, taken_words
from dpquery.releases.manifest import LedgerFacts, Manifest
from dpquery.spec.spec import Item
from dpquery.strategy.strategy import Noise


@dataclass(frozen=True)
class ReleaseRequest:
    """Guarantee, noise and options of a release, which its plan leaves open.

    Attributes:
        epsilon: of the guarantee.
        delta: of the guarantee.
        noise: of a linear strategy; None for the better one by the plan.
        columns: extra ones beside the estimates.
        release: number of the release.
        level: of the noise intervals; None for the default.
    """

    epsilon: Fraction
    delta: Fraction
    noise: Noise | None
    columns: tuple[ExtraColumn, ...]
    release: int
    level: float | None = None


@dataclass(frozen=True, eq=False)
class ReleaseContent:
    """Answers and their manifest, made of noisy values: all that a release is written from.

    Attributes:
        answers: gives the answers of an item's tables, in order.
        manifest: what is public about them.
        relaxed: the relaxed rows that they come from, if they do.
        derived: the rows of every derived item.
        nearer: the errors of the best guess and of estimates, by the noisy values, where it is
            among the columns or far nearer.
    """

    answers: Callable[[Item], Iterator[TableAnswers]]
    manifest: Manifest
    relaxed: pa.Table | None = None
    derived: tuple[pa.Table, ...] = ()
    nearer: tuple[float, float] | None = None


def ledger_facts(measured: StoredMeasurement) -> LedgerFacts:
    """Return the ledger event that paid for a measurement, for the manifest."""
    parent = None if measured.parent is None else measured.parent.dataset
    return LedgerFacts(measured.head.seq, measured.head.hash, parent)


def digest_of(content: object) -> str:
    """Return the sha256 of JSON values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def cumulative_words(measured: StoredMeasurement, plan: Plan) -> str:
    """Return what the dataset had spent with a release; older plans keep the words they had."""
    account, parent = measured.account, measured.parent
    if plan.exact_words:
        return exact_words(account, parent=parent, of_sums=False, form=RECORDED)
    return taken_words(measured.charged, account, pure=measured.pure, parent=parent, form=RECORDED)
