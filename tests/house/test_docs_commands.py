"""What the tutorial and the README show is what their commands print.


A page is tested by these rules, and by no others:

- Lines of a ```console block that begin with `$ ` are commands, `> ` continues one, and all else is
  what they print: stdout, then stderr. Other blocks are not run.
- A block whose first line is a comment with a file name (`# workload.yaml`) is that file. It is
  written where the commands run, when the page comes to it.
- The folder where a page begins is called /srv/dpquery in it. It has sample_data/ and workloads/.
- A line of three dots stands for any lines, none included. Runs of blanks count as one.
- A number of up to six digits with a decimal point may differ by half a percent: an optimiser ends
  elsewhere where the linear algebra of the processor rounds otherwise.
- In a block that is opened by ```console noisy, any number (or SHA-256) may stand in place of
  another, and so may what follows from noisy answers: the words in `_NOISY`.
- All else must be as the page shows it.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import town

ROOT = Path(__file__).parents[2]
HERE = "/srv/dpquery"
ANY_LINES = "..."
_ROUNDING = 0.005
_BLOCK = re.compile(r"^```(\w+)([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w.-]+\.(?:yaml|py|csv))\n")
_NUMBER = re.compile(r"\b[0-9a-f]{64}\b|-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_NOISY = re.compile(r"(?:over|under) ±|±|\b(?:very noisy|noisy)\b|\b(?:good|fair|weak)$")


@dataclass(frozen=True)
class Step:
    """A command and what the page says that it prints, or a file (no command) and its content."""

    line: int
    command: str
    text: str
    noisy: bool = False


def steps(page: str) -> list[Step]:
    """Return the commands and files of a page, in order."""
    all_steps = []
    for block in _BLOCK.finditer(page):
        kind, options, content = block.groups()
        line = page.count("\n", 0, block.start(3)) + 1
        if kind == "console":
            all_steps += _commands(content, line, noisy=options.strip() == "noisy")
        elif named := _FILE.match(content):
            all_steps.append(Step(line, "", f"{named[1]}\n{content}"))
    return all_steps


def _commands(content: str, line: int, *, noisy: bool) -> list[Step]:
    commands: list[Step] = []
    for place, text in enumerate(content.splitlines(), start=line):
        last = commands[-1] if commands else None
        if text.startswith("$ "):
            commands.append(Step(place, text[2:], "", noisy))
        elif last is None:
            raise ValueError(f"line {place}: a console block begins with a command")
        elif text.startswith("> ") and not last.text:
            commands[-1] = Step(last.line, f"{last.command}\n{text[2:]}", "", noisy)
        else:
            commands[-1] = Step(last.line, last.command, f"{last.text}{text}\n", noisy)
    return commands


@dataclass
class Session:
    """A shell in a folder of its own; `dpquery` runs inside this process, all else in bash."""

    root: Path
    folder: Path = field(init=False)
    environment: dict[str, str] = field(init=False)
    code: int = 0

    def __post_init__(self) -> None:
        self.folder = self.root
        shutil.copytree(ROOT / "sample_data", self.root / "sample_data")
        shutil.copytree(ROOT / "workloads", self.root / "workloads")
        (self.root / "bin").mkdir()
        python = self.root / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
        python.chmod(0o700)
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "HOME": str(self.root), "LC_ALL": "C"}

    def run(self, step: Step, monkeypatch) -> str:
        """Carry a step out; return what it prints, with the name of the page for the folder."""
        if not step.command:
            name, _, content = step.text.partition("\n")
            (self.folder / name).write_text(content, encoding="utf-8")
            return step.text
        inside = step.command.startswith("dpquery ")
        printed = self._product(step, monkeypatch) if inside else self._shell(step)
        return printed.replace(str(self.root), HERE)

    def _product(self, step: Step, monkeypatch) -> str:
        monkeypatch.chdir(self.folder)
        words = shlex.split(step.command.replace("\\\n", ""))
        if "DPQUERY_LEDGER" in self.environment:
            monkeypatch.setenv("DPQUERY_LEDGER", self.environment["DPQUERY_LEDGER"])
        elif words[1] != "check":  # which opens no ledger
            raise ValueError("a page says where its ledger lies before its first command")
        done = town.run(*words[1:], *town.SEARCHED * (words[1] == "plan"))
        self.code = done.code
        return done.out + done.err

    def _shell(self, step: Step) -> str:
        state = self.root / "bin" / "state"
        script = f"(exit {self.code})\n{step.command}\ncode=$?\npwd > {state}\nenv -0 >> {state}\n"
        done = subprocess.run(
            ["bash", "-c", f"{script}exit $code"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.code = done.returncode
        where, _, rest = state.read_text(encoding="utf-8").partition("\n")
        self.folder = Path(where)
        self.environment = dict(
            variable.split("=", 1) for variable in rest.split("\0") if "=" in variable
        )
        return done.stdout + done.stderr


def difference(step: Step, printed: str) -> str:
    """Return the first line of a page that a command did not print; empty where there is none."""
    expected = [" ".join(line.split()) for line in step.text.splitlines()]
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    while expected and not expected[-1]:
        expected.pop()
    place, skipping = 0, False
    for want in expected:
        if want == ANY_LINES:
            skipping = True
            continue
        fitting = (k for k in range(place, len(lines)) if same(want, lines[k], noisy=step.noisy))
        matching = next(fitting, None) if skipping else place
        if (
            matching is None
            or matching >= len(lines)
            or not same(want, lines[matching], noisy=step.noisy)
        ):
            return f"the page says {want!r}, and printed is {lines[place : place + 1]}"
        place, skipping = matching + 1, False
    if place < len(lines) and not skipping:
        return f"the page leaves out {lines[place]!r}"
    return ""


def same(shown: str, printed: str, *, noisy: bool) -> bool:
    """Return whether two lines are the same, by the rules for numbers."""
    if noisy:
        masked = [_NUMBER.sub("#", _NOISY.sub("", text)) for text in (shown, printed)]
        return masked[0].split() == masked[1].split()
    if _NUMBER.sub("#", shown) != _NUMBER.sub("#", printed):
        return False
    return all(map(_close, _NUMBER.findall(shown), _NUMBER.findall(printed)))


def _close(shown: str, printed: str) -> bool:
    if shown == printed:
        return True
    short = all(len(re.findall(r"\d", number)) <= 6 for number in (shown, printed))
    if not short or "." not in shown + printed or "e" in shown + printed:
        return False
    first, second = (float(number.replace(",", "")) for number in (shown, printed))
    return abs(first - second) <= _ROUNDING * abs(first)


def check(page, folder, monkeypatch):
    """Run all commands of a page and compare what they print."""
    session = Session(folder)
    page_steps = steps(page.read_text(encoding="utf-8"))
    assert page_steps, "no commands"
    for step in page_steps:
        printed = session.run(step, monkeypatch)
        wrong = difference(step, printed)
        assert not wrong, f"{page.name}:{step.line}: {step.command}: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["dpquery/docs/tutorial.md", "dpquery/docs/guide.md", "README.md"])
def test_a_page_shows_what_its_commands_print(page, tmp_path, monkeypatch):
    check(ROOT / page, tmp_path, monkeypatch)


PAGE = """\
```yaml
# a.yaml
x: 1
```

```console
$ cat a.yaml
...
x: 1
$ printf '%s ' a \\
>   b
a b
```

```console noisy
$ echo 12.3 noisy
9 very noisy
```
"""


def test_commands_files_and_outputs_are_read_from_a_page(tmp_path, monkeypatch):
    page_steps = steps(PAGE)
    assert [step.command for step in page_steps] == [
        "",
        "cat a.yaml",
        "printf '%s ' a \\\n  b",
        "echo 12.3 noisy",
    ]
    assert [step.noisy for step in page_steps] == [False, False, False, True]
    session = Session(tmp_path)
    assert [difference(step, session.run(step, monkeypatch)) for step in page_steps] == [""] * 4


def test_a_shell_keeps_its_folder_its_variables_and_the_last_exit_code(tmp_path, monkeypatch):
    session = Session(tmp_path)
    commands = ["mkdir x && cd x", "export WORD=hello", 'echo "$WORD"; pwd; false', "echo $?"]
    printed = [session.run(Step(1, command, ""), monkeypatch) for command in commands]
    assert printed == ["", "", "hello\n/srv/dpquery/x\n", "1\n"]


@pytest.mark.parametrize(
    ("text", "printed", "noisy", "same"),
    [
        ("error 12.63\n", "error   12.64\n", False, True),
        ("error 12.63\n", "error 12.73\n", False, False),
        ("rho 0.0149730576735\n", "rho 0.0149730576736\n", False, False),
        ("320 answers\n", "321 answers\n", False, False),
        ("1e-06\n", "1e-05\n", False, False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", False, True),
        ("a\n...\nd\n", "a\nb\n", False, False),
        ("a\n...\n", "a\n", False, True),
        ("a\n", "a\nb\n", False, False),
        ("a\nb\n", "a\n", False, False),
        ("1 ±11 % fair\n", "2 over ±1,000 % weak\n", True, True),
        ("Midwest 1.5\n", "South 1.5\n", True, False),
        (f"head {'ab' * 32}\n", f"head {'cd' * 32}\n", True, True),
    ],
)
def test_what_may_differ(text, printed, noisy, same):
    assert (difference(Step(1, "x", text, noisy), printed) == "") == same
