"""What `dpquery check` finds: true counts, the reasons, and YAML that mends the spec."""

import gzip
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from damage import NO_HEADERS
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from specs import FUZZ, HEADER, LINE, attributes, single, spec_of

from dpquery.data_check import check as module
from dpquery.data_check.findings import PersonTally, TextCounts
from dpquery.data_check.records import FileRecords
from dpquery.exceptions import DataError
from dpquery.measurement.counting.locations import sources_of
from dpquery.measurement.counting.tabulate import tabulate
from dpquery.spec.columns import Categorical
from dpquery.spec.parsing.read import load_spec

HEAD = """\
dataset: {id: town, version: 1}
privacy: {unit: row, neighbours: add-remove}
budget: {epsilon: 4}
other: drop
"""
DROP = "other: drop\n"
WORKLOAD = "workload:\n  - {name: all, product: {}}\n"
SURVEY = (
    HEAD + "domain:\n  sex: {values: [F, M]}\n  happy: {values: {1: very, 2: not}}\n" + WORKLOAD
)
PANEL = HEAD.replace("unit: row", "unit: {person: nr, max_rows: 3}") + (
    "domain:\n  year: {range: [1980, 1987]}\n  union: boolean\n" + WORKLOAD
)
CENSUS = HEAD + "domain:\n  area: {range: [1, 9]}\n  cars: {range: [0, 2]}\n" + WORKLOAD
SURVEY_ROWS = "1,F,1\n2,M,\n3,F,NA\n4,F,2\n5,M,iap\n6,,1\n7,F,\n8,M,2\n"
PANEL_ROWS = "".join(f"{nr},{year},0\n" for year in range(1980, 1988) for nr in range(1, 6))


def checked(folder, spec, content):
    """What a check finds in a file held against a spec."""
    (folder / "w.yaml").write_text(spec)
    (folder / "d.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return module.check(folder / "d.csv", folder / "w.yaml")


def mended(folder, spec, result):
    """The spec with the lines pasted in that the check gave."""
    for line in result.remedies:
        if line.startswith("file: "):
            spec = line + "\n" + re.sub(r"^file: .*\n", "", spec)
        elif attribute := re.match(r"  \w+: ", line):
            spec = re.sub(rf"^{attribute[0]}.*$", lambda _, line=line: line, spec, flags=re.M)
    (folder / "mended.yaml").write_text(spec)
    return load_spec(folder / "mended.yaml")


def test_a_survey_says_how_many_are_left_out_and_for_which_column(tmp_path):
    result = checked(tmp_path, SURVEY, f"id,sex,happy\n{SURVEY_ROWS}")
    records = result.records
    assert (records.total, records.kept, records.left_out) == (8, 3, 5)
    sex, happy = records.columns
    assert (sex.records, sex.alone, sex.commonest) == (1, 1, (("", 1),))
    assert (happy.records, happy.alone) == (4, 4)
    assert happy.commonest == (("", 2), ("NA", 1), ("iap", 1))
    assert result.header.undeclared == ("id",)
    assert not result.as_declared


def test_a_survey_that_drops_nobody_says_how_many_count_in_totals_alone(tmp_path):
    result = checked(tmp_path, SURVEY.replace(DROP, ""), f"id,sex,happy\n{SURVEY_ROWS}x\n")
    records = result.records
    assert (records.total, records.kept, records.undeclared) == (9, 9, 5)
    assert [column.records for column in records.columns] == [1, 4]
    assert [column.alone for column in records.columns] == [0, 0]
    assert not records.malformed.dropped
    assert not result.as_declared  # a line that is no record is said by nobody
    result = checked(tmp_path, SURVEY.replace(DROP, ""), "sex,happy\nF,1\nM,2\n,\n")
    assert (result.as_declared, result.records.left_out) == (True, 0)
    assert checked(tmp_path, SURVEY, "sex,happy\nF,1\nM,2\n").remedies == ()


def test_a_panel_sorted_by_year_says_what_max_rows_leaves_out(tmp_path):
    result = checked(tmp_path, PANEL, f"nr,year,union\n{PANEL_ROWS}")
    records = result.records
    assert records.persons.persons == ((8, 5),)
    assert (records.total, records.kept) == (40, 15)
    assert [records.persons.beyond(limit) for limit in (1, 3, 8)] == [35, 25, 0]
    assert result.as_declared  # the spec says that three rows of each person count


def test_a_semicolon_file_declared_as_comma_says_which_delimiter_it_has(tmp_path):
    result = checked(tmp_path, SURVEY, f"id,sex,happy\n{SURVEY_ROWS}".replace(",", ";"))
    assert result.records is None
    assert result.header.missing == ("sex", "happy")
    assert "semicolons separate them" in result.header.refusals[0]
    assert result.layout.delimiter == ";"
    assert result.remedies[0] == 'file: {delimiter: ";"}'
    assert not result.as_declared


def test_a_census_sample_widens_the_range_and_says_nothing_of_the_rest(tmp_path):
    rows = "".join(f"{area},{area % 4}\n" for area in range(1, 13))
    result = checked(tmp_path, CENSUS, f"area,cars\n{rows}")
    area, cars = result.records.columns
    assert (area.records, cars.records) == (3, 3)
    assert (result.records.left_out, area.alone, cars.alone) == (5, 2, 2)
    assert "  area: {range: [1, 12], other: drop}" in result.remedies
    assert "  cars: {range: [0, 3], other: drop}" in result.remedies


@pytest.mark.parametrize(
    ("spec", "content"),
    [
        (SURVEY, f"id,sex,happy\n{SURVEY_ROWS}"),
        (CENSUS, "area,cars\n1,0\n12,1\n5,99\n5,3\n5,-9\n5,x\n"),
        (SURVEY, "sex,happy\nf,1\nF,2\nM,3\nm,a: b\nM,'x\nM,{}\nM,#1\nM,\u00e9\nM,null\n"),
        (SURVEY.replace("[F, M]", "{F: female, M: male}"), "sex,happy\nfemale,1\n,2\nM,1\n"),
        (SURVEY, "sex,happy\nF,3\nF,3.0\nF,03\nF,NA\nF,\nM,Very\nM, v e r y\n"),
        (
            HEAD + "domain:\n  day: {date: {from: 2013, to: 2013, by: month}}\n" + WORKLOAD,
            "day\n2013-05-01\n2014-03-02\n2012-12-31\nNA\n",
        ),
        (
            HEAD + "domain:\n  day: {date: {from: 2013, to: 2013, by: month}}\n" + WORKLOAD,
            "day\n31.05.2013\n01.03.2013\n",
        ),
        (
            HEAD + "domain:\n  pay: {column: eur, bins: [0, 10, 20]}\n  y: boolean\n"
            "  r: {merge: {a: boolean, b: {values: [u]}}}\n" + WORKLOAD,
            "eur,y,a,b\n5,ja,1,u\n20,nein,0,v\n35.5,?,,u\nNA,1,1,u\n",
        ),
    ],
)
def test_a_spec_with_the_lines_pasted_in_leaves_nobody_out(tmp_path, spec, content):
    result = checked(tmp_path, spec, content)
    assert not result.as_declared
    spec_of_all = mended(tmp_path, spec, result)
    again = module.check(tmp_path / "d.csv", tmp_path / "mended.yaml")
    assert again.as_declared
    assert again.records.left_out == 0
    total = tabulate(tmp_path / "d.csv", spec=spec_of_all, subsets=[()])[()]
    assert total == again.records.total


def test_several_texts_for_no_answer_are_one_value_and_spellings_are_those_of_a_value(tmp_path):
    result = checked(tmp_path, SURVEY, "sex,happy\nf,Very\nM,NA\n,iap\nM,\n")
    assert result.remedies[-1] == (
        '  happy: {values: {very: [1, Very], 2: not, no answer: [NA, iap, ""]}, other: drop}'
    )
    assert '  sex: {values: {F: [F, f], M: M, "": no answer}, other: drop}' in result.remedies


@pytest.mark.parametrize(
    "content",
    [
        f"id;sex;happy\n{SURVEY_ROWS}".replace(",", ";").encode(),
        f"id\tsex\thappy\n{SURVEY_ROWS}".replace(",", "\t").encode(),
        f"id|sex|happy\n{SURVEY_ROWS}".replace(",", "|").encode(),
        f"id,sex,happy\n{SURVEY_ROWS}".encode("utf-16"),
        f"id,sex,happy\n{SURVEY_ROWS}".encode("utf-16-be"),
        f"id;sex;happy\n{SURVEY_ROWS}9;F;Zoë".replace(",", ";").encode("cp1252"),
        f"'i,d','sex',happy\n{SURVEY_ROWS}".encode(),
        b'id,sex,happy\n"a\nb",F,1\n"c\n",M,2\n',
    ],
)
def test_a_layout_that_is_pasted_in_is_read(tmp_path, content):
    result = checked(tmp_path, SURVEY, content)
    assert not result.as_declared
    assert result.remedies[0].startswith("file: {")
    mended(tmp_path, SURVEY, result)
    again = module.check(tmp_path / "d.csv", tmp_path / "mended.yaml")
    assert again.header.refusals == again.failures == ()
    mended(tmp_path, (tmp_path / "mended.yaml").read_text(), again)
    assert module.check(tmp_path / "d.csv", tmp_path / "mended.yaml").records.left_out == 0


def test_several_files_and_tables_are_one(tmp_path):
    first = checked(tmp_path, SURVEY, "sex,happy\nF,1\nX,1\n").records
    with gzip.open(tmp_path / "e.csv.gz", "wt") as file:
        file.write("happy,sex\n1,F\n2\n3,M\n")
    table = pa.table({"sex": ["F", None, "M"], "happy": [1, 2, 7]})
    parquet.write_table(table, tmp_path / "f.parquet")
    with closing(sqlite3.connect(tmp_path / "g.db")) as database:
        database.execute("CREATE TABLE t (sex TEXT, happy INTEGER)")
        database.execute("INSERT INTO t VALUES ('F', 1), ('M', 9)")
        database.commit()
    places = [tmp_path / "d.csv", tmp_path / "e.csv.gz", tmp_path / "f.parquet"]
    result = module.check([*places, Path(f"sqlite:{tmp_path}/g.db?table=t")], tmp_path / "w.yaml")
    records = result.records
    assert (first.total, records.total) == (2, 10)
    assert [column.records for column in records.columns] == [2, 3]
    assert records.malformed.reasons == (("has 1 field, the header 2", 1, "line 3 of e.csv.gz"),)
    assert records.kept == 10 - 5 - 1


def test_a_file_of_several_that_lacks_a_column_is_named(tmp_path):
    checked(tmp_path, SURVEY, "sex,happy\nF,1\n")
    (tmp_path / "e.csv").write_text("sex\nF\n")
    result = module.check([tmp_path / "d.csv", tmp_path / "e.csv"], tmp_path / "w.yaml")
    (refusal,) = result.header.refusals
    assert "e.csv" in refusal
    assert result.header.missing == ("happy",)
    assert [values.column.name for values in result.records.columns] == ["sex"]
    assert result.records.total == 2


def test_a_file_that_breaks_in_its_midst_is_said_to_break(tmp_path):
    spec = SURVEY.replace("domain:", "file: {newlines_in_quotes: true}\ndomain:", 1)
    result = checked(tmp_path, spec, 'sex,happy\nF,1\nM,"2\n')
    assert "does not pair its quotes" in result.failures[0]
    assert not result.as_declared


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (gzip.compress(b"sex,happy\nF,1\n", mtime=0), "suffix .gz"),
        (b"PAR1\0\0", "suffix .parquet"),
        (b"PK\x03\x04\0", "zip archive"),
        (b"SQLite format 3\0", "'sqlite:FILE?table=NAME'"),
    ],
)
def test_a_file_of_another_kind_says_how_to_name_it(tmp_path, content, word):
    result = checked(tmp_path, SURVEY, content)
    assert any(word in remark for remark in result.layout.remarks)
    assert result.records is None


# What it says is what a release does.


def records_of(path, spec):
    file = FileRecords(sources_of(path, spec.file), spec)
    return module._records(file, spec)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "d.csv"


@FUZZ
@given(
    st.lists(LINE, max_size=30),
    st.sampled_from(["count", "show", "drop"]),
    st.sampled_from([None, "extra"]),
)
def test_whatever_the_lines_as_many_are_kept_as_a_release_counts(place, lines, other, person):
    spec = spec_of(*attributes(other=other), person=person, max_rows=2)
    place.write_bytes(HEADER + b"\n" + b"\n".join(lines))
    records = records_of(place, spec)
    assert records.kept == tabulate(place, spec=spec, subsets=[()])[()]
    undeclared = [column.records for column in records.columns]
    whole = tabulate(place, spec=spec_of(*attributes(other="show")), subsets=[(0,), (1,), (2,)])
    malformed = records.malformed.records
    assert undeclared[:3] == [int(whole[(i,)][-1]) - malformed for i in range(3)]
    assert all(column.alone <= column.records for column in records.columns)


def test_too_many_texts_are_forgotten_but_not_the_common_ones():
    counts = TextCounts(most=100)
    for number in range(10_000):
        counts.add(b"%d" % number, 1)
        if number > 9_000:
            counts.add(b"NA", 1)
    assert not counts.complete
    assert len(counts.commonest()) <= 100
    text, records = counts.commonest()[0]
    assert text == "NA"
    assert 900 <= records <= 1_000


def test_a_long_text_is_cut():
    counts = TextCounts()
    counts.add(b"x" * 2**20, 1)
    assert counts.commonest() == (("x" * 64, 1),)


def test_of_too_many_persons_a_part_is_followed_with_all_their_rows():
    tally = PersonTally(most=1000)
    ids = [b"%d" % person for person in range(20_000)]
    for _ in range(3):
        tally.add(
            [(pa.array(ids, pa.binary()), np.arange(20_000, dtype=np.int32))],
            np.ones(20_000, np.bool_),
        )
    result = tally.result()
    assert result.share in {1 / 32, 1 / 64}
    ((rows, persons),) = result.persons
    assert rows == 3
    assert 0.7 * 20_000 < persons < 1.3 * 20_000


def test_malformed_lines_are_counted_named_and_placed(tmp_path):
    content = 'sex,happy\nF,1\nF\nF,1,2\n"F,1\nM,2\nF\n'
    malformed = checked(tmp_path, SURVEY, content).records.malformed
    assert (malformed.records, malformed.dropped) == (4, True)
    assert malformed.reasons == (
        ("has 1 field, the header 2", 2, "line 3 of d.csv"),
        ("has 3 fields, the header 2", 1, "line 4 of d.csv"),
        ("quotes that do not pair up within the line", 1, "line 5 of d.csv"),
    )


def test_ids_that_are_blank_are_nobodys(tmp_path):
    result = checked(tmp_path, PANEL, "nr,year,union\n ,1980,1\n,1999,1\n7,1980,0\n")
    persons = result.records.persons
    assert (persons.blank, persons.blank_alone, persons.persons) == (2, 1, ((1, 1),))
    assert not result.as_declared


def test_a_header_that_repeats_or_lacks_a_column_is_named_and_the_rest_is_read(tmp_path):
    result = checked(tmp_path, SURVEY, "sex,sex,happy\nF,F,9\nM,M,1\n")
    assert result.header.repeated == ("sex",)
    assert [values.column.name for values in result.records.columns] == ["happy"]
    assert result.records.columns[0].records == 1
    assert not result.as_declared


def test_a_declared_value_that_no_record_holds_is_named(tmp_path):
    result = checked(tmp_path, SURVEY, "sex,happy\nf,1\nM,2\n")
    assert result.records.columns[0].absent == ("F",)
    coded = SURVEY.replace("values: [F, M]", "values: {F: women, M: men}")
    assert coded != SURVEY
    columns = checked(tmp_path, coded, "sex,happy\nf,1\nM,2\n").records.columns
    assert columns[0].absent == ("F",)  # by its code, which the records have
    years = checked(tmp_path, PANEL, "nr,year,union\n1,1980,1\n").records.columns[0]
    assert (years.column.name, years.unseen, years.absent) == ("year", 7, ())


def test_a_long_list_is_not_written_again_and_what_is_no_number_widens_no_range(tmp_path):
    states = ", ".join(f"s{number}" for number in range(50))
    spec = SURVEY.replace("[F, M]", f"[{states}]").replace(DROP, "")
    result = checked(tmp_path, spec, "sex,happy\ns1,1\nXX,1\n")
    assert "# add to its list: XX" in result.remedies
    assert all(line.startswith("#") for line in result.remedies)
    spec = CENSUS.replace(DROP, "")
    assert all(
        line.startswith("#") for line in checked(tmp_path, spec, "area,cars\nx,1\n").remedies
    )


def test_decimals_in_a_range_are_not_as_declared_and_bins_take_them(tmp_path):
    spec = HEAD.replace(DROP, "") + "domain:\n  wage: {range: [0, 50]}\n" + WORKLOAD
    content = (
        "wage\n" + "".join(f"{cents / 100:.2f}\n" for cents in range(175, 4990, 75)) + "7\nNA\n"
    )
    result = checked(tmp_path, spec, content)
    (wage,) = result.records.columns
    assert wage.decimals(".") == wage.records - 1  # all but NA
    assert not result.as_declared
    assert "# its numbers have decimals, and a range holds whole ones: bins take both" in "\n".join(
        result.remedies
    )
    edges = ", ".join(str(edge) for edge in range(0, 56, 5))
    assert f"  wage: {{bins: [{edges}]}}" in result.remedies
    mended(tmp_path, spec, result)
    again = module.check(tmp_path / "d.csv", tmp_path / "mended.yaml")
    assert again.as_declared
    assert again.records.columns[0].records == 1
    few = "wage\n" + "7\n" * 9 + "8\n60\n7.5\n"
    assert "  wage: {range: [0, 60]}" in checked(tmp_path, spec, few + "60\n60\n").remedies


def test_what_a_hierarchy_lacks_goes_into_its_file(tmp_path):
    (tmp_path / "areas.csv").write_text("county,state\na,N\nb,S\n")
    domain = "domain:\n  area: {column: county, hierarchy: areas.csv, levels: [state, county]}\n"
    items = "workload:\n  - {name: all, product: {area: [total, state, county]}}\n"
    result = checked(tmp_path, HEAD + domain + items, "county\na\nb\nNew York\nc: d\n\n")
    (remedy,) = (line for line in result.remedies if "hierarchy" in line)
    assert remedy.startswith("#")
    assert remedy.endswith('with what it lies in: New York, "c: d"')
    assert all(line.startswith("#") for line in result.remedies)


@pytest.mark.parametrize("other", ["count", "show"])
def test_what_other_takes_in_is_as_declared(tmp_path, other):
    spec = SURVEY.replace("2: not}", f"2: not}}, other: {other}")
    result = checked(tmp_path, spec, "sex,happy\nF,1\nM,7\n")
    assert result.records.columns[1].records == 1
    assert result.as_declared


@pytest.mark.parametrize("name", sorted(NO_HEADERS))
def test_a_file_without_a_header_is_looked_at_all_the_same(tmp_path, name):
    result = checked(tmp_path, SURVEY, NO_HEADERS[name])
    assert result.header.refusals
    assert not result.as_declared


def test_a_file_that_is_not_there_is_a_data_error(tmp_path):
    (tmp_path / "w.yaml").write_text(SURVEY)
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none.csv", tmp_path / "empty"):
        with pytest.raises(DataError):
            module.check(path, tmp_path / "w.yaml")


def test_a_column_of_texts_alone_is_told(tmp_path):
    (tmp_path / "d.csv").write_bytes(b"x\n" + b"a\n" * 9)
    spec = spec_of(single("x", Categorical(("b",), ("b",))))
    (column,) = records_of(tmp_path / "d.csv", spec).columns
    assert (column.records, column.absent) == (9, ("b",))


def test_a_file_that_seems_otherwise_or_a_column_of_no_declared_value_is_not_as_declared(tmp_path):
    spec = SURVEY.replace(DROP, "")
    good = f"id,sex,happy\n{SURVEY_ROWS}"
    assert checked(tmp_path, spec, good).as_declared
    sex = good.replace(",M,", ",X,").replace(",F,", ",Y,")
    assert not checked(tmp_path, spec, sex).as_declared
    assert not checked(tmp_path, spec, (good + "9,F,schön\n").encode("latin-1")).as_declared
    assert checked(tmp_path, spec, good + "9,F,schön\n").as_declared
