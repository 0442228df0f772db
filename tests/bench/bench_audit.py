"""What the audit sees and how often it is wrong, at its full size.

Noise comes from the bulk sampler at a scale that is off by a factor, for every case that the audit
repeats: the share of cases in which each part sees it, and with the right scale its false alarms.
Run as `python tests/bench/bench_audit.py`; some five CPU minutes.
"""

from dataclasses import replace

import numpy as np
from scipy.stats import kstest

from dpquery.audit.cases import CASES, FULL, QUICK
from dpquery.audit.end_to_end import _privacy_loss, dependence
from dpquery.audit.measurements import RepeatedMeasurements, neighbouring_records
from dpquery.audit.planned_cases import planned_case
from dpquery.audit.statistics import ALPHA, combined, goodness_of_fit
from dpquery.measurement.noise.bulk_noise import BulkSampler

FACTORS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.01, 1.02, 1.05)
TRIES, SOUND = 10, 60


def noise(planned, factor, replicates):
    sampler = BulkSampler(planned.noise.law.noise, float(planned.noise.law.scale) * factor)
    return sampler.sample(replicates * planned.strategy.length).reshape(replicates, -1)


def law_p(planned, values):
    return combined(goodness_of_fit(group, planned.noise.law) for group in (values, *values.T))


def measured(planned, factor, replicates):
    first, second = (planned.answers(records) for records in neighbouring_records(planned))
    values = [
        noise(planned, factor, replicates) + exact.astype(np.int64) for exact in (first, second)
    ]
    return RepeatedMeasurements(planned, values[0], first, values[1], second)


def main():
    size = replace(FULL)
    cases = [planned_case(case, size) for case in CASES if case.repeated]
    for label, replicates in (("full", FULL.replicates), ("quick", QUICK.replicates)):
        print(f"{label}: {replicates} replicates; seen in so many of {TRIES} tries a case")
        for factor in FACTORS:
            residuals, neighbours = [], []
            for planned in cases:
                tries = [measured(planned, factor, replicates) for _ in range(TRIES)]
                residuals.append(
                    sum(law_p(planned, measurements.residuals) <= ALPHA for measurements in tries)
                )
                neighbours.append(
                    sum(not _privacy_loss(measurements).passed for measurements in tries)
                )
            print(f"  scale x {factor}: residuals {residuals}, neighbours {neighbours}", flush=True)
    alarms, p_values, checks = 0, [], 0
    for planned in cases:
        for _ in range(SOUND):
            measurements = measured(planned, 1, 2_000)
            p_values.append(goodness_of_fit(measurements.residuals, planned.noise.law))
            tests = [
                law_p(planned, measurements.residuals),
                dependence(measurements.residuals, planned.noise.law),
            ]
            alarms += sum(p <= ALPHA for p in tests) + (not _privacy_loss(measurements).passed)
            checks += 3
    print(f"sound noise: {alarms} alarms in {checks} tests, p-values of residuals uniform with "
          f"p = {kstest(p_values, 'uniform').pvalue:.2g}")  # fmt: skip


if __name__ == "__main__":
    main()
