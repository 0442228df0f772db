"""Planted mistakes fit the code, and what tries them sees a mistake and nothing else."""

import ast
from dataclasses import replace

import pytest
from mistakes import run
from mistakes.run import Mistake, Trial, failing, original, plant, planted, unknown_names
from python_files import Module, find, package

from dpquery.audit.run import PARTS

TRUE_ANSWERS = "draw: true answers are returned"
NOISE = "tests/measurement/test_noise.py::"
SEEING, BLIND = (
    f"{NOISE}test_no_answer_comes_back_as_it_was",
    f"{NOISE}test_an_empty_vector_needs_no_noise",
)
VERSION = '__version__ = "0.1.0"'
PROBE = """\
import subprocess, sys
from pathlib import Path
import dpquery
from python_files import PACKAGE

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


def mistake(name):
    (one,) = (one for one in planted() if f"{one.within}: {one.name}" == name)
    return one


@pytest.mark.nightly
def test_every_planted_mistake_is_one_change_that_runs():
    """Its place is one function of the product, and its text occurs there once."""
    places = [(one.within, one.name) for one in planted()]
    changes = [(one.within, one.old, one.new) for one in planted()]
    assert len(set(places)) == len(set(changes)) == len(planted()) > 500
    for one in planted():
        definition = find(one.within, package())
        after = one.applied_to(definition)
        (there,) = (
            other.node
            for other in Module.of(definition.module.path, after).definitions
            if other.name == definition.name
        )
        assert ast.dump(there) != ast.dump(definition.node), one.name
        assert not unknown_names(after), one.name


def test_the_tests_that_are_named_behind_mistakes_are_there():
    """Whoever takes one out looks for another that fails: `run.py planted WORDS` finds it."""
    named = {one.caught.partition("[")[0] for one in planted()} - {""}
    assert len(named) > 100
    for name in named:
        file, _, test = name.rpartition("::")
        there = (run.ROOT / file).read_text() if file else [f"def audit:{part}(" for part in PARTS]
        assert f"def {test.rpartition('.')[2]}(" in there, name


def test_what_caught_a_mistake_is_written_behind_it(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "PLANTED", tmp_path / "planted.txt")
    run.PLANTED.write_text("# Head.\n\nf: n\n  harm\n- a\n+ b\n= old\n\ng: n\n- a\n+ b\n")
    for place in "gf":
        run.note(Mistake(place, "n", "a", "b"), f"new {place}")
    run.note(Mistake("f", "made by rule", "a", "b"), "none")
    written = "# Head.\n\nf: n\n  harm\n- a\n+ b\n= new f\n\ng: n\n- a\n+ b\n= new g\n"
    assert run.PLANTED.read_text() == written


def test_a_mistake_fits_however_its_function_is_formatted():
    one = Mistake("A.f", "n", 'if x in ("a", c):\n    return [', "while not x:\n    return [x, ")
    sources = (
        "class A:\n    def f(x):\n        if x in ('a', c): return [1]",
        'class A:\n  def f(x):\n    if (x in\n ("a",\n c,)\n    ):  # why\n      return [1]',
    )
    for source in sources:
        after = one.applied_to(find("A.f", (Module.of("a.py", source),)))
        assert ast.unparse(ast.parse(after)) == (
            "class A:\n\n    def f(x):\n        while not x:\n            return [x, 1]"
        )


def test_a_mistake_that_fits_nowhere_or_twice_is_refused():
    for source in ("def f(): ...\nx", "def f():\n    x, x"):
        definition = find("f", (Module.of("a.py", source),))
        with pytest.raises(ValueError, match="times in f"):
            Mistake("f", "n", "x", "y").applied_to(definition)
    assert unknown_names("def f(x):\n    return x + y + len(z)\nz = 1\n") == {"y"}


def test_a_name_that_is_unknown_or_ambiguous_is_refused():
    rooms = (
        Module.of("left/noise.py", "class Law:\n    def draw(self): pass\ndef draw(): pass"),
        Module.of("left/deep/chance.py", "def draw(): pass"),
    )
    assert find("Law.draw", rooms) is find("left.noise.Law.draw", rooms)
    assert find("chance.draw", rooms).text == "def draw(): pass"
    with pytest.raises(LookupError, match=r"ambiguous: noise.draw \(left/noise.py\), chance.draw"):
        find("draw", rooms)
    with pytest.raises(LookupError, match=r"'Noise.draw'; there is chance.draw, noise.Law.draw"):
        find("Noise.draw", rooms)


@pytest.mark.nightly
def test_a_mistake_is_seen_by_what_executes_it_and_a_harmless_change_is_not(whole, tmp_path):
    draw = f"{find('draw', package()).module.name}.draw"
    tests = {SEEING: (0.2, frozenset({draw})), BLIND: (0.1, frozenset({draw}))}
    tests["tests/test_gone.py::test_gone"] = (0.1, frozenset({draw}))
    elsewhere = frozenset({"dpquery.else.draw"})
    tests[f"{NOISE}test_a_failing_library_leaves_no_trace_of_values"] = (0.1, elsewhere)
    trial = Trial(tmp_path, whole, tests, audit=())
    planted_one = replace(mistake(TRUE_ANSWERS), caught="")  # what caught it is tried first
    assert trial.candidates(planted_one) == [BLIND, SEEING]
    assert trial.catcher(planted_one).startswith(SEEING)
    assert trial.catcher(Mistake("draw", "none", "return noisy", "return (noisy)")) is None


@pytest.mark.nightly
def test_what_is_planted_is_what_the_tests_import(whole, tmp_path):
    one = Mistake("__version__", "a version", VERSION, '__version__ = "planted"')
    folder = plant(one, whole, tmp_path / "copy")
    (folder / "tests" / "test_probe.py").write_text(PROBE)
    tests = [f"tests/test_probe.py::test_the_mistake_is_{state}" for state in ("there", "noticed")]
    assert failing(folder, tests) == [tests[1]]


@pytest.mark.slow
def test_every_planted_mistake_is_caught(record_property, capsys):
    with capsys.disabled():
        missed = run.try_mistakes(planted())
    record_property("mistakes", len(planted()))
    record_property("mistakes caught", len(planted()) - len(missed))
    assert [f"{one.within}: {one.name}" for one in missed] == []
