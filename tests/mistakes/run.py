"""Run tests by what they execute: on the tree after a change, or on a copy with a mistake in it.

    make near                                    the tests of what was changed
    python tests/mistakes/run.py planted WORD    planted mistakes that have the word in their name

Which test executes which function was recorded by the last `make night` (mistakes/executed.py).
A mistake is caught when a test fails; those that execute the changed function are tried, nearest
first, then those that start programs, which are not seen to execute anything, then the audit.
The copy holds the tests too, so that a test finds the copied package whichever way it looks for
it: by import, by its own place, or in a process of its own.
"""

import argparse
import ast
import builtins
import compileall
import gc
import importlib
import json
import multiprocessing
import os
import shutil
import subprocess
import symtable
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent, indent

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "harness"))

from python_files import Definition, Module, find, modules  # noqa: E402 where the line above has it

MAP = ROOT / "build" / "executed"
"""A file a process: a line a test function, with its CPU seconds and the functions it executes."""
PLANTED = Path(__file__).with_name("planted.txt")
NEAR_SECONDS = 40  # CPU seconds of the tests of a change
SECONDS = 60  # CPU seconds of the tests that a mistake is tried on
ENTERED_A_SECOND = 200  # functions
TOGETHER = (12, 40, 100)  # tests of one process: of the first, the second, every later one
PATIENCE = 600  # seconds; what does not end has neither caught a mistake nor missed it
COPIED = ("dpquery", "tests", "workloads", "sample_data", "pyproject.toml", "README.md", "Makefile")
STARTING = ("subprocess", "sys.executable", "forks", "interference_support")
"""Words of the test files that start programs or processes."""
TO_ITS_END = "it runs to its end"
"""The claim of the audit that a part makes which ends in an error."""

LIBRARIES = (
    "hypothesis.strategies",
    "numpy",
    "opendp.prelude",
    "pandas",
    "pyarrow.csv",
    "pyarrow.parquet",
)
LIBRARIES += ("pytest", "rich", "scipy.optimize", "scipy.sparse", "scipy.stats", "typer", "yaml")
_NURSERY = multiprocessing.get_context("forkserver")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Tests = Mapping[str, tuple[float, frozenset[str]]]
Done = subprocess.CompletedProcess[str]


def executed() -> Tests:
    """Return the CPU seconds of every test, and the functions of the product that it enters."""
    lines = [line for file in MAP.glob("*.jsonl") for line in file.read_text().splitlines()]
    if not lines:
        sys.exit(f"no map of the tests in {MAP.relative_to(ROOT)}: `make night` writes it")
    rows = map(json.loads, lines)
    return {test: (seconds, frozenset(names)) for test, seconds, names in rows}


def functions_in(tree: ast.AST, name: str) -> Iterator[tuple[str, FunctionNode]]:
    """Yield the functions inside a module or another node, each with its dotted name."""
    for child in ast.iter_child_nodes(tree):
        inner = name
        if isinstance(child, ast.ClassDef | FunctionNode):
            inner = f"{name}.{child.name}"
            if isinstance(child, FunctionNode):
                yield inner, child
        yield from functions_in(child, inner)


def chosen(functions: Iterable[str], tests: Tests, seconds: float = NEAR_SECONDS) -> list[str]:
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


def changed(base: str) -> tuple[set[str], list[str]]:
    """Return the functions that differ from a commit's, and the test files that do."""
    names = _git("diff", "--name-only", base, "--", "dpquery", "tests").splitlines()
    names += _git("ls-files", "--others", "--exclude-standard", "--", "tests").splitlines()
    functions: set[str] = set()
    for name in names:
        if name.startswith("dpquery/") and name.endswith(".py"):
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            path = ROOT / name
            now = _functions_of(path.read_text(), module) if path.exists() else {}
            before = _functions_of(_git("show", f"{base}:{name}", missing=""), module)
            functions |= {one for one in now | before if now.get(one) != before.get(one)}
    files = [name for name in names if Path(name).name.startswith("test_")]
    return functions, [name for name in files if (ROOT / name).exists()]


def _functions_of(source: str, module: str) -> dict[str, str]:
    """Return the text of every function of a module, by its dotted name."""
    found = functions_in(ast.parse(source), module)
    return {name: ast.unparse(function) for name, function in found}


def _git(*arguments: str, missing: str | None = None) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode and missing is None:
        sys.exit(done.stderr)
    return done.stdout if not done.returncode else missing or ""


def near(base: str) -> int:
    """Run the tests of what differs from a commit; a test file that does is run as a whole."""
    import pytest

    functions, files = changed(base)
    tests = chosen(functions, executed()) if functions else []
    print(f"{len(functions)} functions and {len(files)} test files changed: {len(tests)} tests")
    if not tests and not files:
        return 0
    of_others = [test for test in tests if test.partition("::")[0] not in files]
    return pytest.main(["-q", "-m", "not slow", *files, *of_others])


@dataclass(frozen=True)
class Mistake:
    """A change of one function that a test must notice.

    Attributes:
        within: the function, by its qualified name, or a class or a constant of a module; with the
            last part of the module's name before it where several have the name.
        name: the mistake, and what it would cost, in words.
        old: a part of its source as `ast.unparse` writes it, blanks and line ends aside: it occurs
            there once.
        new: what takes its place; further lines stand as far in as the line where it begins.
        caught: the test that failed when it was last tried, "" if unknown: it is tried first.
    """

    within: str
    name: str
    old: str
    new: str
    caught: str = ""

    def applied_to(self, definition: Definition) -> str:
        """Return the source of the file that defines it, with the mistake in it."""
        text = ast.unparse(definition.node)
        squeezed, places = _squeezed(text)
        old, _ = _squeezed(self.old)
        if not old or squeezed.count(old) != 1:
            times = squeezed.count(old) if old else 0
            raise ValueError(f"{self.name!r}: its text occurs {times} times in {self.within}")
        start = places[at := squeezed.index(old)]
        end = places[at + len(old) - 1] + 1
        line = text[text.rfind("\n", 0, start) + 1 : start]
        margin = " " * (len(line) - len(line.lstrip()) if line.strip() else len(line))
        new = indent(dedent(self.new), margin).removeprefix(margin)
        column = " " * definition.node.col_offset
        return definition.replaced(indent(text[:start] + new + text[end:], column) + "\n")


def _squeezed(text: str) -> tuple[str, list[int]]:
    """Return a text without blanks, quotes all alike, and where each of its letters stands."""
    places = [place for place, letter in enumerate(text) if not letter.isspace()]
    return "".join("'" if text[place] == '"' else text[place] for place in places), places


@cache
def planted() -> tuple[Mistake, ...]:
    """Read planted.txt, whose first lines say what a mistake is made of."""
    return tuple(map(_mistake, PLANTED.read_text(encoding="utf-8").strip().split("\n\n")[1:]))


def _mistake(block: str) -> Mistake:
    head, *lines = block.split("\n")
    within, _, name = head.partition(": ")
    old, new, caught = (
        "\n".join(line[2:] for line in lines if line.startswith(mark)) for mark in "-+="
    )
    return Mistake(within, name, old, new, caught)


def note(mistake: Mistake, catcher: str) -> None:
    """Write what caught a mistake behind it in planted.txt, if it is one of those."""
    blocks = PLANTED.read_text(encoding="utf-8").strip().split("\n\n")
    for place, block in enumerate(blocks):
        if block.startswith(f"{_key(mistake)}\n"):
            kept = [line for line in block.split("\n") if not line.startswith("=")]
            blocks[place] = "\n".join([*kept, f"= {catcher}"])
    PLANTED.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def unknown_names(source: str) -> set[str]:
    """Return names that are used and nowhere defined: what only stumbles is no mistake."""
    module = symtable.symtable(source, "mistake", "exec")
    known = {
        symbol.get_name()
        for symbol in module.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    known |= {child.get_name() for child in module.get_children()} | set(dir(builtins))
    known |= {"__file__", "__name__"}
    used, tables = set(), [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_global() and symbol.is_referenced()
        }
    return used - known


def original(folder: Path, *, compiled: Sequence[str] = ("dpquery",)) -> Path:
    """Make a copy of the product without a mistake, from which others are copied.

    Compiling the tests too takes longer than running a few of them.
    """
    unwanted = shutil.ignore_patterns(".hypothesis", ".pytest_cache", "*.tmp")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
        else:
            shutil.copy2(ROOT / name, folder / name)
    for name in compiled:
        compileall.compile_dir(folder / name, quiet=2)
    return folder


def plant(mistake: Mistake, whole: Path, folder: Path) -> Path:
    """Make a copy of a copy, of links to its files, with a mistake in it."""
    definition = find(mistake.within, modules(whole / "dpquery"))
    source = mistake.applied_to(definition)
    shutil.copytree(whole, folder, copy_function=os.link)
    target = folder / "dpquery" / definition.module.path
    for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
        compiled.unlink()  # it might be as old, to the second, and as long as what is written now
    target.unlink()  # what is linked to stays as it is
    target.write_text(source, encoding="utf-8")
    return folder


def failing(folder: Path, tests: Sequence[str], *, first: bool = True) -> list[str]:
    """Return which of some tests and parts of the audit fail on a copy, or the first that does.

    A test fails by its own verdict or while it is set up, not by an error while it is found or
    imported; the audit by a check that failed, not by an error that keeps a part from its end.

    Raises:
        TimeoutError: one did not end.
    """
    parts = [test for test in tests if test.startswith("audit:")]
    failed = _failing_tests(folder, [test for test in tests if test not in parts], first=first)
    for part in parts:
        if not (first and failed):
            arguments = ["audit", "--quick", "--json", "--part", part.removeprefix("audit:")]
            failed += [part] * _finds(_forked(folder, "dpquery.cli.app", arguments, name=part))
    return failed


def _failing_tests(folder: Path, tests: list[str], *, first: bool) -> list[str]:
    """Return what fails, leaving out what is gone since the map was made or cannot be imported."""
    without = ("cacheprovider", "hypothesispytest")  # a file left behind; slow imports
    options = ["-q", "--tb=no", "-rfE", "--assert=plain", "-m", "", "--rootdir", str(folder)]
    options += [word for name in without for word in ("-p", f"no:{name}")]
    options += ["--exitfirst"] * first
    while tests:
        asked = [f"{folder}/{test}" for test in tests]
        done = _forked(folder, "pytest", [*options, *asked], name=tests[0])
        lines = done.stdout.splitlines()
        named = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        named = [line.split(" ", 1)[1].partition(" - ")[0] for line in named]
        if done.returncode == 1:
            return named
        said = f"{done.stdout}{done.stderr}\n"
        gone = {test for test in tests if f"not found: {folder}/{test}\n" in said}
        gone |= {test for test in tests if test.partition("::")[0] in named}
        if done.returncode == 0 or not gone:
            break
        tests = [test for test in tests if test not in gone]
    return []


def _finds(done: Done) -> bool:
    """Return whether an audit ended with a check that failed."""
    if done.returncode != 1 or not done.stdout.startswith("{"):
        return False
    findings = json.loads(done.stdout)["findings"]
    return any(not finding["passed"] and finding["claim"] != TO_ITS_END for finding in findings)


def _forked(folder: Path, program: str, arguments: list[str], *, name: str) -> Done:
    """Run a program on a copy in a process forked from one that has all libraries loaded.

    What it prints goes beside the copy: a file in a copy would be one of all copies of it.
    """
    _NURSERY.set_forkserver_preload([*LIBRARIES])
    room = Path(tempfile.mkdtemp(dir=folder.parent))
    printed = [room / stream for stream in ("out", "err")]
    process = _NURSERY.Process(target=_run_here, args=(folder, program, arguments, printed))
    process.start()
    process.join(PATIENCE)
    ended = process.exitcode is not None
    process.kill()
    process.join()
    if not ended:
        raise TimeoutError(f"{name} did not end in {PATIENCE} s")
    out, err = (path.read_text(errors="replace") for path in printed)
    shutil.rmtree(room)
    return subprocess.CompletedProcess([], process.exitcode or 0, out, err)


def _run_here(folder: Path, program: str, arguments: list[str], printed: Sequence[Path]) -> None:
    """Run a program on a copy in this process, where nothing of the product is loaded yet."""
    from hypothesis import Phase, settings

    gc.freeze()  # what the libraries left behind is not looked through again and again
    for stream, path in enumerate(printed, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.chdir(folder)
    environment = {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    os.environ |= environment
    sys.dont_write_bytecode = True
    sys.modules.pop("python_files")  # of the product as it is; the tests of the copy load their own
    own = ("", str(ROOT))  # the libraries may lie in .venv below it
    others = [entry for entry in sys.path if entry not in own]
    others = [entry for entry in others if not entry.startswith(str(ROOT / "tests"))]
    sys.path[:] = [str(folder), *others]
    sys.argv[1:] = arguments
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mistake", phases=phases, report_multiple_bugs=False)
    settings.load_profile("mistake")  # that it fails is enough: no smaller example is looked for
    sys.exit(importlib.import_module(program).main())


@dataclass
class Trial:
    """Try mistakes on copies of the product as it is.

    Attributes:
        room: a folder for copies.
        whole: a copy of the product without a mistake.
        tests: what every test executes.
        seconds: CPU seconds of the tests that a mistake is tried on.
        audit: the parts of the audit, which are tried after the tests; all if None.
    """

    room: Path
    whole: Path
    tests: Tests
    seconds: float = SECONDS
    audit: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._sound: dict[str, bool] = {}

    def catcher(self, mistake: Mistake) -> str | None:
        """Return a test that fails with a mistake and passes without it."""
        folder = plant(mistake, self.whole, self.room / "copy")
        try:
            known = [mistake.caught] if mistake.caught else []
            if found := self._failing_but_for_it(folder, known):
                return found
            queue, sizes = self.candidates(mistake), iter(TOGETHER)
            size = next(sizes)
            while queue:
                batch, queue = queue[:size], queue[size:]
                if found := self._failing_but_for_it(folder, batch):
                    return found
                size = next(sizes, size)
        finally:
            shutil.rmtree(folder)
        return None

    def _failing_but_for_it(self, folder: Path, tests: list[str]) -> str | None:
        """Return one of some tests that fails on a copy and passes on the product as it is."""
        while tests and (failed := failing(folder, tests)):
            if failed[0] not in self._sound:
                self._sound[failed[0]] = not failing(self.whole, failed[:1])
            if self._sound[failed[0]]:
                return failed[0]
            tests = [test for test in tests if not f"{failed[0]}[".startswith(f"{test}[")]
        return None

    def candidates(self, mistake: Mistake) -> list[str]:
        """Return the tests that may notice a mistake, in the order in which they are tried."""
        names = executing(mistake, modules(self.whole / "dpquery"))
        others = [test for test in self.tests if not test.startswith("tests/mistakes/")]
        of_it = {test for test in others if self.tests[test][1] & names}
        starting = {test for test in others if starts_programs(test.partition("::")[0])}
        order, left = [], self.seconds
        for some in (of_it, starting - of_it):
            for test in self._nearest_first(some):
                if (cost := self._cost(test)) <= left:
                    left -= cost
                    order.append(test)
        there = [test for test in order if (self.whole / test.partition("::")[0]).exists()]
        parts = _parts() if self.audit is None else self.audit
        return there + [f"audit:{part}" for part in parts]

    def _nearest_first(self, tests: Iterable[str]) -> list[str]:
        """Return tests in order: those that enter few functions, one case of each before others."""
        late = {test: len(self.tests[test][1]) + 50 * self.tests[test][0] for test in tests}
        cases = Counter[str]()
        for test in sorted(late, key=late.__getitem__):
            name = test.partition("[")[0]
            late[test] += 10 * cases[name]
            cases[name] += 1
        return sorted(late, key=late.__getitem__)

    def _cost(self, test: str) -> float:
        """Return CPU seconds: those recorded, and of fixtures that its first user alone made."""
        seconds, entered = self.tests[test]
        return seconds + len(entered) / ENTERED_A_SECOND


def _key(mistake: Mistake) -> str:
    return f"{mistake.within}: {mistake.name}"


def _parts() -> list[str]:
    from dpquery.audit.run import PARTS

    return list(PARTS)


@cache
def starts_programs(file: str) -> bool:
    """Return whether a test file starts programs or processes of its own."""
    path = ROOT / file
    return path.exists() and any(word in path.read_text(encoding="utf-8") for word in STARTING)


def executing(mistake: Mistake, among: tuple[Module, ...]) -> set[str]:
    """Return the functions whose tests may notice a mistake.

    They are the changed function and those in it, of a class its methods; of a constant, and of
    a class without methods, those that name it.
    """
    definition = find(mistake.within, among)
    whole = f"{definition.module.name}.{definition.name}"
    nodes = _functions(among)
    inside = {name for name, _ in nodes if name == whole or name.startswith(f"{whole}.")}
    if inside and not isinstance(definition.node, ast.ClassDef):
        return inside
    last = definition.name.rpartition(".")[2]
    return inside | {name for name, node in nodes if last in _words(node)}


@cache
def _functions(among: tuple[Module, ...]) -> list[tuple[str, FunctionNode]]:
    return [pair for module in among for pair in functions_in(module.tree, module.name)]


def _words(node: ast.AST) -> set[str]:
    return {
        getattr(part, "id", getattr(part, "attr", ""))
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    }


def try_mistakes(
    mistakes: Iterable[Mistake],
    seconds: float = SECONDS,
    tried: Iterable[str] = (),
    audit: Sequence[str] | None = None,
) -> list[Mistake]:
    """Print of every mistake what catches it; return those that nothing does.

    Args:
        mistakes: in the order in which they are tried.
        seconds: CPU seconds of the tests that one is tried on.
        tried: places and names of those that are left out.
        audit: the parts of the audit that are tried after the tests; all if None.
    """
    missed = []
    with tempfile.TemporaryDirectory() as room:
        whole = original(Path(room, "whole"), compiled=("dpquery", "tests"))
        trial = Trial(Path(room), whole, executed(), seconds, audit)
        for mistake in mistakes:
            if _key(mistake) in tried:
                continue
            started = time.monotonic()
            try:
                catcher = trial.catcher(mistake)
                if catcher and catcher != mistake.caught:
                    note(mistake, catcher)
            except TimeoutError as error:
                catcher = f"no end: {error}"
            took = time.monotonic() - started
            print(f"{catcher or 'MISSED'}\t{took:.1f} s\t{_key(mistake)}", flush=True)
            if catcher is None:
                missed.append(mistake)
    return missed


def _main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests that execute what changed.")
    commands = parser.add_subparsers(dest="command", required=True)
    of_change = commands.add_parser("near", help="the tests of what differs from a commit")
    of_change.add_argument("base", nargs="?", default="HEAD")
    of_planted = commands.add_parser("planted", help="planted mistakes, by words of their names")
    of_planted.add_argument("words", nargs="*", default=[""])
    of_planted.add_argument("--seconds", type=float, default=SECONDS)
    of_planted.add_argument("--log", type=Path, help="what an earlier run printed: it is gone on")
    asked = parser.parse_args()
    if asked.command == "near":
        return near(asked.base)
    some = [one for one in planted() if any(word in _key(one) for word in asked.words)]
    log = asked.log.read_text() if asked.log and asked.log.exists() else ""
    tried = {line.rpartition("\t")[2] for line in log.splitlines()}
    return min(1, len(try_mistakes(some, asked.seconds, tried)))


if __name__ == "__main__":
    sys.exit(_main())
