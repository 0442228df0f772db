"""How often the intervals of derived statistics hold the truth: 2,000 releases at each signal.

    make bench-derived

Prints one row a statistic, noise and signal: the share of intervals at level 0.95 that hold the
truth, those without bounds among them; of those with bounds alone; how many have none; and the
share that holds it by the root of squares, as if answers were independent.
"""

import numpy as np
from release_parts import Simulated, naive, strategies, town, truth

from dpquery.public_chance import public_generator

RELEASES, LEVEL = 2000, 0.95
SIGNALS = (("lost", 2500.0), ("low", 700.0), ("middle", 150.0), ("high", 20.0))
"""Standard deviation of the noise on each measured row, over cells of some 500 records."""


def measured(simulated, counts, expected, std, seed):
    chance, tallies = public_generator(seed), {}
    for _ in range(RELEASES):
        figures = simulated.rows(counts, chance, std, level=LEVEL)
        for item in simulated.spec.derived:
            rows, true = figures[item.name], expected[item.name]
            bounded = ~np.isnan(rows.low)
            with np.errstate(all="ignore"):
                holds = ~bounded | ((rows.low <= true) & (true <= rows.high))
            spread = np.full(len(true), np.nan)
            if item.statistic.kind != "quantiles":
                with np.errstate(all="ignore"):
                    low, high = naive(simulated.joint, item, LEVEL)
                spread = ((low <= true) & (true <= high)).astype(float)
            tallies.setdefault(item.name, []).append((holds, bounded, spread))
    return tallies


def main():
    counts = town(3000)
    expected = truth(counts)
    print("statistic noise     signal  held   with-bounds  unbounded  naive")
    for noise in ("gaussian", "laplace"):
        simulated = Simulated(strategies(noise)[0])
        for seed, (signal, std) in enumerate(SIGNALS):
            for name, tally in measured(simulated, counts, expected, std, seed).items():
                holds, bounded, spread = (np.array(part) for part in zip(*tally, strict=True))
                within = holds[bounded].mean() if bounded.any() else np.nan
                print(
                    f"{name:9} {noise:9} {signal:7} {holds.mean():.3f}  {within:11.3f}  "
                    f"{1 - bounded.mean():9.3f}  {spread.mean():.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
