"""The public facts that a release relies on: for release.json, the statement and the screen."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpquery.reconstruction.fact_tests import LEAST_CHANCE
from dpquery.releases.formatting import count, one_line

IMPOSSIBLE_WORDS = """\
By public knowledge no record has {facts}. Records that have it all the same were measured and are \
protected as any other."""
ZERO = """\
{answers} of this release that count only such records are 0, and have the flag `impossible`."""
RELIED_ON = "The other answers are estimated given this, and err less."
NOT_CORRECTED = """\
The other answers are estimated without this, and need not add up to these zeros."""
NOT_RELIED_ON = """\
**The noisy answers contradict this, and it was not relied on:** {test}. All answers are as \
measured, with the errors that they have without it."""
AGREES = "The noisy answers do not contradict it: {test}."


@dataclass(frozen=True)
class PublicFactUse:
    """A source of public facts, and what became of it.

    Attributes:
        source: `impossible`.
        words: what is known.
        answers: how many answers of the release it states.
        tested: how many equalities the noisy answers were held against; 0 where others do not take
            it into account.
        statistic: the sum of squares of what they are off, in variances of the noise.
        p_value: the chance that noise makes it so large where the facts are true.
        relied_on: whether answers rest on it: not where that chance is below 1e-6.
    """

    source: str
    words: str
    answers: int
    tested: int
    statistic: float
    p_value: float
    relied_on: bool

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
        known = IMPOSSIBLE_WORDS.format(facts=one_line(fact.words))
        zero = ZERO.format(answers=count(fact.answers, "answer"))
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
    name = f"public facts ({fact.source}, {count(fact.answers, 'answer')})"
    if not fact.relied_on:
        return (
            f"warning: the noisy answers contradict the {name}: {fact.test}; they were not relied "
            "on, and all answers are as measured"
        )
    if fact.tested:
        return f"{name}: the noisy answers do not contradict them: {fact.test}"
    return f"{name}: the other answers do not take them into account"
