"""Read a spec: YAML text to Spec, with every mistake reported at once and at its place.

Questions asked later of a release are read here too: a `workload` section over the domain of the
release, or a whole spec. What that says beside the workload must then be what the release was made
under, since nothing of that can change any more.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path

from dpquery.exceptions import SpecError
from dpquery.limits import MAX_SPEC_BYTES
from dpquery.spec.columns import Attribute, Categorical, Column, Domain
from dpquery.spec.parsing.derived import read_derived
from dpquery.spec.parsing.domain import read_domain
from dpquery.spec.parsing.fields import QuestionFields, SpecFields
from dpquery.spec.parsing.hierarchies import check_levels_named
from dpquery.spec.parsing.items import read_person_rows, read_workload
from dpquery.spec.parsing.mappings import Fields
from dpquery.spec.parsing.predicate_sets import Scope
from dpquery.spec.parsing.sections import (
    about_of,
    budget_of,
    check_currency,
    check_replicates,
    counted_rows,
    dataset_of,
    file_of,
    of_first_edition,
    prefer_of,
    privacy_of,
    publication_rules,
    read_impossible,
)
from dpquery.spec.parsing.yaml_nodes import ListNode, MapNode, Node, TextNode, read_yaml
from dpquery.spec.problems import Place, Problems, UnreadableError, nearest, not_read, quoted
from dpquery.spec.spec import Budget, Dataset, DerivedItem, FileFormat, Item, Parent, Privacy, Spec
from dpquery.untrusted.files import OTHER_TEXT, kind_of, read_outside, seems_to_be

ORDER = (
    "write `dpquery plan SPEC`, `dpquery check DATA SPEC`, `dpquery release DATA` or "
    "`dpquery answer RELEASE QUESTIONS`"
)
STDIN = Path("-")
_MOST_KEYS = 100  # of a text that are looked at, to see what it is


def load_spec(path: Path) -> Spec:
    """Read a spec from its file, and the value lists that it names from beside it.

    Raises:
        SpecError: a file cannot be read, or the spec has mistakes: one line for each, with its
            place.
    """
    return parse(read_text(path, otherwise=ORDER), name=str(path), files=beside(path))


class _WithoutDomain(Fields, what="the spec"):
    """What a spec says of the people, the budget and the file."""

    dataset, privacy, budget = SpecFields.dataset, SpecFields.privacy, SpecFields.budget
    file, prefer = SpecFields.file, SpecFields.prefer


def load_for_column(path: Path, column: str) -> Spec:
    """Return a spec of one column none of whose values is declared, by a spec's other sections.

    Its domain and workload are not read: they may name a file that is still to be written.

    Raises:
        SpecError: the file cannot be read, or those sections have mistakes.
    """
    problems = Problems(str(path))
    text = read_text(path, otherwise=ORDER)
    found = problems.attempt(lambda: _for_column(text, str(path), column, problems))
    problems.raise_if_any()
    if found is None:
        raise SpecError(f"{path}: the spec cannot be read; compare it with `dpquery init`")
    return found


def _for_column(text: str, name: str, column: str, problems: Problems) -> Spec:
    root, called = read_document(text, name, problems, SpecFields), column
    if isinstance(root, MapNode):
        called = _called(column, root)
        kept = [entry for entry in root.entries if entry[0].text in _WithoutDomain.fields]
        root = replace(root, entries=tuple(kept))
    given = _WithoutDomain.read(root)
    # A person who has a value counts as one, whatever the weights of the rows are.
    privacy = replace(privacy_of(given.privacy, Scope({})), weight=None)
    budget = budget_of(given.budget)
    dataset, file = dataset_of(given.dataset), file_of(given.file)
    check_currency(given.dataset, dataset, budget)
    domain = Domain((Attribute(called, (Column(column, Categorical((), ())),)),))
    return Spec(dataset, privacy, budget, domain, (), file, prefer=given.prefer)


def _called(column: str, root: MapNode) -> str:
    """Return what the domain of a spec calls a column: its header unless it has a name for it."""
    domain = {key.text: node for key, node in root.entries}.get("domain")
    for name, declared in domain.entries if isinstance(domain, MapNode) else ():
        for key, header in declared.entries if isinstance(declared, MapNode) else ():
            if key.text == "column" and isinstance(header, TextNode) and header.text == column:
                return name.text
    return column


def beside(path: Path) -> Callable[[str], str]:
    """Return how to get the value lists that a spec names: from its own folder, and no other."""

    def read_file(name: str) -> str:
        inside, target = path.parent.resolve(), path.parent / name
        try:
            leaves = not target.resolve().is_relative_to(inside)
        except (OSError, RuntimeError, ValueError):  # a link that leads to itself, a NUL
            leaves = True
        if leaves:
            raise SpecError(f"{target} leads out of the spec's folder; put the file itself there")
        return read_text(target)

    return read_file


def parse(
    text: str,
    *,
    name: str,
    files: Callable[[str], str] | Mapping[str, str],
    first_edition: bool = False,
) -> Spec:
    """Read a spec from its text alone; what a plan carries gives the same spec again.

    Args:
        text: the YAML text.
        name: what messages call the text, such as its path.
        files: the texts of value lists by name, or how to get one (SpecError if it cannot).
        first_edition: whether the text is from a plan of format 1, when `other` was drop where it
            was left out.

    Raises:
        SpecError: the spec has mistakes: one line for each, `name:line:column: message`.
    """
    problems = Problems(name)
    used: dict[str, str] = {}

    def read_file(file: str) -> str:
        if callable(files):
            used[file] = files(file)
        elif file in files:
            used[file] = files[file]
        else:
            raise SpecError(f"the value list {quoted(file)} is missing; put it beside the spec")
        return used[file]

    spec = problems.attempt(lambda: _spec(text, name, problems, read_file, first_edition))
    problems.raise_if_any()
    if spec is None:
        raise SpecError(f"{name}: the spec cannot be read; compare it with `dpquery init`")
    return replace(spec, files=used, first_edition=first_edition)


def read_text(path: Path, *, otherwise: str = "") -> str:
    """Return the text of a spec or of a value list; SpecError if it cannot be read.

    `otherwise` is what to do where another file was meant.
    """
    try:
        content = (
            sys.stdin.buffer.read(MAX_SPEC_BYTES)
            if path == STDIN
            else read_outside(path, most=MAX_SPEC_BYTES)
        )
        if kind_of(content):
            seems = seems_to_be(content, path.name)
            remedy = otherwise or "write it as text"
            raise SpecError(f"{path}:1:1: this is no text: it seems to be {seems}; {remedy}")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise not_read(path, error, "check the path") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        message = f"{path}:{line}:1: this is not UTF-8; save the file as UTF-8"
        other = seems_to_be(content, path.name) != OTHER_TEXT
        raise SpecError(f"{message}; {otherwise}" if other and otherwise else message) from None


def read_document(text: str, name: str, problems: Problems, fields: type[Fields]) -> Node:
    """Return the root of a spec, or of a file of questions; a text that is none is not repeated.

    It may be a file of records that was named in its place. What is meant to be a spec has at least
    two of its keys, and questions one.

    Raises:
        SpecError: the text is something else.
        UnreadableError: it is no YAML, or too large.
    """
    known = fields.fields
    least = max(1, min(2, sum(field.required for field in known.values())))
    root: Node | None = None
    try:
        root = read_yaml(text, file=name, problems=problems)
        keys = [key.text for key, _ in root.entries] if isinstance(root, MapNode) else []
    except UnreadableError:
        keys = re.findall(r"""^["']?(\w+)["']?\s*(?::|$)""", text, re.MULTILINE)
        if _is_meant(keys, known, least) or not re.search(r"^\s*[^#\s]", text, re.MULTILINE):
            raise
    if root is not None and _is_meant(keys, known, least):
        return root
    if isinstance(root, ListNode) and all(isinstance(item, MapNode) for item in root.items):
        raise root.mistake("this is a list of items; put the line `workload:` above it")
    seems = seems_to_be(text.encode(), name)
    what = fields.what.removeprefix("the ").removeprefix("a ")
    if seems == OTHER_TEXT:
        required = [key for key, field in known.items() if field.required]
        lacked = [key for key in required or [*known][:1] if key not in keys]
        what_for = "; questions go to `dpquery answer`" if "workload" in keys else ""
        raise SpecError(
            f"{name}:1:1: this is no {what}, but {seems}: it lacks the keys "
            f"{', '.join(lacked)}; write those, or name another file{what_for}"
        )
    raise SpecError(f"{name}:1:1: this is no {what}: it seems to be {seems}; {ORDER}")


def _is_meant(keys: Iterable[str], known: Collection[str], least: int) -> bool:
    """Return whether so many keys are known ones, or near one."""
    return sum(nearest(key, known) is not None for key in islice(keys, _MOST_KEYS)) >= least


def _spec(
    text: str, name: str, problems: Problems, read_file: Callable[[str], str], first_edition: bool
) -> Spec:
    root = read_document(text, name, problems, SpecFields)
    given = SpecFields.read(of_first_edition(root) if first_edition else root)
    entries = problems.attempt(lambda: given.domain) or ()
    file = problems.attempt(lambda: file_of(given.file))
    decimal = file.decimal if file else "."
    declared = read_domain(entries, read_file, decimal, other=given.other)
    attributes = [attribute for attribute in declared.values() if attribute is not None]
    positions = {name: (i, attribute) for i, (name, attribute) in enumerate(declared.items())}
    dataset = problems.attempt(lambda: dataset_of(given.dataset))
    privacy = problems.attempt(lambda: privacy_of(given.privacy, Scope(positions)))
    budget = problems.attempt(lambda: budget_of(given.budget))
    nodes = problems.attempt(lambda: given.workload) or ()
    rows = read_person_rows(nodes, entries, privacy)
    scope = Scope(positions, None if rows is None else (len(positions), rows))
    publish = problems.attempt(lambda: publication_rules(given.publish, positions))
    about = problems.attempt(lambda: about_of(given.about))
    items = problems.attempt(lambda: read_workload(given.workload, scope, publish, read_file))
    impossible = problems.attempt(lambda: read_impossible(given.impossible, scope)) or ()
    taken = [item.name for item in items or ()]
    records = dataset.rows.count if dataset and dataset.rows else None
    weight = privacy.weight if privacy else None
    records = records if weight is None else weight.total
    derived = problems.attempt(
        lambda: read_derived(
            given.derived,
            items or (),
            scope,
            read_file,
            taken,
            records=records,
            weighted=weight is not None,
        )
    )
    if rows is not None:
        attributes.append(rows)
    if dataset and privacy:
        with problems.collected():
            dataset = counted_rows(given, dataset, privacy, attributes)
    prefer = problems.attempt(lambda: prefer_of(given, dataset, privacy))
    if dataset and budget:
        with problems.collected():
            check_currency(given.dataset, dataset, budget)
    if privacy and budget:
        with problems.collected():
            check_replicates(given.privacy, privacy, budget)
    if not (dataset and privacy and budget and file and items and attributes and about and prefer):
        raise UnreadableError(None)
    problems.raise_if_any()
    check_levels_named(entries)
    domain = Domain(tuple(attributes))
    return Spec(
        *(dataset, privacy, budget, domain, items, file, derived or ()),
        text=text,
        about=about,
        prefer=prefer,
        impossible=impossible,
    )


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
        given = QuestionFields.read(root)
        declared = _declared(given, of, read_file)
        _compare_sections(given, of, Scope(declared))
        places_of_rows = [(i, a) for i, a in enumerate(of.domain.attributes) if not a.in_data]
        scope = Scope(declared, next(iter(places_of_rows), None))
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
    given: QuestionFields, of: Spec, read_file: Callable[[str], str]
) -> dict[str, tuple[int, Attribute | None]]:
    released = {attribute.name: (i, attribute) for i, attribute in enumerate(of.domain.in_data)}
    declared: dict[str, tuple[int, Attribute | None]] = {**released}
    with given.problems.collected():
        entries = given.domain
        if entries is None:
            return declared
        given_attributes = read_domain(entries, read_file, other=given.other)
        for key, _ in entries:
            if key.text not in released:
                key.note(f"attribute {quoted(key.text)} is not in the release's domain")
                declared[key.text] = (-1, None)
                continue
            attribute, original = given_attributes[key.text], released[key.text][1]
            if attribute is not None and attribute != original:
                key.note(
                    f"attribute {quoted(key.text)} is declared otherwise in the release: "
                    f"{_words(attribute)} here, {_words(original)} there"
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


def _compare_sections(given: QuestionFields, of: Spec, scope: Scope) -> None:
    """Note where a section says anything else than the release."""
    sections: dict[str, Callable[[], _Section | None]] = {
        "dataset": lambda: None if given.dataset is None else dataset_of(given.dataset),
        "privacy": lambda: None if given.privacy is None else privacy_of(given.privacy, scope),
        "budget": lambda: None if given.budget is None else budget_of(given.budget),
        "file": lambda: None if given.file is None else file_of(given.file),
    }
    for name, read in sections.items():
        with given.problems.collected():
            section, released = read(), getattr(of, name)
            if section is not None:
                _compare(name, section, _as_open(released, section), given)


def _as_open(released: _Section, given: _Section) -> _Section:
    """Return a section of a release, in which a plan may have said what the spec leaves open."""
    match released, given:
        case Budget(), Budget(accounting=None):
            return replace(released, accounting=None)
        case Dataset(parent=Parent() as parent), Dataset(
            parent=Parent(budget=Budget(accounting=None))
        ):
            budget = replace(parent.budget, accounting=None)
            return replace(released, parent=replace(parent, budget=budget))
        case _:
            return released


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
