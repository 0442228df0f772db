"""What the tutorial and the README show is what their commands print; see doc_commands."""

from pathlib import Path

import pytest
from doc_commands import Session, Step, difference, steps

ROOT = Path(__file__).parents[2]


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
@pytest.mark.parametrize("page", ["dpquery/docs/tutorial.md", "dpquery/docs/areas.md", "README.md"])
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
