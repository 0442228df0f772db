"""Releases with answers that are known, for tests of the report and of its pictures."""

from fractions import Fraction

import numpy as np

from dpquery.measurement.accounting import guarantee
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.folder.write import write_release
from dpquery.releases.manifest import LedgerFacts, StrategyFacts, manifest_of
from dpquery.releases.report.figures import load_report
from dpquery.spec.columns import Attribute, Bins, Categorical, Column, Domain, Integers
from dpquery.spec.predicates import AllRangesSet, GroupSet, IdentitySet, PrefixSet
from dpquery.spec.spec import Budget, Dataset, Item, Privacy, Spec, Table

EVIL = "<script>alert('x')</script>"
DOMAIN = Domain(
    (
        Attribute("age", (Column("age", Integers(0, 29), "drop"),)),
        Attribute("sex", (Column("sex", Categorical(("1", "2"), ("Male", EVIL)), "drop"),)),
        Attribute("income", (Column("income", Bins(tuple(map(float, range(21)))), "drop"),)),
    )
)
AGE, SEX, INCOME = ((index, IdentitySet(size)) for index, size in enumerate(DOMAIN.shape))
TEENS = GroupSet(30, (("teens & <b>", tuple(range(13, 20))), ("rest", (0, 1))))

ITEMS = (
    Item("population", (Table(()),), 4.0, "Everyone"),
    Item("ages", (Table((AGE,)),), description=EVIL),
    Item("pyramid", (Table((AGE, SEX)),)),
    Item("upto", (Table(((2, PrefixSet(20, 20)),)),)),
    Item("groups", (Table(((0, TEENS), SEX)),)),
    Item("many", (Table(((0, AllRangesSet(30, 30)), SEX)),)),
    Item("pairs", (Table((SEX,)), Table((AGE,)))),
)
CURVE = ((0.5, 10), (2, 2.5))
SIZE_OF = {"population": 1000.0, "ages": 50.0, "pyramid": 20.0, "many": 5.0, "groups": 400.0}


def answers(item):
    for table in item.tables:
        error = np.full(table.size, 5.0)
        estimate = np.full(table.size, SIZE_OF.get(item.name, 100.0)) + np.arange(table.size) % 3
        yield TableAnswers(table, estimate, error, 2 * error)


def release(
    folder,
    *,
    items=ITEMS,
    domain=DOMAIN,
    answers=answers,
    noise="gaussian",
    labelled=None,
    curve=CURVE,
):
    delta = Fraction(1, 10**9)
    spec = Spec(Dataset("people", "7"), Privacy(), Budget(epsilon=Fraction(4)), domain, items)
    terms = guarantee(noise, epsilon=Fraction(1), delta=delta)
    manifest = manifest_of(
        spec,
        mechanism=CalibratedNoise(terms, 0, 1, 2.0),
        noise_source="OpenDP 0",
        strategy=StrategyFacts(EVIL, "product", 5.0, 5.0, 4.0, "SVD bound", 1.25, "s" * 64),
        plan="p" * 64,
        key="k",
        ledger=LedgerFacts(1, "h" * 64),
        cumulative="Releases so far have spent 1 of 4.",
        level=0.9,
        error_by_epsilon=curve,
        labelled_tables=labelled,
    )
    write_release(folder, spec=spec, answers=answers, manifest=manifest, replace=False)
    return load_report(folder)
