"""Random specs of every form that a workload can take, small enough to be written out densely."""

import math

MOST_CELLS = 400


def random_spec(rng, *, wheres=None):
    """Return the text of a spec over three to six attributes, with up to 400 cells.

    Args:
        rng: the numpy generator that draws it.
        wheres: how many conditions the first item has; None draws it.
    """
    d = int(rng.integers(3, 7))
    sizes = _sizes(rng, d)
    names = "abcdef"[:d]
    lines = [
        "dataset: {id: fuzz, version: 1}",
        f"privacy: {{unit: row{', delta: 1e-6' if rng.random() < 0.5 else ''}}}",
        "budget: {epsilon: 100}",
        "other: drop",
        "domain:",
    ]
    kinds = {}
    for name, n in zip(names, sizes, strict=True):
        kinds[name], text = _attribute(rng, name, n)
        lines.append(f"  {name}: {text}")
    lines.append("workload:")
    for k in range(int(rng.integers(2, 5))):
        body = (
            _product(rng, names, sizes, kinds, wheres)
            if k == 0
            else _item(rng, names, sizes, kinds)
        )
        weight = f", weight: {10.0 ** rng.uniform(-3, 3):.3g}" if rng.random() < 0.5 else ""
        lines.append(f"  - {{name: q{k}, {body}{weight}}}")
    return "\n".join(lines) + "\n"


def _sizes(rng, d):
    while True:
        sizes = rng.integers(2, 7, d).tolist()
        if math.prod(sizes) <= MOST_CELLS:
            return sizes


def _attribute(rng, name, n):
    draw = rng.random()
    if n == 4 and draw < 0.3:
        return "merge", f"{{merge: {{{name}1: boolean, {name}2: boolean}}}}"
    if n == 2 and draw < 0.4:
        return "boolean", "boolean"
    if draw < 0.5:
        return "values", f"{{values: [{', '.join(f'v{k}' for k in range(n))}]}}"
    return "range", f"{{range: [0, {n - 1}]}}"


def _item(rng, names, sizes, kinds):
    draw = rng.random()
    if draw < 0.3:
        return _product(rng, names, sizes, kinds, None)
    if draw < 0.45:
        return _sum(rng, names, sizes, kinds)
    if draw < 0.65:
        return (
            f"marginals: {{{'ways' if rng.random() < 0.5 else 'up_to'}: {int(rng.integers(1, 4))}}}"
        )
    chosen = rng.permutation(len(names))[: int(rng.integers(2, 4))].tolist()
    if draw < 0.85:
        attributes = ", ".join(
            f"{names[i]}: {_condition(rng, names[i], sizes[i], kinds[names[i]], braces=True)}"
            for i in chosen
        )
        return f"any_of: {{{attributes}}}"
    r = int(rng.integers(1, len(chosen) + 1))
    return f"threshold: {{r: {r}, of: [{', '.join(names[i] for i in chosen)}]}}"


def _sum(rng, names, sizes, kinds):
    """A sum of one attribute, by some others or by itself."""
    plain = [i for i, name in enumerate(names) if kinds[name] != "merge"]
    if not plain:
        return _product(rng, names, sizes, kinds, None)
    i = plain[rng.integers(len(plain))]
    numbers = None
    if kinds[names[i]] != "range" or rng.random() < 0.5:
        numbers = [int(rng.integers(1, 40)), *rng.integers(-9, 40, sizes[i] - 1).tolist()]
    several = numbers is not None and rng.random() < 0.5
    elsewhere = _product(rng, names, sizes, kinds, None).replace("product:", "by:", 1)
    by, _, where = elsewhere.partition(", where:")
    if f"{names[i]}: " in elsewhere:  # a sum of what adds nothing is refused
        numbers = [number or 1 for number in numbers or range(sizes[i])]
    parts = [f"of: {names[i]}"]
    if numbers is not None:
        named = [f"{_value(kinds[names[i]], k)}: {n}" for k, n in enumerate(numbers)]
        parts.append(f"value: {numbers}" if several else f"value: {{{', '.join(named)}}}")
    return f"sum: {{{', '.join([*parts, by])}}}" + (f", where:{where}" if where else "")


def _product(rng, names, sizes, kinds, wheres):
    order = rng.permutation(len(names)).tolist()
    most = len(order) - 1
    chosen = order[: int(rng.integers(1, min(3, most) + 1))]
    rest = order[len(chosen) :]
    count = min(len(rest), int(rng.integers(0, len(rest) + 1)) if wheres is None else wheres)
    axes = ", ".join(
        f"{names[i]}: {_set(rng, names[i], sizes[i], kinds[names[i]])}" for i in chosen
    )
    where = ", ".join(
        f"{names[i]}: {_condition(rng, names[i], sizes[i], kinds[names[i]])}" for i in rest[:count]
    )
    return f"product: {{{axes}}}" + (f", where: {{{where}}}" if where else "")


def _set(rng, name, n, kind):
    words = ["identity", "identity", "total", "identity+total", "condition"]
    if kind == "range":
        words += ["prefix", "prefix", "all-ranges", "width"]
    word = words[rng.integers(len(words))]
    if word == "condition":
        return _condition(rng, name, n, kind, braces=True)
    return f"{{width: {int(rng.integers(1, n + 1))}}}" if word == "width" else word


def _value(kind, k):
    if kind == "boolean":
        return ("no", "yes")[k]
    return f"v{k}" if kind == "values" else str(k)


def _condition(rng, name, n, kind, *, braces=False):
    if kind == "merge":
        return _merged(rng, name)
    k = int(rng.integers(n))
    draw = rng.random()
    if kind == "range" and draw < 0.4:
        return f"{{between: [{k}, {int(rng.integers(k, n))}]}}"
    if draw < 0.6:
        chosen = sorted(rng.permutation(n)[: int(rng.integers(1, n + 1))].tolist())
        return f"{{in: [{', '.join(_value(kind, code) for code in chosen)}]}}"
    return f"{{is: {_value(kind, k)}}}" if braces else _value(kind, k)


def _merged(rng, name):
    """A condition on one or both columns of a merged attribute."""
    parts = [f"{name}{k}: {('no', 'yes')[rng.integers(2)]}" for k in (1, 2)]
    values = "{" + ", ".join(parts[: int(rng.integers(1, 3))]) + "}"
    return f"{{is: {values}}}"
