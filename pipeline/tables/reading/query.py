"""Queries of one table as SQL, and their answers by delta-rs' own engine. It loads neither pyarrow nor numpy.

The engine reads only the columns and files it needs, and holds no whole table. No file is read through Python.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any, Final

from arro3.core import Table
from deltalake import DeltaTable, QueryBuilder

from pipeline.tables.opening import local_path, unreadable
from pipeline.tables.port import Condition

FILTER_FIRST: Final = {
    "datafusion.execution.parquet.pushdown_filters": "true",
    "datafusion.execution.parquet.max_predicate_cache_size": "0",
    "datafusion.execution.target_partitions": "1",
}
"""For queries of few rows among many: the engine reads a filter's columns, and of the others only what it lets pass.

It keeps no values of the filter's columns for later: of a large file they took 40 MB. And it runs on one core: with
two, such a query takes half as much CPU again, and the job needs the other core.
"""


ADDED_COLUMN: Final = "time_epoch"
"""Tables that no job of this release has opened yet do not have it. It is read as null there."""


def answer(
    table: DeltaTable,
    sql: str,
    others: Mapping[str, DeltaTable] = MappingProxyType({}),
    engine: Mapping[str, str] | None = None,
) -> Table:
    """The answer to a query over the table `source`, in the types of the engine.

    Args:
        table: the table at the version to read.
        sql: the query. Names and values in it are quoted by the caller.
        others: further tables, by the names that the query gives them.
        engine: settings of the engine; None = its own.

    Raises:
        TableUnreadable: a file of the table can not be read.
    """
    try:
        is_older = ADDED_COLUMN in sql and ADDED_COLUMN not in column_names(table)
        query = QueryBuilder(None if engine is None else dict(engine))
        query = query.register("stored" if is_older else "source", table)
        if is_older:
            sql = f'WITH source AS (SELECT *, CAST(NULL AS BIGINT) AS "{ADDED_COLUMN}" FROM stored) {sql}'  # noqa: S608
        for name, other in others.items():
            query = query.register(name, other)
        return query.execute(sql).read_all()
    except Exception as exc:  # delta-rs raises plain exceptions here
        raise unreadable(local_path(table) or table.table_uri, exc) from exc


def column_names(table: DeltaTable) -> list[str]:
    """The columns of a table, in its order."""
    return [field.name for field in table.schema().fields]


def rows_where(columns: Sequence[str], where: Sequence[Condition]) -> str:
    """These columns of the rows that meet all conditions."""
    return f"SELECT {_list(columns)} FROM source{_where(where)}"  # noqa: S608 - quoted by us


def count_where(where: Sequence[Condition]) -> str:
    """The number of rows that meet all conditions, as `n`."""
    return f"SELECT count(*) AS n FROM source{_where(where)}"  # noqa: S608 - quoted by us


def smallest_where(column: str, where: Sequence[Condition]) -> str:
    """The smallest value of a column in rows that meet all conditions, as `least`."""
    return f"SELECT min({_name(column)}) AS least FROM source{_where(where)}"  # noqa: S608 - quoted by us


def largest_where(column: str, where: Sequence[Condition]) -> str:
    """The largest value of a column in rows that meet all conditions, as `most`."""
    return f"SELECT max({_name(column)}) AS most FROM source{_where(where)}"  # noqa: S608 - quoted by us


def last_values_of_each(keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition]) -> str:
    """For each combination of keys, `order` and these columns of the row with the largest `order`."""
    largest = ", ".join(f"last_value({_name(name)} ORDER BY {_name(order)}) AS {_name(name)}" for name in columns)
    found = f"max({_name(order)}) AS {_name(order)}, {largest}"
    return f"SELECT {found} FROM source{_where(where)} GROUP BY {_list(keys)}"  # noqa: S608 - quoted by us


def last_rows_of_each(
    keys: Sequence[str], order: str, columns: Sequence[str], among: Sequence[Condition], where: Sequence[Condition]
) -> str:
    """Of each combination of keys the row with the largest `order` among some rows, if it meets further conditions."""
    last = f"SELECT max({_name(order)}) FROM source{_where(among)} GROUP BY {_list(keys)}"  # noqa: S608 - quoted by us
    return f"{rows_where(columns, [*among, *where])} AND {_name(order)} IN ({last})"


def last_row(columns: Sequence[str], order: Sequence[str], where: Sequence[Condition]) -> str:
    """The row that is last in an order, of those that meet all conditions."""
    last_first = ", ".join(f"{_name(column)} DESC NULLS LAST" for column in order)
    return f"{rows_where(columns, where)} ORDER BY {last_first} LIMIT 1"


def _where(conditions: Sequence[Condition]) -> str:
    return " WHERE " + " AND ".join(map(_predicate, conditions)) if conditions else ""


def _predicate(condition: Condition) -> str:
    column, operator, value = condition
    if operator in {"in", "not in"}:
        if not value:
            return "false" if operator == "in" else "true"
        return f"{_name(column)} {operator} ({', '.join(map(_literal, value))})"
    return f"{_name(column)} {operator} {_literal(value)}"


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(_name, columns))


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    return str(value)
