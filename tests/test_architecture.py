"""The package keeps the house rules, the tests are as short, and every rule catches an offence."""

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from house_rules import (
    BEYOND,
    ROOMS,
    RULES,
    Module,
    asserts_never_validate,
    errors_are_caught_by_name,
    files_and_functions_are_short,
    imports_are_absolute_and_static,
    imports_run_one_way,
    nothing_is_global,
    only_agreed_libraries_are_imported,
    only_cli_knows_the_screen,
    only_strategy_uses_seedable_generators,
    only_the_operating_system_gives_random_bits,
    only_the_rehearsal_takes_chance_with_a_seed,
    strategy_and_reconstruction_cannot_open_data,
)

ROOT = Path(__file__).parents[1]
PACKAGE, TESTS = ROOT / "dpquery", ROOT / "tests"

TOP_LEVEL = {"pyproject.toml", "README.md", "Makefile", "dpquery", "workloads", "tests"}
TOP_LEVEL |= {"sample_data"}

# Rooms that work without data, and the modules through which data could come in.
DATALESS = ("spec", "operators", "strategy", "reconstruction", "release")
DOORS = {"dpquery.measurement.tabulate", "dpquery.measurement.curator"}

# Written so as not to match themselves.
PRIVATE = re.compile(r"/wor[k]/|/hom[e]/\w+/|/User[s]/\w+/|/roo[t]/|bash[_]jobs")


@cache
def modules(folder: Path) -> tuple[Module, ...]:
    return tuple(
        Module.of(file.relative_to(folder).as_posix(), file.read_text(encoding="utf-8"))
        for file in sorted(folder.rglob("*.py"))
    )


def package() -> tuple[Module, ...]:
    return modules(PACKAGE)


@cache
def tracked() -> tuple[str, ...]:
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return tuple(filter(None, listing.stdout.split("\0")))


PLANTED = [
    (imports_run_one_way, "spec/a.py", "def f():\n    import dpquery.release.write"),
    (imports_run_one_way, "operators/a.py", "from dpquery import strategy"),
    (imports_run_one_way, "release/a.py", "from dpquery.pipeline import plan"),
    (imports_run_one_way, "pipeline.py", "from dpquery.cli import main"),
    (imports_run_one_way, "pipeline.py", "from dpquery.audit.run import audit"),
    (imports_run_one_way, "audit/a.py", "from dpquery.cli import main"),
    (imports_run_one_way, "exceptions.py", "from dpquery.spec.model import Spec"),
    (imports_are_absolute_and_static, "spec/a.py", "from .model import Spec"),
    (imports_are_absolute_and_static, "spec/a.py", "from dpquery.spec.model import *"),
    (imports_are_absolute_and_static, "spec/a.py", "__import__('dpquery.release')"),
    (imports_are_absolute_and_static, "a.py", "import importlib as i\ni.import_module('x')"),
    (only_agreed_libraries_are_imported, "spec/a.py", "import requests"),
    (only_agreed_libraries_are_imported, "reconstruction/a.py", "from mbi import Domain"),
    (only_cli_knows_the_screen, "pipeline.py", "from rich.table import Table"),
    (only_cli_knows_the_screen, "spec/a.py", "import logging"),
    (only_cli_knows_the_screen, "spec/a.py", "print('x')"),
    (only_strategy_uses_seedable_generators, "spec/a.py", "from numpy import random"),
    (only_strategy_uses_seedable_generators, "spec/a.py", "from random import gauss"),
    (only_strategy_uses_seedable_generators, "measurement/a.py", "np.random.normal(3)"),
    (only_strategy_uses_seedable_generators, "measurement/a.py", "stats.norm.rvs(3)"),
    (only_the_operating_system_gives_random_bits, "measurement/a.py", "f('x', 2.0, entropy=g)"),
    (only_the_operating_system_gives_random_bits, "release/a.py", "bulk.BulkSampler('x', 2.0)"),
    (only_the_operating_system_gives_random_bits, "measurement/a.py", "s.ExactChance(g)"),
    (
        only_the_rehearsal_takes_chance_with_a_seed,
        "measurement/a.py",
        "from dpquery.strategy.seeded_chance import SeededChance",
    ),
    (
        only_the_rehearsal_takes_chance_with_a_seed,
        "pipeline.py",
        "import dpquery.strategy.seeded_chance",
    ),
    (strategy_and_reconstruction_cannot_open_data, "strategy/a.py", "import pyarrow.csv"),
    (strategy_and_reconstruction_cannot_open_data, "strategy/a.py", "open('data.csv')"),
    (strategy_and_reconstruction_cannot_open_data, "reconstruction/a.py", "path.read_text()"),
    (asserts_never_validate, "spec/a.py", "assert x"),
    (errors_are_caught_by_name, "cli/app.py", "try:\n    f()\nexcept:\n    pass"),
    (errors_are_caught_by_name, "spec/a.py", "try:\n    f()\nexcept (A, Exception):\n    pass"),
    (errors_are_caught_by_name, "spec/a.py", "try:\n    f()\nexcept Exception as e:\n    raise e"),
    (nothing_is_global, "spec/a.py", "def f():\n    global x"),
    (files_and_functions_are_short, "spec/a.py", "x = 1\n" * 401),
    (files_and_functions_are_short, "spec/a.py", "def f():\n" + "    x = 1\n" * 40),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Callable[[Module], list[str]]) -> None:
    assert [offence for module in package() for offence in rule(module)] == []


def test_files_and_functions_of_the_tests_are_short_too() -> None:
    offences = [own for module in modules(TESTS) for own in files_and_functions_are_short(module)]
    assert offences == []


@pytest.mark.parametrize(("rule", "path", "source"), PLANTED)
def test_the_rule_catches_a_planted_offence(
    rule: Callable[[Module], list[str]], path: str, source: str
) -> None:
    assert rule(Module.of(path, source))


def test_every_rule_has_a_planted_offence() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(RULES)


def test_a_long_docstring_does_not_make_a_function_long() -> None:
    docstring = '    """Do.\n' + "    more\n" * 50 + '    """\n'
    source = "def f():\n" + docstring + "    x = 1\n" * 39
    assert files_and_functions_are_short(Module.of("spec/a.py", source)) == []


def test_cleaning_up_before_passing_an_error_on_is_no_offence() -> None:
    source = "try:\n    f()\nexcept BaseException:\n    tidy()\n    raise"
    assert errors_are_caught_by_name(Module.of("release/a.py", source)) == []


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return every module that importing `start` loads, packages on the way included."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in seen or name not in graph:
            continue
        seen.add(name)
        todo += [*graph[name], name.rpartition(".")[0]]
    return seen


def import_graph() -> dict[str, set[str]]:
    names = {module.name for module in package()}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for module in package():
        for _, name in module.imports():
            # `from a import b`: b may be a module of its own or a name in module a.
            graph[module.name] |= {name, name.rpartition(".")[0]} & names
    return graph


@pytest.mark.parametrize("room", DATALESS)
def test_only_measurement_can_reach_the_data(room: str) -> None:
    graph = import_graph()
    inside = [module.name for module in package() if module.room == room]
    assert {name: found for name in inside if (found := reachable(graph, name) & DOORS)} == {}


def test_the_package_is_laid_out_as_six_rooms_and_what_unites_them() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"__pycache__", "docs"}
    assert folders == {*ROOMS, *BEYOND}
    assert [m.path for m in package() if m.path.count("/") > 1] == []


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
