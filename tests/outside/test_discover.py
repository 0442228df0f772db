"""`dpquery discover` from the outside: what it writes, says, refuses and never shows."""

import csv
import json
import re
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from damage import FILES, SMALL
from interference_support import FIXED, Step, observe
from town import contents, ok, refused, renew, run

import dpquery
from dpquery.measurement import discovery
from dpquery.spec.parsing.read import load_spec

SPEC = """\
dataset: {id: town}
privacy: {unit: {person: id, max_rows: 3}, delta: 1e-7}
budget: {epsilon: 4, delta: 1e-6, discover: 1e-8}
domain:
  job: {values_file: job.csv, other: show}
workload:
  - {name: jobs, product: {job: identity}}
"""
COMMAND = ("discover", "data.csv", "--column", "job", "--epsilon", 1, "--delta", "1e-8")
JOBS = ("baker", '"smith", first', "code", "007", "#1", "- list", "Bäcker\u00a0x", "label", "other")
ALONE = "nobody-else-9f3a"


@pytest.fixture
def here(own_folder):
    """A folder with a spec whose list of values is still to be found, and its data."""
    Path("workload.yaml").write_text(SPEC)
    write_data([(i, JOBS[i % len(JOBS)]) for i in range(4000)] + [(4000, ALONE)])
    return own_folder


def write_data(rows, name="data.csv"):
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "job"), *rows])


def written(name="job.csv"):
    with Path(name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def status():
    return json.loads(ok("ledger", "status", "--json").out)[0]


def test_what_is_to_be_pasted_has_the_name_that_the_spec_has(here):
    named = "  trade: {column: job, values_file: job.csv, other: show}"
    Path("workload.yaml").write_text(
        SPEC.replace("  job: {values_file: job.csv, other: show}", named).replace(
            "{job: ", "{trade: "
        )
    )
    assert named in ok(*COMMAND).out
    ok("plan", "workload.yaml", "--epsilon", 1, "--time-limit", 0)


def test_values_are_found_written_planned_with_and_released(here):
    done = ok(*COMMAND)
    assert "town is new in this ledger" in done.err
    assert "job: {values_file: job.csv, other: show}" in done.out
    rows = written()
    assert {row["code"] for row in rows} == {"7" if job == "007" else job for job in JOBS}
    labels = [row["label"] for row in rows]
    assert labels == [row["code"].replace("other", "(other)") for row in rows]
    assert all(abs(int(row["noisy_counted"]) - 444) < 60 for row in rows)
    (attribute,) = load_spec(Path("workload.yaml")).domain.attributes
    assert attribute.columns[0].kind.values == tuple(row["code"] for row in rows)
    ok("plan", "workload.yaml", "--epsilon", 1, "--time-limit", 0)
    ok("release", "data.csv", "--epsilon", 1)
    statement = " ".join(Path("release/statement.md").read_text().split())
    assert "were found in the records by discoveries, which this counts: of job." in statement
    assert "public and, but for what discoveries found (named above), was never" in statement
    assert "derived from the records but that, which the promise of all releases" in statement
    ok("ledger", "verify", "--releases", "release")
    assert not [
        name
        for name, text in contents(".").items()
        if ALONE.encode() in text and name != "data.csv"
    ]
    assert ALONE not in done.out + done.err


def test_the_same_again_is_free_and_of_the_same_bytes_whatever_became_of_the_data(here):
    first = ok(*COMMAND)
    before, spent = Path("job.csv").read_bytes(), status()
    again = ok(*COMMAND)
    assert again.out == first.out.replace("after it: ", "now: ")
    assert "nothing was charged" in again.err
    Path("data.csv").unlink()
    assert "warning: data.csv is not there: the numbers" in ok(*COMMAND, "--out", "other.csv").err
    assert Path("job.csv").read_bytes() == Path("other.csv").read_bytes() == before
    assert status() == spent
    deltas = {"cap": "1e-8", "spent": "5e-9", "left": "5e-9"}
    assert (spent["releases"], spent["discoveries"]) == (0, {"count": 1, **deltas})
    assert "reserve of a discovery" in ok("ledger", "history").out
    assert " (delta 9.9e-7), or 1 like the last, fit\n" in ok("ledger", "status").out
    exact = " ".join(ok("ledger", "status", "--exact").out.split())
    assert "delta cap by discoveries 1e-8 town delta spent by discoveries 5e-9" in exact
    events = json.loads(ok("ledger", "history", "--json").out)
    assert [event["kind"] for event in events] == ["register", "reserve", "commit"]
    assert events[1]["details"] == {"version": "1", "discover": "job"}
    assert events[1]["native"]["threshold"] == "1/200000000"


def test_a_cap_on_record_is_changed_by_a_discovery_whose_spec_names_a_file_to_be_found(here):
    """`plan` cannot change it, since it reads the domain."""
    listed = SPEC.replace(", discover: 1e-8", "").replace("values_file: job.csv", "values: [code]")
    Path("before.yaml").write_text(listed)
    ok("plan", "before.yaml", "--epsilon", 1, "--time-limit", 0)
    assert "--column job` can write it" in refused("plan", "workload.yaml", code=2)
    assert "change the cap on record with --change-cap" in refused(*COMMAND, code=5)
    ok(*COMMAND, "--change-cap")
    assert status()["discoveries"]["count"] == 1
    events = json.loads(ok("ledger", "history", "--json").out)
    assert [event["kind"] for event in events][:3] == ["register", "change-cap", "reserve"]
    ok("plan", "workload.yaml", "--epsilon", 1, "--time-limit", 0)


def test_a_column_without_frequent_values_gives_a_header_and_says_the_price(here):
    write_data([(i, f"job {i}") for i in range(500)])
    done = ok(*COMMAND)
    assert Path("job.csv").read_text() == "code,label,noisy_counted\n"
    assert "job.csv: 0 values of job" in done.out
    assert "this discovery uses" in done.out
    assert "next: no value was counted so often, and no spec can take an empty list" in done.out
    assert (
        "; a larger --max-values counts more of those who have several; a larger --eps" in done.out
    )
    assert "no value follows the header" in refused("plan", "workload.yaml", code=2)


@pytest.mark.parametrize("column", ["job title: now", "Beruf, \u00fcblich", "#job", "yes"])
@pytest.mark.parametrize("out", ["lists/a b.csv", "../found.csv"])
def test_the_line_to_paste_is_read_as_it_stands(here, column, out):
    Path("lists").mkdir()
    text = Path("data.csv").read_text(encoding="utf-8").partition("\n")[2]
    Path("data.csv").write_text(f'id,"{column}"\n{text}', encoding="utf-8")
    done = ok(*COMMAND[:2], "--column", column, *COMMAND[4:], "--out", out)
    line = done.out.rstrip("\n").rpartition("\n")[2]
    if out.startswith(".."):
        assert "put the file into the spec's folder" in done.out
        Path(out).rename("found.csv")
    old = "  job: {values_file: job.csv, other: show}"
    spec = SPEC.replace(old, line).replace("{job: identity}", "{}")
    Path("pasted.yaml").write_text(spec, encoding="utf-8")
    (attribute,) = load_spec(Path("pasted.yaml")).domain.attributes
    assert (attribute.name, attribute.columns[0].name) == (column, column)
    assert len(attribute.columns[0].kind.values) == len(JOBS)


def test_rows_are_counted_where_the_unit_is_a_row_and_python_finds_the_same(here):
    Path("workload.yaml").write_text(SPEC.replace("{person: id, max_rows: 3}", "row"))
    report = dpquery.discover("data.csv", column="job", epsilon=1, delta="1e-8")
    assert [row["code"] for row in written()] == [value for value, _ in report.values]
    assert {"code", "label", "noisy_rows"} == set(written()[0])
    shown = json.loads(ok(*COMMAND, "--json").out)
    assert shown["free"]
    assert shown["values"] == [{"value": v, "noisy_count": n} for v, n in report.values]
    assert shown["charged_delta"] == "1/200000000"


def test_a_delta_at_which_records_may_be_published_as_they_are_is_warned_of(here):
    rows = SPEC.replace("{id: town}", "{id: town, rows: about 4000}")
    Path("workload.yaml").write_text(rows.replace("1e-6, discover: 1e-8", "0.1, discover: 1e-3"))
    assert "is above one in the 4,000 records" in ok(*COMMAND).err


def test_a_person_counts_once_for_a_value_and_nobody_for_rows_without_an_id(here):
    write_data([(i % 5, "baker") for i in range(4000)] + [("", "smith")] * 4000)
    ok(*COMMAND)
    assert written() == []


NUMBER = ("discover", "data.csv", "--number", "job", "--epsilon", 2, "--delta", "1e-8")
PER_PERSON = ("discover", "data.csv", "--rows-per-person", "id", "--epsilon", 1, "--delta", "1e-8")


def pasted(line):
    """The spec with a line of the screen in place of the one that names a file."""
    text = SPEC.replace("  job: {values_file: job.csv, other: show}", line)
    Path("pasted.yaml").write_text(text.replace(", discover: 1e-8", ""))
    return load_spec(Path("pasted.yaml")).domain.attributes[0].columns[0].kind


@pytest.mark.nightly(daily="low1")
@pytest.mark.parametrize(
    ("numbers", "low", "high", "bins"),
    [
        (lambda i: 17 + i % 74, (10, 17), (90, 99), 8),  # ages, by tens
        (lambda i: 1950 + i % 70, (1000, 1950), (2019, 2999), 7),  # years, by tens too
        (lambda i: -300 + i % 500, (-400, -290), (190, 299), 5),
        (lambda i: 7 + i % 2, (7, 7), (8, 8), 1),
        (lambda i: (-1) ** i * (50 + i % 250), (-400, -290), (290, 399), 5),  # none next to zero
    ],
)
def test_a_range_and_bins_are_found_that_hold_the_numbers(here, numbers, low, high, bins):
    """Of 4,000 persons, each with one number, at noise of 5: under a budget that sets nothing
    apart for discoveries."""
    write_data([(i, f"{numbers(i)}.0 ") for i in range(4000)] + [(4000, "1e14"), (4001, "no")])
    Path("workload.yaml").write_text(SPEC.replace(", discover: 1e-8", ""))
    done = ok(*NUMBER)
    *_, of_bins, of_range = done.out.rstrip("\n").split("\n")
    kind = pasted(of_range)
    assert low[0] <= kind.low <= low[1]
    assert high[0] <= kind.high <= high[1]
    edges = pasted(of_bins).edges
    assert len(edges) > bins
    assert edges[0] >= 0 or 0 in edges
    rows = written()
    assert [float(row["from"]) for row in rows] == [float(edge) for edge in edges[:-1]]
    assert float(rows[-1]["below"]) == float(edges[-1])
    counted = [numbers(i) for i in range(4000)]
    truth = [sum(a <= n < b for n in counted) for a, b in pairwise(map(float, edges))]
    counts = [int(row["noisy_counted"]) for row in rows]
    assert max(abs(a - b) for a, b in zip(counts, truth, strict=True)) < 250
    shown = json.loads(ok(*NUMBER, "--json").out)
    beyond, noise = shown["outside"], shown["noise_std"]
    classes = [(float(row["std"]) / noise) ** 2 for row in rows]
    assert [int(row["classes"]) for row in rows] == pytest.approx(classes, rel=1e-3)
    assert abs(beyond["noisy_count"] - 1 - 4000 + sum(truth)) < 5 * beyond["std"] < 700
    ok("plan", "pasted.yaml", "--epsilon", 1, "--time-limit", 0, "--change-cap")
    assert "100000000000000" not in done.out
    assert ok(*NUMBER).out == done.out.replace("after it: ", "now: ")


def test_rows_left_out_are_shown_for_each_max_rows_and_the_best_is_named(here):
    """A quarter of persons has 1 row each, a half 2, a quarter 14 or 15: noise of 5 persons."""
    of = [1, 2, 2, 14, 1, 2, 2, 15]
    write_data([(i, k) for i in range(20_000) for k in range(of[i % 8])])
    done = json.loads(ok(*PER_PERSON, "--cells", 10, "--json").out)
    table = {row["max_rows"]: row for row in done["max_rows"]}
    assert list(table)[:9] == [1, 2, 3, 4, 5, 7, 10, 15, 20]
    for most, row in table.items():
        left = sum(max(n - most, 0) for n in of) / sum(of)
        assert row["left_out_low"] - 0.03 < left < row["left_out_high"] + 0.03
        assert row["left_out_high"] - row["left_out_low"] < 0.2
        error = ((left * 97_500 / 10) ** 2 + row["noise_std"] ** 2) ** 0.5
        # six deviations: of the rows left out they are some 500, of 10 cells
        assert row["error_low"] * 0.9 - 150 < error < row["error_high"] * 1.1 + 150
    assert [row["noise_std"] / most for most, row in table.items()] == pytest.approx(
        [table[1]["noise_std"]] * len(table)
    )
    seen = ok(*PER_PERSON, "--out", "100.csv").out
    assert "unit: {person: id, max_rows: 15}" in seen
    assert re.search(r"now: .* fit what is left, or one at epsilon [0-9.]+ \(delta 1e-8\)\n", seen)
    Path("id.csv").rename("old.csv")
    assert "max_rows: 1}" in ok(*PER_PERSON, "--cells", 10**8).out  # noise is all that matters
    assert status()["discoveries"]["spent"] == "0"


def test_where_one_max_rows_loses_least_whatever_noise_hides_it_is_said(here):
    write_data([(i, 0) for i in range(20_000) for _ in range(1 + i % 4)])
    said = ok(*PER_PERSON, "--cells", 500).out
    answer, _, table = said.partition("loses least:\n  unit: {person: id, max_rows: 4}\n")
    assert table.startswith("rows of persons, by id\nmax_rows ")
    assert "max_rows  rows" not in answer


def test_bins_that_may_lose_most_numbers_are_not_offered(here):
    """60 persons are seen, and at noise of 4 in 280 classes 140 more may be elsewhere."""
    write_data([(i, 44) for i in range(60)])
    done = ok(*NUMBER)
    assert "too little stands out of the noise for a spec" in done.out
    assert "bins: [" not in done.out


def test_a_statement_says_that_limits_were_found_though_no_threshold_was_paid(here):
    write_data([(i, 3 + i % 5) for i in range(4000)])
    line = ok(*NUMBER).out.rstrip("\n").rpartition("\n")[2]
    Path("workload.yaml").write_text(
        SPEC.replace("  job: {values_file: job.csv, other: show}", line)
    )
    ok("plan", "workload.yaml", "--epsilon", 1, "--time-limit", 0)
    ok("release", "data.csv", "--epsilon", 1)
    statement = " ".join(Path("release/statement.md").read_text().split())
    assert "public and, but for what discoveries found (named above), was never" in statement


@pytest.mark.parametrize("command", [NUMBER, PER_PERSON])
def test_where_nothing_stands_out_the_price_is_said(here, command):
    write_data([(i, f"1{i}") for i in range(5)])
    done = ok(*command)
    assert "nothing stands out of the noise" in done.out
    assert len(written(f"{command[3]}.csv")) == 0
    # that file is in nobody's way, and one with anything in it is kept
    ok(*command[:5], 0.5, *command[6:])
    Path(f"{command[3]}.csv").write_text("code,label\nhome,mine\n")
    assert run(*command[:5], 0.3, *command[6:]).code == 5


BUDGET = "{epsilon: 4, delta: 1e-6, discover: 1e-8}"
OTHERS = {
    "a pure budget": (NUMBER, (BUDGET, "{epsilon: 4}"), 3, "takes an epsilon and a delta"),
    "rows of rows": (PER_PERSON, ("{person: id, max_rows: 3}", "row"), 2, "unit: {person: id, max"),
    "rows of others": (PER_PERSON, ("person: id", "person: job"), 2, "which are persons by 'job'"),
    "several values": ((*PER_PERSON, "--max-values", 2), ("", ""), 2, "leave --max-values out"),
    "the ids as numbers": ((*NUMBER[:3], "id", *NUMBER[4:]), ("", ""), 2, "tells persons apart"),
    "cells of a column": ((*NUMBER, "--cells", 9), ("", ""), 2, "that --rows-per-person is for"),
    "two columns": ((*NUMBER, "--column", "job"), ("", ""), 2, "a discovery is of one column"),
    "no column": ((*NUMBER[:2], *NUMBER[4:]), ("", ""), 2, "or --rows-per-person for"),
    "no such column": ((*NUMBER[:3], "x", *NUMBER[4:]), ("", ""), 6, "give --number the name"),
    "no name": ((*PER_PERSON[:3], *PER_PERSON[4:]), ("", ""), 2, "Missing option '--epsilon'"),
    "fewer than are seen": (NUMBER, ("{id: town}", "{id: town, rows: 15}"), 2, "declares 15 rows"),
    "an epsilon beyond": ((*NUMBER[:5], 9, *NUMBER[6:]), ("", ""), 3, "this discovery needs"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_discoveries_are_refused_before_the_charge(here, name):
    command, change, code, message = OTHERS[name]
    Path("workload.yaml").write_text(SPEC.replace(*change, 1))
    done = run(*command)
    assert (done.code, done.out) == (code, "")
    assert message in " ".join(done.err.split())
    if Path("state").exists():
        assert "reserve" not in ok("ledger", "history").out


REFUSED = {
    "a pure budget": (BUDGET, "{epsilon: 4}", (), 3, "has no delta for discoveries"),
    "nothing set apart": (", discover: 1e-8", "", (), 3, "`budget: {epsilon: 4, delta: 1e-6, "),
    "as much as is asked for": (
        *(", discover: 1e-8", "", ("--delta", "5e-7"), 3),
        "`budget: {epsilon: 4, delta: 5e-6, discover: 5e-7}`",
    ),
    "a budget in rho": (BUDGET, "{rho: 1}", (), 3, "or list the values, which costs nothing"),
    "a delta above what is set apart": ("", "", ("--delta", "4e-8"), 3, "needs delta 2e-8, half"),
    "an epsilon beyond the budget": ("", "", ("--epsilon", 9), 3, "4.84 --delta 1e-8 --column job"),
    "a delta of 0": ("", "", ("--delta", 0), 2, "a discovery needs a delta above 0"),
    "another person": ("", "", ("--person", "ID"), 2, "the unit of workload.yaml is a person by"),
    "persons where rows are": ("{person: id, max_rows: 3}", "row", ("--person", "id"), 2, "is row"),
    "several values of a row": (
        *("{person: id, max_rows: 3}", "row", ("--max-values", 2), 2),
        "a row has one value",
    ),
    "no values of a person": ("", "", ("--max-values", 0), 2, "it must be at least 1"),
    "the column of ids": ("", "", ("--column", "id", "--out", "x.csv"), 2, "tells persons apart"),
    "a column that is not there": (
        *("", "", ("--column", "jab", "--out", "x.csv"), 6),
        "lacks the column jab; give --column the name that stands in the header for jab",
    ),
    "a name that no file has": ("", "", ("--column", "a/b"), 2, "name one with --out"),
    "a file in the way": ("", "", ("--out", "workload.yaml"), 5, "is there already, and is kept"),
    "Spark": ("", "", ("spark:table=t",), 6, "on Spark"),
    "a mistake in the spec": ("unit: {person", "unit: {persn", (), 2, "did you mean 'person'?"),
    "no spec": ("", "", ("--spec", "none.yaml"), 2, "none.yaml cannot be read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_before_the_charge(here, name):
    old, new, options, code, message = REFUSED[name]
    Path("workload.yaml").write_text(SPEC.replace(old, new, 1))
    command = list(COMMAND)
    for option, value in zip(options[::2], options[1::2], strict=False):
        if option in command:
            command[command.index(option) + 1] = value
        else:
            command += [option, value]
    if len(options) == 1:
        command[1] = options[0]
    before = {name: text for name, text in contents(".").items() if not name.startswith("state")}
    done = run(*command)
    assert (done.code, done.out) == (code, "")
    assert message in " ".join(done.err.split())
    after = {name: text for name, text in contents(".").items() if not name.startswith("state")}
    assert after == before
    if Path("state").exists():
        assert "reserve" not in ok("ledger", "history").out


STEPS = (
    Step("discover data.csv --column job --epsilon 1 --delta 1e-8"),
    Step("discover data.csv --column job --epsilon 1 --delta 1e-8 --json"),
    Step(
        "discover data.csv --column job --epsilon 0.5 --delta 1e-9 --out two.csv --max-values 2",
        crash="dpquery.measurement.curator.count_values",
        code=70,
    ),
    Step("discover data.csv --column job --epsilon 0.5 --delta 1e-9 --out two.csv --max-values 2"),
    Step("discover data.csv --column job --epsilon 0.5 --delta 1e-7 --out three.csv", code=3),
    Step("discover data.csv --number job --epsilon 0.5 --delta 1e-9 --out four.csv"),
    Step(
        "discover data.csv --number job --epsilon 0.4 --delta 1e-9 --out five.csv --json",
        crash="dpquery.measurement.curator.count_values",
        code=70,
    ),
    Step("discover data.csv --number job --epsilon 0.4 --delta 1e-9 --out five.csv --json"),
    Step("discover data.csv --rows-per-person name --epsilon 0.5 --delta 1e-9 --out six.csv"),
    Step("ledger status --json"),
    Step("ledger export"),
)


@pytest.mark.nightly(daily="some")
@pytest.mark.parametrize("of", ["some", "all"])
@pytest.mark.parametrize("unit", ["row", "{person: name, max_rows: 3}"])
def test_whatever_the_data_a_discovery_shows_nothing_but_noisy_pairs(
    tmp_path, monkeypatch, unit, of
):
    """With the pairs fixed, wildly different files leave the same bytes everywhere."""
    folder = tmp_path / "town"
    for place in FIXED:
        monkeypatch.setattr(place, FIXED[place])
    monkeypatch.setattr(discovery, "noisy_pairs", lambda *_: [("baker", 512), ("smith", 430)])
    monkeypatch.setattr(
        discovery, "noisy_counts", lambda counts, _: 900 * (np.arange(counts.size) % 89 == 0)
    )
    monkeypatch.setenv("DPQUERY_LEDGER", str(folder / "state" / "ledger.db"))
    spec = SPEC.replace("{person: id, max_rows: 3}", unit).replace("job", "region")
    steps = tuple(Step(s.command.replace("job", "region"), s.code, s.crash) for s in STEPS)
    if unit == "row":
        persons = ("--max-values", "--rows-per-person")
        steps = tuple(s for s in steps if not any(word in s.command for word in persons))
    empty = tmp_path / "empty"
    empty.mkdir()
    first = None
    for name, content in (FILES if of == "all" else dict(islice(SMALL.items(), 3))).items():
        renew(folder, empty)
        (folder / "workload.yaml").write_text(spec)
        monkeypatch.chdir(folder)
        seen = observe(folder, content, steps)
        assert [done.code for done in seen.done] == [step.code for step in steps], name
        assert seen.holding_the_canary() == []
        first = first or seen
        assert seen.difference(first) == [], name
