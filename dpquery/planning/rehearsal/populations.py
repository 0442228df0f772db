"""Public populations that stand in for the data in rehearsals.

Made-up populations depend on no private data, and describe no real population. What errs least
hangs on how skewed a population is and on how its attributes depend on each other, so that there
are three of them. In the first, records fall into latent classes, within which attributes are
independent: it is the default prior. In the two others attributes form a tree, along which each
follows its parent in a share of the records: a few follow closely and most hardly, as in surveys,
where latent classes make all pairs depend on each other. Every attribute falls off from some code
as a Zipf law, 1 / rank^s, with several exponents s by turns. The seed is fixed: they are the same
for every user, and for every plan of the same domain.

Nothing here is private, and nothing of it may come from the data that is to be protected: a public
CSV file in the declared schema, an earlier release of dpquery, or the made-up populations of
planning/rehearsal/populations.py. A proxy's counts are scaled to the declared number of rows.

Records drawn from an earlier release, to rehearse on: nothing but what was published is read.

A RAP release has relaxed rows, which are a distribution: records are drawn from them. A linear
release has noisy tables: those over every value of their attributes are made non-negative, by
projection onto tables of their total, and records follow them one after another. A table with more
cells than people has more noise than signal; its attributes are taken from smaller ones instead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpquery.arrays import Floats, Ints
from dpquery.exceptions import DataError, SpecError
from dpquery.limits import LARGEST_INTEGER
from dpquery.measurement.counting.tabulate import check_table_sizes, tabulate
from dpquery.operators.blocks import Block
from dpquery.operators.cells import CellClassBlock
from dpquery.operators.compile import CompiledSpec, compile_spec
from dpquery.plan_file.plan import plan_and_spec, read_plan_file
from dpquery.progress import reporting
from dpquery.public_chance import PublicGenerator, public_generator
from dpquery.reconstruction.nearest import onto_total
from dpquery.releases.folder.noisy_files import read_relaxed
from dpquery.releases.manifest import PLAN_FILE, read_manifest
from dpquery.releases.words import without_controls
from dpquery.spec.predicates import IdentitySet, PredicateSet, PrefixSet, StackedSet, TotalSet
from dpquery.spec.spec import Privacy, Spec, Table
from dpquery.strategy.algebra.subsets import Subset
from dpquery.untrusted.parquet import UNREADABLE, opened

SEED = 2026


@dataclass(frozen=True)
class LatentClasses:
    """Classes with Zipf weights, within which attributes are independent.

    In the largest class an attribute falls off from its first code; in the others that code is
    drawn, which is what correlates attributes.
    """

    classes: int  # how many
    exponents: tuple[float, ...]  # of the attributes, by turns

    def draw(self, shape: Sequence[int], records: int, rng: PublicGenerator) -> Ints:
        """Draw records over a domain of codes. (records, d) int64."""
        classes, exponents = self.classes, self.exponents
        latent = rng.choice(classes, size=records, p=_zipf(classes, 1.0))
        codes = np.empty((records, len(shape)), dtype=np.int64)
        for i, n in enumerate(shape):
            starts = np.where(np.arange(classes) == 0, 0, rng.integers(n, size=classes))
            ranks = rng.choice(n, size=records, p=_zipf(n, exponents[i % len(exponents)]))
            codes[:, i] = (starts[latent] + ranks) % n
        return codes


@dataclass(frozen=True)
class AttributeTree:
    """Attributes that each follow an earlier one, drawn, in a share of the records.

    Where an attribute follows its parent, its code stands as far up as that of the parent does.
    """

    follows: tuple[float, ...]  # the share of the records, of the attributes by turns
    exponents: tuple[float, ...]  # of the others, by turns
    # attributes of more codes fall off over all of them as one of so many does
    longest: int = LARGEST_INTEGER

    def draw(self, shape: Sequence[int], records: int, rng: PublicGenerator) -> Ints:
        """Draw records over a domain of codes. (records, d) int64."""
        codes = np.empty((records, len(shape)), dtype=np.int64)
        for i, n in enumerate(shape):
            exponent = self.exponents[i % len(self.exponents)]
            codes[:, i] = rng.choice(n, size=records, p=_zipf(n, exponent, self.longest))
            if i > 0:
                parent = int(rng.integers(i))
                following = rng.random(records) < self.follows[i % len(self.follows)]
                codes[following, i] = codes[following, parent] * n // shape[parent]
        return codes


Population = LatentClasses | AttributeTree
POPULATIONS: tuple[Population, ...] = (
    LatentClasses(6, (0.5, 1.0, 2.0)),
    AttributeTree((0.1, 0.5, 0.2, 0.9), (0.5, 1.0, 2.0)),
    AttributeTree((0.0, 0.2, 0.05, 0.5), (0.5, 1.0, 1.5)),
)


def sample_prior(
    shape: Sequence[int], *, records: int, population: Population = POPULATIONS[0]
) -> Ints:
    """Draw records of a made-up population over a domain of codes. (records, d) int64."""
    return population.draw(shape, records, public_generator(SEED))


def sample_tables(
    shape: Sequence[int], tables: Sequence[tuple[Subset, Floats]], *, records: int
) -> Ints:
    """Draw records that follow tables one after another. (records, d) int64.

    The table with the most attributes comes first; then, again and again, the one that shares the
    most attributes with those drawn already adds its others, given the shared ones. Attributes that
    no table holds together are independent but through others; those of no table are of the prior.

    Args:
        shape: sizes of the attributes.
        tables: attribute subsets, each with its counts: (n_i for i in subset), not negative.
        records: how many.
    """
    rng = public_generator(SEED)
    codes = sample_prior(shape, records=records)
    done: set[int] = set()
    while remaining := [table for table in tables if not done.issuperset(table[0])]:
        subset, table = max(remaining, key=lambda pair: (len(done & {*pair[0]}), len(pair[0])))
        known = [i for i in subset if i in done]
        new = [i for i in subset if i not in done]
        order = [subset.index(i) for i in (*known, *new)]
        wide = math.prod(shape[i] for i in new)
        rows = np.transpose(table, order).reshape(-1, wide)
        row_of = _numbers(codes, known, shape)
        drawn = _draw_columns(rng, rows, row_of)
        for i, column in zip(new, np.unravel_index(drawn, [shape[i] for i in new]), strict=True):
            codes[:, i] = column
        done.update(new)
    return codes


def sample_rows(distributions: Sequence[NDArray[np.floating]], *, records: int) -> Ints:
    """Draw records from relaxed rows: a row uniformly, then each attribute by its distribution.

    Distributions are (n', n_i) for each attribute.

    Returns:
        (records, d) int64.
    """
    rng = public_generator(SEED)
    rows = rng.integers(len(distributions[0]), size=records)
    columns = [_draw_columns(rng, distribution, rows) for distribution in distributions]
    return np.stack(columns, axis=1)


def spread(values: Ints, classes: Ints) -> Ints:
    """Draw a code of the class of each value, uniformly within the class. (records,) int64."""
    rng = public_generator(SEED)
    order = np.argsort(classes, kind="stable")
    sizes = np.bincount(classes)
    starts = np.cumsum(sizes) - sizes
    places = starts[values] + (rng.random(len(values)) * sizes[values]).astype(np.int64)
    return np.asarray(order[places])


def _numbers(codes: Ints, attributes: Sequence[int], shape: Sequence[int]) -> Ints:
    number = np.zeros(len(codes), dtype=np.int64)
    for i in attributes:
        number = number * shape[i] + codes[:, i]
    return number


def _draw_columns(rng: PublicGenerator, rows: NDArray[np.floating], row_of: Ints) -> Ints:
    """Draw a column for each record by the weights of its row, or by their sum if all are zero."""
    everywhere = rows.sum(axis=0)
    everywhere = everywhere if everywhere.any() else np.ones(rows.shape[1])
    drawn = np.empty(len(row_of), dtype=np.int64)
    order = np.argsort(row_of, kind="stable")
    present, starts = np.unique(row_of[order], return_index=True)
    for row, records in zip(present.tolist(), np.split(order, starts[1:]), strict=True):
        weights = rows[row] if rows[row].any() else everywhere
        ends = np.cumsum(weights, dtype=np.float64)
        places = np.searchsorted(ends, rng.random(len(records)) * ends[-1], side="right")
        drawn[records] = np.minimum(places, len(ends) - 1)
    return drawn


def _zipf(n: int, exponent: float, longest: int = LARGEST_INTEGER) -> Floats:
    weights = np.linspace(1, min(n, longest), n) ** -exponent
    return np.asarray(weights / weights.sum())


def draw_records(directory: Path, spec: Spec, *, records: int) -> tuple[Ints, tuple[str, ...]]:
    """Draw records of a spec's domain from a release of the same attributes.

    Returns:
        (records, d) codes; and the attributes that are in no table of the release, whose codes are
        those of the default prior: uniform ones would favour RAP, which starts from them.

    Raises:
        SpecError: the folder is no release, or its attributes are not those of the spec.
    """
    manifest = read_manifest(directory)
    if manifest.answered is not None:
        raise SpecError(
            f"the proxy {directory} holds answers to questions; name the release itself"
        )
    released = _spec_of(directory)
    names = [attribute.name for attribute in spec.domain.attributes]
    known = {
        attribute.name: (i, attribute) for i, attribute in enumerate(released.domain.attributes)
    }
    wrong = [o.name for o in spec.domain.attributes if known.get(o.name, (0, None))[1] != o]
    if wrong:
        raise SpecError(
            f"the proxy {directory} does not have these attributes as the spec declares them: "
            f"{', '.join(wrong)}; name a release of the same domain, or a public CSV file"
        )
    order = [known[name][0] for name in names]
    if manifest.fitted is not None:
        compiled = compile_spec(released)
        rows = read_relaxed(directory, compiled, digest=manifest.fitted.rows_sha256)
        distributions = [rows.distribution(i) for i in range(len(rows.shape))]
        drawn = sample_rows(distributions, records=records)
        # the codes of a class are equally likely
        columns = [spread(drawn[:, i], classes) for i, classes in enumerate(compiled.classes)]
        return np.stack(columns, axis=1)[:, order], ()
    tables = _tables(directory, released, records)
    covered = {i for subset, _ in tables for i in subset}
    codes = sample_tables(released.domain.shape, tables, records=records)
    made_up = (name for name, i in zip(names, order, strict=True) if i not in covered)
    return codes[:, order], tuple(made_up)


def _spec_of(directory: Path) -> Spec:
    try:
        content = read_plan_file(directory / PLAN_FILE)
    except OSError:
        raise SpecError(
            f"the proxy {directory} has no {PLAN_FILE}: an older dpquery made it; run "
            "`dpquery release` again, which is free"
        ) from None
    _, spec = plan_and_spec(content, directory / PLAN_FILE)
    return spec


def _tables(directory: Path, released: Spec, cells: int) -> list[tuple[Subset, Floats]]:
    """Return the identity tables of a release, made non-negative: the small ones whole.

    Of a table with more than `cells` cells only the one-way marginals are taken.
    """
    tables: dict[Subset, Floats] = {}
    for item in released.items:
        estimates = _estimates(directory / f"{item.name}.parquet", item.size)
        ends = np.cumsum([table.size for table in item.tables])[:-1]
        for table, answers in zip(item.tables, np.split(estimates, ends), strict=True):
            subset, counts = _every_value(table, answers)
            parts = [(subset, counts)]
            if counts.size > cells:
                parts = [
                    ((i,), counts.sum(axis=tuple(j for j in range(len(subset)) if j != k)))
                    for k, i in enumerate(subset)
                ]
            for part, tensor in parts:
                if part and part not in tables:
                    tables[part] = onto_total(tensor, max(float(tensor.sum()), 1.0))
    return list(tables.items())


def _every_value(table: Table, estimates: Floats) -> tuple[Subset, Floats]:
    """Return a table as counts of every value of its attributes; over () where it is not that."""
    subset: list[int] = []
    counts = estimates.reshape(table.shape)
    if table.where or table.threshold < len(table.axes) or table.summed is not None:
        return (), np.zeros(())
    for i, predicates in table.axes:
        values = _values(predicates, np.moveaxis(counts, len(subset), 0))
        if values is None:
            return (), np.zeros(())
        if isinstance(predicates, TotalSet):
            counts = values[0]
            continue
        counts = np.moveaxis(values, 0, len(subset))
        subset.append(i)
    return tuple(subset), counts


def _values(predicates: PredicateSet, counts: Floats) -> Floats | None:
    """Return the counts of single values along the first axis, where the queries give them."""
    match predicates:
        case IdentitySet():
            return _on_codes(predicates, counts)
        case TotalSet():
            return counts
        case PrefixSet(size=size, length=length) if size == length:
            return np.diff(counts, axis=0, prepend=0)
        case StackedSet(parts=parts):
            start = 0
            for part in parts:
                if isinstance(part, IdentitySet):
                    return _on_codes(part, counts[start : start + len(part)])
                start += len(part)
        case _:
            pass
    return None


def _on_codes(predicates: IdentitySet, counts: Floats) -> Floats:
    """Return the counts along all codes; those that are not shown have none."""
    spread = np.zeros((predicates.size, *counts.shape[1:]))
    spread[np.asarray(predicates.codes)] = counts
    return spread


def _estimates(path: Path, queries: int) -> Floats:
    try:
        with opened(path, rows=queries) as file:
            if file.schema_arrow.field("estimate").type == "float64":
                values = file.read(columns=["estimate"]).column(0).to_numpy()
                if np.isfinite(values).all():
                    return np.asarray(values, dtype=np.float64)
    except UNREADABLE:
        pass
    raise SpecError(f"the proxy's {path} is missing or not as it was written; release it again")


MAX_SAMPLED_RECORDS = (
    200_000  # records at most that are drawn from a distribution; more rows are scaled to
)

KEPT_CELLS = 10_000  # of a table of such records that many questions may ask for


@dataclass(frozen=True, eq=False)
class Proxy:
    """Public records to rehearse on."""

    words: str  # what the records are, for the report
    records: int  # how many of them the tables count
    rows: int  # how many records the dataset is declared to hold: answers are scaled to it
    # returns the counts of a set of attributes, over classes of codes
    table: Callable[[Subset], Ints]

    def answers(self, block: Block | CellClassBlock) -> Ints:
        """Return the answers of a block, (m,), scaled to the declared rows and rounded."""
        counts = block.apply(self.table(block.attributes)).ravel()
        if self.records == self.rows:
            return counts.astype(np.int64, copy=False)
        return np.rint(counts * (self.rows / self.records)).astype(np.int64)

    def measured(self, block: Block | CellClassBlock) -> Floats:
        """Return the answers of a block of a strategy, (m,), scaled alike.

        In floats: the whole numbers of its entries may be too large for others.
        """
        counts = block.apply(self.table(block.attributes).astype(np.float64)).ravel()
        return np.asarray(counts * (self.rows / self.records))


def proxies_for(
    path: Path | None, spec: Spec, compiled: CompiledSpec, *, rows: int
) -> tuple[Proxy, ...]:
    """Return the public file or release that a path names; the made-up populations for none.

    Raises:
        SpecError: the file or release does not have the declared schema, or holds no records.
        UnsupportedWorkloadError: the tables that the workload asks for are too large to be counted.
    """
    counted = sorted({block.attributes for block in compiled.workload.blocks})
    check_table_sizes(counted, compiled.workload.shape_of_domain)
    if path is None:
        return tuple(made_up(spec, compiled, rows=rows, population=each) for each in POPULATIONS)
    if path.is_dir():
        codes, of_prior = draw_records(path, spec, records=min(rows, MAX_SAMPLED_RECORDS))
        words = f"the release in {_printable(path)}/"
        if of_prior:
            words += f", with the default prior for {', '.join(of_prior)}"
        return (_of_records(words, codes, compiled, rows=rows),)
    # A PUBLIC file has the schema of the data, so that the same reader serves, but for the privacy
    # unit: it needs no column of persons.
    one_each = replace(spec, privacy=Privacy())
    table = _public_tables(path, one_each, compiled.classes, [*counted, ()])
    records = int(table(()))
    if records == 0:
        raise SpecError(f"the proxy {path} has no record inside the declared domain; name another")
    return (Proxy(f"the public file {_printable(path)}", records, rows, table),)


def public_records(
    path: Path | None, spec: Spec, compiled: CompiledSpec, *, rows: int, population: Population
) -> Proxy:
    """Return the proxy that a path names; where there is none, records of a made-up population.

    Made-up records have declared values alone: in real files few have others.
    """
    if path is not None:
        return proxies_for(path, spec, compiled, rows=rows)[0]
    attributes, most = spec.domain.attributes, min(rows, MAX_SAMPLED_RECORDS)
    declared = [c.length if a.in_data else c.size for a in attributes for c in a.columns]
    drawn = iter(sample_prior(declared, records=most, population=population).T)
    codes = [
        np.ravel_multi_index([next(drawn) for _ in a.columns], [c.size for c in a.columns])
        for a in attributes
    ]
    return _of_records("a made-up population", np.stack(codes, axis=1), compiled, rows=rows)


def made_up(spec: Spec, compiled: CompiledSpec, *, rows: int, population: Population) -> Proxy:
    """Return records of a made-up population, with undeclared values as frequent as others."""
    most = min(rows, MAX_SAMPLED_RECORDS)
    codes = sample_prior(spec.domain.shape, records=most, population=population)
    return _of_records("a made-up population", codes, compiled, rows=rows)


def populations_in_words(proxies: Sequence[Proxy]) -> str:
    """Return in words what several proxies are."""
    return proxies[0].words if len(proxies) == 1 else f"{len(proxies)} made-up populations"


def _public_tables(
    path: Path, spec: Spec, classes: Sequence[Ints], subsets: Sequence[Subset]
) -> Callable[[Subset], Ints]:
    """Count these tables of a PUBLIC file; others when they are first asked for."""
    known = dict[Subset, Ints]()

    def count(subsets: Sequence[Subset]) -> None:
        try:
            with reporting(None):  # "the data" is not this file
                known.update(tabulate(path, spec=spec, subsets=subsets, classes=classes))
        except DataError as error:
            raise SpecError(f"the proxy cannot be read: {error}") from None

    def table(subset: Subset) -> Ints:
        """Return the counts of a set of attributes: sums of a table that holds them, if any."""
        wider = [each for each in known if set(subset) <= set(each)]
        if subset not in known and wider:
            least = min(wider, key=lambda each: known[each].size)
            others = tuple(axis for axis, i in enumerate(least) if i not in subset)
            known[subset] = known[least].sum(axis=others)
        elif subset not in known:
            count([subset])
        return known[subset]

    count(subsets)
    return table


def _of_records(words: str, codes: Ints, compiled: CompiledSpec, *, rows: int) -> Proxy:
    """Count records in codes, (records, d), table by table on request; only small ones are kept."""
    classes = [class_of[codes[:, i]] for i, class_of in enumerate(compiled.classes)]
    shape = compiled.workload.shape_of_domain
    kept = dict[Subset, Ints]()

    def table(subset: Subset) -> Ints:
        sizes = [shape[i] for i in subset]
        if not subset:
            return np.array(len(codes))
        if subset in kept:
            return kept[subset]
        cells = np.ravel_multi_index([classes[i] for i in subset], sizes)
        counts = np.bincount(cells, minlength=math.prod(sizes)).reshape(sizes)
        if counts.size <= KEPT_CELLS:
            kept[subset] = counts
        return counts

    return Proxy(words, len(codes), rows, table)


def _printable(path: Path) -> str:
    """Return a file's name as text of one line that can be written: names may hold any bytes."""
    name = path.resolve().name.encode("utf-8", "replace").decode()
    return " ".join(without_controls(name).split())
