"""What `dpquery check` offers to declare of dates, and of answers that are missing."""

import pytest
from test_data_check import CENSUS, DROP, HEAD, WORKLOAD, checked, mended

from dpquery.data_check import check as module

DAYS = HEAD + "domain:\n  day: {date: {from: 2013, to: 2014, by: day}}\n" + WORKLOAD
YEARS = HEAD + "domain:\n  day: {date: {from: 1980, to: 1987, by: year}}\n" + WORKLOAD


@pytest.mark.parametrize(
    ("spec", "content", "line", "comment"),
    [
        (
            DAYS,  # one text of another form moves no column to it
            "2013-05-01\n2013-05-02\n2013-05-02\n01.05.2013\n",
            "  day: {date: {from: 2013-01-01, to: 2014-12-31, by: day}, other: count}",
            "# written as 2013-01-31: 3 records, as 31.01.2013: 1; a column has one format",
        ),
        (
            DAYS,  # records count, not texts
            "2013-05-01\n2013-05-01\n2013-05-01\n01.05.2013\n02.05.2013\n",
            "  day: {date: {from: 2013-01-01, to: 2014-12-31, by: day}, other: count}",
            "# written as 2013-01-31: 3 records, as 31.01.2013: 2; a column has one format",
        ),
        (
            DAYS,
            "2013-05-01\n01.05.2013\n02.05.2013\nNA\n",
            '  day: {date: {from: 2013-01-01, to: 2014-12-31, by: day, format: "%d.%m.%Y"}, '
            "other: count}",
            "# written as 31.01.2013: 2 records, as 2013-01-31: 1; a column has one format",
        ),
        (
            YEARS,
            "1980\n1981\n1989\n",
            '  day: {date: {from: 1980-01-01, to: 1989-12-31, by: year, format: "%Y"}, '
            "other: drop}",
            "",
        ),
        (
            YEARS.replace("by: year}}", "by: year}, other: show}"),  # nothing is left to show
            "1980\n1989\n",
            '  day: {date: {from: 1980-01-01, to: 1989-12-31, by: year, format: "%Y"}, '
            "other: count}",
            "",
        ),
        (
            DAYS.replace("from: 2013", "from: 2013-02-03"),  # days are not told by years
            "2013\n2014\n9999\n",
            '  day: {date: {from: 2013-01-01, to: 2014-12-31, by: year, format: "%Y"}, '
            "other: count}",
            "",
        ),
        (
            DAYS.replace("by: day", "by: week"),
            "2013-05\n2014-02\n",
            '  day: {date: {from: 2013-01-01, to: 2014-12-31, by: month, format: "%Y-%m"}, '
            "other: drop}",
            "",
        ),
    ],
)
def test_dates_are_offered_the_format_that_most_records_fit(tmp_path, spec, content, line, comment):
    result = checked(tmp_path, spec, f"day\n{content}")
    assert result.remedies[-1] == line
    said = [one.strip() for one in result.remedies if "# written" in one]
    assert said == [comment] * bool(comment)
    mended(tmp_path, spec, result)
    again = module.check(tmp_path / "d.csv", tmp_path / "mended.yaml")
    fewer = again.records.columns[0].records, result.records.columns[0].records
    assert fewer[0] < fewer[1] or comment


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ('1\nNA\n""\n', "# all of them seem to be missing answers: nothing need be declared"),
        ("1\nNA\nwho\n", "# no line to paste suggests itself: see to its declaration by hand"),
    ],
)
def test_missing_answers_in_a_column_of_numbers_are_nothing_to_declare(tmp_path, texts, said):
    spec = CENSUS.replace(DROP, "").replace("  cars: {range: [0, 2]}\n", "")
    result = checked(tmp_path, spec, f"area\n{texts}")
    assert [line.strip() for line in result.remedies][-1] == said
