"""Queries of a table by delta-rs' own engine, with their answers as tables of pyarrow.

Nothing here imports pyarrow.dataset or pandas, which take 0.4 s.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.tables.port import Condition
from pipeline.tables.reading.query import (
    answer,
    column_names,
    count_where,
    largest_where,
    last_values_of_each,
    rows_where,
    smallest_where,
)


def select(table: DeltaTable, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The rows of a table, in no order.

    Args:
        table: the table at the version to read.
        columns: which ones, in which order; None = all.
        where: conditions that must all hold. Files whose statistics exclude them are not opened.

    Raises:
        TableUnreadable: a file of the table can not be read.
    """
    return run(table, rows_where(column_names(table) if columns is None else columns, where))


def count(table: DeltaTable, where: Sequence[Condition]) -> int:
    """Count the rows of a table that meet all conditions; otherwise as `select`."""
    return int(run(table, count_where(where))["n"][0].as_py())


def smallest(table: DeltaTable, column: str, where: Sequence[Condition] = ()) -> int | None:
    """The smallest value of an INT64 column in rows that meet all conditions; None without rows. Else as `select`."""
    value: int | None = run(table, smallest_where(column, where))["least"][0].as_py()
    return value


def largest(table: DeltaTable, column: str, where: Sequence[Condition] = ()) -> int | None:
    """The largest value of an INT64 column in rows that meet all conditions; None without rows. Else as `select`."""
    value: int | None = run(table, largest_where(column, where))["most"][0].as_py()
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
    return run(table, last_values_of_each(keys, order, columns, where))


def run(
    table: DeltaTable,
    sql: str,
    others: Mapping[str, DeltaTable] = MappingProxyType({}),
    engine: Mapping[str, str] | None = None,
) -> pa.Table:
    """The result of a query over the table `source`; columns of the table have the table's types.

    Args:
        table: the table at the version to read.
        sql: the query. Names and values in it are quoted by the caller.
        others: further tables, by the names that the query gives them.
        engine: see `answer`.

    Raises:
        TableUnreadable: a file of the table can not be read.
    """
    types = pa.schema(table.schema())
    found = answer(table, sql, others, engine)
    # The engine has types of its own for texts and bytes, which hold on to whole pages of a file. pyarrow's own cast
    # would load pyarrow.compute, which takes 30 ms: as long as a query.
    own = pa.schema(found.schema)
    wanted = pa.schema([types.field(field.name) if field.name in types.names else field for field in own])
    columns = [pa.chunked_array(found.column(field.name).cast(field)) for field in wanted]
    return pa.Table.from_arrays(columns, schema=wanted)
