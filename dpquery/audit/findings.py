"""A finding of the audit: one claim, whether it holds, and the evidence."""

from dataclasses import dataclass

TO_ITS_END = "it runs to its end"
"""The claim of a part that ended in an error, which says nothing of what it was to check."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        part: of the audit.
        subject: what was put to the test.
        claim: what must hold of it.
        passed: whether it holds.
        evidence: the figures behind that, in a few words.
        draws: noise values that were looked at, where they were looked at first: each counts once.
        neighbours: pairs of neighbouring data sets that were compared.
        replicates: how often they were measured, each.
        tests: statistical tests behind it; a sound product fails each with probability ALPHA.
    """

    part: str
    subject: str
    claim: str
    passed: bool
    evidence: str
    draws: int = 0
    neighbours: int = 0
    replicates: int = 0
    tests: int = 0
