"""What the audit found, as tables."""

from collections.abc import Sequence
from itertools import groupby

from dpquery.audit.findings import Finding
from dpquery.cli.grid import Grid


def audit_grids(findings: Sequence[Finding]) -> list[Grid]:
    """Return a table for each part."""
    grids = []
    for part, own in groupby(findings, key=lambda finding: finding.part):
        rows = tuple(
            ("ok" if one.passed else "FAILED", one.subject, one.claim, one.evidence) for one in own
        )
        grids.append(Grid(part, ("", "subject", "claim", "evidence"), rows))
    return grids
