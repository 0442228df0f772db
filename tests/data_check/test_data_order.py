"""What `dpquery check` says of the order of rows, of whole files, and of limits to declare."""

import gzip
import itertools
import re

import numpy as np
import pytest
from test_data_check import DROP, HEAD, PANEL, PANEL_ROWS, SURVEY, SURVEY_ROWS, WORKLOAD, checked

from dpquery.cli.show_checks import check_grids, left_out_grid
from dpquery.data_check import check as module

FIRST = PANEL.replace("max_rows: 3", "max_rows: 3, keep: first")


def test_rows_that_are_sorted_within_persons_are_told_where_the_first_ones_stay(tmp_path):
    content = f"nr,year,union\n{PANEL_ROWS}"
    assert checked(tmp_path, FIRST, content).records.persons.sorted_by == ("year",)
    backwards = "".join(reversed(PANEL_ROWS.splitlines(keepends=True)))
    result = checked(tmp_path, FIRST, f"nr,year,union\n{backwards}")
    assert result.records.persons.sorted_by == ("year",)
    (_, *grids) = [left_out_grid(result, "d.csv"), *check_grids(result)]
    (note,) = [note for grid in grids for note in grid.notes if "keep: first" in note]
    assert "sorted by year" in note
    mixed = PANEL_ROWS.replace("1,1984", "1,1979").replace("1,1981", "1,1985")
    assert checked(tmp_path, FIRST, f"nr,year,union\n{mixed}").records.persons.sorted_by == ()
    assert checked(tmp_path, PANEL, content).records.persons.sorted_by == ()


@pytest.mark.parametrize("piece", [2**23, 40])
def test_the_order_of_rows_is_that_of_a_loop_over_each_person(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("dpquery.data_check.records._PIECE", piece)
    generator = np.random.default_rng(8)
    spec = FIRST.replace("union: boolean", "union: {range: [0, 3], other: count}")
    for trial in range(30):
        rows = [
            (generator.integers(1, 4), 1980 + generator.integers(8), generator.integers(5))
            for _ in range(25)
        ]
        if trial % 3:
            rows.sort(key=lambda row: row[trial % 3], reverse=trial % 2 == 0)
        content = "".join(f"{nr},{year},{union}\n" for nr, year, union in rows)
        expected = []
        for name, k, most in (("year", 1, 1987), ("union", 2, 3)):
            steps = []
            for person in (1, 2, 3):
                values = [row[k] for row in rows if row[0] == person and row[k] <= most]
                steps += [b - a for a, b in itertools.pairwise(values) if a != b]
            if len(steps) >= 8 and (min(steps) > 0 or max(steps) < 0):
                expected.append(name)
        result = checked(tmp_path, spec, f"nr,year,union\n{content}")
        assert result.records.persons.sorted_by == tuple(expected)


def test_the_same_rows_under_two_names_are_told_and_other_rows_are_not(tmp_path):
    (tmp_path / "w.yaml").write_text(SURVEY.replace(DROP, ""))
    text = f"id,sex,happy\n{SURVEY_ROWS}"
    for name, content in {
        "a.csv": text,
        "b.csv": text.replace("iap", "inap"),
        "c.csv": text,
        "d.csv": "happy,sex\n"
        + "".join(
            f"{happy},{sex}\n" for _, sex, happy in (r.split(",") for r in SURVEY_ROWS.split())
        ),
        "e.csv": "sex,happy\n",
        "f.csv": "sex,happy\n",
        "g.csv": "id,sex,happy\n" + "".join(sorted(SURVEY_ROWS.splitlines(keepends=True))[::-1]),
    }.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "h.csv.gz").write_bytes(gzip.compress(text.encode()))
    names = [tmp_path / name for name in ("a.csv", "b.csv", "e.csv", "f.csv", "g.csv")]
    result = module.check(names, tmp_path / "w.yaml")
    assert result.records.repeated == ()
    assert result.as_declared
    names += [tmp_path / name for name in ("c.csv", "d.csv", "h.csv.gz")]
    result = module.check(names, tmp_path / "w.yaml")
    first = str(tmp_path / "a.csv")
    assert result.records.repeated == tuple((str(own), first, 8) for own in names[-3:])
    assert not result.as_declared
    notes = left_out_grid(result, "data").notes
    assert sum("holds the same 8 records as" in note for note in notes) == 3


@pytest.mark.parametrize(("number", "rows"), [(1, 1), (30, 306), (12, 31)])
def test_limits_of_rows_that_are_proposed_are_round_and_leave_out_few(tmp_path, number, rows):
    persons = {f"p{k}": 1 + k % 9 for k in range(1000)}
    persons |= {f"q{k}": rows * (k + 1) // number for k in range(number)}
    content = "".join(f"{person},1981,0\n" * n for person, n in persons.items())
    result = checked(tmp_path, PANEL, f"nr,year,union\n{content}")
    lines = [line for line in result.remedies if "max_rows" in line][:-1]
    found = [int(re.search(r"max_rows: (\d+)", line)[1]) for line in lines]
    total = sum(persons.values())
    for limit, share in zip(found, (10, 100), strict=False):
        beyond = sum(max(0, n - limit) for n in persons.values())
        assert share * beyond <= total
        assert str(limit).rstrip("0") in "123456789"
        assert f"would leave out {beyond:,} of {total:,} rows" in "".join(lines)
    assert found


def test_bins_that_are_proposed_cover_values_far_away(tmp_path):
    spec = HEAD + "domain:\n  pay: {bins: [0, 10, 50]}\n" + WORKLOAD
    content = "pay\n5\n-20\n61\n3e4\n1234567.5\n9999\n1e400\n-1e23\n"
    result = checked(tmp_path, spec, content)
    edges = "0, 10, 50, 100, 1000, 10000, 100000, 1000000, 2000000"
    assert f"  pay: {{bins: [{edges}]}}" in "\n".join(result.remedies).replace(", other: count", "")
