"""The sections dataset, privacy, budget, publication and public facts, read.

Public facts: the section `impossible` of a spec, and `known` of its items.

Specs in plans of format 1, in which what is left out meant something else.

A column without `other` dropped other texts, and `bin` was `show`. The first rows of a person were
counted.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from dpquery.limits import MAX_DECLARED_ROWS, MAX_WEIGHT_STEPS, RECORD_BITS
from dpquery.spec.columns import Attribute
from dpquery.spec.numbers import power
from dpquery.spec.parsing.derived import read_row_values
from dpquery.spec.parsing.fields import (
    COMBINATION,
    BudgetFields,
    ClusterFields,
    DatasetFields,
    FileFields,
    PrivacyFields,
    ReplicateFields,
    SpecFields,
    StrataFields,
    WeightFields,
)
from dpquery.spec.parsing.forms import described
from dpquery.spec.parsing.item_fields import AboutFields, KnownFields, PublishFields
from dpquery.spec.parsing.listed_values import FileLine
from dpquery.spec.parsing.predicate_sets import Scope, column_taken, declared_codes, read_condition
from dpquery.spec.parsing.yaml_nodes import MapNode, Node, TextNode
from dpquery.spec.problems import quoted
from dpquery.spec.spec import (
    FAR_OFF,
    About,
    Budget,
    Dataset,
    Drawn,
    FileFormat,
    Impossible,
    KnownTotals,
    Parent,
    Prefer,
    Privacy,
    PublicationRules,
    RecordWeight,
    ReplicateWeights,
    Rows,
    Table,
)

PUBLICATION_COLUMNS = ("published", "suppressed")
"""The columns that rules of publication add to an item's file."""


def dataset_of(given: DatasetFields) -> Dataset:
    """Return the dataset, its rows and its parent."""
    rows = given.problems.attempt(lambda: _rows(given))
    parent = given.problems.attempt(lambda: _parent(given))
    return Dataset(given.id, given.version, rows, parent)


def _rows(given: DatasetFields) -> Rows | None:
    """Return `about 50000`, or an exact number: `counted_rows` decides whether it may be public."""
    if given.rows is None:
        return None
    count, node = int(given.rows.split()[-1]), given.node("rows")
    if not 1 <= count <= MAX_DECLARED_ROWS:
        raise node.mistake(
            f"rows is {described(node)}; expected 1 to {MAX_DECLARED_ROWS:,} records"
        )
    return Rows(count, exact=given.rows.isdecimal())


def _parent(given: DatasetFields) -> Parent | None:
    parent = given.parent
    if parent is None:
        return None
    if parent.id == given.id:
        parent.node("id").note(
            f"dataset {quoted(given.id)} cannot be its own parent; name what it shares with "
            "other datasets, or leave `parent` out"
        )
    return Parent(parent.id, budget_of(parent.budget))


def budget_of(given: BudgetFields) -> Budget:
    """Return the cap that a section sets."""
    if given.chosen == "rho":
        return Budget(rho=given.rho)
    if given.accounting in {"zcdp", "gdp"} and given.delta == 0:
        raise given.node("accounting").mistake(
            f"accounting: {given.accounting} needs a delta and the budget has none; add one, such "
            "as `delta: 1e-9`, or leave `accounting` out"
        )
    if given.discover and (given.discover >= given.delta or given.accounting == "pure"):
        raise given.node("discover").mistake(
            "discover is the part of the budget's delta that discoveries may spend; give a number "
            "below `delta`, such as a tenth of it, and no `accounting: pure`"
        )
    return Budget(given.epsilon, given.delta, None, given.accounting, given.discover)


def file_of(given: FileFields | None) -> FileFormat:
    """Return how text files write their records."""
    if given is None:
        return FileFormat()
    quote = "" if given.quote == "none" else given.quote
    if given.newlines_in_quotes and not quote:
        raise given.node("newlines_in_quotes").mistake(
            "line feeds stand in quotes and there is no quote; name it, or leave out "
            "`newlines_in_quotes`"
        )
    return FileFormat(
        given.delimiter, given.encoding, given.decimal, quote, given.newlines_in_quotes
    )


def privacy_of(given: PrivacyFields, scope: Scope) -> Privacy:
    """Return the privacy unit, its neighbours and delta, and what records count as."""
    unit, weight = given.unit, given.weight
    columns = {c.name for _, each in scope.declared.values() if each for c in each.columns}
    if not isinstance(unit, str) and unit.person in columns:
        raise unit.node("person").mistake(
            f"column {quoted(unit.person)} tells persons apart, so no table may be made of it; "
            "take it out of the domain"
        )
    counted = None if weight is None else _weight_of(weight, scope)
    privacy = Privacy(neighbours=given.neighbours, delta=given.delta, weight=counted)
    if not isinstance(unit, str):
        privacy = replace(privacy, person=unit.person, max_rows=unit.max_rows, keep=unit.keep)
    if weight is not None and weight.column in {*columns, privacy.person}:
        does = "tells persons apart" if weight.column == privacy.person else "is in the domain"
        raise weight.node("column").mistake(
            f"column {quoted(weight.column)} {does}, and records are weighed by a column of its "
            "own; name another, or write it into the data a second time"
        )
    if counted and counted.replicates and weight and weight.replicates:
        others = {*columns, privacy.person, weight.column}
        taken = [name for name in counted.replicates.names if name in others]
        if taken:
            raise weight.replicates.node("first").mistake(
                f"column {quoted(taken[0])} is a replicate weight and something else; name columns "
                "of replicate weights alone"
            )
    return privacy


def _weight_of(given: WeightFields, scope: Scope) -> RecordWeight:
    """Return what a record counts as: at most a whole number of steps."""
    steps = given.at_most / given.step
    if steps.denominator > 1 or steps > MAX_WEIGHT_STEPS:
        raise given.node("at_most").mistake(
            f"at_most is {power(float(steps))} times the step; expected a whole number, and no "
            f"more than {MAX_WEIGHT_STEPS:,}: change `at_most` or `step`"
        )
    if given.total is not None and given.total >= given.step * 2**RECORD_BITS:
        raise given.node("total").mistake(
            f"weights that add up to {given.total:,} are more steps than can be counted exactly; "
            f"give a `step` of {power(given.total / 2**35)} or more"
        )
    public = (given.total, given.effective, given.design_effect, given.inclusion)
    drawn = None
    if scope.declared:
        if given.strata is not None:
            drawn = _strata_of(given.strata, scope)
        elif given.clusters is not None:
            drawn = _clusters_of(given.clusters, scope)
    replicates = None if given.replicates is None else _replicates_of(given.replicates, given.step)
    return RecordWeight(given.column, given.at_most, given.step, *public, drawn, replicates)


def _replicates_of(given: ReplicateFields, step: Fraction) -> ReplicateWeights:
    """Return the columns of replicate weights, with a cap of whole steps."""
    steps, ends = given.at_most / step, re.fullmatch("(.*?)([0-9]{1,9})", given.first, re.DOTALL)
    if steps.denominator > 1 or steps > MAX_WEIGHT_STEPS:
        raise given.node("at_most").mistake(
            f"at_most is {power(float(steps))} times the weight's step; expected a whole number, "
            f"and no more than {MAX_WEIGHT_STEPS:,}"
        )
    if ends is None:
        raise given.node("first").mistake(
            f"{quoted(given.first)} does not end in a number; name the first column, as `pwgtp1`, "
            "and each of the others ends in the next number"
        )
    name, number = ends.groups()
    numbers = range(int(number), int(number) + given.count)
    names = tuple(f"{name}{k:0{len(number)}}" for k in numbers)
    return ReplicateWeights(names, given.factor, given.at_most, given.degrees or given.count - 1)


def _of_one_column(node: Node, scope: Scope, what: str) -> tuple[int, Attribute]:
    """Return an attribute, and its place, whose values are what the sample was drawn from."""
    place, attribute = scope.attribute(node)
    if attribute.merged:
        raise node.mistake(
            f"{quoted(attribute.name)} is made of several columns, and {what} are the values of "
            "one; name an attribute of one column"
        )
    return place, attribute


def _strata_of(given: StrataFields, scope: Scope) -> Drawn:
    """Return the strata, every declared value of their attribute with its number of records."""
    place, attribute = _of_one_column(given.node("of"), scope, "strata")
    rows = [0] * attribute.size
    for key, drawn in given.rows:
        first, last = declared_codes(key, attribute)
        if first < last or rows[first]:
            why = "stands for several values" if first < last else "has a number already"
            raise key.mistake(f"{quoted(key.text)} {why}; give each value one number of records")
        rows[first] = drawn
    missing = [code for code in range(attribute.length) if not rows[code]]
    if missing:
        raise given.node("rows").mistake(
            f"no number of records is given for {len(missing)} of {attribute.length} values of "
            f"{quoted(attribute.name)}, the first of them {quoted(attribute.label(missing[0]))}; "
            "add how many were drawn from each, or leave `strata` out"
        )
    return Drawn(place, tuple(rows))


def _clusters_of(given: ClusterFields, scope: Scope) -> Drawn:
    """Return the clusters: every declared value of an attribute, of each stratum if there are."""
    place, attribute = _of_one_column(given.node("of"), scope, "clusters")
    if attribute.length < 2:
        raise given.node("of").mistake(
            f"{quoted(attribute.name)} has one declared value, and one cluster shows no error; "
            "declare the clusters of each stratum, two or more"
        )
    if given.within is None:
        return Drawn(None, (attribute.length,), place)
    of_strata, strata = _of_one_column(given.node("within"), scope, "strata")
    if of_strata == place:
        raise given.node("within").mistake(
            f"{quoted(attribute.name)} tells the clusters apart already; name the attribute of "
            "the strata, or leave `within` out"
        )
    rows = [attribute.length] * strata.length + [0] * (strata.size - strata.length)
    return Drawn(of_strata, tuple(rows), place)


def _check_public_weights(given: WeightFields, rows: int | None) -> None:
    """Refuse public numbers of weights that cannot all be true.

    An effective sample is no larger than the sample, and no smaller than if all weights that are
    not 0 were the cap; a mean weight is no smaller than weights are; strata are all of the sample.
    """
    drawn = sum(number for _, number in given.strata.rows) if given.strata else 0
    known = rows or max(drawn, given.effective or 0)
    if given.strata and abs(drawn - known) > FAR_OFF * known:
        raise given.strata.node("rows").mistake(
            f"{drawn:,} records were drawn from all strata, and by the rest of the spec there are "
            f"{'about' if rows else 'at least'} {known:,}; give the numbers of records in the "
            "file, from the report of the survey"
        )
    if rows and given.effective and given.effective > rows:
        raise given.node("effective").mistake(
            f"an effective sample of {given.effective:,} is larger than the {rows:,} rows declared "
            "under dataset; unequal weights make it smaller: give the square of their sum over the "
            "sum of their squares"
        )
    least, most = 1.0 if given.inclusion else float(given.step), float(given.at_most)
    counted = rows or given.effective
    if given.total is None or counted is None:
        return
    fewest = given.total / float(given.at_most)
    if given.design_effect and given.effective and given.effective < fewest:
        raise given.node("effective").mistake(
            f"weights of at most {power(float(given.at_most))} that add up to {given.total:,} are "
            f"worth {math.ceil(fewest):,} records or more, and effective is {given.effective:,}; "
            "give `total` and `effective` under the cap, by unequal weights alone"
        )
    mean = given.total / counted
    if mean < least or (rows and mean > most):
        raise given.node("total").mistake(
            f"total is {given.total:,}, which is {power(mean)} for each of {counted:,} records, "
            f"and weights are {power(least)} to {power(most)} here; give what they all add up to"
        )


def counted_rows(
    given: SpecFields, dataset: Dataset, privacy: Privacy, attributes: Iterable[Attribute]
) -> Dataset:
    """Return the dataset, whose number of records is exact only where it is that of all tables.

    Refused is an exact number where neighbours differ in it: it would be private. Where a column
    drops records, replaced ones leave the tables or enter them: they hold about that number.
    """
    rows = dataset.rows
    if given.privacy.weight is not None:
        _check_public_weights(given.privacy.weight, None if rows is None else rows.count)
    if rows and rows.exact and (privacy.neighbours != "replace" or privacy.person is not None):
        raise given.dataset.node("rows").mistake(
            "an exact number of rows is public only with unit: row and neighbours: replace; "
            f"write `rows: about {rows.count}`"
        )
    if rows and any(column.drops for each in attributes for column in each.columns):
        return replace(dataset, rows=replace(rows, exact=False))
    return dataset


def check_currency(given: DatasetFields, dataset: Dataset, budget: Budget) -> None:
    """Refuse budgets that cannot both be charged with one amount."""
    parent = dataset.parent
    both = {budget.fixed} if parent is None else {budget.fixed, parent.budget.fixed}
    if parent and len(both) > 1 and ("pure" in both or None not in both):
        raise given.node("parent").mistake(
            f"the parent's budget is {parent.budget} and the dataset's is {budget}, and what a "
            "release costs is charged to both; give both a delta (or rho), or neither, and the "
            "same accounting"
        )


def check_replicates(given: PrivacyFields, privacy: Privacy, budget: Budget) -> None:
    """Refuse replicate weights, whose noise is Gaussian, without a delta for it."""
    weight, pure = given.weight, privacy.delta == 0 or budget.counted == "pure"
    if weight is not None and weight.replicates is not None and pure:
        raise weight.node("replicates").mistake(
            "replicate weights are measured with Gaussian noise, and the spec has no delta for it, "
            "or a budget of pure epsilon: give `privacy` and `budget` a delta, or leave "
            "`replicates` out"
        )


def prefer_of(given: SpecFields, dataset: Dataset | None, privacy: Privacy | None) -> Prefer:
    """Return which answers readers are to have; the closest ones take a number of rows."""
    if given.prefer == "closest" and privacy is not None and privacy.weight is not None:
        raise given.node("prefer").mistake(
            "which answers have the smallest error is tried on records that count as one each; "
            "leave `prefer: closest` out, or `weight`"
        )
    if given.prefer == "closest" and dataset is not None and dataset.rows is None:
        raise given.node("prefer").mistake(
            "which answers have the smallest error depends on how many records there are; declare "
            "`dataset: {rows: about 50000}`, from public knowledge"
        )
    return given.prefer


def about_of(given: AboutFields | None) -> About:
    """Return what readers of the release are told."""
    if given is None:
        return About()
    if not given.given:
        raise given.node().mistake(
            "this says nothing about the release; write {title: ..., contact: ...}, or leave "
            "`about` out"
        )
    words = (given.title, given.description, given.contact, given.licence, given.period)
    return About(*words, given.area, given.next_update, given.notes)


def publication_rules(
    given: PublishFields | None, names: Collection[str]
) -> PublicationRules | None:
    """Return what the column `published` shows; None where there is to be none.

    Args:
        given: the section, of the spec or of an item.
        names: of the attributes, none of which may be a column that this adds.
    """
    if given is None:
        return None
    taken = [name for name in PUBLICATION_COLUMNS if name in names]
    if taken:
        raise given.node().mistake(column_taken(taken[0]))
    suppress = given.suppress
    for section in (given, suppress):
        if section is not None and not section.given:
            raise section.node().mistake(
                "this leaves nothing out and rounds nothing; write {suppress: {rel_error: 0.3, "
                "below: 10}}, {round_to: 5} or both, or leave it out"
            )
    rel_error, below = (None, None) if suppress is None else (suppress.rel_error, suppress.below)
    return PublicationRules(rel_error, below, given.round_to)


TOTAL = "value"
"""The column of a file of totals that holds them."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")


def read_impossible(nodes: Iterable[Node], scope: Scope) -> tuple[Impossible, ...]:
    """Return the combinations that no record has, in file order."""
    combinations: list[Impossible] = []
    for node in nodes:
        with node.problems.collected():
            combination = _combination(node, scope)
            if combination in combinations:
                raise node.mistake("this combination is there twice; leave one out")
            combinations.append(combination)
    return tuple(combinations)


def _combination(node: Node, scope: Scope) -> Impossible:
    entries = COMBINATION.read(node)
    where = scope.sets(entries, fixed=(), read=read_condition)
    if len(where) < len(entries):
        return Impossible((), str(node.place))  # what is wrong was noted
    if all(asked.asked.all() for asked in where.values()):
        raise node.mistake(
            "every record meets these conditions, so that none could exist; name the values that "
            "do not go together"
        )
    return Impossible(tuple(sorted(where.items())), str(node.place))


def read_known(
    given: KnownFields | None,
    tables: Sequence[Table],
    scope: Scope,
    read_file: Callable[[str], str] | None,
) -> KnownTotals | None:
    """Return the answers of an item that are published anyway; None where it has none.

    Args:
        given: the section of the item.
        tables: of the item.
        scope: what it may refer to.
        read_file: returns the text of a file that is named; None where no plan is to be made.
    """
    if given is None:
        return None
    node = given.node("file")
    if read_file is None:
        raise given.node().mistake(
            "what is known belongs to the spec of a release, which was planned and measured with "
            "it; leave `known` out here"
        )
    if len(tables) != 1 or tables[0].threshold < len(tables[0].axes):
        raise given.node().mistake(
            "only an item of one table, `product: {...}` or `sum: {...}`, can be known; write the "
            "table that is known as an item of its own"
        )
    if not given.why.strip():
        raise given.node("why").mistake("say why everyone may know these totals")
    (table,) = tables
    attributes = {i: a for i, a in scope.declared.values() if a is not None}

    def number(text: str, line: FileLine) -> float:
        if not _WHOLE.fullmatch(text):
            raise line.mistake("this is no total; expected a whole number")
        if int(text) < 0 and table.summed is None:
            raise line.mistake("this is no total of records; expected 0 or more")
        return int(text)

    values, lines = read_row_values(
        read_file, given.file, node, table, attributes, (TOTAL,), number
    )
    whole = tuple(int(value) for value in values)
    return KnownTotals(whole, given.file, given.why, tuple(lines.tolist()), str(node.place))


_ADDED = {(): ("other", "drop"), ("privacy", "unit"): ("keep", "first")}
"""What a mapping says today that said so without a word: by the keys that lead to it."""


def of_first_edition(node: Node, path: tuple[str, ...] = ()) -> Node:
    """Return the nodes of a spec that says the same in today's words; `path` are keys above."""
    if isinstance(node, TextNode) and path[:1] == ("domain",) and path[-1] == "other":
        return replace(node, text="show") if node.text == "bin" else node
    if not isinstance(node, MapNode):
        return node
    entries = [(key, of_first_edition(value, (*path, key.text))) for key, value in node.entries]
    if path in _ADDED:
        key, value = (TextNode(node.place, node.problems, word, True) for word in _ADDED[path])
        entries.append((key, value))
    return replace(node, entries=tuple(entries))
