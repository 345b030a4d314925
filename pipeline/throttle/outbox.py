"""Records on their way to the topic, as rows of `throttle_events`.

A row is written first and published from what was written, so whatever reaches the topic is also in the table,
with the same wall-clock end, however often the publishing has to be tried.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, overload

import numpy as np
import pyarrow as pa

from pipeline.clock import Moment
from pipeline.tables.port import TableWriter
from pipeline.throttle.ledger import HELD
from pipeline.throttle.shapes import PUBLICATIONS, Publication, columns_of, int64s, publication_of, table_of
from quota.replay import Evaluation
from schemas.arrow import arrow_schema, conform
from schemas.throttle_record import SCHEMA_VERSION, ThrottleEventRow, written_ms


def publish_app_id(job: str) -> str:
    """The app id whose recorded version is the last `publish_seq` a job has written."""
    return f"{job}:publish"


class Outbox(Protocol):
    """Where the rows are kept: the `throttle_events` table, through a guarded writer."""

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Append rows in one commit; False if a version in `versions` is already recorded (nothing written)."""
        ...

    def rows_from(self, publish_seq: int) -> pa.Table:
        """Stored rows with this `publish_seq` or a higher one, in its order."""
        ...

    def is_fenced(self) -> bool:
        """Whether another driver has taken the table over since this one did."""
        ...

    def newest(self) -> tuple[int, pa.Table]:
        """The highest `publish_seq` ever written (-1: none) and the last row of every client where that is a throttle.

        Its row may be gone: rows are kept for a time only, the number is never given again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """One publication as it was written: its position and its wall-clock end."""

    publication: Publication
    publish_seq: int
    throttled_until_ms: int


WRITTEN: Final = pa.schema([*PUBLICATIONS, ("publish_seq", pa.int64()), ("throttled_until_ms", pa.int64())])
"""The fields of `Written`, its publication taken apart."""

# Not `empty_table`, which imports pandas.
NOTHING_WRITTEN: Final = pa.Table.from_batches([], WRITTEN)

NO_ROWS: Final = pa.Table.from_batches([], arrow_schema(ThrottleEventRow))


class WrittenRecords(Sequence[Written]):
    """Records that were written together, by columns. An element is made into an object when it is asked for."""

    def __init__(self, written: pa.Table) -> None:
        self._written = written

    @property
    def columns(self) -> pa.Table:
        """The same records, of `WRITTEN`."""
        return self._written

    @overload
    def __getitem__(self, place: int) -> Written: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Written]: ...
    def __getitem__(self, place: int | slice) -> Written | Sequence[Written]:
        if isinstance(place, slice):
            return WrittenRecords(self._written.take(pa.array(range(len(self))[place], pa.int64())))
        (row,) = self._written.slice(range(len(self))[place], 1).to_pylist()
        return _written_of(row)

    def __len__(self) -> int:
        return int(self._written.num_rows)

    def __iter__(self) -> Iterator[Written]:
        return map(_written_of, self._written.to_pylist())


Announce = Callable[[Sequence[Written], int], None]
"""Hears the records that were written together, in their order, and the quota version they were decided under. Must be
quick and must not raise.
"""


def write_down(publications: pa.Table, first_seq: int, now: Moment) -> pa.Table:
    """Give publications their places in the order and their wall-clock ends: of `PUBLICATIONS` to `WRITTEN`."""
    places = np.arange(first_seq, first_seq + publications.num_rows)
    until_ms = now.wall_ms + int64s(publications, "throttle_time_ms")
    columns = [*publications.columns, pa.array(places), pa.array(until_ms)]
    return pa.Table.from_arrays(columns, schema=WRITTEN)


def rows_of(written: pa.Table, evaluation: Evaluation, cluster: str) -> pa.Table:
    """The rows of `throttle_events` for these records: schema of `ThrottleEventRow`, one per record, in order."""
    return conform(
        written,
        ThrottleEventRow,
        cluster=cluster,
        query_id=evaluation.query_id,
        batch_id=evaluation.batch_id,
        time_epoch=evaluation.time_epoch,
        evaluated_at_ms=evaluation.evaluated_at_ms,
        quota_version=evaluation.quota_version,
        schema_version=SCHEMA_VERSION,
    )


def held_from(rows: pa.Table, now: Moment, lead_ms: int) -> pa.Table:
    """The running throttles that stored rows stand for, after a restart; of `HELD`.

    Their ends on the steady clock are as far away as their wall-clock ends are from the wall clock now, but never
    farther than the whole throttle is long: then the clock was set back, no client waits longer than its record gave.
    One whose end has passed, or is nearer than the lead, is due at once.
    """
    left_ms = np.minimum(int64s(rows, "throttled_until_ms") - now.wall_ms, int64s(rows, "throttle_time_ms"))
    end_ms = now.steady_ms + np.maximum(left_ms, 0)
    due_ms = np.minimum(np.maximum(end_ms - lead_ms, now.steady_ms), end_ms)
    times = {"end_ms": pa.array(end_ms), "due_ms": pa.array(due_ms)}
    return table_of(HELD, rows.num_rows, {**columns_of(rows, HELD), **times})


def _written_of(row: dict[str, Any]) -> Written:
    return Written(publication_of(row), row["publish_seq"], row["throttled_until_ms"])


# The outbox on a Delta table: `throttle_events`.

# While a job runs, it looks at each throttle when it ends. A throttle that had ended for this long when the last record
# was written is over.
_LONG_OVER_MS: Final = 86_400_000


class DeltaOutbox:
    """`Outbox` on the guarded writer of `throttle_events`."""

    def __init__(self, table: TableWriter, job: str) -> None:
        self._table = table
        self._app_id = publish_app_id(job)

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Append rows in one commit. The whole commit is skipped if its guard is recorded already."""
        return self._table.append(rows, versions, metadata)

    def rows_from(self, publish_seq: int) -> pa.Table:
        """Stored rows with this `publish_seq` or a higher one, in its order."""
        return self._table.read(None, [("publish_seq", ">=", publish_seq)]).sort_by("publish_seq")

    def is_fenced(self) -> bool:
        """See `TableWriter.is_fenced`."""
        return self._table.is_fenced()

    def newest(self) -> tuple[int, pa.Table]:
        """See `Outbox`. Throttles that ended a day before the last record was written are left out: they are over."""
        from pipeline.tables.reading import last_throttles  # noqa: PLC0415 - loads delta-rs

        recorded = self._table.recorded_version(self._app_id)
        stored = self._table.newest_value("publish_seq")
        if stored is None:
            return -1 if recorded is None else recorded, last_throttles(self._table, 0)
        (last,) = self._table.read(
            ["throttled_until_ms", "throttle_time_ms"], [("publish_seq", "=", stored)]
        ).to_pylist()
        highest = stored if recorded is None else max(recorded, stored)
        return highest, last_throttles(self._table, written_ms(last) - _LONG_OVER_MS)
