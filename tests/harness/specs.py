"""Specs: one to build on, random ones, and plans of them that hold any strategy."""

import json
import math
from pathlib import Path

import numpy as np

from dpquery.operators.cells import cell_classes
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity, PIdentity, total
from dpquery.plan_file.plan import decode_strategy
from dpquery.spec.parsing.read import parse
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.subsets import subsets_of
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.shapes.cells import CellClassesStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore

# The small spec that the tests of the spec room vary.

BASE = """\
dataset: {id: survey, version: 1}
privacy: {unit: row, neighbours: add-remove, delta: 1e-9}
budget: {epsilon: 4, delta: 1e-9}
other: drop
domain:
  age: {range: [0, 9]}
  sex: {values: [Male, Female]}
  state: {values: {1: Alabama, 2: Alaska, 4: Arizona}, other: show}
  income: {bins: [0, 10000, 20000, 50000]}
  hispanic: boolean
  race: {merge: {white: boolean, black: boolean, asian: {values: [A, B, C]}}}
workload:
  - name: first
    product: {age: prefix, sex: identity}
"""


def read(text: str, files: dict[str, str] | None = None) -> Spec:
    """Return the spec that a text is, with the lists of values that it names."""
    return parse(text, name="w.yaml", files=files or {})


# Random specs of every form that a workload can take, small enough to be written out densely.

MOST_CELLS = 400


def random_spec(rng, *, wheres=None):
    """Return the text of a spec over three to six attributes, with up to 400 cells.

    Args:
        rng: the numpy generator that draws it.
        wheres: how many conditions the first item has; None draws it.
    """
    d = int(rng.integers(3, 7))
    sizes = _sizes(rng, d)
    names = "abcdef"[:d]
    lines = [
        "dataset: {id: fuzz, version: 1}",
        f"privacy: {{unit: row{', delta: 1e-6' if rng.random() < 0.5 else ''}}}",
        "budget: {epsilon: 100}",
        "other: drop",
        "domain:",
    ]
    kinds = {}
    for name, n in zip(names, sizes, strict=True):
        kinds[name], text = _attribute(rng, name, n)
        lines.append(f"  {name}: {text}")
    lines.append("workload:")
    for k in range(int(rng.integers(2, 5))):
        body = (
            _product(rng, names, sizes, kinds, wheres)
            if k == 0
            else _item(rng, names, sizes, kinds)
        )
        weight = f", weight: {10.0 ** rng.uniform(-3, 3):.3g}" if rng.random() < 0.5 else ""
        lines.append(f"  - {{name: q{k}, {body}{weight}}}")
    return "\n".join(lines) + "\n"


def _sizes(rng, d):
    while True:
        sizes = rng.integers(2, 7, d).tolist()
        if math.prod(sizes) <= MOST_CELLS:
            return sizes


def _attribute(rng, name, n):
    draw = rng.random()
    if n == 4 and draw < 0.3:
        return "merge", f"{{merge: {{{name}1: boolean, {name}2: boolean}}}}"
    if n == 2 and draw < 0.4:
        return "boolean", "boolean"
    if draw < 0.5:
        return "values", f"{{values: [{', '.join(f'v{k}' for k in range(n))}]}}"
    return "range", f"{{range: [0, {n - 1}]}}"


def _item(rng, names, sizes, kinds):
    draw = rng.random()
    if draw < 0.3:
        return _product(rng, names, sizes, kinds, None)
    if draw < 0.45:
        return _sum(rng, names, sizes, kinds)
    if draw < 0.65:
        return (
            f"marginals: {{{'ways' if rng.random() < 0.5 else 'up_to'}: {int(rng.integers(1, 4))}}}"
        )
    chosen = rng.permutation(len(names))[: int(rng.integers(2, 4))].tolist()
    if draw < 0.85:
        attributes = ", ".join(
            f"{names[i]}: {_condition(rng, names[i], sizes[i], kinds[names[i]], braces=True)}"
            for i in chosen
        )
        return f"any_of: {{{attributes}}}"
    r = int(rng.integers(1, len(chosen) + 1))
    return f"threshold: {{r: {r}, of: [{', '.join(names[i] for i in chosen)}]}}"


def _sum(rng, names, sizes, kinds):
    """A sum of one attribute, by some others or by itself."""
    plain = [i for i, name in enumerate(names) if kinds[name] != "merge"]
    if not plain:
        return _product(rng, names, sizes, kinds, None)
    i = plain[rng.integers(len(plain))]
    numbers = None
    if kinds[names[i]] != "range" or rng.random() < 0.5:
        numbers = [int(rng.integers(1, 40)), *rng.integers(-9, 40, sizes[i] - 1).tolist()]
    several = numbers is not None and rng.random() < 0.5
    elsewhere = _product(rng, names, sizes, kinds, None).replace("product:", "by:", 1)
    by, _, where = elsewhere.partition(", where:")
    if f"{names[i]}: " in elsewhere:  # a sum of what adds nothing is refused
        numbers = [number or 1 for number in numbers or range(sizes[i])]
    parts = [f"of: {names[i]}"]
    if numbers is not None:
        named = [f"{_value(kinds[names[i]], k)}: {n}" for k, n in enumerate(numbers)]
        parts.append(f"value: {numbers}" if several else f"value: {{{', '.join(named)}}}")
    return f"sum: {{{', '.join([*parts, by])}}}" + (f", where:{where}" if where else "")


def _product(rng, names, sizes, kinds, wheres):
    order = rng.permutation(len(names)).tolist()
    most = len(order) - 1
    chosen = order[: int(rng.integers(1, min(3, most) + 1))]
    rest = order[len(chosen) :]
    count = min(len(rest), int(rng.integers(0, len(rest) + 1)) if wheres is None else wheres)
    axes = ", ".join(
        f"{names[i]}: {_set(rng, names[i], sizes[i], kinds[names[i]])}" for i in chosen
    )
    where = ", ".join(
        f"{names[i]}: {_condition(rng, names[i], sizes[i], kinds[names[i]])}" for i in rest[:count]
    )
    return f"product: {{{axes}}}" + (f", where: {{{where}}}" if where else "")


def _set(rng, name, n, kind):
    words = ["identity", "identity", "total", "identity+total", "condition"]
    if kind == "range":
        words += ["prefix", "prefix", "all-ranges", "width"]
    word = words[rng.integers(len(words))]
    if word == "condition":
        return _condition(rng, name, n, kind, braces=True)
    return f"{{width: {int(rng.integers(1, n + 1))}}}" if word == "width" else word


def _value(kind, k):
    if kind == "boolean":
        return ("no", "yes")[k]
    return f"v{k}" if kind == "values" else str(k)


def _condition(rng, name, n, kind, *, braces=False):
    if kind == "merge":
        return _merged(rng, name)
    k = int(rng.integers(n))
    draw = rng.random()
    if kind == "range" and draw < 0.4:
        return f"{{between: [{k}, {int(rng.integers(k, n))}]}}"
    if draw < 0.6:
        chosen = sorted(rng.permutation(n)[: int(rng.integers(1, n + 1))].tolist())
        return f"{{in: [{', '.join(_value(kind, code) for code in chosen)}]}}"
    return f"{{is: {_value(kind, k)}}}" if braces else _value(kind, k)


def _merged(rng, name):
    """A condition on one or both columns of a merged attribute."""
    parts = [f"{name}{k}: {('no', 'yes')[rng.integers(2)]}" for k in (1, 2)]
    values = "{" + ", ".join(parts[: int(rng.integers(1, 3))]) + "}"
    return f"{{is: {values}}}"


# Plans changed by hand as their planner would have changed them: with figures that are true.


def unhashed(written):
    """Return the JSON of a plan file without its hash, so that what is changed in it is read."""
    plan = json.loads(written)
    plan.pop("sha256", None)
    return plan


def with_true_figures(plan):
    """Set the figures of every selection of a plan, as JSON values, to those of its strategy."""
    spec = plan["spec"]
    compiled = compile_spec(parse(spec["text"], name="spec", files=spec["files"]))
    for selection in plan["selections"]:
        strategy = decode_strategy(
            selection["strategy"], noise=selection["noise"], workload=compiled.workload
        )
        change = selection.get("record_change", "enters")
        error = expected_error(strategy, compiled.workload, change)
        best = next(line for line in selection["candidates"] if line["name"] == selection["best"])
        best |= {"rmse": error.rmse, "weighted_rmse": error.weighted_rmse}
        best |= {"max_std_error": error.max_std_error, "score": error.weighted_rmse}
    return plan


def put_true_figures(path=Path("dpquery.plan")):
    """Do the same in a file."""
    path.write_text(json.dumps(with_true_figures(json.loads(path.read_text()))))


def strategies(compiled):
    """One strategy of each shape for the town's workload."""
    workload = compiled.workload
    shape, noise = workload.shape_of_domain, "laplace"
    cells = tuple(Identity(n) for n in shape)
    (ages, *_, income) = shape
    optimised = PIdentity(np.arange(100, 100 + ages), np.arange(ages)[None, :] * 7)
    only = (optimised, Identity(2), *(total(n) for n in shape[2:]))
    rest = (total(ages), *cells[1:])
    groups = tuple(
        tuple(k for k, b in enumerate(workload.blocks) if (0 in b.attributes) == with_age)
        for with_age in (True, False)
    )
    parts = (ProductStrategy("a", noise, only), ProductStrategy("b", noise, rest))
    sets = {b: 5 + len(b) for b in ((0, 1), (0,), (1, 2), (1, 2, 3))}
    below = sorted({a for b in sets for a in subsets_of(b)})
    skew = np.tril(np.ones((income - 1, income), dtype=np.int64))
    cores = (*(CenteredCore(n) for n in shape[:-1]), DenseCore(skew))
    classes = cell_classes(workload, most=1 << 16)
    n = classes.count
    counted = PIdentity(np.arange(100, 100 + n), np.arange(n)[None, :] % 7)
    return {
        "cell-classes": CellClassesStrategy(
            "c", noise, classes, ProductStrategy("i", noise, (counted,))
        ),
        "product": ProductStrategy("p", noise, (optimised, *cells[1:])),
        "marginals": MarginalsStrategy("m", noise, shape, sets),
        "factors": MarginalsStrategy("f", noise, shape, sets, {0: optimised}),
        "residual": ResidualStrategy("r", noise, cores, {b: 3 + len(b) for b in below}),
        "union": UnionStrategy("u", noise, parts, (3, 2), groups),
        "direct": DirectStrategy("d", noise, workload, tuple(range(2, 2 + len(workload.blocks)))),
    }
