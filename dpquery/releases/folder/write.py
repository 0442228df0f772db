"""The folder of a release, written whole or not at all.

A release that comes out byte for byte as it is already there stays as it is, but for the time
stamp of release.json: it is then newer than its prerequisites, so that Make settles, while files
made from the tables are not made again.

Everything is written into `.<name>.writing` beside the target, which no other user may enter, and
is on disk before it moves into place in two renames: the earlier folder out, the new one in.
Between the two the target is missing for an instant; if a run dies in it, the next one puts the
earlier folder back. The workshop is locked while it is used, so that two runs wait for each other,
and the next run removes whatever one that died has left.
"""

import dataclasses
import fcntl
import filecmp
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from dpquery.arrays import Ints
from dpquery.exceptions import DpqueryError, PlanConflictError, SpecError
from dpquery.measurement.ledger.ledger import MANIFEST_FILE
from dpquery.measurement.ledger.store import sync_path
from dpquery.progress import report_progress
from dpquery.reconstruction.least_squares import TableAnswers
from dpquery.releases.folder.noisy_files import MeasurementLabel, write_measurements
from dpquery.releases.manifest import (
    ERRORS_FILE,
    MEASUREMENTS_FILE,
    PLAN_FILE,
    RELAXED_ROWS_FILE,
    STATEMENT_FILE,
    Manifest,
    manifest_text,
    read_manifest,
)
from dpquery.releases.statement import statement
from dpquery.releases.tables.file_columns import (
    AXES,
    ERRORS,
    LABELS,
    MEASUREMENTS,
    FileColumn,
    schema_of,
)
from dpquery.releases.tables.file_fields import FileField, item_fields, other_fields
from dpquery.releases.tables.item_table import (
    BATCH_ROWS,
    Batch,
    Tally,
    errors_table,
    layout,
    unknown_row,
)
from dpquery.releases.tables.labels import FIRST_RULES, release_rules
from dpquery.releases.tables.long_table import DerivedTable, axes_table, labels_table, long_layout
from dpquery.spec.spec import Item, Spec
from dpquery.untrusted.files import check_named, disk_words
from dpquery.untrusted.json_values import as_json

NEW, OLD = "new", "old"


@contextmanager
def workshop_beside(directory: Path) -> Iterator[Path]:
    """Lock the folder beside a target in which a release is made; remove it at the end."""
    workshop = directory.with_name(f".{directory.name}.writing")
    descriptor = _lock(workshop)
    try:
        _clear(workshop, directory)
        try:
            yield workshop
        finally:
            _clear(workshop, directory)
            workshop.rmdir()
    finally:
        os.close(descriptor)


def _lock(workshop: Path) -> int:
    """Create the folder if it is missing and lock it, once no other run is using it."""
    while True:
        with suppress(FileExistsError):
            workshop.mkdir(mode=0o700)
        try:
            descriptor = os.open(workshop, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # the run before us has just removed it
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), workshop.stat()):
                return descriptor
        os.close(descriptor)


def _clear(workshop: Path, directory: Path) -> None:
    """Put back an earlier folder that was being replaced, and remove everything else."""
    if (workshop / OLD).exists() and not directory.exists():
        (workshop / OLD).rename(directory)
    for remnant in workshop.iterdir():
        shutil.rmtree(remnant)


def move_in(workshop: Path, directory: Path) -> None:
    """Move what was made in a workshop to its place, and an earlier folder there out of it."""
    if directory.exists():
        directory.rename(workshop / OLD)
    (workshop / NEW).rename(directory)
    sync_path(directory.parent)


PAID = "the measurements are in the ledger, so it costs nothing"
_ERROR_COLUMNS = {"std_error", "ci_low", "ci_high", "rel_error", "flag", "published"}


@dataclass(frozen=True, eq=False)
class Sources:
    """The plan and noisy values behind a release, written into its folder for later questions."""

    plan: bytes  # the bytes of the plan file
    values: Ints  # (m,) noisy values in steps of the grid
    measured: tuple[MeasurementLabel, ...]  # what they belong to, in order


@contextmanager
def claimed_target(
    directory: Path, *, key: str, replace: bool, paid: bool = False
) -> Iterator[Path]:
    """Keep a target for one release, in a `with` block, and yield the workshop beside it.

    Another run that wants the same target waits until the block ends, and is then refused what
    `check_target` refuses: before it is charged, where the target is claimed before the charge.

    Raises:
        SpecError, PlanConflictError: as check_target.
        DpqueryError: nothing can be written beside the target.
    """
    check_target(directory, key=key, replace=replace, paid=paid)
    place = Path(os.path.abspath(directory))
    missing = [folder for folder in place.parents if not folder.exists()]
    claim = ExitStack()
    try:
        with told_of_disk(directory, "nothing was charged"):
            place.parent.mkdir(parents=True, exist_ok=True)
            workshop = claim.enter_context(workshop_beside(place))
        check_target(directory, key=key, replace=replace, paid=paid)
        yield workshop
    finally:
        with told_of_disk(directory):
            claim.close()
        for folder in missing:
            with suppress(OSError):  # what was written stands in it
                folder.rmdir()


@contextmanager
def told_of_disk(directory: Path, charge: str = PAID) -> Iterator[None]:
    """Raise errors of the disk as DpqueryError, which says what was kept and what was charged."""
    try:
        yield
    except OSError as problem:
        reason = disk_words(problem)
        raise DpqueryError(
            f"cannot write {directory}: {reason}; name another folder with --out, or "
            f"put that right, and run again: an earlier one is as it was, and {charge}"
        ) from None


def check_target(directory: Path, *, key: str, replace: bool, paid: bool = False) -> None:
    """Refuse, before anything is charged, a target that write_release would refuse.

    A release of the same key may always be made again. Where what is to be released was charged
    already, a refusal says so.

    Raises:
        SpecError: nothing can be written there.
        PlanConflictError: the target is something else than a release, or another release.
    """
    check_named(directory)
    parent = next(folder for folder in directory.absolute().parents if folder.exists())
    _check_writable(parent)
    if not os.path.lexists(directory):
        return
    if directory.is_symlink() or not directory.is_dir():
        raise PlanConflictError(f"{directory} is not a folder; name another one for the release")
    if not any(directory.iterdir()):
        _check_writable(directory)
        return
    try:
        earlier = read_manifest(directory)
    except SpecError:
        held = f"no {MANIFEST_FILE}, so that it is no release"
        if (directory / MANIFEST_FILE).exists():
            held = f"a {MANIFEST_FILE} that this dpquery cannot read"
        raise PlanConflictError(
            f"{directory} is not empty and holds {held}; move the folder away, or name another one "
            "for the release"
        ) from None
    if earlier.key == key:
        return
    if not replace:
        free = "; this one is paid for: the same command with another --out is free" * paid
        held = "another release" if earlier.answered is None else "answers to other questions"
        raise PlanConflictError(
            f"{directory} holds {held}: name a new folder with --out, which keeps both, or replace "
            f"what is there with --replace{free}"
        )
    refuse_foreign(directory, earlier.files)
    _check_writable(directory)  # a folder that may not be changed cannot be moved away either


def _check_writable(folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise SpecError(f"{folder} cannot be written to; name another folder for the release")


@dataclass(frozen=True, eq=False)
class ReleaseContent:
    """Answers and their manifest, made of noisy values: all that a release is written from."""

    # gives the answers of an item's tables, in order
    answers: Callable[[Item], Iterator[TableAnswers]]
    manifest: Manifest  # what is public about them
    relaxed: pa.Table | None = None  # the relaxed rows that they come from, if they do
    derived: tuple[DerivedTable, ...] = ()


def write_release(
    directory: Path,
    made: ReleaseContent,
    *,
    spec: Spec,
    replace: bool = False,
    sources: Sources | None = None,
    workshop: Path | None = None,
    unless_same: DpqueryError | None = None,
) -> None:
    """Write all files of a release, whole or not at all.

    Args:
        directory: where to; created if missing, its parents too.
        made: its answers; the manifest goes into release.json, which is written last.
        spec: whose items are written.
        replace: whether a release of another key may be, if the target is not claimed already.
        sources: go into the folder too; the manifest has their digests.
        workshop: beside the target, where that is claimed already.
        unless_same: raised where a release that is there would not stay byte for byte as it is.

    Privacy:
        Post-processing: a function of noisy answers and public inputs. What is written differs
        between neighbouring data only in what the noisy answers say.

    Raises:
        PlanConflictError: as check_target.
        DpqueryError: the files cannot be written; an earlier release is as it was.
    """
    directory = Path(os.path.abspath(directory))
    counted = [
        dataclasses.replace(
            facts,
            rows=table.rows.num_rows,
            merged=table.merged,
            missed=table.missed,
            no_more=table.no_more,
            own_sizes=table.own_sizes,
        )
        for facts, table in zip(made.manifest.derived, made.derived, strict=True)
    ]
    manifest = dataclasses.replace(made.manifest, derived=tuple(counted))
    with ExitStack() as claim:
        if workshop is None:
            target = claimed_target(directory, key=manifest.key, replace=replace)
            workshop = claim.enter_context(target)
        claim.enter_context(told_of_disk(directory))
        (workshop / NEW).mkdir()
        if sources is not None:
            _write_sources(workshop / NEW, sources, manifest)
        if made.relaxed is not None:
            _write_table(workshop / NEW / RELAXED_ROWS_FILE, made.relaxed, manifest)
        for facts, table in zip(manifest.derived, made.derived, strict=True):
            _write_table(workshop / NEW / facts.file, table.rows, manifest)
            if table.map is not None:
                options = csv.WriteOptions(quoting_style="needed")
                csv.write_csv(table.map, workshop / NEW / facts.map_file, options)
        _write_files(workshop / NEW, spec, made.answers, manifest)
        for name in (*manifest.files, ""):
            sync_path(workshop / NEW / name)
        _put_in_place(workshop, directory, unless_same)


def _write_sources(folder: Path, sources: Sources, manifest: Manifest) -> None:
    fields = other_fields(schema_of(MEASUREMENTS.values()), MEASUREMENTS, manifest)
    metadata = _metadata(manifest, {"step": str(2**manifest.noise.shift)}, fields)
    write_measurements(
        folder / MEASUREMENTS_FILE, sources.values, sources.measured, metadata=metadata
    )
    (folder / PLAN_FILE).write_bytes(sources.plan)


def _write_files(
    folder: Path, spec: Spec, answers: Callable[[Item], Iterator[TableAnswers]], manifest: Manifest
) -> None:
    summaries, written = [], 0
    extra = [column.name for column in manifest.extra]
    rules = release_rules(spec.items, spec.domain) if manifest.described else FIRST_RULES
    for item, facts in zip(spec.items, manifest.items, strict=True):
        bars = manifest.error_bars
        if facts.numbered:
            item_layout = long_layout(item, error_bars=bars, extra=extra)
            axes = axes_table(item, spec.domain)
            _write_table(folder / facts.tables_file, axes, manifest, AXES)
            labels = labels_table(item, spec.domain, rules=rules)
            _write_table(folder / facts.labels_file, labels, manifest, LABELS)
        else:
            item_layout = layout(item, spec.domain, error_bars=bars, extra=extra, rules=rules)
        metadata = _metadata(
            manifest,
            {"item": item.name, "labels": list(item_layout.labels)},
            item_fields(item_layout.whole_schema, facts, manifest, spec.domain),
            facts.description,
        )
        tally = Tally()
        schema = item_layout.whole_schema.with_metadata(metadata)
        with _writer(folder / facts.file, schema, numbers=item_layout.numbers) as writer:
            for batch in _ahead(writer, item_layout.batches(answers(item))):
                if batch.std_error is not None and batch.relative is not None:
                    tally.add(batch.std_error, batch.relative)
                written += batch.rows.num_rows
                report_progress("writing answers", written / spec.queries)
        summaries.append(tally.row(item) if manifest.error_bars else unknown_row(item))
    errors = errors_table(summaries, known=manifest.error_bars)
    _write_table(folder / ERRORS_FILE, errors, manifest, ERRORS)
    (folder / STATEMENT_FILE).write_text(statement(manifest), encoding="utf-8")
    (folder / MANIFEST_FILE).write_text(manifest_text(manifest), encoding="utf-8")


def _ahead(writer: pq.ParquetWriter, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Write batches, each while the next one is computed; yield each once its write has started."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        under_way: Future[None] | None = None
        for batch in batches:
            if under_way is not None:
                under_way.result()
            under_way = pool.submit(writer.write_batch, batch.rows, row_group_size=BATCH_ROWS)
            yield batch
        if under_way is not None:
            under_way.result()


def _write_table(
    path: Path, table: pa.Table, manifest: Manifest, columns: Mapping[str, FileColumn] | None = None
) -> None:
    fields = () if columns is None else other_fields(table.schema, columns, manifest)
    described = table.replace_schema_metadata(_metadata(manifest, {}, fields))
    with _writer(path, described.schema) as writer:
        writer.write_table(described)


def _writer(path: Path, schema: pa.Schema, *, numbers: Sequence[str] = ()) -> pq.ParquetWriter:
    """Open a Parquet file; every option that decides its bytes is fixed here.

    Labels of attributes have no statistics, which take longer than all else about them: a reader
    skips row groups by the table, by codes and by the ends of ranges. The few values of std_error
    compress as well as they would by a dictionary, which takes three times as long to build. Of
    columns of numbers that count rows, the differences are written, which are nearly all equal.
    """
    labels = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    skipped_by = {"table", "query"} | set(schema.names) - set(labels) - _ERROR_COLUMNS
    return pq.ParquetWriter(
        path,
        schema,
        version="2.6",
        compression="snappy",
        use_dictionary=labels,
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED") or None,
        write_statistics=[name for name in schema.names if name in skipped_by],
        write_batch_size=1 << 16,
    )


def _metadata(
    manifest: Manifest,
    facts: Mapping[str, str | list[str]],
    fields: Sequence[FileField] = (),
    description: str = "",
) -> dict[str, str]:
    described: dict[str, object] = {}
    if manifest.described:
        described = {"currency": manifest.guarantee.kind, "description": description}
        described["columns"] = {
            field.name: {"meaning": field.meaning, "unit": field.unit} for field in fields
        }
    content = {
        "schema_version": manifest.schema_version,
        "dataset": asdict(manifest.dataset),
        "privacy": as_json(manifest.privacy),
        "mechanism": manifest.guarantee.mechanism,
        "epsilon": manifest.guarantee.epsilon,
        "delta": manifest.guarantee.delta,
        "level": manifest.level,
        "key": manifest.key,
        **described,
        **facts,
    }
    return {"dpquery": json.dumps(content, sort_keys=True, ensure_ascii=False)}


def _put_in_place(workshop: Path, directory: Path, unless_same: DpqueryError | None) -> None:
    new = workshop / NEW
    if directory.exists() and any(directory.iterdir()):
        names = [path.name for path in new.iterdir()]
        _, different, missing = filecmp.cmpfiles(new, directory, names, shallow=False)
        if not different and not missing:
            os.utime(directory / MANIFEST_FILE)
            return
        if unless_same is not None:
            raise unless_same
        refuse_foreign(directory, read_manifest(directory).files)
    move_in(workshop, directory)


def check_apart(directory: Path, release: Path, *, noun: str) -> None:
    """Refuse a target that is, holds or lies in the release that it is made from."""
    target, source = Path(os.path.realpath(directory)), Path(os.path.realpath(release))
    if target == source or source in target.parents or target in source.parents:
        what = "is" if target == source else "holds or lies in"
        raise PlanConflictError(
            f"{directory}, named for the {noun}, {what} {release}, the release, which is not "
            "changed; name another folder with --out"
        )


def refuse_foreign(directory: Path, own: Collection[str], *, noun: str = "release") -> None:
    """Refuse to replace a folder that holds files, hidden ones too, which are not its own."""
    foreign = sorted({path.name for path in directory.iterdir()} - set(own))
    if foreign:
        raise PlanConflictError(
            f"{directory} also holds {', '.join(foreign[:3])}, which replacing the {noun} would "
            "delete; move that away first"
        )
