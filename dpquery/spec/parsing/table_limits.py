"""Limits of the tables that items expand to: queries of one table, and number of tables."""

from dpquery.limits import MAX_TABLE_QUERIES, MAX_TABLES
from dpquery.spec.model import SummedValues, Table
from dpquery.spec.parsing.scope import Sets
from dpquery.spec.parsing.yaml_nodes import Node


def table(
    node: Node,
    axes: Sets,
    where: Sets,
    at_least: int | None = None,
    summed: SummedValues | None = None,
) -> Table:
    """Return a table, of at most MAX_TABLE_QUERIES queries."""
    new_table = Table(tuple(sorted(axes.items())), tuple(sorted(where.items())), at_least, summed)
    if new_table.size > MAX_TABLE_QUERIES:
        raise node.mistake(
            f"one table asks {new_table.size:,} queries, more than the limit of "
            f"{MAX_TABLE_QUERIES:,}; name fewer attributes or coarser sets"
        )
    return new_table


def limit_tables(count: int, node: Node) -> None:
    """Refuse more than MAX_TABLES tables."""
    if count > MAX_TABLES:
        raise node.mistake(
            f"this makes {count:,} tables or more, past the limit of {MAX_TABLES:,}; ask for fewer "
            "ways, or for fewer attributes with `over`"
        )
