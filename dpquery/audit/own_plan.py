"""A user's own plan as cases of the audit: its strategy and its noise, on made-up data."""

import math
from fractions import Fraction
from pathlib import Path

from dpquery.audit.classes import classes_of
from dpquery.audit.made_up import Case
from dpquery.exceptions import SpecError
from dpquery.plan_file.plan import plan_and_spec

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
    cells = math.prod(max(own) + 1 for own in classes_of(spec))
    if cells > MOST_CELLS:
        raise SpecError(
            f"{path} has {cells:,} cells, and the audit looks at up to {MOST_CELLS:,} one by one; "
            "run `dpquery audit` without --plan, which takes strategies of the same families"
        )
    return tuple(
        Case(path.name, plan.spec_text, own.noise, epsilon, repeated=True, plan=content)
        for own in plan.selections
    )
