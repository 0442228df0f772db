"""The public facts that a release relies on: for release.json, the statement and the screen."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpquery.reconstruction.fact_tests import LEAST_CHANCE, FactTest
from dpquery.releases.formatting import count, one_line
from dpquery.releases.tables.labels import query_labels
from dpquery.spec.domain import Domain
from dpquery.spec.model import Spec
from dpquery.spec.public_facts import Impossible

IMPOSSIBLE_WORDS = """\
By public knowledge no record has {facts}. Records that have it all the same were measured and are \
protected as any other."""
ZERO = """\
{answers} of this release that count only such records are 0, and have the flag `impossible`."""
RELIED_ON = "The other answers are estimated given this, and err less."
NOT_CORRECTED = """\
The other answers are estimated without this, and need not add up to these zeros."""
CONTRADICTED = """\
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


def facts_used(
    spec: Spec, tests: Sequence[FactTest], answers: dict[str, int]
) -> tuple[PublicFactUse, ...]:
    """Return what became of every source of public facts.

    Args:
        spec: declares them.
        tests: of all sources.
        answers: how many answers each source states.
    """
    words = "; or ".join(_combination(each, spec.domain) for each in spec.impossible)
    return tuple(
        PublicFactUse(
            test.source,
            words,
            answers[test.source],
            test.degrees,
            test.statistic,
            test.chance,
            not test.contradicted,
        )
        for test in tests
    )


def _combination(impossible: Impossible, domain: Domain) -> str:
    conditions = []
    for i, asked in impossible.where:
        attribute = domain.attributes[i]
        (label,) = query_labels(attribute, asked).labels
        conditions.append(f"{attribute.name} {label}")
    return " with ".join(conditions)


def facts_lines(facts: Sequence[PublicFactUse]) -> list[str]:
    """Return the paragraphs of the statement on public facts; none where there are none."""
    lines = []
    for fact in facts:
        known = IMPOSSIBLE_WORDS.format(facts=one_line(fact.words))
        zero = ZERO.format(answers=count(fact.answers, "answer"))
        if not fact.relied_on:
            became = CONTRADICTED.format(test=fact.test)
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
