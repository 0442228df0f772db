"""The house rules that no other tool checks: who may import whom, and who may touch what.

A rule is a function from one module to its offences, so that every rule can be shown to catch a
planted offence: a rule that never fires looks just like a rule that is kept.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = ("spec", "operators", "strategy", "measurement", "reconstruction", "release")
DEPENDENCIES = {"numpy", "scipy", "pandas", "pyarrow", "yaml", "opendp", "typer", "rich"}
# Extras, and the one file that may import each: nothing else may need them.
EXTRAS = {"reconstruction/graphical.py": {"jax", "mbi"}}
# Folders that unite rooms; pipeline.py and its like, the straight lines, stand before the last.
BEYOND, STRAIGHT_LINES = {"planning": 0, "contracts": 1, "audit": 3, "cli": 4}, 2
SCREEN, AT_THE_SCREEN = {"typer", "rich"}, {"cli"}
MAX_FILE, MAX_FUNCTION = 400, 40

# Only these may catch everything and go on, each for the reason given.
CATCH_ALL = {"cli/app.py": "the last stop: the unforeseen ends as exit code 70 without a traceback"}

# What could open a file.
READERS = {"csv", "pandas", "pyarrow", "sqlite3", "mmap", "io", "os", "pathlib", "urllib", "socket"}
OPENERS = {"open", "read_csv", "read_text", "read_bytes", "read_table", "read_parquet"}
OPENERS |= {"fromfile", "genfromtxt", "loadtxt", "memmap"}

GENERATORS = {"random", "secrets", "numpy.random"}
SEEDED = {"random", "rvs", "random_state", "default_rng", "RandomState", "random_array"}


@dataclass(frozen=True, eq=False)
class Module:
    """One file; `path` is relative to dpquery/, or in the tests to their own folder."""

    path: str
    source: str
    tree: ast.Module

    @classmethod
    def of(cls, path: str, source: str) -> "Module":
        return cls(path, source, ast.parse(source))

    @property
    def name(self) -> str:
        return ".".join(("dpquery", *Path(self.path).with_suffix("").parts)).removesuffix(
            ".__init__"
        )

    @property
    def room(self) -> str:
        return self.path.split("/")[0]

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    def imports(self) -> Iterator[tuple[int, str]]:
        """Yield (line, dotted name) of every import at any depth, `from a import b` as a.b."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)

    def offence(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


def rank(name: str) -> int:
    """Return how far right a dpquery module stands; a module may import only its left."""
    parts = name.split(".")
    if len(parts) == 1 or parts[1] in {"exceptions", "__version__"}:
        return -1
    if parts[1] in ROOMS:
        return ROOMS.index(parts[1])
    return len(ROOMS) + {**BEYOND, "__main__": 5}.get(parts[1], STRAIGHT_LINES)


def imports_run_one_way(module: Module) -> list[str]:
    return [
        module.offence(line, f"imports {name}, which stands to its right")
        for line, name in module.imports()
        if name.split(".")[0] == "dpquery" and rank(name) > rank(module.name)
    ]


def imports_are_absolute_and_static(module: Module) -> list[str]:
    named = [
        module.offence(line, f"imports {name}")
        for line, name in module.imports()
        if name.startswith(".") or name.endswith(".*") or name == "importlib.import_module"
    ]
    called = [
        module.offence(node.lineno, "imports by a computed name")
        for node in module.nodes(ast.Name, ast.Attribute)
        if identifier(node) in {"__import__", "import_module"}
    ]
    return named + called


def only_agreed_libraries_are_imported(module: Module) -> list[str]:
    allowed = {"dpquery", ""} | DEPENDENCIES | set(sys.stdlib_module_names)
    allowed |= EXTRAS.get(module.path, set())
    return [
        module.offence(line, f"imports {name}, which is not a dependency")
        for line, name in module.imports()
        if name.split(".")[0] not in allowed
    ]


def only_cli_knows_the_screen(module: Module) -> list[str]:
    if module.room in AT_THE_SCREEN:
        return []
    imported = [
        module.offence(line, f"imports {name}")
        for line, name in module.imports()
        if name.split(".")[0] in SCREEN | {"logging"}
    ]
    printed = [
        module.offence(node.lineno, "prints")
        for node in module.nodes(ast.Name)
        if identifier(node) == "print"
    ]
    return imported + printed


def only_strategy_uses_seedable_generators(module: Module) -> list[str]:
    if module.room == "strategy":
        return []
    imported = [
        module.offence(line, f"imports {name}")
        for line, name in module.imports()
        if any(name == source or name.startswith(f"{source}.") for source in GENERATORS)
    ]
    used = [
        module.offence(node.lineno, f"uses {node.attr}")
        for node in module.nodes(ast.Attribute)
        if node.attr in SEEDED
    ]
    return imported + used


def only_the_operating_system_gives_random_bits(module: Module) -> list[str]:
    """The bulk sampler takes a source of bytes, for the tests: the product passes none."""
    passed = [
        module.offence(node.lineno, "passes a source of bytes")
        for node in module.nodes(ast.keyword)
        if node.arg == "entropy"
    ]
    named = [
        module.offence(node.lineno, f"uses {identifier(node)}")
        for node in module.nodes(ast.Name, ast.Attribute)
        if identifier(node) in {"BulkSampler", "SlowSampler", "ExactChance"}
        and module.room != "measurement"
    ]
    chance = [
        module.offence(node.lineno, "gives the exact chance something to decide by")
        for node in module.nodes(ast.Call)
        if identifier(node.func) == "ExactChance" and (node.args or node.keywords)
    ]
    return passed + named + chance


def only_the_rehearsal_takes_chance_with_a_seed(module: Module) -> list[str]:
    """RAP's loop on private data must never be handed the chance that public rehearsals have."""
    if module.path == "planning/rehearsal.py":
        return []
    return [
        module.offence(line, f"imports {name}")
        for line, name in module.imports()
        if name.startswith("dpquery.strategy.seeded_chance")
    ]


def strategy_and_reconstruction_cannot_open_data(module: Module) -> list[str]:
    if module.room not in {"strategy", "reconstruction"}:
        return []
    imported = [
        module.offence(line, f"imports {name}")
        for line, name in module.imports()
        if name.split(".")[0] in READERS
    ]
    opened = [
        module.offence(node.lineno, f"could open a file: {identifier(node)}")
        for node in module.nodes(ast.Name, ast.Attribute)
        if identifier(node) in OPENERS
    ]
    return imported + opened


def asserts_never_validate(module: Module) -> list[str]:
    return [module.offence(node.lineno, "asserts") for node in module.nodes(ast.Assert)]


def errors_are_caught_by_name(module: Module) -> list[str]:
    return [
        module.offence(handler.lineno, "catches everything")
        for handler in module.nodes(ast.ExceptHandler)
        if handler.type is None
        or (catches_all(handler) and not cleans_up(handler) and module.path not in CATCH_ALL)
    ]


def catches_all(handler: ast.ExceptHandler) -> bool:
    caught = {identifier(node) for node in ast.walk(handler.type)}
    return not caught.isdisjoint({"Exception", "BaseException"})


def cleans_up(handler: ast.ExceptHandler) -> bool:
    """Whether the error goes on as it came once the handler has tidied up."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def nothing_is_global(module: Module) -> list[str]:
    return [module.offence(node.lineno, "has global state") for node in module.nodes(ast.Global)]


def files_and_functions_are_short(module: Module) -> list[str]:
    lines = len(module.source.splitlines())
    long_file = [module.offence(lines, f"has {lines} lines")] if lines > MAX_FILE else []
    long_functions = [
        module.offence(node.lineno, f"{node.name} has {body_lines(node)} lines")
        for node in module.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        if body_lines(node) > MAX_FUNCTION
    ]
    return long_file + long_functions


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function from its `def`, docstring not counted."""
    first = function.body[0]
    documented = ast.get_docstring(function, clean=False) is not None
    docstring = first.end_lineno - first.lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - docstring


def identifier(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


RULES: tuple[Callable[[Module], list[str]], ...] = (
    imports_run_one_way,
    imports_are_absolute_and_static,
    only_agreed_libraries_are_imported,
    only_cli_knows_the_screen,
    only_strategy_uses_seedable_generators,
    only_the_operating_system_gives_random_bits,
    only_the_rehearsal_takes_chance_with_a_seed,
    strategy_and_reconstruction_cannot_open_data,
    asserts_never_validate,
    errors_are_caught_by_name,
    nothing_is_global,
    files_and_functions_are_short,
)
