"""Plans changed by hand as their planner would have changed them: with figures that are true."""

import json
from pathlib import Path

import numpy as np

from dpquery.operators.cells import cell_classes
from dpquery.operators.compile import compile_spec
from dpquery.operators.factors import Identity, PIdentity, total
from dpquery.plan_file.plan import decode_strategy
from dpquery.spec.parsing.read import parse
from dpquery.strategy.algebra.subsets import subsets_of
from dpquery.strategy.expected_error import expected_error
from dpquery.strategy.shapes.cells import CellClassesStrategy
from dpquery.strategy.shapes.direct import DirectStrategy
from dpquery.strategy.shapes.marginals import MarginalsStrategy, ProductStrategy
from dpquery.strategy.shapes.residual import ResidualStrategy
from dpquery.strategy.shapes.side_by_side import UnionStrategy
from dpquery.strategy.shapes.splits import CenteredCore, DenseCore


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
