"""Made-up towns for the audit of RAP: small enough for every probability to be worked out.

All is public and written out by hand, the queries a second time as plain conditions on a record, so
that nothing here follows from how the product reads a spec, counts records or answers queries.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

from dpquery.arrays import Ints
from dpquery.plan_file.rap_settings import RapSettings

AgeAndSex = tuple[int, str]
"""age and sex of a record inside the domain."""
TownRow = tuple[str, str, str]
"""age, sex, id: as the CSV file has them."""

SPEC = """\
dataset: {{id: made-up-town, version: 1, rows: {rows}}}
privacy: {{unit: {unit}, neighbours: {neighbours}, delta: 1e-6}}
budget: {{rho: 1000}}
other: {other}
domain:
  age: {{range: [0, 3]}}
  sex: {{values: [F, M]}}
workload:
  - name: either
    any_of: {{age: prefix, sex: {{is: F}}}}
  - name: cells
    product: {{age: identity, sex: identity}}
"""
EPSILON, DELTA = Fraction(10), Fraction(1, 10**6)
KINDS = tuple(product(range(4), "FM"))
"""All records there can be."""
_EITHER = [[age <= last or sex == "F" for age, sex in KINDS] for last in range(4)]
_CELLS = [[kind == queried for kind in KINDS] for queried in KINDS]
ANSWERED = np.array([*_EITHER, *_CELLS], dtype=np.int64)
"""Whether each query holds of each kind of record, (m, 8): in the order of the spec."""
BLOCKS = (len(_EITHER), len(_CELLS))
_COUNTS = dict(zip(KINDS, (7, 5, 9, 4, 6, 8, 3, 5), strict=True))
DECLARED = sum(_COUNTS.values())
"""The number of records that a spec declares; it is public, and the total, if they are replaced and
none is dropped."""
_OUTSIDE: list[TownRow] = [("7", "F", "o1"), ("1", "X", "o2"), ("", "", "o3"), ("9", "M", "p0")]


@dataclass(frozen=True)
class Town:
    """A spec, two neighbouring files of records, and the settings of a run.

    Attributes:
        name: what is protected, in words.
        settings: of RAP.
        off: how far each query is answered too low before the first round, in steps of `span`.
        worst: the record that the neighbour has more.
        instead: the record that it has for it; None where records are added or removed.
        person: whether the unit is a person, whose rows beyond `limit` do not count.
        limit: D, the most rows of a person; 1 for rows.
        declared: whether the number of rows is, exactly, where they are replaced: none is dropped.
    """

    name: str
    settings: RapSettings
    off: tuple[int, ...]
    worst: AgeAndSex
    instead: AgeAndSex | None = None
    person: bool = False
    limit: int = 1
    declared: bool = True

    @property
    def replace(self) -> bool:
        """Whether neighbours have a record replaced."""
        return self.instead is not None

    @property
    def spec(self) -> str:
        """The text of the spec."""
        unit = f"{{person: id, max_rows: {self.limit}}}" if self.person else "row"
        neighbours = "replace" if self.replace else "add-remove"
        exact = self.replace and self.declared
        rows, other = (DECLARED, "count") if exact else (f"about {DECLARED}", "drop")
        return SPEC.format(unit=unit, neighbours=neighbours, rows=rows, other=other)

    @property
    def span(self) -> int:
        """How far apart the moves of two scores between neighbours can be."""
        return 2 * self.limit if self.replace else self.limit

    @property
    def rows(self) -> list[TownRow]:
        """The records of the town: some that are dropped, some persons with too many."""
        inside = [kind for kind, count in _COUNTS.items() for _ in range(count)]
        rows = [(str(age), sex, f"p{k}") for k, (age, sex) in enumerate(inside)]
        # All rows of a person are alike, so that it is no matter of chance which of them count.
        whose = [row for row in rows if row[:2] == ("1", "M")][:2]
        greedy = [whose[k % 2] for k in range(2 * self.limit + 3)]
        nobody: list[TownRow] = [("2", "F", "")] if self.person else []
        outside = [] if self.replace and self.declared else _OUTSIDE
        return [*outside, *rows, *(greedy if self.person else []), *nobody]

    @property
    def neighbour(self) -> list[TownRow]:
        """The same with one more unit of the worst kind of record, or a record replaced by it.

        The new person has two rows more than count.
        """
        (age, sex), changed = self.worst, self.rows
        new = (str(age), sex, "new")
        if self.instead is None:
            return [*changed, *[new] * (self.limit + 2 * self.person)]
        place = [row[:2] for row in changed].index((str(self.instead[0]), self.instead[1]))
        return [*changed[:place], new, *changed[place + 1 :]]

    @property
    def start(self) -> Ints:
        """What the public side answers before the first round, (m,)."""
        return np.asarray(answers_of(self.counted(self.rows)) - self.span * np.array(self.off))

    def counted(self, rows: Iterable[TownRow]) -> Counter[AgeAndSex]:
        """Count the records that count, of each kind, one by one."""
        rows_of: Counter[str] = Counter()
        counts: Counter[AgeAndSex] = Counter()
        for age, sex, name in rows:
            if age not in {"0", "1", "2", "3"} or sex not in {"F", "M"}:
                continue
            if self.person and (not name or rows_of[name] == self.limit):
                continue
            rows_of[name] += 1
            counts[int(age), sex] += 1
        return counts


def answers_of(counted: Counter[AgeAndSex]) -> Ints:
    """Return the true answers of all queries, (m,)."""
    return np.asarray(ANSWERED @ np.array([counted[kind] for kind in KINDS]))


def csv_of(rows: Sequence[TownRow]) -> str:
    """Return the text of a CSV file."""
    return "\n".join(["age,sex,id", *(",".join(row) for row in rows), ""])


TWO_ROUNDS = RapSettings(rounds=2, selected=2, relaxed_rows=16, seed=0)
AT_ONCE = RapSettings(rounds=1, selected=0, relaxed_rows=16, seed=0)
# Found by a search: what is drawn and counted then distinguishes the neighbours about as well as
# the budget allows. The record (1, F) answers the first four queries and the seventh.
_MANY = (0, 3, 2, 2, 0, 1, -2, 0, 1, 2, 1, 2)
_SWAPPED = (3, -2, -2, 1, 3, 1, 0, -1, 0, 1, 0, -2)
TOWNS = (
    Town("rows added or removed", TWO_ROUNDS, _MANY, (1, "F")),
    Town("rows replaced", TWO_ROUNDS, _SWAPPED, (3, "M"), instead=(0, "F")),
    Town("persons of 3 rows", TWO_ROUNDS, _MANY, (1, "F"), person=True, limit=3),
)
ALL_QUERIES_AT_ONCE = Town("rows, all queries at once", AT_ONCE, _MANY, (1, "F"))
