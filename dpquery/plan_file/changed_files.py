"""The files beside a plan that are others now than when it was made: what it releases is older."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import yaml

from dpquery.limits import MAX_SPEC_BYTES
from dpquery.plan_file.plan import Plan
from dpquery.untrusted.files import read_outside


@dataclass(frozen=True)
class ChangedFile:
    """A file of the spec that is another one now.

    Attributes:
        name: of the spec, or of a list of values or hierarchy that it names.
        in_content: whether it says something else: more than comments and layout have changed.
    """

    name: str
    in_content: bool


def changed_since(plan: Plan, path: Path) -> ChangedFile | None:
    """Return the planned file that has changed most, beside the plan; None if none has.

    Args:
        plan: with the texts of its spec and of the lists of values.
        path: of the plan. A spec that lies elsewhere is not looked for.
    """
    changed = list(_others_now(plan, path.parent))
    return max(changed, key=lambda file: file.in_content, default=None)


def _others_now(plan: Plan, folder: Path) -> Iterator[ChangedFile]:
    for name, planned in {plan.spec_name: plan.spec_text, **plan.spec_files}.items():
        if name != Path(name).name:
            continue
        try:
            now = read_outside(folder / name, most=MAX_SPEC_BYTES).decode("utf-8-sig", "replace")
        except OSError:
            continue
        if now != planned:
            yield ChangedFile(name, name != plan.spec_name or not _same_yaml(planned, now))


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
