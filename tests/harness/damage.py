"""Data files, specs and plans as nobody should write them."""

import copy
import gzip
import os
import random
import re

import pytest
from town import ended, start

from dpquery.limits import MAX_LINE

# Values and files that nobody means well by, and what must come of them.

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


def some_or(many, *, some):
    """So many examples, and very many where there is time."""
    long = pytest.param(many, id="many", marks=pytest.mark.slow)
    return pytest.mark.parametrize("examples", [pytest.param(some, id="some"), long])


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


# CSV files as unlike each other as can be, and lines that nobody would expect in one.
#
# All files share the declared columns of the town and nothing else. Most of their
# rows hold a canary, so that whatever is copied from them anywhere can be found.

CANARY = "CANARY_9f3a71"
HEADER = b"age,sex,region,income,name\n"
ROWS = tuple(
    f"{row}{CANARY}{person}\n".encode()
    for person, row in enumerate(("0,F,1,5,", "2,M,2,15,", f"4,F,{CANARY},45.5,", "3,M,1,20.5,"))
)
SECRET = b",".join([CANARY.encode()] * 5)
PLAIN = HEADER + b"".join(ROWS)

SMALL = {
    "plain": PLAIN,
    "empty": HEADER,
    "no line feed": HEADER.strip(),
    "one row": HEADER + ROWS[0],
    "one row, no line feed": HEADER + ROWS[0].strip(),
    "shuffled": HEADER + b"".join(ROWS[i] for i in (2, 0, 3, 1)),
    "all outside": HEADER + b"99,X,,-1,x\n" * 50,
    "all missing": HEADER + b",,,,\n" * 50,
    "only commas": HEADER + b",,\n,,,,,,,\n,\n,,,,\n" * 9,
    "canaries": HEADER + (SECRET + b"\n") * 7,
    "canaries that would be read": HEADER + f"1,F,{CANARY},5,{CANARY}\n".encode() * 7,
    "unicode": HEADER + "４,Ｆ,１,５,ж\n0,F,\u2028,5,🂡\n".encode() * 3,
    "not UTF-8": HEADER + b"\xff\xfe\xc3\x28,F,1,5,\x80\n\xed\xa0\x80,F,1,5,\xc0\xaf\n" * 3,
    "UTF-16 below the header": HEADER + b"".join(ROWS).decode().encode("utf-16"),
    "NUL": HEADER + b"\0\n1,F,1,5,\0\n" + ROWS[0],
    "ragged": HEADER + b"1\n1,F,1,5,a,b,c\n,\n" + ROWS[0],
    "quotes": HEADER + b'1,"F,1,5,a\n"1","F","1","5","a"\n1,F"",1,5,a\n' + ROWS[1],
    "one quote that never ends": HEADER + ROWS[0] + b'1,F,1,5,"a\n' + b"".join(ROWS) * 9,
    "doubled quotes": HEADER + b'"""1""",F,1,5,""""\n"1"",F,1,5,a\n' + ROWS[0],
    "line feeds in quotes": HEADER + b'1,F,1,5,"a\nb"\n' * 3 + ROWS[1],
    "CRLF": PLAIN.replace(b"\n", b"\r\n"),
    "carriage returns": HEADER.replace(b"\n", b"\r\n") + ROWS[0].replace(b"\n", b"\r\n") + b"\r1\r",
    "lone carriage returns": HEADER + b"".join(ROWS).replace(b"\n", b"\r"),
    "two carriage returns": HEADER + b"".join(ROWS).replace(b"\n", b"\r\r\n"),
    "no numbers": HEADER + b"nan,F,1,nan,a\n1e400,F,1,1e400,a\n-0,F,1,inf,a\n0x1,F,1,1_0,a\n",
    "tiny numbers": HEADER + b"0,F,1,1e-400,a\n0,F,1,-0,a\n-0,F,1,-1e-400,a\n0,F,1,4.9e-324,a\n",
    "huge integers": HEADER + b"9" * 5000 + b",F,1,5,a\n0,F,1," + b"8" * 5000 + b",a\n" + ROWS[0],
    "leading zeros": HEADER + b"004,F,01,005.0,a\n+4,F,1,+5,a\n4.000,F,1.0,5e0,a\n",
    "form feeds": HEADER + b"\x0c1\x0c,\x0bF, 1\t,5\x0c,\x0ca\n\x0c\n\x1c1,F\x1d,1\x85,5\xa0,a\n",
    "blank lines": HEADER + b"\n\n \n\t\n" + ROWS[3],
    "only blank lines": HEADER + b"\n\r\n" * 40,
    "mark": b"\xef\xbb\xbf" + HEADER + b"\xef\xbb\xbf1,F,1,5,a\n",
    "gzip": HEADER + gzip.compress(PLAIN * 9, mtime=0),
    "markup": HEADER + b"[red]1[/red],%s,{0},\x1b[2J5,\x1b]0;a\x07\n=1+1,@F,-1,+5,<b>a\n",
    "columns moved": b"name,income,region,sex,age\n" + b"a,5,1,F,0\n" * 9,
    "a quoted header": b'"age", sex ,"region",income, name\t\r\n' + ROWS[0] * 3,
    "one person": HEADER + ROWS[0] * 999,
    "nobody": HEADER + b"0,F,1,5,\n0,F,1,5, \n" * 9,
    "one person spelt in many ways": HEADER + b'0,F,1,5, a\n0,F,1,5,"a"\n0,F,1,5,A\t\n0,F,1,5,a\n',
    "more columns": HEADER.strip() + f",{CANARY}\n".encode() + b"0,F,1,5,a,7\n" * 9,
    "a column without a name": HEADER.strip() + b",\n" + b"0,F,1,5,a,7\n" * 9,
    "undeclared columns of one name": HEADER.strip() + b",x,x\n" + b"0,F,1,5,a,7,8\n" * 9,
}
LARGE = {
    "a megabyte": HEADER + b"1,F,1,5," + b"x" * 2**20 + b"\n" + ROWS[2],
    "a person of a megabyte": HEADER + b"1,F,1,5," + b"x" * (MAX_LINE - 8) + b"\n" + ROWS[2],
    "three megabytes in one line": HEADER + ROWS[1] + b"1," * (3 * MAX_LINE // 2) + b"\n" + ROWS[2],
    "a megabyte of quotes": HEADER + b'"' * MAX_LINE + b"\n" + ROWS[2],
    "a megabyte of NUL at the end": HEADER + ROWS[0] + b"\0" * MAX_LINE,
    "many rows": HEADER + b"".join(ROWS) * 50_000,
    "many rows that are not clean": HEADER + (b"".join(ROWS) + b'"1",F,1,5,a\n') * 20_000,
    "many persons": HEADER + b"".join(b"1,F,1,5,%d\n" % person for person in range(100_000)),
}
FILES = SMALL | LARGE

# Refused, all for the same reason and in the same words.
NO_HEADERS = {
    "nothing": b"",
    "a line feed": b"\n" + PLAIN,
    "UTF-16": PLAIN.decode().encode("utf-16"),
    "gzip": gzip.compress(PLAIN, mtime=0),
    "not UTF-8": b"\xff,\xfe," + PLAIN,
    "a quote that never ends": b'"' + PLAIN,
    "a header that is too long": b"x," * MAX_LINE + PLAIN,
    "carriage returns": PLAIN.replace(b"\n", b"\r"),
    "a canary in a quote": f'"{CANARY}'.encode() + PLAIN,
}
# Refused because a column is missing, or there twice: `region`.
WITHOUT_REGION = {
    "another name": PLAIN.replace(b"region", CANARY.encode()),
    "twice": b"region," + HEADER + b"".join(b"1," + row for row in ROWS),
    "another case": PLAIN.replace(b"region", b"REGION"),
    "in two": PLAIN.replace(b"region", b"re gion"),
    "empty": PLAIN.replace(b"region", b""),
    "none and no rows": HEADER.replace(b"region,", b""),
}

# What a line may be, without its line feed; some are records of the town, most are none.
NASTY_LINES = (
    *(row.strip() for row in ROWS),
    *(b"", b"\r", b" ", b"\0", b'"', b'""', b",", b",,,,", b",,,,\r", b"\xef\xbb\xbf", b"\x0c"),
    *(b"1,F,1,5,a\r", b"1,F,1,5,a\r\r", b"1,F,1\r,5,a", b"\r1,F,1,5,a", b"1,F,1,5,a\0"),
    *(b'"1","F","1","5","a"', b'1,F,1,5,"a', b'1,F,1,5,"a"x', b'"1,F,1,5,a', b'1,F,1,"5,a"'),
    *(b"\xef\xbb\xbf1,F,1,5,a", b"\xff\xfe,F,1,5,a", b"1,F,1,5,\xc3", b"1,F,1,5,a,", b"1,F,1,5"),
    *(b"age,sex,region,income,name", b"#1,F,1,5,a", b"\\N,F,1,5,a", b"NULL,NA,nan,,", SECRET),
    *(
        b"99,F,1,5,a",
        b"1,F,1,1e400,a",
        b"-0,F,1,-0,a",
        b"1,F,7,5,a",
        b"1,F,1,5,",
        b" 1 , F,1 ,5, a",
    ),
    *(b"1,F,1,5," + b"x" * 300, b"x" * 70_000, b'1,F,1,5,"' + b"y" * 140_000 + b'"'),
)
LONG_LINES = (
    *(b"1,F,1,5," + b"x" * (MAX_LINE - 8 + more) for more in (-1, 0, 1)),
    *(b"1,F,1,5," + b"x" * (MAX_LINE - 8) + b"\r", b"," * (2 * MAX_LINE)),
    b'1,F,1,5,"' + b"x" * (MAX_LINE - 10) + b'"',
)


def line_starts(content: bytes, *, most: int) -> list[int]:
    """Places below the header at which a line begins, spread over the file, and its end."""
    places = [match.end() for match in re.finditer(b"\n", content)]
    step = max(1, -(-len(places) // most))
    return sorted({*places[::step], len(content)})


def with_line(content: bytes, line: bytes, place: int) -> bytes:
    """The file with one physical line more, which begins at a place where a line begins."""
    if place == len(content) and not content.endswith(b"\n"):
        return content + b"\n" + line
    return content[:place] + line + b"\n" + content[place:]
