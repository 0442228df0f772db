"""The audit's look at every kind of source passes on sound readers, and sees one that is not."""

from importlib import import_module
from importlib.util import find_spec

import pytest

from dpquery.audit.end_to_end import readers


def failed(findings):
    return [finding for finding in findings if not finding.passed]


def test_every_kind_of_source_is_read_record_by_record():
    assert not failed(readers())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("place", "kinds"),
    [
        ("arrow_files.batch_of", {"Parquet", "Arrow"}),
        ("databases.batch_of", {"DuckDB"} if find_spec("duckdb") else set()),
        ("databases._batch_of_rows", {"SQLite"}),
        ("text_files.columns", {"CSV"}),
    ],
)
def test_a_reader_that_loses_a_record_of_a_batch_is_seen(place, kinds, monkeypatch):
    module, _, name = place.rpartition(".")
    module = import_module(f"dpquery.measurement.counting.{module}")
    real = getattr(module, name)

    def loses_the_first(given, *others, **named):
        records = real(given, *others, **named)
        return records._replace(
            columns=[[(values, places[1:]) for values, places in own] for own in records.columns]
        )

    monkeypatch.setattr(module, name, loses_the_first)
    assert {finding.subject.partition(":")[0] for finding in failed(readers())} == kinds
