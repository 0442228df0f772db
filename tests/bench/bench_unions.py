"""Forty random unions of products against the bound: the table "Random unions" of benchmarks.md.

`make bench-strategies` runs it. It prints a row each under Gaussian noise (epsilon = 1,
delta = 1e-6): what is chosen, its RMSE, the bound, their ratio, the convex optimum where it can be
solved outright, which side the gap is due to, and CPU seconds until the choice was at hand and in
all, one thread. `tuning` or `held-back` as an argument prints one half, numbers single unions.
"""

import math
import random
import sys
import time

from dense import analytic_gaussian_sigma

import dpquery.strategy.search.select as module
from dpquery.exceptions import UnsupportedWorkloadError
from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import parse
from dpquery.strategy.algebra.orbits import orbits_of
from dpquery.strategy.optimize import opt_orbits
from dpquery.strategy.optimize.opt_orbits import OrbitsOptimum, orbits_optimum

UNIONS = 40
HALVES = {"tuning": range(UNIONS // 2), "held-back": range(UNIONS // 2, UNIONS)}
CODES = (2, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 40)
MOST_CELLS = 50_000
DENSE_COMBINATIONS = 2_100  # of orbits, up to which the convex optimum is solved outright
HEAD = """
dataset: {{id: union, version: 1}}
privacy: {{unit: row, delta: 1e-9}}
budget: {{epsilon: 4, delta: 1e-9}}
other: drop
domain: {{{domain}}}
workload:
"""


def predicates(rng, codes):
    """Return a random set of predicates over so many codes, as text."""
    if codes == 2:
        return rng.choice(("identity", "identity", "identity+total", "{is: 0}"))
    kind = rng.choice(
        ("identity", "identity", "identity+total", "prefix", "all-ranges", "groups", "width")
    )
    if kind == "width":
        return f"{{width: {rng.randint(2, codes - 1)}}}"
    if kind != "groups":
        return kind
    cuts = sorted(rng.sample(range(1, codes), min(codes - 1, rng.randint(1, 4))))
    spans = zip([0, *cuts], [*cuts, codes], strict=True)
    groups = ", ".join(f"g{k}: [[{a}, {b - 1}]]" for k, (a, b) in enumerate(spans))
    return f"{{groups: {{{groups}}}}}"


def item(rng, sizes):
    """Return one random item over some attributes, as text."""
    names, kind = list(sizes), rng.random()
    if kind < 0.1 or (kind < 0.2 and len(names) > 3):
        chosen = rng.sample(names, 3)
        tests = ", ".join(f"{name}: {{in: [[0, {(sizes[name] - 1) // 2}]]}}" for name in chosen)
        if kind < 0.1:
            return f"any_of: {{{tests}}}"
        return f"threshold: {{r: 2, of: [{', '.join(chosen)}], targets: {{{tests}}}}}"
    chosen = rng.sample(names, rng.randint(1, min(4, len(names))))
    return f"product: {{{', '.join(f'{name}: {predicates(rng, sizes[name])}' for name in chosen)}}}"


def union_spec(number):
    """Return the spec of one union, always the same for a number, as text."""
    rng = random.Random(1_000 + number)  # noqa: S311 (no secret)
    while True:
        sizes = {name: rng.choice(CODES) for name in "abcdefg"[: rng.randint(3, 7)]}
        if math.prod(sizes.values()) <= MOST_CELLS:
            break
    lines = [
        f"  - {{name: q{k}, weight: {rng.choice((1, 1, 1, 2, 5))}, {item(rng, sizes)}}}"
        for k in range(rng.randint(3, 7))
    ]
    domain = ", ".join(f"{name}: {{range: [0, {n - 1}]}}" for name, n in sizes.items())
    return HEAD.format(domain=domain) + "\n".join(lines) + "\n"


def convex_optimum(workload):
    """Return the least loss of any strategy and its proven bound; None where it is too large."""
    V = module.gram(workload)
    most, opt_orbits.MOST_COMBINATIONS = opt_orbits.MOST_COMBINATIONS, DENSE_COMBINATIONS
    try:
        found = orbits_optimum(V, [orbits_of(matrices) for matrices in V.matrices])
    except UnsupportedWorkloadError:
        return None
    finally:
        opt_orbits.MOST_COMBINATIONS = most
    return (found.loss, found.bound) if isinstance(found, OrbitsOptimum) else None


def selected(workload, noise="gaussian"):
    """Return the selection, and CPU seconds until its choice was at hand and in all."""
    compared, at_hand = module._try, {}

    def timed(name, build, problem, goal):
        candidate = compared(name, build, problem, goal)
        at_hand[candidate.name] = time.process_time()
        return candidate

    module._try = timed
    try:
        start = time.process_time()
        selection = module.select(workload, noises=(noise,))[noise]
        end = time.process_time()
    finally:
        module._try = compared
    return selection, at_hand[selection.best.name] - start, end - start


def row(number):
    """Return the cells of one row of the table."""
    workload = compile_spec(parse(union_spec(number), name=f"union {number}", files={})).workload
    selection, at_hand, whole = selected(workload)
    queries = module.weighted_queries(workload)
    std = analytic_gaussian_sigma(1.0, 1e-6)
    rmse = selection.best.error.weighted_rmse
    bound = math.sqrt(selection.bound.loss / queries) if selection.bound else math.nan
    optimum, fault = math.nan, ""
    if not rmse <= 1.001 * bound:
        outright = convex_optimum(workload)
        if outright:
            optimum = math.sqrt(outright[0] / queries)
            fault = "plan" if rmse / optimum > optimum / bound else "bound"
    return [
        str(number),
        "x".join(map(str, workload.shape_of_domain)),
        selection.best.name,
        f"{std * rmse:.3f}",
        f"{std * bound:.3f}",
        f"{rmse / bound:.3f}",
        "" if math.isnan(optimum) else f"{std * optimum:.3f}",
        fault,
        f"{at_hand:.1f}",
        f"{whole:.1f}",
    ]


def main():
    wanted = sys.argv[1:] or list(HALVES)
    print(
        "| union | classes | chosen | RMSE | bound | x bound | optimum | gap | at hand | in all |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for word in wanted:
        for number in HALVES.get(word) or [int(word)]:
            print("|", " | ".join(row(number)), "|", flush=True)


if __name__ == "__main__":
    main()
