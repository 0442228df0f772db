"""replicates() as a straight line: the noise of a release drawn again, for errors of any statistic.

    release folder -> strategy and size of its noise -> K draws of it -> files beside the answers

A standard error serves one number. Whoever adds three districts, or compares two shares, needs to
know how their errors go together: the same statistic of `estimate + noise_k`, for each of K draws
of the noise of all answers at once, tells it, as replicate weights do in surveys.

The draws are of the law that the release published, through its own reconstruction, from hashes of
its key: neither the data nor the noisy values decide them, and anybody can make them again. What
they make of a derived item follows from its published answers too.
"""

from collections.abc import Callable, Sequence
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
from dpquery.progress import report_progress, stage
from dpquery.public_chance import PublicChance, public_seed
from dpquery.reconstruction.derived import JointAnswers, derived_rows
from dpquery.reconstruction.least_squares import Estimates, Measured, reconstruct
from dpquery.releases.folder.write import check_apart
from dpquery.releases.package.tables import safe_cells
from dpquery.spec.problems import quoted, several_texts, suggestion
from dpquery.spec.spec import DerivedItem, Item
from dpquery.untrusted.files import disk_words, replacing

ESTIMATE = "estimate"
WORKED_OUT = {"coefficients", "merged"}  # of joint answers, the same for all noise


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
    return ReplicatesReport(directory, tuple(files), draws, opened.facts.measures_squares)


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
            f"{draws} draws of these answers are {numbers:,} numbers, and the limit is "
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
    published answers makes of it, less what it is of them; NaN where either has no value.
    """
    items = [item for item in wanted if isinstance(item, Item)]
    derived = [item for item in wanted if isinstance(item, DerivedItem)]
    strategy, law = release.answering, release.noise.guarantee.law
    std = release.noise.noise_std
    sizes = release.measured[0].sizes
    nothing = reconstruct(strategy, [np.zeros(size) for size in sizes])
    without = {item.name: _answers(nothing, release, item) for item in items}
    statistics = _statistics(release, derived)
    published = statistics(release.answered) if derived else {}
    sizes_of = {item.name: item.size for item in items}
    sizes_of |= {name: len(rows) for name, rows in published.items()}
    noise = {name: np.empty((draws, size), np.float32) for name, size in sizes_of.items()}
    seed = public_seed(("replicates", release.facts.key))
    for k in range(draws):
        report_progress(f"draw {k + 1} of {draws}", k / draws)
        chance, drawn = PublicChance(seed, k), []
        for place, size in enumerate(sizes):
            uniform = chance.uniform(f"noise {place}", size)
            drawn.append(std * unit_noise(law, uniform))
        estimates = reconstruct(strategy, drawn)
        for item in items:
            noise[item.name][k] = _answers(estimates, release, item) - without[item.name]
        if derived:
            pairs = zip(release.answered.noisy, drawn, strict=True)
            further = Measured(strategy, [seen + more for seen, more in pairs], std)
            for name, rows in statistics(further).items():
                noise[name][k] = rows - published[name]
    return noise


def unit_noise(law: Law, uniform: Floats) -> Floats:
    """Return noise of standard deviation one by its quantiles at numbers in [0, 1)."""
    below = uniform < 0.5
    tail = np.where(below, uniform, 1 - 2.0**-53 - uniform) + 2.0**-54  # of its 2^53 values: not 0
    size = law.quantile(tail)
    return np.where(below, -size, size)


def _answers(estimates: Estimates, release: Release, item: Item) -> Floats:
    """Return the answers of an item's tables, in the order of its file. (m,)."""
    compiled = release.compiled
    places = compiled.items[release.spec.items.index(item)]
    blocks = [(compiled.workload.blocks[place], place) for place in places]
    return np.concatenate([estimates.answer(*block).ravel() for block in blocks])


def _statistics(
    release: Release, items: Sequence[DerivedItem]
) -> Callable[[Measured], dict[str, Floats]]:
    """Return what works derived items out from noisy values; NaN where they have no value."""
    spec, planned = replace(release.spec, derived=tuple(items)), release.compiled.workload.blocks
    tables = tables_of_derived(spec, release.compiled.classes, planned, release.answering)
    known: dict[str, object] = {}

    def worked_out(measured: Measured) -> dict[str, Floats]:
        joint = JointAnswers(tables, measured)
        vars(joint).update(known)
        rows = {
            item.name: derived_rows(item.statistic, joint, spec.domain, level=LEVEL)
            for item in items
        }
        known.update((name, of) for name, of in vars(joint).items() if name in WORKED_OUT)
        return {name: np.where(of.lost, np.nan, of.estimate) for name, of in rows.items()}

    return worked_out


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
    table, digits = answers.select([*labels, ESTIMATE]), len(str(len(noise)))
    for k, draw in enumerate(noise, start=1):
        table = table.append_column(f"noise_{k:0{digits}}", pa.array(draw, from_pandas=True))
    return table.replace_schema_metadata(None)
