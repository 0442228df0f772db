"""Every kind of source holds to 1-stability: one record more is one more in its own cell."""

from collections.abc import Iterator

import numpy as np

from dpquery.audit.cases.data_sources import (
    SOURCE_SPEC,
    choices,
    records_counted,
    records_table,
    writers,
)
from dpquery.audit.cases.planned_cases import private_folder
from dpquery.audit.findings import Finding
from dpquery.measurement.counting.tabulate import check_header, tabulate
from dpquery.spec.parsing.spec import parse

_RECORDS, _LEFT_OUT = 240, (0, 79, 80, 151, 239)  # at the ends of files, batches and row groups too


def readers() -> Iterator[Finding]:
    """Count made-up records from every kind of source, and again without some of them."""
    spec = parse(SOURCE_SPEC, name="made-up", files={})
    every = tuple(range(len(spec.domain.shape)))
    subsets = [every, (), *((i,) for i in every)]
    chosen = choices(_RECORDS)
    datasets = [chosen, *(np.delete(chosen, k, axis=0) for k in _LEFT_OUT)]
    for kind, write in writers().items():
        wrong = 0
        with private_folder() as folder:
            for records in datasets:
                location = write(records_table(records), folder)
                check_header(location, spec)
                tables = tabulate(location, spec=spec, subsets=subsets)
                expected = records_counted(records, spec.domain.shape)
                for subset, counts in tables.items():
                    summed = tuple(i for i in every if i not in subset)
                    wrong += not np.array_equal(counts, expected.sum(axis=summed))
        yield Finding(
            "neighbours",
            f"{kind}: {_RECORDS} records of numbers, texts, dates, blanks and nulls",
            "one record more is one more in its own cell, and moves no other",
            not wrong,
            f"{len(_LEFT_OUT)} records left out one by one: {wrong} of "
            f"{len(datasets) * len(subsets)} tables are not what the records say",
            neighbours=len(_LEFT_OUT),
        )
