"""The query that counts a table where it lies, written by Ibis.

**One row more is one record more.** The table is a base table, its columns are named one by one,
and each value becomes a code by an expression of its own (`pushed_codes`). A row inside the domain
has one cell in each table; cells are unnested and counted in groups, so that the row adds one to
one cell of each. Codes are never null, and no row is joined with another.

**One person more moves max_rows rows, whatever is drawn.** The rows of a person are ordered by the
MD5 of a salt, the row's cells, its number among the person's rows of the same cells, and the id;
the first max_rows stay. Rows of the same cells are interchangeable: which of them has which number
moves no table. So what stays of a person follows from the cells of this person's rows inside the
domain and from the salt, not from their order in the table, the engine's threads or the rows of
others: with one salt, whichever it is, one person more or less changes nothing of the others. The
guarantee needs no chance of the engine, whose generators promise nothing of that kind. The salt is
128 bits from the operating system, drawn anew for every count. That the rows of a person are as
likely to stay as each other rests on the salt, and on MD5 of a salted text looking random.
`keep: first` is refused: a table has no order that a query could rely on.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from dpquery.arrays import Ints
from dpquery.measurement.counting.engines.pushed_codes import CodeWriter, UnpushableError
from dpquery.measurement.counting.tables import count_of_cells
from dpquery.spec.columns import Column, Integers
from dpquery.spec.spec import Spec
from dpquery.strategy.algebra.subsets import Subset

if TYPE_CHECKING:
    from ibis import Table, Value


class CountedTables(NamedTuple):
    """What is counted.

    Attributes:
        spec: declares the columns and the unit.
        needed: the attributes that decide which cells a row is in, or whether it is in any.
        classes: of each attribute the class of every code.
        tables: attributes of each table, whose axes are classes.
    """

    spec: Spec
    needed: Sequence[int]
    classes: Sequence[Ints]
    tables: Sequence[Subset]

    @property
    def starts(self) -> list[int]:
        """The number of the first cell of each table, through all tables."""
        shape = [int(class_of.max()) + 1 for class_of in self.classes]
        sizes = [count_of_cells(table, shape) for table in self.tables]
        return [0, *accumulate(sizes[:-1])]


def counting_query(
    writer: CodeWriter,
    rows: "Table",
    names: Mapping[str, str],
    counted: CountedTables,
    *,
    salt: bytes,
) -> "Table":
    """Return the query of `place`, the number of a cell through all tables, and its `records`.

    Args:
        writer: of the backend.
        rows: the table.
        names: the column of the table that each declared one is.
        counted: what is counted.
        salt: decides which rows of a person stay.

    Raises:
        UnpushableError: a column cannot be coded in place as it would be here.
    """
    cells = _cells(writer, _coded(writer, rows, names, counted), counted)
    if counted.spec.privacy.person is not None:
        cells = _limited(writer, cells, len(counted.tables), counted.spec.privacy.max_rows, salt)
    starts = enumerate(counted.starts)
    places = [cells[f"cell_{k}"].cast("int64") + start for k, start in starts]
    place = places[0] if len(places) == 1 else writer.ibis.array(places).unnest()
    # A place is never null; if one were, its record must not be left out without a word.
    placed = cells.select(place=place).mutate(place=lambda rows: rows["place"].fill_null(-1))
    return placed.group_by("place").agg(records=placed.count())


def _coded(
    writer: CodeWriter, rows: "Table", names: Mapping[str, str], counted: CountedTables
) -> "Table":
    """Return the codes of all rows inside the domain, `code_I_K`, and `person`, where there are."""
    spec = counted.spec
    columns = {
        f"{i}_{k}": column
        for i in counted.needed
        for k, column in enumerate(spec.domain.attributes[i].columns)
    }
    read = dict(columns)
    if spec.privacy.person is not None:
        read["person"] = Column(spec.privacy.person, Integers(0, 0))  # a number where it is one
    values: dict[str, Value] = {"record": writer.ibis.literal(0, "int64")}
    for name, column in read.items():
        values |= writer.texts(f"value_{name}", rows[names[column.name]])
    rows = rows.select(**values)
    for step in (writer.fields, writer.numbers):
        more: dict[str, Value] = {}
        for name, column in read.items():
            with naming(f"the column {column.name}"):
                more |= step(f"value_{name}", column, rows)
        rows = rows.mutate(**more) if more else rows
    codes: dict[str, Value] = {"record": rows["record"]}
    for name, column in columns.items():
        with naming(f"the column {column.name}"):
            codes[f"code_{name}"] = writer.code(f"value_{name}", column, rows)
    if spec.privacy.person is not None:
        with naming(f"the column {spec.privacy.person}"):
            codes["person"] = writer.person("value_person", rows)
    coded = rows.select(**codes)
    inside = [coded[f"code_{name}"] >= 0 for name, column in columns.items() if column.drops]
    if spec.privacy.person is not None:
        inside.append(coded["person"].notnull())
    return coded.filter(*inside) if inside else coded


def _cells(writer: CodeWriter, coded: "Table", counted: CountedTables) -> "Table":
    """Return the cell of every row in each table, `cell_K`, and `person`, where there is one."""
    classes: dict[str, Value] = {}
    for i in counted.needed:
        attribute = counted.spec.domain.attributes[i]
        code = coded[f"code_{i}_0"]
        for k, column in enumerate(attribute.columns[1:], start=1):
            code = code * column.size + coded[f"code_{i}_{k}"]
        with naming(f"the attribute {attribute.name}"):
            classes[f"class_{i}"] = writer.class_of(code, counted.classes[i])
    rows = coded.mutate(**classes) if classes else coded
    cells: dict[str, Value] = {}
    for number, table in enumerate(counted.tables):
        cell = writer.ibis.literal(0, "int64")
        for i in table:
            cell = cell * (int(counted.classes[i].max()) + 1) + rows[f"class_{i}"]
        cells[f"cell_{number}"] = cell
    if counted.spec.privacy.person is not None:
        cells["person"] = rows["person"]
    return rows.select(**cells)


def _limited(
    writer: CodeWriter, cells: "Table", tables: int, max_rows: int, salt: bytes
) -> "Table":
    """Return the rows that stay of each person, as the module says."""
    ibis = writer.ibis
    names = [f"cell_{k}" for k in range(tables)]
    alike = cells.mutate(copy=ibis.row_number().over(group_by=["person", *names]))
    text = ibis.literal(salt.hex())
    for name in (*names, "copy"):
        text = text + "|" + alike[name].cast("string")
    drawn = alike.mutate(priority=writer.digest(text + "|" + alike["person"]))
    rank = ibis.row_number().over(group_by="person", order_by="priority")
    ranked = drawn.mutate(rank=rank)
    return ranked.filter(ranked["rank"] < max_rows)


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Put a subject before the reason why something cannot be coded in place."""
    try:
        yield
    except UnpushableError as error:
        raise UnpushableError(f"{subject} {error}") from None
