"""Known mistakes, planted one at a time: the audit or a test notices every one of them."""

import ast
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import mutation
import pytest
from mutants import CHEAPEST, MUTANTS
from mutation import (
    AUDIT,
    Mutant,
    complaints,
    failing,
    missed,
    original,
    placed,
    plant,
    unknown_names,
)
from sources import TESTS, Module, find, package

from dpquery.audit.run import PARTS

HARMLESS = Mutant(
    "noise is said to be drawn by somebody else",
    "none: no test should mind a comment",
    "_built",
    "# 0.4 s: only a release pays for it",
    "# as changed as any mutant is",
    (),
)
LINUX = {"test_row_33_no_other_process_of_the_user_may_read_the_memory"}
"""Tests that are skipped elsewhere, where what is planted for them does nothing either."""
WITH_AN_EXTRA = {
    "test_in_place.py",
    "test_connections.py",
    "test_engines.py",
    "test_check_command.py",
    "test_workbook.py",
}
"""Files that are skipped without the libraries that the code they try cannot do without."""
PROBE = """\
import subprocess, sys
from pathlib import Path
import dpquery
from sources import PACKAGE

def planted_here():
    assert dpquery.__version__ == "planted"
    assert "planted" in (PACKAGE / "version.py").read_text()

def planted_where_tests_start_processes():
    code = "import dpquery; print(dpquery.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd="/", check=True)
    assert done.stdout.strip() == b"planted"

def test_the_mistake_is_there():
    planted_here()
    planted_where_tests_start_processes()
    assert Path(dpquery.__file__).is_relative_to(Path(__file__).parents[1])

def test_the_mistake_is_noticed():
    assert dpquery.__version__ != "planted"
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return original(tmp_path_factory.mktemp("product"))


@pytest.mark.nightly
def test_every_mutant_is_one_change_that_runs():
    """Its name stands for one function of the product, and its text occurs there once."""
    for mutant in MUTANTS:
        definition = find(mutant.within, package())
        after = mutant.applied_to(definition)
        assert ast.dump(ast.parse(after)) != dumped(definition.module), mutant.name
        assert not unknown_names(after), mutant.name


@cache
def dumped(module: Module) -> str:
    return ast.dump(module.tree)


def test_a_file_that_moves_leaves_every_mutant_as_it_is():
    moved = tuple(
        Module(f"elsewhere/{module.path}", module.source, module.tree)
        for module in package()
        if module.last_name != "dpquery"
    )
    for mutant in MUTANTS:
        here, there = (find(mutant.within, place) for place in (package(), moved))
        assert there.module.path == f"elsewhere/{here.module.path}", mutant.name
        assert mutant.applied_to(there) == mutant.applied_to(here), mutant.name


def test_a_mutant_that_fits_nowhere_or_twice_is_refused():
    for source in ("def f(): ...\nx", "def f():\n    x, x"):
        definition = find("f", (Module.of("a.py", source),))
        with pytest.raises(ValueError, match="times in f"):
            Mutant("n", "h", "f", "x", "y", ()).applied_to(definition)
    assert unknown_names("def f(x):\n    return x + y + len(z)\nz = 1\n") == {"y"}


ROOMS = (
    Module.of(
        "left/noise.py",
        "A = {'é': 1}\n@cache\ndef draw():\n    return A\n\nclass Law:\n    def draw(self): pass",
    ),
    Module.of("left/deep/chance.py", "def draw():\n    def inner(): pass\n    return 'other'"),
    Module.of("right/chance.py", "try:\n    B: int = 1\nexcept E:\n    B = 2\ndef only(): pass"),
)


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        ("A", "left/noise.py", "A = {'é': 1}\n"),
        ("Law", "left/noise.py", "class Law:\n    def draw(self): pass"),
        ("Law.draw", "left/noise.py", "    def draw(self): pass"),
        ("left.noise.Law.draw", "left/noise.py", "    def draw(self): pass"),
        ("noise.Law.draw", "left/noise.py", "    def draw(self): pass"),
        ("noise.draw", "left/noise.py", "@cache\ndef draw():\n    return A\n"),
        ("draw.inner", "left/deep/chance.py", "    def inner(): pass\n"),
        ("chance.only", "right/chance.py", "def only(): pass"),
    ],
)
def test_a_name_is_found_in_whichever_folder_it_is_defined(name, path, text):
    definition = find(name, ROOMS)
    assert (definition.module.path, definition.text) == (path, text)
    assert definition.replaced(text) == definition.module.source
    assert definition.replaced("X") == definition.module.source.replace(text, "X")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("draw", "'draw' is ambiguous: noise.draw (left/noise.py), chance.draw (left/deep/chance"),
        ("B", "'B' is ambiguous: chance.B (right/chance.py), chance.B (right/chance.py)"),
        ("inner", "nothing is called 'inner'; there is chance.draw.inner"),
        ("Noise.draw", "nothing is called 'Noise.draw'; there is chance.draw, noise.Law.draw"),
        ("right.noise.Law", "nothing is called 'right.noise.Law'; there is noise.Law"),
        ("nowhere", "nothing is called 'nowhere'"),
    ],
)
def test_a_name_that_is_unknown_or_ambiguous_is_refused(name, said):
    with pytest.raises(LookupError, match=re.escape(said)):
        find(name, ROOMS)


@pytest.mark.nightly
def test_a_mutant_of_an_unknown_or_ambiguous_function_is_not_planted(whole, tmp_path):
    for place, (name, said) in enumerate({"_facts": "ambiguous", "_fact": "nothing"}.items()):
        with pytest.raises(LookupError, match=said):
            plant(replace(HARMLESS, within=name), whole, tmp_path / str(place))


@pytest.mark.nightly
def test_every_mutant_is_named_once_and_has_a_catcher_that_exists():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert set(CHEAPEST) <= set(names)
    assert len({(mutant.within, mutant.old, mutant.new) for mutant in MUTANTS}) == len(names)
    known = {path.name: names_in(path) for path in TESTS.rglob("test_*.py")}
    for mutant in MUTANTS:
        assert mutant.caught_by, mutant.name
        for catcher in mutant.caught_by:
            file, _, test = catcher.partition("::")
            part = catcher.removeprefix(AUDIT) if catcher.startswith(AUDIT) else None
            assert part in PARTS or test.partition("[")[0] in known.get(file, ()), catcher


def test_every_catcher_is_a_test_with_that_parameter():
    tests = {catcher for mutant in MUTANTS for catcher in mutant.caught_by if "::" in catcher}
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", ""]
    done = subprocess.run(
        [*collect, *sorted(map(placed, tests))], cwd=TESTS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.nightly
def test_no_mutant_rests_on_a_test_that_may_be_skipped():
    """Without a compiler, git or some library all mutants are still caught on Linux."""
    skipped = {path.name: may_be_skipped(path) for path in TESTS.rglob("test_*.py")}
    assert (
        "test_a_release_disturbed_at_any_call_is_charged_once_and_goes_on_free"
        in (skipped["test_crashes.py"])
    )
    assert names_in(TESTS / "outside" / "test_fuzz_spec.py") <= skipped["test_fuzz_spec.py"]
    for mutant in MUTANTS:
        tests = (
            catcher.partition("[")[0].split("::") for catcher in mutant.caught_by if "::" in catcher
        )
        skipping = [
            test
            for file, test in tests
            if file not in WITH_AN_EXTRA and test in skipped[file] - LINUX
        ]
        assert skipping == [], mutant.name


def may_be_skipped(path: Path) -> set[str]:
    """Return the functions of a file that skip, or that name something that does."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    skips = {"skip", "skipif", "importorskip"}
    while (
        more := {
            name
            for node in body
            if words_of(node) & skips
            for name in ([node.name] if isinstance(node, ast.FunctionDef) else assigned(node))
        }
        - skips
    ):
        skips |= more
    whole = any(
        "importorskip" in words_of(statement)
        for statement in body
        if not hasattr(statement, "body")
    )
    return names_in(path) if whole or "pytestmark" in skips else skips


def words_of(node: ast.AST) -> set[str]:
    """Return all names, attributes and arguments in some source."""
    kinds = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg"}
    return {getattr(part, kinds[type(part)]) for part in ast.walk(node) if type(part) in kinds}


def assigned(node: ast.AST) -> list[str]:
    return [
        part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id != "pytest"
    ]


def test_what_is_planted_is_what_the_tests_import(whole, tmp_path):
    version = '__version__ = "0.1.0"'
    planted = Mutant("a version", "none", "__version__", version, '__version__ = "planted"', ())
    folder = plant(planted, whole, tmp_path / "copy")
    (folder / "tests" / "test_probe.py").write_text(PROBE)
    there, noticed = (
        f"test_probe.py::test_the_mistake_is_{state}" for state in ("there", "noticed")
    )
    assert failing(folder, [there, noticed]) == {noticed}


@pytest.mark.nightly
def test_errors_on_the_way_to_a_test_catch_nothing(whole, tmp_path):
    broken = Mutant("a crash", "none", "__version__", '__version__ = "0.1.0"', "1 / 0", ())
    folder = plant(broken, whole, tmp_path / "copy")
    assert failing(folder, ["test_codes.py::test_texts_have_the_documented_codes"]) == set()


def test_a_part_of_the_audit_that_stumbles_catches_nothing(whole, tmp_path):
    head = "def supply(_: Size) -> Iterator[Finding]:\n"
    stumbles = Mutant("a crash", "none", "supply", head, f"{head}    int('x')\n", ())
    folder = plant(stumbles, whole, tmp_path / "copy")
    assert failing(folder, ["audit:supply"]) == set()


@pytest.mark.nightly
def test_a_catcher_that_does_not_end_is_reported_as_that(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(mutation, "PATIENCE", 0.1)
    for catcher in ("audit:supply", "test_codes.py::test_texts_have_the_documented_codes"):
        ((_, passing),) = missed([replace(HARMLESS, caught_by=(catcher,))], whole, tmp_path)
        assert passing == {f"{catcher} did not end in 0.1 s"}


def test_the_cheapest_mutants_are_caught_and_a_harmless_one_is_not(whole, tmp_path):
    mutants = [mutant for mutant in MUTANTS if mutant.name in CHEAPEST]
    catchers = sorted({catcher for mutant in mutants for catcher in mutant.caught_by})
    assert complaints(plant(HARMLESS, whole, tmp_path / "harmless"), catchers) == ""
    assert survivors(mutants, whole, tmp_path) == {}


@pytest.mark.slow
def test_every_mutant_is_caught(tmp_path, record_property, capsys):
    whole = original(tmp_path / "product", compiled=("dpquery", "tests"))
    catchers = sorted({catcher for mutant in MUTANTS for catcher in mutant.caught_by})
    assert complaints(whole, catchers) == ""
    passing = survivors(MUTANTS, whole, tmp_path)
    caught = len(MUTANTS) - len(passing)
    record_property("mutants", len(MUTANTS))
    record_property("mutants caught", caught)
    with capsys.disabled():
        print(f"\nmutants caught: {caught} of {len(MUTANTS)}")
    assert passing == {}


def survivors(mutants, whole, room):
    """Mutants that some of their catchers let pass, and which ones do."""
    return {mutant.name: passing for mutant, passing in missed(mutants, whole, room) if passing}
