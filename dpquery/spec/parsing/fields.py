"""The table of fields: the spec's sections and columns.

A class is a kind of mapping and an entry in it is a field. The parser, the JSON Schema, the
comments of the starter and the reference page docs/spec.md all come from here, so that a new field
is one entry, and what the reader of that mapping makes of `given.field`.

A field is required (`Field`), a `choice` of several, `optional` (None where it is left out) or
`defaulted`. Then come its form, with the words that messages use; its default, if it has one; what
it means; and an example.
"""

from dataclasses import replace
from fractions import Fraction
from typing import get_args

from dpquery.limits import MAX_DECLARED_ROWS
from dpquery.spec.calendar import PERIOD_KINDS, PeriodKind
from dpquery.spec.columns import Boolean, Other
from dpquery.spec.numbers import THOUSANDS
from dpquery.spec.parsing.forms import (
    ByName,
    Decimal,
    Delimiter,
    Form,
    ListOf,
    PairOf,
    Period,
    Real,
    TextForm,
    Unread,
    Whole,
    Word,
    WordOr,
    YesNo,
    described_as,
    either,
    ref,
)
from dpquery.spec.parsing.item_fields import (
    LEVEL_NAME,
    NAME_LIST,
    RANGE_WORDS,
    SET_WORDS,
    SPANS,
    AboutFields,
    ConditionFields,
    DerivedFields,
    DifferenceFields,
    GeometricFields,
    ItemFields,
    KnownFields,
    MarginalFields,
    MeanFields,
    MergedRowsFields,
    PartFields,
    PersonRowsFields,
    PublishFields,
    QuantileFields,
    RangeFields,
    RateFields,
    RatioFields,
    SetFields,
    ShareFields,
    SumFields,
    SuppressFields,
    ThresholdFields,
)
from dpquery.spec.parsing.mappings import Field, Fields, choice, defaulted, optional
from dpquery.spec.spec import Accounting, Keep, Neighbours, Prefer

# fmt: off


class DateFields(Fields, what="date"):
    """Dates, counted by day, week, month, quarter or year."""

    from_ = Field(Period("the first day"),
        "The first day, or the first week, month, quarter or year; earlier dates are not counted.",
        "2013-01-01")
    to = Field(Period("the last day"), "The last day, or the last week, month, quarter or year.",
        "2013-12")
    by = defaulted(Word[PeriodKind]("a period", PERIOD_KINDS), "day",
        "The periods that are told apart. Weeks are of ISO 8601, Monday first; a period that from "
        "or to cuts holds the days between them.", "month")
    format = optional(TextForm("a format of dates"),
        "How dates are written in the file, in %Y %y %m %b %B %d %H %I %M %S %p; unless given "
        "2013-01-31, perhaps with a time behind it. Zones of time do not count.", '"%d.%m.%Y"')


class NumberFields(Fields, what="number"):
    """How texts write numbers: separators of thousands, the decimal mark, a sign of percent."""

    thousands = optional(Word("what stands between thousands", tuple(THOUSANDS)),
        "What stands between groups of three digits; `space` is one of any width.", "'.'")
    decimal = optional(Word("a decimal mark", (".", ",")),
        "What stands before decimals; what `file` says unless given.", "','")
    sign = optional(TextForm("a sign"),
        "What may stand before or behind the number; 12 % is the number 12.", "'%'")


IDENTIFIER = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
ROWS = r"\s*(about\s+)?([0-9]{1,18})\s*"
NEIGHBOURS: tuple[Neighbours, ...] = get_args(Neighbours)
KEEP: tuple[Keep, ...] = get_args(Keep)
PREFERENCES: tuple[Prefer, ...] = get_args(Prefer)
ACCOUNTINGS: tuple[Accounting, ...] = get_args(Accounting)

DELIMITERS = (",", ";", "tab", "|")
ENCODINGS = ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252")

# Forms that several fields share.

_ID = TextForm("the dataset's id", IDENTIFIER, types=("string", "number"),
    instead="; use letters, digits, dots, - and _, at most 100")
# The limits keep the charges of the ledger exact and countable.
_EPSILON = Decimal("epsilon", low=Fraction(1, 10**6), high=10**6)
_RHO = replace(_EPSILON, what="rho")
_DELTA = Decimal("delta", low=0, below=1, smallest=Fraction(1, 10**100))
_LEAST_WEIGHT = Fraction(1, 10**9)  # errors of far less could not be written down
_FILE_OF_VALUES = TextForm("the name of a file of values", types=("string",))
_HIERARCHY_FILE = TextForm("the name of a file of a hierarchy", types=("string",))
_TEXT = TextForm("a text")
EDGE = Real("an edge", instead="; write all edges in one list, such as [0, 1000, 5000]")
EDGES = ListOf("the edges of bins", Unread(EDGE.schema))
LEVEL_LIST = ListOf("levels", LEVEL_NAME, unique=True)
_LEVELS = ListOf("levels", either(LEVEL_NAME, LEVEL_LIST))
COMBINATION = ByName("a combination of values, attributes with conditions", ref("condition"),
    least=1, empty="no condition is given; name at least one attribute")


class BudgetFields(Fields, what="budget", choice="the budget"):
    """A cap on releases: epsilon, epsilon and delta, or rho."""

    epsilon = choice(_EPSILON, "The cap on all releases together; a release names its share.", "4")
    rho = choice(_RHO, "The same in zero-concentrated terms, without delta.", "0.5")
    delta = defaulted(_DELTA, Fraction(0),
        "Goes with epsilon: with it, Gaussian noise can be paid.", "1e-9",
    ).without("rho", "a budget in rho has no delta; leave it out")
    accounting = optional(Word("what losses are added up as", ACCOUNTINGS),
        "What losses are added up as: gdp needs the least Gaussian noise, zcdp is what RAP needs, "
        "pure is epsilon alone. If left out, the first plan or discovery decides.",
        "zcdp",
    ).without("rho", "a budget in rho adds up rho; leave `accounting` out")
    discover = defaulted(_DELTA, Fraction(0),
        "The part of delta that `dpquery discover` may spend; releases keep to the rest.", "1e-10",
    ).without("rho", "a budget in rho has no delta to discover values with; leave `discover` out")


class ParentFields(Fields, what="parent"):
    """What a dataset shares with others: the same people."""

    id = Field(replace(_ID, what="the parent's id"),
        "Names what these datasets have in common.", "my-panel")
    budget = Field(BudgetFields,
        "The cap on all releases of all datasets that name this parent.", "{epsilon: 8}")


class DatasetFields(Fields, what="dataset"):
    """The people that the file is about, by declared names."""

    id = Field(_ID, "Names the people in the data: all their releases share one budget.", "survey")
    version = defaulted(replace(_ID, what="the dataset's version"), "1",
        "Which file of them; a new version does not renew the budget.", "2")
    rows = optional(TextForm("the dataset's rows, such as about 50000", ROWS,
            types=("string", "integer")),
        "How many records the file has, publicly known: lets plan say what tables are worth. "
        "Exact only with unit row and neighbours replace, and where no column drops records.",
        "about 50000")
    parent = optional(ParentFields,
        "The same people are in other datasets: a second cap, on the releases of all that name "
        "this parent.", "{id: my-panel, budget: {epsilon: 8, delta: 1e-9}}")


class UnitFields(Fields, what="unit"):
    """All rows of one person."""

    person = Field(TextForm("the column that tells persons apart"),
        "The column whose value tells persons apart; in no table.", "person_id")
    max_rows = Field(Whole("the most rows of one person", low=1, high=10**9),
        "At most this many rows of each person are counted, chosen at random where there are more.",
        "3")
    keep = defaulted(Word("which rows of a person are counted", KEEP), KEEP[0],
        "Which rows of a person with more than max_rows are counted: any, at random, or the first "
        "in the order of the data, which loses what stands last in a sorted file.", "first")


class StrataFields(Fields, what="strata"):
    """Values of an attribute from which fixed numbers of records were drawn."""

    of = Field(TextForm("the attribute of strata"),
        "The attribute; ask for tables by it too.", "region")
    rows = Field(ByName("the rows of strata", Whole("the number of records drawn", low=2,
            high=MAX_DECLARED_ROWS,
            instead="; join a smaller stratum to another one, or leave `strata` out"),
            key="value", example="rows: {north: 1200, south: 800}"),
        "How many from each, publicly known: those in the file.", "{north: 1200, south: 800}")


class ClusterFields(Fields, what="clusters"):
    """Values of an attribute that tell the clusters of a sample apart."""

    of = Field(TextForm("the attribute of clusters"),
        "The attribute: every declared value is a cluster, of each stratum. Ask for tables by both "
        "too.", "psu")
    within = optional(TextForm("the attribute of strata"),
        "That of the strata from which clusters were drawn; all are one unless given.", "stratum")


class ReplicateFields(Fields, what="replicates"):
    """Columns of replicate weights, which tell the sample's error."""

    first = Field(TextForm("the first column of replicate weights"),
        "The first column; the others end in the next numbers.",
        "pwgtp1")
    count = Field(Whole("the number of replicate weights", low=2, high=1000),
        "How many there are.", "80")
    factor = Field(Decimal("the factor of replicate weights", above=0, high=1000),
        "What squared differences are multiplied by: 0.05 in the ACS, 1 / count in BRR and the "
        "bootstrap, (n - 1) / n in a jackknife of n clusters a stratum.", "0.05")
    at_most = Field(Decimal("the longest differences", low=_LEAST_WEIGHT, high=10**9),
        "The longest that a record's differences are, the root of their sum of squares, in whole "
        "steps: some √2 times its weight in a jackknife, √count in BRR. Noise grows with it.",
        "900")
    degrees = optional(Whole("degrees of freedom", low=1, high=10**6),
        "Degrees of freedom, clusters less strata; count - 1 unless given.", "40")


class WeightFields(Fields, what="weight"):
    """What a record counts as: a number in a column, cut off at the top and put on a grid."""

    column = Field(TextForm("the column of weights"),
        "The column whose number a record counts as; in no table. What is no number, or below "
        "half a step, counts as 0.", "wt")
    at_most = Field(Decimal("the largest weight", low=_LEAST_WEIGHT, high=10**9),
        "What a larger weight counts as; noise grows with it in proportion.", "500")
    step = defaulted(Decimal("the step of weights", low=_LEAST_WEIGHT, high=10**9),
        Fraction(1),
        "Weights are rounded to the nearest multiple of this, so that sums are exact; at_most is "
        "one.", "0.1")
    total = optional(Whole("what all weights add up to", low=1, high=MAX_DECLARED_ROWS),
        "About what the weights of all records add up to under at_most, publicly known: lets plan "
        "say what tables are worth.", "38000000").with_("design_effect")
    effective = optional(Whole("the effective number of records", low=1, high=MAX_DECLARED_ROWS),
        "The effective sample size by weights under at_most, publicly known: plan compares noise "
        "with the sample's error; with `total` it decides where that is told.",
        "1200").with_("design_effect")
    design_effect = optional(Decimal("a design effect", above=0, high=1000),
        "Squared weights are measured too, for a tenth of the budget: answers have the error of "
        "the sample. Its variance is that of Poisson sampling, times this for strata and "
        "clusters.", "1.4").with_("inclusion", "strata", "clusters")
    inclusion = defaulted(YesNo("whether weights are one over the chance to be drawn"), False,
        "Whether a weight is one over the record's chance to be drawn, 1 or more, so that what was "
        "sure to be drawn adds nothing to the error of the sample.", "true")
    strata = optional(StrataFields,
        "The strata of the sample; `design_effect` is then that of clusters alone.",
        "{of: region, rows: {north: 1200, south: 800}}")
    clusters = optional(ClusterFields,
        "The clusters of the sample, whose totals tell its error; `design_effect` is for where "
        "they are not measured.", "{of: psu, within: stratum}").without("strata",
        "clusters make all of the error; leave `strata` out, and name them under `within`")
    replicates = optional(ReplicateFields,
        "Replicate weights, in place of `design_effect`.",
        "{first: pwgtp1, count: 80, factor: 0.05, at_most: 900}").without("design_effect",
        "replicate weights make all of the error; leave out `design_effect`, `inclusion`, `strata` "
        "and `clusters`")


class PrivacyFields(Fields, what="privacy"):
    """Whom the release protects, and how."""

    unit = Field(WordOr(
            Word("the unit: row, or {person: column, max_rows: n}", ("row",)), UnitFields),
        "What is protected: row, where one row is one person, or all rows of a person.",
        "{person: person_id, max_rows: 3}")
    neighbours = defaulted(Word("a kind of neighbours", NEIGHBOURS), NEIGHBOURS[0],
        "How a unit is hidden: by adding or removing it, or with replace, which keeps the number "
        "of rows public and needs mostly 1.4 times the noise, at most twice.", "replace")
    delta = defaulted(_DELTA, Fraction(0),
        "Chance that the guarantee fails: well below 1 / rows. 0 allows Laplace noise only.",
        "1e-9")
    weight = optional(WeightFields,
        "What a record counts as, for samples whose records have weights; 1 unless given.",
        "{column: wt, at_most: 500, step: 0.1}")


class FileFields(Fields, what="file"):
    """How text files write their records: never guessed. Typed sources have types of their own."""

    delimiter = defaulted(Delimiter("a delimiter", DELIMITERS), ",",
        "What stands between two fields: comma, semicolon, tab or pipe.", "';'")
    encoding = defaulted(Word("an encoding", ENCODINGS), ENCODINGS[0],
        "How letters are written as bytes; utf-16 stands for a file with a byte order mark.",
        "latin-1")
    decimal = defaulted(Word("a decimal mark", (".", ",")), ".",
        "What stands before a number's decimals, in text.", "','")
    quote = defaulted(Word("a quote", ('"', "'", "none")), '"',
        "The mark around fields that hold a delimiter, doubled inside them.", "none")
    newlines_in_quotes = defaulted(YesNo("whether quotes hold line feeds"), False,
        "Whether a quoted field may go on in the next line: the quotes of the whole file must then "
        "pair up. Otherwise a record is one line.", "true")


_OTHER = Word[Other]("what to do with other values", get_args(Other), renamed=(("bin", "show"),))


class BooleanFields(Fields, what="boolean"):
    """Yes or no, with the texts that mean them; case does not count."""

    true = defaulted(ListOf("texts for true", _TEXT), Boolean().true, "Texts for yes.", "[D]")
    false = defaulted(ListOf("texts for false", _TEXT), Boolean().false, "Texts for no.", "[N, '']")


class CodeFields(Fields, what="a value"):
    """What goes with a code under `values`."""

    label = optional(TextForm("a label"), "What the release shows for it; the code unless given.",
        "North")
    texts = defaulted(ListOf("the other texts of a value", ref("listed_value")), (),
        "Other texts that stand for the same value in the file.", "[N, north]")


class ValuesFileFields(Fields, what="values_file"):
    """A file of values, by its name alone or with what separates its fields."""

    name = Field(_FILE_OF_VALUES, "The name of the file, beside the spec.", "counties.csv")
    delimiter = Field(Delimiter("a delimiter", DELIMITERS),
        "What stands between code and label: comma, semicolon, tab or pipe.", "';'")


class ColumnFields(Fields):
    """What a column may hold: the word `boolean`, or a mapping."""

    range = choice(PairOf("the range [lowest, highest]",
            Whole("the lowest value"), Whole("the highest value")),
        "Whole numbers, both ends included.", "[0, 114]")
    values = choice(either(ListOf("values", ref("listed_value"), unique=True),
            ByName("values", either(_TEXT, ListOf("texts", ref("listed_value")), CodeFields),
                least=1, key="code")),
        "Texts as they stand in the file: a list, code: label shown, or label: [texts]. Numbers "
        "match by value: 1, 1.0, 01.", "{1: North, 2: East, no answer: ['', iap]}")
    values_file = choice(WordOr(_FILE_OF_VALUES, ValuesFileFields),
        "A UTF-8 file beside the spec: a value a line, or code,label; a first line that says so is "
        "a header. With another delimiter: {name: counties.csv, delimiter: ';'}.", "counties.txt")
    bins = choice(Unread(replace(EDGES, least=2).schema),
        "Edges, strictly rising: from each edge up to below the next.", "[0, 10000, 50000]")
    boolean = choice(BooleanFields,
        "Yes or no in your own texts; the word boolean: yes/no, true/false, y/n, t/f or 1/0.",
        "{'true': [D], 'false': [N, '']}")
    date = choice(DateFields, "Dates, by day, week, month, quarter or year.",
        "{from: 2013-01-01, to: 2013-12-31, by: month}")
    number = optional(NumberFields,
        "How the texts of a range or of bins write numbers, where it is with separators of "
        "thousands or with signs: 1.234 is 1234 under {thousands: '.', decimal: ','}.",
        "{thousands: '.', decimal: ','}")
    other = optional(_OTHER,
        "What happens to any other text, if not what the spec's `other` says.", "show")


class _AttributeAlone(Fields):
    hierarchy = choice(WordOr(_HIERARCHY_FILE, ValuesFileFields),
        "A UTF-8 file beside the spec: a value a line with the groups that it lies in, such as a "
        "tract, its county and its state. Its first line names the columns.", "areas.csv")
    levels = optional(_LEVELS,
        "The columns of that file that are levels, the values themselves last; `level_label` has "
        "labels. Where some do not nest, several lists: [[state, tract], [metro, tract]].",
        "[state, county, tract]").with_("hierarchy")
    column = optional(TextForm("a column's header"),
        "The header in the file, where it is not the attribute's name.", "income_eur")


class AttributeFields(ColumnFields, _AttributeAlone):
    """What the column of an attribute may hold: the word `boolean`, or a mapping."""


class MergedFields(Fields):
    """Several columns as one attribute."""

    merge = Field(Unread(ByName("columns", ref("column"), least=2, key="header").schema),
        "Several columns as one attribute with all their combinations; `other` goes with each.",
        "{white: boolean, black: boolean}")


class SpecFields(Fields, what="the spec"):
    """What may be published about a file, and at what price in privacy."""

    dataset = Field(DatasetFields, "The people that the file is about.", "{id: survey}")
    privacy = Field(PrivacyFields, "Whom the release protects, and how.", "{unit: row}")
    budget = Field(BudgetFields, "The cap on all releases of the dataset.", "{epsilon: 4}")
    file = optional(FileFields,
        "How text files write their records; commas and UTF-8 unless given.",
        "{delimiter: ';', encoding: latin-1, decimal: ','}")
    domain = Field(ByName("the domain, attribute names with what they may hold", ref("attribute"),
            least=1, empty="the domain is empty; declare at least one attribute"),
        "The attributes and all values that they may hold; public knowledge, never read from the "
        "data.", "{age: {range: [0, 114]}, employed: boolean}")
    other = defaulted(_OTHER, "count",
        "What happens to a text that is not declared: count it in totals and sums over its "
        "attribute, show it as one more value, other, or drop the record from all tables.", "count")
    about = optional(AboutFields,
        "What readers of the release are told: `dpquery package` prints it. It changes no plan, no "
        "number and no key.", "{title: Persons of Sampleland, contact: info@stats.example}")
    workload = Field(ListOf("the workload", ref("item")),
        "The tables to publish. Attributes that an item does not name are summed over.",
        "[{name: ages, product: {age: identity}}]")
    impossible = defaulted(ListOf("combinations of values", Unread(COMBINATION.schema)), (),
        "What no record can be, by public knowledge: answers that count only such records are 0, "
        "others have smaller errors. A record that is it after all is protected as any other.",
        "[{age: {between: [0, 14]}, employed: yes}]")
    prefer = defaulted(Word("what readers are to have", PREFERENCES), PREFERENCES[0],
        "unbiased: estimates. closest: plan also simulates guesses that may be biased, and release "
        "gives the ones with the smallest error: a column, or adaptive measurement. Needs `rows`.",
        "closest")
    publish = optional(PublishFields,
        "Adds columns `published` and `suppressed` beside the estimates of every item, which stay "
        "as they are.", "{suppress: {rel_error: 0.3, below: 10}, round_to: 5}")
    derived = defaulted(ListOf("derived items", ref("derived_item")), (),
        "Statistics made of the noisy answers: shares, means, differences, quantiles, rates. They "
        "cost no budget, change no plan, and can be added by `dpquery answer`.",
        "[{name: share_of_sexes, share: {of: sexes}}]")


_NOT_NEEDED = "Not needed; where it is given, it must say what the release was made under."


class QuestionFields(Fields, what="a file of questions"):
    """Questions asked later of a release: a workload over the release's domain."""

    workload = defaulted(SpecFields.workload.form, (),
        "The tables to publish; may be left out where `derived` is given, and is then the items "
        "of the release that those are made of.", "[{name: ages, product: {age: identity}}]")
    publish = SpecFields.publish
    derived = SpecFields.derived
    dataset = optional(DatasetFields, _NOT_NEEDED, "{id: survey}")
    privacy = optional(PrivacyFields, _NOT_NEEDED, "{unit: row}")
    budget = optional(BudgetFields, _NOT_NEEDED, "{epsilon: 4}")
    file = optional(FileFields, _NOT_NEEDED, "{delimiter: ';'}")
    about = optional(AboutFields, "Not needed; the release has its own words.",
        "{title: Persons of Sampleland}")
    domain = optional(SpecFields.domain.form, _NOT_NEEDED, "{age: {range: [0, 114]}}")
    other = defaulted(_OTHER, "count", _NOT_NEEDED, "count")


# Forms that hang on the attribute, or hold each other.

_BOOLEAN = Word("a kind of column", ("boolean",))
_VALUES = (ref("value"), ref("span"))
_COLUMNS = ByName("conditions on columns", either(*_VALUES), least=1, key="column")


def _described(form: Form[object], about: str) -> Unread:
    return Unread(lambda: described_as(form.schema(), about))


def _said(words: dict[str, str]) -> str:
    return " ".join(f"{word}: {about}." for word, about in words.items())


DEFINITIONS: dict[str, Form[object]] = {
    "value": _described(TextForm("a value"), "A declared value or its label; yes or no; `other`."),
    "name": TextForm("a name"),
    "listed_value": TextForm("a value", types=("string", "number", "boolean", "null")),
    "names": NAME_LIST,
    "span": PairOf("a range [first, last]", ref("value"), ref("value")),
    "merged_value": _described(
        replace(_COLUMNS, item=either(*_VALUES, _COLUMNS), key="column, or `any`"),
        "Conditions on merged columns, all of which must hold; under `any`, at least one."),
    "level_value": _described(
        ByName("a group of a hierarchy", ref("value"), least=1, key="level"),
        "A group of a hierarchy, by its code or label: {state: 48}. It stands where a value may."),
    "entry": either(*_VALUES, ref("merged_value"), ref("level_value"),
        about="A value, a range [first, last], conditions on merged columns, or a group of a "
        "hierarchy."),
    "condition": either(ref("value"), ref("level_value"), ConditionFields,
        about="A value, or {is: value}, {in: [...]}, {between: [first, last]}."),
    "one_set": either(Word("a set", tuple(SET_WORDS)), LEVEL_NAME, SetFields,
        about=_said(SET_WORDS) + " A level of a hierarchy: every group of it."),
    "set": either(ref("one_set"), ListOf("sets", ref("one_set")),
        about="A predicate set, or several, one after another."),
    "ranges": either(Word("ranges", tuple(RANGE_WORDS)), RangeFields, SPANS,
        about=_said(RANGE_WORDS)),
    "column": either(_BOOLEAN, ColumnFields, about="What a column may hold."),
    "attribute": either(_BOOLEAN, AttributeFields, MergedFields,
        about="What a column may hold, or several columns merged."),
    "part": PartFields,
    "item": ItemFields,
    "derived_item": DerivedFields,
}
# fmt: on

# What the reference page and the starter call each kind of mapping, in the page's order.
MAPPINGS: dict[str, type[Fields]] = {
    "spec": SpecFields,
    "dataset": DatasetFields,
    "parent": ParentFields,
    "privacy": PrivacyFields,
    "unit": UnitFields,
    "weight": WeightFields,
    "strata": StrataFields,
    "clusters": ClusterFields,
    "replicates": ReplicateFields,
    "budget": BudgetFields,
    "file": FileFields,
    "about": AboutFields,
    "column": AttributeFields,
    "code": CodeFields,
    "values_file": ValuesFileFields,
    "date": DateFields,
    "number": NumberFields,
    "boolean": BooleanFields,
    "merge": MergedFields,
    "item": ItemFields,
    "publish": PublishFields,
    "suppress": SuppressFields,
    "known": KnownFields,
    "set": SetFields,
    "marginals": MarginalFields,
    "ranges": RangeFields,
    "threshold": ThresholdFields,
    "sum": SumFields,
    "rows_per_person": PersonRowsFields,
    "distribution": GeometricFields,
    "derived_item": DerivedFields,
    "share": ShareFields,
    "ratio": RatioFields,
    "mean": MeanFields,
    "difference": DifferenceFields,
    "rate": RateFields,
    "quantiles": QuantileFields,
    "merged": MergedRowsFields,
    "questions": QuestionFields,
}
# Words that may stand for some of them.
WORDS = {"set": SET_WORDS, "ranges": RANGE_WORDS}
