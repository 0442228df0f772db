"""The columns `published` and `suppressed` in words, for the statement."""

from dpquery.releases.manifest.release_json import Manifest
from dpquery.spec.model import PublicationRules

SUPPRESSED = """\
- `suppressed`: the rule that left a row's `published` empty; no text where none did. The rules \
look at noisy values alone and protect nobody: the estimate stands in the same row. What is left \
out is missing from every sum of `published`, and of small counts those remain that noise raised."""


def published_lines(manifest: Manifest) -> list[str]:
    """Return what the columns hold, a line for each set of rules; none where no item has them."""
    items: dict[PublicationRules, list[str]] = {}
    for item in manifest.items:
        if item.published is not None:
            items.setdefault(item.published, []).append(f"`{item.name}`")
    lines = []
    for rules, names in items.items():
        where = "" if len(names) == len(manifest.items) else f" in {', '.join(names)}"
        lines.append(f"- `published`{where}: {_words(rules)}.")
    return [*lines, SUPPRESSED] if lines else []


def _words(rules: PublicationRules) -> str:
    rounded = "" if rules.round_to is None else f", rounded to a multiple of {rules.round_to:,}"
    limits = [] if rules.rel_error is None else [f"a `rel_error` of {rules.rel_error:g} or more"]
    limits += [] if rules.below is None else [f"an estimate below {rules.below:,}"]
    empty = f"; empty in rows with {' or '.join(limits)}" if limits else ""
    return f"the estimate{rounded}{empty}"
