"""The spec that a plan carries word for word: a release is made, and asked, from the plan alone."""

from pathlib import Path

from dpquery.spec.model import Spec
from dpquery.spec.parse import parse
from dpquery.strategy.plan_file import Plan, read_plan


def plan_and_spec(content: bytes, path: Path) -> tuple[Plan, Spec]:
    """Return the plan that the bytes of a file are, and its spec.

    Raises:
        SpecError: it is not a plan, or its spec has mistakes; `path` is what messages call it.
    """
    plan = read_plan(content)
    name = f"{path}, {plan.spec_name}"
    return plan, parse(plan.spec_text, name=name, files=plan.spec_files)
