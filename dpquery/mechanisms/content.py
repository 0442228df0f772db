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
from dpquery.releases.budget_words import DISCOVERED, RECORDED, exact_words, taken_words
from dpquery.releases.manifest import LedgerFacts, Manifest
from dpquery.releases.tables.long_table import DerivedTable
from dpquery.spec.spec import Item
from dpquery.strategy.strategy import Noise


@dataclass(frozen=True)
class ReleaseRequest:
    """Guarantee, noise and options of a release, which its plan leaves open."""

    epsilon: Fraction  # of the guarantee
    delta: Fraction  # of the guarantee
    noise: Noise | None  # of a linear strategy; None for the better one by the plan
    columns: tuple[ExtraColumn, ...]  # extra ones beside the estimates
    release: int  # number of the release
    level: float | None = None  # of the noise intervals; None for the default


@dataclass(frozen=True, eq=False)
class ReleaseContent:
    """Answers and their manifest, made of noisy values: all that a release is written from."""

    # gives the answers of an item's tables, in order
    answers: Callable[[Item], Iterator[TableAnswers]]
    manifest: Manifest  # what is public about them
    relaxed: pa.Table | None = None  # the relaxed rows that they come from, if they do
    derived: tuple[DerivedTable, ...] = ()
    # the errors of the best guess and of estimates, by the noisy values, where it is among the
    # columns or far nearer
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
        words = exact_words(account, parent=parent, of_sums=False, form=RECORDED)
    else:
        charged, pure = measured.charged, measured.pure
        words = taken_words(charged, account, pure=pure, parent=parent, form=RECORDED)
    return f"{words}; {DISCOVERED}" if account.discovered else words
