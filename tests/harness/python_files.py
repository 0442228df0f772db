"""The Python files of a folder, parsed once, and where in them a name is defined."""

import ast
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "dpquery", ROOT / "tests"
PYTHON_PATH = os.pathsep.join(map(str, (ROOT, TESTS, TESTS / "harness")))
"""Of programs that tests start: a copy with a mistake in it starts its own product."""


@dataclass(frozen=True, eq=False)
class Module:
    """One file; `path` is relative to dpquery/, or in the tests to their own folder."""

    path: str
    source: str
    tree: ast.Module

    @classmethod
    def of(cls, path: str, source: str) -> "Module":
        return cls(path, source, ast.parse(source))

    @cached_property
    def name(self) -> str:
        return ".".join(("dpquery", *Path(self.path).with_suffix("").parts)).removesuffix(
            ".__init__"
        )

    @property
    def last_name(self) -> str:
        """The last part of the dotted name: it stays when the file moves to another folder."""
        return self.name.rpartition(".")[2]

    @property
    def room(self) -> str:
        return self.path.split("/")[0]

    @cached_property
    def all_nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in self.all_nodes if isinstance(node, kinds))

    @cached_property
    def imports(self) -> tuple[tuple[int, str], ...]:
        """The (line, dotted name) of every import at any depth, `from a import b` as a.b."""
        imported: list[tuple[int, str]] = []
        for node in self.nodes(ast.Import, ast.ImportFrom):
            base = ""
            if isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "") + "."
            imported += ((node.lineno, f"{base}{alias.name}") for alias in node.names)
        return tuple(imported)

    @cached_property
    def definitions(self) -> tuple["Definition", ...]:
        """Every function and class at any depth, and every constant at the top."""
        return tuple(_defined(self, self.tree, ""))

    def offence(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


@dataclass(frozen=True, eq=False)
class Definition:
    """Where a function, a class or a constant is defined.

    Attributes:
        module: that defines it.
        name: its qualified name, such as `Ledger.reserve`.
        node: its syntax tree.
    """

    module: Module
    name: str
    node: ast.stmt

    @property
    def full_name(self) -> str:
        return f"{self.module.last_name}.{self.name}"

    @property
    def text(self) -> str:
        """Its lines."""
        return self._parts()[1]

    def replaced(self, text: str) -> str:
        """Return the source of the whole file with another text in place of the definition."""
        before, _, after = self._parts()
        return before + text + after

    def _parts(self) -> tuple[str, str, str]:
        lines = [f"{line}\n" for line in self.module.source.split("\n")]
        lines[-1] = lines[-1].removesuffix("\n")
        decorators = getattr(self.node, "decorator_list", ())
        first = min(node.lineno for node in (self.node, *decorators)) - 1
        last = self.node.end_lineno
        parts = lines[:first], lines[first:last], lines[last:]
        before, text, after = ("".join(part) for part in parts)
        return before, text, after


def _defined(module: Module, parent: ast.AST, prefix: str) -> Iterator[Definition]:
    """Yield what is defined in the body of a node, and in `if` and `try` there."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Definition(module, f"{prefix}{node.name}", node)
            yield from _defined(module, node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not prefix:
            for name in _targets(node):
                yield Definition(module, name, node)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _defined(module, node, prefix)


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    """Yield the names that an assignment sets, not those that it only looks up."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                yield name.id


@cache
def modules(folder: Path) -> tuple[Module, ...]:
    """Return every Python file below a folder, in the order of their paths."""
    return tuple(
        Module.of(file.relative_to(folder).as_posix(), file.read_text(encoding="utf-8"))
        for file in sorted(folder.rglob("*.py"))
    )


def package() -> tuple[Module, ...]:
    """Return every module of the product."""
    return modules(PACKAGE)


def find(name: str, among: tuple[Module, ...]) -> Definition:
    """Return the only definition of a name, in whichever folder its file lies.

    Args:
        name: qualified (`Ledger.reserve`, `laplace_scale`); where several modules define it, with
            the last part of the module's name before it (`sensitivity.laplace_scale`), or the
            last two (`shapes.sensitivity.laplace_scale`).
        among: the modules to look through.

    Raises:
        LookupError: nothing or several things have the name; says which.
    """
    index = _index(among)
    definitions = index.get(name, ())
    if len(definitions) == 1:
        return definitions[0]
    if not definitions:
        last = name.rpartition(".")[2]
        alike = sorted(
            {
                definition.full_name
                for key in index
                if key == last or key.endswith(f".{last}")
                for definition in index[key]
            }
        )
        hint = f"; there is {', '.join(alike)}" if alike else ""
        raise LookupError(f"nothing is called {name!r}{hint}")
    places = ", ".join(
        f"{definition.full_name} ({definition.module.path})" for definition in definitions
    )
    raise LookupError(
        f"{name!r} is ambiguous: {places}; name the class, or the last parts of the module's name"
    )


@cache
def _index(among: tuple[Module, ...]) -> Mapping[str, tuple[Definition, ...]]:
    """Return all definitions by their name, alone and behind the last parts of the module's."""
    index: dict[str, list[Definition]] = defaultdict(list)
    for module in among:
        for definition in module.definitions:
            index[definition.name].append(definition)
            index[definition.full_name].append(definition)
            folder = definition.module.name.rpartition(".")[0].rpartition(".")[2]
            index[f"{folder}.{definition.full_name}"].append(definition)
    return {name: tuple(definitions) for name, definitions in index.items()}
