"""The public facts that a release relies on: for release.json, the statement and the screen."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpquery.reconstruction.fact_tests import LEAST_CHANCE
from dpquery.releases.formatting import count, one_line

KNOWN_WORDS = """\
**The {answers} of `{item}` are public and ARE NOT PROTECTED by anything in this release.** They \
are not computed from the records: they stand in the file `{file}` (SHA-256 {digest}) and are \
public because: {why}."""
KNOWN_EXACT = """\
They are published as they stand there, without noise and with the flag `known`."""
IMPOSSIBLE_WORDS = """\
By public knowledge no record has {facts}. Records that have it all the same were measured and are \
protected as any other."""
ZERO = """\
{answers} of this release that count only such records are 0, and have the flag `impossible`."""
RELIED_ON = "The other answers are estimated given this, and err less."
NOT_CORRECTED = """\
The other answers are estimated without this, and need not add up to these zeros."""
NOT_RELIED_ON = """\
**The noisy answers contradict this, and it was not relied on:** {test}. All answers are \
estimated without it, with the errors that they then have."""
AGREES = "The noisy answers do not contradict it: {test}."


@dataclass(frozen=True)
class PublicFactUse:
    """A source of public facts, and what became of it.

    Attributes:
        source: `impossible`, or the item that is known.
        words: which records are impossible, or why the item's answers are public.
        answers: how many answers of the release it states.
        tested: how many equalities the noisy answers were held against; 0 where others do not take
            it into account.
        statistic: the sum of squares of what they are off, in variances of the noise.
        p_value: the chance that noise makes it so large where the facts are true.
        relied_on: whether answers rest on it: not where that chance is below 1e-6.
        file: that the answers of an item stand in; empty of what is impossible.
        sha256: of its text, as UTF-8.
    """

    source: str
    words: str
    answers: int
    tested: int
    statistic: float
    p_value: float
    relied_on: bool
    file: str = ""
    sha256: str = ""

    @property
    def test(self) -> str:
        """The test in words."""
        below = "below " if self.p_value <= LEAST_CHANCE else ""
        return (
            f"chi-square {self.statistic:.4g} with {count(self.tested, 'degree')} of freedom, "
            f"p = {below}{self.p_value:.2g}"
        )


def facts_lines(facts: Sequence[PublicFactUse]) -> list[str]:
    """Return the paragraphs of the statement on public facts; none where there are none."""
    lines = []
    for fact in facts:
        answers = count(fact.answers, "answer")
        if fact.file:
            source = {"item": fact.source, "file": one_line(fact.file), "digest": fact.sha256}
            why = one_line(fact.words).rstrip(".")
            known = KNOWN_WORDS.format(answers=answers, why=why, **source)
        else:
            known = IMPOSSIBLE_WORDS.format(facts=one_line(fact.words))
        zero = KNOWN_EXACT if fact.file else ZERO.format(answers=answers)
        if not fact.relied_on:
            became = NOT_RELIED_ON.format(test=fact.test)
        elif fact.tested:
            became = f"{zero} {RELIED_ON} {AGREES.format(test=fact.test)}"
        else:
            became = f"{zero} {NOT_CORRECTED}"
        lines += ["", f"**Public facts.** {known} {became}"]
    return lines


def facts_notes(facts: Sequence[PublicFactUse]) -> list[str]:
    """Return a line for every source, for the screen and the report."""
    return [_note(fact) for fact in facts]


def _note(fact: PublicFactUse) -> str:
    name = f"public facts of {fact.source} ({count(fact.answers, 'answer')})"
    if fact.file:
        name = f"public facts of {fact.source} ({count(fact.answers, 'answer')}, NOT PROTECTED)"
    if not fact.relied_on:
        return (
            f"warning: the noisy answers contradict the {name}: {fact.test}; they were not relied "
            "on, and answers are estimated without them"
        )
    if fact.tested:
        return f"{name}: the noisy answers do not contradict them: {fact.test}"
    return f"{name}: the other answers do not take them into account"
