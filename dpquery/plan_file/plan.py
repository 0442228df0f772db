"""The file dpquery.plan: the spec, the candidates and the chosen integer strategies, as JSON.

A plan is input from outside when it is read: every number in it is checked against the spec that it
contains, and the sensitivity is never read from it but computed anew.

What is read may be hostile. It can make a release fail before the charge, never make it false: the
sensitivity is computed from the integers themselves, and a strategy that is singular or does not
answer its workload is refused here. Encoding and decoding of each shape stand with the shape.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import yaml

from dpquery.exceptions import SpecError
from dpquery.limits import (
    LARGEST_INTEGER,
    MAX_JSON_BYTES,
    MAX_LABELLED_TABLES,
    MAX_MATRICES_BYTES,
    MAX_MATRIX_BYTES,
    MAX_SPEC_BYTES,
)
from dpquery.operators.blocks import Workload
from dpquery.plan_file.rehearsals import (
    PlannedAdaptive,
    PlannedClosest,
    PlannedFit,
    PlannedRap,
    RapSettings,
)
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Accounting, Spec
from dpquery.strategy.shapes.cells import CellClassesStrategy, OrbitsStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import CoarserStrategy, UnionStrategy
from dpquery.strategy.strategy import (
    Figure,
    Noise,
    Objective,
    RecordChange,
    Strategy,
    check_strategy_size,
)
from dpquery.untrusted.files import OURS, read_outside, seems_to_be
from dpquery.untrusted.json_values import (
    UNWRITTEN,
    ChangedError,
    Count,
    Json,
    JsonValue,
    NotNegative,
    Positive,
    Within,
    as_json,
    as_written,
    integer,
    list_of,
    mapping,
    parsed,
    record,
    sha256_of,
    text_of,
)

FORMATS = {"dpquery.plan/1": 1, "dpquery.plan/2": 2, "dpquery.plan/3": 3}
"""The formats that are read, and their editions: what an older plan means never changes.

The spec text of the first drops records where it does not say `other`. Releases by the first two
take the noise that errs less at an equal epsilon, and their statements have exact budgets.
"""
FORMAT = "dpquery.plan/3"
TABLES_EDITION = 3
"""Of the files of a release from a new plan. From 2 on a column has one type in all tables, their
metadata describe the columns, and bins have `_below` in place of `_to`; from 3 on release.json
states the hash of its content."""
NO_LONGER_READ = (
    "the plan was made with a strategy that is no longer read (a quad-tree or a wavelet); dpquery "
    "0.1 makes its release again free, and a release of a new plan is charged"
)
PLAN_MARK = b'"format": "dpquery.plan/'
"""What stands in the second line of every plan."""


@dataclass(frozen=True)
class Target:
    """A figure of one item to keep at or below a number: "sd" is the largest standard error.

    It is in counts, or in the unit of a derived item.
    """

    item: str
    figure: Figure
    at_most: Positive


@dataclass(frozen=True)
class CandidateFigures:
    """One line of the comparison, for unit noise at sensitivity one; None where not applicable.

    `score` is what was minimised: the weighted RMSE, the largest standard error, or the largest
    ratio of a figure to its target.
    """

    name: str
    rmse: NotNegative | None
    weighted_rmse: NotNegative | None
    max_std_error: NotNegative | None
    score: NotNegative | None
    converged: bool
    reason: str
    stopped: bool


@dataclass(frozen=True)
class ItemFigures:
    """Expected error of one workload item under the chosen strategy, at unit noise."""

    name: str
    queries: Count
    rmse: NotNegative
    max_std_error: NotNegative

    def times(self, std: float) -> "ItemFigures":
        """Return the errors where the unit noise has another standard deviation than 1."""
        return replace(self, rmse=std * self.rmse, max_std_error=std * self.max_std_error)


@dataclass(frozen=True, eq=False)
class PlannedSelection:
    """The outcome for one kind of noise; `strategy` is kept encoded until the spec is compiled.

    No strategy has a weighted RMSE below `bound`, nor a score below `bound_score`. `tried` is
    the largest ratio of a figure to its target where some are on derived items, whose errors are
    tried: in the search, and in its scores, limits on the items that they are made of stand for
    them. Figures and noise are for one record that changes as `record_change` says. Plans that do
    not say it, as all once did, take a replaced record for two: one leaves and one enters.
    """

    noise: Noise
    best: str
    bound: Positive | None
    bound_kind: str
    bound_score: Positive | None
    bound_score_kind: str
    candidates: tuple[CandidateFigures, ...]
    items: tuple[ItemFigures, ...]
    strategy: Json
    record_change: Annotated[RecordChange, UNWRITTEN] = "enters"
    tried: Annotated[Positive | None, UNWRITTEN] = None
    # where it was planned just now
    found: Annotated[Strategy | None, UNWRITTEN] = field(default=None, repr=False)

    def decoded(self, workload: Workload) -> Strategy:
        """Return the strategy; see `decode_strategy`."""
        if self.found is not None:
            return self.found
        return decode_strategy(self.strategy, noise=self.noise, workload=workload)

    @property
    def figures(self) -> CandidateFigures:
        """Figures of the chosen candidate."""
        return {figures.name: figures for figures in self.candidates}[self.best]

    @property
    def score(self) -> float | None:
        """The score of the chosen candidate, by trials where targets on derived items need some."""
        return self.figures.score if self.tried is None else self.tried


@dataclass(frozen=True, eq=False)
class Plan:
    """All that release needs beside the data: the spec whole and a strategy for each noise.

    `relaxed` is RAP as it was rehearsed, and `adaptive` is adaptive measurement, in plans that
    compare them; they are left out of the file of others, which are read as before.
    `accounting` is what losses are added up as, where the spec
    leaves that open; plans of before add up rho, and do not say so. Rows of items of more than
    `labelled_tables` tables are numbered in a release, and not labelled; plans of before, and those
    without such an item, do not say it. `tables` is the edition of the tables of its releases: 1 in
    plans of before, which do not say it. `closest` is the rehearsal of answers that may be biased,
    where the spec prefers those. `edition` is that of the file's format.
    """

    tool: str
    spec_name: str
    spec_text: str
    spec_files: Mapping[str, str]
    objective: Objective
    targets: tuple[Target, ...]
    seed: Annotated[int, Within(0, LARGEST_INTEGER)]
    selections: tuple[PlannedSelection, ...]
    relaxed: PlannedRap | None = None
    digest: str = ""
    accounting: Accounting | None = None
    edition: int = FORMATS[FORMAT]
    labelled_tables: Count | None = None
    tables: Annotated[int, Within(1, TABLES_EDITION)] = 1
    closest: PlannedClosest | None = None
    adaptive: PlannedAdaptive | None = None

    @property
    def first_edition(self) -> bool:
        """Whether its spec is read as the first plans had it."""
        return self.edition == 1

    @property
    def exact_words(self) -> bool:
        """Whether statements of its releases put what is spent in exact numbers."""
        return self.edition < 3

    @property
    def equal_shares(self) -> bool:
        """Whether kinds of noise are compared at an equal share of the budget."""
        return self.edition >= 3

    @property
    def fits(self) -> tuple[PlannedFit, ...]:
        """Mechanisms without error bars that were rehearsed."""
        return tuple(each for each in (self.relaxed, self.adaptive) if each is not None)

    def with_fit(self, planned: PlannedFit) -> "Plan":
        """Return the plan with another rehearsal of RAP, or of adaptive measurement."""
        if isinstance(planned, PlannedRap):
            return replace(self, relaxed=planned)
        return replace(self, adaptive=planned)

    @property
    def preferred(self) -> PlannedFit | None:
        """The mechanism without error bars that a release takes; None where it is linear."""
        return next((each for each in self.fits if each.preferred), None)


def write_plan(plan: Plan) -> bytes:
    """Return the bytes of a plan file: the same plan gives the same bytes."""
    content: dict[str, object] = {
        "format": FORMAT,
        "tool": plan.tool,
        "spec": {
            "name": plan.spec_name,
            "text": plan.spec_text,
            "files": dict(sorted(plan.spec_files.items())),
        },
        "objective": plan.objective,
        "targets": as_json(plan.targets),
        "seed": plan.seed,
        "selections": [as_json(replace(selection, found=None)) for selection in plan.selections],
    }
    usual = {field.name: field.default for field in fields(Plan)}
    for name in ("accounting", "labelled_tables", "tables", "relaxed", "adaptive", "closest"):
        if (value := getattr(plan, name)) != usual[name]:
            content[name] = as_json(value)
    if plan.relaxed is not None:  # whose settings stand first
        content["relaxed"] = {"settings": None, **mapping(as_json(plan.relaxed))}
    content["sha256"] = sha256_of(content)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def read_plan(content: bytes, *, name: str = "this") -> Plan:
    """Parse the bytes of a plan file; SpecError if they are not one, with the name.

    A plan that was changed by hand is refused by its hash: some of its figures, such as the lower
    bound, take too long to work out again. All that the guarantee stands on is checked apart from
    the hash.
    """
    try:
        raw = mapping(parsed(content))
        if raw["format"] not in FORMATS:
            given = text_of(raw["format"])[:40]
            raise SpecError(f"the plan has format {given!r}, not {FORMAT!r}; plan again")
        return _parse(as_written(raw), hashlib.sha256(content).hexdigest())
    except ChangedError:
        raise SpecError(
            f"{name} was changed after `dpquery plan` wrote it; put the file back as it was, "
            f"or plan again with `dpquery plan SPEC --out {name}`"
        ) from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        seems = seems_to_be(content, name)
        what = "is damaged, or another file of dpquery"
        if seems != OURS:
            what = f"is not a plan file, or it is damaged: it seems to be {seems}"
        raise SpecError(
            f"{name} {what}; name the file that `dpquery plan` wrote, or plan again"
        ) from None


def _parse(raw: Json, digest: str) -> Plan:
    spec = mapping(raw["spec"])
    given: dict[str, object] = {
        **raw,
        **{f"spec_{part}": spec[part] for part in ("name", "text", "files")},
        "targets": tuple(record(Target, target) for target in list_of(raw["targets"])),
        "selections": tuple(map(_parse_selection, list_of(raw["selections"], 1))),
        "digest": digest,
        "edition": FORMATS[text_of(raw["format"])],
    }
    if "relaxed" in raw:  # plans were once compared without a margin
        relaxed = mapping(raw["relaxed"])
        settings = record(RapSettings, relaxed["settings"])
        given["relaxed"] = record(PlannedRap, {"margin": 1, **relaxed, "settings": settings})
    if "adaptive" in raw:
        given["adaptive"] = record(PlannedAdaptive, raw["adaptive"])
    if "closest" in raw:
        given["closest"] = record(PlannedClosest, raw["closest"])
    plan = record(Plan, given)
    if sum(each.preferred for each in plan.fits) > 1:
        raise ValueError("preferred")
    return plan


def _parse_selection(raw: JsonValue) -> PlannedSelection:
    given = mapping(raw)
    candidates = (record(CandidateFigures, line) for line in list_of(given["candidates"]))
    items = (record(ItemFigures, item) for item in list_of(given["items"]))
    both = {"candidates": tuple(candidates), "items": tuple(items)}
    selection = record(PlannedSelection, {**given, **both})
    best = selection.figures
    if None in (best.rmse, best.weighted_rmse, best.max_std_error, best.score):
        raise ValueError("best")
    return selection


def most_labelled(spec: Spec) -> int | None:
    """Return the number of tables above which a new plan has rows numbered; None if none has."""
    most = max(len(item.tables) for item in spec.items)
    return MAX_LABELLED_TABLES if most > MAX_LABELLED_TABLES else None


def read_plan_file(path: Path) -> bytes:
    """Return the bytes of a plan file; OSError, with the reason, if it cannot be read."""
    return read_outside(path, most=MAX_JSON_BYTES)


def plan_and_spec(content: bytes, path: Path) -> tuple[Plan, Spec]:
    """Return the plan in the bytes of a file, and its spec, whose losses are counted as planned.

    Raises:
        SpecError: it is not a plan, or its spec has mistakes; `path` is what messages call it.
    """
    plan = read_plan(content, name=str(path))
    name = f"{path}, {plan.spec_name}"
    spec = parse(plan.spec_text, name=name, files=plan.spec_files, first_edition=plan.first_edition)
    fixed = spec.accounting
    if fixed is not None and plan.accounting is not None:
        raise SpecError(f"{path} counts losses in two ways: it was changed by hand; plan again")
    accounting = fixed or plan.accounting
    return plan, spec if accounting is None else spec.counted_in(accounting)


SHAPES: dict[str, type[Strategy]] = {
    shape.kind: shape
    for shape in (
        ProductStrategy,
        MarginalsStrategy,
        ResidualStrategy,
        UnionStrategy,
        DirectStrategy,
        CellClassesStrategy,
        CoarserStrategy,
        OrbitsStrategy,
    )
}


def decode_strategy(encoded: Json, *, noise: Noise, workload: Workload) -> Strategy:
    """Return the strategy that JSON values of `Strategy.encode`, or hostile ones, describe.

    Raises:
        SpecError: it is damaged, too large, or does not answer the workload.
    """
    try:
        _check_packed(encoded)
        shape = SHAPES[text_of(encoded["shape"])]
        strategy = shape.decode(encoded, text_of(encoded["name"]), noise, workload)
        check_strategy_size(strategy)
        _check_served(strategy, workload)
    except (LookupError, TypeError, ValueError, ArithmeticError, MemoryError, RecursionError):
        raise SpecError(
            "the plan's strategy is damaged or does not fit its spec; run `dpquery plan` again"
        ) from None
    return strategy


def _check_served(strategy: Strategy, workload: Workload) -> None:
    """Refuse what does not answer its workload: a release would notice only after the charge."""
    if not strategy.serves(workload):
        raise ValueError("unsupported")


def _check_packed(encoded: Json) -> None:
    """Refuse matrices over MAX_MATRICES_BYTES in all, or one over MAX_MATRIX_BYTES."""
    remaining: list[JsonValue | Json] = [encoded]
    total = 0
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict) and "data" in value:
            rows, columns = (integer(size, 0) for size in list_of(value["shape"]))
            total += 8 * rows * columns
            if 8 * rows * columns > MAX_MATRIX_BYTES or total > MAX_MATRICES_BYTES:
                raise ValueError("size")
        elif isinstance(value, dict | list):
            named = value if isinstance(value, dict) else {}
            if named.get("shape") == "quad-tree" or named.get("kind") == "haar":
                raise SpecError(NO_LONGER_READ)
            remaining += value.values() if isinstance(value, dict) else value


@dataclass(frozen=True)
class ChangedFile:
    """A file of the spec that is another one now."""

    name: str  # of the spec, or of a list of values or hierarchy that it names
    in_content: bool  # whether it says something else: more than comments and layout have changed


def changed_since(plan: Plan, path: Path) -> ChangedFile | None:
    """Return the planned file that has changed most, beside the plan; None if none has.

    A spec that lies elsewhere than the plan is not looked for.
    """
    changed = []
    for name, planned in {plan.spec_name: plan.spec_text, **plan.spec_files}.items():
        if name != Path(name).name:
            continue
        try:
            content = read_outside(path.parent / name, most=MAX_SPEC_BYTES)
        except OSError:
            continue
        if (now := content.decode("utf-8-sig", "replace")) != planned:
            in_content = name != plan.spec_name or not _same_yaml(planned, now)
            changed.append(ChangedFile(name, in_content))
    return max(changed, key=lambda file: file.in_content, default=None)


def _same_yaml(first: str, second: str) -> bool:
    """Return whether two texts differ in comments and layout alone."""
    try:
        return all(one == other for one, other in zip_longest(_words(first), _words(second)))
    except yaml.YAMLError:
        return False


def _words(text: str) -> Iterator[tuple[object, ...]]:
    """Yield what a text says, in order; aliases by name, so that none is written out."""
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        said = (getattr(event, name, None) for name in ("anchor", "tag", "value"))
        yield type(event), *said


def planned_before(spec_name: str, out: Path) -> str:
    """Return the dataset of the plan that will be replaced, if it is of the same spec; or nothing.

    It need be no plan that can still be read.
    """
    try:
        plan, spec = plan_and_spec(read_plan_file(out), out)
    except (OSError, SpecError):
        return ""
    return spec.dataset.id if plan.spec_name == spec_name else ""
