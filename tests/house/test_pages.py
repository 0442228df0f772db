"""The pages of dpquery/docs: their links, what cites them, and the examples on them."""

import ast
import doctest
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from town import run

from dpquery import exceptions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "dpquery" / "docs"
PAGES = sorted([ROOT / "README.md", *(ROOT / "tests").rglob("*.md"), *DOCS.glob("*.md")])
MATH = DOCS / "MATH.md"

LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
CITED = re.compile(r"\[MATH\](?:\s+(\d+(?:(?:, | and )\d+)*))?")
KEY = re.compile(r"\[([A-Z][\w-]+(?: and [A-Z]\w+)?)(?:, [\w.]+)?\](?!\()")


def shown(page):
    """The text of a page without fenced code."""
    return re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)


def prose(page):
    """The text of a page without code of any kind."""
    return re.sub(r"`[^`]*`", "", shown(page))


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    seen, names = Counter(), set()
    for heading in re.findall(r"^#+ +(.+?)\s*$", shown(page), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{plain}-{seen[plain]}" if seen[plain] else plain)
        seen[plain] += 1
    return names


def broken_links(path, text):
    """The relative links of a page that lead nowhere."""
    wrong = []
    for target in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        goal = path.parent / name if name else path
        if not goal.exists():
            wrong.append(f"{path.name}: no file {target}")
        elif anchor and anchor not in anchors(goal.read_text(encoding="utf-8")):
            wrong.append(f"{path.name}: no heading {target}")
    return wrong


def sections():
    """The numbers of the sections of MATH.md."""
    return re.findall(r"^## (\d+)\. ", MATH.read_text(encoding="utf-8"), re.MULTILINE)


def keys():
    """The keys that MATH.md lists under its references."""
    listed = MATH.read_text(encoding="utf-8").split("\n## References\n")[1]
    return set(re.findall(r"^\| \[(.+?)\] \|", listed, re.MULTILINE))


def unknown_sections(source):
    """The sections that a source cites and MATH.md does not have; "none" where it names none."""
    cited = [re.findall(r"\d+", citation) or ["none"] for citation in CITED.findall(source)]
    return [number for numbers in cited for number in numbers if number not in sections()]


def docstrings(source):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def unknown_keys(text):
    return [key for key in KEY.findall(text) if key not in keys()]


def sources():
    files = [*(ROOT / "dpquery").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    return [file for file in sorted(files) if file != Path(__file__)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading(path):
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_a_link_to_nowhere_is_found():
    text = "[a](MATH.md#10-no-such-heading) [b](nowhere.md) [c](MATH.md#references) [d](#here)"
    assert len(broken_links(DOCS / "made_up.md", text.replace("[d](#here)", ""))) == 2
    assert len(broken_links(MATH, text)) == 3


def test_every_page_is_behind_one_of_the_four_doors_and_on_the_site():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    linked = {target.partition("#")[0] for target in LINK.findall(prose(index))}
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert pages == linked
    site = (DOCS / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"[\w-]+\.md", site)) == {*pages, "index.md"}
    assert "(dpquery/docs/index.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_all_pages_together_are_no_more_than_a_person_may_read():
    """Words that are read as such: no listings, formulas, names of code or figures."""
    words = [
        word
        for page in PAGES
        if page.parent in (ROOT, DOCS)
        for word in prose(page.read_text()).split()
    ]
    assert sum(bool(re.search("[A-Za-z]{2}", word)) for word in words) <= 45_000


def test_the_pages_are_shipped_with_the_package():
    toml = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert toml["tool"]["setuptools"]["package-data"]["dpquery"] == ["docs/*.md", "py.typed"]


def test_every_section_of_the_mathematics_that_code_cites_exists():
    wrong = {
        source.name: unknown
        for source in sources()
        if (unknown := unknown_sections(source.read_text("utf-8")))
    }
    assert wrong == {}


@pytest.mark.nightly
def test_every_reference_that_a_docstring_or_a_page_cites_is_listed():
    texts = {source: "\n".join(docstrings(source.read_text("utf-8"))) for source in sources()}
    texts |= {page: prose(page.read_text("utf-8")) for page in PAGES}
    assert {
        source.name: unknown for source, text in texts.items() if (unknown := unknown_keys(text))
    } == {}


def test_a_wrong_citation_is_found():
    assert unknown_sections("see [MATH] 6 and 99, and [MATH] of old") == ["99", "none"]
    assert unknown_sections("[MATH] 3, 4), 7") == []
    assert unknown_keys("[HDMM18] and [Nobody99], [RAP, 3.4.2], [1, 2] and [a](b)") == ["Nobody99"]


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_commands_named_in_a_page_exist_and_its_python_prints_what_it_says(path):
    named = set(re.findall(r"`dpquery ([a-z-]+)", path.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if run(name, "--help").code] == []
    assert doctest.testfile(str(path), module_relative=False, encoding="utf-8").failed == 0


def test_operations_names_the_exit_codes_of_the_exceptions_and_every_command_of_the_ledger():
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    table = page[page.index("## Exit codes") : page.index("## When a command")]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type)]
    raised = {kind.exit_code for kind in kinds if issubclass(kind, exceptions.DpqueryError)}
    assert documented == raised | {0, 1, 130}
    listed = run("ledger", "--help").out.partition("Commands:")[2]
    names = re.findall(r"^ {2}([a-z-]+) ", listed, re.MULTILINE)
    assert len(names) > 4
    assert [name for name in names if f"`dpquery ledger {name}" not in page] == []


def test_every_message_that_operations_quotes_can_be_printed():
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    below = page[page.index("## When a command refuses") :]
    cells = re.findall(r"^\| (\d+.*?) \| .+\|$", below, re.MULTILINE)
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    parts = [part.strip(" ;:,") for text in quoted for part in text.split("…")]
    code = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "dpquery").rglob("*.py"))
    code = " ".join(re.sub(r'"\s+f?"', "", code).split()).replace("{MANIFEST_FILE}", "release.json")
    assert len(parts) > 10
    assert [part for part in parts if len(part) > 3 and part not in code] == []
