"""replicates() as a straight line: the noise of a release drawn again, for errors of any statistic.

    release folder -> strategy and size of its noise -> K draws of it -> files beside the answers

A standard error serves one number. Whoever adds three districts, or compares two shares, needs to
know how their errors go together: the same statistic of `estimate + noise_k`, for each of K draws
of the noise of all answers at once, tells it, as replicate weights do in surveys.

The draws are of the law that the release published, through its own reconstruction, from hashes of
its key: neither the data nor the noisy values decide them, and anybody can make them again. What
they make of a derived item follows from its published answers too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from dpquery.arrays import Floats, Singles
from dpquery.commands.arguments import FilePath, as_path, checked_count
from dpquery.commands.defaults import LEVEL, MOST_REPLICATES, REPLICATES, REPLICATES_PATH
from dpquery.commands.opened import Release
from dpquery.exceptions import DpqueryError, SpecError
from dpquery.limits import MAX_REPLICATED_NUMBERS
from dpquery.measurement.noise.laws import Law
from dpquery.mechanisms.content import tables_of_derived
from dpquery.operators.blocks import Block
from dpquery.progress import report_progress, stage
from dpquery.public_chance import PublicChance, public_seed
from dpquery.reconstruction.derived import JointAnswers, answers_by_draw, derived_rows, estimates_of
from dpquery.reconstruction.least_squares import Estimates, reconstruct
from dpquery.releases.folder.write import check_apart
from dpquery.releases.package.tables import safe_cells
from dpquery.spec.problems import quoted, several_texts, suggestion
from dpquery.spec.spec import DerivedItem, Item, Table
from dpquery.untrusted.files import disk_words, replacing

ESTIMATE = "estimate"
DRAWN_TOGETHER = 1 << 22  # answers, of several draws


@dataclass(frozen=True, eq=False)
class ReplicatesReport:
    """What was written."""

    directory: Path  # the folder
    files: tuple[str, ...]  # the names of its files
    draws: int  # how many draws of the noise they hold
    sampled: bool  # whether estimates have an error of their sample too, which no draw holds


def replicates(
    release: FilePath,
    *,
    items: Sequence[str] = (),
    draws: int = REPLICATES,
    out: FilePath = REPLICATES_PATH,
    also: Sequence[str] = (),
) -> ReplicatesReport:
    """Write each item's answers with further draws of the noise of all of them; free.

    A statistic's standard error is the root mean square of what it is of `estimate + noise_k` less
    what it is of `estimate`; with K draws it is known to 1 / sqrt(2 K) of itself, 7 % for 100.

    Args:
        release: the folder of a release, which is not changed.
        items: the names of those that are wanted; all of them unless said.
        draws: how many, from 2 on.
        out: a folder; a file of it that is there already must be the same.
        also: formats beside Parquet: "csv".

    Privacy:
        A function of the plan, the guarantee and the release's key; of derived items of the
        published answers too, as the estimates beside it are.

    Raises:
        SpecError: there is no such item or format, the release has no error bars, or the draws
            would be too many numbers.
        DpqueryError: other files are in the way, or the folder is the release's.
    """
    source, directory = as_path(release), as_path(out)
    check_apart(directory, source, noun="replicates")
    checked_count("draws", draws, least=2, most=MOST_REPLICATES)
    formats = [each for text in several_texts("also", also) for each in text.split(",")]
    if other := [each for each in formats if each != "csv"]:
        raise SpecError(
            f"--also {quoted(other[0])} is not known; replicates are written as csv too"
        )
    opened = Release(source)
    tables = drawn_tables(opened, [each for text in items for each in text.split(",")], draws)
    files: list[str] = []
    with stage("writing", 0.8, 1.0):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            reason = disk_words(problem)
            raise DpqueryError(f"cannot write {out}: {reason}; name another place") from None
        for name, table in tables.items():
            files.append(f"{name}.parquet")
            with replacing(directory / files[-1]) as draft:
                parquet.write_table(table, draft)
            if "csv" in formats:
                files.append(f"{name}.csv")
                with replacing(directory / files[-1]) as draft:
                    csv.write_csv(safe_cells(table), draft)
    return ReplicatesReport(directory, tuple(files), draws, opened.facts.tells_sample)


def drawn_tables(opened: Release, names: Sequence[str], draws: int) -> dict[str, pa.Table]:
    """Return the labels and estimates of items, all unless named, beside draws of their noise.

    Raises:
        SpecError: there is no such item, the release has no error bars, or the draws would be too
            many numbers.
    """
    if not opened.facts.error_bars:
        raise SpecError(
            f"the noise of {opened.facts.strategy.name} depends on the data, and no public draws "
            "are like it; replicates are of releases with standard errors"
        )
    wanted = _wanted(opened, names)
    tables = {item.name: opened.arrow(item.name) for item in wanted}
    numbers = draws * sum(table.num_rows for table in tables.values())
    if numbers > MAX_REPLICATED_NUMBERS:
        raise SpecError(
            f"{draws:,} draws of these answers are {numbers:,} numbers, and the limit is "
            f"{MAX_REPLICATED_NUMBERS:,}; `dpquery replicates` draws for fewer items with --items, "
            "or fewer --draws"
        )
    with stage("drawing the noise again", 0.0, 0.8):
        noise = noise_of(opened, wanted, draws=draws)
    return {name: _beside(answers, noise[name]) for name, answers in tables.items()}


def noise_of(
    release: Release, wanted: Sequence[Item | DerivedItem], *, draws: int
) -> dict[str, Singles]:
    """Return draws of the noise of all answers of some items. By item (draws, answers).

    Given public facts answers are no linear function of what was measured, but one and a constant:
    what they are without any noise is subtracted. A derived item's is what further noise on the
    published answers makes of it, less what it is of them; NaN where that has no value in any draw,
    since the draws that have one do not tell the row's error.
    """
    items = [item for item in wanted if isinstance(item, Item)]
    derived = {item.name: item for item in wanted if isinstance(item, DerivedItem)}
    spec, compiled = replace(release.spec, derived=(*derived.values(),)), release.compiled
    blocks = compiled.workload.blocks
    of_derived = tables_of_derived(spec, compiled.classes, blocks, release.answering)
    joint = JointAnswers(of_derived, release.answered)
    figures = {
        name: derived_rows(item.statistic, joint, spec.domain, level=LEVEL)
        for name, item in derived.items()
    }
    tables: dict[Table, tuple[Block, int | None]] = dict(of_derived)
    for item in items:
        places = compiled.items[spec.items.index(item)]
        tables |= {t: (blocks[k], k) for t, k in zip(item.tables, places, strict=True)}
    nothing = reconstruct(release.answering, [np.zeros(size) for size in release.measured[0].sizes])
    without = answers_by_draw(tables, [nothing])
    sizes = {item.name: item.size for item in items}
    sizes |= {name: len(rows.estimate) for name, rows in figures.items()}
    noise = {name: np.empty((draws, size), np.float32) for name, size in sizes.items()}
    published = {table: joint.estimate(table) for table in of_derived}
    together = max(1, DRAWN_TOGETHER // sum(table.size for table in tables))
    for start in range(0, draws, together):
        part = range(start, min(start + together, draws))
        at = slice(part.start, part.stop)
        drawn = answers_by_draw(tables, (_drawn(release, k, draws) for k in part))
        further = {table: answers - without[table] for table, answers in drawn.items()}
        for item in items:
            noise[item.name][at] = np.concatenate([further[t] for t in item.tables], axis=1)
        noisy = {table: answers + further[table] for table, answers in published.items()}
        for name, of in figures.items():
            values = estimates_of(derived[name].statistic, joint, spec.domain, noisy, level=LEVEL)
            noise[name][at] = np.where(of.certain, 0.0, values - of.estimate)
    for name in figures:
        noise[name][:, np.isnan(noise[name]).any(axis=0)] = np.nan
    return noise


def _drawn(release: Release, k: int, draws: int) -> Estimates:
    """Return the answers to one draw of the noise."""
    report_progress(f"draw {k + 1} of {draws}", k / draws)
    chance = PublicChance(public_seed(("replicates", release.facts.key)), k)
    law, std = release.noise.guarantee.law, release.noise.noise_std
    noise = [
        std * unit_noise(law, chance.uniform(f"noise {place}", size))
        for place, size in enumerate(release.measured[0].sizes)
    ]
    return reconstruct(release.answering, noise)


def unit_noise(law: Law, uniform: Floats) -> Floats:
    """Return noise of standard deviation one by its quantiles at numbers in [0, 1)."""
    below = uniform < 0.5
    tail = np.where(below, uniform, 1 - 2.0**-53 - uniform) + 2.0**-54  # of its 2^53 values: not 0
    size = law.quantile(tail)
    return np.where(below, -size, size)


def _wanted(release: Release, names: Sequence[str]) -> list[Item | DerivedItem]:
    every: tuple[Item | DerivedItem, ...] = (*release.spec.items, *release.spec.derived)
    known = {item.name: item for item in every}
    for name in names:
        if name not in known:
            raise SpecError(f"the release has no item {quoted(name)}{suggestion(name, known)}")
    return [known[name] for name in dict.fromkeys(names or known)]


def _beside(answers: pa.Table, noise: Singles) -> pa.Table:
    """Return the labels and estimates of an item with a column for each draw."""
    labels = answers.column_names[: answers.column_names.index(ESTIMATE)]
    table, digits = answers.select([*labels, ESTIMATE]), max(3, len(str(len(noise))))
    for k, draw in enumerate(noise, start=1):
        table = table.append_column(f"noise_{k:0{digits}}", pa.array(draw))
    return table.replace_schema_metadata(None)
