"""Discoveries: threshold, noise and price worked out again, and held against what was found.

Made-up files have thousands of values that one person has, and as many that so many have that half
of them should be found; in others, of numbers and of rows of persons, it is known how many are in
each public class. Scale and threshold are checked by the normal law in floating point, which the
product does not use.
"""

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from dpquery.audit.cases import Size
from dpquery.audit.planned_cases import mu_of, private_folder
from dpquery.audit.statistics import (
    Finding,
    NoiseDistribution,
    chi_square,
    combined,
    goodness_of_fit,
    pooled,
)
from dpquery.commands.discover import DiscoveryReport, discover
from dpquery.exceptions import LargeDeltaWarning
from dpquery.measurement.ledger.ledger import Ledger

_SPEC = """\
dataset: {{id: made-up}}
privacy: {{unit: {unit}, neighbours: {neighbours}}}
budget: {{epsilon: 100, delta: 0.5, accounting: gdp, discover: 0.25}}
domain: {{value: {{values_file: value.csv, other: show}}}}
workload: [{{name: values, product: {{value: identity}}}}]
"""
_EPSILON, _DELTA = 1.0, 0.04
_HAIR = 1e-9


@dataclass(frozen=True)
class _Case:
    name: str
    unit: str
    neighbours: str
    most: int  # values of a person that count
    moved: int  # numbers that change, by one each, between neighbours
    sought: str = "column"  # as discover's argument is called; of others the classes are public

    @property
    def public(self) -> bool:
        """Whether all classes are public, and have no threshold."""
        return self.sought != "column"


_CASES = (
    _Case("three values of a person", "{person: id, max_rows: 3}", "add-remove", 3, 3),
    _Case("rows, one of them replaced", "row", "replace", 1, 2),
    _Case("numbers", "{person: id, max_rows: 3}", "add-remove", 2, 6, "number"),
    _Case("rows of persons", "{person: id, max_rows: 3}", "replace", 1, 4, "rows_per_person"),
)
_DECADES = 3, 18  # of numbers from 0.001 to 1, and to 10^15
_PERSONS = 900  # of made-up files for classes, each with two of the numbers from 1 to 9


def discoveries(size: Size) -> Iterator[Finding]:
    """Test what discoveries find, and what is charged for it, against the law of their noise."""
    values, draws = 2_000 if size.quick else 10_000, 0
    p_values, evidence = [], []
    for case in _CASES:
        report, charged = _discovered(case, values)
        yield _stated(case, report, charged)
        if case.public:
            p_of_classes, classes = _of_classes(case, report)
            p_values.append(p_of_classes)
            evidence.append(f"{case.name}: {classes:,} classes")
            continue
        rare = sum(value.startswith("rare") for value, _ in report.values)
        chance = 1 - float(_law(report).below(np.array([report.query.threshold - 2]))[0])
        shares = np.array([chance, 1 - chance])
        of_held, held = _held(report, values)
        p_values += [chi_square(np.array([rare, values - rare]), shares * values), of_held]
        evidence.append(f"{case.name}: {rare} of {values:,}, and {held:,}")
        draws += 2 * values
    yield Finding.of_chance(
        f"discoveries of {values:,} values of one person each, and as many of many",
        "what nobody else has is found as rarely as the threshold says, the rest by the law, and "
        "every public class has its noise",
        combined(p_values),
        "; ".join(evidence),
        draws=draws,
    )


def _discovered(case: _Case, values: int) -> tuple[DiscoveryReport, tuple[Fraction, Fraction]]:
    """Return a discovery in a made-up file, and what it was charged."""
    with private_folder() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", LargeDeltaWarning)  # so that more is seen
        (folder / "workload.yaml").write_text(
            _SPEC.format(unit=case.unit, neighbours=case.neighbours), encoding="utf-8"
        )
        _write_records(folder / "data.csv", case, values)
        report = discover(
            folder / "data.csv",
            column="value" if case.sought == "column" else None,
            number="value" if case.sought == "number" else None,
            rows_per_person="id" if case.sought == "rows_per_person" else None,
            epsilon=_EPSILON,
            delta=_DELTA,
            spec_path=folder / "workload.yaml",
            max_values=case.most,
            ledger_path=folder / "state" / "ledger.db",
        )
        return report, _charged(folder / "state" / "ledger.db")


def _worked_out(case: _Case) -> tuple[float, int]:
    """Return the least scale and the threshold; each has half of delta, or the scale has it all.

    Public classes have no threshold.
    """
    of_noise = _DELTA if case.public else _DELTA / 2
    scale = math.sqrt(case.moved) / mu_of(_EPSILON, of_noise)
    if case.public:
        return scale, 0
    threshold = 1
    while case.most * ndtr(-(threshold - 1.5) / scale) > _DELTA / 2:
        threshold += 1
    return scale, threshold


def _write_records(path: Path, case: _Case, values: int) -> None:
    """Write values of one person each, and as many of as many persons as the threshold has.

    Or numbers: every person has two, one greater by 1 than the other or 9 and 1.
    """
    if case.public:
        pairs = [(f"a{i}", (i + k) % 9 + 1) for i in range(_PERSONS) for k in range(2)]
        lines = [f"{person},{value}" for person, value in pairs]
        path.write_text("\n".join(["id,value", *lines, ""]), encoding="utf-8")
        return
    holders = _worked_out(case)[1]
    rare = [(f"a{i // case.most}", f"rare {i}") for i in range(values)]
    held = [(f"b{i // case.most}", f"held {i % values}") for i in range(values * holders)]
    lines = [f"{person},{value}" for person, value in rare + held]
    path.write_text("\n".join(["id,value", *lines, ""]), encoding="utf-8")


def _charged(ledger: Path) -> tuple[Fraction, Fraction]:
    """Return what the only charge on record spent of mu^2, and of delta."""
    with Ledger.open(ledger, create=False) as opened:
        events = [json.loads(line) for line in opened.export()]
    (reserved,) = [event for event in events if event["kind"] == "reserve"]
    return Fraction(int(reserved["units"]), 10**18), Fraction(
        reserved["native"].get("threshold", "0")
    )


def _stated(case: _Case, report: DiscoveryReport, charged: tuple[Fraction, Fraction]) -> Finding:
    """Compare scale, threshold and price with those worked out here."""
    (scale, threshold), (squared, delta) = _worked_out(case), charged
    stated, used = report.query.mechanism.scale, report.query.threshold
    sound = (
        stated >= scale * (1 - _HAIR)
        and used >= threshold
        and Fraction(case.moved) / Fraction(stated) ** 2 <= squared
        and delta >= (0 if case.public else Fraction(str(_DELTA)) / 2)
    )
    return Finding(
        f"a discovery, {case.name}",
        "noise, threshold and charge are no less than epsilon and delta take",
        sound,
        f"scale {stated:.6g}, {scale:.6g} is needed; threshold {used}, {threshold} is needed; "
        f"mu^2 {float(squared):.6g} and delta {float(delta):g} charged",
    )


def _law(report: DiscoveryReport) -> NoiseDistribution:
    return NoiseDistribution("rounded", Fraction(report.query.mechanism.scale))


def _held(report: DiscoveryReport, values: int) -> tuple[float, int]:
    """Return the p-value of the noisy numbers of values of many, those not found too."""
    numbers = [n for value, n in report.values if value.startswith("held")]
    steps = np.arange(math.ceil(12 * float(_law(report).scale)))
    above = np.minimum(np.array(numbers, np.int64) - report.query.threshold, steps[-1])
    below = _law(report).below(np.concatenate([[-1], steps[:-1]]))
    counted = np.bincount(above, minlength=steps.size)
    masses = np.diff(np.append(below, 1.0)) * values
    groups = pooled(counted, masses)
    missed = values - len(numbers), below[0] * values
    return chi_square(*map(np.append, groups, missed)), len(numbers)


def _of_classes(case: _Case, report: DiscoveryReport) -> tuple[float, int]:
    """Return the p-value of the noise in all public classes, and how many there are."""
    parts = []
    for digits in (1, 2, 3) if case.sought == "number" else (1, 2):
        by_decade = 9 * 10 ** (digits - 1)
        of_one = by_decade * sum(_DECADES) + 1  # behind those below zero, and that of zero
        true = np.zeros(2 * by_decade * _DECADES[1] + 1, np.int64)
        for number in range(1, 10):
            held = 2 * _PERSONS // 9 if case.sought == "number" else _PERSONS * (number == 2)
            true[of_one + (number - 1) * 10 ** (digits - 1)] = held
        parts.append(true)
    noise = report.measured.values - np.concatenate(parts)
    return goodness_of_fit(noise, _law(report)), noise.size
