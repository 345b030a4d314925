"""The table writer on Delta-Spark, with Spark's access to the store. A commit takes about 0.8 s once it is warm.

Spark's writer takes one `txnAppId` per commit and cannot read it back. The guard, the first app id, is given there,
so Delta itself skips a commit whose version is recorded, also in a race. All versions, that of the guard too, are in
the user metadata of the commit. Each commit repeats those of the commit before (`recorded`), so the newest commit of
the job has all of them.

The commit itself cannot check the epoch. So the epoch is compared before the write and after it. A driver that is
fenced between the two learns it before it publishes. Its one commit, which is guarded, is then in the table.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from pipeline.errors import first_line
from pipeline.settings.places import CatalogTable
from pipeline.tables import port
from pipeline.tables.address import table_missing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# One Delta table as Spark sees it, by its address or by its name in a catalog.

# Of a version that was never there, of one whose log is no longer kept, and of a data file that was cleaned away.
_NO_SUCH_VERSION: Final = ("DELTA_VERSION_NOT_FOUND", "DELTA_NO_REPRODUCIBLE_HISTORY", "DELTA_LOG_FILE_NOT_FOUND")
_FILE_MISSING: Final = ("FILE_NOT_EXIST", "FileNotFoundException")


class SparkTable:
    """A table that exists. It may be shared between threads."""

    def __init__(self, spark: "SparkSession", address: str) -> None:
        self.spark = spark
        self.address = address
        self._name = address.sql_name if isinstance(address, CatalogTable) else None
        self._sql_name = self._name or "delta.`" + address.replace("`", "``") + "`"
        with reading_by_spark(address):
            exists = spark.catalog.tableExists(self._name) if self._name else DeltaTable.isDeltaTable(spark, address)
        if not exists:
            raise table_missing(address)

    def rows(self, version: int | None = None) -> "DataFrame":
        """The rows at a version; None = the newest when they are read."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(self._name) if self._name else reader.load(self.address)

    def rows_at(self, version: int) -> "DataFrame":
        """The rows at a version, which is looked up now; `TableMissing` if the table does not have it."""
        try:
            return self.rows(version)
        except PySparkException as exc:
            if any(text in str(exc) for text in _NO_SUCH_VERSION):
                raise table_missing(self.address, version) from exc
            raise port.TableUnreadable(self.address, first_line(exc)) from exc

    def history(self, limit: int | None = None) -> list[Any]:
        """The newest commits, newest first: rows of `DESCRIBE HISTORY`."""
        spark = self.spark
        with reading_by_spark(self.address):
            table = DeltaTable.forName(spark, self._name) if self._name else DeltaTable.forPath(spark, self.address)
            found = table.history(limit) if limit is not None else table.history()
            return found.select("version", "userMetadata", "operation", "operationParameters").collect()

    def newest_version(self) -> int:
        """The newest version."""
        return int(self.history(1)[0]["version"])

    def detail(self) -> dict[str, Any]:
        """The row of `DESCRIBE DETAIL`."""
        with reading_by_spark(self.address):
            return dict(self.spark.sql(f"DESCRIBE DETAIL {self._sql_name}").collect()[0].asDict())

    def run(self, statement: str) -> list[Any]:
        """The rows of a statement, in which `{table}` stands for the table. Raises what Spark raises."""
        return self.spark.sql(statement.replace("{table}", self._sql_name)).collect()

    def change(self, statement: str) -> None:
        """Run a statement that changes the table; see `run`. `TableUnwritable` if Spark refuses it."""
        try:
            self.run(statement)
        except (PySparkException, Py4JError) as exc:
            raise port.TableUnwritable(self.address, first_line(exc)) from exc


@contextmanager
def reading_by_spark(table: str) -> Iterator[None]:
    """Turn what Spark raises in this block into `TableUnreadable`."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        is_gone = any(text in str(exc) for text in _FILE_MISSING)
        raise port.TableUnreadable(table, first_line(exc), is_file_missing=is_gone) from exc


def literal(text: str) -> str:
    """A text as Spark SQL writes it."""
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return f"'{escaped}'"


class DeltaSparkReader(SparkTable):
    """A `RolledTable` on a Spark session. Each call reads the newest version, or raises `TableUnreadable`."""

    def read(self, columns: Sequence[str] | None = None, where: Sequence[port.Condition] = ()) -> pa.Table:
        with reading_by_spark(self.address):
            return _select(_where(self.rows(), where), columns)

    def newest_value(self, column: str) -> int | None:
        newest: int | None = self._one(F.max(_column(column)))
        return newest

    def oldest_value(self, column: str) -> int | None:
        oldest: int | None = self._one(F.min(_column(column)))
        return oldest

    def newest_instant(self) -> port.Instant | None:
        instant = F.struct(F.coalesce(_column("time_epoch"), F.lit(0)), _column("evaluated_at_ms"))
        newest = self._one(F.max(instant))
        return None if newest is None else port.Instant(*newest)

    def newest_of_each(
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[port.Condition] = ()
    ) -> pa.Table:
        last = [F.max_by(_column(name), _column(order)).alias(name) for name in columns]
        with reading_by_spark(self.address):
            # Under names of their own, because `columns` may have the keys as well.
            groups = _where(self.rows(), where).groupBy([_column(name).alias(f"key {name}") for name in keys])
            return groups.agg(F.max(_column(order)).alias(order), *last).select(order, *columns).toArrow()

    def count(self, where: Sequence[port.Condition]) -> int:
        """Count the rows that meet all conditions."""
        with reading_by_spark(self.address):
            return _where(self.rows(), where).count()

    def slices(
        self, column: str, dictionaries: Sequence[str] = (), version: int | None = None, time_epoch: int | None = None
    ) -> "SparkSlices":
        """See `RolledTable`. Texts are never read as dictionaries."""
        return SparkSlices(self, column, self.newest_version() if version is None else version, time_epoch)

    def _one(self, value: "Column") -> Any:
        with reading_by_spark(self.address):
            found = self.rows().agg(value).first()
        return None if found is None else found[0]


class SparkSlices:
    """A `TableSlices` on a Spark session, of one time epoch or (None) of all."""

    def __init__(self, stored: SparkTable, time_column: str, version: int, time_epoch: int | None = None) -> None:
        self.version = version
        self._stored = stored
        self._column = time_column
        self._rows = _where(stored.rows_at(version), [] if time_epoch is None else [port.of_epoch(time_epoch)])

    def read(self, columns: Sequence[str], start_ms: int, end_ms: int) -> pa.Table:
        with reading_by_spark(self._stored.address):
            return _select(_where(self._rows, self._range(start_ms, end_ms)), columns)

    def pieces(self, columns: Sequence[str], start_ms: int, end_ms: int) -> Iterator[pa.Table]:
        """See `TableSlices`; one piece, because `toArrow` gives all rows together."""
        rows = self.read(columns, start_ms, end_ms)
        if rows.num_rows:
            yield rows

    def first_time(self, start_ms: int, end_ms: int, where: Sequence[port.Condition] = ()) -> int | None:
        with reading_by_spark(self._stored.address):
            found = _where(self._rows, [*self._range(start_ms, end_ms), *where]).agg(F.min(_column(self._column)))
            first = found.first()
        return None if first is None else first[0]

    def _range(self, start_ms: int, end_ms: int) -> list[port.Condition]:
        return [(self._column, ">=", start_ms), (self._column, "<", end_ms)]


def _select(frame: "DataFrame", columns: Sequence[str] | None) -> pa.Table:
    return (frame if columns is None else frame.select(*map(_column, columns))).toArrow()


def _where(frame: "DataFrame", conditions: Sequence[port.Condition]) -> "DataFrame":
    for condition in conditions:
        frame = frame.where(_predicate(condition))
    return frame


def _column(name: str) -> "Column":
    return F.col(f"`{name}`")


_OPERATORS: Final = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def _predicate(condition: port.Condition) -> "Column":
    name, operator, value = condition
    column = _column(name)
    if operator in {"in", "not in"}:
        listed = column.isin([one for one in value if one is not None])
        found = listed if operator == "in" else ~listed
        return found | column.isNull() if None in value else found
    predicate: Column = _OPERATORS[operator](column, value)
    return predicate


# How many commits are searched for the newest one of the job at first. Between two of them only maintenance commits,
# and on a table to which nothing is written for hours many times.
_LOOK_BACK: Final = 100
_ATTEMPTS: Final = 5
_OWN_KEYS: Final = ("recorded", "commit_id")
_REFUSED: Final = ("DELTA_VIOLATE", "DELTA_FAILED_TO_MERGE", "SCHEMA_MISMATCH")


class DeltaSparkWriter(DeltaSparkReader):
    """A `TableWriter` on a Spark session. It holds its lock during a whole append."""

    def __init__(self, spark: "SparkSession", table: str, job: str) -> None:
        super().__init__(spark, table)
        self._job = job
        self._epoch: int | None = None
        self._lock = threading.Lock()

    @property
    def version(self) -> int:
        return self.newest_version()

    @property
    def table_id(self) -> str:
        return str(self.detail()["id"])

    def raise_epoch(self, epoch: int) -> None:
        with self._lock:
            recorded = self._recorded()
            port.refuse_taken_epoch(self.address, epoch, recorded.get(self._job))
            empty = self.rows().limit(0)
            written = self._written(empty, (self._job, epoch), {self._job: epoch}, recorded, {})
            if not _has_landed(written, self._notes()):
                port.refuse_taken_epoch(self.address, epoch, self._recorded().get(self._job))
                raise port.lost_race(self.address, 1)
            self._epoch = epoch

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        if not rows.num_rows:
            return True
        with self._lock:
            frame = self.spark.createDataFrame(rows)
            for _ in range(_ATTEMPTS):
                recorded = self._recorded()
                epoch = port.checked_epoch(self.address, self._epoch, recorded.get(self._job))
                if port.is_written(self.address, versions, recorded.get):
                    return False
                guard = next(iter(versions.items()))
                written = self._written(frame, guard, {**versions, self._job: epoch}, recorded, metadata)
                notes = self._notes()
                # Also if it has not landed: we must see a driver that has raised the epoch before we publish.
                port.checked_epoch(self.address, epoch, self._highest_epoch(notes))
                if _has_landed(written, notes):
                    return True
        raise port.lost_race(self.address, _ATTEMPTS)

    def is_fenced(self) -> bool:
        return port.is_fenced(self._epoch, self.recorded_version(self._job))

    def recorded_version(self, app_id: str) -> int | None:
        return self._recorded().get(app_id)

    def commit_metadata(self, limit: int) -> list[dict[str, str]]:
        notes = (port.parse_commit_note(commit["userMetadata"]) for commit in self.history(limit))
        return [{k: v for k, v in note.items() if k not in _OWN_KEYS} for note in notes if note is not None]

    def _notes(self) -> list[dict[str, str]]:
        for limit in (_LOOK_BACK, None):
            commits = self.history(limit)
            notes = [note for note in (port.parse_commit_note(commit["userMetadata"]) for commit in commits) if note]
            if notes or len(commits) < _LOOK_BACK:
                break
        return notes

    def _recorded(self) -> dict[str, int]:
        """All recorded versions: those of the newest notes, back to a note that repeats all older ones."""
        recorded: dict[str, int] = {}
        for note in self._notes():
            found = json.loads(note.get("recorded", note["versions"]))
            recorded = {**found, **recorded}
            if "recorded" in note:
                break
        return recorded

    def _highest_epoch(self, notes: list[dict[str, str]]) -> int | None:
        # Not only the newest note: a commit that was under way while the epoch was raised may come after the raise.
        epochs = [json.loads(note["versions"]).get(self._job) for note in notes]
        return max((epoch for epoch in epochs if epoch is not None), default=None)

    def _written(
        self,
        frame: "DataFrame",
        guard: tuple[str, int],
        versions: Mapping[str, int],
        recorded: Mapping[str, int],
        metadata: Mapping[str, str],
    ) -> str | None:
        """Append in one commit, which Delta may skip. Returns its id; None if another commit came first."""
        commit_id = uuid4().hex
        own = {"recorded": json.dumps({**recorded, **versions}), "commit_id": commit_id}
        writer = (
            frame.coalesce(1)
            .write.format("delta")
            .mode("append")
            .option("txnAppId", guard[0])
            .option("txnVersion", guard[1])
            .option("userMetadata", port.commit_note({**metadata, **own}, versions))
        )
        try:
            if self._name:
                writer.saveAsTable(self._name)
            else:
                writer.save(self.address)
        except (PySparkException, Py4JJavaError) as exc:
            text = str(exc)
            if "Concurrent" in text and "DELTA_CONCURRENT" in text:
                return None
            is_refused = any(sign in text for sign in _REFUSED)
            raise (port.rows_refused if is_refused else port.TableUnwritable)(self.address, first_line(exc)) from exc
        return commit_id


def _has_landed(commit_id: str | None, notes: list[dict[str, str]]) -> bool:
    return commit_id is not None and any(note.get("commit_id") == commit_id for note in notes)
