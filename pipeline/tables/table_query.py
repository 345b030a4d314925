"""Queries of a table by delta-rs' own engine: it reads only the columns and files it needs, and holds no whole table.

Nothing here imports pyarrow.dataset or pandas, which take 0.4 s, and no file is read through Python.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from pipeline.tables.opening import local_path, unreadable
from pipeline.tables.port import Condition


def select(table: DeltaTable, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The rows of a table, in no order.

    Args:
        table: the table at the version to read.
        columns: which ones, in which order; None = all.
        where: conditions that must all hold. Files whose statistics exclude them are not opened.

    Raises:
        TableUnreadable: a file of the table can not be read.
    """
    names = pa.schema(table.schema()).names if columns is None else columns
    return run(table, f"SELECT {_list(names)} FROM source{_where(where)}")  # noqa: S608 - quoted by us


def count(table: DeltaTable, where: Sequence[Condition]) -> int:
    """How many rows of a table meet all conditions; otherwise as `select`."""
    return int(run(table, f"SELECT count(*) AS n FROM source{_where(where)}")["n"][0].as_py())  # noqa: S608 - quoted by us


def smallest(table: DeltaTable, column: str, where: Sequence[Condition] = ()) -> int | None:
    """The smallest value of an INT64 column in rows that meet all conditions; None without rows. Else as `select`."""
    least = run(table, f"SELECT min({_name(column)}) AS least FROM source{_where(where)}")  # noqa: S608 - quoted by us
    value: int | None = least["least"][0].as_py()
    return value


def newest_of_each(
    table: DeltaTable, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
) -> pa.Table:
    """For each combination of keys the row with the largest `order`, in no order; otherwise as `select`.

    Args:
        table: the table at the version to read.
        keys: columns that tell the combinations apart.
        order: an INT64 column; of each combination no two rows have the same value.
        columns: columns of the result besides `order`.
        where: conditions that must all hold.

    Returns:
        `order`, then `columns`.
    """
    largest = ", ".join(f"last_value({_name(name)} ORDER BY {_name(order)}) AS {_name(name)}" for name in columns)
    found = f"max({_name(order)}) AS {_name(order)}, {largest}"
    return run(table, f"SELECT {found} FROM source{_where(where)} GROUP BY {_list(keys)}")  # noqa: S608 - quoted by us


def newest(table: DeltaTable, order: Sequence[str], where: Sequence[Condition] = ()) -> pa.Table:
    """The row that is last in the order of these INT64 columns, with all columns; no row if none meets the conditions.

    Otherwise as `select`.
    """
    names = pa.schema(table.schema()).names
    last_first = ", ".join(f"{_name(column)} DESC" for column in order)
    return run(table, f"SELECT {_list(names)} FROM source{_where(where)} ORDER BY {last_first} LIMIT 1")  # noqa: S608


def run(table: DeltaTable, sql: str, others: Mapping[str, DeltaTable] = MappingProxyType({})) -> pa.Table:
    """The result of a query over the table `source`; columns of the table have the table's types.

    Args:
        table: the table at the version to read.
        sql: the query. Names and values in it are quoted by the caller.
        others: further tables, by the names that the query gives them.

    Raises:
        TableUnreadable: a file of the table can not be read.
    """
    types = pa.schema(table.schema())
    try:
        query = QueryBuilder().register("source", table)
        for name, other in others.items():
            query = query.register(name, other)
        found = query.execute(sql).read_all()
    except Exception as exc:  # delta-rs raises plain exceptions here
        raise unreadable(local_path(table) or table.table_uri, exc) from exc
    # The engine has types of its own for texts and bytes, which hold on to whole pages of a file. pyarrow's own cast
    # would load pyarrow.compute, which takes 30 ms: as long as a query.
    own = pa.schema(found.schema)
    wanted = pa.schema([types.field(field.name) if field.name in types.names else field for field in own])
    columns = [pa.chunked_array(found.column(field.name).cast(field)) for field in wanted]
    return pa.Table.from_arrays(columns, schema=wanted)


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
