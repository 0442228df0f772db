"""Plant a mistake in a copy of the product and see whether what is to notice it does.

The copy holds the tests too, so that a test finds the copied package whichever way it looks for
it: by import, by its own place, or in a process of its own.

    PYTHONPATH=tests/harness python tests/mistakes/mutation.py WORD ...

tries the mutants that have one of the words in their name.
"""

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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hypothesis import Phase, settings
from sources import ROOT, Definition, find, modules

COPIED = ("dpquery", "tests", "workloads", "sample_data", "pyproject.toml", "README.md", "Makefile")
AT_ONCE = 2
TOGETHER = 100  # tests of a copy without a mistake that one process runs
AUDIT = "audit:"
PATIENCE = 600  # seconds; a catcher that does not end has neither caught a mistake nor missed it
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
_NURSERY.set_forkserver_preload([*LIBRARIES])

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Mutant:
    """A mistake, planted by replacing one text within a function, wherever its file lies.

    Attributes:
        name: the mistake, in words.
        harm: what it would cost, in words.
        within: the function that is changed, by its qualified name, or a class or a constant of
            a module; with the last part of the module's name before it where several have the name.
        old: text that occurs exactly once there, decorators and docstring included.
        new: what takes its place.
        caught_by: pytest node ids below tests/, or audit:PART; every one of them must catch it.
    """

    name: str
    harm: str
    within: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def applied_to(self, definition: Definition) -> str:
        """Return the source of the file that defines it, with the mistake in it."""
        text = definition.text
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name!r}: its text occurs {text.count(self.old)} times in {self.within}"
            )
        return definition.replaced(text.replace(self.old, self.new))


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


def plant(mutant: Mutant, whole: Path, folder: Path) -> Path:
    """Make a copy of a copy, of links to its files, with a mistake in it."""
    definition = find(mutant.within, modules(whole / "dpquery"))
    source = mutant.applied_to(definition)
    shutil.copytree(whole, folder, copy_function=os.link)
    target = folder / "dpquery" / definition.module.path
    for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
        compiled.unlink()  # it might be as old, to the second, and as long as what is written now
    target.unlink()  # what is linked to stays as it is
    target.write_text(source, encoding="utf-8")
    return folder


def complaints(folder: Path, catchers: Sequence[str]) -> str:
    """Return what catchers say of a copy that they should pass: nothing, if they all do."""
    tests, parts = _sorted(catchers)
    starts = range(0, len(tests), TOGETHER)
    runs = [partial(_tested, folder, tests[start : start + TOGETHER]) for start in starts]
    runs += [partial(_audited, folder, part) for part in parts]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(lambda run: run(), runs))
    return "".join(done.stdout + done.stderr for done in ended if done.returncode)


def failing(folder: Path, catchers: Sequence[str]) -> set[str]:
    """Return those of some catchers that fail on a copy: they, and not the way to them.

    A test fails by its own verdict, not by an error while it is found, imported or set up; the
    audit by a check that failed, not by an error that keeps a part from its end.

    Raises:
        TimeoutError: a catcher did not end.
    """
    tests, parts = _sorted(catchers)
    failed = {f"audit:{part}" for part in parts if _finds(_audited(folder, part))}
    done = _tested(folder, tests) if tests else None
    if done is None or done.returncode != 1:
        return failed
    lines = [f"{line} " for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    starts = {test: f"FAILED tests/{placed(test, folder)}" for test in tests}
    names = {test: (f"{start} ", f"{start}[") for test, start in starts.items()}
    return failed | {test for test in tests if any(line.startswith(names[test]) for line in lines)}


def _finds(done: Done) -> bool:
    """Return whether an audit ended with a check that failed."""
    if done.returncode != 1 or not done.stdout.startswith("{"):
        return False
    findings = json.loads(done.stdout)["findings"]
    return any(not finding["passed"] and finding["claim"] != TO_ITS_END for finding in findings)


def placed(test: str, folder: Path = ROOT) -> str:
    """Return a test with the place of its file below tests/: files move from room to room."""
    file, colons, name = test.partition("::")
    path = next((folder / "tests").rglob(file), None)
    return test if path is None else f"{path.relative_to(folder / 'tests')}{colons}{name}"


def _sorted(catchers: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the tests, and the names of the parts of the audit."""
    tests = [catcher for catcher in catchers if not catcher.startswith(AUDIT)]
    return tests, [catcher.removeprefix(AUDIT) for catcher in catchers if catcher.startswith(AUDIT)]


def _tested(folder: Path, tests: Sequence[str]) -> Done:
    """Run tests of a copy."""
    without = ("cacheprovider", "hypothesispytest")  # a file left behind; two seconds of imports
    options = ["-q", "--tb=no", "-rf", "--assert=plain", "-m", "", "--rootdir", str(folder)]
    options += [word for name in without for word in ("-p", f"no:{name}")]
    options += ["--exitfirst"] if len(tests) == 1 else []
    options += [f"{folder}/tests/{placed(test, folder)}" for test in tests]
    return _forked(folder, "pytest", options, name=", ".join(tests))


def _audited(folder: Path, part: str) -> Done:
    """Run a part of the audit of a copy."""
    arguments = ["audit", "--quick", "--json", "--part", part]
    return _forked(folder, "dpquery.cli.app", arguments, name=f"{AUDIT}{part}")


def _forked(folder: Path, program: str, arguments: list[str], *, name: str) -> Done:
    """Run a program on a copy in a process forked from one that has all libraries loaded.

    What it prints goes beside the copy: a file in a copy would be one of all copies of it.
    """
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
    sys.modules.pop("sources")  # of the product as it is; the tests of the copy load their own
    own = ("", str(ROOT))  # the libraries may lie in .venv below it
    others = [entry for entry in sys.path if entry not in own]
    others = [entry for entry in others if not entry.startswith(str(ROOT / "tests"))]
    sys.path[:] = [str(folder), *others]
    sys.argv[1:] = arguments
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutant", phases=phases, report_multiple_bugs=False)
    settings.load_profile("mutant")  # that it fails is enough: no smaller example is looked for
    sys.exit(importlib.import_module(program).main())


def missed(mutants: Sequence[Mutant], whole: Path, room: Path) -> Iterator[tuple[Mutant, set[str]]]:
    """Yield every mutant with those of its catchers that let it pass or do not end, in order."""

    def tried(place: int) -> set[str]:
        mutant = mutants[place]
        folder = plant(mutant, whole, room / f"mutant{place}")
        try:
            passing = set(mutant.caught_by) - failing(folder, mutant.caught_by)
        except TimeoutError as error:
            passing = {str(error)}
        shutil.rmtree(folder)
        return passing

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from zip(mutants, pool.map(tried, range(len(mutants))), strict=True)


def unknown_names(source: str) -> set[str]:
    """Return names that are used and nowhere defined: a mutant that stumbles is no mistake."""
    module = symtable.symtable(source, "mutant", "exec")
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


def _main(words: Sequence[str]) -> None:
    from mutants import MUTANTS

    chosen = [mutant for mutant in MUTANTS if any(word in mutant.name for word in words)]
    with tempfile.TemporaryDirectory() as room:
        whole = original(Path(room, "whole"), compiled=("dpquery", "tests"))
        catchers = sorted({catcher for mutant in chosen for catcher in mutant.caught_by})
        print(complaints(whole, catchers) or "without a mistake: all pass", flush=True)
        for mutant, passing in missed(chosen, whole, Path(room)):
            print("MISSED" if passing else "caught", mutant.name, *sorted(passing), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:] or [""])
