"""Draws of exact noise a CPU second, bulk and OpenDP: `make bench-noise`."""

import time

import numpy as np
from noise_support import budget_for

from dpquery.measurement.noise import exact_noise as noise_module
from dpquery.measurement.noise.exact_noise import draw

DRAWS = {"bulk": 4_000_000, "OpenDP": 40_000}


def rate(noise: str, scale: float, name: str) -> tuple[float, float]:
    """Return draws a CPU second, and the CPU seconds before the first."""
    noise_module.BULK_ABOVE = -1 if name == "bulk" else 10**9
    seconds = []
    for size in (1, DRAWS[name]):
        answers = np.zeros(size, dtype=np.int64)
        began = time.process_time()
        draw(answers, budget=budget_for(noise, scale), sensitivity=1, scale=scale)
        seconds.append(time.process_time() - began)
    return DRAWS[name] / seconds[1], seconds[0]


def main() -> None:
    """Print a line for each noise, scale and source."""
    print(f"{'noise':10} {'scale':>8} {'source':8} {'million/s':>10} {'first, ms':>10}")
    for name in DRAWS:
        rate("laplace", 8.0, name)  # imports
    for noise in ("laplace", "gaussian"):
        for scale in (1.0, 10.0, 1e3, 1e6, 1e9, 1e12):
            for name in DRAWS:
                each, first = rate(noise, scale, name)
                print(f"{noise:10} {scale:8g} {name:8} {each / 1e6:10.2f} {first * 1e3:10.1f}")


if __name__ == "__main__":
    main()
