"""The table of fields: every key that a spec may have, what it holds and what it means.

A class is a kind of mapping and a line in it is a field. The parser, the JSON Schema, the comments
of the starter and the reference page docs/spec.md all come from here, so that a new field is one
line, and what is then made of `given.field` in the reader of that mapping.

A field is `required`, `one_of` several, `optional` (None where it is left out) or `defaulted`; then
come its form, its default, what it is, and an example.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Literal, get_args

from dpquery.spec.domain import Boolean
from dpquery.spec.model import Neighbours
from dpquery.spec.parsing.forms import (
    AnyOf,
    ByName,
    Decimal,
    Form,
    Later,
    Limits,
    ListOf,
    Pair,
    Real,
    Ref,
    Scalar,
    Text,
    Whole,
    Word,
    WordOr,
)
from dpquery.spec.parsing.mappings import Fields, defaulted, one_of, optional, required

IDENTIFIER = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
ROWS = r"\s*(about\s+)?([0-9]{1,18})\s*"
NAME = r"[a-z0-9_][a-z0-9_-]{0,99}"  # becomes a file name
NEIGHBOURS: tuple[Neighbours, ...] = get_args(Neighbours)
RESERVED = ("errors", "measurements", "relaxed_rows")  # a release has files of these names
DEFAULT_P = Fraction(1, 4)  # of `geometric`, as [RAP] has it

Other = Literal["bin", "drop"]
Distribution = Literal["uniform", "zipf", "geometric"]

SET_WORDS = {
    "identity": "every value",
    "total": "all values together",
    "prefix": "up to each value",
    "all-ranges": "from any value to any other",
    "identity+total": "every value, and all together",
}
RANGE_WORDS = {"all": "every range", "prefix": "up to each value"}


def _identifier(what: str) -> Text:
    letters = "use letters, digits, dots, - and _, at most 100"
    refusal = f"{{given}} cannot be {{what}}; {letters}"
    return Text(what, IDENTIFIER, refusal=refusal, shape="letters, digits, `.`, `-`, `_`")


def _amount(name: str) -> Decimal:
    # The limits keep the charges of the ledger exact and countable.
    limits = Limits(low=Fraction(1, 10**6), high=10**6)
    return Decimal(name, limits, f"{name} is {{given}}; expected a number from 1e-6 to 1e6")


_DELTA = Decimal(
    "delta",
    Limits(low=0, below=1, smallest=Fraction(1, 10**100)),
    "delta is {given}; expected 0, or from 1e-100 to below 1, such as 1e-9",
)

# ------------------------------------------------------------------------------ values


TEXT = Text("a text")
EDGE = Real("an edge")
EDGES = ListOf("the edges of bins", Later(EDGE))
_SPAN = Pair("a range [first, last]", Ref("value"), Ref("value"))
_ENTRIES = Later(ListOf("values", Ref("entry")))
NAMES = ListOf("names of attributes", Ref("name"), least=0, unique=True)
SPANS = ListOf("ranges [first, last]", Ref("span"))
_WIDTH = Whole("the width", Limits(low=1))
_SET = Ref("set")

# ---------------------------------------------------------- dataset, budget and privacy


class BudgetFields(Fields, what="budget", choice="the budget"):
    """A cap on all releases together: pure epsilon, epsilon and delta, or rho."""

    epsilon = one_of(_amount("epsilon"), "The most that all releases together may spend.", "4")
    rho = one_of(_amount("rho"), "The same in zero-concentrated terms, without delta.", "0.5")
    delta = defaulted(
        _DELTA,
        Fraction(0),
        "Goes with epsilon: with it, Gaussian noise can be paid.",
        "1e-9",
        not_with=("rho", "a budget in rho has no delta; leave it out"),
    )


class ParentFields(Fields, what="parent"):
    """Whose people the dataset's are among."""

    id = required(
        _identifier("the parent's id"), "Names what these datasets have in common.", "my-panel"
    )
    budget = required(
        BudgetFields,
        "The cap on all releases of all datasets that name this parent.",
        "{epsilon: 8, delta: 1e-9}",
    )


class DatasetFields(Fields, what="dataset"):
    """The people that the file is about, by declared names."""

    id = required(
        _identifier("the dataset's id"),
        "Names the people in the data: all their releases share one budget.",
        "my-survey",
    )
    version = defaulted(
        _identifier("the dataset's version"),
        "1",
        "Which file of them; a new version does not renew the budget.",
        "1",
    )
    rows = optional(
        Text(
            "the dataset's rows, such as about 50000",
            ROWS,
            refusal="expected {what}, found {given}",
            number="integer",
            shape="`about 50000`, or `50000`",
        ),
        "How many records, from public knowledge: lets plan rehearse mechanisms that depend on it. "
        "An exact number only with unit row and neighbours replace, which leave it public.",
        "about 50000",
    )
    parent = optional(
        ParentFields,
        "If the same people are in other datasets: a second cap, on the releases of all datasets "
        "that name this parent.",
        "{id: my-panel, budget: {epsilon: 8, delta: 1e-9}}",
    )


class UnitFields(Fields, what="unit"):
    """All rows of one person."""

    person = required(
        Text("the column that tells persons apart"),
        "The column whose value tells persons apart; in no table.",
        "person_id",
    )
    max_rows = required(
        Whole(
            "the most rows of one person",
            Limits(low=1, high=10**9),
            "max_rows is {value}; expected 1 to 1,000,000,000 rows of one person",
        ),
        "At most this many rows of a person are counted.",
        "3",
    )


class PrivacyFields(Fields, what="privacy"):
    """Whom the release protects, and how."""

    unit = required(
        WordOr(
            Word("the protected unit, row or {person: column, max_rows: n}", ("row",)), UnitFields
        ),
        "What is protected: row where one row is one person. If a person may have several rows: "
        "{person: person_id, max_rows: 3}.",
        "row",
    )
    neighbours = defaulted(
        Word("a kind of neighbours", NEIGHBOURS),
        NEIGHBOURS[0],
        "How one person is hidden: by adding or removing them, or with replace, which keeps the "
        "number of rows public and costs double.",
        "add-remove",
    )
    delta = defaulted(
        _DELTA,
        Fraction(0),
        "Chance that the guarantee fails: well below 1 / rows. 0 allows Laplace noise only.",
        "1e-9",
    )


# ------------------------------------------------------------------------------ domain


class BooleanFields(Fields, what="boolean"):
    """Texts that mean yes and no; case does not count."""

    true = defaulted(ListOf("texts for true", TEXT), Boolean().true, "Texts that mean yes.", "[D]")
    false = defaulted(
        ListOf("texts for false", TEXT), Boolean().false, "Texts that mean no.", '[N, ""]'
    )


class ColumnFields(Fields):
    """What a column of the file may hold."""

    range = one_of(
        Pair("the range [lowest, highest]", Whole("the lowest value"), Whole("the highest value")),
        "Whole numbers, both ends included.",
        "[0, 114]",
    )
    values = one_of(
        AnyOf(
            (
                ListOf("values", Ref("listed_value"), unique=True),
                ByName("values", TEXT, key="text", least=1),
            )
        ),
        "Texts as they stand in the file: a list, or text: label shown.",
        "{1: North, 2: East}",
    )
    values_file = one_of(
        Text("the name of a file of values"),
        "A file beside this one with a value a line, or value,label.",
        "counties.txt",
    )
    bins = one_of(
        Later(replace(EDGES, least=2)),
        "Edges, strictly rising: a bin goes from each edge up to below the next.",
        "[0, 10000, 20000, 50000]",
    )
    boolean = one_of(
        BooleanFields, "Yes or no, with your own texts for them.", '{true: [D], false: [N, ""]}'
    )
    other = defaulted(
        Word[Other]("what to do with other values", ("bin", "drop")),
        "drop",
        "What any other text does: fill a bin of its own, or drop the row from all tables.",
        "bin",
    )


class HeaderFields(Fields):
    """The name of a column in the file."""

    column = optional(
        Text("a column's header"),
        "The header in the file, where it is not the attribute's name.",
        "income_eur",
        unless_given="the attribute's name",
    )


class AttributeFields(ColumnFields, HeaderFields):
    """What the one column of an attribute may hold, `boolean` or one of these."""


class MergedFields(Fields):
    """Several columns as one attribute, with all their combinations."""

    merge = required(
        ByName("the columns of a merged attribute", Ref("column"), key="header", least=2),
        "The columns, each with what it may hold; `other: bin` goes with each column.",
        "{white: boolean, black: boolean}",
    )


# ------------------------------------------------------- predicate sets and conditions


class ConditionFields(Fields):
    """What a record must meet."""

    is_ = one_of(AnyOf((Ref("value"), Ref("merged_value"))), "One value.", "North")
    in_ = one_of(_ENTRIES, "Any of these values and ranges.", "[North, South]")
    between = one_of(
        Later(_SPAN), "From the first value to the last; edges where it is bins.", "[18, 64]"
    )


class SetFields(ConditionFields):
    """Queries about one attribute."""

    width = one_of(_WIDTH, "Every window of so many values.", "5")
    ranges = one_of(SPANS, "Ranges, a query each; they may overlap.", "[[0, 17], [18, 64]]")
    groups = one_of(
        ByName(
            "groups, labels with their values",
            _ENTRIES,
            key="label",
            least=1,
            empty="no group is given; write {groups: {label: [values]}}",
        ),
        "Label: values, a query each.",
        "{inland: [East, South], coast: [North, West]}",
    )


class RangeFields(Fields):
    """Windows of values."""

    width = required(_WIDTH, "Every window of so many values.", "5")


# ------------------------------------------------------------------------------ workload


class MarginalFields(Fields, what="marginals"):
    """Tables over subsets of attributes."""

    ways = one_of(
        Whole("the number of attributes in a marginal", Limits(low=0)),
        "All tables over exactly this many attributes.",
        "2",
    )
    up_to = one_of(
        Whole("the number of attributes in a marginal", Limits(low=0)),
        "All tables over at most this many attributes.",
        "3",
    )
    sets = one_of(
        ListOf("lists of attributes", Ref("names")),
        "Lists of attributes, a table each; [] is the total.",
        "[[age, sex], [region], []]",
    )
    max_cells = one_of(
        Whole(
            "the most cells of a marginal",
            Limits(low=1),
            "max_cells is {value}; expected 1 or more, the cells of the total",
        ),
        "All tables with at most this many cells.",
        "5000",
    )
    over = optional(
        ListOf("the attributes to combine", Ref("name"), least=0, unique=True),
        "The attributes to combine.",
        "[age, sex, region]",
        unless_given="all",
        not_with=("sets", "`sets` names its attributes itself; leave out `over`"),
    )
    predicates = optional(
        ByName("attributes with predicate sets", _SET),
        "What to ask of an attribute other than every value.",
        "{age: prefix}",
        unless_given="identity",
    )


class GeometricFields(Fields, what="a distribution with a parameter"):
    """The chance of an attribute falls by one factor from each to the next."""

    geometric = required(
        Decimal(
            "the p of a geometric distribution",
            Limits(above=0, below=1),
            "p is {value}; expected 0 < p < 1",
        ),
        "The p of (1 - p)^rank; 1/4 where only the word is given.",
        "0.25",
    )


TARGETS = ByName("`all`, or a target for each attribute in `of`", Ref("condition"))
_LISTED = ("of", "`of` is not a sample; leave out '{name}'")
_DRAWN = ("sample", "a sample has all targets; leave out '{name}'")


class ThresholdFields(Fields, what="a threshold"):
    """Records that meet at least r targets: one list of attributes, or random sets of them."""

    r = required(
        Whole("how many of the attributes must meet their target", Limits(low=1)),
        "How many of the attributes must meet their target.",
        "2",
    )
    of = one_of(
        ListOf("the attributes to count over", Ref("name"), unique=True),
        "The attributes to count over.",
        "[age, sex, region]",
    )
    sample = one_of(
        Whole("how many sets to draw", Limits(low=1)),
        "Instead: so many random sets of attributes, a table each.",
        "16",
    )
    targets = optional(
        AnyOf((Word("the targets", ("all",)), TARGETS)),
        "A target for each attribute, a value or a condition; or all: every combination of values.",
        "{age: {between: [0, 17]}, sex: Male, region: North}",
        unless_given="`all`",
        not_with=_DRAWN,
    )
    k = optional(
        Whole("the number of attributes to count over", Limits(low=1)),
        "How many attributes each random set has.",
        "3",
        needed_with="sample",
        not_with=_LISTED,
    )
    seed = optional(
        Whole("the seed"),
        "Another seed draws other sets; it is public, and no noise has one.",
        "0",
        needed_with="sample",
        not_with=_LISTED,
    )
    over = optional(
        ListOf("the attributes to combine", Ref("name"), least=0, unique=True),
        "The attributes to draw from.",
        "[age, sex, region, income]",
        unless_given="all",
        not_with=_LISTED,
    )
    distribution = defaulted(
        WordOr(
            Word[Distribution]("a distribution over attributes", ("uniform", "zipf", "geometric")),
            GeometricFields,
        ),
        "uniform",
        "How a set's chance goes with its attributes, the first named the likeliest: the product "
        "of 1 for each, of 1/rank, or of (1 - p)^rank.",
        "zipf",
        not_with=_LISTED,
    )
    max_cells = optional(
        Whole(
            "the most cells of a table",
            Limits(low=1),
            "max_cells is {value}; expected 1 or more",
        ),
        "Sets whose table has more cells are not drawn.",
        "5000",
        not_with=_LISTED,
    )


class PartFields(Fields, what="a part of a union", choice="an item"):
    """A table or several."""

    where = defaulted(
        ByName("conditions on attributes", Ref("condition")),
        (),
        "What every record counted must meet as well.",
        "{employed: yes}",
        unless_given="everyone",
    )
    product = one_of(
        ByName("the product, attributes with predicate sets", _SET),
        "A table with a query for every combination of what it asks of each attribute.",
        "{age: prefix, sex: identity}",
    )
    marginals = one_of(
        MarginalFields, "Tables over subsets of attributes.", "{ways: 2, over: [age, sex, region]}"
    )
    ranges = one_of(
        ByName(
            "the ranges, attributes with all, prefix, {width: n} or [[first, last], ...]",
            Ref("ranges"),
            least=1,
            empty="no attribute is named; name at least one",
        ),
        "Ranges in one or more dimensions.",
        "{age: {width: 5}, income: all}",
    )
    union = one_of(
        ListOf("the parts of a union, a list of items without names", Ref("part")),
        "Several items without names, in one file.",
        "[{product: {}}, {product: {sex: identity}, where: {age: {between: [18, 114]}}}]",
    )
    any_of = one_of(
        ByName(
            "the alternatives, attributes with predicate sets",
            _SET,
            least=1,
            empty="no alternative is given; name at least one attribute",
        ),
        "Records that meet at least one of the predicates.",
        "{disabled: {is: yes}, employed: {is: no}}",
    )
    threshold = one_of(
        ThresholdFields,
        "Records that meet at least r of the targets.",
        "{r: 2, of: [disabled, employed], targets: {disabled: yes, employed: no}}",
    )


class ItemFields(PartFields, what="a workload item", choice="an item"):
    """A named item of the workload."""

    name = required(
        Text(
            "the name of the item",
            NAME,
            RESERVED,
            "{given} cannot name an item, which becomes a file; use a-z, 0-9, _ and -",
            number="integer",
            shape="letters a-z, digits, `_`, `-`",
        ),
        "Unique; the name of its file in the release.",
        "age_by_sex",
    )
    description = defaulted(
        Text("a description"),
        "",
        "What the table shows, for its readers.",
        "Single years of age by sex",
        unless_given="none",
    )
    weight = defaulted(
        Real(
            "a weight",
            Limits(above=0),
            "the weight {given} is not above 0; leave out what weighs nothing",
        ),
        1.0,
        "How much its squared error counts in the plan.",
        "2",
        unless_given="`1`",
    )


class SpecFields(Fields, what="the spec"):
    """What dpquery may publish about a file, and at what price in privacy."""

    dataset = required(DatasetFields, "The people that the file is about.", "{id: my-survey}")
    privacy = required(PrivacyFields, "Whom the release protects, and how.", "{unit: row}")
    budget = required(
        BudgetFields, "The cap on all releases together; a release names its share.", "{epsilon: 4}"
    )
    domain = required(
        ByName(
            "the domain, attribute names with what they may hold",
            Ref("attribute"),
            least=1,
            empty="the domain is empty; declare at least one attribute",
        ),
        "The attributes and all values that they may hold: public knowledge, never read from the "
        "data.",
        "{age: {range: [0, 114]}, sex: {values: [Female, Male]}}",
    )
    workload = required(
        ListOf("the workload, a list of items", Ref("item")),
        "The tables to publish. Attributes that an item does not name are summed over.",
        "[{name: ages, product: {age: identity}}]",
    )


_BESIDE = "Not needed; if it is given, it must be the release's."


class QuestionFields(Fields, what="a file of questions"):
    """Later questions about a release: a workload over the domain of the release."""

    workload = SpecFields.workload
    dataset = optional(DatasetFields, _BESIDE, "{id: my-survey}")
    privacy = optional(PrivacyFields, _BESIDE, "{unit: row}")
    budget = optional(BudgetFields, _BESIDE, "{epsilon: 4}")
    domain = optional(SpecFields.domain.form, _BESIDE, "{age: {range: [0, 114]}}")


_BOOLEAN = Word("a kind of column", ("boolean",))
_PARTS = (Ref("value"), Ref("span"))
_COLUMNS = ByName("conditions on columns", AnyOf(_PARTS), key="column", least=1)

# Forms that hang on the attribute, or hold each other.
DEFINITIONS: dict[str, Form[object]] = {
    "text": Scalar(("string", "number", "boolean")),
    "value": Scalar(("string", "number", "boolean")),
    "name": Scalar(("string", "number", "boolean")),
    "listed_value": Scalar(("string", "number", "boolean", "null")),
    "names": NAMES,
    "span": _SPAN,
    "merged_value": ByName(
        "conditions on columns", AnyOf((*_PARTS, _COLUMNS)), key="column or `any`", least=1
    ),
    "entry": AnyOf(
        (*_PARTS, Ref("merged_value")),
        "A value, a range [first, last], or conditions on merged columns.",
    ),
    "condition": AnyOf(
        (Ref("value"), ConditionFields),
        "A value, or {is: value}, {in: [...]}, {between: [first, last]}.",
    ),
    "one_set": AnyOf(
        (Word("a predicate set", tuple(SET_WORDS)), SetFields),
        " ".join(f"{word}: {about}." for word, about in SET_WORDS.items()),
    ),
    "set": AnyOf(
        (Ref("one_set"), ListOf("sets", Ref("one_set"))), "A set, or several, one after another."
    ),
    "ranges": AnyOf(
        (Word("ranges", tuple(RANGE_WORDS)), RangeFields, SPANS),
        " ".join(f"{word}: {about}." for word, about in RANGE_WORDS.items()),
    ),
    "column": AnyOf((_BOOLEAN, ColumnFields), "What a column may hold."),
    "attribute": AnyOf(
        (_BOOLEAN, AttributeFields, MergedFields), "What a column may hold, or several merged."
    ),
    "part": PartFields,
    "item": ItemFields,
}
