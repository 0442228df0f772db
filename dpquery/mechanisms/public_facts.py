"""What a release makes of public facts: tested, relied on or not, and put into words."""

import hashlib
from collections.abc import Sequence

from dpquery.arrays import Floats
from dpquery.operators.compile import CompiledSpec
from dpquery.operators.public_facts import IMPOSSIBLE
from dpquery.reconstruction.fact_tests import FactTest, tested_facts
from dpquery.reconstruction.least_squares import reconstruct
from dpquery.releases.manifest.public_facts import PublicFactUse
from dpquery.releases.tables.labels import query_labels
from dpquery.spec.domain import Domain
from dpquery.spec.model import Spec
from dpquery.spec.public_facts import Impossible
from dpquery.strategy.shapes.informed import InformedStrategy, informed
from dpquery.strategy.shapes.strategies import Strategy


def given_facts(
    strategy: Strategy, compiled: CompiledSpec, noisy: Sequence[Floats], *, noise_std: float
) -> tuple[Strategy, tuple[FactTest, ...]]:
    """Return how a strategy answers given those public facts that nothing contradicts.

    Args:
        strategy: what was measured.
        compiled: the plan's workload and the facts.
        noisy: the answers of its measurements, as reconstruct takes them.
        noise_std: standard deviation of the noise on each of them.

    Privacy:
        Post-processing: a function of noisy answers and public inputs.

    Returns:
        The strategy, and the tests of all facts: none where the spec has none.
    """
    answering = informed(strategy, compiled.facts, compiled.workload)
    if not isinstance(answering, InformedStrategy):
        return answering, ()
    return tested_facts(answering, reconstruct(strategy, noisy), noise_std=noise_std)


def facts_used(
    spec: Spec, compiled: CompiledSpec, tests: Sequence[FactTest]
) -> tuple[PublicFactUse, ...]:
    """Return what became of every source of public facts, for the manifest.

    Args:
        spec: declares them.
        compiled: says which answers they state.
        tests: of all sources.
    """
    if compiled.facts is None:
        return ()
    answers = compiled.facts.stated(compiled.workload)
    words = {IMPOSSIBLE: "; or ".join(_combination(each, spec.domain) for each in spec.impossible)}
    files = {item.name: item.known for item in spec.items if item.known is not None}
    used = []
    for test in tests:
        known = files.get(test.source)
        text = "" if known is None else spec.files[known.file]
        used.append(
            PublicFactUse(
                test.source,
                words[test.source] if known is None else known.why,
                answers[test.source],
                test.degrees,
                test.statistic,
                test.chance,
                not test.contradicted,
                "" if known is None else known.file,
                "" if known is None else hashlib.sha256(text.encode()).hexdigest(),
            )
        )
    return tuple(used)


def _combination(impossible: Impossible, domain: Domain) -> str:
    conditions = []
    for i, asked in impossible.where:
        attribute = domain.attributes[i]
        (label,) = query_labels(attribute, asked).labels
        conditions.append(f"{attribute.name} {label}")
    return " with ".join(conditions)
