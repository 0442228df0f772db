"""package() as a straight line: a release made ready to hand over, from its folder alone.

release folder -> manifest, spec and tables -> the same files, with what describes them
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpquery.commands.arguments import FilePath, as_path
from dpquery.commands.defaults import PACKAGE_PATH, RELEASE_PATH
from dpquery.plan_file.plan import plan_and_spec
from dpquery.releases.folder.answers import read_answerable
from dpquery.releases.manifest.manifest_input import read_manifest
from dpquery.releases.manifest.release_json import PLAN_FILE, Manifest
from dpquery.releases.package.write import (
    PackageContent,
    left_out,
    parse_formats,
    write_package,
)
from dpquery.spec.domain import Domain
from dpquery.spec.model import About


@dataclass(frozen=True)
class PackageReport:
    """What was packed.

    Attributes:
        directory: where the package lies.
        files: names of its files, sorted.
        left_out: tables that are missing from the workbook, since no sheet has room for them.
        about: whether the spec says something of the publication.
    """

    directory: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    about: bool


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
        also: formats of the tables beside Parquet: "csv", "xlsx", or "csv,xlsx".
        replace: whether the package of another release in `out` is replaced.

    Privacy:
        Post-processing: a function of the folder, all of which is public; free.

    Raises:
        SpecError: the folder is not a release, or is damaged.
        PlanConflictError: something else is in the way.
    """
    source, target, formats = as_path(directory), as_path(out), parse_formats(also)
    manifest = read_manifest(source)
    about, domain = _from_spec(source, manifest)
    content = PackageContent(source, manifest, about, domain, formats)
    tables = write_package(content, target, replace=replace)
    files = tuple(sorted(path.name for path in target.iterdir()))
    return PackageReport(target, files, left_out(tables, formats), about != About())


def _from_spec(source: Path, manifest: Manifest) -> tuple[About, Domain | None]:
    """Return what the spec in a release's plan says; nothing of answers, which have no plan."""
    if manifest.answered is not None or not manifest.measurements:
        return About(), None
    _, content = read_answerable(source)
    spec = plan_and_spec(content, source / PLAN_FILE)[1]
    return spec.about, spec.domain
