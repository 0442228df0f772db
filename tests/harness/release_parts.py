"""Items, answers and manifests made by hand, a town to package, and the registry."""

from datetime import date
from fractions import Fraction
from importlib.util import find_spec

import numpy as np
from town import ok

from dpquery.measurement.accounting import guarantee
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.folder.write import write_release
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
    write_release(directory, spec=spec, answers=answers, manifest=facts, replace=replace)


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
