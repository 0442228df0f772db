"""Questions asked later of a release: a `workload` section, over the domain of the release.

A whole spec will do too. What it says beside the workload must then be what the release was made
under, since nothing of that can change any more.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from dpquery.exceptions import SpecError
from dpquery.spec.columns import Attribute
from dpquery.spec.parsing.derived import read_derived
from dpquery.spec.parsing.domain import read_domain
from dpquery.spec.parsing.fields import QuestionFields
from dpquery.spec.parsing.items import read_workload
from dpquery.spec.parsing.predicate_sets import Scope
from dpquery.spec.parsing.read import ORDER, beside, read_document, read_text
from dpquery.spec.parsing.sections import (
    budget_of,
    dataset_of,
    file_of,
    privacy_of,
    publication_rules,
)
from dpquery.spec.problems import Place, Problems, quoted
from dpquery.spec.spec import Budget, Dataset, DerivedItem, FileFormat, Item, Privacy, Spec

_Section = Dataset | Privacy | Budget | FileFormat


@dataclass(frozen=True, eq=False)
class Questions:
    """Queries over the domain of an earlier release."""

    spec: Spec  # the release's, with these questions for its workload
    places: tuple[Place, ...]  # where each item stands
    problems: Problems  # takes what is found to be wrong with them later


def load_questions(path: Path, *, of: Spec) -> Questions:
    """Read questions from their file.

    Args:
        path: the YAML file.
        of: the spec of the release that is to answer.

    Raises:
        SpecError: the file cannot be read or has mistakes: one line for each, with its place.
    """
    problems = Problems(str(path))
    text, read_file = read_text(path, otherwise=ORDER), beside(path)
    items: tuple[Item, ...] = ()
    derived: tuple[DerivedItem, ...] = ()
    places: tuple[Place, ...] = ()
    with problems.collected():
        root = read_document(text, str(path), problems, QuestionFields)
        given = QuestionFields.read(root, problems)
        declared = _declared(given, of, problems, read_file)
        _compare_sections(given, of, problems)
        places_of_rows = [(i, a) for i, a in enumerate(of.domain.attributes) if not a.in_data]
        scope = Scope(problems, declared, next(iter(places_of_rows), None))
        publish = problems.attempt(lambda: publication_rules(given.publish, declared))
        items = read_workload(given.workload, scope, publish)
        places = tuple(node.place for node in given.workload)
        taken = [item.name for item in items]
        derived = read_derived(
            given.derived,
            (*items, *of.items),
            scope,
            read_file,
            taken,
            path.parent,
            of.expected_total,
            of.privacy.weight is not None,
        )
        if derived and not places:
            items = tuple(i for i in of.items if any(i.name in one.items for one in derived))
            places = (given.node("derived").place,) * len(items)
        elif not places:
            raise given.node().mistake("a file of questions needs the key 'workload', or 'derived'")
    problems.raise_if_any()
    if not items or len(items) != len(places):
        raise SpecError(f"{path}: the questions cannot be read; write them as a `workload` section")
    asked = replace(of, items=items, derived=derived, text=text, files={})
    return Questions(asked, places, problems)


def _declared(
    given: QuestionFields, of: Spec, problems: Problems, read_file: Callable[[str], str]
) -> dict[str, tuple[int, Attribute | None]]:
    released = {attribute.name: (i, attribute) for i, attribute in enumerate(of.domain.in_data)}
    declared: dict[str, tuple[int, Attribute | None]] = {**released}
    with problems.collected():
        entries = given.domain
        if entries is None:
            return declared
        given_attributes = read_domain(entries, problems, read_file, other=given.other)
        for key, _ in entries:
            if key.text not in released:
                problems.add(
                    key.place, f"attribute {quoted(key.text)} is not in the release's domain"
                )
                declared[key.text] = (-1, None)
                continue
            attribute, original = given_attributes[key.text], released[key.text][1]
            if attribute is not None and attribute != original:
                problems.add(
                    key.place,
                    f"attribute {quoted(key.text)} is declared otherwise in the release: "
                    f"{_words(attribute)} here, {_words(original)} there",
                )
                declared[key.text] = (-1, None)
        missing = [name for name in released if name not in given_attributes]
        if missing:
            raise given.node("domain").mistake(
                f"the release's domain has {quoted(missing[0])} too; add it, or leave the domain "
                "out: the release has its own"
            )
    return declared


def _words(attribute: Attribute) -> str:
    labels = [attribute.label(code) for code in range(min(attribute.size, 3))]
    more = f", ... {attribute.label(attribute.size - 1)}" if attribute.size > 3 else ""
    other = " and ".join(dict.fromkeys(column.other for column in attribute.columns))
    return f"{attribute.size} codes ({', '.join(labels)}{more}), other: {other}"


def _compare_sections(given: QuestionFields, of: Spec, problems: Problems) -> None:
    """Note where a section says anything else than the release."""
    attributes = of.domain.attributes
    with problems.collected():
        if given.dataset:
            dataset = dataset_of(given.dataset, problems)
            _compare("dataset", dataset, _parent_as_open(of.dataset, dataset), given)
    with problems.collected():
        if given.privacy:
            _compare("privacy", privacy_of(given.privacy, attributes), of.privacy, given)
    with problems.collected():
        if given.budget:
            budget = budget_of(given.budget)
            _compare("budget", budget, _as_open(of.budget, budget), given)
    with problems.collected():
        if given.file:
            _compare("file", file_of(given.file), of.file, given)


def _as_open(released: Budget, given: Budget) -> Budget:
    """Return a release's budget, in which a plan may have said what the spec leaves open."""
    return replace(released, accounting=None) if given.accounting is None else released


def _parent_as_open(released: Dataset, given: Dataset) -> Dataset:
    """Return a release's dataset, with its parent's budget as open as the one given."""
    if released.parent is None or given.parent is None:
        return released
    budget = _as_open(released.parent.budget, given.parent.budget)
    return replace(released, parent=replace(released.parent, budget=budget))


def _compare(name: str, section: _Section, released: _Section, given: QuestionFields) -> None:
    for field in fields(section):
        value, original = getattr(section, field.name), getattr(released, field.name)
        if value != original:
            raise given.node(name).mistake(
                f"the {name}'s {field.name} is {_text(value)} here and {_text(original)} in the "
                f"release; give the release's, or leave `{name}` out"
            )


def _text(value: object) -> str:
    return "not given" if value is None else quoted(str(value))
