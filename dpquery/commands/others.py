"""compare(), synthesize() and package(), each as a straight line.

compare() plans a spec first, with a ledger that is made for it and thrown away: nothing is put on
record, and no plan is written. The two others open no data and no ledger:

    release folder -> spec and classes -> relaxed rows -> records -> CSV file
    release folder -> manifest, spec and tables -> the same files, with what describes them
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv

from dpquery.commands.arguments import (
    Amount,
    FilePath,
    as_path,
    checked_count,
    exact_delta,
    exact_epsilon,
)
from dpquery.commands.defaults import (
    DEFAULT_SEED,
    FUNCTION_JOBS,
    MOST_REPLICATES,
    PACKAGE_PATH,
    RELEASE_PATH,
    REPLICATES,
    SYNTHETIC_PATH,
    TIME_LIMIT,
)
from dpquery.commands.opened import Release
from dpquery.commands.plan import plan
from dpquery.commands.replicates import drawn_tables
from dpquery.exceptions import PlanConflictError, SpecError
from dpquery.limits import LARGEST_INTEGER, MAX_UNASKED_RECORDS
from dpquery.measurement.ledger.caps import declared_funds
from dpquery.operators.compile import compile_spec
from dpquery.plan_file.plan import PLAN_MARK, Plan, plan_and_spec, read_plan_file
from dpquery.planning.figures import BudgetShares, SelectionAtBudget, allowed_prices
from dpquery.releases.folder.answers import read_answerable
from dpquery.releases.folder.noisy_files import read_relaxed
from dpquery.releases.folder.synthetic import write_synthetic
from dpquery.releases.manifest import PLAN_FILE, read_manifest
from dpquery.releases.package.write import PackageContent, left_out, parse_formats, write_package
from dpquery.releases.words import count, html_table
from dpquery.spec.columns import Bins
from dpquery.spec.problems import not_read
from dpquery.spec.spec import About, Spec
from dpquery.untrusted.files import check_place

if TYPE_CHECKING:
    import pandas as pd


HEAD = 200
"""Bytes in which the mark of a plan stands."""


@dataclass(frozen=True, eq=False)
class PlanAtEpsilon:
    """A plan with its better kind of noise at a guarantee."""

    name: str  # the file that was named
    spec: Spec  # what was planned
    plan: Plan  # the plan
    delta: Fraction  # of the guarantee
    best: SelectionAtBudget  # the better selection there

    def errors(self) -> dict[str, tuple[int, float, float]]:
        """Return by item its queries, their RMSE and their largest standard error in counts."""
        items = self.best.items
        return {item.name: (item.queries, item.rmse, item.max_std_error) for item in items}


@dataclass(frozen=True, eq=False, repr=False)
class PlanComparison:
    """Two plans at one epsilon."""

    epsilon: Fraction
    first: PlanAtEpsilon
    second: PlanAtEpsilon

    @property
    def errors(self) -> "pd.DataFrame":
        """Expected errors in counts, a row an item of either plan; missing where it has none.

        `ratio` is the second plan's RMSE over the first one's.
        """
        import pandas as pd

        names = ["queries", "rmse", "max_std_error"]
        first, second = (
            pd.DataFrame.from_dict(
                one.errors(), orient="index", columns=[f"{name}_{place}" for name in names]
            )
            for place, one in (("first", self.first), ("second", self.second))
        )
        items = dict.fromkeys([*first.index, *second.index])
        frame = first.join(second, how="outer").reindex(list(items))
        for place in ("first", "second"):
            frame[f"queries_{place}"] = frame[f"queries_{place}"].astype("Int64")
        frame["ratio"] = frame["rmse_second"] / frame["rmse_first"]
        return frame.rename_axis("item").reset_index()

    def __repr__(self) -> str:
        """Return what was compared, in one line."""
        return f"<PlanComparison: {self.first.name} and {self.second.name}>"


def compare(
    first: FilePath,
    second: FilePath,
    *,
    epsilon: Amount | None = None,
    delta: Amount | None = None,
    time_limit: float = TIME_LIMIT,
    jobs: int = FUNCTION_JOBS,
) -> PlanComparison:
    """Return the expected errors of two plans at one epsilon; specs are planned for it.

    Args:
        first: a plan, the folder of a release, or a spec.
        second: another one.
        epsilon: of both releases; default: 1.
        delta: of both; default: what the spec of each says.
        time_limit: CPU seconds for each kind of noise of a spec that is planned.
        jobs: processes to use where a spec is planned.

    Raises:
        DpqueryError: of the class that says what was wrong; nothing is ever written.
    """
    at = Fraction(1) if epsilon is None else exact_epsilon(epsilon)
    named_delta = None if delta is None else exact_delta(delta)
    compared = []
    for path in map(as_path, (first, second)):
        planned, spec = _plan_of(path, time_limit, jobs)
        at_delta = spec.privacy.delta if named_delta is None else named_delta
        workload = compile_spec(spec).workload
        shares = BudgetShares(spec, workload, at_delta, declared_funds(spec))
        best = allowed_prices(planned, shares, None, epsilon=at)[0]
        compared.append(PlanAtEpsilon(str(path), spec, planned, at_delta, best))
    return PlanComparison(at, *compared)


def _plan_of(path: Path, time_limit: float, jobs: int) -> tuple[Plan, Spec]:
    """Return the plan in a file or a release's folder, or that of a spec, and the spec."""
    path = path / PLAN_FILE if os.path.isdir(path) else path
    try:
        content = read_plan_file(path)
    except OSError as error:
        raise not_read(path, error, "name a plan or a spec") from None
    if PLAN_MARK in content[:HEAD]:
        return plan_and_spec(content, path)
    with tempfile.TemporaryDirectory() as folder:
        report = plan(
            path,
            ledger_path=Path(folder) / "ledger.db",
            dry_run=True,
            time_limit=time_limit,
            jobs=jobs,
            mechanism="linear",
        )
    return report.plan, report.spec


@dataclass(frozen=True)
class SyntheticReport:
    """What was written: how many records, and where."""

    file: Path
    records: int
    binned: bool = False  # whether numbers in bins stand for these by their middles

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
    write_synthetic(file, spec, compiled, rows, records=number, seed=seed)
    binned = any(isinstance(c.kind, Bins) for a in spec.domain.attributes for c in a.columns)
    return SyntheticReport(file, number, binned)


@dataclass(frozen=True)
class PackageReport:
    """What was packed."""

    directory: Path  # where the package lies
    files: tuple[str, ...]  # names of its files, sorted
    # tables that are missing from the workbook, since no sheet has room for them
    left_out: tuple[str, ...]
    about: bool  # whether the spec says something of the publication


def package(
    directory: FilePath = RELEASE_PATH,
    *,
    out: FilePath = PACKAGE_PATH,
    also: Sequence[str] = (),
    replace: bool = False,
) -> PackageReport:
    """Write a release with its code book, its metadata and its tables in other formats.

    Args:
        directory: the folder of a release, or of answers to later questions, which is not changed.
        out: where the package goes; written whole or not at all.
        also: "csv" and "xlsx", the tables in these formats beside Parquet, and "replicates" or
            "replicates:400", draws of the noise of every answer; several with commas.
        replace: whether the package of another release in `out` is replaced.

    Privacy:
        Post-processing: a function of the folder, all of which is public; free.

    Raises:
        SpecError: the folder is not a release, or is damaged.
        PlanConflictError: something else is in the way.
    """
    source, target, formats = as_path(directory), as_path(out), parse_formats(also)
    draws = formats.get("replicates") or REPLICATES
    checked_count("replicates", draws, least=2, most=MOST_REPLICATES)
    manifest = read_manifest(source)
    about, domain = About(), None
    if manifest.answered is None and manifest.measurements:  # answers have no plan
        _, planned = read_answerable(source)
        spec = plan_and_spec(planned, source / PLAN_FILE)[1]
        about, domain = spec.about, spec.domain
    drawn = drawn_tables(Release(source), (), draws) if "replicates" in formats else {}
    content = PackageContent(source, manifest, about, domain, tuple(formats), drawn)
    tables = write_package(content, target, replace=replace)
    files = tuple(sorted(path.name for path in target.iterdir()))
    return PackageReport(target, files, left_out(tables, content.formats), about != About())
