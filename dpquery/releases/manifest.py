"""The manifest, release.json: written, and read as input from outside.

All that is public about a release, and nothing else. No seed, no hash of the data, no number of
records, no timing, no host and no path: the same release made again, anywhere, has the same bytes.

It comes from outside: its names become file names and its words pages, so that each must be of the
form that a release gives it. That form is the type of its field.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, cast

from dpquery.exceptions import LedgerError, SpecError
from dpquery.limits import LARGEST_INTEGER, MAX_JSON_BYTES
from dpquery.measurement.accounting import UNIT, Guarantee, units_text
from dpquery.measurement.ledger.ledger import MANIFEST_FILE
from dpquery.measurement.noise.calibration import CalibratedNoise
from dpquery.measurement.noise.exact_noise import versions
from dpquery.measurement.noise.laws import LAWS
from dpquery.releases.manifest_facts import (
    AdaptiveFacts,
    DerivedFacts,
    Digest,
    FigureAboveZero,
    FigureFromZero,
    ItemFacts,
    PublicFactUse,
    RapFacts,
    derived_facts,
    item_facts,
)
from dpquery.releases.words import count, in_full, one_line, weight_words
from dpquery.spec.columns import Domain
from dpquery.spec.parsing.fields import IDENTIFIER
from dpquery.spec.problems import near_in_folder, quoted
from dpquery.spec.spec import Neighbours, PublicationRules, Spec
from dpquery.untrusted.files import read_outside
from dpquery.untrusted.json_values import (
    LEAST_FIGURE,
    UNWRITTEN,
    ChangedError,
    Count,
    Matching,
    MisplacedError,
    Within,
    as_json,
    as_written,
    decode,
    mapping,
    parsed,
    sha256_of,
    text_of,
)
from dpquery.untrusted.parquet import UNREADABLE
from dpquery.version import __version__

SCHEMA_VERSION = "dpquery.release/1"
RELEASE_AGAIN = "run `dpquery release` again, which is free: the ledger holds the measurements"
STATEMENT_FILE, ERRORS_FILE = "statement.md", "errors.parquet"
MEASUREMENTS_FILE, PLAN_FILE = "measurements.parquet", "release.plan"
RELAXED_ROWS_FILE = "relaxed_rows.parquet"
RAP, ADAPTIVE = "relaxed adaptive projection", "adaptive measurement"
MECHANISMS = (*(law.title for law in LAWS.values()), RAP, ADAPTIVE)
WIDEST_SHIFT = 512  # bits of a strategy's integers below the grid; plans have some 75 at most
BELOW_ONE = math.nextafter(1.0, 0.0)
Identifier = Annotated[str, Matching(IDENTIFIER)]


@dataclass(frozen=True)
class DatasetFacts:
    """The declared population of records."""

    id: Identifier
    version: Identifier


@dataclass(frozen=True)
class ReplicateFacts:
    """The replicate weights that tell the error of the sample."""

    columns: tuple[str, ...]
    factor: FigureAboveZero  # of the sum of squared differences
    at_most: FigureAboveZero  # how long a record's differences are together, at most
    degrees: Count  # of freedom of their variances


@dataclass(frozen=True)
class WeightFacts:
    """What a record counts as: a number in a column."""

    column: str  # its name
    at_most: FigureAboveZero  # what a larger number counts as
    step: FigureAboveZero  # numbers are rounded to multiples of it
    # how many times the variance of Poisson sampling the sample's is, by the spec; left out of the
    # file where sums of squared weights are not measured
    design_effect: Annotated[FigureAboveZero | None, UNWRITTEN] = None
    inclusion: Annotated[bool, UNWRITTEN] = False  # whether it is one over the chance to be drawn
    # the attributes that declared strata and clusters are the values of
    strata: Annotated[str, UNWRITTEN] = ""
    clusters: Annotated[str, UNWRITTEN] = ""
    # the items of whose error these tell nothing: not measured by them, or noise hides it
    without_design: Annotated[tuple[str, ...], UNWRITTEN] = ()
    # about what all weights add up to, by the spec and by the noisy answers; left out of the file
    # unless these are far apart
    total: Annotated[Count | None, UNWRITTEN] = None
    noisy_total: Annotated[float | None, UNWRITTEN] = None
    replicates: Annotated[ReplicateFacts | None, UNWRITTEN] = None

    @property
    def tells_sample(self) -> bool:
        """Whether what tells the error of the sample is measured too."""
        return self.design_effect is not None or self.replicates is not None

    @property
    def clause(self) -> str:
        """The same in a clause."""
        return f"records count by {one_line(self.column)}, as {in_full(self.at_most)} at most"

    @property
    def words(self) -> str:
        """The same in a sentence without its full stop, and what it leaves out."""
        counts = weight_words(one_line(self.column), self.at_most, self.step)
        words = f"{counts}. What is cut off is missing from every answer and interval"
        return words + f". {self.warning.capitalize()}" * bool(self.warning)

    @property
    def warning(self) -> str:
        """What is wrong where the noisy answers contradict the declared total; else nothing."""
        if self.total is None or self.noisy_total is None:
            return ""
        cut = "`at_most` cuts off much, which no interval or verdict takes in, or "
        sampling = ", and `sampling_std` is wrong" * self.tells_sample
        return (
            f"warning: weights add up to about {self.noisy_total:,.0f} by the noisy answers, and "
            f"`total` says {self.total:,}: {cut * (self.noisy_total < self.total)}`total` is not "
            f"what they add up to under the cap{sampling}"
        )


@dataclass(frozen=True)
class PrivacyFacts:
    """The privacy unit ("row", or "person" by a column of that name) and what neighbours are.

    `keep` is "random" where the rows that count of a person were chosen at random; None, and left
    out of the file, where they are the first, or the unit is a row. `weight` is left out where each
    record counts as 1.
    """

    unit: Literal["row", "person"]
    person: str | None
    max_rows: Count
    neighbours: Neighbours
    keep: Annotated[Literal["random"] | None, UNWRITTEN] = None
    weight: Annotated[WeightFacts | None, UNWRITTEN] = None

    @property
    def counted_words(self) -> str:
        """What answers are of, after a comma, where they are not of all records in full.

        >>> PrivacyFacts("person", "id", 3, "add-remove").counted_words
        ', of 3 rows a person at most'
        """
        rows = "" if self.person is None else f", of {count(self.max_rows, 'row')} a person at most"
        return rows + ", of weights as cut off" * (self.weight is not None)


@dataclass(frozen=True)
class GuaranteeFacts:
    """The privacy guarantee of a release.

    Attributes:
        mechanism: "discrete Laplace", "discrete Gaussian" or "rounded Gaussian" where one noise on
            fixed measurements is all there is; "relaxed adaptive projection" where measurements
            were chosen in rounds.
        kind: "pure" for epsilon-DP, "zcdp" for rho-zCDP, "gdp" for mu-GDP.
        epsilon: as asked for.
        delta: as asked for; 0 where the guarantee is pure.
        rho: of zCDP; None where the guarantee is of another kind.
        charged: the epsilon (pure), the rho (zcdp) or the squared mu (gdp) in exact decimals.
        cumulative: one sentence on what the dataset has spent up to this release.
        mu: of GDP; None, and left out, where the guarantee is of another kind.
    """

    mechanism: Annotated[str, Matching("|".join(MECHANISMS))]
    kind: Literal["pure", "zcdp", "gdp"]
    epsilon: FigureAboveZero
    delta: Annotated[float, Within(0, BELOW_ONE)]
    rho: FigureAboveZero | None
    charged: Annotated[str, Matching(r"[0-9]{1,30}(\.[0-9]{1,30})?")]
    cumulative: str
    mu: Annotated[FigureAboveZero | None, UNWRITTEN] = None

    @property
    def method(self) -> str:
        """The mechanism in words: what it is where it chooses, else its noise."""
        return self.mechanism + " noise" * (self.mechanism not in {RAP, ADAPTIVE})


@dataclass(frozen=True)
class SquaresFacts:
    """The noise on every measured sum beside those of weights."""

    scale: FigureAboveZero  # as of the weights
    shift: Annotated[int, Within(-WIDEST_SHIFT, WIDEST_SHIFT)]
    sensitivity: Annotated[str, Matching("[0-9]{1,1000}")]


@dataclass(frozen=True)
class NoiseFacts:
    """The noise on every measured row."""

    scale: FigureAboveZero  # in grid steps of 2^shift
    shift: Annotated[int, Within(-WIDEST_SHIFT, WIDEST_SHIFT)]  # of the grid
    # what it hides, in grid steps: D1, or D2 squared; where there were rounds, this and the scale
    # are those of the round with the most noise
    sensitivity: Annotated[str, Matching("[0-9]{1,1000}")]
    source: str = "OpenDP"  # what drew it; where that was not kept, there was OpenDP alone
    # of the same rows' sums of squared weights; left out of the file where they are not measured
    squares: Annotated[SquaresFacts | None, UNWRITTEN] = None
    # the same of the sums of differences of replicate weights
    replicates: Annotated[SquaresFacts | None, UNWRITTEN] = None


@dataclass(frozen=True)
class StrategyFacts:
    """The strategy and its errors, in counts at this release's guarantee."""

    name: str  # the strategy's
    kind: str  # its shape, by the plan's word for it
    # root mean square standard error of all answers; None where the errors depend on the data and
    # are not known
    rmse: FigureAboveZero | None
    max_std_error: FigureAboveZero | None  # largest standard error of any query; None likewise
    # no strategy has a smaller rmse, as the workload weighs its queries; None where no bound is
    # known
    lower_bound: FigureAboveZero | None
    bound_kind: str  # what proves the bound
    ratio: FigureAboveZero | None  # rmse, as the workload weighs its queries, over lower_bound
    sha256: Digest  # of the strategy as the plan holds it


@dataclass(frozen=True)
class CountedFacts:
    """What became of values that are not declared: the attributes by what they do with these."""

    count: tuple[str, ...]  # those under which such a record is in totals alone
    show: tuple[str, ...]  # those that show it as `other`
    drop: tuple[str, ...]  # those that leave the whole record out
    # most rows of a person that a table tells from more; left out of the file if 0
    rows: Annotated[int, Within(0, LARGEST_INTEGER), UNWRITTEN] = 0


@dataclass(frozen=True)
class LedgerFacts:
    """The event of the ledger that committed this release, and the parent charged too, if any."""

    seq: int
    head: Digest
    parent: Annotated[Identifier | None, UNWRITTEN] = None


@dataclass(frozen=True)
class EmptyFacts:
    """An item of which an extra column has no values for some tables, and why."""

    item: str
    reason: str


@dataclass(frozen=True)
class ColumnFacts:
    """An extra column of every item's file: what was made of the estimates."""

    name: str  # the column's
    asked: str  # as it was asked for: the name, with its option if it has one
    meaning: str  # what it holds, in words
    empty: tuple[EmptyFacts, ...]  # where it holds nothing
    # its root mean square error, where noisy values tell it, and the interval of that, of 95 %
    expected_rmse: Annotated[float | None, UNWRITTEN] = None
    expected_interval: Annotated[tuple[FigureFromZero, FigureFromZero] | None, UNWRITTEN] = None


@dataclass(frozen=True)
class AnsweredFacts:
    """What answers to later questions were computed from: the same plan and its noisy values."""

    release: Digest  # key of the release
    measurements: Digest  # digest of its noisy values
    charged: str = "0"  # the budget that the questions took: nothing
    # attributes some of whose values the questions distinguish, and the release does not: such
    # values were taken to be equally likely
    guessed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """The content of release.json.

    Attributes:
        schema_version: of this file.
        tool: version of dpquery.
        libraries: (name, version) of every library that had a part in making these files, and of
            Python. What drew the noise is in `noise.source`, and never changes; these are newer
            where a release is made again, from the ledger, with newer ones.
        dataset: the population of records.
        privacy: the unit that is protected, and what neighbours are.
        guarantee: of its privacy.
        noise: the noise on what was measured.
        strategy: what was measured.
        plan: sha256 of the plan file.
        key: names the measurement; two releases of one key hold the same noise.
        ledger: where it was charged.
        level: of the noise intervals.
        items: the files, in spec order.
        error_by_epsilon: (epsilon, rmse) of the same strategy and noise at other epsilons.
        postprocessing: what was made of the estimates, which are left as they came out.
        measurements: sha256 of the noisy values in measurements.parquet, as little-endian 64-bit
            integers, as the ledger has it; empty where the folder does not hold them.
        rap: the run of relaxed adaptive projection; None where others made the answers.
        adaptive: the run of adaptive measurement; left out of the file where there is none.
        extra: the columns that post-processing added, in file order.
        answered: of answers to questions asked later; None for a release.
        counted: what became of values that are not declared; None in releases from plans that an
            older dpquery made, which keep the bytes that they had.
        derived: statistics made of the noisy answers; left out of the file where there are none.
        facts: what became of public facts; left out of the file where the spec declares none.
        tables: edition of the tables, as the plan has it; left out of the file where it is 1. From
            3 on the file states the sha256 of its other content.
        nearer: about the errors of the best guess and of the estimates, by the noisy values; left
            out of the file unless the guess is far nearer and not among the columns.
    """

    schema_version: str
    tool: str
    libraries: tuple[tuple[str, str], ...]
    dataset: DatasetFacts
    privacy: PrivacyFacts
    guarantee: GuaranteeFacts
    noise: NoiseFacts
    strategy: StrategyFacts
    plan: Digest
    key: Digest
    ledger: LedgerFacts
    level: Annotated[float, Within(LEAST_FIGURE, BELOW_ONE)]
    items: tuple[ItemFacts, ...]
    error_by_epsilon: tuple[tuple[FigureAboveZero, FigureAboveZero], ...]
    postprocessing: str = "none"
    measurements: Annotated[str, Matching("[0-9a-z]{0,64}")] = ""
    rap: Annotated[RapFacts | None, UNWRITTEN] = None
    adaptive: Annotated[AdaptiveFacts | None, UNWRITTEN] = None
    extra: Annotated[tuple[ColumnFacts, ...], UNWRITTEN] = ()
    answered: Annotated[AnsweredFacts | None, UNWRITTEN] = None
    counted: Annotated[CountedFacts | None, UNWRITTEN] = None
    derived: Annotated[tuple[DerivedFacts, ...], UNWRITTEN] = ()
    facts: Annotated[tuple[PublicFactUse, ...], UNWRITTEN] = ()
    tables: Annotated[int, Within(1, 3), UNWRITTEN] = 1
    nearer: Annotated[tuple[FigureFromZero, FigureFromZero] | None, UNWRITTEN] = None

    @property
    def described(self) -> bool:
        """Whether the tables' columns have one type in all files and are described in them."""
        return self.tables >= 2

    @property
    def error_bars(self) -> bool:
        """Whether every answer has a standard error."""
        return self.fitted is None

    @property
    def tells_sample(self) -> bool:
        """Whether answers have the error of the sample beside that of the noise."""
        return self.privacy.weight is not None and self.privacy.weight.tells_sample

    @property
    def merged(self) -> bool:
        """Whether rows are added up until they are precise, by sizes that are public."""
        return any(item.kind == "merged" for item in self.derived)

    @property
    def publishes(self) -> bool:
        """Whether rules say what of the estimates is published."""
        rules = *(item.published for item in self.items), *(d.published for d in self.derived)
        return any(rules)

    @property
    def processing(self) -> str:
        """What was made of the estimates, the column `published` too."""
        beside = " of the estimates" * (self.postprocessing == "none")
        beside += "; `published` is made of them by the rules of publication"
        return self.postprocessing + beside * self.publishes

    @property
    def fitted(self) -> RapFacts | AdaptiveFacts | None:
        """The run whose relaxed rows the answers are read from; None where there are none."""
        return self.rap or self.adaptive

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files of the release, the manifest last."""
        items = tuple(file for item in self.items for file in item.files)
        items += tuple(file for item in self.derived for file in item.files)
        sources = (MEASUREMENTS_FILE, PLAN_FILE) if self.measurements else ()
        relaxed = () if self.error_bars or self.answered else (RELAXED_ROWS_FILE,)
        return (*items, *relaxed, *sources, ERRORS_FILE, STATEMENT_FILE, MANIFEST_FILE)


def manifest_of(
    spec: Spec,
    *,
    mechanism: CalibratedNoise,
    noise_source: str,
    strategy: StrategyFacts,
    plan: str,
    key: str,
    ledger: LedgerFacts,
    cumulative: str,
    level: float,
    error_by_epsilon: Sequence[tuple[float, float]] = (),
    measurements: str = "",
    rap: RapFacts | None = None,
    adaptive: AdaptiveFacts | None = None,
    labelled_tables: int | None = None,
    tables: int = 1,
) -> Manifest:
    """Return the manifest of a release.

    `cumulative` is what the dataset had spent at the event that committed the measurement: it must
    not change when the same release is made again later. Rows of items of more tables than
    `labelled_tables` are numbered; where it is None, of none. The other arguments are fields.
    """
    name = RAP if rap is not None else ADAPTIVE if adaptive is not None else ""
    return Manifest(
        schema_version=SCHEMA_VERSION,
        tool=__version__,
        libraries=versions(),
        dataset=DatasetFacts(spec.dataset.id, spec.dataset.version),
        privacy=_privacy_facts(spec),
        guarantee=_guarantee_facts(mechanism.guarantee, cumulative, name),
        noise=_noise_facts(mechanism, noise_source),
        strategy=strategy,
        plan=plan,
        key=key,
        ledger=ledger,
        level=level,
        items=item_facts(spec, labelled_tables=labelled_tables),
        error_by_epsilon=tuple((float(epsilon), float(rmse)) for epsilon, rmse in error_by_epsilon),
        measurements=measurements,
        rap=rap,
        adaptive=adaptive,
        counted=None if spec.first_edition else counted_facts(spec.domain),
        derived=derived_facts(spec),
        tables=tables,
    )


def _noise_facts(noise: CalibratedNoise, source: str) -> NoiseFacts:
    facts = NoiseFacts(noise.scale, noise.shift, str(noise.sensitivity), source)
    if (beside := noise.beside) is None:
        return facts
    of_beside = SquaresFacts(beside.scale, beside.shift, str(beside.sensitivity))
    if beside.copies > 1:
        return replace(facts, replicates=of_beside)
    return replace(facts, squares=of_beside)


def counted_facts(domain: Domain) -> CountedFacts:
    """Return the attributes by what they do with values that are not declared.

    A column of a merged attribute goes by both names.
    """
    names: dict[str, list[str]] = {"count": [], "show": [], "drop": []}
    for attribute in domain.in_data:
        for column in attribute.columns:
            merged = f"{attribute.name} ({column.name})"
            names[column.other].append(merged if attribute.merged else attribute.name)
    rows = sum(attribute.length - 1 for attribute in domain.attributes if not attribute.in_data)
    count, show, drop = (tuple(names[mode]) for mode in ("count", "show", "drop"))
    return CountedFacts(count, show, drop, rows)


def _privacy_facts(spec: Spec) -> PrivacyFacts:
    privacy = spec.privacy
    unit: Literal["row", "person"] = "row" if privacy.person is None else "person"
    keep = None if privacy.person is None or privacy.keep == "first" else privacy.keep
    given, weight = privacy.weight, None
    if given is not None:
        effect = None if given.design_effect is None else float(given.design_effect)
        numbers = (float(given.at_most), float(given.step), effect)
        places = (None, None) if given.drawn is None else (given.drawn.stratum, given.drawn.cluster)
        strata, clusters = (
            "" if place is None else spec.domain.attributes[place].name for place in places
        )
        weight = WeightFacts(given.name, *numbers, given.inclusion, strata, clusters)
        if (of := given.replicates) is not None:
            facts = ReplicateFacts(of.names, float(of.factor), float(of.at_most), of.degrees)
            weight = replace(weight, replicates=facts)
    return PrivacyFacts(unit, privacy.person, privacy.max_rows, privacy.neighbours, keep, weight)


def _guarantee_facts(guarantee: Guarantee, cumulative: str, name: str) -> GuaranteeFacts:
    return GuaranteeFacts(
        mechanism=name or guarantee.law.title,
        kind=guarantee.kind,
        epsilon=float(guarantee.epsilon),
        delta=float(guarantee.delta),
        rho=float(guarantee.amount) if guarantee.kind == "zcdp" else None,
        charged=units_text(math.ceil(guarantee.amount * UNIT)),
        cumulative=cumulative,
        mu=math.sqrt(guarantee.amount) if guarantee.kind == "gdp" else None,
    )


def manifest_text(manifest: Manifest) -> str:
    """Return the text of release.json: sorted keys, two spaces, a newline at the end."""
    content = {**mapping(as_json(manifest)), "libraries": dict(manifest.libraries)}
    content = json.loads(json.dumps(content, sort_keys=True, allow_nan=False))
    if manifest.tables >= 3:
        content["sha256"] = sha256_of(content)
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a release; SpecError if the directory holds none that can be read."""
    path = directory / MANIFEST_FILE
    try:
        raw = mapping(parsed(read_outside(path, most=MAX_JSON_BYTES)))
        version = raw["schema_version"]
        if version == SCHEMA_VERSION:
            facts = as_written(raw)
            libraries = sorted(mapping(facts["libraries"]).items())
            manifest = cast(Manifest, decode(Manifest, {**facts, "libraries": libraries}))
            _check_facts(manifest)
            return manifest
        version = text_of(version)[:40]
    except (FileNotFoundError, NotADirectoryError):
        # Unlike their methods, these take names that are too long for a file.
        near = None if os.path.lexists(directory) else near_in_folder(directory, folders=True)
        remedy = "run `dpquery release`, or name the folder that it wrote"
        remedy = remedy if near is None else f"did you mean {quoted(near)}?"
        if not os.path.lexists(directory):
            raise SpecError(f"there is no folder {directory}; {remedy}") from None
        if os.path.exists(directory / PLAN_FILE):
            raise SpecError(
                f"{path} is missing; put it back, or move the folder away and {RELEASE_AGAIN}"
            ) from None
        what = "a file and not" if os.path.isfile(directory) else "not"
        if os.path.exists(directory.parent / MANIFEST_FILE):
            remedy = f"name {directory.parent}"
        raise SpecError(
            f"{directory} is {what} a release folder: it has no {MANIFEST_FILE}; {remedy}"
        ) from None
    except ChangedError:
        raise SpecError(
            f"{path} was changed after it was written; put it back, or move the folder "
            f"away and {RELEASE_AGAIN}"
        ) from None
    except MisplacedError as wrong:
        raise SpecError(
            f"{path} is damaged: its {wrong.place} is none that a release states; move the folder "
            f"away and {RELEASE_AGAIN}"
        ) from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise SpecError(f"{path} is damaged; move the folder away and {RELEASE_AGAIN}") from None
    raise SpecError(
        f"{path} has format {version!r}, not {SCHEMA_VERSION!r}; "
        "read it with the version of dpquery that wrote it"
    )


@contextmanager
def saying_damage(directory: Path, name: str) -> Iterator[None]:
    """Turn what a damaged file of a folder raises into one error that says what to do."""
    try:
        yield
    except UNREADABLE:
        raise SpecError(
            f"{directory} is damaged: {name} is missing or not as it was written; {RELEASE_AGAIN}"
        ) from None


def _check_facts(manifest: Manifest) -> None:
    """Refuse facts that do not hang together as those of a release do."""
    for what, holds in _facts(manifest):
        if not holds:
            raise MisplacedError(what)


def _facts(manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """Yield facts that hang together, by name, and whether a release could have stated them."""
    privacy, guarantee = manifest.privacy, manifest.guarantee
    of_person = privacy.person is not None
    yield "privacy.unit", privacy.unit == ("person" if of_person else "row")
    yield "privacy.keep", privacy.keep is None or of_person
    yield "counted.rows", manifest.counted is None or not manifest.counted.rows or of_person
    stated = (guarantee.rho is not None, guarantee.mu is not None)
    yield "guarantee.kind", stated == (guarantee.kind == "zcdp", guarantee.kind == "gdp")
    files: list[ItemFacts | DerivedFacts] = [*manifest.items, *manifest.derived]
    names = {item.name for item in files}
    yield "items", len(names) == len(files) > len(manifest.derived)
    yield "items.file", all(item.file == f"{item.name}.parquet" for item in files)
    yield (
        "derived.merged",
        all(
            d.kind == "merged"
            or (d.merged, d.missed, d.published, d.own_sizes) == (None, None, None, False)
            for d in manifest.derived
        ),
    )
    rules = (item.published for item in files if item.published is not None)
    yield "items.published", all(map(_rules_are_believable, rules))
    yield "adaptive", manifest.rap is None or manifest.adaptive is None
    fitted = manifest.fitted
    yield "rap.noise_std", fitted is None or len(fitted.noise_std) > 0
    if (run := manifest.adaptive) is not None:
        yield "adaptive.rounds", len(run.rounds) == len(run.noise_std)
        yield "adaptive.one_way", run.one_way <= run.candidates
        yield "adaptive.unbiased", (run.unbiased > 0) == (run.unbiased_rmse is not None)


def _rules_are_believable(rules: PublicationRules) -> bool:
    return (
        rules != PublicationRules()
        and (rules.rel_error is None or rules.rel_error > 0)
        and (rules.round_to is None or rules.round_to >= 1)
    )


def refuse_second_ledger(ledger: Path, spec: Spec, *, release: Path) -> None:
    """Refuse to make a ledger where a release of the dataset shows that there was another one.

    Raises:
        LedgerError: there is no ledger, and the folder holds a release of the dataset.
    """
    if os.path.lexists(ledger):
        return
    try:
        released = read_manifest(release).dataset.id
    except SpecError:
        return
    if released == spec.dataset.id:
        raise LedgerError(
            f"{release}/ holds a release of {released!r}, and there is no ledger at {ledger}: "
            "a new one would not count it. Restore the ledger that was charged, or name it with "
            "--ledger or DPQUERY_LEDGER; if these are other people, add --new-dataset"
        )
