"""The package keeps the house rules, the tests are as short, and every rule catches an offence."""

import ast
import re
import subprocess
from collections.abc import Callable
from functools import cache
from itertools import chain

import pytest
from house_rules import (
    CATCH_ALL,
    EXTRAS,
    MAX_FILE,
    MAX_FUNCTION,
    PACKAGE_RULES,
    ROOMS,
    RULES,
    WITH_A_SEED,
    WITH_GENERATOR,
    below,
    files_and_functions_are_short,
    import_graph,
    imports_make_no_cycle,
    imports_run_one_way,
    module_part,
    public_names_have_one_meaning,
    rooms_are_as_listed,
)
from python_files import ROOT, TESTS, Module, find, modules, package

from dpquery import limits

TOP_LEVEL = {"pyproject.toml", "README.md", "Makefile", "dpquery", "workloads", "tests"}
TOP_LEVEL |= {"sample_data"}

# Rooms from which the data can be reached, and the functions through which they would come in.
WITH_DATA = {"measurement", "planning", "mechanisms", "commands", "audit", "cli"}
WITH_DATA |= {"__main__", "__init__", "data_check"}
DATALESS = sorted({room.split(".")[0] for room in ROOMS} - WITH_DATA)
DOORS = ("tabulate", "check_header", "measure")

# Written so as not to match themselves.
PRIVATE = re.compile(r"/wor[k]/|/hom[e]/\w+/|/User[s]/\w+/|/roo[t]/|bash[_]jobs")


@cache
def tracked() -> tuple[str, ...]:
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return tuple(filter(None, listing.stdout.split("\0")))


# Offences behind each rule: file: source, lines ends as \n.
OFFENCES = r"""
imports_run_one_way
    spec/a.py: def f():\n    import dpquery.releases.folder.write
    operators/a.py: from dpquery import strategy
    releases/a.py: from dpquery.commands.plan import plan
    commands/a.py: from dpquery.cli.app import main
    spec/a.py: from dpquery import plan
    cli/a.py: import dpquery
    commands/a.py: from dpquery.audit.run import audit
    audit/a.py: from dpquery.cli.app import main
    exceptions.py: from dpquery.spec.spec import Spec
    spec/a.py: if TYPE_CHECKING:\n    from dpquery.operators import b
    releases/a.py: import dpquery.nowhere.b
    nowhere/a.py: from dpquery.exceptions import SpecError
imports_are_absolute_and_static
    spec/a.py: from .model import Spec
    spec/a.py: from dpquery.spec.spec import *
    spec/a.py: __import__('dpquery.releases')
    a.py: import importlib as i\ni.import_module('x')
only_agreed_libraries_are_imported
    spec/a.py: import requests
    reconstruction/a.py: from mbi import Domain
only_cli_knows_the_screen
    commands/a.py: from rich.table import Table
    spec/a.py: import logging
    spec/a.py: print('x')
only_one_module_makes_generators
    spec/a.py: from numpy import random
    spec/a.py: from random import gauss
    measurement/a.py: np.random.normal(3)
    measurement/a.py: stats.norm.rvs(3)
    strategy/a.py: np.random.default_rng(0)
    strategy/a.py: from numpy.random import Generator
    measurement/a.py: from dpquery.public_chance import public_generator
    measurement/a.py: from dpquery import public_chance
only_the_operating_system_gives_random_bits
    measurement/a.py: f('x', 2.0, entropy=g)
    measurement/counting/tabulate.py: KeptRows(random_bytes=g)
    measurement/counting/tally.py: f(entropy=ExpandedSecret(secret, b'rows'))
    measurement/noise/a.py: BulkSampler('x', 2.0, f=persons.ExpandedSecret(s, b''))
    measurement/counting/tabulate.py: partial(RecordTally, spec, secret=key)
    measurement/counting/tally.py: RecordTally(secret=b'known')
    releases/a.py: bulk.BulkSampler('x', 2.0)
    measurement/a.py: s.ExactChance(g)
only_the_rehearsal_takes_chance_with_a_seed
    measurement/a.py: from dpquery.planning.rehearsal.runs import SeededChance
    commands/a.py: import dpquery.planning.rehearsal.runs.SeededChance
    measurement/a.py: from dpquery.operators.chance import SeededChance
strategy_and_reconstruction_cannot_open_data
    strategy/a.py: import pyarrow.csv
    strategy/a.py: open('data.csv')
    reconstruction/a.py: path.read_text()
the_check_of_data_lies_apart
    commands/a.py: from dpquery.data_check.check import check
    cli/a.py: def f():\n    import dpquery.data_check
    audit/checks/a.py: from dpquery import data_check
    __init__.py: from dpquery.data_check import check
    data_check/a.py: from dpquery.measurement.ledger.ledger import Ledger
    data_check/a.py: from dpquery.measurement import curator
    data_check/a.py: def f():\n    from dpquery.measurement.noise.exact_noise import draw
asserts_never_validate
    spec/a.py: assert x
errors_are_caught_by_name
    a/b.py: try:\n    f()\nexcept:\n    pass
    spec/a.py: try:\n    f()\nexcept (A, Exception):\n    pass
    spec/a.py: try:\n    f()\nexcept Exception as e:\n    raise e
nothing_is_global
    spec/a.py: def f():\n    global x
"""
LONG = ("x = 1\n" * (MAX_FILE + 1), "def f():\n" + "    x = 1\n" * MAX_FUNCTION)


def planted() -> list[tuple[Callable[[Module], list[str]], str, str]]:
    """Return every rule with the files and the sources that break it."""
    by_name = {rule.__name__: rule for rule in RULES}
    rows, rule = [], RULES[0]
    for line in OFFENCES.strip().split("\n"):
        path, _, source = line.strip().partition(": ")
        rule = rule if line.startswith(" ") else by_name[path]
        rows += [(rule, path, source.replace(r"\n", "\n"))] * bool(source)
    return rows + [(files_and_functions_are_short, "spec/a.py", text) for text in LONG]


PLANTED = planted()


@pytest.mark.parametrize("rule", [*RULES, *PACKAGE_RULES], ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Callable[..., list[str]]) -> None:
    offences = [rule(package())] if rule in PACKAGE_RULES else map(rule, package())
    assert [*chain.from_iterable(offences)] == []


@pytest.mark.nightly
def test_files_and_functions_of_the_tests_are_short_too() -> None:
    offences = [
        offence for module in modules(TESTS) for offence in files_and_functions_are_short(module)
    ]
    assert offences == []


@pytest.mark.parametrize(("rule", "path", "source"), PLANTED)
def test_the_rule_catches_a_planted_offence(
    rule: Callable[[Module], list[str]], path: str, source: str
) -> None:
    assert rule(Module.of(path, source))


def test_every_rule_has_a_planted_offence() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(RULES)


def made_up(sources: dict[str, str]) -> tuple[Module, ...]:
    return tuple(Module.of(path, source) for path, source in sources.items())


NESTED = ("outer.low", "other", "outer", "outer.low.high")
"""A list of rooms in which folders lie in folders."""


@pytest.mark.parametrize(
    ("path", "source", "offences"),
    [
        ("outer/a.py", "from dpquery.outer import b\nfrom dpquery.outer.low import c", 0),
        ("other/a.py", "from dpquery.outer.low.c import f", 0),
        ("outer/low/high/a.py", "from dpquery.outer import b", 0),
        ("other/a.py", "from dpquery.outer import b", 1),
        ("outer/low/c.py", "from dpquery.outer import b", 1),
        ("outer/b.py", "def f():\n    from dpquery.outer.low.high.a import g", 1),
        ("outer/b.py", "import dpquery.outer.lower.a, dpquery.outer, dpquery.nowhere.a", 1),
    ],
)
def test_a_module_stands_in_the_innermost_room(path: str, source: str, offences: int) -> None:
    assert len(imports_run_one_way(Module.of(path, source), NESTED)) == offences


def test_the_list_of_rooms_is_neither_too_short_nor_too_long() -> None:
    kept, rooms = {"outer/low/new/b.py": "", "other.py": ""}, ("outer.low", "other")
    assert rooms_are_as_listed(made_up(kept), rooms) == []
    assert len(rooms_are_as_listed(made_up(kept), (*rooms, "gone"))) == 1
    for path in ("outer/b.py", "fresh/a.py"):
        assert len(rooms_are_as_listed(made_up({**kept, path: ""}), rooms)) == 1


def test_imports_that_go_round_and_names_of_two_meanings_are_seen() -> None:
    way = {"a.py": "from dpquery.low.b import g", "low/b.py": "import dpquery.low.c"}
    assert imports_make_no_cycle(made_up({**way, "low/c.py": "import numpy"})) == []
    for imported in ("from dpquery.a import f", "import dpquery.a", "from dpquery import a"):
        for source in (imported, f"def g():\n    {imported}", f"if TYPE_CHECKING:\n    {imported}"):
            (offence,) = imports_make_no_cycle(made_up({**way, "low/c.py": source}))
            assert "dpquery.low.c" in offence
    apart = {"a.py": "class A: ...\n_B = x = 1", "b.py": "def f():\n    def A(): x = 1\n_B = 2"}
    assert public_names_have_one_meaning(made_up(apart)) == []
    for source in ("def A(): ...", "A = 2", "A: int = 2", "if x:\n    class A: ...", "B, A = C"):
        (offence,) = public_names_have_one_meaning(made_up({**apart, "c.py": source}))
        assert "A is defined in dpquery.a, dpquery.c" in offence


@pytest.mark.parametrize("name", sorted({*EXTRAS, *CATCH_ALL, *WITH_A_SEED, WITH_GENERATOR}))
def test_what_one_module_alone_may_do_is_allowed_to_one_module(name: str) -> None:
    assert [below(module) for module in package()].count(name) == 1


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return every module that importing `start` loads, packages on the way included."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in seen or name not in graph:
            continue
        seen.add(name)
        # The package itself loads nothing but its version, as a test says; no room imports it.
        parent = name.rpartition(".")[0]
        todo += [*graph[name], *([parent] if "." in parent else [])]
    return seen


@pytest.mark.parametrize("room", DATALESS)
def test_only_measurement_can_reach_the_data(room: str) -> None:
    graph = import_graph(package())
    doors = {find(name, package()).module.name for name in DOORS}
    inside = [module.name for module in package() if module.room in {room, f"{room}.py"}]
    assert inside
    assert {name: reached for name in inside if (reached := reachable(graph, name) & doors)} == {}


def test_no_way_of_a_release_leads_to_the_check_of_data_and_none_from_it_to_the_ledger() -> None:
    graph = import_graph(package())
    apart = {module.name for module in package() if module.room == "data_check"}
    assert apart
    ways = ("commands.release", "commands.answer", "commands.plan", "audit.run")
    for start in ("measurement.curator", "mechanisms.choose", *ways):
        assert reachable(graph, f"dpquery.{start}") & apart == set()
    known = set().union(*(reachable(graph, name) for name in apart))
    assert "dpquery.measurement.counting.column_codes" in known
    assert "dpquery.measurement.curator" not in known
    refused = ("ledger", "noise", "rounds", "query", "discovery")
    refused = (*(f"measurement.{name}" for name in refused), "releases", "commands")
    assert [
        name for name in known if name.startswith(tuple(f"dpquery.{own}" for own in refused))
    ] == []


def test_the_top_level_holds_only_what_is_agreed() -> None:
    entries = {path.split("/")[0] for path in tracked()}
    assert {entry for entry in entries if not entry.startswith(".")} <= TOP_LEVEL


def test_no_tracked_file_names_a_private_path() -> None:
    leaks = []
    for path in tracked():
        file = ROOT / path
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        leaks += [f"{path}: {match[0]}" for match in PRIVATE.finditer(text)]
    assert leaks == []


def texts_of(module: Module) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.value)
        for node in module.nodes(ast.Constant)
        if isinstance(node.value, str)
    ]


def test_every_module_that_a_text_of_the_tests_names_is_there() -> None:
    """So a module that moves is missed at once, and not where a slow test replaces something."""
    names = {module.name: module for module in package()}
    rooms, offences = {module.room.removesuffix(".py") for module in package()}, []
    for file in sorted(TESTS.rglob("*.py")):
        if file.name == "test_architecture.py":
            continue
        for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            for name in re.findall(r"\bdpquery(?:\.\w+)+", text):
                if name.split(".")[1] in rooms and not is_there(name, names):
                    offences.append(f"{file.name}:{line}: {name} is not there")
    assert offences == []


def is_there(name: str, names: dict[str, Module]) -> bool:
    """Whether a dotted name is a folder, a module, or of something that a module binds."""
    if any(module.startswith(f"{name}.") for module in names):
        return True
    module = module_part(name, names)
    rest = name.removeprefix(module).split(".")[1:]
    bound = {definition.name for definition in names[module].definitions}
    for node in names[module].nodes(ast.Import, ast.ImportFrom):
        bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return not rest or rest[0] in bound


@pytest.mark.nightly
def test_no_test_names_a_file_of_the_product_by_its_path() -> None:
    paths = {module.path for module in package() if "/" in module.path}
    offences = [
        module.offence(line, f"names {path}")
        for module in modules(TESTS)
        for line, text in texts_of(module)
        if text != OFFENCES  # whose files are made up
        for path in re.findall(r"[\w/]+\.py\b", text)
        if path.removeprefix("dpquery/") in paths
    ]
    assert offences == []


def test_every_limit_is_used_and_no_other_module_defines_one_of_its_name() -> None:
    names = {name for name in vars(limits) if name.isupper()}
    others = [module for module in package() if module.name != "dpquery.limits"]
    imported = {name for module in others for _, name in module.imports}
    assert {f"dpquery.limits.{name}" for name in names} <= imported
    assert names.isdisjoint(own.name for module in others for own in module.definitions)
    assert limits.MAX_STRATEGY_CELLS <= limits.MAX_COUNTED_CELLS
