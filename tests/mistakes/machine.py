"""Mistakes that are made by rule, and what none of the tests sees of them.

    python tests/mistakes/machine.py 60 --seed 20261125

Operators on the syntax tree change one thing in one function of the modules that carry the
guarantee or what is published; a run tries some, drawn by a seed. What survives belongs into
survivors.txt with a verdict: why nobody can tell the difference, or the test that was written.
"""

import argparse
import ast
import random
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from mistakes.run import PLANTED, SECONDS, Mistake, functions_in, try_mistakes
from python_files import Module, find, package

SURVIVORS = PLANTED.with_name("survivors.txt")
GUARANTEE = ("measurement", "strategy.sensitivity", "spec.columns")
GUARANTEE += ("spec.spec", "spec.predicates", "spec.numbers")
PUBLISHED = ("reconstruction.intervals", "reconstruction.derived", "reconstruction.columns")
PUBLISHED += ("releases.tables", "releases.package", "releases.manifest", "releases.manifest_facts")
WITH_SERVERS = ("dpquery.measurement.counting.engines.spark",)
"""Left out: most of their tests need a server or Java."""
MODULES = tuple(f"dpquery.{name}." for name in GUARANTEE + PUBLISHED)

COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
SWAPPED = ast.Sub | ast.Div | ast.FloorDiv | ast.Pow | ast.MatMult
PAIRS = ("max min", "maximum minimum", "floor ceil", "any all", "argmax argmin", "nanmax nanmin")
EXCHANGED = {one: other for pair in PAIRS for one, other in (pair.split(), pair.split()[::-1])}
LEAVING = ast.Raise | ast.Return | ast.Continue | ast.Break


def made(among: tuple[Module, ...]) -> list[Mistake]:
    """Return every mistake that the operators make in the modules, in the order of their text."""
    mistakes = []
    for module in among:
        if module.name in WITH_SERVERS or not f"{module.name}.".startswith(MODULES):
            continue
        names = dict(functions_in(module.tree, module.name))
        for name, function in names.items():
            if name.rpartition(".")[0] in names:
                continue  # it is part of another function
            if within := _unique(module, name.removeprefix(f"{module.name}."), among):
                mistakes += _of_function(within, function)
    return mistakes


def _unique(module: Module, name: str, among: tuple[Module, ...]) -> str | None:
    """Return the name by which nothing but a function is found."""
    folder, last = module.name.split(".")[-2:]
    for within in (name, f"{last}.{name}", f"{folder}.{last}.{name}"):
        try:
            find(within, among)
        except LookupError:
            continue
        return within
    return None


def _of_function(within: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Mistake]:
    before, mistakes, seen = ast.unparse(function), [], Counter[str]()
    for old, new in _changes(function.body):
        name = f"`{_short(old)}` becomes `{_short(new)}`"
        seen[name] += 1
        name += f" ({seen[name]})" if seen[name] > 1 else ""
        mistakes.append(Mistake(within, name, before, ast.unparse(function)))
    return mistakes


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:40]} ... {text[-16:]}"


def _changes(statements: list[ast.stmt]) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each change of a tree while it is made: what was there, and what is there now."""
    todo: list[object] = [statements]
    while todo:
        parent = todo.pop()
        places = range(len(parent)) if isinstance(parent, list) else _fields(parent)
        for place in places:
            node = parent[place] if isinstance(parent, list) else getattr(parent, place)
            if not isinstance(node, ast.AST | list):
                continue
            if isinstance(node, ast.AST):
                for other in _others(node):
                    _put(parent, place, other)
                    yield node, other
                    _put(parent, place, node)
            todo.append(node)


def _fields(parent: object) -> tuple[str, ...]:
    """Return the fields of a node that say what is computed: not types, names or messages."""
    if isinstance(parent, ast.Raise | ast.Global | ast.Import | ast.ImportFrom):
        return ()
    return tuple(name for name in parent._fields if name not in ("annotation", "returns"))


def _put(parent: object, place: int | str, node: ast.AST) -> None:
    if isinstance(parent, list):
        parent[place] = node
    else:
        setattr(parent, place, node)


def _others(node: ast.AST) -> list[ast.AST]:
    """Return what may stand in place of a node by mistake."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=others) if type(op) in COMPARED:
            return [ast.Compare(left, [COMPARED[type(op)]()], others)]
        case ast.BoolOp(op=op, values=values):
            return [ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [operand]
        case ast.Constant(value=value) if type(value) is int:
            return [ast.Constant(value + 1), ast.Constant(value - 1)]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return [left, right]
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, SWAPPED):
            dropped = [left] * isinstance(op, ast.Div | ast.FloorDiv | ast.Pow)
            return [ast.BinOp(right, op, left), *dropped]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=kw) if name in EXCHANGED:
            return [ast.Call(ast.Name(EXCHANGED[name]), args, kw)]
        case ast.Call(func=ast.Attribute(value, name), args=args, keywords=kw) if name in EXCHANGED:
            return [ast.Call(ast.Attribute(value, EXCHANGED[name]), args, kw)]
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return [ast.Pass()]
        case ast.If(body=[*_, last], orelse=[]) if isinstance(last, LEAVING):
            return [ast.Pass()]
    return []


def judged() -> set[str]:
    """Return place and name of the mistakes that have a verdict in survivors.txt."""
    lines = SURVIVORS.read_text(encoding="utf-8").splitlines() if SURVIVORS.exists() else []
    return {line for line in lines if line and not line.startswith((" ", "#"))}


def main() -> int:
    parser = argparse.ArgumentParser(description="Try mistakes that are made by rule.")
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=int(f"{datetime.now(UTC):%Y%m%d}"))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    asked = parser.parse_args()
    every = made(package())
    some = random.Random(asked.seed).sample(every, min(asked.number, len(every)))  # noqa: S311
    print(f"{len(some)} of {len(every)}, drawn by the seed {asked.seed}", flush=True)
    return min(1, len(try_mistakes(some, asked.seconds, judged(), audit=())))


if __name__ == "__main__":
    sys.exit(main())
