"""The house rules that no other tool checks: who may import whom, and who may touch what.

A rule is a function from one module, or from all of them, to the offences, so that every rule can
be shown to catch a planted offence: a rule that never fires looks just like a rule that is kept.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from python_files import Module

# All rooms in order: a module imports from its own room and from those before it in this list, and
# from nowhere else of dpquery. An entry is a folder, with the folders in it that have no entry of
# their own, or a file, by its dotted name below dpquery. Within a room only files that import each
# other in a circle are refused. "__init__" is the package itself: what it exports is for users, and
# no room imports it.
ROOMS = (
    "version",
    "exceptions",
    "arrays",
    "limits",
    "progress",
    "public_chance",
    "untrusted",
    "spec",
    "operators",
    "strategy",
    "plan_file",
    "measurement.gdp",
    "measurement.noise.laws",
    "measurement.accounting",
    "measurement.counting",
    "measurement.noise",
    "measurement.ledger",
    "measurement",
    "reconstruction",
    "releases",
    "planning",
    "mechanisms",
    "commands",
    "audit",
    "data_check",
    "cli",
    "__init__",
    "__main__",
)
DEPENDENCIES = {"numpy", "scipy", "pandas", "pyarrow", "yaml", "opendp", "typer", "rich"}
DEPENDENCIES |= {"threadpoolctl"}
SCREEN, AT_THE_SCREEN = {"typer", "rich"}, {"cli"}
MAX_FILE, MAX_FUNCTION = 660, 60

# What a single module may do and no other, by its dotted name below dpquery.
EXTRAS = {
    "spec.code_books": {"pyreadstat"},
    "reconstruction.graphical_model": {"jax", "mbi"},
    "releases.package.write": {"xlsxwriter"},
    "measurement.counting.databases": {"duckdb", "adbc_driver_manager"},
    "audit.cases": {"duckdb"},
    "measurement.counting.engines.spark": {"pyspark", "py4j"},
}
"""Libraries that may be missing, and the modules that may import them."""
CATCH_ALL = {"cli.app": "the last stop: the unforeseen ends as exit code 70 without a traceback"}
"""Modules that may catch everything and go on, each for the reason given."""
WITH_A_SEED = {"planning.rehearsal.runs"}
"""Modules that may hand RAP a chance that can be had again: they run it on public data alone."""

DRAWS_ALIKE = "measurement.counting.tally"
"""The module that draws keys and priorities from a secret, so that several machines draw alike."""

WITH_GENERATOR = "public_chance"
"""The module that makes generators, all of public seeds; measurement may not import it."""

# The room that shows what the records hold lies apart from every way of a release.
APART = "data_check"
SHOWS_RECORDS = {"cli.commands", "cli.show_checks"}
"""The modules that may ask it."""
KNOWN_APART = (
    "exceptions",
    "arrays",
    "limits",
    "progress",
    "untrusted",
    "spec",
    "measurement.counting",
    APART,
)
"""The rooms that it may know: how a file is read, and nothing of ledger, noise or curator."""

# What could open a file.
READERS = {"csv", "pandas", "pyarrow", "sqlite3", "mmap", "io", "os", "pathlib", "urllib", "socket"}
OPENERS = {"open", "read_csv", "read_text", "read_bytes", "read_table", "read_parquet"}
OPENERS |= {"fromfile", "genfromtxt", "loadtxt", "memmap"}

GENERATORS = {"random", "secrets", "numpy.random"}
SEEDED = {"random", "rvs", "random_state", "default_rng", "RandomState", "random_array"}
DRAWN_FROM = {"rng", "_rng"}  # names of a generator that was handed on: rng.random(3)


def room_of(name: str, rooms: Sequence[str] = ROOMS) -> str | None:
    """Return the innermost room of a dpquery module, or of a name in it; None where it has none."""
    parts = name.split(".")[1:]
    for length in range(len(parts), 0, -1):
        if (room := ".".join(parts[:length])) in rooms:
            return room
    return "__init__" if len(parts) <= 1 else None  # `from dpquery import plan`


def imports_run_one_way(module: Module, rooms: Sequence[str] = ROOMS) -> list[str]:
    """Imports within functions and for TYPE_CHECKING count like any other."""
    room, offences = room_of(module.name, rooms), []
    for line, name in module.imports:
        if name.split(".")[0] != "dpquery":
            continue
        other = room_of(name, rooms)
        if room is None or other is None:
            offences.append(module.offence(line, f"imports {name}: one of them has no room"))
        elif rooms.index(other) > rooms.index(room):
            offences.append(module.offence(line, f"imports {name}, a room after {room}"))
    return offences


def imports_are_absolute_and_static(module: Module) -> list[str]:
    named = [
        module.offence(line, f"imports {name}")
        for line, name in module.imports
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
    allowed |= EXTRAS.get(below(module), set())
    return [
        module.offence(line, f"imports {name}, which is not a dependency")
        for line, name in module.imports
        if name.split(".")[0] not in allowed
    ]


def only_cli_knows_the_screen(module: Module) -> list[str]:
    if module.room in AT_THE_SCREEN:
        return []
    imported = [
        module.offence(line, f"imports {name}")
        for line, name in module.imports
        if name.split(".")[0] in SCREEN | {"logging"}
    ]
    printed = [
        module.offence(node.lineno, "prints")
        for node in module.nodes(ast.Name)
        if identifier(node) == "print"
    ]
    return imported + printed


def only_one_module_makes_generators(module: Module) -> list[str]:
    if below(module) == WITH_GENERATOR:
        return []
    imported = [
        module.offence(line, f"imports {name}")
        for line, name in module.imports
        if any(name == source or name.startswith(f"{source}.") for source in GENERATORS)
        or (module.room == "measurement" and WITH_GENERATOR in name.split("."))
    ]
    used = [
        module.offence(node.lineno, f"uses {node.attr}")
        for node in module.nodes(ast.Attribute)
        if node.attr in SEEDED and identifier(node.value) not in DRAWN_FROM
    ]
    return imported + used


def only_the_operating_system_gives_random_bits(module: Module) -> list[str]:
    """The bulk sampler takes a source of bytes, for the tests: the product passes none.

    Which rows of a person stay follows on several machines from a secret, in one module, and the
    secret is fresh from the operating system.
    """
    expands = below(module) == DRAWS_ALIKE
    passed = [
        module.offence(node.lineno, "passes a source of bytes")
        for node in module.nodes(ast.keyword)
        if node.arg == "entropy"
        or (node.arg == "random_bytes" and not expands)
        or (node.arg == "secret" and ast.unparse(node.value) != "os.urandom(32)")
    ]
    named = [
        module.offence(node.lineno, f"uses {identifier(node)}")
        for node in module.nodes(ast.Name, ast.Attribute)
        if identifier(node) in {"BulkSampler", "SlowSampler", "ExactChance"}
        and module.room != "measurement"
    ]
    named += [
        module.offence(node.lineno, "expands a secret")
        for node in module.nodes(ast.Name, ast.Attribute)
        if identifier(node) == "ExpandedSecret" and not expands
    ]
    chance = [
        module.offence(node.lineno, "gives the exact chance something to decide by")
        for node in module.nodes(ast.Call)
        if identifier(node.func) == "ExactChance" and (node.args or node.keywords)
    ]
    return passed + named + chance


def only_the_rehearsal_takes_chance_with_a_seed(module: Module) -> list[str]:
    """RAP's loop on private data must never be handed the chance that public rehearsals have."""
    if below(module) in WITH_A_SEED:
        return []
    return [
        module.offence(line, f"imports {name}")
        for line, name in module.imports
        if "SeededChance" in name.split(".")
    ]


def strategy_and_reconstruction_cannot_open_data(module: Module) -> list[str]:
    if module.room not in {"strategy", "reconstruction"}:
        return []
    imported = [
        module.offence(line, f"imports {name}")
        for line, name in module.imports
        if name.split(".")[0] in READERS
    ]
    opened = [
        module.offence(node.lineno, f"could open a file: {identifier(node)}")
        for node in module.nodes(ast.Name, ast.Attribute)
        if identifier(node) in OPENERS
    ]
    return imported + opened


def the_check_of_data_lies_apart(module: Module) -> list[str]:
    """It reads the records and says what is in them; no release may come there, nor it to one."""
    inside = room_of(module.name) == APART
    if below(module) in SHOWS_RECORDS:
        return []
    return [
        module.offence(line, f"imports {name}: what shows the records lies apart")
        for line, name in module.imports
        if name.split(".")[0] == "dpquery"
        and (room_of(name) not in KNOWN_APART if inside else room_of(name) == APART)
    ]


def asserts_never_validate(module: Module) -> list[str]:
    return [module.offence(node.lineno, "asserts") for node in module.nodes(ast.Assert)]


def errors_are_caught_by_name(module: Module) -> list[str]:
    return [
        module.offence(handler.lineno, "catches everything")
        for handler in module.nodes(ast.ExceptHandler)
        if handler.type is None
        or (catches_all(handler) and not cleans_up(handler) and below(module) not in CATCH_ALL)
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


def rooms_are_as_listed(modules: Sequence[Module], rooms: Sequence[str] = ROOMS) -> list[str]:
    """Every module is in a room, and every entry of the list is a folder or a file."""
    inside = {room_of(module.name, rooms) for module in modules}
    missing = [
        f"the list of rooms has {room!r}, which is not there"
        for room in rooms
        if room not in inside
    ]
    return missing + [
        module.offence(1, "neither the file nor a folder around it is in the list of rooms")
        for module in modules
        if room_of(module.name, rooms) is None
    ]


def below(module: Module) -> str:
    """Return the dotted name of a module below dpquery."""
    return module.name.partition(".")[2] or "__init__"


def imports_make_no_cycle(modules: Sequence[Module]) -> list[str]:
    """Imports within functions and for TYPE_CHECKING count like any other."""
    try:
        TopologicalSorter(import_graph(modules)).prepare()
    except CycleError as error:
        return [f"imports go round: {' <- '.join(error.args[1])}"]
    return []


def import_graph(modules: Sequence[Module]) -> dict[str, set[str]]:
    """Return for every module the modules that it imports, or imports a name from."""
    names = {module.name for module in modules}
    return {
        module.name: {part for _, name in module.imports if (part := module_part(name, names))}
        for module in modules
    }


def module_part(name: str, names: Mapping[str, object] | set[str]) -> str:
    """Return the longest part of a dotted name that is a module, or nothing."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name


def public_names_have_one_meaning(modules: Sequence[Module]) -> list[str]:
    """Functions, classes and constants."""
    places = defaultdict(set)
    for module in modules:
        for name in {definition.name for definition in module.definitions}:
            if "." not in name and not name.startswith("_"):
                places[name].add(module.name)
    return [
        f"{name} is defined in {', '.join(sorted(where))}: give each meaning its own name"
        for name, where in places.items()
        if len(where) > 1
    ]


RULES: tuple[Callable[[Module], list[str]], ...] = (
    imports_run_one_way,
    imports_are_absolute_and_static,
    only_agreed_libraries_are_imported,
    only_cli_knows_the_screen,
    only_one_module_makes_generators,
    only_the_operating_system_gives_random_bits,
    only_the_rehearsal_takes_chance_with_a_seed,
    strategy_and_reconstruction_cannot_open_data,
    the_check_of_data_lies_apart,
    asserts_never_validate,
    errors_are_caught_by_name,
    nothing_is_global,
    files_and_functions_are_short,
)

PACKAGE_RULES: tuple[Callable[[Sequence[Module]], list[str]], ...] = (
    rooms_are_as_listed,
    imports_make_no_cycle,
    public_names_have_one_meaning,
)
