"""Items, answers and manifests made by hand, a town to package, the registry; made-up counts."""

from collections import defaultdict
from dataclasses import replace
from datetime import date
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import ndtri
from town import ok

from dpquery.audit.measurements import UnstoredParts
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.mechanisms.content import ReleaseRequest, derived_answers, tables_of_derived
from dpquery.mechanisms.linear import linear_mechanism
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity
from dpquery.plan_file.plan import plan_and_spec
from dpquery.public_chance import public_generator
from dpquery.reconstruction.derived import JointAnswers, derived_rows, rows_in
from dpquery.reconstruction.least_squares import Measured, TableAnswers
from dpquery.reconstruction.sampling import SquareErrors
from dpquery.releases.folder.write import ReleaseContent, write_release
from dpquery.releases.manifest import LedgerFacts, StrategyFacts, manifest_of
from dpquery.spec.calendar import DateFormat
from dpquery.spec.columns import (
    Attribute,
    Bins,
    Boolean,
    Categorical,
    Column,
    Dates,
    Domain,
    Integers,
)
from dpquery.spec.parsing.read import parse
from dpquery.spec.predicates import (
    AllRangesSet,
    GroupSet,
    IdentitySet,
    IntervalSet,
    PrefixSet,
    StackedSet,
    TotalSet,
    WidthSet,
)
from dpquery.spec.spec import Budget, Dataset, Item, Privacy, Spec, Table
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy

# Items of every kind, and releases of made-up answers to them.


def attribute(name, *kinds, other="drop"):
    """An attribute of one column, or of several that are merged."""
    if len(kinds) == 1:
        return Attribute(name, (Column(name, kinds[0], other),))
    return Attribute(name, tuple(Column(f"{name}{k}", kind, other) for k, kind in enumerate(kinds)))


SEX = Categorical(("1", "2"), ("Male", "Female"))
WEEKS = Dates(date(2012, 12, 30), date(2013, 1, 15), "week", DateFormat())
DOMAIN = Domain(
    (
        attribute("age", Integers(-2, 5)),
        attribute("sex", SEX),
        attribute("income", Bins((0.0, 0.5, 1e4, 2e7)), other="show"),
        attribute("poor", Boolean()),
        attribute("race", Boolean(), Boolean()),
        attribute("state", Categorical(("a", "b", "c"), ("all", "B", "C")), other="show"),
        attribute("week", WEEKS),
    )
)
AGE, SEX_, INCOME, POOR, RACE, STATE, WEEK = range(7)


def identity(index):
    return IdentitySet(DOMAIN.shape[index])


def whole(index):
    return TotalSet(DOMAIN.shape[index])


AGES = [
    identity(AGE),
    PrefixSet(8, 8),
    AllRangesSet(8, 8),
    WidthSet(8, 8, 3),
    IntervalSet(8, ((0, 1), (3, 3), (2, 7))),
    GroupSet(8, (("young", (0, 1, 2)), ("ends", (0, 7)), ("one", (4,)))),
    StackedSet(8, (IdentitySet(8), TotalSet(8), PrefixSet(8, 8))),
]
SETS = [(AGE, age) for age in AGES]
SETS += [(SEX_, identity(SEX_)), (SEX_, StackedSet(2, (IdentitySet(2), TotalSet(2))))]
SETS += [(SEX_, GroupSet(2, (("both", (0, 1)), ("men", (0,)))))]
SETS += [(INCOME, identity(INCOME)), (INCOME, AllRangesSet(4, 3)), (INCOME, PrefixSet(4, 3))]
SETS += [(INCOME, GroupSet(4, (("rich", (1, 2)), ("unclear", (2, 3)))))]
SETS += [(POOR, identity(POOR)), (POOR, GroupSet(2, (("yes", (1,)),)))]
SETS += [(RACE, identity(RACE)), (RACE, GroupSet(4, (("alone", (1, 2)), ("both", (3,)))))]
SETS += [(STATE, identity(STATE)), (STATE, StackedSet(4, (IdentitySet(4), TotalSet(4))))]
SETS += [(WEEK, identity(WEEK)), (WEEK, AllRangesSet(4, 4)), (WEEK, WidthSet(4, 4, 2))]
SETS += [(WEEK, StackedSet(4, (IdentitySet(4), GroupSet(4, (("ends", (0, 3)),)))))]

YES = GroupSet(2, (("yes", (1,)),))
FEMALE = GroupSet(2, (("Female", (1,)),))


def one(*axes, **options):
    """A table with some axes."""
    return Table(tuple(axes), **options)


ITEMS = [Item(f"set{k}", (one(members),)) for k, members in enumerate(SETS)]
ITEMS += [
    Item(f"by_sex{k}", (one((AGE, age), (SEX_, identity(SEX_))),)) for k, age in enumerate(AGES)
]
ITEMS += [
    Item("total", (one(),)),
    Item("where", (one((AGE, identity(AGE)), where=((SEX_, FEMALE),)),)),
    Item(
        "pairs", tuple(one((a, identity(a)), (b, identity(b))) for a, b in ((0, 1), (0, 3), (2, 4)))
    ),
    Item(
        "mixed",
        (one(), one((AGE, identity(AGE))), one((AGE, whole(AGE)), (STATE, identity(STATE)))),
    ),
    Item("any", (one((SEX_, FEMALE), (POOR, YES), at_least=1),)),
    Item(
        "threshold",
        (
            one((SEX_, identity(SEX_)), (POOR, YES), (RACE, identity(RACE)), at_least=2),
            one((SEX_, FEMALE), (POOR, YES), where=((AGE, IntervalSet(8, ((0, 3),))),), at_least=1),
            one((POOR, identity(POOR))),
        ),
    ),
]


def numbers(table, *, seed=0):
    """Random answers to a table, some so small that their errors are flagged."""
    rng = np.random.default_rng(seed)
    estimate, error = rng.normal(40, 50, table.size), rng.uniform(1, 30, table.size)
    return TableAnswers(table, estimate, error, 2 * error)


def answers(item):
    """Random answers to every table of an item, the same every time."""
    return (numbers(table, seed=k) for k, table in enumerate(item.tables))


def spec_of(items=ITEMS, **privacy):
    """A spec that asks for some items."""
    return Spec(
        dataset=Dataset("people", "7"),
        privacy=Privacy(**{"delta": Fraction(1, 10**9), **privacy}),
        budget=Budget(epsilon=Fraction(4)),
        domain=DOMAIN,
        items=tuple(items),
    )


def manifest(spec, *, key="k1", noise="gaussian", epsilon="1"):
    """The manifest of a release that nobody made."""
    terms = guarantee(noise, epsilon=Fraction(epsilon), delta=Fraction(1, 10**9))
    return manifest_of(
        spec,
        mechanism=CalibratedNoise(terms, 3, 12345, 67890.5),
        noise_source="Source 7",
        strategy=StrategyFacts("marginals", "marginals", 9.0, 30.0, 8.0, "SVD bound", 1.125, "s"),
        plan="p" * 64,
        key=key,
        ledger=LedgerFacts(3, "h" * 64),
        cumulative="Releases so far have spent 1 of 4.",
        level=0.95,
        error_by_epsilon=[(0.5, 18), (1, 9)],
    )


def release(directory, spec=None, *, answers=answers, replace=False, **options):
    """Write a release of random answers."""
    spec = spec or spec_of(ITEMS[-3:])
    facts = manifest(spec, **options)
    write_release(directory, ReleaseContent(answers, facts), spec=spec, replace=replace)


# A town whose labels, names and words are such as a spreadsheet or a page could misread.

ABOUT = """\
about:
  title: Persons of <town> & around
  description: Counts | of persons
  contact: "Statistics Town, info@stats.example"
  licence: CC-BY-4.0
  period: "2024"
  area: Town
  next_update: 2027-03
  notes: =SUM(A1)
"""
SPEC = """\
dataset: {id: town, version: 1}
privacy: {unit: row, neighbours: add-remove}
budget: {epsilon: 4}
domain:
  age: {range: [-2, 4]}
  sex: {values: {F: "=1+1", M: "@SUM(A1)"}}
  region: {values: {1: "+49 30", 2: "-x", no answer: ["", iap]}, other: show}
  income: {bins: [0, 10, 20.5, 50]}
  day: {date: {from: 2013-01-01, to: 2013-03-31, by: month}}
  "=odd name": boolean
workload:
  - name: age_by_sex
    description: Every year of age by sex
    product: {age: identity, sex: identity+total}
  - {name: pairs, marginals: {ways: 2, over: [sex, region, income]}}
  - {name: ages, ranges: {age: all}}
  - {name: days, product: {day: identity, "=odd name": identity}}
  - {name: a-very-long-name-of-more-than-thirty-one-letters, product: {income: identity+total}}
  - {name: history, sum: {of: age, by: {sex: identity}}, publish: {suppress: {below: 10}}}
  - {name: either, any_of: {sex: {is: F}, age: identity}}
"""
DATA = 'age,sex,region,income,day,"=odd name"\n0,F,1,5,2013-01-04,yes\n2,M,2,15,2013-02-04,no\n'
BOTH = ("--also", "csv,xlsx" if find_spec("xlsxwriter") else "csv")
"""All formats that this machine can write."""


def make_town(folder, spec):
    folder.mkdir(parents=True)
    (folder / "workload.yaml").write_text(spec)
    (folder / "data.csv").write_text(DATA)
    ledger = ("--ledger", folder / "state" / "ledger.db")
    plan = folder / "dpquery.plan"
    ok("plan", folder / "workload.yaml", "--out", plan, "--time-limit", "0", *ledger)
    places = ("--plan", plan, "--out", folder / "release", *ledger)
    ok("release", folder / "data.csv", "--epsilon", "1", "--also", "nonnegative", *places)


def packed_once(base):
    """Make a town below a folder, release it and pack it; for all tests of a run."""
    folder = base / "packed-town"
    if not (folder / "package").exists():
        make_town(folder, ABOUT + SPEC)
        ok("package", folder / "release", "--out", folder / "package", *BOTH)
    return folder


# What an entry of the Differential Privacy Deployments Registry must be, as a JSON Schema.
#
# Written from `schemas/deployments-schema.yaml` of github.com/opendp/deployments-registry-data, at
# commit c1d3d30939608c9a448d6bec5bdcbd35d5facfea, with the names that its records of September 2026
# have since then: `dp_variant` with `variant_name`, `_details` in place of `_description`, and data
# curators with a name and a type.

TEXT = {"type": "string", "minLength": 1}


def one_of(*words):
    return {"enum": list(words)}


def mapping(required, **properties):
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def texts(names):
    return dict.fromkeys(names.split(), TEXT)


CURATORS = {
    "type": "array",
    "minItems": 1,
    "items": mapping(
        "data_curator_name data_curator_type", **texts("data_curator_name data_curator_type")
    ),
}
BASIC = mapping(
    "name data_curators description intended_use data_product_type data_product_region "
    "publication_date",
    **texts("name description intended_use data_product_region"),
    data_curators=CURATORS,
    data_product_type=one_of(
        "Summary statistics",
        "Machine learning model",
        "Dataset",
        "Synthetic data",
        "Interactive API",
        "SQL queries",
    ),
    publication_date={"type": "string", "format": "date", "pattern": r"^\d{4}-\d\d-\d\d$"},
    data_product_sector=one_of(
        "Technology", "Healthcare", "Education", "Government", "Energy", "Finance"
    ),
)
VARIANT = mapping(
    "variant_name",
    variant_name=one_of("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
    **texts("data_domain unprotected_quantities"),
)
LOSS = mapping(
    "privacy_unit privacy_parameters",
    **texts("privacy_unit privacy_unit_details privacy_parameters_details"),
    privacy_parameters=mapping(
        "",
        epsilon={"type": "number", "exclusiveMinimum": 0},
        delta={"type": "number", "exclusiveMinimum": 0},
        rho={"type": "number", "exclusiveMinimum": 0},
    ),
)
MODEL = mapping(
    "model_name",
    model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
    release_type=one_of("One release", "Many releases"),
    data_source_type=one_of("Static", "Dynamic"),
    access_type=one_of("Interactive", "Non-interactive"),
    **texts(
        "model_name_details actors release_type_details data_source_type_details "
        "access_type_details"
    ),
)
ADMINISTRATIVE = mapping(
    "registry_authors",
    **texts("sources notes"),
    registry_authors={"type": "array", "items": TEXT, "minItems": 1},
)
DEPLOYMENT = mapping(
    "basic",
    basic=BASIC,
    dp_variant=VARIANT,
    privacy_loss=LOSS,
    deployment_model=MODEL,
    accounting=mapping("", **texts("post_processing composition")),
    implementation=mapping(
        "", **texts("preprocessing_and_hyperparameter_tuning mechanisms justification")
    ),
    administrative=ADMINISTRATIVE,
)
REGISTRY = mapping(
    "url_slug status tier deployment",
    url_slug={"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
    status=one_of("Converted", "Draft", "Pending", "Changes Required", "Approved"),
    tier=one_of(1, 2, 3),
    deployment=DEPLOYMENT,
)


HEAD = """\
dataset: {id: town}
privacy: {unit: row, delta: 1e-9}
budget: {epsilon: 4, delta: 1e-9}
other: drop
domain:
  sex: {values: [F, M]}
  region: {values: [N, S, W]}
  hours: {range: [0, 5]}
  income: {bins: [0, 10, 20, 40, 80, 160]}
workload:
  - {name: people, product: {sex: identity, region: identity}}
  - {name: all, product: {region: identity}}
  - {name: hours, sum: {of: hours, by: {sex: identity}}}
  - {name: incomes, product: {sex: identity, income: prefix}}
  - {name: worked, product: {sex: identity, hours: identity}}
derived:
"""
DERIVED_ITEMS = """\
  - {name: shares, share: {of: people, within: [region]}}
  - {name: part, ratio: {of: people, to: all}}
  - {name: mean, mean: {sum: hours}}
  - {name: gap, difference: {of: people, between: {sex: [M, F]}}}
  - {name: medians, quantiles: {of: incomes, over: income, at: quartiles}}
  - {name: middle, quantiles: {of: worked, over: hours, at: [0.3, 0.5]}}
"""
SHAPE = (2, 3, 6, 5)


def town(records, seed=5):
    """Counts of made-up records over all cells, with every statistic depending on the group."""
    chance = public_generator(seed)
    sex, region = chance.integers(2, size=records), chance.integers(3, size=records)
    hours = chance.binomial(5, 0.3 + 0.2 * sex)
    income = np.minimum(4, chance.binomial(4, 0.3 + 0.1 * region))
    counts = np.zeros(SHAPE)
    np.add.at(counts, (sex, region, hours, income), 1)
    return counts


def strategies(noise):
    """A product of cells, and marginals."""
    weights = {(0, 1): 3, (0, 2): 2, (0, 3): 2, (1,): 1, (): 1}
    return [
        MarginalsStrategy("m", noise, SHAPE, weights),
        ProductStrategy("p", noise, tuple(Identity(n) for n in SHAPE)),
    ]


class Simulated:
    """A spec, what its derived items are made of, and a strategy."""

    def __init__(self, strategy, items=DERIVED_ITEMS):
        self.spec = parse(HEAD + items, name="town.yaml", files={})
        self.compiled, self.strategy = compile_spec(self.spec), strategy
        blocks = self.compiled.workload.blocks
        self.coefficients = self.joint = None
        self.tables = tables_of_derived(self.spec, self.compiled.classes, blocks, strategy)

    def measured(self, counts, chance, std):
        """Noisy answers of all measurements; without noise where std is 0."""
        answers = []
        for rows in self.strategy.measurements:
            beyond = tuple(i for i in range(len(SHAPE)) if i not in rows.block.attributes)
            exact = rows.weight * rows.block.apply(counts.sum(axis=beyond)).ravel()
            laplace = self.strategy.noise == "laplace"
            noise = (
                chance.laplace(scale=1 / np.sqrt(2), size=exact.size)
                if laplace
                else chance.normal(size=exact.size)
            )
            answers.append(exact + std * noise)
        return answers

    def rows(self, counts, chance, std, *, level=0.95):
        """The figures of every derived item, by name."""
        noisy = self.measured(counts, chance, std)
        joint = JointAnswers(self.tables, Measured(self.strategy, noisy, max(std, 1e-9)))
        if self.coefficients is not None:  # which are those of every release
            vars(joint)["coefficients"] = self.coefficients
        self.joint = joint
        self.coefficients = joint.coefficients if joint.has_coefficients else None
        return {
            item.name: derived_rows(item.statistic, joint, self.spec.domain, level=level)
            for item in self.spec.derived
        }


def naive(joint, item, level):
    """Intervals by the root of the sum of squares, as if answers were independent."""
    statistic, q = item.statistic, float(ndtri((1 + level) / 2))
    above, below = statistic.tables
    n, d = joint.estimate(above), joint.estimate(below)
    v, w = (joint.covariance(t, np.arange(t.size), t, np.arange(t.size)) for t in (above, below))
    if statistic.kind == "difference":
        return n - d - q * np.sqrt(v + w), n - d + q * np.sqrt(v + w)
    of_rows = rows_in(above, below)
    d, w = d[of_rows], w[of_rows]
    half = q * np.abs(n / d) * np.sqrt(v / n**2 + w / d**2)
    return n / d - half, n / d + half


def truth(counts):
    """Every statistic worked out from the counts by hand."""
    sex_region, region = counts.sum(axis=(2, 3)), counts.sum(axis=(0, 2, 3))
    by_hours, by_income = counts.sum(axis=(1, 3)), counts.sum(axis=(1, 2))
    edges = np.array([0, 10, 20, 40, 80, 160.0])
    medians, middle = [], []
    for group in by_income:
        below = np.concatenate([[0], np.cumsum(group)])
        medians += [np.interp(p * below[-1], below, edges) for p in (0.25, 0.5, 0.75)]
    for group in by_hours:
        below = np.cumsum(group)
        middle += [float(np.argmax(below >= p * below[-1])) for p in (0.3, 0.5)]
    return {
        "shares": (sex_region / region).ravel(),
        "part": (sex_region / region).ravel(),
        "mean": by_hours @ np.arange(6) / by_hours.sum(axis=1),
        "gap": sex_region[1] - sex_region[0],
        "medians": np.array(medians),
        "middle": np.array(middle),
    }


def columns_of(path):
    """The columns of a file of a release as arrays."""
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.schema.names}


def told_by_releases(content, drawn, *, folder, samples, epsilon):
    """Release samples by one plan, each once, and return what is told of the error of the sample.

    Args:
        content: the bytes of the plan.
        drawn: returns the columns of a sample.
        folder: where they are written.
        samples: how many.
        epsilon: of every release.

    Returns:
        By item (samples, 6, m), the last two not of derived items: the error, both ends of the
        interval of sample and noise, the error as if nothing were said of the design, the
        estimate, and half of the interval of noise.
    """
    plan, spec = plan_and_spec(content, Path("dpquery.plan"))
    request = ReleaseRequest(Fraction(epsilon), spec.privacy.delta, "gaussian", (), 1)
    mechanism, path = linear_mechanism(plan, spec, request), folder / "sample.parquet"
    query, compiled, told = mechanism.query, mechanism.query.compiled, defaultdict(list)
    tables = tables_of_derived(spec, compiled.classes, compiled.workload.blocks, query.strategy)
    for _ in range(samples):
        pq.write_table(pa.table(drawn()), path)
        exact = tabulate(path, spec=spec, subsets=query.subsets, classes=compiled.classes)
        answers = mechanism.answers(query.noisy(exact, draft=UnstoredParts()), level=0.95)
        ways = [answers.sampling] * 2
        if isinstance(ways[1], SquareErrors):
            ways[1] = replace(ways[1], design=None)
        for item in spec.items:
            one, other = (next(replace(answers, sampling=way)(item)) for way in ways)
            std, _, low, high = one.extra
            rows = [std, low, high, other.extra[0], one.estimate, one.half_width]
            told[item.name].append(rows)
        of = answers.measured
        made = (derived_answers(spec, tables, of, level=0.95, sampling=way) for way in ways)
        for item, one, other in zip(spec.derived, *made, strict=True):
            columns = [one.rows[name] for name in ("sampling_std", "total_low", "total_high")]
            columns.append(other.rows["sampling_std"])
            told[item.name].append([column.to_numpy().astype(float) for column in columns])
    return {name: np.array(each) for name, each in told.items()}
