"""The tables of the pages of figures are those that the benches measured last."""

import json

import bench_engines
from bench_strategies import HEAD, RESULTS, ROOT, Row, line

SHORT = ROOT / "dpquery" / "docs" / "benchmarks.md"
REFERENCE = ROOT / "tests" / "reference"
PAGE = REFERENCE / "benchmarks.md"
COLUMNS = ("estimate", "nonnegative", "consistent", "thresholded", "graphical", "shrunk")


def page():
    return PAGE.read_text(encoding="utf-8")


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
