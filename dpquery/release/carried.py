"""The spec that a plan carries word for word: a release is made, and asked, from the plan alone."""

from pathlib import Path

from dpquery.spec.model import Spec
from dpquery.spec.parsing.spec import parse
from dpquery.strategy.plan_file import Plan, read_plan
from dpquery.untrusted.files import read_outside
from dpquery.untrusted.json_values import MAX_BYTES


def read_plan_file(path: Path) -> bytes:
    """Return the bytes of a plan file; OSError, with the reason, if they cannot be had."""
    return read_outside(path, most=MAX_BYTES)


def plan_and_spec(content: bytes, path: Path) -> tuple[Plan, Spec]:
    """Return the plan that the bytes of a file are, and its spec.

    Raises:
        SpecError: it is not a plan, or its spec has mistakes; `path` is what messages call it.
    """
    plan = read_plan(content)
    name = f"{path}, {plan.spec_name}"
    return plan, parse(plan.spec_text, name=name, files=plan.spec_files)
