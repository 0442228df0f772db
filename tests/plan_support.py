"""Plans changed by hand as their planner would have changed them: with figures that are true."""

import json
from pathlib import Path

from dpquery.operators.compile import compile_spec
from dpquery.spec.parse import parse
from dpquery.strategy.codec import decode_strategy
from dpquery.strategy.expected_error import expected_error


def with_true_figures(plan):
    """Set the figures of every selection of a plan, as JSON values, to those of its strategy."""
    spec = plan["spec"]
    compiled = compile_spec(parse(spec["text"], name="spec", files=spec["files"]))
    for own in plan["selections"]:
        strategy = decode_strategy(own["strategy"], noise=own["noise"], workload=compiled.workload)
        error = expected_error(strategy, compiled.workload)
        best = next(line for line in own["candidates"] if line["name"] == own["best"])
        best |= {"rmse": error.rmse, "weighted_rmse": error.weighted_rmse}
        best |= {"max_std_error": error.max_std_error, "score": error.weighted_rmse}
    return plan


def put_true_figures(path=Path("dpquery.plan")):
    """Do the same in a file."""
    path.write_text(json.dumps(with_true_figures(json.loads(path.read_text()))))
