"""The table writer on Delta-Spark, with Spark's access to the store. A commit takes about 0.8 s once it is warm.

Spark's writer takes one `txnAppId` per commit and can not read it back. The guard, the first app id, is given there,
so Delta itself skips a commit whose version is recorded, also in a race. All versions, that of the guard too, are in
the user metadata of the commit. Each commit repeats those of the commit before (`recorded`), so the newest commit of
the job has all of them.

The commit itself can not check the epoch. So the epoch is compared before the write and after it. A driver that is
fenced between the two learns it before it publishes. Its one commit, which is guarded, is then in the table.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipeline.errors import first_line
from pipeline.tables.append_guard import (
    checked_epoch,
    commit_note,
    is_fenced,
    is_written,
    parse_commit_note,
    refuse_taken_epoch,
)
from pipeline.tables.errors import LostRace, RowsRefused, TableUnwritable
from pipeline.tables.spark.reader import DeltaSparkReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# How many commits are searched for the newest one of the job at first. Between two of them only maintenance commits,
# and on a table to which nothing is written for hours many times.
_LOOK_BACK: Final = 100
_ATTEMPTS: Final = 5
_OWN_KEYS: Final = ("recorded", "commit_id")


class DeltaSparkWriter(DeltaSparkReader):
    """A `TableWriter` on a Spark session. It holds its lock during a whole append."""

    def __init__(self, spark: "SparkSession", table: str, job: str) -> None:
        """Open the table.

        Args:
            spark: a classic session with Delta.
            table: address of the table, which must exist; or its name, a `CatalogTable`.
            job: name of the job; the epoch is recorded under this app id.

        Raises:
            TableMissing: there is no table.
        """
        super().__init__(spark, table)
        self._spark = spark
        self._table = table
        self._job = job
        self._epoch: int | None = None
        self._lock = threading.Lock()

    @property
    def version(self) -> int:
        """See `TableWriter`."""
        return self.stored.version()

    def raise_epoch(self, epoch: int) -> None:
        """See `TableWriter`."""
        with self._lock:
            recorded = self._recorded()
            refuse_taken_epoch(self._table, epoch, recorded.get(self._job))
            empty = self.stored.rows().limit(0)
            written = self._written(empty, (self._job, epoch), {self._job: epoch}, recorded, {})
            if not _has_landed(written, self._notes()):
                refuse_taken_epoch(self._table, epoch, self._recorded().get(self._job))
                raise LostRace(self._table, 1)
            self._epoch = epoch

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """See `TableWriter`."""
        if not rows.num_rows:
            return True
        with self._lock:
            frame = self._spark.createDataFrame(rows)
            for _ in range(_ATTEMPTS):
                recorded = self._recorded()
                epoch = checked_epoch(self._table, self._epoch, recorded.get(self._job))
                if is_written(self._table, versions, recorded.get):
                    return False
                guard = next(iter(versions.items()))
                written = self._written(frame, guard, {**versions, self._job: epoch}, recorded, metadata)
                notes = self._notes()
                # Also if it has not landed: we must see a driver that has raised the epoch before we publish.
                checked_epoch(self._table, epoch, self._highest_epoch(notes))
                if _has_landed(written, notes):
                    return True
        raise LostRace(self._table, _ATTEMPTS)

    def is_fenced(self) -> bool:
        """See `TableWriter`."""
        return self._epoch is not None and is_fenced(self._epoch, self.recorded_version(self._job))

    def recorded_version(self, app_id: str) -> int | None:
        """See `TableWriter`."""
        return self._recorded().get(app_id)

    def commit_metadata(self, limit: int) -> list[dict[str, str]]:
        """See `TableWriter`."""
        notes = (parse_commit_note(commit["userMetadata"]) for commit in self.stored.history(limit))
        return [{k: v for k, v in note.items() if k not in _OWN_KEYS} for note in notes if note is not None]

    def _notes(self) -> list[dict[str, str]]:
        """The notes of the job's newest commits, newest first."""
        for limit in (_LOOK_BACK, None):
            commits = self.stored.history(limit)
            notes = [note for note in (parse_commit_note(commit["userMetadata"]) for commit in commits) if note]
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
            .option("userMetadata", commit_note({**metadata, **own}, versions))
        )
        with self._named_errors() as outcome:
            self.stored.append(writer)
        return None if outcome else commit_id

    @contextmanager
    def _named_errors(self) -> Iterator[list[str]]:
        conflicts: list[str] = []
        try:
            yield conflicts
        except (PySparkException, Py4JJavaError) as exc:
            text = str(exc)
            cause = first_line(exc)
            if "Concurrent" in text and "DELTA_CONCURRENT" in text:
                conflicts.append(cause)
            elif "DELTA_VIOLATE" in text or "DELTA_FAILED_TO_MERGE" in text or "SCHEMA_MISMATCH" in text:
                raise RowsRefused(self._table, cause) from exc
            else:
                raise TableUnwritable(self._table, cause) from exc


def _has_landed(commit_id: str | None, notes: list[dict[str, str]]) -> bool:
    return commit_id is not None and any(note.get("commit_id") == commit_id for note in notes)
