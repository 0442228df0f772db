"""The pages of dpquery/docs: their links, what cites them, and the examples on them."""

import ast
import csv
import doctest
import hashlib
import importlib.util
import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import bench_adaptive
import bench_choice
import bench_engines
import pyarrow.parquet as pq
import pytest
from bench_strategies import HEAD, RESULTS, Row, line
from release_parts import ITEMS
from town import ok, run

from dpquery import exceptions
from dpquery.limits import MAX_LABELLED_TABLES
from dpquery.releases.tables.long_table import AXES_SCHEMA, EDGES_SCHEMA, long_layout
from dpquery.spec.parsing.read import load_spec

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


# docs/outputs.md names every file, column, type and fact that a release has, and no others.


OUTPUTS = (Path(__file__).parents[2] / "dpquery" / "docs" / "outputs.md").read_text(
    encoding="utf-8"
)
TYPES = {"int64", "int32", "float64", "float32", "string", "label", "bool", "date32"}


def section(title):
    """The text below a heading."""
    match = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", OUTPUTS, re.MULTILINE | re.DOTALL
    )
    assert match, title
    return match[1]


def table(title):
    """The first cell's names of each row of a section's table, with the row's other cells."""
    lines = re.findall(r"^\| (`.+?) \|(.*)\|$", section(title), re.MULTILINE)
    cells = [(names, re.split(r"(?<!\\)\|", rest)) for names, rest in lines]
    return {name: rest for names, rest in cells for name in re.findall(r"`([^`]+)`", names)}


def described(field):
    """A column's type as the page has it."""
    kind = str(field.type)
    names = {"double": "float64", "float": "float32", "date32[day]": "date32"}
    return "label" if kind.startswith("dictionary<values=string") else names.get(kind, kind)


@pytest.fixture
def released(town):
    also = ("nonnegative", "consistent", "thresholded", "integer")
    ok("release", "data.csv", "--epsilon", "1", *(f"--also={name}" for name in also))
    return Path("release")


@pytest.mark.parametrize("name", ["errors.parquet", "measurements.parquet"])
def test_columns_and_types_of_a_file_are_those_of_the_page(name, released):
    documented = {key: rest[0].split(",")[0].strip() for key, rest in table(f"`{name}`").items()}
    assert {field.name: described(field) for field in pq.read_schema(released / name)} == documented


def test_columns_and_types_of_the_items_are_those_of_the_page(released):
    documented = table("`<item>.parquet`")
    kinds = {name: set(re.findall(r"\w+", rest[0])) & TYPES for name, rest in documented.items()}
    for file in ("age_by_sex", "pairs", "ages"):
        for field in pq.read_schema(released / f"{file}.parquet"):
            name = re.sub(
                r"^(age|sex|region|income)(?=_from$|_to$|_below$|_code$|$)",
                "<attribute>",
                field.name,
            )
            assert described(field) in kinds[name], (file, field.name)
            if not field.nullable or name in ("table", "query", "<attribute>"):
                assert not field.nullable
                assert "may be null" not in documented[name][0]


def test_files_of_a_release_are_those_of_the_page(released):
    files = set(table("The folder of a release"))
    here = {path.name for path in released.iterdir()} - {"age_by_sex.parquet", "pairs.parquet"}
    others = {"relaxed_rows.parquet", "<item>.parquet"}
    others |= {"<item>.tables.parquet", "<item>.labels.parquet", "<derived item>.parquet"}
    assert here - {"ages.parquet"} | others == files


def test_columns_of_discovered_files_are_those_of_the_page(town):
    budget = "budget: {epsilon: 9, delta: 1e-6, discover: 1e-7}"
    columns = set()
    Path("data.csv").write_text("id,age\n1,2\n", encoding="utf-8")
    for name, unit, options in (
        ("rows", "row", ("--column=age", "--number=age")),
        ("persons", "{person: id, max_rows: 3}", ("--column=age", "--rows-per-person=id")),
    ):
        spec = f"dataset: {{id: {name}}}\nprivacy: {{unit: {unit}}}\n{budget}\n"
        Path("found.yaml").write_text(spec, encoding="utf-8")
        for option in options:
            of_spec = ("--spec=found.yaml", "--out=found.csv", "--new-dataset")
            ok("discover", "data.csv", option, "--epsilon=1", "--delta=1e-8", *of_spec)
            columns |= set(Path("found.csv").read_text(encoding="utf-8").strip().split(","))
    assert columns == set(table("`COLUMN.csv`")) - {"values_file"}


def test_columns_and_types_of_numbered_items_are_those_of_the_page():
    documented = section("Items of very many tables")
    for head, schema in (
        ("numbered column", long_layout(ITEMS[0]).schema),
        ("column of tables", AXES_SCHEMA),
        ("column of labels", EDGES_SCHEMA),
    ):
        lines = documented.partition(f"| {head} | type |")[2].partition("\n\n")[0]
        rows = re.findall(r"^\| (`.+?) \| (.+?) \|", lines, re.MULTILINE)
        kinds = {name: kind for names, kind in rows for name in re.findall(r"`([^`]+)`", names)}
        assert {name: kind.split(",")[0] for name, kind in kinds.items()} == {
            field.name: described(field) for field in schema
        }
        assert {name for name, kind in kinds.items() if "may be null" in kind} == {
            field.name for field in schema if field.nullable
        }
    assert f"more than {MAX_LABELLED_TABLES:,} tables" in documented


def test_every_fact_of_the_manifest_is_on_the_page(released):
    manifest = json.loads((released / "release.json").read_text(encoding="utf-8"))
    documented = table("`release.json`")
    optional = {"rap", "adaptive", "answered", "derived", "facts", "nearer"}
    assert set(manifest) | optional == set(documented)
    for name, value in manifest.items():
        facts = value[0] if isinstance(value, list) and name in ("items", "extra") else value
        if isinstance(facts, dict) and name != "libraries":
            text = f"`{name}`, " + "|".join(documented[name])
            missing = [key for key in facts if f"`{key}`" not in text and key != "person"]
            assert missing == [], name


def test_every_kind_of_event_is_on_the_page(released):
    kinds = {event["kind"] for event in json.loads(ok("ledger", "history", "--json").out)}
    assert kinds <= set(re.findall(r"^\| `(\S+)` \|", section("The ledger"), re.MULTILINE))


# The tables of the pages of figures are those that the benches measured last.


SHORT = ROOT / "dpquery" / "docs" / "benchmarks.md"
REFERENCE = ROOT / "tests" / "reference"
FIGURES = REFERENCE / "benchmarks.md"
COLUMNS = ("estimate", "nonnegative", "consistent", "thresholded", "graphical", "shrunk")


def page():
    return FIGURES.read_text(encoding="utf-8")


def rounded(value):
    """A count as the table of columns has it."""
    return f"{value:.1f}" if value < 20 else f"{value:,.0f}"


def test_the_page_shows_the_strategies_that_were_measured():
    rows = [Row(**row) for row in json.loads(RESULTS.read_text(encoding="utf-8"))]
    assert "\n".join([HEAD, *map(line, rows)]) in page()
    assert {row.noise for row in rows} == {"laplace", "gaussian"}
    start = SHORT.read_text(encoding="utf-8").partition(f"{HEAD}\n")[2]
    shown = start.partition("\n\n")[0].splitlines()
    assert len(shown) > 10
    assert set(shown) <= set(map(line, rows))


def test_the_pages_show_the_adaptive_tables_that_were_measured():
    cells = bench_adaptive.stored()
    assert "\n".join(bench_adaptive.shown(cells)) in page()
    assert "\n".join(bench_adaptive.briefly(cells)) in SHORT.read_text(encoding="utf-8")
    inside, runs = bench_adaptive.held(cells)
    assert f"distance plus and minus 1.96 standard deviations: {inside} of {runs} runs" in page()
    assert all(cell.commit for cell in cells if cell.method not in ("AIM", "linear"))
    aim, mst = bench_adaptive.beside(cells, "AIM"), bench_adaptive.beside(cells, "MST", ["0.01"])
    below = sum(ratio <= 1 for ratio in aim)
    assert f"In {below} of the {len(aim)} cells where AIM was run" in page()
    assert f"below its RMSE, {min(aim):.2f} to {max(aim):.2f} times" in page()
    assert f"the best is {min(mst):.2f} to {max(mst):.2f} times at ε = 0.01" in page()


def test_the_page_shows_the_closest_answers_that_were_measured():
    assert "\n".join(bench_choice.table(bench_choice.stored())) in page()


def test_the_page_of_sources_shows_the_engines_that_were_measured():
    stored = json.loads(bench_engines.RESULTS.read_text(encoding="utf-8"))
    text = (ROOT / "dpquery" / "docs" / "sources.md").read_text(encoding="utf-8")
    for lines in (bench_engines.shown(stored), bench_engines.on_paper(stored)):
        assert "\n" + "\n".join(lines) + "\n\n" in text
    taken = {(own["engine"], own["rows"], own["counts"]): own["cpu_s"] for own in stored}
    for (kind, rows, counts), seconds in taken.items():
        assert counts == "engine" or seconds <= 2 * taken.get((kind, rows, "engine"), seconds)


def test_every_measured_row_is_above_its_bound_and_not_above_what_is_published():
    for raw in json.loads(RESULTS.read_text(encoding="utf-8")):
        row = Row(**raw)
        bound = row.bound or 0.0
        assert row.ours >= bound * (1 - 1e-6), row.workload
        # A published figure below the bound was rounded down, or sampled.
        assert row.published is None or row.ours <= max(row.published + 0.005, bound * 1.0005)


def test_the_page_shows_what_the_columns_beside_the_estimates_gained():
    measured = json.loads((REFERENCE / "postprocess.json").read_text(encoding="utf-8"))
    releases = {
        (release["workload"], release["noise"], release["epsilon"]): {} for release in measured
    }
    for release in measured:
        cell = f"{rounded(release['rmse'])} ({release['sums']:,.0f})"
        releases[release["workload"], release["noise"], release["epsilon"]][release["column"]] = (
            cell
        )
    for (workload, noise, epsilon), columns in releases.items():
        cells = [columns.get(name, "too large") for name in COLUMNS]
        row = (workload, noise.capitalize(), epsilon, *cells)
        assert f"| {' | '.join(row)} |" in page()


def test_the_page_shows_what_later_questions_erred_by():
    figures = json.loads((REFERENCE / "future.json").read_text(encoding="utf-8"))["figures"]
    for name in ("uniform", "zipf", "geometric"):
        chosen = [row for row in figures if row["distribution"] == name and row["gamma"] == 0]
        chosen.sort(key=lambda row: row["size"])
        assert [row["size"] for row in chosen] == [1, 4, 16, 64]
        errors = [100 * row["rap"] for row in chosen]
        shown = [f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in errors]
        label = "Zipf" if name == "zipf" else name
        assert f"| {label} | {' | '.join(shown)} |" in page()


def test_workloads_that_stand_for_published_ones_are_of_closed_domains():
    closed = {
        path.stem: "\nother: drop" in path.read_text(encoding="utf-8")
        for path in (ROOT / "workloads").glob("*.yaml")
    }
    open_domains = {name for name, drops in closed.items() if not drops}
    assert open_domains == {"starter", "sample_persons", "earnings"}
    assert "`starter`, `sample_persons` and `earnings`\nkeep the default" in page()


# Sample data and areas are made again byte for byte, and the specs that are shipped fit them.


SAMPLES, WORKLOADS = ROOT / "sample_data", ROOT / "workloads"
SHOWCASES = ("redistricting", "earnings", "births", "broadband")


def script(name):
    where = importlib.util.spec_from_file_location(name, SAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def showcases():
    return script("make_showcases")


@pytest.fixture(scope="module")
def spec():
    return load_spec(WORKLOADS / "sample_persons.yaml")


def test_persons_csv_is_what_make_persons_writes():
    persons = (SAMPLES / "persons.csv").read_bytes()
    assert persons == script("make_persons").render().encode()


@pytest.mark.parametrize(("name", "lines"), [("nhanes2.csv", 10_338), ("persons.csv", 50_001)])
def test_the_survey_of_the_tutorial_is_the_file_that_the_readme_names(name, lines):
    """So are the made-up persons: what a nation's look like was seen on this file."""
    content = (SAMPLES / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() in (SAMPLES / "README.md").read_text()
    assert len(content.splitlines()) == lines
    assert len(content) < 5_000_000


def test_the_workload_reads_the_columns_of_the_file_and_shows_every_kind_of_item(spec):
    with (SAMPLES / "persons.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = {column.name for attribute in spec.domain.attributes for column in attribute.columns}
    assert columns == set(rows[0])
    state = spec.domain.attributes[spec.domain.index("state")].columns[0].kind
    assert {row["state"] for row in rows} == set(state.values)
    kinds = ("product", "marginals", "ranges", "union", "any_of", "threshold")
    settings = ("where", "weight", "prefix", "groups", "width", "merge", "other: show")
    assert [word for word in (*kinds, *settings) if word not in spec.text] == []
    tables = [table for item in spec.items for table in item.tables]
    assert {table.at_least for table in tables} == {None, 1, 2, 3}


@pytest.mark.parametrize("name", ["tracts", "postcodes"])
def test_the_areas_are_what_make_showcases_writes(showcases, name):
    with (WORKLOADS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        assert [tuple(line) for line in csv.reader(file)] == getattr(showcases, name)()


def test_every_showcase_has_records_a_spec_a_make_target_and_a_row_of_the_page(showcases):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    page = (ROOT / "dpquery" / "docs" / "showcases.md").read_text(encoding="utf-8")
    assert tuple(showcases.RECORDS) == SHOWCASES
    for name in SHOWCASES:
        spec = load_spec(WORKLOADS / f"{name}.yaml")
        epsilon = re.search(rf"^showcase-{name}: EPSILON := (\S+)$", makefile, re.MULTILINE)[1]
        row = next(line for line in page.splitlines() if f"`showcase-{name}`" in line)
        _, _, records, answers, at_epsilon, _ = (cell.strip() for cell in row.split("|")[1:-1])
        assert int(answers.replace(",", "")) == spec.queries
        assert at_epsilon == epsilon
        assert int(records.replace(",", "")) == pytest.approx(spec.dataset.rows.count, rel=0.01)
        assert spec.derived
        assert spec.about.title.endswith("(made-up data)")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWCASES)
def test_a_showcase_runs_from_its_records_to_the_package(showcases, name, own_folder):
    showcases.RECORDS[name]().to_csv("records.csv", index=False)
    file = WORKLOADS / f"{name}.yaml"
    spec = load_spec(file)
    epsilon = float(spec.budget.epsilon)
    ok("plan", file, "--epsilon", epsilon, "--mechanism", "linear", "--time-limit", "5")
    ok("release", "records.csv", "--epsilon", epsilon)
    assert ok("error-report", "release").out
    ok("package", "release", "--also", "csv")
    manifest = json.loads(Path("release/release.json").read_text(encoding="utf-8"))
    assert manifest["guarantee"]["epsilon"] == pytest.approx(epsilon)
    for item in spec.derived:
        table = pq.read_table(f"release/{item.name}.parquet").to_pandas()
        given = table[table.estimate.notna()]
        assert len(given) >= 0.9 * len(table)
        assert ((given.ci_low <= given.estimate) & (given.estimate <= given.ci_high)).all()
        assert Path(f"package/{item.name}.csv").exists()
