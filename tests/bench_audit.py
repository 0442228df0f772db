"""What the audit sees and how often it is wrong, at its full size.

Noise comes from the bulk sampler at a scale that is off by a factor, for every case that the audit
repeats: the share of cases in which each part sees it, and with the right scale its false alarms.
Run as `python tests/bench_audit.py`; some five CPU minutes.
"""

from dataclasses import replace

import numpy as np
from scipy.stats import kstest

from dpquery.audit.cases.cases import CASES, FULL, QUICK
from dpquery.audit.cases.planned_cases import planned_case
from dpquery.audit.checks.dependence import dependence
from dpquery.audit.checks.neighbours import _privacy_loss
from dpquery.audit.checks.repeated_measurements import RepeatedMeasurements, neighbouring_records
from dpquery.audit.statistics import ALPHA, combined, goodness_of_fit
from dpquery.measurement.noise.bulk_noise import BulkSampler

FACTORS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.01, 1.02, 1.05)
TRIES, SOUND = 10, 60


def noise(own, factor, replicates):
    sampler = BulkSampler(own.case.noise, float(own.noise.law.scale) * factor)
    return sampler.sample(replicates * own.strategy.length).reshape(replicates, -1)


def law_p(own, values):
    return combined(goodness_of_fit(group, own.noise.law) for group in (values, *values.T))


def measured(own, factor, replicates):
    first, second = (own.answers(records) for records in neighbouring_records(own))
    values = [noise(own, factor, replicates) + exact.astype(np.int64) for exact in (first, second)]
    return RepeatedMeasurements(own, values[0], first, values[1], second)


def main():
    size = replace(FULL)
    cases = [planned_case(own, size) for own in CASES if own.repeated]
    for label, replicates in (("full", FULL.replicates), ("quick", QUICK.replicates)):
        print(f"{label}: {replicates} replicates; seen in so many of {TRIES} tries a case")
        for factor in FACTORS:
            law, told = [], []
            for own in cases:
                tries = [measured(own, factor, replicates) for _ in range(TRIES)]
                law.append(sum(law_p(own, each.residuals) <= ALPHA for each in tries))
                told.append(sum(not _privacy_loss(each).passed for each in tries))
            print(f"  scale x {factor}: residuals {law}, neighbours {told}", flush=True)
    alarms, p_values, checks = 0, [], 0
    for own in cases:
        for _ in range(SOUND):
            each = measured(own, 1, 2_000)
            p_values.append(goodness_of_fit(each.residuals, own.noise.law))
            found = [law_p(own, each.residuals), dependence(each.residuals, own.noise.law)]
            alarms += sum(p <= ALPHA for p in found) + (not _privacy_loss(each).passed)
            checks += 3
    print(f"sound noise: {alarms} alarms in {checks} tests, p-values of residuals uniform with "
          f"p = {kstest(p_values, 'uniform').pvalue:.2g}")  # fmt: skip


if __name__ == "__main__":
    main()
