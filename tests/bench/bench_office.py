"""Ten office-like specs against the convex optimum: the table "Small workloads" of benchmarks.md.

`make bench-strategies` runs it. It prints, for each, the RMSE of the best strategy
without classes of cells, that of the chosen one, the proven bound (Gaussian noise, epsilon = 1,
delta = 1e-6; Laplace noise at epsilon = 1), and CPU seconds of the search, one thread.
"""

import math
import sys
import time

from dense import analytic_gaussian_sigma

from dpquery.operators.compile import compile_spec
from dpquery.spec.parsing.read import parse
from dpquery.strategy.search.select import select

HEAD = """
dataset: {{id: office, version: 1}}
privacy: {{unit: row, delta: 1e-9}}
budget: {{epsilon: 4, delta: 1e-9}}
other: drop
domain: {{{domain}}}
workload:
"""
STATES = "{groups: {A: [[0, 9]], B: [[10, 24]], C: [[25, 29]], D: [[30, 59]]}}"
YES_NO = ", ".join(f"{name}: boolean" for name in "abcdefghijkl")
OFFICE = {
    "smallest: any of three, 2 of 3, one": (
        "a: boolean, b: boolean, c: boolean",
        [
            "any_of: {a: {is: yes}, b: {is: yes}, c: {is: yes}}",
            "threshold: {r: 2, of: [a, b, c]}",
            "product: {a: {is: yes}}",
        ],
    ),
    "six single questions": (
        YES_NO[: YES_NO.index(", g")],
        [f"product: {{{name}: {{is: yes}}}}" for name in "abcdef"],
    ),
    "a dozen single questions": (
        YES_NO,
        [f"product: {{{name}: {{is: yes}}}}" for name in "abcdefghijkl"],
    ),
    "a dozen questions of two columns each": (
        "age: {range: [0, 99]}, income: {range: [0, 49]}, sex: boolean, job: boolean",
        [
            f"product: {{{first}, {second}}}"
            for first, second in (
                ("age: {between: [0, 17]}", "sex: {is: yes}"),
                ("age: {between: [18, 64]}", "job: {is: yes}"),
                ("age: {between: [65, 99]}", "sex: {is: yes}"),
                ("age: {between: [16, 24]}", "job: {is: no}"),
                ("age: {between: [25, 54]}", "income: {between: [0, 9]}"),
                ("age: {between: [65, 99]}", "income: {between: [0, 9]}"),
                ("income: {between: [40, 49]}", "sex: {is: no}"),
                ("income: {between: [10, 39]}", "sex: {is: no}"),
                ("income: {between: [0, 4]}", "job: {is: yes}"),
                ("sex: {is: yes}", "job: {is: yes}"),
                ("age: {between: [30, 49]}", "sex: {is: no}"),
                ("income: {between: [25, 49]}", "job: {is: yes}"),
            )
        ],
    ),
    "tables over different slices": (
        "region: {range: [0, 9]}, age: {range: [0, 14]}, income: {range: [0, 7]}, sex: boolean",
        [
            "where: {region: {is: 0}}, product: {age: prefix}",
            "where: {region: {is: 1}}, product: {income: identity, sex: identity}",
            "where: {region: {is: 2}}, product: {age: identity}",
            "where: {region: {is: 3}}, product: {income: prefix}",
            "where: {region: {is: 4}}, product: {age: prefix, sex: identity}",
            "product: {region: identity}",
        ],
    ),
    "indicators with thresholds": (
        "a: boolean, b: boolean, c: boolean, d: boolean, e: boolean",
        [
            "any_of: {a: {is: yes}, b: {is: yes}, c: {is: yes}, d: {is: yes}, e: {is: yes}}",
            "threshold: {r: 2, of: [a, b, c]}",
            "threshold: {r: 3, of: [b, c, d, e]}",
            "marginals: {ways: 1}",
        ],
    ),
    "sub-populations": (
        "age: {range: [0, 17]}, income: {range: [0, 9]}, job: boolean, sex: boolean",
        [
            "where: {job: {is: yes}}, product: {income: identity}",
            "where: {age: {between: [0, 4]}}, product: {sex: identity, job: identity}",
            "where: {age: {between: [13, 17]}}, product: {income: prefix}",
            "where: {sex: {is: no}, job: {is: no}}, product: {age: prefix}",
            "product: {sex: identity, job: identity}",
        ],
    ),
    "county x age with state groups": (
        "county: {range: [0, 59]}, age: {range: [0, 9]}",
        [
            "product: {county: identity}",
            f"product: {{county: {STATES}, age: prefix}}",
            "product: {age: identity}",
        ],
    ),
    "a slice with a prefix": (
        "region: {range: [0, 7]}, age: {range: [0, 39]}, sex: boolean",
        [
            "where: {region: {is: 0}}, product: {age: prefix}",
            "product: {region: identity, sex: identity}",
            "product: {age: identity}",
        ],
    ),
    "two geographies": (
        "area: {range: [0, 59]}, school: {range: [0, 7]}",
        [
            f"product: {{area: {STATES}, school: identity}}",
            "product: {area: {groups: {X: [[0, 19]], Y: [[20, 39]], Z: [[40, 59]]}}, "
            "school: prefix}",
            "product: {area: identity}",
        ],
    ),
    "age by sex, cumulative by region": (
        "region: {range: [0, 5]}, age: {range: [0, 24]}, sex: boolean",
        [
            "product: {age: identity, sex: identity}",
            "product: {region: identity, age: prefix}",
            "product: {region: identity, sex: identity}",
        ],
    ),
}
"""Name -> the domain and the items of a spec."""


def office_spec(name):
    """Return the spec of one of them as text."""
    domain, items = OFFICE[name]
    lines = [f"  - {{name: q{k}, {item}}}" for k, item in enumerate(items)]
    return HEAD.format(domain=domain) + "\n".join(lines) + "\n"


def row(name, noise):
    """Return the RMSE without and with classes of cells, the bound, and CPU seconds."""
    workload = compile_spec(parse(office_spec(name), name=name, files={})).workload
    start = time.process_time()
    selection = select(workload, noises=(noise,))[noise]
    seconds = time.process_time() - start
    std = analytic_gaussian_sigma(1.0, 1e-6) if noise == "gaussian" else math.sqrt(2)
    others = [
        candidate.error.weighted_rmse
        for candidate in selection.candidates
        if candidate.error and candidate.name != "OPT_C"
    ]
    bound = math.sqrt(selection.bound.loss / workload.shape[0]) if selection.bound else math.nan
    return (
        selection.best.name,
        std * min(others),
        std * selection.best.error.weighted_rmse,
        std * bound,
        seconds,
    )


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for noise in ("gaussian", "laplace"):
        for name in OFFICE:
            if wanted and not any(word in name for word in wanted):
                continue
            best, before, after, bound, seconds = row(name, noise)
            print(
                f"| {name} | {noise} | {before:.3f} | {after:.3f} | {bound:.3f} | "
                f"{before / bound:.3f} | {after / bound:.3f} | {best} | {seconds:.1f} |",
                flush=True,
            )
