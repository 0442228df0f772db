"""Questions asked later of a release: a `workload` section, over the domain of the release.

A whole spec will do too. What it says beside the workload must then be what the release was made
under, since nothing of that can change any more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from dpquery.exceptions import SpecError
from dpquery.spec.domain import Attribute
from dpquery.spec.model import Budget, Dataset, Item, Privacy, Spec
from dpquery.spec.parse import (
    SECTIONS,
    beside,
    read_budget,
    read_dataset,
    read_privacy,
    read_text,
)
from dpquery.spec.parse_domain import read_domain
from dpquery.spec.parse_workload import read_workload
from dpquery.spec.problems import Place, Problems, UnreadableError, quoted
from dpquery.spec.reading import entries
from dpquery.spec.reading import fields as fields_of
from dpquery.spec.scope import Scope
from dpquery.spec.source import ListNode, Node, read_yaml

_Section = Dataset | Privacy | Budget
_T = TypeVar("_T", bound=_Section)


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions about what a release was made of.

    Attributes:
        spec: the release's, with these questions for its workload.
        places: where each item stands.
        problems: takes what is found to be wrong with them later.
    """

    spec: Spec
    places: tuple[Place, ...]
    problems: Problems


def load_questions(path: Path, *, of: Spec) -> Questions:
    """Read questions from their file.

    Args:
        path: the YAML file.
        of: the spec of the release that is asked.

    Raises:
        SpecError: the file cannot be read or has mistakes: one line for each, with its place.
    """
    problems = Problems(str(path))
    text, read_file = read_text(path), beside(path)
    items: tuple[Item, ...] = ()
    places: tuple[Place, ...] = ()
    with problems.collected():
        root = read_yaml(text, file=str(path), problems=problems)
        others = tuple(name for name in SECTIONS if name != "workload")
        given = fields_of(
            root, "a file of questions", problems=problems, required=("workload",), optional=others
        )
        declared = _declared(given, of, problems, read_file)
        _compare_sections(given, of, problems)
        if "workload" in given:
            node = given["workload"]
            items = read_workload(node, Scope(problems, declared))
            places = tuple(own.place for own in node.items) if isinstance(node, ListNode) else ()
    problems.raise_if_any()
    if not items or len(items) != len(places):
        raise SpecError(f"{path}: the questions cannot be read; write them as a `workload` section")
    return Questions(replace(of, items=items, text=text, files={}), places, problems)


def _declared(
    given: Mapping[str, Node], of: Spec, problems: Problems, read_file: Callable[[str], str]
) -> dict[str, tuple[int, Attribute | None]]:
    """Return the release's attributes by name, and those given that are not the release's."""
    theirs = {own.name: (i, own) for i, own in enumerate(of.domain.attributes)}
    declared: dict[str, tuple[int, Attribute | None]] = {**theirs}
    if "domain" not in given:
        return declared
    with problems.collected():
        own = read_domain(given["domain"], problems=problems, read_file=read_file)
        for key, _ in entries(given["domain"], "the domain"):
            if key.text not in theirs:
                problems.add(
                    key.place, f"attribute {quoted(key.text)} is not in the release's domain"
                )
                declared[key.text] = (-1, None)
                continue
            mine, other = own.get(key.text), theirs[key.text][1]
            if mine is not None and mine != other:
                problems.add(
                    key.place,
                    f"attribute {quoted(key.text)} is declared otherwise in the release: "
                    f"{_words(mine)} here, {_words(other)} there",
                )
                declared[key.text] = (-1, None)
        missing = [name for name in theirs if own and name not in own]
        if missing:
            problems.add(
                given["domain"].place,
                f"the release's domain has {quoted(missing[0])} too; add it, or leave the domain "
                "out: the release has its own",
            )
    return declared


def _words(attribute: Attribute) -> str:
    labels = [attribute.label(code) for code in range(min(attribute.size, 3))]
    more = f", ... {attribute.label(attribute.size - 1)}" if attribute.size > 3 else ""
    return f"{attribute.size} codes ({', '.join(labels)}{more})"


def _compare_sections(given: Mapping[str, Node], of: Spec, problems: Problems) -> None:
    """Note where a section says anything else than the release."""

    def compare(name: str, read: Callable[[Node], _T], theirs: _T) -> None:
        with problems.collected():
            if name in given:
                _compare(name, read(given[name]), theirs, given[name].place)

    compare("dataset", lambda node: read_dataset(node, problems), of.dataset)
    compare("privacy", lambda node: read_privacy(node, of.domain.attributes, problems), of.privacy)
    compare("budget", lambda node: read_budget(node, problems), of.budget)


def _compare(name: str, own: _T, theirs: _T, place: Place) -> None:
    for field in fields(own):
        mine, other = getattr(own, field.name), getattr(theirs, field.name)
        if mine != other:
            raise UnreadableError(
                place,
                f"the {name}'s {field.name} is {_text(mine)} here and {_text(other)} in the "
                f"release; give the release's, or leave `{name}` out",
            )


def _text(value: object) -> str:
    return "not given" if value is None else quoted(str(value))
