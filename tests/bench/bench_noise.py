"""Draws of exact noise a CPU second, bulk and OpenDP: `make bench-noise`.

The laws are drawn in turns and the best turn of each counts, so that what else the machine does
falls on all alike. The last column is a law's rate over that of discrete Gaussian noise from the
same source.
"""

import time

import numpy as np
from dense import budget_for

from dpquery.measurement.noise import exact_noise as noise_module
from dpquery.measurement.noise.exact_noise import draw

DRAWS = {"bulk": 500_000, "OpenDP": 5_000}
LAWS = {"bulk": ("gaussian", "rounded", "laplace"), "OpenDP": ("gaussian", "laplace")}
SCALES = (1.0, 10.0, 1e3, 1e6, 1e9, 1e12)
TURNS = 20


def seconds(law: str, scale: float, size: int) -> float:
    """Return the CPU seconds of one draw of so many numbers."""
    answers = np.zeros(size, dtype=np.int64)
    began = time.process_time()
    draw(answers, budget=budget_for(law, scale), sensitivity=1, scale=scale)
    return time.process_time() - began


def rates(name: str, scale: float) -> dict[str, tuple[float, float]]:
    """Return for each law its draws a CPU second, and the CPU seconds before the first draw."""
    noise_module.BULK_ABOVE = -1 if name == "bulk" else 10**9
    first, many = {}, {}
    for turn in range(TURNS):
        for law in LAWS[name]:
            took = {size: seconds(law, scale, size) for size in (1, DRAWS[name])}
            if turn:  # imports fall into the first
                first[law] = min(first.get(law, took[1]), took[1])
                many[law] = min(many.get(law, took[DRAWS[name]]), took[DRAWS[name]])
    return {law: (DRAWS[name] / (many[law] - first[law]), first[law]) for law in many}


def main() -> None:
    """Print a line for each source, scale and law."""
    print(f"{'source':8} {'scale':>8} {'law':10} {'million/s':>10} {'first, ms':>10} {'ratio':>7}")
    for name in DRAWS:
        for scale in SCALES:
            measured = rates(name, scale)
            for law, (each, first) in measured.items():
                ratio = each / measured["gaussian"][0]
                print(
                    f"{name:8} {scale:8g} {law:10} {each / 1e6:10.2f} {first * 1e3:10.1f}"
                    f" {ratio:7.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
