"""Queries of one table as SQL, and their answers by delta-rs' own engine. It loads neither pyarrow nor numpy.

The engine reads only the columns and files it needs, and holds no whole table. No file is read through Python.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from arro3.core import ChunkedArray, DataType, Table
from deltalake import DeltaTable, QueryBuilder
from pydantic import BaseModel

from pipeline.tables.address import table_uri
from pipeline.tables.opening import columns_of_others, file_statistics, local_path, newest_in, open_table, unreadable
from pipeline.tables.port import Condition, Instant, TableReader
from schemas.rows import BatchRow

if TYPE_CHECKING:
    import pyarrow as pa

Engine = Mapping[str, str] | None
"""Settings of the engine; None = its own."""

FILTER_FIRST: Final = {
    "datafusion.execution.parquet.pushdown_filters": "true",
    "datafusion.execution.parquet.max_predicate_cache_size": "0",
    "datafusion.execution.target_partitions": "1",
}
"""For queries of few rows among many: the engine reads a filter's columns, and of the others only what it lets pass.

It keeps no values of the filter's columns for later: of a large file they took 40 MB. And it runs on one core: with
two, such a query takes half as much CPU again, and the job needs the other core.
"""


def answer(
    table: DeltaTable, sql: str, others: Mapping[str, DeltaTable] = MappingProxyType({}), engine: Engine = None
) -> Table:
    """The answer to a query over `source`, in the engine's types; `TableUnreadable` if a file is not readable."""
    try:
        query = QueryBuilder(None if engine is None else dict(engine)).register("source", table)
        for name, other in others.items():
            query = query.register(name, other)
        return query.execute(sql).read_all()
    except Exception as exc:  # delta-rs raises plain exceptions here
        raise unreadable(local_path(table) or table.table_uri, exc) from exc


def column_names(table: DeltaTable) -> list[str]:
    """The columns of a table, in its order."""
    return [field.name for field in table.schema().fields]


def count(table: DeltaTable, where: Sequence[Condition]) -> int:
    """Count the rows of a table that meet all conditions; raises as `answer`."""
    return _figure(table, "count(*)", where) or 0


def smallest(table: DeltaTable, column: str, where: Sequence[Condition] = (), engine: Engine = None) -> int | None:
    """The smallest value of an INT64 column in rows that meet all conditions; None without rows."""
    return _figure(table, f"min({_name(column)})", where, engine)


def largest(table: DeltaTable, column: str, where: Sequence[Condition] = (), engine: Engine = None) -> int | None:
    """The largest value of such a column; otherwise as `smallest`."""
    return _figure(table, f"max({_name(column)})", where, engine)


def newest_instant_in(table: DeltaTable) -> Instant | None:
    """The newest instant that a row was evaluated at; None without rows.

    It is in the statistics of `time_epoch` and `evaluated_at_ms`. Only files with rows of several epochs are opened.
    """
    files = file_statistics(table)
    names = ("min.time_epoch", "max.time_epoch", "max.evaluated_at_ms")
    if names[1] not in files.column_names:
        return None  # no file has a row
    rows = [row for row in zip(*(files.column(name).to_pylist() for name in names), strict=True) if None not in row]
    if not rows:
        return None
    epoch = max(last for _, last, _ in rows)
    newest_ms = max((ms for first, _, ms in rows if first == epoch), default=-1)
    if any(last == epoch != first and ms > newest_ms for first, last, ms in rows):
        later = largest(table, _TIME, [("time_epoch", "=", epoch), (_TIME, ">", newest_ms)], FILTER_FIRST)
        newest_ms = newest_ms if later is None else later
    return Instant(epoch, newest_ms)


def rows_where(columns: Sequence[str], where: Sequence[Condition]) -> str:
    """These columns of the rows that meet all conditions."""
    return f"SELECT {column_list(columns)} FROM source{_where(where)}"  # noqa: S608 - quoted by us


def last_values_of_each(keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition]) -> str:
    """For each combination of keys, `order` and these columns of the row with the largest `order`."""
    last = ", ".join(f"last_value({_name(name)} ORDER BY {_name(order)}) AS {_name(name)}" for name in columns)
    found = f"max({_name(order)}) AS {_name(order)}, {last}"
    return f"SELECT {found} FROM source{_where(where)} GROUP BY {column_list(keys)}"  # noqa: S608 - quoted by us


def _figure(table: DeltaTable, figure: str, where: Sequence[Condition], engine: Engine = None) -> int | None:
    found = answer(table, f"SELECT {figure} AS n FROM source{_where(where)}", engine=engine)  # noqa: S608 - quoted by us
    value: int | None = found.column("n").to_pylist()[0]
    return value


def _where(conditions: Sequence[Condition]) -> str:
    return f" WHERE {predicates(conditions)}" if conditions else ""


def predicates(conditions: Sequence[Condition]) -> str:
    """The SQL of conditions that must all hold, with names and texts quoted; "" without any."""
    return " AND ".join(map(_predicate, conditions))


def _predicate(condition: Condition) -> str:
    column, operator, value = condition
    if operator in {"in", "not in"}:
        if not value:
            return "false" if operator == "in" else "true"
        return f"{_name(column)} {operator} ({', '.join(map(_literal, value))})"
    return f"{_name(column)} {operator} {_literal(value)}"


def column_list(columns: Sequence[str]) -> str:
    """Columns as SQL lists them, quoted."""
    return ", ".join(map(_name, columns))


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"DATE '{value.isoformat()}'" if isinstance(value, date) else str(value)


# One version of a table as rows: mappings of Python's own values, for commands that print few of them.
#
# It loads neither pyarrow nor numpy, which take longer than the queries of such a command. What computes with columns,
# or looks at a table again and again, takes `pipeline.tables.reading`.

Row = dict[str, Any]
_TIME: Final = "evaluated_at_ms"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The job writes a file or two per second: to read those of a minute takes 70 ms, those of the newest instant 3 ms.
_SPANS_MS: Final = (0, 2_000, 16_000, 128_000, 3_600_000)


class TableRows:
    """The version of a table that was the newest when this object was made. All that is read fits together.

    The methods are as those of `TableReader`, and raise `TableUnreadable` if a file cannot be read.

    Args:
        model: What "all columns" are; columns that others have added to the table are left out. None = its columns.
    """

    def __init__(self, uri: str, model: type[BaseModel] | None = None) -> None:
        self.uri = uri
        self._table = open_table(uri)
        added = [] if model is None else columns_of_others(self._table, model)
        self._columns = [name for name in column_names(self._table) if name not in added]

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> list[Row]:
        """The rows that meet all conditions, in no order; `columns` None = all, in the order of the table."""
        return self.rows(rows_where(self._columns if columns is None else columns, where))

    def newest_value(self, column: str) -> int | None:
        """The largest value of a column, from the log."""
        return newest_in(self._table, column)

    def newest_instant(self) -> Instant | None:
        """The newest instant that a row was evaluated at."""
        return newest_instant_in(self._table)

    def smallest(self, column: str, where: Sequence[Condition] = ()) -> int | None:
        """The smallest value of an INT64 column in rows that meet all conditions; None without such rows."""
        return smallest(self._table, column, where, FILTER_FIRST)

    def newest_of_each(
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
    ) -> list[Row]:
        """For each combination of keys `order` and columns of the row with the largest `order`."""
        return self.rows(last_values_of_each(keys, order, columns, where))

    def last_of_each(
        self, keys: Sequence[str], order: str, among: Sequence[Condition], where: Sequence[Condition]
    ) -> list[Row]:
        """Of each combination of keys the row with the largest `order` among some rows, with all columns; in no order.

        * `order`: An INT64 column; no two rows have the same value.
        * `where`: Conditions on the row that was found; at least one. Rows that do not meet them are left out.
        """
        last = f"SELECT max({_name(order)}) FROM source{_where(among)} GROUP BY {column_list(keys)}"  # noqa: S608 - quoted by us
        return self.rows(f"{rows_where(self._columns, [*among, *where])} AND {_name(order)} IN ({last})")

    def newest(self, order: Sequence[str], where: Sequence[Condition] = ()) -> Row | None:
        """The row that is last in the order of these INT64 columns, with all columns; None if no row fits.

        * `order`: `evaluated_at_ms` is among them, at most `time_epoch` before it. It is looked for at the newest
          instant, then in spans before it that become longer, and at last in all rows.
        """
        newest = self.newest_instant()
        spans = () if newest is None else [newest.since(span_ms) for span_ms in _SPANS_MS]
        last_first = ", ".join(f"{_name(column)} DESC NULLS LAST" for column in order)
        for recent in (*spans, []):
            found = self.rows(f"{rows_where(self._columns, [*where, *recent])} ORDER BY {last_first} LIMIT 1")
            if found:
                return found[0]
        return None

    def rows(self, sql: str) -> list[Row]:
        """The answer to a query over `source`."""
        return rows_of(answer(self._table, sql, engine=FILTER_FIRST))


def rows_of(found: Table) -> list[Row]:
    """The rows of an answer by column. Instants (TIMESTAMP columns in microseconds) are in UTC."""
    names = found.column_names
    columns = [_values(found.column(name)) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: ChunkedArray) -> list[Any]:
    plain: Any = column  # the stubs of arro3 take its lists for arrays of numpy
    values: list[Any]
    if not DataType.is_timestamp(column.type):
        values = plain.to_pylist()
        return values
    # By arro3 an instant would need the machine's time zone database, to know UTC.
    values = plain.cast(DataType.int64()).to_pylist()
    return [None if instant is None else _EPOCH + timedelta(microseconds=instant) for instant in values]


# The newest rows of a table that the job writes, and the newest row of `batches`.


def newest_rows(table: TableReader, columns: Sequence[str] | None = None) -> "pa.Table":
    """The rows of the newest instant of a table with `evaluated_at_ms`, in no order; perhaps of several batches.

    Within a time epoch the job never evaluates a batch before the one before it, so these rows are the newest.
    """
    newest = table.newest_instant()
    return table.read(columns, [] if newest is None else newest.conditions)


def newest_batch(batches: TableReader) -> Row | None:
    """The newest row of `batches` by column, for the job and its writer; None if the table has no rows."""
    return _last(rows_of(Table.from_arrow(newest_rows(batches))))


def newest_batch_under(root: str) -> Row | None:
    """The same, for a command that looks at the tables under a root."""
    batches = TableRows(table_uri(root, "batches"), BatchRow)
    newest = batches.newest_instant()
    return None if newest is None else _last(batches.read(None, newest.conditions))


def _last(rows: list[Row]) -> Row | None:
    """Of several batches that were evaluated at the same instant, the one that was processed last."""
    return max(rows, key=lambda row: (row["processed_at_ms"], row["batch_id"]), default=None)
