"""Cases that are planned by the product, and what their noise should be.

Two cells matter only through the columns of each attribute: their norms and their overlap in every
block. Pairs of codes that agree in all of these are tried once.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfcx, expit, log_ndtr, ndtr, ndtri

from dpquery.arrays import Numbers
from dpquery.audit.cases import CASES, Case, Record, Size, counted, records_for
from dpquery.audit.dense_strategy import Cell, DenseRows, DenseStrategy, classes_of, dense_strategy
from dpquery.audit.statistics import NoiseDistribution
from dpquery.commands import plan as plan_command
from dpquery.exceptions import SpecError
from dpquery.plan_file.plan import plan_and_spec
from dpquery.spec.spec import Accounting, Spec

_TRIED = 1 << 22  # combinations of pairs of codes, times blocks
_CODES = 256  # of an attribute, unless two different codes always look the same
CodePair = tuple[int, int]


def furthest_move(strategy: DenseStrategy, power: int) -> tuple[int, tuple[Cell, Cell]]:
    """Return the largest distance of two columns, to the power, and two cells that have it.

    Where there are too many pairs it is the sum of every block's own largest distance, and the
    cells are two of the domain's corners.
    """
    class_of = strategy.rows[0].class_of
    if class_of is not None:
        some_cells = {place: cell for cell, place in class_of.items()}
        rows_of_classes = tuple(replace(rows, class_of=None) for rows in strategy.rows)
        over_classes = replace(strategy, shape=(len(some_cells),), rows=rows_of_classes)
        longest, (first, second) = furthest_move(over_classes, power)
        return longest, (some_cells[first], some_cells[second])
    shared = [_overlaps(rows, power) for rows in strategy.rows]
    pairs: list[list[CodePair]] = []
    number = len(strategy.rows)
    for i, n in enumerate(strategy.shape):
        tables = [of_block[i] for of_block in shared if i in of_block]
        kinds: dict[tuple[tuple[int, int, int], ...], CodePair] = {}
        for a, b in product(range(n), repeat=2):
            kinds.setdefault(
                tuple((int(T[a, a]), int(T[b, b]), int(T[a, b])) for T in tables), (a, b)
            )
        if n > _CODES and len(kinds) > 2:
            number = _TRIED + 1
        pairs.append(list(kinds.values()))
        number *= len(kinds)
    if number > _TRIED:
        corners = tuple(0 for _ in strategy.shape), tuple(n - 1 for n in strategy.shape)
        alone = zip(strategy.rows, shared, strict=True)
        return sum(_bound(rows, tables, power) for rows, tables in alone), corners
    best, cells = -1, ((0,) * len(pairs), (0,) * len(pairs))
    for codes in product(*pairs):
        length = sum(
            _distance(rows, tables, codes, power)
            for rows, tables in zip(strategy.rows, shared, strict=True)
        )
        if length > best:
            best = length
            cells = tuple(a for a, _ in codes), tuple(b for _, b in codes)
    return best, cells


def _overlaps(rows: DenseRows, power: int) -> dict[int, Numbers]:
    """Return for each attribute the overlaps of its columns; a column's with itself is its norm."""
    tables = {}
    for i, M in zip(rows.attributes, rows.matrices, strict=True):
        if power == 2:
            tables[i] = M.T.dot(M)
        else:
            alike = (
                np.where(column * M.T > 0, np.minimum(abs(column), abs(M.T)), 0) for column in M.T
            )
            tables[i] = np.array([each.sum(axis=1) for each in alike], dtype=object)
    return tables


def _distance(
    rows: DenseRows, tables: dict[int, Numbers], codes: Sequence[CodePair], power: int
) -> int:
    if rows.at_least is not None:
        columns = [rows.column(tuple(pair[side] for pair in codes)) for side in (0, 1)]
        return int((abs(columns[0] - columns[1]) ** power).sum())
    first, second, both = (
        math.prod(int(T[codes[i][x], codes[i][y]]) for i, T in tables.items())
        for x, y in ((0, 0), (1, 1), (0, 1))
    )
    return int(rows.weight**power * (first + second - 2 * both))


def _bound(rows: DenseRows, tables: dict[int, Numbers], power: int) -> int:
    """Return the largest distance in one block, from its largest norm and least overlap."""
    norm = math.prod(int(T.diagonal().max()) for T in tables.values())
    if rows.at_least is not None:
        cells = product(*(range(len(T)) for T in tables.values()))
        named = (dict(zip(tables, cell, strict=True)) for cell in cells)
        every = (tuple(codes.get(i, 0) for i in range(max(tables) + 1)) for codes in named)
        return 2 * max(rows.column_norm(cell, power) for cell in every)
    wide = [T for T in tables.values() if len(T) > 1]
    if not wide:
        return 0
    if len(wide) == 1:
        (T,) = wide
        farthest = int((T.diagonal()[:, None] + T.diagonal() - 2 * T).max())
        return int(rows.weight**power * farthest * norm // int(T.diagonal().max()))
    ends = [1]
    for T in tables.values():
        ends = [end * int(side) for end in ends for side in (T.min(), T.max())]
    return int(rows.weight**power * 2 * (norm - min(ends)))


_FAR = 1e4  # deltas below exp(-_FAR) are as good as 0
_SPAN = 18.0  # mu lies within exp(+-_SPAN) for epsilon from 1e-6 to 1e6, and delta from 1e-100


@dataclass(frozen=True, eq=False)
class ExpectedNoise:
    """The noise that a guarantee takes."""

    amount: Fraction  # the epsilon of pure DP, the rho of zCDP, or the squared mu of GDP
    sensitivity: int  # in steps of the grid: D1 for Laplace noise, D2^2 for Gaussian noise
    law: NoiseDistribution  # of the noise
    # the cell whose records move the answers furthest where they leave it; or two cells, from one
    # of which they move to the other
    worst: tuple[Cell, ...]


def expected_noise(
    strategy: DenseStrategy,
    spec: Spec,
    *,
    epsilon: Fraction,
    delta: Fraction,
    accounting: Accounting,
    pairs: bool,
    share: Fraction = Fraction(1),
    steps: int = 1,
) -> ExpectedNoise:
    """Return the noise that (epsilon, delta) takes for a strategy and a protected unit.

    It takes a share of that, and a record adds up to so many steps. Gaussian noise is rounded
    continuous noise where losses are added up as GDP, else discrete.
    """
    power, privacy = 1 if strategy.noise == "laplace" else 2, spec.privacy
    norms = {
        cell: sum(rows.column_norm(cell, power) for rows in strategy.rows)
        for cell in strategy.cells
    }
    worst = max(norms, key=lambda cell: norms[cell])
    largest, records, moved = norms[worst], privacy.max_rows, 1
    pair: tuple[Cell, ...] = (worst,)
    if privacy.neighbours == "replace":
        distance, pair = furthest_move(strategy, power)
        columns = [column for attribute in spec.domain.attributes for column in attribute.columns]
        outside = privacy.person is not None or any(column.other == "drop" for column in columns)
        outside = outside or privacy.weight is not None  # which may be 0
        if not pairs:
            records *= 2
        elif distance and not (outside and largest > distance):
            largest, moved = distance, 2
        elif outside:
            pair, moved = (worst,), 2
        else:
            moved = 2
    largest *= steps**power
    sensitivity = _on_grid(strategy, largest, power, columns=moved) * records**power
    if power == 1:
        epsilon *= share
        law = NoiseDistribution("laplace", Fraction(sensitivity) / epsilon)
        return ExpectedNoise(epsilon, sensitivity, law, pair)
    if accounting == "gdp":
        mu = mu_of(float(epsilon), float(delta)) * math.sqrt(share)
        law = NoiseDistribution("rounded", Fraction(math.sqrt(sensitivity) / mu))
        return ExpectedNoise(Fraction(mu) ** 2, sensitivity, law, pair)
    rho = rho_of(float(epsilon), float(delta)) * float(share)
    scale = Fraction(math.sqrt(sensitivity / (2 * rho)))
    return ExpectedNoise(Fraction(rho), sensitivity, NoiseDistribution("gaussian", scale), pair)


def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest rho for which rho-zCDP implies (epsilon, delta)-DP, by [CKS20] Prop. 12.

    It is the largest over alpha > 1 of the rho with which
        epsilon = alpha rho + ln(1 / (alpha delta)) / (alpha - 1) + ln(1 - 1 / alpha).
    """

    def less_rho(log_order: float) -> float:
        a = math.exp(log_order)  # alpha - 1
        rest = -(math.log1p(a) + math.log(delta)) / a - math.log1p(1 / a)
        return -(epsilon - rest) / (1 + a)

    grid = np.linspace(-16, 32, 900)  # for epsilon from 1e-6 to 1e6, and delta from 1e-100
    near = float(grid[int(np.argmin([less_rho(float(log_order)) for log_order in grid]))])
    optimum = minimize_scalar(less_rho, bounds=(near - 0.1, near + 0.1), method="bounded",
                            options={"xatol": 1e-10})  # fmt: skip
    return -float(optimum.fun)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the mu at which Gaussian noise is (epsilon, delta)-DP and no better [BW18].

    With u = epsilon / mu - mu / 2 and v = u + mu, and M the ratio of Mills,
        delta = Phi(-u) - exp(epsilon) Phi(-v) = phi(u) (M(u) - M(v)).
    """

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        u = epsilon / mu - mu / 2
        if u < 0:
            reached = math.log(ndtr(-u) - math.exp(epsilon + float(log_ndtr(-u - mu))))
        elif u > _FAR:
            reached = -math.inf
        else:
            ratios = erfcx(u / math.sqrt(2)) - erfcx((u + mu) / math.sqrt(2))
            reached = math.log(ratios / 2) - u**2 / 2
        return max(reached, -_FAR) - math.log(delta)

    return math.exp(brentq(excess, -_SPAN, _SPAN, xtol=1e-15, rtol=1e-15))


def pure_squared_mu(epsilon: float) -> float:
    """Return the squared mu of GDP that epsilon-DP implies: two laws as far apart as it allows."""
    return (2 * float(ndtri(expit(-epsilon)))) ** 2


def _on_grid(strategy: DenseStrategy, exact: int, power: int, *, columns: int) -> int:
    """Return the sensitivity where answers are floored to steps of 2^shift.

    Each nonzero entry of one column, or of two, can then move its row by one step more.
    """
    shift = strategy.shift
    if not shift:
        return exact
    rows = strategy.rows
    support = sum(max(block.column_norm(cell, 0) for cell in strategy.cells) for block in rows)
    if columns > 1:
        support = min(columns * support, strategy.length)
    if power == 1:
        return -(-exact // (1 << shift)) + support
    length = -(-(math.isqrt(exact - 1) + 1) // (1 << shift))
    return (length + math.isqrt(support) + 1) ** 2


@dataclass(frozen=True, eq=False)
class PlannedPart:
    """A case and its plan, and one part of what is measured.

    Beside counts or weights there may be another part: squared weights, or all differences of
    replicates.
    """

    case: Case  # its spec and how it is released
    spec: Spec
    plan: bytes  # the plan file's bytes
    name: str  # of the strategy that was chosen
    strategy: DenseStrategy  # the chosen one, dense
    noise: ExpectedNoise  # that it must have at the case's epsilon
    beside: str = ""  # what a manifest calls it; empty for counts and weights
    first: int = 0  # what of a record is added up, see `steps_added`; and of how many the sums are
    copies: int = 1

    @property
    def subject(self) -> str:
        """The case, strategy, noise and number of rows in a few words."""
        return (
            f"{self.case.name}: {self.name}, {self.noise.law.noise}, {self.strategy.length:,} rows"
        )

    @property
    def records(self) -> list[Record]:
        """The made-up records."""
        return records_for(self.spec)

    def cells(self, records: list[Record]) -> list[Counter[Cell]]:
        """Return the counts of records by cells of classes, of those that the spec counts."""
        copies = []
        for part in range(self.first, self.first + self.copies):
            copies.append(Counter[Cell]())
            for codes, count in counted(records, self.spec, part).items():
                pairs = zip(self.strategy.classes, codes, strict=True)
                copies[-1][tuple(classes[code] for classes, code in pairs)] += count
        return copies

    def answers(self, records: list[Record]) -> Numbers:
        """Return the exact answers in steps of the grid: (rows,) Python integers."""
        return np.concatenate([self.strategy.answers(each) for each in self.cells(records)])


def cases(size: Size) -> Iterator[Case]:
    """Yield the cases of an audit of some size."""
    return iter(size.user_cases or [case for case in CASES if case.quick or not size.quick])


@lru_cache(maxsize=2 * len(CASES))
def planned_case(case: Case, size: Size) -> tuple[PlannedPart, ...]:
    """Return the parts of a case with its plan, planned once for every run of the audit."""
    content = case.plan
    if content is None:
        with private_folder() as folder:
            content = planned_in(folder, case.spec)
    _, spec = plan_and_spec(content, Path("dpquery.plan"))
    raw = json.loads(content)
    (selection,) = (each for each in raw["selections"] if each["noise"] == case.noise)
    name, pairs = selection["best"], "record_change" in selection
    strategy, weight = dense_strategy(spec, raw, case.noise), spec.privacy.weight
    part = partial(PlannedPart, case, spec, content)
    noise_of = partial(
        expected_noise,
        spec=spec,
        epsilon=case.epsilon,
        delta=spec.privacy.delta,
        accounting=spec.budget.counted,
    )
    steps = 1 if weight is None else int(weight.at_most / weight.step)
    if weight is None or (weight.design_effect is None and weight.replicates is None):
        return (part(name, strategy, noise_of(strategy, pairs=pairs, steps=steps)),)
    tenth = Fraction(1, 10)
    noise = noise_of(strategy, pairs=pairs, steps=steps, share=1 - tenth)
    weights = part(name, strategy, noise)
    if weight.replicates is not None:
        most, copies = int(weight.replicates.at_most / weight.step), len(weight.replicates.columns)
        together = noise_of(strategy, pairs=False, steps=most, share=tenth)
        name += " of replicates"
        return weights, part(name, strategy, together, "replicates", 1, copies)
    coarse = replace(strategy, coarser=steps.bit_length())
    squared = noise_of(coarse, pairs=pairs, steps=steps**2, share=tenth)
    return weights, part(name + " of squared weights", coarse, squared, "squares", 1)


def planned_in(folder: Path, spec: str) -> bytes:
    """Write a spec into a folder, and plan it there by a linear strategy."""
    (folder / "workload.yaml").write_text(spec, encoding="utf-8")
    plan_command.plan(
        folder / "workload.yaml",
        plan_path=folder / "dpquery.plan",
        ledger_path=folder / "state" / "ledger.db",
        mechanism="linear",
        time_limit=math.inf,
    )
    return (folder / "dpquery.plan").read_bytes()


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a folder that nobody else can read, and remove it."""
    with TemporaryDirectory(prefix="dpquery-audit-") as folder:
        yield Path(folder)


MOST_REPLACED = 512  # classes of an attribute: pairs of them are compared in Python integers
MOST_CELLS = 100_000  # of the domain: all columns of a strategy are looked at one by one


def cases_of(path: Path, *, epsilon: Fraction) -> tuple[Case, ...]:
    """Return a case for each kind of noise that a plan has a strategy for.

    Raises:
        SpecError: it is no plan, or has more cells than can be looked at one by one.
    """
    try:
        content = path.read_bytes()
    except OSError:
        raise SpecError(f"{path} cannot be read; name a plan that `dpquery plan` wrote") from None
    plan, spec = plan_and_spec(content, path)
    sizes = [max(classes) + 1 for classes in classes_of(spec)]
    if spec.privacy.neighbours == "replace" and max(sizes) > MOST_REPLACED:
        raise SpecError(
            f"{path} has an attribute of {max(sizes):,} classes, and where records are replaced "
            f"the audit compares up to {MOST_REPLACED} in pairs; run `dpquery audit` without "
            "--plan, which tests strategies of the same families"
        )
    cells = math.prod(sizes)
    if cells > MOST_CELLS:
        raise SpecError(
            f"{path} has {cells:,} cells, and the audit looks at up to {MOST_CELLS:,} one by one; "
            "run `dpquery audit` without --plan, which tests strategies of the same families"
        )
    return tuple(
        Case(path.name, plan.spec_text, selection.noise, epsilon, repeated=True, plan=content)
        for selection in plan.selections
    )
