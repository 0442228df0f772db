"""Read a spec: YAML text to Spec, with every mistake reported at once and at its place."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dpquery.exceptions import SpecError
from dpquery.limits import MAX_SPEC_BYTES
from dpquery.spec.domain import Domain
from dpquery.spec.model import Spec
from dpquery.spec.parsing.attributes import read_domain
from dpquery.spec.parsing.derived import read_derived
from dpquery.spec.parsing.fields import SpecFields
from dpquery.spec.parsing.first_edition import of_first_edition
from dpquery.spec.parsing.hierarchy_files import check_levels_named
from dpquery.spec.parsing.items import read_workload
from dpquery.spec.parsing.public_facts import read_impossible
from dpquery.spec.parsing.rows_per_person import read_person_rows
from dpquery.spec.parsing.scope import Scope
from dpquery.spec.parsing.sections import (
    about_of,
    budget_of,
    check_currency,
    check_public,
    dataset_of,
    file_of,
    prefer_of,
    privacy_of,
    publication_rules,
)
from dpquery.spec.parsing.yaml_nodes import read_yaml
from dpquery.spec.problems import Problems, UnreadableError, quoted
from dpquery.untrusted.files import read_outside


def load_spec(path: Path) -> Spec:
    """Read a spec from its file, and the value lists that it names from beside it.

    Raises:
        SpecError: a file cannot be read, or the spec has mistakes: one line for each, with its
            place.
    """
    return parse(read_text(path), name=str(path), files=beside(path))


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


def read_text(path: Path) -> str:
    """Return the text of a spec or of a value list; SpecError if it cannot be read."""
    try:
        content = read_outside(path, most=MAX_SPEC_BYTES)
        return content.decode("utf-8-sig")
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SpecError(f"{path}:{line}:1: this is not UTF-8; save the file as UTF-8") from None


def _spec(
    text: str,
    name: str,
    problems: Problems,
    read_file: Callable[[str], str],
    first_edition: bool,
) -> Spec:
    root = read_yaml(text, file=name, problems=problems)
    given = SpecFields.read(of_first_edition(root) if first_edition else root, problems)
    entries = problems.attempt(lambda: given.domain) or ()
    file = problems.attempt(lambda: file_of(given.file))
    decimal = file.decimal if file else "."
    declared = read_domain(entries, problems, read_file, decimal, other=given.other)
    attributes = [attribute for attribute in declared.values() if attribute is not None]
    positions = {name: (i, attribute) for i, (name, attribute) in enumerate(declared.items())}
    dataset = problems.attempt(lambda: dataset_of(given.dataset, problems))
    privacy = problems.attempt(lambda: privacy_of(given.privacy, attributes))
    budget = problems.attempt(lambda: budget_of(given.budget))
    nodes = problems.attempt(lambda: given.workload) or ()
    rows = read_person_rows(nodes, entries, privacy, problems)
    scope = Scope(problems, positions, None if rows is None else (len(positions), rows))
    publish = problems.attempt(lambda: publication_rules(given.publish, positions))
    about = problems.attempt(lambda: about_of(given.about))
    items = problems.attempt(lambda: read_workload(given.workload, scope, publish, read_file))
    impossible = problems.attempt(lambda: read_impossible(given.impossible, scope)) or ()
    taken = [item.name for item in items or ()]
    derived = problems.attempt(
        lambda: read_derived(given.derived, items or (), scope, read_file, taken)
    )
    if rows is not None:
        attributes.append(rows)
    if dataset and privacy:
        with problems.collected():
            check_public(given.dataset, dataset, privacy)
    prefer = problems.attempt(lambda: prefer_of(given, dataset))
    if dataset and budget:
        with problems.collected():
            check_currency(given.dataset, dataset, budget)
    if not (dataset and privacy and budget and file and items and attributes):
        raise UnreadableError(None)
    if about is None or prefer is None:
        raise UnreadableError(None)
    problems.raise_if_any()
    check_levels_named(entries, problems)
    domain = Domain(tuple(attributes))
    return Spec(
        *(dataset, privacy, budget, domain, items, file, derived or ()),
        text=text,
        about=about,
        prefer=prefer,
        impossible=impossible,
    )
