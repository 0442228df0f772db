"""README's table of figures is the one that `make bench-strategies` measured last."""

import json

from bench_strategies import HEAD, RESULTS, ROOT, Row, line


def test_readme_shows_the_rows_that_were_measured():
    rows = [Row(**row) for row in json.loads(RESULTS.read_text(encoding="utf-8"))]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\n".join([HEAD, *map(line, rows)]) in readme
    assert {row.noise for row in rows} == {"laplace", "gaussian"}


def test_every_measured_row_is_above_its_bound_and_not_above_what_is_published():
    for raw in json.loads(RESULTS.read_text(encoding="utf-8")):
        row = Row(**raw)
        bound = row.bound or 0.0
        assert row.ours >= bound * (1 - 1e-6), row.workload
        # A published figure below the bound was rounded down, or sampled.
        assert row.published is None or row.ours <= max(row.published + 0.005, bound * 1.0005)
