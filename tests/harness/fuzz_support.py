"""Values and files that nobody means well by, and what must come of them."""

import copy
import os
import random
import re

import pytest
from cli_support import ended, start

WILD = [
    None, True, 0, -1, 1, 2, 7, 2**31, 2**40, 2**40 + 1, 2**63, 2**70, 2**256, -(2**63), 10**400,
    0.5, -0.0, 5e-324, 1e308, -1e308, float("inf"), float("nan"),
    "", "x", "0", "NaN", "1e999", "../../secret", "/etc/passwd", "a\x00b", "\ud800", "\x1b[2J",
    "<script>alert(1)</script>", "x" * 10_000, "eJwDAAAAAAE=", "AAAA",
    [], {}, [[]], [0], [1, 2], [[0, 1]], [-1, 0], [0] * 10_000, {"a": 1}, [[[[[[[[[[]]]]]]]]]],
]  # fmt: skip
NO_FILES = ["a pipe", "a device", "a folder", "a link to itself"]
PLACE = re.compile(r"[^\n]*w\.yaml(:[0-9]+:[0-9]+)?: .|(list\.txt|areas\.csv):[0-9]+:[0-9]+: .")


def slow_but(cases, *quick):
    """Cases for a parametrised test; all but some are tried by the long form alone."""
    return [pytest.param(case, marks=[] if case in quick else pytest.mark.slow) for case in cases]


def chance(seed):
    """Random mutations, the same in every run where there is a seed."""
    return random.Random(seed)  # noqa: S311


def paths(value, path=()):
    """Yield the path of every value inside some JSON, its own included."""
    yield path
    inside = value.items() if isinstance(value, dict) else ()
    inside = enumerate(value) if isinstance(value, list) else inside
    for key, part in inside:
        yield from paths(part, (*path, key))


def at(value, path):
    """Return what stands at a path."""
    for key in path:
        value = value[key]
    return value


def put(value, path, other):
    """Return a copy in which another value stands at a path."""
    if not path:
        return other
    copied = copy.deepcopy(value)
    at(copied, path[:-1])[path[-1]] = other
    return copied


def dropped(value, path):
    """Return a copy without the value at a path."""
    if not path:
        return {}
    copied = copy.deepcopy(value)
    del at(copied, path[:-1])[path[-1]]
    return copied


def mutated(value, draw, *, below=()):
    """Return a copy of some JSON with one thing changed, at or below a path."""
    place = draw.choice([path for path in paths(value) if path[: len(below)] == below])
    chosen = at(value, place)
    kind = draw.randrange(8)
    if kind == 0:
        return dropped(value, place)
    if kind == 1 and isinstance(chosen, list) and chosen:
        return put(value, place, [*chosen, draw.choice(chosen)])
    if kind == 2 and isinstance(chosen, list) and chosen:
        return put(value, place, draw.sample(chosen, len(chosen))[: draw.randint(0, len(chosen))])
    if kind == 3 and isinstance(chosen, dict):
        return put(value, (*place, draw.choice(["n", "kind", "shape", "x", "data"])), 1)
    if kind == 4 and isinstance(chosen, int | float) and not isinstance(chosen, bool):
        wider = chosen << 60 if isinstance(chosen, int) else chosen / 2
        return put(value, place, draw.choice([-chosen, chosen + 1, chosen - 1, chosen * 2, wider]))
    if kind == 5 and isinstance(chosen, str) and chosen:
        cut = draw.randrange(len(chosen))
        return put(
            value, place, chosen[:cut] + draw.choice(["", "A", "é", "0"]) + chosen[cut + 1 :]
        )
    if kind == 6:
        other = draw.choice([path for path in paths(value) if path[: len(below)] == below])
        return put(value, place, copy.deepcopy(at(value, other)))
    return put(value, place, draw.choice(WILD))


def damaged(content, draw):
    """Return bytes with some flipped, cut out, doubled or lost at the end."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        k = draw.randrange(len(changed) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            changed = changed[:k]
        elif kind == 1:
            del changed[k : k + draw.choice((1, 4, 100))]
        elif kind == 2:
            changed[k:k] = changed[max(0, k - 30) : k]
        else:
            changed[k : k + 1] = draw.choice((b"\x00", b"\xff", b"9", b"-", b'"', b"[", b"\x80"))
    return bytes(changed)


def replace_by(path, kind):
    """Put one of NO_FILES in the place of a file."""
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "a device" else path.name)


def limited(*arguments):
    """Run a command that may take 2 GB of memory and 40 CPU seconds."""
    code = (
        "import resource as r\n"
        "r.setrlimit(r.RLIMIT_AS, (5 << 29, 5 << 29))\n"
        "r.setrlimit(r.RLIMIT_CPU, (40, 40))"
    )
    return ended(start(*arguments, code=code))


def check_places(message):
    """Check that every line of a message names where in w.yaml or list.txt something is wrong."""
    for line in message.split("\n"):
        assert PLACE.match(line), line
        assert len(line) < 2000
