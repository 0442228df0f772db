"""Read a spec: YAML text to Spec, with every mistake reported at once and at its place."""

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TypeVar, get_args

from dpquery.exceptions import SpecError
from dpquery.spec.domain import Attribute, Domain
from dpquery.spec.model import Budget, Dataset, Item, Neighbours, Parent, Privacy, Rows, Spec
from dpquery.spec.outside import read_outside
from dpquery.spec.parse_domain import read_domain
from dpquery.spec.parse_workload import read_workload
from dpquery.spec.problems import Problems, UnreadableError, quoted
from dpquery.spec.reading import choice, decimal, described, entries, fields, only_one, text, whole
from dpquery.spec.scope import Scope
from dpquery.spec.source import Node, TextNode, read_yaml

SECTIONS = ("dataset", "privacy", "budget", "domain", "workload")
IDENTIFIER = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
ROWS = r"\s*(about\s+)?([0-9]{1,18})\s*"
NEIGHBOURS: tuple[Neighbours, ...] = get_args(Neighbours)

_MAX_BYTES = 10_000_000  # of a spec, and of a value list
_MAX_ROWS = 10**9
_MAX_RECORDS = 10**12
_ROWS = re.compile(ROWS)
_T = TypeVar("_T")


def load(path: Path) -> Spec:
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


def parse(text: str, *, name: str, files: Callable[[str], str] | Mapping[str, str]) -> Spec:
    """Read a spec from its text alone; what a plan carries gives the same spec again.

    Args:
        text: the YAML text.
        name: what messages call the text, such as its path.
        files: the texts of value lists by name, or how to get one (SpecError if it cannot).

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

    spec = None
    with problems.collected():
        root = read_yaml(text, file=name, problems=problems)
        spec = _spec(root, problems, read_file)
    problems.raise_if_any()
    if spec is None:
        raise SpecError(f"{name}: the spec cannot be read; compare it with `dpquery init`")
    dataset, privacy, budget, domain, workload = spec
    return Spec(dataset, privacy, budget, domain, workload, text=text, files=used)


def read_text(path: Path) -> str:
    """Return the text of a spec or of a value list; SpecError if it cannot be read."""
    try:
        content = read_outside(path, most=_MAX_BYTES)
        return content.decode("utf-8-sig")
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SpecError(f"{path}:{line}:1: this is not UTF-8; save the file as UTF-8") from None


def _spec(
    root: Node, problems: Problems, read_file: Callable[[str], str]
) -> tuple[Dataset, Privacy, Budget, Domain, tuple[Item, ...]]:
    given = fields(root, "the spec", problems=problems, required=SECTIONS)

    def section(name: str, read: Callable[[Node], _T]) -> _T | None:
        with problems.collected():
            if name in given:
                return read(given[name])
        return None

    declared: dict[str, Attribute | None] = {}
    if "domain" in given:
        declared = read_domain(given["domain"], problems=problems, read_file=read_file)
    attributes = [own for own in declared.values() if own is not None]
    positions = {name: (i, own) for i, (name, own) in enumerate(declared.items())}
    scope = Scope(problems, positions)
    dataset = section("dataset", lambda node: read_dataset(node, problems))
    privacy = section("privacy", lambda node: read_privacy(node, attributes, problems))
    budget = section("budget", lambda node: read_budget(node, problems))
    workload = section("workload", lambda node: read_workload(node, scope))
    if dataset and dataset.rows and privacy:
        with problems.collected():
            _check_public(dataset.rows, privacy, given["dataset"])
    if dataset and dataset.parent and budget:
        with problems.collected():
            _check_currency(dataset.parent, budget, given["dataset"])
    if not (dataset and privacy and budget and workload and attributes):
        raise UnreadableError(None)
    return dataset, privacy, budget, Domain(tuple(attributes)), workload


def read_dataset(node: Node, problems: Problems) -> Dataset:
    """Return the `dataset` section."""
    optional = ("version", "rows", "parent")
    given = fields(node, "dataset", problems=problems, required=("id",), optional=optional)
    rows, parent, named = None, None, {}
    with problems.collected():
        if "rows" in given:
            rows = _rows(given["rows"])
    for key in ("id", "version"):
        with problems.collected():
            if key in given:
                named[key] = _identifier(given[key], f"the dataset's {key}")
    with problems.collected():
        if "parent" in given:
            parent = _parent(given["parent"], problems, of=named.get("id"))
    return Dataset(named.get("id", ""), named.get("version", "1"), rows, parent)


def _identifier(node: Node, what: str) -> str:
    found = text(node, what)
    if not re.fullmatch(IDENTIFIER, found):
        raise UnreadableError(
            node.place,
            f"{described(node)} cannot be {what}; use letters, digits, dots, - and _, at most 100",
        )
    return found


def _parent(node: Node, problems: Problems, *, of: str | None) -> Parent | None:
    """Read the parent of a dataset; None where its mistakes have been reported."""
    given = fields(node, "parent", problems=problems, required=("id", "budget"))
    name, budget = None, None
    with problems.collected():
        if "id" in given:
            name = _identifier(given["id"], "the parent's id")
            if name == of:
                raise UnreadableError(
                    given["id"].place,
                    f"dataset {quoted(name)} cannot be its own parent; name what it shares with "
                    "other datasets, or leave `parent` out",
                )
    with problems.collected():
        if "budget" in given:
            budget = read_budget(given["budget"], problems)
    return None if name is None or budget is None else Parent(name, budget)


def _rows(node: Node) -> Rows:
    """Read `about 50000`, or an exact number: privacy decides later whether that may be public."""
    found = _ROWS.fullmatch(node.text) if isinstance(node, TextNode) else None
    if found is None:
        raise UnreadableError(
            node.place,
            f"expected the dataset's rows, such as about 50000, found {described(node)}",
        )
    count = int(found[2])
    if not 1 <= count <= _MAX_RECORDS:
        raise UnreadableError(
            node.place, f"rows is {described(node)}; expected 1 to {_MAX_RECORDS:,} records"
        )
    return Rows(count, exact=found[1] is None)


def _check_public(rows: Rows, privacy: Privacy, node: Node) -> None:
    """Refuse an exact number of records where neighbours differ in it: it would be private."""
    if rows.exact and (privacy.neighbours != "replace" or privacy.person is not None):
        own = {key.text: value for key, value in entries(node, "dataset")}["rows"]
        raise UnreadableError(
            own.place,
            "an exact number of rows is public only with unit: row and neighbours: replace; "
            f"write `about {rows.count}`",
        )


def _check_currency(parent: Parent, budget: Budget, node: Node) -> None:
    """Refuse budgets that cannot both be charged with one amount."""
    if parent.budget.pure != budget.pure:
        own = {key.text: value for key, value in entries(node, "dataset")}["parent"]
        raise UnreadableError(
            own.place,
            f"the parent's budget is {parent.budget} and the dataset's is {budget}, and what a "
            "release costs is charged to both; give both a delta (or rho), or neither",
        )


def read_privacy(node: Node, attributes: Iterable[Attribute], problems: Problems) -> Privacy:
    """Return the `privacy` section; `attributes` are those of the domain."""
    given = fields(
        node,
        "privacy",
        problems=problems,
        required=("unit",),
        optional=("neighbours", "delta"),
    )
    person, max_rows = None, 1
    neighbours, delta = NEIGHBOURS[0], Fraction(0)
    with problems.collected():
        if "unit" in given:
            person, max_rows = _unit(given["unit"], attributes, problems)
    with problems.collected():
        if "neighbours" in given:
            word = choice(given["neighbours"], "a kind of neighbours", NEIGHBOURS)
            neighbours = next(own for own in NEIGHBOURS if own == word)
    with problems.collected():
        if "delta" in given:
            delta = _delta(given["delta"])
    return Privacy(person, max_rows, neighbours, delta)


def _unit(
    node: Node, attributes: Iterable[Attribute], problems: Problems
) -> tuple[str | None, int]:
    if isinstance(node, TextNode):
        choice(node, "the protected unit, row or {person: column, max_rows: n}", ("row",))
        return None, 1
    given = fields(node, "unit", problems=problems, required=("person", "max_rows"))
    person, max_rows = None, 1
    with problems.collected():
        if "person" in given:
            person = text(given["person"], "the column that tells persons apart")
            if any(person == column.name for own in attributes for column in own.columns):
                raise UnreadableError(
                    given["person"].place,
                    f"column {quoted(person)} tells persons apart, so no table may be made of it; "
                    "take it out of the domain",
                )
    with problems.collected():
        if "max_rows" in given:
            max_rows = whole(given["max_rows"], "the most rows of one person")
            if not 1 <= max_rows <= _MAX_ROWS:
                raise UnreadableError(
                    given["max_rows"].place,
                    f"max_rows is {max_rows}; expected 1 to {_MAX_ROWS:,} rows of one person",
                )
    return person, max_rows


def read_budget(node: Node, problems: Problems) -> Budget:
    """Return the `budget` section."""
    given = fields(node, "budget", problems=problems, optional=("epsilon", "rho", "delta"))
    kind, own = only_one(given, node, "the budget", kinds=("epsilon", "rho"))
    delta = Fraction(0)
    with problems.collected():
        if "delta" in given:
            if kind == "rho":
                raise UnreadableError(
                    given["delta"].place, "a budget in rho has no delta; leave it out"
                )
            delta = _delta(given["delta"])
    # The limits keep the charges of the ledger exact and countable.
    low, high = Fraction(1, 10**6), Fraction(10**6)
    amount = decimal(own, kind)
    if not low <= amount <= high:
        raise UnreadableError(
            own.place, f"{kind} is {described(own)}; expected a number from 1e-6 to 1e6"
        )
    return Budget(epsilon=amount, delta=delta) if kind == "epsilon" else Budget(rho=amount)


def _delta(node: Node) -> Fraction:
    delta = decimal(node, "delta")
    if delta != 0 and not Fraction(1, 10**100) <= delta < 1:
        raise UnreadableError(
            node.place,
            f"delta is {described(node)}; expected 0, or from 1e-100 to below 1, such as 1e-9",
        )
    return delta
