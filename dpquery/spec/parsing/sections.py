"""The sections of a spec about its people and its output, from what was read of them."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from dpquery.limits import MAX_DECLARED_ROWS
from dpquery.spec.domain import Attribute
from dpquery.spec.model import (
    About,
    Budget,
    Dataset,
    FileFormat,
    Parent,
    Prefer,
    Privacy,
    PublicationRules,
    Rows,
)
from dpquery.spec.parsing.fields import (
    BudgetFields,
    DatasetFields,
    FileFields,
    PrivacyFields,
    SpecFields,
)
from dpquery.spec.parsing.forms import described
from dpquery.spec.parsing.publication_fields import AboutFields, PublishFields
from dpquery.spec.problems import Problems, quoted

PUBLICATION_COLUMNS = ("published", "suppressed")
"""The columns that rules of publication add to an item's file."""


def dataset_of(given: DatasetFields, problems: Problems) -> Dataset:
    """Return the dataset, its rows and its parent."""
    rows = problems.attempt(lambda: _rows(given))
    parent = problems.attempt(lambda: _parent(given, problems))
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


def _parent(given: DatasetFields, problems: Problems) -> Parent | None:
    parent = given.parent
    if parent is None:
        return None
    if parent.id == given.id:
        problems.add(
            parent.node("id").place,
            f"dataset {quoted(given.id)} cannot be its own parent; name what it shares with "
            "other datasets, or leave `parent` out",
        )
    return Parent(parent.id, budget_of(parent.budget))


def budget_of(given: BudgetFields) -> Budget:
    """Return the cap that a section sets."""
    if given.chosen == "rho":
        return Budget(rho=given.rho)
    if given.accounting in {"zcdp", "gdp"} and given.delta == 0:
        raise given.node("accounting").mistake(
            f"accounting: {given.accounting} takes a delta and the budget has none; add one, such "
            "as `delta: 1e-9`, or leave `accounting` out"
        )
    return Budget(epsilon=given.epsilon, delta=given.delta, accounting=given.accounting)


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


def privacy_of(given: PrivacyFields, attributes: Iterable[Attribute]) -> Privacy:
    """Return the privacy unit, its neighbours and delta; `attributes` are those of the domain."""
    unit = given.unit
    if isinstance(unit, str):
        return Privacy(neighbours=given.neighbours, delta=given.delta)
    if any(unit.person == column.name for attribute in attributes for column in attribute.columns):
        raise unit.node("person").mistake(
            f"column {quoted(unit.person)} tells persons apart, so no table may be made of it; "
            "take it out of the domain"
        )
    return Privacy(unit.person, unit.max_rows, given.neighbours, given.delta, unit.keep)


def counted_rows(
    given: DatasetFields, dataset: Dataset, privacy: Privacy, attributes: Iterable[Attribute]
) -> Dataset:
    """Return the dataset, whose number of records is exact only where it is that of all tables.

    Refused is an exact number where neighbours differ in it: it would be private. Where a column
    drops records, replaced ones leave the tables or enter them: they hold about that number.
    """
    rows = dataset.rows
    if rows and rows.exact and (privacy.neighbours != "replace" or privacy.person is not None):
        raise given.node("rows").mistake(
            "an exact number of rows is public only with unit: row and neighbours: replace; "
            f"write `about {rows.count}`"
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


def prefer_of(given: SpecFields, dataset: Dataset | None) -> Prefer:
    """Return which answers readers are to have; the closest ones take a number of rows."""
    if given.prefer == "closest" and dataset is not None and dataset.rows is None:
        raise given.node("prefer").mistake(
            "what errs least depends on how many records there are; declare "
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
        raise given.node().mistake(
            f"`publish` adds a column {quoted(taken[0])}, which an attribute is called; name the "
            f"attribute otherwise and give its header as {{column: {taken[0]}}}"
        )
    suppress = given.suppress
    for section in (given, suppress):
        if section is not None and not section.given:
            raise section.node().mistake(
                "this leaves nothing out and rounds nothing; write {suppress: {rel_error: 0.3, "
                "below: 10}}, {round_to: 5} or both, or leave it out"
            )
    rel_error, below = (None, None) if suppress is None else (suppress.rel_error, suppress.below)
    return PublicationRules(rel_error, below, given.round_to)
