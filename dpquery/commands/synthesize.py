"""synthesize() as a straight line: records from the relaxed rows of a release, free of budget.

    release folder -> spec and classes -> relaxed rows -> records -> CSV file

Nothing here opens data or a ledger: what comes out is a function of what is published already.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv

from dpquery.commands.arguments import FilePath, as_path, checked_count
from dpquery.commands.defaults import DEFAULT_SEED, RELEASE_PATH, SYNTHETIC_PATH
from dpquery.exceptions import PlanConflictError, SpecError
from dpquery.limits import LARGEST_INTEGER, MAX_UNASKED_RECORDS
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import plan_and_spec
from dpquery.releases.folder.answers import read_answerable
from dpquery.releases.folder.relaxed_rows_file import read_relaxed
from dpquery.releases.folder.synthetic_csv import write_synthetic
from dpquery.releases.formatting import count, html_table
from dpquery.releases.manifest.release_json import PLAN_FILE
from dpquery.untrusted.atomic_write import check_place

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SyntheticReport:
    """What was written: how many records, and where."""

    file: Path
    records: int

    def table(self) -> "pd.DataFrame":
        """Return the records as a data frame."""
        import pandas as pd

        return pd.read_csv(self.file)

    def arrow(self) -> pa.Table:
        """Return the records as an Arrow table."""
        return csv.read_csv(self.file)

    def _repr_html_(self) -> str:
        return html_table(f"{self.file}: {count(self.records, 'synthetic record')}", (), ())


def synthesize(
    release: FilePath = RELEASE_PATH,
    *,
    out: FilePath = SYNTHETIC_PATH,
    records: int | None = None,
    seed: int = DEFAULT_SEED,
) -> SyntheticReport:
    """Write synthetic records of a RAP release, in the columns that its spec declares.

    Args:
        release: the folder of the release, which is not changed.
        out: the CSV file; written whole or not at all, and never in the place of another.
        records: how many; default: as many as the release says there are, rounded.
        seed: of the rounding of relaxed rows to records; public.

    Privacy:
        Post-processing: a function of the release and public inputs. Neither the data nor the
        ledger is opened.

    Raises:
        SpecError: the release is not one of RAP, or is damaged.
        PlanConflictError: the file is to lie in the release, or another one is in the way.
    """
    source, file = as_path(release), as_path(out)
    if records is not None:
        checked_count("records", records, least=1)
    checked_count("seed", seed, least=0, most=LARGEST_INTEGER)
    if Path(os.path.realpath(source)) in Path(os.path.realpath(file)).parents:
        raise PlanConflictError(
            f"{file} lies in {source}, a release, which is not changed; name a file elsewhere"
        )
    check_place(file)
    manifest, content = read_answerable(source)
    run = manifest.fitted
    if run is None:
        raise SpecError(
            f"{source} has no relaxed rows to make records of: its answers come from a linear "
            "strategy; plan and release with --mechanism rap or adaptive to have some"
        )
    _, spec = plan_and_spec(content, source / PLAN_FILE)
    compiled = compile_spec(spec)
    rows = read_relaxed(source, compiled, digest=run.rows_sha256)
    number = max(1, round(run.total)) if records is None else records
    if records is None and number > MAX_UNASKED_RECORDS:
        raise SpecError(
            f"the release says that there are {float(number):.3g} records, which would fill a "
            "disk; say how many to write with --rows"
        )
    write_synthetic(
        file,
        spec,
        compiled,
        rows,
        records=number,
        seed=seed,
    )
    return SyntheticReport(file, number)
