"""Run the tests that a change calls for, cheapest first: `make near`, `make near BASE=main`.

Which test executes which function was recorded by the last `make night`
(mistakes/executed.py). A test file that changed itself is run as a whole.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "build" / "executed"
"""A file a process: a line a test function, with its CPU seconds and the functions it executes."""
SECONDS = 40  # CPU seconds of the tests that are run

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def executed() -> dict[str, tuple[float, frozenset[str]]]:
    """Return the CPU seconds of every test, and the functions of the product that it enters."""
    lines = [line for file in MAP.glob("*.jsonl") for line in file.read_text().splitlines()]
    if not lines:
        sys.exit(f"no map of the tests in {MAP.relative_to(ROOT)}: `make night` writes it")
    rows = map(json.loads, lines)
    return {test: (seconds, frozenset(names)) for test, seconds, names in rows}


def chosen(
    functions: Iterable[str],
    tests: Mapping[str, tuple[float, frozenset[str]]],
    seconds: float = SECONDS,
) -> list[str]:
    """Return tests of some functions: each function's cheapest first, then what else fits."""
    wanted, taken, left = set(functions), [], seconds
    near = sorted((cost, test) for test, (cost, names) in tests.items() if names & wanted)
    unseen = set(wanted)
    for again in (False, True):
        for cost, test in near:
            if test not in taken and cost <= left and (again or tests[test][1] & unseen):
                taken.append(test)
                left -= cost
                unseen -= tests[test][1]
    return taken


def functions_in(tree: ast.AST, name: str) -> Iterator[tuple[str, FunctionNode]]:
    """Yield the functions inside a module or another node, each with its dotted name."""
    for child in ast.iter_child_nodes(tree):
        inner = name
        if isinstance(child, ast.ClassDef | FunctionNode):
            inner = f"{name}.{child.name}"
            if isinstance(child, FunctionNode):
                yield inner, child
        yield from functions_in(child, inner)


def functions_of(source: str, module: str) -> dict[str, str]:
    """Return the text of every function of a module, by its dotted name."""
    found = functions_in(ast.parse(source), module)
    return {name: ast.unparse(function) for name, function in found}


def changed(base: str) -> tuple[set[str], list[str]]:
    """Return the functions that differ from a commit's, and the test files that do."""
    names = _git("diff", "--name-only", base, "--", "dpquery", "tests").splitlines()
    names += _git("ls-files", "--others", "--exclude-standard", "--", "tests").splitlines()
    functions: set[str] = set()
    for name in names:
        if name.startswith("dpquery/") and name.endswith(".py"):
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            path = ROOT / name
            now = functions_of(path.read_text(), module) if path.exists() else {}
            before = functions_of(_git("show", f"{base}:{name}", missing=""), module)
            functions |= {one for one in now | before if now.get(one) != before.get(one)}
    files = [name for name in names if Path(name).name.startswith("test_")]
    return functions, [name for name in files if (ROOT / name).exists()]


def _git(*arguments: str, missing: str | None = None) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode and missing is None:
        sys.exit(done.stderr)
    return done.stdout if not done.returncode else missing or ""


def _main(base: str) -> None:
    functions, files = changed(base)
    tests = chosen(functions, executed()) if functions else []
    print(f"{len(functions)} functions and {len(files)} test files changed: {len(tests)} tests")
    if tests or files:
        near = [test for test in tests if test.partition("::")[0] not in files]
        sys.exit(pytest.main(["-q", "-m", "not slow", *files, *near]))


if __name__ == "__main__":
    _main(*(sys.argv[1:] or ["HEAD"]))
