"""RAP on Adult against the reference's mended runs: error, CPU seconds, memory.

Every workload, T, K and epsilon of the reference at delta = 1 / n^2 under add-remove, with the
curator's loop and a seeded chance in the place of its exact one; the mean over three seeds. Errors
are fractions of n. CPU seconds, of one thread, are those of the whole loop: the reference's were
measured on another machine under load. With words as arguments only rows whose name holds one;
with "adam" among them also the seed's projection, once.
"""

import json
import math
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from dpquery.arrays import Floats
from dpquery.measurement.accounting import guarantee
from dpquery.measurement.rounds.queries import rap_rounds
from dpquery.measurement.rounds.run import Round, run_rounds
from dpquery.operators.blocks import Block, Workload
from dpquery.operators.factors import Identity
from dpquery.plan_file.rehearsals import RapSettings
from dpquery.planning.rehearsal.runs import SeededChance
from dpquery.reconstruction.relaxed.fits import RapProjection
from dpquery.reconstruction.relaxed.misfit import Fit, FitTarget
from dpquery.reconstruction.relaxed.rows import Partition
from dpquery.spec.spec import Privacy

SHARED = Path(__file__).parents[3] / "shared"
SEEDS = (0, 1, 2)


# The projection as the seed has it, for comparison: Adam on logits under sparsemax [RAP].


def sparsemax(logits: Floats, spans: Sequence[slice]) -> Floats:
    """Return the distributions closest to the logits of each span: (g, n') [MA16].

    max(z - tau, 0) with tau found by Newton's method on sum max(z - tau, 0) = 1: it is convex and
    piecewise linear, so from below tau is reached exactly in a few steps, without sorting.
    """
    masses = np.empty_like(logits)
    for span in spans:
        part = logits[span]
        tau = part.max(axis=0) - 1
        for _ in range(len(part)):
            above = np.maximum(part - tau, 0)
            rise = (above.sum(axis=0) - 1) / (above > 0).sum(axis=0)
            if rise.max() <= 1e-7:
                break
            tau += np.maximum(rise, 0)
        masses[span] = np.maximum(part - tau, 0)
    return masses


def sparsemax_product(masses: Floats, gradient: Floats, spans: Sequence[slice]) -> Floats:
    """Return the Jacobian of sparsemax times a gradient: less its mean over what is not zero."""
    product = np.where(masses > 0, gradient, 0)
    for span in spans:
        support = masses[span] > 0
        product[span] -= support * (product[span].sum(axis=0) / support.sum(axis=0))
    return product


def adam(
    target: FitTarget, masses: Floats, *, spans: Sequence[slice], rate: float, most: int
) -> tuple[Floats, int]:
    """Lower the error by Adam; return the masses and the steps taken."""
    logits, first, second = masses.copy(), np.zeros_like(masses), np.zeros_like(masses)
    for step in range(1, most + 1):
        masses = sparsemax(logits, spans)
        misfit = target.misfit(masses)
        if misfit.error <= target.noise:
            return masses, step
        slope = sparsemax_product(masses, misfit.gradient, spans)
        first += 0.1 * (slope - first)
        second += 0.001 * (slope**2 - second)
        scale = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        logits -= rate * (first / (1 - 0.9**step)) / scale
    return masses, most


@dataclass(frozen=True, eq=False)
class Adult:
    """A workload of thresholds over Adult with its exact answers."""

    workload: Workload
    records: int
    answers: tuple[Floats, ...]


@dataclass(frozen=True)
class Run:
    """One run: errors as fractions of n, CPU seconds, steps of the projection."""

    largest: float
    rmse: float
    mean: float
    cpu: float
    fitting: float
    steps: int


def main() -> None:
    """Print a row for every mended run of the reference, and ours below it."""
    reference = json.loads((SHARED / "anchors" / "rap_reference.json").read_text())["rap"]
    rows = [published for published in reference if published["index_bug_fixed"]]
    words = [word for word in sys.argv[1:] if word != "adam"]
    seen = {}
    for row in rows:
        seen.setdefault(tuple(row[key] for key in ("workload", "r", "T", "K", "eps")), []).append(
            row
        )
    print(f"{'':42} {'max':>8} {'RMSE':>9} {'mean abs':>9} {'CPU s':>6} {'ms/step':>7} {'MB':>5}")
    for (name, r, T, K, epsilon), theirs in seen.items():
        label = f"{name} {r}-of-{theirs[0]['k']} T={T} K={K} eps={epsilon:g}"
        if words and not any(word in label for word in words):
            continue
        adult = load(name, r)
        settings = RapSettings(T, K, 1000, 0)
        ours = [run(adult, replace(settings, seed=seed), Fraction(epsilon)) for seed in SEEDS]
        keys = ("max_err", "rmse", "mean_abs_err", "mech_cpu", "rp_cpu", "epochs_total")
        show(
            f"{label}, reference", [Run(*(published[key] for key in keys)) for published in theirs]
        )
        show("    dpquery", ours)
        if "adam" in sys.argv:
            show("    with Adam", [run(adult, settings, Fraction(epsilon), kind=ByAdam)])


def show(label: str, runs: list[Run]) -> None:
    """Print the means of some runs."""
    largest, rmse, mean, cpu, fitting, steps = (
        fmean(getattr(run, field) for run in runs) for field in Run.__dataclass_fields__
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{label:42} {largest:8.4f} {rmse:9.3g} {mean:9.3g} {cpu:6.2f} {1e3 * fitting / steps:7.2f}"
        + (f" {peak:5}" if label.startswith(" ") else ""),
        flush=True,
    )


def load(name: str, r: int) -> Adult:
    """Return the thresholds of a file of attribute tuples, answered exactly."""
    listed = json.loads((SHARED / "anchors" / f"rap_workload_{name}.json").read_text())
    shape = tuple(listed["domain_sizes"])
    codes = pd.read_csv(SHARED / "data" / "adult.csv")[listed["attributes"]].to_numpy()
    blocks, answers = [], []
    for attributes in map(tuple, map(sorted, listed["tuples_index"])):
        factors = tuple(Identity(shape[i]) for i in attributes)
        block = Block(shape, attributes, factors, (True,) * len(attributes), r)
        cells = np.ravel_multi_index(tuple(codes[:, attributes].T), block.table_shape)
        table = np.bincount(cells, minlength=math.prod(block.table_shape))
        blocks.append(block)
        answers.append(block.apply(table.reshape(block.table_shape)).ravel())
    return Adult(Workload(shape, tuple(blocks), (1.0,) * len(blocks)), len(codes), tuple(answers))


class Timed(RapProjection):
    """A projection that adds up the CPU seconds of its fits."""

    fitting = 0.0

    def add(self, measured: Round) -> None:
        """Fit, and count."""
        begun = time.process_time()
        super().add(measured)
        self.fitting += time.process_time() - begun


class ByAdam(Timed):
    """The seed's projection: the same surrogates and groups of classes, other steps."""

    def _project(self, finer: Partition, target: FitTarget) -> None:
        masses = self._partition.split(self._fit.masses, finer, self._start)
        masses, steps = adam(target, masses, spans=finer.spans, rate=1e-3, most=5000)
        self._fit = Fit(masses, None, self._fit.steps + steps)
        self._partition, self._rows = finer, finer.rows(masses)


def run(
    adult: Adult, settings: RapSettings, epsilon: Fraction, *, kind: type[Timed] = Timed
) -> Run:
    """Run the loop once and compare all answers with the exact ones."""
    promised = guarantee("gaussian", epsilon=epsilon, delta=Fraction(1, adult.records**2))
    privacy = Privacy(delta=promised.delta)
    rounds = rap_rounds(adult.workload, settings, privacy=privacy, guarantee=promised, rows=None)
    chance, begun = SeededChance(settings.seed), time.process_time()
    noise = np.random.default_rng(settings.seed).normal(scale=rounds.first_std)
    projection = kind(adult.workload, settings, adult.records + noise)
    answers = dict(zip(adult.workload.blocks, adult.answers, strict=True))
    for _ in run_rounds(rounds, answers.__getitem__, fit=projection, chance=chance):
        pass
    cpu = time.process_time() - begun
    largest, squares, total = 0.0, 0.0, 0.0
    for position, exact in enumerate(adult.answers):
        error = np.abs(projection.answers(position) - exact) / adult.records
        largest = max(largest, float(error.max()))
        squares, total = squares + float(np.square(error).sum()), total + float(error.sum())
    queries = adult.workload.shape[0]
    return Run(
        largest,
        math.sqrt(squares / queries),
        total / queries,
        cpu,
        projection.fitting,
        projection.steps,
    )


if __name__ == "__main__":
    main()
