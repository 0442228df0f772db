"""Record which functions of the product each test executes: `pytest -p mistakes.executed`.

Every function of dpquery tells its name when it is entered, by a statement that is added when its
module is imported; files stay as they are. The map says which tests may notice a mistake in a
function, and which tests a change calls for (`make near`). What runs in a program of its own, and
what an earlier test left in a cache, is not seen.
"""

import ast
import importlib.machinery
import json
import os
import sys
import time

import pytest
from mistakes.run import MAP, functions_in

_entered: set[str] = set()


class _Loader(importlib.machinery.SourceFileLoader):
    """Compile a module with the added statements, and keep no compiled file of it."""

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        return compile(_telling(self.get_data(path), fullname), path, "exec", dont_inherit=True)

    def exec_module(self, module):
        module.__dict__["_entered"] = _entered
        super().exec_module(module)


class _Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] != "dpquery":
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def _telling(source: bytes, module: str) -> ast.Module:
    """Add to every function a first statement that tells its name."""
    tree = ast.parse(source)
    for name, function in list(functions_in(tree, module)):
        first = function.body[0]
        told = ast.parse(f"_entered.add({name!r})").body[0]
        for part in ast.walk(told):
            ast.copy_location(part, first)
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        function.body.insert(int(documented), told)
    return tree


sys.meta_path.insert(0, _Finder)
_of_fixtures: dict[object, set[str]] = {}
_of_tests: dict[str, tuple[float, set[str]]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Whoever uses what is made once for many tests is told of all that made it."""
    before = _entered.copy()
    _entered.clear()
    try:
        return (yield)
    finally:
        _of_fixtures[fixturedef] = _entered.copy()
        _entered.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    _entered.clear()
    started = time.process_time()
    try:
        return (yield)
    finally:
        found = _entered.copy()
        fixtures = getattr(item, "_fixtureinfo", None)
        for definitions in fixtures.name2fixturedefs.values() if fixtures else ():
            found.update(*(_of_fixtures.get(definition, ()) for definition in definitions))
        seconds, known = _of_tests.get(item.nodeid, (0.0, set()))
        _of_tests[item.nodeid] = seconds + time.process_time() - started, known | found


def pytest_sessionfinish():
    MAP.mkdir(parents=True, exist_ok=True)
    with open(MAP / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.jsonl", "w") as file:
        for test, (seconds, names) in _of_tests.items():
            file.write(json.dumps([test, round(seconds, 3), sorted(names)]) + "\n")
