"""The one reader of tables: a version of a table, asked by SQL, with the answers of delta-rs' own engine in pyarrow.

The engine reads only the columns and files it needs, and holds no whole table. No file is read through Python. Rows
come in no order: who needs one says ORDER BY.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pydantic import BaseModel

from pipeline.errors import TableMissing
from pipeline.tables.address import table_uri
from pipeline.tables.opening import columns_of_others, open_table, unreadable
from pipeline.tables.port import HELD_TYPE, Condition, Instant, TableReader
from schemas.rows import BatchRow

_ENGINE: Final = {
    "datafusion.execution.parquet.pushdown_filters": "true",
    "datafusion.execution.parquet.max_predicate_cache_size": "0",
    "datafusion.execution.target_partitions": "1",
}
"""The engine reads a filter's columns, and of the others only what it lets pass.

It keeps no values of the filter's columns for later: of a large file they took 40 MB. And it runs on one core: with
two, a query of few rows takes half as much CPU again, and the job needs the other core.
"""

Row = dict[str, Any]
_TIME: Final = "evaluated_at_ms"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The job writes a file or two per second: to read those of a minute takes 70 ms, those of the newest instant 3 ms.
_SPANS_MS: Final = (0, 2_000, 16_000, 128_000, 3_600_000)


class StoredTable:
    """One version of a table. All that is read fits together.

    Conditions of a list must all hold. What cannot be read is `TableUnreadable`.

    Args:
        place: Its address, for the newest version, or a handle that is open.
        model: What "all columns" are; columns that others have added to the table are left out. None = its columns.
    """

    def __init__(self, place: str | DeltaTable, model: type[BaseModel] | None = None) -> None:
        self._table = open_table(place) if isinstance(place, str) else place
        address = urlsplit(self._table.table_uri)
        is_on_disk = address.scheme == "file"
        self.uri: str = unquote(address.path).rstrip("/") if is_on_disk else self._table.table_uri
        self.version: int = self._table.version()
        self._model = model

    @property
    def columns(self) -> list[str]:
        """All columns, in the order of the table."""
        added = [] if self._model is None else columns_of_others(self._table, self._model)
        return [field.name for field in self._table.schema().fields if field.name not in added]

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        """The rows that meet all conditions; `columns` None = all, in the order of the table."""
        return self.answer(_rows_where(self.columns if columns is None else columns, where))

    def rows(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> list[Row]:
        """These rows, each as a mapping of plain Python values."""
        return rows_of(self.read(columns, where))

    def count(self, where: Sequence[Condition]) -> int:
        """How many rows meet all conditions."""
        return self._figure("count(*)", where) or 0

    def smallest(self, column: str, where: Sequence[Condition] = ()) -> int | None:
        """The smallest value of an INT64 column in rows that meet all conditions; None without such rows."""
        return self._figure(f"min({_name(column)})", where)

    def largest(self, column: str, where: Sequence[Condition] = ()) -> int | None:
        """The largest value of such a column; otherwise as `smallest`."""
        return self._figure(f"max({_name(column)})", where)

    def newest_value(self, column: str) -> int | None:
        """The largest value of an INT64 column with statistics, from the log; None without rows."""
        return self._extreme(f"max.{column}", max)

    def oldest_value(self, column: str) -> int | None:
        """The smallest value of an INT64 column with statistics, from the log; None without rows."""
        return self._extreme(f"min.{column}", min)

    def newest_instant(self) -> Instant | None:
        """The newest instant that a row was evaluated at; None without rows.

        It is in the statistics of two columns. Only files with rows of several epochs are opened.
        """
        files = self.file_statistics()
        names = ("min.time_epoch", "max.time_epoch", "max.evaluated_at_ms")
        if names[1] not in files.column_names:
            return None  # no file has a row
        rows = [row for row in zip(*(files[name].to_pylist() for name in names), strict=True) if None not in row]
        if not rows:
            return None
        epoch = max(last for _, last, _ in rows)
        newest_ms = max((ms for first, _, ms in rows if first == epoch), default=-1)
        if any(last == epoch != first and ms > newest_ms for first, last, ms in rows):
            later = self.largest(_TIME, [("time_epoch", "=", epoch), (_TIME, ">", newest_ms)])
            newest_ms = newest_ms if later is None else later
        return Instant(epoch, newest_ms)

    def last_of_each(
        self, keys: Sequence[str], order: str, among: Sequence[Condition] = (), where: Sequence[Condition] = ()
    ) -> pa.Table:
        """See `TableReader`."""
        last = f"SELECT max({_name(order)}) FROM source{_where(among)} GROUP BY {key_list(keys)}"  # noqa: S608 - quoted by us
        conditions = " AND ".join([f"{_name(order)} IN ({last})", *map(_predicate, [*among, *where])])
        return self.answer(f"SELECT {column_list(self.columns)} FROM source WHERE {conditions}")  # noqa: S608 - quoted by us

    def newest(self, order: Sequence[str], where: Sequence[Condition] = ()) -> Row | None:
        """The row that is last in the order of these INT64 columns, with all columns; None if no row fits.

        * `order`: `evaluated_at_ms` is among them, at most `time_epoch` before it. It is looked for at the newest
          instant, then in spans before it that become longer, and at last in all rows.
        """
        newest = self.newest_instant()
        spans = () if newest is None else [newest.since(span_ms) for span_ms in _SPANS_MS]
        last_first = ", ".join(f"{_name(column)} DESC NULLS LAST" for column in order)
        for recent in (*spans, []):
            sql = f"{_rows_where(self.columns, [*where, *recent])} ORDER BY {last_first} LIMIT 1"
            if found := rows_of(self.answer(sql)):
                return found[0]
        return None

    def file_statistics(self) -> pa.Table:
        """One row per data file: `num_records`, and `min.x` and `max.x` for each column x that has statistics."""
        return pa.table(self._table.get_add_actions(flatten=True))

    def answer(self, sql: str) -> pa.Table:
        """The answer to a query over `source`, this table; in its types."""
        try:
            query = QueryBuilder(_ENGINE).register("source", self._table)
            found = pa.RecordBatchReader.from_stream(query.execute(sql)).read_all()
        except Exception as exc:  # delta-rs raises plain exceptions here
            raise unreadable(self.uri, exc) from exc
        # The engine has types of its own for texts and bytes, which hold on to whole pages of a file.
        types = pa.schema(self._table.schema())
        return found.cast(pa.schema([_stored(field, types) for field in found.schema]))

    def _extreme(self, statistic: str, choose: Callable[[list[int]], int]) -> int | None:
        files = self.file_statistics()
        values = files[statistic].drop_null().to_pylist() if statistic in files.column_names else []
        return choose(values) if values else None

    def _figure(self, figure: str, where: Sequence[Condition]) -> int | None:
        found = self.answer(f"SELECT {figure} AS n FROM source{_where(where)}")  # noqa: S608 - quoted by us
        value: int | None = found["n"][0].as_py()
        return value


def _stored(field: pa.Field, types: pa.Schema) -> pa.Field:
    if field.name in types.names and not pa.types.is_dictionary(field.type):
        return types.field(field.name)
    return field


def _rows_where(columns: Sequence[str], where: Sequence[Condition]) -> str:
    return f"SELECT {column_list(columns)} FROM source{_where(where)}"  # noqa: S608 - quoted by us


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
    if operator == "holds":
        name = _literal(value)
        return f"(client_id = {name} OR client_id IS NULL AND NOT array_has(except_client_ids, {name}))"
    return f"{_name(column)} {operator} {_literal(value)}"


def column_list(columns: Sequence[str]) -> str:
    """Columns as SQL lists them, quoted."""
    return ", ".join(map(_name, columns))


def key_list(keys: Sequence[str]) -> str:
    """Columns as SQL groups by them, quoted; `HELD_TYPE` may be one of them."""
    of_user = "CASE WHEN client_id IS NULL THEN quota_type END"
    return ", ".join(of_user if key == HELD_TYPE else _name(key) for key in keys)


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"DATE '{value.isoformat()}'" if isinstance(value, date) else str(value)


def rows_of(found: pa.Table) -> list[Row]:
    """The rows of an answer by column. Instants (TIMESTAMP columns in microseconds) are in UTC."""
    return [dict(zip(found.column_names, row, strict=True)) for row in zip(*map(_values, found.columns), strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any]
    if not pa.types.is_timestamp(column.type):
        values = column.to_pylist()
        return values
    # By pyarrow an instant would need the machine's time zone database, to know UTC.
    values = column.cast(pa.int64()).to_pylist()
    return [None if instant is None else _EPOCH + timedelta(microseconds=instant) for instant in values]


def newest_value(uri: str, column: str) -> int | None:
    """See `StoredTable.newest_value`; None if the table is missing, too."""
    try:
        return StoredTable(uri).newest_value(column)
    except TableMissing:
        return None


# The newest rows of a table that the job writes, and the newest row of `batches`.


def newest_rows(table: TableReader) -> pa.Table:
    """The rows of the newest instant of a table with `evaluated_at_ms`, in no order; perhaps of several batches.

    Within a time epoch the job never evaluates a batch before the one before it, so these rows are the newest.
    """
    newest = table.newest_instant()
    return table.read(None, [] if newest is None else newest.conditions)


def newest_batch(batches: TableReader) -> Row | None:
    """The newest row of `batches` by column; None if the table has no rows.

    Of several batches that were evaluated at the same instant it is the one that was processed last.
    """
    rows = rows_of(newest_rows(batches))
    return max(rows, key=lambda row: (row["processed_at_ms"], row["batch_id"]), default=None)


def newest_batch_under(root: str) -> Row | None:
    """The same, for a command that looks at the tables under a root."""
    return newest_batch(StoredTable(table_uri(root, "batches"), BatchRow))
