"""synthetic() as a straight line: records from the relaxed rows of a release, free of budget.

release folder -> spec and classes -> relaxed rows -> records -> CSV file
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dpquery.exceptions import SpecError
from dpquery.made import Progress
from dpquery.operators.compile import compile_spec
from dpquery.release.manifest import PLAN_FILE, Manifest, read_manifest
from dpquery.release.relaxed import read_relaxed
from dpquery.release.synthetic import write_synthetic
from dpquery.spec.model import Spec
from dpquery.spec.parse import parse
from dpquery.strategy.plan_file import read_plan


@dataclass(frozen=True)
class SyntheticReport:
    """What was written: how many records, and where."""

    file: Path
    records: int


def synthetic(
    release: Path,
    *,
    out: Path,
    records: int | None = None,
    seed: int = 0,
    replace: bool = False,
    progress: Progress = lambda _: None,
) -> SyntheticReport:
    """Write synthetic records of a RAP release, in the columns that its spec declares.

    Args:
        release: the folder of the release, which is not changed.
        out: the CSV file; written whole or not at all.
        records: how many; default: as many as the release says there are, rounded.
        seed: of the rounding of relaxed rows to records; public.
        replace: whether a file of another content gives way.
        progress: told what is being done.

    Privacy:
        Post-processing: a function of the release and public inputs. Neither the data nor the
        ledger is opened.

    Raises:
        SpecError: the release is not one of RAP, or is damaged.
    """
    manifest = read_manifest(release)
    if manifest.rap is None:
        raise SpecError(
            f"{release} has no relaxed rows to make records of: its answers come from a linear "
            "strategy; plan and release with --mechanism rap to have some"
        )
    spec = _spec_of(release, manifest)
    compiled = compile_spec(spec)
    rows = read_relaxed(release, compiled)
    wanted = max(1, round(manifest.rap.total)) if records is None else records
    write_synthetic(
        out,
        spec,
        compiled,
        rows,
        records=wanted,
        seed=seed,
        replace=replace,
        progress=lambda done: progress(f"writing records: {done / wanted:.0%}"),
    )
    return SyntheticReport(out, wanted)


def _spec_of(release: Path, manifest: Manifest) -> Spec:
    """Return the spec in the plan that a release was made by."""
    try:
        content = (release / PLAN_FILE).read_bytes()
    except OSError:
        content = b""
    if hashlib.sha256(content).hexdigest() != manifest.plan:
        raise SpecError(
            f"{release / PLAN_FILE} is missing, damaged, or not of this release; run "
            "`dpquery release` again, which is free: the ledger holds the measurements"
        )
    plan = read_plan(content)
    name = f"{release / PLAN_FILE}, {plan.spec_name}"
    return parse(plan.spec_text, name=name, files=plan.spec_files)
